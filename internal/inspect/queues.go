package inspect

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// Queue is a consume queue as its files are.
type Queue struct {
	Topic string
	ID    int32
	Batch bool // 46-byte units, each of one or more messages

	dir   string
	files []segment
	unit  int64 // bytes of a unit
}

// Queues lists the consume queues by topic and id.
func (s *Store) Queues() ([]Queue, error) {
	var list []Queue
	for _, kind := range []struct {
		dir   string
		batch bool
		unit  int64
	}{{"consumequeue", false, consumequeue.UnitSize}, {"batchconsumequeue", true, consumequeue.BatchUnitSize}} {
		root := filepath.Join(s.dir, kind.dir)
		topics, err := s.fs.List(root)
		if err != nil {
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			return nil, err
		}
		for _, t := range topics {
			if !t.IsDir() {
				continue
			}
			ids, err := s.fs.List(filepath.Join(root, t.Name))
			if err != nil {
				return nil, err
			}
			for _, e := range ids {
				id, err := strconv.ParseInt(e.Name, 10, 32)
				if !e.IsDir() || err != nil || strconv.Itoa(int(id)) != e.Name {
					continue
				}
				q := Queue{Topic: t.Name, ID: int32(id), Batch: kind.batch, dir: filepath.Join(root, t.Name, e.Name), unit: kind.unit}
				if q.files, err = listSegments(s.fs, q.dir); err != nil {
					return nil, err
				}
				list = append(list, q)
			}
		}
	}
	slices.SortStableFunc(list, func(a, b Queue) int { return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.ID, b.ID)) })
	return list, nil
}

// unit is a unit of either kind; of a plain queue Base is the queue offset.
type unit struct {
	consumequeue.BatchUnit
	fill bool
}

func (q *Queue) decode(b []byte, slot int64) (u unit, ok bool) {
	if q.Batch {
		u.BatchUnit, _ = consumequeue.DecodeBatchUnit(b) // b is long enough
		return u, u.Valid()
	}
	p, _ := consumequeue.DecodeUnit(b)
	u.Physical, u.Size, u.Tags, u.Base, u.Count, u.fill = p.Physical, p.Size, p.Tags, message.QueueOffset(slot), 1, p.IsFill()
	return u, u.fill || p.Valid()
}

// errStop ends a walk through units.
var errStop = errors.New("stop")

// walk calls fn for the units of a queue from its first one to the first that
// is not valid, with the file and the offset there. Files have to follow each
// other.
func (s *Store) walk(ctx context.Context, q *Queue, fn func(u unit, file int, off int64) error) error {
	buf := make([]byte, 4096/q.unit*q.unit)
	for i, g := range q.files {
		if i > 0 && g.start != q.files[i-1].start+q.files[i-1].size {
			return errStop
		}
		f, err := s.fs.Open(filepath.Join(q.dir, segmentName(g.start)), vfs.ReadOnly)
		if err != nil {
			return err
		}
		err = func() error {
			defer f.Close()
			for off := int64(0); off+q.unit <= g.size; {
				if err := ctx.Err(); err != nil {
					return err
				}
				p := buf[:min(int64(len(buf)), (g.size-off)/q.unit*q.unit)]
				if err := readAt(f, p, off); err != nil {
					return err
				}
				for ; len(p) > 0; p, off = p[q.unit:], off+q.unit {
					u, ok := q.decode(p, (g.start+off)/q.unit)
					if !ok {
						return errStop
					}
					if err := fn(u, i, off); err != nil {
						return err
					}
				}
				if len(buf) < 256<<10 { // most queues are short
					buf = make([]byte, 256<<10/q.unit*q.unit)
				}
			}
			return nil
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

// eachPointer calls fn for the units of a queue that point into the log and
// have the tags code, if one is asked for. It returns false when the queue is
// not sound, or fn does.
func (s *Store) eachPointer(ctx context.Context, q *Queue, tags *message.TagsCode, fn func(pointer) bool) bool {
	last := int64(-1)
	sound := true
	lost := errors.New("not sound")
	err := s.walk(ctx, q, func(u unit, _ int, _ int64) error {
		if u.fill {
			if u.Tags != 0 {
				return lost // the place of a message that was lost
			}
			return nil
		}
		phy := int64(u.Physical)
		if phy <= last || phy >= s.Top() {
			return lost
		}
		last = phy
		if phy < s.Min() || tags != nil && u.Tags != *tags && !consumequeue.IsExtAddress(u.Tags) {
			return nil
		}
		if !fn(pointer{phy: phy, slot: int64(u.Base), size: u.Size, id: q.ID}) {
			sound = false
			return errStop
		}
		return nil
	})
	return sound && (err == nil || errors.Is(err, errStop))
}

// queueEnd returns where the record of a queue's last unit ends.
func (s *Store) queueEnd(q *Queue) (int64, bool) {
	u, ok := s.lastUnit(q)
	return int64(u.End()), ok && !u.fill
}

// unitIn reads the i-th unit of one file.
func (s *Store) unitIn(f vfs.File, q *Queue, file int, i int64) (unit, bool) {
	var b [consumequeue.BatchUnitSize]byte
	if readAt(f, b[:q.unit], i*q.unit) != nil {
		return unit{}, false
	}
	return q.decode(b[:q.unit], q.files[file].start/q.unit+i)
}

// lastUnit finds a queue's last unit, in its last file with units.
func (s *Store) lastUnit(q *Queue) (unit, bool) {
	for file := len(q.files) - 1; file >= 0; file-- {
		n := s.unitsIn(q, file)
		if n == 0 {
			continue
		}
		f, err := s.fs.Open(filepath.Join(q.dir, segmentName(q.files[file].start)), vfs.ReadOnly)
		if err != nil {
			return unit{}, false
		}
		defer f.Close()
		return s.unitIn(f, q, file, n-1)
	}
	return unit{}, false
}
