package mappedfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// TestA4NoSpace: a disk that fills up is an error of the append, not a memory
// fault, and nothing has moved; with space again the same append succeeds.
func TestA4NoSpace(t *testing.T) {
	const size = 32 * PageSize
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			mem := newMem() // a store outside reserved blocks panics
			mem.SetCapacity(40 * PageSize)
			set := m.set(t, size)
			q := open(t, mem, size, set, func(o *Options) { o.ReserveStep = 4 * PageSize })
			want := []byte{}
			failed := 0
			for i := 0; len(want) < 3*size; i++ {
				p := record(i, 1024) // divides the file size
				end := q.WroteOffset()
				at, err := put(q, p)
				if err != nil {
					if !errors.Is(err, base.ErrDiskFull) {
						t.Fatal(err)
					}
					if q.WroteOffset() != end {
						t.Fatalf("a failed append moved the end from %d to %d", end, q.WroteOffset())
					}
					if failed++; failed%3 == 0 { // somebody makes room
						mem.SetCapacity(mem.Used() + 3*PageSize)
					}
					if failed > 1000 {
						t.Fatal("appending fails for ever")
					}
					continue
				}
				if at != int64(len(want)) {
					t.Fatalf("append at %d, want %d", at, len(want))
				}
				want = append(want, p...)
			}
			if failed == 0 {
				t.Fatal("the disk was never full")
			}
			must(t, errOf(q.Commit(0)))
			wantBytes(t, q, 0, want)
		})
	}
}

// TestC37NoSpaceAtTheRoll: making or extending the next file fails five times.
func TestC37NoSpaceAtTheRoll(t *testing.T) {
	const size = 4 * PageSize
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpAllocate} {
		for _, m := range modes {
			t.Run(op.String()+"/"+m.name, func(t *testing.T) {
				f := faultfs.New(newMem())
				q := open(t, f, size, m.set(t, size), func(o *Options) { o.ReserveStep = PageSize })
				f.Inject(faultfs.Rule{Ops: op, Name: FileName(size), Count: 5, Err: faultfs.ErrNoSpace})
				acked := map[int64][]byte{}
				failed := 0
				for i := 0; i < 60; i++ {
					p := record(i, 500)
					end := q.WroteOffset()
					at, err := put(q, p)
					if errors.Is(err, base.ErrDiskFull) {
						failed++
						i--
						if q.WroteOffset() != end {
							t.Fatalf("a failed append moved the end from %d to %d", end, q.WroteOffset())
						}
						continue
					}
					must(t, err)
					acked[at] = p
				}
				// The allocator's worker may have met all failures itself.
				if q.sh.alloc == nil && failed == 0 {
					t.Fatal("no append failed")
				}
				must(t, errOf(q.Commit(0)))
				for at, p := range acked {
					wantBytes(t, q, at, p)
				}
			})
		}
	}
}

// TestA8PoolExhausted: files that get no buffer are written directly, and can
// be read and flushed like the others.
func TestA8PoolExhausted(t *testing.T) {
	const size = 2 * PageSize
	for _, mapped := range []bool{true, false} {
		pool := NewTransientPool(1, size)
		q := open(t, newMem(), size, func(o *Options) { o.Pool, o.Mapped = pool, mapped })
		var want []byte
		for i := range 3 {
			p := record(i, size)
			for _, half := range [][]byte{p[:size/2], p[size/2:]} {
				f, err := q.Writable(0)
				must(t, err)
				_, err = f.Append(half)
				must(t, err)
			}
			want = append(want, p...)
			if i == 1 { // nothing was committed so far: no byte of a later file is readable
				if pool.Free() != 0 || q.MaxOffset() != 0 {
					t.Errorf("free %d, readable up to %d", pool.Free(), q.MaxOffset())
				}
			}
		}
		must(t, errOf(q.Commit(0)))
		if q.MaxOffset() != 3*size {
			t.Fatalf("mapped %v: readable up to %d: %s", mapped, q.MaxOffset(), describe(q))
		}
		wantBytes(t, q, 0, want)
		if end, err := q.Flush(0); end != 3*size || err != nil {
			t.Fatalf("mapped %v: flushed %d, %v", mapped, end, err)
		}
	}
}

func TestFailWithoutBuffer(t *testing.T) {
	const size = PageSize
	pool := NewTransientPool(1, size)
	q := open(t, newMem(), size, func(o *Options) { o.Pool, o.FailWithoutBuffer = pool, true })
	must(t, errOf(put(q, record(0, size))))
	for range 2 {
		if _, err := q.Writable(0); !errors.Is(err, ErrNoBuffer) {
			t.Fatalf("got %v", err)
		}
	}
	must(t, errOf(q.Commit(0)))
	at, err := put(q, record(1, 10))
	if at != size || err != nil {
		t.Fatalf("after a commit: append at %d, %v", at, err)
	}
}

// TestPoolBuffersAreZeroed: a range that is claimed but not stored must not
// show what an earlier file had there.
func TestPoolBuffersAreZeroed(t *testing.T) {
	const size = PageSize
	pool := NewTransientPool(1, size)
	q := open(t, newMem(), size, func(o *Options) { o.Pool = pool })
	must(t, errOf(put(q, record(0, size))))
	must(t, errOf(q.Commit(0)))
	f, err := q.Writable(0)
	must(t, err)
	must(t, f.Stage(record(1, 10)))
	f.Publish(size)
	must(t, errOf(q.Commit(0)))
	wantBytes(t, q, size, append(record(1, 10), make([]byte, size-10)...))
}

// TestCommitFailureKeepsTheBytes: what could not be written stays in the
// buffer and is written by the next call.
func TestCommitFailureKeepsTheBytes(t *testing.T) {
	f := faultfs.New(newMem())
	q := open(t, f, PageSize, func(o *Options) { o.Pool = NewTransientPool(1, PageSize) })
	must(t, errOf(put(q, record(0, 1000))))
	f.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Count: 1, Err: faultfs.ErrNoSpace, Short: 300})
	if _, err := q.Commit(0); !errors.Is(err, base.ErrDiskFull) || q.MaxOffset() != 0 {
		t.Fatalf("got %v, readable up to %d", err, q.MaxOffset())
	}
	must(t, errOf(q.Commit(0)))
	wantBytes(t, q, 0, record(0, 1000))
}

// TestA9ShortWrites: a write that ends early is continued, or an error.
func TestA9ShortWrites(t *testing.T) {
	const size = 4 * PageSize
	for name, set := range map[string]func(*Options){
		"positional": func(o *Options) { o.Mapped = false },
		"transient":  func(o *Options) { o.Pool = NewTransientPool(1, size) },
	} {
		t.Run(name, func(t *testing.T) {
			f := faultfs.New(newMem())
			q := open(t, f, size, set)
			rule := f.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Short: 100})
			want := record(1, 1000)
			_, err := put(q, want)
			must(t, err)
			must(t, errOf(q.Commit(0)))
			wantBytes(t, q, 0, want)
			if rule.Hits() < 9 {
				t.Errorf("%d short writes", rule.Hits())
			}
		})
	}
}

func TestWriteFull(t *testing.T) {
	broken := errors.New("broken")
	for _, tt := range []struct {
		name  string
		steps []step
		n     int
		err   error
	}{
		{"at once", []step{{10, nil}}, 10, nil},
		{"in two", []step{{4, nil}, {6, nil}}, 10, nil},
		{"in two, said so", []step{{4, io.ErrShortWrite}, {6, nil}}, 10, nil},
		{"no progress", []step{{4, nil}, {0, nil}}, 4, io.ErrShortWrite},
		{"no progress, said so", []step{{0, io.ErrShortWrite}}, 0, io.ErrShortWrite},
		{"error at once", []step{{0, broken}}, 0, broken},
		{"error on the way", []step{{4, broken}}, 4, broken},
		{"error with all written", []step{{10, broken}}, 10, broken},
		{"claims too much", []step{{11, nil}}, 0, errAny},
		{"claims less than nothing", []step{{-1, nil}}, 0, errAny},
	} {
		w := &stepWriter{steps: tt.steps}
		n, err := writeFull(w, make([]byte, 10), 100)
		if n != tt.n || !errors.Is(err, tt.err) && (tt.err != errAny || err == nil) {
			t.Errorf("%s: %d, %v, want %d, %v", tt.name, n, err, tt.n, tt.err)
		}
	}
}

var errAny = errors.New("any error")

type step struct {
	n   int
	err error
}

// stepWriter answers each write with the next step.
type stepWriter struct {
	steps []step
}

func (w *stepWriter) WriteAt(p []byte, off int64) (int, error) {
	if len(w.steps) == 0 {
		return 0, fmt.Errorf("one write too many, at %d", off)
	}
	s := w.steps[0]
	w.steps = w.steps[1:]
	return s.n, s.err
}

// TestFailedAppendLeavesNothing: a write that fails half way must not leave
// bytes that a later, shorter append does not cover.
func TestFailedAppendLeavesNothing(t *testing.T) {
	for _, mapped := range []bool{true, false} {
		mem := newMem()
		f := faultfs.New(mem)
		q := open(t, f, 4*PageSize, func(o *Options) { o.Mapped = mapped })
		must(t, errOf(put(q, record(0, 100))))
		rule := f.Inject(faultfs.Rule{Ops: faultfs.OpWrite | faultfs.OpMapWrite, Count: 1, Short: 700, Err: faultfs.ErrIO})
		if _, err := put(q, record(1, 1000)); !errors.Is(err, faultfs.ErrIO) || rule.Hits() != 1 {
			t.Fatalf("mapped %v: got %v", mapped, err)
		}
		if q.WroteOffset() != 100 {
			t.Fatalf("mapped %v: the end moved to %d", mapped, q.WroteOffset())
		}
		if i := firstNonZero(readFile(t, mem, seg(0))[100:]); i >= 0 {
			t.Errorf("mapped %v: byte %d behind the end is not zero", mapped, i)
		}
		at, err := put(q, record(2, 50))
		if at != 100 || err != nil {
			t.Errorf("mapped %v: append at %d, %v", mapped, at, err)
		}
	}
}

// TestFailedAppendThatCannotBeUndone ends writing.
func TestFailedAppendThatCannotBeUndone(t *testing.T) {
	f := faultfs.New(newMem())
	q := open(t, f, 4*PageSize, func(o *Options) { o.Mapped = false })
	must(t, errOf(put(q, record(0, 100))))
	f.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Short: 10, Err: faultfs.ErrIO})
	if _, err := put(q, record(1, 1000)); !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
		t.Errorf("got %v", err)
	}
	f.Clear()
	if _, err := put(q, record(2, 10)); !errors.Is(err, base.ErrReadOnly) {
		t.Errorf("got %v", err)
	}
	wantBytes(t, q, 0, record(0, 100))
}

// TestA12LargeBlank: claiming more than any buffer costs nothing.
func TestA12LargeBlank(t *testing.T) {
	const size = 10 << 20
	first, second := bytes.Repeat([]byte("1"), 4<<20), bytes.Repeat([]byte("2"), 7<<20)
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			f := faultfs.New(newMem())
			q := open(t, f, size, m.set(t, size))
			must(t, errOf(put(q, first)))
			f.ResetCounts()
			at, err := put(q, second) // leaves 6 MiB blank
			if at != size || err != nil {
				t.Fatalf("append at %d, %v", at, err)
			}
			if c := f.Count(faultfs.OpWrite|faultfs.OpMapWrite, FileName(0)); c.Bytes > 8 && q.pool == nil {
				t.Errorf("the blank wrote %d bytes", c.Bytes)
			}
			must(t, errOf(q.Commit(0)))
			wantBytes(t, q, size, second)
			if i := firstNonZero(mustRead(t, q, 4<<20+8, 6<<20-8)); i >= 0 {
				t.Errorf("byte %d of the blank is not zero", i)
			}
		})
	}
}

// TestF1FailedSyncIsFinal: one failed sync, then healthy ones.
func TestF1FailedSyncIsFinal(t *testing.T) {
	const size = 4 * PageSize
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			mem := memfs.NewCrashable(1)
			f := faultfs.New(mem)
			q := open(t, f, size, m.set(t, size))
			must(t, errOf(put(q, record(0, 1000))))
			must(t, errOf(q.Commit(0)))
			must(t, errOf(q.Flush(0)))
			must(t, errOf(put(q, record(1, 1000))))
			must(t, errOf(q.Commit(0)))
			f.Inject(faultfs.Rule{Ops: faultfs.OpSync | faultfs.OpMapFlush, Name: FileName(0), Count: 1, Err: faultfs.ErrIO})
			for i := range 3 {
				end, err := q.Flush(0)
				if end != 1000 || !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
					t.Fatalf("flush %d: %d, %v", i, end, err)
				}
			}
			if q.Flushed() != 1000 || q.Err() == nil {
				t.Errorf("flushed %d, err %v", q.Flushed(), q.Err())
			}
			for name, err := range map[string]error{
				"append":   errOf(put(q, record(2, 10))),
				"prepare":  q.Prepare(1),
				"truncate": q.TruncateTo(0),
				"write":    errOf(q.Last().WriteAt([]byte{1}, 0)),
				"close":    q.Close(),
			} {
				if !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
					t.Errorf("%s: got %v", name, err)
				}
			}
			clone := mem.CrashClone(memfs.LoseUnsynced)
			if got := readFile(t, clone, seg(0))[:1000]; !bytes.Equal(got, record(0, 1000)) {
				t.Error("what was flushed earlier is lost")
			}
		})
	}
}

// TestF7NamesAreDurable: a new file survives a crash, a removed one stays gone,
// as soon as the call has returned.
func TestF7NamesAreDurable(t *testing.T) {
	const size = PageSize
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			mem := memfs.NewCrashable(5)
			q := open(t, mem, size, m.set(t, size))
			has := func(start int64) bool {
				_, err := mem.CrashClone(memfs.LoseUnsynced).Stat(seg(start))
				return err == nil
			}
			for i := range int64(4) {
				f, err := q.Writable(0)
				must(t, err)
				if !has(i * size) {
					t.Errorf("file %d was handed out before its name was durable", i)
				}
				must(t, errOf(f.Append(record(int(i), size))))
			}
			removed, err := q.RemoveFront(2, nil)
			if len(removed) != 2 || err != nil {
				t.Fatalf("removed %d, %v", len(removed), err)
			}
			if has(0) || has(size) || !has(2*size) {
				t.Error("removals are not durable, or too many")
			}
		})
	}
}

// TestC2ReaderHoldsRemovedFile: the name goes at once, the mapping with the
// last reader. TestC3: the files behind go as well.
func TestC2C3ReaderHoldsRemovedFile(t *testing.T) {
	const size = PageSize
	for _, mapped := range []bool{true, false} {
		mem := newMem()
		f := faultfs.New(mem)
		q := open(t, f, size, func(o *Options) { o.Mapped = mapped })
		for i := range 4 {
			must(t, errOf(put(q, record(i, size))))
		}
		held, gate := make(chan struct{}), make(chan struct{})
		f.Inject(faultfs.Rule{Ops: faultfs.OpRead | faultfs.OpMapRead, Name: FileName(0), Count: 1, Hook: func(faultfs.Call) {
			close(held)
			<-gate
		}})
		old := q.First()
		got := make([]byte, size)
		read := make(chan error)
		go func() {
			_, err := old.ReadAt(got, 0)
			read <- err
		}()
		<-held
		f.ResetCounts()
		removed, err := q.RemoveFront(3, nil)
		if len(removed) != 3 || err != nil {
			t.Fatalf("removed %d, %v", len(removed), err)
		}
		if list := names(t, mem, testDir); !equal(list, []string{FileName(3 * size)}) {
			t.Errorf("names %v", list)
		}
		release := faultfs.OpClose
		if mapped {
			release = faultfs.OpMapUnmap
		}
		if n := f.Count(release, FileName(0)).Calls; n != 0 {
			t.Error("closed under a reader")
		}
		if _, err := old.ReadAt(make([]byte, 1), 0); !errors.Is(err, base.ErrClosed) {
			t.Errorf("a new read of a removed file: %v", err)
		}
		if _, err := q.ReadAt(make([]byte, 1), 0); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("read of a removed offset: %v", err)
		}
		close(gate)
		if err := <-read; err != nil || !bytes.Equal(got, record(0, size)) {
			t.Errorf("the held read: %v, or other bytes", err)
		}
		if n := f.Count(release, FileName(0)).Calls; n != 1 {
			t.Errorf("mapped %v: closed %d times after the last reader", mapped, n)
		}
		must(t, old.Close())
		must(t, old.Remove())
	}
}

// TestC8MinOffset never points into a file that is being removed.
func TestC8MinOffset(t *testing.T) {
	const size = PageSize
	f := faultfs.New(newMem())
	q := open(t, f, size)
	for i := range 5 {
		must(t, errOf(put(q, record(i, size))))
	}
	calls := 0
	f.Inject(faultfs.Rule{Ops: faultfs.OpRemove, Hook: func(c faultfs.Call) {
		start, _ := ParseFileName(c.Name[len(c.Name)-nameLen:])
		if q.MinOffset() <= start {
			t.Errorf("min offset %d while removing %d", q.MinOffset(), start)
		}
		calls++
	}})
	if removed, err := q.RemoveFront(3, nil); len(removed) != 3 || err != nil || calls != 3 {
		t.Errorf("removed %d, %v, %d calls", len(removed), err, calls)
	}
}

func TestRemoveFront(t *testing.T) {
	const size = PageSize
	for _, tt := range []struct {
		name  string
		n     int
		upTo  int64 // due: End <= upTo; negative: nil
		files int
		want  int
	}{
		{"bounded by n", 2, -1, 5, 2},
		{"never the last", 10, -1, 5, 4},
		{"not the only one", 1, -1, 1, 0},
		{"none", 0, -1, 5, 0},
		{"negative", -3, -1, 5, 0},
		{"while due", 10, 3 * size, 5, 3},
		{"nothing due", 10, 0, 5, 0},
	} {
		q := open(t, newMem(), size)
		for i := range tt.files {
			must(t, errOf(put(q, record(i, size))))
		}
		var due func(*File) bool
		if tt.upTo >= 0 {
			due = func(f *File) bool { return f.End() <= tt.upTo }
		}
		removed, err := q.RemoveFront(tt.n, due)
		if len(removed) != tt.want || err != nil || len(q.Files()) != tt.files-tt.want || q.MinOffset() != int64(tt.want)*size {
			t.Errorf("%s: removed %d, %v, left %s", tt.name, len(removed), err, describe(q))
		}
	}
	// Removing what was not flushed moves Flushed: it lies in no file any more.
	q := open(t, newMem(), size)
	for i := range 2 {
		must(t, errOf(put(q, record(i, size))))
	}
	must(t, errOf(q.RemoveFront(1, nil)))
	if q.Flushed() != size {
		t.Errorf("flushed %d, want %d", q.Flushed(), size)
	}
	if end, err := q.Flush(0); end != 2*size || err != nil {
		t.Errorf("flushed %d, %v", end, err)
	}
	if removed, err := open(t, newMem(), size).RemoveFront(1, nil); len(removed) != 0 || err != nil {
		t.Errorf("without files: %v, %v", removed, err)
	}
}

// TestRemoveFrontFails: a name that cannot be removed is tried again before
// anything else goes.
func TestRemoveFrontFails(t *testing.T) {
	const size = PageSize
	for _, op := range []faultfs.Op{faultfs.OpRemove, faultfs.OpSyncDir} {
		mem := newMem()
		f := faultfs.New(mem)
		q := open(t, f, size)
		for i := range 5 {
			must(t, errOf(put(q, record(i, size))))
		}
		f.Inject(faultfs.Rule{Ops: op, Count: 2, Err: faultfs.ErrIO})
		for range 2 {
			if removed, err := q.RemoveFront(2, nil); len(removed) != 0 || !errors.Is(err, faultfs.ErrIO) {
				t.Fatalf("%v fails: removed %d, %v", op, len(removed), err)
			}
			if q.MinOffset() != size {
				t.Fatalf("%v fails: min offset %d", op, q.MinOffset())
			}
		}
		removed, err := q.RemoveFront(2, nil)
		if len(removed) != 3 || err != nil || removed[0].Start() != 0 {
			t.Errorf("%v works again: removed %d, %v", op, len(removed), err)
		}
		if got := names(t, mem, testDir); !equal(got, []string{FileName(3 * size), FileName(4 * size)}) {
			t.Errorf("%v works again: names %v", op, got)
		}
	}
	// Close tries as well.
	mem := newMem()
	f := faultfs.New(mem)
	q := open(t, f, size)
	for i := range 2 {
		must(t, errOf(put(q, record(i, size))))
	}
	f.Inject(faultfs.Rule{Ops: faultfs.OpRemove, Count: 1, Err: faultfs.ErrIO})
	if _, err := q.RemoveFront(1, nil); err == nil {
		t.Fatal("no error")
	}
	must(t, q.Close())
	if got := names(t, mem, testDir); !equal(got, []string{FileName(size)}) {
		t.Errorf("names after Close: %v", got)
	}
}

// TestF9ConcurrentUse: one writer beside readers, committer, flusher and
// deleter. Run it with -race.
func TestF9ConcurrentUse(t *testing.T) {
	const size, files = 4 * PageSize, 40
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			q := open(t, newMem(), size, m.set(t, size))
			must(t, errOf(put(q, record(0, 512))))
			stop := make(chan struct{})
			var wg sync.WaitGroup
			loop := func(fn func() error) {
				wg.Go(func() {
					for {
						select {
						case <-stop:
							return
						default:
						}
						if err := fn(); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			for range 2 {
				buf := make([]byte, 512)
				loop(func() error { // reads whole records at both ends
					lo, hi := q.MinOffset(), q.MaxOffset()
					for _, off := range []int64{lo, hi - 512} {
						if off < lo || off+512 > hi {
							continue
						}
						n, err := q.ReadAt(buf, off)
						if errors.Is(err, base.ErrNotFound) && q.MinOffset() > off {
							continue // removed meanwhile
						}
						if err != nil || !bytes.Equal(buf[:n], record(int(off/512), 512)) {
							return fmt.Errorf("read at %d: %d bytes, %w, or other content", off, n, err)
						}
					}
					return nil
				})
			}
			last := int64(0)
			loop(func() error {
				if _, err := q.Commit(1); err != nil {
					return err
				}
				end, err := q.Flush(1)
				if err == nil && end < last {
					err = fmt.Errorf("flushed fell from %d to %d", last, end)
				}
				last = end
				return err
			})
			loop(func() error {
				_, err := q.RemoveFront(2, func(f *File) bool { return f.End() < q.Flushed() })
				return err
			})
			for i := 1; i < files*size/512; i++ {
				if _, err := put(q, record(i, 512)); err != nil {
					t.Error(err)
					break
				}
			}
			close(stop)
			wg.Wait()
			must(t, q.Close())
		})
	}
}
