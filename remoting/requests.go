package remoting

import (
	"context"
	"errors"
	"io"
	"runtime"
	"runtime/debug"
)

// requestState tells who has still to do what with a request.
type requestState uint8

const (
	running  requestState = iota // its handler runs and nobody has answered
	held                         // its handler has returned Later
	answered                     // answered, or never to be
)

// What a request costs the budget besides its bytes: goroutine, command,
// fields. One that is held has no goroutine.
const (
	requestCost = 4 << 10
	heldCost    = 1 << 10
)

// tokenHurry is by how much faster than otherwise a frame has to arrive for
// which the token was taken, since others wait for it.
const tokenHurry = 6

// readLoop reads frames and has them handled until an error.
func (c *Conn) readLoop() error {
	for {
		h, err := c.readHead()
		if err != nil {
			return err
		}
		c.in.inFrame = true
		c.in.frames++
		in := c.spare
		if c.spare = nil; in == nil {
			in = &inbound{conn: c}
		}
		if err := c.readHeader(h, in); err != nil {
			return noEOF(err)
		}
		if in.cmd.IsResponse() {
			err = c.readResponse(h, in)
		} else {
			err = c.readRequest(h, in)
		}
		if err != nil {
			return noEOF(err)
		}
	}
}

// noEOF tells an end within a frame from one between frames.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readHead reads the first words of a frame. A length that is out of bounds is
// refused before anything else is waited for.
func (c *Conn) readHead() (frameHead, error) {
	if err := c.in.fill(wordLen); err != nil {
		return frameHead{}, err
	}
	if err := checkTotal(totalOf(c.in.buffered())); err != nil {
		return frameHead{}, err
	}
	if err := c.in.fill(prefixLen); err != nil {
		return frameHead{}, err
	}
	h, err := parseHead(c.in.buffered())
	c.in.r += prefixLen
	return h, err
}

func (c *Conn) readHeader(h frameHead, in *inbound) error {
	if h.headerLen > minReadBuffer {
		header, err := c.in.part(h.headerLen, in)
		if err != nil {
			return err
		}
		return c.headers.decode(h.typ, header, in)
	}
	if err := c.in.fill(h.headerLen); err != nil {
		return err
	}
	header := c.in.buffered()[:h.headerLen]
	c.in.r += h.headerLen
	return c.headers.decode(h.typ, header, in)
}

// frameDone notes that a frame has arrived completely.
func (c *Conn) frameDone() {
	c.in.inFrame = false
	if c.frameSince.Load() != 0 {
		c.frameSince.Store(0)
		c.tokenSince.Store(0)
	}
}

// readResponse reads the rest of an answer and gives it to who waits for it.
// The body of an answer that nobody waits for takes no memory. Answers are not
// charged, since handlers wait for them.
func (c *Conn) readResponse(h frameHead, in *inbound) (err error) {
	cmd := &in.cmd
	c.mu.Lock()
	c.unchargeLocked(in)
	call, ok := c.mu.calls[cmd.Opaque]
	delete(c.mu.calls, cmd.Opaque)
	c.mu.Unlock()
	if !ok {
		c.ep.log.Debug("answer that nobody waits for", "conn", c.id, "code", cmd.Code, "opaque", cmd.Opaque)
		if err := c.in.discard(h.bodyLen); err != nil {
			return err
		}
	} else {
		if h.bodyLen > 0 {
			if cmd.Body, err = c.in.part(h.bodyLen, nil); err != nil {
				close(call)
				return err
			}
		}
		call <- cmd
	}
	c.frameDone()
	c.mu.Lock()
	c.finishLocked()
	c.mu.Unlock()
	if c.unwritten {
		return c.afterInline()
	}
	return nil
}

// readRequest reads the rest of a request and has it handled.
func (c *Conn) readRequest(h frameHead, in *inbound) (err error) {
	handler, ok := c.ep.handlers[in.cmd.Code]
	inline := ok && c.ep.opts.Inline(&in.cmd)
	switch {
	case h.bodyLen == 0:
	case inline && h.bodyLen <= copiedBody && len(c.in.buffered()) >= h.bodyLen:
		// It stays as it is until more is read; an answer that has it as its
		// body is copied before.
		in.cmd.Body = c.in.buffered()[:h.bodyLen:h.bodyLen]
		c.in.r += h.bodyLen
	default:
		if in.cmd.Body, err = c.in.part(h.bodyLen, in); err != nil {
			return err
		}
	}
	c.frameDone()
	in.cmd.in = in
	if c.ep.opts.Observe != nil {
		in.since = c.ep.now()
	}
	cost := int64(requestCost + min(h.headerLen, smallPart) + min(h.bodyLen, smallPart))
	had := in.token
	if !c.ep.requests.take(cost, &in.token, c.ctx.Done()) {
		return context.Cause(c.ctx)
	}
	c.mu.Lock()
	if !c.chargeLocked(in, cost, in.token && !had) {
		c.mu.Unlock()
		return c.mu.err
	}
	c.mu.inFlight++
	draining, pause := c.mu.draining, c.noRoomLocked()
	full := c.mu.held >= c.ep.limits.MaxHeld || c.ep.held.Load() >= int64(c.ep.limits.MaxHeldTotal)
	c.mu.Unlock()

	switch {
	case draining:
		c.answer(in, NewResponse(CodeServiceNotAvailable, "the server is shutting down"), false)
	case !ok:
		c.answer(in, notSupported(in.cmd.Code), false)
	case full:
		c.answer(in, NewResponse(CodeSystemBusy, "[REJECTREQUEST] too many requests are held"), false)
	case inline:
		if c.run(in, handler, false); in.state == answered { // by this goroutine
			*in = inbound{conn: c}
			c.spare = in
		}
	default:
		c.ep.do(task{in, handler})
		if !pause && !c.unwritten {
			return nil
		}
	}
	return c.afterInline()
}

// noRoomLocked reports whether so much is going on that the connection must not
// be read.
func (c *Conn) noRoomLocked() bool {
	return c.mu.inFlight >= c.ep.limits.MaxInFlight || c.mu.out.bytes > c.ep.limits.MaxQueued/4
}

// afterInline writes what the reading goroutine has answered itself, once no
// further frame is there to be read, and waits until there is room for more:
// the connection is not read meanwhile, and the peer notices. What it leaves is
// for the next frame, whatever that is: its own answer may not come for long.
func (c *Conn) afterInline() error {
	more := c.in.hasFrame()
	c.unwritten = more
	c.mu.Lock()
	defer c.mu.Unlock()
	for !c.mu.closed {
		wait := c.noRoomLocked()
		if (wait || !more || c.mu.out.bytes > maxInlineQueued) && c.becomeWriterLocked() {
			c.mu.Unlock()
			c.writeAll()
			c.mu.Lock()
			continue
		}
		if !wait {
			return nil
		}
		c.mu.room.Wait()
	}
	return c.mu.err
}

// run calls a handler and deals with its result. write says whether this
// goroutine may write it.
func (c *Conn) run(in *inbound, h Handler, write bool) {
	resp, err := c.call(h, &in.cmd)
	switch {
	case err != nil:
		c.answer(in, Response(err), write)
	case resp == Later:
		c.hold(in)
	default:
		c.answer(in, resp, write)
	}
}

// call calls a handler; a panic becomes an error.
func (c *Conn) call(h Handler, req *Command) (resp *Command, err error) {
	defer func() {
		if p := recover(); p != nil {
			c.ep.log.Error("handler panicked", "conn", c.id, "remote", c.RemoteAddr(), "request", RequestName(req.Code),
				"panic", p, "stack", string(debug.Stack()))
			resp, err = nil, Errorf(CodeSystemError, "internal error: %v", p)
		}
	}()
	return h(c.ctx, c, req)
}

// hold marks a request as put off, unless it has been answered meanwhile.
func (c *Conn) hold(in *inbound) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if in.state != running || c.mu.closed {
		return
	}
	in.state = held
	c.mu.inFlight--
	c.mu.held++
	c.ep.held.Add(1)
	in.charge -= requestCost - heldCost
	c.mu.charged -= requestCost - heldCost
	c.ep.requests.give(requestCost-heldCost, false)
	c.mu.room.Signal()
}

// Reply answers a request for which the handler returned Later. It does not
// wait for the peer. The body of resp must not be changed afterwards. A oneway
// request is done with, and nothing sent. Only the first answer counts; the
// error of further ones is ErrAnswered, that on a closed connection ErrClosed.
func (c *Conn) Reply(req, resp *Command) error {
	if req.in == nil || req.in.conn != c {
		return ErrAnswered
	}
	write, _, err := c.settle(req.in, resp, true)
	if write {
		go c.writeOnly()
	}
	return err
}

// answer settles a request and, if write is set, writes what is queued.
func (c *Conn) answer(in *inbound, resp *Command, write bool) {
	writer, others, _ := c.settle(in, resp, write)
	if !writer {
		return
	}
	c.ep.wg.Done() // of writeOnly, which this goroutine stands for
	if others {
		// Handlers that are about to end get their answers into the same
		// write: a fifth less CPU for 64 pipelined requests (BenchmarkEcho).
		runtime.Gosched()
	}
	c.writeAll()
}

// settle ends a request and queues its answer; nil is none. With write set it
// may make the caller the writer, who then has to call writeOnly. others says
// whether handlers of the connection still run.
func (c *Conn) settle(in *inbound, resp *Command, write bool) (writer, others bool, err error) {
	req := &in.cmd
	c.mu.Lock()
	switch in.state {
	case answered:
		c.mu.Unlock()
		return false, false, ErrAnswered
	case held:
		c.mu.held--
		if !c.mu.closed {
			c.ep.held.Add(-1)
		}
	default:
		c.mu.inFlight--
	}
	in.state = answered
	if c.mu.closed {
		err = ErrClosed
	} else {
		c.unchargeLocked(in)
		if resp != nil && !req.IsOneway() {
			reply := *resp
			reply.sign()
			reply.Opaque, reply.Flag, reply.Header = req.Opaque, FlagResponse, req.Header
			err = c.queueLocked(&reply)
			if writer = write && c.becomeWriterLocked(); writer {
				c.ep.wg.Add(1)
			}
		}
		others = c.mu.inFlight > 0
		c.finishLocked()
		c.mu.room.Signal()
	}
	c.mu.Unlock()
	if errors.Is(err, ErrSlowReader) {
		c.shut(err)
	}
	if f := c.ep.opts.Observe; f != nil {
		code := CodeSuccess
		if resp != nil {
			code = resp.Code
		}
		f(c, req, code, c.ep.now()-in.since)
	}
	return writer, others, err
}

// charge takes n bytes of the request budget for in, whose frame is being read,
// and waits until there are as many.
func (c *Conn) charge(in *inbound, n int64) error {
	if in == nil || n == 0 {
		return nil
	}
	had := in.token
	if !c.ep.requests.take(n, &in.token, c.ctx.Done()) {
		return context.Cause(c.ctx)
	}
	if in.token && !had {
		c.tokenSince.Store(c.ep.clock.Load())
		c.frameSince.CompareAndSwap(0, c.ep.clock.Load())
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.chargeLocked(in, n, in.token && !had) {
		return c.mu.err
	}
	return nil
}

// chargeLocked notes what was taken, and whether the token came with it, so that
// it is given back with the connection. On a closed one it is given back at
// once.
func (c *Conn) chargeLocked(in *inbound, n int64, token bool) bool {
	if c.mu.closed {
		c.ep.requests.give(n, token)
		return false
	}
	in.charge += n
	c.mu.charged += n
	c.mu.token = c.mu.token || token
	return true
}

// unchargeLocked gives back what in took.
func (c *Conn) unchargeLocked(in *inbound) {
	if !c.mu.closed {
		c.mu.charged -= in.charge
		c.mu.token = c.mu.token && !in.token
		c.ep.requests.give(in.charge, in.token)
	}
	in.charge, in.token = 0, false
}
