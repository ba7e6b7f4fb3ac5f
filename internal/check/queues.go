package check

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

const (
	unitSize  = consumequeue.UnitSize
	batchSize = consumequeue.BatchUnitSize
)

// The folders of queues.
const (
	dirQueue = "consumequeue"
	dirBatch = "batchconsumequeue"
	dirExt   = "consumequeue_ext"
)

// catalog is all queues on disk.
type catalog struct {
	topics   map[string]*topic
	queues   []*queue             // by topic, kind and id
	fileSize [2]int64             // by kind
	ext      map[string][]segment // extension files, by directory
	end      int64                // end of the last record that some queue has a unit for: how far dispatch got
	lost     ghosts
	units    atomic.Int64
	inLogGap atomic.Int64 // units that point where no file of the log is
	// lostUnits are these, and those that lead into damage or behind the end of
	// the log.
	lostUnits atomic.Int64
}

// topic is the queues of one topic, and what each of its records is asked for.
type topic struct {
	name   string
	queues []*queue // by kind and id
	own    []*queue // by id, if that is small: see queueFor

	legal             bool  // as brokers want a topic's name
	keyHash, tagsHash int32 // of the index's text before a key and before the tags
}

// maxOwn is the first queue id that is not in topic.own.
const maxOwn = 256

// queue is one directory of units. A store can have 100 000 of them: what only
// few need is in notes.
type queue struct {
	topic  *topic
	files  []segment
	hits   []int32 // for each file, units that a record was found to own; atomic
	live   []int32 // for each file, units that point into the log; if not summed
	idx    int32   // in catalog.queues
	id     int32
	kind   consumequeue.Kind
	summed bool // compared by sums; if not, one by one: see sums

	mu    sync.Mutex
	notes *queueNotes // nil while there is nothing to note; see note

	// After walkQueues:
	start, max int64 // first slot on disk; slot behind the last live unit
	firstPhy   int64 // of the first unit that is no fill unit, -1
	lastPhy    int64 // of the last live unit, -1
	lastEnd    int64 // end of that unit's record
	expired    int64 // units below the log
}

// queueNotes is what the records of the log had to say about a queue.
type queueNotes struct {
	sink    *sink
	missing []missing // records that have no unit here
	moved   int64     // units that stand in another slot than their record says
	movedAt int64
	shift   int64   // by how many slots the last of them was moved
	ext     *extSet // nil until an extension address was seen
	level   delayLevel
}

// note returns the queue's notes. While the log is walked q.mu must be held.
func (q *queue) note(c *checker) *queueNotes {
	if q.notes == nil {
		q.notes = &queueNotes{sink: c.sink()}
	}
	return q.notes
}

// findings is where what is wrong with the queue is reported.
func (q *queue) findings(c *checker) *sink { return q.note(c).sink }

// missing is a run of records without unit.
type missing struct {
	kind     missKind
	from, to int64 // slots
	phy      span  // first record, and last record + 1
	n        int64
}

// missKind says what stands in the slot.
type missKind uint8

const (
	missEmpty missKind = iota // nothing
	missFill                  // a fill unit
	missOther                 // the unit of another record
)

// maxMissing bounds the runs remembered for one queue; further ones are added
// to the last.
const maxMissing = 32

// queueDir is the queue's directory.
func (c *checker) queueDir(q *queue) string {
	root := dirQueue
	if q.kind == consumequeue.Batch {
		root = dirBatch
	}
	return filepath.Join(c.dir, root, q.topic.name, strconv.Itoa(int(q.id)))
}

func (c *checker) queuePath(q *queue, i int) string {
	return filepath.Join(c.queueDir(q), segmentName(q.files[i].start))
}

func (q *queue) unitSize() int64 {
	if q.kind == consumequeue.Batch {
		return batchSize
	}
	return unitSize
}

// find returns the queue that a record of the topic belongs to, or nil.
func (t *topic) find(id int32, kind consumequeue.Kind) *queue {
	i, ok := slices.BinarySearchFunc(t.queues, id, func(q *queue, id int32) int {
		if q.kind != kind {
			return cmp.Compare(q.kind, kind)
		}
		return cmp.Compare(q.id, id)
	})
	if !ok {
		return nil
	}
	return t.queues[i]
}

// queueFor returns the queue for the records of a topic and queue id. A topic
// has one kind; where the disk has both the configuration decides.
func (c *checker) queueFor(t *topic, id int32) *queue {
	if uint32(id) < uint32(len(t.own)) {
		return t.own[id]
	}
	simple, batch := t.find(id, consumequeue.Simple), t.find(id, consumequeue.Batch)
	if simple == nil || batch != nil && c.config.topics[t.name].batch {
		return batch
	}
	return simple
}

// listQueues finds the queues: rules 14 and 28.
func (c *checker) listQueues() error {
	cat := &catalog{topics: map[string]*topic{}}
	c.queues = cat
	cat.lost.init()
	s := c.sink()
	defer s.flush()
	for _, kind := range []consumequeue.Kind{consumequeue.Simple, consumequeue.Batch} {
		if err := c.listKind(s, cat, kind); err != nil {
			return err
		}
	}
	names := make([]string, 0, len(cat.topics))
	for name := range cat.topics {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		t := cat.topics[name]
		slices.SortFunc(t.queues, func(a, b *queue) int {
			return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.id, b.id))
		})
		for _, q := range t.queues {
			q.idx = int32(len(cat.queues))
			cat.queues = append(cat.queues, q)
		}
	}
	c.checkQueueFiles(s)
	c.checkTypes(s)
	c.listExt(s)
	c.prepareSums()
	c.startProgress()
	return nil
}

func (c *checker) listKind(s *sink, cat *catalog, kind consumequeue.Kind) error {
	root := filepath.Join(c.dir, dirQueue)
	if kind == consumequeue.Batch {
		root = filepath.Join(c.dir, dirBatch)
	}
	for _, te := range c.list(s, root) {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		tdir := filepath.Join(root, te.Name)
		if !te.IsDir() {
			if !c.rocksQueues {
				s.add(ruleLeftover, c.show(tdir), 0, "not a folder of a topic")
			}
			continue
		}
		for _, qe := range c.list(s, tdir) {
			qdir := filepath.Join(tdir, qe.Name)
			id, err := strconv.ParseInt(qe.Name, 10, 32)
			if !qe.IsDir() || err != nil || strconv.Itoa(int(id)) != qe.Name {
				s.add(ruleLeftover, c.show(qdir), 0, "not a folder of a queue; it is not looked at")
				continue
			}
			t := cat.topics[te.Name]
			if t == nil {
				t = &topic{name: strings.Clone(te.Name)}
				cat.topics[t.name] = t
			}
			q := &queue{topic: t, id: int32(id), kind: kind, firstPhy: -1, lastPhy: -1}
			q.files = slices.Clip(c.listSegments(s, ruleQueueFiles, []string{qdir}))
			t.queues = append(t.queues, q)
		}
	}
	return nil
}

// checkQueueFiles is rule 14: the file size is one for all queues of a kind.
func (c *checker) checkQueueFiles(s *sink) {
	cat := c.queues
	for _, kind := range []consumequeue.Kind{consumequeue.Simple, consumequeue.Batch} {
		size := int64(0)
		if kind == consumequeue.Simple {
			size = c.o.ConsumeQueueFileSize
		}
		if size == 0 {
			var tally sizeTally
			unit := int64(1) // a batch file need not be a multiple of its unit
			for _, q := range cat.queues {
				if q.kind == kind {
					tally.add(q.files)
				}
			}
			if kind == consumequeue.Simple {
				unit = unitSize
			}
			size = tally.best(unit)
		}
		cat.fileSize[kind] = size
	}
	for _, q := range cat.queues {
		size := cat.fileSize[q.kind]
		if size < q.unitSize() {
			for i := range q.files {
				s.add(ruleQueueFiles, c.show(c.queuePath(q, i)), 0, "%d bytes: no file size that holds whole units can be made out", q.files[i].size)
			}
			q.files = nil
			continue
		}
		var gaps []span
		q.files, gaps = c.checkSegments(s, ruleQueueFiles, ruleQueueFiles, []string{c.queueDir(q)}, q.files, size)
		q.hits = make([]int32, len(q.files))
		for _, g := range gaps {
			s.add(ruleQueueFiles, c.show(c.queueDir(q)), 0, "no files for the bytes from %d to %d of the queue: %s lost", g.from, g.to, plural(g.len()/q.unitSize(), "unit"))
		}
		if len(q.files) > 0 {
			q.start = q.files[0].start / q.unitSize()
		}
	}
}

// prepareSums decides which queues are compared by sums: those whose units are
// certain from the record alone. In the schedule topic they depend on the
// broker's delays, of light queues on its settings, with an extension the tags
// code is an address, and units of batch queues hold more.
func (c *checker) prepareSums() {
	cat := c.queues
	for _, t := range cat.topics {
		t.legal = legalTopic([]byte(t.name))
		t.keyHash = message.HashAppend(message.JavaHash(t.name), "#")
		t.tagsHash = message.HashAppend(t.keyHash, "T#")
		var own []*queue
		for _, q := range t.queues {
			q.summed = q.kind == consumequeue.Simple && c.o.Level > Quick && !c.rocksQueues && t.name != message.ScheduleTopic &&
				!message.IsLight(t.name) && len(cat.ext[c.extDir(q)]) == 0
			if q.id < 0 || q.id >= maxOwn {
				continue
			}
			for int(q.id) >= len(own) {
				own = append(own, nil)
			}
			own[q.id] = c.queueFor(t, q.id)
		}
		t.own = own
	}
	if c.o.Level > Quick {
		c.sums = newSums(len(c.log.files), len(cat.queues))
	}
}

// checkTypes is rule 28.
func (c *checker) checkTypes(s *sink) {
	for _, q := range c.queues.queues {
		t, name := q.topic, q.topic.name
		if q.kind == consumequeue.Batch && t.find(q.id, consumequeue.Simple) != nil {
			s.add(ruleQueueType, c.show(c.queueDir(q)), 0, "the queue also exists in %s", dirQueue)
		}
		tc, known := c.config.topics[name]
		if !known || message.IsLight(name) {
			continue
		}
		if tc.batch != (q.kind == consumequeue.Batch) {
			want := "SimpleCQ"
			if tc.batch {
				want = "BatchCQ"
			}
			s.addAs(ruleQueueType, Error, c.show(c.queueDir(q)), 0, "the topic's queue.type is %s: a Java broker does not start with this folder", want)
		}
		if n := max(tc.read, tc.write); q.id >= n && n > 0 {
			s.add(ruleQueueType, c.show(c.queueDir(q)), 0, "queue id %d, but the topic has %d queues", q.id, n)
		}
	}
}

// startProgress adds up what there is to read.
func (c *checker) startProgress() {
	total := int64(0)
	for _, g := range c.log.files {
		total += g.size
	}
	for _, q := range c.queues.queues {
		for _, g := range q.files {
			total += g.size
		}
	}
	c.progress.start(c.o.Progress, max(total, 1))
}

func (cat *catalog) summarize(s *Summary) {
	s.Queues, s.Topics, s.Units = int64(len(cat.queues)), int64(len(cat.topics)), cat.units.Load()
}

// ghosts are records whose queue is not on disk at all.
type ghosts struct {
	mu   sync.Mutex
	list map[string]*ghost // by topic, a zero byte, and id
	more int64             // records of queues that did not fit into list
}

type ghost struct {
	topic string
	id    int32
	n     int64
	phy   span
}

// maxGhosts bounds the queues that are told apart.
const maxGhosts = 50_000

func (g *ghosts) init() { g.list = map[string]*ghost{} }

func (g *ghosts) add(topic string, id int32, phy int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	key := topic + "\x00" + strconv.Itoa(int(id))
	e := g.list[key]
	switch {
	case e == nil && len(g.list) >= maxGhosts:
		g.more++
		return
	case e == nil:
		e = &ghost{topic: topic, id: id, phy: span{phy, phy + 1}}
		g.list[key] = e
	}
	e.n++
	e.phy.from, e.phy.to = min(e.phy.from, phy), max(e.phy.to, phy+1)
}

// miss notes that the record at phy has no unit in slot.
func (q *queueNotes) miss(kind missKind, slot, phy int64) {
	if n := len(q.missing); n > 0 {
		m := &q.missing[n-1]
		if m.kind == kind && slot == m.to && phy > m.phy.to-1 || n >= maxMissing {
			m.from, m.to = min(m.from, slot), max(m.to, slot+1)
			m.phy.from, m.phy.to = min(m.phy.from, phy), max(m.phy.to, phy+1)
			m.n++
			return
		}
	}
	q.missing = append(q.missing, missing{kind: kind, from: slot, to: slot + 1, phy: span{phy, phy + 1}, n: 1})
}
