package client

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// Send sends m to one of the queues of its topic, in turn, and waits until a
// broker has it. m is not changed: topic, flag, body, properties, and where set
// born time, compression and reconsume times go out; a UNIQ_KEY is added unless
// there is one. A message with MSG_TYPE=reply goes out as a reply.
//
// After an error the message may be there nevertheless, and after a repeated
// try twice.
func (p *Producer) Send(ctx context.Context, m *message.Message) (SendResult, error) {
	out, err := p.prepare(m, 0)
	if err != nil {
		return SendResult{}, fmt.Errorf("send to topic %s: %w", m.Topic, err)
	}
	return p.send(ctx, out)
}

// SendTo sends m to a queue; it is tried once.
func (p *Producer) SendTo(ctx context.Context, m *message.Message, q remoting.MessageQueue) (SendResult, error) {
	out, err := p.prepare(m, 0)
	if err != nil {
		return SendResult{}, fmt.Errorf("send to topic %s: %w", m.Topic, err)
	}
	if err := p.acquire(ctx, out); err != nil {
		return SendResult{}, err
	}
	defer p.c.sending.release(out.size())
	route, err := p.route(ctx, out)
	if err != nil {
		return SendResult{}, err
	}
	return p.try(ctx, route, out, q)
}

// SendBatch sends messages of one topic by one request; they come to lie behind
// each other in one queue. They cannot be delayed or compressed.
func (p *Producer) SendBatch(ctx context.Context, ms []*message.Message) (SendResult, error) {
	out, err := p.prepareBatch(ms)
	if err != nil {
		return SendResult{}, err
	}
	return p.send(ctx, out)
}

// SendAsync is Send without waiting for the answer: done is called with it, on
// another goroutine. SendAsync itself waits while too much is in flight. An
// error of its own means that done is not called. ctx bounds all of it.
func (p *Producer) SendAsync(ctx context.Context, m *message.Message, done func(SendResult, error)) error {
	out, err := p.prepare(m, 0)
	if err != nil {
		return fmt.Errorf("send to topic %s: %w", m.Topic, err)
	}
	return p.sendAsync(ctx, out, done)
}

// SendBatchAsync is to SendBatch what SendAsync is to Send.
func (p *Producer) SendBatchAsync(ctx context.Context, ms []*message.Message, done func(SendResult, error)) error {
	out, err := p.prepareBatch(ms)
	if err != nil {
		return err
	}
	return p.sendAsync(ctx, out, done)
}

func (p *Producer) sendAsync(ctx context.Context, out *outgoing, done func(SendResult, error)) error {
	if err := p.acquire(ctx, out); err != nil {
		return err
	}
	if !p.enter() {
		p.c.sending.release(out.size())
		return ErrClosed
	}
	go func() {
		defer p.wg.Done()
		res, err := p.sendAcquired(ctx, out)
		p.c.sending.release(out.size())
		done(res, err)
	}()
	return nil
}

// SendOneway sends m without asking for an answer: nobody will know whether it
// arrived. It waits while too much is waiting to be written.
func (p *Producer) SendOneway(ctx context.Context, m *message.Message) error {
	out, err := p.prepare(m, 0)
	if err != nil {
		return fmt.Errorf("send to topic %s: %w", m.Topic, err)
	}
	if err := p.waitWritten(ctx, out.size()); err != nil {
		return err
	}
	route, err := p.route(ctx, out)
	if err != nil {
		return err
	}
	q, err := route.pick("", p.c.avoided())
	if err != nil {
		return err
	}
	addr, err := route.Master(q.BrokerName)
	if err != nil {
		return err
	}
	err = p.c.oneway(ctx, addr, out.request(q.QueueID))
	if err != nil {
		p.failed(ctx, out, q.BrokerName, err)
	}
	return err
}

const (
	// onewayLook is after how many bytes SendOneway looks at what waits.
	onewayLook = 64 << 10
	// onewayPause is the time between two looks while too much waits.
	onewayPause = time.Millisecond
)

// waitWritten keeps what is sent without an answer from piling up: a connection
// on which too much waits is closed.
func (p *Producer) waitWritten(ctx context.Context, size int64) error {
	if p.onewayBytes.Add(size) < onewayLook {
		return nil
	}
	p.onewayBytes.Store(0)
	for p.c.rc.Stats().QueuedBytes > p.c.opts.MaxInFlightBytes {
		if err := sleep(ctx, onewayPause); err != nil {
			return err
		}
	}
	return nil
}

// acquire waits for room among what is in flight.
func (p *Producer) acquire(ctx context.Context, out *outgoing) error {
	p.mu.Lock()
	closed := p.mu.closed
	p.mu.Unlock()
	if closed {
		return ErrClosed
	}
	if err := p.c.sending.acquire(ctx, out.size()); err != nil {
		return fmt.Errorf("send to topic %s: wait for room: %w", out.header.Topic, err)
	}
	return nil
}

func (p *Producer) route(ctx context.Context, out *outgoing) (*Route, error) {
	return p.c.publishRoute(ctx, out.header.Topic, out.header.DefaultTopicQueueNums)
}

func (p *Producer) send(ctx context.Context, out *outgoing) (SendResult, error) {
	if err := p.acquire(ctx, out); err != nil {
		return SendResult{}, err
	}
	defer p.c.sending.release(out.size())
	return p.sendAcquired(ctx, out)
}

// sendAcquired tries until a broker has the message, or no try is left, or the
// error will not go away.
func (p *Producer) sendAcquired(ctx context.Context, out *outgoing) (SendResult, error) {
	var kept SendResult // that of a try whose status was not SendOK
	var last error
	var broker string
	tries := 0
	for tries <= p.opts.Retries {
		route, err := p.route(ctx, out)
		if err != nil {
			last = errors.Join(last, err)
			break
		}
		q, err := route.pick(broker, p.c.avoided())
		if err != nil {
			last = errors.Join(last, err)
			break
		}
		broker = q.BrokerName
		tries++
		res, err := p.try(ctx, route, out, q)
		res.Tries = tries
		if err == nil {
			if res.Status == SendOK || !p.opts.RetryNotStored {
				return res, nil
			}
			kept, last = res, nil
			continue
		}
		last = err
		if !again(ctx, err) {
			break
		}
	}
	if kept.Tries > 0 {
		return kept, nil
	}
	if tries > 1 {
		last = fmt.Errorf("after %d tries: %w", tries, last)
	}
	return SendResult{Tries: tries}, last
}

// again reports whether another try may help after err.
func again(ctx context.Context, err error) bool {
	if code, ok := Code(err); ok {
		return remoting.Retriable(code)
	}
	_, bad := errors.AsType[*remoting.FieldError](err)
	return !bad && ctx.Err() == nil && !errors.Is(err, ErrClosed) && !errors.Is(err, remoting.ErrTooLarge)
}

// try sends to one queue and reads the answer.
func (p *Producer) try(ctx context.Context, route *Route, out *outgoing, q remoting.MessageQueue) (SendResult, error) {
	addr, err := route.Master(q.BrokerName)
	if err != nil {
		return SendResult{}, err
	}
	resp, err := p.c.invoke(ctx, addr, out.request(q.QueueID), p.opts.Timeout)
	if err != nil {
		err = fmt.Errorf("send to topic %s at %s: %w", q.Topic, addr, err)
		p.failed(ctx, out, q.BrokerName, err)
		return SendResult{}, err
	}
	status, ok := sendStatus(resp.Code)
	if !ok {
		err := fmt.Errorf("send to topic %s at %s: %w", q.Topic, addr, resp.Err())
		p.failed(ctx, out, "", err)
		return SendResult{}, err
	}
	var h remoting.SendMessageResponse
	if err := remoting.DecodeHeader(resp.Ext, &h); err != nil {
		return SendResult{}, fmt.Errorf("send to topic %s at %s: %w", q.Topic, addr, err)
	}
	q.QueueID = h.QueueID
	return SendResult{
		Status: status, MsgID: out.msgID, OffsetMsgID: h.MsgID, Queue: q, QueueOffset: h.QueueOffset,
		TransactionID: h.TransactionID, RecallHandle: h.RecallHandle, Region: h.MsgRegion,
	}, nil
}

// failed notes a failed try: the broker, unless "", is passed over for a while,
// and the route is looked up again if the reason may be there.
func (p *Producer) failed(ctx context.Context, out *outgoing, broker string, err error) {
	if !again(ctx, err) || errors.Is(err, remoting.ErrBusy) {
		return
	}
	if broker != "" {
		p.c.avoidBroker(broker)
	}
	switch code, ok := Code(err); {
	case ok && (code == remoting.CodeSystemError || code == remoting.CodeSystemBusy):
	default:
		p.c.doubtRoute(out.header.Topic)
	}
}
