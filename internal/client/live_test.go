//go:build interop

package client

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// These tests run against a cluster that lives already, whoever made it:
//
//	GANTRY_CLIENT_NAMESRV=127.0.0.1:9876 go test -tags interop -run Live ./internal/client
//
// Its brokers need enablePropertyFilter=true, short delay levels
// (messageDelayLevel=1s 2s 1s …) and quick transaction checks
// (transactionTimeOut=2000, transactionCheckInterval=3000).
const liveVariable = "GANTRY_CLIENT_NAMESRV"

const liveLimit = 40 * time.Second

// live returns a client of the cluster, and a name that nobody else uses.
func live(t *testing.T) (*Client, string) {
	t.Helper()
	ns := os.Getenv(liveVariable)
	if ns == "" {
		t.Skip("no cluster: " + liveVariable + " is not set")
	}
	opts := Options{NameServers: []string{ns}, Timeout: 10 * time.Second}
	if testing.Verbose() {
		opts.Logger = slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	c, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // never fails
	return c, t.Name()[len("TestLive"):] + strconv.FormatInt(time.Now().UnixMilli()%1e9, 36)
}

// inbox collects what handlers get.
type inbox struct {
	mu  sync.Mutex
	got []message.Ext
	new chan struct{}
}

func newInbox() *inbox { return &inbox{new: make(chan struct{}, 1)} }

func (b *inbox) add(ms ...message.Ext) {
	b.mu.Lock()
	b.got = append(b.got, ms...)
	b.mu.Unlock()
	signal(b.new)
}

func (b *inbox) bodies() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var s []string
	for _, m := range b.got {
		s = append(s, string(m.Body))
	}
	return s
}

// wait waits until the sorted bodies are want, and fails if they do not become
// it.
func (b *inbox) wait(t *testing.T, want ...string) {
	t.Helper()
	limit := time.After(liveLimit)
	slices.Sort(want)
	for {
		got := b.bodies()
		if slices.Sort(got); slices.Equal(got, want) {
			return
		}
		select {
		case <-b.new:
		case <-limit:
			t.Fatalf("got %q, want %q", got, want)
		}
	}
}

func liveProducer(t *testing.T, c *Client, opts ProducerOptions) *Producer {
	t.Helper()
	p, err := NewProducer(c, opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func liveConsumer(t *testing.T, c *Client, opts ConsumerOptions) *Consumer {
	t.Helper()
	cs, err := NewConsumer(t.Context(), c, opts)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

func mustSend(t *testing.T, p *Producer, m *message.Message) SendResult {
	t.Helper()
	res, err := p.Send(t.Context(), m)
	if err != nil || res.Status != SendOK {
		t.Fatalf("%+v, %v", res, err)
	}
	return res
}

// makeTopic has the first send make the topic, so that consumers find it.
func makeTopic(t *testing.T, p *Producer, topic string) SendResult {
	t.Helper()
	return mustSend(t, p, &message.Message{Topic: topic, Body: []byte("made"), Properties: message.NewProperties(message.PropTags, "made")})
}

func TestLiveProduce(t *testing.T) {
	c, topic := live(t)
	ctx := t.Context()
	p := liveProducer(t, c, ProducerOptions{Group: "P" + topic})
	large := bytes.Repeat([]byte("body "), 10_000)
	first := mustSend(t, p, &message.Message{Topic: topic, Body: large, Flag: 3,
		Properties: message.NewProperties(message.PropKeys, "k1 k2", message.PropTags, "t")})
	got, err := c.ViewMessage(ctx, first.OffsetMsgID)
	if err != nil || !bytes.Equal(got.Body, large) || got.Flag != 3 || got.UniqKey() != first.MsgID {
		t.Errorf("view: %d bytes, %v", len(got.Body), err)
	}
	var batch []*message.Message
	for i := range 5 {
		batch = append(batch, &message.Message{Topic: topic, Body: fmt.Append(nil, i), Properties: message.NewProperties(message.PropKeys, "batch")})
	}
	res, err := p.SendBatch(ctx, batch)
	if err != nil || len(strings.Split(res.OffsetMsgID, ",")) != 5 {
		t.Errorf("batch: %+v, %v", res, err)
	}
	const many = 2000
	results := make(chan error, many)
	for i := range many {
		m := &message.Message{Topic: topic, Body: fmt.Append(nil, i), Properties: message.NewProperties(message.PropKeys, "many")}
		if err := p.SendAsync(ctx, m, func(_ SendResult, err error) { results <- err }); err != nil {
			t.Fatal(err)
		}
	}
	for range many {
		if err := <-results; err != nil {
			t.Fatal(err)
		}
	}
	if err := p.SendOneway(ctx, &message.Message{Topic: topic, Body: []byte("oneway")}); err != nil {
		t.Error(err)
	}
	total := func() (sum int64) {
		route, err := c.Route(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		for _, q := range route.ReadQueues() {
			high, err := c.MaxOffset(ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			low, err := c.MinOffset(ctx, q)
			if err != nil {
				t.Fatal(err)
			}
			sum += high - max(low, 0)
		}
		return sum
	}
	for deadline := time.Now().Add(liveLimit); total() != 1+5+many+1; {
		if time.Now().After(deadline) {
			t.Fatalf("%d messages", total())
		}
	}
	for key, want := range map[string]int{"k1": 1, "k2": 1, "batch": 5, "none": 0, "many": many} {
		res, err := c.Query(ctx, topic, key, QueryOptions{})
		if err != nil || len(res.Messages) != want && !res.Truncated || res.Truncated && key != "many" {
			t.Errorf("query %s: %d messages, truncated %v, %v", key, len(res.Messages), res.Truncated, err)
		}
		t.Logf("query %s: %d messages, truncated %v", key, len(res.Messages), res.Truncated)
	}
	if res, err := c.Query(ctx, topic, first.MsgID, QueryOptions{Unique: true}); err != nil || len(res.Messages) != 1 {
		t.Errorf("unique: %d messages, %v", len(res.Messages), err)
	}
	if at, err := c.EarliestTime(ctx, first.Queue); err != nil || time.Since(at) > time.Minute {
		t.Errorf("earliest %v, %v", at, err)
	}
	if offset, err := c.SearchOffset(ctx, first.Queue, time.Now().Add(time.Hour), false); err != nil || offset < 1 {
		t.Errorf("search: %d, %v", offset, err)
	}
	if offset, err := c.SearchOffset(ctx, first.Queue, time.Now().Add(-time.Hour), false); err != nil || offset != 0 {
		t.Errorf("search: %d, %v", offset, err)
	}
	pulled, err := c.Pull(ctx, PullRequest{Group: "C" + topic, Queue: first.Queue, Offset: first.QueueOffset, Max: 1, Expression: Tags("t")})
	if err != nil || pulled.Status != PullFound || !bytes.Equal(pulled.Messages[0].Body, large) {
		t.Errorf("pull: %v, %d messages, %v", pulled.Status, len(pulled.Messages), err)
	}
	pulled, err = c.Pull(ctx, PullRequest{Group: "C" + topic, Queue: first.Queue, Offset: 1 << 40})
	if err != nil || pulled.Status != PullMoved || pulled.Next != pulled.Max {
		t.Errorf("pull: %v, next %d, %v", pulled.Status, pulled.Next, err)
	}
}

func TestLiveConsume(t *testing.T) {
	c, topic := live(t)
	group := "C" + topic
	p := liveProducer(t, c, ProducerOptions{Group: "P" + topic})
	made := makeTopic(t, p, topic)
	other, _ := live(t)
	box1, box2 := newInbox(), newInbox()
	opts := ConsumerOptions{Group: group, Subscriptions: map[string]Expression{topic: {}}, From: remoting.FromFirstOffset}
	opts.Handler = func(_ context.Context, ms []message.Ext) Result { box1.add(ms...); return Consumed() }
	cs1 := liveConsumer(t, c, opts)
	box1.wait(t, "made")
	// What is not committed when the second member comes may be had by both.
	for deadline := time.Now().Add(liveLimit); ; {
		if offset, ok, err := c.ConsumerOffset(t.Context(), group, made.Queue); err != nil || ok && offset == 1 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("nothing is committed")
		}
		sleep(t.Context(), 100*time.Millisecond) //nolint:errcheck // then the test ends
	}
	opts.Handler = func(_ context.Context, ms []message.Ext) Result { box2.add(ms...); return Consumed() }
	cs2 := liveConsumer(t, other, opts)
	share := func(cs *Consumer) (n int) {
		for _, q := range cs.Queues() {
			if q.Topic == topic {
				n++
			}
		}
		return n
	}
	for deadline := time.Now().Add(liveLimit); share(cs1) != 2 || share(cs2) != 2; {
		if time.Now().After(deadline) {
			t.Fatalf("shares %v and %v", cs1.Queues(), cs2.Queues())
		}
	}
	want := []string{"made"}
	for i := range 40 {
		mustSend(t, p, &message.Message{Topic: topic, Body: fmt.Append(nil, i)})
		want = append(want, fmt.Sprint(i))
	}
	both := func() []string {
		all := append(box1.bodies(), box2.bodies()...)
		slices.Sort(all)
		return all
	}
	slices.Sort(want)
	for deadline := time.Now().Add(liveLimit); !slices.Equal(both(), want); {
		if time.Now().After(deadline) {
			t.Fatalf("got %v", both())
		}
	}
	if len(box2.bodies()) != 20 {
		t.Errorf("shares of %d and %d messages", len(box1.bodies()), len(box2.bodies()))
	}
	cs2.Close() //nolint:errcheck // never fails
	for deadline := time.Now().Add(liveLimit); share(cs1) != 4; {
		if time.Now().After(deadline) {
			t.Fatalf("share %v", cs1.Queues())
		}
	}
	for i := range 4 {
		mustSend(t, p, &message.Message{Topic: topic, Body: fmt.Append(nil, "more", i)})
		want = append(want, fmt.Sprint("more", i))
	}
	slices.Sort(want)
	for deadline := time.Now().Add(liveLimit); !slices.Equal(both(), want); {
		if time.Now().After(deadline) {
			t.Fatalf("got %v", both())
		}
	}
	cs1.Close() //nolint:errcheck // never fails
	route, err := c.Route(t.Context(), topic)
	if err != nil {
		t.Fatal(err)
	}
	for _, q := range route.ReadQueues() {
		high, err := c.MaxOffset(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if offset, ok, err := c.ConsumerOffset(t.Context(), group, q); offset != high || !ok || err != nil {
			t.Errorf("%v: committed %d of %d, %v, %v", q, offset, high, ok, err)
		}
	}
}

func TestLiveRetry(t *testing.T) {
	c, topic := live(t)
	p := liveProducer(t, c, ProducerOptions{Group: "P" + topic})
	makeTopic(t, p, topic)
	box := newInbox()
	group := "C" + topic
	liveConsumer(t, c, ConsumerOptions{
		Group: group, Subscriptions: map[string]Expression{topic: {}}, From: remoting.FromFirstOffset, MaxReconsumeTimes: 2,
		Handler: func(_ context.Context, ms []message.Ext) Result {
			m := ms[0]
			if m.Topic != topic {
				t.Errorf("topic %s", m.Topic)
			}
			box.add(m)
			switch body := string(m.Body); {
			case body == "always", body == "once" && m.ReconsumeTimes == 0:
				return RetryLater()
			case body == "dead":
				return DeadLetter()
			}
			return Consumed()
		},
	})
	for _, body := range []string{"once", "always", "dead"} {
		mustSend(t, p, &message.Message{Topic: topic, Body: []byte(body)})
	}
	box.wait(t, "made", "once", "once", "always", "always", "always", "dead")
	dlq := message.DLQPrefix + group
	for deadline := time.Now().Add(liveLimit); ; {
		n := int64(0)
		if route, err := c.Route(t.Context(), dlq); err == nil {
			for _, broker := range route.Brokers() {
				high, err := c.MaxOffset(t.Context(), remoting.MessageQueue{Topic: dlq, BrokerName: broker})
				if err != nil {
					t.Fatal(err)
				}
				n += high
			}
		}
		if n == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d dead letters", n)
		}
		sleep(t.Context(), 100*time.Millisecond) //nolint:errcheck // then the test ends
	}
}

func TestLiveOrderly(t *testing.T) {
	c, topic := live(t)
	p := liveProducer(t, c, ProducerOptions{Group: "P" + topic})
	q := mustSend(t, p, &message.Message{Topic: topic, Body: []byte("0")}).Queue
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprint(i))
		if i > 0 {
			if _, err := p.SendTo(t.Context(), &message.Message{Topic: topic, Body: fmt.Append(nil, i)}, q); err != nil {
				t.Fatal(err)
			}
		}
	}
	other, _ := live(t)
	box := newInbox()
	opts := ConsumerOptions{
		Group: "C" + topic, Subscriptions: map[string]Expression{topic: {}}, From: remoting.FromFirstOffset, Orderly: true,
		Handler: func(_ context.Context, ms []message.Ext) Result {
			if string(ms[0].Body) == "5" && ms[0].ReconsumeTimes == 0 {
				return Suspend(100 * time.Millisecond)
			}
			box.add(ms...)
			return Consumed()
		},
	}
	cs := []*Consumer{liveConsumer(t, c, opts), liveConsumer(t, other, opts)}
	box.wait(t, want...)
	if got := box.bodies(); !slices.IsSortedFunc(got, func(a, b string) int {
		x, _ := strconv.Atoi(a)
		y, _ := strconv.Atoi(b)
		return x - y
	}) {
		t.Errorf("got %v", got)
	}
	// Whoever has the queue leaves; the other one goes on.
	for _, one := range cs {
		if slices.Contains(one.Queues(), q) {
			one.Close() //nolint:errcheck // never fails
			break
		}
	}
	if _, err := p.SendTo(t.Context(), &message.Message{Topic: topic, Body: []byte("20")}, q); err != nil {
		t.Fatal(err)
	}
	box.wait(t, append(want, "20")...)
}

func TestLiveFilter(t *testing.T) {
	c, topic := live(t)
	p := liveProducer(t, c, ProducerOptions{Group: "P" + topic})
	makeTopic(t, p, topic)
	tags, sql := newInbox(), newInbox()
	liveConsumer(t, c, ConsumerOptions{
		Group: "C1" + topic, Subscriptions: map[string]Expression{topic: Tags("a", "c")}, From: remoting.FromFirstOffset,
		Handler: func(_ context.Context, ms []message.Ext) Result { tags.add(ms...); return Consumed() },
	})
	liveConsumer(t, c, ConsumerOptions{
		Group: "C2" + topic, Subscriptions: map[string]Expression{topic: SQL("n > 1 AND TAGS <> 'a'")}, From: remoting.FromFirstOffset,
		Handler: func(_ context.Context, ms []message.Ext) Result { sql.add(ms...); return Consumed() },
	})
	for i, tag := range []string{"a", "b", "c", "Aa", "BB", "a"} {
		mustSend(t, p, &message.Message{Topic: topic, Body: fmt.Append(nil, tag, i),
			Properties: message.NewProperties(message.PropTags, tag, "n", fmt.Sprint(i))})
	}
	tags.wait(t, "a0", "c2", "a5")
	sql.wait(t, "c2", "Aa3", "BB4")
	_, err := NewConsumer(t.Context(), c, ConsumerOptions{
		Group: "C3" + topic, Subscriptions: map[string]Expression{topic: SQL("n >")},
		Handler: func(context.Context, []message.Ext) Result { return Consumed() },
	})
	if !hasCode(err, remoting.CodeSubscriptionParseFailed) {
		t.Errorf("broken condition: %v", err)
	}
}

func TestLiveTransaction(t *testing.T) {
	c, topic := live(t)
	made := liveProducer(t, c, ProducerOptions{Group: "P" + topic})
	makeTopic(t, made, topic)
	checked := newInbox()
	p := liveProducer(t, c, ProducerOptions{Group: "TX" + topic, Check: func(_ context.Context, m *message.Ext) TransactionState {
		if m.Topic != topic {
			t.Errorf("asked about a message of topic %s", m.Topic)
		}
		checked.add(*m)
		if strings.HasSuffix(string(m.Body), "yes") {
			return TransactionCommit
		}
		return TransactionRollback
	}})
	box := newInbox()
	liveConsumer(t, c, ConsumerOptions{
		Group: "C" + topic, Subscriptions: map[string]Expression{topic: {}}, From: remoting.FromFirstOffset,
		Handler: func(_ context.Context, ms []message.Ext) Result { box.add(ms...); return Consumed() },
	})
	for body, state := range map[string]TransactionState{
		"yes": TransactionCommit, "no": TransactionRollback, "ask-yes": TransactionUnknown, "ask-no": TransactionUnknown,
	} {
		res, got, err := p.SendInTransaction(t.Context(), &message.Message{Topic: topic, Body: []byte(body)},
			func(context.Context, SendResult) TransactionState { return state })
		if err != nil || got != state || res.Status != SendOK {
			t.Fatalf("%s: %+v, %v, %v", body, res, got, err)
		}
	}
	box.wait(t, "made", "yes", "ask-yes")
	// Java 5.x may also ask about those that have ended: it gathers what it
	// hears for some seconds.
	for deadline := time.Now().Add(liveLimit); ; {
		if got := checked.bodies(); slices.Contains(got, "ask-yes") && slices.Contains(got, "ask-no") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("asked about %v", checked.bodies())
		}
		sleep(t.Context(), 100*time.Millisecond) //nolint:errcheck // then the test ends
	}
	box.wait(t, "made", "yes", "ask-yes")
}

func TestLiveRequestReply(t *testing.T) {
	c, topic := live(t)
	p := liveProducer(t, c, ProducerOptions{Group: "P" + topic})
	makeTopic(t, p, topic)
	other, _ := live(t)
	answerer := liveProducer(t, other, ProducerOptions{Group: "A" + topic})
	ready := newInbox()
	liveConsumer(t, other, ConsumerOptions{
		Group: "C" + topic, Subscriptions: map[string]Expression{topic: {}}, From: remoting.FromFirstOffset,
		Handler: func(ctx context.Context, ms []message.Ext) Result {
			ready.add(ms...)
			if string(ms[0].Body) != "made" {
				if _, err := answerer.Reply(ctx, &ms[0], append([]byte("re: "), ms[0].Body...)); err != nil {
					t.Error(err)
				}
			}
			return Consumed()
		},
	})
	ready.wait(t, "made")
	ctx, cancel := context.WithTimeout(t.Context(), liveLimit)
	defer cancel()
	for i := range 5 {
		got, err := p.Request(ctx, &message.Message{Topic: topic, Body: fmt.Append(nil, i)})
		if err != nil || string(got.Body) != fmt.Sprint("re: ", i) {
			t.Errorf("got %q, %v", got.Body, err)
		}
	}
}

func TestLiveBroadcast(t *testing.T) {
	c, topic := live(t)
	p := liveProducer(t, c, ProducerOptions{Group: "P" + topic})
	makeTopic(t, p, topic)
	var boxes []*inbox
	for range 2 {
		member, _ := live(t)
		box := newInbox()
		boxes = append(boxes, box)
		liveConsumer(t, member, ConsumerOptions{
			Group: "C" + topic, Subscriptions: map[string]Expression{topic: {}}, From: remoting.FromFirstOffset, Broadcast: true,
			Handler: func(_ context.Context, ms []message.Ext) Result { box.add(ms...); return Consumed() },
		})
	}
	for i := range 4 {
		mustSend(t, p, &message.Message{Topic: topic, Body: fmt.Append(nil, i)})
	}
	for _, box := range boxes {
		box.wait(t, "made", "0", "1", "2", "3")
	}
}
