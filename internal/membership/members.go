package membership

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/remoting"
)

// Members are the consumer groups (upstream: ConsumerManager).
type Members struct {
	log *slog.Logger

	mu struct {
		sync.RWMutex
		roster[consumerGroup]
	}
}

// consumerGroup is what there is to a consumer group besides its members
// (upstream: ConsumerGroupInfo).
type consumerGroup struct {
	kind  remoting.ConsumeType // of the last heartbeat that named one; likewise model and from
	model remoting.MessageModel
	from  remoting.ConsumeFrom

	subs        map[string]*Subscription // by topic
	fingerprint int32                    // of the heartbeat that subs are from; 0: none that has one
	cost        int64                    // of subs
	payer       *holder[consumerGroup]   // whom that is charged to; nil: the account only

	ids    atomic.Pointer[[]string] // client ids of the members, made when asked for; nil: not now
	warned time.Time                // when a conflict was last logged
}

// warnEvery bounds how often a group's conflicting heartbeats are logged.
const warnEvery = time.Minute

func newMembers(opts *Options) *Members {
	ms := &Members{log: opts.Logger}
	ms.mu.roster = newRoster[consumerGroup](Consumer, opts.MaxBytes, opts.MaxConnBytes)
	ms.mu.left = ms.leftLocked
	ms.mu.gone = func(g *group[consumerGroup]) { ms.payLocked(g, nil, 0) }
	return ms
}

// leftLocked keeps what hangs on a member from outliving it.
func (ms *Members) leftLocked(m *member[consumerGroup]) {
	i := &m.group.info
	i.ids.Store(nil)
	if i.payer == m.holder {
		m.holder.used -= i.cost // the account goes on to have it
		i.payer = nil
	}
}

// consumerBeat is the part of a heartbeat that is about one group.
type consumerBeat struct {
	*remoting.ConsumerData
	subs map[string]*Subscription
}

// beats prepares the subscriptions of a heartbeat, without any lock.
func beats(hb *remoting.Heartbeat) []consumerBeat {
	bs := make([]consumerBeat, len(hb.Consumers))
	for i := range hb.Consumers {
		b := &bs[i]
		b.ConsumerData = &hb.Consumers[i]
		if hb.WithoutSub {
			continue
		}
		b.subs = make(map[string]*Subscription, len(b.Subscriptions))
		for j := range b.Subscriptions {
			sub := subscribed(&b.Subscriptions[j])
			if old := b.subs[sub.Topic()]; old == nil || sub.Version() > old.Version() {
				b.subs[sub.Topic()] = sub
			}
		}
	}
	return bs
}

// check reports whether the heartbeat fits the bounds.
func (ms *Members) check(conn Conn, hb *remoting.Heartbeat) error {
	bs := beats(hb)
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	return ms.checkLocked(conn, &Client{ID: hb.ClientID}, bs)
}

func (ms *Members) checkLocked(conn Conn, c *Client, bs []consumerBeat) error {
	r := &ms.mu.roster
	var groups int
	var more int64
	for i := range bs {
		b := &bs[i]
		if cost, ok := r.newcomer(conn, c, b.GroupName); ok {
			groups++
			more += cost
		}
		more += moreFor(r.groups[b.GroupName], b.subs)
	}
	if groups == 0 && more <= 0 {
		return nil
	}
	return r.room(conn, "consumerDataSet", groups, more)
}

// moreFor returns how many bytes the subscriptions that a heartbeat adds, or
// replaces by longer ones, take. Others that it drops do not count.
func moreFor(g *group[consumerGroup], subs map[string]*Subscription) (more int64) {
	for topic, sub := range subs {
		var old *Subscription
		if g != nil {
			old = g.info.subs[topic]
		}
		switch {
		case old == nil:
			more += sub.cost
		case sub.Version() > old.Version():
			more += max(0, sub.cost-old.cost)
		}
	}
	return more
}

// heartbeat takes in what a client says of its consumers. subChanged is
// whether it has to send its subscriptions with the next heartbeat. The error
// is a *FieldError, or base.ErrClosed if conn has been closed; then nothing has
// changed.
func (ms *Members) heartbeat(conn Conn, c Client, hb *remoting.Heartbeat, now time.Time) (changes []Change, subChanged bool, err error) {
	if len(hb.Consumers) == 0 {
		return nil, false, nil
	}
	bs := beats(hb)
	ms.mu.Lock()
	defer ms.mu.Unlock()
	if closed(conn) {
		return nil, false, base.ErrClosed
	}
	if err := ms.checkLocked(conn, &c, bs); err != nil {
		return nil, false, err
	}
	for i := range bs {
		b := &bs[i]
		m, isNew, before := ms.mu.join(conn, c, b.GroupName, now)
		g := m.group
		if before != "" {
			changes = append(changes, Change{Role: Consumer, Kind: Left, Group: g.name, ClientID: before})
		}
		if isNew {
			g.info.ids.Store(nil)
			changes = append(changes, Change{Role: Consumer, Kind: Joined, Group: g.name, ClientID: c.ID})
		}
		conflict := ms.describeLocked(g, b) || before != ""
		if conflict && (g.info.warned.IsZero() || now.Sub(g.info.warned) >= warnEvery) {
			g.info.warned = now
			ms.log.Warn("heartbeats of a group contradict each other; the newest counts", "group", g.name, "client", c.ID, "clientBefore", before,
				"consumeType", g.info.kind, "messageModel", g.info.model, "consumeFromWhere", g.info.from)
		}
		var topics, words bool
		if !hb.WithoutSub {
			topics, words = ms.subscribeLocked(g, m.holder, b.subs)
		}
		if topics || words {
			changes = append(changes, Change{Role: Consumer, Kind: Subscribed, Group: g.name, ClientID: c.ID, topics: topics})
		}
		if g.info.agree(hb, topics || words) {
			subChanged = true
		}
	}
	return changes, subChanged, nil
}

// describeLocked takes over what a heartbeat says of its group and reports
// whether it said something else before.
func (ms *Members) describeLocked(g *group[consumerGroup], b *consumerBeat) (conflict bool) {
	i := &g.info
	if i.subs == nil { // the group is new
		i.subs = make(map[string]*Subscription)
		i.kind, i.model, i.from = b.Type, b.Model, b.From
		return false
	}
	conflict = replace(&i.kind, b.Type)
	conflict = replace(&i.model, b.Model) || conflict
	return replace(&i.from, b.From) || conflict
}

// replace sets *p to v unless that is negative, which is not known, and reports
// whether something known was replaced.
func replace[E ~int8](p *E, v E) bool {
	old := *p
	if v < 0 || v == old {
		return false
	}
	*p = v
	return old >= 0
}

// subscribeLocked makes subs the group's. It reports whether the set of topics
// has changed, and whether an expression has.
func (ms *Members) subscribeLocked(g *group[consumerGroup], h *holder[consumerGroup], subs map[string]*Subscription) (topics, words bool) {
	have := g.info.subs
	var stored bool
	cost := g.info.cost
	for topic, sub := range subs {
		old := have[topic]
		if old == nil {
			topics = true
		} else {
			if sub.Version() <= old.Version() {
				continue
			}
			words = words || !sub.wants(old)
			cost -= old.cost
		}
		cost += sub.cost
		have[topic] = sub
		stored = true
	}
	for topic, old := range have {
		if subs[topic] == nil {
			cost -= old.cost
			delete(have, topic)
			topics = true
		}
	}
	switch {
	case stored:
		ms.payLocked(g, h, cost)
	case cost != g.info.cost:
		ms.payLocked(g, g.info.payer, cost)
	}
	return topics, words
}

// payLocked charges the subscriptions of g to h.
func (ms *Members) payLocked(g *group[consumerGroup], h *holder[consumerGroup], cost int64) {
	ms.mu.charge(g.info.payer, -g.info.cost)
	ms.mu.charge(h, cost)
	g.info.payer, g.info.cost = h, cost
}

// agree compares the fingerprint of a heartbeat with the group's, which it may
// replace. It returns whether the client has to send its subscriptions again.
// changed: the heartbeat has changed those of the group.
func (g *consumerGroup) agree(hb *remoting.Heartbeat, changed bool) bool {
	switch f := hb.Fingerprint; {
	case hb.WithoutSub:
		return g.fingerprint != f
	case f == 0:
		if changed {
			g.fingerprint = 0
		}
		return false
	default:
		differs := g.fingerprint != 0 && g.fingerprint != f
		g.fingerprint = f
		return differs
	}
}

func (ms *Members) unregister(conn Conn, clientID, groupName string) []Change {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.mu.unregister(conn, clientID, groupName)
}

func (ms *Members) connClosed(conn Conn) []Change {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.mu.connClosed(conn)
}

func (ms *Members) expire(since time.Time) ([]Change, []Conn) {
	ms.mu.Lock()
	defer ms.mu.Unlock()
	return ms.mu.expire(since)
}

// holds reports whether conn has memberships.
func (ms *Members) holds(conn Conn) bool {
	ms.mu.RLock()
	defer ms.mu.RUnlock()
	return ms.mu.holders[conn] != nil
}
