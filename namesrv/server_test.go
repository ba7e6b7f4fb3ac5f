package namesrv

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

func askRoute(t testing.TB, tc *testClient, topic string) (*remoting.TopicRouteData, error) {
	t.Helper()
	resp := tc.call(remoting.ReqGetRouteInfoByTopic, &remoting.RouteInfoRequest{Topic: topic}, nil)
	if err := resp.Err(); err != nil {
		return nil, err
	}
	var data remoting.TopicRouteData
	if err := remoting.DecodeBody(resp.Body, &data); err != nil {
		t.Fatal(err)
	}
	return &data, nil
}

func wantCode(t testing.TB, err error, code int32, remark string) {
	t.Helper()
	e, ok := errors.AsType[*remoting.Error](err)
	if !ok || e.Code != code || !strings.Contains(e.Remark, remark) {
		t.Errorf("got %v, want code %d with %q", err, code, remark)
	}
}

func TestRegisterAndRoute(t *testing.T) {
	tc := startTest(t, Options{})
	_, err := askRoute(t, tc, "T1")
	wantCode(t, err, remoting.CodeTopicNotExist, "No topic route info in name server for the topic: T1")
	a := brokerA()
	if resp := tc.register(a); resp.Err() != nil || len(resp.Ext) != 0 || resp.Body != nil {
		t.Fatalf("answer of a lone master: %v", resp)
	}
	got, err := askRoute(t, tc, "T1")
	if err != nil {
		t.Fatal(err)
	}
	want := &remoting.TopicRouteData{
		BrokerDatas: []remoting.BrokerData{{Cluster: "C", BrokerName: "broker-a", BrokerAddrs: map[int64]string{0: a.addr}}},
		QueueDatas:  []remoting.QueueData{{BrokerName: "broker-a", ReadQueueNums: 4, WriteQueueNums: 4, Perm: 6}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("route (-want +got):\n%s", diff)
	}
	slave := tc.register(a.at(1, "127.0.0.1:10921"))
	if got := slave.Ext.Value("masterAddr"); got != a.addr {
		t.Errorf("the slave is told master %q", got)
	}
	if got := slave.Ext.Value("haServerAddr"); got != "127.0.0.1:10912" {
		t.Errorf("the slave is told HA address %q", got)
	}
	wantCode(t, tc.register(brokerSpec{cluster: "C", name: "b", addr: "127.0.0.1:1", topics: twoTopics("T")}).Err(),
		remoting.CodeSystemError, "register broker failed")
	tc.ok(remoting.ReqUnregisterBroker, &remoting.BrokerIdentity{BrokerName: a.name, BrokerAddr: a.addr, ClusterName: "C"}, nil)
	if got, err = askRoute(t, tc, "T1"); err != nil || len(got.BrokerDatas[0].BrokerAddrs) != 1 {
		t.Errorf("route after the master left: %+v %v", got, err)
	}
}

func TestRegisterRefused(t *testing.T) {
	tc := startTest(t, Options{})
	h := remoting.RegisterBrokerRequest{
		BrokerIdentity: remoting.BrokerIdentity{BrokerName: "b", BrokerAddr: "127.0.0.1:1", ClusterName: "C"}, HAServerAddr: "127.0.0.1:2",
	}
	for _, c := range []struct {
		name   string
		header func(*remoting.RegisterBrokerRequest)
		body   string
		remark string
	}{
		{"wrong checksum", func(h *remoting.RegisterBrokerRequest) { h.BodyCRC32 = 1 }, "{}", "crc32 not match"},
		{"body cut", nil, `{"topicConfigSerializeWrapper":{`, "body"},
		{"compressed says the header", func(h *remoting.RegisterBrokerRequest) { h.Compressed = true }, "{}", "compressed registration"},
		{"address", func(h *remoting.RegisterBrokerRequest) { h.BrokerAddr = "here" }, "", "not host:port"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := h
			if c.header != nil {
				c.header(&h)
			}
			wantCode(t, tc.call(remoting.ReqRegisterBroker, &h, []byte(c.body)).Err(), remoting.CodeSystemError, c.remark)
		})
	}
	if got := tc.srv.Stats(); got.Brokers != 0 || got.Clusters != 0 {
		t.Errorf("left: %+v", got)
	}
}

// TestFieldsMissing: every request with fields that it must have is refused
// without them, and says which.
func TestFieldsMissing(t *testing.T) {
	tc := startTest(t, Options{})
	for code, field := range map[int32]string{
		remoting.ReqPutKVConfig: "namespace", remoting.ReqGetKVConfig: "namespace", remoting.ReqDeleteKVConfig: "namespace",
		remoting.ReqGetKVListByNamespace: "namespace", remoting.ReqRegisterBroker: "brokerName", remoting.ReqUnregisterBroker: "brokerName",
		remoting.ReqBrokerHeartbeat: "clusterName", remoting.ReqQueryDataVersion: "brokerName", remoting.ReqGetRouteInfoByTopic: "topic",
		remoting.ReqWipeWritePermOfBroker: "brokerName", remoting.ReqAddWritePermOfBroker: "brokerName", remoting.ReqGetTopicsByCluster: "cluster",
		remoting.ReqDeleteTopicInNamesrv: "topic", remoting.ReqRegisterTopicInNamesrv: "topic",
	} {
		t.Run(remoting.RequestName(code), func(t *testing.T) {
			wantCode(t, tc.call(code, nil, nil).Err(), remoting.CodeSystemError, "ext field "+field+" is missing")
		})
	}
}

// TestRegisterOnClosedConnection: a registration that is still being handled when
// its connection has closed, and its end been dealt with, leaves nothing.
func TestRegisterOnClosedConnection(t *testing.T) {
	tc := startTest(t, Options{})
	c, err := tc.Conn(t.Context(), tc.addr)
	if err != nil {
		t.Fatal(err)
	}
	c.Close() //nolint:errcheck // never fails
	h := &remoting.RegisterBrokerRequest{BrokerIdentity: remoting.BrokerIdentity{BrokerName: "b", BrokerAddr: "127.0.0.1:1", ClusterName: "C"}}
	if _, err := tc.srv.registerBroker(c.Context(), c, remoting.NewRequest(remoting.ReqRegisterBroker, h)); err != nil {
		t.Fatal(err)
	}
	if got := tc.srv.Stats(); got.Brokers != 0 {
		t.Errorf("left: %+v", got)
	}
}

// logged is told when the log says that a connection took a broker with it.
type logged chan struct{}

func (l logged) Enabled(context.Context, slog.Level) bool { return true }
func (l logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l logged) WithGroup(string) slog.Handler            { return l }

func (l logged) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "its connection closed") {
		select {
		case l <- struct{}{}:
		default: // at the end of the test
		}
	}
	return nil
}

// TestConnectionCloses: a broker is gone when its connection closes, and only
// then.
func TestConnectionCloses(t *testing.T) {
	gone := make(logged, 1)
	tc := startTest(t, Options{Logger: slog.New(gone)})
	broker := remoting.NewClient(remoting.ClientOptions{})
	defer broker.Close() //nolint:errcheck // never fails
	(&testClient{t: t, srv: tc.srv, addr: tc.addr, Client: broker}).register(brokerA())
	tc.register(brokerSpec{cluster: "C", name: "broker-b", addr: "127.0.0.1:1", topics: twoTopics()})
	c, err := broker.Conn(t.Context(), tc.addr)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	<-gone
	var info remoting.ClusterInfo
	if err := remoting.DecodeBody(tc.ok(remoting.ReqGetBrokerClusterInfo, nil, nil).Body, &info); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string][]string{"C": {"broker-b"}}, info.ClusterAddrTable); diff != "" {
		t.Errorf("clusters (-want +got):\n%s", diff)
	}
	checkInvariants(t, tc.srv.routes)
}

// TestExpiry runs the server in virtual time: a broker that says nothing
// disappears after its time-out, and its connection is closed.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, err := newServer(Options{FS: memfs.New(), Limits: remoting.Limits{IdleTimeout: -1}})
		if err != nil {
			t.Fatal(err)
		}
		s.running.Go(func() { expireLoop(s.stop, s.options.Load().ScanNotActiveBrokerInterval, s.expire) })
		dial := func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			s.server.ServeConn(theirs)
			return ours, nil
		}
		tc := &testClient{t: t, srv: s, addr: "pipe:1", Client: remoting.NewClient(remoting.ClientOptions{Dial: dial, Options: remoting.Options{Limits: remoting.Limits{IdleTimeout: -1}}})}
		defer tc.Close()                       //nolint:errcheck // never fails
		defer s.Shutdown(context.Background()) //nolint:errcheck // nothing runs any more
		b := brokerA()
		b.timeout = 10 * time.Second
		tc.register(b)
		id := remoting.BrokerIdentity{BrokerName: b.name, BrokerAddr: b.addr, ClusterName: b.cluster}
		conn, err := tc.Conn(t.Context(), tc.addr)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 { // alive by either heartbeat
			time.Sleep(6 * time.Second)
			tc.ok(remoting.ReqBrokerHeartbeat, &remoting.BrokerHeartbeatRequest{ClusterName: b.cluster, BrokerAddr: b.addr, BrokerName: b.name}, nil)
			time.Sleep(6 * time.Second)
			tc.ok(remoting.ReqQueryDataVersion, &id, remoting.EncodeBody(&remoting.DataVersion{}))
		}
		if got := s.Stats(); got.Brokers != 1 || got.Expired != 0 {
			t.Fatalf("after a minute with heartbeats: %+v", got)
		}
		start := time.Now()
		<-conn.Context().Done()
		if took := time.Since(start); took < 10*time.Second || took > 15*time.Second {
			t.Errorf("gone after %v", took)
		}
		if got := s.Stats(); got.Brokers != 0 || got.Topics != 0 || got.Expired != 1 {
			t.Errorf("after silence: %+v", got)
		}
	})
}

func TestQueryDataVersion(t *testing.T) {
	tc := startTest(t, Options{})
	b := brokerA()
	tc.register(b)
	id := remoting.BrokerIdentity{BrokerName: b.name, BrokerAddr: b.addr, ClusterName: b.cluster}
	stored := `{"counter":1,"stateVersion":0,"timestamp":0}`
	for _, c := range []struct {
		name, body    string
		addr          string
		changed, want string
	}{
		{"the same", stored, b.addr, "false", stored},
		{"another", `{"counter":2,"stateVersion":0,"timestamp":0}`, b.addr, "true", stored},
		{"unknown broker", stored, "127.0.0.1:1", "true", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			id.BrokerAddr = c.addr
			resp := tc.ok(remoting.ReqQueryDataVersion, &id, []byte(c.body))
			if got := resp.Ext.Value("changed"); got != c.changed || string(resp.Body) != c.want {
				t.Errorf("changed %q, body %s; want %s, %s", got, resp.Body, c.changed, c.want)
			}
		})
	}
}

func TestOrderTopicConf(t *testing.T) {
	for _, c := range []struct {
		name      string
		opts      Options
		conf      string // in the route
		withTable bool   // in the answer to 103
	}{
		{"default", Options{}, "", true},
		{"enabled", Options{OrderMessageEnable: true}, "broker-a:4", true},
		{"not for brokers", Options{DisableReturnOrderTopicConfig: true}, "", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			tc := startTest(t, c.opts)
			kv := &remoting.PutKVRequest{Namespace: orderNamespace, Key: "T1", Value: "broker-a:4"}
			tc.ok(remoting.ReqPutKVConfig, kv, nil)
			want := ""
			if c.withTable {
				want = `{"table":{"T1":"broker-a:4"}}`
			}
			if got := string(tc.register(brokerA()).Body); got != want {
				t.Errorf("the broker is told %s, want %s", got, want)
			}
			if got, err := askRoute(t, tc, "T1"); err != nil || got.OrderTopicConf != c.conf {
				t.Errorf("route %+v %v, want %q", got, err, c.conf)
			}
			tc.ok(remoting.ReqDeleteKVConfig, &remoting.KVRequest{Namespace: kv.Namespace, Key: kv.Key}, nil)
			if got, err := askRoute(t, tc, "T1"); err != nil || got.OrderTopicConf != "" {
				t.Errorf("route after the key was deleted: %+v %v", got, err)
			}
		})
	}
}

func TestTopicRequests(t *testing.T) {
	tc := startTest(t, Options{})
	tc.register(brokerA())
	list := func(code int32, h remoting.Header) string { return string(tc.ok(code, h, nil).Body) }
	for _, c := range []struct {
		name string
		code int32
		h    remoting.Header
		want string
	}{
		{"all", remoting.ReqGetAllTopicListFromNameServer, nil, `{"topicList":["T1","T2"]}`},
		{"cluster", remoting.ReqGetTopicsByCluster, &remoting.ClusterRequest{Cluster: "C"}, `{"topicList":["T1","T2"]}`},
		{"no such cluster", remoting.ReqGetTopicsByCluster, &remoting.ClusterRequest{Cluster: "D"}, `{"topicList":[]}`},
		{"system", remoting.ReqGetSystemTopicListFromNS, nil, `{"brokerAddr":"127.0.0.1:10911","topicList":["C","broker-a"]}`},
		{"unit", remoting.ReqGetUnitTopicList, nil, `{"topicList":[]}`},
		{"unit sub", remoting.ReqGetHasUnitSubTopicList, nil, `{"topicList":[]}`},
		{"unit sub, not unit", remoting.ReqGetHasUnitSubUnunitTopicList, nil, `{"topicList":[]}`},
	} {
		t.Run(c.name, func(t *testing.T) {
			if got := list(c.code, c.h); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	body := remoting.EncodeBody(&remoting.TopicRouteData{QueueDatas: []remoting.QueueData{{BrokerName: "broker-a", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6}}})
	tc.ok(remoting.ReqRegisterTopicInNamesrv, &remoting.TopicRequest{Topic: "T3"}, body)
	if got := list(remoting.ReqGetAllTopicListFromNameServer, nil); got != `{"topicList":["T1","T2","T3"]}` {
		t.Errorf("after 217: %s", got)
	}
	wantCode(t, tc.call(remoting.ReqRegisterTopicInNamesrv, &remoting.TopicRequest{Topic: "a\nb"}, body).Err(), remoting.CodeSystemError, "control characters")
	tc.ok(remoting.ReqDeleteTopicInNamesrv, &remoting.DeleteTopicRequest{Topic: "T3", ClusterName: "C"}, nil)
	tc.ok(remoting.ReqDeleteTopicInNamesrv, &remoting.DeleteTopicRequest{Topic: "T2"}, nil)
	if got := list(remoting.ReqGetAllTopicListFromNameServer, nil); got != `{"topicList":["T1"]}` {
		t.Errorf("after 216: %s", got)
	}
}

func TestWritePerm(t *testing.T) {
	tc := startTest(t, Options{})
	b := brokerA()
	b.topics = []remoting.TopicConfig{topicConfig("T1", 4, 7), topicConfig("T2", 4, 4)}
	tc.register(b)
	perms := func() [2]int32 {
		var p [2]int32
		for i, topic := range []string{"T1", "T2"} {
			r, err := askRoute(t, tc, topic)
			if err != nil {
				t.Fatal(err)
			}
			p[i] = r.QueueDatas[0].Perm
		}
		return p
	}
	h := &remoting.BrokerNameRequest{BrokerName: b.name}
	if got := tc.ok(remoting.ReqWipeWritePermOfBroker, h, nil).Ext.Value("wipeTopicCount"); got != "2" {
		t.Errorf("%s topics wiped", got)
	}
	if got := perms(); got != [2]int32{5, 4} {
		t.Errorf("permissions %v after 205", got)
	}
	if got := tc.ok(remoting.ReqAddWritePermOfBroker, h, nil).Ext.Value("addTopicCount"); got != "2" {
		t.Errorf("%s topics given back", got)
	}
	if got := perms(); got != [2]int32{6, 6} {
		t.Errorf("permissions %v after 327", got)
	}
	if got := tc.ok(remoting.ReqWipeWritePermOfBroker, &remoting.BrokerNameRequest{BrokerName: "x"}, nil).Ext.Value("wipeTopicCount"); got != "0" {
		t.Errorf("%s topics of a broker unknown", got)
	}
}

func TestKVRequests(t *testing.T) {
	mem := memfs.New()
	opts := Options{Dir: kvDir, FS: mem}
	tc := startTest(t, opts)
	tc.ok(remoting.ReqPutKVConfig, &remoting.PutKVRequest{Namespace: "NS", Key: "k", Value: "v"}, nil)
	wantCode(t, tc.call(remoting.ReqPutKVConfig, &remoting.PutKVRequest{Namespace: "NS", Key: "\x00", Value: "v"}, nil).Err(), remoting.CodeSystemError, "control")
	for name, tc := range map[string]*testClient{"first": tc, "after a restart": startTest(t, opts)} {
		t.Run(name, func(t *testing.T) {
			if got := tc.ok(remoting.ReqGetKVConfig, &remoting.KVRequest{Namespace: "NS", Key: "k"}, nil).Ext.Value("value"); got != "v" {
				t.Errorf("got %q", got)
			}
			if got := string(tc.ok(remoting.ReqGetKVListByNamespace, &remoting.NamespaceRequest{Namespace: "NS"}, nil).Body); got != `{"table":{"k":"v"}}` {
				t.Errorf("got %s", got)
			}
			wantCode(t, tc.call(remoting.ReqGetKVConfig, &remoting.KVRequest{Namespace: "NS", Key: "x"}, nil).Err(),
				remoting.CodeQueryNotFound, "No config item, Namespace: NS Key: x")
			wantCode(t, tc.call(remoting.ReqGetKVListByNamespace, &remoting.NamespaceRequest{Namespace: "X"}, nil).Err(),
				remoting.CodeQueryNotFound, "No config item, Namespace: X")
		})
	}
}

func TestStartFails(t *testing.T) {
	damaged := memfs.New()
	writeFile(t, damaged, kvPath, "{")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the end
	for _, c := range []struct {
		name string
		opts Options
		err  string
	}{
		{"KV config damaged", Options{Listen: "127.0.0.1:0", Dir: kvDir, FS: damaged}, "kvConfig.json"},
		{"address in use", Options{Listen: l.Addr().String()}, "address already in use"},
		{"address without port", Options{Listen: "127.0.0.1"}, "missing port"},
		{"TLS without configuration", Options{TLSRequired: true}, "TLS"},
		{"negative interval", Options{ScanNotActiveBrokerInterval: -1}, "ScanNotActiveBrokerInterval"},
		{"negative wait", Options{WaitSecondsForService: -1}, "WaitSecondsForService"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s, err := Start(t.Context(), c.opts)
			if !matches(err, c.err) {
				t.Errorf("error %v, want %q", err, c.err)
			}
			if s != nil {
				s.Shutdown(context.Background()) //nolint:errcheck // should not be
			}
		})
	}
}

func TestShutdown(t *testing.T) {
	s, err := Start(t.Context(), Options{Listen: "127.0.0.1:0"})
	if err != nil {
		t.Fatal(err)
	}
	cl := remoting.NewClient(remoting.ClientOptions{})
	defer cl.Close() //nolint:errcheck // never fails
	if _, err := cl.Invoke(t.Context(), s.Addr().String(), remoting.NewRequest(remoting.ReqGetBrokerClusterInfo, nil)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if nc, err := net.Dial("tcp", s.Addr().String()); err == nil {
		nc.Close() //nolint:errcheck // should not be
		t.Error("still listens")
	}
}

func TestStats(t *testing.T) {
	tc := startTest(t, Options{})
	tc.register(brokerA())
	tc.ok(remoting.ReqPutKVConfig, &remoting.PutKVRequest{Namespace: "NS", Key: "k", Value: "v"}, nil)
	tc.ok(remoting.ReqGetBrokerClusterInfo, nil, nil)
	wantCode(t, tc.call(9999, nil, nil).Err(), remoting.CodeRequestCodeNotSupported, " request type 9999 not supported")
	got := tc.srv.Stats()
	requests := map[int32]uint64{}
	for code, n := range got.Requests {
		if n > 0 {
			requests[code] = n
		}
	}
	if diff := cmp.Diff(map[int32]uint64{100: 1, 103: 1, 106: 1}, requests); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
	if got.OtherRequests != 1 || got.Remoting.Conns != 1 {
		t.Errorf("%d other requests, %d connections", got.OtherRequests, got.Remoting.Conns)
	}
	figures := [...]int{got.Clusters, got.Brokers, got.Members, got.Topics, got.Queues, got.KVKeys}
	if want := [...]int{1, 1, 1, 2, 2, 1}; figures != want {
		t.Errorf("figures %v, want %v", figures, want)
	}
}
