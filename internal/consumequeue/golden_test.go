package consumequeue

import (
	"bytes"
	"context"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestGolden opens the queues of every store that Java wrote and compares them
// with what Java reads from them; then it writes the same units anew and
// compares the bytes.
func TestGolden(t *testing.T) {
	golden.Each(t, func(t *testing.T, name string) {
		m := golden.MustLoad(t, name)
		mem := memfs.New()
		must(t, golden.UnpackTo(mem, "/store", name))
		var before, after [3]map[string]string
		dirs := [3]string{testDir, testExtDir, "/store/batchconsumequeue"}
		for i, dir := range dirs {
			before[i] = tree(t, mem, dir)
		}
		discard := m.MaxPhysicalOffset
		opt := Options{FS: mem, Dir: testDir, ExtDir: testExtDir, FileSize: m.Config.ConsumeQueueFileSize, ExtFileSize: m.Config.ConsumeQueueExtFileSize}
		batchOpt := Options{FS: mem, Dir: "/store/batchconsumequeue", Kind: Batch}
		simple, report := openTable(t, opt, discard)
		batch, batchReport := openTable(t, batchOpt, discard)
		must(t, simple.CorrectMin(context.Background(), m.MinPhysicalOffset))
		must(t, batch.CorrectMin(context.Background(), m.MinPhysicalOffset))
		if report.Foreign != nil || report.Gaps != nil || report.Short != nil || report.Long != nil || report.ConfiguredSize != 0 {
			t.Errorf("report %+v", report)
		}
		if want := m.Config.BatchConsumeQueueFileSize; want != 0 && batchReport.FileSize != want {
			t.Errorf("batch files of %d bytes, want %d", batchReport.FileSize, want)
		}

		seen := 0
		for _, want := range m.Queues {
			table := simple
			if want.Type == "BatchConsumeQueue" {
				table = batch
			}
			q := table.Get(want.Topic, want.ID)
			if q == nil {
				if len(want.Units)+len(want.BatchUnits) > 0 && m.Kind != golden.Crash {
					t.Errorf("queue %s/%d is missing", want.Topic, want.ID)
				}
				continue
			}
			seen++
			if m.Kind == golden.Crash {
				goldenCrash(t, q, want)
			} else if want.Type == "BatchConsumeQueue" {
				goldenBatch(t, q, want, m.MinPhysicalOffset)
			} else {
				goldenSimple(t, q, want, m)
			}
		}
		if seen == 0 {
			t.Error("no queue was compared")
		}
		for i, dir := range dirs {
			after[i] = tree(t, mem, dir)
		}
		if diff := cmp.Diff(before, after); diff != "" {
			t.Errorf("reading changed files: %s", diff)
		}

		if m.Kind != golden.Crash && (m.MinPhysicalOffset == 0 || m.Store == "preblank") {
			goldenRewrite(t, simple)
			goldenRewrite(t, batch)
		}
		must(t, simple.Close())
		must(t, batch.Close())
	})
}

// goldenCrash: the files may be behind what Java recovered, never beside it.
func goldenCrash(t *testing.T, q *Queue, want golden.Queue) {
	for i, u := range content(t, q) {
		off := q.Min() + message.QueueOffset(i)
		if w := want.Units; off-want.Min < message.QueueOffset(len(w)) && w[off-want.Min] != (golden.Unit{Physical: u.Physical, Size: u.Size, TagsCode: u.Tags}) {
			t.Errorf("%s: unit %d is %+v, want %+v", q, off, u, w[off-want.Min])
		}
	}
}

func goldenSimple(t *testing.T, q *Queue, want golden.Queue, m *golden.Manifest) {
	min, max, wantUnits := want.Min, want.Max, want.Units
	for len(wantUnits) > 0 && wantUnits[len(wantUnits)-1].Physical >= m.MaxPhysicalOffset {
		// Delivered by 4.9 while it was being looked at; see the README.
		wantUnits = wantUnits[:len(wantUnits)-1]
		max--
	}
	for len(wantUnits) > 0 && wantUnits[0].Physical < m.MinPhysicalOffset {
		wantUnits = wantUnits[1:] // 4.9 keeps the minimum of an expired queue
		min++
	}
	if q.Min() != min || q.Max() != max {
		t.Errorf("%s: %d to %d, want %d to %d", q, q.Min(), q.Max(), min, max)
	}
	var got []golden.Unit
	for _, u := range content(t, q) {
		got = append(got, golden.Unit{Physical: u.Physical, Size: u.Size, TagsCode: u.Tags})
	}
	if diff := cmp.Diff(wantUnits, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("%s: %s", q, diff)
	}
	for _, x := range want.Ext {
		var u [1]Unit
		if n, err := q.Read(x.Offset, u[:]); n != 1 || err != nil {
			t.Fatalf("%s: unit %d: %v", q, x.Offset, err)
		}
		ext, err := q.GetExt(u[0].Tags)
		if err != nil || ext.Tags != x.TagsCode || ext.StoreTime != x.MsgStoreTime || int(x.Size) != ext.size() || !bytes.Equal(ext.Bitmap, x.BitMap) {
			t.Errorf("%s: extension of unit %d is %+v, %v, want %+v", q, x.Offset, ext, err, x)
		}
	}
}

func goldenBatch(t *testing.T, q *Queue, want golden.Queue, minPhy message.PhysicalOffset) {
	if q.Min() != want.Min || q.Max() != want.Max {
		t.Errorf("%s: %d to %d, want %d to %d", q, q.Min(), q.Max(), want.Min, want.Max)
	}
	got := make([]BatchUnit, len(want.BatchUnits)+1)
	n, err := q.ReadBatch(q.Min(), got)
	if err != nil || n != len(want.BatchUnits) {
		t.Fatalf("%s: read %d units, want %d: %v", q, n, len(want.BatchUnits), err)
	}
	for i, w := range want.BatchUnits {
		g := got[i]
		if g.Base != w.QueueOffset || g.Physical != w.Pos || g.Size != w.Size || g.Tags != w.TagsCode || g.Count != w.BatchNum || g.Compacted != w.CompactedOffset {
			t.Errorf("%s: unit %d is %+v, want %+v", q, i, g, w)
		}
		var one [1]BatchUnit
		for off := g.Base; off < g.Next(); off++ {
			if n, err := q.ReadBatch(off, one[:]); n != 1 || err != nil || one[0] != g {
				t.Errorf("%s: ReadBatch(%d) = %+v, %v, want %+v", q, off, one, err, g)
			}
		}
	}
}

// goldenRewrite puts every unit of a table into a new one and compares files.
func goldenRewrite(t *testing.T, from *Table) {
	mem := memfs.New()
	opt := from.opt
	opt.FS = mem
	to, _ := openTable(t, opt, all)
	for q := range from.All() {
		p := queue(t, to, q.Topic(), q.ID())
		if q.Kind() == Batch {
			us := make([]BatchUnit, q.Max()-q.Min())
			n, err := q.ReadBatch(q.Min(), us)
			must(t, err)
			for _, u := range us[:n] {
				must(t, p.PutBatch(u))
			}
			continue
		}
		for i, u := range content(t, q) {
			i := q.Min() + message.QueueOffset(i)
			if !IsExtAddress(u.Tags) {
				must(t, p.Put(i, u))
				continue
			}
			x, err := q.GetExt(u.Tags)
			must(t, err)
			u.Tags = x.Tags
			must(t, p.PutExt(i, u, x))
		}
	}
	must(t, to.Close())
	for _, root := range []string{from.opt.Dir, from.opt.ExtDir} {
		if root == "" {
			continue
		}
		want, got := tree(t, from.opt.FS, root), tree(t, mem, root)
		for name := range want {
			if !strings.HasPrefix(filepath.Base(name), "0") {
				delete(want, name)
			}
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("files differ from Java's: %s", diff)
		}
	}
}
