//go:build interop

package interop

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// cut is what a power cut at some moment left.
type cut struct {
	fs   *memfs.FS
	what string
	acks []ack // promised before the power went
}

// crashedDir is the store's directory in the crashable file system.
const crashedDir = "/store"

// cutPolicies are the ways in which the sample's power cuts go. The first ones
// come twice: while messages are put, and while what was left is recovered.
var cutPolicies = []memfs.Policy{
	memfs.LoseRandomPages | memfs.Torn, memfs.NewestFirst | memfs.Torn,
	memfs.LoseUnsynced, memfs.KeepAll, memfs.OldestFirst, memfs.LoseRandomPages,
}

// powerCuts writes a store under FlushSync, all kinds of puts, over several log
// files, with a clean stop in between, and takes for each policy what a power
// cut leaves at a moment that is drawn from all changes to the files after the
// first quarter of the puts.
func powerCuts(t *testing.T, seed int64, wide bool) []cut {
	t.Helper()
	var mu sync.Mutex // the hook runs in the store's goroutines
	var acks []ack
	cuts := make([]cut, len(cutPolicies))
	rng := rand.New(rand.NewPCG(uint64(seed), 1))
	mem := memfs.NewCrashable(seed)
	mem.RequireAllocated(true)
	watched := faultfs.New(mem)
	changes := 0
	watched.Inject(faultfs.Rule{Ops: faultfs.OpMutating, Hook: func(c faultfs.Call) {
		mu.Lock()
		defer mu.Unlock()
		// The index is written in many small steps.
		if len(acks) < puts/4 || c.Op == faultfs.OpMapWrite && strings.Contains(c.Name, "index") {
			return
		}
		changes++
		for i, policy := range cutPolicies {
			if rng.IntN(changes) == 0 { // each change with the same chance
				what := fmt.Sprintf("%v before change %d, %v of %s, %d puts promised", policy, changes, c.Op, filepath.Base(c.Name), len(acks))
				cuts[i] = cut{mem.CrashClone(policy, rng.Int64()), what, acks[:len(acks):len(acks)]}
			}
		}
	}})
	o := options(crashedDir, small())
	o.FS, o.Flush = watched, gantry.FlushSync
	for i := 0; i < puts; {
		s, err := gantry.Open(t.Context(), crashedDir, o)
		if err != nil {
			t.Fatal(err)
		}
		for end := i + puts/2; i < end && i < puts; i++ {
			msgs := workload(seed, i, wide)
			var res gantry.PutResult
			if len(msgs) == 1 {
				res, err = s.Put(t.Context(), msgs[0])
			} else {
				res, err = s.PutBatch(t.Context(), msgs)
			}
			if err == nil && i%11 == 5 {
				err = s.Sync(t.Context()) // with a checkpoint
			}
			if err != nil {
				t.Fatalf("put %d: %v", i, err)
			}
			mu.Lock()
			acks = append(acks, ack{seed, i, res.Topic, res.QueueID, res.QueueOffset, res.PhysicalOffset, res.StoreTimestamp, res.MsgID()})
			mu.Unlock()
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for i, policy := range cutPolicies[:2] {
		cuts = append(cuts, cutAgain(t, cuts[i], policy, rng))
	}
	return cuts
}

// cutAgain cuts the power while the store that a cut left is being opened.
func cutAgain(t *testing.T, c cut, policy memfs.Policy, rng *rand.Rand) cut {
	t.Helper()
	var mu sync.Mutex
	again := cut{what: c.what + ", nothing to recover", fs: c.fs, acks: c.acks}
	mem := c.fs.CrashClone(memfs.KeepAll)
	watched := faultfs.New(mem)
	changes := 0
	watched.Inject(faultfs.Rule{Ops: faultfs.OpMutating, Hook: func(call faultfs.Call) {
		mu.Lock()
		defer mu.Unlock()
		if changes++; rng.IntN(changes) == 0 {
			again.fs = mem.CrashClone(policy, rng.Int64())
			again.what = fmt.Sprintf("%s, then %v in the recovery before change %d, %v of %s", c.what, policy, changes, call.Op, filepath.Base(call.Name))
		}
	}})
	o := options(crashedDir, small())
	o.FS = watched
	s, err := gantry.Open(t.Context(), crashedDir, o)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return again
}

// copyOut writes the files of a crashable file system to the disk.
func copyOut(t *testing.T, from *memfs.FS, name, to string) {
	t.Helper()
	entries, err := from.List(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		source, target := filepath.Join(name, e.Name), filepath.Join(to, e.Name)
		if e.IsDir() {
			if err := os.Mkdir(target, 0o755); err != nil {
				t.Fatal(err)
			}
			copyOut(t, from, source, target)
			continue
		}
		data, err := vfs.ReadFile(from, source, 1<<20)
		if err == nil {
			err = os.WriteFile(target, data, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
}

// TestJavaReadsCrashed: the power is cut under a store of ours. What is left is
// opened by us, closed and then read by Java, or read by Java at once: all that
// was promised is there.
func TestJavaReadsCrashed(t *testing.T) {
	seed := time.Now().UnixNano() & 0xffffffff
	t.Logf("seed %d", seed)
	for k, version := range []string{"4.9.4", "5.4.0"} {
		for i, c := range powerCuts(t, seed+int64(k), wide(version)) {
			t.Run(fmt.Sprintf("%s/recovered/%d", version, i), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				copyOut(t, c.fs, crashedDir, dir)
				s := open(t, dir, small())
				t.Logf("%s; recovery: %+v", c.what, s.Recovery())
				closeAndCheck(t, s, small())
				h := &history{wide: wide(version), ours: c.acks}
				a, err := javaStore(t, version).Read(t.Context(), dir, small(), h.questions(version).Questions)
				if err != nil {
					t.Fatal(err)
				}
				checkRead(t, a, h)
				s = open(t, dir, small())
				if r := s.Recovery(); !r.CleanStop || len(r.Repaired) > 0 || r.Truncated > 0 {
					t.Errorf("after Java's clean stop: %+v", r)
				}
				compare(t, s, a, version, small())
				closeAndCheck(t, s, small())
			})
			t.Run(fmt.Sprintf("%s/at once/%d", version, i), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				copyOut(t, c.fs, crashedDir, dir)
				removeEmptyFiles(t, dir, version)
				t.Log(c.what)
				h := &history{wide: wide(version), ours: c.acks}
				a, err := javaStore(t, version).Read(t.Context(), dir, small(), h.questions(version).Questions)
				if err != nil {
					t.Fatal(err)
				}
				checkRead(t, a, h)
				inQueues(t, &a.Observation, h)
				closeAndCheck(t, open(t, dir, small()), small())
			})
		}
	}
}

// inQueues checks that Java's queues lead to what was promised.
func inQueues(t *testing.T, a *golden.Observation, h *history) {
	t.Helper()
	type place struct {
		topic string
		queue int32
		off   message.QueueOffset
	}
	units := make(map[place]message.PhysicalOffset)
	for _, q := range a.Queues {
		for i, u := range q.Units {
			units[place{q.Topic, q.ID, q.Min + message.QueueOffset(i)}] = u.Physical
		}
	}
	for _, p := range h.ours {
		sysFlag := workload(p.Seed, p.I, h.wide)[0].SysFlag
		if at, ok := units[place{p.Topic, p.QueueID, p.QueueOffset}]; sysFlag.Queued() && (!ok || at != p.PhysicalOffset) {
			t.Errorf("put %d: Java's queue %s/%d has %d at %d, promised was %d", p.I, p.Topic, p.QueueID, at, p.QueueOffset, p.PhysicalOffset)
		}
	}
}
