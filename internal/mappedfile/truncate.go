package mappedfile

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// TruncateTo makes off the end of the queue, durably: later files are removed,
// newest first, and what lies behind off in its file is zero afterwards, so
// that old bytes cannot come back as content (store-behaviour L3). All
// positions become off. On an already zero tail it changes nothing on disk.
//
// A file that starts at off is removed like a later one, except the first file
// of the queue, which then is empty. With off in front of the first file all
// files go. A whole, completely zero file directly behind the end is kept to
// be the next one; that is what a crash leaves of files made ahead.
//
// Flushed falls to off but says nothing about bytes in front of it that
// another process wrote; see MarkUnflushed. On an error the call may be
// repeated, and nothing must be appended before it has succeeded.
//
// The caller's writer and RemoveFront are not running.
func (q *Queue) TruncateTo(off int64) error {
	if q.closed.Load() {
		return fmt.Errorf("truncate to %d: %w", off, base.ErrClosed)
	}
	if off < 0 {
		return fmt.Errorf("truncate to %d: negative offset", off)
	}
	if err := q.sh.fail.err(); err != nil {
		return err
	}
	q.removeMu.Lock()
	defer q.removeMu.Unlock()
	files := q.Files()
	if len(files) == 0 {
		return nil
	}
	if end := q.WroteOffset(); off > end {
		return fmt.Errorf("truncate to %d, behind the end %d", off, end)
	}
	keep := indexAfter(files, off-1) - 1
	if files[0].start == off {
		keep = 0
	}
	dirty, err := q.checkTruncate(files, keep, off)
	if err != nil {
		return fmt.Errorf("truncate to %d: %w", off, err)
	}
	later := files[keep+1:]
	// While there are bytes behind the new end there must be no file behind
	// them: it would make them a part of the content.
	if len(later) > 0 || dirty {
		if err := q.discardNext(); err != nil {
			return fmt.Errorf("truncate to %d: %w", off, err)
		}
	}
	var spare *File
	if keep >= 0 && !dirty && len(later) > 0 {
		if spare, err = adoptable(later[0], files[keep].End()); err != nil {
			return fmt.Errorf("truncate to %d: %w", off, err)
		}
	}
	for i := len(files) - 1; i > keep; i-- {
		f := files[i]
		q.replaceFiles(func(list []*File) []*File { return list[:len(list)-1] })
		if f == spare {
			continue
		}
		if err := f.Remove(); err != nil {
			if !f.closed.Load() { // it still exists
				q.replaceFiles(func(list []*File) []*File { return append(list, f) })
			}
			return fmt.Errorf("truncate to %d: %w", off, err)
		}
	}
	if spare != nil {
		spare.setPositions(0)
		q.nextMu.Lock()
		q.next = spare
		q.nextMu.Unlock()
	}
	q.flushMu.Lock()
	defer q.flushMu.Unlock()
	q.lowerFlushed(off)
	if keep < 0 {
		return nil
	}
	if err := files[keep].truncate(min(off-files[keep].start, q.size), dirty); err != nil {
		return fmt.Errorf("truncate to %d: %w", off, err)
	}
	fresh := []*File{spare} // made by somebody, who may have been stopped in the middle
	if files[keep].start == off {
		fresh = append(fresh, files[keep])
	}
	if err := q.settle(files[:keep+1], fresh); err != nil {
		return fmt.Errorf("truncate to %d: %w", off, err)
	}
	return nil
}

// settle makes the names of files durable, and the lengths and blocks of fresh
// ones. Who made them did that before the first byte was written; but a process
// that is killed on the way leaves files that only look like it, and what is
// written into them would go with their names when the power goes.
func (q *Queue) settle(files, fresh []*File) error {
	for _, f := range fresh {
		if f == nil || f.readOnly {
			continue
		}
		h, err := q.sh.fs.Open(f.path, vfs.ReadWrite)
		if err != nil {
			return err
		}
		if err := errors.Join(h.Sync(), h.Close()); err != nil {
			return fmt.Errorf("sync %s: %w", f.path, err)
		}
	}
	synced := make(map[string]bool)
	for _, f := range slices.Concat(files, fresh) {
		if f == nil || f.readOnly || synced[f.dir] {
			continue
		}
		synced[f.dir] = true
		if err := q.sh.fs.SyncDir(f.dir); err != nil {
			return err
		}
	}
	return nil
}

// checkTruncate looks before anything changes: is there something to cut in
// the file that is kept, and may all files that change be changed?
func (q *Queue) checkTruncate(files []*File, keep int, off int64) (dirty bool, err error) {
	for _, f := range files[keep+1:] {
		if f.readOnly {
			return false, fmt.Errorf("%s is in a directory that is only read: %w", f.path, base.ErrReadOnly)
		}
	}
	if keep < 0 {
		return false, nil
	}
	f := files[keep]
	if pos := off - f.start; pos < q.size {
		at, err := nonZeroOf(q.sh.fs, f.path, pos, q.size)
		if err != nil {
			return false, err
		}
		dirty = at >= 0
	}
	if dirty && f.readOnly {
		return false, fmt.Errorf("%s is in a directory that is only read: %w", f.path, base.ErrReadOnly)
	}
	return dirty, nil
}

// adoptable returns f when it can serve as the new file at start, else nil. A
// file with a transient buffer may be zero on disk and still hold bytes there.
func adoptable(f *File, start int64) (*File, error) {
	if f.start != start || f.misfit || f.buf.Load() != nil {
		return nil, nil
	}
	at, err := nonZeroOf(f.sh.fs, f.path, 0, f.size)
	if err != nil || at >= 0 {
		return nil, err
	}
	return f, nil
}

// truncate makes pos the end of the file; dirty says that there are bytes
// other than zero behind it. Those are overwritten, durably. A crash on the way
// leaves everything in front of pos, and behind it any mixture of old bytes and
// zeros: whoever looks for the end of the content then ends at pos or behind
// it, as before, and truncates again. The file is not cut and extended: a crash
// in between would leave a length that Java refuses, and that of the only file
// would pass for the size of them all.
func (f *File) truncate(pos int64, dirty bool) error {
	f.flushMu.Lock()
	defer f.flushMu.Unlock()
	f.reserveMu.Lock()
	defer f.reserveMu.Unlock()
	var h vfs.File
	if dirty {
		var err error
		if h, err = f.sh.fs.Open(f.path, vfs.ReadWrite); err != nil {
			return err
		}
	}

	// Readers first. They copy, so those still at work see old bytes or zeros.
	f.commitMu.Lock()
	if b := f.buf.Load(); b != nil {
		clear(b.data[pos:max(pos, f.wrote.Load())])
	}
	f.committed.Store(min(f.committed.Load(), pos))
	f.wrote.Store(pos)
	f.flushed.Store(min(f.flushed.Load(), pos))
	f.commitMu.Unlock()
	floor := pos &^ (PageSize - 1)
	if dirty || f.reserved.Load() < floor {
		f.reserved.Store(floor)
	}
	f.populated.Store(0)
	f.nextKick = 0
	if !dirty {
		return nil
	}
	err := func() error {
		length, err := h.Size()
		if err != nil {
			return err
		}
		if err := zeroFrom(h, pos, min(length, f.size)); err != nil {
			return err
		}
		if length != f.size {
			if err := h.Truncate(f.size); err != nil {
				return err
			}
		}
		return h.Sync()
	}()
	if err != nil {
		// The positions no longer fit the file.
		return f.sh.fail.set(errors.Join(fmt.Errorf("cut %s at %d: %w", f.path, pos, err), h.Close()))
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed.Load() {
		return h.Close()
	}
	f.misfit = false
	f.setViewLocked(f.newView(h, f.size, true))
	return nil
}

// RemoveFront removes up to n files from the front, as long as due says so
// (nil: always), but never the last one (RocketMQ: deleteExpiredFile). A file
// leaves the list before its name goes, and its name goes at once, whoever
// still reads it. It returns those removed, closed but with their Start, Path
// and Size.
//
// When a name cannot be removed the pass ends with the error; the file is out
// of the queue, later calls and Close try its name again before they remove
// anything else, so that no hole arises.
func (q *Queue) RemoveFront(n int, due func(*File) bool) (removed []*File, err error) {
	q.removeMu.Lock()
	defer q.removeMu.Unlock()
	if q.closed.Load() {
		return nil, fmt.Errorf("remove segments: %w", base.ErrClosed)
	}
	for len(q.doomed) > 0 {
		f := q.doomed[0]
		if err := f.Remove(); err != nil {
			return removed, err
		}
		q.doomed = slices.Delete(q.doomed, 0, 1)
		removed = append(removed, f)
	}
	for range n {
		files := q.Files()
		if len(files) < 2 || due != nil && !due(files[0]) {
			break
		}
		f := files[0]
		if f.readOnly {
			return removed, fmt.Errorf("remove %s, in a directory that is only read: %w", f.path, base.ErrReadOnly)
		}
		q.replaceFiles(func(list []*File) []*File { return slices.Delete(list, 0, 1) })
		q.advanceFlushed(files[1].start)
		if err := f.Remove(); err != nil {
			q.doomed = append(q.doomed, f)
			return removed, err
		}
		removed = append(removed, f)
	}
	return removed, nil
}
