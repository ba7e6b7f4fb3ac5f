package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// keepBalance takes the consumer's share of the queues: every 20 s, when it is
// told to, and sooner as long as something could not be done.
func (cs *Consumer) keepBalance(work, handle context.Context) {
	again := rebalanceAgain
	var last time.Time
	for {
		// Many reasons at once are one, and a broker that moves an offset again
		// and again does not keep us busy.
		if sleep(work, rebalancePause-time.Since(last)) != nil {
			return
		}
		last = time.Now()
		wait := rebalanceInterval
		if cs.rebalance(work, handle) {
			again = rebalanceAgain
		} else {
			wait, again = again, min(2*again, rebalanceInterval)
		}
		t := time.NewTimer(wait)
		select {
		case <-work.Done():
			t.Stop()
			return
		case <-cs.rebalanceNow:
		case <-t.C:
		}
		t.Stop()
	}
}

// rebalance makes the consumer's queues its share of each topic. false: not all
// of it could be done.
func (cs *Consumer) rebalance(work, handle context.Context) bool {
	complete := true
	for _, topic := range slices.Sorted(maps.Keys(cs.subs)) {
		share, listed, err := cs.share(work, topic)
		if work.Err() != nil {
			return true
		}
		if err != nil { // what we have stays
			complete = false
			cs.log.Debug("no share of the queues", "topic", topic, "err", err)
			continue
		}
		complete = cs.take(work, handle, topic, share) && listed && complete
	}
	return complete
}

// share returns the queues of a topic that are the consumer's. listed is false,
// and there are none, if the broker does not know that we are in the group:
// others have shared the queues out without us.
func (cs *Consumer) share(ctx context.Context, topic string) (share []remoting.MessageQueue, listed bool, err error) {
	route, err := cs.c.Route(ctx, topic)
	if err != nil {
		return nil, false, err
	}
	queues := route.ReadQueues()
	if cs.opts.Broadcast {
		return queues, true, nil
	}
	members, addr, err := cs.members(ctx, route)
	if err != nil {
		return nil, false, err
	}
	if !slices.Contains(members, cs.c.opts.ClientID) {
		cs.log.Warn("broker does not know that we are in the group", "topic", topic, "broker", addr)
		if err := cs.c.beat(ctx, addr, true); err != nil {
			cs.log.Info("heartbeat failed", "broker", addr, "err", err)
		}
		return nil, false, nil
	}
	return allocate(queues, members, cs.c.opts.ClientID), true, nil
}

// members returns the client ids of the group, from one of the brokers that have
// the topic, the one at addr: all of them should know the same.
func (cs *Consumer) members(ctx context.Context, route *Route) (ids []string, addr string, err error) {
	req := remoting.NewRequest(remoting.ReqGetConsumerListByGroup, &remoting.ConsumerGroupRequest{ConsumerGroup: cs.opts.Group})
	last := error(ErrNoBroker)
	for _, broker := range route.Brokers() {
		addr, err := route.replica(broker, masterID)
		if err != nil {
			continue
		}
		var list remoting.ConsumerList
		resp, err := cs.c.call(ctx, addr, req, cs.c.opts.Timeout)
		if err == nil {
			if err = remoting.DecodeBody(resp.Body, &list); err == nil {
				return list.ConsumerIDs, addr, nil
			}
		}
		last = fmt.Errorf("members of the group: %w", err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, "", last
}

// take stops the queues of a topic that are not the share any more, and starts
// those that are new.
func (cs *Consumer) take(work, handle context.Context, topic string, share []remoting.MessageQueue) (complete bool) {
	var gone []*queue
	var fresh []remoting.MessageQueue
	complete = true
	cs.mu.Lock()
	for mq, q := range cs.mu.queues {
		if mq.Topic == topic && !slices.Contains(share, mq) {
			gone = append(gone, q)
		}
	}
	for _, mq := range share {
		if _, ok := cs.mu.leaving[mq]; ok {
			complete = false
		} else if cs.mu.queues[mq] == nil {
			fresh = append(fresh, mq)
		}
	}
	cs.mu.Unlock()
	for _, q := range gone {
		cs.drop(q, dropCommit)
	}
	locked := time.Now()
	if cs.opts.Orderly && len(fresh) > 0 {
		granted, _ := cs.lock(work, fresh)
		complete = complete && len(granted) == len(fresh)
		fresh = granted
	}
	var left []remoting.MessageQueue
	for _, mq := range fresh {
		offset, err := cs.startOffset(work, mq)
		if err != nil {
			cs.log.Info("no offset to start from", "topic", mq.Topic, "broker", mq.BrokerName, "queueId", mq.QueueID, "err", err)
		}
		if err != nil || !cs.start(work, handle, mq, offset, locked) {
			complete = false
			left = append(left, mq)
		}
	}
	// A lock that we have now is ours at the next time too, if there is one;
	// Close knows of queues that were started only.
	if cs.opts.Orderly && len(left) > 0 && work.Err() != nil {
		cs.unlock(context.WithoutCancel(work), left) // bounded by lockTimeout
	}
	return complete
}

// start starts to consume a queue from an offset, unless the consumer is closed.
func (cs *Consumer) start(work, handle context.Context, mq remoting.MessageQueue, offset int64, locked time.Time) bool {
	q := newQueue(mq, cs.subs[mq.Topic], offset)
	if cs.opts.Orderly {
		q.setLocked(locked)
	}
	ctx, stop := context.WithCancel(work)
	q.stop = stop
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.mu.closed {
		stop()
		return false
	}
	cs.mu.queues[mq] = q
	cs.log.Debug("queue taken", "topic", mq.Topic, "broker", mq.BrokerName, "queueId", mq.QueueID, "queueOffset", offset)
	run := func(f func()) {
		q.running.Add(1)
		cs.loops.Go(func() {
			defer q.running.Done()
			f()
		})
	}
	run(func() { cs.pullLoop(ctx, q) })
	if cs.opts.Orderly {
		run(func() { cs.handOutInOrder(ctx, handle, q) })
	} else {
		run(func() { cs.handOut(ctx, handle, q) })
	}
	return true
}

// dropMode says what happens to the offset of a queue that is dropped: a number
// from 0 on is committed instead of what was consumed.
type dropMode int64

const (
	dropCommit dropMode = -1 // what was consumed is committed, a lock given back
	dropLost   dropMode = -2 // another member has the queue: nothing is touched
)

func dropTo(offset int64) dropMode { return dropMode(offset) }

// drop stops consuming a queue. It returns at once; the queue may come back when
// its goroutines have ended and the offset is committed.
func (cs *Consumer) drop(q *queue, mode dropMode) {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if cs.mu.queues[q.mq] != q || cs.mu.closed { // Close does the rest
		return
	}
	delete(cs.mu.queues, q.mq)
	cs.mu.leaving[q.mq] = struct{}{}
	cs.log.Debug("queue given up", "topic", q.mq.Topic, "broker", q.mq.BrokerName, "queueId", q.mq.QueueID)
	q.stop()
	cs.loops.Go(func() {
		cs.cached.Add(-q.drop())
		q.running.Wait()                                                              // with the handler, if it is read in order
		ctx, cancel := context.WithTimeout(context.Background(), 2*cs.c.opts.Timeout) // after a flush that may be under way
		defer cancel()
		if mode != dropLost {
			if err := cs.commitLast(ctx, q, mode); err != nil {
				cs.log.Warn("offset not committed", "topic", q.mq.Topic, "broker", q.mq.BrokerName, "queueId", q.mq.QueueID, "err", err)
			}
			if cs.opts.Orderly {
				cs.unlock(ctx, []remoting.MessageQueue{q.mq})
			}
		}
		cs.mu.Lock()
		delete(cs.mu.leaving, q.mq)
		cs.mu.Unlock()
		if mode != dropCommit {
			signal(cs.rebalanceNow)
		}
	})
}

// startOffset returns where to start to consume a queue.
func (cs *Consumer) startOffset(ctx context.Context, mq remoting.MessageQueue) (int64, error) {
	var offset int64
	var ok bool
	var err error
	if cs.opts.Broadcast {
		offset, ok = cs.local.get(mq)
	} else {
		offset, ok, err = cs.c.consumerOffset(ctx, cs.opts.Group, mq, !cs.opts.FromStrict)
	}
	if err != nil || ok {
		return offset, err
	}
	retry := strings.HasPrefix(mq.Topic, message.RetryPrefix)
	switch {
	case cs.opts.From == remoting.FromTimestamp && !retry:
		offset, err = cs.c.SearchOffset(ctx, mq, cs.opts.FromTime, false)
	case cs.opts.From == remoting.FromLastOffset && !retry:
		offset, err = cs.c.MaxOffset(ctx, mq)
	default: // of retried messages all
		offset, err = cs.c.MinOffset(ctx, mq)
	}
	return max(offset, 0), err
}
