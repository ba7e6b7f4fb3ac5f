package namesrv

import (
	"slices"
	"testing"
)

// checkInvariants checks what must always hold in a table.
func checkInvariants(t testing.TB, rt *routeTable) {
	t.Helper()
	rt.mu.RLock()
	defer rt.mu.RUnlock()
	members, queues, mappings := 0, 0, 0
	var cached int64
	for name, b := range rt.mu.brokers {
		if b.name != name || rt.mu.clusters[b.cluster][name] != b {
			t.Errorf("broker %q is listed as %q, and not in its cluster %q", b.name, name, b.cluster)
		}
		if len(b.members) == 0 {
			t.Errorf("broker %q has no members", name)
		}
		members += len(b.members)
		for i, m := range b.members {
			if m.broker != b || i > 0 && b.members[i-1].id >= m.id {
				t.Errorf("broker %q: member %d out of order or of another broker", name, m.id)
			}
			if b.at(m.addr) != m {
				t.Errorf("broker %q: two members at %s", name, m.addr)
			}
			if _, ok := rt.mu.owners[m.owner][m]; m.owner != nil && !ok {
				t.Errorf("broker %q: the owner of member %d does not know it", name, m.id)
			}
		}
		for topic, tp := range b.topics {
			if _, ok := tp.find(name); !ok || rt.mu.topics[topic] != tp {
				t.Errorf("broker %q: topic %q does not know it", name, topic)
			}
		}
	}
	for cluster, names := range rt.mu.clusters {
		if len(names) == 0 {
			t.Errorf("cluster %q is empty", cluster)
		}
		for name, b := range names {
			if rt.mu.brokers[name] != b || b.cluster != cluster {
				t.Errorf("cluster %q has broker %q, which is gone or moved", cluster, name)
			}
		}
	}
	for name, tp := range rt.mu.topics {
		if len(tp.queues) == 0 {
			t.Errorf("topic %q has no queues", name)
		}
		if !slices.IsSortedFunc(tp.queues, func(a, b queue) int {
			if a.BrokerName < b.BrokerName {
				return -1
			}
			return 1
		}) {
			t.Errorf("topic %q: queues out of order", name)
		}
		queues += len(tp.queues)
		for _, q := range tp.queues {
			mappings += len(q.mapping)
			if b := rt.mu.brokers[q.BrokerName]; b == nil || b.topics[name] != tp {
				t.Errorf("topic %q: broker %q does not know it", name, q.BrokerName)
			}
		}
		if r := tp.route.Load(); r != nil {
			cached += r.size()
		}
	}
	for o, ms := range rt.mu.owners {
		if o == nil || len(ms) == 0 {
			t.Errorf("owner %v has %d members", o, len(ms))
		}
		for m := range ms {
			if m.owner != o || m.broker.member(m.id) != m {
				t.Errorf("an owner knows a member that is gone")
			}
		}
	}
	got := [...]int64{int64(rt.mu.members), int64(rt.mu.queues), int64(rt.mu.mappingBytes), rt.cachedBytes.Load()}
	if want := [...]int64{int64(members), int64(queues), int64(mappings), cached}; got != want {
		t.Errorf("members, queues, bytes of mappings and of routes are counted as %v, they are %v", got, want)
	}
}
