package indexfile

import (
	"errors"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// Reader gives checkers the raw content of one file, right or wrong. It reads
// the file and changes nothing. One goroutine uses it.
type Reader struct {
	f  vfs.File
	ex examined
}

// OpenReader opens a file. Its geometry is the first of hints, or the default,
// that fits length and content, else what the content gives away; when nothing
// fits, the error is a *base.CorruptError.
func OpenReader(fsys vfs.FS, path string, hints ...Geometry) (*Reader, error) {
	f, err := fsys.Open(path, vfs.ReadOnly)
	if err != nil {
		return nil, err
	}
	ex, err := examine(f, append(hints[:len(hints):len(hints)], DefaultGeometry))
	if err == nil && ex.lost {
		err = base.Corruptf(path, 0, "%s", ex.wrong)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &Reader{f: f, ex: ex}, nil
}

// Header is the header as it stands in the file.
func (r *Reader) Header() Header { return r.ex.hdr }

// Geometry is what the file was made with.
func (r *Reader) Geometry() Geometry { return r.ex.geo }

// Size is the length of the file.
func (r *Reader) Size() int64 { return r.ex.size }

// Wrong says how the header disagrees with the first entry, the newest one or
// its slot; it is empty when it does not.
func (r *Reader) Wrong() string { return r.ex.wrong }

// Entries calls fn for the entries from … to-1 until it returns false. Entries
// behind the end of the file read as zeros.
func (r *Reader) Entries(from, to int32, fn func(e int32, en Entry) bool) error {
	return eachEntry(r.f, r.ex.geo, max(from, 0), min(to, r.ex.geo.Entries), fn)
}

// Slots calls fn for the slots that are not zero until it returns false.
func (r *Reader) Slots(fn func(slot, v int32) bool) error {
	g := r.ex.geo
	return eachChunk(r.f, g.slotPos(0), min(g.entryPos(0), r.ex.size), func(pos int64, b []byte) (bool, error) {
		slot := int32((pos - headerSize) / slotSize)
		for ; len(b) >= slotSize; b, slot = b[slotSize:], slot+1 {
			if v := int32Of(b); v != 0 && !fn(slot, v) {
				return false, nil
			}
		}
		return true, nil
	})
}

// EntryPos is the position of entry e in the file.
func (r *Reader) EntryPos(e int32) int64 { return r.ex.geo.entryPos(e) }

// SlotPos is the position of a slot in the file.
func (r *Reader) SlotPos(slot int32) int64 { return r.ex.geo.slotPos(slot) }

// Close closes the file.
func (r *Reader) Close() error { return r.f.Close() }
