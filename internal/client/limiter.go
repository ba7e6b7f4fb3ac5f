package client

import (
	"container/list"
	"context"
	"sync"
)

// A limiter bounds a number of things and the sum of their sizes. Who comes
// first gets in first, so a large one is not overtaken for ever.
type limiter struct {
	maxCount int
	maxBytes int64

	mu struct {
		sync.Mutex
		count int
		bytes int64
		queue list.List // of *ticket
	}
}

type ticket struct {
	bytes int64
	ready chan struct{}
}

func newLimiter(count int, bytes int64) *limiter { return &limiter{maxCount: count, maxBytes: bytes} }

// acquire waits until there is room for one more thing of that size. One that
// exceeds the limit alone waits until nothing else is there. Every acquire
// without an error needs a release of the same size.
func (l *limiter) acquire(ctx context.Context, bytes int64) error {
	bytes = min(bytes, l.maxBytes)
	l.mu.Lock()
	if l.mu.queue.Len() == 0 && l.fitsLocked(bytes) {
		l.takeLocked(bytes)
		l.mu.Unlock()
		return nil
	}
	t := &ticket{bytes, make(chan struct{})}
	e := l.mu.queue.PushBack(t)
	l.mu.Unlock()
	select {
	case <-t.ready:
		return nil
	case <-ctx.Done():
	}
	l.mu.Lock()
	select {
	case <-t.ready: // both at once
		l.mu.Unlock()
		return nil
	default:
	}
	l.mu.queue.Remove(e)
	l.admitLocked() // those behind it may be smaller
	l.mu.Unlock()
	return ctx.Err()
}

func (l *limiter) release(bytes int64) {
	bytes = min(bytes, l.maxBytes)
	l.mu.Lock()
	l.mu.count--
	l.mu.bytes -= bytes
	l.admitLocked()
	l.mu.Unlock()
}

func (l *limiter) admitLocked() {
	for e := l.mu.queue.Front(); e != nil; e = l.mu.queue.Front() {
		t := e.Value.(*ticket)
		if !l.fitsLocked(t.bytes) {
			return
		}
		l.takeLocked(t.bytes)
		l.mu.queue.Remove(e)
		close(t.ready)
	}
}

func (l *limiter) fitsLocked(bytes int64) bool {
	return l.mu.count < l.maxCount && l.mu.bytes+bytes <= l.maxBytes
}

func (l *limiter) takeLocked(bytes int64) {
	l.mu.count++
	l.mu.bytes += bytes
}
