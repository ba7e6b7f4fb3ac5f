package mappedfile

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/vfs"
)

// view is one opening of a file: a handle, a mapping or both. A File
// replaces its view when it needs another kind (writable instead of readable,
// or after its length changed); whoever still uses the old one finishes with
// it, and the last user closes it.
type view struct {
	path     string
	file     vfs.File    // nil when there is a mapping that is only read
	mapping  vfs.Mapping // nil: positional reads and writes
	length   int64       // of the file when it was opened
	writable bool
	log      *slog.Logger

	// pins is 2 × users, plus 1 once the owner has let go.
	pins atomic.Int64
	// shedAt is up to where pages were shed. The file's flushMu guards it.
	shedAt int64
	// read counts the bytes read through a read-only mapping since pages were shed.
	read atomic.Int64
}

// A process that maps a log soon has gigabytes of page cache counted as its
// own memory, which says nothing, alarms people and makes them set limits that
// end it. So the pages far behind the writer, and those of old files when much
// was read, leave the mapping. They stay in the page cache: who reads them
// again pays a minor fault per 64 KiB.
const (
	shedBehind = 16 << 20 // bytes behind the writer that stay mapped: consumers are there
	shedStep   = 8 << 20  // bytes written from one shedding to the next
	shedRead   = 32 << 20 // bytes read, in files that are no longer written
)

// shed lets go of the pages far in front of flushed. The caller holds the file's
// flushMu.
func (v *view) shed(flushed int64) {
	if flushed < v.shedAt+shedBehind+shedStep {
		return
	}
	to := (flushed - shedBehind) &^ (PageSize - 1)
	v.shedAt = to
	v.drop(to)
}

// drop takes the pages of [0, to) out of the mapping, not out of the page cache.
func (v *view) drop(to int64) {
	if err := v.mapping.Advise(0, to, vfs.DontNeed); err != nil {
		v.log.Debug("drop pages from the mapping", "file", v.path, "err", err)
	}
}

// pin keeps the view open until unpin. It fails once the owner has let go.
func (v *view) pin() bool {
	for {
		s := v.pins.Load()
		if s&1 != 0 {
			return false
		}
		if v.pins.CompareAndSwap(s, s+2) {
			return true
		}
	}
}

func (v *view) unpin() {
	if v.pins.Add(-2) == 1 {
		v.free()
	}
}

// release is the owner's letting go; it is called once.
func (v *view) release() {
	if v.pins.Add(1) == 1 {
		v.free()
	}
}

// free runs exactly once, in the goroutine that was last. It has nobody to
// return an error to who could act on it, so it logs.
func (v *view) free() {
	if v.mapping != nil {
		if err := v.mapping.Unmap(); err != nil {
			v.log.Warn("unmap file", "file", v.path, "err", err)
		}
	}
	if v.file != nil {
		v.closeFile()
	}
}

func (v *view) closeFile() {
	if err := v.file.Close(); err != nil {
		v.log.Warn("close file", "file", v.path, "err", err)
	}
	v.file = nil
}

// readAt fills p from off. Behind the length of the file it finds zeros: that
// is what a file cut short reads as until it is extended.
func (v *view) readAt(p []byte, off int64) error {
	if rest := v.length - off; rest < int64(len(p)) {
		rest = max(rest, 0)
		clear(p[rest:])
		p = p[:rest]
	}
	if len(p) == 0 {
		return nil
	}
	var n int
	var err error
	if v.mapping != nil {
		n, err = v.mapping.ReadAt(p, off)
		if !v.writable && v.length > shedRead && v.read.Add(int64(n)) > shedRead {
			v.read.Store(0)
			v.drop(v.length)
		}
	} else {
		n, err = v.file.ReadAt(p, off)
	}
	if n == len(p) {
		return nil
	}
	if err == nil || err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return fmt.Errorf("read %d bytes at %d of %s: %w", len(p), off, v.path, err)
}

// writeAt stores all of p at off, which lies in reserved blocks when there is
// a mapping, and says how many bytes may have changed.
func (v *view) writeAt(p []byte, off int64) (int, error) {
	var w io.WriterAt = v.file
	if v.mapping != nil {
		w = v.mapping
	}
	n, err := writeFull(w, p, off)
	if err != nil {
		err = fmt.Errorf("write %d bytes at %d of %s: %w", len(p), off, v.path, err)
	}
	return n, err
}

// writeFull writes all of p. A write that ends early is continued, and an
// error when it makes no progress.
func writeFull(w io.WriterAt, p []byte, off int64) (int, error) {
	done := 0
	for done < len(p) {
		n, err := w.WriteAt(p[done:], off+int64(done))
		if n < 0 || n > len(p)-done {
			return done, fmt.Errorf("writer claims %d of %d bytes", n, len(p)-done)
		}
		done += n
		if err != nil && !errors.Is(err, io.ErrShortWrite) {
			return done, err
		}
		if n == 0 {
			return done, io.ErrShortWrite
		}
	}
	return done, nil
}
