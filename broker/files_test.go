package broker

import (
	"bytes"
	"io"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
)

func readFile(t testing.TB, fsys vfs.FS, name string) []byte {
	t.Helper()
	f, err := fsys.Open(name, vfs.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(io.NewSectionReader(f, 0, size))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func writeFile(t testing.TB, fsys vfs.FS, name string, data []byte) {
	t.Helper()
	f, err := fsys.Open(name, vfs.ReadWrite)
	if err != nil {
		f, err = fsys.Create(name)
	}
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // Sync tells
	if err := f.Truncate(0); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(data, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
}

func replaceInFile(t testing.TB, fsys vfs.FS, name, old, text string) {
	t.Helper()
	data := readFile(t, fsys, name)
	if !bytes.Contains(data, []byte(old)) {
		t.Fatalf("%s has no %q: %s", name, old, data)
	}
	writeFile(t, fsys, name, bytes.ReplaceAll(data, []byte(old), []byte(text)))
}
