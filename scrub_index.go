package gantry

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/message"
)

// indexEntryBytes is the size of an entry; entries are read this many at a
// time.
const (
	indexEntryBytes = 20
	indexAhead      = 4096
)

// scrubIndex walks the entries of the closed index files beside the records of
// the log: both are in the order of the log.
type scrubIndex struct {
	files   []indexfile.FileInfo
	r       *indexfile.Reader // of files[0]; nil when it is not open
	next    int32             // entry to read next
	entries []indexfile.Entry // read ahead
	at      []int32           // hashes of the entries of one record
}

// open takes the files that are closed now, without those that could not be
// verified because the index leaves messages out.
func (x *scrubIndex) open(p *scrubPass) {
	if p.s.index == nil || p.s.index.Degraded() != nil {
		return
	}
	files := p.s.index.Files()
	for _, f := range files[:max(len(files)-1, 0)] {
		if f.Header.HasEntries() && f.Header.EndPhy >= p.s.log.Min() {
			x.files = append(x.files, f)
		}
	}
}

func (x *scrubIndex) close() {
	if x.r != nil {
		_ = x.r.Close() // it was only read
		x.r = nil
	}
	x.entries = nil
}

// skip gives the first file up.
func (x *scrubIndex) skip() {
	x.close()
	x.files = x.files[1:]
}

// misses reports whether a record has a key without an entry, in that part of
// the log which the closed files cover.
func (x *scrubIndex) misses(p *scrubPass, v *message.View) bool {
	for len(x.files) > 0 && v.PhysicalOffset > x.files[0].Header.EndPhy {
		x.skip()
	}
	if len(x.files) == 0 || v.PhysicalOffset <= x.files[0].Header.BeginPhy || v.PhysicalOffset == x.files[0].Header.EndPhy {
		return false // its entries may stand in two files
	}
	x.at = x.at[:0]
	for {
		e, ok := x.peek(p)
		if !ok || len(x.files) == 0 {
			return false
		}
		f := x.files[0].Header
		switch {
		case e.Phy < f.BeginPhy || e.Phy > f.EndPhy: // reported with the chains
		case e.Phy > v.PhysicalOffset:
			return x.lacks(p, v)
		case e.Phy == v.PhysicalOffset:
			x.at = append(x.at, e.Hash)
		}
		x.entries = x.entries[1:]
		if len(x.entries) == 0 && x.next >= f.Count {
			return x.lacks(p, v) // the file is at its end
		}
	}
}

// lacks reports whether one of the record's keys is not among x.at.
func (x *scrubIndex) lacks(p *scrubPass, v *message.View) bool {
	p.hashes = v.IndexHashes(p.hashes[:0], false)
	for _, h := range p.hashes {
		if !slices.Contains(x.at, h) {
			return true
		}
	}
	return false
}

// peek returns the next entry of the first file.
func (x *scrubIndex) peek(p *scrubPass) (indexfile.Entry, bool) {
	if len(x.entries) > 0 {
		return x.entries[0], true
	}
	f := x.files[0]
	if x.r == nil {
		r, err := indexfile.OpenReader(p.s.fs, f.Path, f.Geometry)
		if err != nil {
			p.indexUnreadable(f.Path, err)
			x.skip()
			return indexfile.Entry{}, false
		}
		x.r, x.next = r, 1
	}
	to := min(x.next+indexAhead, f.Header.Count)
	err := x.r.Entries(x.next, to, func(_ int32, e indexfile.Entry) bool {
		x.entries = append(x.entries, e)
		return true
	})
	x.next = to
	if err != nil || len(x.entries) == 0 || !p.pause(int64(len(x.entries))*indexEntryBytes) {
		if err != nil {
			p.indexUnreadable(f.Path, err)
		}
		x.skip()
		return indexfile.Entry{}, false
	}
	return x.entries[0], true
}

func (p *scrubPass) indexUnreadable(path string, err error) {
	if !errors.Is(err, fs.ErrNotExist) { // removed by retention
		p.finding(fmt.Errorf("scrub: index file %s: %w", path, err))
	}
}

// scanIndexes verifies the closed index files in themselves.
func (p *scrubPass) scanIndexes() error {
	if p.s.index == nil {
		return nil
	}
	files := p.s.index.Files()
	for _, f := range files[:max(len(files)-1, 0)] {
		if err := p.err(); err != nil {
			return err
		}
		r, err := indexfile.OpenReader(p.s.fs, f.Path, f.Geometry)
		if err != nil {
			p.indexUnreadable(f.Path, err)
			continue
		}
		err = p.chains(f, r)
		if cerr := r.Close(); err == nil && cerr != nil {
			err = cerr
		}
		if err != nil {
			p.indexUnreadable(f.Path, err)
		}
	}
	return p.err()
}

// chains follows all chains of a file at once, in the order in which they were
// written: each entry leads to the newest one before it in its slot, and each
// slot to its newest. It keeps four bytes for each slot meanwhile.
func (p *scrubPass) chains(f indexfile.FileInfo, r *indexfile.Reader) error {
	hdr, slots := r.Header(), f.Geometry.Slots
	if wrong := r.Wrong(); wrong != "" {
		return base.Corruptf(f.Path, 0, "%s", wrong)
	}
	newest := make([]int32, slots)
	wrong, first := 0, ""
	note := func(format string, args ...any) {
		if wrong++; wrong == 1 {
			first = fmt.Sprintf(format, args...)
		}
	}
	err := r.Entries(1, hdr.Count, func(e int32, en indexfile.Entry) bool {
		switch {
		case en.Hash < 0:
			note("entry %d has hash %d", e, en.Hash)
		case en.Phy < hdr.BeginPhy || en.Phy > hdr.EndPhy:
			note("entry %d leads to %d, outside %d to %d", e, en.Phy, hdr.BeginPhy, hdr.EndPhy)
		case en.Prev != newest[en.Hash%slots]:
			note("entry %d leads to entry %d, its slot had %d", e, en.Prev, newest[en.Hash%slots])
		}
		if en.Hash >= 0 {
			newest[en.Hash%slots] = e
		}
		return p.pause(indexEntryBytes)
	})
	if err != nil || p.err() != nil {
		return err
	}
	err = r.Slots(func(slot, v int32) bool {
		if v != newest[slot] {
			note("slot %d leads to entry %d, its newest is %d", slot, v, newest[slot])
		}
		newest[slot] = 0
		return p.pause(4)
	})
	if err != nil || p.err() != nil {
		return err
	}
	for slot, e := range newest {
		if e != 0 {
			note("slot %d is empty, its newest entry is %d", slot, e)
		}
	}
	if wrong > 0 {
		return base.Corruptf(f.Path, r.EntryPos(1), "%d places are wrong, the first: %s", wrong, first)
	}
	return nil
}
