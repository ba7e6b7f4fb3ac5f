package message

import (
	"bytes"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestWorkedRecords(t *testing.T) {
	withTags := messageA()
	withTags.Properties = "TAGS\x01TagA"
	recordC := &Message{
		Topic:         RetryPrefix + strings.Repeat("g", 121),
		Body:          []byte("x"),
		BornTimestamp: 1704067202000,
		BornHost:      netip.MustParseAddrPort("[2001:db8::1]:40000"),
		StoreHost:     storeA,
	}
	a := unhex(t, hexA)
	d := append(bytes.Clone(a[:0x50]), unhex(t, hexDEnd)...)
	d[3] = 0x7c

	for _, tc := range []struct {
		name      string
		enc       Encoder
		m         *Message
		q         QueueOffset
		phy       PhysicalOffset
		storeTime int64
		want      []byte // the record or its beginning
		wantSize  int
	}{
		{"A minimal v1", Encoder{}, messageA(), 0, 0, 1704067200001, a, 94},
		{"B with properties", Encoder{}, messageB(), 7, 94, 1704067201234, unhex(t, hexB), 176},
		{"C v2 and IPv6", Encoder{}, recordC, 0, 270, 1704067202001, unhex(t, hexCStart), 233},
		{"D property CRC", Encoder{PropertyCRC: true}, withTags, 0, 0, 1704067200001, d, 124},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if size, err := tc.enc.RecordSize(tc.m); err != nil || size != tc.wantSize {
				t.Errorf("RecordSize = %d, %v, want %d", size, err, tc.wantSize)
			}
			rec := sealed(t, &tc.enc, tc.m, tc.q, tc.phy, tc.storeTime)
			if len(rec) != tc.wantSize || !bytes.HasPrefix(rec, tc.want) {
				t.Errorf("record of %d bytes\n got %x\nwant %x (%d bytes in all)", len(rec), rec, tc.want, tc.wantSize)
			}
			v, err := Check(rec, tc.phy, CheckOptions{BodyCRC: true, PropertyCRC: true, RequirePropertyCRC: tc.enc.PropertyCRC, Strict: true})
			if err != nil {
				t.Fatal(err)
			}
			if v.StoreTimestamp != tc.storeTime || v.QueueOffset != tc.q {
				t.Errorf("store time %d, queue offset %d, want %d, %d", v.StoreTimestamp, v.QueueOffset, tc.storeTime, tc.q)
			}
			if tc.name[0] == 'C' && !bytes.Equal(rec[0x65:0x67], []byte{0, 0x80}) {
				t.Errorf("topic length of C: %x", rec[0x65:0x67])
			}
		})
	}
}

func TestBlank(t *testing.T) {
	want := unhex(t, "aa 00 00 02 f2 cb d4 31 94")
	got := AppendBlank([]byte{0xaa}, 754)
	if !bytes.Equal(got, want) {
		t.Errorf("got %x, want %x", got, want)
	}
	if h, err := ParseHeader(got[1:]); err != nil || h.Kind != KindBlank || h.Size != 754 {
		t.Errorf("ParseHeader = %+v, %v", h, err)
	}
}

func TestAppendRejects(t *testing.T) {
	big := func(n int) []byte { return make([]byte, n) }
	props := func(n int) Properties { return Properties("l\x01" + strings.Repeat("v", n-3) + "\x02") }
	noSep := func(n int) Properties { return Properties("l\x01" + strings.Repeat("v", n-2)) }
	retry := func(n int) string { return RetryPrefix + strings.Repeat("r", n-len(RetryPrefix)) }
	crc := Encoder{PropertyCRC: true}
	small := Encoder{MaxMessageSize: 100}
	long := Encoder{LongTopics: true}

	for _, tc := range []struct {
		name   string
		enc    Encoder
		m      Message
		status error // nil: accepted
		field  string
	}{
		{name: "empty topic", status: ErrMessageIllegal, field: "topic"},
		{name: "topic not UTF-8", m: Message{Topic: "a\xff"}, status: ErrMessageIllegal, field: "topic"},
		{name: "topic with a zero byte", m: Message{Topic: "a\x00"}, status: ErrMessageIllegal, field: "topic"},
		{name: "topic of 127 bytes", m: Message{Topic: strings.Repeat("t", 127)}},
		{name: "topic of 128 bytes", m: Message{Topic: strings.Repeat("t", 128)}, status: ErrMessageIllegal, field: "topic"},
		{name: "topic of 126 characters in 128 bytes", m: Message{Topic: strings.Repeat("t", 125) + "组"}, status: ErrMessageIllegal, field: "topic"},
		{name: "long topics allowed", enc: long, m: Message{Topic: strings.Repeat("t", 255)}},
		{name: "too long for long topics", enc: long, m: Message{Topic: strings.Repeat("t", 256)}, status: ErrMessageIllegal, field: "topic"},
		{name: "retry topic of 255 bytes", m: Message{Topic: retry(255)}},
		{name: "retry topic of 256 bytes", m: Message{Topic: retry(256)}, status: ErrMessageIllegal, field: "topic"},
		{name: "body at the limit", m: Message{Topic: "t", Body: big(DefaultMaxMessageSize)}},
		{name: "body above the limit", m: Message{Topic: "t", Body: big(DefaultMaxMessageSize + 1)}, status: ErrMessageIllegal, field: "body"},
		{name: "body at a limit of one's own", enc: small, m: Message{Topic: "t", Body: big(100)}},
		{name: "body above a limit of one's own", enc: small, m: Message{Topic: "t", Body: big(101)}, status: ErrMessageIllegal, field: "body"},
		{name: "properties at the limit", m: Message{Topic: "t", Properties: props(32767)}},
		{name: "properties above the limit", m: Message{Topic: "t", Properties: props(32768)}, status: ErrPropertiesSizeExceeded, field: "properties"},
		{name: "properties and CRC at the limit", enc: crc, m: Message{Topic: "t", Properties: props(32747)}},
		{name: "properties and CRC above the limit", enc: crc, m: Message{Topic: "t", Properties: props(32748)}, status: ErrPropertiesSizeExceeded, field: "properties"},
		{name: "properties, separator and CRC at the limit", enc: crc, m: Message{Topic: "t", Properties: noSep(32746)}},
		{name: "properties, separator and CRC above the limit", enc: crc, m: Message{Topic: "t", Properties: noSep(32747)}, status: ErrPropertiesSizeExceeded, field: "properties"},
		{name: "an incoming CRC does not count", m: Message{Topic: "t", Properties: props(32767) + "__CRC32#\x010123456789\x02"}},
		{name: "INNER_NUM no number", m: Message{Topic: "t", Properties: "INNER_NUM\x01x\x02INNER_BASE\x011\x02"}, status: ErrMessageIllegal, field: PropInnerNum},
		{name: "INNER_NUM beyond 16 bits", m: Message{Topic: "t", Properties: "INNER_NUM\x0132768\x02INNER_BASE\x011\x02"}, status: ErrMessageIllegal, field: PropInnerNum},
		{name: "INNER_BASE no number", m: Message{Topic: "t", Properties: "INNER_NUM\x011\x02INNER_BASE\x019223372036854775808\x02"}, status: ErrMessageIllegal, field: PropInnerBase},
		{name: "INNER_NUM alone is not parsed", m: Message{Topic: "t", Properties: "INNER_NUM\x01x\x02"}},
		{name: "an overwritten INNER_NUM is not parsed", m: Message{Topic: "t", Properties: "INNER_NUM\x01x\x02INNER_BASE\x011\x02INNER_NUM\x012\x02"}},
		{name: "inner batch of none", m: Message{Topic: "t", SysFlag: InnerBatch, Properties: "INNER_NUM\x010\x02INNER_BASE\x011\x02"}, status: ErrMessageIllegal, field: PropInnerNum},
		{name: "inner batch of one", m: Message{Topic: "t", SysFlag: InnerBatch, Properties: "INNER_NUM\x011\x02INNER_BASE\x010\x02"}},
		{name: "DELAY no number in the schedule topic", m: Message{Topic: ScheduleTopic, Properties: "DELAY\x013s\x02"}, status: ErrMessageIllegal, field: PropDelay},
		{name: "DELAY no number elsewhere", m: Message{Topic: "t", Properties: "DELAY\x013s\x02"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			prefix := []byte("before")
			got, err := tc.enc.Append(prefix, &tc.m)
			size, sizeErr := tc.enc.RecordSize(&tc.m)
			if (sizeErr == nil) != (err == nil) {
				t.Errorf("Append: %v, RecordSize: %v", err, sizeErr)
			}
			if tc.status == nil {
				if err != nil {
					t.Fatal(err)
				}
				rec := got[len(prefix):]
				if len(rec) != size {
					t.Errorf("%d bytes, RecordSize said %d", len(rec), size)
				}
				if tc.enc.PropertyCRC {
					SealCRC(rec)
				}
				if _, err := Check(rec, 0, CheckOptions{BodyCRC: true, PropertyCRC: true, Strict: true}); err != nil {
					t.Errorf("what was accepted cannot be read: %v", err)
				}
				return
			}
			var rej *RejectError
			if !errors.Is(err, tc.status) || !errors.As(err, &rej) || rej.Field != tc.field {
				t.Errorf("error %v, want status %v, field %q", err, tc.status, tc.field)
			}
			if string(got) != "before" {
				t.Errorf("dst changed to %q", got)
			}
		})
	}
}

// The whole record has a limit of its own, 64 KiB above that of the body. Topic
// and properties alone cannot reach it, so what is tested is that it follows
// the setting and that no overflow makes it pass.
func TestRecordLimitFollowsSetting(t *testing.T) {
	e := Encoder{MaxMessageSize: 1<<31 - 1}
	m := Message{Topic: "t", Body: make([]byte, 10)}
	if size, err := e.RecordSize(&m); err != nil || size != 102 {
		t.Errorf("RecordSize = %d, %v, want 102", size, err)
	}
	e.MaxMessageSize = -5
	if size, err := e.RecordSize(&m); err != nil || size != 102 {
		t.Errorf("with a negative limit, meaning the default: %d, %v, want 102", size, err)
	}
}

func TestRecordSizes(t *testing.T) {
	v6 := netip.MustParseAddrPort("[::1]:1")
	for _, tc := range []struct {
		name string
		m    Message
		want int
	}{
		{"v1 and IPv4", Message{Topic: "t"}, 92},
		{"v1 and IPv6 sender", Message{Topic: "t", BornHost: v6}, 104},
		{"v1 and IPv6 broker", Message{Topic: "t", StoreHost: v6}, 104},
		{"v1 and IPv6", Message{Topic: "t", BornHost: v6, StoreHost: v6}, 116},
		{"v1 retry topic of 127", Message{Topic: RetryPrefix + strings.Repeat("g", 120)}, 91 + 127},
		{"v2 retry topic of 128", Message{Topic: RetryPrefix + strings.Repeat("g", 121)}, 92 + 128},
		// Upstream writes v1 for these 126 characters, which nobody can read.
		{"v2 by bytes, not characters", Message{Topic: RetryPrefix + "组" + strings.Repeat("z", 118)}, 92 + 128},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := sealed(t, &Encoder{}, &tc.m, 0, 0, 0)
			if len(rec) != tc.want {
				t.Errorf("%d bytes, want %d", len(rec), tc.want)
			}
			if _, err := Check(rec, 0, CheckOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestHosts(t *testing.T) {
	for _, tc := range []struct {
		name    string
		in      netip.AddrPort
		sysFlag SysFlag
		want    string
		wantV6  bool
	}{
		{"none", netip.AddrPort{}, 0, "0.0.0.0:0", false},
		{"none but with the flag of IPv6", netip.AddrPort{}, BornHostV6 | StoreHostV6, "0.0.0.0:0", false},
		{"port without address", netip.AddrPortFrom(netip.Addr{}, 7), 0, "0.0.0.0:0", false},
		{"IPv4", netip.MustParseAddrPort("10.1.2.3:65535"), BornHostV6, "10.1.2.3:65535", false},
		{"IPv4 in IPv6", netip.MustParseAddrPort("[::ffff:10.1.2.3]:1"), 0, "10.1.2.3:1", false},
		{"IPv6", netip.MustParseAddrPort("[2001:db8::5]:10911"), 0, "[2001:db8::5]:10911", true},
		{"IPv6 with zone", netip.MustParseAddrPort("[fe80::1%eth0]:5"), 0, "[fe80::1]:5", true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			const other = SysFlag(0x40000000)
			for _, field := range []string{"born", "store"} {
				m := Message{Topic: "t", SysFlag: tc.sysFlag | other}
				bit := BornHostV6
				if field == "born" {
					m.BornHost = tc.in
				} else {
					m.StoreHost, bit = tc.in, StoreHostV6
				}
				v, err := Check(sealed(t, &Encoder{}, &m, 0, 0, 77), 0, CheckOptions{})
				if err != nil {
					t.Fatal(err)
				}
				got := v.BornHost()
				if field == "store" {
					got = v.StoreHost()
				}
				wantFlag := other
				if tc.wantV6 {
					wantFlag |= bit
				}
				if got.String() != tc.want || v.SysFlag != wantFlag || v.StoreTimestamp != 77 {
					t.Errorf("%s host %v, flag %#x, store time %d, want %s, %#x, 77", field, got, v.SysFlag, v.StoreTimestamp, tc.want, wantFlag)
				}
			}
		})
	}
}

func TestBodyCRC(t *testing.T) {
	for _, tc := range []struct {
		name string
		body []byte
		want uint32
	}{
		{"CRC-32 of 0", []byte{0x9D, 0x0A, 0xD9, 0x6D}, 0},
		{"CRC-32 of 0xFFFFFFFF", []byte{0xFF, 0xFF, 0xFF, 0xFF}, 0x7FFFFFFF},
		{"empty body", nil, 0},
		{"one zero byte", []byte{0}, 0x5202EF8D},
		{"hi", []byte("hi"), 0x58932AAC},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := sealed(t, &Encoder{}, &Message{Topic: "T", Body: tc.body}, 0, 0, 0)
			v, err := Check(rec, 0, CheckOptions{BodyCRC: true})
			if err != nil || v.Header.BodyCRC != tc.want || BodyCRC(tc.body) != tc.want {
				t.Errorf("stored %#x, %v, want %#x", v.Header.BodyCRC, err, tc.want)
			}
		})
	}
}

func TestPropertiesWithCRC(t *testing.T) {
	const mark = "__CRC32#\x01"
	for _, tc := range []struct {
		name     string
		in, want Properties // want: what stands before the CRC
	}{
		{"none", "", ""},
		{"separator present", "a\x011\x02", "a\x011\x02"},
		{"separator missing", "a\x011", "a\x011\x02"},
		{"incoming CRC first", mark + "1234567890\x02KEYS\x01k\x02", "KEYS\x01k\x02"},
		{"incoming CRC last, no separator", "KEYS\x01k\x02" + mark + "1234567890", "KEYS\x01k\x02"},
		{"two incoming CRCs", mark + "\x02a\x011\x02" + mark + "x\x02", "a\x011\x02"},
		{"CRC in a value", "a\x01" + mark + "1\x02", "a\x01" + mark + "1\x02"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e := Encoder{PropertyCRC: true}
			rec := sealed(t, &e, &Message{Topic: "T", Body: []byte("b"), Properties: tc.in}, 4, 1000, 99)
			v, err := Check(rec, 1000, CheckOptions{RequirePropertyCRC: true})
			if err != nil {
				t.Fatal(err)
			}
			p := v.Props()
			if got := p[:len(p)-crcTailSize]; got != tc.want || !v.HasPropertyCRC() {
				t.Errorf("before the CRC %q, want %q", got, tc.want)
			}
			// Any change to the record shows.
			for _, at := range []int{posQueueID, posQueueOffset + 7, posPhysical, len(rec) - crcTailSize - 1, len(rec) - 2} {
				bad := bytes.Clone(rec)
				bad[at] ^= 1
				if _, err := Check(bad, 1000, CheckOptions{RequirePropertyCRC: true}); err == nil {
					t.Errorf("bit flip at %d not seen", at)
				}
			}

			// Without the setting an incoming CRC is dropped as well: it would
			// be taken for that of the record.
			plain := sealed(t, &Encoder{}, &Message{Topic: "T", Properties: tc.in}, 0, 0, 0)
			if v, err := Check(plain, 0, CheckOptions{PropertyCRC: true}); err != nil || v.HasPropertyCRC() {
				t.Errorf("setting off: %v, properties %q", err, v.PropsBytes())
			}
		})
	}
}

// A sender can put a look-alike of the CRC at the end of a value. It must not
// make the record look damaged.
func TestForgedPropertyCRC(t *testing.T) {
	m := Message{Topic: "T", Properties: "a\x01v__CRC32#\x010123456789\x02"}
	rec := sealed(t, &Encoder{}, &m, 0, 0, 0)
	if _, err := Check(rec, 0, CheckOptions{PropertyCRC: true}); err != nil {
		t.Errorf("forged CRC believed: %v", err)
	}
	// A store whose every record has one takes the last 20 bytes for it, glued
	// or not, as releases with that fault in their batches wrote it.
	SealCRC(rec)
	if _, err := Check(rec, 0, CheckOptions{RequirePropertyCRC: true}); err != nil {
		t.Errorf("glued CRC: %v", err)
	}
}

func TestPatchBatchOfRecords(t *testing.T) {
	for _, e := range []Encoder{{}, {PropertyCRC: true}} {
		var recs []byte
		var sizes []int
		for _, m := range []*Message{messageA(), messageB(), {Topic: "t", BornHost: netip.MustParseAddrPort("[::1]:9")}} {
			before := len(recs)
			var err error
			if recs, err = e.Append(recs, m); err != nil {
				t.Fatal(err)
			}
			sizes = append(sizes, len(recs)-before)
		}
		e.Patch(recs, 40, 5000, 123)
		phy := PhysicalOffset(5000)
		for i, size := range sizes {
			v, err := Check(recs[:size], phy, CheckOptions{BodyCRC: true, RequirePropertyCRC: e.PropertyCRC})
			if err != nil {
				t.Fatalf("record %d: %v", i, err)
			}
			if v.QueueOffset != QueueOffset(40+i) || v.StoreTimestamp != 123 {
				t.Errorf("record %d: queue offset %d, store time %d", i, v.QueueOffset, v.StoreTimestamp)
			}
			phy += PhysicalOffset(size)
			recs = recs[size:]
		}
	}
}

func TestAppendDoesNotAllocate(t *testing.T) {
	m := messageB()
	m.Body = make([]byte, 1024)
	m.BornHost = netip.MustParseAddrPort("[2001:db8::1]:40000")
	e := Encoder{PropertyCRC: true}
	buf := make([]byte, 0, 4096)
	allocs := testing.AllocsPerRun(100, func() {
		rec, err := e.Append(buf, m)
		if err != nil {
			t.Fatal(err)
		}
		e.Patch(rec, 1, 2, 3)
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := anyMessage().Draw(t, "message")
		e := Encoder{PropertyCRC: rapid.Bool().Draw(t, "crc")}
		q := QueueOffset(rapid.Int64().Draw(t, "q"))
		phy := PhysicalOffset(rapid.Int64().Draw(t, "phy"))
		storeTime := rapid.Int64().Draw(t, "store time")
		given := *m

		rec, err := e.Append([]byte("x"), m)
		if err != nil {
			t.Fatal(err)
		}
		rec = rec[1:]
		e.Patch(rec, q, phy, storeTime)
		if size, err := e.RecordSize(m); err != nil || size != len(rec) || int(Size(rec)) != len(rec) {
			t.Fatalf("RecordSize %d, %v, Size %d, encoded %d", size, err, Size(rec), len(rec))
		}
		v, err := Check(rec, phy, CheckOptions{BodyCRC: true, PropertyCRC: true, RequirePropertyCRC: e.PropertyCRC, Strict: true})
		if err != nil {
			t.Fatal(err)
		}
		want := Ext{
			Message: given, QueueOffset: q, PhysicalOffset: phy, StoreTimestamp: storeTime,
			StoreSize: int32(len(rec)), Magic: MagicV1, BodyCRC: BodyCRC(given.Body),
		}
		if len(m.Topic) > 127 {
			want.Magic = MagicV2
		}
		want.SysFlag &^= BornHostV6 | StoreHostV6
		if m.BornHost.Addr().Is6() {
			want.SysFlag |= BornHostV6
		}
		if m.StoreHost.Addr().Is6() {
			want.SysFlag |= StoreHostV6
		}
		want.Properties = given.Properties.Delete(PropCRC32)
		got := v.Decode()
		if e.PropertyCRC {
			got.Properties = got.Properties.Delete(PropCRC32)
			if want.Properties.needsSep() {
				want.Properties += "\x02"
			}
		} else if strings.HasSuffix(string(want.Properties), "\x00") {
			want.Properties += "\x02"
		}
		if d := diff(want, got); d != "" {
			t.Errorf("-want +got\n%s", d)
		}
		if d := diff(v.Decode(), must(Decode(rec))); d != "" {
			t.Errorf("Decode and View.Decode differ: %s", d)
		}
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
