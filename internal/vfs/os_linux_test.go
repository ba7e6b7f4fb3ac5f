package vfs

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/gantrymq/gantry/internal/base"
)

func newMapping(t testing.TB, size int64) (*osFile, *mapping) {
	t.Helper()
	f, err := OS().Create(filepath.Join(t.TempDir(), "f"))
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(size))
	must(t, f.Allocate(0, size))
	m, err := f.Map(true)
	must(t, err)
	t.Cleanup(func() { m.Unmap() })
	return f.(*osFile), m.(*mapping)
}

// TestFaultIsContained: a fault in a mapping is an error and leaves the
// goroutine as it was: other faults are not swallowed.
func TestFaultIsContained(t *testing.T) {
	f, m := newMapping(t, 8*4096)
	must(t, f.Truncate(0))
	for _, on := range []bool{false, true} {
		old := debug.SetPanicOnFault(on)
		_, err := m.ReadAt(make([]byte, 4096), 4096)
		if !errors.Is(err, ErrFault) || !strings.Contains(err.Error(), f.name) {
			t.Errorf("ReadAt: %v", err)
		}
		if _, err := m.WriteAt([]byte("x"), 8*4096-1); !errors.Is(err, ErrFault) {
			t.Errorf("WriteAt: %v", err)
		}
		if got := debug.SetPanicOnFault(old); got != on {
			t.Errorf("panic on fault is %v after the calls, was %v", got, on)
		}
	}

	// A fault outside the mapping is not ours to explain: the caller's buffer
	// lies in a mapping that faults, too.
	_, other := newMapping(t, 4096)
	defer func() {
		if recover() == nil {
			t.Error("a fault of the caller's memory became an error")
		}
	}()
	other.ReadAt(m.data[:10], 0)
}

func TestMappingDoesNotAllocate(t *testing.T) {
	_, m := newMapping(t, 1<<20)
	p := make([]byte, 1000)
	if n := testing.AllocsPerRun(100, func() {
		m.WriteAt(p, 5000)
		m.ReadAt(p, 7000)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestAllocateReserves: the file system says that there are blocks, and that
// the length is the old one.
func TestAllocateReserves(t *testing.T) {
	f, err := OS().Create(filepath.Join(t.TempDir(), "f"))
	must(t, err)
	defer f.Close()
	blocks := func() int64 {
		var st unix.Stat_t
		must(t, f.(*osFile).control(func(fd int) error { return unix.Fstat(fd, &st) }))
		return st.Blocks * 512
	}
	must(t, f.Truncate(1<<20))
	before := blocks()
	must(t, f.Allocate(0, 256<<10))
	if got := blocks(); got < before+256<<10 {
		t.Errorf("%d bytes in blocks after Allocate, %d before", got, before)
	}
}

// TestAllocateByWriting is the way of file systems without fallocate.
func TestAllocateByWriting(t *testing.T) {
	want := make([]byte, 100_000)
	copy(want[3*4096-5:], "over a page border")
	copy(want[99_990:], "at the end")
	f, err := OS().Create(filepath.Join(t.TempDir(), "f"))
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(int64(len(want))))
	for i, c := range want {
		if c != 0 {
			_, err := f.WriteAt(want[i:i+1], int64(i))
			must(t, err)
		}
	}
	for _, r := range [][2]int64{{5000, 1}, {0, 50_000}, {90_000, 1 << 40}, {200_000, 10}, {0, 100_000}} {
		must(t, f.(*osFile).allocateByWriting(r[0], r[1]))
		if size, err := f.Size(); size != int64(len(want)) || err != nil {
			t.Fatalf("range %v: size %d, %v", r, size, err)
		}
		got := make([]byte, len(want))
		_, err := f.ReadAt(got, 0)
		must(t, err)
		if !bytes.Equal(got, want) {
			t.Fatalf("range %v changed the content", r)
		}
	}
	var st unix.Stat_t
	must(t, f.(*osFile).control(func(fd int) error { return unix.Fstat(fd, &st) }))
	if st.Blocks*512 < 100_000 {
		t.Errorf("%d bytes in blocks", st.Blocks*512)
	}
}

// TestSpecialFiles: what is not a regular file is listed as what it is, and
// opening it is an error rather than an endless wait.
func TestSpecialFiles(t *testing.T) {
	dir := t.TempDir()
	must(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o644))
	must(t, os.WriteFile(filepath.Join(dir, "real"), []byte("content"), 0o644))
	must(t, os.Symlink("real", filepath.Join(dir, "link")))
	must(t, os.Symlink("nowhere", filepath.Join(dir, "dangling")))
	entries, err := OS().List(dir)
	must(t, err)
	want := map[string]fs.FileMode{"pipe": fs.ModeNamedPipe, "real": 0, "link": fs.ModeSymlink, "dangling": fs.ModeSymlink}
	for _, e := range entries {
		if e.Mode.Type() != want[e.Name] {
			t.Errorf("%s: type %v, want %v", e.Name, e.Mode.Type(), want[e.Name])
		}
		if !e.IsRegular() && e.Size != 0 {
			t.Errorf("%s has size %d", e.Name, e.Size)
		}
	}
	if len(entries) != len(want) {
		t.Errorf("%d entries, want %d", len(entries), len(want))
	}
	for _, mode := range []Mode{ReadOnly, ReadWrite} {
		if _, err := OS().Open(filepath.Join(dir, "pipe"), mode); err == nil {
			t.Error("Open of a pipe: no error")
		}
	}
	got, err := ReadFile(OS(), filepath.Join(dir, "link"), 100)
	if string(got) != "content" || err != nil {
		t.Errorf("through the link: %q, %v", got, err)
	}
	if _, err := OS().Create(filepath.Join(dir, "dangling")); !errors.Is(err, fs.ErrExist) {
		t.Errorf("Create over a dangling link: %v", err)
	}
}

// TestDiskFullErrors: the system's words for it are recognised, others are not.
func TestDiskFullErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want bool
	}{
		{nil, false},
		{&fs.PathError{Op: "write", Path: "f", Err: unix.ENOSPC}, true},
		{&fs.PathError{Op: "write", Path: "f", Err: unix.EDQUOT}, true},
		{&fs.PathError{Op: "write", Path: "f", Err: unix.EIO}, false},
		{fmt.Errorf("%w: again", base.ErrDiskFull), true},
	} {
		got := diskFull(tt.err)
		if errors.Is(got, base.ErrDiskFull) != tt.want || !errors.Is(got, tt.err) {
			t.Errorf("diskFull(%v) = %v", tt.err, got)
		}
	}
}

// TestRealDiskFull fills a small tmpfs, where the test may mount one.
func TestRealDiskFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skip("no right to mount: ", err)
	}
	t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
	f, err := OS().Create(filepath.Join(dir, "f"))
	must(t, err)
	defer f.Close()
	must(t, f.Truncate(4<<20))
	m, err := f.Map(true)
	must(t, err)
	defer m.Unmap()
	_, err = m.WriteAt([]byte("kept"), 0)
	must(t, err)

	if err := f.Allocate(0, 4<<20); !errors.Is(err, base.ErrDiskFull) {
		t.Errorf("Allocate: %v", err)
	}
	if err := f.Allocate(0, 64<<10); err != nil {
		t.Errorf("smaller Allocate: %v", err)
	}
	n, err := f.WriteAt(make([]byte, 2<<20), 64<<10)
	if n >= 2<<20 || !errors.Is(err, base.ErrDiskFull) {
		t.Errorf("WriteAt: %d, %v", n, err)
	}
	// The page has no block and there is none left: the store faults.
	if _, err := m.WriteAt([]byte("x"), 3<<20); !errors.Is(err, ErrFault) {
		t.Errorf("mapped WriteAt: %v", err)
	}
	if _, err := m.WriteAt([]byte("KE"), 0); err != nil {
		t.Errorf("mapped WriteAt to a block: %v", err)
	}
	got := make([]byte, 4)
	if _, err := f.ReadAt(got, 0); string(got) != "KEpt" || err != nil {
		t.Errorf("read %q, %v", got, err)
	}
	u, err := OS().DiskUsage(dir)
	if u.Total != 1<<20 || u.Free != 0 || u.Used != 1<<20 || err != nil {
		t.Errorf("usage %+v, %v", u, err)
	}
}

func TestReadOnlyMapping(t *testing.T) {
	f, _ := newMapping(t, 4096)
	m, err := f.Map(false)
	must(t, err)
	defer m.Unmap()
	if _, err := m.WriteAt([]byte("x"), 0); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("WriteAt: %v", err)
	}
	must(t, m.Populate(0, 4096))
}

func TestControlRepeats(t *testing.T) {
	f, _ := newMapping(t, 10)
	calls := 0
	err := f.control(func(int) error {
		if calls++; calls < 3 {
			return syscall.EINTR
		}
		return nil
	})
	if calls != 3 || err != nil {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// The cost of one record of the log, by mapping and by write.
func BenchmarkWriteAt(b *testing.B) {
	for _, size := range []int{128, 1 << 10, 64 << 10} {
		for _, how := range []string{"mapped", "file"} {
			b.Run(fmt.Sprintf("via=%s/size=%d", how, size), func(b *testing.B) {
				const length = 64 << 20
				f, m := newMapping(b, length)
				must(b, m.Populate(0, length))
				var w interface {
					WriteAt([]byte, int64) (int, error)
				} = f
				if how == "mapped" {
					w = m
				}
				p := make([]byte, size)
				b.SetBytes(int64(size))
				b.ReportAllocs()
				off := int64(0)
				for b.Loop() {
					if _, err := w.WriteAt(p, off); err != nil {
						b.Fatal(err)
					}
					if off += int64(size); off > length-int64(size) {
						off = 0
					}
				}
			})
		}
	}
}

func BenchmarkReadAt(b *testing.B) {
	for _, how := range []string{"mapped", "file"} {
		for _, size := range []int{20, 1 << 10} {
			b.Run(fmt.Sprintf("via=%s/size=%d", how, size), func(b *testing.B) {
				f, m := newMapping(b, 1<<20)
				var r interface {
					ReadAt([]byte, int64) (int, error)
				} = f
				if how == "mapped" {
					r = m
				}
				p := make([]byte, size)
				b.ReportAllocs()
				for b.Loop() {
					if _, err := r.ReadAt(p, 4000); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// TestAllocated: what a file occupies is told apart from its length.
func TestAllocated(t *testing.T) {
	name := filepath.Join(t.TempDir(), "f")
	f, err := OS().Create(name)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, f.Truncate(1<<30))
	must(t, f.Allocate(0, 64<<10))
	e, err := OS().Stat(name)
	must(t, err)
	if e.Size != 1<<30 || e.Allocated < 64<<10 || e.Allocated > 1<<20 {
		t.Errorf("64 KiB of a file of 1 GiB are reserved: %+v", e)
	}
}
