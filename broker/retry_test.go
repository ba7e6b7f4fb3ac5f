package broker

import (
	"math"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// sendBack is 36 for the message with an offset id.
func sendBack(t testing.TB, id, group string, change ...func(*remoting.SendBackRequest)) *remoting.SendBackRequest {
	t.Helper()
	_, at, err := message.ParseOffsetID(id)
	if err != nil {
		t.Fatal(err)
	}
	h := &remoting.SendBackRequest{Offset: int64(at), Group: group, OriginMsgID: id, OriginTopic: "T", MaxReconsumeTimes: -1}
	for _, f := range change {
		f(h)
	}
	return h
}

// last returns the newest message of a queue, and its offset id.
func (r *rig) last(topic string, queue int32) (message.Ext, string) {
	r.t.Helper()
	r.dispatched()
	_, end := r.b.queueRange(topic, queue)
	at, err := r.b.store.PhysicalOffsetOf(topic, queue, end-1)
	if err != nil {
		r.t.Fatal(err)
	}
	m, err := r.b.store.MessageAt(at)
	if err != nil {
		r.t.Fatal(err)
	}
	return m, m.MsgID()
}

// TestRetry: a message that is sent back comes again and again, and in the end
// goes to the dead letters: with the default it is tried 17 times.
func TestRetry(t *testing.T) {
	for _, c := range []struct {
		name  string
		group func(*remoting.GroupConfig)
		max   int32 // of the request; -1: none
		want  int   // times that it comes again
	}{
		{name: "default", max: -1, want: 16},
		{name: "of the group", group: func(g *remoting.GroupConfig) { g.RetryMaxTimes = 3 }, max: -1, want: 3},
		{name: "of the request", max: 2, want: 2},
		{name: "never", max: 0, want: 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startRig(t, func(o *Options) { o.Store.DelayLevels = message.DefaultDelayLevels })
				r.createTopic("T", 1)
				if c.group != nil {
					r.updateGroup("G", c.group)
				}
				id := r.send("T", 0, "m", "KEYS", "k").MsgID
				first := id
				var waited time.Duration
				for i := 0; ; i++ {
					start := time.Now()
					r.ok(remoting.ReqConsumerSendMsgBack, sendBack(t, id, "G", func(h *remoting.SendBackRequest) { h.MaxReconsumeTimes = c.max }), nil)
					if i == c.want {
						break
					}
					h := holdHeader("%RETRY%G", 0, int64(i))
					h.ConsumerGroup = "G"
					var m message.Ext
					for {
						if resp := r.call(remoting.ReqPullMessage, h, nil); resp.Code == 0 {
							m = records(t, resp.Body)[0]
							break
						}
					}
					waited += time.Since(start)
					id = m.MsgID()
					want := map[string]string{"RETRY_TOPIC": "T", "ORIGIN_MESSAGE_ID": first, "DELAY": strconv.Itoa(3 + i), "KEYS": "k", "REAL_TOPIC": "%RETRY%G", "REAL_QID": "0", "WAIT": "false"}
					for name, v := range want {
						if got, _ := m.Properties.Get(name); got != v {
							t.Fatalf("try %d: property %s=%q, want %q", i, name, got, v)
						}
					}
					if m.ReconsumeTimes != int32(i+1) || string(m.Body) != "m" || m.BornTimestamp != 1_700_000_000_000 {
						t.Fatalf("try %d: %+v", i, m)
					}
				}
				dead, _ := r.last("%DLQ%G", 0)
				delay, _ := dead.Properties.Get("DELAY")
				if dead.ReconsumeTimes != int32(c.want+1) || delay != "0" {
					t.Errorf("dead letter %+v", dead)
				}
				if topic, _ := r.b.topics.Get("%DLQ%G"); topic.ReadQueueNums != 1 || topic.Perm != 6 {
					t.Errorf("topic of dead letters %+v", topic)
				}
				// 10 s, 30 s, 1 to 10, 20, 30 min, 1, 2 h
				if want := 10*time.Second + 30*time.Second + 55*time.Minute + 50*time.Minute + 3*time.Hour; c.want == 16 && (waited < want || waited > want+time.Second) {
					t.Errorf("all tries took %v, want %v", waited, want)
				}
			})
		})
	}
}

// TestSendBack: special wishes and what is refused.
func TestSendBack(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	id := r.send("T", 0, "m").MsgID
	_, queued := r.b.store.Range()
	r.updateGroup("NoRetry", func(g *remoting.GroupConfig) { g.RetryQueueNums = 0 })
	r.updateGroup("Many", func(g *remoting.GroupConfig) { g.RetryQueueNums = 3 })

	t.Run("straight to the dead letters", func(t *testing.T) {
		for _, level := range []int32{-1, math.MinInt32} {
			r.ok(remoting.ReqConsumerSendMsgBack, sendBack(t, id, "G1", func(h *remoting.SendBackRequest) { h.DelayLevel = level }), nil)
			if m, _ := r.last("%DLQ%G1", 0); m.ReconsumeTimes != 1 {
				t.Errorf("level %d: %+v", level, m)
			}
		}
	})
	t.Run("level as asked", func(t *testing.T) {
		for level, want := range map[int32]int32{5: 5, math.MaxInt32: 18} {
			r.ok(remoting.ReqConsumerSendMsgBack, sendBack(t, id, "G2", func(h *remoting.SendBackRequest) { h.DelayLevel = level }), nil)
			m, _ := r.last(message.ScheduleTopic, want-1)
			if topic, _ := m.Properties.Get(message.PropRealTopic); topic != "%RETRY%G2" {
				t.Errorf("level %d: %+v", level, m)
			}
		}
	})
	t.Run("an old client's maximum does not count", func(t *testing.T) {
		req := remoting.NewRequest(remoting.ReqConsumerSendMsgBack, sendBack(t, id, "G3", func(h *remoting.SendBackRequest) { h.MaxReconsumeTimes = 0 }))
		req.Version = remoting.Version3_4_9 - 1
		if resp, err := r.invoke(t.Context(), req); err != nil || resp.Code != 0 {
			t.Fatal(resp, err)
		}
		if _, ok := r.b.topics.Get("%DLQ%G3"); ok {
			t.Error("it went to the dead letters")
		}
	})
	t.Run("several queues", func(t *testing.T) {
		r.ok(remoting.ReqConsumerSendMsgBack, sendBack(t, id, "Many", func(h *remoting.SendBackRequest) { h.UnitMode = true }), nil)
		if topic, _ := r.b.topics.Get("%RETRY%Many"); topic.ReadQueueNums != 3 || topic.TopicSysFlag != metadata.TopicFlagUnitSub {
			t.Errorf("retry topic %+v", topic)
		}
	})
	t.Run("group without retries", func(t *testing.T) {
		_, before := r.b.store.Range()
		r.ok(remoting.ReqConsumerSendMsgBack, sendBack(t, id, "NoRetry"), nil)
		if _, after := r.b.store.Range(); after != before {
			t.Error("something was stored")
		}
	})
	t.Run("a message that came from a transaction", func(t *testing.T) {
		h := sendHeader("T", 0, "TRAN_MSG", "true", "REAL_TOPIC", "elsewhere")
		h.SysFlag = 8
		res, err := r.b.store.Put(t.Context(), &message.Message{Topic: "T", Body: []byte("tx"), SysFlag: 8, Properties: message.Properties(h.Properties), PreparedTransactionOffset: 17})
		if err != nil {
			t.Fatal(err)
		}
		r.ok(remoting.ReqConsumerSendMsgBack, sendBack(t, res.MsgID(), "G4", func(h *remoting.SendBackRequest) { h.DelayLevel = -1 }), nil)
		m, _ := r.last("%DLQ%G4", 0)
		if m.SysFlag.Transaction() != 0 || m.PreparedTransactionOffset != 0 {
			t.Errorf("dead letter %+v", m)
		}
		if real, _ := m.Properties.Get("REAL_TOPIC"); real != "" {
			t.Errorf("it names the topic %q", real)
		}
	})
	for _, c := range []struct {
		name   string
		change func(*remoting.SendBackRequest)
		config map[string]string
		code   int32
	}{
		{"no such message", func(h *remoting.SendBackRequest) { h.Offset = int64(queued) + 1<<30 }, nil, remoting.CodeSystemError},
		{"inside a message", func(h *remoting.SendBackRequest) { h.Offset++ }, nil, remoting.CodeSystemError},
		{"negative", func(h *remoting.SendBackRequest) { h.Offset = -1 }, nil, remoting.CodeSystemError},
		{"smallest", func(h *remoting.SendBackRequest) { h.Offset = math.MinInt64 }, nil, remoting.CodeSystemError},
		{"largest", func(h *remoting.SendBackRequest) { h.Offset = math.MaxInt64 }, nil, remoting.CodeSystemError},
		{"group that may not be made", func(h *remoting.SendBackRequest) { h.Group = "G6" }, map[string]string{"autoCreateSubscriptionGroup": "false"}, remoting.CodeSubscriptionGroupNotExist},
		{"bad group", func(h *remoting.SendBackRequest) { h.Group = "a/b" }, nil, remoting.CodeSubscriptionGroupNotExist},
		{"read-only broker", nil, map[string]string{"brokerPermission": "4"}, remoting.CodeNoPermission},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer r.configure(c.config)()
			h := sendBack(t, id, "G5")
			if c.change != nil {
				c.change(h)
			}
			r.refused(c.code, remoting.ReqConsumerSendMsgBack, h, nil)
		})
	}
}

// TestSendToRetryTopic: what consumers send to their retry topic themselves goes
// to the dead letters after too many tries, or when they consume in order.
func TestSendToRetryTopic(t *testing.T) {
	synctest.Test(t, testSendToRetryTopic)
}

func testSendToRetryTopic(t *testing.T) {
	r := startRig(t)
	send := func(group string, times, most int32, props ...string) {
		t.Helper()
		h := sendHeader("%RETRY%"+group, 0, props...)
		h.ReconsumeTimes, h.MaxReconsumeTimes = times, most
		r.ok(remoting.ReqSendMessageV2, h, []byte("m"))
		r.dispatched()
	}
	count := func(topic string) int64 {
		_, end := r.b.queueRange(topic, 0)
		return int64(end)
	}
	send("G", 3, 3, "DELAY", "2")
	if n := count("%DLQ%G"); n != 0 {
		t.Errorf("%d dead letters; only more than the maximum are", n)
	}
	time.Sleep(2 * time.Second)
	synctest.Wait()
	if n := count("%RETRY%G"); n != 1 {
		t.Errorf("%d retries, want 1", n)
	}
	send("G", 4, 3, "DELAY", "2")
	if n := count("%DLQ%G"); n != 1 {
		t.Errorf("%d dead letters, want 1", n)
	}
	send("G", 16, -1)
	send("G", 17, -1) // the group's own maximum
	if n := count("%DLQ%G"); n != 2 {
		t.Errorf("%d dead letters, want 2", n)
	}
	// A dead letter that was a transaction's message is none any more.
	send("G", 17, 3, "TRAN_MSG", "true", "PGROUP", "PG")
	if n := count("%DLQ%G"); n != 3 {
		t.Errorf("%d dead letters, want 3", n)
	}
	if n := r.b.transactions.snapshot().Open; n != 0 {
		t.Errorf("%d transactions are open", n)
	}

	// Consumption in order: whoever holds a queue gives up.
	lock := remoting.LockBatch{ConsumerGroup: "O", ClientID: "c", Queues: []remoting.MessageQueue{{Topic: "T", BrokerName: "broker-a"}}}
	r.ok(remoting.ReqLockBatchMQ, nil, remoting.EncodeBody(&lock))
	send("O", 1, math.MaxInt32, "DELAY", "3")
	if n := count("%DLQ%O"); n != 1 {
		t.Errorf("%d dead letters of the group that holds a lock, want 1", n)
	}
	if m, _ := r.last("%DLQ%O", 0); m.ReconsumeTimes != 1 {
		t.Errorf("dead letter %+v", m)
	}
	r.ok(remoting.ReqUnlockBatchMQ, nil, remoting.EncodeBody(&lock))
	send("O", 1, math.MaxInt32)
	if n := count("%DLQ%O"); n != 1 {
		t.Errorf("%d dead letters without a lock, want 1", n)
	}
}

// TestLocks: 41 and 42 over the wire; a lock lasts a minute.
func TestLocks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		q := func(n int32) remoting.MessageQueue {
			return remoting.MessageQueue{Topic: "T", BrokerName: "broker-a", QueueID: n}
		}
		lock := func(client string, queues ...remoting.MessageQueue) int {
			b := remoting.LockBatch{ConsumerGroup: "G", ClientID: client, Queues: queues}
			return len(body(t, r.ok(remoting.ReqLockBatchMQ, nil, remoting.EncodeBody(&b)), new(remoting.LockBatchResult)).Locked)
		}
		if n := lock("a", q(0), q(1)); n != 2 {
			t.Fatalf("%d locked", n)
		}
		if n := lock("b", q(0), q(2)); n != 1 {
			t.Errorf("%d locked, want the free one", n)
		}
		time.Sleep(50 * time.Second)
		lock("a", q(0))
		time.Sleep(20 * time.Second)
		if n := lock("b", q(0), q(1)); n != 1 {
			t.Errorf("%d locked, want the expired one", n)
		}
		r.refused(remoting.CodeSystemError, remoting.ReqLockBatchMQ, nil, nil)
		r.refused(remoting.CodeSystemError, remoting.ReqUnlockBatchMQ, nil, []byte("{}"))
	})
}
