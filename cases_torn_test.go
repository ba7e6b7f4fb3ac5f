package gantry

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/message"
)

// Positions in a record with two IPv4 hosts.
const (
	recSize     = 0
	recMagic    = 4
	recBodyCRC  = 8
	recPhysical = 28
	recSysFlag  = 36
	recBodyLen  = 84
	recBody     = 88
)

// tenMessages puts ten messages to topic T, the last one with the key k1 and
// 139 bytes.
func tenMessages(c *site, s *Store) {
	for i := range 9 {
		c.put(s, toTopic("T", fmt.Sprintf("body-%d", i), "KEYS", fmt.Sprintf("before%d", i)))
	}
	res := c.put(s, toTopic("T", strings.Repeat("A", 32), "KEYS", "k1", "TAGS", "a"))
	if res.Size != 139 {
		c.t.Fatalf("the last record has %d bytes", res.Size)
	}
	waitDispatched(c.t, s)
}

// tornTail checks a store whose last message, at L, has been lost: the other
// nine are there, the next put takes its place, and a second opening shows the
// same.
func tornTail(t testing.TB, c *site, again stop) {
	t.Helper()
	last := c.acked[len(c.acked)-1]
	c.forget(func(e entry) bool { return e == last })
	s := c.open()
	if _, end := s.Range(); end != last.physical {
		t.Errorf("the log ends at %d, want %d", end, last.physical)
	}
	c.queueRange(s, "T", 0, 0, 9)
	c.verify(s)
	if got := c.query(s, "T", "k1", QueryOptions{}); got != nil {
		t.Errorf("the key of the lost message gives %v", got)
	}
	res := c.put(s, toTopic("T", "instead", "KEYS", "new"))
	if res.QueueOffset != 9 || res.PhysicalOffset != last.physical {
		t.Errorf("the next message has offset %d at %d, want 9 at %d", res.QueueOffset, res.PhysicalOffset, last.physical)
	}
	s = c.reopen(s, again)
	c.queueRange(s, "T", 0, 0, 10)
	c.verify(s)
	if got := c.query(s, "T", "k1", QueryOptions{}); got != nil {
		t.Errorf("second opening: the key of the lost message gives %v", got)
	}
	mustClose(t, s)
}

func TestC19TornTail(t *testing.T) {
	for i, v := range allVariants {
		// A large file, and one that the last message fills.
		for j, logSize := range []int64{1 << 20, 9*111 + 139 + 8} {
			step := 1
			switch {
			case v.os:
				step = 29
			case i+j > 0:
				step = 7 // the same again, elsewhere
			}
			t.Run(fmt.Sprintf("%s/log=%d", v.name, logSize), func(t *testing.T) {
				base := newSite(t, v)
				base.opts.CommitLogFileSize = logSize
				s := base.open()
				tenMessages(base, s)
				lost := map[stop]*site{stopKill: base.fork()}
				base.stop(s, stopClean)
				lost[stopClean] = base
				n := 0
				for c := 0; c <= 139; c += step {
					for _, how := range allStops {
						if how == stopKill && c%7 != 0 {
							continue
						}
						for _, cut := range []bool{false, true} {
							n++
							from := lost[how]
							if from == nil {
								from = base
							}
							left := from.fork()
							if how == stopAbort {
								left.create("abort", nil)
							}
							name, off := left.logPlace(base.acked[9].physical)
							switch {
							case c == 139:
							case cut:
								left.resize(name, off+int64(c))
							default:
								left.zero(name, off+int64(c), off+139)
							}
							if c == 139 { // control
								s := left.open()
								left.queueRange(s, "T", 0, 0, 10)
								left.verify(s)
								mustClose(t, s)
								continue
							}
							tornTail(t, left, allStops[n%3])
							if t.Failed() {
								t.Fatalf("c=%d, cut %v, %s", c, cut, how)
							}
						}
					}
				}
			})
		}
	}
}

// TestC19AllOfTheTailGone: the file with the last message has gone, or is
// empty, as after a crash of the file system.
func TestC19AllOfTheTailGone(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, base *site) {
		base.opts.CommitLogFileSize = 9*111 + 8 // the tenth goes to the next file
		s := base.open()
		tenMessages(base, s)
		base.stop(s, stopClean)
		for _, how := range []stop{stopClean, stopAbort} {
			for _, damage := range []string{"removed", "empty", "zero"} {
				left := base.fork()
				name, off := left.logPlace(base.acked[9].physical)
				if off != 0 {
					t.Fatal("the last message does not begin a file")
				}
				switch damage {
				case "removed":
					left.remove(name)
				case "empty":
					left.resize(name, 0)
				case "zero":
					left.zero(name, 0, left.opts.CommitLogFileSize)
				}
				if how == stopAbort {
					left.create("abort", nil)
				}
				tornTail(t, left, how)
				if t.Failed() {
					t.Fatalf("%s, %s", damage, how)
				}
			}
		}
	})
}

// TestC19FarIntoTheFile: a last message whose file begins so far before it that
// opening does not check all of it again.
func TestC19FarIntoTheFile(t *testing.T) {
	base := newSite(t, inMemory)
	base.opts.CommitLogFileSize = 256 << 20
	s := base.open()
	large := &message.Message{Topic: "Large", Body: make([]byte, 4<<20)}
	for range 17 {
		mustPut(t, s, large)
	}
	base.put(s, toTopic("T", strings.Repeat("A", 32), "KEYS", "k1", "TAGS", "a"))
	last := base.acked[0]
	if last.physical < checkBack {
		t.Fatalf("the last message is at %d only", last.physical)
	}
	base.stop(s, stopClean)
	for _, n := range []message.PhysicalOffset{0, 60, 123, 124, 130, 138} { // bytes that are left
		c := base.fork()
		c.patchLog(last.physical+n, make([]byte, 139-n))
		s, err := Open(context.Background(), c.dir, c.options())
		must(t, err)
		if _, end := s.Range(); end != last.physical {
			t.Errorf("%d bytes left: the log ends at %d, want %d", n, end, last.physical)
		}
		if got := c.query(s, "T", "k1", QueryOptions{}); got != nil {
			t.Errorf("%d bytes left: the key gives %v", n, got)
		}
		c.queueRange(s, "Large", 0, 0, 17)
		s.abandon()
	}
}

func TestC21SpecialCRC(t *testing.T) {
	bodies := []struct {
		body string
		crc  uint32
	}{
		{"\x9D\x0A\xD9\x6D", 0},
		{"\xFF\xFF\xFF\xFF", 0x7FFFFFFF},
		{"", 0},
		{"\x00", 0x5202EF8D},
	}
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		s := c.open()
		var want []uint32
		for i, b := range bodies {
			c.put(s, testMessage(b.body, "KEYS", fmt.Sprintf("k%d", i)))
			want = append(want, b.crc)
		}
		for i := range 5 {
			c.put(s, keyed(i))
			want = append(want, message.BodyCRC([]byte(c.acked[len(c.acked)-1].body)))
		}
		// A client's batch, whose CRC fields are zero.
		var batch []byte
		for i, b := range bodies {
			var err error
			batch, err = message.AppendBatchItem(batch, message.BatchItem{Body: []byte(b.body), Properties: message.NewProperties("KEYS", fmt.Sprintf("b%d", i))})
			must(t, err)
			want = append(want, b.crc)
		}
		var msgs []*message.Message
		for item, err := range message.SplitBatch(batch) {
			must(t, err)
			m := testMessage("")
			m.Body, m.Properties = slices.Clip(append([]byte{}, item.Body...)), item.Properties
			msgs = append(msgs, m)
		}
		c.putBatch(s, msgs...)
		c.put(s, testMessage("after"))
		want = append(want, message.BodyCRC([]byte("after")))
		for _, how := range []stop{stopKill, stopAbort, stopClean} {
			s = c.reopen(s, how)
			c.verify(s)
		}
		mustClose(t, s)
		name, _ := c.logPlace(0)
		log := c.bytes(name)
		for i, e := range c.acked {
			if got := binary.BigEndian.Uint32(log[int(e.physical)+recBodyCRC:]); got != want[i] {
				t.Errorf("message %d, body %q: CRC %#x, want %#x", i, e.body, got, want[i])
			}
		}
	})
}
