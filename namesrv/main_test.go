package namesrv

import (
	"context"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gantrymq/gantry/remoting"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// testClient is a server on loopback and a client of it.
type testClient struct {
	t    testing.TB
	srv  *Server
	addr string
	*remoting.Client
}

func startTest(t testing.TB, opts Options) *testClient {
	t.Helper()
	opts.Listen = "127.0.0.1:0"
	srv, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	tc := &testClient{t: t, srv: srv, addr: srv.Addr().String(), Client: remoting.NewClient(remoting.ClientOptions{})}
	t.Cleanup(func() {
		tc.Client.Close() //nolint:errcheck // never fails
		if err := srv.Shutdown(context.Background()); err != nil {
			t.Errorf("shutdown: %v", err)
		}
	})
	return tc
}

// call sends a request and returns its answer, whatever the code.
func (tc *testClient) call(code int32, h remoting.Header, body []byte) *remoting.Command {
	tc.t.Helper()
	req := remoting.NewRequest(code, h)
	req.Body = body
	resp, err := tc.Invoke(context.Background(), tc.addr, req)
	if err != nil {
		tc.t.Fatal(err)
	}
	return resp
}

// ok sends a request and checks that it succeeds.
func (tc *testClient) ok(code int32, h remoting.Header, body []byte) *remoting.Command {
	tc.t.Helper()
	resp := tc.call(code, h, body)
	if err := resp.Err(); err != nil {
		tc.t.Fatalf("%s: %v", remoting.RequestName(code), err)
	}
	return resp
}

// A brokerSpec describes a registration for tests.
type brokerSpec struct {
	cluster, name, addr string
	id                  int64
	acting              bool
	version             int64
	timeout             time.Duration
	topics              []remoting.TopicConfig
}

// register registers b by 103.
func (tc *testClient) register(b brokerSpec) *remoting.Command {
	tc.t.Helper()
	body := &remoting.RegisterBroker{Topics: topicTable(b)}
	data := remoting.EncodeBody(body)
	h := &remoting.RegisterBrokerRequest{
		BrokerIdentity:         remoting.BrokerIdentity{BrokerName: b.name, BrokerAddr: b.addr, ClusterName: b.cluster, BrokerID: b.id},
		HAServerAddr:           "127.0.0.1:10912",
		HeartbeatTimeoutMillis: b.timeout.Milliseconds(),
		EnableActingMaster:     b.acting,
		BodyCRC32:              remoting.BodyCRC(data),
	}
	return tc.call(remoting.ReqRegisterBroker, h, data)
}

func topicTable(b brokerSpec) remoting.TopicConfigTable {
	table := remoting.TopicConfigTable{Topics: make(map[string]remoting.TopicConfig), DataVersion: remoting.DataVersion{Counter: b.version}}
	for _, t := range b.topics {
		table.Topics[t.TopicName] = t
	}
	return table
}

// twoTopics are the topics of most test brokers: a single one is refused.
func twoTopics(names ...string) []remoting.TopicConfig {
	if len(names) == 0 {
		names = []string{"T1", "T2"}
	}
	var topics []remoting.TopicConfig
	for _, name := range names {
		topics = append(topics, topicConfig(name, 4, remoting.PermRead|remoting.PermWrite))
	}
	return topics
}

func topicConfig(name string, queues, perm int32) remoting.TopicConfig {
	return remoting.TopicConfig{TopicName: name, ReadQueueNums: queues, WriteQueueNums: queues, Perm: perm, TopicFilterType: remoting.FilterTypeSingle}
}

func brokerA() brokerSpec {
	return brokerSpec{cluster: "C", name: "broker-a", addr: "127.0.0.1:10911", version: 1, topics: twoTopics()}
}
