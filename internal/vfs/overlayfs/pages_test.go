package overlayfs

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// TestPages writes, reads and cuts files that have many more pages than may stay
// in memory, against plain slices: with room for the others, without any, and
// with a disk that is full before long.
func TestPages(t *testing.T) {
	for _, tt := range []struct {
		name string
		temp func(f vfs.FS) (vfs.File, error)
		full bool
	}{
		{"room", func(f vfs.FS) (vfs.File, error) { return f.Create("/temp") }, false},
		{"no file", func(vfs.FS) (vfs.File, error) { return nil, errors.New("no folder for it") }, true},
		{"disk full", func(f vfs.FS) (vfs.File, error) {
			limited := faultfs.New(f)
			limited.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Nth: 20, Err: faultfs.ErrNoSpace})
			return limited.Create("/temp")
		}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			other := memfs.New()
			base := memfs.New()
			o := New(base)
			o.pages.limit = 8
			o.pages.temp = func() (vfs.File, error) { return tt.temp(other) }
			rng := rand.New(rand.NewPCG(7, 7))
			const size = 60 * pageSize
			var files [3]vfs.File
			var want [3][]byte
			for i, name := range []string{"/a", "/b", "/c"} {
				f, err := o.Create(name)
				if err != nil {
					t.Fatal(err)
				}
				files[i] = f
			}
			check := func(i int) {
				t.Helper()
				got := make([]byte, len(want[i]))
				if n, err := files[i].ReadAt(got, 0); n != len(got) || !bytes.Equal(got, want[i]) {
					t.Fatalf("file %d is not as it was written: %d bytes, %v", i, n, err)
				}
			}
			for step := range 3000 {
				i := rng.IntN(3)
				switch rng.IntN(20) {
				case 0:
					n := rng.Int64N(size)
					if err := files[i].Truncate(n); err != nil {
						t.Fatal(err)
					}
					if n < int64(len(want[i])) {
						want[i] = want[i][:n]
					} else {
						want[i] = append(want[i], make([]byte, n-int64(len(want[i])))...)
					}
				case 1:
					check(i)
				default:
					p := make([]byte, 1+rng.IntN(3*pageSize))
					if rng.IntN(4) > 0 { // else zeros
						for k := range p {
							p[k] = byte(step + k)
						}
					}
					off := rng.Int64N(size)
					if n, err := files[i].WriteAt(p, off); n != len(p) || err != nil {
						t.Fatal(n, err)
					}
					if more := int(off) + len(p) - len(want[i]); more > 0 {
						want[i] = append(want[i], make([]byte, more)...)
					}
					copy(want[i][off:], p)
				}
			}
			for i := range files {
				check(i)
			}
			if held := len(o.pages.held); (held > o.pages.limit) != tt.full || held != len(o.pages.ring) {
				t.Errorf("%d pages in memory, %d in the ring, the limit is %d", held, len(o.pages.ring), o.pages.limit)
			}
			// A file that loses its name gives its pages back with its last user.
			if err := errors.Join(o.Remove("/a"), o.Rename("/b", "/c")); err != nil {
				t.Fatal(err)
			}
			check(0)
			check(2)
			for _, f := range files {
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			}
			n := 0
			for _, ref := range o.roots["/"].children["c"].pages {
				if ref > 0 {
					n++
				}
			}
			if got := int(o.pages.last) - len(o.pages.free); got != n {
				t.Errorf("%d pages in use, %d in the file that is left", got, n)
			}
		})
	}
}
