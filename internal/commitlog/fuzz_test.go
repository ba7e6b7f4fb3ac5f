package commitlog

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

const fuzzFileSize = 1024

// fuzzLog puts data into as many log files as it needs.
func fuzzLog(t testing.TB, data []byte) *memfs.FS {
	mem := memfs.New()
	if err := mem.MkdirAll(testDir); err != nil {
		t.Fatal(err)
	}
	for start := 0; start == 0 || start < len(data); start += fuzzFileSize {
		f, err := mem.Create(filepath.Join(testDir, fmt.Sprintf("%020d", start)))
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Truncate(fuzzFileSize); err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt(data[min(start, len(data)):min(start+fuzzFileSize, len(data))], 0); err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	return mem
}

// FuzzScan takes arbitrary bytes for a log: nothing panics, hangs, or takes
// memory by what the bytes claim; what is found valid can be read in each way;
// and a log that was cut at its end is clean.
func FuzzScan(f *testing.F) {
	valid := func(sizes ...int) []byte {
		mem, _ := makeLog(f, fuzzFileSize, sizes...)
		var data []byte
		for start := int64(0); ; start += fuzzFileSize {
			if _, err := mem.Stat(filepath.Join(testDir, fmt.Sprintf("%020d", start))); err != nil {
				return data
			}
			data = append(data, readFile(f, mem, start)...)
		}
	}
	whole := valid(300, 400, 200, 300, 700, 100)
	f.Add([]byte{})
	f.Add(whole)
	f.Add(whole[:1500])
	f.Add(valid(300, 708, 92, 924))
	for _, change := range hostile(700) {
		data := append([]byte(nil), whole...)
		change(data[300:])
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 8*fuzzFileSize {
			t.Skip("more of the same")
		}
		mem := fuzzLog(t, data)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		ctx := context.Background()
		l, _ := openLog(t, testOptions(mem, fuzzFileSize))
		defer l.Close()
		tail, err := l.FindTail(ctx, 0, checkAll)
		if err != nil {
			t.Fatalf("find tail: %v", err)
		}
		if tail.End < 0 || tail.End > l.End() || tail.DataEnd < tail.End || tail.DataEnd > l.End() || (tail.Reason == nil) != (tail.DataEnd == tail.End) && tail.Reason == nil {
			t.Fatalf("tail %+v in a log that ends at %d", tail, l.End())
		}
		n := int64(0)
		var buf []byte
		end, err := l.Scan(ctx, 0, tail.End, checkAll, func(v *message.View) error {
			n++
			var again message.View
			var err error
			again, buf, err = l.ReadRecord(v.PhysicalOffset, buf, checkAll.Check)
			if err != nil || string(again.Record()) != string(v.Record()) {
				t.Fatalf("record at %d read again: %v", v.PhysicalOffset, err)
			}
			if h, err := l.ReadHeader(v.PhysicalOffset); err != nil || h != v.Header {
				t.Fatalf("header at %d: %+v, %v", v.PhysicalOffset, h, err)
			}
			return nil
		})
		if err != nil || end != tail.End || n != tail.Records {
			t.Fatalf("scan found %d records up to %d, %v; tail %+v", n, end, err, tail)
		}
		for _, phy := range []message.PhysicalOffset{tail.FirstBehind, tail.LastBehind} {
			if phy < 0 {
				continue
			}
			if _, _, err := l.ReadRecord(phy, nil, checkAll.Check); err != nil || phy < tail.End {
				t.Fatalf("record at %d behind the end: %v", phy, err)
			}
		}
		for phy := message.PhysicalOffset(0); phy < l.End(); phy += 7 {
			if _, _, err := l.ReadRecord(phy, nil, checkAll.Check); err != nil && !errors.Is(err, base.ErrCorrupt) && !errors.Is(err, base.ErrNotFound) {
				t.Fatalf("record at %d: %v", phy, err)
			}
		}
		if _, _, err := l.StartFileByOffset(tail.End, checkAll.Check); err != nil {
			t.Fatalf("start file: %v", err)
		}
		if _, err := l.Quarantine(tail.End, "/store/quarantine"); err != nil {
			t.Fatalf("quarantine: %v", err)
		}
		if err := l.TruncateTo(tail.End); err != nil {
			t.Fatalf("cut at %d: %v", tail.End, err)
		}
		again, err := l.FindTail(ctx, 0, checkAll)
		switch {
		case err != nil:
			t.Fatalf("after the cut: %v", err)
		case again.Reason != nil && again.Records == tail.Records-1:
			// The one before ended in a zero byte as well.
		case again.Reason != nil || again.Records != tail.Records || again.End != tail.End:
			t.Fatalf("after the cut: %+v, before: %+v", again, tail)
		}
		runtime.ReadMemStats(&after)
		// Two chunk buffers for each of two searches, and what the file system
		// in memory needs.
		if used := after.TotalAlloc - before.TotalAlloc; used > 24<<20 {
			t.Fatalf("allocated %d bytes", used)
		}
	})
}
