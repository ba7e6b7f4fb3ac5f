package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/pprof"
	"time"
)

// httpServer is the port for machines that watch a server.
type httpServer struct {
	addr   string
	server *http.Server
	failed chan error    // why it serves no longer, if not by close
	done   chan struct{} // closed when nothing runs any more
}

// Bounds of the HTTP port. A profile takes 30 s unless another time is asked for.
const (
	httpReadTimeout  = 10 * time.Second
	httpWriteTimeout = 2 * time.Minute
	httpMaxHeader    = 16 << 10
	httpCloseTimeout = time.Second
)

func startHTTP(addr string, s *servers, profiles bool) (*httpServer, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", s.metrics())
	mux.HandleFunc("GET /healthz", answer(s.healthy))
	mux.HandleFunc("GET /readyz", answer(s.ready))
	if profiles {
		mux.HandleFunc("GET /debug/pprof/", pprof.Index)
		mux.HandleFunc("GET /debug/pprof/profile", pprof.Profile)
		mux.HandleFunc("GET /debug/pprof/trace", pprof.Trace)
	}
	h := &httpServer{
		addr: l.Addr().String(),
		server: &http.Server{
			Handler: mux, ReadTimeout: httpReadTimeout, WriteTimeout: httpWriteTimeout, MaxHeaderBytes: httpMaxHeader,
		},
		failed: make(chan error, 1),
		done:   make(chan struct{}),
	}
	go func() {
		defer close(h.done)
		if err := h.server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
			h.failed <- err
		}
	}()
	return h, nil
}

// close ends the port. Who asks for something at that moment may get no answer.
func (h *httpServer) close() {
	ctx, cancel := context.WithTimeout(context.Background(), httpCloseTimeout)
	defer cancel()
	if h.server.Shutdown(ctx) != nil {
		h.server.Close() //nolint:errcheck // nothing is left to be lost
	}
	<-h.done
}

// answer answers with what check says.
func answer(check func() error) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	}
}

// healthy returns why the process is of no use any more. One that starts, which
// takes long when there is much to be recovered, or stops is not in need of help.
func (s *servers) healthy() error {
	if b := s.broker.Load(); b != nil {
		return b.Healthy()
	}
	return nil
}

// ready returns why no clients should be sent here.
func (s *servers) ready() error {
	if p := phase(s.phase.Load()); p != ready {
		return errors.New(p.String())
	}
	return s.healthy()
}
