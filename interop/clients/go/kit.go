package main

import (
	"context"
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// kit is what a scenario works with. Failed checks panic.
type kit struct {
	ns, suffix string
	routes     map[string]bool // topics that the name server has
	facts      map[string]any
	closers    []func()
}

func (k *kit) topic(s string) string { return "T_go_" + s + "_" + k.suffix }
func (k *kit) group(s string) string { return "G_go_" + s + "_" + k.suffix }

// instance makes the client id, address@instance, differ between runs.
func (k *kit) instance(s string) string { return s + "-" + k.suffix }

func (k *kit) close() {
	for i := len(k.closers) - 1; i >= 0; i-- {
		k.closers[i]()
	}
	k.closers = nil
}

// brokerName is the broker that messages for a chosen queue go to.
func brokerName() string {
	if name := os.Getenv("INTEROP_BROKER_NAME"); name != "" {
		return name
	}
	return "broker-a"
}

func queue(topic string, id int) *primitive.MessageQueue {
	return &primitive.MessageQueue{Topic: topic, BrokerName: brokerName(), QueueId: id}
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(ok bool, format string, a ...any) {
	if !ok {
		panic(fmt.Errorf(format, a...))
	}
}

func (k *kit) producer(group string, opts ...producer.Option) rocketmq.Producer {
	p, err := rocketmq.NewProducer(append([]producer.Option{
		producer.WithNameServer(primitive.NamesrvAddr{k.ns}),
		producer.WithGroupName(k.group(group)), producer.WithInstanceName(k.instance(group)),
		producer.WithQueueSelector(producer.NewManualQueueSelector()),
		producer.WithSendMsgTimeout(10 * time.Second), // the machine may be busy
	}, opts...)...)
	must(err)
	must(p.Start())
	k.closers = append(k.closers, func() { p.Shutdown() })
	return p
}

// fill creates the topic by its first message and puts n messages body0… into queues 0–3 in turn.
func (k *kit) fill(p rocketmq.Producer, topic string, n int, body string, tags ...string) {
	for i := 0; i < n; i++ {
		m := primitive.NewMessage(topic, []byte(body+strconv.Itoa(i)))
		m.Queue = queue(topic, i%4)
		m.WithKeys([]string{"k" + strconv.Itoa(i)})
		if len(tags) > 0 {
			m.WithTag(tags[i%len(tags)])
		}
		r, err := p.SendSync(context.Background(), m)
		must(err)
		check(r.Status == primitive.SendOK, "send status %v", r.Status)
	}
	k.routed(topic)
}

// routed waits until the name server has a topic: a consumer of this client
// does not start without, and a new topic may take a moment.
func (k *kit) routed(topic string) {
	if k.routes[topic] {
		return
	}
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{k.ns})))
	must(err)
	defer a.Close()
	await(20*time.Second, "route of "+topic, func() bool {
		mqs, err := a.FetchPublishMessageQueues(context.Background(), topic)
		return err == nil && len(mqs) > 0
	})
	if k.routes == nil {
		k.routes = map[string]bool{}
	}
	k.routes[topic] = true
}

// sink collects the bodies a consumer saw.
type sink struct {
	mu   sync.Mutex
	msgs []*primitive.MessageExt
}

func (s *sink) add(msgs ...*primitive.MessageExt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.msgs = append(s.msgs, msgs...)
}

func (s *sink) bodies() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	seen := map[string]bool{}
	for _, m := range s.msgs {
		seen[string(m.Body)] = true
	}
	return join(seen)
}

func (s *sink) queues(prefix string) map[int]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	q := map[int]bool{}
	for _, m := range s.msgs {
		if strings.HasPrefix(string(m.Body), prefix) {
			q[m.Queue.QueueId] = true
		}
	}
	return q
}

func join(seen map[string]bool) string {
	var l []string
	for b := range seen {
		l = append(l, b)
	}
	sort.Strings(l)
	return strings.Join(l, " ")
}

func want(parts ...any) string { // "m", 0, 2, "n", 1 -> m0 m2 n1
	seen := map[string]bool{}
	body := ""
	for _, p := range parts {
		switch v := p.(type) {
		case string:
			body = v
		case int:
			seen[body+strconv.Itoa(v)] = true
		}
	}
	return join(seen)
}

func await(d time.Duration, what string, ok func() bool) {
	for end := time.Now().Add(d); !ok(); time.Sleep(50 * time.Millisecond) {
		check(time.Now().Before(end), "timed out waiting for %s", what)
	}
}

func (k *kit) consumer(group, instance string, opts ...consumer.Option) rocketmq.PushConsumer {
	c, err := rocketmq.NewPushConsumer(append([]consumer.Option{
		consumer.WithNameServer(primitive.NamesrvAddr{k.ns}), consumer.WithGroupName(group),
		consumer.WithInstance(k.instance(instance)), consumer.WithConsumeFromWhere(consumer.ConsumeFromFirstOffset),
	}, opts...)...)
	must(err)
	return c
}

func (k *kit) start(c rocketmq.PushConsumer) {
	must(c.Start())
	k.closers = append(k.closers, func() { c.Shutdown() })
}

func all(s *sink) func(context.Context, ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
	return func(_ context.Context, m ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		s.add(m...)
		return consumer.ConsumeSuccess, nil
	}
}
