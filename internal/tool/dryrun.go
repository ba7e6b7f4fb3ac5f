package tool

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/overlayfs"
	"github.com/gantrymq/gantry/message"
)

// Prediction is what opening a store for writing would do.
type Prediction struct {
	// Refused is why opening would fail, without changing anything; nil: it
	// would not.
	Refused  error
	Recovery gantry.Recovery
	Queues   []QueueChange // that would change
	Index    []IndexChange
	Removed  []string // files that would go, relative to the store
	Created  []string // files that would be made, but for abort, checkpoint and lock
	// SetAside are valid records behind the new end of the log, which would be
	// moved to quarantine/.
	SetAside int64
	// LostUnits are queue units of messages behind the new end of the log.
	LostUnits int64
}

// QueueChange is what would happen to one consume queue.
type QueueChange struct {
	Topic     string
	QueueID   int32
	Added     int64 // units for messages that had none
	Removed   int64 // units that would go
	Changed   int64 // units that would be replaced
	MaxOffset int64 // afterwards; 0 for a queue that is gone
	lost      int64
}

// IndexChange is what would happen to one index file.
type IndexChange struct {
	File          string
	Before, After int32 // entries; -1: there is no such file, or it cannot be read
}

// Changes reports whether opening would be refused, lose something or rebuild
// something.
func (p *Prediction) Changes() bool {
	return p.Refused != nil || p.Recovery.Truncated > 0 || len(p.Recovery.Quarantined) > 0 || len(p.Recovery.Repaired) > 0 ||
		len(p.Queues) > 0 || len(p.Index) > 0
}

// Predict opens the store in dir for writing, above a file system that keeps all
// changes to itself, and says what that did. The directory is only read; what
// is predicted is what the same options would do, because it is the same code.
//
// What opening would write is in memory as far as it is little, else in a
// temporary file. The error is for what says nothing about
// the store: it is held, or not there.
//
// With o.Live it may be held, and what is predicted is what opening would do if
// its holder had crashed at the moment.
func Predict(ctx context.Context, dir string, o gantry.Options) (p Prediction, err error) {
	p, err = predict(ctx, dir, o)
	// Beside a writer, zeros may have been seen in front of a record that came
	// later, and files go. What is damaged stays so.
	for tries := 0; o.Live && tries < liveTries && ctx.Err() == nil && (p.Refused != nil || errors.Is(err, fs.ErrNotExist)); tries++ {
		p, err = predict(ctx, dir, o)
	}
	return p, err
}

// liveTries is how often Predict looks again beside a writer.
const liveTries = 5

// notHeld is a file system on which nobody has a lock.
type notHeld struct{ vfs.FS }

// Locked implements vfs.FS.
func (notHeld) Locked(string) (bool, error) { return false, nil }

func predict(ctx context.Context, dir string, o gantry.Options) (p Prediction, err error) {
	source, live := o.FS, o.Live
	lower := overlayfs.New(source)
	if live {
		lower = overlayfs.NewSnapshot(notHeld{source}, mappedfile.InTheMaking)
	}
	over := &watchFS{FS: lower, touched: map[string]bool{}}
	o.FS, o.ReadOnly, o.Live, o.NoCreate = over, false, false, true
	o.CleanInterval, o.NoDelivery, o.WriteWithoutMmap = -1, true, true
	s, err := gantry.Open(ctx, dir, &o)
	switch {
	case err == nil:
	case ctx.Err() != nil, errors.Is(err, gantry.ErrLocked), errors.Is(err, fs.ErrNotExist), errors.Is(err, fs.ErrPermission):
		return p, err
	default:
		p.Refused = err
		return p, nil
	}
	p.Recovery = s.Recovery()
	for i, name := range p.Recovery.Quarantined {
		p.Recovery.Quarantined[i] = relative(dir, name)
	}
	ends := map[queueName]int64{}
	for _, q := range s.Queues() {
		kind := consumequeue.Simple
		if q.Batch {
			kind = consumequeue.Batch
		}
		ends[queueName{kind, q.Topic, q.QueueID}] = int64(q.MaxOffset)
	}
	if err := s.Close(); err != nil {
		return p, err
	}
	c := comparison{before: source, after: over.FS, dir: filepath.Clean(dir), p: &p, ends: ends, end: p.Recovery.EndOffset, live: live}
	return p, c.run(ctx, over.names(), &o)
}

// relative is a path below dir with slashes.
func relative(dir, path string) string {
	if rel, err := filepath.Rel(dir, path); err == nil && filepath.IsLocal(rel) {
		return filepath.ToSlash(rel)
	}
	return filepath.ToSlash(path)
}

// watchFS notes which files may have changed.
type watchFS struct {
	vfs.FS
	mu      sync.Mutex
	touched map[string]bool
}

func (w *watchFS) touch(names ...string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, n := range names {
		w.touched[filepath.Clean(n)] = true
	}
}

func (w *watchFS) names() []string { return slices.Sorted(maps.Keys(w.touched)) }

// Create implements vfs.FS.
func (w *watchFS) Create(name string) (vfs.File, error) {
	w.touch(name)
	return w.FS.Create(name)
}

// Open implements vfs.FS.
func (w *watchFS) Open(name string, mode vfs.Mode) (vfs.File, error) {
	if mode != vfs.ReadOnly {
		w.touch(name)
	}
	return w.FS.Open(name, mode)
}

// Remove implements vfs.FS.
func (w *watchFS) Remove(name string) error {
	w.touch(name)
	return w.FS.Remove(name)
}

// Rename implements vfs.FS.
func (w *watchFS) Rename(oldName, newName string) error {
	w.touch(oldName, newName)
	return w.FS.Rename(oldName, newName)
}

// comparison holds a store before and after opening against each other.
type comparison struct {
	before, after vfs.FS
	dir           string
	p             *Prediction
	ends          map[queueName]int64
	end           message.PhysicalOffset
	live          bool // what is behind end came later
	queues        map[queueName]*QueueChange
}

func (c *comparison) run(ctx context.Context, names []string, o *gantry.Options) error {
	c.queues = map[queueName]*QueueChange{}
	for _, name := range names {
		if err := ctx.Err(); err != nil {
			return err
		}
		rel := relative(c.dir, name)
		was, wasErr := c.before.Stat(name)
		is, isErr := c.after.Stat(name)
		if wasErr != nil && isErr != nil || wasErr == nil && !was.IsRegular() || isErr == nil && !is.IsRegular() {
			continue
		}
		top, _, _ := strings.Cut(rel, "/")
		switch top {
		case "abort", "checkpoint", "lock", "quarantine", "config":
			continue // not data, or told elsewhere
		}
		switch {
		case isErr != nil:
			c.p.Removed = append(c.p.Removed, rel)
		case wasErr != nil:
			c.p.Created = append(c.p.Created, rel)
		}
		var err error
		switch top {
		case queueDirs[consumequeue.Simple]:
			err = c.queueFile(rel, name, consumequeue.Simple, wasErr == nil, isErr == nil)
		case queueDirs[consumequeue.Batch]:
			err = c.queueFile(rel, name, consumequeue.Batch, wasErr == nil, isErr == nil)
		case "index":
			c.indexFile(rel, name)
		}
		if err != nil {
			return err
		}
	}
	for n, q := range c.queues {
		if q.Added+q.Removed+q.Changed > 0 {
			q.MaxOffset = c.ends[n]
			c.p.Queues = append(c.p.Queues, *q)
			c.p.LostUnits += q.lost
		}
	}
	slices.SortFunc(c.p.Queues, func(a, b QueueChange) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.QueueID, b.QueueID))
	})
	if len(c.p.Recovery.Quarantined) > 0 {
		return c.setAside(ctx, o)
	}
	return nil
}

// setAside counts the valid records behind the end of the log.
func (c *comparison) setAside(ctx context.Context, o *gantry.Options) error {
	dirs, _ := logDirs(c.dir, o.CommitLogDirs, o.ReadOnlyCommitLogDirs)
	log, _, err := commitlog.Open(commitlog.Options{FS: c.before, Dirs: dirs, FileSize: o.CommitLogFileSize, WriteWithoutMmap: true, CreateInline: true})
	if err != nil {
		return err
	}
	defer log.Close()
	from := c.end
	for _, f := range log.Files() {
		if f.End > c.end {
			from = max(from, f.Start) // it ends where a file is missing
			break
		}
	}
	tail, err := log.FindTail(ctx, from, commitlog.ScanOptions{Check: message.CheckOptions{BodyCRC: true}})
	c.p.SetAside = tail.Records + int64(tail.ValidBehind)
	return err
}

// queueFile compares the units of one file.
func (c *comparison) queueFile(rel, name string, kind consumequeue.Kind, was, is bool) error {
	parts := strings.Split(rel, "/")
	if len(parts) != 4 {
		return nil
	}
	id, err := strconv.ParseInt(parts[2], 10, 32)
	if _, ok := mappedfile.ParseFileName(parts[3]); !ok || err != nil {
		return nil
	}
	n := queueName{kind, parts[1], int32(id)}
	q := c.queues[n]
	if q == nil {
		q = &QueueChange{Topic: n.topic, QueueID: n.id}
		c.queues[n] = q
	}
	nothing := func(string, int64, int64, error) {}
	var a, b *sourceFile
	if was {
		if a, err = openSource(c.before, name, rel, nothing); err != nil {
			return err
		}
		defer a.close()
	}
	if is {
		if b, err = openSource(c.after, name, rel, nothing); err != nil {
			return err
		}
		defer b.close()
	}
	size := int64(0)
	for _, s := range []*sourceFile{a, b} {
		if s != nil {
			size = max(size, s.size)
		}
	}
	unit := unitSizeOf(kind)
	chunk := 1000 * unit
	x, y := make([]byte, chunk), make([]byte, chunk)
	for off := int64(0); off+unit <= size; off += chunk {
		k := min(chunk, (size-off)/unit*unit)
		for _, r := range []struct {
			f *sourceFile
			p []byte
		}{{a, x[:k]}, {b, y[:k]}} {
			if r.f == nil {
				clear(r.p)
				continue
			}
			r.f.read(r.p, off)
		}
		for i := int64(0); i < k; i += unit {
			q.compare(kind, x[i:i+unit], y[i:i+unit], c.end, c.live)
		}
	}
	return nil
}

// compare compares one unit.
func (q *QueueChange) compare(kind consumequeue.Kind, was, is []byte, end message.PhysicalOffset, live bool) {
	if string(was) == string(is) {
		return
	}
	validWas, phy := validUnit(kind, was)
	validIs, _ := validUnit(kind, is)
	switch {
	case live && validWas && phy >= end:
	case validWas && validIs:
		q.Changed++
	case validWas:
		q.Removed++
		if phy >= end {
			q.lost++
		}
	case validIs:
		q.Added++
	}
}

// validUnit decodes a unit of either kind.
func validUnit(kind consumequeue.Kind, b []byte) (bool, message.PhysicalOffset) {
	if kind == consumequeue.Batch {
		u, _ := consumequeue.DecodeBatchUnit(b) // long enough
		return u.Valid(), u.Physical
	}
	u, _ := consumequeue.DecodeUnit(b)
	return u.Valid(), u.Physical
}

// indexFile compares the number of entries of one file.
func (c *comparison) indexFile(rel, name string) {
	count := func(fsys vfs.FS) int32 {
		r, err := indexfile.OpenReader(fsys, name)
		if err != nil {
			return -1
		}
		defer r.Close()
		return max(r.Header().Count, 1) - 1
	}
	change := IndexChange{rel, count(c.before), count(c.after)}
	if change.Before != change.After && !(c.live && change.Before > change.After) {
		c.p.Index = append(c.p.Index, change)
	}
}
