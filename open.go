package gantry

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs/overlayfs"
	"github.com/gantrymq/gantry/message"
)

// Names below the root of a store; upstream's.
const (
	lockFileName       = "lock"
	checkpointFileName = "checkpoint"
	indexDir           = "index"
)

// Open opens or creates the store in dir and recovers it. opts may be nil. The
// directory is locked against other processes, Java brokers among them, before
// anything in it is read. When Open fails, the directory is as it was.
// Cancelling ctx stops recovery; the directory is then left as a crash would
// leave it.
func Open(ctx context.Context, dir string, opts *Options) (*Store, error) {
	if opts == nil {
		opts = &Options{}
	}
	if err := opts.Validate(); err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	s, err := openStore(ctx, dir, opts)
	// Beside a broker old files go while they are read.
	for tries := 0; opts.Live && errors.Is(err, fs.ErrNotExist) && tries < liveTries && ctx.Err() == nil; tries++ {
		s, err = openStore(ctx, dir, opts)
	}
	if err != nil {
		return nil, fmt.Errorf("open store %s: %w", dir, err)
	}
	s.loadScrub()
	s.start()
	return s, nil
}

// liveTries is how often opening beside a broker begins again.
const liveTries = 10

func openStore(ctx context.Context, dir string, opts *Options) (*Store, error) {
	s := &Store{
		dir:    dir,
		opts:   opts.withDefaults(dir),
		topics: make(map[string]string),
		memory: physicalMemory(),
	}
	s.table.m = make(map[queueKey]*topicQueue)
	s.fs = s.opts.FS
	s.delays, _ = message.ParseDelayLevels(s.opts.DelayLevels) // validated
	s.encoder = message.Encoder{PropertyCRC: s.opts.PropertyCRC, MaxMessageSize: s.opts.MaxMessageSize, LongTopics: s.opts.LongTopics}
	return s, s.open(ctx)
}

func (s *Store) open(ctx context.Context) (err error) {
	undo, err := s.enter()
	defer func() {
		if err != nil {
			_ = s.closeFiles() // the error that ends opening is the one to report
			undo()
		}
	}()
	if err != nil {
		return err
	}
	if err := s.openFiles(); err != nil {
		return err
	}
	return s.recover(ctx)
}

// enter makes the directory if need be and takes the lock. undo takes back
// what it did, for an opening that fails.
func (s *Store) enter() (undo func(), err error) {
	undo = func() {}
	_, err = s.fs.Stat(s.dir)
	missing := errors.Is(err, fs.ErrNotExist)
	switch {
	case err != nil && !missing:
		return undo, err
	case missing && (s.opts.NoCreate || s.opts.ReadOnly):
		return undo, fmt.Errorf("no such directory: %w", fs.ErrNotExist)
	case !missing:
		if err := s.refuseForeignKinds(); err != nil {
			return undo, err
		}
		if s.opts.NoCreate || s.opts.ReadOnly {
			if err := s.findLogDir(); err != nil {
				return undo, err
			}
		}
	}
	lockName := filepath.Join(s.dir, lockFileName)
	if s.opts.ReadOnly {
		if !s.opts.Live {
			held, err := s.fs.Locked(lockName)
			if err != nil {
				return undo, err
			}
			if held {
				return undo, fmt.Errorf("%s is held; stop the broker that uses the store, or read beside it: %w", lockName, ErrLocked)
			}
		}
		if s.fs = overlayfs.New(s.fs); s.opts.Live {
			s.fs = overlayfs.NewSnapshot(s.opts.FS, mappedfile.InTheMaking)
		}
		return undo, nil
	}
	if missing {
		if err := s.fs.MkdirAll(s.dir); err != nil {
			return undo, err
		}
		undo = func() { _ = s.fs.Remove(s.dir) }
	}
	_, err = s.fs.Stat(lockName)
	newLock := errors.Is(err, fs.ErrNotExist)
	s.lock, err = checkpoint.TakeLock(s.fs, s.dir)
	if err != nil {
		return undo, err
	}
	return func() {
		if newLock {
			_ = s.fs.Remove(lockName)
		}
		_ = s.lock.Close()
		if missing {
			_ = s.fs.Remove(s.dir)
		}
	}, nil
}

// findLogDir fails when none of the directories of the commit log exists.
func (s *Store) findLogDir() error {
	dirs := slices.Concat(s.opts.CommitLogDirs, s.opts.ReadOnlyCommitLogDirs)
	for _, dir := range dirs {
		if _, err := s.fs.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return fmt.Errorf("not a store, no commit log at %s: %w", strings.Join(dirs, ", "), fs.ErrNotExist)
}

// refuseForeignKinds names directories whose data are elsewhere than this
// store looks for them.
func (s *Store) refuseForeignKinds() error {
	entries, err := s.fs.List(s.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name, "dledger-") {
			return fmt.Errorf("%s: the commit log is DLedger's: %w", filepath.Join(s.dir, e.Name), ErrUnsupported)
		}
	}
	return nil
}

// openFiles lists the log and reads the checkpoint. It changes nothing.
func (s *Store) openFiles() error {
	mode := commitlog.FlushAsync
	if s.opts.Flush == FlushSync {
		mode = commitlog.FlushSync
	}
	o := commitlog.Options{
		FS: s.fs, Dirs: s.opts.CommitLogDirs, ReadOnlyDirs: s.opts.ReadOnlyCommitLogDirs, DirFull: s.logDirFull,
		FileSize: s.opts.CommitLogFileSize,
		Flush:    mode, ReadUnflushed: s.opts.ReadUnflushed,
		FlushInterval: s.opts.FlushInterval, FlushThoroughInterval: s.opts.FlushThoroughInterval,
		FlushLeastPages: s.opts.FlushLeastPages, SyncFlushTimeout: s.opts.SyncFlushTimeout,
		WriteWithoutMmap: s.opts.WriteWithoutMmap || s.opts.ReadOnly,
		CommitInterval:   s.opts.CommitInterval,
		Warm:             s.opts.WarmUpFiles, LockMemory: s.opts.LockMemory, RandomAccess: s.opts.RandomAccess,
		Now: s.opts.Now, Logger: s.opts.Logger, OnFailure: s.fail,
	}
	if s.opts.TransientStorePool && !s.opts.ReadOnly {
		o.PoolSize = s.opts.TransientStorePoolSize
	}
	log, report, err := commitlog.Open(o)
	if err != nil {
		return err
	}
	s.log = log
	s.warnLog(report)
	s.checkpoint, err = checkpoint.Open(s.fs, filepath.Join(s.dir, checkpointFileName), s.opts.Now)
	if err != nil {
		return err
	}
	onDisk, err := s.batchTopicsOnDisk()
	if err != nil {
		return err
	}
	if also := s.opts.IsBatchTopic; also == nil {
		s.opts.IsBatchTopic = onDisk
	} else {
		s.opts.IsBatchTopic = func(topic string) bool { return onDisk(topic) || also(topic) }
	}
	return nil
}

// batchTopicsOnDisk finds the topics with batch queues: those that
// config/topics.json marks and those with a directory of such a queue.
func (s *Store) batchTopicsOnDisk() (func(string) bool, error) {
	batch := make(map[string]bool)
	entries, err := s.fs.List(filepath.Join(s.dir, batchQueueDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	for _, e := range entries {
		batch[e.Name] = e.IsDir()
	}
	type topics struct {
		Table map[string]struct {
			Attributes map[string]string `json:"attributes"`
		} `json:"topicConfigTable"`
	}
	name := filepath.Join(s.dir, "config", "topics.json")
	used, cause, err := javajson.Load(s.fs, name, func(t topics) {
		for topic, c := range t.Table {
			if c.Attributes["queue.type"] == "BatchCQ" {
				batch[topic] = true
			}
		}
	})
	if cause = errors.Join(cause, err); cause != nil {
		s.warn("topic configuration, read from %q: %v", used, cause)
	}
	s.batchTopics.Store(&batch)
	return func(topic string) bool { return (*s.batchTopics.Load())[topic] }, nil
}

// warn notes something that opening lived with.
func (s *Store) warn(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	s.recovery.Warnings = append(s.recovery.Warnings, text)
	s.opts.Logger.Warn("opening", "finding", text)
}

func (s *Store) warnLog(r commitlog.Report) {
	for _, name := range r.Foreign {
		s.warn("%s is not a commit log file and is ignored", name)
	}
	for _, name := range r.Empty {
		s.warn("commit log file %s is empty and is removed", name)
	}
	s.emptyLogFiles = r.Empty
	for _, g := range r.Gaps {
		s.warn("commit log files are missing from %d to %d", g.From, g.To)
	}
	for _, m := range r.Short {
		s.warn("commit log file %s has %d bytes instead of %d", m.Path, m.Size, r.FileSize)
	}
	for _, m := range r.Long {
		s.warn("commit log file %s has %d bytes instead of %d, zeros at the end", m.Path, m.Size, r.FileSize)
	}
}

// logDirFull leaves directories out that forced cleaning would be needed for.
func (s *Store) logDirFull(dir string) bool {
	u, err := s.diskUsage(dir)
	return err == nil && u.Ratio()*100 > s.opts.DiskCleanForciblyPercent
}

// openIndex opens the index and returns from where records have to be indexed
// again, given that the queues are replayed from from.
func (s *Store) openIndex(ctx context.Context, ext *checkpoint.Ext, from, end message.PhysicalOffset) (message.PhysicalOffset, error) {
	if s.opts.NoIndex {
		return from, nil
	}
	state := indexfile.OpenState{Clean: s.recovery.CleanStop, LogMin: s.log.Min(), LogEnd: end}
	if ext != nil {
		trusted := indexfile.State(ext.Index)
		state.Trusted = &trusted
	}
	v, _ := s.checkpoint.Load()
	state.FlushedTime = v.IndexTime
	geometry, err := s.indexGeometry()
	if err != nil {
		return 0, err
	}
	index, replayFrom, report, err := indexfile.Open(ctx, indexfile.Options{
		FS: s.fs, Dir: filepath.Join(s.dir, indexDir),
		Slots: geometry.Slots, Entries: geometry.Entries,
		Now: s.opts.Now, Location: s.opts.IndexLocation, Logger: s.opts.Logger,
		OnDamage: func(file, reason string) { s.reportDamage(fmt.Errorf("index file %s: %s", file, reason)) },
		OnFull:   func(t int64) { s.indexFull.Store(max(t, s.indexFull.Load())) },
		Refill:   s.refillIndex,
		OnDegraded: func(cause error) {
			if cause != nil {
				s.opts.Logger.Error("the index takes no entries for the moment", "err", cause)
			} else {
				s.opts.Logger.Info("the index takes entries again")
			}
		},
		StoreTime: func(at message.PhysicalOffset) (int64, bool) {
			t, err := s.storeTime(at)
			return t, err == nil
		},
	}, state)
	if err != nil {
		return 0, err
	}
	s.index = index
	for _, name := range report.Foreign {
		s.warn("%s is not an index file and is ignored", name)
	}
	for _, r := range report.Repairs {
		s.repaired("index file %s: %s", r.File, r.Reason)
	}
	if report.Intact {
		// All entries up to the checkpoint are there.
		replayFrom = max(replayFrom, min(from, ext.DispatchedTo))
	}
	return min(from, replayFrom), nil
}

// indexGeometry is that of new index files: the configured one, what is not
// configured taken from the newest file. A Java broker has one setting for all
// files, so a new one must not differ from the others by accident.
func (s *Store) indexGeometry() (indexfile.Geometry, error) {
	g := indexfile.Geometry{Slots: s.opts.IndexSlots, Entries: s.opts.IndexEntries}
	if g.Slots != 0 && g.Entries != 0 {
		return g, nil
	}
	dir := filepath.Join(s.dir, indexDir)
	entries, err := s.fs.List(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return g, err
	}
	for _, e := range slices.Backward(entries) {
		if !e.IsRegular() || strings.Trim(e.Name, "0123456789") != "" {
			continue
		}
		r, err := indexfile.OpenReader(s.fs, filepath.Join(dir, e.Name))
		if errors.Is(err, ErrCorrupt) {
			continue // an older one may tell
		}
		if err != nil {
			return g, err
		}
		g.Slots, g.Entries = cmp.Or(g.Slots, r.Geometry().Slots), cmp.Or(g.Entries, r.Geometry().Entries)
		return g, r.Close()
	}
	return g, nil
}

// start begins the background work of an open store.
func (s *Store) start() {
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	if s.opts.ReadOnly {
		return
	}
	loops := []func(context.Context){s.runDispatcher, s.runCheckpoints, s.runCleaner}
	if !s.opts.NoDelay && !s.opts.NoDelivery {
		loops = append(loops, s.scheduler.run)
	}
	if s.opts.ScrubRate > 0 {
		loops = append(loops, s.runScrub)
	}
	for _, loop := range loops {
		s.loops.Go(func() { loop(ctx) })
	}
}
