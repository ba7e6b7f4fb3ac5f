package message

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestOffsetID(t *testing.T) {
	for _, tc := range []struct {
		name string
		host string
		phy  PhysicalOffset
		want string
	}{
		{"record B", "127.0.0.1:10911", 94, "7F00000100002A9F000000000000005E"},
		{"IPv6", "[2001:db8::5]:10911", 162534, "20010DB800000000000000000000000500002A9F0000000000027AE6"},
		{"IPv6, small port", "[::1]:1", 162675, "00000000000000000000000000000001000000010000000000027B73"},
		{"largest offset", "255.255.255.255:65535", 1<<63 - 1, "FFFFFFFF0000FFFF7FFFFFFFFFFFFFFF"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host := netip.MustParseAddrPort(tc.host)
			if got := OffsetID(host, tc.phy); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
			for _, id := range []string{tc.want, strings.ToLower(tc.want)} {
				if h, phy, err := ParseOffsetID(id); h != host || phy != tc.phy || err != nil {
					t.Errorf("ParseOffsetID(%s) = %v, %d, %v", id, h, phy, err)
				}
			}
		})
	}
	if got := OffsetID(netip.AddrPort{}, 1); got != "00000000000000000000000000000001" {
		t.Errorf("no host: %s", got)
	}
}

func TestParseOffsetIDRefuses(t *testing.T) {
	for _, id := range []string{
		"", "7F", "7F00000100002A9F000000000000005", "7F00000100002A9F000000000000005E0",
		"7F00000100002A9F000000000000005G", "7F000001FFFFFFFF000000000000005E", "7F00000100010000000000000000005E",
		"7F00000100002A9FFFFFFFFFFFFFFFFF", strings.Repeat("0", 40), strings.Repeat("ß", 16), strings.Repeat("0", 1<<16),
	} {
		_, _, err := ParseOffsetID(id)
		var bad *FormatError
		if !errors.As(err, &bad) {
			t.Errorf("ParseOffsetID(%.40q): %v", id, err)
		}
	}
}

func TestOffsetIDRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		host := anyHost().Draw(t, "host")
		phy := PhysicalOffset(rapid.Int64Min(0).Draw(t, "phy"))
		h, p, err := ParseOffsetID(OffsetID(host, phy))
		if h != host || p != phy || err != nil {
			t.Errorf("%v %d became %v %d, %v", host, phy, h, p, err)
		}
	})
}

func TestUniqKeys(t *testing.T) {
	zone := time.FixedZone("UTC+8", 8*3600)
	// In the zone it is April already, four hours into it.
	now := time.Date(2026, 3, 31, 20, 0, 0, 5e6, time.UTC).UnixMilli()
	for _, tc := range []struct {
		name string
		ip   netip.Addr
		loc  *time.Location
		want string
	}{
		{"IPv4", netip.MustParseAddr("127.0.0.1"), time.UTC, "7F000001" + "4E7B" + "18B4AAC2" + "9EC96A05" + "0001"},
		{"zone", netip.MustParseAddr("127.0.0.1"), zone, "7F000001" + "4E7B" + "18B4AAC2" + "00DBBA05" + "0001"},
		{"IPv4 in IPv6", netip.MustParseAddr("::ffff:127.0.0.1"), zone, "7F000001" + "4E7B" + "18B4AAC2" + "00DBBA05" + "0001"},
		{"IPv6", netip.MustParseAddr("2001:db8::1"), zone, "20010DB8000000000000000000000001" + "4E7B" + "18B4AAC2" + "00DBBA05" + "0001"},
		{"no address", netip.Addr{}, zone, "00000000" + "4E7B" + "18B4AAC2" + "00DBBA05" + "0001"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			u := NewUniqKeys(tc.ip, 0x54E7B, 0x18B4AAC2, tc.loc)
			if got := u.Next(now); got != tc.want {
				t.Errorf("got %s, want %s", got, tc.want)
			}
		})
	}

	u := NewUniqKeys(netip.Addr{}, 1, 1, nil)
	seen := make(map[string]bool)
	for range 1 << 16 {
		seen[u.Next(now)] = true
	}
	if len(seen) != 1<<16 {
		t.Errorf("%d different ids of 65536", len(seen))
	}
}

func TestDelayLevels(t *testing.T) {
	d, err := ParseDelayLevels(DefaultDelayLevels)
	if err != nil || d.Max() != 18 {
		t.Fatalf("default: %d levels, %v", d.Max(), err)
	}
	for level, want := range map[int]int64{
		-1: 1000, 0: 1000, 1: 1000, 2: 5000, 4: 30000, 5: 60000, 17: 3600000, 18: 7200000, 19: 7200000, 1 << 30: 7200000,
	} {
		if got := d.Delay(level); got != want {
			t.Errorf("Delay(%d) = %d, want %d", level, got, want)
		}
	}
	if got := (DelayLevels{}).Delay(1); got != 1000 {
		t.Errorf("no table: %d", got)
	}
	days, err := ParseDelayLevels("0s 3d ")
	if err != nil || days.Max() != 2 || days.Delay(1) != 0 || days.Delay(2) != 3*24*3600*1000 {
		t.Errorf("days: %+v, %v", days, err)
	}
	for _, s := range []string{"", " ", "1", "s", "1x", "1s  5s", " 1s", "-1s", "1.5s", "1S", "9223372036854775807s", "1s,5s", "1s 5"} {
		if d, err := ParseDelayLevels(s); err == nil {
			t.Errorf("ParseDelayLevels(%q) gives %d levels", s, d.Max())
		}
	}
}
