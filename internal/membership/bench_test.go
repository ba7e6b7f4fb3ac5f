package membership

import (
	"fmt"
	"testing"

	"github.com/gantrymq/gantry/remoting"
)

// crowd is a registry with n connections in n groups.
func crowd(b *testing.B, n int) (*Registry, []*testConn, []*remoting.Heartbeat) {
	b.Helper()
	r := newRegistry(b, Options{})
	conns := newConns(n)
	hbs := make([]*remoting.Heartbeat, n)
	for i, c := range conns {
		group := fmt.Sprint("group-", i)
		hbs[i] = consumers(fmt.Sprint("10.0.0.1@", i), push(group, sub(fmt.Sprint("topic-", i), "a || b", 1), sub("%RETRY%"+group, "*", 1)))
		hbs[i].Producers = producers("", "CLIENT_INNER_PRODUCER").Producers
		beat(b, r, c, hbs[i])
	}
	return r, conns, hbs
}

// BenchmarkHeartbeat is the periodic heartbeat of a push consumer.
func BenchmarkHeartbeat(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("conns=%d", n), func(b *testing.B) {
			r, conns, hbs := crowd(b, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				beat(b, r, conns[i], hbs[i])
				i = (i + 1) % n
			}
		})
	}
}

// BenchmarkForPull is what each pull asks.
func BenchmarkForPull(b *testing.B) {
	for _, n := range []int{1, 10_000} {
		b.Run(fmt.Sprintf("conns=%d", n), func(b *testing.B) {
			r, _, hbs := crowd(b, n)
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				for i := 0; pb.Next(); i = (i + 1) % n {
					c := &hbs[i].Consumers[0]
					if _, err := r.Members.ForPull(c.GroupName, c.Subscriptions[0].Topic, 1, true); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// BenchmarkJoin is a connection that joins a group of n, is told, and leaves.
func BenchmarkJoin(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("members=%d", n), func(b *testing.B) {
			r := newRegistry(b, Options{})
			for i, c := range newConns(n) {
				beat(b, r, c, consumers(fmt.Sprint("10.0.0.1@", i), push("G", sub("T", "*", 1))))
			}
			hb := consumers("10.0.0.1@5x", push("G", sub("T", "*", 1)))
			b.ReportAllocs()
			for b.Loop() {
				c := newConn()
				beat(b, r, c, hb)
				if len(r.Members.ClientIDs("G")) != n+1 {
					b.Fatal("the client is not in the group")
				}
				hangUp(r, c)
			}
		})
	}
}

// BenchmarkExpire is the scan for silent members, which happens every 10 s.
func BenchmarkExpire(b *testing.B) {
	r, _, _ := crowd(b, 10_000)
	for b.Loop() {
		r.expire()
	}
}

// BenchmarkMatchHash is what a filter asks of each unit of a consume queue.
func BenchmarkMatchHash(b *testing.B) {
	for _, n := range []int{1, 10, 1000} {
		b.Run(fmt.Sprintf("tags=%d", n), func(b *testing.B) {
			s, err := NewSubscription("T", manyTags(n), "")
			if err != nil {
				b.Fatal(err)
			}
			for b.Loop() {
				if s.MatchHash(12345) {
					b.Fatal("matches")
				}
			}
		})
	}
}
