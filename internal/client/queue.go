package client

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// A queue is one that is the consumer's share (upstream: ProcessQueue). It keeps
// the messages that were pulled, until they are done with.
type queue struct {
	mq      remoting.MessageQueue
	sub     remoting.Subscription
	stop    context.CancelFunc // ends pulling and handing out
	running sync.WaitGroup     // the two goroutines that do so
	arrived chan struct{}      // of capacity 1: messages wait
	room    chan struct{}      // of capacity 1: something is done with

	replica    atomic.Int64 // whom to pull from, as the broker suggested
	lastPull   atomic.Int64 // ms since 1970
	lastHandle atomic.Int64

	// committing is held, by who has put something in, while an offset is being
	// committed, so that an old one cannot arrive behind a new one.
	committing chan struct{}
	committed  int64 // what the broker knows; -1: nothing. Guarded by committing

	mu struct {
		sync.Mutex
		dropped bool // what handlers say does not count any more
		next    int64
		waiting []message.Ext // ordered by offset
		handed  map[*work]struct{}
		count   int   // messages that wait or were handed out
		bytes   int64 // of their bodies
		locked  time.Time
	}
}

// work is what was handed out to one handler.
type work struct {
	ms    []message.Ext
	first int64 // the lowest offset
	count int
	bytes int64
}

func newQueue(mq remoting.MessageQueue, sub remoting.Subscription, offset int64) *queue {
	q := &queue{
		mq: mq, sub: sub, arrived: make(chan struct{}, 1), room: make(chan struct{}, 1), committing: make(chan struct{}, 1), committed: -1,
	}
	q.mu.next = offset
	q.mu.handed = make(map[*work]struct{})
	return q
}

// put takes in what a pull found, and where to go on. It returns the bytes that
// it holds on to from now on.
func (q *queue) put(ms []message.Ext, next int64) (bytes int64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.dropped {
		return 0
	}
	for i := range ms {
		bytes += int64(len(ms[i].Body))
	}
	q.mu.waiting = append(q.mu.waiting, ms...)
	q.mu.count += len(ms)
	q.mu.bytes += bytes
	q.mu.next = next
	if len(ms) > 0 {
		signal(q.arrived)
	}
	return bytes
}

// take waits for messages and hands out up to n of them; nil when ctx ends.
func (q *queue) take(ctx context.Context, n int) *work {
	for {
		q.mu.Lock()
		if k := min(n, len(q.mu.waiting)); k > 0 {
			w := &work{ms: q.mu.waiting[:k:k], first: int64(q.mu.waiting[0].QueueOffset), count: k}
			for i := range w.ms {
				w.bytes += int64(len(w.ms[i].Body))
			}
			if q.mu.waiting = q.mu.waiting[k:]; len(q.mu.waiting) == 0 {
				q.mu.waiting = nil
			}
			q.mu.handed[w] = struct{}{}
			q.mu.Unlock()
			return w
		}
		q.mu.Unlock()
		select {
		case <-q.arrived:
		case <-ctx.Done():
			return nil
		}
	}
}

// done is told when the messages of w are done with. It returns the bytes that
// this sets free.
func (q *queue) done(w *work) (bytes int64) {
	q.mu.Lock()
	delete(q.mu.handed, w)
	q.mu.count -= w.count
	q.mu.bytes -= w.bytes
	if !q.mu.dropped {
		bytes = w.bytes
	}
	q.mu.Unlock()
	signal(q.room)
	return bytes
}

// consumed is the offset up to which everything is done with.
func (q *queue) consumed() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	low := q.mu.next
	if len(q.mu.waiting) > 0 {
		low = min(low, int64(q.mu.waiting[0].QueueOffset))
	}
	for w := range q.mu.handed {
		low = min(low, w.first)
	}
	return low
}

func (q *queue) next() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.next
}

func (q *queue) queued() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.count
}

// drop makes what handlers still say not count, and returns the bytes that the
// queue holds on to.
func (q *queue) drop() int64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.mu.dropped {
		return 0
	}
	q.mu.dropped = true
	return q.mu.bytes
}

func (q *queue) dropped() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.mu.dropped
}

// setLocked notes that the broker has the queue locked for us as of then.
func (q *queue) setLocked(then time.Time) {
	q.mu.Lock()
	q.mu.locked = then
	q.mu.Unlock()
}

// locked reports whether the lock can still be relied on.
func (q *queue) locked() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return !q.mu.locked.IsZero() && time.Since(q.mu.locked) < lockLife
}

// info returns the queue as 307 describes it.
func (q *queue) info() remoting.ProcessQueueInfo {
	consumed := q.consumed()
	locked := q.locked()
	q.mu.Lock()
	defer q.mu.Unlock()
	p := remoting.ProcessQueueInfo{
		CommitOffset: consumed, CachedMsgMinOffset: consumed, CachedMsgMaxOffset: max(q.mu.next-1, consumed),
		CachedMsgCount: int32(q.mu.count), CachedMsgSizeInMiB: int32(q.mu.bytes >> 20), Locked: locked, Dropped: q.mu.dropped,
		LastPullTimestamp: q.lastPull.Load(), LastConsumeTimestamp: q.lastHandle.Load(),
	}
	if !q.mu.locked.IsZero() {
		p.LastLockTimestamp = q.mu.locked.UnixMilli()
	}
	return p
}
