package consumequeue

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Kind is the unit layout of a table.
type Kind uint8

// The kinds.
const (
	Simple Kind = iota // 20-byte units, slot = queue offset (RocketMQ: SimpleCQ)
	Batch              // 46-byte units, several messages in one (RocketMQ: BatchCQ)
)

// unitSize is the number of bytes of a unit.
func (k Kind) unitSize() int {
	if k == Batch {
		return BatchUnitSize
	}
	return UnitSize
}

// String returns the name that upstream's queue.type has.
func (k Kind) String() string {
	if k == Batch {
		return "BatchCQ"
	}
	return "SimpleCQ"
}

// The defaults of Options, which are upstream's where upstream has them.
const (
	DefaultFileSize      = 300_000 * UnitSize      // mappedFileSizeConsumeQueue
	DefaultBatchFileSize = 300_000 * BatchUnitSize // mapperFileSizeBatchConsumeQueue
	DefaultExtFileSize   = 48 << 20                // mappedFileSizeConsumeQueueExt
	DefaultMaxOpenFiles  = 256
	DefaultBufferBytes   = 16 << 20
	DefaultMaxGap        = 3_000_000
)

// ErrRocksDB is returned by OpenTable for a directory that holds the database
// of a broker with storeType=defaultRocksDB. Its queues can be rebuilt from the
// commit log in another directory.
var ErrRocksDB = errors.New("consume queues are in a RocksDB database, which is not supported")

// ErrName is returned for a topic that cannot be the name of a folder.
var ErrName = errors.New("not usable as a folder name")

// GapError refuses a unit that would leave more slots empty than
// Options.MaxGap. Nothing was changed.
type GapError struct {
	Topic    string
	QueueID  int32
	From, To message.QueueOffset // the slots [From, To) would have stayed empty
}

// Error names the queue and the slots.
func (e *GapError) Error() string {
	return fmt.Sprintf("consume queue %s/%d: unit for queue offset %d would leave %d slots empty",
		e.Topic, e.QueueID, e.To, e.To-e.From)
}

// Options says where a table is and how it behaves. The zero value of a field
// means its default.
type Options struct {
	// FS holds the files; nil is the operating system.
	FS vfs.FS
	// Dir is the folder of the topics: consumequeue or batchconsumequeue.
	Dir string
	// Kind is the layout of the units.
	Kind Kind
	// FileSize is the length of files in a table that has none yet, rounded
	// up to a multiple of the unit size. Existing files decide for themselves;
	// when they differ from FileSize the Report says so. 0 is upstream's
	// default, DefaultFileSize or DefaultBatchFileSize.
	FileSize int64
	// ExtDir is the folder consumequeue_ext. Empty means that PutExt stores
	// plain tags codes and that GetExt finds nothing.
	ExtDir string
	// ExtFileSize is the length of extension files of queues that have none
	// yet. 0 is DefaultExtFileSize.
	ExtFileSize int64
	// MaxOpenFiles bounds the open handles. 0 is DefaultMaxOpenFiles. Each
	// goroutine inside a call may hold one more.
	MaxOpenFiles int
	// BufferBytes bounds the memory of units that were put and not yet handed
	// to the operating system, over all queues. At the bound a Put writes out
	// the oldest. 0 is DefaultBufferBytes.
	BufferBytes int64
	// MaxGap is the largest number of slots that one Put may leave empty; more
	// is a *GapError, because the queue offset in a record may be damaged.
	// 0 is DefaultMaxGap.
	MaxGap int64
	// Workers is the number of goroutines for opening, syncing and trimming.
	// 0 is twice GOMAXPROCS.
	Workers int
	// Logger gets warnings about foreign names, sizes and gaps; nil discards.
	Logger *slog.Logger
	// OnGap is told about slots [from, to) that a Put left empty. It is called
	// by the goroutine that puts, with no lock held.
	OnGap func(topic string, id int32, from, to message.QueueOffset)
	// Progress is told by OpenTable how many of how many queues are open. It
	// is called now and then, never by two goroutines at once.
	Progress func(done, total int)
}

// withDefaults fills in defaults and reports what contradicts itself.
func (o Options) withDefaults() (Options, error) {
	if o.Kind > Batch {
		return o, fmt.Errorf("consume queue kind %d is unknown", o.Kind)
	}
	if o.Dir == "" {
		return o, errors.New("consume queue directory is not set")
	}
	if o.FileSize < 0 || o.FileSize > math.MaxInt64/4 || o.ExtFileSize < 0 || o.ExtFileSize > math.MaxInt64/4 {
		return o, fmt.Errorf("consume queue file size %d or %d is out of range", o.FileSize, o.ExtFileSize)
	}
	if o.ExtDir != "" && o.Kind == Batch {
		return o, errors.New("batch consume queues have no extension")
	}
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.FileSize == 0 {
		o.FileSize = DefaultFileSize
		if o.Kind == Batch {
			o.FileSize = DefaultBatchFileSize
		}
	}
	if u := int64(o.Kind.unitSize()); o.FileSize%u != 0 {
		o.FileSize += u - o.FileSize%u
	}
	if o.ExtFileSize == 0 {
		o.ExtFileSize = DefaultExtFileSize
	}
	if o.MaxOpenFiles <= 0 {
		o.MaxOpenFiles = DefaultMaxOpenFiles
	}
	if o.BufferBytes <= 0 {
		o.BufferBytes = DefaultBufferBytes
	}
	if o.MaxGap <= 0 {
		o.MaxGap = DefaultMaxGap
	}
	if o.Workers <= 0 {
		o.Workers = 2 * runtime.GOMAXPROCS(0)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

// Report says what OpenTable found. Paths are as they were opened.
type Report struct {
	FileSize       int64    // of the table's files
	ConfiguredSize int64    // Options.FileSize where it differs from FileSize, else 0
	Queues         int      // queues with at least one file
	Files          int      // their files
	Foreign        []string // names that are not part of a queue; ignored
	Gaps           []string // files that are missing between two others
	Short          []string // last files below FileSize; they grow when written
	Long           []string // last files above FileSize with zeros there
}

// RemovedFile is a file that retention removed, or would remove.
type RemovedFile struct {
	Path    string
	Topic   string
	QueueID int32
	// First is the queue offset of the file's first slot; in a batch queue the
	// number of that slot, of an extension's file the queue's new minimum.
	First message.QueueOffset
	Size  int64 // bytes
}

// errRemoved is the answer of a queue that RemoveTopic or RemoveQueue took away.
var errRemoved = fmt.Errorf("consume queue was removed: %w", base.ErrNotFound)
