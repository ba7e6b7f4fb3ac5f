package commitlog

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

func always(FileInfo) bool { return true }

// TestR3OffsetZero: upstream answers with bytes of another record.
func TestR3OffsetZero(t *testing.T) {
	mem, at := makeLog(t, 4096, repeat(12, 1000)...)
	l, _ := startLog(t, testOptions(mem, 4096))
	removed, err := l.RemoveFront(1, always)
	if err != nil || len(removed) != 1 || removed[0].Start != 0 || removed[0].End != 4096 {
		t.Fatalf("removed %v, %v", removed, err)
	}
	if l.Min() != 4096 {
		t.Errorf("min %d", l.Min())
	}
	for _, phy := range []message.PhysicalOffset{0, at[1], 4095} {
		if _, _, err := l.ReadRecord(phy, nil, checkAll.Check); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("record at %d: %v", phy, err)
		}
		if _, err := l.ReadHeader(phy); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("header at %d: %v", phy, err)
		}
		// Q10: upstream never comes back.
		if err := l.Read(phy, make([]byte, 100)); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("bytes at %d: %v", phy, err)
		}
		if end, err := l.Scan(context.Background(), phy, l.End(), checkAll, nil); !errors.Is(err, base.ErrNotFound) || end != phy {
			t.Errorf("scan from %d ended at %d: %v", phy, end, err)
		}
	}
	if _, _, err := l.ReadRecord(at[4], nil, checkAll.Check); err != nil {
		t.Errorf("the first record left: %v", err)
	}
}

// TestQ9ArbitraryOffsets reads at every position of a log, and beyond: only the
// starts of records give one.
func TestQ9ArbitraryOffsets(t *testing.T) {
	mem, at := makeLog(t, 1024, 300, 400, 200, 300)
	l, _ := startLog(t, testOptions(mem, 1024))
	starts := map[message.PhysicalOffset]int32{at[0]: 300, at[1]: 400, at[2]: 200, at[3]: 300}
	var buf []byte
	for phy := message.PhysicalOffset(-10); phy < l.End()+10; phy++ {
		var v message.View
		var err error
		v, buf, err = l.ReadRecord(phy, buf, message.CheckOptions{})
		h, headerErr := l.ReadHeader(phy)
		if size, ok := starts[phy]; ok {
			if err != nil || headerErr != nil || v.Size != size || h.Size != size || h.PhysicalOffset != phy {
				t.Errorf("record at %d: size %d, header %d, %v, %v", phy, v.Size, h.Size, err, headerErr)
			}
			continue
		}
		if phy == 900 { // the blank
			if headerErr != nil || h.Kind != message.KindBlank || h.Size != 124 {
				t.Errorf("header of the blank: %+v, %v", h, headerErr)
			}
			headerErr = base.ErrNotFound
		}
		for _, err := range []error{err, headerErr} {
			if !errors.Is(err, base.ErrNotFound) && !errors.Is(err, base.ErrCorrupt) {
				t.Errorf("at %d: %v", phy, err)
			}
		}
	}
	for _, phy := range []message.PhysicalOffset{math.MinInt64, math.MaxInt64, l.End()} {
		if _, _, err := l.ReadRecord(phy, nil, checkAll.Check); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("record at %d: %v", phy, err)
		}
		if err := l.Read(phy, make([]byte, 1)); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("bytes at %d: %v", phy, err)
		}
	}

	// Bytes that claim a size, in a place that a client can name.
	be := binary.BigEndian
	for name, size := range map[string]uint32{"negative": 1 << 31, "zero": 0, "small": 90, "large": 1 << 30, "to the end": 1024 - 500} {
		fake := newPut(t, 0, sized(150, 1)).recs
		message.Patch(fake, 0, 500, testTime)
		be.PutUint32(fake, size)
		patchFile(t, mem, 0, 500, fake)
		_, _, err := l.ReadRecord(500, nil, message.CheckOptions{})
		wantCorrupt(t, err, fmt.Sprintf("%020d", 0), 500)
		if _, err := l.ReadHeader(500); name != "to the end" {
			wantCorrupt(t, err, fmt.Sprintf("%020d", 0), 500)
		}
	}
	if removed, err := l.RemoveFront(1, always); err != nil || len(removed) != 1 {
		t.Errorf("no reader holds the file, but: %v, %v", removed, err)
	}
}

func TestRead(t *testing.T) {
	mem, _ := makeLog(t, 1024, repeat(8, 300)...)
	l, _ := startLog(t, testOptions(mem, 1024))
	all := append(append(readFile(t, mem, 0), readFile(t, mem, 1024)...), readFile(t, mem, 2048)...)[:l.End()]
	for _, r := range [][2]int{{0, 1}, {0, len(all)}, {1000, 50}, {900, 1500}, {len(all), 0}} {
		got := make([]byte, r[1])
		if err := l.Read(message.PhysicalOffset(r[0]), got); err != nil || !bytes.Equal(got, all[r[0]:r[0]+r[1]]) {
			t.Errorf("read %v: %v", r, err)
		}
	}
	if err := l.Read(0, make([]byte, len(all)+1)); !errors.Is(err, base.ErrNotFound) {
		t.Errorf("read across the end: %v", err)
	}
}

func TestReadRecordReusesBuffer(t *testing.T) {
	mem, at := makeLog(t, 8192, 300, 2000, 100)
	l, _ := startLog(t, testOptions(mem, 8192))
	buf := make([]byte, 0, 2048)
	first := &buf[:1][0]
	for _, phy := range at {
		v, got, err := l.ReadRecord(phy, buf, checkAll.Check)
		if err != nil || &got[0] != first || int(v.Size) != len(got) {
			t.Errorf("record at %d: %v", phy, err)
		}
		buf = got
	}
}

func TestScan(t *testing.T) {
	mem, at := makeLog(t, 1024, repeat(9, 300)...) // three per file, end at 2948
	l, _ := startLog(t, testOptions(mem, 1024))
	stop := errors.New("stop")
	tests := []struct {
		name     string
		from, to message.PhysicalOffset
		stopAt   message.PhysicalOffset // fn refuses this one; -1: none
		want     int
		end      message.PhysicalOffset
		err      error
	}{
		{"all", 0, l.End(), -1, 9, l.End(), nil},
		{"behind the end", 0, math.MaxInt64, -1, 9, l.End(), nil},
		{"one file", 1024, 2048, -1, 3, 2048, nil},
		{"from a blank", 900, 2048, -1, 3, 2048, nil},
		{"only a blank", 900, 1024, -1, 0, 1024, nil},
		{"to inside a blank", 600, 950, -1, 1, 1024, nil},
		{"to inside a record", 0, at[2] + 10, -1, 2, at[2], nil},
		{"to inside a header", 0, at[2] + 4, -1, 2, at[2], nil},
		{"nothing", at[2], at[2], -1, 0, at[2], nil},
		{"backwards", at[2], at[1], -1, 0, at[2], nil},
		{"refused", 0, l.End(), at[4], 4, at[4], stop},
		{"from no boundary", at[1] + 3, l.End(), -1, 0, at[1] + 3, base.ErrCorrupt},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			for name, scan := range map[string]scanFunc{"Scan": l.Scan, "ScanAhead": l.ScanAhead} {
				n := 0
				end, err := scan(context.Background(), test.from, test.to, checkAll, func(v *message.View) error {
					if v.PhysicalOffset == test.stopAt {
						return stop
					}
					n++
					return nil
				})
				if n != test.want || end != test.end || !errors.Is(err, test.err) {
					t.Errorf("%s: %d records, end %d, %v; want %d, %d, %v", name, n, end, err, test.want, test.end, test.err)
				}
			}
		})
	}
	t.Run("context", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		for name, scan := range map[string]scanFunc{"Scan": l.Scan, "ScanAhead": l.ScanAhead} {
			if _, err := scan(ctx, 0, l.End(), checkAll, func(*message.View) error { return nil }); !errors.Is(err, context.Canceled) {
				t.Errorf("%s: got %v", name, err)
			}
		}
	})
	t.Run("removed while reading", func(t *testing.T) {
		n := 0
		end, err := l.Scan(context.Background(), 0, l.End(), checkAll, func(v *message.View) error {
			if n++; n == 2 {
				if _, err := l.RemoveFront(2, always); err != nil {
					t.Fatal(err)
				}
			}
			return nil
		})
		// What was in memory is still handed out; then the file is missed.
		if !errors.Is(err, base.ErrNotFound) || n != 3 || end != 1024 {
			t.Errorf("%d records, end %d, %v", n, end, err)
		}
	})
}

type scanFunc = func(context.Context, message.PhysicalOffset, message.PhysicalOffset, ScanOptions, func(*message.View) error) (message.PhysicalOffset, error)

// TestScanAhead: the bytes that fn sees are those of the records, although more
// is read meanwhile; and whoever stops early, for whatever reason, waits for
// the reader.
func TestScanAhead(t *testing.T) {
	var sizes []int
	for i := range 3000 {
		sizes = append(sizes, 200+i*7919%5000)
	}
	sizes[1000], sizes[2000] = 2<<20, 3<<20 // larger than a chunk
	mem, _ := makeLog(t, 8<<20, sizes...)
	l, _ := startLog(t, testOptions(mem, 8<<20))
	var want [][sha256.Size]byte
	if _, err := l.Scan(context.Background(), 0, l.End(), checkAll, func(v *message.View) error {
		want = append(want, sha256.Sum256(v.Record()))
		return nil
	}); err != nil || len(want) != len(sizes) {
		t.Fatalf("%d records, %v", len(want), err)
	}
	for _, stopAt := range []int{len(sizes), 0, 1, 999, 1001, 2500} {
		n := 0
		stop := errors.New("stop")
		_, err := l.ScanAhead(context.Background(), 0, l.End(), checkAll, func(v *message.View) error {
			if n == stopAt {
				return stop
			}
			runtime.Gosched() // the reader gets ahead
			if sha256.Sum256(v.Record()) != want[n] {
				t.Fatalf("record %d at %d is another", n, v.PhysicalOffset)
			}
			n++
			return nil
		})
		if n != stopAt || (err == nil) != (stopAt == len(sizes)) {
			t.Errorf("%d records of %d, %v", n, stopAt, err)
		}
	}
}

// TestScanAheadCanceled: when ctx ends in the middle the scan ends as well.
func TestScanAheadCanceled(t *testing.T) {
	mem, _ := makeLog(t, 8<<20, repeat(1200, 5<<10)...)
	l, _ := startLog(t, testOptions(mem, 8<<20))
	for range 30 { // what the reader does then is not decided
		ctx, cancel := context.WithCancel(context.Background())
		n := 0
		_, err := l.ScanAhead(ctx, 0, l.End(), checkAll, func(*message.View) error {
			if n++; n == 1 {
				cancel()
			}
			runtime.Gosched()
			return nil
		})
		if !errors.Is(err, context.Canceled) {
			t.Fatalf("%d records, %v", n, err)
		}
	}
}

func TestScanProgress(t *testing.T) {
	mem, _ := makeLog(t, 32<<20, repeat(20, 1<<20)...)
	l, _ := startLog(t, testOptions(mem, 32<<20))
	var calls []int64
	opts := checkAll
	opts.Progress = func(done, total int64) {
		if total != 20<<20 {
			t.Errorf("total %d", total)
		}
		calls = append(calls, done)
	}
	if _, err := l.Scan(context.Background(), 0, l.End(), opts, func(*message.View) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if len(calls) != 2 || calls[0] < progressStep || calls[1] != 20<<20 {
		t.Errorf("progress %v", calls)
	}
}

// TestD1ScanGoesOn: the caller skips one damaged record by searching from its
// end, which FindTail or the queue knows; Scan says where it is.
func TestD1ScanGoesOn(t *testing.T) {
	mem, at := makeLog(t, 4096, repeat(10, 300)...)
	patchFile(t, mem, 0, int64(at[4])+150, []byte{'!'})
	l, _ := openLog(t, testOptions(mem, 4096))
	var got []message.PhysicalOffset
	note := func(v *message.View) error {
		got = append(got, v.PhysicalOffset)
		return nil
	}
	end, err := l.Scan(context.Background(), 0, at[9]+300, checkAll, note)
	wantCorrupt(t, err, fmt.Sprintf("%020d", 0), int64(at[4]))
	if _, err := l.Scan(context.Background(), end+300, at[9]+300, checkAll, note); err != nil {
		t.Fatal(err)
	}
	if want := append(at[:4:4], at[5:]...); !cmp.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// makeTimedLog writes one record per file at the given times, with 0 for a file
// that holds only a blank.
func makeTimedLog(t *testing.T, times ...int64) (*memfs.FS, *Log) {
	t.Helper()
	mem := memfs.New()
	if err := mem.MkdirAll(testDir); err != nil {
		t.Fatal(err)
	}
	for i, storeTime := range times {
		file := make([]byte, 1024)
		start := int64(i) * 1024
		if storeTime > 0 {
			rec := newPut(t, 0, sized(300, 1)).recs
			message.Patch(rec, 0, message.PhysicalOffset(start), storeTime)
			copy(file, rec)
			copy(file[300:], message.AppendBlank(nil, 724))
		} else {
			copy(file, message.AppendBlank(nil, 1024))
		}
		f, err := mem.Create(filepath.Join(testDir, fmt.Sprintf("%020d", start)))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(file, 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	l, _ := openLog(t, testOptions(mem, 1024))
	return mem, l
}

func TestStoreTimes(t *testing.T) {
	mem, l := makeTimedLog(t, 10, 20, 0, 30, 40)
	patchFile(t, mem, 4096, 4, []byte{0, 0, 0, 1}) // the magic of the last one
	first := []int64{10, 20, 0, 30, -1}
	newest := []int64{20, 30, 30, 0, 0} // the last record's time is not known before SetEnd
	for i := range first {
		start := message.PhysicalOffset(i * 1024)
		for range 2 { // the second answer is remembered
			got, err := l.StoreTimeOfFile(start)
			if first[i] < 0 {
				wantCorrupt(t, err, fmt.Sprintf("%020d", start), 0)
			} else if err != nil || got != first[i] {
				t.Errorf("file %d begins at time %d, want %d; %v", start, got, first[i], err)
			}
		}
		if got, err := l.NewestStoreTime(start); err != nil || got != newest[i] {
			t.Errorf("file %d ends at time %d, want %d; %v", start, got, newest[i], err)
		}
	}
	for _, start := range []message.PhysicalOffset{-1, 5, 5 * 1024} {
		if _, err := l.StoreTimeOfFile(start); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("file %d: %v", start, err)
		}
		if _, err := l.NewestStoreTime(start); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("newest of file %d: %v", start, err)
		}
	}
}

func TestStoreTimeOfEmptyFile(t *testing.T) {
	mem, _ := makeLog(t, 4096, 1000)
	l, _ := startLog(t, testOptions(mem, 4096))
	if got, err := l.NewestStoreTime(0); err != nil || got != testTime {
		t.Errorf("newest %d, %v", got, err)
	}
	empty, _ := startLog(t, testOptions(memfs.New(), 4096))
	if err := empty.files.Prepare(1); err == nil {
		t.Error("an empty log has a next file")
	}
	if _, err := empty.files.Writable(0); err != nil {
		t.Fatal(err)
	}
	if got, err := empty.StoreTimeOfFile(0); got != 0 || err != nil {
		t.Errorf("time %d of a file without records, %v", got, err)
	}
}

func TestStartFile(t *testing.T) {
	_, l := makeTimedLog(t, 1000, 2000, 0, 3000, 1500, 4000) // the clock was set back once
	byTime := []struct {
		ts    int64
		start message.PhysicalOffset
		ok    bool
	}{{999, 0, false}, {1000, 0, true}, {1999, 4096, true}, {3000, 4096, true}, {4000, 5120, true}, {math.MaxInt64, 5120, true}, {0, 0, false}, {-1, 0, false}}
	for _, test := range byTime {
		start, ok, err := l.StartFileByTime(test.ts, checkAll.Check)
		if start != test.start || ok != test.ok || err != nil {
			t.Errorf("time %d: start %d, %v, %v; want %d, %v", test.ts, start, ok, err, test.start, test.ok)
		}
	}
	byOffset := []struct {
		phy   message.PhysicalOffset
		start message.PhysicalOffset
		ok    bool
	}{{-1, 0, false}, {0, 0, true}, {1023, 0, true}, {1024, 1024, true}, {3000, 1024, true}, {3072, 3072, true}, {99999, 5120, true}}
	for _, test := range byOffset {
		start, ok, err := l.StartFileByOffset(test.phy, checkAll.Check)
		if start != test.start || ok != test.ok || err != nil {
			t.Errorf("offset %d: start %d, %v, %v; want %d, %v", test.phy, start, ok, err, test.start, test.ok)
		}
	}
}

// TestStartFileSkipsDamage: a file whose first record is damaged is no start.
func TestStartFileSkipsDamage(t *testing.T) {
	mem, l := makeTimedLog(t, 1000, 2000, 3000)
	patchFile(t, mem, 2048, 150, []byte{'!'})
	for _, test := range []struct {
		check message.CheckOptions
		want  message.PhysicalOffset
	}{{message.CheckOptions{BodyCRC: true}, 1024}, {message.CheckOptions{}, 2048}} {
		if start, ok, err := l.StartFileByTime(9999, test.check); start != test.want || !ok || err != nil {
			t.Errorf("%+v: start %d, %v, %v", test.check, start, ok, err)
		}
	}
	fsys := faultfs.New(mem)
	broken, _ := openLog(t, testOptions(fsys, 1024))
	fsys.Fail(faultfs.OpRead, "", faultfs.ErrIO)
	if _, _, err := broken.StartFileByTime(9999, checkAll.Check); !errors.Is(err, faultfs.ErrIO) {
		t.Errorf("a broken disk: %v", err)
	}
}

func TestRemoveFront(t *testing.T) {
	mem, _ := makeLog(t, 1024, repeat(15, 300)...)
	l, _ := startLog(t, testOptions(mem, 1024))
	var asked []message.PhysicalOffset
	removed, err := l.RemoveFront(10, func(f FileInfo) bool {
		asked = append(asked, f.Start)
		return f.Start < 2048
	})
	if err != nil || len(removed) != 2 || !cmp.Equal(asked, []message.PhysicalOffset{0, 1024, 2048}) {
		t.Errorf("removed %v, asked for %v, %v", removed, asked, err)
	}
	if removed, err := l.RemoveFront(10, always); err != nil || len(removed) != 2 || len(l.Files()) != 1 {
		t.Errorf("removed %v, left %v, %v", removed, l.Files(), err)
	}
	if got := scanAll(t, l); len(got) != 3 {
		t.Errorf("%d records left", len(got))
	}
	l.Close()
	if _, err := l.RemoveFront(1, always); !errors.Is(err, base.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if tail := findTail(t, mem, 1024); tail.Records != 3 || tail.Reason != nil {
		t.Errorf("tail %+v", tail)
	}
}

func TestQuarantine(t *testing.T) {
	mem, at := makeLog(t, 8192, repeat(20, 1000)...)
	patchFile(t, mem, 8192, 1500, []byte{'!'})
	before := snapshot(t, mem)
	const dir = "/store/quarantine"
	l, _ := openLog(t, testOptions(mem, 8192))
	end := at[9] // 8192 + 1000
	copies, err := l.Quarantine(end, dir)
	if err != nil {
		t.Fatal(err)
	}
	want := []Quarantined{
		{filepath.Join(dir, "00000000000000009192.quarantine"), 9192, 7008},  // with the blank
		{filepath.Join(dir, "00000000000000016384.quarantine"), 16384, 3998}, // without the zeros at the end,
	}
	if !cmp.Equal(copies, want) {
		t.Errorf("copies %v, want %v", copies, want)
	}
	whole := before[fmt.Sprintf("%020d", 8192)][1000:][:7008] + before[fmt.Sprintf("%020d", 16384)][:3998]
	var got []byte
	for _, c := range copies {
		f, err := mem.Open(c.Path, vfs.ReadOnly)
		if err != nil {
			t.Fatal(err)
		}
		part := make([]byte, c.Size)
		if n, err := f.ReadAt(part, 0); n != len(part) {
			t.Fatal(n, err)
		}
		if size, _ := f.Size(); size != c.Size {
			t.Errorf("%s has %d bytes, said %d", c.Path, size, c.Size)
		}
		got = append(got, part...)
		f.Close()
	}
	if string(got) != whole {
		t.Error("the copies differ from the log")
	}
	if diff := cmp.Diff(before, snapshot(t, mem)); diff != "" {
		t.Error("quarantine changed the log")
	}
	// Once more: nothing is overwritten.
	if again, err := l.Quarantine(end, dir); err != nil || len(again) != 2 || again[0].Path != want[0].Path+".1" {
		t.Errorf("again: %v, %v", again, err)
	}
	// Nothing behind the end: no directory, no copy.
	if none, err := l.Quarantine(at[19]+1000, "/store/none"); err != nil || none != nil {
		t.Errorf("nothing to copy: %v, %v", none, err)
	}
	if _, err := mem.Stat("/store/none"); err == nil {
		t.Error("an empty quarantine directory was made")
	}
}

// TestQuarantineIsDurable: when it has returned, a crash loses neither copy nor
// log, and when it fails nothing of it is left.
func TestQuarantineIsDurable(t *testing.T) {
	mem := memfs.NewCrashable(1)
	l, _ := startLog(t, testOptions(mem, 4096))
	for i := range 6 {
		appendSized(t, l, 1000, byte(i))
	}
	l.Close()
	patchFile(t, mem, 0, 1500, []byte{'!'})
	l, _ = openLog(t, testOptions(mem, 4096))
	const dir = "/store/quarantine"
	copies, err := l.Quarantine(1000, dir)
	if err != nil || len(copies) != 2 {
		t.Fatal(copies, err)
	}
	clone := mem.CrashClone(memfs.LoseUnsynced)
	for _, c := range copies {
		if e, err := clone.Stat(c.Path); err != nil || e.Size != c.Size {
			t.Errorf("after a crash: %+v, %v", e, err)
		}
	}
	for _, op := range []faultfs.Op{faultfs.OpWrite, faultfs.OpSync, faultfs.OpSyncDir, faultfs.OpRead, faultfs.OpCreate} {
		other := "/store/other-" + op.String()
		fsys := faultfs.New(mem)
		l, _ := openLog(t, testOptions(fsys, 4096))
		fsys.Inject(faultfs.Rule{Ops: op, Nth: 2, Err: faultfs.ErrNoSpace})
		if copies, err := l.Quarantine(1000, other); !errors.Is(err, base.ErrDiskFull) || copies != nil {
			// SyncDir is called once only, besides in MkdirAll.
			if op != faultfs.OpSyncDir || err != nil {
				t.Errorf("%v fails: %v, %v", op, copies, err)
			}
			continue
		}
		if entries, err := mem.List(other); err == nil && len(entries) != 0 {
			t.Errorf("%v failed and left %v", op, entries)
		}
	}
}

// TestScanReadsLittle: a dispatcher that is nearly up to date scans a few
// records at a time, and must not pay for what it does not look at.
func TestScanReadsLittle(t *testing.T) {
	mem, at := makeLog(t, 16<<20, repeat(8000, 1000)...)
	fsys := faultfs.New(mem)
	l, _ := startLog(t, testOptions(fsys, 16<<20))
	fsys.ResetCounts()
	stop := errors.New("stop")
	n := 0
	if _, err := l.Scan(context.Background(), at[10], l.End(), ScanOptions{}, func(*message.View) error {
		if n++; n == 20 {
			return stop
		}
		return nil
	}); err != stop {
		t.Fatal(err)
	}
	const reads = faultfs.OpRead | faultfs.OpMapRead
	if got := fsys.Count(reads, ""); got.Bytes > firstChunk || got.Calls != 1 {
		t.Errorf("20 records of 1000 bytes cost %d bytes in %d reads", got.Bytes, got.Calls)
	}
	fsys.ResetCounts()
	if _, err := l.Scan(context.Background(), 0, l.End(), ScanOptions{}, func(*message.View) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if got := fsys.Count(reads, ""); got.Bytes > 8_000_000+chunkSize || got.Calls > 16 {
		t.Errorf("8000 records of 1000 bytes cost %d bytes in %d reads", got.Bytes, got.Calls)
	}
}
