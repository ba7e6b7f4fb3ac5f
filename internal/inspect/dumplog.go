package inspect

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"

	"github.com/gantrymq/gantry/message"
)

// sniff makes out the kind of a file from its first bytes.
func (d *dumper) sniff() string {
	b, err := d.read(nil, 0, 64)
	if err != nil || len(b) < message.BlankSize {
		return ""
	}
	be := binary.BigEndian
	switch {
	case message.IsMagic(b[posMagic:]) || be.Uint32(b[posMagic:]) == message.MagicBlank:
		return "commitlog"
	case len(b) >= 52 && be.Uint32(b) == timerUnitSize && be.Uint32(b[12:]) <= timerMagicMask:
		return "timerlog"
	case b[0] == '{':
		return "json"
	case len(d.name) == 17 && len(b) >= 40 && d.size > 40:
		return "index"
	}
	return ""
}

// logFile decodes a file of the commit log.
func (d *dumper) logFile() error { return d.records(checks) }

// compactionLog decodes a file of a compaction log: the same, but that property
// CRCs no longer hold, because positions were changed.
func (d *dumper) compactionLog() error { return d.records(message.CheckOptions{BodyCRC: true}) }

func (d *dumper) records(opt message.CheckOptions) error {
	start, ok := d.start()
	if !ok {
		start = d.impliedStart()
	}
	s := &Store{fs: d.o.FS, dir: "", logSize: d.size, log: []logFile{{d.o.Path, start, d.size}}}
	var damage []Damage
	c := newChain(d.ctx, s, start, func(x Damage) { damage = append(damage, x) }, func(int64) {})
	defer c.close()
	c.all = true
	var r run
	for {
		more, err := c.next(&r, maxPosition)
		if err != nil {
			return err
		}
		for _, x := range damage {
			if err := d.noRecord(x.From-start, x.To-start, x.Reason); err != nil {
				return err
			}
		}
		damage = damage[:0]
		if !more {
			break
		}
		if err := d.run(&r, start, opt); err != nil {
			return err
		}
	}
	switch end := c.end - start; {
	case end >= d.size:
		return nil
	case c.blank:
		return d.item(end, "blank", "", Field{"size", d.size - end})
	default:
		return d.noRecord(end, d.size, c.reason)
	}
}

// impliedStart is the position of a file without such a name, by what its first
// record says.
func (d *dumper) impliedStart() int64 {
	var b [message.MaxHeaderSize]byte
	if readAt(d.f, b[:], 0) != nil {
		return 0
	}
	h, err := message.ParseHeader(b[:])
	if err != nil || h.Kind != message.KindRecord || h.PhysicalOffset < 0 || h.PhysicalOffset > maxPosition {
		return 0
	}
	return int64(h.PhysicalOffset)
}

// noRecord tells of a range without records: zeros, and what is not.
func (d *dumper) noRecord(from, to int64, reason string) error {
	var first, last int64 = -1, 0
	for off := from; off < to; {
		if err := d.ctx.Err(); err != nil {
			return err
		}
		if next, err := d.f.NextData(off); err == nil && next > off {
			off = next
			continue
		}
		b, err := d.read(nil, off, min(to-off, readAhead))
		if err != nil {
			return err
		}
		if len(b) == 0 {
			break
		}
		for i, c := range b {
			if c != 0 {
				if first < 0 {
					first = off + int64(i)
				}
				last = off + int64(i) + 1
			}
		}
		off += int64(len(b))
	}
	if first < 0 {
		damage := ""
		if to < d.size {
			damage = "zeros between records"
		}
		return d.item(from, "zeros", damage, Field{"bytes", to - from})
	}
	if reason == "" || reason == "zeros" {
		reason = "bytes that are no record"
	}
	return d.item(from, "bytes", reason, Field{"bytes", to - from}, Field{"dataFrom", first}, Field{"dataTo", last})
}

// run tells of the records of a piece of the file.
func (d *dumper) run(r *run, start int64, opt message.CheckOptions) error {
	for off := 0; off < r.n; {
		size := int(message.Size(r.buf[off:]))
		at := r.at + int64(off)
		rec := r.buf[off : off+size]
		off += size
		damage := ""
		v, err := message.Check(rec, message.PhysicalOffset(at), opt)
		if err != nil {
			damage = err.Error()
			if v, err = message.Check(rec, message.PhysicalOffset(at), message.CheckOptions{}); err != nil {
				h, _ := message.ParseHeader(rec)
				if err := d.item(at-start, "record", damage, headFields(&h)...); err != nil {
					return err
				}
				continue
			}
		}
		fields := append(headFields(&v.Header), Field{"topic", v.Topic()}, Field{"bornHost", v.BornHost().String()},
			Field{"storeHost", v.StoreHost().String()}, Field{"properties", string(v.Props())})
		if err := d.item(at-start, "record", damage, fields...); err != nil {
			return err
		}
	}
	return nil
}

func headFields(h *message.Header) []Field {
	return []Field{
		{"size", int64(h.Size)}, {"magic", fmt.Sprintf("%08x", h.Magic)}, {"bodyCRC", int64(h.BodyCRC)}, {"queueId", int64(h.QueueID)},
		{"flag", int64(h.Flag)}, {"queueOffset", int64(h.QueueOffset)}, {"physicalOffset", int64(h.PhysicalOffset)},
		{"sysFlag", int64(h.SysFlag)}, {"bornTimestamp", h.BornTimestamp}, {"storeTimestamp", h.StoreTimestamp},
		{"reconsumeTimes", int64(h.ReconsumeTimes)}, {"preparedTransactionOffset", int64(h.PreparedTransactionOffset)},
		{"bodyLength", int64(h.BodyLen)},
	}
}

// hexOf is bytes in hexadecimal, shortened.
func hexOf(b []byte) string {
	const most = 64
	if len(b) > most {
		return hex.EncodeToString(b[:most]) + "…"
	}
	return hex.EncodeToString(b)
}
