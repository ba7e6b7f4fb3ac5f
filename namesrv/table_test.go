package namesrv

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/remoting"
)

// fakeConn is an owner.
type fakeConn struct{ name string }

func (*fakeConn) Close() error { return nil }

// tableTest drives a table whose clock is a number.
type tableTest struct {
	t testing.TB
	*routeTable
	clock time.Time
	conns map[string]*fakeConn
}

func newTableTest(t testing.TB, b bounds) *tableTest {
	tt := &tableTest{t: t, conns: make(map[string]*fakeConn)}
	tt.routeTable = newRouteTable(slog.New(slog.DiscardHandler), func() time.Time { return tt.clock }, b)
	return tt
}

func (tt *tableTest) conn(name string) owner {
	if tt.conns[name] == nil {
		tt.conns[name] = &fakeConn{name}
	}
	return tt.conns[name]
}

// A step is what happens to a table.
type step func(tt *tableTest)

// reg registers over a connection of 5.x.
func reg(b brokerSpec, change ...func(*registration)) step {
	return func(tt *tableTest) { tt.register(b, change...) } //nolint:errcheck // what became of it shows
}

func (tt *tableTest) register(b brokerSpec, change ...func(*registration)) (remoting.RegisterBrokerResponse, error) {
	tt.t.Helper()
	h := &remoting.RegisterBrokerRequest{
		BrokerIdentity:     remoting.BrokerIdentity{BrokerName: b.name, BrokerAddr: b.addr, ClusterName: b.cluster, BrokerID: b.id},
		HAServerAddr:       strings.Replace(b.addr, ":1091", ":2091", 1),
		EnableActingMaster: b.acting, HeartbeatTimeoutMillis: b.timeout.Milliseconds(),
	}
	req := remoting.NewRequest(remoting.ReqRegisterBroker, h)
	req.Ext.Set("enableActingMaster", fmt.Sprint(b.acting))
	table := topicTable(b)
	req.Body = remoting.EncodeBody(&remoting.RegisterBroker{Topics: table})
	r, _, err := newRegistration(h, req, tt.bounds)
	if err != nil {
		tt.t.Fatal(err)
	}
	r.owner = tt.conn(b.addr)
	for _, f := range change {
		f(r)
	}
	return tt.routeTable.register(r)
}

func old4x(r *registration)    { r.knowsActing, r.acting = false, false }
func complete(r *registration) { r.complete = true }

func stateVersion(n int64) func(*registration) {
	return func(r *registration) { r.version.StateVersion = n }
}

func unreg(name, addr string) step { return func(tt *tableTest) { tt.unregister(name, addr) } }
func gone(addr string) step        { return func(tt *tableTest) { tt.ownerGone(tt.conn(addr)) } }

func wait(d time.Duration) step {
	return func(tt *tableTest) {
		tt.clock = tt.clock.Add(d)
		tt.expire()
	}
}

func alive(cluster, name, addr string) step {
	return func(tt *tableTest) { tt.touch(cluster, name, addr) }
}

func del(topic, cluster string) step { return func(tt *tableTest) { tt.deleteTopic(topic, cluster) } }

func wipe(name string) step {
	return func(tt *tableTest) { tt.setPerms(name, func(p int32) int32 { return p &^ remoting.PermWrite }) }
}

func regTopic(topic string, queues ...remoting.QueueData) step {
	return func(tt *tableTest) { tt.registerTopic(topic, queues) }
}

// with returns b changed.
func (b brokerSpec) with(f func(*brokerSpec)) brokerSpec {
	f(&b)
	return b
}

func (b brokerSpec) at(id int64, addr string) brokerSpec {
	b.id, b.addr = id, addr
	return b
}

func (b brokerSpec) having(version int64, topics ...remoting.TopicConfig) brokerSpec {
	b.version, b.topics = version, topics
	return b
}

// dump writes a table as text: a line for each broker, then for each topic.
func (tt *tableTest) dump() string {
	var out strings.Builder
	tt.mu.RLock()
	defer tt.mu.RUnlock()
	for _, name := range slices.Sorted(maps.Keys(tt.mu.brokers)) {
		b := tt.mu.brokers[name]
		fmt.Fprintf(&out, "%s %s", b.cluster, name)
		for _, m := range b.members {
			fmt.Fprintf(&out, " %d=%s", m.id, m.addr)
		}
		if b.acting {
			out.WriteString(" acting")
		}
		out.WriteByte('\n')
	}
	for _, name := range slices.Sorted(maps.Keys(tt.mu.topics)) {
		fmt.Fprintf(&out, "%s:", name)
		for _, q := range tt.mu.topics[name].queues {
			fmt.Fprintf(&out, " %s/%d/%d/%d", q.BrokerName, q.ReadQueueNums, q.WriteQueueNums, q.Perm)
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func lines(s ...string) string { return strings.Join(append(s, ""), "\n") }

func TestTable(t *testing.T) {
	a := brokerAddr{"127.0.0.1:10911", "127.0.0.1:10921", "127.0.0.1:10931"}
	master := brokerA()
	slave := master.at(1, a[1])
	acting := func(b brokerSpec) brokerSpec { b.acting = true; return b }
	other := brokerSpec{cluster: "C", name: "broker-b", addr: a[2], version: 1, topics: twoTopics("T2", "T3")}
	for _, tc := range []struct {
		name  string
		steps []step
		want  string
	}{
		{"nothing", nil, ""},
		{"a master", []step{reg(master)}, lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"two masters share a topic", []step{reg(other), reg(master)},
			lines("C broker-a 0="+a[0], "C broker-b 0="+a[2], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6 broker-b/4/4/6", "T3: broker-b/4/4/6")},

		{"one topic only, first", []step{reg(master.having(1, twoTopics("T1")...))}, ""},
		{"one topic only, first of a slave", []step{reg(master), reg(slave.having(1, twoTopics("T1")...))},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"no topics, first", []step{reg(master.having(1))}, lines("C broker-a 0=" + a[0])},
		{"one topic only, later", []step{reg(master), reg(master.having(2, twoTopics("T9")...))},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6", "T9: broker-a/4/4/6")},

		{"same version changes no queue", []step{reg(master), reg(master.having(1, topicConfig("T1", 8, 6), topicConfig("T2", 8, 6)))},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"another version does", []step{reg(master), reg(master.having(2, topicConfig("T1", 8, 4), topicConfig("T2", 8, 6)))},
			lines("C broker-a 0="+a[0], "T1: broker-a/8/8/4", "T2: broker-a/8/8/6")},
		{"an older version as well", []step{reg(master.having(2, topicConfig("T1", 8, 4), topicConfig("T2", 8, 6))), reg(master)},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"same version brings back what was deleted", []step{reg(master), del("T1", ""), reg(master)},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},

		{"a topic left out stays", []step{reg(master), reg(master.having(2, twoTopics("T2", "T4")...))},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6", "T4: broker-a/4/4/6")},
		{"a topic left out goes if registrations are complete", []step{reg(other), reg(master), reg(master.having(2, twoTopics("T1", "T4")...), complete)},
			lines("C broker-a 0="+a[0], "C broker-b 0="+a[2], "T1: broker-a/4/4/6", "T2: broker-b/4/4/6", "T3: broker-b/4/4/6", "T4: broker-a/4/4/6")},
		{"and with the version unchanged", []step{reg(master), reg(master.having(1, twoTopics("T1", "T4")...), complete)},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T4: broker-a/4/4/6")},

		{"wiped, then the same version", []step{reg(master), wipe("broker-a"), reg(master)},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/4", "T2: broker-a/4/4/4")},
		{"wiped, then another version", []step{reg(master), wipe("broker-a"), reg(master.having(2, master.topics...))},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"wiping one broker leaves the other", []step{reg(master), reg(other), wipe("broker-b"), wipe("nobody")},
			lines("C broker-a 0="+a[0], "C broker-b 0="+a[2], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6 broker-b/4/4/4", "T3: broker-b/4/4/4")},

		{"a topic deleted in all clusters", []step{reg(master), reg(other), del("T2", "")},
			lines("C broker-a 0="+a[0], "C broker-b 0="+a[2], "T1: broker-a/4/4/6", "T3: broker-b/4/4/6")},
		{"a topic deleted in one cluster", []step{reg(master), reg(other.with(func(b *brokerSpec) { b.cluster = "D" })), del("T2", "D"), del("T1", "D")},
			lines("C broker-a 0="+a[0], "D broker-b 0="+a[2], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6", "T3: broker-b/4/4/6")},
		{"a topic deleted in no cluster", []step{reg(master), del("T2", "X"), del("T9", "")},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},

		{"single topic by 217", []step{reg(master), regTopic("T9", remoting.QueueData{BrokerName: "broker-a", ReadQueueNums: 1, WriteQueueNums: 2, Perm: 6})},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6", "T9: broker-a/1/2/6")},
		{"single topic by 217 of a broker unknown", []step{reg(master), regTopic("T9", remoting.QueueData{BrokerName: "broker-a"}, remoting.QueueData{BrokerName: "broker-x"})},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},

		{"unregistered", []step{reg(master), reg(other), unreg("broker-a", a[0])}, lines("C broker-b 0="+a[2], "T2: broker-b/4/4/6", "T3: broker-b/4/4/6")},
		{"unregistered with another address", []step{reg(master), unreg("broker-a", a[1]), unreg("broker-x", a[0])},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"the slave stays", []step{reg(master), reg(slave), unreg("broker-a", a[0])}, lines("C broker-a 1="+a[1], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"the last of two goes", []step{reg(master), reg(slave), unreg("broker-a", a[0]), unreg("broker-a", a[1])}, ""},

		{"the connection closes", []step{reg(master), reg(slave), gone(a[0])}, lines("C broker-a 1="+a[1], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"a connection closes that registered nothing", []step{reg(master), gone("other")}, lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"an old connection closes", []step{reg(master), reg(master, func(r *registration) { r.owner = &fakeConn{"new"} }), gone(a[0])},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},

		{"silent for as long as may be", []step{reg(master), wait(120 * time.Second)}, lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"silent for too long", []step{reg(master), wait(120*time.Second + 1)}, ""},
		{"silent for too long by its own time-out", []step{reg(master.with(func(b *brokerSpec) { b.timeout = 10 * time.Second })), reg(other), wait(11 * time.Second)},
			lines("C broker-b 0="+a[2], "T2: broker-b/4/4/6", "T3: broker-b/4/4/6")},
		{"a heartbeat counts", []step{reg(master), wait(100 * time.Second), alive("C", "broker-a", a[0]), wait(100 * time.Second)},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"a heartbeat of somebody else does not", []step{
			reg(master), wait(100 * time.Second), alive("C", "broker-a", a[1]), alive("D", "broker-a", a[0]), alive("C", "broker-b", a[0]), wait(100 * time.Second)}, ""},
		{"a registration counts", []step{reg(master), wait(100 * time.Second), reg(master), wait(100 * time.Second)},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},

		{"a slave registers no topics", []step{reg(master.having(1)), reg(slave)}, lines("C broker-a 0=" + a[0] + " 1=" + a[1])},
		{"a slave of 4.x never does", []step{reg(slave, old4x)}, lines("C broker-a 1=" + a[1])},
		{"a slave of 5.x does when there is no master", []step{reg(slave)}, lines("C broker-a 1="+a[1], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"and the one with the smallest id only", []step{reg(slave), reg(slave.at(2, a[2]).having(1, twoTopics("T8", "T9")...))},
			lines("C broker-a 1="+a[1]+" 2="+a[2], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"an acting one registers read only", []step{reg(acting(slave))}, lines("C broker-a 1="+a[1]+" acting", "T1: broker-a/4/4/4", "T2: broker-a/4/4/4")},
		{"until the master comes", []step{reg(acting(slave)), reg(acting(master)), reg(acting(slave))},
			lines("C broker-a 0="+a[0]+" 1="+a[1]+" acting", "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"the master goes where slaves act", []step{reg(acting(master)), reg(acting(slave)), unreg("broker-a", a[0])},
			lines("C broker-a 1="+a[1]+" acting", "T1: broker-a/4/4/4", "T2: broker-a/4/4/4")},
		{"and its slave registers again", []step{reg(acting(master)), reg(acting(slave)), unreg("broker-a", a[0]), reg(acting(slave).having(2, slave.topics...))},
			lines("C broker-a 1="+a[1]+" acting", "T1: broker-a/4/4/4", "T2: broker-a/4/4/4")},
		{"a slave goes where slaves act", []step{reg(acting(master)), reg(acting(slave)), unreg("broker-a", a[1])},
			lines("C broker-a 0="+a[0]+" acting", "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},

		{"a slave becomes the master", []step{reg(master), reg(slave), unreg("broker-a", a[0]), reg(slave.at(0, a[1]).having(1, topicConfig("T1", 8, 6), topicConfig("T2", 8, 6)))},
			lines("C broker-a 0="+a[1], "T1: broker-a/8/8/6", "T2: broker-a/8/8/6")},
		{"the master moves", []step{reg(master), reg(master.at(0, a[1]).having(1, topicConfig("T1", 8, 6), topicConfig("T2", 8, 6)))},
			lines("C broker-a 0="+a[1], "T1: broker-a/8/8/6", "T2: broker-a/8/8/6")},
		{"and the old one unregisters later", []step{reg(master), reg(master.at(0, a[1])), unreg("broker-a", a[0])},
			lines("C broker-a 0="+a[1], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"the place is taken by a newer state", []step{reg(master, stateVersion(2)), reg(master.at(0, a[1]).having(5, twoTopics("T7", "T8")...), stateVersion(1))},
			lines("C broker-a 0="+a[0], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
		{"an older state gives way", []step{reg(master, stateVersion(1)), reg(master.at(0, a[1]), stateVersion(2))},
			lines("C broker-a 0="+a[1], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},

		{"a static topic is deleted", []step{reg(master, func(r *registration) { r.mappings = map[string][]byte{"T1": []byte("{}")} }), del("T1", "")},
			lines("C broker-a 0="+a[0], "T2: broker-a/4/4/6")},

		{"the cluster is renamed", []step{reg(master), reg(slave), reg(master.with(func(b *brokerSpec) { b.cluster = "D" }))},
			lines("D broker-a 0="+a[0]+" 1="+a[1], "T1: broker-a/4/4/6", "T2: broker-a/4/4/6")},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tt := newTableTest(t, defaultBounds)
			for _, s := range tc.steps {
				// A route made before a step must not outlive what the step changes.
				tt.checkCaches()
				s(tt)
				checkInvariants(t, tt.routeTable)
			}
			tt.checkCaches()
			if diff := cmp.Diff(tc.want, tt.dump()); diff != "" {
				t.Errorf("table (-want +got):\n%s", diff)
			}
		})
	}
}

type brokerAddr [3]string

// checkCaches compares each route as it is answered with one made anew, and
// leaves all of them cached.
func (tt *tableTest) checkCaches() {
	tt.t.Helper()
	for _, name := range tt.topicNames(everyTopic) {
		for _, acting := range []bool{true, false, true} { // begins with what the last look left
			got := string(tt.route(name, acting, ""))
			tt.mu.RLock()
			want := string(remoting.EncodeBody(tt.routeDataRLocked(tt.mu.topics[name], acting)))
			tt.mu.RUnlock()
			if got != want {
				tt.t.Errorf("route of %s, acting %v: %s, want %s", name, acting, got, want)
			}
		}
	}
}

func TestRegisterAnswer(t *testing.T) {
	master := brokerA()
	slave := master.at(1, "127.0.0.1:10921")
	found := remoting.RegisterBrokerResponse{MasterAddr: master.addr, HAServerAddr: "127.0.0.1:20911"}
	for _, tc := range []struct {
		name   string
		before []step
		spec   brokerSpec
		want   remoting.RegisterBrokerResponse
		err    string
	}{
		{"a lone master", nil, master, remoting.RegisterBrokerResponse{}, ""},
		{"a slave without master", nil, slave, remoting.RegisterBrokerResponse{}, ""},
		{"a slave with its master", []step{reg(master)}, slave, found, ""},
		{"a slave whose master is gone", []step{reg(master), reg(slave), unreg(master.name, master.addr)}, slave, remoting.RegisterBrokerResponse{}, ""},
		{"a master with a slave", []step{reg(slave)}, master, remoting.RegisterBrokerResponse{}, ""},
		{"one topic first", nil, master.having(1, twoTopics("T")...), remoting.RegisterBrokerResponse{}, "register broker failed"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tt := newTableTest(t, defaultBounds)
			for _, s := range tc.before {
				s(tt)
			}
			got, err := tt.register(tc.spec)
			if got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
		})
	}
}

func TestVersion(t *testing.T) {
	tt := newTableTest(t, defaultBounds)
	reg(brokerA())(tt)
	for _, tc := range []struct {
		name                  string
		cluster, broker, addr string
		want                  remoting.DataVersion
		ok                    bool
	}{
		{"known", "C", "broker-a", "127.0.0.1:10911", remoting.DataVersion{Counter: 1}, true},
		{"another cluster", "D", "broker-a", "127.0.0.1:10911", remoting.DataVersion{}, false},
		{"another broker", "C", "broker-b", "127.0.0.1:10911", remoting.DataVersion{}, false},
		{"another address", "C", "broker-a", "127.0.0.1:10912", remoting.DataVersion{}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got, ok := tt.version(tc.cluster, tc.broker, tc.addr); got != tc.want || ok != tc.ok {
				t.Errorf("got %+v %v, want %+v %v", got, ok, tc.want, tc.ok)
			}
		})
	}
}

func TestRoute(t *testing.T) {
	master := brokerA()
	slave := master.at(2, "127.0.0.1:10921")
	slave.acting = true
	third := slave.at(3, "127.0.0.1:10931")
	member := syncTopicPrefix + "broker-a"
	for _, tc := range []struct {
		name      string
		steps     []step
		topic     string
		acting    bool
		orderConf string
		want      string
	}{
		{"no such topic", []step{reg(master)}, "T9", true, "T9:1", ""},
		{"a master", []step{reg(master)}, "T1", true, "",
			`{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"C","enableActingMaster":false}],` +
				`"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}`},
		{"ordered", []step{reg(master)}, "T1", false, "broker-a:2",
			`{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"C","enableActingMaster":false}],` +
				`"filterServerTable":{},"orderTopicConf":"broker-a:2","queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}`},
		{"a zone and filter servers", []step{reg(master, func(r *registration) { r.zone, r.filterServers = "z1", []string{"127.0.0.1:1"} })}, "T1", false, "",
			`{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"C","enableActingMaster":false,"zoneName":"z1"}],` +
				`"filterServerTable":{"127.0.0.1:10911":["127.0.0.1:1"]},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}`},
		{"a static topic", []step{reg(master, func(r *registration) { r.mappings = map[string][]byte{"T1": []byte(`{"bname":"broker-a"}`)} })}, "T1", false, "",
			`{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"C","enableActingMaster":false}],` +
				`"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}],` +
				`"topicQueueMappingByBroker":{"broker-a":{"bname":"broker-a"}}}`},
		{"slaves, acting shown", []step{reg(slave), reg(third)}, "T1", true, "",
			`{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10921","3":"127.0.0.1:10931"},"brokerName":"broker-a","cluster":"C","enableActingMaster":true}],` +
				`"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":4,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}`},
		{"slaves, acting not shown", []step{reg(slave), reg(third)}, "T1", false, "",
			`{"brokerDatas":[{"brokerAddrs":{"2":"127.0.0.1:10921","3":"127.0.0.1:10931"},"brokerName":"broker-a","cluster":"C","enableActingMaster":true}],` +
				`"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":4,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}`},
		{"slaves that do not act", []step{reg(slave.with(func(b *brokerSpec) { b.acting = false })), wipe("broker-a")}, "T1", true, "",
			`{"brokerDatas":[{"brokerAddrs":{"2":"127.0.0.1:10921"},"brokerName":"broker-a","cluster":"C","enableActingMaster":false}],` +
				`"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":4,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}`},
		{"slaves of a topic that can be written", []step{reg(slave), regTopic("T9", remoting.QueueData{BrokerName: "broker-a", Perm: 6})}, "T9", true, "",
			`{"brokerDatas":[{"brokerAddrs":{"2":"127.0.0.1:10921"},"brokerName":"broker-a","cluster":"C","enableActingMaster":true}],` +
				`"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,"readQueueNums":0,"topicSysFlag":0,"writeQueueNums":0}]}`},
		{"the topic of the members", []step{reg(slave.having(1, twoTopics(member, "T1")...))}, member, true, "",
			`{"brokerDatas":[{"brokerAddrs":{"2":"127.0.0.1:10921"},"brokerName":"broker-a","cluster":"C","enableActingMaster":true}],` +
				`"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":4,"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tt := newTableTest(t, defaultBounds)
			for _, s := range tc.steps {
				s(tt)
			}
			for range 2 { // made, then from the cache
				if got := string(tt.route(tc.topic, tc.acting, tc.orderConf)); got != tc.want {
					t.Errorf("got %s\nwant %s", got, tc.want)
				}
			}
			if tc.want != "" && !json.Valid([]byte(tc.want)) {
				t.Errorf("not JSON: %s", tc.want)
			}
			// What a route was made for must not leak into another.
			if plain := string(tt.route(tc.topic, false, "")); tc.orderConf != "" && strings.Contains(plain, "orderTopicConf") {
				t.Errorf("order conf left in %s", plain)
			}
			checkInvariants(t, tt.routeTable)
		})
	}
}

func TestRouteIsCached(t *testing.T) {
	tt := newTableTest(t, defaultBounds)
	reg(brokerA())(tt)
	first := tt.route("T1", false, "")
	reg(brokerA())(tt) // nothing new
	if again := tt.route("T1", false, ""); &first[0] != &again[0] {
		t.Error("the route was encoded again")
	}
	tt.bounds.cachedBytes = tt.cachedBytes.Load()
	second := tt.route("T2", false, "")
	if again := tt.route("T2", false, ""); &second[0] == &again[0] {
		t.Error("a route was cached beyond the bound")
	}
	checkInvariants(t, tt.routeTable)
}

func TestTopicLists(t *testing.T) {
	tt := newTableTest(t, defaultBounds)
	unit, sub, both := topicConfig("U", 1, 6), topicConfig("S", 1, 6), topicConfig("B", 1, 6)
	unit.TopicSysFlag, sub.TopicSysFlag, both.TopicSysFlag = topicFlagUnit, topicFlagUnitSub, topicFlagUnit|topicFlagUnitSub
	reg(brokerSpec{cluster: "C2", name: "b2", addr: "127.0.0.1:2", topics: twoTopics("Z", "A")})(tt)
	reg(brokerSpec{cluster: "C1", name: "b1", addr: "127.0.0.1:1", topics: []remoting.TopicConfig{unit, sub, both, topicConfig("A", 1, 6)}})(tt)
	system, addr := tt.systemTopics()
	for _, tc := range []struct {
		name      string
		got, want []string
	}{
		{"all", tt.topicNames(everyTopic), []string{"A", "B", "S", "U", "Z"}},
		{"cluster", tt.topicsOfCluster("C2"), []string{"A", "Z"}},
		{"no such cluster", tt.topicsOfCluster("C3"), []string{}},
		{"unit", tt.topicNames(withFlags(topicFlagUnit, topicFlagUnit)), []string{"B", "U"}},
		{"unit sub", tt.topicNames(withFlags(topicFlagUnitSub, topicFlagUnitSub)), []string{"B", "S"}},
		{"unit sub, not unit", tt.topicNames(withFlags(topicFlagUnit|topicFlagUnitSub, topicFlagUnitSub)), []string{"S"}},
		{"system", system, []string{"C1", "b1", "C2", "b2"}},
		{"address", []string{addr}, []string{"127.0.0.1:1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.got); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

// TestExpireReturnsOwners: a connection is to be closed when all who registered by
// it are silent.
func TestExpireReturnsOwners(t *testing.T) {
	tt := newTableTest(t, defaultBounds)
	shared := tt.conn("shared")
	by := func(r *registration) { r.owner = shared }
	short, long := brokerA(), brokerSpec{cluster: "C", name: "broker-b", addr: "127.0.0.1:1", topics: twoTopics()}
	short.timeout, long.timeout = time.Second, time.Minute
	reg(short, by)(tt)
	reg(long, by)(tt)
	tt.clock = tt.clock.Add(2 * time.Second)
	if got := tt.expire(); len(got) != 0 {
		t.Errorf("%d connections to be closed while one broker on it is alive", len(got))
	}
	tt.clock = tt.clock.Add(time.Minute)
	if got := tt.expire(); len(got) != 1 || got[0] != shared {
		t.Errorf("connections to be closed: %v", got)
	}
	if got := tt.expired.Load(); got != 2 {
		t.Errorf("%d expired, want 2", got)
	}
	if got := tt.dump(); got != "" {
		t.Errorf("left: %s", got)
	}
}
