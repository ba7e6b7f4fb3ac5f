package mappedfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
)

// TestC33WrongSizesAndForeignFiles opens directories that no clean broker
// leaves. Whatever the outcome, opening and closing changes nothing on disk.
func TestC33WrongSizesAndForeignFiles(t *testing.T) {
	const size = 4 * PageSize
	type file struct {
		name    string
		size    int64
		content []byte
	}
	good := func(starts ...int64) []file {
		var list []file
		for _, s := range starts {
			list = append(list, file{FileName(s), size, record(int(s), size)})
		}
		return list
	}
	path := func(start int64) string { return filepath.Join(testDir, FileName(start)) }
	for _, tt := range []struct {
		name     string
		files    []file
		dirs     []string
		fileSize int64 // -1: infer
		want     Report
		starts   []int64
		badFile  string // the path that a *base.CorruptError names
		badText  string
	}{
		{name: "missing directory", want: Report{FileSize: size}},
		{name: "good", files: good(size, 2*size), starts: []int64{size, 2 * size}, want: Report{FileSize: size}},
		{name: "L19 foreign names",
			files:  append(good(0, size), file{".DS_Store", 3, []byte("abc")}, file{FileName(0) + ".bak", size, nil}, file{"1048576", size, nil}, file{"99999999999999999999", size, nil}, file{FileName(9*size) + ".delete", 1, nil}),
			dirs:   []string{"lost+found", FileName(7 * size)},
			starts: []int64{0, size},
			want: Report{FileSize: size, Foreign: []string{"/log/.DS_Store", "/log/00000000000000000000.bak",
				path(7 * size), "/log/00000000000000147456.delete", "/log/1048576", "/log/99999999999999999999", "/log/lost+found"}}},
		{name: "L20 gap", files: good(0, size, 4*size, 6*size), starts: []int64{0, size, 4 * size, 6 * size},
			want: Report{FileSize: size, Gaps: []Gap{{2 * size, 4 * size}, {5 * size, 6 * size}}}},
		{name: "middle file short", files: append(good(0, 2*size), file{FileName(size), size - 1, nil}),
			badFile: path(size), badText: "size 16383, expected 16384"},
		{name: "middle file long", files: append(good(0, 2*size), file{FileName(size), size + 1, nil}),
			badFile: path(size), badText: "size 16385, expected 16384"},
		{name: "middle file empty", files: append(good(0, 2*size), file{FileName(size), 0, nil}),
			badFile: path(size), badText: "size 0, expected 16384"},
		{name: "last file short", files: append(good(0), file{FileName(size), size - 1, nil}), starts: []int64{0, size},
			want: Report{FileSize: size, Short: []Misfit{{path(size), size - 1}}}},
		{name: "short, and a file made ahead", files: append(good(0), file{FileName(size), size - 1, nil}, file{FileName(2 * size), size, nil}), starts: []int64{0, size, 2 * size},
			want: Report{FileSize: size, Short: []Misfit{{path(size), size - 1}}}},
		{name: "empty, and a file made ahead", files: append(good(0), file{FileName(size), 0, nil}, file{FileName(2 * size), size, nil}), starts: []int64{0, size, 2 * size},
			want: Report{FileSize: size, Short: []Misfit{{path(size), 0}}}},
		{name: "last file long, zero", files: append(good(0), file{FileName(size), size + 4096, record(5, size)}), starts: []int64{0, size},
			want: Report{FileSize: size, Long: []Misfit{{path(size), size + 4096}}}},
		{name: "last file long, not zero", files: append(good(0), file{FileName(size), size + 4096, record(5, size+7)}),
			badFile: path(size), badText: "size 20480, expected 16384, and the surplus is not zero"},
		{name: "only file much longer", files: []file{{FileName(0), size + 1<<20, nil}},
			badFile: path(0), badText: "size 1064960, expected 16384"},
		{name: "last file empty", files: append(good(0, size), file{FileName(2 * size), 0, nil}), starts: []int64{0, size},
			want: Report{FileSize: size, Empty: []string{path(2 * size)}}},
		{name: "two empty files at the end", files: append(good(0), file{FileName(size), 0, nil}, file{FileName(2 * size), 0, nil}), starts: []int64{0},
			want: Report{FileSize: size, Empty: []string{path(size), path(2 * size)}}},
		{name: "only an empty file", files: []file{{FileName(0), 0, nil}}, want: Report{FileSize: size, Empty: []string{path(0)}}},
		{name: "name not a multiple", files: append(good(0), file{FileName(size + 1), size, nil}),
			badFile: path(size + 1), badText: "not a multiple of the file size 16384"},
		{name: "configured size differs", files: good(0, size, 2*size), fileSize: 300_000,
			badFile: path(0), badText: "size 16384, expected 300000"},
		{name: "offset space used up", files: []file{{FileName(1<<63 - size), size, nil}},
			badFile: path(1<<63 - size), badText: "beyond the offset space"},
		{name: "inferred", files: good(0, size), fileSize: -1, starts: []int64{0, size}, want: Report{FileSize: size, Inferred: true}},
		{name: "inferred, last short", files: append(good(0), file{FileName(size), 100, nil}), fileSize: -1, starts: []int64{0, size},
			want: Report{FileSize: size, Inferred: true, Short: []Misfit{{path(size), 100}}}},
		{name: "inferred by majority", files: append([]file{{FileName(0), 5, nil}}, good(size, 2*size)...), fileSize: -1,
			badFile: path(0), badText: "size 5, expected 16384"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			mem := newMem()
			for _, f := range tt.files {
				writeFile(t, mem, filepath.Join(testDir, f.name), f.content, f.size)
			}
			for _, d := range tt.dirs {
				must(t, mem.MkdirAll(filepath.Join(testDir, d)))
			}
			fileSize := int64(size)
			if tt.fileSize > 0 {
				fileSize = tt.fileSize
			} else if tt.fileSize < 0 {
				fileSize = 0
			}
			q, rep, err := OpenQueue(Options{FS: readOnly(t, mem), Dirs: []string{testDir}, FileSize: fileSize, Mapped: true})
			if tt.badFile != "" {
				var corrupt *base.CorruptError
				if !errors.As(err, &corrupt) || corrupt.File != tt.badFile || !bytes.Contains([]byte(corrupt.Reason), []byte(tt.badText)) {
					t.Fatalf("got %v, want %s: %s", err, tt.badFile, tt.badText)
				}
				return
			}
			must(t, err)
			if d := cmp.Diff(tt.want, rep); d != "" {
				t.Errorf("report (-want +got):\n%s", d)
			}
			var starts []int64
			for _, f := range q.Files() {
				starts = append(starts, f.Start())
				want := make([]byte, size)
				for _, e := range tt.files {
					if e.name == FileName(f.Start()) {
						copy(want, e.content)
					}
				}
				got := bytes.Repeat([]byte{'x'}, size) // a missing part reads as zeros
				if n, err := f.ReadAt(got, 0); n != size || err != nil || !bytes.Equal(got, want) {
					t.Errorf("read all of %s: %d, %v, or other content", f.Path(), n, err)
				}
			}
			if !slices.Equal(starts, tt.starts) {
				t.Errorf("files %v, want %v", starts, tt.starts)
			}
			must(t, q.Close())
		})
	}
}

func TestSymbolicLinkIsForeign(t *testing.T) {
	dir := t.TempDir()
	fsys := vfs.OS()
	writeFile(t, fsys, filepath.Join(dir, FileName(0)), nil, 100)
	link := filepath.Join(dir, FileName(100))
	if err := os.Symlink(filepath.Join(dir, FileName(0)), link); err != nil {
		t.Skip("no symbolic links here: ", err)
	}
	q, rep := openReport(t, fsys, 0, func(o *Options) { o.Dirs = []string{dir} })
	if len(q.Files()) != 1 || !slices.Equal(rep.Foreign, []string{link}) {
		t.Errorf("files %s, foreign %v", describe(q), rep.Foreign)
	}
}

// TestWrongLengthIsCorrectedBeforeTheFirstWrite: the length that RocketMQ
// expects comes with the first change, not earlier.
func TestWrongLengthIsCorrectedBeforeTheFirstWrite(t *testing.T) {
	const size = 4 * PageSize
	for name, length := range map[string]int64{"short": PageSize + 100, "one byte short": size - 1, "long": size + 4096} {
		for _, m := range modes {
			t.Run(name+"/"+m.name, func(t *testing.T) {
				mem := newMem()
				content := record(1, PageSize)
				writeFile(t, mem, seg(0), content, length)
				q := open(t, mem, size, m.set(t, size))
				must(t, q.TruncateTo(PageSize))
				wantBytes(t, q, 0, content)
				if got := len(readFile(t, mem, seg(0))); int64(got) != length {
					t.Fatalf("length %d before the first write, want %d", got, length)
				}
				at, err := put(q, record(2, 500))
				if at != PageSize || err != nil {
					t.Fatalf("append at %d, %v", at, err)
				}
				must(t, errOf(q.Commit(0)))
				wantBytes(t, q, PageSize, record(2, 500))
				must(t, q.Close())
				want := append(append(content, record(2, 500)...), make([]byte, size-PageSize-500)...)
				if got := readFile(t, mem, seg(0)); !bytes.Equal(got, want) {
					t.Fatalf("%d bytes, or other content", len(got))
				}
			})
		}
	}
}

// TestShortFileMadeFullGetsItsLength: a short file that counts as full must
// not become a short file in the middle.
func TestShortFileMadeFullGetsItsLength(t *testing.T) {
	const size = 4 * PageSize
	mem := newMem()
	writeFile(t, mem, seg(0), record(1, 100), PageSize)
	q := open(t, mem, size)
	must(t, q.TruncateTo(size))
	must(t, errOf(put(q, record(2, 100))))
	must(t, q.Close())
	_, rep := openReport(t, mem, size)
	if d := cmp.Diff(Report{FileSize: size}, rep); d != "" {
		t.Errorf("report (-want +got):\n%s", d)
	}
}

// TestLengthChangedBehindOurBack: a file that had the right length when the
// queue was opened and has another one when it is read.
func TestLengthChangedBehindOurBack(t *testing.T) {
	mem := newMem()
	writeFile(t, mem, seg(0), nil, 1000)
	writeFile(t, mem, seg(1000), nil, 1000)
	q := open(t, mem, 1000)
	writeFile(t, mem, seg(0), nil, 10)
	var corrupt *base.CorruptError
	if _, err := q.ReadAt(make([]byte, 1), 0); !errors.As(err, &corrupt) || corrupt.File != seg(0) {
		t.Errorf("got %v, want a corruption of %s", err, seg(0))
	}
}

// TestEmptyFileIsReplaced: a crash left a name without content; the queue
// needs that name.
func TestEmptyFileIsReplaced(t *testing.T) {
	const size = PageSize
	mem := newMem()
	writeFile(t, mem, seg(0), record(0, size), size)
	writeFile(t, mem, seg(size), nil, 0)
	writeFile(t, mem, seg(2*size), nil, 0)
	q := open(t, mem, size)
	for i := range 3 {
		at, err := put(q, record(i, size))
		if want := int64(i+1) * size; at != want || err != nil {
			t.Fatalf("append %d at %d, %v, want %d", i, at, err, want)
		}
	}
}

func TestOpenQueueArguments(t *testing.T) {
	mem := newMem()
	for name, opt := range map[string]Options{
		"no file system":    {Dirs: []string{"/log"}, FileSize: 1},
		"no directory":      {FS: mem, FileSize: 1},
		"no size":           {FS: mem, Dirs: []string{"/log"}},
		"negative size":     {FS: mem, Dirs: []string{"/log"}, FileSize: -1},
		"negative step":     {FS: mem, Dirs: []string{"/log"}, FileSize: 1, ReserveStep: -1},
		"buffers too small": {FS: mem, Dirs: []string{"/log"}, FileSize: 100, Pool: NewTransientPool(1, 99)},
	} {
		if _, _, err := OpenQueue(opt); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	_, rep, err := OpenQueue(Options{FS: mem, Dirs: []string{"/log"}, DefaultFileSize: 77})
	if err != nil || rep.FileSize != 77 || rep.Inferred {
		t.Errorf("default size: %+v, %v", rep, err)
	}
}

// TestListingFails: an unreadable directory is not an empty one.
func TestListingFails(t *testing.T) {
	f := faultfs.New(newMem())
	f.Fail(faultfs.OpList, "", faultfs.ErrIO)
	if _, _, err := OpenQueue(Options{FS: f, Dirs: []string{"/log"}, FileSize: 1}); !errors.Is(err, faultfs.ErrIO) {
		t.Errorf("got %v", err)
	}
}

func TestFindNonZero(t *testing.T) {
	mem := newMem()
	const n = 3 * zeroChunk
	for _, at := range []int64{-1, 0, 1, 7, 8, 4095, 4096, zeroChunk - 1, zeroChunk, n - 1} {
		writeFile(t, mem, "/f", nil, n)
		f, err := mem.Open("/f", vfs.ReadWrite)
		must(t, err)
		if at >= 0 {
			_, err = f.WriteAt([]byte{1}, at)
			must(t, err)
		}
		for name, h := range map[string]vfs.File{"holes known": f, "holes unknown": noHoles{f}} {
			if got, err := findNonZero(h, 0, n); got != at || err != nil {
				t.Errorf("%s: byte at %d found at %d, %v", name, at, got, err)
			}
			if got, err := findNonZero(h, at+1, n); got != -1 || err != nil {
				t.Errorf("%s: behind %d found %d, %v", name, at, got, err)
			}
		}
		must(t, f.Close())
	}
}

// noHoles claims that everything may be data, from the start on.
type noHoles struct{ vfs.File }

func (noHoles) NextData(int64) (int64, error) { return 0, nil }
