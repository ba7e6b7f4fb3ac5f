package membership

import (
	"errors"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/remoting"
	"github.com/google/go-cmp/cmp"
)

func TestProducers(t *testing.T) {
	ct := newClock()
	r := newRegistry(t, Options{Now: ct.Now})
	ps := r.Producers
	a, b := newConn(), newConn()
	at := func(what, client string, want *testConn) {
		t.Helper()
		c, ok := ps.Client(client)
		if ok != (want != nil) || ok && c != Conn(want) {
			t.Errorf("%s: %s is at %v, %v", what, client, c, ok)
		}
	}
	at("at first", "x", nil)
	if _, err := r.Heartbeat(a, remoting.LanguageJava, 493, producers("x", "P", "Q")); err != nil {
		t.Fatal(err)
	}
	beat(t, r, b, producers("y", "P"))
	at("two", "x", a)
	at("two", "y", b)
	equalStrings(t, "groups", ps.Groups(), "P", "Q")
	equal(t, "members of P", ps.Of("P"), []Member{
		{Client{"x", remoting.LanguageJava, 493}, a, ct.Now()}, {Client{"y", remoting.LanguageGo, 317}, b, ct.Now()},
	}, func(a, b Member) bool { return a == b })
	if of := ps.Of("nothing"); of != nil {
		t.Errorf("members of nothing are %v", of)
	}

	conns := []remoting.Connection{
		{ClientID: "x", ClientAddr: a.RemoteAddr().String(), Language: remoting.LanguageJava, Version: 493},
		{ClientID: "y", ClientAddr: b.RemoteAddr().String(), Language: remoting.LanguageGo, Version: 317},
	}
	if diff := cmp.Diff(&remoting.ProducerConnection{Connections: conns}, ps.Connections("P")); diff != "" {
		t.Errorf("body of 204 (-want +got)\n%s", diff)
	}
	if b := ps.Connections("nothing"); b != nil {
		t.Errorf("body of 204 for nothing is %+v", b)
	}
	x := remoting.ProducerInfo{ClientID: "x", RemoteIP: "/" + a.RemoteAddr().String(), Language: remoting.LanguageJava, Version: 493, LastUpdateTimestamp: ct.Now().UnixMilli()}
	y := remoting.ProducerInfo{ClientID: "y", RemoteIP: "/" + b.RemoteAddr().String(), Language: remoting.LanguageGo, Version: 317, LastUpdateTimestamp: ct.Now().UnixMilli()}
	want := &remoting.ProducerTable{Data: map[string][]remoting.ProducerInfo{"P": {x, y}, "Q": {x}}}
	if diff := cmp.Diff(want, ps.Table()); diff != "" {
		t.Errorf("body of 328 (-want +got)\n%s", diff)
	}

	r.Unregister(a, &remoting.UnregisterClientRequest{ClientID: "x", ProducerGroup: "P"})
	at("left one group", "x", a)
	r.Unregister(b, &remoting.UnregisterClientRequest{ClientID: "x", ProducerGroup: "Q"})
	at("farewell on another connection", "x", a)
	r.Unregister(a, &remoting.UnregisterClientRequest{ClientID: "y", ProducerGroup: "Q"})
	at("farewell of another client", "x", a)
	r.Unregister(a, &remoting.UnregisterClientRequest{ClientID: "x", ProducerGroup: "Q"})
	at("left both", "x", nil)
	equalStrings(t, "groups", ps.Groups(), "P")
	ct.add(2*time.Minute + 1)
	r.expire()
	at("silent", "y", nil)
	if b.Context().Err() == nil || a.Context().Err() != nil {
		t.Error("not the silent connection has been closed")
	}
	hangUp(r, a)
	if s := r.Stats(); s != (Stats{}) {
		t.Errorf("left are %+v", s)
	}
}

func TestProducerMoves(t *testing.T) {
	type env struct {
		*Registry
		a, b *testConn
	}
	tests := []struct {
		name string
		do   func(t *testing.T, e env)
		x    int // where client x is: connection 1 or 2, 0 for nowhere
		p    []string
	}{
		{"to another connection", func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, producers("x", "P"))
			beat(t, e.Registry, e.b, producers("x", "P"))
		}, 2, []string{"x"}},
		{"and the first closes", func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, producers("x", "P"))
			beat(t, e.Registry, e.b, producers("x", "P"))
			hangUp(e.Registry, e.a)
		}, 2, []string{"x"}},
		{"and the first, which has another group, closes", func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, producers("x", "P", "Q"))
			beat(t, e.Registry, e.b, producers("x", "P"))
			hangUp(e.Registry, e.a)
		}, 2, []string{"x"}},
		{"and the second closes", func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, producers("x", "P"))
			beat(t, e.Registry, e.b, producers("x", "P"))
			hangUp(e.Registry, e.b)
		}, 0, nil},
		{"the connection has another client", func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, producers("x", "P"))
			beat(t, e.Registry, e.a, producers("y", "P"))
		}, 0, []string{"y"}},
		{"the connection has another client, in another group", func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, producers("x", "P"))
			beat(t, e.Registry, e.a, producers("y", "Q"))
		}, 0, []string{"x"}},
		{"closed, but nobody has said so yet", func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, producers("x", "P"))
			e.a.cancel()
		}, 0, []string{"x"}},
		{"heartbeat on a closed connection", func(t *testing.T, e env) {
			beat(t, e.Registry, e.b, producers("x", "P"))
			hangUp(e.Registry, e.a)
			if _, err := e.Heartbeat(e.a, remoting.LanguageGo, 1, producers("x", "P")); !errors.Is(err, base.ErrClosed) {
				t.Errorf("error is %v", err)
			}
		}, 2, []string{"x"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := env{newRegistry(t, Options{}), newConn(), newConn()}
			tt.do(t, e)
			want := []Conn{nil, e.a, e.b}[tt.x]
			if c, ok := e.Producers.Client("x"); ok != (tt.x > 0) || c != want {
				t.Errorf("x is at %v, %v", c, ok)
			}
			var ids []string
			for _, m := range e.Producers.Of("P") {
				ids = append(ids, m.ID)
			}
			equalStrings(t, "members of P", ids, tt.p...)
			hangUp(e.Registry, e.a)
			hangUp(e.Registry, e.b)
			if s := e.Stats(); s != (Stats{}) || len(e.Producers.mu.byClient) != 0 {
				t.Errorf("left are %+v, %d clients", s, len(e.Producers.mu.byClient))
			}
		})
	}
}

func TestPick(t *testing.T) {
	r := newRegistry(t, Options{})
	conns := newConns(4)
	for i, c := range conns {
		beat(t, r, c, producers(string(rune('a'+i)), "P"))
	}
	picks := func(n int) map[string]int {
		counts := make(map[string]int)
		for range n {
			m, ok := r.Producers.Pick("P")
			if !ok {
				t.Fatal("nobody to pick")
			}
			counts[m.ID]++
		}
		return counts
	}
	if diff := cmp.Diff(map[string]int{"a": 10, "b": 10, "c": 10, "d": 10}, picks(40)); diff != "" {
		t.Errorf("turns (-want +got)\n%s", diff)
	}
	conns[1].cancel() // ConnClosed comes later
	if got := picks(40); got["b"] != 0 || got["a"] == 0 || got["c"] == 0 || got["d"] == 0 {
		t.Errorf("with b closed: %v", got)
	}
	for _, c := range conns {
		c.cancel()
	}
	if m, ok := r.Producers.Pick("P"); ok {
		t.Errorf("picked %+v, whose connection is closed", m)
	}
	if m, ok := r.Producers.Pick("nothing"); ok {
		t.Errorf("picked %+v", m)
	}
}
