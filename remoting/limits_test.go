package remoting

import (
	"context"
	"errors"
	"maps"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestHeldLimit: beyond the bound of held requests the answer is SYSTEM_BUSY.
func TestHeldLimit(t *testing.T) {
	t.Run("connection", func(t *testing.T) { testHeldLimit(t, Limits{MaxHeld: 3}) })
	t.Run("total", func(t *testing.T) { testHeldLimit(t, Limits{MaxHeldTotal: 3}) })
}

func testHeldLimit(t *testing.T, limits Limits) {
	s := startServer(t, ServerOptions{Options: Options{Limits: limits}})
	p := dialRaw(t, s.addr)
	for i := range int32(3) {
		p.send(request(codeHold, i, ""))
	}
	s.waitFor(t, "three to be held", func(st Stats) bool { return st.Held == 3 })
	p.send(request(codeHold, 10, ""))
	if got := p.read(); got.Opaque != 10 || got.Code != CodeSystemBusy {
		t.Errorf("got %v", got)
	}
	c := receive(t, s.conns, "connection")
	if err := c.Reply(receive(t, s.held, "request"), NewResponse(CodeSuccess, "")); err != nil {
		t.Fatal(err)
	}
	p.read()
	p.send(request(codeEcho, 11, ""))
	if got := p.read(); got.Opaque != 11 || got.Code != CodeSuccess {
		t.Errorf("got %v", got)
	}
	p.nc.Close() //nolint:errcheck // with two requests held
	receive(t, s.ended, "close")
	if n := s.ep.held.Load(); n != 0 {
		t.Errorf("%d requests are held", n)
	}
}

// TestBackPressure: no more than MaxInFlight requests run, the connection is
// not read meanwhile, and another one is not affected.
func TestBackPressure(t *testing.T) {
	const limit, n = 4, 50
	s := startServer(t, ServerOptions{Options: Options{Limits: Limits{MaxInFlight: limit}}})
	p, other := dialRaw(t, s.addr), dialRaw(t, s.addr)
	written := make(chan struct{})
	go func() {
		defer close(written)
		body := strings.Repeat("x", 1<<20)
		for i := range int32(n) {
			p.nc.Write(request(codeWait, i, body)) //nolint:errcheck // then the answers are missing
		}
	}()
	s.waitFor(t, "the bound", func(st Stats) bool { return st.InFlight == limit })
	other.send(request(codeEcho, 1, "hello"))
	if got := other.read(); string(got.Body) != "hello" {
		t.Errorf("got %v", got)
	}
	select {
	case <-written:
		t.Error("50 MB were read although nothing was done with them")
	case <-time.After(50 * time.Millisecond):
	}
	if calls := s.calls.Load(); calls != limit {
		t.Errorf("%d handlers ran, want %d", calls, limit)
	}
	if st := s.Stats(); st.RequestBytes > (limit+2)<<20 {
		t.Errorf("%d bytes of requests", st.RequestBytes)
	}
	close(s.gate)
	for range n {
		p.read()
	}
	<-written
}

// TestRequestBudget: requests of all connections together stay within
// MaxRequestTotal, and all are served in the end.
func TestRequestBudget(t *testing.T) {
	const budget = 4 << 20
	s := startServer(t, ServerOptions{Options: Options{Limits: Limits{MaxRequestTotal: budget}}})
	var highest atomic.Int64
	stop := make(chan struct{})
	var watch sync.WaitGroup
	watch.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				highest.Store(max(highest.Load(), s.ep.requests.used.Load()))
			}
		}
	})
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			cl := NewClient(ClientOptions{Timeout: patience})
			defer cl.Close() //nolint:errcheck // never fails
			size := 1 << 20
			if i == 0 {
				size = 6 << 20 // more than the budget: alone
			}
			for range 3 {
				resp, err := cl.Invoke(context.Background(), s.addr, &Command{Code: codeEcho, Body: make([]byte, size)})
				if err != nil || len(resp.Body) != size {
					t.Errorf("%v", err)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	watch.Wait()
	if got := highest.Load(); got > budget+6<<20+1<<16 {
		t.Errorf("%d bytes were in use, the bound is %d and one frame", got, budget)
	}
}

// TestSlowReader: a peer that asks and never reads is not read any more at a
// quarter of MaxQueued, and closed when nothing moves for the write timeout.
func TestSlowReader(t *testing.T) {
	const queued = 4 << 20
	s := startServer(t, ServerOptions{Options: Options{Limits: Limits{MaxQueued: queued, WriteTimeout: 200 * time.Millisecond}}})
	p := dialRaw(t, s.addr)
	go func() {
		for i := int32(0); ; i++ {
			if _, err := p.nc.Write(request(codeBig, i, "")); err != nil {
				return
			}
		}
	}()
	var highest int64
	for deadline := time.Now().Add(patience); ; {
		highest = max(highest, s.Stats().QueuedBytes)
		select {
		case err := <-s.ended:
			if !errors.Is(err, ErrSlowReader) {
				t.Errorf("closed for %v", err)
			}
			if highest > queued+bigBody {
				t.Errorf("%d bytes were queued, the bound is %d", highest, queued)
			}
			return
		default:
		}
		if time.Now().After(deadline) {
			t.Fatalf("not closed: %+v", s.Stats())
		}
	}
}

// TestSlowReaderOfRequests: what the server sends on its own to a peer that
// never reads is bounded, too, and others are served meanwhile.
func TestSlowReaderOfRequests(t *testing.T) {
	const queued = 1 << 20
	s := startServer(t, ServerOptions{Options: Options{Limits: Limits{MaxQueued: queued}}})
	dialRaw(t, s.addr).send(request(codeMute, 1, ""))
	c := receive(t, s.conns, "connection")
	other := dialRaw(t, s.addr)
	var err error
	sent := 0
	for ; err == nil && sent < 10_000; sent++ {
		err = c.InvokeOneway(&Command{Code: 40, Body: make([]byte, 10_000)})
		if sent%100 == 0 {
			other.send(request(codeEcho, 1, ""))
			other.read()
		}
	}
	if !errors.Is(err, ErrSlowReader) {
		t.Errorf("%d requests, error %v", sent, err)
	}
	if err := receive(t, s.ended, "close"); !errors.Is(err, ErrSlowReader) {
		t.Errorf("closed for %v", err)
	}
	if err := c.InvokeOneway(&Command{Code: 40}); !errors.Is(err, ErrClosed) {
		t.Errorf("after the close: %v", err)
	}
}

// TestQueuedTotal: over all connections the bytes waiting are bounded.
func TestQueuedTotal(t *testing.T) {
	const total = 2 << 20
	s := startServer(t, ServerOptions{Options: Options{Limits: Limits{MaxQueuedTotal: total}}})
	var conns []*Conn
	for range 4 {
		dialRaw(t, s.addr).send(request(codeMute, 1, ""))
		conns = append(conns, receive(t, s.conns, "connection"))
	}
	closed := 0
	for i := 0; closed < 2 && i < 10_000; i++ {
		if err := conns[i%len(conns)].InvokeOneway(&Command{Code: 40, Body: make([]byte, 20_000)}); errors.Is(err, ErrSlowReader) {
			closed++
		}
		if got := s.Stats().QueuedBytes; got > total+100_000 {
			t.Fatalf("%d bytes are queued", got)
		}
	}
	if closed < 2 {
		t.Error("no connection was closed")
	}
}

// TestQueuedTotalAnswers: when the bound over all connections is reached, a
// connection on which nothing waits gets no long answer any more, but a short
// one, and a long one again when there is room.
func TestQueuedTotalAnswers(t *testing.T) {
	const total = 1 << 20
	s := startServer(t, ServerOptions{Options: Options{Limits: Limits{MaxQueuedTotal: total}}})
	s.ep.queued.Add(total) // as if others waited
	p := dialRaw(t, s.addr)
	long := strings.Repeat("x", 20_000)
	p.send(request(codeEcho, 1, long))
	if c := p.read(); c.Code != CodeSystemBusy || len(c.Body) > 0 || c.Opaque != 1 {
		t.Errorf("answer %v", c)
	}
	p.send(request(codeEcho, 2, "short"))
	if c := p.read(); c.Code != CodeSuccess || string(c.Body) != "short" {
		t.Errorf("answer %v", c)
	}
	s.ep.queued.Add(-total)
	p.send(request(codeEcho, 3, long))
	if c := p.read(); string(c.Body) != long {
		t.Errorf("answer %v", c)
	}
}

// A gatedListener's connections hold back the return of Write, although the
// peer has the bytes.
type gatedListener struct {
	net.Listener
	gate chan struct{}
}

type gatedConn struct {
	net.Conn
	gate chan struct{}
}

func (l gatedListener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	return gatedConn{nc, l.gate}, err
}

func (c gatedConn) Write(b []byte) (int, error) {
	n, err := c.Conn.Write(b)
	<-c.gate
	return n, err
}

// TestQueuedTotalSparesReaders: a peer that has taken all it was sent stays
// connected when the bound over all connections is reached, although the write
// of the last answer has not returned yet.
func TestQueuedTotalSparesReaders(t *testing.T) {
	const total = 1 << 20
	handled := make(chan struct{}, 10)
	gate := make(chan struct{})
	s := newTestServer(t, ServerOptions{Options: Options{
		Limits:  Limits{MaxQueuedTotal: total},
		Observe: func(*Conn, *Command, int32, time.Duration) { handled <- struct{}{} },
	}})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(gatedListener{l, gate}) }()
	s.ep.queued.Add(total) // as if others waited
	p := dialRaw(t, l.Addr().String())
	p.send(request(codeEcho, 1, "short"))
	p.read()
	receive(t, handled, "answer")
	p.send(request(codeEcho, 2, "short"))
	p.send(request(codeEcho, 3, strings.Repeat("x", copiedBody+1)))
	receive(t, handled, "second answer")
	receive(t, handled, "third answer")
	close(gate)
	got := map[int32]int32{}
	for range 2 {
		c := p.read()
		got[c.Opaque] = c.Code
	}
	if want := map[int32]int32{2: CodeSuccess, 3: CodeSystemBusy}; !maps.Equal(got, want) {
		t.Errorf("codes by opaque %v, want %v", got, want)
	}
	s.ep.queued.Add(-total)
	s.Close() //nolint:errcheck // never fails
	if err := receive(t, served, "the end of Serve"); err != nil {
		t.Error(err)
	}
}

func TestConnLimit(t *testing.T) {
	s := startServer(t, ServerOptions{Options: Options{Limits: Limits{MaxConns: 2}}})
	a, b := dialRaw(t, s.addr), dialRaw(t, s.addr)
	for _, p := range []*rawPeer{a, b} {
		p.send(request(codeEcho, 1, ""))
		p.read()
	}
	dialRaw(t, s.addr).closed()
	if st := s.Stats(); st.Conns != 2 || st.Refused != 1 {
		t.Errorf("%+v", st)
	}
	a.nc.Close() //nolint:errcheck // on purpose
	receive(t, s.ended, "close")
	s.waitFor(t, "room", func(st Stats) bool { return st.Conns == 1 })
	c := dialRaw(t, s.addr)
	c.send(request(codeEcho, 1, ""))
	c.read()
}

func TestLimitsValidate(t *testing.T) {
	for _, l := range []Limits{{MaxConns: -1}, {MaxRequestTotal: -1}, {FrameTimeout: -1}} {
		if _, err := NewServer(ServerOptions{Options: Options{Limits: l}}); err == nil || !strings.Contains(err.Error(), "negative") {
			t.Errorf("%+v: %v", l, err)
		}
	}
}
