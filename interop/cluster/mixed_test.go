//go:build interop

package cluster

import (
	"fmt"
	"sync"
	"testing"
	"time"
)

// unregisterLimit and closeLimit bound how long a name server takes to forget a
// broker that has told it, and one whose connection has closed.
const (
	unregisterLimit = 10 * time.Second
	closeLimit      = 10 * time.Second
)

// together reports whether a broker of one kind can be expected to serve with a
// name server of another. Genuine ones of 5.x and 4.9 do not get on: the broker
// announces a new topic by a request that the name server ignores, and with the
// others half a minute later, if their version has changed.
func together(broker, namesrv kind) bool {
	return broker == gantry || namesrv == gantry || broker == namesrv
}

// usedBy runs a few scenarios with genuine clients beside each other.
func usedBy(t *testing.T, namesrv, broker string) {
	t.Helper()
	var wg sync.WaitGroup
	run := func(p program, scenarios ...string) {
		for _, s := range scenarios {
			wg.Go(func() { p.run(t, s, newSuffix(), nil).check(t) })
		}
	}
	prepare(t)
	for _, version := range clientVersions {
		run(newJavaClient(t, version, namesrv), "producer", "consumer-tags", "consumer-rebalance", "producer-query", "producer-keys")
	}
	run(newGoClient(t, namesrv, broker), "producer", "consumer-tags", "pull")
	wg.Wait()
}

// TestMixedCluster: name servers and brokers, ours and genuine ones, in one
// cluster.
func TestMixedCluster(t *testing.T) {
	k := ours(t)
	// Each has several JVMs: on a small machine not all at once.
	turn := make(chan struct{}, 2)
	inTurn := func(t *testing.T) {
		turn <- struct{}{}
		t.Cleanup(func() { <-turn })
	}

	// Our broker is registered with genuine name servers of both versions.
	t.Run("our broker", func(t *testing.T) {
		t.Parallel()
		inTurn(t)
		var addrs []string
		for _, java := range javaKinds {
			if !together(k, java) {
				continue
			}
			ns := newNamesrv(t, java)
			ns.start(t)
			addrs = append(addrs, ns.namesrvs...)
		}
		b := newBroker(t, k, brokerConfig{namesrv: addrs})
		b.start(t)
		for _, addr := range addrs {
			usedBy(t, addr, b.broker)
		}
		leaves(t, b, addrs...)
	})

	// A genuine broker is registered with our name server.
	for _, java := range javaKinds {
		t.Run("our name server/"+string(java), func(t *testing.T) {
			if !together(java, k) {
				t.Skip("see together")
			}
			t.Parallel()
			inTurn(t)
			ns := newNamesrv(t, k)
			ns.start(t)
			b := newBroker(t, java, brokerConfig{namesrv: ns.namesrvs})
			b.start(t)
			usedBy(t, ns.namesrvs[0], b.broker)
			leaves(t, b, ns.namesrvs...)
		})
	}

	// Two of our brokers and a genuine one share the work; one goes and comes
	// back while clients send and consume.
	for _, version := range clientVersions {
		t.Run("three brokers/java-"+version, func(t *testing.T) {
			t.Parallel()
			inTurn(t)
			ns := newNamesrv(t, k)
			ns.start(t)
			var all []*server
			third := java540
			if !together(third, k) {
				third = k
			}
			for i, kind := range []kind{k, k, third} {
				all = append(all, newBroker(t, kind, brokerConfig{name: fmt.Sprint("broker-", i), namesrv: ns.namesrvs}))
			}
			for _, b := range all {
				b.start(t)
			}
			goes := all[0]
			newJavaClient(t, version, ns.namesrvs[0]).run(t, "spread", newSuffix(), func(event string) {
				switch event {
				case "spread":
					goes.stop(t)
					gone(t, unregisterLimit, ns.namesrvs[0], goes.brokerName)
				case "without one":
					goes.start(t)
				default:
					t.Errorf("unknown event %q", event)
				}
			}, fmt.Sprint(len(all))).check(t)
		})
	}
}

// leaves: a broker that stops unregisters, and one that is killed is missed
// since its connection closes. Both can come back.
func leaves(t *testing.T, b *server, namesrvs ...string) {
	t.Helper()
	b.stop(t)
	for _, ns := range namesrvs {
		gone(t, unregisterLimit, ns, b.brokerName)
	}
	b.start(t)
	b.kill(t)
	for _, ns := range namesrvs {
		gone(t, closeLimit, ns, b.brokerName)
	}
	b.start(t)
}
