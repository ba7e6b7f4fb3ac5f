package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

func keyed(key, body string) message.Message {
	return message.Message{Body: []byte(body), Properties: message.NewProperties(message.PropKeys, key, message.PropUniqKey, "U"+body)}
}

// TestQuery: all masters are asked page by page, the key itself is compared, and
// the newest messages come first.
func TestQuery(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a, b := cl.brokers["a"], cl.brokers["b"]
		for _, br := range []*fakeBroker{a, b} {
			br.topic("T", 1)
			br.topic("Other", 1)
		}
		began := time.Now()
		for i := range 200 { // several pages
			a.store(a.mq("T", 0), keyed("k x", fmt.Sprint("a", i)))
			time.Sleep(700 * time.Millisecond)
		}
		middle := time.Now()
		b.store(b.mq("T", 0), keyed("x k", "b0"), keyed("x", "b1"), keyed("Aa", "Aa"), keyed("BB", "BB"))
		time.Sleep(time.Second)
		b.store(b.mq("Other", 0), keyed("k", "other"))
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		tests := []struct {
			name  string
			key   string
			opts  QueryOptions
			want  int
			first string
		}{
			{"all", "k", QueryOptions{}, 201, "b0"},
			{"newest", "k", QueryOptions{Max: 100}, 100, "b0"},
			{"one", "k", QueryOptions{Max: 1}, 1, "b0"},
			{"same hash", "Aa", QueryOptions{}, 1, "Aa"},
			{"same hash, limited", "Aa", QueryOptions{Max: 1}, 1, "Aa"},
			{"from", "k", QueryOptions{From: middle}, 1, "b0"},
			{"to", "k", QueryOptions{To: began.Add(time.Second)}, 2, "a1"},
			{"from and to", "k", QueryOptions{From: began.Add(700 * time.Millisecond), To: began.Add(1400 * time.Millisecond)}, 2, "a2"},
			{"unique", "Ua7", QueryOptions{Unique: true}, 1, "a7"},
			{"unique is not a key", "Ua7", QueryOptions{}, 0, ""},
			{"none", "nothing", QueryOptions{}, 0, ""},
		}
		for _, test := range tests {
			res, err := c.Query(t.Context(), "T", test.key, test.opts)
			if err != nil || len(res.Messages) != test.want || res.Truncated {
				t.Errorf("%s: %d messages, truncated %v, %v", test.name, len(res.Messages), res.Truncated, err)
				continue
			}
			for i, m := range res.Messages {
				if i > 0 && m.StoreTimestamp > res.Messages[i-1].StoreTimestamp {
					t.Errorf("%s: message %d is newer than the one before", test.name, i)
				}
			}
			if test.want > 0 && string(res.Messages[0].Body) != test.first {
				t.Errorf("%s: first %s", test.name, res.Messages[0].Body)
			}
		}
		cl.refuse(addrA, true)
		if res, err := c.Query(t.Context(), "T", "k", QueryOptions{}); err == nil || len(res.Messages) != 1 {
			t.Errorf("with one broker down: %d messages, %v", len(res.Messages), err)
		}
	})
}

// TestQueryOfOneSecond: more messages of one second than a page has cannot all
// be had, and the result says so; what is older still is found.
func TestQueryOfOneSecond(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		a.store(a.mq("T", 0), keyed("k", "old"))
		time.Sleep(time.Hour)
		for i := range 3 * pageOf {
			a.store(a.mq("T", 0), keyed("k", fmt.Sprint(i)))
		}
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		res, err := c.Query(t.Context(), "T", "k", QueryOptions{})
		if err != nil || !res.Truncated || len(res.Messages) != pageOf+1 || string(res.Messages[pageOf].Body) != "old" {
			t.Errorf("%d messages, truncated %v, %v", len(res.Messages), res.Truncated, err)
		}
	})
}

func TestViewMessage(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		_, ids := a.store(a.mq("T", 0), texts("1", "2")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		if m, err := c.ViewMessage(t.Context(), ids[1]); err != nil || string(m.Body) != "2" || m.MsgID() != ids[1] {
			t.Errorf("got %+v, %v", m, err)
		}
		missing := message.OffsetID(parseHost(addrA), 7)
		if _, err := c.ViewMessage(t.Context(), missing); !hasCode(err, remoting.CodeSystemError) {
			t.Errorf("missing: %v", err)
		}
		if _, err := c.ViewMessage(t.Context(), "XYZ"); err == nil {
			t.Error("a bad id was accepted")
		}
		cl.answer(addrA, remoting.ReqViewMessageByID, always(remoting.CodeSuccess))
		if _, err := c.ViewMessage(t.Context(), ids[1]); err == nil {
			t.Error("an answer without a message was accepted")
		}
	})
}

// TestOffsets: the plain questions about a queue.
func TestOffsets(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 2)
		mq, empty := a.mq("T", 0), a.mq("T", 1)
		began := time.Now()
		a.store(mq, texts("1")...)
		time.Sleep(time.Minute)
		a.store(mq, texts("2", "3")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		ctx := t.Context()
		check := func(what string, want int64) func(int64, error) {
			return func(got int64, err error) {
				t.Helper()
				if err != nil || got != want {
					t.Errorf("%s: %d, %v", what, got, err)
				}
			}
		}
		check("max", 3)(c.MaxOffset(ctx, mq))
		check("min", 0)(c.MinOffset(ctx, mq))
		check("lower", 1)(c.SearchOffset(ctx, mq, began.Add(time.Second), false))
		check("upper", 0)(c.SearchOffset(ctx, mq, began.Add(time.Second), true))
		if got, err := c.EarliestTime(ctx, mq); err != nil || !got.Equal(began) {
			t.Errorf("earliest %v, %v", got, err)
		}
		if got, err := c.EarliestTime(ctx, empty); err != nil || !got.IsZero() {
			t.Errorf("earliest of nothing %v, %v", got, err)
		}
		if got, ok, err := c.ConsumerOffset(ctx, "G", mq); ok || err != nil {
			t.Errorf("no offset: %d, %v, %v", got, ok, err)
		}
		if err := c.CommitOffset(ctx, "G", mq, 2); err != nil {
			t.Error(err)
		}
		if got, ok, err := c.ConsumerOffset(ctx, "G", mq); got != 2 || !ok || err != nil {
			t.Errorf("offset: %d, %v, %v", got, ok, err)
		}
		a.commit("G", mq, -1)
		if got, ok, err := c.ConsumerOffset(ctx, "G", mq); ok || err != nil {
			t.Errorf("offset -1: %d, %v, %v", got, ok, err)
		}
		if _, err := c.MaxOffset(ctx, remoting.MessageQueue{Topic: "T", BrokerName: "z"}); !errors.Is(err, ErrNoBroker) {
			t.Errorf("unknown broker: %v", err)
		}
		if _, err := c.MaxOffset(ctx, a.mq("Missing", 0)); !hasCode(err, remoting.CodeTopicNotExist) {
			t.Errorf("unknown topic: %v", err)
		}
		cl.answer(addrA, remoting.ReqGetMaxOffset, always(remoting.CodeSuccess))
		if _, err := c.MaxOffset(ctx, mq); err == nil {
			t.Error("an answer without an offset was accepted")
		}
	})
}

// TestPull: single pulls and their statuses.
func TestPull(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		mq := a.mq("T", 0)
		a.first[mq] = 10
		a.store(mq, texts("10", "11", "12")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		noMatch := func(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
			if req.Ext.Value("subscription") != "x" || req.Ext.Value("expressionType") != "TAG" || req.Ext.Value("sysFlag") != "4" {
				return remoting.NewResponse(remoting.CodeSystemError, "bad request"), nil
			}
			resp := header(&remoting.PullMessageResponse{NextBeginOffset: 13, MinOffset: 10, MaxOffset: 13})
			resp.Code = remoting.CodePullRetryImmediately
			return resp, nil
		}
		tests := []struct {
			name   string
			req    PullRequest
			answer answer
			want   string // status, bodies, next
			took   time.Duration
			code   int32
		}{
			{"some", PullRequest{Offset: 10, Max: 2}, nil, "FOUND 10 11 next 12", 0, 0},
			{"rest", PullRequest{Offset: 12}, nil, "FOUND 12 next 13", 0, 0},
			{"end", PullRequest{Offset: 13}, nil, "NO_NEW_MSG next 13", 0, 0},
			{"end, held", PullRequest{Offset: 13, Hold: 7 * time.Second}, nil, "NO_NEW_MSG next 13", 7 * time.Second, 0},
			{"before the first", PullRequest{Offset: 3}, nil, "OFFSET_ILLEGAL next 10", 0, 0},
			{"behind the last", PullRequest{Offset: 30}, nil, "OFFSET_ILLEGAL next 13", 0, 0},
			{"no match", PullRequest{Offset: 10, Expression: Tags("x")}, noMatch, "NO_MATCHED_MSG next 13", 0, 0},
			{"refused", PullRequest{Offset: 10}, always(remoting.CodeNoPermission), "", 0, remoting.CodeNoPermission},
		}
		for _, test := range tests {
			cl.answer(addrA, remoting.ReqPullMessage, test.answer)
			test.req.Group, test.req.Queue = "G", mq
			began := time.Now()
			res, err := c.Pull(t.Context(), test.req)
			if code, _ := Code(err); code != test.code || (err != nil) != (test.code != 0) {
				t.Errorf("%s: %v", test.name, err)
			}
			if err != nil {
				continue
			}
			s := res.Status.String()
			for _, m := range res.Messages {
				s += " " + string(m.Body)
			}
			if s += fmt.Sprint(" next ", res.Next); s != test.want || res.Min != 10 || res.Max != 13 || time.Since(began) != test.took {
				t.Errorf("%s: %s, %+v after %v", test.name, s, res, time.Since(began))
			}
		}
		if _, err := c.Pull(t.Context(), PullRequest{Queue: mq, Expression: Expression{Text: "||"}}); err == nil {
			t.Error("an expression without a tag was accepted")
		}
	})
}

// TestPullHostile: answers that make no sense are errors.
func TestPullHostile(t *testing.T) {
	var enc message.Encoder
	rec, err := enc.Append(nil, &message.Message{Topic: "T", Body: []byte("x")})
	if err != nil {
		t.Fatal(err)
	}
	large := append([]byte(nil), rec...)
	binary.BigEndian.PutUint32(large, 1<<31-1)
	for name, test := range map[string]struct {
		next int64
		code int32
		body []byte
	}{
		"negative size":       {6, 0, append([]byte{0xFF}, rec[1:]...)},
		"size beyond the end": {6, 0, large},
		"size zero":           {6, 0, make([]byte, 200)},
		"cut":                 {6, 0, rec[:len(rec)-1]},
		"rubbish behind":      {6, 0, append(rec[:len(rec):len(rec)], 1, 2, 3)},
		"goes nowhere":        {5, 0, rec},
		"goes back":           {3, 0, rec},
		"goes back, no match": {3, remoting.CodePullRetryImmediately, nil},
		"negative":            {-1, remoting.CodePullOffsetMoved, nil},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, cl *cluster) {
				a := cl.brokers["a"]
				a.topic("T", 1)
				cl.answer(addrA, remoting.ReqPullMessage, func(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
					resp := header(&remoting.PullMessageResponse{NextBeginOffset: test.next, MaxOffset: 10})
					resp.Code, resp.Body = test.code, test.body
					return resp, nil
				})
				c := cl.client("c1")
				defer c.Close() //nolint:errcheck // never fails
				if res, err := c.Pull(t.Context(), PullRequest{Group: "G", Queue: a.mq("T", 0), Offset: 5}); err == nil {
					t.Errorf("got %+v", res)
				}
			})
		})
	}
}

// TestInflateIsBounded: a small body cannot make a huge one.
func TestInflateIsBounded(t *testing.T) {
	small, err := deflate(make([]byte, 1<<20))
	if err != nil {
		t.Fatal(err)
	}
	for limit, want := range map[int64]int{1 << 20: 1 << 20, 1<<20 - 1: len(small)} {
		m := message.Message{Body: small, SysFlag: message.Compressed}
		if n := inflate(&m, limit); len(m.Body) != want || (n == 1<<20) != (want == 1<<20) || m.SysFlag == 0 != (want == 1<<20) {
			t.Errorf("limit %d: %d bytes, flag %#x", limit, len(m.Body), m.SysFlag)
		}
	}
	for name, m := range map[string]message.Message{
		"not zlib": {Body: []byte("plain"), SysFlag: message.Compressed},
		"cut":      {Body: small[:len(small)/2], SysFlag: message.Compressed},
		"lz4":      {Body: small, SysFlag: message.SysFlag(0).WithCompression(message.CompressionLZ4)},
	} {
		before := string(m.Body)
		if n := inflate(&m, 1<<20); n != 0 || string(m.Body) != before || m.SysFlag == 0 {
			t.Errorf("%s: %d bytes", name, n)
		}
	}
}

// TestUnwrapBatch: an inner batch of 5.x is as many messages as it holds.
func TestUnwrapBatch(t *testing.T) {
	var body []byte
	for i := range 3 {
		var err error
		if body, err = message.AppendBatchItem(body, message.BatchItem{Flag: int32(i), Body: fmt.Append(nil, i)}); err != nil {
			t.Fatal(err)
		}
	}
	batch := func(flag message.SysFlag, num string, body []byte) message.Ext {
		return message.Ext{Message: message.Message{Topic: "T", SysFlag: flag, Body: body,
			Properties: message.NewProperties(message.PropInnerBase, "100", message.PropInnerNum, num)}}
	}
	both := message.InnerBatch | message.NeedUnwrap
	for name, test := range map[string]struct {
		m    message.Ext
		from message.QueueOffset
		want string
	}{
		"batch":          {batch(both, "3", body), 100, "100=0 101=1 102=2"},
		"partly seen":    {batch(both, "3", body), 101, "101=1 102=2"},
		"not to unwrap":  {batch(message.InnerBatch, "3", body), 100, "0="},
		"no batch":       {batch(0, "3", body), 100, "0="},
		"more than said": {batch(both, "2", body), 100, "0="},
		"rubbish":        {batch(both, "3", body[:len(body)-1]), 100, "0="},
	} {
		var got []string
		for _, m := range unwrapBatch(test.m, test.from) {
			s := fmt.Sprint(m.QueueOffset, "=")
			if len(m.Body) == 1 {
				s += string(m.Body)
			}
			got = append(got, s)
		}
		if s := strings.Join(got, " "); s != test.want {
			t.Errorf("%s: got %s", name, s)
		}
	}
}

func FuzzDecodeMessages(f *testing.F) {
	var enc message.Encoder
	small, err := deflate(make([]byte, 5000))
	if err != nil {
		f.Fatal(err)
	}
	var body []byte
	for _, m := range []message.Message{{Topic: "T", Body: []byte("x")}, {Topic: "T", Body: small, SysFlag: message.Compressed}} {
		if body, err = enc.Append(body, &m); err != nil {
			f.Fatal(err)
		}
	}
	f.Add(body)
	f.Add(body[:len(body)-1])
	f.Fuzz(func(t *testing.T, body []byte) {
		all, err := decodeMessages(body)
		if err != nil {
			return
		}
		var size int64
		for _, m := range all {
			size += int64(m.StoreSize)
		}
		if size != int64(len(body)) {
			t.Errorf("%d of %d bytes", size, len(body))
		}
	})
}
