package remoting

import (
	"fmt"
	"strconv"
	"sync"
)

// A Header is the ext fields of one kind of command as a struct (upstream:
// CommandCustomHeader). RequestHeader and ResponseHeader know which command
// has which.
//
// The two methods of every header are one: fields names each field with its
// type once, and reading and writing both follow it.
type Header interface {
	fields(v *fieldVisitor)
}

// FieldError says which ext field of a command is missing or malformed. A
// handler that returns it answers SYSTEM_ERROR with its text.
type FieldError struct {
	Name    string
	Value   string // as sent; cut to some length
	Missing bool
	Want    string // "a 32-bit integer"
}

func (e *FieldError) Error() string {
	if e.Missing {
		return fmt.Sprintf("ext field %s is missing", e.Name)
	}
	return fmt.Sprintf("ext field %s: %q is not %s", e.Name, e.Value, e.Want)
}

// DecodeHeader fills h from f. Fields that h does not name are ignored,
// optional ones that are absent get their defaults. The error is a *FieldError
// for the first field that is missing or malformed.
func DecodeHeader(f Fields, h Header) error {
	v := visitors.Get().(*fieldVisitor)
	v.mode, v.in, v.next = fieldsRead, f, 0
	h.fields(v)
	err := v.err
	v.in, v.err = nil, nil
	visitors.Put(v)
	if err != nil {
		return err
	}
	return nil
}

// EncodeHeader returns the fields of h. Optional fields with their default are
// left out. The result is never nil.
func EncodeHeader(h Header) Fields {
	v := visitors.Get().(*fieldVisitor)
	v.mode, v.arena, v.spans = fieldsCollected, v.arena[:0], v.spans[:0]
	h.fields(v)
	numbers := string(v.arena)
	f := make(Fields, len(v.spans))
	for i, s := range v.spans {
		f[i] = Field{s.name, s.value}
		if s.end > 0 {
			f[i].Value = numbers[s.start:s.end]
		}
	}
	clear(v.spans)
	visitors.Put(v)
	return f
}

// appendTyped appends the fields of h as the members of a JSON object.
func appendTyped(dst []byte, h Header) []byte {
	v := visitors.Get().(*fieldVisitor)
	v.mode, v.arena, v.start = fieldsJSON, dst, len(dst)
	h.fields(v)
	dst, v.arena = v.arena, nil
	visitors.Put(v)
	return dst
}

// visitors are reused, since each is passed through an interface and would
// otherwise be garbage of every request.
var visitors = sync.Pool{New: func() any { return new(fieldVisitor) }}

// What a fieldVisitor does with the fields of a header.
const (
	fieldsRead = iota
	fieldsCollected
	fieldsJSON
)

// A fieldVisitor reads or writes the fields of a header.
type fieldVisitor struct {
	mode int

	in   Fields
	next int // where to look first: fields mostly come in the order of the struct
	err  *FieldError

	arena []byte // the text of numbers, or JSON
	start int    // of the JSON in arena
	spans []outField
}

// An outField is a field to be written. Its value is arena[start:end] if end is
// not 0.
type outField struct {
	name, value string
	start, end  int
}

// maxErrorValue bounds what an error message repeats of a malformed value.
const maxErrorValue = 64

// find returns the value of name while reading.
func (v *fieldVisitor) find(name string, mandatory bool) (string, bool) {
	for i := v.next; i < len(v.in); i++ {
		if v.in[i].Name == name {
			v.next = i + 1
			return v.in[i].Value, true
		}
	}
	for i := range min(v.next, len(v.in)) {
		if v.in[i].Name == name {
			v.next = i + 1
			return v.in[i].Value, true
		}
	}
	if mandatory && v.err == nil {
		v.err = &FieldError{Name: name, Missing: true}
	}
	return "", false
}

func (v *fieldVisitor) malformed(name, value, want string) {
	if v.err == nil {
		v.err = &FieldError{Name: name, Value: value[:min(len(value), maxErrorValue)], Want: want}
	}
}

func (v *fieldVisitor) put(name, value string) {
	if v.mode == fieldsJSON {
		v.putName(name)
		v.arena = appendQuoted(v.arena, value)
		return
	}
	v.spans = append(v.spans, outField{name: name, value: value})
}

// putName begins a member. Names of fields need no escapes.
func (v *fieldVisitor) putName(name string) {
	if len(v.arena) > v.start {
		v.arena = append(v.arena, ',')
	}
	v.arena = append(v.arena, '"')
	v.arena = append(v.arena, name...)
	v.arena = append(v.arena, '"', ':')
}

func (v *fieldVisitor) putInt(name string, n int64) {
	if v.mode == fieldsJSON {
		v.putName(name)
		v.arena = append(v.arena, '"')
		v.arena = strconv.AppendInt(v.arena, n, 10)
		v.arena = append(v.arena, '"')
		return
	}
	start := len(v.arena)
	v.arena = strconv.AppendInt(v.arena, n, 10)
	v.spans = append(v.spans, outField{name: name, start: start, end: len(v.arena)})
}

func (v *fieldVisitor) integer(name string, bits uint, mandatory bool) (int64, bool) {
	s, ok := v.find(name, mandatory)
	if !ok || s == "" && !mandatory {
		return 0, false
	}
	n, ok := parseInt(s, bits)
	if !ok {
		want := "a 64-bit integer"
		if bits == 32 {
			want = "a 32-bit integer"
		}
		v.malformed(name, s, want)
	}
	return n, ok
}

// str is a mandatory text.
func (v *fieldVisitor) str(name string, p *string) {
	if v.mode == fieldsRead {
		*p, _ = v.find(name, true)
		return
	}
	v.put(name, *p)
}

// optStr is a text that may be absent, which is the same as empty.
func (v *fieldVisitor) optStr(name string, p *string) {
	if v.mode == fieldsRead {
		*p, _ = v.find(name, false)
	} else if *p != "" {
		v.put(name, *p)
	}
}

// i32 is a mandatory integer.
func (v *fieldVisitor) i32(name string, p *int32) {
	if v.mode == fieldsRead {
		n, _ := v.integer(name, 32, true)
		*p = int32(n)
		return
	}
	v.putInt(name, int64(*p))
}

// optI32 is an integer that may be absent, which is the same as def.
func (v *fieldVisitor) optI32(name string, p *int32, def int32) {
	if v.mode == fieldsRead {
		*p = def
		if n, ok := v.integer(name, 32, false); ok {
			*p = int32(n)
		}
	} else if *p != def {
		v.putInt(name, int64(*p))
	}
}

// i64 is a mandatory integer.
func (v *fieldVisitor) i64(name string, p *int64) {
	if v.mode == fieldsRead {
		*p, _ = v.integer(name, 64, true)
		return
	}
	v.putInt(name, *p)
}

// optI64 is an integer that may be absent, which is the same as def.
func (v *fieldVisitor) optI64(name string, p *int64, def int64) {
	if v.mode == fieldsRead {
		*p = def
		if n, ok := v.integer(name, 64, false); ok {
			*p = n
		}
	} else if *p != def {
		v.putInt(name, *p)
	}
}

// boolean is mandatory. As in Java, "true" in any case is true and every other
// text false.
func (v *fieldVisitor) boolean(name string, p *bool) {
	if v.mode == fieldsRead {
		s, _ := v.find(name, true)
		*p = isTrue(s)
		return
	}
	v.put(name, strconv.FormatBool(*p))
}

// optBool may be absent, which is the same as def.
func (v *fieldVisitor) optBool(name string, p *bool, def bool) {
	if v.mode == fieldsRead {
		*p = def
		if s, ok := v.find(name, false); ok && s != "" {
			*p = isTrue(s)
		}
	} else if *p != def {
		v.put(name, strconv.FormatBool(*p))
	}
}

func isTrue(s string) bool {
	return len(s) == 4 && s[0]|0x20 == 't' && s[1]|0x20 == 'r' && s[2]|0x20 == 'u' && s[3]|0x20 == 'e'
}
