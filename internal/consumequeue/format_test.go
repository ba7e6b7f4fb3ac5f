package consumequeue

import (
	"bytes"
	"encoding/hex"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/message"
)

func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	if err != nil {
		tb.Fatal(err)
	}
	return b
}

// The units of record B of the format's worked example: topic TopicTest, queue
// 3, queue offset 7.
const (
	unitB  = "00 00 00 00 00 00 00 5e  00 00 00 b0  00 00 00 00 00 27 a8 07"
	batchB = unitB + "00 00 01 8c c2 51 f8 d2 00 00 00 00 00 00 00 07 00 01 ff ff ff ff 00 00 00 00"
)

func TestUnitWorkedHex(t *testing.T) {
	for _, tc := range []struct {
		name  string
		hex   string
		unit  Unit
		valid bool
		fill  bool
	}{
		{"record B", unitB, Unit{94, 176, 2598919}, true, false},
		{"negative hash", "00000000 0000005e 000000b0 ffffffff8e987641", Unit{94, 176, -1902610879}, true, false},
		{"pre-blank", "00000000 00000000 7fffffff 0000000000000000", FillUnit, false, true},
		{"never written", strings.Repeat("00", 20), Unit{}, false, false},
		{"size negative", "00000000 0000005e 80000000 0000000000000000", Unit{94, math.MinInt32, 0}, false, false},
		{"position negative", "80000000 00000000 000000b0 0000000000000000", Unit{math.MinInt64, 176, 0}, false, false},
		{"extension address", "00000000 0000005e 000000b0 8000000000000000", Unit{94, 176, math.MinInt64}, true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			raw := unhex(t, tc.hex)
			u, err := DecodeUnit(raw)
			if err != nil || u != tc.unit {
				t.Errorf("DecodeUnit = %+v, %v, want %+v", u, err, tc.unit)
			}
			if u.Valid() != tc.valid || u.IsFill() != tc.fill {
				t.Errorf("Valid %t, IsFill %t, want %t, %t", u.Valid(), u.IsFill(), tc.valid, tc.fill)
			}
			if got := AppendUnit([]byte("x"), tc.unit); !bytes.Equal(got, append([]byte("x"), raw...)) {
				t.Errorf("AppendUnit = %x, want %x", got, raw)
			}
		})
	}
	if _, err := DecodeUnit(make([]byte, UnitSize-1)); !errors.Is(err, base.ErrCorrupt) {
		t.Errorf("19 bytes: %v", err)
	}
}

func TestBatchUnitWorkedHex(t *testing.T) {
	raw := unhex(t, batchB)
	want := BatchUnit{Physical: 94, Size: 176, Tags: 2598919, StoreTime: 1704067201234, Base: 7, Count: 1, Compacted: -1}
	u, err := DecodeBatchUnit(raw)
	if err != nil || u != want {
		t.Errorf("DecodeBatchUnit = %+v, %v, want %+v", u, err, want)
	}
	if !u.Valid() || u.Next() != 8 || u.End() != 270 {
		t.Errorf("valid %t, next %d, end %d", u.Valid(), u.Next(), u.End())
	}
	if got := AppendBatchUnit(nil, want); !bytes.Equal(got, raw) {
		t.Errorf("AppendBatchUnit = %x, want %x", got, raw)
	}
	// The end unit of a sparse queue.
	end := BatchUnit{Physical: -1, Compacted: -1}
	if got, err := DecodeBatchUnit(AppendBatchUnit(nil, end)); err != nil || got != end || got.Valid() {
		t.Errorf("end unit = %+v, %v, valid %t", got, err, got.Valid())
	}
	if _, err := DecodeBatchUnit(raw[:BatchUnitSize-1]); !errors.Is(err, base.ErrCorrupt) {
		t.Errorf("45 bytes: %v", err)
	}
}

func TestExtUnit(t *testing.T) {
	// The bit map of the worked example: positions 55, 9, 75 of 112.
	bits := unhex(t, "00 02 00 00 00 00 80 00 00 08 00 00 00 00")
	u := ExtUnit{Tags: 2598919, StoreTime: 1704067201234, Bitmap: bits}
	raw := AppendExtUnit(nil, u)
	if want := unhex(t, "0022 000000000027a807 0000018cc251f8d2 000e 00020000000080000008 00000000"); !bytes.Equal(raw, want) {
		t.Errorf("AppendExtUnit = %x, want %x", raw, want)
	}
	got, n, err := DecodeExtUnit(append(raw, 1, 2, 3))
	if err != nil || n != 34 || !cmp.Equal(got, u) {
		t.Errorf("DecodeExtUnit = %+v, %d, %v", got, n, err)
	}
	for _, tc := range []struct {
		name string
		hex  string
		size int
		bad  bool
	}{
		{"end of data", "0000", 0, false},
		{"end of file", "ffff", -1, false},
		{"other negative size", "8000 00", math.MinInt16, false},
		{"nothing", "", 0, true},
		{"one byte", "00", 0, true},
		{"size below the header", "0013" + strings.Repeat("00", 18), 0, true},
		{"size behind the end", "0015" + strings.Repeat("00", 18), 0, true},
		{"bitmap longer than the unit", "0014" + strings.Repeat("00", 16) + "0001 00", 0, true},
		{"bitmap shorter than the unit", "0016" + strings.Repeat("00", 20), 0, true},
		{"bitmap length negative", "0014" + strings.Repeat("00", 16) + "ffff", 0, true},
		{"no bitmap", "0014" + strings.Repeat("00", 18), 20, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, size, err := DecodeExtUnit(unhex(t, tc.hex))
			if size != tc.size || errors.Is(err, base.ErrCorrupt) != tc.bad {
				t.Errorf("size %d, %v, want %d, corrupt %t", size, err, tc.size, tc.bad)
			}
		})
	}
}

func TestExtAddress(t *testing.T) {
	for _, tc := range []struct {
		offset  int64
		address int64
	}{
		{0, math.MinInt64},
		{20, math.MinInt64 + 20},
		{math.MaxInt64 - math.MaxInt32 - 1, math.MinInt32 - 1}, // the largest: 2^63 - 2^31 - 1
	} {
		addr := ExtAddress(tc.offset)
		if int64(addr) != tc.address || !IsExtAddress(addr) {
			t.Errorf("ExtAddress(%d) = %d, want %d", tc.offset, addr, tc.address)
		}
		if off, ok := ExtOffset(addr); !ok || off != tc.offset {
			t.Errorf("ExtOffset(%d) = %d, %t", addr, off, ok)
		}
	}
	for _, code := range []int64{math.MinInt32, -1, 0, math.MaxInt32, 1704067201234, math.MaxInt64} {
		if _, ok := ExtOffset(message.TagsCode(code)); ok || IsExtAddress(message.TagsCode(code)) {
			t.Errorf("%d is taken for an address", code)
		}
	}
}

func FuzzDecodeUnit(f *testing.F) {
	f.Add(unhex(f, unitB))
	f.Add(AppendUnit(nil, FillUnit))
	f.Add([]byte{})
	f.Add(make([]byte, 41))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := DecodeUnit(b)
		if (err == nil) != (len(b) >= UnitSize) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err == nil && !bytes.Equal(AppendUnit(nil, u), b[:UnitSize]) {
			t.Fatalf("%x became %+v", b[:UnitSize], u)
		}
	})
}

func FuzzDecodeBatchUnit(f *testing.F) {
	f.Add(unhex(f, batchB))
	f.Add([]byte{1})
	f.Add(make([]byte, 100))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, err := DecodeBatchUnit(b)
		if (err == nil) != (len(b) >= BatchUnitSize) {
			t.Fatalf("%d bytes: %v", len(b), err)
		}
		if err == nil && !bytes.Equal(AppendBatchUnit(nil, u), b[:BatchUnitSize]) {
			t.Fatalf("%x became %+v", b[:BatchUnitSize], u)
		}
	})
}

func FuzzDecodeExtUnit(f *testing.F) {
	f.Add(AppendExtUnit(nil, ExtUnit{Tags: 1, StoreTime: 2, Bitmap: []byte{3, 4}}))
	f.Add([]byte{0xff, 0xff})
	f.Add([]byte{0, 0, 1})
	f.Add(append([]byte{0, 20}, make([]byte, 18)...))
	f.Fuzz(func(t *testing.T, b []byte) {
		u, size, err := DecodeExtUnit(b)
		if err != nil || size <= 0 {
			return
		}
		if size > len(b) {
			t.Fatalf("%d bytes of %d used", size, len(b))
		}
		if !bytes.Equal(AppendExtUnit(nil, u), b[:size]) {
			t.Fatalf("%x became %+v", b[:size], u)
		}
	})
}

func TestFileNames(t *testing.T) {
	for _, tc := range []struct {
		name  string
		start int64
		ok    bool
	}{
		{"00000000000000000000", 0, true},
		{"00000000000006000000", 6000000, true},
		{"09223372036854775807", math.MaxInt64, true},
		{"09223372036854775808", 0, false},
		{"6000000", 0, false},
		{"000000000000006000000", 0, false},
		{"-0000000000006000000", 0, false},
		{"0000000000000600000a", 0, false},
		{"00000000000٣", 0, false}, // 20 bytes is not 20 digits
		{"", 0, false},
	} {
		start, ok := parseFileName(tc.name)
		if ok != tc.ok || ok && (start != tc.start || fileName(start) != tc.name) {
			t.Errorf("parseFileName(%q) = %d, %t, want %d, %t", tc.name, start, ok, tc.start, tc.ok)
		}
	}
	for name, want := range map[string]bool{
		"0": true, "7": true, "-1": true, "2147483647": true,
		"2147483648": false, "007": false, "+7": false, "": false, "a": false, "1 ": false, "-0": false,
	} {
		if _, ok := parseQueueID(name); ok != want {
			t.Errorf("parseQueueID(%q) = %t", name, ok)
		}
	}
}

func TestTopicNames(t *testing.T) {
	for topic, want := range map[string]bool{
		"T": true, "%RETRY%g": true, "SCHEDULE_TOPIC_XXXX": true, "a b": true, "Ünïcode": true, "...": true, ".hidden": true,
		"": false, ".": false, "..": false, "../x": false, "a/b": false, "/a": false, `a\b`: false, "a\x00b": false,
	} {
		if err := checkTopic(topic); (err == nil) != want || !want && !errors.Is(err, ErrName) {
			t.Errorf("checkTopic(%q) = %v", topic, err)
		}
	}
}
