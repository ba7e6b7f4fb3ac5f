package gantry

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
	_ "time/tzdata" // C11 changes the zone

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

func toTopic(topic, body string, props ...string) *message.Message {
	return &message.Message{Topic: topic, Body: []byte(body), Properties: message.NewProperties(props...)}
}

func TestC01CollidingPairs(t *testing.T) {
	pairs := [][2]string{{"AaTopic", "Aa"}, {"BBTopic", "BB"}, {"AaTopic", "BB"}, {"BBTopic", "Aa"}}
	for _, p := range pairs {
		if h := message.JavaHash(p[0] + "#" + p[1]); h != -10606476 {
			t.Fatalf("%s#%s hashes to %d", p[0], p[1], h)
		}
	}
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		s := c.open()
		first := c.put(s, toTopic("AaTopic", "1", "KEYS", "Aa")).PhysicalOffset
		second := c.put(s, toTopic("BBTopic", "2", "KEYS", "BB")).PhysicalOffset
		check := func(how stop) {
			t.Helper()
			waitDispatched(t, s)
			for i, want := range [][]message.PhysicalOffset{{first}, {second}, nil, nil} {
				for _, limit := range []int{0, 1, 10} {
					got := c.query(s, pairs[i][0], pairs[i][1], QueryOptions{Max: limit})
					if !slices.Equal(got, want) {
						t.Errorf("%s: %s %s, max %d: got %v, want %v", how, pairs[i][0], pairs[i][1], limit, got, want)
					}
				}
				if got := c.query(s, pairs[i][0], pairs[i][1], QueryOptions{UniqueKey: true}); got != nil {
					t.Errorf("%s: %s %s as a unique key: got %v", how, pairs[i][0], pairs[i][1], got)
				}
			}
			c.verify(s)
		}
		check("")
		for _, how := range allStops {
			s = c.reopen(s, how)
			check(how)
		}
		mustClose(t, s)
	})
}

func TestC02HashMinAndZero(t *testing.T) {
	if h := message.JavaHash("TopicTest#vlsoaerz"); h != math.MinInt32 {
		t.Fatalf("hash %d", h)
	}
	if h := message.JavaHash("TopicTest#flrkafys"); h != 0 {
		t.Fatalf("hash %d", h)
	}
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		s := c.open()
		c.put(s, testMessage("1", "KEYS", "vlsoaerz"))
		c.put(s, testMessage("2", "KEYS", "flrkafys"))
		c.verify(s)
		for _, how := range allStops {
			s = c.reopen(s, how)
			c.verify(s)
		}
		c.stop(s, stopClean)
		readers := c.indexReaders()
		if len(readers) != 1 {
			t.Fatalf("%d index files", len(readers))
		}
		var got []indexfile.Entry
		must(t, readers[0].Entries(1, readers[0].Header().Count, func(_ int32, e indexfile.Entry) bool {
			got = append(got, e)
			return true
		}))
		want := []indexfile.Entry{
			{Hash: 0, Phy: c.acked[0].physical},
			{Hash: 0, Phy: c.acked[1].physical, Prev: 1},
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("entries (-want +got)\n%s", d)
		}
		slots := make(map[int32]int32)
		must(t, readers[0].Slots(func(slot, v int32) bool {
			slots[slot] = v
			return true
		}))
		if d := cmp.Diff(map[int32]int32{0: 2}, slots); d != "" {
			t.Errorf("slots (-want +got)\n%s", d)
		}
	})
}

func TestC05KeysWithBlanks(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		s := c.open()
		three := c.put(s, testMessage("1", "KEYS", "order 1  x")).PhysicalOffset
		c.put(s, testMessage("2", "KEYS", " "))
		c.put(s, testMessage("3", "KEYS", "  y "))
		check := func() {
			t.Helper()
			c.verify(s)
			for key, want := range map[string]int{"order": 1, "1": 1, "x": 1, "y": 1, "order 1": 0, "order 1  x": 0, " ": 0} {
				if got := c.query(s, "TopicTest", key, QueryOptions{}); len(got) != want {
					t.Errorf("key %q: got %v, want %d hits", key, got, want)
				}
			}
			if _, err := s.Query(context.Background(), "TopicTest", "", QueryOptions{}); !errors.Is(err, ErrNotFound) {
				t.Errorf("the empty key: %v", err)
			}
		}
		check()
		for _, how := range allStops {
			s = c.reopen(s, how)
			check()
		}
		c.stop(s, stopClean)
		var at []message.PhysicalOffset
		for _, r := range c.indexReaders() {
			must(t, r.Entries(1, r.Header().Count, func(_ int32, e indexfile.Entry) bool {
				at = append(at, e.Phy)
				return true
			}))
		}
		if want := []message.PhysicalOffset{three, three, three, c.acked[2].physical}; !slices.Equal(at, want) {
			t.Errorf("index entries for records at %v, want %v", at, want)
		}
	})
}

// TestC05ManyKeys is the part of C05 with 10 000 tokens, which need five index
// files, and the part with too many.
func TestC05ManyKeys(t *testing.T) {
	tokens := make([]string, 10_000)
	for i := range tokens { // two characters each, of 100
		tokens[i] = string([]rune{rune(i%100) + 0xA1, rune(i/100) + 0xA1})
	}
	ascii := make([]string, 10_000)
	for i := range ascii { // two of 100 bytes: fits into the 32767 that properties may have
		ascii[i] = string([]byte{byte(i%94) + '!', byte(i/94%94) + '!'})
	}
	eachVariant(t, []variant{inMemory, allVariants[4]}, func(t *testing.T, c *site) {
		c.keyStep = 101
		s := c.open()
		c.put(s, testMessage("before", "KEYS", "b"))
		before := s.log.End()
		_, err := s.Put(context.Background(), testMessage("x", "KEYS", strings.Join(tokens, " ")))
		if !errors.Is(err, ErrPropertiesSizeExceeded) || PutStatusOf(err) != PropertiesSizeExceeded {
			t.Errorf("50 000 bytes of keys: %v", err)
		}
		if s.log.End() != before {
			t.Error("the refused message is in the log")
		}
		if got := c.query(s, "TopicTest", tokens[0], QueryOptions{}); got != nil {
			t.Errorf("a key of the refused message gives %v", got)
		}
		at := c.put(s, testMessage("many", "KEYS", strings.Join(ascii, " "))).PhysicalOffset
		c.put(s, testMessage("after", "KEYS", "a"))
		c.verify(s)
		if got := c.query(s, "TopicTest", ascii[7777], QueryOptions{}); !slices.Equal(got, []message.PhysicalOffset{at}) {
			t.Errorf("got %v", got)
		}
		for _, how := range allStops {
			s = c.reopen(s, how)
			c.verify(s)
		}
		if c.fs != vfs.OS() {
			c.keyStep = 1
			c.verifyKeys(s)
		}
		mustClose(t, s)
	})
}

func TestC06SameKeyTwice(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		s := c.open()
		c.put(s, testMessage("1", "KEYS", "k k"))
		c.put(s, testMessage("2", "KEYS", "u k", "UNIQ_KEY", "u"))
		c.put(s, testMessage("3", "KEYS", "k k k j"))
		waitDispatched(t, s)
		for i := range 4 { // dispatched again each time
			c.verify(s)
			if got := queryBodies(t, s, "TopicTest", "k", QueryOptions{Max: 10}); !slices.Equal(got, []string{"3", "2", "1"}) {
				t.Errorf("opening %d: k gives %q", i, got)
			}
			if got := queryBodies(t, s, "TopicTest", "k", QueryOptions{Max: 1}); !slices.Equal(got, []string{"3"}) {
				t.Errorf("opening %d: k, max 1, gives %q", i, got)
			}
			if i == 0 {
				s = c.reopen(s, stopKill)
				if s.Recovery().Replayed == 0 {
					t.Error("nothing was dispatched again: the test shows nothing")
				}
			} else {
				s = c.reopen(s, stopAbort)
			}
		}
		mustClose(t, s)
	})
}

func TestC09FirstEntryAfterRoll(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		c.opts.IndexEntries = 4
		s := c.open()
		for _, k := range []string{"a", "b", "c"} {
			c.put(s, testMessage(k, "KEYS", k))
		}
		c.clock.add(10 * time.Second)
		c.put(s, testMessage("d", "KEYS", "d"))
		check := func() {
			t.Helper()
			c.verify(s)
			at := int64(testStart + 10_000)
			for _, w := range []struct {
				from, to int64
				want     int
			}{{at, at, 1}, {at - 1, at, 1}, {at, at + 1, 1}, {0, 0, 1}, {at + 1, at + 1, 0}, {at - 5000, at - 1, 0}, {at + 10_000, at + 10_000, 0}} {
				if got := c.query(s, "TopicTest", "d", QueryOptions{From: w.from, To: w.to}); len(got) != w.want {
					t.Errorf("d in [%d, %d]: %v, want %d hits", w.from-at, w.to-at, got, w.want)
				}
			}
			if got := c.query(s, "TopicTest", "c", QueryOptions{From: at, To: at}); got != nil {
				t.Errorf("c is found 10 s late: %v", got)
			}
		}
		check()
		c.stop(s, stopClean)
		readers := c.indexReaders()
		if len(readers) != 2 {
			t.Fatalf("index files %q, want 2", c.names("index"))
		}
		h := readers[1].Header()
		if h.BeginTime != testStart+10_000 || h.BeginPhy != c.acked[3].physical || h.Count != 2 {
			t.Errorf("header of the second file: %+v", h)
		}
		var first indexfile.Entry
		must(t, readers[1].Entries(1, 2, func(_ int32, e indexfile.Entry) bool { first = e; return true }))
		if first.Seconds != 0 && first.Seconds != 10 {
			t.Errorf("the entry says %d s", first.Seconds)
		}
		// As Java writes it: seconds since the end of the file before.
		name := filepath.Join("index", c.names("index")[1])
		c.patch32(name, readers[1].EntryPos(1)+12, 10)
		for _, how := range allStops {
			s = c.open()
			check()
			c.stop(s, how)
		}
	})
}

func TestC11ClockAndZoneBack(t *testing.T) {
	london, err := time.LoadLocation("Europe/London")
	must(t, err)
	// At 01:00 UTC London goes back from UTC+1 to UTC.
	change := time.Date(2023, 10, 29, 1, 0, 0, 0, time.UTC).UnixMilli()
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		c.opts.IndexEntries, c.opts.IndexLocation = 4, london
		c.clock.set(change - 10*60_000)
		s := c.open()
		n := 0
		three := func() {
			for range 3 {
				n++
				c.put(s, testMessage(fmt.Sprint(n), "KEYS", fmt.Sprintf("k%d", n)))
			}
			waitDispatched(t, s)
		}
		three()
		c.clock.add(-time.Hour)
		three()
		c.clock.set(change + 5*60_000)
		three()
		before := c.names("index")
		s = c.reopen(s, stopClean)
		c.verify(s)
		c.opts.IndexLocation = time.UTC
		three()
		c.verify(s)
		for _, how := range allStops {
			s = c.reopen(s, how)
			c.verify(s)
		}
		c.stop(s, stopClean)

		names := c.names("index")
		if len(names) != 4 {
			t.Fatalf("index files %q, want 4", names)
		}
		for _, name := range before {
			if !slices.Contains(names, name) {
				t.Errorf("file %s is gone", name)
			}
		}
		newest, last := "", message.PhysicalOffset(-1)
		for i, r := range c.indexReaders() {
			if h := r.Header(); h.Count != 4 {
				t.Errorf("file %s: %+v", names[i], h)
			} else if h.EndPhy > last {
				newest, last = names[i], h.EndPhy
			}
		}
		if last != c.acked[11].physical || newest != names[3] {
			t.Errorf("the newest file is %s, up to %d; files %q, last message at %d", newest, last, names, c.acked[11].physical)
		}
	})
}

// TestC11NamesOutOfOrder: names that a Java broker gave after its clock was
// set back. The newest file is the one that reaches furthest.
func TestC11NamesOutOfOrder(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[3]}, func(t *testing.T, c *site) {
		c.opts.IndexEntries = 4
		s := c.open()
		put := func(n int) {
			for range n {
				i := len(c.acked) + 1
				c.put(s, testMessage(fmt.Sprint(i), "KEYS", fmt.Sprintf("k%d", i)))
			}
			c.verify(s)
		}
		put(8)
		c.stop(s, stopClean)
		names := c.names("index")
		if len(names) != 3 {
			t.Fatalf("index files %q, want 3", names)
		}
		// The last one becomes the first by name.
		must(t, c.fs.Rename(c.path("index", names[2]), c.path("index", "20010101000000000")))
		must(t, c.fs.SyncDir(c.path("index")))
		for _, how := range allStops {
			s = c.open()
			c.verify(s)
			put(1)
			c.stop(s, how)
		}
		s = c.open()
		c.verify(s)
		mustClose(t, s)
	})
}
