package mappedfile

import "sync"

// TransientPool holds buffers as large as a file (RocketMQ:
// TransientStorePool, transientStorePoolEnable). A file that got one is
// written there; Commit moves the bytes to the file and Flush to stable
// storage. What has not been committed is lost when the process dies.
//
// A buffer is made when it is first borrowed. All methods may be called
// concurrently.
type TransientPool struct {
	size int64
	mu   sync.Mutex
	free [][]byte // given back, all zero
	left int      // not made yet
}

// buffer is a borrowed piece of a pool.
type buffer struct {
	pool *TransientPool
	data []byte
}

// NewTransientPool makes a pool of n buffers (RocketMQ: transientStorePoolSize,
// 5) of size bytes; size must be at least the file size of the queue.
func NewTransientPool(n int, size int64) *TransientPool {
	return &TransientPool{size: size, left: max(n, 0)}
}

// Free returns how many buffers can be borrowed.
func (p *TransientPool) Free() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.left + len(p.free)
}

// borrow returns nil when all buffers are in use.
func (p *TransientPool) borrow() *buffer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if n := len(p.free); n > 0 {
		b := p.free[n-1]
		p.free = p.free[:n-1]
		return &buffer{p, b}
	}
	if p.left == 0 {
		return nil
	}
	p.left--
	return &buffer{p, make([]byte, p.size)}
}

// giveBack ends the use of the buffer. It is zeroed here, because a published
// but never stored range (the rest of a file behind a blank record) must read
// as zeros in the next file.
func (b *buffer) giveBack() {
	clear(b.data)
	b.pool.mu.Lock()
	defer b.pool.mu.Unlock()
	b.pool.free = append(b.pool.free, b.data)
}
