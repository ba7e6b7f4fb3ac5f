package message

import (
	"bytes"
	"encoding/binary"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func FuzzCheck(f *testing.F) {
	for _, m := range []*Message{
		messageA(), messageB(),
		{Topic: RetryPrefix + strings.Repeat("g", 121), BornHost: netip.MustParseAddrPort("[2001:db8::1]:40000"), Body: []byte("x")},
		{Topic: ScheduleTopic, Properties: "DELAY\x013\x02TAGS\x01中\x02"},
		{Topic: "T", SysFlag: InnerBatch | NeedUnwrap, Properties: "INNER_NUM\x012\x02INNER_BASE\x010\x02INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x011\x02"},
	} {
		f.Add(sealed(f, &Encoder{}, m, 1, 0, 5))
		f.Add(sealed(f, &Encoder{PropertyCRC: true}, m, 1, 0, 5))
	}
	f.Add(AppendBlank(nil, 8))
	f.Add(make([]byte, 100))
	levels := must(ParseDelayLevels(DefaultDelayLevels))

	f.Fuzz(func(t *testing.T, rec []byte) {
		rec = bytes.Clone(rec)
		if h, err := ParseHeader(rec); err == nil && h.Kind == KindRecord {
			// Nobody guesses a checksum: put the right one in.
			if v, err := Check(rec, h.PhysicalOffset, CheckOptions{}); err == nil {
				binary.BigEndian.PutUint32(rec[posBodyCRC:], BodyCRC(v.Body()))
				if v.HasPropertyCRC() {
					SealCRC(rec)
				}
			}
		}
		given := bytes.Clone(rec)
		h, err := ParseHeader(rec)
		if err != nil {
			if _, err := Check(rec, 0, CheckOptions{}); err == nil {
				t.Fatal("Check accepts what ParseHeader refuses")
			}
			return
		}
		if h.Kind == KindRecord && int64(h.BodyOffset)+int64(h.BodyLen) > int64(h.Size) {
			t.Fatalf("body outside the record: %+v", h)
		}
		v, err := Check(rec, h.PhysicalOffset, CheckOptions{BodyCRC: true, PropertyCRC: true})
		if err != nil {
			return
		}
		if v.Header != h || int(h.Size) != len(rec) {
			t.Fatalf("headers differ: %+v, %+v", v.Header, h)
		}
		if n := len(v.Body()) + len(v.TopicBytes()) + len(v.PropsBytes()); n > len(rec)-MinRecordSize {
			t.Fatalf("parts of %d bytes in a record of %d", n, len(rec))
		}
		v.TagsCode(levels.Delay)
		v.IndexHashes(nil, true)
		v.InnerBatch()
		v.BatchNum()
		v.LooksTorn(3)
		_, _ = v.LightQueues()
		if _, _, err := ParseOffsetID(v.OffsetID()); err != nil && v.PhysicalOffset >= 0 {
			t.Fatalf("id %s: %v", v.OffsetID(), err)
		}
		if value, ok := v.GetProp(PropKeys); ok {
			if want, _ := v.Props().Get(PropKeys); want != string(value) {
				t.Fatalf("KEYS %q and %q", value, want)
			}
		}

		m := v.Decode()
		if standard := isStandard(&v); standard {
			e := Encoder{MaxMessageSize: 1 << 30, PropertyCRC: v.HasPropertyCRC()}
			again, err := e.Append(nil, &m.Message)
			if err != nil {
				t.Fatalf("decoded message refused: %v", err)
			}
			e.Patch(again, m.QueueOffset, m.PhysicalOffset, m.StoreTimestamp)
			if !bytes.Equal(again, given) {
				t.Fatalf("encoded again\n got %x\nwant %x", again, given)
			}
		}
		if !bytes.Equal(rec, given) {
			t.Fatal("the record was changed")
		}
	})
}

// isStandard reports whether an Encoder writes the record the way it is: a
// valid record may be one that other writers make, or that nobody does.
func isStandard(v *View) bool {
	p := v.Props()
	tail := len(p)
	if v.HasPropertyCRC() {
		tail -= crcTailSize
	}
	limit := MaxTopicSize
	if strings.HasPrefix(v.Topic(), RetryPrefix) {
		limit = MaxRetryTopicSize
	}
	inner := v.SysFlag&InnerBatch != 0 && strings.Contains(string(p), PropInnerNum)
	return (v.Magic == MagicV2) == (v.topicLen > MaxTopicSize) && int(v.topicLen) <= limit &&
		(v.BodyLen > 0 || v.Header.BodyCRC == 0) &&
		v.ParserError() == nil && !inner &&
		(tail == 0 || p[tail-1] != 0) && // an encoder adds a separator
		p[:tail].Delete(PropCRC32) == p[:tail] &&
		!v.BornHost().Addr().Is4In6() && !v.StoreHost().Addr().Is4In6()
}

func FuzzProperties(f *testing.F) {
	for _, p := range []string{
		"", "KEYS\x01k\x02TAGS\x01t", "\x02\x02a\x01\x02\x01b\x02c", "KEYS\x011\x02KEYS\x01\x02KEYS\x012\x013\x02",
		"INNER_MULTI_DISPATCH\x01%LMQ%a,\x02INNER_MULTI_QUEUE_OFFSET\x011,2\x02", "__CRC32#\x010123456789\x02",
	} {
		f.Add(p, "KEYS", "v")
	}
	f.Fuzz(func(t *testing.T, s, name, value string) {
		p := Properties(s)
		want := make(map[string]string)
		for _, pair := range modelPairs(p) {
			want[pair[0]] = pair[1]
		}
		if got := p.Map(); !maps.Equal(got, want) {
			t.Fatalf("Map = %q, want %q", got, want)
		}
		if got, ok := p.Get(name); got != want[name] || ok != (want[name] != "") {
			t.Fatalf("Get(%q) = %q, %v, want %q", name, got, ok, want[name])
		}
		checkReserved(t, p)
		p.Problems()
		_, _ = p.LightQueues()
		_, _ = p.DelayLevel()
		IndexHashes(nil, name, p, 0, true)
		if CheckProperty(name, value) == nil {
			want[name] = value
			if got := p.Set(name, value).Map(); !maps.Equal(got, want) {
				t.Fatalf("after Set(%q, %q): %q, want %q", name, value, got, want)
			}
			delete(want, name)
			if got := p.Delete(name).Map(); !maps.Equal(got, want) {
				t.Fatalf("after Delete(%q): %q, want %q", name, got, want)
			}
		}
	})
}

func FuzzSplitBatch(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(batchOf(f, BatchItem{Flag: 7, Body: []byte("hi"), Properties: "a\x01b\x02"}, BatchItem{}))
	f.Add(make([]byte, 22))
	f.Fuzz(func(t *testing.T, body []byte) {
		// Two fields of an item are ignored; all else must come back.
		want := bytes.Clone(body)
		var again []byte
		for item, err := range SplitBatch(body) {
			if err != nil {
				break
			}
			copy(want[len(again)+4:], make([]byte, 8))
			if again, err = AppendBatchItem(again, item); err != nil {
				t.Fatal(err)
			}
		}
		if !bytes.HasPrefix(want, again) {
			t.Fatalf("encoded again\n got %x\nwant %x", again, want)
		}
		recs, count, err := (&Encoder{}).AppendBatch(nil, &Message{Topic: "T", Body: body})
		if err != nil {
			return
		}
		for range count {
			size := Size(recs)
			if _, err := Check(recs[:size], 0, CheckOptions{BodyCRC: true, Strict: true}); err != nil {
				t.Fatalf("accepted batch gives a bad record: %v", err)
			}
			recs = recs[size:]
		}
		if len(recs) != 0 {
			t.Fatalf("%d bytes behind the last record", len(recs))
		}
	})
}

func FuzzParseOffsetID(f *testing.F) {
	f.Add("7F00000100002A9F000000000000005E")
	f.Add("20010DB800000000000000000000000500002A9F0000000000027AE6")
	f.Add("00000000000000000000FFFF7F00000100002A9F000000000000005E")
	f.Fuzz(func(t *testing.T, id string) {
		host, phy, err := ParseOffsetID(id)
		if err != nil {
			return
		}
		again := OffsetID(host, phy)
		if host.Addr().Is4In6() { // written as the IPv4 address it is
			again = OffsetID(netip.AddrPortFrom(host.Addr().Unmap(), host.Port()), phy)
			id = id[24:]
		}
		if again != strings.ToUpper(id) {
			t.Fatalf("%s became %s", id, again)
		}
	})
}

func FuzzParseDelayLevels(f *testing.F) {
	f.Add(DefaultDelayLevels)
	f.Add("1d  2s")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDelayLevels(s)
		if err != nil {
			return
		}
		if d.Max() < 1 || d.Max() != len(slices.Collect(Split(s, ' '))) {
			t.Fatalf("%d levels in %q", d.Max(), s)
		}
		for level := range d.Max() {
			if d.Delay(level+1) < 0 {
				t.Fatalf("level %d of %q: %d", level+1, s, d.Delay(level+1))
			}
		}
	})
}
