package commitlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

const (
	// chunkSize is how much is read from a file at a time, firstChunk how much
	// at first where it is not known that there is far to go.
	chunkSize  = 1 << 20
	firstChunk = 64 << 10
	// largeRecord is the size above which the lengths and the body CRC of a
	// record are checked piece by piece before memory is taken for the whole
	// of it, so that a size in a damaged or hostile file never decides an
	// allocation.
	largeRecord = 4 << 20

	posMagic    = 4  // of the magic number in a record
	posPhysical = 28 // of the record's own position
)

// source is a file as walking needs it. *mappedfile.File is one for a log in
// use, handle for one that is being recovered.
type source interface {
	ReadAt(p []byte, off int64) (int, error)
}

// handle is a file of the log opened for recovery: by positional reads, which
// are faster than a mapping for what is read once, and without keeping a
// descriptor for each of possibly thousands of files.
type handle struct {
	vfs.File
	length int64 // on disk; less than the size of a log file when it was cut
}

func openHandle(fsys vfs.FS, path string) (*handle, error) {
	f, err := fsys.Open(path, vfs.ReadOnly)
	if err != nil {
		return nil, fmt.Errorf("open commit log: %w", err)
	}
	length, err := f.Size()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("size of commit log file %s: %w", path, err)
	}
	return &handle{File: f, length: length}, nil
}

// nextData returns the first offset from off on that may hold something other
// than zero, size when there is none in front of size.
func (h *handle) nextData(off, size int64) (int64, error) {
	end := min(h.length, size)
	if off >= end {
		return size, nil
	}
	data, err := h.NextData(off)
	if err != nil {
		return 0, fmt.Errorf("look for data: %w", err)
	}
	if data = max(data, off); data >= end {
		return size, nil
	}
	return data, nil
}

// readFull fills p from off. What the file does not have reads as zeros, as in
// a file that was cut short and will be extended.
func readFull(src source, p []byte, off int64) error {
	for len(p) > 0 {
		n, err := src.ReadAt(p, off)
		if n < 0 || n > len(p) {
			return fmt.Errorf("read of %d bytes returned %d", len(p), n)
		}
		p, off = p[n:], off+int64(n)
		switch {
		case len(p) == 0:
			return nil
		case errors.Is(err, io.EOF):
			clear(p)
			return nil
		case err != nil:
			return err
		case n == 0:
			return io.ErrNoProgress
		}
	}
	return nil
}

// splitHeader returns the first two fields of a record, or of a blank.
func splitHeader(b []byte) (size int64, magic uint32) {
	return int64(int32(binary.BigEndian.Uint32(b))), binary.BigEndian.Uint32(b[posMagic:])
}

// step is what a walker found at its position.
type step int

const (
	stepRecord step = iota // a valid record; the walker stands behind it
	stepBlank              // the blank record: the file is complete
	stepZero               // eight zero bytes: nothing was written here
)

// walker reads the records of one log file in order. Everything that it reads
// is checked before it is believed. Its buffer holds one chunk and grows only
// for a record that has proved to be valid.
type walker struct {
	src   source
	path  string
	start int64 // of the file in the log
	size  int64 // of the file
	limit int64 // in the file; a record is not read across it, at most size
	pos   int64 // of the next record, in the file
	check message.CheckOptions
	chunk int64 // how much to read next time, doubled each time up to chunkSize

	buf   []byte
	bufAt int64        // where buf begins in the file
	view  message.View // the last record
	claim int64        // how many bytes the last attempt had to look at

	// fresh returns the buffer to read into next and is given the present one,
	// which views may refer to. Nil: it is the same.
	fresh func(used []byte) []byte
}

// newWalker returns a walker that reads chunks of the given size at first.
func newWalker(check message.CheckOptions, chunk int64) *walker {
	return &walker{check: check, chunk: chunk}
}

// reset points the walker at a position of another file. It keeps the buffer.
func (w *walker) reset(src source, path string, start, size, pos int64) {
	w.src, w.path, w.start, w.size, w.limit, w.pos = src, path, start, size, size, pos
	w.buf, w.bufAt = w.buf[:0], 0
}

// phy is the walker's position in the log.
func (w *walker) phy() message.PhysicalOffset {
	return message.PhysicalOffset(w.start + w.pos)
}

// window returns the n bytes at the walker's position, reading the file when
// they are not in the buffer. They must lie in front of the limit. The slice
// is valid until the next call.
func (w *walker) window(n int64) ([]byte, error) {
	if n < 0 || n > w.limit-w.pos { // not Assert alone: its arguments would be allocated
		base.Assert(false, "window of %d at %d, limit %d", n, w.pos, w.limit)
	}
	lo := w.pos - w.bufAt
	if lo >= 0 && lo+n <= int64(len(w.buf)) {
		return w.buf[lo : lo+n], nil
	}
	var rest []byte
	if lo >= 0 && lo < int64(len(w.buf)) {
		rest = w.buf[lo:]
	}
	want := min(max(n, w.chunk), w.limit-w.pos)
	w.chunk = min(2*w.chunk, chunkSize)
	buf := w.buf
	if w.fresh != nil {
		buf = w.fresh(buf)
	}
	if int64(cap(buf)) < want {
		buf = make([]byte, want)
	}
	w.buf = buf[:want]
	kept := copy(w.buf, rest)
	w.bufAt = w.pos
	if err := readFull(w.src, w.buf[kept:], w.pos+int64(kept)); err != nil {
		w.buf = w.buf[:0]
		return nil, fmt.Errorf("read commit log: %w", err)
	}
	return w.buf[:n], nil
}

// next reads what stands at the walker's position. For stepRecord w.view is
// the record, valid until the next call, and the walker has moved behind it.
// The error is a *base.CorruptError when the bytes are wrong, errCut when the
// record reaches across the limit, and another one when reading failed.
func (w *walker) next() (step, error) {
	w.claim = 0
	rest := w.size - w.pos
	switch {
	case rest == 0:
		// No writer ends a file without a blank record, but nothing is wrong
		// either: its records fill it exactly.
		return stepBlank, nil
	case rest < message.BlankSize:
		return 0, w.corrupt("%d bytes left in the file, too few for any record", rest)
	case w.limit-w.pos < message.BlankSize:
		return 0, errCut
	}
	head, err := w.window(message.BlankSize)
	if err != nil {
		return 0, err
	}
	size, magic := splitHeader(head)
	switch magic {
	case message.MagicV1, message.MagicV2:
	case message.MagicBlank:
		if size != rest {
			return 0, w.corrupt("blank record of %d bytes where %d are left in the file", size, rest)
		}
		return stepBlank, nil
	default:
		if size == 0 && magic == 0 {
			return stepZero, nil
		}
		return 0, w.corrupt("no record: magic %#08x, size %d", magic, size)
	}
	switch {
	case size < message.MinRecordSize:
		return 0, w.corrupt("record size %d below minimum %d", size, message.MinRecordSize)
	case size > rest:
		return 0, w.corrupt("record size %d where %d bytes are left in the file", size, rest)
	case size > w.limit-w.pos:
		return 0, errCut
	case size > largeRecord:
		w.claim = size
		if err := precheckLarge(w.src, w.pos, size); err != nil {
			return 0, w.wrap(err)
		}
	}
	w.claim = size
	rec, err := w.window(size)
	if err != nil {
		return 0, err
	}
	view, err := message.Check(rec, w.phy(), w.check)
	if err != nil {
		return 0, w.wrap(err)
	}
	w.view = view
	w.pos += size
	return stepRecord, nil
}

// errCut: the record begins in front of the limit and ends behind it.
var errCut = errors.New("record reaches across the limit")

func (w *walker) corrupt(format string, args ...any) error {
	return base.Corruptf(w.path, w.pos, format, args...)
}

func (w *walker) wrap(err error) error { return corruptAt(w.path, w.pos, err) }

// corruptAt makes a CorruptError of what message says about a record. Errors
// of reading pass unchanged.
func corruptAt(path string, pos int64, err error) error {
	var format *message.FormatError
	if errors.As(err, &format) {
		return &base.CorruptError{File: path, Offset: pos, Reason: format.Error()}
	}
	return err
}

// layout finds the parts of the record of the given size at pos by reading its
// length fields only. A *message.FormatError says that they do not add up.
func layout(src source, pos, size int64) (message.Header, error) {
	var b [message.MaxHeaderSize]byte
	head := b[:min(size, message.MaxHeaderSize)]
	if err := readFull(src, head, pos); err != nil {
		return message.Header{}, fmt.Errorf("read commit log: %w", err)
	}
	h, err := message.ParseHeader(head)
	if err != nil {
		return h, err
	}
	if h.Kind != message.KindRecord || int64(h.Size) != size {
		return h, &message.FormatError{Field: "size", Got: int64(h.Size), Reason: "differs from", Want: size}
	}
	// ParseHeader has seen to it that both length fields fit behind the body.
	at := int64(h.BodyOffset) + int64(h.BodyLen)
	var lens [2]byte
	topicHead := int64(1)
	if h.Magic == message.MagicV2 {
		topicHead = 2
	}
	if err := readFull(src, lens[:topicHead], pos+at); err != nil {
		return h, fmt.Errorf("read commit log: %w", err)
	}
	topicLen := int64(int8(lens[0]))
	if topicHead == 2 {
		topicLen = int64(int16(binary.BigEndian.Uint16(lens[:])))
	}
	at += topicHead
	if topicLen < 1 || topicLen > size-at-2 {
		return h, &message.FormatError{Field: "topicLength", Got: topicLen, Reason: "is not within 1 and", Want: size - at - 2}
	}
	at += topicLen
	if err := readFull(src, lens[:], pos+at); err != nil {
		return h, fmt.Errorf("read commit log: %w", err)
	}
	propsLen := int64(int16(binary.BigEndian.Uint16(lens[:])))
	if at += 2; propsLen != size-at {
		return h, &message.FormatError{Field: "propertiesLength", Got: propsLen, Reason: "differs from the rest of the record,", Want: size - at}
	}
	return h, nil
}

// precheckLarge checks structure and body CRC of a large record in a small
// buffer. The CRC is checked whatever the caller's options are: it is what
// makes the size more than a claim.
func precheckLarge(src source, pos, size int64) error {
	h, err := layout(src, pos, size)
	if err != nil {
		return err
	}
	buf := make([]byte, 64<<10)
	crc := uint32(0)
	for at, left := pos+int64(h.BodyOffset), int64(h.BodyLen); left > 0; {
		part := buf[:min(left, int64(len(buf)))]
		if err := readFull(src, part, at); err != nil {
			return fmt.Errorf("read commit log: %w", err)
		}
		crc = crc32.Update(crc, crc32.IEEETable, part)
		at, left = at+int64(len(part)), left-int64(len(part))
	}
	if crc &= 0x7FFFFFFF; h.BodyLen > 0 && crc != h.BodyCRC {
		return &message.FormatError{Field: "bodyCRC", Got: int64(h.BodyCRC), Reason: "differs from that of the body,", Want: int64(crc)}
	}
	return nil
}
