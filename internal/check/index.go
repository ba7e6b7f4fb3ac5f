package check

import (
	"cmp"
	"errors"
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
	base int64 // where entry 0 lies
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
	indexSlotSize     = 4
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
	if n := len(x.files); n > 0 {
		x.files[n-1].sink.moving = c.live
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

// walkIndex reads the index files, in parallel: rules 30 to 33 and 36.
func (c *checker) walkIndex() error {
	x := c.index
	err := c.parallel(len(x.files), func(_, i int) error {
		if f := x.files[i]; f.ok {
			w := &indexWalker{c: c, f: f, s: f.sink}
			w.walk()
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
