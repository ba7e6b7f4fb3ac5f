package client

import (
	"context"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

// MaxOffset returns the offset that the next message of a queue will have.
func (c *Client) MaxOffset(ctx context.Context, q remoting.MessageQueue) (int64, error) {
	return c.offset(ctx, q, remoting.ReqGetMaxOffset, &remoting.MaxOffsetRequest{Topic: q.Topic, QueueID: q.QueueID, Committed: true})
}

// MinOffset returns the offset of the first message that a queue still has.
func (c *Client) MinOffset(ctx context.Context, q remoting.MessageQueue) (int64, error) {
	return c.offset(ctx, q, remoting.ReqGetMinOffset, &remoting.QueueRequest{Topic: q.Topic, QueueID: q.QueueID})
}

// SearchOffset returns the offset of the first message of a queue stored at
// time t or later; with upper, of the last one stored at t or before. Java
// brokers of 4.9 answer with the one nearest in time.
func (c *Client) SearchOffset(ctx context.Context, q remoting.MessageQueue, t time.Time, upper bool) (int64, error) {
	h := &remoting.SearchOffsetRequest{Topic: q.Topic, QueueID: q.QueueID, Timestamp: t.UnixMilli(), BoundaryType: "lower"}
	if upper {
		h.BoundaryType = "upper"
	}
	return c.offset(ctx, q, remoting.ReqSearchOffsetByTimestamp, h)
}

// EarliestTime returns when the first message of a queue was stored. The zero
// time means that there is none.
func (c *Client) EarliestTime(ctx context.Context, q remoting.MessageQueue) (time.Time, error) {
	addr, err := c.masterOf(ctx, q)
	if err != nil {
		return time.Time{}, err
	}
	var h remoting.TimestampResponse
	req := remoting.NewRequest(remoting.ReqGetEarliestMsgStoreTime, &remoting.QueueRequest{Topic: q.Topic, QueueID: q.QueueID})
	if err := c.callHeader(ctx, addr, req, &h); err != nil || h.Timestamp < 0 {
		return time.Time{}, err
	}
	return time.UnixMilli(h.Timestamp), nil
}

// ConsumerOffset returns the offset from which a group reads on in a queue. ok
// is false if the broker has none.
func (c *Client) ConsumerOffset(ctx context.Context, group string, q remoting.MessageQueue) (offset int64, ok bool, err error) {
	return c.consumerOffset(ctx, group, q, true)
}

// CommittedOffset is ConsumerOffset, but ok is false also if the broker would
// start the group at the queue's beginning because it is new. Brokers of 4.9 then
// answer 0 all the same.
func (c *Client) CommittedOffset(ctx context.Context, group string, q remoting.MessageQueue) (offset int64, ok bool, err error) {
	return c.consumerOffset(ctx, group, q, false)
}

// consumerOffset is ConsumerOffset. zero lets the broker answer 0 for a group
// that is new when it has all of a queue in memory, as upstream's clients do.
func (c *Client) consumerOffset(ctx context.Context, group string, q remoting.MessageQueue, zero bool) (offset int64, ok bool, err error) {
	offset, err = c.offset(ctx, q, remoting.ReqQueryConsumerOffset,
		&remoting.QueryOffsetRequest{ConsumerGroup: group, Topic: q.Topic, QueueID: q.QueueID, SetZeroIfNotFound: zero})
	switch {
	case hasCode(err, remoting.CodeQueryNotFound):
		return 0, false, nil
	case err != nil:
		return 0, false, err
	}
	return offset, offset >= 0, nil // some clients commit -1
}

// CommitOffset sets the offset from which a group reads on in a queue.
func (c *Client) CommitOffset(ctx context.Context, group string, q remoting.MessageQueue, offset int64) error {
	addr, err := c.masterOf(ctx, q)
	if err != nil {
		return err
	}
	req := remoting.NewRequest(remoting.ReqUpdateConsumerOffset,
		&remoting.UpdateOffsetRequest{ConsumerGroup: group, Topic: q.Topic, QueueID: q.QueueID, CommitOffset: offset})
	_, err = c.call(ctx, addr, req, c.opts.Timeout)
	return err
}

// offset asks the master of a queue for an offset.
func (c *Client) offset(ctx context.Context, q remoting.MessageQueue, code int32, h remoting.Header) (int64, error) {
	addr, err := c.masterOf(ctx, q)
	if err != nil {
		return 0, err
	}
	var resp remoting.OffsetResponse
	err = c.callHeader(ctx, addr, remoting.NewRequest(code, h), &resp)
	return resp.Offset, err
}
