package tool

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gantrymq/gantry/message"
)

func testMessage() message.Ext {
	return message.Ext{
		Message: message.Message{
			Topic: "Orders", QueueID: 3, Flag: math.MinInt32, SysFlag: message.TxCommit | message.BornHostV6, Body: []byte("<b>&"),
			Properties:    message.NewProperties("TAGS", "new", "KEYS", "a b", "a", "<&>\u2028\"\\"),
			BornTimestamp: 1_700_000_000_000, BornHost: netip.MustParseAddrPort("[2001:db8::1]:40000"), StoreHost: netip.MustParseAddrPort("10.0.0.2:10911"),
			ReconsumeTimes: 2, PreparedTransactionOffset: 1 << 60,
		},
		QueueOffset: math.MaxInt64, PhysicalOffset: 4096, StoreTimestamp: 1_700_000_000_500, StoreSize: 120, Magic: message.MagicV1, BodyCRC: 0x7FFFFFFF,
	}
}

// line is a message as the commands print it.
func line(t testing.TB, m message.Ext, raw bool) []byte {
	t.Helper()
	return append(AppendJSON(nil, &m, raw), '\n')
}

// TestJSON: the names of the fields, in their order, are a contract.
func TestJSON(t *testing.T) {
	want := `{"topic":"Orders","queueId":3,"queueOffset":9223372036854775807,"commitLogOffset":4096,"storeSize":120,"magic":"daa320a7",` +
		`"sysFlag":24,"flag":-2147483648,"bodyCRC":2147483647,"bornTimestamp":1700000000000,"bornHost":"[2001:db8::1]:40000",` +
		`"storeTimestamp":1700000000500,"storeHost":"10.0.0.2:10911","reconsumeTimes":2,"preparedTransactionOffset":1152921504606846976,` +
		`"msgId":"0A00000200002A9F0000000000001000","properties":{"TAGS":"new","KEYS":"a b","a":"<&>\u2028\"\\"},"body":"<b>&"}` + "\n"
	if got := string(line(t, testMessage(), false)); got != want {
		t.Errorf("got  %swant %s", got, want)
	}
	m := testMessage()
	m.Properties, m.Body = "", []byte{0, 0xFF}
	if got := string(line(t, m, false)); !strings.HasSuffix(got, `"properties":{},"bodyBase64":"AP8="}`+"\n") {
		t.Errorf("got %s", got)
	}
}

// TestJSONRoundTrip: everything that a message says comes back.
func TestJSONRoundTrip(t *testing.T) {
	zlib, err := deflate([]byte(strings.Repeat("hello ", 100)), message.CompressionZlib)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(m *message.Ext){
		"all fields":        func(*message.Ext) {},
		"no properties":     func(m *message.Ext) { m.Properties = "" },
		"empty body":        func(m *message.Ext) { m.Body = []byte{} },
		"binary body":       func(m *message.Ext) { m.Body = []byte{0, 1, 0xFE, 0xFF} },
		"doubled name":      func(m *message.Ext) { m.Properties = "a\x011\x02b\x012\x02a\x013\x02" },
		"the same twice":    func(m *message.Ext) { m.Properties = "a\x011\x02a\x011\x02" },
		"no value":          func(m *message.Ext) { m.Properties = "a\x01\x02b\x012\x02" },
		"no separator":      func(m *message.Ext) { m.Properties = "a\x02b\x012\x02" },
		"doubled separator": func(m *message.Ext) { m.Properties = "a\x011\x02\x02b\x012\x02" },
		"leading separator": func(m *message.Ext) { m.Properties = "\x02a\x011\x02" },
		"0x01 in a value":   func(m *message.Ext) { m.Properties = "a\x011\x012\x02" },
		"only rubbish":      func(m *message.Ext) { m.Properties = "\x01\x02\x02x" },
		"no UTF-8":          func(m *message.Ext) { m.Properties = "a\x01\xff\x02" },
		"the other order":   func(m *message.Ext) { m.Properties = "b\x011\x02a\x012\x02" },
		"compressed": func(m *message.Ext) {
			m.Body, m.SysFlag = zlib, message.SysFlag(0).WithCompression(message.CompressionZlib)
		},
		"compressed before 4.9": func(m *message.Ext) { m.Body, m.SysFlag = zlib, message.Compressed },
		"not really compressed": func(m *message.Ext) { m.Body, m.SysFlag = []byte("plain"), message.Compressed },
		"cut while compressed":  func(m *message.Ext) { m.Body, m.SysFlag = zlib[:20], message.Compressed },
		"other compression":     func(m *message.Ext) { m.SysFlag = message.SysFlag(0).WithCompression(message.CompressionZstd) },
		"unknown compression":   func(m *message.Ext) { m.SysFlag = message.Compressed | 0x700 },
	} {
		t.Run(name, func(t *testing.T) {
			m := testMessage()
			change(&m)
			for _, raw := range []bool{false, true} {
				got, err := FromJSON(line(t, m, raw))
				if err != nil {
					t.Fatal(err)
				}
				want := m
				want.QueueOffset, want.StoreSize, want.Magic, want.BodyCRC = 0, 0, 0, 0 // given anew
				if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.AddrPort{})); d != "" {
					t.Errorf("raw %v (-want +got)\n%s", raw, d)
				}
			}
		})
	}
	// The last separator, which some releases leave out, is the only byte that
	// may differ.
	m := testMessage()
	m.Properties = "a\x011"
	if got, err := FromJSON(line(t, m, false)); err != nil || got.Properties != "a\x011\x02" {
		t.Errorf("properties %q, %v", got.Properties, err)
	}
}

// TestInflateLimit: a body that would become huge is left as it is.
func TestInflateLimit(t *testing.T) {
	body, err := deflate(make([]byte, MaxPlainBody+1), message.CompressionZstd)
	if err != nil {
		t.Fatal(err)
	}
	m := testMessage()
	m.Body, m.SysFlag = body, message.SysFlag(0).WithCompression(message.CompressionZstd)
	var j Message
	if err := json.Unmarshal(line(t, m, false), &j); err != nil || !j.BodyRaw || j.BodyCompression != "zstd" {
		t.Errorf("%d bytes were opened, %v", len(body), err)
	}
}

// TestCompressions: each kind of body is opened, and compressed again.
func TestCompressions(t *testing.T) {
	plain := []byte(strings.Repeat("some text ", 1000))
	for _, c := range []message.Compression{message.CompressionZlib, message.CompressionLZ4, message.CompressionZstd} {
		body, err := deflate(plain, c)
		if err != nil || len(body) > len(plain)/10 {
			t.Fatalf("%v: %d bytes, %v", c, len(body), err)
		}
		for range 2 { // what is kept for reuse works a second time
			if got, err := Inflate(body, c, MaxPlainBody); err != nil || !bytes.Equal(got, plain) {
				t.Errorf("%v: %d bytes, %v", c, len(got), err)
			}
			if _, err := Inflate(body, c, int64(len(plain))-1); err == nil {
				t.Errorf("%v: the limit was ignored", c)
			}
			if _, err := Inflate(body[:len(body)/2], c, MaxPlainBody); err == nil {
				t.Errorf("%v: half a body was opened", c)
			}
		}
		m := testMessage()
		m.Body, m.SysFlag = body, message.SysFlag(0).WithCompression(c)
		got, err := FromJSON(line(t, m, false))
		if err != nil {
			t.Fatal(err)
		}
		if again, err := Inflate(got.Body, c, MaxPlainBody); err != nil || !bytes.Equal(again, plain) {
			t.Errorf("%v: %d bytes after JSON, %v", c, len(again), err)
		}
	}
}

// FuzzAppendJSON: what is written by hand is what encoding/json writes.
func FuzzAppendJSON(f *testing.F) {
	f.Add("Topic", "KEYS\x01a\x02", []byte("body"))
	f.Add("T\n\u2028\u2029\b\f\x01\x7f\"\\<>&\xff😀", "a\x01\xff\x02a\x01b\x02", []byte{0xFF})
	f.Add("T", "a\x011\x02b\x012\x02a\x013\x02a\x01\x02", []byte{})
	f.Fuzz(func(t *testing.T, topic, props string, body []byte) {
		m := testMessage()
		m.Topic, m.Properties, m.Body = topic, message.Properties(props), body
		var b bytes.Buffer
		enc := json.NewEncoder(&b)
		enc.SetEscapeHTML(false)
		if err := enc.Encode(reference(m)); err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(b.String(), string(line(t, m, false))); d != "" {
			t.Errorf("(-encoding/json +got)\n%s", d)
		}
	})
}

// reference is the object that AppendJSON writes, for bodies that are not
// compressed.
func reference(m message.Ext) any {
	out := Message{
		Topic: m.Topic, QueueID: m.QueueID, QueueOffset: int64(m.QueueOffset),
		CommitLogOffset: int64(m.PhysicalOffset), StoreSize: m.StoreSize,
		Magic: fmt.Sprintf("%08x", m.Magic), SysFlag: int32(m.SysFlag), Flag: m.Flag, BodyCRC: m.BodyCRC,
		BornTimestamp: m.BornTimestamp, BornHost: m.BornHost.String(),
		StoreTimestamp: m.StoreTimestamp, StoreHost: m.StoreHost.String(),
		ReconsumeTimes: m.ReconsumeTimes, PreparedTransactionOffset: int64(m.PreparedTransactionOffset),
		MsgID: m.MsgID(), Properties: pairs(m.Properties),
	}
	if !utf8.ValidString(m.Topic) {
		out.TopicBase64 = base64.StdEncoding.EncodeToString([]byte(m.Topic))
	}
	if !utf8.ValidString(string(m.Properties)) || m.Properties.Problems() != (message.PropertyProblems{}) || !spare(m.Properties) {
		out.PropertiesBase64 = base64.StdEncoding.EncodeToString([]byte(m.Properties))
	}
	if utf8.Valid(m.Body) {
		s := string(m.Body)
		out.Body = &s
	} else {
		s := base64.StdEncoding.EncodeToString(m.Body)
		out.BodyBase64 = &s
	}
	return out
}

// spare reports whether a property string has no separator too many.
func spare(p message.Properties) bool {
	return !strings.HasPrefix(string(p), "\x02") && !strings.Contains(string(p), "\x02\x02")
}

// MarshalJSON implements json.Marshaler.
func (p pairs) MarshalJSON() ([]byte, error) {
	rest := message.Properties(p).Map()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	b.WriteByte('{')
	text := func(s string, end byte) {
		_ = enc.Encode(s) // a string, into memory
		b.Truncate(b.Len() - len("\n"))
		b.WriteByte(end)
	}
	for name, value := range message.Properties(p).All() {
		if v, ok := rest[name]; ok && v == value {
			delete(rest, name)
			text(name, ':')
			text(value, ',')
		}
	}
	if b.Len() > 1 {
		b.Truncate(b.Len() - len(","))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

func FuzzFromJSON(f *testing.F) {
	f.Add(line(f, testMessage(), false))
	f.Add([]byte(`{"topic":"T","body":"x","properties":{"a":"b","a":"c"},"sysFlag":1,"bodyCompression":"zlib"}`))
	f.Add([]byte(`{"topic":"T","bodyBase64":"AA==","propertiesBase64":"AQI=","properties":null}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := FromJSON(data)
		if err != nil {
			return
		}
		for _, host := range []*netip.AddrPort{&m.BornHost, &m.StoreHost} {
			if !host.IsValid() { // a stored message has both
				*host = netip.MustParseAddrPort("0.0.0.0:0")
			}
		}
		again, err := FromJSON(line(t, m, true))
		if err != nil {
			t.Fatal(err)
		}
		if again.Properties == m.Properties+"\x02" {
			again.Properties = m.Properties // some releases leave the last separator out
		}
		if d := cmp.Diff(m, again, cmpopts.EquateComparable(netip.AddrPort{}), cmpopts.EquateEmpty()); d != "" {
			t.Fatalf("(-first +again)\n%s", d)
		}
	})
}
