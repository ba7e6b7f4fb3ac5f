package memfs

import (
	"cmp"
	"maps"
	"math/rand/v2"
	"slices"
)

// Policy says what of the changes that are not durable a crash keeps.
type Policy int

// The policies of CrashClone. Each may be combined with Torn.
const (
	// LoseUnsynced keeps nothing that was not synced.
	LoseUnsynced Policy = iota
	// KeepAll keeps everything (but not pages dropped by a failed sync).
	KeepAll
	// LoseRandomPages keeps or loses each page, length, reservation and name
	// by chance; how many are kept is drawn for each crash.
	LoseRandomPages
	// OldestFirst keeps what was done before some moment, as if the system had
	// just written all of it out.
	OldestFirst
	// NewestFirst keeps what was changed last and loses what was only changed
	// before that: the order of writing turned round.
	NewestFirst

	// Torn lets a page that survives consist of old and new 512-byte sectors.
	Torn Policy = 1 << 8
)

// Policies lists all policies, without and with Torn.
func Policies() []Policy {
	return []Policy{
		LoseUnsynced, KeepAll, LoseRandomPages, OldestFirst, NewestFirst,
		KeepAll | Torn, LoseRandomPages | Torn, OldestFirst | Torn, NewestFirst | Torn,
	}
}

// String names the policy as in the source.
func (p Policy) String() string {
	name := "unknown"
	switch p &^ Torn {
	case LoseUnsynced:
		name = "LoseUnsynced"
	case KeepAll:
		name = "KeepAll"
	case LoseRandomPages:
		name = "LoseRandomPages"
	case OldestFirst:
		name = "OldestFirst"
	case NewestFirst:
		name = "NewestFirst"
	}
	if p&Torn != 0 {
		name += "|Torn"
	}
	return name
}

// CrashClone returns the crashable file system that a power cut at this moment
// leaves: everything in it is durable, nobody has a file open or locked. f and
// its open files stay usable. The choice depends on the policy, on the seed of
// NewCrashable, on what was done so far, and on the seeds given here. Pages are
// shared until one side writes, so a clone costs time and memory for its files
// and directories and a pointer for each page.
//
// It panics when f was not made by NewCrashable or CrashClone.
func (f *FS) CrashClone(policy Policy, seeds ...int64) *FS {
	if !f.crashable {
		panic("memfs: CrashClone of a file system that is not crashable")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	mix := uint64(f.seed)
	for _, s := range append(seeds, int64(policy)) {
		mix = mix*0x9e3779b97f4a7c15 + uint64(s) + 1
	}
	c := &crash{
		policy: policy &^ Torn,
		rng:    rand.New(rand.NewPCG(mix, f.seq)),
		names:  map[nameKey]int{},
		files:  map[*node]*node{},
	}
	c.prepare(f.root, policy&Torn != 0)

	clone := newFS(true, int64(c.rng.Uint64()))
	clone.capacity, clone.usage = f.capacity, f.usage
	clone.requireAllocated, clone.now = f.requireAllocated, f.now
	clone.root = c.copyDir(f.root)
	clone.root.links = 1
	for _, n := range c.files {
		clone.used += n.allocated() * pageSize
	}
	return clone
}

// DropCache forgets what a system may evict from its cache: pages that were
// dropped by a failed sync read as they are on the disk from now on.
func (f *FS) DropCache() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.eachNode(func(n *node) {
		for idx, d := range n.dirty {
			if !d.lost {
				continue
			}
			if d.old == nil {
				delete(n.pages, idx)
			} else {
				n.pages[idx] = d.old
			}
			delete(n.dirty, idx)
		}
		n.trim()
	})
}

// eachNode visits everything that has a name now.
func (f *FS) eachNode(fn func(n *node)) {
	var walk func(n *node)
	walk = func(n *node) {
		fn(n)
		for _, e := range n.entries {
			walk(e)
		}
	}
	walk(f.root)
}

// nameKey is one name in one directory.
type nameKey struct {
	dir  *node
	name string
}

// crash is the state of one CrashClone.
type crash struct {
	policy Policy
	rng    *rand.Rand
	keep   float64 // LoseRandomPages: chance of an item to survive
	cut    uint64  // OldestFirst, NewestFirst: where the order is cut
	torn   float64 // chance of a surviving page to be torn

	names map[nameKey]int // chosen state of each name with a history
	files map[*node]*node // copies of files, to find those with two names
}

// prepare draws the parameters of the crash and chooses the states of names.
func (c *crash) prepare(root *node, torn bool) {
	// Everything that any state of any name leads to, in an order that does
	// not depend on maps: the random numbers must be used in the same order
	// each time.
	var nodes []*node
	seen := map[*node]bool{}
	var walk func(n *node)
	walk = func(n *node) {
		if n == nil || seen[n] {
			return
		}
		seen[n] = true
		nodes = append(nodes, n)
		for _, name := range n.allNames() {
			walk(n.entries[name])
			for _, s := range n.history[name] {
				walk(s.node)
			}
		}
	}
	walk(root)

	c.keep = []float64{0.1, 0.5, 0.9}[c.rng.IntN(3)]
	if torn {
		c.torn = []float64{0.1, 0.5, 1}[c.rng.IntN(3)]
	}
	c.drawCut(nodes)

	for _, n := range nodes {
		for _, name := range slices.Sorted(maps.Keys(n.history)) {
			states := n.history[name]
			seqs := make([]uint64, 0, 4)
			for _, s := range states[1:] {
				seqs = append(seqs, s.seq)
			}
			c.names[nameKey{n, name}] = c.pick(seqs...)
		}
	}
	c.joinRenames(nodes)
}

// drawCut draws the moment for OldestFirst and NewestFirst out of the time in
// which the changes were made that are not durable.
func (c *crash) drawCut(nodes []*node) {
	if c.policy != OldestFirst && c.policy != NewestFirst {
		return
	}
	var lo, hi uint64
	note := func(seq uint64) {
		if lo == 0 || seq < lo {
			lo = seq
		}
		hi = max(hi, seq)
	}
	for _, n := range nodes {
		for _, d := range n.dirty {
			note(d.seq)
			if d.mid != nil {
				note(d.midSeq)
			}
		}
		if n.dirtySize != nil {
			note(n.dirtySize.seq)
		}
		for _, states := range n.history {
			for _, s := range states[1:] {
				note(s.seq)
			}
		}
	}
	if hi > 0 {
		c.cut = lo - 1 + c.rng.Uint64N(hi-lo+2)
	}
}

// pick chooses one of the states of an item: 0 is the durable one, i is the one
// made by the change with number seqs[i-1], in ascending order.
func (c *crash) pick(seqs ...uint64) int {
	last := len(seqs)
	switch c.policy {
	case KeepAll:
		return last
	case LoseRandomPages:
		if last > 0 && c.rng.Float64() < c.keep {
			return 1 + c.rng.IntN(last)
		}
	case OldestFirst:
		i, found := slices.BinarySearch(seqs, c.cut)
		if found {
			i++
		}
		return i
	case NewestFirst:
		if last > 0 && seqs[last-1] > c.cut {
			return last
		}
	}
	return 0
}

// joinRenames moves choices forward until no rename has lost the file under
// both names, and every renamed directory has one place. Choices only grow, so
// it ends.
func (c *crash) joinRenames(nodes []*node) {
	for again := true; again; {
		again = false
		for _, n := range nodes {
			for _, states := range n.history {
				for _, s := range states[1:] {
					if s.link != nil && c.joinRename(s.link) {
						again = true
					}
				}
			}
		}
	}
}

// joinRename moves one of the two choices when they do not go together.
func (c *crash) joinRename(r *rename) (changed bool) {
	oldKey, newKey := nameKey{r.oldDir, r.oldName}, nameKey{r.newDir, r.newName}
	find := func(k nameKey) int {
		return slices.IndexFunc(k.dir.history[k.name], func(s nameState) bool { return s.link == r })
	}
	oldAt, newAt := find(oldKey), find(newKey)
	if oldAt < 0 || newAt < 0 {
		return false // one half is durable
	}
	oldDone, newDone := c.names[oldKey] >= oldAt, c.names[newKey] >= newAt
	switch {
	case oldDone && !newDone:
		c.names[newKey] = newAt
	case newDone && !oldDone && r.dir:
		c.names[oldKey] = oldAt
	default:
		return false
	}
	return true
}

// allNames returns the names that the directory has or had, sorted.
func (n *node) allNames() []string {
	names := slices.Collect(maps.Keys(n.entries))
	for name := range n.history {
		if n.entries[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

func (c *crash) copyDir(n *node) *node {
	d := &node{dir: true, modTime: n.modTime, entries: make(map[string]*node, len(n.entries))}
	for _, name := range n.allNames() {
		e := n.entries[name]
		if i, ok := c.names[nameKey{n, name}]; ok {
			e = n.history[name][i].node
		}
		if e == nil {
			continue
		}
		var dup *node
		if e.dir {
			dup = c.copyDir(e)
		} else if dup = c.files[e]; dup == nil {
			dup = c.copyFile(e)
			c.files[e] = dup
		}
		dup.links++
		d.entries[name] = dup
	}
	return d
}

func (c *crash) copyFile(n *node) *node {
	dup := &node{modTime: n.modTime}
	dup.size = n.size
	if d := n.dirtySize; d != nil {
		states, seqs := []int64{d.old, n.size}, []uint64{d.seq}
		if d.midSeq > 0 {
			states, seqs = []int64{d.old, d.mid, n.size}, []uint64{d.midSeq, d.seq}
		}
		dup.size = states[c.pick(seqs...)]
	}

	dup.pages = make(map[int64]*page, len(n.pages))
	for idx, p := range n.pages {
		dup.pages[idx] = share(p)
	}
	for _, idx := range slices.SortedFunc(maps.Keys(n.dirty), cmp.Compare[int64]) {
		if p := c.survivor(n.dirty[idx], n.pages[idx]); p != nil {
			dup.pages[idx] = p
		} else {
			delete(dup.pages, idx)
		}
	}
	dup.trim()

	dup.blocks = make(map[int64]uint64, len(n.blocks))
	for _, w := range slices.SortedFunc(maps.Keys(n.blocks), cmp.Compare[int64]) {
		word := n.blocks[w]
		if lost := n.dirtyBlocks[w]; lost != 0 && c.pick(1) == 0 {
			word &^= lost
		}
		if word != 0 {
			dup.blocks[w] = word
		}
	}
	for idx := range dup.pages {
		dup.blocks[idx>>6] |= 1 << (idx & 63)
	}
	return dup
}

// trim removes what pages hold behind the end of the file.
func (c *content) trim() {
	end := pagesFor(c.size)
	for idx := range c.pages {
		if idx >= end {
			delete(c.pages, idx)
		}
	}
	if in := c.size % pageSize; in != 0 && c.pages[end-1] != nil {
		cut := &page{data: c.pages[end-1].data}
		clear(cut.data[in:])
		c.pages[end-1] = cut
	}
}

// survivor is what the crash leaves of a dirty page; now is what it was.
func (c *crash) survivor(d *dirtyPage, now *page) *page {
	if d.lost {
		return d.old
	}
	states, seqs := []*page{d.old, share(now)}, []uint64{d.seq}
	if d.mid != nil {
		states, seqs = []*page{d.old, d.mid, share(now)}, []uint64{d.midSeq, d.seq}
	}
	i := c.pick(seqs...)
	if i == 0 || c.torn == 0 || c.rng.Float64() >= c.torn {
		return states[i]
	}
	torn := &page{}
	for s := 0; s < pageSize; s += sectorSize {
		from := states[i]
		if c.rng.IntN(2) == 0 {
			from = states[c.rng.IntN(i)] // any earlier state
		}
		if from != nil {
			copy(torn.data[s:s+sectorSize], from.data[s:])
		}
	}
	return torn
}
