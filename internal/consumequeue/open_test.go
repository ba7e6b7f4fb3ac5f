package consumequeue

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestFindEnd opens files of every fill level, with clean, stale and torn bytes
// behind the end, and with every discard position.
func TestFindEnd(t *testing.T) {
	const perFile = 700 // more than three pages
	stale := []Unit{unit(5), unit(900), {7, 7, 7}}
	for _, n := range []int64{0, 1, 2, 203, 204, 205, 408, 409, 699, 700, 701, 904, 1399, 1400, 1401, 2100, 2500} {
		for _, tail := range []string{"zero", "stale", "next file", "stale next file"} {
			mem := memfs.New()
			us := units(0, n)
			for start := int64(0); start == 0 || start < n; start += perFile {
				part := us[start:min(n, start+perFile)]
				b := appendUnits(part...)
				if tail == "stale" && start+perFile > n {
					b = append(b, appendUnits(stale...)...)[:min(len(b)+60, perFile*UnitSize)]
				}
				writeFile(t, mem, queueFile("T", 0, start*UnitSize), b, perFile*UnitSize)
			}
			next := max(0, (n-1)/perFile+1) * perFile * UnitSize
			switch {
			case n == 0:
			case tail == "next file":
				writeFile(t, mem, queueFile("T", 0, next), nil, perFile*UnitSize)
			case tail == "stale next file":
				writeFile(t, mem, queueFile("T", 0, next), appendUnits(unit(n+1000)), perFile*UnitSize)
			}
			for _, discard := range []int64{0, 1, 2, 150, 203, 204, 205, 600, 700, 701, 1000, 1399, 1400, 1500, 2099, 2100, 2400, 2500, 1 << 40} {
				if tail == "stale" && discard > n || tail == "stale next file" && discard > n+1000 {
					// Units that no position tells from the queue's.
					continue
				}
				counting := faultfs.New(mem)
				opt := Options{FS: counting, Dir: testDir, FileSize: perFile * UnitSize, Workers: 1}
				table, _ := openTable(t, opt, message.PhysicalOffset(discard*recordSize))
				want := min(n, discard)
				q := table.Get("T", 0)
				st := state{0, message.QueueOffset(want), message.PhysicalOffset(want * recordSize)}
				if stateOf(q) != st {
					t.Fatalf("%d units, %s, discard from %d: %+v, want %+v", n, tail, discard, stateOf(q), st)
				}
				if us := content(t, q); !slices.Equal(us, units(0, want)) {
					t.Fatalf("%d units, %s, discard from %d: wrong units", n, tail, discard)
				}
				if got := counting.Count(faultfs.OpMutating, ""); got.Calls != 0 {
					t.Fatalf("opening made %d changes", got.Calls)
				}
			}
		}
	}
}

// TestFindEndIgnoresStaleOrder: stale units right behind the end that go back
// in the log are not taken, whatever the discard position.
func TestFindEndIgnoresStaleOrder(t *testing.T) {
	mem := memfs.New()
	writeFile(t, mem, queueFile("T", 0, 0), appendUnits(unit(10), unit(11), unit(5), unit(6)), 100)
	table, _ := openTable(t, small(mem), all)
	wantState(t, table.Get("T", 0), state{0, 2, 1200})
	putRange(t, table.Get("T", 0), 2, 3)
	must(t, table.Close())
	if got, want := readFile(t, mem, queueFile("T", 0, 0)), append(appendUnits(unit(10), unit(11), unit(2)), make([]byte, 40)...); !slices.Equal(got, want) {
		t.Errorf("file is %x, want %x", got, want)
	}
}

// TestAllZeroLastFile_L12: a last file that was made and never written holds no
// message.
func TestAllZeroLastFile_L12(t *testing.T) {
	mem := memfs.New()
	writeFile(t, mem, queueFile("T", 0, 0), appendUnits(units(0, 5)...), 100)
	writeFile(t, mem, queueFile("T", 0, 100), nil, 100)
	table, _ := openTable(t, small(mem), 10_000)
	must(t, table.TruncateFrom(context.Background(), 10_000))
	wantState(t, table.Get("T", 0), state{0, 5, 500})
	putRange(t, table.Get("T", 0), 5, 6)
	table = reopen(t, table, all)
	wantState(t, table.Get("T", 0), state{0, 6, 600})
	must(t, table.Close())
}

// TestOnlyFills_L13: fill units are not messages and say nothing of the log.
func TestOnlyFills_L13(t *testing.T) {
	mem := memfs.New()
	writeFile(t, mem, queueFile("T", 0, 100), appendUnits(FillUnit, FillUnit, FillUnit), 100)
	table, _ := openTable(t, small(mem), all)
	q := table.Get("T", 0)
	wantState(t, q, state{8, 8, 0})
	if phy := table.MaxPhysical(); phy != 0 {
		t.Errorf("MaxPhysical %d", phy)
	}
	must(t, q.Put(8, unit(3)))
	wantState(t, q, state{8, 9, 400})
	table = reopen(t, table, all)
	if got := content(t, table.Get("T", 0)); !slices.Equal(got, units(3, 4)) {
		t.Errorf("units %+v", got)
	}
	must(t, table.Close())
}

// TestFillsThenOtherFile: a queue of fills only moves to where its first
// message is.
func TestFillsThenOtherFile(t *testing.T) {
	for _, off := range []int64{0, 6, 9, 104} {
		mem := memfs.New()
		writeFile(t, mem, queueFile("T", 0, 100), appendUnits(FillUnit, FillUnit, FillUnit), 100)
		writeFile(t, mem, queueFile("T", 0, 200), nil, 100)
		table, _ := openTable(t, small(mem), all)
		must(t, table.Get("T", 0).Put(message.QueueOffset(off), unit(3)))
		table = reopen(t, table, all)
		q := table.Get("T", 0)
		wantState(t, q, state{message.QueueOffset(off), message.QueueOffset(off) + 1, 400})
		if got := q.Files(); len(got) != 1 || filepath.Base(got[0]) != fileName(off/5*100) {
			t.Errorf("offset %d is in files %q", off, got)
		}
		must(t, table.Close())
	}
}

// TestFillsAreBelowMin_L14: with a log that begins at 0, fill units are not the
// beginning of the queue.
func TestFillsAreBelowMin_L14(t *testing.T) {
	opt := Options{FS: memfs.New(), Dir: testDir, FileSize: 6_000_000}
	table, _ := openTable(t, opt, all)
	putRange(t, queue(t, table, "T", 0), 1000, 1010)
	for range 2 {
		must(t, table.CorrectMin(context.Background(), 0))
		q := table.Get("T", 0)
		wantState(t, q, state{1000, 1010, 101000})
		var us [1]Unit
		if _, err := q.Read(999, us[:]); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("Read(999): %v", err)
		}
		table = reopen(t, table, all)
	}
	must(t, table.Close())
}

// TestStaleTailIsZeroed: what stands behind the end is gone before the first
// write and does not come back when the log passes it (L3 for queues, C29).
func TestStaleTailIsZeroed_C29(t *testing.T) {
	for _, how := range []string{"put", "trim all", "sync", "nothing"} {
		t.Run(how, func(t *testing.T) {
			mem := memfs.New()
			table, _ := openTable(t, small(mem), all)
			putRange(t, queue(t, table, "T", 0), 0, 17)
			must(t, table.Close())
			table, _ = openTable(t, small(mem), 700) // the log was cut
			q := table.Get("T", 0)
			wantState(t, q, state{0, 7, 700})
			switch how {
			case "put":
				must(t, q.Put(7, Unit{700, 50, 1}))
				must(t, table.WriteOut())
			case "trim all":
				must(t, table.TrimAll(context.Background()))
			case "sync":
				must(t, table.Sync(context.Background()))
			case "nothing":
				before := tree(t, mem, testDir)
				if len(before) != 4 {
					t.Errorf("files: %v", before)
				}
				return
			}
			max := q.Max()
			// Every later opening sees the same, whatever it discards.
			table, _ = openTable(t, small(mem), all)
			if got := table.Get("T", 0).Max(); got != max {
				t.Errorf("%d units came back", got-max)
			}
			files := tree(t, mem, testDir)
			if len(files) != 2 || strings.Contains(files[queueFile("T", 0, 100)], fmt.Sprintf("%x", appendUnits(unit(8)))) {
				t.Errorf("files: %v", files)
			}
		})
	}
}

// TestFileSizes covers CF1 and C33: existing files decide, contradictions are
// refused with both numbers, and a refusal changes nothing.
func TestFileSizes_CF1_C33(t *testing.T) {
	type file struct {
		name  string
		units []Unit
		size  int64
	}
	one := func(topic string, size int64, n int64) file { return file{queueFile(topic, 0, 0), units(0, n), size} }
	for _, tc := range []struct {
		name       string
		configured int64
		files      []file
		size       int64 // expected file size, 0: refused
		in         []string
		short      int
		long       int
	}{
		{"as configured", 100, []file{one("A", 100, 3), one("B", 100, 2)}, 100, nil, 0, 0},
		{"all differ from the configuration", 100, []file{one("A", 60, 3), one("B", 60, 2)}, 60, nil, 0, 0},
		{"a single file differs from the configuration", 100, []file{one("A", 60, 3)}, 60, nil, 0, 0},
		{"configuration is smaller", 60, []file{one("A", 100, 5), one("B", 100, 2)}, 100, nil, 0, 0},
		{"several files of a queue differ", 100, []file{{queueFile("A", 0, 0), units(0, 3), 60}, {queueFile("A", 0, 60), units(3, 5), 60}}, 60, nil, 0, 0},
		{"mixed queues of two files", 100, []file{
			{queueFile("A", 0, 0), units(0, 3), 60}, {queueFile("A", 0, 60), units(3, 5), 60},
			{queueFile("B", 0, 0), units(0, 5), 100}, {queueFile("B", 0, 100), units(5, 6), 100}}, 0, []string{"100", "60"}, 0, 0},
		{"mixed queues of one file", 100, []file{one("A", 60, 3), one("B", 60, 2), one("C", 100, 1)}, 0, []string{"100", "60"}, 0, 0},
		{"longer with data", 60, []file{one("A", 60, 3), one("B", 60, 2), one("C", 100, 5)}, 0, []string{"100", "60"}, 0, 0},
		{"middle file short", 100, []file{{queueFile("A", 0, 0), units(0, 4), 99}, {queueFile("A", 0, 100), units(5, 6), 100}}, 0, []string{"99", "100"}, 0, 0},
		{"last file short by a byte", 100, []file{{queueFile("A", 0, 0), units(0, 5), 100}, {queueFile("A", 0, 100), units(5, 9), 99}}, 100, nil, 1, 0},
		{"last file empty", 100, []file{{queueFile("A", 0, 0), units(0, 5), 100}, {queueFile("A", 0, 100), nil, 0}}, 100, nil, 1, 0},
		{"last file longer, zeros", 100, []file{{queueFile("A", 0, 0), units(0, 5), 100}, {queueFile("A", 0, 100), units(5, 7), 4196}}, 100, nil, 0, 1},
		{"last file longer, data", 100, []file{{queueFile("A", 0, 0), units(0, 5), 100}, {queueFile("A", 0, 100), units(5, 13), 4196}}, 0, []string{"100", "4196"}, 0, 0},
		{"only file short by a byte", 100, []file{one("A", 99, 2)}, 100, nil, 1, 0},
		{"only file empty", 100, []file{one("A", 0, 0)}, 100, nil, 1, 0},
		{"start between files", 100, []file{{queueFile("A", 0, 150), units(0, 2), 100}}, 0, []string{"150", "100"}, 0, 0},
		{"no multiple of the unit", 100, []file{{queueFile("A", 0, 0), units(0, 2), 50}, {queueFile("A", 0, 50), units(2, 3), 50}}, 0, []string{"50", "20"}, 0, 0},
		{"far apart", 100, []file{one("A", 100, 3), {queueFile("A", 0, 100*(maxMissing+2)), units(5, 6), 100}, one("B", 100, 2),
			{queueFile("B", 0, 100), nil, 100}}, 0, []string{"missing"}, 0, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mem := memfs.New()
			for _, f := range tc.files {
				b := appendUnits(f.units...)
				writeFile(t, mem, f.name, b[:min(len(b), int(f.size))], f.size)
			}
			before := tree(t, mem, testDir)
			opt := small(mem)
			opt.FileSize = tc.configured
			table, report, err := OpenTable(context.Background(), opt, all)
			if diff := cmp.Diff(before, tree(t, mem, testDir)); diff != "" {
				t.Errorf("opening changed files: %s", diff)
			}
			if tc.size == 0 {
				var corrupt *base.CorruptError
				if !errors.As(err, &corrupt) || corrupt.File == "" {
					t.Fatalf("error %v, want a CorruptError", err)
				}
				for _, s := range tc.in {
					if !strings.Contains(err.Error(), s) {
						t.Errorf("error %q does not name %s", err, s)
					}
				}
				return
			}
			must(t, err)
			wantConfigured := int64(0)
			if tc.size != tc.configured {
				wantConfigured = tc.configured
			}
			if report.FileSize != tc.size || table.FileSize() != tc.size || report.ConfiguredSize != wantConfigured ||
				len(report.Short) != tc.short || len(report.Long) != tc.long {
				t.Errorf("report %+v", report)
			}
			// Writing brings short and long files to their length.
			for q := range table.All() {
				putRange(t, q, int64(q.Max()), 14)
			}
			table = reopen(t, table, all)
			for q := range table.All() {
				if diff := cmp.Diff(units(0, 14), content(t, q)); diff != "" {
					t.Errorf("%s: %s", q, diff)
				}
			}
			for name, b := range tree(t, mem, testDir) {
				if !strings.HasPrefix(b, fmt.Sprint(tc.size, ":")) {
					t.Errorf("%s: %s, want length %d", name, b, tc.size)
				}
			}
			must(t, table.Close())
		})
	}
}

// TestFileSizesOfNamesOnly: a crash that keeps the names of files and loses
// their lengths, and some of the names, does not keep the table from opening.
func TestFileSizesOfNamesOnly(t *testing.T) {
	for _, tc := range []struct {
		name       string
		configured int64
		starts     []int64
		size       int64 // 0: refused
	}{
		{"all names", 100, []int64{0, 100}, 100},
		{"some names", 100, []int64{200, 500, 800}, 100},
		{"one name", 100, []int64{300}, 100},
		{"only the first", 100, []int64{0}, 100},
		{"not as configured", 200, []int64{300, 500}, 100},
		{"no whole units", 100, []int64{150, 300}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			mem := memfs.New()
			for _, start := range tc.starts {
				writeFile(t, mem, queueFile("A", 0, start), nil, 0)
			}
			opt := small(mem)
			opt.FileSize = tc.configured
			table, _, err := OpenTable(context.Background(), opt, 0)
			if tc.size == 0 {
				var corrupt *base.CorruptError
				if !errors.As(err, &corrupt) {
					t.Fatalf("error %v, want a CorruptError", err)
				}
				return
			}
			must(t, err)
			if table.FileSize() != tc.size {
				t.Errorf("file size %d, want %d", table.FileSize(), tc.size)
			}
			must(t, table.Close())
		})
	}
}

// TestForeignNames_L19_C33: foreign names are reported, ignored and kept.
func TestForeignNames_L19_C33(t *testing.T) {
	mem := memfs.New()
	writeFile(t, mem, queueFile("T", 0, 0), appendUnits(units(0, 5)...), 100)
	writeFile(t, mem, queueFile("T", 0, 100), appendUnits(units(5, 7)...), 100)
	foreign := []string{
		filepath.Join(testDir, "readme.txt"),
		filepath.Join(testDir, "T", "07", fileName(0)),
		filepath.Join(testDir, "T", "x", fileName(0)),
		filepath.Join(testDir, "T", "9999999999", fileName(0)),
		filepath.Join(testDir, "T", "file"),
		filepath.Join(testDir, "T", "0", ".DS_Store"),
		filepath.Join(testDir, "T", "0", "00000000000000000000.bak"),
		filepath.Join(testDir, "T", "0", "100"),
		filepath.Join(testDir, "T", "0", "99999999999999999999"),
		filepath.Join(testDir, "T", "0", "lost+found", "x"),
		filepath.Join(testDir, "T", "0", fileName(200), "directory"),
	}
	for _, name := range foreign {
		writeFile(t, mem, name, []byte("x"), 100)
	}
	must(t, mem.MkdirAll(filepath.Join(testDir, "NoQueue")))
	must(t, mem.MkdirAll(filepath.Join(testDir, "Empty", "0")))
	want := []string{"readme.txt", "T/07", "T/x", "T/9999999999", "T/file", "T/0/.DS_Store", "T/0/00000000000000000000.bak",
		"T/0/100", "T/0/99999999999999999999", "T/0/lost+found", "T/0/" + fileName(200)}
	for i := range want {
		want[i] = filepath.Join(testDir, filepath.FromSlash(want[i]))
	}
	table, report := openTable(t, small(mem), all)
	slices.Sort(want)
	slices.Sort(report.Foreign)
	if diff := cmp.Diff(want, report.Foreign); diff != "" {
		t.Error(diff)
	}
	if report.Queues != 1 || report.Files != 2 || table.Len() != 1 {
		t.Errorf("report %+v, %d queues", report, table.Len())
	}
	wantState(t, table.Get("T", 0), state{0, 7, 700})
	must(t, table.RemoveTopic("T"))
	for _, name := range foreign {
		if _, err := mem.Stat(name); err != nil {
			t.Errorf("%v", err)
		}
	}
	if _, err := mem.Stat(queueFile("T", 0, 0)); err == nil {
		t.Error("the queue's file was not removed")
	}
	must(t, table.Close())
}

func TestRocksDBIsRefused(t *testing.T) {
	for _, name := range []string{"CURRENT", "MANIFEST-000005", "000012.sst"} {
		mem := memfs.New()
		writeFile(t, mem, queueFile("T", 0, 0), appendUnits(units(0, 5)...), 100)
		writeFile(t, mem, filepath.Join(testDir, name), []byte("x"), 1)
		if _, _, err := OpenTable(context.Background(), small(mem), all); !errors.Is(err, ErrRocksDB) || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
	mem := memfs.New() // a topic may have such a name
	writeFile(t, mem, queueFile("CURRENT", 0, 0), appendUnits(units(0, 5)...), 100)
	table, _ := openTable(t, small(mem), all)
	wantState(t, table.Get("CURRENT", 0), state{0, 5, 500})
}

// TestMissingFile: a hole between files is reported, reads as unwritten slots,
// and a replay can fill it.
func TestMissingFile_L20(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, small(mem), all)
	putRange(t, queue(t, table, "T", 0), 0, 17)
	must(t, table.Close())
	must(t, mem.Remove(queueFile("T", 0, 100)))
	table, report := openTable(t, small(mem), all)
	if want := []string{queueFile("T", 0, 100)}; !slices.Equal(report.Gaps, want) {
		t.Errorf("gaps %q, want %q", report.Gaps, want)
	}
	q := table.Get("T", 0)
	wantState(t, q, state{0, 17, 1700})
	for off, u := range content(t, q) {
		if hole := off >= 5 && off < 10; hole && u.Valid() || !hole && u != unit(int64(off)) {
			t.Errorf("slot %d is %+v", off, u)
		}
	}
	got, err := q.Search(0, 17, func(off message.QueueOffset, u Unit) (bool, error) { return off >= 7, nil })
	if got != 10 || err != nil {
		t.Errorf("Search over the hole = %d, %v", got, err)
	}
	for k := range int64(17) {
		changed, err := q.Ensure(message.QueueOffset(k), unit(k))
		if changed != (k >= 5 && k < 10) || err != nil {
			t.Errorf("Ensure(%d) = %t, %v", k, changed, err)
		}
	}
	table = reopen(t, table, all)
	if diff := cmp.Diff(units(0, 17), content(t, table.Get("T", 0))); diff != "" {
		t.Error(diff)
	}
	must(t, table.Close())
}

// TestOpenFails_L16: a queue that cannot be read is an error that names it.
func TestOpenFails_L16(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, small(mem), all)
	for i := range int32(20) {
		putRange(t, queue(t, table, "T", i), 0, 7)
	}
	must(t, table.Close())
	for _, op := range []faultfs.Op{faultfs.OpOpen, faultfs.OpRead, faultfs.OpList} {
		ffs := faultfs.New(mem)
		ffs.Inject(faultfs.Rule{Ops: op, Match: func(c faultfs.Call) bool { return strings.Contains(c.Name, "/T/13") }, Err: faultfs.ErrIO})
		opt := small(ffs)
		opt.Workers = 4
		_, _, err := OpenTable(context.Background(), opt, all)
		if !errors.Is(err, faultfs.ErrIO) || !strings.Contains(err.Error(), "T/13") {
			t.Errorf("%s fails: %v", op, err)
		}
	}
}

func TestProgress(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, small(mem), all)
	for i := range int32(2500) {
		putRange(t, queue(t, table, "T", i), 0, 1)
	}
	must(t, table.Close())
	var got []int
	opt := small(mem)
	opt.Workers = 4
	opt.Progress = func(done, total int) {
		if total != 2500 {
			t.Errorf("total %d", total)
		}
		got = append(got, done)
	}
	openTable(t, opt, all)
	if want := []int{1000, 2000, 2500}; !slices.Equal(got, want) {
		t.Errorf("progress %v, want %v", got, want)
	}
}

// TestHostileFiles opens queues of random bytes. Nothing may panic or loop, and
// what is read can be written over.
func TestHostileFiles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		mem := memfs.New()
		for k := range rng.IntN(4) {
			b := make([]byte, 100)
			for i := range b {
				if rng.IntN(3) == 0 {
					b[i] = byte(rng.Uint32())
				}
			}
			writeFile(t, mem, queueFile("T", 0, int64(k)*100), b, 100)
		}
		table, _ := openTable(t, small(mem), message.PhysicalOffset(rng.Int64()))
		q := queue(t, table, "T", 0)
		if q.Min() > q.Max() || q.Max() > 20 {
			t.Fatalf("%+v", stateOf(q))
		}
		must(t, q.CorrectMin(message.PhysicalOffset(rng.Int64N(1<<32))))
		content(t, q)
		must(t, q.TruncateFrom(message.PhysicalOffset(rng.Int64N(1<<32))))
		if max := q.Max(); true {
			must(t, q.Put(max, unit(1)))
			if q.Max() != max+1 {
				t.Fatalf("%+v after a put at %d", stateOf(q), max)
			}
		}
		must(t, table.Close())
	}
}
