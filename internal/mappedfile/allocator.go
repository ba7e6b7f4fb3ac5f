package mappedfile

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/internal/base"
)

// AllocatorOptions configure an Allocator. The zero value is ready for use.
type AllocatorOptions struct {
	// Timeout is how long a writer waits for the file that it needs; 0 means
	// 5 s. After it the writer gets ErrCreateTimeout and may ask again.
	Timeout time.Duration
	// PopulateDistance is how many bytes in front of the writer have their
	// pages present; 0 means 16 MiB, negative none.
	PopulateDistance int64
	// PopulateChunk is how many bytes are made present in one go; 0 means
	// 1 MiB. Between chunks the worker looks for more urgent work, and the
	// address space of the process is free for others to change.
	PopulateChunk int64
	Logger        *slog.Logger // nil: discard
}

func (o AllocatorOptions) withDefaults() AllocatorOptions {
	if o.Timeout <= 0 {
		o.Timeout = 5 * time.Second
	}
	if o.PopulateDistance == 0 {
		o.PopulateDistance = 16 << 20
	}
	o.PopulateDistance = max(o.PopulateDistance, 0)
	if o.PopulateChunk <= 0 {
		o.PopulateChunk = 1 << 20
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o
}

// Allocator makes the files of queues before they are needed (RocketMQ:
// AllocateMappedFileService). A request for one file also starts the file
// behind it, and between requests the allocator's one worker keeps reserving
// blocks and making pages present in front of the writers.
//
// A creation that fails, or panics, reaches whoever waits for it as an error;
// the next request tries again. Prepared files that nobody took are removed by
// Queue.Close and by Close. All methods may be called concurrently.
type Allocator struct {
	opt   AllocatorOptions
	wake  chan struct{} // capacity 1: there are jobs
	kicks chan *File    // writers that came near the end of what is prepared
	quit  chan struct{}
	done  chan struct{}

	urgent atomic.Int32 // jobs not begun: the worker leaves a populate loop for them

	mu struct {
		sync.Mutex
		closed bool
		jobs   []*job           // not begun, in order of arrival
		files  map[segment]*job // begun or not, until taken
	}
}

// segment names a file that is to be made. The directory is chosen when it is
// made, so the name of the file is not enough.
type segment struct {
	queue *Queue
	start int64
}

// job is one creation. file and err may be read after done is closed.
type job struct {
	segment
	done    chan struct{}
	file    *File
	err     error
	waiters int  // guarded by Allocator.mu
	dropped bool // guarded by Allocator.mu: nobody wants the file any more
}

// NewAllocator starts an allocator. Close it after the queues that use it.
func NewAllocator(opt AllocatorOptions) *Allocator {
	a := &Allocator{
		opt:   opt.withDefaults(),
		wake:  make(chan struct{}, 1),
		kicks: make(chan *File, 64),
		quit:  make(chan struct{}),
		done:  make(chan struct{}),
	}
	a.mu.files = make(map[segment]*job)
	go a.run()
	return a
}

// next returns the file that begins at start, waiting for it within the
// timeout, and sees to it that the file at ahead is being made (negative:
// none). On an error the next call starts over.
func (a *Allocator) next(q *Queue, start, ahead int64) (*File, error) {
	a.mu.Lock()
	if a.mu.closed {
		a.mu.Unlock()
		return nil, fmt.Errorf("allocator: %w", base.ErrClosed)
	}
	j := a.requestLocked(segment{q, start})
	if ahead >= 0 {
		a.requestLocked(segment{q, ahead})
	}
	j.waiters++
	a.mu.Unlock()

	t := time.NewTimer(a.opt.Timeout)
	defer t.Stop()
	select {
	case <-j.done:
	case <-t.C:
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	j.waiters--
	select {
	case <-j.done:
	default:
		return nil, fmt.Errorf("segment %d: %w after %v", start, ErrCreateTimeout, a.opt.Timeout)
	}
	if j.err != nil {
		return nil, j.err
	}
	delete(a.mu.files, j.segment)
	return j.file, nil
}

// prepare asks for the file that begins at start without waiting for it.
func (a *Allocator) prepare(q *Queue, start int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.mu.closed {
		a.requestLocked(segment{q, start})
	}
}

// requestLocked finds or queues the job for s. There are at most two jobs per
// queue, the file a writer waits for and the one behind it.
func (a *Allocator) requestLocked(s segment) *job {
	if j := a.mu.files[s]; j != nil {
		return j
	}
	j := &job{segment: s, done: make(chan struct{})}
	a.mu.files[s] = j
	a.mu.jobs = append(a.mu.jobs, j)
	a.urgent.Add(1)
	select {
	case a.wake <- struct{}{}:
	default:
	}
	return j
}

// discard removes the files prepared for q that nobody took, also one that is
// being made at the moment. It returns the first error of a removal.
func (a *Allocator) discard(q *Queue) error {
	var mine []*job
	a.mu.Lock()
	for s, j := range a.mu.files {
		if s.queue == q {
			j.dropped = true
			delete(a.mu.files, s)
			mine = append(mine, j)
		}
	}
	a.mu.jobs = slices.DeleteFunc(a.mu.jobs, func(j *job) bool {
		if !j.dropped {
			return false
		}
		a.urgent.Add(-1)
		j.err = fmt.Errorf("segment %d: %w", j.start, base.ErrClosed)
		close(j.done)
		return true
	})
	a.mu.Unlock()
	// Newest first, so that a crash leaves no hole.
	slices.SortFunc(mine, func(x, y *job) int {
		if x.start > y.start {
			return -1
		}
		return 1
	})
	var first error
	for _, j := range mine {
		<-j.done
		if j.file == nil {
			continue
		}
		if err := j.file.Remove(); err != nil && first == nil {
			first = err
		}
		_ = j.file.Close() // also when its name stays: nobody else has it
	}
	return first
}

// kick asks the worker to prepare the next part of f. It never blocks: a hint
// that finds the worker busy is given again later.
func (a *Allocator) kick(f *File) {
	if !f.kicked.CompareAndSwap(false, true) {
		return
	}
	select {
	case a.kicks <- f:
	default:
		f.kicked.Store(false)
	}
}

// Close stops the worker, waits for it and removes the prepared files that
// nobody took. Calling it again does nothing.
func (a *Allocator) Close() error {
	a.mu.Lock()
	if a.mu.closed {
		a.mu.Unlock()
		<-a.done
		return nil
	}
	a.mu.closed = true
	owners := make(map[*Queue]bool)
	for s := range a.mu.files {
		owners[s.queue] = true
	}
	a.mu.Unlock()
	close(a.quit)
	var first error
	for q := range owners {
		if err := a.discard(q); err != nil && first == nil {
			first = err
		}
	}
	<-a.done
	return first
}

// run is the worker. Creations come before populating.
func (a *Allocator) run() {
	defer close(a.done)
	for {
		if j := a.take(); j != nil {
			a.finish(j)
			continue
		}
		select {
		case <-a.quit:
			return
		case <-a.wake:
		case f := <-a.kicks:
			f.kicked.Store(false)
			if a.ahead(f, a.opt.PopulateDistance) {
				a.kick(f)
			}
		}
	}
}

// take returns the next job, nil when there is none.
func (a *Allocator) take() *job {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.mu.jobs) == 0 {
		return nil
	}
	j := a.mu.jobs[0]
	a.mu.jobs = slices.Delete(a.mu.jobs, 0, 1)
	a.urgent.Add(-1)
	return j
}

// finish makes the file of a job and publishes the outcome.
func (a *Allocator) finish(j *job) {
	j.file, j.err = a.create(j)
	if j.err == nil {
		// The first pages, so that the writer does not begin with faults.
		if a.ahead(j.file, min(a.opt.PopulateDistance, a.opt.PopulateChunk)) {
			a.kick(j.file)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if j.err != nil && !j.dropped {
		delete(a.mu.files, j.segment)
		if j.waiters == 0 {
			a.opt.Logger.Warn("prepare next segment", "start", j.start, "err", j.err)
		}
	}
	close(j.done)
}

// create turns a panic into an error, so that one bad creation does not end
// all later ones (store-behaviour A10).
func (a *Allocator) create(j *job) (f *File, err error) {
	defer func() {
		if r := recover(); r != nil {
			f, err = nil, fmt.Errorf("create segment %d: panic: %v", j.start, r)
		}
	}()
	return j.queue.createFile(j.start, a.stopping)
}

// ahead works in front of the writer of f, up to distance bytes, until there
// is something to create. It returns true when it did not finish.
func (a *Allocator) ahead(f *File, distance int64) (more bool) {
	defer func() {
		if r := recover(); r != nil {
			a.opt.Logger.Error("prepare pages ahead of the writer: panic", "file", f.path, "err", r)
		}
	}()
	return f.prepareAhead(distance, a.opt.PopulateChunk, func() bool {
		return a.urgent.Load() > 0 || a.stopping()
	})
}

// stopping reports whether Close was called.
func (a *Allocator) stopping() bool {
	select {
	case <-a.quit:
		return true
	default:
		return false
	}
}
