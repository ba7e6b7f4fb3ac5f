//go:build interop

package sqlfilter

import (
	"encoding/base64"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/sqlfilter"
	"github.com/gantrymq/gantry/message"
)

var (
	expressions = flag.Int("sqlfilter.expressions", 5000, "number of random expressions")
	seed        = flag.Uint64("sqlfilter.seed", 1, "seed of the random expressions")
)

const messages = 8 // for each expression

// question is one expression with the messages it is evaluated for.
type question struct {
	text  string
	props []message.Properties
}

// TestExpressions: an expression is refused by both sides or by none, and has
// the same result, but for the differences that the package comment lists.
func TestExpressions(t *testing.T) {
	r := source{rand.New(rand.NewPCG(*seed, 0))}
	questions := make([]question, *expressions)
	for i := range questions {
		q := &questions[i]
		q.text = r.expression(r.IntN(4))
		if r.IntN(3) == 0 {
			q.text = r.broken(q.text)
		}
		for range messages {
			q.props = append(q.props, message.Properties(r.properties()))
		}
	}
	t.Run("java=5.4.0", func(t *testing.T) { compare(t, "5.4.0", questions) })
	// In 4.9 the text operators are names like any other.
	questions = slices.DeleteFunc(questions, func(q question) bool {
		return newWords.MatchString(q.text)
	})
	t.Run("java=4.9.4", func(t *testing.T) { compare(t, "4.9.4", questions) })
}

var newWords = regexp.MustCompile(`(?i)contains|startswith|endswith`)

func compare(t *testing.T, version string, questions []question) {
	var lines []string
	for _, q := range questions {
		lines = append(lines, "E "+base64.StdEncoding.EncodeToString([]byte(q.text)))
	}
	compiled, err := ask(t.Context(), version, lines)
	if err != nil {
		t.Fatal(err)
	}
	lines = nil
	for i, q := range questions {
		if compiled[i] != "OK" {
			continue
		}
		lines = append(lines, "E "+base64.StdEncoding.EncodeToString([]byte(q.text)))
		for _, p := range q.props {
			lines = append(lines, "P "+base64.StdEncoding.EncodeToString([]byte(p)))
		}
	}
	evaluated, err := ask(t.Context(), version, lines)
	if err != nil {
		t.Fatal(err)
	}

	count := make(map[string]int)
	for i, q := range questions {
		java := compiled[i]
		expr, err := sqlfilter.Compile(q.text)
		if java != "OK" {
			javaText := decode(t, strings.TrimPrefix(java, "ERR "))
			count[refusal(t, version, q.text, javaText, err)]++
			continue
		}
		answers := evaluated[1 : 1+messages]
		evaluated = evaluated[1+messages:]
		if err != nil {
			count[refusedAlone(t, q.text, err)]++
			continue
		}
		count["accepted by both"]++
		for j, p := range q.props {
			count[result(t, q.text, p, answers[j], expr.Eval(p.Get))]++
		}
	}
	for _, what := range slices.Sorted(maps.Keys(count)) {
		t.Logf("%7d %s", count[what], what)
	}
}

// refusal checks what Java refused.
func refusal(t *testing.T, version, text, java string, err error) string {
	var syntax *sqlfilter.SyntaxError
	if !errors.As(err, &syntax) {
		switch {
		case strings.HasSuffix(java, "is less than 4.9E-324"):
			return "difference 3: accepted here alone, 0.0"
		case version == "4.9.4":
			return "accepted here alone: not in the language of 4.9"
		}
		t.Errorf("%q: accepted; Java: %s", text, java)
		return "accepted here alone"
	}
	if syntax.Remark() == java {
		return "refused by both with the same text"
	}
	if testing.Verbose() && *verboseTexts {
		t.Logf("%q:\n%s\nJava:\n%s", text, syntax.Remark(), java)
	}
	return "refused by both with different texts"
}

var verboseTexts = flag.Bool("sqlfilter.texts", false, "print error texts that differ")

// refusedAlone checks what Java accepted.
func refusedAlone(t *testing.T, text string, err error) string {
	var syntax *sqlfilter.SyntaxError
	if errors.As(err, &syntax) {
		switch {
		case strings.Contains(syntax.Remark(), "\n    <EOF> \n"):
			return "difference 1: refused here alone, text behind the expression"
		case strings.Contains(syntax.Reason, "into parentheses"):
			return "difference 2: refused here alone, NOT before a comparison"
		}
	}
	t.Errorf("%q: %v; accepted by Java", text, err)
	return "refused here alone"
}

// result checks the result for one message.
func result(t *testing.T, text string, p message.Properties, java string, got sqlfilter.Truth) string {
	want := map[string]sqlfilter.Truth{"TRUE": sqlfilter.True, "FALSE": sqlfilter.False, "NULL": sqlfilter.Unknown}
	w, ok := want[java]
	switch {
	case ok && got == w:
		return "evaluated alike: " + java
	case !ok && got == sqlfilter.Failed:
		return "evaluated alike: exception"
	case java == "THROWS NumberFormatException java.lang.Integer", java == "THROWS NumberFormatException java.lang.Long":
		return "difference 4: evaluated here alone, number of another type"
	case java == "THROWS ClassCastException ":
		return "difference 5: evaluated here alone, boolean and text"
	}
	t.Errorf("%q with %q: %v; Java: %s", text, p, got, java)
	return "evaluated differently"
}

// TestBloom compares sizes and positions.
func TestBloom(t *testing.T) {
	type filter struct{ rate, groups int }
	var filters []filter
	for rate := 1; rate < 100; rate++ {
		for _, groups := range []int{1, 2, 3, 7, 16, 31, 32, 33, 64, 100, 128, 1000} {
			filters = append(filters, filter{rate, groups})
		}
	}
	r := source{rand.New(rand.NewPCG(*seed, 1))}
	var lines, want []string
	for _, f := range filters {
		b, err := sqlfilter.NewBloom(f.rate, f.groups)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, fmt.Sprintf("B %d %d", f.rate, f.groups))
		want = append(want, fmt.Sprintf("%d %d", b.Bits(), b.Hashes()))
		group, topic := r.pick(values)+r.pick(names), strings.Repeat(r.pick(texts), r.IntN(5))
		lines = append(lines, fmt.Sprintf("H %d %d %s", f.rate, f.groups, base64.StdEncoding.EncodeToString([]byte(group+"#"+topic))))
		want = append(want, strings.ReplaceAll(fmt.Sprint(b.Positions(group, topic)), " ", ", "))
	}
	got, err := ask(t.Context(), "5.4.0", lines)
	if err != nil {
		t.Fatal(err)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%s: %s; Java: %s", lines[i], want[i], got[i])
		}
	}
}

func decode(t *testing.T, s string) string {
	b, err := base64.StdEncoding.DecodeString(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
