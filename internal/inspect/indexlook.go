package inspect

import (
	"encoding/binary"
	"slices"

	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Where the fields of an index file are; package indexfile has the layout.
const (
	indexEntrySize  = 20
	posEntryPhy     = 4
	posEntrySeconds = 12
	posEntryPrev    = 16
)

// indexHits is what an index file knows about a hash.
type indexHits struct {
	begin, end int64   // the range of the log that it covers
	list       []int64 // positions, rising
}

// lookIndex follows the chain of a hash in one file. ok is false when the file
// is not what an index file should be: nothing in it is then to be believed.
func (s *Store) lookIndex(path string, hash int32) (x indexHits, ok bool) {
	r, err := indexfile.OpenReader(s.fs, path)
	if err != nil {
		return x, false
	}
	defer r.Close()
	h, g := r.Header(), r.Geometry()
	if r.Wrong() != "" || !h.HasEntries() || h.Count > g.Entries || r.Size() < g.Size() || h.BeginPhy > h.EndPhy {
		return x, false
	}
	f, err := s.fs.Open(path, vfs.ReadOnly)
	if err != nil {
		return x, false
	}
	defer f.Close()
	x.begin = int64(h.BeginPhy)
	if x.end, ok = s.recordEnd(int64(h.EndPhy)); !ok {
		return x, false
	}
	var slot [4]byte
	if readAt(f, slot[:], r.SlotPos(hash%g.Slots)) != nil {
		return x, false
	}
	before := h.Count // entries have smaller numbers
	for e := int32(binary.BigEndian.Uint32(slot[:])); e != 0; {
		if e < 0 || e >= before {
			return x, false
		}
		before = e
		var b [indexEntrySize]byte
		if readAt(f, b[:], r.EntryPos(e)) != nil {
			return x, false
		}
		phy := int64(binary.BigEndian.Uint64(b[posEntryPhy:]))
		if phy < x.begin || phy >= x.end {
			return x, false
		}
		if int32(binary.BigEndian.Uint32(b[:])) == hash {
			if len(x.list) >= maxPointers {
				return x, false
			}
			x.list = append(x.list, phy)
		}
		e = int32(binary.BigEndian.Uint32(b[posEntryPrev:]))
	}
	slices.Sort(x.list)
	x.list = slices.Compact(x.list) // a message may have a key twice
	return x, true
}

// recordEnd returns the position behind the record at phy. Of one that was
// deleted with its file it is the position itself.
func (s *Store) recordEnd(phy int64) (int64, bool) {
	if phy < s.Min() {
		return phy, true
	}
	i := s.fileAt(phy)
	if i < 0 {
		return 0, false
	}
	f, err := s.fs.Open(s.log[i].path, vfs.ReadOnly)
	if err != nil {
		return 0, false
	}
	defer f.Close()
	var b [message.MaxHeaderSize]byte
	if readAt(f, b[:], phy-s.log[i].start) != nil {
		return 0, false
	}
	h, err := message.ParseHeader(b[:])
	if err != nil || h.Kind != message.KindRecord || int64(h.PhysicalOffset) != phy {
		return 0, false
	}
	return phy + int64(h.Size), true
}
