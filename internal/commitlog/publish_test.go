package commitlog

import (
	"context"
	"path/filepath"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// TestPublishedAfterWritten: whoever looks at the end of the log finds bytes in
// front of it that have been written, at every moment, blank records among
// them.
func TestPublishedAfterWritten(t *testing.T) {
	for _, noMmap := range []bool{false, true} {
		writes := 0
		fsys := faultfs.New(memfs.New())
		opts := testOptions(fsys, 4096)
		opts.WriteWithoutMmap = noMmap
		l, _ := openLog(t, opts)
		if err := l.SetEnd(0, 0); err != nil {
			t.Fatal(err)
		}
		fsys.Inject(faultfs.Rule{Ops: faultfs.OpWrite | faultfs.OpMapWrite, Hook: func(c faultfs.Call) {
			writes++
			start, _ := mappedfile.ParseFileName(filepath.Base(c.Name))
			if end := int64(l.End()); end > start+c.Off {
				t.Errorf("without mmap %v: the log ends at %d while %d bytes are written at %d", noMmap, end, c.N, start+c.Off)
			}
		}})
		for i := range 30 {
			appendSized(t, l, 700, byte(i))
		}
		if writes < 35 {
			t.Errorf("only %d writes were seen", writes)
		}
	}
}

// TestFlushedIsWhatWasSynced: what is appended while a sync is under way has
// not been synced by it, and nobody may be told so.
func TestFlushedIsWhatWasSynced(t *testing.T) {
	for _, noMmap := range []bool{false, true} {
		fsys := faultfs.New(memfs.New())
		opts := testOptions(fsys, 64<<10)
		opts.WriteWithoutMmap = noMmap
		opts.FlushInterval, opts.FlushThoroughInterval = time.Hour, time.Hour
		l, _ := openLog(t, opts)
		if err := l.SetEnd(0, 0); err != nil {
			t.Fatal(err)
		}
		appendSized(t, l, 5000, 0)
		fsys.Inject(faultfs.Rule{Ops: faultfs.OpSync | faultfs.OpMapFlush, Count: 1, Hook: func(faultfs.Call) {
			appendSized(t, l, 9000, 1)
		}})
		if err := l.Flush(context.Background()); err != nil {
			t.Fatal(err)
		}
		if got := l.Flushed(); got != 5000 || l.End() != 14_000 {
			t.Errorf("without mmap %v: flushed up to %d of %d, synced were 5000", noMmap, got, l.End())
		}
		rest := fsys.Inject(faultfs.Rule{Ops: faultfs.OpSync | faultfs.OpMapFlush, Hook: func(faultfs.Call) {}})
		if err := l.Flush(context.Background()); err != nil || l.Flushed() != 14_000 || rest.Hits() == 0 {
			t.Errorf("without mmap %v: the next flush: %v, up to %d by %d syncs", noMmap, err, l.Flushed(), rest.Hits())
		}
	}
}
