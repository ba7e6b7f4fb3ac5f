package gantry

import (
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// topicQueue is what putting needs to know of one topic and queue id. It comes
// to life with the first put.
type topicQueue struct {
	topic string
	id    int32
	next  atomic.Int64 // next queue offset; changed under the append lock only
	// queue is the consume queue; the dispatcher's alone, nil until it needed
	// it. ahead is recovery's.
	queue *consumequeue.Queue
	ahead unitsAhead
	// removed: the topic was removed after this came to life; what was put
	// through it before goes nowhere. Set under Store.dispatchMu and gate.
	removed atomic.Bool
}

// removedQueue stands for the queues of records whose topic was removed.
var removedQueue = func() *topicQueue {
	q := new(topicQueue)
	q.removed.Store(true)
	return q
}()

type queueKey struct {
	topic string
	id    int32
}

// queueTable holds the topicQueues.
type queueTable struct {
	mu sync.RWMutex
	m  map[queueKey]*topicQueue
	// removing is a topic whose queues are on their way out: entries that come
	// to life meanwhile are for the next ones.
	removing string
}

// topicQueue returns the entry for topic and id. Recovery has dispatched every
// record, so the consume queue's end is the next offset of a queue that no put
// has touched since.
func (s *Store) topicQueue(topic string, id int32) *topicQueue {
	t := &s.table
	key := queueKey{topic, id}
	t.mu.RLock()
	q := t.m[key]
	t.mu.RUnlock()
	if q != nil {
		return q
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.m[key]; q != nil {
		return q
	}
	q = &topicQueue{topic: topic, id: id}
	if cq := s.queues.Get(topic, id); cq != nil && topic != t.removing {
		q.next.Store(int64(cq.Max()))
	}
	t.m[key] = q
	return q
}

func (q *topicQueue) nextOffset() message.QueueOffset { return message.QueueOffset(q.next.Load()) }

// unitsAhead are units of a simple queue that recovery has read ahead, to
// compare the records of the log with: reading them one by one took most of the
// time of a replay.
type unitsAhead struct {
	from  message.QueueOffset
	units []consumequeue.Unit
}

// Units are read so many at a time, the more the longer a queue is read in
// order: with many queues of a few messages there is nothing to gain.
const (
	minUnitsAhead = 16
	maxUnitsAhead = 512
)

// holds reports whether the queue has u at off.
func (a *unitsAhead) holds(q *consumequeue.Queue, off message.QueueOffset, u consumequeue.Unit) bool {
	end := a.from + message.QueueOffset(len(a.units))
	if off < a.from || off >= end {
		if q.Kind() != consumequeue.Simple || off < q.Min() || off >= q.Max() {
			return false
		}
		n := minUnitsAhead
		if off == end {
			n = min(max(2*len(a.units), minUnitsAhead), maxUnitsAhead)
		}
		if n > cap(a.units) {
			a.units = make([]consumequeue.Unit, n)
		}
		n, err := q.Read(off, a.units[:n])
		a.from, a.units = off, a.units[:n]
		if err != nil || n == 0 {
			a.drop()
			return false
		}
	}
	return a.units[off-a.from] == u
}

// drop forgets what was read.
func (a *unitsAhead) drop() { a.units = a.units[:0] }
