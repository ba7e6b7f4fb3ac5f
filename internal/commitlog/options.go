package commitlog

import (
	"errors"
	"log/slog"
	"time"

	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

var (
	// ErrFlushTimeout: the records are in the log and will stay there, but
	// were not confirmed to be on stable storage in time (RocketMQ:
	// FLUSH_DISK_TIMEOUT).
	ErrFlushTimeout = errors.New("stored, but not confirmed on disk in time")
	// ErrBehind: an append had to begin a new file while the one before the
	// last was still not flushed. Nothing was stored; try again later.
	ErrBehind = errors.New("flushing is too far behind")

	errNotStarted = errors.New("the end of the commit log has not been set")
	errStarted    = errors.New("the commit log is being written")
)

// FlushMode says how records come to stable storage.
type FlushMode int

// The flush modes (RocketMQ: flushDiskType).
const (
	FlushAsync FlushMode = iota // every FlushInterval
	FlushSync                   // as soon as somebody waits for it
)

// DefaultFileSize is the size of the files of a new log: 1 GiB (RocketMQ:
// mappedFileSizeCommitLog).
const DefaultFileSize = 1 << 30

// Options say where a Log lies and how it is written. FS and Dirs are
// required, zero fields have the defaults named here.
type Options struct {
	FS vfs.FS
	// Dirs hold the files; new ones are spread over them. ReadOnlyDirs hold
	// more, which are never changed. DirFull leaves directories out; see
	// mappedfile.Options.
	Dirs, ReadOnlyDirs []string
	DirFull            func(dir string) bool
	// FileSize is the length of each file; 0 means that of the existing files,
	// DefaultFileSize when there are none.
	FileSize int64

	Flush FlushMode
	// ReadUnflushed makes Confirmed ignore whether records are flushed.
	// RocketMQ: readUnCommitted.
	ReadUnflushed bool
	// Every FlushInterval (500 ms) the flusher syncs, if FlushLeastPages (4)
	// pages of 4 KiB are waiting or, once per FlushThoroughInterval (10 s),
	// whatever waits. With FlushSync it syncs whatever waits.
	FlushInterval, FlushThoroughInterval time.Duration
	FlushLeastPages                      int
	// SyncFlushTimeout bounds WaitFlushed; 0 means 5 s.
	SyncFlushTimeout time.Duration

	// WriteWithoutMmap writes and reads positionally.
	WriteWithoutMmap bool
	// PoolSize buffers of FileSize take the appends and are committed to the
	// files every CommitInterval (200 ms), when CommitLeastPages (4) pages
	// wait or, once per CommitThoroughInterval (200 ms), in any case. 0
	// buffers: appends go to the files. RocketMQ: transientStorePoolEnable.
	PoolSize                               int
	FailWithoutBuffer                      bool // RocketMQ: fastFailIfNoBufferInStorePool
	CommitInterval, CommitThoroughInterval time.Duration
	CommitLeastPages                       int

	// See mappedfile.Options.
	Warm, LockMemory, RandomAccess bool
	WarmSyncPages                  int
	ReserveStep                    int64
	// Allocator configures the goroutine that makes files ahead of need;
	// CreateInline does without it: the append that needs a file makes it.
	Allocator    mappedfile.AllocatorOptions
	CreateInline bool

	Now    func() int64 // ms since 1970; nil: the system clock
	Logger *slog.Logger // nil: discard
	// OnFailure is called once, when the log has become read-only because a
	// sync failed. It must not call the Log.
	OnFailure func(err error)
}

func (o Options) withDefaults() Options {
	duration := func(d *time.Duration, v time.Duration) {
		if *d <= 0 {
			*d = v
		}
	}
	duration(&o.FlushInterval, 500*time.Millisecond)
	duration(&o.FlushThoroughInterval, 10*time.Second)
	duration(&o.SyncFlushTimeout, 5*time.Second)
	duration(&o.CommitInterval, 200*time.Millisecond)
	duration(&o.CommitThoroughInterval, 200*time.Millisecond)
	if o.FlushLeastPages <= 0 {
		o.FlushLeastPages = 4
	}
	if o.CommitLeastPages <= 0 {
		o.CommitLeastPages = 4
	}
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixMilli() }
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.OnFailure == nil {
		o.OnFailure = func(error) {}
	}
	if o.Allocator.Logger == nil {
		o.Allocator.Logger = o.Logger
	}
	return o
}

// Report says what Open noticed about the files and lived with.
type Report = mappedfile.Report

// ScanOptions say how thoroughly records are checked while the log is read.
type ScanOptions struct {
	// Check names what is verified besides lengths and position.
	Check message.CheckOptions
	// Progress is told how many bytes of how many have been read, about every
	// 16 MiB, by one goroutine at a time; nil: nobody is told.
	Progress func(done, total int64)
	// Workers is how many files FindTail reads at a time; 0 means 2.
	Workers int
}
