package commitlog

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/message"
)

// progressStep is how many bytes go by between two calls of
// ScanOptions.Progress.
const progressStep = 16 << 20

// progress adds up what several goroutines have read.
type progress struct {
	fn    func(done, total int64)
	total int64

	mu         sync.Mutex
	done, told int64
}

func (p *progress) add(n int64) {
	if p.fn == nil {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = min(p.done+n, p.total)
	if p.done-p.told >= progressStep || p.done == p.total && p.told < p.total {
		p.told = p.done
		p.fn(p.done, p.total)
	}
}

// scanBuffers keeps chunk buffers, for callers that scan a little again and
// again.
var scanBuffers = sync.Pool{New: func() any { return new([]byte) }}

// Scan reads the records in [from, to) in order and calls fn for each; blank
// records are passed over. from must be the start of a record or of a blank.
// The view and its bytes are valid during the call only. It returns the
// position up to which all records have been handled: to (the end of the file
// when to lies in its blank), or the start of the record that
//
//   - fn returned an error for, which Scan returns unchanged,
//   - reaches across to, or across Confirmed: the error is nil,
//   - is damaged, or missing with its file: a *base.CorruptError,
//   - could not be read, was not read because ctx ended, or was removed from
//     the front of the log meanwhile (base.ErrNotFound).
//
// Scan may run beside appends and removals. It holds one chunk of about 1 MiB
// in memory, or one record when that is larger.
func (l *Log) Scan(ctx context.Context, from, to message.PhysicalOffset, opts ScanOptions, fn func(v *message.View) error) (message.PhysicalOffset, error) {
	w := newWalker(opts.Check, firstChunk)
	buf := scanBuffers.Get().(*[]byte)
	w.buf = (*buf)[:0]
	defer func() {
		if cap(w.buf) <= chunkSize {
			*buf = w.buf[:0]
		}
		scanBuffers.Put(buf)
	}()
	return l.scan(ctx, w, from, to, opts, fn)
}

// aheadChunks is how many chunks of records ScanAhead holds.
const aheadChunks = 4

// ScanAhead is Scan for much of the log and an fn that takes as long as reading:
// another goroutine reads and checks the records meanwhile, some chunks ahead,
// and calls Progress.
func (l *Log) ScanAhead(ctx context.Context, from, to message.PhysicalOffset, opts ScanOptions, fn func(v *message.View) error) (message.PhysicalOffset, error) {
	type chunk struct {
		buf   []byte
		views []message.View // into buf
	}
	full, free := make(chan *chunk, aheadChunks), make(chan *chunk, aheadChunks)
	for range aheadChunks {
		free <- new(chunk)
	}
	ctx, cancel := context.WithCancel(ctx)
	defer func() {
		cancel()
		for range full { // until the other one has ended
		}
	}()
	var end message.PhysicalOffset
	var err error
	go func() {
		defer close(full)
		at := <-free
		w := newWalker(opts.Check, firstChunk)
		w.fresh = func(used []byte) []byte {
			if len(at.views) == 0 {
				return used
			}
			at.buf = used
			full <- at
			select {
			case at = <-free:
			case <-ctx.Done():
				at = new(chunk)
			}
			return at.buf
		}
		end, err = l.scan(ctx, w, from, to, opts, func(v *message.View) error {
			at.views = append(at.views, *v)
			return nil
		})
		if len(at.views) > 0 {
			full <- at
		}
	}()
	for c := range full {
		for i := range c.views {
			if err := fn(&c.views[i]); err != nil {
				return c.views[i].PhysicalOffset, err
			}
		}
		c.views = c.views[:0]
		select {
		case free <- c:
		default: // ctx ended, and the other one made a chunk more
		}
	}
	return end, err
}

func (l *Log) scan(ctx context.Context, w *walker, from, to message.PhysicalOffset, opts ScanOptions, fn func(v *message.View) error) (message.PhysicalOffset, error) {
	to = min(to, l.Confirmed())
	p := progress{fn: opts.Progress, total: max(int64(to-from), 0)}
	pos := from
	for pos < to {
		f := l.files.Find(int64(pos))
		if f == nil {
			return pos, l.missing(pos)
		}
		w.reset(f, f.Path(), f.Start(), f.Size(), int64(pos)-f.Start())
		w.limit = min(w.size, int64(to)-w.start)
		end, err := l.scanFile(ctx, w, &p, fn)
		if errors.Is(err, base.ErrClosed) {
			err = l.missing(end) // closed, or removed under our eyes
		}
		if err == errCut || err == nil && end < message.PhysicalOffset(f.End()) {
			return end, nil
		}
		if err != nil {
			return end, err
		}
		pos = end
	}
	return pos, nil
}

// scanFile is Scan within one file. It returns the end of the file when the
// file is complete.
func (l *Log) scanFile(ctx context.Context, w *walker, p *progress, fn func(v *message.View) error) (message.PhysicalOffset, error) {
	mark := w.pos
	defer func() { p.add(w.pos - mark) }()
	for w.pos < w.limit {
		if w.pos-mark >= chunkSize {
			if err := ctx.Err(); err != nil {
				return w.phy(), err
			}
			p.add(w.pos - mark)
			mark = w.pos
		}
		at := w.phy()
		found, err := w.next()
		switch {
		case err != nil:
			return at, err
		case found == stepZero:
			return at, w.corrupt("zeros where a record should begin")
		case found == stepBlank:
			w.pos = w.size
			return w.phy(), nil
		}
		if err := fn(&w.view); err != nil {
			return at, err
		}
	}
	return w.phy(), ctx.Err()
}

// missing says why there is no file for a position.
func (l *Log) missing(pos message.PhysicalOffset) error {
	if state(l.state.Load()) == stateClosed {
		return l.stateError(stateClosed)
	}
	if first := l.files.First(); first != nil && int64(pos) >= first.Start() && l.files.Find(int64(pos)) == nil {
		for _, f := range l.files.Files() {
			if f.Start() > int64(pos) {
				return base.Corruptf(f.Path(), 0, "the file for position %d is missing in front of this one", pos)
			}
		}
	}
	return fmt.Errorf("commit log position %d, outside [%d, %d): %w", pos, l.Min(), l.Confirmed(), base.ErrNotFound)
}
