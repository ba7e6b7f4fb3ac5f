package gantry

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

var (
	crashLong   = flag.Bool("crash.long", false, "try -crash.states crash states instead of a few thousand")
	crashStates = flag.Int("crash.states", 120_000, "distinct crash states of a long run")
	crashSeed   = flag.Int64("crash.seed", 0, "seed of the crash tests; 0: the time")
)

// crashStatesWanted is what a long run of all scenarios tries at least.
const crashStatesWanted = 100_000

// crashRun is one run of a scenario: the images that a crash at each of its
// operations can leave.
type crashRun struct {
	crashScenario
	opts *Options
	mem  *memfs.FS
	rng  *rand.Rand
	seed int64

	ledger ledger
	clock  *testClock

	mu     sync.Mutex
	rate   float64 // of the operations that are crashed at
	op     int
	images []*crashImage
	known  map[uint64]*crashImage
	states int
}

// crashImage is what a crash leaves, and the ways in which that comes about.
type crashImage struct {
	fs     *memfs.FS
	now    int64
	states []crashState
}

// crashCount is what a test has tried.
type crashCount struct{ states, images, recoveries, violations atomic.Int64 }

// newCrashRun prepares a run of a scenario. rate is the part of its operations
// that it is crashed at.
func newCrashRun(sc crashScenario, seed int64, rate float64) *crashRun {
	r := &crashRun{
		crashScenario: sc, mem: memfs.NewCrashable(seed), seed: seed, rate: rate,
		rng: rand.New(rand.NewPCG(uint64(seed), 1)), clock: newClock(), known: make(map[uint64]*crashImage),
	}
	r.mem.RequireAllocated(true)
	r.opts = tinyOptions(nil, r.clock)
	r.opts.DiskWarningPercent, r.opts.SyncFlushTimeout = 100, time.Minute
	// Of one page, of several, and with an end inside a page.
	r.opts.CommitLogFileSize = []int64{4096, 12_288, 6000}[r.rng.IntN(3)]
	if sc.options != nil {
		sc.options(r.opts)
	}
	return r
}

func (r *crashRun) work(wrap func(*memfs.FS) *faultfs.FS) *crashWork {
	opts := r.opts
	if r.lively {
		opts = opts.with(tinyIntervals)
	}
	return &crashWork{
		ledger: &r.ledger, mem: r.mem, fs: wrap(r.mem), wrap: wrap, opts: opts, clock: r.clock,
		rng: rand.New(rand.NewPCG(uint64(r.seed), 2)),
	}
}

// watched lets everything through to mem and takes images before each change.
func (r *crashRun) watched(mem *memfs.FS) *faultfs.FS {
	fs := faultfs.New(mem)
	fs.Inject(faultfs.Rule{Ops: faultfs.OpMutating, Hook: func(c faultfs.Call) { r.crashBefore(mem, c) }})
	return fs
}

// crashBefore takes the images that a crash before the call c can leave.
func (r *crashRun) crashBefore(mem *memfs.FS, c faultfs.Call) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.op++
	if r.rng.Float64() >= r.rate {
		return
	}
	// What was promised before the images are taken must be in them, and
	// nothing that is sent after.
	claim := r.ledger.claim()
	type added struct {
		im *crashImage
		st crashState
	}
	var news []added
	for _, policy := range memfs.Policies() {
		clone := mem.CrashClone(policy, r.rng.Int64())
		clone.SetCapacity(0)
		im := r.image(clone)
		news = append(news, added{im, crashState{claim, policy, fmt.Sprintf("crash before operation %d, %v of %s", r.op, c.Op, filepath.Base(c.Name))}})
	}
	after := r.ledger.claim()
	for _, a := range news {
		a.st.claim.tried, a.st.claim.removable = after.tried, after.removable
		a.im.states = append(a.im.states, a.st)
		a.im.now = max(a.im.now, r.clock.now())
	}
	r.states += len(news)
}

// image returns the image with the content of fs.
func (r *crashRun) image(fs *memfs.FS) *crashImage {
	print := fs.Fingerprint()
	im := r.known[print]
	if im == nil {
		im = &crashImage{fs: fs}
		r.known[print] = im
		r.images = append(r.images, im)
	}
	return im
}

// strict reports whether everything acknowledged must have survived, not just
// a prefix.
func (r *crashRun) strict(policy memfs.Policy) bool {
	// A process that ends leaves everything: then asynchronous puts are there
	// as well.
	return r.opts.Flush == FlushSync || policy == memfs.KeepAll && !r.pool && !r.drops
}

// verify looks at all images. recoveries is the part of them whose recovery is
// crashed too.
func (r *crashRun) verify(t *testing.T, count *crashCount, recoveries float64) {
	count.states.Add(int64(r.states))
	var next atomic.Int64
	var wg sync.WaitGroup
	for worker := range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(r.seed), uint64(worker)+3))
			for {
				i := int(next.Add(1)) - 1
				if i >= len(r.images) || t.Failed() {
					return
				}
				im := r.images[i]
				var recovery *memfs.FS
				if rng.Float64() < recoveries {
					recovery = im.fs.CrashClone(memfs.KeepAll)
				}
				r.verifyImage(t, count, im, i%4 == 0)
				if recovery != nil {
					r.crashRecovery(t, count, rng, &crashImage{recovery, im.now, im.states}, 2)
				}
				im.fs, im.states = nil, nil // a run has thousands
			}
		})
	}
	wg.Wait()
}

// verifyImage opens an image and holds it to what was promised.
func (r *crashRun) verifyImage(t *testing.T, count *crashCount, im *crashImage, look bool) {
	count.images.Add(1)
	clock := newClock()
	clock.set(im.now)
	kept := im.fs.CrashClone(memfs.KeepAll)
	in, err := r.inspect(im.fs, clock, look)
	for i := range im.states {
		st := &im.states[i]
		if err == nil {
			err = st.holds(in, r.strict(st.policy))
		}
		if err != nil {
			dir := filepath.Join(t.ArtifactDir(), fmt.Sprintf("%s-%d-%d", r.name, r.seed, count.violations.Add(1)))
			if cerr := copyImage(kept, dir); cerr != nil {
				t.Log(cerr)
			}
			t.Errorf("%s, seed %d, %s, %v: %v\nthe image is in %s (kept with go test -artifacts)", r.name, r.seed, st.what, st.policy, err, dir)
			if in != nil {
				t.Logf("recovery: %+v", in.recovery)
			}
			return
		}
	}
}

// crashRecovery crashes the opening of an image at some of its operations, and
// the opening of what that leaves, depth levels deep.
func (r *crashRun) crashRecovery(t *testing.T, count *crashCount, rng *rand.Rand, im *crashImage, depth int) {
	var left []*memfs.FS
	seen := make(map[uint64]bool)
	fs := faultfs.New(im.fs)
	fs.Inject(faultfs.Rule{Ops: faultfs.OpMutating, Hook: func(faultfs.Call) {
		// Recovery changes files by several goroutines.
		r.mu.Lock()
		defer r.mu.Unlock()
		for range 2 {
			policies := memfs.Policies()
			clone := im.fs.CrashClone(policies[rng.IntN(len(policies))], rng.Int64())
			if print := clone.Fingerprint(); !seen[print] {
				seen[print] = true
				left = append(left, clone)
			}
		}
	}})
	clock := newClock()
	clock.set(im.now)
	s, err := Open(context.Background(), testDir, r.opts.with(func(o *Options) { o.FS, o.Now, o.NoDelivery = fs, clock.now, true }))
	if err != nil {
		t.Errorf("%s, seed %d: opening an image that opened before: %v", r.name, r.seed, err)
		return
	}
	fs.Crash() // what happens after the opening belongs to another run
	s.abandon()
	rng.Shuffle(len(left), func(i, j int) { left[i], left[j] = left[j], left[i] })
	left = left[:min(len(left), 40*depth)]
	for i, clone := range left {
		if t.Failed() {
			return
		}
		deeper := depth > 1 && i%20 == 0
		var again *memfs.FS
		if deeper {
			again = clone.CrashClone(memfs.KeepAll)
		}
		count.states.Add(1)
		count.recoveries.Add(1)
		states := make([]crashState, len(im.states))
		for j, st := range im.states {
			st.what += ", then in the recovery"
			states[j] = st
		}
		r.verifyImage(t, count, &crashImage{clone, im.now, states}, false)
		if deeper {
			r.crashRecovery(t, count, rng, &crashImage{again, im.now, states}, depth-1)
		}
	}
}

// copyImage writes the files of a crash image to the disk.
func copyImage(fs *memfs.FS, dir string) error {
	entries, err := fs.List(testDir)
	if err != nil {
		return err
	}
	if err := vfs.OS().MkdirAll(dir); err != nil {
		return err
	}
	for _, e := range entries {
		from, to := filepath.Join(testDir, e.Name), filepath.Join(dir, e.Name)
		if err := copyAcross(fs, from, to, e); err != nil {
			return err
		}
	}
	return nil
}

func copyAcross(fs vfs.FS, from, to string, e vfs.Entry) error {
	if !e.IsDir() {
		data, err := vfs.ReadFile(fs, from, 1<<30)
		if err != nil {
			return err
		}
		return writeNew(vfs.OS(), to, data)
	}
	if err := vfs.OS().MkdirAll(to); err != nil {
		return err
	}
	entries, err := fs.List(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := copyAcross(fs, filepath.Join(from, e.Name), filepath.Join(to, e.Name), e); err != nil {
			return err
		}
	}
	return nil
}

// TestCrashAtEveryOperation runs each scenario, takes what a crash before each
// of its changes to the file system can leave, and holds that to what was
// promised by then. The openings that follow are crashed as well, and those
// that follow them. The short form crashes at some of the operations only.
func TestCrashAtEveryOperation(t *testing.T) {
	seed := *crashSeed
	if seed == 0 {
		seed = time.Now().UnixNano() & 0xffffffff
	}
	t.Logf("-crash.seed=%d", seed)
	share, rate, recoveries := int64(0), 0.03, 0.005
	if *crashLong {
		share, rate, recoveries = int64(*crashStates/len(crashScenarios)), 1, 0.003
	}
	var total crashCount
	ran := 0
	start := time.Now()
	for i, sc := range crashScenarios {
		t.Run(sc.name, func(t *testing.T) {
			ran++
			var count crashCount
			for run := int64(0); run == 0 || count.images.Load() < share && !t.Failed(); run++ {
				r := newCrashRun(sc, seed+int64(i)*1000+run, rate)
				w := r.work(r.watched)
				if err := sc.run(w); err != nil {
					t.Errorf("seed %d: the workload failed: %v", r.seed, err)
				}
				if w.s != nil {
					w.s.abandon()
				}
				r.crashBefore(w.mem, faultfs.Call{Name: "nothing: all is done"})
				r.verify(t, &count, recoveries)
			}
			t.Logf("%d crash states, %d distinct images of them %d from crashed recoveries, %d violations",
				count.states.Load(), count.images.Load(), count.recoveries.Load(), count.violations.Load())
			total.states.Add(count.states.Load())
			total.images.Add(count.images.Load())
			total.recoveries.Add(count.recoveries.Load())
			total.violations.Add(count.violations.Load())
		})
	}
	t.Logf("in all %d crash states, %d distinct images opened, of them %d from crashed recoveries, %d violations, %v",
		total.states.Load(), total.images.Load(), total.recoveries.Load(), total.violations.Load(), time.Since(start).Round(time.Second))
	if *crashLong && ran == len(crashScenarios) && total.images.Load() < crashStatesWanted {
		t.Errorf("%d distinct crash states were tried, want %d", total.images.Load(), crashStatesWanted)
	}
}

// TestCrashEndsEverything: from the k-th change on every call fails, as it does
// for a process whose disk went away. The store answers errors, hangs nowhere,
// and what reached the files keeps the promises.
func TestCrashEndsEverything(t *testing.T) {
	step := 40
	if *crashLong {
		step = 3
	}
	var count crashCount
	for i, sc := range crashScenarios {
		t.Run(sc.name, func(t *testing.T) {
			for k := i; ; k += step {
				r := newCrashRun(sc, int64(k), 1)
				var last *faultfs.FS
				changes := 0
				w := r.work(func(mem *memfs.FS) *faultfs.FS {
					if last != nil {
						changes += last.Changes()
					}
					last = faultfs.CrashAt(mem, max(0, k-changes))
					return last
				})
				err := sc.run(w)
				if w.s != nil {
					w.s.abandon()
				}
				if err != nil && !errors.Is(err, faultfs.ErrCrashed) && !errors.Is(err, ErrReadOnly) && !errors.Is(err, ErrClosed) {
					t.Errorf("crash at %d: %v", k, err)
				}
				r.crashBefore(w.mem, faultfs.Call{Name: "anything"})
				r.verify(t, &count, 0)
				if t.Failed() || !last.Crashed() {
					return
				}
			}
		})
	}
	t.Logf("%d crash states, %d distinct images opened", count.states.Load(), count.images.Load())
}
