package gantry

import (
	"context"
	"errors"
	"io/fs"
	"path"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestInfoOfCrashedStore: a look shows the checkpoint and the sizes that are on
// the disk, not what recovery makes of them in memory.
func TestInfoOfCrashedStore(t *testing.T) {
	for name, want := range map[string]struct{ release, trace string }{
		"4.9.8-crash-lag":   {},
		"5.1.4-crash-lag":   {"5.0.0", "abort.bak"},
		"5.4.0-crash-lag":   {"5.4.0", "rocksdbstore"},
		"5.5.1-crash-lag":   {"5.5.1", "logicsPhysicalOffset in the checkpoint"},
		"5.4.0-basic-clean": {"5.4.0", "rocksdbstore"},
	} {
		t.Run(name, func(t *testing.T) {
			m := golden.MustLoad(t, name)
			fsys := memfs.New()
			if err := golden.UnpackTo(fsys, testDir, name); err != nil {
				t.Fatal(err)
			}
			s := mustOpen(t, goldenOptions(m, fsys).with(func(o *Options) { o.ReadOnly = true }))
			defer mustClose(t, s)
			info, err := s.Info()
			if err != nil {
				t.Fatal(err)
			}
			c := m.Checkpoint
			if got := info.Checkpoint; got != (CheckpointInfo{c.PhysicMsgTimestamp, c.LogicsMsgTimestamp, c.IndexMsgTimestamp, -1}) {
				t.Errorf("checkpoint %+v, in Java %+v", got, c)
			}
			bytes := int64(0)
			for _, f := range m.PackedFiles {
				bytes += f.Size
			}
			if info.Bytes != bytes || info.AllocatedBytes != fsys.Used() {
				t.Errorf("%d bytes, %d allocated, want %d and %d", info.Bytes, info.AllocatedBytes, bytes, fsys.Used())
			}
			if info.Release != want.release || info.Trace != want.trace {
				t.Errorf("traces of %q (%q), want %+v", info.Release, info.Trace, want)
			}
		})
	}
}

// TestIndexGeometryIsKept: a store that is opened without saying how its index
// files are made goes on as it was.
func TestIndexGeometryIsKept(t *testing.T) {
	for _, tc := range []struct {
		name           string
		slots, entries int32 // configured the second time
		want           IndexFileInfo
	}{
		{"nothing", 0, 0, IndexFileInfo{Slots: 50, Capacity: 20}},
		{"slots", 60, 0, IndexFileInfo{Slots: 60, Capacity: 20}},
		{"entries", 0, 30, IndexFileInfo{Slots: 50, Capacity: 30}},
		{"both", 60, 30, IndexFileInfo{Slots: 60, Capacity: 30}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fsys, clock := memfs.New(), newClock()
			opts := smallOptions(fsys, clock)
			opts.IndexSlots, opts.IndexEntries = 50, 20
			put := func() {
				s := mustOpen(t, opts)
				for i := range 30 {
					clock.add(1000)
					mustPut(t, s, testMessage("x", "KEYS", "k"+string(rune('a'+i))))
				}
				mustClose(t, s)
			}
			put()
			opts.IndexSlots, opts.IndexEntries = tc.slots, tc.entries
			put()
			s := mustOpen(t, opts)
			defer mustClose(t, s)
			info, err := s.Info()
			if err != nil {
				t.Fatal(err)
			}
			newest := info.IndexFiles[len(info.IndexFiles)-1]
			if len(info.IndexFiles) < 3 || newest.Slots != tc.want.Slots || newest.Capacity != tc.want.Capacity {
				t.Errorf("%d files, the newest has %d slots and %d entries", len(info.IndexFiles), newest.Slots, newest.Capacity)
			}
			if got := queryBodies(t, s, "TopicTest", "ka", QueryOptions{}); len(got) != 2 {
				t.Errorf("the key of the first message is found %d times", len(got))
			}
		})
	}
}

// TestNoStore: what is no store of ours is said to be none, and not touched.
func TestNoStore(t *testing.T) {
	for _, tc := range []struct {
		name  string
		dirs  []string
		want  error
		texts string
	}{
		{"no directory", nil, fs.ErrNotExist, "no such directory"},
		{"an empty one", []string{testDir}, fs.ErrNotExist, "not a store"},
		{"another program's", []string{path.Join(testDir, "src")}, fs.ErrNotExist, "not a store"},
		{"DLedger's", []string{path.Join(testDir, "dledger-n0")}, ErrUnsupported, "DLedger"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, o := range []Options{{ReadOnly: true}, {ReadOnly: true, Live: true}, {NoCreate: true}} {
				fsys := memfs.New()
				for _, d := range tc.dirs {
					if err := fsys.MkdirAll(d); err != nil {
						t.Fatal(err)
					}
				}
				o.FS = fsys
				_, err := Open(context.Background(), testDir, &o)
				if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.texts) {
					t.Errorf("%+v: %v", o, err)
				}
				if _, err := fsys.Stat(path.Join(testDir, "lock")); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%+v: a lock file was left: %v", o, err)
				}
			}
		})
	}
	// The log may lie elsewhere.
	fsys, clock := memfs.New(), newClock()
	opts := smallOptions(fsys, clock).with(func(o *Options) { o.CommitLogDirs = []string{"/elsewhere/log"} })
	s := mustOpen(t, opts)
	mustPut(t, s, keyed(1))
	mustClose(t, s)
	s = mustOpen(t, opts.with(func(o *Options) { o.ReadOnly = true }))
	if got := bodies(t, s, "TopicTest", 0, 0); len(got) != 1 {
		t.Errorf("read %q", got)
	}
	mustClose(t, s)
}

func TestLockHolder(t *testing.T) {
	for content, want := range map[string]string{"4711": "4711", "": "?", "\x1b[31m": "?", "-1": "?"} {
		fsys := memfs.New()
		if err := fsys.MkdirAll(testDir); err != nil {
			t.Fatal(err)
		}
		if got, err := LockHolder(testDir, fsys); got != "" || err != nil {
			t.Errorf("nobody holds it: %q, %v", got, err)
		}
		lock, err := fsys.Lock(path.Join(testDir, "lock"))
		if err == nil {
			err = vfs.WriteFileAtomic(fsys, path.Join(testDir, "abort"), []byte(content))
		}
		if err != nil {
			t.Fatal(err)
		}
		if got, err := LockHolder(testDir, fsys); got != want || err != nil {
			t.Errorf("abort %q: held by %q, %v, want %q", content, got, err, want)
		}
		lock.Close()
	}
}

// TestLongTopics: topics that brokers refuse can be copied when asked for.
func TestLongTopics(t *testing.T) {
	fsys, clock := memfs.New(), newClock()
	opts := smallOptions(fsys, clock)
	m := testMessage("x")
	m.Topic = strings.Repeat("t", 200)
	s := mustOpen(t, opts)
	if _, err := s.Put(context.Background(), m); !errors.Is(err, ErrMessageIllegal) {
		t.Errorf("a topic of 200 bytes: %v", err)
	}
	mustClose(t, s)
	s = mustOpen(t, opts.with(func(o *Options) { o.LongTopics = true }))
	mustPut(t, s, m)
	mustClose(t, s)
	s = mustOpen(t, opts)
	if got := bodies(t, s, m.Topic, 0, 0); len(got) != 1 {
		t.Errorf("read %q", got)
	}
	mustClose(t, s)
	checkStore(t, fsys)
}

// TestNoDelivery: a delayed message is stored as one and waits, until somebody
// opens the store who delivers.
func TestNoDelivery(t *testing.T) {
	fsys, clock := memfs.New(), newClock()
	opts := smallOptions(fsys, clock).with(func(o *Options) { o.NoDelivery = true })
	s := mustOpen(t, opts)
	if res := mustPut(t, s, testMessage("later", "DELAY", "1")); res.Topic != message.ScheduleTopic {
		t.Errorf("stored in %s", res.Topic)
	}
	mustClose(t, s)
	clock.add(1 << 40)
	s = mustOpen(t, opts)
	mustPut(t, s, testMessage("now"))
	mustClose(t, s)
	arrived := make(chan struct{})
	s = mustOpen(t, opts.with(func(o *Options) {
		o.NoDelivery = false
		o.Events.Arrived = func(a Arrival) {
			if a.Topic == "TopicTest" {
				close(arrived)
			}
		}
	}))
	<-arrived
	if got := strings.Join(bodies(t, s, "TopicTest", 0, 0), " "); got != "now later" {
		t.Errorf("read %q", got)
	}
	mustClose(t, s)
}
