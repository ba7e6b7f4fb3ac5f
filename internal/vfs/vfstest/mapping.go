package vfstest

import (
	"bytes"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
)

func testAllocate(t *testing.T, e env) {
	f := e.create(t, "f", "head")
	must(t, f.Truncate(100_000))
	writeAt(t, f, "mid", 50_000)
	must(t, f.Allocate(0, 100_000))
	want := make([]byte, 100_000)
	copy(want, "head")
	copy(want[50_000:], "mid")
	wantSize(t, f, 100_000)
	wantAt(t, f, 0, string(want))
	must(t, f.Allocate(99_000, 200_000)) // over the end
	wantSize(t, f, 100_000)
	must(t, f.Allocate(10, 0))
	must(t, f.Allocate(0, 100_000)) // again
	wantAnyErr(t, "negative offset", f.Allocate(-1, 10))
	wantAnyErr(t, "negative length", f.Allocate(0, -1))
	wantAnyErr(t, "overflow", f.Allocate(1<<62, 1<<62))
	wantAt(t, f, 0, string(want))
	must(t, f.Sync())
	must(t, f.Truncate(150_000))
	wantAt(t, f, 99_999, string(make([]byte, 50_001)))
}

func testNextData(t *testing.T, e env) {
	f := e.create(t, "f", "")
	check := func(what string, size int64, data ...int64) {
		t.Helper()
		for _, off := range []int64{0, 1, 4096, 99_999, 1 << 20, 1<<20 + 1, size - 1, size, size + 1, 1 << 40} {
			if off < 0 {
				continue
			}
			got, err := f.NextData(off)
			must(t, err)
			if got > size || off <= size && got < off {
				t.Errorf("%s: NextData(%d) = %d, size %d", what, off, got, size)
			}
			for _, d := range data {
				if d >= off && d < got {
					t.Errorf("%s: NextData(%d) = %d passes the data at %d", what, off, got, d)
				}
			}
			if off >= size && got != size {
				t.Errorf("%s: NextData(%d) = %d, want the size %d", what, off, got, size)
			}
		}
	}
	check("empty", 0)
	must(t, f.Truncate(8<<20))
	check("one hole", 8<<20)
	writeAt(t, f, "x", 1<<20)
	check("one byte", 8<<20, 1<<20)
	must(t, f.Allocate(0, 2<<20))
	m := mapFile(t, f, true)
	writeAt(t, m, "y", 99_999)
	check("mapped byte", 8<<20, 99_999, 1<<20)
	must(t, f.Sync())
	check("synced", 8<<20, 99_999, 1<<20)
	must(t, f.Truncate(500_000))
	check("cut", 500_000, 99_999)
	_, err := f.NextData(-1)
	wantAnyErr(t, "negative offset", err)
}

func testMapCoherent(t *testing.T, e env) {
	const size = 3*4096 + 100
	f := e.create(t, "f", "")
	must(t, f.Truncate(size))
	must(t, f.Allocate(0, size))
	m := mapFile(t, f, true)
	ro := mapFile(t, f, false)
	wantAt(t, m, 0, string(make([]byte, size)))

	across := string(bytes.Repeat([]byte("ab"), 3000))
	writeAt(t, m, across, 4000) // over page borders
	wantAt(t, m, 4000, across)
	wantAt(t, ro, 4000, across)
	wantAt(t, f, 4000, across)
	wantAt(t, f, 3999, "\x00a")
	writeAt(t, f, "by file", 5000)
	wantAt(t, m, 5000, "by file")
	writeAt(t, m, "end", size-3)
	wantAt(t, ro, size-3, "end")
	wantSize(t, f, size)

	must(t, m.Flush(0, size))
	must(t, m.Flush(4095, 2))
	must(t, m.Flush(size, 0))
	must(t, f.Sync())
	must(t, m.Unmap())
	wantAnyErr(t, "second Unmap", m.Unmap())
	wantAt(t, f, size-3, "end")
}

func testMapOutOfRange(t *testing.T, e env) {
	f := e.create(t, "f", "0123456789")
	m := mapFile(t, f, true)
	ranges := []struct {
		name   string
		off, n int64
	}{
		{"before", -1, 1},
		{"over the end", 8, 3},
		{"behind", 11, 0},
		{"far behind", 1 << 62, 1},
	}
	for _, r := range ranges {
		p := make([]byte, r.n)
		wantPanic(t, r.name+": ReadAt", func() { m.ReadAt(p, r.off) })
		wantPanic(t, r.name+": WriteAt", func() { m.WriteAt(p, r.off) })
		wantPanic(t, r.name+": Flush", func() { m.Flush(r.off, r.n) })
		wantPanic(t, r.name+": Populate", func() { m.Populate(r.off, r.n) })
		wantPanic(t, r.name+": Advise", func() { m.Advise(r.off, r.n, vfs.WillNeed) })
		wantPanic(t, r.name+": LockMemory", func() { m.LockMemory(r.off, r.n) })
		wantPanic(t, r.name+": UnlockMemory", func() { m.UnlockMemory(r.off, r.n) })
	}
	wantPanic(t, "negative length", func() { m.Flush(4, -1) })
	// The file grows, the mapping does not.
	must(t, f.Truncate(100))
	wantPanic(t, "behind the mapping", func() { m.ReadAt(make([]byte, 1), 10) })
	wantAt(t, m, 0, "0123456789")
	wantAt(t, m, 10, "")
}

func testMapReadOnly(t *testing.T, e env) {
	must(t, e.create(t, "f", "abc").Close())
	m := mapFile(t, e.open(t, "f", vfs.ReadOnly), false)
	wantAt(t, m, 0, "abc")
	_, err := m.WriteAt([]byte("x"), 0)
	wantAnyErr(t, "WriteAt", err)
	must(t, m.Advise(0, 3, vfs.WillNeed))
	e.wantContent(t, "f", "abc")
}

func testMapOutlivesFile(t *testing.T, e env) {
	f := e.create(t, "f", "abc")
	m := mapFile(t, f, true)
	must(t, f.Close())
	writeAt(t, m, "XY", 1)
	wantAt(t, m, 0, "aXY")
	must(t, m.Flush(0, 3))
	must(t, m.Unmap())
	e.wantContent(t, "f", "aXY")
}

func testMapEmpty(t *testing.T, e env) {
	m := mapFile(t, e.create(t, "f", ""), true)
	wantAt(t, m, 0, "")
	writeAt(t, m, "", 0)
	wantPanic(t, "ReadAt", func() { m.ReadAt(make([]byte, 1), 0) })
	must(t, m.Flush(0, 0))
	must(t, m.Populate(0, 0))
	must(t, m.Unmap())
}

func testMapHints(t *testing.T, e env) {
	const size = 5 * 4096
	data := string(bytes.Repeat([]byte("z"), size))
	f := e.create(t, "f", data)
	must(t, f.Allocate(0, size))
	m := mapFile(t, f, true)
	for _, r := range [][2]int64{{0, size}, {100, 5000}, {size - 1, 1}, {size, 0}} {
		must(t, m.Populate(r[0], r[1]))
		for _, a := range []vfs.Advice{vfs.WillNeed, vfs.Random, vfs.DontNeed} {
			must(t, m.Advise(r[0], r[1], a))
		}
	}
	writeAt(t, m, "stored", 4093)
	must(t, m.Advise(0, size, vfs.DontNeed)) // loses nothing
	wantAt(t, m, 4092, "zstoredz")
	// The limit for locked memory may be anything: locking may fail, but then
	// nothing changes, and what was locked can be unlocked.
	if err := m.LockMemory(0, 4096); err == nil {
		must(t, m.UnlockMemory(0, 4096))
	}
	wantAt(t, m, 4092, "zstoredz")
}

// testMapOfCutFile: a file that becomes shorter than its mapping must not end
// the process. The same happens when the disk cannot give a page.
func testMapOfCutFile(t *testing.T, e env) {
	const size = 4 * 4096
	f := e.create(t, "f", string(bytes.Repeat([]byte("z"), size)))
	m := mapFile(t, f, true)
	must(t, f.Truncate(4096))
	p := make([]byte, 10)
	n, err := m.ReadAt(p, 2*4096)
	if n != 0 {
		t.Errorf("ReadAt behind the end gave %d bytes", n)
	}
	wantErr(t, "ReadAt behind the end", err, vfs.ErrFault)
	_, err = m.ReadAt(p, 4090)
	wantErr(t, "ReadAt over the end", err, vfs.ErrFault)
	n, err = m.WriteAt(p, 3*4096+1)
	if n != 0 {
		t.Errorf("WriteAt behind the end took %d bytes", n)
	}
	wantErr(t, "WriteAt behind the end", err, vfs.ErrFault)
	wantSize(t, f, 4096)

	// The rest of the mapping works as before, and all of it when the file
	// has its length again.
	wantAt(t, m, 4090, "zzzzzz")
	writeAt(t, m, "ok", 100)
	wantAt(t, f, 100, "ok")
	must(t, f.Truncate(size))
	wantAt(t, m, 4096, string(make([]byte, 3*4096)))
}
