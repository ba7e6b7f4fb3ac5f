package client

import (
	"context"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestOrderly: messages of a queue are handled one after the other; a failed one
// holds up those behind it, and the pause is the handler's.
func TestOrderly(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 2)
		a.store(a.mq("T", 0), texts("1", "2", "3")...)
		a.store(a.mq("T", 1), texts("other")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		var times []time.Duration
		began := time.Now()
		got.result = func(m message.Ext) Result {
			if m.QueueID != 0 {
				return Consumed()
			}
			times = append(times, time.Since(began))
			switch {
			case string(m.Body) == "2" && m.ReconsumeTimes < 2:
				return RetryLater()
			case string(m.Body) == "2" && m.ReconsumeTimes == 2:
				return Suspend(5 * time.Second)
			}
			return Consumed()
		}
		cs := startConsumer(t, c, ConsumerOptions{Handler: got.handle, Orderly: true, From: remoting.FromFirstOffset})
		time.Sleep(time.Minute)
		inOrder := slices.DeleteFunc(got.bodies(), func(s string) bool { return s == "other" })
		if s := strings.Join(inOrder, " "); s != "1 2 2 2 2 3" {
			t.Errorf("got %s", s)
		}
		var pauses []time.Duration
		for i := range times[1:] {
			pauses = append(pauses, times[i+1]-times[i])
		}
		if !slices.Equal(pauses, []time.Duration{0, time.Second, time.Second, 5 * time.Second, 0}) {
			t.Errorf("pauses %v", pauses)
		}
		if n := len(cl.requests(addrA, remoting.ReqConsumerSendMsgBack)); n != 0 {
			t.Errorf("%d messages given back", n)
		}
		// Locked now, and refreshed every 20 s; unlocked at the end.
		if who := a.lockedBy("G", a.mq("T", 0)); who != "c1" {
			t.Errorf("locked by %q", who)
		}
		if n := len(cl.requests(addrA, remoting.ReqLockBatchMQ)); n < 4 {
			t.Errorf("%d lock requests in a minute", n)
		}
		cs.Close() //nolint:errcheck // never fails
		for _, mq := range []remoting.MessageQueue{a.mq("T", 0), a.mq("T", 1), a.mq("%RETRY%G", 0)} {
			if who := a.lockedBy("G", mq); who != "" {
				t.Errorf("%v is still locked by %s", mq, who)
			}
		}
		if offset, _ := a.committed("G", a.mq("T", 0)); offset != 3 {
			t.Errorf("committed %d", offset)
		}
	})
}

// TestOrderlyDeadLetter: after MaxReconsumeTimes, or when the handler says so, a
// message is a dead letter and those behind it go on.
func TestOrderlyDeadLetter(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		a.store(a.mq("T", 0), texts("1", "2", "3")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		got.result = func(m message.Ext) Result {
			switch string(m.Body) {
			case "1":
				return RetryLater()
			case "2":
				return DeadLetter()
			}
			return Consumed()
		}
		startConsumer(t, c, ConsumerOptions{Handler: got.handle, Orderly: true, From: remoting.FromFirstOffset, MaxReconsumeTimes: 2})
		time.Sleep(time.Minute)
		if s := strings.Join(got.bodies(), " "); s != "1 1 1 2 3" {
			t.Errorf("got %s", s)
		}
		if dead := a.stored(a.mq("%DLQ%G", 0)); len(dead) != 2 {
			t.Errorf("%d dead letters", len(dead))
		}
	})
}

// TestOrderlyHandOver: a queue that another member gets is unlocked after the
// handler that runs, and not handled by both.
func TestOrderlyHandOver(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 2)
		mq := a.mq("T", 1)
		a.store(mq, texts("1", "2")...)
		c1, c2 := cl.client("c1"), cl.client("c2")
		defer c1.Close() //nolint:errcheck // never fails
		defer c2.Close() //nolint:errcheck // never fails
		gate := make(chan struct{})
		var got1, got2 collector
		handle1 := func(ctx context.Context, ms []message.Ext) Result {
			<-gate
			return got1.handle(ctx, ms)
		}
		startConsumer(t, c1, ConsumerOptions{Handler: handle1, Orderly: true, From: remoting.FromFirstOffset})
		synctest.Wait()
		cs2 := startConsumer(t, c2, ConsumerOptions{Handler: got2.handle, Orderly: true, From: remoting.FromFirstOffset})
		time.Sleep(10 * time.Second)
		if who := a.lockedBy("G", mq); who != "c1" || len(got2.bodies()) != 0 || slices.Contains(cs2.Queues(), mq) {
			t.Fatalf("locked by %s, the other got %v", who, got2.bodies())
		}
		close(gate)
		time.Sleep(20 * time.Second)
		if s := got1.sorted() + "|" + got2.sorted(); s != "1|2" {
			t.Errorf("got %s", s)
		}
		if who := a.lockedBy("G", mq); who != "c2" {
			t.Errorf("locked by %s", who)
		}
	})
}

// TestLockLost: a queue that the broker gave to somebody else is not handled and
// its offset not touched; it comes back with the offset of then.
func TestLockLost(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		mq := a.mq("T", 0)
		a.store(mq, texts("1", "2", "3", "4")...)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		got.result = func(m message.Ext) Result {
			if string(m.Body) == "2" {
				return Suspend(time.Hour)
			}
			return Consumed()
		}
		startConsumer(t, c, ConsumerOptions{Handler: got.handle, Orderly: true, From: remoting.FromFirstOffset})
		time.Sleep(10 * time.Second)
		a.mu.Lock()
		a.locks["G"][mq] = "c2"
		a.mu.Unlock()
		time.Sleep(11 * time.Second) // the next refresh of locks
		a.commit("G", mq, 2)         // that is what the other one did
		time.Sleep(40 * time.Second)
		if offset, _ := a.committed("G", mq); offset != 2 {
			t.Errorf("committed %d", offset)
		}
		if s := strings.Join(got.bodies(), " "); s != "1 2" {
			t.Errorf("got %s", s)
		}
		a.mu.Lock()
		delete(a.locks["G"], mq)
		a.mu.Unlock()
		time.Sleep(40 * time.Second)
		if s := strings.Join(got.bodies(), " "); s != "1 2 3 4" {
			t.Errorf("got %s", s)
		}
	})
}

// TestLockNotRefreshed: while the broker does not answer, locks run out and
// nothing is handled; with the next answer it goes on.
func TestLockNotRefreshed(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		var got collector
		startConsumer(t, c, ConsumerOptions{Handler: got.handle, Orderly: true, From: remoting.FromFirstOffset})
		time.Sleep(5 * time.Second)
		cl.answer(addrA, remoting.ReqLockBatchMQ, always(remoting.CodeSystemError))
		a.store(a.mq("T", 0), texts("1")...)
		time.Sleep(lockLife)
		a.store(a.mq("T", 0), texts("2")...)
		time.Sleep(30 * time.Second)
		if s := strings.Join(got.bodies(), " "); s != "1" {
			t.Errorf("got %q without a lock", s)
		}
		cl.answer(addrA, remoting.ReqLockBatchMQ, nil)
		time.Sleep(lockInterval + 2*time.Second)
		if s := strings.Join(got.bodies(), " "); s != "1 2" {
			t.Errorf("got %q", s)
		}
	})
}

// TestNothingIsCommittedWithoutLock: what a handler finishes after the lock has
// run out is not committed until the queue is locked again.
func TestNothingIsCommittedWithoutLock(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		startConsumer(t, c, ConsumerOptions{Orderly: true, From: remoting.FromFirstOffset,
			Handler: func(context.Context, []message.Ext) Result {
				time.Sleep(lockLife + 10*time.Second)
				return Consumed()
			}})
		time.Sleep(6 * time.Second)
		cl.answer(addrA, remoting.ReqLockBatchMQ, always(remoting.CodeSystemError))
		a.store(a.mq("T", 0), texts("1")...)
		time.Sleep(lockLife + 20*time.Second)
		if offset, _ := a.committed("G", a.mq("T", 0)); offset != 0 {
			t.Errorf("committed %d", offset)
		}
		cl.answer(addrA, remoting.ReqLockBatchMQ, nil)
		time.Sleep(lockInterval + flushInterval + time.Second)
		if offset, _ := a.committed("G", a.mq("T", 0)); offset != 1 {
			t.Errorf("committed %d with a lock", offset)
		}
	})
}

// TestCloseWhileLocking: a request to lock that is under way does not arrive
// behind the one that unlocks.
func TestCloseWhileLocking(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 1)
		c := cl.client("c1")
		defer c.Close() //nolint:errcheck // never fails
		cs := startConsumer(t, c, ConsumerOptions{Orderly: true, Handler: new(collector).handle})
		time.Sleep(lockInterval - time.Second)
		cl.answer(addrA, remoting.ReqLockBatchMQ, func(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
			time.Sleep(lockTimeout / 2)
			return remoting.Later, nil
		})
		time.Sleep(time.Second + lockTimeout/4)
		cs.Close() //nolint:errcheck // never fails
		time.Sleep(lockTimeout)
		if who := a.lockedBy("G", a.mq("T", 0)); who != "" {
			t.Errorf("locked by %s", who)
		}
	})
}
