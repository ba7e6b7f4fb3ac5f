package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/membership"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// Options are what a broker is started with.
type Options struct {
	// Dir is the directory of the store; config/ below it holds topics,
	// groups and offsets.
	Dir    string
	Config Config
	// Store are the options of the store. StoreHost, FS and Logger are the
	// broker's to set; IsBatchTopic, Events.Arrived and Events.Delivered are
	// called beside its own.
	Store gantry.Options

	// TLS serves TLS and plain connections on the same ports; TLSRequired
	// closes plain ones.
	TLS         *tls.Config
	TLSRequired bool
	// ClientTLS is how the broker connects to its name servers. nil: plainly.
	ClientTLS *tls.Config
	// Proxy and TrustedProxies are those of remoting.ServerOptions.
	Proxy          remoting.ProxyMode
	TrustedProxies []netip.Prefix
	// Limits bounds what connections may take. IdleTimeout is the
	// configuration's.
	Limits remoting.Limits

	FS     vfs.FS       // nil: the operating system; internal type, so ours to set
	Logger *slog.Logger // nil: discard
	// Now is the clock in ms since 1970; nil is the system's.
	Now func() int64
}

// Broker is a running broker. Start makes it, Shutdown ends it.
type Broker struct {
	opts Options
	log  *slog.Logger
	now  func() int64
	cfg  atomic.Pointer[Config]
	// configuring is held while the configuration is changed.
	configuring sync.Mutex
	start       time.Time

	addr      string // host:port as routes give it out
	listens   netip.Addr
	storeHost netip.AddrPort // the same with the host resolved: part of message ids

	store  countedStore
	topics *metadata.Topics
	groups *metadata.Groups
	// offsets are what consumers have committed, filters their SQL92
	// expressions.
	offsets *metadata.Offsets
	filters *metadata.Filters

	clients  *membership.Registry
	uniqKeys *message.UniqKeys
	memory   int64 // of the machine, in bytes

	server       *remoting.Server
	registrar    *registrar
	holds        *holds
	pulls        gate // reads of pulls, held ones included
	queries      gate // reads of queries and of messages by id
	relays       gate // clients that are asked on behalf of others
	large        gate // large bodies
	transactions *transactions
	stats        *stats
	metrics      *metrics

	stop    context.CancelFunc // of the loops
	loops   sync.WaitGroup
	serving sync.WaitGroup
	failed  chan error // the first listener that failed

	shutdown struct {
		sync.Mutex
		done bool
		err  error
	}
}

// Start opens the store in opts.Dir, creating it if there is none, and serves.
// When it returns, the broker has registered with those of its name servers
// that answered, and is ready. Cancelling ctx stops the opening only.
//
// The directory of a Java broker is taken over as it is.
func Start(ctx context.Context, opts Options) (_ *Broker, err error) {
	b, err := newBroker(opts)
	if err != nil {
		return nil, err
	}
	// The ports first: they are cheap to try, and message ids need them.
	main, vip, err := listen(opts.Config.BindAddress, opts.Config.ListenPort)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			main.Close() //nolint:errcheck // the error that counts is err
			vip.Close()  //nolint:errcheck
		}
	}()
	if err := b.resolve(ctx, main.Addr()); err != nil {
		return nil, err
	}
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	if err := b.serve(main, vip); err != nil {
		b.clients.Close()
		return nil, errors.Join(err, b.store.Close())
	}
	rctx, cancel := context.WithTimeout(ctx, startRegisterTimeout)
	defer cancel()
	if err := b.registrar.register(rctx, everyServer); err != nil {
		b.log.Warn("not registered with every name server yet", "err", err)
	}
	return b, nil
}

// newBroker checks the options and touches nothing.
func newBroker(opts Options) (*Broker, error) {
	if err := opts.Config.Validate(); err != nil {
		return nil, err
	}
	b := &Broker{
		opts: opts, log: opts.Logger, now: opts.Now, start: time.Now(), failed: make(chan error, 1),
		pulls: newGate(maxPulls), queries: newGate(maxQueries), relays: newGate(maxRelays), large: newGate(maxLarge),
	}
	if b.log == nil {
		b.log = slog.New(slog.DiscardHandler)
	}
	if b.now == nil {
		b.now = func() int64 { return time.Now().UnixMilli() }
	}
	if b.opts.FS == nil {
		b.opts.FS = vfs.OS()
	}
	b.cfg.Store(&opts.Config)
	return b, b.serverOptions().Validate()
}

// startRegisterTimeout bounds how long Start waits for name servers. One that
// does not answer is tried again in the background.
const startRegisterTimeout = 3 * time.Second

// listen opens the port and the VIP port two below it.
func listen(host string, port int) (main, vip net.Listener, err error) {
	const tries = 32
	for range tries {
		if main, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port))); err != nil {
			return nil, nil, fmt.Errorf("listen: %w", err)
		}
		got := main.Addr().(*net.TCPAddr).Port
		vip, err = net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(got-2)))
		if err == nil {
			return main, vip, nil
		}
		main.Close() //nolint:errcheck // unused so far
		if port != 0 {
			return nil, nil, fmt.Errorf("listen on the VIP channel, two below port %d: %w", port, err)
		}
	}
	return nil, nil, fmt.Errorf("listen: no two free ports with one between them: %w", err)
}

// resolve finds the address that routes and message ids carry.
func (b *Broker) resolve(ctx context.Context, a net.Addr) error {
	at := a.(*net.TCPAddr).AddrPort()
	b.listens = at.Addr().Unmap()
	port := at.Port()
	host := b.config().Advertise
	ip, err := netip.ParseAddr(host)
	if err != nil {
		ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		if err != nil {
			return fmt.Errorf("the advertised host %q: %w", host, err)
		}
		ip = ips[0]
		for _, other := range ips {
			if other.Unmap().Is4() { // which every client reads
				ip = other
				break
			}
		}
	}
	b.storeHost = netip.AddrPortFrom(ip.Unmap(), port)
	b.addr = net.JoinHostPort(host, strconv.Itoa(int(port)))
	return nil
}

// open opens the store, whose lock keeps others away from the directory, and
// reads the state beside it.
func (b *Broker) open(ctx context.Context) (err error) {
	b.holds = newHolds(b)
	b.stats = newStats(b)
	b.metrics = newMetrics(b)
	b.transactions = newTransactions(b)

	so := b.opts.Store
	so.StoreHost, so.FS, so.Logger = b.storeHost, b.opts.FS, b.log
	if so.Now == nil {
		so.Now = b.opts.Now
	}
	var topics atomic.Pointer[metadata.Topics] // until then the store itself knows from the file
	also := so.IsBatchTopic
	so.IsBatchTopic = func(name string) bool {
		t := topics.Load()
		return t != nil && t.IsBatch(name) || also != nil && also(name)
	}
	arrived := so.Events.Arrived
	so.Events.Arrived = func(a gantry.Arrival) {
		b.holds.arrived(a)
		if arrived != nil {
			arrived(a)
		}
	}
	delivered := so.Events.Delivered
	so.Events.Delivered = func(topic string, size int) {
		b.stats.delivered(topic, size)
		if delivered != nil {
			delivered(topic, size)
		}
	}
	store, err := gantry.Open(ctx, b.opts.Dir, &so)
	if err != nil {
		return err
	}
	b.store = countedStore{store, b.stats}
	defer func() {
		if err != nil {
			err = errors.Join(err, b.store.Close())
		}
	}()
	b.memory = b.store.Memory()
	dir := filepath.Join(b.opts.Dir, "config")
	if b.topics, err = metadata.OpenTopics(b.opts.FS, dir, b.topicDefaults(), b.log); err != nil {
		return err
	}
	topics.Store(b.topics)
	if b.groups, err = metadata.OpenGroups(b.opts.FS, dir, b.log); err != nil {
		return err
	}
	if b.offsets, err = metadata.OpenOffsets(b.opts.FS, dir, b.log); err != nil {
		return err
	}
	if b.filters, err = metadata.OpenFilters(b.opts.FS, dir, b.log); err != nil {
		return err
	}
	b.clampOffsets()
	if err = b.transactions.restore(); err != nil {
		return err
	}
	b.uniqKeys = message.NewUniqKeys(b.storeHost.Addr(), os.Getpid(), rand.Uint32(), time.Local)
	b.clients = b.newRegistry()
	return nil
}

// clampOffsets brings consumer offsets behind the end of their queue back to it.
// They are left when a machine went down before messages that had been consumed
// reached the disk: the next messages of the queue take those offsets, and the
// group must not miss them.
func (b *Broker) clampOffsets() {
	table := b.offsets.Table()
	for key, queues := range table.OffsetTable {
		topic, group, ok := strings.Cut(key, "@")
		if !ok {
			continue
		}
		for id, off := range queues {
			// A queue that is not there begins at 0.
			_, end, err := b.store.QueueRange(topic, id)
			if err != nil && !errors.Is(err, gantry.ErrNotFound) {
				continue
			}
			if off > int64(end) {
				b.log.Warn("consumer offset behind the end of its queue", "topic", topic, "queueID", id, "group", group, "offset", off, "end", end)
				b.offsets.Commit(group, topic, id, int64(end))
			}
		}
	}
}

func (b *Broker) topicDefaults() metadata.Defaults {
	cfg := b.config()
	d := metadata.Defaults{
		ClusterName: cfg.ClusterName, BrokerName: cfg.BrokerName,
		AutoCreateTopic: cfg.AutoCreateTopic, DefaultTopicQueueNums: cfg.DefaultTopicQueueNums,
		ClusterTopic: cfg.ClusterTopic, BrokerTopic: cfg.BrokerTopic,
	}
	if cfg.TraceTopic {
		d.TraceTopic = cfg.TraceTopicName
	}
	return d
}

// serverOptions are what the server is made with, handlers apart.
func (b *Broker) serverOptions() remoting.ServerOptions {
	limits := b.opts.Limits
	limits.IdleTimeout = b.config().IdleTimeout
	return remoting.ServerOptions{
		Options: remoting.Options{
			Inline: b.inline, Limits: limits, TLS: b.opts.TLS, Logger: b.log, OnClose: b.connectionClosed,
		},
		TLSRequired: b.opts.TLSRequired, Proxy: b.opts.Proxy, TrustedProxies: b.opts.TrustedProxies,
	}
}

// serve starts everything that runs beside the requests, and the listeners.
func (b *Broker) serve(listeners ...net.Listener) error {
	opts := b.serverOptions()
	opts.Mux, opts.Observe = b.handlers(), b.metrics.observe
	server, err := remoting.NewServer(opts)
	if err != nil {
		return err
	}
	b.server = server
	ctx, stop := context.WithCancel(context.Background())
	b.stop = stop
	b.registrar = newRegistrar(ctx, b, b.config().NameServers)
	for _, loop := range []func(context.Context){
		b.registrar.loop, b.saveLoop, b.transactions.loop, b.stats.loop,
	} {
		b.loops.Go(func() { loop(ctx) })
	}
	for _, l := range listeners {
		b.serving.Go(func() {
			if err := server.Serve(l); err != nil {
				select {
				case b.failed <- err:
				default:
				}
			}
		})
	}
	return nil
}

// config returns the configuration of this moment. It is not to be changed.
func (b *Broker) config() *Config { return b.cfg.Load() }

// Addr is the address that clients get from the name server, host:port.
func (b *Broker) Addr() string { return b.addr }

// ListensOn is the IP address that the broker listens on.
func (b *Broker) ListensOn() netip.Addr { return b.listens }

// Store is the broker's store. It is closed by Shutdown.
func (b *Broker) Store() *gantry.Store { return b.store.Store }

// Failed receives an error when a listener failed for good: the broker serves
// no new connections on it and is to be shut down.
func (b *Broker) Failed() <-chan error { return b.failed }

// Shutdown ends the broker: it leaves the name servers, answers the requests
// that are held, finishes those that run, saves topics, groups and offsets, and
// closes the store cleanly. When ctx ends first, connections are closed at
// once; the store is closed cleanly all the same. It may be called more than
// once and concurrently; every call returns the error of the first.
func (b *Broker) Shutdown(ctx context.Context) error {
	b.shutdown.Lock()
	defer b.shutdown.Unlock()
	if !b.shutdown.done {
		b.shutdown.done = true
		b.shutdown.err = b.closeParts(ctx)
	}
	return b.shutdown.err
}

// closeParts closes everything, in the order in which parts need each other.
func (b *Broker) closeParts(ctx context.Context) error {
	b.stop()
	b.registrar.close()
	if err := b.registrar.unregister(ctx); err != nil {
		b.log.Info("name servers will notice by themselves", "err", err)
	}
	b.holds.close()
	if err := b.server.Shutdown(ctx); err != nil {
		b.log.Warn("connections closed before all was answered", "err", err)
	}
	errs := []error{b.server.Close(), b.registrar.client.Close()}
	b.serving.Wait()
	b.loops.Wait()
	b.clients.Close()
	return errors.Join(append(errs, b.save(), b.store.Close())...)
}

// save writes what has changed of topics, groups, offsets and filters.
func (b *Broker) save() error {
	b.transactions.saveOffsets()
	return errors.Join(b.topics.Save(), b.groups.Save(), b.offsets.Save(), b.filters.Save())
}

// saveLoop saves every FlushOffsetInterval.
func (b *Broker) saveLoop(ctx context.Context) {
	for {
		select {
		case <-time.After(b.config().FlushOffsetInterval):
			if err := b.save(); err != nil {
				b.log.Error("cannot save the broker's state", "err", err)
			}
		case <-ctx.Done():
			return
		}
	}
}
