package overlayfs_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/internal/vfs/overlayfs"
	"github.com/gantrymq/gantry/internal/vfs/vfstest"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newFile(t *testing.T, fsys vfs.FS, name string, data []byte) {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	_, err = f.WriteAt(data, 0)
	must(t, err)
	must(t, f.Close())
}

// writeGuard fails the test when anything but reading reaches the base.
func writeGuard(t *testing.T, base vfs.FS) vfs.FS {
	guard := faultfs.New(base)
	guard.Inject(faultfs.Rule{
		Ops:  faultfs.OpMutating | faultfs.OpLock,
		Hook: func(c faultfs.Call) { t.Errorf("%v of %s reaches the base", c.Op, c.Name) },
	})
	return guard
}

func TestConformance(t *testing.T) {
	t.Run("new directory", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
			fsys := overlayfs.New(writeGuard(t, memfs.New()))
			must(t, fsys.MkdirAll("/store"))
			return fsys, "/store"
		})
	})
	t.Run("directory of memfs", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
			mem := memfs.New()
			must(t, mem.MkdirAll("/store"))
			return overlayfs.New(writeGuard(t, mem)), "/store"
		})
	})
	t.Run("directory of the system", func(t *testing.T) {
		vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
			return overlayfs.New(writeGuard(t, vfs.OS())), t.TempDir()
		})
	})
}

// initial is what the base holds at the start of the model test: a file with
// holes, one of odd length, and no third one.
func initial() map[string][]byte {
	a := make([]byte, 4*4096)
	copy(a[4096:], bytes.Repeat([]byte("base a "), 300))
	a[3*4096] = 'x'
	return map[string][]byte{"a": a, "b": bytes.Repeat([]byte("base b "), 777)}
}

func TestModelAboveFiles(t *testing.T) {
	bases := map[string]func(t *testing.T) (vfs.FS, string){
		"memfs": func(t *testing.T) (vfs.FS, string) { return memfs.New(), "/d" },
		"os":    func(t *testing.T) (vfs.FS, string) { return vfs.OS(), filepath.Join(t.TempDir(), "d") },
	}
	for name, newBase := range bases {
		t.Run(name, func(t *testing.T) {
			vfstest.Model(t, func(t *testing.T) (vfs.FS, string) {
				below, dir := newBase(t)
				must(t, below.MkdirAll(dir))
				for name, data := range initial() {
					newFile(t, below, filepath.Join(dir, name), data)
				}
				return overlayfs.New(writeGuard(t, below)), dir
			}, initial())
		})
	}
}

// tree describes all names and contents below dir.
func tree(t *testing.T, fsys vfs.FS, dir string) map[string]string {
	t.Helper()
	got := map[string]string{}
	var walk func(at string)
	walk = func(at string) {
		entries, err := fsys.List(filepath.Join(dir, at))
		must(t, err)
		for _, e := range entries {
			name := filepath.Join(at, e.Name)
			if e.IsDir() {
				got[name+"/"] = ""
				walk(name)
				continue
			}
			data, err := vfs.ReadFile(fsys, filepath.Join(dir, name), 1<<20)
			must(t, err)
			got[name] = string(data)
		}
	}
	walk("")
	return got
}

func TestNamesAboveBase(t *testing.T) {
	newBase := func(t *testing.T) vfs.FS {
		mem := memfs.New()
		must(t, mem.MkdirAll("/s/queue/T"))
		must(t, mem.MkdirAll("/s/empty"))
		newFile(t, mem, "/s/f", []byte("f"))
		newFile(t, mem, "/s/queue/T/0", []byte("zero"))
		newFile(t, mem, "/s/queue/T/1", []byte("one"))
		return mem
	}
	write := func(fsys vfs.FS, name, data string) error {
		f, err := fsys.Open(name, vfs.ReadWrite)
		if err != nil {
			return err
		}
		defer f.Close()
		_, err = f.WriteAt([]byte(data), 0)
		return err
	}
	before := map[string]string{"empty/": "", "f": "f", "queue/": "", "queue/T/": "", "queue/T/0": "zero", "queue/T/1": "one"}
	tests := []struct {
		name   string
		change func(fsys vfs.FS) error
		want   map[string]string
	}{
		{"nothing", func(vfs.FS) error { return nil }, before},
		{"write", func(o vfs.FS) error { return write(o, "/s/queue/T/0", "ZE") },
			map[string]string{"empty/": "", "f": "f", "queue/": "", "queue/T/": "", "queue/T/0": "ZEro", "queue/T/1": "one"}},
		{"remove a file", func(o vfs.FS) error { return o.Remove("/s/queue/T/0") },
			map[string]string{"empty/": "", "f": "f", "queue/": "", "queue/T/": "", "queue/T/1": "one"}},
		{"remove a directory", func(o vfs.FS) error {
			return errors.Join(o.Remove("/s/queue/T/0"), o.Remove("/s/queue/T/1"), o.Remove("/s/queue/T"), o.Remove("/s/empty"))
		}, map[string]string{"f": "f", "queue/": ""}},
		{"remove and make again", func(o vfs.FS) error {
			return errors.Join(o.Remove("/s/queue/T/0"), o.Remove("/s/queue/T/1"), o.Remove("/s/queue/T"), o.MkdirAll("/s/queue/T"))
		}, map[string]string{"empty/": "", "f": "f", "queue/": "", "queue/T/": ""}},
		{"rename a file", func(o vfs.FS) error { return o.Rename("/s/queue/T/0", "/s/empty/0") },
			map[string]string{"empty/": "", "empty/0": "zero", "f": "f", "queue/": "", "queue/T/": "", "queue/T/1": "one"}},
		{"rename over a file", func(o vfs.FS) error { return o.Rename("/s/queue/T/0", "/s/queue/T/1") },
			map[string]string{"empty/": "", "f": "f", "queue/": "", "queue/T/": "", "queue/T/1": "zero"}},
		{"rename there and back", func(o vfs.FS) error {
			return errors.Join(o.Rename("/s/f", "/s/g"), o.Rename("/s/g", "/s/f"))
		}, before},
		{"rename a directory", func(o vfs.FS) error { return o.Rename("/s/queue", "/s/empty/q") },
			map[string]string{"empty/": "", "empty/q/": "", "empty/q/T/": "", "empty/q/T/0": "zero", "empty/q/T/1": "one", "f": "f"}},
		{"change in a renamed directory", func(o vfs.FS) error {
			return errors.Join(o.Rename("/s/queue/T", "/s/U"), write(o, "/s/U/0", "Z"), o.Remove("/s/U/1"), o.Remove("/s/queue"))
		}, map[string]string{"U/": "", "U/0": "Zero", "empty/": "", "f": "f"}},
		{"directory into itself", func(o vfs.FS) error {
			if o.Rename("/s/queue", "/s/queue/T/q") == nil {
				return errors.New("no error")
			}
			return nil
		}, before},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			below := newBase(t)
			fsys := overlayfs.New(writeGuard(t, below))
			must(t, tt.change(fsys))
			if diff := cmp.Diff(tt.want, tree(t, fsys, "/s")); diff != "" {
				t.Errorf("overlay (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(before, tree(t, below, "/s")); diff != "" {
				t.Errorf("base (-want +got):\n%s", diff)
			}
		})
	}
}

func TestLockAsksBase(t *testing.T) {
	mem := memfs.New()
	l, err := mem.Lock("/lock")
	must(t, err)
	fsys := overlayfs.New(mem)
	if _, err := fsys.Lock("/lock"); !errors.Is(err, base.ErrLocked) {
		t.Errorf("Lock while the base is locked: %v", err)
	}
	if held, err := fsys.Locked("/lock"); !held || err != nil {
		t.Errorf("Locked: %v, %v", held, err)
	}
	must(t, l.Close())
	mine, err := fsys.Lock("/lock")
	must(t, err)
	defer mine.Close()
	if held, _ := mem.Locked("/lock"); held {
		t.Error("the overlay's lock is in the base")
	}
	if _, err := fsys.Lock("/lock"); !errors.Is(err, base.ErrLocked) {
		t.Errorf("second Lock: %v", err)
	}
}

// TestLinks: a store may have links to other disks; they lead where they lead.
func TestLinks(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("links need a privilege there")
	}
	dir := t.TempDir()
	for _, d := range []string{"store", "disk2/log"} {
		must(t, os.MkdirAll(filepath.Join(dir, d), 0o755))
	}
	must(t, os.WriteFile(filepath.Join(dir, "disk2/log/0"), []byte("record"), 0o644))
	must(t, os.Symlink("../disk2/log", filepath.Join(dir, "store/commitlog")))
	must(t, os.Symlink("../disk2/log/0", filepath.Join(dir, "store/file")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "store/dangling")))

	fsys := overlayfs.New(writeGuard(t, vfs.OS()))
	store := func(name string) string { return filepath.Join(dir, "store", name) }
	for _, name := range []string{"commitlog/0", "file"} {
		f, err := fsys.Open(store(name), vfs.ReadWrite)
		must(t, err)
		_, err = f.WriteAt([]byte("R"), 0)
		must(t, err)
		must(t, f.Close())
		got, err := vfs.ReadFile(fsys, store(name), 100)
		must(t, err)
		if string(got) != "Record" {
			t.Errorf("%s holds %q", name, got)
		}
	}
	if _, err := fsys.Open(store("dangling"), vfs.ReadOnly); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open of a dangling link: %v", err)
	}
	entries, err := fsys.List(store(""))
	must(t, err)
	for _, e := range entries {
		if e.Mode&fs.ModeSymlink == 0 {
			t.Errorf("%s is listed as %v", e.Name, e.Mode)
		}
	}
	if got, _ := os.ReadFile(filepath.Join(dir, "disk2/log/0")); string(got) != "record" {
		t.Errorf("the base holds %q", got)
	}
}

// TestReadErrorOfBase: a bad sector of the base is an error of the overlay, and
// of nothing but what needs it.
func TestReadErrorOfBase(t *testing.T) {
	mem := memfs.New()
	newFile(t, mem, "/f", bytes.Repeat([]byte("d"), 4*4096))
	below := faultfs.New(mem)
	below.Inject(faultfs.Rule{
		Ops:   faultfs.OpRead,
		Match: func(c faultfs.Call) bool { return c.Off < 2*4096 && c.Off+c.N > 4096 },
		Err:   faultfs.ErrIO,
	})
	fsys := overlayfs.New(below)
	f, err := fsys.Open("/f", vfs.ReadWrite)
	must(t, err)
	defer f.Close()
	m, err := f.Map(true)
	must(t, err)
	defer m.Unmap()
	p := make([]byte, 100)
	for i, tt := range []struct {
		off  int64
		fail bool
	}{{0, false}, {4096, true}, {2 * 4096, false}} {
		_, readErr := f.ReadAt(p, tt.off)
		_, mapErr := m.ReadAt(p, tt.off)
		_, writeErr := f.WriteAt(p, tt.off) // needs the rest of the page
		_, mapWriteErr := m.WriteAt(p, tt.off+200)
		for op, err := range map[string]error{"ReadAt": readErr, "mapped ReadAt": mapErr, "WriteAt": writeErr, "mapped WriteAt": mapWriteErr} {
			if errors.Is(err, faultfs.ErrIO) != tt.fail {
				t.Errorf("%s in page %d: %v", op, i, err)
			}
		}
	}
	// Overwriting the page as a whole makes it good.
	if _, err := f.WriteAt(make([]byte, 4096), 4096); err != nil {
		t.Error(err)
	}
	if _, err := f.ReadAt(p, 4096+50); err != nil || p[0] != 0 {
		t.Errorf("after overwriting: %v, %q", err, p[:1])
	}
}

// TestReadingForgets: opening and closing many files leaves no base file open,
// and a changed file keeps its changes while nobody has it open.
func TestReadingForgets(t *testing.T) {
	mem := memfs.New()
	for i := range 20 {
		newFile(t, mem, fmt.Sprint("/", i), []byte("data"))
	}
	below := faultfs.New(mem)
	fsys := overlayfs.New(below)
	for i := range 20 {
		f, err := fsys.Open(fmt.Sprint("/", i), vfs.ReadWrite)
		must(t, err)
		m, err := f.Map(true)
		must(t, err)
		if i == 7 {
			_, err := m.WriteAt([]byte("D"), 0)
			must(t, err)
		}
		must(t, f.Close())
		must(t, m.Unmap())
	}
	opens, closes := below.Count(faultfs.OpOpen, "").Calls, below.Count(faultfs.OpClose, "").Calls
	if opens != 20 || closes != opens {
		t.Errorf("%d opens, %d closes", opens, closes)
	}
	if got := tree(t, fsys, "/"); got["7"] != "Data" || got["8"] != "data" {
		t.Errorf("contents %v", got)
	}
}

// TestStoreBehindEnd: what is stored between the end of a file and the end of
// its last page is not in the file.
func TestStoreBehindEnd(t *testing.T) {
	mem := memfs.New()
	newFile(t, mem, "/f", bytes.Repeat([]byte("o"), 100))
	fsys := overlayfs.New(mem)
	f, err := fsys.Open("/f", vfs.ReadWrite)
	must(t, err)
	defer f.Close()
	m, err := f.Map(true)
	must(t, err)
	defer m.Unmap()
	must(t, f.Truncate(10))
	_, err = m.WriteAt(bytes.Repeat([]byte("n"), 50), 5)
	must(t, err)
	must(t, f.Truncate(100))
	want := "ooooonnnnn" + string(make([]byte, 90))
	if got := tree(t, fsys, "/")["f"]; got != want {
		t.Errorf("file holds %q, want %q", got, want)
	}
}

// TestZerosCostNothing: recovery clears the tail of a large file.
func TestZerosCostNothing(t *testing.T) {
	mem := memfs.New()
	f, err := mem.Create("/f")
	must(t, err)
	must(t, f.Truncate(1<<30))
	must(t, f.Close())
	fsys := overlayfs.New(mem)
	f, err = fsys.Open("/f", vfs.ReadWrite)
	must(t, err)
	defer f.Close()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	zeros := make([]byte, 1<<20)
	for off := int64(0); off < 64<<20; off += 1 << 20 {
		_, err := f.WriteAt(zeros, off)
		must(t, err)
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("64 MiB of zeros took %d bytes", grown)
	}
	_, err = f.WriteAt([]byte("x"), 4096)
	must(t, err)
	p := make([]byte, 2)
	if _, err := f.ReadAt(p, 8191); err != nil || p[0] != 0 || p[1] != 0 {
		t.Errorf("a neighbour changed: %q, %v", p, err)
	}
}

// TestSnapshot: names that come into a listed directory of the base are not
// seen, and can be created; those that go are gone.
func TestSnapshot(t *testing.T) {
	base := memfs.New()
	put := func(name, content string) {
		t.Helper()
		f, err := base.Create(name)
		if err == nil && content != "" {
			_, err = f.WriteAt([]byte(content), 0)
		}
		if err := errors.Join(err, f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	if err := base.MkdirAll("/d/sub"); err != nil {
		t.Fatal(err)
	}
	put("/d/old", "old")
	put("/d/gone", "gone")
	put("/d/half", "")
	f := overlayfs.NewSnapshot(base, func(e vfs.Entry) bool { return e.IsRegular() && e.Size == 0 })
	names := func() (list []string) {
		entries, err := f.List("/d")
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			list = append(list, e.Name)
		}
		return list
	}
	want := []string{"gone", "old", "sub"}
	if got := names(); !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	for _, dir := range []string{"/d/sub/late", "/late/sub"} {
		if _, err := f.List(dir); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("list %s: %v", dir, err)
		}
		if err := base.MkdirAll(dir); err != nil {
			t.Fatal(err)
		}
		put(dir+"/0", "theirs")
		if _, err := f.Stat(dir + "/0"); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("a directory that came later: %v", err)
		}
		if err := f.MkdirAll(dir); err != nil {
			t.Fatal(err)
		}
		h, err := f.Create(dir + "/0")
		if err != nil {
			t.Errorf("a file in a directory that came later: %v", err)
			continue
		}
		h.Close() //nolint:errcheck // in memory
	}
	put("/d/new", "theirs")
	put("/d/sub/new", "seen: nobody has listed sub")
	if err := base.Remove("/d/gone"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"/d/new", "/d/half", "/d/gone"} {
		if _, err := f.Stat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("stat %s: %v", name, err)
		}
	}
	if _, err := f.Stat("/d/sub/new"); err != nil {
		t.Error(err)
	}
	h, err := f.Create("/d/new")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := h.WriteAt([]byte("ours"), 0); err != nil {
		t.Error(err)
	}
	if err := h.Close(); err != nil {
		t.Error(err)
	}
	if got, err := vfs.ReadFile(f, "/d/new", 100); string(got) != "ours" {
		t.Errorf("content %q, %v", got, err)
	}
	if got, want := names(), []string{"new", "old", "sub"}; !slices.Equal(got, want) {
		t.Errorf("names %q, want %q", got, want)
	}
	if err := f.Remove("/d/new"); err != nil {
		t.Error(err)
	}
	if _, err := f.Stat("/d/new"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after removing it: %v", err)
	}
}
