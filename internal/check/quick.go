package check

import (
	"math"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// quickStart returns the index of the last log file that does not begin with
// zeros: the only one that the quick level walks through.
func (c *checker) quickStart() int {
	l := c.log
	s := c.sink() // walking reports what cannot be read
	for i := len(l.files) - 1; i > 0; i-- {
		in := c.open(s, c.segmentPath(l.dirs, l.files[i]))
		if in == nil {
			continue
		}
		n := min(in.size, message.BlankSize)
		empty := trimZeros(in.window(0, n, n)) == 0
		in.close()
		if !empty {
			return i
		}
	}
	return 0
}

// quickFile looks at the first record of a file only, and takes it for full.
func (w *logWorker) quickFile(r *logFile) {
	if !w.enter(r) {
		return
	}
	defer w.leave()
	r.full, r.end = true, r.seg.size
	if w.in.size == 0 {
		return
	}
	head := w.in.window(0, min(w.in.size, message.MaxHeaderSize), pageSize)
	h, err := message.ParseHeader(head)
	switch {
	case err != nil:
		r.sink.add(fieldRule(err), r.file, 0, "the first record: %v", err)
	case h.Kind == message.KindEnd:
		r.sink.add(ruleLogRecord, r.file, 0, "the file begins with zeros, but later ones do not")
	case h.Kind == message.KindRecord && int64(h.PhysicalOffset) != r.seg.start:
		r.sink.add(ruleLogPosition, r.file, 0, "the first record says position %d instead of %d", h.PhysicalOffset, r.seg.start)
	case h.Kind == message.KindRecord:
		r.records = 1
		r.firstTime, r.lastTime, r.maxTime = h.StoreTimestamp, h.StoreTimestamp, h.StoreTimestamp
	}
}

// quick finds the end of a queue by halving its last file, and looks at the
// first and the last unit.
func (w *queueWalker) quick() {
	c, q := w.c, w.q
	if len(q.files) == 0 {
		return
	}
	s := c.sink()
	defer func() { q.take(c, s) }()
	w.peek.c, w.verify.c = c, c
	w.verify.use(q, s)
	defer w.verify.close()
	defer w.peek.close()
	size := q.unitSize()
	get := func(file int, i int64) (consumequeue.BatchUnit, bool) {
		b, f := w.verify.bytes(q.files[file].start+i*size, size, 1)
		if f < 0 {
			return consumequeue.BatchUnit{}, false
		}
		if q.kind == consumequeue.Batch {
			u, _ := consumequeue.DecodeBatchUnit(b)
			return u, u.Valid()
		}
		u, _ := consumequeue.DecodeUnit(b)
		return consumequeue.BatchUnit{Physical: u.Physical, Size: u.Size, Tags: u.Tags}, u.Physical >= 0 && u.Size > 0
	}
	// The last file that has a unit.
	file := len(q.files) - 1
	for ; file > 0; file-- {
		if _, ok := get(file, 0); ok {
			break
		}
	}
	n := search(0, q.files[file].size/size, func(i int64) bool { _, ok := get(file, i); return !ok })
	live := search(0, n, func(i int64) bool {
		u, _ := get(file, i)
		return u.Size != math.MaxInt32 && int64(u.Physical) >= c.log.end
	})
	first := q.files[file].start / size
	q.max = first + n
	path := c.show(c.queuePath(q, file))
	if live < n {
		w.ahead, w.aheadAt = n-live, place{path, live * size}
		q.max = first + live
	}
	c.queues.units.Add(n)
	if u, ok := get(0, 0); ok && u.Size != math.MaxInt32 {
		q.firstPhy = int64(u.Physical)
	}
	if live > 0 {
		u, _ := get(file, live-1)
		if u.Size != math.MaxInt32 {
			q.lastPhy, q.lastEnd = int64(u.Physical), min(int64(u.End()), c.log.end)
			offset := first + live - 1
			if q.kind == consumequeue.Batch {
				offset = int64(u.Base)
				q.max = int64(u.Next())
			}
			if q.lastPhy >= c.log.min && !c.rocksQueues {
				w.verifyUnit(s, path, (live-1)*size, offset, u)
			} else if q.lastPhy < c.log.min {
				q.expired = n
			}
		}
	}
	w.summarize(s)
}

// search returns the smallest i in [lo, hi) for which f holds, or hi. f must
// not hold before and hold behind it.
func search(lo, hi int64, f func(int64) bool) int64 {
	for lo < hi {
		if mid := lo + (hi-lo)/2; f(mid) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo
}

// quick looks at the ends of an index file.
func (w *indexWalker) quick() {
	f, s := w.f, w.s
	if wrong := w.r.Wrong(); wrong != "" {
		s.add(ruleIndexOrder, f.file, 0, "header and entries do not fit: %s", wrong)
	}
	if f.last > 0 {
		f.maxPhy = int64(w.entry(f.last).Phy)
	}
}
