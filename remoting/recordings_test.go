package remoting

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
)

// A frameRecord is one line of a recording in testdata/wire.
type frameRecord struct {
	file string
	line int

	Conn          string          `json:"conn"`
	Peer          string          `json:"peer"`
	Dir           string          `json:"dir"`
	Kind          string          `json:"kind"`
	Code          int32           `json:"code"`
	CodeName      string          `json:"codeName"`
	ReqCode       *int32          `json:"reqCode"`
	Opaque        int32           `json:"opaque"`
	Flag          int32           `json:"flag"`
	Language      string          `json:"language"`
	Version       int32           `json:"version"`
	SerializeType string          `json:"serializeType"`
	Remark        *string         `json:"remark"`
	ExtFields     json.RawMessage `json:"extFields"`
	BodyLen       int             `json:"bodyLen"`
	Body          json.RawMessage `json:"body"`
	BodyText      *string         `json:"bodyText"`
	Truncated     bool            `json:"truncated"`
	Raw           string          `json:"raw"`
}

func (r *frameRecord) raw(t testing.TB) []byte {
	t.Helper()
	b, err := hex.DecodeString(r.Raw)
	if err != nil {
		t.Fatalf("%s:%d: %v", r.file, r.line, err)
	}
	return b
}

// body returns the recorded body, nil if it is not there completely.
func (r *frameRecord) body(t testing.TB) []byte {
	t.Helper()
	switch {
	case r.Truncated:
		return nil
	case r.BodyText != nil:
		return []byte(*r.BodyText)
	case len(r.Body) == 0 || string(r.Body) == "null":
		return nil
	case r.Body[0] == '"':
		var s string
		if err := json.Unmarshal(r.Body, &s); err != nil {
			t.Fatal(err)
		}
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			t.Fatalf("%s:%d: %v", r.file, r.line, err)
		}
		return b
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, r.Body); err != nil {
		t.Fatal(err)
	}
	return compact.Bytes()
}

// fields returns the recorded ext fields in order, as text.
func (r *frameRecord) fields(t testing.TB) Fields {
	t.Helper()
	if len(r.ExtFields) == 0 || string(r.ExtFields) == "null" {
		return nil
	}
	f := Fields{}
	dec := json.NewDecoder(bytes.NewReader(r.ExtFields))
	dec.UseNumber()
	tok := func() json.Token {
		tk, err := dec.Token()
		if err != nil {
			t.Fatalf("%s:%d: %v", r.file, r.line, err)
		}
		return tk
	}
	tok()
	for dec.More() {
		name := tok().(string)
		switch v := tok().(type) {
		case nil:
		case string:
			f.Set(name, v)
		case json.Number:
			f.Set(name, v.String())
		case bool:
			f.Set(name, map[bool]string{true: "true", false: "false"}[v])
		}
	}
	return f
}

const wireDir = "../testdata/wire"

var recordings = sync.OnceValues(func() ([]*frameRecord, error) {
	var all []*frameRecord
	files, err := filepath.Glob(filepath.Join(wireDir, "*.ndjson.gz"))
	if err != nil {
		return nil, err
	}
	more, err := filepath.Glob(filepath.Join(wireDir, "mqadmin", "*.ndjson.gz"))
	if err != nil {
		return nil, err
	}
	for _, name := range append(files, more...) {
		data, err := readGzip(name)
		if err != nil {
			return nil, err
		}
		s := bufio.NewScanner(bytes.NewReader(data))
		s.Buffer(nil, 64<<20)
		for n := 1; s.Scan(); n++ {
			if len(bytes.TrimSpace(s.Bytes())) == 0 {
				continue
			}
			r := &frameRecord{file: strings.TrimSuffix(filepath.Base(name), ".ndjson.gz"), line: n}
			if err := json.Unmarshal(s.Bytes(), r); err != nil {
				return nil, err
			}
			all = append(all, r)
		}
		if err := s.Err(); err != nil {
			return nil, err
		}
	}
	return all, nil
})

func readGzip(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read
	z, err := gzip.NewReader(f)
	if err != nil {
		return nil, err
	}
	return io.ReadAll(z)
}

func loadRecordings(t testing.TB) []*frameRecord {
	t.Helper()
	all, err := recordings()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		t.Fatal("no recordings")
	}
	return all
}

// javaForm matches a header that upstream's encoder wrote: its members are in
// the order of their names.
var javaForm = regexp.MustCompile(`^\{"code":.*,"serializeTypeCurrentRPC":"JSON","version":\d+\}$`)

// TestRecordedFrames decodes every recorded frame, compares it with what the
// recorder made of it, encodes it again and compares that: byte by byte where
// a Java program wrote it, decoded otherwise.
func TestRecordedFrames(t *testing.T) {
	var frames, same, decoded, refused int
	for _, r := range loadRecordings(t) {
		if r.Kind == "close" || r.Raw == "" {
			continue
		}
		frames++
		raw := r.raw(t)
		c, n, err := DecodeFrame(raw)
		if r.Kind == "undecodable" {
			if err == nil {
				t.Errorf("%s:%d: decoded %v, want an error", r.file, r.line, c)
			}
			refused++
			continue
		}
		if err != nil {
			t.Errorf("%s:%d: %v", r.file, r.line, err)
			continue
		}
		if n != len(raw) {
			t.Errorf("%s:%d: consumed %d of %d bytes", r.file, r.line, n, len(raw))
		}
		compareRecord(t, r, c)
		again, err := AppendFrame(nil, c)
		if err != nil {
			t.Errorf("%s:%d: encode: %v", r.file, r.line, err)
			continue
		}
		want := raw
		header := raw[prefixLen : len(raw)-len(c.Body)]
		if javaForm.Match(header) && !bytes.Contains(header, []byte(`"remark":""`)) {
			if c.IsResponse() {
				want = withoutType(t, raw)
			}
			if !bytes.Equal(again, want) {
				t.Errorf("%s:%d: encoded\n%q, want\n%q", r.file, r.line, again, want)
			}
			same++
		} else if c.Header == HeaderBinary {
			if !bytes.Equal(again, want) {
				t.Errorf("%s:%d: encoded\n%q, want\n%q", r.file, r.line, again, want)
			}
			same++
		}
		c2, _, err := DecodeFrame(again)
		if err != nil {
			t.Errorf("%s:%d: decode again: %v", r.file, r.line, err)
			continue
		}
		if c2.Language != c.Language && c.Language != LanguageUnknown {
			t.Errorf("%s:%d: language %v, want %v", r.file, r.line, c2.Language, c.Language)
		}
		c2.Language = c.Language
		if diff := diffCommands(c, c2); diff != "" {
			t.Errorf("%s:%d: decoded again differs (-first +second):\n%s", r.file, r.line, diff)
		}
		decoded++
	}
	t.Logf("%d frames with bytes: %d decoded, %d of them encoded to the same bytes, %d refused", frames, decoded, same, refused)
	if frames < 16_000 || same < 15_000 || refused == 0 {
		t.Errorf("%d frames, %d the same, %d refused: recordings are missing", frames, same, refused)
	}
}

// withoutType takes the name of the encoding, which our answers leave out, from
// a frame with a JSON header.
func withoutType(t *testing.T, frame []byte) []byte {
	t.Helper()
	const text = `,"serializeTypeCurrentRPC":"JSON"`
	h, err := parseHead(frame)
	if err != nil {
		t.Fatal(err)
	}
	header := string(frame[prefixLen : prefixLen+h.headerLen])
	i := strings.LastIndex(header, text)
	if i < 0 {
		t.Fatalf("no %s in %s", text, header)
	}
	return rawFrame(HeaderJSON, header[:i]+header[i+len(text):], frame[prefixLen+h.headerLen:])
}

func compareRecord(t *testing.T, r *frameRecord, c *Command) {
	t.Helper()
	type header struct {
		Code, Opaque, Flag, Version int32
		Remark                      string
		Type                        string
		Language                    string
		Body                        int
	}
	want := header{Code: r.Code, Opaque: r.Opaque, Flag: r.Flag, Version: r.Version, Type: r.SerializeType, Language: r.Language, Body: r.BodyLen}
	if r.Remark != nil {
		want.Remark = *r.Remark
	}
	got := header{c.Code, c.Opaque, c.Flag, c.Version, c.Remark, c.Header.String(), c.Language.String(), len(c.Body)}
	if c.Language == LanguageUnknown {
		got.Language = r.Language
	}
	if got != want {
		t.Errorf("%s:%d: got\n%+v, want\n%+v", r.file, r.line, got, want)
	}
	fields := r.fields(t)
	if c.Header == HeaderBinary { // which has no empty values, and cannot tell none from empty
		var kept Fields
		for _, f := range fields {
			if f.Value != "" {
				kept = append(kept, f)
			}
		}
		fields = kept
	}
	if diff := diffFields(fields, c.Ext); diff != "" {
		t.Errorf("%s:%d: ext fields (-want +got):\n%s", r.file, r.line, diff)
	}
	if body := r.body(t); body != nil && len(body) == len(c.Body) && !bytes.Equal(body, c.Body) && r.BodyText != nil {
		t.Errorf("%s:%d: body %q, want %q", r.file, r.line, c.Body, body)
	}
}
