package gantry

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// Directories of consume queues below a store.
const (
	queueDir      = "consumequeue"
	queueExtDir   = "consumequeue_ext"
	batchQueueDir = "batchconsumequeue"
)

// queueSet is all consume queues of a store: simple ones, and those of topics
// with inner batches. It adds nothing but the choice between the two.
type queueSet struct {
	simple, batch *consumequeue.Table
	misfits       bool // some file had another length than the others
}

func (s *Store) openQueues(ctx context.Context, discardFrom message.PhysicalOffset) error {
	misfits := false
	open := func(dir string, kind consumequeue.Kind) (*consumequeue.Table, error) {
		o := consumequeue.Options{
			FS: s.fs, Dir: filepath.Join(s.dir, dir), Kind: kind,
			MaxOpenFiles: s.opts.MaxOpenQueueFiles, Logger: s.opts.Logger,
			OnGap: func(topic string, id int32, from, to message.QueueOffset) {
				s.reportDamage(fmt.Errorf("consume queue %s/%d: no messages at offsets %d to %d", topic, id, from, to-1))
			},
			Progress: func(done, total int) {
				s.opts.Progress(Progress{"opening consume queues", int64(done), int64(total), "queues"})
			},
		}
		if kind == consumequeue.Simple {
			o.FileSize = s.opts.ConsumeQueueFileSize
			o.ExtFileSize = s.opts.ConsumeQueueExtFileSize
			if s.opts.QueueExt || s.hasQueueExt() {
				o.ExtDir = filepath.Join(s.dir, queueExtDir)
			}
		}
		if kind == consumequeue.Batch {
			o.FileSize = s.opts.BatchConsumeQueueFileSize
		}
		table, report, err := consumequeue.OpenTable(ctx, o, discardFrom)
		if err != nil {
			return nil, err
		}
		for _, name := range report.Foreign {
			s.warn("%s is not part of a consume queue and is ignored", name)
		}
		for _, name := range report.Gaps {
			s.warn("consume queue file %s is missing", name)
		}
		misfits = misfits || len(report.Short)+len(report.Long) > 0
		for _, name := range report.Short {
			s.warn("consume queue file %s is shorter than its queue's files", name)
		}
		for _, name := range report.Long {
			s.warn("consume queue file %s is longer than its queue's files", name)
		}
		if report.ConfiguredSize != 0 {
			s.warn("consume queue files have %d bytes, not the %d configured: theirs is used", report.FileSize, report.ConfiguredSize)
		}
		return table, nil
	}
	simple, err := open(queueDir, consumequeue.Simple)
	if err != nil {
		return err
	}
	batch, err := open(batchQueueDir, consumequeue.Batch)
	if err != nil {
		simple.Discard() // a refused opening writes nothing
		return err
	}
	s.queues = &queueSet{simple: simple, batch: batch, misfits: misfits}
	return nil
}

// hasQueueExt: a store that has extensions is read with them, whatever the
// options say.
func (s *Store) hasQueueExt() bool {
	_, err := s.fs.Stat(filepath.Join(s.dir, queueExtDir))
	return err == nil
}

func (q *queueSet) tables() [2]*consumequeue.Table {
	return [2]*consumequeue.Table{q.simple, q.batch}
}

// each calls f for both tables and joins the errors.
func (q *queueSet) each(f func(*consumequeue.Table) error) error {
	return errors.Join(f(q.simple), f(q.batch))
}

// Get returns the queue, or nil. It creates nothing.
func (q *queueSet) Get(topic string, id int32) *consumequeue.Queue {
	if found := q.simple.Get(topic, id); found != nil {
		return found
	}
	return q.batch.Get(topic, id)
}

// GetOrCreate returns the queue, made as kind when there is none.
func (q *queueSet) GetOrCreate(topic string, id int32, kind consumequeue.Kind) (*consumequeue.Queue, error) {
	if found := q.Get(topic, id); found != nil {
		return found, nil
	}
	if kind == consumequeue.Batch {
		return q.batch.GetOrCreate(topic, id)
	}
	return q.simple.GetOrCreate(topic, id)
}

// All yields every queue.
func (q *queueSet) All() iter.Seq[*consumequeue.Queue] {
	return func(yield func(*consumequeue.Queue) bool) {
		for _, t := range q.tables() {
			for queue := range t.All() {
				if !yield(queue) {
					return
				}
			}
		}
	}
}

// Topic yields the queues of one topic.
func (q *queueSet) Topic(topic string) iter.Seq[*consumequeue.Queue] {
	return func(yield func(*consumequeue.Queue) bool) {
		for _, t := range q.tables() {
			for queue := range t.Topic(topic) {
				if !yield(queue) {
					return
				}
			}
		}
	}
}

func (q *queueSet) Len() int { return q.simple.Len() + q.batch.Len() }

// Fingerprint sums up which queues there are and where they end.
func (q *queueSet) Fingerprint() (count, hash uint64) {
	c1, h1 := q.simple.Fingerprint()
	c2, h2 := q.batch.Fingerprint()
	return c1 + c2, h1 + 31*h2
}

func (q *queueSet) Sync(ctx context.Context) error {
	return q.each(func(t *consumequeue.Table) error { return t.Sync(ctx) })
}

func (q *queueSet) TrimAll(ctx context.Context) error {
	return q.each(func(t *consumequeue.Table) error { return t.TrimAll(ctx) })
}

func (q *queueSet) TruncateFrom(ctx context.Context, phy message.PhysicalOffset) error {
	return q.each(func(t *consumequeue.Table) error { return t.TruncateFrom(ctx, phy) })
}

func (q *queueSet) CorrectMin(ctx context.Context, minPhy message.PhysicalOffset) error {
	return q.each(func(t *consumequeue.Table) error { return t.CorrectMin(ctx, minPhy) })
}

// DeleteBefore removes files that speak only of records before minPhy.
func (q *queueSet) DeleteBefore(minPhy message.PhysicalOffset) (removed []consumequeue.RemovedFile, err error) {
	err = q.each(func(t *consumequeue.Table) error {
		files, err := t.DeleteBefore(minPhy)
		removed = append(removed, files...)
		return err
	})
	return removed, err
}

func (q *queueSet) RemoveTopic(topic string) error {
	return q.each(func(t *consumequeue.Table) error { return t.RemoveTopic(topic) })
}

// RemoveAll removes every queue.
func (q *queueSet) RemoveAll() error {
	topics := make(map[string]bool)
	for queue := range q.All() {
		topics[queue.Topic()] = true
	}
	var errs []error
	for topic := range topics {
		errs = append(errs, q.RemoveTopic(topic))
	}
	return errors.Join(errs...)
}

// Discard closes the tables without writing anything.
func (q *queueSet) Discard() {
	for _, t := range q.tables() {
		t.Discard()
	}
}

// place is one unit of a queue of either kind.
type place struct {
	consumequeue.Unit
	offset message.QueueOffset // of the unit's first message
	count  int                 // messages: 1, or those of an inner batch
}

func (p place) next() message.QueueOffset { return p.offset + message.QueueOffset(p.count) }

// placeReader reads a queue's units in order, a portion at a time.
type placeReader struct {
	queue  *consumequeue.Queue
	next   message.QueueOffset
	units  [64]consumequeue.Unit
	batch  []consumequeue.BatchUnit
	at, n  int
	single bool // read one unit at a time
}

// read returns the next unit; ok is false at the end of the queue. An error
// for which errors.Is(err, ErrNotFound) holds means that the offset is below
// the queue's minimum by now.
func (r *placeReader) read() (p place, ok bool, err error) {
	if r.at == r.n {
		if err := r.fill(); err != nil || r.n == 0 {
			return place{}, false, err
		}
	}
	if r.queue.Kind() == consumequeue.Batch {
		u := r.batch[r.at]
		p = place{consumequeue.Unit{Physical: u.Physical, Size: u.Size, Tags: u.Tags}, u.Base, int(u.Count)}
	} else {
		p = place{r.units[r.at], r.next, 1}
	}
	r.at++
	r.next = p.next()
	return p, true, nil
}

func (r *placeReader) fill() (err error) {
	want := len(r.units)
	if r.single {
		want = 1
	}
	r.at = 0
	if r.queue.Kind() == consumequeue.Batch {
		if r.batch == nil {
			r.batch = make([]consumequeue.BatchUnit, want)
		}
		r.n, err = r.queue.ReadBatch(r.next, r.batch[:want])
		return err
	}
	r.n, err = r.queue.Read(r.next, r.units[:want])
	return err
}

// placeAt returns the unit of one queue offset. ErrNotFound: the queue has
// none there.
func placeAt(q *consumequeue.Queue, off message.QueueOffset) (place, error) {
	r := placeReader{queue: q, next: off, single: true}
	p, ok, err := r.read()
	if err == nil && !ok {
		err = ErrNotFound
	}
	return p, err
}
