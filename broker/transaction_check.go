package broker

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// maxAbsence is how long a half message waits for a producer of its group to be
// connected.
const maxAbsence = 24 * time.Hour

// loop asks producers every TransactionCheckInterval.
func (t *transactions) loop(ctx context.Context) {
	for {
		select {
		case <-time.After(t.b.config().TransactionCheckInterval):
			t.checkAll(ctx)
			t.catchUp(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// checkAll asks the producers of all half messages that have waited too long.
func (t *transactions) checkAll(ctx context.Context) {
	now := t.b.now()
	var due []*half
	t.mu.Lock()
	for _, p := range t.order {
		if h := p.half; t.currentLocked(p) && !h.ending && h.due <= now {
			due = append(due, h)
		}
	}
	t.mu.Unlock()
	for _, h := range due {
		if ctx.Err() != nil {
			return
		}
		if err := t.check(ctx, h); err != nil {
			t.b.log.Warn("cannot check a transaction", "queueOffset", h.first, "err", err)
		}
	}
}

// catchUp moves half messages that are far behind those that have ended to the
// end of their queue: what has ended behind the first open one has to be
// remembered, and read at the next start. It does nothing while more are open
// than that would save.
func (t *transactions) catchUp(ctx context.Context) {
	var behind []*half
	t.mu.Lock()
	if n := len(t.ops); n > maxOps {
		recent := t.ops[n-maxOps/2].half
		for _, p := range t.order {
			if p.offset >= recent || len(behind) > n/2 {
				break
			}
			if t.currentLocked(p) {
				behind = append(behind, p.half)
			}
		}
		if len(behind) > n/2 {
			behind = nil
		}
	}
	t.mu.Unlock()
	for _, h := range behind {
		if ctx.Err() != nil {
			return
		}
		if err := t.move(ctx, h); err != nil {
			t.b.log.Warn("cannot move an open transaction to the end of its queue", "queueOffset", h.first, "err", err)
		}
	}
}

// move copies a half message to the end of its queue and changes nothing else.
func (t *transactions) move(ctx context.Context, h *half) error {
	if !t.claim(h) {
		return nil
	}
	gone := false
	defer func() { t.release(h, gone) }()
	m, err := t.b.store.MessageAt(h.physical)
	if err != nil {
		gone = t.lost(err)
		return err
	}
	due := h.due
	_, err = t.copyOf(ctx, h, &m.Message, func(int64) int64 { return due })
	return err
}

// lost reports whether err says that a half message was removed or damaged
// before its outcome was known, and counts that.
func (t *transactions) lost(err error) bool {
	if !errors.Is(err, gantry.ErrNotFound) && !errors.Is(err, gantry.ErrCorrupt) {
		return false
	}
	t.add(&t.stats.Lost)
	return true
}

// check asks the producer for the outcome of h. While none of its group is
// connected, h waits on, for a day: an absent producer does not use up the
// checks.
func (t *transactions) check(ctx context.Context, h *half) error {
	if !t.claim(h) {
		return nil
	}
	gone := false
	defer func() { t.release(h, gone) }()
	producer, present := t.b.clients.Producers.Pick(h.group.Value())
	waited := t.wait(h, present)
	if !present && !h.restored && waited < maxAbsence {
		return nil
	}
	m, err := t.b.store.MessageAt(h.physical)
	if err != nil {
		if gone = t.lost(err); gone {
			return fmt.Errorf("the half message is lost: %w", err)
		}
		return err
	}
	c, err := t.real(&m)
	if err != nil {
		gone = true
		t.add(&t.stats.Lost)
		return err
	}
	if h.restored {
		if t.applied(ctx, &m, c) {
			gone = true
			t.over(h)
			t.count(h, true, t.b.now()-m.BornTimestamp)
			return nil
		}
		h.restored = false // whoever commits from now on does it here
	}
	times := checkTimes(m.Properties)
	switch {
	case times >= int64(t.b.config().TransactionCheckMax), waited >= maxAbsence:
		gone, err = t.giveUp(ctx, &m, h)
		return err
	case !present:
		return nil
	}
	// Upstream asks for a copy, whose number of checks is one higher, and so
	// do we: the queue moves on, and the number survives a crash.
	again := m.Message
	again.Properties = again.Properties.Set(propCheckTimes, strconv.FormatInt(times+1, 10))
	res, err := t.copyOf(ctx, h, &again, func(ms int64) int64 { return t.due(again.Properties, ms) })
	if err != nil {
		return err
	}
	t.add(&t.stats.Checks)
	return t.ask(producer.Conn.(*remoting.Conn), c, &again, res)
}

// wait notes whether a producer could be asked, and returns for how long none
// could.
func (t *transactions) wait(h *half, present bool) time.Duration {
	now := t.b.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case present:
		h.absent = 0
		return 0
	case h.absent == 0:
		h.absent = now
	}
	return time.Duration(now-h.absent) * time.Millisecond
}

func checkTimes(p message.Properties) int64 {
	v, _ := p.Get(propCheckTimes)
	n, err := strconv.ParseInt(v, 10, 32)
	if err != nil {
		return 0
	}
	return max(n, 0)
}

// giveUp moves a half message whose producer never gave an outcome to the topic
// for such messages, where an administrator finds it.
func (t *transactions) giveUp(ctx context.Context, m *message.Ext, h *half) (bool, error) {
	topic, created, err := t.b.topics.CreateTransCheckMaxTime()
	if err != nil {
		return false, err
	}
	if created {
		t.b.topicsChanged(ctx)
	}
	last := m.Message
	last.Topic, last.QueueID, last.StoreHost = topic.TopicName, 0, t.b.storeHost
	last.Properties = last.Properties.Set(message.PropWait, "false")
	if _, err := t.b.store.Put(ctx, &last); err != nil {
		if _, _, stored := putResponse(err); !stored {
			return false, err
		}
	}
	t.over(h)
	t.add(&t.stats.GivenUp)
	t.b.log.Warn("transaction given up: its producer never gave an outcome", "topic", topic.TopicName, "checks", checkTimes(m.Properties), "uniqKey", m.Properties.UniqKey())
	return true, nil
}

// ask sends 39 CHECK_TRANSACTION_STATE for the copy that was stored as res. c is
// the message with its real topic and queue.
func (t *transactions) ask(conn *remoting.Conn, c, copied *message.Message, res gantry.PutResult) error {
	body := *c
	body.Properties, body.SysFlag = copied.Properties, copied.SysFlag
	enc := message.Encoder{MaxMessageSize: len(body.Body)}
	rec, err := enc.Append(nil, &body)
	if err != nil {
		return err
	}
	message.Patch(rec, res.QueueOffset, res.PhysicalOffset, res.StoreTimestamp)
	id := body.Properties.UniqKey()
	req := remoting.NewRequest(remoting.ReqCheckTransactionState, &remoting.CheckTransactionRequest{
		Topic: message.HalfTopic, TranStateTableOffset: int64(res.QueueOffset), CommitLogOffset: int64(res.PhysicalOffset),
		MsgID: id, TransactionID: id, OffsetMsgID: res.MsgID(), BrokerName: t.b.config().BrokerName,
	})
	req.Body = rec
	return conn.InvokeOneway(req)
}
