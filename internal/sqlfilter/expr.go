package sqlfilter

import (
	"strconv"
	"strings"
)

// op is what a node does.
type op uint8

const (
	// Operands.
	opProperty op = iota // text: the name
	opText               // text
	opInteger            // integer
	opDecimal            // decimal
	opNegate             // of one operand

	// Conditions: true, false or unknown.
	opTrue
	opFalse
	opUnknown // NULL
	opNot
	opAnd // of two or more
	opOr  // of two or more
	opEqual
	opNotEqual
	opLess
	opLessEqual
	opGreater
	opGreaterEqual
	opBetween // value, low, high
	opNotBetween
	opIsNull
	opIsNotNull
	opIn // list
	opNotIn
	opContains // text: what is looked for
	opNotContains
	opStartsWith
	opNotStartsWith
	opEndsWith
	opNotEndsWith
)

// isCondition reports whether a node of that kind is a condition by itself. A
// property can become one, see Expr.Eval.
func (o op) isCondition() bool { return o >= opTrue }

// isConstant reports whether the node is a literal; a negated number is none.
func (n *node) isConstant() bool {
	switch n.op {
	case opText, opInteger, opDecimal, opTrue, opFalse, opUnknown:
		return true
	}
	return false
}

// node is one operation. It is one type for all, and evaluated by one switch,
// so that the lookup function does not escape to the heap.
type node struct {
	op      op
	depth   int // of the tree below, itself included
	integer int64
	decimal float64
	text    string
	args    []*node
	list    []string
	set     map[string]struct{} // of list, if it is long
}

// maxLinear is the length up to which a list is searched from front to back.
const maxLinear = 8

func (n *node) holds(s string) bool {
	if n.set != nil {
		_, ok := n.set[s]
		return ok
	}
	for _, e := range n.list {
		if e == s {
			return true
		}
	}
	return false
}

// Expr is a compiled expression. It is immutable: any number of goroutines may
// evaluate it.
type Expr struct {
	root *node
}

// String returns the expression in its shortest standard form: keywords in
// capitals, no comments, only the parentheses that are needed. Compiled again,
// it has the same meaning and the same String. It may be longer than MaxLength.
func (e *Expr) String() string {
	var b strings.Builder
	e.root.print(&b, levelOr)
	return b.String()
}

// How tightly an operator binds, for print. NOT stands below the comparisons,
// where upstream has it above them, because it is refused before one.
const (
	levelOr = iota
	levelAnd
	levelNot
	levelEquality
	levelComparison
	levelUnary
	levelPrimary
)

// infix holds the operators between two or more operands, and for text
// operators and lists what stands before the operand.
var infix = [...]struct {
	level int
	text  string
}{
	opNot:           {levelNot, "NOT "},
	opAnd:           {levelAnd, " AND "},
	opOr:            {levelOr, " OR "},
	opEqual:         {levelEquality, " = "},
	opNotEqual:      {levelEquality, " <> "},
	opIsNull:        {levelEquality, " IS NULL"},
	opIsNotNull:     {levelEquality, " IS NOT NULL"},
	opLess:          {levelComparison, " < "},
	opLessEqual:     {levelComparison, " <= "},
	opGreater:       {levelComparison, " > "},
	opGreaterEqual:  {levelComparison, " >= "},
	opBetween:       {levelComparison, " BETWEEN "},
	opNotBetween:    {levelComparison, " NOT BETWEEN "},
	opIn:            {levelComparison, " IN "},
	opNotIn:         {levelComparison, " NOT IN "},
	opContains:      {levelComparison, " CONTAINS "},
	opNotContains:   {levelComparison, " NOT CONTAINS "},
	opStartsWith:    {levelComparison, " STARTSWITH "},
	opNotStartsWith: {levelComparison, " NOT STARTSWITH "},
	opEndsWith:      {levelComparison, " ENDSWITH "},
	opNotEndsWith:   {levelComparison, " NOT ENDSWITH "},
}

func (n *node) level() int {
	switch n.op {
	case opProperty, opText, opInteger, opDecimal, opTrue, opFalse, opUnknown:
		return levelPrimary
	case opNegate:
		return levelUnary
	}
	return infix[n.op].level
}

// print writes n, in parentheses if it binds less than level.
func (n *node) print(b *strings.Builder, level int) {
	if n.level() < level {
		b.WriteByte('(')
		defer b.WriteByte(')')
	}
	operator := ""
	if int(n.op) < len(infix) {
		level, operator = infix[n.op].level, infix[n.op].text
	}
	switch n.op {
	case opProperty:
		b.WriteString(n.text)
	case opText:
		quote(b, n.text)
	case opInteger:
		b.WriteString(strconv.FormatInt(n.integer, 10))
	case opDecimal:
		b.WriteString(formatDecimal(n.decimal))
	case opTrue:
		b.WriteString("TRUE")
	case opFalse:
		b.WriteString("FALSE")
	case opUnknown:
		b.WriteString("NULL")
	case opNegate:
		b.WriteByte('-')
		if n.args[0].op == opNegate {
			b.WriteByte(' ') // two would begin a comment
		}
		n.args[0].print(b, levelUnary)
	case opNot:
		b.WriteString(operator)
		if n.args[0].op == opNot {
			n.args[0].print(b, levelNot)
		} else {
			n.args[0].print(b, levelUnary)
		}
	case opAnd, opOr:
		for i, arg := range n.args {
			if i > 0 {
				b.WriteString(operator)
			}
			arg.print(b, level+1)
		}
	case opIsNull, opIsNotNull:
		n.args[0].print(b, level)
		b.WriteString(operator)
	case opBetween, opNotBetween:
		n.args[0].print(b, level)
		b.WriteString(operator)
		n.args[1].print(b, levelUnary)
		b.WriteString(infix[opAnd].text)
		n.args[2].print(b, levelUnary)
	case opIn, opNotIn:
		n.args[0].print(b, level)
		b.WriteString(operator)
		for i, s := range n.list {
			b.WriteString([]string{"(", ", "}[min(i, 1)])
			quote(b, s)
		}
		b.WriteByte(')')
	case opContains, opNotContains, opStartsWith, opNotStartsWith, opEndsWith, opNotEndsWith:
		n.args[0].print(b, level)
		b.WriteString(operator)
		quote(b, n.text)
	default: // comparisons are left-associative
		n.args[0].print(b, level)
		b.WriteString(operator)
		n.args[1].print(b, level+1)
	}
}

func (n *node) String() string {
	var b strings.Builder
	n.print(&b, levelOr)
	return b.String()
}

func quote(b *strings.Builder, s string) {
	b.WriteByte('\'')
	b.WriteString(strings.ReplaceAll(s, "'", "''"))
	b.WriteByte('\'')
}

// formatDecimal returns a text that is read as f, and as a decimal. No literal
// is below zero.
func formatDecimal(f float64) string {
	if f != 0 && (f < 1e-6 || f >= 1e21) {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	s := strconv.FormatFloat(f, 'f', -1, 64)
	if !strings.Contains(s, ".") {
		s += ".0"
	}
	return s
}
