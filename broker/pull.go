package broker

import (
	"context"
	"strconv"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/membership"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// Bounds of one pull.
const (
	maxPullMessages = 1024
	maxPullBytes    = 256 << 10
)

// Why a pull is forbidden: PullMessageResponse.ForbiddenType (upstream:
// ForbiddenType).
const (
	forbiddenBroker       = 1
	forbiddenGroup        = 2
	forbiddenTopic        = 3
	forbiddenSubscription = 5
)

// pull is a 11 PULL_MESSAGE or 361 LITE_PULL_MESSAGE on its way.
type pull struct {
	b      *Broker
	conn   *remoting.Conn
	cmd    *remoting.Command
	req    remoting.PullMessageRequest
	filter gantry.Filter
	// next is where to look: the offset asked for, or behind it, when what
	// lies between was looked at and not chosen.
	next     message.QueueOffset
	held     bool // it may wait until deadline
	deadline time.Time
	resets   uint64 // of holds, when it looked

	topicSysFlag, groupSysFlag int32
}

// pullMessage answers 11 PULL_MESSAGE and 361 LITE_PULL_MESSAGE (upstream:
// PullMessageProcessor).
func (b *Broker) pullMessage(_ context.Context, c *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	p := &pull{b: b, conn: c, cmd: cmd}
	if err := remoting.DecodeHeader(cmd.Ext, &p.req); err != nil {
		return nil, err
	}
	if resp, err := p.check(); resp != nil || err != nil {
		return resp, err
	}
	if p.req.SysFlag&remoting.PullCommitOffset != 0 && p.req.ConsumerGroup != metadata.TransactionGroup {
		b.offsets.Commit(p.req.ConsumerGroup, p.req.Topic, p.req.QueueID, p.req.CommitOffset)
	}
	p.next = message.QueueOffset(p.req.QueueOffset)
	if p.req.SysFlag&remoting.PullSuspend != 0 && p.req.SuspendTimeoutMillis > 0 {
		p.held = true
		wait := b.config().ShortPolling
		if b.config().LongPolling {
			wait = time.Duration(min(p.req.SuspendTimeoutMillis, maxHold.Milliseconds())) * time.Millisecond
		}
		p.deadline = time.Now().Add(wait)
	}
	if resp := p.again(); resp != nil {
		return resp, nil
	}
	return remoting.Later, nil
}

// check makes sure that the group may read the queue, and finds the filter.
func (p *pull) check() (*remoting.Command, error) {
	b, h := p.b, &p.req
	if b.config().BrokerPermission&remoting.PermRead == 0 {
		return forbidden(forbiddenBroker, "the broker["+b.config().BrokerName+"] pulling message is forbidden")
	}
	group, err := b.findGroup(h.ConsumerGroup)
	if err != nil {
		return nil, err
	}
	if !group.ConsumeEnable {
		return forbidden(forbiddenGroup, "subscription group no permission, "+h.ConsumerGroup)
	}
	if b.groups.IsForbidden(h.ConsumerGroup, h.Topic, remoting.PermRead) {
		return forbidden(forbiddenSubscription, "the consumer group["+h.ConsumerGroup+"] is forbidden for topic["+h.Topic+"]")
	}
	topic, ok := b.topics.Get(h.Topic)
	if !ok {
		return nil, noTopic(h.Topic)
	}
	if topic.Perm&remoting.PermRead == 0 {
		return forbidden(forbiddenTopic, "the topic["+h.Topic+"] pulling message is forbidden")
	}
	if h.QueueID < 0 || h.QueueID >= topic.ReadQueueNums {
		return nil, remoting.Errorf(remoting.CodeInvalidParameter, "queueId[%d] is illegal, topic:[%s] topicConfig.readQueueNums:[%d] consumer:[/%s]",
			h.QueueID, h.Topic, topic.ReadQueueNums, p.conn.RemoteAddr())
	}
	p.topicSysFlag, p.groupSysFlag = topic.TopicSysFlag, group.GroupSysFlag
	return p.subscription(group)
}

// gone is the answer to a pull whose topic was deleted while it waited, or nil.
func (p *pull) gone() *remoting.Command {
	if _, ok := p.b.topics.Get(p.req.Topic); ok {
		return nil
	}
	return remoting.Response(noTopic(p.req.Topic))
}

func noTopic(name string) error {
	return remoting.Errorf(remoting.CodeTopicNotExist, "topic[%s] not exist, apply first please! %s", name, faq)
}

// forbidden is the answer to a pull that permissions rule out.
func forbidden(why int32, remark string) (*remoting.Command, error) {
	resp := remoting.NewResponse(remoting.CodeNoPermission, remark)
	resp.Ext = remoting.Fields{{Name: "forbiddenType", Value: string('0' + rune(why))}}
	return resp, nil
}

// faq ends remarks as upstream's do: people search for them.
const faq = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."

// subscription finds the filter of the pull: in the request, or in what the
// group's heartbeats said.
func (p *pull) subscription(group *remoting.GroupConfig) (_ *remoting.Command, err error) {
	h := &p.req
	var sub *membership.Subscription
	if h.SysFlag&remoting.PullSubscription != 0 {
		sub, err = membership.NewSubscription(h.Topic, h.Subscription, h.ExpressionType)
	} else {
		sub, err = p.b.clients.Members.ForPull(h.ConsumerGroup, h.Topic, h.SubVersion, group.ConsumeBroadcastEnable)
	}
	if err != nil {
		return nil, err
	}
	p.filter, err = p.b.filter(h.Topic, sub)
	return nil, err
}

// again looks for messages and returns the answer, or nil when there is none and
// the pull waits, or nobody is left to be answered.
func (p *pull) again() *remoting.Command {
	for {
		if !p.b.pulls.enter(p.conn.Context()) {
			return nil
		}
		resp, end, waits := p.look()
		p.b.pulls.leave()
		if !waits {
			return resp
		}
		if p.b.holds.add(p, end) {
			return nil
		}
		p.held = false
	}
}

// look reads the queue once. waits says that there was nothing and that the
// pull may wait for something; the queue ended at end then.
func (p *pull) look() (resp *remoting.Command, end message.QueueOffset, waits bool) {
	h := &p.req
	p.resets = p.b.holds.resets.Load()
	if target, ok := p.b.offsets.TakeReset(h.ConsumerGroup, h.Topic, h.QueueID); ok {
		return p.moved(target), 0, false
	}
	got, err := p.b.store.Get(h.Topic, h.QueueID, p.next, gantry.GetOptions{
		Max: min(max(int(h.MaxMsgNums), 1), maxPullMessages), MaxBytes: p.maxBytes(), Filter: p.filter,
	})
	if err != nil {
		return remoting.Response(storeError(err)), 0, false
	}
	p.b.stats.pulledTo(h.ConsumerGroup, h.Topic, h.QueueID, int64(got.NextOffset))
	for _, d := range got.Damaged {
		p.b.log.Error("message cannot be read", "topic", h.Topic, "queueID", h.QueueID, "err", d)
	}
	if got.Status == gantry.NoMatchedLogicQueue { // the topic has the queue, only nothing in it
		got.Status = gantry.NoMessageInQueue
	}
	code := pullCode(got.Status, p.next)
	if p.mayWait(code, &got) {
		if code == remoting.CodePullRetryImmediately {
			p.next = got.NextOffset
		}
		return nil, got.MaxOffset, true
	}
	return p.answer(code, &got), 0, false
}

func (p *pull) maxBytes() int {
	if n := int(p.req.MaxMsgBytes); n > 0 {
		return min(n, maxPullBytes)
	}
	return maxPullBytes
}

// mayWait reports whether a pull with this outcome waits: at the end of the
// queue, also when all up to there was looked at and not chosen.
func (p *pull) mayWait(code int32, got *gantry.GetResult) bool {
	if !p.held || !time.Now().Before(p.deadline) {
		return false
	}
	return code == remoting.CodePullNotFound ||
		code == remoting.CodePullRetryImmediately && got.Status == gantry.NoMatchedMessage && got.NextOffset >= got.MaxOffset
}

// pullCode maps the outcome of a read to the code of the answer.
func pullCode(status gantry.GetStatus, asked message.QueueOffset) int32 {
	switch status {
	case gantry.Found:
		return remoting.CodeSuccess
	case gantry.NoMatchedMessage, gantry.MessageWasRemoving:
		return remoting.CodePullRetryImmediately
	case gantry.OffsetFoundNull, gantry.OffsetOverflowOne:
		return remoting.CodePullNotFound
	case gantry.NoMessageInQueue, gantry.NoMatchedLogicQueue:
		if asked == 0 {
			return remoting.CodePullNotFound
		}
		return remoting.CodePullOffsetMoved
	case gantry.OffsetTooSmall, gantry.OffsetOverflowBadly:
		return remoting.CodePullOffsetMoved
	}
	return remoting.CodeSystemError
}

// answer makes the answer for what was found.
func (p *pull) answer(code int32, got *gantry.GetResult) *remoting.Command {
	resp := remoting.NewResponse(code, got.Status.String())
	if code == remoting.CodePullNotFound && p.next > message.QueueOffset(p.req.QueueOffset) {
		// Between what was asked for and next is nothing for this consumer:
		// it need not look there again.
		resp.Code, resp.Remark = remoting.CodePullRetryImmediately, gantry.NoMatchedMessage.String()
	}
	p.header(resp, got.NextOffset, got.MinOffset, got.MaxOffset)
	if code == remoting.CodeSuccess {
		size := 0
		for _, r := range got.Records {
			size += len(r.Bytes)
		}
		if len(got.Records) == 1 { // it may be a long one
			resp.Body = got.Records[0].Bytes
		} else {
			resp.Body = make([]byte, 0, size)
			for _, r := range got.Records {
				resp.Body = append(resp.Body, r.Bytes...)
			}
		}
		p.b.stats.got(p.req.ConsumerGroup, p.req.Topic, len(got.Records), size)
	} else {
		p.b.stats.miss()
	}
	return resp
}

// moved answers that the consumer has to go on at another offset, because an
// administrator reset it.
func (p *pull) moved(to int64) *remoting.Command {
	first, end, err := p.b.store.QueueRange(p.req.Topic, p.req.QueueID)
	if err != nil {
		first, end = 0, 0
	}
	resp := remoting.NewResponse(remoting.CodePullOffsetMoved, "OFFSET_RESET")
	p.header(resp, message.QueueOffset(to), first, end)
	return resp
}

// header sets the fields that the answers to pulls have; 5.x has the flags also
// when they are 0.
func (p *pull) header(resp *remoting.Command, next, first, end message.QueueOffset) {
	resp.SetHeader(&remoting.PullMessageResponse{NextBeginOffset: int64(next), MinOffset: int64(first), MaxOffset: int64(end)})
	resp.Ext = append(resp.Ext,
		remoting.Field{Name: "topicSysFlag", Value: strconv.Itoa(int(p.topicSysFlag))},
		remoting.Field{Name: "groupSysFlag", Value: strconv.Itoa(int(p.groupSysFlag))})
}
