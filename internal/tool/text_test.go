package tool

import (
	"net/netip"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/gantrymq/gantry/message"
)

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"":                          "",
		`plain "text" \ Ω 名 😀`:      `plain "text" \ Ω 名 😀`,
		"a\nb\tc\r\x00\x1b[31m\x7f": `a\nb\tc\r\x00\x1b[31m\x7f`,
		"\u009b31m":                 `\u009b31m`, // CSI in one character
		"\u202eevil\u200b\u2028":    `\u202eevil\u200b\u2028`,
		"bad \xff\xc3( utf8":        `bad \xff\xc3( utf8`,
		"\ufffd":                    "\ufffd",
		"no\u00a0break":             `no\u00a0break`,
	} {
		if got := Printable(in); got != want {
			t.Errorf("Printable(%q) = %q, want %q", in, got, want)
		}
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("a\x1b[2J\u202e\xff😀")
	f.Fuzz(func(t *testing.T, s string) {
		got := Printable(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return r < ' ' || r >= 0x7f && r < 0xa0 }) {
			t.Fatalf("Printable(%q) = %q", s, got)
		}
		if Printable(got) != got {
			t.Fatalf("Printable is not stable on %q", s)
		}
	})
}

func TestText(t *testing.T) {
	m := message.Ext{
		Message: message.Message{
			Topic: "Or\nders", QueueID: 3, Body: []byte("hello"), Properties: message.NewProperties("KEYS", "k", "A", "\x1b"),
			BornHost: netip.MustParseAddrPort("10.0.0.1:40000"), StoreHost: netip.MustParseAddrPort("10.0.0.2:10911"),
			BornTimestamp: 1_700_000_000_000,
		},
		QueueOffset: 7, PhysicalOffset: 4096, StoreTimestamp: 1_700_000_000_500, StoreSize: 120,
	}
	want := `Or\nders queue 3 offset 7  stored 2023-11-14 22:13:20.500  position 4096  size 120
  id 0A00000200002A9F0000000000001000  born 2023-11-14 22:13:20.000 on 10.0.0.1:40000
  A: \x1b
  KEYS: k
  body (5 bytes): hello
`
	if got := Text(m, false, time.UTC); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
	m.Flag, m.SysFlag, m.ReconsumeTimes, m.PreparedTransactionOffset = -1, message.TxCommit, 2, 9
	if got := Text(m, false, time.UTC); !strings.Contains(got, "on 10.0.0.1:40000  sysFlag 0x8  flag -1  reconsumed 2 times  prepared at 9\n") {
		t.Errorf("got %q", got)
	}
	m.Body = []byte(strings.Repeat("x", maxTextBody-1) + "名字")
	if got := Text(m, false, time.UTC); !strings.HasSuffix(got, "xxx …\n") || !strings.Contains(got, "body (4101 bytes)") {
		t.Errorf("a long body ends with %q", got[len(got)-20:])
	}
	m.Body = append(make([]byte, maxTextBody), 0xFF)
	if got := Text(m, false, time.UTC); !strings.HasSuffix(got, "0000 …\n") {
		t.Errorf("a long binary body ends with %q", got[len(got)-20:])
	}
}
