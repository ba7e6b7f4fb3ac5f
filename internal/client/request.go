package client

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// defaultTTL is how long Request waits when ctx does not say.
const defaultTTL = 3 * time.Second

// Request sends m and waits for the reply that a consumer of it sends. Without a
// deadline in ctx it waits for 3 s; the consumer is told how long we wait.
func (p *Producer) Request(ctx context.Context, m *message.Message) (message.Ext, error) {
	fail := func(err error) (message.Ext, error) {
		return message.Ext{}, fmt.Errorf("request to topic %s: %w", m.Topic, err)
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, defaultTTL)
		defer cancel()
	}
	deadline, _ := ctx.Deadline()
	ttl := max(time.Until(deadline).Milliseconds(), 1)
	id := rand.Text()
	asked := *m
	asked.Properties = asked.Properties.Set(propCorrelationID, id).Set(propReplyTo, p.c.opts.ClientID).
		Set(propTTL, strconv.FormatInt(ttl, 10))
	out, err := p.prepare(&asked, 0)
	if err != nil {
		return fail(err)
	}
	if err := p.introduce(ctx, out); err != nil { // the reply comes to who is known by the client id
		return fail(err)
	}
	reply := make(chan *message.Ext, 1)
	p.c.mu.Lock()
	p.c.mu.requests[id] = reply
	p.c.mu.Unlock()
	defer func() {
		p.c.mu.Lock()
		delete(p.c.mu.requests, id)
		p.c.mu.Unlock()
	}()
	if _, err := p.send(ctx, out); err != nil {
		return fail(err)
	}
	select {
	case r := <-reply:
		return *r, nil
	case <-ctx.Done():
		return fail(fmt.Errorf("wait for the reply: %w", ctx.Err()))
	}
}

// NewReply returns the message that answers a request which a consumer got; Send
// brings it back. The error is a message that does not ask for a reply.
func NewReply(request *message.Ext, body []byte) (*message.Message, error) {
	cluster, _ := request.Properties.Get(message.PropCluster)
	id, _ := request.Properties.Get(propCorrelationID)
	to, _ := request.Properties.Get(propReplyTo)
	if cluster == "" || id == "" || to == "" {
		return nil, errors.New("message does not ask for a reply, or does not say where to")
	}
	ttl, _ := request.Properties.Get(propTTL)
	return &message.Message{
		Topic: cluster + "_REPLY_TOPIC",
		Body:  body,
		Properties: message.NewProperties(propMsgType, msgTypeReply, propCorrelationID, id, propReplyTo, to,
			propTTL, ttl),
	}, nil
}

// Reply sends body as the answer to a request which a consumer got.
func (p *Producer) Reply(ctx context.Context, request *message.Ext, body []byte) (SendResult, error) {
	m, err := NewReply(request, body)
	if err != nil {
		return SendResult{}, err
	}
	return p.Send(ctx, m)
}

// takeReply answers 326: the broker brings the reply to a request of ours.
func (c *Client) takeReply(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.ReplyMessageRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	m := &message.Ext{
		Message: message.Message{
			Topic: h.Topic, QueueID: h.QueueID, Flag: h.Flag, SysFlag: message.SysFlag(h.SysFlag), Body: req.Body,
			Properties: message.Properties(h.Properties), BornTimestamp: h.BornTimestamp, BornHost: parseHost(h.BornHost),
			StoreHost: parseHost(h.StoreHost), ReconsumeTimes: h.ReconsumeTimes,
		},
		StoreTimestamp: h.StoreTimestamp,
	}
	inflate(&m.Message, maxPlainBody)
	id, _ := m.Properties.Get(propCorrelationID)
	c.mu.Lock()
	reply := c.mu.requests[id]
	delete(c.mu.requests, id) // a second one is not wanted
	c.mu.Unlock()
	if reply == nil {
		c.log.Debug("reply that nobody waits for", "topic", h.Topic)
		return remoting.NewResponse(remoting.CodeSuccess, ""), nil // as upstream
	}
	reply <- m
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// parseHost reads ip:port, also with Java's slash in front; the zero value if it
// is nothing of that.
func parseHost(s string) netip.AddrPort {
	p, err := netip.ParseAddrPort(s[strings.IndexByte(s, '/')+1:])
	if err != nil {
		return netip.AddrPort{}
	}
	return netip.AddrPortFrom(p.Addr().Unmap(), p.Port())
}
