package client

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// A fakeBroker keeps messages in memory.
type fakeBroker struct {
	cl       *cluster
	name     string
	addr     string
	mu       sync.Mutex
	replicas map[int64]string
	topics   map[string]int32 // number of queues
	queues   map[remoting.MessageQueue][]message.PhysicalOffset
	first    map[remoting.MessageQueue]int64 // min offsets
	log      map[message.PhysicalOffset][]byte
	end      message.PhysicalOffset
	offsets  map[string]map[remoting.MessageQueue]int64 // by group
	members  map[string]map[*remoting.Conn]string       // client ids by group and connection
	subs     map[string]map[string]remoting.Subscription
	locks    map[string]map[remoting.MessageQueue]string
	ended    []remoting.EndTransactionRequest
	changed  chan struct{} // closed when messages arrive
}

func (cl *cluster) addBroker(name, addr string) *fakeBroker {
	b := &fakeBroker{
		cl: cl, name: name, addr: addr, topics: make(map[string]int32), queues: make(map[remoting.MessageQueue][]message.PhysicalOffset),
		first: make(map[remoting.MessageQueue]int64), log: make(map[message.PhysicalOffset][]byte), end: 1000,
		offsets: make(map[string]map[remoting.MessageQueue]int64), members: make(map[string]map[*remoting.Conn]string),
		subs: make(map[string]map[string]remoting.Subscription), locks: make(map[string]map[remoting.MessageQueue]string),
		changed: make(chan struct{}),
	}
	cl.brokers[name] = b
	cl.serve(addr, map[int32]answer{
		remoting.ReqSendMessageV2: b.send, remoting.ReqSendBatchMessage: b.send, remoting.ReqSendReplyMessageV2: b.send,
		remoting.ReqPullMessage: b.pull, remoting.ReqHeartBeat: b.heartbeat, remoting.ReqUnregisterClient: b.unregister,
		remoting.ReqGetConsumerListByGroup: b.memberList, remoting.ReqQueryConsumerOffset: b.queryOffset,
		remoting.ReqUpdateConsumerOffset: b.updateOffset, remoting.ReqGetMaxOffset: b.queueEnd, remoting.ReqGetMinOffset: b.queueEnd,
		remoting.ReqSearchOffsetByTimestamp: b.searchOffset, remoting.ReqGetEarliestMsgStoreTime: b.earliest,
		remoting.ReqConsumerSendMsgBack: b.sendBack, remoting.ReqLockBatchMQ: b.lock, remoting.ReqUnlockBatchMQ: b.unlock,
		remoting.ReqEndTransaction: b.endTransaction, remoting.ReqQueryMessage: b.query, remoting.ReqViewMessageByID: b.view,
		remoting.ReqCheckClientConfig: always(remoting.CodeSuccess),
	})
	return b
}

// topic makes a topic with n queues.
func (b *fakeBroker) topic(name string, n int32) {
	b.mu.Lock()
	b.topics[name] = n
	b.mu.Unlock()
}

// store appends messages to a queue.
func (b *fakeBroker) store(mq remoting.MessageQueue, ms ...message.Message) (first int64, ids []string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var enc message.Encoder
	first = int64(len(b.queues[mq])) + b.first[mq]
	for _, m := range ms {
		m.Topic, m.QueueID = mq.Topic, mq.QueueID
		m.StoreHost = parseHost(b.addr)
		rec, err := enc.Append(nil, &m)
		if err != nil {
			b.cl.t.Errorf("store: %v", err)
			return 0, nil
		}
		message.Patch(rec, message.QueueOffset(int64(len(b.queues[mq]))+b.first[mq]), b.end, time.Now().UnixMilli())
		b.log[b.end] = rec
		b.queues[mq] = append(b.queues[mq], b.end)
		ids = append(ids, message.OffsetID(m.StoreHost, b.end))
		b.end += message.PhysicalOffset(len(rec))
	}
	close(b.changed)
	b.changed = make(chan struct{})
	return first, ids
}

func (b *fakeBroker) mq(topic string, id int32) remoting.MessageQueue {
	return remoting.MessageQueue{Topic: topic, BrokerName: b.name, QueueID: id}
}

func (b *fakeBroker) send(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	h, err := remoting.DecodeSendMessage(req)
	if err != nil {
		return nil, err
	}
	b.mu.Lock()
	if _, ok := b.topics[h.Topic]; !ok {
		b.topics[h.Topic] = min(h.DefaultTopicQueueNums, cmp.Or(b.topics[h.DefaultTopic], 1))
	}
	b.mu.Unlock()
	m := message.Message{
		SysFlag: message.SysFlag(h.SysFlag) &^ message.TxRollback, Flag: h.Flag, Body: req.Body, Properties: message.Properties(h.Properties),
		BornTimestamp: h.BornTimestamp, ReconsumeTimes: h.ReconsumeTimes,
	}
	m.Properties = m.Properties.Set(message.PropCluster, "C")
	ms := []message.Message{m}
	if h.Batch {
		ms = nil
		for item, err := range message.SplitBatch(req.Body) {
			if err != nil {
				return nil, err
			}
			ms = append(ms, message.Message{Flag: item.Flag, Body: item.Body, Properties: item.Properties, BornTimestamp: h.BornTimestamp})
		}
	}
	first, ids := b.store(b.mq(h.Topic, h.QueueID), ms...)
	return header(&remoting.SendMessageResponse{
		MsgID: strings.Join(ids, ","), QueueID: h.QueueID, QueueOffset: first, TransactionID: m.UniqKey(), MsgRegion: "R",
	}), nil
}

func (b *fakeBroker) pull(ctx context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.PullMessageRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	if h.SysFlag&remoting.PullSubscription == 0 {
		b.mu.Lock()
		sub, ok := b.subs[h.ConsumerGroup][h.Topic]
		_, member := b.members[h.ConsumerGroup][conn]
		b.mu.Unlock()
		if !ok || !member {
			return remoting.NewResponse(remoting.CodeSubscriptionNotExist, "the group is not known"), nil
		}
		if sub.SubVersion < h.SubVersion {
			return remoting.NewResponse(remoting.CodeSubscriptionNotLatest, "old subscription"), nil
		}
	}
	if h.SysFlag&remoting.PullCommitOffset != 0 {
		b.commit(h.ConsumerGroup, b.mq(h.Topic, h.QueueID), h.CommitOffset)
	}
	hold := time.Duration(h.SuspendTimeoutMillis) * time.Millisecond
	if h.SysFlag&remoting.PullSuspend == 0 {
		hold = 0
	}
	timer := time.NewTimer(hold)
	defer timer.Stop()
	for {
		resp, changed := b.pullNow(&h)
		if resp.Code != remoting.CodePullNotFound || hold == 0 {
			return resp, nil
		}
		select {
		case <-changed:
		case <-timer.C:
			hold = 0
		case <-ctx.Done():
			return nil, nil
		}
	}
}

func (b *fakeBroker) pullNow(h *remoting.PullMessageRequest) (*remoting.Command, chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	mq := b.mq(h.Topic, h.QueueID)
	low := b.first[mq]
	high := low + int64(len(b.queues[mq]))
	r := remoting.PullMessageResponse{MinOffset: low, MaxOffset: high, NextBeginOffset: h.QueueOffset}
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	switch {
	case h.QueueOffset < low:
		resp.Code, r.NextBeginOffset = remoting.CodePullOffsetMoved, low
	case h.QueueOffset > high:
		resp.Code, r.NextBeginOffset = remoting.CodePullOffsetMoved, high
	case h.QueueOffset == high:
		resp.Code = remoting.CodePullNotFound
	default:
		r.NextBeginOffset = min(high, h.QueueOffset+int64(h.MaxMsgNums))
		for i := h.QueueOffset; i < r.NextBeginOffset; i++ {
			resp.Body = append(resp.Body, b.log[b.queues[mq][i-low]]...)
		}
	}
	resp.SetHeader(&r)
	return resp, b.changed
}

func (b *fakeBroker) heartbeat(_ context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.Heartbeat
	if err := remoting.DecodeBody(req.Body, &h); err != nil {
		return nil, err
	}
	b.mu.Lock()
	var tell []*remoting.Conn
	var groups []string
	for _, c := range h.Consumers {
		g := c.GroupName
		b.topics[message.RetryPrefix+g] = 1
		if b.members[g] == nil {
			b.members[g], b.subs[g] = make(map[*remoting.Conn]string), make(map[string]remoting.Subscription)
		}
		if _, ok := b.members[g][conn]; !ok {
			b.members[g][conn] = h.ClientID
			for other := range b.members[g] {
				tell, groups = append(tell, other), append(groups, g)
			}
		}
		for _, s := range c.Subscriptions {
			b.subs[g][s.Topic] = s
		}
	}
	b.mu.Unlock()
	b.notify(tell, groups)
	return header(&remoting.HeartbeatResponse{}), nil
}

func (b *fakeBroker) notify(conns []*remoting.Conn, groups []string) {
	for i, conn := range conns {
		//nolint:errcheck // a closed connection need not know
		conn.InvokeOneway(remoting.NewRequest(remoting.ReqNotifyConsumerIDsChanged, &remoting.ConsumerGroupRequest{ConsumerGroup: groups[i]}))
	}
}

func (b *fakeBroker) unregister(_ context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.UnregisterClientRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	b.leave(h.ConsumerGroup, conn)
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

func (b *fakeBroker) forget(conn *remoting.Conn) {
	b.mu.Lock()
	groups := slices.Collect(maps.Keys(b.members))
	b.mu.Unlock()
	for _, g := range groups {
		b.leave(g, conn)
	}
}

func (b *fakeBroker) leave(group string, conn *remoting.Conn) {
	b.mu.Lock()
	var tell []*remoting.Conn
	var groups []string
	if _, ok := b.members[group][conn]; ok {
		delete(b.members[group], conn)
		for other := range b.members[group] {
			tell, groups = append(tell, other), append(groups, group)
		}
	}
	b.mu.Unlock()
	b.notify(tell, groups)
}

func (b *fakeBroker) memberList(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	ids := slices.Collect(maps.Values(b.members[req.Ext.Value("consumerGroup")]))
	if len(ids) == 0 {
		return remoting.NewResponse(remoting.CodeSystemError, "no consumer for this group"), nil
	}
	return body(&remoting.ConsumerList{ConsumerIDs: ids}), nil
}

func (b *fakeBroker) queryOffset(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.QueryOffsetRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	offset, ok := b.committed(h.ConsumerGroup, b.mq(h.Topic, h.QueueID))
	if !ok {
		return remoting.NewResponse(remoting.CodeQueryNotFound, "no offset"), nil
	}
	return header(&remoting.OffsetResponse{Offset: offset}), nil
}

func (b *fakeBroker) committed(group string, mq remoting.MessageQueue) (int64, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	offset, ok := b.offsets[group][mq]
	return offset, ok
}

func (b *fakeBroker) commit(group string, mq remoting.MessageQueue, offset int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.offsets[group] == nil {
		b.offsets[group] = make(map[remoting.MessageQueue]int64)
	}
	b.offsets[group][mq] = offset
}

func (b *fakeBroker) updateOffset(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.UpdateOffsetRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	b.commit(h.ConsumerGroup, b.mq(h.Topic, h.QueueID), h.CommitOffset)
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

func (b *fakeBroker) queueEnd(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.QueueRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	mq := b.mq(h.Topic, h.QueueID)
	offset := b.first[mq]
	if req.Code == remoting.ReqGetMaxOffset {
		offset += int64(len(b.queues[mq]))
	}
	return header(&remoting.OffsetResponse{Offset: offset}), nil
}

// stored returns the messages of a queue.
func (b *fakeBroker) stored(mq remoting.MessageQueue) []message.Ext {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []message.Ext
	for _, at := range b.queues[mq] {
		m, err := message.Decode(b.log[at])
		if err != nil {
			b.cl.t.Errorf("stored: %v", err)
		}
		all = append(all, m)
	}
	return all
}

func (b *fakeBroker) searchOffset(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.SearchOffsetRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	all := b.stored(b.mq(h.Topic, h.QueueID))
	lower, _ := slices.BinarySearchFunc(all, h.Timestamp, func(m message.Ext, t int64) int { return cmp.Compare(m.StoreTimestamp, t) })
	if strings.EqualFold(h.BoundaryType, "upper") {
		for lower < len(all) && all[lower].StoreTimestamp <= h.Timestamp {
			lower++
		}
		lower--
	}
	return header(&remoting.OffsetResponse{Offset: int64(lower)}), nil
}

func (b *fakeBroker) earliest(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.QueueRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	t := int64(-1)
	if all := b.stored(b.mq(h.Topic, h.QueueID)); len(all) > 0 {
		t = all[0].StoreTimestamp
	}
	return header(&remoting.TimestampResponse{Timestamp: t}), nil
}

// sendBack puts a copy into the retry topic at once, or into the dead letters.
func (b *fakeBroker) sendBack(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.SendBackRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	b.mu.Lock()
	rec := b.log[message.PhysicalOffset(h.Offset)]
	b.mu.Unlock()
	m, err := message.Decode(rec)
	if err != nil {
		return nil, err
	}
	topic := message.RetryPrefix + h.Group
	if h.DelayLevel < 0 || m.ReconsumeTimes >= h.MaxReconsumeTimes {
		topic = message.DLQPrefix + h.Group
	}
	m.ReconsumeTimes++
	if _, ok := m.Properties.Get(propRetryTopic); !ok {
		m.Properties = m.Properties.Set(propRetryTopic, h.OriginTopic)
	}
	b.store(b.mq(topic, 0), m.Message)
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

func (b *fakeBroker) lock(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.LockBatch
	if err := remoting.DecodeBody(req.Body, &h); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.locks[h.ConsumerGroup] == nil {
		b.locks[h.ConsumerGroup] = make(map[remoting.MessageQueue]string)
	}
	held := b.locks[h.ConsumerGroup]
	var res remoting.LockBatchResult
	for _, mq := range h.Queues {
		if held[mq] == "" || held[mq] == h.ClientID {
			held[mq] = h.ClientID
			res.Locked = append(res.Locked, mq)
		}
	}
	return body(&res), nil
}

func (b *fakeBroker) unlock(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.LockBatch
	if err := remoting.DecodeBody(req.Body, &h); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, mq := range h.Queues {
		if b.locks[h.ConsumerGroup][mq] == h.ClientID {
			delete(b.locks[h.ConsumerGroup], mq)
		}
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// lockedBy returns who has a queue locked.
func (b *fakeBroker) lockedBy(group string, mq remoting.MessageQueue) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.locks[group][mq]
}

func (b *fakeBroker) endTransaction(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.EndTransactionRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	b.mu.Lock()
	b.ended = append(b.ended, h)
	b.mu.Unlock()
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// query finds by the hash of the key alone, the newest first, at most pageOf of
// them, as a Java broker does.
const pageOf = 64

func (b *fakeBroker) query(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.QueryMessageRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	want := message.IndexKeyHash(h.Topic, h.Key)
	var found [][]byte
	for _, at := range slices.Backward(slices.Sorted(maps.Keys(b.log))) {
		m, err := message.Decode(b.log[at])
		if err != nil {
			return nil, err
		}
		second := m.StoreTimestamp / 1000 * 1000
		if slices.Contains(message.IndexHashes(nil, m.Topic, m.Properties, m.SysFlag, false), want) &&
			second >= h.BeginTimestamp && second <= h.EndTimestamp && len(found) < min(pageOf, int(h.MaxNum)) {
			found = append(found, b.log[at])
		}
	}
	resp := header(&remoting.QueryMessageResponse{})
	if len(found) == 0 {
		resp.Code = remoting.CodeQueryNotFound
	}
	slices.Reverse(found)
	resp.Body = slices.Concat(found...)
	return resp, nil
}

func (b *fakeBroker) view(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.ViewMessageRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	rec, ok := b.log[message.PhysicalOffset(h.Offset)]
	if !ok {
		return remoting.NewResponse(remoting.CodeSystemError, fmt.Sprintf("no message at %d", h.Offset)), nil
	}
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.Body = rec
	return resp, nil
}
