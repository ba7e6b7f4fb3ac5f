package consumequeue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/gantrymq/gantry/message"
)

// CorrectMin tells the queue where the log begins: Min becomes the offset of
// the first message whose record begins at or behind minPhy, or Max when there
// is none. Min never goes back. It is in memory only; after opening it is the
// first message in the queue's files.
func (q *Queue) CorrectMin(minPhy message.PhysicalOffset) error {
	q.t.raiseMinPhysical(minPhy)
	low, end := q.min.Load(), q.end.Load()
	if low >= end {
		return nil
	}
	at, raw := end, []byte(nil)
	if q.MaxPhysical() > minPhy {
		q.mu.Lock()
		live := q.min.Load() == low && q.minPhysical >= int64(minPhy)
		q.mu.Unlock()
		if live {
			return nil
		}
		var err error
		if at, raw, err = q.lowerBound(q.read, low, end, int64(minPhy)); err != nil {
			return fmt.Errorf("correct minimum of consume queue %s: %w", q, err)
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if at < q.min.Load() || at > q.end.Load() {
		return nil // overtaken by another correction or by a truncation
	}
	q.setMinLocked(at, raw)
	return nil
}

// setMinLocked moves the minimum to a slot; raw is its unit, nil when it is not
// known.
func (q *Queue) setMinLocked(slot int64, raw []byte) {
	q.minPhysical = -1
	if q.batch != nil {
		if raw != nil {
			u := decodeBatchUnit(raw)
			q.batch.min.Store(int64(u.Base))
			q.minPhysical = int64(u.Physical)
		} else {
			q.batch.min.Store(q.batch.max.Load())
		}
	} else if raw != nil {
		q.minPhysical = int64(decodeUnit(raw).Physical)
	}
	q.min.Store(slot)
}

func (t *Table) raiseMinPhysical(phy message.PhysicalOffset) {
	for {
		old := t.minPhysical.Load()
		if int64(phy) <= old || t.minPhysical.CompareAndSwap(old, int64(phy)) {
			return
		}
	}
}

// CorrectMin corrects the minimum of every queue, see Queue.CorrectMin. Queues
// that cannot be read keep theirs; the errors are joined.
func (t *Table) CorrectMin(ctx context.Context, minPhy message.PhysicalOffset) error {
	t.raiseMinPhysical(minPhy)
	qs := t.snapshot()
	errs := make([]error, len(qs))
	err := parallel(ctx, t.opt.Workers, len(qs), func(i int) error {
		errs[i] = qs[i].CorrectMin(minPhy)
		return nil
	})
	return errors.Join(append(errs, err)...)
}

// Expired returns the files that DeleteBefore would remove.
func (t *Table) Expired(minPhy message.PhysicalOffset) ([]RemovedFile, error) {
	return t.expire(minPhy, true)
}

// DeleteBefore removes the files at the front of each queue whose messages all
// lie below minPhy in the log, durably, and corrects the minimums. The last
// file with a unit always stays, so that a fully expired queue keeps its Max.
// A file that cannot be removed, or a queue that cannot be read, is an error,
// and is tried again by the next call; the other queues are dealt with all the
// same. The result lists what was removed, also beside an error.
func (t *Table) DeleteBefore(minPhy message.PhysicalOffset) ([]RemovedFile, error) {
	if err := t.failure(); err != nil {
		return nil, err
	}
	return t.expire(minPhy, false)
}

func (t *Table) expire(minPhy message.PhysicalOffset, dry bool) (removed []RemovedFile, err error) {
	var errs []error
	for _, q := range t.snapshot() {
		gone, err := q.expire(minPhy, dry)
		removed = append(removed, gone...)
		if err != nil {
			errs = append(errs, fmt.Errorf("delete from consume queue %s: %w", q, err))
		}
	}
	return removed, errors.Join(errs...)
}

func (q *Queue) expire(minPhy message.PhysicalOffset, dry bool) (removed []RemovedFile, err error) {
	old := q.min.Load()
	low := old
	if dry {
		if end := q.end.Load(); low < end {
			if low, _, err = q.lowerBound(q.read, low, end, int64(minPhy)); err != nil {
				return nil, err
			}
		}
	} else {
		if err := q.CorrectMin(minPhy); err != nil {
			return nil, err
		}
		low = q.min.Load()
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dead || q.files.emptyLocked() || !q.hasUnits {
		return nil, nil
	}
	r := &q.files
	// Behind written there may be files that are still to be trimmed.
	last := min((q.end.Load()-1)/q.t.perFile, q.written.Load()/q.t.perFile, r.last)
	for n := r.first; n < last && (n+1)*q.t.perFile <= low; n++ {
		if live, err := q.endsLiveLocked(n, minPhy); err != nil || live {
			return removed, err
		}
		f := RemovedFile{r.path(n), q.topic, q.id, message.QueueOffset(n * q.t.perFile), r.size}
		if !dry {
			if err := r.removeLocked(n); err != nil {
				return removed, errors.Join(err, r.syncDirLocked())
			}
		}
		removed = append(removed, f)
	}
	if dry {
		return removed, nil
	}
	if err := r.syncDirLocked(); err != nil {
		return removed, err
	}
	if q.t.opt.ExtDir != "" && (low > old || q.ext != nil) {
		gone, err := q.extLocked().expire(low)
		return append(removed, gone...), err
	}
	return removed, nil
}

// endsLiveLocked reports whether the last slot of file n belongs to a message
// at or behind minPhy. Then the search for the minimum was led astray by
// damage, and the file stays.
func (q *Queue) endsLiveLocked(n int64, minPhy message.PhysicalOffset) (bool, error) {
	raw := make([]byte, q.t.unitSize)
	if _, err := q.readLocked((n+1)*q.t.perFile-1, raw); err != nil {
		return false, err
	}
	phy, ok := q.rank(raw)
	return ok && q.isUnit(raw) && phy >= int64(minPhy), nil
}

// TruncateFrom takes away all units whose record begins at or behind phy, after
// the log was cut there. What is left of them in files goes with the next
// WriteOut or Sync.
func (q *Queue) TruncateFrom(phy message.PhysicalOffset) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.MaxPhysical() <= phy || !q.hasUnits || q.dead {
		return nil
	}
	slot, _, err := q.lowerBound(q.readLocked, q.startLocked(), q.end.Load(), int64(phy))
	if err == nil {
		err = q.setEndLocked(slot)
	}
	if err != nil {
		return fmt.Errorf("truncate consume queue %s at physical offset %d: %w", q, phy, err)
	}
	return nil
}

// TruncateFrom is Queue.TruncateFrom for every queue.
func (t *Table) TruncateFrom(ctx context.Context, phy message.PhysicalOffset) error {
	qs := t.snapshot()
	return parallel(ctx, t.opt.Workers, len(qs), func(i int) error { return qs[i].TruncateFrom(phy) })
}

// TruncateTo takes away the units from queue offset off on; see TruncateFrom.
// In a batch queue the unit that holds off goes as a whole.
func (q *Queue) TruncateTo(off message.QueueOffset) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if off >= q.Max() || !q.hasUnits || q.dead {
		return nil
	}
	slot := int64(off)
	var err error
	if q.batch != nil {
		slot, err = q.batchSlot(q.readLocked, q.startLocked(), off)
	}
	if err == nil {
		err = q.setEndLocked(max(slot, q.startLocked()))
	}
	if err != nil {
		return fmt.Errorf("truncate consume queue %s at queue offset %d: %w", q, off, err)
	}
	return nil
}

// setEndLocked moves the end back to slot or, when fill units stand before it,
// to the unit before those.
func (q *Queue) setEndLocked(slot int64) error {
	start := q.startLocked()
	at, raw, found, err := q.prevUnit(q.readLocked, start, slot)
	if err != nil {
		return err
	}
	next := q.Max()
	if !found && q.batch != nil { // it ends where its first unit began
		first := make([]byte, q.t.unitSize)
		if n, err := q.readLocked(start, first); err != nil {
			return err
		} else if n > 0 {
			next = decodeBatchUnit(first).Base
		}
	}
	if q.ext != nil {
		q.ext.forgetEnd()
	}
	q.changing.Add(1)
	defer q.changing.Add(1)
	q.hasUnits = found
	if found {
		slot = at + 1
		q.setLastLocked(raw)
	} else {
		q.maxPhysical.Store(0)
		if q.batch != nil {
			q.batch.max.Store(int64(next))
		}
	}
	if !found || q.min.Load() >= slot {
		q.setMinLocked(slot, nil)
	}
	if w := q.written.Load(); slot >= w {
		q.buf = q.buf[:(slot-w)*q.t.unitSize]
	} else {
		q.buf = q.buf[:0]
		q.written.Store(slot)
	}
	q.end.Store(slot)
	if !q.files.emptyLocked() {
		q.files.tailUnknown, q.trimDue = true, true
		q.t.pending.enqueue(q)
	}
	return nil
}

// setLastLocked takes over what follows from the last unit.
func (q *Queue) setLastLocked(raw []byte) {
	if q.batch != nil {
		u := decodeBatchUnit(raw)
		q.maxPhysical.Store(int64(u.End()))
		q.batch.max.Store(int64(u.Next()))
		return
	}
	q.maxPhysical.Store(int64(decodeUnit(raw).End()))
}

// RemoveTopic removes the queues of a topic, with their files and folders,
// durably. It also removes what an earlier removal left. Foreign files stay,
// and so do the folders that hold them. Queues that the caller still has
// answer with an error that wraps base.ErrNotFound.
func (t *Table) RemoveTopic(topic string) error {
	return t.remove(topic, func(e *topicEntry) []*Queue { return slices.Clone(e.queues) }, func(root string) error {
		dir := filepath.Join(root, topic)
		entries, err := t.opt.FS.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		for _, e := range entries {
			// Without a sync for each: that of the folder above makes all of
			// it durable.
			if _, ok := parseQueueID(e.Name); ok && e.IsDir() {
				if err := t.removeQueueDir(filepath.Join(dir, e.Name), false); err != nil {
					return err
				}
			}
		}
		return t.removeDir(dir, true)
	})
}

// RemoveQueue is RemoveTopic for one queue. The topic's folder stays.
func (t *Table) RemoveQueue(topic string, id int32) error {
	return t.remove(topic, func(e *topicEntry) []*Queue {
		if i, ok := e.find(id); ok {
			return []*Queue{e.queues[i]}
		}
		return nil
	}, func(root string) error {
		return t.removeQueueDir(filepath.Join(root, topic, strconv.FormatInt(int64(id), 10)), true)
	})
}

// remove takes queues of a topic out of the table and then deletes files below
// each root, while nobody can create queues of that topic.
func (t *Table) remove(topic string, which func(*topicEntry) []*Queue, files func(root string) error) error {
	if err := checkTopic(topic); err != nil {
		return err
	}
	if err := t.failure(); err != nil {
		return err
	}
	t.mu.Lock()
	if t.removing[topic] {
		t.mu.Unlock()
		return fmt.Errorf("topic %q is being removed already", topic)
	}
	t.removing[topic] = true
	var gone []*Queue
	if e := t.topics[topic]; e != nil {
		gone = which(e)
		e.queues = slices.DeleteFunc(e.queues, func(q *Queue) bool { return slices.Contains(gone, q) })
		if len(e.queues) == 0 {
			delete(t.topics, topic)
		}
		t.queues -= len(gone)
	}
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.removing, topic)
		t.mu.Unlock()
	}()
	for _, q := range gone {
		q.kill()
	}
	roots := []string{t.opt.Dir}
	if t.opt.ExtDir != "" {
		roots = append(roots, t.opt.ExtDir)
	}
	for _, root := range roots {
		if err := files(root); err != nil {
			return fmt.Errorf("remove consume queues of %q: %w", topic, err)
		}
	}
	for _, q := range gone { // a reader may have opened a file since
		q.t.files.dropAll(&q.files)
	}
	return nil
}

// kill makes q refuse writes and forget what it has.
func (q *Queue) kill() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dead = true
	q.changing.Add(1)
	q.releaseBufferLocked()
	q.written.Store(q.end.Load())
	q.min.Store(q.end.Load())
	if q.batch != nil {
		q.batch.min.Store(q.batch.max.Load())
	}
	q.files.last = q.files.first - 1
	q.changing.Add(1)
	q.t.pending.remove(q)
	q.t.files.dropAll(&q.files)
	if q.ext != nil {
		q.t.files.dropAll(&q.ext.files)
	}
}

// removeQueueDir removes the files of a queue and its folder. With durable set,
// oldest first so that what a crash leaves still has the largest offset.
func (t *Table) removeQueueDir(dir string, durable bool) error {
	entries, err := t.opt.FS.List(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if _, ok := parseFileName(e.Name); !ok || !e.IsRegular() {
			continue
		}
		if err := t.opt.FS.Remove(filepath.Join(dir, e.Name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if durable {
		if err := t.syncDir(dir); err != nil {
			return err
		}
	}
	return t.removeDir(dir, durable)
}

// removeDir removes a folder unless something is left in it.
func (t *Table) removeDir(dir string, durable bool) error {
	left, err := t.opt.FS.List(dir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		t.opt.Logger.Warn("folder of removed consume queues is not empty", "dir", dir, "first", left[0].Name)
		return nil
	}
	if err := t.opt.FS.Remove(dir); err != nil || !durable {
		return err
	}
	return t.syncDir(filepath.Dir(dir))
}

func (t *Table) syncDir(dir string) error {
	if err := t.opt.FS.SyncDir(dir); err != nil {
		return t.fail(fmt.Errorf("sync directory %s: %w", dir, err))
	}
	return nil
}
