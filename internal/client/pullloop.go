package client

import (
	"context"
	"errors"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

const (
	pullAgain     = time.Second           // after an error
	pullFlow      = 20 * time.Millisecond // when the broker asks to slow down
	cacheLook     = 50 * time.Millisecond // while the caches are full
	lockLook      = time.Second           // while the queue is not locked
	quickPull     = 10 * time.Millisecond // a held request that takes less was not held
	quickPulls    = 3                     // so many in a row without a message are not chance
	quickPullWait = 100 * time.Millisecond
)

// pullLoop pulls the messages of a queue until ctx ends or the offset has to be
// asked for again. It owns what comes next in the queue.
func (cs *Consumer) pullLoop(ctx context.Context, q *queue) {
	quick := 0
	for cs.waitRoom(ctx, q) == nil {
		began := time.Now()
		q.lastPull.Store(began.UnixMilli())
		res, err := cs.pullOnce(ctx, q)
		var pause time.Duration
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			pause = cs.pullFailed(ctx, q, err)
		case res.Status == PullMoved:
			cs.log.Info("broker moved the offset", "topic", q.mq.Topic, "broker", q.mq.BrokerName, "queueId", q.mq.QueueID,
				"queueOffset", q.next(), "next", res.Next)
			cs.drop(q, dropTo(res.Next))
			return
		case res.Status == PullFound:
			quick = 0
			cs.cached.Add(q.put(cs.restore(res.Messages), res.Next))
		default:
			q.put(nil, res.Next)
			// A broker that does not hold would have us ask without end.
			if quick++; time.Since(began) > quickPull {
				quick = 0
			} else if quick > quickPulls {
				pause = quickPullWait
			}
		}
		if pause > 0 && sleep(ctx, pause) != nil {
			return
		}
	}
}

// waitRoom waits until the queue may pull.
func (cs *Consumer) waitRoom(ctx context.Context, q *queue) error {
	for ctx.Err() == nil {
		look := cacheLook
		switch {
		case cs.opts.Orderly && !q.locked():
			look = lockLook
		case q.queued() < cs.opts.MaxQueued && cs.cached.Load() < cs.opts.MaxCacheBytes:
			return nil
		}
		t := time.NewTimer(look)
		select {
		case <-ctx.Done():
		case <-q.room:
		case <-t.C:
		}
		t.Stop()
	}
	return ctx.Err()
}

// pullOnce sends one held request.
func (cs *Consumer) pullOnce(ctx context.Context, q *queue) (PullResult, error) {
	route, err := cs.c.Route(ctx, q.mq.Topic)
	if err != nil {
		return PullResult{}, err
	}
	addr, err := route.replica(q.mq.BrokerName, q.replica.Load())
	if err != nil {
		return PullResult{}, err
	}
	// Upstream's clients commit by pulls besides. Such a request, when it is
	// overtaken by a commit, would set the group back.
	h := &remoting.PullMessageRequest{
		ConsumerGroup: cs.opts.Group, Topic: q.mq.Topic, QueueID: q.mq.QueueID, QueueOffset: q.next(),
		MaxMsgNums: int32(cs.opts.PullMax), SysFlag: remoting.PullSuspend, SuspendTimeoutMillis: holdTime.Milliseconds(),
		SubVersion: q.sub.SubVersion, ExpressionType: q.sub.ExpressionType, MaxMsgBytes: pushMaxBytes, RequestSource: -1,
	}
	res, suggested, err := cs.c.pull(ctx, addr, h, &q.sub, holdTimeout)
	if err == nil {
		q.replica.Store(suggested)
	} else if _, answered := Code(err); !answered {
		q.replica.Store(masterID)
	}
	return res, err
}

// pullFailed does what may help after an error, and returns how long to wait.
func (cs *Consumer) pullFailed(ctx context.Context, q *queue, err error) time.Duration {
	code, answered := Code(err)
	switch {
	case answered && code == remoting.CodeFlowControl:
		return pullFlow
	case answered && (code == remoting.CodeSubscriptionNotExist || code == remoting.CodeSubscriptionNotLatest):
		// The broker has forgotten us, or has not heard of us yet.
		if route, err := cs.c.Route(ctx, q.mq.Topic); err == nil {
			if addr, err := route.replica(q.mq.BrokerName, q.replica.Load()); err == nil {
				err = cs.c.beat(ctx, addr, true)
				cs.log.Debug("broker did not know the subscription", "broker", addr, "code", code, "err", err)
			}
		}
		return pullAgain
	case !answered || errors.Is(err, ErrNoBroker):
		cs.c.doubtRoute(q.mq.Topic)
	}
	cs.log.Info("pull failed", "topic", q.mq.Topic, "broker", q.mq.BrokerName, "queueId", q.mq.QueueID, "err", err)
	return pullAgain
}

// restore gives messages that come again the topic that they were sent to.
func (cs *Consumer) restore(ms []message.Ext) []message.Ext {
	for i := range ms {
		if ms[i].Topic == cs.retryTopic {
			if topic, ok := ms[i].Properties.Get(propRetryTopic); ok {
				ms[i].Topic = topic
			}
		}
	}
	return ms
}
