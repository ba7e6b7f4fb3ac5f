package consumequeue

import (
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/message"
)

// Queue is one topic and queue id (RocketMQ: ConsumeQueue, BatchConsumeQueue).
//
// Its slots are numbered through all files, also through those that were
// deleted. In a Simple queue the slot is the queue offset.
type Queue struct {
	t     *Table
	topic string
	id    int32

	// hasUnits: some slot below end belongs to a message. When it is false all
	// slots below end are head fills, and min == end. Guarded by mu, like the
	// next three.
	hasUnits bool
	// headOpen: the slots of the first file below written still have to be
	// filled with head fills, before the first unit is written.
	headOpen bool
	dead     bool // removed from the table
	// trimDue: units that were taken away are still in the files; writeOut
	// trims. Without it trimming waits until something is written.
	trimDue bool
	queued  bool // in pending's list; guarded by pending.mu, as are prev and next

	// changing is odd while slots below end change in place or end goes back.
	// A reader without mu that saw it move reads again.
	changing atomic.Uint32

	min         atomic.Int64 // first slot of a live unit; end when there is none
	end         atomic.Int64 // behind the last unit; published after the unit
	written     atomic.Int64 // slots below it are read from files, others from buf
	maxPhysical atomic.Int64 // end of the last unit's record, 0 when !hasUnits

	mu          sync.Mutex
	files       run
	buf         []byte // the units [written, end)
	minPhysical int64  // position of the record of slot min, -1 when unknown

	batch      *batchOffsets // of a Batch queue
	ext        *extension    // nil until it is first needed
	prev, next *Queue
}

// batchOffsets are the queue offsets of a Batch queue, which its slots are not.
type batchOffsets struct {
	min, max atomic.Int64
}

func (t *Table) newQueue(topic string, id int32) *Queue {
	q := &Queue{t: t, topic: topic, id: id, minPhysical: -1}
	q.files.init(q, false, t.opt.FileSize)
	if t.opt.Kind == Batch {
		q.batch = new(batchOffsets)
	}
	return q
}

// String is topic/id, for messages.
func (q *Queue) String() string { return q.topic + "/" + strconv.FormatInt(int64(q.id), 10) }

// Topic is the queue's topic, or the name of a light queue.
func (q *Queue) Topic() string { return q.topic }

// ID is the queue id.
func (q *Queue) ID() int32 { return q.id }

// Kind is the layout of the queue's units.
func (q *Queue) Kind() Kind { return q.t.opt.Kind }

// Min is the queue offset of the first message that may still be in the log,
// as far as CorrectMin was told. It equals Max when there is none.
func (q *Queue) Min() message.QueueOffset {
	if q.batch != nil {
		return message.QueueOffset(q.batch.min.Load())
	}
	return message.QueueOffset(q.min.Load())
}

// Max is the queue offset that the next message gets.
func (q *Queue) Max() message.QueueOffset {
	if q.batch != nil {
		return message.QueueOffset(q.batch.max.Load())
	}
	return message.QueueOffset(q.end.Load())
}

// MaxPhysical is the end of the last message's record in the log, 0 when the
// queue has none.
func (q *Queue) MaxPhysical() message.PhysicalOffset {
	return message.PhysicalOffset(q.maxPhysical.Load())
}

// Files returns the paths of the queue's files, oldest first.
func (q *Queue) Files() (paths []string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for n := q.files.first; n <= q.files.last; n++ {
		paths = append(paths, q.files.path(n))
	}
	return paths
}

// roomLocked makes sure that n more bytes fit into the buffer. It writes out a
// full buffer; when a larger one is not to be had it returns a *noRoomError.
func (q *Queue) roomLocked(n int, force bool) error {
	if cap(q.buf)-len(q.buf) >= n {
		return nil
	}
	if len(q.buf)+n > maxBuffer {
		if err := q.writeOutLocked(); err != nil {
			return err
		}
		if cap(q.buf) >= n {
			return nil
		}
	}
	buf, need := q.t.pending.get(q, len(q.buf)+n, q.buf, force)
	if need > 0 {
		return &noRoomError{need}
	}
	q.buf = buf
	return nil
}

// writeOutLocked writes the buffered units, of the extension first. After an
// error they are still buffered.
func (q *Queue) writeOutLocked() error {
	if q.ext != nil {
		if err := q.ext.writeOut(); err != nil {
			return err
		}
	}
	if len(q.buf) == 0 {
		return nil
	}
	slot := q.written.Load()
	if err := q.prepareLocked(slot); err != nil {
		return err
	}
	for buf := q.buf; len(buf) > 0; {
		n := min(int64(len(buf)), (q.t.perFile-slot%q.t.perFile)*q.t.unitSize)
		if err := q.files.writeAtLocked(slot/q.t.perFile, buf[:n], slot%q.t.perFile*q.t.unitSize); err != nil {
			return err
		}
		buf = buf[n:]
		slot += n / q.t.unitSize
	}
	base.Assert(slot == q.end.Load(), "buffer of %s ends at slot %d, queue at %d", q, slot, q.end.Load())
	q.written.Store(slot)
	q.buf = q.buf[:0]
	return nil
}

// prepareLocked makes the files ready for writing at slot and behind: zeros
// behind it, head fills before the first unit.
func (q *Queue) prepareLocked(slot int64) error {
	n, first := slot/q.t.perFile, slot-slot%q.t.perFile
	if err := q.files.trimLocked(n, (slot-first)*q.t.unitSize); err != nil {
		return err
	}
	if !q.headOpen {
		return nil
	}
	if err := q.fillLocked(first, slot, FillUnit); err != nil {
		return err
	}
	q.headOpen = false
	return nil
}

// writeOut writes the buffered units and gives the buffer back. After an error
// the units are still there.
func (q *Queue) writeOut() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead {
		return nil
	}
	if err := q.usableLocked(); err != nil {
		return err
	}
	err := q.writeOutLocked()
	if err == nil && q.trimDue {
		err = q.trimLocked()
	}
	if err != nil {
		return fmt.Errorf("write consume queue %s: %w", q, err)
	}
	q.releaseBufferLocked()
	return nil
}

func (q *Queue) releaseBufferLocked() {
	q.t.pending.put(q.buf)
	q.buf = nil
	if q.ext != nil {
		q.ext.releaseBuffer()
	}
}

// sync makes durable what was written.
func (q *Queue) sync() error {
	if err := q.files.sync(); err != nil {
		return err
	}
	q.mu.Lock()
	ext := q.ext
	q.mu.Unlock()
	if ext == nil {
		return nil
	}
	return ext.files.sync()
}

// trim makes everything behind the written units zero, durably.
func (q *Queue) trim() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if err := q.trimLocked(); err != nil {
		return fmt.Errorf("trim consume queue %s: %w", q, err)
	}
	return nil
}

func (q *Queue) trimLocked() error {
	if q.dead {
		return nil
	}
	slot := q.written.Load()
	if q.headOpen {
		slot -= slot % q.t.perFile
	}
	if err := q.files.trimLocked(slot/q.t.perFile, slot%q.t.perFile*q.t.unitSize); err != nil {
		return err
	}
	q.trimDue = false
	return nil
}
