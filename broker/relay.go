package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/membership"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// How long a client may take for a question of an administrator.
const (
	relayTimeout  = 10 * time.Second
	statusTimeout = 5 * time.Second
)

// maxRelays bounds the clients that are asked at a time: each may answer 16 MiB.
const maxRelays = 16

// runningInfo answers 307 GET_CONSUMER_RUNNING_INFO with what the client says.
func (b *Broker) runningInfo(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.RunningInfoRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	return b.relay(ctx, cmd, h.ConsumerGroup, h.ClientID, nil)
}

// consumeDirectly answers 309 CONSUME_MESSAGE_DIRECTLY: the client gets the
// message and says what its listener made of it.
func (b *Broker) consumeDirectly(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.ConsumeDirectlyRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	_, at, err := message.ParseOffsetID(h.MsgID)
	if err != nil {
		return nil, remoting.Errorf(remoting.CodeSystemError, "message id %.64q: %v", h.MsgID, err)
	}
	if !b.queries.enter(ctx) {
		return nil, ctx.Err()
	}
	rec, err := b.store.RecordAt(at)
	b.queries.leave()
	if err != nil {
		return nil, remoting.Errorf(remoting.CodeSystemError, "message id %.64q: %v", h.MsgID, err)
	}
	// Clients look for these beside the fields of the request.
	cmd.Ext.Set("brokerName", b.config().BrokerName)
	cmd.Ext.Set("topicSysFlag", "0")
	cmd.Ext.Set("groupSysFlag", "0")
	return b.relay(ctx, cmd, h.ConsumerGroup, h.ClientID, rec)
}

// relay passes a request on to a client and its answer back.
func (b *Broker) relay(ctx context.Context, cmd *remoting.Command, group, client string, body []byte) (*remoting.Command, error) {
	member, ok := b.clients.Members.Find(group, client)
	if !ok {
		return nil, remoting.Errorf(remoting.CodeSystemError, "The Consumer <%s> <%s> not online", group, client)
	}
	if member.Version < remoting.Version3_1_8 {
		return nil, remoting.Errorf(remoting.CodeSystemError, "The Consumer <%s> Version <%d> too low to finish, please upgrade it to V3_1_8_SNAPSHOT", client, member.Version)
	}
	req := remoting.NewRequest(cmd.Code, nil)
	req.Ext, req.Body = cmd.Ext, body
	ctx, cancel := context.WithTimeout(ctx, relayTimeout)
	defer cancel()
	if !b.relays.tryEnter() {
		return nil, remoting.Errorf(remoting.CodeSystemBusy, "%d clients are being asked already", maxRelays)
	}
	defer b.relays.leave()
	got, err := member.Conn.(*remoting.Conn).Invoke(ctx, req)
	if remoting.IsTimeout(err) {
		return nil, remoting.Errorf(remoting.CodeConsumeMsgTimeout, "consumer <%s> <%s> Timeout: %v", group, client, err)
	}
	if err != nil {
		return nil, remoting.Errorf(remoting.CodeSystemError, "invoke consumer <%s> <%s> Exception: %v", group, client, err)
	}
	resp := remoting.NewResponse(got.Code, got.Remark)
	resp.Ext, resp.Body = got.Ext, got.Body
	return resp, nil
}

// consumerStatus answers 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS: the offsets
// that the clients of a group have in memory.
func (b *Broker) consumerStatus(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.ConsumerStatusRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	members := b.clients.Members.Of(h.Group)
	if len(members) == 0 {
		return nil, remoting.Errorf(remoting.CodeSystemError, "No Any Consumer online in the consumer group: [%s]", h.Group)
	}
	all := remoting.ConsumerStatus{ConsumerTable: make(map[string]map[remoting.MessageQueue]int64)}
	for _, m := range members {
		if (h.ClientAddr == "" || h.ClientAddr == m.ID) && m.Version < remoting.Version3_1_8 {
			return nil, remoting.Errorf(remoting.CodeSystemError, "the client does not support this feature. version=%d", m.Version)
		}
	}
	// Asked side by side, so that silent ones cost one wait.
	ctx, cancel := context.WithTimeout(ctx, statusTimeout)
	defer cancel()
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, m := range members {
		if h.ClientAddr != "" && h.ClientAddr != m.ID || !b.relays.enter(ctx) {
			continue
		}
		wg.Go(func() {
			defer b.relays.leave()
			status, err := b.statusOf(ctx, m, &h)
			if err != nil {
				b.log.Info("client does not say where it is", "group", h.Group, "client", m.ID, "err", err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			all.ConsumerTable[m.ID] = status
		})
	}
	wg.Wait()
	return bodyResponse(&all), nil
}

// statusOf asks one client by 221 GET_CONSUMER_STATUS_FROM_CLIENT.
func (b *Broker) statusOf(ctx context.Context, m membership.Member, h *remoting.ConsumerStatusRequest) (map[remoting.MessageQueue]int64, error) {
	got, err := m.Conn.(*remoting.Conn).Invoke(ctx, remoting.NewRequest(remoting.ReqGetConsumerStatusFromClient,
		&remoting.ConsumerStatusRequest{Topic: h.Topic, Group: h.Group}))
	if err == nil {
		err = got.Err()
	}
	if err != nil {
		return nil, err
	}
	var body remoting.ConsumerStatus
	err = remoting.DecodeBody(got.Body, &body)
	return body.MessageQueueTable, err
}

// resetOffset answers 222 INVOKE_BROKER_TO_RESET_OFFSET. The offsets are reset
// here, and the next pull of each queue is told; that works with every client.
// Without useServerSideResetOffset the clients of the group are told to reset
// theirs, as 4.x does.
func (b *Broker) resetOffset(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.ResetOffsetRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	topic, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, remoting.Errorf(remoting.CodeTopicNotExist, "Topic %s does not exist", h.Topic)
	}
	if _, ok := b.groups.Get(h.Group); !ok {
		return nil, remoting.Errorf(remoting.CodeSubscriptionGroupNotExist, "Group %s does not exist", h.Group)
	}
	if h.Group == metadata.TransactionGroup {
		return nil, errBrokersOffsets()
	}
	if h.QueueID >= topic.ReadQueueNums {
		return nil, remoting.Errorf(remoting.CodeSystemError, "queueId[%d] is illegal: topic %s has %d queues to read", h.QueueID, h.Topic, topic.ReadQueueNums)
	}
	table := make(map[remoting.MessageQueue]int64)
	for id := range topic.ReadQueueNums {
		if h.QueueID >= 0 && id != h.QueueID {
			continue
		}
		to, err := b.resetTarget(&h, id)
		if err != nil {
			return nil, err
		}
		table[remoting.MessageQueue{Topic: h.Topic, BrokerName: b.config().BrokerName, QueueID: id}] = to
	}
	if b.config().UseServerSideResetOffset {
		for q, to := range table {
			if !b.offsets.AssignReset(h.Group, h.Topic, q.QueueID, to) {
				return nil, remoting.Errorf(remoting.CodeSystemError, "cannot reset queue %d to offset %d", q.QueueID, to)
			}
			b.holds.wakeQueue(h.Group, h.Topic, q.QueueID)
		}
	} else if err := b.resetClients(&h, table); err != nil {
		return nil, err
	}
	b.log.Info("consumer offsets reset", "topic", h.Topic, "group", h.Group, "queues", len(table))
	return bodyResponse(&remoting.ResetOffset{OffsetTable: table}), nil
}

// resetTarget is the offset that a request asks for in one queue.
func (b *Broker) resetTarget(h *remoting.ResetOffsetRequest, id int32) (int64, error) {
	first, end, err := b.store.QueueRange(h.Topic, id)
	if errors.Is(err, gantry.ErrNotFound) {
		first, end = 0, 0
	} else if err != nil {
		return 0, storeError(err)
	}
	switch {
	case h.Offset >= 0 && h.QueueID >= 0:
		if h.Offset < int64(first) || h.Offset > int64(end)+1 {
			return 0, remoting.Errorf(remoting.CodeSystemError, "Target offset %d not in consume queue range [%d-%d]", h.Offset, first, end)
		}
		return min(h.Offset, int64(end)), nil
	case h.Timestamp < 0:
		return int64(end), nil
	}
	off, _, err := b.store.OffsetByTime(h.Topic, id, h.Timestamp, gantry.Lower)
	if err != nil && !errors.Is(err, gantry.ErrNotFound) {
		return 0, storeError(err)
	}
	to := int64(off)
	if now, ok := b.offsets.Query(h.Group, h.Topic, id); ok && !h.IsForce && to > now {
		to = now // without force nothing is skipped
	}
	return to, nil
}

// resetClients sends 220 RESET_CONSUMER_CLIENT_OFFSET to all clients of a group.
func (b *Broker) resetClients(h *remoting.ResetOffsetRequest, table map[remoting.MessageQueue]int64) error {
	members := b.clients.Members.Of(h.Group)
	if len(members) == 0 {
		return remoting.Errorf(remoting.CodeConsumerNotOnline, "Consumer not online, so can not reset offset, Group: %s Topic: %s Timestamp: %d", h.Group, h.Topic, h.Timestamp)
	}
	body := remoting.ResetOffset{OffsetTable: table}
	for _, m := range members {
		req := remoting.NewRequest(remoting.ReqResetConsumerClientOffset, &remoting.ResetOffsetRequest{
			Topic: h.Topic, Group: h.Group, Timestamp: h.Timestamp, IsForce: h.IsForce, QueueID: h.QueueID, Offset: h.Offset,
		})
		if req.Body = remoting.EncodeBody(&body); m.Language == remoting.LanguageCPP {
			req.Body = body.EncodeList()
		}
		if err := m.Conn.(*remoting.Conn).InvokeOneway(req); err != nil {
			b.log.Info("client does not get the reset of its offsets", "group", h.Group, "client", m.ID, "err", err)
		}
	}
	return nil
}
