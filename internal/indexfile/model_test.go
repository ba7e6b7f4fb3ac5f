package indexfile

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// model is an index beside a plain list of what was put.
type model struct {
	t    *rapid.T
	fs   *memfs.FS
	opt  Options
	x    *Index
	ps   []put // in the log
	gone int   // of them no longer in the log
	now  int64
	phy  message.PhysicalOffset
	// back: the clock may go back. Then times are not used to skip files.
	back bool
}

func (m *model) fatal(err error) {
	m.t.Helper()
	if err != nil {
		m.t.Fatal(err)
	}
}

func (m *model) open(st OpenState) message.PhysicalOffset {
	m.t.Helper()
	st.LogEnd = m.phy
	if m.gone > 0 {
		st.LogMin = m.ps[m.gone-1].phy + 1
	}
	x, from, _, err := Open(m.t.Context(), m.opt, st)
	m.fatal(err)
	m.x = x
	return from
}

func (m *model) replay(from message.PhysicalOffset) {
	m.t.Helper()
	for _, p := range m.ps[m.gone:] {
		if p.phy >= from {
			m.fatal(m.x.Put(p.phy, p.time, p.hashes))
		}
	}
}

func (m *model) state() *State {
	st, err := m.x.Sync()
	m.fatal(err)
	return &st
}

// check runs one query against the list.
func (m *model) check() {
	hash := rapid.Int32Range(0, 40).Draw(m.t, "hash")
	begin, end := int64(0), int64(1<<60)
	if rapid.Bool().Draw(m.t, "window") {
		a := rapid.Int64Range(0, max(m.now, start)-start+10_000).Draw(m.t, "a") + start - 5000
		b := rapid.Int64Range(0, max(m.now, start)-start+10_000).Draw(m.t, "b") + start - 5000
		begin, end = min(a, b), max(a, b)
	}
	limit := message.PhysicalOffset(math.MaxInt64)
	if rapid.Bool().Draw(m.t, "page") {
		limit = message.PhysicalOffset(rapid.Int64Range(0, int64(m.phy)).Draw(m.t, "limit"))
	}
	var got []message.PhysicalOffset
	for c, err := range m.x.LookupBefore(hash, begin, end, limit) {
		m.fatal(err)
		got = append(got, c.Phy)
	}
	if !slices.IsSortedFunc(got, func(a, b message.PhysicalOffset) int { return int(b - a) }) ||
		len(slices.Compact(slices.Clone(got))) != len(got) {
		m.t.Fatalf("not newest first and once each: %v", got)
	}
	for i, p := range m.ps {
		has := slices.Contains(p.hashes, hash)
		want := has && p.time >= begin && p.time <= end && p.phy < limit && i >= m.gone
		found := slices.Contains(got, p.phy)
		if want && !found || found && (!has || p.phy >= limit) {
			m.t.Fatalf("hash %d in [%d, %d] below %d: message %+v found: %v\n%v", hash, begin, end, limit, p, found, got)
		}
		// Not much more than the window is searched.
		if found && !m.back && (p.time < begin-3000 || p.time > end+3000) && !m.firstSecond(p) {
			m.t.Fatalf("window [%d, %d] gives message of %d", begin, end, p.time)
		}
	}
}

// firstSecond says that an entry's time may be clamped.
func (m *model) firstSecond(p put) bool {
	for _, f := range m.x.Files() {
		if p.time >= f.Header.BeginTime-1000 && p.time <= f.Header.BeginTime+1000 {
			return true
		}
	}
	return false
}

// The index gives what a plain list gives, through puts of all sizes, rolls,
// orderly and unorderly reopening, truncation and deletion.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, fs: memfs.NewCrashable(7), now: start, phy: message.PhysicalOffset(rapid.IntRange(0, 1).Draw(t, "first") * 100)}
		m.opt = Options{
			FS: m.fs, Dir: root,
			Slots:   rapid.Int32Range(1, 60).Draw(t, "slots"),
			Entries: rapid.Int32Range(2, 40).Draw(t, "entries"),
			Now:     func() int64 { return m.now },
			OnDamage: func(file, reason string) {
				t.Errorf("damage in %s: %s", file, reason)
			},
		}
		m.back = rapid.Bool().Draw(t, "clock goes back")
		m.open(OpenState{Clean: true})
		defer func() { m.fatal(m.x.Close()) }()
		t.Repeat(map[string]func(*rapid.T){
			"put": func(t *rapid.T) {
				for range rapid.IntRange(1, 8).Draw(t, "messages") {
					hs := rapid.SliceOfN(rapid.Int32Range(0, 40), 0, 5).Draw(t, "hashes")
					m.ps = append(m.ps, put{m.phy, m.now, hs})
					m.fatal(m.x.Put(m.phy, m.now, hs))
					m.phy += message.PhysicalOffset(rapid.Int64Range(91, 5000).Draw(t, "size"))
					m.now += rapid.Int64Range(0, 2500).Draw(t, "pause")
					if m.back && rapid.IntRange(0, 9).Draw(t, "back") == 0 {
						m.now = max(m.now-rapid.Int64Range(0, 20_000).Draw(t, "by"), 1)
					}
				}
			},
			"put many keys": func(t *rapid.T) {
				hs := rapid.SliceOfN(rapid.Int32Range(0, 40), 30, 90).Draw(t, "hashes")
				m.ps = append(m.ps, put{m.phy, m.now, hs})
				m.fatal(m.x.Put(m.phy, m.now, hs))
				m.phy += 91
			},
			"put again": func(t *rapid.T) {
				m.replay(message.PhysicalOffset(rapid.Int64Range(0, int64(m.phy)).Draw(t, "from")))
			},
			"reopen": func(t *rapid.T) {
				st := m.state()
				m.fatal(m.x.Close())
				if from := m.open(OpenState{Clean: true, Trusted: st}); st.Name != "" && from > st.EndPhy && m.gone == 0 {
					t.Fatalf("replay from %d, state %+v", from, st)
				}
				if rapid.Bool().Draw(t, "replay") {
					m.replay(0)
				}
			},
			"reopen without state": func(t *rapid.T) {
				clean := rapid.Bool().Draw(t, "clean")
				if clean {
					m.state()
				}
				m.fatal(m.x.Close())
				m.replay(m.open(OpenState{Clean: clean}))
			},
			"crash": func(t *rapid.T) {
				st := m.state()
				for range rapid.IntRange(0, 5).Draw(t, "puts after the sync") {
					hs := rapid.SliceOfN(rapid.Int32Range(0, 40), 1, 5).Draw(t, "hashes")
					m.ps = append(m.ps, put{m.phy, m.now, hs})
					m.fatal(m.x.Put(m.phy, m.now, hs))
					m.phy += 91
				}
				m.fatal(m.x.Close())
				m.fs = m.fs.CrashClone(rapid.SampledFrom(memfs.Policies()).Draw(t, "policy"), rapid.Int64().Draw(t, "seed"))
				m.opt.FS = m.fs
				m.replay(m.open(OpenState{Trusted: st}))
			},
			"truncate": func(t *rapid.T) {
				m.state() // the log is cut only behind what was synced of it
				m.phy = message.PhysicalOffset(rapid.Int64Range(0, int64(m.phy)).Draw(t, "to"))
				n := len(m.ps)
				for n > 0 && m.ps[n-1].phy >= m.phy {
					n--
				}
				m.ps, m.gone = m.ps[:n], min(m.gone, n)
				if rapid.Bool().Draw(t, "by Open") {
					st := m.state()
					m.fatal(m.x.Close())
					m.replay(m.open(OpenState{Trusted: st}))
				} else {
					m.fatal(m.x.TruncateFrom(m.phy))
				}
			},
			"delete": func(t *rapid.T) {
				if len(m.ps) == 0 {
					return
				}
				m.gone = rapid.IntRange(m.gone, len(m.ps)).Draw(t, "gone")
				minPhy := m.phy
				if m.gone < len(m.ps) {
					minPhy = m.ps[m.gone].phy
				}
				before := m.x.Files()
				removed, err := m.x.DeleteBefore(minPhy)
				m.fatal(err)
				for i, f := range before {
					if want := i < len(before)-1 && f.Header.EndPhy < minPhy; want != slices.Contains(removed, f.Path) {
						t.Fatalf("delete before %d: file %+v removed: %v", minPhy, f, !want)
					}
				}
			},
			"": func(t *rapid.T) {
				m.t = t
				m.check()
			},
		})
		st := m.state()
		if !st.Complete {
			t.Fatalf("state %+v", st)
		}
	})
}

// Lookups run beside puts, rolls, syncs and deletions: what was put before a
// lookup began and is not deleted is found, nothing wrong is, and no damage is
// reported.
func TestConcurrentLookups(t *testing.T) {
	for _, fs := range []struct {
		name string
		fs   vfs.FS
		dir  string
	}{{"mem", newMem(), root}, {"os", vfs.OS(), filepath.Join(t.TempDir(), "index")}} {
		t.Run(fs.name, func(t *testing.T) {
			e := newEnv(fs.fs, 8, 150)
			e.opt.Dir = fs.dir
			e.opt.OnDamage = func(file, reason string) { t.Errorf("damage in %s: %s", file, reason) }
			x, _, _ := e.open(t, everything(true))
			const n = 1500
			var done, deleted atomic.Int64 // messages
			var wg sync.WaitGroup
			for r := range 3 {
				wg.Go(func() {
					rnd := rand.New(rand.NewPCG(1, uint64(r)))
					for done.Load() < n && !t.Failed() {
						key := rnd.Int64N(10)
						before := done.Load()
						window := [2]int64{0, math.MaxInt64}
						if r == 0 {
							window = [2]int64{start + before*100 - 50_000, start + before*100}
						}
						last := message.PhysicalOffset(math.MaxInt64)
						seen := map[int64]bool{}
						for c, err := range x.Lookup(int32(key), window[0], window[1]) {
							if err != nil {
								t.Error(err)
								return
							}
							if i := int64(c.Phy) / 100; c.Phy >= last || i%10 != key {
								t.Errorf("key %d: %d after %d", key, c.Phy, last)
								return
							}
							last = c.Phy
							seen[int64(c.Phy)/100] = true
						}
						gone := deleted.Load()
						for i := before - 1; i >= gone && i > before-200; i-- {
							if i%10 == key && start+i*100 >= window[0] && !seen[i] {
								t.Errorf("message %d of key %d is missing, %d were put, %d deleted", i, key, before, gone)
								return
							}
						}
					}
				})
			}
			wg.Go(func() {
				for done.Load() < n && !t.Failed() {
					if _, err := x.Sync(); err != nil {
						t.Error(err)
						return
					}
				}
			})
			for i := range int64(n) {
				// The key of its own, and others that fill chains and files.
				mustPut(t, x, put{message.PhysicalOffset(i * 100), start + i*100, []int32{int32(i % 10), int32(1000 + i), int32(i%3) + 100}})
				done.Store(i + 1)
				if i%500 == 499 {
					deleted.Store(i - 300)
					if _, err := x.DeleteBefore(message.PhysicalOffset(100 * (i - 300))); err != nil {
						t.Fatal(err)
					}
				}
			}
			wg.Wait()
		})
	}
}

// Files whose times exclude the window are not read, when their times are
// known not to decrease: also after reopening, also when only some files are.
func TestNarrowWindowOverManyFiles(t *testing.T) {
	mem := newMem()
	e := newEnv(mem, 50, 12)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 600) // about 110 files
	mustPut(t, x, ps...)
	if n := len(x.Files()); n < 100 {
		t.Fatalf("%d files", n)
	}
	p := ps[300]
	for i, visits := range []int{3, 3, 200} {
		pinned := 0
		for _, f := range x.list() {
			q := query{x: x, begin: p.time, end: p.time, limit: math.MaxInt64}
			if !q.skip(f) {
				pinned++
			}
		}
		if pinned > visits || pinned == 0 {
			t.Errorf("round %d: %d files visited", i, pinned)
		}
		if got := lookup(t, x, p.hashes[0], p.time, p.time); !slices.Equal(got, []message.PhysicalOffset{p.phy}) {
			t.Errorf("round %d: %v", i, got)
		}
		if i == 0 {
			x, _, _ = e.reopen(t, x)
		} else if i == 1 { // as if a Java broker had been at work
			mustSync(t, x)
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
			x, _, _ = e.open(t, everything(true))
		}
	}
}

// Deletion takes whole files, never the newest, at once and durably, and
// leaves lookups that are in one alone.
func TestDeleteBefore(t *testing.T) {
	mem := newMem()
	e := newEnv(mem, 50, 12)
	x, _, _ := e.open(t, everything(true))
	ps := sequence(0, 60)
	mustPut(t, x, ps...)
	mustSync(t, x)
	files := x.Files()

	if removed, err := x.DeleteBefore(files[0].Header.EndPhy); err != nil || removed != nil {
		t.Errorf("removed %v, %v", removed, err)
	}
	var got []message.PhysicalOffset
	for c, err := range x.Lookup(3, 0, math.MaxInt64) { // reaches the oldest file last
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, c.Phy)
		if c.Phy == 200 {
			removed, err := x.DeleteBefore(files[2].Header.EndPhy + 1)
			if err != nil || len(removed) != 3 || removed[0] != files[0].Path {
				t.Errorf("removed %v, %v", removed, err)
			}
			if n := len(names(t, mem)); n != len(files)-3 {
				t.Errorf("%d names left", n)
			}
		}
	}
	if want := hits(ps, 3); !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	if n := len(names(t, mem.CrashClone(memfs.LoseUnsynced))); n != len(files)-3 {
		t.Errorf("%d names after a crash", n)
	}
	if removed, err := x.DeleteBefore(math.MaxInt64); err != nil || len(removed) != len(files)-4 {
		t.Errorf("removed %d, %v", len(removed), err)
	}
	if n := len(x.Files()); n != 1 {
		t.Errorf("%d files left", n)
	}
	mustPut(t, x, sequence(10_000, 3)...)
	x, from, rep := e.reopen(t, x)
	if from != 10_200 || !rep.Intact {
		t.Errorf("replay from %d, %+v", from, rep)
	}
	if got := lookupAll(t, x, 3); got[0] != 10_200 {
		t.Errorf("got %v", got)
	}
}

// TruncateFrom at every message, of one file or several.
func TestTruncateFrom(t *testing.T) {
	ps := sequence(0, 30)
	ps[7].hashes = append(ps[7].hashes, 900, 901, 902, 903, 904, 905, 906, 907, 908, 909, 910, 911, 912, 913, 914)
	for i := range 32 {
		for _, dirty := range []bool{true, false} {
			t.Run(fmt.Sprint(i, dirty), func(t *testing.T) {
				e := newEnv(newMem(), 50, 12)
				x, _, _ := e.open(t, everything(true))
				mustPut(t, x, ps...)
				if !dirty {
					mustSync(t, x)
				}
				if err := x.TruncateFrom(message.PhysicalOffset(100 * i)); err != nil {
					t.Fatal(err)
				}
				rest := ps[:min(i, len(ps))]
				verify(t, x, rest)
				checkAll(t, e)
				_, last := x.Last()
				if want := message.PhysicalOffset(100*min(i, 30) - 100); last != max(want, -1) {
					t.Errorf("last message %d, want %d", last, want)
				}
				// Other messages take the place.
				more := sequence(message.PhysicalOffset(100*i), 30)
				for j := range more {
					more[j].hashes[0] += 7
				}
				mustPut(t, x, more...)
				all := append(slices.Clone(rest), more...)
				verify(t, x, all)
				x, _, rep := e.reopen(t, x)
				if !rep.Intact {
					t.Errorf("report %+v", rep)
				}
				verify(t, x, all)
			})
		}
	}
}

// Pages deep inside a frequent key, and old windows of it, do not walk the
// chain from its newest end.
func TestFrequentKey(t *testing.T) {
	fs := faultfs.New(memfs.New())
	e := newEnv(fs, 1000, 60_000)
	x, _, _ := e.open(t, everything(true))
	var want []message.PhysicalOffset
	for i := range 100_000 { // two files
		p := put{message.PhysicalOffset(100 * i), start + int64(i)*10, []int32{int32(i % 3)}}
		mustPut(t, x, p)
		if i%3 == 1 {
			want = append(want, p.phy)
		}
	}
	slices.Reverse(want)
	bytesRead := func(fn func()) int64 {
		fs.ResetCounts()
		fn()
		return fs.Count(faultfs.OpRead, "").Bytes
	}
	for _, at := range []int{0, 7, 1000, 14_000, 20_000, 33_000, len(want)} {
		limit := message.PhysicalOffset(math.MaxInt64)
		if at > 0 {
			limit = want[at-1]
		}
		var got []message.PhysicalOffset
		read := bytesRead(func() {
			for c, err := range x.LookupBefore(1, 0, math.MaxInt64, limit) {
				if err != nil {
					t.Fatal(err)
				}
				if got = append(got, c.Phy); len(got) == 32 {
					break
				}
			}
		})
		if end := min(at+32, len(want)); !slices.Equal(got, want[at:end]) {
			t.Errorf("page at %d: %v, want %v", at, got, want[at:end])
		}
		if read > 500_000 {
			t.Errorf("page at %d: %d bytes read", at, read)
		}
	}
	for range 2 { // with and without knowing that times do not decrease
		for _, i := range []int64{0, 1, 100, 40_000, 59_997, 59_998, 59_999, 60_000, 99_998, 99_999} {
			begin, end := start+i*10-50, start+i*10+50
			got := lookup(t, x, 1, begin, end)
			for _, phy := range want {
				if at := start + int64(phy)/10; at >= begin && at <= end && !slices.Contains(got, phy) {
					t.Errorf("window around %d: %d is missing", i, phy)
				}
			}
			if len(got) > 300 {
				t.Errorf("window around %d: %d candidates", i, len(got))
			}
		}
		if read := bytesRead(func() { lookup(t, x, 1, start+300_000, start+300_050) }); x.monotoneFrom.Load() == 0 && read > 600_000 {
			t.Errorf("old window: %d bytes read", read)
		}
		mustSync(t, x)
		if err := x.Close(); err != nil {
			t.Fatal(err)
		}
		x, _, _ = e.open(t, everything(true))
	}
}
