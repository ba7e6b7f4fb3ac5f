package tool

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"unicode"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

const (
	// maxMissingFiles bounds the files that may be missing in the middle of a
	// log: each becomes a file of its own.
	maxMissingFiles = 10_000
	// maxRanges bounds the damaged ranges of a log, so that memory is bounded.
	maxRanges = 2_000_000
)

// logFile is a file of the log that is being repaired.
type logFile struct {
	start      int64  // of the part of the log that it holds
	path, name string // in the source; empty when the file is missing
	rel        string // in the copy
	made       bool   // the copy exists
	kept       string // the file with its damaged bytes, in the copy
	walked     *walkedFile
	// claim is how well it is known that the file holds that part: 0 by its
	// name, 1 by its records, 2 by both.
	claim int
}

// logRepair copies a damaged log.
type logRepair struct {
	*repairer
	dirs, rel []string // of the log: paths, and names in the copy
	fileSize  int64
	files     []*logFile // by start
	ranges    []damagedRange
	end       int64
	lastTime  int64
}

// logDirs returns the directories of the log, and their names in a copy. Those
// below the store stay where they are; when one lies elsewhere all of the copy
// goes to commitlog.
func logDirs(dir string, writable, readOnly []string) (paths, rel []string) {
	if len(writable) == 0 {
		writable = []string{filepath.Join(dir, "commitlog")}
	}
	outside := false
	for _, p := range slices.Concat(writable, readOnly) {
		r, err := filepath.Rel(dir, p)
		if err != nil || !filepath.IsLocal(r) || r == "." {
			outside = true
		}
		if slices.Contains(paths, p) {
			continue
		}
		paths, rel = append(paths, p), append(rel, filepath.ToSlash(r))
	}
	if outside {
		for i := range rel {
			rel[i] = "commitlog"
		}
	}
	return paths, rel
}

// find lists the files of the log and finds out what part of it each holds: by
// its records, so that a file under a wrong name is put right, else by its name.
func (l *logRepair) find(ctx context.Context) error {
	type candidate struct {
		path, name string
		dir        int
		named      int64 // -1: no name of a log file
		size       int64
	}
	var all []candidate
	for i, dir := range l.dirs {
		entries, err := l.fs.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			l.note(Event{Type: "leftOut", File: l.show(dir), Reason: "there is no such directory"})
			continue
		}
		if err != nil {
			l.unreadable(l.show(dir), 0, 0, err)
			continue
		}
		for _, e := range entries {
			c := candidate{path: filepath.Join(dir, e.Name), dir: i, named: -1, size: e.Size}
			c.name = l.show(c.path)
			if start, ok := mappedfile.ParseFileName(e.Name); ok && start < math.MaxInt64/2 {
				c.named = start
			}
			switch {
			case !e.IsRegular():
				l.note(Event{Type: "leftOut", File: c.name, Reason: "not a file of its own"})
			case c.named < 0 && !digits(e.Name):
				l.note(Event{Type: "leftOut", File: c.name, Reason: "not a commit log file"})
			default:
				all = append(all, c)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b candidate) int { return cmp.Compare(a.named, b.named) })
	if l.fileSize = l.o.Store.CommitLogFileSize; l.fileSize == 0 {
		var v lengthVotes
		for i, c := range all {
			v.length(c.size)
			if i > 0 && all[i-1].named >= 0 {
				v.distance(c.named - all[i-1].named)
			}
		}
		l.fileSize = v.best()
	}
	if len(all) == 0 {
		return nil
	}
	if l.fileSize < minFiller+message.BlankSize {
		return base.Corruptf(l.show(l.dirs[0]), 0, "no file size can be made out; give mappedFileSizeCommitLog")
	}
	w := &logWalker{ctx: ctx, fileSize: l.fileSize, fs: l.fs, bad: l.unreadable}
	at := map[int64]*logFile{}
	for _, c := range all {
		start, ok, err := w.home(c.path, c.name, c.named)
		if err != nil {
			return err
		}
		if !ok { // it has no record: its name counts
			if start = c.named; start < 0 || start%l.fileSize != 0 {
				l.note(Event{Type: "leftOut", File: c.name, Reason: "no record is in it, and its name is no position"})
				continue
			}
		}
		f := &logFile{start: start, path: c.path, name: c.name, rel: l.rel[c.dir] + "/" + mappedfile.FileName(start)}
		if ok {
			f.claim = 1
			if start == c.named {
				f.claim = 2
			}
		}
		if old := at[start]; old != nil {
			if old.claim >= f.claim {
				f, old = old, f
			}
			l.note(Event{Type: "leftOut", File: old.name, Reason: fmt.Sprintf("position %d is also in %s", start, f.name)})
		}
		at[start] = f
	}
	for _, f := range at {
		l.files = append(l.files, f)
	}
	slices.SortFunc(l.files, func(a, b *logFile) int { return cmp.Compare(a.start, b.start) })
	return l.findGaps()
}

// findGaps adds the files that are missing.
func (l *logRepair) findGaps() error {
	var whole []*logFile
	missing := int64(0)
	for i, f := range l.files {
		if base := filepath.Base(f.path); base != mappedfile.FileName(f.start) {
			l.note(Event{Type: "moved", File: f.name, CommitLogOffset: f.start, Reason: "its records belong to another place than its name says"})
		}
		if i > 0 {
			prev := l.files[i-1]
			n := (f.start - prev.start) / l.fileSize
			if missing += n - 1; missing > maxMissingFiles {
				return base.Corruptf(f.name, 0, "%d files are missing in front of it: too many to be made", n-1)
			}
			for k := int64(1); k < n; k++ {
				start := prev.start + k*l.fileSize
				whole = append(whole, &logFile{start: start, rel: l.rel[0] + "/" + mappedfile.FileName(start)})
			}
		}
		whole = append(whole, f)
	}
	l.files = whole
	return nil
}

// digits reports whether a name is made of digits of any script: it was meant
// for a position.
func digits(name string) bool {
	for _, r := range name {
		if !unicode.IsDigit(r) {
			return false
		}
	}
	return name != ""
}

// lengthVotes finds the length of files out of their lengths and the distances
// of their names. Of two with equal votes the greater one counts: files are cut
// more often than they grow.
type lengthVotes struct{ lengths, distances map[int64]int }

func (v *lengthVotes) add(m *map[int64]int, n int64) {
	if *m == nil {
		*m = map[int64]int{}
	}
	if n > 0 {
		(*m)[n]++
	}
}

func (v *lengthVotes) length(n int64)   { v.add(&v.lengths, n) }
func (v *lengthVotes) distance(n int64) { v.add(&v.distances, n) }

func (v *lengthVotes) best() (best int64) {
	most := 0
	for _, m := range []map[int64]int{v.lengths, v.distances} {
		for n := range m {
			if v.lengths[n] == 0 && len(v.lengths) != 1 {
				continue // a distance alone may be a gap
			}
			if votes := v.lengths[n] + v.distances[n]; votes > most || votes == most && n > best {
				best, most = n, votes
			}
		}
	}
	return best
}

// copy walks all files and copies what is valid in them, several at a time.
func (l *logRepair) copy(ctx context.Context) error {
	total := int64(0)
	for _, f := range l.files {
		if f.path != "" {
			total += l.fileSize
		}
	}
	told := l.step("copying the log", total)
	next := make(chan *logFile)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	errs := make(chan error, len(l.files)+1)
	for range min(runtime.GOMAXPROCS(0), 8, len(l.files)) {
		group.Go(func() {
			w := &logWalker{ctx: ctx, fileSize: l.fileSize, fs: l.fs, bad: l.unreadable, told: told}
			for f := range next {
				if err := l.copyFile(w, f); err != nil {
					errs <- err
					cancel()
				}
			}
		})
	}
feed:
	for _, f := range l.files {
		select {
		case next <- f:
		case <-ctx.Done():
			break feed
		}
	}
	close(next)
	group.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return ctx.Err()
	}
}

func (l *logRepair) copyFile(w *logWalker, f *logFile) (err error) {
	if f.path == "" {
		f.walked = &walkedFile{start: f.start, last: -1, reason: "the file is missing"}
		return nil
	}
	w.create = func() (vfs.File, error) {
		f.made = true
		out, err := l.out.create(f.rel)
		if err != nil {
			return nil, err
		}
		return out, out.Truncate(l.fileSize)
	}
	w.keep = func() (vfs.File, error) {
		f.kept = keptName(f.start)
		return l.out.create(f.kept)
	}
	f.walked, err = w.walk(f.path, f.name, f.start)
	return err
}

// judge puts the files together: which of them are live, and where the log
// ends. A file with older records than its predecessor is left over from a log
// that was cut, when the log does not lead into it.
func (l *logRepair) judge(ctx context.Context) error {
	last := -1
	before := times(nil)
	for i, f := range l.files {
		w := f.walked
		if w.records == 0 && !w.full {
			continue
		}
		if last >= 0 && w.records > 0 && w.early.middle() < before.middle() &&
			(!l.files[last].walked.full || last < i-1 || w.first > 0) {
			w.stale, w.records = w.records, 0
			continue
		}
		last = i
		if w.records > 0 {
			before = w.late
		}
	}
	if last < 0 {
		for _, f := range l.files {
			if f.walked.tail[1] > f.walked.tail[0] {
				return base.Corruptf(f.name, f.walked.tail[0], "no file of the log has a single intact record: there is nothing to keep (%s)", f.walked.reason)
			}
		}
		l.files = nil
		return nil
	}
	for i, f := range l.files {
		if i > last {
			if err := l.leave(f); err != nil {
				return err
			}
			continue
		}
		if err := l.settle(ctx, f, i == last); err != nil {
			return err
		}
	}
	l.files = l.files[:last+1]
	if len(l.ranges) > maxRanges {
		return base.Corruptf(l.show(l.dirs[0]), 0, "%d damaged places: this is no commit log", len(l.ranges))
	}
	// What has no store time before it gets one from behind.
	early := int64(0)
	for _, f := range l.files {
		if len(f.walked.early) > 0 {
			early = f.walked.early[0]
			break
		}
	}
	for i := range l.ranges {
		if l.ranges[i].time == 0 {
			l.ranges[i].time = early
		}
	}
	return nil
}

// leave leaves out a file behind the end of the log.
func (l *logRepair) leave(f *logFile) error {
	w := f.walked
	switch {
	case w.stale > 0:
		l.note(Event{Type: "tail", File: f.name, CommitLogOffset: f.start, Length: l.fileSize, Records: w.stale,
			Reason: "older records than those of the file before: left over from a log that was cut"})
	case w.tail[1] > w.tail[0]:
		l.note(Event{Type: "tail", File: f.name, Offset: w.tail[0], CommitLogOffset: f.start + w.tail[0], Length: w.tail[1] - w.tail[0],
			Quarantine: f.kept, Reason: cmp.Or(w.reason, "bytes behind the end of the log")})
	}
	if f.made {
		return l.out.fs.Remove(l.out.at(f.rel))
	}
	return nil
}

// settle takes the ranges of a live file, and ends the log in the last one.
func (l *logRepair) settle(ctx context.Context, f *logFile, last bool) error {
	w := f.walked
	end := f.start + l.fileSize
	if last && !w.full {
		cut, err := l.dropTorn(ctx, f)
		if err != nil {
			return err
		}
		end = f.start + w.end
		if w.tail[1] > w.tail[0] {
			if !cut {
				l.note(Event{Type: "tail", File: f.name, Offset: w.tail[0], CommitLogOffset: f.start + w.tail[0], Length: w.tail[1] - w.tail[0],
					Quarantine: f.kept, Records: w.stale, Reason: cmp.Or(w.reason, "bytes behind the end of the log")})
			}
			l.sum.TailBytes += w.tail[1] - w.tail[0]
		}
	}
	for _, r := range w.ranges {
		if r.to <= end || !last {
			l.addRange(f, r)
		}
	}
	if !last && !w.full {
		l.addRange(f, damagedRange{from: f.start + w.end, to: end, time: w.lastTime, reason: cmp.Or(w.reason, "zeros up to the end of the file")})
	}
	w.ranges = nil
	if w.records > 0 {
		l.lastTime = w.lastTime
	}
	l.sum.ChecksumsAdded += w.checksumsAdded
	l.end = end
	return nil
}

func (l *logRepair) addRange(f *logFile, r damagedRange) {
	if r.time == 0 {
		r.time = l.lastTime
	}
	l.ranges = append(l.ranges, damagedRange{from: r.from, to: r.to, time: r.time})
	l.sum.DamagedBytes += r.to - r.from
	e := Event{Type: "damage", File: cmp.Or(f.name, l.rel[0]+"/"+mappedfile.FileName(f.start)), Offset: r.from - f.start, CommitLogOffset: r.from,
		Length: r.to - r.from, Quarantine: f.kept, Reason: r.reason}
	if e.Reason == "" {
		e.Reason = "zeros: pages that never reached the disk"
	}
	l.describe(&e, f, r)
	l.note(e)
}

// dropTorn gives up a last record whose properties end in a zero byte and that
// zeros follow, as recovery does: its end did not reach the disk.
func (l *logRepair) dropTorn(ctx context.Context, f *logFile) (bool, error) {
	w := f.walked
	if w.records == 0 || !w.endsInZero || !w.zerosFollow {
		return false, nil
	}
	end := w.end
	w.records--
	w.tail = [2]int64{w.last, max(end, w.tail[1])}
	w.end, w.lastTime = w.prevEnd, w.prevTime
	f.kept = cmp.Or(f.kept, keptName(f.start))
	l.note(Event{Type: "tail", File: f.name, Offset: w.last, CommitLogOffset: f.start + w.last, Length: end - w.last, Quarantine: f.kept,
		Reason: "the last record's properties end in a zero byte, and zeros follow: its end did not reach the disk"})
	return true, l.moveToQuarantine(ctx, f, w.last, end)
}

// keptName is the file that the damaged bytes of a log file go to, at the places
// that they had in it.
func keptName(start int64) string {
	return quarantineDir + "/" + mappedfile.FileName(start) + ".damaged"
}

// moveToQuarantine takes a part of the copy of a file out of it.
func (l *logRepair) moveToQuarantine(ctx context.Context, f *logFile, from, to int64) (err error) {
	out, err := l.out.fs.Open(l.out.at(f.rel), vfs.ReadWrite)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	src, err := openSource(l.fs, f.path, f.name, l.unreadable)
	if err != nil {
		return err
	}
	defer src.close()
	kept, err := l.out.fs.Open(l.out.at(f.kept), vfs.ReadWrite)
	if errors.Is(err, fs.ErrNotExist) {
		kept, err = l.out.create(f.kept)
	}
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, kept.Close()) }()
	buf := make([]byte, copyChunk)
	if err := copyRange(ctx, kept, src, from, to, buf, nil); err != nil {
		return err
	}
	clear(buf)
	for off := from; off < to; {
		n := min(to-off, copyChunk)
		if _, err := out.WriteAt(buf[:n], off); err != nil {
			return err
		}
		off += n
	}
	return kept.Sync()
}

// fileOf returns the file that holds a position of the log.
func (l *logRepair) fileOf(phy int64) *logFile {
	i := int((phy - l.files[0].start) / l.fileSize)
	if phy < l.files[0].start || i >= len(l.files) {
		return nil
	}
	return l.files[i]
}

// cover writes fillers and blank records over the damaged ranges.
func (l *logRepair) cover() error {
	for _, f := range l.files {
		var mine []damagedRange
		from, _ := slices.BinarySearchFunc(l.ranges, f.start, func(r damagedRange, start int64) int { return cmp.Compare(r.from, start) })
		for _, r := range l.ranges[from:] {
			if r.from >= f.start+l.fileSize {
				break
			}
			mine = append(mine, r)
		}
		if err := l.coverFile(f, mine); err != nil {
			return fmt.Errorf("cover the damage in %s: %w", f.rel, err)
		}
	}
	return nil
}

func (l *logRepair) coverFile(f *logFile, ranges []damagedRange) (err error) {
	out, err := l.openCopy(f)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	for _, r := range ranges {
		if r.to == f.start+l.fileSize {
			err = writeBlank(out, l.fileSize, r.to-r.from)
		} else {
			err = writeFillers(out, f.start, r.from, r.to, r.time, FillerTopic)
		}
		if err != nil {
			return err
		}
	}
	return out.Sync()
}

// openCopy opens the copy of a file to be changed, and makes it when it is not
// there.
func (l *logRepair) openCopy(f *logFile) (vfs.File, error) {
	if f.made {
		return l.out.fs.Open(l.out.at(f.rel), vfs.ReadWrite)
	}
	out, err := l.out.create(f.rel)
	if err != nil {
		return nil, err
	}
	f.made = true
	return out, out.Truncate(l.fileSize)
}

// rangeAt returns the index of the damaged range that holds a position, or -1.
func (l *logRepair) rangeAt(phy int64) int {
	i, ok := slices.BinarySearchFunc(l.ranges, phy, func(r damagedRange, phy int64) int { return cmp.Compare(r.from, phy) })
	if !ok {
		i--
	}
	if i < 0 || phy >= l.ranges[i].to {
		return -1
	}
	return i
}
