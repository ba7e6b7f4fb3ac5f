package mappedfile

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
)

// TestCloseOnDeadDisk: closing lets go of every handle and mapping, also where
// the names of files made ahead, or of removed ones, cannot be removed: the
// file system must not stay busy.
func TestCloseOnDeadDisk(t *testing.T) {
	for _, ahead := range []bool{true, false} {
		for _, mapped := range []bool{true, false} {
			t.Run(fmt.Sprintf("allocator=%v/mapped=%v", ahead, mapped), func(t *testing.T) {
				fsys := faultfs.New(newMem())
				var alloc *Allocator
				if ahead {
					alloc = newAlloc(t, AllocatorOptions{})
				}
				q := open(t, fsys, 4096, func(o *Options) { o.Alloc, o.Mapped = alloc, mapped })
				for i := range 20 {
					if _, err := put(q, record(i, 1000)); err != nil {
						t.Fatal(err)
					}
				}
				must(t, q.Prepare(1))
				fsys.Fail(faultfs.OpMutating, "", faultfs.ErrIO)
				if _, err := q.RemoveFront(1, nil); !errors.Is(err, faultfs.ErrIO) {
					t.Errorf("remove: %v", err)
				}
				if err := q.Close(); !errors.Is(err, faultfs.ErrIO) {
					t.Errorf("close: %v", err)
				}
				if alloc != nil {
					must(t, alloc.Close())
				}
				count := func(op faultfs.Op) int64 { c := fsys.Count(op, ""); return c.Calls - c.Errors }
				if opened, closed := count(faultfs.OpCreate|faultfs.OpOpen), count(faultfs.OpClose); opened != closed {
					t.Errorf("%d files were opened, %d closed", opened, closed)
				}
				if m, u := count(faultfs.OpMap), count(faultfs.OpMapUnmap); m != u || mapped != (m > 0) {
					t.Errorf("%d mappings were made, %d unmapped", m, u)
				}
			})
		}
	}
}
