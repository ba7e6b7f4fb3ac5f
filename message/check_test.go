package message

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
)

// newRecord returns the record of the hostile-length case: topic T, a body of
// 32 bytes, 15 bytes of properties, 139 bytes at position 500.
func newRecord(t testing.TB) []byte {
	rec := sealed(t, &Encoder{}, &Message{
		Topic: "T", Body: bytes.Repeat([]byte("A"), 32), Properties: "KEYS\x01k1\x02TAGS\x01a\x02",
		BornHost: bornA, StoreHost: storeA,
	}, 9, 500, 1700000000000)
	if len(rec) != 139 {
		t.Fatalf("record of %d bytes, want 139", len(rec))
	}
	return rec
}

func TestCheckHostileFields(t *testing.T) {
	const (
		posBodyLen  = 84
		posTopicLen = 88 + 32
		posPropsLen = posTopicLen + 2
	)
	u32 := func(at int, v uint32) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint32(b[at:], v) }
	}
	u16 := func(at int, v uint16) func([]byte) {
		return func(b []byte) { binary.BigEndian.PutUint16(b[at:], v) }
	}
	u8 := func(at int, v byte) func([]byte) { return func(b []byte) { b[at] = v } }

	for _, tc := range []struct {
		name   string
		change func([]byte)
		field  string
	}{
		{"size 0", u32(posSize, 0), fieldSize},
		{"size 3", u32(posSize, 3), fieldSize},
		{"size 90", u32(posSize, 90), fieldSize},
		{"size 91", u32(posSize, 91), fieldSize},
		{"size 92", u32(posSize, 92), fieldBodyLength},
		{"size 0x7FFFFFFF", u32(posSize, 0x7FFFFFFF), fieldSize},
		{"size 0x80000000", u32(posSize, 0x80000000), fieldSize},
		{"size + 1", u32(posSize, 140), fieldSize},
		{"size - 1", u32(posSize, 138), fieldSize},
		{"body length -1", u32(posBodyLen, 0xFFFFFFFF), fieldBodyLength},
		{"body length 0x7FFFFFFF", u32(posBodyLen, 0x7FFFFFFF), fieldBodyLength},
		{"body length + 1", u32(posBodyLen, 33), fieldTopicLength},
		{"body length - 1", u32(posBodyLen, 31), fieldTopicLength}, // reads an A for it
		{"body to the end", u32(posBodyLen, 139-88), fieldBodyLength},
		{"topic length 0", u8(posTopicLen, 0), fieldTopicLength},
		{"topic length 127", u8(posTopicLen, 127), fieldTopicLength},
		{"topic length 128", u8(posTopicLen, 128), fieldTopicLength},
		{"topic length 255", u8(posTopicLen, 255), fieldTopicLength},
		{"topic to the end", u8(posTopicLen, 18), fieldTopicLength},
		{"topic to the length field", u8(posTopicLen, 16), fieldPropsLength},
		{"properties length -1", u16(posPropsLen, 0xFFFF), fieldPropsLength},
		{"properties length 32767", u16(posPropsLen, 32767), fieldPropsLength},
		{"properties length + 1", u16(posPropsLen, 16), fieldPropsLength},
		{"properties length - 1", u16(posPropsLen, 14), fieldPropsLength},
		{"magic 0", u32(posMagic, 0), fieldMagic},
		{"magic v2", u32(posMagic, MagicV2), fieldTopicLength},
		{"magic of a blank", u32(posMagic, MagicBlank), fieldMagic},
		{"sender of IPv6", u32(posSysFlag, uint32(BornHostV6)), fieldBornPort},
		{"broker of IPv6", u32(posSysFlag, uint32(StoreHostV6)), fieldBodyLength},
		{"both of IPv6", u32(posSysFlag, uint32(BornHostV6|StoreHostV6)), fieldBornPort},
		{"sender's port 65536", u32(52, 65536), fieldBornPort},
		{"broker's port -1", u32(68, 0xFFFFFFFF), fieldStorePort},
		{"topic of a zero byte", u8(posTopicLen+1, 0), fieldTopic},
		{"topic not UTF-8", u8(posTopicLen+1, 0xC3), fieldTopic},
		{"position 501", u32(posPhysical+4, 501), fieldPhysical},
		{"position in the other half", u32(posPhysical, 1), fieldPhysical},
		{"body CRC", u32(posBodyCRC, 0), fieldBodyCRC},
		{"body", u8(88, 'B'), fieldBodyCRC},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := newRecord(t)
			tc.change(rec)
			v, err := Check(rec, 500, CheckOptions{BodyCRC: true})
			var bad *FormatError
			if !errors.As(err, &bad) || bad.Field != tc.field {
				t.Errorf("error %v, want one about %s", err, tc.field)
			}
			if v.Record() != nil {
				t.Error("a view of a record that was refused")
			}
		})
	}
}

// A write torn at any byte, the rest being zero or not there, must be seen.
func TestCheckEveryCut(t *testing.T) {
	noProps := sealed(t, &Encoder{}, &Message{Topic: "Topic", Body: []byte("body"), BornHost: bornA, StoreHost: storeA}, 9, 500, 1)
	nul := sealed(t, &Encoder{}, &Message{Topic: "T", Properties: "k\x01\x00v\x00"}, 9, 500, 1)
	crc := sealed(t, &Encoder{PropertyCRC: true}, &Message{Topic: "T", Body: []byte("body")}, 9, 500, 1)
	for _, rec := range [][]byte{newRecord(t), noProps, nul, crc} {
		valid := func(b []byte) bool {
			v, err := Check(b, 500, CheckOptions{BodyCRC: true})
			return err == nil && !v.LooksTorn(500)
		}
		for n := range rec {
			if valid(rec[:n]) {
				t.Errorf("%d of %d bytes accepted", n, len(rec))
			}
			torn := append(bytes.Clone(rec[:n]), make([]byte, len(rec)-n)...)
			if !bytes.Equal(torn, rec) && valid(torn) {
				t.Errorf("zero from byte %d of %d on: accepted", n, len(rec))
			}
		}
		if !valid(rec) {
			t.Errorf("the whole record is refused: %x", rec)
		}
	}
}

// Any one sector of a record that did not reach the disk must be seen, wherever
// the record lies in its file.
func TestLostSector(t *testing.T) {
	props := NewProperties("KEYS", strings.Repeat("k", 1300), "TAGS", "t")
	for _, fileOffset := range []int64{0, 1, 300, 360, 424, 511, 512, 4000} {
		rec := sealed(t, &Encoder{}, &Message{
			Topic: "Topic", Body: bytes.Repeat([]byte("b"), 700), Properties: props, BornHost: bornA, StoreHost: storeA,
		}, 1, 500, 1)
		valid := func() bool {
			v, err := Check(rec, 500, CheckOptions{BodyCRC: true})
			return err == nil && !v.LooksTorn(fileOffset)
		}
		if !valid() {
			t.Fatalf("at %d: the whole record is refused", fileOffset)
		}
		for from := -int(fileOffset % 512); from < len(rec); from += 512 {
			lost := rec[max(from, 0):min(from+512, len(rec))]
			kept := bytes.Clone(lost)
			clear(lost)
			if !bytes.Equal(lost, kept) && valid() {
				t.Errorf("at %d: lost sector at %d not seen", fileOffset, from)
			}
			copy(lost, kept)
		}
	}
}

func TestCheckOptions(t *testing.T) {
	plain := newRecord(t)
	sealedRec := sealed(t, &Encoder{PropertyCRC: true}, &Message{Topic: "T", Body: []byte("b")}, 9, 500, 1)
	badBody := bytes.Clone(plain)
	badBody[88]++
	badSeal := bytes.Clone(sealedRec)
	badSeal[posFlag]++
	noDigits := bytes.Clone(sealedRec)
	noDigits[len(noDigits)-3] = 'x'
	// Made by hand: the encoder refuses it.
	poison := sealed(t, &Encoder{}, &Message{Topic: "T", Properties: "INNER_NUM\x017\x02INNER_BASE\x011\x02"}, 9, 500, 1)
	poison[bytes.IndexByte(poison, '7')] = 'x'
	emptyBody := sealed(t, &Encoder{}, &Message{Topic: "T"}, 9, 500, 1)
	emptyBody[posBodyCRC] = 0x55

	for _, tc := range []struct {
		name  string
		rec   []byte
		opt   CheckOptions
		field string // "": valid
	}{
		{"body CRC not asked for", badBody, CheckOptions{PropertyCRC: true, Strict: true}, ""},
		{"body CRC asked for", badBody, CheckOptions{BodyCRC: true}, fieldBodyCRC},
		{"empty body has no CRC", emptyBody, CheckOptions{BodyCRC: true}, ""},
		{"property CRC not asked for", badSeal, CheckOptions{BodyCRC: true}, ""},
		{"property CRC asked for", badSeal, CheckOptions{PropertyCRC: true}, fieldPropsCRC},
		{"property CRC with a letter", noDigits, CheckOptions{PropertyCRC: true}, fieldPropsCRC},
		{"property CRC required", badSeal, CheckOptions{RequirePropertyCRC: true}, fieldPropsCRC},
		{"property CRC right", sealedRec, CheckOptions{BodyCRC: true, PropertyCRC: true, RequirePropertyCRC: true}, ""},
		{"property CRC missing", plain, CheckOptions{PropertyCRC: true}, ""},
		{"required property CRC missing", plain, CheckOptions{RequirePropertyCRC: true}, fieldPropsCRC},
		{"poison property", poison, CheckOptions{BodyCRC: true}, ""},
		{"poison property, strict", poison, CheckOptions{Strict: true}, PropInnerNum},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Check(tc.rec, 500, tc.opt)
			if tc.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			var bad *FormatError
			if !errors.As(err, &bad) || bad.Field != tc.field {
				t.Errorf("error %v, want one about %s", err, tc.field)
			}
		})
	}
}

func TestParseHeader(t *testing.T) {
	rec := newRecord(t)
	want := Header{
		Kind: KindRecord, Size: 139, Magic: MagicV1, BodyCRC: BodyCRC(bytes.Repeat([]byte("A"), 32)),
		QueueOffset: 9, PhysicalOffset: 500, StoreTimestamp: 1700000000000, BodyOffset: 88, BodyLen: 32,
	}
	for _, n := range []int{88, 100, MaxHeaderSize, len(rec)} {
		h, err := ParseHeader(rec[:n])
		if err != nil || h != want {
			t.Errorf("%d bytes: %+v, %v, want %+v", n, h, err, want)
		}
	}
	if _, err := ParseHeader(append(rec, "more"...)); err != nil {
		t.Errorf("with bytes behind: %v", err)
	}

	for _, tc := range []struct {
		name string
		b    []byte
		kind Kind
		ok   bool
	}{
		{"nothing", nil, KindEnd, false},
		{"seven zero bytes", make([]byte, 7), KindEnd, false},
		{"eight zero bytes", make([]byte, 8), KindEnd, true},
		{"smallest blank", AppendBlank(nil, 8), KindBlank, true},
		{"blank below 8", AppendBlank(nil, 7), KindEnd, false},
		{"negative blank", AppendBlank(nil, -1), KindEnd, false},
		{"size without magic", []byte{0, 0, 0, 139, 0, 0, 0, 0}, KindEnd, false},
		{"magic without size", []byte{0, 0, 0, 0, 0xda, 0xa3, 0x20, 0xa7}, KindEnd, false},
		{"record of 8 bytes", rec[:8], KindEnd, false},
		{"record of 47 bytes", rec[:47], KindEnd, false},
		{"record of 87 bytes", rec[:87], KindEnd, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h, err := ParseHeader(tc.b)
			if (err == nil) != tc.ok || h.Kind != tc.kind {
				t.Errorf("kind %d, error %v, want kind %d, ok %v", h.Kind, err, tc.kind, tc.ok)
			}
		})
	}
}

func TestIsMagic(t *testing.T) {
	for _, tc := range []struct {
		b    []byte
		want bool
	}{
		{unhex(t, hexA)[posMagic:], true},
		{unhex(t, hexCStart)[posMagic:], true},
		{AppendBlank(nil, 8)[posMagic:], false},
		{[]byte{0xda, 0xa3, 0x20}, false},
		{nil, false},
	} {
		if got := IsMagic(tc.b); got != tc.want {
			t.Errorf("IsMagic(%x) = %v", tc.b, got)
		}
	}
}

func TestFormatErrorText(t *testing.T) {
	for _, tc := range []struct {
		err  FormatError
		want string
	}{
		{FormatError{Field: fieldSize, Got: 17, Reason: "below the minimum of", Want: 91}, "size 17 below the minimum of 91"},
		{FormatError{Field: fieldMagic, Got: 0xCBD43194, Reason: "is that of no record"}, "magic 0xcbd43194 is that of no record"},
		{FormatError{Field: fieldMagic, Reason: "is that of no record"}, "magic 0x0 is that of no record"},
		{FormatError{Field: fieldTopic, Reason: "is not UTF-8"}, "topic is not UTF-8"},
	} {
		if got := tc.err.Error(); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

func TestCheckDoesNotAllocate(t *testing.T) {
	m := messageB()
	m.Body = make([]byte, 1024)
	m.StoreHost = netip.MustParseAddrPort("[2001:db8::5]:10911")
	rec := sealed(t, &Encoder{PropertyCRC: true}, m, 0, 0, 1)
	hashes := make([]int32, 0, 8)
	levels := must(ParseDelayLevels(DefaultDelayLevels))
	delay := levels.Delay
	allocs := testing.AllocsPerRun(100, func() {
		h, err := ParseHeader(rec)
		if err != nil || h.Kind != KindRecord {
			t.Fatal(err)
		}
		v, err := Check(rec, 0, CheckOptions{BodyCRC: true, PropertyCRC: true, RequirePropertyCRC: true, Strict: true})
		if err != nil {
			t.Fatal(err)
		}
		hashes = v.IndexHashes(hashes[:0], true)
		if v.TagsCode(delay) == 0 || len(hashes) != 3 || v.BatchNum() != 1 || v.HasLightQueues() || !v.StoreHost().IsValid() {
			t.Fatal("wrong values")
		}
		if value, ok := v.GetProp(PropKeys); !ok || string(value) != "key1" {
			t.Fatal("KEYS")
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations, want 0", allocs)
	}
}

func TestView(t *testing.T) {
	v, err := Check(unhex(t, hexB), 94, CheckOptions{BodyCRC: true, Strict: true})
	if err != nil {
		t.Fatal(err)
	}
	want := Ext{
		Message: *messageB(), QueueOffset: 7, PhysicalOffset: 94, StoreTimestamp: 1704067201234,
		StoreSize: 176, Magic: MagicV1, BodyCRC: 0x73307b09,
	}
	got := v.Decode()
	if d := diff(want, got); d != "" {
		t.Errorf("-want +got\n%s", d)
	}
	if id := "7F00000100002A9F000000000000005E"; v.OffsetID() != id || got.MsgID() != id {
		t.Errorf("ids %s and %s, want %s", v.OffsetID(), got.MsgID(), id)
	}
	if c := v.TagsCode(nil); c != 2598919 {
		t.Errorf("tags code %d", c)
	}
	for _, alias := range [][]byte{v.Body(), v.TopicBytes(), v.PropsBytes()} {
		if cap(alias) != len(alias) {
			t.Errorf("%q can be appended into the record", alias)
		}
	}
	// A decoded message does not share the record's bytes.
	rec := bytes.Clone(v.Record())
	clear(v.Record())
	if d := diff(must(Decode(rec)), got); d != "" {
		t.Errorf("decoded message changed with the buffer: %s", d)
	}
}

func TestDecodeRefuses(t *testing.T) {
	for _, b := range [][]byte{nil, make([]byte, 8), AppendBlank(nil, 8), unhex(t, hexA)[:93]} {
		if _, err := Decode(b); err == nil {
			t.Errorf("%x decoded", b)
		}
	}
}

func TestTagsCode(t *testing.T) {
	levels := must(ParseDelayLevels("1s 5s 10s"))
	const storeTime = 1700000000000
	for _, tc := range []struct {
		name  string
		topic string
		props Properties
		want  TagsCode
	}{
		{"no properties", "T", "", 0},
		{"empty tags", "T", "TAGS\x01\x02", 0},
		{"tags", "T", "TAGS\x01TagA\x02", 2598919},
		{"negative hash", "T", "TAGS\x01TopicTest\x02", -1902610879},
		{"smallest hash", "T", "TAGS\x01polygenelubricants\x02", -2147483648},
		{"DELAY in another topic", "T", "TAGS\x01TagA\x02DELAY\x011\x02", 2598919},
		{"schedule level 1", ScheduleTopic, "TAGS\x01TagA\x02DELAY\x011\x02", storeTime + 1000},
		{"schedule level 3", ScheduleTopic, "DELAY\x013\x02", storeTime + 10000},
		{"schedule level above the table", ScheduleTopic, "DELAY\x0118\x02", storeTime + 10000},
		{"schedule level 0", ScheduleTopic, "TAGS\x01TagA\x02DELAY\x010\x02", 2598919},
		{"schedule level negative", ScheduleTopic, "TAGS\x01TagA\x02DELAY\x01-1\x02", 2598919},
		{"schedule topic without DELAY", ScheduleTopic, "TAGS\x01TagA\x02", 2598919},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := sealed(t, &Encoder{}, &Message{Topic: tc.topic, Properties: tc.props}, 0, 0, storeTime)
			v := must(Check(rec, 0, CheckOptions{}))
			if got := v.TagsCode(levels.Delay); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
}

func TestBatchNum(t *testing.T) {
	const inner = "INNER_NUM\x015\x02INNER_BASE\x0140\x02"
	for _, tc := range []struct {
		name  string
		flag  SysFlag
		props Properties
		want  int
		base  QueueOffset
		ok    bool
	}{
		{"ordinary", 0, "", 1, 0, false},
		{"committed", TxCommit, "", 1, 0, false},
		{"prepared", TxPrepared, "", 0, 0, false},
		{"rolled back", TxRollback, "", 0, 0, false},
		{"inner batch", InnerBatch, inner, 5, 40, true},
		{"inner batch without base", InnerBatch, "INNER_NUM\x015\x02", 1, 0, false},
		{"properties without the flag", 0, inner, 1, 0, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			rec := sealed(t, &Encoder{}, &Message{Topic: "T", SysFlag: tc.flag, Properties: tc.props}, 0, 0, 0)
			v := must(Check(rec, 0, CheckOptions{}))
			base, _, ok := v.InnerBatch()
			if got := fmt.Sprint(v.BatchNum(), base, ok); got != fmt.Sprint(tc.want, tc.base, tc.ok) {
				t.Errorf("count, base, ok = %s, want %d %d %v", got, tc.want, tc.base, tc.ok)
			}
		})
	}
}
