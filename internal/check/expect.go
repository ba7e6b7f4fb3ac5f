package check

import (
	"math"
	"strconv"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// expectation is the unit that a record should have in a queue.
type expectation struct {
	slot  int64 // queue offset
	phy   int64
	tags  int64
	time  int64 // store time
	size  int32
	next  int32 // of the same queue in expectations.list, -1
	level int16 // delay level of a record in the schedule topic, else 0
	num   int16 // messages, of an inner batch
	maybe bool  // brokers differ about this unit: it may be missing
}

const (
	// maxExpect is how many expectations wait for their look-up: so many that
	// most queues are read in long runs.
	maxExpect = 1 << 17
	// unitAhead is how much of a queue file is read at a time.
	unitAhead = 64 << 10
	// maxSearches bounds, for each queue and round, the searches for a unit
	// that is not in its slot.
	maxSearches = 64
)

// expectations collects what the records of the log expect of the queues and
// compares queue by queue, so that a queue's file is opened once for many
// records however the queues' records are mixed in the log.
type expectations struct {
	c       *checker
	list    []expectation
	chains  []chain // by queue.idx
	touched []int32 // queues with a chain
	units   unitReader
	ext     extReader
	sink    *sink // for read errors

	sums  recordSums
	again bool // the second time: only queues whose sums differ, in the file's group
	group int
}

type chain struct{ first, last int32 }

func (x *expectations) init(c *checker) {
	x.c = c
	x.sink = c.sink()
	if c.sums != nil {
		x.sums = recordSums{sums: c.sums, own: make([]uint64, len(c.queues.queues))}
	}
	x.units.c, x.ext.c = c, c
	x.chains = make([]chain, len(c.queues.queues))
	for i := range x.chains {
		x.chains[i] = chain{-1, -1}
	}
}

func (x *expectations) close() {
	x.units.close()
	x.ext.close()
	x.sink.flush()
}

// record notes the units that a record should have.
func (x *expectations) record(v *message.View, p *propScan, t *topic) {
	if !v.SysFlag.Queued() || x.c.rocksQueues {
		return
	}
	var q *queue
	if t != nil {
		q = x.c.queueFor(t, v.QueueID)
	}
	removed := int64(v.PhysicalOffset) < x.c.config.removed[string(v.TopicBytes())]
	if removed && !p.light() {
		return
	}
	if q != nil && q.summed && !x.again && !p.light() {
		x.sums.add(q.idx, x.c.sums.unit(int64(v.PhysicalOffset), int64(v.QueueOffset), int64(message.HashTags(text(p.tags))), v.Size))
		return
	}
	e := expectation{
		slot: int64(v.QueueOffset),
		phy:  int64(v.PhysicalOffset),
		tags: int64(message.HashTags(text(p.tags))),
		time: v.StoreTimestamp,
		size: v.Size,
		num:  1,
	}
	plain := e.tags
	if p.delay != nil && string(v.TopicBytes()) == message.ScheduleTopic {
		if level, err := strconv.ParseInt(string(p.delay), 10, 32); err == nil && level > 0 {
			e.level = int16(min(level, math.MaxInt16))
			e.tags = v.StoreTimestamp + x.c.delays.Delay(int(level))
		}
	}
	if base, num, ok := v.InnerBatch(); ok {
		e.slot, e.num = int64(base), num
	}
	if !removed {
		x.expect(q, v.Topic, v.QueueID, e)
	}
	if p.light() {
		e.tags, e.level, e.num = plain, 0, 1
		x.light(v, e)
	}
}

// light notes the units that a record should have in light queues.
func (x *expectations) light(v *message.View, e expectation) {
	list, err := v.LightQueues()
	if err != nil {
		return // reported with the record
	}
	allowed := message.AllowsLightQueues(string(v.TopicBytes()))
	for i, l := range list {
		if l.Name == "" || repeated(list[:i], l) || e.phy < x.c.config.removed[l.Name] {
			continue
		}
		id := l.QueueID(v.QueueID)
		e.slot = int64(l.Offset)
		e.maybe = !allowed || !message.IsLight(l.Name)
		var q *queue
		if t := x.c.queues.topics[l.Name]; t != nil {
			q = t.find(id, consumequeue.Simple)
		}
		x.expect(q, func() string { return l.Name }, id, e)
	}
}

// expect adds what is expected of a queue to its sum, or to the list.
func (x *expectations) expect(q *queue, topic func() string, id int32, e expectation) {
	switch {
	case q == nil:
		if !x.again && !e.maybe {
			x.c.queues.lost.add(topic(), id, e.phy)
		}
	case !q.summed:
		if !x.again {
			x.push(q, e)
		}
	case x.again:
		if x.c.sums.differs(x.group, q.idx) {
			x.push(q, e)
		}
	case !e.maybe: // a unit that may be missing makes a difference if it is there
		x.sums.add(q.idx, x.c.sums.unit(e.phy, e.slot, e.tags, e.size))
	}
}

func repeated(list []message.LightQueue, l message.LightQueue) bool {
	const most = 64 // hostile records name thousands
	for i := max(0, len(list)-most); i < len(list); i++ {
		if list[i] == l {
			return true
		}
	}
	return false
}

func (x *expectations) push(q *queue, e expectation) {
	if len(x.list) >= maxExpect {
		x.flush()
	}
	i := int32(len(x.list))
	e.next = -1
	x.list = append(x.list, e)
	ch := &x.chains[q.idx]
	if ch.last >= 0 {
		x.list[ch.last].next = i
	} else {
		ch.first = i
		x.touched = append(x.touched, q.idx)
	}
	ch.last = i
}

// flush looks all units up.
func (x *expectations) flush() {
	for _, idx := range x.touched {
		q := x.c.queues.queues[idx]
		ch := x.chains[idx]
		if q.kind == consumequeue.Batch {
			x.flushBatch(q, ch)
		} else {
			x.flushSimple(q, ch)
		}
		x.units.close()
		x.ext.close()
		x.chains[idx] = chain{-1, -1}
	}
	x.list, x.touched = x.list[:0], x.touched[:0]
}

func (x *expectations) flushSimple(q *queue, ch chain) {
	q.mu.Lock()
	defer q.mu.Unlock()
	x.units.use(q, x.sink)
	searches := 0
	lastSlot := x.list[ch.last].slot
	for i := ch.first; i >= 0; {
		e := &x.list[i]
		i = e.next
		u, file := x.units.at(e.slot, lastSlot-e.slot+1)
		switch {
		case file >= 0 && u.Size > 0 && !u.IsFill() && int64(u.Physical) == e.phy:
			atomic.AddInt32(&q.hits[file], 1)
			x.compare(q, e, u, e.slot, file)
			continue
		case e.maybe:
			continue
		}
		if searches < maxSearches {
			searches++
			if slot, u, file, ok := x.units.search(q, e); ok {
				atomic.AddInt32(&q.hits[file], 1)
				q.note(x.c).move(slot, e.slot)
				x.compare(q, e, u, slot, file)
				continue
			}
		}
		kind := missEmpty
		switch {
		case file < 0 || u.Size <= 0 || u.Physical < 0:
		case u.IsFill():
			kind = missFill
		default:
			kind = missOther
		}
		q.note(x.c).miss(kind, e.slot, e.phy)
	}
}

// move notes that a unit stands in slot instead of in want.
func (q *queueNotes) move(slot, want int64) {
	if q.moved == 0 || slot < q.movedAt {
		q.movedAt = slot
	}
	q.moved++
	q.shift = slot - want
}

// compare compares a unit with the record it belongs to: rules 18, 21 and 26.
func (x *expectations) compare(q *queue, e *expectation, u consumequeue.Unit, slot int64, file int) {
	off := slot*unitSize - q.files[file].start
	name := func() string { return x.c.show(x.c.queuePath(q, file)) }
	if u.Size != e.size {
		q.findings(x.c).add(ruleQueueSize, name(), off, "queue offset %d: the unit has size %d, the record at %d has %d", slot, u.Size, e.phy, e.size)
	}
	tags := int64(u.Tags)
	if consumequeue.IsExtAddress(u.Tags) {
		ext, ok := x.ext.resolve(q, u, e, name(), off)
		if !ok {
			return
		}
		tags = int64(ext.Tags)
	}
	if e.level == 0 {
		if tags != e.tags {
			q.findings(x.c).add(ruleQueueTags, name(), off, "queue offset %d: tags code %d, the tags of the record at %d give %d", slot, tags, e.phy, e.tags)
		}
		return
	}
	x.c.compareDelay(q, e, tags, slot, name, off)
}

// delayLevel is what the units of one schedule queue say about its delay.
type delayLevel struct {
	delay int64 // ms; valid if known
	known bool
	odd   bool // a different one was reported
}

// compareDelay compares a time of delivery with the store time.
func (c *checker) compareDelay(q *queue, e *expectation, tags, slot int64, name func() string, off int64) {
	delay := tags - e.time
	switch {
	case tags == e.tags:
		return
	case delay < 0:
		q.findings(c).add(ruleQueueTags, name(), off, "queue offset %d: delivery at %d, before the store time %d", slot, tags, e.time)
		return
	case c.o.DelayLevels != "":
		q.findings(c).add(ruleQueueTags, name(), off, "queue offset %d: delivery %d ms after the store time, level %d has %d", slot, delay, e.level, e.tags-e.time)
		return
	}
	switch n := q.note(c); {
	case !n.level.known:
		// The table of the broker is not the default one.
		n.level = delayLevel{delay: delay, known: true}
	case delay != n.level.delay && !n.level.odd:
		n.level.odd = true
		n.sink.addAs(ruleQueueTags, Info, name(), off, "queue offset %d: delivery %d ms after the store time, other units of this level have %d", slot, delay, n.level.delay)
	}
}

// unitReader reads units of one queue at a time.
type unitReader struct {
	c    *checker
	q    *queue
	sink *sink
	in   *input
	file int // index of the open file; -1
	buf  []byte
}

func (r *unitReader) use(q *queue, s *sink) {
	r.close()
	r.q, r.sink, r.file = q, s, -1
}

func (r *unitReader) close() {
	if r.in != nil {
		r.buf = r.in.buf
		r.in.close()
		r.in = nil
	}
	r.file = -1
}

// at returns the unit in slot, and the index of its file; -1 when no file has
// that slot. want is how many units from there on will be asked for next.
func (r *unitReader) at(slot, want int64) (consumequeue.Unit, int) {
	if slot < 0 || slot > math.MaxInt64/unitSize-1 {
		return consumequeue.Unit{}, -1
	}
	pos := slot * unitSize
	b, file := r.bytes(pos, unitSize, want)
	if file < 0 {
		return consumequeue.Unit{}, -1
	}
	u, _ := consumequeue.DecodeUnit(b) // b is long enough
	return u, file
}

// bytes returns the n bytes of the unit at a position of the queue.
func (r *unitReader) bytes(pos, n, want int64) ([]byte, int) {
	q := r.q
	if r.file < 0 || pos < q.files[r.file].start || pos+n > q.files[r.file].end() {
		i := findSegment(q.files, pos)
		if i < 0 || pos+n > q.files[i].end() {
			return nil, -1
		}
		r.close()
		r.in = r.c.open(r.sink, r.c.queuePath(q, i))
		if r.in == nil {
			return nil, -1
		}
		r.in.reuse(r.buf)
		r.in.size = min(r.in.size, q.files[i].size)
		r.file = i
	}
	off := pos - q.files[r.file].start
	if off+n > r.in.size {
		return nil, -1
	}
	want = min(max(want, 1), unitAhead/n) * n
	return r.in.window(off, n, want), r.file
}

// search looks for the unit of a record in another slot than its own: a broker
// that lost a unit puts the following ones into lower slots.
func (r *unitReader) search(q *queue, e *expectation) (slot int64, u consumequeue.Unit, file int, ok bool) {
	hit := func(slot int64) bool {
		u, file = r.at(slot, 1)
		return file >= 0 && !u.IsFill() && u.Size > 0 && int64(u.Physical) == e.phy
	}
	if n := q.notes; n != nil && n.shift != 0 && hit(e.slot+n.shift) {
		return e.slot + n.shift, u, file, true
	}
	if len(q.files) == 0 {
		return 0, u, -1, false
	}
	// Positions rise along the queue; fill units count as low, nothing as high.
	lo, hi := q.files[0].start/unitSize, min(e.slot, q.files[len(q.files)-1].end()/unitSize)
	for lo < hi {
		mid := lo + (hi-lo)/2
		m, f := r.at(mid, 1)
		switch {
		case f < 0 || !m.IsFill() && (m.Size <= 0 || m.Physical < 0):
			hi = mid
		case m.IsFill() || int64(m.Physical) < e.phy:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	if lo < e.slot && hit(lo) {
		return lo, u, file, true
	}
	return 0, u, -1, false
}
