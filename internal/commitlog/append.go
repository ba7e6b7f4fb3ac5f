package commitlog

import (
	"context"
	"errors"
	"fmt"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/message"
)

// Appender is one put: it completes its records with what is only known under
// the append lock. Both methods must be quick, and must not call the Log.
type Appender interface {
	// Fill returns the records of the put, back to back, for position phy and
	// store time storeTime (ms). Their length is that given to Append. An
	// error refuses the put. Fill may be called again for another position
	// when an append is repeated after an error.
	Fill(phy message.PhysicalOffset, storeTime int64) ([]byte, error)
	// Appended is called after the bytes are in the log and before anybody
	// can see them: when it returns they are published.
	Appended(phy message.PhysicalOffset, storeTime int64)
}

// Append adds the records of a, size bytes in total, at the end of the log and
// returns the position and the store time that they got. It does not wait for
// stable storage: see WaitFlushed. All records of one call are in one file.
//
// On an error nothing has been added: message.ErrMessageIllegal when the
// records can never fit into a file, base.ErrDiskFull,
// mappedfile.ErrCreateTimeout, mappedfile.ErrNoBuffer and ErrBehind when
// there is no room now, base.ErrReadOnly after a failed sync, base.ErrClosed,
// and what Fill returned.
func (l *Log) Append(size int, a Appender) (message.PhysicalOffset, int64, error) {
	if int64(size)+message.BlankSize > l.size {
		return 0, 0, &message.RejectError{
			Status: message.ErrMessageIllegal,
			Field:  "record",
			Reason: fmt.Sprintf("%d bytes do not fit into a commit log file of %d", size, l.size),
		}
	}
	for {
		phy, storeTime, err := l.tryAppend(size, a)
		if err == nil {
			return phy, storeTime, nil
		}
		if failure := l.Err(); failure != nil {
			l.fail(failure)
		}
		var behind *behindError
		if !errors.As(err, &behind) {
			return 0, 0, err
		}
		if err := l.waitBehind(behind.flushed); err != nil {
			return 0, 0, err
		}
	}
}

// behindError: the file in front of the current one has to be flushed up to
// flushed before a new one is begun.
type behindError struct{ flushed int64 }

func (e *behindError) Error() string { return fmt.Sprintf("not flushed up to %d", e.flushed) }

// waitBehind waits outside the append lock for the flusher.
func (l *Log) waitBehind(end int64) error {
	err := l.WaitFlushed(context.Background(), message.PhysicalOffset(end))
	if errors.Is(err, ErrFlushTimeout) {
		// The records in question are others: this append stored nothing.
		return fmt.Errorf("begin a commit log file before %d is flushed: %w", end, ErrBehind)
	}
	return err
}

// tryAppend is Append under the append lock.
func (l *Log) tryAppend(size int, a Appender) (message.PhysicalOffset, int64, error) {
	l.mu.Lock()
	// Deferred, so that a panic in a leaves the log usable (store-behaviour A1).
	defer l.unlockAppend()
	now := l.opts.Now()
	l.lockedAt.Store(now)
	if s := state(l.state.Load()); s != stateRunning {
		return 0, 0, l.stateError(s)
	}
	f := l.mu.file
	if f == nil || f.Size()-f.Wrote() < int64(size)+message.BlankSize {
		var err error
		if f, err = l.rollLocked(size); err != nil {
			return 0, 0, err
		}
	}
	storeTime := max(now, l.mu.storeTime)
	phy := message.PhysicalOffset(f.Start() + f.Wrote())
	recs, err := a.Fill(phy, storeTime)
	if err != nil {
		return 0, 0, err
	}
	if len(recs) != size {
		return 0, 0, fmt.Errorf("append %d bytes: the records are %d bytes long", size, len(recs))
	}
	if err := f.Stage(recs); err != nil {
		return 0, 0, err
	}
	a.Appended(phy, storeTime)
	l.mu.storeTime = storeTime
	f.Publish(int64(size))
	l.end.Store(int64(phy) + int64(size))
	l.storeTime.Store(storeTime) // after end: see there
	return phy, storeTime, nil
}

func (l *Log) unlockAppend() {
	l.lockedAt.Store(0)
	l.mu.Unlock()
	if l.wakeCommitter != nil {
		wake(l.wakeCommitter)
	}
	// Costs one load when nobody waits; with FlushSync the flusher tells.
	if l.confirmWaiters.armed.Load() > 0 {
		l.confirmWaiters.reached(int64(l.Confirmed()))
	}
}

// rollLocked ends the current file with a blank record and begins the next,
// with room for size bytes. Everything that can fail for want of space or time
// comes first, so that after an error the log is as it was.
func (l *Log) rollLocked(size int) (*mappedfile.File, error) {
	f := l.mu.file
	if f != nil {
		// A crash may lose any unflushed page. Recovery relies on their being
		// in two files at most: nothing is begun before all but the last file
		// are flushed.
		if l.files.Flushed() < f.Start() {
			return nil, &behindError{f.Start()}
		}
		if l.opts.FailWithoutBuffer && l.pool != nil && l.pool.Free() == 0 {
			return nil, fmt.Errorf("begin a commit log file: %w", mappedfile.ErrNoBuffer)
		}
		if err := l.files.Prepare(int64(size)); err != nil {
			return nil, err
		}
		if rest := f.Size() - f.Wrote(); rest > 0 {
			var blank [message.BlankSize]byte
			if err := f.Stage(message.AppendBlank(blank[:0], int32(rest))); err != nil {
				return nil, err
			}
			// The rest of the file is zero: it was when the file was made,
			// and truncation keeps it so.
			f.Publish(rest)
			l.end.Store(f.End())
		}
	}
	next, err := l.files.Writable(l.end.Load())
	if err != nil {
		return nil, err
	}
	base.Assert(next.Start() == l.end.Load() && next.Wrote() == 0,
		"file %s begins at %d, wrote %d, log ends at %d", next.Path(), next.Start(), next.Wrote(), l.end.Load())
	l.mu.file = next
	if f != nil {
		wake(l.wakeFlusher) // for the full file, while the next one is being written
	}
	return next, nil
}

// wake sends to a channel of capacity 1 unless something waits there already.
func wake(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
