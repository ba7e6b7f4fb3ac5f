package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// retryRegister is the pause between registrations with a name server that does
// not answer.
const retryRegister = 2 * time.Second

// registrar keeps the name servers up to date about the topics of this broker:
// all topics, every RegisterPeriod and whenever one changes (upstream:
// BrokerOuterAPI, BrokerController.registerBrokerAll).
type registrar struct {
	b       *Broker
	client  *remoting.Client
	servers []*nameServer
	ctx     context.Context // ends when the broker stops registering
	wg      sync.WaitGroup  // rounds that run
	lost    chan struct{}   // of capacity 1: a connection has closed
	// permissions counts the changes of the broker's permission, which is part
	// of what is registered but no change of a topic.
	permissions atomic.Uint64

	mu      sync.Mutex // guards the rounds of all servers
	closed  bool
	encoded struct {
		sync.Mutex
		version    remoting.DataVersion
		perm       int32
		body       []byte
		compressed bool
	}
}

// nameServer is one name server, and the registration with it that runs.
type nameServer struct {
	addr string
	// failing says that the last registration failed. Nobody waits for a
	// failing one: a name server that is down must not slow down sending.
	failing atomic.Bool
	// known is one more than the changes that the name server knows of; 0: it
	// does not know the broker.
	known atomic.Uint64

	running *round
	next    *round // waits until the running one is over
}

// round is one registration with one name server.
type round struct {
	done chan struct{} // closed when err is set
	err  error
}

// errRegistrarClosed: the broker leaves the name servers.
var errRegistrarClosed = errors.New("the broker shuts down")

func newRegistrar(ctx context.Context, b *Broker, addrs []string) *registrar {
	r := &registrar{b: b, ctx: ctx, lost: make(chan struct{}, 1)}
	for i, a := range addrs {
		if !slices.Contains(addrs[:i], a) {
			r.servers = append(r.servers, &nameServer{addr: a})
		}
	}
	r.client = remoting.NewClient(remoting.ClientOptions{Options: remoting.Options{
		Logger: b.log, TLS: b.opts.ClientTLS,
		// A name server forgets us with the connection.
		OnClose: func(*remoting.Conn, error) {
			select {
			case r.lost <- struct{}{}:
			default:
			}
		},
	}})
	return r
}

// changes counts the changes of what is registered.
func (r *registrar) changes() uint64 { return r.b.topics.Changes() + r.permissions.Load() }

// update makes sure that the name servers know what changed before the call. It
// waits for the answers of those that answered last time. The error joins
// theirs; who calls goes on all the same, for the next registration makes up
// for it.
func (r *registrar) update(ctx context.Context) error {
	want := r.changes()
	return r.register(ctx, func(s *nameServer) bool { return s.known.Load() <= want })
}

// register registers with those name servers that which says; see update.
func (r *registrar) register(ctx context.Context, which func(*nameServer) bool) error {
	var rounds []*round
	for _, s := range r.servers {
		if !which(s) {
			continue
		}
		waits := !s.failing.Load()
		if rd := r.begin(s); waits {
			rounds = append(rounds, rd)
		}
	}
	var errs []error
	for _, rd := range rounds {
		select {
		case <-rd.done:
			errs = append(errs, rd.err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return errors.Join(errs...)
}

// begin returns a round that starts now or after the one that runs. Everything
// that changed before the call is part of it.
func (r *registrar) begin(s *nameServer) *round {
	r.mu.Lock()
	defer r.mu.Unlock()
	rd := &round{done: make(chan struct{})}
	switch {
	case r.closed:
		rd.err = errRegistrarClosed
		close(rd.done)
	case s.running == nil:
		s.running = rd
		r.wg.Add(1)
		go r.run(s, rd)
	case s.next == nil:
		s.next = rd
	default:
		rd = s.next
	}
	return rd
}

func (r *registrar) run(s *nameServer, rd *round) {
	defer r.wg.Done()
	for rd != nil {
		rd.err = r.registerWith(s)
		if was := s.failing.Swap(rd.err != nil); rd.err != nil && !was && r.ctx.Err() == nil {
			r.b.log.Warn("cannot register with name server", "addr", s.addr, "err", rd.err)
		} else if rd.err == nil && was {
			r.b.log.Info("registered with name server again", "addr", s.addr)
		}
		close(rd.done)
		r.mu.Lock()
		s.running, s.next = s.next, nil
		rd = s.running
		r.mu.Unlock()
	}
}

func (r *registrar) registerWith(s *nameServer) error {
	if r.ctx.Err() != nil {
		return errRegistrarClosed
	}
	ctx, cancel := context.WithTimeout(r.ctx, r.b.config().RegisterTimeout)
	defer cancel()
	changes := r.changes()
	body, compressed, err := r.body()
	if err != nil {
		return fmt.Errorf("encode the topics: %w", err)
	}
	req := remoting.NewRequest(remoting.ReqRegisterBroker, &remoting.RegisterBrokerRequest{
		BrokerIdentity: r.b.identity(),
		HAServerAddr:   r.b.haAddr(),
		BodyCRC32:      remoting.BodyCRC(body),
		Compressed:     compressed,
	})
	req.Body = body
	resp, err := r.client.Invoke(ctx, s.addr, req)
	if err == nil {
		err = resp.Err()
	}
	if err != nil {
		return fmt.Errorf("register with %s: %w", s.addr, err)
	}
	s.known.Store(changes + 1)
	if len(resp.Body) == 0 {
		return nil
	}
	var kv remoting.KVTable
	if err := remoting.DecodeBody(resp.Body, &kv); err != nil {
		return fmt.Errorf("answer of %s: %w", s.addr, err)
	}
	if kv.Table != nil {
		r.b.topics.SetOrder(kv.Table)
	}
	return nil
}

// maxPlainBody is where registrations begin to be compressed: as JSON, some
// 80 000 topics fill a frame. The compressed form is a twentieth of that, and
// lacks what producers and consumers do without: order, system flags, attributes.
const maxPlainBody = 4 << 20

// body encodes the topics, or returns what it encoded last when none changed.
func (r *registrar) body() (body []byte, compressed bool, err error) {
	r.encoded.Lock()
	defer r.encoded.Unlock()
	// A name server takes topics only when their version is another one.
	more := r.permissions.Load()
	perm := r.b.config().BrokerPermission
	versionOf := func(v remoting.DataVersion) remoting.DataVersion {
		v.Counter += int64(more)
		return v
	}
	if r.encoded.body != nil && r.encoded.version == versionOf(r.b.topics.Version()) && r.encoded.perm == perm {
		return r.encoded.body, r.encoded.compressed, nil
	}
	table := r.b.topics.Table()
	table.DataVersion = versionOf(table.DataVersion)
	for name, t := range table.Topics {
		t.Perm &= perm | ^(remoting.PermRead | remoting.PermWrite)
		table.Topics[name] = t
	}
	if body, compressed, err = encodeTopics(table); err != nil {
		return nil, false, err
	}
	e := &r.encoded
	e.version, e.perm, e.body, e.compressed = table.DataVersion, perm, body, compressed
	return body, compressed, nil
}

// encodeTopics makes the body of a registration. The table is changed. A name
// server has no use for attributes, and one of 4.9 takes no compressed body with a
// topic that has any.
func encodeTopics(table remoting.TopicConfigTable) (body []byte, compressed bool, err error) {
	all := remoting.RegisterBroker{FilterServers: []string{}, Topics: table}
	if body = remoting.EncodeBody(&all); len(body) <= maxPlainBody {
		return body, false, nil
	}
	for name, t := range table.Topics {
		t.Attributes = nil
		table.Topics[name] = t
	}
	body, err = all.EncodeCompressed()
	return body, true, err
}

// loop registers every RegisterPeriod until ctx ends, and sooner with name
// servers that are failing or have closed their connection.
func (r *registrar) loop(ctx context.Context) {
	next, lost := time.Now().Add(r.period()), time.Time{}
	for {
		pause := time.Until(next)
		for _, s := range r.servers {
			if s.failing.Load() {
				pause = min(pause, retryRegister)
			}
		}
		select {
		case <-time.After(pause):
			if time.Now().Before(next) {
				_ = r.register(ctx, func(s *nameServer) bool { return s.failing.Load() }) // logged by run
				continue
			}
			next = time.Now().Add(r.period())
			_ = r.register(ctx, everyServer)
		case <-r.lost:
			// At once, but not again and again.
			if now := time.Now(); now.Sub(lost) < retryRegister {
				if soon := now.Add(retryRegister); soon.Before(next) {
					next = soon
				}
			} else {
				lost = now
				_ = r.register(ctx, everyServer)
			}
		case <-ctx.Done():
			return
		}
	}
}

func everyServer(*nameServer) bool { return true }

// period is the time between registrations; upstream too keeps it between 10 s
// and 1 min.
func (r *registrar) period() time.Duration {
	return min(max(r.b.config().RegisterPeriod, 10*time.Second), time.Minute)
}

// close ends registering: no round runs any more, and none will.
func (r *registrar) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.wg.Wait()
}

// unregister takes this broker's topics out of the name servers, as far as they
// answer before ctx ends. The registrar is closed.
func (r *registrar) unregister(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(r.servers))
	for i, s := range r.servers {
		if s.known.Load() == 0 || s.failing.Load() {
			continue
		}
		wg.Go(func() {
			id := r.b.identity()
			resp, err := r.client.Invoke(ctx, s.addr, remoting.NewRequest(remoting.ReqUnregisterBroker, &id))
			if err == nil {
				err = resp.Err()
			}
			if err != nil {
				errs[i] = fmt.Errorf("unregister from %s: %w", s.addr, err)
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// identity is how this broker calls itself before name servers.
func (b *Broker) identity() remoting.BrokerIdentity {
	cfg := b.config()
	return remoting.BrokerIdentity{BrokerName: cfg.BrokerName, BrokerAddr: b.addr, ClusterName: cfg.ClusterName, BrokerID: cfg.BrokerID}
}

// haAddr is where a slave would ask for replication. Nobody listens there, but
// registrations name it.
func (b *Broker) haAddr() string {
	return net.JoinHostPort(b.config().Advertise, strconv.Itoa(int(b.storeHost.Port())+1))
}
