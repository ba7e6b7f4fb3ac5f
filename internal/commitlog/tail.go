package commitlog

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Tail is where the valid data of a log ends and what stands behind it. It
// describes; what to do about it is the caller's decision, see the package
// comment.
type Tail struct {
	// End is the position behind the last valid record, or the start of the
	// next file when the record's file is complete.
	End message.PhysicalOffset
	// Reason says why no record begins at End: a *base.CorruptError. It is nil
	// when only zeros follow, as where nothing was ever written.
	Reason error
	// PowerLoss: what stands at End looks as if sectors of it had never
	// reached the disk: one of them ends in zeros. Such a place can lie in
	// front of data that did reach the disk, because pages are written in any
	// order.
	PowerLoss bool

	// Records were found valid from where the search began up to End. Last is
	// the position of the last one, -1 when there is none, and StoreTime its
	// store time. So who knows a record that is surely good lets the search
	// begin with it rather than behind it.
	Records   int64
	Last      message.PhysicalOffset
	StoreTime int64
	// Disorder counts records with a store time before that of the one in
	// front of them, and FirstDisorder is the first of them: a clock was set
	// back, or old records came back behind new ones (store-behaviour L3).
	Disorder      int64
	FirstDisorder message.PhysicalOffset

	// ValidBehind counts records behind End that are valid in themselves:
	// magic, position, lengths and CRC are right. FirstBehind and LastBehind
	// are the first and the last of them, -1 when there is none.
	ValidBehind             int
	FirstBehind, LastBehind message.PhysicalOffset
	// Stale counts such records with a store time before StoreTime; they are
	// not in ValidBehind. They are leftovers of a log that was cut at End by a
	// program that does not zero what it cuts off.
	Stale int
	// DataEnd is behind the last byte that is not zero; End when all are.
	DataEnd message.PhysicalOffset
	// Partial: the search behind End ended early, because it had found enough
	// or because too many bytes there pretend to be records. ValidBehind,
	// Stale and DataEnd are then lower bounds, and the bytes should be treated
	// as if ValidBehind were above 0.
	Partial bool
}

// FindTail reads the log from position from, the start of a record or blank,
// to the end of the valid records, and looks for more behind it. Files are
// read side by side: each is a chain of records from its start to its blank,
// so one can be checked without the one before.
//
// An error means that the log could not be read, or that ctx ended; what was
// found in it is never an error. The log must not have been started.
func (l *Log) FindTail(ctx context.Context, from message.PhysicalOffset, opts ScanOptions) (Tail, error) {
	none := Tail{End: from, DataEnd: from, Last: -1, FirstDisorder: -1, FirstBehind: -1, LastBehind: -1}
	if s := state(l.state.Load()); s != stateOpened {
		return none, l.stateError(s)
	}
	files := l.files.Files()
	if len(files) == 0 || int64(from) == files[len(files)-1].End() {
		return none, nil
	}
	first := l.files.Find(int64(from))
	if first == nil {
		return none, l.missing(from)
	}
	for files[0] != first {
		files = files[1:]
	}
	if old := l.unproven.Load(); old < 0 || int64(from) < old {
		l.unproven.Store(int64(from))
	}
	t := none
	stop, err := l.checkFiles(ctx, files, from, opts, &t)
	if err != nil {
		return t, err
	}
	if err := l.lookBehind(ctx, files[stop:], opts, &t); err != nil {
		return t, err
	}
	return t, nil
}

// fileResult is what checking one file gave. Positions are in the log.
type fileResult struct {
	whole  bool                   // the chain reaches the end of the file
	end    message.PhysicalOffset // of the chain
	reason error                  // when it is not whole: *base.CorruptError, or nil for zeros

	records        int64
	last, prev     message.PhysicalOffset // the last record and the one before; -1
	lastTime       int64                  // store times
	prevTime       int64
	firstTime      int64
	disorder       int64
	firstDisorder  message.PhysicalOffset
	first          message.PhysicalOffset
	lastEndsInZero bool

	err error // of reading
}

// checkFiles checks files, of which the first is checked from from on, until
// one is not complete. It fills in t and returns the index of the file that
// holds t.End, len(files) when all are complete.
func (l *Log) checkFiles(ctx context.Context, files []*mappedfile.File, from message.PhysicalOffset, opts ScanOptions, t *Tail) (int, error) {
	workers := opts.Workers
	if workers <= 0 {
		workers = 2
	}
	workers = min(workers, len(files))
	p := &progress{fn: opts.Progress}
	for _, f := range files {
		p.total += f.End() - max(f.Start(), int64(from))
	}
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()

	results := make([]chan fileResult, len(files))
	for i := range results {
		results[i] = make(chan fileResult, 1)
	}
	var taken atomic.Int64
	for range workers {
		group.Go(func() {
			w := newWalker(opts.Check, chunkSize)
			for ctx.Err() == nil {
				i := int(taken.Add(1)) - 1
				if i >= len(files) {
					return
				}
				start := max(files[i].Start(), int64(from))
				results[i] <- l.checkFile(ctx, w, files[i], start-files[i].Start(), p)
			}
		})
	}
	for i, f := range files {
		if i > 0 && f.Start() != int64(t.End) {
			t.Reason = base.Corruptf(f.Path(), 0, "the file for position %d is missing in front of this one", t.End)
			return i, nil
		}
		var r fileResult
		select {
		case r = <-results[i]:
		case <-ctx.Done():
			return 0, ctx.Err()
		}
		if r.err != nil {
			return 0, r.err
		}
		t.add(&r)
		if !r.whole {
			return i, nil
		}
	}
	return len(files), nil
}

// add appends the findings of the next file.
func (t *Tail) add(r *fileResult) {
	t.End, t.Reason = r.end, r.reason
	t.DataEnd = max(t.DataEnd, t.End)
	if r.records == 0 {
		return
	}
	if t.Records > 0 && r.firstTime < t.StoreTime {
		t.Disorder++
		if t.FirstDisorder < 0 {
			t.FirstDisorder = r.first
		}
	}
	t.Records += r.records
	t.Last, t.StoreTime = r.last, r.lastTime
	t.Disorder += r.disorder
	if t.FirstDisorder < 0 {
		t.FirstDisorder = r.firstDisorder
	}
}

// checkFile walks one file from pos on.
func (l *Log) checkFile(ctx context.Context, w *walker, f *mappedfile.File, pos int64, p *progress) fileResult {
	r := fileResult{last: -1, prev: -1, first: -1, firstDisorder: -1}
	h, err := openHandle(l.opts.FS, f.Path())
	if err != nil {
		r.err = err
		return r
	}
	defer h.Close()
	w.reset(h, f.Path(), f.Start(), f.Size(), pos)
	mark := pos
	for {
		if w.pos-mark >= chunkSize {
			if r.err = ctx.Err(); r.err != nil {
				return r
			}
			p.add(w.pos - mark)
			mark = w.pos
		}
		at := w.phy()
		found, err := w.next()
		switch {
		case err == nil && found == stepRecord:
			r.record(at, &w.view)
			continue
		case err == nil && found == stepBlank:
			r.whole = true
			r.end = message.PhysicalOffset(f.End())
		case err == nil:
			r.end = at
			r.dropTorn(w)
		case errors.Is(err, base.ErrCorrupt):
			r.end, r.reason = at, err
			if head, err := w.window(min(4, w.size-w.pos)); err != nil {
				r.err = err
			} else if lastNonZero(head) == 0 {
				r.dropTorn(w)
			}
		default:
			r.err = err
		}
		p.add(f.Size() - mark)
		return r
	}
}

// record takes note of a valid record.
func (r *fileResult) record(at message.PhysicalOffset, v *message.View) {
	if r.records == 0 {
		r.first, r.firstTime = at, v.StoreTimestamp
	} else if v.StoreTimestamp < r.lastTime {
		r.disorder++
		if r.firstDisorder < 0 {
			r.firstDisorder = at
		}
	}
	r.records++
	r.prev, r.prevTime = r.last, r.lastTime
	r.last, r.lastTime = at, v.StoreTimestamp
	// The body has a CRC, the lengths must add up and topics have no zero
	// bytes: only in the properties do lost bytes go unnoticed.
	props := v.PropsBytes()
	r.lastEndsInZero = len(props) > 0 && props[len(props)-1] == 0
}

// dropTorn is called when zeros follow the last record. If that ends in a zero
// byte, which message.Encoder never writes, its end did not reach the disk.
func (r *fileResult) dropTorn(w *walker) {
	if r.records == 0 || !r.lastEndsInZero {
		return
	}
	r.end = r.last
	r.reason = base.Corruptf(w.path, int64(r.last)-w.start, "the properties end in a zero byte, and zeros follow")
	r.records--
	if r.prev >= 0 && r.lastTime < r.prevTime {
		r.disorder--
		if r.firstDisorder == r.last {
			r.firstDisorder = -1
		}
	}
	r.last, r.lastTime = r.prev, r.prevTime
}

// lookBehind searches files, which begin with the one that holds t.End, for
// records behind t.End, and finds out what stands there.
func (l *Log) lookBehind(ctx context.Context, files []*mappedfile.File, opts ScanOptions, t *Tail) error {
	check := opts.Check
	check.BodyCRC = true // whatever the caller trusts, here nothing else tells a record
	b := behind{tail: t, before: t.StoreTime, budget: searchCredit, first: -1, rec: newWalker(check, chunkSize)}
	for _, f := range files {
		more, err := b.file(ctx, l.opts.FS, f)
		if err != nil {
			return err
		}
		if !more {
			break
		}
	}
	if t.DataEnd == t.End && t.Reason == nil {
		t.PowerLoss = false // nothing is there
	} else if t.Reason == nil {
		f := files[0]
		t.Reason = base.Corruptf(f.Path(), int64(t.End)-f.Start(), "zeros where a record should begin, and data up to %d", t.DataEnd)
	}
	return nil
}

// file is lookBehind for one file.
func (b *behind) file(ctx context.Context, fsys vfs.FS, f *mappedfile.File) (more bool, err error) {
	h, err := openHandle(fsys, f.Path())
	if err != nil {
		return false, err
	}
	defer h.Close()
	end := int64(b.tail.End) - f.Start()
	if end < 0 || end >= f.Size() {
		return b.search(ctx, h, f, 0)
	}
	extent, trusted, err := extentOf(h, f.Start()+end, end, f.Size())
	if err != nil {
		return false, err
	}
	from := end + 1
	if trusted {
		// Only the content is wrong. What looks like records inside of it, for
		// a body can hold anything, is none.
		from = end + extent
		b.tail.DataEnd = max(b.tail.DataEnd, message.PhysicalOffset(f.Start()+from))
	}
	if more, err = b.search(ctx, h, f, from); err != nil {
		return false, err
	}
	if b.first >= 0 {
		extent = min(extent, b.first-(f.Start()+end))
	}
	b.tail.PowerLoss, err = looksLost(h, end, extent, f.Size())
	return more, err
}

// extentOf says how long the thing at pos is that is no valid record. trusted
// means that it is a record at its own position phy whose lengths agree, so
// that it surely reaches that far.
func extentOf(src source, phy, pos, size int64) (extent int64, trusted bool, err error) {
	rest := size - pos
	if rest < message.BlankSize {
		return rest, false, nil
	}
	var head [message.BlankSize]byte
	if err := readFull(src, head[:], pos); err != nil {
		return 0, false, fmt.Errorf("read commit log: %w", err)
	}
	claimed, magic := splitHeader(head[:])
	switch {
	case magic == message.MagicBlank, claimed == rest && magic != message.MagicV1 && magic != message.MagicV2:
		return message.BlankSize, false, nil // it was a blank
	case magic != message.MagicV1 && magic != message.MagicV2, claimed < message.MinRecordSize, claimed > rest:
		return min(message.MinRecordSize, rest), false, nil
	}
	h, err := layout(src, pos, claimed)
	var format *message.FormatError
	if errors.As(err, &format) {
		return claimed, false, nil
	}
	return claimed, int64(h.PhysicalOffset) == phy, err
}

const (
	// sectorSize is the unit in which disks write.
	sectorSize = 512
	// zeroRun is how many zero bytes at its end make a sector look unwritten.
	zeroRun = 8
	// zeroFields is the length of the part of a record in which more zeros
	// than that are normal: everything in front of the body.
	zeroFields = 88
)

// looksLost reports whether the n bytes at pos look as if a sector of them had
// not been written, or only an older version of it. Such a sector is zero from
// some place inside of them to its end. That the first eight bytes are zero
// counts as well. size is that of the file.
//
// It errs on the side of true: a record whose content is zero there is taken
// for a lost one. But where a sector on the disk is as it was before the record
// was written, it says so.
func looksLost(src source, pos, n, size int64) (bool, error) {
	buf := make([]byte, min(64<<10, (n+2*sectorSize)&^(sectorSize-1)))
	end := pos + n
	last := min((end+sectorSize-1)&^(sectorSize-1), size) // end of the last sector
	for block := pos &^ (sectorSize - 1); block < last; block += int64(len(buf)) {
		part := buf[:min(int64(len(buf)), last-block)]
		if err := readFull(src, part, block); err != nil {
			return false, fmt.Errorf("read commit log: %w", err)
		}
		if head := pos - block; head >= 0 && head+zeroRun <= int64(len(part)) && lastNonZero(part[head:head+zeroRun]) == 0 {
			return true, nil
		}
		for at := int64(0); at < int64(len(part)); at += sectorSize {
			stop := min(at+sectorSize, int64(len(part)))
			run := max(at, pos-block) // ours begins there
			if body := pos + zeroFields - block; stop > body {
				run = max(run, min(body, end-block-1), min(stop, end-block)-zeroRun)
			}
			if lastNonZero(part[run:stop]) == 0 {
				return true, nil
			}
		}
	}
	return false, nil
}

// lastNonZero returns the length of p without the zeros at its end.
func lastNonZero(p []byte) int {
	n := len(p)
	for n >= 8 && binary.LittleEndian.Uint64(p[n-8:]) == 0 {
		n -= 8
	}
	for n > 0 && p[n-1] == 0 {
		n--
	}
	return n
}
