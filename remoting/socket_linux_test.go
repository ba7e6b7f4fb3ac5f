package remoting

import (
	"bytes"
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

// there waits until n bytes have arrived that nobody has read.
func there(t *testing.T, ours *net.TCPConn, n int) {
	t.Helper()
	raw, err := ours.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(patience); ; {
		var got int
		cerr := raw.Control(func(fd uintptr) { got, err = unix.IoctlGetInt(int(fd), unix.TIOCINQ) })
		if err := errors.Join(cerr, err); err != nil {
			t.Fatal(err)
		}
		if got >= n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d of %d bytes arrive", got, n)
		}
	}
}

const testCrowd = 10_000

// crowded returns a pair of connections and a socket for one of them that waits for
// testCrowd bytes, as long as it takes. waits has the bytes that each wait is for,
// when it has begun.
func crowded(t *testing.T) (s *socket, ours, theirs *net.TCPConn, waits chan int) {
	t.Helper()
	ours, theirs = tcpPair(t)
	s, waits = newSocket(ours), make(chan int, 100)
	s.time = time.Hour
	s.onWait = func(want int) { waits <- want }
	s.sawMany(2 * testCrowd)
	return s, ours, theirs, waits
}

type readResult struct {
	n      int
	waited bool
	err    error
}

// reading reads in the background.
func reading(s *socket, crowd bool) <-chan readResult {
	done := make(chan readResult, 1)
	go func() {
		n, waited, err := s.read(make([]byte, 2*testCrowd), crowd)
		done <- readResult{n, waited, err}
	}()
	return done
}

// wantWait fails the test unless the next wait is for n bytes.
func wantWait(t *testing.T, waits chan int, n int) {
	t.Helper()
	if got := receive(t, waits, "wait"); got != n {
		t.Fatalf("the reader waits for %d bytes, want %d", got, n)
	}
}

func write(t *testing.T, theirs *net.TCPConn, n int) {
	t.Helper()
	if _, err := theirs.Write(make([]byte, n)); err != nil {
		t.Fatal(err)
	}
}

func wantRead(t *testing.T, done <-chan readResult, want readResult) {
	t.Helper()
	if r := receive(t, done, "read"); r != want {
		t.Fatalf("read %v, want %v", r, want)
	}
}

// TestSocketPlain: what is there is read at once, and otherwise the first byte ends
// the wait, unless it is for a crowd.
func TestSocketPlain(t *testing.T) {
	s, ours, theirs, waits := crowded(t)
	for range 10 {
		for _, crowd := range []bool{false, true} {
			write(t, theirs, 1)
			there(t, ours, 1)
			wantRead(t, reading(s, crowd), readResult{1, false, nil})
		}
		done := reading(s, false)
		wantWait(t, waits, 1)
		write(t, theirs, 1)
		wantRead(t, done, readResult{1, true, nil})
	}
	theirs.Close() //nolint:errcheck // on purpose
	for _, crowd := range []bool{false, true} {
		if r := receive(t, reading(s, crowd), "end"); r.n != 0 || r.err != io.EOF {
			t.Errorf("crowd %v: %v at the end", crowd, r)
		}
	}
}

// TestSocketCrowd: what is less than a crowd does not end the wait for one.
func TestSocketCrowd(t *testing.T) {
	s, ours, theirs, waits := crowded(t)
	for range 10 {
		done := reading(s, true)
		wantWait(t, waits, testCrowd)
		write(t, theirs, testCrowd-1)
		there(t, ours, testCrowd-1)
		write(t, theirs, 1)
		wantRead(t, done, readResult{testCrowd, false, nil})
		// Back to a byte, and to a crowd again.
		done = reading(s, false)
		wantWait(t, waits, 1)
		write(t, theirs, 1)
		wantRead(t, done, readResult{1, true, nil})
	}
	// No time limit is left from a crowd that came in time.
	s.time = 10 * time.Millisecond
	for end := time.Now().Add(patience); ; {
		done := reading(s, true)
		wantWait(t, waits, testCrowd)
		write(t, theirs, testCrowd)
		if r := receive(t, done, "crowd"); r == (readResult{testCrowd, false, nil}) {
			break
		}
		// On a busy machine it may be late.
		if time.Now().After(end) {
			t.Fatal("no crowd comes in time")
		}
		s, _, theirs, waits = crowded(t)
		s.time = 10 * time.Millisecond
	}
	time.Sleep(s.time)
	done := reading(s, false)
	wantWait(t, waits, 1)
	write(t, theirs, 1)
	wantRead(t, done, readResult{1, true, nil})
}

// TestSocketVain: when requests that make no crowd have waited twice, none is waited
// for, for a while. A wait during which nothing came does not count.
func TestSocketVain(t *testing.T) {
	s, ours, theirs, waits := crowded(t)
	s.time = -1
	for range 10 {
		done := reading(s, true)
		wantWait(t, waits, testCrowd)
		wantWait(t, waits, 1)
		write(t, theirs, 1)
		wantRead(t, done, readResult{1, true, nil})
	}
	s.time = time.Hour
	vain := func() {
		t.Helper()
		done := reading(s, true)
		wantWait(t, waits, testCrowd)
		write(t, theirs, 1)
		there(t, ours, 1)
		if err := ours.SetReadDeadline(time.Now()); err != nil { // the hour is over
			t.Fatal(err)
		}
		wantRead(t, done, readResult{1, true, nil})
	}
	crowd := func() {
		t.Helper()
		done := reading(s, true)
		wantWait(t, waits, testCrowd)
		write(t, theirs, testCrowd)
		wantRead(t, done, readResult{testCrowd, false, nil})
	}
	for range 3 { // not in a row
		vain()
		crowd()
	}
	vain()
	write(t, theirs, 1) // this is none
	there(t, ours, 1)
	wantRead(t, reading(s, true), readResult{1, false, nil})
	vain()
	for range 2 {
		done := reading(s, true)
		wantWait(t, waits, 1)
		write(t, theirs, 1)
		wantRead(t, done, readResult{1, true, nil})
		s.sawMany(2 * testCrowd)
	}
	s.rest = time.Now().Add(-1) // the while is over
	s.sawMany(2 * testCrowd)
	crowd()
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
			for _, crowd := range []bool{false, true} {
				s, ours, theirs, waits := crowded(t)
				done := reading(s, crowd)
				wantWait(t, waits, map[bool]int{false: 1, true: testCrowd}[crowd])
				if err := end.end(ours, theirs); err != nil {
					t.Fatal(err)
				}
				if r := receive(t, done, "end"); r.n != 0 || !errors.Is(r.err, end.want) {
					t.Errorf("crowd %v: ended with %v, want %v", crowd, r, end.want)
				}
			}
		})
	}
	if newSocket(struct{ io.Reader }{}) != nil {
		t.Error("a socket of what is none")
	}
}

// TestConnCrowd: the reader of a connection waits for a crowd when many requests
// have been there at once, but never in the middle of a frame.
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
	p := dialRaw(t, serve(t, s))
	defer close(gate) // a handler may wait there when the test fails
	waits := make(chan int, 100)
	echo := request(codeEcho, 0, "")
	// The reader stops at a slow request, so that what is sent meanwhile is there
	// when it goes on.
	together := func(n int) {
		t.Helper()
		p.send(request(slow, 0, ""))
		c := receive(t, at, "request")
		c.in.sock.time = time.Hour // it belongs to the handler now
		c.in.sock.onWait = func(want int) { waits <- want }
		p.send(bytes.Repeat(echo, n))
		there(t, c.raw.(*net.TCPConn), n*len(echo))
		gate <- struct{}{}
		for range 1 + n {
			p.read()
		}
	}
	together(busyFrames)
	wantWait(t, waits, 1)
	together(manyFrames)
	crowd := manyFrames * len(echo) / 2
	wantWait(t, waits, crowd)
	frame := request(codeEcho, 0, strings.Repeat("x", crowd))
	for _, cut := range []int{crowd, prefixLen / 2} {
		p.send(bytes.Repeat(echo, manyFrames), frame[:cut])
		for range manyFrames {
			p.read()
		}
		wantWait(t, waits, 1)
		p.send(frame[cut:])
		p.read()
		wantWait(t, waits, 1) // not busy
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
