package gantry

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/gantrymq/gantry/message"
)

// boundAt is what OffsetByTime answers for one time.
type boundAt struct {
	ms           int64
	lower, upper message.QueueOffset
}

func (c *site) bounds(s *Store, topic string, id int32, want []boundAt) {
	c.t.Helper()
	for _, w := range want {
		lower, _, err := s.OffsetByTime(topic, id, w.ms, Lower)
		if err != nil || lower != w.lower {
			c.t.Errorf("lower(%d) = %d, %v, want %d", w.ms-testStart, lower, err, w.lower)
		}
		upper, _, err := s.OffsetByTime(topic, id, w.ms, Upper)
		if err != nil || upper != w.upper {
			c.t.Errorf("upper(%d) = %d, %v, want %d", w.ms-testStart, upper, err, w.upper)
		}
	}
}

func TestC15EqualTimesAndFileBoundary(t *testing.T) {
	const t1, t2, t3 = testStart, testStart + 1000, testStart + 2000
	for _, logSize := range []int64{1 << 20, 512} { // all in one log file; each message in its own
		for _, batch := range []bool{false, true} {
			t.Run(fmt.Sprintf("log=%d/batch=%v", logSize, batch), func(t *testing.T) {
				eachVariant(t, allVariants, func(t *testing.T, c *site) {
					c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize = logSize, 60
					s := c.open()
					put := func(ms int64, n int) {
						c.clock.set(ms)
						if batch && logSize > 512 {
							var msgs []*message.Message
							for range n {
								msgs = append(msgs, testMessage("b"))
							}
							c.putBatch(s, msgs...)
							return
						}
						for range n {
							c.put(s, testMessage(fmt.Sprintf("%300d", ms)))
						}
					}
					put(t1, 3)
					put(t3, 2)
					want := []boundAt{{t1, 0, 2}, {t2, 3, 2}, {t3, 3, 4}, {t3 + 1, 5, 4}, {t1 - 1, 0, 0}, {t1 + 1, 3, 2}, {t3 - 1, 3, 2}, {0, 0, 0}, {-1, 0, 0}, {1 << 62, 5, 4}}
					check := func() {
						t.Helper()
						c.verify(s)
						c.bounds(s, "TopicTest", 0, want)
						if _, found, _ := s.OffsetByTime("TopicTest", 0, t1-1, Upper); found {
							t.Error("upper before the first message is a hit")
						}
						if _, found, _ := s.OffsetByTime("TopicTest", 0, t3+1, Lower); found {
							t.Error("lower behind the last message is a hit")
						}
						if at, err := s.EarliestTime(); err != nil || at != t1 {
							t.Errorf("earliest time %d, %v", at, err)
						}
					}
					check()
					for _, how := range allStops {
						s = c.reopen(s, how)
						check()
					}
					if n := len(c.names("consumequeue", "TopicTest", "0")); n != 2 {
						t.Errorf("%d queue files, want 2", n)
					}
					mustClose(t, s)
				})
			})
		}
	}
}

func TestC15EmptyQueue(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		c.opts.ConsumeQueueFileSize = 60
		s := c.open()
		empty := func(topic string) {
			t.Helper()
			waitDispatched(t, s)
			for _, bound := range []Bound{Lower, Upper} {
				if off, found, err := s.OffsetByTime(topic, 0, testStart, bound); off != 0 || found || err != nil && !errors.Is(err, ErrNotFound) {
					t.Errorf("%s: bound %d: %d, %v, %v", topic, bound, off, found, err)
				}
			}
			if at, err := s.StoreTimeAt(topic, 0, 0); !errors.Is(err, ErrNotFound) {
				t.Errorf("%s: earliest time %d, %v", topic, at, err)
			}
		}
		empty("TopicTest")
		if at, err := s.EarliestTime(); !errors.Is(err, ErrNotFound) {
			t.Errorf("earliest time of an empty store: %d, %v", at, err)
		}
		mustPut(t, s, toTopic("Other", "x"))
		empty("TopicTest")
		mustClose(t, s)

		// A queue that has a folder and a file, but no message.
		must(t, c.fs.MkdirAll(c.path("consumequeue", "TopicTest", "0")))
		c.create("consumequeue/TopicTest/0/00000000000000000000", make([]byte, 60))
		for _, how := range allStops {
			s = c.open()
			empty("TopicTest")
			c.stop(s, how)
		}
	})
}

func TestC17RangeProperty(t *testing.T) {
	for seed := range uint64(3) {
		for _, logSize := range []int64{1 << 20, 1000} {
			t.Run(fmt.Sprintf("seed=%d/log=%d", seed, logSize), func(t *testing.T) {
				rng := rand.New(rand.NewPCG(seed, 17))
				c := newSite(t, allVariants[seed])
				c.opts.CommitLogFileSize, c.opts.ConsumeQueueFileSize = logSize, 7*20
				s := c.open()
				for i := range 50 {
					c.clock.add(time.Duration(rng.IntN(4)) * time.Millisecond)
					if rng.IntN(3) == 0 { // other queues lie between
						c.put(s, toTopic("Other", "x"))
					}
					c.put(s, testMessage(fmt.Sprint(i)))
				}
				c.ranges(s)
				s = c.reopen(s, allStops[seed])
				c.ranges(s)
				mustClose(t, s)
			})
		}
	}
}

// ranges compares all time ranges of TopicTest 0 with brute force.
func (c *site) ranges(s *Store) {
	c.t.Helper()
	waitDispatched(c.t, s)
	var times []int64
	for _, e := range c.acked {
		if e.topic == "TopicTest" {
			times = append(times, e.time)
		}
	}
	first, last := times[0], times[len(times)-1]
	for b := first - 2; b <= last+2; b++ {
		for e := b; e <= last+2; e++ {
			lower, lowerFound, err := s.OffsetByTime("TopicTest", 0, b, Lower)
			must(c.t, err)
			upper, upperFound, err := s.OffsetByTime("TopicTest", 0, e, Upper)
			must(c.t, err)
			if e < first && (lower != 0 || upper != 0) {
				c.t.Errorf("[%d, %d] before the first: offsets %d and %d", b-first, e-first, lower, upper)
			}
			wantFrom, wantTo := -1, -2
			for i, at := range times {
				if b <= at && at <= e {
					if wantFrom < 0 {
						wantFrom = i
					}
					wantTo = i
				}
			}
			from, to := int(lower), int(upper)
			if !lowerFound || !upperFound || from > to {
				from, to = -1, -2
			}
			if from != wantFrom || to != wantTo {
				c.t.Fatalf("[%d, %d]: offsets %d to %d, want %d to %d", b-first, e-first, from, to, wantFrom, wantTo)
			}
			if e >= first && wantFrom < 0 && lower <= upper {
				c.t.Fatalf("[%d, %d] is empty, but lower is %d and upper %d", b-first, e-first, lower, upper)
			}
		}
	}
}
