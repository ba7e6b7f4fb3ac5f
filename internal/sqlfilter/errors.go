package sqlfilter

import (
	"fmt"
	"math/bits"
	"strconv"
	"strings"
	"unicode/utf8"
)

// SyntaxError says why an expression was refused.
type SyntaxError struct {
	Pos    int    // byte offset in the expression; its length when something is missing at the end
	Reason string // one line: `unexpected "b", want AND, OR or end`

	remark string
}

func (e *SyntaxError) Error() string {
	return fmt.Sprintf("sql92 expression, byte %d: %s", e.Pos, e.Reason)
}

// Remark returns the error in upstream's words, as its broker puts it into the
// remark of a response: name of the Java exception, text with line and column,
// list of expected tokens. It may have several lines.
func (e *SyntaxError) Remark() string { return e.remark }

// The Java exceptions behind upstream's texts.
const (
	parseException  = "org.apache.rocketmq.filter.parser.ParseException: "
	lexicalError    = "org.apache.rocketmq.filter.parser.TokenMgrError: "
	runtimeError    = "java.lang.RuntimeException: "
	numberException = "java.lang.NumberFormatException: "
)

// maxQuoted bounds how much of the expression is repeated in an error.
const maxQuoted = 256

// refused makes an error about the meaning of what stands at pos.
func refused(pos int, exception, reason string) *SyntaxError {
	return &SyntaxError{Pos: pos, Reason: reason, remark: exception + reason}
}

// tokenSet is a set of token kinds.
type tokenSet uint64

func (s tokenSet) each(fn func(k kind)) {
	for ; s != 0; s &= s - 1 {
		fn(kind(bits.TrailingZeros64(uint64(s))))
	}
}

// unexpected makes the error for token t of src where one of want was needed.
func unexpected(src string, t token, want tokenSet) *SyntaxError {
	var plain, remark strings.Builder
	remark.WriteString(parseException)
	line, column := position(src, t.pos)
	if t.kind == tokEOF {
		plain.WriteString("unexpected end")
		fmt.Fprintf(&remark, `Encountered "%s" at line %d, column %d.`, kinds[tokEOF], line, column)
	} else {
		text := clip(src[t.pos:t.end])
		fmt.Fprintf(&plain, "unexpected %q", text)
		fmt.Fprintf(&remark, `Encountered " %s "%s "" at line %d, column %d.`, kinds[t.kind], escape(text), line, column)
	}
	n := bits.OnesCount64(uint64(want))
	if n == 1 {
		remark.WriteString("\nWas expecting:\n    ")
	} else {
		remark.WriteString("\nWas expecting one of:\n    ")
	}
	sep := ", want "
	want.each(func(k kind) {
		plain.WriteString(sep)
		plain.WriteString(strings.Trim(kinds[k], `"`))
		if n--; n > 1 {
			sep = ", "
		} else {
			sep = " or "
		}
		remark.WriteString(kinds[k])
		remark.WriteByte(' ')
		if k != tokEOF {
			remark.WriteString("...")
		}
		remark.WriteString("\n    ")
	})
	return &SyntaxError{Pos: t.pos, Reason: plain.String(), remark: remark.String()}
}

// lexical makes the error for a token that began at pos and cannot go on at
// byte at; at the end of src something is missing.
func lexical(src string, pos, at int) *SyntaxError {
	before := clip(src[pos:at])
	if at >= len(src) {
		line, column := position(src, len(src))
		if c := src[len(src)-1]; c == '\n' || c == '\r' {
			line, column = line+1, 0
		} else {
			column++
		}
		return &SyntaxError{
			Pos:    len(src),
			Reason: fmt.Sprintf("%q is not finished", before),
			remark: lexicalError + fmt.Sprintf(`Lexical error at line %d, column %d.  Encountered: <EOF> after : "%s"`, line, column, escape(before)),
		}
	}
	r, size := utf8.DecodeRuneInString(src[at:])
	line, column := position(src, at)
	unit, _ := javaUnits(r)
	return &SyntaxError{
		Pos:    at,
		Reason: fmt.Sprintf("no token begins with %q", before+src[at:at+size]),
		remark: lexicalError + fmt.Sprintf(`Lexical error at line %d, column %d.  Encountered: "%s" (%d), after : "%s"`,
			line, column, escapeUnit(unit), unit, escape(before)),
	}
}

// clip shortens text from the expression to what an error may repeat.
func clip(s string) string {
	if len(s) <= maxQuoted {
		return s
	}
	end := maxQuoted
	for end > 0 && !utf8.RuneStart(s[end]) {
		end--
	}
	return s[:end] + "…"
}

// position returns line and column of the character at byte pos as upstream's
// scanner counts them: from 1, in UTF-16 units, tabs to the next multiple of 8,
// a line end belonging to its line. The end of src is where its last character
// is, 0 and 0 if there is none.
func position(src string, pos int) (line, column int) {
	if src == "" {
		return 0, 0
	}
	line = 1
	var last rune
	for i, r := range src {
		if last == '\n' || last == '\r' && r != '\n' {
			line++
			column = 0
		}
		first, units := javaUnits(r)
		column++
		if first == '\t' {
			column = (column + 7) / 8 * 8
		}
		if i >= pos {
			return line, column
		}
		column += units - 1
		last = r
	}
	return line, column
}

// javaUnits returns the first UTF-16 unit of r and how many there are.
func javaUnits(r rune) (first uint16, n int) {
	if r < 0x10000 {
		return uint16(r), 1
	}
	return uint16(0xD800 + (r-0x10000)>>10), 2
}

// escape writes s as it would stand in a Java string literal of ASCII.
func escape(s string) string {
	var b strings.Builder
	for _, r := range s {
		first, n := javaUnits(r)
		b.WriteString(escapeUnit(first))
		if n == 2 {
			b.WriteString(escapeUnit(uint16(0xDC00 + r&0x3FF)))
		}
	}
	return b.String()
}

func escapeUnit(u uint16) string {
	switch u {
	case 0:
		return ""
	case '\b':
		return `\b`
	case '\t':
		return `\t`
	case '\n':
		return `\n`
	case '\f':
		return `\f`
	case '\r':
		return `\r`
	case '"', '\'', '\\':
		return `\` + string(rune(u))
	}
	if u < 0x20 || u > 0x7E {
		return fmt.Sprintf(`\u%04x`, u)
	}
	return string(rune(u))
}

// overflow makes the error for an integer literal beyond 64 bits.
func overflow(pos int, digits string) *SyntaxError {
	return refused(pos, numberException, "For input string: "+strconv.Quote(clip(digits)))
}
