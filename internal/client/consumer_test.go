package client

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// collector is a handler that remembers bodies and what the handler saw.
type collector struct {
	mu     sync.Mutex
	all    []message.Ext
	result func(m message.Ext) Result
}

func (c *collector) handle(_ context.Context, ms []message.Ext) Result {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, ms...)
	if c.result != nil {
		return c.result(ms[0])
	}
	return Consumed()
}

func (c *collector) bodies() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var s []string
	for _, m := range c.all {
		s = append(s, string(m.Body))
	}
	return s
}

func (c *collector) sorted() string {
	s := c.bodies()
	slices.Sort(s)
	return strings.Join(s, " ")
}

func startConsumer(t *testing.T, c *Client, opts ConsumerOptions) *Consumer {
	t.Helper()
	if opts.Group == "" {
		opts.Group = "G"
	}
	if opts.Subscriptions == nil {
		opts.Subscriptions = map[string]Expression{"T": {}}
	}
	cs, err := NewConsumer(t.Context(), c, opts)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

func texts(bodies ...string) []message.Message {
	var ms []message.Message
	for _, b := range bodies {
		ms = append(ms, message.Message{Body: []byte(b)})
	}
	return ms
}

// TestConsume: messages of all queues arrive, also new ones, the offset is
// committed every five seconds and at the end, and the next consumer goes on
// there.
func TestConsume(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a, b := cl.brokers["a"], cl.brokers["b"]
		a.topic("T", 2)
		b.topic("T", 1)
		a.store(a.mq("T", 0), texts("1", "2")...)
		b.store(b.mq("T", 0), texts("3")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		cs := startConsumer(t, c, ConsumerOptions{Handler: got.handle, From: remoting.FromFirstOffset})
		synctest.Wait()
		if got.sorted() != "1 2 3" {
			t.Errorf("got %s", got.sorted())
		}
		began := time.Now()
		a.store(a.mq("T", 1), texts("4")...)
		synctest.Wait()
		if got.sorted() != "1 2 3 4" || time.Since(began) != 0 {
			t.Errorf("got %s after %v", got.sorted(), time.Since(began))
		}
		time.Sleep(flushInterval)
		synctest.Wait()
		if offset, ok := a.committed("G", a.mq("T", 0)); offset != 2 || !ok {
			t.Errorf("committed %d, %v", offset, ok)
		}
		a.store(a.mq("T", 0), texts("5")...)
		synctest.Wait()
		cs.Close() //nolint:errcheck // never fails
		for mq, want := range map[remoting.MessageQueue]int64{a.mq("T", 0): 3, a.mq("T", 1): 1} {
			if offset, _ := a.committed("G", mq); offset != want {
				t.Errorf("%v: committed %d at the end", mq, offset)
			}
		}
		if gone := cl.requests(addrA, remoting.ReqUnregisterClient); len(gone) != 1 || gone[0].Ext.Value("consumerGroup") != "G" {
			t.Errorf("unregistered by %v", gone)
		}
		a.store(a.mq("T", 0), texts("6")...)
		var next collector
		startConsumer(t, c, ConsumerOptions{Handler: next.handle, From: remoting.FromFirstOffset})
		synctest.Wait()
		if next.sorted() != "6" {
			t.Errorf("the next consumer got %s", next.sorted())
		}
	})
}

// TestStartOffset: where a group without offsets starts.
func TestStartOffset(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		mq := a.mq("T", 0)
		a.first[mq] = 100
		a.store(mq, texts("1", "2")...)
		time.Sleep(time.Hour)
		middle := time.Now()
		a.store(mq, texts("3")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		a.commit("known", mq, 101)
		a.commit("never read", mq, -1)
		tests := []struct {
			group string
			opts  ConsumerOptions
			want  string
		}{
			{"first", ConsumerOptions{From: remoting.FromFirstOffset}, "1 2 3 new"},
			{"last", ConsumerOptions{}, "again new"},
			{"known", ConsumerOptions{}, "2 3 new"},
			{"never read", ConsumerOptions{From: remoting.FromFirstOffset}, "1 2 3 new"},
			{"broadcast", ConsumerOptions{Broadcast: true, From: remoting.FromFirstOffset}, "1 2 3 new"},
		}
		a.topic("%RETRY%last", 1) // of retried messages none is skipped
		a.store(a.mq("%RETRY%last", 0), message.Message{Body: []byte("again"), Properties: message.NewProperties(propRetryTopic, "T")})
		got := make(map[string]*collector)
		for _, test := range tests {
			got[test.group] = new(collector)
			test.opts.Group, test.opts.Handler = test.group, got[test.group].handle
			startConsumer(t, c, test.opts)
		}
		// By time, asked of a fake that counts from 0.
		a.topic("U", 1)
		a.store(a.mq("U", 0), texts("1")...)
		time.Sleep(time.Hour)
		a.store(a.mq("U", 0), texts("2")...)
		var timed collector
		startConsumer(t, c, ConsumerOptions{
			Group: "time", Handler: timed.handle, From: remoting.FromTimestamp, FromTime: middle.Add(time.Minute),
			Subscriptions: map[string]Expression{"U": {}},
		})
		synctest.Wait()
		a.store(mq, texts("new")...)
		synctest.Wait()
		for _, test := range tests {
			if s := got[test.group].sorted(); s != test.want {
				t.Errorf("%s: got %s, want %s", test.group, s, test.want)
			}
		}
		if timed.sorted() != "2" {
			t.Errorf("by time: %s", timed.sorted())
		}
	})
}

// TestTopicThatComesLater: a consumer picks up topics that are made after it.
func TestTopicThatComesLater(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		startConsumer(t, c, ConsumerOptions{Handler: got.handle, From: remoting.FromFirstOffset})
		time.Sleep(time.Minute)
		a.topic("T", 1)
		a.store(a.mq("T", 0), texts("1")...)
		time.Sleep(rebalanceInterval + 2*time.Second)
		synctest.Wait()
		if got.sorted() != "1" {
			t.Errorf("got %s", got.sorted())
		}
	})
}

// TestMembersShare: two members share the queues, and when one leaves, in either
// way, the other has all of them; nothing is lost.
func TestMembersShare(t *testing.T) {
	for _, way := range []string{"closes", "dies"} {
		t.Run(way, func(t *testing.T) {
			bubble(t, func(t *testing.T, cl *cluster) {
				a := cl.brokers["a"]
				a.topic("T", 5)
				c1, c2 := cl.client("c1"), cl.client("c2")
				defer c1.Close() //nolint:errcheck // never fails
				defer c2.Close() //nolint:errcheck // never fails
				var got1, got2 collector
				cs1 := startConsumer(t, c1, ConsumerOptions{Handler: got1.handle})
				synctest.Wait()
				cs2 := startConsumer(t, c2, ConsumerOptions{Handler: got2.handle})
				time.Sleep(time.Second)
				only := func(cs *Consumer) (ids []int32) {
					for _, q := range cs.Queues() {
						if q.Topic == "T" {
							ids = append(ids, q.QueueID)
						}
					}
					return ids
				}
				if q1, q2 := only(cs1), only(cs2); !slices.Equal(q1, []int32{0, 1, 2}) || !slices.Equal(q2, []int32{3, 4}) {
					t.Fatalf("shares %v and %v", q1, q2)
				}
				for id := range int32(5) {
					a.store(a.mq("T", id), texts(fmt.Sprint(id))...)
				}
				synctest.Wait()
				if got1.sorted() != "0 1 2" || got2.sorted() != "3 4" {
					t.Errorf("got %s and %s", got1.sorted(), got2.sorted())
				}
				if way == "closes" {
					cs2.Close() //nolint:errcheck // never fails
				} else {
					time.Sleep(flushInterval) // what is not committed comes again
					cl.answer(addrA, remoting.ReqUnregisterClient, silent)
					c2.Close() //nolint:errcheck // never fails
				}
				time.Sleep(time.Second)
				if q1 := only(cs1); len(q1) != 5 {
					t.Errorf("share %v of the one that is left", q1)
				}
				for id := range int32(5) {
					a.store(a.mq("T", id), texts(fmt.Sprint("more", id))...)
				}
				synctest.Wait()
				if got1.sorted() != "0 1 2 more0 more1 more2 more3 more4" {
					t.Errorf("got %s", got1.sorted())
				}
			})
		})
	}
}

// TestBrokerForgetsMember: a broker that does not list us any more, or does not
// know the group, hears of us again, and consuming goes on.
func TestBrokerForgetsMember(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		startConsumer(t, c, ConsumerOptions{Handler: got.handle})
		time.Sleep(time.Second)
		a.mu.Lock()
		clear(a.members)
		a.members["G"] = map[*remoting.Conn]string{nil: "other"}
		a.mu.Unlock()
		signal(c.mu.consumers["G"].rebalanceNow)
		synctest.Wait()
		a.store(a.mq("T", 0), texts("1")...)
		a.mu.Lock()
		delete(a.members["G"], nil)
		a.mu.Unlock()
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if got.sorted() != "1" {
			t.Errorf("got %q", got.sorted())
		}
		// The pull is answered 24 after a restart of the broker's tables.
		a.mu.Lock()
		clear(a.members)
		clear(a.subs)
		a.mu.Unlock()
		a.store(a.mq("T", 0), texts("2", "3")...) // the held pull answers this
		synctest.Wait()
		time.Sleep(3 * time.Second)
		a.store(a.mq("T", 0), texts("4")...)
		time.Sleep(3 * time.Second)
		synctest.Wait()
		if got.sorted() != "1 2 3 4" {
			t.Errorf("got %q", got.sorted())
		}
	})
}

// TestBrokerRestarts: broken connections are made anew and the broker is told of
// the group; nothing is lost.
func TestBrokerRestarts(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 2)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		startConsumer(t, c, ConsumerOptions{Handler: got.handle})
		time.Sleep(time.Second)
		cl.refuse(addrA, true)
		a.store(a.mq("T", 0), texts("1")...)
		time.Sleep(10 * time.Second)
		cl.refuse(addrA, false)
		time.Sleep(3 * time.Second)
		a.store(a.mq("T", 1), texts("2")...)
		synctest.Wait()
		if got.sorted() != "1 2" {
			t.Errorf("got %q", got.sorted())
		}
	})
}

// TestOffsetMoved: when the queue does not have the offset any more, the new one
// is committed and consuming goes on there.
func TestOffsetMoved(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		mq := a.mq("T", 0)
		a.first[mq] = 50
		a.store(mq, texts("50", "51")...)
		a.commit("G", mq, 7)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		startConsumer(t, c, ConsumerOptions{Handler: got.handle})
		time.Sleep(time.Second)
		if got.sorted() != "50 51" {
			t.Errorf("got %s", got.sorted())
		}
		// A reset while consuming, as brokers of 5.x do it.
		reset := func(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
			if req.Ext.Value("topic") != "T" {
				return remoting.Later, nil
			}
			cl.answer(addrA, remoting.ReqPullMessage, nil)
			resp := header(&remoting.PullMessageResponse{NextBeginOffset: 51, MinOffset: 50, MaxOffset: 53})
			resp.Code = remoting.CodePullOffsetMoved
			return resp, nil
		}
		cl.answer(addrA, remoting.ReqPullMessage, reset)
		a.store(mq, texts("52")...) // answers the held pull
		time.Sleep(2 * time.Second)
		// 52 may have been handled before the reset, and then twice.
		if s := got.sorted(); s != "50 51 51 52 52" && s != "50 51 51 52" {
			t.Errorf("got %s", s)
		}
	})
}

// TestTags: what the broker sends beyond the tags is dropped here, and the
// heartbeat says what is wanted.
func TestTags(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		tagged := func(tag string) message.Message {
			return message.Message{Body: []byte(tag), Properties: message.NewProperties(message.PropTags, tag)}
		}
		a.store(a.mq("T", 0), tagged("a"), tagged("b"), tagged("c"), message.Message{Body: []byte("none")})
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		startConsumer(t, c, ConsumerOptions{
			Handler: got.handle, From: remoting.FromFirstOffset, Subscriptions: map[string]Expression{"T": Tags("a", "c")},
		})
		time.Sleep(time.Minute)
		if got.sorted() != "a c" {
			t.Errorf("got %s", got.sorted())
		}
		if offset, _ := a.committed("G", a.mq("T", 0)); offset != 4 {
			t.Errorf("committed %d", offset)
		}
		a.mu.Lock()
		sub, retry := a.subs["G"]["T"], a.subs["G"]["%RETRY%G"]
		a.mu.Unlock()
		if sub.SubString != "a || c" || !slices.Equal(sub.Codes, []int32{97, 99}) || sub.ExpressionType != "TAG" || retry.SubString != "*" {
			t.Errorf("subscriptions %+v, %+v", sub, retry)
		}
	})
}

// TestCondition: a broker is asked whether it understands a condition.
func TestCondition(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		opts := ConsumerOptions{Group: "G", Handler: got.handle, Subscriptions: map[string]Expression{"T": SQL("a > 1")}}
		cl.answer(addrA, remoting.ReqCheckClientConfig, always(remoting.CodeSubscriptionParseFailed))
		if _, err := NewConsumer(t.Context(), c, opts); !hasCode(err, remoting.CodeSubscriptionParseFailed) {
			t.Fatalf("got %v", err)
		}
		cl.answer(addrA, remoting.ReqCheckClientConfig, nil)
		startConsumer(t, c, opts) // the failed one has left
		synctest.Wait()
		var asked remoting.CheckClient
		reqs := cl.requests(addrA, remoting.ReqCheckClientConfig)
		if err := remoting.DecodeBody(reqs[len(reqs)-1].Body, &asked); err != nil || asked.Subscription.SubString != "a > 1" || asked.Group != "G" {
			t.Errorf("asked %+v, %v", asked, err)
		}
		for _, req := range cl.requests(addrA, remoting.ReqPullMessage) {
			if req.Ext.Value("topic") == "T" && req.Ext.Value("expressionType") != "SQL92" {
				t.Errorf("pull with %v", req.Ext)
			}
		}
	})
}

// TestReplica: the replica that the broker suggests is asked, and the master
// again when that fails.
func TestReplica(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		a.replicas = map[int64]string{1: addrB}
		a.commit("G", a.mq("T", 0), 1)
		a.store(a.mq("T", 0), texts("0", "1", "2", "3")...)
		cl.answer(addrA, remoting.ReqPullMessage, func(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
			var h remoting.PullMessageRequest
			if err := remoting.DecodeHeader(req.Ext, &h); err != nil || h.Topic != "T" || h.QueueOffset != 1 {
				return remoting.Later, nil
			}
			h.MaxMsgNums = 1
			resp, _ := a.pullNow(&h)
			var r remoting.PullMessageResponse
			if err := remoting.DecodeHeader(resp.Ext, &r); err != nil {
				return nil, err
			}
			r.SuggestWhichBrokerID = 1
			resp.SetHeader(&r)
			return resp, nil
		})
		cl.answer(addrB, remoting.ReqPullMessage, func(ctx context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
			if req.Ext.Value("topic") != "T" {
				return remoting.Later, nil
			}
			return hangUp(ctx, conn, req)
		})
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		startConsumer(t, c, ConsumerOptions{Handler: got.handle})
		time.Sleep(10 * time.Second)
		if got.sorted() != "1 2 3" {
			t.Errorf("got %s", got.sorted())
		}
		atB := slices.DeleteFunc(cl.requests(addrB, remoting.ReqPullMessage), func(req *remoting.Command) bool {
			return req.Ext.Value("topic") != "T"
		})
		if len(atB) != 1 || atB[0].Ext.Value("sysFlag") != "2" || atB[0].Ext.Value("queueOffset") != "2" {
			t.Errorf("the replica was asked %v", atB)
		}
		if len(cl.requests(addrB, remoting.ReqHeartBeat)) == 0 {
			t.Error("the replica did not hear of the group")
		}
	})
}

// TestBrokerThatDoesNotHold: empty answers at once do not make the consumer ask
// without end.
func TestBrokerThatDoesNotHold(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		cl.answer(addrA, remoting.ReqPullMessage, func(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
			resp := header(&remoting.PullMessageResponse{})
			resp.Code = remoting.CodePullNotFound
			return resp, nil
		})
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		startConsumer(t, c, ConsumerOptions{Handler: new(collector).handle})
		time.Sleep(10 * time.Second)
		if n := len(cl.requests(addrA, remoting.ReqPullMessage)); n > 250 {
			t.Errorf("%d pulls of two queues in 10 s", n)
		}
	})
}

// TestBroadcast: every member gets everything, nothing comes again, and the
// offsets are kept in a file.
func TestBroadcast(t *testing.T) {
	file := t.TempDir() + "/offsets.json"
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 2)
		c1, c2 := cl.client("c1"), cl.client("c2")
		defer c1.Close() //nolint:errcheck // never fails
		defer c2.Close() //nolint:errcheck // never fails
		var got1, got2, again collector
		got2.result = func(message.Ext) Result { return RetryLater() }
		cs1 := startConsumer(t, c1, ConsumerOptions{Handler: got1.handle, Broadcast: true, OffsetFile: file})
		startConsumer(t, c2, ConsumerOptions{Handler: got2.handle, Broadcast: true})
		synctest.Wait()
		a.store(a.mq("T", 0), texts("1")...)
		a.store(a.mq("T", 1), texts("2")...)
		synctest.Wait()
		if got1.sorted() != "1 2" || got2.sorted() != "1 2" {
			t.Errorf("got %s and %s", got1.sorted(), got2.sorted())
		}
		cs1.Close() //nolint:errcheck // never fails
		a.store(a.mq("T", 0), texts("3")...)
		startConsumer(t, c1, ConsumerOptions{Handler: again.handle, Broadcast: true, OffsetFile: file})
		time.Sleep(time.Second)
		if again.sorted() != "3" {
			t.Errorf("the second one got %s", again.sorted())
		}
		for _, code := range []int32{remoting.ReqGetConsumerListByGroup, remoting.ReqUpdateConsumerOffset, remoting.ReqConsumerSendMsgBack, remoting.ReqQueryConsumerOffset} {
			if n := len(cl.requests(addrA, code)); n != 0 {
				t.Errorf("%d requests %s", n, remoting.RequestName(code))
			}
		}
	})
}

// TestOffsetMovedAgainAndAgain: a broker that never agrees to an offset is not
// asked without end.
func TestOffsetMovedAgainAndAgain(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		cl.answer(addrA, remoting.ReqPullMessage, func(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
			resp := header(&remoting.PullMessageResponse{NextBeginOffset: 5})
			resp.Code = remoting.CodePullOffsetMoved
			return resp, nil
		})
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		startConsumer(t, c, ConsumerOptions{Handler: new(collector).handle})
		time.Sleep(10 * time.Second)
		if n := len(cl.requests(addrA, remoting.ReqPullMessage)); n < 10 || n > 250 {
			t.Errorf("%d pulls of two queues in 10 s", n)
		}
	})
}
