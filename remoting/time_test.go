package remoting

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// bubble runs fn in virtual time with a server and the other end of one
// connection to it.
func bubble(t *testing.T, opts ServerOptions, fn func(t *testing.T, s *testServer, p net.Conn)) {
	synctest.Test(t, func(t *testing.T) {
		s := newTestServer(t, opts)
		theirs, ours := net.Pipe()
		s.ServeConn(ours)
		fn(t, s, theirs)
		theirs.Close() //nolint:errcheck // the end
		s.Close()      //nolint:errcheck // never fails
	})
}

// ends checks that the connection was closed for want, between limit and a
// little later, counted from since.
func (s *testServer) ends(t *testing.T, p net.Conn, want error, since time.Time, limit time.Duration) {
	t.Helper()
	p.SetReadDeadline(time.Time{}) //nolint:errcheck // then the copy fails
	if _, err := io.Copy(io.Discard, p); err != nil && !errors.Is(err, io.ErrClosedPipe) {
		t.Errorf("read: %v", err)
	}
	took := time.Since(since)
	if took < limit-maxSweep || took > limit+2*maxSweep {
		t.Errorf("closed after %v, want %v", took, limit)
	}
	synctest.Wait()
	select {
	case err := <-s.ended:
		if !errors.Is(err, want) {
			t.Errorf("closed for %v, want %v", err, want)
		}
	default:
		if !errors.Is(want, ErrHandshakeTimeout) && want != nil {
			t.Error("nobody was told")
		}
	}
}

func TestIdleClose(t *testing.T) {
	t.Run("nothing was ever sent", func(t *testing.T) {
		bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
			s.ends(t, p, nil, time.Now(), defaultIdleTimeout)
		})
	})
	t.Run("after requests", func(t *testing.T) {
		bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
			peer := &rawPeer{t: t, nc: p}
			for range 5 { // 300 s, never more than 60 s without anything
				peer.send(request(codeEcho, 1, ""))
				peer.read()
				time.Sleep(60 * time.Second)
			}
			s.ends(t, p, ErrIdle, time.Now().Add(-60*time.Second), defaultIdleTimeout)
		})
	})
	t.Run("held request", func(t *testing.T) {
		bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
			(&rawPeer{t: t, nc: p}).send(request(codeHold, 1, ""))
			s.ends(t, p, ErrIdle, time.Now(), defaultIdleTimeout)
		})
	})
	t.Run("not while a handler runs", func(t *testing.T) {
		bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
			peer := &rawPeer{t: t, nc: p}
			peer.send(request(codeWait, 1, ""))
			time.Sleep(10 * time.Minute)
			close(s.gate)
			if got := peer.read(); got.Opaque != 1 {
				t.Errorf("got %v", got)
			}
		})
	})
	t.Run("other limit", func(t *testing.T) {
		opts := ServerOptions{Options: Options{Limits: Limits{IdleTimeout: time.Second}}}
		bubble(t, opts, func(t *testing.T, s *testServer, p net.Conn) {
			s.ends(t, p, nil, time.Now(), time.Second)
		})
	})
	t.Run("never", func(t *testing.T) {
		opts := ServerOptions{Options: Options{Limits: Limits{IdleTimeout: -1}}}
		bubble(t, opts, func(t *testing.T, s *testServer, p net.Conn) {
			peer := &rawPeer{t: t, nc: p}
			time.Sleep(time.Hour)
			peer.send(request(codeEcho, 1, ""))
			peer.read()
		})
	})
}

// TestFrameTimeout: a frame that began has to arrive completely, however
// steadily its bytes come.
func TestFrameTimeout(t *testing.T) {
	frame := request(codeEcho, 1, string(make([]byte, 10_000)))
	for name, from := range map[string]int{"in the length": 2, "in the words": 6, "in the header": 20, "in the body": 2000} {
		t.Run(name, func(t *testing.T) {
			bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
				start := time.Now()
				(&rawPeer{t: t, nc: p}).send(request(codeMute, 1, ""), frame[:from])
				go func() {
					for i := from; ; i++ {
						time.Sleep(5 * time.Second)
						if _, err := p.Write(frame[i : i+1]); err != nil {
							return
						}
					}
				}()
				s.ends(t, p, ErrFrameTimeout, start, defaultFrameTimeout)
			})
		})
	}
}

// TestTokenTimeout: while memory is short, the frame for which more was taken
// has less time.
func TestTokenTimeout(t *testing.T) {
	opts := ServerOptions{Options: Options{Limits: Limits{MaxRequestTotal: 1}}}
	bubble(t, opts, func(t *testing.T, s *testServer, p net.Conn) {
		frame := request(codeEcho, 1, string(make([]byte, 100_000)))
		start := time.Now()
		(&rawPeer{t: t, nc: p}).send(request(codeMute, 1, ""), frame[:50_000])
		s.ends(t, p, ErrFrameTimeout, start, defaultFrameTimeout/tokenHurry)
		if st := s.Stats(); st.RequestBytes != 0 || s.ep.requests.token.Load() {
			t.Errorf("left over: %+v, token %v", st, s.ep.requests.token.Load())
		}
	})
}

// TestWriteTimeout: a peer that takes nothing for so long is gone.
func TestWriteTimeout(t *testing.T) {
	bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
		peer := &rawPeer{t: t, nc: p}
		start := time.Now()
		peer.send(request(codeBig, 1, ""))
		synctest.Wait()
		for time.Since(start) < defaultWriteTimeout+2*maxSweep {
			time.Sleep(time.Second)
			if len(s.ended) > 0 {
				break
			}
		}
		s.ends(t, p, ErrSlowReader, start, defaultWriteTimeout)
	})
}

func TestHandshakeTimeout(t *testing.T) {
	for name, tt := range map[string]struct {
		opts  ServerOptions
		first []byte
	}{
		"TLS":            {ServerOptions{Options: Options{TLS: testTLS(t)}}, []byte{tlsHandshake, 3, 1}},
		"PROXY line":     {ServerOptions{Proxy: ProxyOptional}, []byte("PROXY TCP4 ")},
		"PROXY preamble": {ServerOptions{Proxy: ProxyRequired}, []byte(proxySignature)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, tt.opts, func(t *testing.T, s *testServer, p net.Conn) {
				start := time.Now()
				if _, err := p.Write(tt.first); err != nil {
					t.Fatal(err)
				}
				s.ends(t, p, ErrHandshakeTimeout, start, defaultHandshakeTimeout)
			})
		})
	}
}

// TestInvokeTimeout: no answer in time is an error, a later answer is dropped.
func TestInvokeTimeout(t *testing.T) {
	bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
		peer := &rawPeer{t: t, nc: p}
		peer.send(request(codeMute, 1, ""))
		c := <-s.conns
		got := make(chan *Command, 1)
		go func() { got <- peer.read() }()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		start := time.Now()
		_, err := c.Invoke(ctx, &Command{Code: ReqGetConsumerRunningInfo})
		if !errors.Is(err, context.DeadlineExceeded) || !IsTimeout(err) || time.Since(start) != 10*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		req := <-got
		peer.send(mustFrame(&Command{Opaque: req.Opaque, Flag: FlagResponse}), request(codeEcho, 7, ""))
		if got := peer.read(); got.Opaque != 7 {
			t.Errorf("got %v", got)
		}
		if st := s.Stats(); st.Calls != 0 {
			t.Errorf("%+v", st)
		}
	})
}

// TestDrain: new requests are refused, running and held ones are finished.
func TestDrain(t *testing.T) {
	bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
		peer := &rawPeer{t: t, nc: p}
		peer.send(request(codeWait, 1, ""), request(codeHold, 2, ""))
		c := <-s.conns
		req := <-s.held
		synctest.Wait()
		down := make(chan error, 1)
		go func() { down <- s.Shutdown(context.Background()) }()
		synctest.Wait()
		peer.send(request(codeEcho, 3, ""), mustFrame(&Command{Code: codeEcho, Flag: FlagOneway}))
		if got := peer.read(); got.Opaque != 3 || got.Code != CodeServiceNotAvailable {
			t.Errorf("a new request: %v", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		select {
		case err := <-down:
			t.Fatalf("shut down while requests were unanswered: %v", err)
		default:
		}
		close(s.gate)
		if got := peer.read(); got.Opaque != 1 || got.Code != CodeSuccess {
			t.Errorf("the running request: %v", got)
		}
		if err := c.Reply(req, NewResponse(CodePullNotFound, "")); err != nil {
			t.Error(err)
		}
		if got := peer.read(); got.Opaque != 2 || got.Code != CodePullNotFound {
			t.Errorf("the held request: %v", got)
		}
		if err := <-down; err != nil {
			t.Error(err)
		}
		if err := <-s.ended; !errors.Is(err, ErrShutdown) {
			t.Errorf("closed for %v", err)
		}
		theirs, ours := net.Pipe()
		s.ServeConn(ours)
		if _, err := theirs.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("a connection afterwards: %v", err)
		}
	})
}

// TestDrainTimeout: when the context ends, what is not answered is cut off.
func TestDrainTimeout(t *testing.T) {
	bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
		(&rawPeer{t: t, nc: p}).send(request(codeWait, 1, ""), request(codeHold, 2, ""))
		<-s.held
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		start := time.Now()
		if err := s.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(start) != 5*time.Second {
			t.Errorf("after %v: %v", time.Since(start), err)
		}
		if _, err := p.Read(make([]byte, 1)); err != io.EOF {
			t.Errorf("read: %v", err)
		}
		if err := <-s.ended; !errors.Is(err, ErrShutdown) {
			t.Errorf("closed for %v", err)
		}
	})
}

// TestDrainOfCalls: answers to the server's own requests are still read.
func TestDrainOfCalls(t *testing.T) {
	bubble(t, ServerOptions{}, func(t *testing.T, s *testServer, p net.Conn) {
		peer := &rawPeer{t: t, nc: p}
		peer.send(request(codeMute, 1, ""))
		c := <-s.conns
		answer := make(chan error, 1)
		go func() {
			resp, err := c.Invoke(context.Background(), &Command{Code: ReqPushReplyMessageToClient})
			if err == nil && !bytes.Equal(resp.Body, []byte("done")) {
				err = errors.New("another body")
			}
			answer <- err
		}()
		req := peer.read()
		down := make(chan error, 1)
		go func() { down <- s.Shutdown(context.Background()) }()
		synctest.Wait()
		peer.send(mustFrame(&Command{Opaque: req.Opaque, Flag: FlagResponse, Body: []byte("done")}))
		if err := <-answer; err != nil {
			t.Error(err)
		}
		if err := <-down; err != nil {
			t.Error(err)
		}
	})
}
