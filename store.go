package gantry

import (
	"context"
	"errors"
	"fmt"
	"sort"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Store is an open message store (RocketMQ: DefaultMessageStore). All methods
// may be called concurrently.
type Store struct {
	dir     string
	opts    Options
	fs      vfs.FS
	encoder message.Encoder
	delays  message.DelayLevels
	memory  int64 // of the machine, in bytes

	lock vfs.Lock // nil when opened read-only
	// emptyLogFiles were found at the end of the log: a crash leaves them when
	// the name reached the disk and the length did not.
	emptyLogFiles []string
	log           *commitlog.Log
	queues        *queueSet
	index         *indexfile.Index // nil with NoIndex
	checkpoint    *checkpoint.File

	table queueTable
	// prepared serialises puts whose properties carry queue offsets.
	prepared sync.Mutex
	ring     dispatchRing

	// dispatchMu is held while records are dispatched and while the place that
	// the dispatcher has reached is read; it guards the fields below.
	dispatchMu sync.Mutex
	dispatched dispatched
	scratch    struct{ hashes []int32 }
	topics     map[string]string // interned topic names
	removed    removals
	// removalFailed: the last removal may have left something to be done, which
	// the next does even if its topic has no queues.
	removalFailed bool
	recovering    bool
	indexedTo     message.PhysicalOffset // while recovering: what the index has already

	// batchTopics are those that had batch queues when the store was opened, and
	// were not removed since.
	batchTopics atomic.Pointer[map[string]bool]

	dispatchedTo atomic.Int64 // = dispatched.to
	readers      broadcast
	indexFull    atomic.Int64 // end time of the newest full index file that is on disk

	// gate is held for reading by those who append, so that Close can wait for
	// the last of them.
	gate sync.RWMutex

	// checkpointMu serialises checkpoints.
	checkpointMu sync.Mutex
	// cleanMu serialises retention.
	cleanMu sync.Mutex

	scheduler scheduler
	scrubbing scrubbing
	stats     stats
	recovery  Recovery

	diskFull atomic.Bool
	failed   atomic.Pointer[error] // the first failed sync; final
	closed   atomic.Bool
	closing  sync.Once
	closeErr error
	stop     context.CancelFunc
	loops    sync.WaitGroup
}

// stats are counters since opening.
type stats struct {
	puts, putBytes, skippedBytes, damaged, writeErrors atomic.Int64
}

// Stats is a snapshot of a store's counters since it was opened.
type Stats struct {
	Puts          int64 // messages stored
	PutBytes      int64 // bytes of their records
	MinOffset     message.PhysicalOffset
	EndOffset     message.PhysicalOffset // of the log
	FlushedOffset message.PhysicalOffset // everything before it is on stable storage
	DispatchedTo  message.PhysicalOffset // everything before it can be read by queue and key
	SkippedBytes  int64                  // damaged bytes that the dispatcher went around
	DamagedReads  int64
	WriteErrors   int64
	Queues        int
	DiskFull      bool  // disk use is above Options.DiskWarningPercent: puts are refused, reads go on
	Failure       error // the failed sync that made the store read-only for good, or nil
	IndexFailure  error // why the index leaves messages out, or nil
	Scrub         Scrub // see Options.ScrubRate
}

// Stats returns the counters.
func (s *Store) Stats() Stats {
	var indexFailure error
	if s.index != nil {
		indexFailure = s.index.Degraded()
	}
	return Stats{
		Puts: s.stats.puts.Load(), PutBytes: s.stats.putBytes.Load(),
		MinOffset: s.log.Min(), EndOffset: s.log.End(), FlushedOffset: s.log.Flushed(),
		DispatchedTo: message.PhysicalOffset(s.dispatchedTo.Load()),
		SkippedBytes: s.stats.skippedBytes.Load(), DamagedReads: s.stats.damaged.Load(), WriteErrors: s.stats.writeErrors.Load(),
		Queues: s.queues.Len(), DiskFull: s.diskFull.Load(), Failure: s.failure(),
		IndexFailure: indexFailure, Scrub: s.scrubbing.now(),
	}
}

// Writable returns nil when the store takes messages now, else the error with
// which puts are refused: ErrClosed, ErrReadOnly wrapping the failed sync that
// is the reason, ErrDiskFull, ErrBusy. It is what a health check asks.
func (s *Store) Writable() error { return s.mayPut() }

// Dir returns the directory the store was opened on.
func (s *Store) Dir() string { return s.dir }

// Recovery returns what opening found and did.
func (s *Store) Recovery() Recovery { return s.recovery }

// Range returns the log's limits: the start of its first file and its end.
func (s *Store) Range() (first, end message.PhysicalOffset) { return s.log.Min(), s.log.End() }

// EarliestTime returns the store time in ms of the oldest record of the log.
// ErrNotFound: the log is empty.
func (s *Store) EarliestTime() (int64, error) {
	for _, f := range s.log.Files() {
		t, err := s.log.StoreTimeOfFile(f.Start)
		if err != nil || t > 0 { // 0: the file is one blank record, or empty
			return t, err
		}
	}
	return 0, fmt.Errorf("earliest store time: the log is empty: %w", ErrNotFound)
}

// failure returns the failed sync that made the store read-only, or nil.
func (s *Store) failure() error {
	if p := s.failed.Load(); p != nil {
		return *p
	}
	return s.log.Err()
}

// fail makes the store read-only for good.
func (s *Store) fail(err error) {
	if !s.failed.CompareAndSwap(nil, &err) {
		return
	}
	s.opts.Logger.Error("store is read-only from now on", "err", err)
	if s.opts.Events.Failed != nil {
		s.opts.Events.Failed(err)
	}
}

func (s *Store) reportWriteError(what string, err error) {
	s.stats.writeErrors.Add(1)
	if errors.Is(err, ErrReadOnly) {
		s.fail(err)
		s.opts.Logger.Error("write failed for good", "what", what, "err", err)
	} else {
		s.opts.Logger.Error("write failed, will be tried again", "what", what, "err", err)
	}
	if s.opts.Events.WriteError != nil {
		s.opts.Events.WriteError(what, err)
	}
}

func (s *Store) reportDamage(err error) {
	s.stats.damaged.Add(1)
	s.opts.Logger.Error("damaged data", "err", err)
	if s.opts.Events.Damage != nil {
		s.opts.Events.Damage(err)
	}
}

// wakeReaders wakes everybody who waits for the dispatcher.
func (s *Store) wakeReaders() { s.readers.wake() }

// intern returns one copy of each topic name that the dispatcher meets.
func (s *Store) intern(topic []byte) string {
	if name, ok := s.topics[string(topic)]; ok {
		return name
	}
	name := string(topic)
	s.topics[name] = name
	return name
}

// isBatchTopic reports whether the topic has batch consume queues.
func (s *Store) isBatchTopic(topic string) bool {
	return s.queueKind(topic) == consumequeue.Batch
}

func (s *Store) queueKind(topic string) consumequeue.Kind {
	if s.opts.IsBatchTopic(topic) {
		return consumequeue.Batch
	}
	return consumequeue.Simple
}

// StoreTimeAt returns the store time in ms of the message at a queue offset.
func (s *Store) StoreTimeAt(topic string, queueID int32, off message.QueueOffset) (int64, error) {
	at, err := s.PhysicalOffsetOf(topic, queueID, off)
	if err != nil {
		return 0, err
	}
	t, err := s.storeTime(at)
	if err != nil {
		return 0, fmt.Errorf("store time of %s/%d offset %d: %w", topic, queueID, off, err)
	}
	return t, nil
}

func sortQueues(q []QueueInfo) {
	sort.Slice(q, func(i, j int) bool {
		if q[i].Topic != q[j].Topic {
			return q[i].Topic < q[j].Topic
		}
		return q[i].QueueID < q[j].QueueID
	})
}

// broadcast wakes any number of waiters; waking costs nothing when nobody
// waits.
type broadcast struct {
	waiting atomic.Bool
	mu      sync.Mutex
	ch      chan struct{}
}

// wait returns a channel that the next wake closes. Take it before looking at
// what you wait for.
func (b *broadcast) wait() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	b.waiting.Store(true)
	return b.ch
}

func (b *broadcast) wake() {
	if !b.waiting.Load() {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.waiting.Store(false)
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}
