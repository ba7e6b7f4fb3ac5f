package indexfile

import (
	"context"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// Fault Q1: a message is found by its own time to the millisecond.
func TestQ1OwnTime(t *testing.T) {
	e := newEnv(newMem(), 500, 2000)
	x, _, _ := e.open(t, everything(true))
	mustPut(t, x, put{0, start, []int32{1}}, put{100, start + 1500, []int32{7}})
	for range 2 { // the second time without knowing that times do not decrease
		for _, w := range [][2]int64{{1500, 1500}, {1000, 1500}, {1500, 2000}, {501, 1501}} {
			if got := lookup(t, x, 7, start+w[0], start+w[1]); !slices.Equal(got, phys(100)) {
				t.Errorf("window %v: %v", w, got)
			}
		}
		for _, w := range [][2]int64{{3100, 9000}, {-start, -1100}} {
			if got := lookup(t, x, 7, start+w[0], start+w[1]); got != nil {
				t.Errorf("window %v: %v", w, got)
			}
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		x, _, _ = e.open(t, everything(true))
	}
}

// Fault Q2: the clock goes back between two messages of one key; neither is
// hidden by the other, in one file or in two.
func TestQ2ClockBack(t *testing.T) {
	for _, entries := range []int32{2000, 3} {
		e := newEnv(newMem(), 500, entries)
		x, _, _ := e.open(t, everything(true))
		ps := []put{
			{0, start + 2_000, []int32{1}}, {100, start + 10_000, []int32{7}},
			{200, start, []int32{7}}, {300, start + 1_000, []int32{1}},
		}
		mustPut(t, x, ps...)
		for range 2 {
			if got := lookup(t, x, 7, start+5_000, start+15_000); !slices.Contains(got, 100) {
				t.Errorf("%d entries: %v", entries, got)
			}
			if got := lookup(t, x, 7, start, start); !slices.Contains(got, 200) {
				t.Errorf("%d entries: %v", entries, got)
			}
			verify(t, x, ps)
			x, _, _ = e.reopen(t, x)
		}
	}
}

// Fault Q7: links in a circle end, and the entries are found all the same.
func TestQ7Cycle(t *testing.T) {
	e := newEnv(newMem(), 2, 2000) // everything in two chains
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 30)
	mustPut(t, x, ps...)
	g := e.opt.geometry()
	path := x.Files()[0].Path
	for name, links := range map[string][][2]int32{
		"5→3→5":         {{5, 3}, {3, 5}},
		"newest→oldest": {{59, 60}, {60, 59}},
		"self":          {{30, 30}},
		"forward":       {{2, 58}},
		"other chain":   {{41, 34}},
	} {
		t.Run(name, func(t *testing.T) {
			fs := e.fs.(*memfs.FS).CrashClone(memfs.KeepAll)
			change(t, fs, path, func(f vfs.File) {
				for _, l := range links {
					poke(t, f, g.entryPos(l[0])+posPrev, l[1])
				}
			})
			for _, clean := range []bool{true, false} {
				e := newEnv(fs, g.Slots, g.Entries)
				y, from, rep := e.open(t, everything(clean))
				replay(t, y, ps, from)
				verify(t, y, ps)
				if n := len(e.damage); n > 1 {
					t.Errorf("damage reported %d times: %v", n, e.damage)
				}
				if clean && len(e.damage)+len(rep.Repairs) == 0 {
					t.Error("nothing was reported")
				}
			}
			if t.Failed() {
				t.FailNow()
			}
		})
	}
}

// Fault Q8: files that cannot be read are reported with the results of the
// others.
func TestQ8ReadError(t *testing.T) {
	fs := faultfs.New(newMem())
	e := newEnv(fs, 50, 12)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 20)
	mustPut(t, x, ps...)
	files := x.Files()
	bad := fs.Fail(faultfs.OpRead, filepath.Base(files[1].Path), faultfs.ErrIO)
	var got []message.PhysicalOffset
	var failed int
	for c, err := range x.Lookup(3, 0, math.MaxInt64) {
		if err != nil {
			if !errors.Is(err, faultfs.ErrIO) {
				t.Fatal(err)
			}
			failed++
			continue
		}
		got = append(got, c.Phy)
	}
	if failed != 1 || len(got) == 0 || len(got) >= len(hits(ps, 3)) {
		t.Errorf("%d errors, hits %v", failed, got)
	}
	bad.Remove()
	verify(t, x, ps)

	// A consumer may stop at any point, also at an error.
	fs.Fail(faultfs.OpRead, "", faultfs.ErrIO)
	for range x.Lookup(3, 0, math.MaxInt64) {
		break
	}
	fs.Clear()
	for range x.Lookup(3, 0, math.MaxInt64) {
		break
	}
	for _, f := range x.list() {
		if f.handle.pins != 0 {
			t.Errorf("%s is still pinned", f.name)
		}
	}
}

// Fault CF1: a changed setting is for new files only.
func TestCF1Geometry(t *testing.T) {
	for _, was := range []Geometry{{100, 400}, {1, 400}, {399, 30}, {200, 380}} {
		for _, n := range []int{1, 2, 60} {
			t.Run(fmt.Sprint(was, n), func(t *testing.T) {
				e := newEnv(newMem(), was.Slots, was.Entries)
				x, _, _ := e.open(t, everything(true))
				ps := sequence(0, n)
				mustPut(t, x, ps...)
				before := snapshotAfter(t, e, x)
				// 200/800, and one whose length is the same as 200/380.
				for _, now := range []Geometry{{200, 800}, {100, 400}, {5_000_000, 20_000_000}, {100, 400}} {
					e.opt.Slots, e.opt.Entries = now.Slots, now.Entries
					y, from, rep := e.open(t, everything(true))
					if from != ps[n-1].phy {
						t.Errorf("replay from %d", from)
					}
					verify(t, y, ps)
					if was != now && len(rep.Repairs) == 0 {
						t.Error("no warning")
					}
					if err := y.Close(); err != nil {
						t.Fatal(err)
					}
				}
				for name, b := range before {
					if got := string(readFile(t, e.fs, filepath.Join(root, name))); got != b {
						t.Errorf("%s was changed", name)
					}
				}
				// The current file is filled as it is, the next one is new.
				e.opt.Slots, e.opt.Entries = 10, 500
				z, _, _ := e.open(t, everything(true))
				more := sequence(10_000, 300)
				mustPut(t, z, more...)
				verify(t, z, append(ps, more...))
				for _, f := range z.Files() {
					want := was
					if _, old := before[filepath.Base(f.Path)]; !old {
						want = e.opt.geometry()
					}
					if f.Geometry != want || f.Size != want.Size() {
						t.Errorf("%s has geometry %v, want %v", f.Path, f.Geometry, want)
					}
				}
			})
		}
	}
}

func snapshotAfter(t *testing.T, e *env, x *Index) map[string]string {
	t.Helper()
	mustSync(t, x)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	return snapshot(t, e.fs)
}

// Fault L7: opening a big file after an orderly stop reads a bounded part of
// it and changes nothing; after a crash the state of the last sync saves
// reading the log again.
func TestL7CleanOpenIsCheap(t *testing.T) {
	mem := newMem()
	e := newEnv(mem, 0, 0)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 3000)
	mustPut(t, x, ps...)
	st := mustSync(t, x)
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	for _, clean := range []bool{true, false} {
		fs := faultfs.New(mem)
		e = newEnv(fs, 0, 0)
		x, from, rep := e.open(t, OpenState{Trusted: &st, Clean: clean, LogEnd: math.MaxInt64})
		if from != st.EndPhy || !rep.Intact || len(rep.Repairs) > 0 {
			t.Errorf("clean %v: replay from %d, report %+v", clean, from, rep)
		}
		reads := fs.Count(faultfs.OpRead, "")
		if reads.Bytes > 21<<20 {
			t.Errorf("clean %v: %d bytes read", clean, reads.Bytes)
		}
		if n := fs.Changes(); n != 0 {
			t.Errorf("clean %v: %d changes", clean, n)
		}
		for _, i := range []int{0, 1500, 2999} {
			if h := ps[i].hashes[0]; !slices.Equal(lookupAll(t, x, h), hits(ps, h)) {
				t.Errorf("message %d is not found", i)
			}
		}
	}
}

// Fault D10: no new file can be made. The error comes once, other messages are
// left out, and when it works again nothing is missing.
func TestD10NoNewFile(t *testing.T) {
	for _, refill := range []bool{true, false} {
		for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpAllocate, faultfs.OpMapWrite | faultfs.OpWrite} {
			t.Run(fmt.Sprint(op, refill), func(t *testing.T) {
				fs := faultfs.New(newMem())
				e := newEnv(fs, 50, 40)
				ps := sequence(0, 1200)
				var told []error
				e.opt.OnDegraded = func(err error) { told = append(told, err) }
				if refill {
					e.opt.Refill = func(from, to message.PhysicalOffset, put func(message.PhysicalOffset, int64, []int32) error) error {
						for _, p := range ps {
							if p.phy >= from && p.phy < to {
								if err := put(p.phy, p.time, p.hashes); err != nil {
									return err
								}
							}
						}
						return nil
					}
				}
				x, _, _ := e.open(t, everything(true))
				i := 0
				for ; len(x.Files()) < 2; i++ {
					mustPut(t, x, ps[i])
				}
				before := names(t, fs)
				fs.Inject(faultfs.Rule{Ops: op, Err: faultfs.ErrNoSpace, Match: func(c faultfs.Call) bool {
					return !slices.Contains(before, filepath.Base(c.Name))
				}})
				fails := 0
				for ; i < 700; i++ {
					err := x.Put(ps[i].phy, ps[i].time, ps[i].hashes)
					if err != nil {
						fails++
						if !errors.Is(err, base.ErrDiskFull) || errors.Is(err, base.ErrReadOnly) {
							t.Fatal(err)
						}
					}
					e.now += 100
				}
				if fails != 1 || len(told) != 1 || told[0] == nil || x.Degraded() == nil {
					t.Fatalf("%d errors, told %v, degraded %v", fails, told, x.Degraded())
				}
				if got := names(t, fs); !slices.Equal(got, before) {
					t.Errorf("files %v, want %v", got, before)
				}
				st := mustSync(t, x)
				_, last := x.Last()
				if st.Complete || st.MissingFrom != last+100 {
					t.Errorf("state %+v, last message %d", st, last)
				}

				fs.Clear()
				e.now += maxPause
				for ; i < len(ps); i++ {
					mustPut(t, x, ps[i])
				}
				if len(told) != 2 || told[1] != nil || x.Degraded() != nil {
					t.Fatalf("told %v, degraded %v", told, x.Degraded())
				}
				st = mustSync(t, x)
				if st.Complete != refill {
					t.Errorf("state %+v", st)
				}
				some := func() {
					t.Helper()
					for i := 0; i < len(ps); i += 13 {
						if h := ps[i].hashes[0]; !slices.Equal(lookupAll(t, x, h), hits(ps, h)) {
							t.Fatalf("message %d is not found", i)
						}
					}
				}
				if refill {
					some()
				} else if h := ps[1190].hashes[0]; !slices.Equal(lookupAll(t, x, h), hits(ps, h)) {
					t.Error("a message put after the outage is not found")
				}
				// With or without, the next Open knows.
				var from message.PhysicalOffset
				x, from, _ = e.reopen(t, x)
				if refill != (from == ps[len(ps)-1].phy) {
					t.Errorf("replay from %d", from)
				}
				replay(t, x, ps, from)
				some()
				checkAll(t, e)
			})
		}
	}
}

// A message that failed for lack of space can be put again at once, and was
// not half indexed.
func TestNoSpaceRetry(t *testing.T) {
	fs := faultfs.New(newMem())
	e := newEnv(fs, 50, 12)
	x, _, _ := e.open(t, everything(true))
	mustPut(t, x, sequence(0, 3)...) // 6 of 11 entries
	big := put{1000, start + 20_000, nil}
	for i := range 40 { // the rest of this file and three more
		big.hashes = append(big.hashes, int32(1000+i))
	}
	for nth := 1; nth <= 5; nth++ {
		rule := fs.Inject(faultfs.Rule{Ops: faultfs.OpCreate, Nth: nth, Err: faultfs.ErrNoSpace})
		err := x.Put(big.phy, big.time, big.hashes)
		rule.Remove()
		if nth == 5 {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
		if !errors.Is(err, base.ErrDiskFull) {
			t.Fatalf("file %d: %v", nth, err)
		}
		if n := len(names(t, fs)); n != 1 {
			t.Fatalf("file %d: %d files left", nth, n)
		}
		for _, h := range big.hashes {
			if got := lookupAll(t, x, h); got != nil {
				t.Fatalf("file %d: half indexed at %v", nth, got)
			}
		}
	}
	if err := x.Degraded(); err != nil {
		t.Errorf("still degraded: %v", err)
	}
	ps := append(sequence(0, 3), big)
	verify(t, x, ps)
	checkAll(t, e)
	if st := mustSync(t, x); !st.Complete {
		t.Errorf("state %+v", st)
	}
}

// A really full disk: every store through a mapping lies in reserved blocks
// (the file system panics otherwise), and what does not fit is an error.
func TestFullDisk(t *testing.T) {
	for _, capacity := range []int64{64 << 10, 96 << 10, 200 << 10, 1 << 20} {
		mem := newMem()
		mem.SetCapacity(capacity)
		mem.RequireAllocated(true)
		e := newEnv(mem, 3000, 5000)
		x, _, _ := e.open(t, everything(true))
		ps := sequence(0, 60_000)
		var in []put
		for _, p := range ps {
			err := x.Put(p.phy, p.time, p.hashes)
			if err != nil {
				if !errors.Is(err, base.ErrDiskFull) {
					t.Fatal(err)
				}
				break
			}
			in = append(in, p)
		}
		if len(in) == len(ps) {
			t.Fatalf("%d bytes were enough", capacity)
		}
		mem.SetCapacity(0)
		mustPut(t, x, ps[len(in):len(in)+2000]...)
		sample := ps[:len(in)+2000]
		for _, i := range []int{0, len(in) / 2, len(in), len(sample) - 1} {
			h := sample[i].hashes[0]
			if got := lookupAll(t, x, h); !slices.Equal(got, hits(sample, h)) {
				t.Errorf("message %d: %v", i, got)
			}
		}
		checkAll(t, e)
	}
}

// A failed store is final, an error from the first to the last.
func TestFailedStoreIsFinal(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpMapWrite, faultfs.OpMapRead} {
		fs := faultfs.New(newMem())
		e := newEnv(fs, 50, 200)
		x, _, _ := e.open(t, everything(true))
		ps := sequence(0, 20)
		mustPut(t, x, ps[:10]...)
		st := mustSync(t, x)
		fs.Inject(faultfs.Rule{Ops: op, Nth: 2, Count: 1, Err: faultfs.ErrIO})
		for _, p := range ps[10:] {
			err := x.Put(p.phy, p.time, p.hashes)
			if !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
				t.Fatal(err)
			}
		}
		if _, err := x.Sync(); !errors.Is(err, base.ErrReadOnly) {
			t.Errorf("Sync: %v", err)
		}
		if !errors.Is(x.Degraded(), faultfs.ErrIO) {
			t.Errorf("degraded: %v", x.Degraded())
		}
		verify(t, x, ps[:10])
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		x, from, _ := e.open(t, OpenState{Trusted: &st, LogEnd: math.MaxInt64})
		replay(t, x, ps, from)
		verify(t, x, ps)
		checkAll(t, e)
	}
}

// Faults F1 and F2: a failed sync is final, nothing is promised after it, and
// what was promised before holds although the pages are gone.
func TestF1FailedSync(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpSync, faultfs.OpSyncDir} {
		mem := newMem()
		fs := faultfs.New(mem)
		e := newEnv(fs, 50, 200)
		x, _, _ := e.open(t, everything(true))
		ps := sequence(0, 20)
		var st *State
		done := 0
		if op == faultfs.OpSync {
			mustPut(t, x, ps[:10]...)
			s := mustSync(t, x)
			st, done = &s, 10
		}
		fs.Inject(faultfs.Rule{Ops: op, Count: 1, Err: faultfs.ErrIO})
		mustPut(t, x, ps[done:15]...)
		for range 2 {
			if got, err := x.Sync(); !errors.Is(err, base.ErrReadOnly) || got != (State{}) {
				t.Fatalf("Sync: %+v, %v", got, err)
			}
		}
		if err := x.Put(ps[15].phy, ps[15].time, ps[15].hashes); !errors.Is(err, base.ErrReadOnly) {
			t.Errorf("Put after a failed sync: %v", err)
		}
		if err := x.TruncateFrom(0); !errors.Is(err, base.ErrReadOnly) {
			t.Errorf("TruncateFrom after a failed sync: %v", err)
		}
		after := newEnv(mem.CrashClone(memfs.KeepAll), 50, 200)
		y, from, _ := after.open(t, OpenState{Trusted: st, LogEnd: ps[14].phy + 1})
		verify(t, y, ps[:done])
		replay(t, y, ps[:15], from)
		verify(t, y, ps[:15])
	}
}

// A full file is flushed in the background, and its end reported, in order.
func TestFullFileIsFlushed(t *testing.T) {
	mem := newMem()
	e := newEnv(mem, 50, 12)
	reported := make(chan int64, 100)
	e.opt.OnFull = func(end int64) { reported <- end }
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 40)
	mustPut(t, x, ps...)
	files := x.Files()
	for _, f := range files[:len(files)-1] {
		if got := <-reported; got != f.Header.EndTime {
			t.Fatalf("reported %d, want %d", got, f.Header.EndTime)
		}
	}
	after := newEnv(mem.CrashClone(memfs.LoseUnsynced), 50, 12)
	y, from, _ := after.open(t, OpenState{LogEnd: 4000, FlushedTime: files[len(files)-2].Header.EndTime})
	if want := files[len(files)-2].Header.EndPhy; from < want-100 {
		t.Errorf("replay from %d, the full files end at %d", from, want)
	}
	replay(t, y, ps, from)
	verify(t, y, ps)
}

func TestFailedBackgroundFlush(t *testing.T) {
	fs := faultfs.New(newMem())
	e := newEnv(fs, 50, 12)
	failed := make(chan error, 1)
	e.opt.OnDegraded = func(err error) { failed <- err }
	x, _, _ := e.open(t, everything(true))
	fs.Inject(faultfs.Rule{Ops: faultfs.OpSync, Err: faultfs.ErrIO})
	ps := sequence(0, 6)
	mustPut(t, x, ps...)
	if err := <-failed; !errors.Is(err, faultfs.ErrIO) {
		t.Fatal(err)
	}
	if len(e.full) != 0 {
		t.Error("a file that is not on disk was reported")
	}
	if _, err := x.Sync(); !errors.Is(err, base.ErrReadOnly) {
		t.Errorf("Sync: %v", err)
	}
}

func TestOptions(t *testing.T) {
	for name, opt := range map[string]Options{
		"no file system":    {},
		"negative slots":    {FS: memfs.New(), Slots: -1},
		"one entry":         {FS: memfs.New(), Entries: 1},
		"directory is file": {FS: fileAt(t), Dir: root},
	} {
		if _, _, _, err := Open(context.Background(), opt, OpenState{}); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := newEnv(newMem(), 50, 12)
	x, _, _ := e.open(t, everything(true))
	mustPut(t, x, sequence(0, 20)...)
	cancel()
	if _, _, _, err := Open(ctx, e.opt, everything(true)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func fileAt(t *testing.T) vfs.FS {
	fs := memfs.New()
	f, err := fs.Create(root)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	return fs
}

func TestClosed(t *testing.T) {
	e := newEnv(newMem(), 50, 12)
	x, _, _ := e.open(t, everything(true))
	mustPut(t, x, sequence(0, 20)...)
	next := x.Lookup(3, 0, math.MaxInt64)
	for range 2 {
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.Put(9000, start, []int32{1}); !errors.Is(err, base.ErrClosed) {
		t.Errorf("Put: %v", err)
	}
	if _, err := x.Sync(); !errors.Is(err, base.ErrClosed) {
		t.Errorf("Sync: %v", err)
	}
	if _, err := x.DeleteBefore(100); !errors.Is(err, base.ErrClosed) {
		t.Errorf("DeleteBefore: %v", err)
	}
	if err := x.TruncateFrom(100); !errors.Is(err, base.ErrClosed) {
		t.Errorf("TruncateFrom: %v", err)
	}
	n := 0
	for _, err := range next {
		if n++; !errors.Is(err, base.ErrClosed) {
			t.Errorf("Lookup: %v", err)
		}
	}
	if n != 1 {
		t.Errorf("%d results after Close", n)
	}
}
