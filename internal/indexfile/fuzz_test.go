package indexfile

import (
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// Any bytes may stand in an index file. Opening, looking up, putting and
// opening again work, what is put is found, and no entry lies outside the log.
func FuzzOpen(f *testing.F) {
	e := newEnv(memfs.New(), 5, 12)
	x, _, _ := e.open(f, everything(true))
	mustPut(f, x, sequence(100, 5)...)
	good := readFile(f, e.fs, x.Files()[0].Path)
	f.Add([]byte{}, true, int32(5), int32(11))
	f.Add(good, true, int32(5), int32(11))
	f.Add(good, false, int32(5), int32(8))
	f.Add(good, false, int32(1), int32(2))
	f.Add(good[:len(good)-33], false, int32(7), int32(0))
	for _, pos := range []int{0, 17, 39, 44, 90, 100} {
		b := slices.Clone(good)
		b[pos] ^= 0x81
		f.Add(b, pos%2 == 0, int32(5), int32(pos))
	}
	f.Fuzz(func(t *testing.T, b []byte, clean bool, slots, trustedCount int32) {
		if len(b) > 1<<16 {
			t.Skip("longer files have nothing new")
		}
		fs := memfs.New()
		path := filepath.Join(root, "20240101000000000")
		writeFile(t, fs, path, b)
		slots = max(slots%1000, 1)
		e := newEnv(fs, slots, 12)
		st := OpenState{Clean: clean, LogMin: 50, LogEnd: 1000}
		if trustedCount > 0 {
			st.Trusted = &State{Name: filepath.Base(path), Count: trustedCount, EndPhy: 500, EndTime: start, Complete: trustedCount%2 == 0}
		}
		x, from, _ := e.open(t, st)
		if from < st.LogMin || from > st.LogEnd {
			t.Fatalf("replay from %d", from)
		}
		for _, h := range []int32{0, 1, 2, 77, math.MaxInt32} {
			last := message.PhysicalOffset(math.MaxInt64)
			n := 0
			for c, err := range x.Lookup(h, 0, math.MaxInt64) {
				if err != nil {
					t.Fatal(err)
				}
				if c.Phy < 0 || c.Phy == last {
					t.Fatalf("candidate %d after %d", c.Phy, last)
				}
				if n++; n > len(b)/entrySize {
					t.Fatalf("%d candidates in %d bytes", n, len(b))
				}
				last = c.Phy
			}
		}
		_, last := x.Last()
		if last >= st.LogEnd {
			t.Fatalf("last message %d, the log ends at %d", last, st.LogEnd)
		}
		ps := sequence(1000, 20)
		mustPut(t, x, ps...)
		find := func() {
			for _, p := range ps {
				if got := lookup(t, x, p.hashes[0], p.time, p.time); !slices.Contains(got, p.phy) {
					t.Fatalf("message %d is not found: %v", p.phy, got)
				}
			}
		}
		find()
		for _, info := range x.Files() {
			if r, err := OpenReader(fs, info.Path, info.Geometry); err != nil {
				t.Fatal(err)
			} else {
				r.Close()
			}
		}
		x, _, _ = e.reopen(t, x)
		find()
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		e.opt.StoreTime = func(phy message.PhysicalOffset) (int64, bool) {
			return start + int64(phy)*10, phy%100 == 0 && phy < 3000
		}
		x, from, _ = e.open(t, OpenState{LogMin: 50, LogEnd: 10_000})
		replay(t, x, ps, from)
		find()
		for _, info := range x.Files() {
			if info.Header.BeginPhy >= 1000 { // ours
				check(t, fs, info.Path, info.Geometry)
			}
		}
	})
}
