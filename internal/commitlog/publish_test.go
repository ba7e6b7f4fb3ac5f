package commitlog

import (
	"path/filepath"
	"testing"

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
