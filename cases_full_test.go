package gantry

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// fiveHundred is a message with a body of 500 bytes.
func fiveHundred(i int) *message.Message {
	return testMessage(fmt.Sprintf("%0500d", i), "KEYS", fmt.Sprintf("full%d", i))
}

func TestC37NoSpaceAtTheRoll(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpAllocate} {
		for _, v := range allVariants[:3] {
			for _, logSize := range []int64{1 << 20, 16 << 10} {
				t.Run(fmt.Sprintf("%s/%s/log=%d", op, v.name, logSize), func(t *testing.T) {
					// In a bubble, because pauses between attempts to make a
					// file are in real time otherwise.
					synctest.Test(t, func(t *testing.T) { noSpaceAtRoll(t, v, op, logSize) })
				})
			}
		}
	}
}

func noSpaceAtRoll(t *testing.T, v variant, op faultfs.Op, logSize int64) {
	c := newSite(t, v)
	c.opts.CommitLogFileSize, c.keyStep = logSize, 20
	c.fault = faultfs.New(c.fs)
	next := fmt.Sprintf("%020d", logSize)
	rule := c.fault.Inject(faultfs.Rule{Ops: op, Name: next, Err: faultfs.ErrNoSpace})
	s := c.open()
	ctx := context.Background()
	failed := 0
	for i := 0; failed < 5; i++ {
		if i > 3000 {
			t.Fatal("never out of space")
		}
		_, before := s.Range()
		m := fiveHundred(i)
		res, err := s.Put(ctx, m)
		if err == nil {
			if failed > 0 {
				t.Fatalf("a put succeeded without space: %+v", res)
			}
			c.note(res, m)
			continue
		}
		failed++
		if !errors.Is(err, ErrDiskFull) || PutStatusOf(err) != CreateMappedFileFailed {
			t.Fatalf("put without space: %v", err)
		}
		if _, end := s.Range(); end != before {
			t.Fatalf("the failed put moved the end from %d to %d", before, end)
		}
	}
	c.verify(s) // reading goes on
	last := c.acked[len(c.acked)-1]
	rule.Remove()
	var healed PutResult
	for range 100 {
		m := fiveHundred(1 << 20)
		res, err := s.Put(ctx, m)
		if err == nil {
			healed = res
			c.note(res, m)
			break
		}
		if !errors.Is(err, ErrDiskFull) {
			t.Fatal(err)
		}
		time.Sleep(100 * time.Millisecond) // of the bubble
	}
	if healed.QueueOffset != last.offset+1 || healed.PhysicalOffset != message.PhysicalOffset(logSize) {
		t.Fatalf("the first put with space again: %+v, the last before was %d at %d", healed, last.offset, last.physical)
	}
	for i := range 20 {
		c.put(s, fiveHundred(2<<20+i))
	}
	c.verify(s)
	for _, how := range allStops {
		s = c.reopen(s, how)
		c.verify(s)
	}
	mustClose(t, s)
}

// TestC37FiveTimesNoSpace: the rule of the case, five failing calls, whoever
// makes them.
func TestC37FiveTimesNoSpace(t *testing.T) {
	for _, v := range allVariants[:3] {
		t.Run(v.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newSite(t, v)
				c.opts.CommitLogFileSize = 16 << 10
				c.fault = faultfs.New(c.fs)
				rule := c.fault.Inject(faultfs.Rule{
					Ops: faultfs.OpCreate | faultfs.OpTruncate | faultfs.OpAllocate, Name: fmt.Sprintf("%020d", 32<<10), Count: 5, Err: faultfs.ErrNoSpace,
				})
				s := c.open()
				for i, stored := 0, 0; stored < 100; i++ {
					if i > 200 {
						t.Fatal("it does not heal")
					}
					m := fiveHundred(stored)
					res, err := s.Put(context.Background(), m)
					if err != nil {
						if !errors.Is(err, ErrDiskFull) {
							t.Fatal(err)
						}
						time.Sleep(time.Second) // of the bubble
						continue
					}
					if res.QueueOffset != message.QueueOffset(stored) {
						t.Fatalf("queue offset %d, want %d", res.QueueOffset, stored)
					}
					c.note(res, m)
					stored++
				}
				if rule.Hits() != 5 {
					t.Errorf("the file system failed %d times", rule.Hits())
				}
				c.verify(s)
				s = c.reopen(s, stopKill)
				c.verify(s)
				mustClose(t, s)
			})
		})
	}
}

// TestC37FileSystemFull fills a file system that panics where a real one would
// send SIGBUS. Queues, index and checkpoint have no space either.
func TestC37FileSystemFull(t *testing.T) {
	for _, v := range allVariants[:3] {
		for seed := range 4 {
			t.Run(fmt.Sprintf("%s/%d", v.name, seed), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { fileSystemFull(t, v, seed) })
			})
		}
	}
}

func fileSystemFull(t *testing.T, v variant, seed int) {
	c := newSite(t, v)
	c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize = 64<<10, 400
	c.opts.IndexSlots, c.opts.IndexEntries, c.keyStep = 50, 200, 10
	mem := c.fs.(*memfs.FS)
	mem.RequireAllocated(true)
	s := c.open()
	for i := range 10 {
		c.put(s, fiveHundred(i))
	}
	waitDispatched(t, s)
	mem.SetCapacity(mem.Used() + int64(seed)*100_000 + 4096*int64(seed))
	failed := 0
	for i := 10; failed < 5; i++ {
		if i > 5000 {
			t.Fatal("never full")
		}
		m := fiveHundred(i)
		if seed == 3 {
			m.Topic = fmt.Sprintf("Topic%d", i%50) // a new queue, a new file
		}
		res, err := s.Put(context.Background(), m)
		switch {
		case err == nil:
			c.note(res, m)
		case errors.Is(err, ErrDiskFull):
			failed++
			time.Sleep(10 * time.Second) // of the bubble: dispatcher and checkpoints meet the full disk as well
		default:
			t.Fatal(err)
		}
	}
	full := c.fork() // the process ends, and comes back on a full disk
	full.fs.(*memfs.FS).SetCapacity(mem.Used())
	if fs, err := Open(context.Background(), full.dir, full.options()); err == nil {
		// It needed nothing that it could not have.
		full.verify(fs)
		fs.abandon()
	} else if !errors.Is(err, ErrDiskFull) {
		t.Errorf("opening on the full disk: %v", err)
	}
	full.fs.(*memfs.FS).SetCapacity(0)
	fs := full.open()
	full.verify(fs)
	mustClose(t, fs)

	mem.SetCapacity(0)
	c.clock.add(2 * time.Minute) // longer than the longest pause
	time.Sleep(2 * time.Minute)  // likewise, in the bubble
	for i := range 30 {
		c.put(s, fiveHundred(1<<20+i))
	}
	c.verify(s)
	if err := s.Stats().Failure; err != nil {
		t.Errorf("the store is read-only: %v", err)
	}
	s = c.reopen(s, stopKill)
	c.verify(s)
	mustClose(t, s)
}

// TestC37RefusedOnFullDisk: a store that cannot even be marked as open is not
// opened, and not changed.
func TestC37RefusedOnFullDisk(t *testing.T) {
	c := newSite(t, inMemory)
	s := c.open()
	c.putMany(s, "TopicTest", 0, 20)
	c.stop(s, stopClean)
	mem := c.fs.(*memfs.FS)
	mem.SetCapacity(mem.Used())
	if err := c.refused(); !errors.Is(err, ErrDiskFull) {
		t.Errorf("error %v", err)
	}
	mem.SetCapacity(0)
	s = c.open()
	c.verify(s)
	mustClose(t, s)
}
