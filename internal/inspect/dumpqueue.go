package inspect

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/indexfile"
)

// queueFile decodes a file of a consume queue.
func (d *dumper) queueFile() error {
	start, _ := d.start()
	const size = consumequeue.UnitSize
	ended, last := false, int64(-1)
	err := d.blocks(0, d.size, size, func(off int64, b []byte, n int64, zero bool) error {
		slot := (start + off) / size
		if zero {
			ended = true
			return d.item(off, "empty", "", Field{"queueOffset", slot}, Field{"units", n})
		}
		u, _ := consumequeue.DecodeUnit(b) // b is long enough
		fields := []Field{{"queueOffset", slot}, {"physicalOffset", int64(u.Physical)}, {"size", int64(u.Size)}, {"tagsCode", int64(u.Tags)}}
		kind, damage := "unit", ""
		switch {
		case u.IsFill():
			kind = "fill"
		case !u.Valid():
			damage, ended = "neither valid nor empty: the queue ends here", true
		case int64(u.Physical) <= last:
			damage = fmt.Sprintf("position %d after %d", u.Physical, last)
		default:
			last = int64(u.Physical)
		}
		if damage == "" && ended {
			damage = "behind the queue's end"
		}
		if off, ok := consumequeue.ExtOffset(u.Tags); ok && kind == "unit" {
			fields = append(fields, Field{"extOffset", off})
		}
		return d.item(off, kind, damage, fields...)
	})
	if err != nil {
		return err
	}
	return d.rest(size)
}

// rest tells of bytes behind the last whole unit of a file.
func (d *dumper) rest(size int64) error {
	n := d.size % size
	if n == 0 {
		return nil
	}
	b, err := d.read(nil, d.size-n, n)
	if err != nil || isZero(b) {
		return err
	}
	return d.item(d.size-n, "bytes", "less than a unit", Field{"hex", hexOf(b)})
}

// batchFile decodes a file of a batch consume queue.
func (d *dumper) batchFile() error { return d.batchUnits(false) }

// sparseFile decodes a queue file of a compaction: offsets have gaps, and a
// special unit may end it.
func (d *dumper) sparseFile() error { return d.batchUnits(true) }

func (d *dumper) batchUnits(sparse bool) error {
	const size = consumequeue.BatchUnitSize
	ended := false
	next, last := int64(-1), int64(-1)
	err := d.blocks(0, d.size, size, func(off int64, b []byte, n int64, zero bool) error {
		if zero {
			ended = true
			return d.item(off, "empty", "", Field{"units", n})
		}
		u, _ := consumequeue.DecodeBatchUnit(b) // b is long enough
		fields := []Field{
			{"physicalOffset", int64(u.Physical)}, {"size", int64(u.Size)}, {"tagsCode", int64(u.Tags)}, {"storeTimestamp", u.StoreTime},
			{"queueOffset", int64(u.Base)}, {"count", int64(u.Count)}, {"compactedOffset", int64(u.Compacted)}, {"reserved", int64(u.Reserved)},
		}
		kind, damage := "unit", ""
		switch {
		case sparse && u.Physical == -1 && u.Size == 0:
			kind, ended = "end", true
		case !u.Valid():
			damage, ended = "neither valid nor empty: the queue ends here", true
		case ended:
			damage = "behind the queue's end"
		case int64(u.Physical) <= last:
			damage = fmt.Sprintf("position %d after %d", u.Physical, last)
		case next >= 0 && (sparse && int64(u.Base) < next || !sparse && int64(u.Base) != next):
			damage = fmt.Sprintf("queue offset %d, but the unit before ends at %d", u.Base, next)
		}
		if u.Valid() {
			next, last = int64(u.Next()), int64(u.Physical)
		}
		return d.item(off, kind, damage, fields...)
	})
	if err != nil {
		return err
	}
	return d.rest(size)
}

// extFile decodes a file of a queue's extension, whose units differ in size.
func (d *dumper) extFile() error {
	var buf []byte
	at := int64(0) // of buf
	for off := int64(0); off < d.size; {
		if rest := at + int64(len(buf)) - off; rest < min(consumequeue.MaxExtUnitSize, d.size-off) {
			var err error
			if buf, err = d.read(nil, off, 1<<20); err != nil {
				return err
			}
			at = off
		}
		b := buf[off-at:]
		u, size, err := consumequeue.DecodeExtUnit(b)
		switch {
		case err == nil && size > 0:
			if err := d.item(off, "unit", "", Field{"size", int64(size)}, Field{"tagsCode", int64(u.Tags)}, Field{"storeTimestamp", u.StoreTime}, Field{"bitmap", hexOf(u.Bitmap)}); err != nil {
				return err
			}
			off += int64(size)
			continue
		case err == nil && len(b) >= 2 && int16(binary.BigEndian.Uint16(b)) < 0:
			return d.item(off, "end", "", Field{"bytes", d.size - off})
		}
		reason := ""
		if err != nil {
			reason = err.Error()
		}
		return d.noRecord(off, d.size, reason)
	}
	return nil
}

// indexFile decodes a file of the key index.
func (d *dumper) indexFile() error {
	var hints []indexfile.Geometry
	if d.o.IndexSlots > 0 && d.o.IndexEntries > 0 {
		hints = append(hints, indexfile.Geometry{Slots: d.o.IndexSlots, Entries: d.o.IndexEntries})
	}
	r, err := indexfile.OpenReader(d.o.FS, d.o.Path, hints...)
	if err != nil {
		return err
	}
	defer r.Close()
	h, g := r.Header(), r.Geometry()
	if err := d.item(0, "header", r.Wrong(), Field{"beginTimestamp", h.BeginTime}, Field{"endTimestamp", h.EndTime}, Field{"beginPhyOffset", int64(h.BeginPhy)},
		Field{"endPhyOffset", int64(h.EndPhy)}, Field{"hashSlotCount", int64(h.SlotCount)}, Field{"indexCount", int64(h.Count)},
		Field{"maxHashSlotNum", int64(g.Slots)}, Field{"maxIndexNum", int64(g.Entries)}); err != nil {
		return err
	}
	count := int64(min(max(h.Count, 1), g.Entries))
	be := binary.BigEndian
	if err := d.blocks(r.SlotPos(0), min(r.EntryPos(0), d.size), 4, func(off int64, b []byte, _ int64, zero bool) error {
		if zero {
			return nil
		}
		v, damage := int64(int32(be.Uint32(b))), ""
		if v < 0 || v >= count {
			damage = fmt.Sprintf("there are %d entries", count-1)
		}
		return d.item(off, "slot", damage, Field{"slot", (off - r.SlotPos(0)) / 4}, Field{"entry", v})
	}); err != nil {
		return err
	}
	last := int64(math.MinInt64)
	return d.blocks(r.EntryPos(1), d.size, indexEntrySize, func(off int64, b []byte, n int64, zero bool) error {
		e := (off - r.EntryPos(0)) / indexEntrySize
		if zero {
			if e >= count {
				return d.item(off, "empty", "", Field{"entry", e}, Field{"entries", n})
			}
			return d.item(off, "empty", "empty entries in front of the end", Field{"entry", e}, Field{"entries", n})
		}
		hash, phy, prev := int32(be.Uint32(b)), int64(be.Uint64(b[posEntryPhy:])), int32(be.Uint32(b[posEntryPrev:]))
		damage := ""
		switch {
		case e >= count:
			damage = "behind the end that the header says"
		case hash < 0:
			damage = "a negative hash"
		case phy < last:
			damage = fmt.Sprintf("position %d after %d", phy, last)
		case prev < 0 || int64(prev) >= e:
			damage = "the chain does not lead downwards"
		}
		last = max(last, phy)
		return d.item(off, "entry", damage, Field{"entry", e}, Field{"hash", int64(hash)}, Field{"physicalOffset", phy},
			Field{"seconds", int64(int32(be.Uint32(b[posEntrySeconds:])))}, Field{"previous", int64(prev)}, Field{"slot", int64(uint32(hash) % uint32(g.Slots))})
	})
}
