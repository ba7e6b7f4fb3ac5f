package cli

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/broker"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/namesrv"
	"github.com/gantrymq/gantry/remoting"
)

// serverOptions say what a server process runs.
type serverOptions struct {
	names  *namesrv.Options // nil: no name server
	broker *broker.Options  // nil: no broker
	http   string           // "": no HTTP port
	pprof  bool
	host   string // that clients are told when the name server listens on all addresses
}

// addressFlags names the flags that move what runs.
func (o *serverOptions) addressFlags() string {
	if o.names != nil && o.broker != nil {
		return "--listen and --namesrv-listen"
	}
	return "--listen"
}

// refusedOfServers are properties besides those of store and broker that ask for
// what would be missed, by the value that is no problem.
var refusedOfServers = map[string]string{
	"messageStorePlugIn":              "", // tiered storage: messages are elsewhere
	"configManagerVersion":            "v1",
	"indexRocksDBEnable":              "false",
	"transRocksDBEnable":              "false",
	"timerRocksDBEnable":              "false",
	"useSingleRocksDBForAllConfigs":   "false",
	"fetchNamesrvAddrByAddressServer": "false",
	"fetchNameSrvAddrByDnsLookup":     "false",
	"isBrokerContainer":               "false",
	"isInBrokerContainer":             "false",
}

// The properties that ask for the HTTP port as upstream's do.
const (
	exporterSetting     = "metricsExporterType"
	exporterHostSetting = "metricsPromExporterHost"
	exporterPortSetting = "metricsPromExporterPort"
	defaultExporterPort = "5557"
)

// kvConfigSetting is where upstream's name server keeps its KV configuration. The
// file has one name here, so the property can move it only to another directory.
const kvConfigSetting = "kvConfigPath"

// settings reads --config and --set. given are the names of --set.
func (a *app) settings() (settings tool.Settings, given map[string]bool, err error) {
	settings, given = tool.Settings{}, make(map[string]bool)
	if a.config != "" {
		if settings, err = tool.ReadSettings(a.config); err != nil {
			return nil, nil, failed(err)
		}
	}
	for _, pair := range a.set {
		name, err := settings.Set(pair)
		if err != nil {
			return nil, nil, usagef("--set: %v", err)
		}
		given[name] = true
	}
	return settings, given, nil
}

// unusedSettings lists the properties of the file that mean nothing here, and
// refuses such ones of --set.
func (a *app) unusedSettings(settings tool.Settings, given, used map[string]bool) error {
	for _, name := range slices.Sorted(maps.Keys(given)) {
		if !used[name] {
			return usagef("--set %s: it means nothing to this command", name)
		}
	}
	a.noteUnused(settings, given, used)
	return nil
}

// noteUnused lists the properties that mean nothing here, those of the file and
// those of --set: what a Java broker starts with starts a server.
func (a *app) noteUnused(settings tool.Settings, given, used map[string]bool) {
	unused := make(map[string][]string)
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		from := a.config
		if given[name] {
			from = "--set"
		}
		if !used[name] {
			unused[from] = append(unused[from], name)
		}
	}
	for _, from := range slices.Sorted(maps.Keys(unused)) {
		a.note("%s: not used here: %s", from, strings.Join(unused[from], ", "))
	}
}

// serverSettings are the properties on their way into options.
type serverSettings struct {
	tool.Settings
	given map[string]bool // by --set
	used  map[string]bool
	errs  []error
}

// take returns the value of a property, which counts as used then.
func (s *serverSettings) take(name string) (value string, ok bool) {
	value, ok = s.Settings[name]
	s.used[name] = s.used[name] || ok
	return strings.TrimSpace(value), ok
}

func (s *serverSettings) refuse(name, value, why string) {
	s.errs = append(s.errs, fmt.Errorf("%s=%s: %s", name, value, why))
}

// serverOptions reads flags, --config and --set: flags that were given beat
// --set, which beats the file.
func (a *app) serverOptions(f *serverFlags, names, withBroker bool) (*serverOptions, error) {
	settings, given, err := a.settings()
	if err != nil {
		return nil, err
	}
	s := &serverSettings{Settings: settings, given: given, used: make(map[string]bool)}
	conns, err := f.connections()
	if err != nil {
		return nil, err
	}
	if withBroker {
		if root, ok := s.take(tool.RootSetting); ok && root != "" && !f.cmd.Flags().Changed("data") {
			f.data = root
		}
	}
	o := &serverOptions{pprof: f.pprof}
	logger := a.serverLogger()
	for name, harmless := range refusedOfServers {
		if v, ok := s.take(name); ok && !strings.EqualFold(v, harmless) {
			s.refuse(name, v, "not supported")
		}
	}
	o.http = f.httpAddress(s)
	if names {
		o.names = &namesrv.Options{
			Listen: f.namesrvListen, Logger: logger, FS: a.fs,
			TLS: conns.tls, TLSRequired: conns.tlsRequired, Proxy: conns.proxy, TrustedProxies: conns.trusted,
		}
		if withBroker { // see the help of serve
			o.names.TLSRequired = false
			if conns.proxy == remoting.ProxyRequired {
				o.names.Proxy = remoting.ProxyOptional
			}
		}
		f.namesrvSettings(o.names, s, withBroker)
	}
	if withBroker {
		o.broker = &broker.Options{
			Dir: f.data, Config: broker.NewConfig(), Logger: logger, FS: a.fs,
			TLS: conns.tls, TLSRequired: conns.tlsRequired, Proxy: conns.proxy, TrustedProxies: conns.trusted,
		}
		if o.broker.ClientTLS, err = f.client.tlsConfig(); err != nil {
			return nil, err
		}
		a.brokerSettings(o.broker, s)
	}
	slices.SortFunc(s.errs, func(a, b error) int { return strings.Compare(a.Error(), b.Error()) })
	if err := errors.Join(s.errs...); err != nil {
		return nil, usagef("%v", err)
	}
	if err := f.addresses(o, s); err != nil {
		return nil, err
	}
	if withBroker {
		a.noteUnreachable(o.broker.Config)
	}
	a.noteUnused(settings, given, s.used)
	return o, nil
}

// serverLogger is logger with times: the log of a server is read later.
func (a *app) serverLogger() *slog.Logger {
	o := &slog.HandlerOptions{Level: slog.LevelInfo}
	if a.verbose {
		o.Level = slog.LevelDebug
	}
	if a.json {
		return slog.New(slog.NewJSONHandler(a.errors(), o))
	}
	return slog.New(slog.NewTextHandler(a.errors(), o))
}

// httpAddress returns the address of the HTTP port: that of the flag, or what
// upstream's properties ask for.
func (f *serverFlags) httpAddress(s *serverSettings) string {
	exporter, _ := s.take(exporterSetting)
	host, _ := s.take(exporterHostSetting)
	port, ok := s.take(exporterPortSetting)
	if !ok || port == "" {
		port = defaultExporterPort
	}
	switch prom := strings.EqualFold(exporter, "PROM"); {
	case !prom && exporter != "" && !strings.EqualFold(exporter, "DISABLE"):
		s.refuse(exporterSetting, exporter, "not supported, PROM is")
	case f.http == "" && prom:
		return net.JoinHostPort(host, port)
	}
	return f.http
}

// namesrvSettings applies the properties of a name server. Beside a broker,
// listenPort and bindAddress are the broker's.
func (f *serverFlags) namesrvSettings(o *namesrv.Options, s *serverSettings, withBroker bool) {
	flags := f.cmd.Flags()
	o.Dir = filepath.Join(f.data, "namesrv")
	if path, ok := s.take(kvConfigSetting); ok && path != "" {
		if filepath.Base(path) != "kvConfig.json" {
			s.refuse(kvConfigSetting, path, "not supported: the file is called kvConfig.json")
		} else if !flags.Changed("data") {
			o.Dir = filepath.Dir(path)
		}
	}
	for name, value := range s.Settings {
		switch name {
		case "listenPort", "bindAddress":
			if withBroker {
				continue
			}
			if flags.Changed("listen") {
				s.used[name] = true
				continue
			}
		case kvConfigSetting, "configBlackList": // the latter is upstream's own
			s.used[name] = true
			continue
		}
		known, err := o.SetProperty(name, strings.TrimSpace(value))
		if err != nil {
			s.errs = append(s.errs, err)
		}
		s.used[name] = s.used[name] || known
	}
}

// brokerSettings applies the properties of a store and of a broker.
func (a *app) brokerSettings(o *broker.Options, s *serverSettings) {
	unknown, err := s.Apply(&o.Store, o.Dir)
	if err != nil {
		s.errs = append(s.errs, err)
	}
	known := maps.Clone(s.Settings)
	for _, name := range unknown {
		delete(known, name)
		switch err := o.Config.Set(name, s.Settings[name]); {
		case errors.Is(err, broker.ErrUnknownSetting):
		case err != nil:
			s.errs = append(s.errs, err)
		default:
			s.used[name] = true
		}
	}
	for name := range known {
		s.used[name] = true
	}
	o.Store.IndexLocation = a.now().Location()
	m := a.meter()
	o.Store.Progress = func(p gantry.Progress) { m.show(p.Step, p.Done, p.Total, p.Unit) }
	if err := o.Store.Validate(); err != nil {
		s.errs = append(s.errs, err)
	}
}

// addresses applies the flags about addresses, and checks what came of it.
func (f *serverFlags) addresses(o *serverOptions, s *serverSettings) error {
	if o.names != nil {
		host, _, err := splitAddress(o.names.Listen)
		if err != nil {
			return usagef("--%s %s: %v", map[bool]string{true: "namesrv-listen", false: "listen"}[o.broker != nil], o.names.Listen, err)
		}
		if o.broker == nil {
			o.host, err = advertised(host)
			return err
		}
	}
	return f.brokerAddresses(o, s)
}

func (f *serverFlags) brokerAddresses(o *serverOptions, s *serverSettings) error {
	c, flags := &o.broker.Config, f.cmd.Flags()
	host, port, err := splitAddress(f.listen)
	if err != nil {
		return usagef("--listen %s: %v", f.listen, err)
	}
	if _, ok := s.take("listenPort"); !ok || flags.Changed("listen") {
		c.ListenPort = port
	}
	if _, ok := s.take("bindAddress"); !ok || flags.Changed("listen") {
		c.BindAddress = host
	}
	switch ip, ok := s.take("brokerIP1"); {
	case f.advertise != "":
		c.Advertise = f.advertise
	case !ok || ip == "":
		if c.Advertise, err = advertised(c.BindAddress); err != nil {
			return err
		}
	}
	if err := checkAdvertised(c.Advertise); err != nil {
		return err
	}
	o.host = c.Advertise
	if flags.Lookup("namesrv") != nil {
		if err := f.nameServers(c); err != nil {
			return err
		}
	}
	if err := c.Validate(); err != nil {
		return usagef("%v", err)
	}
	return nil
}

// nameServers finds the name servers of a broker that has none beside it.
func (f *serverFlags) nameServers(c *broker.Config) (err error) {
	text, from := f.namesrv, "--namesrv"
	if text == "" && len(c.NameServers) == 0 {
		text, from = os.Getenv(namesrvEnv), namesrvEnv
	}
	if text != "" {
		if c.NameServers, err = broker.ParseAddresses(text); err != nil {
			return usagef("%s: %v", from, err)
		}
	}
	if len(c.NameServers) == 0 {
		return usagef("no name server: give --namesrv ADDR, or run \"gantry serve\", which has one")
	}
	return nil
}

// noteUnreachable warns of a broker that tells clients an address which it does
// not listen on: upstream's listens on all unless told otherwise.
func (a *app) noteUnreachable(c broker.Config) {
	listens, err := netip.ParseAddr(c.BindAddress)
	if told, terr := netip.ParseAddr(c.Advertise); err == nil && terr == nil && listens.IsLoopback() && !told.IsLoopback() {
		a.note("clients are told to connect to %s, but the broker listens on %s; --listen 0.0.0.0:%d has it listen on all addresses", told, listens, c.ListenPort)
	}
}

func splitAddress(addr string) (host string, port int, err error) {
	host, text, err := net.SplitHostPort(addr)
	if err != nil {
		return "", 0, errors.New("want HOST:PORT")
	}
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		return "", 0, fmt.Errorf("%q is no port", text)
	}
	return host, int(n), nil
}

func checkAdvertised(host string) error {
	if _, _, err := net.SplitHostPort(host); err == nil {
		return usagef("--advertise %s: want a host without a port; the port is that of --listen", host)
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return usagef("--advertise %s: clients cannot connect to it", host)
	}
	return nil
}

// advertised is the host that clients are told when a server listens on one: an
// address of this machine when it listens on all of them.
func advertised(listen string) (string, error) {
	ip, err := netip.ParseAddr(listen)
	if listen != "" && (err != nil || !ip.IsUnspecified()) {
		return listen, nil
	}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return "", fmt.Errorf("find an address to advertise; --advertise names one: %w", err)
	}
	best := ""
	for _, a := range addrs {
		p, err := netip.ParsePrefix(a.String())
		if err != nil || p.Addr().IsLoopback() || p.Addr().IsLinkLocalUnicast() {
			continue
		}
		if p.Addr().Is4() {
			return p.Addr().String(), nil
		}
		if best == "" {
			best = p.Addr().String()
		}
	}
	if best == "" {
		best = "127.0.0.1"
	}
	return best, nil
}

// connectionOptions are what the flags about TLS and PROXY preambles say.
type connectionOptions struct {
	tls         *tls.Config
	tlsRequired bool
	proxy       remoting.ProxyMode
	trusted     []netip.Prefix
}

func (f *serverFlags) connections() (connectionOptions, error) {
	modes := map[string]remoting.ProxyMode{"off": remoting.ProxyOff, "optional": remoting.ProxyOptional, "required": remoting.ProxyRequired}
	c := connectionOptions{tlsRequired: f.tlsRequired}
	var ok bool
	if c.proxy, ok = modes[f.proxy]; !ok {
		return c, usagef("--proxy-protocol %s: want off, optional or required", f.proxy)
	}
	for _, text := range f.proxyFrom {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			return c, usagef("--proxy-from %s: want a network such as 10.0.0.0/8", text)
		}
		c.trusted = append(c.trusted, p.Masked())
	}
	switch {
	case len(f.proxyFrom) > 0 && c.proxy == remoting.ProxyOff:
		return c, usagef("--proxy-from wants --proxy-protocol optional or required")
	case (f.certificate == "") != (f.key == ""):
		return c, usagef("--tls-cert and --tls-key go together")
	case f.certificate == "" && f.tlsRequired:
		return c, usagef("--tls-required wants --tls-cert and --tls-key")
	case f.certificate == "":
		return c, nil
	}
	cert, err := tls.LoadX509KeyPair(f.certificate, f.key)
	if err != nil {
		return c, failed(fmt.Errorf("TLS certificate: %w", err))
	}
	c.tls = &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}
	return c, nil
}
