package check

import (
	"encoding/binary"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// The timer files, section 12 of the format.
const (
	timerSlots     = 7 * 24 * 3600 * 2
	timerSlotSize  = 32
	timerUnitSize  = 52
	timerEndSize   = 16 // of the marker that ends a timer log file
	timerDelete    = 4  // bit of a unit's magic: it cancels a message
	timerMagicMask = 0xF
	timerCheckSize = 4096
)

// timerSlot is one slot of the wheel.
type timerSlot struct {
	time        int64 // of delivery, in units of the precision
	first, last int64 // positions in the timer log
	num         int32 // messages, less cancellations
}

// timerUnit is one unit of the timer log.
type timerUnit struct {
	size      int32
	prev      int64 // of the same slot, -1
	magic     int32
	writeTime int64 // ms
	delay     int32 // ms
	phy       int64
	msgSize   int32
	topicHash int32
}

func decodeTimerUnit(b []byte) timerUnit {
	be := binary.BigEndian
	return timerUnit{
		size: int32(be.Uint32(b)), prev: int64(be.Uint64(b[4:])), magic: int32(be.Uint32(b[12:])),
		writeTime: int64(be.Uint64(b[16:])), delay: int32(be.Uint32(b[24:])), phy: int64(be.Uint64(b[28:])),
		msgSize: int32(be.Uint32(b[36:])), topicHash: int32(be.Uint32(b[40:])),
	}
}

func (u timerUnit) valid() bool {
	return u.size == timerUnitSize && u.magic|timerMagicMask == timerMagicMask
}

// at is the time of delivery in ms.
func (u timerUnit) at() int64 { return u.writeTime + int64(u.delay) }

// timer checks wheel and log against each other.
type timer struct {
	c         *checker
	s         *sink
	sev       Severity
	dir       string
	segs      []segment
	end       int64 // behind the last unit of the log
	in        *input
	file      int
	precision int64 // ms, 0 while unknown
	read      int64 // time up to which messages were delivered, ms
	steps     int64 // units that may still be looked at
	peek      logReader
}

// checkTimer is rules 45 and 46.
func (c *checker) checkTimer() error {
	s := c.sink()
	defer s.flush()
	t := &timer{c: c, s: s, sev: Error, dir: filepath.Join(c.dir, "timerlog"), file: -1}
	t.peek.c = c
	defer func() { t.in.close(); t.peek.close() }()
	switch {
	case c.live:
		t.sev = Info
	case c.abort:
		// Both files are written in place and brought up to date at the start.
		t.sev = Warning
	}
	t.segs = c.listSegments(s, ruleTimerWheel, []string{t.dir})
	if size := inferFileSize(t.segs, 1); size > 0 {
		var gaps []span
		t.segs, gaps = c.checkSegments(s, ruleTimerWheel, ruleTimerWheel, []string{t.dir}, t.segs, size)
		for _, g := range gaps {
			s.addAs(ruleTimerWheel, t.sev, c.show(t.dir), 0, "no files for the bytes from %d to %d", g.from, g.to)
		}
	} else {
		t.segs = nil
	}
	t.walkLog()
	t.checkpoint()
	if c.o.Level > Quick {
		t.wheel()
	}
	return c.ctx.Err()
}

// walkLog finds the end of the timer log.
func (t *timer) walkLog() {
	for i := range t.segs {
		g := t.segs[i]
		t.end = g.start
		if !t.open(i) {
			return
		}
		off := int64(0)
		for ; off+timerUnitSize <= t.in.size; off += timerUnitSize {
			u := decodeTimerUnit(t.in.window(off, timerUnitSize, unitAhead))
			if !u.valid() {
				break
			}
			t.steps++
			t.end = g.start + off + timerUnitSize
		}
		full := false
		if off+timerEndSize <= t.in.size {
			b := t.in.window(off, timerEndSize, unitAhead)
			full = binary.BigEndian.Uint32(b[12:]) == message.MagicBlank
			if !full && trimZeros(b) > 0 {
				t.s.addAs(ruleTimerWheel, t.sev, t.in.file, off, "neither a unit nor the end of the file")
			}
		}
		if !full && i+1 < len(t.segs) {
			if t.c.abort || t.laterEmpty(i+1) {
				return
			}
			t.s.addAs(ruleTimerWheel, t.sev, t.in.file, off, "the file is not ended, but another one follows")
		}
		if t.c.ctx.Err() != nil {
			return
		}
	}
}

// laterEmpty reports whether the files from i on begin with zeros.
func (t *timer) laterEmpty(i int) bool {
	for ; i < len(t.segs); i++ {
		if !t.open(i) || t.in.size >= timerUnitSize && trimZeros(t.in.window(0, timerUnitSize, timerUnitSize)) > 0 {
			return false
		}
	}
	return true
}

func (t *timer) open(i int) bool {
	if t.file == i && t.in != nil {
		return true
	}
	t.in.close()
	t.file = i
	t.in = t.c.open(t.s, filepath.Join(t.dir, segmentName(t.segs[i].start)))
	return t.in != nil
}

// checkpoint is rule 46.
func (t *timer) checkpoint() {
	c, s := t.c, t.s
	const file = "config/timercheck"
	data, ok := c.slurp(s, c.path(file), 1<<20, ruleTimerCheck)
	if !ok {
		return
	}
	if len(data) != timerCheckSize {
		s.add(ruleTimerCheck, file, 0, "%d bytes instead of %d", len(data), timerCheckSize)
		if len(data) < 24 {
			return
		}
	}
	t.read = int64(binary.BigEndian.Uint64(data))
	flushed := int64(binary.BigEndian.Uint64(data[8:]))
	offset := int64(binary.BigEndian.Uint64(data[16:]))
	if c.live {
		return
	}
	if t.read < 0 || flushed < 0 || flushed > t.end {
		s.add(ruleTimerCheck, file, 8, "lastTimerLogFlushPos %d, but the timer log ends at %d", flushed, t.end)
	}
	end := int64(0)
	if tp := c.queues.topics[message.TimerTopic]; tp != nil {
		if q := tp.find(0, consumequeue.Simple); q != nil {
			end = q.max
		}
	}
	if offset < 0 || offset > end && !c.rocksQueues {
		s.add(ruleTimerCheck, file, 16, "lastTimerQueueOffset %d, but the queue of %s ends at %d", offset, message.TimerTopic, end)
	}
}

// wheel is rule 45. A slot is believed only for the time that it states; slots
// of past times are stale and may point at what is gone.
func (t *timer) wheel() {
	c, s := t.c, t.s
	path := filepath.Join(c.dir, "timerwheel")
	e, err := c.fs.Stat(path)
	if err != nil || !e.IsRegular() {
		return
	}
	in := c.open(s, path)
	if in == nil {
		return
	}
	defer in.close()
	if in.size == 0 {
		return
	}
	if in.size != timerSlots*timerSlotSize {
		s.addAs(ruleTimerWheel, Error, in.file, 0, "%d bytes instead of %d", in.size, timerSlots*timerSlotSize)
	}
	t.steps = 4*t.steps + 1_000_000
	for off := int64(0); off+timerSlotSize <= in.size; off += timerSlotSize {
		if off%(1<<20) == 0 {
			if c.ctx.Err() != nil {
				return
			}
			off = max(off, in.nextData(off)/timerSlotSize*timerSlotSize)
			if off+timerSlotSize > in.size {
				return
			}
		}
		b := in.window(off, timerSlotSize, unitAhead)
		if trimZeros(b) == 0 {
			continue
		}
		be := binary.BigEndian
		slot := timerSlot{int64(be.Uint64(b)), int64(be.Uint64(b[8:])), int64(be.Uint64(b[16:])), int32(be.Uint32(b[24:]))}
		if slot.time <= 0 || slot.time%timerSlots != off/timerSlotSize {
			s.addAs(ruleTimerWheel, t.sev, in.file, off, "slot %d has time %d, which belongs to slot %d", off/timerSlotSize, slot.time, mod(slot.time, timerSlots))
			continue
		}
		t.slot(in.file, off, slot)
	}
}

func mod(a, b int64) int64 { return (a%b + b) % b }

// slot follows the chain of one slot.
func (t *timer) slot(file string, off int64, slot timerSlot) {
	if slot.last < 0 && slot.first < 0 && slot.num == 0 {
		return
	}
	report := func(format string, args ...any) { t.s.addAs(ruleTimerWheel, t.sev, file, off, format, args...) }
	num := int32(0)
	pos, before := slot.last, int64(1)<<62
	for {
		if pos >= before {
			report("the chain of time %d goes up from %d to %d", slot.time, before, pos)
			return
		}
		u, ok := t.unit(pos)
		if t.precision == 0 && ok && u.valid() {
			t.precision = max(u.at()/slot.time, 1)
		}
		past := t.precision > 0 && slot.time*t.precision <= t.read
		switch {
		case !ok && (past || len(t.segs) > 0 && pos < t.segs[0].start):
			return // delivered, and its part of the log was deleted
		case !ok || !u.valid():
			if !past {
				report("time %d: no unit of the timer log at %d", slot.time, pos)
			}
			return
		case u.at()/t.precision != slot.time:
			if !past {
				report("time %d: the unit at %d is for time %d", slot.time, pos, u.at()/t.precision)
			}
			return
		}
		if t.steps--; t.steps < 0 {
			return // the slots share chains; what is wrong with that was reported
		}
		if u.magic&timerDelete != 0 {
			num--
		} else {
			num++
		}
		if !past {
			t.message(pos, u)
		}
		if pos == slot.first || u.prev < 0 {
			break
		}
		before, pos = pos, u.prev
	}
	if pos != slot.first {
		report("time %d: the chain ends at %d, the slot says %d", slot.time, pos, slot.first)
	} else if num != slot.num {
		report("time %d: %d messages, the slot says %d", slot.time, num, slot.num)
	}
}

// unit reads the unit at a position of the timer log.
func (t *timer) unit(pos int64) (timerUnit, bool) {
	if pos < 0 || pos >= t.end {
		return timerUnit{}, false
	}
	i := findSegment(t.segs, pos)
	if i < 0 || !t.open(i) {
		return timerUnit{}, false
	}
	off := pos - t.segs[i].start
	if off%timerUnitSize != 0 || off+timerUnitSize > t.in.size {
		return timerUnit{}, false
	}
	return decodeTimerUnit(t.in.window(off, timerUnitSize, timerUnitSize)), true
}

// message compares a unit with the record that it is for.
func (t *timer) message(pos int64, u timerUnit) {
	l := t.c.log
	if u.phy < l.min || u.phy >= l.end {
		return
	}
	file, off := t.in.file, pos-t.segs[t.file].start
	info, err := t.peek.look(u.phy)
	switch {
	case err != nil:
		t.s.addAs(ruleTimerWheel, t.sev, file, off, "no record at %d: %v", u.phy, err)
	case info.topic != message.TimerTopic:
		t.s.addAs(ruleTimerWheel, t.sev, file, off, "the record at %d is one of topic %s", u.phy, quoteShort(info.topic))
	case info.Size != u.msgSize:
		t.s.addAs(ruleTimerWheel, t.sev, file, off, "size %d, the record at %d has %d", u.msgSize, u.phy, info.Size)
	default:
		if real, ok := info.props.Get(message.PropRealTopic); ok && message.JavaHash(real) != u.topicHash {
			t.s.addAs(ruleTimerWheel, t.sev, file, off, "topic hash %d, the real topic of the record at %d has %d", u.topicHash, u.phy, message.JavaHash(real))
		}
	}
}
