package mappedfile

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

func TestAppendReadReopen(t *testing.T) {
	const size = 16 << 10
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			for fsName, fsys := range map[string]vfs.FS{"memfs": newMem(), "os": vfs.OS()} {
				dir := testDir
				if fsName == "os" {
					dir = t.TempDir()
				}
				inDir := func(o *Options) { o.Dirs = []string{dir} }
				q := open(t, fsys, size, m.set(t, size), inDir)
				want := map[int64][]byte{}
				end := int64(0)
				for i := range 40 {
					p := record(i, 700+i*37)
					at, err := put(q, p)
					must(t, err)
					if at < end {
						t.Fatalf("%s: append %d at %d, in front of the end %d", fsName, i, at, end)
					}
					want[at], end = p, at+int64(len(p))
				}
				if got := q.WroteOffset(); got != end {
					t.Fatalf("%s: wrote up to %d, want %d", fsName, got, end)
				}
				if _, err := q.Commit(0); err != nil {
					t.Fatal(err)
				}
				if got := q.MaxOffset(); got != end {
					t.Fatalf("%s: readable up to %d, want %d: %s", fsName, got, end, describe(q))
				}
				for at, p := range want {
					wantBytes(t, q, at, p)
				}
				all := mustRead(t, q, 0, int(end))
				flushed, err := q.Flush(0)
				must(t, err)
				if flushed != end || q.Flushed() != end {
					t.Fatalf("%s: flushed up to %d, want %d", fsName, flushed, end)
				}
				must(t, q.Close())

				q = open(t, fsys, 0, m.set(t, size), inDir)
				if q.FileSize() != size {
					t.Fatalf("%s: file size %d, want %d", fsName, q.FileSize(), size)
				}
				must(t, q.TruncateTo(end))
				if got := mustRead(t, q, 0, int(end)); !bytes.Equal(got, all) {
					t.Fatalf("%s: other content after reopening", fsName)
				}
				at, err := put(q, record(99, 100))
				must(t, err)
				if at != end {
					t.Fatalf("%s: append after reopening at %d, want %d", fsName, at, end)
				}
				must(t, q.Close())
			}
		})
	}
}

func TestFilePositions(t *testing.T) {
	q := open(t, newMem(), 3*PageSize)
	f, err := q.Writable(0)
	must(t, err)
	if at, err := f.Append(record(1, 100)); at != 0 || err != nil {
		t.Fatalf("append: at %d, %v", at, err)
	}
	if err := f.Stage(record(2, 50)); err != nil {
		t.Fatal(err)
	}
	if n, err := f.ReadAt(make([]byte, 101), 0); n != 100 || err != io.EOF {
		t.Fatalf("staged bytes must not be readable: read %d, %v", n, err)
	}
	f.Publish(60) // ten more than staged
	want := append(record(2, 50), make([]byte, 10)...)
	got := make([]byte, 60)
	if _, err := f.ReadAt(got, 100); err != nil || !bytes.Equal(got, want) {
		t.Fatalf("got %x, %v, want %x", got, err, want)
	}
	if n, err := f.ReadAt(got, 500); n != 0 || err != io.EOF {
		t.Fatalf("read behind the end: %d, %v", n, err)
	}
	if _, err := f.ReadAt(got, -1); err == nil || err == io.EOF {
		t.Fatalf("read at a negative offset: %v", err)
	}
	if _, err := f.Append(make([]byte, 3*PageSize)); !errors.Is(err, ErrFull) {
		t.Fatalf("append more than fits: %v, want ErrFull", err)
	}
	if f.Wrote() != 160 || f.Readable() != 160 || f.Committed() != 160 || f.Full() {
		t.Fatalf("positions %s", describe(q))
	}
	if _, err := f.Append(make([]byte, 3*PageSize-160)); err != nil || !f.Full() {
		t.Fatalf("append the rest: %v, full %v", err, f.Full())
	}
}

// TestFlushByLeastPages: rule of store-behaviour 3.1.
func TestFlushByLeastPages(t *testing.T) {
	const size = 8 * PageSize
	for _, tt := range []struct {
		name   string
		before int64 // flushed already
		end    int64
		least  int
		want   int64
	}{
		{"nothing new", 100, 100, 0, 100},
		{"one byte, 0 pages", 100, 101, 0, 101},
		{"one byte, 1 page", 100, 101, 1, 100},
		{"one page begun", 100, PageSize, 1, PageSize},
		{"just before the page", 100, PageSize - 1, 1, 100},
		{"pages count from page starts", PageSize - 1, 4 * PageSize, 4, 4 * PageSize},
		{"three of four pages", 0, 4*PageSize - 1, 4, 0},
		{"full file", size - 1, size, 4, size},
		{"negative forces", 5, 6, -1, 6},
	} {
		for _, mapped := range []bool{true, false} {
			q := open(t, newMem(), size, func(o *Options) { o.Mapped = mapped })
			f, err := q.Writable(0)
			must(t, err)
			_, err = f.Append(record(1, int(tt.before)))
			must(t, err)
			_, err = q.Flush(0)
			must(t, err)
			_, err = f.Append(record(2, int(tt.end-tt.before)))
			must(t, err)
			got, err := q.Flush(tt.least)
			if got != tt.want || err != nil || f.Flushed() != tt.want {
				t.Errorf("%s, mapped %v: flushed %d (file %d), %v, want %d", tt.name, mapped, got, f.Flushed(), err, tt.want)
			}
		}
	}
}

// TestF8FlushReachesAcrossFiles: one call flushes any number of files.
func TestF8FlushReachesAcrossFiles(t *testing.T) {
	const size = 2 * PageSize
	h := faultfs.New(newMem())
	q := open(t, h, size)
	for i := range 15 {
		f, err := q.Writable(0)
		must(t, err)
		_, err = f.Append(record(i, size))
		must(t, err)
	}
	// The queue keeps all but two flushed itself; look at the rest as a
	// process after a crash does.
	q.MarkUnflushed(0)
	if q.Flushed() != 0 {
		t.Fatalf("flushed %d, want 0", q.Flushed())
	}
	h.ResetCounts()
	if got, err := q.Flush(4); got != 15*size || err != nil {
		t.Fatalf("flushed %d, %v, want %d", got, err, 15*size)
	}
	for i := range int64(15) {
		if n := h.Count(faultfs.OpSync|faultfs.OpMapFlush, FileName(i*size)).Calls; n != 1 {
			t.Errorf("file %d was synced %d times, want once", i, n)
		}
	}
}

// TestFinishedFilesNeedNoDescriptor: a log of thousands of files has a mapping
// for each that is read, but not a descriptor.
func TestFinishedFilesNeedNoDescriptor(t *testing.T) {
	const size, n = PageSize, 20
	h := faultfs.New(newMem())
	openFiles := func() int64 {
		made := h.Count(faultfs.OpCreate|faultfs.OpOpen, "")
		return made.Calls - made.Errors - h.Count(faultfs.OpClose, "").Calls
	}
	q := open(t, h, size)
	for i := range n {
		must(t, errOf(put(q, record(i, size))))
	}
	must(t, errOf(q.Flush(0)))
	if got := openFiles(); got != 0 {
		t.Errorf("%d descriptors after everything is written and flushed", got)
	}
	for range 2 {
		for i := range n {
			wantBytes(t, q, int64(i)*size, record(i, size))
		}
	}
	if got, maps := openFiles(), h.Count(faultfs.OpMap, "").Calls; got != 0 || maps != 2*n {
		t.Errorf("%d descriptors, %d mappings made, want 0 and %d", got, maps, 2*n)
	}
	must(t, q.Close())
	if made, gone := h.Count(faultfs.OpMap, "").Calls, h.Count(faultfs.OpMapUnmap, "").Calls; made != gone {
		t.Errorf("%d of %d mappings unmapped", gone, made)
	}
}

// TestAtMostTwoUnflushedFiles: file N+2 is not begun before file N is flushed.
func TestAtMostTwoUnflushedFiles(t *testing.T) {
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			const size = 2 * PageSize
			q := open(t, newMem(), size, m.set(t, size))
			for i := range 6 {
				f, err := q.Writable(0)
				must(t, err)
				_, err = f.Append(record(i, size))
				must(t, err)
				unflushed := 0
				for _, f := range q.Files() {
					if f.Flushed() < f.Size() {
						unflushed++
					}
				}
				if unflushed > 2 {
					t.Fatalf("%d unflushed files: %s", unflushed, describe(q))
				}
			}
		})
	}
}

func TestWriteAt(t *testing.T) {
	const size = 2 * PageSize
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			mem := newMem()
			q := open(t, mem, size, m.set(t, size))
			f, err := q.Writable(0)
			must(t, err)
			want := record(1, 1000)
			_, err = f.Append(want)
			must(t, err)
			if _, err := q.Commit(0); err != nil {
				t.Fatal(err)
			}
			must(t, errOf(q.Flush(0)))
			_, err = f.Append(record(2, 100)) // in the buffer when there is one
			must(t, err)
			want = append(want, record(2, 100)...)
			for _, at := range []int64{0, 500, 990, 1050} {
				p := record(int(at), 20)
				copy(want[at:], p)
				if n, err := f.WriteAt(p, at); n != 20 || err != nil {
					t.Fatalf("write at %d: %d, %v", at, n, err)
				}
			}
			for _, at := range []int64{-1, 1099, 1101, 1<<63 - 1} {
				if _, err := f.WriteAt(make([]byte, 2), at); err == nil {
					t.Fatalf("a write at %d must fail", at)
				}
			}
			must(t, errOf(q.Commit(0)))
			wantBytes(t, q, 0, want)
			must(t, errOf(q.Flush(0)))
			must(t, q.Close())
			if got := readFile(t, mem, seg(0))[:len(want)]; !bytes.Equal(got, want) {
				t.Fatal("the file has other content")
			}
		})
	}
}

// TestRewrittenBytesAreFlushed: also in files that were flushed long ago.
func TestRewrittenBytesAreFlushed(t *testing.T) {
	const size = 2 * PageSize
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			mem := memfs.NewCrashable(7)
			q := open(t, mem, size, m.set(t, size))
			for i := range 3 {
				must(t, errOf(put(q, record(i, size-PageSize/2))))
			}
			must(t, errOf(q.Commit(0)))
			must(t, errOf(q.Flush(0)))
			for _, f := range q.Files() {
				must(t, errOf(f.WriteAt([]byte("rewritten"), 100)))
			}
			must(t, errOf(q.Flush(4))) // not asked to
			must(t, errOf(q.Flush(0)))
			clone := mem.CrashClone(memfs.LoseUnsynced)
			for _, f := range q.Files() {
				if got := readFile(t, clone, f.Path())[100:109]; string(got) != "rewritten" {
					t.Errorf("file %d: %q after the crash", f.Start(), got)
				}
			}
		})
	}
}

func errOf[T any](_ T, err error) error { return err }

func TestFind(t *testing.T) {
	mem := newMem()
	for _, start := range []int64{2000, 3000, 6000, 7000} {
		writeFile(t, mem, seg(start), nil, 1000)
	}
	q, rep := openReport(t, mem, 1000)
	if len(rep.Gaps) != 1 || rep.Gaps[0] != (Gap{4000, 6000}) {
		t.Fatalf("gaps %v", rep.Gaps)
	}
	for _, tt := range []struct {
		off, want int64 // want -1: none
	}{
		{-1, -1}, {0, -1}, {1999, -1}, {2000, 2000}, {2999, 2000}, {3000, 3000}, {3999, 3000},
		{4000, -1}, {5999, -1}, {6000, 6000}, {6999, 6000}, {7000, 7000}, {7999, 7000}, {8000, -1}, {1 << 62, -1},
	} {
		got := int64(-1)
		if f := q.Find(tt.off); f != nil {
			got = f.Start()
		}
		if got != tt.want {
			t.Errorf("Find(%d) = %d, want %d", tt.off, got, tt.want)
		}
	}
	if q.MinOffset() != 2000 || q.MaxOffset() != 8000 {
		t.Errorf("range [%d, %d)", q.MinOffset(), q.MaxOffset())
	}
}

func TestFindByTime(t *testing.T) {
	mem := newMem()
	for i := range int64(5) {
		writeFile(t, mem, seg(i*100), nil, 100)
	}
	q := open(t, mem, 100)
	times := []int64{10, 20, 20, 30, 40}
	timeOf := func(f *File) (int64, error) { return times[f.Start()/100], nil }
	for _, tt := range []struct{ ts, want int64 }{
		{5, 0}, {10, 0}, {11, 0}, {20, 0}, {21, 2}, {30, 2}, {31, 3}, {40, 3}, {41, 4}, {1 << 60, 4},
	} {
		f, err := q.FindByTime(tt.ts, timeOf)
		if err != nil || f.Start() != tt.want*100 {
			t.Errorf("time %d: file %d, %v, want %d", tt.ts, f.Start()/100, err, tt.want)
		}
	}
	broken := errors.New("broken")
	if _, err := q.FindByTime(25, func(*File) (int64, error) { return 0, broken }); err != broken {
		t.Errorf("error of timeOf: got %v", err)
	}
	empty := open(t, newMem(), 100)
	if f, err := empty.FindByTime(1, timeOf); f != nil || err != nil {
		t.Errorf("without files: %v, %v", f, err)
	}
}

func TestReadAtLimits(t *testing.T) {
	mem := newMem()
	for _, start := range []int64{1000, 2000, 4000} {
		writeFile(t, mem, seg(start), record(int(start), 1000), 1000)
	}
	q := open(t, mem, 1000)
	must(t, q.TruncateTo(4500))
	for _, tt := range []struct {
		name string
		off  int64
		n    int
		got  int
		err  error
	}{
		{"in front", 500, 10, 0, base.ErrNotFound},
		{"first byte", 1000, 1, 1, nil},
		{"across files", 1990, 20, 20, nil},
		{"into a gap", 2990, 20, 10, base.ErrNotFound},
		{"in a gap", 3500, 1, 0, base.ErrNotFound},
		{"up to the end", 4400, 100, 100, nil},
		{"across the end", 4400, 101, 100, io.EOF},
		{"at the end", 4500, 1, 0, io.EOF},
		{"far behind", 1 << 50, 1, 0, io.EOF},
		{"nothing", 0, 0, 0, nil},
	} {
		n, err := q.ReadAt(make([]byte, tt.n), tt.off)
		if n != tt.got || !errors.Is(err, tt.err) {
			t.Errorf("%s: %d, %v, want %d, %v", tt.name, n, err, tt.got, tt.err)
		}
	}
	must(t, q.Close())
	if _, err := q.ReadAt(make([]byte, 1), 1000); !errors.Is(err, base.ErrClosed) {
		t.Errorf("read after close: %v", err)
	}
	if _, err := q.Writable(0); !errors.Is(err, base.ErrClosed) {
		t.Errorf("write after close: %v", err)
	}
	if err := q.Prepare(1); !errors.Is(err, base.ErrClosed) {
		t.Errorf("prepare after close: %v", err)
	}
	must(t, q.Close())
}

func TestSeveralDirectories(t *testing.T) {
	const size = PageSize
	mem := newMem()
	full := map[string]bool{}
	dirs := []string{"/c", "/a", "/b"} // sorted: a, b, c
	set := func(o *Options) {
		o.Dirs = dirs
		o.DirFull = func(d string) bool { return full[d] }
	}
	q := open(t, mem, size, set)
	for i := range 4 {
		must(t, errOf(put(q, record(i, size))))
	}
	full["/b"] = true
	must(t, errOf(put(q, record(4, size)))) // file 4: free a, c; 4 mod 2 = a
	must(t, errOf(put(q, record(5, size)))) // file 5: c
	full["/a"], full["/c"] = true, true
	must(t, errOf(put(q, record(6, size)))) // all full: 6 mod 3 = a
	want := map[string][]string{
		"/a": {FileName(0), FileName(3 * size), FileName(4 * size), FileName(6 * size)},
		"/b": {FileName(size)},
		"/c": {FileName(2 * size), FileName(5 * size)},
	}
	for dir, list := range want {
		if got := names(t, mem, dir); !equal(got, list) {
			t.Errorf("%s has %v, want %v", dir, got, list)
		}
	}
	must(t, q.Close())

	q = open(t, mem, 0, func(o *Options) { o.Dirs, o.ReadOnlyDirs = []string{"/a", "/d"}, []string{"/b", "/c"} })
	for i := range 7 {
		wantBytes(t, q, int64(i)*size, record(i, size))
	}
	if q.Last().End() != 7*size || len(q.Files()) != 7 {
		t.Errorf("files: %s", describe(q))
	}
	if err := q.TruncateTo(5*size + 1); !errors.Is(err, base.ErrReadOnly) {
		t.Errorf("cutting a file that is only read: %v", err)
	}
	if len(q.Files()) != 7 {
		t.Errorf("a refused truncation removed files: %s", describe(q))
	}
	if _, err := q.RemoveFront(2, nil); !errors.Is(err, base.ErrReadOnly) {
		t.Errorf("removing a file that is only read: %v", err)
	}
	must(t, q.Close())

	for _, other := range []string{"/a/", "/c/"} { // in front of and behind the good one, "/b/"
		writeFile(t, mem, other+FileName(size), nil, 0)
		q, rep := openReport(t, mem, size, set)
		if len(q.Files()) != 6 || !equal(rep.Empty, []string{other + FileName(size)}) || q.Find(size).Path() != "/b/"+FileName(size) {
			t.Errorf("an empty double in %s: %s, report %+v", other, describe(q), rep)
		}
		must(t, q.Close())
		must(t, mem.Remove(other+FileName(size)))
	}
	writeFile(t, mem, "/c/"+FileName(size), nil, size)
	_, _, err := OpenQueue(Options{FS: mem, Dirs: dirs, FileSize: size})
	var corrupt *base.CorruptError
	if !errors.As(err, &corrupt) || corrupt.File != "/c/"+FileName(size) {
		t.Errorf("one name in two directories: %v", err)
	}
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
