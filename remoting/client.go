package remoting

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// Defaults of ClientOptions.
const (
	defaultDialTimeout = 3 * time.Second
	defaultTimeout     = 3 * time.Second
)

// ClientOptions are the options of a Client.
type ClientOptions struct {
	Options

	// DialTimeout bounds connecting, TLS included. 0 means 3 s.
	DialTimeout time.Duration
	// Timeout bounds Invoke when its ctx has no deadline. 0 means 3 s.
	Timeout time.Duration
	// Dial connects. nil: TCP.
	Dial func(ctx context.Context, network, addr string) (net.Conn, error)
}

// A Client sends requests to servers, over one connection for each address,
// and answers theirs.
type Client struct {
	ep   *endpoint
	opts ClientOptions

	mu struct {
		sync.Mutex
		closed bool
		conns  map[string]*dialled
	}
}

// dialled is a connection to an address, or one that is being made.
type dialled struct {
	ready chan struct{} // closed when conn and err are set
	conn  *Conn
	err   error
}

// NewClient returns a client without connections. The caller has to call Close.
func NewClient(opts ClientOptions) *Client {
	def(&opts.DialTimeout, defaultDialTimeout)
	def(&opts.Timeout, defaultTimeout)
	if opts.Dial == nil {
		opts.Dial = new(net.Dialer).DialContext
	}
	cl := &Client{opts: opts}
	cl.mu.conns = make(map[string]*dialled)
	cl.ep = newEndpoint(opts.Options)
	return cl
}

// Invoke sends a request to the server at addr, host:port, and waits for its
// answer. The connection is made if there is none, or if it has closed.
func (cl *Client) Invoke(ctx context.Context, addr string, req *Command) (*Command, error) {
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, cl.opts.Timeout)
		defer cancel()
	}
	c, err := cl.Conn(ctx, addr)
	if err != nil {
		return nil, err
	}
	return c.Invoke(ctx, req)
}

// InvokeOneway sends a request that is not answered.
func (cl *Client) InvokeOneway(ctx context.Context, addr string, req *Command) error {
	c, err := cl.Conn(ctx, addr)
	if err != nil {
		return err
	}
	return c.InvokeOneway(req)
}

// Conn returns the open connection to addr, made if there is none.
func (cl *Client) Conn(ctx context.Context, addr string) (*Conn, error) {
	for {
		cl.mu.Lock()
		if cl.mu.closed {
			cl.mu.Unlock()
			return nil, ErrClosed
		}
		d := cl.mu.conns[addr]
		if d == nil {
			d = &dialled{ready: make(chan struct{})}
			cl.mu.conns[addr] = d
			cl.ep.wg.Add(1)
			go cl.connect(addr, d)
		}
		cl.mu.Unlock()
		select {
		case <-d.ready:
		case <-ctx.Done():
			return nil, fmt.Errorf("connect to %s: %w", addr, ctx.Err())
		}
		if d.err != nil {
			return nil, d.err
		}
		if d.conn.ctx.Err() == nil {
			return d.conn, nil
		}
		cl.drop(addr, d)
	}
}

// connect makes the connection d to addr and serves it. It does not depend on
// who asked first.
func (cl *Client) connect(addr string, d *dialled) {
	defer cl.ep.wg.Done()
	d.conn, d.err = cl.dial(addr)
	if d.err != nil {
		cl.drop(addr, d)
	}
	close(d.ready)
	if d.err == nil {
		d.conn.serve()
		cl.drop(addr, d)
	}
}

// dial connects within the time for that, or until the client is closed.
func (cl *Client) dial(addr string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(context.Background(), cl.opts.DialTimeout)
	defer cancel()
	dialled := make(chan struct{})
	defer close(dialled)
	go func() {
		select {
		case <-cl.ep.stop:
			cancel()
		case <-dialled:
		}
	}()
	nc, err := cl.opts.Dial(ctx, "tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	c := newConn(cl.ep, nc)
	c.client = true
	if cl.opts.TLS != nil {
		config := cl.opts.TLS
		if config.ServerName == "" && !config.InsecureSkipVerify {
			config = config.Clone()
			config.ServerName, _, _ = net.SplitHostPort(addr) //nolint:errcheck // then TLS says so
		}
		t := tls.Client(nc, config)
		if err := t.HandshakeContext(ctx); err != nil {
			nc.Close() //nolint:errcheck // the handshake's error counts
			return nil, fmt.Errorf("connect to %s: TLS handshake: %w", addr, err)
		}
		c.nc = t
		c.in.from(t)
	}
	c.mu.opened = true // nobody else has it yet
	if err := cl.ep.add(c); err != nil {
		c.shut(err)
		return nil, fmt.Errorf("connect to %s: %w", addr, err)
	}
	return c, nil
}

// drop forgets d unless another connection has taken its place.
func (cl *Client) drop(addr string, d *dialled) {
	cl.mu.Lock()
	if cl.mu.conns[addr] == d {
		delete(cl.mu.conns, addr)
	}
	cl.mu.Unlock()
}

// Stats returns figures of this moment.
func (cl *Client) Stats() Stats { return cl.ep.stats() }

// Close closes all connections and waits for what runs on them. It may be
// called more than once.
func (cl *Client) Close() error {
	cl.mu.Lock()
	cl.mu.closed = true
	cl.mu.Unlock()
	cl.ep.closeAll(ErrClosed)
	cl.ep.wait()
	return nil
}

// IsTimeout reports whether err says that there was no answer in time.
func IsTimeout(err error) bool {
	if errors.Is(err, context.DeadlineExceeded) {
		return true
	}
	t, ok := errors.AsType[net.Error](err)
	return ok && t.Timeout()
}
