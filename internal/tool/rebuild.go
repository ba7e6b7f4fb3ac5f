package tool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// RebuildOptions say what to derive from the log.
type RebuildOptions struct {
	Dir string
	// Out is the new store. Empty: the store itself is changed, which must have
	// been closed properly and must not be held.
	Out string
	// Queues and Index say what is made; neither means both.
	Queues, Index bool
	// Topic restricts Queues to those of one topic, or one light queue.
	Topic string
	Store gantry.Options // as in RepairOptions
	// Event is told of records that got no unit, and of files that are not in
	// the new store.
	Event func(Event)
}

// RebuildSummary is how a rebuild turned out.
type RebuildSummary struct {
	Messages     int64 // in the log
	Units        int64 // made
	Queues       int64 // with units, of those that were made
	IndexFiles   int
	IndexEntries int64
	Misplaced    int64 // records that got no unit
	MinOffset    message.PhysicalOffset
	EndOffset    message.PhysicalOffset
}

// Names of a rebuild in place, below the store.
const (
	stagingDir = "rebuild.partial"
	stagedNew  = "new"
	stagedOld  = "old"
)

// Rebuild makes consume queues and index of a store anew from its log. A log
// that is damaged is a *base.CorruptError, and nothing has changed: Repair is
// for that. With Out everything else is copied.
//
// In place, the new directories are made beside the old ones and then take
// their names. A crash leaves the old or the new one under the name, or at
// worst neither, and the next opening, or rebuild, makes that good.
func Rebuild(ctx context.Context, o RebuildOptions) (sum RebuildSummary, err error) {
	if !o.Queues && !o.Index {
		o.Queues, o.Index = true, o.Topic == ""
	}
	if o.Index && o.Topic != "" {
		return sum, errors.New("the index cannot be made for one topic: it is one for all")
	}
	r := &rebuilder{o: o, repairer: &repairer{fs: o.Store.FS, dir: filepath.Clean(o.Dir), o: RepairOptions{Store: o.Store}}}
	r.report = &report{event: o.Event}
	if err := refuseHeld(r.fs, r.dir); err != nil {
		return sum, err
	}
	if err := RefuseDLedger(r.fs, r.dir); err != nil {
		return sum, err
	}
	if o.Out == "" {
		err = r.inPlace(ctx)
	} else {
		err = r.copyAll(ctx)
	}
	return r.result, err
}

// rebuilder is one run of Rebuild.
type rebuilder struct {
	*repairer
	o      RebuildOptions
	result RebuildSummary

	files    []logPart // of the source's log
	fileSize int64
	rel      map[string]string // directories of the log: names in the copy
}

// findLog lists the log, which must be sound as far as names and lengths tell.
func (r *rebuilder) findLog() error {
	dirs, rel := logDirs(r.dir, r.o.Store.CommitLogDirs, r.o.Store.ReadOnlyCommitLogDirs)
	r.rel = map[string]string{}
	for i, d := range dirs {
		r.rel[d] = rel[i]
	}
	log, report, err := commitlog.Open(commitlog.Options{FS: r.fs, Dirs: dirs, FileSize: r.o.Store.CommitLogFileSize, WriteWithoutMmap: true, CreateInline: true})
	if err != nil {
		return err
	}
	defer log.Close()
	for _, name := range report.Foreign {
		r.note(Event{Type: "leftOut", File: r.show(name), Reason: "not a commit log file"})
	}
	if len(report.Gaps) > 0 {
		g := report.Gaps[0]
		return base.Corruptf(r.show(dirs[0]), 0, "the log has no files for positions %d to %d; gantry store repair bridges that", g.From, g.To)
	}
	r.fileSize = log.FileSize()
	for _, f := range log.Files() {
		r.files = append(r.files, logPart{f.Path, int64(f.Start)})
	}
	if len(r.files) == 0 {
		return fmt.Errorf("%s: there is no log to derive anything from: %w", dirs[0], fs.ErrNotExist)
	}
	return nil
}

// derive makes what is asked for below dir. The log's end must be an end, not
// damage.
func (r *rebuilder) derive(ctx context.Context, dir string, parts []logPart) (*derivation, checkpoint.Ext, error) {
	var none checkpoint.Ext
	var err error
	if r.old, err = findOldQueues(ctx, r.fs, r.dir, r.unreadable); err != nil {
		return nil, none, err
	}
	defer r.old.close()
	if r.shape, err = shapeOf(r.fs, r.dir, &r.o.Store, r.old); err != nil {
		return nil, none, err
	}
	if tags, known := indexedTags(r.fs, r.dir, r.shape.index, r.recordIn(parts)); known && !r.o.Store.NoTagIndex {
		r.shape.tags = tags
	}
	d := &derivation{
		fs: r.fs, dir: dir, shape: r.shape, location: r.o.Store.IndexLocation, queues: r.o.Queues, index: r.o.Index, topic: r.o.Topic, old: r.old,
		maxGap: consumequeue.DefaultMaxGap, logMin: parts[0].start, dropped: r.misplaced, latest: latestTime(&r.o.Store),
	}
	d.scan = logScan{fs: r.fs, parts: parts, fileSize: r.fileSize, tags: r.shape.tags, light: r.shape.light, delays: r.shape.delays}
	d.scan.told = r.step("reading the log", int64(len(parts))*r.fileSize)
	r.der = d
	if err := d.run(ctx); err != nil {
		return d, none, err
	}
	if err := r.judgeEnd(ctx, r.files); err != nil {
		d.discard()
		return d, none, err
	}
	if d.queues {
		if err := r.keepExpired(d); err != nil {
			d.discard()
			return d, none, err
		}
	}
	r.result.Messages, r.result.Units = d.records, d.units
	r.result.MinOffset, r.result.EndOffset = message.PhysicalOffset(d.logMin), message.PhysicalOffset(d.scan.end)
	for _, t := range d.topics {
		for _, q := range t.queues {
			if q.end >= 0 {
				r.result.Queues++
			}
		}
	}
	if d.idx != nil {
		for _, f := range d.idx.Files() {
			r.result.IndexFiles++
			r.result.IndexEntries += int64(max(f.Header.Count, 1) - 1)
		}
	}
	ext, err := d.finish(ctx)
	return d, ext, err
}

// recordIn returns a function that reads a record of the log.
func (r *rebuilder) recordIn(parts []logPart) func(int64) (message.View, bool) {
	return func(phy int64) (message.View, bool) {
		i := (phy - parts[0].start) / r.fileSize
		if phy < parts[0].start || i >= int64(len(parts)) {
			return message.View{}, false
		}
		return readRecord(r.fs, parts[i].path, parts[i].start, phy, r.fileSize)
	}
}

// misplaced reports a record that gets no unit.
func (r *rebuilder) misplaced(p *placed) {
	r.result.Misplaced++
	r.note(Event{Type: "misplaced", CommitLogOffset: p.phy, Length: int64(p.size), EventMessage: &EventMessage{Topic: p.topic, QueueID: p.id, QueueOffset: p.off},
		Reason: "the record contradicts the other records of its queue and gets no unit"})
}

// judgeEnd fails when what follows the last valid record is damage with more
// records behind it. A torn tail is an end.
func (r *rebuilder) judgeEnd(ctx context.Context, parts []logPart) error {
	d := r.der
	from := d.scan.end
	if d.last.phy >= 0 {
		from = d.last.phy
	}
	var dirs []string
	for _, p := range parts {
		if dir := filepath.Dir(p.path); !slices.Contains(dirs, dir) {
			dirs = append(dirs, dir)
		}
	}
	log, _, err := commitlog.Open(commitlog.Options{FS: r.fs, Dirs: dirs, FileSize: r.fileSize, WriteWithoutMmap: true, CreateInline: true})
	if err != nil {
		return err
	}
	defer log.Close()
	tail, err := log.FindTail(ctx, message.PhysicalOffset(from), commitlog.ScanOptions{Check: message.CheckOptions{BodyCRC: true}})
	if err != nil {
		return err
	}
	if tail.ValidBehind > 0 || tail.Partial {
		reason := tail.Reason
		if reason == nil {
			reason = base.Corruptf(parts[0].path, d.scan.end-parts[0].start, "no record begins here")
		}
		return fmt.Errorf("the log is damaged, %d valid records follow; gantry store repair keeps them: %w", tail.ValidBehind, reason)
	}
	if int64(tail.End) < d.scan.end { // the last record looks torn
		return base.Corruptf(r.show(parts[0].path), d.last.phy, "the last record, at %d, did not wholly reach the disk; open the store first, or repair it", d.last.phy)
	}
	return nil
}

// keepExpired carries over queues of which the log has no record any more: they
// are the only memory of their next offsets.
func (r *rebuilder) keepExpired(d *derivation) error {
	l := &losses{repairer: r.repairer, d: d}
	l.log = &logRepair{repairer: r.repairer, end: d.scan.end}
	for _, old := range r.old.sorted() {
		if d.topic != "" && old.topic != d.topic {
			continue
		}
		if t := d.topics[old.topic]; t != nil && t.queues[old.id] != nil && t.queues[old.id].end >= 0 {
			continue
		}
		if err := l.wholeQueue(old); err != nil {
			return err
		}
	}
	return nil
}

// made lists what a rebuild replaces below a store, by name.
func (r *rebuilder) made() (names []string) {
	if r.o.Queues {
		for _, dir := range []string{queueDirs[0], queueDirs[1], queueExtDir} {
			if r.o.Topic != "" {
				dir += "/" + r.o.Topic
			}
			names = append(names, dir)
		}
	}
	if r.o.Index {
		names = append(names, "index")
	}
	return names
}

// copyAll makes a new store.
func (r *rebuilder) copyAll(ctx context.Context) (err error) {
	if err := r.findLog(); err != nil {
		return err
	}
	if r.out, err = makeNewDir(r.fs, r.dir, r.o.Out); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.out.abandon())
		}
	}()
	parts, err := r.copyLog(ctx)
	if err != nil {
		return err
	}
	if err := r.copyOthers(ctx); err != nil {
		return err
	}
	_, ext, err := r.derive(ctx, r.out.path, parts)
	if err != nil {
		return err
	}
	if r.sum.Unreadable > 0 {
		return base.Corruptf(r.dir, 0, "parts of it cannot be read; gantry store repair copes with that")
	}
	if err := r.endLog(parts, r.der.scan.end); err != nil {
		return err
	}
	if err := r.newCheckpoint(ctx, r.out.path, ext); err != nil {
		return err
	}
	return r.out.finish()
}

// copyLog copies the files of the log.
func (r *rebuilder) copyLog(ctx context.Context) (parts []logPart, err error) {
	c := &treeCopy{fs: r.fs, dst: r.out, bad: r.unreadable, told: r.step("copying the log", int64(len(r.files))*r.fileSize)}
	for _, f := range r.files {
		rel := r.rel[filepath.Dir(f.path)] + "/" + filepath.Base(f.path)
		if err := c.file(ctx, f.path, rel); err != nil {
			return nil, err
		}
		parts = append(parts, logPart{r.out.at(rel), f.start})
	}
	return parts, nil
}

// copyOthers copies what is not made anew.
func (r *rebuilder) copyOthers(ctx context.Context) error {
	entries, err := r.fs.List(r.dir)
	if err != nil {
		return err
	}
	r.log = &logRepair{repairer: r.repairer}
	for d := range r.rel {
		r.log.dirs = append(r.log.dirs, d)
	}
	c := &treeCopy{fs: r.fs, dst: r.out, bad: r.unreadable, skipped: func(name, reason string) {
		r.note(Event{Type: "leftOut", File: name, Reason: reason})
	}}
	made := r.made()
	for _, e := range entries {
		path := filepath.Join(r.dir, e.Name)
		switch {
		case slices.Contains(made, e.Name), r.holdsLog(path), slices.Contains([]string{"checkpoint", "abort", "abort.bak", "lock", stagingDir}, e.Name):
		case slices.Contains(copied, e.Name), slices.Contains(remade, e.Name), e.Name == quarantineDir:
			err = r.copyEntry(ctx, c, path, e)
		default:
			r.note(Event{Type: "leftOut", File: e.Name, Reason: "not a part of a store"})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// copyEntry copies something at the top of the store, without the topic that is
// made anew.
func (r *rebuilder) copyEntry(ctx context.Context, c *treeCopy, path string, e vfs.Entry) error {
	if r.o.Topic == "" || !r.o.Queues || !slices.Contains([]string{queueDirs[0], queueDirs[1], queueExtDir}, e.Name) {
		return c.entry(ctx, path, e.Name, e, 0)
	}
	topics, err := r.fs.List(path)
	if err != nil {
		return err
	}
	for _, t := range topics {
		if t.Name == r.o.Topic {
			continue
		}
		if err := c.entry(ctx, filepath.Join(path, t.Name), e.Name+"/"+t.Name, t, 1); err != nil {
			return err
		}
	}
	return nil
}

// endLog makes zeros of what lies behind the end of the copied log.
func (r *rebuilder) endLog(parts []logPart, end int64) (err error) {
	for i, p := range parts {
		switch {
		case p.start+r.fileSize <= end:
		case p.start >= end && i > 0:
			if err := r.fs.Remove(p.path); err != nil {
				return err
			}
		default:
			if err := zeroTail(r.fs, p.path, end-p.start, r.fileSize); err != nil {
				return err
			}
		}
	}
	return nil
}

// zeroTail makes the bytes of a file from an offset on zeros.
func zeroTail(fsys vfs.FS, path string, from, size int64) (err error) {
	f, err := fsys.Open(path, vfs.ReadWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	// Cutting and lengthening gives back the blocks.
	if err := f.Truncate(from); err != nil {
		return err
	}
	if err := f.Truncate(size); err != nil {
		return err
	}
	return f.Sync()
}

// newCheckpoint writes a checkpoint that fits what was made in the store at dir.
// Of what was not made the old one has to tell: where it does not, because
// another program wrote it, opening compares everything once.
func (r *rebuilder) newCheckpoint(ctx context.Context, dir string, ext checkpoint.Ext) error {
	old, err := checkpoint.Open(r.fs, filepath.Join(r.dir, checkpoint.FileName), r.o.Store.Now)
	if err != nil {
		return err
	}
	v, was := old.Load()
	abort, err := checkpoint.HasAbort(r.fs, r.dir)
	if err != nil {
		return err
	}
	whole := r.o.Queues && r.o.Index && r.o.Topic == ""
	known := was != nil && !abort && was.DispatchedTo == ext.DispatchedTo
	path := filepath.Join(dir, checkpoint.FileName)
	switch {
	case whole:
		return saveCheckpoint(r.fs, path, checkpoint.Values{MasterFlushed: v.MasterFlushed}, ext, r.der)
	case known:
		keep := *was
		if r.o.Index {
			keep.Index = ext.Index
			v.IndexTime = r.der.full
		} else if keep.QueueCount, keep.QueueHash, err = fingerprint(ctx, r.fs, dir); err != nil {
			return err
		}
		f, err := checkpoint.Open(r.fs, path, r.o.Store.Now)
		if err != nil {
			return err
		}
		return errors.Join(f.Save(v, &keep), f.Close())
	}
	if r.o.Index {
		v.IndexTime = r.der.full
	}
	f, err := checkpoint.Open(r.fs, path, r.o.Store.Now)
	if err != nil {
		return err
	}
	return errors.Join(f.Save(v, nil), f.Close())
}

// fingerprint is that of the queues below dir.
func fingerprint(ctx context.Context, fsys vfs.FS, dir string) (count, hash uint64, err error) {
	for i, root := range queueDirs {
		t, _, err := consumequeue.OpenTable(ctx, consumequeue.Options{FS: fsys, Dir: filepath.Join(dir, root), Kind: consumequeue.Kind(i)}, math.MaxInt64)
		if err != nil {
			return 0, 0, err
		}
		c, h := t.Fingerprint()
		count, hash = count+c, hash+h*[2]uint64{1, 31}[i]
		t.Discard()
	}
	return count, hash, nil
}

// inPlace changes the store itself.
func (r *rebuilder) inPlace(ctx context.Context) (err error) {
	lock, err := checkpoint.TakeLock(r.fs, r.dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, lock.Close()) }()
	if abort, err := checkpoint.HasAbort(r.fs, r.dir); err != nil {
		return err
	} else if abort {
		return fmt.Errorf("%s was not closed properly: open it once, or make a copy with --out: %w", r.dir, errUnclean)
	}
	if err := r.findLog(); err != nil {
		return err
	}
	if err := r.bringBack(); err != nil {
		return err
	}
	staging := filepath.Join(r.dir, stagingDir)
	fresh := filepath.Join(staging, stagedNew)
	if err := r.fs.MkdirAll(fresh); err != nil {
		return err
	}
	_, ext, err := r.derive(ctx, fresh, r.files)
	if err == nil && r.sum.Unreadable > 0 {
		err = base.Corruptf(r.dir, 0, "parts of it cannot be read; gantry store repair copes with that")
	}
	if err == nil && r.der.scan.stopped != nil {
		err = fmt.Errorf("the log does not end cleanly; open the store once, or make a copy with --out: %w", r.der.scan.stopped)
	}
	if err != nil {
		return errors.Join(err, removeAll(r.fs, staging))
	}
	if err := r.swap(staging); err != nil {
		return err
	}
	if err := r.newCheckpoint(ctx, r.dir, ext); err != nil {
		return err
	}
	if err := removeAll(r.fs, staging); err != nil {
		return err
	}
	return r.fs.SyncDir(r.dir)
}

// errUnclean refuses a store that was not closed properly.
var errUnclean = errors.New("the last stop was not clean")

// swap gives the new directories their names, and puts the old ones aside.
func (r *rebuilder) swap(staging string) error {
	aside := filepath.Join(staging, stagedOld)
	for _, name := range r.made() {
		live := filepath.Join(r.dir, filepath.FromSlash(name))
		fresh := filepath.Join(staging, stagedNew, filepath.FromSlash(name))
		old := filepath.Join(aside, strings.ReplaceAll(name, "/", "@"))
		if err := r.fs.MkdirAll(aside); err != nil {
			return err
		}
		_, liveErr := r.fs.Stat(live)
		_, freshErr := r.fs.Stat(fresh)
		if liveErr == nil {
			if err := r.fs.Rename(live, old); err != nil {
				return err
			}
		}
		if freshErr == nil {
			if err := r.fs.MkdirAll(filepath.Dir(live)); err != nil {
				return err
			}
			if err := r.fs.Rename(fresh, live); err != nil {
				return err
			}
		}
		for _, dir := range []string{filepath.Dir(live), aside, filepath.Dir(fresh)} {
			if err := r.fs.SyncDir(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return err
			}
		}
	}
	return nil
}

// bringBack undoes what a rebuild left that was cut short: directories that it
// had put aside get their names back, unless the new ones have them already.
func (r *rebuilder) bringBack() error {
	staging := filepath.Join(r.dir, stagingDir)
	entries, err := r.fs.List(filepath.Join(staging, stagedOld))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for _, e := range entries {
		name := e.Name
		if root, topic, ok := strings.Cut(name, "@"); ok {
			name = root + "/" + topic
		}
		live := filepath.Join(r.dir, filepath.FromSlash(name))
		if _, err := r.fs.Stat(live); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := r.fs.Rename(filepath.Join(staging, stagedOld, e.Name), live); err != nil {
			return err
		}
		if err := r.fs.SyncDir(filepath.Dir(live)); err != nil {
			return err
		}
	}
	if err := removeAll(r.fs, staging); err != nil {
		return err
	}
	return r.fs.SyncDir(r.dir)
}
