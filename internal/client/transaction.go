package client

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TransactionState is what became of the transaction that a message belongs to.
type TransactionState int

// The states (upstream: LocalTransactionState).
const (
	TransactionUnknown  TransactionState = iota // the broker will ask later
	TransactionCommit                           // consumers get the message
	TransactionRollback                         // nobody does
)

var transactionStateNames = [...]string{"UNKNOW", "COMMIT_MESSAGE", "ROLLBACK_MESSAGE"}

// String returns upstream's name.
func (s TransactionState) String() string {
	if s >= 0 && int(s) < len(transactionStateNames) {
		return transactionStateNames[s]
	}
	return fmt.Sprintf("TransactionState(%d)", int(s))
}

// flag returns s as END_TRANSACTION carries it.
func (s TransactionState) flag() int32 {
	switch s {
	case TransactionCommit:
		return remoting.TransactionCommit
	case TransactionRollback:
		return remoting.TransactionRollback
	}
	return remoting.TransactionUnknown
}

// SendInTransaction sends m as a half message, calls local, and tells the broker
// what local says. If the half message is not stored safely, local is not
// called and the message is rolled back. m must not be delayed.
//
// An error from telling comes with the result; the broker will ask then, and
// ProducerOptions.Check answer.
func (p *Producer) SendInTransaction(ctx context.Context, m *message.Message,
	local func(ctx context.Context, half SendResult) TransactionState) (SendResult, TransactionState, error) {
	fail := func(err error) (SendResult, TransactionState, error) {
		return SendResult{}, TransactionUnknown, fmt.Errorf("transaction in topic %s: %w", m.Topic, err)
	}
	if level, err := m.DelayLevel(); err != nil || level != 0 {
		return fail(errors.New("half messages cannot be delayed"))
	}
	half := *m
	half.Properties = half.Properties.Set(message.PropTransactionPrepared, "true").Set(message.PropProducerGroup, p.opts.Group)
	out, err := p.prepare(&half, message.TxPrepared)
	if err != nil {
		return fail(err)
	}
	// The broker asks on a connection that it knows us by.
	if err := p.introduce(ctx, out); err != nil {
		return fail(err)
	}
	res, err := p.send(ctx, out)
	if err != nil {
		return fail(err)
	}
	state := TransactionRollback
	if res.Status == SendOK {
		state = local(ctx, res)
	}
	return res, state, p.endTransaction(ctx, out, res, state)
}

// introduce makes sure that the brokers of the topic have heard of the producer,
// those apart that failed lately. It is an error if none has.
func (p *Producer) introduce(ctx context.Context, out *outgoing) error {
	route, err := p.route(ctx, out)
	if err != nil {
		return err
	}
	last := error(ErrNoBroker)
	known := false
	avoided := p.c.avoided()
	for _, broker := range route.Brokers() {
		addr, err := route.Master(broker)
		if err != nil || slices.Contains(avoided, broker) {
			continue
		}
		if last = p.c.beat(ctx, addr, false); last == nil {
			known = true
		} else if ctx.Err() == nil {
			p.c.avoidBroker(broker)
		}
	}
	if !known {
		return last
	}
	return nil
}

// endTransaction tells the broker of a half message what became of it.
func (p *Producer) endTransaction(ctx context.Context, out *outgoing, res SendResult, state TransactionState) error {
	fail := func(err error) error { return fmt.Errorf("end transaction %s: %w", res.MsgID, err) }
	_, at, err := message.ParseOffsetID(res.OffsetMsgID)
	if err != nil {
		return fail(err)
	}
	route, err := p.route(ctx, out)
	if err != nil {
		return fail(err)
	}
	addr, err := route.Master(res.Queue.BrokerName)
	if err != nil {
		return fail(err)
	}
	h := &remoting.EndTransactionRequest{
		Topic: res.Queue.Topic, ProducerGroup: p.opts.Group, TranStateTableOffset: res.QueueOffset, CommitLogOffset: int64(at),
		CommitOrRollback: state.flag(), MsgID: res.MsgID, TransactionID: res.TransactionID,
	}
	if err := p.c.oneway(ctx, addr, remoting.NewRequest(remoting.ReqEndTransaction, h)); err != nil {
		return fail(err)
	}
	return nil
}

// checkTransaction answers 39: the broker asks what became of a half message.
// The answer goes back on the same connection.
func (c *Client) checkTransaction(ctx context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.CheckTransactionRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	all, err := decodeMessages(req.Body)
	if err != nil || len(all) != 1 {
		return nil, fmt.Errorf("transaction check with %d messages: %w", len(all), err)
	}
	m := &all[0]
	group, _ := m.Properties.Get(message.PropProducerGroup)
	c.mu.Lock()
	p := c.mu.producers[group]
	c.mu.Unlock()
	if p == nil || p.opts.Check == nil || !p.enter() {
		c.log.Debug("transaction check for a group that has nobody to ask", "producerGroup", group)
		return nil, nil
	}
	defer p.wg.Done()
	id := m.UniqKey()
	if id == "" {
		id = h.MsgID
	}
	state := p.opts.Check(ctx, m)
	end := remoting.NewRequest(remoting.ReqEndTransaction, &remoting.EndTransactionRequest{
		Topic: h.Topic, ProducerGroup: group, TranStateTableOffset: h.TranStateTableOffset, CommitLogOffset: h.CommitLogOffset,
		CommitOrRollback: state.flag(), FromTransactionCheck: true, MsgID: id, TransactionID: h.TransactionID,
	})
	if err := conn.InvokeOneway(c.sign(end)); err != nil {
		c.log.Info("transaction check not answered", "producerGroup", group, "msgId", id, "err", err)
	}
	return nil, nil
}
