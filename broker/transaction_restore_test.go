package broker

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestTransactionRestart: what is open is open after a restart, what is over
// stays over, also when the half message was copied before.
func TestTransactionRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, quickChecks)
		r.createTopic("T", 1)
		p := r.newPeer("producer")
		p.heartbeat("PG")
		open := r.begin("T", "open")
		rolled, committed, plain := r.begin("T", "rolled"), r.begin("T", "committed"), r.begin("T", "plain")
		r.commitTx(plain)
		for range 3 { // all three are copied
			asked(t, p)
		}
		// Outcomes name the first copies, and others the latest.
		r.rollbackTx(rolled)
		r.commitTx(committed)
		r.wantOpen(1)
		p.close()
		r.restart()
		r.wantOpen(1)
		r.wantVisible("T", "committed", "plain")
		for _, x := range []tx{rolled, committed, plain} {
			if resp := r.commitTx(x); resp.Code != 0 || !strings.Contains(resp.Remark, "over") {
				t.Errorf("commit of what is over: %v", resp)
			}
		}
		r.wantVisible("T", "committed", "plain")

		p = r.newPeer("producer")
		p.heartbeat("PG")
		again, m := asked(t, p)
		if times, _ := m.Properties.Get(propCheckTimes); again.key != open.key || times != "2" {
			t.Errorf("asked for %+v, %s times", again, times)
		}
		r.restart()
		r.wantOpen(1)
		if resp := r.commitTx(open); resp.Code != 0 { // the very first copy, two restarts ago
			t.Errorf("commit: %v", resp)
		}
		r.wantOpen(0)
		r.wantVisible("T", "committed", "open", "plain")
		r.restart()
		r.wantOpen(0)
	})
}

// TestTransactionOffsets: the offsets of the broker's own group never lie behind
// an open half message, and move on when nothing is open.
func TestTransactionOffsets(t *testing.T) {
	r := startRig(t, func(o *Options) { o.Store.Flush = gantry.FlushSync })
	r.createTopic("T", 1)
	saved := func() (half, op int64) {
		r.t.Helper()
		if err := r.b.store.Sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.b.transactions.saveOffsets()
		half, _ = r.b.offsets.Query(metadata.TransactionGroup, message.HalfTopic, 0)
		op, _ = r.b.offsets.Query(metadata.TransactionGroup, message.OpHalfTopic, 0)
		return half, op
	}
	a, b, c := r.begin("T", "a"), r.begin("T", "b"), r.begin("T", "c")
	for _, step := range []struct {
		x        tx
		half, op int64
	}{{tx{}, 0, 0}, {b, 0, 0}, {a, 2, 2}, {c, 3, 3}} {
		if step.x.key != "" {
			r.commitTx(step.x)
		}
		if half, op := saved(); half != step.half || op != step.op {
			t.Errorf("after %+v: saved %d and %d, want %d and %d", step.x, half, op, step.half, step.op)
		}
	}
	// Clients cannot move them.
	half, _ := saved()
	r.refused(remoting.CodeNoPermission, remoting.ReqUpdateConsumerOffset, &remoting.UpdateOffsetRequest{ConsumerGroup: metadata.TransactionGroup, Topic: message.HalfTopic, CommitOffset: 99}, nil)
	r.refused(remoting.CodeNoPermission, remoting.ReqInvokeBrokerToResetOffset, &remoting.ResetOffsetRequest{Group: metadata.TransactionGroup, Topic: message.HalfTopic, Timestamp: -1, QueueID: -1, Offset: -1}, nil)
	r.refused(remoting.CodeNoPermission, remoting.ReqCloneGroupOffset, &remoting.CloneOffsetRequest{SrcGroup: "CG", DestGroup: metadata.TransactionGroup, Topic: message.HalfTopic}, nil)
	r.refused(remoting.CodeNoPermission, remoting.ReqDeleteSubscriptionGroup, &remoting.DeleteGroupRequest{GroupName: metadata.TransactionGroup, CleanOffset: true}, nil)
	if got, _ := saved(); got != half {
		t.Errorf("the offset is %d, was %d", got, half)
	}
}

// TestTransactionNotFlushed: as long as the end of a transaction, or the copy of
// its half message, may be lost with the machine, the saved offset stays before.
func TestTransactionNotFlushed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memfs.NewCrashable(1)
		fault := faultfs.New(mem)
		r := startRig(t, quickChecks, func(o *Options) {
			o.FS, o.Store.FlushInterval, o.Store.FlushThoroughInterval, o.Store.CheckpointInterval = fault, time.Hour, time.Hour, time.Hour
		})
		r.createTopic("T", 1)
		p := r.newPeer("producer")
		p.heartbeat("PG")
		x, y := r.begin("T", "committed"), r.begin("T", "open")
		if err := r.b.store.Sync(t.Context()); err != nil { // the half messages are on disk
			t.Fatal(err)
		}
		r.commitTx(x)
		asked(t, p) // y moves behind its own end
		r.b.transactions.saveOffsets()
		if half, _ := r.b.offsets.Query(metadata.TransactionGroup, message.HalfTopic, 0); half != x.half {
			t.Fatalf("saved offset %d, but what lies behind %d may be lost", half, x.half)
		}
		if err := r.b.save(); err != nil {
			t.Fatal(err)
		}
		p.close()
		// The machine goes down: log and queues are as of the sync, the offsets as
		// of the save.
		opts := r.b.opts
		opts.FS = mem.CrashClone(memfs.LoseUnsynced)
		r.peer.close()
		stopBroker(t, r.b)
		r.b = openRig(t, opts)
		r.peer = r.newPeer("")
		r.wantOpen(2)
		r.commitTx(x)
		r.rollbackTx(y)
		r.wantVisible("T", "committed")
	})
}

// TestTransactionCrashBeforeOp: the broker ends between the commit and the message
// that says so. After the restart neither a question nor a second commit makes
// the message visible twice.
func TestTransactionCrashBeforeOp(t *testing.T) {
	for _, how := range []string{"commit again", "question"} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := startRig(t, quickChecks)
				r.createTopic("T", 1)
				x, other := r.begin("T", "m"), r.begin("T", "other")
				r.dispatched()
				m, err := r.b.store.MessageAt(message.PhysicalOffset(x.offset))
				if err != nil {
					t.Fatal(err)
				}
				r.b.transactions.mu.Lock()
				h := r.b.transactions.open[message.QueueOffset(x.half)]
				r.b.transactions.mu.Unlock()
				if err := r.b.transactions.commit(t.Context(), &m, h); err != nil {
					t.Fatal(err)
				}
				r.restart()
				r.wantOpen(2)
				if how == "question" {
					time.Sleep(time.Minute) // no producer is needed to find out
					r.wantOpen(1)
				} else if resp := r.commitTx(x); resp.Code != 0 {
					t.Errorf("commit: %v", resp)
				}
				r.wantVisible("T", "m")
				r.commitTx(other)
				r.wantVisible("T", "m", "other")
			})
		})
	}
}

// TestTransactionSameKey: two half messages with one unique key are two.
func TestTransactionSameKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, quickChecks)
		r.createTopic("T", 1)
		p := r.newPeer("producer")
		p.heartbeat("PG")
		a, b := r.begin("T", "a", "UNIQ_KEY", "K"), r.begin("T", "b", "UNIQ_KEY", "K")
		asked(t, p)
		asked(t, p)
		r.restart()
		r.wantOpen(2)
		r.commitTx(b)
		r.wantVisible("T", "b")
		r.commitTx(a)
		r.wantVisible("T", "a", "b")
		r.wantOpen(0)
	})
}

// TestTransactionForgedLink: a client cannot make its half message pass for a copy
// of another one.
func TestTransactionForgedLink(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	x := r.begin("T", "honest")
	r.begin("T", "forged", propFirst, fmt.Sprint(x.half), propCheckTimes, "14")
	r.restart()
	r.wantOpen(2)
	r.commitTx(x)
	r.wantVisible("T", "honest")
	r.wantOpen(1)
}

// TestTransactionJavaCopies: a Java broker's copies do not name the first half
// message; they are known by key and number of checks.
func TestTransactionJavaCopies(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	half := func(text, key string, times int, more ...string) message.QueueOffset {
		props := message.NewProperties(append([]string{"TRAN_MSG", "true", "PGROUP", "PG", "UNIQ_KEY", key, "REAL_TOPIC", "T", "REAL_QID", "0"}, more...)...)
		if times > 0 {
			props = props.Set(propCheckTimes, fmt.Sprint(times))
		}
		res, err := r.b.store.Put(t.Context(), &message.Message{Topic: message.HalfTopic, Body: []byte(text), Properties: props})
		if err != nil {
			t.Fatal(err)
		}
		return res.QueueOffset
	}
	over := func(offsets string) {
		_, err := r.b.store.Put(t.Context(), &message.Message{Topic: message.OpHalfTopic, Body: []byte(offsets), Properties: message.NewProperties("TAGS", "d")})
		if err != nil {
			t.Fatal(err)
		}
	}
	half("a", "A", 0)
	half("a", "A", 1)
	last := half("a", "A", 2) // the one that is open
	half("b", "B", 0)
	b2 := half("b", "B", 1)
	half("b", "B", 2)
	over(fmt.Sprintf("%d,", b2)) // one copy is over: all are
	c := half("c", "C", 0)
	half("c2", "C", 0) // another message with the key
	over(fmt.Sprint(c))
	d := half("d", "D", 0, propImmunity, "60") // of these the copies do name the first
	half("d", "D", 0, propImmunity, "60", propFirst, fmt.Sprint(d))
	over(fmt.Sprint(d))
	r.restart()
	r.wantOpen(2)
	tr := r.b.transactions
	if h := tr.open[0]; h == nil || h.offset != last {
		t.Errorf("open are %v", tr.open)
	}
	// A commit of a copy in the middle.
	at, err := r.b.store.PhysicalOffsetOf(message.HalfTopic, 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	if resp := r.commitTx(tx{"A", int64(at), 1}); resp.Code != 0 {
		t.Error(resp)
	}
	r.wantVisible("T", "a")
	r.wantOpen(1)
	r.restart()
	r.wantOpen(1)
}
