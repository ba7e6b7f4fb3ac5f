package main

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func tags(k *kit) {
	t, t2 := k.topic("tags"), k.topic("all")
	p := k.producer("tagsp")
	k.fill(p, t, 6, "m", "a", "b", "c")
	k.fill(p, t2, 3, "x")
	s := &sink{}
	c := k.consumer(k.group("tags"), "c1")
	must(c.Subscribe(t, consumer.MessageSelector{Type: consumer.TAG, Expression: "a || c"}, all(s)))
	must(c.Subscribe(t2, consumer.MessageSelector{}, all(s)))
	k.start(c)
	await(30*time.Second, "first messages", func() bool { return s.bodies() == want("m", 0, 2, 3, 5, "x", 0, 1, 2) })
	k.fill(p, t, 6, "n", "a", "b", "c")
	await(30*time.Second, "later messages", func() bool { return s.bodies() == want("m", 0, 2, 3, 5, "n", 0, 2, 3, 5, "x", 0, 1, 2) })
	for _, m := range s.msgs {
		check(m.StoreHost != "" && m.BornHost != "" && m.OffsetMsgId != "" && m.ReconsumeTimes == 0, "message %v", m)
	}
}

func sql(k *kit) {
	t := k.topic("sql")
	p := k.producer("sqlp")
	for i := 0; i < 8; i++ {
		m := primitive.NewMessage(t, []byte("s"+strconv.Itoa(i)))
		m.Queue = queue(t, i%4)
		m.WithProperty("n", strconv.Itoa(i))
		m.WithProperty("color", []string{"red", "blue"}[i%2])
		_, err := p.SendSync(context.Background(), m)
		must(err)
	}
	k.routed(t)
	s := &sink{}
	c := k.consumer(k.group("sql"), "c1")
	must(c.Subscribe(t, consumer.MessageSelector{Type: consumer.SQL92, Expression: "n > 2 AND color = 'red'"}, all(s)))
	k.start(c)
	await(30*time.Second, "filtered messages", func() bool { return s.bodies() == want("s", 4, 6) })
}

func from(k *kit) {
	t := k.topic("from")
	p := k.producer("fromp")
	k.fill(p, t, 8, "f")
	var sinks []*sink
	for i, w := range []consumer.ConsumeFromWhere{consumer.ConsumeFromFirstOffset, consumer.ConsumeFromLastOffset, consumer.ConsumeFromTimestamp} {
		s := &sink{}
		c := k.consumer(k.group("from"+strconv.Itoa(i)), "c"+strconv.Itoa(i), consumer.WithConsumeFromWhere(w),
			consumer.WithConsumeTimestamp(time.Now().Add(-time.Hour).Format("20060102150405")))
		must(c.Subscribe(t, consumer.MessageSelector{}, all(s)))
		k.start(c)
		sinks = append(sinks, s)
	}
	for _, s := range sinks {
		await(30*time.Second, "all messages", func() bool { return s.bodies() == want("f", 0, 1, 2, 3, 4, 5, 6, 7) })
	}
}

func retry(k *kit) {
	t, g := k.topic("retry"), k.group("retry")
	p := k.producer("retryp")
	k.fill(p, t, 3, "r")
	var mu sync.Mutex
	tries := map[string][]int32{}
	c := k.consumer(g, "c1", consumer.WithMaxReconsumeTimes(2))
	must(c.Subscribe(t, consumer.MessageSelector{}, func(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		m := msgs[0]
		mu.Lock()
		defer mu.Unlock()
		b := string(m.Body)
		tries[b] = append(tries[b], m.ReconsumeTimes)
		if b == "r0" || (b == "r1" && m.ReconsumeTimes == 0) {
			return consumer.ConsumeRetryLater, nil
		}
		return consumer.ConsumeSuccess, nil
	}))
	k.start(c)
	await(60*time.Second, "three tries", func() bool { mu.Lock(); defer mu.Unlock(); return len(tries["r0"]) == 3 && len(tries["r1"]) == 2 })
	time.Sleep(2 * time.Second)
	s := &sink{}
	d := k.consumer(k.group("dlq"), "c2")
	must(d.Subscribe("%DLQ%"+g, consumer.MessageSelector{}, all(s)))
	k.start(d)
	await(60*time.Second, "dead letter", func() bool { return s.bodies() == "r0" })
	check(s.msgs[0].GetProperty("RETRY_TOPIC") == t, "RETRY_TOPIC %q", s.msgs[0].GetProperty("RETRY_TOPIC"))
	k.facts["tries"] = fmt.Sprint(tries)
	check(fmt.Sprint(tries) == "map[r0:[0 1 2] r1:[0 1] r2:[0]]", "tries %v", tries)
}

func broadcast(k *kit) {
	t, g := k.topic("broadcast"), k.group("broadcast")
	p := k.producer("broadcastp")
	k.fill(p, t, 1, "early")
	var sinks []*sink
	for i := 1; i <= 2; i++ {
		s := &sink{}
		c := k.consumer(g, "c"+strconv.Itoa(i), consumer.WithConsumerModel(consumer.BroadCasting))
		must(c.Subscribe(t, consumer.MessageSelector{}, all(s)))
		k.start(c)
		sinks = append(sinks, s)
	}
	time.Sleep(3 * time.Second)
	k.fill(p, t, 4, "b")
	for _, s := range sinks {
		await(30*time.Second, "broadcast messages", func() bool { return strings.HasPrefix(s.bodies(), want("b", 0, 1, 2, 3)) })
	}
}

// rebalance has one consumer, then two, then one again. This client does not
// tell which queues it has, so messages are sent until it shows.
func rebalance(k *kit) {
	t, g := k.topic("rebalance"), k.group("rebalance")
	p := k.producer("rebalancep")
	k.fill(p, t, 4, "one")
	a, b := &sink{}, &sink{}
	c := k.consumer(g, "c1")
	must(c.Subscribe(t, consumer.MessageSelector{}, all(a)))
	k.start(c)
	await(30*time.Second, "all by the first", func() bool { return len(a.queues("one")) == 4 })
	c2 := k.consumer(g, "c2")
	must(c2.Subscribe(t, consumer.MessageSelector{}, all(b)))
	must(c2.Start())
	k.probe(p, t, "two", a, b, 2, 2)
	must(c2.Shutdown())
	k.probe(p, t, "three", a, b, 4, 0)
}

// probe sends a message to each of four queues, in rounds, until those of one
// round have come from the wanted numbers of queues.
func (k *kit) probe(p rocketmq.Producer, topic, body string, a, b *sink, wantA, wantB int) {
	for round := 0; ; round++ {
		prefix := fmt.Sprintf("%s-%d-", body, round)
		k.fill(p, topic, 4, prefix)
		await(60*time.Second, prefix, func() bool { return len(a.queues(prefix))+len(b.queues(prefix)) >= 4 })
		qa, qb := a.queues(prefix), b.queues(prefix)
		if len(qa) == wantA && len(qb) == wantB {
			k.facts[body+"Rounds"] = round + 1
			return
		}
		check(round < 100, "queues of %s: %v and %v", prefix, qa, qb)
		time.Sleep(400 * time.Millisecond)
	}
}

func orderly(k *kit) {
	t := k.topic("orderly")
	p := k.producer("orderlyp")
	k.fill(p, t, 16, "o")
	var mu sync.Mutex
	got := map[int][]string{}
	n, refused := 0, 0
	c := k.consumer(k.group("orderly"), "c1", consumer.WithConsumerOrder(true))
	must(c.Subscribe(t, consumer.MessageSelector{}, func(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		mu.Lock()
		defer mu.Unlock()
		for _, m := range msgs {
			if string(m.Body) == "o5" && refused == 0 {
				refused++
				return consumer.SuspendCurrentQueueAMoment, nil
			}
			got[m.Queue.QueueId] = append(got[m.Queue.QueueId], string(m.Body))
			n++
		}
		return consumer.ConsumeSuccess, nil
	}))
	k.start(c)
	await(60*time.Second, "all messages", func() bool { mu.Lock(); defer mu.Unlock(); return n >= 16 })
	for q := 0; q < 4; q++ {
		w := fmt.Sprintf("[o%d o%d o%d o%d]", q, q+4, q+8, q+12)
		check(fmt.Sprint(got[q]) == w, "queue %d: %v", q, got[q])
	}
}
