package tool

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// derivation makes consume queues and index anew from a log. Everything is
// decided by the log; the old queues are asked only where it does not tell: for
// units of messages that have expired, and when a record's queue offset, which
// no checksum covers, is not the next one.
type derivation struct {
	fs       vfs.FS
	dir      string // where the folders of queues and index are made
	scan     logScan
	logMin   int64
	shape    storeShape
	location *time.Location
	maxGap   int64 // queue offsets that may be missing in one place
	queues   bool
	index    bool
	topic    string // only the queues of this one; empty: of all
	old      *oldQueues

	// correct changes the queue offset in a record; nil: the log must not
	// change, and records out of place get no unit.
	correct func(r *placed, slot int64) error
	// dropped is told of a record that cannot have the place that it claims.
	dropped func(r *placed)

	tables     [2]*consumequeue.Table
	idx        *indexfile.Index
	topics     map[string]*topicState
	latest     int64 // no store time is later than this, ms
	now        int64 // store time of the current record: index files are named by it
	full       int64 // end time of the newest full index file
	gaps       []slotGap
	records    int64 // messages: fillers and placeholders are none
	units      int64
	last       logItem // without topic
	lastQueued int64
}

// slotGap is queue offsets [from, to) that belong to no record of the log.
type slotGap struct {
	q        *queueState
	from, to int64
}

// topicState and queueState are queues in the making.
type topicState struct {
	name   string
	queues map[int32]*queueState
}

type queueState struct {
	queueName
	queue *consumequeue.Queue
	old   *oldQueue
	first int64 // offset of the first record; -1: none yet
	end   int64 // the next offset; -1: none yet
	// lastPhy is the position of the record that was put last.
	lastPhy int64
	// held is a record whose offset was not the next one. What follows it
	// decides.
	held *placed
}

// placed is a record and the place that it claims in its queue.
type placed struct {
	queueName
	phy, off, time, tags int64
	size                 int32
	count                int16
	inner                bool // its offsets are in the properties
}

// run makes everything, to stable storage.
func (d *derivation) run(ctx context.Context) (err error) {
	d.topics = map[string]*topicState{}
	d.last.phy, d.lastQueued = -1, -1
	if err := d.open(ctx); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			d.discard()
		}
	}()
	if err := d.scan.run(ctx, d.take); err != nil {
		return err
	}
	for _, q := range d.sorted() {
		if err := d.settleEnd(q); err != nil {
			return err
		}
	}
	return nil
}

// sorted lists all queues, so that what is reported has an order.
func (d *derivation) sorted() (all []*queueState) {
	for _, t := range d.topics {
		for _, q := range t.queues {
			all = append(all, q)
		}
	}
	slices.SortFunc(all, func(a, b *queueState) int { return compareNames(a.queueName, b.queueName) })
	return all
}

func (d *derivation) open(ctx context.Context) (err error) {
	for kind, root := range queueDirs {
		if !d.queues {
			break
		}
		o := consumequeue.Options{
			FS: d.fs, Dir: filepath.Join(d.dir, root), Kind: consumequeue.Kind(kind), FileSize: d.shape.queueSize,
			MaxGap: d.maxGap, Logger: slog.New(slog.DiscardHandler), OnGap: d.gap,
		}
		if o.Kind == consumequeue.Batch {
			o.FileSize = d.shape.batchSize
		} else if d.shape.hasExt {
			o.ExtDir, o.ExtFileSize = filepath.Join(d.dir, queueExtDir), d.shape.extSize
		}
		if d.tables[kind], _, err = consumequeue.OpenTable(ctx, o, 1<<62); err != nil {
			d.discard()
			return err
		}
	}
	if !d.index {
		return nil
	}
	d.idx, _, _, err = indexfile.Open(ctx, indexfile.Options{
		FS: withIndexMemory(d.fs, d.shape.index), Dir: filepath.Join(d.dir, "index"), Slots: d.shape.index.Slots, Entries: d.shape.index.Entries,
		Now: func() int64 { return d.now }, Location: d.location,
		OnFull: func(t int64) { d.full = max(d.full, t) },
	}, indexfile.OpenState{Clean: true, LogEnd: 1 << 62})
	if err != nil {
		d.discard()
	}
	return err
}

// discard gives up what was not brought to stable storage.
func (d *derivation) discard() {
	for _, t := range d.tables {
		if t != nil {
			t.Discard()
		}
	}
	if d.idx != nil {
		_ = d.idx.Close() // it is not used any more
	}
	d.tables, d.idx = [2]*consumequeue.Table{}, nil
}

// finish brings everything to stable storage and says what a checkpoint needs
// to know of it.
func (d *derivation) finish(ctx context.Context) (e checkpoint.Ext, err error) {
	defer d.discard()
	to := d.scan.end
	if d.last.phy >= 0 {
		// Opening accepts one blank record behind the last record, no more.
		to = min(to, (d.last.phy/d.scan.fileSize+1)*d.scan.fileSize)
	}
	e = checkpoint.Ext{
		DispatchedTo: message.PhysicalOffset(to), LastRecord: message.PhysicalOffset(d.last.phy), LastStoreTime: d.last.time,
		FlushedTo: message.PhysicalOffset(d.scan.end), Clean: true,
	}
	var state indexfile.State
	synced := make(chan error, 1)
	go func() {
		var err error
		if d.idx != nil {
			state, err = d.idx.Sync()
		}
		synced <- err
	}()
	for i, t := range d.tables {
		if t == nil || err != nil {
			continue
		}
		err = t.Sync(ctx)
		count, hash := t.Fingerprint()
		e.QueueCount += count
		e.QueueHash += hash * [2]uint64{1, 31}[i] // as the store adds them up
	}
	if err := errors.Join(err, <-synced); err != nil {
		return e, fmt.Errorf("sync queues and index: %w", err)
	}
	if d.idx != nil {
		e.Index = checkpoint.IndexState(state)
		if err := d.idx.Close(); err != nil { // it tells of full files, too
			return e, err
		}
		d.idx = nil
	}
	return e, nil
}

// take puts the records of a batch into queues and index, which do not wait for
// each other.
func (d *derivation) take(b *logBatch) error {
	var indexed chan error
	if d.index && len(b.hashes) > 0 {
		indexed = make(chan error, 1)
		go func() { indexed <- d.indexBatch(b) }()
	}
	err := d.queueBatch(b)
	if indexed != nil {
		err = errors.Join(err, <-indexed) // the batch is in use until then
	}
	return err
}

// indexBatch puts the keys of a batch into the index.
func (d *derivation) indexBatch(b *logBatch) error {
	from := int32(0)
	for i := range b.items {
		it := &b.items[i]
		hashes := b.hashes[from:it.hashes]
		if from = it.hashes; len(hashes) == 0 {
			continue
		}
		if it.time > 0 && it.time <= d.latest {
			d.now = it.time
		}
		if err := d.idx.Put(message.PhysicalOffset(it.phy), it.time, hashes); err != nil {
			return fmt.Errorf("index the record at %d: %w", it.phy, err)
		}
	}
	return nil
}

// queueBatch puts the records of a batch into their queues.
func (d *derivation) queueBatch(b *logBatch) error {
	for i := range b.items {
		it := &b.items[i]
		if d.queues && it.count > 0 {
			if err := d.own(it); err != nil {
				return err
			}
			if it.light {
				if err := d.light(b, it); err != nil {
					return err
				}
			}
		}
		if !it.own {
			d.records++
		}
		if it.count > 0 {
			d.lastQueued = it.phy
		}
	}
	if n := len(b.items); n > 0 {
		d.last = b.items[n-1]
		d.last.topic = nil
	}
	return nil
}

// state returns the queue of a topic and id, nil for a name that cannot be a
// folder and for topics that are left out.
func (d *derivation) state(topic []byte, id int32, light bool) (*queueState, error) {
	t := d.topics[string(topic)]
	if t == nil {
		t = &topicState{name: string(topic), queues: map[int32]*queueState{}}
		d.topics[t.name] = t
	}
	if d.topic != "" && t.name != d.topic {
		return nil, nil
	}
	if q := t.queues[id]; q != nil {
		return q, nil
	}
	kind := consumequeue.Simple
	if !light && d.shape.isBatch(t.name) {
		kind = consumequeue.Batch
	}
	cq, err := d.tables[kind].GetOrCreate(t.name, id)
	if errors.Is(err, consumequeue.ErrName) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	q := &queueState{queueName: queueName{kind, t.name, id}, queue: cq, first: -1, end: -1, lastPhy: -1}
	q.old = d.old.get(q.queueName)
	t.queues[id] = q
	return q, nil
}

// own puts a record into its own queue.
func (d *derivation) own(it *logItem) error {
	if it.phy < d.shape.removed[string(it.topic)] {
		return nil
	}
	q, err := d.state(it.topic, it.queueID, false)
	if err != nil {
		return err
	}
	if q == nil {
		if d.topic == "" {
			d.drop(&placed{queueName: queueName{topic: string(it.topic), id: it.queueID}, phy: it.phy, off: it.off, time: it.time, size: it.size})
		}
		return nil
	}
	if q.held != nil {
		if err := d.settle(q, it.off); err != nil {
			return err
		}
	}
	if it.off == q.end || q.end < 0 && it.off == 0 {
		return d.put(q, it.off, it.phy, it.time, it.tags, it.size, it.count)
	}
	p := &placed{q.queueName, it.phy, it.off, it.time, it.tags, it.size, it.count, it.inner}
	return d.outOfTurn(q, p)
}

// put puts the unit for the next offset, or for a later one.
func (d *derivation) put(q *queueState, off, phy, time, tags int64, size int32, count int16) error {
	if q.end < 0 {
		q.first = off
		if err := d.carry(q, off); err != nil {
			return err
		}
	}
	err := d.unit(q, off, phy, time, tags, size, count)
	if misplaced(err) {
		d.drop(&placed{queueName: q.queueName, phy: phy, off: off, time: time, tags: tags, size: size, count: count})
		return nil
	}
	if err != nil {
		return err
	}
	d.units++
	q.lastPhy = phy
	q.end = max(q.end, off+int64(count))
	return nil
}

// misplaced reports whether an error says that a record claims a place that it
// cannot have.
func misplaced(err error) bool {
	_, far := errors.AsType[*consumequeue.GapError](err)
	return far || errors.Is(err, consumequeue.ErrOffset) || errors.Is(err, base.ErrCorrupt)
}

// unit writes one unit.
func (d *derivation) unit(q *queueState, off, phy, time, tags int64, size int32, count int16) (err error) {
	u := consumequeue.Unit{Physical: message.PhysicalOffset(phy), Size: size, Tags: message.TagsCode(tags)}
	switch {
	case q.kind == consumequeue.Batch:
		_, err = q.queue.EnsureBatch(consumequeue.BatchUnit{
			Physical: u.Physical, Size: size, Tags: u.Tags, StoreTime: time, Base: message.QueueOffset(off), Count: count, Compacted: -1,
		})
	case d.shape.hasExt && !message.IsLight(q.topic):
		_, err = q.queue.EnsureExt(message.QueueOffset(off), u, consumequeue.ExtUnit{Tags: u.Tags, StoreTime: time})
	default:
		_, err = q.queue.Ensure(message.QueueOffset(off), u)
	}
	return err
}

// gap is called for queue offsets that were left out.
func (d *derivation) gap(topic string, id int32, from, to message.QueueOffset) {
	if t := d.topics[topic]; t != nil && t.queues[id] != nil {
		d.gaps = append(d.gaps, slotGap{t.queues[id], int64(from), int64(to)})
	}
}

// drop gives a record up.
func (d *derivation) drop(p *placed) {
	if d.dropped != nil {
		d.dropped(p)
	}
}
