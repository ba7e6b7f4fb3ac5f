package consumequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io"
	"iter"
	"math"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/message"
)

// Table is all queues of one kind in a store (RocketMQ: ConsumeQueueStore). A
// queue that nothing happens to costs a few hundred bytes and neither an open
// file nor a mapping.
//
// Lock order: Table.syncing, Table.relief, Queue.mu, and last the mutexes of
// pending and handles, under which no other is taken. Table.mu is taken alone or
// before Queue.mu. Files are written under Queue.mu and synced without a lock
// but Table.syncing, except where a queue is trimmed.
type Table struct {
	opt      Options
	perFile  int64 // units in a file
	unitSize int64
	maxSlot  int64 // slots at or above it have no file name
	files    *handles
	pending  pending

	// minPhysical is the largest log minimum that CorrectMin was told.
	minPhysical atomic.Int64
	// failed is set by the first failed sync, or by Close, and is final.
	failed atomic.Pointer[error]

	mu       sync.RWMutex
	topics   map[string]*topicEntry
	queues   int
	removing map[string]bool // topics that RemoveTopic or RemoveQueue is at work on

	syncing  sync.Mutex // one Sync at a time: each must cover all before it
	relief   sync.Mutex // one goroutine at a time makes room in pending
	closing  sync.Once
	closeErr error
}

// topicEntry is the queues of one topic by id.
type topicEntry struct {
	name   string
	queues []*Queue
}

func (e *topicEntry) find(id int32) (int, bool) {
	return slices.BinarySearchFunc(e.queues, id, func(q *Queue, id int32) int { return cmp.Compare(q.id, id) })
}

func newTable(opt Options, fileSize int64) *Table {
	t := &Table{
		opt:      opt,
		unitSize: int64(opt.Kind.unitSize()),
		topics:   make(map[string]*topicEntry),
		removing: make(map[string]bool),
	}
	t.opt.FileSize = fileSize
	t.perFile = fileSize / t.unitSize
	t.maxSlot = (math.MaxInt64/fileSize - 1) * t.perFile
	t.pending.limit = opt.BufferBytes
	t.files = newHandles(opt.FS, opt.MaxOpenFiles, func(err error) {
		t.fail(fmt.Errorf("close consume queue file: %w", err))
	})
	return t
}

// Kind is the layout of the table's units.
func (t *Table) Kind() Kind { return t.opt.Kind }

// FileSize is the length of the table's files in bytes.
func (t *Table) FileSize() int64 { return t.opt.FileSize }

// OpenFiles is the number of open handles.
func (t *Table) OpenFiles() int { return t.files.len() }

// Buffered is the memory in bytes of units that were not yet written out.
func (t *Table) Buffered() int64 { return t.pending.buffered() }

// Get returns a queue, or nil when there is none. It never creates one, however
// many unknown names a client asks for.
func (t *Table) Get(topic string, id int32) *Queue {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.getLocked(topic, id)
}

func (t *Table) getLocked(topic string, id int32) *Queue {
	if e := t.topics[topic]; e != nil {
		if i, ok := e.find(id); ok {
			return e.queues[i]
		}
	}
	return nil
}

// GetOrCreate returns a queue and makes an empty one, in memory only, when
// there is none. The directory follows with the first unit that is written out.
func (t *Table) GetOrCreate(topic string, id int32) (*Queue, error) {
	if q := t.Get(topic, id); q != nil {
		return q, nil
	}
	if err := checkTopic(topic); err != nil {
		return nil, err
	}
	if err := t.failure(); err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if q := t.getLocked(topic, id); q != nil {
		return q, nil
	}
	if t.removing[topic] {
		return nil, fmt.Errorf("topic %q is being removed: %w", topic, base.ErrNotFound)
	}
	q := t.newQueue(topic, id)
	t.addLocked(q)
	return q, nil
}

func (t *Table) addLocked(q *Queue) {
	e := t.topics[q.topic]
	if e == nil {
		e = &topicEntry{name: q.topic}
		t.topics[q.topic] = e
	}
	q.topic = e.name // one copy of the name
	i, found := e.find(q.id)
	base.Assert(!found, "queue %s is there already", q)
	e.queues = slices.Insert(e.queues, i, q)
	t.queues++
}

// Len is the number of queues.
func (t *Table) Len() int {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.queues
}

// All returns the queues that exist at the call, by topic and id.
func (t *Table) All() iter.Seq[*Queue] {
	return func(yield func(*Queue) bool) {
		qs := t.snapshot()
		slices.SortFunc(qs, func(a, b *Queue) int {
			return cmp.Or(cmp.Compare(a.topic, b.topic), cmp.Compare(a.id, b.id))
		})
		for _, q := range qs {
			if !yield(q) {
				return
			}
		}
	}
}

// Topic returns the queues of one topic by id.
func (t *Table) Topic(topic string) iter.Seq[*Queue] {
	return func(yield func(*Queue) bool) {
		t.mu.RLock()
		var qs []*Queue
		if e := t.topics[topic]; e != nil {
			qs = slices.Clone(e.queues)
		}
		t.mu.RUnlock()
		for _, q := range qs {
			if !yield(q) {
				return
			}
		}
	}
}

// snapshot is the queues in no order.
func (t *Table) snapshot() []*Queue {
	t.mu.RLock()
	defer t.mu.RUnlock()
	qs := make([]*Queue, 0, t.queues)
	for _, e := range t.topics {
		qs = append(qs, e.queues...)
	}
	return qs
}

// MaxPhysical is the largest end of a record in any queue, 0 when there is
// none.
func (t *Table) MaxPhysical() (phy message.PhysicalOffset) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	for _, e := range t.topics {
		for _, q := range e.queues {
			phy = max(phy, q.MaxPhysical())
		}
	}
	return phy
}

// Fingerprint identifies the ends of all queues: how many there are and a hash
// over topic, id, maximum and end of the last record of each. It does not
// depend on their order and is the same after closing and opening again.
// Queues without a unit do not count.
func (t *Table) Fingerprint() (count, hash uint64) {
	h := fnv.New64a()
	var b []byte
	for _, q := range t.snapshot() {
		q.mu.Lock()
		has, end, next, phy := q.hasUnits, q.end.Load(), q.Max(), q.MaxPhysical()
		q.mu.Unlock()
		if !has {
			continue
		}
		h.Reset()
		io.WriteString(h, q.topic)
		b = fmt.Appendf(b[:0], "\x00%d %d %d %d", q.id, end, next, phy)
		h.Write(b)
		count++
		hash += mix(h.Sum64())
	}
	return count, hash
}

// mix spreads the bits of one queue's hash, so that a sum of many does not hide
// a difference (the finalizer of MurmurHash3).
func mix(x uint64) uint64 {
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	x *= 0xc4ceb9fe1a85ec53
	return x ^ x>>33
}

// fail makes the table read-only for good and returns the error that every
// later write gets.
func (t *Table) fail(cause error) error {
	err := fmt.Errorf("%w: %w", base.ErrReadOnly, cause)
	t.failed.CompareAndSwap(nil, &err)
	return *t.failed.Load()
}

// failure is the error of an earlier failed sync, or of Close.
func (t *Table) failure() error {
	if p := t.failed.Load(); p != nil {
		return *p
	}
	return nil
}

// relieve writes out the oldest queues until there is room for need more bytes
// and a little more. A queue that cannot be written is passed over; that is an
// error only when writing the others did not help. force says that there is
// nothing left to write, because others are at it: the caller goes over the
// limit by one buffer rather than wait.
func (t *Table) relieve(need int64) (force bool, err error) {
	t.relief.Lock()
	defer t.relief.Unlock()
	var failed []*Queue
	var errs []error
	for !t.pending.room(need + t.pending.limit/256) {
		q := t.pending.pop()
		if q == nil {
			break
		}
		if err := q.writeOut(); err != nil {
			failed, errs = append(failed, q), append(errs, err)
		}
	}
	for _, q := range failed {
		t.pending.enqueue(q)
	}
	if t.pending.room(need) {
		return false, nil
	}
	return true, errors.Join(errs...)
}

// WriteOut hands all buffered units to the operating system. Queues that
// cannot be written keep their units for the next time; the error names them.
func (t *Table) WriteOut() error {
	if err := t.failure(); err != nil {
		return err
	}
	qs := t.pending.takeAll()
	errs := make([]error, len(qs))
	parallel(context.Background(), t.opt.Workers, len(qs), func(i int) error {
		if errs[i] = qs[i].writeOut(); errs[i] != nil {
			t.pending.enqueue(qs[i])
		}
		return nil
	})
	return errors.Join(errs...)
}

// Sync makes everything durable that was put before the call. A unit that
// cannot be written for lack of space stays buffered and is an error that
// wraps base.ErrDiskFull; a failed sync is final and wraps base.ErrReadOnly.
// Cancelling ctx leaves the rest for the next Sync.
func (t *Table) Sync(ctx context.Context) error {
	t.syncing.Lock()
	defer t.syncing.Unlock()
	if err := t.failure(); err != nil {
		return err
	}
	var mu sync.Mutex
	var errs []error
	note := func(err error) {
		if err != nil {
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		}
	}
	qs := t.pending.takeAll()
	done := make([]bool, len(qs))
	err := parallel(ctx, t.opt.Workers, len(qs), func(i int) error {
		done[i] = true
		q := qs[i]
		if err := q.writeOut(); err != nil {
			t.pending.enqueue(q)
			note(err)
		}
		return q.sync() // while its file is open
	})
	for i, q := range qs {
		if !done[i] {
			t.pending.enqueue(q)
		}
	}
	note(err)
	if err == nil {
		rs := t.pending.takeUnsynced()
		done := make([]bool, len(rs))
		err := parallel(ctx, t.opt.Workers, len(rs), func(i int) error {
			done[i] = true
			return rs[i].sync()
		})
		for i, r := range rs {
			if !done[i] {
				t.pending.addUnsynced(r)
			}
		}
		note(err)
	}
	return errors.Join(errs...)
}

// TrimAll makes sure that nothing but zeros stands behind the end of any queue
// and removes files that begin there, durably. It looks into every queue; what
// a crash left behind an end would otherwise stay until the queue is written.
func (t *Table) TrimAll(ctx context.Context) error {
	if err := t.failure(); err != nil {
		return err
	}
	qs := t.snapshot()
	return parallel(ctx, t.opt.Workers, len(qs), func(i int) error { return qs[i].trim() })
}

// Close writes out and syncs what is pending and closes all files. The first
// error is returned, also by later calls. Reads that are under way finish.
func (t *Table) Close() error {
	t.closing.Do(func() {
		t.closeErr = t.Sync(context.Background())
		t.release()
	})
	return t.closeErr
}

// Discard closes the table without writing anything: what was put since the
// last Sync is lost. It is for opening a store that turns out not to be
// openable, and for a store that has been synced. Calling it after Close, or
// again, does nothing.
func (t *Table) Discard() { t.closing.Do(t.release) }

func (t *Table) release() {
	closed := fmt.Errorf("consume queues: %w", base.ErrClosed)
	t.failed.CompareAndSwap(nil, &closed)
	t.files.close()
}

// parallel calls fn for 0 … n-1 on at most workers goroutines and waits for
// them. The first error, and the end of ctx, stop it from starting more.
func parallel(ctx context.Context, workers, n int, fn func(i int) error) error {
	var next atomic.Int64
	var first atomic.Pointer[error]
	var wg sync.WaitGroup
	for range min(workers, n) {
		wg.Go(func() {
			for first.Load() == nil && ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := fn(i); err != nil {
					first.CompareAndSwap(nil, &err)
				}
			}
		})
	}
	wg.Wait()
	if p := first.Load(); p != nil {
		return *p
	}
	if int(next.Load()) < n {
		return ctx.Err()
	}
	return nil
}
