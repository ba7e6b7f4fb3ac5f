package mappedfile

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
)

// TestPagesAreShed: of a large file the process keeps only the pages near the
// writer mapped, and what is not mapped any more is still there.
func TestPagesAreShed(t *testing.T) {
	const size, chunk = 64 << 20, 1 << 20
	dir := t.TempDir()
	q := open(t, vfs.OS(), size, func(o *Options) { o.Dirs = []string{dir} })
	f, err := q.Writable(0)
	must(t, err)
	for i := range size/chunk - 1 {
		if _, err := f.Append(record(i, chunk)); err != nil {
			t.Fatal(err)
		}
		if i%8 == 7 {
			must(t, errOf(f.Flush(0)))
		}
	}
	if got, bound := mappedKiB(t, f.Path()), (shedBehind+shedStep+16*chunk)>>10; got > bound {
		t.Errorf("%d KiB are mapped of %d that were written, expected at most %d", got, f.Wrote()>>10, bound)
	}
	for i := range size/chunk - 1 {
		wantBytes(t, q, int64(i)*chunk, record(i, chunk))
	}

	// A full file that is read from front to back, again and again.
	must(t, errOf(f.Append(record(0, chunk))))
	must(t, errOf(f.Flush(0)))
	p := make([]byte, chunk)
	for off := int64(0); off < 3*size; off += chunk {
		must(t, errOf(f.ReadAt(p, off%size)))
	}
	if got, bound := mappedKiB(t, f.Path()), (shedRead+2*chunk)>>10; got > bound {
		t.Errorf("%d KiB are mapped of a file that is read, expected at most %d", got, bound)
	}
}

// mappedKiB is how much of the file the process has resident in its mappings.
func mappedKiB(t *testing.T, path string) int {
	t.Helper()
	maps, err := os.Open("/proc/self/smaps")
	if err != nil {
		t.Skip(err)
	}
	defer maps.Close()
	sum, mine := 0, false
	for s := bufio.NewScanner(maps); s.Scan(); {
		var n int
		switch line := s.Text(); {
		case strings.Contains(strings.Fields(line)[0], "-"):
			mine = strings.HasSuffix(line, path)
		case mine && strings.HasPrefix(line, "Rss:"):
			if _, err := fmt.Sscanf(line, "Rss: %d kB", &n); err != nil {
				t.Fatal(err)
			}
			sum += n
		}
	}
	return sum
}
