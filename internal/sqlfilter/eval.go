package sqlfilter

import "strings"

// Truth is the result of an expression or of a part of it.
type Truth uint8

const (
	False   Truth = iota
	True          // the message matches
	Unknown       // null took part
	Failed        // a property that had to be a number is none
)

func (t Truth) String() string {
	switch t {
	case False:
		return "FALSE"
	case True:
		return "TRUE"
	case Unknown:
		return "UNKNOWN"
	}
	return "FAILED"
}

// Matches reports whether the expression is true for the properties that get
// returns. It does not allocate; get is called once for each time a name has
// to be evaluated, so it should be cheap.
func (e *Expr) Matches(get func(name string) (string, bool)) bool {
	return e.Eval(get) == True
}

// Eval is Matches for those who want to know why not. A property alone is
// unknown if it is missing and else false.
func (e *Expr) Eval(get func(name string) (string, bool)) Truth {
	return e.root.truth(get)
}

// truth evaluates a condition. Operands are evaluated in upstream's order, as
// one that fails ends the evaluation.
func (n *node) truth(get func(string) (string, bool)) Truth {
	switch n.op {
	case opProperty:
		if _, ok := get(n.text); ok {
			return False
		}
		return Unknown
	case opTrue:
		return True
	case opFalse:
		return False
	case opUnknown:
		return Unknown
	case opNot:
		return not(n.args[0].truth(get))
	case opAnd:
		result := True
		for _, arg := range n.args {
			if result = and(result, arg.truth(get)); result == False || result == Failed {
				return result
			}
		}
		return result
	case opOr:
		result := False
		for _, arg := range n.args {
			if result = or(result, arg.truth(get)); result == True || result == Failed {
				return result
			}
		}
		return result
	case opEqual, opNotEqual:
		left := n.args[0].value(get)
		if left.kind == failedValue {
			return Failed
		}
		t := equal(left, n.args[1].value(get))
		if n.op == opNotEqual {
			return not(t)
		}
		return t
	case opLess, opLessEqual, opGreater, opGreaterEqual:
		return n.order(n.op, n.args[0].value(get), n.args[1], get)
	case opBetween:
		value := n.args[0].value(get)
		t := n.order(opGreaterEqual, value, n.args[1], get)
		if t == False || t == Failed {
			return t
		}
		return and(t, n.order(opLessEqual, value, n.args[2], get))
	case opNotBetween:
		value := n.args[0].value(get)
		t := n.order(opLess, value, n.args[1], get)
		if t == True || t == Failed {
			return t
		}
		return or(t, n.order(opGreater, value, n.args[2], get))
	case opIsNull, opIsNotNull:
		v := n.args[0].value(get)
		if v.kind == failedValue {
			return Failed
		}
		return truthOf((v.kind == nullValue) == (n.op == opIsNull))
	case opIn, opNotIn:
		s, ok := get(n.args[0].text)
		if !ok {
			return Unknown
		}
		return truthOf(n.holds(s) == (n.op == opIn))
	}
	return n.textTruth(get)
}

// textTruth evaluates CONTAINS, STARTSWITH, ENDSWITH and their negations.
func (n *node) textTruth(get func(string) (string, bool)) Truth {
	if n.text == "" {
		return False
	}
	v := n.args[0].value(get)
	if v.kind != textValue {
		if v.kind == failedValue {
			return Failed
		}
		return False
	}
	switch n.op {
	case opContains, opNotContains:
		return truthOf(strings.Contains(v.text, n.text) == (n.op == opContains))
	case opStartsWith, opNotStartsWith:
		return truthOf(strings.HasPrefix(v.text, n.text) == (n.op == opStartsWith))
	}
	return truthOf(strings.HasSuffix(v.text, n.text) == (n.op == opEndsWith))
}

// order compares left, which is evaluated, with right, which is not if left is
// null.
func (n *node) order(o op, left value, right *node, get func(string) (string, bool)) Truth {
	switch left.kind {
	case failedValue:
		return Failed
	case nullValue:
		return Unknown
	}
	r := right.value(get)
	switch r.kind {
	case failedValue:
		return Failed
	case nullValue:
		return Unknown
	}
	if left.kind == textValue && r.kind == textValue {
		left, r = decimalOf(left.text), decimalOf(r.text)
	} else {
		left, r = numberBeside(left, r), numberBeside(r, left)
	}
	if left.kind == failedValue || r.kind == failedValue {
		return Failed
	}
	c := compareNumbers(left, r)
	switch o {
	case opLess:
		return truthOf(c < 0)
	case opLessEqual:
		return truthOf(c <= 0)
	case opGreater:
		return truthOf(c > 0)
	}
	return truthOf(c >= 0)
}

func truthOf(b bool) Truth {
	if b {
		return True
	}
	return False
}

func not(t Truth) Truth {
	switch t {
	case True:
		return False
	case False:
		return True
	}
	return t
}

// and combines two conditions; the left one is neither False nor Failed.
func and(left, right Truth) Truth {
	if right == True {
		return left
	}
	return right
}

// or combines two conditions; the left one is neither True nor Failed.
func or(left, right Truth) Truth {
	if right == False {
		return left
	}
	return right
}

// valueKind is the type of a value.
type valueKind uint8

const (
	nullValue valueKind = iota
	booleanValue
	integerValue
	decimalValue
	textValue
	failedValue // see Failed
)

type value struct {
	kind    valueKind
	boolean bool
	integer int64
	decimal float64
	text    string
}

// value evaluates an operand.
func (n *node) value(get func(string) (string, bool)) value {
	switch n.op {
	case opProperty:
		if s, ok := get(n.text); ok {
			return value{kind: textValue, text: s}
		}
		return value{}
	case opText, opInteger, opDecimal:
		return constant(n)
	case opNegate:
		switch v := n.args[0].value(get); v.kind {
		case integerValue:
			return value{kind: integerValue, integer: -v.integer}
		case decimalValue:
			return value{kind: decimalValue, decimal: unsignZero(-v.decimal)}
		case failedValue:
			return v
		}
		return value{}
	}
	switch n.truth(get) {
	case True:
		return value{kind: booleanValue, boolean: true}
	case False:
		return value{kind: booleanValue}
	case Unknown:
		return value{}
	}
	return value{kind: failedValue}
}

// constant returns the value of a literal other than TRUE, FALSE and NULL.
func constant(n *node) value {
	switch n.op {
	case opText:
		return value{kind: textValue, text: n.text}
	case opInteger:
		return value{kind: integerValue, integer: n.integer}
	case opDecimal:
		return value{kind: decimalValue, decimal: n.decimal}
	}
	return value{}
}

// equal compares as upstream does: null on the left is unknown and on the
// right false, and null equals null.
func equal(left, right value) Truth {
	switch {
	case right.kind == failedValue:
		return Failed
	case left.kind == nullValue && right.kind == nullValue:
		return True
	case left.kind == nullValue:
		return Unknown
	case right.kind == nullValue:
		return False
	case left.kind == textValue && right.kind == textValue:
		return truthOf(left.text == right.text)
	case left.kind == booleanValue || right.kind == booleanValue:
		l, lok := booleanOf(left)
		r, rok := booleanOf(right)
		return truthOf(lok && rok && l == r)
	}
	left, right = numberBeside(left, right), numberBeside(right, left)
	if left.kind == failedValue || right.kind == failedValue {
		return Failed
	}
	return truthOf(compareNumbers(left, right) == 0)
}

// booleanOf reads a value beside a boolean; a number is none.
func booleanOf(v value) (b, ok bool) {
	switch v.kind {
	case booleanValue:
		return v.boolean, true
	case textValue:
		return strings.EqualFold(v.text, "true"), true
	}
	return false, false
}

// numberBeside returns v as it is to be compared with other; v is a number, or
// text and other a number.
func numberBeside(v, other value) value {
	if v.kind != textValue {
		return v
	}
	if other.kind == integerValue {
		if i, ok := parseInteger(v.text); ok {
			return value{kind: integerValue, integer: i}
		}
		if v = decimalOf(v.text); v.decimal != v.decimal {
			return value{kind: failedValue} // upstream has no NaN here
		}
	} else {
		v = decimalOf(v.text)
	}
	v.decimal = unsignZero(v.decimal)
	return v
}

// decimalOf reads text as a decimal.
func decimalOf(s string) value {
	f, ok := parseDecimal(s)
	if !ok {
		return value{kind: failedValue}
	}
	return value{kind: decimalValue, decimal: f}
}

// unsignZero makes −0 equal to 0. Upstream has no literal zero, so only the
// order of two properties knows both.
func unsignZero(f float64) float64 {
	if f == 0 {
		return 0
	}
	return f
}

func isNumber(v value) bool { return v.kind == integerValue || v.kind == decimalValue }

// compareNumbers orders two numbers, as decimals unless both are integers.
func compareNumbers(a, b value) int {
	if a.kind == integerValue && b.kind == integerValue {
		return compareIntegers(a.integer, b.integer)
	}
	return compareDecimals(a.asDecimal(), b.asDecimal())
}

func (v value) asDecimal() float64 {
	if v.kind == integerValue {
		return float64(v.integer)
	}
	return v.decimal
}
