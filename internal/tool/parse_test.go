package tool

import (
	"testing"
	"time"
)

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("UTC+2", 2*3600)
	now := time.Date(2026, 11, 29, 12, 0, 0, 0, zone)
	ms := func(t time.Time) int64 { return t.UnixMilli() }
	for in, want := range map[string]int64{
		"0":                             0,
		"1700000000000":                 1_700_000_000_000,
		"9223372036854775807":           1<<63 - 1,
		"now":                           ms(now),
		"-2h":                           ms(now.Add(-2 * time.Hour)),
		"-90m":                          ms(now.Add(-90 * time.Minute)),
		"-1h30m":                        ms(now.Add(-90 * time.Minute)),
		"-1.5h":                         ms(now.Add(-90 * time.Minute)),
		"-250ms":                        ms(now) - 250,
		"-7d":                           ms(now.Add(-7 * 24 * time.Hour)),
		"-1d12h":                        ms(now.Add(-36 * time.Hour)),
		"2026-11-29T10:00:00Z":          ms(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC)),
		"2026-11-29T10:00:00+08:00":     ms(time.Date(2026, 11, 29, 2, 0, 0, 0, time.UTC)),
		"2026-11-29T10:00:00.123456Z":   ms(time.Date(2026, 11, 29, 10, 0, 0, 123e6, time.UTC)),
		"2026-11-29 10:00:00":           ms(time.Date(2026, 11, 29, 10, 0, 0, 0, zone)),
		"2026-11-29 10:00:00.5":         ms(time.Date(2026, 11, 29, 10, 0, 0, 500e6, zone)),
		"2026-11-29T10:00:00":           ms(time.Date(2026, 11, 29, 10, 0, 0, 0, zone)),
		"2026-11-29 10:00":              ms(time.Date(2026, 11, 29, 10, 0, 0, 0, zone)),
		"2026-11-29":                    ms(time.Date(2026, 11, 29, 0, 0, 0, 0, zone)),
		"1960-01-01":                    ms(time.Date(1960, 1, 1, 0, 0, 0, 0, zone)),
		"0001-01-01T00:00:00.000+00:00": ms(time.Time{}),
	} {
		got, err := ParseTime(in, now)
		if err != nil || got != want {
			t.Errorf("ParseTime(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{
		"", " ", "-", "-5", "--2h", "-+2h", "-2x", "-d", "-1d2d", "-99999999d", "2h", "+2h", "yesterday", "2026-13-01", "2026-11-31",
		"10:00", "9223372036854775808", "1e3", "now-2h",
	} {
		if got, err := ParseTime(in, now); err == nil {
			t.Errorf("ParseTime(%q) = %d, want an error", in, got)
		}
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]int64{
		"0": 0, "4096": 4096, "64B": 64, "64KiB": 64 << 10, "64MiB": 64 << 20, "1GiB": 1 << 30, "2TiB": 2 << 40,
		"1KB": 1000, "1GB": 1e9, "1gb": 1e9, "64mib": 64 << 20, " 7 MiB ": 7 << 20, "4611686018427387904": 1 << 62,
	} {
		got, err := ParseSize(in)
		if err != nil || got != want {
			t.Errorf("ParseSize(%q) = %d, %v, want %d", in, got, err, want)
		}
	}
	for _, in := range []string{"", "B", "-1", "+1", "1.5GiB", "1 2", "1XB", "1M", "9999999TiB", "9223372036854775808", "0x10"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("ParseSize(%q) = %d, want an error", in, got)
		}
	}
}
