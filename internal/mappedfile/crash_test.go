package mappedfile

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// crashRecord is what the crash test appends: 'R', generation, number, length,
// then bytes that depend on all of them.
func crashRecord(gen, i, n int) []byte {
	p := record(gen*1000+i, n)
	p[0], p[1] = 'R', byte(gen)
	binary.BigEndian.PutUint16(p[2:], uint16(i))
	binary.BigEndian.PutUint16(p[4:], uint16(n))
	return p
}

// parseCrashRecord returns generation and number of the whole record at the
// start of p; ok is false when there is none.
func parseCrashRecord(p []byte) (gen, i, n int, ok bool) {
	if len(p) < 6 || p[0] != 'R' {
		return 0, 0, 0, false
	}
	gen, i, n = int(p[1]), int(binary.BigEndian.Uint16(p[2:])), int(binary.BigEndian.Uint16(p[4:]))
	if n < 6 || n > len(p) || !bytes.Equal(p[:n], crashRecord(gen, i, n)) {
		return 0, 0, 0, false
	}
	return gen, i, n, true
}

// promise is what the workload may rely on after a crash.
type promise struct {
	at      [2]map[int64]int // offset → number of every record ever appended, per generation
	flushed int64            // everything in front of it is on stable storage
	cut     int64            // -1, or: nothing of generation 0 exists at or behind it
	min     int64            // the first file is this one, or an older one
	removed int64            // files in front of it are gone
}

// crashWorkload appends, rolls, flushes, truncates and deletes until
// something fails.
func crashWorkload(fsys vfs.FS, set func(*Options)) *promise {
	const size = 2 * PageSize
	pr := &promise{at: [2]map[int64]int{{}, {}}, cut: -1}
	opt := Options{FS: fsys, Dirs: []string{testDir}, FileSize: size, Mapped: true, ReserveStep: PageSize}
	set(&opt)
	if opt.Alloc != nil {
		defer opt.Alloc.Close()
	}
	q, _, err := OpenQueue(opt)
	if err != nil {
		return pr
	}
	defer q.Close()
	appendSome := func(gen, n int) bool {
		for i := range n {
			p := crashRecord(gen, i, 600+137*(i%7))
			at, err := put(q, p)
			if err != nil {
				return false
			}
			pr.at[gen][at] = i
			if i%4 == 3 {
				if _, err := q.Commit(0); err != nil {
					return false
				}
				end, err := q.Flush(0)
				if err != nil {
					return false
				}
				pr.flushed = end
			}
		}
		return true
	}
	if !appendSome(0, 30) {
		return pr
	}
	// Cut in front of the twelfth record.
	cut := int64(-1)
	for at, i := range pr.at[0] {
		if i == 11 {
			cut = at
		}
	}
	pr.flushed = min(pr.flushed, cut)
	if q.TruncateTo(cut) != nil {
		return pr
	}
	pr.cut = cut
	if !appendSome(1, 15) {
		return pr
	}
	pr.min = q.Files()[1].Start()
	if removed, err := q.RemoveFront(1, nil); err != nil || len(removed) != 1 {
		return pr
	}
	pr.removed = pr.min
	if q.Close() == nil {
		pr.flushed = q.WroteOffset()
	}
	return pr
}

// verify opens what a crash left and compares it with the promise.
func (pr *promise) verify(fsys vfs.FS) error {
	q, rep, err := OpenQueue(Options{FS: fsys, Dirs: []string{testDir}, DefaultFileSize: 2 * PageSize, FileSize: 2 * PageSize})
	if err != nil {
		return fmt.Errorf("open: %w", err)
	}
	defer q.Close()
	if len(rep.Gaps) > 0 || len(rep.Foreign) > 0 || len(rep.Long) > 0 {
		return fmt.Errorf("report %+v", rep)
	}
	lo := q.MinOffset()
	if lo > pr.min || lo < pr.removed {
		return fmt.Errorf("first file %d, want %d to %d", lo, pr.removed, pr.min)
	}
	files := q.Files()
	content := make([]byte, int64(len(files))*q.FileSize())
	if len(content) > 0 {
		if _, err := q.ReadAt(content, lo); err != nil {
			return err
		}
	}
	at := func(off int64) []byte {
		if off < lo || off-lo >= int64(len(content)) {
			return nil
		}
		end := (off/q.FileSize()+1)*q.FileSize() - lo
		return content[off-lo : end]
	}
	// Walk as a recovery does.
	end := lo
	for p := at(end); p != nil; p = at(end) {
		gen, i, n, ok := parseCrashRecord(p)
		switch {
		case ok:
			if want, known := pr.at[gen][end]; known && want != i {
				return fmt.Errorf("record %d/%d at %d, want number %d", gen, i, end, want)
			}
			if gen == 0 && pr.cut >= 0 && end >= pr.cut {
				return fmt.Errorf("record %d of before the cut at %d came back at %d", i, pr.cut, end)
			}
			end += int64(n)
			continue
		case p[0] == '~': // the rest of the file is claimed
			end += int64(len(p))
			continue
		}
		break
	}
	if end < pr.flushed {
		return fmt.Errorf("content ends at %d, flushed was %d", end, pr.flushed)
	}
	// At most two files were ever unflushed.
	if len(files) > 2 {
		if last := files[len(files)-1]; firstNonZero(at(last.Start())) >= 0 && end < files[len(files)-2].Start() {
			return fmt.Errorf("content ends at %d, but file %d was begun", end, last.Start())
		}
	}
	// Nothing of before the cut hides behind the end.
	if pr.cut >= 0 {
		for off := range pr.at[0] {
			if gen, i, _, ok := parseCrashRecord(at(off)); ok && gen == 0 && off >= pr.cut {
				return fmt.Errorf("record %d of before the cut at %d is still at %d", i, pr.cut, off)
			}
		}
	}
	// And it goes on from there.
	if len(files) == 0 {
		end = 0
	}
	if err := q.TruncateTo(end); err != nil {
		return err
	}
	p := crashRecord(3, 0, 500)
	off, err := put(q, p)
	if err != nil {
		return fmt.Errorf("append after the crash: %w", err)
	}
	got := make([]byte, len(p))
	if _, err := q.ReadAt(got, off); err != nil || !bytes.Equal(got, p) || off < end {
		return fmt.Errorf("read what was appended at %d, after the end %d: %w, or other bytes", off, end, err)
	}
	return q.Close()
}

// TestCrashAtEveryChange runs the workload against a file system that stops
// after k changes, for every k, and looks at what each kind of crash leaves.
func TestCrashAtEveryChange(t *testing.T) {
	for i, m := range modes {
		seed := int64(20 + i)
		t.Run(m.name, func(t *testing.T) {
			states := 0
			for k := 0; ; k++ {
				mem := memfs.NewCrashable(seed)
				mem.RequireAllocated(true)
				fsys := faultfs.CrashAt(mem, k)
				promise := crashWorkload(fsys, m.set(t, 2*PageSize))
				for _, policy := range memfs.Policies() {
					if err := promise.verify(mem.CrashClone(policy, int64(k))); err != nil {
						t.Fatalf("seed %d, crash after %d changes, %v: %v", seed, k, policy, err)
					}
					states++
				}
				if !fsys.Crashed() {
					break
				}
			}
			if states < 500 {
				t.Errorf("only %d crash states seen", states)
			}
		})
	}
}
