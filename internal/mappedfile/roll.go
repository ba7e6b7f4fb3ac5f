package mappedfile

import (
	"fmt"

	"github.com/gantrymq/gantry/internal/base"
)

// dirFor chooses the directory of a new file.
func (q *Queue) dirFor(start int64) string {
	dirs := q.dirs
	if q.full != nil {
		var free []string
		for _, d := range q.dirs {
			if !q.full(d) {
				free = append(free, d)
			}
		}
		if len(free) > 0 {
			dirs = free
		}
	}
	return dirs[(start/q.size)%int64(len(dirs))]
}

// Writable returns the file that the next append goes to (RocketMQ:
// getLastMappedFile): the last one, or a new one when that is full. When the
// queue has no file, the new one is that which holds offset start. A new file
// takes part at once, so that MaxOffset is its start.
//
// Errors: ErrCreateTimeout, ErrNoBuffer, base.ErrDiskFull and whatever the
// creation met; the next call tries again. base.ErrReadOnly after a failed
// sync, or when the last file may not be written.
func (q *Queue) Writable(start int64) (*File, error) {
	if q.closed.Load() {
		return nil, fmt.Errorf("segment for writing: %w", base.ErrClosed)
	}
	last := q.Last()
	if last != nil && !last.Full() {
		if last.readOnly {
			return nil, fmt.Errorf("%s is in a directory that is only read: %w", last.path, base.ErrReadOnly)
		}
		return last, nil
	}
	if start < 0 {
		return nil, fmt.Errorf("create segment: negative offset %d", start)
	}
	q.nextMu.Lock()
	defer q.nextMu.Unlock()
	f, err := q.prepareLocked(last, start)
	if err != nil {
		return nil, err
	}
	if q.pool != nil {
		if b := q.pool.borrow(); b != nil {
			f.committed.Store(0)
			f.buf.Store(b)
		} else if q.failWithoutBuffer {
			return nil, fmt.Errorf("%s: %w", f.path, ErrNoBuffer)
		}
	}
	q.next = nil
	q.replaceFiles(func(files []*File) []*File { return append(files, f) })
	if last == nil {
		q.flushed.Store(f.start)
	}
	if q.sh.alloc != nil {
		q.sh.alloc.prepare(q, f.End())
		q.sh.alloc.kick(f)
	}
	return f, nil
}

// Prepare makes sure that the file behind the last one can be had without
// delay and has blocks for its first need bytes, without making it part of the
// queue. A writer that has to close the last file by a mark calls it before it
// writes the mark: when there is no space for what follows, nothing changes.
// Errors are those of Writable. The queue must have a file.
func (q *Queue) Prepare(need int64) error {
	if q.closed.Load() {
		return fmt.Errorf("prepare the next segment: %w", base.ErrClosed)
	}
	last := q.Last()
	if last == nil {
		return fmt.Errorf("prepare the next segment: the queue has no file")
	}
	q.nextMu.Lock()
	defer q.nextMu.Unlock()
	f, err := q.prepareLocked(last, 0)
	if err != nil {
		return err
	}
	return f.EnsureAllocated(min(need, q.size))
}

// prepareLocked sets q.next to the file behind last, or that holds start.
//
// A crash may lose any of the unflushed pages. So that there are never more
// than two files with such pages, the file before last has to be flushed
// completely before there is one behind last.
func (q *Queue) prepareLocked(last *File, start int64) (*File, error) {
	if err := q.sh.fail.err(); err != nil {
		return nil, err
	}
	if last != nil {
		start = last.End()
		if last.misfit && !last.readOnly {
			// Only the last file may have a wrong length.
			v, err := last.acquireWritable()
			if err != nil {
				return nil, err
			}
			v.unpin()
		}
		if files := q.Files(); len(files) > 1 && q.Flushed() < last.start {
			if err := q.flushThrough(files[len(files)-2]); err != nil {
				return nil, fmt.Errorf("flush before the next segment: %w", err)
			}
		}
	} else {
		start -= start % q.size
	}
	if start > maxStart(q.size) {
		return nil, fmt.Errorf("create segment at %d: the offset space is used up", start)
	}
	if q.next != nil && q.next.start == start {
		return q.next, nil
	}
	base.Assert(q.next == nil, "next segment is not the one at %d", start)
	var f *File
	var err error
	if q.sh.alloc != nil {
		f, err = q.sh.alloc.next(q, start, start+q.size)
	} else {
		f, err = q.createFile(start, func() bool { return false })
	}
	if err != nil {
		return nil, err
	}
	q.next = f
	return f, nil
}

// discardNext removes the files that were made ahead of the last one, newest
// first.
func (q *Queue) discardNext() error {
	var first error
	if q.sh.alloc != nil {
		first = q.sh.alloc.discard(q)
	}
	q.nextMu.Lock()
	defer q.nextMu.Unlock()
	if q.next == nil {
		return first
	}
	err := q.next.Remove()
	if q.next.closed.Load() {
		q.next = nil
	}
	if first == nil {
		first = err
	}
	return first
}
