package sqlfilter

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Bounds of an expression. An expression of MaxLength bytes compiles to at most
// a few megabytes.
const (
	MaxLength = 64 << 10 // bytes
	MaxDepth  = 256      // of parentheses and prefix operators, and of the tree
	MaxList   = 4096     // strings in one IN
)

// Compile compiles an expression. The error is a *SyntaxError.
func Compile(expression string) (*Expr, error) {
	if len(expression) > MaxLength {
		return nil, refused(MaxLength, runtimeError, fmt.Sprintf("expression of %d bytes is longer than %d", len(expression), MaxLength))
	}
	p := parser{lexer: newLexer(expression)}
	if err := p.advance(); err != nil {
		return nil, err
	}
	root, err := p.or()
	if err != nil {
		return nil, err
	}
	if !p.atEnd() {
		return nil, p.unexpected()
	}
	if err := condition(root, 0); err != nil {
		return nil, err
	}
	return &Expr{root: root}, nil
}

// parser is a recursive descent over the grammar of the package comment. Each
// method begins at its first token and ends at the first token behind it.
type parser struct {
	lexer
	tok    token
	ahead  token // the one behind tok, if it was looked at
	looked bool
	want   tokenSet // what tok was compared with, for errors
	depth  int      // of parentheses and prefix operators around tok
}

func (p *parser) advance() error {
	p.want = 0
	if p.looked {
		p.tok, p.looked = p.ahead, false
		return nil
	}
	var err error
	p.tok, err = p.next()
	return err
}

// peek returns the token behind the current one.
func (p *parser) peek() (token, error) {
	if !p.looked {
		var err error
		if p.ahead, err = p.next(); err != nil {
			return token{}, err
		}
		p.looked = true
	}
	return p.ahead, nil
}

// at reports whether the current token is of kind k, and notes that it may be.
func (p *parser) at(k kind) bool {
	p.want |= 1 << k
	return p.tok.kind == k
}

// atEnd is at(tokEOF), and true before a comment that no line end follows. To
// the lexer its -- is two signs, as in "a > --5"; upstream takes them so, and
// ignores them like all text behind the expression.
func (p *parser) atEnd() bool {
	return p.at(tokEOF) || p.tok.kind == tokMinus && strings.HasPrefix(p.src[p.tok.pos:], "--")
}

// expect passes a token of kind k.
func (p *parser) expect(k kind) error {
	if !p.at(k) {
		return p.unexpected()
	}
	return p.advance()
}

func (p *parser) unexpected() error { return unexpected(p.src, p.tok, p.want) }

func (p *parser) or() (*node, error) { return p.chain(tokOr, opOr, p.and) }

func (p *parser) and() (*node, error) { return p.chain(tokAnd, opAnd, p.equality) }

// chain parses operands between tokens of kind k into one node of kind o.
func (p *parser) chain(k kind, o op, operand func() (*node, error)) (*node, error) {
	pos := p.tok.pos
	left, err := operand()
	if err != nil {
		return nil, err
	}
	for p.at(k) {
		if err := p.advance(); err != nil {
			return nil, err
		}
		rightPos := p.tok.pos
		right, err := operand()
		if err != nil {
			return nil, err
		}
		if err := condition(left, pos); err != nil {
			return nil, err
		}
		if err := condition(right, rightPos); err != nil {
			return nil, err
		}
		if left.op == o && right.depth < MaxDepth {
			left.args = append(left.args, right)
			left.depth = max(left.depth, right.depth+1)
		} else if left, err = newNode(o, pos, left, right); err != nil {
			return nil, err
		}
	}
	return left, nil
}

func (p *parser) equality() (*node, error) {
	pos := p.tok.pos
	left, err := p.comparison()
	for err == nil {
		switch {
		case p.at(tokEqual):
			left, err = p.equal(opEqual, left, pos)
		case p.at(tokNotEqual):
			left, err = p.equal(opNotEqual, left, pos)
		case p.at(tokIs):
			left, err = p.isNull(left, pos)
		default:
			return left, nil
		}
	}
	return nil, err
}

func (p *parser) equal(o op, left *node, pos int) (*node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	rightPos := p.tok.pos
	right, err := p.comparison()
	if err != nil {
		return nil, err
	}
	switch {
	case left.op == opUnknown:
		return nil, refused(pos, runtimeError, "'NULL' cannot be compared.")
	case right.op == opUnknown:
		return nil, refused(rightPos, runtimeError, "'NULL' cannot be compared.")
	case (left.op == opTrue || left.op == opFalse) && right.isConstant() && !right.op.isCondition():
		return nil, refused(rightPos, runtimeError, fmt.Sprintf("'%s' cannot be compared with '%s'", clip(left.String()), clip(right.String())))
	}
	return newNode(o, pos, left, right)
}

func (p *parser) isNull(left *node, pos int) (*node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	o := opIsNull
	if p.at(tokNot) {
		o = opIsNotNull
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
	if err := p.expect(tokNull); err != nil {
		return nil, err
	}
	return newNode(o, pos, left)
}

// ordering maps the tokens that need numbers.
var ordering = [...]op{
	tokGreater: opGreater, tokGreaterEqual: opGreaterEqual, tokLess: opLess, tokLessEqual: opLessEqual,
}

// textual maps the tokens that a string must follow.
var textual = [...]op{
	tokContains: opContains, tokStartsWith: opStartsWith, tokEndsWith: opEndsWith,
}

func (p *parser) comparison() (*node, error) {
	pos := p.tok.pos
	left, err := p.unary()
	for err == nil {
		switch {
		case p.at(tokGreater), p.at(tokGreaterEqual), p.at(tokLess), p.at(tokLessEqual):
			left, err = p.order(ordering[p.tok.kind], left, pos)
		case p.at(tokContains), p.at(tokStartsWith), p.at(tokEndsWith):
			left, err = p.textOperator(textual[p.tok.kind], left, pos)
		case p.at(tokBetween):
			left, err = p.between(opBetween, left, pos)
		case p.at(tokIn):
			left, err = p.in(opIn, left, pos)
		case p.at(tokNot):
			left, err = p.notOperator(left, pos)
		default:
			return left, nil
		}
	}
	return nil, err
}

// notOperator parses what NOT begins behind an operand.
func (p *parser) notOperator(left *node, pos int) (*node, error) {
	behind, err := p.peek()
	if err != nil {
		return nil, err
	}
	switch behind.kind {
	case tokContains, tokStartsWith, tokEndsWith, tokBetween, tokIn:
	default:
		// As upstream does it: the error is at NOT, and lists what may stand
		// here instead of it or behind it.
		p.want &^= 1 << tokNot
		return nil, p.unexpected()
	}
	if err := p.advance(); err != nil {
		return nil, err
	}
	switch p.tok.kind {
	case tokBetween:
		return p.between(opNotBetween, left, pos)
	case tokIn:
		return p.in(opNotIn, left, pos)
	}
	return p.textOperator(textual[p.tok.kind]+1, left, pos) // NOT is the next op
}

func (p *parser) order(o op, left *node, pos int) (*node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	rightPos := p.tok.pos
	right, err := p.unary()
	if err != nil {
		return nil, err
	}
	if err := ordered(left, pos); err != nil {
		return nil, err
	}
	if err := ordered(right, rightPos); err != nil {
		return nil, err
	}
	return newNode(o, pos, left, right)
}

// ordered refuses an operand that can be no number.
func ordered(n *node, pos int) error {
	if n.op == opText || n.op.isCondition() {
		return refused(pos, runtimeError, fmt.Sprintf("Value '%s' cannot be compared.", clip(n.String())))
	}
	return nil
}

func (p *parser) between(o op, value *node, pos int) (*node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	lowPos := p.tok.pos
	low, err := p.unary()
	if err != nil {
		return nil, err
	}
	if err := p.expect(tokAnd); err != nil {
		return nil, err
	}
	highPos := p.tok.pos
	high, err := p.unary()
	if err != nil {
		return nil, err
	}
	if o == opBetween && low.isConstant() && high.isConstant() {
		if low.op == opUnknown || high.op == opUnknown {
			return nil, refused(lowPos, runtimeError, "Illegal values of between, values can not be null!")
		}
		if l, h := constant(low), constant(high); isNumber(l) && isNumber(h) && compareNumbers(h, l) < 0 {
			return nil, refused(lowPos, runtimeError, fmt.Sprintf(
				"Illegal values of between, left value(%s) must less than or equal to right value(%s)", low, high))
		}
	}
	for _, operand := range []struct {
		n   *node
		pos int
	}{{value, pos}, {low, lowPos}, {high, highPos}} {
		if err := ordered(operand.n, operand.pos); err != nil {
			return nil, err
		}
	}
	return newNode(o, pos, value, low, high)
}

func (p *parser) textOperator(o op, left *node, pos int) (*node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	text, err := p.str()
	if err != nil {
		return nil, err
	}
	n, err := newNode(o, pos, left)
	if err != nil {
		return nil, err
	}
	n.text = text
	return n, nil
}

func (p *parser) in(o op, left *node, pos int) (*node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	if err := p.expect(tokOpen); err != nil {
		return nil, err
	}
	var list []string
	for {
		if len(list) == MaxList {
			return nil, refused(p.tok.pos, runtimeError, fmt.Sprintf("list of more than %d strings", MaxList))
		}
		s, err := p.str()
		if err != nil {
			return nil, err
		}
		list = append(list, s)
		if !p.at(tokComma) {
			break
		}
		if err := p.advance(); err != nil {
			return nil, err
		}
	}
	if err := p.expect(tokClose); err != nil {
		return nil, err
	}
	if left.op != opProperty {
		return nil, refused(pos, runtimeError, "Expected a property for In expression, got: "+clip(left.String()))
	}
	n, err := newNode(o, pos, left)
	if err != nil {
		return nil, err
	}
	n.list = list
	if len(list) > maxLinear {
		n.set = make(map[string]struct{}, len(list))
		for _, s := range list {
			n.set[s] = struct{}{}
		}
	}
	return n, nil
}

// str passes a string and returns its value.
func (p *parser) str() (string, error) {
	t := p.tok
	if err := p.expect(tokString); err != nil {
		return "", err
	}
	return strings.ReplaceAll(p.src[t.pos+1:t.end-1], "''", "'"), nil
}

func (p *parser) unary() (*node, error) {
	if p.depth++; p.depth > MaxDepth {
		return nil, tooDeep(p.tok.pos)
	}
	defer func() { p.depth-- }()
	pos := p.tok.pos
	switch {
	case p.at(tokMinus):
		n, err := p.prefixed()
		if err != nil {
			return nil, err
		}
		return newNode(opNegate, pos, n)
	case p.at(tokPlus):
		return p.prefixed()
	case p.at(tokNot):
		return p.not()
	}
	return p.primary()
}

// prefixed passes a prefix operator and returns its operand.
func (p *parser) prefixed() (*node, error) {
	if err := p.advance(); err != nil {
		return nil, err
	}
	return p.unary()
}

func (p *parser) not() (*node, error) {
	pos := p.tok.pos
	n, err := p.prefixed()
	if err != nil {
		return nil, err
	}
	if err := condition(n, pos); err != nil {
		return nil, err
	}
	if n, err = newNode(opNot, pos, n); err != nil {
		return nil, err
	}
	switch p.tok.kind {
	case tokEqual, tokNotEqual, tokGreater, tokGreaterEqual, tokLess, tokLessEqual,
		tokIs, tokIn, tokBetween, tokContains, tokStartsWith, tokEndsWith, tokNot:
		return nil, refused(pos, runtimeError, fmt.Sprintf(
			"Value '%s' cannot be compared. Put what NOT stands before into parentheses: NOT (... %s ...)",
			clip(n.String()), p.src[p.tok.pos:p.tok.end]))
	}
	return n, nil
}

func (p *parser) primary() (*node, error) {
	t := p.tok
	switch {
	case p.at(tokTrue):
		return p.leaf(&node{op: opTrue})
	case p.at(tokFalse):
		return p.leaf(&node{op: opFalse})
	case p.at(tokNull):
		return p.leaf(&node{op: opUnknown})
	case p.at(tokInteger):
		n, err := integerNode(p.src[t.pos:t.end], t.pos)
		if err != nil {
			return nil, err
		}
		return p.leaf(n)
	case p.at(tokDecimal):
		n, err := decimalNode(p.src[t.pos:t.end], t.pos)
		if err != nil {
			return nil, err
		}
		return p.leaf(n)
	case p.at(tokName):
		return p.leaf(&node{op: opProperty, text: p.src[t.pos:t.end]})
	case p.at(tokString):
		s, err := p.str()
		if err != nil {
			return nil, err
		}
		return &node{op: opText, depth: 1, text: s}, nil
	case p.at(tokOpen):
		if err := p.advance(); err != nil {
			return nil, err
		}
		n, err := p.or()
		if err != nil {
			return nil, err
		}
		return n, p.expect(tokClose)
	}
	return nil, p.unexpected()
}

// leaf passes the token that n was made of.
func (p *parser) leaf(n *node) (*node, error) {
	n.depth = 1
	return n, p.advance()
}

func integerNode(text string, pos int) (*node, error) {
	text = strings.TrimRight(text, "lL")
	i, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return nil, overflow(pos, text)
	}
	return &node{op: opInteger, integer: i}, nil
}

func decimalNode(text string, pos int) (*node, error) {
	f, _ := strconv.ParseFloat(text, 64) // an error can only be the range
	switch {
	case math.IsInf(f, 0):
		return nil, refused(pos, runtimeError, clip(text)+" is greater than 1.7976931348623157E308")
	case f == 0 && !isZero(text):
		return nil, refused(pos, runtimeError, clip(text)+" is less than 4.9E-324")
	}
	return &node{op: opDecimal, decimal: f}, nil
}

// isZero reports whether a decimal literal is zero by its digits.
func isZero(text string) bool {
	mantissa, _, _ := strings.Cut(strings.ToLower(text), "e")
	return strings.Trim(mantissa, "0.") == ""
}

// condition refuses an operand of AND, OR or NOT, or a whole expression, that
// is neither a condition nor a property. pos is where it begins.
func condition(n *node, pos int) error {
	if n.op.isCondition() || n.op == opProperty {
		return nil
	}
	return refused(pos, parseException, "Expression will not result in a boolean value: "+clip(n.String()))
}

// newNode makes an inner node. pos is where it begins.
func newNode(o op, pos int, args ...*node) (*node, error) {
	n := &node{op: o, depth: 1, args: args}
	for _, arg := range args {
		n.depth = max(n.depth, arg.depth+1)
	}
	if n.depth > MaxDepth {
		return nil, tooDeep(pos)
	}
	return n, nil
}

func tooDeep(pos int) error {
	return refused(pos, runtimeError, fmt.Sprintf("expression is nested deeper than %d", MaxDepth))
}
