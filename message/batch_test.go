package message

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func batchOf(t testing.TB, items ...BatchItem) []byte {
	t.Helper()
	var body []byte
	for _, item := range items {
		var err error
		if body, err = AppendBatchItem(body, item); err != nil {
			t.Fatal(err)
		}
	}
	return body
}

func collect(body []byte) (items []BatchItem, err error) {
	for item, e := range SplitBatch(body) {
		if e != nil {
			return items, e
		}
		items = append(items, item)
	}
	return items, nil
}

func TestBatchItemBytes(t *testing.T) {
	got := batchOf(t, BatchItem{Flag: 7, Body: []byte("hi"), Properties: "a\x01b\x02"}, BatchItem{})
	want := unhex(t, `
00 00 00 1c 00 00 00 00 00 00 00 00 00 00 00 07 00 00 00 02 68 69 00 04 61 01 62 02
00 00 00 16 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00`)
	if !bytes.Equal(got, want) {
		t.Errorf("got  %x\nwant %x", got, want)
	}
}

func TestBatchRoundTrip(t *testing.T) {
	item := rapid.Custom(func(t *rapid.T) BatchItem {
		return BatchItem{
			Flag:       rapid.Int32().Draw(t, "flag"),
			Body:       rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "body"),
			Properties: anyProperties().Draw(t, "properties"),
		}
	})
	rapid.Check(t, func(t *rapid.T) {
		want := rapid.SliceOfN(item, 0, 5).Draw(t, "items")
		var body []byte
		for _, item := range want {
			body, _ = AppendBatchItem(body, item)
		}
		got, err := collect(body)
		if err != nil {
			t.Fatal(err)
		}
		if d := diff(want, got); d != "" {
			t.Errorf("-want +got\n%s", d)
		}
	})
}

func TestSplitBatchRefuses(t *testing.T) {
	good := batchOf(t, BatchItem{Flag: 1, Body: []byte("body"), Properties: "a\x01b\x02"})
	for _, tc := range []struct {
		name   string
		change func(b []byte) []byte
	}{
		{"cut", func(b []byte) []byte { return b[:len(b)-1] }},
		{"cut to 21", func(b []byte) []byte { return b[:21] }},
		{"one byte more", func(b []byte) []byte { return append(b, 0) }},
		{"size 0", func(b []byte) []byte { return setU32(b, 0, 0) }},
		{"size -1", func(b []byte) []byte { return setU32(b, 0, 0xFFFFFFFF) }},
		{"size 0x7FFFFFFF", func(b []byte) []byte { return setU32(b, 0, 0x7FFFFFFF) }},
		{"size - 1", func(b []byte) []byte { return setU32(b, 0, uint32(len(b)-1)) }},
		{"body length -1", func(b []byte) []byte { return setU32(b, posItemBody, 0xFFFFFFFF) }},
		{"body length 0x7FFFFFFF", func(b []byte) []byte { return setU32(b, posItemBody, 0x7FFFFFFF) }},
		{"body length + 1", func(b []byte) []byte { return setU32(b, posItemBody, 5) }},
		{"properties length -1", func(b []byte) []byte { b[24], b[25] = 0xFF, 0xFF; return b }},
		{"properties length + 1", func(b []byte) []byte { b[25]++; return b }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			// Good items before are still given out.
			body := append(bytes.Clone(good), tc.change(bytes.Clone(good))...)
			items, err := collect(body)
			var bad *FormatError
			want := 1
			if tc.name == "one byte more" {
				want = 2
			}
			if len(items) != want || !errors.As(err, &bad) {
				t.Errorf("%d items, want %d, %v", len(items), want, err)
			}
			if _, _, err := (&Encoder{}).AppendBatch(nil, &Message{Topic: "T", Body: body}); !errors.Is(err, ErrMessageIllegal) {
				t.Errorf("AppendBatch: %v", err)
			}
		})
	}
}

func setU32(b []byte, at int, v uint32) []byte {
	binary.BigEndian.PutUint32(b[at:], v)
	return b
}

func TestAppendBatch(t *testing.T) {
	items := []BatchItem{
		{Flag: 1, Body: []byte{0x9D, 0x0A, 0xD9, 0x6D}, Properties: "KEYS\x01k1\x02"},
		{Flag: 2, Body: []byte{0xFF, 0xFF, 0xFF, 0xFF}, Properties: "KEYS\x01k2"},
		{Flag: 3, Body: []byte{0}},
		{},
	}
	m := &Message{
		Topic: "T", QueueID: 5, SysFlag: Compressed, Body: batchOf(t, items...), Properties: "CLUSTER\x01c\x02",
		BornTimestamp: 11, BornHost: netip.MustParseAddrPort("[2001:db8::1]:40000"), StoreHost: storeA, ReconsumeTimes: 4,
		PreparedTransactionOffset: 99,
	}
	for _, e := range []Encoder{{}, {PropertyCRC: true}} {
		recs, count, err := e.AppendBatch([]byte("before"), m)
		if err != nil || count != len(items) || string(recs[:6]) != "before" {
			t.Fatalf("%d records, %v", count, err)
		}
		recs = recs[6:]
		e.Patch(recs, 30, 1000, 77)
		crcs := []uint32{0, 0x7FFFFFFF, 0x5202EF8D, 0}
		phy := PhysicalOffset(1000)
		for i, item := range items {
			size := Size(recs)
			v, err := Check(recs[:size], phy, CheckOptions{BodyCRC: true, PropertyCRC: true, RequirePropertyCRC: e.PropertyCRC, Strict: true})
			if err != nil {
				t.Fatalf("item %d: %v", i, err)
			}
			got := v.Decode()
			if e.PropertyCRC {
				// Here too a separator goes before the CRC where it is missing.
				got.Properties = got.Properties.Delete(PropCRC32)
				if item.Properties.needsSep() {
					item.Properties += "\x02"
				}
			}
			want := Ext{
				Message: Message{
					Topic: "T", QueueID: 5, Flag: item.Flag, SysFlag: Compressed | BornHostV6, Body: item.Body, Properties: item.Properties,
					BornTimestamp: 11, BornHost: m.BornHost, StoreHost: storeA, ReconsumeTimes: 4,
				},
				QueueOffset: QueueOffset(30 + i), PhysicalOffset: phy, StoreTimestamp: 77, StoreSize: size, Magic: MagicV1, BodyCRC: crcs[i],
			}
			if d := diff(want, got); d != "" {
				t.Errorf("item %d, -want +got\n%s", i, d)
			}
			recs, phy = recs[size:], phy+PhysicalOffset(size)
		}
		if len(recs) != 0 {
			t.Errorf("%d bytes more", len(recs))
		}
	}
}

func TestAppendBatchRejects(t *testing.T) {
	good := batchOf(t, BatchItem{Body: []byte("a")})
	for _, tc := range []struct {
		name   string
		enc    Encoder
		m      Message
		status error
	}{
		{"no item", Encoder{}, Message{Topic: "T"}, ErrMessageIllegal},
		{"prepared", Encoder{}, Message{Topic: "T", Body: good, SysFlag: TxPrepared}, ErrMessageIllegal},
		{"committed", Encoder{}, Message{Topic: "T", Body: good, SysFlag: TxCommit}, ErrMessageIllegal},
		{"delay level", Encoder{}, Message{Topic: "T", Body: good, Properties: "DELAY\x011\x02"}, ErrMessageIllegal},
		{"delay level no number", Encoder{}, Message{Topic: "T", Body: good, Properties: "DELAY\x01x\x02"}, ErrMessageIllegal},
		{"body in total above the limit", Encoder{MaxMessageSize: len(good) - 1}, Message{Topic: "T", Body: good}, ErrMessageIllegal},
		{"poison item", Encoder{}, Message{Topic: "T", Body: append(bytes.Clone(good), batchOf(t, BatchItem{Properties: "INNER_NUM\x01x\x02INNER_BASE\x011\x02"})...)}, ErrMessageIllegal},
		{"item without room for the CRC", Encoder{PropertyCRC: true}, Message{Topic: "T", Body: batchOf(t, BatchItem{Properties: Properties("l\x01" + strings.Repeat("v", 32758))})}, ErrPropertiesSizeExceeded},
		{"empty topic", Encoder{}, Message{Body: good}, ErrMessageIllegal},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, count, err := tc.enc.AppendBatch([]byte("before"), &tc.m)
			if !errors.Is(err, tc.status) || count != 0 || string(got) != "before" {
				t.Errorf("%q, %d records, %v, want %v", got, count, err, tc.status)
			}
			var rej *RejectError
			if !errors.As(err, &rej) {
				t.Errorf("%T is no *RejectError", err)
			}
		})
	}
	if _, err := AppendBatchItem(nil, BatchItem{Properties: Properties(strings.Repeat("x", 32768))}); !errors.Is(err, ErrPropertiesSizeExceeded) {
		t.Errorf("item with properties of 32768 bytes: %v", err)
	}
}
