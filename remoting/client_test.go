package remoting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// TestBothWays: the server asks its clients on their connections, several calls
// at once, with opaque numbers of its own.
func TestBothWays(t *testing.T) {
	s := startServer(t, ServerOptions{})
	told := make(chan int32, 10)
	mux := NewMux()
	mux.Handle(func(_ context.Context, _ *Conn, req *Command) (*Command, error) {
		resp := NewResponse(CodeSuccess, "")
		resp.Body = append([]byte("client: "), req.Body...)
		return resp, nil
	}, ReqConsumeMessageDirectly)
	mux.Handle(func(_ context.Context, _ *Conn, req *Command) (*Command, error) {
		told <- req.Code
		return NewResponse(CodeSuccess, ""), nil
	}, ReqNotifyConsumerIDsChanged)
	cl := NewClient(ClientOptions{Options: Options{Mux: mux}, Timeout: patience})
	defer cl.Close() //nolint:errcheck // never fails
	ctx := context.Background()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			body := fmt.Sprint("request ", i)
			resp, err := cl.Invoke(ctx, s.addr, &Command{Code: codeEcho, Body: []byte(body)})
			if err != nil || string(resp.Body) != body {
				t.Errorf("got %v, %v", resp, err)
			}
		})
	}
	wg.Wait()
	c := receive(t, s.conns, "connection")
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req := &Command{Code: ReqConsumeMessageDirectly, Body: []byte("x")}
	for range 50 {
		wg.Go(func() {
			resp, err := c.Invoke(ctx, req)
			if err != nil || string(resp.Body) != "client: x" {
				t.Errorf("got %v, %v", resp, err)
			}
		})
	}
	wg.Wait()
	if err := c.InvokeOneway(NewRequest(ReqNotifyConsumerIDsChanged, &ConsumerGroupRequest{ConsumerGroup: "G"})); err != nil {
		t.Error(err)
	}
	if code := receive(t, told, "notice"); code != ReqNotifyConsumerIDsChanged {
		t.Errorf("code %d", code)
	}
	resp, err := c.Invoke(ctx, &Command{Code: 4711})
	if err != nil || resp.Code != CodeRequestCodeNotSupported {
		t.Errorf("unknown code: %v, %v", resp, err)
	}
	if len(s.conns) != 0 {
		t.Errorf("%d more connections", len(s.conns))
	}
}

// TestCallLimit: too many unanswered calls are refused.
func TestCallLimit(t *testing.T) {
	s := startServer(t, ServerOptions{})
	cl := NewClient(ClientOptions{Options: Options{Limits: Limits{MaxCalls: 2}}, Timeout: patience})
	defer cl.Close() //nolint:errcheck // never fails
	c, err := cl.Conn(context.Background(), s.addr)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			if _, err := c.Invoke(ctx, &Command{Code: codeHold}); !errors.Is(err, context.Canceled) {
				t.Errorf("canceled: %v", err)
			}
		})
	}
	s.waitFor(t, "two held requests", func(st Stats) bool { return st.Held == 2 })
	if _, err := c.Invoke(ctx, &Command{Code: codeEcho}); !errors.Is(err, ErrBusy) {
		t.Errorf("the third: %v", err)
	}
	if err := c.InvokeOneway(&Command{Code: codeMute}); err != nil {
		t.Errorf("oneway: %v", err)
	}
	cancel()
	wg.Wait()
	if _, err := c.Invoke(context.Background(), &Command{Code: codeEcho}); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// TestCallsFailOnClose: calls end when their connection does.
func TestCallsFailOnClose(t *testing.T) {
	s := startServer(t, ServerOptions{})
	cl := NewClient(ClientOptions{Timeout: patience})
	defer cl.Close() //nolint:errcheck // never fails
	failed := make(chan error, 1)
	go func() {
		_, err := cl.Invoke(context.Background(), s.addr, &Command{Code: codeHold})
		failed <- err
	}()
	receive(t, s.held, "request")
	c := receive(t, s.conns, "connection")
	c.Close() //nolint:errcheck // never fails
	if err := receive(t, failed, "error"); !errors.Is(err, ErrClosed) || !errors.Is(err, io.EOF) {
		t.Errorf("got %v", err)
	}
	if c.Context().Err() == nil || !errors.Is(context.Cause(c.Context()), ErrClosed) {
		t.Errorf("context %v", context.Cause(c.Context()))
	}
	// The next call connects again.
	resp, err := cl.Invoke(context.Background(), s.addr, &Command{Code: codeEcho, Body: []byte("again")})
	if err != nil || string(resp.Body) != "again" {
		t.Errorf("got %v, %v", resp, err)
	}
}

// TestDialOnce: callers at the same time share one connection.
func TestDialOnce(t *testing.T) {
	s := startServer(t, ServerOptions{})
	cl := NewClient(ClientOptions{Timeout: patience})
	defer cl.Close() //nolint:errcheck // never fails
	var wg sync.WaitGroup
	for range 30 {
		wg.Go(func() {
			if _, err := cl.Invoke(context.Background(), s.addr, &Command{Code: codeEcho}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if n := cl.Stats().Conns; n != 1 {
		t.Errorf("%d connections", n)
	}
}

func TestDialErrors(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	l.Close() //nolint:errcheck // its address is what counts
	cl := NewClient(ClientOptions{})
	if _, err := cl.Invoke(context.Background(), addr, &Command{Code: codeEcho}); err == nil {
		t.Error("connected to nobody")
	}
	if err := cl.InvokeOneway(context.Background(), "no address", &Command{Code: codeEcho}); err == nil {
		t.Error("connected to nowhere")
	}
	if n := cl.Stats().Conns; n != 0 {
		t.Errorf("%d connections", n)
	}
	cl.Close() //nolint:errcheck // never fails
	cl.Close() //nolint:errcheck // never fails
	if _, err := cl.Invoke(context.Background(), addr, &Command{Code: codeEcho}); !errors.Is(err, ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// TestCloseWhileDialling: Close does not wait for a connection that does not
// come about.
func TestCloseWhileDialling(t *testing.T) {
	dialling := make(chan struct{})
	cl := NewClient(ClientOptions{
		DialTimeout: time.Hour,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			close(dialling)
			<-ctx.Done()
			return nil, ctx.Err()
		},
	})
	failed := make(chan error, 1)
	go func() {
		_, err := cl.Invoke(context.Background(), "somewhere:1", &Command{})
		failed <- err
	}()
	<-dialling
	cl.Close() //nolint:errcheck // never fails
	if err := receive(t, failed, "error"); err == nil {
		t.Error("no error")
	}
}

// TestCallerGivesUpDialling: a caller's context bounds its own wait, not the
// dial.
func TestCallerGivesUpDialling(t *testing.T) {
	s := startServer(t, ServerOptions{})
	proceed := make(chan struct{})
	cl := NewClient(ClientOptions{
		Timeout: patience,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			<-proceed
			return new(net.Dialer).DialContext(ctx, network, s.addr)
		},
	})
	defer cl.Close() //nolint:errcheck // never fails
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := cl.Invoke(ctx, "name", &Command{Code: codeEcho}); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	close(proceed)
	if _, err := cl.Invoke(context.Background(), "name", &Command{Code: codeEcho}); err != nil {
		t.Error(err)
	}
}

// TestConnValue: a server keeps something of its own with a connection.
func TestConnValue(t *testing.T) {
	s := startServer(t, ServerOptions{})
	p := dialRaw(t, s.addr)
	p.send(request(codeEcho, 1, ""))
	c := receive(t, s.conns, "connection")
	if c.Value() != nil {
		t.Errorf("value %v", c.Value())
	}
	c.SetValue("client 1")
	if c.Value() != "client 1" || c.ID() == 0 || len(s.Conns()) != 1 || s.Conns()[0] != c {
		t.Errorf("%v: value %v", c, c.Value())
	}
}
