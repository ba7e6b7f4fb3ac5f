package check

import (
	"math"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// walkQueues reads the queues, in parallel: rules 15 to 25 as far as they
// start from the unit, and the judgement about records without unit.
func (c *checker) walkQueues() error {
	cat := c.queues
	inputs := make([][]byte, c.o.Workers)
	each := func(f func(w *queueWalker)) error {
		return c.parallel(len(cat.queues), func(worker, i int) error {
			w := &queueWalker{c: c, q: cat.queues[i], buf: inputs[worker]}
			f(w)
			inputs[worker] = w.buf
			return c.ctx.Err()
		})
	}
	if c.o.Level == Quick {
		if err := each((*queueWalker).quick); err != nil {
			return err
		}
	} else {
		if err := each((*queueWalker).walk); err != nil {
			return err
		}
		if err := c.walkLogAgain(); err != nil {
			return err
		}
		if err := each((*queueWalker).prove); err != nil {
			return err
		}
	}
	for _, q := range cat.queues {
		cat.end = max(cat.end, q.lastEnd)
	}
	for _, q := range cat.queues {
		c.judgeMissing(q)
		if q.notes != nil {
			q.notes.sink.flush()
			q.notes = nil
		}
	}
	s := c.sink()
	c.judgeLost(s)
	c.judgeOps(s)
	c.judgeGaps(s)
	s.flush()
	return c.ctx.Err()
}

// walkLogAgain compares one by one the records and units whose sums differ.
func (c *checker) walkLogAgain() error {
	workers := make([]*logWorker, c.o.Workers)
	err := c.parallel(len(c.log.files), func(worker, i int) error {
		if !c.sums.suspect(c.sums.group(i)) {
			return nil
		}
		w := workers[worker]
		if w == nil {
			w = newLogWorker(c)
			workers[worker] = w
		}
		w.walkAgain(i)
		// What is expected next belongs to another group.
		w.expect.flush()
		return c.ctx.Err()
	})
	for _, w := range workers {
		if w != nil {
			w.finish()
		}
	}
	return err
}

// queueWalker reads one queue from its first unit to its last.
type queueWalker struct {
	c   *checker
	q   *queue
	buf []byte

	slot    int64 // of the next unit
	prev    consumequeue.BatchUnit
	havePre bool // prev is set
	seen    bool // a unit that is no fill unit was seen
	ended   bool // an invalid unit was seen
	sums    unitSums
	ahead   int64 // units behind the end of the log
	aheadAt place
	fills   int64 // fill units behind the first unit
	gapFill place
	peek    logReader
	verify  unitReader
}

// place is a file, by name for findings, and an offset.
type place struct {
	file string
	off  int64
}

func (w *queueWalker) walk() {
	c, q := w.c, w.q
	s := c.sink()
	defer func() { q.take(c, s) }()
	if q.summed {
		w.sums = unitSums{sums: c.sums, files: c.log.files, q: q.idx}
	} else {
		q.live = make([]int32, len(q.files))
	}
	w.slot = q.start
	q.max = q.start
	for i := range q.files {
		to := s
		if c.live && i == len(q.files)-1 {
			to = c.movingSink()
		}
		w.walkFile(to, i)
		if to != s {
			s.take(to)
		}
		if c.ctx.Err() != nil {
			return
		}
	}
	w.sums.settle()
	w.summarize(s)
}

// prove makes sure that each live unit is owned by the record that it points
// at. Where sums or numbers agree that is proved; elsewhere each unit is looked
// at.
func (w *queueWalker) prove() {
	c, q := w.c, w.q
	if c.rocksQueues {
		return
	}
	s := c.sink()
	defer func() { q.take(c, s) }()
	w.peek.c, w.verify.c = c, c
	defer w.peek.close()
	for i := range q.files {
		if c.ctx.Err() != nil {
			return
		}
		if n := w.liveIn(i) - int64(atomic.LoadInt32(&q.hits[i])); n > 0 {
			w.verifyFile(s, i)
		}
	}
	w.moved(s)
}

// take adds the findings of a sink to the queue's.
func (q *queue) take(c *checker, s *sink) {
	switch {
	case len(s.list) == 0:
	case q.notes == nil:
		q.notes = &queueNotes{sink: s}
	default:
		q.notes.sink.take(s)
	}
}

// walkFile reads one file of units.
func (w *queueWalker) walkFile(s *sink, i int) {
	c, q := w.c, w.q
	size := q.unitSize()
	in := c.open(s, c.queuePath(q, i))
	if in == nil {
		w.ended = true
		return
	}
	units := int64(0)
	defer func() { c.queues.units.Add(units) }()
	in.reuse(w.buf)
	defer func() {
		w.buf = in.buf
		in.close()
	}()
	in.size = min(in.size, q.files[i].size)
	w.slot = q.files[i].start / size
	told := int64(0)
	defer func() { c.progress.add(q.files[i].size - told) }()
	for off := int64(0); off+size <= in.size; off += size {
		if w.ended {
			w.behind(s, in, off)
			return
		}
		if off-told >= logAhead {
			c.progress.add(off - told)
			told = off
			if c.ctx.Err() != nil {
				return
			}
		}
		// Most queues are short: begin with a little.
		b := in.window(off, size, min(max(off, pageSize), 4*unitAhead))
		if q.kind == consumequeue.Batch {
			u, _ := consumequeue.DecodeBatchUnit(b)
			w.batchUnit(s, in.file, i, off, u)
			if u.Valid() {
				units++
			}
			if !w.ended {
				w.slot++
			}
			continue
		}
		if n := w.run(in.buffered(off)); n > 0 {
			units += n
			off += (n - 1) * size
			continue
		}
		u, _ := consumequeue.DecodeUnit(b)
		w.unit(s, in.file, i, off, u)
		if u.Valid() {
			units++
		}
		if !w.ended {
			w.slot++
		}
	}
}

// run takes the units at the beginning of b as long as nothing about them is
// remarkable: live, in order, in the same group of log files, and behind a unit
// of that kind. It returns how many.
func (w *queueWalker) run(b []byte) (n int64) {
	q, l, u := w.q, w.c.log, &w.sums
	if !w.havePre || w.ended || w.ahead > 0 || !q.summed || len(l.gaps) > 0 {
		return 0
	}
	from, to := max(u.from, l.min, int64(w.prev.End())), min(u.to, l.end)
	slot := w.slot
	var unit consumequeue.Unit
	for ; len(b) >= unitSize; b = b[unitSize:] {
		x, _ := consumequeue.DecodeUnit(b) // b is long enough
		end := int64(x.Physical) + int64(x.Size)
		if int64(x.Physical) < from || x.Size <= 0 || x.Size == math.MaxInt32 || end > to {
			break
		}
		u.sum += u.sums.unit(int64(x.Physical), slot, int64(x.Tags), x.Size)
		unit, from = x, end
		slot++
	}
	if n = slot - w.slot; n > 0 {
		w.prev = consumequeue.BatchUnit{Physical: unit.Physical, Size: unit.Size, Tags: unit.Tags}
		w.slot = slot
		q.lastPhy, q.lastEnd, q.max = int64(unit.Physical), from, slot
	}
	return n
}

// behind looks at what follows the queue's end in a file: rule 15.
func (w *queueWalker) behind(s *sink, in *input, off int64) {
	r, ok := in.nonZero(off)
	if !ok {
		return
	}
	size := w.q.unitSize()
	at := off + (r.from-off)/size*size
	valid := false
	if at+size <= in.size {
		b := in.window(at, size, size)
		if w.q.kind == consumequeue.Batch {
			u, _ := consumequeue.DecodeBatchUnit(b)
			valid = u.Valid()
		} else {
			u, _ := consumequeue.DecodeUnit(b)
			valid = u.Valid()
		}
	}
	what := "bytes that are not zero"
	if valid {
		what = "valid-looking units"
	}
	s.put(ruleQueueEnd, Finding{Severity: Warning, File: in.file, Offset: at, Count: max(1, (r.to-at)/size)},
		"%s behind the queue's end at queue offset %d", what, w.q.max)
}

// unit takes one unit of a simple queue.
func (w *queueWalker) unit(s *sink, file string, i int, off int64, u consumequeue.Unit) {
	switch {
	case u.IsFill():
		w.fill(s, file, i, off, u)
	case u.Valid():
		w.valid(s, file, i, off, consumequeue.BatchUnit{Physical: u.Physical, Size: u.Size, Tags: u.Tags})
	default:
		w.end(s, file, off, u.Physical == 0 && u.Size == 0 && u.Tags == 0)
	}
}

// end takes the first unit that is not valid.
func (w *queueWalker) end(s *sink, file string, off int64, zero bool) {
	w.ended = true
	if !zero {
		s.add(ruleQueueEnd, file, off, "queue offset %d: the unit is neither valid nor zero", w.slot)
	}
}

// fill is rule 16.
func (w *queueWalker) fill(s *sink, file string, i int, off int64, u consumequeue.Unit) {
	q := w.q
	switch {
	case !w.seen && i == 0 && u.Tags == 0:
	case u.Tags != 0:
		// Not written by Java: the place of a message that was lost.
		if w.fills == 0 {
			w.gapFill = place{file, off}
		}
		w.fills++
	default:
		s.add(ruleQueueFill, file, off, "queue offset %d: a fill unit behind the queue's first unit", w.slot)
	}
	q.max = w.slot + 1
}

// valid takes a unit that points somewhere.
func (w *queueWalker) valid(s *sink, file string, i int, off int64, u consumequeue.BatchUnit) {
	c, q, l := w.c, w.q, w.c.log
	phy, end := int64(u.Physical), int64(u.End())
	if !w.seen {
		w.seen = true
		q.firstPhy = phy
	}
	if phy >= l.end && len(l.files) > 0 {
		if w.ahead == 0 {
			w.aheadAt = place{file, off}
		}
		w.ahead++
		return
	}
	if w.havePre {
		switch prev := int64(w.prev.Physical); {
		case phy <= prev:
			s.add(ruleQueueOrder, file, off, "%s position %d after %d", w.offsetText(u), phy, prev)
		case phy < int64(w.prev.End()):
			s.add(ruleQueueOrder, file, off, "%s position %d inside the record before, %d to %d", w.offsetText(u), phy, prev, w.prev.End())
		}
		if phy < l.min && int64(w.prev.Physical) >= l.min {
			s.add(ruleQueueExpired, file, off, "%s position %d is below the log's start %d, but units before it are not", w.offsetText(u), phy, l.min)
		}
	}
	if w.ahead > 0 {
		s.add(ruleQueueOrder, file, off, "%s position %d after units behind the end of the log", w.offsetText(u), phy)
	}
	w.prev, w.havePre = u, true
	if end > l.end && len(l.files) > 0 {
		s.add(ruleQueueOrder, file, off, "%s the record at %d would end at %d, behind the end of the log at %d", w.offsetText(u), phy, end, l.end)
	}
	switch {
	case len(l.files) == 0:
		// Rule store.empty tells of that.
	case phy < l.min:
		q.expired++
	default:
		if q.summed {
			w.sums.add(phy, w.slot, int64(u.Tags), u.Size)
		} else {
			q.live[i]++
		}
		if len(l.gaps) > 0 && findSegment(l.files, phy) < 0 {
			c.queues.inLogGap.Add(1)
			c.queues.lostUnits.Add(1)
		}
	}
	q.lastPhy, q.lastEnd = phy, min(end, l.end)
	if q.kind == consumequeue.Simple {
		q.max = w.slot + 1
	} else {
		q.max = int64(u.Next())
	}
}

func (w *queueWalker) offsetText(u consumequeue.BatchUnit) string {
	if w.q.kind == consumequeue.Batch {
		return "queue offset " + itoa(int64(u.Base)) + ":"
	}
	return "queue offset " + itoa(w.slot) + ":"
}

// batchUnit takes one unit of a batch queue: rule 27 as far as it needs no
// record.
func (w *queueWalker) batchUnit(s *sink, file string, i int, off int64, u consumequeue.BatchUnit) {
	if !u.Valid() {
		w.end(s, file, off, u == consumequeue.BatchUnit{})
		return
	}
	if w.havePre && u.Base != w.prev.Next() && w.ahead == 0 {
		s.add(ruleQueueBatch, file, off, "base %d, but the unit before ends at %d", u.Base, w.prev.Next())
	}
	if !w.seen {
		w.q.start = int64(u.Base)
	}
	w.valid(s, file, i, off, u)
}

// summarize reports what is counted over the whole queue.
func (w *queueWalker) summarize(s *sink) {
	c, q := w.c, w.q
	dir := c.show(c.queueDir(q))
	if w.ahead > 0 {
		if !c.live {
			c.queues.lostUnits.Add(w.ahead)
		}
		sev := Error
		switch {
		case c.live:
			sev = Info
		case c.abort:
			sev = Warning
		}
		s.put(ruleQueueAhead, Finding{Severity: sev, File: w.aheadAt.file, Offset: w.aheadAt.off, Count: w.ahead},
			"%s from here on behind the end of the log at %d", plural(w.ahead, "unit"), c.log.end)
	}
	if w.fills > 0 {
		s.put(ruleQueueFill, Finding{Severity: Info, File: w.gapFill.file, Offset: w.gapFill.off, Count: w.fills, Repair: repairNone,
			Meaning: "these messages were lost before; a Java consumer skips the rest of the log file there"},
			"%s in the place of lost messages, the first one here", plural(w.fills, "fill unit"))
	}
	if q.expired > 0 && q.lastPhy < c.log.min {
		switch {
		case !c.newer:
			s.put(ruleQueueExpired, Finding{Severity: Warning, File: dir, Count: q.expired,
				Meaning: "a broker of 4.9 answers a read at the queue's start with foreign bytes or an error; 5.x and Gantry know that the queue is empty"},
				"all %d units point below the start of the log at %d", q.expired, c.log.min)
		default:
			s.put(ruleQueueExpired, Finding{Severity: Info, File: dir, Count: q.expired},
				"all %d units point below the start of the log at %d; the queue goes on at offset %d", q.expired, c.log.min, q.max)
		}
	}
}

// moved reports the units that stand in another slot than their records say.
func (w *queueWalker) moved(s *sink) {
	c, q := w.c, w.q
	if n := q.notes; n != nil && n.moved > 0 {
		s.put(ruleQueueOwner, Finding{Severity: Warning, File: c.show(c.queueDir(q)), Offset: n.movedAt * q.unitSize(), Count: n.moved,
			Meaning: "consumers get every message, but at a lower queue offset than the message says, and offsets are given twice: a Java broker lost a unit of the queue"},
			"in another slot than their records say: %s, the first one at queue offset %d", plural(n.moved, "unit"), n.movedAt)
	}
}

// doubtful reports whether a unit at a position of the log may belong to no
// record: where it was not compared by sums, or these differ.
func (w *queueWalker) doubtful(phy int64) bool {
	c, q := w.c, w.q
	if phy < c.log.min || phy >= c.log.end {
		return false
	}
	if !q.summed {
		return true
	}
	i := findSegment(c.log.files, phy)
	return i >= 0 && c.sums.differs(c.sums.group(i), q.idx)
}

// liveIn counts the units of a file that are doubtful.
func (w *queueWalker) liveIn(i int) (n int64) {
	q := w.q
	if !q.summed {
		return int64(q.live[i])
	}
	for g := range w.c.sums.differences {
		if w.c.sums.differs(g, q.idx) {
			w.eachDoubtful(i, func(*input, int64, int64, consumequeue.BatchUnit) { n++ })
			break
		}
	}
	return n
}

// eachDoubtful calls f for the doubtful units of one file, with the offset in
// the file and in the queue.
func (w *queueWalker) eachDoubtful(i int, f func(in *input, off, offset int64, u consumequeue.BatchUnit)) {
	c, q := w.c, w.q
	s := &sink{rep: newReporter(nil, 0)} // what cannot be read has been reported
	in := c.open(s, c.queuePath(q, i))
	if in == nil {
		return
	}
	in.reuse(w.buf)
	defer func() {
		w.buf = in.buf
		in.close()
	}()
	in.size = min(in.size, q.files[i].size)
	size := q.unitSize()
	slot := q.files[i].start / size
	for off := int64(0); off+size <= in.size; off, slot = off+size, slot+1 {
		if slot%256 == 0 && c.ctx.Err() != nil {
			return
		}
		b := in.window(off, size, 4*unitAhead)
		var u consumequeue.BatchUnit
		offset := slot
		if q.kind == consumequeue.Batch {
			u, _ = consumequeue.DecodeBatchUnit(b)
			if !u.Valid() {
				return
			}
			offset = int64(u.Base)
		} else {
			su, _ := consumequeue.DecodeUnit(b)
			if su.IsFill() {
				continue
			}
			if !su.Valid() {
				return
			}
			u.Physical, u.Size, u.Tags = su.Physical, su.Size, su.Tags
		}
		if w.doubtful(int64(u.Physical)) {
			f(in, off, offset, u)
		}
	}
}

// verifyFile looks up the record of every doubtful unit of one file: rules 17,
// 19, 20 and 25. It is needed only where the records did not account for all.
func (w *queueWalker) verifyFile(s *sink, i int) {
	w.eachDoubtful(i, func(in *input, off, offset int64, u consumequeue.BatchUnit) {
		w.verifyUnit(s, in.file, off, offset, u)
	})
}

func (w *queueWalker) verifyUnit(s *sink, file string, off, offset int64, u consumequeue.BatchUnit) {
	c, q := w.c, w.q
	phy := int64(u.Physical)
	info, err := w.peek.look(phy)
	if err != nil {
		if findSegment(c.log.files, phy) < 0 {
			return // rule 2 reports the gap and how many units point into it
		}
		if c.log.isDamaged(phy) {
			c.queues.lostUnits.Add(1)
			s.put(ruleQueuePointer, Finding{Severity: Error, File: file, Offset: off, Count: 1, Repair: repairLog,
				Meaning: "the message is lost"}, "queue offset %d: the record at %d is damaged: %v", offset, phy, err)
			return
		}
		s.add(ruleQueuePointer, file, off, "queue offset %d: no record at %d: %v", offset, phy, err)
		return
	}
	if info.Size != u.Size {
		s.add(ruleQueueSize, file, off, "queue offset %d: the unit has size %d, the record at %d has %d", offset, u.Size, phy, info.Size)
	}
	if !info.SysFlag.Queued() {
		s.add(ruleQueueTransaction, file, off, "queue offset %d: the record at %d is a prepared or rolled back message", offset, phy)
		return
	}
	base := int64(info.QueueOffset)
	if q.kind == consumequeue.Batch && info.SysFlag&message.InnerBatch != 0 {
		if b, _, ok := info.props.InnerBatch(); ok {
			base = int64(b)
		}
	}
	if info.topic == q.topic.name && info.QueueID == q.id && base == offset {
		if c.log.isDamaged(phy) {
			c.queues.lostUnits.Add(1)
			s.put(ruleQueuePointer, Finding{Severity: Error, File: file, Offset: off, Count: 1, Repair: repairLog,
				Meaning: "the message is lost or damaged"}, "queue offset %d: the record at %d is damaged", offset, phy)
		}
		return
	}
	light, err := info.props.LightQueues()
	if err == nil {
		for _, lq := range light {
			switch id := lq.QueueID(info.QueueID); {
			case lq.Name != q.topic.name:
				continue
			case q.id != id:
				s.add(ruleQueueOwner, file, off, "queue offset %d: the record at %d belongs to queue %d of %s, offset %d", offset, phy, id, lq.Name, lq.Offset)
				return
			case int64(lq.Offset) == offset:
				return
			}
			s.addAs(ruleQueueOwner, Warning, file, off, "queue offset %d: the record at %d names this queue with offset %d", offset, phy, lq.Offset)
			return
		}
	}
	if info.topic == q.topic.name && info.QueueID == q.id {
		s.add(ruleQueueOwner, file, off, "queue offset %d: the record at %d has offset %d", offset, phy, base)
		return
	}
	s.add(ruleQueueOwner, file, off, "queue offset %d: the record at %d belongs to %s/%d, offset %d", offset, phy, info.topic, info.QueueID, base)
	w.shared(s, file, off, info, base)
}

// shared is rule 25: the record is in its own queue as well.
func (w *queueWalker) shared(s *sink, file string, off int64, info recordInfo, base int64) {
	t := w.c.queues.topics[info.topic]
	if t == nil {
		return
	}
	own := t.find(info.QueueID, consumequeue.Simple)
	if own == nil || own == w.q {
		return
	}
	w.verify.use(own, s)
	defer w.verify.close()
	if u, f := w.verify.at(base, 1); f >= 0 && u.Valid() && u.Physical == info.PhysicalOffset {
		s.add(ruleQueueShared, file, off, "the record at %d is also in queue %s/%d, which it belongs to", info.PhysicalOffset, info.topic, info.QueueID)
	}
}
