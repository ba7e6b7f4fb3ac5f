package inspect

import (
	"bytes"
	"context"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Difference is something that two stores, A and B, do not have in common.
type Difference struct {
	Part string // PartLog, PartQueue or PartIndex
	File string // relative to both stores, or the queue's folder
	// Offset is where it begins: a position in the log, an offset in the
	// queue, for the index the position of the message.
	Offset int64
	// OnlyA and OnlyB are how many messages, units or entries only one of them
	// has, Differ how many both have but not alike; of the log, pages of 4 KiB.
	OnlyA, OnlyB, Differ int64
	Detail               string
}

// The parts of a store that are compared.
const (
	PartLog   = "log"
	PartQueue = "queue"
	PartIndex = "index"
)

// DiffOptions say what becomes of a comparison.
type DiffOptions struct {
	Report   func(Difference)
	Progress func(done, total int64) // nil: nobody is told
	Workers  int                     // 0: GOMAXPROCS, at most 8
}

// DiffResult is what was compared.
type DiffResult struct {
	LogBytes     int64 // in both
	Queues       int64
	Units        int64
	IndexEntries int64
	Differences  int64
	// OnlyA and OnlyB are the messages that only one log has, because it
	// begins earlier or ends later, or that differ.
	OnlyA, OnlyB int64
}

// differ is a comparison.
type differ struct {
	ctx  context.Context
	a, b *Store
	o    DiffOptions
	res  DiffResult
	// commonEnd is where the shorter log ends.
	commonEnd int64
}

// Diff compares the logs of two stores byte by byte where both have records,
// their consume queues unit by unit and their indexes entry by entry. What a
// broker makes anew for itself and no reader sees is left out: bytes behind the
// end of records, names of index files, addresses in queue extensions. Of a store
// that somebody writes to, ends of queues and index that are behind do not count.
func Diff(ctx context.Context, a, b *Store, o DiffOptions) (DiffResult, error) {
	if o.Workers <= 0 {
		o.Workers = min(runtime.GOMAXPROCS(0), 8)
	}
	if o.Progress == nil {
		o.Progress = func(_, _ int64) {}
	}
	d := &differ{ctx: ctx, a: a, b: b, o: o}
	for _, step := range []func() error{d.log, d.queues, d.index} {
		if err := step(); err != nil {
			return d.res, err
		}
	}
	return d.res, nil
}

func (d *differ) report(x Difference) {
	d.res.Differences++
	d.o.Report(x)
}

// logSpan is the part of a log that has records.
type logSpan struct{ from, to int64 }

func (d *differ) log() error {
	var spans [2]logSpan
	for i, s := range []*Store{d.a, d.b} {
		end, err := s.writtenTo(d.ctx)
		if err != nil {
			return err
		}
		spans[i] = logSpan{s.Min(), end}
	}
	if err := d.outside(spans[0], spans[1], d.a, "the first", func(n int64) (int64, int64) { d.res.OnlyA += n; return n, 0 }); err != nil {
		return err
	}
	if err := d.outside(spans[1], spans[0], d.b, "the second", func(n int64) (int64, int64) { d.res.OnlyB += n; return 0, n }); err != nil {
		return err
	}
	from, to := max(spans[0].from, spans[1].from), min(spans[0].to, spans[1].to)
	d.commonEnd = to
	if from >= to {
		return nil
	}
	return d.common(from, to)
}

// outside reports the records of one log that lie before or behind those of the
// other.
func (d *differ) outside(mine, other logSpan, s *Store, which string, count func(n int64) (onlyA, onlyB int64)) error {
	for _, r := range []logSpan{{mine.from, min(mine.to, other.from)}, {max(mine.from, other.to), mine.to}} {
		if r.from >= r.to {
			continue
		}
		n, err := s.countRecords(d.ctx, r.from, r.to)
		if err != nil {
			return err
		}
		if n == 0 {
			continue // a blank record
		}
		onlyA, onlyB := count(n)
		d.report(Difference{Part: PartLog, File: s.logName(r.from), Offset: r.from, OnlyA: onlyA, OnlyB: onlyB,
			Detail: fmt.Sprintf("positions %d to %d are only in %s, messages: %d", r.from, r.to, which, n)})
	}
	return nil
}

// logName is the name of the log file with a position.
func (s *Store) logName(phy int64) string {
	if i := s.fileAt(phy); i >= 0 {
		return s.show(s.log[i].path)
	}
	return "commitlog"
}

// show is a path relative to the store, with slashes, if it lies in it.
func (s *Store) show(path string) string {
	if rel, err := filepath.Rel(s.dir, path); err == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel)
	}
	return filepath.ToSlash(path)
}

// countRecords counts the records in a range of the log by their heads.
func (s *Store) countRecords(ctx context.Context, from, to int64) (n int64, err error) {
	c := newChain(ctx, s, from, func(Damage) {}, func(int64) {})
	defer c.close()
	var r run
	for {
		more, err := c.next(&r, to)
		if err != nil || !more {
			return n, err
		}
		for off := 0; off < r.n; off += int(message.Size(r.buf[off:])) {
			n++
		}
	}
}

const (
	// diffPage is the unit in which differing bytes of a log are counted.
	diffPage = 4096
	diffAt   = 1 << 20 // bytes read at a time
)

// common compares what both logs have, file of A by file of A, in parallel.
func (d *differ) common(from, to int64) error {
	files := d.a.log
	found := make([]*Difference, len(files))
	var next, done atomic.Int64
	var mu sync.Mutex // held for progress
	var group sync.WaitGroup
	var once sync.Once
	var first error
	ctx, cancel := context.WithCancel(d.ctx)
	defer cancel()
	for range d.o.Workers {
		group.Go(func() {
			bufs := [2][]byte{make([]byte, diffAt), make([]byte, diffAt)}
			for {
				i := int(next.Add(1) - 1)
				if i >= len(files) {
					return
				}
				lo, hi := max(files[i].start, from), min(files[i].end(), to)
				if lo >= hi {
					continue
				}
				x, err := d.file(ctx, lo, hi, bufs, func(n int64) {
					sum := done.Add(n)
					mu.Lock()
					defer mu.Unlock()
					d.o.Progress(min(sum, to-from), to-from)
				})
				if err != nil {
					once.Do(func() { first = err })
					cancel()
					return
				}
				found[i] = x
			}
		})
	}
	group.Wait()
	if first != nil {
		return first
	}
	d.res.LogBytes = to - from
	for _, x := range found {
		if x != nil {
			d.report(*x)
		}
	}
	return d.ctx.Err()
}

// file compares a range of the log that lies in one file of A.
func (d *differ) file(ctx context.Context, lo, hi int64, bufs [2][]byte, told func(int64)) (*Difference, error) {
	ra, rb := logReader{s: d.a}, logReader{s: d.b}
	defer ra.close()
	defer rb.close()
	var x *Difference
	for at := lo; at < hi; {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		n := min(diffAt, hi-at)
		pa, pb := bufs[0][:n], bufs[1][:n]
		ra.read(pa, at)
		rb.read(pb, at)
		if bytes.Equal(pa, pb) {
			told(n)
			at += n
			continue
		}
		end := int64(0) // where the next page to be looked at begins
		for off := int64(0); off < n; off = end {
			end = min((at+off)/diffPage*diffPage+diffPage-at, n)
			if bytes.Equal(pa[off:end], pb[off:end]) {
				continue
			}
			if x == nil {
				for pa[off] == pb[off] {
					off++
				}
				where, fill := d.describe(ctx, at+off)
				if fill {
					told(hi - at)
					return nil, nil // behind the records of the file
				}
				x = &Difference{Part: PartLog, File: d.a.logName(lo), Offset: at + off, Detail: where}
			}
			x.Differ++
		}
		told(n)
		at += n
	}
	if x != nil {
		x.Detail += fmt.Sprintf("; pages of the file that differ: %d", x.Differ)
		if ra.bad != nil || rb.bad != nil {
			x.Detail += fmt.Sprintf("; unreadable bytes count as zeros: %v", firstError(ra.bad, rb.bad))
		}
	} else if err := firstError(ra.bad, rb.bad); err != nil {
		return nil, err
	}
	return x, nil
}

func firstError(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// describe says what stands at a position in both logs. fill: only in the rest
// of a file, behind its records.
func (d *differ) describe(ctx context.Context, phy int64) (where string, fill bool) {
	a, ok := d.a.recordAround(ctx, phy)
	b, okB := d.b.recordAround(ctx, phy)
	if a.blank && b.blank && a.at == b.at {
		return "", true
	}
	text := func(r around, ok bool) string {
		switch {
		case !ok:
			return "no record"
		case r.blank:
			return fmt.Sprintf("the end of the file's records at %d", r.at)
		}
		return fmt.Sprintf("a message of %s/%d, offset %d, at %d", r.topic, r.queueID, r.offset, r.at)
	}
	ta, tb := text(a, ok), text(b, okB)
	if ta == tb {
		return fmt.Sprintf("position %d differs, inside %s", phy, ta), false
	}
	return fmt.Sprintf("position %d differs: %s in the first, %s in the second", phy, ta, tb), false
}

// around is the record that holds a position.
type around struct {
	at      int64
	blank   bool
	topic   string
	queueID int32
	offset  int64
}

// recordAround finds the record that holds a position by walking its file.
func (s *Store) recordAround(ctx context.Context, phy int64) (r around, ok bool) {
	i := s.fileAt(phy)
	if i < 0 {
		return r, false
	}
	f := &s.log[i]
	c := newChain(ctx, s, f.start, func(Damage) {}, func(int64) {})
	defer c.close()
	var piece run
	for {
		more, err := c.next(&piece, f.end())
		if err != nil || !more || piece.base != f.start {
			break
		}
		if phy >= piece.at+int64(piece.n) {
			r.at = piece.at + int64(piece.n)
			continue
		}
		if phy < piece.at {
			return r, false
		}
		for off := 0; off < piece.n; {
			size := int(message.Size(piece.buf[off:]))
			at := piece.at + int64(off)
			if phy < at+int64(size) {
				r.at = at
				if v, err := message.Check(piece.buf[off:off+size], message.PhysicalOffset(at), message.CheckOptions{}); err == nil {
					r.topic, r.queueID, r.offset = v.Topic(), v.QueueID, int64(v.QueueOffset)
					return r, true
				}
				return r, false
			}
			off += size
		}
	}
	lr := logReader{s: s}
	defer lr.close()
	var head [message.BlankSize]byte
	lr.read(head[:], r.at)
	h, err := message.ParseHeader(head[:])
	r.blank = err == nil && h.Kind == message.KindBlank && phy >= r.at+message.BlankSize
	return r, r.blank
}

// logReader reads any bytes of a log.
type logReader struct {
	s   *Store
	f   vfs.File
	i   int
	bad error // the first that could not be read
}

func (r *logReader) close() {
	if r.f != nil {
		r.f.Close() // only read
		r.f = nil
	}
}

// read fills p; what no file has, or the disk does not give, is zeros.
func (r *logReader) read(p []byte, phy int64) {
	for len(p) > 0 {
		i := r.s.fileAt(phy)
		if i < 0 {
			clear(p)
			return
		}
		if r.f == nil || r.i != i {
			r.close()
			f, err := r.s.fs.Open(r.s.log[i].path, vfs.ReadOnly)
			if err != nil {
				r.bad = firstError(r.bad, err)
				clear(p)
				return
			}
			r.f, r.i = f, i
		}
		n := min(int64(len(p)), r.s.log[i].end()-phy)
		if err := readAt(r.f, p[:n], phy-r.s.log[i].start); err != nil {
			r.bad = firstError(r.bad, err)
		}
		p, phy = p[n:], phy+n
	}
}

// RangeSum is the checksum of a range of the log.
type RangeSum struct {
	From, To int64
	CRC      uint32 // CRC-32 (IEEE)
}

// sumRange is the length of the ranges of Sums.
const sumRange = 64 << 20

// Sums computes checksums of the log's records, of ranges that lie alike in
// every store, so that stores on two machines can be compared.
func (s *Store) Sums(ctx context.Context, report func(RangeSum) error) error {
	end, err := s.writtenTo(ctx)
	if err != nil {
		return err
	}
	r := logReader{s: s}
	defer r.close()
	buf := make([]byte, diffAt)
	for from := s.Min(); from < end; {
		to := min(from/sumRange*sumRange+sumRange, end)
		if i := s.fileAt(from); i >= 0 {
			to = min(to, s.log[i].end())
		}
		crc := uint32(0)
		for at := from; at < to; {
			if err := ctx.Err(); err != nil {
				return err
			}
			p := buf[:min(diffAt, to-at)]
			r.read(p, at)
			crc = crc32.Update(crc, crc32.IEEETable, p)
			at += int64(len(p))
		}
		if r.bad != nil {
			return r.bad
		}
		if err := report(RangeSum{from, to, crc}); err != nil {
			return err
		}
		from = to
	}
	return nil
}

// names lists what two sorted lists have, each once.
func names[T any](a, b []T, cmp func(a, b T) int, each func(a, b *T)) {
	for len(a) > 0 || len(b) > 0 {
		switch {
		case len(b) == 0 || len(a) > 0 && cmp(a[0], b[0]) < 0:
			each(&a[0], nil)
			a = a[1:]
		case len(a) == 0 || cmp(a[0], b[0]) > 0:
			each(nil, &b[0])
			b = b[1:]
		default:
			each(&a[0], &b[0])
			a, b = a[1:], b[1:]
		}
	}
}
