package gantry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// TestRefusedForBatchQueues: an opening that fails at the batch queues leaves
// the simple ones as they are, although they would have been cut.
func TestRefusedForBatchQueues(t *testing.T) {
	fs := memfs.NewCrashable(1)
	opts := smallOptions(fs, newClock())
	s := mustOpen(t, opts)
	var last PutResult
	for i := range 20 {
		last = mustPut(t, s, keyed(i))
	}
	mustClose(t, s)
	f, err := fs.Open(testDir+"/commitlog/00000000000000000000", vfs.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, last.Size), int64(last.PhysicalOffset)); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if err := fs.MkdirAll(testDir + "/batchconsumequeue"); err != nil {
		t.Fatal(err)
	}
	foreign, err := fs.Create(testDir + "/batchconsumequeue/CURRENT")
	if err != nil {
		t.Fatal(err)
	}
	if err := foreign.Close(); err != nil {
		t.Fatal(err)
	}
	before := tree(t, fs)
	if _, err := Open(context.Background(), testDir, opts); !errors.Is(err, consumequeue.ErrRocksDB) {
		t.Fatalf("open: %v", err)
	}
	unchanged(t, fs, before, "a refused opening")
}

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
