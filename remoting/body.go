package remoting

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// A Body is the JSON body of one kind of command as a struct. As with Header,
// one method names the members for both directions.
//
// What is written is compact, members in the order of their names, keys of
// maps that are integers in quotes, keys that are message queues as bare
// objects: the one form that the clients of every version read. What is read
// may have integer keys without quotes, numbers in quotes, enums by name or by
// ordinal, and white space around it. Members that are not known are skipped;
// those that are missing or null have the default of their type.
type Body interface {
	members(o *object)
}

// AppendBody appends b as JSON.
func AppendBody(dst []byte, b Body) []byte {
	o := object{out: &dst}
	o.write(b)
	return dst
}

// EncodeBody returns b as JSON.
func EncodeBody(b Body) []byte { return AppendBody(nil, b) }

var errNoBody = errors.New("the body is empty")

// DecodeBody fills b, which must be new, from JSON. It refuses more than
// MaxNesting levels, MaxMembers members of an object, and elements that would
// take more than MaxExpansion times the memory of the JSON. The error says in
// which member it was.
func DecodeBody(data []byte, b Body) error {
	i := skipSpace(data, 0)
	if i == len(data) {
		return errNoBody
	}
	end, err := valueEnd(data, i, 0)
	if err == nil {
		err = atEnd(data, end)
	}
	if err != nil {
		return fmt.Errorf("body: %w", err)
	}
	r := bodyReader{left: MaxExpansion*len(data) + freeExpansion}
	if err := r.object(data[i:end], b); err != nil {
		return fmt.Errorf("body: %w", err)
	}
	return nil
}

// RawJSON is JSON that is passed on as it came. It is kept as part of the body
// that was decoded.
type RawJSON []byte

// An object reads or writes the members of one JSON object.
type object struct {
	// Writing.
	out *[]byte // nil: reading
	any bool    // a member has been written

	// Reading.
	found  []member
	reader *bodyReader
	err    error
}

type member struct{ name, value []byte } // name without quotes

// A bodyReader is what the objects of one body share while it is read.
type bodyReader struct {
	left  int      // bytes that elements may still take
	stack []member // members of the objects that are being read
}

func (o *object) write(b Body) {
	outer := o.any
	o.any = false
	*o.out = append(*o.out, '{')
	b.members(o)
	*o.out = append(*o.out, '}')
	o.any = outer
}

// object fills b from the object v, whose syntax has been checked.
func (r *bodyReader) object(v []byte, b Body) error {
	if d, ok := b.(withDefaults); ok {
		d.setDefaults()
	}
	if v[0] != '{' {
		return fmt.Errorf("%s instead of an object", kindOf(v))
	}
	base := len(r.stack)
	defer func() { r.stack = r.stack[:base] }()
	_, err := eachMember(v, 0, 0, func(name, value []byte) error {
		if len(r.stack) == base+MaxMembers {
			return fmt.Errorf("more than %d members", MaxMembers)
		}
		r.stack = append(r.stack, member{plainName(name), value})
		return nil
	})
	if err != nil {
		return err
	}
	o := object{reader: r, found: r.stack[base:len(r.stack):len(r.stack)]}
	b.members(&o)
	return o.err
}

// take counts the memory of an element, apart from its text, against the bound
// of a body: small JSON must not make much of it.
func (r *bodyReader) take(size int) error {
	if r.left -= size; r.left < 0 {
		return fmt.Errorf("elements take more than %d times the body", MaxExpansion)
	}
	return nil
}

// What elements take, about.
const (
	textSize  = 16
	int32Size = 4
	int64Size = 8
	entrySize = 16 // of a map, besides key and value
)

func sizeOf[T any]() int { return int(reflect.TypeFor[T]().Size()) }

// withDefaults is a Body whose missing members are not zero.
type withDefaults interface{ setDefaults() }

// plainName returns what a member name stands for.
func plainName(name []byte) []byte {
	if name[0] != '"' {
		return name
	}
	if slices.Contains(name, '\\') {
		if plain, err := unquote(nil, name); err == nil {
			return plain
		}
	}
	return name[1 : len(name)-1]
}

func kindOf(v []byte) string {
	switch v[0] {
	case '{':
		return "an object"
	case '[':
		return "a list"
	case '"':
		return "text"
	case 't', 'f':
		return "a boolean"
	case 'n':
		return "null"
	}
	return "a number"
}

// get returns the value of a member, nil if it is missing or null. Of several
// members with one name the last counts.
func (o *object) get(name string) []byte {
	if o.err != nil {
		return nil
	}
	for i := len(o.found) - 1; i >= 0; i-- {
		if string(o.found[i].name) == name {
			if v := o.found[i].value; v[0] != 'n' {
				return v
			}
			return nil
		}
	}
	return nil
}

func (o *object) fail(name string, err error) {
	if o.err == nil && err != nil {
		o.err = fmt.Errorf("%s: %w", name, err)
	}
}

// key writes the name of a member.
func (o *object) key(name string) {
	if o.any {
		*o.out = append(*o.out, ',')
	}
	o.any = true
	*o.out = appendQuoted(*o.out, name)
	*o.out = append(*o.out, ':')
}

func readText(v []byte) (string, error) {
	switch v[0] {
	case '"':
		for _, c := range v {
			if c == '\\' || c >= 0x80 {
				text, err := unquote(nil, v)
				return string(text), err
			}
		}
		return string(v[1 : len(v)-1]), nil
	case '{', '[':
		return "", fmt.Errorf("%s instead of text", kindOf(v))
	}
	return string(v), nil
}

func readInt(v []byte, bits uint) (int64, error) {
	if v[0] == '"' {
		v = v[1 : len(v)-1]
	}
	n, ok := parseInt(v, bits)
	if !ok {
		return 0, fmt.Errorf("%.40q is not a %d-bit integer", v, bits)
	}
	return n, nil
}

func readInt64(v []byte) (int64, error) { return readInt(v, 64) }

func readBool(v []byte) (bool, error) {
	if v[0] == '"' {
		v = v[1 : len(v)-1]
	}
	switch {
	case isTrue(string(v)):
		return true, nil
	case strings.EqualFold(string(v), "false"):
		return false, nil
	}
	return false, fmt.Errorf("%.40q is not a boolean", v)
}

// str is a text that is always written.
func (o *object) str(name string, p *string) {
	if o.out != nil {
		o.key(name)
		*o.out = appendQuoted(*o.out, *p)
	} else if v := o.get(name); v != nil {
		s, err := readText(v)
		o.fail(name, err)
		*p = s
	}
}

// optStr is a text that is written unless it is empty.
func (o *object) optStr(name string, p *string) {
	if o.out == nil || *p != "" {
		o.str(name, p)
	}
}

func (o *object) i32(name string, p *int32) {
	if o.out != nil {
		o.key(name)
		*o.out = strconv.AppendInt(*o.out, int64(*p), 10)
	} else if v := o.get(name); v != nil {
		n, err := readInt(v, 32)
		o.fail(name, err)
		*p = int32(n)
	}
}

func (o *object) i64(name string, p *int64) {
	if o.out != nil {
		o.key(name)
		*o.out = strconv.AppendInt(*o.out, *p, 10)
	} else if v := o.get(name); v != nil {
		n, err := readInt(v, 64)
		o.fail(name, err)
		*p = n
	}
}

func (o *object) boolean(name string, p *bool) {
	if o.out != nil {
		o.key(name)
		*o.out = strconv.AppendBool(*o.out, *p)
	} else if v := o.get(name); v != nil {
		b, err := readBool(v)
		o.fail(name, err)
		*p = b
	}
}

func (o *object) f64(name string, p *float64) {
	if o.out != nil {
		o.key(name)
		*o.out = appendDouble(*o.out, *p)
	} else if v := o.get(name); v != nil {
		if v[0] == '"' {
			v = v[1 : len(v)-1]
		}
		f, err := strconv.ParseFloat(string(v), 64)
		o.fail(name, err)
		*p = f
	}
}

// appendDouble appends f as Java prints a double, at least where exponents are
// not needed: with a point. JSON has no NaN and no infinity; they become 0.
func appendDouble(dst []byte, f float64) []byte {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		f = 0
	}
	start := len(dst)
	dst = strconv.AppendFloat(dst, f, 'g', -1, 64)
	for _, c := range dst[start:] {
		if c == '.' || c == 'e' {
			return dst
		}
	}
	return append(dst, '.', '0')
}

// raw is JSON that is passed on; written unless it is nil.
func (o *object) raw(name string, p *RawJSON) {
	if o.out == nil {
		if v := o.get(name); v != nil {
			*p = v
		}
	} else if *p != nil {
		o.key(name)
		*o.out = append(*o.out, *p...)
	}
}

// obj is an object that is always written.
func (o *object) obj(name string, b Body) {
	if o.out != nil {
		o.key(name)
		o.write(b)
		return
	}
	if v := o.get(name); v != nil {
		o.fail(name, o.reader.object(v, b))
	}
}

// pointerTo constrains P to a pointer to T that is a Body.
type pointerTo[T any] interface {
	*T
	Body
}

// optObj is an object that is written unless p is nil.
func optObj[T any, P pointerTo[T]](o *object, name string, p *P) {
	if o.out == nil {
		if v := o.get(name); v != nil {
			*p = new(T)
			o.fail(name, o.reader.object(v, *p))
		}
	} else if *p != nil {
		o.obj(name, *p)
	}
}

// enum is one of names, read by name or ordinal; -1 is none of them and is not
// written.
func enum[E ~int8](o *object, name string, p *E, names []string) {
	if o.out != nil {
		if i := int(*p); i >= 0 && i < len(names) {
			o.key(name)
			*o.out = appendQuoted(*o.out, names[i])
		}
		return
	}
	v := o.get(name)
	if v == nil {
		return
	}
	*p = -1
	if v[0] == '"' {
		text := string(v[1 : len(v)-1])
		if i := slices.Index(names, text); i >= 0 {
			*p = E(i)
			return
		}
	}
	if n, err := readInt(v, 32); err == nil && n >= 0 && n < int64(len(names)) {
		*p = E(n)
	}
}

// language is a Language by name or ordinal.
func (o *object) language(name string, p *Language) {
	if o.out != nil {
		o.key(name)
		*o.out = appendQuoted(*o.out, p.String())
		return
	}
	*p = LanguageUnknown
	if v := o.get(name); v == nil {
		return
	} else if n, err := readInt(v, 32); err == nil {
		*p = languageOf(n)
	} else if v[0] == '"' {
		*p = ParseLanguage(string(v[1 : len(v)-1]))
	}
}
