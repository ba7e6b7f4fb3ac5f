package main

import (
	"context"
	"fmt"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

func produce(k *kit) {
	t := k.topic("produce")
	ctx := context.Background()
	p := k.producer("produce", producer.WithQueueSelector(producer.NewRoundRobinQueueSelector()))
	next := map[int]int64{}
	for i := 0; i < 5; i++ {
		m := primitive.NewMessage(t, []byte("sync"+strconv.Itoa(i))).WithTag("tag" + strconv.Itoa(i%2)).WithKeys([]string{"key" + strconv.Itoa(i), "shared"})
		m.WithProperty("color", "red")
		m.Flag = 7
		r, err := p.SendSync(ctx, m)
		must(err)
		check(r.Status == primitive.SendOK && r.MsgID != "" && r.OffsetMsgID != "" && r.RegionID == "DefaultRegion", "send result %+v", r)
		check(r.QueueOffset == next[r.MessageQueue.QueueId], "queue offset %+v", r)
		next[r.MessageQueue.QueueId]++
	}
	done := make(chan error, 3)
	for i := 0; i < 3; i++ {
		must(p.SendAsync(ctx, func(_ context.Context, r *primitive.SendResult, err error) { done <- err }, primitive.NewMessage(t, []byte("async"))))
	}
	for i := 0; i < 3; i++ {
		must(<-done)
	}
	for i := 0; i < 2; i++ {
		must(p.SendOneWay(ctx, primitive.NewMessage(t, []byte("oneway"))))
	}
	var batch []*primitive.Message
	for i := 0; i < 4; i++ {
		batch = append(batch, primitive.NewMessage(t, []byte("batch"+strconv.Itoa(i))).WithTag("b").WithKeys([]string{"bk" + strconv.Itoa(i)}))
	}
	r, err := p.SendSync(ctx, batch...)
	must(err)
	check(len(strings.Split(r.OffsetMsgID, ",")) == 4, "batch ids %s", r.OffsetMsgID)
	_, err = p.SendSync(ctx, primitive.NewMessage(t, []byte("delayed")).WithDelayTimeLevel(1))
	must(err)
	_, err = p.SendSync(ctx, primitive.NewMessage(t, []byte(strings.Repeat("0123456789", 1000))))
	must(err)
	k.routed(t)
	s := &sink{}
	c := k.consumer(k.group("producec"), "c1")
	must(c.Subscribe(t, consumer.MessageSelector{}, all(s)))
	k.start(c)
	expect := want("sync", 0, 1, 2, 3, 4, "batch", 0, 1, 2, 3) + " async oneway delayed " + strings.Repeat("0123456789", 1000)
	f := strings.Fields(expect)
	sort.Strings(f)
	await(30*time.Second, "all messages", func() bool { return s.bodies() == strings.Join(f, " ") })
}

func produceErrors(k *kit) {
	p := k.producer("errors", producer.WithRetry(0))
	t := k.topic("errors")
	k.fill(p, t, 1, "m")
	big := make([]byte, 5<<20)
	x := uint32(1)
	for i := range big {
		x = x*1664525 + 1013904223
		big[i] = byte(x >> 24)
	}
	m := primitive.NewMessage(t, big)
	m.Queue = queue(t, 0)
	r, err := p.SendSync(context.Background(), m)
	check(err != nil || r.Status != primitive.SendOK, "5 MiB accepted: %v", r)
	k.facts["tooLarge"] = fmt.Sprint(err)
	_, err = p.SendSync(context.Background(), primitive.NewMessage("has space", []byte("x")))
	check(err != nil, "bad topic accepted")
	k.facts["badTopic"] = fmt.Sprint(err)
}

// produceKeys sends messages with keys of one and the same Java hash. This
// client cannot query, so whoever runs it has to.
func produceKeys(k *kit) {
	t := k.topic("keys")
	p := k.producer("keys")
	k.fill(p, t, 1, "first")
	var bodies []any
	for i := 0; i < 3; i++ {
		for _, key := range []string{"Ea", "FB"} {
			for _, how := range []string{"sync", "oneway"} {
				body := key + "-" + how
				m := primitive.NewMessage(t, []byte(body+strconv.Itoa(i))).WithKeys([]string{key})
				m.Queue = queue(t, 0)
				if how == "sync" {
					_, err := p.SendSync(context.Background(), m)
					must(err)
				} else {
					must(p.SendOneWay(context.Background(), m))
				}
				bodies = append(bodies, body, i)
			}
		}
	}
	s := &sink{}
	c := k.consumer(k.group("keysc"), "c1")
	must(c.Subscribe(t, consumer.MessageSelector{}, all(s)))
	k.start(c)
	await(30*time.Second, "all messages", func() bool { return s.bodies() == want(append(bodies, "first", 0)...) })
	k.facts["topic"] = t
}
