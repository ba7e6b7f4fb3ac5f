package check

import (
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// walkQueues reads the queues, in parallel: rules 15 to 25 as far as they
// start from the unit, and the judgement about records without unit.
func (c *checker) walkQueues() error {
	cat := c.queues
	inputs := make([][]byte, c.o.Workers)
	err := c.parallel(len(cat.queues), func(worker, i int) error {
		q := cat.queues[i]
		w := &queueWalker{c: c, q: q, buf: inputs[worker]}
		if c.o.Level == Quick {
			w.quick()
		} else {
			w.walk()
		}
		inputs[worker] = w.buf
		return c.ctx.Err()
	})
	if err != nil {
		return err
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
	live    []int32
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
	w.peek.c, w.verify.c = c, c
	w.live = make([]int32, len(q.files))
	w.slot = q.start
	q.max = q.start
	for i := range q.files {
		w.walkFile(s, i)
		if c.ctx.Err() != nil {
			return
		}
	}
	w.summarize(s)
	// Every live unit must be owned by the record that it points at. Where the
	// numbers agree that is proved; where not, each unit is looked at.
	for i := range q.files {
		if n := w.live[i] - atomic.LoadInt32(&q.hits[i]); n > 0 && !c.rocksQueues {
			w.verifyFile(s, i)
		}
	}
	w.peek.close()
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
		} else {
			u, _ := consumequeue.DecodeUnit(b)
			w.unit(s, in.file, i, off, u)
		}
		if !w.ended {
			w.slot++
		}
	}
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
	c.queues.units.Add(1)
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
		w.live[i]++
		if findSegment(l.files, phy) < 0 {
			c.queues.inLogGap.Add(1)
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
			"%s stand for lost messages, the first one here", plural(w.fills, "fill unit"))
	}
	if n := q.notes; n != nil && n.moved > 0 {
		s.put(ruleQueueOwner, Finding{Severity: Warning, File: dir, Offset: n.movedAt * q.unitSize(), Count: n.moved,
			Meaning: "consumers get every message, but at a lower queue offset than the message says, and offsets are given twice: a Java broker lost a unit of the queue"},
			"in another slot than their records say: %s, the first one at queue offset %d", plural(n.moved, "unit"), n.movedAt)
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

// verifyFile looks up the record of every live unit of one file: rules 17, 19,
// 20 and 25. It is needed only where the records did not account for all.
func (w *queueWalker) verifyFile(s *sink, i int) {
	c, q, l := w.c, w.q, w.c.log
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
		if phy := int64(u.Physical); phy >= l.min && phy < l.end {
			w.verifyUnit(s, in.file, off, offset, u)
		}
	}
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
			s.put(ruleQueuePointer, Finding{Severity: Error, File: file, Offset: off, Count: 1, Repair: repairLog,
				Meaning: "the message is lost or damaged"}, "queue offset %d: the record at %d is damaged", offset, phy)
		}
		return
	}
	light, err := info.props.LightQueues()
	if err == nil {
		for _, lq := range light {
			if lq.Name != q.topic.name {
				continue
			}
			if int64(lq.Offset) == offset {
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
