package broker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"unique"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// Names of transactions (upstream: TransactionalMessageUtil, MessageConst).
const (
	opTag = "d"

	propCheckTimes = "TRANSACTION_CHECK_TIMES"
	propImmunity   = "CHECK_IMMUNITY_TIME_IN_SECONDS"
	// propFirst is in copies of a half message: the queue offset of the
	// first. Upstream has it in copies of those with an immunity only.
	propFirst = "TRAN_PREPARED_QUEUE_OFFSET"
)

const (
	// maxOpenHalves bounds the half messages that wait for their outcome, for
	// each takes some 150 bytes. More are refused.
	maxOpenHalves = 1 << 20
	// maxOps is how many transactions may end behind an open half message
	// before that is moved behind them.
	maxOps = 1 << 16
)

// transactions know the half messages whose outcome is open (upstream:
// TransactionalMessageServiceImpl).
//
// A half message waits in queue 0 of the half topic until its producer commits
// or rolls back; a message in the op topic then says that it is over. The
// consumer offset of CID_RMQ_SYS_TRANS in the half topic is a position before
// which none is open, that in the op topic one before which nothing is needed.
// A half message that has waited for too long is put once more at the end of its
// queue, and its producer is asked for the outcome of the copy. One whose end is
// far behind is copied too, so that the positions move on.
//
// All copies of a half message are one transaction, known by the offset of the
// first, which each copy names: an outcome may name any of them. Outcomes are
// applied once: a second commit does nothing, and neither does a commit that was
// applied before a crash when the producer is asked again after it.
type transactions struct {
	b *Broker

	// moving is held for reading while a half or op message is put and
	// counted: whoever holds it for writing sees every message that is in the
	// queues.
	moving sync.RWMutex

	mu      sync.Mutex
	freed   *sync.Cond // some half is not ending any more; on mu
	open    map[message.QueueOffset]*half
	openOf  map[unique.Handle[string]]int // by the topic that they are meant for
	order   []place                       // of open, sorted; may hold places that are left
	ops     []op                          // those that may be needed, about in order
	left    []step                        // those that a crash of the machine may undo
	halfEnd message.QueueOffset
	opEnd   message.QueueOffset
	stats   transactionStats
	javas   javaCopies
}

// transactionStats count since the start.
type transactionStats struct {
	Halves, Committed, RolledBack, Checks, GivenUp, Lost int64
	Open                                                 int
}

// half is an open half message. Its fields are guarded by transactions.mu;
// whoever has claimed it may read them without.
type half struct {
	first    message.QueueOffset // of the half message as it came
	offset   message.QueueOffset // of its latest copy
	physical message.PhysicalOffset
	due      int64                 // ms: to be checked from then on
	absent   int64                 // ms: since when no producer could be asked; 0: one could
	group    unique.Handle[string] // of producers
	topic    unique.Handle[string] // that it is meant for
	ending   bool                  // somebody has claimed it
	// restored says that it comes from before the last start, and that nobody
	// has looked yet whether its commit was applied without the op message.
	restored bool
}

// place says that a half was at an offset; it is there if that is its offset
// still.
type place struct {
	offset message.QueueOffset
	half   *half
}

// op says that the transaction whose latest copy was at half is over.
type op struct{ offset, half message.QueueOffset }

// step says that a half message has left its place, for a copy or for good, by a
// record that ends at end.
type step struct {
	from message.QueueOffset
	end  message.PhysicalOffset
}

func stepBy(from message.QueueOffset, res gantry.PutResult) step {
	return step{from, res.PhysicalOffset + message.PhysicalOffset(res.Size)}
}

func newTransactions(b *Broker) *transactions {
	t := &transactions{b: b, open: make(map[message.QueueOffset]*half), openOf: make(map[unique.Handle[string]]int)}
	t.freed = sync.NewCond(&t.mu)
	return t
}

// sendHalf stores a message whose producer will say later whether it counts.
func (b *Broker) sendHalf(ctx context.Context, m *message.Message) (*remoting.Command, error) {
	if b.config().RejectTransactionMessage {
		return nil, remoting.Errorf(remoting.CodeNoPermission, "the broker[%s] sending transaction message is forbidden", b.config().Advertise)
	}
	id := m.Properties.UniqKey()
	h := *m
	h.Topic, h.QueueID = message.HalfTopic, 0
	h.SysFlag &^= message.TxRollback
	// What says of which message this one is a copy is ours to write.
	h.Properties = setAll(m.Properties.Delete(propFirst).Delete(propCheckTimes).Delete(message.PropDelay), []string{
		message.PropRealTopic, m.Topic, message.PropRealQueueID, strconv.Itoa(int(m.QueueID)), propTransactionID, id,
	})
	res, err := b.transactions.put(ctx, &h)
	return b.sent(message.HalfTopic, m.QueueID, id, res, err), nil
}

// put stores a new half message and remembers it.
func (t *transactions) put(ctx context.Context, m *message.Message) (gantry.PutResult, error) {
	t.moving.RLock()
	defer t.moving.RUnlock()
	t.mu.Lock()
	full := len(t.open) >= maxOpenHalves
	t.mu.Unlock()
	if full {
		return gantry.PutResult{}, fmt.Errorf("%d transactions are open: %w", maxOpenHalves, gantry.ErrBusy)
	}
	res, err := t.b.store.Put(ctx, m)
	if _, _, stored := putResponse(err); !stored {
		return res, err
	}
	h := &half{first: res.QueueOffset, group: groupOf(m), topic: meantFor(m)}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.openLocked(h)
	t.moveLocked(h, res.QueueOffset, res.PhysicalOffset, t.due(m.Properties, res.StoreTimestamp))
	t.stats.Halves++
	return res, err
}

func groupOf(m *message.Message) unique.Handle[string] {
	group, _ := m.Properties.Get(message.PropProducerGroup)
	return unique.Make(group)
}

func meantFor(m *message.Message) unique.Handle[string] {
	topic, _ := m.Properties.Get(message.PropRealTopic)
	return unique.Make(topic)
}

func (t *transactions) openLocked(h *half) {
	t.open[h.first] = h
	t.openOf[h.topic]++
}

// copyOf puts a claimed half message once more, at the end of its queue. m is
// the copy before this one; it is changed into the new one.
func (t *transactions) copyOf(ctx context.Context, h *half, m *message.Message, due func(storeTime int64) int64) (gantry.PutResult, error) {
	m.StoreHost = t.b.storeHost
	m.Properties = m.Properties.Set(propFirst, strconv.FormatInt(int64(h.first), 10)).Set(message.PropWait, "false")
	t.moving.RLock()
	defer t.moving.RUnlock()
	res, err := t.b.store.Put(ctx, m)
	if _, _, stored := putResponse(err); !stored {
		return res, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.left = append(t.left, stepBy(h.offset, res))
	t.moveLocked(h, res.QueueOffset, res.PhysicalOffset, due(res.StoreTimestamp))
	return res, nil
}

// moveLocked notes where the latest copy of h is.
func (t *transactions) moveLocked(h *half, off message.QueueOffset, phy message.PhysicalOffset, due int64) {
	h.offset, h.physical, h.due = off, phy, due
	t.halfEnd = max(t.halfEnd, off+1)
	if len(t.order) > 2*len(t.open)+1024 {
		t.order = slices.DeleteFunc(t.order, func(p place) bool { return !t.currentLocked(p) })
	}
	i := len(t.order)
	for i > 0 && t.order[i-1].offset > off { // puts may overtake each other
		i--
	}
	t.order = slices.Insert(t.order, i, place{off, h})
}

func (t *transactions) currentLocked(p place) bool {
	return p.offset == p.half.offset && t.open[p.half.first] == p.half
}

// due is when a half message that was stored at ms has waited for too long.
func (t *transactions) due(p message.Properties, ms int64) int64 {
	wait := t.b.config().TransactionTimeout.Milliseconds()
	if own, ok := immunity(p); ok {
		wait = own
	}
	return ms + wait
}

// immunity is how long its producer wants not to be asked, in ms.
func immunity(p message.Properties) (int64, bool) {
	v, ok := p.Get(propImmunity)
	if !ok {
		return 0, false
	}
	s, err := strconv.ParseInt(v, 10, 32)
	if err != nil || s < 0 { // upstream: as if there were none
		return 0, false
	}
	return s * 1000, true
}

// endTransaction answers 37 END_TRANSACTION (upstream: EndTransactionProcessor).
// An unknown outcome is not answered, as upstream does: the producer will be
// asked.
func (b *Broker) endTransaction(ctx context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
	var req remoting.EndTransactionRequest
	if err := remoting.DecodeHeader(cmd.Ext, &req); err != nil {
		return nil, err
	}
	switch req.CommitOrRollback {
	case remoting.TransactionCommit, remoting.TransactionRollback:
		return b.transactions.end(ctx, &req)
	case remoting.TransactionUnknown:
		return nil, nil
	}
	return nil, remoting.Errorf(remoting.CodeSystemError, "commitOrRollback=%d is neither %d, %d nor %d",
		req.CommitOrRollback, remoting.TransactionUnknown, remoting.TransactionCommit, remoting.TransactionRollback)
}

func (t *transactions) end(ctx context.Context, req *remoting.EndTransactionRequest) (*remoting.Command, error) {
	m, err := t.load(req)
	if err != nil {
		return nil, err
	}
	commit := req.CommitOrRollback == remoting.TransactionCommit
	if wait, ok := immunity(m.Properties); ok && !req.FromTransactionCheck && t.b.now()-wait > m.BornTimestamp {
		return nil, remoting.Errorf(remoting.CodeIllegalOperation, "the transaction is being checked: its immunity of %d ms is over", wait)
	}
	h := t.claimFor(m)
	if h == nil {
		return remoting.NewResponse(remoting.CodeSuccess, "the transaction is over"), nil
	}
	if commit {
		err = t.commit(ctx, m, h)
	}
	if err == nil {
		t.over(h)
		t.count(h, commit, t.b.now()-m.BornTimestamp)
	}
	t.release(h, err == nil)
	if err != nil {
		return nil, err
	}
	return remoting.NewResponse(remoting.CodeSuccess, ""), nil
}

// load reads the half message that a request speaks of and makes sure that it
// is the one.
func (t *transactions) load(req *remoting.EndTransactionRequest) (*message.Ext, error) {
	m, err := t.b.store.MessageAt(message.PhysicalOffset(req.CommitLogOffset))
	if err != nil {
		if errors.Is(err, gantry.ErrClosed) {
			return nil, storeError(err)
		}
		return nil, remoting.Errorf(remoting.CodeSystemError, "Find prepared transaction message failed: %v", err)
	}
	group, _ := m.Properties.Get(message.PropProducerGroup)
	switch {
	case m.Topic != message.HalfTopic:
		return nil, remoting.Errorf(remoting.CodeSystemError, "Find prepared transaction message failed: the message at %d is none", req.CommitLogOffset)
	case group != req.ProducerGroup:
		return nil, remoting.Errorf(remoting.CodeSystemError, "The producer group wrong")
	case int64(m.QueueOffset) != req.TranStateTableOffset:
		return nil, remoting.Errorf(remoting.CodeSystemError, "The transaction state table offset wrong")
	}
	return &m, nil
}

// commit puts the message where it was meant to go.
func (t *transactions) commit(ctx context.Context, m *message.Ext, h *half) error {
	c, err := t.real(m)
	if err != nil {
		return err
	}
	if h.restored && t.applied(ctx, m, c) {
		return nil
	}
	c.Properties = c.Properties.Delete(message.PropRealTopic).Delete(message.PropRealQueueID)
	if !c.Properties.WaitStoreOK() { // that of a copy
		c.Properties = c.Properties.Set(message.PropWait, "true")
	}
	c.SysFlag = c.SysFlag&^message.TxRollback | message.TxCommit
	c.PreparedTransactionOffset = h.physical
	res, err := t.b.store.Put(ctx, c)
	code, remark, stored := putResponse(err)
	t.b.stats.put(c.Topic, res.Count, res.Size, code)
	if !stored {
		return remoting.Errorf(code, "%s", remark)
	}
	return nil
}

// real returns a half message as its producer meant it, its properties apart.
func (t *transactions) real(m *message.Ext) (*message.Message, error) {
	topic, _ := m.Properties.Get(message.PropRealTopic)
	id, _ := m.Properties.Get(message.PropRealQueueID)
	queueID, err := strconv.ParseInt(id, 10, 32)
	if topic == "" || err != nil || queueID < 0 {
		return nil, remoting.Errorf(remoting.CodeSystemError, "the half message at %d has no topic and queue to go to: %s=%q %s=%q",
			m.PhysicalOffset, message.PropRealTopic, topic, message.PropRealQueueID, id)
	}
	c := m.Message
	c.Topic, c.QueueID = topic, int32(queueID)
	c.StoreHost = t.b.storeHost
	return &c, nil
}

// errSeen ends a query when it has shown what was asked for.
var errSeen = errors.New("seen")

// applied reports whether the commit of a half message, or of an earlier copy of
// it, is in the log already: a committed message with its unique key and its
// body. The broker may have ended between the commit and the op message.
func (t *transactions) applied(ctx context.Context, m *message.Ext, c *message.Message) bool {
	sum := message.BodyCRC(m.Body)
	err := t.b.store.QueryRecords(ctx, c.Topic, m.Properties.UniqKey(), gantry.QueryOptions{UniqueKey: true}, func(rec []byte) error {
		h, err := message.ParseHeader(rec)
		if err == nil && h.SysFlag.Transaction() == message.TxCommit && h.BodyCRC == sum && int(h.BodyLen) == len(m.Body) {
			return errSeen
		}
		return nil
	})
	switch {
	case errors.Is(err, errSeen):
		return true
	case err != nil && !errors.Is(err, gantry.ErrNotFound):
		t.b.log.Warn("cannot tell whether a transaction was committed before the last stop", "topic", c.Topic, "physicalOffset", m.PhysicalOffset, "err", err)
	}
	return false
}

// over notes on disk that a claimed half message is over. When that fails, its
// producer is asked again after the next start, and the answer changes nothing.
func (t *transactions) over(h *half) {
	t.moving.RLock()
	defer t.moving.RUnlock()
	m := &message.Message{
		Topic: message.OpHalfTopic, Body: strconv.AppendInt(nil, int64(h.offset), 10),
		Properties:    message.NewProperties(message.PropTags, opTag, message.PropWait, "false"),
		BornTimestamp: t.b.now(), BornHost: t.b.storeHost, StoreHost: t.b.storeHost,
	}
	res, err := t.b.store.Put(context.Background(), m)
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, _, stored := putResponse(err); !stored {
		t.b.log.Error("cannot note the end of a transaction", "queueOffset", h.offset, "err", err)
		return
	}
	t.ops = append(t.ops, op{res.QueueOffset, h.offset})
	t.left = append(t.left, stepBy(h.offset, res))
	t.opEnd = max(t.opEnd, res.QueueOffset+1)
}

// saveOffsets hands the offsets up to which everything is over to the consumer
// offsets. A half message has left its place only when that is on stable storage,
// and with it the commit or copy before: the offsets are saved by a sync of
// their own, and what the machine forgets has to be found again.
func (t *transactions) saveOffsets() {
	t.moving.Lock()
	defer t.moving.Unlock()
	flushed := t.b.store.Stats().FlushedOffset
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.halfEnd == 0 {
		return // no transaction ever
	}
	first := t.firstOpenLocked()
	t.left = slices.DeleteFunc(t.left, func(s step) bool { return s.end <= flushed })
	for _, s := range t.left {
		first = min(first, s.from)
	}
	t.ops = slices.DeleteFunc(t.ops, func(o op) bool { return o.half < first })
	firstOp := t.opEnd
	for _, o := range t.ops {
		firstOp = min(firstOp, o.offset)
	}
	t.b.offsets.Commit(metadata.TransactionGroup, message.HalfTopic, 0, int64(first))
	t.b.offsets.Commit(metadata.TransactionGroup, message.OpHalfTopic, 0, int64(firstOp))
}

// firstOpenLocked is the offset of the first open half message, or the end of
// their queue.
func (t *transactions) firstOpenLocked() message.QueueOffset {
	for len(t.order) > 0 && !t.currentLocked(t.order[0]) {
		t.order[0] = place{}
		t.order = t.order[1:]
	}
	if len(t.order) == 0 {
		return t.halfEnd
	}
	return t.order[0].offset
}

// claimFor claims the open transaction that m is of, as its first half message
// or any copy: a producer may answer late. nil: there is none.
func (t *transactions) claimFor(m *message.Ext) *half {
	first, linked := firstOf(m)
	t.mu.Lock()
	defer t.mu.Unlock()
	for {
		h := t.open[first]
		if h == nil && !linked {
			h = t.javas.byKey[m.Properties.UniqKey()]
		}
		if h == nil {
			return nil
		}
		if !h.ending {
			h.ending = true
			return h
		}
		t.freed.Wait()
	}
}

// firstOf returns the offset of the half message that m is a copy of, or m's
// own.
func firstOf(m *message.Ext) (first message.QueueOffset, linked bool) {
	v, _ := m.Properties.Get(propFirst)
	if n, err := strconv.ParseInt(v, 10, 64); err == nil && n >= 0 && n < int64(m.QueueOffset) {
		return message.QueueOffset(n), true
	}
	return m.QueueOffset, false
}

// claim makes sure that nobody else ends or checks h meanwhile.
func (t *transactions) claim(h *half) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.ending || t.open[h.first] != h {
		return false
	}
	h.ending = true
	return true
}

// release ends a claim; gone says that h is over.
func (t *transactions) release(h *half, gone bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if h.ending = false; gone && t.open[h.first] == h {
		delete(t.open, h.first)
		t.javas.forget(h)
		if t.openOf[h.topic] > 1 {
			t.openOf[h.topic]--
		} else {
			delete(t.openOf, h.topic)
		}
	}
	t.freed.Broadcast()
}

func (t *transactions) add(n *int64) {
	t.mu.Lock()
	*n++
	t.mu.Unlock()
}

// count counts a transaction that its producer ended, took ms after its birth.
func (t *transactions) count(h *half, commit bool, took int64) {
	of := t.b.stats.topic(h.topic.Value())
	if !commit {
		t.add(&t.stats.RolledBack)
		of.rolledBack.Add(1)
		return
	}
	t.add(&t.stats.Committed)
	of.committed.Add(1)
	of.finish.add(max(took, 0)/1000, finishBounds)
}

// openByTopic returns how many transactions are open, by the topic that they are
// meant for.
func (t *transactions) openByTopic() map[string]int {
	t.mu.Lock()
	defer t.mu.Unlock()
	of := make(map[string]int, len(t.openOf))
	for topic, n := range t.openOf {
		of[topic.Value()] = n
	}
	return of
}

// snapshot returns the counters.
func (t *transactions) snapshot() transactionStats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.stats
	s.Open = len(t.open)
	return s
}
