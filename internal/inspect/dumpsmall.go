package inspect

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"

	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/message"
)

// The timer files, section 12 of the format.
const (
	timerSlots     = 7 * 24 * 3600 * 2
	timerSlotSize  = 32
	timerUnitSize  = 52
	timerEndSize   = 16
	timerMagicMask = 0xF
	timerCheckSize = 4096
	checkpointSize = 4096
	checkpointUsed = 48 // bytes of RocketMQ's fields
)

func be64(b []byte) int64 { return int64(binary.BigEndian.Uint64(b)) }
func be32(b []byte) int64 { return int64(int32(binary.BigEndian.Uint32(b))) }

// checkpoint decodes the checkpoint.
func (d *dumper) checkpoint() error {
	b, err := d.all(1 << 20)
	if err != nil {
		return err
	}
	wrong := ""
	if d.size != checkpointSize {
		wrong = fmt.Sprintf("%d bytes instead of %d", d.size, checkpointSize)
	}
	for i, name := range []string{"physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp", "masterFlushedOffset", "confirmPhyOffset", "logicsPhysicalOffset"} {
		if len(b) < 8*i+8 {
			return d.item(int64(8*i), "field", wrong)
		}
		v, damage := be64(b[8*i:]), wrong
		if v < 0 {
			damage = "negative"
		}
		if err := d.item(int64(8*i), "field", damage, Field{name, v}); err != nil {
			return err
		}
	}
	f, err := checkpoint.Open(d.o.FS, d.o.Path, nil)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, ext := f.Load(); ext != nil {
		return d.item(512, "gantry", "", Field{"save", int64(ext.Seq)}, Field{"clean", ext.Clean}, Field{"dispatchedTo", int64(ext.DispatchedTo)},
			Field{"lastRecord", int64(ext.LastRecord)}, Field{"flushedTo", int64(ext.FlushedTo)}, Field{"lastStoreTimestamp", ext.LastStoreTime},
			Field{"queues", int64(ext.QueueCount)}, Field{"indexFile", ext.Index.Name}, Field{"indexCount", int64(ext.Index.Count)},
			Field{"indexEndPhyOffset", int64(ext.Index.EndPhy)}, Field{"indexComplete", ext.Index.Complete})
	}
	for off := checkpointUsed; off < len(b); off++ {
		if b[off] == 0 {
			continue
		}
		if off >= 512 && off < 1536 {
			return d.item(512, "gantry", "", Field{"stale", true}) // another program has written since
		}
		return d.item(int64(off), "bytes", "not zero", Field{"hex", hexOf(b[off:min(off+16, len(b))])})
	}
	return nil
}

// abortFile decodes abort: nothing, or a process id.
func (d *dumper) abortFile() error {
	b, err := d.all(1 << 10)
	if err != nil {
		return err
	}
	if len(b) == 0 {
		return d.item(0, "empty", "")
	}
	pid, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	if err != nil {
		return d.item(0, "text", "no process id", Field{"text", string(b)})
	}
	return d.item(0, "process", "", Field{"pid", pid})
}

func (d *dumper) textFile() error {
	b, err := d.all(1 << 10)
	if err != nil {
		return err
	}
	return d.item(0, "text", "", Field{"text", string(b)})
}

// identity decodes the file that a broker in controller mode keeps its name in.
func (d *dumper) identity() error {
	b, err := d.all(1 << 16)
	if err != nil {
		return err
	}
	parts := strings.Split(string(b), "#")
	names := []string{"clusterName", "brokerName", "brokerId", "registerCheckCode"}
	want := 3
	if strings.HasPrefix(d.name, "brokerIdentity-temp") {
		want = 4
	}
	damage := ""
	if len(parts) != want {
		damage = fmt.Sprintf("%d parts instead of %d", len(parts), want)
	}
	var fields []Field
	for i, p := range parts[:min(len(parts), len(names))] {
		fields = append(fields, Field{names[i], p})
	}
	return d.item(0, "identity", damage, fields...)
}

// timerWheel decodes the slots of the timer wheel.
func (d *dumper) timerWheel() error {
	if d.size != 0 && d.size != timerSlots*timerSlotSize {
		if err := d.item(0, "length", fmt.Sprintf("%d bytes instead of %d", d.size, timerSlots*timerSlotSize)); err != nil {
			return err
		}
	}
	return d.blocks(0, d.size, timerSlotSize, func(off int64, b []byte, n int64, zero bool) error {
		slot := off / timerSlotSize
		if zero {
			return d.item(off, "empty", "", Field{"slot", slot}, Field{"slots", n})
		}
		t, damage := be64(b), ""
		if t <= 0 || t%timerSlots != slot {
			damage = "the time belongs to another slot"
		}
		return d.item(off, "slot", damage, Field{"slot", slot}, Field{"time", t}, Field{"firstPos", be64(b[8:])}, Field{"lastPos", be64(b[16:])},
			Field{"num", be32(b[24:])}, Field{"magic", be32(b[28:])})
	})
}

// timerLog decodes a file of the timer log.
func (d *dumper) timerLog() error {
	var buf []byte
	at := int64(0)
	for off := int64(0); off < d.size; {
		if at+int64(len(buf)) < min(off+timerUnitSize, d.size) {
			var err error
			if buf, err = d.read(nil, off, 1<<20); err != nil {
				return err
			}
			at = off
		}
		b := buf[off-at:]
		if len(b) >= timerEndSize && binary.BigEndian.Uint32(b[12:]) == message.MagicBlank {
			damage := ""
			if be32(b) != d.size-off {
				damage = fmt.Sprintf("size %d, to the end of the file are %d", be32(b), d.size-off)
			}
			return d.item(off, "end", damage, Field{"size", be32(b)})
		}
		if len(b) < timerUnitSize || be32(b) != timerUnitSize || be32(b[12:])|timerMagicMask != timerMagicMask {
			return d.noRecord(off, d.size, "neither a unit nor the end of the file")
		}
		if err := d.item(off, "unit", "", Field{"size", be32(b)}, Field{"prevPos", be64(b[4:])}, Field{"magic", be32(b[12:])}, Field{"writeTimestamp", be64(b[16:])},
			Field{"delay", be32(b[24:])}, Field{"physicalOffset", be64(b[28:])}, Field{"sizePy", be32(b[36:])}, Field{"realTopicHash", be32(b[40:])},
			Field{"reserved", be64(b[44:])}); err != nil {
			return err
		}
		off += timerUnitSize
	}
	return nil
}

// timerCheck decodes config/timercheck.
func (d *dumper) timerCheck() error {
	b, err := d.all(1 << 20)
	if err != nil {
		return err
	}
	wrong := ""
	if d.size != timerCheckSize {
		wrong = fmt.Sprintf("%d bytes instead of %d", d.size, timerCheckSize)
	}
	for i, name := range []string{"lastReadTimestamp", "lastTimerLogFlushPos", "lastTimerQueueOffset", "masterTimerQueueOffset", "stateVersion", "dataVersionTimestamp", "counter"} {
		if len(b) < 8*i+8 {
			return d.item(int64(8*i), "field", wrong)
		}
		if err := d.item(int64(8*i), "field", wrong, Field{name, be64(b[8*i:])}); err != nil {
			return err
		}
	}
	return nil
}

// epochFile decodes the epoch file of the controller mode.
func (d *dumper) epochFile() error {
	b, err := d.all(16 << 20)
	if err != nil {
		return err
	}
	line := func(n int) (off int64, text string, rest []byte) {
		left := b
		for ; n > 0; n-- {
			i := bytes.IndexByte(left, '\n')
			if i < 0 {
				return int64(len(b)), "", nil
			}
			left = left[i+1:]
		}
		off = int64(len(b) - len(left))
		text, _, _ = strings.Cut(string(left), "\n")
		return off, strings.TrimSuffix(text, "\r"), left
	}
	_, text, _ := line(0)
	count, err := strconv.ParseInt(text, 10, 64)
	damage := ""
	if err != nil {
		damage = "no number of entries"
	}
	if err := d.item(0, "count", damage, Field{"entries", count}); err != nil {
		return err
	}
	off, text, _ := line(1)
	crc, err := strconv.ParseInt(text, 10, 64)
	_, _, body := line(2)
	damage = ""
	switch sum := int64(crc32.ChecksumIEEE(body) & 0x7FFFFFFF); {
	case err != nil:
		damage = "no CRC"
	case crc != 0 && crc != sum:
		damage = fmt.Sprintf("the CRC of the entries is %d", sum)
	}
	if err := d.item(off, "crc", damage, Field{"crc", crc}); err != nil {
		return err
	}
	entries, epoch, start := int64(0), int64(-1), int64(-1)
	off = int64(len(b) - len(body))
	for len(body) > 0 {
		raw := body
		if i := bytes.IndexByte(body, '\n'); i >= 0 {
			raw = body[:i+1]
		}
		text := strings.TrimRight(string(raw), "\r\n")
		x, y, _ := strings.Cut(text, "-")
		e, err1 := strconv.ParseInt(x, 10, 64)
		p, err2 := strconv.ParseInt(y, 10, 64)
		damage, fields := "", []Field{{"epoch", e}, {"startOffset", p}}
		switch {
		case err1 != nil || err2 != nil:
			damage, fields = "no epoch and position", []Field{{"text", text}}
		case e <= epoch || p <= start:
			damage = "does not follow the entry before"
		default:
			epoch, start = e, p
		}
		if err := d.item(off, "epoch", damage, fields...); err != nil {
			return err
		}
		entries++
		off += int64(len(raw))
		body = body[len(raw):]
	}
	if entries != count {
		return d.item(off, "end", fmt.Sprintf("%d entries instead of %d", entries, count))
	}
	return nil
}

// maxJSONDepth bounds how deep values nest; genuine files have 6 levels.
const maxJSONDepth = 64

// jsonFile decodes a configuration file: one item for each value, with the keys
// that lead to it.
func (d *dumper) jsonFile() error {
	b, err := d.all(javajson.MaxSize)
	if err != nil {
		return err
	}
	norm, err := javajson.Normalize(b)
	if err != nil {
		return d.item(0, "json", err.Error())
	}
	w := &jsonWalk{d: d, raw: b, norm: norm, dec: json.NewDecoder(bytes.NewReader(norm))}
	w.dec.UseNumber()
	err = w.value("", 0)
	var syntax *json.SyntaxError
	switch {
	case err == nil:
		if _, err := w.dec.Token(); err != io.EOF {
			return d.item(w.offset(w.dec.InputOffset()), "json", "something follows the value")
		}
		return nil
	case err == io.EOF || err == io.ErrUnexpectedEOF:
		return d.item(d.size, "json", "the file ends too early")
	case asSyntax(err, &syntax):
		return d.item(w.offset(syntax.Offset), "json", syntax.Error())
	}
	return err
}

func asSyntax(err error, to **json.SyntaxError) bool {
	s, ok := err.(*json.SyntaxError)
	*to = s
	return ok
}

// jsonWalk goes through a JSON file. Offsets of the normalized text, in which
// bare keys have got quotes, are translated back.
type jsonWalk struct {
	d         *dumper
	raw, norm []byte
	dec       *json.Decoder
	at, atRaw int64 // a pair of offsets that belong together
}

// offset translates an offset, which may not fall from call to call.
func (w *jsonWalk) offset(norm int64) int64 {
	for w.at < norm && w.at < int64(len(w.norm)) && w.atRaw < int64(len(w.raw)) {
		if w.norm[w.at] == w.raw[w.atRaw] {
			w.atRaw++
		}
		w.at++
	}
	return w.atRaw
}

// value tells of the next value. path are the keys that lead to it.
func (w *jsonWalk) value(path string, depth int) error {
	if depth > maxJSONDepth {
		return w.d.item(w.offset(w.dec.InputOffset()), "json", "nested too deeply")
	}
	begin := w.dec.InputOffset()
	for begin < int64(len(w.norm)) && strings.IndexByte(" \t\r\n,:", w.norm[begin]) >= 0 {
		begin++
	}
	t, err := w.dec.Token()
	if err != nil {
		return err
	}
	off := w.offset(begin)
	child := func(key string) string {
		if path == "" {
			return key
		}
		return path + "." + key
	}
	switch t := t.(type) {
	case json.Delim:
		n := 0
		for ; w.dec.More(); n++ {
			key := strconv.Itoa(n)
			if t == '{' {
				k, err := w.dec.Token()
				if err != nil {
					return err
				}
				key, _ = k.(string)
			}
			if err := w.value(child(key), depth+1); err != nil {
				return err
			}
		}
		if _, err := w.dec.Token(); err != nil {
			return err
		}
		if n == 0 {
			return w.d.item(off, "value", "", Field{"key", path}, Field{"value", map[json.Delim]string{'{': "{}", '[': "[]"}[t]})
		}
		return nil
	case json.Number:
		return w.d.item(off, "value", "", Field{"key", path}, Field{"value", t.String()})
	case string:
		return w.d.item(off, "value", "", Field{"key", path}, Field{"value", strconv.Quote(t)})
	}
	if t == nil {
		return w.d.item(off, "value", "", Field{"key", path}, Field{"value", "null"})
	}
	return w.d.item(off, "value", "", Field{"key", path}, Field{"value", fmt.Sprint(t)})
}
