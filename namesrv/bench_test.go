package namesrv

import (
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// benchTable has brokers with as many topics each.
func benchTable(b *testing.B, brokers, topics int) *tableTest {
	b.Helper()
	tt := newTableTest(b, defaultBounds)
	for i := range brokers {
		tt.register(benchBroker(i, topics)) //nolint:errcheck // then there are no routes
	}
	return tt
}

func benchBroker(i, topics int) brokerSpec {
	s := brokerSpec{cluster: "DefaultCluster", name: fmt.Sprintf("broker-%d", i), addr: fmt.Sprintf("10.0.0.%d:10911", i+1), version: 1}
	for k := range topics {
		s.topics = append(s.topics, topicConfig(fmt.Sprintf("Topic_%d", k), 8, 6))
	}
	return s
}

// BenchmarkRoute is the answer to 105 without the network.
func BenchmarkRoute(b *testing.B) {
	for _, brokers := range []int{1, 8} {
		tt := benchTable(b, brokers, 1000)
		names := tt.topicNames(everyTopic)
		b.Run(fmt.Sprintf("brokers=%d/cached", brokers), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if tt.route(names[i%len(names)], false, "") == nil {
					b.Fatal("no route")
				}
			}
		})
		b.Run(fmt.Sprintf("brokers=%d/encoded", brokers), func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if tt.route(names[i%len(names)], i/len(names)%2 == 0, "x") == nil { // never what is cached
					b.Fatal("no route")
				}
			}
		})
	}
}

// BenchmarkRouteRequest is 105 over loopback, one request at a time and many on
// as many connections as there are goroutines.
func BenchmarkRouteRequest(b *testing.B) {
	tc := startTest(b, Options{})
	tc.register(benchBroker(0, 1000))
	ask := func(b *testing.B, c *remoting.Conn) {
		resp, err := c.Invoke(b.Context(), remoting.NewRequest(remoting.ReqGetRouteInfoByTopic, &remoting.RouteInfoRequest{Topic: "Topic_7"}))
		if err != nil || resp.Code != 0 {
			b.Errorf("%v %v", resp, err)
		}
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		c, err := tc.Conn(b.Context(), tc.addr)
		if err != nil {
			b.Fatal(err)
		}
		for b.Loop() {
			ask(b, c)
		}
	})
	b.Run("pipelined", func(b *testing.B) {
		b.ReportAllocs()
		c, err := tc.Conn(b.Context(), tc.addr)
		if err != nil {
			b.Fatal(err)
		}
		b.SetParallelism(32)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				ask(b, c)
			}
		})
	})
}

// BenchmarkRegister is 103 without the network: a broker that says the same
// again, and one that has changed a topic.
func BenchmarkRegister(b *testing.B) {
	for _, topics := range []int{100, 10_000} {
		spec := benchBroker(0, topics)
		h := &remoting.RegisterBrokerRequest{BrokerIdentity: remoting.BrokerIdentity{BrokerName: spec.name, BrokerAddr: spec.addr, ClusterName: spec.cluster}}
		req := remoting.NewRequest(remoting.ReqRegisterBroker, h)
		req.Body = remoting.EncodeBody(&remoting.RegisterBroker{Topics: topicTable(spec)})
		for _, changed := range []bool{false, true} {
			b.Run(fmt.Sprintf("topics=%d/changed=%v", topics, changed), func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(len(req.Body)))
				t := newRouteTable(slog.New(slog.DiscardHandler), time.Now, defaultBounds)
				for i := 0; b.Loop(); i++ {
					r, _, err := newRegistration(h, req, t.bounds)
					if err != nil {
						b.Fatal(err)
					}
					if changed {
						r.version.Counter = int64(i)
					}
					if _, err := t.register(r); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}
