package tool

import (
	"bytes"
	"encoding/binary"
	"math"

	"github.com/gantrymq/gantry/message"
)

// resync searches for the next valid record behind pos, where the bad thing at
// stands. Records that are older than those before pos are left over from a log
// that was cut here and not zeroed: they are passed over. It returns -1 when
// there is none, and then r.tail is where bytes are that are not zero.
func (w *logWalker) resync(pos int64, at *found) (int64, error) {
	r := w.r
	r.zerosFollow = at.zeros
	before := r.late.middle()
	if !at.zeros {
		var b [4]byte
		w.in.read(b[:], pos)
		r.zerosFollow = isZero(b[:])
	}
	r.tail = [2]int64{pos, pos}
	from := pos + 1
	if at.extent > 0 {
		// Only the content is wrong. What looks like records inside of it, for
		// a body can hold anything, is none.
		from = pos + at.extent
		r.noteTail(pos, from)
	}
	// A damaged record ends where it says, if something valid begins there.
	if next := pos + w.claim(pos); next > pos {
		f, err := w.at(next)
		if err != nil || f.what == foundRecord && w.view.StoreTimestamp >= before {
			return next, err
		}
	}
	if w.chunk == nil {
		w.chunk = make([]byte, copyChunk)
	}
	ahead := int64(4 * pageSize) // mostly the next record is near
	for off := from; off < min(w.fileSize, w.in.size); ahead = min(2*ahead, copyChunk) {
		if err := w.ctx.Err(); err != nil {
			return 0, err
		}
		if off = w.in.nextData(off); off >= w.in.size {
			break
		}
		chunk := w.chunk[:min(ahead, w.fileSize-off)]
		w.in.read(chunk, off)
		if n := trimZeros(chunk); n > 0 {
			r.noteTail(pos, off+int64(n))
		} else {
			off += int64(len(chunk))
			continue
		}
		w.credit += int64(len(chunk))
		next, record, err := w.search(chunk, off, pos, before)
		if err != nil || record >= 0 {
			return record, err
		}
		if w.credit < 0 {
			return -1, nil
		}
		off = next
	}
	return -1, nil
}

// claim is the size that stands at pos, 0 when it cannot be one.
func (w *logWalker) claim(pos int64) int64 {
	var b [4]byte
	w.in.read(b[:], pos)
	if n := int64(message.Size(b[:])); n >= minFiller && n < w.fileSize-pos {
		return n
	}
	return 0
}

// cost is what a would-be record with that size field costs to check.
func cost(size []byte, rest int64) int64 {
	if n := int64(message.Size(size)); n >= message.MinRecordSize && n <= rest {
		return n
	}
	return message.MinRecordSize
}

// noteTail extends the range of bytes that are not zero.
func (r *walkedFile) noteTail(pos, to int64) { r.tail = [2]int64{pos, max(r.tail[1], to)} }

var magicPrefix = []byte{0xDA, 0xA3, 0x20} // of both record versions

// search looks for a valid record behind pos in a chunk read at off. It returns
// where to go on, and the record's position or -1.
func (w *logWalker) search(chunk []byte, off, pos, before int64) (next, record int64, err error) {
	for at := 0; ; {
		i := bytes.Index(chunk[at:], magicPrefix)
		if i < 0 {
			break
		}
		rec := at + i - posMagic
		at += i + 1
		cand := off + int64(rec)
		if rec < 0 || rec+peekSize > len(chunk) || cand-pos < minFiller {
			// A record so near cannot be one: nothing that a writer makes fits
			// between, nor would a filler.
			continue
		}
		if int64(binary.BigEndian.Uint64(chunk[rec+posPhysical:])) != w.r.start+cand {
			continue
		}
		if w.credit -= cost(chunk[rec:], w.fileSize-cand); w.credit < 0 {
			return 0, -1, nil
		}
		f, err := w.at(cand)
		if err != nil {
			return 0, -1, err
		}
		if f.what != foundRecord {
			continue
		}
		size := int64(w.view.Size)
		w.credit += size // not in vain
		if w.view.StoreTimestamp >= before {
			return 0, cand, nil
		}
		w.r.stale++
		w.r.noteTail(pos, cand+size)
		if int64(rec)+size >= int64(len(chunk)) {
			return cand + size, -1, nil
		}
		at = rec + int(size)
	}
	next = off + int64(len(chunk))
	if next < w.fileSize {
		next = max(off+1, next-(peekSize-1))
	}
	return next, -1, nil
}

// home finds out which part of the log a file holds, by the positions that its
// records state. ok is false when it has no valid record. Records that fit the
// file's own name win.
func (w *logWalker) home(path, name string, named int64) (start int64, ok bool, err error) {
	w.in, err = openSource(w.fs, path, name, w.bad)
	if err != nil {
		return named, false, nil
	}
	defer w.in.close()
	w.credit, w.run = searchCredit, -1
	w.buf, w.bufAt = w.buf[:0], 0
	if w.chunk == nil {
		w.chunk = make([]byte, copyChunk)
	}
	for off := int64(0); off < min(w.in.size, w.fileSize); {
		if err := w.ctx.Err(); err != nil {
			return 0, false, err
		}
		if off = w.in.nextData(off); off >= w.in.size {
			break
		}
		chunk := w.chunk[:min(copyChunk, w.fileSize-off)]
		w.in.read(chunk, off)
		w.credit += int64(len(chunk))
		for at := 0; w.credit >= 0; {
			i := bytes.Index(chunk[at:], magicPrefix)
			if i < 0 {
				break
			}
			rec := at + i - posMagic
			at += i + 1
			if rec < 0 || rec+peekSize > len(chunk) {
				continue
			}
			pos := off + int64(rec)
			begin := int64(binary.BigEndian.Uint64(chunk[rec+posPhysical:])) - pos
			if begin < 0 || begin%w.fileSize != 0 || begin >= math.MaxInt64/2 || ok && begin != named {
				continue
			}
			w.credit -= cost(chunk[rec:], w.fileSize-pos)
			w.r = &walkedFile{start: begin}
			f, err := w.at(pos)
			if err != nil {
				return 0, false, err
			}
			if f.what != foundRecord {
				continue
			}
			if begin == named {
				return named, true, nil
			}
			if !ok {
				start, ok = begin, true
			}
			w.credit += int64(w.view.Size)
		}
		if w.credit < 0 {
			break
		}
		if off += int64(len(chunk)); off < w.fileSize {
			off -= peekSize - 1
		}
	}
	return start, ok, nil
}
