package broker

import (
	"context"
	"strconv"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

const (
	propReplyTo       = "REPLY_TO_CLIENT"
	propPushReplyTime = "PUSH_REPLY_TIME"
)

// pushReplyTimeout bounds how long a client may take to accept a reply.
const pushReplyTimeout = 10 * time.Second

// sendReply answers 324 SEND_REPLY_MESSAGE and 325 SEND_REPLY_MESSAGE_V2: the
// reply is pushed to the client that asked, and kept as a message of the reply
// topic (upstream: ReplyMessageProcessor).
func (b *Broker) sendReply(ctx context.Context, c *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	h, err := remoting.DecodeSendMessage(cmd)
	if err != nil {
		return nil, err
	}
	topic, err := b.topicForSend(ctx, c, &h)
	if err != nil {
		return nil, err
	}
	if h.QueueID >= max(topic.ReadQueueNums, topic.WriteQueueNums) {
		return nil, remoting.Errorf(remoting.CodeInvalidParameter, "request queueId[%d] is illegal: topic %s has %d queues", h.QueueID, h.Topic, topic.WriteQueueNums)
	}
	if len(h.Properties) > message.MaxPropertiesSize {
		return nil, remoting.Errorf(remoting.CodeMessageIllegal, "properties of %d bytes", len(h.Properties))
	}
	m := &message.Message{
		Topic: h.Topic, QueueID: max(h.QueueID, 0), Flag: h.Flag, SysFlag: message.SysFlag(h.SysFlag) &^ message.TxRollback, Body: cmd.Body,
		Properties: message.Properties(h.Properties), BornTimestamp: h.BornTimestamp, BornHost: c.RemoteAddr(), StoreHost: b.storeHost,
		ReconsumeTimes: h.ReconsumeTimes,
	}
	if m.Body == nil { // client-go forgets it
		m.Body = []byte{}
	}
	props := m.Properties.Reserved()
	b.addProperties(m, &props)
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	if err := b.pushReply(ctx, m, &h); err != nil {
		resp.Code, resp.Remark = remoting.CodeSystemError, "push reply message to client failed: "+err.Error()
	}
	to := remoting.SendMessageResponse{MsgID: "0", QueueID: m.QueueID}
	if b.config().StoreReplyMessage {
		res, err := b.store.put(ctx, m, messageKind(&props))
		answer := b.sent(m.Topic, m.QueueID, "", res, err)
		if _, _, stored := putResponse(err); stored && resp.Code == remoting.CodeSuccess {
			return answer, nil
		}
	}
	to.MsgRegion, to.TraceOn = b.config().RegionID, strconv.FormatBool(b.config().TraceOn)
	resp.SetHeader(&to)
	return resp, nil
}

// pushReply sends 326 PUSH_REPLY_MESSAGE_TO_CLIENT to the client that asked.
func (b *Broker) pushReply(ctx context.Context, m *message.Message, h *remoting.SendMessageRequest) error {
	client, _ := m.Properties.Get(propReplyTo)
	if client == "" {
		return remoting.Errorf(remoting.CodeSystemError, "reply message properties[%s] is null", propReplyTo)
	}
	conn, ok := b.clients.Producers.Client(client)
	if !ok {
		return remoting.Errorf(remoting.CodeSystemError, "the client %q is not connected", client)
	}
	now := b.now()
	req := remoting.NewRequest(remoting.ReqPushReplyMessageToClient, &remoting.ReplyMessageRequest{
		ProducerGroup: h.ProducerGroup, Topic: m.Topic, DefaultTopic: h.DefaultTopic, DefaultTopicQueueNums: h.DefaultTopicQueueNums,
		QueueID: m.QueueID, SysFlag: h.SysFlag, BornTimestamp: m.BornTimestamp, Flag: m.Flag,
		Properties:     string(m.Properties.Set(propPushReplyTime, strconv.FormatInt(now, 10))),
		ReconsumeTimes: h.ReconsumeTimes, UnitMode: h.UnitMode,
		BornHost: m.BornHost.String(), StoreHost: b.storeHost.String(), StoreTimestamp: now,
	})
	// Genuine brokers send these also when they have their defaults.
	req.Ext.Set("reconsumeTimes", strconv.Itoa(int(h.ReconsumeTimes)))
	req.Ext.Set("unitMode", strconv.FormatBool(h.UnitMode))
	req.Body = m.Body
	ctx, cancel := context.WithTimeout(ctx, pushReplyTimeout)
	defer cancel()
	resp, err := conn.(*remoting.Conn).Invoke(ctx, req)
	if err != nil {
		return err
	}
	return resp.Err()
}
