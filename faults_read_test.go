package gantry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/message"
)

func TestFault_R1_ReadsCreateNothing(t *testing.T) {
	c := newSite(t, inMemory)
	s := c.open()
	c.putMany(s, "TopicTest", 0, 3)
	waitDispatched(t, s)
	must(t, s.Sync(context.Background()))
	before := c.tree()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for i := range 10_000 {
		topic, id := fmt.Sprintf("unknown%d", i/4), int32(i%4)
		if i%100 == 0 {
			topic, id = "TopicTest", int32(i+1)
		}
		if res, err := s.Get(topic, id, 7, GetOptions{}); err != nil || res.Status != NoMatchedLogicQueue || res.MaxOffset != 0 {
			t.Fatalf("get: %+v, %v", res, err)
		}
		if i%100 == 0 {
			_, _, err1 := s.QueueRange(topic, id)
			_, _, err2 := s.OffsetByTime(topic, id, testStart, Lower)
			_, err3 := s.PhysicalOffsetOf(topic, id, 0)
			_, err4 := s.StoreTimeAt(topic, id, 0)
			for _, err := range []error{err1, err2, err3, err4} {
				if !errors.Is(err, ErrNotFound) {
					t.Errorf("error %v", err)
				}
			}
			if err := s.WaitReadable(ctx, topic, id, 0); !errors.Is(err, context.Canceled) {
				t.Errorf("waiting: %v", err)
			}
			if got := c.query(s, topic+"x", "key0", QueryOptions{}); got != nil {
				t.Errorf("query: %v", got)
			}
		}
	}
	if n := s.Stats().Queues; n != 1 || len(s.Queues()) != 1 {
		t.Errorf("%d queues", n)
	}
	must(t, s.Sync(context.Background()))
	after := c.tree()
	if len(before) != len(after) {
		t.Errorf("%d files, before %d", len(after), len(before))
	}
	mustClose(t, s)
}

func TestFault_R2_OneFailedRead(t *testing.T) {
	for _, where := range []string{"commitlog/*", "consumequeue/*/0/*"} {
		for nth := 1; nth <= 12; nth++ { // the n-th read of one pass fails
			c := newSite(t, variant{noMmap: true})
			s := c.open()
			c.putMany(s, "TopicTest", 0, 10)
			c.stop(s, stopClean)
			c.fault = faultfs.New(c.fs)
			s = c.open()
			rule := c.fault.Inject(faultfs.Rule{Ops: faultfs.OpRead, Name: c.path(where), Nth: nth, Count: 1, Err: faultfs.ErrIO})
			var got []message.QueueOffset
			failed := 0
			for off := message.QueueOffset(0); off < 10; {
				res, err := s.Get("TopicTest", 0, off, GetOptions{Max: 4})
				if err != nil {
					if failed++; failed > 1 || !errors.Is(err, faultfs.ErrIO) {
						t.Fatalf("%s: read %d: %v", where, nth, err)
					}
					continue // the next pull
				}
				for _, r := range res.Records {
					got = append(got, r.QueueOffset)
				}
				off = res.NextOffset
			}
			if want := []message.QueueOffset{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}; !slices.Equal(got, want) {
				t.Errorf("%s: read %d fails: got %v", where, nth, got)
			}
			if where == "commitlog/*" && nth <= 10 && rule.Hits() != 1 {
				t.Errorf("read %d did not fail", nth)
			}
			mustClose(t, s)
		}
	}
}

func TestFault_R3_PositionZeroIsGone(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize = 4096
	s := c.open()
	c.putMany(s, "TopicTest", 0, 40)
	c.clock.add(1000 * time.Hour)
	c.putMany(s, "TopicTest", 0, 40)
	c.retain(s)
	if first, _ := s.Range(); first == 0 {
		t.Fatal("the first file is there")
	}
	check := func() {
		t.Helper()
		for _, at := range []message.PhysicalOffset{0, 1, 100, -1, math.MinInt64, math.MaxInt64} {
			if m, err := s.MessageAt(at); !errors.Is(err, ErrNotFound) {
				t.Errorf("at %d: %+v, %v", at, m, err)
			}
		}
		if m, err := s.MessageByID(message.OffsetID(s.opts.StoreHost, 0)); !errors.Is(err, ErrNotFound) {
			t.Errorf("by id: %+v, %v", m, err)
		}
		if res, err := s.Get("TopicTest", 0, 0, GetOptions{}); err != nil || res.Status != OffsetTooSmall {
			t.Errorf("get at 0: %+v, %v", res, err)
		}
		c.verify(s)
	}
	check()
	s = c.reopen(s, stopKill)
	check()
	mustClose(t, s)
}

func TestFault_R5_ExpiredQueueGoesOn(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize, c.opts.DeleteBatch = 4096, 100
	s := c.open()
	c.putMany(s, "TopicA", 0, 100)
	c.clock.add(time.Hour)
	c.putMany(s, "TopicB", 0, 40)
	c.clock.add(1000 * time.Hour)
	c.putMany(s, "TopicB", 0, 60)
	c.retain(s)
	if c.acked[0].topic != "TopicB" {
		t.Fatal("TopicA is not expired")
	}
	for range 3 {
		c.put(s, toTopic("TopicA", "new"))
	}
	c.verify(s)
	res, err := s.Get("TopicA", 0, 100, GetOptions{}) // where the consumer was
	if err != nil || len(res.Records) != 3 || res.NextOffset != 103 {
		t.Errorf("at the old offset: %+v, %v", res, err)
	}
	if res, err := s.Get("TopicA", 0, 50, GetOptions{}); err != nil || res.Status != OffsetTooSmall || res.NextOffset != 100 {
		t.Errorf("before it: %+v, %v", res, err)
	}
	mustClose(t, s)
}

func TestFault_R6_ClosedIsAnError(t *testing.T) {
	c := newSite(t, inMemory)
	s := c.open()
	c.putMany(s, "TopicTest", 0, 3)
	mustClose(t, s)
	ctx := context.Background()
	for name, call := range map[string]func() error{
		"get":       func() error { _, err := s.Get("TopicTest", 0, 0, GetOptions{}); return err },
		"put":       func() error { _, err := s.Put(ctx, keyed(0)); return err },
		"put batch": func() error { _, err := s.PutBatch(ctx, []*message.Message{keyed(0)}); return err },
		"query":     func() error { _, err := s.Query(ctx, "TopicTest", "key0", QueryOptions{}); return err },
		"at":        func() error { _, err := s.MessageAt(0); return err },
		"time":      func() error { _, _, err := s.OffsetByTime("TopicTest", 0, 0, Lower); return err },
		"sync":      func() error { return s.Sync(ctx) },
		"clean":     func() error { _, err := s.Clean(ctx, CleanOptions{}); return err },
		"wait":      func() error { return s.WaitReadable(ctx, "TopicTest", 0, 100) },
		"info":      func() error { _, err := s.Info(); return err },
	} {
		if err := call(); !errors.Is(err, ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Errorf("closing again: %v", err)
	}
}

// panicAt is a filter that panics at one of the records.
type panicAt struct{ n int }

func (p *panicAt) MatchUnit(message.TagsCode) bool { return true }
func (p *panicAt) MatchRecord(*message.View) bool {
	if p.n--; p.n == 0 {
		panic("filter")
	}
	return true
}

func TestFault_R7_FilterPanics(t *testing.T) {
	for _, v := range allVariants[:2] {
		c := newSite(t, v)
		c.opts.CommitLogFileSize = 4096
		s := c.open()
		c.putMany(s, "TopicTest", 0, 100)
		waitDispatched(t, s)
		for range 20 {
			func() {
				defer func() {
					if recover() == nil {
						t.Error("the filter did not panic")
					}
				}()
				_, _ = s.Get("TopicTest", 0, 0, GetOptions{Filter: &panicAt{3}})
			}()
		}
		c.verify(s)
		// Nothing is held: files can go and the store can be closed.
		c.clock.add(1000 * time.Hour)
		c.putMany(s, "TopicTest", 0, 30)
		c.retain(s)
		c.verify(s)
		mustClose(t, s)
	}
}

func TestFault_R8_SelectiveFilter(t *testing.T) {
	const n = 20_000
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize, c.opts.NoIndex = 16<<20, true
	s := c.open()
	for range n / 100 {
		msgs := make([]*message.Message, 100)
		for i := range msgs {
			msgs[i] = testMessage("x", "TAGS", "common")
		}
		c.putBatch(s, msgs...)
	}
	mustPut(t, s, testMessage("the one", "TAGS", "rare"))
	waitDispatched(t, s)
	calls := func(o GetOptions) int {
		o.Filter = Tags("rare")
		off, calls := message.QueueOffset(0), 0
		for {
			res, err := s.Get("TopicTest", 0, off, o)
			must(t, err)
			calls++
			if res.NextOffset <= off {
				t.Fatalf("no progress at %d", off)
			}
			if len(res.Records) == 1 {
				return calls
			}
			off = res.NextOffset
		}
	}
	if got := calls(GetOptions{WireLimits: true}); got != (n+1+799)/800 {
		t.Errorf("%d calls with upstream's limit of 800 units", got)
	}
	if got := calls(GetOptions{Max: n + 1}); got != 1 {
		t.Errorf("%d calls when one may look at all units", got)
	}
	mustClose(t, s)
}
