package gantry

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// FlushMode says when Put returns relative to durability.
type FlushMode int

// The flush modes (RocketMQ: flushDiskType).
const (
	// FlushAsync: Put returns when the message is in the page cache; it is on
	// stable storage within FlushInterval or so. It survives the end of the
	// process, not of the machine.
	FlushAsync FlushMode = iota
	// FlushSync: Put returns when the message is on stable storage, unless the
	// message's WAIT property is false.
	FlushSync
)

// DamagePolicy says what opening does about records that are valid but lie
// behind damage in the commit log.
type DamagePolicy int

// The damage policies.
const (
	// RefuseDamage: Open fails with a CorruptError and changes nothing.
	RefuseDamage DamagePolicy = iota
	// QuarantineDamage: everything behind the damage is copied into
	// quarantine/ below the store, the log ends at the damage, and Recovery
	// says so. Nothing is deleted without a copy.
	QuarantineDamage
)

// Options configure a store. The zero value is ready to use: zero fields have
// the defaults named here, which are RocketMQ's own where it has one.
type Options struct {
	// CommitLogFileSize is the size of each commit log file in bytes. 0 means
	// that of the existing files, 1 GiB for a new store. RocketMQ:
	// mappedFileSizeCommitLog. It must match an existing store.
	CommitLogFileSize int64
	// ConsumeQueueFileSize likewise; it is rounded up to a multiple of 20
	// bytes. 0 means that of the existing files, 6 000 000 for a new store.
	ConsumeQueueFileSize int64
	// BatchConsumeQueueFileSize and ConsumeQueueExtFileSize are those of new
	// batch queues and queue extensions; 0 means 13 800 000 and 48 MiB.
	BatchConsumeQueueFileSize, ConsumeQueueExtFileSize int64
	// IndexSlots and IndexEntries are the geometry of new index files: 0 means
	// that of the newest existing file, 5 000 000 and 20 000 000 in a new
	// store. Existing files keep theirs. RocketMQ: maxHashSlotNum, maxIndexNum.
	IndexSlots, IndexEntries int32

	// CommitLogDirs are the directories of the commit log, for stores that
	// spread it; empty means commitlog below the store. RocketMQ:
	// storePathCommitLog. ReadOnlyCommitLogDirs are read but not written.
	CommitLogDirs, ReadOnlyCommitLogDirs []string

	Flush FlushMode // zero is FlushAsync
	// FlushInterval and FlushThoroughInterval are the pauses between flushes
	// of FlushLeastPages dirty pages of 4 KiB, and of everything. 0 means
	// 500 ms, 10 s and 4.
	FlushInterval, FlushThoroughInterval time.Duration
	FlushLeastPages                      int
	// SyncFlushTimeout bounds the wait of a put under FlushSync; 0 means 5 s.
	SyncFlushTimeout time.Duration
	// CheckpointInterval is the pause between checkpoints that cover queues
	// and index too; 0 means 10 s. It bounds what opening after a crash reads.
	CheckpointInterval time.Duration

	// WriteWithoutMmap writes the log by positional writes; mappings are not
	// used at all. RocketMQ: writeWithoutMmap.
	WriteWithoutMmap bool
	// TransientStorePool appends into TransientStorePoolSize buffers of
	// CommitLogFileSize (0 means 5) that a committer writes to the files every
	// CommitInterval (0 means 200 ms). What is not committed is lost even when
	// only the process ends. RocketMQ: transientStorePoolEnable.
	TransientStorePool     bool
	TransientStorePoolSize int
	CommitInterval         time.Duration
	// WarmUpFiles touches every page of a new log file ahead of use;
	// LockMemory locks it. RocketMQ: warmMapedFileEnable.
	WarmUpFiles, LockMemory bool
	// RandomAccess advises the kernel against read ahead. RocketMQ:
	// dataReadAheadEnable=false.
	RandomAccess bool

	// MaxMessageSize is the largest body in bytes; 0 means 4 MiB.
	MaxMessageSize int
	// BusyTimeout refuses puts with ErrBusy while one append has held the lock
	// for longer; 0 means 1 s. RocketMQ: osPageCacheBusyTimeOutMills.
	BusyTimeout time.Duration
	// PropertyCRC appends a CRC of the whole record to its properties, which
	// RocketMQ reads from 5.2 on; VerifyPropertyCRC makes recovery require it.
	PropertyCRC, VerifyPropertyCRC bool
	// LongTopics gives every topic the 255 bytes of retry topics instead of
	// 127. Brokers refuse such messages, but there are stores that hold some:
	// it is for copying those.
	LongTopics bool
	// SkipCRC makes recovery and reading trust bodies. RocketMQ:
	// checkCRCOnRecover=false.
	SkipCRC bool

	// NoIndex stores messages without indexing keys. RocketMQ:
	// messageIndexEnable=false. NoTagIndex leaves out the tags, which RocketMQ
	// indexes from 5.4.0 on.
	NoIndex, NoTagIndex bool
	// IndexLocation is the zone of index file names; nil means time.Local.
	IndexLocation *time.Location
	// QueueExt writes consume queue extensions. RocketMQ:
	// enableConsumeQueueExt.
	QueueExt bool
	// LightQueues dispatches a message to the %LMQ% queues that its
	// INNER_MULTI_DISPATCH property names. RocketMQ: enableLmq and
	// enableMultiDispatch.
	LightQueues bool
	// IsBatchTopic says which topics have batch consume queues, besides those
	// with such a queue on disk already and those that config/topics.json
	// marks with queue.type=BatchCQ. nil means no others.
	IsBatchTopic func(topic string) bool
	// ReadUnflushed lets consumers see messages under FlushSync before they
	// are on stable storage. RocketMQ: readUnCommitted.
	ReadUnflushed bool

	// DelayLevels are the delays of the DELAY property; empty means RocketMQ's
	// eighteen. NoDelay stores messages with a delay level as they are: the
	// caller rewrites them itself, or wants them raw. NoDelivery leaves delayed
	// messages where they wait: another process will deliver them.
	DelayLevels         string
	NoDelay, NoDelivery bool

	// Reserved is how long records are kept; 0 means 72 h, negative for ever.
	// RocketMQ: fileReservedTime.
	Reserved time.Duration
	// DeleteWhen lists the hours of the day (local time) in which files go for
	// their age, "04" or "04;16". Empty means "04". RocketMQ: deleteWhen.
	DeleteWhen string
	// CleanInterval is the pause between looks at age and disk; 0 means 10 s,
	// negative: only when Clean is called.
	CleanInterval time.Duration
	// DeleteBatch bounds the log files removed in one pass; 0 means 10.
	DeleteBatch int
	// DiskMaxUsedPercent, DiskCleanForciblyPercent and DiskWarningPercent are
	// the disk use above which files go for their age at any hour, go whatever
	// their age, and puts are refused; 0 means 75, 85 and 90.
	DiskMaxUsedPercent, DiskCleanForciblyPercent, DiskWarningPercent float64
	// KeepUnexpired never removes a file before its age. RocketMQ:
	// cleanFileForciblyEnable=false. KeepBytes is a floor: forced cleaning
	// leaves at least that much of the log.
	KeepUnexpired bool
	KeepBytes     int64

	// ScrubRate lets the store verify what it holds in the background, before
	// a consumer meets damage: so many bytes a second, see Store.Scrub. 0 means
	// not at all, because reading a store through costs page cache and disk
	// time that only its operator can judge. At 4 MiB/s a terabyte takes three
	// days. ScrubInterval is the pause from the end of one pass to the next; 0
	// means a day.
	ScrubRate     int64
	ScrubInterval time.Duration

	// StoreHost is the address that records and message ids carry when the
	// message has none; the zero value means 127.0.0.1:10911.
	StoreHost netip.AddrPort

	// Damage says what to do about valid records behind damage.
	Damage DamagePolicy
	// AllowEmptyLog opens a store whose queues exist while its log is empty
	// (see ErrQueuesWithoutLog) and removes the queues.
	AllowEmptyLog bool
	// ReadOnly opens without changing anything in the directory: what recovery
	// would write stays in memory, or in a temporary file when it is much. Puts are refused. It fails with ErrLocked
	// when another process holds the store. Damage in the middle of the log is
	// a warning, and what is intact behind it is shown.
	ReadOnly bool
	// Live, with ReadOnly, reads beside the process that holds the store: what
	// was there at the moment of opening.
	Live bool
	// NoCreate fails with fs.ErrNotExist when there is no store in dir.
	NoCreate bool

	// MaxOpenQueueFiles bounds the file handles for consume queues; 0 means
	// 256.
	MaxOpenQueueFiles int

	Now      func() int64   // ms since 1970; nil: the system clock
	FS       vfs.FS         // nil: the operating system; internal type, so ours to set
	Logger   *slog.Logger   // nil: discard
	Events   Events         // zero: nothing is reported
	Progress func(Progress) // called about every second of a long opening; nil: nothing
}

// Progress is how far opening a store has come.
type Progress struct {
	Step        string // "checking the commit log", "opening consume queues", "replaying"
	Done, Total int64
	Unit        string // of Done and Total: "bytes" or "queues"
}

const defaultMaxMessageSize = 4 << 20

func setDefault[T comparable](p *T, v T) {
	var zero T
	if *p == zero {
		*p = v
	}
}

// withDefaults returns a copy of o, which may be nil, with zero fields set.
func (o *Options) withDefaults(dir string) Options {
	var d Options
	if o != nil {
		d = *o
	}
	if len(d.CommitLogDirs) == 0 {
		d.CommitLogDirs = []string{filepath.Join(dir, "commitlog")}
	}
	setDefault(&d.FlushInterval, 500*time.Millisecond)
	setDefault(&d.FlushThoroughInterval, 10*time.Second)
	setDefault(&d.FlushLeastPages, 4)
	setDefault(&d.SyncFlushTimeout, 5*time.Second)
	setDefault(&d.CheckpointInterval, 10*time.Second)
	setDefault(&d.TransientStorePoolSize, 5)
	setDefault(&d.CommitInterval, 200*time.Millisecond)
	setDefault(&d.MaxMessageSize, defaultMaxMessageSize)
	setDefault(&d.BusyTimeout, time.Second)
	setDefault(&d.IndexLocation, time.Local)
	setDefault(&d.DelayLevels, message.DefaultDelayLevels)
	setDefault(&d.Reserved, 72*time.Hour)
	setDefault(&d.DeleteWhen, "04")
	setDefault(&d.CleanInterval, 10*time.Second)
	setDefault(&d.DeleteBatch, 10)
	setDefault(&d.ScrubInterval, 24*time.Hour)
	setDefault(&d.DiskMaxUsedPercent, 75)
	setDefault(&d.DiskCleanForciblyPercent, 85)
	setDefault(&d.DiskWarningPercent, 90)
	setDefault(&d.StoreHost, netip.MustParseAddrPort("127.0.0.1:10911"))
	setDefault(&d.MaxOpenQueueFiles, 256)
	if d.Now == nil {
		d.Now = func() int64 { return time.Now().UnixMilli() }
	}
	if d.FS == nil {
		d.FS = vfs.OS()
	}
	if d.Logger == nil {
		d.Logger = slog.New(slog.DiscardHandler)
	}
	if d.Progress == nil {
		d.Progress = func(Progress) {}
	}
	return d
}

// Validate names every contradiction in o at once, before the disk is touched.
// Open calls it.
func (o *Options) Validate() error {
	d := o.withDefaults("")
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	positive := func(name string, v int64) {
		if v < 0 {
			bad("%s is %d; it must not be negative", name, v)
		}
	}
	positive("CommitLogFileSize", d.CommitLogFileSize)
	positive("ConsumeQueueFileSize", d.ConsumeQueueFileSize)
	positive("BatchConsumeQueueFileSize", d.BatchConsumeQueueFileSize)
	positive("ConsumeQueueExtFileSize", d.ConsumeQueueExtFileSize)
	positive("IndexSlots", int64(d.IndexSlots))
	positive("MaxMessageSize", int64(d.MaxMessageSize))
	positive("KeepBytes", d.KeepBytes)
	positive("ScrubRate", d.ScrubRate)
	positive("FlushLeastPages", int64(d.FlushLeastPages))
	positive("TransientStorePoolSize", int64(d.TransientStorePoolSize))
	positive("DeleteBatch", int64(d.DeleteBatch))
	positive("MaxOpenQueueFiles", int64(d.MaxOpenQueueFiles))
	for _, p := range []struct {
		name string
		v    time.Duration
	}{
		{"FlushInterval", d.FlushInterval}, {"FlushThoroughInterval", d.FlushThoroughInterval},
		{"SyncFlushTimeout", d.SyncFlushTimeout}, {"CheckpointInterval", d.CheckpointInterval},
		{"CommitInterval", d.CommitInterval}, {"BusyTimeout", d.BusyTimeout},
		{"ScrubInterval", d.ScrubInterval},
	} {
		if p.v < 0 {
			bad("%s is %v; it must not be negative", p.name, p.v)
		}
	}
	if d.IndexEntries != 0 && d.IndexEntries < 2 {
		bad("IndexEntries is %d; a file needs at least 2, entry 0 is never used", d.IndexEntries)
	}
	if s := d.CommitLogFileSize; s != 0 && s < message.MinRecordSize+8 {
		bad("CommitLogFileSize is %d; not even one record fits", s)
	}
	if d.TransientStorePool && d.WriteWithoutMmap {
		bad("TransientStorePool and WriteWithoutMmap exclude each other")
	}
	if _, err := message.ParseDelayLevels(d.DelayLevels); err != nil {
		bad("DelayLevels: %w", err)
	}
	if _, err := parseHours(d.DeleteWhen); err != nil {
		bad("DeleteWhen: %w", err)
	}
	for _, p := range []struct {
		name string
		v    float64
	}{{"DiskMaxUsedPercent", d.DiskMaxUsedPercent}, {"DiskCleanForciblyPercent", d.DiskCleanForciblyPercent}, {"DiskWarningPercent", d.DiskWarningPercent}} {
		if p.v < 0 || p.v > 100 {
			bad("%s is %g; it must be between 0 and 100", p.name, p.v)
		}
	}
	if d.Live && !d.ReadOnly {
		bad("Live needs ReadOnly")
	}
	return errors.Join(errs...)
}
