package sqlfilter

import "strings"

// kind is a kind of token. The order is the one in which upstream lists what
// it expected.
type kind uint8

const (
	tokEOF kind = iota
	tokNot
	tokAnd
	tokOr
	tokBetween
	tokIn
	tokTrue
	tokFalse
	tokNull
	tokIs
	tokContains
	tokStartsWith
	tokEndsWith
	tokInteger
	tokDecimal
	tokString
	tokName
	tokEqual
	tokNotEqual
	tokGreater
	tokGreaterEqual
	tokLess
	tokLessEqual
	tokOpen
	tokComma
	tokClose
	tokMinus
	tokPlus
)

// kinds holds upstream's names, for its error texts.
var kinds = [...]string{
	tokEOF: "<EOF>",
	tokNot: `"NOT"`, tokAnd: `"AND"`, tokOr: `"OR"`, tokBetween: `"BETWEEN"`, tokIn: `"IN"`,
	tokTrue: `"TRUE"`, tokFalse: `"FALSE"`, tokNull: `"NULL"`, tokIs: `"IS"`,
	tokContains: `"CONTAINS"`, tokStartsWith: `"STARTSWITH"`, tokEndsWith: `"ENDSWITH"`,
	tokInteger: "<DECIMAL_LITERAL>", tokDecimal: "<FLOATING_POINT_LITERAL>",
	tokString: "<STRING_LITERAL>", tokName: "<ID>",
	tokEqual: `"="`, tokNotEqual: `"<>"`, tokGreater: `">"`, tokGreaterEqual: `">="`,
	tokLess: `"<"`, tokLessEqual: `"<="`,
	tokOpen: `"("`, tokComma: `","`, tokClose: `")"`, tokMinus: `"-"`, tokPlus: `"+"`,
}

var keywords = map[string]kind{
	"NOT": tokNot, "AND": tokAnd, "OR": tokOr, "BETWEEN": tokBetween, "IN": tokIn,
	"TRUE": tokTrue, "FALSE": tokFalse, "NULL": tokNull, "IS": tokIs,
	"CONTAINS": tokContains, "STARTSWITH": tokStartsWith, "ENDSWITH": tokEndsWith,
}

// maxKeyword is the length of the longest keyword.
const maxKeyword = len("STARTSWITH")

// token is src[pos:end].
type token struct {
	kind     kind
	pos, end int
}

// lexer splits src into tokens, each the longest that the grammar allows.
type lexer struct {
	src string
	pos int
	// lineEnd is where the last line of src ends, -1 if src is one line. A
	// comment begun by -- behind it is none to upstream, see parser.atEnd.
	lineEnd int
}

func newLexer(src string) lexer {
	return lexer{src: src, lineEnd: strings.LastIndexAny(src, "\r\n")}
}

// next returns the next token; at the end of src, again and again, tokEOF.
func (l *lexer) next() (token, error) {
	if err := l.skip(); err != nil {
		return token{}, err
	}
	if l.pos == len(l.src) {
		return token{tokEOF, l.pos, l.pos}, nil
	}
	start := l.pos
	k, end, err := l.scan(start)
	if err != nil {
		return token{}, err
	}
	l.pos = end
	return token{k, start, end}, nil
}

// skip passes white space and comments.
func (l *lexer) skip() error {
	for l.pos < len(l.src) {
		switch rest := l.src[l.pos:]; {
		case strings.IndexByte(" \t\n\r\f", rest[0]) >= 0:
			l.pos++
		case strings.HasPrefix(rest, "--") && l.pos < l.lineEnd:
			l.pos += strings.IndexAny(rest, "\r\n") + 1
		case strings.HasPrefix(rest, "/*"):
			n := strings.Index(rest[2:], "*/")
			if n < 0 {
				return lexical(l.src, l.pos, len(l.src))
			}
			l.pos += 2 + n + 2
		default:
			return nil
		}
	}
	return nil
}

// scan returns kind and end of the token that begins at pos.
func (l *lexer) scan(pos int) (kind, int, error) {
	src := l.src
	at := func(i int) byte { // 0 behind the end; no token needs a 0
		if i < len(src) {
			return src[i]
		}
		return 0
	}
	switch c := src[pos]; {
	case isLetter(c):
		end := pos + 1
		for isLetter(at(end)) || isDigit(at(end)) {
			end++
		}
		return wordKind(src[pos:end]), end, nil
	case isDigit(c), c == '.':
		return l.number(pos)
	case c == '\'':
		end := stringEnd(src, pos)
		if end < 0 {
			return 0, 0, lexical(src, pos, len(src))
		}
		return tokString, end, nil
	case c == '=':
		return tokEqual, pos + 1, nil
	case c == '<' && at(pos+1) == '>':
		return tokNotEqual, pos + 2, nil
	case c == '<' && at(pos+1) == '=':
		return tokLessEqual, pos + 2, nil
	case c == '<':
		return tokLess, pos + 1, nil
	case c == '>' && at(pos+1) == '=':
		return tokGreaterEqual, pos + 2, nil
	case c == '>':
		return tokGreater, pos + 1, nil
	case c == '(':
		return tokOpen, pos + 1, nil
	case c == ')':
		return tokClose, pos + 1, nil
	case c == ',':
		return tokComma, pos + 1, nil
	case c == '+':
		return tokPlus, pos + 1, nil
	case c == '-':
		return tokMinus, pos + 1, nil
	case c == '/': // only as the beginning of a comment
		return 0, 0, lexical(src, pos, pos+1)
	}
	return 0, 0, lexical(src, pos, pos)
}

// number returns kind and end of the number at pos: digits or a point.
func (l *lexer) number(pos int) (kind, int, error) {
	src := l.src
	whole := digits(src, pos)
	end, k := whole, tokInteger
	if end < len(src) && src[end] == '.' {
		fraction := digits(src, end+1)
		if fraction == pos+1 { // a point alone
			return 0, 0, lexical(src, pos, fraction)
		}
		end, k = fraction, tokDecimal
	}
	if exp := exponentEnd(src, end); exp > end {
		return tokDecimal, exp, nil
	}
	switch {
	case k == tokDecimal:
		return k, end, nil
	case src[pos] == '0': // an integer has no leading zero
		return k, pos + 1, nil
	case end < len(src) && src[end]|0x20 == 'l':
		return k, end + 1, nil
	}
	return k, end, nil
}

// exponentEnd returns the end of the exponent at pos, pos if there is none.
func exponentEnd(src string, pos int) int {
	if pos == len(src) || src[pos]|0x20 != 'e' {
		return pos
	}
	first := pos + 1
	if first < len(src) && (src[first] == '+' || src[first] == '-') {
		first++
	}
	if end := digits(src, first); end > first {
		return end
	}
	return pos
}

// stringEnd returns the end of the string that begins at pos, -1 if it has
// none. The longest string counts, as long as it is closed: in 'a”b a pair of
// quotes that is followed by no closing one ends the string after its first.
func stringEnd(src string, pos int) int {
	end := -1
	for i := pos + 1; ; {
		n := strings.IndexByte(src[i:], '\'')
		if n < 0 {
			return end
		}
		i += n + 1
		end = i
		if i == len(src) || src[i] != '\'' {
			return end
		}
		i++
	}
}

// digits returns the end of the decimal digits at pos.
func digits(src string, pos int) int {
	for pos < len(src) && isDigit(src[pos]) {
		pos++
	}
	return pos
}

func isDigit(c byte) bool { return '0' <= c && c <= '9' }

// isLetter reports whether c can begin a name.
func isLetter(c byte) bool {
	return 'a' <= c|0x20 && c|0x20 <= 'z' || c == '_' || c == '$'
}

func wordKind(word string) kind {
	if len(word) > maxKeyword {
		return tokName
	}
	var upper [maxKeyword]byte
	for i := range len(word) {
		c := word[i]
		if 'a' <= c && c <= 'z' {
			c -= 'a' - 'A'
		}
		upper[i] = c
	}
	if k, ok := keywords[string(upper[:len(word)])]; ok {
		return k
	}
	return tokName
}
