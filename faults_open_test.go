package gantry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// The names are those of the faults of store-behaviour. Faults L4, L16 and L17
// have further tests below, in mappedfile, consumequeue and checkpoint.

func TestFault_L1_LockBeforeAnything(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[3]}, func(t *testing.T, c *site) {
		c.opts.CommitLogFileSize = 4096
		s := c.open()
		c.putMany(s, "TopicTest", 0, 60)
		waitDispatched(t, s)
		before, inodes := c.tree(), c.inodes()
		if _, err := Open(context.Background(), c.dir, c.options()); !errors.Is(err, ErrLocked) {
			t.Errorf("the second opening: %v", err)
		}
		if _, err := Open(context.Background(), c.dir, c.options().with(func(o *Options) { o.ReadOnly = true })); !errors.Is(err, ErrLocked) {
			t.Errorf("a look at the open store: %v", err)
		}
		for _, d := range golden.DiffTrees(before, c.tree()) {
			if !strings.HasPrefix(d, "commitlog/") || !strings.HasSuffix(d, "unexpected") { // a file made ahead by the first
				t.Errorf("the refused openings changed %q", d)
			}
		}
		now := c.inodes()
		for _, file := range inodes {
			if !slices.Contains(now, file) {
				t.Errorf("%s was replaced", file)
			}
		}
		live, err := Open(context.Background(), c.dir, c.options().with(func(o *Options) { o.ReadOnly, o.Live = true, true }))
		must(t, err)
		c.verify(live)
		mustClose(t, live)
		c.putMany(s, "TopicTest", 0, 60)
		c.verify(s)
		s = c.reopen(s, stopClean)
		c.verify(s)
		mustClose(t, s)
	})
}

// inodes identifies the files of a store on the operating system.
func (c *site) inodes() []string {
	c.t.Helper()
	var out []string
	if _, ok := c.fs.(*memfs.FS); ok {
		return nil
	}
	must(c.t, filepath.Walk(c.dir, func(path string, info os.FileInfo, err error) error {
		if err == nil {
			out = append(out, fmt.Sprintf("%s %d", path, inode(info)))
		}
		return err
	}))
	return out
}

func TestFault_L2_DamageInTheMiddle(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[1], allVariants[3]}, func(t *testing.T, c *site) {
		c.opts.CommitLogFileSize = 4096
		s := c.open()
		c.putMany(s, "TopicTest", 0, 140) // five files
		c.stop(s, stopClean)
		if n := len(c.names("commitlog")); n != 5 {
			t.Fatalf("%d files", n)
		}
		i := slices.IndexFunc(c.acked, func(e entry) bool { return e.physical > 6000 })
		c.patchLog(c.acked[i].physical+recBody, []byte("BODY"))
		c.create("abort", nil)
		c.remove("checkpoint") // the oldest that there can be
		err := c.refused()
		name, off := c.logPlace(c.acked[i].physical)
		corruptAt(t, err, c.path(name), off)
		holds(t, err, fmt.Sprint(c.acked[i+1].physical))
		if n := len(c.names("commitlog")); n != 5 {
			t.Errorf("%d files are left", n)
		}

		logs := make(map[string][]byte)
		for _, n := range c.names("commitlog") {
			logs[n] = c.bytes("commitlog", n)
		}
		c.opts = c.opts.with(func(o *Options) { o.Damage = QuarantineDamage })
		lost := slices.Clone(c.acked[i+1:])
		c.acked = c.acked[:i]
		s = c.open()
		c.verify(s)
		var kept []byte
		for _, path := range s.Recovery().Quarantined {
			b, err := readFile(c.fs, path)
			must(t, err)
			kept = append(kept, b...)
		}
		for _, e := range lost {
			name, off := c.logPlace(e.physical)
			if !strings.Contains(string(kept), string(logs[filepath.Base(name)][off:off+int64(e.size)])) {
				t.Errorf("the message at %d is in no quarantined file %q", e.physical, s.Recovery().Quarantined)
			}
		}
		mustClose(t, s)
	})
}

func TestFault_L3_OldRecordsComeBack(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[1], allVariants[3]}, func(t *testing.T, c *site) {
		c.opts.Damage = QuarantineDamage
		s := c.open()
		for _, body := range []string{"A", "B", "C"} {
			c.put(s, testMessage(body, "KEYS", body))
		}
		c.stop(s, stopKill)
		a, b := c.acked[0], c.acked[1]
		c.patchLog(b.physical+recBody, []byte{'?'})
		c.acked = []entry{a}
		s = c.open()
		c.verify(s)
		if res := c.put(s, testMessage("D", "KEYS", "D")); res.PhysicalOffset != b.physical || res.Size != b.size {
			t.Fatalf("D: %+v", res)
		}
		s = c.reopen(s, stopKill)
		c.verify(s)
		if _, end := s.Range(); end != b.physical+message.PhysicalOffset(b.size) {
			t.Errorf("the log ends at %d behind the message of %d bytes at %d", end, b.size, b.physical)
		}
		for _, key := range []string{"B", "C"} {
			if got := c.query(s, "TopicTest", key, QueryOptions{}); got != nil {
				t.Errorf("%s is back at %v", key, got)
			}
		}
		mustClose(t, s)
	})
}

func TestFault_L4_RemovalThatFails(t *testing.T) {
	for _, v := range allVariants[:2] {
		c := newSite(t, v)
		c.opts.CommitLogFileSize, c.opts.Damage = 4096, QuarantineDamage
		s := c.open()
		c.putMany(s, "TopicTest", 0, 90) // four files
		c.stop(s, stopClean)
		i := slices.IndexFunc(c.acked, func(e entry) bool { return e.physical > 5000 })
		c.patchLog(c.acked[i].physical+recBody, []byte("BODY"))
		c.acked = c.acked[:i]
		c.remove("checkpoint") // so that all of the log is checked
		c.fault = faultfs.New(c.fs)
		rule := c.fault.Fail(faultfs.OpRemove, "*8192", faultfs.ErrIO)
		if s, err := Open(context.Background(), c.dir, c.options()); !errors.Is(err, faultfs.ErrIO) {
			t.Fatalf("opened %v, %v", s, err)
		}
		if rule.Hits() == 0 {
			t.Fatal("nothing was removed")
		}
		rule.Remove()
		s = c.open()
		c.verify(s)
		c.putMany(s, "TopicTest", 0, 40) // beyond 8192
		s = c.reopen(s, stopKill)
		c.verify(s)
		_, end := s.Range()
		mustClose(t, s)
		name, off := c.logPlace(end)
		if rest := c.bytes(name)[off:]; !allZero(rest) {
			t.Error("old bytes stand behind the end")
		}
	}
}

func TestFault_L5_LogMissing(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[3]}, func(t *testing.T, c *site) {
		s := c.open()
		c.putMany(s, "TopicTest", 0, 10)
		c.stop(s, stopClean)
		elsewhere := c.fork()
		for _, name := range c.names("commitlog") {
			c.remove("commitlog", name)
		}
		for _, abort := range []bool{false, true} {
			if abort {
				c.create("abort", nil)
			}
			err := c.refused()
			if !errors.Is(err, ErrQueuesWithoutLog) {
				t.Errorf("error %v", err)
			}
			holds(t, err, c.path("commitlog"), "AllowEmptyLog")
		}
		// The volume is there again.
		for _, name := range elsewhere.names("commitlog") {
			c.create(filepath.Join("commitlog", name), elsewhere.bytes("commitlog", name))
		}
		s = c.open()
		c.verify(s)
		mustClose(t, s)
	})
}

func TestFault_L6_IndexAfterCrash(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		c.opts.CommitLogFileSize = 4096
		s := c.open()
		c.putMany(s, "TopicTest", 0, 60)
		waitDispatched(t, s)
		must(t, s.Sync(context.Background())) // the checkpoint is current
		c.putMany(s, "TopicTest", 0, 20)
		c.stop(s, stopKill)
		if n := len(c.names("index")); n != 1 {
			t.Fatalf("%d index files", n)
		}
		s = c.open()
		if got := c.query(s, "TopicTest", "key0", QueryOptions{}); !slices.Equal(got, []message.PhysicalOffset{0}) {
			t.Errorf("the first message by key: %v", got)
		}
		c.verify(s)
		mustClose(t, s)
	})
}

func TestFault_L7_CleanOpeningReadsLittle(t *testing.T) {
	c := newSite(t, inMemory)
	c.opts.CommitLogFileSize = 16 << 10
	c.keyStep = 20
	s := c.open()
	c.putMany(s, "TopicTest", 0, 1300) // ten files, the index not full
	c.stop(s, stopClean)
	if n := len(c.names("commitlog")); n < 10 {
		t.Fatalf("%d files", n)
	}
	c.fault = faultfs.New(c.fs)
	s = c.open()
	read := c.fault.Count(faultfs.OpRead|faultfs.OpMapRead, c.path("commitlog", "*"))
	if read.Bytes > 3*16<<10 {
		t.Errorf("%d bytes of the log were read", read.Bytes)
	}
	if s.Recovery().Replayed > 0 {
		t.Errorf("%d records were dispatched again", s.Recovery().Replayed)
	}
	c.verify(s)
	mustClose(t, s)
}

func TestFault_L8_OneQueueMissing(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[1], allVariants[3]}, func(t *testing.T, base *site) {
		base.opts.ConsumeQueueFileSize = 400
		s := base.open()
		for i := range 90 {
			base.putMany(s, fmt.Sprintf("T%d", i%3), int32(i%2), 1)
		}
		base.stop(s, stopClean)
		for _, gone := range []string{"consumequeue/T1", "consumequeue/T0/1", "consumequeue/T2/0/00000000000000000000"} {
			for _, how := range []stop{stopClean, stopAbort} {
				c := base.fork()
				if len(c.names(gone)) == 0 {
					if _, err := c.fs.Stat(c.path(gone)); err != nil {
						t.Fatal(err)
					}
				}
				c.remove(gone)
				if how == stopAbort {
					c.create("abort", nil)
				}
				s := c.open()
				c.verify(s)
				for _, q := range s.Queues() {
					if q.MinOffset != 0 || q.MaxOffset != 15 {
						t.Errorf("%s, %s: %+v", gone, how, q)
					}
				}
				mustClose(t, s)
			}
		}
	})
}

func TestFault_L9_LastUnitMissing(t *testing.T) {
	eachVariant(t, []variant{inMemory, allVariants[1], allVariants[3]}, func(t *testing.T, base *site) {
		s := base.open()
		base.putMany(s, "TopicTest", 0, 10)
		base.stop(s, stopClean)
		for n := range int64(10) { // units that are cut off
			c := base.fork()
			c.zero("consumequeue/TopicTest/0/00000000000000000000", (10-n)*20, 200)
			s := c.open()
			c.queueRange(s, "TopicTest", 0, 0, 10)
			c.verify(s)
			mustClose(t, s)
		}
	})
}

func TestFault_L11_ClockSetBack(t *testing.T) {
	eachVariant(t, allVariants, func(t *testing.T, c *site) {
		c.opts.CommitLogFileSize = 4096
		s := c.open()
		c.clock.add(time.Hour)
		c.putMany(s, "TopicTest", 0, 40)
		waitDispatched(t, s)
		must(t, s.Sync(context.Background()))
		c.clock.set(testStart)
		for range 5 { // several files
			c.putMany(s, "TopicTest", 0, 30)
			c.putMany(s, "Other", 0, 3)
		}
		c.stop(s, stopKill)
		s = c.open()
		c.verify(s)
		mustClose(t, s)
	})
}

func TestFault_L12_AllZeroQueueFile(t *testing.T) {
	for _, how := range allStops {
		c := newSite(t, inMemory)
		c.opts.ConsumeQueueFileSize = 200
		s := c.open()
		c.putMany(s, "Full", 0, 10) // exactly one file
		c.putMany(s, "Other", 0, 5)
		waitDispatched(t, s)
		must(t, s.Sync(context.Background()))
		c.stop(s, how)
		c.create("consumequeue/Full/0/00000000000000000200", make([]byte, 200))
		// Another queue has a unit behind the end of the log.
		unit := consumequeue.AppendUnit(nil, consumequeue.Unit{Physical: 900_000, Size: 100, Tags: 1})
		c.patch("consumequeue/Other/0/00000000000000000000", 5*20, unit)
		s = c.open()
		c.queueRange(s, "Full", 0, 0, 10)
		c.queueRange(s, "Other", 0, 0, 5)
		c.verify(s)
		c.putMany(s, "Full", 0, 1)
		c.putMany(s, "Other", 0, 1)
		c.verify(s)
		mustClose(t, s)
	}
}

func TestFault_L13_OnlyFillUnits(t *testing.T) {
	for _, how := range allStops {
		c := newSite(t, inMemory)
		s := c.open()
		c.putMany(s, "Other", 0, 3)
		waitDispatched(t, s)
		must(t, s.Sync(context.Background()))
		c.stop(s, how)
		must(t, c.fs.MkdirAll(c.path("consumequeue/Filled/0")))
		file := make([]byte, 20_000)
		for i := range 7 {
			copy(file[i*20:], consumequeue.AppendUnit(nil, consumequeue.FillUnit))
		}
		c.create("consumequeue/Filled/0/00000000000000000000", file)
		s = c.open()
		c.verify(s)
		c.putMany(s, "Filled", 0, 2)
		c.putMany(s, "Other", 0, 1)
		c.verify(s)
		s = c.reopen(s, stopKill)
		c.verify(s)
		mustClose(t, s)
	}
}

// queueFrom1000 is a store whose log begins at 0 with messages whose queue
// offsets begin at 1000.
func queueFrom1000(t testing.TB, n int) *site {
	c := newSite(t, inMemory)
	s := c.open()
	c.putMany(s, "TopicTest", 0, n)
	c.stop(s, stopClean)
	for i := range c.acked {
		c.acked[i].offset += 1000
		c.patchLog(c.acked[i].physical+20, binary.BigEndian.AppendUint64(nil, uint64(c.acked[i].offset)))
	}
	c.remove("consumequeue")
	c.remove("checkpoint")
	return c
}

func TestFault_L14_FillUnitsAreNoMessages(t *testing.T) {
	c := queueFrom1000(t, 5)
	s := c.open()
	for _, how := range []stop{stopClean, stopAbort, stopKill, stopClean} {
		if lo, _ := s.Range(); lo != 0 {
			t.Fatalf("the log begins at %d", lo)
		}
		c.queueRange(s, "TopicTest", 0, 1000, 1005)
		c.verify(s)
		if res, err := s.Get("TopicTest", 0, 0, GetOptions{}); err != nil || res.Status != OffsetTooSmall || res.NextOffset != 1000 {
			t.Errorf("get at 0: %+v, %v", res, err)
		}
		s = c.reopen(s, how)
	}
	mustClose(t, s)
}
