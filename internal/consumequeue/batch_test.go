package consumequeue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// batchUnit is the k-th of a queue whose units hold one, two and three messages
// in turn.
func batchUnit(k int64) BatchUnit {
	return BatchUnit{
		Physical: message.PhysicalOffset(k * recordSize), Size: recordSize, Tags: message.TagsCode(k), StoreTime: 1_700_000_000_000 + k,
		Base: message.QueueOffset(k/3*6 + []int64{0, 1, 3}[k%3]), Count: int16(k%3 + 1), Compacted: -1,
	}
}

func smallBatch(fsys vfs.FS) Options {
	return Options{FS: fsys, Dir: testDir, Kind: Batch, FileSize: 5 * BatchUnitSize, Workers: 2}
}

func batchContent(tb testing.TB, q *Queue) []BatchUnit {
	tb.Helper()
	us := make([]BatchUnit, q.Max()-q.Min()+1)
	n, err := q.ReadBatch(q.Min(), us)
	must(tb, err)
	return us[:n]
}

func TestBatchQueue(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, smallBatch(mem), all)
	q := queue(t, table, "T", 0)
	wantState(t, q, state{})
	var want []BatchUnit
	for k := range int64(12) {
		want = append(want, batchUnit(k))
		must(t, q.PutBatch(batchUnit(k)))
		must(t, q.PutBatch(batchUnit(k)))
	}
	for range 2 {
		wantState(t, q, state{0, 24, 1200})
		if diff := cmp.Diff(want, batchContent(t, q)); diff != "" {
			t.Error(diff)
		}
		for off := range message.QueueOffset(24) {
			var one [1]BatchUnit
			if n, err := q.ReadBatch(off, one[:]); n != 1 || err != nil || off < one[0].Base || off >= one[0].Next() {
				t.Errorf("ReadBatch(%d) = %+v, %d, %v", off, one, n, err)
			}
		}
		if n, err := q.ReadBatch(24, make([]BatchUnit, 1)); n != 0 || err != nil {
			t.Errorf("ReadBatch(24) = %d, %v", n, err)
		}
		table = reopen(t, table, all)
		q = table.Get("T", 0)
	}
	// Files are named by bytes, not by queue offsets.
	if got := len(tree(t, mem, testDir)); got != 3 {
		t.Errorf("%d files", got)
	}
	if b := readFile(t, mem, queueFile("T", 0, 5*BatchUnitSize)); decodeBatchUnit(b) != batchUnit(5) {
		t.Errorf("second file begins with %x", b[:BatchUnitSize])
	}

	// Expiry: by whole files, the minimum by units.
	removed, err := table.DeleteBefore(700)
	must(t, err)
	if want := []string{"T/0@0"}; !slices.Equal(deleted(removed), want) {
		t.Errorf("removed %q", deleted(removed))
	}
	wantState(t, q, state{batchUnit(7).Base, 24, 1200})
	if _, err := q.ReadBatch(0, make([]BatchUnit, 1)); !errors.Is(err, base.ErrNotFound) {
		t.Errorf("ReadBatch(0): %v", err)
	}
	_, err = table.DeleteBefore(1200)
	must(t, err)
	wantState(t, q, state{24, 24, 1200})
	must(t, q.PutBatch(batchUnit(12)))
	wantState(t, q, state{24, 25, 1300})
	table = reopen(t, table, all)
	must(t, table.CorrectMin(context.Background(), 1200))
	wantState(t, table.Get("T", 0), state{24, 25, 1300})
	must(t, table.Close())
}

func TestBatchPut(t *testing.T) {
	other := func(k int64, base message.QueueOffset, count int16) BatchUnit {
		u := batchUnit(k)
		u.Base, u.Count = base, count
		return u
	}
	var gaps []string
	opt := smallBatch(memfs.New())
	opt.OnGap = func(topic string, id int32, from, to message.QueueOffset) {
		gaps = append(gaps, fmt.Sprint(from, "-", to))
	}
	table, _ := openTable(t, opt, all)
	q := queue(t, table, "T", 0)
	for k := range int64(7) {
		must(t, q.PutBatch(batchUnit(k)))
	}
	must(t, table.WriteOut())
	for _, tc := range []struct {
		name    string
		unit    BatchUnit
		replay  bool
		changed bool
		err     error
		max     message.QueueOffset
	}{
		{"invalid: no messages", other(7, 13, 0), false, false, errAny, 13},
		{"invalid: negative base", other(7, -1, 1), false, false, errAny, 13},
		{"invalid: beyond all offsets", other(7, math.MaxInt64, 1), false, false, errAny, 13},
		{"another unit", other(2, 3, 2), false, false, base.ErrCorrupt, 13},
		{"replay: same place", func() BatchUnit { u := batchUnit(2); u.Tags = 5; return u }(), true, true, nil, 13},
		{"replay: again", func() BatchUnit { u := batchUnit(2); u.Tags = 5; return u }(), true, false, nil, 13},
		{"replay: other extent, the rest goes", other(2, 3, 2), true, true, nil, 5},
		{"replay: the rest comes back", other(3, 5, 1), true, true, nil, 6},
		{"gap", other(4, 10, 1), false, true, nil, 11},
		{"replay: into the gap", other(5, 8, 2), true, true, nil, 10},
	} {
		var changed bool
		var err error
		if tc.replay {
			changed, err = q.EnsureBatch(tc.unit)
		} else {
			err = q.PutBatch(tc.unit)
			changed = err == nil
		}
		if changed != tc.changed || !matches(err, tc.err) || q.Max() != tc.max {
			t.Errorf("%s: %t, %v, max %d, want %t, %v, %d", tc.name, changed, err, q.Max(), tc.changed, tc.err, tc.max)
		}
	}
	if want := []string{"6-10"}; !slices.Equal(gaps, want) {
		t.Errorf("gaps %q, want %q", gaps, want)
	}
	table = reopen(t, table, all)
	if got := table.Get("T", 0).Max(); got != 10 {
		t.Errorf("max %d after reopening", got)
	}
	must(t, table.Get("T", 0).TruncateTo(4)) // inside a unit
	if got := table.Get("T", 0).Max(); got != 3 {
		t.Errorf("max %d after truncating", got)
	}
	must(t, table.Close())
}

// TestKindsDoNotMix: calls for the other kind are refused.
func TestKindsDoNotMix(t *testing.T) {
	simple, _ := openTable(t, small(memfs.New()), all)
	batch, _ := openTable(t, smallBatch(memfs.New()), all)
	s, b := queue(t, simple, "T", 0), queue(t, batch, "T", 0)
	if s.Kind() != Simple || b.Kind() != Batch || simple.Kind() != Simple || batch.Kind() != Batch || Batch.String() != "BatchCQ" || Simple.String() != "SimpleCQ" {
		t.Error("kinds are wrong")
	}
	_, errEnsure := b.Ensure(0, unit(0))
	_, errEnsureBatch := s.EnsureBatch(batchUnit(0))
	_, errRead := b.Read(0, make([]Unit, 1))
	_, errReadBatch := s.ReadBatch(0, make([]BatchUnit, 1))
	_, errSearch := b.Search(0, 1, func(message.QueueOffset, Unit) (bool, error) { return true, nil })
	for i, err := range []error{b.Put(0, unit(0)), s.PutBatch(batchUnit(0)), errEnsure, errEnsureBatch, errRead, errReadBatch, errSearch} {
		if err == nil {
			t.Errorf("call %d was accepted", i)
		}
	}
}

// TestBatchOddFileSize: a file size that is no multiple of the unit size leaves
// the rest of each file unused.
func TestBatchOddFileSize(t *testing.T) {
	mem := memfs.New()
	size := int64(2*BatchUnitSize + 8)
	var b []byte
	for k := range int64(2) {
		b = AppendBatchUnit(b, batchUnit(k))
	}
	writeFile(t, mem, queueFile("T", 0, 0), b, size)
	writeFile(t, mem, queueFile("T", 0, size), AppendBatchUnit(nil, batchUnit(2)), size)
	table, report := openTable(t, smallBatch(mem), all)
	if report.FileSize != size {
		t.Errorf("file size %d, want %d", report.FileSize, size)
	}
	q := table.Get("T", 0)
	for k := int64(3); k < 7; k++ {
		must(t, q.PutBatch(batchUnit(k)))
	}
	table = reopen(t, table, all)
	got := batchContent(t, table.Get("T", 0))
	for k := range int64(7) {
		if k >= int64(len(got)) || got[k] != batchUnit(k) {
			t.Fatalf("units %+v", got)
		}
	}
	must(t, table.Close())
}
