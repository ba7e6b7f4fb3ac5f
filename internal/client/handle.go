package client

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// innerProducer is the group that upstream's clients send retried messages by.
const innerProducer = "CLIENT_INNER_PRODUCER"

const propMaxReconsume = "MAX_RECONSUME_TIMES"

// handOut gives the messages of a queue to handlers, several at a time, until
// work ends. Handlers that run then go on.
func (cs *Consumer) handOut(work, handle context.Context, q *queue) {
	for {
		w := q.take(work, cs.opts.BatchSize)
		if w == nil || !cs.acquireSlot(work) {
			return
		}
		cs.handlers.Go(func() { cs.handleAny(work, handle, q, w) })
	}
}

func (cs *Consumer) acquireSlot(ctx context.Context) bool {
	select {
	case cs.slots <- struct{}{}:
		return true
	case <-ctx.Done():
		return false
	}
}

// handleAny has messages handled, in a slot that was acquired, and gives failed
// ones back to the broker. What cannot be given back is handled again.
func (cs *Consumer) handleAny(work, handle context.Context, q *queue, w *work) {
	for {
		res := cs.callHandler(handle, q, w.ms)
		<-cs.slots
		if q.dropped() {
			cs.cached.Add(-q.done(w)) // another member has them
			return
		}
		if w.ms = cs.settle(handle, q, w.ms, res); len(w.ms) == 0 {
			cs.cached.Add(-q.done(w))
			return
		}
		if sleep(work, sendBackAgain) != nil || !cs.acquireSlot(work) {
			return // they stay unfinished, and come again
		}
		for i := range w.ms {
			w.ms[i].ReconsumeTimes++
		}
	}
}

// callHandler calls the handler with messages of its own: what it does with the
// slice does not matter.
func (cs *Consumer) callHandler(ctx context.Context, q *queue, ms []message.Ext) Result {
	q.lastHandle.Store(time.Now().UnixMilli())
	return cs.opts.Handler(ctx, slices.Clone(ms))
}

// settle returns the messages that are not done with after res: those that
// could not be given back.
func (cs *Consumer) settle(ctx context.Context, q *queue, ms []message.Ext, res Result) (left []message.Ext) {
	if res.kind == resultConsumed {
		return nil
	}
	if cs.opts.Broadcast {
		cs.log.Warn("messages failed, and broadcast ones do not come again", "topic", q.mq.Topic, "broker", q.mq.BrokerName,
			"queueId", q.mq.QueueID, "queueOffset", ms[0].QueueOffset, "count", len(ms))
		return nil
	}
	for i := range ms {
		if err := cs.sendBack(ctx, q.mq.BrokerName, &ms[i], res.level); err != nil {
			cs.log.Warn("failed message not given back, handling it again", "topic", ms[i].Topic, "broker", q.mq.BrokerName,
				"queueId", q.mq.QueueID, "queueOffset", ms[i].QueueOffset, "err", err)
			left = append(left, ms[i])
		}
	}
	return left
}

// handOutInOrder gives the messages of a queue to one handler at a time, until
// work ends, and only while the queue is locked.
func (cs *Consumer) handOutInOrder(work, handle context.Context, q *queue) {
	for {
		w := q.take(work, cs.opts.BatchSize)
		if w == nil {
			return
		}
		for len(w.ms) > 0 {
			if !cs.waitLocked(work, q) || !cs.acquireSlot(work) {
				return
			}
			res := cs.callHandler(handle, q, w.ms)
			<-cs.slots
			if res.kind == resultConsumed {
				break
			}
			// A handler of a queue that left meanwhile was in order still: the
			// queue is unlocked only after it.
			var pause time.Duration
			if w.ms, pause = cs.settleInOrder(handle, q, w.ms, res); len(w.ms) > 0 && sleep(work, pause) != nil {
				return
			}
		}
		cs.cached.Add(-q.done(w))
	}
}

// waitLocked waits until the queue is locked for us.
func (cs *Consumer) waitLocked(ctx context.Context, q *queue) bool {
	for !q.locked() {
		if sleep(ctx, lockLook) != nil {
			return false
		}
	}
	return ctx.Err() == nil
}

// settleInOrder returns the messages that have to be handled again, and when.
// Those that failed too often go to the dead letters.
func (cs *Consumer) settleInOrder(ctx context.Context, q *queue, ms []message.Ext, res Result) (left []message.Ext, pause time.Duration) {
	for i := range ms {
		m := &ms[i]
		over := cs.opts.MaxReconsumeTimes >= 0 && int(m.ReconsumeTimes) >= cs.opts.MaxReconsumeTimes
		if over || res.level < 0 {
			err := cs.sendBack(ctx, q.mq.BrokerName, m, -1)
			if err == nil {
				continue
			}
			cs.log.Warn("dead letter not given back, handling it again", "topic", m.Topic, "broker", q.mq.BrokerName,
				"queueId", q.mq.QueueID, "queueOffset", m.QueueOffset, "err", err)
		} else {
			m.ReconsumeTimes++
		}
		left = append(left, *m)
	}
	pause = suspendPause
	if res.kind == resultSuspend && res.pause > 0 {
		pause = res.pause
	}
	return left, pause
}

// sendBack gives a failed message back to the broker, which makes it come again.
// If the broker does not do so, the message is sent to the group's retry topic.
func (cs *Consumer) sendBack(ctx context.Context, broker string, m *message.Ext, level int32) error {
	h := &remoting.SendBackRequest{
		Offset: int64(m.PhysicalOffset), Group: cs.opts.Group, DelayLevel: level, OriginMsgID: m.MsgID(), OriginTopic: m.Topic,
		MaxReconsumeTimes: cs.maxReconsumeTimes(),
	}
	addr, err := cs.brokerOf(ctx, broker, m)
	if err == nil {
		_, err = cs.c.call(ctx, addr, remoting.NewRequest(remoting.ReqConsumerSendMsgBack, h), sendBackTimeout)
	}
	if err == nil || ctx.Err() != nil {
		return err
	}
	cs.log.Info("failed message not given back, sending it to the retry topic", "topic", m.Topic, "broker", broker, "err", err)
	if serr := cs.sendRetry(ctx, m, level); serr != nil {
		return fmt.Errorf("%w; %w", err, serr)
	}
	return nil
}

const sendBackTimeout = 5 * time.Second

// maxReconsumeTimes is the option as it goes out; without end is upstream's
// largest number.
func (cs *Consumer) maxReconsumeTimes() int32 {
	if cs.opts.MaxReconsumeTimes < 0 {
		return 1<<31 - 1
	}
	return int32(min(cs.opts.MaxReconsumeTimes, 1<<31-1))
}

// brokerOf returns the address of the master that has a message: by name, or
// else what the message itself says.
func (cs *Consumer) brokerOf(ctx context.Context, broker string, m *message.Ext) (string, error) {
	for _, topic := range []string{m.Topic, cs.retryTopic} {
		if route, err := cs.c.Route(ctx, topic); err == nil {
			if addr, err := route.Master(broker); err == nil {
				return addr, nil
			}
		}
	}
	if !m.StoreHost.IsValid() {
		return "", ErrNoBroker
	}
	return m.StoreHost.String(), nil
}

// sendRetry sends a copy of a failed message to the group's retry topic, as
// upstream's clients do when the broker would not.
func (cs *Consumer) sendRetry(ctx context.Context, m *message.Ext, level int32) error {
	if level == 0 {
		level = 3 + m.ReconsumeTimes
	}
	props := m.Properties
	if _, ok := props.Get(propRetryTopic); !ok {
		props = props.Set(propRetryTopic, m.Topic)
	}
	if _, ok := props.Get(propOriginID); !ok {
		props = props.Set(propOriginID, m.MsgID())
	}
	limit := cs.maxReconsumeTimes()
	if level < 0 {
		limit = m.ReconsumeTimes // it comes with one more: the broker takes it for a dead letter
	} else {
		props = props.Set(message.PropDelay, strconv.Itoa(int(level)))
	}
	copied := message.Message{
		Topic: cs.retryTopic, Flag: m.Flag, SysFlag: m.SysFlag, Body: m.Body, Properties: props,
		BornTimestamp: m.BornTimestamp, ReconsumeTimes: m.ReconsumeTimes + 1,
	}
	copied.Properties = copied.Properties.Set(propMaxReconsume, strconv.Itoa(int(limit))).Delete(message.PropTransactionPrepared)
	p := cs.retryProducer()
	out, err := p.prepare(&copied, 0)
	if err != nil {
		return err
	}
	out.header.MaxReconsumeTimes = limit
	if err := cs.c.sending.acquire(ctx, out.size()); err != nil {
		return err
	}
	defer cs.c.sending.release(out.size())
	_, err = p.sendAcquired(ctx, out)
	return err
}

// retryProducer is a producer that no broker has to know.
func (cs *Consumer) retryProducer() *Producer {
	return &Producer{c: cs.c, opts: ProducerOptions{
		Group: innerProducer, Retries: defaultRetries, Timeout: cs.c.opts.Timeout, CompressAbove: defaultCompressAbove,
		MaxMessageSize: maxPlainBody, TopicQueues: defaultTopicQueues,
	}}
}
