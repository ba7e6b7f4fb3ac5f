package namesrv

import (
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"path/filepath"
	"strconv"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/remoting"
)

// Options are the options of a Server. Zero values are the defaults, which are
// upstream's. Fields without a comment of their own are the properties of
// upstream's NamesrvConfig.
type Options struct {
	// Listen is the address to listen on, host:port; port 0 takes a free
	// one. "" means ":9876".
	Listen string
	// Dir is where kvConfig.json lies; it is made when missing. "" keeps KV
	// config in memory only.
	Dir string

	Logger *slog.Logger // nil: discard
	FS     vfs.FS       // nil: the operating system

	// Limits, TLS, TLSRequired, Proxy and TrustedProxies are those of
	// remoting.ServerOptions.
	Limits         remoting.Limits
	TLS            *tls.Config
	TLSRequired    bool
	Proxy          remoting.ProxyMode
	TrustedProxies []netip.Prefix

	// OrderMessageEnable adds to a route the queues that KV config has for
	// the topic in namespace ORDER_TOPIC_CONFIG. Clients then use those
	// instead of what the brokers registered.
	OrderMessageEnable bool
	// SupportActingMaster shows the slave with the smallest id as the master
	// of a broker that has none, if the broker wants that.
	SupportActingMaster bool
	// DeleteTopicWithBrokerRegistration takes a topic from a broker that
	// registers without it. Brokers that register single topics by 103, as
	// Java brokers do when one changes, lose all others by that.
	DeleteTopicWithBrokerRegistration bool
	// NeedWaitForService answers 105 SYSTEM_ERROR for the first
	// WaitSecondsForService seconds, until brokers have registered. 0 means
	// 45 s.
	NeedWaitForService    bool
	WaitSecondsForService int
	// ScanNotActiveBrokerInterval is the time between two looks for brokers
	// that have been silent for too long. 0 means 5 s.
	ScanNotActiveBrokerInterval time.Duration
	// DisableTopicList answers 224 and 311 to 313 with SYSTEM_ERROR
	// (upstream: enableTopicList=false), DisableAllTopicList answers 206 so
	// (enableAllTopicList=false).
	DisableTopicList    bool
	DisableAllTopicList bool
	// DisableReturnOrderTopicConfig leaves ORDER_TOPIC_CONFIG out of the
	// answers to 103 (upstream: returnOrderTopicConfigToBroker=false).
	DisableReturnOrderTopicConfig bool
	// ProductEnvName is only shown. "" means "center".
	ProductEnvName string
}

const (
	defaultListen       = ":9876"
	defaultWaitSeconds  = 45
	defaultScanInterval = 5 * time.Second
	defaultProductEnv   = "center"
	defaultIdleSeconds  = 120
	kvConfigFile        = "kvConfig.json"
	maxWaitSeconds      = 24 * 60 * 60
	maxScanIntervalMs   = 60 * 60 * 1000
	configBlackList     = "configBlackList;configStorePath;kvConfigPath"
)

func (o Options) withDefaults() Options {
	if o.Listen == "" {
		o.Listen = defaultListen
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.WaitSecondsForService == 0 {
		o.WaitSecondsForService = defaultWaitSeconds
	}
	if o.ScanNotActiveBrokerInterval == 0 {
		o.ScanNotActiveBrokerInterval = defaultScanInterval
	}
	if o.ProductEnvName == "" {
		o.ProductEnvName = defaultProductEnv
	}
	return o
}

// Validate reports options that make no sense or contradict each other.
func (o Options) Validate() error {
	switch {
	case o.WaitSecondsForService < 0:
		return fmt.Errorf("namesrv: WaitSecondsForService is negative: %d", o.WaitSecondsForService)
	case o.ScanNotActiveBrokerInterval < 0:
		return fmt.Errorf("namesrv: ScanNotActiveBrokerInterval is negative: %v", o.ScanNotActiveBrokerInterval)
	}
	if o.Listen != "" {
		if _, _, err := net.SplitHostPort(o.Listen); err != nil {
			return fmt.Errorf("namesrv: Listen: %w", err)
		}
	}
	if err := o.remoting(nil).Validate(); err != nil {
		return fmt.Errorf("namesrv: %w", err)
	}
	return nil
}

func (o Options) remoting(mux *remoting.Mux) remoting.ServerOptions {
	return remoting.ServerOptions{
		Options: remoting.Options{
			Mux:    mux,
			Inline: func(req *remoting.Command) bool { return req.Code == remoting.ReqGetRouteInfoByTopic },
			Limits: o.Limits,
			TLS:    o.TLS,
			Logger: o.Logger,
		},
		TLSRequired:    o.TLSRequired,
		Proxy:          o.Proxy,
		TrustedProxies: o.TrustedProxies,
	}
}

func (o Options) kvConfigPath() string {
	if o.Dir == "" {
		return ""
	}
	return filepath.Join(o.Dir, kvConfigFile)
}

// A property is one of upstream's properties as text.
type property struct {
	name string
	get  func(*Options) string
	set  func(*Options, string) error // nil: only shown
	live bool                         // 318 may change it
}

// properties are ordered by name, as 319 shows them.
var properties = []property{
	{"bindAddress", bindAddress, setBindAddress, false},
	{"configBlackList", func(*Options) string { return configBlackList }, nil, false},
	boolProperty("deleteTopicWithBrokerRegistration", true, func(o *Options) *bool { return &o.DeleteTopicWithBrokerRegistration }),
	boolProperty("enableAllTopicList", false, func(o *Options) *bool { return &o.DisableAllTopicList }),
	boolProperty("enableTopicList", false, func(o *Options) *bool { return &o.DisableTopicList }),
	{"kvConfigPath", func(o *Options) string { return o.kvConfigPath() }, nil, false},
	{"listenPort", listenPort, setListenPort, false},
	boolProperty("needWaitForService", true, func(o *Options) *bool { return &o.NeedWaitForService }),
	boolProperty("orderMessageEnable", true, func(o *Options) *bool { return &o.OrderMessageEnable }),
	{"productEnvName", func(o *Options) string { return o.ProductEnvName }, setProductEnvName, true},
	boolProperty("returnOrderTopicConfigToBroker", false, func(o *Options) *bool { return &o.DisableReturnOrderTopicConfig }),
	{"scanNotActiveBrokerInterval", scanInterval, setScanInterval, false},
	{"serverChannelMaxIdleTimeSeconds", idleSeconds, setIdleSeconds, false},
	boolProperty("supportActingMaster", true, func(o *Options) *bool { return &o.SupportActingMaster }),
	{"waitSecondsForService", waitSeconds, setWaitSeconds, true},
}

func findProperty(name string) *property {
	for i := range properties {
		if properties[i].name == name {
			return &properties[i]
		}
	}
	return nil
}

// SetProperty sets the option that upstream calls name, as in a file of
// properties. known is false for a property that has no meaning here. Neither
// kvConfigPath nor configBlackList can be set.
func (o *Options) SetProperty(name, value string) (known bool, err error) {
	p := findProperty(name)
	switch {
	case p == nil:
		return false, nil
	case p.set == nil:
		return true, fmt.Errorf("property %s cannot be set", name)
	}
	if err := p.set(o, value); err != nil {
		return true, fmt.Errorf("property %s: %w", name, err)
	}
	return true, nil
}

// boolProperty is a property whose field has the same sense, or the opposite one
// so that its zero value is upstream's default.
func boolProperty(name string, same bool, field func(*Options) *bool) property {
	return property{
		name: name,
		live: true,
		get:  func(o *Options) string { return strconv.FormatBool(*field(o) == same) },
		set: func(o *Options, value string) error {
			if value != "true" && value != "false" {
				return fmt.Errorf("%s is neither true nor false", quoteClipped(value))
			}
			*field(o) = (value == "true") == same
			return nil
		},
	}
}

func parseNumber(value string, low, high int64) (int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("%s is not a number from %d to %d", quoteClipped(value), low, high)
	}
	return n, nil
}

func splitListen(o *Options) (host, port string) {
	listen := o.Listen
	if listen == "" {
		listen = defaultListen
	}
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", ""
	}
	return host, port
}

func bindAddress(o *Options) string {
	host, _ := splitListen(o)
	if host == "" {
		return netip.IPv4Unspecified().String()
	}
	return host
}

func setBindAddress(o *Options, value string) error {
	_, port := splitListen(o)
	o.Listen = net.JoinHostPort(value, port)
	return nil
}

func listenPort(o *Options) string {
	_, port := splitListen(o)
	return port
}

func setListenPort(o *Options, value string) error {
	n, err := parseNumber(value, 0, 65535)
	if err != nil {
		return err
	}
	host, _ := splitListen(o)
	o.Listen = net.JoinHostPort(host, strconv.FormatInt(n, 10))
	return nil
}

func setProductEnvName(o *Options, value string) error {
	if err := checkName("name", value, maxNameLen); err != nil {
		return err
	}
	o.ProductEnvName = value
	return nil
}

func scanInterval(o *Options) string {
	return strconv.FormatInt(o.ScanNotActiveBrokerInterval.Milliseconds(), 10)
}

func setScanInterval(o *Options, value string) error {
	n, err := parseNumber(value, 1, maxScanIntervalMs)
	if err == nil {
		o.ScanNotActiveBrokerInterval = time.Duration(n) * time.Millisecond
	}
	return err
}

func idleSeconds(o *Options) string {
	if o.Limits.IdleTimeout == 0 {
		return strconv.Itoa(defaultIdleSeconds)
	}
	return strconv.FormatInt(int64(o.Limits.IdleTimeout/time.Second), 10)
}

func setIdleSeconds(o *Options, value string) error {
	n, err := parseNumber(value, 1, maxWaitSeconds)
	if err == nil {
		o.Limits.IdleTimeout = time.Duration(n) * time.Second
	}
	return err
}

func waitSeconds(o *Options) string { return strconv.Itoa(o.WaitSecondsForService) }

func setWaitSeconds(o *Options, value string) error {
	n, err := parseNumber(value, 1, maxWaitSeconds)
	if err == nil {
		o.WaitSecondsForService = int(n)
	}
	return err
}
