package check

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/gantrymq/gantry/internal/indexfile"
)

// indexWalker reads one index file.
type indexWalker struct {
	c  *checker
	f  *indexFile
	s  *sink
	r  *indexfile.Reader
	in *input

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
	f.base = r.EntryPos(0)
	if w.in = w.c.open(s, f.path); w.in == nil {
		return
	}
	defer w.in.close()
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
	chains := chainSums{rand.Uint64(), rand.Uint64(), 0, true}
	w.entries(&chains)
	used := w.slots(&chains)
	if !chains.sound || chains.sum != 0 {
		w.followChains()
	}
	if w.c.ctx.Err() != nil {
		return
	}
	if f.last > 0 {
		w.ends()
	}
	if used != int64(h.SlotCount) {
		s.addAs(ruleIndexCount, Warning, f.file, posIndexSlotCount, "hash slot count %d, but %d slots are in use", h.SlotCount, used)
	}
}

// chainSums proves that the chains of a file are as they should be, in one pass
// without looking anything up. It adds a hash for each entry with its slot and
// subtracts one for each reference to an entry: that of a slot to its newest,
// and that of an entry to the one before it in the same slot. If nothing is left
// then, to one chance in 2^64, each entry is referred to once, from its own
// slot. As entries only refer to smaller numbers, which is looked at besides,
// that makes one chain for each slot, downwards and with all of its entries.
type chainSums struct {
	seed1, seed2 uint64
	sum          uint64
	sound        bool
}

func (c *chainSums) hash(slot, entry uint32) uint64 {
	x := uint64(slot)<<32 | uint64(entry)
	return fold(x^c.seed1, x+c.seed2)
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

// entryBlock is how many entries, or slots, are read and looked at together.
const entryBlock = 4096

// block returns n entries from e on; what the file does not have is zero.
func (w *indexWalker) block(e, n int64) []byte {
	return w.bytes(w.r.EntryPos(int32(e)), n*indexEntrySize)
}

func (w *indexWalker) bytes(pos, n int64) []byte {
	raw := w.in.window(pos, max(min(n, w.in.size-pos), 0), 0)
	if int64(len(raw)) < n {
		raw = append(slices.Clone(raw), make([]byte, n-int64(len(raw)))...)
	}
	return raw
}

// entries reads all entries, adds them up, and looks at the order of their
// positions.
func (w *indexWalker) entries(c *chainSums) {
	f := w.f
	f.ordered = true
	w.good, w.before = math.MinInt64, math.MinInt64
	if w.orderly(c) {
		return
	}
	for e := int64(1); e <= f.last && w.c.ctx.Err() == nil; e += entryBlock {
		n := min(entryBlock, f.last+1-e)
		raw := w.block(e, n)
		if w.inOrder(raw, e, n, c) {
			continue
		}
		c.sound = false
		for i := range n {
			en := raw[i*indexEntrySize:]
			switch hash := int32(binary.BigEndian.Uint32(en)); {
			case hash < 0:
				w.s.add(ruleIndexOrder, f.file, w.r.EntryPos(int32(e+i)), "entry %d: negative hash %d", e+i, hash)
				w.bad(e + i)
			case f.ordered:
				w.order(e+i, int64(binary.BigEndian.Uint64(en[posIndexPhy:])))
			}
		}
	}
	slices.Sort(f.bad)
}

// partEntries is how many entries are worth a goroutine.
const partEntries = 16 * entryBlock

// orderly is entries for a large file in which all is well, by several
// goroutines: the newest files are few, and the log has to wait for them. It
// reports false, and has noted nothing, when something is not well.
func (w *indexWalker) orderly(c *chainSums) bool {
	f := w.f
	n := min(int64(w.c.o.Workers), f.last/partEntries)
	if n < 2 {
		return false
	}
	type part struct {
		w    indexWalker
		f    indexFile
		sums chainSums
		ok   bool
	}
	parts := make([]part, n)
	blocks := (f.last + entryBlock - 1) / entryBlock
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			p := &parts[i]
			p.f = indexFile{geo: f.geo, ordered: true}
			p.sums = chainSums{seed1: c.seed1, seed2: c.seed2}
			s := w.c.sink() // what is found now is found again
			p.w = indexWalker{c: w.c, f: &p.f, s: s, r: w.r, in: w.c.open(s, f.path), good: math.MinInt64, before: math.MinInt64}
			if p.w.in == nil {
				return
			}
			defer p.w.in.close()
			end := min(1+blocks*(i+1)/n*entryBlock, f.last+1)
			for e := 1 + blocks*i/n*entryBlock; e < end; e += entryBlock {
				size := min(entryBlock, end-e)
				if w.c.ctx.Err() != nil || !p.w.inOrder(p.w.block(e, size), e, size, &p.sums) {
					return
				}
			}
			p.ok = len(s.list) == 0
		})
	}
	wg.Wait()
	last := int64(math.MinInt64)
	for i := range parts {
		p := &parts[i]
		if !p.ok || p.f.samples[0].phy < last {
			return false
		}
		last = p.f.maxPhy
	}
	for i := range parts {
		c.sum += parts[i].sums.sum
		f.samples = append(f.samples, parts[i].f.samples...)
	}
	end := &parts[n-1].w
	w.good, w.before, w.goodEntry, f.maxPhy = end.good, end.before, end.goodEntry, last
	return true
}

// inOrder adds up n entries from number e on and reports whether no hash is
// negative and every position in order, which it then notes.
func (w *indexWalker) inOrder(raw []byte, e, n int64, c *chainSums) bool {
	f := w.f
	be := binary.BigEndian
	slots, last, sum, wrong := uint32(f.geo.Slots), max(w.good, 0), c.sum, !f.ordered
	number := uint32(e)
	for en := raw[:n*indexEntrySize]; len(en) >= indexEntrySize; en = en[indexEntrySize:] {
		hash, prev, phy := be.Uint32(en), be.Uint32(en[posIndexPrev:]), int64(be.Uint64(en[posIndexPhy:]))
		if hash > math.MaxInt32 || phy < last || prev >= number {
			wrong = true
		}
		last = phy
		slot := hash % slots
		sum += c.hash(slot, number)
		if prev != 0 {
			sum -= c.hash(slot, prev)
		}
		number++
	}
	if wrong {
		return false
	}
	c.sum = sum
	phyOf := func(i int64) int64 { return int64(be.Uint64(raw[i*indexEntrySize+posIndexPhy:])) }
	due := e
	if k := len(f.samples); k > 0 {
		due = max(due, f.samples[k-1].entry+sampleEvery)
	}
	for ; due < e+n; due += sampleEvery {
		f.samples = append(f.samples, indexSample{due, phyOf(due - e)})
	}
	w.before = w.good
	if n > 1 {
		w.before = phyOf(n - 2)
	}
	w.good, w.goodEntry, f.maxPhy = last, e+n-1, last
	return true
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

// slots adds up the slots and returns how many are in use.
func (w *indexWalker) slots(c *chainSums) (used int64) {
	for from := int64(0); from < int64(w.f.geo.Slots) && w.c.ctx.Err() == nil; from += entryBlock {
		n := min(entryBlock, int64(w.f.geo.Slots)-from)
		raw := w.bytes(w.r.SlotPos(int32(from)), n*indexSlotSize)
		for i := range n {
			v := binary.BigEndian.Uint32(raw[i*indexSlotSize:])
			if v == 0 {
				continue
			}
			if int64(v) > w.f.last {
				c.sound = false
				continue
			}
			used++
			c.sum -= c.hash(uint32(from+i), v)
		}
	}
	return used
}

// slotsAtOnce bounds the memory for following chains: 20 MB, which is enough
// for the default geometry in one go.
const slotsAtOnce = 5_000_000

// followChains finds out what is wrong with the chains: rules 31 and 32. Each
// entry's previous one must be the newest of its slot so far, and each slot
// must hold the newest of all.
func (w *indexWalker) followChains() {
	w.c.following.Lock() // one file at a time takes the memory
	defer w.c.following.Unlock()
	f := w.f
	be := binary.BigEndian
	slots := int64(f.geo.Slots)
	newest := make([]int32, min(slots, slotsAtOnce))
	for from := int64(0); from < slots; from += slotsAtOnce {
		newest = newest[:min(slotsAtOnce, slots-from)]
		clear(newest)
		for e := int64(1); e <= f.last; e += entryBlock {
			if w.c.ctx.Err() != nil {
				return
			}
			n := min(entryBlock, f.last+1-e)
			raw := w.block(e, n)
			for i := range n {
				en := raw[i*indexEntrySize:]
				hash, prev := int32(be.Uint32(en)), int32(be.Uint32(en[posIndexPrev:]))
				slot := int64(hash)%slots - from
				if hash < 0 || slot < 0 || slot >= int64(len(newest)) {
					continue
				}
				if newest[slot] != prev {
					w.brokenChain(e+i, from+slot, prev, newest[slot])
				}
				newest[slot] = int32(e + i)
			}
		}
		for at := int64(0); at < int64(len(newest)); at += entryBlock {
			n := min(entryBlock, int64(len(newest))-at)
			raw := w.bytes(w.r.SlotPos(int32(from+at)), n*indexSlotSize)
			for i := range n {
				if v := int32(be.Uint32(raw[i*indexSlotSize:])); v != newest[at+i] {
					w.wrongSlot(from+at+i, v, newest[at+i])
				}
			}
		}
	}
}

func (w *indexWalker) brokenChain(e, slot int64, prev, want int32) {
	what := "skips entries, which are then on no chain"
	if prev > want {
		what = "does not lead downwards within its slot"
	}
	w.s.add(ruleIndexChain, w.f.file, w.r.EntryPos(int32(e))+posIndexPrev, "entry %d of slot %d: the previous one is %d instead of %d: the chain %s", e, slot, prev, want, what)
}

func (w *indexWalker) wrongSlot(slot int64, v, want int32) {
	f, s := w.f, w.s
	pos := w.r.SlotPos(int32(slot))
	switch {
	case v == 0:
		s.add(ruleIndexSlot, f.file, pos, "slot %d is empty instead of holding its newest entry %d", slot, want)
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
}
