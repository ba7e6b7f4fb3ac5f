package sqlfilter

import (
	"testing"

	"github.com/gantrymq/gantry/message"
)

func compile(t testing.TB, expression string) *Expr {
	t.Helper()
	e, err := Compile(expression)
	if err != nil {
		t.Fatalf("Compile(%q): %v", expression, err)
	}
	return e
}

// props makes the lookup over pairs name, value, ….
func props(pairs ...string) func(string) (string, bool) {
	return message.NewProperties(pairs...).Get
}
