package client

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// call has the broker at addr ask the only client that is connected to it.
func (cl *cluster) call(addr string, req *remoting.Command) *remoting.Command {
	cl.t.Helper()
	conns := cl.servers[addr].Conns()
	if len(conns) != 1 {
		cl.t.Fatalf("%d connections", len(conns))
	}
	resp, err := conns[0].Invoke(cl.t.Context(), req)
	if err != nil {
		cl.t.Fatal(err)
	}
	return resp
}

// TestTransaction: what the local transaction comes to is told to the broker,
// with what it needs to find the half message.
func TestTransaction(t *testing.T) {
	tests := []struct {
		name   string
		answer answer
		local  TransactionState
		want   int32
	}{
		{"commit", nil, TransactionCommit, remoting.TransactionCommit},
		{"rollback", nil, TransactionRollback, remoting.TransactionRollback},
		{"unknown", nil, TransactionUnknown, remoting.TransactionUnknown},
		{"not stored safely", stored(remoting.CodeFlushDiskTimeout), -1, remoting.TransactionRollback},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, cl *cluster) {
				a := cl.brokers["a"]
				a.topic("T", 1)
				cl.answer(addrA, remoting.ReqSendMessageV2, func(ctx context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
					if len(cl.requests(addrA, remoting.ReqHeartBeat)) == 0 {
						t.Error("a half message comes before the broker knows whom to ask")
					}
					if test.answer == nil {
						return remoting.Later, nil
					}
					return test.answer(ctx, conn, req)
				})
				c := cl.client("c1")
				defer c.Close() //nolint:errcheck // never fails
				p := newProducer(t, c, ProducerOptions{})
				called := false
				res, state, err := p.SendInTransaction(t.Context(), &message.Message{Topic: "T", Body: []byte("x")},
					func(_ context.Context, half SendResult) TransactionState {
						called = true
						return test.local
					})
				if err != nil || called != (test.local >= 0) || state.flag() != test.want {
					t.Errorf("got %v, %v, called %v", state, err, called)
				}
				synctest.Wait()
				_, at, err := message.ParseOffsetID(res.OffsetMsgID)
				if err != nil || len(a.ended) != 1 {
					t.Fatalf("%v, ended %+v", err, a.ended)
				}
				want := remoting.EndTransactionRequest{
					Topic: "T", ProducerGroup: "PG", TranStateTableOffset: res.QueueOffset, CommitLogOffset: int64(at), CommitOrRollback: test.want,
					MsgID: res.MsgID, TransactionID: res.TransactionID,
				}
				if a.ended[0] != want || !cl.requests(addrA, remoting.ReqEndTransaction)[0].IsOneway() {
					t.Errorf("told %+v, want %+v", a.ended[0], want)
				}
				h, err := remoting.DecodeSendMessage(cl.requests(addrA, remoting.ReqSendMessageV2)[0])
				props := message.Properties(h.Properties).Map()
				if err != nil || message.SysFlag(h.SysFlag).Transaction() != message.TxPrepared ||
					props[message.PropTransactionPrepared] != "true" || props[message.PropProducerGroup] != "PG" {
					t.Errorf("sent %+v, %v", h, err)
				}
			})
		})
	}
}

func TestTransactionRefused(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{})
		local := func(context.Context, SendResult) TransactionState { t.Error("called"); return TransactionCommit }
		for _, m := range []*message.Message{
			{Topic: "T", Properties: message.NewProperties(message.PropDelay, "1")},
			{Topic: "Missing"},
		} {
			if _, state, err := p.SendInTransaction(t.Context(), m, local); err == nil || state != TransactionUnknown {
				t.Errorf("got %v, %v", state, err)
			}
		}
	})
}

// TestTransactionCheck: the broker asks and the producer of the group answers on
// the same connection.
func TestTransactionCheck(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var asked []message.Ext
		p := newProducer(t, c, ProducerOptions{Check: func(_ context.Context, m *message.Ext) TransactionState {
			asked = append(asked, *m)
			return TransactionCommit
		}})
		newProducer(t, c, ProducerOptions{Group: "other"})
		if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		check := func(group string, body []byte) {
			req := remoting.NewRequest(remoting.ReqCheckTransactionState, &remoting.CheckTransactionRequest{
				Topic: message.HalfTopic, TranStateTableOffset: 5, CommitLogOffset: 77, MsgID: "KEY", TransactionID: "TX", BrokerName: "a",
			})
			req.Body = body
			if body == nil {
				var enc message.Encoder
				rec, err := enc.Append(nil, &message.Message{Topic: "T", Body: []byte("half"),
					Properties: message.NewProperties(message.PropProducerGroup, group, message.PropUniqKey, "KEY")})
				if err != nil {
					t.Fatal(err)
				}
				req.Body = rec
			}
			if err := cl.servers[addrA].Conns()[0].InvokeOneway(req); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		check("other", nil) // has nobody to ask
		check("nobody", nil)
		check("PG", []byte{1, 2, 3})
		if len(asked) != 0 || len(a.ended) != 0 {
			t.Errorf("asked %v, ended %v", asked, a.ended)
		}
		check("PG", nil)
		want := remoting.EndTransactionRequest{
			Topic: message.HalfTopic, ProducerGroup: "PG", TranStateTableOffset: 5, CommitLogOffset: 77,
			CommitOrRollback: remoting.TransactionCommit, FromTransactionCheck: true, MsgID: "KEY", TransactionID: "TX",
		}
		if len(asked) != 1 || string(asked[0].Body) != "half" || len(a.ended) != 1 || a.ended[0] != want {
			t.Errorf("asked %+v, ended %+v", asked, a.ended)
		}
	})
}

// TestRequestReply: a request is answered by a consumer, through the broker.
func TestRequestReply(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		a.topic("C_REPLY_TOPIC", 1)
		asker, answerer := cl.client("asker"), cl.client("answerer")
		defer asker.Close()    //nolint:errcheck // never fails
		defer answerer.Close() //nolint:errcheck // never fails
		p, q := newProducer(t, asker, ProducerOptions{}), newProducer(t, answerer, ProducerOptions{CompressAbove: 5})
		// The broker hands a reply to the connection that the asker is known by.
		cl.answer(addrA, remoting.ReqSendReplyMessageV2, func(ctx context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
			h, err := remoting.DecodeSendMessage(req)
			if err != nil {
				return nil, err
			}
			push := remoting.NewRequest(remoting.ReqPushReplyMessageToClient, &remoting.ReplyMessageRequest{
				Topic: h.Topic, SysFlag: h.SysFlag, Properties: h.Properties, BornHost: "1.2.3.4:5", StoreHost: "/5.6.7.8:9", StoreTimestamp: 12,
			})
			push.Body = req.Body
			for _, conn := range cl.servers[addrA].Conns() {
				if resp, err := conn.Invoke(ctx, push); err != nil || resp.Code != remoting.CodeSuccess {
					t.Errorf("push: %v, %v", resp, err)
				}
			}
			return remoting.Later, nil
		})
		startConsumer(t, answerer, ConsumerOptions{From: remoting.FromFirstOffset, Handler: func(ctx context.Context, ms []message.Ext) Result {
			if string(ms[0].Body) == "no answer" {
				return Consumed()
			}
			if _, err := q.Reply(ctx, &ms[0], append([]byte("answer to "), ms[0].Body...)); err != nil {
				t.Error(err)
			}
			return Consumed()
		}})
		got, err := p.Request(t.Context(), &message.Message{Topic: "T", Body: []byte(strings.Repeat("question ", 10))})
		if err != nil || string(got.Body) != "answer to "+strings.Repeat("question ", 10) || got.SysFlag != 0 {
			t.Errorf("got %q, flag %#x, %v", got.Body, got.SysFlag, err)
		}
		if got.BornHost.String() != "1.2.3.4:5" || got.StoreHost.String() != "5.6.7.8:9" || got.StoreTimestamp != 12 {
			t.Errorf("got %+v", got)
		}
		asked := a.stored(a.mq("T", 0))[0].Properties.Map()
		if asked[propReplyTo] != "asker" || asked[propTTL] != "3000" || len(asked[propCorrelationID]) < 20 {
			t.Errorf("asked with %q", asked)
		}
		began := time.Now()
		if _, err := p.Request(t.Context(), &message.Message{Topic: "T", Body: []byte("no answer")}); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != defaultTTL {
			t.Errorf("got %v after %v", err, time.Since(began))
		}
		asker.mu.Lock()
		if n := len(asker.mu.requests); n != 0 {
			t.Errorf("%d requests left over", n)
		}
		asker.mu.Unlock()
		if _, err := NewReply(&message.Ext{}, nil); err == nil {
			t.Error("a reply to a message that does not ask for one")
		}
	})
}

// TestConsumerAnswers: what admins have brokers ask of a consumer.
func TestConsumerAnswers(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		mq := a.mq("T", 0)
		a.store(mq, texts("1", "2", "3")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		got.result = func(m message.Ext) Result {
			if m.Topic == "T" && string(m.Body) == "fails" {
				return RetryLater()
			}
			return Consumed()
		}
		cs := startConsumer(t, c, ConsumerOptions{Handler: got.handle, From: remoting.FromFirstOffset})
		time.Sleep(2 * time.Second)

		resp := cl.call(addrA, remoting.NewRequest(remoting.ReqGetConsumerStatusFromClient, &remoting.ConsumerStatusRequest{Topic: "T", Group: "G"}))
		var status remoting.ConsumerStatus
		if err := remoting.DecodeBody(resp.Body, &status); err != nil || len(status.MessageQueueTable) != 1 || status.MessageQueueTable[mq] != 3 {
			t.Errorf("221: %+v, %v", status, err)
		}
		resp = cl.call(addrA, remoting.NewRequest(remoting.ReqGetConsumerRunningInfo, &remoting.RunningInfoRequest{ConsumerGroup: "G", ClientID: "c1"}))
		var info remoting.ConsumerRunningInfo
		if err := remoting.DecodeBody(resp.Body, &info); err != nil || info.Properties["PROP_CONSUME_TYPE"] != "CONSUME_PASSIVELY" ||
			len(info.Subscriptions) != 2 || info.MQTable[mq].CommitOffset != 3 {
			t.Errorf("307: %+v, %v", info, err)
		}
		for body, want := range map[string]remoting.ConsumeResult{"direct": remoting.ConsumedSuccess, "fails": remoting.ConsumedLater} {
			var enc message.Encoder
			rec, err := enc.Append(nil, &message.Message{Topic: "%RETRY%G", Body: []byte(body), Properties: message.NewProperties(propRetryTopic, "T")})
			if err != nil {
				t.Fatal(err)
			}
			req := remoting.NewRequest(remoting.ReqConsumeMessageDirectly, &remoting.ConsumeDirectlyRequest{ConsumerGroup: "G", ClientID: "c1"})
			req.Body = rec
			var result remoting.ConsumeDirectlyResult
			if err := remoting.DecodeBody(cl.call(addrA, req).Body, &result); err != nil || result.Result != want {
				t.Errorf("309 of %s: %+v, %v", body, result, err)
			}
		}
		if s := got.sorted(); s != "1 2 3 direct fails" {
			t.Errorf("got %s", s)
		}
		for _, req := range []*remoting.Command{
			remoting.NewRequest(remoting.ReqConsumeMessageDirectly, &remoting.ConsumeDirectlyRequest{ConsumerGroup: "G"}), // no body
			remoting.NewRequest(remoting.ReqGetConsumerRunningInfo, &remoting.RunningInfoRequest{ConsumerGroup: "nobody"}),
			remoting.NewRequest(remoting.ReqGetConsumerStatusFromClient, nil),
		} {
			if resp := cl.call(addrA, req); resp.Code != remoting.CodeSystemError {
				t.Errorf("%v: got %v", req, resp)
			}
		}
		// 220: brokers of 4.9 reset offsets through the members.
		req := remoting.NewRequest(remoting.ReqResetConsumerClientOffset, &remoting.ResetOffsetRequest{Topic: "T", Group: "G", Timestamp: 1, QueueID: -1, Offset: -1})
		req.Body = remoting.EncodeBody(&remoting.ResetOffset{OffsetTable: map[remoting.MessageQueue]int64{
			mq: 1, a.mq("T", 9): 5, a.mq("%RETRY%G", 0): 5,
		}})
		cl.call(addrA, req)
		time.Sleep(time.Second)
		if s := got.sorted(); s != "1 2 2 3 3 direct fails" {
			t.Errorf("after a reset: got %s", s)
		}
		cs.Close() //nolint:errcheck // never fails
	})
}
