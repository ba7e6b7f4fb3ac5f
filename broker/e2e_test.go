package broker_test

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/gantrytest"
	"github.com/gantrymq/gantry/internal/client"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// These tests run a name server, a broker and our own client over TCP.

const limit = 30 * time.Second

// start starts a pair with quick retries and checks.
func start(t *testing.T) *gantrytest.Pair {
	t.Helper()
	return gantrytest.Start(t, gantrytest.Options{
		Store:      gantry.Options{DelayLevels: strings.TrimSuffix(strings.Repeat("1s ", 18), " "), CommitLogFileSize: 32 << 20},
		Properties: map[string]string{"transactionTimeOut": "100", "transactionCheckInterval": "100"},
	})
}

func newClient(t *testing.T, p *gantrytest.Pair) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{NameServers: []string{p.NameServer}, Timeout: limit})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // never fails
	return c
}

func newProducer(t *testing.T, c *client.Client, change ...func(*client.ProducerOptions)) *client.Producer {
	t.Helper()
	opts := client.ProducerOptions{Group: "PG"}
	for _, f := range change {
		f(&opts)
	}
	p, err := client.NewProducer(c, opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func send(t *testing.T, p *client.Producer, topic, text string, props ...string) client.SendResult {
	t.Helper()
	res, err := p.Send(t.Context(), &message.Message{Topic: topic, Body: []byte(text), Properties: message.NewProperties(props...)})
	if err != nil || res.Status != client.SendOK {
		t.Fatalf("send: %+v, %v", res, err)
	}
	return res
}

// inbox is what a consumer got.
type inbox struct {
	mu  sync.Mutex
	got []message.Ext
	new chan struct{}
}

func newInbox() *inbox { return &inbox{new: make(chan struct{}, 1)} }

func (b *inbox) add(ms []message.Ext) {
	b.mu.Lock()
	b.got = append(b.got, ms...)
	b.mu.Unlock()
	select {
	case b.new <- struct{}{}:
	default:
	}
}

func (b *inbox) take(_ context.Context, ms []message.Ext) client.Result {
	b.add(ms)
	return client.Consumed()
}

func (b *inbox) all() []message.Ext {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.got)
}

func (b *inbox) bodies() (texts []string) {
	for _, m := range b.all() {
		texts = append(texts, string(m.Body))
	}
	return texts
}

// wait waits until f holds for the bodies.
func (b *inbox) wait(t *testing.T, f func(bodies []string) bool) {
	t.Helper()
	timeout := time.After(limit)
	for !f(b.bodies()) {
		select {
		case <-b.new:
		case <-timeout:
			t.Fatalf("got %q", b.bodies())
		}
	}
}

// want waits for exactly these bodies in any order.
func (b *inbox) want(t *testing.T, texts ...string) {
	t.Helper()
	slices.Sort(texts)
	b.wait(t, func(got []string) bool { return slices.Equal(slices.Sorted(slices.Values(got)), texts) })
}

func consume(t *testing.T, c *client.Client, group, topic string, handler client.Handler, change ...func(*client.ConsumerOptions)) *client.Consumer {
	t.Helper()
	opts := client.ConsumerOptions{Group: group, Subscriptions: map[string]client.Expression{topic: {}}, Handler: handler, From: remoting.FromFirstOffset}
	for _, f := range change {
		f(&opts)
	}
	cs, err := client.NewConsumer(t.Context(), c, opts)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

func TestPushConsumers(t *testing.T) {
	t.Parallel()
	pair := start(t)
	c := newClient(t, pair)
	p := newProducer(t, c)
	large := strings.Repeat("compressed ", 2000)
	send(t, p, "T", "first", "TAGS", "a", "n", "1")
	all, tagged, sql, casts := newInbox(), newInbox(), newInbox(), [2]*inbox{newInbox(), newInbox()}
	consume(t, c, "All", "T", all.take)
	consume(t, c, "Tagged", "T", tagged.take, func(o *client.ConsumerOptions) {
		o.Subscriptions = map[string]client.Expression{"T": client.Tags("b", "c")}
	})
	consume(t, c, "SQL", "T", sql.take, func(o *client.ConsumerOptions) {
		o.Subscriptions = map[string]client.Expression{"T": client.SQL("n > 1 AND TAGS <> 'c'")}
	})
	for _, box := range casts { // each gets everything
		other := newClient(t, pair)
		consume(t, other, "Cast", "T", box.take, func(o *client.ConsumerOptions) { o.Broadcast = true })
	}
	all.want(t, "first")
	send(t, p, "T", "second", "TAGS", "b", "n", "2")
	send(t, p, "T", "third", "TAGS", "c", "n", "3")
	send(t, p, "T", "later", message.PropDelay, "1", "n", "4", "TAGS", "b")
	send(t, p, "T", large)
	if _, err := p.SendBatch(t.Context(), []*message.Message{
		{Topic: "T", Body: []byte("b1"), Properties: message.NewProperties("n", "0")}, {Topic: "T", Body: []byte("b2")},
	}); err != nil {
		t.Fatal(err)
	}
	if err := p.SendOneway(t.Context(), &message.Message{Topic: "T", Body: []byte("oneway")}); err != nil {
		t.Fatal(err)
	}
	everything := []string{"first", "second", "third", "later", large, "b1", "b2", "oneway"}
	all.want(t, everything...)
	tagged.want(t, "second", "third", "later")
	sql.want(t, "second", "later")
	for _, box := range casts {
		box.want(t, everything...)
	}
	for _, m := range all.all() {
		if m.BornHost.Addr().String() != "127.0.0.1" || m.StoreHost.String() != pair.Addr {
			t.Errorf("born at %v, stored at %v", m.BornHost, m.StoreHost)
		}
	}
}

// TestRebalance: members come and go, each queue has one of them at a time, and
// nothing is missed.
func TestRebalance(t *testing.T) {
	t.Parallel()
	pair := start(t)
	c := newClient(t, pair)
	p := newProducer(t, c)
	send(t, p, "T", "0")
	box := newInbox()
	shares := func(n int, css ...*client.Consumer) {
		t.Helper()
		for end := time.Now().Add(limit); ; {
			total, fair := 0, true
			for _, cs := range css {
				mine := 0
				for _, q := range cs.Queues() {
					if q.Topic == "T" {
						mine++
					}
				}
				total += mine
				fair = fair && mine == n
			}
			if fair && total == 4 {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("not %d queues for each: %v", n, css)
			}
			runtime.Gosched() // the client has no event for it
		}
	}
	first := consume(t, c, "G", "T", box.take)
	shares(4, first)
	second := consume(t, newClient(t, pair), "G", "T", box.take)
	began := time.Now()
	shares(2, first, second)
	if took := time.Since(began); took > 15*time.Second {
		t.Errorf("the change took %v: nobody was notified", took)
	}
	var want []string
	for i := range 40 {
		send(t, p, "T", fmt.Sprint("m", i))
		want = append(want, fmt.Sprint("m", i))
	}
	has := func(got []string) bool {
		return !slices.ContainsFunc(want, func(s string) bool { return !slices.Contains(got, s) })
	}
	box.wait(t, has)
	second.Close() //nolint:errcheck // never fails
	shares(4, first)
	for i := range 8 {
		send(t, p, "T", fmt.Sprint("n", i))
		want = append(want, fmt.Sprint("n", i))
	}
	box.wait(t, has)
	first.Close() //nolint:errcheck // never fails
	for id := range int32(4) {
		q := remoting.MessageQueue{Topic: "T", BrokerName: "broker-a", QueueID: id}
		high, err := c.MaxOffset(t.Context(), q)
		if err != nil {
			t.Fatal(err)
		}
		if off, ok, err := c.ConsumerOffset(t.Context(), "G", q); err != nil || !ok || off != high {
			t.Errorf("queue %d: committed %d of %d, %v, %v", id, off, high, ok, err)
		}
	}
}

func TestRetryAndDeadLetters(t *testing.T) {
	t.Parallel()
	pair := start(t)
	c := newClient(t, pair)
	p := newProducer(t, c)
	send(t, p, "T", "fine")
	box, dead := newInbox(), newInbox()
	consume(t, c, "G", "T", func(_ context.Context, ms []message.Ext) client.Result {
		box.add(ms)
		switch m := ms[0]; string(m.Body) {
		case "always":
			return client.RetryLater()
		case "once":
			if m.ReconsumeTimes == 0 {
				return client.RetryAtLevel(1)
			}
		case "dead":
			return client.DeadLetter()
		}
		return client.Consumed()
	}, func(o *client.ConsumerOptions) { o.MaxReconsumeTimes = 1 })
	for _, text := range []string{"always", "once", "dead"} {
		send(t, p, "T", text)
	}
	box.want(t, "fine", "always", "always", "once", "once", "dead")
	consume(t, c, "Undertaker", "%DLQ%G", dead.take)
	dead.want(t, "always", "dead")
	for _, m := range dead.all() {
		if from, _ := m.Properties.Get("RETRY_TOPIC"); from != "T" {
			t.Errorf("dead letter of %q", from)
		}
	}
}

// TestOrderly: one member at a time has a queue, in order, and gives up in the
// end.
func TestOrderly(t *testing.T) {
	t.Parallel()
	pair := start(t)
	c := newClient(t, pair)
	p := newProducer(t, c)
	q := remoting.MessageQueue{Topic: "T", BrokerName: "broker-a", QueueID: 0}
	send(t, p, "T", "made", "TAGS", "other")
	for i := range 20 {
		if _, err := p.SendTo(t.Context(), &message.Message{Topic: "T", Body: fmt.Appendf(nil, "%02d", i), Properties: message.NewProperties("TAGS", "x")}, q); err != nil {
			t.Fatal(err)
		}
	}
	box, dead := newInbox(), newInbox()
	for range 2 {
		consume(t, newClient(t, pair), "G", "T", func(_ context.Context, ms []message.Ext) client.Result {
			box.add(ms)
			if string(ms[0].Body) == "07" {
				return client.Suspend(50 * time.Millisecond)
			}
			return client.Consumed()
		}, func(o *client.ConsumerOptions) {
			o.Orderly, o.MaxReconsumeTimes = true, 2
			o.Subscriptions = map[string]client.Expression{"T": client.Tags("x")}
		})
	}
	box.wait(t, func(got []string) bool { return slices.Contains(got, "19") })
	var order []string
	for _, text := range box.bodies() {
		if len(order) == 0 || order[len(order)-1] != text {
			order = append(order, text)
		}
	}
	for i, text := range order {
		if text != fmt.Sprintf("%02d", i) {
			t.Fatalf("order %q", order)
		}
	}
	consume(t, c, "Undertaker", "%DLQ%G", dead.take)
	dead.want(t, "07")
}

func TestTransactions(t *testing.T) {
	t.Parallel()
	pair := start(t)
	c := newClient(t, pair)
	asked := newInbox()
	p := newProducer(t, c, func(o *client.ProducerOptions) {
		o.Check = func(_ context.Context, m *message.Ext) client.TransactionState {
			asked.add([]message.Ext{*m})
			if m.Topic != "T" {
				t.Errorf("asked for a message of topic %s", m.Topic)
			}
			switch string(m.Body) {
			case "ask-yes":
				return client.TransactionCommit
			case "ask-no":
				return client.TransactionRollback
			}
			return client.TransactionUnknown
		}
	})
	send(t, p, "T", "made")
	for text, state := range map[string]client.TransactionState{
		"commit": client.TransactionCommit, "rollback": client.TransactionRollback,
		"ask-yes": client.TransactionUnknown, "ask-no": client.TransactionUnknown,
	} {
		_, _, err := p.SendInTransaction(t.Context(), &message.Message{Topic: "T", Body: []byte(text)},
			func(context.Context, client.SendResult) client.TransactionState { return state })
		if err != nil {
			t.Fatal(err)
		}
	}
	box := newInbox()
	consume(t, c, "G", "T", box.take)
	asked.wait(t, func(got []string) bool { return slices.Contains(got, "ask-yes") && slices.Contains(got, "ask-no") })
	box.want(t, "made", "commit", "ask-yes")
}

func TestRequestReply(t *testing.T) {
	t.Parallel()
	pair := start(t)
	asker, answerer := newClient(t, pair), newClient(t, pair)
	p, replier := newProducer(t, asker), newProducer(t, answerer, func(o *client.ProducerOptions) { o.Group = "Replier" })
	send(t, p, "T", "made", "TAGS", "made")
	consume(t, answerer, "G", "T", func(ctx context.Context, ms []message.Ext) client.Result {
		for i := range ms {
			if ms[i].Tags() == "made" {
				continue
			}
			if _, err := replier.Reply(ctx, &ms[i], append([]byte("re: "), ms[i].Body...)); err != nil {
				t.Errorf("reply: %v", err)
			}
		}
		return client.Consumed()
	})
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	got, err := p.Request(ctx, &message.Message{Topic: "T", Body: []byte("question")})
	if err != nil || string(got.Body) != "re: question" {
		t.Errorf("reply %q, %v", got.Body, err)
	}
}

func TestQueries(t *testing.T) {
	t.Parallel()
	pair := start(t)
	c := newClient(t, pair)
	p := newProducer(t, c)
	ea := send(t, p, "T", "ea", "KEYS", "Ea all")
	send(t, p, "T", "fb", "KEYS", "FB all")
	for key, want := range map[string]string{"Ea": "ea", "FB": "fb", "none": ""} {
		got, err := c.Query(t.Context(), "T", key, client.QueryOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var texts []string
		for _, m := range got.Messages {
			texts = append(texts, string(m.Body))
		}
		if strings.Join(texts, " ") != want {
			t.Errorf("key %s: %q, want %q", key, texts, want)
		}
	}
	if got, err := c.Query(t.Context(), "T", ea.MsgID, client.QueryOptions{Unique: true}); err != nil || len(got.Messages) != 1 {
		t.Errorf("unique key: %v, %v", got.Messages, err)
	}
	if m, err := c.ViewMessage(t.Context(), ea.OffsetMsgID); err != nil || string(m.Body) != "ea" {
		t.Errorf("by id: %q, %v", m.Body, err)
	}
	for range 130 { // more than two answers of a Java broker
		send(t, p, "T", "many", "KEYS", "many")
	}
	if got, err := c.Query(t.Context(), "T", "many", client.QueryOptions{}); err != nil || len(got.Messages) != 130 {
		t.Errorf("%d messages, %v", len(got.Messages), err)
	}
	pulled, err := c.Pull(t.Context(), client.PullRequest{Group: "CG", Queue: ea.Queue, Offset: ea.QueueOffset, Max: 1})
	if err != nil || pulled.Status != client.PullFound || !bytes.Equal(pulled.Messages[0].Body, []byte("ea")) {
		t.Errorf("pull: %+v, %v", pulled, err)
	}
}

// TestBrokerRestarts: a group goes on where it was.
func TestBrokerRestarts(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	opts := gantrytest.Options{Dir: dir, Store: gantry.Options{Flush: gantry.FlushSync}}
	first := gantrytest.Start(t, opts)
	c := newClient(t, first)
	p := newProducer(t, c)
	want := []string{"a", "b"}
	for _, text := range want {
		send(t, p, "T", text)
	}
	box := newInbox()
	cs := consume(t, c, "G", "T", box.take)
	box.want(t, want...)
	cs.Close() //nolint:errcheck // never fails
	c.Close()  //nolint:errcheck // never fails
	first.Stop()
	second := gantrytest.Start(t, opts)
	c = newClient(t, second)
	send(t, newProducer(t, c), "T", "c")
	box = newInbox()
	consume(t, c, "G", "T", box.take)
	box.want(t, "c") // the others were consumed
}
