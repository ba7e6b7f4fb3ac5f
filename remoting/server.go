package remoting

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"
)

// ServerOptions are the options of a Server.
type ServerOptions struct {
	Options

	// TLSRequired closes connections that do not use TLS. By default both
	// are served on the same port, told apart by their first byte.
	TLSRequired bool
	// Proxy says whether connections may begin with a PROXY preamble.
	Proxy ProxyMode
	// TrustedProxies are the networks whose preambles are believed; a
	// preamble from elsewhere closes the connection. nil: all.
	TrustedProxies []netip.Prefix
}

type acceptOptions struct {
	tlsRequired bool
	proxy       ProxyMode
	trusted     []netip.Prefix
}

// Validate reports options that contradict each other.
func (o ServerOptions) Validate() error {
	if o.TLSRequired && o.TLS == nil {
		return errors.New("remoting: TLS is required, but there is no configuration for it")
	}
	return o.Limits.validate()
}

// A Server answers requests on any number of listeners.
type Server struct {
	ep *endpoint

	mu struct {
		sync.Mutex
		closed    bool
		listeners map[net.Listener]struct{}
	}
	accepting sync.WaitGroup
}

// NewServer returns a server that serves nothing yet. The caller has to call
// Shutdown or Close.
func NewServer(opts ServerOptions) (*Server, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	s := &Server{ep: newEndpoint(opts.Options)}
	s.ep.accept = acceptOptions{opts.TLSRequired, opts.Proxy, opts.TrustedProxies}
	s.mu.listeners = make(map[net.Listener]struct{})
	return s, nil
}

// Bounds of the pause after an accept that failed.
const (
	minAcceptPause = 5 * time.Millisecond
	maxAcceptPause = time.Second
)

// Serve accepts connections on l until l fails for good or the server shuts
// down, which closes l and is no error. It may be called for several listeners
// at once.
func (s *Server) Serve(l net.Listener) error {
	s.mu.Lock()
	if s.mu.closed {
		s.mu.Unlock()
		l.Close() //nolint:errcheck // not ours to use
		return ErrClosed
	}
	s.mu.listeners[l] = struct{}{}
	s.accepting.Add(1)
	s.mu.Unlock()
	defer s.accepting.Done()
	defer s.forget(l)
	for pause := time.Duration(0); ; {
		nc, err := l.Accept()
		if err == nil {
			pause = 0
			s.ServeConn(nc)
			continue
		}
		if s.isClosed() {
			return nil
		}
		if t, ok := errors.AsType[interface {
			error
			Temporary() bool
		}](err); !ok || !t.Temporary() {
			return fmt.Errorf("accept on %s: %w", l.Addr(), err)
		}
		// For instance too many open files: some will be closed.
		pause = min(max(2*pause, minAcceptPause), maxAcceptPause)
		s.ep.log.Warn("accept failed", "listener", l.Addr(), "pause", pause, "err", err)
		select {
		case <-time.After(pause):
		case <-s.ep.stop:
		}
	}
}

func (s *Server) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mu.closed
}

func (s *Server) forget(l net.Listener) {
	s.mu.Lock()
	delete(s.mu.listeners, l)
	s.mu.Unlock()
	l.Close() //nolint:errcheck // its connections live on
}

// ServeConn serves a connection that the caller has accepted, and returns at
// once. The connection belongs to the server then.
func (s *Server) ServeConn(nc net.Conn) {
	c := newConn(s.ep, nc)
	if err := s.ep.add(c); err != nil {
		s.ep.log.Debug("connection refused", "remote", c.RemoteAddr(), "err", err)
		c.shut(err)
		return
	}
	go c.serve()
}

// Conns returns the open connections, their handshakes over, in no particular
// order.
func (s *Server) Conns() []*Conn {
	return slices.DeleteFunc(s.ep.all(), func(c *Conn) bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		return !c.mu.opened || c.mu.closed
	})
}

// Stats returns figures of this moment.
func (s *Server) Stats() Stats { return s.ep.stats() }

// stopAccepting closes the listeners.
func (s *Server) stopAccepting() {
	s.mu.Lock()
	s.mu.closed = true
	for l := range s.mu.listeners {
		l.Close() //nolint:errcheck // Serve ends, whatever it says
	}
	s.mu.Unlock()
}

// Shutdown ends the server gracefully: it stops accepting, answers new requests
// SERVICE_NOT_AVAILABLE, waits until the running and the held ones are answered
// and the answers written, and closes the connections. When ctx ends first, it
// closes them at once and returns ctx's error; handlers may still run then,
// and Close waits for them.
//
// Who holds requests should answer them first, or they are waited for.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stopAccepting()
	err := s.ep.drain(ctx)
	s.accepting.Wait()
	return err
}

// Close closes listeners and connections at once and waits for handlers, whose
// contexts end. It may be called more than once.
func (s *Server) Close() error {
	s.stopAccepting()
	s.ep.closeAll(ErrClosed)
	s.accepting.Wait()
	s.ep.wait()
	return nil
}

// tlsHandshake is the first byte of a TLS connection. A frame begins with 0,
// since its length is below 16 MiB.
const tlsHandshake = 0x16

// open looks at the first bytes of an accepted connection: PROXY preamble, TLS,
// or a frame already.
func (c *Conn) open() error {
	if c.client {
		return nil
	}
	if err := c.in.fill(1); err != nil {
		return err
	}
	c.handshake.Store(c.ep.clock.Load())
	defer c.handshake.Store(0)
	if err := c.openProxy(); err != nil {
		return err
	}
	if err := c.in.fill(1); err != nil {
		return err
	}
	if c.in.buffered()[0] != tlsHandshake {
		if c.ep.accept.tlsRequired {
			return frameErrorf("no TLS, which is required")
		}
		return nil
	}
	if c.ep.opts.TLS == nil {
		return frameErrorf("TLS, which is not configured")
	}
	prefix := append([]byte(nil), c.in.buffered()...)
	c.in.r = c.in.w
	t := tls.Server(&prefixConn{Conn: c.raw, prefix: prefix}, c.ep.opts.TLS)
	if err := t.HandshakeContext(c.ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	c.mu.Lock()
	c.nc = t
	c.mu.Unlock()
	c.in.from(t)
	c.active.Store(c.ep.clock.Load())
	return nil
}

func (c *Conn) openProxy() error {
	mode := c.ep.accept.proxy
	if mode == ProxyOff {
		return nil
	}
	if !mayBeProxy(c.in.buffered()[0]) {
		if mode == ProxyRequired {
			return frameErrorf("no PROXY preamble, which is required")
		}
		return nil
	}
	if !c.trusted() {
		return frameErrorf("PROXY preamble from %s, which is not trusted", c.RemoteAddr().Addr())
	}
	peer, err := c.in.readProxy()
	if err != nil {
		return noEOF(err)
	}
	if peer.IsValid() {
		c.setRemote(peer)
	}
	return nil
}

func (c *Conn) trusted() bool {
	if c.ep.accept.trusted == nil {
		return true
	}
	for _, p := range c.ep.accept.trusted {
		if p.Contains(c.RemoteAddr().Addr()) {
			return true
		}
	}
	return false
}
