package gantry

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// dispatchItem is what queues and index need to know of one record (RocketMQ:
// DispatchRequest).
type dispatchItem struct {
	queue        *topicQueue
	physical     message.PhysicalOffset
	queueOffset  message.QueueOffset
	count        message.QueueOffset // queue offsets that the record takes: 1, or those of an inner batch
	storeTime    int64
	tags         message.TagsCode
	delay        int64 // ms from storeTime to delivery, of a record of the schedule topic; else 0
	size         int32
	dispatchable bool    // of no transaction, or its commit
	hashes       []int32 // of the keys, for the index
	light        []lightTarget
}

func (it *dispatchItem) end() message.PhysicalOffset {
	return it.physical + message.PhysicalOffset(it.size)
}

// ringSize is how many records the dispatcher can be fed with from memory
// before it has to read the log: some 10 ms at full speed.
const (
	ringSize = 1 << 14
	ringPart = 1 << 8
)

// dispatchRing carries items from the appenders, who hold the append lock, to
// the dispatcher. An item that does not fit is dropped: the dispatcher sees
// the hole and reads the log.
type dispatchRing struct {
	// parts are made when they are first filled, under the append lock; the
	// position published behind an item publishes its part as well. Most stores
	// never need more than the first.
	parts [ringSize / ringPart]*[ringPart]dispatchItem
	head  atomic.Uint64 // next to take; the dispatcher's
	_     [56]byte      // keeps the two positions on cache lines of their own
	tail  atomic.Uint64 // next to fill; under the append lock
}

func (r *dispatchRing) slot(at uint64) *dispatchItem {
	return &r.parts[at%ringSize/ringPart][at%ringPart]
}

func (r *dispatchRing) push(it *dispatchItem) {
	tail := r.tail.Load()
	if tail-r.head.Load() == ringSize {
		return
	}
	if part := &r.parts[tail%ringSize/ringPart]; *part == nil {
		*part = new([ringPart]dispatchItem)
	}
	slot := r.slot(tail)
	hashes := append(slot.hashes[:0], it.hashes...)
	*slot = *it
	slot.hashes = hashes
	r.tail.Store(tail + 1)
}

// peek returns the oldest item, or nil. It stays valid until pop.
func (r *dispatchRing) peek() *dispatchItem {
	head := r.head.Load()
	if head == r.tail.Load() {
		return nil
	}
	return r.slot(head)
}

func (r *dispatchRing) pop() { r.head.Store(r.head.Load() + 1) }

// dispatched is how far the dispatcher has come.
type dispatched struct {
	to        message.PhysicalOffset // every record before it is in queues and index
	last      message.PhysicalOffset // start of the newest of them; -1 when there is none
	storeTime int64                  // of that record
}

// dispatchBatch bounds the records that are dispatched under one hold of
// dispatchMu, so that a checkpoint does not wait long.
const dispatchBatch = 256

// runDispatcher carries records from the log to queues and index, in order,
// until the store closes (RocketMQ: ReputMessageService). It never skips a
// record because a write failed: it tries again, and everything behind waits.
func (s *Store) runDispatcher(ctx context.Context) {
	var pace dispatchPace
	for {
		seen, n, err := s.dispatchSome(ctx)
		pace.records += n
		switch {
		case err != nil && ctx.Err() != nil:
			return
		case err != nil:
			s.reportWriteError("dispatch", err)
			if !sleep(ctx, dispatchRetryPause) {
				return
			}
		case n > 0:
			if s.opts.Events.Dispatched != nil {
				s.opts.Events.Dispatched(message.PhysicalOffset(s.dispatchedTo.Load()))
			}
			s.wakeReaders()
			pace.paused = false
		case pace.pause(time.Now()):
			time.Sleep(dispatchPause)
		default:
			if err := s.log.WaitConfirmed(ctx, seen); err != nil {
				return
			}
		}
	}
}

const (
	dispatchRetryPause = 100 * time.Millisecond
	dispatchPause      = 200 * time.Microsecond
	// dispatchBusy is far more than a client does that waits for each message
	// to come back, in records a second.
	dispatchBusy = 15_000
)

// dispatchPace tells when waking the dispatcher for each record would cost more
// than dispatching it: while there are many, it looks by itself now and then.
type dispatchPace struct {
	since   time.Time
	records int  // since then
	busy    bool // as of the last look at the rate
	paused  bool // and nothing was there afterwards
}

// pause reports whether to look again after a short while, rather than to wait
// for the next record.
func (p *dispatchPace) pause(now time.Time) bool {
	if d := now.Sub(p.since); d >= time.Millisecond {
		p.busy = float64(p.records) >= dispatchBusy*d.Seconds()
		p.since, p.records = now, 0
	}
	p.paused = p.busy && !p.paused
	return p.paused
}

// dispatchSome dispatches the next records, if there are any that readers may
// see, and says how many, and how far readers could see. Records that come from
// the log count as one.
func (s *Store) dispatchSome(ctx context.Context) (limit message.PhysicalOffset, n int, err error) {
	s.dispatchMu.Lock()
	defer s.dispatchMu.Unlock()
	limit = s.log.Confirmed() // before peeking: every record below it was pushed or dropped by then
	for range dispatchBatch {
		it := s.ring.peek()
		switch {
		case it != nil && it.physical < s.dispatched.to:
			s.ring.pop() // was read from the log
			continue
		case it != nil && it.physical == s.dispatched.to && it.end() <= limit:
			if err := s.dispatch(it); err != nil {
				return limit, n, err
			}
			s.ring.pop()
			n++
			continue
		case s.dispatched.to >= limit:
			return limit, n, nil
		}
		// The next record is not in the ring: a blank record lies before it,
		// or it was dropped.
		to := limit
		if it != nil && it.physical < to {
			to = it.physical
		}
		before := s.dispatched.to
		if err := s.dispatchFromLog(ctx, to); err != nil {
			return limit, n, err
		}
		if s.dispatched.to == before {
			break // a record that is not wholly readable yet
		}
		n++
	}
	return limit, n, nil
}

// errEnough ends a scan.
var errEnough = errors.New("enough")

// dispatchFromLog dispatches records between s.dispatched.to and to, at most
// dispatchBatch of them, by reading the log.
func (s *Store) dispatchFromLog(ctx context.Context, to message.PhysicalOffset) error {
	n := 0
	var failed error // of a queue, not of the log
	end, err := s.log.Scan(ctx, s.dispatched.to, to, commitlog.ScanOptions{}, func(v *message.View) error {
		if failed = s.dispatchView(v); failed != nil {
			return failed
		}
		if n++; n == dispatchBatch {
			return errEnough
		}
		return nil
	})
	switch {
	case failed != nil:
		return failed
	case errors.Is(err, errEnough):
		return nil
	case errors.Is(err, base.ErrCorrupt):
		// Bytes that this process, or recovery, has found good are not so any
		// more. Go around: to the next thing that is a record.
		s.reportDamage(err)
		next := s.nextRecord(end, to)
		s.stats.skippedBytes.Add(int64(next - end))
		s.setDispatched(next, s.dispatched.last, s.dispatched.storeTime)
		return nil
	case err != nil:
		return err
	}
	// Only blank records were left.
	s.setDispatched(max(end, s.dispatched.to), s.dispatched.last, s.dispatched.storeTime)
	return nil
}

// dispatchView dispatches one record that was read from the log.
func (s *Store) dispatchView(v *message.View) error {
	it := dispatchItem{hashes: s.scratch.hashes[:0]}
	s.itemOf(v, &it)
	err := s.dispatch(&it)
	s.scratch.hashes = it.hashes[:0]
	return err
}

// itemOf fills it from a record.
func (s *Store) itemOf(v *message.View, it *dispatchItem) {
	topic := s.intern(v.TopicBytes())
	it.physical, it.size, it.storeTime = v.PhysicalOffset, v.Size, v.StoreTimestamp
	it.queueOffset, it.count = v.QueueOffset, message.QueueOffset(max(v.BatchNum(), 1))
	it.dispatchable = v.SysFlag.Queued()
	it.tags = v.TagsCode(func(level int) int64 {
		it.delay = s.delayOf(level)
		return it.delay
	})
	if it.queue = removedQueue; !s.removed.cover(topic, v.PhysicalOffset) {
		it.queue = s.topicQueue(topic, v.QueueID)
	}
	if !s.opts.NoIndex && (!s.recovering || v.PhysicalOffset > s.indexedTo) {
		it.hashes = v.IndexHashes(it.hashes, !s.opts.NoTagIndex)
	}
	if s.opts.LightQueues && it.dispatchable {
		it.light = s.lightOf(v)
	}
}

// lightOf returns the light queue places that a stored record names. Lists that
// do not fit together dispatch nothing, as upstream.
func (s *Store) lightOf(v *message.View) []lightTarget {
	if !v.HasLightQueues() {
		return nil
	}
	names, err := v.LightQueues()
	if err != nil {
		return nil
	}
	targets := make([]lightTarget, 0, len(names))
	for _, l := range names {
		if checkNames(l.Name, 0) != nil || l.Offset < 0 || s.removed.cover(l.Name, v.PhysicalOffset) {
			continue
		}
		targets = append(targets, lightTarget{s.topicQueue(l.Name, l.QueueID(v.QueueID)), l.Offset})
	}
	return targets
}

// delayOf returns the delay of a level in ms; 0 for no level.
func (s *Store) delayOf(level int) int64 {
	if level <= 0 {
		return 0
	}
	return s.delays.Delay(level)
}

// dispatch puts one record into its queues and the index and moves on. The
// caller holds dispatchMu, or is recovery.
func (s *Store) dispatch(it *dispatchItem) error {
	tags := it.tags
	if it.delay > 0 { // the unit of a delayed message says when it is due
		tags = message.TagsCode(it.storeTime + it.delay)
	}
	if it.dispatchable {
		if !it.queue.removed.Load() {
			if err := s.putUnit(it.queue, it.queueOffset, it.count, it, tags); err != nil {
				return err
			}
		}
		for _, l := range it.light {
			if l.queue.removed.Load() || s.recovering && s.lightHolds(l.queue, it) {
				continue
			}
			if err := s.putUnit(l.queue, l.offset, 1, it, it.tags); err != nil {
				return err
			}
		}
	}
	if it.delay > 0 && !s.recovering {
		s.scheduler.notify()
	}
	s.indexRecord(it)
	s.setDispatched(it.end(), it.physical, it.storeTime)
	if it.dispatchable && s.opts.Events.Arrived != nil && !s.recovering {
		s.arrived(it.queue, it.queueOffset, it, tags)
		for _, l := range it.light {
			s.arrived(l.queue, l.offset, it, it.tags)
		}
	}
	return nil
}

// lightHolds reports whether a light queue reaches beyond the record. RocketMQ
// 5.4.0 can put units of light queues into lower slots than the offsets that
// the records name (a PREPARED record uses up offsets, a queue named twice two):
// such a queue is in order as it is, and another unit would show the message
// twice.
func (s *Store) lightHolds(q *topicQueue, it *dispatchItem) bool {
	cq := s.queues.Get(q.topic, q.id)
	return cq != nil && cq.MaxPhysical() >= it.end()
}

func (s *Store) arrived(q *topicQueue, off message.QueueOffset, it *dispatchItem, tags message.TagsCode) {
	if q.removed.Load() {
		return
	}
	s.opts.Events.Arrived(Arrival{
		Topic: q.topic, QueueID: q.id, QueueOffset: off,
		PhysicalOffset: it.physical, TagsCode: tags, StoreTimestamp: it.storeTime,
	})
}

// putUnit writes the unit of a record into one queue. A record that claims an
// impossible place is reported and passed by: it must not hold up the others.
func (s *Store) putUnit(q *topicQueue, off, count message.QueueOffset, it *dispatchItem, tags message.TagsCode) error {
	err := s.tryUnit(q, off, count, it, tags)
	if err != nil && misplaced(err) {
		s.reportDamage(fmt.Errorf("record at %d has no place in its queue: %w", it.physical, err))
		return nil
	}
	return err
}

func (s *Store) tryUnit(q *topicQueue, off, count message.QueueOffset, it *dispatchItem, tags message.TagsCode) error {
	if q.queue == nil {
		cq, err := s.queues.GetOrCreate(q.topic, q.id, s.queueKind(q.topic))
		if err != nil {
			return fmt.Errorf("open consume queue %s/%d: %w", q.topic, q.id, err)
		}
		q.queue = cq
	}
	if s.recovering {
		if q.ahead.holds(q.queue, off, consumequeue.Unit{Physical: it.physical, Size: it.size, Tags: tags}) {
			return nil // as after most crashes for most records
		}
		q.ahead.drop() // what follows may change the queue
		ours, err := s.settleRestart(q.queue, off, it)
		if err != nil || !ours {
			return err
		}
	}
	if err := s.putPlace(q.queue, off, count, it, tags); err != nil {
		return fmt.Errorf("consume queue %s/%d offset %d: %w", q.topic, q.id, off, err)
	}
	return nil
}

// settleRestart is for a queue whose offsets began again: a Java broker deletes
// a topic's queues and keeps its records in the log. It reports whether the
// record belongs to the queue as it is now. The caller is recovery, which may
// replay records from before the deletion.
func (s *Store) settleRestart(q *consumequeue.Queue, off message.QueueOffset, it *dispatchItem) (bool, error) {
	if q.Kind() != consumequeue.Simple || q.Max() == 0 {
		return true, nil
	}
	beyond := q.MaxPhysical() >= it.end() // the queue has later records than this one
	if off >= q.Max() {
		return !beyond, nil
	}
	p, err := placeAt(q, off)
	if err != nil || !p.Valid() || p.Physical == it.physical {
		return true, nil // missing, expired, unreadable or right: putting it judges
	}
	h, err := s.log.ReadHeader(p.Physical)
	if err != nil || h.QueueOffset != off || h.QueueID != q.ID() {
		return true, nil // what is in the slot does not belong there
	}
	if beyond {
		return false, nil
	}
	if off != 0 {
		// Offsets only ever begin again at 0. No checksum covers this field:
		// the record's own is damaged, and the other one keeps its place.
		return false, base.Corruptf(queueDir, int64(off)*consumequeue.UnitSize, "the records at %d and %d both have offset %d of %s/%d", p.Physical, it.physical, off, q.Topic(), q.ID())
	}
	// Records with this offset and later positions: from here on the queue is
	// the new one.
	return true, q.TruncateTo(off)
}

// misplaced reports whether err says that a record claims a place that it
// cannot have, for a topic that is no folder name or a queue offset far from
// the others. No checksum covers these fields. Such a record has no place in a
// queue; it can still be read by position and key.
func misplaced(err error) bool {
	_, far := errors.AsType[*consumequeue.GapError](err)
	return far || errors.Is(err, consumequeue.ErrName) || errors.Is(err, consumequeue.ErrOffset) || errors.Is(err, base.ErrCorrupt)
}

// putPlace writes a unit in the form that the queue has. While recovering the
// slot may hold something already: it must hold this unit afterwards.
func (s *Store) putPlace(q *consumequeue.Queue, off, count message.QueueOffset, it *dispatchItem, tags message.TagsCode) (err error) {
	u := consumequeue.Unit{Physical: it.physical, Size: it.size, Tags: tags}
	switch {
	case q.Kind() == consumequeue.Batch:
		b := consumequeue.BatchUnit{
			Physical: it.physical, Size: it.size, Tags: tags, StoreTime: it.storeTime,
			Base: off, Count: int16(count), Compacted: -1,
		}
		if s.recovering {
			_, err = q.EnsureBatch(b)
			return err
		}
		return q.PutBatch(b)
	case s.opts.QueueExt && !message.IsLight(q.Topic()):
		x := consumequeue.ExtUnit{Tags: tags, StoreTime: it.storeTime}
		if s.recovering {
			_, err = q.EnsureExt(off, u, x)
			return err
		}
		return q.PutExt(off, u, x)
	case s.recovering:
		_, err = q.Ensure(off, u)
		return err
	}
	err = q.Put(off, u)
	if errors.Is(err, base.ErrCorrupt) {
		// Another unit is in the record's slot. The log decides.
		s.reportDamage(err)
		_, err = q.Ensure(off, u)
	}
	return err
}

// setDispatched publishes the dispatcher's position.
func (s *Store) setDispatched(to, last message.PhysicalOffset, storeTime int64) {
	s.dispatched = dispatched{to: to, last: last, storeTime: storeTime}
	s.dispatchedTo.Store(int64(to))
}

// indexRecord indexes a record's keys. An index that cannot be written never
// holds up the queues: it tells through OnDegraded, and fetches what it has
// missed by itself when it can be written again.
func (s *Store) indexRecord(it *dispatchItem) {
	if s.index == nil {
		return
	}
	if err := s.index.Put(it.physical, it.storeTime, it.hashes); err != nil {
		s.reportWriteError("index", err)
	}
}

// refillIndex reads records for the index again.
func (s *Store) refillIndex(from, to message.PhysicalOffset, put func(message.PhysicalOffset, int64, []int32) error) error {
	var hashes []int32
	_, err := s.log.Scan(context.Background(), max(from, s.log.Min()), to, commitlog.ScanOptions{}, func(v *message.View) error {
		hashes = v.IndexHashes(hashes[:0], !s.opts.NoTagIndex)
		if len(hashes) == 0 {
			return nil
		}
		return put(v.PhysicalOffset, v.StoreTimestamp, hashes)
	})
	return err
}

// nextRecord returns the position of the first valid record behind at, or
// limit. It is for bytes that were a record once: normally the size field
// still leads to the next one.
func (s *Store) nextRecord(at, limit message.PhysicalOffset) message.PhysicalOffset {
	valid := func(p message.PhysicalOffset) bool {
		_, _, err := s.log.ReadRecord(p, nil, message.CheckOptions{BodyCRC: true})
		return err == nil
	}
	if h, err := s.log.ReadHeader(at); err == nil {
		if next := at + message.PhysicalOffset(h.Size); next <= limit && (next == limit || valid(next)) {
			return next
		}
	}
	chunk := make([]byte, 64<<10)
	for from := at + 1; from < limit; {
		part := chunk[:min(int64(len(chunk)), int64(limit-from))]
		if err := s.log.Read(from, part); err != nil {
			// A page that cannot be read does not hide those behind it.
			part = part[:min(len(part), pageBytes-int(from%pageBytes))]
			if err := s.log.Read(from, part); err != nil {
				from += message.PhysicalOffset(len(part))
				continue
			}
		}
		for i := 0; i+8 <= len(part); i++ {
			if message.IsMagic(part[i+4:]) && valid(from+message.PhysicalOffset(i)) {
				return from + message.PhysicalOffset(i)
			}
		}
		if len(part) < 8 {
			from += message.PhysicalOffset(len(part))
			continue
		}
		from += message.PhysicalOffset(len(part) - 7)
	}
	return limit
}

// pageBytes is what a disk or a mapping fails to read in one piece.
const pageBytes = 4096

// sleep waits for d and reports whether ctx is still alive.
func sleep(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}
