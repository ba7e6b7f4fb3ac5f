package mappedfile

import (
	"math"
	"testing"
)

func TestFileName(t *testing.T) {
	for _, tt := range []struct {
		start int64
		want  string
	}{
		{0, "00000000000000000000"},
		{1, "00000000000000000001"},
		{1 << 30, "00000000001073741824"},
		{6_000_000, "00000000000006000000"},
		{math.MaxInt64, "09223372036854775807"},
	} {
		if got := FileName(tt.start); got != tt.want {
			t.Errorf("FileName(%d) = %q, want %q", tt.start, got, tt.want)
		}
		if got, ok := ParseFileName(tt.want); got != tt.start || !ok {
			t.Errorf("ParseFileName(%q) = %d, %v, want %d", tt.want, got, ok, tt.start)
		}
	}
}

func TestParseFileNameRejects(t *testing.T) {
	for name, in := range map[string]string{
		"empty":             "",
		"not padded":        "1048576",
		"one digit less":    "0000000000000000000",
		"one digit more":    "000000000000000000000",
		"suffix":            "00000000000000000000.bak",
		"sign":              "+0000000000000000001",
		"minus":             "-0000000000000000001",
		"space":             " 0000000000000000001",
		"hexadecimal":       "0000000000000000000a",
		"other digits":      "٠٠٠٠٠٠٠٠٠٠",
		"one above maximum": "09223372036854775808",
		"far above maximum": "99999999999999999999",
	} {
		if start, ok := ParseFileName(in); ok {
			t.Errorf("%s: ParseFileName(%q) = %d, want none", name, in, start)
		}
	}
}

func FuzzParseFileName(f *testing.F) {
	for _, s := range []string{"", "00000000000000000000", "09223372036854775807", "09223372036854775808", "1", "٠٠٠٠٠٠٠٠٠٠"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		start, ok := ParseFileName(name)
		if ok && (start < 0 || FileName(start) != name) {
			t.Errorf("ParseFileName(%q) = %d, whose name is %q", name, start, FileName(start))
		}
	})
}
