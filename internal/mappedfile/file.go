package mappedfile

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// shared is what all files of a queue have in common.
type shared struct {
	fs          vfs.FS
	mapped      bool
	random      bool
	reserveStep int64
	alloc       *Allocator // may be nil
	log         *slog.Logger
	fail        failure
}

// File is one segment of a Queue (RocketMQ: MappedFile). Its positions count
// from the start of the file:
//
//	0 <= Flushed <= Readable <= Wrote <= Size
//
// Append, Stage, Publish and EnsureAllocated belong to the one writer; all
// other methods may be called by anyone at any time.
type File struct {
	sh    *shared
	path  string
	dir   string
	start int64
	size  int64

	readOnly bool // lies in a directory that is only read
	misfit   bool // had another length when the queue was opened, and that was accepted

	wrote     atomic.Int64
	committed atomic.Int64 // counts while buf is set
	flushed   atomic.Int64
	reserved  atomic.Int64 // bytes before it, from the first unwritten page on, have blocks
	populated atomic.Int64 // pages before it were made present; owned by the allocator's worker
	rewritten atomic.Bool  // bytes below flushed changed: the next flush covers the whole file
	locked    atomic.Bool  // LockMemory was called
	buf       atomic.Pointer[buffer]
	kicked    atomic.Bool // waits for the allocator's worker
	nextKick  int64       // position at which the writer wakes the worker; owned by the writer

	view   atomic.Pointer[view]
	closed atomic.Bool

	// The locks are taken in this order.
	flushMu   sync.Mutex // one sync at a time
	reserveMu sync.Mutex // reserving blocks, cutting
	mu        sync.Mutex // opening, replacing and closing the view; unlinking
	commitMu  sync.Mutex // moving bytes from buf to the file

	unlinked bool // guarded by mu
}

func newFile(sh *shared, dir, path string, start, size int64) *File {
	return &File{sh: sh, dir: dir, path: path, start: start, size: size}
}

// Start is the offset of the file's first byte in the queue.
func (f *File) Start() int64 { return f.start }

// End is the offset of the first byte behind the file.
func (f *File) End() int64 { return f.start + f.size }

// Size is the length that every file of the queue has. A file that was cut
// short on disk reads as zeros up to Size.
func (f *File) Size() int64 { return f.size }

// Path is the name of the file as it was opened. It stays when the file goes.
func (f *File) Path() string { return f.path }

// Wrote is the position at which the next append starts (RocketMQ:
// wrotePosition).
func (f *File) Wrote() int64 { return f.wrote.Load() }

// Readable is the end of what ReadAt returns (RocketMQ: getReadPosition): the
// committed position while the file is written through a buffer of the
// transient pool, else the same as Wrote.
func (f *File) Readable() int64 {
	if f.buf.Load() != nil {
		return f.committed.Load()
	}
	return f.wrote.Load()
}

// Committed is the end of what the operating system has been given. Without a
// transient buffer that is everything written.
func (f *File) Committed() int64 { return f.Readable() }

// Flushed is the end of what is on stable storage. It never falls, except by
// Queue.TruncateTo and Queue.MarkUnflushed.
func (f *File) Flushed() int64 { return f.flushed.Load() }

// Full reports whether the file has been written to its end.
func (f *File) Full() bool { return f.wrote.Load() == f.size }

// Allocated is the end of the blocks known to be reserved.
func (f *File) Allocated() int64 { return f.reserved.Load() }

// setPositions makes pos the end of the content. Of blocks nothing is known:
// a file that exists may have holes anywhere.
func (f *File) setPositions(pos int64) {
	f.wrote.Store(pos)
	f.committed.Store(pos)
	f.flushed.Store(pos)
	f.reserved.Store(0)
	f.populated.Store(0)
	f.nextKick = 0
}

// Append stores p at Wrote and publishes it. It returns the position of the
// first byte. On an error nothing has been appended: ErrFull when p does not
// fit, base.ErrDiskFull when there is no space, base.ErrReadOnly after a
// failed sync.
func (f *File) Append(p []byte) (int64, error) {
	if err := f.Stage(p); err != nil {
		return 0, err
	}
	at := f.wrote.Load()
	f.Publish(int64(len(p)))
	return at, nil
}

// Stage stores p at Wrote without moving the position, so that readers do not
// see it and the next Stage overwrites it. A caller that stages bytes must
// publish them; after an error there is nothing to publish.
func (f *File) Stage(p []byte) error {
	at := f.wrote.Load()
	end := at + int64(len(p))
	if end > f.size {
		return fmt.Errorf("append %d bytes at %d of %s: %w", len(p), at, f.path, ErrFull)
	}
	if err := f.sh.fail.err(); err != nil {
		return err
	}
	if end > f.reserved.Load() {
		if err := f.EnsureAllocated(end); err != nil {
			return err
		}
	}
	if b := f.buf.Load(); b != nil {
		copy(b.data[at:end], p)
		return nil
	}
	v, err := f.acquireWritable()
	if err != nil {
		return err
	}
	defer v.unpin()
	n, err := v.writeAt(p, at)
	if err != nil {
		if v.mapping != nil {
			n = len(p) // a copy that faulted does not know how far it came
		}
		err = f.scrub(v, at, n, err)
	}
	return err
}

// scrub removes what a failed write left behind the end: nobody has been
// promised those bytes, and a later, shorter append would leave some of them
// looking like content after a crash. When even that fails the file may not
// be written any more.
func (f *File) scrub(v *view, at int64, n int, cause error) error {
	if n == 0 {
		return cause
	}
	if _, err := writeFull(v.file, make([]byte, n), at); err != nil {
		return f.sh.fail.set(errors.Join(cause, err))
	}
	return cause
}

// Publish moves Wrote forward by n after Stage. n may exceed what was staged:
// the bytes between read as zeros. That is how a blank record claims the rest
// of a file.
func (f *File) Publish(n int64) {
	end := f.wrote.Load() + n
	if n < 0 || end > f.size { // around the call, whose arguments would be allocated each time
		base.Assert(false, "publish %d bytes up to %d of %d in %s", n, end, f.size, f.path)
	}
	f.wrote.Store(end)
	if end >= f.nextKick && f.sh.alloc != nil {
		f.nextKick = end + f.sh.alloc.opt.PopulateChunk/2
		f.sh.alloc.kick(f)
	}
}

// WriteAt changes bytes in front of Wrote. They are on stable storage after
// the next Flush with 0 pages. It always writes positionally, because old
// files may have holes where a store through the mapping could fault.
func (f *File) WriteAt(p []byte, off int64) (int, error) {
	if end := f.wrote.Load(); off < 0 || off > end || int64(len(p)) > end-off {
		return 0, fmt.Errorf("write %d bytes at %d of %s: outside [0, %d)", len(p), off, f.path, end)
	}
	if err := f.sh.fail.err(); err != nil {
		return 0, err
	}
	f.reserveMu.Lock() // whose range may begin in the page of the last byte
	defer f.reserveMu.Unlock()
	v, err := f.acquireWritable()
	if err != nil {
		return 0, err
	}
	defer v.unpin()
	f.commitMu.Lock()
	defer f.commitMu.Unlock()
	inFile := len(p)
	if b := f.buf.Load(); b != nil {
		inFile = int(min(max(f.committed.Load()-off, 0), int64(len(p))))
		copy(b.data[off+int64(inFile):], p[inFile:])
	}
	n, err := writeFull(v.file, p[:inFile], off)
	f.rewritten.Store(true) // now, not before: a sync that runs meanwhile may miss the bytes
	if err != nil {
		return n, fmt.Errorf("write %d bytes at %d of %s: %w", len(p), off, f.path, err)
	}
	return len(p), nil
}

// ReadAt copies bytes in front of Readable. Like every io.ReaderAt it returns
// io.EOF when there are fewer than len(p). After Remove or Close it returns
// base.ErrClosed; a read that has begun by then is completed.
func (f *File) ReadAt(p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("read at %d of %s: negative offset", off, f.path)
	}
	var eof error
	if rest := f.Readable() - off; rest < int64(len(p)) {
		p = p[:max(rest, 0)]
		eof = io.EOF
	}
	v, err := f.acquire()
	if err != nil {
		return 0, err
	}
	defer v.unpin()
	if err := v.readAt(p, off); err != nil {
		return 0, err
	}
	return len(p), eof
}

// acquire pins the current view, opening the file when nobody has yet.
func (f *File) acquire() (*view, error) {
	for {
		v := f.view.Load()
		if v != nil && v.pin() {
			return v, nil
		}
		if f.closed.Load() {
			return nil, fmt.Errorf("%s: %w", f.path, base.ErrClosed)
		}
		if v == nil {
			if err := f.open(false); err != nil {
				return nil, err
			}
		}
		// Otherwise the view has been replaced; the new one is stored before
		// the old one is let go.
	}
}

// acquireWritable pins a view that is writable and has the full length.
func (f *File) acquireWritable() (*view, error) {
	for {
		v, err := f.acquire()
		if err != nil || v.writable {
			return v, err
		}
		v.unpin()
		if err := f.open(true); err != nil {
			return nil, err
		}
	}
}

// open makes a view unless there is a suitable one.
func (f *File) open(writable bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed.Load() {
		return fmt.Errorf("%s: %w", f.path, base.ErrClosed)
	}
	if v := f.view.Load(); v != nil && (v.writable || !writable) {
		return nil
	}
	if writable && f.readOnly {
		return fmt.Errorf("%s is in a directory that is only read: %w", f.path, base.ErrReadOnly)
	}
	mode := vfs.ReadOnly
	if writable {
		mode = vfs.ReadWrite
	}
	h, err := f.sh.fs.Open(f.path, mode)
	if err != nil {
		return fmt.Errorf("open segment: %w", err)
	}
	length, err := h.Size()
	if err == nil && length != f.size {
		switch {
		case !f.misfit:
			err = base.Corruptf(f.path, 0, "size %d, expected %d", length, f.size)
		case writable:
			// The first change of a file that was cut short, or that is a
			// little too long, gives it the length that RocketMQ expects.
			if err = h.Truncate(f.size); err == nil {
				if err = h.Sync(); err != nil {
					err = f.sh.fail.set(err)
				}
			}
			length = f.size
		}
	}
	if err != nil {
		h.Close()
		return fmt.Errorf("open segment: %w", err)
	}
	v := f.newView(h, length, writable)
	if v.mapping != nil && !writable {
		v.closeFile() // thousands of old files must not need thousands of descriptors
	}
	f.setViewLocked(v)
	return nil
}

// newView maps the file where that is wanted and possible. A mapping that
// cannot be made (a 32-bit address space is soon full) is no reason to fail:
// positional access does the same.
func (f *File) newView(h vfs.File, length int64, writable bool) *view {
	v := &view{path: f.path, file: h, length: length, writable: writable, log: f.sh.log}
	if !f.sh.mapped || length < f.size {
		return v
	}
	m, err := h.Map(writable)
	if err != nil {
		f.sh.log.Warn("map file, going on without", "file", f.path, "err", err)
		return v
	}
	if f.sh.random {
		if err := m.Advise(0, f.size, vfs.Random); err != nil {
			f.sh.log.Debug("advise random access", "file", f.path, "err", err)
		}
	}
	v.mapping = m
	return v
}

// letGo closes the view with its last user. The next one opens the file anew.
func (f *File) letGo() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.closed.Load() {
		f.setViewLocked(nil)
	}
}

// setViewLocked replaces the view; f.mu is held.
func (f *File) setViewLocked(v *view) {
	if old := f.view.Swap(v); old != nil {
		old.release()
	}
}

// Close lets go of mapping and handle; the last reader closes them. It flushes
// nothing. Calling it again does nothing.
func (f *File) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closeLocked()
	return nil
}

func (f *File) closeLocked() {
	if f.closed.Swap(true) {
		return
	}
	if v := f.view.Load(); v != nil {
		v.release()
	}
	f.commitMu.Lock()
	defer f.commitMu.Unlock()
	if b := f.buf.Swap(nil); b != nil {
		// What was not committed is lost, so the file ends at what was.
		f.wrote.Store(f.committed.Load())
		b.giveBack()
	}
}

// Remove unlinks the file durably and closes it as Close does: the name is
// gone when it returns, the space when the last reader has finished. When the
// name cannot be removed the file stays as it was. When only the sync of the
// directory fails the file is gone but may come back after a crash.
func (f *File) Remove() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.readOnly {
		return fmt.Errorf("remove %s, in a directory that is only read: %w", f.path, base.ErrReadOnly)
	}
	if !f.unlinked {
		if err := removeName(f.sh.fs, f.path); err != nil {
			return fmt.Errorf("remove segment: %w", err)
		}
		f.unlinked = true
		f.closeLocked()
	}
	if err := f.sh.fs.SyncDir(f.dir); err != nil {
		return fmt.Errorf("sync directory after removing %s: %w", f.path, err)
	}
	return nil
}
