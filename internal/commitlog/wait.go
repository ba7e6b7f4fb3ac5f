package commitlog

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// waitList holds goroutines that wait for a position of the log to be reached.
// Waiters are reused: after a warm-up waiting allocates nothing. The list that
// they come from belongs to one Log, not to the process, because their
// channels and timers must not cross from one testing/synctest bubble into
// another.
type waitList struct {
	// armed counts the waiters. Who advances the position looks at it first,
	// so that an advance costs one load when nobody waits. The order matters:
	// a waiter counts itself and then looks at the position again, the
	// advancer moves the position and then looks at the count.
	armed atomic.Int32

	mu struct {
		sync.Mutex
		waiting []*waiter
		free    []*waiter
		final   error // set by shut: the answer to everybody from then on
	}
}

// waiter is one waiting goroutine.
type waiter struct {
	end   int64
	index int        // in waiting; -1 when answered
	done  chan error // capacity 1, so that an answer never blocks
	timer *time.Timer
}

// add registers a waiter for position end.
func (w *waitList) add(end int64) *waiter {
	w.mu.Lock()
	defer w.mu.Unlock()
	var wt *waiter
	if n := len(w.mu.free); n > 0 {
		wt = w.mu.free[n-1]
		w.mu.free = w.mu.free[:n-1]
	} else {
		wt = &waiter{done: make(chan error, 1)}
	}
	wt.end = end
	if w.mu.final != nil {
		wt.index = -1
		wt.done <- w.mu.final
		return wt
	}
	wt.index = len(w.mu.waiting)
	w.mu.waiting = append(w.mu.waiting, wt)
	w.armed.Add(1)
	return wt
}

// unlinkLocked takes a waiter out of the list in constant time.
func (w *waitList) unlinkLocked(wt *waiter) {
	last := len(w.mu.waiting) - 1
	moved := w.mu.waiting[last]
	w.mu.waiting[wt.index] = moved
	moved.index = wt.index
	w.mu.waiting[last] = nil
	w.mu.waiting = w.mu.waiting[:last]
	wt.index = -1
	w.armed.Add(-1)
}

// reached answers all waiters whose position is at or below end.
func (w *waitList) reached(end int64) {
	if w.armed.Load() == 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i := len(w.mu.waiting) - 1; i >= 0; i-- {
		if wt := w.mu.waiting[i]; wt.end <= end {
			w.unlinkLocked(wt)
			wt.done <- nil
		}
	}
}

// fail answers all who wait now with err.
func (w *waitList) fail(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.failLocked(err)
}

// shut answers all waiters with err, those who come later too. The first call
// counts.
func (w *waitList) shut(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mu.final == nil {
		w.mu.final = err
		w.failLocked(err)
	}
}

func (w *waitList) failLocked(err error) {
	for i := len(w.mu.waiting) - 1; i >= 0; i-- {
		wt := w.mu.waiting[i]
		w.unlinkLocked(wt)
		wt.done <- err
	}
}

func (w *waitList) len() int { return int(w.armed.Load()) }

// wait waits for the answer to wt, for the end of ctx or, when timeout is
// positive, for that long; then it returns late. wt must not be used any more.
func (w *waitList) wait(ctx context.Context, wt *waiter, timeout time.Duration, late error) error {
	var expired <-chan time.Time
	if timeout > 0 {
		if wt.timer == nil {
			wt.timer = time.NewTimer(timeout)
		} else {
			wt.timer.Reset(timeout)
		}
		expired = wt.timer.C
	}
	var err error
	select {
	case err = <-wt.done:
		w.recycle(wt)
	case <-expired:
		err = w.drop(wt, late)
	case <-ctx.Done():
		err = w.drop(wt, ctx.Err())
	}
	return err
}

// drop withdraws a waiter and returns err. An answer that came at the same
// moment wins. wt must not be used any more.
func (w *waitList) drop(wt *waiter, err error) error {
	w.mu.Lock()
	if wt.index >= 0 {
		w.unlinkLocked(wt)
		w.mu.Unlock()
	} else {
		w.mu.Unlock()
		err = <-wt.done
	}
	w.recycle(wt)
	return err
}

func (w *waitList) recycle(wt *waiter) {
	if wt.timer != nil {
		wt.timer.Stop()
	}
	w.mu.Lock()
	w.mu.free = append(w.mu.free, wt)
	w.mu.Unlock()
}
