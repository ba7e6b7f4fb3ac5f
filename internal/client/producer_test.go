package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

func newProducer(t *testing.T, c *Client, opts ProducerOptions) *Producer {
	t.Helper()
	if opts.Group == "" {
		opts.Group = "PG"
	}
	p, err := NewProducer(c, opts)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestSendInTurn: sends go to all queues of all brokers, one after the other,
// and carry what the message says.
func TestSendInTurn(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 2)
		cl.brokers["b"].topic("T", 3)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{})
		seen := make(map[remoting.MessageQueue]int)
		for i := range 10 {
			m := &message.Message{Topic: "T", Flag: 7, Body: fmt.Append(nil, i), Properties: message.NewProperties(message.PropTags, "x")}
			res, err := p.Send(t.Context(), m)
			if err != nil {
				t.Fatal(err)
			}
			seen[res.Queue]++
			if m.UniqKey() != "" {
				t.Error("the message was changed")
			}
			got, err := c.ViewMessage(t.Context(), res.OffsetMsgID)
			if err != nil {
				t.Fatal(err)
			}
			if got.UniqKey() != res.MsgID || len(res.MsgID) < 32 || got.Tags() != "x" || got.Flag != 7 || string(got.Body) != fmt.Sprint(i) ||
				got.QueueID != res.Queue.QueueID || int64(got.QueueOffset) != res.QueueOffset || res.Tries != 1 || res.Region != "R" {
				t.Errorf("sent %+v, stored %+v", res, got)
			}
		}
		for q, n := range seen {
			if n != 2 {
				t.Errorf("%v got %d of 10 messages for 5 queues", q, n)
			}
		}
		if len(seen) != 5 {
			t.Errorf("queues %v", seen)
		}
	})
}

// TestSendTries: what a broker answers decides whether another one is asked.
func TestSendTries(t *testing.T) {
	tests := []struct {
		name   string
		first  answer // of the broker that is asked first
		opts   ProducerOptions
		tries  int
		status SendStatus
		code   int32 // of the error, -1: none
		took   time.Duration
	}{
		{"success", nil, ProducerOptions{}, 1, SendOK, -1, 0},
		{"system error", always(remoting.CodeSystemError), ProducerOptions{}, 2, SendOK, -1, 0},
		{"busy", always(remoting.CodeSystemBusy), ProducerOptions{}, 2, SendOK, -1, 0},
		{"no permission", always(remoting.CodeNoPermission), ProducerOptions{}, 2, SendOK, -1, 0},
		{"going away", always(remoting.CodeGoAway), ProducerOptions{}, 2, SendOK, -1, 0},
		{"illegal message", always(remoting.CodeMessageIllegal), ProducerOptions{}, 1, 0, remoting.CodeMessageIllegal, 0},
		{"no tries left", always(remoting.CodeSystemBusy), ProducerOptions{Retries: -1}, 1, 0, remoting.CodeSystemBusy, 0},
		{"hangs up", hangUp, ProducerOptions{}, 2, SendOK, -1, 0},
		{"silent", silent, ProducerOptions{}, 2, SendOK, -1, 3 * time.Second},
		{"silent, own time", silent, ProducerOptions{Timeout: time.Second}, 2, SendOK, -1, time.Second},
		{"not flushed", stored(remoting.CodeFlushDiskTimeout), ProducerOptions{}, 1, FlushDiskTimeout, -1, 0},
		{"no replica", stored(remoting.CodeSlaveNotAvailable), ProducerOptions{}, 1, SlaveNotAvailable, -1, 0},
		{"not copied", stored(remoting.CodeFlushSlaveTimeout), ProducerOptions{}, 1, FlushSlaveTimeout, -1, 0},
		{"not copied, tried again", stored(remoting.CodeFlushSlaveTimeout), ProducerOptions{RetryNotStored: true}, 2, SendOK, -1, 0},
		{"not copied, no other try", stored(remoting.CodeFlushSlaveTimeout), ProducerOptions{RetryNotStored: true, Retries: -1}, 1, FlushSlaveTimeout, -1, 0},
		{"answer without its fields", always(remoting.CodeSuccess), ProducerOptions{}, 1, 0, -2, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, cl *cluster) {
				cl.brokers["a"].topic("T", 1)
				cl.brokers["b"].topic("T", 1)
				c := cl.client("c1")
				defer c.Close() //nolint:errcheck // never fails
				p := newProducer(t, c, test.opts)
				once := func(ctx context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
					if len(cl.requests(addrA, remoting.ReqSendMessageV2))+len(cl.requests(addrB, remoting.ReqSendMessageV2)) > 1 || test.first == nil {
						return remoting.Later, nil
					}
					return test.first(ctx, conn, req)
				}
				cl.answer(addrA, remoting.ReqSendMessageV2, once)
				cl.answer(addrB, remoting.ReqSendMessageV2, once)
				began := time.Now()
				res, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("x")})
				code, ok := Code(err)
				if !ok && err != nil {
					code = -2
				} else if !ok {
					code = -1
				}
				if res.Tries != test.tries || res.Status != test.status || code != test.code {
					t.Errorf("got %+v, %v", res, err)
				}
				if took := time.Since(began); took != test.took {
					t.Errorf("took %v, want %v", took, test.took)
				}
				a, b := len(cl.requests(addrA, remoting.ReqSendMessageV2)), len(cl.requests(addrB, remoting.ReqSendMessageV2))
				if a+b != test.tries || a > 1 || b > 1 {
					t.Errorf("%d tries at a, %d at b", a, b)
				}
			})
		})
	}
}

// stored answers that the message is stored, with a code that says but.
func stored(code int32) answer {
	return func(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
		resp := header(&remoting.SendMessageResponse{MsgID: "0A0000010000277F0000000000000001"})
		resp.Code = code
		return resp, nil
	}
}

// TestSendEndsWithContext: a caller that does not wait any longer is not held up
// by tries that are left.
func TestSendEndsWithContext(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		cl.answer(addrA, remoting.ReqSendMessageV2, silent)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		res, err := p.Send(ctx, &message.Message{Topic: "T", Body: []byte("x")})
		if !errors.Is(err, context.DeadlineExceeded) || res.Tries != 1 {
			t.Errorf("got %v after %d tries", err, res.Tries)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v", took)
		}
	})
}

// TestDeadBrokerIsPassedOver: after a failure the broker is not asked again for
// a while, then it is.
func TestDeadBrokerIsPassedOver(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		cl.brokers["b"].topic("T", 1)
		cl.refuse(addrA, true)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{})
		send := func() string {
			t.Helper()
			res, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("x")})
			if err != nil {
				t.Fatal(err)
			}
			return res.Queue.BrokerName
		}
		for range 2 { // one of them tries a first
			send()
		}
		synctest.Wait()
		tried := cl.dialled(addrA)
		for range 10 {
			if at := send(); at != "b" {
				t.Errorf("sent to %s", at)
			}
		}
		if n := cl.dialled(addrA) - tried; tried == 0 || n > 0 {
			t.Errorf("%d tries to reach the dead broker after %d", n, tried)
		}
		cl.refuse(addrA, false)
		time.Sleep(brokerAvoided + time.Millisecond)
		if got := send() + send(); got != "ab" && got != "ba" {
			t.Errorf("sent to %s", got)
		}
	})
}

// TestUnansweredConnectionIsClosed: a peer that takes requests and never answers
// loses its connection after three of them, so that a new one can be made.
func TestUnansweredConnectionIsClosed(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		cl.answer(addrA, remoting.ReqGetMaxOffset, silent)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		for range maxTimeouts {
			if dials := cl.dialled(addrA); dials > 1 {
				t.Errorf("%d connections", dials)
			}
			if _, err := c.MaxOffset(t.Context(), cl.brokers["a"].mq("T", 0)); !remoting.IsTimeout(err) {
				t.Fatalf("got %v", err)
			}
		}
		cl.answer(addrA, remoting.ReqGetMaxOffset, nil)
		if _, err := c.MaxOffset(t.Context(), cl.brokers["a"].mq("T", 0)); err != nil || cl.dialled(addrA) != 2 {
			t.Errorf("%d connections, %v", cl.dialled(addrA), err)
		}
		// A caller's own short patience says nothing about the peer.
		cl.answer(addrA, remoting.ReqGetMaxOffset, silent)
		for range 2 * maxTimeouts {
			ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
			if _, err := c.MaxOffset(ctx, cl.brokers["a"].mq("T", 0)); !remoting.IsTimeout(err) {
				t.Fatalf("got %v", err)
			}
			cancel()
		}
		cl.answer(addrA, remoting.ReqGetMaxOffset, nil)
		if _, err := c.MaxOffset(t.Context(), cl.brokers["a"].mq("T", 0)); err != nil || cl.dialled(addrA) != 2 {
			t.Errorf("%d connections, %v", cl.dialled(addrA), err)
		}
	})
}

// TestNewTopic: a topic that does not exist is sent to by the route of the
// template, and by its own as soon as a refresh shows it.
func TestNewTopic(t *testing.T) {
	tests := []struct {
		name     string
		template int32 // queues of TBW102, 0: there is none
		nums     int
		want     int32
	}{
		{"template with more queues", 8, 0, 4},
		{"template with fewer queues", 2, 0, 2},
		{"other number", 8, 6, 6},
		{"no template", 0, 0, 0},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, cl *cluster) {
				if test.template > 0 {
					cl.brokers["a"].topic(defaultTopic, test.template)
				}
				c := cl.client("c1")
				defer c.Close() //nolint:errcheck // never fails
				p := newProducer(t, c, ProducerOptions{TopicQueues: test.nums})
				seen := make(map[int32]bool)
				for range 8 {
					res, err := p.Send(t.Context(), &message.Message{Topic: "New", Body: []byte("x")})
					if test.want == 0 {
						if code, ok := Code(err); !ok || code != remoting.CodeTopicNotExist {
							t.Fatalf("got %+v, %v", res, err)
						}
						return
					}
					if err != nil {
						t.Fatal(err)
					}
					seen[res.Queue.QueueID] = true
				}
				if len(seen) != int(test.want) {
					t.Errorf("sent to the queues %v", seen)
				}
				// Asked once for the topic and once for the template.
				if n := len(cl.requests(nsAddr, remoting.ReqGetRouteInfoByTopic)); n != 2 {
					t.Errorf("%d look-ups", n)
				}
				cl.brokers["a"].topic("New", 1)
				time.Sleep(routeInterval + time.Second)
				for range 3 {
					if res, err := p.Send(t.Context(), &message.Message{Topic: "New", Body: []byte("x")}); err != nil || res.Queue.QueueID != 0 {
						t.Errorf("got %+v, %v", res, err)
					}
				}
			})
		})
	}
}

// TestSendAsyncIsBounded: no more than MaxInFlight messages are under way.
func TestSendAsyncIsBounded(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		gate := make(chan struct{})
		cl.answer(addrA, remoting.ReqSendMessageV2, func(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
			<-gate
			return remoting.Later, nil
		})
		c := cl.client("c1", func(o *Options) { o.MaxInFlight = 2 })
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{Timeout: time.Hour})
		results := make(chan error, 10)
		done := func(_ SendResult, err error) { results <- err }
		m := &message.Message{Topic: "T", Body: []byte("x")}
		for range 2 {
			if err := p.SendAsync(t.Context(), m, done); err != nil {
				t.Fatal(err)
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.SendAsync(ctx, m, done); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("third send: %v", err)
		}
		third := make(chan error)
		go func() { third <- p.SendBatchAsync(t.Context(), []*message.Message{m, m}, done) }()
		synctest.Wait()
		if len(third) != 0 || len(results) != 0 {
			t.Error("there is no room, but a send went on")
		}
		gate <- struct{}{}
		if err := <-third; err != nil {
			t.Error(err)
		}
		close(gate)
		p.Close() //nolint:errcheck // never fails
		if len(results) != 3 {
			t.Errorf("%d of 3 results before Close returned", len(results))
		}
		for range len(results) {
			if err := <-results; err != nil {
				t.Error(err)
			}
		}
		if err := p.SendAsync(t.Context(), m, done); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := p.Send(t.Context(), m); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if n := len(cl.brokers["a"].stored(cl.brokers["a"].mq("T", 0))); n != 4 {
			t.Errorf("%d messages stored", n)
		}
	})
}

// TestSendOneway: such a request says that it wants no answer.
func TestSendOneway(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		c := cl.client("c1", func(o *Options) { o.MaxInFlightBytes = 4 << 10 })
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{CompressAbove: -1})
		for range 100 {
			if err := p.SendOneway(t.Context(), &message.Message{Topic: "T", Body: make([]byte, 3000)}); err != nil {
				t.Fatal(err)
			}
		}
		synctest.Wait()
		reqs := cl.requests(addrA, remoting.ReqSendMessageV2)
		if len(reqs) != 100 || !reqs[0].IsOneway() || len(a.stored(a.mq("T", 0))) != 100 {
			t.Errorf("%d requests, oneway %v", len(reqs), reqs[0].IsOneway())
		}
	})
}

// TestSendBatch: a batch is one request and several messages.
func TestSendBatch(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{MaxMessageSize: 5000})
		var ms []*message.Message
		for i := range 3 {
			ms = append(ms, &message.Message{Topic: "T", Body: fmt.Append(nil, i), Flag: int32(i), Properties: message.NewProperties(message.PropKeys, fmt.Sprint("k", i))})
		}
		res, err := p.SendBatch(t.Context(), ms)
		if err != nil {
			t.Fatal(err)
		}
		got := a.stored(a.mq("T", 0))
		if len(got) != 3 || len(cl.requests(addrA, remoting.ReqSendBatchMessage)) != 1 {
			t.Fatalf("%d messages", len(got))
		}
		for i, m := range got {
			if k, _ := m.Properties.Get(message.PropKeys); string(m.Body) != fmt.Sprint(i) || m.Flag != int32(i) || k != fmt.Sprint("k", i) ||
				m.UniqKey() != strings.Split(res.MsgID, ",")[i] || m.MsgID() != strings.Split(res.OffsetMsgID, ",")[i] {
				t.Errorf("message %d: %+v", i, m)
			}
		}
		bad := map[string][]*message.Message{
			"empty":      {},
			"two topics": {ms[0], {Topic: "U", Body: []byte("x")}},
			"delayed":    {{Topic: "T", Body: []byte("x"), Properties: message.NewProperties(message.PropDelay, "3")}},
			"retry":      {{Topic: "%RETRY%G", Body: []byte("x")}},
			"compressed": {{Topic: "T", Body: []byte("x"), SysFlag: message.Compressed}},
			"wait":       {ms[0], {Topic: "T", Body: []byte("x"), Properties: message.NewProperties(message.PropWait, "false")}},
			"too large":  {{Topic: "T", Body: make([]byte, 3000)}, {Topic: "T", Body: make([]byte, 3000)}},
			"no topic":   {{Body: []byte("x")}},
		}
		for name, ms := range bad {
			if res, err := p.SendBatch(t.Context(), ms); err == nil {
				t.Errorf("%s: got %+v", name, res)
			}
		}
		if n := len(cl.requests(addrA, remoting.ReqSendBatchMessage)); n != 1 {
			t.Errorf("%d requests", n)
		}
	})
}

// TestCompression: bodies above the limit go out compressed if that makes them
// smaller, and come back plain.
func TestCompression(t *testing.T) {
	large, noise := bytes.Repeat([]byte("gantry "), 1000), make([]byte, 5000)
	rand.NewChaCha8([32]byte{1}).Read(noise) //nolint:errcheck // never fails
	small, err := deflate(large)
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name       string
		opts       ProducerOptions
		m          message.Message
		compressed bool
		plain      []byte
	}{
		{"large", ProducerOptions{}, message.Message{Body: large}, true, large},
		{"below the limit", ProducerOptions{}, message.Message{Body: large[:4096]}, false, large[:4096]},
		{"other limit", ProducerOptions{CompressAbove: 100}, message.Message{Body: large[:4096]}, true, large[:4096]},
		{"would grow", ProducerOptions{}, message.Message{Body: noise}, false, noise},
		{"never", ProducerOptions{CompressAbove: -1}, message.Message{Body: large}, false, large},
		{"compressed already", ProducerOptions{}, message.Message{Body: small, SysFlag: message.Compressed}, true, large},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, cl *cluster) {
				a := cl.brokers["a"]
				a.topic("T", 1)
				c := cl.client("c1")
				defer c.Close() //nolint:errcheck // never fails
				p := newProducer(t, c, test.opts)
				test.m.Topic = "T"
				if _, err := p.Send(t.Context(), &test.m); err != nil {
					t.Fatal(err)
				}
				m := a.stored(a.mq("T", 0))[0]
				if (m.SysFlag.CompressionType() == message.CompressionZlib) != test.compressed {
					t.Errorf("stored with %v, %d bytes", m.SysFlag.CompressionType(), len(m.Body))
				}
				res, err := c.Pull(t.Context(), PullRequest{Group: "G", Queue: a.mq("T", 0)})
				if err != nil || !bytes.Equal(res.Messages[0].Body, test.plain) || res.Messages[0].SysFlag != 0 {
					t.Errorf("pulled %d bytes, flag %#x: %v", len(res.Messages[0].Body), res.Messages[0].SysFlag, err)
				}
			})
		})
	}
}

// TestSendRefusedHere: what cannot be sent does not reach a broker.
func TestSendRefusedHere(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{MaxMessageSize: 10})
		for name, m := range map[string]*message.Message{
			"no topic":         {Body: []byte("x")},
			"body":             {Topic: "T", Body: make([]byte, 11)},
			"large properties": {Topic: "T", Properties: message.NewProperties("k", strings.Repeat("v", 33000))},
		} {
			if res, err := p.Send(t.Context(), m); err == nil {
				t.Errorf("%s: got %+v", name, res)
			}
		}
		if n := len(cl.requests(addrA, remoting.ReqSendMessageV2)); n != 0 {
			t.Errorf("%d requests", n)
		}
	})
}

// TestSendTo: a message goes where the caller says, and nowhere else.
func TestSendTo(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 4)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{})
		for range 3 {
			if res, err := p.SendTo(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}, a.mq("T", 2)); err != nil || res.Queue != a.mq("T", 2) {
				t.Errorf("got %+v, %v", res, err)
			}
		}
		cl.answer(addrA, remoting.ReqSendMessageV2, always(remoting.CodeSystemBusy))
		if _, err := p.SendTo(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}, a.mq("T", 2)); !hasCode(err, remoting.CodeSystemBusy) {
			t.Errorf("got %v", err)
		}
		if n := len(cl.requests(addrA, remoting.ReqSendMessageV2)); n != 4 {
			t.Errorf("%d requests", n)
		}
		if _, err := p.SendTo(t.Context(), &message.Message{Topic: "T"}, remoting.MessageQueue{Topic: "T", BrokerName: "z"}); !errors.Is(err, ErrNoBroker) {
			t.Errorf("unknown broker: %v", err)
		}
	})
}

// TestPick: not the broker of the try before, and none that failed lately, as
// long as there are others.
func TestPick(t *testing.T) {
	r, err := newRoute("T", remoting.TopicRouteData{
		BrokerDatas: []remoting.BrokerData{
			{BrokerName: "a", BrokerAddrs: map[int64]string{0: "a:1"}}, {BrokerName: "b", BrokerAddrs: map[int64]string{0: "b:1"}},
		},
		QueueDatas: []remoting.QueueData{{BrokerName: "a", WriteQueueNums: 5, Perm: 6}, {BrokerName: "b", WriteQueueNums: 1, Perm: 6}},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		last    string
		avoided []string
		want    string
	}{
		{"", nil, "aaaaab"},
		{"a", nil, "bbbbbb"},
		{"b", nil, "aaaaaa"},
		{"", []string{"a"}, "bbbbbb"},
		{"", []string{"a", "b"}, "aaaaab"},
		{"a", []string{"b"}, "bbbbbb"},
		{"b", []string{"a", "b"}, "aaaaaa"},
	} {
		var got []string
		for range 6 {
			q, err := r.pick(test.last, test.avoided)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, q.BrokerName)
		}
		slices.Sort(got)
		if s := strings.Join(got, ""); s != test.want {
			t.Errorf("after %q, without %v: %s", test.last, test.avoided, s)
		}
	}
}

// TestTopicMoves: a failure has the route looked up at once, and the next try
// goes where the topic is now.
func TestTopicMoves(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 2)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{})
		m := &message.Message{Topic: "T", Body: []byte("x")}
		if _, err := p.Send(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		a.mu.Lock()
		delete(a.topics, "T")
		a.mu.Unlock()
		cl.brokers["b"].topic("T", 1)
		cl.refuse(addrA, true)
		if res, err := p.Send(t.Context(), m); err != nil || res.Queue.BrokerName != "b" || res.Tries != 2 {
			t.Errorf("got %+v, %v", res, err)
		}
	})
}
