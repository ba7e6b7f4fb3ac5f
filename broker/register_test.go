package broker

import (
	"context"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/namesrv"
	"github.com/gantrymq/gantry/remoting"
)

func startNames(t testing.TB, listen string) *namesrv.Server {
	t.Helper()
	s, err := namesrv.Start(t.Context(), namesrv.Options{Listen: listen})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopNames(t, s) })
	return s
}

func stopNames(t testing.TB, s *namesrv.Server) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		t.Errorf("stop the name server: %v", err)
	}
}

// route asks a name server; nil: it does not know the topic.
func route(t testing.TB, client *remoting.Client, addr, topic string) *remoting.TopicRouteData {
	t.Helper()
	resp, err := client.Invoke(t.Context(), addr, remoting.NewRequest(remoting.ReqGetRouteInfoByTopic, &remoting.RouteInfoRequest{Topic: topic}))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Code == remoting.CodeTopicNotExist {
		return nil
	}
	return body(t, resp, new(remoting.TopicRouteData))
}

func withNames(addrs ...string) func(*Options) {
	return func(o *Options) { o.Config.NameServers = addrs }
}

// startRegistered is startRig of a broker that has registered, as after Start.
func startRegistered(t testing.TB, change ...func(*Options)) *rig {
	t.Helper()
	r := startRig(t, change...)
	_ = r.b.registrar.register(t.Context(), everyServer) // what fails is tried again
	return r
}

// TestRegister: what the name servers know, and when.
func TestRegister(t *testing.T) {
	a, b := startNames(t, "127.0.0.1:0"), startNames(t, "127.0.0.1:0")
	names := []string{a.Addr().String(), b.Addr().String()}
	client := remoting.NewClient(remoting.ClientOptions{})
	defer client.Close() //nolint:errcheck // never fails
	r := startRegistered(t, withNames(names[0], names[1], names[0]))
	want := func(topic string, perm int32) {
		t.Helper()
		for _, addr := range names {
			got := route(t, client, addr, topic)
			switch {
			case perm < 0 && got != nil:
				t.Errorf("%s: %s is still known: %+v", addr, topic, got)
			case perm >= 0 && (got == nil || got.QueueDatas[0].Perm != perm || got.BrokerDatas[0].BrokerAddrs[0] != r.b.Addr()):
				t.Errorf("%s: route of %s: %+v", addr, topic, got)
			}
		}
	}
	want("TBW102", 7)
	// The topic that a send makes, and the retry topic of a heartbeat, are known
	// when the answer is there.
	r.send("FromSend", 0, "m")
	want("FromSend", 6)
	r.newPeer("c").heartbeat("G", "FromSend")
	want("%RETRY%G", 6)
	r.createTopic("Made", 2)
	want("Made", 6)
	r.ok(remoting.ReqDeleteTopicInBroker, &remoting.TopicRequest{Topic: "Made"}, nil)
	// A name server keeps what is not registered any more, as upstream's does.

	r.ok(remoting.ReqUpdateBrokerConfig, nil, []byte("brokerPermission=4"))
	want("FromSend", 4)
	want("TBW102", 5)
	r.ok(remoting.ReqUpdateBrokerConfig, nil, []byte("brokerPermission=6"))
	want("FromSend", 6)

	// Many at the same time share rounds.
	before := a.Stats().Requests[remoting.ReqRegisterBroker]
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			h := sendHeader(name("Crowd", i), 0)
			req := remoting.NewRequest(remoting.ReqSendMessageV2, h)
			req.Body = []byte("m")
			if resp, err := r.invoke(t.Context(), req); err != nil || resp.Code != 0 {
				t.Errorf("send: %v, %v", resp, err)
			}
			if route(t, client, names[0], h.Topic) == nil {
				t.Errorf("%s is not known", h.Topic)
			}
		})
	}
	wg.Wait()
	if n := a.Stats().Requests[remoting.ReqRegisterBroker] - before; n > 41 {
		t.Errorf("%d registrations for 40 topics", n)
	}
	stopBroker(t, r.b)
	want("TBW102", -1)
	if n := a.Stats().Requests[remoting.ReqUnregisterBroker]; n != 1 {
		t.Errorf("%d farewells", n)
	}
}

// TestSecondMember: the second member of a group that begins at the same time as
// the first finds the retry topic, too.
func TestSecondMember(t *testing.T) {
	names := startNames(t, "127.0.0.1:0")
	client := remoting.NewClient(remoting.ClientOptions{})
	defer client.Close() //nolint:errcheck // never fails
	r := startRegistered(t, withNames(names.Addr().String()))
	r.createTopic("T", 1)
	for round := range 20 {
		var wg sync.WaitGroup
		for i := range 4 {
			p := r.newPeer(name("c", i))
			group := name("G", round)
			wg.Go(func() {
				p.heartbeat(group, "T")
				if route(t, client, names.Addr().String(), "%RETRY%"+group) == nil {
					t.Errorf("member %d of %s: no route for its retry topic", i, group)
				}
			})
		}
		wg.Wait()
	}
}

// TestNameServerRestarts: a broker comes back to a name server that was away,
// soon, whether it was away at the start or later.
func TestNameServerRestarts(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	s := startNames(t, "127.0.0.1:0")
	addr := s.Addr().String()
	opts := Options{Dir: "/store", Config: NewConfig(), FS: memfs.New(), Store: smallStore()}
	opts.Config.ListenPort, opts.Config.NameServers = 0, []string{addr}
	b, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	stopNames(t, s)
	waitFor(t, func() bool { return b.registrar.servers[0].failing.Load() })
	s = startNames(t, addr)
	waitFor(t, func() bool { return s.Stats().Brokers == 1 })
	waitFor(t, func() bool { return !b.registrar.servers[0].failing.Load() })
	stopBroker(t, b)
	waitFor(t, func() bool { return s.Stats().Brokers == 0 })
	stopNames(t, s)
}

// slowNames is a name server that answers registrations when it is told to.
type slowNames struct {
	addr   string
	asked  atomic.Int64
	answer chan struct{}
}

func startSlowNames(t testing.TB) *slowNames {
	t.Helper()
	s := &slowNames{answer: make(chan struct{})}
	mux := remoting.NewMux()
	mux.Handle(func(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
		s.asked.Add(1)
		select {
		case <-s.answer:
			return remoting.NewResponse(remoting.CodeSuccess, ""), nil
		case <-ctx.Done():
			return nil, nil
		}
	}, remoting.ReqRegisterBroker, remoting.ReqUnregisterBroker)
	srv, err := remoting.NewServer(remoting.ServerOptions{Options: remoting.Options{Mux: mux}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(l) //nolint:errcheck // ends with the server
	s.addr = l.Addr().String()
	t.Cleanup(func() { srv.Close() }) //nolint:errcheck // never fails
	return s
}

// TestSlowNameServer: one that does not answer in time does not hold up sends any
// more, and neither one that is down, nor the shutdown.
func TestSlowNameServer(t *testing.T) {
	slow := startSlowNames(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := l.Addr().String()
	l.Close() //nolint:errcheck // nobody listens there then
	r := startRegistered(t, func(o *Options) {
		o.Config.NameServers = []string{slow.addr, down}
		o.Config.RegisterTimeout = 50 * time.Millisecond
	})
	waitFor(t, func() bool {
		return r.b.registrar.servers[0].failing.Load() && r.b.registrar.servers[1].failing.Load()
	})
	start := time.Now()
	for i := range 5 {
		r.send(name("T", i), 0, "m")
	}
	if took := time.Since(start); took > time.Second {
		t.Errorf("5 new topics took %v", took)
	}
	close(slow.answer)
	waitFor(t, func() bool { return !r.b.registrar.servers[0].failing.Load() }) // tried again by itself
	stopBroker(t, r.b)
	// Whoever asks later gets an error and starts nothing.
	rd := r.b.registrar.begin(r.b.registrar.servers[0])
	if <-rd.done; rd.err == nil {
		t.Error("a broker that is closed registers")
	}
}

// TestRegistrarRounds: a change during a round is part of the next one, and any
// number of changes share it.
func TestRegistrarRounds(t *testing.T) {
	slow := startSlowNames(t)
	r := startRig(t, func(o *Options) { o.Config.NameServers, o.Config.RegisterTimeout = []string{slow.addr}, limit })
	reg := r.b.registrar
	s := reg.servers[0]
	first := reg.begin(s)
	second, third := reg.begin(s), reg.begin(s)
	if first == second || second != third {
		t.Error("rounds are not shared as they should be")
	}
	slow.answer <- struct{}{}
	<-first.done
	if got := reg.begin(s); got == second {
		t.Error("a change joins a round that may have begun before it")
	}
	close(slow.answer)
	<-second.done
	if first.err != nil || second.err != nil {
		t.Error(first.err, second.err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := reg.register(ctx, everyServer); err != nil && ctx.Err() == nil {
		t.Error(err)
	}
	if n := slow.asked.Load(); n < 2 {
		t.Error(fmt.Sprint(n, " registrations"))
	}
}

// TestLargeRegistration: what is too long for JSON has none of the attributes that
// name servers of 4.9 cannot read.
func TestLargeRegistration(t *testing.T) {
	for n, large := range map[int]bool{10: false, 30_000: true} {
		table := remoting.TopicConfigTable{Topics: make(map[string]remoting.TopicConfig)}
		for i := range n {
			topic := name("Topic", i)
			table.Topics[topic] = remoting.TopicConfig{
				TopicName: topic, ReadQueueNums: 4, WriteQueueNums: 8, Perm: 6, TopicFilterType: "SINGLE_TAG",
				Attributes: map[string]string{"message.type": "NORMAL"},
			}
		}
		body, compressed, err := encodeTopics(table)
		if err != nil || compressed != large {
			t.Fatalf("%d topics: compressed %v, %v", n, compressed, err)
		}
		got, err := remoting.DecodeRegisterBroker(body, compressed, remoting.CurrentVersion)
		if err != nil || len(got.Topics.Topics) != n {
			t.Fatalf("%d topics of %d, %v", len(got.Topics.Topics), n, err)
		}
		if topic := got.Topics.Topics["Topic7"]; topic.WriteQueueNums != 8 || (topic.Attributes == nil) != large {
			t.Errorf("%d topics: %+v", n, topic)
		}
	}
}

// TestOrderTopics: topics that a name server has an order for are marked.
func TestOrderTopics(t *testing.T) {
	names := startNames(t, "127.0.0.1:0")
	client := remoting.NewClient(remoting.ClientOptions{})
	defer client.Close() //nolint:errcheck // never fails
	req := remoting.NewRequest(remoting.ReqPutKVConfig, &remoting.PutKVRequest{Namespace: "ORDER_TOPIC_CONFIG", Key: "T", Value: "broker-a:4"})
	if resp, err := client.Invoke(t.Context(), names.Addr().String(), req); err != nil || resp.Code != 0 {
		t.Fatal(resp, err)
	}
	r := startRegistered(t, withNames(names.Addr().String()))
	r.createTopic("T", 1)
	if topic, _ := r.b.topics.Get("T"); !topic.Order {
		t.Errorf("topic %+v", topic)
	}
}
