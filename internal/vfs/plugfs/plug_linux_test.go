//go:build amd64 || arm64

package plugfs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/internal/vfs/vfstest"
)

func TestMain(m *testing.M) {
	Daemon()
	os.Exit(m.Run())
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// start mounts a file system or skips the test with the reason.
func start(t *testing.T) *FS {
	t.Helper()
	p, err := Start(t.TempDir())
	if errors.Is(err, ErrUnavailable) {
		t.Skip(err)
	}
	must(t, err)
	t.Cleanup(func() { must(t, p.Stop()) })
	return p
}

// TestSkipIsHonest: where the pieces are there, the file system is too.
func TestSkipIsHonest(t *testing.T) {
	f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0)
	device := err == nil
	if device {
		must(t, f.Close())
	}
	dir := t.TempDir()
	mayMount := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=64k") == nil
	if mayMount {
		must(t, syscall.Unmount(dir, 0))
	}
	p, err := Start(t.TempDir())
	if err == nil {
		must(t, p.Stop())
	}
	t.Logf("/dev/fuse can be opened: %v; mounting is allowed: %v; the file system: %v", device, mayMount, err)
	switch {
	case device && mayMount && err != nil:
		t.Errorf("it could be had, but: %v", err)
	case err != nil && !errors.Is(err, ErrUnavailable):
		t.Errorf("a machine without it gets %v, which is no reason to skip", err)
	case err != nil && strings.TrimSpace(strings.TrimPrefix(err.Error(), ErrUnavailable.Error()+":")) == "":
		t.Errorf("no reason is named: %v", err)
	}
}

// TestConformance: through the kernel the file system is what package vfs
// promises, like any other.
func TestConformance(t *testing.T) {
	p := start(t)
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		dir, err := os.MkdirTemp(p.Dir(), "test")
		must(t, err)
		return vfs.OS(), dir
	})
}

// mapped makes a file of four pages with blocks and maps it.
func mapped(t *testing.T, name string) vfs.Mapping {
	t.Helper()
	f, err := vfs.OS().Create(name)
	must(t, err)
	must(t, f.Truncate(4*4096))
	must(t, f.Allocate(0, 4*4096))
	must(t, f.Sync())
	must(t, vfs.OS().SyncDir(filepath.Dir(name)))
	m, err := f.Map(true)
	must(t, err)
	must(t, f.Close())
	return m
}

func store(t *testing.T, m vfs.Mapping, text string, off int64) {
	t.Helper()
	if _, err := m.WriteAt([]byte(text), off); err != nil {
		t.Fatal(err)
	}
}

// TestPull: what was stored through a mapping and not synced is gone when the
// power goes, although the process and the kernel had it; what was synced is
// there.
func TestPull(t *testing.T) {
	p := start(t)
	name := filepath.Join(p.Dir(), "f")
	m := mapped(t, name)
	store(t, m, "synced", 0)
	must(t, m.Flush(0, 6))
	store(t, m, "not", 4096)
	store(t, m, "half", 6) // in the page that was synced before
	must(t, p.Pull(memfs.LoseUnsynced, 1))
	if err := m.Flush(4096, 3); err == nil {
		t.Error("a flush without power succeeds")
	}
	must(t, m.Unmap())
	must(t, p.Plug())
	got, err := vfs.ReadFile(vfs.OS(), name, 1<<20)
	must(t, err)
	want := make([]byte, 4*4096)
	copy(want, "synced")
	if string(got) != string(want) {
		t.Errorf("left are %q and %q", got[:10], got[4096:4100])
	}
	// It can be used as before.
	m, err = mapExisting(name)
	must(t, err)
	store(t, m, "again", 100)
	must(t, m.Flush(100, 5))
	must(t, m.Unmap())
	must(t, p.Pull(memfs.LoseUnsynced, 2))
	must(t, p.Plug())
	got, err = vfs.ReadFile(vfs.OS(), name, 1<<20)
	must(t, err)
	if copy(want[100:], "again"); string(got) != string(want) {
		t.Errorf("left are %q", got[:110])
	}
}

func mapExisting(name string) (vfs.Mapping, error) {
	f, err := vfs.OS().Open(name, vfs.ReadWrite)
	if err != nil {
		return nil, err
	}
	m, err := f.Map(true)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return m, err
}

// TestFreeze: changes fail, through every door, and reading goes on.
func TestFreeze(t *testing.T) {
	p := start(t)
	name := filepath.Join(p.Dir(), "f")
	m := mapped(t, name)
	store(t, m, "before", 0)
	must(t, m.Flush(0, 6))
	must(t, p.Freeze(syscall.EROFS))
	store(t, m, "after", 4096)
	if err := m.Flush(4096, 5); err == nil {
		t.Error("a flush succeeds")
	}
	if _, err := vfs.OS().Create(name + "2"); !errors.Is(err, syscall.EROFS) {
		t.Errorf("create: %v", err)
	}
	if err := vfs.OS().Remove(name); !errors.Is(err, syscall.EROFS) {
		t.Errorf("remove: %v", err)
	}
	got := make([]byte, 6)
	if _, err := m.ReadAt(got, 0); err != nil || string(got) != "before" {
		t.Errorf("read %q, %v", got, err)
	}
	must(t, m.Unmap())
	must(t, p.Freeze(0))
	must(t, p.Plug())
	if data, err := vfs.ReadFile(vfs.OS(), name, 1<<20); err != nil || string(data[:6]) != "before" || data[4096] != 0 {
		t.Errorf("read %q, %v", data[:6], err)
	}
}
