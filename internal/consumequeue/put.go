package consumequeue

import (
	"errors"
	"fmt"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/message"
)

// Put stores the unit of the message with queue offset off. Slots between Max
// and off become fill units, which Options.OnGap is told about. Below Max, an
// equal unit is a duplicate and nil; a fill unit or an unwritten slot is
// replaced; anything else is a conflict, which is a *base.CorruptError. A unit
// below Min whose record has expired is dropped. A record that lies before the
// last unit's shows that the last unit is damaged; the unit is stored and the
// logger warned, and a replay puts the queue right.
//
// The unit is in memory and visible when Put returns; WriteOut and Sync bring
// it further. After an error, which wraps base.ErrDiskFull when there is no
// space, nothing has changed and the same Put can be repeated.
func (q *Queue) Put(off message.QueueOffset, u Unit) error {
	if q.appendFast(off, u) {
		return nil
	}
	_, err := q.put(off, u, nil, false)
	return err
}

// ErrOffset refuses a queue offset that no queue can have. A record that holds
// one is damaged.
var ErrOffset = errors.New("queue offset is out of range")

// Ensure is Put for replaying the log: afterwards the slot holds u, whatever
// was there, unless its record has expired. It reports whether something had
// to change.
func (q *Queue) Ensure(off message.QueueOffset, u Unit) (changed bool, err error) {
	if q.appendFast(off, u) {
		return true, nil
	}
	return q.put(off, u, nil, true)
}

// appendFast does what nearly every call needs: the next slot, and room in the
// buffer. It reports whether that was so.
func (q *Queue) appendFast(off message.QueueOffset, u Unit) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if int64(off) != q.end.Load() || !q.hasUnits || cap(q.buf)-len(q.buf) < UnitSize || !u.Valid() ||
		int64(u.Physical) < q.maxPhysical.Load() || q.batch != nil || q.t.failed.Load() != nil {
		return false
	}
	q.buf = AppendUnit(q.buf, u)
	q.maxPhysical.Store(int64(u.End()))
	q.end.Store(int64(off) + 1)
	return true
}

// PutExt is Put with an extension unit: what the queue's slot holds is the
// address of x, or u itself in a table without extensions and when x is too
// long. x.Tags should equal u.Tags.
func (q *Queue) PutExt(off message.QueueOffset, u Unit, x ExtUnit) error {
	_, err := q.put(off, u, &x, false)
	return err
}

// EnsureExt is Ensure with an extension unit. A slot that already leads to an
// extension unit with the same tags code and store time is left as it is.
func (q *Queue) EnsureExt(off message.QueueOffset, u Unit, x ExtUnit) (changed bool, err error) {
	return q.put(off, u, &x, true)
}

// noRoomError: the table's buffers are full. Queue.mu must be released to make
// room; then the put is tried again.
type noRoomError struct{ need int64 }

func (e *noRoomError) Error() string { return "buffers are full" }

// retry calls put, which takes Queue.mu and may return a *noRoomError, until it
// has room. force lets it exceed the limit.
func (t *Table) retry(put func(force bool) error) error {
	for force := false; ; {
		err := put(force)
		full, ok := err.(*noRoomError)
		if !ok {
			return err
		}
		if force, err = t.relieve(full.need); err != nil {
			return err
		}
	}
}

// putting is one call of put, over its attempts.
type putting struct {
	slot   int64
	unit   Unit
	ext    *ExtUnit
	replay bool
	force  bool // exceed the limit of buffers

	changed        bool
	gapFrom, gapTo int64 // slots that became fills; reported once it is done
}

func (q *Queue) put(off message.QueueOffset, u Unit, x *ExtUnit, replay bool) (bool, error) {
	if q.batch != nil {
		return false, fmt.Errorf("queue %s is a batch queue", q)
	}
	if !u.Valid() {
		return false, fmt.Errorf("queue %s: invalid unit %+v for queue offset %d", q, u, off)
	}
	if off < 0 || int64(off) >= q.t.maxSlot {
		return false, fmt.Errorf("queue %s: %w: %d", q, ErrOffset, off)
	}
	if q.t.opt.ExtDir == "" {
		x = nil
	}
	p := putting{slot: int64(off), unit: u, ext: x, replay: replay}
	err := q.t.retry(func(force bool) error {
		q.mu.Lock()
		defer q.mu.Unlock()
		p.force = force
		return q.putLocked(&p)
	})
	if p.gapFrom < p.gapTo {
		q.gap(message.QueueOffset(p.gapFrom), message.QueueOffset(p.gapTo))
	}
	if err != nil {
		return false, fmt.Errorf("put queue offset %d into consume queue %s: %w", off, q, err)
	}
	return p.changed, nil
}

// gap reports queue offsets that belong to no message.
func (q *Queue) gap(from, to message.QueueOffset) {
	q.t.opt.Logger.Warn("gap in consume queue", "topic", q.topic, "queue", q.id, "from", int64(from), "to", int64(to))
	if q.t.opt.OnGap != nil {
		q.t.opt.OnGap(q.topic, q.id, from, to)
	}
}

// usableLocked is the error of a queue that cannot be written any more.
func (q *Queue) usableLocked() error {
	if err := q.t.failure(); err != nil {
		return err
	}
	if q.dead {
		return errRemoved
	}
	return nil
}

func (q *Queue) putLocked(p *putting) error {
	if err := q.usableLocked(); err != nil {
		return err
	}
	if !q.hasUnits {
		return q.putFirstLocked(p)
	}
	end := q.end.Load()
	if p.slot < end {
		return q.putBelowLocked(p)
	}
	if p.slot > end {
		if err := q.fillGapLocked(p, end); err != nil {
			return err
		}
	}
	return q.appendLocked(p)
}

// appendLocked puts the unit at the end, which is its slot.
func (q *Queue) appendLocked(p *putting) error {
	if err := q.roomLocked(UnitSize, p.force); err != nil {
		return err
	}
	u, err := q.withExtLocked(p)
	if err != nil {
		return err
	}
	if phy := q.maxPhysical.Load(); int64(u.Physical) < phy && q.hasUnits {
		q.t.opt.Logger.Warn("consume queue unit goes back in the log", "topic", q.topic, "queue", q.id,
			"queueOffset", p.slot, "physicalOffset", int64(u.Physical), "behind", phy)
	}
	q.buf = AppendUnit(q.buf, u)
	if !q.hasUnits {
		q.hasUnits = true
		q.minPhysical = int64(u.Physical)
	}
	q.maxPhysical.Store(int64(u.End()))
	q.end.Store(p.slot + 1)
	p.changed = true
	return nil
}

// withExtLocked is the unit as the slot will hold it.
func (q *Queue) withExtLocked(p *putting) (Unit, error) {
	u := p.unit
	if p.ext != nil {
		addr, err := q.extLocked().append(*p.ext)
		if err != nil {
			return u, err
		}
		if IsExtAddress(addr) {
			u.Tags = addr
		}
	}
	return u, nil
}

// putFirstLocked puts the first unit of a queue that has none. The queue moves
// to the unit's slot: what files it may have hold no message.
func (q *Queue) putFirstLocked(p *putting) error {
	if !q.files.emptyLocked() {
		if p.slot/q.t.perFile != q.files.first {
			if err := q.files.removeAllLocked(); err != nil {
				return err
			}
		} else {
			q.files.tailUnknown = true // fill units may stand behind the slot
		}
	}
	q.changing.Add(1)
	q.min.Store(p.slot)
	q.written.Store(p.slot)
	q.end.Store(p.slot)
	q.changing.Add(1)
	q.buf = q.buf[:0]
	q.headOpen = p.slot%q.t.perFile != 0
	return q.appendLocked(p)
}

// fillGapLocked makes the slots [end, p.slot) fill units. Long gaps go to the
// files at once, short ones wait in the buffer with the unit.
func (q *Queue) fillGapLocked(p *putting, end int64) error {
	n := p.slot - end
	if n > q.t.opt.MaxGap {
		return &GapError{q.topic, q.id, message.QueueOffset(end), message.QueueOffset(p.slot)}
	}
	fill := q.gapFill()
	if size := (n + 1) * UnitSize; size <= maxBuffer {
		if err := q.roomLocked(int(size), p.force); err != nil {
			return err
		}
		for range n {
			q.buf = AppendUnit(q.buf, fill)
		}
	} else {
		if err := q.writeOutLocked(); err != nil {
			return err
		}
		if err := q.prepareLocked(end); err != nil {
			return err
		}
		if err := q.fillLocked(end, p.slot, fill); err != nil {
			return err
		}
		q.written.Store(p.slot)
	}
	q.end.Store(p.slot)
	if q.min.Load() == end { // nothing live before the gap, so nothing in it
		q.min.Store(p.slot)
	}
	p.gapFrom, p.gapTo = end, p.slot
	return nil
}

// gapFill is the unit for slots behind the last message.
func (q *Queue) gapFill() Unit {
	return Unit{Size: fillSize, Tags: message.TagsCode(q.maxPhysical.Load())}
}

// fillLocked writes u into the slots [from, to) of the files.
func (q *Queue) fillLocked(from, to int64, u Unit) error {
	const chunk = 3276 // units in 64 KiB
	if from >= to {
		return nil
	}
	buf := make([]byte, 0, min(chunk, to-from)*UnitSize)
	for len(buf) < cap(buf) {
		buf = AppendUnit(buf, u)
	}
	for from < to {
		n := min(int64(len(buf)/UnitSize), to-from, q.t.perFile-from%q.t.perFile)
		if err := q.files.writeAtLocked(from/q.t.perFile, buf[:n*UnitSize], from%q.t.perFile*UnitSize); err != nil {
			return err
		}
		from += n
	}
	return nil
}

// startLocked is the first slot that the queue has a place for.
func (q *Queue) startLocked() int64 {
	if q.files.emptyLocked() {
		w := q.written.Load()
		if q.headOpen {
			w -= w % q.t.perFile
		}
		return w
	}
	return q.files.first * q.t.perFile
}

// putBelowLocked handles a unit for a slot below the end.
func (q *Queue) putBelowLocked(p *putting) error {
	low := q.min.Load()
	if p.slot < low {
		if int64(p.unit.Physical) < q.t.minPhysical.Load() {
			return nil // expired
		}
		// A live record before the first one that is known: the units are in
		// the files from now on, so that the slots before it can be reached.
		if err := q.writeOutLocked(); err != nil {
			return err
		}
		if p.slot < q.startLocked() {
			if err := q.prependLocked(p.slot); err != nil {
				return err
			}
		}
	}
	var b [UnitSize]byte
	if _, err := q.readLocked(p.slot, b[:]); err != nil {
		return err
	}
	old := decodeUnit(b[:])
	same, err := q.sameLocked(old, p)
	if err != nil {
		return err
	}
	if same {
		if p.slot < low {
			q.lowerMinLocked(p.slot, old)
		}
		return nil
	}
	if old.Valid() && !p.replay {
		n, pos := p.slot/q.t.perFile, p.slot%q.t.perFile*UnitSize
		return base.Corruptf(q.files.path(n), pos, "slot of queue offset %d holds %+v, not %+v", p.slot, old, p.unit)
	}
	u, err := q.withExtLocked(p)
	if err != nil {
		return err
	}
	if p.slot < low && old.headFill() {
		// The slots up to the old minimum are gaps from now on: head fills must
		// stand before the first unit only.
		fill := Unit{Size: fillSize, Tags: message.TagsCode(u.End())}
		if err := q.fillLocked(p.slot+1, low, fill); err != nil {
			return err
		}
	}
	if err := q.replaceLocked(p.slot, AppendUnit(b[:0], u)); err != nil {
		return err
	}
	p.changed = true
	if p.slot <= low {
		q.lowerMinLocked(p.slot, u)
	}
	if p.slot == q.end.Load()-1 {
		q.maxPhysical.Store(int64(u.End()))
	}
	return nil
}

// sameLocked reports whether old is what p wants to put.
func (q *Queue) sameLocked(old Unit, p *putting) (bool, error) {
	if old == p.unit {
		return true, nil
	}
	if old.Physical != p.unit.Physical || old.Size != p.unit.Size || !IsExtAddress(old.Tags) {
		return false, nil
	}
	if p.ext == nil {
		return true, nil // made with extensions on
	}
	x, err := q.extLocked().get(old.Tags)
	if err != nil {
		if errors.Is(err, base.ErrNotFound) || errors.Is(err, base.ErrCorrupt) {
			return !p.replay, nil // a replay makes the extension unit anew
		}
		return false, err
	}
	return x.Tags == p.ext.Tags && x.StoreTime == p.ext.StoreTime, nil
}

func (q *Queue) lowerMinLocked(slot int64, u Unit) {
	q.min.Store(slot)
	q.minPhysical = int64(u.Physical)
}

// prependLocked makes the files before the first one down to that of slot,
// full of head fills.
func (q *Queue) prependLocked(slot int64) error {
	if start := q.startLocked(); start-slot > q.t.opt.MaxGap {
		return &GapError{q.topic, q.id, message.QueueOffset(slot), message.QueueOffset(start)}
	}
	for n := q.files.first - 1; n >= slot/q.t.perFile; n-- {
		if err := q.fillLocked(n*q.t.perFile, (n+1)*q.t.perFile, FillUnit); err != nil {
			if q.files.first == n {
				err = errors.Join(err, q.files.removeLocked(n))
			}
			return err
		}
	}
	return nil
}

// replaceLocked overwrites one slot below the end.
func (q *Queue) replaceLocked(slot int64, raw []byte) error {
	if w := q.written.Load(); slot >= w {
		copy(q.buf[(slot-w)*q.t.unitSize:], raw)
		return nil
	}
	q.changing.Add(1)
	defer q.changing.Add(1)
	n, pos := slot/q.t.perFile, slot%q.t.perFile*q.t.unitSize
	return q.files.writeAtLocked(n, raw, pos)
}
