package indexfile

import (
	"errors"
	"path/filepath"
	"slices"
	"testing"

	"go.uber.org/goleak"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/internal/vfs/overlayfs"
	"github.com/gantrymq/gantry/message"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// closedIndex is an index of n messages in files of 11 entries, closed.
func closedIndex(t *testing.T, n int) (*env, []put, State, []FileInfo) {
	t.Helper()
	e := newEnv(newMem(), 5, 12)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, n)
	mustPut(t, x, ps...)
	st := mustSync(t, x)
	files := x.Files()
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	return e, ps, st, files
}

func storeTimeOf(ps []put) func(message.PhysicalOffset) (int64, bool) {
	return func(phy message.PhysicalOffset) (int64, bool) {
		i := slices.IndexFunc(ps, func(p put) bool { return p.phy == phy })
		if i < 0 {
			return 0, false
		}
		return ps[i].time, true
	}
}

// A garbled header in the middle is written again with the help of the log;
// nothing is put again and no other file suffers.
func TestHeaderFromLog(t *testing.T) {
	for name, damage := range map[string]func(f vfs.File){
		"zero":           func(f vfs.File) { fill(t, f, 0, headerSize, 0) },
		"begin time":     func(f vfs.File) { fill(t, f, posBeginTime, 4, 0x31) },
		"begin position": func(f vfs.File) { poke(t, f, posBeginPhy+4, 77) },
		"end":            func(f vfs.File) { fill(t, f, posEndTime, 4, 0x31); fill(t, f, posEndPhy, 8, 0x31) },
		"counts":         func(f vfs.File) { fill(t, f, posSlotCount, 8, 0xee) },
	} {
		t.Run(name, func(t *testing.T) {
			e, ps, st, files := closedIndex(t, 40)
			before := snapshot(t, e.fs)
			change(t, e.fs, files[3].Path, damage)
			e.opt.StoreTime = storeTimeOf(ps)
			x, from, rep := e.open(t, OpenState{Trusted: &st, LogEnd: 4000})
			if from != 3900 || len(rep.Repairs) != 1 || rep.Repairs[0].File != files[3].Path {
				t.Errorf("replay from %d, report %+v", from, rep)
			}
			verify(t, x, ps)
			for n, b := range snapshot(t, e.fs) {
				if b != before[n] {
					t.Errorf("%s: header %+v", n, decodeHeader((*[headerSize]byte)([]byte(b))))
				}
			}
		})
	}
}

// The newest entry must be at a record of the log, else it goes and the one
// before it counts.
func TestNewestEntryFitsLog(t *testing.T) {
	e, ps, _, files := closedIndex(t, 30)
	newest := files[len(files)-1]
	g := e.opt.geometry()
	change(t, e.fs, newest.Path, func(f vfs.File) {
		poke(t, f, g.entryPos(newest.Header.Count-1)+posPhy+4, 2950)
		poke(t, f, posEndPhy+4, 2950)
	})
	e.opt.StoreTime = storeTimeOf(ps)
	x, from, rep := e.open(t, OpenState{Clean: true, LogEnd: 3000})
	if from != 2900 || len(rep.Repairs) != 1 {
		t.Errorf("replay from %d, report %+v", from, rep)
	}
	replay(t, x, ps, from)
	verify(t, x, ps)
	checkAll(t, e)

	// A log that cannot be asked does not cost the index.
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	e.opt.StoreTime = func(message.PhysicalOffset) (int64, bool) { return 0, false }
	x, from, _ = e.open(t, OpenState{Clean: true, LogEnd: 3000})
	replay(t, x, ps, from)
	verify(t, x, ps)
}

// The file that was newest at the last sync is gone: a Java broker deletes it
// after a crash and makes another. What that holds is not all.
func TestNewestFileIsMissing(t *testing.T) {
	for _, remake := range []bool{true, false} {
		e, ps, st, files := closedIndex(t, 40)
		if err := e.fs.Remove(files[len(files)-1].Path); err != nil {
			t.Fatal(err)
		}
		if remake {
			f := newEnv(memfs.New(), 5, 12)
			x, _, _ := f.open(t, everything(true))
			mustPut(t, x, ps[39])
			writeFile(t, e.fs, filepath.Join(root, "20990101000000000"), readFile(t, f.fs, x.Files()[0].Path))
		}
		x, from, rep := e.open(t, OpenState{Trusted: &st, LogEnd: 4000})
		if rep.Intact || from > files[len(files)-2].Header.EndPhy {
			t.Errorf("replay from %d, report %+v", from, rep)
		}
		replay(t, x, ps, from)
		verify(t, x, ps)
		checkAll(t, e)
	}
}

// A file that Java made and did not use stays, and is used.
func TestUnusedSuccessor(t *testing.T) {
	e, ps, st, files := closedIndex(t, 11) // 22 entries: two full files
	if len(files) != 2 || files[1].Header.Count != 12 {
		t.Fatalf("files %+v", files)
	}
	for _, count := range []int32{0, 1} { // as made, and after Java closed
		b := make([]byte, e.opt.geometry().Size())
		h := seedAfter(st.EndPhy, st.EndTime)
		h.Count = count
		putHeader((*[headerSize]byte)(b), h)
		name := "20990101000000000"
		writeFile(t, e.fs, filepath.Join(root, name), b)
		before := snapshot(t, e.fs)
		x, from, rep := e.open(t, everything(true))
		if from != 1000 || len(rep.Repairs) > 0 || rep.Files != 3 {
			t.Errorf("replay from %d, report %+v", from, rep)
		}
		verify(t, x, ps)
		st2 := mustSync(t, x)
		if st2.Name != name || st2.EndPhy != 1000 {
			t.Errorf("state %+v", st2)
		}
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		// With the state of such a sync, in order or not.
		for _, clean := range []bool{true, false} {
			x, from, rep = e.open(t, OpenState{Trusted: &st2, Clean: clean, LogEnd: 1100})
			if from != 1000 || !rep.Intact || rep.Files != 3 {
				t.Errorf("clean %v: replay from %d, report %+v", clean, from, rep)
			}
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if !mapsEqual(before, snapshot(t, e.fs)) {
			t.Error("opening changed something")
		}
		if count == 1 {
			x, _, _ = e.open(t, everything(true))
			more := sequence(1100, 3)
			mustPut(t, x, more...)
			verify(t, x, append(ps, more...))
			if n := len(x.Files()); n != 3 {
				t.Errorf("%d files", n)
			}
			checkAll(t, e)
		}
	}
}

func mapsEqual(a, b map[string]string) bool {
	if len(a) != len(b) {
		return false
	}
	for k, v := range a {
		if b[k] != v {
			return false
		}
	}
	return true
}

// An index with a gap says so, and Open has everything from the gap on put
// again, also when the file of the state is damaged, also after a crash.
func TestGapIsClosedByOpen(t *testing.T) {
	for _, early := range []bool{true, false} {
		for _, damage := range []bool{true, false} {
			mem := newMem()
			fs := faultfs.New(mem)
			e := newEnv(fs, 5, 12)
			x, _, _ := e.open(t, everything(true))
			ps := sequence(0, 40)
			n := 11
			if early { // not even the first file
				n = 0
			}
			mustPut(t, x, ps[:n]...)
			fs.Fail(faultfs.OpCreate, "", faultfs.ErrNoSpace)
			if err := x.Put(ps[n].phy, ps[n].time, ps[n].hashes); err == nil {
				t.Fatal("no error")
			}
			mustPut(t, x, ps[n+1:n+5]...)
			st := mustSync(t, x)
			if st.Complete || st.MissingFrom != ps[n].phy {
				t.Fatalf("state %+v", st)
			}
			fs.Clear()
			e.now += maxPause
			mustPut(t, x, ps[n+5:]...)
			if st2 := mustSync(t, x); st2.Complete || st2.MissingFrom != ps[n].phy {
				t.Fatalf("state %+v", st2)
			}
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
			if damage && n > 0 {
				change(t, mem, filepath.Join(root, st.Name), func(f vfs.File) { poke(t, f, posBeginPhy, 1) })
			}
			x, from, rep := e.open(t, OpenState{Trusted: &st, LogEnd: 4000})
			if from > ps[n].phy || rep.Intact {
				t.Errorf("replay from %d, want %d; report %+v", from, ps[n].phy, rep)
			}
			replay(t, x, ps, from)
			verify(t, x, ps)
			checkAll(t, e)
			if st := mustSync(t, x); !st.Complete {
				t.Errorf("state %+v", st)
			}
		}
	}
}

// A slot that goes bad while the file is written does not lose the chain.
func TestBadSlotWhilePutting(t *testing.T) {
	e := newEnv(newMem(), 5, 200)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 30)
	mustPut(t, x, ps[:20]...)
	g := e.opt.geometry()
	change(t, e.fs, x.Files()[0].Path, func(f vfs.File) {
		for slot := range g.Slots {
			poke(t, f, g.slotPos(slot), 150+slot)
		}
	})
	verify(t, x, ps[:20])
	mustPut(t, x, ps[20:]...)
	verify(t, x, ps)
	if len(e.damage) != 1 {
		t.Errorf("damage reported: %v", e.damage)
	}
	x, _, rep := e.reopen(t, x)
	verify(t, x, ps)
	if !rep.Intact {
		t.Errorf("report %+v", rep)
	}
}

// A name that is taken since Open is not overwritten.
func TestTakenName(t *testing.T) {
	e := newEnv(newMem(), 5, 12)
	x, _, _ := e.open(t, everything(true))
	mustPut(t, x, sequence(0, 1)...)
	first := filepath.Base(x.Files()[0].Path)
	second, err := nameAfter(first, e.now, e.opt.Location)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, e.fs, filepath.Join(root, second), []byte("mine"))
	ps := sequence(0, 20)
	mustPut(t, x, ps...)
	verify(t, x, ps)
	if got := string(readFile(t, e.fs, filepath.Join(root, second))); got != "mine" {
		t.Errorf("%s holds %q", second, got)
	}
}

// Without a mapping the index writes with WriteAt, to the same bytes.
func TestWithoutMapping(t *testing.T) {
	fs := faultfs.New(newMem())
	fs.Fail(faultfs.OpMap, "", errors.New("no address space"))
	e := newEnv(fs, 5, 12)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 40)
	mustPut(t, x, ps...)
	verify(t, x, ps)
	want, _, _, _ := closedIndex(t, 40)
	if !mapsEqual(snapshot(t, fs), snapshot(t, want.fs)) {
		t.Error("other bytes than through a mapping")
	}
	x, _, _ = e.reopen(t, x)
	verify(t, x, ps)
}

// On the overlay everything works and the base stays as it is.
func TestOnOverlay(t *testing.T) {
	e, ps, _, _ := closedIndex(t, 40)
	base := e.fs
	before := snapshot(t, base)
	over := newEnv(overlayfs.New(base), 5, 12)
	x, from, _ := over.open(t, OpenState{LogEnd: 3500}) // a repair
	if from != 3400 {
		t.Errorf("replay from %d", from)
	}
	replay(t, x, ps[:35], from)
	verify(t, x, ps[:35])
	more := sequence(3500, 20)
	mustPut(t, x, more...)
	verify(t, x, append(ps[:35:35], more...))
	mustSync(t, x)
	if !mapsEqual(before, snapshot(t, base)) {
		t.Error("the base was changed")
	}
}

// Not every file keeps a handle.
func TestHandles(t *testing.T) {
	mem := newMem()
	e := newEnv(mem, 50, 4)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 300)
	mustPut(t, x, ps...)
	if n := len(x.Files()); n < 150 {
		t.Fatalf("%d files", n)
	}
	if got := lookupAll(t, x, 3); !slices.Equal(got, hits(ps, 3)) {
		t.Errorf("found %v", got)
	}
	open := 0
	for _, f := range x.list() {
		if f.handle.pins != 0 {
			t.Errorf("%s is pinned", f.name)
		}
		if f.handle.f != nil {
			open++
		}
	}
	if open != openFiles {
		t.Errorf("%d handles are open, want %d", open, openFiles)
	}
}

// Entries past the end of the log go, wherever the log ends (invariant 34a).
func TestIndexAheadOfLog(t *testing.T) {
	for end := message.PhysicalOffset(0); end <= 2000; end += 50 {
		for _, trusted := range []bool{true, false} {
			for _, clean := range []bool{true, false} {
				e, ps, st, _ := closedIndex(t, 20)
				state := OpenState{Clean: clean, LogEnd: end}
				if trusted {
					state.Trusted = &st
				}
				x, from, rep := e.open(t, state)
				in := ps[:(end+99)/100]
				if from > end {
					t.Fatalf("end %d: replay from %d", end, from)
				}
				replay(t, x, in, from)
				for _, p := range ps {
					for _, h := range p.hashes {
						if got := lookupAll(t, x, h); !slices.Equal(got, hits(in, h)) {
							t.Fatalf("end %d: hash %d found at %v, want %v", end, h, got, hits(in, h))
						}
					}
				}
				if end < 1900 && len(rep.Repairs) == 0 {
					t.Errorf("end %d: nothing reported", end)
				}
				more := sequence((end+99)/100*100, 5)
				mustPut(t, x, more...)
				verify(t, x, append(in[:len(in):len(in)], more...))
				checkAll(t, e)
			}
		}
	}
}

// Every error of the file system during Open is an error of Open, and the next
// Open is none the worse.
func TestOpenErrors(t *testing.T) {
	for _, op := range []faultfs.Op{
		faultfs.OpList, faultfs.OpOpen, faultfs.OpSize, faultfs.OpRead, faultfs.OpNextData,
		faultfs.OpWrite, faultfs.OpTruncate, faultfs.OpSync, faultfs.OpRemove, faultfs.OpSyncDir,
	} {
		for nth := 1; nth < 40; nth++ {
			e, ps, st, files := closedIndex(t, 40)
			mem := e.fs
			change(t, mem, files[len(files)-1].Path, func(f vfs.File) { truncate(t, f, 100) })
			fs := faultfs.New(mem)
			rule := fs.Inject(faultfs.Rule{Ops: op, Nth: nth, Count: 1, Err: faultfs.ErrIO})
			opt := e.opt
			opt.FS = fs
			x, _, _, err := Open(t.Context(), opt, OpenState{LogEnd: 4000})
			if err == nil {
				if err := x.Close(); err != nil {
					t.Fatal(err)
				}
			}
			if rule.Hits() == 0 {
				break
			}
			if !errors.Is(err, faultfs.ErrIO) {
				t.Errorf("%v failed at call %d: %v", op, nth, err)
			}
			y, from, _ := e.open(t, OpenState{Trusted: &st, LogEnd: 4000})
			replay(t, y, ps, from)
			verify(t, y, ps)
		}
	}
}
