package client

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

const (
	defaultPullMax = 32
	// pullSlack is what a held request may take longer than it asked for: a
	// Java broker looks every 5 s.
	pullSlack = 10 * time.Second
	// pushMaxBytes and pullMaxBytes are what upstream's clients ask for.
	pushMaxBytes = 256 << 10
	pullMaxBytes = math.MaxInt32
)

// PullStatus says what a pull found.
type PullStatus int

// The pull statuses (upstream: PullStatus).
const (
	PullFound   PullStatus = iota // there are messages
	PullNoNew                     // there is nothing at the offset yet
	PullNoMatch                   // what is there does not match the expression
	PullMoved                     // the queue does not have the offset; Next is one that it has
)

var pullStatusNames = [...]string{"FOUND", "NO_NEW_MSG", "NO_MATCHED_MSG", "OFFSET_ILLEGAL"}

func (s PullStatus) String() string {
	if s >= 0 && int(s) < len(pullStatusNames) {
		return pullStatusNames[s]
	}
	return fmt.Sprintf("PullStatus(%d)", int(s))
}

// PullRequest says what a single pull asks for.
type PullRequest struct {
	// Group is the consumer group; nothing is committed for it.
	Group  string
	Queue  remoting.MessageQueue
	Offset int64
	// Max bounds the messages; 0 means 32. Brokers have bounds of their own.
	Max        int
	Expression Expression
	// Hold is how long the broker may wait for a message when there is none.
	Hold time.Duration
}

// PullResult is what a pull found.
type PullResult struct {
	Status   PullStatus
	Messages []message.Ext
	Next     int64 // where to pull next
	Min, Max int64 // the ends of the queue
}

// Pull asks the master of a queue for messages once. Bodies compressed by zlib
// are inflated.
func (c *Client) Pull(ctx context.Context, req PullRequest) (PullResult, error) {
	sub, err := req.Expression.subscribe(req.Queue.Topic, 0)
	if err != nil {
		return PullResult{}, err
	}
	addr, err := c.masterOf(ctx, req.Queue)
	if err != nil {
		return PullResult{}, err
	}
	h := &remoting.PullMessageRequest{
		ConsumerGroup: req.Group, Topic: req.Queue.Topic, QueueID: req.Queue.QueueID, QueueOffset: req.Offset,
		MaxMsgNums: int32(min(cmp.Or(req.Max, defaultPullMax), math.MaxInt32)), SysFlag: remoting.PullSubscription,
		SuspendTimeoutMillis: req.Hold.Milliseconds(), Subscription: sub.SubString, ExpressionType: sub.ExpressionType,
		MaxMsgBytes: pullMaxBytes, RequestSource: -1,
	}
	timeout := c.opts.Timeout
	if req.Hold > 0 {
		h.SysFlag |= remoting.PullSuspend
		timeout = req.Hold + pullSlack
	}
	res, _, err := c.pull(ctx, addr, h, &sub, timeout)
	return res, err
}

// pull sends a pull request and returns the messages that match sub, and the id
// of the replica to ask next.
func (c *Client) pull(ctx context.Context, addr string, h *remoting.PullMessageRequest, sub *remoting.Subscription, timeout time.Duration) (PullResult, int64, error) {
	resp, err := c.invoke(ctx, addr, remoting.NewRequest(remoting.ReqPullMessage, h), timeout)
	if err != nil {
		return PullResult{}, 0, err
	}
	var res PullResult
	switch resp.Code {
	case remoting.CodeSuccess:
		res.Status = PullFound
	case remoting.CodePullNotFound:
		res.Status = PullNoNew
	case remoting.CodePullRetryImmediately:
		res.Status = PullNoMatch
	case remoting.CodePullOffsetMoved:
		res.Status = PullMoved
	default:
		return res, 0, fmt.Errorf("pull from %s: %w", addr, resp.Err())
	}
	var ends remoting.PullMessageResponse
	if err := remoting.DecodeHeader(resp.Ext, &ends); err != nil {
		return res, 0, fmt.Errorf("pull from %s: %w", addr, err)
	}
	res.Next, res.Min, res.Max = ends.NextBeginOffset, ends.MinOffset, ends.MaxOffset
	if back := res.Next < h.QueueOffset || res.Next == h.QueueOffset && res.Status == PullFound; res.Next < 0 || back && res.Status != PullMoved {
		// Going back would hand out the same messages for ever.
		return res, 0, fmt.Errorf("pull from %s at offset %d: next offset %d", addr, h.QueueOffset, res.Next)
	}
	if res.Status != PullFound {
		return res, ends.SuggestWhichBrokerID, nil
	}
	all, err := decodeMessages(resp.Body)
	if err != nil {
		return res, 0, fmt.Errorf("pull from %s at offset %d: %w", addr, h.QueueOffset, err)
	}
	for _, m := range all {
		for _, one := range unwrapBatch(m, message.QueueOffset(h.QueueOffset)) {
			if matches(sub, &one) {
				res.Messages = append(res.Messages, one)
			}
		}
	}
	return res, ends.SuggestWhichBrokerID, nil
}
