package overlayfs

import (
	"io"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/vfs"
)

// pageRef names a page of the overlay: 0 is none, zeros a page of zeros, the
// others are places in the temporary file, from 1 on.
type pageRef int32

const zeros pageRef = -1

// memoryPages is how many pages stay in memory, 32 MiB. Making queues and index
// of a large log anew is gigabytes.
const memoryPages = 8192

// pages are those of all files. Above limit they go to a temporary file, which
// has no name: what has not been used lately first. Where there is no room for
// that they stay in memory. FS.mu guards it, held for reading by read only.
type pages struct {
	limit int
	held  map[pageRef]*frame
	ring  []pageRef // those held, in the order of the clock
	hand  int
	last  pageRef // highest given out
	free  []pageRef
	temp  func() (vfs.File, error)
	file  vfs.File
	full  bool // the temporary file takes no more
}

// frame is a page in memory.
type frame struct {
	page
	at    int // in the ring
	used  atomic.Bool
	dirty bool // not, or not so, in the temporary file
}

// add makes a page. What is in it is not defined.
func (p *pages) add() (pageRef, *frame) {
	var ref pageRef
	if n := len(p.free); n > 0 {
		ref, p.free = p.free[n-1], p.free[:n-1]
	} else {
		p.last++
		ref = p.last
	}
	return ref, p.hold(ref)
}

// hold makes room in memory for a page that is not there.
func (p *pages) hold(ref pageRef) *frame {
	f := p.evict()
	if f == nil {
		f = &frame{at: len(p.ring)}
		p.ring = append(p.ring, 0)
	}
	f.used.Store(true)
	f.dirty = true
	p.ring[f.at] = ref
	if p.held == nil {
		p.held = map[pageRef]*frame{}
	}
	p.held[ref] = f
	return f
}

// evict takes a page out of memory and returns its frame, or nil while there
// is room, or none in the temporary file.
func (p *pages) evict() *frame {
	if len(p.ring) < p.limit || p.full {
		return nil
	}
	if p.file == nil {
		var err error
		if p.file, err = p.temp(); err != nil {
			p.full = true
			return nil
		}
	}
	for {
		p.hand = (p.hand + 1) % len(p.ring)
		ref := p.ring[p.hand]
		f := p.held[ref]
		if f.used.Swap(false) {
			continue
		}
		if f.dirty {
			if _, err := p.file.WriteAt(f.page[:], int64(ref-1)*pageSize); err != nil {
				p.full = true
				return nil
			}
		}
		delete(p.held, ref)
		return f
	}
}

// change returns a page to be changed.
func (p *pages) change(ref pageRef) (*frame, error) {
	f := p.held[ref]
	if f == nil {
		f = p.hold(ref)
		if err := p.load(f.page[:], ref, 0); err != nil {
			p.drop(ref)
			return nil, err
		}
	}
	f.used.Store(true)
	f.dirty = true
	return f, nil
}

// read copies from a page, beginning with its byte in.
func (p *pages) read(dst []byte, ref pageRef, in int64) error {
	if ref == zeros {
		clear(dst)
		return nil
	}
	if f := p.held[ref]; f != nil {
		f.used.Store(true)
		copy(dst, f.page[in:])
		return nil
	}
	return p.load(dst, ref, in)
}

// load reads from the temporary file.
func (p *pages) load(dst []byte, ref pageRef, in int64) error {
	n, err := p.file.ReadAt(dst, int64(ref-1)*pageSize+in)
	if n == len(dst) {
		return nil
	}
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// remove forgets a page.
func (p *pages) remove(ref pageRef) {
	if ref <= 0 {
		return
	}
	if p.held[ref] != nil {
		p.drop(ref)
	}
	p.free = append(p.free, ref)
}

// drop takes a page out of memory without keeping it.
func (p *pages) drop(ref pageRef) {
	at, end := p.held[ref].at, len(p.ring)-1
	delete(p.held, ref)
	if at != end {
		p.ring[at] = p.ring[end]
		p.held[p.ring[at]].at = at
	}
	p.ring = p.ring[:end]
	if p.hand >= end {
		p.hand = 0
	}
}
