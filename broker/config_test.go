package broker

import (
	"errors"
	"math"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/remoting"
)

// TestConfigSet: values that are good and bad, and that a bad one changes
// nothing.
func TestConfigSet(t *testing.T) {
	for _, c := range []struct {
		name, value string
		get         func(*Config) any
		want        any // nil: refused
	}{
		{"brokerName", " b ", func(c *Config) any { return c.BrokerName }, "b"},
		{"listenPort", "0", func(c *Config) any { return c.ListenPort }, 0},
		{"listenPort", "65535", func(c *Config) any { return c.ListenPort }, 65535},
		{"listenPort", "65536", nil, nil},
		{"listenPort", "-1", nil, nil},
		{"listenPort", "", nil, nil},
		{"listenPort", "10911x", nil, nil},
		{"brokerId", "9223372036854775807", func(c *Config) any { return c.BrokerID }, int64(math.MaxInt64)},
		{"brokerId", "9223372036854775808", nil, nil},
		{"brokerPermission", "4", func(c *Config) any { return c.BrokerPermission }, int32(4)},
		{"brokerPermission", "16", nil, nil},
		{"autoCreateTopicEnable", "FALSE", func(c *Config) any { return c.AutoCreateTopic }, false},
		{"autoCreateTopicEnable", "no", nil, nil},
		{"autoCreateTopicEnable", "", nil, nil},
		{"transactionTimeOut", "2000", func(c *Config) any { return c.TransactionTimeout }, 2 * time.Second},
		{"transactionTimeOut", "0", nil, nil},
		{"transactionTimeOut", "-5", nil, nil},
		{"transactionTimeOut", "99999999999", nil, nil},
		{"transactionTimeOut", "2s", nil, nil},
		{"serverChannelMaxIdleTimeSeconds", "2147483647", func(c *Config) any { return c.IdleTimeout }, math.MaxInt32 * time.Second},
		{"accessMessageInMemoryMaxRatio", "100", func(c *Config) any { return c.InMemoryMaxRatio }, int32(100)},
		{"accessMessageInMemoryMaxRatio", "101", nil, nil},
		{"namesrvAddr", "a:1; b:2 ;;[::1]:3", func(c *Config) any { return strings.Join(c.NameServers, " ") }, "a:1 b:2 [::1]:3"},
		{"namesrvAddr", "", func(c *Config) any { return len(c.NameServers) }, 0},
		{"namesrvAddr", "a", nil, nil},
		{"namesrvAddr", ":9876", nil, nil},
		{"namesrvAddr", "a:", nil, nil},
		{"aclEnable", "false", func(c *Config) any { return c.BrokerName }, "broker-a"},
		{"aclEnable", "true", nil, nil},
		{"enableControllerMode", "TRUE", nil, nil},
	} {
		cfg := NewConfig()
		err := cfg.Set(c.name, c.value)
		switch {
		case c.want == nil && err == nil:
			t.Errorf("%s=%q is taken", c.name, c.value)
		case c.want == nil:
			if !strings.Contains(err.Error(), c.name) || errors.Is(err, ErrUnknownSetting) {
				t.Errorf("%s=%q: the error does not name it: %v", c.name, c.value, err)
			}
			if diff := cmp.Diff(NewConfig(), cfg); diff != "" {
				t.Errorf("%s=%q changed something: %s", c.name, c.value, diff)
			}
		case err != nil || c.get(&cfg) != c.want:
			t.Errorf("%s=%q: %v, %v, want %v", c.name, c.value, c.get(&cfg), err, c.want)
		}
	}
	cfg := NewConfig()
	for _, name := range []string{"", "nope", "BrokerName", "flushDiskType"} {
		if err := cfg.Set(name, "x"); !errors.Is(err, ErrUnknownSetting) {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// TestConfigProperties: what Properties writes, Set reads; each setting has one
// field of its own.
func TestConfigProperties(t *testing.T) {
	cfg := NewConfig()
	props := cfg.Properties()
	if !slices.IsSortedFunc(props, func(a, b remoting.Field) int { return strings.Compare(a.Name, b.Name) }) {
		t.Error("the properties are not sorted")
	}
	var again Config
	for name, v := range props.All() {
		if err := again.Set(name, v); err != nil {
			t.Errorf("%s=%s: %v", name, v, err)
		}
	}
	if diff := cmp.Diff(cfg, again); diff != "" {
		t.Errorf("not every field has a setting, or a default is lost: %s", diff)
	}
	for name, old := range props.All() {
		changed := NewConfig()
		v := "x"
		if n, err := strconv.ParseInt(old, 10, 64); err == nil {
			v = strconv.FormatInt((n+1)%5+1, 10)
		} else if b, err := strconv.ParseBool(old); err == nil {
			v = strconv.FormatBool(!b)
		} else if name == "namesrvAddr" {
			v = "h:1"
		}
		if err := changed.Set(name, v); err != nil {
			t.Errorf("%s=%s: %v", name, v, err)
		}
		var differ []string
		for n, nv := range changed.Properties().All() {
			if nv != props.Value(n) {
				differ = append(differ, n)
			}
		}
		if !slices.Equal(differ, []string{name}) {
			t.Errorf("%s=%s changed %v", name, v, differ)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	for name, change := range map[string]func(*Config){
		"no cluster":         func(c *Config) { c.ClusterName = "" },
		"no name":            func(c *Config) { c.BrokerName = "" },
		"slave":              func(c *Config) { c.BrokerID = 1 },
		"no room for VIP":    func(c *Config) { c.ListenPort = 2 },
		"no host":            func(c *Config) { c.Advertise = "" },
		"any host":           func(c *Config) { c.Advertise = "0.0.0.0" },
		"any host, IPv6":     func(c *Config) { c.Advertise = "::" },
		"not UTF-8":          func(c *Config) { c.ClusterName = "\xff" },
		"control characters": func(c *Config) { c.RegionID = "a\x02b" },
	} {
		cfg := NewConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	cfg := NewConfig()
	if err := cfg.Validate(); err != nil {
		t.Error(err)
	}
}
