package memfs

import (
	"encoding/binary"
	"hash/maphash"
	"maps"
	"slices"
)

// fingerprintSeed is the same for all file systems of a process, so that their
// fingerprints can be compared.
var fingerprintSeed = maphash.MakeSeed()

// Fingerprint is a hash of all that a user of the file system can find: names,
// lengths, contents and reserved blocks, but neither times nor what is durable.
// File systems with equal content have equal fingerprints within one process.
// Tests that look at many crash clones skip those they have seen. It costs
// little for pages that a clone shares with others.
func (f *FS) Fingerprint() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	var h maphash.Hash
	h.SetSeed(fingerprintSeed)
	writeNode(&h, f.root)
	return h.Sum64()
}

func writeNode(h *maphash.Hash, n *node) {
	if !n.dir {
		writeContent(h, &n.content)
		return
	}
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		e := n.entries[name]
		_, _ = h.WriteString(name)
		if e.dir {
			_ = h.WriteByte('/') // no name holds one
		} else {
			_ = h.WriteByte(0)
		}
		writeNode(h, e)
	}
	_, _ = h.WriteString("//")
}

func writeContent(h *maphash.Hash, c *content) {
	var b []byte
	b = binary.BigEndian.AppendUint64(b, uint64(c.size))
	b = binary.BigEndian.AppendUint64(b, uint64(len(c.pages)))
	for _, idx := range slices.Sorted(maps.Keys(c.pages)) {
		b = binary.BigEndian.AppendUint64(b, uint64(idx))
		b = binary.BigEndian.AppendUint64(b, c.pages[idx].hash())
	}
	for _, w := range slices.Sorted(maps.Keys(c.blocks)) {
		b = binary.BigEndian.AppendUint64(b, uint64(w))
		b = binary.BigEndian.AppendUint64(b, c.blocks[w])
	}
	_, _ = h.Write(b)
}

// hash is the hash of the page's bytes. That of a shared page is kept: its
// owners, under locks of their own, compute the same one.
func (p *page) hash() uint64 {
	if sum := p.sum.Load(); p.shared && sum != 0 {
		return sum
	}
	sum := maphash.Bytes(fingerprintSeed, p.data[:])
	if p.shared {
		p.sum.Store(sum)
	}
	return sum
}
