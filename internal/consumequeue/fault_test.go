package consumequeue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestWriteError_D4: a unit whose write fails stays where it is and nothing
// shifts. Each call that a write-out makes fails in turn.
func TestWriteError_D4(t *testing.T) {
	type step struct {
		name string
		do   func(q *Queue) error
	}
	put := func(from, to int64) func(*Queue) error {
		return func(q *Queue) error {
			for k := from; k < to; k++ {
				if err := q.Put(message.QueueOffset(k), unit(k)); err != nil {
					return err
				}
			}
			return nil
		}
	}
	prepends := func(q *Queue) error { _, err := q.Ensure(3, unit(3)); return err }
	for _, tc := range []struct {
		name  string
		steps []step
		want  state
	}{
		{"first units", []step{{"", put(0, 3)}}, state{0, 3, 300}},
		{"over a file's end", []step{{"", put(0, 3)}, {"", put(3, 12)}}, state{0, 12, 1200}},
		{"head fills", []step{{"", put(1003, 1007)}}, state{1003, 1007, 100700}},
		{"short gap", []step{{"", put(0, 2)}, {"", put(8, 9)}}, state{0, 9, 900}},
		{"long gap", []step{{"", put(0, 2)}, {"", put(400, 401)}}, state{0, 401, 40100}},
		{"before the first", []step{{"", put(13, 14)}, {"", prepends}}, state{3, 14, 1400}},
	} {
		for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpWrite, faultfs.OpMkdirAll} {
			for _, short := range []int{0, 7, 30} {
				if short > 0 && op != faultfs.OpWrite {
					continue
				}
				t.Run(fmt.Sprintf("%s/%s/short=%d", tc.name, op, short), func(t *testing.T) {
					for nth := 1; ; nth++ {
						ffs := faultfs.New(memfs.New())
						table, _ := openTable(t, small(ffs), all)
						q := queue(t, table, "T", 0)
						fault := ffs.Inject(faultfs.Rule{Ops: op, Nth: nth, Count: 1, Err: faultfs.ErrNoSpace, Short: short})
						for _, s := range tc.steps {
							for _, do := range []func() error{func() error { return s.do(q) }, table.WriteOut} {
								before, err := stateOf(q), do()
								if err != nil {
									if !errors.Is(err, base.ErrDiskFull) {
										t.Fatalf("nth %d: %v", nth, err)
									}
									if after := stateOf(q); after != before && after.Max < before.Max {
										t.Errorf("nth %d: %+v became %+v", nth, before, after)
									}
									if err := do(); err != nil {
										t.Fatalf("nth %d, again: %v", nth, err)
									}
								}
							}
						}
						wantState(t, q, tc.want)
						us := content(t, q)
						table = reopen(t, table, all)
						wantState(t, table.Get("T", 0), tc.want)
						if diff := cmp.Diff(us, content(t, table.Get("T", 0))); diff != "" {
							t.Errorf("nth %d: %s", nth, diff)
						}
						for i, u := range us {
							if k := int64(tc.want.Min) + int64(i); u.Valid() && u != unit(k) {
								t.Errorf("nth %d: slot %d holds %+v", nth, k, u)
							}
						}
						must(t, table.Close())
						if fault.Hits() == 0 {
							break
						}
					}
				})
			}
		}
	}
}

// TestDiskFullKeepsUnits: on a full disk units wait in memory; the bound holds;
// when there is space again nothing is missing.
func TestDiskFullKeepsUnits(t *testing.T) {
	ffs := faultfs.New(memfs.New())
	opt := Options{FS: ffs, Dir: testDir, FileSize: 20000, BufferBytes: 20000}
	table, _ := openTable(t, opt, all)
	full := ffs.Fail(faultfs.OpWrite, "", faultfs.ErrNoSpace)
	next := make(map[*Queue]int64)
	var refused error
	for i := 0; refused == nil; i++ {
		q := queue(t, table, "T", int32(i%7))
		if refused = q.Put(message.QueueOffset(next[q]), unit(next[q])); refused == nil {
			next[q]++
		}
		if table.Buffered() > opt.BufferBytes {
			t.Fatalf("%d bytes buffered", table.Buffered())
		}
	}
	if !errors.Is(refused, base.ErrDiskFull) {
		t.Errorf("refused with %v", refused)
	}
	if err := table.Sync(context.Background()); !errors.Is(err, base.ErrDiskFull) || errors.Is(err, base.ErrReadOnly) {
		t.Errorf("Sync: %v", err)
	}
	full.Remove()
	for q, n := range next {
		putRange(t, q, n, n+1)
	}
	must(t, table.Sync(context.Background()))
	if table.Buffered() != 0 {
		t.Errorf("%d bytes buffered after Sync", table.Buffered())
	}
	table = reopen(t, table, all)
	for q, n := range next {
		if diff := cmp.Diff(units(0, n+1), content(t, table.Get("T", q.ID()))); diff != "" {
			t.Error(diff)
		}
	}
	must(t, table.Close())
}

// TestOneBadQueueHoldsUpNoOther: at the bound of buffers a queue that cannot be
// written is passed over.
func TestOneBadQueueHoldsUpNoOther(t *testing.T) {
	ffs := faultfs.New(memfs.New())
	opt := Options{FS: ffs, Dir: testDir, FileSize: 20000, BufferBytes: 2000}
	table, _ := openTable(t, opt, all)
	bad := queue(t, table, "bad", 0)
	putRange(t, bad, 0, 3)
	fault := ffs.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Match: func(c faultfs.Call) bool { return strings.Contains(c.Name, "/bad/") }, Err: faultfs.ErrIO})
	for i := range int32(100) {
		putRange(t, queue(t, table, "good", i), 0, 3)
	}
	if fault.Hits() == 0 {
		t.Error("the bad queue was never tried")
	}
	fault.Remove()
	table = reopen(t, table, all)
	wantState(t, table.Get("bad", 0), state{0, 3, 300})
	must(t, table.Close())
}

// TestFailedSyncIsFinal_F1: after a failed sync nothing is written any more,
// although the disk works again. Reads go on.
func TestFailedSyncIsFinal_F1(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpSync, faultfs.OpSyncDir} {
		ffs := faultfs.New(memfs.NewCrashable(1))
		table, _ := openTable(t, small(ffs), all)
		q := queue(t, table, "T", 0)
		putRange(t, q, 0, 7)
		ffs.Inject(faultfs.Rule{Ops: op, Count: 1, Err: faultfs.ErrIO})
		err := table.Sync(context.Background())
		if !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
			t.Errorf("%s: Sync: %v", op, err)
		}
		for name, err := range map[string]error{
			"Sync":         table.Sync(context.Background()),
			"WriteOut":     table.WriteOut(),
			"Put":          q.Put(7, unit(7)),
			"Ensure":       func() error { _, err := q.Ensure(3, unit(4)); return err }(),
			"TrimAll":      table.TrimAll(context.Background()),
			"DeleteBefore": func() error { _, err := table.DeleteBefore(100); return err }(),
			"RemoveTopic":  table.RemoveTopic("T"),
			"GetOrCreate":  func() error { _, err := table.GetOrCreate("U", 0); return err }(),
			"Close":        table.Close(),
		} {
			if !errors.Is(err, base.ErrReadOnly) || !errors.Is(err, faultfs.ErrIO) {
				t.Errorf("%s: %s: %v", op, name, err)
			}
		}
	}
	// Reads of what is in memory and in files.
	ffs := faultfs.New(memfs.New())
	table, _ := openTable(t, small(ffs), all)
	q := queue(t, table, "T", 0)
	putRange(t, q, 0, 7)
	ffs.Fail(faultfs.OpSync, "", faultfs.ErrIO)
	if err := table.Sync(context.Background()); err == nil {
		t.Error("Sync did not fail")
	}
	if diff := cmp.Diff(units(0, 7), content(t, q)); diff != "" {
		t.Error(diff)
	}
}

func deleted(files []RemovedFile) (names []string) {
	for _, f := range files {
		names = append(names, fmt.Sprintf("%s/%d@%d", f.Topic, f.QueueID, f.First))
	}
	slices.Sort(names)
	return names
}

func TestDeleteBefore(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, small(mem), all)
	putRange(t, queue(t, table, "T", 0), 0, 17)
	putRange(t, queue(t, table, "T", 1), 0, 10) // exactly two full files
	putRange(t, queue(t, table, "T", 2), 0, 3)
	putRange(t, queue(t, table, "Big", 0), 1006, 1020)
	must(t, table.Sync(context.Background()))
	for _, tc := range []struct {
		before message.PhysicalOffset
		want   []string
		min    [3]message.QueueOffset
	}{
		{0, nil, [3]message.QueueOffset{0, 0, 0}},
		{1, nil, [3]message.QueueOffset{1, 1, 1}},
		{300, nil, [3]message.QueueOffset{3, 3, 3}},
		{499, []string{"T/0@0", "T/1@0"}, [3]message.QueueOffset{5, 5, 3}},
		{500, nil, [3]message.QueueOffset{5, 5, 3}},
		{100, nil, [3]message.QueueOffset{5, 5, 3}}, // the log never gets longer in front
		{1200, []string{"T/0@5"}, [3]message.QueueOffset{12, 10, 3}},
		{1 << 40, []string{"Big/0@1005", "Big/0@1010", "T/0@10"}, [3]message.QueueOffset{17, 10, 3}},
	} {
		dry, err := table.Expired(tc.before)
		must(t, err)
		got, err := table.DeleteBefore(tc.before)
		must(t, err)
		if !slices.Equal(deleted(got), tc.want) || !slices.Equal(deleted(dry), tc.want) {
			t.Errorf("before %d: removed %q, dry run %q, want %q", tc.before, deleted(got), deleted(dry), tc.want)
		}
		for _, f := range got {
			if _, err := mem.Stat(f.Path); !errors.Is(err, fs.ErrNotExist) || f.Size != 100 {
				t.Errorf("%+v: %v", f, err)
			}
		}
		for id, want := range tc.min {
			if got := table.Get("T", int32(id)).Min(); got != want {
				t.Errorf("before %d: T/%d begins at %d, want %d", tc.before, id, got, want)
			}
		}
	}
	must(t, table.Close())
}

// TestExpiredQueueKeepsItsOffset covers C35, C10 and R5: when all messages of a
// queue are gone its offsets go on, after any kind of reopening.
func TestExpiredQueueKeepsItsOffset_C10_C35_R5(t *testing.T) {
	for _, n := range []int64{1, 250, 254, 255} { // 255: the last file is full (C9)
		mem := memfs.New()
		table, _ := openTable(t, small(mem), all)
		putRange(t, queue(t, table, "A", 0), 0, n)
		must(t, table.WriteOut())
		for round := range 3 {
			_, err := table.DeleteBefore(message.PhysicalOffset(n * recordSize))
			must(t, err)
			q := table.Get("A", 0)
			wantState(t, q, state{message.QueueOffset(n), message.QueueOffset(n), message.PhysicalOffset(n * recordSize)})
			if _, err := q.Read(0, make([]Unit, 1)); !errors.Is(err, base.ErrNotFound) {
				t.Errorf("Read(0): %v", err)
			}
			if len(q.Files()) != 1 {
				t.Errorf("round %d: files %q", round, q.Files())
			}
			table = reopen(t, table, all)
		}
		must(t, table.CorrectMin(context.Background(), message.PhysicalOffset(n*recordSize)))
		q := table.Get("A", 0)
		must(t, q.Put(message.QueueOffset(n), unit(5000)))
		wantState(t, q, state{message.QueueOffset(n), message.QueueOffset(n) + 1, 500100})
		table = reopen(t, table, all)
		must(t, table.CorrectMin(context.Background(), message.PhysicalOffset(n*recordSize)))
		wantState(t, table.Get("A", 0), state{message.QueueOffset(n), message.QueueOffset(n) + 1, 500100})
		must(t, table.Close())
	}
}

// TestDeleteRetries_C7: what could not be removed is removed by the next call,
// and does not hold up other queues.
func TestDeleteRetries_C7(t *testing.T) {
	ffs := faultfs.New(memfs.New())
	table, _ := openTable(t, small(ffs), all)
	for i := range int32(4) {
		putRange(t, queue(t, table, "T", i), 0, 17)
	}
	must(t, table.WriteOut())
	bad := ffs.Inject(faultfs.Rule{Ops: faultfs.OpRemove, Match: func(c faultfs.Call) bool { return strings.Contains(c.Name, "/T/1/") }, Err: faultfs.ErrIO})
	got, err := table.DeleteBefore(1000)
	if !errors.Is(err, faultfs.ErrIO) || !strings.Contains(err.Error(), "T/1") {
		t.Errorf("error %v", err)
	}
	if want := []string{"T/0@0", "T/0@5", "T/2@0", "T/2@5", "T/3@0", "T/3@5"}; !slices.Equal(deleted(got), want) {
		t.Errorf("removed %q, want %q", deleted(got), want)
	}
	if q := table.Get("T", 1); q.Min() != 10 {
		t.Errorf("T/1 begins at %d", q.Min())
	}
	bad.Remove()
	got, err = table.DeleteBefore(1000) // the log has not moved
	must(t, err)
	if want := []string{"T/1@0", "T/1@5"}; !slices.Equal(deleted(got), want) {
		t.Errorf("removed %q, want %q", deleted(got), want)
	}
	must(t, table.Close())
}

// TestDeleteDespiteDamage: a damaged unit that leads the search astray does not
// cost a file whose last message is live.
func TestDeleteDespiteDamage(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, small(mem), all)
	putRange(t, queue(t, table, "T", 0), 100, 116)
	must(t, table.Close())
	overwrite(t, mem, queueFile("T", 0, 2100), appendUnits(Unit{1, 100, 0}), 3*UnitSize) // offset 108, where the search begins
	table, _ = openTable(t, small(mem), all)
	got, err := table.DeleteBefore(9000)
	must(t, err)
	if len(got) != 0 {
		t.Errorf("removed %q", deleted(got))
	}
	must(t, table.Close())
}

// TestRemoveTopic_D6: the queues are gone, from disk too, and stay away.
func TestRemoveTopic_D6(t *testing.T) {
	mem := memfs.NewCrashable(1)
	opt := small(mem)
	opt.ExtDir = testExtDir
	table, _ := openTable(t, opt, all)
	for i := range int32(3) {
		putRange(t, queue(t, table, "T", i), 0, 17)
		putRange(t, queue(t, table, "U", i), 0, 3)
	}
	must(t, queue(t, table, "T", 0).PutExt(17, unit(17), ExtUnit{Tags: 3}))
	must(t, table.Sync(context.Background()))
	q := table.Get("T", 0)
	putRange(t, q, 18, 19) // buffered when it is removed
	must(t, table.RemoveTopic("T"))
	if table.Get("T", 0) != nil || table.Len() != 3 {
		t.Errorf("%d queues left", table.Len())
	}
	for name, err := range map[string]error{
		"Put":  q.Put(19, unit(19)),
		"Read": func() error { _, err := q.Read(0, make([]Unit, 1)); return err }(),
	} {
		if !errors.Is(err, base.ErrNotFound) {
			t.Errorf("%s on a removed queue: %v", name, err)
		}
	}
	must(t, q.CorrectMin(1000))
	must(t, q.TruncateFrom(0))
	must(t, table.Sync(context.Background()))

	for _, policy := range memfs.Policies() {
		crashed := mem.CrashClone(policy)
		after := small(crashed)
		table, report := openTable(t, after, all)
		if table.Get("T", 0) != nil || table.Len() != 3 || len(report.Foreign) != 0 {
			t.Errorf("%s: %d queues after a crash, %+v", policy, table.Len(), report)
		}
		for _, dir := range []string{testDir, testExtDir} {
			if _, err := crashed.Stat(dir + "/T"); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("%s: %s/T is there: %v", policy, dir, err)
			}
		}
	}

	// The same topic again starts anew.
	putRange(t, queue(t, table, "T", 0), 0, 2)
	wantState(t, queue(t, table, "T", 0), state{0, 2, 200})
	must(t, table.RemoveTopic("no such topic"))
	must(t, table.RemoveQueue("U", 1))
	must(t, table.RemoveQueue("U", 77))
	table = reopen(t, table, all)
	if table.Len() != 3 || table.Get("U", 1) != nil {
		t.Errorf("%d queues", table.Len())
	}
	must(t, table.Close())
}

// TestRemoveTopicRetries: a removal that failed half-way can be repeated.
func TestRemoveTopicRetries(t *testing.T) {
	for nth := 1; ; nth++ {
		ffs := faultfs.New(memfs.New())
		table, _ := openTable(t, small(ffs), all)
		for i := range int32(2) {
			putRange(t, queue(t, table, "T", i), 0, 17)
		}
		must(t, table.Sync(context.Background()))
		fault := ffs.Inject(faultfs.Rule{Ops: faultfs.OpRemove | faultfs.OpList, Nth: nth, Count: 1, Err: faultfs.ErrIO})
		err := table.RemoveTopic("T")
		if fault.Hits() == 0 {
			must(t, err)
			break
		}
		if !errors.Is(err, faultfs.ErrIO) {
			t.Errorf("nth %d: %v", nth, err)
		}
		must(t, table.RemoveTopic("T"))
		if files := tree(t, ffs, testDir); len(files) != 0 {
			t.Errorf("nth %d: left %v", nth, files)
		}
		putRange(t, queue(t, table, "T", 0), 0, 3)
		must(t, table.Close())
	}
}

// TestConcurrentUse runs writers, readers, retention and syncs side by side.
func TestConcurrentUse(t *testing.T) {
	opt := Options{FS: memfs.New(), Dir: testDir, FileSize: 2000, MaxOpenFiles: 4, BufferBytes: 10_000}
	table, _ := openTable(t, opt, all)
	const queues, n = 6, 1500
	var writers, others sync.WaitGroup
	stop := make(chan struct{})
	for i := range int32(queues) {
		q := queue(t, table, "T", i)
		writers.Go(func() {
			for k := range int64(n) {
				if err := q.Put(message.QueueOffset(k), unit(k)); err != nil {
					t.Error(err)
					return
				}
			}
		})
		others.Go(func() {
			us := make([]Unit, 50)
			for {
				off := q.Min()
				n, err := q.Read(off, us)
				if errors.Is(err, base.ErrNotFound) && q.Min() > off {
					continue // retention was faster
				}
				if err != nil {
					t.Error(err)
					return
				}
				for j, u := range us[:n] {
					if u != unit(int64(off)+int64(j)) {
						t.Errorf("%s: slot %d holds %+v", q, int(off)+j, u)
						return
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	others.Go(func() {
		for {
			if err := table.Sync(context.Background()); err != nil {
				t.Error(err)
			}
			if _, err := table.DeleteBefore(table.MaxPhysical() / 2); err != nil {
				t.Error(err)
			}
			table.Fingerprint()
			if _, err := table.Get("T", 0).Search(0, n, func(off message.QueueOffset, u Unit) (bool, error) { return u.Physical > 50000, nil }); err != nil && !errors.Is(err, base.ErrNotFound) {
				t.Error(err)
			}
			if open := table.OpenFiles(); open > opt.MaxOpenFiles+2*queues+opt.Workers+8 {
				t.Errorf("%d open files", open)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	})
	writers.Wait()
	close(stop)
	others.Wait()
	if open := table.OpenFiles(); open > opt.MaxOpenFiles {
		t.Errorf("%d open files at rest", open)
	}
	table = reopen(t, table, all)
	for q := range table.All() {
		if q.Max() != n {
			t.Errorf("%s ends at %d", q, q.Max())
		}
		content(t, q)
	}
	must(t, table.Close())
}

// TestReadersBesideTruncation: a reader sees a unit as it was put at some time,
// never a mixture, while slots are taken away and put anew.
func TestReadersBesideTruncation(t *testing.T) {
	opt := Options{FS: memfs.New(), Dir: testDir, FileSize: 2000, MaxOpenFiles: 2}
	table, _ := openTable(t, opt, all)
	q := queue(t, table, "T", 0)
	version := func(k, v int64) Unit {
		return Unit{message.PhysicalOffset(k * recordSize), int32(1 + v%90), message.TagsCode(k*1_000_003 + v%90)}
	}
	stop := make(chan struct{})
	var readers sync.WaitGroup
	for range 3 {
		readers.Go(func() {
			us := make([]Unit, 40)
			for off := message.QueueOffset(0); ; off = (off + 17) % 400 {
				n, err := q.Read(off, us)
				if err != nil {
					t.Error(err)
					return
				}
				for i, u := range us[:n] {
					k := int64(off) + int64(i)
					if u != version(k, int64(u.Size)-1) {
						t.Errorf("slot %d holds %+v", k, u)
						return
					}
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	for v := range int64(200) {
		for k := int64(q.Max()); k < 400; k++ {
			must(t, q.Put(message.QueueOffset(k), version(k, v)))
		}
		if v%3 == 0 {
			must(t, table.WriteOut())
		}
		_, err := q.Ensure(message.QueueOffset(v), version(v, v+1))
		must(t, err)
		must(t, q.TruncateTo(message.QueueOffset(200+v*37%200)))
	}
	close(stop)
	readers.Wait()
	must(t, table.Close())
}

// TestReadError: what was read before the error is good, and the next call
// reads on.
func TestReadError(t *testing.T) {
	ffs := faultfs.New(memfs.New())
	table, _ := openTable(t, small(ffs), all)
	q := queue(t, table, "T", 0)
	putRange(t, q, 0, 17)
	must(t, table.WriteOut())
	fault := ffs.Fail(faultfs.OpRead, fileName(200), faultfs.ErrIO)
	us := make([]Unit, 17)
	n, err := q.Read(0, us)
	if n != 10 || !errors.Is(err, faultfs.ErrIO) || !slices.Equal(us[:n], units(0, 10)) {
		t.Errorf("Read = %d, %v", n, err)
	}
	if _, err := q.Search(0, 17, func(off message.QueueOffset, u Unit) (bool, error) { return off >= 12, nil }); !errors.Is(err, faultfs.ErrIO) {
		t.Errorf("Search: %v", err)
	}
	if err := q.CorrectMin(1200); !errors.Is(err, faultfs.ErrIO) || q.Min() != 0 {
		t.Errorf("CorrectMin: %v, minimum %d", err, q.Min())
	}
	if err := table.CorrectMin(context.Background(), 1200); !errors.Is(err, faultfs.ErrIO) {
		t.Errorf("Table.CorrectMin: %v", err)
	}
	if err := q.TruncateFrom(1200); !errors.Is(err, faultfs.ErrIO) || q.Max() != 17 {
		t.Errorf("TruncateFrom: %v, maximum %d", err, q.Max())
	}
	fault.Remove()
	must(t, q.TruncateFrom(1200))
	must(t, q.CorrectMin(700))
	wantState(t, q, state{7, 12, 1200})
	must(t, table.Close())
}
