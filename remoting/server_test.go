package remoting

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long a test waits for what has to come.
const patience = 20 * time.Second

// Codes of the test handlers.
const (
	codeEcho  int32 = 7001 // answers its fields and body
	codeFail  int32 = 7002 // fails with the error of field "kind"
	codePanic int32 = 7003
	codeMute  int32 = 7004 // answers nothing
	codeWait  int32 = 7005 // waits for the gate
	codeHold  int32 = 7006 // answers Later
	codeBig   int32 = 7007 // answers a large body
	codeOnce  int32 = 7008 // inline echo
)

// A testServer listens on loopback with handlers for the codes above.
type testServer struct {
	*Server
	addr  string
	gate  chan struct{}          // waited for by codeWait
	calls atomic.Int32           // of codeWait and codeMute
	held  chan *Command          // requests of codeHold
	conns chan *Conn             // those that connected
	ended chan error             // why connections closed
	last  atomic.Pointer[string] // remote address of the last echo
}

const bigBody = 64 << 10

func (s *testServer) mux() *Mux {
	m := NewMux()
	echo := func(_ context.Context, c *Conn, req *Command) (*Command, error) {
		addr := c.RemoteAddr().String()
		s.last.Store(&addr)
		resp := NewResponse(CodeSuccess, req.Remark)
		resp.Ext, resp.Body = req.Ext, req.Body
		return resp, nil
	}
	m.Handle(echo, codeEcho, codeOnce)
	m.Handle(func(_ context.Context, _ *Conn, req *Command) (*Command, error) {
		if req.Ext.Value("kind") == "coded" {
			return nil, Errorf(CodeNoPermission, "not you")
		}
		return nil, errors.New("broken")
	}, codeFail)
	m.Handle(func(context.Context, *Conn, *Command) (*Command, error) { panic("on purpose") }, codePanic)
	m.Handle(func(context.Context, *Conn, *Command) (*Command, error) {
		s.calls.Add(1)
		return nil, nil
	}, codeMute)
	m.Handle(func(ctx context.Context, _ *Conn, req *Command) (*Command, error) {
		s.calls.Add(1)
		select {
		case <-s.gate:
			return NewResponse(CodeSuccess, ""), nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}, codeWait)
	m.Handle(func(_ context.Context, _ *Conn, req *Command) (*Command, error) {
		s.held <- req
		return Later, nil
	}, codeHold)
	m.Handle(func(context.Context, *Conn, *Command) (*Command, error) {
		resp := NewResponse(CodeSuccess, "")
		resp.Body = make([]byte, bigBody)
		return resp, nil
	}, codeBig)
	return m
}

func newTestServer(t *testing.T, opts ServerOptions) *testServer {
	t.Helper()
	s := &testServer{
		gate: make(chan struct{}), held: make(chan *Command, 1<<16), conns: make(chan *Conn, 1<<10), ended: make(chan error, 1<<10),
	}
	opts.Mux = s.mux()
	opts.Inline = func(req *Command) bool { return req.Code == codeOnce }
	opts.OnConnect = func(c *Conn) {
		select {
		case s.conns <- c:
		default: // a test that does not look
		}
	}
	opts.OnClose = func(_ *Conn, err error) {
		select {
		case s.ended <- err:
		default:
		}
	}
	var err error
	if s.Server, err = NewServer(opts); err != nil {
		t.Fatal(err)
	}
	return s
}

func startServer(t *testing.T, opts ServerOptions) *testServer {
	t.Helper()
	s := newTestServer(t, opts)
	t.Cleanup(func() {
		if st := s.Stats(); st.QueuedBytes != 0 || st.RequestBytes != 0 || st.Conns != 0 || st.InFlight != 0 {
			t.Errorf("left over: %+v", st)
		}
	})
	s.addr = serve(t, s.Server)
	return s
}

// serve has s serve at an address of its own until the test ends.
func serve(t *testing.T, s *Server) (addr string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Close() //nolint:errcheck // never fails
		if err := receive(t, served, "the end of Serve"); err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return l.Addr().String()
}

func receive[T any](t *testing.T, ch <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-ch:
		return v
	case <-time.After(patience):
		t.Fatalf("no %s", what)
		panic("not reached")
	}
}

// A rawPeer is the other end of a connection, without any of our code.
type rawPeer struct {
	t   *testing.T
	nc  net.Conn
	buf []byte
}

func dialRaw(t *testing.T, addr string) *rawPeer {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() }) //nolint:errcheck // closed already, perhaps
	return &rawPeer{t: t, nc: nc}
}

func (p *rawPeer) send(frames ...[]byte) {
	p.t.Helper()
	p.nc.SetWriteDeadline(time.Now().Add(patience)) //nolint:errcheck // then the write fails
	if _, err := p.nc.Write(bytes.Join(frames, nil)); err != nil {
		p.t.Fatal(err)
	}
}

// next reads a frame, or returns why there is none.
func (p *rawPeer) next() (*Command, error) {
	p.nc.SetReadDeadline(time.Now().Add(patience)) //nolint:errcheck // then the read fails
	for {
		c, n, err := DecodeFrame(p.buf)
		if err == nil {
			c.Body = bytes.Clone(c.Body)
			p.buf = p.buf[n:]
			return c, nil
		}
		if !errors.Is(err, io.ErrUnexpectedEOF) {
			return nil, err
		}
		b := make([]byte, 64<<10)
		got, err := p.nc.Read(b)
		p.buf = append(p.buf, b[:got]...)
		if err != nil && got == 0 {
			return nil, err
		}
	}
}

func (p *rawPeer) read() *Command {
	p.t.Helper()
	c, err := p.next()
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// closed waits for the connection to be closed by the other side.
func (p *rawPeer) closed() {
	p.t.Helper()
	if c, err := p.next(); err == nil {
		p.t.Fatalf("got %v, want a closed connection", c)
	} else if t, ok := errors.AsType[net.Error](err); ok && t.Timeout() {
		p.t.Fatal("the connection was not closed")
	}
}

func request(code, opaque int32, body string) []byte {
	return mustFrame(&Command{Code: code, Opaque: opaque, Body: []byte(body)})
}

func mustFrame(c *Command) []byte {
	b, err := AppendFrame(nil, c)
	if err != nil {
		panic(err)
	}
	return b
}

func TestServerAnswers(t *testing.T) {
	s := startServer(t, ServerOptions{})
	for _, typ := range []HeaderType{HeaderJSON, HeaderBinary} {
		t.Run(typ.String(), func(t *testing.T) {
			for _, tt := range []struct {
				name string
				req  Command
				want Command
			}{
				{"echo", Command{Code: codeEcho, Ext: Fields{{"a", "b"}}, Body: []byte("x")}, Command{Ext: Fields{{"a", "b"}}, Body: []byte("x")}},
				{"inline", Command{Code: codeOnce, Body: []byte("y")}, Command{Body: []byte("y")}},
				{"error", Command{Code: codeFail}, Command{Code: CodeSystemError, Remark: "broken"}},
				{"error with a code", Command{Code: codeFail, Ext: Fields{{"kind", "coded"}}}, Command{Code: CodeNoPermission, Remark: "not you"}},
				{"panic", Command{Code: codePanic}, Command{Code: CodeSystemError, Remark: "internal error: on purpose"}},
				{"unknown code", Command{Code: 9999}, Command{Code: CodeRequestCodeNotSupported, Remark: " request type 9999 not supported"}},
			} {
				t.Run(tt.name, func(t *testing.T) {
					p := dialRaw(t, s.addr)
					tt.req.Header, tt.req.Opaque = typ, 4711
					tt.want.Header, tt.want.Opaque, tt.want.Flag, tt.want.Language, tt.want.Version = typ, 4711, FlagResponse, LanguageGo, CurrentVersion
					p.send(mustFrame(&tt.req))
					if diff := diffCommands(&tt.want, p.read()); diff != "" {
						t.Errorf("(-want +got):\n%s", diff)
					}
					// The same as oneway: no answer comes before that to what follows.
					tt.req.Flag = FlagOneway
					p.send(mustFrame(&tt.req), request(codeEcho, 1, ""))
					if got := p.read(); got.Opaque != 1 {
						t.Errorf("oneway was answered: %v", got)
					}
				})
			}
		})
	}
}

// TestNoAnswer: a handler without result is not answered, nor is an answer that
// nobody asked for.
func TestNoAnswer(t *testing.T) {
	s := startServer(t, ServerOptions{})
	p := dialRaw(t, s.addr)
	p.send(request(codeMute, 1, ""), mustFrame(&Command{Flag: FlagResponse, Opaque: 2, Body: make([]byte, 100_000)}), request(codeEcho, 3, ""))
	if got := p.read(); got.Opaque != 3 {
		t.Errorf("got %v", got)
	}
	if n := s.calls.Load(); n != 1 {
		t.Errorf("%d calls", n)
	}
}

// TestPipelining sends many requests at once; they run at the same time, and
// each is answered.
func TestPipelining(t *testing.T) {
	const n = 200
	s := startServer(t, ServerOptions{})
	p := dialRaw(t, s.addr)
	var frames [][]byte
	for i := range int32(n) {
		frames = append(frames, request(codeWait, i, strings.Repeat("x", int(i)*100)))
	}
	p.send(frames...)
	s.waitFor(t, "all requests to run", func(st Stats) bool { return st.InFlight == n })
	close(s.gate)
	seen := make(map[int32]bool)
	for range n {
		seen[p.read().Opaque] = true
	}
	if len(seen) != n {
		t.Errorf("%d different answers, want %d", len(seen), n)
	}
}

// waitFor looks at the figures of the server until they are right. There is no
// event for most of them that is not in the way of what is tested.
func (s *testServer) waitFor(t *testing.T, what string, ok func(Stats) bool) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); !ok(s.Stats()); {
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("waited in vain for %s: %+v", what, s.Stats())
		}
	}
}

// TestInline: pipelined requests of inline codes are answered in order.
func TestInline(t *testing.T) {
	s := startServer(t, ServerOptions{})
	p := dialRaw(t, s.addr)
	const n = 3000 // more than a read buffer
	var frames [][]byte
	for i := range int32(n) {
		frames = append(frames, request(codeOnce, i, "body"))
	}
	go p.nc.Write(bytes.Join(frames, nil)) //nolint:errcheck // then the reads fail
	for i := range int32(n) {
		if got := p.read(); got.Opaque != i || string(got.Body) != "body" {
			t.Fatalf("answer %d is %v %q", i, got, got.Body)
		}
	}
}

// TestInlineNotKeptBack: what an inline handler answered does not wait for the
// answer to what was read together with its request, which may not come.
func TestInlineNotKeptBack(t *testing.T) {
	oneway := mustFrame(&Command{Code: codeMute, Opaque: 2, Flag: FlagOneway})
	answer := mustFrame(&Command{Code: CodeSuccess, Opaque: 99, Flag: FlagResponse})
	for _, tt := range []struct {
		name string
		next [][]byte
	}{
		{"a request that is held", [][]byte{request(codeHold, 2, "")}},
		{"a request that takes long", [][]byte{request(codeWait, 2, "")}},
		{"a oneway request", [][]byte{oneway}},
		{"an answer", [][]byte{answer}},
		{"several", [][]byte{oneway, answer, request(codeHold, 2, ""), request(codeHold, 3, ""), answer}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := startServer(t, ServerOptions{})
			p := dialRaw(t, s.addr)
			p.send(append([][]byte{request(codeOnce, 1, "body")}, tt.next...)...)
			if got := p.read(); got.Opaque != 1 || string(got.Body) != "body" {
				t.Errorf("answer %v %q", got, got.Body)
			}
		})
	}
}

// TestFramesInPieces feeds a stream of frames in pieces of every small size.
func TestFramesInPieces(t *testing.T) {
	s := startServer(t, ServerOptions{})
	stream := bytes.Join([][]byte{
		request(codeEcho, 1, ""), request(codeEcho, 2, strings.Repeat("b", 9000)),
		mustFrame(&Command{Code: codeEcho, Opaque: 3, Remark: strings.Repeat("r", 6000)}), request(codeOnce, 4, "x"),
	}, nil)
	for _, size := range []int{1, 2, 3, 5, 7, 8, 9, 100, 4095, 4096, 4097} {
		t.Run(fmt.Sprintf("size=%d", size), func(t *testing.T) {
			p := dialRaw(t, s.addr)
			for rest := stream; len(rest) > 0; {
				n := min(size, len(rest))
				p.send(rest[:n])
				rest = rest[n:]
			}
			got := make(map[int32]*Command)
			for range 4 {
				c := p.read()
				got[c.Opaque] = c
			}
			if len(got[1].Body) != 0 || len(got[2].Body) != 9000 || len(got[3].Remark) != 6000 || string(got[4].Body) != "x" {
				t.Errorf("answers %v", got)
			}
		})
	}
}

// TestLater holds requests and answers them from another goroutine.
func TestLater(t *testing.T) {
	s := startServer(t, ServerOptions{})
	p := dialRaw(t, s.addr)
	p.send(request(codeHold, 1, ""), request(codeHold, 2, ""))
	c := receive(t, s.conns, "connection")
	a, b := receive(t, s.held, "request"), receive(t, s.held, "request")
	s.waitFor(t, "both to be held", func(st Stats) bool { return st.Held == 2 && st.InFlight == 0 })
	p.send(request(codeEcho, 3, "")) // others are not in the way
	if got := p.read(); got.Opaque != 3 {
		t.Fatalf("got %v", got)
	}
	for _, req := range []*Command{b, a} {
		if err := c.Reply(req, NewResponse(CodePullNotFound, "")); err != nil {
			t.Fatal(err)
		}
		if got := p.read(); got.Opaque != req.Opaque || got.Code != CodePullNotFound {
			t.Errorf("got %v, want an answer to %d", got, req.Opaque)
		}
	}
	if err := c.Reply(a, NewResponse(CodeSuccess, "")); !errors.Is(err, ErrAnswered) {
		t.Errorf("answered twice: %v", err)
	}
	if err := c.Reply(&Command{}, NewResponse(CodeSuccess, "")); !errors.Is(err, ErrAnswered) {
		t.Errorf("a request of nobody: %v", err)
	}
	p.send(request(codeHold, 4, ""))
	d := receive(t, s.held, "request")
	p.nc.Close() //nolint:errcheck // on purpose
	if err := receive(t, s.ended, "close"); !errors.Is(err, io.EOF) {
		t.Errorf("closed for %v", err)
	}
	if err := c.Reply(d, NewResponse(CodeSuccess, "")); !errors.Is(err, ErrClosed) {
		t.Errorf("after the close: %v", err)
	}
}

// TestReplyBeforeLater answers before the handler returns Later.
func TestReplyBeforeLater(t *testing.T) {
	mux := NewMux()
	mux.Handle(func(_ context.Context, c *Conn, req *Command) (*Command, error) {
		if err := c.Reply(req, NewResponse(CodeSuccess, "early")); err != nil {
			t.Error(err)
		}
		return Later, nil
	}, codeHold)
	s, err := NewServer(ServerOptions{Options: Options{Mux: mux}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // never fails
	theirs, ours := net.Pipe()
	s.ServeConn(ours)
	p := &rawPeer{t: t, nc: theirs}
	defer theirs.Close() //nolint:errcheck // the end
	for i := range int32(3) {
		p.send(request(codeHold, i, ""))
		if got := p.read(); got.Opaque != i || got.Remark != "early" {
			t.Errorf("got %v", got)
		}
	}
	if st := s.Stats(); st.Held != 0 || st.InFlight != 0 {
		t.Errorf("%+v", st)
	}
}

// TestTooLargeAnswer: an answer that fits into no frame is replaced.
func TestTooLargeAnswer(t *testing.T) {
	mux := NewMux()
	mux.Handle(func(context.Context, *Conn, *Command) (*Command, error) {
		resp := NewResponse(CodeSuccess, "")
		resp.Body = make([]byte, MaxFrameSize)
		return resp, nil
	}, codeBig)
	s, err := NewServer(ServerOptions{Options: Options{Mux: mux}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // never fails
	theirs, ours := net.Pipe()
	defer theirs.Close() //nolint:errcheck // the end
	s.ServeConn(ours)
	p := &rawPeer{t: t, nc: theirs}
	p.send(request(codeBig, 5, ""))
	if got := p.read(); got.Opaque != 5 || got.Code != CodeSystemError || !strings.Contains(got.Remark, "limit") {
		t.Errorf("got %v", got)
	}
}

// TestObserve: the observer is told of every request, once.
func TestObserve(t *testing.T) {
	type seen struct{ code, answer int32 }
	got := make(chan seen, 10)
	s := startServer(t, ServerOptions{Options: Options{
		Observe: func(_ *Conn, req *Command, code int32, took time.Duration) {
			if took < 0 {
				t.Errorf("took %v", took)
			}
			got <- seen{req.Code, code}
		},
	}})
	p := dialRaw(t, s.addr)
	for _, want := range []seen{{codeEcho, CodeSuccess}, {codeFail, CodeSystemError}, {9999, CodeRequestCodeNotSupported}} {
		p.send(request(want.code, 1, ""))
		p.read()
		if g := receive(t, got, "observation"); g != want {
			t.Errorf("got %v, want %v", g, want)
		}
	}
}

// TestSeveralListeners: one server answers on two ports.
func TestSeveralListeners(t *testing.T) {
	s := startServer(t, ServerOptions{})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	for _, addr := range []string{s.addr, l.Addr().String()} {
		p := dialRaw(t, addr)
		p.send(request(codeEcho, 1, ""))
		p.read()
		c := receive(t, s.conns, "connection")
		if got := c.LocalAddr().String(); got != addr {
			t.Errorf("local address %s, want %s", got, addr)
		}
		if got := c.RemoteAddr().String(); got != p.nc.LocalAddr().String() {
			t.Errorf("remote address %s, want %s", got, p.nc.LocalAddr())
		}
	}
	s.Close() //nolint:errcheck // never fails
	if err := receive(t, served, "the end of Serve"); err != nil {
		t.Error(err)
	}
	if err := s.Serve(l); !errors.Is(err, ErrClosed) {
		t.Errorf("Serve after Close: %v", err)
	}
}
