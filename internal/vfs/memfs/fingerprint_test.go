package memfs

import (
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
)

// TestFingerprint: file systems with the same content have one fingerprint,
// whatever way they came to it; any difference that a user can find shows.
func TestFingerprint(t *testing.T) {
	build := func(change func(f *FS)) *FS {
		f := NewCrashable(1)
		must(t, f.MkdirAll("/d/e"))
		file := newFile(t, f, "/d/f")
		if _, err := file.WriteAt([]byte("content"), 3*pageSize); err != nil {
			t.Fatal(err)
		}
		must(t, file.Sync())
		must(t, f.SyncDir("/d"))
		must(t, file.Close())
		if change != nil {
			change(f)
		}
		return f
	}
	want := build(nil).Fingerprint()
	for name, same := range map[string]*FS{
		"built again":  build(nil),
		"a clone":      build(nil).CrashClone(LoseUnsynced),
		"a torn clone": build(nil).CrashClone(KeepAll | Torn),
		"written back and forth": build(func(f *FS) {
			file := reopen(t, f, "/d/f")
			for _, b := range []byte{'x', 0} {
				if _, err := file.WriteAt([]byte{b}, 3*pageSize+100); err != nil {
					t.Fatal(err)
				}
			}
			must(t, file.Truncate(3*pageSize+7))
		}),
		"a file made and removed": build(func(f *FS) {
			must(t, newFile(t, f, "/d/g").Close())
			must(t, f.Remove("/d/g"))
		}),
	} {
		for range 2 { // the second answer is put together from kept parts
			if got := same.Fingerprint(); got != want {
				t.Errorf("%s: fingerprint %x, want %x", name, got, want)
			}
		}
	}
	seen := map[uint64]string{want: "as built"}
	for name, change := range map[string]func(f *FS){
		"a byte":      func(f *FS) { writeByte(t, f, 3*pageSize) },
		"in a hole":   func(f *FS) { writeByte(t, f, pageSize) },
		"longer":      func(f *FS) { must(t, reopen(t, f, "/d/f").Truncate(1<<20)) },
		"a block":     func(f *FS) { must(t, reopen(t, f, "/d/f").Allocate(0, 1)) },
		"other name":  func(f *FS) { must(t, f.Rename("/d/f", "/d/g")) },
		"other place": func(f *FS) { must(t, f.Rename("/d/f", "/d/e/f")) },
		"removed":     func(f *FS) { must(t, f.Remove("/d/f")) },
		"directory":   func(f *FS) { must(t, f.MkdirAll("/d/g")) },
		"empty file":  func(f *FS) { must(t, newFile(t, f, "/d/g").Close()) },
	} {
		got := build(change).Fingerprint()
		if other, ok := seen[got]; ok {
			t.Errorf("%s: the fingerprint is that of: %s", name, other)
		}
		seen[got] = name
	}
}

func reopen(t *testing.T, f *FS, name string) *file {
	t.Helper()
	opened, err := f.Open(name, vfs.ReadWrite)
	must(t, err)
	return opened.(*file)
}

func writeByte(t *testing.T, f *FS, off int64) {
	t.Helper()
	if _, err := reopen(t, f, "/d/f").WriteAt([]byte{'!'}, off); err != nil {
		t.Fatal(err)
	}
}
