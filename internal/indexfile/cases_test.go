package indexfile

import (
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

func keyHash(key string) int32 { return message.IndexKeyHash("TopicTest", key) }

// Case C01: keys with equal hashes are candidates for each other; the record
// decides.
func TestC01CollidingKeys(t *testing.T) {
	a, b := message.IndexKeyHash("AaTopic", "Aa"), message.IndexKeyHash("BBTopic", "BB")
	if a != b || a != 10606476 {
		t.Fatalf("hashes %d and %d", a, b)
	}
	e := newEnv(newMem(), 500, 2000)
	x, _, _ := e.open(t, everything(true))
	mustPut(t, x, put{0, start, []int32{a}}, put{100, start, []int32{b}})
	if got := lookupAll(t, x, a); !slices.Equal(got, phys(100, 0)) {
		t.Errorf("candidates %v", got)
	}
}

// Case C02: hash MIN_VALUE and hash 0 hang in slot 0.
func TestC02HashZero(t *testing.T) {
	e := newEnv(newMem(), 500, 2000)
	x, _, _ := e.open(t, everything(true))
	for i, key := range []string{"vlsoaerz", "flrkafys"} {
		h := keyHash(key)
		if h != 0 {
			t.Fatalf("%s has hash %d", key, h)
		}
		mustPut(t, x, put{message.PhysicalOffset(i * 100), start, []int32{h}})
	}
	if got := lookupAll(t, x, 0); !slices.Equal(got, phys(100, 0)) {
		t.Errorf("candidates %v", got)
	}
	checkAll(t, e)
	if err := x.Put(200, start, []int32{5, -1}); err == nil {
		t.Error("a negative hash was taken")
	}
	if got := lookup(t, x, -1, 0, math.MaxInt64); got != nil {
		t.Errorf("negative hash found %v", got)
	}
	if got := lookupAll(t, x, 5); got != nil {
		t.Errorf("a refused message is half indexed: %v", got)
	}
}

// Case C05: a message with more keys than a file has entries continues in the
// next ones and is found by each key.
func TestC05TenThousandKeys(t *testing.T) {
	e := newEnv(newMem(), 500, 2000)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 30)
	big := put{phy: 3000, time: start + 50_000}
	for i := range 10_000 {
		big.hashes = append(big.hashes, keyHash(fmt.Sprint("token", i)))
	}
	ps = append(ps, big)
	ps = append(ps, sequence(4000, 30)...)
	mustPut(t, x, ps...)
	if n := len(x.Files()); n != 6 {
		t.Errorf("%d files, want 6", n)
	}
	verify(t, x, slices.Concat(ps[:30], ps[31:]))
	for _, h := range []int32{big.hashes[0], big.hashes[1938], big.hashes[1939], big.hashes[5000], big.hashes[9999]} {
		if got := lookupAll(t, x, h); !slices.Contains(got, 3000) {
			t.Errorf("hash %d: %v", h, got)
		}
	}
	checkAll(t, e)
	x, from, rep := e.reopen(t, x)
	if from != 4000+2900 || !rep.Intact || len(rep.Repairs) > 0 {
		t.Errorf("replay from %d, report %+v", from, rep)
	}
	verify(t, x, slices.Concat(ps[:30], ps[31:]))
}

// Case C06 and fault D5: a key given twice and a message put again are found
// once; the bytes are those of upstream, which stores the key twice.
func TestC06SameKeyTwice(t *testing.T) {
	e := newEnv(newMem(), 500, 2000)
	x, _, _ := e.open(t, everything(true))
	k := keyHash("k")
	mustPut(t, x, put{0, start, []int32{k, k}}, put{100, start, []int32{7}})
	mustPut(t, x, put{0, start, []int32{k, k}}, put{100, start, []int32{7}}) // again
	if got := lookupAll(t, x, k); !slices.Equal(got, phys(0)) {
		t.Errorf("found %v", got)
	}
	if n := x.Files()[0].Header.Count; n != 4 {
		t.Errorf("header count %d, want 4", n)
	}
	checkAll(t, e)

	// Kill before anything was synced: an unclean start with no state.
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	x, from, _ := e.open(t, everything(false))
	if from != 100 {
		t.Errorf("replay from %d, want 100", from)
	}
	mustPut(t, x, put{0, start, []int32{k, k}}, put{100, start, []int32{7}})
	if got := lookupAll(t, x, k); !slices.Equal(got, phys(0)) {
		t.Errorf("found %v after the replay", got)
	}
	if got := lookupAll(t, x, 7); !slices.Equal(got, phys(100)) {
		t.Errorf("found %v after the replay", got)
	}
	if n := x.Files()[0].Header.Count; n != 4 {
		t.Errorf("header count %d after the replay, want 4", n)
	}
	checkAll(t, e)
}

// Case C09 and fault D7: the first entry of a file after an idle gap. Its
// seconds are upstream's, against the end of the file before; readers take the
// header's begin instead.
func TestC09FirstEntryAfterRoll(t *testing.T) {
	e := newEnv(newMem(), 500, 4)
	x, _, _ := e.open(t, everything(true))
	d := keyHash("d")
	mustPut(t, x,
		put{0, start, []int32{1}}, put{100, start, []int32{2}}, put{200, start, []int32{3}},
		put{300, start + 10_000, []int32{d}})
	files := x.Files()
	if len(files) != 2 || files[1].Header.BeginTime != start+10_000 {
		t.Fatalf("files %+v", files)
	}
	r, err := OpenReader(e.fs, files[1].Path, e.opt.geometry())
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if err := r.Entries(1, 2, func(_ int32, en Entry) bool {
		if en.Seconds != 10 {
			t.Errorf("entry %+v, want upstream's 10 seconds", en)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		for _, w := range [][2]int64{{start + 10_000, start + 10_000}, {start + 9_000, start + 11_000}, {0, math.MaxInt64}} {
			if got := lookup(t, x, d, w[0], w[1]); !slices.Equal(got, phys(300)) {
				t.Errorf("window %v: %v", w, got)
			}
		}
		for _, w := range [][2]int64{{start + 19_000, start + 21_000}, {start, start + 5_000}} {
			if got := lookup(t, x, d, w[0], w[1]); got != nil {
				t.Errorf("window %v: %v", w, got)
			}
		}
		x, _, _ = e.reopen(t, x)
	}
}

// Case C11: clock and zone go back between rolls. The newest file is the one
// that ends last in the log, whatever its name.
func TestC11ClockBack(t *testing.T) {
	e := newEnv(newMem(), 500, 4)
	e.opt.Location = time.FixedZone("UTC+1", 3600)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 12)
	for i := range ps {
		ps[i].hashes = ps[i].hashes[:1]
	}
	mustPut(t, x, ps[:3]...)
	e.now -= 3600_000
	mustPut(t, x, ps[3:6]...)
	x.opt.Location = time.UTC
	mustPut(t, x, ps[6:9]...)
	e.opt.Location = time.UTC
	x, from, _ := e.reopen(t, x)
	if from != 800 {
		t.Errorf("replay from %d, want 800", from)
	}
	mustPut(t, x, ps[9:]...)
	verify(t, x, ps)
	if n := names(t, e.fs); len(n) != 4 || !slices.IsSorted(n) {
		t.Errorf("names %v", n)
	}

	// A broker did not take that care: its newest file sorts first.
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if err := e.fs.Rename(x.Files()[3].Path, filepath.Join(root, "19990101000000000")); err != nil {
		t.Fatal(err)
	}
	x, from, rep := e.open(t, everything(true))
	if from != 1100 || len(rep.Repairs) > 0 {
		t.Errorf("replay from %d, report %+v", from, rep)
	}
	verify(t, x, ps)
	more := sequence(1200, 4)
	mustPut(t, x, more...)
	verify(t, x, append(ps, more...))
	n := names(t, e.fs)
	if last := filepath.Base(x.Files()[len(x.Files())-1].Path); last != n[len(n)-1] {
		t.Errorf("the newest file %s is not the last of %v", last, n)
	}
}

// damages are the ways of case C12 to damage a file of 20 messages, and more.
var damages = []struct {
	name   string
	atOpen bool // visible without reading all entries
	fn     func(t *testing.T, f vfs.File, g Geometry)
}{
	{"length 0", true, func(t *testing.T, f vfs.File, g Geometry) { truncate(t, f, 0) }},
	{"length 39", true, func(t *testing.T, f vfs.File, g Geometry) { truncate(t, f, 39) }},
	{"header only", true, func(t *testing.T, f vfs.File, g Geometry) { truncate(t, f, 40) }},
	{"slots cut", true, func(t *testing.T, f vfs.File, g Geometry) { truncate(t, f, g.slotPos(g.Slots/2)) }},
	{"entries cut", true, func(t *testing.T, f vfs.File, g Geometry) { truncate(t, f, g.entryPos(10)+7) }},
	{"half", true, func(t *testing.T, f vfs.File, g Geometry) { truncate(t, f, g.Size()/2) }},
	{"count huge", true, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, posCount, 0x7fffffff) }},
	{"count -1", true, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, posCount, -1) }},
	{"count 0", true, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, posCount, 0) }},
	{"count too low", true, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, posCount, 5) }},
	{"count too high", true, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, posCount, 50) }},
	{"header zero", true, func(t *testing.T, f vfs.File, g Geometry) { fill(t, f, 0, headerSize, 0) }},
	{"header ones", true, func(t *testing.T, f vfs.File, g Geometry) { fill(t, f, 0, headerSize, 0xff) }},
	{"begin time", true, func(t *testing.T, f vfs.File, g Geometry) { fill(t, f, posBeginTime, 8, 0xff) }},
	{"begin position", true, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, posBeginPhy+4, 77) }},
	{"first slot", true, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, g.slotPos(0), 0x7fffffff) }},
	{"negative slot", true, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, g.slotPos(3), -5) }},
	{"slots ones", true, func(t *testing.T, f vfs.File, g Geometry) { fill(t, f, g.slotPos(0), 4*int64(g.Slots), 0xff) }},
	{"entry 5 previous 5", false, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, g.entryPos(5)+posPrev, 5) }},
	{"entry 5 previous 1999", false, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, g.entryPos(5)+posPrev, 1999) }},
	{"entry 5 previous -1", false, func(t *testing.T, f vfs.File, g Geometry) { poke(t, f, g.entryPos(5)+posPrev, -1) }},
	{"everything ones", true, func(t *testing.T, f vfs.File, g Geometry) { fill(t, f, 0, g.Size(), 0xff) }},
	{"everything zero", true, func(t *testing.T, f vfs.File, g Geometry) { fill(t, f, 0, g.Size(), 0) }},
}

func truncate(t *testing.T, f vfs.File, size int64) {
	t.Helper()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
}

func poke(t *testing.T, f vfs.File, pos int64, v int32) {
	t.Helper()
	var b [slotSize]byte
	putInt32(&b, v)
	if _, err := f.WriteAt(b[:], pos); err != nil {
		t.Fatal(err)
	}
}

func fill(t *testing.T, f vfs.File, pos, n int64, v byte) {
	t.Helper()
	b := make([]byte, n)
	for i := range b {
		b[i] = v
	}
	if _, err := f.WriteAt(b, pos); err != nil {
		t.Fatal(err)
	}
}

// Case C12, faults Q7 and Q8: the newest file cut or garbled. Whatever is
// known of the store, Open succeeds, all keys are found after the replay that
// it asks for, and a warning names the file.
func TestC12Damage(t *testing.T) {
	for _, where := range []struct {
		name   string
		geo    Geometry
		victim int
	}{
		{"only", Geometry{500, 2000}, 0}, {"newest", Geometry{5, 12}, 3}, {"middle", Geometry{5, 12}, 1}, {"oldest", Geometry{5, 12}, 0},
	} {
		for _, d := range damages {
			for _, clean := range []bool{true, false} {
				for _, trusted := range []bool{true, false} {
					name := fmt.Sprintf("%s/%s/clean=%v/trusted=%v", where.name, d.name, clean, trusted)
					t.Run(name, func(t *testing.T) {
						testDamage(t, where.geo, where.victim, clean, trusted, d.atOpen, d.fn)
					})
				}
			}
		}
	}
}

func testDamage(t *testing.T, geo Geometry, victim int, clean, trusted, atOpen bool, damage func(*testing.T, vfs.File, Geometry)) {
	e := newEnv(newMem(), geo.Slots, geo.Entries)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 20)
	mustPut(t, x, ps...)
	st := mustSync(t, x)
	files := x.Files()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	path := files[victim].Path
	intact := readFile(t, e.fs, path)
	change(t, e.fs, path, func(f vfs.File) { damage(t, f, geo) })
	changed := string(readFile(t, e.fs, path)) != string(intact)

	state := OpenState{Clean: clean, LogEnd: 2000}
	if trusted {
		state.Trusted = &st
	}
	x, from, rep := e.open(t, state)
	if from > 1900 {
		t.Errorf("replay from %d, the last message is at 1900", from)
	}
	if !slices.ContainsFunc(ps, func(p put) bool { return p.phy == from }) {
		t.Errorf("replay from %d, where no message begins", from)
	}
	for _, p := range ps {
		if p.phy >= from {
			mustPut(t, x, p)
		}
	}
	verify(t, x, ps)
	told := len(e.damage) > 0
	for _, r := range rep.Repairs {
		told = told || r.File == path
	}
	// Bringing the newest file back to the last sync is no news.
	routine := trusted && !clean && victim == len(files)-1
	if changed && !told && !(routine && atOpen) {
		t.Errorf("no warning names %s: %+v, %v", path, rep.Repairs, e.damage)
	}

	more := sequence(2000, 20)
	mustPut(t, x, more...)
	verify(t, x, append(ps, more...))
	x, _, _ = e.reopen(t, x)
	verify(t, x, append(ps, more...))
}

// Case C33: foreign names are left alone, with one report each.
func TestC33ForeignNames(t *testing.T) {
	e := newEnv(newMem(), 500, 2000)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 5)
	mustPut(t, x, ps...)
	st := mustSync(t, x)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	foreign := []string{".DS_Store", "20240101000000000.bak", "readme.txt"}
	for _, n := range foreign {
		writeFile(t, e.fs, filepath.Join(root, n), []byte("hello"))
	}
	for _, n := range []string{"lost+found", "20990101000000000"} {
		if err := e.fs.MkdirAll(filepath.Join(root, n)); err != nil {
			t.Fatal(err)
		}
		foreign = append(foreign, n)
	}
	x, _, rep := e.open(t, OpenState{Trusted: &st, LogEnd: 500})
	slices.Sort(foreign)
	var got []string
	for _, f := range rep.Foreign {
		got = append(got, filepath.Base(f))
	}
	slices.Sort(got)
	if !slices.Equal(got, foreign) || len(rep.Repairs) > 0 {
		t.Errorf("report %+v, want foreign %v", rep, foreign)
	}
	verify(t, x, ps)
	for _, n := range foreign {
		if _, err := e.fs.Stat(filepath.Join(root, n)); err != nil {
			t.Error(err)
		}
	}
}
