package check

import (
	"errors"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/message"
)

// logSet is the commit log: its files and what walking them found.
type logSet struct {
	dirs     []string
	fileSize int64
	files    []segment
	gaps     []span
	results  []*logFile // one for each file, after walkLog
	min, end int64      // of what is live; end after walkLog
	limit    int64      // what is written behind it is not looked at
	live     int        // files before this one have live records

	damaged []span // ranges whose records are lost, up to maxDamaged of them
}

// maxDamaged bounds the damaged ranges that are remembered.
const maxDamaged = 100_000

// logFile is the outcome of walking one file.
type logFile struct {
	seg  segment
	path string
	file string // for findings
	sink *sink

	records int64 // valid ones
	broken  int64 // damaged ones
	full    bool  // the walk reached the file's end
	end     int64 // position in the file behind the last record or blank
	first   int64 // position in the file of the first valid record
	stop    stop  // why the walk ended, unless full

	firstTime, lastTime int64 // store times
	maxTime             int64 // also of a last record that is not complete

	disorder     int64 // records older than their predecessor
	disorderAt   int64
	damaged      []span // in the log: ranges without valid record
	lost         []span // those of them whose queue and offset are not known
	notIndexed   int64  // records that some key does not lead to
	notIndexedAt int64
	keyed        int64 // records with keys while there is no index at all
	shortProps   int64 // records with properties that no reader sees
	shortPropsAt int64
	ops          map[int32]opItem
}

// opItem is the highest half message offset that an op message of one queue
// names.
type opItem struct {
	offset int64
	phy    int64
}

// stop describes the place where a walk ended before the end of its file.
type stop struct {
	err       error  // what is wrong there; nil: eight zero bytes
	rule      *rule  // that err belongs to
	complete  bool   // the record's fields add up: only its content is damaged
	data      span   // bytes in the file that are not zero, from the stop on
	stale     span   // range in the file of old records
	nStale    int64  // of them
	exhausted bool   // the search behind was ended because of its cost
	blank     int64  // position in the file of a blank record behind, -1
	sizeThere uint32 // total size that stands there
	time      int64  // store time that stands there
}

// commitLogDirs returns the folders of the commit log, writable ones first.
func (c *checker) commitLogDirs() []string {
	names := c.o.CommitLogDirs
	if len(names) == 0 {
		names = []string{"commitlog"}
	}
	var dirs []string
	for _, n := range append(slices.Clone(names), c.o.ReadOnlyDirs...) {
		n = strings.TrimSpace(n)
		if n == "" {
			continue
		}
		if !filepath.IsAbs(n) {
			n = filepath.Join(c.dir, n)
		}
		if !slices.Contains(dirs, n) {
			dirs = append(dirs, n)
		}
	}
	return dirs
}

// listLog finds the files of the log and checks names, lengths and gaps:
// rules 1 and 2.
func (c *checker) listLog() error {
	s := c.sink()
	defer s.flush()
	l := &logSet{dirs: c.commitLogDirs()}
	c.log = l
	segs := c.listSegments(s, ruleLogName, l.dirs)
	l.fileSize = c.o.CommitLogFileSize
	if l.fileSize == 0 {
		l.fileSize = inferFileSize(segs, 1)
	}
	if l.fileSize == 0 {
		for _, g := range segs {
			s.addAs(ruleLogLength, Warning, c.show(c.segmentPath(l.dirs, g)), 0, "the file is empty")
		}
		return nil
	}
	l.files, l.gaps = c.checkSegments(s, ruleLogName, ruleLogLength, l.dirs, segs, l.fileSize)
	l.limit = math.MaxInt64
	if len(l.files) > 0 {
		l.min = l.files[0].start
		l.end = l.min
		if c.live {
			c.limitLog(l)
		}
	}
	return nil
}

// limitLog finds the end of a log that somebody writes to. What follows is not
// looked at: if the end moved on while the log is read, parts of it would seem
// to be missing.
func (c *checker) limitLog(l *logSet) {
	s := &sink{rep: newReporter(nil, 0)} // walking reports what cannot be read
	n := len(l.files)
	for ; n > 0; n-- {
		g := l.files[n-1]
		in := c.open(s, c.segmentPath(l.dirs, g))
		if in == nil {
			continue
		}
		in.size = min(in.size, g.size)
		end := chainEnd(in, g.start)
		in.close()
		if end > 0 || n == 1 {
			l.limit = g.start + end
			break
		}
	}
	l.files = l.files[:max(n, 1)]
}

// chainEnd follows the sizes of records from the start of a file and returns
// where they end.
func chainEnd(in *input, start int64) int64 {
	for pos := int64(0); ; {
		rest := in.size - pos
		if rest < message.BlankSize {
			return pos
		}
		h, err := message.ParseHeader(in.window(pos, min(rest, message.MaxHeaderSize), logAhead))
		switch {
		case err != nil || h.Kind == message.KindEnd || int64(h.Size) > rest:
			return pos
		case h.Kind == message.KindBlank:
			return in.size
		case int64(h.PhysicalOffset) != start+pos:
			return pos
		}
		pos += int64(h.Size)
	}
}

// top is the highest position that a file of the log covers.
func (l *logSet) top() int64 {
	if len(l.files) == 0 {
		return 0
	}
	return l.files[len(l.files)-1].start + l.fileSize
}

// walkLog reads the log, files in parallel, compares each record with its unit
// and its index entries, and then decides where the log ends: rules 3 to 13,
// and 17 to 27 and 31 to 37 as far as they start from the record.
func (c *checker) walkLog() error {
	l := c.log
	workers := make([]*logWorker, c.o.Workers)
	l.results = make([]*logFile, len(l.files))
	first := 0
	if c.o.Level == Quick {
		first = c.quickStart()
	}
	err := c.parallel(len(l.files), func(worker, i int) error {
		w := workers[worker]
		if w == nil {
			w = newLogWorker(c)
			workers[worker] = w
		}
		r := &logFile{seg: l.files[i], path: c.segmentPath(l.dirs, l.files[i]), sink: c.sink()}
		r.file = c.show(r.path)
		l.results[i] = r
		if i < first {
			w.quickFile(r)
			return c.ctx.Err()
		}
		w.walkFile(r)
		w.expect.sums.settle(i)
		return c.ctx.Err()
	})
	for _, w := range workers {
		if w != nil {
			w.finish()
		}
	}
	if err != nil {
		// Not every file was read: nothing can be said about the end.
		for _, r := range l.results {
			if r != nil {
				r.sink.flush()
			}
		}
		return err
	}
	c.findEnd()
	keyed := int64(0)
	for _, r := range l.results {
		keyed += r.keyed
		r.sink.flush()
	}
	c.indexAheadOf()
	if keyed > 0 && c.o.Level > Quick {
		s := c.sink()
		s.put(ruleIndexMissing, Finding{Severity: Info, File: "index", Count: keyed,
			Meaning: "Java brokers find no message by key; Gantry makes the index anew when it opens the store"},
			"there are no index files, but %s keys", have(keyed))
		s.flush()
	}
	return nil
}

// findEnd puts the files' results together: which of them are live, where the
// log ends, and what stands behind.
func (c *checker) findEnd() {
	l := c.log
	// The last file with a live record. A file with older records than its
	// predecessor is a leftover when the log does not lead into it: because the
	// predecessor is not full, or because the file does not begin with them.
	last := -1
	lastTime := int64(math.MinInt64)
	for i, r := range l.results {
		if r.records == 0 && !r.full {
			continue
		}
		if last >= 0 && r.records > 0 && r.firstTime < lastTime && (!l.results[last].full || last < i-1 || r.first > 0) {
			r.stop.stale = span{r.first, r.end}
			r.stop.nStale = r.records
			r.sink = c.sink() // what was found in it concerns nobody
			continue
		}
		last = i
		if r.records > 0 {
			lastTime = r.lastTime
		}
	}
	l.live = last + 1
	if last < 0 && len(l.results) > 0 {
		last = 0 // nothing valid at all: the end is the start
	}
	prevTime := int64(math.MinInt64)
	for i, r := range l.results {
		switch {
		case i > last:
			c.behindEnd(r)
			continue
		case i == last:
			l.end = r.seg.start + r.end
			if r.full {
				l.end = r.seg.start + l.fileSize
			}
			if !r.full {
				c.lastFile(r)
			}
		case !r.full:
			rest := span{r.seg.start + r.end, r.seg.start + l.fileSize}
			if r.stop.blank > r.end {
				rest.to = r.seg.start + r.stop.blank
			}
			ru, why := ruleLogRecord, "zeros"
			if r.stop.err != nil {
				ru, why = r.stop.rule, r.stop.err.Error()
			}
			r.broken++
			r.damaged = append(r.damaged, rest)
			r.lost = append(r.lost, rest)
			r.sink.add(ru, r.file, r.end, "the records of this file end here (%s), but the log goes on in the next one; %d bytes are lost", why, rest.len())
		}
		if r.records > 0 {
			if r.firstTime < prevTime {
				r.disorder++
				if r.disorder == 1 {
					r.disorderAt = 0
				}
			}
			prevTime = r.lastTime
		}
		c.logFileFindings(r)
		if n := maxDamaged - len(l.damaged); n > 0 {
			l.damaged = append(l.damaged, r.lost[:min(n, len(r.lost))]...)
		}
	}
}

// logFileFindings reports what was only counted during the walk.
func (c *checker) logFileFindings(r *logFile) {
	if r.disorder > 0 {
		r.sink.put(ruleLogTime, Finding{Severity: Warning, File: r.file, Offset: r.disorderAt, Count: r.disorder},
			"%s an earlier store time than the record before, the first one here", have(r.disorder))
	}
	if r.shortProps > 0 {
		r.sink.put(ruleLogProperties, Finding{Severity: Info, File: r.file, Offset: r.shortPropsAt, Count: r.shortProps,
			Meaning: "readers do not see these properties; the bytes are as the sender sent them"},
			"%s pairs without value, without name or twice, the first one here", have(r.shortProps))
	}
	if r.notIndexed > 0 && c.o.Level < Deep {
		r.sink.put(ruleIndexMissing, Finding{Severity: Info, File: r.file, Offset: r.notIndexedAt, Count: r.notIndexed},
			"%s keys that no index file has, the first one here", have(r.notIndexed))
	}
}

func have(n int64) string {
	if n == 1 {
		return "1 record has"
	}
	return plural(n, "record") + " have"
}

// lastFile reports how the log ends in its last file.
func (c *checker) lastFile(r *logFile) {
	st := &r.stop
	if st.nStale > 0 {
		r.sink.put(ruleLogStale, Finding{Severity: Info, File: r.file, Offset: st.stale.from, Count: st.nStale},
			"behind the end of the log at %d stand %s up to %d, older than the log's last record", r.end, plural(st.nStale, "valid record"), st.stale.to)
	}
	soft := Error
	if c.abort {
		soft = Warning
	}
	switch {
	case st.err == nil && st.data.len() == 0:
		return
	case st.err == nil || st.nStale > 0 && st.stale.from == st.data.from:
		if st.data.len() > 0 && st.nStale == 0 {
			sev := Warning
			if c.abort {
				sev = Info
			}
			r.sink.addAs(ruleLogTail, sev, r.file, st.data.from, "behind the end of the log at %d stand bytes that are not zero and no record, up to %d", r.end, st.data.to)
		}
	case c.live:
		r.sink.put(ruleLogTorn, Finding{Severity: Info, File: r.file, Offset: r.end, Count: 1, Repair: repairNone,
			Meaning: "the store is in use: the record is being written"}, "the last record is not complete: %v", st.err)
	case st.complete:
		r.broken++
		r.sink.addAs(st.rule, soft, r.file, r.end, "the last record is damaged: %v; the log ends before it", st.err)
	default:
		r.broken++
		r.sink.addAs(ruleLogTorn, soft, r.file, r.end, "the last record is not complete: %v; the log ends before it", st.err)
	}
	if st.exhausted {
		r.sink.addAs(ruleLogTail, Info, r.file, r.end, "the bytes behind pretend to be records too often: not searched to the end")
	}
}

// behindEnd reports what is not zero in a file that lies behind the log's end.
func (c *checker) behindEnd(r *logFile) {
	switch {
	case r.stop.rule == ruleLogPosition:
		r.sink.add(ruleLogPosition, r.file, r.end, "%v: this is not the file of that name", r.stop.err)
	case r.stop.nStale > 0:
		r.sink.put(ruleLogStale, Finding{Severity: Info, File: r.file, Offset: r.stop.stale.from, Count: r.stop.nStale},
			"a file behind the end of the log with %s, older than the log's last one", plural(r.stop.nStale, "record"))
	case r.stop.data.len() > 0:
		sev := Warning
		if c.abort {
			sev = Info
		}
		r.sink.addAs(ruleLogTail, sev, r.file, r.stop.data.from, "a file behind the end of the log with bytes that are not zero")
	}
}

func (l *logSet) summarize(s *Summary) {
	s.LogMin, s.LogEnd = message.PhysicalOffset(l.min), message.PhysicalOffset(l.end)
	for i, r := range l.results {
		if r == nil || i >= l.live && l.live > 0 {
			continue
		}
		s.Messages += r.records
		s.Damaged += r.broken
		if r.records > 0 {
			if s.FirstStoreTime == 0 {
				s.FirstStoreTime = r.firstTime
			}
			s.LastStoreTime = r.lastTime
		}
	}
}

// fieldRule maps what message says about a record to a rule.
func fieldRule(err error) *rule {
	var fe *message.FormatError
	if !errors.As(err, &fe) {
		return ruleLogRecord
	}
	switch fe.Field {
	case "size", "bodyLength", "topicLength", "propertiesLength":
		return ruleLogSize
	case "physicalOffset":
		return ruleLogPosition
	case "bornHost port", "storeHost port":
		return ruleLogSysFlag
	case "bodyCRC":
		return ruleLogBodyCRC
	case "property CRC":
		return ruleLogPropCRC
	case "topic":
		return ruleLogTopic
	case "magic":
		return ruleLogRecord
	}
	return ruleLogProperties
}

// isDamaged reports whether a position lies in a damaged range.
func (l *logSet) isDamaged(phy int64) bool {
	i, found := slices.BinarySearchFunc(l.damaged, phy, func(d span, phy int64) int {
		switch {
		case d.to <= phy:
			return -1
		case d.from > phy:
			return 1
		}
		return 0
	})
	return found && i < len(l.damaged)
}
