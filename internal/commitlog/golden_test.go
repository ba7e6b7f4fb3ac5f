package commitlog

import (
	"bytes"
	"context"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestGolden opens the logs that Java wrote and finds what Java found in them,
// and, where Java cuts off records that are valid, that they are there. Then it
// appends the same records and compares the bytes.
func TestGolden(t *testing.T) {
	golden.Each(t, func(t *testing.T, name string) {
		m := golden.MustLoad(t, name)
		mem := memfs.New()
		if err := golden.UnpackTo(mem, "/golden", name); err != nil {
			t.Fatal(err)
		}
		opts := testOptions(mem, 0)
		opts.Dirs = m.Config.CommitLogDirs("/golden")
		l, report := openLog(t, opts)
		tail, err := l.FindTail(context.Background(), l.Min(), checkAll)
		if err != nil {
			t.Fatal(err)
		}
		if l.FileSize() != m.Config.CommitLogFileSize || len(report.Gaps)+len(report.Foreign)+len(report.Short)+len(report.Long) > 0 {
			t.Errorf("report %+v, want file size %d", report, m.Config.CommitLogFileSize)
		}
		if l.Min() != m.MinPhysicalOffset || tail.End != m.MaxPhysicalOffset || tail.Records != int64(len(m.Messages)) {
			t.Errorf("log [%d, %d) of %d records, in Java [%d, %d) of %d: %+v",
				l.Min(), tail.End, tail.Records, m.MinPhysicalOffset, m.MaxPhysicalOffset, len(m.Messages), tail)
		}
		torn, damaged := false, 0
		_, kind := golden.SplitName(name)
		switch kind {
		case "crash-torn":
			torn = true
		case "crash-middle":
			damaged = 348
		case "badtopic": // an acknowledged record that nobody can read, and three behind it
			damaged = 3
		}
		if (tail.Reason != nil) != (torn || damaged > 0) || tail.ValidBehind != damaged || tail.PowerLoss != torn {
			t.Errorf("tail %+v", tail)
		}
		if tail.Stale != 0 || tail.Disorder != 0 || tail.Partial {
			t.Errorf("tail %+v", tail)
		}
		var recs [][]byte
		end, err := l.Scan(context.Background(), l.Min(), tail.End, checkAll, func(v *message.View) error {
			want, got := &m.Messages[len(recs)], v.Decode()
			if d := want.Diff(&got); d != "" {
				t.Error(d)
			}
			recs = append(recs, bytes.Clone(v.Record()))
			return nil
		})
		if err != nil || end != tail.End {
			t.Fatalf("scan ended at %d: %v", end, err)
		}
		if kind != "blankfile" && len(opts.Dirs) == 1 {
			appendGolden(t, l, tail.End, m, recs)
		}
	})
}

// copied is an Appender of records that exist already.
type copied []byte

func (c copied) Fill(message.PhysicalOffset, int64) ([]byte, error) { return c, nil }
func (c copied) Appended(message.PhysicalOffset, int64)             {}

// appendGolden appends the records of a golden log to a new one. It must put
// them at the same places, and blanks between the files, so that the files are
// equal to the byte. That cannot be for a log in which a whole file was used up
// for a record that fits into none: we refuse it, see TestA2RecordLargerThanFile.
func appendGolden(t *testing.T, java *Log, end message.PhysicalOffset, m *golden.Manifest, recs [][]byte) {
	t.Helper()
	l, _ := openLog(t, testOptions(memfs.New(), java.FileSize()))
	if err := l.SetEnd(java.Min(), 0); err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(recs); {
		// A batch goes to the next file as a whole. Where Java began a file too
		// early for one record, as many are one batch as do not fit.
		at := m.Messages[i].PhysicalOffset
		group, n := recs[i], 1
		if at != l.End() {
			rest := l.FileSize() - int64(l.End())%l.FileSize()
			for ; int64(len(group)) <= rest-message.BlankSize && i+n < len(recs); n++ {
				group = append(bytes.Clone(group), recs[i+n]...)
			}
		}
		phy, _, err := l.Append(len(group), copied(group))
		if err != nil || phy != at {
			t.Fatalf("record of %d bytes at %d, in Java %d: %v", len(group), phy, at, err)
		}
		i += n
	}
	for _, f := range l.Files() {
		size := min(f.End, end) - f.Start // what is behind the end is not ours to write
		ours, theirs := make([]byte, size), make([]byte, size)
		if err := l.Read(f.Start, ours); err != nil {
			t.Fatal(err)
		}
		if err := java.Read(f.Start, theirs); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(ours, theirs) {
			t.Errorf("%s differs from Java's", f.Path)
		}
	}
}
