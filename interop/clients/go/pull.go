package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/admin"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
)

func pull(k *kit) {
	t := k.topic("pull")
	p := k.producer("pullp")
	k.fill(p, t, 4, "early", "a")
	// Nearer to the later messages: 4.9 answers the nearest one, 5.x the next.
	time.Sleep(1500 * time.Millisecond)
	mid := time.Now().UnixMilli()
	time.Sleep(20 * time.Millisecond)
	k.fill(p, t, 8, "m", "a", "b")
	c, err := rocketmq.NewPullConsumer(consumer.WithNameServer(primitive.NamesrvAddr{k.ns}), consumer.WithGroupName(k.group("pull")), consumer.WithInstance(k.instance("c1")))
	must(err)
	must(c.Assign(t, nil))
	must(c.Start())
	k.closers = append(k.closers, func() { c.Shutdown() })
	mqs, err := c.GetTopicRouteInfo(t)
	must(err)
	check(len(mqs) == 4, "queues %v", mqs)
	seen := map[string]bool{}
	for _, mq := range mqs {
		off, err := c.OffsetForTimestamp(mq, mid)
		must(err)
		check(off == 1, "offset by time %d", off)
		c.SeekOffset(mq, off)
		r, err := c.PullFrom(context.Background(), mq, off, 32)
		must(err)
		check(r.Status == primitive.PullFound && r.NextBeginOffset == 3 && r.MinOffset == 0 && r.MaxOffset == 3, "pull %+v", r)
	}
	must(c.Assign(t, mqs))
	await(40*time.Second, "messages", func() bool {
		cr, err := c.Poll(context.Background(), time.Second)
		if err == nil {
			for _, m := range cr.GetMsgList() {
				seen[string(m.Body)] = true
			}
			c.ACK(context.Background(), cr, consumer.ConsumeSuccess)
		}
		return join(seen) == want("m", 0, 1, 2, 3, 4, 5, 6, 7)
	})
	must(c.PersistOffset(context.Background(), t))
	for _, mq := range mqs {
		off, err := c.CurrentOffset(mq)
		must(err)
		check(off == 3, "offset of %v: %d", mq, off)
	}
}

func adminCalls(k *kit) {
	a, err := admin.NewAdmin(admin.WithResolver(primitive.NewPassthroughResolver([]string{k.ns})))
	must(err)
	k.closers = append(k.closers, func() { a.Close() })
	ctx := context.Background()
	t := k.topic("admin")
	broker := os.Getenv("INTEROP_BROKER") // host:port of the broker
	check(broker != "", "INTEROP_BROKER not set")
	must(a.CreateTopic(ctx, admin.WithTopicCreate(t), admin.WithBrokerAddrCreate(broker)))
	time.Sleep(500 * time.Millisecond)
	l, err := a.FetchAllTopicList(ctx)
	must(err)
	check(strings.Contains(strings.Join(l.TopicList, " "), t), "topic list %v", l.TopicList)
	mqs, err := a.FetchPublishMessageQueues(ctx, t)
	must(err)
	check(len(mqs) > 0, "queues %v", mqs)
	cl, err := a.FetchClusterList(t)
	k.facts["clusters"] = fmt.Sprint(cl, err)
	g, err := a.GetAllSubscriptionGroup(ctx, broker, 5*time.Second)
	must(err)
	k.facts["groups"] = len(g.SubscriptionGroupTable) > 0
	must(a.DeleteTopic(ctx, admin.WithTopicDelete(t), admin.WithBrokerAddrDelete(broker), admin.WithNameSrvAddr([]string{k.ns})))
}
