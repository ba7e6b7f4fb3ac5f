package gantry

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
)

// checkpointDamage is a content of the checkpoint file.
type checkpointDamage struct {
	name  string
	apply func(c *site)
	good  bool
}

func setFields(fields map[int64]uint64) func(*site) {
	return func(c *site) {
		for pos, v := range fields {
			c.patch("checkpoint", pos, binary.BigEndian.AppendUint64(nil, v))
		}
	}
}

var checkpointDamages = []checkpointDamage{
	{name: "good", apply: func(*site) {}, good: true},
	{name: "missing", apply: func(c *site) { c.remove("checkpoint") }},
	{name: "0 bytes", apply: func(c *site) { c.resize("checkpoint", 0) }},
	{name: "8 bytes", apply: func(c *site) { c.resize("checkpoint", 8) }},
	{name: "4095 bytes", apply: func(c *site) { c.resize("checkpoint", 4095) }, good: true},
	{name: "zeros", apply: func(c *site) { c.zero("checkpoint", 0, 4096) }},
	{name: "all 0xFF", apply: func(c *site) { c.patch("checkpoint", 0, slices.Repeat([]byte{0xFF}, 4096)) }},
	{name: "year 2100", apply: setFields(map[int64]uint64{0: 4102444800000, 8: 4102444800000, 16: 4102444800000})},
	{name: "index time 0", apply: setFields(map[int64]uint64{16: 0}), good: true}, // as it was
	{name: "index time late", apply: setFields(map[int64]uint64{16: testStart + 5})},
	{name: "confirm max", apply: setFields(map[int64]uint64{32: math.MaxInt64})},
	{name: "times negative", apply: setFields(map[int64]uint64{0: math.MaxUint64, 8: 1 << 63})},
	{name: "times late", apply: setFields(map[int64]uint64{0: testStart + 300, 8: testStart + 300})},
	{name: "slots 0xFF", apply: func(c *site) { c.patch("checkpoint", 48, slices.Repeat([]byte{0xFF}, 4048)) }},
	{name: "other slot's bytes", apply: func(c *site) {
		b := c.bytes("checkpoint")
		c.patch("checkpoint", 512, b[1024:1536])
		c.patch("checkpoint", 1024, b[512:1024])
	}},
}

func TestC31CheckpointContent(t *testing.T) {
	// 100 records of 400 bytes to a file.
	put := func(c *site, s *Store, n int) {
		for range n {
			i := len(c.acked)
			c.clock.add(time.Millisecond)
			m := testMessage("", "KEYS", fmt.Sprintf("key%d", i))
			m.Body = fmt.Appendf(nil, "%*d", 400-91-len(m.Topic)-len(m.Properties), i)
			c.put(s, m)
		}
	}
	for _, v := range []variant{inMemory, allVariants[1], allVariants[4]} {
		for _, at := range []int{0, 250, 300} { // messages at the last checkpoint
			for _, units := range []int{300, 250} {
				t.Run(fmt.Sprintf("%s/checkpoint=%d/units=%d", v.name, at, units), func(t *testing.T) {
					base := newSite(t, v)
					base.opts.CommitLogFileSize = 100*400 + 8
					base.keyStep = 7
					s := base.open()
					put(base, s, at)
					waitDispatched(t, s)
					must(t, s.Sync(context.Background()))
					put(base, s, 300-at)
					waitDispatched(t, s)
					must(t, s.queues.each(func(q *consumequeue.Table) error { return q.WriteOut() }))
					base.stop(s, stopKill)
					if n := len(base.names("commitlog")); n < 3 {
						t.Fatalf("%d log files", n)
					}
					if units < 300 {
						base.zero("consumequeue/TopicTest/0/00000000000000000000", int64(units)*20, 300*20)
					}
					for i, d := range checkpointDamages {
						if v.os && i%4 != 0 {
							continue
						}
						c := base.fork()
						d.apply(c)
						checkpointContent(t, c, d, at > 0 && units >= at)
						if t.Failed() {
							t.Fatal(d.name)
						}
					}
				})
			}
		}
	}
}

func checkpointContent(t *testing.T, c *site, d checkpointDamage, few bool) {
	c.fault = faultfs.New(c.fs)
	s := c.open()
	read := 0
	for _, e := range c.acked[:201:201] {
		if e.offset%100 == 0 { // the first of a file
			name, _ := c.logPlace(e.physical)
			if c.fault.Count(faultfs.OpRead|faultfs.OpMapRead, c.path(name)).Bytes > 0 {
				read++
			}
		}
	}
	if d.good && few && read > 2 {
		t.Errorf("%d log files were read", read)
	}
	if read == 0 {
		t.Error("no log file was read: the count is wrong")
	}
	c.queueRange(s, "TopicTest", 0, 0, 300)
	c.verify(s)
	valid := func() {
		t.Helper()
		if n := len(c.bytes("checkpoint")); n != 4096 {
			t.Errorf("the checkpoint has %d bytes", n)
		}
		f, err := checkpoint.Open(c.fs, c.path("checkpoint"), c.clock.now)
		must(t, err)
		v, ext := f.Load()
		must(t, f.Close())
		last := c.acked[len(c.acked)-1]
		if ext == nil || ext.DispatchedTo != last.physical+400 || v.PhysicTime != last.time || v.LogicsTime != last.time || v.IndexTime < 0 || v.IndexTime > last.time {
			t.Errorf("the checkpoint holds %+v, %+v", v, ext)
		}
	}
	if d.name != "4095 bytes" {
		valid()
	}
	mustClose(t, s)
	valid()
	s = c.open()
	c.verify(s)
	mustClose(t, s)
}
