package gantry

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

func TestFault_L15_OpeningReadsLittleOfQueues(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize, c.keyStep = 16<<20, 500
	s := c.open()
	const queues, files = 20, 3
	for i := range queues * files * 100 { // batches, for speed
		var msgs []*message.Message
		for range 10 {
			msgs = append(msgs, toTopic(fmt.Sprintf("T%02d", i%queues), "x"))
		}
		c.putBatch(s, msgs...)
	}
	c.stop(s, stopClean)
	for _, how := range []stop{stopClean, stopAbort} {
		left := c.fork()
		if how == stopAbort {
			left.create("abort", nil)
		}
		left.fault = faultfs.New(left.fs)
		s := left.open()
		var read faultfs.Counter
		for i := range queues {
			n := left.fault.Count(faultfs.OpRead|faultfs.OpMapRead, left.path(fmt.Sprintf("consumequeue/T%02d/0/*", i)))
			read.Bytes, read.Calls = read.Bytes+n.Bytes, read.Calls+n.Calls
		}
		// Some pages of the last file; all of a queue's files are 60 000 bytes.
		if most := int64(queues * 12_288); read.Bytes > most || read.Bytes == 0 {
			t.Errorf("%s: %d bytes of %d queues were read", how, read.Bytes, queues)
		}
		for i := range queues {
			left.queueRange(s, fmt.Sprintf("T%02d", i), 0, 0, files*1000)
		}
		s.abandon()
	}
}

func TestFault_L16_QueueThatCannotBeRead(t *testing.T) {
	c := newSite(t, inMemory)
	s := c.open()
	for i := range 20 {
		c.putMany(s, fmt.Sprintf("T%d", i), 0, 3)
	}
	c.stop(s, stopClean)
	for _, how := range []stop{stopClean, stopAbort} {
		left := c.fork()
		if how == stopAbort {
			left.create("abort", nil)
		}
		left.fault = faultfs.New(left.fs)
		left.fault.Fail(faultfs.OpRead|faultfs.OpOpen, left.path("consumequeue/T7/0/*"), faultfs.ErrIO)
		err := left.refused()
		if !errors.Is(err, faultfs.ErrIO) {
			t.Errorf("error %v", err)
		}
		holds(t, err, "T7")
		left.fault = nil
		s := left.open()
		left.verify(s)
		mustClose(t, s)
	}
}

// TestFault_L17_AbortFirst crashes opening and closing at each change: when
// anything but lock and abort has changed, abort must be there.
func TestFault_L17_AbortFirst(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize = 4096
	s := c.open()
	c.putMany(s, "TopicTest", 0, 50)
	_, end := s.Range()
	c.stop(s, stopClean)
	before := c.tree()
	for k := 0; ; k++ {
		left := c.fork()
		mem := left.fs.(*memfs.FS)
		left.fault = faultfs.CrashAt(mem, k)
		if s, err := Open(context.Background(), left.dir, left.options()); err == nil {
			_, _ = s.Put(context.Background(), fiveHundred(1))
			_ = s.Close() // it crashes
		}
		for _, policy := range memfs.Policies() {
			after := mem.CrashClone(policy, int64(k))
			files, err := golden.Tree(after, c.dir)
			must(t, err)
			has, changed := false, []string{}
			for _, d := range golden.DiffTrees(before, files) {
				name, _, _ := strings.Cut(d, ":")
				switch {
				case name == "abort":
					has = true
				case name != "lock":
					changed = append(changed, d)
				}
			}
			if len(changed) > 0 && !has && left.fault.Crashed() && !finished(t, after, c.dir, end) {
				t.Fatalf("crash at change %d, %v: no abort file, but %q", k, policy, changed)
			}
		}
		if !left.fault.Crashed() {
			return
		}
	}
}

// finished says that closing had got to its end: the checkpoint is a clean one
// of more than before.
func finished(t testing.TB, fsys vfs.FS, dir string, before message.PhysicalOffset) bool {
	t.Helper()
	f, err := checkpoint.Open(fsys, filepath.Join(dir, "checkpoint"), newClock().now)
	must(t, err)
	_, ext := f.Load()
	must(t, f.Close())
	return ext != nil && ext.Clean && ext.DispatchedTo > before
}

func TestFault_L18_DiskFullAtClose(t *testing.T) {
	c := newSite(t, inMemory)
	mem := c.fs.(*memfs.FS)
	s := c.open()
	c.putMany(s, "TopicTest", 0, 10)
	waitDispatched(t, s)
	mem.SetUsage(&vfs.Usage{Total: 100, Used: 95, Free: 5})
	if _, err := s.Clean(context.Background(), CleanOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(context.Background(), keyed(1)); !errors.Is(err, ErrDiskFull) {
		t.Fatalf("put on a full disk: %v", err)
	}
	c.stop(s, stopClean)
	if slices.Contains(c.names(), "abort") {
		t.Error("the abort file is left")
	}
	s = c.open()
	if !s.Recovery().CleanStop || s.Recovery().Replayed > 0 {
		t.Errorf("recovery %+v", s.Recovery())
	}
	c.verify(s)
	mustClose(t, s)
}

func TestFault_L19_StrayFile(t *testing.T) {
	c := newSite(t, inMemory)
	s := c.open()
	c.putMany(s, "TopicTest", 0, 10)
	c.stop(s, stopClean)
	c.create("commitlog/foo.txt", []byte("what is this?"))
	s = c.open()
	c.verify(s)
	if w := s.Recovery().Warnings; len(w) != 1 || !strings.Contains(w[0], "foo.txt") {
		t.Errorf("warnings %q", w)
	}
	mustClose(t, s)
	if got := string(c.bytes("commitlog", "foo.txt")); got != "what is this?" {
		t.Errorf("the file holds %q", got)
	}
}

func TestFault_L20_MissingMiddleFile(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[1], allVariants[3]}, func(t *testing.T, base *site) {
		base.opts.CommitLogFileSize = 4096
		s := base.open()
		base.putMany(s, "TopicTest", 0, 110) // four files
		base.stop(s, stopClean)
		if n := len(base.names("commitlog")); n != 4 {
			t.Fatalf("%d files", n)
		}
		for i := 1; i <= 2; i++ {
			for _, how := range []stop{stopClean, stopAbort} {
				c := base.fork()
				hole := fmt.Sprintf("%020d", i*4096)
				c.remove("commitlog", hole)
				if how == stopAbort {
					c.create("abort", nil)
				}
				s, err := Open(context.Background(), c.dir, c.options())
				if err != nil {
					holds(t, err, fmt.Sprint(i*4096))
					continue
				}
				// Then the hole is reported, what is there is served, and what
				// is not is said to be missing.
				if mentions(s.Recovery().Warnings, fmt.Sprint(i*4096)) == 0 {
					t.Errorf("file %d, %s: warnings %q", i, how, s.Recovery().Warnings)
				}
				waitDispatched(t, s)
				got := 0
				for off := c.acked[0].offset; off < 110; {
					res, err := s.Get("TopicTest", 0, off, GetOptions{})
					if err != nil || res.NextOffset <= off {
						t.Fatalf("get at %d: %+v, %v", off, res, err)
					}
					got += len(res.Records)
					off = res.NextOffset
				}
				want := 0
				for _, e := range c.acked {
					if name, _ := c.logPlace(e.physical); filepath.Base(name) != hole {
						want++
					}
				}
				if got != want {
					t.Errorf("file %d, %s: %d messages are served, %d are there", i, how, got, want)
				}
				if _, err := s.Put(context.Background(), fiveHundred(1)); err != nil {
					t.Errorf("put: %v", err)
				}
				waitDispatched(t, s)
				mustClose(t, s)
			}
		}
	})
}

// TestFault_L21_Flags: setting and clearing "disk full" must not lose an
// error that comes at the same time. Run it with -race.
func TestFault_L21_Flags(t *testing.T) {
	c := newSite(t, inMemory)
	mem := c.fs.(*memfs.FS)
	c.fault = faultfs.New(c.fs)
	s := c.open()
	c.putMany(s, "TopicTest", 0, 1)
	full, free := &vfs.Usage{Total: 100, Used: 95, Free: 5}, &vfs.Usage{Total: 100, Used: 5, Free: 95}
	var toggling sync.WaitGroup
	done := make(chan struct{})
	for range 2 {
		toggling.Go(func() {
			for i := 0; ; i++ {
				select {
				case <-done:
					return
				default:
				}
				mem.SetUsage([]*vfs.Usage{full, free}[i%2])
				_, _ = s.Clean(context.Background(), CleanOptions{})
			}
		})
	}
	c.fault.Fail(faultfs.OpSync|faultfs.OpMapFlush, "", faultfs.ErrIO)
	for err := error(nil); !errors.Is(err, faultfs.ErrIO); {
		_, err = s.Put(context.Background(), keyed(2))
	}
	for range 100 {
		if _, err := s.Put(context.Background(), keyed(3)); err == nil {
			t.Fatal("a put succeeded after a failed sync")
		}
	}
	close(done)
	toggling.Wait()
	mem.SetUsage(free)
	_, _ = s.Clean(context.Background(), CleanOptions{})
	if s.Stats().Failure == nil {
		t.Error("the failure was forgotten")
	}
	if _, err := s.Put(context.Background(), keyed(4)); !errors.Is(err, ErrReadOnly) {
		t.Errorf("put: %v", err)
	}
	if err := s.Close(); err == nil {
		t.Error("closing says nothing of the failure")
	}
}
