package cli

import (
	"strings"
	"testing"

	"github.com/gantrymq/gantry"
)

// TestInfoTellsOfScrub: what the background check found can be seen from
// outside, until a pass finds nothing.
func TestInfoTellsOfScrub(t *testing.T) {
	b := newBench(t)
	b.store("/data", 2000) // several log files
	if out := b.must(exitOK, "store", "info", "/data"); strings.Contains(out, "scrub") {
		t.Errorf("before any pass:\n%s", out)
	}
	pass := func() gantry.Scrub {
		t.Helper()
		s, err := gantry.Open(t.Context(), "/data", &gantry.Options{FS: b.fs, Reserved: -1})
		if err != nil {
			t.Fatal(err)
		}
		state, err := s.Scrub(t.Context())
		if err != nil {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return state
	}
	const body = 88 // of the first record
	for _, findings := range []int64{1, 0} {
		if err := b.flip("/data/commitlog/00000000000000000000", body); err != nil { // and back
			t.Fatal(err)
		}
		state := pass()
		if state.Findings != findings || state.Records == 0 {
			t.Fatalf("scrub: %+v", state)
		}
		text := b.must(exitOK, "store", "info", "/data")
		line := jsonLines[infoJSON](t, b.must(exitOK, "store", "info", "/data", "--json"))[0].Scrub
		want := scrubJSON{true, state.Started, state.Completed, state.Bytes, state.Records, state.Findings, state.LastFinding}
		if line == nil || *line != want {
			t.Errorf("--json: %+v, want %+v", line, want)
		}
		if has := strings.Contains(text, "scrub found"); has != (findings > 0) || !strings.Contains(text, plural(findings, "finding")) || !strings.Contains(text, state.LastFinding) {
			t.Errorf("%d findings, the last %q:\n%s", findings, state.LastFinding, text)
		}
	}
}
