package indexfile

import (
	"context"
	"errors"
	"slices"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// TruncateFrom removes all entries at or past phy, durably, because the log
// was cut there. Messages that are put next may have any position from there
// on. A lookup that runs meanwhile may miss messages. After an error the index
// takes no more entries.
func (x *Index) TruncateFrom(phy message.PhysicalOffset) error {
	x.syncMu.Lock()
	defer x.syncMu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if err := x.usableLocked(); err != nil {
		return err
	}
	if o := x.mu.outage; o != nil && o.from >= phy {
		x.healLocked() // the messages that were left out are gone
	}
	if x.mu.missing && x.mu.from >= phy {
		x.mu.missing = false
	}
	if x.mu.lastPhy < phy {
		return nil
	}
	if err := x.truncateLocked(phy); err != nil {
		return x.failLocked(err)
	}
	return nil
}

func (x *Index) truncateLocked(phy message.PhysicalOffset) error {
	list := slices.Clone(x.list())
	for len(list) > 0 {
		f := list[len(list)-1]
		if f.endPhy.Load() < int64(phy) {
			break
		}
		// Nobody writes to the file any more, and readers leave it.
		if err := x.releaseLocked(f); err != nil {
			return err
		}
		count, err := f.keepBefore(phy)
		if err != nil {
			return err
		}
		list = list[:len(list)-1]
		if count <= firstEntry {
			if err := x.opt.FS.Remove(f.path); err != nil {
				return err
			}
			if err := x.opt.FS.SyncDir(x.opt.Dir); err != nil {
				return err
			}
			f.retire()
			x.setListLocked(slices.Clone(list))
			continue
		}
		// A new object: readers of the old one that find entries they did not
		// expect see that it is gone.
		n := &file{fs: f.fs, path: f.path, name: f.name, geo: f.geo}
		n.setHeader(f.header())
		f.retire()
		if _, err := n.cut(context.Background(), count, false, n.header()); err != nil {
			return err
		}
		list = append(list, n)
		break
	}
	x.setListLocked(list)
	x.mu.lastPhy, x.mu.lastTime = -1, 0
	if len(list) > 0 {
		h := list[len(list)-1].header()
		x.mu.lastPhy, x.mu.lastTime = h.EndPhy, h.EndTime
	}
	return nil
}

// keepBefore returns the count of the entries before phy.
func (f *file) keepBefore(phy message.PhysicalOffset) (int32, error) {
	h, err := f.fs.Open(f.path, vfs.ReadOnly)
	if err != nil {
		return 0, err
	}
	count, err := firstAtOrAfter(h, f.geo, f.count.Load(), phy)
	return count, errors.Join(err, h.Close())
}

// releaseLocked ends the writing and flushing of f.
func (x *Index) releaseLocked(f *file) error {
	if w := x.mu.cur; w != nil && w.file == f {
		x.mu.cur = nil
		return w.close()
	}
	for i, w := range x.mu.unsynced {
		if w.file == f {
			x.mu.unsynced = slices.Delete(x.mu.unsynced, i, i+1)
			return w.h.Close()
		}
	}
	return nil
}
