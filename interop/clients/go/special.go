package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

type listener struct {
	mu     sync.Mutex
	checks map[string]int
}

func (l *listener) ExecuteLocalTransaction(m *primitive.Message) primitive.LocalTransactionState {
	switch {
	case strings.HasPrefix(string(m.Body), "commit"):
		return primitive.CommitMessageState
	case strings.HasPrefix(string(m.Body), "rollback"):
		return primitive.RollbackMessageState
	}
	return primitive.UnkonwnState
}

func (l *listener) CheckLocalTransaction(m *primitive.MessageExt) primitive.LocalTransactionState {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checks[string(m.Body)]++
	if strings.HasPrefix(string(m.Body), "yes") {
		return primitive.CommitMessageState
	}
	return primitive.RollbackMessageState
}

func transaction(k *kit) {
	t := k.topic("tx")
	k.fill(k.producer("txp"), t, 1, "plain")
	l := &listener{checks: map[string]int{}}
	p, err := rocketmq.NewTransactionProducer(l, producer.WithNameServer(primitive.NamesrvAddr{k.ns}), producer.WithGroupName(k.group("tx")), producer.WithInstanceName(k.instance("tx")))
	must(err)
	must(p.Start())
	k.closers = append(k.closers, func() { p.Shutdown() })
	s := &sink{}
	c := k.consumer(k.group("txc"), "c1")
	must(c.Subscribe(t, consumer.MessageSelector{}, all(s)))
	k.start(c)
	for _, b := range []string{"commit0", "rollback0", "yes0", "no0"} {
		r, err := p.SendMessageInTransaction(context.Background(), primitive.NewMessage(t, []byte(b)).WithTag("tx").WithKeys([]string{b}))
		must(err)
		check(r.Status == primitive.SendOK, "half message %+v", r)
		k.facts["transactionIdGiven"] = r.TransactionID != "" // 4.9 brokers do not send one
	}
	await(60*time.Second, "commits", func() bool { return s.bodies() == "commit0 plain0 yes0" })
	await(30*time.Second, "checks", func() bool { l.mu.Lock(); defer l.mu.Unlock(); return l.checks["no0"] > 0 && l.checks["yes0"] > 0 })
	time.Sleep(time.Second)
	check(s.bodies() == "commit0 plain0 yes0", "messages %s", s.bodies())
	k.facts["checks"] = fmt.Sprint(l.checks)
}

func requestReply(k *kit)      { exchange(k, false) }
func requestReplyEmpty(k *kit) { exchange(k, true) }

func exchange(k *kit, emptyReply bool) {
	t := k.topic("rr")
	asker := k.producer("asker", producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	replier := k.producer("replier", producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	_, err := asker.SendSync(context.Background(), primitive.NewMessage(t, []byte("warm")))
	must(err)
	k.routed(t)
	warm := make(chan struct{}, 16)
	c := k.consumer(k.group("rr"), "c1")
	must(c.Subscribe(t, consumer.MessageSelector{}, func(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range msgs {
			if m.GetProperty("CORRELATION_ID") == "" {
				warm <- struct{}{}
				continue
			}
			r, err := consumer.CreateReplyMessage(m, []byte("re:"+string(m.Body)))
			if err == nil {
				// CreateReplyMessage of this version leaves the body empty; a Java
				// broker answers such a reply with code 1.
				if !emptyReply {
					r.Body = []byte("re:" + string(m.Body))
				}
				_, err = replier.SendSync(context.Background(), r)
			}
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
		}
		return consumer.ConsumeSuccess, nil
	}))
	k.start(c)
	select {
	case <-warm:
	case <-time.After(30 * time.Second):
		check(false, "timed out waiting for the first message")
	}
	// The broker knows the asker by its first heartbeat, which comes a second
	// after the start; until then a reply cannot be pushed.
	var r *primitive.Message
	for try := 1; ; try++ {
		r, err = asker.Request(context.Background(), 3*time.Second, primitive.NewMessage(t, []byte("q")))
		if err == nil || try == 4 || emptyReply {
			break
		}
	}
	if emptyReply { // refused by a Java broker; an empty reply is as good
		k.facts["replied"] = err == nil
		return
	}
	must(err)
	check(string(r.Body) == "re:q", "reply %q", r.Body)
}
