package client

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

const (
	defaultRetries       = 2
	defaultCompressAbove = 4096
	defaultTopicQueues   = 4
)

// ProducerOptions are the options of a Producer. Zero fields have the defaults.
type ProducerOptions struct {
	// Group is the producer group. Brokers ask any member of it about
	// transactions. A client has one producer of a group.
	Group string
	// Retries is how often a send that failed is tried again, on another
	// broker if there is one. 0 means 2; negative, never.
	Retries int
	// RetryNotStored also tries again when the broker has the message, but
	// reports that flushing it or copying it to a replica took too long. The
	// message is there twice then.
	RetryNotStored bool
	// Timeout bounds each try. 0 means Options.Timeout of the client.
	Timeout time.Duration
	// CompressAbove is the size in bytes above which a body is compressed.
	// 0 means 4096; negative, never.
	CompressAbove int
	// MaxMessageSize bounds the body of a message or batch as it is given.
	// 0 means 4 MiB.
	MaxMessageSize int
	// TopicQueues is how many queues a topic gets on each broker that is made
	// by the first send to it. 0 means 4.
	TopicQueues int
	// Check answers what became of a transaction whose producer did not say
	// so, by its message. nil leaves them to other members of the group.
	Check func(ctx context.Context, m *message.Ext) TransactionState
}

// A Producer sends messages.
type Producer struct {
	c    *Client
	opts ProducerOptions
	wg   sync.WaitGroup // sends without somebody who waits, checks of transactions
	once sync.Once

	onewayBytes atomic.Int64 // sent since the last look at what waits to be written

	mu struct {
		sync.Mutex
		closed bool
	}
}

// NewProducer returns a producer of a group. The caller has to call Close, or
// close the client.
func NewProducer(c *Client, opts ProducerOptions) (*Producer, error) {
	switch {
	case opts.Group == "":
		return nil, errors.New("producer options: no group")
	case opts.Timeout < 0, opts.MaxMessageSize < 0, opts.TopicQueues < 0:
		return nil, errors.New("producer options: a number is negative")
	}
	if opts.Retries == 0 {
		opts.Retries = defaultRetries
	}
	if opts.Timeout == 0 {
		opts.Timeout = c.opts.Timeout
	}
	if opts.CompressAbove == 0 {
		opts.CompressAbove = defaultCompressAbove
	}
	if opts.MaxMessageSize == 0 {
		opts.MaxMessageSize = message.DefaultMaxMessageSize
	}
	if opts.TopicQueues == 0 {
		opts.TopicQueues = defaultTopicQueues
	}
	opts.Retries = max(opts.Retries, 0)
	p := &Producer{c: c, opts: opts}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mu.closed {
		return nil, ErrClosed
	}
	if c.mu.producers[opts.Group] != nil {
		return nil, fmt.Errorf("the client has a producer of group %s", opts.Group)
	}
	c.mu.producers[opts.Group] = p
	c.changedLocked()
	return p, nil
}

// Close waits for what was sent by SendAsync, and tells the brokers that the
// producer is gone. It may be called more than once.
func (p *Producer) Close() error {
	p.once.Do(func() {
		p.mu.Lock()
		p.mu.closed = true
		p.mu.Unlock()
		p.wg.Wait()
		p.c.mu.Lock()
		delete(p.c.mu.producers, p.opts.Group)
		p.c.changedLocked()
		p.c.mu.Unlock()
		p.c.unregister(context.Background(), &remoting.UnregisterClientRequest{ProducerGroup: p.opts.Group}) // bounded by timeouts
	})
	return nil
}

// enter counts a goroutine that Close waits for, unless it is too late.
func (p *Producer) enter() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mu.closed {
		p.wg.Add(1)
	}
	return !p.mu.closed
}

// SendStatus says how durable a message is that a broker has taken.
type SendStatus int

// The send statuses (upstream: SendStatus).
const (
	SendOK            SendStatus = iota
	FlushDiskTimeout             // not synced to disk in time
	FlushSlaveTimeout            // not copied to a replica in time
	SlaveNotAvailable            // there is no replica
)

var sendStatusNames = [...]string{"SEND_OK", "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"}

func (s SendStatus) String() string {
	if s >= 0 && int(s) < len(sendStatusNames) {
		return sendStatusNames[s]
	}
	return fmt.Sprintf("SendStatus(%d)", int(s))
}

// sendStatus returns the status that an answer's code stands for.
func sendStatus(code int32) (s SendStatus, ok bool) {
	switch code {
	case remoting.CodeSuccess:
		return SendOK, true
	case remoting.CodeFlushDiskTimeout:
		return FlushDiskTimeout, true
	case remoting.CodeFlushSlaveTimeout:
		return FlushSlaveTimeout, true
	case remoting.CodeSlaveNotAvailable:
		return SlaveNotAvailable, true
	}
	return 0, false
}

// SendResult says where a message is.
type SendResult struct {
	Status SendStatus
	// MsgID is the unique key of the message, OffsetMsgID its offset id. Of a
	// batch they have those of all messages, with commas.
	MsgID       string
	OffsetMsgID string
	Queue       remoting.MessageQueue
	// QueueOffset is the offset in the queue; of a batch, that of the first
	// message; of half messages, that in their own queue.
	QueueOffset   int64
	TransactionID string
	RecallHandle  string // of timed messages, to take them back
	Region        string
	// Tries is how many brokers were asked.
	Tries int
}

// Names of properties that clients give each other.
const (
	propTransactionID = "__transactionId__"
	propMsgType       = "MSG_TYPE"
	propCorrelationID = "CORRELATION_ID"
	propReplyTo       = "REPLY_TO_CLIENT"
	propTTL           = "TTL"
	propRetryTopic    = "RETRY_TOPIC"
	propOriginID      = "ORIGIN_MESSAGE_ID"
	msgTypeReply      = "reply"
)

// outgoing is a message, or a batch, on its way.
type outgoing struct {
	code   int32
	header remoting.SendMessageRequestV2
	body   []byte
	msgID  string
}

// size is what it counts for the bound of bytes in flight.
func (o *outgoing) size() int64 {
	return int64(len(o.body)+len(o.header.Properties)) + 512
}

// prepare makes what goes out of m, which stays as it is. sysFlag is added to
// what m says of its body.
func (p *Producer) prepare(m *message.Message, sysFlag message.SysFlag) (*outgoing, error) {
	if err := p.checkSize(m.Topic, len(m.Body)); err != nil {
		return nil, err
	}
	props, now := m.Properties, time.Now().UnixMilli()
	id := props.UniqKey()
	if id == "" {
		id = p.c.uniq.Next(now)
		props = props.Set(message.PropUniqKey, id)
	}
	if len(props) > message.MaxPropertiesSize {
		return nil, fmt.Errorf("properties of %d bytes, limit %d", len(props), message.MaxPropertiesSize)
	}
	out := &outgoing{code: remoting.ReqSendMessageV2, body: m.Body, msgID: id}
	kept := m.SysFlag & (message.Compressed | message.MultiTags)
	if c := m.SysFlag.CompressionType(); c != message.CompressionNone && c != message.CompressionUnknown {
		kept = kept.WithCompression(c)
	} else if above := p.opts.CompressAbove; c == message.CompressionNone && above >= 0 && len(m.Body) > above {
		small, err := deflate(m.Body)
		if err != nil {
			return nil, fmt.Errorf("compress body: %w", err)
		}
		if len(small) < len(m.Body) {
			out.body, kept = small, kept.WithCompression(message.CompressionZlib)
		}
	}
	if t, ok := props.Get(propMsgType); ok && t == msgTypeReply {
		out.code = remoting.ReqSendReplyMessageV2
	}
	out.header = p.header(m, props, kept|sysFlag, now)
	return out, nil
}

func (p *Producer) checkSize(topic string, body int) error {
	switch {
	case topic == "":
		return errors.New("message without a topic")
	case body > p.opts.MaxMessageSize:
		return fmt.Errorf("body of %d bytes, limit %d", body, p.opts.MaxMessageSize)
	}
	return nil
}

func (p *Producer) header(m *message.Message, props message.Properties, sysFlag message.SysFlag, now int64) remoting.SendMessageRequestV2 {
	h := remoting.SendMessageRequest{
		ProducerGroup: p.opts.Group, Topic: m.Topic, DefaultTopic: defaultTopic, DefaultTopicQueueNums: int32(p.opts.TopicQueues),
		SysFlag: int32(sysFlag), BornTimestamp: m.BornTimestamp, Flag: m.Flag, Properties: string(props),
		ReconsumeTimes: m.ReconsumeTimes, MaxReconsumeTimes: -1,
	}
	if h.BornTimestamp == 0 {
		h.BornTimestamp = now
	}
	return remoting.SendMessageRequestV2{SendMessageRequest: h}
}

// prepareBatch makes one request of several messages of a topic.
func (p *Producer) prepareBatch(ms []*message.Message) (*outgoing, error) {
	if len(ms) == 0 {
		return nil, errors.New("empty batch")
	}
	now := time.Now().UnixMilli()
	var body []byte
	ids := make([]string, len(ms))
	for i, m := range ms {
		level, err := m.DelayLevel()
		switch {
		case m.Topic != ms[0].Topic:
			return nil, fmt.Errorf("messages of the topics %s and %s in one batch", ms[0].Topic, m.Topic)
		case m.Properties.WaitStoreOK() != ms[0].Properties.WaitStoreOK():
			return nil, errors.New("messages that wait for the store and that do not in one batch")
		case level != 0 || err != nil || strings.HasPrefix(m.Topic, message.RetryPrefix):
			return nil, errors.New("delayed messages and those of retry topics cannot be in a batch")
		case m.SysFlag.CompressionType() != message.CompressionNone:
			return nil, errors.New("compressed messages cannot be in a batch")
		}
		if ids[i] = m.UniqKey(); ids[i] == "" {
			ids[i] = p.c.uniq.Next(now)
		}
		item := message.BatchItem{Flag: m.Flag, Body: m.Body, Properties: m.Properties.Set(message.PropUniqKey, ids[i])}
		if body, err = message.AppendBatchItem(body, item); err != nil {
			return nil, fmt.Errorf("message %d of the batch: %w", i, err)
		}
		if err := p.checkSize(m.Topic, len(body)); err != nil {
			return nil, fmt.Errorf("batch: %w", err)
		}
	}
	whole := message.Message{Topic: ms[0].Topic, BornTimestamp: ms[0].BornTimestamp}
	var props message.Properties
	if wait, ok := ms[0].Properties.Get(message.PropWait); ok {
		props = message.NewProperties(message.PropWait, wait)
	}
	out := &outgoing{code: remoting.ReqSendBatchMessage, body: body, msgID: strings.Join(ids, ",")}
	out.header = p.header(&whole, props, 0, now)
	out.header.Batch = true
	return out, nil
}

// request returns the request that sends o to a queue.
func (o *outgoing) request(queueID int32) *remoting.Command {
	h := o.header
	h.QueueID = queueID
	req := remoting.NewRequest(o.code, &h)
	req.Body = o.body
	return req
}

// brokerAvoided is for how long a broker that could not be reached is passed
// over as long as there are others.
const brokerAvoided = 5 * time.Second

func (c *Client) avoidBroker(name string) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	for n, until := range c.mu.avoid {
		if now.After(until) {
			delete(c.mu.avoid, n)
		}
	}
	c.mu.avoid[name] = now.Add(brokerAvoided)
}

// avoided returns the brokers that are passed over now, mostly none.
func (c *Client) avoided() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.mu.avoid) == 0 {
		return nil
	}
	var names []string
	now := time.Now()
	for n, until := range c.mu.avoid {
		if now.Before(until) {
			names = append(names, n)
		}
	}
	return names
}

// pick returns the next queue to send to: not of the broker that the try before
// failed on, and none that is avoided, unless all are.
func (r *Route) pick(last string, avoided []string) (remoting.MessageQueue, error) {
	if len(r.write) == 0 {
		return remoting.MessageQueue{}, fmt.Errorf("send to topic %s: %w", r.Topic, ErrNoQueue)
	}
	first := int(r.next.Add(1) % uint32(len(r.write)))
	best, penalty := r.write[first], 3
	for i := range r.write {
		q := r.write[(first+i)%len(r.write)]
		n := 0
		if slices.Contains(avoided, q.BrokerName) {
			n++
		}
		if q.BrokerName == last {
			n += 2
		}
		if n == 0 {
			return q, nil
		}
		if n < penalty {
			best, penalty = q, n
		}
	}
	return best, nil
}
