package gantry

import (
	"fmt"
	"slices"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// TestQueueOffsetsBeganAgain: a Java broker that deletes a topic leaves its
// records in the log; a topic made again begins at offset 0. Replaying the
// whole log gives the new queue, not a mixture.
func TestQueueOffsetsBeganAgain(t *testing.T) {
	for name, lose := range map[string][]string{
		"checkpoint":            {"checkpoint"},
		"index":                 {"index"},
		"checkpoint and queues": {"checkpoint", "consumequeue"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := memfs.NewCrashable(1)
			opts := smallOptions(fs, newClock())
			s := mustOpen(t, opts)
			for i := range 5 {
				mustPut(t, s, testMessage(fmt.Sprintf("old%d", i), "KEYS", "k"))
			}
			waitDispatched(t, s)
			s.dispatchMu.Lock()
			if err := s.queues.RemoveTopic("TopicTest"); err != nil {
				t.Fatal(err)
			}
			clear(s.table.m)
			s.dispatchMu.Unlock()
			want := []string{"new0", "new1"}
			for _, body := range want {
				mustPut(t, s, testMessage(body, "KEYS", "k"))
			}
			mustClose(t, s)
			for _, dir := range lose {
				removeAll(t, fs, testDir+"/"+dir)
			}
			for range 2 {
				s = mustOpen(t, opts)
				if got := bodies(t, s, "TopicTest", 0, 0); !slices.Equal(got, want) {
					t.Errorf("the queue holds %q, want %q", got, want)
				}
				mustClose(t, s)
			}
			s = mustOpen(t, opts)
			if r := s.Recovery(); r.Replayed > 0 {
				t.Errorf("a clean store is replayed again: %+v", r)
			}
			if res := mustPut(t, s, testMessage("new2")); res.QueueOffset != 2 {
				t.Errorf("the next message got offset %d", res.QueueOffset)
			}
			mustClose(t, s)
		})
	}
}
