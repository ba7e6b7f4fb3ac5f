package namesrv

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// A Server is a running name server (upstream: NamesrvController).
type Server struct {
	log     *slog.Logger
	started time.Time
	routes  *routeTable
	kv      *kvConfig
	server  *remoting.Server
	addr    netip.AddrPort

	// options are replaced as a whole by 318, holding configMu.
	options  atomic.Pointer[Options]
	configMu sync.Mutex

	requests      map[int32]*atomic.Uint64 // by code; no key is added after start
	otherRequests atomic.Uint64

	failed   chan error // what ended the listener, if not Shutdown
	stop     chan struct{}
	running  sync.WaitGroup // accepting, and looking for silent brokers
	shutdown struct {
		once sync.Once
		err  error
	}
}

// Start starts a name server, which serves when it returns. Cancelling ctx later
// has no effect; the caller has to call Shutdown.
func Start(ctx context.Context, opts Options) (*Server, error) {
	s, err := newServer(opts)
	if err != nil {
		return nil, err
	}
	opts = *s.options.Load()
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", opts.Listen)
	if err != nil {
		s.server.Close() //nolint:errcheck // it has served nothing
		return nil, fmt.Errorf("name server: %w", err)
	}
	s.setAddr(l.Addr())
	s.running.Go(func() {
		if err := s.server.Serve(l); err != nil && !errors.Is(err, remoting.ErrClosed) {
			s.failed <- err
		}
	})
	s.running.Go(func() { expireLoop(s.stop, opts.ScanNotActiveBrokerInterval, s.expire) })
	s.log.Info("name server started", "addr", s.addr, "kvConfig", s.kv.path)
	return s, nil
}

// newServer returns a server that does not listen and does not look for silent
// brokers.
func newServer(opts Options) (*Server, error) {
	if err := opts.Validate(); err != nil {
		return nil, err
	}
	opts = opts.withDefaults()
	kv, err := openKVConfig(opts.FS, opts.Dir, opts.kvConfigPath(), opts.Logger)
	if err != nil {
		return nil, fmt.Errorf("name server: %w", err)
	}
	s := &Server{
		log:      opts.Logger,
		started:  time.Now(),
		routes:   newRouteTable(opts.Logger, time.Now, defaultBounds),
		kv:       kv,
		requests: make(map[int32]*atomic.Uint64),
		failed:   make(chan error, 1),
		stop:     make(chan struct{}),
	}
	s.options.Store(&opts)
	mux := s.mux()
	for _, code := range mux.Codes() {
		s.requests[code] = new(atomic.Uint64)
	}
	ro := opts.remoting(mux)
	ro.OnClose = func(c *remoting.Conn, _ error) { s.routes.ownerGone(c) }
	ro.Observe = s.observe
	if s.server, err = remoting.NewServer(ro); err != nil {
		return nil, fmt.Errorf("name server: %w", err)
	}
	return s, nil
}

// setAddr notes where the server listens, also for 319.
func (s *Server) setAddr(a net.Addr) {
	if t, ok := a.(*net.TCPAddr); ok {
		p := t.AddrPort()
		s.addr = netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
	}
	opts := *s.options.Load()
	host, _ := splitListen(&opts)
	opts.Listen = net.JoinHostPort(host, fmt.Sprint(s.addr.Port()))
	s.options.Store(&opts)
}

// mux has the handler of each code, a file for each or for few.
func (s *Server) mux() *remoting.Mux {
	m := remoting.NewMux()
	m.Handle(s.putKVConfig, remoting.ReqPutKVConfig)
	m.Handle(s.getKVConfig, remoting.ReqGetKVConfig)
	m.Handle(s.deleteKVConfig, remoting.ReqDeleteKVConfig)
	m.Handle(s.getKVListByNamespace, remoting.ReqGetKVListByNamespace)
	m.Handle(s.registerBroker, remoting.ReqRegisterBroker)
	m.Handle(s.unregisterBroker, remoting.ReqUnregisterBroker)
	m.Handle(s.brokerHeartbeat, remoting.ReqBrokerHeartbeat)
	m.Handle(s.queryDataVersion, remoting.ReqQueryDataVersion)
	m.Handle(s.getRouteInfoByTopic, remoting.ReqGetRouteInfoByTopic)
	m.Handle(s.getBrokerClusterInfo, remoting.ReqGetBrokerClusterInfo)
	m.Handle(s.wipeWritePerm, remoting.ReqWipeWritePermOfBroker)
	m.Handle(s.addWritePerm, remoting.ReqAddWritePermOfBroker)
	m.Handle(s.getAllTopics, remoting.ReqGetAllTopicListFromNameServer)
	m.Handle(s.getTopicsByCluster, remoting.ReqGetTopicsByCluster)
	m.Handle(s.getSystemTopics, remoting.ReqGetSystemTopicListFromNS)
	m.Handle(s.getUnitTopics, remoting.ReqGetUnitTopicList, remoting.ReqGetHasUnitSubTopicList, remoting.ReqGetHasUnitSubUnunitTopicList)
	m.Handle(s.deleteTopic, remoting.ReqDeleteTopicInNamesrv)
	m.Handle(s.registerTopic, remoting.ReqRegisterTopicInNamesrv)
	m.Handle(s.updateConfig, remoting.ReqUpdateNamesrvConfig)
	m.Handle(s.getConfig, remoting.ReqGetNamesrvConfig)
	return m
}

func (s *Server) observe(_ *remoting.Conn, req *remoting.Command, _ int32, _ time.Duration) {
	if n := s.requests[req.Code]; n != nil {
		n.Add(1)
	} else {
		s.otherRequests.Add(1)
	}
}

// expireLoop calls expire again and again until stop is closed.
func expireLoop(stop <-chan struct{}, interval time.Duration, expire func()) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-stop:
			return
		case <-tick.C:
			expire()
		}
	}
}

// expire removes silent brokers and closes their connections, so that one that
// was only hung notices.
func (s *Server) expire() {
	for _, o := range s.routes.expire() {
		o.Close() //nolint:errcheck // it is over
	}
}

// Failed receives an error when the listener failed for good: the server accepts
// no more connections and is to be shut down.
func (s *Server) Failed() <-chan error { return s.failed }

// Addr is where the server listens.
func (s *Server) Addr() netip.AddrPort { return s.addr }

// Shutdown stops accepting, waits for the requests that are being handled, at most
// until ctx ends, and closes all connections. No goroutine is left. Further
// calls wait for the first and return the same: ctx's error if it ended
// first.
func (s *Server) Shutdown(ctx context.Context) error {
	s.shutdown.once.Do(func() {
		close(s.stop)
		err := s.server.Shutdown(ctx)
		s.shutdown.err = errors.Join(err, s.server.Close())
		s.running.Wait()
		s.log.Info("name server stopped", "addr", s.addr)
	})
	return s.shutdown.err
}

// Stats are figures of a Server at one moment.
type Stats struct {
	Clusters int
	Brokers  int // names
	Members  int // masters and slaves
	Topics   int
	Queues   int // pairs of a topic and a broker
	KVKeys   int

	Expired uint64 // members that were silent for too long so far
	// Requests are the requests handled so far by code, of those that the
	// name server knows; OtherRequests are the rest.
	Requests      map[int32]uint64
	OtherRequests uint64

	Remoting remoting.Stats
}

// Stats returns figures of this moment.
func (s *Server) Stats() Stats {
	c := s.routes.counts()
	st := Stats{
		Clusters: c.clusters, Brokers: c.brokers, Members: c.members, Topics: c.topics, Queues: c.queues,
		KVKeys:        s.kv.count(),
		Expired:       s.routes.expired.Load(),
		Requests:      make(map[int32]uint64, len(s.requests)),
		OtherRequests: s.otherRequests.Load(),
		Remoting:      s.server.Stats(),
	}
	for code, n := range s.requests {
		st.Requests[code] = n.Load()
	}
	return st
}

// headerOf constrains P to a pointer to H that is a header.
type headerOf[H any] interface {
	*H
	remoting.Header
}

// decode reads the header of a request.
func decode[H any, P headerOf[H]](req *remoting.Command) (H, error) {
	var h H
	err := remoting.DecodeHeader(req.Ext, P(&h))
	return h, err
}

func success() *remoting.Command { return remoting.NewResponse(remoting.CodeSuccess, "") }

func successWith(h remoting.Header) *remoting.Command {
	resp := success()
	resp.SetHeader(h)
	return resp
}

func successBody(b remoting.Body) *remoting.Command {
	resp := success()
	resp.Body = remoting.EncodeBody(b)
	return resp
}
