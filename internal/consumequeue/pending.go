package consumequeue

import "sync"

// bufferSizes are the sizes of the buffers for units that were put and not yet
// written. A queue starts with the smallest, so that very many queues with a
// few units each stay cheap, and never has more than the largest: a page.
var bufferSizes = [...]int{160, 1024, 4096}

const maxBuffer = 4096

// pending is what a table has to hand to the operating system: the queues with
// buffered units, oldest first, and the runs with writes that were not synced.
// Its mutex is the innermost; nothing is called under it.
type pending struct {
	limit int64 // bytes of buffers

	mu       sync.Mutex
	bytes    int64 // of buffers that queues hold
	head     *Queue
	tail     *Queue
	unsynced []*run
	free     [len(bufferSizes)][][]byte
}

// get returns an empty buffer for at least n bytes in exchange for old, whose
// content it copies; old may be nil. When that would exceed the limit it
// returns how many bytes it would take: then the caller must first make room.
// With force, and when nobody has a buffer, it is always granted.
func (p *pending) get(q *Queue, n int, old []byte, force bool) (buf []byte, need int64) {
	class := 0
	for bufferSizes[class] < n {
		class++
	}
	size := bufferSizes[class]
	p.mu.Lock()
	defer p.mu.Unlock()
	if need := int64(size - cap(old)); !force && !p.roomLocked(need) {
		return old, need
	}
	if f := p.free[class]; len(f) > 0 {
		buf = f[len(f)-1]
		p.free[class] = f[:len(f)-1]
	} else {
		buf = make([]byte, 0, size)
	}
	p.bytes += int64(size)
	buf = append(buf[:0], old...)
	p.putLocked(old)
	p.enqueueLocked(q)
	return buf, 0
}

func (p *pending) roomLocked(need int64) bool { return p.bytes == 0 || p.bytes+need <= p.limit }

// room reports whether there is room for need more bytes.
func (p *pending) room(need int64) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.roomLocked(need)
}

// put takes a buffer back.
func (p *pending) put(buf []byte) {
	p.mu.Lock()
	p.putLocked(buf)
	p.mu.Unlock()
}

func (p *pending) putLocked(buf []byte) {
	const keep = 1 << 20 // bytes of free buffers per size
	if cap(buf) == 0 {
		return
	}
	p.bytes -= int64(cap(buf))
	for class, size := range bufferSizes {
		if size == cap(buf) && (len(p.free[class])+1)*size <= keep {
			p.free[class] = append(p.free[class], buf[:0])
		}
	}
}

// enqueue makes q the youngest of the queues with buffers, if it is not there.
func (p *pending) enqueue(q *Queue) {
	p.mu.Lock()
	p.enqueueLocked(q)
	p.mu.Unlock()
}

func (p *pending) enqueueLocked(q *Queue) {
	if q.queued {
		return
	}
	q.queued = true
	q.prev, q.next = p.tail, nil
	if p.tail != nil {
		p.tail.next = q
	} else {
		p.head = q
	}
	p.tail = q
}

// pop takes the oldest queue out, nil when there is none. Whoever pops a queue
// writes it out or enqueues it again.
func (p *pending) pop() *Queue {
	p.mu.Lock()
	defer p.mu.Unlock()
	q := p.head
	if q != nil {
		p.removeLocked(q)
	}
	return q
}

// takeAll takes all queues out.
func (p *pending) takeAll() (qs []*Queue) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.head != nil {
		q := p.head
		p.removeLocked(q)
		qs = append(qs, q)
	}
	return qs
}

// remove takes q out, if it is there.
func (p *pending) remove(q *Queue) {
	p.mu.Lock()
	if q.queued {
		p.removeLocked(q)
	}
	p.mu.Unlock()
}

func (p *pending) removeLocked(q *Queue) {
	if q.prev != nil {
		q.prev.next = q.next
	} else {
		p.head = q.next
	}
	if q.next != nil {
		q.next.prev = q.prev
	} else {
		p.tail = q.prev
	}
	q.prev, q.next, q.queued = nil, nil, false
}

func (p *pending) addUnsynced(r *run) {
	p.mu.Lock()
	p.unsynced = append(p.unsynced, r)
	p.mu.Unlock()
}

func (p *pending) takeUnsynced() []*run {
	p.mu.Lock()
	defer p.mu.Unlock()
	rs := p.unsynced
	p.unsynced = nil
	return rs
}

// buffered is the number of bytes of buffers in use.
func (p *pending) buffered() int64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.bytes
}
