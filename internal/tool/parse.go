package tool

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// ParseTime reads a point in time as the commands take it: ms since 1970,
// RFC 3339, "2026-11-29 10:00:00" in the zone of now (a T may stand between;
// the seconds or the whole time of day may be missing), "now", or a duration
// before now like "-2h" or "-7d".
func ParseTime(s string, now time.Time) (ms int64, err error) {
	if n, err := strconv.ParseUint(s, 10, 63); err == nil {
		return int64(n), nil
	}
	if ago, ok := strings.CutPrefix(s, "-"); ok {
		d, err := parseDuration(ago)
		if err != nil {
			return 0, fmt.Errorf("%q is no time before now, like -2h or -90m", s)
		}
		return now.Add(-d).UnixMilli(), nil
	}
	if s == "now" {
		return now.UnixMilli(), nil
	}
	if t, err := time.Parse(time.RFC3339Nano, s); err == nil {
		return t.UnixMilli(), nil
	}
	for _, layout := range []string{
		"2006-01-02 15:04:05.999", "2006-01-02T15:04:05.999", "2006-01-02 15:04", "2006-01-02T15:04", "2006-01-02",
	} {
		if t, err := time.ParseInLocation(layout, s, now.Location()); err == nil {
			return t.UnixMilli(), nil
		}
	}
	return 0, fmt.Errorf("%q is no time: give ms since 1970, RFC 3339, \"2006-01-02 15:04:05\", or -2h for two hours ago", s)
}

// parseDuration is time.ParseDuration, without a sign and with days, which
// come first.
func parseDuration(s string) (time.Duration, error) {
	const day = 24 * time.Hour
	var d time.Duration
	if days, rest, ok := strings.Cut(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		if err != nil {
			return 0, err
		}
		if d, s = time.Duration(n)*day, rest; s == "" {
			return d, nil
		}
	}
	if strings.HasPrefix(s, "-") || strings.HasPrefix(s, "+") {
		return 0, fmt.Errorf("sign in %q", s)
	}
	rest, err := time.ParseDuration(s)
	return d + rest, err
}

// ParseSize reads a number of bytes: 4096, 64KiB, 64MiB, 1GB.
func ParseSize(s string) (int64, error) {
	units := []struct {
		suffix string
		factor int64
	}{
		{"KIB", 1 << 10}, {"MIB", 1 << 20}, {"GIB", 1 << 30}, {"TIB", 1 << 40},
		{"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}, {"B", 1}, {"", 1},
	}
	text := strings.ToUpper(strings.TrimSpace(s))
	for _, u := range units {
		num, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(num), 10, 63)
		if err != nil || int64(n) > (1<<62)/u.factor {
			break
		}
		return int64(n) * u.factor, nil
	}
	return 0, fmt.Errorf("%q is no size: give bytes, or 64MiB, 1GB", s)
}
