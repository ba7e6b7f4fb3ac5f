package sqlfilter

import (
	"math"
	"strconv"
	"testing"
)

func TestParseInteger(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int64
		ok   bool
	}{
		{"0", 0, true}, {"-0", 0, true}, {"+7", 7, true}, {"007", 7, true}, {"-12", -12, true},
		{"9223372036854775807", math.MaxInt64, true}, {"-9223372036854775808", math.MinInt64, true},
		{"٣", 3, true}, {"２５", 25, true}, {"1２", 12, true}, {"-９", -9, true}, {"0٩߀", 90, true},
		{"9223372036854775808", 0, false}, {"-9223372036854775809", 0, false}, {"99999999999999999999", 0, false},
		{"", 0, false}, {"-", 0, false}, {"+", 0, false}, {"--1", 0, false}, {"+-1", 0, false}, {" 1", 0, false}, {"1 ", 0, false}, {"1.0", 0, false},
		{"1e3", 0, false}, {"0x1", 0, false}, {"1L", 0, false}, {"1_0", 0, false}, {"½", 0, false}, {"Ⅷ", 0, false}, {"𝟓", 0, false}, {"\xff", 0, false}, {"1\x80", 0, false},
	} {
		if got, ok := parseInteger(tt.text); ok != tt.ok || ok && got != tt.want {
			t.Errorf("%q: %d, %t; want %d, %t", tt.text, got, ok, tt.want, tt.ok)
		}
	}
}

func TestParseDecimal(t *testing.T) {
	inf, nan := math.Inf(1), math.NaN()
	for _, tt := range []struct {
		text string
		want float64
		ok   bool
	}{
		{"5", 5, true}, {"-5.5", -5.5, true}, {"+.5", 0.5, true}, {"5.", 5, true}, {"1e3", 1000, true}, {"1.5E-3", 0.0015, true}, {"1e+2", 100, true}, {"007", 7, true},
		{"5d", 5, true}, {"5.5F", 5.5, true}, {"1e3D", 1000, true}, {"5.f", 5, true},
		{"\t 5 \n", 5, true}, {"\x005\x1f", 5, true}, {"-0", math.Copysign(0, -1), true},
		{"1e400", inf, true}, {"-1e400", -inf, true}, {"1e-400", 0, true}, {"1e99999999999999999999", inf, true}, {"0e99999999999999999999", 0, true},
		{"NaN", nan, true}, {"-NaN", nan, true}, {"Infinity", inf, true}, {"+Infinity", inf, true}, {"-Infinity", -inf, true},
		{"0x1p3", 8, true}, {"0X1.8P1", 3, true}, {"-0x.8p1", -1, true}, {"0x1.p-1f", 0.5, true}, {"0xfp0", 15, true}, {"0x1p-2000", 0, true},
		{"", 0, false}, {" ", 0, false}, {"-", 0, false}, {".", 0, false}, {"d", 0, false}, {"-d", 0, false}, {"5dd", 0, false}, {"5 d", 0, false}, {"5e", 0, false}, {"5e+", 0, false}, {"5ed", 0, false},
		{"1.2.3", 0, false}, {"1,5", 0, false}, {"--5", 0, false}, {"+-5", 0, false}, {"1_000", 0, false}, {"inf", 0, false}, {"nan", 0, false}, {"infinity", 0, false}, {"NaNd", 0, false},
		{"0x5", 0, false}, {"0x", 0, false}, {"0xp1", 0, false}, {"0x.p1", 0, false}, {"0x_1p3", 0, false}, {"0x1p", 0, false}, {"0b1", 0, false}, {"0o7", 0, false}, {"5L", 0, false},
		{"２５", 0, false}, {"\u00a05", 0, false}, {"1e0x1", 0, false},
	} {
		got, ok := parseDecimal(tt.text)
		if ok != tt.ok || ok && math.Float64bits(got) != math.Float64bits(tt.want) && !(got != got && tt.want != tt.want) {
			t.Errorf("%q: %v, %t; want %v, %t", tt.text, got, ok, tt.want, tt.ok)
		}
	}
}

func TestCompareDecimals(t *testing.T) {
	ordered := []float64{math.Inf(-1), -5, math.Copysign(0, -1), 0, 5, math.Inf(1), math.NaN()}
	for i, a := range ordered {
		for j, b := range ordered {
			if got, want := compareDecimals(a, b), compareIntegers(int64(i), int64(j)); got != want {
				t.Errorf("%v and %v: %d, want %d", a, b, got, want)
			}
		}
	}
}

// FuzzNumbers: integers are what strconv reads, and what is an integer of
// ASCII is a decimal too.
func FuzzNumbers(f *testing.F) {
	for _, s := range []string{"0", "-1", "9223372036854775808", "1.5e3d", "0x1p3", " 5 ", "NaN", "٣", "-Infinity", "1e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		i, ok := parseInteger(s)
		want, err := strconv.ParseInt(s, 10, 64)
		if err == nil && (!ok || i != want) {
			t.Errorf("%q: %d, %t; want %d", s, i, ok, want)
		}
		d, dok := parseDecimal(s)
		if err == nil && (!dok || d != float64(want)) {
			t.Errorf("%q: %v, %t; want %d", s, d, dok, want)
		}
		if !dok && d != 0 {
			t.Errorf("%q: %v without ok", s, d)
		}
	})
}
