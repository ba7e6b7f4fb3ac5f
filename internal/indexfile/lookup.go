package indexfile

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"math"
	"slices"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Lookup yields the positions of the messages that have a key with this hash
// and may have a store time in [begin, end] (ms), newest first, each position
// once. Other keys have the same hash, and times are known to a second only:
// the caller compares the record before it counts a hit. A negative hash has
// no hits.
//
// Damage does not make the result incomplete: where a chain is broken, the
// file's entries are searched one by one, and Options.OnDamage is told. An
// error is yielded for each file that cannot be read, and the others follow.
// The sequence sees messages put before it began and perhaps later ones. It
// may be used again and by several goroutines.
func (x *Index) Lookup(hash int32, begin, end int64) iter.Seq2[Candidate, error] {
	return x.LookupBefore(hash, begin, end, math.MaxInt64)
}

// LookupBefore is Lookup for the messages at physical offsets below limit: the
// next page after the one that ended with limit.
//
// Which files are visited: all, except those that lie behind limit and those
// whose header's times exclude the window. Header times are the first and the
// last entry's, not the smallest and largest, so they are used only for files
// whose store times are known not to decrease, which are those this package
// wrote (State.MonotoneFrom). Files of a Java broker, whose clock may have been
// set back, are all visited.
func (x *Index) LookupBefore(hash int32, begin, end int64, limit message.PhysicalOffset) iter.Seq2[Candidate, error] {
	return func(yield func(Candidate, error) bool) {
		if x.closed.Load() {
			yield(Candidate{}, base.ErrClosed)
			return
		}
		if hash < 0 || begin > end {
			return
		}
		q := &query{x: x, hash: hash, begin: begin, end: end, limit: limit, files: x.list()}
		defer q.close()
		last := message.PhysicalOffset(-1)
		for {
			c, ok := q.next(yield)
			if !ok {
				return
			}
			if c.cand != last {
				last = c.cand
				if !yield(Candidate{Phy: last}, nil) {
					return
				}
			}
			if !q.advance(c, yield) {
				return
			}
		}
	}
}

// query merges the chains of all files. Files seldom overlap, but two do when
// a message's keys filled one, and more do when a broker with a confused clock
// continued an old file. A file's chain is opened when the offset where the
// file ends is reached.
type query struct {
	x          *Index
	hash       int32
	begin, end int64
	limit      message.PhysicalOffset
	files      []*file // not yet opened, oldest first
	open       []*cursor
}

// next returns the cursor with the newest candidate. ok is false at the end,
// or when yield asked to stop.
func (q *query) next(yield func(Candidate, error) bool) (best *cursor, ok bool) {
	for _, c := range q.open {
		if best == nil || c.cand > best.cand {
			best = c
		}
	}
	for len(q.files) > 0 {
		f := q.files[len(q.files)-1]
		if best != nil && f.endPhy.Load() < int64(best.cand) {
			break
		}
		q.files = q.files[:len(q.files)-1]
		if q.skip(f) {
			continue
		}
		c, err := q.openFile(f)
		if err != nil && !yield(Candidate{}, err) {
			return nil, false
		}
		if c == nil {
			continue
		}
		q.open = append(q.open, c)
		if !q.advance(c, yield) {
			return nil, false
		}
		if !c.done && (best == nil || c.cand > best.cand) {
			best = c
		}
	}
	return best, best != nil
}

// advance moves c to its next candidate or drops it. It returns false when
// yield asked to stop.
func (q *query) advance(c *cursor, yield func(Candidate, error) bool) bool {
	err := c.advance(q)
	if c.done {
		c.f.unpin()
		q.open = slices.DeleteFunc(q.open, func(o *cursor) bool { return o == c })
	}
	if err != nil {
		return yield(Candidate{}, fmt.Errorf("index file %s: %w", c.f.path, err))
	}
	return true
}

func (q *query) close() {
	for _, c := range q.open {
		c.f.unpin()
	}
	q.open = nil
}

// skip says that f cannot have a hit.
func (q *query) skip(f *file) bool {
	if f.count.Load() <= firstEntry {
		return true
	}
	if f.beginPhy.Load() >= int64(q.limit) {
		return true
	}
	b, e := f.beginTime.Load(), f.endTime.Load()
	return q.x.isMonotone(f) && (after(b, q.end) || before(e, q.begin))
}

// isMonotone says that f's store times do not decrease. It must be called
// after the times were loaded: the writer notes a step back before it
// publishes the entry.
func (x *Index) isMonotone(f *file) bool {
	b := f.beginTime.Load()
	return b > 0 && b <= f.endTime.Load() && f.beginPhy.Load() >= x.monotoneFrom.Load()
}

func (q *query) openFile(f *file) (*cursor, error) {
	h, err := f.pin()
	switch {
	case err == nil:
		return &cursor{f: f, r: h, walked: math.MaxInt32, start: true}, nil
	case q.x.closed.Load():
		return nil, base.ErrClosed
	case errors.Is(err, errGone) || errors.Is(err, fs.ErrNotExist):
		return nil, nil // deleted since the list was taken
	}
	return nil, err
}

// cursor walks one file's chain of the query's slot.
type cursor struct {
	f    *file
	r    vfs.File
	cand message.PhysicalOffset
	done bool

	start    bool  // the slot is not read yet
	count    int32 // entries below are published
	walked   int32 // the last entry that was in order; the rest lies below
	at       int32 // the entry to look at; 0: none
	scanning bool  // at goes down by one; the chain is not used
	ahead    int   // entries seen that are behind the limit or the window

	block     []byte // entries blockFrom …, for dense chains and scans
	blockFrom int32
	one       [entrySize]byte
}

// denseEntries is the length of a block of a chain whose links are short.
const denseEntries = 4096 / entrySize

// advance moves to the next candidate or sets done.
func (c *cursor) advance(q *query) error {
	if c.start {
		if err := c.readSlot(q); err != nil {
			c.done = true
			return err
		}
	}
	beginTime := c.f.beginTime.Load()
	for c.at >= firstEntry {
		e := c.at
		en, err := c.entry(e)
		if err != nil {
			c.done = true
			return err
		}
		if c.scanning {
			c.at--
		} else {
			if reason := c.wrong(q, e, en); reason != "" {
				c.scan(q, reason)
				continue
			}
			c.walked, c.at = e, en.Prev
		}
		if en.Hash != q.hash || en.Phy < 0 {
			continue
		}
		t, timed := entryTime(e, en.Seconds, beginTime)
		if en.Phy >= q.limit || timed && after(t, q.end) {
			if c.ahead++; c.ahead == jumpAfter && !c.scanning {
				if err := c.jump(q, beginTime); err != nil {
					c.done = true
					return err
				}
			}
			continue
		}
		if timed {
			if before(t, q.begin) {
				if q.x.isMonotone(c.f) && !c.scanning {
					break // the rest is older
				}
				continue
			}
		}
		c.cand = en.Phy
		return nil
	}
	c.done = true
	return nil
}

// readSlot begins the walk. A slot of the file being written changes under the
// reader, and the copy that the system makes of its four bytes need not be
// atomic. Values only grow, so that two equal reads were both whole.
func (c *cursor) readSlot(q *query) error {
	c.start = false
	c.count = c.f.count.Load()
	slot := q.hash % c.f.geo.Slots
	v, err := readSlot(c.r, c.f.geo, slot)
	for err == nil && !c.f.sealed.Load() {
		var again int32
		if again, err = readSlot(c.r, c.f.geo, slot); again == v {
			break
		}
		v = again
	}
	if err == nil && (v < 0 || v >= c.count) {
		// Perhaps the newest entry is about to be counted. With the writer
		// out, nothing is.
		q.x.mu.Lock()
		c.count = c.f.count.Load()
		v, err = readSlot(c.r, c.f.geo, slot)
		q.x.mu.Unlock()
	}
	if err != nil {
		return err
	}
	if c.at = v; v < 0 || v >= c.count {
		c.scan(q, fmt.Sprintf("slot %d holds %d of %d entries", slot, v, c.count-1))
	}
	return nil
}

// jumpAfter is the number of entries of a frequent key that are walked in vain
// before the walk looks for a shorter way.
const jumpAfter = 64

// jump moves down the chain of a frequent key to where the limit or the window
// begins. Positions never decrease within a file, times do not if isMonotone
// says so: the place is found by bisection. The next member of the chain below
// it is near, since the key is frequent; else the walk goes on as it was.
func (c *cursor) jump(q *query, beginTime int64) error {
	sorted := q.x.isMonotone(c.f)
	lo, hi := int32(firstEntry), c.at+1 // lo … hi-1 may hold the first entry that is too new
	for lo < hi {
		mid := lo + (hi-lo)/2
		if err := readFull(c.r, c.one[:], c.f.geo.entryPos(mid)); err != nil {
			return err
		}
		en := decodeEntry(c.one[:])
		t, timed := entryTime(mid, en.Seconds, beginTime)
		if en.Phy >= q.limit || sorted && timed && after(t, q.end) {
			hi = mid
		} else {
			lo = mid + 1
		}
	}
	if c.at-lo < blockEntries {
		return nil // not far
	}
	slot := q.hash % c.f.geo.Slots
	below := max(lo-blockEntries, firstEntry)
	next := int32(-1)
	err := eachEntryDown(c.r, c.f.geo, lo-1, func(e int32, en Entry) bool {
		if en.Hash >= 0 && en.Hash%c.f.geo.Slots == slot {
			next = e
		}
		return next < 0 && e > below
	})
	if next < 0 && below == firstEntry {
		next = 0 // all were looked at: the chain has no more
	}
	if err == nil && next >= 0 {
		c.at, c.walked = next, next+1
	}
	return err
}

// wrong says what is wrong with entry e as a member of the chain.
func (c *cursor) wrong(q *query, e int32, en Entry) string {
	slots := c.f.geo.Slots
	switch {
	case en.Hash < 0 || en.Hash%slots != q.hash%slots:
		return fmt.Sprintf("entry %d with hash %d in the chain of slot %d", e, en.Hash, q.hash%slots)
	case en.Prev < 0 || en.Prev >= e:
		return fmt.Sprintf("entry %d follows entry %d in its chain", e, en.Prev)
	}
	return ""
}

// scan goes on behind a link that leads nowhere, with all entries below the
// last good one. In a file that is no longer part of the index nothing is left.
func (c *cursor) scan(q *query, reason string) {
	if c.f.isGone() {
		c.at = 0
		return
	}
	q.x.damaged(c.f, reason)
	c.scanning = true
	c.block = c.block[:0]
	c.at = min(c.count, c.walked) - 1
}

// entry reads one entry, or a block that ends with it when its neighbours are
// wanted as well.
func (c *cursor) entry(e int32) (Entry, error) {
	if e >= c.blockFrom && int(e-c.blockFrom) < len(c.block)/entrySize {
		return decodeEntry(c.block[int(e-c.blockFrom)*entrySize:]), nil
	}
	n := int32(1)
	if c.scanning {
		n = blockEntries
	} else if c.walked < c.count && c.walked-e < denseEntries/2 {
		n = denseEntries
	}
	n = min(n, e) // entry 0 is not used
	if n <= 1 {
		err := readFull(c.r, c.one[:], c.f.geo.entryPos(e))
		return decodeEntry(c.one[:]), err
	}
	if cap(c.block) < int(n)*entrySize {
		c.block = make([]byte, n*entrySize)
	}
	c.block = c.block[:n*entrySize]
	c.blockFrom = e - n + 1
	if err := readFull(c.r, c.block, c.f.geo.entryPos(c.blockFrom)); err != nil {
		c.block = c.block[:0]
		return Entry{}, err
	}
	return decodeEntry(c.block[int(e-c.blockFrom)*entrySize:]), nil
}
