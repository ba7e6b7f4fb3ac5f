package gantry

import (
	"context"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

func TestPutGetQueryReopen(t *testing.T) {
	fs, clock := memfs.NewCrashable(1), newClock()
	opts := smallOptions(fs, clock)
	s := mustOpen(t, opts)
	var want []string
	for i := range 50 {
		clock.add(1e6)
		res := mustPut(t, s, keyed(i))
		if res.QueueOffset != message.QueueOffset(i) {
			t.Fatalf("put %d got queue offset %d", i, res.QueueOffset)
		}
		want = append(want, fmt.Sprintf("body-%d", i))
	}
	check := func(s *Store) {
		t.Helper()
		if d := cmp.Diff(want, bodies(t, s, "TopicTest", 0, 0)); d != "" {
			t.Errorf("messages (-want +got)\n%s", d)
		}
		for i := range want {
			if d := cmp.Diff([]string{want[i]}, queryBodies(t, s, "TopicTest", fmt.Sprintf("k%d", i), QueryOptions{})); d != "" {
				t.Errorf("key k%d (-want +got)\n%s", i, d)
			}
		}
	}
	waitDispatched(t, s)
	check(s)
	crashed := kill(s, fs)
	s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
	check(s)
	mustClose(t, s)
	s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
	check(s)
	if r := s.Recovery(); !r.CleanStop || r.Replayed != 0 {
		t.Errorf("after a clean stop: %+v", r)
	}
	if _, err := s.Put(context.Background(), keyed(50)); err != nil {
		t.Error(err)
	}
	mustClose(t, s)
}
