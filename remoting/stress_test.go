package remoting

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"
)

// TestStress has clients do everything at once, some of them badly, while the
// server asks them and in the end shuts down. Every call ends, every answer is
// the right one, and nothing is left over.
func TestStress(t *testing.T) {
	s := startServer(t, ServerOptions{Options: Options{Limits: Limits{
		MaxInFlight: 8, MaxHeld: 50, MaxQueued: 1 << 20, MaxQueuedTotal: 8 << 20, MaxRequestTotal: 2 << 20,
		WriteTimeout: 300 * time.Millisecond, FrameTimeout: 2 * time.Second,
	}}})
	close(s.gate)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	loop := func(fn func()) {
		wg.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					fn()
				}
			}
		})
	}

	mux := NewMux()
	mux.Handle(func(_ context.Context, _ *Conn, req *Command) (*Command, error) {
		resp := NewResponse(CodeSuccess, "")
		resp.Body = req.Body
		return resp, nil
	}, 39, 40)
	// Held requests are answered sooner or later; the same goroutine asks.
	loop(func() {
		select {
		case req := <-s.held:
			if err := req.in.conn.Reply(req, NewResponse(CodePullNotFound, "")); err != nil && !errors.Is(err, ErrClosed) {
				t.Error(err)
			}
		case <-stop:
		}
	})
	loop(func() {
		for _, c := range s.Conns() {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			resp, err := c.Invoke(ctx, &Command{Code: 39, Body: []byte(c.String())})
			cancel()
			if err == nil && resp.Code == CodeSuccess && string(resp.Body) != c.String() {
				t.Errorf("asked %v, got %q", c, resp.Body)
			}
		}
		select { // at some pace
		case <-time.After(time.Millisecond):
		case <-stop:
		}
	})
	for id := range 6 {
		cl := NewClient(ClientOptions{Options: Options{Mux: mux}, Timeout: patience})
		defer cl.Close() //nolint:errcheck // never fails
		for worker := range 4 {
			r := rand.New(rand.NewPCG(uint64(id), uint64(worker)))
			codes := []int32{codeEcho, codeEcho, codeOnce, codeWait, codeHold, codeBig, codeFail, 9999}
			n := 0
			loop(func() {
				n++
				code := codes[r.IntN(len(codes))]
				size := 1 << r.IntN(18)
				body := []byte(fmt.Sprint(id, worker, n, "|", string(make([]byte, size))))
				resp, err := cl.Invoke(context.Background(), s.addr, &Command{Code: code, Body: body})
				switch {
				case err != nil:
					// Connections end on purpose, and the server does.
					op, ok := errors.AsType[*net.OpError](err)
					if !errors.Is(err, ErrClosed) && !(ok && op.Op == "dial") {
						t.Errorf("code %d: %v", code, err)
					}
				case (code == codeEcho || code == codeOnce) && resp.Code == CodeSuccess && string(resp.Body) != string(body):
					t.Errorf("echo of %d bytes is another one of %d", len(body), len(resp.Body))
				}
				if r.IntN(200) == 0 { // now and then a connection ends
					if c, err := cl.Conn(context.Background(), s.addr); err == nil {
						c.Close() //nolint:errcheck // never fails
					}
				}
			})
		}
	}
	// Peers that never read, that stop in a frame, that send garbage.
	for kind := range 3 {
		loop(func() {
			nc, err := net.Dial("tcp", s.addr)
			if err != nil {
				return
			}
			defer nc.Close()                                       //nolint:errcheck // the end
			nc.SetDeadline(time.Now().Add(200 * time.Millisecond)) //nolint:errcheck // then it takes longer
			switch kind {
			case 0:
				for err == nil {
					_, err = nc.Write(request(codeBig, 1, ""))
				}
			case 1:
				nc.Write(request(codeEcho, 1, string(make([]byte, 200_000)))[:150_000]) //nolint:errcheck // whatever
				io.Copy(io.Discard, nc)                                                 //nolint:errcheck // whatever
			case 2:
				nc.Write([]byte("GET / HTTP/1.1\r\n\r\n")) //nolint:errcheck // whatever
				io.Copy(io.Discard, nc)                    //nolint:errcheck // whatever
			}
		})
	}
	<-time.After(time.Second) // the length of the test
	ctx, cancel := context.WithTimeout(context.Background(), patience/2)
	defer cancel()
	down := make(chan error, 1)
	go func() { down <- s.Shutdown(ctx) }()
	if err := receive(t, down, "shutdown"); err != nil {
		t.Errorf("shutdown: %v, %+v", err, s.Stats())
	}
	close(stop)
	wg.Wait()
	if st := s.Stats(); st.RequestBytes != 0 || st.QueuedBytes != 0 || s.ep.requests.token.Load() || s.ep.readBuffers.Load() != 0 {
		t.Errorf("left over: %+v, token %v, read buffers %d", st, s.ep.requests.token.Load(), s.ep.readBuffers.Load())
	}
}
