package gantry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/message"
)

func TestFault_D1_OneBadRecord(t *testing.T) {
	for _, damage := range []struct {
		name string
		pos  int64
		b    []byte
	}{
		{"size 0", recSize, make([]byte, 4)},
		{"size max", recSize, []byte{0x7F, 0xFF, 0xFF, 0xFF}},
		{"size one too many", recSize + 3, []byte{0xFF}},
		{"magic", recMagic, make([]byte, 4)},
		{"all", 0, make([]byte, 60)},
	} {
		for _, v := range allVariants[:2] {
			for _, logSize := range []int64{1 << 20, 4096} {
				t.Run(fmt.Sprintf("%s/%s/log=%d", damage.name, v.name, logSize), func(t *testing.T) {
					c := newSite(t, v)
					c.opts.CommitLogFileSize = logSize
					s := c.open()
					c.putMany(s, "TopicTest", 0, 10)
					waitDispatched(t, s)
					s.dispatchMu.Lock() // the dispatcher waits, and has to read the log afterwards
					c.putMany(s, "TopicTest", 0, 60)
					s.ring.head.Store(s.ring.tail.Load())
					bad := c.acked[30]
					c.patchLog(bad.physical+message.PhysicalOffset(damage.pos), damage.b)
					s.dispatchMu.Unlock()
					waitDispatched(t, s)
					c.forget(func(e entry) bool { return e == bad })
					c.queueRange(s, "TopicTest", 0, 0, 70)
					c.verify(s)
					if got := len(c.notes.damaged()); got == 0 || s.Stats().SkippedBytes != int64(bad.size) {
						t.Errorf("%d reports, %d bytes skipped, the record has %d", got, s.Stats().SkippedBytes, bad.size)
					}
					c.putMany(s, "TopicTest", 0, 3)
					c.verify(s)
					s.abandon()
				})
			}
		}
	}
}

func TestFault_D2_GapKeepsSlots(t *testing.T) {
	c := newSite(t, inMemory)
	s := c.open()
	c.putMany(s, "TopicTest", 0, 10)
	waitDispatched(t, s)
	// Ten records that the dispatcher never sees.
	s.dispatchMu.Lock()
	c.putMany(s, "TopicTest", 0, 10)
	lost := slices.Clone(c.acked[10:])
	end := s.log.End()
	s.ring.head.Store(s.ring.tail.Load())
	s.setDispatched(end, lost[9].physical, lost[9].time)
	s.dispatchMu.Unlock()
	c.putMany(s, "TopicTest", 0, 10)
	c.forget(func(e entry) bool { return slices.Contains(lost, e) })
	waitDispatched(t, s)
	res, err := s.Get("TopicTest", 0, 20, GetOptions{Max: 1})
	must(t, err)
	msgs, err := res.Messages()
	must(t, err)
	if len(msgs) != 1 || msgs[0].QueueOffset != 20 {
		t.Errorf("slot 20 holds %+v", msgs)
	}
	if len(c.notes.damaged()) != 1 {
		t.Errorf("the gap was reported %d times", len(c.notes.damaged()))
	}
	if res := c.put(s, keyed(1)); res.QueueOffset != 30 {
		t.Errorf("the next message has offset %d", res.QueueOffset)
	}
	waitDispatched(t, s)
	s.abandon()

	// Units that were lost in a file come back from the log.
	c = newSite(t, inMemory)
	s = c.open()
	c.putMany(s, "TopicTest", 0, 30)
	c.stop(s, stopClean)
	c.zero("consumequeue/TopicTest/0/00000000000000000000", 10*20, 20*20)
	c.remove("checkpoint")
	s = c.open()
	c.verify(s)
	mustClose(t, s)
}

// TestFault_D2_HoleIsNotSilent: units that vanished from the middle of a queue
// while nobody looks at the queue as a whole. Messages there are said to be
// unreadable; they are not passed over as if there were none.
func TestFault_D2_HoleIsNotSilent(t *testing.T) {
	base := newSite(t, inMemory)
	base.unchecked = true
	s := base.open()
	base.putMany(s, "TopicTest", 0, 900)
	base.stop(s, stopClean)
	reported := 0
	for hole := int64(30); hole < 890; hole += 87 {
		c := base.fork()
		c.zero("consumequeue/TopicTest/0/00000000000000000000", hole*20, hole*20+60)
		s := c.open()
		got, damaged := 0, 0
		for off := message.QueueOffset(0); off < 900; {
			res, err := s.Get("TopicTest", 0, off, GetOptions{Max: 1000})
			if err != nil || res.NextOffset <= off {
				t.Fatalf("hole at %d: get at %d: %+v, %v", hole, off, res, err)
			}
			got, damaged, off = got+len(res.Records), damaged+len(res.Damaged), res.NextOffset
		}
		if got+damaged != 900 {
			t.Errorf("hole at %d: %d messages and %d reports, want 900 together", hole, got, damaged)
		}
		reported += damaged
		s.abandon()
	}
	if reported == 0 {
		t.Error("opening noticed every hole: the test shows nothing")
	}
}

// TestFault_D3_D4_QueueWriteErrors: units that cannot be written are written
// later, to their own slots, and none is dropped.
func TestFault_D3_D4_QueueWriteErrors(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpWrite} {
		for _, cause := range []error{faultfs.ErrNoSpace, faultfs.ErrIO} {
			for _, count := range []int{1, 5} {
				t.Run(fmt.Sprintf("%s/%v/%d", op, errors.Is(cause, faultfs.ErrIO), count), func(t *testing.T) {
					synctest.Test(t, func(t *testing.T) {
						c := newSite(t, inMemory)
						c.opts.ConsumeQueueFileSize = 100 // five units
						c.fault = faultfs.New(c.fs)
						s := c.open()
						rule := c.fault.Inject(faultfs.Rule{Ops: op, Name: c.path("consumequeue/TopicTest/0/*"), Count: count, Err: cause})
						c.putMany(s, "TopicTest", 0, 5)
						c.verify(s) // units are seen whether they are in a file or not
						for range 10 {
							_ = s.Sync(context.Background())
							time.Sleep(time.Minute) // of the bubble
							c.clock.add(time.Minute)
						}
						if rule.Hits() != count {
							t.Fatalf("%d calls failed", rule.Hits())
						}
						c.putMany(s, "TopicTest", 0, 5)
						c.verify(s)
						must(t, s.Sync(context.Background()))
						for i, u := range c.units("TopicTest", 0, 0, 10) {
							if unit, err := consumequeue.DecodeUnit(u); err != nil || unit.Physical != c.acked[i].physical {
								t.Errorf("slot %d holds %+v, %v, want the message at %d", i, unit, err, c.acked[i].physical)
							}
						}
						s = c.reopen(s, stopClean)
						c.verify(s)
						mustClose(t, s)
					})
				})
			}
		}
	}
}

func TestFault_D5_NothingTwiceInTheIndex(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		c.opts.IndexEntries = 20
		s := c.open()
		for i := range 30 {
			// Equal unique key and key, a key twice, keys of several messages.
			c.put(s, testMessage(fmt.Sprint(i), "UNIQ_KEY", fmt.Sprintf("u%d", i), "KEYS", fmt.Sprintf("u%d a%d a%d", i, i/3, i/3)))
		}
		waitDispatched(t, s)
		for range 3 {
			s = c.reopen(s, stopKill)
			c.verify(s)
			s = c.reopen(s, stopAbort)
			c.verify(s)
		}
		mustClose(t, s)
	})
}

func TestFault_D7_FirstEntryAfterIdleGap(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.IndexEntries = 4
	s := c.open()
	c.putMany(s, "TopicTest", 0, 3)
	c.clock.add(time.Minute)
	c.put(s, testMessage("late", "KEYS", "late"))
	waitDispatched(t, s)
	at := c.acked[3].time
	if got := c.query(s, "TopicTest", "late", QueryOptions{From: at - 1000, To: at + 1000}); len(got) != 1 {
		t.Errorf("found %v", got)
	}
	mustClose(t, s)
}

func TestFault_D8_ClockBackAtRoll(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[3]}, func(t *testing.T, c *site) {
		c.opts.IndexEntries = 4
		s := c.open()
		c.putMany(s, "TopicTest", 0, 3)
		waitDispatched(t, s)
		c.clock.add(-time.Hour)
		c.put(s, testMessage("b", "KEYS", "b"))
		c.put(s, testMessage("c", "KEYS", "c"))
		c.verify(s)
		for _, how := range allStops {
			s = c.reopen(s, how)
			c.verify(s)
		}
		c.stop(s, stopClean)
		readers := c.indexReaders()
		if h := readers[len(readers)-1].Header(); h.EndPhy != c.acked[4].physical {
			t.Errorf("the last of %q ends at %d, want %d", c.names("index"), h.EndPhy, c.acked[4].physical)
		}
	})
}

func TestFault_D9_CleaningWaitsForDispatch(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize, c.opts.DeleteBatch = 4096, 100
	s := c.open()
	c.putMany(s, "TopicTest", 0, 40)
	waitDispatched(t, s)
	s.dispatchMu.Lock()
	c.putMany(s, "TopicTest", 0, 100)
	c.clock.add(1000 * time.Hour)
	gone, err := s.Clean(context.Background(), CleanOptions{AnyHour: true})
	s.dispatchMu.Unlock()
	must(t, err)
	first, _ := s.Range()
	if first > c.acked[39].physical || len(gone) == 0 {
		t.Errorf("%d files went, the log begins at %d; dispatched was up to %d", len(gone), first, c.acked[39].physical)
	}
	c.forget(func(e entry) bool { return e.physical < first })
	c.verify(s)
	mustClose(t, s)
}

func TestFault_D10_IndexCannotRoll(t *testing.T) {
	for _, cause := range []error{faultfs.ErrIO, faultfs.ErrNoSpace} {
		c := newSite(t, inMemory)
		c.opts.IndexEntries = 4
		c.fault = faultfs.New(c.fs)
		s := c.open()
		c.putMany(s, "TopicTest", 0, 3)
		waitDispatched(t, s)
		rule := c.fault.Inject(faultfs.Rule{Ops: faultfs.OpCreate, Name: c.path("index/*"), Err: cause})
		c.putMany(s, "TopicTest", 0, 20)
		waitDispatched(t, s) // the queues go on
		if got := bodies(t, s, "TopicTest", 0, 0); len(got) != 23 {
			t.Errorf("%d messages", len(got))
		}
		if len(c.notes.failedWrites()) == 0 || s.Stats().WriteErrors == 0 {
			t.Error("the failure was not reported")
		}
		if _, err := s.Query(context.Background(), "TopicTest", "key10", QueryOptions{}); !errors.Is(err, cause) {
			t.Errorf("a query says %v", err)
		}
		rule.Remove()
		c.clock.add(time.Hour)
		c.putMany(s, "TopicTest", 0, 1)
		c.verify(s)
		s = c.reopen(s, stopKill)
		c.verify(s)
		mustClose(t, s)
	}
}

// TestFault_D11_IndexInsertFails: an insert that fails in a file that is not
// full. The index gives up, the queues go on, and the next opening mends it.
func TestFault_D11_IndexInsertFails(t *testing.T) {
	for _, count := range []int{1, 0} { // once, and always
		c := newSite(t, inMemory)
		c.fault = faultfs.New(c.fs)
		s := c.open()
		c.putMany(s, "TopicTest", 0, 3)
		waitDispatched(t, s)
		c.fault.Inject(faultfs.Rule{Ops: faultfs.OpMapWrite | faultfs.OpWrite | faultfs.OpAllocate, Name: c.path("index/*"), Count: count, Err: faultfs.ErrIO})
		for i := range 20 {
			m := keyed(i)
			if res, err := s.Put(context.Background(), m); err == nil {
				c.note(res, m)
			}
		}
		waitDispatched(t, s)
		if got := bodies(t, s, "TopicTest", 0, 0); len(got) != len(c.acked) || len(got) < 4 {
			t.Errorf("%d messages, %d were acknowledged", len(got), len(c.acked))
		}
		if len(c.notes.failedWrites()) == 0 {
			t.Error("the failure was not reported")
		}
		c.stop(s, stopKill)
		s = c.open()
		c.verify(s)
		mustClose(t, s)
	}
}

// TestDispatchRingOverflows: more messages come than the ring holds while the
// dispatcher is held up, and then some that it holds again: those between are
// read from the log.
func TestDispatchRingOverflows(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize, c.opts.NoIndex = 16<<20, 2_000_000, true
	s := c.open()
	const batch = 100
	put := func(n int) {
		for range n / batch {
			msgs := make([]*message.Message, batch)
			for i := range msgs {
				msgs[i] = testMessage(fmt.Sprint(len(c.acked) + i))
			}
			c.putBatch(s, msgs...)
		}
	}
	s.dispatchMu.Lock()
	put(ringSize + 10*batch)
	for range 10 * batch { // what the dispatcher does, so that there is room behind the hole
		must(t, s.dispatch(s.ring.peek()))
		s.ring.pop()
	}
	put(10 * batch)
	s.dispatchMu.Unlock()
	waitDispatched(t, s)
	for i, body := range bodies(t, s, "TopicTest", 0, 0) {
		if body != fmt.Sprint(i) {
			t.Fatalf("message %d is %q", i, body)
		}
	}
	if _, end, err := s.QueueRange("TopicTest", 0); err != nil || int(end) != len(c.acked) {
		t.Errorf("the queue has %d messages, %v; put were %d", end, err, len(c.acked))
	}
	if n := len(c.notes.damaged()); n > 0 {
		t.Errorf("%d damages were reported", n)
	}
	mustClose(t, s)
}
