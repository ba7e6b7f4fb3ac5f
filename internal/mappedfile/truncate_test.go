package mappedfile

import (
	"bytes"
	"errors"
	"io/fs"
	"slices"
	"testing"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// TestL3TailZeroed: what lies behind a truncation does not come back.
func TestL3TailZeroed(t *testing.T) {
	const size = 8 * PageSize
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			mem := memfs.NewCrashable(1)
			mem.RequireAllocated(true)
			set := m.set(t, size)
			q := open(t, mem, size, set)
			for i := range 7 { // two full files and a part of the third
				must(t, errOf(put(q, record(i, 3*PageSize))))
			}
			must(t, errOf(q.Commit(0)))
			must(t, errOf(q.Flush(0)))
			const cut = size + 1000
			must(t, q.TruncateTo(cut))
			if q.WroteOffset() != cut || q.MaxOffset() != cut || q.Flushed() != cut || len(q.Files()) != 2 {
				t.Fatalf("after truncation: %s", describe(q))
			}
			// Durable at once, before anything else is written.
			for _, policy := range memfs.Policies() {
				clone := mem.CrashClone(policy)
				if got := names(t, clone, testDir); !equal(got[:2], []string{FileName(0), FileName(size)}) {
					t.Fatalf("%v: files %v", policy, got)
				}
				if got := readFile(t, clone, seg(size)); len(got) != size || firstNonZero(got[1000:]) >= 0 || firstNonZero(got[:1000]) != 0 {
					t.Fatalf("%v: %d bytes, tail not zero", policy, len(got))
				}
			}
			at, err := put(q, record(50, 100))
			if at != cut || err != nil {
				t.Fatalf("append at %d, %v", at, err)
			}
			must(t, errOf(q.Commit(0)))
			wantBytes(t, q, cut, record(50, 100))
			must(t, q.Close())
			if got := readFile(t, mem, seg(size)); firstNonZero(got[1100:]) >= 0 {
				t.Fatal("old bytes behind the new end")
			}
		})
	}
}

// TestTruncateZeroTailChangesNothing: the call at every clean start.
func TestTruncateZeroTailChangesNothing(t *testing.T) {
	const size = 8 * PageSize
	mem := newMem()
	q := open(t, mem, size)
	must(t, errOf(put(q, record(1, 3*PageSize+5))))
	must(t, q.Close())
	q = open(t, readOnly(t, mem), size)
	must(t, q.TruncateTo(3*PageSize+5))
	must(t, q.Close())
}

func TestTruncatePlaces(t *testing.T) {
	const size = PageSize
	for _, tt := range []struct {
		name   string
		off    int64
		starts []int64
		wrote  int64
		bad    bool
	}{
		{name: "end", off: 5 * size, starts: []int64{size, 2 * size, 4 * size}, wrote: 5 * size},
		{name: "inside the last", off: 4*size + 7, starts: []int64{size, 2 * size, 4 * size}, wrote: 4*size + 7},
		{name: "start of the last", off: 4 * size, starts: []int64{size, 2 * size}, wrote: 3 * size},
		{name: "in the gap", off: 3*size + 9, starts: []int64{size, 2 * size}, wrote: 3 * size},
		{name: "file end", off: 2 * size, starts: []int64{size}, wrote: 2 * size},
		{name: "start of the first", off: size, starts: []int64{size}, wrote: size},
		{name: "in front of the first", off: size - 1, wrote: 0},
		{name: "behind the end", off: 5*size + 1, bad: true},
		{name: "negative", off: -1, bad: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem := newMem()
			for _, s := range []int64{size, 2 * size, 4 * size} {
				writeFile(t, mem, seg(s), record(int(s), size), size)
			}
			q := open(t, mem, size)
			err := q.TruncateTo(tt.off)
			if tt.bad {
				if err == nil || len(q.Files()) != 3 {
					t.Fatalf("got %v, files %s", err, describe(q))
				}
				return
			}
			must(t, err)
			var starts []int64
			var want []string
			for _, f := range q.Files() {
				starts = append(starts, f.Start())
				want = append(want, FileName(f.Start()))
			}
			if !slices.Equal(starts, tt.starts) || q.WroteOffset() != tt.wrote {
				t.Errorf("files %v, end %d, want %v, %d", starts, q.WroteOffset(), tt.starts, tt.wrote)
			}
			if got := names(t, mem, testDir); !slices.Equal(got, want) {
				t.Errorf("names %v, want %v", got, want)
			}
			at, err := put(q, record(9, 10))
			if wantAt := tt.wrote; at != wantAt || err != nil {
				t.Errorf("append at %d, %v, want %d", at, err, wantAt)
			}
		})
	}
}

// TestL4StaleNameNotReused: a file that should be gone, but is not, is never
// taken over with its content.
func TestL4StaleNameNotReused(t *testing.T) {
	const size = PageSize
	mem := newMem()
	h := faultfs.New(mem)
	q := open(t, h, size)
	for i := range 3 {
		must(t, errOf(put(q, record(i, size))))
	}
	h.Fail(faultfs.OpRemove, "", faultfs.ErrIO)
	if err := q.TruncateTo(size / 2); !errors.Is(err, faultfs.ErrIO) {
		t.Fatalf("unlink fails: got %v", err)
	}
	if len(q.Files()) != 3 || q.WroteOffset() != 3*size {
		t.Fatalf("a failed truncation left %s", describe(q))
	}
	h.Clear()
	must(t, q.TruncateTo(size/2)) // again
	must(t, errOf(put(q, record(7, size/2))))

	// A name that appears from elsewhere.
	writeFile(t, mem, seg(size), record(9, size), size)
	if _, err := q.Writable(0); !errors.Is(err, fs.ErrExist) {
		t.Fatalf("a stale file in the way: got %v, want ErrExist", err)
	}
	must(t, mem.Remove(seg(size)))
	at, err := put(q, record(8, 10))
	if at != size || err != nil {
		t.Fatalf("append at %d, %v", at, err)
	}
	if got := readFile(t, mem, seg(size)); firstNonZero(got[10:]) >= 0 {
		t.Error("the new file is not zero behind what was written")
	}
}

// TestZeroLeftoverIsReplaced: a file made ahead whose removal failed.
func TestZeroLeftoverIsReplaced(t *testing.T) {
	const size = PageSize
	mem := newMem()
	f := faultfs.New(mem)
	q := open(t, f, size)
	must(t, errOf(put(q, record(1, 100))))
	must(t, q.Prepare(10))
	f.Inject(faultfs.Rule{Ops: faultfs.OpRemove, Count: 1, Err: faultfs.ErrIO})
	if err := q.TruncateTo(50); !errors.Is(err, faultfs.ErrIO) {
		t.Fatalf("got %v", err)
	}
	must(t, q.TruncateTo(50))
	writeFile(t, mem, seg(size), nil, size)
	must(t, errOf(put(q, record(2, size))))
	wantBytes(t, q, size, record(2, size))
}

// TestTruncateFailsInTheMiddle: once the file was touched a failure is final.
func TestTruncateFailsInTheMiddle(t *testing.T) {
	const size = 4 * PageSize
	for _, op := range []faultfs.Op{faultfs.OpWrite, faultfs.OpSync} {
		h := faultfs.New(newMem())
		q := open(t, h, size)
		must(t, errOf(put(q, record(1, 2*PageSize))))
		broken := faultfs.ErrIO
		h.Fail(op, "", broken)
		err := q.TruncateTo(100)
		if !errors.Is(err, broken) || !errors.Is(err, base.ErrReadOnly) {
			t.Errorf("%s fails: got %v", op, err)
		}
		h.Clear()
		if _, err := put(q, record(1, 10)); !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, broken) {
			t.Errorf("%s failed earlier, append: got %v", op, err)
		}
		if err := q.TruncateTo(100); !errors.Is(err, base.ErrReadOnly) {
			t.Errorf("%s failed earlier, truncation: got %v", op, err)
		}
	}
}

// TestTruncateKeepsLength: whenever a crash comes into a truncation, the file
// has the length that Java expects, the bytes in front of the new end, and
// behind it each byte as it was or zero.
func TestTruncateKeepsLength(t *testing.T) {
	const size, end = 4 * PageSize, 100
	content := record(1, 3*PageSize)
	for k := 0; ; k++ {
		mem := memfs.NewCrashable(int64(k))
		writeFile(t, mem, seg(0), content, size)
		h := faultfs.CrashAt(mem, k)
		err := open(t, h, size).TruncateTo(end)
		for _, policy := range memfs.Policies() {
			got := readFile(t, mem.CrashClone(policy), seg(0))
			if len(got) != size {
				t.Fatalf("crash at %d, %v: the file has %d bytes", k, policy, len(got))
			}
			for i, b := range got {
				want := byte(0)
				if i < len(content) {
					want = content[i]
				}
				if b != want && (i < end || b != 0) || err == nil && i >= end && b != 0 {
					t.Fatalf("crash at %d, %v: byte %d is %d, was %d", k, policy, i, b, want)
				}
			}
		}
		if !h.Crashed() {
			if k < 4 {
				t.Errorf("only %d changes", k)
			}
			return
		}
	}
}

// TestAdoptsZeroFileLeftByACrash: the file made ahead is used, not made again.
func TestAdoptsZeroFileLeftByACrash(t *testing.T) {
	const size = 2 * PageSize
	for _, tt := range []struct {
		name  string
		dirty bool // the last file has bytes behind its end
		later []byte
		adopt bool
	}{
		{"zero", false, nil, true},
		{"not zero", false, []byte{0, 0, 1}, false},
		{"zero, but the tail must be cut", true, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem := newMem()
			content := record(1, 100)
			if tt.dirty {
				content = record(1, 300)
			}
			writeFile(t, mem, seg(0), content, size)
			writeFile(t, mem, seg(size), tt.later, size)
			writeFile(t, mem, seg(2*size), nil, size)
			h := faultfs.New(mem)
			q := open(t, h, size)
			must(t, q.TruncateTo(100))
			wantNames := []string{FileName(0)}
			if tt.adopt {
				wantNames = append(wantNames, FileName(size))
			}
			if got := names(t, mem, testDir); !equal(got, wantNames) || len(q.Files()) != 1 {
				t.Fatalf("names %v, want %v; files %s", got, wantNames, describe(q))
			}
			must(t, errOf(put(q, record(2, size))))
			if n := h.Count(faultfs.OpCreate, FileName(size)).Calls; (n == 0) != tt.adopt {
				t.Errorf("created %d times", n)
			}
			wantBytes(t, q, size, record(2, size))
			must(t, q.Close())
		})
	}
}

func TestUnusedAdoptedFileGoesAtClose(t *testing.T) {
	mem := newMem()
	writeFile(t, mem, seg(0), record(1, 100), PageSize)
	writeFile(t, mem, seg(PageSize), nil, PageSize)
	q := open(t, mem, PageSize)
	must(t, q.TruncateTo(100))
	must(t, q.Close())
	if got := names(t, mem, testDir); !equal(got, []string{FileName(0)}) {
		t.Errorf("names %v", got)
	}
}

// TestMarkUnflushed: after a crash of the process alone the bytes found may
// be in memory only; a power cut later must not take what was flushed since.
func TestMarkUnflushed(t *testing.T) {
	const size = 2 * PageSize
	for _, mapped := range []bool{true, false} {
		mem := memfs.NewCrashable(3)
		set := func(o *Options) { o.Mapped = mapped }
		q := open(t, mem, size, set)
		for i := range 3 {
			must(t, errOf(put(q, record(i, size-10))))
		}

		q = open(t, mem, size, set)
		must(t, q.TruncateTo(2*size+size-10))
		q.MarkUnflushed(size + 5)
		if q.Flushed() != size+5 {
			t.Fatalf("flushed %d", q.Flushed())
		}
		end, err := q.Flush(0)
		if end != 3*size-10 || err != nil {
			t.Fatalf("flushed %d, %v", end, err)
		}
		clone := mem.CrashClone(memfs.LoseUnsynced)
		for i := range 3 {
			if got := readFile(t, clone, seg(int64(i)*size)); !bytes.Equal(got[:size-10], record(i, size-10)) {
				t.Errorf("mapped %v: file %d lost its content", mapped, i)
			}
		}
	}
}

// TestZeroFileBehindAGapIsNotAdopted: it is not the next one.
func TestZeroFileBehindAGapIsNotAdopted(t *testing.T) {
	const size = PageSize
	mem := newMem()
	writeFile(t, mem, seg(0), record(1, 100), size)
	writeFile(t, mem, seg(3*size), nil, size)
	q := open(t, mem, size)
	must(t, q.TruncateTo(100))
	if got := names(t, mem, testDir); !equal(got, []string{FileName(0)}) {
		t.Errorf("names %v", got)
	}
	at, err := put(q, record(2, size))
	if at != size || err != nil {
		t.Errorf("append at %d, %v", at, err)
	}
}

// TestTruncateForgetsTheBuffer: bytes cut away in a transient buffer must not
// show up in a range that is claimed later.
func TestTruncateForgetsTheBuffer(t *testing.T) {
	const size = PageSize
	q := open(t, newMem(), size, func(o *Options) { o.Pool = NewTransientPool(1, size) })
	must(t, errOf(put(q, record(1, 1000))))
	must(t, errOf(q.Commit(0)))
	must(t, errOf(put(q, record(2, 1000))))
	for _, to := range []int64{1500, 500} { // in the buffer only, in the file too
		must(t, q.TruncateTo(to))
		if q.WroteOffset() != to || q.MaxOffset() > to {
			t.Fatalf("truncated to %d: %s", to, describe(q))
		}
	}
	f := q.Last()
	must(t, f.Stage(record(3, 10)))
	f.Publish(size - 500)
	must(t, errOf(q.Commit(0)))
	want := append(record(1, 1000)[:500], record(3, 10)...)
	wantBytes(t, q, 0, append(want, make([]byte, size-510)...))
}
