package namesrv

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// A registration is what one 103 says, checked.
type registration struct {
	remoting.BrokerIdentity
	haAddr        string
	zone          string
	timeout       time.Duration
	version       remoting.DataVersion
	filterServers []string
	topics        []topicQueues
	mappings      map[string][]byte // of static topics, by topic

	// knowsActing is set for brokers of 5.x, acting if a slave may act as
	// the master.
	knowsActing, acting bool
	// listed is how many topics the body had, those that were refused
	// included.
	listed int
	// complete takes topics from the broker that are not among these.
	complete bool
	owner    owner
}

// topicQueues is a topic with what the broker has of it.
type topicQueues struct {
	name string
	remoting.QueueData
}

// register enters a member, and its topics if they are the broker's. It returns
// where a slave finds its master.
func (t *routeTable) register(r *registration) (remoting.RegisterBrokerResponse, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.mu.brokers[r.BrokerName]
	if err := t.admitLocked(b, r); err != nil {
		return remoting.RegisterBrokerResponse{}, err
	}
	if b == nil {
		b = t.newBrokerLocked(r)
	}
	if b.cluster != r.ClusterName {
		t.moveClusterLocked(b, r.ClusterName)
	}
	// A slave that becomes the master keeps its address: it has one id only.
	if m := b.at(r.BrokerAddr); m != nil && m.id != r.BrokerID {
		t.dropMemberLocked(m)
	}
	old := b.member(r.BrokerID)
	moved := old != nil && old.addr != r.BrokerAddr
	if moved {
		if old.version.StateVersion > r.version.StateVersion {
			t.log.Warn("registration ignored: another broker has the id and a newer state", "cluster", b.cluster, "broker", b.name,
				"id", old.id, "addr", r.BrokerAddr, "holder", old.addr)
			return remoting.RegisterBrokerResponse{}, nil
		}
		t.log.Warn("broker address replaced", "cluster", b.cluster, "broker", b.name, "id", old.id, "addr", r.BrokerAddr, "was", old.addr)
	}
	changed := old == nil || moved || old.version != r.version
	m := t.setMemberLocked(b, r)
	if m.id == masterID || r.knowsActing && m == b.members[0] {
		t.registerTopicsLocked(b, m, r, changed)
	}
	var resp remoting.RegisterBrokerResponse
	if master := b.master(); master != nil && m.id != masterID {
		resp.MasterAddr, resp.HAServerAddr = master.addr, master.haAddr
	}
	return resp, nil
}

// admitLocked says why a registration is refused. It changes nothing.
func (t *routeTable) admitLocked(b *broker, r *registration) error {
	if b == nil && len(t.mu.brokers) >= t.bounds.brokers {
		return fmt.Errorf("the name server has %d brokers already", len(t.mu.brokers))
	}
	if b != nil && b.member(r.BrokerID) != nil {
		return nil
	}
	switch {
	case r.listed == 1:
		// Java brokers register a single topic when it changes. If they do so
		// with a name server that does not know them yet, the rest has to come
		// first; they send it within 30 s.
		return remoting.Errorf(remoting.CodeSystemError, "register broker failed: the first registration has one topic only")
	case t.mu.members >= t.bounds.members || b != nil && len(b.members) >= t.bounds.membersPerBroker:
		return fmt.Errorf("the name server has %d members of brokers already", t.mu.members)
	}
	return nil
}

func (t *routeTable) newBrokerLocked(r *registration) *broker {
	b := &broker{name: strings.Clone(r.BrokerName), cluster: strings.Clone(r.ClusterName), topics: make(map[string]*topic)}
	t.mu.brokers[b.name] = b
	t.addToClusterLocked(b)
	return b
}

func (t *routeTable) addToClusterLocked(b *broker) {
	names := t.mu.clusters[b.cluster]
	if names == nil {
		names = make(map[string]*broker)
		t.mu.clusters[b.cluster] = names
	}
	names[b.name] = b
}

func (t *routeTable) removeFromClusterLocked(b *broker) {
	names := t.mu.clusters[b.cluster]
	delete(names, b.name)
	if len(names) == 0 {
		delete(t.mu.clusters, b.cluster)
	}
}

// moveClusterLocked follows a broker whose cluster was renamed. Upstream leaves it in
// both clusters for good.
func (t *routeTable) moveClusterLocked(b *broker, cluster string) {
	t.log.Warn("broker registers with another cluster", "broker", b.name, "cluster", cluster, "was", b.cluster)
	t.removeFromClusterLocked(b)
	b.cluster = strings.Clone(cluster)
	t.addToClusterLocked(b)
	t.brokerChangedLocked(b)
}

// setMemberLocked enters the member that registers.
func (t *routeTable) setMemberLocked(b *broker, r *registration) *member {
	i, ok := b.find(r.BrokerID)
	if !ok {
		m := &member{broker: b, id: r.BrokerID}
		b.members = slices.Insert(b.members, i, m)
		t.mu.members++
		t.log.Info("broker registered", "cluster", b.cluster, "broker", b.name, "id", m.id, "addr", r.BrokerAddr)
	}
	m := b.members[i]
	if !ok || m.addr != r.BrokerAddr || b.zone != r.zone || b.acting != r.acting || !slices.Equal(m.filterServers, r.filterServers) {
		m.addr, m.filterServers = strings.Clone(r.BrokerAddr), cloneAll(r.filterServers)
		b.zone, b.acting = strings.Clone(r.zone), r.acting
		t.brokerChangedLocked(b)
	}
	if m.haAddr != r.haAddr {
		m.haAddr = strings.Clone(r.haAddr)
	}
	t.setOwnerLocked(m, r.owner)
	m.version, m.timeout, m.seen = r.version, r.timeout, t.now()
	return m
}

func cloneAll(texts []string) []string {
	out := slices.Clone(texts)
	for i, s := range out {
		out[i] = strings.Clone(s)
	}
	return out
}

func (t *routeTable) setOwnerLocked(m *member, o owner) {
	if m.owner == o {
		return
	}
	if m.owner != nil {
		delete(t.mu.owners[m.owner], m)
		if len(t.mu.owners[m.owner]) == 0 {
			delete(t.mu.owners, m.owner)
		}
	}
	m.owner = o
	if o == nil {
		return
	}
	if t.mu.owners[o] == nil {
		t.mu.owners[o] = make(map[*member]struct{})
	}
	t.mu.owners[o][m] = struct{}{}
}

// registerTopicsLocked enters the topics of b as m registers them. A version
// that has not changed adds what is missing and replaces nothing: so a broker
// whose write permission was wiped does not get it back by registering again.
func (t *routeTable) registerTopicsLocked(b *broker, m *member, r *registration, changed bool) {
	if r.complete && len(r.mappings) == 0 {
		listed := make(map[string]struct{}, len(r.topics))
		for i := range r.topics {
			listed[r.topics[i].name] = struct{}{}
		}
		for name := range b.topics {
			if _, ok := listed[name]; !ok {
				t.removeQueueLocked(b, name)
			}
		}
	}
	readOnly := m.id != masterID && b.acting
	refused := 0
	for i := range r.topics {
		tq := &r.topics[i]
		if !changed && b.topics[tq.name] != nil {
			continue
		}
		q := tq.QueueData
		if readOnly {
			q.Perm &^= remoting.PermWrite
		}
		if !t.setQueueLocked(b, tq.name, q) {
			refused++
		}
	}
	if changed {
		for name, mapping := range r.mappings {
			if !t.setMappingLocked(b, name, mapping) {
				refused++
			}
		}
	}
	if refused > 0 {
		t.log.Error("topics of a broker have no room or do not belong to it", "cluster", b.cluster, "broker", b.name, "topics", refused)
	}
}

// unregister removes the member of a broker that has an address.
func (t *routeTable) unregister(name, addr string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	b := t.mu.brokers[name]
	if b == nil {
		return
	}
	if m := b.at(addr); m != nil {
		t.log.Info("broker unregistered", "cluster", b.cluster, "broker", b.name, "id", m.id, "addr", m.addr)
		t.removeMemberLocked(m)
	}
}

// dropMemberLocked removes a member, and leaves its broker as it is.
func (t *routeTable) dropMemberLocked(m *member) {
	b := m.broker
	t.setOwnerLocked(m, nil)
	b.members = slices.DeleteFunc(b.members, func(other *member) bool { return other == m })
	t.mu.members--
	t.brokerChangedLocked(b)
}

// removeMemberLocked removes a member for good. Without members a broker goes
// with its topics; without a master one with an acting master can be read only.
func (t *routeTable) removeMemberLocked(m *member) {
	b := m.broker
	t.dropMemberLocked(m)
	switch {
	case len(b.members) == 0:
		for name := range b.topics {
			t.removeQueueLocked(b, name)
		}
		t.removeFromClusterLocked(b)
		delete(t.mu.brokers, b.name)
	case b.acting && b.master() == nil:
		t.setPermsLocked(b, func(perm int32) int32 { return perm &^ remoting.PermWrite })
	}
}

// ownerGone removes the members that registered by a connection.
func (t *routeTable) ownerGone(o owner) {
	t.mu.RLock()
	_, ok := t.mu.owners[o]
	t.mu.RUnlock()
	if !ok {
		return // a client, as nearly always
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	for m := range t.mu.owners[o] {
		t.log.Info("broker gone: its connection closed", "cluster", m.broker.cluster, "broker", m.broker.name, "id", m.id, "addr", m.addr)
		t.removeMemberLocked(m)
	}
}

// expire removes members that were silent for too long. It returns the
// connections that none of the others registered by.
func (t *routeTable) expire() []owner {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := t.now()
	var owners []owner
	for _, b := range t.mu.brokers {
		for _, m := range slices.Clone(b.members) {
			if silent := now.Sub(m.seen); silent > m.timeout {
				t.log.Warn("broker gone: it was silent for too long", "cluster", b.cluster, "broker", b.name, "id", m.id, "addr", m.addr, "silent", silent)
				if m.owner != nil {
					owners = append(owners, m.owner)
				}
				t.removeMemberLocked(m)
				t.expired.Add(1)
			}
		}
	}
	return slices.DeleteFunc(owners, func(o owner) bool { return t.mu.owners[o] != nil })
}

// touch notes that a member is alive.
func (t *routeTable) touch(cluster, name, addr string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if m := t.memberLocked(cluster, name, addr); m != nil {
		m.seen = t.now()
	}
}

// version returns the version of the topics that a member registered last.
func (t *routeTable) version(cluster, name, addr string) (v remoting.DataVersion, ok bool) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if m := t.memberLocked(cluster, name, addr); m != nil {
		return m.version, true
	}
	return v, false
}

func (t *routeTable) memberLocked(cluster, name, addr string) *member {
	b := t.mu.brokers[name]
	if b == nil || b.cluster != cluster {
		return nil
	}
	return b.at(addr)
}
