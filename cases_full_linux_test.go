package gantry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// TestC37RealFileSystemFull fills a real file system of 4 MiB. What a fake
// cannot show: the process lives, no store through a mapping faults.
func TestC37RealFileSystemFull(t *testing.T) {
	for _, v := range []variant{{name: "mmap"}, {name: "nommap", noMmap: true}, {name: "async", async: true}} {
		for _, logSize := range []int64{1 << 20, 128 << 10} {
			t.Run(fmt.Sprintf("%s/log=%d", v.name, logSize), func(t *testing.T) {
				mount := t.TempDir()
				if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=4m"); err != nil {
					t.Skip("mounting needs the right to: ", err)
				}
				t.Cleanup(func() { must(t, syscall.Unmount(mount, syscall.MNT_DETACH)) })
				v.os = true
				c := newSite(t, v)
				c.dir = filepath.Join(mount, "store")
				c.opts.CommitLogFileSize, c.keyStep = logSize, 50
				realFull(t, c, filepath.Join(mount, "ballast"))
			})
		}
	}
}

func realFull(t *testing.T, c *site, ballast string) {
	must(t, os.WriteFile(ballast, make([]byte, 1<<20+1234), 0o600))
	s := c.open()
	fill := func() (stored int) {
		t.Helper()
		for i := range 10_000 {
			_, before := s.Range()
			m := fiveHundred(len(c.acked))
			res, err := s.Put(context.Background(), m)
			switch {
			case err == nil:
				c.note(res, m)
				stored++
				continue
			case !errors.Is(err, ErrDiskFull):
				t.Fatalf("put %d: %v", i, err)
			}
			if _, end := s.Range(); end != before {
				t.Fatalf("a failed put moved the end from %d to %d", before, end)
			}
			return stored
		}
		t.Fatal("never full")
		return 0
	}
	if n := fill(); n < 1000 {
		t.Errorf("only %d messages fit", n)
	}
	for range 5 {
		fill() // still full
	}
	must(t, os.Remove(ballast))
	c.clock.add(1e12) // the pauses of the index
	if n := fill(); n < 100 {
		t.Errorf("with 1 MiB more only %d messages fit", n)
	}
	must(t, syscall.Mount("tmpfs", filepath.Dir(c.dir), "tmpfs", syscall.MS_REMOUNT, "size=16m"))
	c.clock.add(1e12)
	c.put(s, fiveHundred(len(c.acked)))
	c.verify(s)
	if err := s.Stats().Failure; err != nil {
		t.Errorf("the store is read-only: %v", err)
	}
	for _, how := range []stop{stopKill, stopAbort, stopClean} {
		s = c.reopen(s, how) // kill goes on with a copy elsewhere
		c.verify(s)
	}
	mustClose(t, s)
}
