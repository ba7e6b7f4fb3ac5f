package overlayfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"slices"
	"sync"
	"syscall"

	"github.com/gantrymq/gantry/internal/vfs"
)

const pageSize = 4096

type page [pageSize]byte

var zeroPage page

// content is what is in a file: the pages of the overlay, then, up to limit,
// the bytes of the base, then zeros. FS.mu guards it.
type content struct {
	size  int64
	pages map[int64]pageRef
	// order has the keys of pages, sorted; nil when it must be made again.
	order []int64
	// limit is how much of the base's file still counts: less than its size
	// after a truncation.
	limit int64
	// source is the base's file while somebody has this one open and limit is
	// not zero.
	source vfs.File
	// sizeUnknown: the base has a link, and size and limit are not set before
	// it is opened.
	sizeUnknown bool
}

// acquireLocked counts a user of the file and opens the base's file for it.
func (f *FS) acquireLocked(n *node) error {
	if n.source == nil && (n.limit > 0 || n.sizeUnknown) {
		b, err := f.base.Open(n.below, vfs.ReadOnly)
		if err != nil {
			return err
		}
		if n.sizeUnknown {
			if n.size, err = b.Size(); err != nil {
				b.Close()
				return err
			}
			n.limit, n.sizeUnknown = n.size, false
		}
		n.source = b
	}
	n.refs++
	return nil
}

// readLocked fills p, which lies inside the file.
func (f *FS) readLocked(c *content, p []byte, off int64) error {
	for len(p) > 0 {
		idx, in := off/pageSize, off%pageSize
		n := min(int64(len(p)), pageSize-in)
		var err error
		if ref := c.pages[idx]; ref != 0 {
			err = f.pages.read(p[:n], ref, in)
		} else {
			// As many pages of the base as possible at once.
			for n < int64(len(p)) && c.pages[(off+n)/pageSize] == 0 {
				n += min(int64(len(p))-n, pageSize)
			}
			err = c.readBelow(p[:n], off)
		}
		if err != nil {
			return err
		}
		p, off = p[n:], off+n
	}
	return nil
}

// readBelow fills p from the base, with zeros behind limit.
func (c *content) readBelow(p []byte, off int64) error {
	n := min(int64(len(p)), max(0, c.limit-off))
	clear(p[n:])
	if n == 0 {
		return nil
	}
	got, err := c.source.ReadAt(p[:n], off)
	if err == io.EOF { // the base became shorter
		clear(p[got:n])
		err = nil
	}
	return err
}

// writeLocked copies p into pages of the overlay.
func (f *FS) writeLocked(c *content, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		idx, in := (off+int64(n))/pageSize, (off+int64(n))%pageSize
		chunk := p[n:min(len(p), n+int(pageSize-in))]
		if len(chunk) == pageSize && isZero(chunk) {
			f.pages.remove(c.pages[idx])
			c.setPage(idx, zeros) // clearing a file must not cost memory
		} else {
			pg, err := f.pageLocked(c, idx, len(chunk) < pageSize)
			if err != nil {
				return n, err
			}
			copy(pg.page[in:], chunk)
		}
		n += len(chunk)
	}
	return n, nil
}

// pageLocked returns page idx for changing it, filled with what it holds when
// load is true.
func (f *FS) pageLocked(c *content, idx int64, load bool) (*frame, error) {
	ref := c.pages[idx]
	if ref > 0 {
		return f.pages.change(ref)
	}
	fresh, pg := f.pages.add()
	clear(pg.page[:])
	if load && ref == 0 {
		if err := c.readBelow(pg.page[:], idx*pageSize); err != nil {
			f.pages.remove(fresh)
			return nil, err
		}
	}
	c.setPage(idx, fresh)
	return pg, nil
}

func (c *content) setPage(idx int64, ref pageRef) {
	if c.pages == nil {
		c.pages = map[int64]pageRef{}
	}
	if c.pages[idx] == 0 {
		c.order = nil
	}
	c.pages[idx] = ref
}

func isZero(p []byte) bool { return string(p) == string(zeroPage[:len(p)]) }

func (f *FS) truncateLocked(c *content, size int64) error {
	if size < c.size {
		if in := size % pageSize; in != 0 {
			if ref := c.pages[size/pageSize]; ref > 0 {
				pg, err := f.pages.change(ref)
				if err != nil {
					return err
				}
				clear(pg.page[in:])
			}
		}
		end := (size + pageSize - 1) / pageSize
		for idx, ref := range c.pages {
			if idx >= end {
				f.pages.remove(ref)
				delete(c.pages, idx)
				c.order = nil
			}
		}
		c.limit = min(c.limit, size)
	}
	c.size = size
	return nil
}

// forgetLocked frees all pages of a file.
func (f *FS) forgetLocked(c *content) {
	for _, ref := range c.pages {
		f.pages.remove(ref)
	}
	c.pages, c.order = nil, nil
}

// nextPage returns the first page >= idx of the overlay, or -1.
func (c *content) nextPage(idx int64) int64 {
	if c.order == nil {
		c.order = slices.Sorted(maps.Keys(c.pages))
	}
	i, _ := slices.BinarySearch(c.order, idx)
	if i == len(c.order) {
		return -1
	}
	return c.order[i]
}

// file is an open file.
type file struct {
	fs       *FS
	place    // where it was found
	writable bool
	closed   bool // guarded by FS.mu
}

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
	n := int(min(int64(len(p)), max(0, f.node.size-off)))
	if err := f.fs.readLocked(&f.node.content, p[:n], off); err != nil {
		return 0, err
	}
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
	if len(p) == 0 {
		return 0, nil
	}
	n, err := f.fs.writeLocked(&f.node.content, p, off)
	if n > 0 {
		f.node.size = max(f.node.size, off+int64(n))
		f.node.touchLocked()
	}
	return n, err
}

func (n *node) touchLocked() {
	n.changed = true
	n.modTime = nowMillis()
}

func (f *file) Size() (int64, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if err := f.checkLocked("stat", false); err != nil {
		return 0, err
	}
	return f.node.size, nil
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
	if err := f.fs.truncateLocked(&f.node.content, size); err != nil {
		return pathError("truncate", f.name, err)
	}
	f.node.touchLocked()
	return nil
}

// Allocate has nothing to reserve.
func (f *file) Allocate(off, n int64) error {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if err := f.checkLocked("allocate", true); err != nil {
		return err
	}
	if off < 0 || n < 0 || off > math.MaxInt64-n {
		return pathError("allocate", f.name, fs.ErrInvalid)
	}
	return nil
}

func (f *file) NextData(off int64) (int64, error) {
	f.fs.mu.Lock() // nextPage may sort
	defer f.fs.mu.Unlock()
	if err := f.checkLocked("seek", false); err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, pathError("seek", f.name, errors.New("negative offset"))
	}
	c := &f.node.content
	next := c.size
	// A page of the base counts even where the overlay has zeros instead; the
	// answer is only a hint.
	if off < c.limit {
		below, err := c.source.NextData(off)
		if err != nil {
			return 0, err
		}
		if below < c.limit {
			next = min(next, max(off, below))
		}
	}
	if idx := c.nextPage(off / pageSize); idx >= 0 {
		next = min(next, max(off, idx*pageSize))
	}
	return next, nil
}

// Sync has nothing to do.
func (f *file) Sync() error {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	return f.checkLocked("sync", false)
}

func (f *file) Map(writable bool) (vfs.Mapping, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.checkLocked("map", writable); err != nil {
		return nil, err
	}
	f.node.refs++
	return &mapping{file: f, length: f.node.size, writable: writable}, nil
}

func (f *file) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.checkLocked("close", false); err != nil {
		return err
	}
	f.closed = true
	return f.leaveLocked()
}

// leaveLocked ends one use of the file. A node that nobody uses and that says
// nothing new is forgotten: reading a large store must not fill the memory.
func (f *file) leaveLocked() error {
	n := f.node
	if n.refs--; n.refs > 0 {
		return nil
	}
	if n.gone {
		f.fs.forgetLocked(&n.content)
	} else if !n.changed && f.dir.children[f.last] == n {
		delete(f.dir.children, f.last)
	}
	if n.source == nil {
		return nil
	}
	err := n.source.Close()
	n.source = nil
	return err
}

// lock is a locked file.
type lock struct {
	*file
	once sync.Once
	err  error
}

// Close may be called again.
func (l *lock) Close() error {
	l.once.Do(func() {
		l.fs.mu.Lock()
		l.node.locked = false
		l.fs.mu.Unlock()
		l.err = l.file.Close()
	})
	return l.err
}

// mapping is a view of a file.
type mapping struct {
	file     *file // only for its node and name: it may be closed
	length   int64
	writable bool
	unmapped bool // guarded by FS.mu
}

func (m *mapping) checkLocked(off, n int64) {
	if m.unmapped {
		panic("overlayfs: mapping of " + m.file.name + " used after Unmap")
	}
	if off < 0 || n < 0 || off > m.length-n {
		panic(fmt.Sprintf("overlayfs: range [%d, %d+%d) outside the mapping of %s (%d bytes)", off, off, n, m.file.name, m.length))
	}
}

// faultsLocked reports whether the range has a page behind the end of the file.
func (m *mapping) faultsLocked(off, n int64) bool {
	pages := func(size int64) int64 { return size/pageSize + min(1, size%pageSize) }
	return n > 0 && pages(off+n) > pages(m.file.node.size)
}

func (m *mapping) ReadAt(p []byte, off int64) (int, error) {
	m.file.fs.mu.RLock()
	defer m.file.fs.mu.RUnlock()
	m.checkLocked(off, int64(len(p)))
	if m.faultsLocked(off, int64(len(p))) {
		return 0, pathError("read mapped", m.file.name, vfs.ErrFault)
	}
	if err := m.file.fs.readLocked(&m.file.node.content, p, off); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (m *mapping) WriteAt(p []byte, off int64) (int, error) {
	m.file.fs.mu.Lock()
	defer m.file.fs.mu.Unlock()
	m.checkLocked(off, int64(len(p)))
	if !m.writable {
		return 0, pathError("write mapped", m.file.name, fs.ErrPermission)
	}
	if len(p) == 0 {
		return 0, nil
	}
	if m.faultsLocked(off, int64(len(p))) {
		return 0, pathError("write mapped", m.file.name, vfs.ErrFault)
	}
	// What is stored between the end of the file and the end of its last page
	// never gets into the file.
	inFile := min(int64(len(p)), max(0, m.file.node.size-off))
	if n, err := m.file.fs.writeLocked(&m.file.node.content, p[:inFile], off); err != nil {
		return n, err
	}
	m.file.node.touchLocked()
	return len(p), nil
}

func (m *mapping) Flush(off, n int64) error                { return m.hint(off, n) }
func (m *mapping) Populate(off, n int64) error             { return m.hint(off, n) }
func (m *mapping) Advise(off, n int64, a vfs.Advice) error { return m.hint(off, n) }
func (m *mapping) LockMemory(off, n int64) error           { return m.hint(off, n) }
func (m *mapping) UnlockMemory(off, n int64) error         { return m.hint(off, n) }

// hint checks the arguments of calls that change nothing that can be seen.
func (m *mapping) hint(off, n int64) error {
	m.file.fs.mu.RLock()
	defer m.file.fs.mu.RUnlock()
	m.checkLocked(off, n)
	return nil
}

func (m *mapping) Unmap() error {
	m.file.fs.mu.Lock()
	defer m.file.fs.mu.Unlock()
	if m.unmapped {
		return pathError("unmap", m.file.name, fs.ErrClosed)
	}
	m.unmapped = true
	return m.file.leaveLocked()
}
