package mappedfile

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// Options say where a Queue lies and how its files are written. FS and Dirs
// are required.
type Options struct {
	FS vfs.FS
	// Dirs are the directories that get new files; the file at offset o goes
	// to number (o / file size) mod n of the sorted list. Directories that do
	// not exist are made with their first file. The files of all directories
	// form one queue.
	Dirs []string
	// ReadOnlyDirs hold more files, which are never written, created or
	// removed (RocketMQ: readOnlyCommitLogStorePaths).
	ReadOnlyDirs []string
	// DirFull, when set, is asked for each of Dirs when a file is made: those
	// that are full are left out, unless all are.
	DirFull func(dir string) bool

	// FileSize is the length of each file. 0 means that of the existing
	// files, DefaultFileSize when there are none.
	FileSize        int64
	DefaultFileSize int64

	// Mapped says that files are mapped into memory; otherwise they are read
	// and written positionally (RocketMQ: writeWithoutMmap).
	Mapped bool
	// RandomAccess advises the system against reading ahead (RocketMQ:
	// dataReadAheadEnable=false).
	RandomAccess bool
	// ReserveStep is how many bytes have their blocks reserved at a time in
	// front of the writer; 0 means 16 MiB.
	ReserveStep int64
	// Warm stores a zero byte into each page of a new file, whose blocks are
	// then all reserved (RocketMQ: warmMapedFileEnable). WarmSyncPages is after
	// how many pages they are synced meanwhile, 0 for not at all (RocketMQ:
	// flushLeastPagesWhenWarmMapedFile, with synchronous flushing only).
	Warm          bool
	WarmSyncPages int
	// LockMemory locks new files in memory until they are full and flushed.
	// Their blocks are then all reserved.
	LockMemory bool

	// Alloc makes files ahead; nil: the writer makes them when it needs them.
	Alloc *Allocator
	// Pool gives a new file a buffer in memory to be written to; nil: none.
	// When it is empty the file is written directly, or, with FailWithoutBuffer,
	// not made (RocketMQ: fastFailIfNoBufferInStorePool).
	Pool              *TransientPool
	FailWithoutBuffer bool

	Logger *slog.Logger // nil: discard
}

// Queue is a directory, or several, of files that together form one sequence
// of bytes (RocketMQ: MappedFileQueue, MultiPathMappedFileQueue). The package
// comment says what may run concurrently.
type Queue struct {
	sh   shared
	dirs []string // sorted
	full func(dir string) bool
	size int64
	pool *TransientPool

	failWithoutBuffer bool
	warm              bool
	warmSyncPages     int
	lockMemory        bool

	// files is an immutable snapshot, oldest first.
	files   atomic.Pointer[[]*File]
	flushed atomic.Int64
	closed  atomic.Bool

	// The locks are taken in this order.
	removeMu sync.Mutex // guards doomed; one removal or truncation at a time
	nextMu   sync.Mutex // guards next
	flushMu  sync.Mutex // moving flushed
	commitMu sync.Mutex // one walk over the buffers at a time
	listMu   sync.Mutex // replacing files; not held across I/O

	doomed []*File // out of the list, but their names could not be removed yet
	next   *File   // made or adopted, to be the file after the last
}

// FileSize is the length of each file.
func (q *Queue) FileSize() int64 { return q.size }

// Err returns nil, or the error with which every write answers since a sync
// failed.
func (q *Queue) Err() error { return q.sh.fail.err() }

// Files returns the files, oldest first. The slice is a snapshot and must not
// be changed; a file in it may be removed at any time.
func (q *Queue) Files() []*File { return *q.files.Load() }

// First returns the oldest file, nil when there is none.
func (q *Queue) First() *File {
	if files := q.Files(); len(files) > 0 {
		return files[0]
	}
	return nil
}

// Last returns the newest file, nil when there is none.
func (q *Queue) Last() *File {
	if files := q.Files(); len(files) > 0 {
		return files[len(files)-1]
	}
	return nil
}

// Find returns the file that holds offset off, nil when there is none: off is
// in front of the first file, behind the last one or in a gap.
func (q *Queue) Find(off int64) *File {
	files := q.Files()
	if len(files) == 0 || off < files[0].start {
		return nil
	}
	// Without gaps the place is known.
	if i := (off - files[0].start) / q.size; i < int64(len(files)) {
		if f := files[i]; f.start <= off && off < f.End() {
			return f
		}
	}
	if i := indexAfter(files, off) - 1; i >= 0 && off < files[i].End() {
		return files[i]
	}
	return nil
}

// indexAfter returns the index of the first file that starts behind off.
func indexAfter(files []*File, off int64) int {
	return sort.Search(len(files), func(i int) bool { return files[i].start > off })
}

// FindByTime returns the newest file whose time is before ts, the first file
// when there is none, nil when there are no files. With timeOf the time of a
// file's first record, the first record at or after ts is in that file or is
// the first of the next one. timeOf is called for about log2(n) files and must
// not fall from one file to the next; its error ends the search.
func (q *Queue) FindByTime(ts int64, timeOf func(*File) (int64, error)) (*File, error) {
	files := q.Files()
	if len(files) == 0 {
		return nil, nil
	}
	lo, hi := 0, len(files) // files[:lo+1] qualify or lo is 0; files[hi:] do not
	for hi-lo > 1 {
		mid := lo + (hi-lo)/2
		t, err := timeOf(files[mid])
		if err != nil {
			return nil, err
		}
		if t < ts {
			lo = mid
		} else {
			hi = mid
		}
	}
	return files[lo], nil
}

// MinOffset is the offset of the first byte, 0 when there is no file. It never
// points into a file that is being removed.
func (q *Queue) MinOffset() int64 {
	if f := q.First(); f != nil {
		return f.start
	}
	return 0
}

// MaxOffset is the end of what can be read without a break from the last file
// backwards: everything written, or everything committed when files are
// written through a transient pool. 0 when there is no file.
func (q *Queue) MaxOffset() int64 {
	files := q.Files()
	for i := len(files) - 1; i >= 0; i-- {
		// The bytes of a file count when the one before has all of its own.
		if i == 0 || files[i-1].Readable() == q.size {
			return files[i].start + files[i].Readable()
		}
	}
	return 0
}

// WroteOffset is the offset at which the next append starts (RocketMQ:
// getMaxWrotePosition), 0 when there is no file.
func (q *Queue) WroteOffset() int64 {
	if f := q.Last(); f != nil {
		return f.start + f.Wrote()
	}
	return 0
}

// Flushed is the offset below which everything is on stable storage.
func (q *Queue) Flushed() int64 { return q.flushed.Load() }

// ReadAt copies bytes from offset off on, across files. It returns io.EOF when
// it reaches the readable end, and an error that wraps base.ErrNotFound when
// off, or a byte on the way, is in front of MinOffset or in a gap.
func (q *Queue) ReadAt(p []byte, off int64) (int, error) {
	n := 0
	for n < len(p) {
		at := off + int64(n)
		f := q.Find(at)
		if f == nil {
			if last := q.Last(); last != nil && at >= last.End() {
				return n, io.EOF
			}
			return n, fmt.Errorf("offset %d in [%d, %d): %w", at, q.MinOffset(), q.MaxOffset(), base.ErrNotFound)
		}
		want := p[n:min(int64(len(p)), int64(n)+f.End()-at)]
		m, err := f.ReadAt(want, at-f.start)
		n += m
		switch {
		case errors.Is(err, base.ErrClosed) && !q.closed.Load() && q.Find(at) != f:
			// Removed between Find and ReadAt: look again.
		case err != nil:
			return n, err
		}
	}
	return n, nil
}

// Commit writes what waits in transient buffers to the files, file by file
// (RocketMQ: MappedFileQueue.commit). It returns MaxOffset.
func (q *Queue) Commit(leastPages int) (int64, error) {
	if q.pool == nil {
		return q.MaxOffset(), nil
	}
	q.commitMu.Lock()
	defer q.commitMu.Unlock()
	for _, f := range q.Files() {
		if n, err := f.Commit(leastPages); err != nil {
			if f.start < q.MinOffset() {
				continue // removed meanwhile
			}
			return q.MaxOffset(), err
		} else if n < q.size {
			break
		}
	}
	return q.MaxOffset(), nil
}

// Flush brings the readable bytes to stable storage (RocketMQ:
// MappedFileQueue.flush), through as many files as there are, and returns
// Flushed. leastPages decides per file: 0 or less flushes everything, more
// only when so many pages are unflushed; a full file is flushed anyway.
//
// After the first failure every call returns an error that wraps
// base.ErrReadOnly and the cause, and Flushed stays where it is.
func (q *Queue) Flush(leastPages int) (int64, error) {
	q.flushMu.Lock()
	defer q.flushMu.Unlock()
	if err := q.sh.fail.err(); err != nil {
		return q.Flushed(), err
	}
	// One snapshot: a fast writer must not keep this call busy for ever.
	files := q.Files()
	for i, f := range files {
		if f.End() <= q.Flushed() && !f.rewritten.Load() {
			continue
		}
		n, err := f.Flush(leastPages)
		if err != nil {
			if f.start < q.MinOffset() {
				continue // removed meanwhile
			}
			return q.Flushed(), err
		}
		to := f.start + n
		if n == q.size && i+1 < len(files) {
			to = files[i+1].start // over a gap
		}
		q.advanceFlushed(to)
		if n < q.size {
			break
		}
	}
	return q.Flushed(), nil
}

// advanceFlushed moves Flushed forward to off.
func (q *Queue) advanceFlushed(off int64) {
	for {
		old := q.flushed.Load()
		if off <= old || q.flushed.CompareAndSwap(old, off) {
			return
		}
	}
}

// lowerFlushed moves Flushed back to off; q.flushMu is held.
func (q *Queue) lowerFlushed(off int64) {
	for {
		old := q.flushed.Load()
		if off >= old || q.flushed.CompareAndSwap(old, off) {
			return
		}
	}
}

// flushThrough flushes everything up to the end of f, which is full.
func (q *Queue) flushThrough(f *File) error {
	if _, err := q.Commit(0); err != nil {
		return err
	}
	to, err := q.Flush(0)
	if err == nil && to < f.End() {
		err = fmt.Errorf("flushed only up to %d of %d", to, f.End())
	}
	return err
}

// MarkUnflushed says that nothing from offset from on is known to be on stable
// storage. After a crash of the process, but not of the system, the bytes that
// recovery finds may exist in memory only; the next Flush with 0 pages syncs
// them then. Flushed falls to from if it was above.
func (q *Queue) MarkUnflushed(from int64) {
	q.flushMu.Lock()
	defer q.flushMu.Unlock()
	for _, f := range q.Files() {
		if f.End() <= from {
			continue
		}
		f.flushMu.Lock()
		if pos := max(from-f.start, 0); pos < f.Flushed() {
			f.flushed.Store(pos)
			f.rewritten.Store(true)
		}
		f.flushMu.Unlock()
	}
	q.lowerFlushed(max(from, q.MinOffset()))
}

// Close commits and flushes everything, removes the files that were made ahead
// and lets go of the others. It returns the first error; everything is closed
// all the same. The caller's writer has stopped. Calling it again does nothing.
func (q *Queue) Close() error {
	if q.closed.Swap(true) {
		return nil
	}
	var first error
	note := func(err error) {
		if err != nil && first == nil {
			first = err
		}
	}
	if _, err := q.Commit(0); err != nil {
		note(err)
	}
	if _, err := q.Flush(0); err != nil {
		note(err)
	}
	q.removeMu.Lock()
	defer q.removeMu.Unlock()
	note(q.discardNext())
	q.nextMu.Lock()
	if q.next != nil { // its name could not be removed
		note(q.next.Close())
	}
	q.nextMu.Unlock()
	for _, f := range q.doomed {
		note(f.Remove())
		note(f.Close())
	}
	q.doomed = nil
	for _, f := range q.Files() {
		note(f.Close())
	}
	return first
}

// replaceFiles publishes a changed list.
func (q *Queue) replaceFiles(change func([]*File) []*File) {
	q.listMu.Lock()
	defer q.listMu.Unlock()
	files := change(slices.Clone(q.Files()))
	q.files.Store(&files)
}
