package indexfile

import "io"

// blockEntries is how many entries a sequential read takes at once.
const blockEntries = 8192

// eachEntry calls fn for the entries from … to-1, in order, until fn returns
// false. What lies behind the end of the file reads as zeros.
func eachEntry(r io.ReaderAt, g Geometry, from, to int32, fn func(e int32, en Entry) bool) error {
	if from >= to {
		return nil
	}
	buf := make([]byte, min(int(to-from), blockEntries)*entrySize)
	for from < to {
		n := min(int(to-from), blockEntries)
		b := buf[:n*entrySize]
		if err := readFull(r, b, g.entryPos(from)); err != nil {
			return err
		}
		for i := range n {
			if !fn(from+int32(i), decodeEntry(b[i*entrySize:])) {
				return nil
			}
		}
		from += int32(n)
	}
	return nil
}

// eachEntryDown calls fn for the entries last … 1 until fn returns false.
func eachEntryDown(r io.ReaderAt, g Geometry, last int32, fn func(e int32, en Entry) bool) error {
	if last < firstEntry {
		return nil
	}
	buf := make([]byte, min(int(last), blockEntries)*entrySize)
	for last >= firstEntry {
		n := min(int(last), blockEntries)
		from := last - int32(n) + 1
		b := buf[:n*entrySize]
		if err := readFull(r, b, g.entryPos(from)); err != nil {
			return err
		}
		for i := n - 1; i >= 0; i-- {
			if !fn(from+int32(i), decodeEntry(b[i*entrySize:])) {
				return nil
			}
		}
		last = from - 1
	}
	return nil
}

// readEntry reads one entry.
func readEntry(r io.ReaderAt, g Geometry, e int32) (Entry, error) {
	var b [entrySize]byte
	if err := readFull(r, b[:], g.entryPos(e)); err != nil {
		return Entry{}, err
	}
	return decodeEntry(b[:]), nil
}

// readSlot reads one slot.
func readSlot(r io.ReaderAt, g Geometry, slot int32) (int32, error) {
	var b [slotSize]byte
	if err := readFull(r, b[:], g.slotPos(slot)); err != nil {
		return 0, err
	}
	return int32Of(b[:]), nil
}

// readHeader reads the header; ok is false when the file is too short for one.
func readHeader(r io.ReaderAt, size int64) (h Header, ok bool, err error) {
	if size < headerSize {
		return Header{}, false, nil
	}
	var b [headerSize]byte
	if err := readFull(r, b[:], 0); err != nil {
		return Header{}, false, err
	}
	return decodeHeader(&b), true, nil
}
