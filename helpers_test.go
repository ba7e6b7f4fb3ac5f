package gantry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/check/checktest"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

const testDir = "/store"

// testStart is the time at which test clocks begin.
const testStart = 1_700_000_000_000

// testClock is a clock that only the test moves.
type testClock struct{ ms atomic.Int64 }

func newClock() *testClock {
	c := new(testClock)
	c.ms.Store(testStart)
	return c
}

func (c *testClock) now() int64          { return c.ms.Load() }
func (c *testClock) add(d time.Duration) { c.ms.Add(d.Milliseconds()) }
func (c *testClock) set(ms int64)        { c.ms.Store(ms) }

// smallOptions are the set-up S of the cases: small files, every put on disk
// when it returns, a clock that stands still, names in UTC.
func smallOptions(fs vfs.FS, clock *testClock) *Options {
	return &Options{
		CommitLogFileSize:    1 << 20,
		ConsumeQueueFileSize: 20_000,
		IndexSlots:           500,
		IndexEntries:         2_000,
		IndexLocation:        time.UTC,
		Flush:                FlushSync,
		CleanInterval:        -1,
		FS:                   fs,
		Now:                  clock.now,
	}
}

// with returns a copy of o, changed.
func (o *Options) with(change func(*Options)) *Options {
	c := *o
	change(&c)
	return &c
}

func mustOpen(t testing.TB, o *Options) *Store {
	t.Helper()
	s, err := Open(context.Background(), testDir, o)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	return s
}

func mustClose(t testing.TB, s *Store) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatalf("close: %v", err)
	}
}

func mustPut(t testing.TB, s *Store, m *message.Message) PutResult {
	t.Helper()
	res, err := s.Put(context.Background(), m)
	if err != nil {
		t.Fatalf("put: %v", err)
	}
	return res
}

// waitDispatched waits until everything put so far can be read.
func waitDispatched(t testing.TB, s *Store) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if err := s.WaitDispatched(ctx); err != nil {
		t.Fatalf("wait for the dispatcher: %v; dispatched to %d, the log ends at %d", err, s.dispatchedTo.Load(), s.log.End())
	}
}

// testMessage is a message to TopicTest queue 0 with a body and properties.
func testMessage(body string, props ...string) *message.Message {
	return &message.Message{Topic: "TopicTest", Body: []byte(body), Properties: message.NewProperties(props...)}
}

// bodies returns the bodies of all messages of a queue from offset on.
func bodies(t testing.TB, s *Store, topic string, id int32, from message.QueueOffset) []string {
	t.Helper()
	var out []string
	for {
		res, err := s.Get(topic, id, from, GetOptions{})
		if err != nil {
			t.Fatalf("get %s/%d at %d: %v", topic, id, from, err)
		}
		if len(res.Damaged) > 0 {
			t.Fatalf("get %s/%d at %d: damaged: %v", topic, id, from, errors.Join(res.Damaged...))
		}
		msgs, err := res.Messages()
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range msgs {
			out = append(out, string(m.Body))
		}
		if res.NextOffset >= res.MaxOffset || res.NextOffset == from {
			return out
		}
		from = res.NextOffset
	}
}

// queryBodies returns the bodies of the messages with a key, newest first.
func queryBodies(t testing.TB, s *Store, topic, key string, opts QueryOptions) []string {
	t.Helper()
	found, err := s.Query(context.Background(), topic, key, opts)
	if err != nil {
		t.Fatalf("query %s %s: %v", topic, key, err)
	}
	var out []string
	for _, m := range found {
		out = append(out, string(m.Body))
	}
	return out
}

// kill takes the store's file system as a kill -9 leaves it: everything that
// was written, nothing of what closing would do.
func kill(s *Store, fs *memfs.FS) *memfs.FS {
	clone := fs.CrashClone(memfs.KeepAll)
	s.abandon()
	return clone
}

// abandon stops a store's goroutines without writing anything more, for tests
// that go on with a copy of its files.
func (s *Store) abandon() {
	s.closed.Store(true)
	s.stop()
	s.loops.Wait()
	_ = s.closeFiles() // writes to files that nobody looks at any more
	if s.lock != nil {
		_ = s.lock.Close()
	}
}

func keyed(i int) *message.Message {
	return testMessage(fmt.Sprintf("body-%d", i), "KEYS", fmt.Sprintf("k%d", i), "TAGS", "a")
}

// checkStore runs the consistency checker over a closed store.
func checkStore(t testing.TB, fs vfs.FS) {
	t.Helper()
	checktest.Dir(t, fs, testDir)
}

// removeAll removes a file or a directory with all that is in it.
func removeAll(t testing.TB, fs vfs.FS, name string) {
	t.Helper()
	e, err := fs.Stat(name)
	if err != nil {
		t.Fatal(err)
	}
	if e.IsDir() {
		entries, err := fs.List(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			removeAll(t, fs, name+"/"+e.Name)
		}
	}
	if err := fs.Remove(name); err != nil {
		t.Fatal(err)
	}
}
