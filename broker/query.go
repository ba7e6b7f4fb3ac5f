package broker

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// Bounds of one query by key. Upstream returns 64 messages at most, and 32 for a
// unique key.
const (
	maxQueryMessages  = 1024
	maxUniqueMessages = 32
	maxQueryBytes     = 8 << 20
)

// dispatchWait bounds how long a query waits until what was stored before it can
// be found: who sends a message and then asks for it finds it.
const dispatchWait = 500 * time.Millisecond

// awaitDispatch waits until everything that was stored before can be read by
// queue and key, or for dispatchWait.
func (b *Broker) awaitDispatch(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, dispatchWait)
	defer cancel()
	_ = b.store.WaitDispatched(ctx) // what is there is the answer then
}

// queryMessage answers 12 QUERY_MESSAGE (upstream: QueryMessageProcessor). Where
// upstream compares hashes, and its client then drops what only has the same
// hash, this broker compares the keys. As upstream does, it answers the newest of
// them, the oldest of those first. For more than fits into one answer, ask again
// with lastKey=N, where N is the position of the first message that came.
func (b *Broker) queryMessage(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.QueryMessageRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	b.awaitDispatch(ctx)
	if !b.queries.enter(ctx) {
		return nil, ctx.Err()
	}
	defer b.queries.leave()
	opts := gantry.QueryOptions{
		From: max(h.BeginTimestamp, 0), To: h.EndTimestamp,
		Max:       min(max(int(h.MaxNum), 1), maxQueryMessages),
		UniqueKey: h.UniqueKeyQuery || h.IndexType == "U",
		Tag:       h.IndexType == "T",
	}
	if opts.UniqueKey {
		opts.Max = maxUniqueMessages
	}
	if at, err := strconv.ParseInt(h.LastKey, 10, 64); err == nil && at > 0 {
		opts.Before = message.PhysicalOffset(at)
	}
	var found [][]byte // the newest first
	size := 0
	full := errors.New("the answer is full")
	err := b.store.QueryRecords(ctx, h.Topic, h.Key, opts, func(rec []byte) error {
		if len(found) > 0 && size+len(rec) > maxQueryBytes {
			return full
		}
		found, size = append(found, rec), size+len(rec)
		return nil
	})
	slices.Reverse(found)
	body := slices.Concat(found...)
	switch {
	case err == nil, errors.Is(err, full), errors.Is(err, gantry.ErrNotFound):
	case len(body) > 0: // damage on the way; the messages that can be read are the answer
		b.log.Error("query met damage", "topic", h.Topic, "err", err)
	default:
		return nil, storeError(err)
	}
	var to remoting.QueryMessageResponse
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	if len(body) == 0 {
		resp.Code, resp.Remark = remoting.CodeQueryNotFound, "can not find message, maybe time range not correct"
	} else {
		t, at := b.store.Indexed()
		to.IndexLastUpdateTimestamp, to.IndexLastUpdatePhyOffset = t, int64(at)
	}
	resp.SetHeader(&to)
	resp.Body = body
	return resp, nil
}

// viewMessage answers 33 VIEW_MESSAGE_BY_ID.
func (b *Broker) viewMessage(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.ViewMessageRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	if !b.queries.enter(ctx) {
		return nil, ctx.Err()
	}
	defer b.queries.leave()
	rec, err := b.store.RecordAt(message.PhysicalOffset(h.Offset))
	if errors.Is(err, gantry.ErrClosed) {
		return nil, storeError(err)
	}
	if err != nil {
		return nil, remoting.Errorf(remoting.CodeSystemError, "can not find message by the offset, %d: %v", h.Offset, err)
	}
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.Body = rec
	return resp, nil
}
