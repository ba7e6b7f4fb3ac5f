package inspect

import (
	"cmp"
	"context"
	"path/filepath"
	"slices"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// maxPointers bounds how many records are read one by one, and so the memory
// for their positions.
const maxPointers = 1 << 20

// plan finds the cheapest way to the messages of a filter: the log, or what
// queues or index lead to and the parts of the log where they do not reach.
func (s *Store) plan(ctx context.Context, o *ScanOptions, to int64) (steps []step, by string, err error) {
	steps, by = s.inWindow(o, []step{{from: o.From, to: to}}), "log"
	f := &o.Filter
	// After a crash the last units and entries may be missing anywhere.
	if o.LogOnly || f.Topic == "" || f.Prepared || message.IsLight(f.Topic) || s.abort && !s.held {
		return steps, by, ctx.Err()
	}
	best := s.cost(steps) / 2 // shortcuts have to be worth it
	if f.Key != "" {
		if p, ok := s.planIndex(ctx, o, to); ok && s.cost(p) < best {
			steps, by, best = p, "index", s.cost(p)
		}
	}
	if p, ok := s.planQueues(ctx, o, to, best); ok && s.cost(p) < best {
		steps, by = p, "queues"
	}
	return steps, by, ctx.Err()
}

// clockSlack is how far the clock of a broker may have been set back inside a
// log file without messages being missed, in ms.
const clockSlack = 60 * 60 * 1000

// inWindow leaves out the files at both ends of the log whose records all lie
// outside of the filter's time window, as far as the store times of the files'
// first records rise.
func (s *Store) inWindow(o *ScanOptions, steps []step) []step {
	f := &o.Filter
	if f.From == 0 && f.To == 0 || len(s.log) == 0 {
		return steps
	}
	times := make([]int64, len(s.log)) // 0: not known
	for i := range s.log {
		times[i] = s.firstTime(i)
	}
	first, last := 0, len(s.log)
	for i := 1; f.From != 0 && i < len(times) && times[i] != 0 && times[i] >= times[i-1] && times[i] < f.From-clockSlack; i++ {
		first = i
	}
	for i := len(times) - 1; f.To != 0 && i > 0; i-- {
		later := i+1 == len(times) || times[i+1] == 0 || times[i+1] >= times[i]
		if !later || times[i] != 0 && times[i] <= f.To+clockSlack {
			break
		}
		if times[i] != 0 {
			last = i
		}
	}
	lo, hi := s.log[first].start, s.log[last-1].end()
	var out []step
	for _, st := range steps {
		st.from = max(st.from, lo)
		if last < len(s.log) {
			st.to = min(st.to, hi)
		}
		if st.from < st.to {
			out = append(out, st)
		}
	}
	return out
}

// firstTime is the store time of the first record of a log file; 0: there is
// none.
func (s *Store) firstTime(i int) int64 {
	f, err := s.fs.Open(s.log[i].path, vfs.ReadOnly)
	if err != nil {
		return 0
	}
	defer f.Close()
	var b [message.MaxHeaderSize]byte
	if readAt(f, b[:], 0) != nil {
		return 0
	}
	h, err := message.ParseHeader(b[:])
	if err != nil || h.Kind != message.KindRecord || int64(h.PhysicalOffset) != s.log[i].start {
		return 0
	}
	return h.StoreTimestamp
}

// writtenTo finds the end of a log that somebody writes to: what is there now.
func (s *Store) writtenTo(ctx context.Context) (int64, error) {
	if len(s.log) == 0 {
		return 0, nil
	}
	i := len(s.log) - 1
	for i > 0 && s.firstTime(i) == 0 {
		i--
	}
	c := newChain(ctx, s, s.log[i].start, func(Damage) {}, func(int64) {})
	defer c.close()
	var r run
	for {
		more, err := c.next(&r, maxPosition)
		if err != nil || !more {
			return c.end, err
		}
	}
}

// planQueues follows the consume queues of the filter's topic.
func (s *Store) planQueues(ctx context.Context, o *ScanOptions, to, best int64) ([]step, bool) {
	queues, err := s.Queues()
	if err != nil || len(queues) == 0 {
		return nil, false
	}
	limit := int(min(best/pointerCost, maxPointers))
	var list []pointer
	found := false
	var tags *message.TagsCode
	if o.Filter.Tag != "" && o.Filter.Topic != message.ScheduleTopic {
		t := message.HashTags(o.Filter.Tag)
		tags = &t
	}
	for i := range queues {
		q := &queues[i]
		if q.Topic != o.Filter.Topic {
			continue
		}
		found = true
		ok := s.eachPointer(ctx, q, tags, func(p pointer) bool {
			if p.phy >= o.From && p.phy < to {
				list = append(list, p)
			}
			return len(list) <= limit
		})
		if !ok || ctx.Err() != nil {
			return nil, false
		}
	}
	if !found {
		return nil, false
	}
	slices.SortFunc(list, func(a, b pointer) int { return cmp.Compare(a.phy, b.phy) })
	if list == nil {
		list = []pointer{}
	}
	// What no queue reaches is read: the dispatcher may be behind, or may have
	// stopped at a record that it cannot read.
	end := o.From
	for i := range queues {
		if last, ok := s.queueEnd(&queues[i]); ok {
			end = max(end, min(last, to))
		}
	}
	steps := []step{{from: o.From, to: end, records: list}}
	if end < to {
		steps = append(steps, step{from: end, to: to})
	}
	return steps, true
}

// planIndex follows the key index, and reads the log between and behind its
// files.
func (s *Store) planIndex(ctx context.Context, o *ScanOptions, to int64) ([]step, bool) {
	hash := message.IndexKeyHash(o.Filter.Topic, o.Filter.Key)
	at := max(o.From, s.Min())
	var steps []step
	for _, path := range s.indexFiles() {
		if ctx.Err() != nil {
			return nil, false
		}
		x, ok := s.lookIndex(path, hash)
		if !ok || x.end < at || x.begin >= to {
			continue
		}
		if x.begin > at {
			steps = append(steps, step{from: at, to: x.begin})
		}
		x.list = slices.DeleteFunc(x.list, func(p int64) bool { return p < at || p >= to })
		records := []pointer{}
		for _, p := range x.list {
			records = append(records, pointer{phy: p, slot: -1})
		}
		steps = append(steps, step{from: at, to: x.end, records: records})
		at = x.end
	}
	if at < to {
		steps = append(steps, step{from: at, to: to})
	}
	return steps, len(steps) > 0
}

// indexFiles lists the files of the index by name, which is by age.
func (s *Store) indexFiles() (paths []string) {
	dir := filepath.Join(s.dir, "index")
	entries, err := s.fs.List(dir)
	if err != nil {
		return nil
	}
	for _, e := range entries {
		if len(e.Name) == 17 && !e.IsDir() {
			paths = append(paths, filepath.Join(dir, e.Name))
		}
	}
	return paths
}
