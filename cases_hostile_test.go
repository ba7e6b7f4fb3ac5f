package gantry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestHostileFields sets fields of one record that no checksum covers, and
// then has everything rebuilt from the log. The other messages are served, and
// nothing lies outside of the store.
func TestHostileFields(t *testing.T) {
	u64 := func(v int64) []byte { return binary.BigEndian.AppendUint64(nil, uint64(v)) }
	u32 := func(v int64) []byte { return binary.BigEndian.AppendUint32(nil, uint32(v)) }
	const topicAt = recBody + 8 + 1
	for _, tt := range []struct {
		name string
		pos  int64
		b    []byte
	}{ // a topic that is no text is damage like a wrong length
		{"queue id -1", 12, u32(-1)},
		{"queue id min", 12, u32(-1 << 31)},
		{"queue id max", 12, u32(1<<31 - 1)},
		{"queue offset -1", 20, u64(-1)},
		{"queue offset min", 20, u64(-1 << 63)},
		{"queue offset max", 20, u64(1<<63 - 1)},
		{"queue offset far", 20, u64(1 << 40)},
		{"queue offset some way on", 20, u64(5000)},
		{"queue offset of another", 20, u64(2)},
		{"store time 0", 56, u64(0)},
		{"store time -1", 56, u64(-1)},
		{"store time max", 56, u64(1<<63 - 1)},
		{"born time min", 40, u64(-1 << 63)},
		{"sys flag prepared", 36, u32(4)},
		{"sys flag rollback", 36, u32(12)},
		{"sys flag inner batch", 36, u32(0x80)},
		{"sys flag unknown bits", 36, u32(0x7FFF00)},
		{"topic parent", topicAt, []byte("../../xyz")},
		{"topic separator", topicAt, []byte("a/b/c/d/e")},
		{"topic absolute", topicAt, []byte("/etc/pass")},
		{"topic backslash", topicAt, []byte(`..\..\xyz`)},
		{"topic NUL", topicAt, []byte("abc\x00defgh")},
		{"topic not UTF-8", topicAt, []byte("\xff\xfe\xfd\xfc\xfb\xfa\xf9\xf8\xf7")},
		{"topic of another kind", topicAt, []byte("%LMQ%abcd")},
		{"topic schedule", topicAt, []byte("SCHEDULE_")},
		{"prepared offset", 76, u64(-5)},
	} {
		for _, how := range allStops {
			t.Run(tt.name+"/"+string(how), func(t *testing.T) {
				c := newSite(t, inMemory)
				c.unchecked = true
				s := c.open()
				for i := range 10 {
					c.put(s, &message.Message{Topic: "TopicTest", Body: fmt.Appendf(nil, "body%04d", i), Properties: message.NewProperties("KEYS", fmt.Sprintf("k%d", i))})
				}
				c.stop(s, how)
				if _, err := c.fs.Stat(c.path("consumequeue")); err == nil {
					c.remove("consumequeue")
				}
				c.remove("checkpoint")
				bad := c.acked[5]
				c.patchLog(bad.physical+message.PhysicalOffset(tt.pos), tt.b)
				rebuilt(t, c, bad)
			})
		}
	}
}

// rebuilt opens c, whose record bad was changed, and looks for the others.
func rebuilt(t *testing.T, c *site, bad entry) {
	root := c.fs.(*memfs.FS)
	before, err := root.List("/")
	must(t, err)
	s, err := Open(context.Background(), c.dir, c.options())
	if err != nil {
		// A refusal must say where, as damage does.
		var corrupt *CorruptError
		if !errors.As(err, &corrupt) {
			t.Fatalf("open: %v", err)
		}
		if !strings.Contains(err.Error(), "topic") {
			t.Fatalf("one odd field makes the store unusable: %v", err)
		}
		name, off := c.logPlace(bad.physical)
		corruptAt(t, c.refused(), c.path(name), off)
		return
	}
	waitDispatched(t, s)
	for round := range 2 {
		seen := make(map[message.PhysicalOffset]int)
		for _, q := range s.Queues() {
			if q.MaxOffset-q.MinOffset > 1_000_000 {
				t.Fatalf("a queue of %d slots for ten messages: %+v", q.MaxOffset-q.MinOffset, q)
			}
			for off := q.MinOffset; off < q.MaxOffset; {
				res, err := s.Get(q.Topic, q.QueueID, off, GetOptions{})
				if err != nil || res.NextOffset <= off {
					t.Fatalf("get %s/%d at %d: %+v, %v", q.Topic, q.QueueID, off, res, err)
				}
				msgs, err := res.Messages()
				must(t, err)
				for _, m := range msgs {
					seen[m.PhysicalOffset]++
				}
				off = res.NextOffset
			}
		}
		for _, e := range c.acked {
			if n := seen[e.physical]; n != 1 && (e != bad || n > 1) {
				t.Errorf("round %d: message %d is returned %d times", round, e.offset, n)
			}
			if e == bad {
				continue
			}
			for k := range e.props.Keys() {
				if got := c.query(s, e.topic, k, QueryOptions{}); !slices.Equal(got, []message.PhysicalOffset{e.physical}) {
					t.Errorf("round %d: key %s gives %v", round, k, got)
				}
			}
		}
		if _, err := s.MessageAt(bad.physical); err != nil && !errors.Is(err, ErrCorrupt) {
			t.Errorf("the odd one by position: %v", err)
		}
		res := mustPut(t, s, testMessage("after", "KEYS", "after"))
		if round == 0 && (res.QueueOffset < 10 || res.QueueOffset > 10_000) {
			t.Errorf("the next message has offset %d", res.QueueOffset)
		}
		waitDispatched(t, s)
		s = c.reopen(s, stopKill)
		root = c.fs.(*memfs.FS)
	}
	mustClose(t, s)
	after, err := root.List("/")
	must(t, err)
	if len(before) != len(after) {
		t.Errorf("outside of the store there is something: %v", after)
	}
	for _, name := range c.names() {
		if !slices.Contains([]string{"abort", "checkpoint", "commitlog", "config", "consumequeue", "index", "lock", "quarantine"}, name) {
			t.Errorf("the store has %q", name)
		}
	}
	for _, name := range c.names("consumequeue") {
		if strings.ContainsAny(name, "/\\") {
			t.Errorf("a topic's folder is %q", name)
		}
	}
}
