package tool

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// logPart is one file of a log without gaps.
type logPart struct {
	path  string
	start int64
}

// logScan reads a log in order and hands out its records in batches, checked
// and with what queues and index need worked out. One goroutine reads, others
// check; it holds a few MiB. A log is a chain: the size of each record says
// where the next one begins, so the reader need look at nothing else.
type logScan struct {
	fs       vfs.FS
	parts    []logPart
	fileSize int64
	tags     bool // index tags, too
	light    bool // look for light queues
	delays   message.DelayLevels
	told     func(int64)

	// end is where the log ends, and stopped why: nil when it is where eight
	// zero bytes stand, or behind the last file. Valid when run has returned.
	end     int64
	stopped error
}

const (
	scanChunk = 1 << 20
	scanAhead = 6 // batches under way
)

// logItem is a record as queues and index see it.
type logItem struct {
	phy, off   int64
	time, tags int64
	size       int32
	queueID    int32
	count      int16 // messages, 0: it has no unit
	topic      []byte
	hashes     int32 // end of its hashes in the batch
	light      bool  // it names light queues
	inner      bool  // an inner batch
	own        bool  // a filler or placeholder
}

// logBatch is a run of records.
type logBatch struct {
	buf    []byte
	at     int64 // position of buf in the log
	path   string
	start  int64 // of the file
	n      int   // bytes of whole records
	items  []logItem
	hashes []int32
	err    error
	ready  chan struct{}
}

// view makes the view of an item's record.
func (b *logBatch) view(it *logItem) (message.View, error) {
	off := it.phy - b.at
	return message.Check(b.buf[off:off+int64(it.size)], message.PhysicalOffset(it.phy), message.CheckOptions{})
}

// run calls take for each batch in order. The batch is take's until it returns.
// A record that is not valid ends the scan: it is in stopped, not an error.
func (s *logScan) run(ctx context.Context, take func(*logBatch) error) error {
	ctx, cancel := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel() // first: who reads ahead waits for nothing else
	free := make(chan *logBatch, scanAhead)
	for range scanAhead {
		free <- &logBatch{}
	}
	work := make(chan *logBatch, scanAhead)
	order := make(chan *logBatch, scanAhead)
	r := logReader{logScan: s, free: free, work: work, order: order}
	var readErr error
	group.Go(func() {
		defer close(order)
		defer close(work)
		readErr = r.read(ctx)
	})
	for range max(1, runtime.GOMAXPROCS(0)) {
		group.Go(func() {
			for b := range work {
				s.check(b)
				close(b.ready)
			}
		})
	}
	for b := range order {
		select {
		case <-b.ready:
		case <-ctx.Done():
			return ctx.Err()
		}
		if len(b.items) > 0 || b.err == nil {
			if err := take(b); err != nil {
				return err
			}
		}
		if b.err != nil {
			s.end, s.stopped = b.at, b.err
			if n := len(b.items); n > 0 {
				s.end = b.items[n-1].phy + int64(b.items[n-1].size)
			}
			return nil
		}
		if s.told != nil {
			s.told(int64(b.n))
		}
		free <- b // never full: there are as many as it holds
	}
	s.end, s.stopped = r.end, r.stopped
	return readErr
}

// logReader is the goroutine of a scan that reads.
type logReader struct {
	*logScan
	free        <-chan *logBatch
	work, order chan<- *logBatch
	end         int64
	stopped     error
}

// read cuts the log into batches.
func (s *logReader) read(ctx context.Context) error {
	for i, p := range s.parts {
		if i > 0 && p.start != s.parts[i-1].start+s.fileSize {
			s.stopped = base.Corruptf(p.path, 0, "the file for position %d is missing in front of this one", s.end)
			return nil
		}
		whole, err := s.readPart(ctx, p)
		if err != nil || !whole {
			return err
		}
		s.end = p.start + s.fileSize
	}
	return nil
}

// readPart reads one file. It reports whether the log goes on in the next one.
func (s *logReader) readPart(ctx context.Context, p logPart) (whole bool, err error) {
	f, err := s.fs.Open(p.path, vfs.ReadOnly)
	if err != nil {
		return false, err
	}
	defer f.Close()
	for pos := int64(0); ; {
		var b *logBatch
		select {
		case b = <-s.free:
		case <-ctx.Done():
			return false, ctx.Err()
		}
		*b = logBatch{buf: b.buf[:0], items: b.items[:0], hashes: b.hashes[:0], at: p.start + pos, path: p.path, start: p.start, ready: make(chan struct{})}
		stop, err := s.fill(b, f, pos)
		if err != nil {
			return false, fmt.Errorf("read %s at or behind %d: %w", p.path, pos, err)
		}
		pos += int64(b.n)
		s.end = p.start + pos
		// Both have room: there are no more batches than they hold.
		s.work <- b
		s.order <- b
		switch stop {
		case stopFull:
		case stopBlank:
			return true, nil
		default:
			return false, nil
		}
	}
}

// scanStop says why a batch ends.
type scanStop int

const (
	stopFull  scanStop = iota // there is more
	stopBlank                 // the file ends
	stopZeros                 // the log ends
	stopBad                   // what follows is no record; check will say so
)

// fill reads whole records from pos on into b.
func (s *logScan) fill(b *logBatch, f vfs.File, pos int64) (scanStop, error) {
	want := min(scanChunk, s.fileSize-pos)
	for {
		if int64(cap(b.buf)) < want {
			b.buf = append(make([]byte, 0, want), b.buf...)
		}
		have := int64(len(b.buf))
		b.buf = b.buf[:want]
		if err := readWhole(f, b.buf[have:], pos+have); err != nil {
			return 0, err
		}
		stop, need := s.cut(b, pos)
		if need <= want {
			return stop, nil
		}
		want = need // the first record is larger than the buffer
	}
}

// cut sets b.n to the end of the last whole record in b.buf. Where not even one
// is whole, need is how many bytes it has.
func (s *logScan) cut(b *logBatch, pos int64) (stop scanStop, need int64) {
	for b.n = 0; ; {
		rest := s.fileSize - pos - int64(b.n)
		left := b.buf[b.n:]
		switch {
		case rest == 0:
			return stopBlank, 0
		case rest < message.BlankSize:
			b.err = base.Corruptf(b.path, pos+int64(b.n), "%d bytes are left in the file, too few for any record", rest)
			return stopBad, 0
		case len(left) < message.BlankSize:
			return stopFull, 0
		}
		size := int64(message.Size(left))
		switch {
		case message.IsMagic(left[4:]) && size >= message.MinRecordSize && size <= rest:
			if size > int64(len(left)) {
				if b.n > 0 {
					return stopFull, 0
				}
				return stopFull, size
			}
			b.n += int(size)
			continue
		case isZero(left[:message.BlankSize]):
			return stopZeros, 0
		}
		if h, err := message.ParseHeader(left); err == nil && h.Kind == message.KindBlank && int64(h.Size) == rest {
			return stopBlank, 0
		}
		b.err = base.Corruptf(b.path, pos+int64(b.n), "no record begins here")
		return stopBad, 0
	}
}

// readWhole reads p; what lies behind the end of a file is zeros.
func readWhole(f vfs.File, p []byte, off int64) error {
	n, err := f.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	size, serr := f.Size()
	if serr == nil && off+int64(n) >= size {
		clear(p[n:])
		return nil
	}
	return errors.Join(err, serr)
}

// check works out the items of a batch. The first record that is not valid ends
// it.
func (s *logScan) check(b *logBatch) {
	for off := 0; off < b.n; {
		size := int(message.Size(b.buf[off:]))
		at := b.at + int64(off)
		v, err := message.Check(b.buf[off:off+size], message.PhysicalOffset(at), message.CheckOptions{BodyCRC: true})
		if err != nil {
			b.err = base.Corruptf(b.path, at-b.start, "%v", err)
			b.n = off
			return
		}
		off += size
		it := logItem{phy: at, off: int64(v.QueueOffset), time: v.StoreTimestamp, size: v.Size, queueID: v.QueueID, topic: v.TopicBytes()}
		if v.SysFlag.Queued() {
			it.count = 1
			if base, num, ok := v.InnerBatch(); ok {
				it.off, it.count, it.inner = int64(base), num, true
			}
			it.tags = int64(v.TagsCode(s.delays.Delay))
			it.light = s.light && v.HasLightQueues()
			it.own = v.Flag == fillerFlag && IsPlaceholder(&v)
		} else {
			it.own = IsFiller(&v)
		}
		b.hashes = v.IndexHashes(b.hashes, s.tags)
		it.hashes = int32(len(b.hashes))
		b.items = append(b.items, it)
	}
}
