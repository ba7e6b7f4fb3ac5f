package remoting

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

// A Conn is one connection of a Server or a Client. Both sides may ask and
// answer on it.
//
// One goroutine reads it. Handlers run on goroutines of their own, and whoever
// finds bytes to write and nobody writing becomes the writer until nothing is
// left, so that many answers leave in one system call.
type Conn struct {
	ep     *endpoint
	id     uint64
	client bool     // we dialled it
	raw    net.Conn // as accepted or dialled
	nc     net.Conn // raw, or TLS over it; set under mu before opened
	remote atomic.Pointer[netip.AddrPort]
	local  netip.AddrPort

	ctx    context.Context // ends when the connection closes
	cancel context.CancelCauseFunc
	value  atomic.Value

	// Times by endpoint.clock for the sweeper; 0: not now.
	active     atomic.Int64 // something was read or written last
	handshake  atomic.Int64 // a handshake began
	frameSince atomic.Int64 // part of a frame arrived, and not yet the rest
	tokenSince atomic.Int64 // the same, of a frame that has the token of the budget
	writeSince atomic.Int64 // a piece began to be written

	// Of the goroutine that reads.
	in        frameReader
	headers   headerDecoder
	spare     *inbound // an inline request that is done with: for the next one
	unwritten bool     // answers of inline handlers may wait for the next frame

	mu struct {
		sync.Mutex
		opened    bool // PROXY preamble and TLS handshake are over
		closed    bool
		err       error // why closed
		draining  bool
		finishing bool

		inFlight int       // requests whose handlers run
		held     int       // requests put off with Later
		charged  int64     // of the request budget, for both and what is being read
		token    bool      // one of them has the token of the budget
		room     sync.Cond // inFlight or out.bytes fell; the reading goroutine waits

		calls  map[int32]chan *Command // by opaque, of capacity 1
		opaque int32

		out     outQueue
		writing bool // some goroutine is in writeAll
	}
}

func newConn(e *endpoint, nc net.Conn) *Conn {
	c := &Conn{ep: e, id: e.lastID.Add(1), raw: nc, nc: nc}
	c.setRemote(addrPort(nc.RemoteAddr()))
	c.local = addrPort(nc.LocalAddr())
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.in.conn = c
	c.in.from(nc)
	c.mu.room.L = &c.mu
	c.active.Store(e.clock.Load())
	return c
}

// ID is a number of the connection that no other of its server or client has.
func (c *Conn) ID() uint64 { return c.id }

// RemoteAddr is the address of the peer: that of a PROXY preamble if there was
// one. It is the zero value on connections that are not TCP.
func (c *Conn) RemoteAddr() netip.AddrPort { return *c.remote.Load() }

func (c *Conn) setRemote(a netip.AddrPort) { c.remote.Store(&a) }

// LocalAddr is our address of the connection.
func (c *Conn) LocalAddr() netip.AddrPort { return c.local }

// TLS returns the state of TLS, or nil without it.
func (c *Conn) TLS() *tls.ConnectionState {
	c.mu.Lock()
	t, ok := c.nc.(*tls.Conn)
	c.mu.Unlock()
	if !ok {
		return nil
	}
	s := t.ConnectionState()
	return &s
}

// Context ends when the connection closes; its cause is the reason.
func (c *Conn) Context() context.Context { return c.ctx }

// Value returns what SetValue stored, or nil.
func (c *Conn) Value() any { return c.value.Load() }

// SetValue stores something with the connection, always of the same type.
func (c *Conn) SetValue(v any) { c.value.Store(v) }

// Close closes the connection at once.
func (c *Conn) Close() error {
	c.shut(ErrClosed)
	return nil
}

func (c *Conn) String() string { return fmt.Sprintf("connection %d with %s", c.id, c.RemoteAddr()) }

// serve reads the connection until it closes. It owns it.
func (c *Conn) serve() {
	defer c.ep.remove(c)
	err := c.open()
	opened := err == nil
	if opened {
		c.mu.Lock()
		c.mu.opened = true
		c.mu.Unlock()
		if f := c.ep.opts.OnConnect; f != nil {
			f(c)
		}
		err = c.readLoop()
	}
	c.shut(err)
	c.in.release()
	cause := context.Cause(c.ctx)
	c.logClose(cause)
	if f := c.ep.opts.OnClose; f != nil && opened {
		f(c, cause)
	}
}

func (c *Conn) logClose(cause error) {
	log := c.ep.log.Info
	if errors.Is(cause, io.EOF) || errors.Is(cause, ErrClosed) || errors.Is(cause, ErrShutdown) {
		log = c.ep.log.Debug
	}
	log("connection closed", "conn", c.id, "remote", c.RemoteAddr(), "err", cause)
}

// shut closes the connection. The first reason counts.
func (c *Conn) shut(err error) {
	c.mu.Lock()
	if c.mu.closed {
		c.mu.Unlock()
		return
	}
	c.mu.closed, c.mu.err = true, err
	calls, charged, token := c.mu.calls, c.mu.charged, c.mu.token
	c.mu.calls, c.mu.charged, c.mu.token = nil, 0, false
	c.ep.queued.Add(-c.mu.out.bytes)
	c.ep.held.Add(-int64(c.mu.held))
	c.mu.out = outQueue{}
	c.mu.room.Signal()
	// Before anybody else can see that it is closed: OnClose is told then, and
	// relies on the context having ended.
	c.cancel(err)
	c.mu.Unlock()

	c.ep.requests.give(charged, token)
	for _, call := range calls {
		close(call)
	}
	c.raw.Close() //nolint:errcheck // nothing is left to be lost
}

// checkTime closes the connection if one of its times is over.
func (c *Conn) checkTime(now time.Duration) {
	l := &c.ep.limits
	over := func(since *atomic.Int64, limit time.Duration) bool {
		t := since.Load()
		return limit > 0 && t != 0 && now-time.Duration(t) > limit
	}
	switch {
	case over(&c.handshake, l.HandshakeTimeout):
		c.shut(ErrHandshakeTimeout)
	case over(&c.frameSince, l.FrameTimeout), over(&c.tokenSince, l.FrameTimeout/tokenHurry):
		c.shut(ErrFrameTimeout)
	case over(&c.writeSince, l.WriteTimeout):
		c.shut(ErrSlowReader)
	case over(&c.active, l.IdleTimeout):
		c.mu.Lock()
		busy := c.mu.inFlight > 0
		c.mu.Unlock()
		if !busy {
			c.shut(ErrIdle)
		}
	}
}

// drain makes the connection refuse new requests, and close when nothing is
// left to be answered.
func (c *Conn) drain() {
	c.mu.Lock()
	c.mu.draining = true
	c.finishLocked()
	c.mu.Unlock()
}

// finishLocked closes a draining connection on which nothing is left to do.
func (c *Conn) finishLocked() {
	m := &c.mu
	if !m.draining || m.closed || m.finishing ||
		m.inFlight > 0 || m.held > 0 || m.out.bytes > 0 || m.writing || len(m.calls) > 0 {
		return
	}
	m.finishing = true
	t, secure := c.nc.(*tls.Conn)
	c.ep.wg.Add(1) // not closed: the reading goroutine is still counted
	go func() {
		defer c.ep.wg.Done()
		if secure {
			t.CloseWrite() //nolint:errcheck // a courtesy
		}
		c.shut(ErrShutdown)
	}()
}

// Invoke sends a request and waits for its answer, or until ctx ends or the
// connection closes. An answer with a code that is not success is no error
// here; see Command.Err. req may be used again, also at the same time.
func (c *Conn) Invoke(ctx context.Context, req *Command) (*Command, error) {
	call := make(chan *Command, 1)
	opaque, err := c.send(req, call)
	if err != nil {
		return nil, err
	}
	select {
	case resp, ok := <-call:
		if !ok {
			return nil, fmt.Errorf("%s to %s: %w: %w", RequestName(req.Code), c.RemoteAddr(), ErrClosed, context.Cause(c.ctx))
		}
		return resp, nil
	case <-ctx.Done():
		c.forget(opaque)
		return nil, fmt.Errorf("%s to %s: %w", RequestName(req.Code), c.RemoteAddr(), ctx.Err())
	}
}

// InvokeOneway sends a request that is not answered. It does not wait for the
// peer. req may be used again.
func (c *Conn) InvokeOneway(req *Command) error {
	_, err := c.send(req, nil)
	return err
}

// send queues a request. call, unless nil, gets its answer.
func (c *Conn) send(req *Command, call chan *Command) (opaque int32, err error) {
	cmd := *req
	cmd.sign()
	cmd.Flag = 0
	if call == nil {
		cmd.Flag = FlagOneway
	}
	c.mu.Lock()
	write := false
	switch {
	case c.mu.closed || !c.mu.opened:
		err = ErrClosed
	case call != nil && len(c.mu.calls) >= c.ep.limits.MaxCalls:
		err = ErrBusy
	default:
		c.mu.opaque++
		cmd.Opaque = c.mu.opaque
		if err = c.queueLocked(&cmd); err == nil {
			write = c.becomeWriterLocked()
			if call != nil {
				if c.mu.calls == nil {
					c.mu.calls = make(map[int32]chan *Command)
				}
				c.mu.calls[cmd.Opaque] = call
			}
		}
	}
	if write {
		c.ep.wg.Add(1)
	}
	c.mu.Unlock()
	if write {
		go c.writeOnly()
	}
	if errors.Is(err, ErrSlowReader) {
		c.shut(err)
	}
	if err != nil {
		return 0, fmt.Errorf("%s to %s: %w", RequestName(req.Code), c.RemoteAddr(), err)
	}
	return cmd.Opaque, nil
}

// forget gives up waiting for an answer.
func (c *Conn) forget(opaque int32) {
	c.mu.Lock()
	delete(c.mu.calls, opaque)
	c.finishLocked()
	c.mu.Unlock()
}
