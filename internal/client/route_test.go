package client

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestNameServers: one that fails is passed over, and not asked first again.
func TestNameServers(t *testing.T) {
	tests := []struct {
		name   string
		break_ func(cl *cluster)
		ok     bool
	}{
		{"both live", func(*cluster) {}, true},
		{"first refuses", func(cl *cluster) { cl.refuse(nsAddr, true) }, true},
		{"first hangs up", func(cl *cluster) { cl.answer(nsAddr, remoting.ReqGetRouteInfoByTopic, hangUp) }, true},
		{"first is silent", func(cl *cluster) { cl.answer(nsAddr, remoting.ReqGetRouteInfoByTopic, silent) }, true},
		{"first shuts down", func(cl *cluster) {
			cl.answer(nsAddr, remoting.ReqGetRouteInfoByTopic, always(remoting.CodeServiceNotAvailable))
		}, true},
		{"none", func(cl *cluster) { cl.refuse(nsAddr, true); cl.refuse(nsAddr2, true) }, false},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			bubble(t, func(t *testing.T, cl *cluster) {
				cl.brokers["a"].topic("T", 1)
				test.break_(cl)
				c := cl.client("c1")
				defer c.Close() //nolint:errcheck // never fails
				r, err := c.Route(t.Context(), "T")
				if (err == nil) != test.ok {
					t.Fatalf("got %v", err)
				}
				if !test.ok {
					return
				}
				if addr, err := r.Master("a"); err != nil || addr != addrA {
					t.Errorf("got %s, %v", addr, err)
				}
				_, err = c.Route(t.Context(), "Missing")
				if code, ok := Code(err); !ok || code != remoting.CodeTopicNotExist {
					t.Errorf("missing topic: %v", err)
				}
				first := len(cl.requests(nsAddr, remoting.ReqGetRouteInfoByTopic))
				if first > 1 && test.name != "both live" {
					t.Errorf("the first was asked %d times", first)
				}
			})
		})
	}
}

// TestRouteRefresh: a route in use is refreshed every 30 s, one that nobody uses
// is forgotten, and many callers make one request.
func TestRouteRefresh(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		asked := func() int { return len(cl.requests(nsAddr, remoting.ReqGetRouteInfoByTopic)) }
		var wg sync.WaitGroup
		for range 20 {
			wg.Go(func() {
				if _, err := c.Route(t.Context(), "T"); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if n := asked(); n != 1 {
			t.Errorf("%d look-ups for 20 callers", n)
		}
		cl.brokers["a"].topic("T", 5)
		time.Sleep(routeInterval + time.Second)
		if r, err := c.Route(t.Context(), "T"); err != nil || len(r.ReadQueues()) != 5 || asked() != 2 {
			t.Errorf("after a refresh: %v, %v, %d look-ups", r.ReadQueues(), err, asked())
		}
		time.Sleep(10 * time.Minute)
		if n := asked(); n > 2+int(routeUse/routeInterval)+1 {
			t.Errorf("%d look-ups for a topic that is not used", n)
		}
		// A name server that does not answer leaves what there is.
		if _, err := c.Route(t.Context(), "T"); err != nil {
			t.Fatal(err)
		}
		cl.refuse(nsAddr, true)
		cl.refuse(nsAddr2, true)
		time.Sleep(routeInterval + time.Second)
		if r, err := c.Route(t.Context(), "T"); err != nil || len(r.ReadQueues()) != 5 {
			t.Errorf("without name servers: %v", err)
		}
	})
}

// TestRouteWaitEndsWithContext: who waits for a look-up can stop waiting, and
// the others still get it.
func TestRouteWaitEndsWithContext(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		gate := make(chan struct{})
		cl.answer(nsAddr, remoting.ReqGetRouteInfoByTopic, func(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
			<-gate
			return remoting.Later, nil
		})
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		ctx, cancel := context.WithCancel(t.Context())
		first, second := make(chan error, 1), make(chan error, 1)
		go func() { _, err := c.Route(ctx, "T"); first <- err }()
		synctest.Wait()
		go func() { _, err := c.Route(t.Context(), "T"); second <- err }()
		cancel()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Errorf("canceled: %v", err)
		}
		close(gate)
		if err := <-second; err != nil {
			t.Errorf("other: %v", err)
		}
	})
}

// TestRouteQueues: which queues a route means.
func TestRouteQueues(t *testing.T) {
	brokers := []remoting.BrokerData{
		{BrokerName: "b", BrokerAddrs: map[int64]string{0: "b:1", 1: "b:2"}},
		{BrokerName: "a", BrokerAddrs: map[int64]string{0: "a:1"}},
		{BrokerName: "s", BrokerAddrs: map[int64]string{3: "s:3", 2: "s:2"}},
	}
	data := func(conf string, queues ...remoting.QueueData) remoting.TopicRouteData {
		return remoting.TopicRouteData{OrderTopicConf: conf, BrokerDatas: brokers, QueueDatas: queues}
	}
	tests := []struct {
		name        string
		data        remoting.TopicRouteData
		write, read string
		err         bool
	}{
		{"ordered by broker", data("", remoting.QueueData{BrokerName: "b", ReadQueueNums: 2, WriteQueueNums: 1, Perm: 6},
			remoting.QueueData{BrokerName: "a", ReadQueueNums: 1, WriteQueueNums: 2, Perm: 6}), "a0 a1 b0", "a0 b0 b1", false},
		{"permissions", data("", remoting.QueueData{BrokerName: "a", ReadQueueNums: 1, WriteQueueNums: 1, Perm: remoting.PermRead},
			remoting.QueueData{BrokerName: "b", ReadQueueNums: 1, WriteQueueNums: 1, Perm: remoting.PermWrite}), "b0", "a0", false},
		{"no master", data("", remoting.QueueData{BrokerName: "s", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6}), "", "s0", false},
		{"order topic", data("b:1;a:2", remoting.QueueData{BrokerName: "a", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6}), "b0 a0 a1", "a0", false},
		{"bad order topic", data("b:x"), "", "", true},
		{"negative numbers", data("", remoting.QueueData{BrokerName: "a", ReadQueueNums: -1, WriteQueueNums: -5, Perm: 6}), "", "", false},
		{"very many queues", data("", remoting.QueueData{BrokerName: "a", ReadQueueNums: 1 << 30, WriteQueueNums: 1, Perm: 6}), "", "", true},
		{"very many queues in the order", data("a:2000000000"), "", "", true},
	}
	text := func(qs []remoting.MessageQueue) string {
		var s []string
		for _, q := range qs {
			s = append(s, fmt.Sprint(q.BrokerName, q.QueueID))
		}
		return strings.Join(s, " ")
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r, err := newRoute("T", test.data, nil)
			if (err != nil) != test.err {
				t.Fatalf("got %v", err)
			}
			if err != nil {
				return
			}
			if w, rd := text(r.WriteQueues()), text(r.ReadQueues()); w != test.write || rd != test.read {
				t.Errorf("write %q, read %q", w, rd)
			}
		})
	}
	r, err := newRoute("T", data(""), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		broker string
		id     int64
		want   string
	}{{"b", 0, "b:1"}, {"b", 1, "b:2"}, {"b", 7, "b:1"}, {"s", 0, "s:2"}, {"s", 3, "s:3"}, {"z", 0, ""}} {
		if got, err := r.replica(test.broker, test.id); got != test.want || (err == nil) != (test.want != "") {
			t.Errorf("replica %d of %s: %q, %v", test.id, test.broker, got, err)
		}
	}
}

// TestRouteTableIsBounded: the least used topics make room.
func TestRouteTableIsBounded(t *testing.T) {
	var table routeTable
	table.init()
	table.mu.Lock()
	defer table.mu.Unlock()
	now := time.Now()
	for i := range maxRoutes + 10 {
		table.entryLocked(fmt.Sprint(i)).used = now.Add(time.Duration(i))
	}
	if len(table.mu.topics) != maxRoutes || table.mu.topics["9"] != nil || table.mu.topics["10"] == nil {
		t.Errorf("%d topics", len(table.mu.topics))
	}
}

// TestAllocate compares with what upstream's AllocateMessageQueueAveragely gave
// (testdata/Allocate.java): a Java consumer in the same group must agree.
func TestAllocate(t *testing.T) {
	text, err := os.ReadFile("testdata/allocate.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		// queues | members | member=queue,queue …
		parts := strings.Split(strings.TrimSuffix(line, "\n"), "|")
		var queues []remoting.MessageQueue
		for s := range strings.SplitSeq(parts[0], " ") {
			if broker, id, ok := strings.Cut(s, "/"); ok {
				q := remoting.MessageQueue{Topic: "T", BrokerName: broker}
				fmt.Sscan(id, &q.QueueID) //nolint:errcheck // then nothing is equal
				queues = append(queues, q)
			}
		}
		members := strings.Split(parts[1], " ")
		for s := range strings.SplitSeq(parts[2], " ") {
			member, want, _ := strings.Cut(s, "=")
			var got []string
			for _, q := range allocate(queues, members, member) {
				got = append(got, fmt.Sprint(q.BrokerName, "/", q.QueueID))
			}
			if strings.Join(got, ",") != want {
				t.Errorf("queues %s, members %s: %s gets %v, want %s", parts[0], parts[1], member, got, want)
			}
			n++
		}
	}
	if n < 500 {
		t.Errorf("%d cases", n)
	}
}

func TestCompareJava(t *testing.T) {
	ordered := []string{"", "B", "a", "a-10", "a-2", "ab", "b", "é", "日本", "\U00010000", "\U0001F600", "\uE000", "\uFFFD"}
	for i, a := range ordered {
		for j, b := range ordered {
			got := compareJava(a, b)
			if got < 0 != (i < j) || got > 0 != (i > j) {
				t.Errorf("%q and %q: %d", a, b, got)
			}
		}
	}
	if !slices.IsSortedFunc(ordered, compareJava) {
		t.Error("not in order")
	}
}

// TestHeartbeats: brokers hear of each group at once, every 30 s, and again on a
// new connection; and that it has gone.
func TestHeartbeats(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		cl.brokers["a"].replicas = map[int64]string{1: addrB}
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		beats := func(addr string) []remoting.Heartbeat {
			synctest.Wait()
			var all []remoting.Heartbeat
			for _, req := range cl.requests(addr, remoting.ReqHeartBeat) {
				var h remoting.Heartbeat
				if err := remoting.DecodeBody(req.Body, &h); err != nil {
					t.Fatal(err)
				}
				all = append(all, h)
			}
			return all
		}
		if _, err := c.Route(t.Context(), "T"); err != nil {
			t.Fatal(err)
		}
		if n := len(beats(addrA)); n != 0 {
			t.Errorf("%d heartbeats of nobody", n)
		}
		p := newProducer(t, c, ProducerOptions{Group: "P1"})
		newProducer(t, c, ProducerOptions{Group: "P2"})
		if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		got := beats(addrA)
		if len(got) == 0 || len(got) > 2 || len(got[len(got)-1].Producers) != 2 || got[0].ClientID != "c1" {
			t.Fatalf("heartbeats %+v", got)
		}
		if len(beats(addrB)) != 0 {
			t.Error("a replica hears of producers")
		}
		n := len(got)
		signal(c.beatNow)
		if len(beats(addrA)) != n {
			t.Error("another heartbeat with nothing new")
		}
		time.Sleep(10 * heartbeatInterval) // nothing is sent: the topic stays known all the same
		if got := len(beats(addrA)) - n; got != 10 {
			t.Errorf("%d heartbeats in 10 intervals", got)
		}
		cl.servers[addrA].Conns()[0].Close() //nolint:errcheck // never fails
		n = len(beats(addrA))
		if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if got := len(beats(addrA)) - n; got != 1 {
			t.Errorf("%d heartbeats on a new connection", got)
		}
		p.Close() //nolint:errcheck // never fails
		gone := cl.requests(addrA, remoting.ReqUnregisterClient)
		if len(gone) != 1 || gone[0].Ext.Value("producerGroup") != "P1" || gone[0].Ext.Value("clientID") != "c1" {
			t.Errorf("unregistered by %v", gone)
		}
		all := beats(addrA)
		if last := all[len(all)-1]; len(last.Producers) != 1 || last.Producers[0].GroupName != "P2" {
			t.Errorf("last heartbeat %+v", last)
		}
	})
}
