package inspect

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// index compares the entries of the indexes: for each message the hashes of its
// keys. In which files they are does not matter.
func (d *differ) index() error {
	ia, ib := newEntries(d.ctx, d.a), newEntries(d.ctx, d.b)
	defer ia.close()
	defer ib.close()
	x := Difference{Part: PartIndex, File: "index", Offset: -1}
	at := func(phy int64, detail string) {
		if x.Offset < 0 {
			x.Offset, x.Detail = phy, detail
		}
	}
	for ia.ok || ib.ok {
		var ua, ub unit
		ua.Physical, ub.Physical = message.PhysicalOffset(ia.phy), message.PhysicalOffset(ib.phy)
		if d.moving(ia.ok, ua, ib.ok, ub) {
			break
		}
		switch {
		case !ib.ok || ia.ok && ia.phy < ib.phy:
			at(ia.phy, fmt.Sprintf("the message at %d is only in the first index", ia.phy))
			x.OnlyA += int64(len(ia.hashes))
			ia.next()
		case !ia.ok || ia.phy > ib.phy:
			at(ib.phy, fmt.Sprintf("the message at %d is only in the second index", ib.phy))
			x.OnlyB += int64(len(ib.hashes))
			ib.next()
		default:
			d.res.IndexEntries += int64(len(ia.hashes))
			if !slices.Equal(ia.hashes, ib.hashes) {
				at(ia.phy, fmt.Sprintf("the message at %d has %d keys in the first index, %d in the second, or others", ia.phy, len(ia.hashes), len(ib.hashes)))
				x.Differ++
			}
			ia.next()
			ib.next()
		}
	}
	if err := firstError(ia.err, ib.err); err != nil {
		return err
	}
	for i, list := range [][]string{ia.undecoded, ib.undecoded} {
		for _, path := range list {
			s := []*Store{d.a, d.b}[i]
			d.report(Difference{Part: PartIndex, File: s.show(path), Differ: 1,
				Detail: fmt.Sprintf("cannot be decoded in the %s store; see gantry store verify", []string{"first", "second"}[i])})
		}
	}
	if x.Offset >= 0 {
		x.Detail += fmt.Sprintf("; %d entries only in the first, %d only in the second, %d messages differ", x.OnlyA, x.OnlyB, x.Differ)
		d.report(x)
	}
	return d.ctx.Err()
}

// entries goes through the entries of an index, message by message.
type entries struct {
	ctx   context.Context
	s     *Store
	files []string
	// undecoded are the files of which nothing can be told.
	undecoded []string

	f    vfs.File
	r    *indexfile.Reader
	e    int32 // next entry to read
	last int32
	buf  []byte
	left []byte

	phy    int64
	hashes []int32 // sorted
	ok     bool
	err    error
}

// maxHashes bounds the keys of one message that are compared.
const maxHashes = 1 << 20

func newEntries(ctx context.Context, s *Store) *entries {
	x := &entries{ctx: ctx, s: s, files: s.indexFiles()}
	x.next()
	return x
}

func (x *entries) close() {
	if x.f != nil {
		x.f.Close() // only read
		x.r.Close()
		x.f, x.r = nil, nil
	}
}

// next moves to the next message.
func (x *entries) next() {
	x.ok, x.hashes = false, x.hashes[:0]
	for {
		if len(x.left) < indexEntrySize && !x.fill() {
			break
		}
		phy := int64(binary.BigEndian.Uint64(x.left[posEntryPhy:]))
		if x.ok && phy != x.phy || len(x.hashes) >= maxHashes {
			break
		}
		x.ok, x.phy = true, phy
		x.hashes = append(x.hashes, int32(binary.BigEndian.Uint32(x.left)))
		x.left = x.left[indexEntrySize:]
	}
	slices.Sort(x.hashes)
}

// fill reads on, in the next file if need be.
func (x *entries) fill() bool {
	for {
		if x.err = x.ctx.Err(); x.err != nil {
			return false
		}
		if x.f == nil {
			if len(x.files) == 0 {
				return false
			}
			path := x.files[0]
			x.files = x.files[1:]
			r, err := indexfile.OpenReader(x.s.fs, path)
			if err != nil {
				x.undecoded = append(x.undecoded, path)
				continue
			}
			f, err := x.s.fs.Open(path, vfs.ReadOnly)
			if err != nil {
				r.Close()
				x.undecoded = append(x.undecoded, path)
				continue
			}
			h := r.Header()
			x.f, x.r, x.e, x.last = f, r, 1, min(max(h.Count, 1), r.Geometry().Entries)-1
		}
		n := min(x.last+1-x.e, 4096)
		if n <= 0 {
			x.close()
			continue
		}
		if x.buf == nil {
			x.buf = make([]byte, 4096*indexEntrySize)
		}
		x.left = x.buf[:int64(n)*indexEntrySize]
		if x.err = readAt(x.f, x.left, x.r.EntryPos(x.e)); x.err != nil {
			x.left = nil
			return false
		}
		x.e += n
		return true
	}
}
