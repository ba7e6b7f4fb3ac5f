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

// QueryOptions narrow a query by key.
type QueryOptions struct {
	// From and To bound the store time in ms, both included; To 0 means no
	// upper bound.
	From, To int64
	// Max is the largest number of messages; 0 means all.
	Max int
	// UniqueKey compares the key with UNIQ_KEY only. Otherwise a message is
	// found by UNIQ_KEY and by each word of KEYS.
	UniqueKey bool
	// Tag asks for messages whose TAGS property is the key. Stores written by
	// RocketMQ before 5.4.0 have no index of tags.
	Tag bool
	// Before, when above 0, returns only messages at smaller positions: pass
	// the PhysicalOffset of the last message of one page to get the next.
	Before message.PhysicalOffset
}

// Query returns the messages of a topic that have a key, newest first. Each
// message is read and compared: a hash collision is never returned. Damage on
// the way is joined into the error, beside the messages that could be read.
func (s *Store) Query(ctx context.Context, topic, key string, opts QueryOptions) ([]message.Ext, error) {
	var found []message.Ext
	err := s.QueryRecords(ctx, topic, key, opts, func(rec []byte) error {
		m, err := message.Decode(rec)
		if err == nil {
			found = append(found, m)
		}
		return err
	})
	return found, err
}

// QueryRecords calls fn with each record that Query would return. The bytes
// are fn's to keep. An error of fn ends the query and is returned.
func (s *Store) QueryRecords(ctx context.Context, topic, key string, opts QueryOptions, fn func(rec []byte) error) error {
	switch {
	case s.closed.Load():
		return ErrClosed
	case s.index == nil:
		return fmt.Errorf("query %s by key: the store keeps no index: %w", topic, ErrUnsupported)
	case key == "":
		return fmt.Errorf("query %s by key: the key is empty: %w", topic, ErrNotFound)
	}
	to := opts.To
	if to <= 0 {
		to = math.MaxInt64
	}
	text := key
	if opts.Tag {
		text = tagPrefix + key
	}
	var damage []error
	seen := make(map[message.PhysicalOffset]bool)
	found := 0
	for c, err := range s.index.Lookup(message.IndexKeyHash(topic, text), opts.From, to) {
		if err != nil {
			damage = append(damage, err)
			continue
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if opts.Before > 0 && c.Phy >= opts.Before || seen[c.Phy] {
			continue
		}
		seen[c.Phy] = true
		v, rec, err := s.log.ReadRecord(c.Phy, nil, s.readCheck())
		switch {
		case errors.Is(err, base.ErrNotFound):
			continue // deleted with its file, or behind the end of a shortened log
		case err != nil:
			damage = append(damage, fmt.Errorf("message at %d: %w", c.Phy, err))
			continue
		}
		if v.StoreTimestamp < opts.From || v.StoreTimestamp > to || string(v.TopicBytes()) != topic || !hasKey(&v, key, opts) {
			continue
		}
		if err := fn(rec); err != nil {
			return err
		}
		if found++; found == opts.Max {
			break
		}
	}
	if err := s.index.Degraded(); err != nil {
		damage = append(damage, fmt.Errorf("the index leaves messages out: %w", err))
	}
	return errors.Join(damage...)
}

// Indexed returns store time in ms and position of the newest message in the key
// index; 0 and -1 when there is none.
func (s *Store) Indexed() (storeTime int64, at message.PhysicalOffset) {
	if s.index == nil {
		return 0, -1
	}
	return s.index.Last()
}

// tagPrefix marks tags among the keys of an index (RocketMQ 5.4.0).
const tagPrefix = "T#"

// hasKey reports whether the record carries the key that a query asks for.
func hasKey(v *message.View, key string, opts QueryOptions) bool {
	props := v.Props()
	switch {
	case opts.Tag:
		return props.Tags() == key
	case props.UniqKey() == key:
		return true
	case opts.UniqueKey:
		return false
	}
	for word := range props.Keys() {
		if word == key {
			return true
		}
	}
	return false
}

// Bound chooses which message OffsetByTime looks for.
type Bound int

// The bounds (RocketMQ: BoundaryType).
const (
	Lower Bound = iota // the first message with store time >= the time asked for
	Upper              // the last message with store time <= the time asked for
)

// OffsetByTime finds a message of a queue by store time in ms. When found is
// false no message lies on that side, and the offset is upstream's answer: the
// maximum for Lower, the minimum for Upper. ErrNotFound: no such queue.
//
// Store times never go backwards in logs written by this store; in others the
// answer is one of the possible ones.
func (s *Store) OffsetByTime(topic string, queueID int32, ms int64, bound Bound) (off message.QueueOffset, found bool, err error) {
	if s.closed.Load() {
		return 0, false, ErrClosed
	}
	q := s.queues.Get(topic, queueID)
	if q == nil {
		return 0, false, fmt.Errorf("queue %s/%d: %w", topic, queueID, ErrNotFound)
	}
	lo, hi := q.Min(), q.Max()
	first, err := s.searchTime(q, lo, hi, func(t int64) bool {
		return t >= ms && bound == Lower || t > ms
	})
	if err != nil {
		return 0, false, fmt.Errorf("offset by time in %s/%d: %w", topic, queueID, err)
	}
	if bound == Lower {
		return first, first < hi, nil
	}
	last, ok, err := s.lastBefore(q, lo, first)
	if err != nil {
		return 0, false, fmt.Errorf("offset by time in %s/%d: %w", topic, queueID, err)
	}
	return last, ok, nil
}

// searchTime returns the first offset of [lo, hi) whose message's store time
// satisfies after, or hi. It reads about log2(hi-lo) records, however many have
// equal times.
func (s *Store) searchTime(q *consumequeue.Queue, lo, hi message.QueueOffset, after func(ms int64) bool) (message.QueueOffset, error) {
	if q.Kind() == consumequeue.Simple {
		return q.Search(lo, hi, func(_ message.QueueOffset, u consumequeue.Unit) (bool, error) {
			t, err := s.storeTime(u.Physical)
			return after(t), err
		})
	}
	for lo < hi {
		p, err := placeAt(q, lo+(hi-lo)/2)
		if err != nil {
			return 0, err
		}
		t, err := s.storeTime(p.Physical)
		switch {
		case err != nil:
			return 0, err
		case after(t):
			hi = max(lo, p.offset)
		default:
			lo = p.next()
		}
	}
	return hi, nil
}

// lastBefore returns the offset of the last message of q in [lo, end).
func (s *Store) lastBefore(q *consumequeue.Queue, lo, end message.QueueOffset) (off message.QueueOffset, ok bool, err error) {
	for off := end - 1; off >= lo; off-- {
		p, err := placeAt(q, off)
		if err != nil {
			return lo, false, err
		}
		if p.Valid() {
			return p.offset, true, nil
		}
	}
	return lo, false, nil
}

// storeTime returns the store time of the record at a position, in ms. One
// that has been deleted is older than any other.
func (s *Store) storeTime(at message.PhysicalOffset) (int64, error) {
	h, err := s.log.ReadHeader(at)
	if errors.Is(err, ErrNotFound) && at < s.log.Min() {
		return math.MinInt64, nil
	}
	return h.StoreTimestamp, err
}
