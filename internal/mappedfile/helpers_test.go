package mappedfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// newMem returns a file system in memory that panics on a store through a
// mapping into a page whose block was not reserved.
func newMem() *memfs.FS {
	m := memfs.New()
	m.RequireAllocated(true)
	return m
}

const testDir = "/log"

// open opens a queue in testDir of fsys and closes it when the test ends. The
// hooks may change the options.
func open(t testing.TB, fsys vfs.FS, size int64, hooks ...func(*Options)) *Queue {
	t.Helper()
	q, _ := openReport(t, fsys, size, hooks...)
	return q
}

func openReport(t testing.TB, fsys vfs.FS, size int64, hooks ...func(*Options)) (*Queue, Report) {
	t.Helper()
	opt := Options{FS: fsys, Dirs: []string{testDir}, FileSize: size, Mapped: true}
	for _, h := range hooks {
		h(&opt)
	}
	q, rep, err := OpenQueue(opt)
	must(t, err)
	t.Cleanup(func() { q.Close() })
	return q, rep
}

// newAlloc starts an allocator that is closed when the test ends.
func newAlloc(t testing.TB, opt AllocatorOptions) *Allocator {
	t.Helper()
	a := NewAllocator(opt)
	t.Cleanup(func() { a.Close() })
	return a
}

// put appends p, rolling when the rest of the last file is too small: the rest
// is then claimed by a mark as a blank record does.
func put(q *Queue, p []byte) (int64, error) {
	f, err := q.Writable(0)
	if err != nil {
		return 0, err
	}
	if rest := f.Size() - f.Wrote(); rest < int64(len(p)) {
		if err := q.Prepare(int64(len(p))); err != nil {
			return 0, err
		}
		if err := f.Stage(bytes.Repeat([]byte{'~'}, int(min(rest, 8)))); err != nil {
			return 0, err
		}
		f.Publish(rest)
		if f, err = q.Writable(0); err != nil {
			return 0, err
		}
	}
	at, err := f.Append(p)
	return f.Start() + at, err
}

// record makes n bytes that differ from those of other numbers.
func record(i, n int) []byte {
	p := make([]byte, n)
	for j := range p {
		p[j] = byte(i*31+j*7)%251 + 1
	}
	return p
}

// mustRead reads n bytes at off.
func mustRead(t testing.TB, q *Queue, off int64, n int) []byte {
	t.Helper()
	p := make([]byte, n)
	if m, err := q.ReadAt(p, off); err != nil || m != n {
		t.Fatalf("read %d bytes at %d: %d, %v", n, off, m, err)
	}
	return p
}

// wantBytes compares what the queue holds at off.
func wantBytes(t testing.TB, q *Queue, off int64, want []byte) {
	t.Helper()
	if got := mustRead(t, q, off, len(want)); !bytes.Equal(got, want) {
		t.Fatalf("at %d: got %x, want %x", off, got, want)
	}
}

// writeFile makes a file with content, whatever was there.
func writeFile(t testing.TB, fsys vfs.FS, name string, content []byte, size int64) {
	t.Helper()
	must(t, fsys.MkdirAll(filepath.Dir(name)))
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	f, err := fsys.Create(name)
	must(t, err)
	must(t, f.Truncate(size))
	_, err = f.WriteAt(content, 0)
	must(t, err)
	must(t, f.Sync())
	must(t, f.Close())
	must(t, fsys.SyncDir(filepath.Dir(name)))
}

// readFile returns all of a file.
func readFile(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	f, err := fsys.Open(name, vfs.ReadOnly)
	must(t, err)
	defer f.Close()
	n, err := f.Size()
	must(t, err)
	p := make([]byte, n)
	if _, err := f.ReadAt(p, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return p
}

// readOnly wraps fsys so that every change is an error of the test. To sync a
// directory is none.
func readOnly(t testing.TB, fsys vfs.FS) *faultfs.FS {
	f := faultfs.New(fsys)
	f.Inject(faultfs.Rule{
		Ops:  faultfs.OpMutating &^ faultfs.OpSyncDir,
		Hook: func(c faultfs.Call) { t.Errorf("unexpected change: %v %s", c.Op, c.Name) },
		Err:  faultfs.ErrIO,
	})
	return f
}

// names lists a directory; a missing one is empty.
func names(t testing.TB, fsys vfs.FS, dir string) []string {
	t.Helper()
	entries, err := fsys.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name)
	}
	return list
}

// seg is the path of a segment in testDir.
func seg(start int64) string { return filepath.Join(testDir, FileName(start)) }

// modes are the ways in which a queue can write.
var modes = []struct {
	name string
	set  func(t testing.TB, size int64) func(*Options)
}{
	{"mapped", func(testing.TB, int64) func(*Options) { return func(*Options) {} }},
	{"positional", func(testing.TB, int64) func(*Options) {
		return func(o *Options) { o.Mapped = false }
	}},
	{"allocator", func(t testing.TB, size int64) func(*Options) {
		a := newAlloc(t, AllocatorOptions{PopulateDistance: 4 * PageSize, PopulateChunk: PageSize})
		return func(o *Options) { o.Alloc = a }
	}},
	{"transient", func(t testing.TB, size int64) func(*Options) {
		p := NewTransientPool(2, size)
		return func(o *Options) { o.Pool = p }
	}},
	{"transient of one, positional, allocator", func(t testing.TB, size int64) func(*Options) {
		p, a := NewTransientPool(1, size), newAlloc(t, AllocatorOptions{})
		return func(o *Options) { o.Pool, o.Alloc, o.Mapped = p, a, false }
	}},
}

// describe shows the list of a queue.
func describe(q *Queue) string {
	var b bytes.Buffer
	for _, f := range q.Files() {
		fmt.Fprintf(&b, "%d:%d/%d/%d ", f.Start(), f.Flushed(), f.Readable(), f.Wrote())
	}
	return b.String()
}
