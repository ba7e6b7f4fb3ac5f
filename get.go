package gantry

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// GetStatus is the outcome of Get (RocketMQ: GetMessageStatus).
type GetStatus int

// The outcomes of Get.
const (
	Found GetStatus = iota
	NoMatchedMessage
	MessageWasRemoving
	OffsetFoundNull
	OffsetOverflowBadly
	OffsetOverflowOne
	OffsetTooSmall
	NoMatchedLogicQueue
	NoMessageInQueue
)

var getStatusNames = [...]string{
	Found:               "FOUND",
	NoMatchedMessage:    "NO_MATCHED_MESSAGE",
	MessageWasRemoving:  "MESSAGE_WAS_REMOVING",
	OffsetFoundNull:     "OFFSET_FOUND_NULL",
	OffsetOverflowBadly: "OFFSET_OVERFLOW_BADLY",
	OffsetOverflowOne:   "OFFSET_OVERFLOW_ONE",
	OffsetTooSmall:      "OFFSET_TOO_SMALL",
	NoMatchedLogicQueue: "NO_MATCHED_LOGIC_QUEUE",
	NoMessageInQueue:    "NO_MESSAGE_IN_QUEUE",
}

// String returns upstream's name.
func (s GetStatus) String() string {
	if s < 0 || int(s) >= len(getStatusNames) {
		return fmt.Sprintf("GetStatus(%d)", int(s))
	}
	return getStatusNames[s]
}

// Limits of one Get when nobody asks for others (RocketMQ:
// maxTransferBytesOnMessageInMemory and its three siblings).
const (
	defaultGetMessages  = 32
	defaultGetBytes     = 256 << 10
	diskGetMessages     = 8
	diskGetBytes        = 64 << 10
	maxExamined         = 800 // units one call looks at: maxFilterMessageSize / 20
	defaultMemoryFactor = 40  // percent of the machine's memory taken for page cache
)

// GetOptions limit and filter what Get returns.
type GetOptions struct {
	// Max is the largest number of messages; 0 means 32.
	Max int
	// MaxBytes bounds the records returned; 0 means 256 KiB. The first message
	// is returned whatever its size.
	MaxBytes int
	// Filter, when not nil, chooses messages.
	Filter Filter
	// WireLimits applies upstream's own limits besides: 32 messages and
	// 256 KiB, or 8 and 64 KiB for messages that are probably not in memory.
	WireLimits bool
}

// Filter chooses messages for Get. Implementations are called on the caller's
// goroutine.
type Filter interface {
	// MatchUnit is asked first, with what the consume queue knows.
	MatchUnit(tags message.TagsCode) bool
	// MatchRecord is asked with the record; v is valid during the call only.
	MatchRecord(v *message.View) bool
}

// Record is one stored message as bytes (format: section 3.1), a copy that the
// caller owns.
type Record struct {
	QueueOffset message.QueueOffset // the place in the queue that was read
	Bytes       []byte
}

// GetResult is what Get found.
type GetResult struct {
	Status GetStatus
	// NextOffset is where to go on.
	NextOffset message.QueueOffset
	// MinOffset and MaxOffset are the queue's limits; MaxOffset is the offset
	// of the next message.
	MinOffset, MaxOffset message.QueueOffset
	Records              []Record
	// Damaged lists the messages on the way that could not be read because
	// bytes violate the format. Reading went on behind them. (It does not go
	// on behind a read that failed: that is Get's error, unless there is
	// something to return before.)
	Damaged []error
}

// Messages decodes the records.
func (r GetResult) Messages() ([]message.Ext, error) {
	out := make([]message.Ext, 0, len(r.Records))
	for _, rec := range r.Records {
		m, err := message.Decode(rec.Bytes)
		if err != nil {
			return out, fmt.Errorf("decode the message at queue offset %d: %w", rec.QueueOffset, err)
		}
		out = append(out, m)
	}
	return out, nil
}

// Get reads messages of one queue from offset on. A queue that does not exist
// is a status, not an error, and reading does not create it. The error is not
// nil when the store is closed or the queue cannot be read at all.
func (s *Store) Get(topic string, queueID int32, offset message.QueueOffset, opts GetOptions) (GetResult, error) {
	if s.closed.Load() {
		return GetResult{}, ErrClosed
	}
	q := s.queues.Get(topic, queueID)
	if q == nil {
		return GetResult{Status: NoMatchedLogicQueue}, nil
	}
	res := GetResult{MinOffset: q.Min(), MaxOffset: q.Max(), NextOffset: offset}
	switch {
	case res.MaxOffset == 0:
		res.Status, res.NextOffset = NoMessageInQueue, 0
		return res, nil
	case offset < res.MinOffset:
		res.Status, res.NextOffset = OffsetTooSmall, res.MinOffset
		return res, nil
	case offset == res.MaxOffset:
		res.Status = OffsetOverflowOne
		return res, nil
	case offset > res.MaxOffset:
		res.Status, res.NextOffset = OffsetOverflowBadly, res.MaxOffset
		return res, nil
	}
	err := s.scanQueue(q, offset, opts, &res)
	return res, err
}

// getLimits are the bounds of one Get for messages in or out of memory.
type getLimits struct {
	max, bytes   int
	wire         bool
	inMemoryFrom message.PhysicalOffset
}

func (s *Store) getLimits(opts GetOptions) getLimits {
	l := getLimits{max: opts.Max, bytes: opts.MaxBytes, wire: opts.WireLimits}
	if l.max <= 0 {
		l.max = defaultGetMessages
	}
	if l.bytes <= 0 {
		l.bytes = defaultGetBytes
	}
	if l.wire {
		l.inMemoryFrom = s.log.End() - message.PhysicalOffset(s.memory/100*defaultMemoryFactor)
	}
	return l
}

// full reports whether a record of size bytes at phy, with add messages, does
// not fit any more beside n messages of used bytes. One record always fits.
func (l getLimits) full(n, used int, phy message.PhysicalOffset, add, size int) bool {
	if n == 0 {
		return false
	}
	maxN, maxBytes := l.max, l.bytes
	if l.wire {
		if phy >= l.inMemoryFrom {
			maxN, maxBytes = min(maxN, defaultGetMessages), min(maxBytes, defaultGetBytes)
		} else {
			maxN, maxBytes = min(maxN, diskGetMessages), min(maxBytes, diskGetBytes)
		}
	}
	return n+add > l.max || n >= maxN || used+size > maxBytes
}

// scanQueue collects messages from offset on into res.
func (s *Store) scanQueue(q *consumequeue.Queue, offset message.QueueOffset, opts GetOptions, res *GetResult) error {
	limits := s.getLimits(opts)
	used, count := 0, 0 // bytes and messages, where an inner batch counts as many
	status := NoMatchedMessage
	r := placeReader{queue: q, next: offset}
	next := offset
loop:
	for range max(maxExamined, limits.max) {
		p, ok, err := r.read()
		if errors.Is(err, ErrNotFound) || err == nil && !ok {
			break // fell below the minimum meanwhile, or the end
		}
		if err != nil {
			return fmt.Errorf("read consume queue %s/%d at %d: %w", q.Topic(), q.ID(), next, err)
		}
		switch {
		case q.Kind() == consumequeue.Simple && !p.Valid() && !p.IsFill():
			s.damagedUnit(res, q, p.offset, base.Corruptf(queueDir, int64(p.offset)*consumequeue.UnitSize, "no unit: %+v", p.Unit))
		case !p.Valid(): // a fill unit: nothing was ever here, or it was lost
		case opts.Filter != nil && !opts.Filter.MatchUnit(s.unitTags(q, p.Unit)):
			status = NoMatchedMessage
		case limits.full(count, used, p.Physical, p.count, int(p.Size)):
			break loop
		default:
			rec, matched, err := s.readUnit(p.Unit, opts.Filter)
			switch {
			case err == nil && matched:
				res.Records = append(res.Records, Record{QueueOffset: p.offset, Bytes: rec})
				used += len(rec)
				count += p.count
			case err == nil:
				status = NoMatchedMessage
			case p.Physical < s.log.Min():
				status = MessageWasRemoving
			case errors.Is(err, errNotYet):
				break loop // never step over what can be read in a moment (R2)
			case errors.Is(err, ErrCorrupt):
				s.damagedUnit(res, q, p.offset, err)
			case next > offset:
				break loop // a read failed: what there is first, then the error
			default:
				return fmt.Errorf("read %s/%d at %d: %w", q.Topic(), q.ID(), p.offset, err)
			}
		}
		next = p.next()
	}
	res.NextOffset = next
	switch {
	case len(res.Records) > 0:
		res.Status = Found
	case next == offset:
		res.Status = OffsetFoundNull
	default:
		res.Status = status
	}
	return nil
}

// damagedUnit notes a message that Get cannot return and goes around.
func (s *Store) damagedUnit(res *GetResult, q *consumequeue.Queue, off message.QueueOffset, err error) {
	err = fmt.Errorf("%s/%d offset %d: %w", q.Topic(), q.ID(), off, err)
	res.Damaged = append(res.Damaged, err)
	s.reportDamage(err)
}

// unitTags returns what a unit says about tags, looking it up in the queue's
// extension where the unit holds an address.
func (s *Store) unitTags(q *consumequeue.Queue, u consumequeue.Unit) message.TagsCode {
	if !consumequeue.IsExtAddress(u.Tags) {
		return u.Tags
	}
	e, err := q.GetExt(u.Tags)
	if err != nil {
		return AnyTags // only weakly reliable: let the record decide
	}
	return e.Tags
}

// readCheck says what is verified of a record that is read.
func (s *Store) readCheck() message.CheckOptions {
	return message.CheckOptions{BodyCRC: !s.opts.SkipCRC}
}

// AnyTags is given to Filter.MatchUnit where the queue does not know the tags:
// the filter must let it pass and judge the record.
const AnyTags message.TagsCode = math.MinInt64

// errNotYet: the record is in the log but may not be read yet.
var errNotYet = errors.New("not readable yet")

// readUnit returns a copy of the record that u points at when filter, if any,
// wants it.
func (s *Store) readUnit(u consumequeue.Unit, filter Filter) (rec []byte, ok bool, err error) {
	if int64(u.Size) > s.log.FileSize() {
		return nil, false, base.Corruptf("consumequeue", 0, "unit claims a record of %d bytes, more than a log file holds", u.Size)
	}
	v, rec, err := s.log.ReadRecord(u.Physical, nil, s.readCheck())
	if err != nil {
		if errors.Is(err, ErrNotFound) && u.Physical >= s.log.Min() {
			err = errNotYet
		}
		return nil, false, err
	}
	if v.Size != u.Size {
		return nil, false, base.Corruptf("consumequeue", 0, "unit says %d bytes, the record at %d has %d", u.Size, u.Physical, v.Size)
	}
	if filter != nil && !filter.MatchRecord(&v) {
		return nil, false, nil
	}
	return rec, true, nil
}

// MessageAt returns the message that starts at a position of the log.
// ErrNotFound: nothing is there, or it has been deleted; ErrCorrupt: the
// position is not that of a record, or the record is damaged.
func (s *Store) MessageAt(at message.PhysicalOffset) (message.Ext, error) {
	rec, err := s.RecordAt(at)
	if err != nil {
		return message.Ext{}, err
	}
	return message.Decode(rec)
}

// RecordAt returns what MessageAt returns as the bytes of its record (format:
// section 3.1), a copy that the caller may keep.
func (s *Store) RecordAt(at message.PhysicalOffset) ([]byte, error) {
	if s.closed.Load() {
		return nil, ErrClosed
	}
	_, rec, err := s.log.ReadRecord(at, nil, s.readCheck())
	if err != nil {
		return nil, fmt.Errorf("message at %d: %w", at, err)
	}
	return rec, nil
}

// MessageByID returns the message with an offset message id. The host in the
// id is not compared: a store does not know all its addresses.
func (s *Store) MessageByID(id string) (message.Ext, error) {
	_, at, err := message.ParseOffsetID(id)
	if err != nil {
		return message.Ext{}, err
	}
	return s.MessageAt(at)
}

// QueueRange returns the offsets of the first message of a queue and of the
// next one to come. ErrNotFound: no such queue.
func (s *Store) QueueRange(topic string, queueID int32) (minOffset, maxOffset message.QueueOffset, err error) {
	q := s.queues.Get(topic, queueID)
	if q == nil {
		return 0, 0, fmt.Errorf("queue %s/%d: %w", topic, queueID, ErrNotFound)
	}
	return q.Min(), q.Max(), nil
}

// PhysicalOffsetOf returns where the message at a queue offset lies in the
// log. ErrNotFound: there is none.
func (s *Store) PhysicalOffsetOf(topic string, queueID int32, off message.QueueOffset) (message.PhysicalOffset, error) {
	q := s.queues.Get(topic, queueID)
	if q == nil {
		return 0, fmt.Errorf("queue %s/%d: %w", topic, queueID, ErrNotFound)
	}
	p, err := placeAt(q, off)
	if err == nil && !p.Valid() {
		err = ErrNotFound
	}
	if err != nil {
		return 0, fmt.Errorf("queue %s/%d offset %d: %w", topic, queueID, off, err)
	}
	return p.Physical, nil
}

// QueueInfo describes one queue.
type QueueInfo struct {
	Topic                string
	QueueID              int32
	MinOffset, MaxOffset message.QueueOffset
	Batch                bool
}

// Queues returns all queues, sorted by topic and queue id.
func (s *Store) Queues() []QueueInfo {
	var out []QueueInfo
	for q := range s.queues.All() {
		out = append(out, QueueInfo{q.Topic(), q.ID(), q.Min(), q.Max(), q.Kind() == consumequeue.Batch})
	}
	sortQueues(out)
	return out
}

// WaitReadable waits until the queue has a message at offset or behind it, or
// ctx ends.
func (s *Store) WaitReadable(ctx context.Context, topic string, queueID int32, offset message.QueueOffset) error {
	for {
		woken := s.readers.wait()
		if q := s.queues.Get(topic, queueID); q != nil && q.Max() > offset {
			return nil
		}
		if s.closed.Load() {
			return ErrClosed
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-woken:
		}
	}
}

// WaitDispatched waits until everything that was put before the call can be
// read by queue and key, or ctx ends.
func (s *Store) WaitDispatched(ctx context.Context) error {
	end := s.log.End()
	for {
		woken := s.readers.wait()
		if message.PhysicalOffset(s.dispatchedTo.Load()) >= end {
			return nil
		}
		if s.closed.Load() {
			return ErrClosed
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-woken:
		}
	}
}
