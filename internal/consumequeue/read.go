package consumequeue

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/message"
)

// readBuffers are for reading units from files.
var readBuffers = sync.Pool{New: func() any { return new([16 << 10]byte) }}

// Read copies units into dst, beginning with that of queue offset off, and
// returns how many: as many as dst holds and as there are below Max. At or
// above Max that is 0 without an error; below Min it is an error that wraps
// base.ErrNotFound. dst[i] is the slot of off+i, which may be a fill unit or,
// in a damaged queue, an unwritten one: see Unit.Valid. After another error
// the units counted are good.
func (q *Queue) Read(off message.QueueOffset, dst []Unit) (n int, err error) {
	if q.batch != nil {
		return 0, fmt.Errorf("queue %s is a batch queue", q)
	}
	slot, end := int64(off), q.end.Load()
	if low := q.min.Load(); slot < low {
		return 0, fmt.Errorf("consume queue %s begins at %d: queue offset %d: %w", q, low, off, base.ErrNotFound)
	}
	if slot >= end || len(dst) == 0 {
		return 0, nil
	}
	buf := readBuffers.Get().(*[16 << 10]byte)
	defer readBuffers.Put(buf)
	for n < len(dst) && slot < end {
		want := min(int64(len(dst)-n), end-slot, int64(len(buf)/UnitSize))
		got, err := q.read(slot, buf[:want*UnitSize])
		if err != nil {
			return n, fmt.Errorf("read consume queue %s at %d: %w", q, slot, err)
		}
		if got == 0 {
			break // it became shorter
		}
		for i := range got {
			dst[n+i] = decodeUnit(buf[i*UnitSize:])
		}
		n += got
		slot += int64(got)
	}
	return n, nil
}

// read fills p with the units from slot on and returns how many there are in
// it: at least one below end, fewer than p has room for where a file or the
// written part ends. No lock may be held.
func (q *Queue) read(slot int64, p []byte) (int, error) {
	if c := q.changing.Load(); c&1 == 0 {
		if written := q.written.Load(); slot < written {
			n, err := q.readFile(slot, written, p)
			// Not believed when units changed meanwhile, or when a file is
			// missing, which can have several reasons.
			if q.changing.Load() == c && !errors.Is(err, fs.ErrNotExist) {
				return n, err
			}
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.readLocked(slot, p)
}

// readFile reads units from one file, below written.
func (q *Queue) readFile(slot, written int64, p []byte) (int, error) {
	in := slot % q.t.perFile
	n := min(int64(len(p))/q.t.unitSize, written-slot, q.t.perFile-in)
	return int(n), q.files.readAt(slot/q.t.perFile, p[:n*q.t.unitSize], in*q.t.unitSize)
}

// readLocked is read with Queue.mu held.
func (q *Queue) readLocked(slot int64, p []byte) (int, error) {
	written, end := q.written.Load(), q.end.Load()
	switch {
	case slot >= end:
		return 0, nil
	case slot >= written:
		n := min(int64(len(p))/q.t.unitSize, end-slot)
		at := (slot - written) * q.t.unitSize
		copy(p, q.buf[at:at+n*q.t.unitSize])
		return int(n), nil
	case slot < q.startLocked():
		return 0, fmt.Errorf("slot %d is below the first file: %w", slot, base.ErrNotFound)
	case q.headOpen:
		// All below written is head fills that are not in the file yet.
		n := min(int64(len(p))/UnitSize, written-slot)
		b := p[:0]
		for range n {
			b = AppendUnit(b, FillUnit)
		}
		return int(n), nil
	}
	n, err := q.readFile(slot, written, p)
	if errors.Is(err, fs.ErrNotExist) { // a hole between files
		clear(p[:int64(n)*q.t.unitSize])
		return n, nil
	}
	return n, err
}

// rank orders what a slot may hold by the position of its record: head fills
// before everything, other fill units at the end of the record before them. ok
// is false for a unit that was never written.
func (q *Queue) rank(raw []byte) (phy int64, ok bool) {
	if q.batch != nil {
		u := decodeBatchUnit(raw)
		return int64(u.Physical), u.Valid()
	}
	switch u := decodeUnit(raw); {
	case u.headFill():
		return -1, true
	case u.IsFill():
		return max(0, int64(u.Tags)), true
	default:
		return int64(u.Physical), u.Valid()
	}
}

// isUnit reports whether a slot belongs to a message.
func (q *Queue) isUnit(raw []byte) bool {
	if q.batch != nil {
		return decodeBatchUnit(raw).Valid()
	}
	return decodeUnit(raw).Valid()
}

// reader reads slots, with or without Queue.mu held.
type reader func(slot int64, p []byte) (int, error)

// lowerBound returns the first slot in [lo, hi) that belongs to a message whose
// record begins at or behind phy, with its bytes, or hi.
func (q *Queue) lowerBound(read reader, lo, hi, phy int64) (int64, []byte, error) {
	end := hi
	buf := readBuffers.Get().(*[16 << 10]byte)
	defer readBuffers.Put(buf)
	one := buf[:q.t.unitSize]
	for lo < hi {
		mid := lo + (hi-lo)/2
		n, err := read(mid, one)
		if err != nil {
			return 0, nil, err
		}
		if n == 0 { // it became shorter
			hi = mid
			continue
		}
		r, ok := q.rank(one)
		at := mid
		if !ok { // damage: ask the next slot that holds something
			if at, r, err = q.nextRanked(read, mid+1, hi, buf[:]); err != nil {
				return 0, nil, err
			}
			if at == hi {
				hi = mid
				continue
			}
		}
		if r >= phy {
			hi = mid
		} else {
			lo = at + 1
		}
	}
	return q.nextUnit(read, lo, end)
}

// nextRanked returns the first slot in [slot, hi) that was written, or hi.
func (q *Queue) nextRanked(read reader, slot, hi int64, buf []byte) (int64, int64, error) {
	for slot < hi {
		n, err := read(slot, buf)
		if err != nil || n == 0 {
			return hi, 0, err
		}
		for i := range n {
			if slot+int64(i) >= hi {
				return hi, 0, nil
			}
			if r, ok := q.rank(buf[int64(i)*q.t.unitSize:]); ok {
				return slot + int64(i), r, nil
			}
		}
		slot += int64(n)
	}
	return hi, 0, nil
}

// nextUnit returns the first slot in [slot, hi) that belongs to a message, with
// its bytes, or hi.
func (q *Queue) nextUnit(read reader, slot, hi int64) (int64, []byte, error) {
	size := q.t.unitSize
	buf := make([]byte, size)
	for slot < hi {
		n, err := read(slot, buf)
		if err != nil || n == 0 {
			return hi, nil, err
		}
		for i := range int64(n) {
			if slot+i >= hi {
				return hi, nil, nil
			}
			if raw := buf[i*size : (i+1)*size]; q.isUnit(raw) {
				return slot + i, raw, nil
			}
		}
		slot += int64(n)
		if int64(len(buf)) == size { // a run of fills: in larger steps
			buf = make([]byte, 3276*size)
		}
	}
	return hi, nil, nil
}

// prevUnit returns the last slot in [lo, slot) that belongs to a message, with
// its bytes; ok is false when there is none.
func (q *Queue) prevUnit(read reader, lo, slot int64) (at int64, raw []byte, ok bool, err error) {
	size := q.t.unitSize
	step := int64(1)
	var buf []byte
	for slot > lo {
		from := max(lo, slot-step)
		if n := (slot - from) * size; int64(len(buf)) < n {
			buf = make([]byte, n)
		}
		for i := from; i < slot; {
			n, err := read(i, buf[(i-from)*size:(slot-from)*size])
			if err != nil {
				return 0, nil, false, err
			}
			if n == 0 {
				slot = i
				break
			}
			i += int64(n)
		}
		for i := slot - 1; i >= from; i-- {
			raw := buf[(i-from)*size : (i-from+1)*size]
			if q.isUnit(raw) {
				return i, raw, true, nil
			}
			if q.batch == nil && decodeUnit(raw).headFill() {
				return 0, nil, false, nil // nothing stands before head fills
			}
		}
		slot = from
		step = 3276 // 64 KiB
	}
	return 0, nil, false, nil
}

// Search returns the smallest queue offset in [lo, hi) whose unit fulfils pred,
// or hi when there is none. pred must be false up to some message and true from
// there on; it is asked about messages only, about O(log(hi-lo)) of them, and
// its error ends the search. The bounds are clamped to [Min, Max]; slots that
// belong to no message are never the answer.
func (q *Queue) Search(lo, hi message.QueueOffset, pred func(off message.QueueOffset, u Unit) (bool, error)) (message.QueueOffset, error) {
	if q.batch != nil {
		return hi, fmt.Errorf("queue %s is a batch queue", q)
	}
	lo, hi = max(lo, q.Min()), min(hi, q.Max())
	from, to, found := int64(lo), int64(hi), int64(hi)
	for from < to {
		mid := from + (to-from)/2
		at, raw, err := q.nextUnit(q.read, mid, to)
		if err != nil {
			return 0, fmt.Errorf("search consume queue %s at %d: %w", q, mid, err)
		}
		if at == to {
			to = mid
			continue
		}
		ok, err := pred(message.QueueOffset(at), decodeUnit(raw))
		if err != nil {
			return 0, err
		}
		if ok {
			found, to = at, mid
		} else {
			from = at + 1
		}
	}
	return message.QueueOffset(found), nil
}
