//go:build interop

package cluster

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// scenario is one cell of the matrix: what a client does against a server.
type scenario struct {
	name string // of the subtest and of the row
	run  string // the name that the program knows; name, if empty
	// own are settings of a server of the scenario's own; nil: it uses the
	// one that all share.
	own map[string]string
	// before prepares the server, after looks at what came out.
	before func(t *testing.T, p *pair, suffix string)
	after  func(t *testing.T, p *pair, r *result)
	cell   string // what the matrix says when the test passes; "passes", if empty
	skip   string // the reason, if it cannot run
}

// client is one column.
type client struct {
	name       string
	version    string // of the Java client
	properties []string
	scenarios  []scenario
}

func (c *client) program(t *testing.T, p *pair) program {
	switch {
	case c.version != "":
		return newJavaClient(t, c.version, p.namesrv, c.properties...)
	case strings.HasPrefix(c.name, "node"):
		return newNodeClient(t, p.namesrv)
	default:
		return newGoClient(t, p.namesrv, p.broker)
	}
}

func plain(names ...string) (all []scenario) {
	for _, n := range names {
		all = append(all, scenario{name: n})
	}
	return all
}

// clients are the columns for a kind of server. Long scenarios come first, so
// that they do not run alone at the end.
func clients(k kind) []client {
	shared := plain("consumer-hold", "consumer-rebalance", "consumer-retry", "consumer-orderly", "transaction", "consumer-broadcast", "consumer-from",
		"consumer-sql", "consumer-tags", "litepull-assign", "litepull-subscribe", "producer", "producer-batch", "producer-errors", "producer-query",
		"pull", "request-reply")
	shared = append(shared, scenario{name: "producer-keys", after: keysFound}, fromOld(k))
	java54 := append(slices.Clone(shared), pop(k))
	for i, s := range java54 {
		if k == java494 && strings.HasPrefix(s.name, "litepull") {
			java54[i].skip = "this client asks for messages by a request that 4.9 does not know"
		}
	}
	java54 = append(java54, timers(k)...)
	goKeys := scenario{name: "producer-keys", after: func(t *testing.T, p *pair, r *result) {
		for _, key := range []string{"Ea", "FB"} {
			queryByKey(t, p, r.fact("topic"), key, 6)
		}
	}}
	return []client{
		{name: "node-ali-ons-3.12.0", scenarios: plain("consumer-retry", "consumer-tags", "consumer-sql", "consumer-broadcast", "producer", "producer-notopic")},
		{name: "java-5.4.0", version: "5.4.0", scenarios: java54},
		{name: "java-4.9.8", version: "4.9.8", scenarios: shared},
		{name: "go-2.1.3", scenarios: append(plain("consumer-retry", "consumer-rebalance", "consumer-orderly", "transaction", "consumer-broadcast", "consumer-from",
			"consumer-sql", "consumer-tags", "producer", "producer-errors", "pull", "request-reply", "request-reply-emptybody", "admin"), goKeys)},
		{name: "java-5.4.0-binaryheader", version: "5.4.0", properties: []string{"-Drocketmq.serialize.type=ROCKETMQ"},
			scenarios: plain("consumer-retry", "consumer-orderly", "transaction", "consumer-tags", "producer", "producer-batch", "producer-errors", "producer-query", "pull", "request-reply")},
		{name: "java-5.4.0-vip", version: "5.4.0", properties: []string{"-Dcom.rocketmq.sendMessageWithVIPChannel=true"},
			scenarios: plain("consumer-orderly", "consumer-tags", "producer", "producer-query", "transaction")},
		{name: "java-5.4.0-heartbeatv2", version: "5.4.0", properties: []string{"-Dcom.rocketmq.heartbeat.v2=true", "-Dinterop.heartbeatMs=1500"},
			scenarios: plain("consumer-tags", "consumer-sql", "consumer-rebalance")},
	}
}

// fromOld: new groups of a topic that the broker takes for old.
func fromOld(k kind) scenario {
	s := scenario{name: "consumer-from-old", own: map[string]string{"accessMessageInMemoryMaxRatio": "0"}}
	if k != java494 {
		s.skip = "as in 5.x, a topic whose messages are all there is never old"
	}
	return s
}

// pop: a consumer that wants the broker to choose queues and hand out messages.
// Only Java 5.x does; the others tell it.
func pop(k kind) scenario {
	if k == java540 {
		return scenario{name: "consumer-pop", before: setPop}
	}
	return scenario{name: "consumer-pop", run: "consumer-pop-refused", cell: "refused", before: refusePop, after: func(t *testing.T, p *pair, r *result) {
		if got := r.fact("assignment"); got != fmt.Sprint(remoting.CodeRequestCodeNotSupported) {
			t.Errorf("a client that asked for queues was answered %s", got)
		}
	}}
}

func popNames(suffix string) (topic, group string) { return "T_pop_" + suffix, "G_pop_" + suffix }

func setPop(t *testing.T, p *pair, suffix string) {
	topic, group := popNames(suffix)
	must(t, p.broker, remoting.ReqUpdateAndCreateTopic, &remoting.CreateTopicRequest{Topic: topic, DefaultTopic: "TBW102", ReadQueueNums: 4, WriteQueueNums: 4,
		Perm: remoting.PermRead | remoting.PermWrite, TopicFilterType: remoting.FilterTypeSingle}, nil)
	g := remoting.NewGroupConfig(group)
	must(t, p.broker, remoting.ReqUpdateAndCreateSubscriptionGroup, nil, remoting.EncodeBody(&g))
	must(t, p.broker, remoting.ReqSetMessageRequestMode, nil, remoting.EncodeBody(&remoting.RequestMode{Topic: topic, ConsumerGroup: group, Mode: "POP", PopShareQueueNum: 8}))
}

func refusePop(t *testing.T, p *pair, suffix string) {
	topic, group := popNames(suffix)
	for _, req := range []struct {
		code int32
		h    remoting.Header
		body []byte
	}{
		{remoting.ReqSetMessageRequestMode, nil, remoting.EncodeBody(&remoting.RequestMode{Topic: topic, ConsumerGroup: group, Mode: "POP", PopShareQueueNum: 8})},
		{remoting.ReqQueryAssignment, nil, remoting.EncodeBody(&remoting.QueryAssignment{Topic: topic, ConsumerGroup: group, ClientID: "c", StrategyName: "AVG"})},
		{remoting.ReqPopMessage, &remoting.PopMessageRequest{ConsumerGroup: group, Topic: topic, QueueID: -1, MaxMsgNums: 32, InvisibleTime: 60000, PollTime: 15000}, nil},
		{remoting.ReqAckMessage, &remoting.AckMessageRequest{ConsumerGroup: group, Topic: topic}, nil},
	} {
		if code := answerCode(t, p.broker, req.code, req.h, req.body); code != remoting.CodeRequestCodeNotSupported {
			t.Errorf("%s was answered %s", remoting.RequestName(req.code), remoting.ResponseName(code))
		}
	}
}

// timers: messages for a moment, and their recall. Only Java 5.x has them.
func timers(k kind) []scenario {
	refused := scenario{name: "producer-timer", run: "producer-timer-refused", cell: "refused", after: func(t *testing.T, p *pair, r *result) {
		want := remoting.CodeSystemError
		for _, property := range []string{"TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_DELIVER_MS"} {
			if got := r.fact(property); got != fmt.Sprint(want) {
				t.Errorf("%s was answered %s, want %d", property, got, want)
			}
		}
		if got := r.fact("recall"); got != fmt.Sprint(remoting.CodeNoPermission) && got != fmt.Sprint(remoting.CodeRequestCodeNotSupported) {
			t.Errorf("a recall was answered %s", got)
		}
	}}
	switch k {
	case java540:
		refused.name, refused.own = "producer-timer-refused", map[string]string{"timerWheelEnable": "false"}
		return []scenario{{name: "producer-timer"}, {name: "producer-timer-recall", run: "producer-timer", own: map[string]string{"recallMessageEnable": "true"}}, refused}
	case java494:
		return []scenario{{name: "producer-timer", skip: "4.9 ignores the properties"}}
	default:
		return []scenario{refused}
	}
}

// keysFound: a broker whose answer is limited to as many messages as a key has
// finds them all, though another key has the same hash. Java's counts those of
// the other key, which its client then drops.
func keysFound(t *testing.T, p *pair, r *result) {
	if p.kind != gantry {
		return
	}
	for _, key := range []string{"Ea", "FB"} {
		if got := r.fact("foundOf6by" + key); got != "6" {
			t.Errorf("a query for 6 messages with key %s found %s", key, got)
		}
	}
}

// queryByKey asks a broker itself: it has to give the wanted number of messages
// with a key. Java's also gives those of another key with the same hash.
func queryByKey(t *testing.T, p *pair, topic, key string, want int) {
	t.Helper()
	c := must(t, p.broker, remoting.ReqQueryMessage, &remoting.QueryMessageRequest{Topic: topic, Key: key, MaxNum: 64, EndTimestamp: 1<<63 - 1}, nil)
	n := 0
	for rec := c.Body; len(rec) > 0; {
		size := message.Size(rec)
		if size <= 0 || int(size) > len(rec) {
			t.Fatalf("record of %d bytes in %d", size, len(rec))
		}
		m, err := message.Decode(rec[:size])
		if err != nil {
			t.Fatal(err)
		}
		if keys := slices.Collect(m.Keys()); slices.Equal(keys, []string{key}) {
			n++
		} else if p.kind == gantry {
			t.Errorf("a query for %s also gave a message with %q", key, keys)
		}
		rec = rec[size:]
	}
	if n != want {
		t.Errorf("a query for %s gave %d of %d messages", key, n, want)
	}
}

// TestClients runs every scenario of every client. Scenarios of one Java
// version share a JVM, and all share the servers, but for those that say so.
func TestClients(t *testing.T) {
	k := ours(t)
	shared := newPair(t, k, brokerConfig{})
	shared.start(t)
	prepare(t)
	var m matrix
	t.Cleanup(func() { t.Logf("clients against %s\n\n%s", k, m.markdown(clients(k))) })
	for _, c := range clients(k) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			common := sync.OnceValue(func() program { return c.program(t, shared) })
			for _, s := range c.scenarios {
				t.Run(s.name, func(t *testing.T) {
					if s.skip != "" {
						m.set(c.name, s.name, "–")
						t.Skip(s.skip)
					}
					t.Parallel()
					defer func() { m.result(t, c.name, s) }()
					p, run := shared, common
					if s.own != nil {
						p = newPair(t, k, brokerConfig{set: s.own})
						p.start(t)
						run = func() program { return c.program(t, p) }
					}
					suffix := newSuffix()
					if s.before != nil {
						s.before(t, p, suffix)
					}
					name := s.run
					if name == "" {
						name = s.name
					}
					r := run().run(t, name, suffix, nil)
					if !r.OK {
						// On a busy machine the clients themselves lose races: the 4.9.8
						// client's timer may write an offset that it read before the
						// scenario committed a newer one. What fails twice is a fault.
						t.Logf("first try failed: %s\nfacts: %v\n%s", r.Error, r.Facts, r.Trace)
						suffix = newSuffix()
						if s.before != nil {
							s.before(t, p, suffix)
						}
						r = run().run(t, name, suffix, nil)
					}
					r.check(t)
					if r.OK && s.after != nil {
						s.after(t, p, r)
					}
				})
			}
		})
	}
}

// matrix collects the cells.
type matrix struct {
	mu    sync.Mutex
	cells map[[2]string]string
}

func (m *matrix) set(client, row, cell string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.cells == nil {
		m.cells = make(map[[2]string]string)
	}
	m.cells[[2]string{client, row}] = cell
}

func (m *matrix) result(t *testing.T, client string, s scenario) {
	switch {
	case t.Failed():
		m.set(client, s.name, "**fails**")
	case s.cell != "":
		m.set(client, s.name, s.cell)
	default:
		m.set(client, s.name, "passes")
	}
}

// markdown is the matrix as a table; cells that did not run are empty.
func (m *matrix) markdown(all []client) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var b strings.Builder
	var rows []string
	b.WriteString("| scenario |")
	rule := "\n|---|"
	for _, c := range all {
		fmt.Fprintf(&b, " %s |", c.name)
		rule += "---|"
		for _, s := range c.scenarios {
			if !slices.Contains(rows, s.name) {
				rows = append(rows, s.name)
			}
		}
	}
	b.WriteString(rule)
	slices.Sort(rows)
	for _, row := range rows {
		line, ran := fmt.Sprintf("\n| %s |", row), false
		for _, c := range all {
			cell := m.cells[[2]string{c.name, row}]
			line += fmt.Sprintf(" %s |", cell)
			ran = ran || cell != ""
		}
		if ran {
			b.WriteString(line)
		}
	}
	return b.String()
}
