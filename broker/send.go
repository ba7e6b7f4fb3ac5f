package broker

import (
	"context"
	"errors"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// Properties that the broker adds to messages, reads from them, or removes.
const (
	propTransactionID = "__transactionId__"
	propRetryTopic    = "RETRY_TOPIC"
	propOriginID      = "ORIGIN_MESSAGE_ID"
)

// Prefixes of the topics that belong to a consumer group.
const (
	retryPrefix = message.RetryPrefix
	dlqPrefix   = message.DLQPrefix
)

func isRetryTopic(topic string) bool { return strings.HasPrefix(topic, retryPrefix) }

// sendMessage answers 10 SEND_MESSAGE, 310 SEND_MESSAGE_V2 and 320
// SEND_BATCH_MESSAGE (upstream: SendMessageProcessor).
func (b *Broker) sendMessage(ctx context.Context, c *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	h, err := remoting.DecodeSendMessage(cmd)
	if err != nil {
		return nil, err
	}
	resp, err := b.send(ctx, c, cmd, &h)
	if err != nil {
		resp = remoting.Response(err)
		resp.Ext = b.regionFields()
	}
	return resp, nil
}

// regionFields are those that each answer to a send has.
func (b *Broker) regionFields() remoting.Fields {
	cfg := b.config()
	return remoting.Fields{{Name: message.PropMsgRegion, Value: cfg.RegionID}, {Name: message.PropTraceSwitch, Value: strconv.FormatBool(cfg.TraceOn)}}
}

func (b *Broker) send(ctx context.Context, c *remoting.Conn, cmd *remoting.Command, h *remoting.SendMessageRequest) (*remoting.Command, error) {
	topic, err := b.topicForSend(ctx, c, h)
	if err != nil {
		return nil, err
	}
	if h.QueueID >= max(topic.ReadQueueNums, topic.WriteQueueNums) {
		return nil, remoting.Errorf(remoting.CodeInvalidParameter, "request queueId[%d] is illegal, TopicConfig [topicName=%s, readQueueNums=%d, writeQueueNums=%d] Producer: /%s",
			h.QueueID, topic.TopicName, topic.ReadQueueNums, topic.WriteQueueNums, c.RemoteAddr())
	}
	if h.QueueID < 0 && topic.WriteQueueNums <= 0 {
		return nil, remoting.Errorf(remoting.CodeInvalidParameter, "the topic[%s] has no queue to write to", topic.TopicName)
	}
	if len(cmd.Body) == 0 {
		// 4.9 stores it, 5.x fails with this code.
		return nil, remoting.Errorf(remoting.CodeSystemError, "the message body is empty")
	}
	if most := b.maxMessageSize(); len(cmd.Body) > most {
		return nil, remoting.Errorf(remoting.CodeMessageIllegal, "the message is illegal, maybe msg body or properties length not matched: the body has %d bytes, at most %d", len(cmd.Body), most)
	}
	if len(h.Properties) > message.MaxPropertiesSize {
		return nil, remoting.Errorf(remoting.CodeMessageIllegal, "the message is illegal, maybe msg properties length limit 32k: they have %d bytes", len(h.Properties))
	}
	m := &message.Message{
		Topic: topic.TopicName, QueueID: h.QueueID, Flag: h.Flag, SysFlag: message.SysFlag(h.SysFlag), Body: cmd.Body,
		Properties: message.Properties(h.Properties), BornTimestamp: h.BornTimestamp, BornHost: c.RemoteAddr(), StoreHost: b.storeHost,
		ReconsumeTimes: h.ReconsumeTimes,
	}
	if m.QueueID < 0 {
		m.QueueID = rand.Int32N(topic.WriteQueueNums)
	}
	if topic.TopicFilterType == "MULTI_TAG" {
		m.SysFlag |= message.MultiTags
	}
	if h.Batch {
		return b.sendBatch(ctx, m)
	}
	if isRetryTopic(m.Topic) {
		if err := b.retryOrDeadLetter(ctx, cmd, h, m); err != nil {
			return nil, err
		}
	}
	props := m.Properties.Reserved()
	b.addProperties(m, &props)
	// Committed messages keep the property, so one that comes back to be
	// consumed again may have it too.
	if strings.EqualFold(props.TransactionPrepared, "true") && !isRetryTopic(h.Topic) {
		return b.sendHalf(ctx, m)
	}
	res, err := b.store.put(ctx, m, messageKind(&props))
	return b.sent(m.Topic, m.QueueID, props.UniqKey, res, err), nil
}

// maxMessageSize is the largest body, or batch of bodies, in bytes.
func (b *Broker) maxMessageSize() int {
	if n := b.opts.Store.MaxMessageSize; n > 0 {
		return n
	}
	return message.DefaultMaxMessageSize
}

// addProperties adds what each message carries besides its sender's own. r are
// the reserved ones of m, and has its unique key afterwards.
func (b *Broker) addProperties(m *message.Message, r *message.Reserved) {
	cfg := b.config()
	pairs := make([]string, 0, 8)
	pairs = append(pairs, message.PropMsgRegion, cfg.RegionID, message.PropTraceSwitch, strconv.FormatBool(cfg.TraceOn), message.PropCluster, cfg.ClusterName)
	if r.UniqKey == "" {
		r.UniqKey = b.uniqKeys.Next(b.now())
		pairs = append(pairs, message.PropUniqKey, r.UniqKey)
	}
	if !r.OfBroker {
		m.Properties = appendAll(m.Properties, pairs)
		return
	}
	m.Properties = setAll(m.Properties.Delete(message.PropPopCheckPoint), pairs)
}

// setAll sets properties, given as name and value in turn.
func setAll(p message.Properties, pairs []string) message.Properties {
	for i := 0; i < len(pairs); i += 2 {
		p = p.Set(pairs[i], pairs[i+1])
	}
	return p
}

// appendAll is setAll for properties none of which p has, and costs one copy.
func appendAll(p message.Properties, pairs []string) message.Properties {
	n := len(p) + 1
	for _, s := range pairs {
		n += len(s) + 1
	}
	var out strings.Builder
	out.Grow(n)
	out.WriteString(string(p))
	if p != "" && p[len(p)-1] != 2 {
		out.WriteByte(2)
	}
	for i := 0; i < len(pairs); i += 2 {
		out.WriteString(pairs[i])
		out.WriteByte(1)
		out.WriteString(pairs[i+1])
		out.WriteByte(2)
	}
	return message.Properties(out.String())
}

// maxBatch bounds the messages of one batch: the answer lists their ids in its
// header.
const maxBatch = 1 << 16

// sendBatch stores a body of several messages for one queue, all or none. Each
// keeps the properties that its sender gave it, as upstream does.
func (b *Broker) sendBatch(ctx context.Context, first *message.Message) (*remoting.Command, error) {
	if isRetryTopic(first.Topic) {
		return nil, remoting.Errorf(remoting.CodeMessageIllegal, "batch request does not support retry group %s", first.Topic)
	}
	var msgs []*message.Message
	for item, err := range message.SplitBatch(first.Body) {
		if err != nil {
			return nil, remoting.Errorf(remoting.CodeMessageIllegal, "the body is no batch: message %d: %v", len(msgs), err)
		}
		if len(msgs) == maxBatch {
			return nil, remoting.Errorf(remoting.CodeMessageIllegal, "a batch of more than %d messages", maxBatch)
		}
		m := *first
		m.Flag, m.Body, m.Properties = item.Flag, item.Body, item.Properties
		if m.Body == nil {
			m.Body = []byte{}
		}
		msgs = append(msgs, &m)
	}
	res, err := b.store.PutBatch(ctx, msgs)
	return b.sent(first.Topic, first.QueueID, first.Properties.UniqKey(), res, err), nil
}

// sent is the answer to a send, and counts it for a topic. queueID is the queue
// that the producer meant, wherever the message waits now.
func (b *Broker) sent(topic string, queueID int32, transactionID string, res gantry.PutResult, err error) *remoting.Command {
	code, remark, stored := putResponse(err)
	resp := remoting.NewResponse(code, remark)
	b.stats.put(topic, res.Count, res.Size, code)
	if !stored {
		resp.Ext = b.regionFields()
		return resp
	}
	cfg := b.config()
	resp.SetTyped(&remoting.SendMessageResponse{
		MsgID: res.MsgID(), QueueID: queueID, QueueOffset: int64(res.QueueOffset), TransactionID: transactionID,
		MsgRegion: cfg.RegionID, TraceOn: strconv.FormatBool(cfg.TraceOn),
	})
	return resp
}

// topicForSend returns the topic to send to, and makes it where a template
// allows that.
func (b *Broker) topicForSend(ctx context.Context, c *remoting.Conn, h *remoting.SendMessageRequest) (*remoting.TopicConfig, error) {
	if metadata.IsForbiddenForSend(h.Topic) {
		return nil, remoting.Errorf(remoting.CodeNoPermission, "Sending message to topic[%s] is forbidden.", h.Topic)
	}
	if b.config().BrokerPermission&remoting.PermWrite == 0 {
		return nil, remoting.Errorf(remoting.CodeNoPermission, "the broker[%s] sending message is forbidden", b.config().Advertise)
	}
	topic, ok := b.topics.Get(h.Topic)
	if !ok {
		if err := metadata.ValidTopic(h.Topic); err != nil {
			return nil, remoting.Errorf(remoting.CodeInvalidParameter, "%v", err)
		}
		var err error
		if topic, err = b.createForSend(ctx, c, h); err != nil {
			return nil, err
		}
	}
	if topic.Perm&remoting.PermWrite == 0 {
		return nil, remoting.Errorf(remoting.CodeNoPermission, "the topic[%s] sending message is forbidden", h.Topic)
	}
	return topic, nil
}

func (b *Broker) createForSend(ctx context.Context, c *remoting.Conn, h *remoting.SendMessageRequest) (*remoting.TopicConfig, error) {
	if group, ok := strings.CutPrefix(h.Topic, retryPrefix); ok {
		g, err := b.findGroup(group)
		if err != nil {
			return nil, err
		}
		return b.createRetryTopic(ctx, g, h.UnitMode)
	}
	topic, created, err := b.topics.CreateForSend(h.Topic, h.DefaultTopic, h.DefaultTopicQueueNums, topicFlag(h.UnitMode), b.config().AutoCreateTopic)
	if errors.Is(err, gantry.ErrNotFound) {
		return nil, remoting.Errorf(remoting.CodeTopicNotExist, "topic[%s] not exist, apply first please!%s", h.Topic, faq)
	}
	if err != nil {
		return nil, err
	}
	if created {
		b.log.Info("topic created for a producer", "topic", h.Topic, "template", h.DefaultTopic, "producer", c.RemoteAddr())
		b.topicsChanged(ctx)
	}
	return topic, nil
}

// findGroup returns the configuration of a group, and makes it where the
// configuration allows that.
func (b *Broker) findGroup(name string) (*remoting.GroupConfig, error) {
	if g, ok := b.groups.Get(name); ok {
		return g, nil
	}
	if g, _ := b.groups.Find(name, b.config().AutoCreateSubscriptionGroup); g != nil {
		return g, nil
	}
	return nil, remoting.Errorf(remoting.CodeSubscriptionGroupNotExist, "subscription group [%s] does not exist, %s", name, faq)
}

// topicFlag is the system flag of a topic for clients in unit mode.
func topicFlag(unit bool) int32 {
	if unit {
		return metadata.TopicFlagUnit
	}
	return 0
}

// retryTopicFlag is that of the retry topic of a group in unit mode.
func retryTopicFlag(unit bool) int32 {
	if unit {
		return metadata.TopicFlagUnitSub
	}
	return 0
}

// createRetryTopic makes sure that the retry topic of a group exists and that
// name servers know it.
func (b *Broker) createRetryTopic(ctx context.Context, g *remoting.GroupConfig, unit bool) (*remoting.TopicConfig, error) {
	topic, created, err := b.topics.CreateRetry(g.GroupName, g.RetryQueueNums, g.ConsumeMessageOrderly, retryTopicFlag(unit))
	if err != nil {
		return nil, remoting.Errorf(remoting.CodeSystemError, "topic[%s%s] not exist: %v", retryPrefix, g.GroupName, err)
	}
	if created {
		b.topicsChanged(ctx)
	}
	return topic, nil
}

// topicsChanged saves the topics and tells the name servers, and waits for both:
// messages must not outlive their topic, and clients ask for the route right
// away. What fails is logged and made up for later.
func (b *Broker) topicsChanged(ctx context.Context) {
	if err := b.topics.Save(); err != nil {
		b.log.Error("cannot save the topics", "err", err)
	}
	b.topicsKnown(ctx)
}

// topicsKnown waits until the name servers know the topics as they are now. When
// one does not answer in time, it gets to know later.
func (b *Broker) topicsKnown(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, startRegisterTimeout)
	defer cancel()
	_ = b.registrar.update(ctx) // the registrar logs what failed
}

// retryOrDeadLetter is for a message that a consumer sends to the retry topic of
// its group itself: when sending it back by 36 failed, or when it consumes in
// order and gives up. It goes to the dead letters when it was tried too often, or
// when the group consumes in order.
func (b *Broker) retryOrDeadLetter(ctx context.Context, cmd *remoting.Command, h *remoting.SendMessageRequest, m *message.Message) error {
	g, err := b.findGroup(strings.TrimPrefix(m.Topic, retryPrefix))
	if err != nil {
		return err
	}
	most := g.RetryMaxTimes
	if cmd.Version >= remoting.Version3_4_9 && h.MaxReconsumeTimes >= 0 {
		most = h.MaxReconsumeTimes
	}
	if h.ReconsumeTimes <= most && !b.clients.Locks.HasLocks(g.GroupName) {
		return nil
	}
	topic, err := b.createDLQ(ctx, g)
	if err != nil {
		return err
	}
	m.Topic, m.QueueID = topic.TopicName, rand.Int32N(max(topic.WriteQueueNums, 1))
	m.Properties = m.Properties.Set(message.PropDelay, "0")
	return nil
}

func (b *Broker) createDLQ(ctx context.Context, g *remoting.GroupConfig) (*remoting.TopicConfig, error) {
	topic, created, err := b.topics.CreateDLQ(g.GroupName)
	if err != nil {
		return nil, remoting.Errorf(remoting.CodeSystemError, "topic[%s%s] not exist: %v", dlqPrefix, g.GroupName, err)
	}
	if created {
		b.topicsChanged(ctx)
	}
	return topic, nil
}

// sendBack answers 36 CONSUMER_SEND_MSG_BACK: a consumer could not handle a
// message and wants it again later (upstream: AbstractSendMessageProcessor).
func (b *Broker) sendBack(ctx context.Context, c *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var h remoting.SendBackRequest
	if err := remoting.DecodeHeader(cmd.Ext, &h); err != nil {
		return nil, err
	}
	g, err := b.findGroup(h.Group)
	if err != nil {
		return nil, err
	}
	if b.config().BrokerPermission&remoting.PermWrite == 0 {
		return nil, remoting.Errorf(remoting.CodeNoPermission, "the broker[%s] sending message is forbidden", b.config().Advertise)
	}
	if g.RetryQueueNums <= 0 {
		return remoting.NewResponse(remoting.CodeSuccess, ""), nil
	}
	old, err := b.store.MessageAt(message.PhysicalOffset(h.Offset))
	if err != nil {
		if errors.Is(err, gantry.ErrClosed) {
			return nil, storeError(err)
		}
		return nil, remoting.Errorf(remoting.CodeSystemError, "look message by offset failed, %d: %v", h.Offset, err)
	}
	m, err := b.retryOf(ctx, cmd, &h, g, &old)
	if err != nil {
		return nil, err
	}
	res, err := b.store.Put(ctx, m)
	code, remark, stored := putResponse(err)
	b.stats.put(m.Topic, res.Count, res.Size, code)
	if !stored {
		// Its client then sends the message itself.
		return nil, remoting.Errorf(remoting.CodeSystemError, "%s: %s", gantry.PutStatusOf(err), remark)
	}
	from, ok := old.Properties.Get(propRetryTopic)
	if !ok {
		from = old.Topic
	}
	b.stats.sentBack(h.Group, from)
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// retryOf makes the copy of a message that is to be consumed again, for the
// retry topic or the dead letters.
func (b *Broker) retryOf(ctx context.Context, cmd *remoting.Command, h *remoting.SendBackRequest, g *remoting.GroupConfig, old *message.Ext) (*message.Message, error) {
	m := old.Message
	most := g.RetryMaxTimes
	if cmd.Version >= remoting.Version3_4_9 && h.MaxReconsumeTimes >= 0 {
		most = h.MaxReconsumeTimes
	}
	level := h.DelayLevel
	var topic *remoting.TopicConfig
	var err error
	if old.ReconsumeTimes >= most || level < 0 {
		topic, err = b.createDLQ(ctx, g)
		level = 0
	} else {
		topic, err = b.createRetryTopic(ctx, g, h.UnitMode)
		if level == 0 {
			level = 3 + old.ReconsumeTimes
		}
	}
	if err != nil {
		return nil, err
	}
	if topic.Perm&remoting.PermWrite == 0 {
		return nil, remoting.Errorf(remoting.CodeNoPermission, "the topic[%s] sending message is forbidden", topic.TopicName)
	}
	if _, ok := m.Properties.Get(propRetryTopic); !ok {
		m.Properties = m.Properties.Set(propRetryTopic, old.Topic)
	}
	if _, ok := m.Properties.Get(propOriginID); !ok {
		m.Properties = m.Properties.Set(propOriginID, message.OffsetID(old.StoreHost, old.PhysicalOffset))
	}
	// What an earlier wait left would send the message elsewhere.
	m.Properties = m.Properties.Delete(message.PropRealTopic).Delete(message.PropRealQueueID).
		Set(message.PropWait, "false").Set(message.PropDelay, strconv.Itoa(int(level)))
	m.Topic, m.QueueID = topic.TopicName, rand.Int32N(max(topic.WriteQueueNums, 1))
	m.StoreHost = b.storeHost
	m.ReconsumeTimes++
	m.SysFlag &^= message.InnerBatch | message.TxRollback
	m.PreparedTransactionOffset = 0
	return &m, nil
}
