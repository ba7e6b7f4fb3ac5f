package consumequeue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

func TestPutReadReopen(t *testing.T) {
	mem := memfs.New()
	table, report := openTable(t, small(mem), all)
	if want := (Report{FileSize: 100}); !cmp.Equal(report, want) {
		t.Errorf("report %+v, want %+v", report, want)
	}
	q := queue(t, table, "T", 3)
	wantState(t, q, state{})
	putRange(t, q, 0, 12)
	wantState(t, q, state{0, 12, 1200})

	check := func(q *Queue) {
		t.Helper()
		if diff := cmp.Diff(units(0, 12), content(t, q)); diff != "" {
			t.Error(diff)
		}
		var one [1]Unit
		for off := range message.QueueOffset(12) {
			if n, err := q.Read(off, one[:]); n != 1 || err != nil || one[0] != unit(int64(off)) {
				t.Errorf("Read(%d) = %+v, %d, %v", off, one, n, err)
			}
		}
		for _, off := range []message.QueueOffset{12, 13, math.MaxInt64} {
			if n, err := q.Read(off, one[:]); n != 0 || err != nil {
				t.Errorf("Read(%d) = %d, %v", off, n, err)
			}
		}
		if n, err := q.Read(0, nil); n != 0 || err != nil {
			t.Errorf("Read into nothing = %d, %v", n, err)
		}
		if _, err := q.Read(-1, one[:]); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("Read(-1): %v", err)
		}
	}
	check(q) // all in memory
	if len(tree(t, mem, testDir)) != 0 {
		t.Error("units were written before they had to be")
	}
	must(t, table.WriteOut())
	check(q)
	if got := table.Buffered(); got != 0 {
		t.Errorf("%d bytes buffered after WriteOut", got)
	}
	table = reopen(t, table, all)
	check(table.Get("T", 3))
	want := map[string]string{
		queueFile("T", 3, 0):   fmt.Sprintf("100:%x", appendUnits(units(0, 5)...)),
		queueFile("T", 3, 100): fmt.Sprintf("100:%x", appendUnits(units(5, 10)...)),
		queueFile("T", 3, 200): fmt.Sprintf("100:%x", appendUnits(units(10, 12)...)),
	}
	if diff := cmp.Diff(want, tree(t, mem, testDir)); diff != "" {
		t.Error(diff)
	}
}

func TestNeverCreatesQueues_R1(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, small(mem), all)
	defer table.Close()
	for i := range int32(10000) {
		if q := table.Get(fmt.Sprint("unknown", i), i); q != nil {
			t.Fatalf("Get made %s", q)
		}
	}
	if table.Len() != 0 || slices.Collect(table.All()) != nil {
		t.Errorf("%d queues", table.Len())
	}
}

func TestPut(t *testing.T) {
	type put struct {
		off    message.QueueOffset
		unit   Unit
		replay bool
		err    error // a sentinel, or nil
	}
	other := Unit{5000, 77, -3}
	for _, tc := range []struct {
		name string
		puts []put
		want []Unit
		st   state
		gaps []string
	}{
		{"in order", []put{{off: 0, unit: unit(0)}, {off: 1, unit: unit(1)}}, units(0, 2), state{0, 2, 200}, nil},
		{"duplicate", []put{{off: 0, unit: unit(0)}, {off: 1, unit: unit(1)}, {off: 0, unit: unit(0)}, {off: 1, unit: unit(1)}},
			units(0, 2), state{0, 2, 200}, nil},
		{"conflict", []put{{off: 0, unit: unit(0)}, {off: 0, unit: other, err: base.ErrCorrupt}}, units(0, 1), state{0, 1, 100}, nil},
		{"replay replaces", []put{{off: 0, unit: unit(0)}, {off: 1, unit: other}, {off: 1, unit: unit(1), replay: true}},
			units(0, 2), state{0, 2, 200}, nil},
		{"gap", []put{{off: 0, unit: unit(0)}, {off: 3, unit: unit(3)}},
			[]Unit{unit(0), {0, fillSize, 100}, {0, fillSize, 100}, unit(3)}, state{0, 4, 400}, []string{"1-3"}},
		{"gap over files", []put{{off: 0, unit: unit(0)}, {off: 12, unit: unit(12)}},
			slices.Concat([]Unit{unit(0)}, slices.Repeat([]Unit{{0, fillSize, 100}}, 11), []Unit{unit(12)}), state{0, 13, 1300}, []string{"1-12"}},
		{"gap is filled later", []put{{off: 0, unit: unit(0)}, {off: 3, unit: unit(3)}, {off: 1, unit: unit(1)}, {off: 2, unit: unit(2), replay: true}},
			units(0, 4), state{0, 4, 400}, []string{"1-3"}},
		{"gap too long", []put{{off: 0, unit: unit(0)}, {off: 102, unit: unit(3), err: &GapError{"T", 0, 1, 102}}, {off: 101, unit: unit(101)}},
			slices.Concat([]Unit{unit(0)}, slices.Repeat([]Unit{{0, fillSize, 100}}, 100), []Unit{unit(101)}), state{0, 102, 10200}, []string{"1-101"}},
		{"begins later", []put{{off: 1007, unit: unit(7)}, {off: 1008, unit: unit(8)}}, units(7, 9), state{1007, 1009, 900}, nil},
		{"begins later, replayed from the front", []put{
			{off: 13, unit: unit(13)}, {off: 10, unit: unit(10), replay: true}, {off: 11, unit: unit(11), replay: true}, {off: 12, unit: unit(12), replay: true}},
			units(10, 14), state{10, 14, 1400}, nil},
		{"begins later, one before it in an earlier file", []put{{off: 13, unit: unit(13)}, {off: 3, unit: unit(3)}},
			slices.Concat([]Unit{unit(3)}, slices.Repeat([]Unit{{0, fillSize, 400}}, 9), []Unit{unit(13)}), state{3, 14, 1400}, nil},
		{"not a unit", []put{{off: 0, unit: Unit{0, 0, 0}, err: errAny}, {off: 0, unit: FillUnit, err: errAny}, {off: 0, unit: Unit{-1, 1, 0}, err: errAny}},
			[]Unit{}, state{}, nil},
		{"not an offset", []put{{off: -1, unit: unit(1), err: errAny}, {off: math.MaxInt64, unit: unit(1), err: errAny},
			{off: math.MaxInt64 / 20, unit: unit(1), err: errAny}}, []Unit{}, state{}, nil},
	} {
		for _, written := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/written=%t", tc.name, written), func(t *testing.T) {
				var gaps []string
				opt := small(memfs.New())
				opt.MaxGap = 100
				opt.OnGap = func(topic string, id int32, from, to message.QueueOffset) {
					gaps = append(gaps, fmt.Sprint(from, "-", to))
				}
				table, _ := openTable(t, opt, all)
				q := queue(t, table, "T", 0)
				for _, p := range tc.puts {
					before := stateOf(q)
					var err error
					if p.replay {
						_, err = q.Ensure(p.off, p.unit)
					} else {
						err = q.Put(p.off, p.unit)
					}
					if !matches(err, p.err) {
						t.Errorf("put %d: %v, want %v", p.off, err, p.err)
					}
					if err != nil && stateOf(q) != before {
						t.Errorf("put %d failed and changed %+v to %+v", p.off, before, stateOf(q))
					}
					if written {
						must(t, table.WriteOut())
					}
				}
				for range 2 {
					wantState(t, q, tc.st)
					if diff := cmp.Diff(tc.want, content(t, q)); diff != "" {
						t.Error(diff)
					}
					table = reopen(t, table, all)
					if q = table.Get("T", 0); q == nil {
						if tc.st.Max != 0 {
							t.Error("queue is gone")
						}
						return
					}
				}
				must(t, table.Close())
				if !slices.Equal(gaps, tc.gaps) {
					t.Errorf("gaps %q, want %q", gaps, tc.gaps)
				}
			})
		}
	}
}

// errAny stands for an error of no kind in particular.
var errAny = errors.New("any")

func matches(err, want error) bool {
	var gap *GapError
	if g, ok := want.(*GapError); ok {
		return errors.As(err, &gap) && *gap == *g
	}
	return want == nil && err == nil || want == errAny && err != nil || want != nil && errors.Is(err, want)
}

// TestBackInTheLog: a unit of a record before the last one's shows that the last
// one is wrong. It is stored all the same; after opening, the queue ends before
// it, and a replay puts both right.
func TestBackInTheLog(t *testing.T) {
	var log strings.Builder
	opt := small(memfs.New())
	opt.Logger = slog.New(slog.NewTextHandler(&log, nil))
	table, _ := openTable(t, opt, all)
	q := queue(t, table, "T", 0)
	must(t, q.Put(0, unit(5)))
	must(t, q.Put(1, unit(1)))
	wantState(t, q, state{0, 2, 200})
	if !strings.Contains(log.String(), "goes back in the log") {
		t.Errorf("log: %s", log.String())
	}
	table = reopen(t, table, all)
	q = table.Get("T", 0)
	wantState(t, q, state{0, 1, 600})
	for k := range int64(2) {
		if changed, err := q.Ensure(message.QueueOffset(k), unit(k)); !changed || err != nil {
			t.Errorf("Ensure(%d): %t, %v", k, changed, err)
		}
	}
	table = reopen(t, table, all)
	wantState(t, table.Get("T", 0), state{0, 2, 200})
	must(t, table.Close())
}

func TestEnsureReportsChanges(t *testing.T) {
	table, _ := openTable(t, small(memfs.New()), all)
	defer table.Close()
	q := queue(t, table, "T", 0)
	for _, tc := range []struct {
		name    string
		off     message.QueueOffset
		unit    Unit
		changed bool
	}{
		{"first", 7, unit(7), true},
		{"same", 7, unit(7), false},
		{"next", 8, unit(8), true},
		{"another tags code", 8, Unit{800, 100, 5}, true},
		{"again", 8, Unit{800, 100, 5}, false},
		{"before the first", 6, unit(6), true},
	} {
		if changed, err := q.Ensure(tc.off, tc.unit); changed != tc.changed || err != nil {
			t.Errorf("%s: %t, %v", tc.name, changed, err)
		}
	}
	// What has expired is not brought back.
	must(t, q.CorrectMin(750))
	wantState(t, q, state{8, 9, 900})
	if changed, err := q.Ensure(6, Unit{600, 100, 1}); changed || err != nil {
		t.Errorf("expired: %t, %v", changed, err)
	}
	wantState(t, q, state{8, 9, 900})
}

func TestSearch(t *testing.T) {
	opt := small(memfs.New())
	table, _ := openTable(t, opt, all)
	q := queue(t, table, "T", 0)
	putRange(t, q, 3, 9)
	must(t, q.Put(20, unit(20)))
	putRange(t, q, 21, 40)
	reals := slices.Concat(units(3, 9), units(20, 40))
	for range 2 {
		for lo := message.QueueOffset(-1); lo < 42; lo += 3 {
			for hi := lo; hi < 43; hi += 2 {
				for at := range int64(42) {
					asked := 0
					got, err := q.Search(lo, hi, func(off message.QueueOffset, u Unit) (bool, error) {
						asked++
						if int64(u.Physical) != int64(off)*recordSize {
							t.Fatalf("slot %d was shown as %+v", off, u)
						}
						return int64(off) >= at, nil
					})
					want := max(min(hi, 40), 3)
					if hi < 3 {
						want = hi
					}
					for _, u := range reals {
						if off := message.QueueOffset(u.Physical / recordSize); off >= lo && off < hi && int64(off) >= at {
							want = off
							break
						}
					}
					if got != want || err != nil || asked > 7 {
						t.Fatalf("Search(%d, %d) for %d = %d, %v, want %d; %d questions", lo, hi, at, got, err, want, asked)
					}
				}
			}
		}
		table = reopen(t, table, all)
		q = table.Get("T", 0)
	}
	boom := errors.New("boom")
	if _, err := q.Search(0, 40, func(message.QueueOffset, Unit) (bool, error) { return false, boom }); err != boom {
		t.Errorf("error of the predicate: %v", err)
	}
	must(t, table.Close())
}

// TestExactFit_C25d: a queue of exactly one full file needs no second one.
func TestExactFit_C25d(t *testing.T) {
	mem := memfs.New()
	opt := Options{FS: mem, Dir: testDir, FileSize: 20000}
	table, _ := openTable(t, opt, all)
	putRange(t, queue(t, table, "T", 0), 0, 1000)
	for range 2 {
		q := table.Get("T", 0)
		wantState(t, q, state{0, 1000, 100000})
		if n, err := q.Read(1000, make([]Unit, 1)); n != 0 || err != nil {
			t.Errorf("Read(1000) = %d, %v", n, err)
		}
		must(t, table.Sync(context.Background()))
		if got := q.Files(); len(got) != 1 {
			t.Errorf("files %q", got)
		}
		table = reopen(t, table, all)
	}
	putRange(t, table.Get("T", 0), 1000, 1001)
	must(t, table.Close())
	if b := readFile(t, mem, queueFile("T", 0, 20000)); decodeUnit(b) != unit(1000) {
		t.Errorf("second file begins with %x", b[:20])
	}
}

func TestNames(t *testing.T) {
	table, _ := openTable(t, small(memfs.New()), all)
	defer table.Close()
	for _, topic := range []string{"", ".", "..", "a/b", `a\b`, "a\x00", "../../etc"} {
		if _, err := table.GetOrCreate(topic, 0); !errors.Is(err, ErrName) {
			t.Errorf("GetOrCreate(%q): %v", topic, err)
		}
		if err := table.RemoveTopic(topic); !errors.Is(err, ErrName) {
			t.Errorf("RemoveTopic(%q): %v", topic, err)
		}
		if err := table.RemoveQueue(topic, 0); !errors.Is(err, ErrName) {
			t.Errorf("RemoveQueue(%q): %v", topic, err)
		}
	}
	q := queue(t, table, "%RETRY%g", 5)
	if q.Topic() != "%RETRY%g" || q.ID() != 5 || q.Kind() != Simple || q.String() != "%RETRY%g/5" {
		t.Errorf("%v", q)
	}
	if again := queue(t, table, "%RETRY%g", 5); again != q {
		t.Error("a second queue of the same name")
	}
	for id := range int32(5) {
		queue(t, table, "A", 4-id)
	}
	var got []string
	for q := range table.All() {
		got = append(got, q.String())
	}
	if want := []string{"%RETRY%g/5", "A/0", "A/1", "A/2", "A/3", "A/4"}; !slices.Equal(got, want) || table.Len() != 6 {
		t.Errorf("All = %q (%d), want %q", got, table.Len(), want)
	}
	got = nil
	for q := range table.Topic("A") {
		got = append(got, q.String())
	}
	if len(got) != 5 || got[0] != "A/0" {
		t.Errorf("Topic = %q", got)
	}
	if n := len(slices.Collect(table.Topic("B"))); n != 0 {
		t.Errorf("%d queues of an unknown topic", n)
	}
}

func TestOptionsRefused(t *testing.T) {
	for name, opt := range map[string]Options{
		"no directory":        {},
		"unknown kind":        {Dir: testDir, Kind: 7},
		"negative size":       {Dir: testDir, FileSize: -1},
		"extension of batch":  {Dir: testDir, Kind: Batch, ExtDir: testExtDir},
		"size beyond reason":  {Dir: testDir, FileSize: math.MaxInt64},
		"extension too large": {Dir: testDir, ExtDir: testExtDir, ExtFileSize: math.MaxInt64},
	} {
		opt.FS = memfs.New()
		if _, _, err := OpenTable(context.Background(), opt, all); err == nil {
			t.Errorf("%s: opened", name)
		}
	}
}

func TestFingerprint(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, small(mem), all)
	type print struct{ count, hash uint64 }
	take := func() print { c, h := table.Fingerprint(); return print{c, h} }
	seen := map[print]string{}
	note := func(what string) {
		t.Helper()
		p := take()
		if was, ok := seen[p]; ok {
			t.Errorf("%s: the fingerprint is that of %q", what, was)
		}
		seen[p] = what
		table = reopen(t, table, all)
		if again := take(); again != p {
			t.Errorf("%s: %v became %v by reopening", what, p, again)
		}
	}
	note("nothing")
	queue(t, table, "empty", 0)
	if p := take(); p != (print{}) {
		t.Errorf("an empty queue counts: %v", p)
	}
	putRange(t, queue(t, table, "T", 0), 0, 3)
	note("T/0 with 3")
	putRange(t, queue(t, table, "T", 1), 0, 3)
	note("T/0 and T/1 with 3")
	must(t, table.RemoveQueue("T", 0))
	note("T/1 with 3")
	putRange(t, queue(t, table, "T", 1), 3, 4)
	note("T/1 with 4")
	must(t, queue(t, table, "T", 1).Put(6, unit(6)))
	note("T/1 with 4, 2 gaps, 1")
	must(t, queue(t, table, "T", 1).TruncateTo(4))
	if p := take(); seen[p] != "T/1 with 4" {
		t.Errorf("truncated back: %v", p)
	}
	must(t, table.Close())
}

func TestClosed(t *testing.T) {
	table, _ := openTable(t, small(memfs.New()), all)
	q := queue(t, table, "T", 0)
	putRange(t, q, 0, 7)
	must(t, table.Close())
	must(t, table.Close())
	for name, err := range map[string]error{
		"Put":          q.Put(7, unit(7)),
		"WriteOut":     table.WriteOut(),
		"Sync":         table.Sync(context.Background()),
		"TrimAll":      table.TrimAll(context.Background()),
		"RemoveTopic":  table.RemoveTopic("T"),
		"Read":         func() error { _, err := q.Read(0, make([]Unit, 1)); return err }(),
		"GetOrCreate":  func() error { _, err := table.GetOrCreate("U", 0); return err }(),
		"DeleteBefore": func() error { _, err := table.DeleteBefore(100); return err }(),
	} {
		if !errors.Is(err, base.ErrClosed) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := table.OpenFiles(); n != 0 {
		t.Errorf("%d open files", n)
	}
}

func TestCancel(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, small(mem), all)
	for i := range int32(50) {
		putRange(t, queue(t, table, "T", i), 0, 3)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := table.Sync(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Sync: %v", err)
	}
	table = reopen(t, table, all) // what was left is synced now
	if table.Len() != 50 {
		t.Errorf("%d queues", table.Len())
	}
	if _, _, err := OpenTable(ctx, small(mem), all); !errors.Is(err, context.Canceled) {
		t.Errorf("OpenTable: %v", err)
	}
	if err := table.TrimAll(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("TrimAll: %v", err)
	}
	must(t, table.Close())
}
