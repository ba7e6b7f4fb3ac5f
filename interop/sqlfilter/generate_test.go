//go:build interop

package sqlfilter

import (
	"math/rand/v2"
	"strings"
)

// The words of random expressions. Property names are few, so that they meet
// their properties; values are near each other and at the edges of the types.
var (
	names    = []string{"a", "b", "c", "d", "color", "_x1", "$y", "A", "nOt1"}
	integers = []string{"0", "1", "5", "5L", "10", "127", "2147483647", "2147483648", "3000000000l", "9007199254740993", "9223372036854775807", "9223372036854775808"}
	decimals = []string{"0.5", "1.0", "5.0", "5.", ".5", "5e0", "1E1", "1.5e-3", "2147483648.0", "9007199254740992.0", "1e308", "1e309", "5e-324", "1e-400", "00.5", "1.e2"}
	texts    = []string{"", "x", "5", "5.0", "true", "TRUE", "false", "red", "it''s", "''", "é中", "a b", "--", "/*", " 5 ", "10"}
	values   = []string{
		"x", "red", "it's", "é中", "true", "TRUE", "tRue", "false", "yes", "0", "1", "5", "05", "+5", "-5", "5.0", "5.5", "10", "10.5", "-0", "-0.0", "0.0",
		"127", "2147483647", "2147483648", "-2147483648", "-2147483649", "3000000000", "9007199254740993", "9223372036854775807", "-9223372036854775808",
		"9223372036854775808", "1e3", "1E-3", "1e400", "1e-400", "5d", "5f", "5L", "0x5", "0x1.8p1", "0x1p-2000", "NaN", "-NaN", "Infinity", "-Infinity", "inf", "nan",
		" 5", "5 ", "\t5.5\n", "5 5", "٣", "２５", "𝟓", "1_000", "0x_1p3", "5e", ".5", "5.", ".", "-", "+", "1,5", "--5", "a b", "xred", "redx",
	}
)

type source struct{ *rand.Rand }

func (r source) pick(from []string) string { return from[r.IntN(len(from))] }

// word returns a keyword in some mix of cases, with white space around it.
func (r source) word(s string) string {
	b := []byte(s)
	switch r.IntN(4) {
	case 0:
		b = []byte(strings.ToLower(s))
	case 1:
		for i := range b {
			if r.IntN(2) == 0 {
				b[i] |= 0x20
			}
		}
	}
	return r.space() + string(b) + r.space()
}

func (r source) space() string {
	if r.IntN(30) > 0 {
		return " "
	}
	return r.pick([]string{"\t", "\n", "\r\n", "  ", "/* c */", "/**/", "/***/", " -- c\n", " --\r", "\f"})
}

func (r source) text() string { return "'" + r.pick(texts) + "'" }

func (r source) number() string {
	if r.IntN(2) == 0 {
		return r.pick(integers)
	}
	return r.pick(decimals)
}

// operand is anything that can stand beside an operator, sensible or not.
func (r source) operand(depth int) string {
	switch n := r.IntN(20); {
	case n < 9:
		return r.pick(names)
	case n < 13:
		return r.number()
	case n < 15:
		return r.text()
	case n < 16:
		return "-" + r.space() + r.operand(depth)
	case n < 17:
		return "+" + r.space() + r.operand(depth)
	case n < 18:
		return r.word([]string{"TRUE", "FALSE", "NULL"}[r.IntN(3)])
	case depth > 0:
		return "(" + r.expression(depth-1) + ")"
	}
	return r.pick(names)
}

// numeric is an operand that an ordering does not refuse.
func (r source) numeric() string {
	switch r.IntN(8) {
	case 0, 1, 2:
		return r.pick(names)
	case 3:
		return "-" + r.number()
	case 4:
		return "- " + r.pick(names)
	}
	return r.number()
}

func (r source) list() string {
	parts := make([]string, 1+r.IntN(3))
	if r.IntN(10) == 0 {
		parts = make([]string, 12)
	}
	for i := range parts {
		parts[i] = r.text()
	}
	return "(" + strings.Join(parts, r.pick([]string{",", " , "})) + ")"
}

func (r source) condition(depth int) string {
	not := ""
	if r.IntN(3) == 0 {
		not = r.word("NOT")
	}
	switch n := r.IntN(24); {
	case n < 5:
		return r.operand(depth) + r.space() + r.pick([]string{"=", "<>"}) + r.space() + r.operand(depth)
	case n < 9:
		return r.numeric() + r.pick([]string{"<", "<=", ">", ">="}) + r.space() + r.numeric()
	case n < 10:
		return r.operand(depth) + r.pick([]string{"<", "<=", ">", ">=", "= ", "<>"}) + r.operand(depth)
	case n < 12:
		return r.numeric() + r.space() + not + r.word("BETWEEN") + r.numeric() + r.word("AND") + r.numeric()
	case n < 14:
		return r.pick(names) + r.space() + not + r.word("IN") + r.list()
	case n < 16:
		return r.operand(depth) + r.word("IS") + not + r.word("NULL")
	case n < 18:
		return r.operand(depth) + r.space() + not + r.word(r.pick([]string{"CONTAINS", "STARTSWITH", "ENDSWITH"})) + r.text()
	case n < 20:
		return r.word("NOT") + r.operand(depth)
	case n < 21:
		return r.word("NOT") + r.condition(depth)
	case n < 22:
		return r.operand(depth)
	case n < 23:
		return "(" + r.expression(depth) + ")" + r.word("IS") + not + r.word("NULL")
	}
	return "(" + r.expression(depth) + ")"
}

func (r source) expression(depth int) string {
	if depth <= 0 {
		return r.condition(0)
	}
	s := r.condition(depth - 1)
	for range r.IntN(3) {
		s += r.word([]string{"AND", "OR"}[r.IntN(2)]) + r.condition(depth-1)
	}
	return s
}

// broken damages an expression.
func (r source) broken(s string) string {
	b := []rune(s)
	for range 1 + r.IntN(3) {
		at := r.IntN(len(b) + 1)
		switch r.IntN(4) {
		case 0: // cut
			b = b[:at]
		case 1: // delete
			if at < len(b) {
				b = append(b[:at:at], b[at+1:]...)
			}
		case 2: // insert
			piece := r.pick([]string{"'", "(", ")", ",", "=", "<", ">", "-", "--", "+", ".", "/", "/*", "!", "\"", "\\", "\x00", "é", "K", "ſ", "😀", "\t", "\n",
				" NOT ", " AND ", " IS ", " IN ", " 5 ", " x ", ";", "l", "e5", "_", "$", "\u00a0", "\x1f", "\u7f3a"})
			b = append(b[:at:at], append([]rune(piece), b[at:]...)...)
		case 3: // swap with another place
			if other := r.IntN(len(b) + 1); at < len(b) && other < len(b) {
				b[at], b[other] = b[other], b[at]
			}
		}
	}
	return string(b)
}

// properties returns the property string of a message.
func (r source) properties() string {
	var b strings.Builder
	for _, name := range names {
		if r.IntN(4) > 0 {
			b.WriteString(name + "\x01" + r.pick(values) + "\x02")
		}
	}
	return b.String()
}
