package remoting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func tcpPair(t *testing.T) (ours, theirs *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // its connection lives on
	nc, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	other, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		nc.Close()    //nolint:errcheck // the end
		other.Close() //nolint:errcheck // the end
	})
	return other.(*net.TCPConn), nc.(*net.TCPConn)
}

// lowWater returns how much has to arrive on a connection before its reader
// hears of it.
func lowWater(t *testing.T, c *net.TCPConn) (n int) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	err = raw.Control(func(fd uintptr) {
		if n, err = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVLOWAT); err != nil {
			t.Error(err)
		}
	})
	if err != nil {
		t.Error(err)
	}
	return n
}

// TestSocket: a busy socket is quiet until its reader has to wait, and a single
// byte wakes it then.
func TestSocket(t *testing.T) {
	ours, theirs := tcpPair(t)
	s := newSocket(ours)
	write := func() {
		if _, err := theirs.Write([]byte("x")); err != nil {
			t.Error(err)
		}
	}
	p := make([]byte, 10)
	for _, busy := range []bool{false, true} {
		write()
		for n := 0; n == 0; { // it may not have arrived at once
			var err error
			if n, _, err = s.read(p, busy); err != nil || n > 1 {
				t.Fatal(n, err)
			}
		}
		if got := lowWater(t, ours); got > 1 && !(busy && got == quietBytes) {
			t.Errorf("busy %v: low water mark %d", busy, got)
		}
	}
	for range 100 {
		write()
		if n, waited, err := s.read(p, true); err != nil || n != 1 || !waited && lowWater(t, ours) != quietBytes {
			t.Fatal(n, waited, err)
		}
		done := make(chan error, 1)
		go func() {
			n, _, err := s.read(p, true)
			if err == nil && n != 1 {
				err = fmt.Errorf("%d bytes", n)
			}
			done <- err
		}()
		for end := time.Now().Add(patience); lowWater(t, ours) > 1; {
			if time.Now().After(end) {
				t.Fatal("the reader does not wait")
			}
		}
		write()
		if err := receive(t, done, "byte"); err != nil {
			t.Fatal(err)
		}
	}
	theirs.Close() //nolint:errcheck // on purpose
	if n, _, err := s.read(p, true); n != 0 || err != io.EOF {
		t.Errorf("%d bytes, %v at the end", n, err)
	}
}

// TestSocketClosed: a reader that waits hears of it when its connection is closed
// by us, and when the peer resets it.
func TestSocketClosed(t *testing.T) {
	for name, end := range map[string]struct {
		end  func(ours, theirs *net.TCPConn) error
		want error
	}{
		"ours":   {func(ours, _ *net.TCPConn) error { return ours.Close() }, net.ErrClosed},
		"theirs": {func(_, theirs *net.TCPConn) error { return theirs.Close() }, io.EOF},
		"reset": {func(_, theirs *net.TCPConn) error {
			return errors.Join(theirs.SetLinger(0), theirs.Close())
		}, unix.ECONNRESET},
	} {
		t.Run(name, func(t *testing.T) {
			ours, theirs := tcpPair(t)
			s := newSocket(ours)
			if _, err := theirs.Write([]byte("x")); err != nil {
				t.Fatal(err)
			}
			done := make(chan error, 1)
			go func() {
				var err error
				for err == nil {
					_, _, err = s.read(make([]byte, 1), true)
				}
				done <- err
			}()
			if err := end.end(ours, theirs); err != nil {
				t.Fatal(err)
			}
			if err := receive(t, done, "end"); !errors.Is(err, end.want) {
				t.Errorf("ended with %v, want %v", err, end.want)
			}
		})
	}
	if newSocket(struct{ io.Reader }{}) != nil {
		t.Error("a socket of what is none")
	}
}

// TestConnIsQuiet: a connection on which many requests come one after the other is
// quiet, and not before.
func TestConnIsQuiet(t *testing.T) {
	const slow = codeOnce
	at, gate := make(chan *Conn), make(chan struct{})
	m := NewMux()
	m.Handle(func(context.Context, *Conn, *Command) (*Command, error) { return NewResponse(CodeSuccess, ""), nil }, codeEcho)
	m.Handle(func(_ context.Context, c *Conn, _ *Command) (*Command, error) {
		at <- c
		<-gate
		return NewResponse(CodeSuccess, ""), nil
	}, slow)
	s, err := NewServer(ServerOptions{Options: Options{Mux: m, Inline: func(*Command) bool { return true }}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	p := dialRaw(t, l.Addr().String())
	// The reader stops at each slow request, so that what is sent meanwhile is
	// there when it goes on.
	for i, crowd := range []int{1, busyFrames, 1} {
		for range crowd - 1 {
			p.send(request(codeEcho, 0, ""))
		}
		p.send(request(slow, 0, ""))
		if i > 0 {
			gate <- struct{}{}
		}
		c := receive(t, at, "request")
		if got, quiet := lowWater(t, c.raw.(*net.TCPConn)), i == 2; (got == quietBytes) != quiet {
			t.Errorf("crowd %d: low water mark %d", i, got)
		}
	}
	close(gate)
	for range busyFrames + 2 {
		p.read()
	}
	s.Close() //nolint:errcheck // never fails
	if err := receive(t, served, "the end of Serve"); err != nil {
		t.Error(err)
	}
}

// TestBusyThenIdle: requests are answered whether they come in crowds or alone,
// one after the other.
func TestBusyThenIdle(t *testing.T) {
	s := startServer(t, ServerOptions{})
	p := dialRaw(t, s.addr)
	for round := range int32(100) {
		crowd := 2*busyFrames + round%busyFrames
		for i := range crowd {
			p.send(request([]int32{codeEcho, codeOnce}[(i+round)%2], i, "x"))
		}
		for range crowd {
			p.read()
		}
		for i := range round % 3 {
			p.send(request(codeEcho, i, "alone"))
			if c := p.read(); string(c.Body) != "alone" {
				t.Fatal(c)
			}
		}
	}
}
