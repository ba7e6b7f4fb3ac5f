package commitlog

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/message"
)

// state is what a Log can be asked for.
type state int32

const (
	stateOpened  state = iota // reading; the end is not known
	stateRunning              // reading and appending
	stateClosed
)

// Log is a commit log.
type Log struct {
	opts  Options
	alloc *mappedfile.Allocator     // nil with CreateInline
	pool  *mappedfile.TransientPool // nil: appends go to the files
	files *mappedfile.Queue
	size  int64 // of a file

	// state and end are written under the append lock.
	state atomic.Int32
	end   atomic.Int64

	// storeTime is that of the record that ends at end or before it: it is
	// stored after end. So who loads storeTime and then end knows that the
	// record with that time lies in front of that end.
	storeTime atomic.Int64

	// flushedTime is the store time of a record that is flushed, as are all
	// records before it.
	flushedTime atomic.Int64
	syncs       atomic.Int64 // rounds of the flusher that moved Flushed

	// lockedAt is when the append lock was taken, in ms; 0 while it is free.
	lockedAt atomic.Int64

	mu struct {
		// The append lock. Nothing that waits for the disk happens under it,
		// except the making of a file that was not ready in time.
		sync.Mutex
		file      *mappedfile.File // that the next append goes to; nil or full: another one
		storeTime int64            // of the last record; the next one is not before it
	}

	flushWaiters   waitList // for Flushed
	confirmWaiters waitList // for Confirmed

	wakeFlusher   chan struct{} // capacity 1
	wakeCommitter chan struct{} // capacity 1; nil without a transient pool
	quit          chan struct{}
	loops         sync.WaitGroup
	failed        sync.Once // the failure has been reported

	closing sync.Mutex
	times   timeCache

	// unproven is from where on records were found by FindTail rather than
	// known to be on stable storage; -1: none.
	unproven atomic.Int64
}

// Open finds the files of the log and returns it for reading and recovery. It
// changes nothing on disk. Errors are those of mappedfile.OpenQueue.
func Open(opts Options) (*Log, Report, error) {
	opts = opts.withDefaults()
	if opts.PoolSize > 0 && opts.WriteWithoutMmap {
		return nil, Report{}, errors.New("open commit log: a transient pool and writing without a mapping exclude each other")
	}
	l := &Log{
		opts:        opts,
		wakeFlusher: make(chan struct{}, 1),
		quit:        make(chan struct{}),
	}
	l.unproven.Store(-1)
	files := mappedfile.Options{
		FS:                opts.FS,
		Dirs:              opts.Dirs,
		ReadOnlyDirs:      opts.ReadOnlyDirs,
		DirFull:           opts.DirFull,
		FileSize:          opts.FileSize,
		DefaultFileSize:   DefaultFileSize,
		Mapped:            !opts.WriteWithoutMmap,
		RandomAccess:      opts.RandomAccess,
		ReserveStep:       opts.ReserveStep,
		Warm:              opts.Warm,
		WarmSyncPages:     opts.WarmSyncPages,
		LockMemory:        opts.LockMemory,
		FailWithoutBuffer: opts.FailWithoutBuffer,
		Logger:            opts.Logger,
	}
	if !opts.CreateInline {
		l.alloc = mappedfile.NewAllocator(opts.Allocator)
		files.Alloc = l.alloc
	}
	if opts.PoolSize > 0 {
		// The buffers are as large as the files, whose size may have to be
		// taken from the directory first.
		if files.FileSize == 0 {
			size, err := inferFileSize(files)
			if err != nil {
				return nil, Report{}, l.openFailed(err)
			}
			files.FileSize = size
		}
		l.pool = mappedfile.NewTransientPool(opts.PoolSize, files.FileSize)
		files.Pool = l.pool
		l.wakeCommitter = make(chan struct{}, 1)
	}
	q, report, err := mappedfile.OpenQueue(files)
	if err != nil {
		return nil, report, l.openFailed(err)
	}
	l.files = q
	l.size = q.FileSize()
	if l.size < message.MinRecordSize+message.BlankSize {
		q.Close()
		return nil, report, l.openFailed(fmt.Errorf("file size %d: not even one record fits", l.size))
	}
	l.end.Store(q.MaxOffset())
	return l, report, nil
}

func (l *Log) openFailed(err error) error {
	if l.alloc != nil {
		l.alloc.Close()
	}
	return fmt.Errorf("open commit log: %w", err)
}

// inferFileSize opens the queue for its file size alone.
func inferFileSize(opt mappedfile.Options) (int64, error) {
	opt.Alloc = nil
	q, report, err := mappedfile.OpenQueue(opt)
	if err != nil {
		return 0, err
	}
	return report.FileSize, q.Close()
}

// SetEnd makes end the end of the log, as TruncateTo does, and starts writing:
// the next append begins there, with a store time not before storeTime, which
// is that of the record in front of end (0 when there is none). Tail has both.
//
// What FindTail found need not be on stable storage: after the end of a
// process, not of the machine, it may exist in memory only. With FlushSync it
// is synced here, otherwise by the flusher soon after; until then Flushed is
// lower than end.
func (l *Log) SetEnd(end message.PhysicalOffset, storeTime int64) error {
	if err := l.TruncateTo(end); err != nil {
		return err
	}
	if first := l.files.First(); first == nil && int64(end)%l.size != 0 {
		return fmt.Errorf("set end of the commit log to %d: it is inside a file that does not exist", end)
	}
	if from := l.firstUnproven(); from >= 0 && from < int64(end) {
		l.files.MarkUnflushed(from)
		if l.opts.Flush == FlushSync {
			if _, err := l.files.Flush(0); err != nil {
				return fmt.Errorf("flush what recovery found: %w", err)
			}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := state(l.state.Load()); s != stateOpened {
		return l.stateError(s)
	}
	l.mu.file = l.files.Last()
	l.mu.storeTime = storeTime
	l.end.Store(int64(end))
	l.storeTime.Store(storeTime)
	if l.Flushed() >= end {
		l.flushedTime.Store(storeTime)
	}
	l.state.Store(int32(stateRunning))
	l.loops.Go(l.flushLoop)
	if l.wakeCommitter != nil {
		l.loops.Go(l.commitLoop)
	}
	return nil
}

// firstUnproven returns from where on recovered records need a sync, -1 for
// none. Files in directories that are only read are none of ours to sync.
func (l *Log) firstUnproven() int64 {
	from := l.unproven.Load()
	if from < 0 {
		return from
	}
	for _, f := range l.files.Files() {
		if l.readOnly(f) {
			from = max(from, f.End())
		}
	}
	return from
}

// readOnly reports whether f lies in a directory that is only read.
func (l *Log) readOnly(f *mappedfile.File) bool {
	dir := filepath.Dir(f.Path())
	return slices.ContainsFunc(l.opts.ReadOnlyDirs, func(d string) bool { return filepath.Clean(d) == dir })
}

// stateError says why a log in state s does not take the call.
func (l *Log) stateError(s state) error {
	switch s {
	case stateOpened:
		return fmt.Errorf("commit log: %w", errNotStarted)
	case stateRunning:
		return fmt.Errorf("commit log: %w", errStarted)
	}
	return fmt.Errorf("commit log: %w", base.ErrClosed)
}

// FileSize is the length of each file.
func (l *Log) FileSize() int64 { return l.size }

// Min is where the oldest file begins, the start of the log. Without a file it
// is End.
func (l *Log) Min() message.PhysicalOffset {
	if f := l.files.First(); f != nil {
		return message.PhysicalOffset(f.Start())
	}
	return l.End()
}

// End is where the next record begins or, when that does not fit into the
// file, the blank record before it. Before SetEnd it is the end of the last
// file.
func (l *Log) End() message.PhysicalOffset { return message.PhysicalOffset(l.end.Load()) }

// Flushed is the position below which everything is on stable storage.
func (l *Log) Flushed() message.PhysicalOffset {
	if l.files.Last() == nil {
		return l.End()
	}
	// The flusher may be ahead of End by a blank record.
	return min(message.PhysicalOffset(l.files.Flushed()), l.End())
}

// FlushedStoreTime is the store time, in ms, up to which a checkpoint may
// claim the log to be on stable storage: that of a record that had been
// appended before the last successful flush began (store-behaviour F2). 0
// means that nothing is known.
func (l *Log) FlushedStoreTime() int64 { return l.flushedTime.Load() }

// LastStoreTime is the store time of the newest record, 0 when there is none.
func (l *Log) LastStoreTime() int64 { return l.storeTime.Load() }

// Confirmed is the position below which records may be read and dispatched;
// see the package comment.
func (l *Log) Confirmed() message.PhysicalOffset {
	switch {
	case state(l.state.Load()) == stateOpened:
		return l.End()
	case l.opts.Flush == FlushSync && !l.opts.ReadUnflushed:
		return l.Flushed()
	case l.wakeCommitter != nil:
		return min(message.PhysicalOffset(l.files.MaxOffset()), l.End())
	}
	return l.End()
}

// LockedSince is when the append that is at work now took the append lock, in
// ms as Options.Now counts, and 0 when none is. An append that takes long
// means that the page cache is busy, and that further ones should be refused
// (RocketMQ: beginTimeInLock, osPageCacheBusyTimeOutMills).
func (l *Log) LockedSince() int64 { return l.lockedAt.Load() }

// Err returns nil, or the error that made the log read-only.
func (l *Log) Err() error { return l.files.Err() }

// Stats are figures about a log at one moment.
type Stats struct {
	Min, End, Flushed, Confirmed message.PhysicalOffset
	LastStoreTime                int64 // ms
	FlushedStoreTime             int64 // ms
	Files                        int
	Syncs                        int64 // flushes that brought something to stable storage
	Waiting                      int   // goroutines that wait for a flush
}

// Stats returns the current figures. They are not from one instant.
func (l *Log) Stats() Stats {
	return Stats{
		Min:              l.Min(),
		End:              l.End(),
		Flushed:          l.Flushed(),
		Confirmed:        l.Confirmed(),
		LastStoreTime:    l.LastStoreTime(),
		FlushedStoreTime: l.FlushedStoreTime(),
		Files:            len(l.files.Files()),
		Syncs:            l.syncs.Load(),
		Waiting:          l.flushWaiters.len(),
	}
}

// Close stops appends, brings everything to stable storage, however many files
// that are, and closes the files. Waiters get their answer from that last
// flush. A log that failed is closed without another sync, and Close returns
// the failure. Calling it again does nothing.
func (l *Log) Close() error {
	l.closing.Lock()
	defer l.closing.Unlock()
	l.mu.Lock()
	was := state(l.state.Load())
	l.state.Store(int32(stateClosed))
	l.mu.Unlock()
	if was == stateClosed {
		return nil
	}
	close(l.quit)
	l.loops.Wait()
	var err error
	if was == stateRunning {
		err = l.flush(0)
	}
	closed := l.stateError(stateClosed)
	l.flushWaiters.shut(closed)
	l.confirmWaiters.shut(closed)
	if filesErr := l.files.Close(); err == nil {
		err = filesErr // otherwise it says the same
	}
	if l.alloc != nil {
		err = errors.Join(err, l.alloc.Close())
	}
	if err != nil {
		return fmt.Errorf("close commit log: %w", err)
	}
	return nil
}
