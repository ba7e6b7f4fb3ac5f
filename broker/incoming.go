package broker

import (
	"context"
	"strings"
	"sync/atomic"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/message"
)

// countedStore is the store as requests use it: what they put is counted by topic
// and kind, for the metrics.
type countedStore struct {
	*gantry.Store
	stats *stats
}

func (s countedStore) Put(ctx context.Context, m *message.Message) (gantry.PutResult, error) {
	props := m.Properties.Reserved()
	return s.put(ctx, m, messageKind(&props))
}

// put is Put for a message whose kind is known.
func (s countedStore) put(ctx context.Context, m *message.Message, k kind) (gantry.PutResult, error) {
	res, err := s.Store.Put(ctx, m)
	if res.Count > 0 {
		s.stats.came(m, k, &res)
	}
	return res, err
}

func (s countedStore) PutBatch(ctx context.Context, msgs []*message.Message) (gantry.PutResult, error) {
	res, err := s.Store.PutBatch(ctx, msgs)
	if res.Count > 0 {
		s.stats.came(msgs[0], normal, &res)
	}
	return res, err
}

// kind is what a message is for (upstream: TopicMessageType).
type kind int

const (
	normal kind = iota
	fifo
	delay
	transaction
	kinds
)

func (k kind) String() string { return [...]string{"normal", "fifo", "delay", "transaction"}[k] }

// messageKind tells the kind of a message by its properties.
func messageKind(r *message.Reserved) kind {
	switch {
	case strings.EqualFold(r.TransactionPrepared, "true"):
		return transaction
	case r.ShardingKey != "":
		return fifo
	case r.Delay != "" || r.Timed:
		return delay
	}
	return normal
}

// Upper bounds of the sizes of messages, in bytes, and of the times that
// transactions take, in seconds: upstream's, which calls the latter milliseconds.
var (
	sizeBounds   = []float64{1 << 10, 4 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20}
	finishBounds = []float64{5, 60, 600, 3600, 12 * 3600, 24 * 3600}
)

// incoming counts the messages of one topic and kind, and the sizes of their
// records. Those of a batch count as one, of their average size, as upstream's.
type incoming struct {
	count, bytes atomic.Int64
	sizes        tally
}

func (i *incoming) add(n, size int) {
	i.count.Add(int64(n))
	i.bytes.Add(int64(size))
	i.sizes.add(int64(size/n), sizeBounds)
}

// tally is a histogram without a lock: a scrape may see a value in one of its
// parts and not yet in another.
type tally struct {
	count, sum atomic.Int64
	within     [6]atomic.Int64 // by the first bound that it does not exceed
}

func (h *tally) add(v int64, bounds []float64) {
	h.count.Add(1)
	h.sum.Add(v)
	for i, bound := range bounds {
		if float64(v) <= bound {
			h.within[i].Add(1)
			return
		}
	}
}

// buckets are cumulative, as Prometheus wants them.
func (h *tally) buckets(bounds []float64) map[float64]uint64 {
	of, n := make(map[float64]uint64, len(bounds)), uint64(0)
	for i, bound := range bounds {
		n += uint64(h.within[i].Load())
		of[bound] = n
	}
	return of
}

// came counts messages that were stored for a request: what goes to a retry topic
// or to the dead letters came before, and what the broker notes for itself never
// did.
func (s *stats) came(m *message.Message, k kind, res *gantry.PutResult) {
	if group, ok := strings.CutPrefix(m.Topic, dlqPrefix); ok {
		s.gaveUp(group, m)
		return
	}
	if isRetryTopic(m.Topic) || m.Topic == message.OpHalfTopic {
		return
	}
	if k == transaction && m.Topic == message.HalfTopic {
		if _, again := m.Properties.Get(propFirst); again {
			return // a copy
		}
	}
	s.topic(res.Topic).in[k].add(res.Count, res.Size)
}

// delivered counts a message whose delay is over.
func (s *stats) delivered(topic string, size int) {
	if !isRetryTopic(topic) && !strings.HasPrefix(topic, dlqPrefix) {
		s.topic(topic).in[delay].add(1, size)
	}
}

// gaveUp counts a message that went to the dead letters of a group, by the topic
// that it came from. That is a property, so it has to be a topic that exists.
func (s *stats) gaveUp(group string, m *message.Message) {
	from, _ := m.Properties.Get(propRetryTopic)
	if _, ok := s.b.topics.Get(from); !ok {
		from = retryPrefix + group
	}
	s.group(group, from).dead.Add(1)
}
