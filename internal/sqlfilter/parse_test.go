package sqlfilter

import (
	"errors"
	"strings"
	"testing"
)

func TestString(t *testing.T) {
	for _, tt := range []struct{ name, text, want string }{
		{"recorded, Java", "n > 2 AND color = 'red' AND TAGS IS NOT NULL", "n > 2 AND color = 'red' AND TAGS IS NOT NULL"},
		{"recorded, Node", "n > 4", "n > 4"},
		{"upstream's example", "(TAGS is not null and TAGS in ('TagA', 'TagB'))and (a is not null and a between 0 and 3)",
			"TAGS IS NOT NULL AND TAGS IN ('TagA', 'TagB') AND (a IS NOT NULL AND a BETWEEN 0 AND 3)"},
		{"keywords in any case", "a bEtWeEn 1 aNd 2 oR noT(b Is nOt nUll)and c=tRue", "a BETWEEN 1 AND 2 OR NOT (b IS NOT NULL) AND c = TRUE"},
		{"OR below AND", "a or b and c", "a OR b AND c"},
		{"parentheses kept", "(a or b) and c", "(a OR b) AND c"},
		{"parentheses dropped", "((a) or ((b = 1)))", "a OR b = 1"},
		{"flat on the left", "(a and b) and c", "a AND b AND c"},
		{"nested on the right", "a and (b and c)", "a AND (b AND c)"},
		{"BETWEEN takes its AND", "a between 1 and 2 and b", "a BETWEEN 1 AND 2 AND b"},
		{"equality is left-associative", "a = b <> c", "a = b <> c"},
		{"equality to the right", "a = (b = c)", "a = (b = c)"},
		{"comparison within equality", "a = b > c", "a = b > c"},
		{"IS NULL of a comparison", "a = 1 is null is not null", "a = 1 IS NULL IS NOT NULL"},
		{"NOT before parentheses", "not (a = 1)", "NOT (a = 1)"},
		{"NOT of a property", "not a and not not b", "NOT a AND NOT NOT b"},
		{"NOT compared", "(not a) = 'x'", "(NOT a) = 'x'"},
		{"NOT on the right", "a = not b", "a = (NOT b)"},
		{"signs", "+a > - - +5", "a > - -5"},
		{"sign of parentheses", "a > -(-(b))", "a > - -b"},
		{"sign of NOT", "a > -not b", "a > -(NOT b)"},
		{"text operators", "a contains 'x' or a not contains 'y' or a startswith '' or a not startswith 'z' or a endswith 'e' or a not endswith 'f'",
			"a CONTAINS 'x' OR a NOT CONTAINS 'y' OR a STARTSWITH '' OR a NOT STARTSWITH 'z' OR a ENDSWITH 'e' OR a NOT ENDSWITH 'f'"},
		{"text operator of a condition", "(a and b) contains 'x' contains 'y'", "(a AND b) CONTAINS 'x' CONTAINS 'y'"},
		{"lists", "a in('x')and b not in ( 'y' , 'z' )", "a IN ('x') AND b NOT IN ('y', 'z')"},
		{"quotes", "a = 'it''s' or a = '''' or a = ''", "a = 'it''s' OR a = '''' OR a = ''"},
		{"a string over lines", "a = 'x\ny'", "a = 'x\ny'"},
		{"other scripts in strings", "a = 'é中😀'", "a = 'é中😀'"},
		{"names", "_ = $a1 or A_$9 = nothing or between1", "_ = $a1 OR A_$9 = nothing OR between1"},
		{"integers", "a = 0 or a = 5L or a = 5l or a = 9223372036854775807", "a = 0 OR a = 5 OR a = 5 OR a = 9223372036854775807"},
		{"decimals", "a = 5. or a = .5 or a = 5e2 or a = 1.5E-3 or a = 00.5 or a = 0e0 or a = 1e300 or a = 5e-324",
			"a = 5.0 OR a = 0.5 OR a = 500.0 OR a = 0.0015 OR a = 0.5 OR a = 0.0 OR a = 1e+300 OR a = 5e-324"},
		{"booleans and NULL", "a = true or false or null or 5 = false", "a = TRUE OR FALSE OR NULL OR 5 = FALSE"},
		{"comments", "/* x */a/**/=/***/1--\n or -- ' ( /*\r\nb/* -- */", "a = 1 OR b"},
		{"comment at the end", "a = 1 -- what", "a = 1"},
		{"double minus is no comment on the last line", "a = --5", "a = - -5"},
		{"white space", "\t\r\n\f a\f>\t\n1 \r", "a > 1"},
		{"no white space", "a>1and b<=2or(c<>'x')is null", "a > 1 AND b <= 2 OR c <> 'x' IS NULL"},
		{"BETWEEN with equal bounds", "a between 1 and 1.0", "a BETWEEN 1 AND 1.0"},
		{"BETWEEN with signs is not checked", "a between -1 and -5", "a BETWEEN -1 AND -5"},
		{"NOT BETWEEN is not checked", "a not between 5 and 1", "a NOT BETWEEN 5 AND 1"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Compile(tt.text)
			if err != nil {
				t.Fatal(err)
			}
			if got := e.String(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
			if again := compile(t, tt.want).String(); again != tt.want {
				t.Errorf("compiled again: %s", again)
			}
		})
	}
}

// The tokens that an operand and the end of one can be, in upstream's words.
const (
	operandWanted = `"NOT" ...|"TRUE" ...|"FALSE" ...|"NULL" ...|<DECIMAL_LITERAL> ...|<FLOATING_POINT_LITERAL> ...|` +
		`<STRING_LITERAL> ...|<ID> ...|"(" ...|"-" ...|"+" ...|`
	behindOperand = `"NOT" ...|"AND" ...|"OR" ...|"BETWEEN" ...|"IN" ...|"IS" ...|"CONTAINS" ...|"STARTSWITH" ...|"ENDSWITH" ...|` +
		`"=" ...|"<>" ...|">" ...|">=" ...|"<" ...|"<=" ...|`
)

// TestErrors: the texts are what upstream 5.4.0 says, where it has an error at
// all; of a token of one character at the end it repeats nothing. A | stands for the line end and the four spaces that
// upstream puts behind each expected token.
func TestErrors(t *testing.T) {
	tests := []struct {
		name, text string
		pos        int
		reason     string // "" if it is the remark without the exception
		remark     string
	}{
		{"recorded", "n >", 3, "unexpected end, want NOT, TRUE, FALSE, NULL, <DECIMAL_LITERAL>, <FLOATING_POINT_LITERAL>, <STRING_LITERAL>, <ID>, (, - or +",
			parseException + `Encountered "<EOF>" at line 1, column 3.` + "\nWas expecting one of:|" + operandWanted},
		{"empty", "", 0, "unexpected end, want NOT, TRUE, FALSE, NULL, <DECIMAL_LITERAL>, <FLOATING_POINT_LITERAL>, <STRING_LITERAL>, <ID>, (, - or +",
			parseException + `Encountered "<EOF>" at line 0, column 0.` + "\nWas expecting one of:|" + operandWanted},
		{"operator twice", "a = = 5", 4, `unexpected "=", want NOT, TRUE, FALSE, NULL, <DECIMAL_LITERAL>, <FLOATING_POINT_LITERAL>, <STRING_LITERAL>, <ID>, (, - or +`,
			parseException + `Encountered " "=" "= "" at line 1, column 5.` + "\nWas expecting one of:|" + operandWanted},
		{"line and column", "a =\r\n\tand", 6, `unexpected "and", want NOT, TRUE, FALSE, NULL, <DECIMAL_LITERAL>, <FLOATING_POINT_LITERAL>, <STRING_LITERAL>, <ID>, (, - or +`,
			parseException + `Encountered " "AND" "and "" at line 2, column 9.` + "\nWas expecting one of:|" + operandWanted},
		{"end behind line ends", "a >\n\n", 5, "unexpected end, want NOT, TRUE, FALSE, NULL, <DECIMAL_LITERAL>, <FLOATING_POINT_LITERAL>, <STRING_LITERAL>, <ID>, (, - or +",
			parseException + `Encountered "<EOF>" at line 2, column 1.` + "\nWas expecting one of:|" + operandWanted},
		{"open parenthesis", "(a = 1", 6, "unexpected end, want NOT, AND, OR, BETWEEN, IN, IS, CONTAINS, STARTSWITH, ENDSWITH, =, <>, >, >=, <, <= or )",
			parseException + `Encountered "<EOF>" at line 1, column 6.` + "\nWas expecting one of:|" + behindOperand + `")" ...|`},
		{"string needed", "a CONTAINS 5", 11, `unexpected "5", want <STRING_LITERAL>`,
			parseException + `Encountered " <DECIMAL_LITERAL> "5 "" at line 1, column 12.` + "\nWas expecting:|<STRING_LITERAL> ...|"},
		{"list of numbers", "a IN (1)", 6, `unexpected "1", want <STRING_LITERAL>`,
			parseException + `Encountered " <DECIMAL_LITERAL> "1 "" at line 1, column 7.` + "\nWas expecting:|<STRING_LITERAL> ...|"},
		{"list without parentheses", "a IN '\u00e9\\\t'", 5, `unexpected "'é\\\t'", want (`,
			parseException + `Encountered " <STRING_LITERAL> "\'\u00e9\\\t\' "" at line 1, column 6.` + "\nWas expecting:|\"(\" ...|"},
		{"list not closed", "a IN ('x'", 9, "unexpected end, want , or )",
			parseException + `Encountered "<EOF>" at line 1, column 9.` + "\nWas expecting one of:|\",\" ...|\")\" ...|"},
		{"IS", "a IS 5", 5, `unexpected "5", want NOT or NULL`,
			parseException + `Encountered " <DECIMAL_LITERAL> "5 "" at line 1, column 6.` + "\nWas expecting one of:|\"NOT\" ...|\"NULL\" ...|"},
		{"IS NOT", "a IS NOT", 8, "unexpected end, want NULL",
			parseException + `Encountered "<EOF>" at line 1, column 8.` + "\nWas expecting:|\"NULL\" ...|"},
		{"NOT behind an operand", "a NOT 5", 2, `unexpected "NOT", want BETWEEN, IN, CONTAINS, STARTSWITH, ENDSWITH, >, >=, < or <=`,
			parseException + `Encountered " "NOT" "NOT "" at line 1, column 3.` +
				"\nWas expecting one of:|\"BETWEEN\" ...|\"IN\" ...|\"CONTAINS\" ...|\"STARTSWITH\" ...|\"ENDSWITH\" ...|\">\" ...|\">=\" ...|\"<\" ...|\"<=\" ...|"},
		{"BETWEEN without AND", "a BETWEEN 5", 11, "unexpected end, want AND",
			parseException + `Encountered "<EOF>" at line 1, column 11.` + "\nWas expecting:|\"AND\" ...|"},
		{"no condition", "5", 0, "", parseException + "Expression will not result in a boolean value: 5"},
		{"no condition on the left", "'x' AND b", 0, "", parseException + "Expression will not result in a boolean value: 'x'"},
		{"no condition on the right", "b OR 7.5", 5, "", parseException + "Expression will not result in a boolean value: 7.5"},
		{"no condition behind NOT", "NOT 5", 0, "", parseException + "Expression will not result in a boolean value: 5"},
		{"string ordered", "a > 'x'", 4, "", runtimeError + "Value ''x'' cannot be compared."},
		{"boolean ordered", "TRUE <= a", 0, "", runtimeError + "Value 'TRUE' cannot be compared."},
		{"NULL ordered", "a < NULL", 4, "", runtimeError + "Value 'NULL' cannot be compared."},
		{"condition ordered", "(a > 1) > 2", 0, "", runtimeError + "Value 'a > 1' cannot be compared."},
		{"strings in BETWEEN", "a BETWEEN 'a' AND 'b'", 10, "", runtimeError + "Value ''a'' cannot be compared."},
		{"boolean in BETWEEN", "a BETWEEN TRUE AND 1", 10, "", runtimeError + "Value 'TRUE' cannot be compared."},
		{"NULL in BETWEEN", "a BETWEEN NULL AND 1", 10, "", runtimeError + "Illegal values of between, values can not be null!"},
		{"bounds in the wrong order", "a BETWEEN 5 AND 1", 10, "", runtimeError + "Illegal values of between, left value(5) must less than or equal to right value(1)"},
		{"NULL is not equal", "a = NULL", 4, "", runtimeError + "'NULL' cannot be compared."},
		{"NULL on the left", "NULL <> a", 0, "", runtimeError + "'NULL' cannot be compared."},
		{"boolean and number", "TRUE = 5", 7, "", runtimeError + "'TRUE' cannot be compared with '5'"},
		{"list of no property", "5 IN ('x')", 0, "", runtimeError + "Expected a property for In expression, got: 5"},
		{"integer beyond 64 bits", "a > 9223372036854775808", 4, "", numberException + `For input string: "9223372036854775808"`},
		{"decimal too large", "a > 1e400", 4, "", runtimeError + "1e400 is greater than 1.7976931348623157E308"},
		{"decimal too small", "a > 1e-400", 4, "", runtimeError + "1e-400 is less than 4.9E-324"},
		{"unknown character", "a ! b", 2, `no token begins with "!"`, lexicalError + `Lexical error at line 1, column 3.  Encountered: "!" (33), after : ""`},
		{"double quote", `a = "x"`, 4, `no token begins with "\""`, lexicalError + `Lexical error at line 1, column 5.  Encountered: "\"" (34), after : ""`},
		{"name in another script", "中 = 1", 0, `no token begins with "中"`, lexicalError + `Lexical error at line 1, column 1.  Encountered: "\u4e2d" (20013), after : ""`},
		{"beyond the first plane", "a = '😀' 😀", 11, `no token begins with "😀"`, lexicalError + `Lexical error at line 1, column 10.  Encountered: "\ud83d" (55357), after : ""`},
		{"point", `a."b`, 2, `no token begins with ".\""`, lexicalError + `Lexical error at line 1, column 3.  Encountered: "\"" (34), after : "."`},
		{"slash", "a / b", 3, `no token begins with "/ "`, lexicalError + `Lexical error at line 1, column 4.  Encountered: " " (32), after : "/"`},
		{"point at the end", "a = .", 5, `"." is not finished`, lexicalError + `Lexical error at line 1, column 6.  Encountered: <EOF> after : "."`},
		{"escapes", "'\b\f\n\r\x00\x01", 7, `"'\b\f\n\r\x00\x01" is not finished`, lexicalError + `Lexical error at line 3, column 3.  Encountered: <EOF> after : "\'\b\f\n\r\u0001"`},
		{"string that ends at a doubled quote", "a = 'x'' ", 9, `"' " is not finished`, lexicalError + `Lexical error at line 1, column 10.  Encountered: <EOF> after : "\' "`},
		{"string not closed", "'abc", 4, `"'abc" is not finished`, lexicalError + `Lexical error at line 1, column 5.  Encountered: <EOF> after : "\'abc"`},
		{"string not closed behind a line end", "'abc\n", 5, `"'abc\n" is not finished`, lexicalError + `Lexical error at line 2, column 0.  Encountered: <EOF> after : "\'abc\n"`},
		{"comment not closed", "/* x", 4, `"/* x" is not finished`, lexicalError + `Lexical error at line 1, column 5.  Encountered: <EOF> after : "/* x"`},
		// Accepted by upstream.
		{"text behind", "a b", 2, `unexpected "b", want <EOF>, NOT, AND, OR, BETWEEN, IN, IS, CONTAINS, STARTSWITH, ENDSWITH, =, <>, >, >=, < or <=`,
			parseException + `Encountered " <ID> "b "" at line 1, column 3.` + "\nWas expecting one of:|<EOF> |" + behindOperand},
		{"LIKE", "a LIKE 'x'", 2, `unexpected "LIKE", want <EOF>, NOT, AND, OR, BETWEEN, IN, IS, CONTAINS, STARTSWITH, ENDSWITH, =, <>, >, >=, < or <=`,
			parseException + `Encountered " <ID> "LIKE "" at line 1, column 3.` + "\nWas expecting one of:|<EOF> |" + behindOperand},
		{"NOT before a comparison", "NOT a = 5", 0, "", runtimeError + "Value 'NOT a' cannot be compared. Put what NOT stands before into parentheses: NOT (... = ...)"},
		{"NOT before IS NULL", "b AND NOT a is null", 6, "", runtimeError + "Value 'NOT a' cannot be compared. Put what NOT stands before into parentheses: NOT (... is ...)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e, err := Compile(tt.text)
			var syntax *SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("compiled to %v, error %v", e, err)
			}
			if e != nil {
				t.Errorf("an expression beside the error: %v", e)
			}
			if want := strings.ReplaceAll(tt.remark, "|", "\n    "); syntax.Remark() != want {
				t.Errorf("remark\n%q, want\n%q", syntax.Remark(), want)
			}
			reason := tt.reason
			if reason == "" {
				_, reason, _ = strings.Cut(tt.remark, ": ")
			}
			if syntax.Pos != tt.pos || syntax.Reason != reason {
				t.Errorf("got  %d: %s\nwant %d: %s", syntax.Pos, syntax.Reason, tt.pos, reason)
			}
		})
	}
}

// TestDamaged: an expression that breaks off anywhere in a character that
// begins no token is refused there or before.
func TestDamaged(t *testing.T) {
	for _, text := range []string{
		"not (a = 5 or b <> .5) and c is not null",
		"a between -1 and + 2.5e3 or a not between 1 and 2",
		"a in ('x', 'y''s') or b not in ('z') and b = TRUE",
		"a contains 'x' and b not startswith 'y' and 'c' endswith 'z' is null",
		"a >= 1 and a <= 2L and a > 3 and a < b or FALSE",
	} {
		compile(t, text)
		for i := range text {
			_, err := Compile(text[:i] + "!")
			var syntax *SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("%q: %v", text[:i]+"!", err)
			}
			if syntax.Pos > i+1 {
				t.Errorf("%q: refused at %d", text[:i]+"!", syntax.Pos)
			}
		}
	}
}

// TestLimits: what is at a bound compiles, what is beyond it does not, and
// neither needs a deep stack or long.
func TestLimits(t *testing.T) {
	repeat := strings.Repeat
	for _, tt := range []struct {
		name    string
		at      func(n int) string
		bound   int // 0: none of them compiles
		reason  string
		hostile int
	}{
		{"length", func(n int) string { return "a = '" + repeat("x", n-6) + "'" }, MaxLength, "longer than", 10 << 20},
		{"parentheses", func(n int) string { return repeat("(", n-1) + "a" + repeat(")", n-1) }, MaxDepth, "nested deeper", 30000},
		{"open parentheses", func(n int) string { return repeat("(", n) }, 0, "nested deeper", 60000},
		{"NOT", func(n int) string { return repeat("NOT ", n-1) + "a" }, MaxDepth, "nested deeper", 15000},
		{"minus", func(n int) string { return "a=" + repeat("- ", n-2) + "1" }, MaxDepth, "nested deeper", 30000},
		{"plus", func(n int) string { return repeat("+", n-1) + "a" }, MaxDepth, "nested deeper", 60000},
		{"IS NULL", func(n int) string { return "a" + repeat(" IS NULL", n-1) }, MaxDepth, "nested deeper", 7000},
		{"equality", func(n int) string { return "a" + repeat("=a", n-1) }, MaxDepth, "nested deeper", 30000},
		{"conditions to the right", func(n int) string { return repeat("a and a and (", n-2) + "a or a" + repeat(")", n-2) }, MaxDepth, "nested deeper", 4000},
		{"list", func(n int) string { return "a IN ('x'" + repeat(",'y'", n-1) + ")" }, MaxList, "list of more", 16000},
		{"AND is flat", func(n int) string { return "a" + repeat(" AND a", n-1) }, (MaxLength + 5) / 6, "longer than", 100000},
		{"OR is flat", func(n int) string { return "a" + repeat(" OR a", n-1) }, (MaxLength + 4) / 5, "longer than", 100000},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if tt.bound > 0 {
				e, err := Compile(tt.at(tt.bound))
				if err != nil {
					t.Fatalf("at the bound: %v", err)
				}
				e.Eval(props("a", "1"))
				if _, err := Compile(tt.at(tt.bound + 1)); err == nil || !strings.Contains(err.Error(), tt.reason) {
					t.Errorf("beyond the bound: %v", err)
				}
			}
			if _, err := Compile(tt.at(tt.hostile)); err == nil || !strings.Contains(err.Error(), tt.reason) {
				t.Errorf("far beyond the bound: %v", err)
			}
		})
	}
}

// TestErrorsAreShort: an error repeats little of a long expression.
func TestErrorsAreShort(t *testing.T) {
	long := strings.Repeat("é", MaxLength/4)
	for _, text := range []string{
		"a IN '" + long + "'",
		"'" + long,
		"'" + long + "'",
		"a > '" + long + "'",
		"TRUE = '" + long + "'",
		"'" + long + "' IN ('x')",
		"a > " + strings.Repeat("9", MaxLength/2),
		"a > " + strings.Repeat("9", MaxLength/2) + ".0",
		"NOT " + strings.Repeat("a", MaxLength/2) + " = 1",
	} {
		_, err := Compile(text)
		var syntax *SyntaxError
		if !errors.As(err, &syntax) {
			t.Fatalf("%.20s…: %v", text, err)
		}
		if len(syntax.Remark()) > 2500 || len(syntax.Error()) > 1200 {
			t.Errorf("%.20s…: %d bytes of error, %d of remark", text, len(syntax.Error()), len(syntax.Remark()))
		}
	}
}
