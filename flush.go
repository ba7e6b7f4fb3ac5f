package gantry

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/message"
)

// Sync puts everything that was stored before the call on stable storage: the
// log, what has been dispatched of it, and the checkpoint.
func (s *Store) Sync(ctx context.Context) error {
	if s.closed.Load() {
		return ErrClosed
	}
	if s.opts.ReadOnly {
		return nil
	}
	return s.writeCheckpoint(ctx, false)
}

// runCheckpoints writes checkpoints until ctx ends: every second the times of
// the flushed log, as upstream does, and every CheckpointInterval one that
// covers queues and index as well, which is what recovery starts from.
func (s *Store) runCheckpoints(ctx context.Context) {
	t := time.NewTicker(min(time.Second, s.opts.CheckpointInterval))
	defer t.Stop()
	last := time.Now()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		var err error
		if time.Since(last) >= s.opts.CheckpointInterval {
			err = s.writeCheckpoint(ctx, false)
			last = time.Now()
		} else {
			err = s.writeFlushedTime()
		}
		if err != nil && ctx.Err() == nil {
			s.reportWriteError("checkpoint", err)
		}
	}
}

// writeCheckpoint syncs log, queues and index and then says in the checkpoint
// how far they reach. The order is what recovery relies on: no value is
// written before what it speaks of is on stable storage
// (docs/crash-safety.md).
func (s *Store) writeCheckpoint(ctx context.Context, clean bool) (err error) {
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	defer func() {
		if errors.Is(err, ErrReadOnly) { // a failed sync, of whatever file
			s.fail(err)
		}
	}()
	if s.closed.Load() && !clean {
		return ErrClosed
	}
	if err := s.failure(); err != nil {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	s.dispatchMu.Lock()
	at := s.dispatched
	queueCount, queueHash := s.queues.Fingerprint()
	s.dispatchMu.Unlock()
	v, old := s.checkpoint.Load()
	if old != nil && !clean && !old.Clean && old.DispatchedTo == at.to && old.FlushedTo >= s.log.End() &&
		old.QueueCount == queueCount && old.QueueHash == queueHash {
		return nil // nothing has happened since
	}

	delayed := s.scheduler.snapshot()
	if err := s.log.Flush(ctx); err != nil {
		return fmt.Errorf("flush the commit log: %w", err)
	}
	if err := s.scheduler.save(delayed); err != nil {
		return err
	}
	if err := s.queues.Sync(ctx); err != nil {
		return fmt.Errorf("sync consume queues: %w", err)
	}
	e := checkpoint.Ext{
		DispatchedTo: at.to, LastRecord: at.last, LastStoreTime: at.storeTime,
		FlushedTo: s.log.Flushed(), Clean: clean, QueueCount: queueCount, QueueHash: queueHash,
	}
	if s.index != nil {
		state, err := s.index.Sync()
		if err != nil {
			return fmt.Errorf("sync the index: %w", err)
		}
		e.Index = checkpoint.IndexState(state)
		v.IndexTime = max(v.IndexTime, s.indexFull.Load())
	}
	// The flush above covers every dispatched record.
	v.PhysicTime = max(v.PhysicTime, s.log.FlushedStoreTime(), at.storeTime)
	v.LogicsTime = max(v.LogicsTime, at.storeTime)
	if at.last >= 0 {
		v.LogicsPhysical = at.last
	}
	if err := s.checkpoint.Save(v, &e); err != nil {
		return fmt.Errorf("write the checkpoint: %w", err)
	}
	if s.opts.Events.Checkpointed != nil {
		s.opts.Events.Checkpointed(e.DispatchedTo)
	}
	return nil
}

// writeFlushedTime writes only how far the log is flushed. It costs one small
// sync and keeps what recovery may call a torn tail short.
func (s *Store) writeFlushedTime() error {
	s.checkpointMu.Lock()
	defer s.checkpointMu.Unlock()
	v, e := s.checkpoint.Load()
	t := s.log.FlushedStoreTime()
	flushed := s.log.Flushed()
	if e == nil || flushed <= e.FlushedTo || s.failure() != nil {
		return nil
	}
	next := *e
	next.FlushedTo = flushed
	v.PhysicTime = max(v.PhysicTime, t)
	return s.checkpoint.Save(v, &next)
}

// Close stops the background work, writes everything to stable storage and
// releases the directory. It returns the first error; the store is closed all
// the same, and when something could not be written the next opening recovers
// it. Close may be called more than once.
func (s *Store) Close() error {
	s.closing.Do(func() { s.closeErr = s.close() })
	return s.closeErr
}

// closeDrainTime bounds how long Close reads the log for the dispatcher. What
// is left then is dispatched by the next opening.
const closeDrainTime = 5 * time.Second

func (s *Store) close() error {
	s.stop()
	s.loops.Wait()
	s.gate.Lock() // the last appends are done, and there will be no more
	s.closed.Store(true)
	s.gate.Unlock()
	s.cleanMu.Lock() // nor will there be cleaning
	defer s.cleanMu.Unlock()
	s.wakeReaders()
	if s.opts.ReadOnly {
		return s.closeFiles()
	}
	err := s.finish()
	if err == nil {
		err = checkpoint.RemoveAbort(s.fs, s.dir)
	}
	if cerr := s.closeFiles(); err == nil {
		err = cerr
	}
	if lerr := s.lock.Close(); err == nil {
		err = lerr
	}
	return err
}

// finish flushes, dispatches what is left and writes the clean checkpoint.
func (s *Store) finish() error {
	ctx, cancel := context.WithTimeout(context.Background(), closeDrainTime)
	defer cancel()
	if err := s.log.Flush(context.Background()); err != nil {
		return fmt.Errorf("flush the commit log: %w", err)
	}
	for end := s.log.End(); s.dispatchedPosition() < end; {
		_, n, err := s.dispatchSome(ctx)
		if err != nil {
			return fmt.Errorf("dispatch the last records: %w", err)
		}
		if n == 0 {
			return fmt.Errorf("dispatch stopped at %d, the log ends at %d", s.dispatchedPosition(), end)
		}
	}
	return s.writeCheckpoint(context.Background(), true)
}

func (s *Store) dispatchedPosition() message.PhysicalOffset {
	return message.PhysicalOffset(s.dispatchedTo.Load())
}

// closeFiles releases mappings and handles. It writes no queue, index or
// checkpoint: what has to be written was written before.
func (s *Store) closeFiles() error {
	var first error
	keep := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	if s.index != nil {
		keep(s.index.Close())
	}
	if s.queues != nil {
		s.queues.Discard()
	}
	if s.log != nil {
		keep(s.log.Close())
	}
	if s.checkpoint != nil {
		s.checkpointMu.Lock()
		defer s.checkpointMu.Unlock()
		keep(s.checkpoint.Close())
	}
	return first
}
