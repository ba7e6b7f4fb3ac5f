package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// losses finds the queue offsets whose messages are lost, and gives them what
// RepairOptions.Lost says. What is known of them comes from the old queues: a
// unit that points into a damaged range of the log.
type losses struct {
	*repairer
	d       *derivation
	places  []lostPlace
	details int // lost messages whose remains are still looked at
}

// lostPlace is a lost message that gets a record in its place in the log.
type lostPlace struct {
	q         *queueState
	phy, slot int64
	size      int32
	count     int16
	half      bool // a half message: a filler in its topic, without a unit
	done      bool // told already, and its unit is made from its record
	loose     bool // phy is not known; any place from there on will do
}

// maxDetails bounds the lost messages whose remains are looked at for keys.
const maxDetails = 10_000

// lostSlots is called when all records of the new log are in their queues.
func (r *repairer) lostSlots(ctx context.Context) error {
	l := &losses{repairer: r, d: r.der, details: maxDetails, places: slices.Clone(r.batches)}
	gaps := l.d.gaps
	l.d.gaps = nil
	slices.SortFunc(gaps, func(a, b slotGap) int {
		return cmp.Or(compareNames(a.q.queueName, b.q.queueName), cmp.Compare(a.from, b.from))
	})
	for _, g := range gaps {
		if err := ctx.Err(); err != nil {
			return err
		}
		l.between(g.q, g.from, g.to)
	}
	for _, q := range l.d.sorted() {
		if q.end >= 0 {
			l.front(q)
			l.behind(q, q.end)
		}
	}
	for _, old := range l.old.sorted() {
		if err := ctx.Err(); err != nil {
			return err
		}
		if t := l.d.topics[old.topic]; t != nil && t.queues[old.id] != nil && t.queues[old.id].end >= 0 {
			continue
		}
		if err := l.wholeQueue(old); err != nil {
			return err
		}
	}
	return l.place()
}

// lost reports whether an old unit is that of a lost message.
func (l *losses) lost(phy, end int64) bool {
	i := l.log.rangeAt(phy)
	return i >= 0 && end > phy
}

// contradictions looks for records that the old queues had in another queue than
// they say: some field of their heads, which no checksum covers, was damaged.
// They get their places back. It reports whether there were any; then queues
// and index must be made again.
func (r *repairer) contradictions(d *derivation) (found bool, err error) {
	check := func(q *queueState, slot, phy int64, size int32) error {
		v, ok := r.recordInCopy(phy)
		if !ok || v.Size != size || len(v.TopicBytes()) != len(q.topic) || !v.SysFlag.Queued() || IsPlaceholder(&v) || v.HasLightQueues() ||
			string(v.TopicBytes()) == q.topic && v.QueueID == q.id {
			return nil
		}
		off := int64(v.QueueOffset)
		if b, _, ok := v.InnerBatch(); ok {
			off = int64(b)
		}
		says := queueName{q.kind, v.Topic(), v.QueueID}
		if other := r.old.get(says); other != nil && d.confirmed(&queueState{queueName: says, old: other}, &placed{phy: phy, off: off}) {
			return nil // that queue had it, too: it is this one that is wrong
		}
		found = true
		return r.correctTo(phy, q.queueName, slot, fmt.Sprintf("the record said %s/%d offset %d", says.topic, says.id, off))
	}
	// An old queue is a witness only where it agrees with the new one around.
	agrees := func(q *queueState, slot int64) bool {
		return d.holds(q, slot, int64(r.old.at(q.old, slot).Physical))
	}
	for _, g := range d.gaps {
		if g.q.kind == consumequeue.Batch {
			i := r.old.batchOf(g.q.old, g.from)
			u, before := r.old.batchAt(g.q.old, i), r.old.batchAt(g.q.old, i-1)
			if u.Valid() && int64(u.Base) == g.from && int64(u.Next()) <= g.to && before.Valid() && d.holds(g.q, int64(before.Base), int64(before.Physical)) {
				err = check(g.q, int64(u.Base), int64(u.Physical), u.Size)
			}
		} else if !agrees(g.q, g.from-1) || !agrees(g.q, g.to) {
			continue
		}
		for slot := g.from; slot < min(g.to, g.from+maxDetails) && err == nil; slot++ {
			if u := r.old.at(g.q.old, slot); u.Valid() && r.log.rangeAt(int64(u.Physical)) < 0 {
				err = check(g.q, slot, int64(u.Physical), u.Size)
			}
		}
		if err != nil {
			return found, err
		}
	}
	for _, q := range d.sorted() {
		if u := r.old.at(q.old, q.end); q.end > 0 && u.Valid() && agrees(q, q.end-1) && r.log.rangeAt(int64(u.Physical)) < 0 {
			if err := check(q, q.end, int64(u.Physical), u.Size); err != nil {
				return found, err
			}
		}
	}
	return found, nil
}

// interpreted reports whether brokers act on the messages of a topic rather
// than deliver them: an empty one there would do harm.
func interpreted(topic string) bool {
	return topic == message.ScheduleTopic || topic == message.HalfTopic || topic == message.OpHalfTopic || strings.HasPrefix(topic, message.SystemPrefix)
}

// between takes the missing offsets [from, to) between two messages of a queue.
func (l *losses) between(q *queueState, from, to int64) {
	lo, hi := l.bounds(q, from, to)
	unknown := from
	for slot := from; slot < to; slot++ {
		u := l.old.at(q.old, slot)
		if !u.Valid() || !l.lost(int64(u.Physical), int64(u.End())) || int64(u.Physical) < lo || int64(u.End()) > hi {
			continue
		}
		l.unknown(q, unknown, slot, lo, int64(u.Physical))
		unknown, lo = slot+1, int64(u.End())
		l.known(q, slot, u, false, "gap")
	}
	l.unknown(q, unknown, to, lo, hi)
}

// known takes a lost message that has a unit. always: it needs a record, in any
// mode. otherwise is what its offset becomes without.
func (l *losses) known(q *queueState, slot int64, u consumequeue.Unit, always bool, otherwise string) {
	p := lostPlace{q: q, phy: int64(u.Physical), slot: slot, size: u.Size, count: 1}
	if (l.o.Lost == LostPlaceholder || always) && !interpreted(q.topic) {
		l.places = append(l.places, p)
		return
	}
	if p.half = q.topic == message.HalfTopic; p.half {
		l.places = append(l.places, p) // its commit record points there
	}
	l.tell(p, otherwise)
}

// became is what a queue offset without record becomes: a gap between others, or
// nothing.
func became(q *queueState, slot int64) string {
	if q.end > slot && q.first >= 0 && q.first < slot {
		return "gap"
	}
	return "nothing"
}

// unknown takes missing offsets [from, to) of which nothing is known but that
// their messages lay between two positions.
func (l *losses) unknown(q *queueState, from, to, lo, hi int64) {
	if from >= to {
		return
	}
	if l.o.Lost == LostPlaceholder && !interpreted(q.topic) && l.loose(q, from, to, lo, hi) {
		return
	}
	l.note(Event{Type: "lost", CommitLogOffset: -1, Became: became(q, from),
		EventMessage: &EventMessage{Topic: q.topic, QueueID: q.id, QueueOffset: from, Count: to - from}})
}

// bounds returns between which positions the messages [from, to) lay.
func (l *losses) bounds(q *queueState, from, to int64) (lo, hi int64) {
	if u := l.d.read(q, from-1); u.Valid() {
		lo = int64(u.End())
	}
	hi = l.log.end
	if u := l.d.read(q, to); u.Valid() {
		hi = int64(u.Physical)
	}
	return lo, hi
}

// loose finds room for placeholders whose positions are not known, in damaged
// ranges between lo and hi that no other lost message needs. It takes all or
// none.
func (l *losses) loose(q *queueState, from, to, lo, hi int64) bool {
	const most = 1000 // records in one place; more are a gap
	size := int64(len(placeholder(lostSlot{topic: q.topic, queueID: q.id, offset: to, count: 1}, 1<<20, 0)))
	if size == 0 || to-from > most {
		return false
	}
	i, _ := slices.BinarySearchFunc(l.log.ranges, lo, func(r damagedRange, lo int64) int { return cmp.Compare(r.to, lo+1) })
	var found []lostPlace
	for slot := from; i < len(l.log.ranges) && l.log.ranges[i].from < hi; i++ {
		r := &l.log.ranges[i]
		at := max(r.from, r.loose, lo)
		for ; slot < to && min(r.to, hi)-at >= size+minFiller; slot++ {
			found = append(found, lostPlace{q: q, phy: at, slot: slot, size: int32(size), count: 1, loose: true})
			at += size
		}
		r.loose = at
		if slot == to {
			l.places = append(l.places, found...)
			return true
		}
	}
	return false
}

// front takes the messages that were lost in front of a queue's first one.
func (l *losses) front(q *queueState) {
	if q.first <= 0 || q.kind != consumequeue.Simple {
		return
	}
	first := q.first
	for ; first > 0; first-- {
		if u := l.old.at(q.old, first-1); !u.Valid() || !l.lost(int64(u.Physical), int64(u.End())) {
			break
		}
	}
	if first > 0 && l.d.logMin == 0 && len(l.log.ranges) > 0 {
		l.note(Event{Type: "lost", CommitLogOffset: -1, Became: "nothing",
			EventMessage: &EventMessage{Topic: q.topic, QueueID: q.id, Count: first}})
	}
	for slot := first; slot < q.first; slot++ {
		l.known(q, slot, l.old.at(q.old, slot), false, "nothing")
	}
}

// behind takes the messages that were lost behind a queue's last one. The last
// of them gets a placeholder in any case: the queue must not give their offsets
// again.
func (l *losses) behind(q *queueState, from int64) {
	if q.kind == consumequeue.Batch {
		return // see placeBatches
	}
	to := from
	for ; ; to++ {
		if u := l.old.at(q.old, to); !u.Valid() || !l.lost(int64(u.Physical), int64(u.End())) {
			break
		}
	}
	otherwise := "gap"
	if interpreted(q.topic) {
		otherwise = "nothing" // the offsets will be given again
	}
	for slot := from; slot < to; slot++ {
		l.known(q, slot, l.old.at(q.old, slot), slot == to-1, otherwise)
	}
	ahead := to
	for ; ; ahead++ {
		if u := l.old.at(q.old, ahead); !u.Valid() || int64(u.Physical) < l.log.end {
			break
		}
	}
	if ahead > to {
		l.tellBehind(q.queueName, to, ahead)
	}
}

func (l *losses) tellBehind(q queueName, from, to int64) {
	l.note(Event{Type: "behind", CommitLogOffset: l.log.end,
		EventMessage: &EventMessage{Topic: q.topic, QueueID: q.id, QueueOffset: from, Count: to - from}})
}

// placeBatches gives the lost units of batch queues their records, before
// queues are made: the offsets of such a queue must not have gaps.
func (r *repairer) placeBatches(ctx context.Context) error {
	l := &losses{repairer: r, details: maxDetails}
	told := map[int64]bool{}
	for _, p := range r.batches {
		told[p.phy] = true
	}
	first := r.batches == nil
	r.batches = []lostPlace{}
	for _, old := range r.old.sorted() {
		if old.kind != consumequeue.Batch {
			continue
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		q := &queueState{queueName: old.queueName, old: old, first: -1, end: -1}
		ahead, next := int64(-1), int64(0)
		for i, to := old.slots(); i < to; i++ {
			u := r.old.batchAt(old, i)
			if !u.Valid() {
				break
			}
			if int64(u.Physical) >= r.log.end {
				if ahead < 0 {
					ahead = int64(u.Base)
				}
				next = int64(u.Next())
			} else if l.lost(int64(u.Physical), int64(u.End())) {
				l.places = append(l.places, lostPlace{q: q, phy: int64(u.Physical), slot: int64(u.Base), size: u.Size, count: u.Count, done: told[int64(u.Physical)]})
			}
		}
		if ahead >= 0 && first {
			l.tellBehind(old.queueName, ahead, next)
		}
	}
	err := l.place()
	for _, p := range l.places {
		p.done = true
		r.batches = append(r.batches, p)
	}
	return err
}

// wholeQueue takes a queue of which the log has no record any more: they have
// expired, or all are lost.
func (l *losses) wholeQueue(old *oldQueue) error {
	q, err := l.d.state([]byte(old.topic), old.id, old.kind == consumequeue.Simple)
	if err != nil || q == nil || q.kind != old.kind {
		return err
	}
	if old.kind == consumequeue.Batch {
		return l.wholeBatch(q)
	}
	start, stop := old.slots()
	slot := start
	for ; slot < stop && l.old.at(old, slot).IsFill(); slot++ { // before its first message
	}
	expired := slot
	for ; expired < stop; expired++ {
		if u := l.old.at(old, expired); !u.Valid() || int64(u.End()) > l.d.logMin {
			break
		}
	}
	if expired > slot {
		// The file with the last of them stays, as a broker keeps it.
		perFile := l.d.tables[0].FileSize() / consumequeue.UnitSize
		from := max(slot, (expired-1)/perFile*perFile)
		if err := l.d.carryRange(q, from, expired); err != nil {
			return err
		}
		q.first, q.end = from, expired
	}
	l.behind(q, expired)
	return nil
}

// wholeBatch is wholeQueue for a batch queue: its last unit is kept.
func (l *losses) wholeBatch(q *queueState) error {
	var last consumequeue.BatchUnit
	from, to := q.old.slots()
	for i := from; i < to; i++ {
		u := l.old.batchAt(q.old, i)
		if !u.Valid() || int64(u.End()) > l.d.logMin {
			break
		}
		last = u
	}
	if !last.Valid() {
		return nil
	}
	_, err := q.queue.EnsureBatch(last)
	q.first, q.end = int64(last.Base), int64(last.Next())
	return err
}

// tell reports a lost message.
func (l *losses) tell(p lostPlace, became string) {
	e := Event{Type: "lost", CommitLogOffset: p.phy, Became: became,
		EventMessage: &EventMessage{Topic: p.q.topic, QueueID: p.q.id, QueueOffset: p.slot, StoreSize: p.size}}
	if p.count > 1 {
		e.Count = int64(p.count)
	}
	if p.loose {
		e.CommitLogOffset, e.StoreSize = -1, 0
	}
	if f := l.log.fileOf(p.phy); f != nil && !p.loose && l.details > 0 {
		l.details--
		e.File, e.Offset, e.Quarantine = f.name, p.phy-f.start, f.kept
		if f.path != "" {
			if v, ok := readRecord(l.fs, f.path, f.start, p.phy, l.log.fileSize); ok {
				e.Keys, e.MsgID = recordKeys(&v), v.OffsetID()
			}
		}
	}
	l.note(e)
}

// place writes the records of lost messages into the damaged ranges, with
// fillers between, and puts their units.
func (l *losses) place() error {
	slices.SortStableFunc(l.places, func(a, b lostPlace) int { return cmp.Compare(a.phy, b.phy) })
	for rest := l.places; len(rest) > 0; {
		i := l.log.rangeAt(rest[0].phy)
		r := l.log.ranges[i]
		n := 0
		for n < len(rest) && rest[n].phy < r.to {
			n++
		}
		if err := l.placeIn(r, rest[:n]); err != nil {
			return err
		}
		rest = rest[n:]
	}
	return nil
}

func (l *losses) placeIn(r damagedRange, places []lostPlace) (err error) {
	f := l.log.fileOf(r.from)
	out, err := l.log.openCopy(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	fileEnd := r.to == f.start+l.log.fileSize
	if err := clearRange(out, f.start, r.from, r.to); err != nil {
		return err
	}
	limit := r.to
	if fileEnd {
		limit -= message.BlankSize
	}
	pos := r.from
	for i, p := range places {
		next := limit
		if i+1 < len(places) {
			next = places[i+1].phy
		}
		if lead := p.phy - pos; lead < 0 || lead > 0 && lead < minFiller || p.phy >= next {
			l.unplaced(p)
			continue
		}
		room := min(int64(p.size), next-p.phy)
		if left := next - p.phy - room; left > 0 && left < minFiller && (!fileEnd || next < limit) {
			room = next - p.phy
		}
		n, err := l.placeOne(out, f, p, room, r.time)
		if err != nil {
			return err
		}
		if n == 0 {
			l.unplaced(p)
			continue
		}
		if l.d != nil && p.phy > l.d.last.phy {
			l.d.last.phy, l.d.last.time = p.phy, r.time
		}
		if p.phy > pos {
			if err := writeFillers(out, f.start, pos, p.phy, r.time, FillerTopic); err != nil {
				return err
			}
		}
		pos = p.phy + n
	}
	switch {
	case fileEnd:
		err = writeBlank(out, l.log.fileSize, r.to-pos)
	case pos < r.to:
		err = writeFillers(out, f.start, pos, r.to, r.time, FillerTopic)
	}
	if err != nil {
		return err
	}
	return out.Sync()
}

// placeOne writes one record, of at most room bytes, and returns its size: 0 if
// it has no place.
func (l *losses) placeOne(out vfs.File, f *logFile, p lostPlace, room, time int64) (int64, error) {
	if p.half {
		if room < minFiller+int64(len(message.HalfTopic)) || room > maxFiller {
			return 0, nil
		}
		return room, writeFillers(out, f.start, p.phy, p.phy+room, time, message.HalfTopic)
	}
	rec := placeholder(lostSlot{p.q.topic, p.q.id, p.slot, p.count, p.phy, p.size}, room, time)
	if rec == nil {
		return 0, nil
	}
	if p.q.kind == consumequeue.Batch {
		if !p.done {
			l.sum.Placeholders++
			l.tell(p, "placeholder")
		}
		_, err := out.WriteAt(rec, p.phy-f.start)
		return int64(len(rec)), err
	}
	switch err := l.d.unit(p.q, p.slot, p.phy, time, 0, int32(len(rec)), p.count); {
	case misplaced(err):
		return 0, nil
	case err != nil:
		return 0, err
	}
	p.q.end = max(p.q.end, p.slot+int64(p.count))
	l.d.lastQueued = max(l.d.lastQueued, p.phy)
	l.sum.Placeholders++
	l.tell(p, "placeholder")
	_, err := out.WriteAt(rec, p.phy-f.start)
	return int64(len(rec)), err
}

// unplaced reports a lost message for which there was no room.
func (l *losses) unplaced(p lostPlace) {
	if !p.half && !p.done { // those were told already
		l.tell(p, became(p.q, p.slot))
	}
}
