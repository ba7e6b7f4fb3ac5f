package client

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestRetry: failed messages are given back with their level and come again with
// the topic they had; after the last time they are dead letters.
func TestRetry(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		a.store(a.mq("T", 0), texts("retry", "level", "dead", "fine")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		got.result = func(m message.Ext) Result {
			switch body := string(m.Body); {
			case body == "retry":
				return RetryLater()
			case body == "level" && m.ReconsumeTimes == 0:
				return RetryAtLevel(5)
			case body == "dead":
				return DeadLetter()
			}
			return Consumed()
		}
		startConsumer(t, c, ConsumerOptions{Handler: got.handle, From: remoting.FromFirstOffset, MaxReconsumeTimes: 2})
		time.Sleep(time.Minute)
		if s := got.sorted(); s != "dead fine level level retry retry retry" {
			t.Errorf("got %s", s)
		}
		for _, m := range got.all {
			if m.Topic != "T" {
				t.Errorf("%s came with the topic %s", m.Body, m.Topic)
			}
		}
		var dead []string
		for _, m := range a.stored(a.mq("%DLQ%G", 0)) {
			dead = append(dead, string(m.Body))
		}
		if slices.Sort(dead); strings.Join(dead, " ") != "dead retry" {
			t.Errorf("dead letters %v", dead)
		}
		var levels []int32
		for _, req := range cl.requests(addrA, remoting.ReqConsumerSendMsgBack) {
			var h remoting.SendBackRequest
			if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
				t.Fatal(err)
			}
			levels = append(levels, h.DelayLevel)
			if h.Group != "G" || h.OriginTopic != "T" || h.MaxReconsumeTimes != 2 || len(h.OriginMsgID) != 32 {
				t.Errorf("given back with %+v", h)
			}
		}
		if slices.Sort(levels); !slices.Equal(levels, []int32{-1, 0, 0, 0, 5}) {
			t.Errorf("levels %v", levels)
		}
		if offset, _ := a.committed("G", a.mq("T", 0)); offset != 4 {
			t.Errorf("committed %d", offset)
		}
		if offset, _ := a.committed("G", a.mq("%RETRY%G", 0)); offset != 3 {
			t.Errorf("committed %d of the retry topic", offset)
		}
	})
}

// TestRetryBySending: when the broker does not take a message back it is sent to
// the retry topic, and when that fails too it is handled again after a while;
// its offset is not committed before.
func TestRetryBySending(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		a.store(a.mq("T", 0), message.Message{Body: []byte("x"), Properties: message.NewProperties(message.PropKeys, "k"), ReconsumeTimes: 1})
		cl.answer(addrA, remoting.ReqConsumerSendMsgBack, always(remoting.CodeSystemError))
		cl.answer(addrA, remoting.ReqSendMessageV2, always(remoting.CodeSystemError))
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		got.result = func(m message.Ext) Result {
			if m.ReconsumeTimes < 5 {
				return RetryLater()
			}
			return Consumed()
		}
		startConsumer(t, c, ConsumerOptions{Handler: got.handle, From: remoting.FromFirstOffset})
		time.Sleep(2*sendBackAgain + 2*time.Second)
		if offset, ok := a.committed("G", a.mq("T", 0)); len(got.bodies()) != 3 || offset != 0 || !ok {
			t.Fatalf("handled %d times, offset %d, %v", len(got.bodies()), offset, ok)
		}
		cl.answer(addrA, remoting.ReqSendMessageV2, nil)
		time.Sleep(sendBackAgain + flushInterval + 2*time.Second)
		retried := a.stored(a.mq("%RETRY%G", 0))
		if offset, _ := a.committed("G", a.mq("T", 0)); len(retried) != 1 || offset != 1 {
			t.Fatalf("%d messages in the retry topic, offset %d", len(retried), offset)
		}
		m := retried[0]
		props := m.Properties.Map()
		if m.ReconsumeTimes != 5 || props[message.PropDelay] != "7" || props[propRetryTopic] != "T" || props[message.PropKeys] != "k" ||
			props[propMaxReconsume] != "16" || len(props[propOriginID]) != 32 {
			t.Errorf("retried as %d, %q", m.ReconsumeTimes, props)
		}
		sent := cl.requests(addrA, remoting.ReqSendMessageV2)
		h, err := remoting.DecodeSendMessage(sent[len(sent)-1])
		if err != nil || h.ProducerGroup != innerProducer || h.MaxReconsumeTimes != 16 {
			t.Errorf("sent by %+v, %v", h, err)
		}
	})
}

// TestOffsetStaysBehindUnfinished: what is still being handled is not committed,
// however much behind it is done.
func TestOffsetStaysBehindUnfinished(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		a.store(a.mq("T", 0), texts("1", "slow", "3", "4")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		gate := make(chan struct{})
		var got collector
		handle := func(ctx context.Context, ms []message.Ext) Result {
			if string(ms[0].Body) == "slow" {
				<-gate
			}
			return got.handle(ctx, ms)
		}
		cs := startConsumer(t, c, ConsumerOptions{Handler: handle, From: remoting.FromFirstOffset})
		time.Sleep(flushInterval + time.Second)
		if offset, _ := a.committed("G", a.mq("T", 0)); offset != 1 || got.sorted() != "1 3 4" {
			t.Errorf("committed %d, got %s", offset, got.sorted())
		}
		closed := make(chan struct{})
		go func() { cs.Close(); close(closed) }() //nolint:errcheck // never fails
		synctest.Wait()
		select {
		case <-closed:
			t.Error("closed before the handler returned")
		default:
		}
		close(gate)
		<-closed
		if offset, _ := a.committed("G", a.mq("T", 0)); offset != 4 {
			t.Errorf("committed %d at the end", offset)
		}
	})
}

// TestCloseGrace: a handler that does not return sees its ctx end.
func TestCloseGrace(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		a.store(a.mq("T", 0), texts("1")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		cs := startConsumer(t, c, ConsumerOptions{
			From: remoting.FromFirstOffset, CloseGrace: 2 * time.Second,
			Handler: func(ctx context.Context, _ []message.Ext) Result {
				<-ctx.Done()
				return RetryLater()
			},
		})
		synctest.Wait()
		began := time.Now()
		cs.Close() //nolint:errcheck // never fails
		if took := time.Since(began); took != 2*time.Second {
			t.Errorf("took %v", took)
		}
		if offset, ok := a.committed("G", a.mq("T", 0)); ok && offset > 0 {
			t.Errorf("committed %d", offset)
		}
	})
}

// TestFlowControl: a queue whose messages are not handled is not pulled without
// end.
func TestFlowControl(t *testing.T) {
	for name, opts := range map[string]ConsumerOptions{
		"count": {MaxQueued: 10, PullMax: 4},
		"bytes": {MaxCacheBytes: 1000, PullMax: 4},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, cl *cluster) {
				a := cl.brokers["a"]
				a.topic("T", 1)
				for range 100 {
					a.store(a.mq("T", 0), message.Message{Body: make([]byte, 100)})
				}
				c := cl.client("c1")
				defer c.Close() //nolint:errcheck // never fails
				gate := make(chan struct{})
				var got collector
				opts.From, opts.Concurrency = remoting.FromFirstOffset, 3
				running := make(chan struct{}, 3)
				opts.Handler = func(ctx context.Context, ms []message.Ext) Result {
					running <- struct{}{} // a fourth one would not get by
					<-gate
					<-running
					return got.handle(ctx, ms)
				}
				startConsumer(t, c, opts)
				time.Sleep(time.Minute)
				pulled := 0
				for _, req := range cl.requests(addrA, remoting.ReqPullMessage) {
					if req.Ext.Value("topic") == "T" {
						pulled++
					}
				}
				if pulled != 3 || len(running) != 3 { // 12 messages
					t.Errorf("%d pulls, %d handlers", pulled, len(running))
				}
				close(gate)
				time.Sleep(10 * time.Second)
				if n := len(got.bodies()); n != 100 {
					t.Errorf("handled %d", n)
				}
				if left := c.mu.consumers["G"].cached.Load(); left != 0 {
					t.Errorf("%d bytes left over", left)
				}
			})
		})
	}
}

// TestFlushDoesNotOvertakeReset: an offset that is set from outside is not
// overwritten by a flush that began before.
func TestFlushDoesNotOvertakeReset(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 4)
		table := make(map[remoting.MessageQueue]int64)
		for id := range int32(4) {
			a.store(a.mq("T", id), texts("1", "2", "3")...)
			table[a.mq("T", id)] = 1
		}
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var handled atomic.Int32
		wait := func(ctx context.Context, _ []message.Ext) Result {
			if handled.Add(1) > 12 {
				<-ctx.Done() // after the reset nothing gets on
			}
			return Consumed()
		}
		startConsumer(t, c, ConsumerOptions{Handler: wait, From: remoting.FromFirstOffset, CloseGrace: time.Second})
		gate := make(chan struct{})
		var first atomic.Bool
		cl.answer(addrA, remoting.ReqUpdateConsumerOffset, func(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
			if first.CompareAndSwap(false, true) {
				<-gate
			}
			return remoting.Later, nil
		})
		time.Sleep(flushInterval + time.Second)
		if !first.Load() {
			t.Fatal("nothing is being flushed")
		}
		req := remoting.NewRequest(remoting.ReqResetConsumerClientOffset, &remoting.ResetOffsetRequest{Topic: "T", Group: "G", Timestamp: 1, QueueID: -1, Offset: -1})
		req.Body = remoting.EncodeBody(&remoting.ResetOffset{OffsetTable: table})
		cl.call(addrA, req)
		synctest.Wait()
		close(gate)
		time.Sleep(flushInterval + time.Second)
		for mq := range table {
			if offset, _ := a.committed("G", mq); offset != 1 {
				t.Errorf("%v: committed %d", mq, offset)
			}
		}
	})
}

// TestResultOfLostQueue: what a handler says of a message of a queue that is
// somebody else's by now does not count.
func TestResultOfLostQueue(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 2)
		a.store(a.mq("T", 1), texts("1")...)
		c1, c2 := cl.client("c1"), cl.client("c2")
		defer c1.Close() //nolint:errcheck // never fails
		defer c2.Close() //nolint:errcheck // never fails
		gate := make(chan struct{})
		var got collector
		startConsumer(t, c1, ConsumerOptions{From: remoting.FromFirstOffset, Handler: func(context.Context, []message.Ext) Result {
			<-gate
			return RetryLater()
		}})
		synctest.Wait()
		startConsumer(t, c2, ConsumerOptions{Handler: got.handle, From: remoting.FromFirstOffset})
		time.Sleep(2 * time.Second)
		close(gate)
		time.Sleep(2 * time.Second)
		if n := len(cl.requests(addrA, remoting.ReqConsumerSendMsgBack)); n != 0 || got.sorted() != "1" {
			t.Errorf("%d given back, the other one got %q", n, got.sorted())
		}
		if left := c1.mu.consumers["G"].cached.Load(); left != 0 {
			t.Errorf("%d bytes left over", left)
		}
	})
}
