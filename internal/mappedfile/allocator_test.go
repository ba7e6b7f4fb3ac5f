package mappedfile

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
)

func TestAllocatorWorksAhead(t *testing.T) {
	const size = 4 * PageSize
	synctest.Test(t, func(t *testing.T) {
		mem := newMem()
		a := newAlloc(t, AllocatorOptions{})
		q := open(t, mem, size, func(o *Options) { o.Alloc = a })
		_, err := q.Writable(0)
		must(t, err)
		synctest.Wait()
		if got := names(t, mem, testDir); !equal(got, []string{FileName(0), FileName(size)}) || len(q.Files()) != 1 {
			t.Fatalf("after the first file: %v", got)
		}
		must(t, errOf(put(q, record(1, size))))
		must(t, q.Prepare(10))
		synctest.Wait()
		want := []string{FileName(0), FileName(size), FileName(2 * size)}
		if got := names(t, mem, testDir); !equal(got, want) || len(q.Files()) != 1 {
			t.Fatalf("after Prepare: %v", got)
		}
		must(t, errOf(put(q, record(2, 10))))
		if len(q.Files()) != 2 {
			t.Fatalf("files %s", describe(q))
		}
		// A clean stop takes back what nobody used.
		must(t, q.Close())
		if got := names(t, mem, testDir); !equal(got, want[:2]) {
			t.Errorf("after Close: %v", got)
		}
	})
}

// TestAllocatorIsShared: each queue gets and gives back its own files.
func TestAllocatorIsShared(t *testing.T) {
	const size = PageSize
	synctest.Test(t, func(t *testing.T) {
		mem := newMem()
		a := newAlloc(t, AllocatorOptions{})
		var queues []*Queue
		for _, dir := range []string{"/x", "/y"} {
			q := open(t, mem, size, func(o *Options) { o.Alloc, o.Dirs = a, []string{dir} })
			must(t, errOf(put(q, record(1, size))))
			queues = append(queues, q)
		}
		synctest.Wait()
		must(t, queues[0].Close())
		for dir, want := range map[string][]string{"/x": {FileName(0)}, "/y": {FileName(0), FileName(size)}} {
			if got := names(t, mem, dir); !equal(got, want) {
				t.Errorf("%s: %v, want %v", dir, got, want)
			}
		}
		// Closed in the other order, the allocator cleans up as well.
		must(t, a.Close())
		if got := names(t, mem, "/y"); !equal(got, []string{FileName(0)}) {
			t.Errorf("after closing the allocator: %v", got)
		}
		if _, err := put(queues[1], record(2, size)); !errors.Is(err, base.ErrClosed) {
			t.Errorf("append that needs a closed allocator: %v", err)
		}
		must(t, a.Close())
	})
}

func TestAllocatorWaitIsBounded(t *testing.T) {
	const size = PageSize
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(newMem())
		gate := make(chan struct{})
		f.Inject(faultfs.Rule{Ops: faultfs.OpCreate, Name: FileName(size), Hook: func(faultfs.Call) { <-gate }})
		a := newAlloc(t, AllocatorOptions{})
		q := open(t, f, size, func(o *Options) { o.Alloc = a })
		must(t, errOf(put(q, record(1, size))))
		for range 2 {
			begin := time.Now()
			_, err := put(q, record(2, 10))
			if waited := time.Since(begin); !errors.Is(err, ErrCreateTimeout) || waited != 5*time.Second {
				t.Fatalf("after %v: %v, want a timeout after 5 s", waited, err)
			}
		}
		close(gate)
		at, err := put(q, record(2, 10))
		if at != size || err != nil {
			t.Fatalf("append at %d, %v", at, err)
		}
		if n := f.Count(faultfs.OpCreate, FileName(size)).Calls; n != 1 {
			t.Errorf("created %d times, want once", n)
		}
	})
}

// TestAllocatorCloseWhileCreating: whatever is being made is finished and
// taken back.
func TestAllocatorCloseWhileCreating(t *testing.T) {
	const size = PageSize
	synctest.Test(t, func(t *testing.T) {
		mem := newMem()
		f := faultfs.New(mem)
		gate := make(chan struct{})
		f.Inject(faultfs.Rule{Ops: faultfs.OpSync, Name: FileName(size), Hook: func(faultfs.Call) { <-gate }})
		a := newAlloc(t, AllocatorOptions{})
		q := open(t, f, size, func(o *Options) { o.Alloc = a })
		must(t, errOf(put(q, record(1, 10))))
		synctest.Wait()
		closed := make(chan error)
		go func() { closed <- q.Close() }()
		synctest.Wait()
		close(gate)
		must(t, <-closed)
		if got := names(t, mem, testDir); !equal(got, []string{FileName(0)}) {
			t.Errorf("left behind: %v", got)
		}
	})
}

// TestA10WorkerSurvivesPanic: a panic in one creation is an error of that one.
func TestA10WorkerSurvivesPanic(t *testing.T) {
	const size = PageSize
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpAllocate, faultfs.OpMap, faultfs.OpSync, faultfs.OpSyncDir, faultfs.OpMapPopulate} {
		t.Run(op.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := faultfs.New(newMem())
				a := newAlloc(t, AllocatorOptions{})
				q := open(t, f, size, func(o *Options) { o.Alloc = a })
				must(t, errOf(put(q, record(0, 10))))
				synctest.Wait()
				must(t, q.discardNext()) // so that the writer itself waits for the next creation
				rule := f.Inject(faultfs.Rule{Ops: op, Count: 1, Hook: func(faultfs.Call) { panic("boom") }})
				err := q.Prepare(10)
				synctest.Wait()
				if op != faultfs.OpMapPopulate && (err == nil || !strings.Contains(err.Error(), "boom")) {
					t.Fatalf("creation panics: got %v", err)
				}
				if rule.Hits() != 1 {
					t.Fatalf("the rule was hit %d times", rule.Hits())
				}
				must(t, errOf(put(q, record(1, size))))
				must(t, errOf(put(q, record(2, size))))
				wantBytes(t, q, size, append(record(1, size), record(2, size)...))
			})
		})
	}
}

// TestFailedCreationIsRetried: the error reaches the writer who waits, leaves
// nothing behind, and the next request tries again.
func TestFailedCreationIsRetried(t *testing.T) {
	const size = 2 * PageSize
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpAllocate, faultfs.OpSync, faultfs.OpSyncDir} {
		for _, inline := range []bool{true, false} {
			synctest.Test(t, func(t *testing.T) {
				mem := newMem()
				f := faultfs.New(mem)
				q := open(t, f, size, func(o *Options) {
					if !inline {
						o.Alloc = newAlloc(t, AllocatorOptions{})
					}
				})
				must(t, errOf(put(q, record(0, size))))
				must(t, q.discardNext())
				f.Fail(op, "", faultfs.ErrIO)
				for range 3 {
					if _, err := put(q, record(1, 10)); !errors.Is(err, faultfs.ErrIO) {
						t.Fatalf("%v, inline %v: got %v", op, inline, err)
					}
				}
				synctest.Wait()
				if got := names(t, mem, testDir); !equal(got, []string{FileName(0)}) {
					t.Errorf("%v, inline %v: left behind %v", op, inline, got)
				}
				f.Clear()
				at, err := put(q, record(1, 10))
				if at != size || err != nil {
					t.Errorf("%v, inline %v: append at %d, %v", op, inline, at, err)
				}
			})
		}
	}
}

// TestMappingFailureIsNotFatal: an address space that is used up makes the
// queue slower, not broken.
func TestMappingFailureIsNotFatal(t *testing.T) {
	const size = PageSize
	f := faultfs.New(newMem())
	f.Fail(faultfs.OpMap, "", faultfs.ErrIO)
	q := open(t, f, size)
	for i := range 3 {
		must(t, errOf(put(q, record(i, size))))
		must(t, errOf(q.Flush(0)))
		wantBytes(t, q, int64(i)*size, record(i, size))
	}
}

func TestReservesAheadOfTheWriter(t *testing.T) {
	const step, distance, chunk = 8 * PageSize, 4 * PageSize, 2 * PageSize
	synctest.Test(t, func(t *testing.T) {
		f := faultfs.New(newMem())
		a := newAlloc(t, AllocatorOptions{PopulateDistance: distance, PopulateChunk: chunk})
		q := open(t, f, 64*PageSize, func(o *Options) { o.Alloc, o.ReserveStep = a, step })
		file, err := q.Writable(0)
		must(t, err)
		for range 50 {
			synctest.Wait()
			wrote := file.Wrote()
			if got := file.Allocated(); got < min(wrote+step-chunk, file.Size()) {
				t.Fatalf("wrote %d, reserved only %d", wrote, got)
			}
			if got := file.populated.Load(); got < min(wrote+distance-chunk, file.Size()) {
				t.Fatalf("wrote %d, present only %d", wrote, got)
			}
			if _, err := file.Append(record(1, PageSize)); err != nil {
				t.Fatal(err)
			}
		}
		if c := f.Count(faultfs.OpMapPopulate, FileName(0)); c.Calls < 50/2 {
			t.Errorf("populated %d times", c.Calls)
		}
	})
}

// TestEmptyStoreIsCheap: files have their full length, but not their blocks.
func TestEmptyStoreIsCheap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := newMem()
		a := newAlloc(t, AllocatorOptions{})
		q := open(t, mem, 1<<30, func(o *Options) { o.Alloc = a })
		must(t, errOf(put(q, record(1, 1000))))
		synctest.Wait()
		if got := mem.Used(); got > 64<<20 {
			t.Errorf("two files, one record: %d bytes reserved", got)
		}
		for _, name := range []string{seg(0), seg(1 << 30)} {
			if e, err := mem.Stat(name); err != nil || e.Size != 1<<30 {
				t.Errorf("%s: %d bytes, %v", name, e.Size, err)
			}
		}
	})
}

func TestWarmUpAndLock(t *testing.T) {
	const pages = 32
	const size = pages * PageSize
	for _, withAlloc := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			mem := newMem()
			f := faultfs.New(mem)
			var advice []vfs.Advice
			f.Inject(faultfs.Rule{Ops: faultfs.OpMapAdvise, Name: FileName(0), Hook: func(c faultfs.Call) {
				advice = append(advice, vfs.WillNeed)
			}})
			q := open(t, f, size, func(o *Options) {
				o.Warm, o.WarmSyncPages, o.LockMemory, o.ReserveStep = true, 8, true, PageSize
				if withAlloc {
					o.Alloc = newAlloc(t, AllocatorOptions{})
				}
			})
			file, err := q.Writable(0)
			must(t, err)
			synctest.Wait()
			count := func(op faultfs.Op) int64 { return f.Count(op, FileName(0)).Calls }
			if file.Allocated() != size || mem.Used() < size {
				t.Errorf("reserved %d", file.Allocated())
			}
			if n := count(faultfs.OpMapWrite); n != pages {
				t.Errorf("touched %d pages, want %d", n, pages)
			}
			if n := count(faultfs.OpMapFlush); n != pages/8 {
				t.Errorf("synced %d times, want %d", n, pages/8)
			}
			if n := count(faultfs.OpMapLockMemory); n != 1 || len(advice) != 1 {
				t.Errorf("locked %d times, advised %d times", n, len(advice))
			}
			_, err = file.Append(record(1, size-1))
			must(t, err)
			must(t, errOf(q.Flush(0)))
			if n := count(faultfs.OpMapUnlockMemory); n != 0 {
				t.Error("unlocked before the file was full")
			}
			_, err = file.Append(record(1, 1))
			must(t, err)
			must(t, errOf(q.Flush(0)))
			if n := count(faultfs.OpMapUnlockMemory); n != 1 {
				t.Errorf("unlocked %d times when full and flushed", n)
			}
		})
	}
}

// TestLockingIsAWish: a system that lets us lock nothing stops nothing.
func TestLockingIsAWish(t *testing.T) {
	f := faultfs.New(newMem())
	f.Fail(faultfs.OpMapLockMemory|faultfs.OpMapAdvise|faultfs.OpMapPopulate, "", faultfs.ErrIO)
	q := open(t, f, PageSize, func(o *Options) {
		o.LockMemory, o.RandomAccess, o.Alloc = true, true, newAlloc(t, AllocatorOptions{})
	})
	for i := range 3 {
		must(t, errOf(put(q, record(i, PageSize))))
		must(t, errOf(q.Flush(0)))
	}
	if n := f.Count(faultfs.OpMapUnlockMemory, "").Calls; n != 0 {
		t.Errorf("unlocked %d times what was not locked", n)
	}
}

func TestRandomAccessIsAdvised(t *testing.T) {
	f := faultfs.New(newMem())
	q := open(t, f, PageSize, func(o *Options) { o.RandomAccess = true })
	must(t, errOf(put(q, record(1, 100))))
	must(t, q.Close())
	if n := f.Count(faultfs.OpMapAdvise, FileName(0)).Calls; n != 1 {
		t.Errorf("new file: advised %d times", n)
	}
	q = open(t, f, PageSize, func(o *Options) { o.RandomAccess = true })
	mustRead(t, q, 0, 10)
	if n := f.Count(faultfs.OpMapAdvise, FileName(0)).Calls; n != 2 {
		t.Errorf("loaded file: advised %d times", n)
	}
}
