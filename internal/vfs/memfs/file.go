package memfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"sync"
	"syscall"

	"github.com/gantrymq/gantry/internal/vfs"
)

// file is an open file.
type file struct {
	fs       *FS
	n        *node
	name     string
	writable bool
	closed   bool // guarded by FS.mu
}

func (f *FS) newFileLocked(n *node, name string, writable bool) *file {
	n.refs++
	return &file{fs: f, n: n, name: name, writable: writable}
}

// checkLocked returns the error of an operation on f that needs the file open,
// and writable when write is true.
func (f *file) checkLocked(op string, write bool) error {
	switch {
	case f.closed:
		return pathError(op, f.name, fs.ErrClosed)
	case write && !f.writable:
		return pathError(op, f.name, syscall.EBADF)
	}
	return nil
}

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if err := f.checkLocked("read", false); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("read", f.name, errors.New("negative offset"))
	}
	n := int(min(int64(len(p)), max(0, f.n.size-off)))
	f.n.readLocked(p[:n], off)
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.checkLocked("write", true); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("write", f.name, errors.New("negative offset"))
	}
	if off > math.MaxInt64-int64(len(p)) {
		return 0, pathError("write", f.name, syscall.EFBIG)
	}
	n, err := f.fs.writeLocked(&f.n.content, p, off)
	if n > 0 {
		f.fs.setSizeLocked(&f.n.content, max(f.n.size, off+int64(n)))
		f.n.modTime = f.fs.now()
	}
	if err != nil {
		return n, pathError("write", f.name, err)
	}
	return n, nil
}

func (f *file) Size() (int64, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if err := f.checkLocked("stat", false); err != nil {
		return 0, err
	}
	return f.n.size, nil
}

func (f *file) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.checkLocked("truncate", true); err != nil {
		return err
	}
	if size < 0 {
		return pathError("truncate", f.name, fs.ErrInvalid)
	}
	f.fs.truncateLocked(&f.n.content, size)
	f.n.modTime = f.fs.now()
	return nil
}

func (f *file) Allocate(off, n int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.checkLocked("allocate", true); err != nil {
		return err
	}
	if off < 0 || n < 0 || off > math.MaxInt64-n {
		return pathError("allocate", f.name, fs.ErrInvalid)
	}
	if n == 0 {
		return nil
	}
	f.fs.seq++
	if err := f.fs.allocateLocked(&f.n.content, off/pageSize, pagesFor(off+n)); err != nil {
		return pathError("allocate", f.name, err)
	}
	return nil
}

func (f *file) NextData(off int64) (int64, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if err := f.checkLocked("seek", false); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("seek", f.name, errors.New("negative offset"))
	}
	idx := f.n.nextPage(off / pageSize)
	if idx < 0 {
		return f.n.size, nil
	}
	return min(f.n.size, max(off, idx*pageSize)), nil
}

func (f *file) Sync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.checkLocked("sync", false); err != nil {
		return err
	}
	f.fs.syncLocked(&f.n.content)
	return nil
}

// DropDirty is what a failed sync does to pages of [off, off+n) that are not
// durable; n < 0 means to the end. They read as before but will never be
// durable, until they are written again. Package faultfs looks for this method
// when it makes a sync fail.
func (f *file) DropDirty(off, n int64) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	dropRangeLocked(f.fs, f.n, off, n)
}

func dropRangeLocked(f *FS, n *node, off, length int64) {
	hi := int64(math.MaxInt64)
	if length >= 0 {
		hi = pagesFor(off + length)
	}
	f.dropLocked(&n.content, off/pageSize, hi)
}

func (f *file) Map(writable bool) (vfs.Mapping, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.checkLocked("map", writable); err != nil {
		return nil, err
	}
	f.n.refs++
	return &mapping{fs: f.fs, n: f.n, name: f.name, length: f.n.size, writable: writable}, nil
}

func (f *file) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.checkLocked("close", false); err != nil {
		return err
	}
	f.closed = true
	f.n.refs--
	f.fs.releaseLocked(f.n)
	return nil
}

// lock is a locked file.
type lock struct {
	*file
	once sync.Once
}

// Close may be called again.
func (l *lock) Close() error {
	var err error
	l.once.Do(func() {
		l.fs.mu.Lock()
		l.n.locked = false
		l.fs.mu.Unlock()
		err = l.file.Close()
	})
	return err
}

// mapping is a view of a file. Like a real one it may be longer than the file
// has become since: pages behind the end of the file fault.
type mapping struct {
	fs       *FS
	n        *node
	name     string
	length   int64
	writable bool
	unmapped bool // guarded by FS.mu
}

// checkLocked panics for what is a bug of the caller.
func (m *mapping) checkLocked(off, n int64) {
	if m.unmapped {
		panic("memfs: mapping of " + m.name + " used after Unmap")
	}
	if off < 0 || n < 0 || off > m.length-n {
		panic(fmt.Sprintf("memfs: range [%d, %d+%d) outside the mapping of %s (%d bytes)", off, off, n, m.name, m.length))
	}
}

// faultsLocked reports whether the range has a page behind the end of the file.
func (m *mapping) faultsLocked(off, n int64) bool {
	return n > 0 && pagesFor(off+n) > pagesFor(m.n.size)
}

func (m *mapping) ReadAt(p []byte, off int64) (int, error) {
	m.fs.mu.RLock()
	defer m.fs.mu.RUnlock()
	m.checkLocked(off, int64(len(p)))
	if m.faultsLocked(off, int64(len(p))) {
		return 0, pathError("read mapped", m.name, vfs.ErrFault)
	}
	m.n.readLocked(p, off)
	return len(p), nil
}

func (m *mapping) WriteAt(p []byte, off int64) (int, error) {
	m.fs.mu.Lock()
	defer m.fs.mu.Unlock()
	m.checkLocked(off, int64(len(p)))
	if !m.writable {
		return 0, pathError("write mapped", m.name, fs.ErrPermission)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if m.faultsLocked(off, int64(len(p))) {
		return 0, pathError("write mapped", m.name, vfs.ErrFault)
	}
	if m.fs.requireAllocated {
		for idx := off / pageSize; idx < pagesFor(off+int64(len(p))); idx++ {
			if !m.n.hasBlock(idx) {
				panic(fmt.Sprintf("memfs: store into page %d of %s, which was not allocated", idx, m.name))
			}
		}
	}
	// What is stored between the end of the file and the end of its last page
	// never gets into the file.
	inFile := min(int64(len(p)), max(0, m.n.size-off))
	if _, err := m.fs.writeLocked(&m.n.content, p[:inFile], off); err != nil {
		panic("SIGBUS: store into a page of " + m.name + " that has no block on a full file system")
	}
	m.n.modTime = m.fs.now()
	return len(p), nil
}

func (m *mapping) Flush(off, n int64) error {
	m.fs.mu.Lock()
	defer m.fs.mu.Unlock()
	m.checkLocked(off, n)
	m.fs.flushLocked(&m.n.content, off, n)
	return nil
}

// DropDirty is as for a file.
func (m *mapping) DropDirty(off, n int64) {
	m.fs.mu.Lock()
	defer m.fs.mu.Unlock()
	dropRangeLocked(m.fs, m.n, off, n)
}

func (m *mapping) Populate(off, n int64) error             { return m.hint(off, n) }
func (m *mapping) Advise(off, n int64, a vfs.Advice) error { return m.hint(off, n) }
func (m *mapping) LockMemory(off, n int64) error           { return m.hint(off, n) }
func (m *mapping) UnlockMemory(off, n int64) error         { return m.hint(off, n) }

// hint checks the arguments of calls that change nothing that can be seen.
func (m *mapping) hint(off, n int64) error {
	m.fs.mu.RLock()
	defer m.fs.mu.RUnlock()
	m.checkLocked(off, n)
	return nil
}

func (m *mapping) Unmap() error {
	m.fs.mu.Lock()
	defer m.fs.mu.Unlock()
	if m.unmapped {
		return pathError("unmap", m.name, fs.ErrClosed)
	}
	m.unmapped = true
	m.n.refs--
	m.fs.releaseLocked(m.n)
	return nil
}
