package membership

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/remoting"
)

// fieldOf returns the field of a FieldError, or what else err is.
func fieldOf(err error) string {
	var e *FieldError
	if errors.As(err, &e) {
		return e.Field
	}
	return fmt.Sprint(err)
}

func TestBounds(t *testing.T) {
	long := func(n int) string { return strings.Repeat("x", n) }
	groups := func(n int) *remoting.Heartbeat {
		hb := &remoting.Heartbeat{ClientID: "x"}
		for i := range n {
			hb.Consumers = append(hb.Consumers, push(fmt.Sprint("G", i)))
		}
		return hb
	}
	names := func(n int) []string {
		names := make([]string, n)
		for i := range names {
			names[i] = fmt.Sprint("n", i)
		}
		return names
	}
	topics := func(n int) *remoting.Heartbeat {
		var subs []remoting.Subscription
		for _, name := range names(n) {
			subs = append(subs, sub(name, "*", 1))
		}
		return consumers("x", push("G", subs...))
	}
	with := func(s remoting.Subscription) *remoting.Heartbeat { return consumers("x", push("G", s)) }
	tests := []struct {
		name  string
		hb    *remoting.Heartbeat
		field string // "<nil>": fine
	}{
		{"no client id", consumers("", push("G")), "clientID"},
		{"client id", consumers(long(MaxClientIDLen), push("G")), "<nil>"},
		{"client id too long", consumers(long(MaxClientIDLen+1), push("G")), "clientID"},
		{"consumer groups", groups(MaxGroups), "<nil>"},
		{"too many consumer groups", groups(MaxGroups + 1), "consumerDataSet"},
		{"consumer group without a name", consumers("x", push("")), "consumerDataSet.groupName"},
		{"consumer group", consumers("x", push(long(MaxNameLen))), "<nil>"},
		{"consumer group's name too long", consumers("x", push(long(MaxNameLen+1))), "consumerDataSet.groupName"},
		{"producer groups", producers("x", names(MaxGroups)...), "<nil>"},
		{"too many producer groups", producers("x", names(MaxGroups+1)...), "producerDataSet"},
		{"producer group without a name", producers("x", ""), "producerDataSet.groupName"},
		{"producer group's name too long", producers("x", long(MaxNameLen+1)), "producerDataSet.groupName"},
		{"topics", topics(MaxSubscriptions), "<nil>"},
		{"too many topics", topics(MaxSubscriptions + 1), "subscriptionDataSet"},
		{"no topic", with(sub("", "*", 1)), "subscriptionDataSet.topic"},
		{"topic too long", with(sub(long(MaxNameLen+1), "*", 1)), "subscriptionDataSet.topic"},
		{"expression", with(remoting.Subscription{Topic: "T", ExpressionType: "SQL92", SubString: long(MaxExpressionLen)}), "<nil>"},
		{"expression too long", with(sub("T", long(MaxExpressionLen+1), 1)), "subscriptionDataSet.subString"},
		{"expression type too long", with(remoting.Subscription{Topic: "T", ExpressionType: long(MaxNameLen + 1)}), "subscriptionDataSet.expressionType"},
		{"tags", with(remoting.Subscription{Topic: "T", SubString: "a", Tags: names(MaxTags)}), "<nil>"},
		{"too many tags", with(remoting.Subscription{Topic: "T", SubString: "a", Tags: names(MaxTags + 1)}), "subscriptionDataSet.tagsSet"},
		{"tag too long", with(remoting.Subscription{Topic: "T", SubString: "a", Tags: []string{long(MaxTagLen + 1)}}), "subscriptionDataSet.tagsSet"},
		{"too many codes", with(remoting.Subscription{Topic: "T", SubString: "a", Codes: make([]int32, MaxTags+1)}), "subscriptionDataSet.codeSet"},
		{"tags in the expression", with(sub("T", manyTags(MaxTags), 1)), "<nil>"},
		{"too many tags in the expression", with(sub("T", manyTags(MaxTags+1), 1)), "subscriptionDataSet.subString"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRegistry(t, Options{})
			c := newConn()
			if got := fieldOf(r.Check(c, tt.hb)); got != tt.field {
				t.Errorf("Check: %s, want %s", got, tt.field)
			}
			_, err := r.Heartbeat(c, remoting.LanguageGo, 1, tt.hb)
			if got := fieldOf(err); got != tt.field {
				t.Errorf("Heartbeat: %s, want %s", got, tt.field)
			}
			if err != nil && r.Stats() != (Stats{}) {
				t.Errorf("a refused heartbeat leaves %+v", r.Stats())
			}
			hangUp(r, c)
			if s := r.Stats(); s != (Stats{}) {
				t.Errorf("after the connection has closed: %+v", s)
			}
		})
	}
}

// TestGroupsOfConnection: the bound is for the connection, not the heartbeat.
func TestGroupsOfConnection(t *testing.T) {
	r := newRegistry(t, Options{MaxConnBytes: 1 << 30})
	a, b := newConn(), newConn()
	for i := range MaxGroups {
		beat(t, r, a, consumers("x", push(fmt.Sprint("G", i))))
		beat(t, r, a, producers("x", fmt.Sprint("P", i)))
	}
	for _, hb := range []*remoting.Heartbeat{consumers("x", push("one more")), producers("x", "one more")} {
		_, err := r.Heartbeat(a, remoting.LanguageGo, 1, hb)
		if err == nil || r.Check(a, hb) == nil {
			t.Errorf("%+v is accepted", hb)
		}
		beat(t, r, b, hb)
	}
	both := consumers("y", push("G7"))
	both.Producers = producers("", "one more").Producers
	if _, err := r.Heartbeat(a, remoting.LanguageGo, 1, both); fieldOf(err) != "producerDataSet" {
		t.Errorf("a producer too many: %v", err)
	}
	equalStrings(t, "members of G7, whose heartbeat was refused", r.Members.ClientIDs("G7"), "x")
	beat(t, r, a, consumers("x", push("G7"))) // nothing new
	r.Unregister(a, &remoting.UnregisterClientRequest{ClientID: "x", ConsumerGroup: "G3", ProducerGroup: "P3"})
	beat(t, r, a, consumers("x", push("one more")))
	beat(t, r, a, producers("x", "one more"))
}

// TestBytesOfConnection: a connection at its bound cannot add anything, but
// stays alive, and does not disturb others.
func TestBytesOfConnection(t *testing.T) {
	const limit = 1 << 16
	r := newRegistry(t, Options{MaxConnBytes: limit})
	a, b := newConn(), newConn()
	big := func(group, topic string, version int64, n int) *remoting.Heartbeat {
		s := sub(topic, strings.Repeat("x", n), version)
		s.ExpressionType = "SQL92"
		return consumers("x", push(group, s))
	}
	if _, err := r.Heartbeat(a, remoting.LanguageGo, 1, big("G", "T", 1, limit-100)); fieldOf(err) != "consumerDataSet" {
		t.Errorf("a long expression: %v", err)
	}
	var accepted []*remoting.Heartbeat
	for i := range 100 {
		hb := big(fmt.Sprint("G", i), "T", 1, 4000)
		if _, err := r.Heartbeat(a, remoting.LanguageGo, 1, hb); err != nil {
			break
		}
		accepted = append(accepted, hb)
	}
	if n := len(accepted); n < 5 || n > limit/4000 {
		t.Fatalf("%d groups accepted", n)
	}
	for _, hb := range accepted {
		beat(t, r, a, hb)
	}
	if _, err := r.Heartbeat(a, remoting.LanguageGo, 1, big("G0", "T", 2, 30000)); fieldOf(err) != "consumerDataSet" {
		t.Errorf("a longer expression: %v", err)
	}
	if got := len(r.Members.Subscription("G0", "T").Expression()); got != 4000 {
		t.Errorf("the refused heartbeat has changed the expression: %d bytes", got)
	}
	beat(t, r, a, big("G0", "T", 2, 3000))
	beat(t, r, b, big("H", "T", 1, 4000))

	// What it sent is charged to whoever replaces it.
	before := r.Members.mu.holders[Conn(a)].used
	beat(t, r, b, big("G1", "T", 5, 4000)) // also takes x over
	if after := r.Members.mu.holders[Conn(a)].used; before-after < 4000 {
		t.Errorf("the connection is charged %d bytes, was %d", after, before)
	}
}

// TestTakeover: a connection that has got beyond its bound, since it replaced
// what another one paid for, stays alive.
func TestTakeover(t *testing.T) {
	r := newRegistry(t, Options{MaxConnBytes: 1 << 14})
	conns := newConns(4)
	last := conns[3]
	hb := func(i int, version int64) remoting.ConsumerData {
		s := sub("T", strings.Repeat("x", 8000), version)
		s.ExpressionType = "SQL92"
		return push(fmt.Sprint("G", i), s)
	}
	for i, c := range conns[:3] {
		beat(t, r, c, consumers(fmt.Sprint(i), hb(i, 1)))
		beat(t, r, last, consumers("last", hb(i, 1)))
	}
	for i := range conns[:3] {
		beat(t, r, last, consumers("last", hb(i, 2)))
	}
	if h := r.Members.mu.holders[Conn(last)]; h.used <= r.opts.MaxConnBytes {
		t.Fatalf("the connection uses %d bytes", h.used)
	}
	beat(t, r, last, consumers("last", hb(0, 2), hb(1, 2), hb(2, 2)))
	if _, err := r.Heartbeat(last, remoting.LanguageGo, 1, consumers("last", push("one more"))); fieldOf(err) != "consumerDataSet" {
		t.Errorf("one more group: %v", err)
	}
	if problem := broken(r); problem != "" {
		t.Error(problem)
	}
}

func TestBytesOfAll(t *testing.T) {
	const limit = 1 << 18
	r := newRegistry(t, Options{MaxBytes: limit})
	first := newConn()
	hb := consumers("first", push("G", sub("T", "*", 1)))
	beat(t, r, first, hb)
	beat(t, r, first, producers("first", "P"))
	var conns []*testConn
	for {
		c := newConn()
		if _, err := r.Heartbeat(c, remoting.LanguageGo, 1, consumers(fmt.Sprint(c.id), push("G", sub("T", "*", 1)))); err != nil {
			if fieldOf(err) != "consumerDataSet" {
				t.Fatal(err)
			}
			break
		}
		if conns = append(conns, c); len(conns) > limit/memberCost {
			t.Fatal("no bound")
		}
	}
	if used := r.Members.mu.account.used; used > limit {
		t.Errorf("%d bytes used, at most %d", used, limit)
	}
	beat(t, r, first, hb) // adds nothing
	for _, c := range conns[:10] {
		hangUp(r, c)
	}
	beat(t, r, newConn(), consumers("y", push("G")))
}

// TestMemoryReturns: what hostile clients have said is forgotten when they are
// gone, however they went.
func TestMemoryReturns(t *testing.T) {
	ct := newClock()
	r := newRegistry(t, Options{Now: ct.Now})
	for round := range 3 {
		conns := newConns(50)
		for i, c := range conns {
			id := fmt.Sprint(i % 20) // ids move between connections
			for k := range 20 {
				hb := consumers(id, push(fmt.Sprint("G", (i*k)%30), sub(fmt.Sprint("T", k), manyTags(50), int64(i*k))))
				hb.Producers = producers(id, fmt.Sprint("P", (i+k)%30)).Producers
				beat(t, r, c, hb)
			}
			_, err := r.Locks.TryLock(&remoting.LockBatch{ConsumerGroup: fmt.Sprint("G", i), ClientID: id, Queues: queues("T", 10)})
			if err != nil {
				t.Fatal(err)
			}
		}
		if s := r.Stats(); s.Bytes == 0 || s.Consumers == 0 || s.Producers == 0 || s.Locks == 0 {
			t.Fatalf("%+v", s)
		}
		if round == 0 { // all expire
			ct.add(r.opts.Expiry + 1)
			r.expire()
		}
		for _, c := range conns {
			hangUp(r, c)
		}
		ct.add(r.opts.LockExpiry + 1)
		r.Locks.Expire()
		if s := r.Stats(); s != (Stats{}) {
			t.Fatalf("after all connections have closed: %+v", s)
		}
		if n := len(r.Members.mu.holders) + len(r.Producers.mu.holders) + len(r.Producers.mu.byClient) + len(r.Locks.mu.groups); n != 0 {
			t.Fatalf("%d entries are left", n)
		}
	}
}

// TestCosts: the estimates are not below what things really take.
func TestCosts(t *testing.T) {
	const n = 2000
	tests := []struct {
		name string
		fill func(r *Registry)
	}{
		{"a connection in a group of its own", func(r *Registry) {
			for i := range n {
				beat(t, r, newConn(), consumers(fmt.Sprint("client", i), push(fmt.Sprint("group", i), sub(fmt.Sprint("topic", i), "a || b", 1))))
			}
		}},
		{"connections in one group", func(r *Registry) {
			for i := range n {
				beat(t, r, newConn(), consumers(fmt.Sprint("client", i), push("group")))
			}
		}},
		{"groups of one connection", func(r *Registry) {
			var c *testConn
			for i := range n {
				if i%500 == 0 {
					c = newConn()
				}
				beat(t, r, c, consumers(fmt.Sprint("client", i/500), push(fmt.Sprint("group", i))))
			}
		}},
		{"topics of one group", func(r *Registry) {
			g := push("group")
			for i := range n {
				g.Subscriptions = append(g.Subscriptions, sub(fmt.Sprint("topic", i), "a", 1))
			}
			beat(t, r, newConn(), consumers("client", g))
		}},
		{"tags", func(r *Registry) {
			g := push("group")
			for i := range n / 100 {
				s := sub(fmt.Sprint("topic", i), "many", 1)
				for k := range 100 {
					s.Tags = append(s.Tags, fmt.Sprint("tag", k))
				}
				g.Subscriptions = append(g.Subscriptions, s)
			}
			beat(t, r, newConn(), consumers("client", g))
		}},
		{"producers", func(r *Registry) {
			for i := range n {
				beat(t, r, newConn(), producers(fmt.Sprint("client", i), fmt.Sprint("group", i)))
			}
		}},
		{"locks", func(r *Registry) {
			for i := range n {
				if _, err := r.Locks.TryLock(&remoting.LockBatch{ConsumerGroup: fmt.Sprint("group", i), ClientID: "client", Queues: queues("T", 1)}); err != nil {
					t.Fatal(err)
				}
			}
		}},
		{"locks of one group", func(r *Registry) {
			if _, err := r.Locks.TryLock(&remoting.LockBatch{ConsumerGroup: "group", ClientID: "client", Queues: queues("T", n)}); err != nil {
				t.Fatal(err)
			}
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRegistry(t, Options{})
			before := heap()
			tt.fill(r)
			took, says := heap()-before, r.Stats().Bytes
			t.Logf("%d bytes each, estimated %d", took/n, says/n)
			if took > says {
				t.Errorf("%d bytes in use, estimated %d", took, says)
			}
			runtime.KeepAlive(r)
		})
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}
