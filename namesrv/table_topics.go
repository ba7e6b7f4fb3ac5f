package namesrv

import (
	"maps"
	"slices"

	"github.com/gantrymq/gantry/remoting"
)

// setPermsLocked changes the permission of everything that b has, and returns
// how many topics that are.
func (t *routeTable) setPermsLocked(b *broker, f func(perm int32) int32) int {
	for _, tp := range b.topics {
		i, _ := tp.find(b.name)
		q := &tp.queues[i]
		if perm := f(q.Perm); perm != q.Perm {
			q.Perm = perm
			t.changedLocked(tp)
		}
	}
	return len(b.topics)
}

// setPerms does so for a broker by name.
func (t *routeTable) setPerms(name string, f func(perm int32) int32) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.mu.brokers[name]
	if b == nil {
		return 0
	}
	return t.setPermsLocked(b, f)
}

// deleteTopic removes a topic from the brokers of a cluster, from all if it is "".
func (t *routeTable) deleteTopic(name, cluster string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	tp := t.mu.topics[name]
	if tp == nil {
		return
	}
	for _, q := range slices.Clone(tp.queues) {
		if b := t.mu.brokers[q.BrokerName]; cluster == "" || b.cluster == cluster {
			t.removeQueueLocked(b, name)
		}
	}
}

// registerTopic sets what brokers have of a topic. It does nothing if one of them is
// not known, as upstream. It reports whether there was room.
func (t *routeTable) registerTopic(name string, queues []remoting.QueueData) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i := range queues {
		if t.mu.brokers[queues[i].BrokerName] == nil {
			return true
		}
	}
	for i := range queues {
		if !t.setQueueLocked(t.mu.brokers[queues[i].BrokerName], name, queues[i]) {
			return false
		}
	}
	return true
}

// topicNames returns the topics that match, in order.
func (t *routeTable) topicNames(match func(*topic) bool) []string {
	t.mu.RLock()
	names := make([]string, 0, len(t.mu.topics))
	for name, tp := range t.mu.topics {
		if match(tp) {
			names = append(names, name)
		}
	}
	t.mu.RUnlock()
	slices.Sort(names)
	return names
}

func everyTopic(*topic) bool { return true }

// Bits of QueueData.TopicSysFlag (upstream: TopicSysFlag).
const (
	topicFlagUnit    int32 = 1 << 0
	topicFlagUnitSub int32 = 1 << 1
)

// withFlags matches topics whose first queue has exactly the flags set of those
// in mask.
func withFlags(mask, set int32) func(*topic) bool {
	return func(tp *topic) bool { return tp.queues[0].TopicSysFlag&mask == set }
}

// topicsOfCluster returns the topics that brokers of a cluster have, in order.
func (t *routeTable) topicsOfCluster(cluster string) []string {
	t.mu.RLock()
	names := make(map[string]struct{})
	for _, b := range t.mu.clusters[cluster] {
		for name := range b.topics {
			names[name] = struct{}{}
		}
	}
	t.mu.RUnlock()
	return slices.AppendSeq(make([]string, 0, len(names)), slices.Values(slices.Sorted(maps.Keys(names))))
}

// systemTopics returns the names of clusters and brokers, which are topics on
// every broker, and the address of some broker.
func (t *routeTable) systemTopics() (names []string, addr string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	names = []string{}
	for _, cluster := range slices.Sorted(maps.Keys(t.mu.clusters)) {
		names = append(names, cluster)
		for _, name := range slices.Sorted(maps.Keys(t.mu.clusters[cluster])) {
			if !slices.Contains(names, name) { // a broker may be called like a cluster
				names = append(names, name)
			}
			if addr == "" {
				addr = t.mu.clusters[cluster][name].members[0].addr
			}
		}
	}
	return names, addr
}
