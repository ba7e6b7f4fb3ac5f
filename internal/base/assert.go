package base

import (
	"fmt"
	"testing"
)

// checked is on under go test and with -tags invariants.
var checked = invariantsTag || testing.Testing()

// Assert panics with the formatted values when cond is false, under tests and
// with -tags invariants; otherwise it does nothing. It is for broken
// invariants of our own, never for bytes from disk or network.
func Assert(cond bool, format string, args ...any) {
	if checked && !cond {
		panic("invariant: " + fmt.Sprintf(format, args...))
	}
}
