package remoting

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"
)

var (
	// ErrClosed: the connection, server or client has been closed.
	ErrClosed = errors.New("remoting: closed")
	// ErrShutdown: the connection was closed since its server shut down.
	ErrShutdown = errors.New("remoting: shut down")
	// ErrBusy: too many requests wait for their answers on a connection.
	ErrBusy = errors.New("remoting: too many calls on the connection")
	// ErrIdle, ErrFrameTimeout, ErrHandshakeTimeout, ErrSlowReader: a bound
	// of Limits was reached, and the connection closed.
	ErrIdle             = errors.New("remoting: connection idle")
	ErrFrameTimeout     = errors.New("remoting: frame did not arrive in time")
	ErrHandshakeTimeout = errors.New("remoting: handshake not finished in time")
	ErrSlowReader       = errors.New("remoting: peer does not read")
	// ErrTooManyConns: the connection exceeds Limits.MaxConns.
	ErrTooManyConns = errors.New("remoting: too many connections")
	// ErrAnswered: the request is not one of the connection's, or has been
	// answered before.
	ErrAnswered = errors.New("remoting: request answered already")
)

// Options are what a Server and a Client have in common.
type Options struct {
	// Mux has the handlers of requests that peers send. nil: all are
	// answered REQUEST_CODE_NOT_SUPPORTED.
	Mux *Mux
	// Inline chooses the requests whose handlers run on the goroutine that
	// reads the connection, one after the other. That is cheapest, and
	// answers to pipelined requests leave in one write; but such a handler
	// must not wait for anything, answer Later, or keep the request or its
	// body. It is asked before the body is there. nil: none.
	Inline func(req *Command) bool
	// Limits bounds memory and time. Zero: the defaults.
	Limits Limits
	// TLS is the configuration of TLS. nil: a server closes connections
	// that begin with a TLS handshake, a client does not use TLS.
	TLS *tls.Config
	// OnConnect and OnClose are told of each connection, OnConnect before
	// its first request is handled, OnClose when it is closed and will not
	// be read any more. err says why: io.EOF if the peer closed it.
	// Handlers of its requests may still run then.
	OnConnect func(c *Conn)
	OnClose   func(c *Conn, err error)
	// Observe is told of each request that has been handled: the code of
	// the answer and the time since its frame had been read. nil: nobody.
	Observe func(c *Conn, req *Command, code int32, took time.Duration)
	Logger  *slog.Logger // nil: discard
}

// An endpoint is what the connections of a server or client share.
type endpoint struct {
	opts     Options
	accept   acceptOptions // of a server
	limits   Limits
	log      *slog.Logger
	handlers map[int32]Handler

	// start is where times are counted from, clock the time as of the last
	// look of the sweeper in ns, never 0: exact enough for the timeouts, and
	// reading it costs nothing.
	start time.Time
	clock atomic.Int64

	requests    budget       // memory of requests being read or handled
	queued      atomic.Int64 // bytes waiting to be written
	held        atomic.Int64 // requests put off with Later
	readBuffers atomic.Int64 // bytes of read buffers beyond the smallest
	lastID      atomic.Uint64
	refused     atomic.Uint64

	wg    sync.WaitGroup // connections, their handlers and writers
	stop  chan struct{}  // closed by closeAll
	once  sync.Once      // closes stop
	swept chan struct{}  // closed when the sweeper has ended

	tasks   chan task // to idle workers
	idle    atomic.Int32
	workers sync.WaitGroup

	mu struct {
		sync.Mutex
		conns    map[*Conn]struct{}
		draining bool
		closed   bool
	}
}

// maxReadBuffers bounds what the read buffers of all connections may take
// beyond the smallest.
const maxReadBuffers = 64 << 20

func newEndpoint(opts Options) *endpoint {
	e := &endpoint{opts: opts, limits: opts.Limits.withDefaults(), log: opts.Logger, start: time.Now()}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	if opts.Mux != nil {
		e.handlers = maps.Clone(opts.Mux.handlers)
	}
	if e.opts.Inline == nil {
		e.opts.Inline = func(*Command) bool { return false }
	}
	e.clock.Store(1)
	e.requests.max = e.limits.MaxRequestTotal
	e.mu.conns = make(map[*Conn]struct{})
	e.stop, e.swept, e.tasks = make(chan struct{}), make(chan struct{}), make(chan task)
	go e.sweeper()
	return e
}

// maxIdleWorkers is how many goroutines wait for requests. Their stacks have
// grown to what handlers need: making one each time took a fifth of the CPU of
// a send.
const maxIdleWorkers = 64

// A task is a request whose handler runs beside the reading goroutine.
type task struct {
	in     *inbound
	handle Handler
}

// do has a task done, by an idle worker or a new one.
func (e *endpoint) do(t task) {
	e.wg.Add(1)
	select {
	case e.tasks <- t:
	default:
		e.workers.Add(1)
		go e.work(t)
	}
}

// work does tasks until too many others wait for one.
func (e *endpoint) work(t task) {
	defer e.workers.Done()
	for {
		t.in.conn.run(t.in, t.handle, true)
		e.wg.Done()
		t = task{}
		if e.idle.Add(1) > maxIdleWorkers {
			e.idle.Add(-1)
			return
		}
		select {
		case t = <-e.tasks:
			e.idle.Add(-1)
		case <-e.stop:
			return
		}
	}
}

// wait waits, after closeAll, until nothing runs any more.
func (e *endpoint) wait() {
	e.wg.Wait()
	e.workers.Wait()
}

// now is the time since the endpoint was made.
func (e *endpoint) now() time.Duration { return time.Since(e.start) }

// add takes a connection in, or says why not.
func (e *endpoint) add(c *Conn) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.mu.closed:
		return ErrClosed
	case e.mu.draining:
		return ErrShutdown
	case len(e.mu.conns) >= e.limits.MaxConns:
		e.refused.Add(1)
		return ErrTooManyConns
	}
	e.mu.conns[c] = struct{}{}
	e.wg.Add(1)
	return nil
}

func (e *endpoint) remove(c *Conn) {
	e.mu.Lock()
	delete(e.mu.conns, c)
	e.mu.Unlock()
	e.wg.Done()
}

func (e *endpoint) all() []*Conn {
	e.mu.Lock()
	defer e.mu.Unlock()
	conns := make([]*Conn, 0, len(e.mu.conns))
	for c := range e.mu.conns {
		conns = append(conns, c)
	}
	return conns
}

// Bounds of the time between two looks at the timeouts.
const (
	minSweep = 5 * time.Millisecond
	maxSweep = 2 * time.Second
)

// sweeper closes connections whose time is over. One goroutine that looks at
// all of them now and then costs far less than deadlines on each read.
func (e *endpoint) sweeper() {
	defer close(e.swept)
	tick := maxSweep
	for _, d := range []time.Duration{e.limits.IdleTimeout, e.limits.FrameTimeout, e.limits.WriteTimeout, e.limits.HandshakeTimeout} {
		if d > 0 {
			tick = min(tick, max(d/10, minSweep))
		}
	}
	t := time.NewTicker(tick)
	defer t.Stop()
	for {
		select {
		case <-e.stop:
			return
		case <-t.C:
			now := e.now()
			e.clock.Store(max(int64(now), 1))
			for _, c := range e.all() {
				c.checkTime(now)
			}
		}
	}
}

// drain stops new requests and waits for the running and the held ones, at most
// until ctx ends; then connections are closed anyway.
func (e *endpoint) drain(ctx context.Context) error {
	e.mu.Lock()
	e.mu.draining = true
	e.mu.Unlock()
	for _, c := range e.all() {
		c.drain()
	}
	idle := make(chan struct{})
	go func() {
		e.wg.Wait()
		close(idle)
	}()
	var err error
	select {
	case <-idle:
	case <-ctx.Done():
		err = ctx.Err()
	}
	e.closeAll(ErrShutdown)
	return err
}

// closeAll closes all connections and stops the sweeper. It may be called more
// than once.
func (e *endpoint) closeAll(err error) {
	e.mu.Lock()
	e.mu.closed = true
	e.mu.Unlock()
	for _, c := range e.all() {
		c.shut(err)
	}
	e.once.Do(func() { close(e.stop) })
	<-e.swept
}

// Stats are figures of a server or client at one moment.
type Stats struct {
	Conns        int
	InFlight     int    // requests whose handlers run
	Held         int    // requests put off with Later
	Calls        int    // requests of ours that wait for an answer
	QueuedBytes  int64  // to be written
	RequestBytes int64  // of Limits.MaxRequestTotal
	Refused      uint64 // connections beyond Limits.MaxConns so far
}

func (e *endpoint) stats() Stats {
	s := Stats{QueuedBytes: e.queued.Load(), RequestBytes: e.requests.used.Load(), Refused: e.refused.Load()}
	for _, c := range e.all() {
		s.Conns++
		c.mu.Lock()
		s.InFlight += c.mu.inFlight
		s.Held += c.mu.held
		s.Calls += len(c.mu.calls)
		c.mu.Unlock()
	}
	return s
}

// addrPort returns the IP address and port of a, the zero value if it has none.
func addrPort(a interface{ String() string }) netip.AddrPort {
	if t, ok := a.(interface{ AddrPort() netip.AddrPort }); ok {
		p := t.AddrPort()
		return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	p, err := netip.ParseAddrPort(a.String())
	if err != nil {
		return netip.AddrPort{}
	}
	return p
}
