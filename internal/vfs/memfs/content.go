package memfs

import (
	"math/bits"
	"slices"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/base"
)

const (
	pageSize   = 4096
	sectorSize = 512
)

// page is one page of a file. A shared page has more than one owner (the
// durable image, a clone) and never changes again: the flag is set under the
// lock of the only file system that knows the page, before a second one can.
type page struct {
	data   [pageSize]byte
	shared bool
	sum    atomic.Uint64 // of data, once it was asked for; of shared pages only
}

var zeroPage = &page{shared: true}

// share marks p as unchangeable and returns it; a hole stays nil.
func share(p *page) *page {
	if p != nil && !p.shared {
		p.shared = true
	}
	return p
}

// content is what is in a file. A page that is not in pages reads as zeros; no
// page lies completely behind size, and the bytes behind size in the last page
// are zero.
type content struct {
	size  int64
	pages map[int64]*page
	// blocks has a bit for each page with a block: all in pages and those that
	// were reserved. Bit i of word w is page 64w+i.
	blocks map[int64]uint64

	// What differs from stable storage; only of crashable file systems.
	dirty       map[int64]*dirtyPage
	dirtySize   *dirtySize
	dirtyBlocks map[int64]uint64 // allocated, but not durably
}

// dirtyPage is the history of a page since it was durable.
type dirtyPage struct {
	old    *page // what is durable; nil: a hole
	mid    *page // what it was at some moment in between; nil: nothing kept
	midSeq uint64
	seq    uint64 // of the last change
	writes uint64
	// lost: a sync failed and the system now believes the page to be clean. It
	// reads as written, until it is evicted, but never gets to the disk.
	lost bool
}

type dirtySize struct {
	old, mid    int64
	midSeq, seq uint64
	changes     uint64
}

func (c *content) hasBlock(idx int64) bool { return c.blocks[idx>>6]&(1<<(idx&63)) != 0 }

// allocated counts the pages with a block.
func (c *content) allocated() int64 {
	n := 0
	for _, w := range c.blocks {
		n += bits.OnesCount64(w)
	}
	return int64(n)
}

// wordMask has the bits of word w that belong to the pages [lo, hi).
func wordMask(w, lo, hi int64) uint64 {
	mask := ^uint64(0)
	if first := lo - w*64; first > 0 {
		mask &^= 1<<first - 1
	}
	if last := hi - w*64; last < 64 {
		mask &= 1<<last - 1
	}
	return mask
}

// allocateLocked gives the pages [lo, hi) blocks, all or none.
func (f *FS) allocateLocked(c *content, lo, hi int64) error {
	missing := int64(0)
	limit := f.limitLocked()
	for w := lo >> 6; w <= (hi-1)>>6; w++ {
		missing += int64(bits.OnesCount64(wordMask(w, lo, hi) &^ c.blocks[w]))
		if f.used+missing*pageSize > limit {
			return base.ErrDiskFull
		}
	}
	if missing == 0 {
		return nil
	}
	if c.blocks == nil {
		c.blocks = map[int64]uint64{}
	}
	if f.crashable && c.dirtyBlocks == nil {
		c.dirtyBlocks = map[int64]uint64{}
	}
	for w := lo >> 6; w <= (hi-1)>>6; w++ {
		fresh := wordMask(w, lo, hi) &^ c.blocks[w]
		if fresh == 0 {
			continue
		}
		c.blocks[w] |= fresh
		if f.crashable {
			c.dirtyBlocks[w] |= fresh
		}
	}
	f.used += missing * pageSize
	return nil
}

// freeLocked takes the blocks of all pages from lo on away.
func (f *FS) freeLocked(c *content, lo int64) {
	for w, old := range c.blocks {
		if w < lo>>6 {
			continue
		}
		keep := old
		if w == lo>>6 {
			keep &= 1<<(lo&63) - 1
		} else {
			keep = 0
		}
		f.used -= int64(bits.OnesCount64(old&^keep)) * pageSize
		if keep == 0 {
			delete(c.blocks, w)
			delete(c.dirtyBlocks, w)
		} else {
			c.blocks[w] = keep
			if d, ok := c.dirtyBlocks[w]; ok {
				c.dirtyBlocks[w] = d & keep
			}
		}
	}
}

// touchLocked notes that page idx is about to change.
func (f *FS) touchLocked(c *content, idx int64) {
	f.seq++
	if !f.crashable {
		return
	}
	d := c.dirty[idx]
	switch {
	case d == nil:
		if c.dirty == nil {
			c.dirty = map[int64]*dirtyPage{}
		}
		d = &dirtyPage{old: share(c.pages[idx])}
		c.dirty[idx] = d
	case d.lost:
		// The page becomes dirty again, and with it all that it holds.
		d.lost, d.mid, d.writes = false, nil, 0
	default:
		// The system may write a page out at any moment. Keep one of the
		// moments, each with the same chance.
		if f.rng.Uint64N(d.writes) == 0 {
			if d.mid = share(c.pages[idx]); d.mid == nil {
				d.mid = zeroPage
			}
			d.midSeq = d.seq
		}
	}
	d.writes++
	d.seq = f.seq
}

// pageLocked returns page idx for changing it; it must have a block.
func (f *FS) pageLocked(c *content, idx int64) *page {
	f.touchLocked(c, idx)
	p := c.pages[idx]
	if p != nil && !p.shared {
		return p
	}
	fresh := &page{}
	if p != nil {
		fresh.data = p.data
	} else if c.pages == nil {
		c.pages = map[int64]*page{}
	}
	c.pages[idx] = fresh
	return fresh
}

// writeLocked copies p to off. It stops, and returns how far it came, when a
// page cannot get a block. The caller sets the size.
func (f *FS) writeLocked(c *content, p []byte, off int64) (n int, err error) {
	for n < len(p) {
		idx, in := (off+int64(n))/pageSize, (off+int64(n))%pageSize
		if !c.hasBlock(idx) {
			if err := f.allocateLocked(c, idx, idx+1); err != nil {
				return n, err
			}
		}
		n += copy(f.pageLocked(c, idx).data[in:], p[n:])
	}
	return n, nil
}

// readLocked fills p from off on; holes and everything behind the end read as
// zeros.
func (c *content) readLocked(p []byte, off int64) {
	for len(p) > 0 {
		idx, in := off/pageSize, off%pageSize
		n := min(int64(len(p)), pageSize-in)
		if pg := c.pages[idx]; pg != nil {
			copy(p[:n], pg.data[in:])
		} else {
			clear(p[:n])
		}
		p, off = p[n:], off+n
	}
}

func (f *FS) setSizeLocked(c *content, size int64) {
	if size == c.size {
		return
	}
	f.seq++
	if f.crashable {
		d := c.dirtySize
		if d == nil {
			d = &dirtySize{old: c.size}
			c.dirtySize = d
		} else if f.rng.Uint64N(d.changes) == 0 {
			d.mid, d.midSeq = c.size, d.seq
		}
		d.changes++
		d.seq = f.seq
	}
	c.size = size
}

// truncateLocked sets the length.
func (f *FS) truncateLocked(c *content, size int64) {
	if size <= c.size {
		end := pagesFor(size)
		var gone []int64
		for idx := range c.pages {
			if idx >= end {
				gone = append(gone, idx)
			}
		}
		slices.Sort(gone) // touching draws random numbers
		for _, idx := range gone {
			f.touchLocked(c, idx)
			delete(c.pages, idx)
		}
		if in := size % pageSize; in != 0 && c.pages[end-1] != nil {
			clear(f.pageLocked(c, end-1).data[in:])
		}
		f.freeLocked(c, end)
	}
	f.setSizeLocked(c, size)
}

// pagesFor is the number of pages of a file of size bytes.
func pagesFor(size int64) int64 {
	n := size / pageSize
	if size%pageSize != 0 {
		n++
	}
	return n
}

// syncLocked makes everything durable, except pages that are lost.
func (f *FS) syncLocked(c *content) {
	f.seq++
	for idx, d := range c.dirty {
		if !d.lost {
			delete(c.dirty, idx)
		}
	}
	c.dirtySize, c.dirtyBlocks = nil, nil
}

// flushLocked makes the pages of [off, off+n) durable, and the length as far
// as the range needs it.
func (f *FS) flushLocked(c *content, off, n int64) {
	f.seq++
	if n == 0 {
		return
	}
	lo, hi := off/pageSize, pagesFor(off+n)
	c.eachDirty(lo, hi, func(idx int64, d *dirtyPage) {
		if !d.lost {
			delete(c.dirty, idx)
		}
	})
	for w := lo >> 6; len(c.dirtyBlocks) > 0 && w <= (hi-1)>>6; w++ {
		if left := c.dirtyBlocks[w] &^ wordMask(w, lo, hi); left != 0 {
			c.dirtyBlocks[w] = left
		} else {
			delete(c.dirtyBlocks, w)
		}
	}
	if d := c.dirtySize; d != nil {
		end := min(off+n, c.size)
		switch {
		case end == c.size && d.old < end:
			c.dirtySize = nil
		case end > d.old:
			d.old = end
			if d.mid < end {
				d.midSeq = 0
			}
		}
	}
}

// dropLocked lets the dirty pages of [lo, hi) never become durable.
func (f *FS) dropLocked(c *content, lo, hi int64) {
	f.seq++
	c.eachDirty(lo, hi, func(_ int64, d *dirtyPage) { d.lost = true })
}

// eachDirty calls fn for the dirty pages in [lo, hi); fn may delete them.
func (c *content) eachDirty(lo, hi int64, fn func(idx int64, d *dirtyPage)) {
	if hi-lo > int64(len(c.dirty)) {
		for idx, d := range c.dirty {
			if idx >= lo && idx < hi {
				fn(idx, d)
			}
		}
		return
	}
	for idx := lo; idx < hi; idx++ {
		if d := c.dirty[idx]; d != nil {
			fn(idx, d)
		}
	}
}

// nextPage returns the first page >= idx that exists, or -1.
func (c *content) nextPage(idx int64) int64 {
	// Near ones first: a scan of a full file must not be quadratic.
	for i := idx; i < idx+16; i++ {
		if c.pages[i] != nil {
			return i
		}
	}
	next := int64(-1)
	for i := range c.pages {
		if i >= idx && (next < 0 || i < next) {
			next = i
		}
	}
	return next
}
