package tool

import (
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// outOfTurn takes a record whose queue offset is not the next one of its queue.
// Messages may have been lost before it, the queue may have been deleted and
// begun anew, or the offset, which no checksum covers, may be damaged. Where
// the old queue has a unit for the record, that tells. Otherwise the record
// that follows it in the queue does.
func (d *derivation) outOfTurn(q *queueState, p *placed) error {
	switch {
	case d.holds(q, p.off, p.phy):
		return nil // the same again
	case d.confirmed(q, p):
		return d.commit(q, p, p.off)
	}
	if slot, ok := d.old.offsetOf(q.old, p.phy); ok && slot >= q.end && q.end >= 0 {
		return d.commit(q, p, slot)
	}
	q.held = p
	return nil
}

// holds reports whether a slot of the new queue has the record already.
func (d *derivation) holds(q *queueState, off, phy int64) bool {
	if off >= q.end || off < 0 {
		return false
	}
	if q.kind == consumequeue.Batch {
		var u [1]consumequeue.BatchUnit
		n, err := q.queue.ReadBatch(message.QueueOffset(off), u[:])
		return err == nil && n == 1 && int64(u[0].Physical) == phy
	}
	u := d.read(q, off)
	return u.Valid() && int64(u.Physical) == phy
}

// read returns a unit of the new queue, the zero unit where there is none.
func (d *derivation) read(q *queueState, off int64) consumequeue.Unit {
	var u [1]consumequeue.Unit
	if n, err := q.queue.Read(message.QueueOffset(off), u[:]); err != nil || n == 0 {
		return consumequeue.Unit{}
	}
	return u[0]
}

// confirmed reports whether the old queue had the record in the place that it
// claims.
func (d *derivation) confirmed(q *queueState, p *placed) bool {
	if q.old == nil {
		return false
	}
	if q.kind == consumequeue.Batch {
		u := d.old.batchAt(q.old, d.old.batchOf(q.old, p.off))
		return u.Valid() && int64(u.Base) == p.off && int64(u.Physical) == p.phy
	}
	u := d.old.at(q.old, p.off)
	return u.Valid() && int64(u.Physical) == p.phy
}

// settle decides about the held record of a queue, now that the next one, which
// lies behind it in the log, has the offset next.
func (d *derivation) settle(q *queueState, next int64) error {
	h := q.held
	q.held = nil
	switch {
	case next == h.off+int64(h.count): // one confirms the other
		return d.commit(q, h, h.off)
	case q.end < 0 && h.off < next, q.end >= 0 && q.end <= h.off && h.off < next:
		return d.commit(q, h, h.off) // in order, with something lost on both sides
	case q.end >= 0 && q.end < next:
		return d.commit(q, h, q.end) // it must be between
	case q.end < 0 && next > 0:
		return d.commit(q, h, next-1)
	case h.off >= q.end && q.end >= 0 && next < q.end:
		return d.commit(q, h, h.off) // the next one is the odd one
	case h.off == 0 && next < q.end:
		return d.commit(q, h, 0) // begun anew, and the second message lost
	}
	d.drop(h)
	return nil
}

// settleEnd decides about a held record that nothing follows.
func (d *derivation) settleEnd(q *queueState) error {
	h := q.held
	if h == nil {
		return nil
	}
	q.held = nil
	if h.off >= q.end || h.off == 0 && q.old == nil {
		return d.commit(q, h, h.off)
	}
	d.drop(h)
	return nil
}

// commit gives a record its place.
func (d *derivation) commit(q *queueState, p *placed, slot int64) error {
	if slot != p.off {
		if d.correct == nil || p.inner {
			d.drop(p)
			return nil
		}
		if err := d.correct(p, slot); err != nil {
			return err
		}
	}
	if slot < q.end { // the queue began anew
		if err := q.queue.TruncateTo(message.QueueOffset(slot)); err != nil {
			return err
		}
		q.end = slot
		d.forgetGaps(q, slot)
	}
	return d.put(q, slot, p.phy, p.time, p.tags, p.size, p.count)
}

// forgetGaps forgets what was left out behind slot.
func (d *derivation) forgetGaps(q *queueState, slot int64) {
	kept := d.gaps[:0]
	for _, g := range d.gaps {
		if g.q == q {
			g.to = min(g.to, slot)
		}
		if g.from < g.to {
			kept = append(kept, g)
		}
	}
	d.gaps = kept
}

// carry brings over the units of expired messages that stand in the same file
// in front of a queue's first message. They speak of records that are gone, but
// keep the file as it was.
func (d *derivation) carry(q *queueState, first int64) error {
	if q.old == nil || q.kind != consumequeue.Simple || first == 0 {
		return nil
	}
	perFile := d.tables[0].FileSize() / consumequeue.UnitSize
	from := first
	for below := d.logMin; from > first-first%perFile; from-- {
		u := d.old.at(q.old, from-1)
		if !u.Valid() || int64(u.End()) > below {
			break
		}
		below = int64(u.Physical)
	}
	return d.carryRange(q, from, first)
}

// carryRange puts the old units of [from, to).
func (d *derivation) carryRange(q *queueState, from, to int64) error {
	for slot := from; slot < to; slot++ {
		u := d.old.at(q.old, slot)
		if consumequeue.IsExtAddress(u.Tags) {
			u.Tags = 0 // its extension unit is not brought over
		}
		if _, err := q.queue.Ensure(message.QueueOffset(slot), u); err != nil {
			return err
		}
	}
	return nil
}

// light puts a record into the light queues that it names. Lists that do not
// fit together put it into none, as upstream.
func (d *derivation) light(b *logBatch, it *logItem) error {
	v, err := b.view(it)
	if err != nil {
		return err
	}
	names, err := v.LightQueues()
	if err != nil {
		return nil
	}
	tags := int64(message.HashTags(v.Props().Tags()))
	for _, l := range names {
		if it.phy < d.shape.removed[l.Name] {
			continue
		}
		id := l.QueueID(it.queueID)
		q, err := d.state([]byte(l.Name), id, true)
		if err != nil {
			return err
		}
		if q == nil || l.Offset < 0 {
			continue
		}
		if err := d.lightUnit(q, int64(l.Offset), it, tags); err != nil {
			return err
		}
	}
	return nil
}

// lightUnit puts one unit of a light queue. RocketMQ 5.4.0 can put units into
// lower slots than the offsets that the records name: the old queue shows it.
func (d *derivation) lightUnit(q *queueState, off int64, it *logItem, tags int64) error {
	was := func(slot int64) bool {
		u := d.old.at(q.old, slot)
		return u.Valid() && int64(u.Physical) == it.phy
	}
	switch {
	case q.lastPhy == it.phy:
		return nil // named twice
	case q.end < 0:
		if slot, ok := d.old.slotOf(q.old, it.phy); ok && slot < off {
			off = slot
		}
	case off > q.end && was(q.end):
		off = q.end
	case off < q.end:
		u := d.read(q, off)
		if u.Valid() {
			return nil // taken, by this record or another
		}
	}
	return d.put(q, off, it.phy, it.time, tags, it.size, 1)
}
