package sqlfilter

import (
	"errors"
	"strings"
	"testing"
)

// FuzzCompile: any text is compiled or refused at a place within it; what was
// compiled has a String that means the same, and is its own String.
func FuzzCompile(f *testing.F) {
	for _, tt := range expressions {
		f.Add(tt.text, "n\x013\x02color\x01red\x02")
	}
	for _, text := range []string{
		"", "a", "not (a = 'it''s') or b is not null -- x", "a between -1 and - - 5.5e3", "a in ('','''') /* c */ and\n(b not contains 'x')",
		"((a <> TRUE) = (b > -c)) is null", "NOT NOT a AND +5L = .5", "a = 'x''", "a NOT 5", "/*", "--", "5 = TRUE or -(NULL) is null", "a=--5",
	} {
		f.Add(text, "a\x015.5\x02b\x01true\x02c\x01x\x02")
	}
	f.Fuzz(func(t *testing.T, text, pairs string) {
		e, err := Compile(text)
		if err != nil {
			var syntax *SyntaxError
			if !errors.As(err, &syntax) {
				t.Fatalf("error of type %T", err)
			}
			if syntax.Pos < 0 || syntax.Pos > len(text) || syntax.Reason == "" || syntax.Remark() == "" {
				t.Fatalf("%#v", syntax)
			}
			return
		}
		get := func(name string) (string, bool) {
			for pair := range strings.SplitSeq(pairs, "\x02") {
				if n, v, ok := strings.Cut(pair, "\x01"); ok && n == name {
					return v, true
				}
			}
			return "", false
		}
		want := e.Eval(get)
		standard := e.String()
		again, err := Compile(standard)
		if err != nil {
			// It may have parentheses around a NOT, and so be deeper, and a
			// decimal with all its digits, and so be longer.
			if strings.Contains(err.Error(), "nested deeper") || strings.Contains(err.Error(), "longer than") {
				return
			}
			t.Fatalf("%q compiled to %q: %v", text, standard, err)
		}
		if again.String() != standard {
			t.Errorf("%q compiled to %q, and that to %q", text, standard, again)
		}
		if got := again.Eval(get); got != want {
			t.Errorf("%q is %s, %q is %s", text, want, standard, got)
		}
	})
}
