package remoting

import (
	"sync"
	"sync/atomic"
)

// A budget bounds the bytes that the requests of many connections take
// together.
//
// A request takes its bytes piece by piece, as they arrive. So that requests
// which hold some and wait for more cannot wait for each other for ever, one
// request at a time may take more than there is: it gets the token, and keeps
// it until it is done with. The bound is therefore max and one frame.
type budget struct {
	max     int64
	used    atomic.Int64
	token   atomic.Bool // some request has it
	waiting atomic.Int32

	mu struct {
		sync.Mutex
		freed chan struct{} // closed when something was given back
	}
}

// take waits until n bytes fit, the token is free, or stop is closed, and
// reports whether they were taken. token tells whether the request has the
// token.
func (b *budget) take(n int64, token *bool, stop <-chan struct{}) bool {
	if b.tryTake(n, token) {
		return true
	}
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	for {
		b.mu.Lock()
		if b.mu.freed == nil {
			b.mu.freed = make(chan struct{})
		}
		freed := b.mu.freed
		b.mu.Unlock()
		if b.tryTake(n, token) { // what was given back before freed was looked at
			return true
		}
		select {
		case <-freed:
		case <-stop:
			return false
		}
	}
}

func (b *budget) tryTake(n int64, token *bool) bool {
	for {
		used := b.used.Load()
		if used+n > b.max {
			break
		}
		if b.used.CompareAndSwap(used, used+n) {
			return true
		}
	}
	if *token || b.token.CompareAndSwap(false, true) {
		*token = true
		b.used.Add(n)
		return true
	}
	return false
}

// give returns n bytes, and the token with them, and wakes who waits.
func (b *budget) give(n int64, token bool) {
	if n == 0 && !token {
		return
	}
	b.used.Add(-n)
	if token {
		b.token.Store(false)
	}
	if b.waiting.Load() == 0 {
		return
	}
	b.mu.Lock()
	if b.mu.freed != nil {
		close(b.mu.freed)
		b.mu.freed = nil
	}
	b.mu.Unlock()
}
