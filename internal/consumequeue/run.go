package consumequeue

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// run is the files of one directory, numbers first to last without a gap: file
// n begins at byte n*size of the queue. Its fields are guarded by the mutex of
// the queue; methods whose name does not end in Locked use q, ext and size
// only, which do not change once the run is in use.
type run struct {
	q    *Queue
	ext  bool  // the files of the extension
	size int64 // length of a file

	first, last int64 // last < first: no files

	// Files [dirtyFirst, dirtyLast] may hold writes that were not synced;
	// dirtyLast < dirtyFirst: none. dirtyDir: names that were not synced.
	dirtyFirst, dirtyLast int64
	dirtyDir              bool
	unsynced              bool // in the table's list of runs to be synced

	// tailUnknown: behind the end of data there may be bytes that are not
	// zero, files that should not be there, or a file of the wrong length. All
	// three are put right before anything is written behind the end (trim).
	tailUnknown bool
}

// init makes r a run without files.
func (r *run) init(q *Queue, ext bool, size int64) {
	*r = run{q: q, ext: ext, size: size, last: -1, dirtyLast: -1}
}

func (r *run) dir() string {
	root := r.q.t.opt.Dir
	if r.ext {
		root = r.q.t.opt.ExtDir
	}
	return filepath.Join(root, r.q.topic, strconv.FormatInt(int64(r.q.id), 10))
}

func (r *run) path(n int64) string { return filepath.Join(r.dir(), fileName(n*r.size)) }

func (r *run) emptyLocked() bool { return r.last < r.first }

// holdsLocked reports whether file n should exist.
func (r *run) holdsLocked(n int64) bool { return n >= r.first && n <= r.last }

// readAt reads len(p) bytes at pos of file n. Bytes behind the end of a short
// file are zero. A file that does not exist is an error (fs.ErrNotExist).
func (r *run) readAt(n int64, p []byte, pos int64) error {
	h, err := r.q.t.files.acquire(r, n)
	if err != nil {
		return err
	}
	defer r.q.t.files.release(h)
	return readFull(h.file, p, pos)
}

// readFull fills p from pos on, with zeros behind the end of the file.
func readFull(f io.ReaderAt, p []byte, pos int64) error {
	n, err := f.ReadAt(p, pos)
	if n < len(p) {
		if err != nil && !errors.Is(err, io.EOF) {
			return err
		}
		clear(p[n:])
	}
	return nil
}

// writeAtLocked writes p at pos of file n, which exists, or is the next or
// previous one, or the first of all.
func (r *run) writeAtLocked(n int64, p []byte, pos int64) error {
	base.Assert(pos >= 0 && pos+int64(len(p)) <= r.size, "write of %d bytes at %d of a file of %d", len(p), pos, r.size)
	h, err := r.forWriteLocked(n)
	if err != nil {
		return err
	}
	defer r.q.t.files.release(h)
	r.dirtyLocked(n) // also when it fails: part of it may be there
	if _, err := h.file.WriteAt(p, pos); err != nil {
		return err
	}
	return nil
}

func (r *run) forWriteLocked(n int64) (*handle, error) {
	if !r.holdsLocked(n) {
		return r.createLocked(n)
	}
	h, err := r.q.t.files.acquire(r, n)
	if errors.Is(err, fs.ErrNotExist) { // it was missing between others
		return r.createLocked(n)
	}
	return h, err
}

// createLocked makes file n at full length, without blocks. The name becomes
// durable with the next sync. When only the length cannot be set the file
// stays, and the next trim sets it.
func (r *run) createLocked(n int64) (*handle, error) {
	base.Assert(r.emptyLocked() || n >= r.first-1 && n <= r.last+1, "file %d beside %d to %d", n, r.first, r.last)
	t := r.q.t
	f, err := t.opt.FS.Create(r.path(n))
	if errors.Is(err, fs.ErrNotExist) {
		if err := t.opt.FS.MkdirAll(r.dir()); err != nil {
			return nil, err
		}
		f, err = t.opt.FS.Create(r.path(n))
	}
	if err != nil {
		return nil, err
	}
	if r.emptyLocked() {
		r.first, r.last = n, n
	} else {
		r.first, r.last = min(r.first, n), max(r.last, n)
	}
	r.dirtyLocked(n)
	r.dirtyDir = true
	h := t.files.adopt(r, n, f)
	if err := f.Truncate(r.size); err != nil {
		r.tailUnknown = true
		t.files.release(h)
		return nil, err
	}
	return h, nil
}

// dirtyLocked notes that file n holds writes that were not synced.
func (r *run) dirtyLocked(n int64) {
	if r.dirtyLast < r.dirtyFirst {
		r.dirtyFirst, r.dirtyLast = n, n
	} else {
		r.dirtyFirst, r.dirtyLast = min(r.dirtyFirst, n), max(r.dirtyLast, n)
	}
	r.noteUnsyncedLocked()
}

func (r *run) noteUnsyncedLocked() {
	if !r.unsynced {
		r.unsynced = true
		r.q.t.pending.addUnsynced(r)
	}
}

// removeLocked removes file n, which is the first or the last. It is gone for
// readers at once, and durably after the next sync of the directory.
func (r *run) removeLocked(n int64) error {
	base.Assert(n == r.first || n == r.last, "removing file %d of %d to %d", n, r.first, r.last)
	t := r.q.t
	t.files.drop(r, n)
	if err := t.opt.FS.Remove(r.path(n)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	t.files.drop(r, n) // a reader may have opened it since
	if n == r.last {
		r.last--
	} else {
		r.first++
	}
	r.dirtyDir = true
	r.noteUnsyncedLocked()
	return nil
}

// syncDirLocked makes the names of the directory durable now.
func (r *run) syncDirLocked() error {
	if !r.dirtyDir {
		return nil
	}
	if err := r.q.t.opt.FS.SyncDir(r.dir()); err != nil {
		return r.q.t.fail(fmt.Errorf("sync directory of consume queue %s: %w", r.q, err))
	}
	r.dirtyDir = false
	return nil
}

// removeAllLocked removes all files, durably.
func (r *run) removeAllLocked() error {
	for !r.emptyLocked() {
		if err := r.removeLocked(r.last); err != nil {
			return err
		}
	}
	if err := r.syncDirLocked(); err != nil {
		return err
	}
	r.tailUnknown = false
	return nil
}

// trimLocked makes pos of file n the end of all data, durably: later files are
// removed, file n gets its full length and zeros from pos on. It is quick when
// that is so already, and changes nothing before the end.
func (r *run) trimLocked(n, pos int64) error {
	if !r.tailUnknown || r.emptyLocked() {
		return nil
	}
	// Newest first: a crash in between leaves no gap.
	for r.last > n && r.last > r.first {
		if err := r.removeLocked(r.last); err != nil {
			return err
		}
	}
	if err := r.syncDirLocked(); err != nil {
		return err
	}
	if n == r.last+1 && !r.emptyLocked() {
		n, pos = r.last, r.size // full; its length matters from now on
	}
	if r.holdsLocked(n) {
		h, err := r.q.t.files.acquire(r, n)
		switch {
		case errors.Is(err, fs.ErrNotExist) && n == r.last:
			r.last-- // only its name in between was known
		case err != nil:
			return err
		default:
			err := r.cleanLocked(h.file, n, pos)
			r.q.t.files.release(h)
			if err != nil {
				return err
			}
		}
	}
	r.tailUnknown = false
	return nil
}

// cleanLocked gives file n its length and zeros what is not zero from pos on.
func (r *run) cleanLocked(f vfs.File, n, pos int64) error {
	length, err := f.Size()
	if err != nil {
		return err
	}
	dirty, err := zeroTail(f, pos, min(length, r.size))
	if dirty || length != r.size {
		r.dirtyLocked(n)
	}
	if err != nil {
		return err
	}
	if length != r.size {
		if err := f.Truncate(r.size); err != nil {
			return err
		}
	}
	if dirty {
		if err := f.Sync(); err != nil {
			return r.q.t.fail(fmt.Errorf("sync consume queue %s: %w", r.q, err))
		}
	}
	return nil
}

// zeroTail overwrites with zeros what is not zero in [pos, end). It skips
// holes, and does not give blocks to what is zero already.
func zeroTail(f vfs.File, pos, end int64) (dirty bool, err error) {
	const chunk = 64 << 10
	var buf, zeros []byte
	for pos < end {
		next, err := f.NextData(pos)
		if err != nil {
			return dirty, err
		}
		if next >= end {
			return dirty, nil
		}
		pos = max(pos, next)
		if buf == nil {
			buf = make([]byte, min(chunk, end-pos))
		}
		p := buf[:min(int64(len(buf)), end-pos)]
		if err := readFull(f, p, pos); err != nil {
			return dirty, err
		}
		if lo, hi := nonZero(p); lo < hi {
			if zeros == nil {
				zeros = make([]byte, len(buf))
			}
			dirty = true
			if _, err := f.WriteAt(zeros[:hi-lo], pos+int64(lo)); err != nil {
				return dirty, err
			}
		}
		pos += int64(len(p))
	}
	return dirty, nil
}

// allZero reports whether f holds nothing but zeros in [pos, end).
func allZero(f vfs.File, pos, end int64) (bool, error) {
	var buf [4096]byte
	for pos < end {
		next, err := f.NextData(pos)
		if err != nil {
			return false, err
		}
		if next >= end {
			return true, nil
		}
		pos = max(pos, next)
		p := buf[:min(int64(len(buf)), end-pos)]
		if err := readFull(f, p, pos); err != nil {
			return false, err
		}
		if lo, hi := nonZero(p); lo < hi {
			return false, nil
		}
		pos += int64(len(p))
	}
	return true, nil
}

// nonZero returns the smallest range that holds all bytes of p that are not
// zero; lo == hi when there are none.
func nonZero(p []byte) (lo, hi int) {
	for lo < len(p) && p[lo] == 0 {
		lo++
	}
	hi = len(p)
	for hi > lo && p[hi-1] == 0 {
		hi--
	}
	return lo, hi
}

// sync makes everything durable that was written to the run's files before the
// call. No lock may be held. An error is final for the table.
func (r *run) sync() error {
	q := r.q
	q.mu.Lock()
	lo, hi, dir := r.dirtyFirst, r.dirtyLast, r.dirtyDir
	r.dirtyFirst, r.dirtyLast, r.dirtyDir, r.unsynced = 0, -1, false, false
	dead := q.dead
	q.mu.Unlock()
	if dead {
		return nil
	}
	for n := lo; n <= hi; n++ {
		h, err := q.t.files.acquire(r, n)
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since
		}
		if err != nil {
			r.redo(n, hi, dir) // not synced, so nothing is lost yet
			return fmt.Errorf("sync consume queue %s: %w", q, err)
		}
		err = h.file.Sync()
		q.t.files.release(h)
		if err != nil {
			return q.t.fail(fmt.Errorf("sync consume queue %s: %w", q, err))
		}
	}
	if !dir {
		return nil
	}
	if err := q.t.opt.FS.SyncDir(r.dir()); err != nil {
		q.mu.Lock()
		dead := q.dead
		q.mu.Unlock()
		if !dead {
			return q.t.fail(fmt.Errorf("sync directory of consume queue %s: %w", q, err))
		}
	}
	return nil
}

// redo puts back what sync took out.
func (r *run) redo(lo, hi int64, dir bool) {
	r.q.mu.Lock()
	defer r.q.mu.Unlock()
	if r.q.dead {
		return
	}
	r.dirtyDir = r.dirtyDir || dir
	r.dirtyLocked(lo)
	r.dirtyLocked(hi)
}
