package tool

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"slices"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

const (
	// largeRecord is the size above which a record is checked and copied in
	// pieces, so that memory does not depend on what a size field says.
	largeRecord = 4 << 20
	// searchCredit is how many bytes of would-be records the searches in one
	// file may check in vain beyond what they have passed.
	searchCredit = 64 << 20
	// maxRecordTail is the most that can follow a record's body.
	maxRecordTail = 2*math.MaxInt16 + 4
	// peekSize is how much of a would-be record decides whether it is worth a
	// check: size, magic and position.
	peekSize = posPhysical + 8
	posMagic = 4
)

// damagedRange is a part of the log without a valid record. What follows it is
// valid, or the end of its file.
type damagedRange struct {
	from, to int64 // positions in the log
	time     int64 // store time of the record before it, ms; 0: unknown
	loose    int64 // up to where it holds records for messages of unknown place
	reason   string
}

// walkedFile is what walking one file of the log gave. Positions are in the
// file unless another thing is said.
type walkedFile struct {
	start int64 // of the file in the log

	records  int64
	full     bool  // its records lead to the end of the file
	end      int64 // behind the last valid record, or that of the file
	first    int64 // of the first valid record
	early    times // store times of the first records
	late     times // of the last ones
	lastTime int64
	ranges   []damagedRange // in front of end
	reason   string         // why it ends before its end; empty: zeros follow
	tail     [2]int64       // where bytes are that are not zero, behind end
	stale    int64          // valid records behind end, older than those before it

	// The last record, should it turn out to be torn.
	last, prevEnd  int64
	prevTime       int64
	endsInZero     bool // its properties do
	zerosFollow    bool
	checksumsAdded int64 // records that had no body CRC
}

// times holds store times to compare with. A flipped bit in one of them, which
// no checksum covers, must not decide about what is behind it: the middle one
// of three is believed.
type times []int64

func (t *times) first(ms int64) {
	if len(*t) < 3 {
		*t = append(*t, ms)
	}
}

func (t *times) last(ms int64) {
	if len(*t) == 3 {
		copy(*t, (*t)[1:])
		*t = (*t)[:2]
	}
	*t = append(*t, ms)
}

// middle is the time in the middle; of two the lower one. Without any it is
// before everything.
func (t times) middle() int64 {
	if len(t) == 0 {
		return math.MinInt64
	}
	var b [3]int64
	s := b[:copy(b[:], t)]
	slices.Sort(s)
	return s[(len(s)-1)/2]
}

// logWalker reads log files from start to end, tells records from damage, and
// copies what is valid. It keeps its buffers from one file to the next.
type logWalker struct {
	ctx      context.Context
	fileSize int64
	fs       vfs.FS
	bad      unreadable
	told     func(int64)              // bytes done; may be nil
	create   func() (vfs.File, error) // the copy; nil: nothing is copied
	keep     func() (vfs.File, error) // where damaged bytes go

	in    *sourceFile
	r     *walkedFile
	buf   []byte
	bufAt int64
	run   int64 // where valid bytes begin that are not copied yet; -1
	out   vfs.File
	kept  vfs.File

	view     message.View
	repaired bool // the view's body CRC was set
	seenCRC  bool // some record has a property CRC that is right
	piece    []byte
	chunk    []byte
	credit   int64
}

// walk reads the file at path, which holds the log from start on.
func (w *logWalker) walk(path, name string, start int64) (r *walkedFile, err error) {
	r = &walkedFile{start: start, last: -1}
	w.in, err = openSource(w.fs, path, name, w.bad)
	if err != nil {
		w.bad(name, 0, 0, err)
		r.reason = "the file cannot be opened"
		return r, nil
	}
	defer w.in.close()
	w.r, w.run, w.credit, w.seenCRC = r, 0, searchCredit, false
	w.buf, w.bufAt = w.buf[:0], 0
	w.out, w.kept = nil, nil
	err = w.file()
	for _, f := range []vfs.File{w.out, w.kept} {
		if f == nil {
			continue
		}
		if err == nil && f == w.kept {
			err = f.Sync() // the copy is not complete yet
		}
		err = errors.Join(err, f.Close())
	}
	w.out, w.kept, w.in = nil, nil, nil
	return r, err
}

func (w *logWalker) file() error {
	r := w.r
	pos, told := int64(0), int64(0)
	for n := 0; ; n++ {
		if n%256 == 0 {
			if err := w.ctx.Err(); err != nil {
				return err
			}
		}
		if w.told != nil && pos-told >= copyChunk {
			w.told(pos - told)
			told = pos
		}
		kind, err := w.at(pos)
		if err != nil {
			return err
		}
		switch kind.what {
		case foundRecord:
			if err := w.take(pos); err != nil {
				return err
			}
			pos += int64(w.view.Size)
			continue
		case foundBlank:
			r.full, r.end = true, w.fileSize
			if err := w.flush(pos); err != nil {
				return err
			}
			return w.copyPart(pos, w.fileSize)
		}
		if err := w.flush(pos); err != nil {
			return err
		}
		w.run = -1
		next, err := w.resync(pos, &kind)
		if err != nil {
			return err
		}
		if next < 0 {
			r.end, r.reason = pos, kind.reason()
			if w.told != nil {
				w.told(w.fileSize - told)
			}
			return w.quarantine(r.tail[0], r.tail[1])
		}
		r.ranges = append(r.ranges, damagedRange{from: r.start + pos, to: r.start + next, time: r.lastTime, reason: kind.reason()})
		if err := w.quarantine(pos, next); err != nil {
			return err
		}
		pos, w.run = next, next
	}
}

// take notes the valid record at pos.
func (w *logWalker) take(pos int64) error {
	r, v := w.r, &w.view
	if w.repaired {
		r.checksumsAdded++
	}
	if r.records == 0 {
		r.first = pos
	}
	r.early.first(v.StoreTimestamp)
	r.late.last(v.StoreTimestamp)
	r.prevEnd, r.prevTime = r.end, r.lastTime
	r.records++
	r.last, r.lastTime = pos, v.StoreTimestamp
	r.end = pos + int64(v.Size)
	props := v.PropsBytes()
	r.endsInZero = len(props) > 0 && props[len(props)-1] == 0
	if v.HasPropertyCRC() {
		w.seenCRC = true
	}
	if int64(v.Size) > largeRecord { // it is not in the buffer
		if err := w.flush(pos); err != nil {
			return err
		}
		if err := w.copyPart(pos, r.end); err != nil {
			return err
		}
		w.run = r.end
	}
	return nil
}

// window returns n bytes at off out of a buffer that is read in large pieces;
// what is valid in it is copied before it moves on. The slice is valid until
// the next call.
func (w *logWalker) window(off, n int64) ([]byte, error) {
	if lo := off - w.bufAt; lo >= 0 && lo+n <= int64(len(w.buf)) {
		return w.buf[lo : lo+n], nil
	}
	if err := w.flush(off); err != nil {
		return nil, err
	}
	want := min(max(n, copyChunk), w.fileSize-off)
	kept := 0
	if lo := off - w.bufAt; lo >= 0 && lo < int64(len(w.buf)) {
		kept = copy(w.buf, w.buf[lo:])
	}
	if int64(cap(w.buf)) < want {
		grown := make([]byte, want)
		copy(grown, w.buf[:kept])
		w.buf = grown
	}
	w.buf = w.buf[:want]
	w.bufAt = off
	w.in.read(w.buf[kept:], off+int64(kept))
	return w.buf[:n], nil
}

// flush copies the valid bytes up to pos.
func (w *logWalker) flush(pos int64) error {
	if w.run < 0 || pos <= w.run {
		return nil
	}
	from := w.run
	w.run = pos
	if w.create == nil {
		return nil
	}
	if lo := from - w.bufAt; lo < 0 || pos-w.bufAt > int64(len(w.buf)) {
		return w.copyPart(from, pos)
	}
	if err := w.openCopy(); err != nil {
		return err
	}
	return writeData(w.out, w.buf[from-w.bufAt:pos-w.bufAt], from)
}

func (w *logWalker) openCopy() (err error) {
	if w.out == nil {
		w.out, err = w.create()
	}
	return err
}

// copyPart copies bytes that are not in the buffer.
func (w *logWalker) copyPart(from, to int64) error {
	if w.create == nil || from >= to {
		return nil
	}
	if err := w.openCopy(); err != nil {
		return err
	}
	if w.piece == nil {
		w.piece = make([]byte, copyChunk)
	}
	return copyRange(w.ctx, w.out, w.in, from, to, w.piece, nil)
}

// quarantine keeps the bytes of a range, unless they are zeros, at the same
// place of another file.
func (w *logWalker) quarantine(from, to int64) (err error) {
	if w.keep == nil || from >= to {
		return nil
	}
	if w.piece == nil {
		w.piece = make([]byte, copyChunk)
	}
	return copyRange(w.ctx, lazyFile{w}, w.in, from, to, w.piece, nil)
}

// lazyFile is the file for damaged bytes, made with the first write.
type lazyFile struct{ w *logWalker }

func (l lazyFile) WriteAt(p []byte, off int64) (int, error) {
	if l.w.kept == nil {
		f, err := l.w.keep()
		if err != nil {
			return 0, err
		}
		l.w.kept = f
	}
	return l.w.kept.WriteAt(p, off)
}

type foundKind int

const (
	foundNothing foundKind = iota // no valid record
	foundRecord                   // in the walker's view
	foundBlank
)

// found is what stands at a position.
type found struct {
	what   foundKind
	zeros  bool // eight zero bytes: where a log ends
	extent int64
	err    error
}

// reason says why there is no record.
func (f *found) reason() string {
	if f.err == nil {
		return ""
	}
	return f.err.Error()
}

func nothing(format string, args ...any) found {
	return found{err: fmt.Errorf(format, args...)}
}

// at looks at what stands at pos. For bytes that are no valid record, extent is
// how many of them surely belong together: those of a record of which only the
// content is damaged, 0 if that is not known. The error is of the copy.
func (w *logWalker) at(pos int64) (found, error) {
	rest := w.fileSize - pos
	switch {
	case rest == 0: // no writer leaves it so, but nothing is wrong either
		return found{what: foundBlank}, nil
	case rest < message.BlankSize:
		return nothing("%d bytes are left in the file, too few for any record", rest), nil
	}
	head, err := w.window(pos, min(rest, message.MaxHeaderSize))
	if err != nil {
		return found{}, err
	}
	h, err := message.ParseHeader(head)
	switch {
	case err != nil:
		return found{err: err}, nil
	case h.Kind == message.KindEnd:
		return found{zeros: true}, nil
	case h.Kind == message.KindBlank && int64(h.Size) != rest:
		return nothing("blank record of %d bytes, to the end of the file are %d", h.Size, rest), nil
	case h.Kind == message.KindBlank:
		return found{what: foundBlank}, nil
	case int64(h.Size) > rest:
		return nothing("record size %d, but %d bytes are left in the file", h.Size, rest), nil
	case rest > int64(h.Size) && rest-int64(h.Size) < message.BlankSize:
		return nothing("the record leaves %d bytes in its file, too few for a blank record", rest-int64(h.Size)), nil
	}
	return w.record(pos, h)
}

// record checks the record at pos, whose header is h.
func (w *logWalker) record(pos int64, h message.Header) (found, error) {
	w.repaired = false
	at := message.PhysicalOffset(w.r.start + pos)
	if int64(h.Size) > largeRecord {
		return w.largeRecord(pos, h, at), nil
	}
	rec, err := w.window(pos, int64(h.Size))
	if err != nil {
		return found{}, err
	}
	bad := found{extent: int64(h.Size)}
	v, err := message.Check(rec, at, message.CheckOptions{})
	if err != nil {
		return found{err: err}, nil
	}
	if err := v.ParserError(); err != nil { // a Java broker cuts the log there
		bad.err = err
		return bad, nil
	}
	if v.BodyLen > 0 {
		if sum := message.BodyCRC(v.Body()); sum != v.BodyCRC {
			if v.BodyCRC != 0 {
				bad.err = fmt.Errorf("body CRC %#08x, computed %#08x", v.BodyCRC, sum)
				return bad, nil
			}
			// Some writers left the field zero. A reader that compares would
			// take the record for damaged, and a Java broker cuts the log.
			binary.BigEndian.PutUint32(rec[posBodyCRC:], sum)
			w.repaired = true
		}
	}
	if v.HasPropertyCRC() {
		if w.repaired {
			message.SealCRC(rec)
		}
		// A sender can write such a property too, where brokers do not.
		if _, err := message.Check(rec, at, message.CheckOptions{PropertyCRC: true}); err != nil && (w.seenCRC || w.hasCRC(pos+int64(h.Size))) {
			bad.err = err
			return bad, nil
		}
	}
	w.view = v
	if w.repaired {
		w.view.BodyCRC = message.BodyCRC(v.Body())
	}
	return found{what: foundRecord}, nil
}

// hasCRC reports whether the record at pos has a property CRC that is right.
func (w *logWalker) hasCRC(pos int64) bool {
	var b [message.MaxHeaderSize]byte
	head := b[:min(max(w.fileSize-pos, 0), message.MaxHeaderSize)]
	w.in.read(head, pos)
	h, err := message.ParseHeader(head)
	if err != nil || h.Kind != message.KindRecord || int64(h.Size) > min(w.fileSize-pos, largeRecord) {
		return false
	}
	rec := make([]byte, h.Size)
	w.in.read(rec, pos)
	v, err := message.Check(rec, message.PhysicalOffset(w.r.start+pos), message.CheckOptions{BodyCRC: true, PropertyCRC: true})
	return err == nil && v.HasPropertyCRC()
}

// largeRecord is record for one that is not held in memory. The view lacks the
// body.
func (w *logWalker) largeRecord(pos int64, h message.Header, at message.PhysicalOffset) found {
	head := int64(h.BodyOffset)
	tail := int64(h.Size) - head - int64(h.BodyLen)
	if tail > maxRecordTail {
		return nothing("the record of %d bytes has %d behind its body", h.Size, tail)
	}
	// Without its body it is a record too.
	rec := make([]byte, head+tail)
	w.in.read(rec[:head], pos)
	w.in.read(rec[head:], pos+int64(h.Size)-tail)
	binary.BigEndian.PutUint32(rec, uint32(len(rec)))
	binary.BigEndian.PutUint32(rec[head-4:], 0)
	v, err := message.Check(rec, at, message.CheckOptions{Strict: true})
	if err != nil {
		return found{err: err}
	}
	v.Size, v.BodyLen = h.Size, h.BodyLen
	if w.piece == nil {
		w.piece = make([]byte, copyChunk)
	}
	sum := uint32(0)
	for off, left := pos+head, int64(h.BodyLen); left > 0; {
		p := w.piece[:min(left, copyChunk)]
		w.in.read(p, off)
		sum = crc32.Update(sum, crc32.IEEETable, p)
		off, left = off+int64(len(p)), left-int64(len(p))
	}
	if sum &= crcMask; h.BodyLen > 0 && sum != h.BodyCRC {
		return found{extent: int64(h.Size), err: fmt.Errorf("body CRC %#08x, computed %#08x", h.BodyCRC, sum)}
	}
	w.view = v
	return found{what: foundRecord}
}
