package check

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"

	"github.com/gantrymq/gantry/message"
)

const (
	// logAhead is how much of a log file is read at a time.
	logAhead = 256 << 10
	// largeRecord is the size above which a record is checked in pieces, so
	// that memory does not depend on what a size field says.
	largeRecord = 4 << 20
	// searchCredit is how many bytes of would-be records the searches in one
	// file may check in vain beyond what they have passed.
	searchCredit = 64 << 20
)

// logWorker walks log files, one at a time. It keeps its buffers, and the
// units that it still has to look up, from one file to the next.
type logWorker struct {
	c     *checker
	r     *logFile
	in    *input
	buf   []byte // handed from file to file
	view  message.View
	props propScan // of the view
	sum   uint32   // computed CRC of the view's body

	topic  *topic      // of the view; nil without a queue
	recent [256]*topic // by a bad but quick hash of their names
	expect expectations
	cursor *indexCursor
	peek   logReader // for looking at other records
	// Keys of the view, as the index has them: see keyHashes.
	hashes   []int32
	keyCount int
	found    []bool
	expectAt int
	byHash   map[int32]int32

	limit  int64  // what is behind it in the file is not looked at
	piece  []byte // of a large record
	chunk  []byte // of a search
	credit int64
}

func newLogWorker(c *checker) *logWorker {
	w := &logWorker{c: c}
	w.expect.init(c)
	w.peek.c = c
	return w
}

// finish looks up what is still to be looked up and closes files.
func (w *logWorker) finish() {
	w.expect.flush()
	w.expect.close()
	w.peek.close()
}

// walkFile reads one file from its start.
func (w *logWorker) walkFile(r *logFile) {
	if !w.enter(r) {
		return
	}
	defer w.leave()
	w.cursor = &indexCursor{}
	if !w.expect.again {
		w.cursor = w.c.index.cursor(w.c, r.sink, r.seg.start)
	}
	defer w.cursor.close()
	last := int64(math.MinInt64) // store time
	pos, told := int64(0), int64(0)
	for n := 0; ; n++ {
		if n%256 == 0 && w.c.ctx.Err() != nil {
			return
		}
		if pos-told >= logAhead && !w.expect.again {
			w.c.progress.add(pos - told)
			told = pos
		}
		next, st := w.step(pos, last)
		if st == nil {
			if next < 0 { // blank
				r.end, r.full = w.in.size, true
				break
			}
			last = w.view.StoreTimestamp
			pos = next
			r.end = next
			continue
		}
		// Something is wrong at pos, or the data end there.
		found := w.resync(pos, last, st)
		if found < 0 {
			r.end, r.stop = pos, *st
			r.maxTime = max(r.maxTime, st.time)
			break
		}
		w.lost(pos, found, st)
		pos = found
	}
	w.cursor.finish(r, r.seg.start+r.end)
	if !w.expect.again {
		w.c.progress.add(r.seg.size - told)
	}
}

// walkAgain compares the records of log file i with the units of the queues
// whose sums differ. What else it finds has been reported.
func (w *logWorker) walkAgain(i int) {
	l := w.c.log
	w.expect.again, w.expect.group = true, w.c.sums.group(i)
	r := &logFile{seg: l.files[i], path: w.c.segmentPath(l.dirs, l.files[i]), sink: &sink{rep: newReporter(nil, 0)}}
	w.walkFile(r)
}

func (w *logWorker) enter(r *logFile) bool {
	w.r = r
	if w.in = w.c.open(r.sink, r.path); w.in == nil {
		r.stop = stop{err: errors.New("the file cannot be opened"), rule: ruleLogRecord}
		return false
	}
	w.in.size = min(w.in.size, r.seg.size) // listed length, cut to the file size
	w.limit = w.c.log.limit - r.seg.start
	w.in.reuse(w.buf)
	w.credit = searchCredit
	return true
}

func (w *logWorker) leave() {
	w.buf = w.in.buf
	w.in.close()
	w.in = nil
}

// step reads what stands at pos. For a valid record, or one whose only fault
// leaves its bounds certain, it returns the position behind it, for a blank
// record -1. Otherwise the stop says what is there.
func (w *logWorker) step(pos, last int64) (next int64, st *stop) {
	r := w.r
	rest := w.in.size - pos
	if pos >= w.limit {
		return 0, &stop{}
	}
	if rest == 0 && w.in.size < w.c.log.fileSize {
		return 0, &stop{}
	}
	if rest == 0 {
		r.sink.addAs(ruleLogRecord, Warning, r.file, pos, "the file is filled with records to its end, without the blank record that writers leave")
		return -1, nil
	}
	if rest < message.BlankSize {
		return 0, &stop{err: fmt.Errorf("%d bytes are left in the file, too few for a blank record", rest), rule: ruleLogRecord}
	}
	if w.loadSound(pos, rest) {
		w.props.scan(w.view.PropsBytes())
		w.accept(pos, last)
		return pos + int64(w.view.Size), nil
	}
	head := w.in.window(pos, min(rest, message.MaxHeaderSize), logAhead)
	h, err := message.ParseHeader(head)
	if err != nil {
		return 0, &stop{err: err, rule: fieldRule(err), sizeThere: uint32(message.Size(head))}
	}
	switch h.Kind {
	case message.KindEnd:
		return 0, &stop{}
	case message.KindBlank:
		if int64(h.Size) != rest || w.in.size < w.c.log.fileSize {
			r.sink.add(ruleLogRecord, r.file, pos, "the blank record says %d bytes; to the end of the file are %d", h.Size, w.c.log.fileSize-pos)
		}
		return -1, nil
	}
	if int64(h.Size) > rest {
		return 0, &stop{time: h.StoreTimestamp, err: fmt.Errorf("record size %d, but %d bytes are left in the file", h.Size, rest), rule: ruleLogSize}
	}
	if err := w.load(pos, h); err != nil {
		return 0, w.unsound(pos, h, err)
	}
	w.props.scan(w.view.PropsBytes())
	if w.view.BodyLen > 0 && w.sum != w.view.BodyCRC {
		err := fmt.Errorf("body CRC %#08x, computed %#08x", w.view.BodyCRC, w.sum)
		switch {
		case w.view.BodyCRC == 0:
			r.sink.addAs(ruleLogBodyCRC, Info, r.file, pos, "%v; some writers left the field zero", err)
		case !w.startsAt(pos + int64(h.Size)):
			return 0, &stop{err: err, rule: ruleLogBodyCRC, complete: true, time: h.StoreTimestamp}
		default:
			// The fields around the body can still be relied on: the queue
			// must have its unit.
			w.damaged(ruleLogBodyCRC, pos, int64(h.Size), err)
			w.findTopic()
			w.expect.record(&w.view, &w.props, w.topic)
			return pos + int64(h.Size), nil
		}
	}
	w.accept(pos, last)
	return pos + int64(h.Size), nil
}

// loadSound reads the record at pos if it is an ordinary one without fault.
// For everything else there is load.
func (w *logWorker) loadSound(pos, rest int64) bool {
	if rest < message.MinRecordSize {
		return false
	}
	head := w.in.window(pos, message.MinRecordSize, logAhead)
	size := int64(message.Size(head))
	if size < message.MinRecordSize || size > min(rest, largeRecord) {
		return false
	}
	var err error
	w.view, err = message.Check(w.in.window(pos, size, logAhead), message.PhysicalOffset(w.r.seg.start+pos), message.CheckOptions{BodyCRC: true, PropertyCRC: true})
	w.sum = w.view.BodyCRC
	return err == nil
}

// findTopic looks up the view's topic.
func (w *logWorker) findTopic() {
	name := w.view.TopicBytes()
	hash := len(name)
	for _, b := range name[max(0, len(name)-3):] { // names often differ in a number at the end
		hash = hash*10 + int(b)
	}
	r := &w.recent[hash%len(w.recent)]
	if w.topic = *r; w.topic == nil || w.topic.name != string(name) {
		w.topic = w.c.queues.topics[string(name)]
		*r = w.topic
	}
}

// damaged counts and reports a record that is damaged between sound ones.
func (w *logWorker) damaged(r *rule, pos, size int64, err error) {
	w.r.broken++
	at := w.r.seg.start + pos
	w.r.addDamaged(span{at, at + size})
	w.r.sink.add(r, w.r.file, pos, "record of %d bytes: %v", size, err)
}

func (r *logFile) addDamaged(d span) {
	if len(r.damaged) < maxDamaged {
		r.damaged = append(r.damaged, d)
	}
}

// unsound decides about a record that failed the check of its structure.
func (w *logWorker) unsound(pos int64, h message.Header, err error) *stop {
	ru := fieldRule(err)
	if ru == ruleLogSize && h.Magic == message.MagicV1 {
		// The one fault that upstream itself writes: a topic of 128 to 255
		// bytes in a version 1 record, whose length reads as negative.
		if n, ok := w.longTopic(pos, h); ok {
			ru, err = ruleLogTopic, fmt.Errorf("version 1 record with a topic of %d bytes: its length field reads as %d", n, int8(n))
		}
	}
	return &stop{err: err, rule: ru, complete: ru != ruleLogSize && ru != ruleLogRecord, sizeThere: uint32(h.Size), time: h.StoreTimestamp}
}

// longTopic reports whether the record's fields add up when its topic length
// is read without a sign.
func (w *logWorker) longTopic(pos int64, h message.Header) (int, bool) {
	at := pos + int64(h.BodyOffset) + int64(h.BodyLen)
	end := pos + int64(h.Size)
	if at+3 > end {
		return 0, false
	}
	var b [2]byte
	w.in.read(b[:1], at)
	n := int(b[0])
	if n <= math.MaxInt8 || at+1+int64(n)+2 > end {
		return 0, false
	}
	w.in.read(b[:], at+1+int64(n))
	props := int64(int16(binary.BigEndian.Uint16(b[:])))
	return n, at+1+int64(n)+2+props == end
}

// load reads the record at pos into w.view and computes the CRC of its body.
func (w *logWorker) load(pos int64, h message.Header) error {
	at := message.PhysicalOffset(w.r.seg.start + pos)
	if h.Size > largeRecord {
		return w.loadLarge(pos, h, at)
	}
	rec := w.in.window(pos, int64(h.Size), logAhead)
	v, err := message.Check(rec, at, message.CheckOptions{})
	if err != nil {
		return err
	}
	w.view = v
	w.sum = 0
	if v.BodyLen > 0 {
		w.sum = message.BodyCRC(v.Body())
	}
	if v.HasPropertyCRC() {
		_, err = message.Check(rec, at, message.CheckOptions{PropertyCRC: true})
	}
	return err
}

// loadLarge is load for a record that is not to be held in memory: the view
// lacks the body.
func (w *logWorker) loadLarge(pos int64, h message.Header, at message.PhysicalOffset) error {
	tail := int64(h.Size) - int64(h.BodyOffset) - int64(h.BodyLen)
	if tail > maxRecordTail {
		return &message.FormatError{Field: "bodyLength", Got: int64(h.BodyLen), Reason: "leaves more bytes to topic and properties than they can have:", Want: tail}
	}
	head := int64(h.BodyOffset)
	rec := make([]byte, head+tail)
	w.in.read(rec[:head], pos)
	w.in.read(rec[head:], pos+int64(h.Size)-tail)
	v, err := checkBodyless(bytes.Clone(rec), h, at)
	if err != nil {
		return err
	}
	sum, all := uint32(0), crc32.ChecksumIEEE(rec[:head])
	if w.piece == nil {
		w.piece = make([]byte, logAhead)
	}
	for off, left := pos+head, int64(h.BodyLen); left > 0; {
		p := w.piece[:min(left, logAhead)]
		w.in.read(p, off)
		sum = crc32.Update(sum, crc32.IEEETable, p)
		all = crc32.Update(all, crc32.IEEETable, p)
		off, left = off+int64(len(p)), left-int64(len(p))
	}
	w.sum = sum & crcMask
	if v.HasPropertyCRC() {
		all = crc32.Update(all, crc32.IEEETable, rec[head:len(rec)-propCRCSize]) & crcMask
		stored, _ := v.GetProp(message.PropCRC32)
		if want := reversed(all); string(stored) != want {
			return &message.FormatError{Field: "property CRC", Reason: "is not the one computed,", Want: int64(all)}
		}
	}
	w.view = v
	return nil
}

// maxRecordTail is the most that can follow a record's body: two lengths of two
// bytes, and 32767 bytes of topic and of properties.
const maxRecordTail = 2*math.MaxInt16 + 4

// checkBodyless checks a record whose body was left out. It changes rec: so
// that the fields add up, size and body length become those of an empty body.
// The view has the real header; its Record and Body are of no use.
func checkBodyless(rec []byte, h message.Header, at message.PhysicalOffset) (message.View, error) {
	binary.BigEndian.PutUint32(rec, uint32(len(rec)))
	binary.BigEndian.PutUint32(rec[h.BodyOffset-4:], 0)
	v, err := message.Check(rec, at, message.CheckOptions{})
	if err == nil {
		v.Size, v.BodyLen = h.Size, h.BodyLen
	}
	return v, err
}

const (
	crcMask     = math.MaxInt32 // stored CRCs are Java ints that are not negative
	propCRCSize = 20            // bytes of the property that holds the property CRC
)

// reversed is how a property CRC is written: ten digits, the lowest first.
func reversed(crc uint32) string {
	b := make([]byte, 10)
	for i := range b {
		b[i] = byte('0' + crc%10)
		crc /= 10
	}
	return string(b)
}

// startsAt reports whether a record or blank record seems to begin at pos, so
// that what lies before it ends there for certain.
func (w *logWorker) startsAt(pos int64) bool {
	rest := w.in.size - pos
	if rest < message.BlankSize {
		return false
	}
	var b [message.MaxHeaderSize]byte
	head := b[:min(rest, message.MaxHeaderSize)]
	w.in.read(head, pos)
	h, err := message.ParseHeader(head)
	switch {
	case err != nil:
		return false
	case h.Kind == message.KindBlank:
		return int64(h.Size) == rest
	}
	return h.Kind == message.KindRecord && int64(h.Size) <= rest && int64(h.PhysicalOffset) == w.r.seg.start+pos
}

// lost reports what lies between sound records.
func (w *logWorker) lost(pos, found int64, st *stop) {
	r := w.r
	r.broken++
	d := span{r.seg.start + pos, r.seg.start + found}
	r.addDamaged(d)
	r.lost = append(r.lost, d)
	switch {
	case st.err == nil:
		r.sink.add(ruleLogRecord, r.file, pos, "%d zero bytes, then valid records go on at %d: pages that never reached the disk", found-pos, found)
	case st.complete && int64(st.sizeThere) == found-pos:
		r.sink.add(st.rule, r.file, pos, "record of %d bytes: %v", found-pos, st.err)
	default:
		r.sink.add(st.rule, r.file, pos, "%v; the next valid record is at %d, %d bytes are lost", st.err, found, found-pos)
	}
}

// resync searches for the next valid record behind pos. Old records are passed
// over and noted in st. It returns -1 when there is none, and then st knows
// what stands behind pos.
func (w *logWorker) resync(pos, last int64, st *stop) int64 {
	st.blank = -1
	if pos >= w.limit {
		return -1
	}
	// A record with damaged content ends where it says, if something valid
	// begins there.
	if next := pos + int64(st.sizeThere); st.sizeThere >= message.MinRecordSize && next < w.in.size && next < w.limit && w.valid(next) && w.view.StoreTimestamp >= last {
		w.credit += int64(w.view.Size)
		return next
	}
	if w.chunk == nil {
		w.chunk = make([]byte, logAhead)
	}
	// Mostly the next record is near.
	ahead := int64(4 * pageSize)
	for off := pos; off < w.in.size; ahead = min(2*ahead, logAhead) {
		if w.c.ctx.Err() != nil {
			return -1
		}
		if off = max(off, w.in.nextData(off)); off >= w.in.size {
			break
		}
		chunk := w.chunk[:min(ahead, w.in.size-off)]
		w.in.read(chunk, off)
		if n := trimZeros(chunk); n > 0 {
			if st.data.len() == 0 {
				st.data.from = off + int64(firstNonZero(chunk))
			}
			st.data.to = max(st.data.to, off+int64(n))
		} else {
			off += int64(len(chunk))
			continue
		}
		w.credit += int64(len(chunk))
		next, found := w.search(chunk, off, pos, last, st)
		if found >= w.limit {
			return -1
		}
		if found >= 0 {
			return found
		}
		if w.credit < 0 {
			st.exhausted = true
			return -1
		}
		off = next
	}
	return -1
}

// magicPrefix begins the magic of both record versions.
var magicPrefix = []byte{0xDA, 0xA3, 0x20}

// What search looks at of a would-be record.
const (
	posMagic    = 4
	posPhysical = 28
	peekSize    = posPhysical + 8
)

// search looks for a valid record behind pos in a chunk read at off. It
// returns where to go on, behind the chunk's last whole header, and the
// record's position or -1.
func (w *logWorker) search(chunk []byte, off, pos, last int64, st *stop) (next, found int64) {
	if st.blank < 0 {
		st.blank = w.blankIn(chunk, off, pos)
	}
	for at := 0; ; {
		i := bytes.Index(chunk[at:], magicPrefix)
		if i < 0 {
			break
		}
		rec := at + i - posMagic
		at += i + 1
		cand := off + int64(rec)
		if rec < 0 || rec+peekSize > len(chunk) || cand <= pos {
			continue
		}
		if int64(binary.BigEndian.Uint64(chunk[rec+posPhysical:])) != w.r.seg.start+cand {
			continue
		}
		if !w.valid(cand) {
			if w.credit < 0 {
				return 0, -1
			}
			continue
		}
		size := int64(w.view.Size)
		w.credit += size // not in vain
		if w.view.StoreTimestamp >= last {
			return 0, cand
		}
		if st.nStale == 0 {
			st.stale.from = cand
		}
		st.nStale++
		st.stale.to = cand + size
		st.data.to = max(st.data.to, st.stale.to)
		if int64(rec)+size >= int64(len(chunk)) {
			return cand + size, -1
		}
		at = rec + int(size)
	}
	next = off + int64(len(chunk))
	if next < w.in.size {
		next = max(off+1, next-(peekSize-1))
	}
	return next, -1
}

// blankIn returns the position behind pos of a blank record in the chunk that
// reaches the end of the file exactly, or -1. It proves little: a blank may be
// as old as the records before it.
func (w *logWorker) blankIn(chunk []byte, off, pos int64) int64 {
	var magic [4]byte
	binary.BigEndian.PutUint32(magic[:], message.MagicBlank)
	for at := 0; ; {
		i := bytes.Index(chunk[at:], magic[:])
		if i < 0 {
			return -1
		}
		b := at + i - posMagic
		at += i + 1
		if b < 0 || off+int64(b) <= pos {
			continue
		}
		if int64(binary.BigEndian.Uint32(chunk[b:])) == w.in.size-off-int64(b) {
			return off + int64(b)
		}
	}
}

// valid checks the record at pos completely, with its CRC, into w.view. What
// that costs is taken from w.credit.
func (w *logWorker) valid(pos int64) bool {
	rest := w.in.size - pos
	if rest < message.MinRecordSize {
		return false
	}
	var b [message.MaxHeaderSize]byte
	head := b[:min(rest, message.MaxHeaderSize)]
	w.in.read(head, pos)
	h, err := message.ParseHeader(head)
	if err != nil || h.Kind != message.KindRecord || int64(h.Size) > rest {
		return false
	}
	if w.credit -= int64(h.Size); w.credit < 0 {
		return false
	}
	if w.load(pos, h) != nil {
		return false
	}
	return w.view.BodyLen == 0 || w.sum == w.view.BodyCRC || w.view.BodyCRC == 0
}
