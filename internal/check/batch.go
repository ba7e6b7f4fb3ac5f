package check

import (
	"math"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/consumequeue"
)

// flushBatch compares records with the units of a batch queue: rules 18, 21
// and 27. Units are found by their position in the log, which rises along the
// queue as it does along the records.
func (x *expectations) flushBatch(q *queue, ch chain) {
	q.mu.Lock()
	defer q.mu.Unlock()
	x.units.use(q, x.sink)
	n := x.units.batchCount()
	at := int64(-1)
	searches := 0
	for i := ch.first; i >= 0; {
		e := &x.list[i]
		i = e.next
		if at >= 0 {
			at++
		}
		u, file, pos := x.units.batchAt(at)
		if file < 0 || int64(u.Physical) != e.phy {
			if searches >= maxExpect/16 {
				q.note(x.c).miss(missEmpty, e.slot, e.phy)
				continue
			}
			searches++
			at = x.units.batchSearch(n, e.phy)
			u, file, pos = x.units.batchAt(at)
		}
		if file < 0 || !u.Valid() || int64(u.Physical) != e.phy {
			q.note(x.c).miss(missEmpty, e.slot, e.phy)
			at = -1
			continue
		}
		atomic.AddInt32(&q.hits[file], 1)
		x.compareBatch(q, e, u, file, pos)
	}
}

func (x *expectations) compareBatch(q *queue, e *expectation, u consumequeue.BatchUnit, file int, off int64) {
	if u.Size == e.size && int64(u.Tags) == e.tags && int64(u.Base) == e.slot && u.Count == e.num && u.StoreTime == e.time && u.Reserved == 0 {
		return
	}
	s, name := q.findings(x.c), x.c.show(x.c.queuePath(q, file))
	if u.Size != e.size {
		s.add(ruleQueueSize, name, off, "the unit has size %d, the record at %d has %d", u.Size, e.phy, e.size)
	}
	if int64(u.Tags) != e.tags {
		s.add(ruleQueueTags, name, off, "tags code %d, the tags of the record at %d give %d", u.Tags, e.phy, e.tags)
	}
	if int64(u.Base) != e.slot || u.Count != e.num {
		s.add(ruleQueueBatch, name, off, "queue offsets %d and %d messages, the record at %d has %d and %d", u.Base, u.Count, e.phy, e.slot, e.num)
	}
	if u.StoreTime != e.time {
		s.add(ruleQueueBatch, name, off, "store time %d, the record at %d has %d", u.StoreTime, e.phy, e.time)
	}
	if u.Reserved != 0 {
		s.add(ruleQueueBatch, name, off, "reserved field is %d", u.Reserved)
	}
}

// perBatchFile is how many whole units a batch file holds.
func (r *unitReader) perBatchFile() int64 {
	return r.c.queues.fileSize[consumequeue.Batch] / batchSize
}

// batchCount is the number of unit places in all files of the queue.
func (r *unitReader) batchCount() int64 {
	return int64(len(r.q.files)) * r.perBatchFile()
}

// batchAt returns the unit with index i, counted from the queue's first file,
// with the index of its file and its offset there. The file is -1 when there
// is no such unit.
func (r *unitReader) batchAt(i int64) (u consumequeue.BatchUnit, file int, off int64) {
	per := r.perBatchFile()
	if i < 0 || i >= r.batchCount() {
		return u, -1, 0
	}
	f, off := int(i/per), i%per*batchSize
	if off+batchSize > r.q.files[f].size {
		return u, -1, 0
	}
	b, file := r.bytes(r.q.files[f].start+off, batchSize, math.MaxInt64)
	if file < 0 {
		return u, -1, 0
	}
	u, _ = consumequeue.DecodeBatchUnit(b) // b is long enough
	return u, file, off
}

// batchSearch returns the index of the first unit at or behind phy among the
// first n; places without unit count as behind.
func (r *unitReader) batchSearch(n, phy int64) int64 {
	lo, hi := int64(0), n
	for lo < hi {
		mid := lo + (hi-lo)/2
		u, file, _ := r.batchAt(mid)
		if file >= 0 && u.Valid() && int64(u.Physical) < phy {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}
