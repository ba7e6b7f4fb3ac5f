package gantry

import (
	"context"
	"fmt"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

const anyRead = faultfs.OpRead | faultfs.OpMapRead

// crashOpened opens what a crash left of the site's store and returns the
// file system with its counters.
func (c *site) crashOpened(s *Store, policy memfs.Policy, change func(*Options)) (*Store, *faultfs.FS) {
	c.t.Helper()
	left := *c
	left.fs = c.fs.(*memfs.FS).CrashClone(policy)
	left.fault = faultfs.New(left.fs)
	opened, err := Open(context.Background(), c.dir, left.options().with(change))
	must(c.t, err)
	return opened, left.fault
}

// TestRecoveryIsBounded: what opening after a crash reads depends on what was
// written since the last checkpoint, not on the size of the store: the log, the
// queues and the index of a store ten times as large cost the same.
func TestRecoveryIsBounded(t *testing.T) {
	const fileSize, since = 64 << 10, 200
	for _, policy := range []memfs.Policy{memfs.KeepAll, memfs.LoseRandomPages | memfs.Torn} {
		t.Run(policy.String(), func(t *testing.T) {
			cost := make(map[string][]int64) // by part of the store, for each size
			parts := []string{"commitlog/*", "consumequeue/*/*/*", "index/*"}
			for _, before := range []int{1500, 15_000} {
				c := newSite(t, inMemory)
				c.opts.CommitLogFileSize, c.opts.IndexSlots, c.opts.IndexEntries = fileSize, 500, 2000
				s := c.open()
				put := func(n int) (bytes int64) {
					for i := range n / 10 {
						var msgs []*message.Message
						for j := range 10 {
							msgs = append(msgs, toTopic(fmt.Sprintf("T%d", i%5), fmt.Sprintf("%d-%d", i, j), "KEYS", fmt.Sprintf("k%d", i*10+j)))
						}
						res, err := s.PutBatch(context.Background(), msgs)
						must(t, err)
						bytes += int64(res.Size)
					}
					return bytes
				}
				put(before)
				waitDispatched(t, s)
				must(t, s.Sync(context.Background()))
				written := put(since)
				waitDispatched(t, s)
				opened, counts := c.crashOpened(s, policy, func(*Options) {})
				if r := opened.Recovery(); r.Replayed > since || policy == memfs.KeepAll && r.Replayed < since {
					t.Errorf("%d messages before: %d records were replayed, %d were put since the checkpoint", before, r.Replayed, since)
				}
				for _, part := range parts {
					read := counts.Count(anyRead, c.path(part))
					cost[part] = append(cost[part], read.Bytes)
				}
				// What is replayed is read when the end is looked for and once
				// more; besides the file with the last record before it.
				if log := cost["commitlog/*"][len(cost["commitlog/*"])-1]; log > 3*written+3*fileSize {
					t.Errorf("%d messages before: %d bytes of the log were read for %d that were written since the checkpoint", before, log, written)
				}
				mustClose(t, opened)
				s.abandon()
			}
			for _, part := range parts {
				small, large := cost[part][0], cost[part][1]
				t.Logf("%s: %d and %d bytes", part, small, large)
				if large > small+small/2+fileSize {
					t.Errorf("%s: a small store cost %d bytes, one ten times as large %d", part, small, large)
				}
			}
		})
	}
}

// TestRecoveryOfManyQueues: with many queues of several files each, opening
// after a crash looks at a few places of each, however many files it has; and
// progress is shown. -crash.long makes it ten thousand queues.
func TestRecoveryOfManyQueues(t *testing.T) {
	queues := 500
	if *crashLong {
		queues = 10_000
	}
	few := manyQueues(t, queues, 17)  // four files
	many := manyQueues(t, queues, 57) // twelve files
	if few.Calls != many.Calls || few.Bytes != many.Bytes {
		t.Errorf("opening %d queues reads %+v of four files each and %+v of twelve", queues, few, many)
	}
}

// manyQueues crashes a store with n messages in each queue and returns what
// opening it reads of queue files.
func manyQueues(t *testing.T, queues, n int) faultfs.Counter {
	c := newSite(t, inMemory)
	c.unchecked = true // some seconds, and it is checked elsewhere
	c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize = 4<<20, 5*20
	c.opts.Flush, c.opts.NoIndex = FlushAsync, true
	s := c.open()
	for q := range queues {
		var msgs []*message.Message
		for range n {
			msgs = append(msgs, &message.Message{Topic: fmt.Sprintf("T%d", q/8), QueueID: int32(q % 8), Body: []byte("x")})
		}
		if _, err := s.PutBatch(context.Background(), msgs); err != nil {
			t.Fatal(err)
		}
	}
	waitDispatched(t, s)
	must(t, s.Sync(context.Background()))
	c.putMany(s, "T0", 0, 10)
	waitDispatched(t, s)
	var shown []Progress
	opened, counts := c.crashOpened(s, memfs.KeepAll, func(o *Options) { o.Progress = func(p Progress) { shown = append(shown, p) } })
	files := counts.Count(faultfs.OpOpen, c.path("consumequeue/*/*/*"))
	read := counts.Count(anyRead, c.path("consumequeue/*/*/*"))
	t.Logf("%d queues of %d messages: %d files opened, %d bytes read in %d calls", queues, n, files.Calls, read.Bytes, read.Calls)
	if files.Calls > int64(4*queues) || read.Bytes > int64(400*queues) {
		t.Errorf("%d files of %d queues were opened, %d bytes read", files.Calls, queues, read.Bytes)
	}
	if log := counts.Count(anyRead, c.path("commitlog/*")); log.Bytes > 3*4<<20 {
		t.Errorf("%d bytes of the log were read", log.Bytes)
	}
	last := make(map[string]Progress)
	for _, p := range shown {
		if before, ok := last[p.Step]; ok && (p.Done < before.Done || p.Total != before.Total) || p.Done > p.Total {
			t.Errorf("progress %+v after %+v", p, before)
		}
		last[p.Step] = p
	}
	if p := last["opening consume queues"]; p.Total != int64(queues) || p.Done != p.Total || p.Unit != "queues" {
		t.Errorf("progress of the queues: %+v", p)
	}
	for _, step := range []string{"checking the commit log", "replaying"} {
		if p := last[step]; p.Done != p.Total || p.Total == 0 || p.Unit != "bytes" {
			t.Errorf("progress of %s: %+v", step, p)
		}
	}
	if opened.Stats().Queues != queues {
		t.Errorf("%d queues", opened.Stats().Queues)
	}
	mustClose(t, opened)
	s.abandon()
	return read
}
