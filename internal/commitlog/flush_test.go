package commitlog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// opSyncs are the calls that bring content to stable storage.
const opSyncs = faultfs.OpSync | faultfs.OpMapFlush

// startFlushLog starts a log over a crashable file system with faults.
func startFlushLog(t *testing.T, fileSize int64, set func(*Options)) (*Log, *faultfs.FS, *memfs.FS) {
	t.Helper()
	mem := memfs.NewCrashable(1)
	fsys := faultfs.New(mem)
	opts := testOptions(fsys, fileSize)
	if set != nil {
		set(&opts)
	}
	l, _ := startLog(t, opts)
	return l, fsys, mem
}

func syncMode(o *Options) { o.Flush = FlushSync }

// block makes the next sync of a mapped range wait until release is called.
func block(fsys *faultfs.FS) (entered chan struct{}, release func()) {
	entered, gate := make(chan struct{}, 1), make(chan struct{})
	fsys.Inject(faultfs.Rule{Ops: faultfs.OpMapFlush, Count: 1, Hook: func(faultfs.Call) {
		entered <- struct{}{}
		<-gate
	}})
	return entered, sync.OnceFunc(func() { close(gate) })
}

func TestWaitFlushedMeansDurable(t *testing.T) {
	for _, mode := range writeModes {
		for _, flush := range []FlushMode{FlushAsync, FlushSync} {
			t.Run(fmt.Sprintf("%s/%d", mode.name, flush), func(t *testing.T) {
				l, _, mem := startFlushLog(t, 8192, func(o *Options) {
					mode.set(o)
					o.Flush = flush
				})
				for i := range 20 {
					phy := appendSized(t, l, 1000, byte(i))
					if err := l.WaitFlushed(context.Background(), phy+1000); err != nil {
						t.Fatal(err)
					}
					if l.Flushed() < phy+1000 || l.FlushedStoreTime() != testTime {
						t.Fatalf("stats %+v", l.Stats())
					}
					if i%5 == 4 {
						tail := findTail(t, mem.CrashClone(memfs.LoseUnsynced), 0)
						if tail.Records != int64(i+1) || tail.End != phy+1000 || tail.Reason != nil {
							t.Fatalf("after a crash: %+v", tail)
						}
					}
				}
			})
		}
	}
}

// TestF1FailedSyncIsFinal: the sync fails once, the kernel forgets the pages,
// and every later sync succeeds.
func TestF1FailedSyncIsFinal(t *testing.T) {
	for _, mode := range writeModes { // F3: also when the file is mapped
		t.Run(mode.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var failures []error
				l, fsys, mem := startFlushLog(t, 8192, func(o *Options) {
					mode.set(o)
					o.Flush = FlushSync
					o.OnFailure = func(err error) { failures = append(failures, err) }
				})
				phy := appendSized(t, l, 1000, 0)
				if err := l.WaitFlushed(t.Context(), phy+1000); err != nil {
					t.Fatal(err)
				}
				fsys.Inject(faultfs.Rule{Ops: opSyncs, Count: 1, Err: faultfs.ErrIO})
				phy = appendSized(t, l, 1000, 1)
				var group sync.WaitGroup
				for range 3 {
					group.Go(func() {
						err := l.WaitFlushed(t.Context(), phy+1000)
						if !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
							t.Errorf("waiter got %v", err)
						}
					})
				}
				group.Wait()
				p := newPut(t, 2, sized(1000, 2))
				if _, _, err := l.Append(1000, p); !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
					t.Errorf("a later append: %v", err)
				}
				if err := l.Flush(t.Context()); !errors.Is(err, base.ErrReadOnly) {
					t.Errorf("a later flush: %v", err)
				}
				if err := l.WaitFlushed(t.Context(), phy); err != nil {
					t.Errorf("what had been flushed before: %v", err)
				}
				if l.Err() == nil || len(failures) != 1 || l.Flushed() != 1000 || l.Confirmed() != 1000 {
					t.Errorf("err %v, reported %v, stats %+v", l.Err(), failures, l.Stats())
				}
				if err := l.Close(); !errors.Is(err, base.ErrReadOnly) {
					t.Errorf("close: %v", err)
				}
				if tail := findTail(t, mem.CrashClone(memfs.LoseUnsynced), 0); tail.End != 1000 {
					t.Errorf("after a crash: %+v", tail)
				}
			})
		})
	}
}

// TestF2StoreTimeOnlyAfterSync: the time that a checkpoint may claim.
func TestF2StoreTimeOnlyAfterSync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now atomic.Int64
		now.Store(testTime)
		l, fsys, _ := startFlushLog(t, 8192, func(o *Options) { o.Now = now.Load })
		if l.FlushedStoreTime() != 0 {
			t.Errorf("an empty log claims %d", l.FlushedStoreTime())
		}
		appendSized(t, l, 1000, 0)
		if err := l.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if l.FlushedStoreTime() != testTime {
			t.Errorf("claims %d after a flush", l.FlushedStoreTime())
		}

		// A record that comes during the sync is not covered by it.
		entered, release := block(fsys)
		now.Add(10)
		appendSized(t, l, 1000, 1)
		l.RequestFlush()
		<-entered
		now.Add(10)
		appendSized(t, l, 1000, 2)
		release()
		synctest.Wait()
		if got := l.FlushedStoreTime(); got != testTime+10 {
			t.Errorf("claims %d after the blocked flush, want %d", got, testTime+10)
		}

		// Nor is anything by one that fails.
		fsys.Fail(opSyncs, "", faultfs.ErrIO)
		now.Add(10)
		appendSized(t, l, 1000, 3)
		if err := l.Flush(t.Context()); err == nil {
			t.Error("flush succeeded")
		}
		if got := l.FlushedStoreTime(); got != testTime+10 {
			t.Errorf("claims %d after a failed flush, want %d", got, testTime+10)
		}
		l.Close()
	})
}

// TestF6OneSyncPerGroup: everybody who comes while a sync is under way shares
// the next one.
func TestF6OneSyncPerGroup(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fsys, _ := startFlushLog(t, 1<<20, syncMode)
		entered, release := block(fsys)
		var group sync.WaitGroup
		wait := func(phy message.PhysicalOffset) {
			group.Go(func() {
				if err := l.WaitFlushed(t.Context(), phy+200); err != nil {
					t.Error(err)
				}
			})
		}
		wait(appendSized(t, l, 200, 0))
		<-entered
		before := fsys.Count(opSyncs, "").Calls
		for i := range 100 {
			wait(appendSized(t, l, 200, byte(i)))
		}
		synctest.Wait()
		if got := l.Stats().Waiting; got != 101 {
			t.Errorf("%d goroutines wait", got)
		}
		release()
		group.Wait()
		if got := fsys.Count(opSyncs, "").Calls - before; got != 2 {
			t.Errorf("%d syncs for two groups", got)
		}
		if s := l.Stats(); s.Waiting != 0 || s.Syncs != 2 {
			t.Errorf("stats %+v", s)
		}
		l.Close()
	})
}

func TestSyncFlushTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fsys, _ := startFlushLog(t, 8192, syncMode)
		_, release := block(fsys)
		phy := appendSized(t, l, 200, 0)
		start := time.Now()
		if err := l.WaitFlushed(t.Context(), phy+200); err != ErrFlushTimeout || time.Since(start) != 5*time.Second {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if err := l.WaitFlushed(ctx, phy+200); err != context.DeadlineExceeded || time.Since(start) != time.Second {
			t.Errorf("got %v after %v", err, time.Since(start))
		}
		if l.Flushed() != 0 || l.Confirmed() != 0 || l.End() != 200 {
			t.Errorf("stats %+v", l.Stats())
		}
		release()
		if err := l.WaitFlushed(t.Context(), phy+200); err != nil {
			t.Errorf("the record stayed, but: %v", err)
		}
		if l.Confirmed() != 200 {
			t.Errorf("stats %+v", l.Stats())
		}
		l.Close()
	})
}

func TestAsyncFlushIntervals(t *testing.T) {
	tests := []struct {
		name  string
		bytes int
		after time.Duration
	}{
		{"three pages wait for the thorough round", 3 * 4096, 10 * time.Second},
		{"four pages go with the next round", 4 * 4096, 500 * time.Millisecond},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _, _ := startFlushLog(t, 1<<20, nil)
				appendSized(t, l, test.bytes, 0)
				time.Sleep(test.after - time.Millisecond)
				synctest.Wait()
				if l.Flushed() != 0 {
					t.Errorf("flushed up to %d too early", l.Flushed())
				}
				time.Sleep(2 * time.Millisecond)
				synctest.Wait()
				if l.Flushed() != l.End() {
					t.Errorf("flushed up to %d of %d", l.Flushed(), l.End())
				}
				l.Close()
			})
		})
	}
}

// TestSyncModeFlushesUnasked: nobody waits (WAIT=false).
func TestSyncModeFlushesUnasked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _ := startFlushLog(t, 8192, syncMode)
		appendSized(t, l, 200, 0)
		l.RequestFlush()
		synctest.Wait()
		if l.Confirmed() != 200 {
			t.Errorf("confirmed %d after RequestFlush", l.Confirmed())
		}
		appendSized(t, l, 200, 1)
		time.Sleep(501 * time.Millisecond)
		synctest.Wait()
		if l.Confirmed() != 400 {
			t.Errorf("confirmed %d after an interval", l.Confirmed())
		}
		l.Close()
	})
}

func TestIdleLogChangesNothing(t *testing.T) {
	for _, mode := range writeModes {
		t.Run(mode.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, fsys, _ := startFlushLog(t, 8192, mode.set)
				appendSized(t, l, 200, 0)
				time.Sleep(11 * time.Second)
				synctest.Wait()
				before := fsys.Changes()
				time.Sleep(time.Minute)
				synctest.Wait()
				if got := fsys.Changes() - before; got != 0 {
					t.Errorf("%d changes in an idle minute", got)
				}
				l.Close()
			})
		})
	}
}

// TestF8CloseFlushesEverything: however many files that are.
func TestF8CloseFlushesEverything(t *testing.T) {
	for _, mode := range writeModes {
		t.Run(mode.name, func(t *testing.T) {
			l, _, mem := startFlushLog(t, 4096, func(o *Options) {
				mode.set(o)
				o.FlushInterval = time.Hour
			})
			for i := range 60 {
				appendSized(t, l, 1000, byte(i))
			}
			end := l.End()
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			tail := findTail(t, mem.CrashClone(memfs.LoseUnsynced), 0)
			if tail.Records != 60 || tail.End != end || tail.Reason != nil {
				t.Errorf("after Close and a crash: %+v", tail)
			}
			if l.Flushed() != end {
				t.Errorf("flushed %d of %d", l.Flushed(), end)
			}
		})
	}
}

// TestErrBehind: at most two files may have unflushed pages, because recovery
// relies on it. The append lock is free while the third waits.
func TestErrBehind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fsys, _ := startFlushLog(t, 4096, nil)
		fillFile := func() {
			for range 4 {
				appendSized(t, l, 1000, 1)
			}
		}
		fillFile()
		synctest.Wait()
		gate := make(chan struct{})
		fsys.Inject(faultfs.Rule{Ops: faultfs.OpMapFlush, Hook: func(faultfs.Call) { <-gate }})
		fillFile() // the first roll wakes the flusher, which stays in the hook
		before := l.End()
		start := time.Now()
		_, _, err := l.Append(1000, newPut(t, 0, sized(1000, 2)))
		if !errors.Is(err, ErrBehind) || errors.Is(err, ErrFlushTimeout) {
			t.Errorf("got %v", err)
		}
		if time.Since(start) != 5*time.Second || l.End() != before {
			t.Errorf("after %v, end %d, before %d", time.Since(start), l.End(), before)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			if got := appendSized(t, l, 1000, 2); got != 8192 {
				t.Errorf("record at %d", got)
			}
		}()
		synctest.Wait()
		if l.LockedSince() != 0 {
			t.Error("the append lock is held while waiting")
		}
		close(gate)
		<-done
		l.Close()
	})
}

func TestConfirmed(t *testing.T) {
	tests := []struct {
		name      string
		set       func(*Options)
		appended  message.PhysicalOffset // Confirmed after two appends
		committed message.PhysicalOffset // 200 ms later
		flushed   message.PhysicalOffset // after Flush
	}{
		{"async", func(*Options) {}, 400, 400, 400},
		{"sync", syncMode, 0, 0, 400},
		{"sync, reading unflushed", func(o *Options) { o.Flush, o.ReadUnflushed = FlushSync, true }, 400, 400, 400},
		{"pool", func(o *Options) { o.PoolSize = 1 }, 0, 400, 400},
		{"pool, sync", func(o *Options) { o.PoolSize, o.Flush = 1, FlushSync }, 0, 0, 400},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l, _, _ := startFlushLog(t, 8192, test.set)
				var told atomic.Int64
				go func() {
					for l.WaitConfirmed(t.Context(), message.PhysicalOffset(told.Load())) == nil {
						told.Store(int64(l.Confirmed()))
					}
				}()
				synctest.Wait()
				for i := range 2 {
					appendSized(t, l, 200, byte(i))
				}
				check := func(when string, want message.PhysicalOffset) {
					t.Helper()
					synctest.Wait()
					if l.Confirmed() != want || told.Load() != int64(want) {
						t.Errorf("%s: confirmed %d, a waiter was told %d, want %d", when, l.Confirmed(), told.Load(), want)
					}
					_, _, err := l.ReadRecord(0, nil, checkAll.Check)
					if (err == nil) != (want > 0) || err != nil && !errors.Is(err, base.ErrNotFound) {
						t.Errorf("%s: reading gives %v", when, err)
					}
				}
				check("appended", test.appended)
				time.Sleep(201 * time.Millisecond)
				check("committed", test.committed)
				if err := l.Flush(t.Context()); err != nil {
					t.Fatal(err)
				}
				check("flushed", test.flushed)
				l.Close()
				synctest.Wait()
			})
		})
	}
}

// TestA8PoolExhausted: the files that get no buffer are written directly, and
// everything can be read and flushed.
func TestA8PoolExhausted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, mem := startFlushLog(t, 4096, func(o *Options) {
			o.PoolSize = 1
			o.CommitInterval = time.Hour
		})
		for i := range 12 {
			appendSized(t, l, 1000, byte(i))
		}
		if err := l.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := scanAll(t, l); len(got) != 12 || l.Flushed() != l.End() {
			t.Errorf("%d records, stats %+v", len(got), l.Stats())
		}
		if tail := findTail(t, mem.CrashClone(memfs.LoseUnsynced), 0); tail.Records != 12 {
			t.Errorf("after a crash: %+v", tail)
		}
		l.Close()
	})
}

// TestCommitRetries: the file system has no room for a while.
func TestCommitRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, fsys, _ := startFlushLog(t, 8192, func(o *Options) { o.PoolSize = 1 })
		rule := fsys.Fail(faultfs.OpWrite, "", faultfs.ErrNoSpace)
		appendSized(t, l, 1000, 0)
		time.Sleep(time.Second)
		synctest.Wait()
		if l.Confirmed() != 0 || l.Err() != nil || rule.Hits() < 3 {
			t.Errorf("confirmed %d, err %v, %d tries", l.Confirmed(), l.Err(), rule.Hits())
		}
		rule.Remove()
		time.Sleep(time.Second)
		synctest.Wait()
		if l.Confirmed() != 1000 {
			t.Errorf("confirmed %d", l.Confirmed())
		}
		l.Close()
	})
}

func TestCloseAnswersWaiters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, _, _ := startFlushLog(t, 8192, nil)
		appendSized(t, l, 200, 0)
		results := make(chan error, 3)
		go func() { results <- l.WaitConfirmed(t.Context(), 200) }()
		go func() { results <- l.waitFlushed(t.Context(), 300, 0) }() // never appended
		synctest.Wait()
		l.Close()
		for range 2 {
			if err := <-results; !errors.Is(err, base.ErrClosed) {
				t.Errorf("a waiter got %v", err)
			}
		}
		if err := l.waitFlushed(t.Context(), 200, 0); err != nil {
			t.Errorf("what Close flushed: %v", err)
		}
		if err := l.waitFlushed(t.Context(), 201, 0); !errors.Is(err, base.ErrClosed) {
			t.Errorf("waiting after Close: %v", err)
		}
	})
}

// TestUnflushedAfterProcessCrash: recovered records may exist in the page cache
// only, so nothing may claim that they are on stable storage.
func TestUnflushedAfterProcessCrash(t *testing.T) {
	for _, flush := range []FlushMode{FlushAsync, FlushSync} {
		t.Run(fmt.Sprint(flush), func(t *testing.T) {
			mem := memfs.NewCrashable(1)
			opts := testOptions(mem, 8192)
			opts.FlushInterval = time.Hour
			dying, _ := startLog(t, opts)
			for i := range 12 {
				appendSized(t, dying, 1000, byte(i))
			}
			// The process ends here: another one opens what is in the cache.
			opts.Flush = flush
			l, tail := startLog(t, opts)
			if tail.Records != 12 {
				t.Fatalf("tail %+v", tail)
			}
			if flush == FlushAsync {
				if l.Flushed() >= l.End() || l.FlushedStoreTime() != 0 {
					t.Errorf("claims to be flushed: %+v", l.Stats())
				}
				if err := l.Flush(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			if l.Flushed() != l.End() || l.FlushedStoreTime() != testTime {
				t.Errorf("stats %+v", l.Stats())
			}
			if after := findTail(t, mem.CrashClone(memfs.LoseUnsynced), 0); after.Records != 12 {
				t.Errorf("the machine crashes later: %+v", after)
			}
		})
	}
}

// TestF9Concurrent is for the race detector: appends, group commit, reading and
// removal at once.
func TestF9Concurrent(t *testing.T) {
	for _, mode := range writeModes {
		t.Run(mode.name, func(t *testing.T) {
			opts := testOptions(memfs.New(), 16<<10)
			opts.Flush = FlushSync
			mode.set(&opts)
			l, _ := startLog(t, opts)
			ctx, cancel := context.WithCancel(context.Background())
			var writers, readers sync.WaitGroup
			for w := range 4 {
				writers.Go(func() {
					for i := range 100 {
						p := newPut(t, message.QueueOffset(i), sized(150+i, byte(w)))
						phy, _, err := l.Append(len(p.recs), p)
						if err == nil {
							err = l.WaitFlushed(ctx, phy+message.PhysicalOffset(len(p.recs)))
						}
						if err != nil {
							t.Error(err)
							return
						}
						if v, _, err := l.ReadRecord(phy, nil, checkAll.Check); err != nil && !errors.Is(err, base.ErrNotFound) {
							t.Errorf("read %d: %v", phy, err)
						} else if err == nil && int(v.Size) != len(p.recs) {
							t.Errorf("read %d: size %d", phy, v.Size)
						}
					}
				})
			}
			scanned := int64(0)
			readers.Go(func() { // as the dispatcher does
				for pos := l.Min(); scanned < 400 && l.WaitConfirmed(ctx, pos) == nil; {
					next, err := l.Scan(ctx, pos, l.Confirmed(), checkAll, func(*message.View) error {
						scanned++
						return nil
					})
					if err != nil && ctx.Err() == nil {
						t.Errorf("scan: %v", err)
						return
					}
					pos = next
					if l.End() > 100<<10 && pos > 50<<10 {
						l.RemoveFront(1, func(f FileInfo) bool { return f.End <= pos })
					}
				}
			})
			writers.Wait()
			readers.Wait()
			cancel()
			if scanned != 400 {
				t.Errorf("scanned %d of 400 records", scanned)
			}
		})
	}
}

func TestWaitingAllocatesNothing(t *testing.T) {
	var w waitList
	done, cancel := context.WithCancel(context.Background())
	cancel()
	perWait := testing.AllocsPerRun(1000, func() {
		if err := w.wait(done, w.add(1<<40), time.Minute, ErrFlushTimeout); err != context.Canceled {
			t.Fatal(err)
		}
		first, second := w.add(100), w.add(200)
		w.reached(150)
		if err := w.wait(context.Background(), first, time.Minute, ErrFlushTimeout); err != nil {
			t.Fatal(err)
		}
		if err := w.drop(second, ErrFlushTimeout); err != ErrFlushTimeout {
			t.Fatal(err)
		}
	})
	if perWait != 0 || w.len() != 0 {
		t.Errorf("%.1f allocations per wait, %d left", perWait, w.len())
	}
}
