// Package vfstest is the conformance suite for implementations of vfs.FS: what
// package vfs promises, as tests. It runs against the operating system as well
// as against the file systems for tests, so that what holds in a test holds on
// a disk.
package vfstest

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"sync"
	"testing"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// NewFS makes a file system and an existing, empty directory in it.
type NewFS func(t *testing.T) (fsys vfs.FS, dir string)

// Run runs all tests of the suite, each on a file system of its own.
func Run(t *testing.T, newFS NewFS) {
	tests := []struct {
		name string
		run  func(t *testing.T, e env)
	}{
		{"Create", testCreate},
		{"OpenModes", testOpenModes},
		{"ReadWrite", testReadWrite},
		{"Truncate", testTruncate},
		{"Closed", testClosed},
		{"Remove", testRemove},
		{"RemoveOpenFile", testRemoveOpenFile},
		{"Rename", testRename},
		{"RenameOpenFile", testRenameOpenFile},
		{"MkdirAll", testMkdirAll},
		{"SyncDir", testSyncDir},
		{"List", testList},
		{"Stat", testStat},
		{"ErrorNamesPath", testErrorNamesPath},
		{"BadNames", testBadNames},
		{"Lock", testLock},
		{"LockAccess", testLockAccess},
		{"DiskUsage", testDiskUsage},
		{"Allocate", testAllocate},
		{"NextData", testNextData},
		{"MapCoherent", testMapCoherent},
		{"MapOutOfRange", testMapOutOfRange},
		{"MapReadOnly", testMapReadOnly},
		{"MapOutlivesFile", testMapOutlivesFile},
		{"MapEmpty", testMapEmpty},
		{"MapHints", testMapHints},
		{"MapOfCutFile", testMapOfCutFile},
		{"Concurrent", testConcurrent},
		{"WriteFileAtomic", testWriteFileAtomic},
		{"ReadFile", testReadFile},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys, dir := newFS(t)
			tt.run(t, env{fsys, dir})
		})
	}
	t.Run("Model", func(t *testing.T) { Model(t, newFS, nil) })
}

type env struct {
	vfs.FS
	dir string
}

func (e env) path(elem ...string) string {
	return filepath.Join(append([]string{e.dir}, elem...)...)
}

// create makes a file with the given content.
func (e env) create(t *testing.T, name string, data string) vfs.File {
	t.Helper()
	f, err := e.Create(e.path(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	writeAt(t, f, data, 0)
	return f
}

func (e env) open(t *testing.T, name string, mode vfs.Mode) vfs.File {
	t.Helper()
	f, err := e.Open(e.path(name), mode)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func (e env) wantContent(t *testing.T, name, want string) {
	t.Helper()
	got, err := vfs.ReadFile(e.FS, e.path(name), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Errorf("%s holds %q, want %q", name, got, want)
	}
}

func (e env) wantNames(t *testing.T, dir string, want ...string) {
	t.Helper()
	entries, err := e.List(dir)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, en := range entries {
		got = append(got, en.Name)
	}
	if len(got) != len(want) {
		t.Fatalf("names in %s: %q, want %q", dir, got, want)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("names in %s: %q, want %q", dir, got, want)
		}
	}
}

func writeAt(t *testing.T, w io.WriterAt, data string, off int64) {
	t.Helper()
	if n, err := w.WriteAt([]byte(data), off); n != len(data) || err != nil {
		t.Fatalf("WriteAt of %d bytes at %d: %d, %v", len(data), off, n, err)
	}
}

func wantAt(t *testing.T, r io.ReaderAt, off int64, want string) {
	t.Helper()
	p := dirtyBuffer(len(want))
	if n, err := r.ReadAt(p, off); n != len(p) || err != nil {
		t.Fatalf("ReadAt of %d bytes at %d: %d, %v", len(p), off, n, err)
	}
	if string(p) != want {
		t.Errorf("at %d: %q, want %q", off, p, want)
	}
}

func wantSize(t *testing.T, f vfs.File, want int64) {
	t.Helper()
	if got, err := f.Size(); got != want || err != nil {
		t.Errorf("Size: %d, %v, want %d", got, err, want)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", what, err, want)
	}
}

func wantAnyErr(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func mapFile(t *testing.T, f vfs.File, writable bool) vfs.Mapping {
	t.Helper()
	m, err := f.Map(writable)
	must(t, err)
	t.Cleanup(func() { m.Unmap() })
	return m
}

func wantPanic(t *testing.T, what string, fn func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: no panic", what)
		}
	}()
	fn()
}

func testCreate(t *testing.T, e env) {
	f := e.create(t, "f", "")
	wantSize(t, f, 0)
	_, err := e.Create(e.path("f"))
	wantErr(t, "Create of an existing name", err, fs.ErrExist)
	_, err = e.Create(e.dir)
	wantErr(t, "Create over a directory", err, fs.ErrExist)
	_, err = e.Create(e.path("no", "f"))
	wantErr(t, "Create without its directory", err, fs.ErrNotExist)
	_, err = e.Create(e.path("f", "g"))
	wantAnyErr(t, "Create below a file", err)
	e.wantNames(t, e.dir, "f")
}

func testOpenModes(t *testing.T, e env) {
	_, err := e.Open(e.path("f"), vfs.ReadOnly)
	wantErr(t, "Open of nothing", err, fs.ErrNotExist)
	_, err = e.Open(e.path("f"), vfs.ReadWrite)
	wantErr(t, "Open of nothing for writing", err, fs.ErrNotExist)
	_, err = e.Open(e.dir, vfs.ReadOnly)
	wantAnyErr(t, "Open of a directory", err)

	e.create(t, "f", "abc")
	ro := e.open(t, "f", vfs.ReadOnly)
	wantAt(t, ro, 0, "abc")
	_, err = ro.WriteAt([]byte("x"), 0)
	wantAnyErr(t, "WriteAt on a read-only file", err)
	wantAnyErr(t, "Truncate of a read-only file", ro.Truncate(0))
	wantAnyErr(t, "Allocate in a read-only file", ro.Allocate(0, 1))
	_, err = ro.Map(true)
	wantAnyErr(t, "writable Map of a read-only file", err)
	rw := e.open(t, "f", vfs.ReadWrite)
	writeAt(t, rw, "X", 1)
	wantAt(t, ro, 0, "aXc")
}

func testReadWrite(t *testing.T, e env) {
	f := e.create(t, "f", "hello")
	tests := []struct {
		name string
		n    int
		off  int64
		want string
		err  error
	}{
		{"all", 5, 0, "hello", nil},
		{"part", 2, 3, "lo", nil},
		{"over the end", 4, 3, "lo", io.EOF},
		{"at the end", 1, 5, "", io.EOF},
		{"behind the end", 1, 100, "", io.EOF},
		{"nothing", 0, 2, "", nil},
		{"nothing behind the end", 0, 100, "", nil},
	}
	for _, tt := range tests {
		p := make([]byte, tt.n)
		n, err := f.ReadAt(p, tt.off)
		if string(p[:n]) != tt.want || err != tt.err {
			t.Errorf("%s: ReadAt gave %q, %v, want %q, %v", tt.name, p[:n], err, tt.want, tt.err)
		}
	}
	_, err := f.ReadAt(make([]byte, 1), -1)
	wantAnyErr(t, "ReadAt before the start", err)
	_, err = f.WriteAt([]byte("x"), -1)
	wantAnyErr(t, "WriteAt before the start", err)

	// A write behind the end leaves zeros in between.
	writeAt(t, f, "end", 10_000)
	wantSize(t, f, 10_003)
	wantAt(t, f, 0, "hello"+string(make([]byte, 9_995))+"end")
	// A write of nothing does not make the file longer.
	writeAt(t, f, "", 20_000)
	wantSize(t, f, 10_003)
	must(t, f.Sync())
	wantAt(t, f, 9_999, "\x00end")
}

func testTruncate(t *testing.T, e env) {
	f := e.create(t, "f", "")
	must(t, f.Truncate(1<<30)) // costs nothing
	wantSize(t, f, 1<<30)
	wantAt(t, f, 1<<30-4, "\x00\x00\x00\x00")
	data := string(bytes.Repeat([]byte("0123456789abcdef"), 1024)) // 16 KiB
	writeAt(t, f, data, 0)

	// What was cut off does not come back.
	for _, cut := range []int64{9_000, 8_192, 4_097, 1, 0} {
		must(t, f.Truncate(cut))
		wantSize(t, f, cut)
		_, err := f.ReadAt(make([]byte, 1), cut)
		wantErr(t, "read behind the cut", err, io.EOF)
		must(t, f.Truncate(12_000))
		wantAt(t, f, 0, data[:cut]+string(make([]byte, 12_000-cut)))
	}
	wantAnyErr(t, "Truncate to a negative length", f.Truncate(-1))
	wantSize(t, f, 12_000)
}

func testClosed(t *testing.T, e env) {
	f := e.create(t, "f", "abc")
	must(t, f.Close())
	_, err := f.ReadAt(make([]byte, 1), 0)
	wantErr(t, "ReadAt", err, fs.ErrClosed)
	_, err = f.WriteAt([]byte("x"), 0)
	wantErr(t, "WriteAt", err, fs.ErrClosed)
	_, err = f.Size()
	wantErr(t, "Size", err, fs.ErrClosed)
	wantErr(t, "Truncate", f.Truncate(0), fs.ErrClosed)
	wantErr(t, "Allocate", f.Allocate(0, 1), fs.ErrClosed)
	_, err = f.NextData(0)
	wantErr(t, "NextData", err, fs.ErrClosed)
	wantErr(t, "Sync", f.Sync(), fs.ErrClosed)
	_, err = f.Map(false)
	wantErr(t, "Map", err, fs.ErrClosed)
	wantErr(t, "Close", f.Close(), fs.ErrClosed)
	e.wantContent(t, "f", "abc")
}

func testRemove(t *testing.T, e env) {
	wantErr(t, "Remove of nothing", e.Remove(e.path("f")), fs.ErrNotExist)
	must(t, e.MkdirAll(e.path("d")))
	must(t, e.create(t, filepath.Join("d", "f"), "abc").Close())
	wantAnyErr(t, "Remove of a directory that is not empty", e.Remove(e.path("d")))
	e.wantNames(t, e.path("d"), "f")
	must(t, e.Remove(e.path("d", "f")))
	must(t, e.SyncDir(e.path("d")))
	must(t, e.Remove(e.path("d")))
	e.wantNames(t, e.dir)
	// The name is free again, for another kind of thing too.
	must(t, e.create(t, "d", "new").Close())
	e.wantContent(t, "d", "new")
}

func testRemoveOpenFile(t *testing.T, e env) {
	f := e.create(t, "f", "abcdef")
	m := mapFile(t, f, true)
	must(t, e.Remove(e.path("f")))
	_, err := e.Stat(e.path("f"))
	wantErr(t, "Stat of the removed name", err, fs.ErrNotExist)
	writeAt(t, m, "M", 0)
	writeAt(t, f, "F", 1)
	wantAt(t, m, 0, "MFcdef")
	wantAt(t, f, 0, "MFcdef")
	must(t, m.Flush(0, 6))
	must(t, f.Sync())

	// A new file of the name is another file.
	e.create(t, "f", "new")
	wantAt(t, f, 0, "MFcdef")
	e.wantContent(t, "f", "new")
}

func testRename(t *testing.T, e env) {
	wantErr(t, "Rename of nothing", e.Rename(e.path("a"), e.path("b")), fs.ErrNotExist)
	must(t, e.create(t, "a", "A").Close())
	wantErr(t, "Rename into no directory", e.Rename(e.path("a"), e.path("no", "a")), fs.ErrNotExist)
	must(t, e.Rename(e.path("a"), e.path("a")))
	must(t, e.Rename(e.path("a"), e.path("b")))
	e.wantNames(t, e.dir, "b")
	must(t, e.create(t, "a", "A2").Close())
	must(t, e.Rename(e.path("a"), e.path("b"))) // replaces
	e.wantNames(t, e.dir, "b")
	e.wantContent(t, "b", "A2")

	must(t, e.MkdirAll(e.path("d", "sub")))
	must(t, e.Rename(e.path("b"), e.path("d", "b")))
	must(t, e.SyncDir(e.path("d")))
	must(t, e.SyncDir(e.dir))
	must(t, e.create(t, "c", "C").Close())
	wantAnyErr(t, "Rename of a file over a directory", e.Rename(e.path("c"), e.path("d", "sub")))
	wantAnyErr(t, "Rename of a directory over a file", e.Rename(e.path("d"), e.path("c")))
	wantAnyErr(t, "Rename of a directory into itself", e.Rename(e.path("d"), e.path("d", "sub", "d")))

	// A directory takes its content along.
	must(t, e.Rename(e.path("d"), e.path("moved")))
	must(t, e.SyncDir(e.dir))
	e.wantNames(t, e.dir, "c", "moved")
	e.wantNames(t, e.path("moved"), "b", "sub")
	e.wantContent(t, filepath.Join("moved", "b"), "A2")
	_, err := e.Open(e.path("d", "b"), vfs.ReadOnly)
	wantErr(t, "Open below the old name", err, fs.ErrNotExist)
	// The old name can be used for something new.
	must(t, e.MkdirAll(e.path("d")))
	e.wantNames(t, e.path("d"))
}

func testRenameOpenFile(t *testing.T, e env) {
	a, b := e.create(t, "a", "aaa"), e.create(t, "b", "bbb")
	must(t, e.Rename(e.path("a"), e.path("b")))
	writeAt(t, a, "A", 0)
	writeAt(t, b, "B", 0)
	wantAt(t, a, 0, "Aaa")
	wantAt(t, b, 0, "Bbb") // lives on without a name
	e.wantContent(t, "b", "Aaa")
}

func testMkdirAll(t *testing.T, e env) {
	must(t, e.MkdirAll(e.path("a", "b", "c")))
	must(t, e.MkdirAll(e.path("a", "b", "c")))
	must(t, e.MkdirAll(e.dir))
	e.wantNames(t, e.path("a", "b"), "c")
	must(t, e.create(t, "f", "x").Close())
	wantAnyErr(t, "MkdirAll over a file", e.MkdirAll(e.path("f")))
	wantAnyErr(t, "MkdirAll below a file", e.MkdirAll(e.path("f", "d")))

	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			if err := e.MkdirAll(e.path("p", "q", "r")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	e.wantNames(t, e.path("p", "q"), "r")
}

func testSyncDir(t *testing.T, e env) {
	must(t, e.SyncDir(e.dir))
	wantErr(t, "SyncDir of nothing", e.SyncDir(e.path("no")), fs.ErrNotExist)
}

func testList(t *testing.T, e env) {
	e.wantNames(t, e.dir)
	for _, name := range []string{"b", "a", "10", "9", "Z", "\u00e4"} {
		must(t, e.create(t, name, "data of "+name).Close())
	}
	must(t, e.MkdirAll(e.path("dir")))
	must(t, e.create(t, filepath.Join("dir", "deep"), "").Close())
	e.wantNames(t, e.dir, "10", "9", "Z", "a", "b", "dir", "\u00e4")
	entries, err := e.List(e.dir)
	must(t, err)
	for _, en := range entries {
		stat, err := e.Stat(e.path(en.Name))
		must(t, err)
		if en.Name != "dir" && stat != en {
			t.Errorf("List says %+v, Stat %+v", en, stat)
		}
		isDir := en.Name == "dir"
		if en.IsDir() != isDir || en.IsRegular() == isDir {
			t.Errorf("%s: mode %v", en.Name, en.Mode)
		}
		if want := int64(len("data of " + en.Name)); !isDir && en.Size != want {
			t.Errorf("%s: size %d, want %d", en.Name, en.Size, want)
		}
		if en.ModTime <= 0 {
			t.Errorf("%s: no time", en.Name)
		}
	}
	_, err = e.List(e.path("no"))
	wantErr(t, "List of nothing", err, fs.ErrNotExist)
	_, err = e.List(e.path("a"))
	wantAnyErr(t, "List of a file", err)
}

func testStat(t *testing.T, e env) {
	_, err := e.Stat(e.path("f"))
	wantErr(t, "Stat of nothing", err, fs.ErrNotExist)
	_, err = e.Stat(e.path("no", "f"))
	wantErr(t, "Stat in no directory", err, fs.ErrNotExist)
	f := e.create(t, "f", "abc")
	for _, size := range []int64{3, 10_000, 0} {
		must(t, f.Truncate(size))
		en, err := e.Stat(e.path("f"))
		must(t, err)
		if en.Name != "f" || en.Size != size || !en.IsRegular() {
			t.Errorf("Stat: %+v, want f with %d bytes", en, size)
		}
	}
	en, err := e.Stat(e.dir)
	must(t, err)
	if en.Name != filepath.Base(e.dir) || !en.IsDir() || en.IsRegular() || en.Size != 0 {
		t.Errorf("Stat of the directory: %+v", en)
	}
}

func testErrorNamesPath(t *testing.T, e env) {
	name := e.path("missing")
	_, openErr := e.Open(name, vfs.ReadOnly)
	_, listErr := e.List(name)
	_, statErr := e.Stat(name)
	_, usageErr := e.DiskUsage(name)
	_, createErr := e.Create(filepath.Join(name, "f"))
	_, lockErr := e.Lock(filepath.Join(name, "lock"))
	for op, err := range map[string]error{
		"Open": openErr, "List": listErr, "Stat": statErr, "DiskUsage": usageErr,
		"Create": createErr, "Lock": lockErr,
		"Remove": e.Remove(name), "Rename": e.Rename(name, e.path("x")), "SyncDir": e.SyncDir(name),
	} {
		pe, ok := errors.AsType[*fs.PathError](err)
		if !ok || !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %v is not a path error for a missing file", op, err)
		} else if pe.Path != name && filepath.Dir(pe.Path) != name {
			t.Errorf("%s: error names %q", op, pe.Path)
		}
	}
}

func testBadNames(t *testing.T, e env) {
	for _, name := range []string{e.path("a\x00b"), e.path(string(bytes.Repeat([]byte("n"), 256))), ""} {
		_, err := e.Create(name)
		wantAnyErr(t, "Create", err)
		_, err = e.Open(name, vfs.ReadOnly)
		wantAnyErr(t, "Open", err)
	}
	e.wantNames(t, e.dir)
}

func testLock(t *testing.T, e env) {
	name := e.path("lock")
	wantLocked := func(want bool) {
		t.Helper()
		if got, err := e.Locked(name); got != want || err != nil {
			t.Errorf("Locked: %v, %v, want %v", got, err, want)
		}
	}
	wantLocked(false)
	e.wantNames(t, e.dir) // asking does not make the file
	l, err := e.Lock(name)
	must(t, err)
	wantLocked(true)
	e.wantNames(t, e.dir, "lock")
	if _, err := e.Lock(name); !errors.Is(err, base.ErrLocked) {
		t.Errorf("second Lock: %v, want %v", err, base.ErrLocked)
	}
	// Neither the refused Lock, nor asking, nor reading the file unlocks it.
	e.wantContent(t, "lock", "")
	wantLocked(true)
	other, err := e.Lock(e.path("other"))
	must(t, err)
	must(t, other.Close())
	wantLocked(true)

	must(t, l.Close())
	wantLocked(false)
	must(t, l.Close()) // again
	e.wantNames(t, e.dir, "lock", "other")
	l, err = e.Lock(name)
	must(t, err)
	wantLocked(true)
	must(t, l.Close())
}

func testLockAccess(t *testing.T, e env) {
	must(t, e.create(t, "lock", "old content").Close())
	l, err := e.Lock(e.path("lock"))
	must(t, err)
	wantAt(t, l, 0, "old content")
	writeAt(t, l, "lock", 0)
	must(t, l.Sync())
	wantAt(t, l, 0, "lock")
	must(t, l.Close())
	e.wantContent(t, "lock", "lockcontent")
}

func testDiskUsage(t *testing.T, e env) {
	u, err := e.DiskUsage(e.dir)
	must(t, err)
	if u.Total <= 0 || u.Free < 0 || u.Used < 0 || u.Free+u.Used > u.Total {
		t.Errorf("usage %+v", u)
	}
	if r := u.Ratio(); r < 0 || r > 1 {
		t.Errorf("ratio %v of %+v", r, u)
	}
}

func testConcurrent(t *testing.T, e env) {
	const parts, size = 4, 64 << 10
	f := e.create(t, "f", "")
	must(t, f.Truncate(parts*size))
	must(t, f.Allocate(0, parts*size))
	m := mapFile(t, f, true)
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			chunk := bytes.Repeat([]byte{byte('a' + i)}, 1000)
			got := make([]byte, len(chunk))
			start := int64(i) * size
			for off := int64(0); off+int64(len(chunk)) <= size; off += int64(len(chunk)) {
				var w io.WriterAt = f
				var r io.ReaderAt = m
				if off%2000 == 0 {
					w, r = m, f
				}
				if _, err := w.WriteAt(chunk, start+off); err != nil {
					t.Error(err)
					return
				}
				if _, err := r.ReadAt(got, start+off); err != nil || !bytes.Equal(got, chunk) {
					t.Errorf("part %d at %d: read %q, %v", i, off, got[:10], err)
					return
				}
			}
			if err := m.Flush(start, size); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	must(t, f.Sync())
}

func testWriteFileAtomic(t *testing.T, e env) {
	name := e.path("config.json")
	for _, data := range []string{"first", "second, longer", "", "x"} {
		must(t, vfs.WriteFileAtomic(e.FS, name, []byte(data)))
		e.wantContent(t, "config.json", data)
		e.wantNames(t, e.dir, "config.json")
	}
	// A crash left the temporary file.
	must(t, e.create(t, "config.json.tmp", "long rubbish from before").Close())
	must(t, vfs.WriteFileAtomic(e.FS, name, []byte("after")))
	e.wantContent(t, "config.json", "after")
	e.wantNames(t, e.dir, "config.json")

	wantErr(t, "in no directory", vfs.WriteFileAtomic(e.FS, e.path("no", "f"), nil), fs.ErrNotExist)
	must(t, e.MkdirAll(e.path("d")))
	wantAnyErr(t, "over a directory", vfs.WriteFileAtomic(e.FS, e.path("d"), []byte("x")))
	e.wantNames(t, e.dir, "config.json", "d")
}

func testReadFile(t *testing.T, e env) {
	must(t, e.create(t, "f", "12345").Close())
	for limit, want := range map[int64]string{5: "12345", 1 << 62: "12345"} {
		got, err := vfs.ReadFile(e.FS, e.path("f"), limit)
		if string(got) != want || err != nil {
			t.Errorf("limit %d: %q, %v", limit, got, err)
		}
	}
	_, err := vfs.ReadFile(e.FS, e.path("f"), 4)
	wantAnyErr(t, "file beyond the limit", err)
	_, err = vfs.ReadFile(e.FS, e.path("no"), 4)
	wantErr(t, "no file", err, fs.ErrNotExist)
}
