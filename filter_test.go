package gantry

import (
	"slices"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

func TestGetByTag(t *testing.T) {
	s := mustOpen(t, smallOptions(memfs.New(), newClock()))
	defer mustClose(t, s)
	// "Aa" and "BB" have the same hash, as have "AaAa", "BBBB" and "AaBB".
	for _, tag := range []string{"Aa", "BB", "c", "", "AaAa", "BBBB", "AaBB"} {
		mustPut(t, s, testMessage("tag "+tag, "TAGS", tag))
	}
	waitDispatched(t, s)
	for expression, want := range map[string][]string{
		"":            {"tag Aa", "tag BB", "tag c", "tag ", "tag AaAa", "tag BBBB", "tag AaBB"},
		"*":           {"tag Aa", "tag BB", "tag c", "tag ", "tag AaAa", "tag BBBB", "tag AaBB"},
		"Aa":          {"tag Aa"},
		"BB":          {"tag BB"},
		" c || BBBB ": {"tag c", "tag BBBB"},
		"none":        nil,
		"c || *":      {"tag Aa", "tag BB", "tag c", "tag ", "tag AaAa", "tag BBBB", "tag AaBB"},
	} {
		res, err := s.Get("TopicTest", 0, 0, GetOptions{Filter: Tags(expression)})
		if err != nil {
			t.Fatal(err)
		}
		msgs, err := res.Messages()
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, m := range msgs {
			got = append(got, string(m.Body))
		}
		if !slices.Equal(got, want) {
			t.Errorf("tags %q: got %q, want %q", expression, got, want)
		}
		if want == nil && (res.Status != NoMatchedMessage || res.NextOffset != 7) {
			t.Errorf("tags %q: %v, next %d", expression, res.Status, res.NextOffset)
		}
	}
}
