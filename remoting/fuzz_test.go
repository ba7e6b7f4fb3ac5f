package remoting

import (
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// seedFrames are frames of every request code with each header encoding, and of
// every answer with a header.
func seedFrames() (frames [][]byte) {
	allHeaders(func(_ string, h Header) {
		n := 0
		fill(reflect.ValueOf(h).Elem(), &n)
		for _, typ := range []HeaderType{HeaderJSON, HeaderBinary} {
			frames = append(frames, mustFrame(&Command{Code: 11, Header: typ, Ext: EncodeHeader(h), Remark: "r\x01\"ä", Body: []byte("body")}))
		}
	})
	return frames
}

// FuzzDecodeFrame: no input breaks the decoder, it consumes what the length
// says, and what it accepts is the same after another round.
func FuzzDecodeFrame(f *testing.F) {
	for _, frame := range seedFrames() {
		f.Add(frame)
	}
	f.Add([]byte("GET / HTTP/1.1\r\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		c, n, err := DecodeFrame(b)
		if !bytes.Equal(before, b) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			var e *FrameError
			if !errors.Is(err, io.ErrUnexpectedEOF) && !errors.As(err, &e) || c != nil || n != 0 {
				t.Fatalf("%v, %d, %v", c, n, err)
			}
			return
		}
		if n != wordLen+int(binary.BigEndian.Uint32(b)) {
			t.Fatalf("consumed %d bytes", n)
		}
		checkRound(t, c)
	})
}

// checkRound encodes and decodes an accepted command.
func checkRound(t *testing.T, c *Command) {
	t.Helper()
	if !utf8.ValidString(c.Remark) {
		t.Fatalf("remark %q", c.Remark)
	}
	for i, e := range c.Ext {
		if !utf8.ValidString(e.Name) || !utf8.ValidString(e.Value) {
			t.Fatalf("field %q", e)
		}
		if slices.ContainsFunc(c.Ext[:i], func(o Field) bool { return o.Name == e.Name }) {
			t.Fatalf("%q is there twice", e.Name)
		}
	}
	frame, err := AppendFrame(nil, c)
	if errors.Is(err, ErrTooLarge) {
		return // escapes can make a header larger
	}
	if err != nil {
		t.Fatal(err)
	}
	again, n, err := DecodeFrame(frame)
	if err != nil || n != len(frame) {
		t.Fatalf("decode again: %d of %d, %v\n%q", n, len(frame), err, frame)
	}
	if c.Language == LanguageUnknown {
		c.Language = LanguageOther
	}
	if diff := diffCommands(c, again); diff != "" {
		t.Fatalf("(-first +second):\n%s", diff)
	}
	third, err := AppendFrame(nil, again)
	if err != nil || !bytes.Equal(frame, third) {
		t.Fatalf("encoded again\n%q, before\n%q, %v", third, frame, err)
	}
}

// FuzzJSONHeader looks at the header alone, and compares with encoding/json
// where that accepts it.
func FuzzJSONHeader(f *testing.F) {
	f.Add([]byte(`{"code":11,"extFields":{"a":"1","b":2,"c":null,"d":true},"flag":0,"language":"JAVA","opaque":5,"remark":"\u0001\ud83d\ude00","version":493}`))
	f.Add([]byte(" {\"extFields\" : { } , \"x\" : [ { } , -1.5e+3 ] }\n"))
	f.Fuzz(func(t *testing.T, header []byte) {
		var d headerDecoder
		in := new(inbound)
		err := d.decode(HeaderJSON, header, in)
		var std struct {
			Remark any            `json:"remark"`
			Code   any            `json:"code"`
			Ext    map[string]any `json:"extFields"`
		}
		stdErr := json.Unmarshal(header, &std)
		if err != nil {
			return
		}
		checkRound(t, &in.cmd)
		if stdErr != nil || !json.Valid(header) {
			return
		}
		for name, v := range std.Ext {
			got, ok := in.cmd.Ext.Get(name)
			text, isText := v.(string)
			if ok != (v != nil) && !strings.Contains(string(header), "extFields\":{") {
				continue // spelled otherwise: encoding/json folds case
			}
			if isText && ok && got != text && !strings.Contains(got, "?") && !strings.Contains(got, "\ufffd") && !folded(header) {
				t.Errorf("%q is %q, want %q", name, got, text)
			}
		}
	})
}

// folded reports whether encoding/json may have taken another member for
// extFields, since it ignores case and takes escapes in names, or merged two.
func folded(header []byte) bool {
	return bytes.Count(bytes.ToLower(header), []byte("extfields")) != 1 || bytes.Contains(header, []byte(`\`))
}

// FuzzBinaryHeader looks at the header alone.
func FuzzBinaryHeader(f *testing.F) {
	for _, frame := range seedFrames() {
		if frame[4] == byte(HeaderBinary) {
			f.Add(frame[prefixLen : len(frame)-4])
		}
	}
	f.Fuzz(func(t *testing.T, header []byte) {
		var d headerDecoder
		in := new(inbound)
		if err := d.decode(HeaderBinary, header, in); err == nil {
			checkRound(t, &in.cmd)
		}
	})
}

// FuzzHeaders reads fields into every typed header. What is accepted is the
// same after another round; what is not, names a field.
func FuzzHeaders(f *testing.F) {
	allHeaders(func(_ string, h Header) {
		n := 0
		fill(reflect.ValueOf(h).Elem(), &n)
		var text []string
		for _, e := range EncodeHeader(h) {
			text = append(text, e.Name+"="+e.Value)
		}
		f.Add(strings.Join(text, "&"))
	})
	f.Add("a=PG&b=T&c=TBW102&d=4&e=-1&f=0&g=9223372036854775808&h=+1&k=TRUE&l=")
	f.Fuzz(func(t *testing.T, text string) {
		var fields Fields
		for part := range strings.SplitSeq(text, "&") {
			name, value, _ := strings.Cut(part, "=")
			fields.Set(name, value)
		}
		allHeaders(func(name string, h Header) {
			if err := DecodeHeader(fields, h); err != nil {
				var e *FieldError
				if !errors.As(err, &e) || e.Name == "" {
					t.Errorf("%s: %v", name, err)
				}
				return
			}
			again := reflect.New(reflect.TypeOf(h).Elem()).Interface().(Header)
			if err := DecodeHeader(EncodeHeader(h), again); err != nil {
				t.Fatalf("%s: decode again: %v", name, err)
			}
			if diff := cmp.Diff(h, again); diff != "" {
				t.Fatalf("%s (-first +second):\n%s", name, diff)
			}
		})
	})
}

// sameLanguage: one that nobody knows is written as OTHER.
var sameLanguage = cmp.Comparer(func(a, b Language) bool {
	return a == b || a.String() == b.String()
})

// allBodies calls fn with every JSON body.
func allBodies(fn func(b Body)) {
	for _, table := range []map[int32]func() Body{requestBodies, responseBodies} {
		var codes []int32
		for code := range table {
			codes = append(codes, code)
		}
		slices.Sort(codes)
		for _, code := range codes {
			fn(table[code]())
		}
	}
}

// FuzzBodies reads JSON into every body. What is accepted is the same after
// another round.
func FuzzBodies(f *testing.F) {
	seen := make(map[reflect.Type]bool)
	for _, r := range loadRecordings(f) {
		b := bodyOf(r)
		if data := r.body(f); b != nil && data != nil && len(data) < 4096 && !seen[reflect.TypeOf(b)] {
			seen[reflect.TypeOf(b)] = true
			f.Add(data)
		}
	}
	f.Add([]byte(`{"offsetTable":[[{"topic":"T"},5]],"consumerTable":{"c":{"{\"queueId\":1}":2}}}`))
	f.Add([]byte(`{"topicList":null,"table":{"a":null,"a":1e3},"brokerAddrs":{-1:"x"},"consumeTps":-0.0}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		allBodies(func(b Body) {
			if err := DecodeBody(data, b); err != nil {
				return
			}
			out := EncodeBody(b)
			again := reflect.New(reflect.TypeOf(b).Elem()).Interface().(Body)
			if err := DecodeBody(out, again); err != nil {
				t.Fatalf("%T: decode again: %v\n%s", b, err, out)
			}
			if diff := cmp.Diff(b, again, cmpopts.EquateEmpty(), sameLanguage); diff != "" {
				t.Fatalf("%T (-first +second):\n%s", b, diff)
			}
		})
	})
}

// FuzzRegisterBroker reads registrations, compressed and not. Of compressed ones
// the fuzzer makes what is inside.
func FuzzRegisterBroker(f *testing.F) {
	b := RegisterBroker{FilterServers: []string{"f"}, Topics: TopicConfigTable{
		Topics:       map[string]TopicConfig{"T": {TopicName: "T", ReadQueueNums: 1, Perm: 6, TopicFilterType: FilterTypeSingle, Attributes: map[string]string{"a": "b"}}},
		MappingInfos: RawJSON(`{"T":{"topic":"T"}}`),
	}}
	data, err := b.EncodeCompressed()
	if err != nil {
		f.Fatal(err)
	}
	z, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		f.Fatal(err)
	}
	inside, err := io.ReadAll(z)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(inside, true, Version5_0_0)
	f.Add(inside, true, Version4_9_4)
	f.Add(EncodeBody(&b), false, Version4_9_4)
	f.Fuzz(func(t *testing.T, data []byte, compressed bool, version int32) {
		if compressed {
			var out bytes.Buffer
			z := zlib.NewWriter(&out)
			z.Write(data) //nolint:errcheck // to memory
			z.Close()     //nolint:errcheck // to memory
			data = out.Bytes()
		}
		got, err := DecodeRegisterBroker(data, compressed, version)
		if err != nil || !compressed {
			return
		}
		out, err := got.EncodeCompressed()
		if err != nil {
			t.Fatal(err)
		}
		again, err := DecodeRegisterBroker(out, true, Version5_0_0)
		if err != nil {
			t.Fatalf("decode again: %v", err)
		}
		if version < Version5_0_0 {
			again.Topics.MappingInfos = nil
		}
		if diff := cmp.Diff(got, again, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("(-first +second):\n%s", diff)
		}
	})
}

// FuzzProperties reads properties text.
func FuzzProperties(f *testing.F) {
	f.Add([]byte("a=b\nc : d\\\n  e\\u0041\r\n#x\n\\=\\:=\\\\"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := ParseProperties(text)
		if err != nil {
			return
		}
		for _, e := range p {
			if !utf8.ValidString(e.Name) || !utf8.ValidString(e.Value) {
				t.Fatalf("%q", e)
			}
		}
	})
}

// FuzzProxy reads PROXY preambles.
func FuzzProxy(f *testing.F) {
	f.Add([]byte("PROXY TCP4 192.0.2.1 198.51.100.2 56324 443\r\nrest"))
	f.Add([]byte(proxy2(0x21, 0x11, "\xc0\x00\x02\x01\xc6\x33\x64\x02\xdc\x04\x01\xbb") + "rest"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c := &Conn{ep: &endpoint{}}
		r := frameReader{src: bytes.NewReader(b), conn: c}
		peer, err := r.readProxy()
		if err != nil && peer.IsValid() {
			t.Errorf("%v and %v", peer, err)
		}
		if err == nil && peer.IsValid() && peer.Addr().Is4In6() {
			t.Errorf("%v", peer)
		}
		_ = netip.AddrPort(peer)
	})
}
