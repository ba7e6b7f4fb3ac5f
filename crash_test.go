package gantry

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

var crashLong = flag.Bool("crash.long", false, "crash at every single operation, with more seeds")

// tinyOptions make files roll after a handful of messages.
func tinyOptions(fs vfs.FS, clock *testClock) *Options {
	o := smallOptions(fs, clock)
	o.CommitLogFileSize = 4096
	o.ConsumeQueueFileSize = 10 * 20
	o.IndexSlots, o.IndexEntries = 16, 24
	return o
}

// promise is a message that a put acknowledged.
type promise struct {
	body, key string
	queue     int32
	offset    message.QueueOffset
	physical  message.PhysicalOffset
}

// ledger is what a workload tried and what it was promised.
type ledger struct {
	tried map[string]bool
	acked []promise // in the order of the log
}

// crashWorkload puts messages of several kinds until something fails.
func crashWorkload(opts *Options, clock *testClock, rounds int) *ledger {
	ctx := context.Background()
	l := &ledger{tried: make(map[string]bool)}
	n := 0
	next := func(queue int32) *message.Message {
		n++
		body := fmt.Sprintf("%d:%*d", n, 20+n*37%300, n)
		l.tried[body] = true
		return &message.Message{
			Topic: "TopicTest", QueueID: queue, Body: []byte(body),
			Properties: message.NewProperties("KEYS", fmt.Sprintf("k%d", n), "TAGS", "a", "UNIQ_KEY", fmt.Sprintf("u%d", n)),
		}
	}
	note := func(res PutResult, msgs ...*message.Message) {
		at := res.PhysicalOffset
		for i, m := range msgs {
			key, _ := m.Properties.Get("KEYS")
			l.acked = append(l.acked, promise{string(m.Body), key, m.QueueID, res.QueueOffset + message.QueueOffset(i), at})
			if len(res.sizes) > 0 {
				at += message.PhysicalOffset(res.sizes[i])
			}
		}
	}
	for round := range rounds {
		s, err := Open(ctx, testDir, opts)
		if err != nil {
			return l
		}
		for i := range 12 {
			clock.add(7 * time.Millisecond)
			if i%5 == 4 {
				msgs := []*message.Message{next(1), next(1), next(1)}
				res, err := s.PutBatch(ctx, msgs)
				if err != nil {
					s.abandon()
					return l
				}
				note(res, msgs...)
				continue
			}
			m := next(int32(i % 3))
			res, err := s.Put(ctx, m)
			if err != nil {
				s.abandon()
				return l
			}
			note(res, m)
		}
		if round%2 == 1 {
			if err := s.Sync(ctx); err != nil {
				s.abandon()
				return l
			}
		}
		if s.Close() != nil {
			return l
		}
	}
	return l
}

// verifyCrash opens what a crash left and compares it with what was promised.
func verifyCrash(t *testing.T, opts *Options, l *ledger, sync bool, what string) {
	t.Helper()
	ctx := context.Background()
	s, err := Open(ctx, testDir, opts)
	if err != nil {
		t.Fatalf("%s: open: %v", what, err)
	}
	first := survivors(t, s, l, what)
	kept := 0
	for _, p := range l.acked {
		got, ok := first[p.queue][p.offset]
		switch {
		case ok && got.body == p.body && got.physical == p.physical:
			kept++
			if found := queryBodies(t, s, "TopicTest", p.key, QueryOptions{}); !slices.Equal(found, []string{p.body}) {
				t.Fatalf("%s: key %s of a surviving message gives %q", what, p.key, found)
			}
		case sync:
			t.Fatalf("%s: acknowledged message %q at queue %d offset %d is gone; there is %+v; %+v", what, p.body, p.queue, p.offset, got, s.Recovery())
		}
	}
	if !sync {
		for i, p := range l.acked {
			if got := first[p.queue][p.offset]; (i < kept) != (got.body == p.body && got.physical == p.physical) {
				t.Fatalf("%s: %d messages survive, but they are not the first ones: %q at %d", what, kept, p.body, i)
			}
		}
	}
	mustClose(t, s)
	s, err = Open(ctx, testDir, opts)
	if err != nil {
		t.Fatalf("%s: open again: %v", what, err)
	}
	second := survivors(t, s, l, what)
	if fmt.Sprint(first) != fmt.Sprint(second) {
		t.Fatalf("%s: two openings differ: %v and %v", what, first, second)
	}
	res := mustPut(t, s, testMessage("after the crash", "KEYS", "after"))
	if want := message.QueueOffset(len(second[0])); res.QueueOffset != want {
		t.Fatalf("%s: a put after the crash got queue offset %d, want %d", what, res.QueueOffset, want)
	}
	waitDispatched(t, s)
	if found := queryBodies(t, s, "TopicTest", "after", QueryOptions{}); len(found) != 1 {
		t.Fatalf("%s: a put after the crash is found %d times", what, len(found))
	}
	mustClose(t, s)
	checkStore(t, opts.FS)
}

// stored is a message as a reader sees it.
type stored struct {
	body     string
	physical message.PhysicalOffset
}

// survivors reads all queues: offsets without holes, nothing that was never
// sent, nothing twice.
func survivors(t *testing.T, s *Store, l *ledger, what string) map[int32]map[message.QueueOffset]stored {
	t.Helper()
	out := make(map[int32]map[message.QueueOffset]stored)
	seen := make(map[string]bool)
	for _, q := range s.Queues() {
		msgs := make(map[message.QueueOffset]stored)
		out[q.QueueID] = msgs
		next := message.QueueOffset(0)
		for next < q.MaxOffset {
			res, err := s.Get(q.Topic, q.QueueID, next, GetOptions{})
			if err != nil || res.Status != Found || len(res.Damaged) > 0 {
				t.Fatalf("%s: get %s/%d at %d: %v, %+v", what, q.Topic, q.QueueID, next, err, res)
			}
			ext, err := res.Messages()
			if err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			for _, m := range ext {
				body := string(m.Body)
				if m.QueueOffset != next || seen[body] || !l.tried[body] {
					t.Fatalf("%s: queue %d offset %d holds a message with offset %d, seen before %v, sent %v: %q", what, q.QueueID, next, m.QueueOffset, seen[body], l.tried[body], body)
				}
				seen[body] = true
				msgs[next] = stored{body, m.PhysicalOffset}
				next++
			}
		}
	}
	return out
}

// crashPoints yields the operations to crash at.
func crashPoints(yield func(k int) bool) {
	step := 1
	if !*crashLong {
		step = 5
	}
	for k := 0; ; k += step {
		if !yield(k) {
			return
		}
	}
}

func crashSeeds() int {
	if *crashLong {
		return 2
	}
	return 1
}

// TestCrashAtEveryOperation crashes a workload at each change that it makes to
// the file system, tries what may be left of it, and holds it to its promises.
func TestCrashAtEveryOperation(t *testing.T) {
	for _, mode := range []FlushMode{FlushSync, FlushAsync} {
		name := map[FlushMode]string{FlushSync: "sync", FlushAsync: "async"}[mode]
		for _, mmap := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s/mmap=%v", name, mmap), func(t *testing.T) {
				t.Parallel()
				states := 0
				crashPoints(func(k int) bool {
					clock := newClock()
					mem := memfs.NewCrashable(int64(k))
					fs := faultfs.CrashAt(mem, k)
					opts := tinyOptions(fs, clock).with(func(o *Options) { o.Flush, o.WriteWithoutMmap = mode, !mmap })
					l := crashWorkload(opts, clock, 3)
					for _, policy := range memfs.Policies() {
						for seed := range crashSeeds() {
							clone := mem.CrashClone(policy, int64(seed))
							// A process that ends leaves everything: then async
							// puts are there too.
							verifyCrash(t, opts.with(func(o *Options) { o.FS = clone }), l, mode == FlushSync || policy == memfs.KeepAll,
								fmt.Sprintf("crash at %d, %v, seed %d", k, policy, seed))
							states++
						}
					}
					return fs.Crashed()
				})
				t.Logf("%d crash states", states)
			})
		}
	}
}

// TestCrashDuringRecovery crashes the opening that follows a crash, and the
// one after that.
func TestCrashDuringRecovery(t *testing.T) {
	clock := newClock()
	states := 0
	crashPoints(func(k int) bool {
		mem := memfs.NewCrashable(int64(k))
		fs := faultfs.CrashAt(mem, 150)
		opts := tinyOptions(fs, clock)
		l := crashWorkload(opts, clock, 3)
		clone := mem.CrashClone(memfs.LoseRandomPages|memfs.Torn, int64(k))
		crashed := false
		for twice := range 2 {
			fs := faultfs.CrashAt(clone, k+twice)
			s, err := Open(context.Background(), testDir, opts.with(func(o *Options) { o.FS = fs }))
			if err == nil {
				s.abandon()
			} else if !errors.Is(err, faultfs.ErrCrashed) {
				t.Fatalf("recovery crashed at %d: %v", k, err)
			}
			crashed = crashed || fs.Crashed()
			clone = clone.CrashClone(memfs.LoseRandomPages|memfs.Torn, int64(k+twice))
		}
		verifyCrash(t, opts.with(func(o *Options) { o.FS = clone }), l, true, fmt.Sprintf("recovery crashed at %d", k))
		states++
		return crashed
	})
	t.Logf("%d crash states", states)
}
