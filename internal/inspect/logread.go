package inspect

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

const (
	// readAhead is how much of a log file is read at a time.
	readAhead = 512 << 10
	// maxRecord is the longest record that is read; claims above it are not
	// believed. The default limit for bodies is 4 MiB.
	maxRecord = 64 << 20
	// searchCredit is how many bytes of would-be records a search may check in
	// vain beyond what it has passed.
	searchCredit = 64 << 20
)

// Where the fields of a record are that can be told without knowing its hosts.
const (
	posMagic    = 4
	posPhysical = 28
	minHead     = posPhysical + 8
)

// Damage is a range of the log without a valid record.
type Damage struct {
	File     string // path of the file
	From, To int64  // positions in the log
	Reason   string
}

// chain reads the records of the log one after the other, as the size of each
// says where the next one begins. It looks at their heads only. One goroutine
// uses it.
type chain struct {
	s      *Store
	ctx    context.Context
	damage func(Damage)
	told   func(int64) // bytes passed

	i    int // current file
	f    vfs.File
	pos  int64 // in the file, of the next record
	last int64 // store time of the record before it
	prev int64 // position in the file of that record, -1

	all    bool   // records older than the one before count as well
	blank  bool   // the last file ends with a blank record, at end
	end    int64  // the log ends here, known when next returns false
	reason string // why, if not with zeros
	view   message.View
	rec    []byte // of the view
	chunk  []byte
}

// newChain begins at a position that is the start of a record, or the first
// one behind it.
func newChain(ctx context.Context, s *Store, from int64, damage func(Damage), told func(int64)) *chain {
	c := &chain{s: s, ctx: ctx, damage: damage, told: told, prev: -1, last: math.MinInt64}
	for c.i < len(s.log) && s.log[c.i].end() <= from {
		c.i++
	}
	if c.i < len(s.log) {
		c.pos = max(from-s.log[c.i].start, 0)
	}
	return c
}

func (c *chain) close() {
	if c.f != nil {
		c.f.Close() // only read
		c.f = nil
	}
}

// run is a piece of the log: whole records that lie back to back.
type run struct {
	at   int64  // position of buf
	path string // of its file
	base int64  // position of the file
	buf  []byte
	n    int // bytes of buf that are whole records
}

// next fills r with the next records, reusing r.buf, and returns false at the
// end of the log.
func (c *chain) next(r *run, to int64) (bool, error) {
	for {
		if err := c.ctx.Err(); err != nil {
			return false, err
		}
		if c.i >= len(c.s.log) || c.s.log[c.i].start+c.pos >= to {
			if c.end == 0 && !c.blank {
				c.end = c.position()
			}
			return false, nil
		}
		file := &c.s.log[c.i]
		if c.f == nil {
			f, err := c.s.fs.Open(file.path, vfs.ReadOnly)
			if err != nil {
				c.fileGone(file, err)
				continue
			}
			c.f = f
		}
		*r = run{at: file.start + c.pos, path: file.path, base: file.start, buf: r.buf[:0]}
		stop, err := c.fill(r, file, to)
		if err != nil {
			return false, err
		}
		if r.n > 0 {
			// What stopped it is met again, with this run out of the way.
			c.told(int64(r.n))
			c.pos += int64(r.n)
			return true, nil
		}
		if stop == nil { // the file is full
			if c.all {
				c.blank, c.end = c.pos < file.size, file.start+c.pos
			}
			c.told(file.size - c.pos)
			c.nextFile()
			if c.i < len(c.s.log) && c.s.log[c.i].start > file.end() {
				c.damage(Damage{file.path, file.end(), c.s.log[c.i].start, "no file holds these positions"})
			}
			continue
		}
		if done, err := c.stopped(file, stop); done || err != nil {
			return false, err
		}
	}
}

func (c *chain) position() int64 {
	if c.i < len(c.s.log) {
		return c.s.log[c.i].start + c.pos
	}
	return c.s.Top()
}

func (c *chain) nextFile() {
	c.close()
	c.i++
	c.pos, c.prev = 0, -1
}

func (c *chain) fileGone(file *logFile, err error) {
	reason := err.Error()
	if errors.Is(err, fs.ErrNotExist) {
		reason = "the file was removed meanwhile"
	}
	c.damage(Damage{file.path, file.start + c.pos, file.end(), reason})
	c.told(file.size - c.pos)
	c.nextFile()
}

// stop is why no record begins at a place; zeros: nothing was written there.
type stop struct {
	reason string
	zeros  bool
}

// fill reads as many whole records as the buffer takes. Without one, the stop
// says what is there instead; nil: the file's records end as they should.
func (c *chain) fill(r *run, file *logFile, to int64) (*stop, error) {
	want := min(readAhead, file.size-c.pos)
	for {
		if int64(cap(r.buf)) < want {
			r.buf = append(make([]byte, 0, want), r.buf...)
		}
		have := int64(len(r.buf))
		r.buf = r.buf[:want]
		if err := readAt(c.f, r.buf[have:], c.pos+have); err != nil {
			if want > 4096 { // a bad sector: what is before it can be had
				r.buf = r.buf[:have]
				want = max(have, (want/2)&^4095)
				if want > have {
					continue
				}
			}
			return &stop{reason: err.Error()}, nil
		}
		st, need := c.cut(r, file, to)
		if need <= want {
			return st, nil
		}
		want = need // the first record is longer than the buffer
	}
}

// cut finds the whole records in r.buf. Where not even the first one is whole
// it returns how many bytes that has.
func (c *chain) cut(r *run, file *logFile, to int64) (*stop, int64) {
	for {
		off := c.pos + int64(r.n) // in the file
		rest := file.size - off
		left := r.buf[r.n:]
		switch {
		case rest == 0 || file.start+off >= to:
			return nil, 0
		case int64(len(left)) < min(rest, minHead):
			return nil, 0 // only behind a record
		}
		size := int64(message.Size(left))
		st := c.head(file, off, rest, left, size)
		if st != nil || size == rest && binary.BigEndian.Uint32(left[posMagic:]) == message.MagicBlank {
			return st, 0
		}
		if size > int64(len(left)) {
			if r.n > 0 {
				return nil, 0
			}
			return nil, size
		}
		c.prev = off
		r.n += int(size)
	}
}

// head judges the head of a record.
func (c *chain) head(file *logFile, off, rest int64, b []byte, size int64) *stop {
	if rest < message.BlankSize {
		return &stop{reason: fmt.Sprintf("%d bytes are left in the file, too few for a blank record", rest)}
	}
	magic := binary.BigEndian.Uint32(b[posMagic:])
	switch {
	case size == 0 && magic == 0:
		return &stop{zeros: true, reason: "zeros"}
	case magic == message.MagicBlank && size == rest:
		return nil
	case !message.IsMagic(b[posMagic:]):
		return &stop{reason: fmt.Sprintf("no record begins here: magic %#08x", magic)}
	case size < message.MinRecordSize || size > rest:
		return &stop{reason: fmt.Sprintf("record size %d, with %d bytes left in the file", size, rest)}
	case size > maxRecord:
		return &stop{reason: fmt.Sprintf("record size %d, above the %d that are read", size, int64(maxRecord))}
	case int64(binary.BigEndian.Uint64(b[posPhysical:])) != file.start+off:
		return &stop{reason: fmt.Sprintf("the record says position %d", int64(binary.BigEndian.Uint64(b[posPhysical:])))}
	}
	return nil
}

// stopped decides what it means that no record begins at c.pos: it goes on with
// the next record that is valid and not older than the last one, in this file
// or at the start of a later one. done: there is none, the log ends.
func (c *chain) stopped(file *logFile, st *stop) (done bool, err error) {
	from := c.pos
	if c.prev >= 0 {
		sound := c.sound(file, c.prev)
		if !c.all {
			c.last = max(c.last, c.view.StoreTimestamp)
		}
		if !sound {
			from = c.prev // the size that led here is not to be relied on
		}
	}
	found, err := c.search(file, from)
	if err != nil {
		return false, err
	}
	if found >= 0 {
		if found > c.pos {
			c.damage(Damage{file.path, file.start + c.pos, file.start + found, st.reason})
		}
		c.told(max(found-c.pos, 0))
		c.pos, c.prev = found, -1
		return false, nil
	}
	at := c.pos
	for c.nextFile(); c.i < len(c.s.log); c.nextFile() {
		next := &c.s.log[c.i]
		if c.f, err = c.s.fs.Open(next.path, vfs.ReadOnly); err != nil {
			c.f = nil
			continue // next reports it if the log goes on behind it
		}
		if c.sound(next, 0) && c.view.StoreTimestamp >= c.last {
			c.damage(Damage{file.path, file.start + at, next.start, st.reason})
			c.told(file.size - at)
			return false, nil
		}
	}
	c.end = file.start + at
	if !st.zeros {
		c.reason = st.reason
	}
	return true, nil
}

// sound reads the record at a position of the open file into c.view and
// reports whether it is valid. Of one that is not, the view has the head if
// that can be read, else nothing.
func (c *chain) sound(file *logFile, pos int64) bool {
	c.view = message.View{}
	rest := file.size - pos
	if rest < message.MinRecordSize {
		return false
	}
	var b [message.MaxHeaderSize]byte
	head := b[:min(rest, message.MaxHeaderSize)]
	if readAt(c.f, head, pos) != nil {
		return false
	}
	h, err := message.ParseHeader(head)
	if err != nil || h.Kind != message.KindRecord || int64(h.PhysicalOffset) != file.start+pos {
		return false
	}
	c.view.Header = h
	if int64(h.Size) > min(rest, maxRecord) {
		return false
	}
	if cap(c.rec) < int(h.Size) {
		c.rec = make([]byte, h.Size)
	}
	c.rec = c.rec[:h.Size]
	if readAt(c.f, c.rec, pos) != nil {
		return false
	}
	v, err := message.Check(c.rec, message.PhysicalOffset(file.start+pos), checks)
	if err != nil {
		return false
	}
	c.view = v
	return true
}

// checks is what makes a record valid.
var checks = message.CheckOptions{BodyCRC: true, PropertyCRC: true}

// magicPrefix begins the magic of both record versions.
var magicPrefix = []byte{0xDA, 0xA3, 0x20}

// search looks for the next valid record of the open file behind from that is
// not older than c.last, and returns its position or -1.
func (c *chain) search(file *logFile, from int64) (int64, error) {
	if c.chunk == nil {
		c.chunk = make([]byte, readAhead)
	}
	credit := int64(searchCredit)
	ahead := int64(16 << 10) // mostly the next record is near
	for off := from; off+message.MinRecordSize <= file.size; ahead = min(2*ahead, readAhead) {
		if err := c.ctx.Err(); err != nil {
			return -1, err
		}
		if next, err := c.f.NextData(off); err == nil && next > off {
			off = next
			continue
		}
		chunk := c.chunk[:min(ahead, file.size-off)]
		c.readPages(chunk, off)
		credit += int64(len(chunk))
		next := off + max(int64(len(chunk))-(minHead-1), 1)
		for at := 0; ; {
			i := bytes.Index(chunk[at:], magicPrefix)
			if i < 0 {
				break
			}
			rec := at + i - posMagic
			at += i + 1
			cand := off + int64(rec)
			if rec < 0 || rec+minHead > len(chunk) || cand <= from ||
				int64(binary.BigEndian.Uint64(chunk[rec+posPhysical:])) != file.start+cand {
				continue
			}
			sound := c.sound(file, cand)
			if sound && c.view.StoreTimestamp >= c.last {
				return cand, nil
			}
			if !sound {
				if credit -= int64(c.view.Size); credit < 0 {
					return -1, nil // it only pretends to have records, again and again
				}
				continue
			}
			// Older than what precedes it: left from before the log was cut.
			if at = rec + int(c.view.Size); at >= len(chunk) {
				next = cand + int64(c.view.Size)
				break
			}
		}
		off = next
	}
	return -1, nil
}

// readPages fills p; pages that the disk does not give are zeros.
func (c *chain) readPages(p []byte, off int64) {
	if readAt(c.f, p, off) == nil {
		return
	}
	const page = 4096
	for len(p) > 0 {
		n := min(page-off%page, int64(len(p)))
		if readAt(c.f, p[:n], off) != nil {
			clear(p[:n])
		}
		p, off = p[n:], off+n
	}
}
