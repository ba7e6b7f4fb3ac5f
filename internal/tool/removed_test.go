package tool

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestRemovedTopic: what is made anew from the log has nothing of a topic from
// before its removal.
func TestRemovedTopic(t *testing.T) {
	fsys := memfs.New()
	opts := gantry.Options{
		FS: fsys, CommitLogFileSize: 1 << 20, ConsumeQueueFileSize: 20_000, IndexSlots: 500, IndexEntries: 2_000, CleanInterval: -1,
	}
	open := func(dir string) *gantry.Store {
		t.Helper()
		s, err := gantry.Open(t.Context(), dir, &opts)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open("/s")
	put := func(topic string, n int) {
		t.Helper()
		for i := range n {
			m := &message.Message{Topic: topic, Body: fmt.Append(nil, topic, i), Properties: message.NewProperties("KEYS", "k")}
			if _, err := s.Put(t.Context(), m); err != nil {
				t.Fatal(err)
			}
		}
	}
	put("Gone", 5)
	put("Again", 5)
	put("Kept", 3)
	for _, topic := range []string{"Gone", "Again"} {
		if err := s.RemoveTopic(t.Context(), topic); err != nil {
			t.Fatal(err)
		}
	}
	put("Again", 2)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for name, run := range map[string]func(out string) error{
		"rebuild": func(out string) error {
			_, err := Rebuild(t.Context(), RebuildOptions{Dir: "/s", Out: out, Store: opts})
			return err
		},
		"repair": func(out string) error {
			_, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: out, Store: opts})
			return err
		},
		"rebuild in place": func(string) error {
			_, err := Rebuild(t.Context(), RebuildOptions{Dir: "/s", Store: opts})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := "/s"
			if name != "rebuild in place" {
				dir = "/" + name
			}
			if err := run(dir); err != nil {
				t.Fatal(err)
			}
			s := open(dir)
			defer s.Close()
			if r := s.Recovery(); len(r.Repaired) > 0 {
				t.Errorf("opening: %+v", r)
			}
			var got []string
			for _, q := range s.Queues() {
				got = append(got, fmt.Sprint(q.Topic, " ", q.MinOffset, " ", q.MaxOffset))
			}
			if want := []string{"Again 0 2", "Kept 0 3"}; !slices.Equal(got, want) {
				t.Errorf("queues %q, want %q", got, want)
			}
		})
	}
}
