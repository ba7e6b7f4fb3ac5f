package gantry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

const (
	anySync = faultfs.OpSync | faultfs.OpMapFlush
	// firstLogFile is the one that is written to; a failing sync of the next,
	// which is made ahead, is only a file that could not be made.
	firstLogFile = "commitlog/00000000000000000000"
)

// powerCut takes what a power cut leaves of the site's files.
func (c *site) powerCut(s *Store, policy memfs.Policy) {
	c.t.Helper()
	clone := c.fs.(*memfs.FS).CrashClone(policy)
	s.abandon()
	c.fs, c.fault = clone, nil
}

func TestFault_F1_FailedSyncIsFinal(t *testing.T) {
	for _, v := range allVariants[:2] {
		for _, where := range []string{firstLogFile, "consumequeue/*/0/*", "index/*", "checkpoint"} {
			t.Run(v.name+"/"+where, func(t *testing.T) {
				c := newSite(t, v)
				c.fault = faultfs.New(c.fs)
				s := c.open()
				c.putMany(s, "TopicTest", 0, 5)
				waitDispatched(t, s)
				rule := c.fault.Inject(faultfs.Rule{Ops: anySync, Name: c.path(where), Count: 1, Err: faultfs.ErrIO})
				m := keyed(100)
				res, err := s.Put(context.Background(), m)
				if where == firstLogFile {
					if err == nil {
						t.Fatal("a put was confirmed although its sync failed")
					}
				} else {
					must(t, err)
					c.note(res, m)
					waitDispatched(t, s)
					if err := s.Sync(context.Background()); !errors.Is(err, faultfs.ErrIO) {
						t.Fatalf("sync: %v", err)
					}
				}
				if rule.Hits() != 1 {
					t.Fatalf("%d syncs failed", rule.Hits())
				}
				// From now on syncs would succeed.
				for range 3 {
					if err := s.Sync(context.Background()); !errors.Is(err, ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
						t.Errorf("sync after a failed sync: %v", err)
					}
					if _, err := s.Put(context.Background(), keyed(101)); !errors.Is(err, ErrReadOnly) || PutStatusOf(err) != ServiceNotAvailable {
						t.Errorf("put after a failed sync: %v", err)
					}
				}
				if s.Stats().Failure == nil {
					t.Error("the statistics do not show it")
				}
				if got := bodies(t, s, "TopicTest", 0, 0); len(got) < 5 {
					t.Errorf("%d messages can be read", len(got))
				}
				c.powerCut(s, memfs.LoseUnsynced)
				if where == firstLogFile { // the last put was not confirmed and may be there or not
					s = c.open()
					if got := bodies(t, s, "TopicTest", 0, 0); len(got) != 5 && len(got) != 6 {
						t.Errorf("%d messages after the crash", len(got))
					}
				} else {
					s = c.open()
					c.verify(s)
				}
				mustClose(t, s)
			})
		}
	}
}

func TestFault_F2_TimesAndFailedSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, v := range allVariants[:3] {
			c := newSite(t, v)
			c.opts.CheckpointInterval = 2 * time.Second
			c.fault = faultfs.New(c.fs)
			s := c.open()
			c.putMany(s, "TopicTest", 0, 3)
			waitDispatched(t, s)
			must(t, s.Sync(context.Background()))
			before := c.bytes("checkpoint")
			c.fault.Inject(faultfs.Rule{Ops: anySync, Name: c.path("commitlog/*"), Err: faultfs.ErrIO})
			c.clock.add(time.Hour)
			_, _ = s.Put(context.Background(), keyed(7))
			time.Sleep(30 * time.Second) // of the bubble: all loops have run
			synctest.Wait()
			if now := c.bytes("checkpoint"); !slices.Equal(now[:48], before[:48]) {
				t.Errorf("%s: the checkpoint's times moved from % x to % x", v.name, before[:48], now[:48])
			}
			s.abandon()
		}
	})
}

func TestFault_F3_DefaultsStopWriting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, noMmap := range []bool{false, true} {
			c := newSite(t, variant{noMmap: noMmap, async: true})
			c.fault = faultfs.New(c.fs)
			s := c.open()
			c.put(s, keyed(0))
			c.fault.Inject(faultfs.Rule{Ops: anySync, Name: c.path(firstLogFile), Count: 1, Err: faultfs.ErrIO})
			c.put(s, keyed(1))           // asynchronous: nothing is known yet
			time.Sleep(20 * time.Second) // of the bubble: the flusher has run
			synctest.Wait()
			if _, err := s.Put(context.Background(), keyed(2)); !errors.Is(err, ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
				t.Errorf("mmap %v: put: %v", !noMmap, err)
			}
			if err := s.Close(); err == nil {
				t.Error("closing says nothing")
			}
		}
	})
}

// TestFault_F4_SlowQueue, which is L10 as well: a queue with few messages
// beside one that fills several files.
func TestFault_F4_SlowQueue(t *testing.T) {
	for _, v := range allVariants[:3] {
		for _, policy := range []memfs.Policy{memfs.LoseUnsynced, memfs.NewestFirst, memfs.LoseRandomPages | memfs.Torn} {
			t.Run(fmt.Sprintf("%s/%v", v.name, policy), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newSite(t, v)
					c.opts.CommitLogFileSize, c.keyStep = 16<<10, 20
					s := c.open()
					for range 20 {
						c.putMany(s, "Slow", 0, 1)
						c.putMany(s, "Fast", 0, 40)
						c.clock.add(time.Second)
						time.Sleep(time.Second) // of the bubble: flushes and checkpoints happen
					}
					waitDispatched(t, s)
					if v.async {
						must(t, s.log.Flush(context.Background())) // of the log only
					}
					c.powerCut(s, policy)
					s = c.open()
					if n := len(c.names("commitlog")); n < 5 {
						t.Fatalf("%d log files", n)
					}
					c.queueRange(s, "Slow", 0, 0, 20)
					c.verify(s)
					mustClose(t, s)
				})
			})
		}
	}
}

// TestDispatchPositionComesFirst: what is dispatched while a checkpoint syncs
// the queues is not covered by it, whatever a crash leaves of its units later.
func TestDispatchPositionComesFirst(t *testing.T) {
	clock := newClock()
	mem := memfs.NewCrashable(1)
	fault := faultfs.New(mem)
	opts := smallOptions(fault, clock).with(func(o *Options) {
		o.ConsumeQueueFileSize, o.CheckpointInterval = 10*20, time.Hour
	})
	s := mustOpen(t, opts)
	const before, during = 3, 30 // three files more
	put := func(n int) {
		for range n {
			mustPut(t, s, testMessage("x"))
		}
		waitDispatched(t, s)
	}
	put(before)
	rule := fault.Inject(faultfs.Rule{Ops: faultfs.OpSync, Name: testDir + "/consumequeue/*/*/*", Count: 1, Hook: func(faultfs.Call) { put(during) }})
	must(t, s.Sync(context.Background()))
	if rule.Hits() != 1 {
		t.Fatal("no queue was synced")
	}
	must(t, s.queues.simple.WriteOut()) // as the next checkpoint begins
	var left []*memfs.FS
	for seed := range int64(30) {
		for _, policy := range memfs.Policies() {
			left = append(left, mem.CrashClone(policy, seed))
		}
	}
	s.abandon()
	for _, fs := range left {
		s := mustOpen(t, opts.with(func(o *Options) { o.FS = fs }))
		if got := bodies(t, s, "TopicTest", 0, 0); len(got) != before+during {
			t.Fatalf("%d messages of %d are there", len(got), before+during)
		}
		mustClose(t, s)
	}
}

func TestFault_F6_OneSlowSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSite(t, inMemory)
		c.fault = faultfs.New(c.fs)
		s := c.open()
		c.putMany(s, "Blocked", 0, 3)
		c.putMany(s, "TopicTest", 0, 3)
		waitDispatched(t, s)
		must(t, s.Sync(context.Background()))
		before := c.bytes("checkpoint")
		release := make(chan struct{})
		rule := c.fault.Inject(faultfs.Rule{Ops: anySync, Name: c.path("consumequeue/Blocked/0/*"), Count: 1, Hook: func(faultfs.Call) { <-release }})
		c.putMany(s, "Blocked", 0, 1)
		time.Sleep(30 * time.Second) // of the bubble: a checkpoint hangs in the sync
		synctest.Wait()
		if rule.Hits() == 0 {
			t.Fatal("nothing was blocked")
		}
		start := time.Now()
		c.putMany(s, "TopicTest", 0, 100)
		c.putMany(s, "Blocked", 0, 100)
		if d := time.Since(start); d > time.Second { // of the bubble
			t.Errorf("puts beside the blocked sync took %v", d)
		}
		c.verify(s)
		close(release)
		time.Sleep(time.Minute) // of the bubble
		synctest.Wait()
		if now := c.bytes("checkpoint"); slices.Equal(now, before) {
			t.Error("no checkpoint was written")
		}
		c.powerCut(s, memfs.LoseUnsynced)
		s = c.open()
		c.verify(s)
		mustClose(t, s)
	})
}

func TestFault_F7_NamesAreDurable(t *testing.T) {
	for _, v := range allVariants[:2] {
		c := newSite(t, v)
		c.opts.CommitLogFileSize, c.keyStep = 4096, 5
		s := c.open()
		for range 4 {
			c.putMany(s, "TopicTest", 0, 60) // several files
			c.powerCut(s, memfs.LoseUnsynced)
			s = c.open()
			c.verify(s)
		}
		mustClose(t, s)
		// After an orderly end nothing at all is lost.
		c.fs = c.fs.(*memfs.FS).CrashClone(memfs.LoseUnsynced)
		s = c.open()
		if !s.Recovery().CleanStop || s.Recovery().Replayed > 0 {
			t.Errorf("recovery %+v", s.Recovery())
		}
		c.verify(s)
		mustClose(t, s)
	}
}

func TestFault_F8_CloseFlushesAll(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, noMmap := range []bool{false, true} {
			c := newSite(t, variant{async: true, noMmap: noMmap})
			c.opts.CommitLogFileSize, c.keyStep = 4096, 20
			c.opts.FlushInterval, c.opts.FlushThoroughInterval, c.opts.FlushLeastPages = time.Hour, time.Hour, 1<<20
			c.opts.CheckpointInterval = time.Hour
			s := c.open()
			c.putMany(s, "TopicTest", 0, 480) // some 15 files
			mustClose(t, s)
			if st := s.Stats(); st.FlushedOffset != st.EndOffset || st.EndOffset < 14*4096 {
				t.Errorf("flushed to %d of %d", st.FlushedOffset, st.EndOffset)
			}
			c.fs = c.fs.(*memfs.FS).CrashClone(memfs.LoseUnsynced)
			s = c.open()
			if !s.Recovery().CleanStop {
				t.Error("the stop was not clean")
			}
			c.verify(s)
			mustClose(t, s)
		}
	})
}

// TestFault_F9_Concurrent: group commit and readers of all kinds, for the race
// detector, with the offsets that they see checked.
func TestFault_F9_Concurrent(t *testing.T) {
	for _, v := range allVariants[:3] {
		c := newSite(t, v)
		c.opts.CommitLogFileSize = 16 << 10
		s := c.open()
		ctx, cancel := context.WithCancel(context.Background())
		var readers, writers sync.WaitGroup
		readers.Go(func() {
			last := message.PhysicalOffset(0)
			for ctx.Err() == nil {
				st := s.Stats()
				if st.FlushedOffset < last || st.FlushedOffset > s.log.End() {
					t.Errorf("flushed to %d after %d", st.FlushedOffset, last)
				}
				last = st.FlushedOffset
			}
		})
		readers.Go(func() {
			for ctx.Err() == nil {
				for _, q := range s.Queues() {
					res, err := s.Get(q.Topic, q.QueueID, max(q.MaxOffset-3, 0), GetOptions{})
					if err != nil || len(res.Damaged) > 0 {
						t.Errorf("get: %v, %v", err, res.Damaged)
					}
					if _, err := s.Query(ctx, q.Topic, "k", QueryOptions{Max: 3}); err != nil && ctx.Err() == nil {
						t.Errorf("query: %v", err)
					}
					if _, _, err := s.OffsetByTime(q.Topic, q.QueueID, testStart, Upper); err != nil {
						t.Errorf("time: %v", err)
					}
				}
			}
		})
		readers.Go(func() {
			for ctx.Err() == nil {
				if err := s.Sync(ctx); err != nil && ctx.Err() == nil {
					t.Errorf("sync: %v", err)
				}
				if _, err := s.Clean(ctx, CleanOptions{}); err != nil && ctx.Err() == nil {
					t.Errorf("clean: %v", err)
				}
			}
		})
		var mu sync.Mutex
		for w := range 4 {
			writers.Go(func() {
				for i := range 50 {
					m := toTopic("T", fmt.Sprintf("%d-%d", w, i), "KEYS", "k")
					m.QueueID = int32(w % 2)
					res, err := s.Put(ctx, m)
					if err != nil {
						t.Errorf("put: %v", err)
						return
					}
					mu.Lock()
					c.note(res, m)
					mu.Unlock()
				}
			})
		}
		writers.Wait()
		cancel()
		readers.Wait()
		slices.SortFunc(c.acked, func(a, b entry) int { return int(a.physical - b.physical) })
		c.verify(s)
		s = c.reopen(s, stopKill)
		c.verify(s)
		mustClose(t, s)
	}
}
