package gantry

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/message"
)

// lengthDamage is a hostile value in a record of size bytes that begins at off
// of a file of fileSize bytes. The record is made by hostileMessage.
type lengthDamage struct {
	name string
	pos  int
	n    int // bytes of the field
	v    func(size, off, fileSize int64) int64
}

const hostileBody, hostileTopic, hostileProps = 32, 1, 15

func fixed(v int64) func(int64, int64, int64) int64 {
	return func(int64, int64, int64) int64 { return v }
}

var lengthDamages = []lengthDamage{
	{"size 0", recSize, 4, fixed(0)},
	{"size 3", recSize, 4, fixed(3)},
	{"size 8", recSize, 4, fixed(8)},
	{"size 90", recSize, 4, fixed(90)},
	{"size 91", recSize, 4, fixed(91)},
	{"size max", recSize, 4, fixed(0x7FFFFFFF)},
	{"size min", recSize, 4, fixed(0x80000000)},
	{"size -1", recSize, 4, fixed(0xFFFFFFFF)},
	{"size +1", recSize, 4, func(size, _, _ int64) int64 { return size + 1 }},
	{"size -1 byte", recSize, 4, func(size, _, _ int64) int64 { return size - 1 }},
	{"size to the end", recSize, 4, func(_, off, file int64) int64 { return file - off }},
	{"size beyond the end", recSize, 4, func(_, off, file int64) int64 { return file - off + 1 }},
	{"body -1", recBodyLen, 4, fixed(0xFFFFFFFF)},
	{"body max", recBodyLen, 4, fixed(0x7FFFFFFF)},
	{"body +1", recBodyLen, 4, fixed(hostileBody + 1)},
	{"body -1 byte", recBodyLen, 4, fixed(hostileBody - 1)},
	{"topic 0", recBody + hostileBody, 1, fixed(0)},
	{"topic 255", recBody + hostileBody, 1, fixed(255)},
	{"topic 128", recBody + hostileBody, 1, fixed(128)},
	{"properties -1", recBody + hostileBody + 1 + hostileTopic, 2, fixed(0xFFFF)},
	{"properties 32767", recBody + hostileBody + 1 + hostileTopic, 2, fixed(32767)},
	{"properties +1", recBody + hostileBody + 1 + hostileTopic, 2, fixed(hostileProps + 1)},
	{"magic 0", recMagic, 4, fixed(0)},
	{"magic blank", recMagic, 4, fixed(int64(message.MagicBlank))},
	{"magic v2", recMagic, 4, fixed(int64(message.MagicV2))},
	{"born host v6", recSysFlag, 4, fixed(0x10)},
	{"store host v6", recSysFlag, 4, fixed(0x20)},
	{"both hosts v6", recSysFlag, 4, fixed(0x30)},
	{"position", recPhysical, 8, fixed(1)},
}

func (d lengthDamage) apply(c *site, e entry) {
	name, off := c.logPlace(e.physical)
	b := binary.BigEndian.AppendUint64(nil, uint64(d.v(int64(e.size), off, c.opts.CommitLogFileSize)))
	c.patch(name, off+int64(d.pos), b[8-d.n:])
}

// hostile is an opening of a damaged store, of which nothing may cost more
// than a fixed part above that of the intact one.
func hostile(t testing.TB, c *site, open func()) {
	t.Helper()
	c.fault = faultfs.New(c.fs)
	if n := allocated(open); n > maxOpenAlloc {
		t.Errorf("%d bytes were allocated", n)
	}
	reads := c.fault.Count(faultfs.OpRead|faultfs.OpMapRead, "")
	if reads.Bytes > 16<<20 || reads.Calls > 5000 {
		t.Errorf("%d bytes were read in %d calls", reads.Bytes, reads.Calls)
	}
}

func TestC23HostileLengthsAtTheEnd(t *testing.T) {
	for _, v := range []variant{inMemory, allVariants[1], allVariants[3]} {
		t.Run(v.name, func(t *testing.T) {
			base := newSite(t, v)
			s := base.open()
			tenMessages(base, s)
			killed := base.fork()
			base.stop(s, stopClean)
			for i, d := range lengthDamages {
				if v.os && i%5 != 0 {
					continue
				}
				for _, how := range allStops {
					t.Run(d.name+"/"+string(how), func(t *testing.T) {
						c := base.fork()
						switch how {
						case stopKill:
							c = killed.fork()
						case stopAbort:
							c.create("abort", nil)
						}
						c.t = t
						d.apply(c, c.acked[9])
						hostile(t, c, func() { c.open().abandon() })
						c.fault = nil
						tornTail(t, c, how)
					})
				}
			}
		})
	}
}

func TestC23HostileLengthsInTheMiddle(t *testing.T) {
	for _, v := range []variant{inMemory, allVariants[1], allVariants[3]} {
		t.Run(v.name, func(t *testing.T) {
			base := newSite(t, v)
			s := base.open()
			for i := range 10 { // all like the last one of the other test
				base.put(s, toTopic("T", strings.Repeat("A", 31)+fmt.Sprint(i), "KEYS", fmt.Sprintf("k%d", i), "TAGS", "a"))
			}
			waitDispatched(t, s)
			killed := base.fork()
			base.stop(s, stopClean)
			for i, d := range lengthDamages {
				if v.os && i%5 != 0 {
					continue
				}
				for _, how := range allStops {
					t.Run(d.name+"/"+string(how), func(t *testing.T) {
						c := base.fork()
						switch how {
						case stopKill:
							c = killed.fork()
						case stopAbort:
							c.create("abort", nil)
						}
						c.t = t
						damagedMiddle(t, c, d, how)
					})
				}
			}
		})
	}
}

// damagedMiddle damages the fifth of ten messages and opens.
func damagedMiddle(t *testing.T, c *site, d lengthDamage, how stop) {
	fifth := c.acked[4]
	d.apply(c, fifth)
	name, off := c.logPlace(fifth.physical)
	var err error
	if how == stopKill {
		// It may also be a power cut before anything was confirmed; then what
		// follows must be set aside, not dropped.
		s, oerr := Open(t.Context(), c.dir, c.fork().options())
		if oerr == nil {
			r := s.Recovery()
			if len(r.Quarantined) == 0 || mentions(r.Repaired, fmt.Sprint(fifth.physical)) == 0 {
				t.Errorf("messages 5 to 10 were dropped silently: %+v", r)
			}
			s.abandon()
			return
		}
	}
	hostile(t, c, func() { err = c.refused() })
	corruptAt(t, err, c.path(name), off)
	holds(t, err, fmt.Sprint(c.acked[5].physical), "follow")
	if !errors.Is(err, ErrCorrupt) {
		t.Errorf("error %v is not ErrCorrupt", err)
	}

	// Set aside on request: the first four stay, the others are in a copy.
	log := c.bytes(name)
	c.opts = c.opts.with(func(o *Options) { o.Damage = QuarantineDamage })
	c.forget(func(e entry) bool { return e.physical >= fifth.physical })
	s := c.open()
	c.verify(s)
	if r := s.Recovery(); len(r.Quarantined) != 1 {
		t.Errorf("quarantined %q", r.Quarantined)
	} else {
		kept, rerr := readFile(c.fs, r.Quarantined[0])
		must(t, rerr)
		if string(kept) != string(log[off:int(off)+len(kept)]) || !strings.Contains(string(kept), strings.Repeat("A", 31)+"9") {
			t.Error("the quarantined copy is not what stood behind the damage")
		}
	}
	c.put(s, toTopic("T", "after", "KEYS", "after"))
	s = c.reopen(s, stopKill)
	c.verify(s)
	mustClose(t, s)
}

// TestC23SectorLost: sectors in the middle are zero. What had reached the disk
// once was damaged: opening is refused. What never had was torn by a power
// cut: what follows is set aside.
func TestC23SectorLost(t *testing.T) {
	for _, v := range allVariants[:3] {
		for _, how := range allStops {
			for _, confirmed := range []bool{false, true} {
				if !confirmed && how != stopKill {
					continue
				}
				c := newSite(t, v)
				s := c.open()
				for i := range 10 {
					c.put(s, toTopic("T", strings.Repeat("A", 900)+fmt.Sprint(i), "KEYS", fmt.Sprintf("k%d", i)))
				}
				waitDispatched(t, s)
				if confirmed {
					must(t, s.Sync(context.Background()))
				}
				c.stop(s, how)
				fifth := c.acked[4]
				from := (fifth.physical + 511) / 512 * 512
				c.patchLog(from, make([]byte, 512))
				name, off := c.logPlace(fifth.physical)
				if confirmed {
					corruptAt(t, c.refused(), c.path(name), off)
					c.unchecked = true
					continue
				}
				c.forget(func(e entry) bool { return e.physical >= fifth.physical })
				s = c.open()
				c.verify(s)
				if r := s.Recovery(); len(r.Quarantined) != 1 || mentions(r.Repaired, fmt.Sprint(fifth.physical)) == 0 {
					t.Errorf("recovery %+v", r)
				}
				mustClose(t, s)
			}
		}
	}
}

// TestC23ReadOnlyLook: a damaged log can be looked at without changing it, and
// all intact messages are shown.
func TestC23ReadOnlyLook(t *testing.T) {
	for i, d := range lengthDamages {
		c := newSite(t, inMemory)
		c.unchecked = true
		s := c.open()
		for i := range 10 {
			c.put(s, toTopic("T", strings.Repeat("A", 31)+fmt.Sprint(i), "KEYS", fmt.Sprintf("k%d", i), "TAGS", "a"))
		}
		c.stop(s, stopClean)
		if i%2 == 0 { // as another program leaves it
			c.remove("checkpoint")
		}
		fifth := c.acked[4]
		d.apply(c, fifth)
		before := c.tree()
		c.opts = c.opts.with(func(o *Options) { o.ReadOnly = true })
		s = c.open()
		got, damaged := 0, 0
		for off := message.QueueOffset(0); off < 10; {
			res, err := s.Get("T", 0, off, GetOptions{})
			if err != nil || res.NextOffset <= off {
				t.Fatalf("%s: get at %d: %+v, %v", d.name, off, res, err)
			}
			got, damaged, off = got+len(res.Records), damaged+len(res.Damaged), res.NextOffset
		}
		if got != 9 || damaged != 1 {
			t.Errorf("%s: %d messages and %d reports of damage", d.name, got, damaged)
		}
		if mentions(s.Recovery().Warnings, fmt.Sprint(fifth.physical)) == 0 {
			t.Errorf("%s: warnings %q", d.name, s.Recovery().Warnings)
		}
		mustClose(t, s)
		if d := golden.DiffTrees(before, c.tree()); len(d) > 0 {
			t.Errorf("looking changed %v", d)
		}
	}
}
