package client

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// keepFlushing commits the offsets that have changed every 5 s.
func (cs *Consumer) keepFlushing(work context.Context) {
	t := time.NewTicker(flushInterval)
	defer t.Stop()
	for {
		select {
		case <-work.Done():
			return
		case <-t.C:
		}
		cs.mu.Lock()
		queues := maps.Clone(cs.mu.queues)
		cs.mu.Unlock()
		cs.commitAll(work, queues)
	}
}

// commitAll commits the offsets of queues. A broker that fails is left out for
// the rest of them.
func (cs *Consumer) commitAll(ctx context.Context, queues map[remoting.MessageQueue]*queue) {
	failed := make(map[string]bool)
	for mq, q := range queues {
		if failed[mq.BrokerName] {
			continue
		}
		if err := cs.flush(ctx, q); err != nil && ctx.Err() == nil {
			failed[mq.BrokerName] = true
			cs.log.Info("offset not committed", "topic", mq.Topic, "broker", mq.BrokerName, "queueId", mq.QueueID, "err", err)
		}
	}
	if cs.opts.Broadcast {
		if err := cs.local.write(cs.opts.OffsetFile); err != nil {
			cs.log.Error("offsets not written", "file", cs.opts.OffsetFile, "err", err)
		}
	}
}

// flush commits up to where a queue was consumed, unless it is dropped or its
// lock has run out: then that is not ours to say any more.
func (cs *Consumer) flush(ctx context.Context, q *queue) error {
	select {
	case q.committing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-q.committing }()
	if q.dropped() || cs.opts.Orderly && !q.locked() {
		return nil
	}
	return cs.commitLocked(ctx, q, q.consumed())
}

// commitLast commits what a queue that has been dropped leaves behind.
func (cs *Consumer) commitLast(ctx context.Context, q *queue, mode dropMode) error {
	select {
	case q.committing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { <-q.committing }()
	offset := int64(mode)
	if mode == dropCommit {
		offset = q.consumed()
	}
	return cs.commitLocked(ctx, q, offset)
}

// commitLocked tells the broker, or the local table, an offset that it does not
// know yet. q.committing is held. The request is not given up when ctx ends: it
// could arrive behind the next one.
func (cs *Consumer) commitLocked(ctx context.Context, q *queue, offset int64) error {
	if offset == q.committed {
		return nil
	}
	if cs.opts.Broadcast {
		cs.local.set(q.mq, offset)
	} else if err := cs.c.CommitOffset(context.WithoutCancel(ctx), cs.opts.Group, q.mq, offset); err != nil {
		return err
	}
	q.committed = offset
	return nil
}

// localOffsets are the offsets of a broadcasting consumer.
type localOffsets struct {
	mu      sync.Mutex
	offsets map[remoting.MessageQueue]int64
	changed bool
}

func (l *localOffsets) get(mq remoting.MessageQueue) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	offset, ok := l.offsets[mq]
	return offset, ok && offset >= 0
}

func (l *localOffsets) set(mq remoting.MessageQueue, offset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.offsets[mq] = offset
	l.changed = true
}

// maxOffsetFile bounds what is read of a file of offsets.
const maxOffsetFile = 16 << 20

// readOffsets reads a file of offsets, which is as upstream's broadcasting
// clients write theirs. That there is none is fine.
func readOffsets(name string) (map[remoting.MessageQueue]int64, error) {
	offsets := make(map[remoting.MessageQueue]int64)
	if name == "" {
		return offsets, nil
	}
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return offsets, nil
	}
	if err == nil && info.Size() > maxOffsetFile {
		err = fmt.Errorf("offsets %s: %d bytes, limit %d", name, info.Size(), maxOffsetFile)
	}
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	var table remoting.ResetOffset
	if err := remoting.DecodeBody(text, &table); err != nil {
		return nil, fmt.Errorf("offsets %s: %w", name, err)
	}
	maps.Copy(offsets, table.OffsetTable)
	return offsets, nil
}

// write replaces the file of offsets if some have changed; with "" it does
// nothing.
func (l *localOffsets) write(name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.changed || name == "" {
		return nil
	}
	text := remoting.EncodeBody(&remoting.ResetOffset{OffsetTable: l.offsets})
	temp, err := os.CreateTemp(filepath.Dir(name), filepath.Base(name)+".*")
	if err != nil {
		return err
	}
	_, err = temp.Write(text)
	err = errors.Join(err, temp.Close())
	if err == nil {
		err = os.Rename(temp.Name(), name)
	}
	if err != nil {
		return errors.Join(err, os.Remove(temp.Name()))
	}
	l.changed = false
	return nil
}
