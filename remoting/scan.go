package remoting

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"unicode/utf8"
)

// A JSONError says where JSON text is not what it has to be.
type JSONError struct {
	Offset int // in bytes, within the header or the value that was read
	Reason string
}

func (e *JSONError) Error() string { return fmt.Sprintf("json: offset %d: %s", e.Offset, e.Reason) }

func jsonErrorf(offset int, format string, args ...any) error {
	return &JSONError{Offset: offset, Reason: fmt.Sprintf(format, args...)}
}

// The functions below walk over JSON text b from offset i without building
// anything. They accept what peers send beyond the standard: member names that
// are bare integers or whole objects (fastjson writes the key of a map as its
// raw JSON), and unescaped control characters in strings.

// skipSpace returns the offset of the first byte at or after i that is not
// white space.
func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\r' || b[i] == '\t') {
		i++
	}
	return i
}

// stringEnd returns the offset behind the string that begins at i, and whether
// its bytes stand for themselves: ASCII without escapes.
func stringEnd(b []byte, i int) (end int, plain bool, err error) {
	plain = true
	for j := plainEnd(b, i+1); j < len(b); j = plainEnd(b, j) {
		switch b[j] {
		case '"':
			return j + 1, plain, nil
		case '\\':
			j++
		}
		plain = false
		j++
	}
	return 0, false, jsonErrorf(i, "string does not end")
}

// Every byte of a word.
const (
	eachByte = 0x0101010101010101
	eachHigh = 0x8080808080808080
)

// zeroBytes has the high bit of the first byte of x that is zero, and perhaps of
// bytes behind it, but of none before.
func zeroBytes(x uint64) uint64 { return (x - eachByte) &^ x & eachHigh }

// notPlain has the high bit of the first byte of x that is a quote, a backslash
// or not ASCII, and perhaps of bytes behind it.
func notPlain(x uint64) uint64 {
	return zeroBytes(x^eachByte*'"') | zeroBytes(x^eachByte*'\\') | x&eachHigh
}

// plainEnd returns the offset of the first byte at or after i that is a quote, a
// backslash or not ASCII; len(b) if there is none.
func plainEnd(b []byte, i int) int {
	for ; i+8 <= len(b); i += 8 {
		if m := notPlain(binary.LittleEndian.Uint64(b[i:])); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(b); i++ {
		if !isPlain(b[i]) {
			return i
		}
	}
	return max(i, len(b))
}

// isPlain reports whether c is none of those.
func isPlain(c byte) bool { return c != '"' && c != '\\' && c < utf8.RuneSelf }

// numberEnd returns the offset behind the number that begins at i.
func numberEnd(b []byte, i int) (int, error) {
	digits := func(j int) int {
		for j < len(b) && b[j] >= '0' && b[j] <= '9' {
			j++
		}
		return j
	}
	j := i
	if b[j] == '-' {
		j++
	}
	end := digits(j)
	if end == j {
		return 0, jsonErrorf(i, "unexpected %q", b[i])
	}
	if end < len(b) && b[end] == '.' {
		frac := end + 1
		if end = digits(frac); end == frac {
			return 0, jsonErrorf(i, "number without digits behind the point")
		}
	}
	if end < len(b) && (b[end] == 'e' || b[end] == 'E') {
		exp := end + 1
		if exp < len(b) && (b[exp] == '+' || b[exp] == '-') {
			exp++
		}
		if end = digits(exp); end == exp {
			return 0, jsonErrorf(i, "number without digits in its exponent")
		}
	}
	return end, nil
}

// wordEnd returns the offset behind the literal word at i.
func wordEnd(b []byte, i int, word string) (int, error) {
	if len(b)-i < len(word) || string(b[i:i+len(word)]) != word {
		return 0, jsonErrorf(i, "unexpected %q", b[i])
	}
	return i + len(word), nil
}

// valueEnd returns the offset behind the value that begins at i, which is
// depth levels deep already.
func valueEnd(b []byte, i, depth int) (int, error) {
	if i >= len(b) {
		return 0, jsonErrorf(i, "unexpected end")
	}
	switch b[i] {
	case '"':
		end, _, err := stringEnd(b, i)
		return end, err
	case '{':
		return eachMember(b, i, depth, nil)
	case '[':
		return eachElement(b, i, depth, nil)
	case 't':
		return wordEnd(b, i, "true")
	case 'f':
		return wordEnd(b, i, "false")
	case 'n':
		return wordEnd(b, i, "null")
	}
	return numberEnd(b, i)
}

// eachMember walks over the object at i, calls fn, unless nil, with the text of
// each name and value, and returns the offset behind the object.
func eachMember(b []byte, i, depth int, fn func(name, value []byte) error) (int, error) {
	if depth >= MaxNesting {
		return 0, jsonErrorf(i, "more than %d levels", MaxNesting)
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		if i >= len(b) {
			return 0, jsonErrorf(i, "unexpected end")
		}
		if c := b[i]; c != '"' && c != '{' && c != '-' && (c < '0' || c > '9') {
			return 0, jsonErrorf(i, "unexpected %q instead of a name", c)
		}
		nameEnd, err := valueEnd(b, i, depth+1)
		if err != nil {
			return 0, err
		}
		name := b[i:nameEnd]
		if i = skipSpace(b, nameEnd); i >= len(b) || b[i] != ':' {
			return 0, jsonErrorf(i, "no colon behind a name")
		}
		i = skipSpace(b, i+1)
		end, err := valueEnd(b, i, depth+1)
		if err != nil {
			return 0, err
		}
		if fn != nil {
			if err := fn(name, b[i:end]); err != nil {
				return 0, err
			}
		}
		more, next, err := separator(b, end, '}')
		if err != nil || !more {
			return next, err
		}
		i = next
	}
}

// eachElement is eachMember for arrays.
func eachElement(b []byte, i, depth int, fn func(value []byte) error) (int, error) {
	if depth >= MaxNesting {
		return 0, jsonErrorf(i, "more than %d levels", MaxNesting)
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == ']' {
		return i + 1, nil
	}
	for {
		end, err := valueEnd(b, i, depth+1)
		if err != nil {
			return 0, err
		}
		if fn != nil {
			if err := fn(b[i:end]); err != nil {
				return 0, err
			}
		}
		more, next, err := separator(b, end, ']')
		if err != nil || !more {
			return next, err
		}
		i = next
	}
}

// separator reads the comma or the closing byte at or after i.
func separator(b []byte, i int, closing byte) (more bool, next int, err error) {
	i = skipSpace(b, i)
	switch {
	case i < len(b) && b[i] == ',':
		return true, skipSpace(b, i+1), nil
	case i < len(b) && b[i] == closing:
		return false, i + 1, nil
	}
	return false, 0, jsonErrorf(i, "neither a comma nor %q", closing)
}

// unquote appends to dst what the quoted string q stands for.
func unquote(dst, q []byte) ([]byte, error) {
	dst, _, err := unquoteAt(dst, q, 0)
	return dst, err
}

// unquoteAt appends to dst what the string at b[i] stands for and returns the
// offset behind it. Bytes that are not UTF-8 become U+FFFD as Java's decoder does
// it.
func unquoteAt(dst, b []byte, i int) ([]byte, int, error) {
	for from := i + 1; ; {
		var j int
		if dst, j = appendPlain(dst, b, from); j == len(b) {
			return dst, 0, jsonErrorf(i, "string does not end")
		}
		switch b[j] {
		case '"':
			return dst, j + 1, nil
		case '\\':
			var err error
			if dst, from, err = unescape(dst, b, j); err != nil {
				return dst, 0, err
			}
		default:
			var n int
			dst, n = appendRepaired(dst, b[j:])
			from = j + n
		}
	}
}

// appendPlain appends the bytes at and behind i that are plain and returns the
// offset of the first that is not, or len(b). With room behind them in dst it
// copies while it looks.
func appendPlain(dst, b []byte, i int) ([]byte, int) {
	n, room := len(dst), dst[:cap(dst)]
	for ; i+8 <= len(b) && n+8 <= len(room); i, n = i+8, n+8 {
		x := binary.LittleEndian.Uint64(b[i:])
		binary.LittleEndian.PutUint64(room[n:], x)
		if m := notPlain(x); m != 0 {
			k := bits.TrailingZeros64(m) / 8
			return room[:n+k], i + k
		}
	}
	end := plainEnd(b, i)
	return append(room[:n], b[i:end]...), end
}

// unescape appends what the escape at s[i] stands for and returns the offset
// behind it. Half a surrogate pair becomes "?", as when Java writes UTF-8.
func unescape(dst, s []byte, i int) ([]byte, int, error) {
	if i+1 >= len(s) {
		return dst, 0, jsonErrorf(i, "escape does not end")
	}
	switch c := s[i+1]; c {
	case '"', '\\', '/':
		return append(dst, c), i + 2, nil
	case 'b':
		return append(dst, '\b'), i + 2, nil
	case 'f':
		return append(dst, '\f'), i + 2, nil
	case 'n':
		return append(dst, '\n'), i + 2, nil
	case 'r':
		return append(dst, '\r'), i + 2, nil
	case 't':
		return append(dst, '\t'), i + 2, nil
	case 'u':
		u, ok := hex4(s, i+2)
		if !ok {
			return dst, 0, jsonErrorf(i, "malformed \\u escape")
		}
		i += 6
		switch {
		case u < 0xD800 || u > 0xDFFF:
			return utf8.AppendRune(dst, u), i, nil
		case u < 0xDC00 && i+1 < len(s) && s[i] == '\\' && s[i+1] == 'u':
			if low, ok := hex4(s, i+2); ok && low >= 0xDC00 && low <= 0xDFFF {
				return utf8.AppendRune(dst, (u-0xD800)<<10+(low-0xDC00)+0x10000), i + 6, nil
			}
		}
		return append(dst, '?'), i, nil
	default:
		return dst, 0, jsonErrorf(i, "unknown escape \\%c", c)
	}
}

func hex4(s []byte, i int) (rune, bool) {
	if len(s)-i < 4 {
		return 0, false
	}
	var r rune
	for _, c := range s[i : i+4] {
		switch {
		case c >= '0' && c <= '9':
			r = r<<4 | rune(c-'0')
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			r = r<<4 | rune(c|0x20-'a'+10)
		default:
			return 0, false
		}
	}
	return r, true
}

// appendRepaired appends the character at the start of s, whose first byte is
// not ASCII, or U+FFFD for what Java's decoder takes for one malformed
// sequence. n is how many bytes of s that was.
func appendRepaired(dst, s []byte) (_ []byte, n int) {
	r, size := utf8.DecodeRune(s)
	if r != utf8.RuneError || size > 1 {
		return append(dst, s[:size]...), size
	}
	return utf8.AppendRune(dst, utf8.RuneError), malformed(s)
}

// malformed returns how many bytes at the start of s, which is not valid UTF-8
// there, make one malformed sequence for Java: the longest beginning of
// something valid. An encoded surrogate is one sequence of three.
func malformed(s []byte) int {
	want, low, high := 0, byte(0x80), byte(0xBF)
	switch c := s[0]; {
	case c >= 0xC2 && c <= 0xDF:
		want = 2
	case c >= 0xE0 && c <= 0xEF:
		want = 3
		if c == 0xE0 {
			low = 0xA0
		}
	case c >= 0xF0 && c <= 0xF4:
		want = 4
		if c == 0xF0 {
			low = 0x90
		}
		if c == 0xF4 {
			high = 0x8F
		}
	}
	n := 1
	for n < want && n < len(s) && s[n] >= low && s[n] <= high {
		low, high = 0x80, 0xBF
		n++
	}
	return n
}

// repair appends s to dst with malformed sequences replaced.
func repair(dst, s []byte) []byte {
	for i := 0; i < len(s); {
		if s[i] < utf8.RuneSelf {
			dst = append(dst, s[i])
			i++
			continue
		}
		var n int
		dst, n = appendRepaired(dst, s[i:])
		i += n
	}
	return dst
}

const hexDigits = "0123456789ABCDEF"

// appendQuoted appends s as a JSON string, escaped as fastjson does.
func appendQuoted(dst []byte, s string) []byte {
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		if i+8 <= len(s) {
			x := uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 |
				uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56
			// The bytes below a blank are those that the subtraction makes negative.
			m := notPlain(x) | (x-eachByte*' ')&^x&eachHigh
			if m == 0 {
				i += 8
				continue
			}
			i += bits.TrailingZeros64(m) / 8
		}
		c := s[i]
		if c >= ' ' && c != '"' && c != '\\' && c < utf8.RuneSelf {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(append(dst, s[from:i]...), "\ufffd"...)
				from = i + 1
			}
			i += size
			continue
		}
		dst = append(dst, s[from:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\b':
			dst = append(dst, '\\', 'b')
		case '\f':
			dst = append(dst, '\\', 'f')
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	dst = append(dst, s[from:]...)
	return append(dst, '"')
}
