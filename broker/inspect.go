package broker

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// consumerConnections answers 203 GET_CONSUMER_CONNECTION_LIST.
func (b *Broker) consumerConnections(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.ConsumerGroupRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	body := b.clients.Members.Connections(h.ConsumerGroup)
	if body == nil {
		return nil, remoting.Errorf(remoting.CodeConsumerNotOnline, "the consumer group[%s] not online", h.ConsumerGroup)
	}
	return bodyResponse(body), nil
}

// producerConnections answers 204 GET_PRODUCER_CONNECTION_LIST.
func (b *Broker) producerConnections(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.ProducerGroupRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	body := b.clients.Producers.Connections(h.ProducerGroup)
	if body == nil {
		return nil, remoting.Errorf(remoting.CodeSystemError, "the producer group[%s] not exist", h.ProducerGroup)
	}
	return bodyResponse(body), nil
}

// allProducers answers 328 GET_ALL_PRODUCER_INFO.
func (b *Broker) allProducers(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	return bodyResponse(b.clients.Producers.Table()), nil
}

// topicStats answers 202 GET_TOPIC_STATS_INFO.
func (b *Broker) topicStats(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.TopicRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	topic, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, remoting.Errorf(remoting.CodeTopicNotExist, "topic[%s] not exist", h.Topic)
	}
	body := remoting.TopicStats{OffsetTable: make(map[remoting.MessageQueue]remoting.TopicOffset)}
	for id := range max(topic.ReadQueueNums, topic.WriteQueueNums) {
		first, end := b.queueRange(h.Topic, id)
		o := remoting.TopicOffset{MinOffset: int64(first), MaxOffset: int64(end)}
		if end > first {
			o.LastUpdateTimestamp = b.timeAt(h.Topic, id, end-1)
		}
		body.OffsetTable[b.queue(h.Topic, id)] = o
	}
	body.TopicPutTPS = b.stats.putRate(h.Topic)
	return bodyResponse(&body), nil
}

func (b *Broker) queue(topic string, id int32) remoting.MessageQueue {
	return remoting.MessageQueue{Topic: topic, BrokerName: b.config().BrokerName, QueueID: id}
}

// queueRange is the range of a queue; that of one without messages is empty.
func (b *Broker) queueRange(topic string, id int32) (first, end message.QueueOffset) {
	first, end, err := b.store.QueueRange(topic, id)
	if err != nil {
		return 0, 0
	}
	return first, end
}

// timeAt is the store time of a message in ms, 0 when it cannot be read.
func (b *Broker) timeAt(topic string, id int32, off message.QueueOffset) int64 {
	t, err := b.store.StoreTimeAt(topic, id, off)
	if err != nil {
		return 0
	}
	return t
}

// consumeStats answers 208 GET_CONSUME_STATS: how far a group has come in each
// queue, and how far it could.
func (b *Broker) consumeStats(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.ConsumeStatsRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	var topics []string
	for t := range strings.SplitSeq(h.TopicList, ";") {
		if t = strings.TrimSpace(t); t != "" {
			topics = append(topics, t)
		}
	}
	if h.Topic != "" {
		topics = append(topics, h.Topic)
	}
	if len(topics) == 0 {
		topics = b.offsets.Topics(h.ConsumerGroup)
	}
	slices.Sort(topics)
	topics = slices.Compact(topics)
	body := remoting.ConsumeStats{OffsetTable: make(map[remoting.MessageQueue]remoting.ConsumeOffset)}
	for _, t := range topics {
		b.addConsumeStats(&body, h.ConsumerGroup, t)
	}
	return bodyResponse(&body), nil
}

func (b *Broker) addConsumeStats(to *remoting.ConsumeStats, group, name string) {
	topic, ok := b.topics.Get(name)
	if !ok {
		return
	}
	// A group that left a topic keeps its offsets; while it is online, what it
	// subscribes to counts.
	if _, online := b.clients.Members.Group(group); online &&
		b.clients.Members.Subscription(group, name) == nil && len(b.offsets.Queues(group, name)) == 0 {
		return
	}
	committed := b.offsets.Queues(group, name)
	for id := range topic.ReadQueueNums {
		first, end := b.queueRange(name, id)
		// What expired is behind the group: it cannot be consumed any more.
		at := max(committed[id], int64(first))
		o := remoting.ConsumeOffset{
			BrokerOffset: int64(end), ConsumerOffset: at, PullOffset: min(max(at, b.stats.pulledUpTo(group, name, id)), max(at, int64(end))),
		}
		if last := message.QueueOffset(at - 1); last >= first && last < end {
			o.LastTimestamp = b.timeAt(name, id, last)
		}
		to.OffsetTable[b.queue(name, id)] = o
	}
	to.ConsumeTPS += b.stats.getRate(group, name)
}

// brokerConsumeStats answers 317 GET_BROKER_CONSUME_STATS.
func (b *Broker) brokerConsumeStats(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.BrokerConsumeStatsRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	body := remoting.BrokerConsumeStats{BrokerAddr: b.addr}
	for _, group := range b.groups.Names() {
		of := remoting.GroupConsumeStats{Group: group, Stats: []remoting.ConsumeStats{}}
		for _, name := range b.offsets.Topics(group) {
			if t, ok := b.topics.Get(name); !ok || h.IsOrder && !t.Order {
				continue
			}
			s := remoting.ConsumeStats{OffsetTable: make(map[remoting.MessageQueue]remoting.ConsumeOffset)}
			b.addConsumeStats(&s, group, name)
			for _, o := range s.OffsetTable {
				body.TotalDiff += o.BrokerOffset - o.ConsumerOffset
				body.TotalInflightDiff += o.PullOffset - o.ConsumerOffset
			}
			of.Stats = append(of.Stats, s)
		}
		body.Groups = append(body.Groups, of)
	}
	return bodyResponse(&body), nil
}

// topicConsumers answers 300 QUERY_TOPIC_CONSUME_BY_WHO: groups that subscribe to
// a topic now or have offsets in it.
func (b *Broker) topicConsumers(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.TopicRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	groups := append(b.clients.Members.GroupsOf(h.Topic), b.offsets.Groups(h.Topic)...)
	slices.Sort(groups)
	return bodyResponse(&remoting.GroupList{Groups: slices.Compact(groups)}), nil
}

// consumeTimeSpan answers 303 QUERY_CONSUME_TIME_SPAN.
func (b *Broker) consumeTimeSpan(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.TopicGroupRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	topic, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, remoting.Errorf(remoting.CodeTopicNotExist, "topic[%s] not exist", h.Topic)
	}
	var body remoting.TimeSpans
	for id := range topic.WriteQueueNums {
		s := remoting.TimeSpan{Queue: b.queue(h.Topic, id), MinTimeStamp: -1, MaxTimeStamp: -1}
		first, end := b.queueRange(h.Topic, id)
		if end > first {
			s.MinTimeStamp, s.MaxTimeStamp = b.timeAt(h.Topic, id, first), b.timeAt(h.Topic, id, end-1)
		}
		s.ConsumeTimeStamp = s.MinTimeStamp
		at, ok := b.offsets.Query(h.Group, h.Topic, id)
		if last := message.QueueOffset(at - 1); ok && last >= first && last < end {
			s.ConsumeTimeStamp = b.timeAt(h.Topic, id, last)
		}
		if next := message.QueueOffset(at); next >= first && next < end {
			s.DelayTime = max(b.now()-b.timeAt(h.Topic, id, next), 0)
		}
		body.Spans = append(body.Spans, s)
	}
	return bodyResponse(&body), nil
}

// groupTopics answers 343 QUERY_TOPICS_BY_CONSUMER.
func (b *Broker) groupTopics(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.GroupRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	return bodyResponse(&remoting.TopicList{TopicList: b.offsets.Topics(h.Group), BrokerAddr: b.addr}), nil
}

// groupSubscription answers 345 QUERY_SUBSCRIPTION_BY_CONSUMER.
func (b *Broker) groupSubscription(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.SubscriptionRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	body := remoting.SubscriptionAnswer{Group: h.Group, Topic: h.Topic}
	if s := b.clients.Members.Subscription(h.Group, h.Topic); s != nil {
		d := s.Data()
		body.Subscription = &d
	}
	return bodyResponse(&body), nil
}

// Bounds of one answer to 321.
const (
	maxUnits     = 4096
	maxUnitBytes = 4 << 20 // of their records
)

// consumeQueue answers 321 QUERY_CONSUME_QUEUE with units of a queue.
func (b *Broker) consumeQueue(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.QueryQueueRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	first, end, err := b.store.QueueRange(h.Topic, h.QueueID)
	if errors.Is(err, gantry.ErrNotFound) {
		return nil, remoting.Errorf(remoting.CodeSystemError, "%d@%s is not exist!", h.QueueID, h.Topic)
	}
	if err != nil {
		return nil, storeError(err)
	}
	body := remoting.QueueContent{MinQueueIndex: int64(first), MaxQueueIndex: int64(end), Units: []remoting.QueueUnit{}}
	if s := b.clients.Members.Subscription(h.ConsumerGroup, h.Topic); s != nil {
		d := s.Data()
		body.Subscription, body.FilterData = &d, "null"
	} else if h.ConsumerGroup != "" {
		body.FilterData = h.ConsumerGroup + " is not online!"
	}
	if !b.queries.enter(ctx) {
		return nil, ctx.Err()
	}
	defer b.queries.leave()
	got, err := b.store.Get(h.Topic, h.QueueID, message.QueueOffset(max(h.Index, int64(first))), gantry.GetOptions{
		Max: min(max(int(h.Count), 1), maxUnits), MaxBytes: maxUnitBytes,
	})
	if err != nil {
		return nil, storeError(err)
	}
	for _, r := range got.Records {
		m, err := message.Decode(r.Bytes)
		if err != nil {
			continue
		}
		body.Units = append(body.Units, remoting.QueueUnit{
			PhysicOffset: int64(m.PhysicalOffset), PhysicSize: m.StoreSize, TagsCode: int64(message.HashTags(m.Tags())),
		})
	}
	return bodyResponse(&body), nil
}

// allConsumerOffsets answers 43 GET_ALL_CONSUMER_OFFSET.
func (b *Broker) allConsumerOffsets(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	return bodyResponse(b.offsets.Table()), nil
}

// allDelayOffsets answers 45 GET_ALL_DELAY_OFFSET.
func (b *Broker) allDelayOffsets(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
	levels, version := b.store.Delays()
	body := remoting.DelayOffsets{
		DataVersion: &remoting.DataVersion{Timestamp: b.now(), Counter: version}, OffsetTable: make(map[int32]int64, len(levels)),
	}
	for _, l := range levels {
		body.OffsetTable[int32(l.Level)] = int64(l.Next)
	}
	return bodyResponse(&body), nil
}

// clean answers 306, 316 and 329, which ask for cleaning: consume queues need
// none, those of topics that are none any more go, and log files whose time has
// come go now.
func (b *Broker) clean(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	switch cmd.Code {
	case remoting.ReqDeleteExpiredCommitLog:
		if _, err := b.store.Clean(ctx, gantry.CleanOptions{AnyHour: true}); err != nil {
			return nil, storeError(err)
		}
	case remoting.ReqCleanUnusedTopic:
		all := make(map[string]bool)
		for _, q := range b.store.Queues() {
			all[q.Topic] = true
		}
		for _, topic := range slices.Sorted(maps.Keys(all)) {
			// Only now: the removals take time, and topics are made meanwhile.
			if _, ok := b.topics.Get(topic); ok || b.topics.IsSystem(topic) {
				continue
			}
			if err := b.removeQueues(topic); err != nil {
				return nil, err
			}
		}
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// cloneOffsets answers 314 CLONE_GROUP_OFFSET.
func (b *Broker) cloneOffsets(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.CloneOffsetRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	if err := metadata.ValidGroup(h.DestGroup); err != nil {
		return nil, invalidParameter(err)
	}
	if h.DestGroup == metadata.TransactionGroup {
		return nil, errBrokersOffsets()
	}
	topics := []string{h.Topic}
	if h.Topic == "" {
		topics = b.offsets.Topics(h.SrcGroup)
	}
	for _, t := range topics {
		if _, ok := b.topics.Get(t); ok && !isRetryTopic(t) {
			b.offsets.Clone(h.SrcGroup, h.DestGroup, t)
		}
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}
