package broker

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/remoting"
)

// A frameRecord is one line of a recording; testdata/wire/README.md describes it.
type frameRecord struct {
	where string // file:line

	Ms            int64           `json:"t_ms"`
	Conn          string          `json:"conn"`
	Peer          string          `json:"peer"`
	Dir           string          `json:"dir"`
	Kind          string          `json:"kind"`
	Code          int32           `json:"code"`
	ReqCode       *int32          `json:"reqCode"`
	Opaque        int32           `json:"opaque"`
	Flag          int32           `json:"flag"`
	Language      string          `json:"language"`
	Version       int32           `json:"version"`
	SerializeType string          `json:"serializeType"`
	Remark        string          `json:"remark"`
	ExtFields     json.RawMessage `json:"extFields"`
	BodyLen       int             `json:"bodyLen"`
	Body          json.RawMessage `json:"body"`
	BodyText      *string         `json:"bodyText"`
	Truncated     bool            `json:"truncated"`
	Raw           string          `json:"raw"`

	ext remoting.Fields
}

const wireDir = "../testdata/wire"

func readGzip(t testing.TB, file string) []byte {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// loadRecording reads a recording.
func loadRecording(t testing.TB, file string) []*frameRecord {
	t.Helper()
	var all []*frameRecord
	var err error
	s := bufio.NewScanner(bytes.NewReader(readGzip(t, file)))
	s.Buffer(nil, 64<<20)
	for n := 1; s.Scan(); n++ {
		if len(bytes.TrimSpace(s.Bytes())) == 0 {
			continue
		}
		r := &frameRecord{where: fmt.Sprintf("%s:%d", strings.TrimSuffix(filepath.Base(file), ".ndjson.gz"), n)}
		if err := json.Unmarshal(s.Bytes(), r); err != nil {
			t.Fatalf("%s: %v", r.where, err)
		}
		if r.ext, err = decodeExt(r.ExtFields); err != nil {
			t.Fatalf("%s: %v", r.where, err)
		}
		all = append(all, r)
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// decodeExt returns recorded ext fields in order, as text.
func decodeExt(data json.RawMessage) (remoting.Fields, error) {
	if len(data) == 0 || string(data) == "null" {
		return nil, nil
	}
	f := remoting.Fields{}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return nil, err
		}
		v, err := dec.Token()
		if err != nil {
			return nil, err
		}
		if v != nil {
			f.Set(name.(string), fmt.Sprint(v))
		}
	}
	return f, nil
}

// content is the body; of a long one that is not text only the beginning is
// there, and whole says false.
func (r *frameRecord) content(t testing.TB) (data []byte, whole bool) {
	t.Helper()
	switch {
	case r.BodyText != nil:
		return []byte(*r.BodyText), !r.Truncated
	case len(r.Body) == 0 || string(r.Body) == "null":
		return nil, true
	case r.Body[0] == '"':
		var s string
		if err := json.Unmarshal(r.Body, &s); err != nil {
			t.Fatal(err)
		}
		b, err := base64.StdEncoding.DecodeString(s)
		if err != nil {
			t.Fatalf("%s: %v", r.where, err)
		}
		return b, !r.Truncated
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, r.Body); err != nil {
		t.Fatal(err)
	}
	return compact.Bytes(), !r.Truncated
}

// command returns the frame as a command. What was not kept of a long body is
// made up.
func (r *frameRecord) command(t testing.TB) *remoting.Command {
	t.Helper()
	if r.Raw != "" {
		b, err := hex.DecodeString(r.Raw)
		if err != nil {
			t.Fatal(err)
		}
		c, _, err := remoting.DecodeFrame(b)
		if err != nil {
			t.Fatalf("%s: %v", r.where, err)
		}
		return c
	}
	body, whole := r.content(t)
	if !whole {
		body = append(body, bytes.Repeat([]byte{'x'}, r.BodyLen-len(body))...)
	}
	c := &remoting.Command{
		Code: r.Code, Language: remoting.ParseLanguage(r.Language), Version: r.Version, Opaque: r.Opaque, Flag: r.Flag,
		Remark: r.Remark, Ext: r.ext, Body: body,
	}
	if r.SerializeType == "ROCKETMQ" {
		c.Header = remoting.HeaderBinary
	}
	return c
}

// A node is a JSON value as far as it is compared.
type node struct {
	scalar  string           // with its quotes; "" of the others
	members map[string]*node // of an object; a map that is keyed by data has "*" only
	items   []*node          // of a list
	isList  bool
}

// dataMaps are members that are keyed by data; so is what has a number or an
// object for a key.
var dataMaps = map[string]bool{
	"offsetTable": true, "topicConfigTable": true, "subscriptionGroupTable": true, "consumerTable": true, "mqTable": true,
	"subscriptionTable": true, "statusTable": true, "data": true, "forbiddenTable": true, "messageQueueTable": true,
}

// parseJSON reads JSON as fastjson writes it: keys may be numbers and objects.
func parseJSON(text string) (n *node, err error) {
	p := &jsonParser{s: text}
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%v at %d of %q", r, p.at, text)
		}
	}()
	n = p.value("")
	if p.space(); p.at != len(text) {
		panic("more than one value")
	}
	return n, nil
}

type jsonParser struct {
	s  string
	at int
}

func (p *jsonParser) space() {
	for p.at < len(p.s) && strings.ContainsRune(" \t\r\n", rune(p.s[p.at])) {
		p.at++
	}
}

func (p *jsonParser) next() byte {
	p.space()
	if p.at == len(p.s) {
		panic("end")
	}
	return p.s[p.at]
}

func (p *jsonParser) value(name string) *node {
	switch c := p.next(); c {
	case '{':
		return p.object(name)
	case '[':
		p.at++
		n := &node{isList: true}
		for p.next() != ']' {
			n.items = append(n.items, p.value(""))
			if p.next() == ',' {
				p.at++
			}
		}
		p.at++
		return n
	default:
		return &node{scalar: p.scalar()}
	}
}

func (p *jsonParser) scalar() string {
	from := p.at
	if p.next() == '"' {
		from = p.at
		for p.at++; p.s[p.at] != '"'; p.at++ {
			if p.s[p.at] == '\\' {
				p.at++
			}
		}
		p.at++
		return p.s[from:p.at]
	}
	for p.at < len(p.s) && !strings.ContainsRune(",:]} \t\r\n", rune(p.s[p.at])) {
		p.at++
	}
	if p.at == from {
		panic("no value")
	}
	return p.s[from:p.at]
}

func (p *jsonParser) object(name string) *node {
	p.at++
	n := &node{members: make(map[string]*node)}
	byData := dataMaps[name]
	for p.next() != '}' {
		key := ""
		if p.next() == '{' {
			p.object("")
			byData = true
		} else if key = p.scalar(); key[0] == '"' {
			key = key[1 : len(key)-1]
			byData = byData || key[0] >= '0' && key[0] <= '9' || key[0] == '{'
		} else {
			byData = true
		}
		if p.next() != ':' {
			panic("no colon")
		}
		p.at++
		v := p.value(key)
		if byData {
			key = "*"
		}
		n.members[key] = v
		if p.next() == ',' {
			p.at++
		}
	}
	p.at++
	return n
}
