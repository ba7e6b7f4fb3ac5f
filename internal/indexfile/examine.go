package indexfile

import (
	"encoding/binary"
	"fmt"
	"io"
	"math"

	"github.com/gantrymq/gantry/internal/vfs"
)

// examined is what a look at a few places of a file tells.
type examined struct {
	size int64
	hdr  Header
	geo  Geometry
	// wrong is empty when the header agrees with the first and the last entry
	// and with the slot of the last one.
	wrong string
	// lost: the geometry is unknown, so that no entry can be found.
	lost bool
	// blank: nothing but zeros behind the header.
	blank bool
}

// examine reads the header and finds the geometry: the first of hints that
// fits length and content, else the one that the content gives away.
func examine(f vfs.File, hints []Geometry) (examined, error) {
	var ex examined
	var err error
	if ex.size, err = f.Size(); err != nil {
		return ex, err
	}
	var ok bool
	if ex.hdr, ok, err = readHeader(f, ex.size); err != nil {
		return ex, err
	}
	if !ok {
		ex.lost, ex.blank, ex.wrong = true, true, fmt.Sprintf("length %d is below that of the header", ex.size)
		return ex, nil
	}

	// A file of the right length that agrees with itself needs no more.
	for _, g := range hints {
		if g.valid() && g.Size() == ex.size {
			wrong, err := quickCheck(f, ex.size, g, ex.hdr)
			if err != nil {
				return ex, err
			}
			if wrong == "" {
				ex.geo = g
				return ex, nil
			}
		}
	}
	if ex.hdr.HasEntries() {
		g, ok, err := inferGeometry(f, ex.size, ex.hdr)
		if err != nil {
			return ex, err
		}
		if ok {
			ex.geo = g
			return ex, nil
		}
	}
	if ex.blank, err = isZeroFrom(f, ex.size, headerSize); err != nil {
		return ex, err
	}

	// Cut, grown or garbled. A geometry under which the entries begin where
	// the header says is good enough to look at them one by one; else take
	// one that fits the length, for what the entries are worth.
	for _, exact := range []bool{false, true} {
		for _, g := range hints {
			if !g.valid() || exact && g.Size() != ex.size {
				continue
			}
			en, err := readEntry(f, g, firstEntry)
			if err != nil {
				return ex, err
			}
			if !exact && (en.Hash < 0 || en.Phy != ex.hdr.BeginPhy || en == Entry{}) {
				continue
			}
			ex.geo = g
			if ex.wrong, err = quickCheck(f, ex.size, g, ex.hdr); err != nil {
				return ex, err
			}
			switch {
			case ex.wrong != "" || g.Size() == ex.size:
			case g.Size() < ex.size: // upstream ignores the rest
			default:
				ex.wrong = fmt.Sprintf("length %d, want %d", ex.size, g.Size())
			}
			return ex, nil
		}
	}
	ex.lost, ex.wrong = true, fmt.Sprintf("no geometry fits length %d and header count %d", ex.size, ex.hdr.Count)
	return ex, nil
}

// quickCheck compares the header with the file in a few places.
func quickCheck(f vfs.File, size int64, g Geometry, h Header) (wrong string, err error) {
	if h.Count < 0 || h.Count > g.Entries {
		return fmt.Sprintf("header count %d of %d", h.Count, g.Entries), nil
	}
	if !h.HasEntries() {
		blank, err := isZeroFrom(f, size, headerSize)
		if err == nil && !blank {
			wrong = fmt.Sprintf("header count %d, but the file is not empty", h.Count)
		}
		return wrong, err
	}
	newest := h.Count - 1
	first, err := readEntry(f, g, firstEntry)
	if err != nil {
		return "", err
	}
	last, err := readEntry(f, g, newest)
	if err != nil {
		return "", err
	}
	switch {
	case first.Hash < 0 || first.Prev != 0 || first.Phy < 0 || first.Phy != h.BeginPhy:
		return fmt.Sprintf("entry 1 at %d, header says %d", first.Phy, h.BeginPhy), nil
	case last.Hash < 0 || last.Prev < 0 || last.Prev >= newest || last.Phy < first.Phy || last.Phy != h.EndPhy:
		return fmt.Sprintf("entry %d at %d, header says %d", newest, last.Phy, h.EndPhy), nil
	case !timesAgree(h.BeginTime, h.EndTime, newest, last.Seconds):
		return fmt.Sprintf("header times %d and %d, entry %d at %d s", h.BeginTime, h.EndTime, newest, last.Seconds), nil
	case h.SlotCount < 1:
		return fmt.Sprintf("%d slots in use for %d entries", h.SlotCount, newest), nil
	}
	slot := last.Hash % g.Slots
	v, err := readSlot(f, g, slot)
	if err != nil {
		return "", err
	}
	if v != newest {
		return fmt.Sprintf("slot %d holds %d, want the newest entry %d", slot, v, newest), nil
	}
	return "", nil
}

// timesAgree says that entry e, with this time field, can be the newest of a
// file with these header times.
func timesAgree(begin, end int64, e, secs int32) bool {
	switch {
	case begin <= 0 || end <= 0:
		return false
	case e == firstEntry:
		return begin == end
	}
	return seconds(end, begin) == secs
}

// inferGeometry finds where the entries begin from the last word of the file
// that is not zero: it belongs to the newest entry, before which there are as
// many entries as the header counts. What it finds must agree with the slots.
func inferGeometry(f vfs.File, size int64, h Header) (g Geometry, ok bool, err error) {
	const wordSize = 4
	last, err := lastWord(f, size)
	if err != nil {
		return g, false, err
	}
	for field := int64(0); field < entrySize; field += wordSize {
		entries := last - field - entrySize*int64(h.Count-1)
		slots := (entries - headerSize) / slotSize
		if slots < 1 || (entries-headerSize)%slotSize != 0 || (size-entries)%entrySize != 0 {
			continue
		}
		n := (size - entries) / entrySize
		if slots > math.MaxInt32 || n > math.MaxInt32 || n < int64(h.Count) {
			continue
		}
		c := Geometry{Slots: int32(slots), Entries: int32(n)}
		zero, err := readEntry(f, c, 0)
		if err != nil {
			return g, false, err
		}
		wrong, err := quickCheck(f, size, c, h)
		if err == nil && wrong == "" {
			wrong, err = checkSlots(f, c, h)
		}
		if err != nil {
			return g, false, err
		}
		if wrong == "" && zero == (Entry{}) {
			return c, true, nil
		}
	}
	return g, false, nil
}

// lastWord returns the position of the last four bytes behind the header that
// are not all zero, or 0.
func lastWord(f vfs.File, size int64) (last int64, err error) {
	err = eachChunk(f, headerSize, size, func(pos int64, b []byte) (bool, error) {
		for i := len(b); i > 0; i-- {
			if b[i-1] != 0 {
				last = (pos + int64(i-1)) &^ 3
				break
			}
		}
		return true, nil
	})
	return last, err
}

// maxSample bounds how many entries checkSlots looks at.
const maxSample = 1 << 16

// checkSlots compares the newest entries with the slots they hang in.
func checkSlots(f io.ReaderAt, g Geometry, h Header) (wrong string, err error) {
	n := 0
	scanErr := eachEntryDown(f, g, h.Count-1, func(e int32, en Entry) bool {
		if n++; n > maxSample {
			return false
		}
		if en.Hash < 0 {
			wrong = fmt.Sprintf("entry %d has hash %d", e, en.Hash)
			return false
		}
		var v int32
		if v, err = readSlot(f, g, en.Hash%g.Slots); err != nil {
			return false
		}
		if v < e || v >= h.Count {
			wrong = fmt.Sprintf("entry %d is not in the chain of its slot", e)
			return false
		}
		return true
	})
	if err == nil {
		err = scanErr
	}
	return wrong, err
}

// chunkSize is how much a scan reads at once.
const chunkSize = 256 << 10

// eachChunk calls fn for the parts of [from, size) that may hold data, in
// order, until fn returns false.
func eachChunk(f vfs.File, from, size int64, fn func(pos int64, b []byte) (bool, error)) error {
	if from >= size {
		return nil
	}
	buf := make([]byte, min(chunkSize, size-from))
	for from < size {
		next, err := f.NextData(from)
		if err != nil {
			return err
		}
		from = max(from, next&^3) // whole words, as all callers count in them
		if from >= size {
			return nil
		}
		b := buf[:min(int64(len(buf)), size-from)]
		if err := readFull(f, b, from); err != nil {
			return err
		}
		more, err := fn(from, b)
		if err != nil || !more {
			return err
		}
		from += int64(len(b))
	}
	return nil
}

// isZeroFrom reports whether all bytes from off on are zero.
func isZeroFrom(f vfs.File, size, off int64) (bool, error) {
	zero := true
	err := eachChunk(f, off, size, func(_ int64, b []byte) (bool, error) {
		zero = allZero(b)
		return zero, nil
	})
	return zero, err
}

func allZero(b []byte) bool {
	for len(b) >= 8 {
		if binary.LittleEndian.Uint64(b) != 0 {
			return false
		}
		b = b[8:]
	}
	for _, c := range b {
		if c != 0 {
			return false
		}
	}
	return true
}
