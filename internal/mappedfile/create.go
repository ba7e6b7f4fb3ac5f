package mappedfile

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// removeName removes a name; that it is gone already is no error.
func removeName(fsys vfs.FS, path string) error {
	if err := fsys.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// createFile makes a new segment: full length, its first blocks reserved,
// everything durable. stop is asked during long work and ends it with
// base.ErrClosed. After an error, or a panic, nothing is left behind.
func (q *Queue) createFile(start int64, stop func() bool) (*File, error) {
	dir := q.dirFor(start)
	path := filepath.Join(dir, FileName(start))
	f := newFile(&q.sh, dir, path, start, q.size)
	if err := q.makeFile(f, stop); err != nil {
		return nil, fmt.Errorf("create segment %s: %w", path, err)
	}
	return f, nil
}

func (q *Queue) makeFile(f *File, stop func() bool) error {
	h, err := q.createName(f.dir, f.path)
	if err != nil {
		return err
	}
	made := false
	defer func() {
		if made { // not so after an error, nor when something panicked
			return
		}
		// Should the name survive its removal, then without content: an
		// empty file is replaced by the next attempt.
		if err := h.Truncate(0); err != nil {
			q.sh.log.Debug("empty a segment whose creation failed", "file", f.path, "err", err)
		}
		if f.view.Load() == nil {
			h.Close()
		}
		f.Close()
		if err := removeName(q.sh.fs, f.path); err != nil {
			q.sh.log.Warn("remove a segment whose creation failed", "file", f.path, "err", err)
		}
	}()
	if err := h.Truncate(q.size); err != nil {
		return err
	}
	whole := q.warm || q.lockMemory
	first := min(q.size, q.sh.reserveStep)
	if whole {
		first = q.size
	}
	switch err := h.Allocate(0, first); {
	case err == nil:
		f.reserved.Store(first)
	case whole || !errors.Is(err, base.ErrDiskFull):
		return err
	default:
		// A whole step does not fit, but a small append still may. That
		// append reserves what it needs and gets the error if there is one.
	}
	v := f.newView(h, q.size, true)
	f.view.Store(v) // nobody else knows f yet
	if q.warm && v.mapping != nil {
		if err := q.warmUp(v.mapping, stop); err != nil {
			return err
		}
	}
	// Length and reserved blocks are durable from here on, so later it is
	// enough to flush the range that was written.
	if err := h.Sync(); err != nil {
		return err
	}
	if err := q.sh.fs.SyncDir(f.dir); err != nil {
		return err
	}
	if q.lockMemory && v.mapping != nil {
		q.stayInMemory(f, v.mapping)
	}
	made = true
	return nil
}

// createName makes a new, empty file. It never takes over a name that has
// content: that would bring old records back (store-behaviour L4). A file of
// nothing but zeros is what a crash, a full disk or a failed removal leaves of
// a creation; it is replaced.
func (q *Queue) createName(dir, path string) (vfs.File, error) {
	h, err := q.sh.fs.Create(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := q.sh.fs.MkdirAll(dir); err != nil {
			return nil, err
		}
		return q.sh.fs.Create(path)
	case errors.Is(err, fs.ErrExist):
		e, statErr := q.sh.fs.Stat(path)
		if statErr != nil || !e.IsRegular() {
			return nil, err
		}
		if at, readErr := nonZeroOf(q.sh.fs, path, 0, math.MaxInt64); readErr != nil || at >= 0 {
			return nil, err
		}
		if err := removeName(q.sh.fs, path); err != nil {
			return nil, err
		}
		return q.sh.fs.Create(path)
	}
	return h, err
}

// warmUp stores one zero byte per page (RocketMQ: warmMappedFile), so that
// later stores find every page present. With warmSyncPages the pages go to
// disk as it proceeds instead of all at once at some later moment.
func (q *Queue) warmUp(m vfs.Mapping, stop func() bool) error {
	zero := []byte{0}
	pages, synced := 0, int64(0)
	for off := int64(0); off < q.size; off += PageSize {
		if _, err := m.WriteAt(zero, off); err != nil {
			return err
		}
		pages++
		if pages%1024 == 0 && stop() {
			return base.ErrClosed
		}
		if q.warmSyncPages > 0 && pages%q.warmSyncPages == 0 {
			if err := m.Flush(synced, off+1-synced); err != nil {
				return err
			}
			synced = off + PageSize
		}
	}
	return nil
}

// stayInMemory locks the pages and asks for them (mlock, MADV_WILLNEED). Both
// are wishes: a process may lock little, and the store works without.
func (q *Queue) stayInMemory(f *File, m vfs.Mapping) {
	if err := m.LockMemory(0, q.size); err != nil {
		q.sh.log.Warn("lock file in memory", "file", f.path, "err", err)
	} else {
		f.locked.Store(true)
	}
	if err := m.Advise(0, q.size, vfs.WillNeed); err != nil {
		q.sh.log.Debug("advise will need", "file", f.path, "err", err)
	}
}
