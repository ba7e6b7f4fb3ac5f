package membership

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/remoting"
	"github.com/google/go-cmp/cmp"
)

func TestMembership(t *testing.T) {
	type env struct {
		*Registry
		a, b, c *testConn
	}
	g := push("G", sub("T", "*", 1))
	tests := []struct {
		name string
		do   func(t *testing.T, e env)
		ids  []string
	}{
		{name: "nobody", do: func(*testing.T, env) {}},
		{name: "one", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
		}, ids: []string{"x"}},
		{name: "in order", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("y", g))
			beat(t, e.Registry, e.b, consumers("z", g))
			beat(t, e.Registry, e.c, consumers("x", g))
		}, ids: []string{"x", "y", "z"}},
		{name: "refresh", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			beat(t, e.Registry, e.a, consumers("x", g))
		}, ids: []string{"x"}},
		{name: "farewell", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			beat(t, e.Registry, e.b, consumers("y", g))
			e.Unregister(e.a, &remoting.UnregisterClientRequest{ClientID: "x", ConsumerGroup: "G"})
		}, ids: []string{"y"}},
		{name: "farewell as a producer only", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			e.Unregister(e.a, &remoting.UnregisterClientRequest{ClientID: "x", ProducerGroup: "G"})
		}, ids: []string{"x"}},
		{name: "farewell of another client", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			e.Unregister(e.a, &remoting.UnregisterClientRequest{ClientID: "y", ConsumerGroup: "G"})
			e.Unregister(e.b, &remoting.UnregisterClientRequest{ClientID: "x", ConsumerGroup: "G"})
			e.Unregister(e.a, &remoting.UnregisterClientRequest{ClientID: "x", ConsumerGroup: "H"})
		}, ids: []string{"x"}},
		{name: "connection closes", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			beat(t, e.Registry, e.b, consumers("y", g))
			hangUp(e.Registry, e.b)
		}, ids: []string{"x"}},
		{name: "client on another connection, then the first closes", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			beat(t, e.Registry, e.b, consumers("x", g))
			hangUp(e.Registry, e.a)
		}, ids: []string{"x"}},
		{name: "client on another connection, then farewell on the first", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			beat(t, e.Registry, e.b, consumers("x", g))
			e.Unregister(e.a, &remoting.UnregisterClientRequest{ClientID: "x", ConsumerGroup: "G"})
		}, ids: []string{"x"}},
		{name: "client on another connection, then that closes", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			beat(t, e.Registry, e.b, consumers("x", g))
			hangUp(e.Registry, e.b)
		}},
		{name: "connection with another client", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			beat(t, e.Registry, e.a, consumers("y", g))
		}, ids: []string{"y"}},
		{name: "connections change clients", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			beat(t, e.Registry, e.b, consumers("y", g))
			beat(t, e.Registry, e.a, consumers("y", g))
			beat(t, e.Registry, e.b, consumers("x", g))
		}, ids: []string{"x", "y"}},
		{name: "heartbeat on a closed connection", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			hangUp(e.Registry, e.b)
			if _, err := e.Heartbeat(e.b, remoting.LanguageGo, 1, consumers("y", g)); !errors.Is(err, base.ErrClosed) {
				t.Errorf("error is %v", err)
			}
		}, ids: []string{"x"}},
		{name: "late heartbeat of a replaced connection", do: func(t *testing.T, e env) {
			beat(t, e.Registry, e.a, consumers("x", g))
			hangUp(e.Registry, e.a)
			beat(t, e.Registry, e.b, consumers("x", g))
			if _, err := e.Heartbeat(e.a, remoting.LanguageGo, 1, consumers("x", g)); !errors.Is(err, base.ErrClosed) {
				t.Errorf("error is %v", err)
			}
			if m, ok := e.Members.Find("G", "x"); !ok || m.Conn != Conn(e.b) {
				t.Errorf("x is %+v, %v", m, ok)
			}
		}, ids: []string{"x"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := env{newRegistry(t, Options{}), newConn(), newConn(), newConn()}
			tt.do(t, e)
			equalStrings(t, "client ids", e.Members.ClientIDs("G"), tt.ids...)
			for _, c := range []*testConn{e.a, e.b, e.c} {
				hangUp(e.Registry, c)
			}
			if s := e.Stats(); s != (Stats{}) {
				t.Errorf("after all connections have closed: %+v", s)
			}
		})
	}
}

func TestChanges(t *testing.T) {
	var got []Change
	ct := newClock()
	r := newRegistry(t, Options{Now: ct.Now, OnChange: func(c Change) { got = append(got, c) }})
	a, b := newConn(), newConn()
	steps := []struct {
		name  string
		do    func()
		want  []Change
		tells bool
	}{
		{"first member", func() { beat(t, r, a, consumers("x", push("G", sub("T", "a", 1)))) },
			[]Change{{Consumer, Joined, "G", "x", false}, {Consumer, Subscribed, "G", "x", true}}, true},
		{"again", func() { beat(t, r, a, consumers("x", push("G", sub("T", "a", 1)))) }, nil, false},
		{"newer, the same", func() { beat(t, r, a, consumers("x", push("G", sub("T", "a", 2)))) }, nil, false},
		{"newer, another tag", func() { beat(t, r, a, consumers("x", push("G", sub("T", "b", 3)))) },
			[]Change{{Consumer, Subscribed, "G", "x", false}}, false},
		{"older, another tag", func() { beat(t, r, a, consumers("x", push("G", sub("T", "c", 2)))) }, nil, false},
		{"another topic", func() { beat(t, r, a, consumers("x", push("G", sub("T", "b", 3), sub("U", "*", 1)))) },
			[]Change{{Consumer, Subscribed, "G", "x", true}}, true},
		{"a topic less", func() { beat(t, r, a, consumers("x", push("G", sub("U", "*", 1)))) },
			[]Change{{Consumer, Subscribed, "G", "x", true}}, true},
		{"second member, same topics", func() { beat(t, r, b, consumers("y", push("G", sub("U", "*", 1)))) },
			[]Change{{Consumer, Joined, "G", "y", false}}, true},
		{"another id", func() { beat(t, r, b, consumers("z", push("G", sub("U", "*", 1)))) },
			[]Change{{Consumer, Left, "G", "y", false}, {Consumer, Joined, "G", "z", false}}, true},
		{"silence", func() {
			ct.add(119 * time.Second)
			beat(t, r, b, consumers("z", push("G", sub("U", "*", 1))))
			ct.add(2 * time.Second)
			r.expire()
		}, []Change{{Consumer, Expired, "G", "x", false}}, true},
		{"producer", func() { beat(t, r, b, producers("z", "P")) }, []Change{{Producer, Joined, "P", "z", false}}, false},
		{"the end", func() { hangUp(r, b) }, []Change{
			{Producer, Left, "P", "z", false}, {Producer, Gone, "P", "z", false},
			{Consumer, Left, "G", "z", false}, {Consumer, Gone, "G", "z", false},
		}, true},
	}
	for _, s := range steps {
		got = nil
		s.do()
		equal(t, s.name, got, s.want, func(a, b Change) bool { return a == b })
		tells := false
		for i := range got {
			tells = tells || got[i].tells()
		}
		if tells != s.tells {
			t.Errorf("%s: members are told: %v", s.name, tells)
		}
	}
}

func TestSubscriptions(t *testing.T) {
	r := newRegistry(t, Options{})
	a, b := newConn(), newConn()
	have := func(what string, want ...string) {
		t.Helper()
		var got []string
		for _, s := range r.Members.Subscriptions("G") {
			got = append(got, s.Topic()+" "+s.Expression())
		}
		equalStrings(t, what, got, want...)
	}
	beat(t, r, a, consumers("x", push("G", sub("T", "a", 5), sub("U", "*", 5))))
	have("first", "T a", "U *")
	beat(t, r, b, consumers("y", push("G", sub("T", "b", 4), sub("U", "c", 6))))
	have("newer versions win", "T a", "U c")
	beat(t, r, b, consumers("y", push("G", sub("T", "d", 5), sub("U", "c", 6))))
	have("equal ones do not", "T a", "U c")
	beat(t, r, b, consumers("y", push("G", sub("V", "*", 1))))
	have("what is not named is dropped", "V *")
	beat(t, r, a, consumers("x", push("G", sub("V", "p", 2), sub("V", "q", 3), sub("V", "r", 1))))
	have("a topic twice", "V q")
	hangUp(r, a)
	have("they outlive who sent them", "V q")
	hangUp(r, b)
	have("but not the group")

	beat(t, r, newConn(), consumers("x", push("G")))
	have("none")
	if _, ok := r.Members.Group("G"); !ok {
		t.Error("a group without subscriptions is no group")
	}
}

func TestForPull(t *testing.T) {
	r := newRegistry(t, Options{})
	a := newConn()
	broadcast := push("B", sub("T", "*", 1))
	broadcast.Model = remoting.Broadcasting
	beat(t, r, a, consumers("x", push("G", sub("T", "a", 5)), broadcast))
	tests := []struct {
		name, group, topic string
		version            int64
		broadcasting       bool
		code               int32
	}{
		{"fits", "G", "T", 5, true, 0},
		{"stored is newer", "G", "T", 0, false, 0},
		{"unknown group", "H", "T", 5, true, remoting.CodeSubscriptionNotExist},
		{"unknown topic", "G", "U", 5, true, remoting.CodeSubscriptionNotExist},
		{"stored is older", "G", "T", 6, true, remoting.CodeSubscriptionNotLatest},
		{"broadcast allowed", "B", "T", 1, true, 0},
		{"broadcast not allowed", "B", "T", 1, false, remoting.CodeNoPermission},
		{"broadcast not allowed comes first", "B", "U", 1, false, remoting.CodeNoPermission},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := r.Members.ForPull(tt.group, tt.topic, tt.version, tt.broadcasting)
			var e *remoting.Error
			switch {
			case tt.code == 0:
				if err != nil || s.Topic() != tt.topic {
					t.Errorf("got %v, %v", s, err)
				}
			case !errors.As(err, &e) || e.Code != tt.code || s != nil:
				t.Errorf("got %v, %v, want code %d", s, err, tt.code)
			}
		})
	}
}

// TestLoneConsumer: when the connection of the only member breaks, its pulls
// are refused until its next heartbeat; with others alive they are not.
func TestLoneConsumer(t *testing.T) {
	r := newRegistry(t, Options{})
	a, b := newConn(), newConn()
	g := push("G", sub("T", "*", 1))
	beat(t, r, a, consumers("x", g))
	beat(t, r, b, consumers("y", g))
	hangUp(r, a)
	if _, err := r.Members.ForPull("G", "T", 1, true); err != nil {
		t.Errorf("with y alive: %v", err)
	}
	hangUp(r, b)
	if _, err := r.Members.ForPull("G", "T", 1, true); err == nil {
		t.Error("the group is known without members")
	}
	beat(t, r, newConn(), consumers("x", g))
	if _, err := r.Members.ForPull("G", "T", 1, true); err != nil {
		t.Errorf("after the heartbeat: %v", err)
	}
}

func TestHeartbeatV2(t *testing.T) {
	full := func(id string, f int32, topics ...string) *remoting.Heartbeat {
		var subs []remoting.Subscription
		for _, topic := range topics {
			subs = append(subs, sub(topic, "*", 1))
		}
		hb := consumers(id, push("G", subs...))
		hb.Fingerprint = f
		return hb
	}
	without := func(id string, f int32) *remoting.Heartbeat {
		hb := full(id, f)
		hb.WithoutSub = true
		return hb
	}
	type step struct {
		name   string
		conn   int
		hb     *remoting.Heartbeat // nil: the connection closes
		again  bool                // IS_SUB_CHANGE
		topics string
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"one client", []step{
			{"full", 0, full("x", 7, "T"), false, "T"},
			{"without", 0, without("x", 7), false, "T"},
			{"full, same fingerprint", 0, full("x", 7, "T"), false, "T"},
			{"full, other fingerprint", 0, full("x", 8, "T", "U"), true, "T U"},
			{"full again", 0, full("x", 8, "T", "U"), false, "T U"},
			{"without", 0, without("x", 8), false, "T U"},
		}},
		{"upstream's version 1", []step{
			{"full", 0, full("x", 0, "T"), true, "T"},
			{"again", 0, full("x", 0, "T"), true, "T"},
		}},
		{"group not known", []step{
			{"without", 0, without("x", 7), true, ""},
			{"again", 0, without("x", 7), true, ""},
			{"full", 0, full("x", 7, "T"), false, "T"},
			{"without", 0, without("x", 7), false, "T"},
		}},
		{"the only connection breaks", []step{
			{"full", 0, full("x", 7, "T"), false, "T"},
			{"closes", 0, nil, false, ""},
			{"without", 1, without("x", 7), true, ""},
			{"full", 1, full("x", 7, "T"), false, "T"},
		}},
		{"a connection breaks, another member stays", []step{
			{"full", 0, full("x", 7, "T"), false, "T"},
			{"full", 1, full("y", 7, "T"), false, "T"},
			{"closes", 0, nil, false, "T"},
			{"without", 2, without("x", 7), false, "T"},
		}},
		{"members that disagree take turns", []step{
			{"x", 0, full("x", 7, "T"), false, "T"},
			{"y", 1, full("y", 8, "U"), true, "U"},
			{"x without", 0, without("x", 7), true, "U"},
			{"x full", 0, full("x", 7, "T"), true, "T"},
			{"y without", 1, without("y", 8), true, "T"},
		}},
		{"a member with version 1 that agrees", []step{
			{"x", 0, full("x", 7, "T"), false, "T"},
			{"y", 1, full("y", 0, "T"), true, "T"},
			{"x without", 0, without("x", 7), false, "T"},
		}},
		{"a member with version 1 that disagrees", []step{
			{"x", 0, full("x", 7, "T"), false, "T"},
			{"y", 1, full("y", 0, "U"), true, "U"},
			{"x without", 0, without("x", 7), true, "U"},
			{"x full", 0, full("x", 7, "T"), false, "T"},
		}},
		{"without a fingerprint", []step{
			{"full", 0, full("x", 0, "T"), true, "T"},
			{"without", 0, without("x", 0), true, "T"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRegistry(t, Options{})
			conns := newConns(3)
			for _, s := range tt.steps {
				if s.hb == nil {
					hangUp(r, conns[s.conn])
				} else if resp := beat(t, r, conns[s.conn], s.hb); resp.SupportV2 != "true" || resp.SubChanged != map[bool]string{true: "true", false: "false"}[s.again] {
					t.Errorf("%s: answer %+v", s.name, resp)
				}
				if topics := strings.Join(r.Members.Topics("G"), " "); topics != s.topics {
					t.Errorf("%s: topics are %q", s.name, topics)
				}
			}
		})
	}
}

// TestHeartbeatV2Producer: a client without consumers has no subscriptions that
// could differ.
func TestHeartbeatV2Producer(t *testing.T) {
	r := newRegistry(t, Options{})
	c := newConn()
	for _, f := range []int32{7, 7, 8} {
		hb := producers("x", "P")
		hb.Fingerprint = f
		if resp := beat(t, r, c, hb); resp.SubChanged != "false" {
			t.Errorf("fingerprint %d: %+v", f, resp)
		}
	}
}

// TestDescription: the newest heartbeat counts, what it leaves open stays, and
// contradictions are logged, but not each time.
func TestDescription(t *testing.T) {
	var log bytes.Buffer
	ct := newClock()
	r := newRegistry(t, Options{Now: ct.Now, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	a, b := newConn(), newConn()
	want := func(what string, typ remoting.ConsumeType, m remoting.MessageModel, from remoting.ConsumeFrom, warnings int) {
		t.Helper()
		g, _ := r.Members.Group("G")
		if g.Type != typ || g.Model != m || g.From != from {
			t.Errorf("%s: %v %v %v", what, g.Type, g.Model, g.From)
		}
		if n := strings.Count(log.String(), "contradict"); n != warnings {
			t.Errorf("%s: %d warnings, want %d", what, n, warnings)
		}
	}
	data := func(typ remoting.ConsumeType, m remoting.MessageModel, from remoting.ConsumeFrom) remoting.ConsumerData {
		return remoting.ConsumerData{GroupName: "G", Type: typ, Model: m, From: from}
	}
	beat(t, r, a, consumers("x", data(-1, -1, -1)))
	want("nothing known", -1, -1, -1, 0)
	beat(t, r, a, consumers("x", data(remoting.ConsumePassively, remoting.Clustering, remoting.FromFirstOffset)))
	want("named", remoting.ConsumePassively, remoting.Clustering, remoting.FromFirstOffset, 0)
	beat(t, r, b, consumers("y", data(-1, -1, -1)))
	want("left open", remoting.ConsumePassively, remoting.Clustering, remoting.FromFirstOffset, 0)
	beat(t, r, b, consumers("y", data(remoting.ConsumeActively, remoting.Broadcasting, remoting.FromTimestamp)))
	want("contradicted", remoting.ConsumeActively, remoting.Broadcasting, remoting.FromTimestamp, 1)
	beat(t, r, a, consumers("x", data(remoting.ConsumePassively, remoting.Clustering, remoting.FromFirstOffset)))
	want("contradicted soon", remoting.ConsumePassively, remoting.Clustering, remoting.FromFirstOffset, 1)
	ct.add(time.Minute)
	beat(t, r, b, consumers("y", data(remoting.ConsumePassively, remoting.Clustering, remoting.FromLastOffset)))
	want("contradicted later", remoting.ConsumePassively, remoting.Clustering, remoting.FromLastOffset, 2)
	beat(t, r, b, consumers("z", data(remoting.ConsumePassively, remoting.Clustering, remoting.FromLastOffset)))
	ct.add(time.Minute)
	beat(t, r, b, consumers("y", data(remoting.ConsumePassively, remoting.Clustering, remoting.FromLastOffset)))
	want("another id on the connection", remoting.ConsumePassively, remoting.Clustering, remoting.FromLastOffset, 3)
}

func TestLookups(t *testing.T) {
	ct := newClock()
	r := newRegistry(t, Options{Now: ct.Now})
	a, b := newConn(), newConn()
	if _, err := r.Heartbeat(a, remoting.LanguageJava, 493, consumers("y", push("G", sub("U", "*", 2), sub("T", "a||b", 1)), push("H", sub("T", "*", 1)))); err != nil {
		t.Fatal(err)
	}
	beat(t, r, b, consumers("x", push("G", sub("U", "*", 2), sub("T", "a||b", 1))))

	equalStrings(t, "groups", r.Members.Groups(), "G", "H")
	equalStrings(t, "topics of G", r.Members.Topics("G"), "T", "U")
	equalStrings(t, "topics of nothing", r.Members.Topics("nothing"))
	equalStrings(t, "groups of T", r.Members.GroupsOf("T"), "G", "H")
	equalStrings(t, "groups of U", r.Members.GroupsOf("U"), "G")
	equalStrings(t, "groups of nothing", r.Members.GroupsOf("nothing"))
	if s := r.Members.Subscription("G", "T"); s == nil || s.Expression() != "a||b" {
		t.Errorf("subscription of G to T is %v", s)
	}
	if s := r.Members.Subscription("G", "V"); s != nil {
		t.Errorf("subscription of G to V is %v", s)
	}
	if s := r.Members.Subscription("nothing", "T"); s != nil {
		t.Errorf("subscription of nothing is %v", s)
	}
	if subs := r.Members.Subscriptions("nothing"); subs != nil {
		t.Errorf("subscriptions of nothing are %v", subs)
	}
	if m, ok := r.Members.Find("G", "y"); !ok || m != (Member{Client{"y", remoting.LanguageJava, 493}, a, ct.Now()}) {
		t.Errorf("y in G is %+v, %v", m, ok)
	}
	for _, key := range [][2]string{{"G", "z"}, {"H", "x"}, {"nothing", "x"}} {
		if m, ok := r.Members.Find(key[0], key[1]); ok {
			t.Errorf("found %v: %+v", key, m)
		}
	}
	of := r.Members.Of("G")
	equal(t, "members of G", of, []Member{
		{Client{"x", remoting.LanguageGo, 317}, b, ct.Now()}, {Client{"y", remoting.LanguageJava, 493}, a, ct.Now()},
	}, func(a, b Member) bool { return a == b })
	if of := r.Members.Of("nothing"); of != nil {
		t.Errorf("members of nothing are %v", of)
	}
	if g, ok := r.Members.Group("G"); !ok || g != (ConsumerGroup{remoting.ConsumePassively, remoting.Clustering, remoting.FromLastOffset, 2, 2}) {
		t.Errorf("G is %+v, %v", g, ok)
	}
	if g, ok := r.Members.Group("nothing"); ok {
		t.Errorf("nothing is %+v", g)
	}
	want := &remoting.ConsumerConnection{
		Connections: []remoting.Connection{
			{ClientID: "x", ClientAddr: b.RemoteAddr().String(), Language: remoting.LanguageGo, Version: 317},
			{ClientID: "y", ClientAddr: a.RemoteAddr().String(), Language: remoting.LanguageJava, Version: 493},
		},
		SubscriptionTable: map[string]remoting.Subscription{
			"T": {Topic: "T", SubString: "a||b", Tags: []string{"a", "b"}, Codes: []int32{97, 98}, SubVersion: 1, ExpressionType: "TAG"},
			"U": {Topic: "U", SubString: "*", SubVersion: 2, ExpressionType: "TAG"},
		},
		Type: remoting.ConsumePassively, Model: remoting.Clustering, From: remoting.FromLastOffset,
	}
	if diff := cmp.Diff(want, r.Members.Connections("G")); diff != "" {
		t.Errorf("body of 203 (-want +got)\n%s", diff)
	}
	if b := r.Members.Connections("nothing"); b != nil {
		t.Errorf("body of 203 for nothing is %+v", b)
	}
}

// TestRefresh: a heartbeat renews what is known of the client.
func TestRefresh(t *testing.T) {
	ct := newClock()
	r := newRegistry(t, Options{Now: ct.Now})
	a := newConn()
	beat(t, r, a, consumers("x", push("G")))
	ct.add(time.Minute)
	if _, err := r.Heartbeat(a, remoting.LanguageCPP, 333, consumers("x", push("G"))); err != nil {
		t.Fatal(err)
	}
	if m, _ := r.Members.Find("G", "x"); m != (Member{Client{"x", remoting.LanguageCPP, 333}, a, ct.Now()}) {
		t.Errorf("x is %+v", m)
	}
}
