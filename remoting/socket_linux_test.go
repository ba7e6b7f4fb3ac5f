package remoting

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
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

// arrive writes n bytes and waits until they are there.
func arrive(t *testing.T, ours, theirs *net.TCPConn, n int) {
	t.Helper()
	if _, err := theirs.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; {
		var there int
		if err := raw.Control(func(fd uintptr) { there, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) }); err != nil {
			t.Fatal(err)
		}
		if err != nil {
			t.Fatal(err)
		}
		if there >= n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d bytes arrive", there, n)
		}
	}
}

// crowded returns a pair of connections and a socket that has seen 2*minCrowd bytes
// at once, and waits for half of that as long as it takes.
func crowded(t *testing.T) (s *socket, ours, theirs *net.TCPConn) {
	t.Helper()
	ours, theirs = tcpPair(t)
	s = newSocket(ours)
	s.time = time.Hour
	arrive(t, ours, theirs, 2*minCrowd)
	if n, waited, err := s.read(make([]byte, 4*minCrowd), true); n != 2*minCrowd || waited || err != nil {
		t.Fatal(n, waited, err)
	}
	if s.crowd != minCrowd {
		t.Fatalf("a crowd are %d bytes", s.crowd)
	}
	return s, ours, theirs
}

type readResult struct {
	n      int
	waited bool
	err    error
}

// reading reads in the background and returns when the reader wants to hear of
// mark bytes; soon it waits for them.
func reading(t *testing.T, s *socket, ours *net.TCPConn, busy bool, mark int) <-chan readResult {
	t.Helper()
	done := make(chan readResult, 1)
	go func() {
		n, waited, err := s.read(make([]byte, 4*minCrowd), busy)
		done <- readResult{n, waited, err}
	}()
	for end := time.Now().Add(patience); max(lowWater(t, ours), 1) != mark; {
		if time.Now().After(end) {
			t.Fatalf("the reader waits for %d bytes, want %d", lowWater(t, ours), mark)
		}
	}
	return done
}

// TestSocketPlain: the first byte ends the wait for a peer that has not been seen to
// send much at a time, or has paused since.
func TestSocketPlain(t *testing.T) {
	ours, theirs := tcpPair(t)
	s := newSocket(ours)
	for i := range 100 {
		if i == 50 {
			arrive(t, ours, theirs, 2*minCrowd)
			if n, _, err := s.read(make([]byte, 4*minCrowd), true); n != 2*minCrowd || err != nil {
				t.Fatal(n, err)
			}
		}
		done := reading(t, s, ours, i < 50, 1)
		if _, err := theirs.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if r := receive(t, done, "byte"); r.n != 1 || r.err != nil {
			t.Fatal(r)
		}
	}
	theirs.Close() //nolint:errcheck // on purpose
	for _, busy := range []bool{false, true} {
		if n, _, err := s.read(make([]byte, 1), busy); n != 0 || err != io.EOF {
			t.Errorf("%d bytes, %v at the end", n, err)
		}
	}
}

// TestSocketCrowd: what is less than a crowd does not end the wait for one.
func TestSocketCrowd(t *testing.T) {
	for end := time.Now().Add(patience); ; {
		s, ours, theirs := crowded(t)
		done := reading(t, s, ours, true, minCrowd)
		arrive(t, ours, theirs, minCrowd-1)
		if _, err := theirs.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		r := receive(t, done, "crowd")
		if r == (readResult{minCrowd, false, nil}) {
			return
		}
		// The bytes were there before the reader waited.
		if r.err != nil || time.Now().After(end) {
			t.Fatal(r)
		}
	}
}

// TestSocketVain: when requests that make no crowd have waited twice, none is waited
// for. A wait during which nothing came does not count.
func TestSocketVain(t *testing.T) {
	s, ours, theirs := crowded(t)
	byteTo := func(done <-chan readResult) {
		t.Helper()
		time.Sleep(time.Millisecond) // so that the reader waits already
		if _, err := theirs.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if r := receive(t, done, "byte"); r.n != 1 || r.err != nil {
			t.Fatal(r)
		}
	}
	s.time = time.Nanosecond
	for end := time.Now().Add(patience); ; s.crowd, s.vain = minCrowd, 0 {
		if byteTo(reading(t, s, ours, true, 1)); s.crowd == minCrowd && s.vain == 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatal("nothing came, and that was in vain")
		}
	}
	s.time = 10 * time.Millisecond // in which the byte comes, unless the machine is busy
	for end := time.Now().Add(patience); s.crowd > 0; {
		if s.vain > 1 || time.Now().After(end) {
			t.Fatalf("%d waits in vain", s.vain)
		}
		byteTo(reading(t, s, ours, true, minCrowd))
	}
	// No time limit is left from there.
	done := reading(t, s, ours, true, 1)
	time.Sleep(2 * s.time)
	byteTo(done)
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
			for _, busy := range []bool{false, true} {
				s, ours, theirs := crowded(t)
				done := reading(t, s, ours, busy, map[bool]int{false: 1, true: minCrowd}[busy])
				if err := end.end(ours, theirs); err != nil {
					t.Fatal(err)
				}
				if r := receive(t, done, "end"); r.n != 0 || !errors.Is(r.err, end.want) {
					t.Errorf("busy %v: ended with %v, want %v", busy, r, end.want)
				}
			}
		})
	}
	if newSocket(struct{ io.Reader }{}) != nil {
		t.Error("a socket of what is none")
	}
}

// TestConnCrowd: the reader of a connection waits for a crowd when many requests
// have come one after the other, but never in the middle of a frame.
func TestConnCrowd(t *testing.T) {
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
	waitsFor := func(c *Conn, n int) {
		t.Helper()
		for end := time.Now().Add(patience); max(lowWater(t, c.raw.(*net.TCPConn)), 1) != n; {
			if time.Now().After(end) {
				t.Fatalf("the reader waits for %d bytes, want %d", lowWater(t, c.raw.(*net.TCPConn)), n)
			}
		}
	}
	// The reader stops at the slow request, so that what is sent meanwhile is there
	// when it goes on.
	p.send(request(slow, 0, ""))
	c := receive(t, at, "request")
	c.in.sock.crowd, c.in.sock.time = minCrowd, time.Hour // it belongs to the handler now
	for range busyFrames - 1 {
		p.send(request(codeEcho, 0, ""))
	}
	gate <- struct{}{}
	for range busyFrames {
		p.read()
	}
	waitsFor(c, minCrowd)
	frame := request(codeEcho, 0, strings.Repeat("x", minCrowd))
	p.send(frame[:minCrowd])
	waitsFor(c, 1)
	p.send(frame[minCrowd:])
	p.read()
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
