package indexfile

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// crashRun is a workload up to a crash: what was put, and the last sync.
type crashRun struct {
	puts   []put
	state  *State // of the last sync that succeeded; what the checkpoint holds
	synced int    // puts before it
}

// randomPuts makes n messages with one to three keys, of which many are equal.
func randomPuts(rnd *rand.Rand, n int) []put {
	ps := make([]put, n)
	phy, now := message.PhysicalOffset(0), int64(start)
	for i := range ps {
		hs := make([]int32, 1+rnd.IntN(3))
		for j := range hs {
			hs[j] = rnd.Int32N(1 << 20)
			if rnd.IntN(3) == 0 {
				hs[j] = rnd.Int32N(4) * 7001
			}
		}
		ps[i] = put{phy, now, hs}
		phy += message.PhysicalOffset(90 + rnd.IntN(2000))
		now += int64(rnd.IntN(3000))
	}
	return ps
}

// workload puts messages with a sync and sometimes a deletion now and then,
// until something fails.
func (e *env) workload(ps []put, syncEvery int) (run crashRun) {
	x, _, _, err := Open(context.Background(), e.opt, everything(true))
	if err != nil {
		return run
	}
	defer x.Close()
	for i, p := range ps {
		run.puts = ps[:i+1]
		if x.Put(p.phy, p.time, p.hashes) != nil {
			return run
		}
		if i%syncEvery == syncEvery-1 {
			st, err := x.Sync()
			if err != nil {
				return run
			}
			run.state, run.synced = &st, i+1
		}
	}
	return run
}

func (r crashRun) end() message.PhysicalOffset { return r.puts[len(r.puts)-1].phy + 1 }

// replay puts what Open asks for. The store has records up to end only.
func replay(t tb, x *Index, ps []put, from message.PhysicalOffset) {
	t.Helper()
	for _, p := range ps {
		if p.phy >= from {
			mustPut(t, x, p)
		}
	}
}

// verifyAfterCrash opens what a crash left and checks that all that was synced
// is there, that nothing else is found, and that the replay completes it.
func verifyAfterCrash(t tb, fs vfs.FS, e *env, run crashRun, trusted bool) {
	t.Helper()
	e = newEnv(fs, e.opt.Slots, e.opt.Entries)
	st := OpenState{LogEnd: run.end()}
	if trusted {
		st.Trusted = run.state
	}
	x, from, rep := e.open(t, st)
	if trusted && run.state != nil {
		if !rep.Intact {
			t.Fatalf("not intact: %+v", rep)
		}
		verify(t, x, run.puts[:run.synced])
		if run.synced > 0 && from > run.puts[run.synced-1].phy {
			t.Fatalf("replay from %d, last synced message at %d", from, run.puts[run.synced-1].phy)
		}
	} else {
		for _, p := range run.puts[max(0, len(run.puts)-20):] {
			for _, h := range p.hashes {
				for _, phy := range lookupAll(t, x, h) {
					if !slices.Contains(hits(run.puts, h), phy) {
						t.Fatalf("hash %d found at %d", h, phy)
					}
				}
			}
		}
	}
	replay(t, x, run.puts, from)
	verify(t, x, run.puts)
	if len(e.damage) > 0 {
		t.Fatalf("damage found by lookups: %v, %q", e.damage, e.reasons)
	}
	checkAll(t, e)
	// The bytes are those of an index that never crashed.
	f := newEnv(memfs.New(), e.opt.Slots, e.opt.Entries)
	y, _, _ := f.open(t, everything(true))
	mustPut(t, y, run.puts...)
	got, want := x.Files(), y.Files()
	if len(got) != len(want) {
		t.Fatalf("%d files, want %d", len(got), len(want))
	}
	for i := range got {
		if !bytes.Equal(readFile(t, fs, got[i].Path), readFile(t, f.fs, want[i].Path)) {
			t.Fatalf("file %d: header %+v, want %+v", i, got[i].Header, want[i].Header)
		}
	}
}

// policies are three of all, others for each n: together they see everything,
// and a test of many crashes stays quick.
func policies(n int) []memfs.Policy {
	all := memfs.Policies()
	return []memfs.Policy{all[n%len(all)], all[(n+4)%len(all)], memfs.LoseRandomPages | memfs.Torn}
}

// Fault L6: after a crash at any moment, with any of the unsynced pages and
// sectors lost, all that was indexed before the last Sync is found, nothing
// wrong is, and the replay restores the rest.
func TestL6CrashAnywhere(t *testing.T) {
	for _, g := range []Geometry{{7, 12}, {2500, 300}} {
		t.Run(fmt.Sprint(g), func(t *testing.T) {
			rnd := rand.New(rand.NewPCG(1, uint64(g.Slots)))
			n, stride := 40, 1
			if g.Entries > 100 {
				n, stride = 250, 53
			}
			ps := randomPuts(rnd, n)
			for k := 0; ; k += stride {
				mem := memfs.NewCrashable(int64(k))
				fs := faultfs.CrashAt(mem, k)
				e := newEnv(fs, g.Slots, g.Entries)
				run := e.workload(ps, 7)
				for _, policy := range policies(k / stride) {
					if len(run.puts) == 0 {
						continue
					}
					for _, trusted := range []bool{true, false} {
						after := mem.CrashClone(policy, int64(k))
						t.Logf("crash at %d, %v, trusted %v, %d puts, %d synced", k, policy, trusted, len(run.puts), run.synced)
						verifyAfterCrash(t, after, e, run, trusted)
					}
				}
				if !fs.Crashed() {
					return
				}
			}
		})
	}
}

// The same for random geometries, messages and crashes.
func TestL6CrashRandom(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		seed := rapid.Int64().Draw(t, "seed")
		rnd := rand.New(rand.NewPCG(uint64(seed), 1))
		g := Geometry{1 + rnd.Int32N(60), 2 + rnd.Int32N(60)}
		if rnd.IntN(2) == 0 {
			g = Geometry{1 + rnd.Int32N(3000), 2 + rnd.Int32N(400)}
		}
		ps := randomPuts(rnd, 20+rnd.IntN(100))
		mem := memfs.NewCrashable(seed)
		k := rnd.IntN(600)
		e := newEnv(faultfs.CrashAt(mem, k), g.Slots, g.Entries)
		run := e.workload(ps, 1+rnd.IntN(20))
		if len(run.puts) == 0 {
			return
		}
		policy := rapid.SampledFrom(memfs.Policies()).Draw(t, "policy")
		for _, trusted := range []bool{true, false} {
			t.Logf("%v, crash at %d, %v, trusted %v, %d puts, %d synced", g, k, policy, trusted, len(run.puts), run.synced)
			verifyAfterCrash(t, mem.CrashClone(policy, seed), e, run, trusted)
		}
	})
}

// A crash during the repair itself, at any moment, loses nothing: the next
// Open finds the same damage or a sound index.
func TestCrashDuringOpen(t *testing.T) {
	rnd := rand.New(rand.NewPCG(2, 2))
	ps := randomPuts(rnd, 60)
	for round := range int64(6) {
		mem := memfs.NewCrashable(round)
		e := newEnv(faultfs.CrashAt(mem, 150+int(round)*23), 7, 12)
		run := e.workload(ps, 9+int(round))
		if len(run.puts) == 0 {
			t.Fatal("crashed too early")
		}
		for _, trusted := range []bool{true, false} {
			left := mem.CrashClone(memfs.LoseRandomPages|memfs.Torn, round)
			st := OpenState{LogEnd: run.end()}
			if trusted {
				st.Trusted = run.state
			}
			for k := 0; ; k++ {
				again := left.CrashClone(memfs.KeepAll)
				fs := faultfs.CrashAt(again, k)
				e := newEnv(fs, 7, 12)
				if x, _, _, err := Open(context.Background(), e.opt, st); err == nil {
					if err := x.Close(); err != nil {
						t.Fatal(err)
					}
				}
				for _, policy := range policies(k) {
					t.Logf("round %d, trusted %v, crash of Open at %d, %v", round, trusted, k, policy)
					verifyAfterCrash(t, again.CrashClone(policy, int64(k)), e, run, trusted)
				}
				if !fs.Crashed() {
					break
				}
			}
		}
	}
}

// The same for a file of which a part was damaged, with more files behind it.
func TestCrashDuringRepairOfDamage(t *testing.T) {
	ps := sequence(0, 40)
	for i, d := range damages {
		for _, victim := range []int{[]int{0, 3, 7}[i%3]} {
			t.Run(fmt.Sprint(d.name, victim), func(t *testing.T) {
				mem := memfs.NewCrashable(5)
				e := newEnv(mem, 5, 12)
				x, _, _ := e.open(t, everything(true))
				mustPut(t, x, ps...)
				mustSync(t, x)
				files := x.Files()
				if err := x.Close(); err != nil {
					t.Fatal(err)
				}
				if len(files) != 8 {
					t.Fatalf("%d files", len(files))
				}
				change(t, mem, files[victim].Path, func(f vfs.File) { d.fn(t, f, e.opt.geometry()) })
				for k := 0; ; k++ {
					fs := mem.CrashClone(memfs.KeepAll)
					ffs := faultfs.CrashAt(fs, k)
					opt := e.opt
					opt.FS = ffs
					st := OpenState{LogEnd: 4000}
					if x, _, _, err := Open(context.Background(), opt, st); err == nil {
						x.Close()
					}
					opt.FS = fs.CrashClone(memfs.LoseRandomPages|memfs.Torn, int64(k))
					x, from, _, err := Open(context.Background(), opt, st)
					if err != nil {
						t.Fatal(err)
					}
					replay(t, x, ps, from)
					verify(t, x, ps)
					if err := x.Close(); err != nil {
						t.Fatal(err)
					}
					if !ffs.Crashed() {
						break
					}
				}
			})
		}
	}
}
