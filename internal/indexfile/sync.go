package indexfile

import (
	"errors"
	"io/fs"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Sync makes everything durable that was put before the call and says what
// that is. Puts may go on meanwhile; they wait only while the state is taken.
// A failed sync is final, see Put.
func (x *Index) Sync() (State, error) {
	x.syncMu.Lock()
	defer x.syncMu.Unlock()

	x.mu.Lock()
	if err := x.usableLocked(); err != nil {
		x.mu.Unlock()
		return State{}, err
	}
	st := x.stateLocked()
	ws := append([]*writer(nil), x.mu.unsynced...)
	if w := x.mu.cur; w != nil && w.dirty {
		w.dirty = false
		ws = append(ws, w)
	}
	made, dir := x.mu.made, x.mu.durable < x.mu.made
	x.mu.Unlock()

	// The handles stay open: whoever closes one holds syncMu.
	var err error
	for _, w := range ws {
		if err = x.syncFile(w); err != nil {
			break
		}
	}
	if err == nil && dir {
		err = x.opt.FS.SyncDir(x.opt.Dir)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		return State{}, x.failLocked(err)
	}
	x.mu.durable = max(x.mu.durable, made)
	for _, w := range ws {
		if w.m != nil { // the process need not have 400 MB mapped per file
			_ = w.m.Advise(0, w.size, vfs.DontNeed)
		}
	}
	return st, nil
}

// syncFile brings one file to stable storage. A full one needs it only once.
func (x *Index) syncFile(w *writer) error {
	if w.synced {
		return nil
	}
	sealed := w.sealed.Load()
	if err := w.h.Sync(); err != nil {
		return err
	}
	w.synced = sealed
	return nil
}

func (x *Index) usableLocked() error {
	if x.closed.Load() {
		return base.ErrClosed
	}
	return x.mu.broken
}

func (x *Index) stateLocked() State {
	st := State{EndPhy: -1, Complete: true, MonotoneFrom: message.PhysicalOffset(x.monotoneFrom.Load())}
	if fs := x.list(); len(fs) > 0 {
		f := fs[len(fs)-1]
		h := f.header()
		st.Name, st.Count, st.EndPhy, st.EndTime = f.name, h.Count, h.EndPhy, h.EndTime
	}
	if x.mu.outage != nil {
		st.Complete, st.MissingFrom = false, x.mu.outage.from
	}
	if x.mu.missing { // of an earlier outage, so it comes before
		st.Complete, st.MissingFrom = false, x.mu.from
	}
	return st
}

// flushFull brings full files to stable storage, oldest first, and reports
// them. It ends when there are no more.
func (x *Index) flushFull() {
	defer x.flusher.Done()
	for {
		w := x.flushOne()
		if w == nil {
			return
		}
		if x.opt.OnFull != nil {
			x.opt.OnFull(w.endTime.Load())
		}
	}
}

// flushOne syncs the oldest full file and gives up its handle. It returns nil
// when there is none or the sync failed, and then flushFull ends.
func (x *Index) flushOne() *writer {
	x.syncMu.Lock()
	defer x.syncMu.Unlock()

	x.mu.Lock()
	if len(x.mu.unsynced) == 0 || x.mu.broken != nil {
		x.mu.flushing = false
		x.mu.Unlock()
		return nil
	}
	w := x.mu.unsynced[0]
	made, dir := x.mu.made, x.mu.durable < x.mu.made
	x.mu.Unlock()

	err := x.syncFile(w)
	if err == nil && dir {
		err = x.opt.FS.SyncDir(x.opt.Dir)
	}

	x.mu.Lock()
	defer x.mu.Unlock()
	if err != nil {
		x.failLocked(err)
		x.mu.flushing = false
		return nil
	}
	x.mu.durable = max(x.mu.durable, made)
	x.mu.unsynced = x.mu.unsynced[1:]
	if err := w.h.Close(); err != nil { // synced: nothing can be lost
		x.opt.Logger.Warn("close index file", "file", w.path, "err", err)
	}
	return w
}

// DeleteBefore removes the files whose entries all lie before minPhy, oldest
// first and never the newest, and makes that durable. The names go at once;
// lookups that are in a file finish. It returns the removed files' paths, also
// with an error; what failed is tried again by the next call.
func (x *Index) DeleteBefore(minPhy message.PhysicalOffset) (removed []string, err error) {
	x.syncMu.Lock()
	defer x.syncMu.Unlock()
	if x.closed.Load() {
		return nil, base.ErrClosed
	}

	// Only this method and TruncateFrom take files out of the list, both under
	// syncMu; a roll appends. The names go without mu: freeing the blocks of a
	// big file takes a while.
	list := x.list()
	n := 0
	for n < len(list)-1 && list[n].endPhy.Load() < int64(minPhy) {
		if err = x.opt.FS.Remove(list[n].path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			break
		}
		err = nil
		removed = append(removed, list[n].path)
		n++
	}
	if n == 0 {
		return nil, err
	}
	x.mu.Lock()
	x.setListLocked(append([]*file(nil), x.list()[n:]...))
	x.mu.Unlock()
	for _, f := range list[:n] {
		f.retire()
	}
	return removed, errors.Join(err, x.opt.FS.SyncDir(x.opt.Dir))
}

// Close ends the index. It waits for the flushing of full files but syncs
// nothing else: call Sync before. Lookups that are running finish or get
// base.ErrClosed.
func (x *Index) Close() error {
	x.mu.Lock() // no Put is under way that could start the flusher
	done := x.closed.Swap(true)
	x.mu.Unlock()
	if done {
		return nil
	}
	x.flusher.Wait()
	x.syncMu.Lock()
	defer x.syncMu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	var err error
	if x.mu.cur != nil {
		err = x.mu.cur.close()
		x.mu.cur = nil
	}
	for _, w := range x.mu.unsynced { // left over after a failed sync
		err = errors.Join(err, w.h.Close())
	}
	x.mu.unsynced = nil
	for _, f := range x.list() {
		f.retire()
	}
	return err
}
