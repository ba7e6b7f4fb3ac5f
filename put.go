package gantry

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/message"
)

// PutResult says where a message was stored.
type PutResult struct {
	Topic          string // as stored: the schedule topic for a delayed message
	QueueID        int32
	QueueOffset    message.QueueOffset // of the first message of a batch
	PhysicalOffset message.PhysicalOffset
	StoreTimestamp int64 // ms
	Size           int   // bytes of all records
	Count          int   // messages: 1, or the length of a batch

	storeHost netip.AddrPort
	sizes     []int32 // of each record of a batch; nil for one
}

// MsgID returns the offset message id (RocketMQ: offsetMsgId), for a batch the
// ids joined by commas.
func (r PutResult) MsgID() string {
	if len(r.sizes) == 0 {
		return message.OffsetID(r.storeHost, r.PhysicalOffset)
	}
	ids := make([]string, len(r.sizes))
	at := r.PhysicalOffset
	for i, size := range r.sizes {
		ids[i] = message.OffsetID(r.storeHost, at)
		at += message.PhysicalOffset(size)
	}
	return strings.Join(ids, ",")
}

// Put stores one message and returns where. Under FlushSync it returns when
// the message is on stable storage, except when the message's WAIT property is
// false; ctx bounds that wait only. After an error for which
// errors.Is(err, ErrFlushTimeout) or ctx's error holds, the message is stored
// all the same and the result is valid; when the sync failed that it waited for
// (ErrReadOnly) it may be stored or not, and nobody can know; after every other
// error nothing was stored. Put does not keep m.
//
// A message whose DELAY property is a level above 0 is stored under the
// schedule topic and delivered to its own when its time has come, unless
// Options.NoDelay is set.
func (s *Store) Put(ctx context.Context, m *message.Message) (PutResult, error) {
	if err := s.mayPut(); err != nil {
		return PutResult{}, err
	}
	if m.Body == nil {
		return PutResult{}, illegal("body", "is nil")
	}
	if err := checkNames(m.Topic, m.QueueID); err != nil {
		return PutResult{}, err
	}
	props := m.Properties.Reserved()
	if !s.opts.NoDelay && (props.Delay != "" || props.Timed) && m.SysFlag.Queued() {
		var delayed message.Message
		mm, err := s.scheduled(m, &delayed)
		if err != nil {
			return PutResult{}, err
		}
		m, props = mm, mm.Properties.Reserved()
	}
	return s.put(ctx, m, &props, s.opts.Flush == FlushSync && m.Properties.WaitStoreOK())
}

// put stores a message that has passed the checks of Put, with the reserved
// properties r.
func (s *Store) put(ctx context.Context, m *message.Message, r *message.Reserved, wait bool) (PutResult, error) {
	batchTopic := s.isBatchTopic(m.Topic)
	light := ""
	if s.opts.LightQueues {
		light, _ = m.Properties.Get(message.PropInnerMultiDispatch)
	}
	if m.SysFlag&message.InnerBatch != 0 && !batchTopic {
		return PutResult{}, illegal("sysFlag", "marks an inner batch, but the queues of the topic are simple ones")
	}
	if batchTopic || light != "" || s.opts.LightQueues && message.IsLight(m.Topic) {
		return s.putPrepared(ctx, m, r, batchTopic, light, wait)
	}
	p := s.newPending(s.topicQueue(m.Topic, m.QueueID))
	defer p.release()
	if err := p.add(m, r, 1); err != nil {
		return PutResult{}, err
	}
	res, err := s.append(p, m)
	if errors.Is(err, errRetired) {
		return s.put(ctx, m, r, wait)
	}
	if err != nil {
		return res, err
	}
	return res, s.waitFlushed(ctx, res, wait)
}

// PutBatch stores messages of one topic and queue with consecutive offsets in
// one piece: all of them or none. They share the store time. Delays and
// transactions are refused. See Put for errors and waiting.
func (s *Store) PutBatch(ctx context.Context, msgs []*message.Message) (PutResult, error) {
	if err := s.mayPut(); err != nil {
		return PutResult{}, err
	}
	if len(msgs) == 0 {
		return PutResult{}, illegal("batch", "is empty")
	}
	first := msgs[0]
	if err := checkNames(first.Topic, first.QueueID); err != nil {
		return PutResult{}, err
	}
	if s.isBatchTopic(first.Topic) {
		return PutResult{}, illegal("topic", "has batch queues; send an inner batch")
	}
	if s.opts.LightQueues && message.IsLight(first.Topic) {
		return PutResult{}, illegal("topic", "is a light queue; it takes single messages")
	}
	p := s.newPending(s.topicQueue(first.Topic, first.QueueID))
	defer p.release()
	total := 0
	for i, m := range msgs {
		switch {
		case m.Topic != first.Topic || m.QueueID != first.QueueID:
			return PutResult{}, illegal("batch", "message %d is for %s/%d, the first for %s/%d", i, m.Topic, m.QueueID, first.Topic, first.QueueID)
		case m.Body == nil:
			return PutResult{}, illegal("batch", "the body of message %d is nil", i)
		case m.SysFlag.Transaction() != 0:
			return PutResult{}, illegal("batch", "message %d belongs to a transaction", i)
		}
		if level, err := m.DelayLevel(); err != nil || level > 0 && !s.opts.NoDelay {
			return PutResult{}, illegal("batch", "message %d is delayed", i)
		}
		if total += len(m.Body); total > s.opts.MaxMessageSize {
			return PutResult{}, illegal("batch", "bodies of more than %d bytes in all", s.opts.MaxMessageSize)
		}
		props := m.Properties.Reserved()
		if err := p.add(m, &props, 1); err != nil {
			return PutResult{}, fmt.Errorf("message %d of the batch: %w", i, err)
		}
	}
	res, err := s.append(p, first)
	if errors.Is(err, errRetired) {
		return s.PutBatch(ctx, msgs)
	}
	if err != nil {
		return res, err
	}
	return res, s.waitFlushed(ctx, res, s.opts.Flush == FlushSync && first.Properties.WaitStoreOK())
}

// mayPut says whether the store takes messages now.
func (s *Store) mayPut() error {
	if s.closed.Load() {
		return ErrClosed
	}
	if s.opts.ReadOnly {
		return fmt.Errorf("the store was opened read-only: %w", ErrReadOnly)
	}
	if err := s.failure(); err != nil {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	if s.diskFull.Load() {
		return fmt.Errorf("disk use is above %g %%: %w", s.opts.DiskWarningPercent, ErrDiskFull)
	}
	if since := s.log.LockedSince(); since > 0 && s.opts.Now()-since > s.opts.BusyTimeout.Milliseconds() {
		return ErrBusy
	}
	return nil
}

func illegal(field, format string, args ...any) error {
	return &message.RejectError{Status: ErrMessageIllegal, Field: field, Reason: fmt.Sprintf(format, args...)}
}

// checkNames refuses what could not be dispatched later: a topic names a
// directory.
func checkNames(topic string, queueID int32) error {
	switch {
	case topic == "" || topic == "." || topic == "..":
		return illegal("topic", "is %q", topic)
	case !utf8.ValidString(topic):
		return illegal("topic", "is not UTF-8")
	case strings.ContainsAny(topic, "/\\\x00"):
		return illegal("topic", "holds a separator or NUL: %q", topic)
	case queueID < 0:
		return illegal("queueId", "is %d", queueID)
	}
	return nil
}

// putPrepared stores a message whose properties carry queue offsets: an inner
// batch, or one for light queues. The offsets have to be known before it is
// encoded, so such puts exclude each other.
func (s *Store) putPrepared(ctx context.Context, m *message.Message, r *message.Reserved, batchTopic bool, names string, wait bool) (PutResult, error) {
	res, err := s.appendPrepared(m, batchTopic, names)
	if errors.Is(err, errRetired) {
		return s.put(ctx, m, r, wait) // the next queues may be of the other kind
	}
	if err != nil {
		return res, err
	}
	return res, s.waitFlushed(ctx, res, wait)
}

// appendPrepared is putPrepared without the wait.
func (s *Store) appendPrepared(m *message.Message, batchTopic bool, names string) (PutResult, error) {
	s.prepared.Lock()
	defer s.prepared.Unlock()
	mm := *m
	count := message.QueueOffset(1)
	tq := s.topicQueue(m.Topic, m.QueueID)
	if m.SysFlag&message.InnerBatch != 0 {
		n, err := m.Properties.InnerNum()
		if err != nil {
			return PutResult{}, err
		}
		count = message.QueueOffset(n)
		// Nothing else moves the offset of a batch topic: all its puts hold
		// s.prepared.
		mm.Properties = mm.Properties.Set(message.PropInnerBase, strconv.FormatInt(int64(tq.nextOffset()), 10))
	} else if batchTopic {
		if _, ok := m.Properties.Get(message.PropInnerNum); ok {
			return PutResult{}, illegal(message.PropInnerNum, "stands in a message that is not marked as an inner batch")
		}
	}
	var light []lightTarget
	if names != "" && m.SysFlag.Queued() && message.AllowsLightQueues(m.Topic) {
		var err error
		if light, err = s.lightTargets(names); err != nil {
			return PutResult{}, err
		}
		names, offsets := make([]string, len(light)), make([]message.QueueOffset, len(light))
		for i, l := range light {
			names[i], offsets[i] = l.queue.topic, l.offset
		}
		mm.Properties = mm.Properties.
			Set(message.PropInnerMultiDispatch, strings.Join(names, string(message.LightQueueSep))).
			Set(message.PropInnerMultiQueueOffset, message.JoinOffsets(offsets))
	}
	p := s.newPending(tq)
	defer p.release()
	props := mm.Properties.Reserved()
	if err := p.add(&mm, &props, count); err != nil {
		return PutResult{}, err
	}
	p.items[0].light = light
	return s.append(p, &mm)
}

// lightTarget is a place in a light queue that a message will take.
type lightTarget struct {
	queue  *topicQueue
	offset message.QueueOffset
}

// lightTargets assigns the next offset of each light queue in names. A name
// given twice counts once: the second unit would have no offset of its own
// (RocketMQ 5.4.0 shifts the queue there). The caller holds s.prepared, which
// guards the next offsets of light queues together with the append lock.
func (s *Store) lightTargets(names string) ([]lightTarget, error) {
	var targets []lightTarget
	seen := make(map[string]bool)
	for name := range message.Split(names, message.LightQueueSep) {
		if !message.IsLight(name) {
			return nil, illegal(message.PropInnerMultiDispatch, "names %q, which is no light queue", name)
		}
		if err := checkNames(name, 0); err != nil {
			return nil, err
		}
		if seen[name] {
			continue
		}
		seen[name] = true
		q := s.topicQueue(name, 0)
		targets = append(targets, lightTarget{q, q.nextOffset()})
	}
	return targets, nil
}

// pendingPut is one put on its way into the log. It implements
// commitlog.Appender. Values are pooled: a put allocates nothing in the steady
// state.
type pendingPut struct {
	s     *Store
	queue *topicQueue
	buf   []byte         // the encoded records
	items []dispatchItem // one for each record
	count message.QueueOffset
}

var pendingPool = sync.Pool{New: func() any { return new(pendingPut) }}

// maxPooledBuffer keeps one huge message from pinning its buffer for ever.
const maxPooledBuffer = 1 << 20

func (s *Store) newPending(q *topicQueue) *pendingPut {
	p := pendingPool.Get().(*pendingPut)
	p.s, p.queue = s, q
	return p
}

func (p *pendingPut) release() {
	if cap(p.buf) > maxPooledBuffer {
		p.buf, p.items = nil, nil
	}
	for i := range p.items {
		p.items[i] = dispatchItem{hashes: p.items[i].hashes[:0]}
	}
	*p = pendingPut{buf: p.buf[:0], items: p.items[:0]}
	pendingPool.Put(p)
}

// add encodes m, which has the reserved properties r, as one more record, which
// takes count queue offsets.
func (p *pendingPut) add(m *message.Message, r *message.Reserved, count message.QueueOffset) error {
	start := len(p.buf)
	if !m.StoreHost.IsValid() {
		mm := *m
		mm.StoreHost = p.s.opts.StoreHost
		m = &mm
	}
	buf, err := p.s.encoder.AppendReserved(p.buf, m, r)
	if err != nil {
		return err
	}
	p.buf = buf
	if len(p.items) < cap(p.items) {
		p.items = p.items[:len(p.items)+1]
	} else {
		p.items = append(p.items, dispatchItem{})
	}
	it := &p.items[len(p.items)-1]
	*it = dispatchItem{
		queue:        p.queue,
		size:         int32(len(p.buf) - start),
		count:        count,
		dispatchable: m.SysFlag.Queued(),
		tags:         message.HashTags(r.Tags),
		hashes:       it.hashes[:0],
	}
	if m.Topic == message.ScheduleTopic {
		level, _ := m.DelayLevel() // the encoder has refused what is no number
		it.delay = p.s.delayOf(level)
	}
	if !p.s.opts.NoIndex {
		it.hashes = r.IndexHashes(it.hashes, m.Topic, m.SysFlag, !p.s.opts.NoTagIndex)
	}
	if it.dispatchable {
		p.count += count
	}
	return nil
}

// Fill writes what is only known under the append lock into the records.
func (p *pendingPut) Fill(at message.PhysicalOffset, storeTime int64) ([]byte, error) {
	next := p.queue.nextOffset()
	rest := p.buf
	for i := range p.items {
		it := &p.items[i]
		rec := rest[:it.size]
		rest = rest[it.size:]
		it.queueOffset = 0
		if it.dispatchable {
			it.queueOffset = next
			next += it.count
		}
		it.physical, it.storeTime = at, storeTime
		message.Patch(rec, it.queueOffset, at, storeTime)
		if p.s.opts.PropertyCRC {
			message.SealCRC(rec)
		}
		at += message.PhysicalOffset(it.size)
	}
	return p.buf, nil
}

// Appended hands the records to the dispatcher; the append lock is held.
func (p *pendingPut) Appended(message.PhysicalOffset, int64) {
	p.queue.next.Add(int64(p.count))
	for i := range p.items {
		for _, l := range p.items[i].light {
			l.queue.next.Store(int64(l.offset) + 1)
		}
		p.s.ring.push(&p.items[i])
	}
}

// retired reports whether a queue that p has an offset of was removed.
func (p *pendingPut) retired() bool {
	for i := range p.items {
		for _, l := range p.items[i].light {
			if l.queue.removed.Load() {
				return true
			}
		}
	}
	return p.queue.removed.Load()
}

// append puts p into the log.
func (s *Store) append(p *pendingPut, m *message.Message) (PutResult, error) {
	// Close waits for those who are inside, and lets nobody in afterwards.
	s.gate.RLock()
	defer s.gate.RUnlock()
	if s.closed.Load() {
		return PutResult{}, ErrClosed
	}
	if p.retired() {
		return PutResult{}, errRetired
	}
	at, storeTime, err := s.log.Append(len(p.buf), p)
	if err != nil {
		if PutStatusOf(err) == UnknownError {
			s.stats.writeErrors.Add(1) // neither refused nor full: the disk
		}
		return PutResult{}, fmt.Errorf("put to %s/%d: %w", p.queue.topic, p.queue.id, err)
	}
	res := PutResult{
		Topic: p.queue.topic, QueueID: p.queue.id, QueueOffset: p.items[0].queueOffset,
		PhysicalOffset: at, StoreTimestamp: storeTime, Size: len(p.buf), Count: len(p.items),
		storeHost: m.StoreHost,
	}
	if !res.storeHost.IsValid() {
		res.storeHost = s.opts.StoreHost
	}
	if len(p.items) > 1 {
		res.sizes = make([]int32, len(p.items))
		for i := range p.items {
			res.sizes[i] = p.items[i].size
		}
	}
	s.stats.puts.Add(int64(res.Count))
	s.stats.putBytes.Add(int64(res.Size))
	return res, nil
}

// waitFlushed waits, when wait says so, until what res describes is on stable
// storage.
func (s *Store) waitFlushed(ctx context.Context, res PutResult, wait bool) error {
	if !wait {
		if s.opts.Flush == FlushSync {
			s.log.RequestFlush()
		}
		return nil
	}
	err := s.log.WaitFlushed(ctx, res.PhysicalOffset+message.PhysicalOffset(res.Size))
	if errors.Is(err, commitlog.ErrFlushTimeout) {
		err = fmt.Errorf("%w: %w", ErrFlushTimeout, err)
	}
	return err
}
