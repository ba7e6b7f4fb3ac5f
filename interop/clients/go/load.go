package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/rocketmq-client-go/v2"
	"github.com/apache/rocketmq-client-go/v2/consumer"
	"github.com/apache/rocketmq-client-go/v2/primitive"
	"github.com/apache/rocketmq-client-go/v2/producer"
)

// line is a message that was acknowledged or read back.
type line struct {
	Event  string `json:"event"` // ack, stored
	Key    string `json:"key"`   // no two messages that were sent have the same
	Queue  int    `json:"queue"`
	Offset int64  `json:"offset"`
	ID     string `json:"id"` // offset message id
}

func keyOf(body []byte) string {
	key, _, _ := strings.Cut(string(body), " ")
	return key
}

// load sends messages from several goroutines until standard input ends and
// prints a line for each that the broker has acknowledged; a send that fails is
// counted, not repeated. Meanwhile a consumer reads the topic. In the end it has
// to have seen every message that was acknowledged.
func load(k *kit) {
	t := k.topic("load")
	// The client does not notice that a connection has closed under a request.
	p := k.producer("load", producer.WithRetry(0), producer.WithSendMsgTimeout(2*time.Second))
	padding := strings.Repeat(".", 1500)
	var acked sync.Map
	var failed, acks atomic.Int64
	send := func(key string, id int) error {
		m := primitive.NewMessage(t, []byte(key+" "+padding)).WithKeys([]string{key})
		m.Queue = queue(t, id)
		r, err := p.SendSync(context.Background(), m)
		if err != nil {
			return err
		}
		if r.Status != primitive.SendOK {
			return fmt.Errorf("status %v", r.Status)
		}
		acked.Store(key, true)
		acks.Add(1)
		emit(line{"ack", key, r.MessageQueue.QueueId, r.QueueOffset, r.OffsetMsgID})
		return nil
	}
	for id := 0; id < 4; id++ {
		must(send(fmt.Sprintf("first-%d", id), id))
	}
	k.routed(t)
	seen := &sync.Map{}
	var deliveries atomic.Int64
	c := k.consumer(k.group("loadc"), "c1")
	must(c.Subscribe(t, consumer.MessageSelector{}, func(_ context.Context, msgs ...*primitive.MessageExt) (consumer.ConsumeResult, error) {
		for _, m := range msgs {
			deliveries.Add(1)
			seen.Store(keyOf(m.Body), true)
		}
		return consumer.ConsumeSuccess, nil
	}))
	k.start(c)

	var stop atomic.Bool
	var wg sync.WaitGroup
	for g := 0; g < 4; g++ {
		wg.Add(1)
		go func(g int) {
			defer wg.Done()
			for n := 0; !stop.Load(); n++ {
				if err := send(fmt.Sprintf("%d-%d", g, n), (g+n)%4); err != nil {
					failed.Add(1)
					time.Sleep(20 * time.Millisecond) // the broker is away
				}
			}
		}(g)
	}
	io.Copy(io.Discard, os.Stdin)
	stop.Store(true)
	wg.Wait()
	missing := func() (keys []string) {
		acked.Range(func(key, _ any) bool {
			if _, ok := seen.Load(key); !ok {
				keys = append(keys, key.(string))
			}
			return len(keys) < 10
		})
		return keys
	}
	defer func() {
		k.facts["acked"], k.facts["failed"], k.facts["deliveries"], k.facts["notConsumed"] = acks.Load(), failed.Load(), deliveries.Load(), missing()
	}()
	await(90*time.Second, "the consumer", func() bool { return len(missing()) == 0 })
}

// readback prints every message that load's topic has.
func readback(k *kit) {
	t := k.topic("load")
	c, err := rocketmq.NewPullConsumer(consumer.WithNameServer(primitive.NamesrvAddr{k.ns}), consumer.WithGroupName(k.group("readback")), consumer.WithInstance(k.instance("c1")))
	must(err)
	must(c.Assign(t, nil))
	must(c.Start())
	k.closers = append(k.closers, func() { c.Shutdown() })
	mqs, err := c.GetTopicRouteInfo(t)
	must(err)
	for _, mq := range mqs {
		for off := int64(0); ; {
			r, err := c.PullFrom(context.Background(), mq, off, 32)
			must(err)
			check(r.Status == primitive.PullFound && r.NextBeginOffset > off, "pull from %d of %v: %+v", off, mq, r)
			for _, m := range r.GetMessageExts() {
				emit(line{"stored", keyOf(m.Body), mq.QueueId, m.QueueOffset, m.OffsetMsgId})
			}
			if off = r.NextBeginOffset; off >= r.MaxOffset {
				break
			}
		}
	}
}
