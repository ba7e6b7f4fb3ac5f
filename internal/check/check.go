package check

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Severity says how bad a finding is.
type Severity int

// The severities, in rising order.
const (
	Info    Severity = iota // legal, or without effect
	Warning                 // tolerated by readers, but not how a store should look
	Error                   // data unusable or wrong
)

// String returns "info", "warning" or "error".
func (s Severity) String() string {
	switch s {
	case Info:
		return "info"
	case Warning:
		return "warning"
	case Error:
		return "error"
	}
	return fmt.Sprintf("severity(%d)", int(s))
}

// Level says how much of the store is read. The zero value is Full.
type Level int

// The levels, in rising order.
const (
	// Quick reads names, lengths, headers and the ends: of each log file the
	// first record and the headers of the last one, of each queue the last
	// units, of each index file the header.
	Quick Level = iota - 1
	// Full reads every record, unit and index entry and compares them.
	Full
	// Deep also lists each message that some of its keys do not lead to, and
	// looks into inner batches.
	Deep
)

// String returns "quick", "full" or "deep".
func (l Level) String() string {
	switch l {
	case Quick:
		return "quick"
	case Full:
		return "full"
	case Deep:
		return "deep"
	}
	return fmt.Sprintf("level(%d)", int(l))
}

// Finding is one thing that is not as the format says. The texts are for
// people; programs branch on Severity and Rule.
type Finding struct {
	Severity Severity
	Rule     string // a name of Rules
	File     string // relative to the store's directory, with slashes; absolute if outside of it
	Offset   int64  // within File, 0 if the finding concerns all of it
	Count    int64  // how many places this finding stands for, at least 1
	Detail   string // what is there, with the values
	Meaning  string // what that means for messages
	Repair   string // what mends it
}

// String is the finding in one line.
func (f Finding) String() string {
	return fmt.Sprintf("%s %s %s@%d: %s", f.Severity, f.Rule, f.File, f.Offset, f.Detail)
}

// Options say what to check and how. The zero value of every field but Dir is
// usable.
type Options struct {
	FS    vfs.FS // nil: the operating system
	Dir   string // the store's root directory
	Level Level

	// CommitLogDirs are the folders of the commit log, absolute or relative to
	// Dir (RocketMQ: storePathCommitLog); none means "commitlog".
	// ReadOnlyDirs are further ones (readOnlyCommitLogStorePaths).
	CommitLogDirs []string
	ReadOnlyDirs  []string

	// The sizes of files, 0: read off the files (RocketMQ:
	// mappedFileSizeCommitLog, mappedFileSizeConsumeQueue).
	CommitLogFileSize    int64
	ConsumeQueueFileSize int64
	// IndexSlots and IndexEntries are the geometry of index files, 0: read off
	// the files (RocketMQ: maxHashSlotNum, maxIndexNum).
	IndexSlots   int32
	IndexEntries int32
	// DelayLevels is the table of delays, "1s 5s 10s …" (RocketMQ:
	// messageDelayLevel). Empty: unknown, so that delivery times are only
	// compared with store times and with each other.
	DelayLevels string

	// Progress is told now and then how many of about total bytes are done.
	// Calls do not overlap. nil: nobody is told.
	Progress func(done, total int64)
	// MaxFindings limits the findings reported one by one; the others are
	// counted, and reported as one finding for each rule. 0 means 1000.
	MaxFindings int
	// Workers is the number of files read at the same time; 0: GOMAXPROCS, at
	// most 8. Each takes about 16 MiB.
	Workers int
}

// Summary is what was looked at and how it turned out.
type Summary struct {
	// Findings that were reported or, beyond Options.MaxFindings, counted.
	Infos, Warnings, Errors int

	Files        int64 // regular files seen
	Bytes        int64 // bytes read
	Messages     int64 // valid records in the log
	Damaged      int64 // records that are there but not valid
	Lost         int64 // messages: damaged ones, and those that only a queue still knows of
	Units        int64 // consume queue units, fill units excepted
	Queues       int64
	Topics       int64
	IndexFiles   int64
	IndexEntries int64

	LogMin, LogEnd message.PhysicalOffset
	FirstStoreTime int64 // of the first record, ms; 0 without one
	LastStoreTime  int64 // of the last record, ms; 0 without one

	Abort bool // the file "abort" exists: the last stop was not clean, or the store is in use
	InUse bool // somebody holds the lock
	// Clean: the last stop was clean and there is no finding above Info.
	Clean bool
}

// Count returns the number of findings of a severity.
func (s *Summary) Count(sev Severity) int {
	switch sev {
	case Info:
		return s.Infos
	case Warning:
		return s.Warnings
	}
	return s.Errors
}

// Run checks the store in o.Dir and calls report for each finding, from one
// goroutine at a time. It only reads. What is wrong with the store, read
// errors included, is a finding; the error is for what kept Run from doing its
// work: a wrong option, no such directory, ctx cancelled. The summary covers
// what was done until then.
func Run(ctx context.Context, o Options, report func(Finding)) (Summary, error) {
	if o.FS == nil {
		o.FS = vfs.OS()
	}
	if o.MaxFindings <= 0 {
		o.MaxFindings = 1000
	}
	if o.Workers <= 0 {
		o.Workers = min(runtime.GOMAXPROCS(0), 8)
	}
	if err := o.validate(); err != nil {
		return Summary{}, err
	}
	if _, err := o.FS.List(o.Dir); err != nil {
		return Summary{}, fmt.Errorf("check store: %w", err)
	}
	c := &checker{ctx: ctx, o: o, fs: o.FS, dir: o.Dir, rep: newReporter(report, o.MaxFindings)}
	// validate has parsed it, and the default can be parsed.
	c.delays, _ = message.ParseDelayLevels(cmp.Or(o.DelayLevels, message.DefaultDelayLevels))
	err := c.run()
	c.rep.finish()
	s := c.summary()
	return s, err
}

func (o *Options) validate() error {
	var errs []error
	if o.Dir == "" {
		errs = append(errs, errors.New("no directory given"))
	}
	if o.Level < Quick || o.Level > Deep {
		errs = append(errs, fmt.Errorf("unknown level %d", o.Level))
	}
	if o.CommitLogFileSize < 0 {
		errs = append(errs, fmt.Errorf("negative commit log file size %d", o.CommitLogFileSize))
	}
	if n := o.ConsumeQueueFileSize; n < 0 || n%unitSize != 0 {
		errs = append(errs, fmt.Errorf("consume queue file size %d is no multiple of %d", n, unitSize))
	}
	if o.IndexSlots < 0 || o.IndexEntries < 0 {
		errs = append(errs, fmt.Errorf("negative index geometry %d/%d", o.IndexSlots, o.IndexEntries))
	}
	if o.DelayLevels != "" {
		if _, err := message.ParseDelayLevels(o.DelayLevels); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// checker is one run. Fields are written by the stage that owns them and read
// by later stages; stages run one after another, their workers in parallel.
type checker struct {
	ctx context.Context
	o   Options
	fs  vfs.FS
	dir string
	rep *reporter

	delays message.DelayLevels

	abort, live bool // file abort; lock held by somebody
	newer       bool // traces of a broker of 5.0 or later, or of Gantry
	dledger     bool // the log is in DLedger's files
	rocksQueues bool // consume queues are in RocksDB: no file to compare with

	config *config
	log    *logSet
	queues *catalog
	index  *indexSet
	sums   *sums // after listQueues; not at the quick level

	following sync.Mutex // see indexWalker.followChains

	files, bytes atomic.Int64
	progress     progress
}

func (c *checker) run() error {
	stages := []func() error{
		c.lookAround, // what is there; markers
		c.readConfig, // topics: the kinds of queues
		c.listLog,
		c.listQueues,
		c.listIndex,
		c.walkIndex,
		c.walkLog,
		c.walkQueues,
		c.checkCheckpoint,
		c.checkConfig,
		c.checkTimer,
		c.checkCompaction,
		c.checkEpoch,
	}
	for _, stage := range stages {
		if err := c.ctx.Err(); err != nil {
			return err
		}
		if err := stage(); err != nil {
			return err
		}
	}
	c.progress.finish()
	return nil
}

func (c *checker) summary() Summary {
	s := Summary{
		Infos: c.rep.counts[Info], Warnings: c.rep.counts[Warning], Errors: c.rep.counts[Error],
		Files: c.files.Load(), Bytes: c.bytes.Load(),
		Abort: c.abort, InUse: c.live,
	}
	if c.log != nil {
		c.log.summarize(&s)
	}
	if c.queues != nil {
		c.queues.summarize(&s)
	}
	if c.index != nil {
		c.index.summarize(&s)
	}
	if c.queues != nil {
		s.Lost = max(s.Damaged, c.queues.lostUnits.Load())
	}
	s.Clean = !c.abort && s.Warnings == 0 && s.Errors == 0
	return s
}

// parallel runs task(worker, i) for i from 0 to n-1 on at most o.Workers
// goroutines, each with its own worker number, and returns the first error.
// After an error or a cancelled context no further task is started.
func (c *checker) parallel(n int, task func(worker, i int) error) error {
	return c.parallelN(c.o.Workers, n, task)
}

// parallelN is parallel on at most workers goroutines.
func (c *checker) parallelN(workers, n int, task func(worker, i int) error) error {
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		once  sync.Once
		first error
		stop  atomic.Bool
	)
	for w := range min(c.o.Workers, workers, n) {
		wg.Go(func() {
			for !stop.Load() {
				i := int(next.Add(1) - 1)
				if i >= n {
					return
				}
				err := c.ctx.Err()
				if err == nil {
					err = task(w, i)
				}
				if err != nil {
					stop.Store(true)
					once.Do(func() { first = err })
				}
			}
		})
	}
	wg.Wait()
	return first
}

// progress adds up the bytes done and tells Options.Progress about every 512th
// part of the total.
type progress struct {
	f     func(done, total int64)
	total int64
	done  atomic.Int64
	told  atomic.Int64
	mu    sync.Mutex // held while f runs
}

func (p *progress) start(f func(done, total int64), total int64) {
	p.f, p.total = f, total
}

func (p *progress) add(n int64) {
	if p.f == nil {
		return
	}
	done := p.done.Add(n)
	if done-p.told.Load() < p.total/512 || !p.mu.TryLock() {
		return
	}
	p.told.Store(done)
	p.f(min(done, p.total), p.total)
	p.mu.Unlock()
}

func (p *progress) finish() {
	if p.f != nil {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.f(p.total, p.total)
	}
}
