package client

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// keepLocks refreshes the locks of the queues every 20 s. A queue that the
// broker does not grant any more is given up: another member may have read on.
// When a broker does not answer, its queues are not handled after 30 s, and go
// on with the next answer.
func (cs *Consumer) keepLocks(work context.Context) {
	t := time.NewTicker(lockInterval)
	defer t.Stop()
	for {
		select {
		case <-work.Done():
			return
		case <-t.C:
		}
		cs.mu.Lock()
		queues := maps.Clone(cs.mu.queues)
		cs.mu.Unlock()
		began := time.Now()
		granted, silent := cs.lock(work, slices.Collect(maps.Keys(queues)))
		for mq, q := range queues {
			switch {
			case slices.Contains(granted, mq):
				q.setLocked(began)
			case !slices.Contains(silent, mq.BrokerName) && work.Err() == nil:
				cs.log.Warn("lock lost", "topic", mq.Topic, "broker", mq.BrokerName, "queueId", mq.QueueID)
				cs.drop(q, dropLost)
			}
		}
	}
}

// lock asks the brokers to lock queues for us. It returns those that are, and
// the brokers that did not answer. Requests are not given up when ctx ends: one
// that arrives behind the one that unlocks would leave the queue locked.
func (cs *Consumer) lock(ctx context.Context, queues []remoting.MessageQueue) (granted []remoting.MessageQueue, silent []string) {
	for broker, mqs := range byBroker(queues) {
		if ctx.Err() != nil {
			return granted, append(silent, broker)
		}
		locked, err := cs.lockAt(ctx, mqs)
		if err != nil {
			cs.log.Info("queues not locked", "broker", broker, "err", err)
			silent = append(silent, broker)
			continue
		}
		for _, mq := range mqs {
			if slices.Contains(locked, mq) {
				granted = append(granted, mq)
			}
		}
	}
	return granted, silent
}

func (cs *Consumer) lockAt(ctx context.Context, mqs []remoting.MessageQueue) ([]remoting.MessageQueue, error) {
	addr, err := cs.c.masterOf(ctx, mqs[0])
	if err != nil {
		return nil, err
	}
	resp, err := cs.c.call(context.WithoutCancel(ctx), addr, cs.lockRequest(remoting.ReqLockBatchMQ, mqs), lockTimeout)
	if err != nil {
		return nil, err
	}
	var result remoting.LockBatchResult
	err = remoting.DecodeBody(resp.Body, &result)
	return result.Locked, err
}

// unlock gives queues back.
func (cs *Consumer) unlock(ctx context.Context, queues []remoting.MessageQueue) {
	for broker, mqs := range byBroker(queues) {
		addr, err := cs.c.masterOf(ctx, mqs[0])
		if err == nil {
			_, err = cs.c.call(ctx, addr, cs.lockRequest(remoting.ReqUnlockBatchMQ, mqs), lockTimeout)
		}
		if err != nil { // the broker lets them go after a minute
			cs.log.Info("queues not unlocked", "broker", broker, "err", err)
		}
	}
}

func (cs *Consumer) lockRequest(code int32, mqs []remoting.MessageQueue) *remoting.Command {
	req := remoting.NewRequest(code, nil)
	req.Body = remoting.EncodeBody(&remoting.LockBatch{ConsumerGroup: cs.opts.Group, ClientID: cs.c.opts.ClientID, Queues: mqs})
	return req
}

func byBroker(queues []remoting.MessageQueue) map[string][]remoting.MessageQueue {
	all := make(map[string][]remoting.MessageQueue)
	for _, mq := range queues {
		all[mq.BrokerName] = append(all[mq.BrokerName], mq)
	}
	return all
}
