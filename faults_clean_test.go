package gantry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// Faults C4 (forced cleaning has a floor and says why), C5 (no rounding up)
// and C11 (unknown disk use deletes nothing) are in TestCleanByDisk; C8 is in
// mappedfile.

func (c *site) clean(s *Store, o CleanOptions) []Removal {
	c.t.Helper()
	gone, err := s.Clean(context.Background(), o)
	if err != nil {
		c.t.Fatalf("clean: %v", err)
	}
	return gone
}

func TestFault_C1_AgeOfRecordsNotOfFiles(t *testing.T) {
	c := newSite(t, variant{os: true})
	c.opts.CommitLogFileSize, c.opts.Reserved = 4096, 72*time.Hour
	now := time.Now()
	c.clock.set(now.Add(-80 * time.Hour).UnixMilli())
	s := c.open()
	c.putMany(s, "TopicTest", 0, 40) // the first file, 80 h old
	c.clock.set(now.Add(-time.Hour).UnixMilli())
	c.putMany(s, "TopicTest", 0, 60)
	c.stop(s, stopClean)
	names := c.names("commitlog")
	// The old file looks new, the others look old.
	must(t, os.Chtimes(c.path("commitlog", names[0]), now, now))
	for _, name := range names[1:] {
		must(t, os.Chtimes(c.path("commitlog", name), now.Add(-100*time.Hour), now.Add(-100*time.Hour)))
	}
	s = c.open()
	c.clock.set(now.UnixMilli())
	gone := c.clean(s, CleanOptions{AnyHour: true})
	if len(gone) != 1 || gone[0].File != c.path("commitlog", names[0]) {
		t.Errorf("removed %+v, want the first of %q", gone, names)
	}
	mustClose(t, s)
}

// TestFault_C2_C3_ReadersHoldNothing: results are copies, so that files go at
// once beside any number of readers, whoever reads what.
func TestFault_C2_C3_ReadersHoldNothing(t *testing.T) {
	for _, v := range allVariants[:2] {
		c := newSite(t, v)
		c.opts.CommitLogFileSize, c.opts.DeleteBatch = 4096, 1
		s := c.open()
		c.putMany(s, "TopicTest", 0, 300)
		c.clock.add(1000 * time.Hour)
		c.putMany(s, "TopicTest", 0, 30)
		waitDispatched(t, s)
		must(t, s.Sync(context.Background()))
		held, err := s.Get("TopicTest", 0, 0, GetOptions{})
		must(t, err)
		var readers sync.WaitGroup
		done := make(chan struct{})
		for range 3 {
			readers.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					lo, _, err := s.QueueRange("TopicTest", 0)
					if err != nil {
						t.Error(err)
						return
					}
					res, err := s.Get("TopicTest", 0, lo, GetOptions{})
					if err != nil || len(res.Damaged) > 0 {
						t.Errorf("get: %v, %v", err, res.Damaged)
						return
					}
				}
			})
		}
		files := len(c.names("commitlog"))
		removed := 0
		for {
			gone := c.clean(s, CleanOptions{AnyHour: true})
			if len(gone) == 0 {
				break
			}
			removed += len(gone)
			if first, _ := s.Range(); int64(first) != int64(removed)*4096 {
				t.Errorf("after %d removals the log begins at %d", removed, first)
			}
			for _, r := range gone {
				if _, err := c.fs.Stat(r.File); err == nil {
					t.Errorf("%s is there", r.File)
				}
			}
		}
		close(done)
		readers.Wait()
		if removed < files-3 {
			t.Errorf("%d of %d files went", removed, files)
		}
		if msgs, err := held.Messages(); err != nil || len(msgs) == 0 || string(msgs[0].Body) != "body-0" {
			t.Errorf("what was read before: %d messages, %v", len(msgs), err)
		}
		mustClose(t, s)
	}
}

func TestFault_C6_ThresholdsAreTaken(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.DiskWarningPercent, c.opts.DiskCleanForciblyPercent = 95, 97
	mem := c.fs.(*memfs.FS)
	s := c.open()
	for _, w := range []struct {
		used int64
		full bool
	}{{93, false}, {95, false}, {96, true}, {94, false}} {
		mem.SetUsage(&vfs.Usage{Total: 100, Used: w.used, Free: 100 - w.used})
		c.clean(s, CleanOptions{})
		if _, err := s.Put(context.Background(), keyed(1)); errors.Is(err, ErrDiskFull) != w.full {
			t.Errorf("at %d %%: %v", w.used, err)
		}
	}
	mustClose(t, s)
	c.opts.DiskWarningPercent = 101
	if _, err := Open(context.Background(), c.dir, c.options()); err == nil {
		t.Error("a threshold of 101 % was taken")
	} else {
		holds(t, err, "DiskWarningPercent", "101")
	}
}

func TestFault_C7_QueueCleaningIsRetried(t *testing.T) {
	for _, where := range []string{"consumequeue/TopicTest/0/*", "index/*"} {
		c := newSite(t, inMemory)
		c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize, c.opts.IndexEntries, c.opts.DeleteBatch = 4096, 200, 20, 100
		c.fault = faultfs.New(c.fs)
		s := c.open()
		c.putMany(s, "TopicTest", 0, 100)
		c.clock.add(1000 * time.Hour)
		c.putMany(s, "TopicTest", 0, 60)
		waitDispatched(t, s)
		must(t, s.Sync(context.Background()))
		rule := c.fault.Fail(faultfs.OpRemove, c.path(where), faultfs.ErrIO)
		gone, err := s.Clean(context.Background(), CleanOptions{AnyHour: true})
		if !errors.Is(err, faultfs.ErrIO) || len(gone) == 0 || rule.Hits() == 0 {
			t.Errorf("%s: %d files, %v", where, len(gone), err)
		}
		first, _ := s.Range()
		c.forget(func(e entry) bool { return e.physical < first })
		before := len(c.names("consumequeue/TopicTest/0")) + len(c.names("index"))
		rule.Remove()
		if gone := c.clean(s, CleanOptions{AnyHour: true}); len(gone) != 0 { // nothing new for the log
			t.Errorf("%s: removed %+v", where, gone)
		}
		if after := len(c.names("consumequeue/TopicTest/0")) + len(c.names("index")); after >= before {
			t.Errorf("%s: %d queue and index files, %d before", where, after, before)
		}
		c.verify(s)
		mustClose(t, s)
	}
}

// TestFault_C8_StartDuringPass: while several files go in one pass, the start
// of the log is never inside of one that is gone.
func TestFault_C8_StartDuringPass(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize, c.opts.DeleteBatch = 4096, 100
	c.fault = faultfs.New(c.fs)
	s := c.open()
	c.putMany(s, "TopicTest", 0, 300)
	c.clock.add(1000 * time.Hour)
	c.putMany(s, "TopicTest", 0, 30)
	waitDispatched(t, s)
	must(t, s.Sync(context.Background()))
	seen := 0
	c.fault.Inject(faultfs.Rule{Ops: faultfs.OpRemove | faultfs.OpSyncDir, Hook: func(faultfs.Call) {
		first, _ := s.Range()
		name, _ := c.logPlace(first)
		if _, err := c.fs.Stat(c.path(name)); err != nil {
			t.Errorf("the log begins at %d: %v", first, err)
		}
		if _, err := s.MessageAt(first); err != nil && !errors.Is(err, ErrNotFound) {
			t.Errorf("the message at %d: %v", first, err)
		}
		seen++
	}})
	gone := c.clean(s, CleanOptions{AnyHour: true})
	if len(gone) < 5 || seen < len(gone) {
		t.Errorf("%d files went, looked %d times", len(gone), seen)
	}
	c.fault.Clear()
	mustClose(t, s)
}

// TestFault_C9_C10_FullQueueFileExpires: a queue of exactly one full file, all
// of it expired, keeps counting.
func TestFault_C9_C10_FullQueueFileExpires(t *testing.T) {
	for n := 9; n <= 11; n++ {
		c := newSite(t, inMemory)
		c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize, c.opts.DeleteBatch = 4096, 200, 100
		s := c.open()
		c.putMany(s, "TopicA", 0, n)
		c.putMany(s, "TopicB", 0, 60)
		c.clock.add(1000 * time.Hour)
		c.putMany(s, "TopicB", 0, 60)
		c.retain(s)
		max := message.QueueOffset(n)
		c.queueRange(s, "TopicA", 0, max, max)
		c.clean(s, CleanOptions{AnyHour: true})
		for _, how := range []stop{stopKill, stopClean, stopAbort} {
			s = c.reopen(s, how)
			c.queueRange(s, "TopicA", 0, max, max)
		}
		if res := c.put(s, toTopic("TopicA", "next")); res.QueueOffset != max {
			t.Errorf("%d messages: the next has offset %d", n, res.QueueOffset)
		}
		c.verify(s)
		c.queueRange(s, "TopicA", 0, max, max+1)
		mustClose(t, s)
	}
}

// TestFault_C12_CleaningByAgeWaits is D9 for replication's share: what nobody
// has taken from the log does not go for its age.
func TestFault_C12_CleaningByAgeWaits(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize = 4096
	s := c.open()
	s.dispatchMu.Lock()
	c.putMany(s, "TopicTest", 0, 100)
	c.clock.add(1000 * time.Hour)
	gone, err := s.Clean(context.Background(), CleanOptions{AnyHour: true})
	s.dispatchMu.Unlock()
	if err != nil || len(gone) > 0 {
		t.Errorf("removed %+v, %v", gone, err)
	}
	c.verify(s)
	mustClose(t, s)
}

// TestFault_C13_OneOfTwoDisksFull: the log lies in two directories, and the
// one with the file in use has no space any more.
func TestFault_C13_OneOfTwoDisksFull(t *testing.T) {
	for _, v := range allVariants[:2] {
		synctest.Test(t, func(t *testing.T) {
			c := newSite(t, v)
			c.opts.CommitLogFileSize = 8192
			c.opts.CommitLogDirs = []string{"/a", "/b"}
			c.fault = faultfs.New(c.fs)
			s := c.open()
			full := func() { // of /a
				c.fault.Inject(faultfs.Rule{Ops: faultfs.OpCreate | faultfs.OpAllocate | faultfs.OpTruncate, Name: "/a/*", Err: faultfs.ErrNoSpace})
				c.fault.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Name: "/a/*", Err: faultfs.ErrNoSpace, Match: func(call faultfs.Call) bool { return v.noMmap && call.Off >= 4096 }})
			}
			for i := range 400 {
				if i == 100 {
					full()
				}
				m := keyed(i)
				res, err := s.Put(context.Background(), m)
				if err != nil {
					if !errors.Is(err, ErrDiskFull) {
						t.Fatalf("put %d: %v", i, err)
					}
					time.Sleep(time.Second) // of the bubble
					continue
				}
				c.note(res, m)
			}
			if len(c.acked) < 100 {
				t.Errorf("%d puts succeeded", len(c.acked))
			}
			c.verify(s)
			c.fault.Clear()
			for range 50 {
				m := keyed(1000 + len(c.acked))
				res, err := s.Put(context.Background(), m)
				if err == nil {
					c.note(res, m)
				} else {
					time.Sleep(time.Second) // of the bubble
				}
			}
			s = c.reopen(s, stopKill)
			c.verify(s)
			mustClose(t, s)
		})
	}
}

func TestFault_C14_DeleteWhen(t *testing.T) {
	c := newSite(t, inMemory)
	for _, bad := range []string{"4am", "24", "-1", "04;", ";", "04,16", "04:30", " "} {
		c.opts.DeleteWhen = bad
		s, err := Open(context.Background(), c.dir, c.options())
		if err == nil {
			s.abandon()
			t.Errorf("DeleteWhen %q was taken", bad)
			continue
		}
		holds(t, err, "DeleteWhen", fmt.Sprintf("%q", bad))
		if files := c.tree(); len(files) > 0 {
			t.Errorf("DeleteWhen %q left %+v", bad, files)
		}
	}
	for _, good := range []string{"", "04", "4", "00;23", "04; 16"} {
		c.opts.DeleteWhen = good
		mustClose(t, c.open())
	}
}

func TestFault_CF1_ChangedSizes(t *testing.T) {
	for _, to := range [][2]int32{{200, 800}, {50, 20}, {0, 0}} {
		c := newSite(t, inMemory)
		c.opts.IndexSlots, c.opts.IndexEntries = 100, 400
		s := c.open()
		c.putMany(s, "TopicTest", 0, 150)
		waitDispatched(t, s)
		c.stop(s, stopClean)
		before := c.tree()
		c.opts.IndexSlots, c.opts.IndexEntries = to[0], to[1]
		c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize = 0, 0 // those of the files
		for _, how := range allStops {
			s = c.open()
			c.verify(s)
			if how == stopClean && to[0] > 0 && mentions(c.said(s), "100") == 0 {
				t.Errorf("geometry %v: no warning: %q", to, c.said(s))
			}
			c.stop(s, how)
		}
		for i, f := range c.tree() {
			if strings.HasPrefix(f.Path, "index/") && f.Size != before[slices.IndexFunc(before, func(b golden.File) bool { return b.Path == f.Path })].Size {
				t.Errorf("file %d, %s, has %d bytes", i, f.Path, f.Size)
			}
		}
		// New messages go into the old file until it is full.
		c.opts.CommitLogFileSize = 1 << 20
		s = c.open()
		c.putMany(s, "TopicTest", 0, 20)
		c.verify(s)
		s = c.reopen(s, stopKill)
		c.verify(s)
		mustClose(t, s)
	}
}

// TestFault_T4_DelayedMessageLost: the file with a message that waits for its
// time is gone, or the message damaged. That is reported; the others come.
func TestFault_T4_DelayedMessageLost(t *testing.T) {
	for _, damage := range []string{"file gone", "body", "size"} {
		synctest.Test(t, func(t *testing.T) {
			c := newSite(t, inMemory)
			c.opts.CommitLogFileSize = 4096
			c.opts.Now = func() int64 { return time.Now().UnixMilli() }
			s := c.open()
			put := func(m *message.Message) PutResult { return mustPut(t, s, m) }
			lost := put(testMessage("lost", "DELAY", "3"))
			for range 20 {
				put(testMessage(strings.Repeat("x", 400)))
			}
			synctest.Wait() // the scheduler knows of the level
			put(testMessage("kept", "DELAY", "3"))
			for range 20 {
				put(testMessage(strings.Repeat("x", 400)))
			}
			c.stop(s, stopClean)
			switch damage {
			case "file gone":
				name, _ := c.logPlace(lost.PhysicalOffset)
				c.remove(name)
			case "body":
				c.patchLog(lost.PhysicalOffset+recBody, []byte("?"))
			case "size":
				c.patchLog(lost.PhysicalOffset, make([]byte, 4))
			}
			s = c.open()
			time.Sleep(time.Minute) // of the bubble
			synctest.Wait()
			waitDispatched(t, s)
			var delivered []string
			for off := message.QueueOffset(0); ; {
				res, err := s.Get("TopicTest", 0, off, GetOptions{Max: 100})
				must(t, err)
				msgs, err := res.Messages()
				must(t, err)
				for _, m := range msgs {
					if len(m.Body) < 100 {
						delivered = append(delivered, string(m.Body))
					}
				}
				if res.NextOffset <= off {
					break
				}
				off = res.NextOffset
			}
			if !slices.Equal(delivered, []string{"kept"}) {
				t.Errorf("%s: delivered %q", damage, delivered)
			}
			if n := mentions(c.said(s), "delayed message lost"); n != 1 || s.Stats().DamagedReads == 0 {
				t.Errorf("%s: the loss is reported %d times: %q", damage, n, c.said(s))
			}
			s.abandon()
		})
	}
}

func TestFault_T7_DelayLevels(t *testing.T) {
	c := newSite(t, inMemory)
	for _, bad := range []string{"1s 5x", "abc", "1s  5s", "s", "-1s", "1s 99999999999999999999d", " "} {
		c.opts.DelayLevels = bad
		s, err := Open(context.Background(), c.dir, c.options())
		if err == nil {
			s.abandon()
			t.Errorf("DelayLevels %q was taken", bad)
			continue
		}
		holds(t, err, "DelayLevels")
		if files := c.tree(); len(files) > 0 {
			t.Errorf("DelayLevels %q left %+v", bad, files)
		}
	}
	c.opts.DelayLevels = "1s 2d 3h"
	mustClose(t, c.open())
}

// TestFault_T9_NothingIsCompacted: a topic whose configuration asks for
// compaction keeps every record of a key, through retention and reopening.
func TestFault_T9_NothingIsCompacted(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize = 4096
	must(t, c.fs.MkdirAll(c.path("config")))
	c.create("config/topics.json", []byte(`{"topicConfigTable":{"TopicTest":{"attributes":{"cleanup.policy":"COMPACTION"},"topicName":"TopicTest"}}}`))
	s := c.open()
	for i := range 30 {
		c.put(s, testMessage(fmt.Sprintf("%d-%0200d", i, i), "KEYS", "one"))
	}
	waitDispatched(t, s)
	must(t, s.Sync(context.Background()))
	c.clean(s, CleanOptions{AnyHour: true})
	c.verify(s)
	s = c.reopen(s, stopClean)
	c.verify(s)
	mustClose(t, s)
}
