package client

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// mux has what brokers ask of clients.
func (c *Client) mux() *remoting.Mux {
	m := remoting.NewMux()
	m.Handle(c.checkTransaction, remoting.ReqCheckTransactionState)
	m.Handle(c.takeReply, remoting.ReqPushReplyMessageToClient)
	m.Handle(c.membersChanged, remoting.ReqNotifyConsumerIDsChanged)
	m.Handle(c.resetOffsets, remoting.ReqResetConsumerClientOffset)
	m.Handle(c.tellOffsets, remoting.ReqGetConsumerStatusFromClient)
	m.Handle(c.tellRunning, remoting.ReqGetConsumerRunningInfo)
	m.Handle(c.consumeDirectly, remoting.ReqConsumeMessageDirectly)
	return m
}

// consumer returns the consumer of a group.
func (c *Client) consumer(group string) (*Consumer, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if cs := c.mu.consumers[group]; cs != nil {
		return cs, nil
	}
	return nil, fmt.Errorf("no consumer of group %s here", group)
}

// membersChanged answers 40: the members of a group have changed.
func (c *Client) membersChanged(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.ConsumerGroupRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	cs, err := c.consumer(h.ConsumerGroup)
	if err != nil {
		return nil, err
	}
	signal(cs.rebalanceNow)
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// resetOffsets answers 220: a broker of 4.9 sets where the group reads on.
func (c *Client) resetOffsets(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.ResetOffsetRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	var table remoting.ResetOffset
	if err := remoting.DecodeBody(req.Body, &table); err != nil {
		return nil, err
	}
	cs, err := c.consumer(h.Group)
	if err != nil {
		return nil, err
	}
	cs.mu.Lock()
	queues := maps.Clone(cs.mu.queues)
	cs.mu.Unlock()
	for mq, offset := range table.OffsetTable {
		if q := queues[mq]; q != nil && mq.Topic == h.Topic && offset >= 0 {
			cs.drop(q, dropTo(offset))
		}
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// tellOffsets answers 221: an admin asks how far we have come.
func (c *Client) tellOffsets(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.ConsumerStatusRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	cs, err := c.consumer(h.Group)
	if err != nil {
		return nil, err
	}
	status := remoting.ConsumerStatus{MessageQueueTable: make(map[remoting.MessageQueue]int64)}
	cs.mu.Lock()
	for mq, q := range cs.mu.queues {
		if mq.Topic == h.Topic {
			status.MessageQueueTable[mq] = q.consumed()
		}
	}
	cs.mu.Unlock()
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.Body = remoting.EncodeBody(&status)
	return resp, nil
}

// tellRunning answers 307: an admin asks what we are doing.
func (c *Client) tellRunning(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.RunningInfoRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	cs, err := c.consumer(h.ConsumerGroup)
	if err != nil {
		return nil, err
	}
	info := remoting.ConsumerRunningInfo{
		Properties: map[string]string{
			"PROP_NAMESERVER_ADDR":          strings.Join(c.opts.NameServers, ";"),
			"PROP_CONSUME_TYPE":             remoting.ConsumePassively.String(),
			"PROP_CONSUMEORDERLY":           strconv.FormatBool(cs.opts.Orderly),
			"PROP_THREADPOOL_CORE_SIZE":     strconv.Itoa(cs.opts.Concurrency),
			"PROP_CONSUMER_START_TIMESTAMP": strconv.FormatInt(cs.started.UnixMilli(), 10),
			"PROP_CLIENT_VERSION":           "V5_3_3", // that of remoting.CurrentVersion
		},
		MQTable:     make(map[remoting.MessageQueue]remoting.ProcessQueueInfo),
		StatusTable: make(map[string]remoting.ConsumeStatus),
	}
	for _, topic := range slices.Sorted(maps.Keys(cs.subs)) {
		info.Subscriptions = append(info.Subscriptions, cs.subs[topic])
		info.StatusTable[topic] = remoting.ConsumeStatus{} // rates are not measured
	}
	cs.mu.Lock()
	for mq, q := range cs.mu.queues {
		info.MQTable[mq] = q.info()
	}
	cs.mu.Unlock()
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.Body = remoting.EncodeBody(&info)
	return resp, nil
}

// consumeDirectly answers 309: an admin has us handle a message again. It does
// not touch any offset.
func (c *Client) consumeDirectly(ctx context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.ConsumeDirectlyRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	all, err := decodeMessages(req.Body)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d messages", len(all))
	}
	if err != nil {
		return nil, err
	}
	cs, err := c.consumer(h.ConsumerGroup)
	if err != nil {
		return nil, err
	}
	if !cs.enter() {
		return nil, ErrClosed
	}
	defer cs.handlers.Done()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-cs.abandoned:
			cancel()
		case <-ctx.Done():
		}
	}()
	if !cs.acquireSlot(ctx) {
		return nil, ctx.Err()
	}
	began := time.Now()
	res := cs.opts.Handler(ctx, cs.restore(all))
	<-cs.slots
	answer := remoting.ConsumeDirectlyResult{
		Order: cs.opts.Orderly, AutoCommit: true, Result: remoting.ConsumedLater, SpentTimeMills: time.Since(began).Milliseconds(),
	}
	if res.kind == resultConsumed {
		answer.Result = remoting.ConsumedSuccess
	}
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.Body = remoting.EncodeBody(&answer)
	return resp, nil
}

// enter counts a handler that Close waits for, unless it is too late.
func (cs *Consumer) enter() bool {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	if !cs.mu.closed {
		cs.handlers.Add(1)
	}
	return !cs.mu.closed
}
