package mappedfile

import "fmt"

// due says whether the bytes [done, end) of a file are to be moved on now: a
// full file and 0 pages always, otherwise when at least leastPages pages have
// been begun since (RocketMQ: isAbleToFlush, isAbleToCommit).
func due(done, end, size int64, leastPages int) bool {
	if done >= end {
		return false
	}
	return end == size || leastPages <= 0 || end/PageSize-done/PageSize >= int64(leastPages)
}

// Commit writes the bytes that wait in the transient buffer to the file, where
// readers see them, when leastPages says so, and returns Committed. The buffer
// goes back to the pool once the file is full and committed. When the write
// fails nothing has moved and the bytes stay in the buffer. Without a buffer
// it does nothing.
func (f *File) Commit(leastPages int) (int64, error) {
	if f.buf.Load() == nil {
		return f.Readable(), nil
	}
	v, err := f.acquireWritable()
	if err != nil {
		return f.committed.Load(), err
	}
	defer v.unpin()
	f.commitMu.Lock()
	defer f.commitMu.Unlock()
	b := f.buf.Load()
	if b == nil {
		return f.Readable(), nil
	}
	end, done := f.wrote.Load(), f.committed.Load()
	if due(done, end, f.size, leastPages) {
		if err := f.sh.fail.err(); err != nil {
			return done, err
		}
		if _, err := writeFull(v.file, b.data[done:end], done); err != nil {
			return done, fmt.Errorf("commit %d bytes at %d of %s: %w", end-done, done, f.path, err)
		}
		f.committed.Store(end)
	}
	if f.committed.Load() == f.size {
		f.buf.Store(nil)
		b.giveBack()
	}
	return end, nil
}

// Flush brings the readable bytes to stable storage when leastPages says so,
// and returns Flushed. A file that is full and 0 pages force it. After the
// first failure every call returns an error that wraps base.ErrReadOnly.
func (f *File) Flush(leastPages int) (int64, error) {
	f.flushMu.Lock()
	defer f.flushMu.Unlock()
	done := f.flushed.Load()
	if err := f.sh.fail.err(); err != nil {
		return done, err
	}
	end := f.Readable() // before the sync: later bytes may miss it
	whole := leastPages <= 0 && f.rewritten.Load()
	if !whole && !due(done, end, f.size, leastPages) {
		return done, nil
	}
	v, err := f.acquireWritable()
	if err != nil {
		return done, err
	}
	defer v.unpin()
	whole = f.rewritten.Swap(false)
	if whole || v.mapping == nil || f.buf.Load() != nil {
		err = v.file.Sync()
	} else {
		// Only the range: the pages populated ahead of the writer are dirty
		// as well, and writing them now would have to be done again.
		from := done &^ (PageSize - 1)
		err = v.mapping.Flush(from, end-from)
	}
	if err != nil {
		return done, f.sh.fail.set(fmt.Errorf("sync %s: %w", f.path, err))
	}
	f.flushed.Store(end)
	if end == f.size {
		// Finished. Who reads it from now on opens it for reading only.
		if v.mapping != nil && f.locked.CompareAndSwap(true, false) {
			if err := v.mapping.UnlockMemory(0, f.size); err != nil {
				f.sh.log.Debug("unlock file in memory", "file", f.path, "err", err)
			}
		}
		f.letGo()
		return end, nil
	}
	if v.mapping != nil && !f.locked.Load() {
		v.shed(end)
	}
	return end, nil
}
