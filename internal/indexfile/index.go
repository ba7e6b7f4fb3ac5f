package indexfile

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
	"sync/atomic"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// rollTries is how often a new file is tried before Put gives up. The tries
// follow each other at once: they get over a name that is taken, and waiting
// is left to the back-off of the outage, because the caller's queues must not
// wait for the index.
const rollTries = 3

// Index is the key index of a store (RocketMQ: IndexService). Put,
// TruncateFrom and DeleteBefore are called by one goroutine each at most; Put
// must not run beside TruncateFrom. Everything may run beside lookups.
type Index struct {
	opt Options

	// files is an immutable snapshot, oldest first: sorted by the physical
	// offset where they end, which need not be the order of names. Readers pin
	// the file they use; writers replace the snapshot while holding mu.
	files atomic.Pointer[[]*file]
	// monotoneFrom is State.MonotoneFrom.
	monotoneFrom atomic.Int64
	closed       atomic.Bool

	// syncMu is held across everything that syncs, removes or rewrites files,
	// so that at most one such operation runs. It comes before mu.
	syncMu sync.Mutex

	// mu serialises changes of the index. It is not held across a sync, except
	// by TruncateFrom.
	mu struct {
		sync.Mutex
		cur        *writer   // the newest file; nil: none, or not opened for writing
		unsynced   []*writer // full files on their way to stable storage, oldest first
		flushing   bool      // the goroutine for them runs
		made       int       // files made so far
		durable    int       // … whose names are on stable storage
		dirMissing bool      // the directory is not there yet
		lastName   string    // largest name ever seen
		lastPhy    message.PhysicalOffset
		lastTime   int64

		outage  *outage
		missing bool // entries were left out from missingFrom on
		from    message.PhysicalOffset

		broken error // a store or a sync failed; final
	}
	flusher sync.WaitGroup
}

// Put adds the keys of the message at phy, one entry per hash, in order. A
// message at or before the newest indexed one is in already and skipped, so
// that a replay may begin anywhere. Either all entries of a message count or
// none.
//
// When there is no space or no new file can be made, Put returns that error
// once, calls OnDegraded, and from then on leaves messages out without an
// error; it tries again after a pause that grows from one second to a minute,
// and then closes the gap. Putting the same message again tries at once. The
// error wraps base.ErrDiskFull where that is the cause. A failed store or sync
// is final: this and every later call return an error that wraps
// base.ErrReadOnly.
func (x *Index) Put(phy message.PhysicalOffset, storeTime int64, hashes []int32) error {
	if len(hashes) == 0 {
		return nil
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.closed.Load() {
		return base.ErrClosed
	}
	if x.mu.broken != nil {
		return x.mu.broken
	}
	if x.mu.outage != nil {
		return x.putInOutageLocked(phy, storeTime, hashes)
	}
	if phy <= x.mu.lastPhy {
		return nil
	}
	if err := x.insertLocked(phy, storeTime, hashes); err != nil {
		return x.degradeLocked(phy, err)
	}
	return nil
}

// insertLocked adds one message or changes nothing, unless it sets broken.
func (x *Index) insertLocked(phy message.PhysicalOffset, storeTime int64, hashes []int32) error {
	for _, h := range hashes {
		if h < 0 {
			return fmt.Errorf("index message at %d: key hash %d is negative", phy, h)
		}
	}
	if x.mu.cur == nil {
		if err := x.openNewestLocked(); err != nil {
			return err
		}
	}
	if w := x.mu.cur; w != nil && w.room() >= len(hashes) {
		if err := w.reserve(len(hashes)); err != nil {
			return err
		}
		x.noteTimeLocked(phy, storeTime)
		if err := w.write(phy, storeTime, hashes, x.badSlot); err != nil {
			return x.failLocked(err)
		}
		if err := w.publish(); err != nil {
			return x.failLocked(err)
		}
	} else if err := x.insertRollingLocked(phy, storeTime, hashes); err != nil {
		return err
	}
	x.mu.lastPhy, x.mu.lastTime = phy, storeTime
	return nil
}

// noteTimeLocked comes before an entry is visible: a reader that sees it must
// not skip its file by the header's times when time went backwards.
func (x *Index) noteTimeLocked(phy message.PhysicalOffset, storeTime int64) {
	if storeTime < x.mu.lastTime {
		x.monotoneFrom.Store(int64(phy))
	}
}

// openNewestLocked makes cur the newest file if that has room. It is done at
// the first Put and not by Open, so that opening a store that nobody writes to
// maps nothing and allocates nothing.
func (x *Index) openNewestLocked() error {
	fs := x.list()
	if len(fs) == 0 || fs[len(fs)-1].full() {
		return nil
	}
	f := fs[len(fs)-1]
	h, err := x.opt.FS.Open(f.path, vfs.ReadWrite)
	if err != nil {
		return err
	}
	w, err := openWriter(f, h)
	if err != nil {
		h.Close()
		return err
	}
	x.mu.cur = w
	return nil
}

// insertRollingLocked adds a message that does not fit into the current file.
// All files it needs are made before anything is stored.
func (x *Index) insertRollingLocked(phy message.PhysicalOffset, storeTime int64, hashes []int32) (err error) {
	cur := x.mu.cur
	var made []*writer
	defer func() {
		if err != nil {
			for _, w := range made {
				x.discard(w)
			}
		}
	}()

	room := 0
	seed := Header{} // of the first file ever
	if fs := x.list(); len(fs) > 0 {
		h := fs[len(fs)-1].header()
		seed = seedAfter(h.EndPhy, h.EndTime)
	}
	if cur != nil {
		room = cur.room()
	}
	if room > 0 { // the message itself will be the last of the current file
		if err := cur.reserve(room); err != nil {
			return err
		}
		seed = seedAfter(phy, storeTime)
	}
	for need := len(hashes) - room; need > 0; {
		w, err := x.createLocked(seed)
		if err != nil {
			return err
		}
		made = append(made, w)
		n := min(need, w.room())
		if err := w.reserve(n); err != nil {
			return err
		}
		need -= n
		seed = seedAfter(phy, storeTime)
	}

	x.noteTimeLocked(phy, storeTime)
	ws := made
	if room > 0 {
		ws = append([]*writer{cur}, made...)
	}
	rest := hashes
	for _, w := range ws {
		n := min(len(rest), w.room())
		if err := w.write(phy, storeTime, rest[:n], x.badSlot); err != nil {
			return x.failLocked(err)
		}
		rest = rest[n:]
	}
	base.Assert(len(rest) == 0, "%d keys of the message at %d have no place", len(rest), phy)
	fs := append([]*file(nil), x.list()...)
	for _, w := range made {
		fs = append(fs, w.file)
	}
	x.setListLocked(fs)
	for _, w := range ws {
		if err := w.publish(); err != nil {
			return x.failLocked(err)
		}
	}
	last := made[len(made)-1]
	if cur != nil {
		x.sealLocked(cur)
	}
	for _, w := range made[:len(made)-1] {
		x.sealLocked(w)
	}
	x.mu.cur = last
	return nil
}

// seedAfter is the header of a file that follows one ending at phy and t.
func seedAfter(phy message.PhysicalOffset, t int64) Header {
	var h Header
	if t > 0 {
		h.BeginTime, h.EndTime = t, t
	}
	if phy > 0 {
		h.BeginPhy, h.EndPhy = phy, phy
	}
	return h
}

// createLocked makes the next file, or leaves nothing behind.
func (x *Index) createLocked(seed Header) (w *writer, err error) {
	if x.mu.dirMissing {
		if err := x.opt.FS.MkdirAll(x.opt.Dir); err != nil {
			return nil, err
		}
		x.mu.dirMissing = false
	}
	if x.mu.durable < x.mu.made {
		// A crash must not leave this file without the one before it: nobody
		// could tell that something is missing.
		if err := x.opt.FS.SyncDir(x.opt.Dir); err != nil {
			return nil, x.failLocked(err)
		}
		x.mu.durable = x.mu.made
	}
	for range rollTries {
		if w, err = x.createOnceLocked(seed); err == nil {
			return w, nil
		}
	}
	return nil, fmt.Errorf("create index file: %w", err)
}

func (x *Index) createOnceLocked(seed Header) (*writer, error) {
	name, err := nameAfter(x.mu.lastName, x.opt.Now(), x.opt.Location)
	if err != nil {
		return nil, err
	}
	f := &file{fs: x.opt.FS, name: name, path: filepath.Join(x.opt.Dir, name), geo: x.opt.geometry()}
	f.setHeader(seed)
	x.mu.lastName = name // also if it is taken: the next try has another
	h, err := x.opt.FS.Create(f.path)
	if err != nil {
		return nil, err
	}
	w, err := openWriter(f, h)
	if err == nil {
		if err = w.storeHeader(seed); err == nil {
			x.mu.made++
			return w, nil
		}
		err = errors.Join(err, w.unmap())
	}
	return nil, errors.Join(err, h.Close(), x.opt.FS.Remove(f.path))
}

// discard removes a file that was made and not used. What cannot be removed is
// an empty file, which the next Open removes. After a failed store the files
// stay as they are.
func (x *Index) discard(w *writer) {
	err := w.close()
	if x.mu.broken == nil {
		err = errors.Join(err, x.opt.FS.Remove(w.path))
	}
	if err != nil {
		x.opt.Logger.Warn("unused index file stays", "file", w.path, "err", err)
	}
}

// sealLocked ends the writing of a full file and has it flushed.
func (x *Index) sealLocked(w *writer) {
	w.sealed.Store(true)
	if err := w.unmap(); err != nil {
		x.opt.Logger.Warn("unmap index file", "file", w.path, "err", err)
	}
	x.mu.unsynced = append(x.mu.unsynced, w)
	if !x.mu.flushing {
		x.mu.flushing = true
		x.flusher.Add(1)
		go x.flushFull()
	}
}

// badSlot gives the right value of a slot of the file being written that holds
// v, which is no entry before next. Upstream would take it for empty and lose
// the chain.
func (x *Index) badSlot(w *writer, slot, next, v int32) (int32, error) {
	x.damaged(w.file, fmt.Sprintf("slot %d holds %d of %d entries", slot, v, next-1))
	newest := int32(0)
	err := eachEntryDown(w.rw, w.geo, next-1, func(e int32, en Entry) bool {
		if en.Hash >= 0 && en.Hash%w.geo.Slots == slot {
			newest = e
			return false
		}
		return true
	})
	return newest, err
}

// damaged reports damage of a file that was found after Open, once.
func (x *Index) damaged(f *file, reason string) {
	if f.reported.Swap(true) {
		return
	}
	x.opt.Logger.Warn("index file is damaged, its entries are searched one by one", "file", f.path, "reason", reason)
	if x.opt.OnDamage != nil {
		x.opt.OnDamage(f.path, reason)
	}
}

// failLocked makes a failed store or sync final.
func (x *Index) failLocked(err error) error {
	if x.mu.broken == nil {
		x.mu.broken = fmt.Errorf("index: %w: %w", base.ErrReadOnly, err)
		x.opt.Logger.Error("index takes no more entries", "dir", x.opt.Dir, "err", err)
		if x.opt.OnDegraded != nil {
			x.opt.OnDegraded(x.mu.broken)
		}
	}
	return x.mu.broken
}

func (x *Index) list() []*file {
	if p := x.files.Load(); p != nil {
		return *p
	}
	return nil
}

// openFiles is how many of the newest files keep their handle between lookups.
const openFiles = 64

func (x *Index) setListLocked(fs []*file) {
	for i, f := range fs {
		f.keepOpen(i >= len(fs)-openFiles)
	}
	x.files.Store(&fs)
}

// Last returns store time and position of the newest indexed message, 0 and -1
// for an empty index.
func (x *Index) Last() (storeTime int64, phy message.PhysicalOffset) {
	x.mu.Lock()
	defer x.mu.Unlock()
	return x.mu.lastTime, x.mu.lastPhy
}

// Files describes the files, oldest first.
func (x *Index) Files() []FileInfo {
	x.mu.Lock()
	defer x.mu.Unlock()
	var infos []FileInfo
	for _, f := range x.list() {
		infos = append(infos, FileInfo{Path: f.path, Size: f.size, Geometry: f.geo, Header: f.header()})
	}
	return infos
}

// Degraded returns why the index leaves messages out, or nil.
func (x *Index) Degraded() error {
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.mu.broken != nil:
		return x.mu.broken
	case x.mu.outage != nil:
		return x.mu.outage.cause
	}
	return nil
}
