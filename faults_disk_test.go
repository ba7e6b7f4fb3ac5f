package gantry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestReadErrorIsOfOneMessage: the disk cannot read one sector of the log. The
// message in it gives an error, however it is asked for; its neighbours, which
// may lie in the same page, do not.
func TestReadErrorIsOfOneMessage(t *testing.T) {
	for _, v := range allVariants[:2] {
		t.Run(v.name, func(t *testing.T) {
			c := newSite(t, v)
			c.fault = faultfs.New(c.fs)
			s := c.open()
			c.putMany(s, "TopicTest", 0, 60)
			waitDispatched(t, s)
			must(t, s.Sync(context.Background()))
			for bad, b := range c.acked {
				_, at := c.logPlace(b.physical + 60) // inside the record
				rule := c.fault.Inject(faultfs.Rule{
					Ops: faultfs.OpRead | faultfs.OpMapRead, Name: c.path(firstLogFile), Err: faultfs.ErrIO,
					Match: func(call faultfs.Call) bool { return call.Off <= at && at < call.Off+call.N },
				})
				for i, e := range c.acked {
					wantErr := i == bad
					res, err := s.Get(e.topic, e.queue, e.offset, GetOptions{Max: 1})
					if wantErr != errors.Is(err, faultfs.ErrIO) || !wantErr && (len(res.Records) != 1 || res.Records[0].QueueOffset != e.offset) {
						t.Errorf("get %d with %d unreadable: %+v, %v", i, bad, res, err)
					}
					if _, err := s.MessageAt(e.physical); wantErr != errors.Is(err, faultfs.ErrIO) {
						t.Errorf("message at %d with %d unreadable: %v", i, bad, err)
					}
					if i < bad-1 || i > bad+1 {
						continue
					}
					found, err := s.Query(context.Background(), e.topic, fmt.Sprintf("key%d", i), QueryOptions{})
					if wantErr != errors.Is(err, faultfs.ErrIO) || wantErr != (len(found) == 0) {
						t.Errorf("query %d with %d unreadable: %d messages, %v", i, bad, len(found), err)
					}
				}
				// A consumer gets what lies before it, and what lies behind when
				// it goes around.
				if res, err := s.Get(b.topic, b.queue, 0, GetOptions{Max: 100}); bad > 0 && (err != nil || res.NextOffset != b.offset) {
					t.Errorf("get from 0 with %d unreadable: next %d, %v", bad, res.NextOffset, err)
				}
				rule.Remove()
			}
			c.verify(s) // it was the disk's mood
			if err := s.Writable(); err != nil {
				t.Errorf("after read errors: %v", err)
			}
			mustClose(t, s)
		})
	}
}

// TestFailureIsSaidEverywhere: after a failed sync of any file each further
// answer, the statistics and an event say so, once, with the cause; what was
// acknowledged is served; closing and opening anew ends it.
func TestFailureIsSaidEverywhere(t *testing.T) {
	for _, where := range []string{firstLogFile, "consumequeue/*/0/*", "index/*", "checkpoint"} {
		t.Run(where, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newSite(t, inMemory)
				c.fault = faultfs.New(c.fs)
				var failed atomic.Int32
				opts := c.options().with(func(o *Options) {
					o.CheckpointInterval = time.Second
					o.Events.Failed = func(err error) {
						failed.Add(1)
						if !errors.Is(err, faultfs.ErrIO) {
							t.Errorf("the event says %v", err)
						}
					}
				})
				s, err := Open(context.Background(), c.dir, opts)
				must(t, err)
				c.putMany(s, "TopicTest", 0, 5)
				must(t, s.Sync(context.Background()))
				if err := s.Writable(); err != nil {
					t.Errorf("before: %v", err)
				}
				c.fault.Inject(faultfs.Rule{Ops: anySync, Name: c.path(where), Count: 1, Err: faultfs.ErrIO})
				m := keyed(100)
				if res, err := s.Put(context.Background(), m); err == nil {
					c.note(res, m)
				} else if where != firstLogFile || !errors.Is(err, ErrReadOnly) {
					t.Errorf("put: %v", err)
				}
				time.Sleep(time.Minute) // of the bubble: nobody asks for it, the checkpoint loop meets it
				synctest.Wait()
				if n := failed.Load(); n != 1 {
					t.Fatalf("the event came %d times", n)
				}
				for range 2 {
					_, putErr := s.Put(context.Background(), keyed(101))
					_, batchErr := s.PutBatch(context.Background(), []*message.Message{keyed(102)})
					for what, err := range map[string]error{"put": putErr, "batch": batchErr, "sync": s.Sync(context.Background()), "health": s.Writable(), "statistics": s.Stats().Failure} {
						if !errors.Is(err, faultfs.ErrIO) || what != "statistics" && !errors.Is(err, ErrReadOnly) {
							t.Errorf("%s: %v", what, err)
						}
					}
				}
				if got := bodies(t, s, "TopicTest", 0, 0); len(got) < len(c.acked) {
					t.Errorf("%d of %d messages can be read", len(got), len(c.acked))
				}
				if err := s.Close(); err == nil {
					t.Error("closing says nothing")
				}
				c.fault = nil
				s = c.open()
				if where != firstLogFile { // else the last put is there or not
					c.verify(s)
				}
				if err := s.Writable(); err != nil {
					t.Errorf("after opening again: %v", err)
				}
				mustClose(t, s)
			})
		})
	}
}

// TestFailedSyncThenKillThenPower: a failed sync leaves pages that read as
// written and count as clean. A process that is started on them must not
// believe them: it writes what it found again before it relies on it.
func TestFailedSyncThenKillThenPower(t *testing.T) {
	for _, v := range allVariants[:2] {
		t.Run(v.name, func(t *testing.T) {
			c := newSite(t, v)
			c.fault = faultfs.New(c.fs)
			s := c.open()
			page := strings.Repeat("x", 4096) // so that each message lies in pages of its own
			for i := range 5 {
				mustPut(t, s, testMessage(fmt.Sprint(i, page)))
			}
			c.fault.Inject(faultfs.Rule{Ops: anySync, Name: c.path(firstLogFile), Count: 1, Err: faultfs.ErrIO})
			if _, err := s.Put(context.Background(), testMessage(fmt.Sprint(5, page))); !errors.Is(err, ErrReadOnly) {
				t.Fatalf("put: %v", err)
			}
			c.fault.Crash() // the process is killed
			s.abandon()
			c.fault = nil
			s = c.open()
			if left := bodies(t, s, "TopicTest", 0, 0); len(left) != 6 {
				t.Fatalf("%d messages are in the page cache", len(left))
			}
			for i := range 3 { // these promises rest on the log before them
				mustPut(t, s, testMessage(fmt.Sprint(6+i, page)))
			}
			c.powerCut(s, memfs.LoseUnsynced)
			s = c.open()
			got := bodies(t, s, "TopicTest", 0, 0)
			for i, body := range got {
				if body != fmt.Sprint(i, page) {
					t.Errorf("message %d after the power cut: %.10q", i, body)
				}
			}
			if len(got) != 9 {
				t.Errorf("%d messages after the power cut", len(got))
			}
			mustClose(t, s)
		})
	}
}

// TestKilledWhileAFileIsMade: a process is killed between making a log file and
// making its name durable. The next one uses the file, and has to make up for
// it before it promises anything that is in it.
func TestKilledWhileAFileIsMade(t *testing.T) {
	for _, v := range allVariants[:3] {
		for nth := 1; nth <= 2; nth++ { // of the first and of the second file
			t.Run(fmt.Sprintf("%s/%d", v.name, nth), func(t *testing.T) {
				c := newSite(t, v)
				c.opts.CommitLogFileSize, c.keyStep = 4096, 5
				c.fault = faultfs.New(c.fs)
				c.fault.Inject(faultfs.Rule{Ops: faultfs.OpSyncDir, Name: c.path("commitlog"), Nth: nth, Count: 1, Hook: func(faultfs.Call) { c.fault.Crash() }})
				s := c.open()
				for i := 0; !c.fault.Crashed() && i < 100; i++ {
					m := keyed(1000 + i)
					if res, err := s.Put(context.Background(), m); err == nil {
						c.note(res, m)
					}
				}
				s.abandon()
				c.fault = faultfs.New(c.fs)
				s = c.open()
				// No file that is made ahead from now on helps it with its sync.
				release := make(chan struct{})
				c.fault.Inject(faultfs.Rule{Ops: faultfs.OpSyncDir, Name: c.path("commitlog"), Hook: func(faultfs.Call) { <-release }})
				inFile := message.PhysicalOffset((nth - 1) * 4096)
				for i := 0; len(c.acked) == 0 || c.acked[len(c.acked)-1].physical < inFile; i++ {
					c.put(s, keyed(2000+i))
				}
				must(t, s.log.Flush(context.Background()))
				left := c.fs.(*memfs.FS).CrashClone(memfs.LoseUnsynced)
				close(release)
				s.abandon()
				c.fs, c.fault = left, nil
				s = c.open()
				c.verify(s)
				mustClose(t, s)
			})
		}
	}
}

// TestUnlinkFails: retention that cannot remove a name says so, removes nothing
// behind it, and goes on when it can; puts and reads go on meanwhile.
func TestUnlinkFails(t *testing.T) {
	for _, v := range allVariants[:2] {
		c := newSite(t, v)
		c.opts.CommitLogFileSize, c.keyStep, c.opts.DeleteBatch = 4096, 20, 100
		c.fault = faultfs.New(c.fs)
		s := c.open()
		c.putMany(s, "TopicTest", 0, 300)
		c.clock.add(1000 * time.Hour)
		c.putMany(s, "TopicTest", 0, 30)
		waitDispatched(t, s)
		must(t, s.Sync(context.Background()))
		rule := c.fault.Inject(faultfs.Rule{Ops: faultfs.OpRemove, Name: c.path("commitlog/*"), Nth: 3, Err: faultfs.ErrIO})
		names := len(c.names("commitlog"))
		if _, err := s.Clean(context.Background(), CleanOptions{AnyHour: true}); !errors.Is(err, faultfs.ErrIO) {
			t.Errorf("clean: %v", err)
		}
		if oldest := slices.Min(c.names("commitlog")); oldest != fmt.Sprintf("%020d", 2*4096) {
			t.Errorf("%s is the oldest of %d files, two could be removed", oldest, names)
		}
		c.putMany(s, "TopicTest", 0, 3)
		first, _ := s.Range()
		c.forget(func(e entry) bool { return e.physical < first })
		c.verify(s)
		rule.Remove()
		c.clean(s, CleanOptions{AnyHour: true})
		first, _ = s.Range()
		// The allocator may make one more file ahead at any time: only what is
		// gone can be counted.
		left := c.names("commitlog")
		if oldest := slices.Min(left); oldest != fmt.Sprintf("%020d", int64(first)) || len(left) >= names-2 {
			t.Errorf("%d files are left, from %s on; the log begins at %d", len(left), oldest, first)
		}
		c.forget(func(e entry) bool { return e.physical < first })
		c.verify(s)
		s = c.reopen(s, stopKill)
		c.verify(s)
		mustClose(t, s)
	}
}

// TestStatfsFails: a disk that does not tell its use neither stops the store
// nor makes retention remove anything; when it tells again that it is full,
// puts are refused early, reads go on, and puts come back by themselves.
func TestStatfsFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newSite(t, inMemory)
		c.opts.CommitLogFileSize, c.opts.CleanInterval = 4096, 10*time.Second
		mem := c.fs.(*memfs.FS)
		c.fault = faultfs.New(c.fs)
		rule := c.fault.Inject(faultfs.Rule{Ops: faultfs.OpDiskUsage, Err: faultfs.ErrIO})
		s := c.open()
		c.putMany(s, "TopicTest", 0, 100)
		c.clock.add(1000 * time.Hour)
		time.Sleep(time.Minute) // of the bubble
		c.putMany(s, "TopicTest", 0, 10)
		if len(c.notes.failedWrites()) == 0 || rule.Hits() == 0 {
			t.Error("nobody was told")
		}
		c.verify(s)
		rule.Remove()
		c.clock.set(testStart) // nothing is old
		mem.SetUsage(&vfs.Usage{Total: 100, Used: 84, Free: 16})
		full := &vfs.Usage{Total: 100, Used: 95, Free: 5}
		c.opts.KeepUnexpired = true
		s = c.reopen(s, stopClean)
		mem.SetUsage(full)
		time.Sleep(20 * time.Second) // of the bubble
		_, end := s.Range()
		if _, err := s.Put(context.Background(), keyed(1)); !errors.Is(err, ErrDiskFull) {
			t.Errorf("put on a full disk: %v", err)
		}
		if err := s.Writable(); !errors.Is(err, ErrDiskFull) || !s.Stats().DiskFull {
			t.Errorf("health: %v, statistics %+v", err, s.Stats())
		}
		if _, now := s.Range(); now != end {
			t.Errorf("the log moved from %d to %d", end, now)
		}
		c.verify(s)
		// A store that is opened on the full disk knows at once.
		s = c.reopen(s, stopClean)
		synctest.Wait()
		if _, err := s.Put(context.Background(), keyed(1)); !errors.Is(err, ErrDiskFull) {
			t.Errorf("put after opening on a full disk: %v", err)
		}
		mem.SetUsage(nil)
		time.Sleep(20 * time.Second) // of the bubble
		c.putMany(s, "TopicTest", 0, 10)
		c.verify(s)
		mustClose(t, s)
	})
}

// TestSlowCalls: a disk that takes its time for each call of one kind delays
// things and breaks none: nothing is refused for good, lost or done twice. (In
// real time: who waits for a lock does not let the time of a bubble pass.)
func TestSlowCalls(t *testing.T) {
	for _, ops := range []faultfs.Op{
		faultfs.OpCreate, faultfs.OpAllocate | faultfs.OpTruncate, faultfs.OpSyncDir, anySync, faultfs.OpRemove, faultfs.OpRead | faultfs.OpMapRead,
		faultfs.OpWrite | faultfs.OpMapWrite, faultfs.OpDiskUsage | faultfs.OpStat | faultfs.OpList,
	} {
		t.Run(ops.String(), func(t *testing.T) {
			t.Parallel()
			c := newSite(t, inMemory)
			c.opts.CommitLogFileSize, c.keyStep, c.opts.DeleteBatch = 4096, 20, 3
			c.opts.Reserved, c.opts.SyncFlushTimeout = 5*time.Hour, time.Hour
			c.fault = faultfs.New(c.fs)
			s := c.open()
			rule := c.fault.Inject(faultfs.Rule{Ops: ops, Hook: func(faultfs.Call) { time.Sleep(2 * time.Millisecond) }}) // the slow disk
			for i := range 40 {
				c.clock.add(30 * time.Minute)
				m := testMessage(fmt.Sprintf("%d-%0200d", i, i), "KEYS", fmt.Sprintf("key%d", i))
				for {
					res, err := s.Put(context.Background(), m)
					if err == nil {
						c.note(res, m)
						break
					}
					// The next file is not ready, or flushing is behind: nothing was stored.
					if PutStatusOf(err) != CreateMappedFileFailed {
						t.Fatalf("put: %v", err)
					}
				}
			}
			waitDispatched(t, s)
			must(t, s.Sync(context.Background()))
			c.clean(s, CleanOptions{AnyHour: true})
			first, _ := s.Range()
			c.forget(func(e entry) bool { return e.physical < first })
			c.verify(s)
			if rule.Hits() == 0 {
				t.Error("nothing was slow")
			}
			rule.Remove()
			s = c.reopen(s, stopKill)
			c.verify(s)
			mustClose(t, s)
		})
	}
}

// TestOneCallFails lets each call that a scenario makes fail in turn, reads
// and lists among them: the store answers errors or goes around them, hangs
// nowhere, can be closed, and what is left keeps all promises, whether the
// power goes or not. The short form takes some of the calls.
func TestOneCallFails(t *testing.T) {
	step := 60
	if *crashLong {
		step = 4
	}
	for i, sc := range crashScenarios {
		if sc.name == "full disk" || sc.lively { // those hide which call it was
			continue
		}
		sc.drops = true
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			var count crashCount
			for nth := 1 + i; ; nth += step {
				err := []error{faultfs.ErrIO, faultfs.ErrNoSpace}[nth%2]
				var calls atomic.Int64
				hit := false
				r := newCrashRun(sc, int64(nth), 1)
				w := r.work(func(mem *memfs.FS) *faultfs.FS {
					fs := faultfs.New(mem)
					fs.Inject(faultfs.Rule{
						Ops: faultfs.OpAll &^ faultfs.OpRelease, Err: err,
						Match: func(faultfs.Call) bool { // under the lock of fs
							now := calls.Add(1) == int64(nth)
							hit = hit || now
							return now
						},
					})
					return fs
				})
				// What it answers is its affair; some errors pass unnoticed.
				_ = sc.run(w)
				if w.s != nil {
					_ = w.s.Close()
				}
				r.crashBefore(w.mem, faultfs.Call{Name: fmt.Sprintf("the end; call %d failed with: %v", nth, err)})
				r.verify(t, &count, 0)
				if t.Failed() || !hit {
					break
				}
			}
			t.Logf("%d states, %d distinct images opened", count.states.Load(), count.images.Load())
		})
	}
}
