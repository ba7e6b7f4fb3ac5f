package gantry

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/message"
)

// TestFault_A1_BusyEnds: an append that takes long refuses other puts, and
// only as long as it lasts. (An append that panics: commitlog.)
func TestFault_A1_BusyEnds(t *testing.T) {
	c := newSite(t, variant{noMmap: true})
	c.fault = faultfs.New(c.fs)
	s := c.open()
	c.put(s, keyed(0))
	inside, release := make(chan struct{}), make(chan struct{})
	c.fault.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Name: c.path("commitlog/*"), Count: 1, Hook: func(faultfs.Call) {
		close(inside)
		<-release
	}})
	slow := make(chan PutResult)
	go func() {
		res, err := s.Put(context.Background(), keyed(1))
		if err != nil {
			t.Error(err)
		}
		slow <- res
	}()
	<-inside
	c.clock.add(2 * time.Second)
	refused := make(chan error)
	go func() {
		_, err := s.Put(context.Background(), keyed(2))
		refused <- err
	}()
	select {
	case err := <-refused:
		if !errors.Is(err, ErrBusy) || PutStatusOf(err) != OSPageCacheBusy {
			t.Errorf("put beside a stuck append: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("a put beside a stuck append waits for it")
		go func() { <-refused }()
	}
	close(release)
	c.note(<-slow, keyed(1))
	c.clock.add(2 * time.Second)
	mustPut(t, s, keyed(3))
	if got := len(bodiesAfter(t, s)); got != 3 {
		t.Errorf("%d messages", got)
	}
	mustClose(t, s)
}

// bodiesAfter waits for the dispatcher and returns the messages of TopicTest 0.
func bodiesAfter(t testing.TB, s *Store) []string {
	t.Helper()
	waitDispatched(t, s)
	return bodies(t, s, "TopicTest", 0, 0)
}

func TestFault_A2_RecordLargerThanFile(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		c.opts.CommitLogFileSize, c.opts.LightQueues = 64<<10, true
		s := c.open()
		c.put(s, keyed(0))
		_, end := s.Range()
		large := strings.Repeat("x", 70<<10)
		light := testMessage(large, message.PropInnerMultiDispatch, "%LMQ%a,%LMQ%b")
		for name, put := range map[string]func() error{
			"message":       func() error { _, err := s.Put(context.Background(), testMessage(large)); return err },
			"light queues":  func() error { _, err := s.Put(context.Background(), light); return err },
			"just too long": func() error { _, err := s.Put(context.Background(), sized(64<<10-7)); return err },
			"batch": func() error {
				_, err := s.PutBatch(context.Background(), []*message.Message{testMessage(large[:40<<10]), testMessage(large[:30<<10])})
				return err
			},
		} {
			if err := put(); PutStatusOf(err) != MessageIllegal {
				t.Errorf("%s: %v", name, err)
			}
			if _, now := s.Range(); now != end {
				t.Errorf("%s: the end moved from %d to %d", name, end, now)
			}
		}
		c.put(s, keyed(1))
		c.verify(s)
		if got := s.Stats().Queues; got != 1 {
			t.Errorf("%d queues", got)
		}
		s = c.reopen(s, stopKill)
		c.verify(s)
		mustClose(t, s)
	})
}

func TestFault_A3_StoreTimeNeverFalls(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		s := c.open()
		last := int64(0)
		put := func() {
			t.Helper()
			res := c.put(s, keyed(len(c.acked)))
			if res.StoreTimestamp < last {
				t.Errorf("store time %d behind %d", res.StoreTimestamp, last)
			}
			last = res.StoreTimestamp
		}
		put()
		for _, how := range allStops {
			c.clock.add(-time.Hour)
			put()
			c.clock.add(30 * time.Minute)
			put()
			s = c.reopen(s, how)
			put()
			c.verify(s)
		}
		if last < testStart {
			t.Errorf("the last store time is %d", last)
		}
		// Searching by time relies on it.
		if off, found, err := s.OffsetByTime("TopicTest", 0, testStart, Lower); off != 0 || !found || err != nil {
			t.Errorf("lower: %d, %v, %v", off, found, err)
		}
		c.clock.set(testStart + 1)
		put()
		if off, found, err := s.OffsetByTime("TopicTest", 0, testStart+1, Lower); !found || err != nil || int(off) != len(c.acked)-1 {
			waitDispatched(t, s)
			if off, found, err = s.OffsetByTime("TopicTest", 0, testStart+1, Lower); !found || err != nil || int(off) != len(c.acked)-1 {
				t.Errorf("lower: %d, %v, %v", off, found, err)
			}
		}
		mustClose(t, s)
	})
}

func TestFault_A5_PoisonProperties(t *testing.T) {
	// What upstream's parser fails on, and what no reader should trip over.
	poison := []message.Properties{
		message.NewProperties("INNER_NUM", "x", "INNER_BASE", "1"),
		message.NewProperties("INNER_NUM", "1", "INNER_BASE", "x"),
		message.NewProperties("INNER_NUM", "99999", "INNER_BASE", "1"),
		message.NewProperties("INNER_NUM", "-1", "INNER_BASE", "-1"),
		message.NewProperties("DELAY", "soon"),
		message.NewProperties("DUP_INFO", "no parts"),
		message.NewProperties("__CRC32#", "12"),
		message.NewProperties("INNER_MULTI_DISPATCH", "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET", "x"),
		"no separator at all",
		"\x01\x02\x01\x02\x02\x02",
		"KEYS\x01a\x02KEYS\x01",
	}
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		c.keyStep, c.unchecked = 1<<30, true // keys of such properties are not the subject
		s := c.open()
		stored, refused := 0, 0
		for i, props := range poison {
			bad := testMessage(fmt.Sprint("bad ", i))
			bad.Properties = props
			for _, batch := range [][]*message.Message{{bad}, {keyed(1), bad, keyed(2)}} {
				_, before := s.Range()
				res, err := s.PutBatch(context.Background(), batch)
				if err != nil {
					refused++
					if PutStatusOf(err) != MessageIllegal {
						t.Errorf("properties %q: %v", props, err)
					}
					if _, end := s.Range(); end != before {
						t.Errorf("properties %q: a refused batch moved the end", props)
					}
					continue
				}
				stored++
				c.note(res, batch...)
			}
			if res, err := s.Put(context.Background(), bad); err == nil {
				stored++
				c.note(res, bad)
			}
			c.put(s, keyed(i))
		}
		for i, e := range c.acked { // a checksum is never the sender's
			c.acked[i].props = e.props.Delete(message.PropCRC32)
		}
		if stored == 0 || refused == 0 {
			t.Errorf("%d stored, %d refused: the test shows nothing", stored, refused)
		}
		for _, how := range allStops {
			c.verify(s)
			s = c.reopen(s, how)
		}
		c.verify(s)
		if n := s.Stats().SkippedBytes; n > 0 {
			t.Errorf("%d bytes were skipped", n)
		}
		mustClose(t, s)
		// Upstream must be able to read it too: its parser takes each record.
		name, _ := c.logPlace(0)
		log := c.bytes(name)
		for _, e := range c.acked {
			if _, err := message.Check(log[e.physical:int(e.physical)+e.size], e.physical, message.CheckOptions{BodyCRC: true, Strict: true}); err != nil {
				t.Errorf("the record with properties %q: %v", e.props, err)
			}
		}
	})
}

func TestFault_A6_PropertiesAndCRC(t *testing.T) {
	for _, crc := range []bool{false, true} {
		c := newSite(t, inMemory)
		c.opts.PropertyCRC = crc
		s := c.open()
		with := func(n int) *message.Message { // n bytes of properties
			return testMessage("b", "p", strings.Repeat("x", n-3))
		}
		for _, n := range []int{32_700, 32_760, 32_767, 32_768, 40_000, 65_535, 65_536} {
			for name, put := range map[string]func() (PutResult, []*message.Message, error){
				"message": func() (PutResult, []*message.Message, error) {
					res, err := s.Put(context.Background(), with(n))
					return res, []*message.Message{with(n)}, err
				},
				"batch": func() (PutResult, []*message.Message, error) {
					msgs := []*message.Message{testMessage("a"), with(n), testMessage("c")}
					res, err := s.PutBatch(context.Background(), msgs)
					return res, msgs, err
				},
			} {
				_, before := s.Range()
				res, msgs, err := put()
				most := 32_767
				if crc {
					most -= 20 // what the CRC needs
				}
				if n <= most-1 && err != nil || n > most && PutStatusOf(err) != PropertiesSizeExceeded {
					t.Errorf("CRC %v, %s with %d bytes of properties: %v", crc, name, n, err)
				}
				if _, end := s.Range(); err != nil && end != before {
					t.Errorf("CRC %v, %s with %d bytes of properties: refused, but the end moved", crc, name, n)
				}
				if err == nil {
					c.note(res, msgs...)
				}
			}
		}
		if !crc { // else the stored properties have the CRC behind them
			c.verify(s)
		}
		n := len(c.acked)
		for _, how := range allStops {
			s = c.reopen(s, how)
			waitDispatched(t, s)
			c.queueRange(s, "TopicTest", 0, 0, message.QueueOffset(n))
			if got := bodies(t, s, "TopicTest", 0, 0); len(got) != n {
				t.Errorf("CRC %v: %d messages, want %d", crc, len(got), n)
			}
		}
		mustClose(t, s)
	}
}

func TestFault_A7_OversizeBatch(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.MaxMessageSize = 10_000
	s := c.open()
	half := testMessage(strings.Repeat("x", 5000))
	for name, msgs := range map[string][]*message.Message{
		"in all":   {half, half, testMessage("x")},
		"one item": {testMessage("x"), testMessage(strings.Repeat("x", 10_001))},
	} {
		if _, err := s.PutBatch(context.Background(), msgs); PutStatusOf(err) != MessageIllegal {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, end := s.Range(); end != 0 {
		t.Errorf("the end moved to %d", end)
	}
	c.putBatch(s, half, half)
	c.verify(s)
	mustClose(t, s)
}

func TestFault_A8_PoolExhausted(t *testing.T) {
	for _, size := range []int{1, 2, 5} {
		c := newSite(t, variant{async: true})
		c.opts.TransientStorePool, c.opts.TransientStorePoolSize, c.opts.CommitLogFileSize = true, size, 8192
		c.keyStep = 10
		s := c.open()
		c.putMany(s, "TopicTest", 0, 250) // four files
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		must(t, s.Sync(ctx))
		cancel()
		if st := s.Stats(); st.FlushedOffset != st.EndOffset {
			t.Errorf("pool of %d: flushed to %d of %d", size, st.FlushedOffset, st.EndOffset)
		}
		c.verify(s)
		s = c.reopen(s, stopKill)
		c.verify(s)
		mustClose(t, s)
	}
}

func TestFault_A9_ShortWrites(t *testing.T) {
	for _, pool := range []bool{false, true} {
		for _, short := range []int{1, 50} {
			t.Run(fmt.Sprintf("pool=%v/short=%d", pool, short), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					c := newSite(t, variant{noMmap: !pool, async: pool})
					c.opts.TransientStorePool = pool
					c.opts.CommitLogFileSize, c.keyStep = 8192, 10
					c.fault = faultfs.New(c.fs)
					s := c.open()
					c.putMany(s, "TopicTest", 0, 3)
					c.fault.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Name: c.path("commitlog/*"), Short: short, Count: 10})
					for range 100 {
						m := keyed(len(c.acked))
						res, err := s.Put(context.Background(), m)
						if err != nil {
							continue // said so, and nothing is stored
						}
						c.note(res, m)
						time.Sleep(50 * time.Millisecond) // of the bubble: the committer works meanwhile
					}
					if len(c.acked) < 90 {
						t.Errorf("only %d puts succeeded", len(c.acked))
					}
					must(t, s.Sync(context.Background()))
					c.verify(s)
					s = c.reopen(s, stopKill)
					c.verify(s)
					mustClose(t, s)
				})
			})
		}
	}
}

func TestFault_A10_CreationPanics(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize, c.keyStep = 8192, 10
	c.fault = faultfs.New(c.fs)
	hit := false
	rule := c.fault.Inject(faultfs.Rule{Ops: faultfs.OpCreate, Name: "*16384", Count: 1, Hook: func(faultfs.Call) {
		hit = true
		panic("creation")
	}})
	s := c.open()
	for i := 0; i < 200; i++ {
		m := keyed(i)
		res, err := s.Put(context.Background(), m)
		if err != nil {
			t.Logf("put %d: %v", i, err)
			continue
		}
		c.note(res, m)
	}
	if !hit || rule.Hits() != 1 {
		t.Fatal("nothing panicked")
	}
	if len(c.acked) < 195 {
		t.Errorf("only %d puts succeeded", len(c.acked))
	}
	c.verify(s)
	mustClose(t, s)
}

func TestFault_A12_LargeBlank(t *testing.T) {
	for _, v := range allVariants[:3] {
		c := newSite(t, v)
		c.opts.CommitLogFileSize, c.opts.MaxMessageSize = 16<<20, 8<<20
		s := c.open()
		for range 2 {
			c.put(s, sized(5<<20))
		}
		if res := c.put(s, sized(7<<20)); res.PhysicalOffset != 16<<20 { // 6 MiB were left
			t.Errorf("%s: the record is at %d", v.name, res.PhysicalOffset)
		}
		c.put(s, keyed(1))
		c.verify(s)
		c.stop(s, stopKill)
		s, err := Open(context.Background(), c.dir, c.options()) // large records take memory
		must(t, err)
		c.verify(s)
		mustClose(t, s)
	}
}
