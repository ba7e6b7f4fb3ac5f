package memfs_test

import (
	"bytes"
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// TestCrashModel runs random changes of a few files, and after each compares
// what crashes leave with a plain record of all that happened to each page,
// length and name since it was last durable.
func TestCrashModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &crashModel{fs: memfs.NewCrashable(rapid.Int64().Draw(rt, "seed")), names: map[string][]*crashFile{}}
		rt.Repeat(map[string]func(*rapid.T){
			"create":   m.create,
			"write":    m.write,
			"truncate": m.truncate,
			"sync":     m.sync,
			"flush":    m.flush,
			"drop":     m.drop,
			"remove":   m.remove,
			"rename":   m.rename,
			"syncDir":  m.syncDir,
			"":         m.check,
		})
	})
}

const (
	modelPages = 3
	modelNames = "abc"
)

// crashFile is a file and its past: in each list the first element is durable
// and the last is now.
type crashFile struct {
	f     vfs.File
	m     vfs.Mapping // of all pages, made when the file was that long
	pages [modelPages][][]byte
	lost  [modelPages]bool // dropped since the last change
	// unsure: a dropped page was cut that held zeros there already; whether
	// that counts as a change is not the model's business. Anything goes.
	unsure [modelPages]bool
	sizes  []int
}

// crashModel records what each name led to; nil is nothing.
type crashModel struct {
	fs    *memfs.FS
	names map[string][]*crashFile
	files []*crashFile
	count int // makes every written byte string different
}

func last[T any](s []T) T { return s[len(s)-1] }

func (m *crashModel) now(name string) *crashFile {
	if h := m.names[name]; len(h) > 0 {
		return last(h)
	}
	return nil
}

func (m *crashModel) set(name string, f *crashFile) {
	if len(m.names[name]) == 0 {
		m.names[name] = []*crashFile{nil}
	}
	m.names[name] = append(m.names[name], f)
}

func (f *crashFile) setPage(i int, data []byte) {
	if f.lost[i] && !f.unsure[i] {
		f.lost[i] = false
		f.pages[i] = f.pages[i][:1] // what was in between can no longer happen
	}
	f.pages[i] = append(f.pages[i], data)
}

func drawName(t *rapid.T, label string) string {
	return string(modelNames[rapid.IntRange(0, len(modelNames)-1).Draw(t, label)])
}

func (m *crashModel) pick(t *rapid.T) *crashFile {
	if len(m.files) == 0 {
		t.Skip("no file")
	}
	return m.files[rapid.IntRange(0, len(m.files)-1).Draw(t, "file")]
}

func noErr(t *rapid.T, err error) {
	if err != nil {
		t.Fatal(err)
	}
}

func (m *crashModel) create(t *rapid.T) {
	name := drawName(t, "name")
	if m.now(name) != nil {
		t.Skip("exists")
	}
	file, err := m.fs.Create("/" + name)
	noErr(t, err)
	f := &crashFile{f: file, sizes: []int{0}}
	for i := range f.pages {
		f.pages[i] = [][]byte{make([]byte, page)}
	}
	noErr(t, file.Truncate(modelPages*page))
	f.sizes = append(f.sizes, modelPages*page)
	f.m, err = file.Map(true)
	noErr(t, err)
	m.set(name, f)
	m.files = append(m.files, f)
}

func (m *crashModel) write(t *rapid.T) {
	f := m.pick(t)
	size := last(f.sizes)
	off := rapid.IntRange(0, modelPages*page-1).Draw(t, "off")
	end := rapid.IntRange(off+1, modelPages*page).Draw(t, "end")
	if mapped := rapid.Bool().Draw(t, "mapped"); mapped {
		end = min(end, size)
		if off >= end {
			t.Skip("behind the end")
		}
		m.count++
		_, err := f.m.WriteAt(bytes.Repeat([]byte{byte(m.count)}, end-off), int64(off))
		noErr(t, err)
	} else {
		m.count++
		_, err := f.f.WriteAt(bytes.Repeat([]byte{byte(m.count)}, end-off), int64(off))
		noErr(t, err)
	}
	for i := off / page; i*page < end; i++ {
		data := slices.Clone(last(f.pages[i]))
		for j := max(off, i*page); j < min(end, (i+1)*page); j++ {
			data[j-i*page] = byte(m.count)
		}
		f.setPage(i, data)
	}
	if end > size {
		f.sizes = append(f.sizes, end)
	}
}

func (m *crashModel) truncate(t *rapid.T) {
	f := m.pick(t)
	size := rapid.IntRange(0, modelPages*page).Draw(t, "size")
	noErr(t, f.f.Truncate(int64(size)))
	for i := range f.pages {
		keep := min(max(size-i*page, 0), page)
		now := last(f.pages[i])
		if zero := make([]byte, page-keep); !bytes.Equal(now[keep:], zero) {
			f.setPage(i, append(slices.Clone(now[:keep]), zero...))
		} else if f.lost[i] && keep < page {
			f.unsure[i] = true
		}
	}
	if size != last(f.sizes) {
		f.sizes = append(f.sizes, size)
	}
}

func (f *crashFile) makeDurable(i int) {
	if !f.lost[i] && !f.unsure[i] {
		f.pages[i] = f.pages[i][len(f.pages[i])-1:]
	}
}

func (m *crashModel) sync(t *rapid.T) {
	f := m.pick(t)
	noErr(t, f.f.Sync())
	for i := range f.pages {
		f.makeDurable(i)
	}
	f.sizes = f.sizes[len(f.sizes)-1:]
}

func (m *crashModel) flush(t *rapid.T) {
	f := m.pick(t)
	off := rapid.IntRange(0, modelPages*page-1).Draw(t, "off")
	n := rapid.IntRange(1, modelPages*page-off).Draw(t, "n")
	noErr(t, f.m.Flush(int64(off), int64(n)))
	for i := off / page; i*page < off+n; i++ {
		f.makeDurable(i)
	}
	// The length is durable at least to the end of the range.
	now := last(f.sizes)
	if end := min(off+n, now); f.sizes[0] < end {
		f.sizes[0] = end
		f.sizes = append([]int{end}, slices.DeleteFunc(f.sizes[1:], func(s int) bool { return s < end })...)
		if end == now {
			f.sizes = []int{now}
		}
	}
}

func (m *crashModel) drop(t *rapid.T) {
	f := m.pick(t)
	i := rapid.IntRange(0, modelPages-1).Draw(t, "page")
	f.f.(interface{ DropDirty(off, n int64) }).DropDirty(int64(i)*page, 1)
	if len(f.pages[i]) > 1 {
		f.lost[i] = true
	}
}

func (m *crashModel) remove(t *rapid.T) {
	name := drawName(t, "name")
	if m.now(name) == nil {
		t.Skip("nothing")
	}
	noErr(t, m.fs.Remove("/"+name))
	m.set(name, nil)
}

func (m *crashModel) rename(t *rapid.T) {
	from, to := drawName(t, "from"), drawName(t, "to")
	if m.now(from) == nil || from == to {
		t.Skip("nothing to do")
	}
	noErr(t, m.fs.Rename("/"+from, "/"+to))
	m.set(to, m.now(from))
	m.set(from, nil)
}

func (m *crashModel) syncDir(t *rapid.T) {
	noErr(t, m.fs.SyncDir("/"))
	for name, h := range m.names {
		m.names[name] = h[len(h)-1:]
	}
}

func (m *crashModel) check(t *rapid.T) {
	m.checkState(t, "now", m.fs, func(n int) (lo, hi int) { return n - 1, n - 1 }, false)
	for _, p := range memfs.Policies() {
		pick := func(n int) (lo, hi int) { return 0, n - 1 }
		switch p {
		case memfs.LoseUnsynced:
			pick = func(int) (lo, hi int) { return 0, 0 }
		case memfs.KeepAll:
			pick = func(n int) (lo, hi int) { return n - 1, n - 1 }
		}
		m.checkState(t, p.String(), m.fs.CrashClone(p), pick, p&memfs.Torn != 0)
	}
}

// checkState compares a file system with the states that pick allows; pick gets
// the length of a history and says which part of it may be seen.
func (m *crashModel) checkState(t *rapid.T, what string, fs *memfs.FS, pick func(n int) (lo, hi int), torn bool) {
	crashed := what != "now"
	used := map[*crashFile]bool{}
	for name, h := range m.names {
		lo, hi := pick(len(h))
		states := h[lo : hi+1]
		e, err := fs.Stat("/" + name)
		if err != nil {
			if !slices.Contains(states, nil) {
				t.Fatalf("%s: %s is missing", what, name)
			}
			continue
		}
		data, err := vfs.ReadFile(fs, "/"+name, 1<<20)
		noErr(t, err)
		if e.Size != int64(len(data)) {
			t.Fatalf("%s: Stat says %d, %d bytes read", what, e.Size, len(data))
		}
		why := "does not exist"
		for _, f := range states {
			if f == nil {
				continue
			}
			if why = f.explain(data, pick, torn, crashed); why == "" {
				used[f] = true
				break
			}
		}
		if why != "" {
			t.Fatalf("%s: %s %s", what, name, why)
		}
	}
}

// explain says why data cannot be what is left of f.
func (f *crashFile) explain(data []byte, pick func(n int) (lo, hi int), torn, crashed bool) string {
	lo, hi := pick(len(f.sizes))
	if !slices.Contains(f.sizes[lo:hi+1], len(data)) {
		return fmt.Sprintf("has %d bytes, not one of %d", len(data), f.sizes[lo:hi+1])
	}
	for i, h := range f.pages {
		got := data[min(i*page, len(data)):min((i+1)*page, len(data))]
		lo, hi := pick(len(h))
		switch {
		case f.unsure[i] && crashed:
			lo, hi = 0, len(h)-1
		case f.lost[i] && crashed:
			lo, hi = 0, 0
		}
		unit := page
		if torn {
			unit = 512
		}
		for off := 0; off < len(got); off += unit {
			part := got[off:min(off+unit, len(got))]
			if !slices.ContainsFunc(h[lo:hi+1], func(p []byte) bool { return bytes.Equal(p[off:off+len(part)], part) }) {
				return fmt.Sprintf("page %d: bytes from %d on are of none of %d states", i, off, hi-lo+1)
			}
		}
	}
	return ""
}
