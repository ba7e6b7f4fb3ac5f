package consumequeue

import (
	"math"
	"sort"
	"sync"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// maxExcess bounds the zeros that a last file may have behind its proper end.
const maxExcess = 64 << 20

// finder searches one queue's files for the end of its units while the queue
// is being opened. It holds one file open at a time, for reading.
type finder struct {
	q           *Queue
	files       []listed
	discardFrom int64

	open vfs.File
	n    int64 // number of the open file
	page [4096]byte
}

var finders = sync.Pool{New: func() any { return new(finder) }}

// load sets the positions of a queue from its files.
func (q *Queue) load(l *listedQueue, discardFrom int64) error {
	size := q.t.opt.FileSize
	q.files.first = l.files[0].start / size
	q.files.last = l.files[len(l.files)-1].start / size
	q.files.tailUnknown = true

	f := finders.Get().(*finder)
	f.q, f.files, f.discardFrom = q, l.files, discardFrom
	defer func() {
		f.close()
		f.q, f.files = nil, nil
		finders.Put(f)
	}()
	if last := l.files[len(l.files)-1]; last.size > size+maxExcess {
		return badLength(l.path(len(l.files)-1), last.size, size)
	} else if last.size > size {
		if err := f.use(len(l.files) - 1); err != nil {
			return err
		}
		zero, err := allZero(f.open, size, last.size)
		if err != nil {
			return err
		}
		if !zero {
			return base.Corruptf(l.path(len(l.files)-1), size, "file of %d bytes with data behind byte %d, expected %d bytes", last.size, size, size)
		}
	}

	end, err := f.end()
	if err != nil {
		return err
	}
	for i, file := range l.files {
		// A file before the end is full. Behind it a crash may have left
		// files whose length was not yet on the disk.
		if file.size < size && file.start/size < end/q.t.perFile {
			return badLength(l.path(i), file.size, size)
		}
	}
	start := q.files.first * q.t.perFile
	at, raw, found, err := q.prevUnit(f.read, start, end)
	if err != nil {
		return err
	}
	stale, err := f.stale(end)
	if err != nil {
		return err
	}
	if stale || found && at+1 < end {
		q.trimDue = true
		q.t.pending.enqueue(q)
	}
	if found {
		end = at + 1
		q.hasUnits = true
		q.setLastLocked(raw)
	}
	q.end.Store(end)
	q.written.Store(end)
	q.min.Store(end)
	if !found {
		return nil
	}
	first, raw, err := f.firstUnit(start, end)
	if err != nil {
		return err
	}
	q.setMinLocked(first, raw)
	return nil
}

// use opens file i of the list, if it is not open already.
func (f *finder) use(i int) error {
	n := f.files[i].start / f.q.t.opt.FileSize
	if f.open != nil && f.n == n {
		return nil
	}
	f.close()
	file, err := f.q.t.opt.FS.Open(f.q.files.path(n), vfs.ReadOnly)
	if err != nil {
		return err
	}
	f.open, f.n = file, n
	return nil
}

func (f *finder) close() {
	if f.open != nil {
		f.open.Close() // read only: nothing can be lost
		f.open = nil
	}
}

// read is a reader over the listed files, which are all there is.
func (f *finder) read(slot int64, p []byte) (int, error) {
	t := f.q.t
	n, in := slot/t.perFile, slot%t.perFile
	i := sort.Search(len(f.files), func(i int) bool { return f.files[i].start/t.opt.FileSize >= n })
	count := min(int64(len(p))/t.unitSize, t.perFile-in)
	p = p[:count*t.unitSize]
	if i == len(f.files) || f.files[i].start/t.opt.FileSize != n {
		clear(p)
		return int(count), nil
	}
	if err := f.use(i); err != nil {
		return 0, err
	}
	return int(count), readFull(f.open, p, in*t.unitSize)
}

// stale reports whether something that is no unit of the queue stands right
// behind its end.
func (f *finder) stale(end int64) (bool, error) {
	t := f.q.t
	n := end / t.perFile
	if f.q.files.last > n {
		return true, nil
	}
	if f.q.files.last < n {
		return false, nil
	}
	p := f.page[:t.unitSize]
	if _, err := f.read(end, p); err != nil {
		return false, err
	}
	lo, hi := nonZero(p)
	return lo < hi, nil
}

// prefix returns how many units at the beginning of raw belong to the queue:
// those before the first that was never written, that lies at or behind
// discardFrom, or that goes back in the log, as stale units do, from a record
// at behind. It also returns the position of the last record.
func (f *finder) prefix(raw []byte, behind int64) (n, last int64) {
	size := f.q.t.unitSize
	for ; (n+1)*size <= int64(len(raw)); n++ {
		unit := raw[n*size : (n+1)*size]
		phy, ok := f.q.rank(unit)
		if !ok || phy >= f.discardFrom {
			break
		}
		if f.q.isUnit(unit) {
			if phy < behind {
				break
			}
			behind = phy
		}
	}
	return n, behind
}

// end returns the slot behind the last unit.
func (f *finder) end() (int64, error) {
	t := f.q.t
	// The last file that begins with a unit: nearly always the last, sometimes
	// the one before (the last may have been made and never written).
	begins := func(i int) (bool, error) {
		_, err := f.read(f.files[i].start/t.opt.FileSize*t.perFile, f.page[:t.unitSize])
		n, _ := f.prefix(f.page[:t.unitSize], math.MinInt64)
		return n == 1, err
	}
	last := len(f.files) - 1
	for tries := 0; last >= 0 && tries < 2; tries++ {
		ok, err := begins(last)
		if err != nil {
			return 0, err
		}
		if ok {
			return f.endIn(last)
		}
		last--
	}
	var failed error
	i := sort.Search(last+1, func(i int) bool {
		ok, err := begins(i)
		if err != nil {
			failed = err
		}
		return !ok
	})
	switch {
	case failed != nil:
		return 0, failed
	case i > 0:
		return f.endIn(i - 1)
	}
	return f.files[0].start / t.opt.FileSize * t.perFile, nil
}

// endIn returns the slot behind the last unit of file i, which begins with one.
// It reads pages: the first, then in steps that double, then by halving.
func (f *finder) endIn(i int) (int64, error) {
	t := f.q.t
	first := f.files[i].start / t.opt.FileSize * t.perFile
	total := min(t.perFile, f.files[i].size/t.unitSize)
	inPage := int64(len(f.page)) / t.unitSize
	// Units below lo belong to the queue, that at hi does not. The record of
	// the last unit below lo is at behind.
	lo, hi, step, behind := int64(0), total, int64(1), int64(math.MinInt64)
	probe := func(at int64) (done bool, err error) {
		p := f.page[:min(inPage, total-at)*t.unitSize]
		n, err := f.read(first+at, p)
		if err != nil {
			return false, err
		}
		c, last := f.prefix(p[:int64(n)*t.unitSize], behind)
		if c < int64(n) {
			hi = at + c
		}
		if c > 0 {
			lo, behind = at+c, last
		}
		return lo >= hi, nil
	}
	if i < len(f.files)-1 && total > inPage { // a file with a successor is full, as a rule
		if done, err := probe(total - 1); done || err != nil {
			return first + lo, err
		}
	}
	for at := int64(0); at < hi; at = lo + step*inPage {
		if done, err := probe(at); done || err != nil {
			return first + lo, err
		}
		step *= 2
	}
	for lo < hi {
		pages := (hi - lo) / inPage
		if _, err := probe(lo + pages/2*inPage); err != nil {
			return 0, err
		}
	}
	return first + lo, nil
}

// firstUnit returns the first slot in [start, end) that belongs to a message,
// and its unit. There is one.
func (f *finder) firstUnit(start, end int64) (int64, []byte, error) {
	t := f.q.t
	raw := f.page[:t.unitSize]
	if _, err := f.read(start, raw); err != nil {
		return 0, nil, err
	}
	if f.q.batch == nil && decodeUnit(raw).headFill() {
		// Head fills are a prefix of the queue.
		var failed error
		start += int64(sort.Search(int(min(end-start, math.MaxInt32)), func(i int) bool {
			if _, err := f.read(start+int64(i), raw); err != nil {
				failed = err
			}
			return !decodeUnit(raw).headFill()
		}))
		if failed != nil {
			return 0, nil, failed
		}
	}
	return f.q.nextUnit(f.read, start, end)
}
