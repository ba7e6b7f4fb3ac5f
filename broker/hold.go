package broker

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// maxHold bounds how long a pull is held, whatever its client asks for: clients
// give up after 30 s.
const maxHold = 25 * time.Second

// maxWakers bounds the goroutines that repeat pulls which were held.
const maxWakers = maxPulls

// holds are the pulls that wait for a message (upstream:
// PullRequestHoldService). A pull waits in the list of its queue until a message
// arrives there that its filter may choose, its time is over, its connection
// closes, its offset is reset, or the broker shuts down: whoever takes it out of
// the list has it repeated, in its turn. The bound on their number is
// remoting's, which answers SYSTEM_BUSY.
type holds struct {
	b     *Broker
	count atomic.Int64 // so that an arrival with nobody waiting costs nothing
	wg    sync.WaitGroup
	// resets counts resets of offsets: a pull that has looked before one and
	// begins to wait after it looks again.
	resets atomic.Uint64

	mu     sync.Mutex
	closed bool
	queues map[queueKey]map[*hold]struct{}
	conns  map[*remoting.Conn]map[*hold]struct{}

	woken  []*hold // to be repeated, from next on
	next   int
	wakers int // goroutines that do so
}

type queueKey struct {
	topic   string
	queueID int32
}

// hold is one pull that waits.
type hold struct {
	pull  *pull
	key   queueKey
	timer *time.Timer
}

func newHolds(b *Broker) *holds {
	return &holds{b: b, queues: make(map[queueKey]map[*hold]struct{}), conns: make(map[*remoting.Conn]map[*hold]struct{})}
}

// add lets p wait until its deadline and reports true, unless the broker shuts
// down or the connection has closed. end is the end of the queue when p looked:
// a message that has arrived since is noticed, and so is an offset that was
// reset.
func (h *holds) add(p *pull, end message.QueueOffset) bool {
	w := &hold{pull: p, key: queueKey{p.req.Topic, p.req.QueueID}}
	h.mu.Lock()
	if h.closed || p.conn.Context().Err() != nil {
		h.mu.Unlock()
		return false
	}
	insert(h.queues, w.key, w)
	insert(h.conns, p.conn, w)
	h.count.Add(1)
	w.timer = time.AfterFunc(time.Until(p.deadline), func() { h.wake(w) })
	if h.resets.Load() != p.resets {
		h.wakeLocked(w)
	}
	h.mu.Unlock()

	if _, now, err := h.b.store.QueueRange(w.key.topic, w.key.queueID); err == nil && now > end {
		h.wake(w)
	}
	return true
}

func insert[K comparable](m map[K]map[*hold]struct{}, k K, w *hold) {
	if m[k] == nil {
		m[k] = make(map[*hold]struct{})
	}
	m[k][w] = struct{}{}
}

// takeLocked takes w out of the lists. It reports false when somebody else did.
func (h *holds) takeLocked(w *hold) bool {
	waiting := h.queues[w.key]
	if _, ok := waiting[w]; !ok {
		return false
	}
	w.timer.Stop()
	h.count.Add(-1)
	if delete(waiting, w); len(waiting) == 0 {
		delete(h.queues, w.key)
	}
	of := h.conns[w.pull.conn]
	if delete(of, w); len(of) == 0 {
		delete(h.conns, w.pull.conn)
	}
	return true
}

// wake has w repeated if it still waits.
func (h *holds) wake(w *hold) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.wakeLocked(w)
}

func (h *holds) wakeLocked(w *hold) {
	if !h.takeLocked(w) {
		return
	}
	h.woken = append(h.woken, w)
	if h.wakers < maxWakers {
		h.wakers++
		h.wg.Add(1)
		go h.repeatAll()
	}
}

// repeatAll repeats what was woken, until nothing is left.
func (h *holds) repeatAll() {
	defer h.wg.Done()
	h.mu.Lock()
	defer h.mu.Unlock()
	for h.next < len(h.woken) {
		w := h.woken[h.next]
		h.woken[h.next] = nil
		if h.next++; h.next == len(h.woken) {
			h.woken, h.next = nil, 0
		} else if h.next > 1024 && h.next > len(h.woken)/2 {
			h.woken, h.next = append([]*hold(nil), h.woken[h.next:]...), 0
		}
		h.mu.Unlock()
		w.repeat()
		h.mu.Lock()
	}
	h.wakers--
}

func (w *hold) repeat() {
	p := w.pull
	if p.conn.Context().Err() != nil {
		return
	}
	resp := p.gone()
	if resp == nil {
		resp = p.again()
	}
	if resp != nil {
		p.b.metrics.waited.Store(p.cmd, nil)
		_ = p.conn.Reply(p.cmd, resp) // it fails when the connection has closed
		p.b.metrics.waited.Delete(p.cmd)
	}
}

// arrived is the store's event.
func (h *holds) arrived(a gantry.Arrival) {
	if h.count.Load() == 0 {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.queues[queueKey{a.Topic, a.QueueID}] {
		if w.pull.wants(a.QueueOffset, a.TagsCode) {
			h.wakeLocked(w)
		}
	}
}

// wants reports whether a message that arrived may be one that p waits for.
func (p *pull) wants(at message.QueueOffset, tags message.TagsCode) bool {
	return at >= p.next && (p.filter == nil || p.filter.MatchUnit(tags))
}

// drop forgets the pulls of a connection that has closed.
func (h *holds) drop(c *remoting.Conn) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for w := range h.conns[c] {
		h.takeLocked(w)
	}
}

// wakeQueue repeats whatever a group waits for at a queue: its offset was reset.
func (h *holds) wakeQueue(group, topic string, queueID int32) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resets.Add(1)
	for w := range h.queues[queueKey{topic, queueID}] {
		if w.pull.req.ConsumerGroup == group {
			h.wakeLocked(w)
		}
	}
}

// wakeTopic repeats whatever waits for a topic.
func (h *holds) wakeTopic(topic string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.resets.Add(1)
	for k, waiting := range h.queues {
		if k.topic == topic {
			for w := range waiting {
				h.wakeLocked(w)
			}
		}
	}
}

// close answers all that wait and lets nobody wait any more. It may be called
// more than once.
func (h *holds) close() {
	h.mu.Lock()
	h.closed = true
	for _, waiting := range h.queues {
		for w := range waiting {
			h.wakeLocked(w)
		}
	}
	h.mu.Unlock()
	h.wg.Wait()
}
