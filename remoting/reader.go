package remoting

import (
	"io"
	"net"
)

const (
	minReadBuffer = 4 << 10
	maxReadBuffer = 64 << 10

	// smallPart is how much of a frame is read without asking the request
	// budget, and the first piece of memory for a larger part.
	smallPart = 4 << 10
	// busyFrames is how many frames come one after the other, without a time
	// when none was there, on a connection that is busy, and manyFrames is how
	// many there have to be at once for others to be waited for.
	busyFrames = 8
	manyFrames = 24

	// growth is the factor by which memory for a part of a frame grows
	// while its bytes arrive.
	growth = 4
)

// A frameReader reads frames from a connection. Its buffer grows while the
// peer fills it, so that one read fetches many pipelined requests, and shrinks
// when it does not. It belongs to the goroutine that reads.
type frameReader struct {
	src   io.Reader // see from
	sock  *socket   // reads src, unless nil
	conn  *Conn
	buf   []byte
	r, w  int // buf[r:w] has not been consumed
	spare int // reads in a row that left most of the buffer empty; -1: the last one filled it

	frames  int  // since nothing was there
	before  int  // of those, before the last read
	last    int  // bytes of the last read
	inFrame bool // part of a frame has been consumed, and the rest has to come in time
}

func (f *frameReader) buffered() []byte { return f.buf[f.r:f.w] }

// fill reads until n bytes are buffered; n is at most minReadBuffer.
func (f *frameReader) fill(n int) error {
	for f.w-f.r < n {
		empty := f.r == f.w
		if empty {
			f.r, f.w = 0, 0
			f.resize()
		} else if len(f.buf)-f.r < n {
			f.w = copy(f.buf, f.buf[f.r:f.w])
			f.r = 0
		}
		got, err := f.read(f.buf[f.w:], !empty)
		f.w += got
		if empty {
			f.judge()
		}
		if err != nil && f.w-f.r < n {
			if err == io.EOF && (f.inFrame || f.w > f.r) {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// read reads once. begun says that part of a frame is in the buffer.
func (f *frameReader) read(p []byte, begun bool) (int, error) {
	c := f.conn
	if (begun || f.inFrame) && c.frameSince.Load() == 0 {
		c.frameSince.Store(c.ep.clock.Load())
	}
	n, err := f.receive(p, begun)
	if n > 0 {
		c.active.Store(c.ep.clock.Load())
	}
	return n, err
}

func (f *frameReader) receive(p []byte, begun bool) (int, error) {
	if f.sock == nil {
		return f.src.Read(p)
	}
	if f.frames-f.before >= manyFrames {
		f.sock.sawMany(f.last)
	}
	n, waited, err := f.sock.read(p, f.frames >= busyFrames && !begun && !f.inFrame)
	if waited {
		f.frames = 0
	}
	f.before, f.last = f.frames, n
	return n, err
}

// from sets what is read from now on.
func (f *frameReader) from(src io.Reader) { f.src, f.sock = src, newSocket(src) }

// resize adapts the empty buffer.
func (f *frameReader) resize() {
	size := len(f.buf)
	switch total := &f.conn.ep.readBuffers; {
	case size == 0:
		f.buf = make([]byte, minReadBuffer)
	case f.spare < 0 && size < maxReadBuffer:
		if total.Add(int64(size)) > maxReadBuffers {
			total.Add(-int64(size))
			return
		}
		f.buf = make([]byte, 2*size)
	case f.spare > 8 && size > minReadBuffer:
		f.buf = make([]byte, size/2)
		total.Add(-int64(size / 2))
	}
	f.spare = max(f.spare, 0)
}

// judge notes how full a read has made the empty buffer.
func (f *frameReader) judge() {
	switch n := f.w - f.r; {
	case f.w == len(f.buf):
		f.spare = -1
	case n < len(f.buf)/4:
		f.spare++
	default:
		f.spare = 0
	}
}

// release gives the buffer back.
func (f *frameReader) release() {
	if extra := len(f.buf) - minReadBuffer; extra > 0 {
		f.conn.ep.readBuffers.Add(-int64(extra))
	}
	f.buf, f.r, f.w = nil, 0, 0
}

// hasFrame reports whether a whole frame is buffered.
func (f *frameReader) hasFrame() bool {
	b := f.buffered()
	if len(b) < prefixLen {
		return false
	}
	h, err := parseHead(b)
	return err != nil || len(b) >= prefixLen+h.headerLen+h.bodyLen
}

// part reads the next n bytes into memory of their own, which grows with what
// has arrived. Memory beyond smallPart is charged to in; nil is not charged.
func (f *frameReader) part(n int, in *inbound) ([]byte, error) {
	have := min(n, f.w-f.r)
	size := n
	if have < n {
		size = min(n, max(have, smallPart))
	}
	if size > smallPart {
		if err := f.conn.charge(in, int64(size-smallPart)); err != nil {
			return nil, err
		}
	}
	b := make([]byte, size)
	f.r += copy(b, f.buf[f.r:f.r+have])
	for at := have; ; {
		if err := f.readFull(b[at:]); err != nil {
			return nil, err
		}
		if len(b) == n {
			return b, nil
		}
		at = len(b)
		size = min(n, growth*len(b))
		if err := f.conn.charge(in, int64(size-len(b))); err != nil {
			return nil, err
		}
		larger := make([]byte, size)
		copy(larger, b)
		b = larger
	}
}

func (f *frameReader) readFull(p []byte) error {
	for len(p) > 0 {
		n, err := f.read(p, false)
		p = p[n:]
		if err != nil && len(p) > 0 {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return err
		}
	}
	return nil
}

// discard skips the next n bytes.
func (f *frameReader) discard(n int) error {
	for n > 0 {
		have := min(n, f.w-f.r)
		f.r += have
		if n -= have; n == 0 {
			break
		}
		if err := f.fill(1); err != nil {
			return err
		}
	}
	return nil
}

// A prefixConn is a connection of which some bytes have been read already.
type prefixConn struct {
	net.Conn
	prefix []byte
}

func (p *prefixConn) Read(b []byte) (int, error) {
	if len(p.prefix) > 0 {
		n := copy(b, p.prefix)
		p.prefix = p.prefix[n:]
		return n, nil
	}
	return p.Conn.Read(b)
}
