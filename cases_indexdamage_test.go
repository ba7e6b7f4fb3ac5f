package gantry

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
)

// indexDamage is a way to spoil the newest index file.
type indexDamage struct {
	name  string
	apply func(c *site, name string, r *indexfile.Reader)
	// silent: what is left is as good as before, nothing needs a warning.
	silent bool
	// bitRot: only reading all entries would show it, which opening does after
	// a crash but not after a clean stop (verify does).
	bitRot bool
}

var indexDamages = []indexDamage{
	{name: "length 0", apply: func(c *site, name string, _ *indexfile.Reader) { c.resize(name, 0) }},
	{name: "39 bytes", apply: func(c *site, name string, _ *indexfile.Reader) { c.resize(name, 39) }},
	{name: "header only", apply: func(c *site, name string, _ *indexfile.Reader) { c.resize(name, 40) }},
	{name: "half", apply: func(c *site, name string, r *indexfile.Reader) { c.resize(name, r.Size()/2) }},
	{name: "one byte short", apply: func(c *site, name string, r *indexfile.Reader) { c.resize(name, r.Size()-1) }},
	{name: "one byte long", silent: true, apply: func(c *site, name string, r *indexfile.Reader) { c.resize(name, r.Size()+1) }},
	{name: "all zero", apply: func(c *site, name string, r *indexfile.Reader) { c.zero(name, 0, r.Size()) }},
	{name: "header zero", apply: func(c *site, name string, _ *indexfile.Reader) { c.zero(name, 0, 40) }},
	{name: "slots zero", apply: func(c *site, name string, r *indexfile.Reader) { c.zero(name, 40, r.EntryPos(0)) }},
	{name: "count max", apply: func(c *site, name string, _ *indexfile.Reader) { c.patch32(name, 36, 0x7FFFFFFF) }},
	{name: "count -1", apply: func(c *site, name string, _ *indexfile.Reader) { c.patch32(name, 36, 0xFFFFFFFF) }},
	{name: "count too small", apply: func(c *site, name string, _ *indexfile.Reader) { c.patch32(name, 36, 3) }},
	{name: "end phy max", apply: func(c *site, name string, _ *indexfile.Reader) { c.patch32(name, 24, 0x7FFFFFFF) }},
	{name: "first slot max", apply: func(c *site, name string, r *indexfile.Reader) { c.patch32(name, r.SlotPos(0), 0x7FFFFFFF) }},
	{name: "used slot max", apply: func(c *site, name string, r *indexfile.Reader) {
		must(c.t, r.Slots(func(slot, _ int32) bool { c.patch32(name, r.SlotPos(slot), 0x7FFFFFFF); return false }))
	}},
	{name: "used slot negative", apply: func(c *site, name string, r *indexfile.Reader) {
		must(c.t, r.Slots(func(slot, _ int32) bool { c.patch32(name, r.SlotPos(slot), 0x80000001); return false }))
	}},
	{name: "entry 5 previous 5", apply: func(c *site, name string, r *indexfile.Reader) { c.patch32(name, r.EntryPos(5)+16, 5) }},
	{name: "entry 5 previous 1999", apply: func(c *site, name string, r *indexfile.Reader) { c.patch32(name, r.EntryPos(5)+16, 1999) }},
	{name: "entry 5 phy", bitRot: true, apply: func(c *site, name string, r *indexfile.Reader) { c.patch32(name, r.EntryPos(5)+4, 0x7FFFFFFF) }},
	{name: "entries zero", bitRot: true, apply: func(c *site, name string, r *indexfile.Reader) { c.zero(name, r.EntryPos(2), r.EntryPos(6)) }},
}

func TestC12DamagedIndexFile(t *testing.T) {
	type geometry struct {
		name           string
		slots, entries int32
	}
	for _, v := range []variant{inMemory, allVariants[4]} {
		for _, g := range []geometry{{"S", 500, 2000}, {"one chain", 1, 2000}, {"three files", 5, 9}} {
			if v.os && g.entries == 2000 {
				continue // the damage is the same; this is about another file system
			}
			t.Run(v.name+"/"+g.name, func(t *testing.T) {
				base := newSite(t, v)
				base.opts.IndexSlots, base.opts.IndexEntries = g.slots, g.entries
				s := base.open()
				for i := range 20 {
					base.clock.add(time.Second)
					base.put(s, testMessage(fmt.Sprint(i), "KEYS", fmt.Sprintf("k%d", i)))
				}
				waitDispatched(t, s)
				killed := base.fork()
				base.stop(s, stopClean)
				for i, d := range indexDamages {
					if v.os && i%4 != 3 {
						continue
					}
					if g.entries == 9 && strings.HasPrefix(d.name, "entr") {
						continue // the newest file has four entries
					}
					for _, how := range allStops {
						if d.bitRot && how != stopKill {
							continue
						}
						t.Run(d.name+"/"+string(how), func(t *testing.T) {
							c := base.fork()
							switch how {
							case stopKill:
								c = killed.fork()
							case stopAbort:
								c.create("abort", nil)
							}
							c.t = t
							damagedIndex(t, c, d, how)
						})
					}
				}
			})
		}
	}
}

// damagedIndex damages the newest index file of c, opens, and looks for all
// keys.
func damagedIndex(t *testing.T, c *site, d indexDamage, how stop) {
	names := c.names("index")
	newest := names[len(names)-1]
	r := c.indexReaders()[len(names)-1]
	d.apply(c, filepath.Join("index", newest), r)
	c.fault = faultfs.New(c.fs)
	s := c.open()
	c.verify(s)
	// No endless loop: nothing is read more often than it can be of use. Each
	// of some 25 queries may fall back to all entries of a file.
	reads := c.fault.Count(faultfs.OpRead|faultfs.OpMapRead, "")
	if limit := int64(4 << 20); reads.Bytes > limit || reads.Calls > 20_000 {
		t.Errorf("%d bytes read in %d calls", reads.Bytes, reads.Calls)
	}
	said := c.said(s)
	if how == stopClean && !d.silent && mentions(said, newest) != 1 {
		t.Errorf("the damage is reported %d times: %q", mentions(said, newest), said)
	}
	// What follows is indexed, and nothing is wrong at the next opening.
	c.clock.add(time.Second)
	c.put(s, testMessage("after", "KEYS", "k3 after"))
	c.verify(s)
	s = c.reopen(s, stopClean)
	c.verify(s)
	if r := s.Recovery(); len(r.Repaired) > 0 && d.name != "half" { // half a file is a whole one with fewer entries
		t.Errorf("repaired again: %q", r.Repaired)
	}
	mustClose(t, s)
}

// TestC12DamagedWhileOpen garbles the newest file behind the back of an open
// store: queries stay complete and end.
func TestC12DamagedWhileOpen(t *testing.T) {
	for _, v := range []variant{inMemory, allVariants[1]} {
		for _, d := range indexDamages {
			switch {
			case d.bitRot, strings.HasSuffix(d.name, "zero") && d.name != "header zero":
				continue // lost entries are lost while the store is open
			case d.silent, d.name == "one byte short", d.name == "half", strings.Contains(d.name, "only"), d.name == "39 bytes", d.name == "length 0":
				continue // a mapped file must not be cut
			}
			t.Run(v.name+"/"+d.name, func(t *testing.T) {
				c := newSite(t, v)
				c.opts.IndexSlots, c.unchecked = 1, true // a broken chain costs time, no message
				s := c.open()
				for i := range 20 {
					c.clock.add(time.Second)
					c.put(s, testMessage(fmt.Sprint(i), "KEYS", fmt.Sprintf("k%d", i)))
				}
				waitDispatched(t, s)
				names := c.names("index")
				d.apply(c, filepath.Join("index", names[0]), c.indexReaders()[0])
				c.verify(s)
				mustClose(t, s)
				s = c.open()
				c.verify(s)
				mustClose(t, s)
			})
		}
	}
}
