package membership

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gantrymq/gantry/remoting"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testConn is a connection without a socket.
type testConn struct {
	id     uint64
	ctx    context.Context
	cancel context.CancelFunc
}

var lastConn atomic.Uint64

func newConn() *testConn {
	c := &testConn{id: lastConn.Add(1)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	return c
}

func newConns(n int) []*testConn {
	conns := make([]*testConn, n)
	for i := range conns {
		conns[i] = newConn()
	}
	return conns
}

func (c *testConn) ID() uint64 { return c.id }
func (c *testConn) RemoteAddr() netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(c.id >> 8), byte(c.id)}), 1000)
}
func (c *testConn) Context() context.Context { return c.ctx }
func (c *testConn) Close() error             { c.cancel(); return nil }

// hangUp closes a connection the way a server does.
func hangUp(r *Registry, c *testConn) {
	c.cancel()
	r.ConnClosed(c)
}

// clock is a time that tests set.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

func newClock() *clock { return &clock{now: time.Now()} }

// notes collects who was sent 40 for what.
type notes struct {
	mu   sync.Mutex
	list []string
}

func note(c Conn, group string) string { return fmt.Sprintf("%d %s", c.ID(), group) }

func (n *notes) send(c Conn, group string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.list = append(n.list, note(c, group))
}

// take returns what was sent since the last call.
func (n *notes) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	list := n.list
	n.list = nil
	return list
}

func newRegistry(t testing.TB, opts Options) *Registry {
	t.Helper()
	r := New(opts)
	t.Cleanup(r.Close)
	return r
}

// sub is a subscription by tags in a heartbeat.
func sub(topic, expression string, version int64) remoting.Subscription {
	return remoting.Subscription{Topic: topic, SubString: expression, SubVersion: version}
}

// push is a push consumer in a heartbeat.
func push(group string, subs ...remoting.Subscription) remoting.ConsumerData {
	return remoting.ConsumerData{
		GroupName: group, Type: remoting.ConsumePassively, Model: remoting.Clustering, From: remoting.FromLastOffset, Subscriptions: subs,
	}
}

func consumers(id string, groups ...remoting.ConsumerData) *remoting.Heartbeat {
	return &remoting.Heartbeat{ClientID: id, Consumers: groups}
}

func producers(id string, groups ...string) *remoting.Heartbeat {
	hb := &remoting.Heartbeat{ClientID: id}
	for _, g := range groups {
		hb.Producers = append(hb.Producers, remoting.ProducerData{GroupName: g})
	}
	return hb
}

func beat(t testing.TB, r *Registry, c Conn, hb *remoting.Heartbeat) remoting.HeartbeatResponse {
	t.Helper()
	resp, err := r.Heartbeat(c, remoting.LanguageGo, 317, hb)
	if err != nil {
		t.Fatalf("heartbeat of %s: %v", hb.ClientID, err)
	}
	return resp
}

func equal[T any, S ~[]T](t testing.TB, what string, got, want S, eq func(a, b T) bool) {
	t.Helper()
	if !slices.EqualFunc(got, want, eq) {
		t.Errorf("%s:\n got %v\nwant %v", what, got, want)
	}
}

func equalStrings(t testing.TB, what string, got []string, want ...string) {
	t.Helper()
	equal(t, what, got, want, func(a, b string) bool { return a == b })
}
