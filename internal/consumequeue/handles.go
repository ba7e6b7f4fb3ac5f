package consumequeue

import (
	"errors"
	"sync"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// fileKey names a file: its queue (or extension) and number.
type fileKey struct {
	r *run
	n int64
}

// handle is an open file. It is used between acquire and release only.
type handle struct {
	key  fileKey
	file vfs.File

	// Guarded by handles.mu.
	refs       int  // users
	gone       bool // no longer in the table; the last user closes
	prev, next *handle
}

// handles keeps the most recently used files of a table open, at most max of
// them besides those in use.
type handles struct {
	fs  vfs.FS
	max int
	// closeFailed is told when closing a file fails: what was written to it
	// may be lost.
	closeFailed func(error)

	mu   sync.Mutex
	open map[fileKey]*handle
	ring handle // ring.next is the most recently used
	// drops counts calls of drop. An open that overlaps one is repeated,
	// because its name may have changed hands in between.
	drops  uint64
	closed bool
}

func newHandles(fs vfs.FS, max int, closeFailed func(error)) *handles {
	c := &handles{fs: fs, max: max, closeFailed: closeFailed, open: make(map[fileKey]*handle)}
	c.ring.prev, c.ring.next = &c.ring, &c.ring
	return c
}

// acquire returns the open file r/n; the caller releases it.
func (c *handles) acquire(r *run, n int64) (*handle, error) {
	key := fileKey{r, n}
	for {
		c.mu.Lock()
		if h := c.open[key]; h != nil {
			h.refs++
			c.unlink(h)
			c.link(h)
			c.mu.Unlock()
			return h, nil
		}
		drops, closed := c.drops, c.closed
		c.mu.Unlock()
		if closed {
			return nil, base.ErrClosed
		}

		f, err := c.fs.Open(r.path(n), vfs.ReadWrite)
		if err != nil {
			return nil, err
		}

		c.mu.Lock()
		if c.drops != drops || c.open[key] != nil {
			c.mu.Unlock()
			c.closeFiles(f)
			continue
		}
		h := c.addLocked(key, f)
		idle := c.shrinkLocked()
		c.mu.Unlock()
		c.closeFiles(idle...)
		return h, nil
	}
}

// adopt takes over a file that was just created.
func (c *handles) adopt(r *run, n int64, f vfs.File) *handle {
	c.mu.Lock()
	h := c.addLocked(fileKey{r, n}, f)
	idle := c.shrinkLocked()
	c.mu.Unlock()
	c.closeFiles(idle...)
	return h
}

func (c *handles) addLocked(key fileKey, f vfs.File) *handle {
	h := &handle{key: key, file: f, refs: 1}
	c.open[key] = h
	c.link(h)
	return h
}

// release ends the use of h.
func (c *handles) release(h *handle) {
	c.mu.Lock()
	h.refs--
	var idle []vfs.File
	switch {
	case h.gone && h.refs == 0:
		idle = append(idle, h.file)
	case len(c.open) > c.max:
		idle = c.shrinkLocked()
	}
	c.mu.Unlock()
	c.closeFiles(idle...)
}

// shrinkLocked takes the least recently used idle handles out until max are
// left, and returns their files for closing.
func (c *handles) shrinkLocked() (idle []vfs.File) {
	for h := c.ring.prev; h != &c.ring && len(c.open) > c.max; {
		prev := h.prev
		if h.refs == 0 {
			c.removeLocked(h)
			idle = append(idle, h.file)
		}
		h = prev
	}
	return idle
}

// drop forgets r/n, whose name is gone or about to go.
func (c *handles) drop(r *run, n int64) {
	c.mu.Lock()
	c.drops++
	var idle []vfs.File
	if h := c.open[fileKey{r, n}]; h != nil {
		c.removeLocked(h)
		if h.refs == 0 {
			idle = append(idle, h.file)
		}
	}
	c.mu.Unlock()
	c.closeFiles(idle...)
}

// dropAll forgets every file of r, or of all when r is nil.
func (c *handles) dropAll(r *run) {
	c.mu.Lock()
	c.drops++
	var idle []vfs.File
	for h := c.ring.next; h != &c.ring; {
		next := h.next
		if r == nil || h.key.r == r {
			c.removeLocked(h)
			if h.refs == 0 {
				idle = append(idle, h.file)
			}
		}
		h = next
	}
	c.mu.Unlock()
	c.closeFiles(idle...)
}

// len is the number of open handles.
func (c *handles) len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.open)
}

func (c *handles) removeLocked(h *handle) {
	delete(c.open, h.key)
	c.unlink(h)
	h.gone = true
}

func (c *handles) link(h *handle) {
	h.prev, h.next = &c.ring, c.ring.next
	h.prev.next, h.next.prev = h, h
}

func (c *handles) unlink(h *handle) {
	h.prev.next, h.next.prev = h.next, h.prev
}

// close closes what is open and refuses to open more. Files in use are closed
// by their last user.
func (c *handles) close() {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.dropAll(nil)
}

// closeFiles closes files outside the lock.
func (c *handles) closeFiles(files ...vfs.File) {
	var errs []error
	for _, f := range files {
		if err := f.Close(); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil && c.closeFailed != nil {
		c.closeFailed(err)
	}
}
