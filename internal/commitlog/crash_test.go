package commitlog

import (
	"context"
	"fmt"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

const crashFileSize = 8192

// workload is what a test did to a log until the power went.
type workload struct {
	sent  []record
	acked int // of sent, those that are known to be on stable storage
}

// run appends n records of various sizes to the log in fsys, which holds what
// w says, and waits for a flush after every flushEvery of them. It ends early
// when the file system fails.
func (w *workload) run(fsys vfs.FS, set func(*Options), n, flushEvery int) {
	opts := testOptions(fsys, crashFileSize)
	set(&opts)
	l, _, err := Open(opts)
	if err != nil {
		return
	}
	defer l.Close()
	tail, err := l.FindTail(context.Background(), l.Min(), checkAll)
	if err != nil || l.SetEnd(tail.End, tail.StoreTime) != nil {
		return
	}
	// What recovery left of the records counts from here on.
	w.sent = w.sent[:tail.Records]
	sizes := []int{200, 511, 92, 1500, 700, 3000, 130, 512, 4096, 333}
	for i := range n {
		q := message.QueueOffset(len(w.sent))
		m := sized(sizes[i%len(sizes)], byte(q))
		p := &put{first: q}
		recs, err := p.enc.Append(nil, m)
		if err != nil {
			panic(err)
		}
		p.recs = recs
		phy, _, err := l.Append(len(recs), p)
		if err != nil {
			return
		}
		w.sent = append(w.sent, record{phy, q, string(m.Body)})
		if i%flushEvery == flushEvery-1 {
			if l.Flush(context.Background()) != nil {
				return
			}
			w.acked = len(w.sent)
		}
	}
	if l.Close() == nil {
		w.acked = len(w.sent)
	}
}

// verify checks what is left after a crash: all that was acknowledged, nothing
// that was not sent, in order; and that nothing of it looks like damage.
func (w *workload) verify(t *testing.T, fsys vfs.FS) (recovered int) {
	t.Helper()
	l, _, err := Open(testOptions(fsys, crashFileSize))
	if err != nil {
		t.Fatalf("open after a crash: %v", err)
	}
	defer l.Close()
	tail, err := l.FindTail(context.Background(), l.Min(), checkAll)
	if err != nil {
		t.Fatalf("find tail after a crash: %v", err)
	}
	if tail.Records < int64(w.acked) || tail.Records > int64(len(w.sent)) {
		t.Fatalf("%d records after a crash, %d sent, %d acknowledged: %+v", tail.Records, len(w.sent), w.acked, tail)
	}
	if (tail.ValidBehind > 0 || tail.Partial) && !tail.PowerLoss {
		t.Fatalf("a plain crash looks like damage: %+v", tail)
	}
	if tail.Stale != 0 || tail.Disorder != 0 {
		t.Fatalf("a plain crash left old records: %+v", tail)
	}
	if tail.ValidBehind > 0 && len(l.Files()) > 0 {
		// The unflushed part is in two files at most.
		files := l.Files()
		if tail.End < files[max(0, len(files)-3)].Start {
			t.Fatalf("records lost in a file that had been flushed: %+v of %v", tail, files)
		}
	}
	if err := l.SetEnd(tail.End, tail.StoreTime); err != nil {
		t.Fatalf("set end: %v", err)
	}
	got := scanAll(t, l)
	if int64(len(got)) != tail.Records {
		t.Fatalf("scan found %d records, the search for the tail %d", len(got), tail.Records)
	}
	for i, r := range got {
		if r != w.sent[i] {
			t.Fatalf("record %d is %v, sent was %v", i, r, w.sent[i])
		}
	}
	return len(got)
}

// goOn appends to what a crash left and checks that it can be read again.
func (w *workload) goOn(t *testing.T, fsys vfs.FS, recovered int) {
	t.Helper()
	next := workload{sent: w.sent[:recovered:recovered], acked: recovered}
	next.run(fsys, func(*Options) {}, 6, 100)
	if next.acked != recovered+6 {
		t.Fatalf("%d of 6 records could be appended after a crash", next.acked-recovered)
	}
	if tail := findTail(t, fsys, crashFileSize); tail.Reason != nil || tail.Records != int64(next.acked) {
		t.Fatalf("opening again: %+v", tail)
	}
	next.verify(t, fsys)
}

// TestCrashAtEveryWrite loses power at every change that appending and rolling
// make.
func TestCrashAtEveryWrite(t *testing.T) {
	for _, mode := range writeModes[:3] { // those without a goroutine that writes
		for _, policy := range memfs.Policies() {
			t.Run(fmt.Sprintf("%s/%v", mode.name, policy), func(t *testing.T) {
				t.Parallel()
				for _, flushEvery := range []int{4, 100} {
					for k := 0; ; k++ {
						mem := memfs.NewCrashable(int64(k))
						fsys := faultfs.CrashAt(mem, k)
						var w workload
						w.run(fsys, mode.set, 25, flushEvery)
						t.Logf("power lost at change %d, flushing every %d", k, flushEvery)
						clone := mem.CrashClone(policy)
						n := w.verify(t, clone)
						if k%8 == 0 {
							w.goOn(t, clone, n)
						}
						if !fsys.Crashed() {
							break // the workload is shorter than k
						}
					}
				}
			})
		}
	}
}

// TestCrashDuringRecovery loses power at every change that cutting the log
// makes, after a crash that left records behind its end where there are any.
func TestCrashDuringRecovery(t *testing.T) {
	for _, policy := range memfs.Policies() {
		t.Run(policy.String(), func(t *testing.T) {
			t.Parallel()
			cuts := 0
			for seed := range int64(25) {
				mem := memfs.NewCrashable(seed)
				first := faultfs.New(mem)
				var w workload
				// The power goes in the middle of the third file.
				w.run(&crashAfter{FS: first, writes: 19}, func(*Options) {}, 25, 7)
				for k := 0; ; k++ {
					image := mem.CrashClone(memfs.LoseRandomPages, seed)
					fsys := faultfs.CrashAt(image, k)
					l, _, err := Open(testOptions(fsys, crashFileSize))
					if err != nil {
						t.Fatal(err)
					}
					tail, err := l.FindTail(context.Background(), l.Min(), checkAll)
					if err != nil {
						t.Fatal(err)
					}
					if tail.DataEnd > tail.End {
						cuts++
					}
					_ = l.TruncateTo(tail.End)
					l.Close()
					again := image.CrashClone(policy, seed)
					n := w.verify(t, again)
					if int64(n) != tail.Records {
						t.Fatalf("seed %d, change %d: %d records, before the cut %d", seed, k, n, tail.Records)
					}
					w.goOn(t, again, n)
					if !fsys.Crashed() {
						break
					}
				}
			}
			if cuts == 0 {
				t.Error("no crash left anything to cut off")
			}
		})
	}
}

// crashAfter lets a number of writes through a mapping pass and then nothing.
type crashAfter struct {
	*faultfs.FS
	writes int
}

func (c *crashAfter) Create(name string) (vfs.File, error) {
	if c.writes > 0 {
		n := c.writes
		c.writes = 0
		c.Inject(faultfs.Rule{Ops: faultfs.OpMapWrite, Nth: n, Hook: func(faultfs.Call) { c.Crash() }})
	}
	return c.FS.Create(name)
}
