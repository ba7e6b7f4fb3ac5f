package remoting

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

const (
	posTotal  = 0
	posHeader = 4 // type in the top byte, length of the header in the rest
	prefixLen = 8 // both words
	wordLen   = 4
)

// A FrameError says why bytes are not a frame. Nothing behind it on the same
// connection can be understood; the connection has to be closed.
type FrameError struct {
	Reason string
	Err    error // cause, may be nil
}

func (e *FrameError) Error() string {
	if e.Err != nil {
		return "frame: " + e.Reason + ": " + e.Err.Error()
	}
	return "frame: " + e.Reason
}

func (e *FrameError) Unwrap() error { return e.Err }

func frameErrorf(format string, args ...any) error {
	return &FrameError{Reason: fmt.Sprintf(format, args...)}
}

// ErrTooLarge is a command that does not fit into a frame that peers accept.
var ErrTooLarge = errors.New("command exceeds the frame or header limit")

// frameHead is the two words before a header, checked.
type frameHead struct {
	typ       HeaderType
	headerLen int
	bodyLen   int
}

// parseHead checks the first prefixLen bytes of a frame.
func parseHead(b []byte) (frameHead, error) {
	total := totalOf(b)
	word := binary.BigEndian.Uint32(b[posHeader:])
	h := frameHead{typ: HeaderType(word >> 24), headerLen: int(word & 0xFFFFFF)}
	if err := checkTotal(total); err != nil {
		return h, err
	}
	switch {
	case h.typ != HeaderJSON && h.typ != HeaderBinary:
		return h, frameErrorf("header type %d", h.typ)
	case h.headerLen > MaxHeaderSize:
		return h, frameErrorf("header of %d bytes exceeds %d", h.headerLen, MaxHeaderSize)
	case int64(h.headerLen) > total-wordLen:
		return h, frameErrorf("header of %d bytes in a frame of %d", h.headerLen, total)
	}
	h.bodyLen = int(total) - wordLen - h.headerLen
	return h, nil
}

// totalOf reads the length word, which is negative beyond 2 GiB.
func totalOf(b []byte) int64 { return int64(int32(binary.BigEndian.Uint32(b[posTotal:]))) }

func checkTotal(total int64) error {
	switch {
	case total < wordLen:
		return frameErrorf("length %d", total)
	case total > MaxFrameSize-wordLen:
		return frameErrorf("length %d exceeds %d", total, MaxFrameSize-wordLen)
	}
	return nil
}

// DecodeFrame decodes the frame at the start of b and returns how many bytes it
// has. The body is part of b, strings are not. A frame that is not complete
// yields io.ErrUnexpectedEOF, anything else that is wrong a *FrameError.
func DecodeFrame(b []byte) (*Command, int, error) {
	if len(b) >= wordLen { // a bad length needs no more bytes to be bad
		if err := checkTotal(totalOf(b)); err != nil {
			return nil, 0, err
		}
	}
	if len(b) < prefixLen {
		return nil, 0, io.ErrUnexpectedEOF
	}
	h, err := parseHead(b)
	if err != nil {
		return nil, 0, err
	}
	size := prefixLen + h.headerLen + h.bodyLen
	if len(b) < size {
		return nil, 0, io.ErrUnexpectedEOF
	}
	var d headerDecoder
	in := new(inbound)
	if err := d.decode(h.typ, b[prefixLen:prefixLen+h.headerLen], in); err != nil {
		return nil, 0, err
	}
	c := in.cmd // without the link to in, which only connections need
	if h.bodyLen > 0 {
		c.Body = b[prefixLen+h.headerLen : size : size]
	}
	return &c, size, nil
}

// AppendFrame appends the frame of c. A command that a binary header cannot
// carry, since its code or version exceeds 16 bits, goes out with a JSON one.
// The error is ErrTooLarge, and dst is returned as it was.
func AppendFrame(dst []byte, c *Command) ([]byte, error) {
	out, err := appendHead(dst, c)
	if err != nil {
		return dst, err
	}
	return append(out, c.Body...), nil
}

// appendHead appends the two words and the header of c, not the body.
func appendHead(dst []byte, c *Command) ([]byte, error) {
	start := len(dst)
	typ := c.Header
	if typ == HeaderBinary && !fitsBinary(c) {
		typ = HeaderJSON
	}
	out := append(dst, 0, 0, 0, 0, 0, 0, 0, 0)
	if typ == HeaderBinary {
		if c.typed != nil {
			ext := *c
			ext.SetHeader(c.typed)
			c = &ext
		}
		out = appendBinaryHeader(out, c)
	} else {
		out = appendJSONHeader(out, c)
	}
	headerLen := len(out) - start - prefixLen
	total := wordLen + headerLen + len(c.Body)
	if headerLen > MaxHeaderSize || total > MaxFrameSize-wordLen {
		return dst, fmt.Errorf("%w: header %d bytes, body %d", ErrTooLarge, headerLen, len(c.Body))
	}
	binary.BigEndian.PutUint32(out[start+posTotal:], uint32(total))
	binary.BigEndian.PutUint32(out[start+posHeader:], uint32(typ)<<24|uint32(headerLen))
	return out, nil
}

func fitsBinary(c *Command) bool {
	fits := func(v int32) bool { return v >= math.MinInt16 && v <= math.MaxInt16 }
	return fits(c.Code) && fits(c.Version) &&
		!slices.ContainsFunc(c.Ext, func(f Field) bool { return len(f.Name) > math.MaxInt16 })
}

// inlineFields is how many ext fields fit into the memory of a command.
const inlineFields = 16

// An inbound is a command with what its connection has to know about it, in one
// piece of memory.
type inbound struct {
	cmd    Command
	conn   *Conn
	charge int64 // of the request budget
	token  bool  // of the request budget
	since  time.Duration
	state  requestState // under conn.mu
	fields [inlineFields]Field
}

// A headerDecoder turns header bytes into commands. It is reused: all text of a
// header is gathered in arena and made one string in the end.
type headerDecoder struct {
	arena []byte
	spans []fieldSpan
	seen  uint64 // a bit per hash of the names so far
}

// fieldSpan is a field whose name is arena[start:mid] and whose value is
// arena[mid:end].
type fieldSpan struct{ start, mid, end int }

// maxKeptArena bounds the memory that a decoder keeps between headers.
const maxKeptArena = 4 << 10

// decode fills in.cmd from the header b. It does not keep b.
func (d *headerDecoder) decode(typ HeaderType, b []byte, in *inbound) error {
	if cap(d.arena) > maxKeptArena {
		d.arena = nil
	}
	if d.spans == nil {
		d.spans = make([]fieldSpan, 0, inlineFields)
	}
	// The text of a header is hardly ever longer than the header, and copied word
	// by word.
	d.arena, d.spans, d.seen = slices.Grow(d.arena[:0], len(b)+8), d.spans[:0], 0
	in.cmd.Header = typ
	var remark fieldSpan
	var hasExt bool
	var err error
	if typ == HeaderBinary {
		remark, hasExt, err = d.binary(b, &in.cmd)
	} else {
		remark, hasExt, err = d.json(b, &in.cmd)
	}
	if err != nil {
		return &FrameError{Reason: typ.String() + " header", Err: err}
	}
	text := string(d.arena)
	in.cmd.Remark = text[remark.mid:remark.end]
	if !hasExt {
		return nil
	}
	ext := in.fields[:0:inlineFields]
	if len(d.spans) > inlineFields {
		ext = make([]Field, 0, len(d.spans))
	}
	for _, s := range d.spans {
		ext = append(ext, Field{text[s.start:s.mid], text[s.mid:s.end]})
	}
	in.cmd.Ext = ext
	return nil
}

// add ends a field whose text has been appended to the arena. A field of the
// same name before it goes: the last one wins.
func (d *headerDecoder) add(s fieldSpan) error {
	name := d.arena[s.start:s.mid]
	bit := uint64(1) << nameHash(name)
	if d.seen&bit != 0 {
		for i, o := range d.spans {
			if string(d.arena[o.start:o.mid]) == string(name) {
				d.spans = slices.Delete(d.spans, i, i+1)
				break
			}
		}
	}
	d.seen |= bit
	if len(d.spans) == MaxFields {
		return fmt.Errorf("more than %d ext fields", MaxFields)
	}
	d.spans = append(d.spans, s)
	return nil
}

// nameHash gives one of 64 values, different ones for most names that a
// command has together.
func nameHash(name []byte) uint {
	if len(name) == 0 {
		return 0
	}
	return (uint(name[0]) + 5*uint(name[len(name)-1]) + 41*uint(len(name))) & 63
}
