package consumequeue

import (
	"fmt"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/message"
)

// PutBatch stores a unit of a batch queue. Queue offsets between Max and the
// unit's base belong to no message then, which Options.OnGap is told about.
// Below Max, an equal unit is a duplicate and nil, anything else a conflict,
// which is a *base.CorruptError. See Queue.Put for the rest.
func (q *Queue) PutBatch(u BatchUnit) error {
	_, err := q.putBatch(u, false)
	return err
}

// EnsureBatch is PutBatch for replaying the log: afterwards the queue holds u.
// Where other units stand at u's offsets, they and all behind them are taken
// away first; the replay brings back those that are right. A unit below Min is
// dropped when its record has expired.
func (q *Queue) EnsureBatch(u BatchUnit) (changed bool, err error) {
	return q.putBatch(u, true)
}

func (q *Queue) putBatch(u BatchUnit, replay bool) (changed bool, err error) {
	if q.batch == nil {
		return false, fmt.Errorf("queue %s is not a batch queue", q)
	}
	if !u.Valid() || u.Next() < u.Base {
		return false, fmt.Errorf("queue %s: %w: unit %+v", q, ErrOffset, u)
	}
	var had bool
	var before message.QueueOffset
	err = q.t.retry(func(force bool) (err error) {
		q.mu.Lock()
		defer q.mu.Unlock()
		had, before = q.hasUnits, q.Max()
		changed, err = q.putBatchLocked(u, replay, force)
		return err
	})
	if err != nil {
		return false, fmt.Errorf("put queue offset %d into batch consume queue %s: %w", u.Base, q, err)
	}
	if had && changed && u.Base > before {
		q.gap(before, u.Base)
	}
	return changed, nil
}

func (q *Queue) putBatchLocked(u BatchUnit, replay, force bool) (changed bool, err error) {
	if err := q.usableLocked(); err != nil {
		return false, err
	}
	if q.hasUnits && u.Base < q.Max() {
		if u.Base < q.Min() && int64(u.Physical) < q.t.minPhysical.Load() {
			return false, nil // expired
		}
		slot, err := q.batchSlot(q.readLocked, q.startLocked(), u.Base)
		if err != nil {
			return false, err
		}
		var b [BatchUnitSize]byte
		if _, err := q.readLocked(slot, b[:]); err != nil {
			return false, err
		}
		old := decodeBatchUnit(b[:])
		switch {
		case old == u:
			return false, nil
		case !replay:
			n, pos := slot/q.t.perFile, slot%q.t.perFile*q.t.unitSize
			return false, base.Corruptf(q.files.path(n), pos, "unit for queue offset %d is %+v, not %+v", u.Base, old, u)
		case old.Base == u.Base && old.Count == u.Count:
			if err := q.replaceLocked(slot, AppendBatchUnit(b[:0], u)); err != nil {
				return false, err
			}
			if slot == q.end.Load()-1 {
				q.maxPhysical.Store(int64(u.End()))
			}
			if slot == q.min.Load() {
				q.minPhysical = int64(u.Physical)
			}
			return true, nil
		}
		if err := q.setEndLocked(slot); err != nil {
			return false, err
		}
	}
	if err := q.roomLocked(BatchUnitSize, force); err != nil {
		return false, err
	}
	q.buf = AppendBatchUnit(q.buf, u)
	slot := q.end.Load()
	if q.min.Load() == slot { // nothing live before it
		q.batch.min.Store(int64(u.Base))
		q.minPhysical = int64(u.Physical)
	}
	q.hasUnits = true
	q.maxPhysical.Store(int64(u.End()))
	q.batch.max.Store(int64(u.Next()))
	q.end.Store(slot + 1)
	return true, nil
}

// batchSlot returns the first slot from lo on whose unit ends behind off, or
// the end. Units of a queue ascend.
func (q *Queue) batchSlot(read reader, lo int64, off message.QueueOffset) (int64, error) {
	var b [BatchUnitSize]byte
	hi := q.end.Load()
	for lo < hi {
		mid := lo + (hi-lo)/2
		n, err := read(mid, b[:])
		if err != nil {
			return 0, err
		}
		if n == 0 || decodeBatchUnit(b[:]).Next() > off {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo, nil
}

// ReadBatch copies units of a batch queue into dst, beginning with the one that
// holds queue offset off or, when off belongs to no message, the next. For the
// number and errors see Read.
func (q *Queue) ReadBatch(off message.QueueOffset, dst []BatchUnit) (n int, err error) {
	if q.batch == nil {
		return 0, fmt.Errorf("queue %s is not a batch queue", q)
	}
	if low := q.Min(); off < low {
		return 0, fmt.Errorf("batch consume queue %s begins at %d: queue offset %d: %w", q, low, off, base.ErrNotFound)
	}
	if off >= q.Max() {
		return 0, nil
	}
	slot, err := q.batchSlot(q.read, q.min.Load(), off)
	if err != nil {
		return 0, fmt.Errorf("read batch consume queue %s at %d: %w", q, off, err)
	}
	buf := readBuffers.Get().(*[16 << 10]byte)
	defer readBuffers.Put(buf)
	for n < len(dst) {
		want := min(len(dst)-n, len(buf)/BatchUnitSize)
		got, err := q.read(slot, buf[:want*BatchUnitSize])
		if err != nil {
			return n, fmt.Errorf("read batch consume queue %s at slot %d: %w", q, slot, err)
		}
		if got == 0 {
			break
		}
		for i := range got {
			dst[n+i] = decodeBatchUnit(buf[i*BatchUnitSize:])
		}
		n += got
		slot += int64(got)
	}
	return n, nil
}
