package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// A Client is one identity towards a cluster (upstream: MQClientInstance).
type Client struct {
	opts    Options
	log     *slog.Logger
	rc      *remoting.Client
	uniq    *message.UniqKeys
	sending *limiter // what producers have in flight
	routes  routeTable
	server  atomic.Int64  // index of the name server that answered last
	beatNow chan struct{} // of capacity 1: some broker has to hear of us
	states  sync.Map      // *remoting.Conn to *connState

	cancel    context.CancelFunc // ends the loops
	wg        sync.WaitGroup     // loops and look-ups of routes
	closeOnce sync.Once

	mu struct {
		sync.Mutex
		closed  bool // nothing new is made
		stopped bool // nothing runs any more
		// registration counts changes of producers, consumers and what they
		// subscribe to; brokers have to hear of each.
		registration uint64
		producers    map[string]*Producer // by group
		consumers    map[string]*Consumer // by group
		requests     map[string]chan *message.Ext
		avoid        map[string]time.Time // brokers that failed, and until when they are passed over
	}
}

// connState is what we remember of a connection.
type connState struct {
	// beating is held while a heartbeat or its opposite is under way, so that
	// an old one cannot arrive behind a new one.
	beating    chan struct{}
	registered uint64 // what the last heartbeat told; guarded by beating
	timeouts   atomic.Int32
}

// maxTimeouts answers in a row that did not come close a connection: the peer
// may be gone without a word.
const maxTimeouts = 3

// New returns a client. It connects when there is something to send. The caller
// has to call Close.
func New(opts Options) (*Client, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("client options: %w", err)
	}
	c := &Client{
		opts:    opts,
		log:     opts.Logger,
		uniq:    message.NewUniqKeys(localIP(), os.Getpid(), randomUint32(), nil),
		sending: newLimiter(opts.MaxInFlight, opts.MaxInFlightBytes),
		beatNow: make(chan struct{}, 1),
	}
	c.routes.init()
	c.mu.producers = make(map[string]*Producer)
	c.mu.consumers = make(map[string]*Consumer)
	c.mu.requests = make(map[string]chan *message.Ext)
	c.mu.avoid = make(map[string]time.Time)
	c.rc = remoting.NewClient(remoting.ClientOptions{
		Options: remoting.Options{
			Mux:       c.mux(),
			TLS:       opts.TLS,
			OnConnect: func(*remoting.Conn) { signal(c.beatNow) },
			OnClose:   func(conn *remoting.Conn, _ error) { c.states.Delete(conn) },
			Logger:    opts.Logger,
		},
		DialTimeout: opts.DialTimeout,
		Timeout:     opts.Timeout,
		Dial:        opts.Dial,
	})
	ctx, cancel := context.WithCancel(context.Background())
	c.cancel = cancel
	c.wg.Go(func() { c.keepRoutes(ctx) })
	c.wg.Go(func() { c.keepHeartbeats(ctx) })
	return c, nil
}

// ID returns the client id.
func (c *Client) ID() string { return c.opts.ClientID }

// NameServers returns the addresses of the name servers.
func (c *Client) NameServers() []string { return slices.Clone(c.opts.NameServers) }

// Close closes consumers and producers as their Close does, and then all
// connections. It may be called more than once; it must not be called by a
// handler of a consumer.
func (c *Client) Close() error {
	c.closeOnce.Do(func() {
		c.mu.Lock()
		c.mu.closed = true
		var producers []*Producer
		for _, p := range c.mu.producers {
			producers = append(producers, p)
		}
		var consumers []*Consumer
		for _, cs := range c.mu.consumers {
			consumers = append(consumers, cs)
		}
		c.mu.Unlock()
		var wg sync.WaitGroup
		for _, cs := range consumers {
			wg.Go(func() { cs.Close() }) //nolint:errcheck // it logs what it could not do
		}
		for _, p := range producers {
			wg.Go(func() { p.Close() }) //nolint:errcheck // likewise
		}
		wg.Wait()
		c.mu.Lock()
		c.mu.stopped = true
		c.mu.Unlock()
		c.cancel()
		c.rc.Close() //nolint:errcheck // never fails
		c.wg.Wait()
	})
	return nil
}

// spawn runs f on a goroutine that Close waits for, unless it is too late.
func (c *Client) spawn(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.stopped {
		return false
	}
	c.wg.Go(f)
	return true
}

// Invoke sends any request to the server at addr and returns its answer; one
// that is no success is no error, see remoting.Command.Err. Without a deadline
// in ctx, Options.Timeout bounds it. req is not changed.
func (c *Client) Invoke(ctx context.Context, addr string, req *remoting.Command) (*remoting.Command, error) {
	timeout := c.opts.Timeout
	if d, ok := ctx.Deadline(); ok {
		timeout = time.Until(d)
	}
	return c.invoke(ctx, addr, req, timeout)
}

// InvokeNameServer sends a request to the name server that answered last and,
// as long as one does not answer or is about to stop, to the others.
func (c *Client) InvokeNameServer(ctx context.Context, req *remoting.Command) (*remoting.Command, error) {
	var errs []error
	first := int(c.server.Load())
	for i := range c.opts.NameServers {
		at := (first + i) % len(c.opts.NameServers)
		resp, err := c.invoke(ctx, c.opts.NameServers[at], req, c.opts.Timeout)
		switch {
		case err != nil:
		case resp.Code == remoting.CodeSystemBusy, resp.Code == remoting.CodeServiceNotAvailable, resp.Code == remoting.CodeGoAway:
			err = fmt.Errorf("%s to %s: %w", remoting.RequestName(req.Code), c.opts.NameServers[at], resp.Err())
		default:
			c.server.Store(int64(at))
			return resp, nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, errors.Join(errs...)
}

// invoke is Invoke within timeout.
func (c *Client) invoke(ctx context.Context, addr string, req *remoting.Command, timeout time.Duration) (*remoting.Command, error) {
	within, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := c.rc.Conn(within, addr)
	if err != nil {
		return nil, closedError(err)
	}
	return c.invokeOn(ctx, within, conn, req)
}

// invokeOn sends a request on a connection. within is ctx with our own bound.
func (c *Client) invokeOn(ctx, within context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	resp, err := conn.Invoke(within, c.sign(req))
	state := c.state(conn)
	if err == nil {
		state.timeouts.Store(0)
		return resp, nil
	}
	if within.Err() != nil && ctx.Err() == nil && state.timeouts.Add(1) >= maxTimeouts {
		c.log.Info("connection closed, the peer does not answer", "remote", conn.RemoteAddr())
		conn.Close() //nolint:errcheck // never fails
	}
	return nil, err
}

// oneway sends a request that is not answered.
func (c *Client) oneway(ctx context.Context, addr string, req *remoting.Command) error {
	ctx, cancel := context.WithTimeout(ctx, c.opts.Timeout)
	defer cancel()
	return closedError(c.rc.InvokeOneway(ctx, addr, c.sign(req)))
}

// call sends a request within timeout and returns its answer if that is a
// success. Else the error wraps a *remoting.Error.
func (c *Client) call(ctx context.Context, addr string, req *remoting.Command, timeout time.Duration) (*remoting.Command, error) {
	resp, err := c.invoke(ctx, addr, req, timeout)
	if err != nil {
		return nil, err
	}
	if err := resp.Err(); err != nil {
		return nil, fmt.Errorf("%s to %s: %w", remoting.RequestName(req.Code), addr, err)
	}
	return resp, nil
}

// callHeader is call and reads the header of the answer.
func (c *Client) callHeader(ctx context.Context, addr string, req *remoting.Command, h remoting.Header) error {
	resp, err := c.call(ctx, addr, req, c.opts.Timeout)
	if err != nil {
		return err
	}
	if err := remoting.DecodeHeader(resp.Ext, h); err != nil {
		return fmt.Errorf("answer to %s of %s: %w", remoting.RequestName(req.Code), addr, err)
	}
	return nil
}

// sign returns req as it goes out.
func (c *Client) sign(req *remoting.Command) *remoting.Command {
	if c.opts.Credentials.AccessKey != "" {
		req = c.opts.Credentials.sign(req)
	}
	if req.Header != c.opts.Header {
		cmd := *req
		cmd.Header = c.opts.Header
		req = &cmd
	}
	return req
}

// state returns what is remembered of a connection.
func (c *Client) state(conn *remoting.Conn) *connState {
	if s, ok := c.states.Load(conn); ok {
		return s.(*connState)
	}
	s, _ := c.states.LoadOrStore(conn, &connState{beating: make(chan struct{}, 1)})
	if conn.Context().Err() != nil { // OnClose may have been called before
		c.states.Delete(conn)
	}
	return s.(*connState)
}

// closedError makes the error of a closed remoting client ours.
func closedError(err error) error {
	if err == remoting.ErrClosed {
		return ErrClosed
	}
	return err
}

// changedLocked notes that brokers have to hear of us again.
func (c *Client) changedLocked() {
	c.mu.registration++
	signal(c.beatNow)
}

// signal wakes who waits for ch, which has capacity 1.
func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// sleep waits for d, or until ctx ends, which it reports.
func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
