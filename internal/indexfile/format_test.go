package indexfile

import (
	"encoding/hex"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/message"
)

func unhex(s string) string {
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		panic(err)
	}
	return string(b)
}

// Section 18.7 of the format: the default geometry, one message with two keys.
func TestGoldenDefaultSize(t *testing.T) {
	e := newEnv(newMem(), 0, 0)
	x, _, _ := e.open(t, everything(true))
	mustPut(t, x, put{94, 0x18cc251f8d2, []int32{1562057478, 1655984460}})
	f := x.Files()[0]
	if f.Size != 420_000_040 || f.Geometry != DefaultGeometry {
		t.Fatalf("file %+v", f)
	}
	h, err := e.fs.Open(f.Path, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for _, tt := range []struct {
		what string
		at   int64
		want string
	}{
		{"header", 0, "00 00 01 8c c2 51 f8 d2  00 00 01 8c c2 51 f8 d2  00 00 00 00 00 00 00 5e  00 00 00 00 00 00 00 5e  00 00 00 02  00 00 00 03"},
		{"slot 2057478", 8_229_952, "00 00 00 01"},
		{"slot 984460", 3_937_880, "00 00 00 02"},
		{"entry 0", 20_000_040, strings.Repeat("00", 20)},
		{"entry 1", 20_000_060, "5d 1b 1b 06  00 00 00 00 00 00 00 5e  00 00 00 00  00 00 00 00"},
		{"entry 2", 20_000_080, "62 b4 51 4c  00 00 00 00 00 00 00 5e  00 00 00 00  00 00 00 00"},
	} {
		b := make([]byte, len(unhex(tt.want)))
		if _, err := h.ReadAt(b, tt.at); err != nil {
			t.Fatal(err)
		}
		if string(b) != unhex(tt.want) {
			t.Errorf("%s\n got % x\nwant % x", tt.what, b, unhex(tt.want))
		}
	}
}

// Section 18.8: a chain in a toy file, then the file after it.
func TestGoldenChain(t *testing.T) {
	const base = 1704067200000
	e := newEnv(newMem(), 4, 8)
	x, _, _ := e.open(t, everything(true))
	mustPut(t, x,
		put{0, base + 1, []int32{81906}},
		put{91, base + 1500, []int32{81907}},
		put{200, base + 3100, []int32{81910}})
	want := unhex(`
		00 00 01 8c c2 51 f4 01 00 00 01 8c c2 52 00 1c 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 c8 00 00 00 02 00 00 00 04
		00 00 00 00 00 00 00 00 00 00 00 03 00 00 00 02
		00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		00 01 3f f2 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		00 01 3f f3 00 00 00 00 00 00 00 5b 00 00 00 01 00 00 00 00
		00 01 3f f6 00 00 00 00 00 00 00 c8 00 00 00 03 00 00 00 01`) + strings.Repeat("\x00", 80)
	if got := readFile(t, e.fs, x.Files()[0].Path); string(got) != want {
		t.Errorf("toy file\n got % x\nwant % x", got, want)
	}

	// A full file that ends there, and the first put of the next one.
	e = newEnv(newMem(), 4, 4)
	x, _, _ = e.open(t, everything(true))
	mustPut(t, x,
		put{0, base + 1, []int32{81906}},
		put{91, base + 1500, []int32{81907}},
		put{200, base + 3100, []int32{81910}})
	if n := len(x.Files()); n != 1 {
		t.Fatalf("%d files before the next put, want 1", n)
	}
	mustPut(t, x, put{300, base + 10100, []int32{81906}})
	want = unhex(`
		00 00 01 8c c2 52 1b 74 00 00 01 8c c2 52 1b 74 00 00 00 00 00 00 01 2c 00 00 00 00 00 00 01 2c 00 00 00 01 00 00 00 02
		00 00 00 00 00 00 00 00 00 00 00 01 00 00 00 00
		00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
		00 01 3f f2 00 00 00 00 00 00 01 2c 00 00 00 07 00 00 00 00`) + strings.Repeat("\x00", 40)
	if got := readFile(t, e.fs, x.Files()[1].Path); string(got) != want {
		t.Errorf("next file\n got % x\nwant % x", got, want)
	}
	var b [headerSize]byte
	putHeader(&b, seedAfter(200, base+3100))
	if want := unhex("00 00 01 8c c2 52 00 1c 00 00 01 8c c2 52 00 1c 00 00 00 00 00 00 00 c8 00 00 00 00 00 00 00 c8 00 00 00 00 00 00 00 00"); string(b[:]) != want {
		t.Errorf("seeded header\n got % x\nwant % x", b, want)
	}
}

func TestHeaderRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		h := Header{
			BeginTime: rapid.Int64().Draw(t, "bt"), EndTime: rapid.Int64().Draw(t, "et"),
			BeginPhy: message.PhysicalOffset(rapid.Int64().Draw(t, "bp")), EndPhy: message.PhysicalOffset(rapid.Int64().Draw(t, "ep")),
			SlotCount: rapid.Int32().Draw(t, "s"), Count: rapid.Int32().Draw(t, "c"),
		}
		var b [headerSize]byte
		putHeader(&b, h)
		if got := decodeHeader(&b); got != h {
			t.Fatalf("%+v came back as %+v", h, got)
		}
		e := Entry{Hash: rapid.Int32().Draw(t, "h"), Phy: h.BeginPhy, Seconds: h.SlotCount, Prev: h.Count}
		putEntry(b[:], e)
		if got := decodeEntry(b[:]); got != e {
			t.Fatalf("%+v came back as %+v", e, got)
		}
	})
}

func TestSeconds(t *testing.T) {
	for _, tt := range []struct {
		name        string
		time, begin int64
		want        int32
	}{
		{"equal", start, start, 0},
		{"below a second", start + 999, start, 0},
		{"a second", start + 1000, start, 1},
		{"just before", start - 999, start, 0},
		{"before", start - 5000, start, 0},
		{"far", start + math.MaxInt32*1000, start, math.MaxInt32},
		{"farther", start + (math.MaxInt32+5)*1000, start, math.MaxInt32},
		{"no begin", start, 0, 0},
		{"negative begin", start, -1, 0},
	} {
		if got := seconds(tt.time, tt.begin); got != tt.want {
			t.Errorf("%s: seconds(%d, %d) = %d, want %d", tt.name, tt.time, tt.begin, got, tt.want)
		}
	}
}

// An entry's own time is never excluded by a window that contains it.
func TestEntryTimeNeverExcludes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		begin := rapid.OneOf(rapid.Int64Range(1, 1<<45), rapid.Just(int64(start)), rapid.Int64Range(math.MinInt64, math.MaxInt64-(1<<45))).Draw(t, "begin")
		at := rapid.OneOf(rapid.Int64Range(begin, begin+(1<<45)), rapid.Int64()).Draw(t, "at")
		e := rapid.Int32Range(2, 9).Draw(t, "e")
		from := rapid.OneOf(rapid.Just(at), rapid.Int64Range(math.MinInt64, at)).Draw(t, "from")
		to := rapid.OneOf(rapid.Just(at), rapid.Int64Range(at, math.MaxInt64)).Draw(t, "to")
		secs := seconds(at, begin)
		if (at-begin)/1000 != int64(secs) || at < begin || at-begin < 0 {
			t.Skip("clamped or wrapped")
		}
		if got, ok := entryTime(e, secs, begin); ok && (after(got, to) || before(got, from)) {
			t.Fatalf("entry at %d, file from %d, is excluded by [%d, %d]", at, begin, from, to)
		}
	})
	if !before(math.MinInt64, math.MaxInt64) || after(math.MinInt64, math.MaxInt64) || before(5, 1005) || !before(5, 1006) {
		t.Error("comparison with slack is wrong")
	}
}

// Fault D8: names are unique and increase whatever the clock does.
func TestD8Names(t *testing.T) {
	zone := time.FixedZone("UTC+1", 3600)
	at := time.Date(2024, 2, 28, 23, 59, 59, 999e6, time.UTC).UnixMilli()
	for _, tt := range []struct {
		name, last string
		ms         int64
		loc        *time.Location
		want       string
	}{
		{"first", "", at, time.UTC, "20240228235959999"},
		{"zone", "", at, zone, "20240229005959999"},
		{"later", "20240228235959998", at, time.UTC, "20240228235959999"},
		{"same millisecond", "20240228235959999", at, time.UTC, "20240229000000000"},
		{"leap day", "20240229235959999", at, time.UTC, "20240301000000000"},
		{"clock back", "20250101000000000", at, time.UTC, "20250101000000001"},
		{"zone back", "20240229005959999", at, time.UTC, "20240229010000000"},
		{"no date", "20249999000000000", at, time.UTC, "20249999000000001"},
		{"before the first year", "00000000000000009", math.MinInt64 / 1000, time.UTC, "00000101000000000"},
		{"year 0", "00000101000000000", math.MinInt64 / 1000, time.UTC, "00000101000000001"},
		{"leading zeros", "00001399000000009", math.MinInt64 / 1000, time.UTC, "00001399000000010"},
		{"end of days", "99991231235959999", at, time.UTC, "99991231235960000"},
		{"far future", "", math.MaxInt64 / 10000, time.UTC, "99991231235959999"},
	} {
		got, err := nameAfter(tt.last, tt.ms, tt.loc)
		if err != nil || got != tt.want {
			t.Errorf("%s: %q, %v, want %q", tt.name, got, err, tt.want)
		}
		if !isFileName(got) || got <= tt.last {
			t.Errorf("%s: %q does not follow %q", tt.name, got, tt.last)
		}
	}
	if name, err := nameAfter("99999999999999999", at, time.UTC); err == nil {
		t.Errorf("name %q behind the last one", name)
	}
	for _, n := range []string{"", "2024022823595999", "202402282359599990", "2024022823595999x", "readme.txt"} {
		if isFileName(n) {
			t.Errorf("%q is taken for an index file", n)
		}
	}
	got, ok := parseFileName("20240228235959999")
	if want := time.UnixMilli(at).UTC(); !ok || !got.Equal(want) {
		t.Errorf("parsed %v %v, want %v", got, ok, want)
	}
}

func TestReader(t *testing.T) {
	e := newEnv(newMem(), 7, 50)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 20)
	mustPut(t, x, ps...)
	r, err := OpenReader(e.fs, x.Files()[0].Path, Geometry{5, 50}) // the wrong hint
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Geometry() != (Geometry{7, 50}) {
		t.Errorf("geometry %v", r.Geometry())
	}
	var got []message.PhysicalOffset
	if err := r.Entries(-3, 1000, func(e int32, en Entry) bool {
		if e >= 1 && e < r.Header().Count {
			got = append(got, en.Phy)
		}
		return true
	}); err != nil {
		t.Fatal(err)
	}
	var want []message.PhysicalOffset
	for _, p := range ps {
		want = append(want, p.phy, p.phy)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("entries (-want +got):\n%s", d)
	}
	if p := r.EntryPos(1); p != 40+7*4+20 {
		t.Errorf("entry 1 at %d", p)
	}
	if p := r.SlotPos(3); p != 52 {
		t.Errorf("slot 3 at %d", p)
	}
	writeFile(t, e.fs, filepath.Join(root, "20240101000000000"), []byte("short"))
	if _, err := OpenReader(e.fs, filepath.Join(root, "20240101000000000")); err == nil {
		t.Error("a file of 5 bytes has a geometry")
	}
}
