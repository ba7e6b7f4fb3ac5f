package consumequeue

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// crashLog is a commit log that survives crashes: what the queues are made of.
type crashLog struct {
	records []crashRecord
	end     message.PhysicalOffset
	min     message.PhysicalOffset
	synced  message.PhysicalOffset // all units below it were synced
	removed map[string]bool        // topics whose removal has begun
	next    map[crashQueue]int64
	extra   message.TagsCode // makes records after a cut different
}

type crashQueue struct {
	topic string
	id    int32
}

type crashRecord struct {
	crashQueue
	slot int64
	unit Unit
}

func (l *crashLog) add(q crashQueue) crashRecord {
	r := crashRecord{q, l.next[q], Unit{l.end, 40, 7_000_000 + message.TagsCode(l.end) + l.extra}}
	l.records = append(l.records, r)
	l.next[q]++
	l.end = r.unit.End()
	return r
}

// cut shortens the log.
func (l *crashLog) cut(end message.PhysicalOffset) {
	for n := len(l.records); n > 0 && l.records[n-1].unit.Physical >= end; n-- {
		r := l.records[n-1]
		l.next[r.crashQueue] = r.slot
		l.records = l.records[:n-1]
	}
	l.end, l.synced = end, min(l.synced, end)
	l.extra += 1_000_000
}

func crashOptions(fsys vfs.FS) Options {
	return Options{FS: fsys, Dir: testDir, ExtDir: testExtDir, FileSize: 15 * UnitSize, ExtFileSize: 300, Workers: 1, MaxOpenFiles: 2, BufferBytes: 400}
}

func withExt(q crashQueue) bool { return q.topic == "Ext" }

func (r crashRecord) ext() ExtUnit {
	return ExtUnit{Tags: r.unit.Tags, StoreTime: int64(r.unit.Physical), Bitmap: []byte{byte(r.slot), 1, 2}}
}

// crashWorkload goes on until the file system crashes.
func crashWorkload(fsys vfs.FS, l *crashLog) error {
	ctx := context.Background()
	t, _, err := OpenTable(ctx, crashOptions(fsys), all)
	if err != nil {
		return err
	}
	queues := []crashQueue{{"T", 0}, {"T", 1}, {"U", 0}, {"Ext", 0}}
	put := func(n int) error {
		for i := range n {
			r := l.add(queues[i%len(queues)])
			q, err := t.GetOrCreate(r.topic, r.id)
			if err != nil {
				return err
			}
			if withExt(r.crashQueue) {
				err = q.PutExt(message.QueueOffset(r.slot), r.unit, r.ext())
			} else {
				err = q.Put(message.QueueOffset(r.slot), r.unit)
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	sync := func() error {
		end := l.end
		if err := t.Sync(ctx); err != nil {
			return err
		}
		l.synced = end
		return nil
	}
	reopen := func() error {
		end := l.end
		if err := t.Close(); err != nil {
			return err
		}
		l.synced = end
		t, _, err = OpenTable(ctx, crashOptions(fsys), l.end)
		if err != nil {
			return err
		}
		return t.CorrectMin(ctx, l.min)
	}
	for _, q := range queues {
		l.next[q] = 0
	}
	l.next[crashQueue{"U", 0}] = 22 // begins with head fills, in its second file
	for _, step := range []func() error{
		func() error { return put(40) },
		sync,
		func() error { return put(30) },
		t.WriteOut,
		func() error { return put(10) },
		reopen,
		func() error { return put(50) },
		func() error {
			l.cut(l.end - 75*40) // also what was synced
			if err := t.TruncateFrom(ctx, l.end); err != nil {
				return err
			}
			return put(23)
		},
		sync,
		func() error {
			l.min = l.end - 60*40
			_, err := t.DeleteBefore(l.min)
			return err
		},
		func() error { return put(40) },
		func() error {
			l.removed["T"] = true
			if err := t.RemoveTopic("T"); err != nil {
				return err
			}
			queues = queues[2:]
			return nil
		},
		func() error { return put(30) },
		func() error {
			l.cut(l.end - 10*40)
			return reopen()
		},
		func() error { return put(10) },
		func() error { return t.Close() },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	l.synced = l.end
	return nil
}

// crashVerify opens what a crash left, compares it, replays the log, and
// compares again.
func crashVerify(t *testing.T, fsys vfs.FS, l *crashLog) {
	t.Helper()
	ctx := context.Background()
	table, _ := openTable(t, crashOptions(fsys), l.synced)
	must(t, table.CorrectMin(ctx, l.min))
	compare := func(when string, end message.PhysicalOffset) {
		t.Helper()
		want := make(map[crashQueue][]crashRecord)
		for _, r := range l.records {
			if r.unit.Physical < end && r.unit.Physical >= l.min && !l.removed[r.topic] {
				want[r.crashQueue] = append(want[r.crashQueue], r)
			}
		}
		for k, rs := range want {
			q := table.Get(k.topic, k.id)
			if q == nil {
				t.Fatalf("%s: queue %v is missing", when, k)
			}
			if int64(q.Min()) != rs[0].slot || int64(q.Max()) != rs[len(rs)-1].slot+1 {
				t.Fatalf("%s: %s: %d to %d, want %d to %d", when, q, q.Min(), q.Max(), rs[0].slot, rs[len(rs)-1].slot+1)
			}
			for i, u := range content(t, q) {
				if withExt(k) {
					if x, err := q.GetExt(u.Tags); err != nil || !cmp.Equal(x, rs[i].ext()) {
						t.Fatalf("%s: %s: extension of slot %d is %+v, %v", when, q, rs[i].slot, x, err)
					}
					u.Tags = rs[i].unit.Tags
				}
				if u != rs[i].unit {
					t.Fatalf("%s: %s: slot %d holds %+v, want %+v", when, q, rs[i].slot, u, rs[i].unit)
				}
			}
		}
		for q := range table.All() {
			k := crashQueue{q.topic, q.id}
			if !l.removed[q.topic] && len(want[k]) == 0 && q.Min() != q.Max() {
				t.Fatalf("%s: %s: %d to %d, want nothing", when, q, q.Min(), q.Max())
			}
		}
	}
	compare("after the crash", l.synced)
	for topic := range l.removed {
		must(t, table.RemoveTopic(topic))
	}
	must(t, table.TrimAll(ctx))
	for _, r := range l.records {
		if r.unit.Physical < l.synced || l.removed[r.topic] {
			continue
		}
		q := queue(t, table, r.topic, r.id)
		var err error
		if withExt(r.crashQueue) {
			_, err = q.EnsureExt(message.QueueOffset(r.slot), r.unit, r.ext())
		} else {
			_, err = q.Ensure(message.QueueOffset(r.slot), r.unit)
		}
		must(t, err)
	}
	compare("after the replay", l.end)
	must(t, table.Close())
	table, _ = openTable(t, crashOptions(fsys), all)
	must(t, table.CorrectMin(ctx, l.min))
	compare("after reopening", l.end)
	must(t, table.Close())
}

// TestCrashAtEveryWrite: whatever a power cut leaves of what was not synced,
// all that was synced is there, and replaying the log from that position makes
// the queues whole.
func TestCrashAtEveryWrite(t *testing.T) {
	step := 1
	if testing.Short() || raceEnabled {
		step = 7
	}
	for k := 0; ; k += step {
		mem := memfs.NewCrashable(int64(k))
		ffs := faultfs.CrashAt(mem, k)
		l := &crashLog{next: make(map[crashQueue]int64), removed: make(map[string]bool)}
		err := crashWorkload(ffs, l)
		if ffs.Crashed() != (err != nil) || err != nil && !errors.Is(err, faultfs.ErrCrashed) {
			t.Fatalf("crash at %d: %v", k, err)
		}
		for _, policy := range memfs.Policies() {
			t.Run(fmt.Sprintf("k=%d/%s", k, policy), func(t *testing.T) {
				crashVerify(t, mem.CrashClone(policy), l)
			})
		}
		if err == nil {
			if k < 100 {
				t.Errorf("the workload makes only %d changes", k)
			}
			break
		}
	}
}
