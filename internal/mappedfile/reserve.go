package mappedfile

import (
	"errors"
	"fmt"

	"github.com/gantrymq/gantry/internal/base"
)

// EnsureAllocated reserves the blocks of the file up to position upTo, and
// some more: the next ReserveStep bytes, so that it seldom has work to do. No
// space is an error that wraps base.ErrDiskFull; then nothing has changed and
// the call may be repeated. Append calls it itself; a caller that must not
// fail half way calls it before it begins.
func (f *File) EnsureAllocated(upTo int64) error {
	if upTo <= f.reserved.Load() {
		return nil
	}
	if upTo > f.size {
		return fmt.Errorf("reserve up to %d of %s: %w", upTo, f.path, ErrFull)
	}
	f.reserveMu.Lock()
	defer f.reserveMu.Unlock()
	from := f.reserved.Load()
	if upTo <= from {
		return nil
	}
	v, err := f.acquireWritable()
	if err != nil {
		return err
	}
	defer v.unpin()
	// Whole pages: the writer must not store into a page while its block is
	// being made.
	upTo = min(f.size, (upTo+PageSize-1)&^(PageSize-1))
	to := min(f.size, max(from+f.sh.reserveStep, upTo))
	err = v.file.Allocate(from, to-from)
	if errors.Is(err, base.ErrDiskFull) && to > upTo {
		// The disk is nearly full: take only what is needed now.
		to = upTo
		err = v.file.Allocate(from, to-from)
	}
	if err != nil {
		return fmt.Errorf("reserve [%d, %d) of %s: %w", from, to, f.path, err)
	}
	f.reserved.Store(to)
	return nil
}

// prepareAhead keeps blocks reserved and pages present in front of the writer:
// blocks for a whole step, pages for distance bytes, chunk by chunk until stop
// says that something more urgent waits. It is a hint as a whole: what it does
// not manage the writer does itself, and gets the error if there is one. It
// returns true when it was stopped before it was done.
func (f *File) prepareAhead(distance, chunk int64, stop func() bool) (more bool) {
	wrote := f.wrote.Load()
	if want := min(f.size, wrote+max(f.sh.reserveStep, distance)); want > f.reserved.Load() {
		if err := f.EnsureAllocated(want); err != nil {
			f.sh.log.Debug("reserve ahead of the writer", "file", f.path, "err", err)
		}
	}
	if !f.sh.mapped || f.buf.Load() != nil {
		return false
	}
	v, err := f.acquireWritable()
	if err != nil {
		return false
	}
	defer v.unpin()
	if v.mapping == nil {
		return false
	}
	for {
		wrote = f.wrote.Load()
		from := max(f.populated.Load(), wrote&^(PageSize-1))
		to := min(f.size, f.reserved.Load(), wrote+distance, from+chunk)
		if to <= from {
			return false
		}
		if stop() {
			return true
		}
		if err := v.mapping.Populate(from, to-from); err != nil {
			f.sh.log.Debug("populate ahead of the writer", "file", f.path, "err", err)
			return false
		}
		f.populated.Store(to)
	}
}
