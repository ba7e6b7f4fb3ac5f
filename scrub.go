package gantry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"sync"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Scrub is what scrubbing has come to: the pass that is running or, between
// passes, the last one. Times are in ms, 0 for never.
type Scrub struct {
	Running     bool   `json:"-"`
	Passes      int64  `json:"passes"`    // completed since the store was opened
	Started     int64  `json:"started"`   // of this pass
	Completed   int64  `json:"completed"` // the last pass that came to its end, whenever that was
	Bytes       int64  `json:"bytes"`     // read in this pass
	Records     int64  `json:"records"`   // verified in this pass
	Findings    int64  `json:"findings"`  // in this pass
	LastFinding string `json:"lastFinding,omitempty"`
}

// scrubFileName holds a Scrub for those who look at the store from outside.
// Nothing depends on it.
const scrubFileName = "scrub.json"

// scrubbing is the state of scrubbing.
type scrubbing struct {
	pass sync.Mutex // one pass at a time

	mu    sync.Mutex
	state Scrub
}

func (c *scrubbing) now() Scrub {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state
}

func (c *scrubbing) change(f func(*Scrub)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	f(&c.state)
}

// runScrub makes passes until ctx ends.
func (s *Store) runScrub(ctx context.Context) {
	for {
		if _, err := s.Scrub(ctx); err != nil && ctx.Err() == nil {
			s.opts.Logger.Error("scrub did not come to its end", "err", err)
		}
		if !sleep(ctx, s.opts.ScrubInterval) {
			return
		}
	}
}

// Scrub reads what does not change any more and verifies it: the records of
// all log files but the newest, the units that queues have for them, and the
// index files but the newest, against the records and in themselves. Each thing
// that is wrong is reported through Events.Damage, the logger and Stats, and
// changes nothing: a reader would get an error for it. It reads at most
// Options.ScrubRate bytes a second (0: as fast as it goes) and holds no lock
// that others wait for. One pass runs at a time. The error says why the pass
// ended early; findings are not errors.
//
// With ScrubRate set the store makes such passes by itself.
func (s *Store) Scrub(ctx context.Context) (Scrub, error) {
	if s.closed.Load() {
		return Scrub{}, ErrClosed
	}
	s.scrubbing.pass.Lock()
	defer s.scrubbing.pass.Unlock()
	s.scrubbing.change(func(c *Scrub) {
		*c = Scrub{Running: true, Started: s.opts.Now(), Passes: c.Passes, Completed: c.Completed}
	})
	p := scrubPass{s: s, ctx: ctx, queues: make(map[queueKey]*scrubQueue), began: time.Now()}
	err := p.run()
	p.pause(0)
	s.scrubbing.change(func(c *Scrub) {
		c.Running = false
		if err == nil {
			c.Passes++
			c.Completed = s.opts.Now()
		}
	})
	state := s.scrubbing.now()
	if err == nil {
		s.opts.Logger.Info("scrubbed", "bytes", state.Bytes, "records", state.Records, "findings", state.Findings)
		err = s.saveScrub(state)
	}
	return state, err
}

// saveScrub leaves the outcome where it can be seen from outside.
func (s *Store) saveScrub(state Scrub) error {
	if s.opts.ReadOnly || s.failure() != nil {
		return nil
	}
	data, err := json.Marshal(state)
	if err != nil {
		return err
	}
	if err := vfs.WriteFileAtomic(s.fs, filepath.Join(s.dir, scrubFileName), append(data, '\n')); err != nil {
		return fmt.Errorf("note the outcome of the scrub: %w", err)
	}
	return nil
}

// loadScrub reads the outcome of the last pass of whoever had the store before.
// A file that cannot be read counts as none.
func (s *Store) loadScrub() {
	data, err := vfs.ReadFile(s.fs, filepath.Join(s.dir, scrubFileName), 1<<16)
	var state Scrub
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return
	case err == nil:
		err = json.Unmarshal(data, &state)
	}
	if err != nil {
		s.opts.Logger.Warn("outcome of the last scrub", "err", err)
		return
	}
	state.Passes = 0
	s.scrubbing.change(func(c *Scrub) { *c = state })
}

// scrubPass is one pass.
type scrubPass struct {
	s      *Store
	ctx    context.Context // of the call that the pass serves
	began  time.Time
	read   int64 // bytes
	unpaid int64 // of them, not yet made up for by a pause
	told   int64 // findings that are noted in the file
	index  scrubIndex
	queues map[queueKey]*scrubQueue
	hashes []int32
}

const (
	// scrubStep is how much is read between two looks at the clock.
	scrubStep = 64 << 10
	// maxScrubReports bounds what one pass reports one by one; it goes on
	// counting.
	maxScrubReports = 1000
	// maxScrubQueues bounds the queues whose units are kept at hand.
	maxScrubQueues = 1024
)

// pause notes that n bytes were read and keeps to the rate. It reports whether
// the pass may go on.
func (p *scrubPass) pause(n int64) bool {
	p.read += n
	if p.unpaid += n; p.unpaid < scrubStep && n > 0 {
		return true
	}
	p.unpaid = 0
	read := p.read
	p.s.scrubbing.change(func(c *Scrub) { c.Bytes = read })
	if rate := p.s.opts.ScrubRate; rate > 0 && n > 0 {
		due := time.Duration(float64(read) / float64(rate) * float64(time.Second))
		if ahead := due - time.Since(p.began); ahead > 0 {
			return sleep(p.ctx, ahead)
		}
	}
	return p.err() == nil
}

// err says why the pass may not go on, or nil.
func (p *scrubPass) err() error {
	if p.s.closed.Load() {
		return ErrClosed
	}
	return p.ctx.Err()
}

// finding reports something that is wrong.
func (p *scrubPass) finding(err error) {
	if p.err() != nil {
		return // what is closed meanwhile cannot be read
	}
	var n int64
	p.s.scrubbing.change(func(c *Scrub) {
		c.Findings++
		c.LastFinding = err.Error()
		n = c.Findings
	})
	if n > maxScrubReports {
		return
	}
	p.s.opts.Logger.Error("scrub found damage", "err", err)
	if p.s.opts.Events.Damage != nil {
		p.s.opts.Events.Damage(err)
	}
}

func (p *scrubPass) run() error {
	p.index.open(p)
	defer p.index.close()
	// One file after the other, as they are when their turn comes: retention
	// removes some meanwhile, others become full.
	at := p.s.log.Min()
	for {
		end, ok := p.closedFile(&at)
		if !ok {
			break
		}
		if err := p.scanLog(at, end); err != nil {
			return err
		}
		at = end
		p.tell()
	}
	return p.scanIndexes()
}

// tell leaves what was found so far where it can be seen from outside: the end
// of the pass may be hours away.
func (p *scrubPass) tell() {
	state := p.s.scrubbing.now()
	if state.Findings == p.told {
		return
	}
	p.told = state.Findings
	if err := p.s.saveScrub(state); err != nil {
		p.s.opts.Logger.Warn("scrub", "err", err)
	}
}

// closedFile returns the end of the file that at begins, if the file is
// complete and dispatched. When retention has removed it, at moves forward.
func (p *scrubPass) closedFile(at *message.PhysicalOffset) (end message.PhysicalOffset, ok bool) {
	files := p.s.log.Files()
	for i, f := range files {
		if f.End > *at && i+1 < len(files) {
			*at = max(*at, f.Start)
			return f.End, p.s.dispatchedPosition() >= f.End
		}
	}
	return 0, false
}

// scanLog verifies the records of one file and all that is made of them.
func (p *scrubPass) scanLog(from, to message.PhysicalOffset) error {
	check := p.s.readCheck()
	check.PropertyCRC = true
	unindexed, firstUnindexed := 0, message.PhysicalOffset(0)
	for from < to {
		end, err := p.s.log.Scan(p.ctx, from, to, commitlog.ScanOptions{Check: check}, func(v *message.View) error {
			if !p.pause(int64(v.Size)) {
				return p.err()
			}
			p.s.scrubbing.change(func(c *Scrub) { c.Records++ })
			p.unit(v)
			if p.index.misses(p, v) {
				if unindexed == 0 {
					firstUnindexed = v.PhysicalOffset
				}
				unindexed++
			}
			return nil
		})
		switch {
		case p.err() != nil:
			return p.err()
		case err == nil:
			from = to
		case end < p.s.log.Min():
			return nil // removed meanwhile
		default:
			p.finding(fmt.Errorf("scrub: %w", err))
			from = p.s.nextRecord(end, to)
		}
	}
	if unindexed > 0 {
		p.finding(fmt.Errorf("scrub: %d records are not found by one of their keys, the first at %d: %w", unindexed, firstUnindexed,
			base.Corruptf(indexDir, 0, "entries are missing")))
	}
	return nil
}

// scrubQueue reads units of one queue some ahead.
type scrubQueue struct{ r placeReader }

// unit verifies that the record's queue has the unit that it should have.
func (p *scrubPass) unit(v *message.View) {
	if !v.SysFlag.Queued() {
		return
	}
	key := queueKey{string(v.TopicBytes()), v.QueueID}
	q := p.queues[key]
	if q == nil {
		cq := p.s.queues.Get(key.topic, key.id)
		if cq == nil || message.IsLight(key.topic) {
			return // its topic was removed; or positions need not be its own
		}
		if len(p.queues) >= maxScrubQueues {
			clear(p.queues)
		}
		q = &scrubQueue{r: placeReader{queue: cq, next: -1}}
		p.queues[key] = q
	}
	off := v.QueueOffset
	if off < q.r.queue.Min() || off >= q.r.queue.Max() {
		// Below: the queue begins later. Above: a queue that was removed and
		// made again has fewer messages.
		return
	}
	if off != q.r.next {
		q.r = placeReader{queue: q.r.queue, next: off}
	}
	u, ok, err := q.r.read()
	if errors.Is(err, ErrNotFound) {
		return // expired meanwhile
	}
	p.pause(consumequeue.UnitSize)
	switch {
	case err != nil:
		p.finding(fmt.Errorf("scrub: consume queue %s/%d at offset %d: %w", key.topic, key.id, off, err))
	case !ok || !u.Valid() || u.Physical != v.PhysicalOffset || u.Size != v.Size:
		if ok && u.Valid() && p.otherRecord(u, v) {
			return
		}
		p.finding(fmt.Errorf("scrub: consume queue %s/%d: %w", key.topic, key.id, base.Corruptf(queueDir, int64(off)*consumequeue.UnitSize,
			"the unit of queue offset %d is %+v, the record at %d has %d bytes", off, u.Unit, v.PhysicalOffset, v.Size)))
	}
}

// otherRecord reports whether the unit rightly belongs to another record of the
// same place: the offsets of a queue that was removed began again.
func (p *scrubPass) otherRecord(u place, v *message.View) bool {
	h, err := p.s.log.ReadHeader(u.Physical)
	return err == nil && u.Physical != v.PhysicalOffset && h.QueueOffset == v.QueueOffset && h.QueueID == v.QueueID && h.Size == u.Size
}
