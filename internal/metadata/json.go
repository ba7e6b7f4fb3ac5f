package metadata

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"

	"github.com/gantrymq/gantry/remoting"
)

// maxUnknown bounds the members of an object that are kept without being
// known.
const maxUnknown = 256

// errCut cannot come from JSON that is well-formed.
var errCut = errors.New("the JSON ends early")

// eachMember calls fn with the members of obj, a JSON object that
// encoding/json has found well-formed, in their order. Values alias obj.
func eachMember(obj []byte, fn func(name string, value []byte) error) error {
	i := skipSpace(obj, 0)
	if i == len(obj) || obj[i] != '{' {
		return fmt.Errorf("%s instead of an object", kindOf(obj))
	}
	for i++; ; i++ {
		if i = skipSpace(obj, i); i < len(obj) && obj[i] == '}' {
			return nil
		}
		end := stringEnd(obj, i)
		if end < 0 {
			return errCut
		}
		name, err := textOf(obj[i:end])
		if err != nil {
			return err
		}
		if name == "$ref" {
			return errors.New(`a reference to another object ("$ref"), which is not supported`)
		}
		i = skipSpace(obj, skipSpace(obj, end)+1) // the colon
		if end = valueEnd(obj, i); end < 0 {
			return errCut
		}
		if err := fn(name, obj[i:end]); err != nil {
			return err
		}
		if i = skipSpace(obj, end); i >= len(obj) {
			return errCut
		}
		if obj[i] == '}' {
			return nil
		}
	}
}

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\n' || b[i] == '\r') {
		i++
	}
	return i
}

// stringEnd returns the offset behind the string at i, or -1.
func stringEnd(b []byte, i int) int {
	if i >= len(b) || b[i] != '"' {
		return -1
	}
	for i++; i < len(b); i++ {
		switch b[i] {
		case '\\':
			i++
		case '"':
			return i + 1
		}
	}
	return -1
}

// valueEnd returns the offset behind the value at i, or -1.
func valueEnd(b []byte, i int) int {
	if i < len(b) && b[i] == '"' {
		return stringEnd(b, i)
	}
	start, depth := i, 0
	for i < len(b) {
		switch b[i] {
		case '"':
			if i = stringEnd(b, i); i < 0 {
				return -1
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			if depth == 0 {
				return scalarEnd(start, i)
			}
			if depth--; depth == 0 {
				return i + 1
			}
		case ',', ' ', '\t', '\n', '\r':
			if depth == 0 {
				return scalarEnd(start, i)
			}
		}
		i++
	}
	return -1
}

func scalarEnd(start, end int) int {
	if start == end {
		return -1
	}
	return end
}

// textOf returns what a JSON string stands for.
func textOf(v []byte) (string, error) {
	if len(v) >= 2 && v[0] == '"' && isPlain(v[1:len(v)-1]) {
		return string(v[1 : len(v)-1]), nil
	}
	var s string
	err := json.Unmarshal(v, &s)
	return s, err
}

// isPlain reports whether the bytes of a string stand for themselves in JSON.
func isPlain[T []byte | string](s T) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

func kindOf(v []byte) string {
	if i := skipSpace(v, 0); i < len(v) {
		switch v[i] {
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
	return "nothing"
}

func isNull(v []byte) bool { return len(v) > 0 && v[0] == 'n' }

// intOf reads an integer, with or without quotes.
func intOf(v []byte, bits int) (int64, error) {
	if len(v) >= 2 && v[0] == '"' {
		v = v[1 : len(v)-1]
	}
	n, err := strconv.ParseInt(string(v), 10, bits)
	if err != nil {
		return 0, fmt.Errorf("%.40q is not a %d-bit integer", v, bits)
	}
	return n, nil
}

// in names the member in which an error is.
func in(name string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%.100q: %w", name, err)
}

// versionOf reads a DataVersion.
func versionOf(v []byte) (remoting.DataVersion, error) {
	var version remoting.DataVersion
	if isNull(v) {
		return version, nil
	}
	err := remoting.DecodeBody(v, &version)
	return version, err
}

// unknown are members that are kept for the next writing.
type unknown map[string]json.RawMessage

func (u *unknown) keep(name string, value []byte) error {
	if *u == nil {
		*u = make(unknown)
	}
	(*u)[name] = slices.Clone(value)
	if len(*u) > maxUnknown {
		return fmt.Errorf("more than %d unknown members", maxUnknown)
	}
	return nil
}

// appendTo adds the members to the object that dst ends with.
func (u unknown) appendTo(dst []byte) []byte {
	if len(u) == 0 {
		return dst
	}
	dst = dst[:len(dst)-1] // the brace
	for _, name := range sortedKeys(u) {
		dst = append(appendName(dst, name), u[name]...)
	}
	return append(dst, '}')
}

// appendName begins a member of the object that dst ends in.
func appendName(dst []byte, name string) []byte {
	if dst[len(dst)-1] != '{' {
		dst = append(dst, ',')
	}
	return append(appendText(dst, name), ':')
}

func appendText(dst []byte, s string) []byte {
	if isPlain(s) {
		return append(append(append(dst, '"'), s...), '"')
	}
	b, err := json.Marshal(s)
	if err != nil {
		panic(err) // a string can be written
	}
	return append(dst, b...)
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// eachInt calls fn with the integers of a list.
func eachInt(list []byte, fn func(int64) error) error {
	i := skipSpace(list, 0)
	if i == len(list) || list[i] != '[' {
		return fmt.Errorf("%s instead of a list", kindOf(list))
	}
	for i++; ; i++ {
		if i = skipSpace(list, i); i < len(list) && list[i] == ']' {
			return nil
		}
		end := valueEnd(list, i)
		if end < 0 {
			return errCut
		}
		n, err := intOf(list[i:end], 32)
		if err != nil {
			return err
		}
		if err := fn(n); err != nil {
			return err
		}
		if i = skipSpace(list, end); i >= len(list) {
			return errCut
		}
		if list[i] == ']' {
			return nil
		}
	}
}
