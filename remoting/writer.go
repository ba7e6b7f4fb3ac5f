package remoting

import (
	"bytes"
	"errors"
	"net"
	"sync"
)

const (
	// copiedBody is up to which size a body is copied behind its header,
	// instead of being written from where it is.
	copiedBody = 8 << 10
	// maxPiece bounds the bytes handed to one system call, so that progress
	// on a slow connection can be seen.
	maxPiece = 1 << 20
	// maxInlineQueued is how much inline handlers may leave before it is
	// written although more requests have been read.
	maxInlineQueued = 64 << 10
)

// An outQueue is what waits to be written, in order.
type outQueue struct {
	pieces [][]byte
	tail   *[]byte // from outBuffers; small frames gather here
	bytes  int64   // waiting, with what is being written
}

// outBuffers are buffers for small frames. Idle connections have none.
var outBuffers = sync.Pool{New: func() any { b := make([]byte, 0, minReadBuffer); return &b }}

// maxKeptBuffer bounds buffers that return to the pool.
const maxKeptBuffer = 256 << 10

// queueLocked appends a frame. The errors are ErrTooLarge and ErrBusy, with
// nothing queued, and ErrSlowReader, on which the connection has to be closed.
func (c *Conn) queueLocked(cmd *Command) error {
	q := &c.mu.out
	if q.tail == nil {
		q.tail = outBuffers.Get().(*[]byte)
	}
	before := len(*q.tail)
	b, err := appendHead(*q.tail, cmd)
	if errors.Is(err, ErrTooLarge) && cmd.IsResponse() {
		// The peer waits for an answer, so it gets another one.
		tooLarge := NewResponse(CodeSystemError, err.Error())
		tooLarge.Opaque, tooLarge.Flag, tooLarge.Header = cmd.Opaque, cmd.Flag, cmd.Header
		cmd = tooLarge
		b, err = appendHead(*q.tail, cmd)
	}
	if err != nil {
		return err
	}
	n := int64(len(b) - before + len(cmd.Body))
	full := c.ep.queued.Load()+n > c.ep.limits.MaxQueuedTotal
	switch {
	case q.bytes > 0 && q.bytes+n > c.ep.limits.MaxQueued, q.bytes > copiedBody && full:
		// A few bytes may be in a write that is about to return, to a peer that
		// takes everything; of more, some peer has to be the one.
		*q.tail = b[:before]
		return ErrSlowReader
	case full && n > copiedBody && !cmd.IsResponse():
		*q.tail = b[:before]
		return ErrBusy
	case full && n > copiedBody:
		// Otherwise each connection could have one long answer waiting.
		*q.tail = b[:before]
		busy := NewResponse(CodeSystemBusy, "too many bytes wait to be written")
		busy.Opaque, busy.Flag, busy.Header = cmd.Opaque, cmd.Flag, cmd.Header
		return c.queueLocked(busy)
	}
	q.bytes += n
	c.ep.queued.Add(n)
	if len(cmd.Body) <= copiedBody {
		*q.tail = append(b, cmd.Body...)
		return nil
	}
	if before == 0 { // the buffer stays for small frames
		q.pieces = append(q.pieces, bytes.Clone(b))
		*q.tail = b[:0]
	} else {
		q.pieces = append(q.pieces, b)
		q.tail = nil
	}
	q.pieces = append(q.pieces, cmd.Body)
	return nil
}

// becomeWriterLocked reports whether something is queued that nobody writes. If
// so, the caller has to call writeAll.
func (c *Conn) becomeWriterLocked() bool {
	if c.mu.out.bytes == 0 || c.mu.writing || c.mu.closed {
		return false
	}
	c.mu.writing = true
	return true
}

// writeOnly is writeAll on a goroutine of its own, which is counted.
func (c *Conn) writeOnly() {
	defer c.ep.wg.Done()
	c.writeAll()
}

// writeAll writes until nothing is queued.
func (c *Conn) writeAll() {
	c.mu.Lock()
	for !c.mu.closed && c.mu.out.bytes > 0 {
		q := &c.mu.out
		pieces, tail := q.pieces, q.tail
		q.pieces, q.tail = nil, nil
		c.mu.Unlock()

		var n int // written, and not yet counted
		var err error
		if len(pieces) == 0 {
			n, err = c.writePiece(*tail)
		} else {
			if tail != nil {
				pieces = append(pieces, *tail)
			}
			n, err = c.writePieces(pieces)
		}
		c.writeSince.Store(0)
		if tail != nil && cap(*tail) <= maxKeptBuffer {
			*tail = (*tail)[:0]
			outBuffers.Put(tail)
		}
		if err != nil {
			c.shut(err)
		}
		c.active.Store(c.ep.clock.Load())
		c.mu.Lock()
		c.wroteLocked(n)
	}
	c.mu.writing = false
	c.finishLocked()
	c.mu.Unlock()
}

// writePieces writes pieces, several small ones at a time.
func (c *Conn) writePieces(pieces [][]byte) (n int, err error) {
	for len(pieces) > 0 && err == nil {
		c.wrote(n)
		k, size := 0, 0
		for k < len(pieces) && size+len(pieces[k]) <= maxPiece {
			size += len(pieces[k])
			k++
		}
		if k <= 1 {
			n, err = c.writePiece(pieces[0])
			pieces = pieces[1:]
			continue
		}
		c.writeSince.Store(c.ep.clock.Load())
		bufs := net.Buffers(pieces[:k])
		_, err = bufs.WriteTo(c.nc)
		n = size
		pieces = pieces[k:]
	}
	return n, err
}

// writePiece writes one piece in portions.
func (c *Conn) writePiece(b []byte) (n int, err error) {
	for len(b) > 0 && err == nil {
		c.wrote(n)
		n = min(len(b), maxPiece)
		c.writeSince.Store(c.ep.clock.Load())
		_, err = c.nc.Write(b[:n])
		b = b[n:]
	}
	return n, err
}

// wrote counts n bytes as written.
func (c *Conn) wrote(n int) {
	if n == 0 {
		return
	}
	c.active.Store(c.ep.clock.Load())
	c.mu.Lock()
	c.wroteLocked(n)
	c.mu.Unlock()
}

func (c *Conn) wroteLocked(n int) {
	if !c.mu.closed {
		c.mu.out.bytes -= int64(n)
		c.ep.queued.Add(-int64(n))
		c.mu.room.Signal()
	}
}
