package indexfile

import (
	"context"
	"errors"
	"fmt"
	"io"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// sectorSize is what a disk writes at once. After a power cut a sector holds
// what it held at some time since the last sync, and neighbours may differ.
const sectorSize = 512

// maxSlotChunk bounds the slots that a repair keeps in memory at once (4 MiB).
const maxSlotChunk = 1 << 20

// validPrefix returns the count (number of entries + 1) of the entries from 1
// on that can be believed without knowing what was synced, at most limit, and
// why the next one cannot. Links are not looked at: they follow from the rest.
//
// Sectors lost in a power cut read as zeros. An entry that was lost whole
// shows by its position, which must not decrease. (Where it decreases without
// such a loss, either side may be wrong, and none is believed.) One that crosses a sector
// border may have lost its first part: then its hash is 0; a key that really
// has this hash is put again. If it lost its second part, the entry behind it
// is lost as well, so that it is the last of the prefix, and it is given up
// when that part is zero.
func validPrefix(ctx context.Context, f io.ReaderAt, g Geometry, limit int32, end message.PhysicalOffset) (count int32, reason string, err error) {
	limit = min(max(limit, firstEntry), g.Entries)
	count = limit
	last := message.PhysicalOffset(0)
	half := false                      // the last entry may be there in part only
	back := message.PhysicalOffset(-1) // entries past it are no better than the one behind them
	scanErr := eachEntry(f, g, firstEntry, limit, func(e int32, en Entry) bool {
		crosses, tailZero := onBorder(g.entryPos(e), en)
		switch {
		case en == Entry{Prev: en.Prev}: // what a lost entry may become
			reason = fmt.Sprintf("entry %d is empty", e)
		case en.Hash < 0 || en.Seconds < 0:
			reason = fmt.Sprintf("entry %d has hash %d and time %d", e, en.Hash, en.Seconds)
		case en.Phy < last:
			reason = fmt.Sprintf("entry %d at %d behind one at %d", e, en.Phy, last)
			if !tailZero {
				back = max(en.Phy, 0)
			}
		case en.Phy >= end:
			reason = fmt.Sprintf("entry %d at %d, the log ends at %d", e, en.Phy, end)
		case en.Hash == 0 && crosses:
			reason = fmt.Sprintf("entry %d has hash 0 on a sector border", e)
		}
		if reason != "" {
			count = e
			return false
		}
		last, half = en.Phy, tailZero
		if e%blockEntries == 0 {
			err = ctx.Err()
		}
		return err == nil
	})
	if err == nil {
		err = scanErr
	}
	if err != nil {
		return 0, "", err
	}
	if half {
		count--
	}
	if back >= 0 {
		n, err := firstAtOrAfter(f, g, count, back+1)
		return n, reason, err
	}
	return count, reason, nil
}

// onBorder says whether an entry at pos crosses a sector border and whether
// the part behind the border is zero.
func onBorder(pos int64, en Entry) (crosses, tailZero bool) {
	border := (pos/sectorSize + 1) * sectorSize
	if pos+entrySize <= border {
		return false, false
	}
	var b [entrySize]byte
	putEntry(b[:], en)
	return true, allZero(b[border-pos:])
}

// firstAtOrAfter returns the number of the first of the entries below count
// whose position is phy or more, or count. Positions must not decrease.
func firstAtOrAfter(f io.ReaderAt, g Geometry, count int32, phy message.PhysicalOffset) (int32, error) {
	lo, hi := int32(firstEntry), max(count, firstEntry)
	for lo < hi {
		mid := lo + (hi-lo)/2
		en, err := readEntry(f, g, mid)
		if err != nil {
			return 0, err
		}
		if en.Phy >= phy {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	return lo, nil
}

// rebuilt says what a rebuild found wrong.
type rebuilt struct {
	slots, links int   // that had another value than they must
	inUse        int32 // slots, afterwards
}

// rebuild gives every slot the newest of the entries 1 … count-1 that belongs
// there, so that later entries are forgotten. Without links it believes every
// slot that holds an entry below count and reads the entries only when there
// is another; with links it computes all slots and corrects the entries' links
// as well. It writes only what differs. Hashes below zero must not occur.
func rebuild(ctx context.Context, f vfs.File, g Geometry, count int32, links bool) (rebuilt, error) {
	var r rebuilt
	raw := make([]byte, min(g.Slots, maxSlotChunk)*slotSize)
	var newest []int32
	for from := int32(0); from < g.Slots; {
		n := min(g.Slots-from, maxSlotChunk)
		b := raw[:n*slotSize]
		if err := readFull(f, b, g.slotPos(from)); err != nil {
			return r, err
		}
		bad := 0
		for i := range n {
			if v := int32Of(b[i*slotSize:]); v < 0 || v >= count {
				bad++
			} else if v > 0 {
				r.inUse++
			}
		}
		if links || bad > 0 {
			if newest == nil {
				newest = make([]int32, len(raw)/slotSize)
			}
			r.inUse -= inUse(b, count) // counted anew below
			clear(newest)
			if err := chains(ctx, f, g, count, from, newest[:n], links, &r); err != nil {
				return r, err
			}
			if err := r.storeSlots(f, g, count, from, b, newest[:n], links); err != nil {
				return r, err
			}
		}
		if err := ctx.Err(); err != nil {
			return r, err
		}
		from += n
	}
	return r, nil
}

// inUse counts the slots that hold an entry below count.
func inUse(slots []byte, count int32) (n int32) {
	for ; len(slots) >= slotSize; slots = slots[slotSize:] {
		if v := int32Of(slots); v > 0 && v < count {
			n++
		}
	}
	return n
}

// chains finds the newest entry of the slots from, from+1 … and, with links,
// corrects the entries' links to the one before.
func chains(ctx context.Context, f vfs.File, g Geometry, count, from int32, newest []int32, links bool, r *rebuilt) error {
	var err error
	scanErr := eachEntry(f, g, firstEntry, count, func(e int32, en Entry) bool {
		if en.Hash >= 0 {
			// Compare as unsigned: slots below from wrap to large values.
			if i := uint32(en.Hash%g.Slots - from); i < uint32(len(newest)) {
				if prev := newest[i]; links && en.Prev != prev {
					r.links++
					var b [slotSize]byte
					putInt32(&b, prev)
					if _, err = f.WriteAt(b[:], g.entryPos(e)+posPrev); err != nil {
						return false
					}
				}
				newest[i] = e
			}
		}
		if e%blockEntries == 0 {
			err = ctx.Err()
		}
		return err == nil
	})
	if err == nil {
		err = scanErr
	}
	return err
}

// storeSlots writes those of the slots from, from+1 …, which hold b, that
// differ from newest and, without links, are out of range. It writes pages.
func (r *rebuilt) storeSlots(f vfs.File, g Geometry, count, from int32, b []byte, newest []int32, links bool) error {
	const page = 1024 // slots
	for len(newest) > 0 {
		n := min(page, len(newest))
		before := r.slots
		for i, want := range newest[:n] {
			v := int32Of(b[i*slotSize:])
			if !links && v >= 0 && v < count {
				want = v
			}
			if want > 0 {
				r.inUse++
			}
			if v != want {
				r.slots++
				putInt32((*[slotSize]byte)(b[i*slotSize:]), want)
			}
		}
		if r.slots > before {
			if _, err := f.WriteAt(b[:n*slotSize], g.slotPos(from)); err != nil {
				return err
			}
		}
		b, newest, from = b[n*slotSize:], newest[n:], from+int32(n)
	}
	return nil
}

// badSlots counts the slots that do not hold an entry below count, and those
// in use that do.
func badSlots(f vfs.File, g Geometry, count int32) (bad int, used int32, err error) {
	err = eachChunk(f, g.slotPos(0), g.entryPos(0), func(pos int64, b []byte) (bool, error) {
		// A chunk begins where data may begin, which is at a slot: blocks
		// and slots are both multiples of four bytes.
		for ; len(b) >= slotSize; b = b[slotSize:] {
			switch v := int32Of(b); {
			case v < 0 || v >= count:
				bad++
			case v > 0:
				used++
			}
		}
		return true, nil
	})
	return bad, used, err
}

// zeroFrom overwrites what is not zero from off to the end of the geometry, so
// that forgotten entries cannot be taken for new ones after a crash.
func zeroFrom(f vfs.File, size, off int64) (changed bool, err error) {
	var zeros []byte
	err = eachChunk(f, off, size, func(pos int64, b []byte) (bool, error) {
		if allZero(b) {
			return true, nil
		}
		if zeros == nil {
			zeros = make([]byte, chunkSize)
		}
		changed = true
		_, err := f.WriteAt(zeros[:len(b)], pos)
		return true, err
	})
	return changed, err
}

// cut makes the file end before entry count: slots, links if wanted, the
// header, and zeros behind. It is durable when cut returns. A crash in between
// leaves a file on which the same cut can be made again.
func (f *file) cut(ctx context.Context, count int32, links bool, h Header) (rebuilt, error) {
	w, err := f.fs.Open(f.path, vfs.ReadWrite)
	if err != nil {
		return rebuilt{}, err
	}
	r, err := f.cutIn(ctx, w, count, links, h)
	return r, errors.Join(err, w.Close())
}

func (f *file) cutIn(ctx context.Context, w vfs.File, count int32, links bool, h Header) (rebuilt, error) {
	size, err := w.Size()
	if err != nil {
		return rebuilt{}, err
	}
	if size != f.geo.Size() {
		if err := w.Truncate(f.geo.Size()); err != nil {
			return rebuilt{}, err
		}
		size = f.geo.Size()
	}
	r, err := rebuild(ctx, w, f.geo, count, links)
	if err != nil {
		return r, err
	}
	if _, err := zeroFrom(w, size, f.geo.entryPos(count)); err != nil {
		return r, err
	}
	h.Count, h.SlotCount = count, r.inUse
	if h.EndPhy, h.EndTime, err = f.endOf(w, count, h); err != nil {
		return r, err
	}
	var b [headerSize]byte
	putHeader(&b, h)
	if _, err := w.WriteAt(b[:], 0); err != nil {
		return r, err
	}
	if err := w.Sync(); err != nil {
		return r, err
	}
	f.setHeader(h)
	f.size = size
	return r, nil
}

// endOf gives the header's end for a file cut before entry count. The header
// knows the time when its own newest entry stays; else the entry does, to the
// second, and the next Put corrects it.
func (f *file) endOf(r io.ReaderAt, count int32, h Header) (message.PhysicalOffset, int64, error) {
	en, err := readEntry(r, f.geo, count-1)
	if err != nil {
		return 0, 0, err
	}
	if en.Phy == h.EndPhy && h.EndTime > 0 {
		return h.EndPhy, h.EndTime, nil
	}
	t, ok := entryTime(count-1, en.Seconds, h.BeginTime)
	if !ok {
		t = h.BeginTime
	}
	return en.Phy, t, nil
}
