package namesrv

import (
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// bounds limit what peers can make a routeTable hold.
type bounds struct {
	brokers          int   // names
	members          int   // of all brokers
	membersPerBroker int   //
	topics           int   //
	queues           int   // pairs of a topic and a broker
	queueNums        int32 // queues of one topic on one broker
	filterServers    int   // of one member
	mappingBytes     int   // of static topics
	cachedBytes      int64 // encoded routes
}

// defaultBounds keep a full table below about 1 GiB, an answer to 106 and most
// lists of topics below the frame limit.
var defaultBounds = bounds{
	brokers:          4096,
	members:          8192,
	membersPerBroker: 64,
	topics:           1 << 18,
	queues:           1 << 21,
	queueNums:        1 << 16,
	filterServers:    64,
	mappingBytes:     32 << 20,
	cachedBytes:      64 << 20,
}

// An owner is the connection by which a member registered.
type owner interface{ Close() error }

// A routeTable knows all brokers and topics (upstream: RouteInfoManager). It
// does no I/O, except that it logs under its lock when a broker comes, goes or
// moves.
//
// Always: a broker has at least one member; a topic has at least one queue, and
// each of its queues belongs to a broker that knows the topic.
type routeTable struct {
	log    *slog.Logger
	now    func() time.Time
	bounds bounds

	expired     atomic.Uint64 // members that were silent for too long
	cachedBytes atomic.Int64  // in topic.route

	mu struct {
		sync.RWMutex
		brokers  map[string]*broker
		clusters map[string]map[string]*broker // by cluster and name
		topics   map[string]*topic
		owners   map[owner]map[*member]struct{}

		// What bounds limit.
		members      int
		queues       int
		mappingBytes int
	}
}

// A broker is what has one name: a master and its replicas.
type broker struct {
	name    string
	cluster string
	zone    string
	acting  bool      // a slave may act as the master
	members []*member // by id
	topics  map[string]*topic
}

// A member is one process of a broker.
type member struct {
	broker        *broker
	id            int64
	addr          string
	haAddr        string
	version       remoting.DataVersion // of the topics it registered last
	filterServers []string
	owner         owner // nil: none, only time ends the member
	timeout       time.Duration
	seen          time.Time
}

// A topic is where the queues of one topic lie. Its name is the key in the table.
type topic struct {
	queues []queue // by broker name

	// route is the encoded answer to the last 105, nil when something of it
	// has changed. It is set under the read lock, removed under the lock.
	route atomic.Pointer[route]
}

// A queue is what one broker has of a topic.
type queue struct {
	remoting.QueueData
	mapping []byte // of a static topic, as JSON
}

func newRouteTable(log *slog.Logger, now func() time.Time, b bounds) *routeTable {
	t := &routeTable{log: log, now: now, bounds: b}
	t.mu.brokers = make(map[string]*broker)
	t.mu.clusters = make(map[string]map[string]*broker)
	t.mu.topics = make(map[string]*topic)
	t.mu.owners = make(map[owner]map[*member]struct{})
	return t
}

const masterID = 0

// master returns the member with id 0, or nil.
func (b *broker) master() *member {
	if len(b.members) > 0 && b.members[0].id == masterID {
		return b.members[0]
	}
	return nil
}

func (b *broker) find(id int64) (int, bool) {
	return slices.BinarySearchFunc(b.members, id, func(m *member, id int64) int {
		switch {
		case m.id < id:
			return -1
		case m.id > id:
			return 1
		}
		return 0
	})
}

// member returns the member with id, or nil.
func (b *broker) member(id int64) *member {
	if i, ok := b.find(id); ok {
		return b.members[i]
	}
	return nil
}

func (b *broker) at(addr string) *member {
	for _, m := range b.members {
		if m.addr == addr {
			return m
		}
	}
	return nil
}

func (tp *topic) find(broker string) (int, bool) {
	return slices.BinarySearchFunc(tp.queues, broker, func(q queue, name string) int { return strings.Compare(q.BrokerName, name) })
}

// changedLocked forgets the encoded route of a topic.
func (t *routeTable) changedLocked(tp *topic) {
	if r := tp.route.Swap(nil); r != nil {
		t.cachedBytes.Add(-r.size())
	}
}

// brokerChangedLocked forgets the encoded routes that name b.
func (t *routeTable) brokerChangedLocked(b *broker) {
	for _, tp := range b.topics {
		t.changedLocked(tp)
	}
}

// setQueueLocked sets what b has of the topic. It reports whether there was room.
func (t *routeTable) setQueueLocked(b *broker, name string, q remoting.QueueData) bool {
	q.BrokerName = b.name
	tp := t.mu.topics[name]
	if tp != nil {
		if i, ok := tp.find(b.name); ok {
			if tp.queues[i].QueueData != q {
				tp.queues[i].QueueData = q
				t.changedLocked(tp)
			}
			return true
		}
	}
	if t.mu.queues >= t.bounds.queues || tp == nil && len(t.mu.topics) >= t.bounds.topics {
		return false
	}
	name = strings.Clone(name) // it may be part of a large body
	if tp == nil {
		tp = &topic{}
		t.mu.topics[name] = tp
	}
	i, _ := tp.find(b.name)
	tp.queues = slices.Insert(tp.queues, i, queue{QueueData: q})
	t.mu.queues++
	b.topics[name] = tp
	t.changedLocked(tp)
	return true
}

// removeQueueLocked takes the topic from b, and the topic if nobody else has it.
func (t *routeTable) removeQueueLocked(b *broker, name string) bool {
	tp := b.topics[name]
	if tp == nil {
		return false
	}
	i, _ := tp.find(b.name)
	t.mu.mappingBytes -= len(tp.queues[i].mapping)
	tp.queues = slices.Delete(tp.queues, i, i+1)
	t.mu.queues--
	delete(b.topics, name)
	t.changedLocked(tp)
	if len(tp.queues) == 0 {
		delete(t.mu.topics, name)
	}
	return true
}

// setMappingLocked sets the queue mapping of a static topic that b has.
func (t *routeTable) setMappingLocked(b *broker, name string, mapping []byte) bool {
	tp := b.topics[name]
	if tp == nil {
		return false
	}
	i, _ := tp.find(b.name)
	q := &tp.queues[i]
	if string(q.mapping) == string(mapping) {
		return true
	}
	if t.mu.mappingBytes-len(q.mapping)+len(mapping) > t.bounds.mappingBytes {
		return false
	}
	t.mu.mappingBytes += len(mapping) - len(q.mapping)
	q.mapping = slices.Clone(mapping)
	t.changedLocked(tp)
	return true
}

// counts are figures of a routeTable.
type counts struct{ clusters, brokers, members, topics, queues int }

func (t *routeTable) counts() counts {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return counts{len(t.mu.clusters), len(t.mu.brokers), t.mu.members, len(t.mu.topics), t.mu.queues}
}
