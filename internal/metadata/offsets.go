package metadata

import (
	"cmp"
	"errors"
	"hash/maphash"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/remoting"
)

// MaxOffsetsSize bounds the consumer offsets that one broker keeps, in bytes:
// some 4 million queues. The file stays below javajson.MaxSize with it.
const MaxOffsetsSize = 128 << 20

// What counts against MaxOffsetsSize: at least the memory, and at least the
// bytes in the file.
const (
	pairCost  = 128 // and the names
	queueCost = 32
)

// offsetShards is how many parts the table of offsets has, each with a lock.
const offsetShards = 64

// Offsets are how far consumer groups have come in each queue, the content of
// consumerOffset.json: the queue offset of the next message to consume
// (upstream: ConsumerOffsetManager).
//
// An administrator's reset of a queue is pending until the group's next pull
// takes it: meanwhile Query answers the target, and commits are ignored.
// Pending resets are not saved, but the target is an offset like others.
type Offsets struct {
	file   file
	seed   maphash.Seed
	shards [offsetShards]offsetShard
	size   atomic.Int64 // of everything, as MaxOffsetsSize counts
	resets atomic.Int64 // that are pending

	// mu guards version. It is not held while a file is written.
	mu      sync.Mutex
	version remoting.DataVersion
	kept    offsetsKept // not changed after opening
}

// pair is a topic and a group that consumes it.
type pair struct{ topic, group string }

func (p pair) String() string { return p.topic + "@" + p.group }

func (p pair) cost() int64 { return int64(len(p.topic) + len(p.group) + pairCost) }

type offsetShard struct {
	sync.RWMutex
	pairs map[pair]*groupOffsets
}

// groupOffsets are the offsets of a group in one topic, guarded by its shard's
// lock.
type groupOffsets struct {
	queues []queueOffset   // sorted by queue id
	resets map[int32]int64 // pending, by queue id
}

type queueOffset struct {
	id     int32
	offset int64
}

func (g *groupOffsets) cost() int64 { return queueCost * int64(len(g.queues)) }

// find returns the place of a queue.
func (g *groupOffsets) find(id int32) (int, bool) {
	return slices.BinarySearchFunc(g.queues, id, func(q queueOffset, id int32) int { return cmp.Compare(q.id, id) })
}

// OpenOffsets reads consumerOffset.json in dir, the directory config of a
// store.
func OpenOffsets(fsys vfs.FS, dir string, logger *slog.Logger) (*Offsets, error) {
	o := &Offsets{seed: maphash.MakeSeed()}
	o.file.init(fsys, dir, "consumerOffset.json", logger)
	for i := range o.shards {
		o.shards[i].pairs = make(map[pair]*groupOffsets)
	}
	o.version.Timestamp = nowMillis()
	err := load(&o.file, func(c offsetsContent) {
		for p, queues := range c.pairs {
			o.shard(p).pairs[p] = &groupOffsets{queues: queues}
		}
		o.size.Store(c.size)
		o.version, o.kept = c.version, c.kept
	})
	if err != nil {
		return nil, err
	}
	for _, key := range sortedKeys(o.kept.unserved) {
		o.file.logger.Warn("offsets in the file belong to no topic and group", "file", o.file.path, "key", key)
	}
	light := filepath.Join(dir, "lmqConsumerOffset.json")
	if _, err := fsys.Stat(light); err == nil {
		o.file.logger.Warn("a broker with light queues kept its offsets in a file that is not read", "file", light)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return o, nil
}

func (o *Offsets) shard(p pair) *offsetShard {
	return &o.shards[(maphash.String(o.seed, p.topic)+31*maphash.String(o.seed, p.group))%offsetShards]
}

// Committed is what became of a commit.
type Committed int

const (
	// Stored: the offset is kept, also when it is smaller than the last one.
	Stored Committed = iota
	// ResetPending: the queue waits for a pull to take an administrator's
	// reset; the commit was ignored.
	ResetPending
	// NoOffset: the offset is negative. Some clients commit -1 for queues that
	// they have not read. What was stored stays.
	NoOffset
	// Refused: there is no such queue id, or there is no room for one more.
	Refused
)

// Commit notes the offset of a group in a queue. Whether the group and the
// topic exist is the caller's to check.
func (o *Offsets) Commit(group, topic string, queueID int32, offset int64) Committed {
	switch {
	case offset < 0:
		return NoOffset
	case !validQueueID(queueID):
		return Refused
	}
	p := pair{topic, group}
	s := o.shard(p)
	s.Lock()
	defer s.Unlock()
	g := s.pairs[p]
	if g != nil && g.resets != nil {
		if _, pending := g.resets[queueID]; pending {
			return ResetPending
		}
	}
	if !o.storeLocked(s, p, g, queueID, offset) {
		return Refused
	}
	return Stored
}

func validQueueID(id int32) bool { return id >= 0 && id < MaxQueueNums }

// storeLocked sets an offset in a shard whose lock is held for writing; g is
// what it has for p.
func (o *Offsets) storeLocked(s *offsetShard, p pair, g *groupOffsets, id int32, offset int64) bool {
	i, found := 0, false
	if g != nil {
		if i, found = g.find(id); found {
			if g.queues[i].offset != offset {
				g.queues[i].offset = offset
				o.file.changes.Add(1)
			}
			return true
		}
	}
	cost := int64(queueCost)
	if g == nil {
		if !servable(p.topic) || p.group == "" || !isPlain(p.group) {
			return false
		}
		cost += p.cost()
	}
	if o.size.Add(cost) > MaxOffsetsSize {
		o.size.Add(-cost)
		return false
	}
	if g == nil {
		g = new(groupOffsets)
		s.pairs[p] = g
	}
	g.queues = slices.Insert(g.queues, i, queueOffset{id, offset})
	o.file.changes.Add(1)
	return true
}

// Query returns where a group goes on in a queue: the target of a pending
// reset, or the last commit. ok says whether there is either.
func (o *Offsets) Query(group, topic string, queueID int32) (offset int64, ok bool) {
	p := pair{topic, group}
	s := o.shard(p)
	s.RLock()
	defer s.RUnlock()
	g := s.pairs[p]
	if g == nil {
		return 0, false
	}
	if target, pending := g.resets[queueID]; pending {
		return target, true
	}
	i, found := g.find(queueID)
	if !found {
		return 0, false
	}
	return g.queues[i].offset, true
}

// AssignReset makes the group go on at offset target in a queue: it is stored
// as the offset, and pending for the next pull. It reports whether it was
// possible: the target is not negative, and Commit would not have refused it.
func (o *Offsets) AssignReset(group, topic string, queueID int32, target int64) bool {
	if target < 0 || !validQueueID(queueID) {
		return false
	}
	p := pair{topic, group}
	s := o.shard(p)
	s.Lock()
	defer s.Unlock()
	if !o.storeLocked(s, p, s.pairs[p], queueID, target) {
		return false
	}
	g := s.pairs[p]
	if g.resets == nil {
		g.resets = make(map[int32]int64)
	}
	before := len(g.resets)
	g.resets[queueID] = target
	o.resets.Add(int64(len(g.resets) - before))
	return true
}

// TakeReset ends the pending reset of a queue and returns its target, which the
// pull has to answer. It costs next to nothing while no reset is pending.
func (o *Offsets) TakeReset(group, topic string, queueID int32) (target int64, pending bool) {
	if o.resets.Load() == 0 {
		return 0, false
	}
	p := pair{topic, group}
	s := o.shard(p)
	s.RLock()
	g := s.pairs[p]
	any := g != nil && len(g.resets) > 0
	s.RUnlock()
	if !any {
		return 0, false
	}
	s.Lock()
	defer s.Unlock()
	if g = s.pairs[p]; g == nil {
		return 0, false
	}
	if target, pending = g.resets[queueID]; pending {
		delete(g.resets, queueID)
		o.resets.Add(-1)
	}
	return target, pending
}

// Topics returns the topics in which a group has offsets, sorted.
func (o *Offsets) Topics(group string) []string {
	return o.names(func(p pair) (string, bool) { return p.topic, p.group == group })
}

// Groups returns the groups that have offsets in a topic, sorted.
func (o *Offsets) Groups(topic string) []string {
	return o.names(func(p pair) (string, bool) { return p.group, p.topic == topic })
}

func (o *Offsets) names(of func(pair) (string, bool)) []string {
	var names []string
	for i := range o.shards {
		s := &o.shards[i]
		s.RLock()
		for p := range s.pairs {
			if name, ok := of(p); ok {
				names = append(names, name)
			}
		}
		s.RUnlock()
	}
	slices.Sort(names)
	return names
}

// Queues returns the committed offsets of a group in a topic by queue id. The
// map is the caller's; it is empty if there are none.
func (o *Offsets) Queues(group, topic string) map[int32]int64 {
	p := pair{topic, group}
	s := o.shard(p)
	s.RLock()
	defer s.RUnlock()
	return s.pairs[p].byID()
}

func (g *groupOffsets) byID() map[int32]int64 {
	if g == nil {
		return map[int32]int64{}
	}
	m := make(map[int32]int64, len(g.queues))
	for _, q := range g.queues {
		m[q.id] = q.offset
	}
	return m
}

// Clone gives group to the offsets that group from has in a topic, in place of
// its own and with no reset pending, and reports whether there were any and
// there was room (upstream: cloneOffset).
func (o *Offsets) Clone(from, to, topic string) bool {
	source, target := pair{topic, from}, pair{topic, to}
	s := o.shard(source)
	s.RLock()
	g := s.pairs[source]
	var queues []queueOffset
	if g != nil {
		queues = slices.Clone(g.queues)
	}
	s.RUnlock()
	if g == nil || from == to {
		return g != nil
	}
	if to == "" || !isPlain(to) {
		return false
	}
	s = o.shard(target)
	s.Lock()
	defer s.Unlock()
	c := &groupOffsets{queues: queues}
	cost := target.cost() + c.cost()
	if o.size.Add(cost) > MaxOffsetsSize {
		o.size.Add(-cost)
		return false
	}
	o.deleteLocked(s, target)
	s.pairs[target] = c
	o.file.changes.Add(1)
	return true
}

// Delete removes the offsets of a group in a topic, pending resets included,
// and reports whether there were any.
func (o *Offsets) Delete(group, topic string) bool {
	p := pair{topic, group}
	s := o.shard(p)
	s.Lock()
	defer s.Unlock()
	return o.deleteLocked(s, p)
}

// DeleteGroup removes all offsets of a group and returns in how many topics
// there were any.
func (o *Offsets) DeleteGroup(group string) int {
	return o.deleteAll(func(p pair) bool { return p.group == group })
}

// DeleteTopic removes all offsets in a topic and returns of how many groups
// there were any.
func (o *Offsets) DeleteTopic(topic string) int {
	return o.deleteAll(func(p pair) bool { return p.topic == topic })
}

func (o *Offsets) deleteAll(match func(pair) bool) (n int) {
	for i := range o.shards {
		s := &o.shards[i]
		s.Lock()
		for p := range s.pairs {
			if match(p) && o.deleteLocked(s, p) {
				n++
			}
		}
		s.Unlock()
	}
	return n
}

func (o *Offsets) deleteLocked(s *offsetShard, p pair) bool {
	g := s.pairs[p]
	if g == nil {
		return false
	}
	delete(s.pairs, p)
	o.size.Add(-p.cost() - g.cost())
	o.resets.Add(-int64(len(g.resets)))
	o.file.changes.Add(1)
	return true
}

// Version is the version of the file: it counts how often it was written.
func (o *Offsets) Version() remoting.DataVersion {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.version
}

// Table returns all offsets, for 43. It is the caller's. Commits go on
// meanwhile; which of them it has differs from queue to queue.
func (o *Offsets) Table() *remoting.ConsumerOffsets {
	version := o.Version()
	table := make(map[string]map[int32]int64)
	for i := range o.shards {
		s := &o.shards[i]
		s.RLock()
		for p, g := range s.pairs {
			table[p.String()] = g.byID()
		}
		s.RUnlock()
	}
	return &remoting.ConsumerOffsets{DataVersion: &version, OffsetTable: table}
}

// Changes counts the changes of offsets since the table was opened. A commit of
// the offset that was stored already is none.
func (o *Offsets) Changes() uint64 { return o.file.changes.Load() }

// Save writes consumerOffset.json if an offset changed since the last Save.
// Commits wait at most while a 64th of the table is copied.
func (o *Offsets) Save() error { return o.file.save(o.encode) }
