package memfs

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newFile(t testing.TB, f *FS, name string) vfs.File {
	t.Helper()
	file, err := f.Create(name)
	must(t, err)
	return file
}

// panics returns what fn panics with, as text.
func panics(fn func()) (text string) {
	defer func() {
		if r := recover(); r != nil {
			text = fmt.Sprint(r)
		}
	}()
	fn()
	return ""
}

func TestCapacity(t *testing.T) {
	f := New()
	f.SetCapacity(10 * pageSize)
	file := newFile(t, f, "/f")
	must(t, file.Truncate(1<<20)) // takes no space
	must(t, file.Allocate(0, 4*pageSize))
	if err := file.Allocate(2*pageSize, 9*pageSize); !errors.Is(err, base.ErrDiskFull) {
		t.Errorf("Allocate of too much: %v", err)
	}
	if f.Used() != 4*pageSize {
		t.Errorf("%d bytes used after the refused Allocate", f.Used())
	}
	must(t, file.Allocate(2*pageSize, 4*pageSize)) // two are there already
	u, err := f.DiskUsage("/")
	must(t, err)
	if e, err := f.Stat("/f"); err != nil || e.Size != 1<<20 || e.Allocated != 6*pageSize {
		t.Errorf("stat: %+v, %v", e, err)
	}
	if want := (vfs.Usage{Total: 10 * pageSize, Free: 4 * pageSize, Used: 6 * pageSize}); u != want {
		t.Errorf("usage %+v, want %+v", u, want)
	}

	// A write stops where the space ends.
	n, err := file.WriteAt(make([]byte, 8*pageSize), 100*pageSize+1)
	if n != 4*pageSize-1 || !errors.Is(err, base.ErrDiskFull) {
		t.Errorf("WriteAt: %d, %v", n, err)
	}
	// What has blocks can be written, by file and by mapping.
	m, err := file.Map(true)
	must(t, err)
	if n, err := file.WriteAt(make([]byte, 6*pageSize), 0); n != 6*pageSize || err != nil {
		t.Errorf("WriteAt to allocated blocks: %d, %v", n, err)
	}
	if n, err := m.WriteAt(make([]byte, 6*pageSize), 0); n != 6*pageSize || err != nil {
		t.Errorf("mapped WriteAt to allocated blocks: %d, %v", n, err)
	}
	if got := panics(func() { m.WriteAt([]byte("x"), 7*pageSize) }); !strings.Contains(got, "SIGBUS") {
		t.Errorf("mapped WriteAt without space: panic %q", got)
	}
	if _, err := m.ReadAt(make([]byte, 10), 7*pageSize); err != nil {
		t.Errorf("mapped ReadAt of a hole: %v", err)
	}

	// Space comes back: by a cut, and when the last user of a removed file
	// goes.
	must(t, file.Truncate(6*pageSize))
	if f.Used() != 6*pageSize {
		t.Errorf("%d bytes used after the cut", f.Used())
	}
	must(t, f.Remove("/f"))
	must(t, file.Close())
	if f.Used() != 6*pageSize {
		t.Errorf("%d bytes used while mapped", f.Used())
	}
	must(t, m.Unmap())
	if f.Used() != 0 {
		t.Errorf("%d bytes used in the end", f.Used())
	}
	must(t, newFile(t, f, "/g").Allocate(0, 10*pageSize))
	if err := newFile(t, f, "/h").Allocate(0, 1<<62); !errors.Is(err, base.ErrDiskFull) {
		t.Errorf("absurd Allocate: %v", err)
	}
}

func TestCapacitySurvivesCrash(t *testing.T) {
	f := NewCrashable(1)
	f.SetCapacity(10 * pageSize)
	file := newFile(t, f, "/f")
	must(t, f.SyncDir("/"))
	must(t, file.Truncate(8*pageSize))
	must(t, file.Sync())
	must(t, file.Allocate(0, 8*pageSize))
	c := f.CrashClone(LoseUnsynced)
	if c.Used() != 0 {
		t.Errorf("an unsynced reservation survived: %d bytes", c.Used())
	}
	must(t, newFile(t, c, "/full").Allocate(0, 10*pageSize))
	again, err := c.Open("/f", vfs.ReadWrite)
	must(t, err)
	m, err := again.Map(true)
	must(t, err)
	if got := panics(func() { m.WriteAt([]byte("x"), 0) }); !strings.Contains(got, "SIGBUS") {
		t.Errorf("mapped WriteAt without space: panic %q", got)
	}
}

func TestRequireAllocated(t *testing.T) {
	f := New()
	f.RequireAllocated(true)
	file := newFile(t, f, "/f")
	must(t, file.Truncate(4*pageSize))
	must(t, file.Allocate(pageSize, pageSize))
	m, err := file.Map(true)
	must(t, err)
	if got := panics(func() { m.WriteAt([]byte("xx"), 2*pageSize-1) }); !strings.Contains(got, "page 2 of /f") {
		t.Errorf("store over the end of the allocation: panic %q", got)
	}
	if _, err := m.WriteAt([]byte("xx"), 2*pageSize-2); err != nil {
		t.Error(err)
	}
	if _, err := file.WriteAt([]byte("xx"), 0); err != nil {
		t.Errorf("WriteAt needs no reservation: %v", err)
	}
}

func TestUsageAndTime(t *testing.T) {
	f := New()
	now := int64(1000)
	f.SetNow(func() int64 { return now })
	file := newFile(t, f, "/f")
	modTime := func() int64 {
		e, err := f.Stat("/f")
		must(t, err)
		return e.ModTime
	}
	if modTime() != 1000 {
		t.Errorf("time of a new file: %d", modTime())
	}
	now = 2000
	if _, err := file.WriteAt([]byte("x"), 0); err != nil || modTime() != 2000 {
		t.Errorf("time after a write: %d, %v", modTime(), err)
	}
	now = 3000
	m, err := file.Map(true)
	must(t, err)
	if _, err := m.WriteAt([]byte("x"), 0); err != nil || modTime() != 3000 {
		t.Errorf("time after a mapped store: %d, %v", modTime(), err)
	}

	want := vfs.Usage{Total: 100, Free: 10, Used: 90}
	f.SetUsage(&want)
	if got, err := f.DiskUsage("/"); got != want || err != nil {
		t.Errorf("usage %+v, %v", got, err)
	}
	f.SetUsage(nil)
	if got, err := f.DiskUsage("/"); got.Used != pageSize || err != nil {
		t.Errorf("usage %+v, %v", got, err)
	}
}

func TestUseAfterUnmap(t *testing.T) {
	f := New()
	m, err := newFile(t, f, "/f").Map(false)
	must(t, err)
	must(t, m.Unmap())
	if got := panics(func() { m.ReadAt(nil, 0) }); !strings.Contains(got, "Unmap") {
		t.Errorf("panic %q", got)
	}
}

// TestSpaceModel: the running count of blocks is what counting gives, after any
// sequence of calls and in every clone, and a page with content has a block.
func TestSpaceModel(t *testing.T) {
	check := func(t *rapid.T, f *FS, open []*file) {
		seen := map[*node]bool{}
		pages := int64(0)
		count := func(n *node) {
			if n.dir || seen[n] {
				return
			}
			seen[n] = true
			pages += n.allocated()
			for idx := range n.pages {
				if !n.hasBlock(idx) {
					t.Fatalf("page %d has no block", idx)
				}
				if idx >= pagesFor(n.size) {
					t.Fatalf("page %d lies behind the end, %d", idx, n.size)
				}
			}
			for w, bits := range n.dirtyBlocks {
				if bits&^n.blocks[w] != 0 {
					t.Fatalf("undurable blocks %x, blocks %x", bits, n.blocks[w])
				}
			}
		}
		f.eachNode(count)
		for _, o := range open {
			count(o.n)
		}
		if f.used != pages*pageSize {
			t.Fatalf("%d bytes used, counted %d", f.used, pages*pageSize)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		f := NewCrashable(1)
		f.SetCapacity(150 * pageSize)
		var open []*file
		pick := func(t *rapid.T) *file {
			if len(open) == 0 {
				t.Skip("no file")
			}
			return open[rapid.IntRange(0, len(open)-1).Draw(t, "file")]
		}
		offset := func(t *rapid.T, label string) int64 {
			return rapid.Int64Range(0, 200*pageSize).Draw(t, label)
		}
		fullIsFine := func(t *rapid.T, err error) {
			if err != nil && !errors.Is(err, base.ErrDiskFull) {
				t.Fatal(err)
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"create": func(t *rapid.T) {
				if o, err := f.Create(rapid.SampledFrom([]string{"/a", "/b"}).Draw(t, "name")); err == nil {
					open = append(open, o.(*file))
				}
			},
			"remove": func(t *rapid.T) { _ = f.Remove(rapid.SampledFrom([]string{"/a", "/b"}).Draw(t, "name")) },
			"rename": func(*rapid.T) { _ = f.Rename("/a", "/b") },
			"close": func(t *rapid.T) {
				o := pick(t)
				if o.Close() == nil {
					for i := range open {
						if open[i] == o {
							open = append(open[:i], open[i+1:]...)
							break
						}
					}
				}
			},
			"write": func(t *rapid.T) {
				_, err := pick(t).WriteAt(make([]byte, rapid.IntRange(0, 5*pageSize).Draw(t, "n")), offset(t, "off"))
				fullIsFine(t, err)
			},
			"allocate": func(t *rapid.T) { fullIsFine(t, pick(t).Allocate(offset(t, "off"), offset(t, "n")/4)) },
			"truncate": func(t *rapid.T) { fullIsFine(t, pick(t).Truncate(offset(t, "size"))) },
			"sync":     func(t *rapid.T) { fullIsFine(t, pick(t).Sync()) },
			"syncDir":  func(t *rapid.T) { fullIsFine(t, f.SyncDir("/")) },
			"": func(t *rapid.T) {
				check(t, f, open)
				check(t, f.CrashClone(LoseRandomPages|Torn), nil)
			},
		})
	})
}

func TestWordMask(t *testing.T) {
	for _, tt := range []struct {
		w, lo, hi int64
		want      uint64
	}{
		{0, 0, 64, ^uint64(0)},
		{0, 0, 1, 1},
		{0, 3, 5, 0b11000},
		{0, 60, 200, 0xf << 60},
		{1, 60, 200, ^uint64(0)},
		{3, 60, 200, 0xff},
		{2, 0, 129, 1},
	} {
		if got := wordMask(tt.w, tt.lo, tt.hi); got != tt.want {
			t.Errorf("wordMask(%d, %d, %d) = %b, want %b", tt.w, tt.lo, tt.hi, got, tt.want)
		}
	}
}

func BenchmarkMapWrite(b *testing.B) {
	f := NewCrashable(1)
	file := newFile(b, f, "/f")
	must(b, file.Truncate(1<<30))
	must(b, file.Allocate(0, 1<<30))
	m, err := file.Map(true)
	must(b, err)
	p := make([]byte, 1024)
	b.ReportAllocs()
	off := int64(0)
	for b.Loop() {
		if _, err := m.WriteAt(p, off%(16<<20)); err != nil {
			b.Fatal(err)
		}
		off += 1024
	}
}

// BenchmarkCrashClone measures one crash of a small store: 30 files, 300 pages.
func BenchmarkCrashClone(b *testing.B) {
	f := NewCrashable(1)
	for i := range 30 {
		file := newFile(b, f, fmt.Sprint("/", i))
		if _, err := file.WriteAt(make([]byte, 10*pageSize), 0); err != nil {
			b.Fatal(err)
		}
		if i%2 == 0 {
			must(b, file.Sync())
		}
	}
	b.ReportAllocs()
	for b.Loop() {
		f.CrashClone(LoseRandomPages | Torn)
	}
}
