// Package gantrytest runs a name server and a broker inside a Go test, for
// programs that use a RocketMQ client:
//
//	func TestOrders(t *testing.T) {
//		pair := gantrytest.Start(t)
//		p, err := rocketmq.NewProducer(producer.WithNameServer([]string{pair.NameServer}))
//		…
//
// Both listen on free ports of 127.0.0.1, keep their files in a temporary
// directory, and stop with the test without leaving a goroutine.
package gantrytest

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/broker"
	"github.com/gantrymq/gantry/namesrv"
)

// Options change what Start does by default. The zero value is fine.
type Options struct {
	// Dir is the broker's data directory; "" is a temporary one.
	Dir string
	// Properties are settings of the broker under RocketMQ's names, for
	// instance "autoCreateTopicEnable": "false".
	Properties map[string]string
	// Store are the options of the store. By default its files are small.
	Store gantry.Options
	// Logger is nil for silence.
	Logger *slog.Logger
}

// Pair is a running name server and a broker registered with it.
type Pair struct {
	NameServer string // host:port, what clients need
	Addr       string // of the broker, host:port
	Broker     *broker.Broker
	Names      *namesrv.Server

	tb testing.TB
}

// stopTimeout bounds how long a pair waits for its clients when it stops.
const stopTimeout = 5 * time.Second

// Start starts a pair that stops when the test ends. Failures end the test.
func Start(tb testing.TB, opts ...Options) *Pair {
	tb.Helper()
	var o Options
	if len(opts) > 0 {
		o = opts[0]
	}
	if o.Dir == "" {
		o.Dir = tb.TempDir()
	}
	if o.Store.CommitLogFileSize == 0 {
		o.Store.CommitLogFileSize = 16 << 20
	}
	if o.Store.ConsumeQueueFileSize == 0 {
		o.Store.ConsumeQueueFileSize = 200_000
	}
	if o.Store.IndexSlots == 0 {
		o.Store.IndexSlots, o.Store.IndexEntries = 10_000, 40_000
	}
	names, err := namesrv.Start(tb.Context(), namesrv.Options{Listen: "127.0.0.1:0", Logger: o.Logger})
	if err != nil {
		tb.Fatalf("start a name server: %v", err)
	}
	p := &Pair{NameServer: names.Addr().String(), Names: names, tb: tb}
	tb.Cleanup(p.Stop)
	cfg := broker.NewConfig()
	cfg.ListenPort, cfg.NameServers = 0, []string{p.NameServer}
	for name, value := range o.Properties {
		if err := cfg.Set(name, value); err != nil {
			tb.Fatalf("setting of the broker: %s: %v", name, err)
		}
	}
	p.Broker, err = broker.Start(tb.Context(), broker.Options{Dir: o.Dir, Config: cfg, Store: o.Store, Logger: o.Logger})
	if err != nil {
		tb.Fatalf("start a broker: %v", err)
	}
	p.Addr = p.Broker.Addr()
	return p
}

// Stop stops the pair before the test ends. It may be called more than once.
func (p *Pair) Stop() {
	p.tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), stopTimeout)
	defer cancel()
	if p.Broker != nil {
		if err := p.Broker.Shutdown(ctx); err != nil {
			p.tb.Errorf("stop the broker: %v", err)
		}
	}
	if err := p.Names.Shutdown(ctx); err != nil {
		p.tb.Errorf("stop the name server: %v", err)
	}
}
