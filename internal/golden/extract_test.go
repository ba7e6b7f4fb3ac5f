package golden

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
)

// archive makes a gzipped tar archive. A header's Size counts only where the
// content is nil; then the archive ends in the middle.
func archive(tb testing.TB, entries ...entry) []byte {
	tb.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	tw := tar.NewWriter(zw)
	for _, e := range entries {
		h := e.header
		if h.Typeflag == tar.TypeReg && e.content != nil {
			h.Size = int64(len(e.content))
		}
		if err := tw.WriteHeader(&h); err != nil {
			tb.Fatal(err)
		}
		if _, err := tw.Write(e.content); err != nil {
			tb.Fatal(err)
		}
	}
	// Not tw.Close: it refuses an archive that is shorter than it claims.
	if err := zw.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

type entry struct {
	header  tar.Header
	content []byte
}

func file(name, content string) entry {
	return entry{tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644}, []byte(content)}
}

func TestExtractRefuses(t *testing.T) {
	huge := entry{tar.Header{Typeflag: tar.TypeReg, Name: "s/huge", Size: maxFileSize + 1}, nil}
	short := entry{tar.Header{Typeflag: tar.TypeReg, Name: "s/short", Size: 1 << 20}, nil}
	many := make([]entry, maxNames+1)
	for i := range many {
		many[i] = entry{tar.Header{Typeflag: tar.TypeDir, Name: "s/"}, nil}
	}
	good := archive(t, file("s/a", strings.Repeat("x", 5000)))
	for _, tc := range []struct {
		name    string
		archive []byte
	}{
		{"not gzip", []byte("plain text")},
		{"empty", nil},
		{"not tar", gz(t, []byte(strings.Repeat("plain text ", 100)))},
		{"absolute name", archive(t, file("/s/a", "x"))},
		{"parent", archive(t, file("s/../../evil", "x"))},
		{"only parent", archive(t, file("..", "x"))},
		{"another top folder", archive(t, file("t/a", "x"))},
		{"longer top folder", archive(t, file("s2/a", "x"))},
		{"backslash", archive(t, file(`s/..\..\evil`, "x"))},
		{"empty element", archive(t, file("s//a", "x"))},
		{"dot element", archive(t, file("s/./a", "x"))},
		{"symbolic link", archive(t, entry{tar.Header{Typeflag: tar.TypeSymlink, Name: "s/l", Linkname: "/etc"}, nil})},
		{"hard link", archive(t, file("s/a", "x"), entry{tar.Header{Typeflag: tar.TypeLink, Name: "s/l", Linkname: "s/a"}, nil})},
		{"device", archive(t, entry{tar.Header{Typeflag: tar.TypeChar, Name: "s/null", Devmajor: 1, Devminor: 3}, nil})},
		{"pipe", archive(t, entry{tar.Header{Typeflag: tar.TypeFifo, Name: "s/p"}, nil})},
		{"same name twice", archive(t, file("s/a", "x"), file("s/a", "y"))},
		{"file below a file", archive(t, file("s/a", "x"), file("s/a/b", "y"))},
		{"top is a file", archive(t, file("s", "x"))},
		{"too large", archive(t, huge)},
		{"too many names", archive(t, many...)},
		{"shorter than claimed", archive(t, short)},
		{"wrong checksum", append(bytes.Clone(good[:len(good)-8]), make([]byte, 8)...)},
		{"cut", good[:len(good)-9]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			outside := t.TempDir()
			if err := extract(vfs.OS(), filepath.Join(outside, "in", "store"), "s", bytes.NewReader(tc.archive), false); err == nil {
				t.Errorf("accepted")
			}
			err := filepath.WalkDir(outside, func(path string, d os.DirEntry, err error) error {
				if err != nil {
					return err
				}
				if !d.IsDir() && !strings.HasPrefix(path, filepath.Join(outside, "in", "store")+string(filepath.Separator)) {
					t.Errorf("%s was written", path)
				}
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// TestTotalSize checks the sum of sizes without unpacking so much: the claim of
// the last file alone exceeds what is left.
func TestTotalSize(t *testing.T) {
	pr, pw := io.Pipe()
	go func() {
		zw := gzip.NewWriter(pw)
		tw := tar.NewWriter(zw)
		zeros := make([]byte, 1<<20)
		var err error
		for i := 0; i <= maxTotalSize/maxFileSize && err == nil; i++ {
			err = tw.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "s/" + string(rune('a'+i)), Size: maxFileSize})
			for n := 0; n < maxFileSize && err == nil; n += len(zeros) {
				_, err = tw.Write(zeros)
			}
		}
		pw.CloseWithError(err)
	}()
	err := extract(vfs.OS(), filepath.Join(t.TempDir(), "store"), "s", pr, false)
	pr.Close()
	if err == nil || !strings.Contains(err.Error(), "too many") {
		t.Errorf("got %v, want a refusal for the sum of sizes", err)
	}
}

func TestExtractIntoFullDirectory(t *testing.T) {
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "mine"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := extract(vfs.OS(), root, "s", bytes.NewReader(archive(t, file("s/a", "x"))), false); err == nil {
		t.Errorf("accepted")
	}
	if _, err := os.Stat(filepath.Join(root, "a")); err == nil {
		t.Errorf("a file was written")
	}
}

// TestExtractContent checks pages of zeros between others, and an end within a
// page.
func TestExtractContent(t *testing.T) {
	page := func(b byte) string { return strings.Repeat(string(rune(b)), pageSize) }
	for _, tc := range []struct{ name, content string }{
		{"empty", ""},
		{"one byte", "x"},
		{"one zero byte", "\x00"},
		{"zeros", page(0) + page(0)},
		{"holes", page(0) + page('a') + page(0) + page(0) + page('b') + "\x00\x00"},
		{"long", strings.Repeat(page(0)+page('c'), 40) + "end"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			root := filepath.Join(t.TempDir(), "store")
			if err := extract(vfs.OS(), root, "s", bytes.NewReader(archive(t, file("s/d/f", tc.content))), true); err != nil {
				t.Fatal(err)
			}
			got, err := os.ReadFile(filepath.Join(root, "d", "f"))
			if err != nil {
				t.Fatal(err)
			}
			if string(got) != tc.content {
				t.Errorf("content of %d bytes differs from %d", len(got), len(tc.content))
			}
		})
	}
}

func TestDiffTrees(t *testing.T) {
	a := File{Path: "a", Size: 1, SHA256: Hash{1}}
	b := File{Path: "b", Size: 1, SHA256: Hash{2}}
	longer, other := a, a
	longer.Size = 2
	other.SHA256 = Hash{3}
	for _, tc := range []struct {
		name      string
		want, got []File
		lines     string
	}{
		{"equal", []File{a, b}, []File{b, a}, ""},
		{"missing", []File{a, b}, []File{a}, "b: missing"},
		{"unexpected", []File{a}, []File{a, b}, "b: unexpected"},
		{"size", []File{a}, []File{longer}, "a: size 2, want 1"},
		{"content", []File{a, b}, []File{other, b}, "a: content differs"},
	} {
		if got := strings.Join(DiffTrees(tc.want, tc.got), "\n"); got != tc.lines {
			t.Errorf("%s: got %q, want %q", tc.name, got, tc.lines)
		}
	}
}

func gz(tb testing.TB, content []byte) []byte {
	tb.Helper()
	var b bytes.Buffer
	zw := gzip.NewWriter(&b)
	if _, err := zw.Write(content); err != nil {
		tb.Fatal(err)
	}
	if err := zw.Close(); err != nil {
		tb.Fatal(err)
	}
	return b.Bytes()
}

func FuzzExtract(f *testing.F) {
	f.Add(archive(f, file("s/a", "content"), file("s/d/b", strings.Repeat("\x00", 9000))))
	f.Add(archive(f, file("s/../x", "content")))
	f.Add(archive(f, entry{tar.Header{Typeflag: tar.TypeDir, Name: "s/d/"}, nil}, entry{tar.Header{Typeflag: tar.TypeSymlink, Name: "s/l", Linkname: ".."}, nil}))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		outside := t.TempDir()
		// What is refused may leave a part behind, but never outside.
		_ = extract(vfs.OS(), filepath.Join(outside, "store"), "s", bytes.NewReader(b), false)
		entries, err := os.ReadDir(outside)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.Name() != "store" {
				t.Errorf("%s was written", e.Name())
			}
		}
	})
}
