package consumequeue

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestOpenManyQueues_L15: opening reads a bounded number of bytes for each
// queue, however full it is, and few files are open at a time.
func TestOpenManyQueues_L15(t *testing.T) {
	const queues, perFile, files = 5000, 3000, 3
	mem := memfs.New()
	var full, part []byte
	for k := range int64(perFile) {
		full = AppendUnit(full, unit(k))
	}
	for k := range int64(perFile / 2) {
		part = AppendUnit(part, unit(2*perFile+k))
	}
	for i := range int32(queues) {
		// The pages in between are never read; holes stand for them.
		for n := range int64(files) {
			b := full
			if n == files-1 {
				b = part
			}
			writeFile(t, mem, queueFile(fmt.Sprint("T", i/10), i%10, n*perFile*UnitSize), b, perFile*UnitSize)
		}
		if i == 0 {
			// One queue's files hold 180 kB; 5 000 times that is too much for a
			// test, so the others begin and end like them only.
			full, part = appendUnits(unit(0)), part[:4096*4]
		}
	}
	ffs := faultfs.New(mem)
	open, most := 0, 0
	ffs.Inject(faultfs.Rule{Ops: faultfs.OpOpen, Hook: func(faultfs.Call) { open++; most = max(most, open) }})
	ffs.Inject(faultfs.Rule{Ops: faultfs.OpClose, Hook: func(faultfs.Call) { open-- }})
	opt := Options{FS: ffs, Dir: testDir, FileSize: perFile * UnitSize, Workers: 1}
	// Files in the middle are not full here, which only a look at them tells.
	table, report := openTable(t, opt, all)
	if report.Queues != queues || report.Files != queues*files || table.Len() != queues {
		t.Fatalf("report %+v", report)
	}
	wantState(t, table.Get("T0", 0), state{0, 2*perFile + perFile/2, (2*perFile + perFile/2) * recordSize})
	wantState(t, table.Get("T77", 7), state{0, 2*perFile + 4096*4/UnitSize, (2*perFile + 4096*4/UnitSize) * recordSize})
	reads := ffs.Count(faultfs.OpRead, "")
	t.Logf("%d reads of %d bytes for each queue", reads.Calls/queues, reads.Bytes/queues)
	if reads.Bytes > queues*32<<10 || reads.Calls > queues*16 {
		t.Errorf("opening took %d reads of %d bytes", reads.Calls, reads.Bytes)
	}
	if most > 1 || open != 0 || table.OpenFiles() != 0 {
		t.Errorf("%d files were open, %d are", most, open)
	}
	if changes := ffs.Count(faultfs.OpMutating, ""); changes.Calls != 0 {
		t.Errorf("opening made %d changes", changes.Calls)
	}

	// A log minimum in front of everything needs no file again.
	ffs.ResetCounts()
	must(t, table.CorrectMin(context.Background(), 0))
	if n := ffs.Count(faultfs.OpOpen, ""); n.Calls != 0 {
		t.Errorf("%d files opened for nothing", n.Calls)
	}
	must(t, table.Close())
}

// TestManyQueues_C39: 20 000 queues with a message each. The bounds are those
// of the case for 100 000, scaled.
func TestManyQueues_C39(t *testing.T) {
	const queues = 20_000
	mem := memfs.New()
	ffs := faultfs.New(mem)
	opt := Options{FS: ffs, Dir: testDir, FileSize: 20000, MaxOpenFiles: 100}
	table, _ := openTable(t, opt, all)
	for i := range int64(queues) {
		q := queue(t, table, fmt.Sprint("topic-", i), 0)
		must(t, q.Put(0, unit(i)))
	}
	must(t, table.Close())
	if used := mem.Used(); used > queues*4096 {
		t.Errorf("%d bytes of blocks for %d queues", used, queues)
	}

	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	table, _ = openTable(t, opt, all)
	runtime.GC()
	runtime.ReadMemStats(&after)
	perQueue := int64(after.HeapAlloc-before.HeapAlloc) / queues
	t.Logf("%d bytes of memory for each queue", perQueue)
	if perQueue > 1024 {
		t.Errorf("an idle queue takes %d bytes", perQueue)
	}
	ffs.ResetCounts()
	must(t, table.Sync(context.Background()))
	if n := ffs.Count(faultfs.OpAll, ""); n.Calls != 0 {
		t.Errorf("an idle table made %d calls", n.Calls)
	}
	for i := int64(0); i < queues; i += 20 {
		q := table.Get(fmt.Sprint("topic-", i), 0)
		var u [1]Unit
		if n, err := q.Read(0, u[:]); n != 1 || err != nil || u[0] != unit(i) {
			t.Fatalf("%s: %+v, %v", q, u, err)
		}
		if open := table.OpenFiles(); open > opt.MaxOpenFiles {
			t.Fatalf("%d open files", open)
		}
	}
	must(t, table.Close())
}

// TestPutDoesNotAllocate: the steady state of appending.
func TestPutDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	table, _ := openTable(t, Options{FS: memfs.New(), Dir: testDir}, all)
	q := queue(t, table, "T", 0)
	k := int64(0)
	next := func() {
		if err := q.Put(message.QueueOffset(k), unit(k)); err != nil {
			t.Fatal(err)
		}
		k++
	}
	for range 1000 {
		next()
	}
	// A page is written after 204 units; memfs allocates for its own page.
	if n := testing.AllocsPerRun(150, next); n != 0 {
		t.Errorf("%v allocations for each unit", n)
	}
	must(t, table.Close())
}

// TestOperatingSystem is a short life of a table on a real file system.
func TestOperatingSystem(t *testing.T) {
	dir := t.TempDir()
	opt := Options{FS: vfs.OS(), Dir: filepath.Join(dir, "consumequeue"), FileSize: 100_000, MaxOpenFiles: 3}
	table, _ := openTable(t, opt, all)
	for i := range int32(10) {
		putRange(t, queue(t, table, "T", i), 0, 6000)
	}
	must(t, table.Sync(context.Background()))
	_, err := table.DeleteBefore(550_000)
	must(t, err)
	must(t, table.Close())
	table, _ = openTable(t, opt, 590_000)
	must(t, table.CorrectMin(context.Background(), 550_000))
	for q := range table.All() {
		wantState(t, q, state{5500, 5900, 590_000})
		putRange(t, q, 5900, 5901)
	}
	must(t, table.Sync(context.Background()))
	must(t, table.RemoveTopic("T"))
	if left, err := os.ReadDir(opt.Dir); err != nil || len(left) != 0 {
		t.Errorf("left %v, %v", left, err)
	}
	must(t, table.Close())
}

func BenchmarkPut(b *testing.B) {
	for _, queues := range []int{1, 1000} {
		b.Run("queues="+strconv.Itoa(queues), func(b *testing.B) {
			table, _ := openTable(b, Options{FS: vfs.OS(), Dir: b.TempDir()}, all)
			defer table.Close()
			qs := make([]*Queue, queues)
			for i := range qs {
				qs[i] = queue(b, table, "T", int32(i))
				putRange(b, qs[i], 0, 300)
			}
			must(b, table.WriteOut()) // the files are there
			b.ReportAllocs()
			b.SetBytes(UnitSize)
			for k := int64(0); b.Loop(); k++ {
				q := qs[k%int64(queues)]
				if err := q.Put(message.QueueOffset(300+k/int64(queues)), unit(300+k)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkGet(b *testing.B) {
	table, _ := openTable(b, Options{FS: memfs.New(), Dir: testDir}, all)
	for i := range int32(10_000) {
		queue(b, table, fmt.Sprint("topic-", i/4), i%4)
	}
	b.ReportAllocs()
	for b.Loop() {
		if table.Get("topic-1234", 2) == nil {
			b.Fatal("no queue")
		}
	}
}

func BenchmarkRead(b *testing.B) {
	for _, n := range []int{1, 32, 800} {
		for _, where := range []string{"buffer", "file"} {
			if where == "buffer" && n > 32 {
				continue
			}
			b.Run(fmt.Sprintf("units=%d/from=%s", n, where), func(b *testing.B) {
				table, _ := openTable(b, Options{FS: vfs.OS(), Dir: b.TempDir()}, all)
				defer table.Close()
				q := queue(b, table, "T", 0)
				putRange(b, q, 0, 100_000)
				if where == "file" {
					must(b, table.WriteOut())
				}
				us := make([]Unit, n)
				off := q.Max() - message.QueueOffset(n)
				b.ReportAllocs()
				for b.Loop() {
					if got, err := q.Read(off, us); got != n || err != nil {
						b.Fatal(got, err)
					}
				}
			})
		}
	}
}

// BenchmarkOpenTable opens a clean table of 10 000 queues, each with 500 units
// in a file of the default size, from a warm page cache.
func BenchmarkOpenTable(b *testing.B) {
	const queues, units = 10_000, 500
	opt := Options{FS: vfs.OS(), Dir: filepath.Join(b.TempDir(), "consumequeue")}
	table, _ := openTable(b, opt, all)
	for i := range int32(queues) {
		putRange(b, queue(b, table, fmt.Sprint("topic-", i/4), i%4), 0, units)
	}
	must(b, table.WriteOut())
	b.ResetTimer()
	for b.Loop() {
		table, report := openTable(b, opt, all)
		if report.Queues != queues || table.MaxPhysical() != units*recordSize {
			b.Fatalf("%+v", report)
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/queues, "ns/queue")
}
