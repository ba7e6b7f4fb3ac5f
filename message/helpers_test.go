package message

import (
	"encoding/hex"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// unhex reads the dumps of the format specification: hex pairs with blanks and
// line ends between them.
func unhex(t testing.TB, dump string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(dump), ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// cmpAddr compares addresses by value.
var cmpAddr = cmpopts.EquateComparable(netip.AddrPort{})

func diff(want, got any) string { return cmp.Diff(want, got, cmpAddr, cmpopts.EquateEmpty()) }

// sealed encodes one message as the store would.
func sealed(t testing.TB, e *Encoder, m *Message, q QueueOffset, phy PhysicalOffset, storeTime int64) []byte {
	t.Helper()
	rec, err := e.Append(nil, m)
	if err != nil {
		t.Fatalf("append %q: %v", m.Topic, err)
	}
	e.Patch(rec, q, phy, storeTime)
	return rec
}

var (
	bornA  = netip.MustParseAddrPort("127.0.0.1:10000")
	storeA = netip.MustParseAddrPort("127.0.0.1:10911")
)

// The records of section 18 of the format and the messages they hold.
func messageA() *Message {
	return &Message{Topic: "T", Body: []byte("hi"), BornTimestamp: 1704067200000, BornHost: bornA, StoreHost: storeA}
}

func messageB() *Message {
	return &Message{
		Topic:         "TopicTest",
		QueueID:       3,
		Body:          []byte("hello rocketmq"),
		Properties:    "KEYS\x01key1\x02UNIQ_KEY\x017F0000014E7B18B4AAC20A1B2C3D0000\x02TAGS\x01TagA\x02",
		BornTimestamp: 1704067201000,
		BornHost:      netip.MustParseAddrPort("127.0.0.1:51234"),
		StoreHost:     storeA,
	}
}

const (
	hexA = `
00 00 00 5e da a3 20 a7 58 93 2a ac 00 00 00 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 00 00 00 01 8c c2 51 f4 00
7f 00 00 01 00 00 27 10 00 00 01 8c c2 51 f4 01
7f 00 00 01 00 00 2a 9f 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 02 68 69 01 54 00 00`
	hexB = `
00 00 00 b0 da a3 20 a7 73 30 7b 09 00 00 00 03
00 00 00 00 00 00 00 00 00 00 00 07 00 00 00 00
00 00 00 5e 00 00 00 00 00 00 01 8c c2 51 f7 e8
7f 00 00 01 00 00 c8 22 00 00 01 8c c2 51 f8 d2
7f 00 00 01 00 00 2a 9f 00 00 00 00 00 00 00 00
00 00 00 00 00 00 00 0e 68 65 6c 6c 6f 20 72 6f
63 6b 65 74 6d 71 09 54 6f 70 69 63 54 65 73 74
00 3e 4b 45 59 53 01 6b 65 79 31 02 55 4e 49 51
5f 4b 45 59 01 37 46 30 30 30 30 30 31 34 45 37
42 31 38 42 34 41 41 43 32 30 41 31 42 32 43 33
44 30 30 30 30 02 54 41 47 53 01 54 61 67 41 02`
	hexCStart = `
00 00 00 e9 da a3 20 ab 0c dc 16 83 00 00 00 00
00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00
00 00 01 0e 00 00 00 10 00 00 01 8c c2 51 fb d0
20 01 0d b8 00 00 00 00 00 00 00 00 00 00 00 01`
	hexDEnd = `
00 00 00 00 00 00 00 02 68 69 01 54 00 1e 54 41
47 53 01 54 61 67 41 02 5f 5f 43 52 43 33 32 23
01 33 39 38 31 38 31 37 32 31 31 02`
)

// anyMessage draws messages that an Encoder accepts, whatever its settings.
func anyMessage() *rapid.Generator[*Message] {
	return rapid.Custom(func(t *rapid.T) *Message {
		topics := rapid.OneOf(
			rapid.StringMatching(`[%|A-Za-z0-9_-]{1,127}`),
			rapid.StringOfN(rapid.Rune(), 1, 30, MaxTopicSize),
			rapid.Map(rapid.StringMatching(`[a-z]{0,248}`), func(s string) string { return RetryPrefix + s }),
		).Filter(func(s string) bool { return s != ScheduleTopic && !strings.Contains(s, "\x00") })
		return &Message{
			Topic:                     topics.Draw(t, "topic"),
			QueueID:                   rapid.Int32().Draw(t, "queue id"),
			Flag:                      rapid.Int32().Draw(t, "flag"),
			SysFlag:                   SysFlag(rapid.Int32().Draw(t, "sys flag")) &^ InnerBatch,
			Body:                      rapid.SliceOfN(rapid.Byte(), 0, 300).Draw(t, "body"),
			Properties:                anyProperties().Draw(t, "properties"),
			BornTimestamp:             rapid.Int64().Draw(t, "born"),
			BornHost:                  anyHost().Draw(t, "born host"),
			StoreHost:                 anyHost().Draw(t, "store host"),
			ReconsumeTimes:            rapid.Int32().Draw(t, "reconsume"),
			PreparedTransactionOffset: PhysicalOffset(rapid.Int64().Draw(t, "prepared")),
		}
	})
}

// anyProperties draws property strings, half of them not well-formed.
func anyProperties() *rapid.Generator[Properties] {
	piece := rapid.SampledFrom([]string{
		"\x01", "\x02", "\x02", "a", "b", "KEYS", "TAGS", "UNIQ_KEY", "k1 k2", " ", "中", "\x00", "\xff", "TagA",
		"KEYS\x01x y\x02", "TAGS\x01t\x02", "a\x01b\x02", "__CRC32#", "__CRC32#\x010123456789\x02",
	})
	return rapid.Map(rapid.SliceOfN(piece, 0, 12), func(s []string) Properties { return Properties(strings.Join(s, "")) })
}

// anyHost draws addresses in the form that a record returns them.
func anyHost() *rapid.Generator[netip.AddrPort] {
	return rapid.Custom(func(t *rapid.T) netip.AddrPort {
		port := rapid.Uint16().Draw(t, "port")
		if rapid.Bool().Draw(t, "v6") {
			a := [16]byte(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "ip"))
			if addr := netip.AddrFrom16(a); !addr.Is4In6() {
				return netip.AddrPortFrom(addr, port)
			}
		}
		return netip.AddrPortFrom(netip.AddrFrom4([4]byte(rapid.SliceOfN(rapid.Byte(), 4, 4).Draw(t, "ip"))), port)
	})
}
