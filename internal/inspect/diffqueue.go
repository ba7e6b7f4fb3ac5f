package inspect

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
)

// queues compares the consume queues.
func (d *differ) queues() error {
	a, err := d.a.Queues()
	if err != nil {
		return err
	}
	b, err := d.b.Queues()
	if err != nil {
		return err
	}
	kind := func(q Queue) int {
		if q.Batch {
			return 1
		}
		return 0
	}
	compare := func(a, b Queue) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID), cmp.Compare(kind(a), kind(b)))
	}
	names(a, b, compare, func(a, b *Queue) {
		if err == nil {
			err = d.queue(a, b)
		}
	})
	return err
}

// queue compares one queue; nil: a store does not have it.
func (d *differ) queue(a, b *Queue) error {
	d.res.Queues++
	ia, ib := newUnits(d.ctx, d.a, a), newUnits(d.ctx, d.b, b)
	defer ia.close()
	defer ib.close()
	q := a
	if q == nil {
		q = b
	}
	root := "consumequeue"
	if q.Batch {
		root = "batchconsumequeue"
	}
	x := Difference{Part: PartQueue, File: fmt.Sprintf("%s/%s/%d", root, q.Topic, q.ID), Offset: -1}
	at := func(off int64, detail string) {
		if x.Offset < 0 {
			x.Offset, x.Detail = off, detail
		}
	}
	for ia.ok || ib.ok {
		if d.moving(ia.ok, ia.u, ib.ok, ib.u) {
			break
		}
		switch {
		case !ib.ok || ia.ok && ia.u.Base < ib.u.Base:
			at(int64(ia.u.Base), fmt.Sprintf("queue offset %d is only in the first, position %d", ia.u.Base, ia.u.Physical))
			x.OnlyA++
			ia.next()
		case !ia.ok || ia.u.Base > ib.u.Base:
			at(int64(ib.u.Base), fmt.Sprintf("queue offset %d is only in the second, position %d", ib.u.Base, ib.u.Physical))
			x.OnlyB++
			ib.next()
		default:
			d.res.Units++
			if !sameUnit(ia.u, ib.u) {
				at(int64(ia.u.Base), fmt.Sprintf("queue offset %d: position %d, size %d, tags code %d in the first, %d, %d, %d in the second",
					ia.u.Base, ia.u.Physical, ia.u.Size, ia.u.Tags, ib.u.Physical, ib.u.Size, ib.u.Tags))
				x.Differ++
			}
			ia.next()
			ib.next()
		}
	}
	if err := firstError(ia.err, ib.err); err != nil {
		return err
	}
	switch {
	case x.OnlyA+x.OnlyB+x.Differ == 0:
		return nil
	case a == nil:
		x.Offset, x.Detail = max(x.Offset, 0), fmt.Sprintf("the queue is only in the second: %d units", x.OnlyB)
	case b == nil:
		x.Offset, x.Detail = max(x.Offset, 0), fmt.Sprintf("the queue is only in the first: %d units", x.OnlyA)
	default:
		x.Detail += fmt.Sprintf("; %d units only in the first, %d only in the second, %d differ", x.OnlyA, x.OnlyB, x.Differ)
	}
	d.report(x)
	return nil
}

// moving reports whether what is left of two queues is only there because
// somebody writes to a store: behind the end of the shorter log, or not yet
// dispatched in the store that is behind.
func (d *differ) moving(okA bool, a unit, okB bool, b unit) bool {
	if !d.a.held && !d.b.held {
		return false
	}
	if okA && int64(a.Physical) >= d.commonEnd || okB && int64(b.Physical) >= d.commonEnd {
		return true
	}
	return !okA && d.a.held || !okB && d.b.held
}

// sameUnit reports whether two units are for the same record. Addresses of
// extensions are each store's own.
func sameUnit(a, b unit) bool {
	if consumequeue.IsExtAddress(a.Tags) || consumequeue.IsExtAddress(b.Tags) {
		a.Tags, b.Tags = 0, 0
	}
	return a == b
}

// units goes through the units of a queue, fill units left out, one at a time.
type units struct {
	ctx  context.Context
	s    *Store
	q    *Queue
	file int
	off  int64 // in the file, of what follows buf
	f    vfs.File
	buf  []byte
	left []byte // of buf

	u   unit
	ok  bool
	err error
}

// newUnits stands at the first unit. Without a queue there is none.
func newUnits(ctx context.Context, s *Store, q *Queue) *units {
	u := &units{ctx: ctx, s: s, q: q}
	if q != nil {
		u.next()
	}
	return u
}

func (u *units) close() {
	if u.f != nil {
		u.f.Close() // only read
		u.f = nil
	}
}

// next moves on; ok tells whether there is one.
func (u *units) next() {
	for u.ok = false; ; {
		if int64(len(u.left)) < u.q.unit && !u.fill() {
			return
		}
		slot := (u.q.files[u.file].start + u.off - int64(len(u.left))) / u.q.unit
		x, valid := u.q.decode(u.left, slot)
		u.left = u.left[u.q.unit:]
		if !valid {
			u.file = len(u.q.files) // the queue ends here
			u.left = nil
			return
		}
		if !x.fill {
			u.u, u.ok = x, true
			return
		}
	}
}

// fill reads on, in the next file if need be.
func (u *units) fill() bool {
	for ; u.file < len(u.q.files); u.file, u.off = u.file+1, 0 {
		if u.err = u.ctx.Err(); u.err != nil {
			return false
		}
		g := u.q.files[u.file]
		if u.file > 0 && u.off == 0 && g.start != u.q.files[u.file-1].start+u.q.files[u.file-1].size {
			return false // a file is missing
		}
		n := min((g.size-u.off)/u.q.unit*u.q.unit, max(4096, min(u.off, 256<<10))/u.q.unit*u.q.unit)
		if n <= 0 {
			u.close()
			continue
		}
		if u.f == nil {
			if u.f, u.err = u.s.fs.Open(filepath.Join(u.q.dir, segmentName(g.start)), vfs.ReadOnly); u.err != nil {
				u.f = nil
				return false
			}
		}
		if int64(cap(u.buf)) < n {
			u.buf = make([]byte, n)
		}
		u.left = u.buf[:n]
		if u.err = readAt(u.f, u.left, u.off); u.err != nil {
			u.left = nil
			return false
		}
		u.off += n
		return true
	}
	return false
}
