package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/broker"
	"github.com/gantrymq/gantry/namesrv"
)

const (
	defaultData          = "./gantry-data"
	defaultListen        = "127.0.0.1:10911"
	defaultNamesrvListen = "127.0.0.1:9876"

	// drainTimeout bounds how long a server waits for its clients when it is
	// told to stop.
	drainTimeout = 10 * time.Second

	// heapFloor is memory that counts as in use and is never touched: the
	// garbage collector runs when the heap has grown by as much again, which
	// for the few MiB that a server needs would be many times a second under
	// load. It takes up to as much real memory, whatever the load.
	heapFloor = 16 << 20
)

// serverFlags are the flags of serve, namesrv and broker.
type serverFlags struct {
	cmd *cobra.Command

	data, listen, namesrvListen, advertise, namesrv string
	certificate, key                                string
	tlsRequired                                     bool
	proxy                                           string
	proxyFrom                                       []string
	http                                            string
	pprof                                           bool
	client                                          clientFlags // of connections to name servers
}

func (f *serverFlags) brokerFlags() {
	fl := f.cmd.Flags()
	fl.StringVar(&f.data, "data", defaultData, "the `directory` of the store, made if need be")
	fl.StringVar(&f.listen, "listen", defaultListen, "the broker's `address`; two ports below it is the VIP channel")
	fl.StringVar(&f.advertise, "advertise", "", "the `host` that clients are told to connect to (default: that of --listen)")
	_ = f.cmd.MarkFlagDirname("data") // the flag exists
}

// commonFlags are those of all three commands.
func (f *serverFlags) commonFlags() {
	fl := f.cmd.Flags()
	fl.StringVar(&f.certificate, "tls-cert", "", "serve TLS beside plain connections, with the certificate in this PEM `file`")
	fl.StringVar(&f.key, "tls-key", "", "its key, a PEM `file`")
	fl.BoolVar(&f.tlsRequired, "tls-required", false, "close connections without TLS")
	fl.StringVar(&f.proxy, "proxy-protocol", "off", "PROXY preambles of a load balancer: off, optional or required")
	fl.StringSliceVar(&f.proxyFrom, "proxy-from", nil, "`networks` whose preambles are believed, 10.0.0.0/8 for instance (default: all)")
	fl.StringVar(&f.http, "http", "", "the `address` of an HTTP port with /metrics, /healthz and /readyz (default: none)")
	fl.BoolVar(&f.pprof, "pprof", false, "serve Go's profiles on the HTTP port, below /debug/pprof/")
	_ = fl.MarkHidden("pprof") // the flag exists
}

func (a *app) serve() *cobra.Command {
	f := &serverFlags{cmd: &cobra.Command{
		Use:   "serve",
		Short: "Run name server and broker in one process",
		Long: `Runs a name server and a broker for unmodified RocketMQ clients. One line on the
standard output says when both are ready, and where; with --json it is an object,
and so is each line of the log. SIGTERM or Ctrl-C stops them cleanly.

Nothing asks for a password, so both listen on this machine only. To open them to
others: --listen 0.0.0.0:10911 --namesrv-listen 0.0.0.0:9876 --advertise HOST.

The broker registers without TLS and without a PROXY preamble. So the name server
beside it takes such connections too, whatever is required of the broker's.`,
		Example: "  gantry serve\n  gantry serve --data /var/lib/gantry --config broker.conf --http 127.0.0.1:5557",
		Args:    cobra.NoArgs,
	}}
	f.brokerFlags()
	f.cmd.Flags().StringVar(&f.namesrvListen, "namesrv-listen", defaultNamesrvListen, "the name server's `address`")
	f.commonFlags()
	f.cmd.RunE = run(func(ctx context.Context, _ []string) error { return a.runServers(ctx, f, true, true) })
	return f.cmd
}

func (a *app) namesrv() *cobra.Command {
	f := &serverFlags{cmd: &cobra.Command{
		Use:   "namesrv",
		Short: "Run a name server",
		Long: `Runs a name server for brokers of Gantry and of Java RocketMQ 4.x and 5.x. One
line on the standard output says when it is ready, and where. SIGTERM or Ctrl-C
stops it cleanly.`,
		Example: "  gantry namesrv --listen 0.0.0.0:9876",
		Args:    cobra.NoArgs,
	}}
	fl := f.cmd.Flags()
	fl.StringVar(&f.data, "data", defaultData, "the `directory` of the KV configuration, made if need be")
	fl.StringVar(&f.namesrvListen, "listen", defaultNamesrvListen, "the `address` to listen on")
	_ = f.cmd.MarkFlagDirname("data") // the flag exists
	f.commonFlags()
	f.cmd.RunE = run(func(ctx context.Context, _ []string) error { return a.runServers(ctx, f, true, false) })
	return f.cmd
}

func (a *app) broker() *cobra.Command {
	f := &serverFlags{cmd: &cobra.Command{
		Use:   "broker",
		Short: "Run a broker",
		Long: `Runs a broker that registers with name servers, of Gantry or of Java RocketMQ.
Without --namesrv the addresses are those of namesrvAddr in --config, or of the
environment variable NAMESRV_ADDR. One line on the standard output says when it is
ready, and where. SIGTERM or Ctrl-C stops it cleanly.

Brokers of one cluster need names of their own: --set brokerName=broker-b.`,
		Example: "  gantry broker --namesrv '10.0.0.1:9876;10.0.0.2:9876' --listen 0.0.0.0:10911 --advertise 10.0.0.5 --set brokerName=broker-b",
		Args:    cobra.NoArgs,
	}}
	f.brokerFlags()
	f.cmd.Flags().StringVar(&f.namesrv, "namesrv", "", "name servers, `ADDR[;ADDR]`")
	f.client.addTLS(f.cmd, "connect to name servers by TLS")
	f.commonFlags()
	f.cmd.RunE = run(func(ctx context.Context, _ []string) error { return a.runServers(ctx, f, false, true) })
	return f.cmd
}

// phase is how far servers have come.
type phase int32

const (
	starting phase = iota
	ready
	stopping
)

func (p phase) String() string { return [...]string{"starting", "ready", "stopping"}[p] }

// servers are the parts of a server process. Those that do not run are nil; the
// HTTP port looks at them while they start and stop.
type servers struct {
	phase  atomic.Int32
	names  atomic.Pointer[namesrv.Server]
	broker atomic.Pointer[broker.Broker]
	http   *httpServer
}

// runServers runs a name server, a broker or both until ctx ends.
func (a *app) runServers(ctx context.Context, f *serverFlags, names, withBroker bool) error {
	o, err := a.serverOptions(f, names, withBroker)
	if err != nil {
		return failed(err)
	}
	floor := make([]byte, heapFloor)
	defer runtime.KeepAlive(floor)
	var s servers
	if err = s.start(ctx, o); err != nil {
		err = a.explain(err, o)
	} else {
		s.phase.Store(int32(ready))
		if err = a.printReady(&s, o); err == nil {
			err = s.wait(ctx)
		}
	}
	return failed(errors.Join(err, s.stop()))
}

// start starts what o asks for: the HTTP port first, so that it tells how the
// others are getting on, and the name server before the broker that needs it.
func (s *servers) start(ctx context.Context, o *serverOptions) error {
	if o.http != "" {
		h, err := startHTTP(o.http, s, o.pprof)
		if err != nil {
			return fmt.Errorf("HTTP port: %w", err)
		}
		s.http = h
	}
	if o.names != nil {
		n, err := namesrv.Start(ctx, *o.names)
		if err != nil {
			return err
		}
		s.names.Store(n)
	}
	if o.broker != nil {
		if n := s.names.Load(); n != nil {
			o.broker.Config.NameServers = withOwn(n.Addr(), o.broker.Config.NameServers)
		}
		b, err := broker.Start(ctx, *o.broker)
		if err != nil {
			return err
		}
		s.broker.Store(b)
	}
	return nil
}

// withOwn puts the name server of this process before the others that the
// configuration names; it may be one of them.
func withOwn(own netip.AddrPort, others []string) []string {
	if ip := own.Addr(); ip.IsUnspecified() {
		loopback := netip.IPv6Loopback()
		if ip.Is4() {
			loopback = netip.AddrFrom4([4]byte{127, 0, 0, 1})
		}
		own = netip.AddrPortFrom(loopback, own.Port())
	}
	all := []string{own.String()}
	for _, addr := range others {
		if addr != own.String() {
			all = append(all, addr)
		}
	}
	return all
}

// wait returns when ctx ends or a listener has failed.
func (s *servers) wait(ctx context.Context) error {
	var ofNames, ofBroker, ofHTTP <-chan error // a nil one never has anything
	if n := s.names.Load(); n != nil {
		ofNames = n.Failed()
	}
	if b := s.broker.Load(); b != nil {
		ofBroker = b.Failed()
	}
	if s.http != nil {
		ofHTTP = s.http.failed
	}
	select {
	case <-ctx.Done():
		return nil
	case err := <-ofNames:
		return fmt.Errorf("name server: %w", err)
	case err := <-ofBroker:
		return fmt.Errorf("broker: %w", err)
	case err := <-ofHTTP:
		return fmt.Errorf("HTTP port: %w", err)
	}
}

// stop ends what runs, the broker before the name server that it says goodbye
// to, and the HTTP port, which has told of it, last.
func (s *servers) stop() error {
	s.phase.Store(int32(stopping))
	ctx, cancel := context.WithTimeout(context.Background(), drainTimeout)
	defer cancel()
	var errs []error
	if b := s.broker.Load(); b != nil {
		if err := b.Shutdown(ctx); err != nil {
			errs = append(errs, fmt.Errorf("stop the broker: %w", err))
		}
	}
	if n := s.names.Load(); n != nil {
		// Clients that would not go are no failure: there is nothing to lose.
		if err := n.Shutdown(ctx); err != nil && !errors.Is(err, context.DeadlineExceeded) {
			errs = append(errs, fmt.Errorf("stop the name server: %w", err))
		}
	}
	if s.http != nil {
		s.http.close()
	}
	return errors.Join(errs...)
}

// explain adds to an error of start what to do about it.
func (a *app) explain(err error, o *serverOptions) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w: another server has it: stop that one, or take another address with %s", err, o.addressFlags())
	}
	if o.broker == nil {
		return err
	}
	dir := o.broker.Dir
	switch {
	case errors.Is(err, gantry.ErrLocked):
		holder, herr := gantry.LockHolder(dir, a.fs)
		if herr != nil || holder == "" { // it has gone meanwhile
			return err
		}
		return fmt.Errorf("%s is held by process %s: stop it, or take another directory with --data: %w", dir, holder, gantry.ErrLocked)
	case errors.Is(err, gantry.ErrCorrupt):
		return fmt.Errorf("%w: \"gantry store verify %s\" tells more, and \"gantry store repair %s --out NEW\" makes a healthy copy", err, dir, dir)
	}
	return err
}

// readyJSON is what a server prints when it is ready.
type readyJSON struct {
	NameServer string `json:"nameServer,omitempty"`
	Broker     string `json:"broker,omitempty"`
	HTTP       string `json:"http,omitempty"`
	Data       string `json:"data,omitempty"`
	ProcessID  int    `json:"pid"`
}

// printReady prints the addresses for clients, in one line.
func (a *app) printReady(s *servers, o *serverOptions) error {
	r := readyJSON{ProcessID: os.Getpid()}
	var parts, flags []string
	open := true
	if n := s.names.Load(); n != nil {
		addr := n.Addr()
		open = open && !addr.Addr().IsLoopback()
		r.NameServer = addr.String()
		if addr.Addr().IsUnspecified() {
			r.NameServer = net.JoinHostPort(o.host, strconv.Itoa(int(addr.Port())))
		}
		parts = append(parts, "name server "+r.NameServer)
	}
	if b := s.broker.Load(); b != nil {
		open = open && !b.ListensOn().IsLoopback()
		r.Broker, r.Data = b.Addr(), b.Store().Dir()
		parts = append(parts, "broker "+r.Broker, "data "+r.Data)
		flags = append(flags, "--advertise HOST")
	}
	if s.http != nil {
		r.HTTP = s.http.addr
		parts = append(parts, "http://"+r.HTTP+"/metrics")
	}
	if a.json {
		return a.printJSON(r)
	}
	hint := ""
	if !open {
		hint = "; for this machine only, others need " + strings.Join(append([]string{o.addressFlags()}, flags...), " and ")
	}
	return a.printf("gantry is ready: %s%s\n", strings.Join(parts, ", "), hint)
}
