package membership

import (
	"maps"
	"slices"

	"github.com/gantrymq/gantry/remoting"
)

// ForPull returns the subscription of a group to a topic for a pull that does
// not bring its own (spec section 6.3). subVersion is the pull's; broadcasting
// is whether the group may be one that broadcasts. The errors are
// *remoting.Error: the group is not known or does not subscribe to the topic
// (24), may not broadcast (16), or has an older subscription than the pull (25).
func (ms *Members) ForPull(groupName, topic string, subVersion int64, broadcasting bool) (*Subscription, error) {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	g := ms.mu.groups[groupName]
	if g == nil {
		return nil, remoting.Errorf(remoting.CodeSubscriptionNotExist, "consumer group %s has no members: no heartbeat yet", groupName)
	}
	if !broadcasting && g.info.model == remoting.Broadcasting {
		return nil, remoting.Errorf(remoting.CodeNoPermission, "consumer group %s may not consume by broadcast", groupName)
	}
	sub := g.info.subs[topic]
	if sub == nil {
		return nil, remoting.Errorf(remoting.CodeSubscriptionNotExist, "consumer group %s does not subscribe to topic %s", groupName, topic)
	}
	if sub.Version() < subVersion {
		return nil, remoting.Errorf(remoting.CodeSubscriptionNotLatest,
			"subscription of consumer group %s to topic %s is of version %d, not yet %d", groupName, topic, sub.Version(), subVersion)
	}
	return sub, nil
}

// Subscription returns the subscription of a group to a topic, or nil (345).
func (ms *Members) Subscription(groupName, topic string) *Subscription {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	if g := ms.mu.groups[groupName]; g != nil {
		return g.info.subs[topic]
	}
	return nil
}

// Subscriptions returns those of a group, ordered by topic.
func (ms *Members) Subscriptions(groupName string) []*Subscription {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	g := ms.mu.groups[groupName]
	if g == nil {
		return nil
	}
	subs := make([]*Subscription, 0, len(g.info.subs))
	for _, topic := range g.info.topics() {
		subs = append(subs, g.info.subs[topic])
	}
	return subs
}

// Topics returns what a group subscribes to, in order (343).
func (ms *Members) Topics(groupName string) []string {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	if g := ms.mu.groups[groupName]; g != nil {
		return g.info.topics()
	}
	return nil
}

func (g *consumerGroup) topics() []string {
	return slices.Sorted(maps.Keys(g.subs))
}

// GroupsOf returns the groups that subscribe to a topic, in order (300). It
// looks at all groups.
func (ms *Members) GroupsOf(topic string) []string {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	var names []string
	for name, g := range ms.mu.groups {
		if g.info.subs[topic] != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// Groups returns the groups that have members, in order.
func (ms *Members) Groups() []string {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	return ms.mu.names()
}

// ClientIDs returns the client ids of a group, in order and each once (38);
// nil if there is no such group. The result must not be changed.
func (ms *Members) ClientIDs(groupName string) []string {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	g := ms.mu.groups[groupName]
	if g == nil {
		return nil
	}
	if ids := g.info.ids.Load(); ids != nil {
		return *ids
	}
	ids := make([]string, len(g.members))
	for i, m := range g.members {
		ids[i] = m.ID
	}
	g.info.ids.Store(&ids) // nobody changes the members meanwhile
	return ids
}

// Find returns the member of a group with a client id.
func (ms *Members) Find(groupName, clientID string) (Member, bool) {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	if g := ms.mu.groups[groupName]; g != nil {
		if i, ok := g.find(clientID); ok {
			return g.members[i].Member, true
		}
	}
	return Member{}, false
}

// Of returns the members of a group, ordered by client id.
func (ms *Members) Of(groupName string) []Member {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	if g := ms.mu.groups[groupName]; g != nil {
		return g.list()
	}
	return nil
}

// A ConsumerGroup is what the heartbeats of a consumer group say of it as a
// whole. An enum is -1 where none named it.
type ConsumerGroup struct {
	Type          remoting.ConsumeType
	Model         remoting.MessageModel
	From          remoting.ConsumeFrom
	Members       int
	Subscriptions int
}

// Group describes a group.
func (ms *Members) Group(groupName string) (ConsumerGroup, bool) {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	g := ms.mu.groups[groupName]
	if g == nil {
		return ConsumerGroup{}, false
	}
	i := &g.info
	return ConsumerGroup{Type: i.kind, Model: i.model, From: i.from, Members: len(g.members), Subscriptions: len(i.subs)}, true
}

// Connections returns the body of 203, or nil if no member is online.
func (ms *Members) Connections(groupName string) *remoting.ConsumerConnection {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	g := ms.mu.groups[groupName]
	if g == nil {
		return nil
	}
	i := &g.info
	b := &remoting.ConsumerConnection{
		Connections:       make([]remoting.Connection, len(g.members)),
		SubscriptionTable: make(map[string]remoting.Subscription, len(i.subs)),
		Type:              i.kind, Model: i.model, From: i.from,
	}
	for k, m := range g.members {
		b.Connections[k] = m.connection()
	}
	for topic, sub := range i.subs {
		b.SubscriptionTable[topic] = sub.Data()
	}
	return b
}

// toTell returns the connections that have to hear of a change in a group. That
// is nobody where every member consumes everything.
func (ms *Members) toTell(groupName string) []Conn {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	g := ms.mu.groups[groupName]
	if g == nil || g.info.model == remoting.Broadcasting {
		return nil
	}
	conns := make([]Conn, len(g.members))
	for i, m := range g.members {
		conns[i] = m.Conn
	}
	return conns
}

// stats returns how many groups and members there are, and what they cost.
func (ms *Members) stats() (groups, members int, bytes int64) {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	return len(ms.mu.groups), ms.mu.members, ms.mu.account.used
}
