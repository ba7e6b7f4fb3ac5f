package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/internal/client"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// replayer sends exported messages to brokers.
type replayer struct {
	c *client.Client
	p *client.Producer
}

// replayGroup is the producer group of import.
const replayGroup = "gantry_import"

func (a *app) replay(cf *clientFlags) (*replayer, error) {
	c, err := a.connect(cf)
	if err != nil {
		return nil, err
	}
	p, err := client.NewProducer(c, client.ProducerOptions{Group: replayGroup})
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return &replayer{c, p}, nil
}

func (r *replayer) close() error { return errors.Join(r.p.Close(), r.c.Close()) }

// brokerProps are properties that a broker has given a message for a purpose
// that is fulfilled: with them it would be delayed, or committed, once more.
var brokerProps = []string{
	message.PropDelay, message.PropTimerDelaySec, message.PropTimerDelayMS, message.PropTimerDeliverMS, "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS",
	"TIMER_ROLL_TIMES", "TIMER_DELAY_LEVEL", message.PropRealTopic, message.PropRealQueueID, message.PropTransactionPrepared, message.PropProducerGroup,
	"__transactionId__", "TRANSACTION_CHECK_TIMES", message.PropCRC32, message.PropInnerMultiQueueOffset, message.PropCluster, "MSG_REGION", "TRACE_ON", "MIN_OFFSET", "MAX_OFFSET",
}

// put sends a message. One that no sender could have sent is a lineError.
func (r *replayer) put(ctx context.Context, m *message.Ext) error {
	switch {
	case m.Topic == message.ScheduleTopic || m.Topic == message.TimerTopic || strings.HasPrefix(m.Topic, message.SystemPrefix) || strings.HasPrefix(m.Topic, "RMQ_SYS_"):
		return lineError{fmt.Errorf("topic %s is a broker's own", m.Topic)}
	case !m.SysFlag.Queued():
		return lineError{errors.New("the message was not committed")}
	case m.SysFlag&message.InnerBatch != 0:
		return lineError{errors.New("a batch of a batch topic cannot be sent as one message")}
	case len(m.Body) == 0:
		return lineError{errors.New("the body is empty, which brokers refuse")}
	}
	out := m.Message
	out.PreparedTransactionOffset = 0
	out.SysFlag &= compressionFlags | message.MultiTags
	for _, name := range brokerProps {
		out.Properties = out.Properties.Delete(name)
	}
	err := r.send(ctx, &out)
	if code, ok := client.Code(err); ok && code == remoting.CodeMessageIllegal {
		return lineError{err}
	}
	return err
}

// compressionFlags are the bits of the system flag that say how the body is
// compressed.
const compressionFlags message.SysFlag = 0x701

// The topic after whose model brokers make others, and the queues that one gets
// on each broker when a message for it comes.
const (
	templateTopic = "TBW102"
	madeQueues    = 4
)

// send sends to the queue of the message's number, also when that is what makes
// the topic.
func (r *replayer) send(ctx context.Context, m *message.Message) error {
	route, err := r.c.Route(ctx, m.Topic)
	made := err != nil
	if made {
		route, err = r.c.Route(ctx, templateTopic)
	}
	if err == nil && m.QueueID >= 0 {
		queues := route.WriteQueues()
		if made {
			queues = slices.DeleteFunc(slices.Clone(queues), func(q remoting.MessageQueue) bool { return q.QueueID >= madeQueues })
		}
		if len(queues) > 0 {
			q := queues[int(m.QueueID)%len(queues)]
			q.Topic = m.Topic
			_, err = r.p.SendTo(ctx, m, q)
			return err
		}
	}
	_, err = r.p.Send(ctx, m)
	return err
}
