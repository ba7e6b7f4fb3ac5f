package gantry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/message"
)

func TestFault_Q1_OwnTime(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[1]}, func(t *testing.T, c *site) {
		s := c.open()
		for i := range 30 {
			c.put(s, testMessage(fmt.Sprint(i), "KEYS", fmt.Sprintf("k%d", i)))
			c.clock.add(437 * time.Millisecond)
		}
		waitDispatched(t, s)
		for i, e := range c.acked {
			key := fmt.Sprintf("k%d", i)
			for _, w := range []struct {
				from, to int64
				want     int
			}{{e.time, e.time, 1}, {e.time - 1, e.time, 1}, {e.time, e.time + 1, 1}, {e.time + 1, e.time + 5000, 0}, {0, e.time - 1, 0}, {e.time, 0, 1}} {
				if got := c.query(s, "TopicTest", key, QueryOptions{From: w.from, To: w.to}); len(got) != w.want {
					t.Errorf("%s at %d in [%d, %d]: %v, want %d", key, e.time-testStart, w.from-testStart, w.to-testStart, got, w.want)
				}
			}
		}
		mustClose(t, s)
	})
}

func TestFault_Q2_ClockBack(t *testing.T) {
	c := newSite(t, inMemory)
	c.unchecked = true
	s := c.open()
	c.clock.add(10 * time.Second)
	first := c.put(s, testMessage("1", "KEYS", "K"))
	c.clock.add(-10 * time.Second)
	c.put(s, testMessage("2", "KEYS", "K"))
	waitDispatched(t, s)
	check := func() {
		t.Helper()
		got := c.query(s, "TopicTest", "K", QueryOptions{From: testStart + 5000, To: testStart + 15_000})
		if !slices.Contains(got, first.PhysicalOffset) {
			t.Errorf("found %v, want the first", got)
		}
		c.verify(s)
	}
	check()
	// As a log without rule A3 has it: the second one's time is earlier.
	c.stop(s, stopClean)
	c.patchLog(c.acked[1].physical+56, binary.BigEndian.AppendUint64(nil, testStart))
	c.acked[1].time = testStart
	c.remove("index", c.names("index")[0])
	c.remove("checkpoint")
	s = c.open()
	check()
	mustClose(t, s)
}

// TestFault_Q3_Q4_Collisions: the newer of two messages has another key with
// the same hash.
func TestFault_Q3_Q4_Collisions(t *testing.T) {
	c := newSite(t, inMemory)
	s := c.open()
	want := c.put(s, testMessage("right", "KEYS", "Aa")).PhysicalOffset
	for range 100 {
		c.put(s, testMessage("wrong", "KEYS", "BB"))
	}
	c.put(s, toTopic("Other", "other topic", "KEYS", "Aa"))
	waitDispatched(t, s)
	if message.IndexKeyHash("TopicTest", "Aa") != message.IndexKeyHash("TopicTest", "BB") {
		t.Fatal("the hashes differ")
	}
	for _, limit := range []int{1, 2, 64, 0} {
		if got := c.query(s, "TopicTest", "Aa", QueryOptions{Max: limit}); !slices.Equal(got, []message.PhysicalOffset{want}) {
			t.Errorf("max %d: %v, want %d", limit, got, want)
		}
	}
	mustClose(t, s)
}

func TestFault_Q5_ExpiredHits(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize = 4096
	s := c.open()
	for range 30 {
		c.put(s, testMessage("old", "KEYS", "k"))
	}
	c.putMany(s, "TopicTest", 0, 20)
	c.clock.add(1000 * time.Hour)
	c.putMany(s, "TopicTest", 0, 60)
	c.retain(s)
	for range 3 {
		if got := c.query(s, "TopicTest", "k", QueryOptions{Max: 1}); got != nil {
			t.Errorf("expired hits: %v", got)
		}
	}
	if said := c.notes.damaged(); len(said) > 0 || s.Stats().DamagedReads > 0 {
		t.Errorf("expired hits are reported as damage: %v", said)
	}
	// They do not use up the limit.
	kept := c.put(s, testMessage("new", "KEYS", "k")).PhysicalOffset
	waitDispatched(t, s)
	if got := c.query(s, "TopicTest", "k", QueryOptions{Max: 2}); !slices.Equal(got, []message.PhysicalOffset{kept}) {
		t.Errorf("got %v, want %d", got, kept)
	}
	mustClose(t, s)
}

func TestFault_Q6_NewestFirstAndPages(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.IndexEntries = 30 // several files
	s := c.open()
	for i := range 200 {
		c.clock.add(time.Second)
		c.put(s, testMessage(fmt.Sprint(i), "KEYS", "k"))
	}
	waitDispatched(t, s)
	all := c.query(s, "TopicTest", "k", QueryOptions{})
	var want []message.PhysicalOffset
	for _, e := range slices.Backward(c.acked) {
		want = append(want, e.physical)
	}
	if !slices.Equal(all, want) {
		t.Errorf("all: %v", all)
	}
	if got := c.query(s, "TopicTest", "k", QueryOptions{Max: 10}); !slices.Equal(got, want[:10]) {
		t.Errorf("max 10: %v, want %v", got, want[:10])
	}
	var pages []message.PhysicalOffset
	for before := message.PhysicalOffset(0); len(pages) < 200; {
		page := c.query(s, "TopicTest", "k", QueryOptions{Max: 17, Before: before})
		if len(page) == 0 {
			break
		}
		pages = append(pages, page...)
		before = page[len(page)-1]
	}
	if !slices.Equal(pages, want[:len(pages)]) || len(pages) < 199 {
		t.Errorf("pages of 17: %v", pages)
	}
	mustClose(t, s)
}

func TestFault_Q8_UnreadableIndex(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.IndexEntries = 8
	s := c.open()
	c.putMany(s, "TopicTest", 0, 30)
	waitDispatched(t, s)
	c.stop(s, stopClean)
	names := c.names("index")
	c.fault = faultfs.New(c.fs)
	s = c.open()
	c.fault.Fail(faultfs.OpRead|faultfs.OpMapRead|faultfs.OpOpen|faultfs.OpMap, c.path("index", names[1]), faultfs.ErrIO)
	// A query that passes the file says that its answer may lack something.
	found, err := s.Query(context.Background(), "TopicTest", "key0", QueryOptions{})
	if !errors.Is(err, faultfs.ErrIO) || len(found) != 1 {
		t.Errorf("%d hits, %v", len(found), err)
	}
	c.fault.Clear()
	c.verify(s)
	mustClose(t, s)
}

func TestFault_Q9_AnyPosition(t *testing.T) {
	for _, v := range allVariants[:2] {
		c := newSite(t, v)
		c.opts.CommitLogFileSize = 4096
		s := c.open()
		body := "\xFF\xFF\xFF\xFF\x7F\xFF\xFF\xFF\x00\x00\x00\x00\x00\x00\x00\x5B\xDA\xA3\x20\xA7\x00\x00\x10\x00\xDA\xA3\x20\xA7"
		for range 50 {
			c.put(s, testMessage(body+body+body, "KEYS", "k"))
		}
		waitDispatched(t, s)
		_, end := s.Range()
		valid := make(map[message.PhysicalOffset]bool)
		for _, e := range c.acked {
			valid[e.physical] = true
		}
		for at := message.PhysicalOffset(-100); at < end+8192; at++ {
			m, err := s.MessageAt(at)
			switch {
			case valid[at]:
				if err != nil || m.PhysicalOffset != at {
					t.Errorf("at %d: %+v, %v", at, m, err)
				}
			case err == nil:
				t.Errorf("no message begins at %d, but %+v", at, m)
			case !errors.Is(err, ErrCorrupt) && !errors.Is(err, ErrNotFound):
				t.Errorf("at %d: %v", at, err)
			}
		}
		for _, id := range []string{"", "x", "7F00000100002A9F", "7F00000100002A9FFFFFFFFFFFFFFFFF", "7F00000100002A9F000000000000000G", "7F00000100002A9F0000000000000001"} {
			if m, err := s.MessageByID(id); err == nil {
				t.Errorf("id %q: %+v", id, m)
			}
		}
		// No file is held.
		c.clock.add(1000 * time.Hour)
		c.putMany(s, "TopicTest", 0, 40)
		c.retain(s)
		c.verify(s)
		mustClose(t, s)
	}
}

func TestFault_Q10_ReadBelowTheStart(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize = 4096
	s := c.open()
	c.putMany(s, "TopicTest", 0, 40)
	c.clock.add(1000 * time.Hour)
	c.putMany(s, "TopicTest", 0, 40)
	c.retain(s)
	first, end := s.Range()
	buf := make([]byte, 100)
	for _, at := range []message.PhysicalOffset{0, 1, first - 100, first - 1, end - 99, end, end + 1, -5} {
		if err := s.log.Read(at, buf); !errors.Is(err, ErrNotFound) {
			t.Errorf("100 bytes at %d of [%d, %d): %v", at, first, end, err)
		}
	}
	must(t, s.log.Read(first, buf))
	mustClose(t, s)
}

func TestFault_Q11_AbsentIsNotZero(t *testing.T) {
	c := queueFrom1000(t, 5)
	c.unchecked = true       // the times in the index are others
	for i := range c.acked { // a time of its own for each
		c.acked[i].time = testStart + int64(i)*1000
		c.patchLog(c.acked[i].physical+56, binary.BigEndian.AppendUint64(nil, uint64(c.acked[i].time)))
	}
	s := c.open()
	for _, off := range []message.QueueOffset{-1, 0, 5, 999, 1005, 1 << 40} {
		if at, err := s.PhysicalOffsetOf("TopicTest", 0, off); !errors.Is(err, ErrNotFound) {
			t.Errorf("position of offset %d: %d, %v", off, at, err)
		}
		if at, err := s.StoreTimeAt("TopicTest", 0, off); !errors.Is(err, ErrNotFound) {
			t.Errorf("time of offset %d: %d, %v", off, at, err)
		}
	}
	if at, err := s.PhysicalOffsetOf("TopicTest", 0, 1000); err != nil || at != 0 {
		t.Errorf("position of offset 1000: %d, %v", at, err)
	}
	c.bounds(s, "TopicTest", 0, []boundAt{
		{testStart + 4000, 1004, 1004}, {testStart + 3500, 1004, 1003}, {testStart, 1000, 1000}, {testStart - 1, 1000, 1000}, {testStart + 4001, 1005, 1004},
	})
	mustClose(t, s)
}

// TestFault_Q12_TimesAfterTruncation: nothing that was learned of a file's
// times survives what is cut off.
func TestFault_Q12_TimesAfterTruncation(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize = 4096, 200
	s := c.open()
	c.putMany(s, "TopicTest", 0, 60)
	c.ranges(s)
	c.stop(s, stopKill)
	cut := c.acked[25].physical
	c.cutLog(cut)
	c.forget(func(e entry) bool { return e.physical >= cut })
	s = c.open()
	c.ranges(s)
	c.clock.add(time.Second)
	for range 10 {
		c.clock.add(20 * time.Millisecond)
		c.put(s, testMessage("other time"))
	}
	waitDispatched(t, s)
	last := c.acked[len(c.acked)-1]
	c.bounds(s, "TopicTest", 0, []boundAt{{last.time, last.offset, last.offset}, {last.time - 1, last.offset, last.offset - 1}, {c.acked[24].time + 1, 25, 24}})
	mustClose(t, s)
}

func TestFault_Q13_EqualTimes(t *testing.T) {
	const n = 20_000
	c := newSite(t, variant{noMmap: true})
	c.opts.CommitLogFileSize, c.opts.NoIndex = 16<<20, true
	s := c.open()
	for range n / 100 {
		msgs := make([]*message.Message, 100)
		for i := range msgs {
			msgs[i] = testMessage("x")
		}
		c.putBatch(s, msgs...)
	}
	c.stop(s, stopClean)
	c.fault = faultfs.New(c.fs)
	s = c.open()
	for _, w := range []struct {
		bound Bound
		ms    int64
		want  message.QueueOffset
	}{{Lower, testStart, 0}, {Upper, testStart, n - 1}, {Lower, testStart + 1, n}, {Upper, testStart - 1, 0}} {
		c.fault.ResetCounts()
		off, _, err := s.OffsetByTime("TopicTest", 0, w.ms, w.bound)
		if err != nil || off != w.want {
			t.Errorf("bound %d of %d: %d, %v, want %d", w.bound, w.ms-testStart, off, err, w.want)
		}
		if calls := c.fault.Count(faultfs.OpRead, c.path("commitlog/*")).Calls; calls > 40 {
			t.Errorf("bound %d of %d: %d reads of the log", w.bound, w.ms-testStart, calls)
		}
	}
	mustClose(t, s)
}

func TestFault_Q14_UpperBeforeAll(t *testing.T) {
	c := newSite(t, inMemory)
	s := c.open()
	c.putMany(s, "TopicTest", 0, 5)
	waitDispatched(t, s)
	off, found, err := s.OffsetByTime("TopicTest", 0, testStart-3_600_000, Upper)
	if off != 0 || found || err != nil {
		t.Errorf("upper an hour before: %d, %v, %v; want 0, none", off, found, err)
	}
	if _, found, _ := s.OffsetByTime("TopicTest", 0, c.acked[0].time, Upper); !found {
		t.Error("upper at the first message: none")
	}
	mustClose(t, s)
}

// TestFault_Q15_TimesThatFall: in a log with falling times, which this store
// does not write, a search ends and answers something within the queue.
func TestFault_Q15_TimesThatFall(t *testing.T) {
	c := newSite(t, inMemory)
	c.unchecked = true
	s := c.open()
	c.putMany(s, "TopicTest", 0, 50)
	c.stop(s, stopClean)
	for i, e := range c.acked {
		c.patchLog(e.physical+56, binary.BigEndian.AppendUint64(nil, uint64(testStart+int64(i*7919%50))))
	}
	s = c.open()
	for ms := int64(testStart - 2); ms < testStart+52; ms++ {
		for _, b := range []Bound{Lower, Upper} {
			if off, _, err := s.OffsetByTime("TopicTest", 0, ms, b); err != nil || off < 0 || off > 50 {
				t.Errorf("bound %d of %d: %d, %v", b, ms-testStart, off, err)
			}
		}
	}
	mustClose(t, s)
}
