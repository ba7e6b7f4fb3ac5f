package broker

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// tx is a transaction as its producer knows it.
type tx struct {
	key          string
	offset, half int64 // in the log and in the half queue
}

// begin sends a half message.
func (r *rig) begin(topic, text string, props ...string) tx {
	r.t.Helper()
	h := sendHeader(topic, 0, append([]string{"TRAN_MSG", "true", "PGROUP", "PG"}, props...)...)
	h.SysFlag = 4
	return txOf(r.t, r.ok(remoting.ReqSendMessageV2, h, []byte(text)))
}

// txOf is the transaction that an answer to a half message names.
func txOf(t testing.TB, resp *remoting.Command) tx {
	t.Helper()
	got := decode(t, resp, new(remoting.SendMessageResponse))
	_, at, err := message.ParseOffsetID(got.MsgID)
	if err != nil {
		t.Error(err)
	}
	return tx{got.TransactionID, int64(at), got.QueueOffset}
}

func (x tx) end(outcome int32, check bool) *remoting.EndTransactionRequest {
	return &remoting.EndTransactionRequest{
		ProducerGroup: "PG", TranStateTableOffset: x.half, CommitLogOffset: x.offset, CommitOrRollback: outcome,
		FromTransactionCheck: check, MsgID: x.key, TransactionID: x.key,
	}
}

func (r *rig) commitTx(x tx) *remoting.Command {
	r.t.Helper()
	return r.call(remoting.ReqEndTransaction, x.end(remoting.TransactionCommit, false), nil)
}

func (r *rig) rollbackTx(x tx) *remoting.Command {
	r.t.Helper()
	return r.call(remoting.ReqEndTransaction, x.end(remoting.TransactionRollback, false), nil)
}

// visible are the bodies that consumers of a topic see.
func (r *rig) visible(topic string) []string {
	r.t.Helper()
	r.dispatched()
	got := r.bodies(topic, 0, 0)
	slices.Sort(got)
	return got
}

func (r *rig) wantVisible(topic string, want ...string) {
	r.t.Helper()
	if got := r.visible(topic); !slices.Equal(got, want) {
		r.t.Errorf("visible are %q, want %q", got, want)
	}
}

func (r *rig) wantOpen(n int) {
	r.t.Helper()
	if got := r.b.transactions.snapshot().Open; got != n {
		r.t.Errorf("%d transactions are open, want %d", got, n)
	}
}

// asked waits until the producer is asked, and returns the transaction as it is
// named then.
func asked(t testing.TB, p *peer) (tx, message.Ext) {
	t.Helper()
	cmd := p.push(remoting.ReqCheckTransactionState)
	h := decode(t, cmd, new(remoting.CheckTransactionRequest))
	return tx{h.TransactionID, h.CommitLogOffset, h.TranStateTableOffset}, records(t, cmd.Body)[0]
}

func quickChecks(o *Options) {
	o.Config.TransactionTimeout, o.Config.TransactionCheckInterval = 6*time.Second, 30*time.Second
}

// TestTransaction: what the three outcomes make of a half message.
func TestTransaction(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	a, b, c := r.begin("T", "a", "KEYS", "k", "DELAY", "3"), r.begin("T", "b"), r.begin("T", "c")
	r.wantVisible("T")
	r.wantOpen(3)
	if resp := r.commitTx(a); resp.Code != 0 {
		t.Errorf("commit: %v", resp)
	}
	if resp := r.rollbackTx(b); resp.Code != 0 {
		t.Errorf("rollback: %v", resp)
	}
	// Unknown is not answered.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if resp, err := r.invoke(ctx, remoting.NewRequest(remoting.ReqEndTransaction, c.end(remoting.TransactionUnknown, false))); err == nil {
		t.Errorf("unknown: %v", resp)
	}
	r.wantVisible("T", "a")
	r.wantOpen(1)
	m, _ := r.last("T", 0)
	props := m.Properties.Map()
	want := map[string]string{"KEYS": "k", "TRAN_MSG": "true", "PGROUP": "PG", "UNIQ_KEY": a.key, "__transactionId__": a.key}
	for name, v := range want {
		if props[name] != v {
			t.Errorf("property %s=%q, want %q", name, props[name], v)
		}
	}
	for _, name := range []string{"REAL_TOPIC", "REAL_QID", "DELAY"} {
		if v, ok := props[name]; ok {
			t.Errorf("property %s=%q", name, v)
		}
	}
	if m.SysFlag.Transaction() != message.TxCommit || int64(m.PreparedTransactionOffset) != a.offset || m.ReconsumeTimes != 0 {
		t.Errorf("committed %+v", m)
	}
	s := r.b.transactions.snapshot()
	if s.Halves != 3 || s.Committed != 1 || s.RolledBack != 1 {
		t.Errorf("counted %+v", s)
	}

	for _, bad := range []struct {
		name   string
		change func(*remoting.EndTransactionRequest)
		remark string
	}{
		{"group", func(h *remoting.EndTransactionRequest) { h.ProducerGroup = "other" }, "The producer group wrong"},
		{"half offset", func(h *remoting.EndTransactionRequest) { h.TranStateTableOffset++ }, "The transaction state table offset wrong"},
		{"no message", func(h *remoting.EndTransactionRequest) { h.CommitLogOffset++ }, "Find prepared transaction message failed"},
		{"far away", func(h *remoting.EndTransactionRequest) { h.CommitLogOffset = 1 << 62 }, "Find prepared transaction message failed"},
		{"negative", func(h *remoting.EndTransactionRequest) { h.CommitLogOffset = -1 }, "Find prepared transaction message failed"},
		{"no half message", func(h *remoting.EndTransactionRequest) { h.CommitLogOffset = int64(m.PhysicalOffset) }, "is none"},
		{"outcome", func(h *remoting.EndTransactionRequest) { h.CommitOrRollback = 7 }, "commitOrRollback=7"},
	} {
		h := c.end(remoting.TransactionCommit, false)
		bad.change(h)
		if remark := r.refused(remoting.CodeSystemError, remoting.ReqEndTransaction, h, nil); !strings.Contains(remark, bad.remark) {
			t.Errorf("%s: %q", bad.name, remark)
		}
	}
	r.wantVisible("T", "a")
}

// TestTransactionOnce is T8: a second commit, one at the same time, and one after
// a rollback change nothing.
func TestTransactionOnce(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	for i := range 20 {
		x := r.begin("T", fmt.Sprintf("m%02d", i))
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if resp := r.commitTx(x); resp.Code != 0 {
					t.Errorf("commit: %v", resp)
				}
			})
		}
		wg.Wait()
		if resp := r.rollbackTx(x); resp.Code != 0 || !strings.Contains(resp.Remark, "over") {
			t.Errorf("rollback after it: %v", resp)
		}
	}
	if got := r.visible("T"); len(got) != 20 || len(slices.Compact(got)) != 20 {
		t.Errorf("visible are %q", got)
	}
	x := r.begin("T", "never")
	r.rollbackTx(x)
	r.commitTx(x)
	if got := r.visible("T"); len(got) != 20 {
		t.Errorf("a commit after a rollback counts: %q", got)
	}
	r.wantOpen(0)
}

// TestTransactionCheck: the producer is asked after a time, again and again, for
// a copy each time; a late answer for the first counts too.
func TestTransactionCheck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, quickChecks)
		r.createTopic("T", 1)
		p := r.newPeer("producer")
		p.heartbeat("PG")
		x := r.begin("T", "m")
		start := time.Now()
		first, m := asked(t, p)
		if took := time.Since(start); took != 30*time.Second {
			t.Errorf("asked after %v", took)
		}
		times, _ := m.Properties.Get(propCheckTimes)
		if first.key != x.key || first.half == x.half || m.Topic != "T" || m.QueueID != 0 || string(m.Body) != "m" || times != "1" || int64(m.QueueOffset) != first.half {
			t.Errorf("asked for %+v with %+v", first, m)
		}
		second, m := asked(t, p)
		if times, _ := m.Properties.Get(propCheckTimes); times != "2" || second.half <= first.half {
			t.Errorf("second question %+v %+v", second, m)
		}
		if resp := r.call(remoting.ReqEndTransaction, x.end(remoting.TransactionCommit, true), nil); resp.Code != 0 { // the very first copy
			t.Errorf("late commit: %v", resp)
		}
		r.call(remoting.ReqEndTransaction, second.end(remoting.TransactionCommit, true), nil)
		r.call(remoting.ReqEndTransaction, first.end(remoting.TransactionRollback, true), nil)
		r.wantVisible("T", "m")
		r.wantOpen(0)
		time.Sleep(5 * time.Minute)
		select {
		case cmd := <-p.pushes:
			t.Errorf("asked for what is over: %v", cmd)
		default:
		}
	})
}

// TestTransactionLimits: after so many questions without an answer a half message
// is put aside, where nobody is asked any more; while no producer is connected no
// question is used up, but not for ever.
func TestTransactionLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, quickChecks, func(o *Options) { o.Config.TransactionCheckMax = 3 })
		r.createTopic("T", 1)
		x := r.begin("T", "m")
		time.Sleep(10 * time.Minute) // nobody is there
		r.wantOpen(1)
		p := r.newPeer("producer")
		p.heartbeat("PG")
		for range 3 {
			asked(t, p)
			p.heartbeat("PG") // or it expires
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		r.wantOpen(0)
		m, _ := r.last(metadata.TransCheckMaxTimeTopic, 0)
		if m.UniqKey() != x.key || string(m.Body) != "m" {
			t.Errorf("put aside %+v", m)
		}
		if real, _ := m.Properties.Get("REAL_TOPIC"); real != "T" {
			t.Errorf("it does not say where it belongs: %v", m.Properties.Map())
		}
		if s := r.b.transactions.snapshot(); s.GivenUp != 1 || s.Checks != 3 || s.RolledBack != 0 {
			t.Errorf("counted %+v", s)
		}
		r.commitTx(x)
		r.wantVisible("T")

		r.begin("T", "absent", "PGROUP", "nobody")
		time.Sleep(23 * time.Hour)
		r.wantOpen(1)
		time.Sleep(2 * time.Hour)
		r.wantOpen(0)
		if m, _ := r.last(metadata.TransCheckMaxTimeTopic, 0); string(m.Body) != "absent" {
			t.Errorf("put aside %+v", m)
		}
	})
}

// TestTransactionImmunity: a producer may ask not to be asked for longer, and may
// not answer unasked after that.
func TestTransactionImmunity(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		r := startRig(t, quickChecks, func(o *Options) { // messages are born at this time
			o.Now = func() int64 { return 1_700_000_000_000 + time.Since(start).Milliseconds() }
		})
		r.createTopic("T", 1)
		p := r.newPeer("producer")
		p.heartbeat("PG")
		x := r.begin("T", "m", propImmunity, "100")
		copied, _ := asked(t, p)
		if took := time.Since(start); took != 120*time.Second {
			t.Errorf("asked after %v", took)
		}
		// Its immunity is over.
		r.refused(remoting.CodeIllegalOperation, remoting.ReqEndTransaction, x.end(remoting.TransactionCommit, false), nil)
		if resp := r.call(remoting.ReqEndTransaction, copied.end(remoting.TransactionCommit, true), nil); resp.Code != 0 {
			t.Errorf("answer to a question: %v", resp)
		}
		r.wantVisible("T", "m")
		for _, v := range []string{"-5", "soon", "99999999999"} { // as if there were none
			if ms, ok := immunity(message.NewProperties(propImmunity, v)); ok {
				t.Errorf("immunity %q: %d", v, ms)
			}
		}
	})
}

// TestTransactionBounds: what is over behind an open half message does not grow
// without end, and more open ones than there may be are refused.
func TestTransactionBounds(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	tr := r.b.transactions
	old := r.begin("T", "old")
	for range 10 {
		r.commitTx(r.begin("T", "m"))
	}
	tr.mu.Lock()
	ended := tr.ops[len(tr.ops)-1]
	for range maxOps {
		tr.ops = append(tr.ops, ended)
	}
	tr.mu.Unlock()
	tr.catchUp(t.Context())
	if err := r.b.store.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	tr.saveOffsets()
	if n := len(tr.ops); n > 0 {
		t.Errorf("%d ended transactions are remembered", n)
	}
	if half, _ := r.b.offsets.Query(metadata.TransactionGroup, message.HalfTopic, 0); half != 11 {
		t.Errorf("saved offset %d, want 11: the open one has moved", half)
	}
	r.restart()
	r.wantOpen(1)
	r.commitTx(old)
	if got := r.visible("T"); len(got) != 11 || got[10] != "old" {
		t.Errorf("visible are %q", got)
	}

	tr = r.b.transactions
	h := &half{}
	tr.mu.Lock()
	for i := range maxOpenHalves {
		tr.open[message.QueueOffset(-1-i)] = h
	}
	tr.mu.Unlock()
	r.refused(remoting.CodeSystemBusy, remoting.ReqSendMessageV2, sendHeader("T", 0, "TRAN_MSG", "true"), []byte("m"))
	tr.mu.Lock()
	clear(tr.open)
	tr.mu.Unlock()
}

// TestTransactionDisk: a commit that cannot be stored can be tried again.
func TestTransactionDisk(t *testing.T) {
	mem := memfs.New()
	r := startRig(t, func(o *Options) { o.FS, o.Store.CleanInterval = mem, time.Millisecond })
	r.createTopic("T", 1)
	x := r.begin("T", "m")
	fullDisk(t, r, mem, true)
	if resp := r.commitTx(x); resp.Code != remoting.CodeSystemError {
		t.Errorf("commit on a full disk: %v", resp)
	}
	r.wantOpen(1)
	fullDisk(t, r, mem, false)
	r.commitTx(x)
	r.wantVisible("T", "m")
	r.wantOpen(0)
}

// TestTransactionLost: a half message whose bytes are gone does not stop others.
func TestTransactionLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t, quickChecks)
		r.createTopic("T", 1)
		p := r.newPeer("producer")
		p.heartbeat("PG")
		r.begin("T", "lost")
		good := r.begin("T", "good")
		r.b.transactions.mu.Lock()
		r.b.transactions.open[0].physical = 1 // of no message
		r.b.transactions.mu.Unlock()
		if x, _ := asked(t, p); x.key != good.key {
			t.Errorf("asked for %+v", x)
		}
		if s := r.b.transactions.snapshot(); s.Lost != 1 || s.Open != 1 {
			t.Errorf("counted %+v", s)
		}
	})
}
