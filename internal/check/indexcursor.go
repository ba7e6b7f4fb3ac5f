package check

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math"
	"slices"

	"github.com/gantrymq/gantry/message"
)

// indexCursor walks the index beside a log file: entries and records are both
// in the order of positions, so that comparing them needs no searching: rules
// 34 to 37.
type indexCursor struct {
	c      *checker
	s      *sink
	wait   []*indexFile  // not reached yet
	active []*fileCursor // in order of files
}

// fileCursor is the next entry of one index file.
type fileCursor struct {
	f    *indexFile
	in   *input  // nil behind the last entry
	next int64   // number of the entry
	phy  int64   // its position
	raw  []byte  // the entry, and those behind it that have been read
	bad  []int64 // numbers to skip, behind next
}

// cursorBlock is how many entries a cursor reads at a time.
const cursorBlock = 2048

// cursor begins at a position of the log.
func (x *indexSet) cursor(c *checker, s *sink, from int64) *indexCursor {
	ic := &indexCursor{c: c, s: s}
	for _, f := range x.byPhy {
		if f.maxPhy >= from {
			ic.wait = append(ic.wait, f)
		}
	}
	for len(ic.wait) > 0 && ic.wait[0].minPhy <= from {
		ic.activate(from)
	}
	return ic
}

func (ic *indexCursor) activate(from int64) {
	f := ic.wait[0]
	ic.wait = ic.wait[1:]
	fc := &fileCursor{f: f}
	if fc.open(ic.c, ic.s, from) {
		ic.active = append(ic.active, fc)
	}
}

func (ic *indexCursor) close() {
	for _, fc := range ic.active {
		fc.close()
	}
	ic.active, ic.wait = nil, nil
}

// open places the cursor at the first entry at or behind a position. It
// returns false when there is none.
func (fc *fileCursor) open(c *checker, s *sink, from int64) bool {
	f := fc.f
	if fc.in = c.open(s, f.path); fc.in == nil {
		return false
	}
	i, _ := slices.BinarySearchFunc(f.samples, from, func(p indexSample, from int64) int { return cmp.Compare(p.phy, from) })
	// Entries before sample i-1 are below from, and entries of one record may
	// begin anywhere behind it.
	fc.next = 1
	if i > 0 {
		fc.next = f.samples[i-1].entry
	}
	j, _ := slices.BinarySearch(f.bad, fc.next)
	fc.bad = f.bad[j:]
	fc.next--
	for fc.advance() {
		if fc.phy >= from {
			return true
		}
	}
	return false
}

func (fc *fileCursor) close() {
	fc.in.close()
	fc.in = nil
}

// advance moves to the next entry that is in order; at the end it closes the
// cursor.
func (fc *fileCursor) advance() bool {
	for {
		fc.next++
		fc.raw = fc.raw[min(indexEntrySize, len(fc.raw)):]
		if fc.next > fc.f.last {
			fc.close()
			return false
		}
		if len(fc.bad) > 0 && fc.bad[0] == fc.next {
			fc.bad = fc.bad[1:]
			continue
		}
		if len(fc.raw) < indexEntrySize {
			pos := fc.pos()
			n := min(cursorBlock*indexEntrySize, (fc.f.last+1-fc.next)*indexEntrySize, fc.in.size-pos)
			if n < indexEntrySize {
				fc.close()
				return false
			}
			fc.raw = fc.in.window(pos, n, 0)
		}
		fc.phy = int64(binary.BigEndian.Uint64(fc.raw[posIndexPhy:]))
		return true
	}
}

func (fc *fileCursor) hash() int32 { return int32(binary.BigEndian.Uint32(fc.raw)) }
func (fc *fileCursor) seconds() int32 {
	return int32(binary.BigEndian.Uint32(fc.raw[posIndexSeconds:]))
}

// pos is where the entry lies in the file.
func (fc *fileCursor) pos() int64 { return fc.f.base + fc.next*indexEntrySize }

// indexSeconds is the time field of an entry for a record stored at t, in a
// file that begins at begin; both in ms.
func indexSeconds(t, begin int64) int32 {
	if begin <= 0 {
		return 0
	}
	return int32(min(max((t-begin)/1000, 0), math.MaxInt32))
}

// record compares the entries of the valid record in w.view with its keys.
func (ic *indexCursor) record(w *logWorker, pos int64) {
	phy := int64(w.view.PhysicalOffset)
	for len(ic.wait) > 0 && ic.wait[0].minPhy <= phy {
		ic.activate(ic.wait[0].minPhy)
	}
	if len(ic.active) == 0 {
		return
	}
	covered, computed, closed := false, false, false
	for _, fc := range ic.active {
		if f := fc.f; f.minPhy < phy && phy < f.maxPhy {
			covered = true
		}
		for fc.in != nil && fc.phy < phy {
			ic.orphan(w.r, fc)
			closed = !fc.advance() || closed
		}
		if fc.in == nil || fc.phy > phy {
			continue
		}
		if !computed {
			w.keyHashes()
			computed = true
		}
		seconds := indexSeconds(w.view.StoreTimestamp, fc.f.hdr.BeginTime)
		ic.allKeys(w, fc, seconds)
		for fc.in != nil && fc.phy == phy {
			ic.entry(w, fc, seconds)
			closed = !fc.advance() || closed
		}
	}
	if closed {
		ic.active = slices.DeleteFunc(ic.active, func(fc *fileCursor) bool { return fc.in == nil })
	}
	if !covered {
		return
	}
	if !computed {
		w.keyHashes()
	}
	if missing := w.keysMissing(); missing > 0 {
		if w.r.notIndexed == 0 {
			w.r.notIndexedAt = pos
		}
		w.r.notIndexed++
		if ic.c.o.Level == Deep {
			ic.s.add(ruleIndexMissing, w.r.file, pos, "%d of %d keys of the record do not lead to it", missing, w.keyCount)
		}
	}
}

// allKeys takes entries as long as they are the record's keys one after the
// other, which they almost always are.
func (ic *indexCursor) allKeys(w *logWorker, fc *fileCursor, seconds int32) {
	if w.expectAt > 0 || len(fc.bad) > 0 || fc.next == 1 {
		return
	}
	be := binary.BigEndian
	n, raw := 0, fc.raw
	for n < len(w.hashes) && len(raw) >= 2*indexEntrySize && int32(be.Uint32(raw)) == w.hashes[n] &&
		int64(be.Uint64(raw[posIndexPhy:])) == fc.phy && int32(be.Uint32(raw[posIndexSeconds:])) == seconds {
		w.found[n] = true
		n++
		raw = raw[indexEntrySize:]
	}
	if next := fc.next + int64(n); n > 0 && next <= fc.f.last {
		w.expectAt = n
		fc.next, fc.raw, fc.phy = next, raw, int64(be.Uint64(raw[posIndexPhy:]))
	}
}

// keyHashes computes the hashes under which the index should have the view, in
// the order in which they are written: the unique key, the keys and, in some
// releases only, the tags. The first w.keyCount are there in all releases.
func (w *logWorker) keyHashes() {
	v, p := &w.view, &w.props
	w.hashes = w.hashes[:0]
	w.keyCount = 0
	if v.SysFlag.Indexed() && (p.uniqKey != nil || p.keys != nil || p.tags != nil) {
		var prefix, tagsPrefix int32
		if t := w.topic; t != nil {
			prefix, tagsPrefix = t.keyHash, t.tagsHash
		} else {
			prefix = message.HashAppend(message.JavaHash(text(v.TopicBytes())), "#")
			tagsPrefix = message.HashAppend(prefix, "T#")
		}
		if p.uniqKey != nil {
			w.hashes = append(w.hashes, keyHash(prefix, p.uniqKey))
		}
		for keys := p.keys; len(keys) > 0; {
			key := keys
			if i := bytes.IndexByte(keys, ' '); i >= 0 {
				key, keys = keys[:i], keys[i+1:]
			} else {
				keys = nil
			}
			if len(key) > 0 {
				w.hashes = append(w.hashes, keyHash(prefix, key))
			}
		}
		w.keyCount = len(w.hashes)
		if p.tags != nil {
			w.hashes = append(w.hashes, keyHash(tagsPrefix, p.tags))
		}
	}
	w.found = slices.Grow(w.found[:0], len(w.hashes))[:len(w.hashes)]
	clear(w.found)
	w.expectAt = 0
	w.byHash = nil
}

// keyHash is message.IndexKeyHash of a topic and key whose first part is
// already hashed.
func keyHash(prefix int32, key []byte) int32 {
	h := message.HashAppend(prefix, text(key))
	if h < 0 {
		h = -h
	}
	return max(h, 0) // -2^31 is its own negative, and counts as 0
}

// keysMissing counts the keys, without the tags, that no entry was found for.
func (w *logWorker) keysMissing() int {
	n := 0
	for _, found := range w.found[:w.keyCount] {
		if !found {
			n++
		}
	}
	return n
}

// matchKey reports whether the hash is that of one of the view's keys. Entries
// usually come in the order of the keys.
func (w *logWorker) matchKey(hash int32) bool {
	if w.expectAt < len(w.hashes) && w.hashes[w.expectAt] == hash {
		w.found[w.expectAt] = true
		w.expectAt++
		return true
	}
	if len(w.hashes) <= 16 {
		return w.scanKeys(hash)
	}
	if w.byHash == nil {
		w.byHash = make(map[int32]int32, len(w.hashes))
		for i, h := range w.hashes {
			w.byHash[h] = int32(i)
		}
	}
	i, ok := w.byHash[hash]
	if !ok {
		return false
	}
	w.found[i] = true
	w.expectAt = int(i) + 1
	return true
}

func (w *logWorker) scanKeys(hash int32) bool {
	any := false
	for i, h := range w.hashes {
		if h != hash {
			continue
		}
		any = true
		if !w.found[i] {
			w.found[i] = true
			w.expectAt = i + 1
			return true
		}
	}
	return any
}

// entry compares one entry with the record in w.view: rules 34 to 36.
func (ic *indexCursor) entry(w *logWorker, fc *fileCursor, want int32) {
	f, t, hash, seconds := fc.f, w.view.StoreTimestamp, fc.hash(), fc.seconds()
	if !w.matchKey(hash) {
		what := "fits none of its keys"
		if !w.view.SysFlag.Indexed() {
			what = "belongs to a rolled back message, which has no keys"
		}
		ic.s.add(ruleIndexKey, f.file, fc.pos(), "entry %d for the record at %d: hash %d %s", fc.next, fc.phy, hash, what)
	}
	if fc.next == 1 {
		if f.hdr.BeginTime != t {
			ic.s.add(ruleIndexTimes, f.file, posIndexBeginTime, "begin time %d, the first record has %d", f.hdr.BeginTime, t)
		}
		// The first entry of a file that follows a full one counts from that
		// one's end, in files written by Java.
		if prev := ic.before(f); seconds != 0 && prev != nil && seconds != indexSeconds(t, prev.hdr.EndTime) {
			ic.s.add(ruleIndexSeconds, f.file, fc.pos()+posIndexSeconds, "entry 1: %d seconds, neither 0 nor the %d since the end of the file before", seconds, indexSeconds(t, prev.hdr.EndTime))
		}
	} else if seconds != want {
		ic.s.add(ruleIndexSeconds, f.file, fc.pos()+posIndexSeconds, "entry %d for the record at %d: %d seconds instead of %d", fc.next, fc.phy, seconds, want)
	}
	if fc.next == f.last && f.hdr.EndTime != t {
		ic.s.add(ruleIndexTimes, f.file, posIndexEndTime, "end time %d, the last record has %d", f.hdr.EndTime, t)
	}
}

// before returns the file whose entries precede those of f.
func (ic *indexCursor) before(f *indexFile) *indexFile {
	list := ic.c.index.byPhy
	for i := 1; i < len(list); i++ {
		if list[i] == f {
			return list[i-1]
		}
	}
	return nil
}

// orphan reports an entry whose position is that of no record.
func (ic *indexCursor) orphan(r *logFile, fc *fileCursor) {
	phy := fc.phy
	if r.inDamaged(phy) {
		return // the index is right, the log is not
	}
	ic.s.add(ruleIndexKey, fc.f.file, fc.pos(), "entry %d: no record begins at %d", fc.next, phy)
}

// finish takes the entries up to the end of the file's data.
func (ic *indexCursor) finish(r *logFile, end int64) {
	for len(ic.wait) > 0 && ic.wait[0].minPhy < end {
		ic.activate(ic.wait[0].minPhy)
	}
	for _, fc := range ic.active {
		for fc.in != nil && fc.phy < end {
			ic.orphan(r, fc)
			fc.advance()
		}
	}
	ic.close()
}

// inDamaged reports whether a position lies in a damaged range of the file.
func (r *logFile) inDamaged(phy int64) bool {
	i, _ := slices.BinarySearchFunc(r.damaged, phy, func(d span, phy int64) int {
		switch {
		case d.to <= phy:
			return -1
		case d.from > phy:
			return 1
		}
		return 0
	})
	return i < len(r.damaged) && r.damaged[i].from <= phy && phy < r.damaged[i].to || len(r.damaged) >= maxDamaged
}
