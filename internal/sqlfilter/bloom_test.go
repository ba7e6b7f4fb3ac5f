package sqlfilter

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"testing"
)

func defaultBloom(t testing.TB) Bloom {
	t.Helper()
	b, err := NewBloom(DefaultErrorRate, DefaultExpectedGroups)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// TestBloomSizes: sizes are upstream's.
func TestBloomSizes(t *testing.T) {
	for _, tt := range []struct{ rate, groups, bits, hashes int }{
		{20, 32, 112, 3}, {10, 128, 616, 4}, {1, 1, 16, 7}, {50, 1, 8, 1}, {25, 32, 96, 2}, {99, 1, 8, 1}, {1, 1000, 9592, 7},
	} {
		b, err := NewBloom(tt.rate, tt.groups)
		if err != nil {
			t.Fatal(err)
		}
		if b.Bits() != tt.bits || b.Hashes() != tt.hashes {
			t.Errorf("rate %d, %d groups: %d bits, %d hashes; want %d, %d", tt.rate, tt.groups, b.Bits(), b.Hashes(), tt.bits, tt.hashes)
		}
	}
	for _, tt := range []struct{ rate, groups int }{{0, 32}, {100, 32}, {-1, 32}, {20, 0}, {20, -1}, {1, 30000}, {1, math.MaxInt}} {
		if b, err := NewBloom(tt.rate, tt.groups); err == nil {
			t.Errorf("rate %d, %d groups: %+v", tt.rate, tt.groups, b)
		}
	}
}

func TestBloomPositions(t *testing.T) {
	b := defaultBloom(t)
	for _, tt := range []struct {
		group, topic string
		want         []int
	}{
		{"g1", "Orders", []int{55, 9, 75}}, // store-format.md section 14.5
		{"GID_消费者", "T_订单", []int{56, 16, 88}},
		{"", "", []int{3, 62, 22}},
	} {
		if got := b.Positions(tt.group, tt.topic); !slices.Equal(got, tt.want) {
			t.Errorf("%s#%s: %v, want %v", tt.group, tt.topic, got, tt.want)
		}
	}
}

func TestMurmur3(t *testing.T) {
	for _, tt := range []struct {
		text string
		want uint64
	}{
		{"", 0},
		{"g1#Orders", 0x21fce8a21156f175}, // little-endian 75f15611a2e8fc21
		{"hello", 0xcbd8a7b341bd9b02},
		{"The quick brown fox jumps over the lazy dog", 0xe34bbc7bbc071b6c},
	} {
		if got := murmur3([]byte(tt.text)); got != tt.want {
			t.Errorf("%q: %#x, want %#x", tt.text, got, tt.want)
		}
	}
}

func TestBloomBitMap(t *testing.T) {
	b := defaultBloom(t)
	bitMap := b.NewBitMap()
	b.Set(bitMap, b.Positions("g1", "Orders"))
	want := []byte{0x00, 0x02, 0, 0, 0, 0, 0x80, 0, 0, 0x08, 0, 0, 0, 0} // store-format.md section 7
	if !bytes.Equal(bitMap, want) {
		t.Errorf("got % x, want % x", bitMap, want)
	}
}

func TestMayMatch(t *testing.T) {
	b := defaultBloom(t)
	bitMap := b.NewBitMap()
	b.Set(bitMap, []int{55, 9, 75})
	for _, tt := range []struct {
		name      string
		bitMap    []byte
		positions []int
		want      bool
	}{
		{"set", bitMap, []int{55, 9, 75}, true},
		{"other order", bitMap, []int{75, 55, 9}, true},
		{"one not set", bitMap, []int{55, 9, 76}, false},
		{"nothing set", b.NewBitMap(), []int{55, 9, 75}, false},
		{"no bit map", nil, []int{55, 9, 75}, true},
		{"shorter bit map", make([]byte, 13), []int{55, 9, 75}, true},
		{"longer bit map", make([]byte, 15), []int{55, 9, 75}, true},
		{"no positions", bitMap, nil, true},
		{"position out of range", bitMap, []int{55, 9, 112}, true},
		{"negative position", bitMap, []int{55, 9, -1}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := b.MayMatch(tt.bitMap, tt.positions); got != tt.want {
				t.Errorf("%t, want %t", got, tt.want)
			}
		})
	}
}

// TestBloomFalseHits: no group is lost, and there are about as many false hits as asked for.
func TestBloomFalseHits(t *testing.T) {
	b := defaultBloom(t)
	bitMap := b.NewBitMap()
	for i := range DefaultExpectedGroups {
		b.Set(bitMap, b.Positions(fmt.Sprint("in", i), "T"))
	}
	for i := range DefaultExpectedGroups {
		if !b.MayMatch(bitMap, b.Positions(fmt.Sprint("in", i), "T")) {
			t.Errorf("group in%d was lost", i)
		}
	}
	const asked = 2000
	hits := 0
	for i := range asked {
		if b.MayMatch(bitMap, b.Positions(fmt.Sprint("out", i), "T")) {
			hits++
		}
	}
	if rate := hits * 100 / asked; rate > 2*DefaultErrorRate {
		t.Errorf("%d %% false hits", rate)
	}
}

func TestBloomValid(t *testing.T) {
	b := defaultBloom(t)
	for _, tt := range []struct {
		name      string
		bits      int
		positions []int
		want      bool
	}{
		{"fits", 112, []int{0, 111, 55}, true},
		{"other size", 104, []int{0, 1, 2}, false},
		{"other number of positions", 112, []int{0, 1}, false},
		{"out of range", 112, []int{0, 1, 112}, false},
		{"negative", 112, []int{0, 1, -1}, false},
		{"nothing", 0, nil, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := b.Valid(tt.bits, tt.positions); got != tt.want {
				t.Errorf("%t, want %t", got, tt.want)
			}
		})
	}
}
