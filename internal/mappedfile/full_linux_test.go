package mappedfile

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// TestC37RealFileSystemFull fills a file system of 4 MiB. What a fake cannot
// show: the process lives, no store faults.
func TestC37RealFileSystemFull(t *testing.T) {
	const size = 1 << 20
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			dir := t.TempDir()
			if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
				t.Skip("mounting needs the right to: ", err)
			}
			defer func() { must(t, syscall.Unmount(dir, syscall.MNT_DETACH)) }()
			log := filepath.Join(dir, "log")
			must(t, os.Mkdir(log, 0o755))
			ballast := filepath.Join(dir, "ballast")
			must(t, os.WriteFile(ballast, make([]byte, 1<<20+1234), 0o600))

			q := open(t, vfs.OS(), size, m.set(t, size), func(o *Options) {
				o.Dirs, o.ReserveStep = []string{log}, 256<<10
			})
			var want []byte
			fill := func() {
				t.Helper()
				for i := range 10_000 {
					p := record(i, 512)
					at, err := put(q, p)
					if errors.Is(err, base.ErrDiskFull) {
						if q.WroteOffset() != int64(len(want)) {
							t.Fatalf("a failed append moved the end to %d", q.WroteOffset())
						}
						return
					}
					must(t, err)
					if at != int64(len(want)) {
						t.Fatalf("append at %d, want %d", at, len(want))
					}
					want = append(want, p...)
				}
				t.Fatal("never full")
			}
			fill()
			full := len(want)
			must(t, os.Remove(ballast))
			fill()
			if full < size || len(want) < full+size/2 {
				t.Errorf("appended %d bytes, then %d with 1 MiB more", full, len(want)-full)
			}
			must(t, errOf(q.Commit(0)))
			if got := mustRead(t, q, 0, len(want)); !bytes.Equal(got, want) {
				t.Error("other content")
			}
			must(t, q.Close())
		})
	}
}
