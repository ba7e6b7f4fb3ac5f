package broker

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gantrymq/gantry/remoting"
)

// Config is what a broker.conf sets, the store's settings apart. NewConfig has
// the defaults, Set reads a property under RocketMQ's name, and Properties
// writes them all (upstream: BrokerConfig, NettyServerConfig).
type Config struct {
	ClusterName string // brokerClusterName
	BrokerName  string // brokerName
	BrokerID    int64  // brokerId; 0 is the master

	// Advertise is the host that routes and message ids carry: an IP address,
	// or a name that resolves to one (brokerIP1).
	Advertise string
	// BindAddress and ListenPort are where the broker listens; the port minus
	// two is the VIP channel. Port 0 takes any pair that is free.
	BindAddress string
	ListenPort  int
	// NameServers are the addresses to register with (namesrvAddr).
	NameServers []string

	BrokerPermission            int32 // brokerPermission: remoting.PermRead, PermWrite
	AutoCreateTopic             bool  // autoCreateTopicEnable
	DefaultTopicQueueNums       int32 // of TBW102, the template of new topics
	ClusterTopic                bool  // clusterTopicEnable
	BrokerTopic                 bool  // brokerTopicEnable
	AutoCreateSubscriptionGroup bool
	TraceTopic                  bool   // traceTopicEnable
	TraceTopicName              string // msgTraceTopicName
	TraceOn                     bool   // the property TRACE_ON of messages
	RegionID                    string // the property MSG_REGION
	EnablePropertyFilter        bool   // SQL92
	FilterSupportRetry          bool   // SQL92 on retry topics too
	LongPolling                 bool   // longPollingEnable
	ShortPolling                time.Duration
	UseServerSideResetOffset    bool
	StoreReplyMessage           bool // storeReplyMessageEnable
	RejectTransactionMessage    bool
	TransactionTimeout          time.Duration // transactionTimeOut
	TransactionCheckInterval    time.Duration
	TransactionCheckMax         int32
	// InMemoryMaxRatio says how far from the end of the log, in percent of
	// the memory, a message counts as being in memory
	// (accessMessageInMemoryMaxRatio). A new group begins a queue whose first
	// message is in memory at that message.
	InMemoryMaxRatio int32

	RegisterPeriod      time.Duration // registerNameServerPeriod
	RegisterTimeout     time.Duration // registerBrokerTimeoutMills
	FlushOffsetInterval time.Duration // flushConsumerOffsetInterval

	IdleTimeout time.Duration // serverChannelMaxIdleTimeSeconds
}

// NewConfig returns upstream's defaults, except that SQL92 is on and the
// addresses are those of this machine alone.
func NewConfig() Config {
	return Config{
		ClusterName: "DefaultCluster", BrokerName: "broker-a",
		Advertise: "127.0.0.1", BindAddress: "127.0.0.1", ListenPort: 10911,
		BrokerPermission: remoting.PermRead | remoting.PermWrite,
		AutoCreateTopic:  true, DefaultTopicQueueNums: 8, ClusterTopic: true, BrokerTopic: true,
		AutoCreateSubscriptionGroup: true,
		TraceTopicName:              "RMQ_SYS_TRACE_TOPIC", TraceOn: true, RegionID: "DefaultRegion",
		EnablePropertyFilter: true,
		LongPolling:          true, ShortPolling: time.Second,
		UseServerSideResetOffset: true, StoreReplyMessage: true,
		TransactionTimeout: 6 * time.Second, TransactionCheckInterval: 30 * time.Second, TransactionCheckMax: 15,
		InMemoryMaxRatio: 40,
		RegisterPeriod:   30 * time.Second, RegisterTimeout: 24 * time.Second,
		FlushOffsetInterval: 5 * time.Second,
		IdleTimeout:         120 * time.Second,
	}
}

// A setting is a property of a broker.conf.
type setting struct {
	name string
	// live says that 25 UPDATE_BROKER_CONFIG may change it while the broker
	// runs; the others take effect at the next start.
	live bool
	get  func(*Config) string
	set  func(*Config, string) error
}

// settings are the properties that a broker honours, by name.
var settings = []setting{
	text("brokerClusterName", false, func(c *Config) *string { return &c.ClusterName }),
	text("brokerName", false, func(c *Config) *string { return &c.BrokerName }),
	integer("brokerId", false, 0, math.MaxInt64, func(c *Config) *int64 { return &c.BrokerID }),
	text("brokerIP1", false, func(c *Config) *string { return &c.Advertise }),
	text("bindAddress", false, func(c *Config) *string { return &c.BindAddress }),
	integer("listenPort", false, 0, 65535, func(c *Config) *int { return &c.ListenPort }),
	{"namesrvAddr", false,
		func(c *Config) string { return strings.Join(c.NameServers, ";") },
		func(c *Config, v string) (err error) { c.NameServers, err = ParseAddresses(v); return err }},
	integer("brokerPermission", true, 0, 15, func(c *Config) *int32 { return &c.BrokerPermission }),
	boolean("autoCreateTopicEnable", true, func(c *Config) *bool { return &c.AutoCreateTopic }),
	integer("defaultTopicQueueNums", false, 1, 65536, func(c *Config) *int32 { return &c.DefaultTopicQueueNums }),
	boolean("clusterTopicEnable", false, func(c *Config) *bool { return &c.ClusterTopic }),
	boolean("brokerTopicEnable", false, func(c *Config) *bool { return &c.BrokerTopic }),
	boolean("autoCreateSubscriptionGroup", true, func(c *Config) *bool { return &c.AutoCreateSubscriptionGroup }),
	boolean("traceTopicEnable", false, func(c *Config) *bool { return &c.TraceTopic }),
	text("msgTraceTopicName", false, func(c *Config) *string { return &c.TraceTopicName }),
	boolean("traceOn", true, func(c *Config) *bool { return &c.TraceOn }),
	text("regionId", true, func(c *Config) *string { return &c.RegionID }),
	boolean("enablePropertyFilter", true, func(c *Config) *bool { return &c.EnablePropertyFilter }),
	boolean("filterSupportRetry", true, func(c *Config) *bool { return &c.FilterSupportRetry }),
	boolean("longPollingEnable", true, func(c *Config) *bool { return &c.LongPolling }),
	millis("shortPollingTimeMills", true, func(c *Config) *time.Duration { return &c.ShortPolling }),
	boolean("useServerSideResetOffset", true, func(c *Config) *bool { return &c.UseServerSideResetOffset }),
	boolean("storeReplyMessageEnable", true, func(c *Config) *bool { return &c.StoreReplyMessage }),
	boolean("rejectTransactionMessage", true, func(c *Config) *bool { return &c.RejectTransactionMessage }),
	millis("transactionTimeOut", true, func(c *Config) *time.Duration { return &c.TransactionTimeout }),
	millis("transactionCheckInterval", true, func(c *Config) *time.Duration { return &c.TransactionCheckInterval }),
	integer("transactionCheckMax", true, 1, math.MaxInt32, func(c *Config) *int32 { return &c.TransactionCheckMax }),
	integer("accessMessageInMemoryMaxRatio", true, 0, 100, func(c *Config) *int32 { return &c.InMemoryMaxRatio }),
	millis("registerNameServerPeriod", true, func(c *Config) *time.Duration { return &c.RegisterPeriod }),
	millis("registerBrokerTimeoutMills", true, func(c *Config) *time.Duration { return &c.RegisterTimeout }),
	millis("flushConsumerOffsetInterval", true, func(c *Config) *time.Duration { return &c.FlushOffsetInterval }),
	duration("serverChannelMaxIdleTimeSeconds", false, time.Second, func(c *Config) *time.Duration { return &c.IdleTimeout }),
}

// refused are settings that ask for what this broker does not do: it does not
// start rather than run without. The value is the one that is no problem.
var refused = map[string]string{
	"aclEnable":                 "false",
	"authenticationEnabled":     "false",
	"authorizationEnabled":      "false",
	"enableSlaveActingMaster":   "false",
	"enableRemoteEscape":        "false",
	"enableControllerMode":      "false",
	"slaveReadEnable":           "false",
	"enableBrokerContainerMode": "false",
}

// ErrUnknownSetting: the name means nothing to a broker.
var ErrUnknownSetting = errors.New("unknown setting")

func findSetting(name string) *setting {
	if i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name }); i >= 0 {
		return &settings[i]
	}
	return nil
}

// Set sets the property called name. The error says what is wrong with value;
// ErrUnknownSetting, that the property is none of a broker's.
func (c *Config) Set(name, value string) error {
	value = strings.TrimSpace(value)
	if harmless, ok := refused[name]; ok {
		if !strings.EqualFold(value, harmless) {
			return fmt.Errorf("%s=%s: not supported", name, value)
		}
		return nil
	}
	s := findSetting(name)
	if s == nil {
		return ErrUnknownSetting
	}
	next := *c
	if err := s.set(&next, value); err != nil {
		return fmt.Errorf("%s=%s: %w", name, value, err)
	}
	*c = next
	return nil
}

// Properties returns every setting, sorted by name.
func (c *Config) Properties() remoting.Fields {
	var f remoting.Fields
	for _, s := range settings {
		f = append(f, remoting.Field{Name: s.name, Value: s.get(c)})
	}
	slices.SortFunc(f, func(a, b remoting.Field) int { return strings.Compare(a.Name, b.Name) })
	return f
}

// Validate reports a contradiction.
func (c *Config) Validate() error {
	for _, name := range []string{c.ClusterName, c.BrokerName, c.RegionID, c.Advertise} {
		if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
			return fmt.Errorf("brokerClusterName, brokerName, regionId and brokerIP1 must be text without control characters: %q", name)
		}
	}
	switch {
	case c.ClusterName == "" || c.BrokerName == "":
		return errors.New("brokerClusterName and brokerName must not be empty")
	case c.BrokerID != 0:
		return fmt.Errorf("brokerId=%d: not supported: this broker is a master, whose id is 0", c.BrokerID)
	case c.ListenPort == 1 || c.ListenPort == 2:
		return fmt.Errorf("listenPort=%d: the VIP channel needs the port minus two", c.ListenPort)
	case c.Advertise == "":
		return errors.New("brokerIP1 must not be empty")
	}
	if ip, err := netip.ParseAddr(c.Advertise); err == nil && ip.IsUnspecified() {
		return fmt.Errorf("brokerIP1=%s: clients cannot connect to it", c.Advertise)
	}
	return nil
}

// ParseAddresses splits "host:port;host:port".
func ParseAddresses(s string) ([]string, error) {
	var addrs []string
	for a := range strings.SplitSeq(s, ";") {
		if a = strings.TrimSpace(a); a == "" {
			continue
		}
		if host, port, err := net.SplitHostPort(a); err != nil || host == "" || port == "" {
			return nil, fmt.Errorf("%q is not HOST:PORT", a)
		}
		addrs = append(addrs, a)
	}
	return addrs, nil
}

func text(name string, live bool, field func(*Config) *string) setting {
	return setting{name, live,
		func(c *Config) string { return *field(c) },
		func(c *Config, v string) error { *field(c) = v; return nil }}
}

func boolean(name string, live bool, field func(*Config) *bool) setting {
	return setting{name, live,
		func(c *Config) string { return strconv.FormatBool(*field(c)) },
		func(c *Config, v string) error {
			if !strings.EqualFold(v, "true") && !strings.EqualFold(v, "false") {
				return errors.New("must be true or false")
			}
			*field(c) = strings.EqualFold(v, "true")
			return nil
		}}
}

func integer[T int | int32 | int64](name string, live bool, least, most int64, field func(*Config) *T) setting {
	bits := reflect.TypeFor[T]().Bits()
	return setting{name, live,
		func(c *Config) string { return strconv.FormatInt(int64(*field(c)), 10) },
		func(c *Config, v string) error {
			n, err := strconv.ParseInt(v, 10, bits)
			if err != nil || n < least || n > most {
				return fmt.Errorf("must be a number between %d and %d", least, most)
			}
			*field(c) = T(n)
			return nil
		}}
}

func millis(name string, live bool, field func(*Config) *time.Duration) setting {
	return duration(name, live, time.Millisecond, field)
}

func duration(name string, live bool, unit time.Duration, field func(*Config) *time.Duration) setting {
	return setting{name, live,
		func(c *Config) string { return strconv.FormatInt(int64(*field(c)/unit), 10) },
		func(c *Config, v string) error {
			n, err := strconv.ParseInt(v, 10, 32)
			if err != nil || n < 1 {
				return errors.New("must be a positive number")
			}
			*field(c) = time.Duration(n) * unit
			return nil
		}}
}
