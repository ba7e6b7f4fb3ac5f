package sqlfilter

import (
	"math"
	"strconv"
	"unicode"
	"unicode/utf8"
)

// parseInteger reads s as Java's Long.parseLong does: an optional sign and
// decimal digits of any script, nothing else, within 64 bits.
func parseInteger(s string) (int64, bool) {
	negative := false
	if s != "" && (s[0] == '-' || s[0] == '+') {
		negative = s[0] == '-'
		s = s[1:]
	}
	if s == "" {
		return 0, false
	}
	// Counted downwards: there is one negative number more.
	const floor = math.MinInt64
	var n int64
	for len(s) > 0 {
		d := int64(s[0]) - '0'
		size := 1
		if d < 0 || d > 9 {
			r, width := utf8.DecodeRuneInString(s)
			var ok bool
			if d, ok = digitValue(r); !ok {
				return 0, false
			}
			size = width
		}
		s = s[size:]
		if n < floor/10 || n*10 < floor+d {
			return 0, false
		}
		n = n*10 - d
	}
	if negative {
		return n, true
	}
	return -n, n != floor
}

// digitValue returns the value of a decimal digit other than those of ASCII.
// Java looks at UTF-16 units, so digits beyond the first plane are none. The
// digits of a script follow one another from zero to nine.
func digitValue(r rune) (int64, bool) {
	if r < utf8.RuneSelf || r > 0xFFFF {
		return 0, false
	}
	for _, block := range unicode.Nd.R16 {
		if rune(block.Lo) <= r && r <= rune(block.Hi) {
			return int64(r-rune(block.Lo)) % 10, true
		}
	}
	return 0, false
}

// parseDecimal reads s as Java's Double.parseDouble does: white space around
// it, a sign, NaN, Infinity, a decimal or hexadecimal number with or without
// exponent, a suffix d or f. What is too large is infinite.
func parseDecimal(s string) (float64, bool) {
	for s != "" && s[0] <= ' ' {
		s = s[1:]
	}
	for s != "" && s[len(s)-1] <= ' ' {
		s = s[:len(s)-1]
	}
	unsigned := s
	if s != "" && (s[0] == '-' || s[0] == '+') {
		unsigned = s[1:]
	}
	switch unsigned {
	case "NaN":
		return math.NaN(), true
	case "Infinity":
		if s[0] == '-' {
			return math.Inf(-1), true
		}
		return math.Inf(1), true
	}
	end := decimalEnd(unsigned)
	if end == 0 || end < len(unsigned)-1 {
		return 0, false
	}
	if end == len(unsigned)-1 {
		switch unsigned[end] {
		case 'd', 'D', 'f', 'F':
			s = s[:len(s)-1]
		default:
			return 0, false
		}
	}
	f, _ := strconv.ParseFloat(s, 64) // an error can only be the range
	return f, true
}

// decimalEnd returns the length of the number without sign that s begins
// with, 0 if there is none. A hexadecimal one must have an exponent.
func decimalEnd(s string) int {
	isDigit, mark, first := isDigit, byte('e'), 0
	if len(s) > 1 && s[0] == '0' && s[1]|0x20 == 'x' {
		isDigit, mark, first = isHexDigit, 'p', 2
	}
	end, n := first, 0
	for point := false; end < len(s); end++ {
		switch {
		case isDigit(s[end]):
			n++
			continue
		case s[end] == '.' && !point:
			point = true
			continue
		}
		break
	}
	if n == 0 {
		return 0
	}
	if end == len(s) || s[end]|0x20 != mark {
		if mark == 'p' {
			return 0
		}
		return end
	}
	exp := end + 1
	if exp < len(s) && (s[exp] == '+' || s[exp] == '-') {
		exp++
	}
	if last := digits(s, exp); last > exp {
		return last
	}
	return 0 // an exponent without digits is never right
}

func isHexDigit(c byte) bool {
	return isDigit(c) || 'a' <= c|0x20 && c|0x20 <= 'f'
}

// compareDecimals orders as Java's Double.compare: NaN is above all numbers
// and equals itself, −0 is below 0.
func compareDecimals(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return compareIntegers(decimalRank(a), decimalRank(b))
}

// decimalRank orders what < and > do not: equal numbers, both zeros, NaN.
func decimalRank(f float64) int64 {
	switch {
	case f != f:
		return 2
	case f == 0 && math.Signbit(f):
		return 0
	}
	return 1
}

func compareIntegers(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
