package vfstest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/vfs"
)

// modelSize bounds the files of the model test: a few pages and a bit.
const modelSize = 5*4096 + 123

// Model runs random calls on a few names, open files and mappings, and compares
// each answer with byte slices in memory. The directory that newFS makes must
// hold what initial says: files "a", "b" and "c" of at most 20 KiB.
func Model(t *testing.T, newFS NewFS, initial map[string][]byte) {
	rapid.Check(t, func(rt *rapid.T) {
		fsys, dir := newFS(t)
		m := &model{fs: fsys, dir: dir, names: map[string]*modelFile{}}
		for name, data := range initial {
			m.names[name] = &modelFile{slices.Clone(data)}
		}
		defer m.close()
		rt.Repeat(map[string]func(*rapid.T){
			"create":   m.create,
			"open":     m.open,
			"close":    m.closeOne,
			"write":    m.write,
			"read":     m.read,
			"truncate": m.truncate,
			"allocate": m.allocate,
			"nextData": m.nextData,
			"sync":     m.sync,
			"map":      m.mapIt,
			"mapWrite": m.mapWrite,
			"mapRead":  m.mapRead,
			"mapFlush": m.mapFlush,
			"unmap":    m.unmap,
			"remove":   m.remove,
			"rename":   m.rename,
			"":         m.check,
		})
	})
}

// modelFile is a file of the model; open files of a removed name keep it.
type modelFile struct{ data []byte }

type modelOpen struct {
	f    vfs.File
	file *modelFile
}

type modelMap struct {
	m      vfs.Mapping
	file   *modelFile
	length int
}

type model struct {
	fs    vfs.FS
	dir   string
	names map[string]*modelFile
	opens []modelOpen
	maps  []modelMap
}

func (m *model) path(name string) string { return filepath.Join(m.dir, name) }

func (m *model) close() {
	for _, x := range m.maps {
		x.m.Unmap()
	}
	for _, o := range m.opens {
		o.f.Close()
	}
}

func drawName(t *rapid.T, label string) string {
	return rapid.SampledFrom([]string{"a", "b", "c"}).Draw(t, label)
}

// drawOffset prefers places next to page borders.
func drawOffset(t *rapid.T, label string, limit int) int {
	off := rapid.OneOf(
		rapid.IntRange(0, limit),
		rapid.Custom(func(t *rapid.T) int {
			return rapid.IntRange(0, 5).Draw(t, "page")*4096 + rapid.IntRange(-2, 2).Draw(t, "delta")
		}),
	).Draw(t, label)
	return min(max(off, 0), limit)
}

// drawRange draws a range inside [0, limit).
func drawRange(t *rapid.T, limit int) (off, n int) {
	off = drawOffset(t, "off", limit)
	return off, drawOffset(t, "end", limit-off)
}

// drawBytes makes n bytes that say where they come from.
func drawBytes(t *rapid.T, n int) []byte {
	b := rapid.Byte().Draw(t, "byte")
	p := make([]byte, n)
	if b != 0 { // zeros are content too
		for i := range p {
			p[i] = b + byte(i%7)
		}
	}
	return p
}

// dirtyBuffer is a buffer for reading: zeros that are read must be stored, too.
func dirtyBuffer(n int) []byte { return bytes.Repeat([]byte{0xee}, n) }

func pick[T any](t *rapid.T, label string, from []T) int {
	if len(from) == 0 {
		t.Skip("none open")
	}
	return rapid.IntRange(0, len(from)-1).Draw(t, label)
}

func fatalIf(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func (m *model) create(t *rapid.T) {
	name := drawName(t, "name")
	f, err := m.fs.Create(m.path(name))
	if m.names[name] != nil {
		if !errors.Is(err, fs.ErrExist) {
			t.Fatalf("Create of existing %s: %v", name, err)
		}
		return
	}
	fatalIf(t, err)
	m.names[name] = &modelFile{}
	m.opens = append(m.opens, modelOpen{f, m.names[name]})
}

func (m *model) open(t *rapid.T) {
	name := drawName(t, "name")
	f, err := m.fs.Open(m.path(name), vfs.ReadWrite)
	if m.names[name] == nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("Open of missing %s: %v", name, err)
		}
		return
	}
	fatalIf(t, err)
	m.opens = append(m.opens, modelOpen{f, m.names[name]})
}

func (m *model) closeOne(t *rapid.T) {
	i := pick(t, "file", m.opens)
	fatalIf(t, m.opens[i].f.Close())
	m.opens = slices.Delete(m.opens, i, i+1)
}

func (m *model) write(t *rapid.T) {
	o := m.opens[pick(t, "file", m.opens)]
	off, n := drawRange(t, modelSize)
	p := drawBytes(t, n)
	got, err := o.f.WriteAt(p, int64(off))
	if got != n || err != nil {
		t.Fatalf("WriteAt(%d bytes, %d): %d, %v", n, off, got, err)
	}
	if n == 0 {
		return
	}
	o.file.resize(max(len(o.file.data), off+n))
	copy(o.file.data[off:], p)
}

func (f *modelFile) resize(n int) {
	if n <= len(f.data) {
		f.data = f.data[:n:n]
		return
	}
	f.data = append(f.data, make([]byte, n-len(f.data))...)
}

func (m *model) read(t *rapid.T) {
	o := m.opens[pick(t, "file", m.opens)]
	off, n := drawRange(t, modelSize)
	p := dirtyBuffer(n)
	got, err := o.f.ReadAt(p, int64(off))
	want := o.file.data[min(off, len(o.file.data)):min(off+n, len(o.file.data))]
	var wantErr error
	if len(want) < n {
		wantErr = io.EOF
	}
	if err != wantErr || !bytes.Equal(p[:got], want) {
		t.Fatalf("ReadAt(%d bytes, %d): %d, %v: %s", n, off, got, err, diff(p[:got], want))
	}
}

func (m *model) truncate(t *rapid.T) {
	o := m.opens[pick(t, "file", m.opens)]
	n := drawOffset(t, "size", modelSize)
	fatalIf(t, o.f.Truncate(int64(n)))
	o.file.resize(n)
}

func (m *model) allocate(t *rapid.T) {
	o := m.opens[pick(t, "file", m.opens)]
	off, n := drawRange(t, modelSize)
	fatalIf(t, o.f.Allocate(int64(off), int64(n)))
}

func (m *model) nextData(t *rapid.T) {
	o := m.opens[pick(t, "file", m.opens)]
	off := drawOffset(t, "off", modelSize)
	got, err := o.f.NextData(int64(off))
	fatalIf(t, err)
	size := len(o.file.data)
	if got > int64(size) || off <= size && got < int64(off) {
		t.Fatalf("NextData(%d) = %d, size %d", off, got, size)
	}
	for i := off; i < int(got); i++ {
		if o.file.data[i] != 0 {
			t.Fatalf("NextData(%d) = %d passes the data at %d", off, got, i)
		}
	}
}

func (m *model) sync(t *rapid.T) {
	fatalIf(t, m.opens[pick(t, "file", m.opens)].f.Sync())
	fatalIf(t, m.fs.SyncDir(m.dir))
}

func (m *model) mapIt(t *rapid.T) {
	o := m.opens[pick(t, "file", m.opens)]
	mm, err := o.f.Map(true)
	fatalIf(t, err)
	m.maps = append(m.maps, modelMap{mm, o.file, len(o.file.data)})
}

// visible is the part of a mapping that the file still has.
func (x modelMap) visible() int { return min(x.length, len(x.file.data)) }

func (m *model) mapWrite(t *rapid.T) {
	x := m.maps[pick(t, "mapping", m.maps)]
	off, n := drawRange(t, x.visible())
	p := drawBytes(t, n)
	if got, err := x.m.WriteAt(p, int64(off)); got != n || err != nil {
		t.Fatalf("mapped WriteAt(%d bytes, %d): %d, %v", n, off, got, err)
	}
	copy(x.file.data[off:], p)
}

func (m *model) mapRead(t *rapid.T) {
	x := m.maps[pick(t, "mapping", m.maps)]
	off, n := drawRange(t, x.visible())
	p := dirtyBuffer(n)
	if got, err := x.m.ReadAt(p, int64(off)); got != n || err != nil {
		t.Fatalf("mapped ReadAt(%d bytes, %d): %d, %v", n, off, got, err)
	}
	if want := x.file.data[off : off+n]; !bytes.Equal(p, want) {
		t.Fatalf("mapped ReadAt(%d bytes, %d): %s", n, off, diff(p, want))
	}
}

func (m *model) mapFlush(t *rapid.T) {
	x := m.maps[pick(t, "mapping", m.maps)]
	off, n := drawRange(t, x.visible())
	fatalIf(t, x.m.Flush(int64(off), int64(n)))
}

func (m *model) unmap(t *rapid.T) {
	i := pick(t, "mapping", m.maps)
	fatalIf(t, m.maps[i].m.Unmap())
	m.maps = slices.Delete(m.maps, i, i+1)
}

func (m *model) remove(t *rapid.T) {
	name := drawName(t, "name")
	err := m.fs.Remove(m.path(name))
	if m.names[name] == nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("Remove of missing %s: %v", name, err)
		}
		return
	}
	fatalIf(t, err)
	delete(m.names, name)
}

func (m *model) rename(t *rapid.T) {
	from, to := drawName(t, "from"), drawName(t, "to")
	err := m.fs.Rename(m.path(from), m.path(to))
	f := m.names[from]
	if f == nil {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("Rename of missing %s: %v", from, err)
		}
		return
	}
	fatalIf(t, err)
	delete(m.names, from)
	m.names[to] = f
}

// check compares all names and contents after each step.
func (m *model) check(t *rapid.T) {
	entries, err := m.fs.List(m.dir)
	fatalIf(t, err)
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
		f := m.names[e.Name]
		if f == nil || e.Size != int64(len(f.data)) {
			t.Fatalf("List has %+v, model %+v", e, f)
		}
		got, err := vfs.ReadFile(m.fs, m.path(e.Name), modelSize)
		fatalIf(t, err)
		if !bytes.Equal(got, f.data) {
			t.Fatalf("%s: %s", e.Name, diff(got, f.data))
		}
	}
	if want := slices.Sorted(maps.Keys(m.names)); !slices.Equal(names, want) {
		t.Fatalf("names %q, want %q", names, want)
	}
}

// diff says where two byte strings begin to differ.
func diff(got, want []byte) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("byte %d is %#x, want %#x", i, got[i], want[i])
		}
	}
	return fmt.Sprintf("%d bytes, want %d", len(got), len(want))
}
