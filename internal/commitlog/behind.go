package commitlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/message"
)

const (
	// maxBehind bounds how many records are counted behind the end: that there
	// are some, and where they begin, is what matters.
	maxBehind = 1 << 16
	// searchCredit is how many bytes of would-be records a search may check in
	// vain before it has passed any data.
	searchCredit = 16 << 20
	// candidateCost is what a would-be record costs besides its bytes.
	candidateCost = 1 << 10
	// candidateHead is how much of a record is looked at before it is worth a
	// check: size, magic and position.
	candidateHead = posPhysical + 8
)

// magicPrefix begins the magic number of both record versions.
var magicPrefix = []byte{0xDA, 0xA3, 0x20}

// behind searches for valid records behind the end of a log: by their magic
// number, then the position that each record holds, then a full check with
// CRC. The work is linear in the bytes that are not zero, whatever they are.
type behind struct {
	tail   *Tail
	before int64 // store time of the last valid record; what is older is stale
	first  int64 // position in the log of the first record found, stale or not; -1

	// budget is how many bytes may still be spent on would-be records that
	// turn out to be none. Passing data earns as many, so that bytes made up
	// of overlapping would-be records cost a constant factor, not a square.
	budget int64
	buf    []byte
	rec    *walker // reads would-be records
}

// search looks through f from the position from on. It returns false when the
// whole search has to end: see Tail.Partial.
func (b *behind) search(ctx context.Context, h *handle, f *mappedfile.File, from int64) (bool, error) {
	size := f.Size()
	if b.buf == nil {
		b.buf = make([]byte, min(chunkSize, size))
	}
	b.rec.reset(h, f.Path(), f.Start(), size, min(from, size))
	for off := from; off < size; {
		if err := ctx.Err(); err != nil {
			return false, err
		}
		data, err := h.nextData(off, size)
		if err != nil {
			return false, err
		}
		if data == size {
			break
		}
		if data > off {
			// A size begins with zeros, which may belong to the hole.
			off = max(off, data-posMagic)
		}
		chunk := b.buf[:min(int64(len(b.buf)), size-off)]
		if err := readFull(h, chunk, off); err != nil {
			return false, fmt.Errorf("read commit log: %w", err)
		}
		n, err := b.searchChunk(chunk, off)
		if err != nil {
			return false, err
		}
		if b.tail.Partial {
			return false, nil
		}
		off += n
	}
	return true, nil
}

// searchChunk looks through one chunk, read at off, and returns how far to go
// on: less than its length, so that a head cut by its end is seen whole next
// time, unless the file ends there; more, when a record was found that reaches
// behind it.
func (b *behind) searchChunk(chunk []byte, off int64) (int64, error) {
	w := b.rec
	advance := int64(len(chunk))
	if off+advance < w.size {
		advance -= candidateHead - 1
	}
	used := lastNonZero(chunk)
	if used == 0 {
		return advance, nil
	}
	b.sawData(off + int64(used))
	b.budget += int64(used)
	for at := 0; ; {
		i := bytes.Index(chunk[at:used], magicPrefix)
		if i < 0 {
			return advance, nil
		}
		begin := at + i - posMagic
		at += i + 1
		if begin < 0 || begin+candidateHead > len(chunk) {
			continue
		}
		pos := off + int64(begin)
		if int64(binary.BigEndian.Uint64(chunk[begin+posPhysical:])) != w.start+pos {
			continue
		}
		n, err := b.candidate(pos)
		if err != nil || b.tail.Partial {
			return 0, err
		}
		// What is inside a record that was found belongs to it.
		switch next := int64(begin) + n; {
		case n == 0:
		case next >= int64(used):
			return max(next, advance), nil
		default:
			at = int(next)
		}
	}
}

// candidate checks what begins at pos like a record. It returns the length of
// the record, 0 when it is none.
func (b *behind) candidate(pos int64) (int64, error) {
	w, t := b.rec, b.tail
	w.pos = pos
	found, err := w.next()
	switch {
	case errors.Is(err, base.ErrCorrupt):
		if b.budget -= w.claim + candidateCost; b.budget < 0 {
			t.Partial = true
		}
		return 0, nil
	case err != nil:
		return 0, err
	case found != stepRecord:
		return 0, nil
	}
	b.sawData(w.pos)
	if b.first < 0 {
		b.first = w.start + pos
	}
	if w.view.StoreTimestamp < b.before {
		t.Stale++
	} else {
		phy := message.PhysicalOffset(w.start + pos)
		if t.ValidBehind++; t.ValidBehind == 1 {
			t.FirstBehind = phy
		}
		t.LastBehind = phy
	}
	t.Partial = t.ValidBehind+t.Stale >= maxBehind
	return w.pos - pos, nil
}

// sawData notes that there are bytes other than zero in front of pos.
func (b *behind) sawData(pos int64) {
	b.tail.DataEnd = max(b.tail.DataEnd, message.PhysicalOffset(b.rec.start+pos))
}
