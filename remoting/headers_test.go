package remoting

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"pgregory.net/rapid"
)

// TestRecordedHeaders decodes the ext fields of every recorded request and
// answer and encodes them again: what is decoded from that is the same, and
// nothing of the recorded fields is lost that is not one everybody ignores.
func TestRecordedHeaders(t *testing.T) {
	requests, answers := make(map[int32]int), make(map[int32]int)
	for _, r := range loadRecordings(t) {
		var h Header
		switch {
		case strings.HasPrefix(r.file, "raw__"):
			continue // bad on purpose: TestHandMadeFrames
		case r.Kind == "request" || r.Kind == "oneway":
			if h = RequestHeader(r.Code); h != nil {
				requests[r.Code]++
			}
		case r.Kind == "response" && r.ReqCode != nil && hasHeader(*r.ReqCode, r.Code):
			if h = ResponseHeader(*r.ReqCode); h != nil {
				answers[*r.ReqCode]++
			}
		}
		if h == nil {
			continue
		}
		f := r.fields(t)
		if err := DecodeHeader(f, h); err != nil {
			t.Errorf("%s:%d: %s %d: %v", r.file, r.line, r.Kind, r.Code, err)
			continue
		}
		again := EncodeHeader(h)
		checkTyped(t, h)
		h2 := reflect.New(reflect.TypeOf(h).Elem()).Interface().(Header)
		if err := DecodeHeader(again, h2); err != nil {
			t.Errorf("%s:%d: decode again: %v", r.file, r.line, err)
		} else if diff := cmp.Diff(h, h2); diff != "" {
			t.Errorf("%s:%d: decoded again differs (-first +second):\n%s", r.file, r.line, diff)
		}
		for _, e := range f {
			if v, ok := again.Get(e.Name); ok && !sameValue(e.Value, v) {
				t.Errorf("%s:%d: %s is %q, want %q", r.file, r.line, e.Name, v, e.Value)
			} else if !ok && !isAbsent(e.Name, e.Value) && !slices.Contains(ignoredFields, e.Name) {
				t.Errorf("%s:%d: %T has no %s, which is %q", r.file, r.line, h, e.Name, e.Value)
			}
		}
	}
	t.Logf("requests by code: %s", counts(requests))
	t.Logf("answers by code of their request: %s", counts(answers))
	if len(requests) < 50 || len(answers) < 20 {
		t.Errorf("%d kinds of requests and %d of answers recorded", len(requests), len(answers))
	}
}

// checkTyped: a header that is written with its command makes the same bytes as
// one that was made fields of before.
func checkTyped(t *testing.T, h Header) {
	t.Helper()
	for _, typ := range []HeaderType{HeaderJSON, HeaderBinary} {
		plain, typed := NewResponse(CodeSuccess, "r"), NewResponse(CodeSuccess, "r")
		plain.SetHeader(h)
		typed.SetTyped(h)
		plain.Header, typed.Header = typ, typ
		want, err := AppendFrame([]byte("before"), plain)
		if err != nil {
			t.Fatal(err)
		}
		got, err := AppendFrame([]byte("before"), typed)
		if err != nil || string(got) != string(want) {
			t.Errorf("%T typed:\n%q, %v\nwant\n%q", h, got, err, want)
		}
	}
}

func counts(m map[int32]int) string {
	var codes []int32
	for code := range m {
		codes = append(codes, code)
	}
	slices.Sort(codes)
	var s []string
	for _, code := range codes {
		s = append(s, fmt.Sprintf("%d×%d", code, m[code]))
	}
	return strings.Join(s, " ")
}

// hasHeader reports whether an answer with code carries the fields of success.
func hasHeader(reqCode, code int32) bool {
	switch reqCode {
	case ReqPullMessage, ReqLitePullMessage:
		return code == 0 || code >= CodePullNotFound && code <= CodePullOffsetMoved
	case ReqQueryMessage:
		return code == 0 || code == CodeQueryNotFound
	case ReqSendMessage, ReqSendMessageV2, ReqSendBatchMessage:
		return code == 0 || code >= CodeFlushDiskTimeout && code <= CodeFlushSlaveTimeout
	}
	return code == 0
}

// ignoredFields are fields that peers send and nobody needs.
var ignoredFields = []string{
	"bname", "n", "ns", "nsd", "oway", "lo", "ReqT", "AccessKey", "Signature", "OnsChannel", "SecurityToken",
}

// isAbsent reports whether a value is that of a field which is not there.
func isAbsent(name, value string) bool {
	return value == "" || value == "0" || value == "false" || value == "-1" ||
		name == "committed" && value == "true" || name == "setZeroIfNotFound" && value == "true"
}

func sameValue(a, b string) bool { return a == b || strings.EqualFold(a, b) }

// fill sets every field of a struct to something that is neither zero nor a
// default.
func fill(v reflect.Value, n *int) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.String:
		*n++
		v.SetString(fmt.Sprintf("s%d", *n))
	case reflect.Int32, reflect.Int64:
		*n++
		v.SetInt(int64(1000 + *n))
	case reflect.Bool:
		v.SetBool(true)
	default:
		panic(fmt.Sprintf("field of type %s", v.Type()))
	}
}

// allHeaders calls fn with every header of the tables.
func allHeaders(fn func(name string, h Header)) {
	for _, table := range []map[int32]func() Header{requestHeaders, responseHeaders} {
		var codes []int32
		for code := range table {
			codes = append(codes, code)
		}
		slices.Sort(codes)
		for _, code := range codes {
			h := table[code]()
			fn(fmt.Sprintf("%d %s", code, strings.TrimPrefix(fmt.Sprintf("%T", h), "*remoting.")), h)
		}
	}
}

// TestHeaders writes and reads every header with all its fields set, with none
// set, and without each of its fields.
func TestHeaders(t *testing.T) {
	allHeaders(func(name string, h Header) {
		t.Run(name, func(t *testing.T) {
			n := 0
			fill(reflect.ValueOf(h).Elem(), &n)
			f := EncodeHeader(h)
			h2 := reflect.New(reflect.TypeOf(h).Elem()).Interface().(Header)
			if err := DecodeHeader(f, h2); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(h, h2); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			slices.Reverse(f) // fields come in any order
			if err := DecodeHeader(f, h2); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(h, h2); diff != "" {
				t.Errorf("reversed (-want +got):\n%s", diff)
			}
			for i := range f {
				rest := slices.Delete(slices.Clone(f), i, i+1)
				err := DecodeHeader(rest, h2)
				var e *FieldError
				if err != nil && (!errors.As(err, &e) || e.Name != f[i].Name || !e.Missing) {
					t.Errorf("without %s: %v", f[i].Name, err)
				}
			}
			empty := reflect.New(reflect.TypeOf(h).Elem()).Interface().(Header)
			if err := DecodeHeader(EncodeHeader(empty), h2); err != nil {
				t.Errorf("zero header: %v", err)
			}
		})
	})
}

func TestDecodeHeader(t *testing.T) {
	send := Fields{
		{"producerGroup", "PG"}, {"topic", "T"}, {"defaultTopic", "TBW102"}, {"defaultTopicQueueNums", "4"}, {"queueId", "-1"},
		{"sysFlag", "0"}, {"bornTimestamp", "1795989627167"}, {"flag", "-2147483648"},
	}
	with := func(name, value string) Fields {
		f := slices.Clone(send)
		f.Set(name, value)
		return f
	}
	for _, tt := range []struct {
		name string
		in   Fields
		want SendMessageRequest
		err  string
	}{
		{
			name: "only what must be there",
			in:   send,
			want: SendMessageRequest{ProducerGroup: "PG", Topic: "T", DefaultTopic: "TBW102", DefaultTopicQueueNums: 4, QueueID: -1, BornTimestamp: 1795989627167, Flag: -2147483648, MaxReconsumeTimes: -1},
		},
		{
			name: "boolean in capitals, empty optional number",
			in:   append(with("unitMode", "TRUE"), Field{"maxReconsumeTimes", ""}, Field{"batch", "yes"}),
			want: SendMessageRequest{ProducerGroup: "PG", Topic: "T", DefaultTopic: "TBW102", DefaultTopicQueueNums: 4, QueueID: -1, BornTimestamp: 1795989627167, Flag: -2147483648, MaxReconsumeTimes: -1, UnitMode: true},
		},
		{name: "no fields", err: "ext field producerGroup is missing"},
		{name: "not a number", in: with("queueId", "zero"), err: `ext field queueId: "zero" is not a 32-bit integer`},
		{name: "empty number", in: with("queueId", ""), err: `ext field queueId: "" is not a 32-bit integer`},
		{name: "too large", in: with("queueId", "2147483648"), err: `ext field queueId: "2147483648" is not a 32-bit integer`},
		{name: "too small", in: with("bornTimestamp", "-9223372036854775809"), err: `ext field bornTimestamp: "-9223372036854775809" is not a 64-bit integer`},
		{name: "fraction", in: with("flag", "1.0"), err: `ext field flag: "1.0" is not a 32-bit integer`},
		{name: "optional one malformed", in: with("reconsumeTimes", "x"), err: `ext field reconsumeTimes: "x" is not a 32-bit integer`},
		{name: "long value", in: with("flag", strings.Repeat("9", 1000)), err: `ext field flag: "` + strings.Repeat("9", maxErrorValue) + `" is not a 32-bit integer`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := DecodeSendMessage(&Command{Code: ReqSendMessage, Ext: tt.in})
			if tt.err != "" {
				if err == nil || err.Error() != tt.err {
					t.Fatalf("got error %v, want %s", err, tt.err)
				}
				if resp := Response(err); resp.Code != CodeSystemError || resp.Remark != tt.err {
					t.Errorf("answer %v", resp)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestSendMessageForms checks that both forms of a send say the same.
func TestSendMessageForms(t *testing.T) {
	want := SendMessageRequest{
		ProducerGroup: "PG", Topic: "T", DefaultTopic: "TBW102", DefaultTopicQueueNums: 4, QueueID: 1, SysFlag: 2, BornTimestamp: 3,
		Flag: 4, Properties: "p", ReconsumeTimes: 5, UnitMode: true, MaxReconsumeTimes: 6, Batch: true,
	}
	v2 := SendMessageRequestV2{want}
	for _, tt := range []struct {
		codes []int32
		h     Header
		names string
	}{
		{[]int32{ReqSendMessage, ReqSendReplyMessage}, &want,
			"producerGroup topic defaultTopic defaultTopicQueueNums queueId sysFlag bornTimestamp flag properties reconsumeTimes unitMode maxReconsumeTimes batch"},
		{[]int32{ReqSendMessageV2, ReqSendBatchMessage, ReqSendReplyMessageV2}, &v2, "a b c d e f g h i j k l m"},
	} {
		f := EncodeHeader(tt.h)
		var names []string
		for _, e := range f {
			names = append(names, e.Name)
		}
		if got := strings.Join(names, " "); got != tt.names {
			t.Errorf("fields %s, want %s", got, tt.names)
		}
		for _, code := range tt.codes {
			got, err := DecodeSendMessage(&Command{Code: code, Ext: f})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("code %d (-want +got):\n%s", code, diff)
			}
		}
	}
}

// TestDecodeLetters: the short way reads what the general one reads, whatever is
// missing, malformed, unknown or out of order, and it is taken for what clients
// send.
func TestDecodeLetters(t *testing.T) {
	values := []string{"", "0", "7", "-7", "+7", "2147483647", "2147483648", "9223372036854775807", "9223372036854775808", "x", "7x", "true", "TRUE", "false"}
	taken := 0
	rapid.Check(t, func(t *rapid.T) {
		var f Fields
		for _, name := range rapid.Permutation(strings.Split("abcdefghijklmnoA", "")).Draw(t, "names") {
			switch {
			case rapid.IntRange(0, 40).Draw(t, "missing") == 0:
			case rapid.IntRange(0, 20).Draw(t, "odd") == 0:
				f = append(f, Field{name, rapid.SampledFrom(values).Draw(t, "value")})
			default:
				f = append(f, Field{name, strconv.Itoa(int(rapid.Int32().Draw(t, "number")))})
			}
		}
		var want SendMessageRequestV2
		wantErr := DecodeHeader(f, &want)
		got, ok := decodeLetters(f)
		if ok && (wantErr != nil || got != want.SendMessageRequest) {
			t.Fatalf("%q: %+v, want %+v, %v", f, got, want, wantErr)
		}
		if ok {
			taken++
		}
		h, err := DecodeSendMessage(&Command{Code: ReqSendMessageV2, Ext: f})
		if (err == nil) != (wantErr == nil) || err == nil && h != want.SendMessageRequest {
			t.Fatalf("%q: %+v, %v, want %+v, %v", f, h, err, want, wantErr)
		}
	})
	if taken == 0 {
		t.Error("never taken")
	}
	if _, ok := decodeLetters(sendRequest(HeaderJSON, 0).Ext); !ok {
		t.Error("not taken for what the Java client sends")
	}
}

func TestCodeTables(t *testing.T) {
	for _, table := range [][]CodeInfo{RequestCodes(), ResponseCodes()} {
		if !sort.SliceIsSorted(table, func(i, j int) bool { return table[i].Code < table[j].Code }) {
			t.Error("a table is not in order")
		}
		for i := 1; i < len(table); i++ {
			if table[i].Code == table[i-1].Code {
				t.Errorf("code %d is there twice", table[i].Code)
			}
		}
	}
	// The names that the recorder, which was not written by us, gave.
	for _, r := range loadRecordings(t) {
		if r.Kind == "close" || r.Kind == "undecodable" || r.CodeName == "UNKNOWN" {
			continue
		}
		got := RequestName(r.Code)
		if r.Kind == "response" {
			got = ResponseName(r.Code)
			if r.Code > 208 && got != r.CodeName && r.ReqCode != nil && *r.ReqCode < 60 {
				continue // old codes of access control, with other meanings
			}
		}
		if got != r.CodeName {
			t.Errorf("%s:%d: %d is %s, want %s", r.file, r.line, r.Code, got, r.CodeName)
		}
	}
	for _, code := range []int32{CodeSystemError, CodeSystemBusy, CodeServiceNotAvailable, CodeTopicNotExist, CodeNoPermission} {
		if !Retriable(code) {
			t.Errorf("%s is not retriable", ResponseName(code))
		}
	}
	for _, code := range []int32{CodeSuccess, CodeMessageIllegal, CodeFlushDiskTimeout, 4711} {
		if Retriable(code) {
			t.Errorf("%s is retriable", ResponseName(code))
		}
	}
	if got := RequestName(4711); got != "REQUEST_4711" {
		t.Errorf("got %s", got)
	}
}

func TestFields(t *testing.T) {
	f := Fields{{"a", "1"}, {"b", "2"}}
	f.Set("b", "3")
	f.Set("c", "")
	if v, ok := f.Get("c"); v != "" || !ok {
		t.Errorf("c is %q, %v", v, ok)
	}
	if _, ok := f.Get("d"); ok {
		t.Error("d is there")
	}
	f.Delete("a")
	f.Delete("d")
	if diff := cmp.Diff(Fields{{"b", "3"}, {"c", ""}}, f, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var all []string
	for k, v := range f.All() {
		all = append(all, k+"="+v)
	}
	if got := strings.Join(all, " "); got != "b=3 c=" {
		t.Errorf("got %s", got)
	}
}
