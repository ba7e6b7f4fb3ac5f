package indexfile

import (
	"errors"
	"io"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// errGone: the file was removed, or the index closed.
var errGone = errors.New("index file is gone")

// file is one index file as readers see it. Reads copy from the file, never
// from a mapping, so a reader needs no more than an open handle and a bad
// sector is an error.
type file struct {
	fs   vfs.FS
	path string
	name string
	geo  Geometry

	// The header. The writer stores count last: a reader that loads it first
	// finds all entries below it in the file and the other fields at least as
	// new. begin* are set once, before count exceeds 1, or by a truncation.
	count     atomic.Int32
	beginTime atomic.Int64
	endTime   atomic.Int64
	beginPhy  atomic.Int64
	endPhy    atomic.Int64

	sealed   atomic.Bool // full, and a newer file exists: slots do not change
	reported atomic.Bool // damage was reported

	// Under Index.mu; readers do not need them.
	slotCount int32
	size      int64

	handle struct {
		sync.Mutex
		f    vfs.File // nil: not open
		pins int
		gone bool
		keep bool // stays open between lookups
	}
}

func (f *file) setHeader(h Header) {
	f.beginTime.Store(h.BeginTime)
	f.beginPhy.Store(int64(h.BeginPhy))
	f.endTime.Store(h.EndTime)
	f.endPhy.Store(int64(h.EndPhy))
	f.slotCount = h.SlotCount
	f.count.Store(h.Count)
}

// header is exact only under Index.mu.
func (f *file) header() Header {
	return Header{
		Count:     f.count.Load(),
		BeginTime: f.beginTime.Load(),
		EndTime:   f.endTime.Load(),
		BeginPhy:  message.PhysicalOffset(f.beginPhy.Load()),
		EndPhy:    message.PhysicalOffset(f.endPhy.Load()),
		SlotCount: f.slotCount,
	}
}

func (f *file) full() bool { return f.count.Load() >= f.geo.Entries }

// pin opens the file or keeps it open until unpin. It fails with errGone after
// retire.
func (f *file) pin() (vfs.File, error) {
	h := &f.handle
	h.Lock()
	defer h.Unlock()
	if h.gone {
		return nil, errGone
	}
	if h.f == nil {
		var err error
		if h.f, err = f.fs.Open(f.path, vfs.ReadOnly); err != nil {
			return nil, err
		}
	}
	h.pins++
	return h.f, nil
}

func (f *file) unpin() {
	h := &f.handle
	h.Lock()
	defer h.Unlock()
	h.pins--
	f.closeIdleLocked()
}

// keepOpen says whether the handle stays open between lookups.
func (f *file) keepOpen(keep bool) {
	h := &f.handle
	h.Lock()
	defer h.Unlock()
	h.keep = keep
	f.closeIdleLocked()
}

func (f *file) closeIdleLocked() {
	if h := &f.handle; h.f != nil && h.pins == 0 && (h.gone || !h.keep) {
		h.f.Close() // opened for reading: nothing can be lost
		h.f = nil
	}
}

// retire lets no new reader in. The last reader closes the handle.
func (f *file) retire() {
	h := &f.handle
	h.Lock()
	defer h.Unlock()
	h.gone = true
	f.closeIdleLocked()
}

// readFull fills p from r at off; what lies behind the end of the file reads
// as zeros, because a file may have been cut.
func readFull(r io.ReaderAt, p []byte, off int64) error {
	n, err := r.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	if err == io.EOF || err == nil {
		clear(p[n:])
		return nil
	}
	return err
}

// isGone says that the file was removed, rewritten or closed.
func (f *file) isGone() bool {
	f.handle.Lock()
	defer f.handle.Unlock()
	return f.handle.gone
}

// writer is the newest file as the writer sees it. All of it is guarded by
// Index.mu.
type writer struct {
	*file
	h  vfs.File    // for Allocate and Sync
	m  vfs.Mapping // nil: the system refused one, h is used instead
	rw interface { // m or h
		io.ReaderAt
		io.WriterAt
	}
	hdr      Header // as published
	staged   Header // what publish will make visible
	reserved int64  // bytes from 0 that have blocks
	dirty    bool   // stored to since the last sync
	synced   bool   // under Index.syncMu: full and on stable storage

	slots [batchKeys]int32
	buf   [batchKeys * entrySize]byte
	head  [headerSize]byte
	one   [slotSize]byte
}

const (
	// batchKeys is how many entries are stored with one call. It bounds the
	// search for equal slots within one message.
	batchKeys = 16
	// reserveStep is how far ahead of the writer blocks are allocated.
	reserveStep = 1 << 20
)

// openWriter prepares a file for appending. Blocks are reserved before the
// first store, because a sparse file may come from another program.
func openWriter(f *file, h vfs.File) (*writer, error) {
	w := &writer{file: f, h: h, hdr: f.header()}
	w.staged = w.hdr
	size, err := h.Size()
	if err != nil {
		return nil, err
	}
	if size < f.geo.Size() {
		size = f.geo.Size()
		if err := h.Truncate(size); err != nil {
			return nil, err
		}
	}
	f.size = size
	if err := w.reserve(1); err != nil {
		return nil, err
	}
	if m, err := h.Map(true); err == nil {
		w.m, w.rw = m, m
	} else { // no address space left: slower, but it works
		w.rw = h
	}
	return w, nil
}

// room is the number of entries that still fit.
func (w *writer) room() int { return int(w.geo.Entries - w.hdr.next()) }

// reserve makes sure that the slots and the next n entries have blocks, so that
// no store can fault for lack of space.
func (w *writer) reserve(n int) error {
	start := w.geo.entryPos(w.hdr.next())
	end := start + int64(n)*entrySize
	if end <= w.reserved {
		return nil
	}
	if w.reserved == 0 {
		if err := w.h.Allocate(0, w.geo.entryPos(0)); err != nil {
			return err
		}
	} else {
		start = w.reserved
	}
	end = min(max(end, start+reserveStep), w.geo.Size())
	if err := w.h.Allocate(start, end-start); err != nil {
		return err
	}
	w.reserved = end
	return nil
}

// write stores entries behind the last one without counting them: readers
// ignore them until publish. The caller has reserved room. badSlot is asked
// for the right value of a slot that is out of range. An error leaves slots
// that may point at uncounted entries, so that the file must not be written
// again before it was repaired.
func (w *writer) write(phy message.PhysicalOffset, storeTime int64, hashes []int32, badSlot func(w *writer, slot, next, v int32) (int32, error)) error {
	w.dirty = true
	h := w.hdr
	next := h.next()
	for len(hashes) > 0 {
		k := min(len(hashes), batchKeys)
		for i, hash := range hashes[:k] {
			slot := hash % w.geo.Slots
			w.slots[i] = slot
			e := next + int32(i)
			prev, err := w.newest(slot, i, next)
			if err != nil {
				return err
			}
			if prev < 0 || prev >= e {
				if prev, err = badSlot(w, slot, next, prev); err != nil {
					return err
				}
			}
			if prev == 0 {
				h.SlotCount++
			}
			secs := seconds(storeTime, h.BeginTime)
			if e == firstEntry {
				h.BeginTime, h.BeginPhy = storeTime, phy
			}
			putEntry(w.buf[i*entrySize:], Entry{Hash: hash, Phy: phy, Seconds: secs, Prev: prev})
		}
		if _, err := w.rw.WriteAt(w.buf[:k*entrySize], w.geo.entryPos(next)); err != nil {
			return err
		}
		for i, slot := range w.slots[:k] {
			putInt32(&w.one, next+int32(i))
			if _, err := w.rw.WriteAt(w.one[:], w.geo.slotPos(slot)); err != nil {
				return err
			}
		}
		next += int32(k)
		hashes = hashes[k:]
	}
	h.Count, h.EndPhy, h.EndTime = next, phy, storeTime
	w.staged = h
	return nil
}

// newest returns the value of a slot as it will be before key i of the batch
// that starts with entry next: an earlier key of the batch may use the slot.
func (w *writer) newest(slot int32, i int, next int32) (int32, error) {
	for j := i - 1; j >= 0; j-- {
		if w.slots[j] == slot {
			return next + int32(j), nil
		}
	}
	if _, err := w.rw.ReadAt(w.one[:], w.geo.slotPos(slot)); err != nil {
		return 0, err
	}
	return int32Of(w.one[:]), nil
}

// publish counts what write stored.
func (w *writer) publish() error {
	if err := w.storeHeader(w.staged); err != nil {
		return err
	}
	h := w.staged
	w.hdr = h
	if w.beginTime.Load() != h.BeginTime || w.beginPhy.Load() != int64(h.BeginPhy) {
		w.beginTime.Store(h.BeginTime)
		w.beginPhy.Store(int64(h.BeginPhy))
	}
	w.endTime.Store(h.EndTime)
	w.endPhy.Store(int64(h.EndPhy))
	w.slotCount = h.SlotCount
	w.count.Store(h.Count)
	return nil
}

func (w *writer) storeHeader(h Header) error {
	putHeader(&w.head, h)
	w.dirty = true
	_, err := w.rw.WriteAt(w.head[:], 0)
	return err
}

// unmap ends the writing through a mapping; what was stored stays in the file.
func (w *writer) unmap() error {
	m := w.m
	w.m, w.rw = nil, w.h
	if m == nil {
		return nil
	}
	return m.Unmap()
}

// close gives up mapping and handle.
func (w *writer) close() error {
	return errors.Join(w.unmap(), w.h.Close())
}

func putInt32(b *[slotSize]byte, v int32) {
	b[0], b[1], b[2], b[3] = byte(v>>24), byte(v>>16), byte(v>>8), byte(v)
}

func int32Of(b []byte) int32 {
	_ = b[3]
	return int32(uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3]))
}
