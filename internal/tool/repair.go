package tool

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Lost says what becomes of a queue offset whose message is lost.
type Lost int

const (
	// LostGap leaves a fill unit, which Gantry skips. A Java consumer skips the
	// rest of the log's first file with it.
	LostGap Lost = iota
	// LostPlaceholder leaves an empty, marked message, which Java brokers
	// deliver like any other.
	LostPlaceholder
)

// RepairOptions say what to repair.
type RepairOptions struct {
	Dir string // the store; it is only read
	Out string // the new store: must not exist, or be empty
	// Lost says what becomes of the queue offsets of lost messages.
	Lost Lost
	// Store has what cannot be read off the files; see gantry.Options. FS, Now,
	// IndexLocation and Progress are used, too.
	Store gantry.Options
	// Event is told what was found and done, in no order that matters, from one
	// goroutine at a time. It also is in NEW/quarantine/report.ndjson.
	Event func(Event)
}

// RepairSummary is how a repair turned out.
type RepairSummary struct {
	Messages       int64 // in the new log
	Units          int64 // of its queues, those for lost messages not counted
	LostMessages   int64 // queue offsets without a message
	Placeholders   int64 // of them, those with an empty message
	Damaged        int   // ranges of the log
	DamagedBytes   int64
	TailBytes      int64 // behind the end of the log
	BehindEnd      int64 // messages that queues have behind the end of the log
	Corrected      int64
	Misplaced      int64
	ChecksumsAdded int64 // records without a body CRC got one
	Unreadable     int   // places
	LeftOut        int   // files
	MinOffset      message.PhysicalOffset
	EndOffset      message.PhysicalOffset
}

// Kept reports whether nothing was lost.
func (s *RepairSummary) Kept() bool {
	return s.LostMessages == 0 && s.Damaged == 0 && s.TailBytes == 0 && s.BehindEnd == 0 && s.Misplaced == 0 && s.Unreadable == 0
}

const quarantineDir = "quarantine"

// Repair makes a healthy copy of a store, which may be damaged in any way. Every
// valid record stays where it is in the log, so that message ids, queue offsets
// and units stay true; fillers cover what lies between (see FillerTopic); queues
// and index are made anew. The source is only read, and needs no permission to
// write. Nobody may hold it.
func Repair(ctx context.Context, o RepairOptions) (sum RepairSummary, err error) {
	r := &repairer{o: o, fs: o.Store.FS, dir: filepath.Clean(o.Dir)}
	if err := refuseHeld(r.fs, r.dir); err != nil {
		return sum, err
	}
	if err := RefuseDLedger(r.fs, r.dir); err != nil {
		return sum, err
	}
	if r.out, err = makeNewDir(r.fs, r.dir, o.Out); err != nil {
		return sum, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.out.abandon())
		}
	}()
	r.report = &report{out: r.out, event: o.Event}
	err = r.repair(ctx)
	if cerr := r.report.close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = r.out.finish()
	}
	return r.sum, err
}

// refuseHeld fails when somebody holds the store.
func refuseHeld(fsys vfs.FS, dir string) error {
	holder, err := gantry.LockHolder(dir, fsys)
	if err == nil && holder != "" {
		err = fmt.Errorf("%s is held by process %s: stop it first: %w", dir, holder, gantry.ErrLocked)
	}
	return err
}

// repairer is one run of Repair.
type repairer struct {
	o   RepairOptions
	fs  vfs.FS
	dir string
	out *newDir
	sum RepairSummary

	mu     sync.Mutex // for what workers report
	report *report
	told   map[string]bool // what could not be read

	log   *logRepair
	old   *oldQueues
	shape storeShape
	der   *derivation
	drops []*placed
	// batches are the lost messages of batch queues: they have their records
	// before queues are made.
	batches []lostPlace
}

func (r *repairer) repair(ctx context.Context) error {
	log := &logRepair{repairer: r}
	r.log = log
	log.dirs, log.rel = logDirs(r.dir, r.o.Store.CommitLogDirs, r.o.Store.ReadOnlyCommitLogDirs)
	if err := log.find(ctx); err != nil {
		return err
	}
	if err := log.copy(ctx); err != nil {
		return err
	}
	if err := log.judge(ctx); err != nil {
		return err
	}
	r.sum.Damaged = len(log.ranges)
	if err := log.cover(); err != nil {
		return err
	}
	if err := r.out.fs.MkdirAll(r.out.at(log.rel[0])); err != nil {
		return err
	}
	var err error
	if r.old, err = findOldQueues(ctx, r.fs, r.dir, r.unreadable); err != nil {
		return err
	}
	defer r.old.close()
	if r.shape, err = shapeOf(r.fs, r.dir, &r.o.Store, r.old); err != nil {
		return err
	}
	if tags, known := indexedTags(r.fs, r.dir, r.shape.index, r.recordInCopy); known && !r.o.Store.NoTagIndex {
		r.shape.tags = tags
	}
	ext, err := r.derive(ctx)
	if err != nil {
		return err
	}
	if err := r.copyRest(ctx); err != nil {
		return err
	}
	if err := r.checkpoint(ext); err != nil {
		return err
	}
	if err := refuseHeld(r.fs, r.dir); err != nil {
		return fmt.Errorf("somebody opened the store while it was read: %w", err)
	}
	return nil
}

// latestTime is the latest store time that is believed, in ms: clocks are set
// back, but not by more than a day.
func latestTime(o *gantry.Options) int64 {
	now := time.Now().UnixMilli()
	if o.Now != nil {
		now = o.Now()
	}
	return now + 24*3600*1000
}

// derive makes queues and index. Records that turn out to have no place are
// covered, and then everything is made again without them.
func (r *repairer) derive(ctx context.Context) (checkpoint.Ext, error) {
	log := r.log
	for range 10 {
		if err := r.placeBatches(ctx); err != nil {
			return checkpoint.Ext{}, err
		}
		d := &derivation{
			fs: r.out.fs, dir: r.out.path, shape: r.shape, location: r.o.Store.IndexLocation, queues: true, index: !r.o.Store.NoIndex, old: r.old,
			maxGap:  max(consumequeue.DefaultMaxGap, r.sum.DamagedBytes/minFiller),
			latest:  latestTime(&r.o.Store),
			dropped: func(p *placed) { r.drops = append(r.drops, p) },
		}
		d.scan = logScan{fs: r.out.fs, fileSize: log.fileSize, tags: r.shape.tags, light: r.shape.light, delays: r.shape.delays}
		for _, f := range log.files {
			d.scan.parts = append(d.scan.parts, logPart{r.out.at(f.rel), f.start})
		}
		if len(log.files) > 0 {
			d.logMin = log.files[0].start
		}
		d.correct = r.correct
		d.scan.told = r.step("making queues and index", int64(len(log.files))*log.fileSize)
		r.der, r.drops = d, nil
		if err := d.run(ctx); err != nil {
			return checkpoint.Ext{}, err
		}
		if d.scan.stopped != nil || d.scan.end != log.end {
			d.discard()
			return checkpoint.Ext{}, fmt.Errorf("the new log should end at %d, but ends at %d: %w", log.end, d.scan.end, errors.Join(d.scan.stopped))
		}
		again, err := r.contradictions(d)
		if err == nil && !again && len(r.drops) > 0 {
			again, err = true, r.coverDrops(ctx)
		}
		if err == nil && !again {
			err = r.lostSlots(ctx)
		}
		if err != nil || again {
			d.discard()
		}
		if err == nil && again {
			err = r.removeDerived()
		}
		if err != nil {
			return checkpoint.Ext{}, err
		}
		if again {
			continue
		}
		r.sum.Messages, r.sum.Units = d.records, d.units
		r.sum.MinOffset, r.sum.EndOffset = message.PhysicalOffset(d.logMin), message.PhysicalOffset(log.end)
		return d.finish(ctx)
	}
	return checkpoint.Ext{}, errors.New("the records of the log contradict each other too often")
}

// removeDerived removes the queues and the index of the new store.
func (r *repairer) removeDerived() error {
	for _, dir := range []string{queueDirs[0], queueDirs[1], queueExtDir, "index"} {
		if err := removeAll(r.out.fs, r.out.at(dir)); err != nil {
			return err
		}
	}
	return nil
}

// coverDrops puts fillers over records that have no place.
func (r *repairer) coverDrops(ctx context.Context) error {
	for _, p := range r.drops {
		f := r.log.fileOf(p.phy)
		if f == nil {
			continue
		}
		r.sum.Misplaced++
		f.kept = cmp.Or(f.kept, keptName(f.start))
		e := Event{Type: "misplaced", File: f.name, Offset: p.phy - f.start, CommitLogOffset: p.phy, Length: int64(p.size), Quarantine: f.kept,
			EventMessage: &EventMessage{Topic: p.topic, QueueID: p.id, QueueOffset: p.off},
			Reason:       "the record contradicts the other records of its queue: some field of its head is damaged"}
		d := damagedRange{from: p.phy, to: p.phy + int64(p.size), time: p.time}
		r.log.describe(&e, f, d)
		r.note(e)
		at := p.phy - f.start
		if err := r.log.moveToQuarantine(ctx, f, at, at+int64(p.size)); err != nil {
			return err
		}
		i, _ := slices.BinarySearchFunc(r.log.ranges, d.from, func(x damagedRange, at int64) int { return cmp.Compare(x.from, at) })
		r.log.ranges = slices.Insert(r.log.ranges, i, d)
		if err := r.log.coverFile(f, []damagedRange{d}); err != nil {
			return err
		}
	}
	return nil
}

// correct gives a record of the new log the place that its queue proves.
func (r *repairer) correct(p *placed, slot int64) error {
	return r.correctTo(p.phy, p.queueName, slot, fmt.Sprintf("the record said queue offset %d", p.off))
}

func (r *repairer) correctTo(phy int64, q queueName, slot int64, reason string) (err error) {
	f := r.log.fileOf(phy)
	v, ok := r.recordInCopy(phy)
	if !ok {
		return base.Corruptf(f.rel, phy-f.start, "the record cannot be read again")
	}
	rec := v.Record()
	if v.SysFlag&message.InnerBatch == 0 {
		message.Patch(rec, message.QueueOffset(slot), message.PhysicalOffset(phy), v.StoreTimestamp)
	}
	binary.BigEndian.PutUint32(rec[posQueueID:], uint32(q.id))
	at := int(v.BodyOffset) + int(v.BodyLen) + 1
	if v.Magic == message.MagicV2 {
		at++
	}
	copy(rec[at:], q.topic) // of the same length
	if v.HasPropertyCRC() {
		message.SealCRC(rec)
	}
	r.sum.Corrected++
	r.note(Event{Type: "corrected", File: f.name, Offset: phy - f.start, CommitLogOffset: phy, Length: int64(v.Size),
		EventMessage: &EventMessage{Topic: q.topic, QueueID: q.id, QueueOffset: slot}, Reason: reason})
	out, err := r.out.fs.Open(r.out.at(f.rel), vfs.ReadWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	if _, err := out.WriteAt(rec, phy-f.start); err != nil {
		return err
	}
	return out.Sync()
}

// recordInCopy reads a record of the new log.
func (r *repairer) recordInCopy(phy int64) (message.View, bool) {
	if len(r.log.files) == 0 || phy < r.log.files[0].start || phy >= r.log.end {
		return message.View{}, false
	}
	f := r.log.fileOf(phy)
	return readRecord(r.out.fs, r.out.at(f.rel), f.start, phy, r.log.fileSize)
}

// readRecord reads one record of at most largeRecord bytes. What is no record
// there, or cannot be read, is not ok.
func readRecord(fsys vfs.FS, path string, start, phy, fileSize int64) (v message.View, ok bool) {
	f, err := fsys.Open(path, vfs.ReadOnly)
	if err != nil {
		return v, false
	}
	defer f.Close()
	var head [message.MaxHeaderSize]byte
	rest := fileSize - (phy - start)
	if rest < message.MinRecordSize || readWhole(f, head[:], phy-start) != nil {
		return v, false
	}
	h, err := message.ParseHeader(head[:])
	if err != nil || h.Kind != message.KindRecord || int64(h.Size) > min(rest, largeRecord) {
		return v, false
	}
	rec := make([]byte, h.Size)
	if readWhole(f, rec, phy-start) != nil {
		return v, false
	}
	v, err = message.Check(rec, message.PhysicalOffset(phy), message.CheckOptions{})
	return v, err == nil
}

// describe adds to an event what the damaged bytes say about the message that
// they were. No checksum vouches for it.
func (l *logRepair) describe(e *Event, f *logFile, r damagedRange) {
	if f.path == "" {
		return
	}
	v, ok := readRecord(l.fs, f.path, f.start, r.from, l.fileSize)
	if !ok || IsFiller(&v) {
		return
	}
	if e.EventMessage == nil {
		e.EventMessage = &EventMessage{Topic: v.Topic(), QueueID: v.QueueID, QueueOffset: int64(v.QueueOffset)}
	}
	e.StoreSize, e.MsgID, e.Keys = v.Size, v.OffsetID(), recordKeys(&v)
}

// recordKeys lists the keys of a record.
func recordKeys(v *message.View) (keys []string) {
	p := v.Props()
	if k := p.UniqKey(); k != "" {
		keys = append(keys, k)
	}
	for k := range p.Keys() {
		keys = append(keys, k)
	}
	return keys
}

// copied are the names at the top of a store that a repair copies as they are.
var copied = []string{
	"config", "timerwheel", "timerlog", "compaction", "epochFileCheckpoint", "epochFileCheckpoint.bak",
	"brokerIdentity", "brokerIdentity-temp", "transaction", "rocksdbstore", "kvStore", "namesrv",
}

// remade are those that it makes anew, or that say nothing about a copy.
var remade = []string{"commitlog", "consumequeue", "batchconsumequeue", queueExtDir, "index", "checkpoint", "abort", "abort.bak", "lock", "scrub.json"}

// copyRest copies everything else that belongs to a store.
func (r *repairer) copyRest(ctx context.Context) error {
	entries, err := r.fs.List(r.dir)
	if err != nil {
		return err
	}
	c := &treeCopy{fs: r.fs, dst: r.out, bad: r.unreadable, skipped: func(name, reason string) {
		r.note(Event{Type: "leftOut", File: name, Reason: reason})
	}}
	for _, e := range entries {
		path := filepath.Join(r.dir, e.Name)
		switch {
		case slices.Contains(copied, e.Name):
			err = c.entry(ctx, path, e.Name, e, 0)
		case e.Name == quarantineDir:
			err = c.tree(ctx, path, quarantineDir+"/earlier", 0)
		case slices.Contains(remade, e.Name) || r.holdsLog(path):
		default:
			r.note(Event{Type: "leftOut", File: e.Name, Reason: "not a part of a store"})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// holdsLog reports whether a directory of the log lies below path.
func (r *repairer) holdsLog(path string) bool {
	return slices.ContainsFunc(r.log.dirs, func(d string) bool {
		rel, err := filepath.Rel(path, d)
		return err == nil && filepath.IsLocal(rel)
	})
}

// checkpoint writes the checkpoint of a clean stop.
func (r *repairer) checkpoint(ext checkpoint.Ext) error {
	v := checkpoint.Values{}
	if old, err := checkpoint.Open(r.fs, filepath.Join(r.dir, checkpoint.FileName), r.o.Store.Now); err == nil {
		was, _ := old.Load()
		v.MasterFlushed = min(was.MasterFlushed, message.PhysicalOffset(r.log.end))
	}
	return saveCheckpoint(r.out.fs, r.out.at(checkpoint.FileName), v, ext, r.der)
}

// saveCheckpoint writes what a derivation made into a checkpoint.
func saveCheckpoint(fsys vfs.FS, path string, v checkpoint.Values, ext checkpoint.Ext, d *derivation) (err error) {
	v.PhysicTime, v.LogicsTime = ext.LastStoreTime, ext.LastStoreTime
	v.IndexTime = d.full
	v.Confirm = max(ext.LastRecord, 0)
	v.LogicsPhysical = message.PhysicalOffset(max(d.lastQueued, 0))
	f, err := checkpoint.Open(fsys, path, func() int64 { return math.MaxInt64 / 2 })
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return f.Save(v, &ext)
}

// show is a path as reports have it: relative to the store, with slashes.
func (r *repairer) show(path string) string {
	rel, err := filepath.Rel(r.dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return filepath.ToSlash(path)
	}
	return filepath.ToSlash(rel)
}

// note reports an event. Workers may call it.
func (r *repairer) note(e Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch e.Type {
	case "leftOut":
		e.CommitLogOffset = -1
		r.sum.LeftOut++
	case "unreadable":
		e.CommitLogOffset = -1
		r.sum.Unreadable++
	case "lost":
		r.sum.LostMessages += max(e.Count, 1)
	case "behind":
		r.sum.BehindEnd += e.Count
	}
	r.report.add(e)
}

func (r *repairer) unreadable(name string, off, n int64, err error) {
	if errors.Is(err, fs.ErrNotExist) {
		return // it was removed meanwhile, or is a link to nothing
	}
	// A file is opened more than once.
	key := fmt.Sprintf("%s@%d", name, off)
	r.mu.Lock()
	told := r.told[key]
	if r.told == nil {
		r.told = map[string]bool{}
	}
	if len(r.told) < maxDetails {
		r.told[key] = true
	}
	r.mu.Unlock()
	if !told {
		r.note(Event{Type: "unreadable", File: name, Offset: off, Length: n, Reason: err.Error()})
	}
}

// step begins a step of the work and returns what counts its bytes.
func (r *repairer) step(name string, total int64) func(int64) {
	return progressOf(r.o.Store.Progress, name, total)
}

// progressOf adds up bytes for a progress function. The result may be called
// from several goroutines.
func progressOf(f func(gantry.Progress), step string, total int64) func(int64) {
	if f == nil {
		return func(int64) {}
	}
	var done atomic.Int64
	var mu sync.Mutex
	return func(n int64) {
		d := done.Add(n)
		if mu.TryLock() {
			f(gantry.Progress{Step: step, Done: min(d, total), Total: total, Unit: "bytes"})
			mu.Unlock()
		}
	}
}
