package check

import (
	"bytes"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// The limits of the JSON parser. Genuine files nest 6 levels; the largest ones,
// offsets of 100 000 queues, have some 10 MB.
const (
	maxJSONDepth  = 32
	maxJSONString = 1 << 20
	maxJSONSize   = 64 << 20
)

// jsonKind is the type of a JSON value.
type jsonKind uint8

const (
	jsonNull jsonKind = iota
	jsonBool
	jsonNumber
	jsonString
	jsonObject
	jsonArray
)

// jsonValue is a value met by parseJSON. Objects and arrays are met when they
// begin; their members follow.
type jsonValue struct {
	kind   jsonKind
	offset int64  // in the file
	text   string // of a string, unescaped; of a number or bool, as it stands
}

// integer returns the value of a number without fraction and exponent.
func (v jsonValue) integer() (int64, bool) {
	if v.kind != jsonNumber {
		return 0, false
	}
	n, err := strconv.ParseInt(v.text, 10, 64)
	return n, err == nil
}

// jsonError is a syntax error.
type jsonError struct {
	offset int64
	reason string
}

func (e *jsonError) Error() string { return fmt.Sprintf("%s at offset %d", e.reason, e.offset) }

// parseJSON reads the JSON dialect of RocketMQ's configuration files (section
// 14.1): plain JSON, with keys that may be bare integers. visit is called for
// every value in order; path holds the keys that lead to it, "" for the items
// of arrays, and is valid during the call. Nothing is kept of the file, so
// memory depends on depth and the longest string only.
func parseJSON(data []byte, visit func(path []string, v jsonValue)) error {
	p := &jsonParser{data: data, visit: visit}
	p.space()
	if err := p.value(); err != nil {
		return err
	}
	p.space()
	if p.at < len(p.data) {
		return p.fail("data behind the value")
	}
	return nil
}

type jsonParser struct {
	data  []byte
	at    int
	path  []string
	visit func([]string, jsonValue)
}

func (p *jsonParser) fail(format string, args ...any) error {
	return &jsonError{int64(p.at), fmt.Sprintf(format, args...)}
}

func (p *jsonParser) space() {
	for p.at < len(p.data) {
		switch p.data[p.at] {
		case ' ', '\t', '\r', '\n':
			p.at++
		default:
			return
		}
	}
}

// peek returns the next byte, 0 at the end.
func (p *jsonParser) peek() byte {
	if p.at < len(p.data) {
		return p.data[p.at]
	}
	return 0
}

func (p *jsonParser) found() string {
	if p.at >= len(p.data) {
		return "the end of the file"
	}
	return fmt.Sprintf("%q", p.data[p.at])
}

func (p *jsonParser) value() error {
	start := int64(p.at)
	switch c := p.peek(); {
	case c == '{':
		return p.object(start)
	case c == '[':
		return p.array(start)
	case c == '"':
		s, err := p.str()
		if err == nil {
			p.visit(p.path, jsonValue{jsonString, start, s})
		}
		return err
	case c == '-' || c >= '0' && c <= '9':
		s, err := p.number()
		if err == nil {
			p.visit(p.path, jsonValue{jsonNumber, start, s})
		}
		return err
	}
	for _, w := range []struct {
		word string
		kind jsonKind
	}{{"true", jsonBool}, {"false", jsonBool}, {"null", jsonNull}} {
		if bytes.HasPrefix(p.data[p.at:], []byte(w.word)) {
			p.at += len(w.word)
			p.visit(p.path, jsonValue{w.kind, start, w.word})
			return nil
		}
	}
	return p.fail("%s instead of a value", p.found())
}

// enter goes one level down.
func (p *jsonParser) enter() error {
	if len(p.path) >= maxJSONDepth {
		return p.fail("more than %d levels", maxJSONDepth)
	}
	p.at++
	p.path = append(p.path, "")
	p.space()
	return nil
}

func (p *jsonParser) leave() {
	p.at++
	p.path = p.path[:len(p.path)-1]
}

func (p *jsonParser) object(start int64) error {
	p.visit(p.path, jsonValue{kind: jsonObject, offset: start})
	if err := p.enter(); err != nil {
		return err
	}
	for first := true; ; first = false {
		if p.peek() == '}' {
			p.leave()
			return nil
		}
		if !first {
			if p.peek() != ',' {
				return p.fail("%s instead of a comma or brace", p.found())
			}
			p.at++
			p.space()
		}
		key, err := p.key()
		if err != nil {
			return err
		}
		if key == "$ref" {
			return p.fail("a reference ($ref), which is not supported")
		}
		p.space()
		if p.peek() != ':' {
			return p.fail("%s instead of a colon", p.found())
		}
		p.at++
		p.space()
		p.path[len(p.path)-1] = key
		if err := p.value(); err != nil {
			return err
		}
		p.space()
	}
}

// key reads a member's name: a string, or an integer without quotes.
func (p *jsonParser) key() (string, error) {
	c := p.peek()
	if c == '"' {
		return p.str()
	}
	if c != '-' && (c < '0' || c > '9') {
		return "", p.fail("%s instead of a key", p.found())
	}
	start := p.at
	p.at++
	for p.peek() >= '0' && p.peek() <= '9' {
		p.at++
	}
	key := string(p.data[start:p.at])
	if _, err := strconv.ParseInt(key, 10, 64); err != nil {
		p.at = start
		return "", p.fail("a bare key that is no integer")
	}
	return key, nil
}

func (p *jsonParser) array(start int64) error {
	p.visit(p.path, jsonValue{kind: jsonArray, offset: start})
	if err := p.enter(); err != nil {
		return err
	}
	for first := true; ; first = false {
		if p.peek() == ']' {
			p.leave()
			return nil
		}
		if !first {
			if p.peek() != ',' {
				return p.fail("%s instead of a comma or bracket", p.found())
			}
			p.at++
			p.space()
		}
		p.path[len(p.path)-1] = ""
		if err := p.value(); err != nil {
			return err
		}
		p.space()
	}
}

func (p *jsonParser) number() (string, error) {
	start := p.at
	if p.peek() == '-' {
		p.at++
	}
	digits := func() bool {
		from := p.at
		for p.peek() >= '0' && p.peek() <= '9' {
			p.at++
		}
		return p.at > from
	}
	if !digits() {
		return "", p.fail("%s instead of a digit", p.found())
	}
	if p.peek() == '.' {
		p.at++
		if !digits() {
			return "", p.fail("%s instead of a digit", p.found())
		}
	}
	if c := p.peek(); c == 'e' || c == 'E' {
		p.at++
		if c := p.peek(); c == '+' || c == '-' {
			p.at++
		}
		if !digits() {
			return "", p.fail("%s instead of a digit", p.found())
		}
	}
	if p.at-start > 400 {
		return "", p.fail("a number of %d characters", p.at-start)
	}
	return string(p.data[start:p.at]), nil
}

func (p *jsonParser) str() (string, error) {
	p.at++
	start := p.at
	var out []byte // nil while nothing was escaped
	for {
		if p.at >= len(p.data) {
			return "", p.fail("a string that does not end")
		}
		if p.at-start > maxJSONString {
			return "", p.fail("a string of more than %d bytes", maxJSONString)
		}
		switch c := p.data[p.at]; c {
		case '"':
			s := out
			if s == nil {
				s = p.data[start:p.at]
			}
			p.at++
			return string(s), nil
		case '\\':
			if out == nil {
				out = append([]byte{}, p.data[start:p.at]...)
			}
			var err error
			if out, err = p.escape(out); err != nil {
				return "", err
			}
		default:
			if c < ' ' && c != '\t' {
				return "", p.fail("control character %#02x in a string", c)
			}
			if out != nil {
				out = append(out, c)
			}
			p.at++
		}
	}
}

// escape reads an escape sequence at p.at.
func (p *jsonParser) escape(out []byte) ([]byte, error) {
	p.at++
	c := p.peek()
	const from, to = `"\/bfnrtv0'`, "\"\\/\b\f\n\r\t\v\x00'"
	if i := bytes.IndexByte([]byte(from), c); i >= 0 && p.at < len(p.data) {
		p.at++
		return append(out, to[i]), nil
	}
	if c != 'u' {
		return nil, p.fail("%s behind a backslash", p.found())
	}
	r, ok := p.hex4(p.at + 1)
	if !ok {
		return nil, p.fail(`\u without four digits`)
	}
	p.at += 5
	if utf16.IsSurrogate(r) {
		low, ok := rune(0), false
		if bytes.HasPrefix(p.data[p.at:], []byte(`\u`)) {
			low, ok = p.hex4(p.at + 2)
		}
		if pair := utf16.DecodeRune(r, low); ok && pair != utf8.RuneError {
			p.at += 6
			return utf8.AppendRune(out, pair), nil
		}
		r = utf8.RuneError
	}
	return utf8.AppendRune(out, r), nil
}

func (p *jsonParser) hex4(at int) (rune, bool) {
	if at+4 > len(p.data) {
		return 0, false
	}
	n, err := strconv.ParseUint(string(p.data[at:at+4]), 16, 16)
	return rune(n), err == nil
}
