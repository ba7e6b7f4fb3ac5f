package check

import (
	"cmp"
	"errors"
	"math"
	"path/filepath"
	"slices"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/indexfile"
)

// indexSet is the key index.
type indexSet struct {
	files []*indexFile // by name
	byPhy []*indexFile // those with entries in order, by first position
	n     int64        // entries
}

// indexFile is one index file and what walking it found.
type indexFile struct {
	path string
	file string // for findings
	name string
	size int64
	hdr  indexfile.Header
	geo  indexfile.Geometry
	ok   bool  // the geometry is known
	last int64 // number of the last entry, 0 when there is none
	sink *sink

	// Of a file whose entries are in the order of positions, apart from a few:
	ordered        bool
	minPhy, maxPhy int64
	samples        []indexSample // every sampleEvery-th entry
	bad            []int64       // numbers of entries that are out of order
}

// indexSample lets a cursor begin near a position.
type indexSample struct {
	entry int64
	phy   int64
}

const (
	sampleEvery = 4096
	// maxBad is how many entries out of order a file may have before it is
	// only reported and no longer compared with the log.
	maxBad = 1000
	// slotsAtOnce bounds the memory for following chains: 20 MB, which is
	// enough for the default geometry in one go.
	slotsAtOnce = 5_000_000
)

// Where the fields of an index file are, for findings; package indexfile has
// the layout.
const (
	posIndexBeginTime = 0
	posIndexEndTime   = 8
	posIndexBeginPhy  = 16
	posIndexEndPhy    = 24
	posIndexSlotCount = 32
	posIndexCount     = 36
	indexEntrySize    = 20
	posIndexPhy       = 4 // in an entry
	posIndexSeconds   = 12
	posIndexPrev      = 16
)

// listIndex finds the index files and their geometry: rules 29 and 30 as far
// as names, lengths and headers go.
func (c *checker) listIndex() error {
	x := &indexSet{}
	c.index = x
	s := c.sink()
	defer s.flush()
	dir := filepath.Join(c.dir, "index")
	for _, e := range c.list(s, dir) {
		path := filepath.Join(dir, e.Name)
		switch {
		case !e.IsRegular():
			s.add(ruleLeftover, c.show(path), 0, "not a file of its own; it is not looked at")
		case isIndexName(e.Name):
			x.files = append(x.files, &indexFile{path: path, file: c.show(path), name: e.Name, size: e.Size, sink: c.sink()})
		case numeric(e.Name):
			s.add(ruleIndexFile, c.show(path), 0, "the name is not a date and time of 17 digits")
		default:
			s.add(ruleLeftover, c.show(path), 0, "a foreign file; it is not looked at")
		}
	}
	c.indexGeometries(x)
	c.checkEmpty(s)
	return c.ctx.Err()
}

// isIndexName reports whether name is a file name of the index: 17 digits that
// form a date and time with milliseconds.
func isIndexName(name string) bool {
	const digits = 17
	if len(name) != digits || !numeric(name) {
		return false
	}
	_, err := time.Parse("20060102150405", name[:digits-3])
	return err == nil
}

// openIndex opens an index file; see indexfile.OpenReader for known.
func (c *checker) openIndex(f *indexFile, s *sink, known ...indexfile.Geometry) (*indexfile.Reader, error) {
	return indexfile.OpenReader(tolerant{c.fs, c, s}, f.path, known...)
}

// indexGeometries finds the number of slots and entries of each file, which
// the files do not say.
func (c *checker) indexGeometries(x *indexSet) {
	var known []indexfile.Geometry
	if c.o.IndexSlots > 0 && c.o.IndexEntries > 0 {
		known = append(known, indexfile.Geometry{Slots: c.o.IndexSlots, Entries: c.o.IndexEntries})
	}
	configured := len(known) > 0
	votes := map[indexfile.Geometry]int{}
	// A file that gives its geometry away tells it to those that do not.
	for round := range 2 {
		for _, f := range x.files {
			if f.ok || c.ctx.Err() != nil {
				continue
			}
			r, err := c.openIndex(f, f.sink, known...)
			if err != nil {
				if round > 0 {
					f.sink.add(ruleIndexFile, f.file, 0, "length %d: %v", f.size, cause(err))
				}
				continue
			}
			if round == 0 && r.Wrong() != "" && !configured {
				r.Close()
				continue
			}
			f.ok, f.hdr, f.geo, f.size = true, r.Header(), r.Geometry(), r.Size()
			r.Close()
			if f.hdr.HasEntries() {
				votes[f.geo]++
			}
			if !slices.Contains(known, f.geo) {
				known = append(known, f.geo)
			}
		}
	}
	var most indexfile.Geometry
	for g, n := range votes {
		if n > votes[most] || n == votes[most] && g.Size() > most.Size() {
			most = g
		}
	}
	if configured {
		most = known[0]
	}
	for _, f := range x.files {
		switch {
		case !f.ok:
		case f.size != f.geo.Size():
			f.sink.add(ruleIndexFile, f.file, 0, "length %d instead of %d for %d slots and %d entries", f.size, f.geo.Size(), f.geo.Slots, f.geo.Entries)
			f.ok = f.size > f.geo.Size() // what is behind is ignored by all readers
		case most.Slots > 0 && f.geo != most && f.hdr.HasEntries():
			f.sink.add(ruleIndexFile, f.file, 0, "%d slots and %d entries; the other files have %d and %d", f.geo.Slots, f.geo.Entries, most.Slots, most.Entries)
		}
	}
}

// cause returns the reason in a corruption error, which names the file too.
func cause(err error) string {
	var ce *base.CorruptError
	if errors.As(err, &ce) {
		return ce.Reason
	}
	return err.Error()
}

// indexWorkers bounds the files whose chains are followed at the same time, as
// each takes memory for its slots.
const indexWorkers = 2

// walkIndex reads the index files, in parallel: rules 30 to 33 and 36.
func (c *checker) walkIndex() error {
	x := c.index
	newest := make([][]int32, indexWorkers)
	err := c.parallelN(indexWorkers, len(x.files), func(worker, i int) error {
		if f := x.files[i]; f.ok {
			w := &indexWalker{c: c, f: f, s: f.sink, newest: newest[worker]}
			w.walk()
			newest[worker] = w.newest
		}
		return c.ctx.Err()
	})
	if err != nil {
		return err
	}
	for _, f := range x.files {
		x.n += f.last
		if f.ordered && f.last > 0 {
			x.byPhy = append(x.byPhy, f)
		}
	}
	slices.SortStableFunc(x.byPhy, func(a, b *indexFile) int { return cmp.Compare(a.minPhy, b.minPhy) })
	for i := 1; i < len(x.byPhy); i++ {
		a, b := x.byPhy[i-1], x.byPhy[i]
		if b.minPhy < a.maxPhy {
			b.sink.add(ruleIndexTimes, b.file, 16, "begins at position %d, before file %s ends at %d", b.minPhy, a.name, a.maxPhy)
		}
		if b.name < a.name {
			b.sink.addAs(ruleIndexTimes, Info, b.file, 0, "continues file %s, but its name is older: the clock was set back", a.name)
		}
	}
	for _, f := range x.files {
		f.sink.flush()
	}
	return nil
}

func (x *indexSet) summarize(s *Summary) {
	s.IndexFiles, s.IndexEntries = int64(len(x.files)), x.n
}

// indexWalker reads one index file.
type indexWalker struct {
	c      *checker
	f      *indexFile
	s      *sink
	r      *indexfile.Reader
	newest []int32 // newest entry of each slot so far

	// The order of positions:
	good, before int64 // position of the last entry in order, and of the one before
	goodEntry    int64
}

func (w *indexWalker) walk() {
	f, s := w.f, w.s
	r, err := w.c.openIndex(f, s, f.geo)
	if err != nil {
		s.add(ruleIndexFile, f.file, 0, "%v", cause(err))
		return
	}
	defer r.Close()
	w.r = r
	h, g := f.hdr, f.geo
	switch {
	case h.Count < 0 || h.Count > g.Entries:
		s.add(ruleIndexCount, f.file, posIndexCount, "index count %d; the file has room for %d", h.Count, g.Entries)
	case h.BeginTime > h.EndTime:
		s.add(ruleIndexTimes, f.file, posIndexBeginTime, "begin time %d behind end time %d", h.BeginTime, h.EndTime)
	}
	f.last = int64(min(max(h.Count-1, 0), g.Entries-1))
	if w.c.o.Level == Quick {
		w.quick()
		return
	}
	w.behind()
	used := int64(0)
	for from := int64(0); from < int64(g.Slots); from += slotsAtOnce {
		to := min(from+slotsAtOnce, int64(g.Slots))
		if int64(cap(w.newest)) < to-from {
			w.newest = make([]int32, to-from)
		}
		w.newest = w.newest[:to-from]
		clear(w.newest)
		w.entries(from, to)
		if w.c.ctx.Err() != nil {
			return
		}
		used += w.slots(from, to)
	}
	if f.last > 0 {
		w.ends()
	}
	if used != int64(h.SlotCount) {
		s.addAs(ruleIndexCount, Warning, f.file, posIndexSlotCount, "hash slot count %d, but %d slots are in use", h.SlotCount, used)
	}
}

// entry reads one entry.
func (w *indexWalker) entry(e int64) (en indexfile.Entry) {
	// Reading cannot fail: see tolerant.
	_ = w.r.Entries(int32(e), int32(e)+1, func(_ int32, x indexfile.Entry) bool {
		en = x
		return false
	})
	return en
}

// behind looks at the entry that would come next: where it is not empty the
// header counts too few.
func (w *indexWalker) behind() {
	f := w.f
	if f.last+1 >= int64(f.geo.Entries) || w.r.EntryPos(int32(f.last+2)) > f.size || f.hdr.Count < 0 || f.hdr.Count > f.geo.Entries {
		return
	}
	if w.entry(f.last+1) == (indexfile.Entry{}) {
		return
	}
	sev := Warning
	if w.c.abort || w.c.live {
		sev = Info
	}
	w.s.addAs(ruleIndexCount, sev, f.file, posIndexCount, "index count %d, but entry %d is not empty", f.hdr.Count, f.last+1)
}

// entries reads all entries and follows the chains of the slots from … to-1:
// each entry's previous one must be the newest of its slot so far, which
// proves that every entry is on one chain, downwards. The first round also
// looks at the order of positions.
func (w *indexWalker) entries(from, to int64) {
	f, s := w.f, w.s
	slots := int64(f.geo.Slots)
	first := from == 0
	if first {
		f.ordered = true
		w.good, w.before = math.MinInt64, math.MinInt64
	}
	// Reading cannot fail: see tolerant.
	_ = w.r.Entries(1, int32(f.last+1), func(n int32, en indexfile.Entry) bool {
		e := int64(n)
		if e%65536 == 0 && w.c.ctx.Err() != nil {
			return false
		}
		if en.Hash < 0 {
			if first {
				s.add(ruleIndexOrder, f.file, w.r.EntryPos(n), "entry %d: negative hash %d", e, en.Hash)
				w.bad(e)
			}
			return true
		}
		if slot := int64(en.Hash) % slots; slot >= from && slot < to {
			if want := w.newest[slot-from]; en.Prev != want {
				what := "skips entries, which are then on no chain"
				if en.Prev > want {
					what = "does not lead downwards within its slot"
				}
				s.add(ruleIndexChain, f.file, w.r.EntryPos(n)+posIndexPrev, "entry %d of slot %d: the previous one is %d instead of %d: the chain %s", e, slot, en.Prev, want, what)
			}
			w.newest[slot-from] = n
		}
		if first && f.ordered {
			w.order(e, int64(en.Phy))
		}
		return true
	})
	slices.Sort(f.bad)
}

// order looks at the position of one entry: rule 33.
func (w *indexWalker) order(e, phy int64) {
	f := w.f
	switch {
	case phy >= w.good && phy >= 0:
		w.before = w.good
	case phy >= 0 && phy >= w.before && w.goodEntry > 0:
		// The one before was out of line.
		w.s.add(ruleIndexOrder, f.file, w.r.EntryPos(int32(w.goodEntry))+posIndexPhy, "entry %d: position %d before %d", w.goodEntry, w.good, phy)
		w.bad(w.goodEntry)
		if n := len(f.samples); n > 0 && f.samples[n-1].entry == w.goodEntry {
			f.samples = f.samples[:n-1]
		}
	default:
		w.s.add(ruleIndexOrder, f.file, w.r.EntryPos(int32(e))+posIndexPhy, "entry %d: position %d behind %d", e, phy, w.good)
		w.bad(e)
		return
	}
	w.good, w.goodEntry = phy, e
	if n := len(f.samples); n == 0 || e-f.samples[n-1].entry >= sampleEvery {
		f.samples = append(f.samples, indexSample{e, phy})
	}
	f.maxPhy = phy
}

func (w *indexWalker) bad(e int64) {
	w.f.bad = append(w.f.bad, e)
	if len(w.f.bad) > maxBad {
		w.f.ordered = false
	}
}

// ends compares the first and the last entry with the header.
func (w *indexWalker) ends() {
	f, s := w.f, w.s
	if len(f.samples) > 0 {
		f.minPhy = f.samples[0].phy
	} else {
		f.ordered = false
	}
	if first := w.entry(1); first.Phy != f.hdr.BeginPhy {
		s.add(ruleIndexOrder, f.file, posIndexBeginPhy, "begins at position %d, the header says %d", first.Phy, f.hdr.BeginPhy)
	}
	if last := w.entry(f.last); last.Phy != f.hdr.EndPhy && f.hdr.Count <= f.geo.Entries {
		s.add(ruleIndexOrder, f.file, posIndexEndPhy, "ends at position %d, the header says %d", last.Phy, f.hdr.EndPhy)
	}
}

// slots compares the slots from … to-1 with the newest entries found, rule 31,
// and returns how many are in use. It takes the entries that a slot holds out
// of w.newest.
func (w *indexWalker) slots(from, to int64) (used int64) {
	f, s := w.f, w.s
	// Reading cannot fail: see tolerant.
	_ = w.r.Slots(func(n, v int32) bool {
		slot := int64(n)
		if slot < from {
			return true
		}
		if slot >= to {
			return false
		}
		want := w.newest[slot-from]
		w.newest[slot-from] = 0
		if v > 0 && int64(v) <= f.last {
			used++
		}
		pos := w.r.SlotPos(n)
		switch {
		case v == want:
		case v < 0 || int64(v) > f.last:
			sev := Error
			if want == 0 && (w.c.abort || w.c.live) {
				sev = Info // the slot was on disk before the header: readers take it for empty
			}
			s.addAs(ruleIndexSlot, sev, f.file, pos, "slot %d holds %d, but there are %d entries", slot, v, f.last)
		case want == 0:
			s.add(ruleIndexSlot, f.file, pos, "slot %d holds entry %d, whose hash belongs to another slot", slot, v)
		default:
			s.add(ruleIndexSlot, f.file, pos, "slot %d holds %d instead of its newest entry %d", slot, v, want)
		}
		return true
	})
	for i, want := range w.newest {
		if want != 0 {
			slot := from + int64(i)
			s.add(ruleIndexSlot, f.file, w.r.SlotPos(int32(slot)), "slot %d is empty instead of holding its newest entry %d", slot, want)
		}
	}
	return used
}

// indexAheadOf reports the entries behind the end of the log: rule 34a.
func (c *checker) indexAheadOf() {
	s := c.sink()
	defer s.flush()
	end := c.log.end
	if len(c.log.files) == 0 {
		return // rule store.empty
	}
	for _, f := range c.index.files {
		if !f.ok || f.last == 0 || int64(f.hdr.EndPhy) < end && f.maxPhy < end {
			continue
		}
		sev := Warning
		if c.live {
			sev = Info
		}
		n := int64(0)
		if f.ordered {
			cur := fileCursor{f: f}
			if cur.open(c, s, end) {
				n = f.last - cur.next + 1
				cur.close()
			}
		}
		s.put(ruleIndexAhead, Finding{Severity: sev, File: f.file, Offset: posIndexEndPhy, Count: max(n, 1)},
			"%d entries at and behind the end of the log at %d, up to %d", n, end, f.hdr.EndPhy)
	}
}
