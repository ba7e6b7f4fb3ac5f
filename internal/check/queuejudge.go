package check

import (
	"slices"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// judgeMissing is rule 23 for one queue: it decides what it means that records
// have no unit.
func (c *checker) judgeMissing(q *queue) {
	if q.notes == nil || len(q.notes.missing) == 0 || c.rocksQueues {
		return
	}
	s, list := q.notes.sink, q.notes.missing
	dir := c.show(c.queueDir(q))
	slices.SortFunc(list, func(a, b missing) int {
		switch {
		case a.phy.from < b.phy.from:
			return -1
		case a.phy.from > b.phy.from:
			return 1
		}
		return 0
	})
	// Runs that were found in different log files become one.
	runs := list[:1]
	for _, m := range list[1:] {
		if last := &runs[len(runs)-1]; last.kind == m.kind && last.to == m.from {
			last.to, last.phy.to, last.n = m.to, m.phy.to, last.n+m.n
			continue
		}
		runs = append(runs, m)
	}
	for _, m := range runs {
		if m.phy.from >= c.log.end {
			continue // old records behind the end of the log
		}
		f := Finding{Severity: Error, File: dir, Offset: m.from * q.unitSize(), Count: m.n}
		offsets := "queue offsets " + itoa(m.from) + " to " + itoa(m.to-1)
		if m.to-m.from == 1 {
			offsets = "queue offset " + itoa(m.from)
		}
		tail := m.kind == missEmpty && m.from >= q.max
		// The queue's units are all newer: the records are from before it was
		// deleted and made anew.
		older := q.firstPhy >= 0 && m.phy.to-1 < q.firstPhy && m.from >= q.start
		switch {
		case tail && m.phy.from >= c.queues.end:
			f.Severity = Warning
			if c.abort || c.live {
				f.Severity = Info
			}
			f.Repair, f.Meaning = repairOpen, "consumers get these messages after the next start"
			s.put(ruleQueueMissing, f, "%s: %s at and behind position %d not yet dispatched", offsets, plural(m.n, "record"), m.phy.from)
		case older && m.kind != missFill:
			f.Severity, f.Repair = Info, repairNone
			f.Meaning = "the queue was deleted and made again; these messages are from before"
			s.put(ruleQueueMissing, f, "%s: %s older than the queue's first unit", offsets, plural(m.n, "record"))
		case tail && (c.abort || c.live):
			f.Severity, f.Repair = Info, repairOpen
			f.Meaning = "the units were not on disk when the store stopped; the next start makes them again"
			s.put(ruleQueueMissing, f, "%s: %s from position %d on have no unit; the queue ends at offset %d", offsets, plural(m.n, "record"), m.phy.from, q.max)
		case m.kind == missFill:
			s.put(ruleQueueMissing, f, "%s: a fill unit in the place of the record at %d", offsets, m.phy.from)
			s.addAs(ruleQueueFill, Error, dir, f.Offset, "%s: fill units where messages exist", offsets)
		case m.kind == missOther:
			s.put(ruleQueueMissing, f, "%s: the unit of another record in the place of the record at %d", offsets, m.phy.from)
		case m.from < q.start:
			s.put(ruleQueueMissing, f, "%s: the queue begins at offset %d, but the record at %d is still there", offsets, q.start, m.phy.from)
		default:
			s.put(ruleQueueMissing, f, "%s: no unit for %s from position %d on; the queue ends at offset %d", offsets, plural(m.n, "record"), m.phy.from, q.max)
		}
	}
}

// judgeLost is rule 23 for records whose queue is not there at all.
func (c *checker) judgeLost(s *sink) {
	cat := c.queues
	if c.rocksQueues {
		return
	}
	keys := make([]string, 0, len(cat.lost.list))
	for k, g := range cat.lost.list {
		if g.phy.from < c.log.end {
			keys = append(keys, k)
		}
	}
	if len(keys) == 0 {
		return
	}
	slices.Sort(keys)
	if len(cat.queues) == 0 {
		n := cat.lost.more
		for _, k := range keys {
			n += cat.lost.list[k].n
		}
		f := Finding{Severity: Error, File: dirQueue, Count: n}
		switch {
		case c.live:
			f.Severity, f.Repair, f.Meaning = Info, repairNone, "the store is in use and has not written them yet"
		case c.abort:
			f.Severity, f.Repair = Warning, repairOpen
		}
		s.put(ruleQueueMissing, f, "there are no consume queues, but %s in %s that need them", plural(n, "record"), plural(int64(len(keys)), "queue"))
		return
	}
	for _, k := range keys {
		g := cat.lost.list[k]
		f := Finding{Severity: Error, File: dirQueue + "/" + g.topic + "/" + itoa(int64(g.id)), Count: g.n}
		_, known := c.config.topics[g.topic]
		switch {
		case message.IsLight(g.topic):
			f.Severity, f.Repair = Info, repairNone
			f.Meaning = "enableMultiDispatch is off, or the light queue was deleted"
		case c.config.haveTopics && !known && len(cat.lost.list) > 0 && !isSystemTopic(g.topic):
			f.Severity, f.Repair = Info, repairNone
			f.Meaning = "the topic was deleted"
		case g.phy.from >= cat.end:
			f.Severity, f.Repair = Warning, repairOpen
			if c.abort || c.live {
				f.Severity = Info
			}
			f.Meaning = "consumers get these messages after the next start"
		case c.abort || c.live:
			f.Severity, f.Repair = Info, repairOpen
			f.Meaning = "the queue was not on disk when the store stopped; the next start makes it again"
		}
		s.put(ruleQueueMissing, f, "no such queue, but %s from position %d to %d belong to it", plural(g.n, "record"), g.phy.from, g.phy.to-1)
	}
	if n := cat.lost.more; n > 0 {
		s.put(ruleQueueMissing, Finding{Severity: Error, File: dirQueue, Count: n}, "%s belong to further queues that are not there", plural(n, "record"))
	}
}

// judgeOps is rule 47: the half messages that op messages name exist.
func (c *checker) judgeOps(s *sink) {
	half := c.queues.topics[message.HalfTopic]
	for i, r := range c.log.results {
		if r == nil || i >= c.log.live {
			continue
		}
		for id, op := range r.ops {
			end := int64(0)
			if half != nil {
				if q := half.find(id, consumequeue.Simple); q != nil {
					end = q.max
				}
			}
			if op.offset >= end && !c.abort && !c.live && !c.rocksQueues && c.o.Level > Quick {
				s.add(ruleTransactionOp, r.file, op.phy-r.seg.start, "names half message %d of queue %d, which ends at %d", op.offset, id, end)
			}
		}
	}
}

// judgeGaps is rule 2.
func (c *checker) judgeGaps(s *sink) {
	for _, g := range c.log.gaps {
		f := Finding{Severity: Warning, File: "commitlog/" + segmentName(g.from), Count: max(g.len()/max(c.log.fileSize, 1), 1)}
		n := c.queues.inLogGap.Load()
		if n > 0 {
			f.Severity = Error
			s.put(ruleLogGap, f, "no files for positions %d to %d; %s point there", g.from, g.to, plural(n, "unit"))
			continue
		}
		s.put(ruleLogGap, f, "no files for positions %d to %d", g.from, g.to)
	}
}
