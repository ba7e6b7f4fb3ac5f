package commitlog

import (
	"context"
	"fmt"
	"time"

	"github.com/gantrymq/gantry/message"
)

// WaitFlushed waits until everything in front of end is on stable storage. All
// who wait share one sync (group commit). It returns ErrFlushTimeout after
// SyncFlushTimeout, or wrapped at once when writing out a transient pool has
// failed and will be tried again; ctx.Err() when ctx ends before; and an error
// that wraps base.ErrReadOnly when the sync failed: the records are in the log,
// but whether they survive is not known, and never will be. In a steady state
// it allocates nothing.
func (l *Log) WaitFlushed(ctx context.Context, end message.PhysicalOffset) error {
	return l.waitFlushed(ctx, end, l.opts.SyncFlushTimeout)
}

// Flush brings everything appended so far to stable storage. It waits as long
// as ctx allows. Errors are those of WaitFlushed.
func (l *Log) Flush(ctx context.Context) error {
	return l.waitFlushed(ctx, l.End(), 0)
}

// RequestFlush starts a flush and does not wait for it: for a put that wants
// FlushSync but no confirmation (property WAIT=false).
func (l *Log) RequestFlush() { wake(l.wakeFlusher) }

func (l *Log) waitFlushed(ctx context.Context, end message.PhysicalOffset, timeout time.Duration) error {
	if l.Flushed() >= end {
		return nil
	}
	w := l.flushWaiters.add(int64(end))
	// What the flusher said before the waiter was in the list it says to
	// nobody, so look again.
	if l.Flushed() >= end {
		return l.flushWaiters.drop(w, nil)
	}
	if s := state(l.state.Load()); s == stateOpened {
		return l.flushWaiters.drop(w, l.stateError(s))
	}
	wake(l.wakeFlusher)
	err := l.flushWaiters.wait(ctx, w, timeout, ErrFlushTimeout)
	if err != nil && l.Flushed() >= end {
		return nil // it came to that at the last moment
	}
	return err
}

// WaitConfirmed waits until Confirmed is above beyond. It returns ctx.Err()
// when ctx ends before and base.ErrClosed when the log is closed. It costs
// appends nothing while nobody waits.
func (l *Log) WaitConfirmed(ctx context.Context, beyond message.PhysicalOffset) error {
	if l.Confirmed() > beyond {
		return nil
	}
	w := l.confirmWaiters.add(int64(beyond) + 1)
	if l.Confirmed() > beyond {
		return l.confirmWaiters.drop(w, nil)
	}
	return l.confirmWaiters.wait(ctx, w, 0, nil)
}

// flushLoop is the flusher: the only goroutine that syncs, until Close does.
func (l *Log) flushLoop() {
	tick := time.NewTicker(l.opts.FlushInterval)
	defer tick.Stop()
	thorough := time.Now()
	for {
		pages := 0
		select {
		case <-l.quit:
			return
		case <-l.wakeFlusher:
		case now := <-tick.C:
			if l.opts.Flush == FlushAsync && now.Sub(thorough) < l.opts.FlushThoroughInterval {
				pages = l.opts.FlushLeastPages
			}
		}
		if pages == 0 {
			thorough = time.Now()
		}
		if err := l.flush(pages); err != nil && l.Err() == nil {
			// Nothing is lost, and the next round may succeed; but who waits
			// has not got what was asked for.
			l.opts.Logger.Error("flush commit log", "err", err)
			l.flushWaiters.fail(fmt.Errorf("%w: %w", ErrFlushTimeout, err))
		}
	}
}

// flush is one round: one sync for all who wait at its beginning.
func (l *Log) flush(leastPages int) error {
	// In this order: then the record with this time is in front of end.
	storeTime := l.storeTime.Load()
	end := l.end.Load()
	before := l.files.Flushed()
	var err error
	if l.wakeCommitter != nil && leastPages == 0 {
		_, err = l.files.Commit(0)
	}
	if _, flushErr := l.files.Flush(leastPages); err == nil {
		err = flushErr
	}
	if failure := l.Err(); failure != nil {
		l.fail(failure)
		return failure
	}
	flushed := l.files.Flushed()
	if flushed > before {
		l.syncs.Add(1)
	}
	if flushed >= end {
		l.flushedTime.Store(storeTime)
	}
	l.flushWaiters.reached(flushed)
	l.confirmWaiters.reached(int64(l.Confirmed()))
	return err
}

// fail tells everybody that the log can no longer be written.
func (l *Log) fail(err error) {
	l.failed.Do(func() {
		l.opts.Logger.Error("commit log is read-only from now on", "err", err)
		l.opts.OnFailure(err)
	})
	l.flushWaiters.shut(err)
}

// commitLoop is the committer: it writes what waits in the buffers of the
// transient pool to the files (RocketMQ: CommitRealTimeService).
func (l *Log) commitLoop() {
	tick := time.NewTicker(l.opts.CommitInterval)
	defer tick.Stop()
	thorough := time.Now()
	for {
		pages := l.opts.CommitLeastPages
		select {
		case <-l.quit:
			return
		case <-l.wakeCommitter:
		case <-tick.C:
		}
		if time.Since(thorough) >= l.opts.CommitThoroughInterval {
			pages = 0
			thorough = time.Now()
		}
		before := l.Confirmed()
		_, err := l.files.Commit(pages)
		switch {
		case err == nil:
		case l.Err() != nil:
			l.fail(l.Err())
		default:
			// The bytes are still in the buffers; the next round tries again.
			l.opts.Logger.Error("commit log: write buffered records", "err", err)
		}
		if now := l.Confirmed(); now > before {
			l.confirmWaiters.reached(int64(now))
		}
	}
}
