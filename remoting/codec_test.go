package remoting

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// hexDump reads the dumps of the protocol description: offset, bytes, text.
func hexDump(t *testing.T, dump string) []byte {
	t.Helper()
	var all []byte
	for line := range strings.Lines(dump) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		b, err := hex.DecodeString(strings.ReplaceAll(line[6:min(len(line), 53)], " ", ""))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		all = append(all, b...)
	}
	return all
}

// TestWorkedExamples has the frames of section 3 of the protocol description,
// which were computed by another program.
func TestWorkedExamples(t *testing.T) {
	for _, tt := range []struct {
		name    string
		dump    string
		size    int
		command Command
		decoded bool // only decoded: the members are in another order than ours
	}{
		{
			name: "JSON header: pull request",
			size: 280,
			dump: `
0000  00 00 01 14 00 00 01 10 7b 22 63 6f 64 65 22 3a  ........{"code":
0010  31 31 2c 22 65 78 74 46 69 65 6c 64 73 22 3a 7b  11,"extFields":{
0020  22 63 6f 6e 73 75 6d 65 72 47 72 6f 75 70 22 3a  "consumerGroup":
0030  22 43 47 22 2c 22 74 6f 70 69 63 22 3a 22 54 22  "CG","topic":"T"
0040  2c 22 71 75 65 75 65 49 64 22 3a 22 30 22 2c 22  ,"queueId":"0","
0050  71 75 65 75 65 4f 66 66 73 65 74 22 3a 22 37 22  queueOffset":"7"
0060  2c 22 6d 61 78 4d 73 67 4e 75 6d 73 22 3a 22 33  ,"maxMsgNums":"3
0070  32 22 2c 22 73 79 73 46 6c 61 67 22 3a 22 32 22  2","sysFlag":"2"
0080  2c 22 63 6f 6d 6d 69 74 4f 66 66 73 65 74 22 3a  ,"commitOffset":
0090  22 30 22 2c 22 73 75 73 70 65 6e 64 54 69 6d 65  "0","suspendTime
00a0  6f 75 74 4d 69 6c 6c 69 73 22 3a 22 31 35 30 30  outMillis":"1500
00b0  30 22 2c 22 73 75 62 56 65 72 73 69 6f 6e 22 3a  0","subVersion":
00c0  22 30 22 7d 2c 22 66 6c 61 67 22 3a 30 2c 22 6c  "0"},"flag":0,"l
00d0  61 6e 67 75 61 67 65 22 3a 22 47 4f 22 2c 22 6f  anguage":"GO","o
00e0  70 61 71 75 65 22 3a 35 2c 22 73 65 72 69 61 6c  paque":5,"serial
00f0  69 7a 65 54 79 70 65 43 75 72 72 65 6e 74 52 50  izeTypeCurrentRP
0100  43 22 3a 22 4a 53 4f 4e 22 2c 22 76 65 72 73 69  C":"JSON","versi
0110  6f 6e 22 3a 33 31 37 7d                          on":317}`,
			command: Command{
				Code: ReqPullMessage, Language: LanguageGo, Version: 317, Opaque: 5,
				Ext: EncodeHeader(&PullMessageRequest{ConsumerGroup: "CG", Topic: "T", QueueOffset: 7, MaxMsgNums: 32, SysFlag: PullSuspend, SuspendTimeoutMillis: 15000, RequestSource: -1}),
			},
		},
		{
			name: "JSON header: its answer after the hold",
			size: 195,
			dump: `
0000  00 00 00 bf 00 00 00 bb 7b 22 63 6f 64 65 22 3a  ........{"code":
0010  31 39 2c 22 65 78 74 46 69 65 6c 64 73 22 3a 7b  19,"extFields":{
0020  22 73 75 67 67 65 73 74 57 68 69 63 68 42 72 6f  "suggestWhichBro
0030  6b 65 72 49 64 22 3a 22 30 22 2c 22 6e 65 78 74  kerId":"0","next
0040  42 65 67 69 6e 4f 66 66 73 65 74 22 3a 22 37 22  BeginOffset":"7"
0050  2c 22 6d 69 6e 4f 66 66 73 65 74 22 3a 22 30 22  ,"minOffset":"0"
0060  2c 22 6d 61 78 4f 66 66 73 65 74 22 3a 22 37 22  ,"maxOffset":"7"
0070  7d 2c 22 66 6c 61 67 22 3a 31 2c 22 6c 61 6e 67  },"flag":1,"lang
0080  75 61 67 65 22 3a 22 47 4f 22 2c 22 6f 70 61 71  uage":"GO","opaq
0090  75 65 22 3a 35 2c 22 72 65 6d 61 72 6b 22 3a 22  ue":5,"remark":"
00a0  4f 46 46 53 45 54 5f 4f 56 45 52 46 4c 4f 57 5f  OFFSET_OVERFLOW_
00b0  4f 4e 45 22 2c 22 76 65 72 73 69 6f 6e 22 3a 34  ONE","version":4
00c0  37 39 7d                                         79}`,
			command: Command{
				Code: CodePullNotFound, Language: LanguageGo, Version: CurrentVersion, Opaque: 5, Flag: FlagResponse, Remark: "OFFSET_OVERFLOW_ONE",
				Ext: EncodeHeader(&PullMessageResponse{NextBeginOffset: 7, MaxOffset: 7}),
			},
		},
		{
			name: "binary header: query consumer offset request",
			size: 76,
			dump: `
0000  00 00 00 48 01 00 00 44 00 0e 00 01 df 00 00 00  ...H...D........
0010  06 00 00 00 00 00 00 00 00 00 00 00 2f 00 0d 63  ............/..c
0020  6f 6e 73 75 6d 65 72 47 72 6f 75 70 00 00 00 02  onsumerGroup....
0030  43 47 00 05 74 6f 70 69 63 00 00 00 01 54 00 07  CG..topic....T..
0040  71 75 65 75 65 49 64 00 00 00 01 30              queueId....0`,
			command: Command{
				Code: ReqQueryConsumerOffset, Language: LanguageJava, Version: CurrentVersion, Opaque: 6, Header: HeaderBinary,
				Ext: EncodeHeader(&QueryOffsetRequest{ConsumerGroup: "CG", Topic: "T", SetZeroIfNotFound: true}),
			},
		},
		{
			name: "binary header: its answer",
			size: 38,
			dump: `
0000  00 00 00 22 01 00 00 1e 00 16 09 01 df 00 00 00  ..."............
0010  06 00 00 00 01 00 00 00 09 4e 6f 74 20 66 6f 75  .........Not fou
0020  6e 64 00 00 00 00                                nd....`,
			command: Command{
				Code: CodeQueryNotFound, Language: LanguageGo, Version: CurrentVersion, Opaque: 6, Flag: FlagResponse, Header: HeaderBinary, Remark: "Not found",
			},
		},
		{
			name: "route request of client-go",
			size: 116,
			dump: "0000  00 00 00 70 00 00 00 6c\n0008  " +
				spaced(`{"code":105,"language":"GO","version":317,"opaque":1,"flag":0,"remark":"","extFields":{"topic":"TopicTest"}}`),
			command: Command{Code: ReqGetRouteInfoByTopic, Language: LanguageGo, Version: 317, Opaque: 1, Ext: Fields{{"topic", "TopicTest"}}},
			decoded: true,
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			frame := hexDump(t, tt.dump)
			if len(frame) != tt.size {
				t.Fatalf("dump of %d bytes, want %d", len(frame), tt.size)
			}
			got, n, err := DecodeFrame(frame)
			if err != nil || n != len(frame) {
				t.Fatalf("consumed %d, error %v", n, err)
			}
			if diff := diffCommands(&tt.command, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if tt.decoded {
				return
			}
			again, err := AppendFrame(nil, &tt.command)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(hex.Dump(frame), hex.Dump(again)); diff != "" {
				t.Errorf("encoded (-want +got):\n%s", diff)
			}
		})
	}
}

// spaced is text as the lines of a dump.
func spaced(text string) string {
	var lines []string
	for i := 0; i < len(text); i += 16 {
		lines = append(lines, fmt.Sprintf("%x", text[i:min(i+16, len(text))]))
	}
	for i, l := range lines {
		var b strings.Builder
		for j := 0; j < len(l); j += 2 {
			b.WriteString(l[j:j+2] + " ")
		}
		lines[i] = strings.TrimSpace(b.String())
	}
	return strings.Join(lines, "\n0000  ")
}

func jsonFrame(header string) []byte { return rawFrame(HeaderJSON, header, nil) }

func TestDecodeJSONHeader(t *testing.T) {
	for _, tt := range []struct {
		name   string
		header string
		want   Command
	}{
		{"empty object", `{}`, Command{Language: LanguageUnknown}},
		{"white space everywhere", " {\n \"code\" : 1 ,\t\"opaque\":\r2 } \n", Command{Code: 1, Opaque: 2, Language: LanguageUnknown}},
		{"language by name", `{"language":"NODE_JS"}`, Command{Language: LanguageNodeJS}},
		{"language by ordinal", `{"language":9}`, Command{Language: LanguageGo}},
		{"language nobody knows", `{"language":"COBOL"}`, Command{Language: LanguageUnknown}},
		{"language of another type", `{"language":{"x":1}}`, Command{Language: LanguageUnknown}},
		{"nulls", `{"code":null,"language":null,"remark":null,"extFields":null,"flag":null}`, Command{Language: LanguageUnknown}},
		{"numbers in quotes", `{"code":"105","opaque":"-1","version":"317"}`, Command{Code: 105, Opaque: -1, Version: 317, Language: LanguageUnknown}},
		{"ends of the range", `{"code":2147483647,"opaque":-2147483648}`, Command{Code: math.MaxInt32, Opaque: math.MinInt32, Language: LanguageUnknown}},
		{"unknown members", `{"x":{"a":[1,{"b":null}],"c":-1.5e3},"code":3,"y":[],"z":{}}`, Command{Code: 3, Language: LanguageUnknown}},
		{"no fields", `{"extFields":{}}`, Command{Ext: Fields{}, Language: LanguageUnknown}},
		{
			"scalars as field values",
			`{"extFields":{"a":"x","b":12,"c":true,"d":null,"e":-1.50,"f":"","g":false,"h":[1,"2"]}}`,
			Command{Ext: Fields{{"a", "x"}, {"b", "12"}, {"c", "true"}, {"e", "-1.50"}, {"f", ""}, {"g", "false"}, {"h", `[1,"2"]`}}, Language: LanguageUnknown},
		},
		{"the last of several wins", `{"extFields":{"a":"1","b":"2","a":"3"}}`, Command{Ext: Fields{{"b", "2"}, {"a", "3"}}, Language: LanguageUnknown}},
		{"the last extFields win", `{"extFields":{"a":"1"},"extFields":{"b":"2"}}`, Command{Ext: Fields{{"b", "2"}}, Language: LanguageUnknown}},
		{
			"escapes",
			`{"remark":"\"\\\/\b\f\n\r\t\u0041\u00e9\ud83d\ude00","extFields":{"\u0061":"x\u0001y\u0002"}}`,
			Command{Remark: "\"\\/\b\f\n\r\tAé😀", Ext: Fields{{"a", "x\x01y\x02"}}, Language: LanguageUnknown},
		},
		{"half a surrogate pair", `{"remark":"a\ud83dz\ude00"}`, Command{Remark: "a?z?", Language: LanguageUnknown}},
		{"control characters as they are", "{\"remark\":\"a\x01b\nc\"}", Command{Remark: "a\x01b\nc", Language: LanguageUnknown}},
		{
			"not UTF-8, as Java repairs it",
			"{\"remark\":\"\xffa\xc3|\xe4\xbd|\xf0\x9f\x98|\xed\xa0\x80|\xc0\x80|\xf8\x88\"}",
			Command{Remark: "\ufffda\ufffd|\ufffd|\ufffd|\ufffd|\ufffd\ufffd|\ufffd\ufffd", Language: LanguageUnknown},
		},
		{"remark that is a number", `{"remark":12}`, Command{Remark: "12", Language: LanguageUnknown}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, _, err := DecodeFrame(jsonFrame(tt.header))
			if err != nil {
				t.Fatal(err)
			}
			if diff := diffCommands(&tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if (got.Ext == nil) != (tt.want.Ext == nil) {
				t.Errorf("ext fields %#v, want %#v", got.Ext, tt.want.Ext)
			}
		})
	}
}

func TestDecodeFrameErrors(t *testing.T) {
	many := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"f%d":"",`, i)
		}
		return `{"extFields":{` + strings.TrimSuffix(b.String(), ",") + `}}`
	}
	if _, _, err := DecodeFrame(jsonFrame(many(MaxFields))); err != nil {
		t.Errorf("as many fields as allowed: %v", err)
	}
	length := func(total, word uint32) []byte {
		return append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, total), word), "0123456789"...)
	}
	bin := func(fixed string, parts ...string) []byte {
		return rawFrame(HeaderBinary, fixed+strings.Join(parts, ""), nil)
	}
	const fixed = "\x00\x0a\x00\x01\xdf\x00\x00\x00\x01\x00\x00\x00\x00"
	for _, tt := range []struct {
		name  string
		frame []byte
		want  string // part of the error; "" for io.ErrUnexpectedEOF
	}{
		{"nothing", nil, ""},
		{"part of the length", []byte{0, 0}, ""},
		{"only the length", []byte{0, 0, 0, 8}, ""},
		{"half a frame", jsonFrame(`{"code":1}`)[:12], ""},
		{"length 0", length(0, 0), "length 0"},
		{"length 3", length(3, 0), "length 3"},
		{"length -1", length(0xFFFFFFFF, 0), "length -1"},
		{"smallest length", length(0x80000000, 0), "length -2147483648"},
		{"one above the limit", length(MaxFrameSize-3, 10), "exceeds"},
		{"bad length alone", []byte{0x47, 0x45, 0x54, 0x20}, "exceeds"},
		{"header beyond the frame", length(14, 11), "header of 11 bytes in a frame of 14"},
		{"header beyond its limit", length(MaxFrameSize-4, MaxHeaderSize+1), "header of 4194305 bytes exceeds"},
		{"type 2", length(14, 2<<24|10), "header type 2"},
		{"type 255", length(14, 255<<24|10), "header type 255"},
		{"no header", length(4, 0)[:8], "not an object"},
		{"not JSON", jsonFrame("not json at all"), "not an object"},
		{"a list", jsonFrame("[]"), "not an object"},
		{"cut", jsonFrame(`{"code":1`), "neither a comma"},
		{"data behind", jsonFrame(`{"code":1}x`), "behind"},
		{"two objects", jsonFrame(`{"code":1}{}`), "behind"},
		{"bare name", jsonFrame(`{code:1}`), "no name"},
		{"comma at the end", jsonFrame(`{"code":1,}`), "no name"},
		{"no colon", jsonFrame(`{"code" 1}`), "no colon"},
		{"code beyond 32 bits", jsonFrame(`{"code":2147483648}`), "code"},
		{"code with a fraction", jsonFrame(`{"code":1.0}`), "code"},
		{"opaque is a list", jsonFrame(`{"opaque":[1]}`), "opaque"},
		{"empty number", jsonFrame(`{"opaque":""}`), "opaque"},
		{"flag is true", jsonFrame(`{"flag":true}`), "flag"},
		{"fields are text", jsonFrame(`{"extFields":"x"}`), "extFields is not an object"},
		{"fields are a list", jsonFrame(`{"extFields":[]}`), "extFields is not an object"},
		{"name of a field is a number", jsonFrame(`{"extFields":{1:"x"}}`), "no name"},
		{"field without value", jsonFrame(`{"extFields":{"a":}}`), "unexpected"},
		{"string does not end", jsonFrame(`{"remark":"a`), "does not end"},
		{"escape at the end", jsonFrame(`{"remark":"a\`), "does not end"},
		{"unknown escape", jsonFrame(`{"remark":"\x41"}`), "unknown escape"},
		{"malformed \\u", jsonFrame(`{"extFields":{"a":"\u12g4"}}`), "malformed"},
		{"short \\u", jsonFrame(`{"extFields":{"a":"\u12"}}`), "malformed"},
		{"truth", jsonFrame(`{"x":tru}`), "unexpected"},
		{"lone minus", jsonFrame(`{"x":-}`), "unexpected"},
		{"number ends with a point", jsonFrame(`{"x":1.}`), "point"},
		{"number ends with e", jsonFrame(`{"x":1e+}`), "exponent"},
		{"deep lists", jsonFrame(`{"x":` + strings.Repeat("[", 100_000)), "levels"},
		{"deep objects", jsonFrame(`{"x":` + strings.Repeat(`{"a":`, 100_000)), "levels"},
		{"deep in a field", jsonFrame(`{"extFields":{"a":` + strings.Repeat("[", 100_000)), "levels"},
		{"too many fields", jsonFrame(many(MaxFields + 1)), "ext fields"},
		{"binary, empty", bin(""), "cut short"},
		{"binary, cut short", bin("\x00\x0a\x00\x01"), "cut short"},
		{"binary, remark beyond", bin(fixed, "\x00\x00\x00\x05", "\x00\x00\x00\x00"), "remark: length 5, 4 bytes left"},
		{"binary, negative remark", bin(fixed, "\xff\xff\xff\xff", "\x00\x00\x00\x00"), "remark: length -1"},
		{"binary, fields beyond", bin(fixed, "\x00\x00\x00\x00", "\x00\x00\x00\x01"), "ext fields: length 1"},
		{"binary, negative fields", bin(fixed, "\x00\x00\x00\x00", "\x80\x00\x00\x00"), "ext fields: length -2147483648"},
		{"binary, name cut", bin(fixed, "\x00\x00\x00\x00", "\x00\x00\x00\x01", "\x00"), "name of ext field 0: cut"},
		{"binary, name beyond", bin(fixed, "\x00\x00\x00\x00", "\x00\x00\x00\x03", "\x00\x05a"), "name of ext field 0: length 5"},
		{"binary, negative name", bin(fixed, "\x00\x00\x00\x00", "\x00\x00\x00\x03", "\xff\xffa"), "name of ext field 0: length -1"},
		{"binary, no value", bin(fixed, "\x00\x00\x00\x00", "\x00\x00\x00\x03", "\x00\x01a"), "value of ext field 0: cut"},
		{"binary, value beyond", bin(fixed, "\x00\x00\x00\x00", "\x00\x00\x00\x07", "\x00\x01a\x7f\xff\xff\xff"), "value of ext field 0: length 2147483647"},
		{"binary, too many fields", bin(fixed, "\x00\x00\x00\x00", binaryFields(MaxFields+1)), "ext fields"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c, n, err := DecodeFrame(tt.frame)
			if tt.want == "" {
				if !errors.Is(err, io.ErrUnexpectedEOF) {
					t.Errorf("got %v, %v, want an unexpected end", c, err)
				}
				return
			}
			var e *FrameError
			if !errors.As(err, &e) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, %v, want an error with %q", c, err, tt.want)
			}
			if n != 0 {
				t.Errorf("consumed %d bytes", n)
			}
		})
	}
}

// binaryFields is the end of a binary header with n different fields.
func binaryFields(n int) string {
	var b []byte
	for i := range n {
		name := fmt.Sprintf("f%d", i)
		b = binary.BigEndian.AppendUint16(b, uint16(len(name)))
		b = append(b, name...)
		b = append(b, 0, 0, 0, 1, 'x')
	}
	return string(binary.BigEndian.AppendUint32(nil, uint32(len(b)))) + string(b)
}

func TestDecodeBinaryHeader(t *testing.T) {
	entries := "\x00\x01a\x00\x00\x00\x011" + "\x00\x00\x00\x00\x00\x01x" + "\x00\x01b\x00\x00\x00\x00" + "\x00\x01a\x00\x00\x00\x012"
	header := "\xff\xff" + "\x63" + "\x01\xdf" + "\xff\xff\xff\xfe" + "\x00\x00\x00\x03" + "\x00\x00\x00\x03r\xffk" +
		string(binary.BigEndian.AppendUint32(nil, uint32(len(entries)))) + entries + "behind"
	got, _, err := DecodeFrame(rawFrame(HeaderBinary, header, []byte("body")))
	if err != nil {
		t.Fatal(err)
	}
	want := &Command{
		Code: -1, Language: LanguageUnknown, Version: 479, Opaque: -2, Flag: 3, Remark: "r\ufffdk", Header: HeaderBinary,
		Ext: Fields{{"a", "2"}}, Body: []byte("body"),
	}
	if diff := diffCommands(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAppendFrame(t *testing.T) {
	t.Run("code beyond 16 bits goes out as JSON", func(t *testing.T) {
		for _, c := range []*Command{
			{Code: ReqPopMessage, Header: HeaderBinary},
			{Version: 40_000, Header: HeaderBinary},
			{Ext: Fields{{strings.Repeat("n", math.MaxInt16+1), "v"}}, Header: HeaderBinary},
		} {
			frame, err := AppendFrame(nil, c)
			if err != nil {
				t.Fatal(err)
			}
			got, _, err := DecodeFrame(frame)
			if err != nil {
				t.Fatal(err)
			}
			if got.Header != HeaderJSON || got.Code != c.Code || got.Version != c.Version || len(got.Ext) != len(c.Ext) {
				t.Errorf("got %v with header %v", got, got.Header)
			}
		}
	})
	t.Run("what is not UTF-8 leaves as U+FFFD", func(t *testing.T) {
		frame, err := AppendFrame([]byte("before"), &Command{Remark: "a\xffb\x7f\x1f"})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.HasPrefix(frame, []byte("before")) || !bytes.Contains(frame, []byte("\"remark\":\"a\ufffdb\x7f\\u001F\"")) {
			t.Errorf("got %q", frame)
		}
	})
	t.Run("unknown language leaves as OTHER", func(t *testing.T) {
		for _, typ := range []HeaderType{HeaderJSON, HeaderBinary} {
			frame, err := AppendFrame(nil, &Command{Language: LanguageUnknown, Header: typ})
			if err != nil {
				t.Fatal(err)
			}
			if got, _, err := DecodeFrame(frame); err != nil || got.Language != LanguageOther {
				t.Errorf("%v: got %v, %v", typ, got, err)
			}
		}
	})
	t.Run("limits", func(t *testing.T) {
		c := &Command{Code: 1}
		head, err := AppendFrame(nil, c)
		if err != nil {
			t.Fatal(err)
		}
		c.Body = make([]byte, MaxFrameSize-len(head))
		if frame, err := AppendFrame(nil, c); err != nil || len(frame) != MaxFrameSize {
			t.Errorf("largest frame: %d bytes, %v", len(frame), err)
		} else if _, n, err := DecodeFrame(frame); err != nil || n != MaxFrameSize {
			t.Errorf("decode the largest frame: %d bytes, %v", n, err)
		}
		c.Body = append(c.Body, 0)
		if out, err := AppendFrame([]byte("x"), c); !errors.Is(err, ErrTooLarge) || string(out) != "x" {
			t.Errorf("one byte more: %d bytes, %v", len(out), err)
		}
		c = &Command{Remark: strings.Repeat("\x01", MaxHeaderSize/6+1)}
		if _, err := AppendFrame(nil, c); !errors.Is(err, ErrTooLarge) {
			t.Errorf("large header: %v", err)
		}
	})
}

func TestCommand(t *testing.T) {
	req := NewRequest(ReqGetRouteInfoByTopic, &RouteInfoRequest{Topic: "T"})
	if req.IsResponse() || req.IsOneway() || req.Ext.Value("topic") != "T" || req.Version != CurrentVersion {
		t.Errorf("request %v %v", req, req.Ext)
	}
	req.SetHeader(nil)
	if req.Ext != nil {
		t.Errorf("fields %v", req.Ext)
	}
	resp := Response(fmt.Errorf("look up: %w", Errorf(CodeTopicNotExist, "no %s", "T")))
	if resp.Code != CodeTopicNotExist || resp.Remark != "no T" || !resp.IsResponse() {
		t.Errorf("answer %v", resp)
	}
	var e *Error
	if err := resp.Err(); !errors.As(err, &e) || err.Error() != "TOPIC_NOT_EXIST (17): no T" {
		t.Errorf("error %v", err)
	}
	if resp := Response(errors.New("x")); resp.Code != CodeSystemError || resp.Remark != "x" {
		t.Errorf("answer %v", resp)
	}
	if err := NewResponse(CodeSuccess, "").Err(); err != nil {
		t.Errorf("success is %v", err)
	}
}

// TestUnquoteRoom: what a string stands for does not depend on the room for it, nor
// on what is there already.
func TestUnquoteRoom(t *testing.T) {
	parts := []string{"a", "bcdefgh", strings.Repeat("x", 17), `\u0001`, `\\`, `\"`, "é", "\xff", `\ud83d\ude00`}
	rng := rand.New(rand.NewPCG(1, 1))
	for range 2000 {
		var q strings.Builder
		for range rng.IntN(6) {
			q.WriteString(parts[rng.IntN(len(parts))])
		}
		quoted := []byte(`"` + q.String() + `"`)
		want, err := unquote(nil, quoted)
		if err != nil {
			t.Fatal(err)
		}
		had := []byte("had")[:rng.IntN(4)]
		for _, room := range []int{0, 1, 7, 8, 9, 20, 1000} {
			dst := append(make([]byte, 0, len(had)+room), had...)
			if got, err := unquote(dst, quoted); err != nil || string(got) != string(had)+string(want) {
				t.Fatalf("%s with room for %d behind %q: %q, %v; want %q", quoted, room, had, got, err, want)
			}
		}
	}
}

// TestNameHash: hardly any two names that come together have the same hash.
func TestNameHash(t *testing.T) {
	same := 0
	allHeaders(func(_ string, h Header) {
		n := 0
		fill(reflect.ValueOf(h).Elem(), &n)
		seen := make(map[uint]bool)
		for _, f := range EncodeHeader(h) {
			hash := nameHash([]byte(f.Name))
			if seen[hash] {
				same++
			}
			seen[hash] = true
		}
	})
	if same > 3 {
		t.Errorf("%d names have the hash of another one of their header", same)
	}
}
