package gantry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/message"
)

// sized is a message to topic T without properties whose record has n bytes.
func sized(n int) *message.Message {
	return &message.Message{Topic: "T", Body: []byte(strings.Repeat("x", n-92))}
}

func TestC25ExactFits(t *testing.T) {
	const file = 1 << 20
	eachVariant(t, allVariants, func(t *testing.T, base *site) {
		s := base.open()
		if at := base.put(s, sized(1_000_000)).PhysicalOffset; at != 0 {
			t.Fatalf("the first record is at %d", at)
		}
		for _, tt := range []struct {
			name  string
			size  int
			at    message.PhysicalOffset // of the record
			next  message.PhysicalOffset // of one of 100 bytes behind it
			blank message.PhysicalOffset
		}{
			{"exactly 8 bytes left", 48_568, 1_000_000, file, file - 8},
			{"one byte too many", 48_569, file, file + 48_569, 1_000_000},
			{"9 bytes left", 48_567, 1_000_000, file, file - 9},
			{"room for one more, exactly", 48_468, 1_000_000, 1_048_468, 0},
			{"room for one more, not quite", 48_469, 1_000_000, file, 1_048_469},
		} {
			for _, how := range allStops {
				t.Run(tt.name+"/"+string(how), func(t *testing.T) {
					c := base.fork()
					c.t = t
					s := c.open()
					check := func(res PutResult, at message.PhysicalOffset) {
						t.Helper()
						if res.PhysicalOffset != at {
							t.Errorf("the record is at %d, want %d", res.PhysicalOffset, at)
						}
					}
					check(c.put(s, sized(tt.size)), tt.at)
					check(c.put(s, sized(100)), tt.next)
					c.verify(s)
					s = c.reopen(s, how)
					c.verify(s)
					third := tt.next + 100
					if third+93+8 > file && third < file {
						third = file
					}
					check(c.put(s, sized(93)), third)
					c.verify(s)
					c.stop(s, stopClean)
					if tt.blank > 0 {
						name, off := c.logPlace(tt.blank)
						head := c.bytes(name)[off : off+8]
						if size, magic := binary.BigEndian.Uint32(head), binary.BigEndian.Uint32(head[4:]); size != uint32(file-tt.blank) || magic != message.MagicBlank {
							t.Errorf("at %d stand size %d and magic %#x", tt.blank, size, magic)
						}
					}
				})
			}
		}
		s.abandon()
	})
}

func TestC25TooLargeForAnyFile(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		s := c.open()
		c.put(s, sized(1000))
		_, end := s.Range()
		for _, n := range []int{1<<20 - 7, 1 << 20, 1<<20 + 1, 2 << 20} {
			_, err := s.Put(context.Background(), sized(n))
			if !errors.Is(err, ErrMessageIllegal) || PutStatusOf(err) != MessageIllegal {
				t.Errorf("record of %d bytes: %v", n, err)
			}
			if _, now := s.Range(); now != end {
				t.Fatalf("record of %d bytes moved the end from %d to %d", n, end, now)
			}
		}
		// The largest that fits takes a file for itself.
		if res := c.put(s, sized(1<<20-8)); res.PhysicalOffset != 1<<20 || res.QueueOffset != 1 {
			t.Errorf("the largest record: %+v", res)
		}
		if res := c.put(s, sized(100)); res.PhysicalOffset != 2<<20 || res.QueueOffset != 2 {
			t.Errorf("the one after: %+v", res)
		}
		c.verify(s)
		for _, how := range allStops {
			s = c.reopen(s, how)
			c.verify(s)
		}
		mustClose(t, s)
	})
}

func TestC25FullQueueFile(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[1], allVariants[3]}, func(t *testing.T, c *site) {
		c.keyStep = 50
		s := c.open()
		c.putMany(s, "T", 0, 1000)
		check := func() {
			t.Helper()
			waitDispatched(t, s)
			res, err := s.Get("T", 0, 1000, GetOptions{})
			if err != nil || res.Status != OffsetOverflowOne || res.NextOffset != 1000 || res.MaxOffset != 1000 {
				t.Errorf("get at 1000: %+v, %v", res, err)
			}
			if res, err := s.Get("T", 0, 999, GetOptions{}); err != nil || res.Status != Found || len(res.Records) != 1 {
				t.Errorf("get at 999: %v, %v", res.Status, err)
			}
			if res, err := s.Get("T", 0, 1001, GetOptions{}); err != nil || res.Status != OffsetOverflowBadly || res.NextOffset != 1000 {
				t.Errorf("get at 1001: %+v, %v", res, err)
			}
			if said := c.said(s); len(said) > 0 {
				t.Errorf("warnings: %q", said)
			}
			if got := c.names("consumequeue", "T", "0"); len(got) > 1 || len(got) == 1 && got[0] != "00000000000000000000" {
				t.Errorf("queue files %q", got)
			}
		}
		check()
		for _, how := range allStops {
			s = c.reopen(s, how)
			check()
			c.verify(s)
		}
		c.putMany(s, "T", 0, 1)
		for _, how := range []stop{stopKill, stopAbort, stopClean} {
			s = c.reopen(s, how)
			c.verify(s)
		}
		mustClose(t, s)
		second := c.bytes("consumequeue", "T", "0", "00000000000000020000")
		last := c.acked[1000]
		if at := binary.BigEndian.Uint64(second); at != uint64(last.physical) || len(second) != 20_000 {
			t.Errorf("unit 0 of the second file points at %d, want %d", at, last.physical)
		}
	})
}

// units returns the bytes of the units [from, to) of a queue, as they stand in
// its files; what has no file is nil.
func (c *site) units(topic string, id int32, from, to message.QueueOffset) [][]byte {
	c.t.Helper()
	files := make(map[string][]byte)
	var out [][]byte
	for off := from; off < to; off++ {
		start := int64(off) * 20 / c.opts.ConsumeQueueFileSize * c.opts.ConsumeQueueFileSize
		name := filepath.Join("consumequeue", topic, fmt.Sprint(id), fmt.Sprintf("%020d", start))
		if _, ok := files[name]; !ok {
			files[name], _ = readFile(c.fs, c.path(name)) // missing: nil
		}
		pos := int64(off)*20 - start
		if int64(len(files[name])) < pos+20 {
			out = append(out, nil)
			continue
		}
		out = append(out, files[name][pos:pos+20])
	}
	return out
}

// retain removes the log files whose records are older than 72 hours.
func (c *site) retain(s *Store) {
	c.t.Helper()
	waitDispatched(c.t, s)
	must(c.t, s.Sync(context.Background()))
	gone, err := s.Clean(context.Background(), CleanOptions{AnyHour: true})
	must(c.t, err)
	if len(gone) == 0 {
		c.t.Fatal("retention removed nothing")
	}
	first, _ := s.Range()
	c.forget(func(e entry) bool { return e.physical < first })
}

func TestC27QueuesMissing(t *testing.T) {
	for _, expire := range []bool{false, true} {
		for _, cqSize := range []int64{20_000, 400} {
			t.Run(fmt.Sprintf("expire=%v/cq=%d", expire, cqSize), func(t *testing.T) {
				eachVariant(t, allVariants, func(t *testing.T, base *site) {
					base.opts.CommitLogFileSize, base.opts.ConsumeQueueFileSize, base.opts.DeleteBatch = 16<<10, cqSize, 100
					s := base.open()
					for i := range 500 {
						if i == 300 {
							base.clock.add(100 * time.Hour)
						}
						// Queue 0 of topic C has its messages at the front.
						topic, id := [...]string{"A", "B", "C"}[i%3], int32(i/3%2)
						if topic == "C" && id == 0 && i > 350 {
							topic = "A"
						}
						base.putMany(s, topic, id, 1)
					}
					if expire {
						base.retain(s)
					}
					base.verify(s)
					before := s.Queues()
					base.stop(s, stopClean)
					for _, how := range []stop{stopClean, stopAbort} {
						c := base.fork()
						want := make(map[string][][]byte)
						for _, q := range before {
							if expire && q.MinOffset == 0 {
								t.Errorf("%s/%d still begins at 0", q.Topic, q.QueueID)
							}
							want[fmt.Sprint(q)] = c.units(q.Topic, q.QueueID, q.MinOffset, q.MaxOffset)
						}
						c.remove("consumequeue")
						if how == stopAbort {
							c.create("abort", nil)
						}
						s := c.open()
						if d := cmp.Diff(before, s.Queues()); d != "" {
							t.Errorf("%s: queues (-before +after)\n%s", how, d)
						}
						c.verify(s)
						c.stop(s, stopClean)
						got := make(map[string][][]byte)
						for _, q := range before {
							got[fmt.Sprint(q)] = c.units(q.Topic, q.QueueID, q.MinOffset, q.MaxOffset)
						}
						if d := cmp.Diff(want, got); d != "" {
							t.Errorf("%s: units (-before +after)\n%s", how, clip(d))
						}
					}
				})
			})
		}
	}
}

func TestC29QueueAheadOfTheLog(t *testing.T) {
	for _, logSize := range []int64{1 << 20, 3000} {
		for _, cqSize := range []int64{20_000, 30 * 20} {
			t.Run(fmt.Sprintf("log=%d/cq=%d", logSize, cqSize), func(t *testing.T) {
				eachVariant(t, []variant{inMemory, allVariants[1], allVariants[3]}, func(t *testing.T, base *site) {
					base.opts.CommitLogFileSize, base.opts.ConsumeQueueFileSize = logSize, cqSize
					s := base.open()
					base.putMany(s, "TopicTest", 0, 100)
					waitDispatched(t, s)
					killed := base.fork()
					base.stop(s, stopClean)
					for _, how := range allStops {
						c := base.fork()
						switch how {
						case stopKill:
							c = killed.fork()
						case stopAbort:
							c.create("abort", nil)
						}
						cut := c.acked[60].physical
						c.cutLog(cut)
						lost := slices.Clone(c.acked[60:])
						c.forget(func(e entry) bool { return e.physical >= cut })
						queueAhead(t, c, lost, how)
						if t.Failed() {
							t.Fatal(how)
						}
					}
				})
			})
		}
	}
}

// cutLog zeroes the log from a position on.
func (c *site) cutLog(at message.PhysicalOffset) {
	c.t.Helper()
	size := c.opts.CommitLogFileSize
	for _, name := range c.names("commitlog") {
		var start int64
		_, err := fmt.Sscanf(name, "%d", &start)
		must(c.t, err)
		if from := max(int64(at)-start, 0); from < size {
			c.zero(filepath.Join("commitlog", name), from, size)
		}
	}
}

func queueAhead(t *testing.T, c *site, lost []entry, how stop) {
	s := c.open()
	c.queueRange(s, "TopicTest", 0, 0, 60)
	c.verify(s)
	for _, e := range lost {
		for k := range e.props.Keys() {
			if got := c.query(s, "TopicTest", k, QueryOptions{}); got != nil {
				t.Errorf("key %s of a lost message gives %v", k, got)
			}
		}
	}
	if s.Stats().DamagedReads > 0 {
		t.Errorf("damage was met: %q", c.said(s))
	}
	res := c.put(s, testMessage("sixty", "KEYS", "sixty"))
	if res.QueueOffset != 60 || res.PhysicalOffset != lost[0].physical {
		t.Errorf("the next message has offset %d at %d, want 60 at %d", res.QueueOffset, res.PhysicalOffset, lost[0].physical)
	}
	s = c.reopen(s, how)
	c.verify(s)
	c.queueRange(s, "TopicTest", 0, 0, 61)
	mustClose(t, s)
	for i, u := range c.units("TopicTest", 0, 61, 100) {
		if u != nil && !allZero(u) {
			t.Errorf("unit %d is still % x", 61+i, u)
			break
		}
	}
}

func allZero(b []byte) bool {
	return !slices.ContainsFunc(b, func(c byte) bool { return c != 0 })
}

func TestC29LogEmptied(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[1], allVariants[3]}, func(t *testing.T, base *site) {
		s := base.open()
		base.putMany(s, "TopicTest", 0, 100)
		base.stop(s, stopClean)
		for _, how := range []stop{stopClean, stopAbort} {
			for _, damage := range []string{"zeroed", "removed", "directory removed"} {
				c := base.fork()
				switch damage {
				case "zeroed":
					c.cutLog(0)
				case "removed":
					for _, name := range c.names("commitlog") {
						c.remove("commitlog", name)
					}
				default:
					c.remove("commitlog")
				}
				if how == stopAbort {
					c.create("abort", nil)
				}
				if err := c.refused(); !errors.Is(err, ErrQueuesWithoutLog) {
					t.Errorf("%s, %s: %v", damage, how, err)
				}
				c.opts = c.opts.with(func(o *Options) { o.AllowEmptyLog = true })
				c.acked = nil
				s := c.open()
				c.verify(s)
				if res := c.put(s, testMessage("new", "KEYS", "key7")); res.QueueOffset != 0 || res.PhysicalOffset != 0 {
					t.Errorf("%s, %s: the first message: %+v", damage, how, res)
				}
				s = c.reopen(s, stopKill)
				c.verify(s)
				mustClose(t, s)
			}
		}
	})
}
