package broker

import (
	"context"
	"errors"
	"strings"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// queryConsumerOffset answers 14 QUERY_CONSUMER_OFFSET (upstream:
// ConsumerManageProcessor). Whether a group that has no offset yet begins with
// the messages that are there, or where its consumers say, is decided here: the
// former when the queue's first message was never removed and is recent.
func (b *Broker) queryConsumerOffset(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.QueryOffsetRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	if off, ok := b.offsets.Query(h.ConsumerGroup, h.Topic, h.QueueID); ok {
		return offsetResponse(off), nil
	}
	first, end, err := b.store.QueueRange(h.Topic, h.QueueID)
	if err != nil && !errors.Is(err, gantry.ErrNotFound) {
		return nil, storeError(err)
	}
	if h.SetZeroIfNotFound && err == nil && first <= 0 && end > 0 && b.recent(h.Topic, h.QueueID, 0) {
		return offsetResponse(0), nil
	}
	return nil, remoting.Errorf(remoting.CodeQueryNotFound, "Not found, V3_0_6_SNAPSHOT maybe this group consumer boot first")
}

// recent reports whether a message lies so near the end of the log that it is
// probably in memory.
func (b *Broker) recent(topic string, queueID int32, off message.QueueOffset) bool {
	at, err := b.store.PhysicalOffsetOf(topic, queueID, off)
	if err != nil {
		return false
	}
	_, end := b.store.Range()
	return int64(end-at) <= b.memory/100*int64(b.config().InMemoryMaxRatio)
}

func offsetResponse(off int64) *remoting.Command {
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.SetHeader(&remoting.OffsetResponse{Offset: off})
	return resp
}

// updateConsumerOffset answers 15 UPDATE_CONSUMER_OFFSET.
func (b *Broker) updateConsumerOffset(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.UpdateOffsetRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	if h.ConsumerGroup == metadata.TransactionGroup {
		return nil, errBrokersOffsets()
	}
	if _, ok := b.groups.Get(h.ConsumerGroup); !ok {
		return nil, remoting.Errorf(remoting.CodeSubscriptionGroupNotExist, "Group %s not exist!", h.ConsumerGroup)
	}
	topic, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, remoting.Errorf(remoting.CodeTopicNotExist, "Topic %s not exist!", h.Topic)
	}
	if h.QueueID < 0 || h.QueueID >= max(topic.ReadQueueNums, topic.WriteQueueNums) {
		return nil, remoting.Errorf(remoting.CodeInvalidParameter, "queueId[%d] is illegal, topic:[%s]", h.QueueID, h.Topic)
	}
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	switch b.offsets.Commit(h.ConsumerGroup, h.Topic, h.QueueID, h.CommitOffset) {
	case metadata.ResetPending:
		resp.Remark = "Offset has been previously reset"
	case metadata.Refused:
		return nil, remoting.Errorf(remoting.CodeSystemError, "there is no room for more consumer offsets")
	}
	return resp, nil
}

// errBrokersOffsets refuses to change the offsets by which the broker knows after
// a restart which transactions are open.
func errBrokersOffsets() error {
	return remoting.Errorf(remoting.CodeNoPermission, "the offsets of group %s are the broker's own", metadata.TransactionGroup)
}

// maxOffset answers 30 GET_MAX_OFFSET; that of a queue without messages is 0.
func (b *Broker) maxOffset(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.MaxOffsetRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	b.awaitDispatch(ctx)
	_, end, err := b.store.QueueRange(h.Topic, h.QueueID)
	if err != nil && !errors.Is(err, gantry.ErrNotFound) {
		return nil, storeError(err)
	}
	return offsetResponse(int64(end)), nil
}

// minOffset answers 31 GET_MIN_OFFSET.
func (b *Broker) minOffset(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.QueueRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	first, _, err := b.store.QueueRange(h.Topic, h.QueueID)
	if err != nil && !errors.Is(err, gantry.ErrNotFound) {
		return nil, storeError(err)
	}
	return offsetResponse(int64(first)), nil
}

// searchOffset answers 29 SEARCH_OFFSET_BY_TIMESTAMP as 5.x does.
func (b *Broker) searchOffset(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.SearchOffsetRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	bound := gantry.Lower
	if strings.EqualFold(h.BoundaryType, "upper") {
		bound = gantry.Upper
	}
	off, _, err := b.store.OffsetByTime(h.Topic, h.QueueID, h.Timestamp, bound)
	if err != nil && !errors.Is(err, gantry.ErrNotFound) {
		return nil, storeError(err)
	}
	return offsetResponse(int64(off)), nil
}

// earliestStoreTime answers 32 GET_EARLIEST_MSG_STORETIME: -1 for a queue
// without messages.
func (b *Broker) earliestStoreTime(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.QueueRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	t := int64(-1)
	if first, end, err := b.store.QueueRange(h.Topic, h.QueueID); err == nil && first < end {
		if at, err := b.store.StoreTimeAt(h.Topic, h.QueueID, first); err == nil {
			t = at
		}
	}
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.SetHeader(&remoting.TimestampResponse{Timestamp: t})
	return resp, nil
}
