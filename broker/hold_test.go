package broker

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestHold: when a held pull is answered, and with what.
func TestHold(t *testing.T) {
	sql := func(h *remoting.PullMessageRequest) {
		h.ExpressionType, h.Subscription = remoting.ExpressionSQL92, "a > 5"
	}
	tag := func(h *remoting.PullMessageRequest) { h.Subscription = "x" }
	for _, c := range []struct {
		name     string
		header   func(*remoting.PullMessageRequest)
		meantime func(r *rig)
		after    time.Duration
		code     int32
		next     int64
		bodies   string
	}{
		{name: "nothing comes", after: 15 * time.Second, code: remoting.CodePullNotFound},
		{name: "nothing comes, long wish", header: func(h *remoting.PullMessageRequest) { h.SuspendTimeoutMillis = 1 << 62 },
			after: maxHold, code: remoting.CodePullNotFound},
		{name: "no time to wait", header: func(h *remoting.PullMessageRequest) { h.SuspendTimeoutMillis = 0 }, code: remoting.CodePullNotFound},
		{name: "negative time", header: func(h *remoting.PullMessageRequest) { h.SuspendTimeoutMillis = -1 << 63 }, code: remoting.CodePullNotFound},
		{name: "a message", meantime: func(r *rig) { r.send("T", 0, "m") }, next: 1, bodies: "m"},
		{name: "a message of another queue", meantime: func(r *rig) { r.send("T", 1, "m") }, after: 15 * time.Second, code: remoting.CodePullNotFound},
		{name: "another tag", header: tag, meantime: func(r *rig) { r.send("T", 0, "m", "TAGS", "y") },
			after: 15 * time.Second, code: remoting.CodePullRetryImmediately, next: 1},
		{name: "another tag, then the one", header: tag, meantime: func(r *rig) { r.send("T", 0, "m", "TAGS", "y"); r.send("T", 0, "n", "TAGS", "x") },
			next: 2, bodies: "n"},
		{name: "SQL that matches nothing", header: sql, meantime: func(r *rig) { r.send("T", 0, "m", "a", "3") },
			after: 15 * time.Second, code: remoting.CodePullRetryImmediately, next: 1},
		{name: "SQL, later", header: sql, meantime: func(r *rig) {
			r.send("T", 0, "m", "a", "3")
			time.Sleep(7 * time.Second)
			r.send("T", 0, "n", "a", "6")
		}, after: 7 * time.Second, next: 2, bodies: "n"},
		{name: "a delayed message", meantime: func(r *rig) { r.send("T", 0, "m", message.PropDelay, "2") }, after: 2 * time.Second, next: 1, bodies: "m"},
		{name: "reset of the offset", meantime: func(r *rig) {
			r.ok(remoting.ReqInvokeBrokerToResetOffset, &remoting.ResetOffsetRequest{Topic: "T", Group: "CG", Timestamp: -1, IsForce: true, QueueID: -1, Offset: -1}, nil)
		}, code: remoting.CodePullOffsetMoved},
		{name: "reset of another group", meantime: func(r *rig) {
			r.b.groups.Find("other", true)
			r.ok(remoting.ReqInvokeBrokerToResetOffset, &remoting.ResetOffsetRequest{Topic: "T", Group: "other", Timestamp: -1, IsForce: true, QueueID: -1, Offset: -1}, nil)
		}, after: 15 * time.Second, code: remoting.CodePullNotFound},
		{name: "short polling", header: func(*remoting.PullMessageRequest) {}, meantime: func(*rig) {}, after: time.Second, code: remoting.CodePullNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startRig(t, func(o *Options) { o.Config.LongPolling = c.name != "short polling" })
				r.createTopic("T", 2)
				h := holdHeader("T", 0, 0)
				if c.header != nil {
					c.header(h)
				}
				start := time.Now()
				done := r.later(remoting.ReqPullMessage, h)
				synctest.Wait()
				if c.meantime != nil {
					c.meantime(r)
				}
				resp := await(t, done)
				if took := time.Since(start); took != c.after {
					t.Errorf("answered after %v, want %v", took, c.after)
				}
				var bodies []string
				for _, m := range records(t, resp.Body) {
					bodies = append(bodies, string(m.Body))
				}
				got := decode(t, resp, new(remoting.PullMessageResponse))
				if resp.Code != c.code || got.NextBeginOffset != c.next || strings.Join(bodies, " ") != c.bodies {
					t.Errorf("answer %v, next %d, bodies %q; want %s, %d, %q", resp, got.NextBeginOffset, bodies, remoting.ResponseName(c.code), c.next, c.bodies)
				}
				if n := r.b.holds.count.Load(); n != 0 {
					t.Errorf("%d are held afterwards", n)
				}
			})
		})
	}
}

// TestHoldMovesOn: what was looked at while a pull was held is not looked at
// again, and not skipped either.
func TestHoldMovesOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 1)
		h := holdHeader("T", 0, 0)
		h.Subscription = "x"
		for range 5 {
			r.send("T", 0, "m", "TAGS", "y")
		}
		done := r.later(remoting.ReqPullMessage, h)
		synctest.Wait()
		if n := r.b.holds.count.Load(); n != 1 {
			t.Fatalf("%d are held, want 1: what does not match is no reason to answer", n)
		}
		r.b.holds.mu.Lock()
		for w := range r.b.holds.queues[queueKey{"T", 0}] {
			if w.pull.next != 5 {
				t.Errorf("it would look again from %d on", w.pull.next)
			}
		}
		r.b.holds.mu.Unlock()
		r.send("T", 0, "n", "TAGS", "x")
		if got := records(t, await(t, done).Body); len(got) != 1 || got[0].QueueOffset != 5 {
			t.Fatalf("got %v", got)
		}
	})
}

// TestHoldRaces: a message, or a reset, between the look and the wait is noticed.
func TestHoldRaces(t *testing.T) {
	for name, meantime := range map[string]func(*rig){
		"message": func(r *rig) { r.send("T", 0, "m") },
		"reset": func(r *rig) {
			r.b.offsets.AssignReset("CG", "T", 0, 0)
			r.b.holds.wakeQueue("CG", "T", 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startRig(t)
				r.createTopic("T", 1)
				conn := r.b.server.Conns()[0]
				cmd := remoting.NewRequest(remoting.ReqPullMessage, nil)
				p := &pull{b: r.b, conn: conn, cmd: cmd, req: *holdHeader("T", 0, 0), held: true, deadline: time.Now().Add(time.Minute)}
				_, end, waits := p.look()
				if !waits {
					t.Fatal("it does not wait")
				}
				meantime(r)
				synctest.Wait()
				if !r.b.holds.add(p, end) {
					t.Fatal("not held")
				}
				synctest.Wait()
				if n := r.b.holds.count.Load(); n != 0 {
					t.Fatal("it waits, though something has come")
				}
			})
		})
	}
}

// TestHoldEnds: held pulls end with their connection, without an answer and
// without a trace, and with the broker.
func TestHoldEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 1)
		p := r.newPeer("c")
		var done []<-chan *remoting.Command
		for range 10 {
			done = append(done, p.later(remoting.ReqPullMessage, holdHeader("T", 0, 0)))
		}
		mine := r.later(remoting.ReqPullMessage, holdHeader("T", 0, 0))
		synctest.Wait()
		if n := r.b.holds.count.Load(); n != 11 {
			t.Fatalf("%d are held, want 11", n)
		}
		p.close()
		synctest.Wait()
		for _, d := range done {
			if resp := await(t, d); resp != nil {
				t.Errorf("answer on a closed connection: %v", resp)
			}
		}
		h := r.b.holds
		if len(h.conns) != 1 || len(h.queues) != 1 || h.count.Load() != 1 || len(h.woken) != 0 {
			t.Errorf("what is left: %d connections, %d queues, %d pulls", len(h.conns), len(h.queues), h.count.Load())
		}
		if s := r.b.server.Stats(); s.Held != 1 {
			t.Errorf("the server holds %d requests, want 1", s.Held)
		}

		start := time.Now()
		stopBroker(t, r.b)
		if resp := await(t, mine); resp == nil || resp.Code != remoting.CodePullNotFound {
			t.Errorf("at the shutdown: %v", resp)
		}
		if took := time.Since(start); took > 3*time.Second {
			t.Errorf("the shutdown took %v", took)
		}
		if h.add(&pull{}, 0) {
			t.Error("a pull waits at a broker that is closed")
		}
	})
}

// TestHoldCrowd: many pulls at one queue that one message wakes are repeated by
// few goroutines, and all are answered.
func TestHoldCrowd(t *testing.T) {
	const crowd = 3000
	r := startRig(t)
	r.createTopic("T", 1)
	var wg sync.WaitGroup
	for i := range crowd {
		h := holdHeader("T", 0, 0)
		h.ConsumerGroup = "CG"
		h.ExpressionType, h.Subscription = remoting.ExpressionSQL92, "a = 1"
		if i == 0 {
			h.Subscription = "a = 2"
		}
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(context.Background(), limit)
			defer cancel()
			resp, err := r.invoke(ctx, remoting.NewRequest(remoting.ReqPullMessage, h))
			if err != nil || resp.Code != 0 {
				t.Errorf("pull %d: %v, %v", i, resp, err)
			}
		})
	}
	waitFor(t, func() bool { return r.b.holds.count.Load() == crowd })
	before, most := runtime.NumGoroutine(), 0
	for i := range 20 { // nobody wants them, but all have to look
		r.send("T", 0, "m", "a", "0")
		most = max(most, runtime.NumGoroutine())
		waitFor(t, func() bool { return r.b.holds.count.Load() == crowd })
		if h := r.b.holds; i == 19 {
			h.mu.Lock()
			if h.wakers > maxWakers {
				t.Errorf("%d wakers, at most %d", h.wakers, maxWakers)
			}
			h.mu.Unlock()
		}
	}
	if most > before+maxWakers+20 {
		t.Errorf("%d goroutines, %d before", most, before)
	}
	r.send("T", 0, "m", "a", "1")
	r.send("T", 0, "m", "a", "2")
	wg.Wait()
}

// waitFor waits for a condition that something else is about to make true.
func waitFor(t testing.TB, f func() bool) {
	t.Helper()
	for end := time.Now().Add(limit); !f(); runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatal("it does not become true")
		}
	}
}

// TestHoldBound: beyond the bound a pull is answered SYSTEM_BUSY, and others of
// the connection go on.
func TestHoldBound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, func(o *Options) { o.Limits.MaxHeldTotal = 5 })
		r.createTopic("T", 1)
		var done []<-chan *remoting.Command
		for range 5 {
			done = append(done, r.later(remoting.ReqPullMessage, holdHeader("T", 0, 0)))
			synctest.Wait()
		}
		r.refused(remoting.CodeSystemBusy, remoting.ReqPullMessage, holdHeader("T", 0, 0), nil)
		// Who waits is answered in time, and then there is room.
		for i, d := range done {
			if resp := await(t, d); resp.Code != remoting.CodePullNotFound {
				t.Errorf("held pull %d: %v", i, resp)
			}
		}
		r.createTopic(fmt.Sprint("U", 1), 1)
	})
}
