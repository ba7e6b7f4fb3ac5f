package tool

import (
	"cmp"
	"context"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs"
)

// The folders of queues, by kind.
var queueDirs = [2]string{consumequeue.Simple: "consumequeue", consumequeue.Batch: "batchconsumequeue"}

const queueExtDir = "consumequeue_ext"

// queueName says which queue.
type queueName struct {
	kind  consumequeue.Kind
	topic string
	id    int32
}

// compareNames orders queues by kind, topic and id.
func compareNames(a, b queueName) int {
	return cmp.Or(cmp.Compare(a.kind, b.kind), cmp.Compare(a.topic, b.topic), cmp.Compare(a.id, b.id))
}

// oldQueues is the consume queues of a store as they lie on the disk, right or
// wrong. They are the only memory of what was lost from the log, and of queue
// offsets of which no message is left. Nothing in them is believed that the log
// contradicts.
type oldQueues struct {
	fs  vfs.FS
	dir string
	bad unreadable
	m   map[queueName]*oldQueue

	fileSize [2]int64 // by kind; 0: there is none to go by
	extSize  int64
	hasExt   bool
	light    bool // there are light queues
	rocksDB  bool

	open   *sourceFile // of the last read
	openOf oldPlace
	buf    []byte
	bufAt  int64
}

type oldPlace struct {
	q    *oldQueue
	file int
}

// oldQueue is one queue.
type oldQueue struct {
	queueName
	files []oldFile // by start
}

type oldFile struct{ start, size int64 } // in bytes of the queue

// findOldQueues lists the queues below dir.
func findOldQueues(ctx context.Context, fsys vfs.FS, dir string, bad unreadable) (*oldQueues, error) {
	o := &oldQueues{fs: fsys, dir: dir, bad: bad, m: map[queueName]*oldQueue{}}
	for kind, root := range queueDirs {
		lengths := map[int64]int{}
		for _, te := range o.list(root) {
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			if !te.IsDir() {
				o.rocksDB = o.rocksDB || te.Name == "CURRENT" || strings.HasSuffix(te.Name, ".sst")
				continue
			}
			for _, qe := range o.list(root + "/" + te.Name) {
				id, err := strconv.ParseInt(qe.Name, 10, 32)
				if err != nil || !qe.IsDir() || strconv.Itoa(int(id)) != qe.Name {
					continue
				}
				q := &oldQueue{queueName: queueName{consumequeue.Kind(kind), te.Name, int32(id)}}
				for _, fe := range o.list(root + "/" + te.Name + "/" + qe.Name) {
					start, ok := mappedfile.ParseFileName(fe.Name)
					if !ok || !fe.IsRegular() || start > math.MaxInt64/2 {
						continue
					}
					q.files = append(q.files, oldFile{start, fe.Size})
					lengths[fe.Size]++
				}
				if len(q.files) > 0 {
					o.m[q.queueName] = q
					o.light = o.light || strings.HasPrefix(q.topic, "%LMQ%")
				}
			}
		}
		o.fileSize[kind] = mostCommonLength(lengths, unitSizeOf(consumequeue.Kind(kind)))
	}
	o.findExt()
	return o, nil
}

// findExt looks for extensions and the length of their files.
func (o *oldQueues) findExt() {
	lengths := map[int64]int{}
	for _, te := range o.list(queueExtDir) {
		o.hasExt = true
		for _, qe := range o.list(queueExtDir + "/" + te.Name) {
			for _, fe := range o.list(queueExtDir + "/" + te.Name + "/" + qe.Name) {
				if fe.IsRegular() {
					lengths[fe.Size]++
				}
			}
		}
		if len(lengths) > 0 {
			break // one topic is enough
		}
	}
	o.extSize = mostCommonLength(lengths, 1)
}

func (o *oldQueues) list(rel string) []vfs.Entry {
	entries, err := o.fs.List(filepath.Join(o.dir, filepath.FromSlash(rel)))
	if err != nil {
		return nil // it is missing, or as good as that
	}
	return entries
}

func unitSizeOf(kind consumequeue.Kind) int64 {
	if kind == consumequeue.Batch {
		return consumequeue.BatchUnitSize
	}
	return consumequeue.UnitSize
}

// mostCommonLength returns the length that most files have and that holds whole
// units; of two the greater: files are cut more often than they grow.
func mostCommonLength(lengths map[int64]int, unit int64) (size int64) {
	for n, votes := range lengths {
		if n < unit || unit == consumequeue.UnitSize && n%unit != 0 {
			continue
		}
		if votes > lengths[size] || votes == lengths[size] && n > size || size == 0 {
			size = n
		}
	}
	return size
}

func (o *oldQueues) close() {
	if o != nil {
		o.open.close()
		o.open = nil
	}
}

// get returns a queue, or nil.
func (o *oldQueues) get(n queueName) *oldQueue {
	if o == nil {
		return nil
	}
	return o.m[n]
}

// sorted returns all queues by kind, topic and id.
func (o *oldQueues) sorted() []*oldQueue {
	if o == nil {
		return nil
	}
	all := make([]*oldQueue, 0, len(o.m))
	for _, q := range o.m {
		all = append(all, q)
	}
	slices.SortFunc(all, func(a, b *oldQueue) int { return compareNames(a.queueName, b.queueName) })
	return all
}

// bytes returns n bytes at a position of the queue, nil where it has no file.
// The slice is valid until the next call.
func (o *oldQueues) bytes(q *oldQueue, pos, n int64) []byte {
	i, ok := slices.BinarySearchFunc(q.files, pos, func(f oldFile, pos int64) int { return cmp.Compare(f.start, pos) })
	if !ok {
		i--
	}
	if i < 0 || pos+n > q.files[i].start+q.files[i].size {
		return nil
	}
	f := q.files[i]
	if o.open == nil || o.openOf != (oldPlace{q, i}) {
		o.open.close()
		rel := queueDirs[q.kind] + "/" + q.topic + "/" + strconv.Itoa(int(q.id)) + "/" + mappedfile.FileName(f.start)
		src, err := openSource(o.fs, filepath.Join(o.dir, filepath.FromSlash(rel)), rel, o.bad)
		if err != nil {
			o.bad(rel, 0, 0, err)
			o.open = nil
			return nil
		}
		o.open, o.openOf, o.buf = src, oldPlace{q, i}, o.buf[:0]
	}
	off := pos - f.start
	if lo := off - o.bufAt; lo >= 0 && lo+n <= int64(len(o.buf)) {
		return o.buf[lo : lo+n]
	}
	// Reading goes both ways: half of the window lies before.
	const window = 16 << 10
	o.bufAt = max(0, off-window/2)
	size := min(window, f.size-o.bufAt)
	if cap(o.buf) < window {
		o.buf = make([]byte, window)
	}
	o.buf = o.buf[:size]
	o.open.read(o.buf, o.bufAt)
	return o.buf[off-o.bufAt : off-o.bufAt+n]
}

// at returns the unit in a slot of a simple queue, the zero unit where there is
// none.
func (o *oldQueues) at(q *oldQueue, slot int64) (u consumequeue.Unit) {
	if q == nil || slot < 0 || slot > math.MaxInt64/consumequeue.UnitSize-1 || q.kind != consumequeue.Simple {
		return u
	}
	if b := o.bytes(q, slot*consumequeue.UnitSize, consumequeue.UnitSize); b != nil {
		u, _ = consumequeue.DecodeUnit(b) // long enough
	}
	return u
}

// batchAt returns the i-th unit of a batch queue.
func (o *oldQueues) batchAt(q *oldQueue, i int64) (u consumequeue.BatchUnit) {
	if q == nil {
		return u
	}
	if b := o.bytes(q, i*consumequeue.BatchUnitSize, consumequeue.BatchUnitSize); b != nil {
		u, _ = consumequeue.DecodeBatchUnit(b)
	}
	return u
}

// slots returns the first slot of the queue's first file and the slot behind
// its last file.
func (q *oldQueue) slots() (from, to int64) {
	unit := unitSizeOf(q.kind)
	last := q.files[len(q.files)-1]
	return q.files[0].start / unit, (last.start + last.size) / unit
}

// slotOf returns the slot of a simple queue that holds the unit of the record at
// phy. ok is false when none is found: positions rise in a sound queue.
func (o *oldQueues) slotOf(q *oldQueue, phy int64) (slot int64, ok bool) {
	if q == nil || q.kind != consumequeue.Simple {
		return 0, false
	}
	lo, hi := q.slots()
	for lo < hi {
		mid := lo + (hi-lo)/2
		switch u := o.at(q, mid); {
		case u.Valid() && int64(u.Physical) == phy:
			return mid, true
		case u.IsFill(), u.Valid() && int64(u.Physical) < phy:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0, false
}

// offsetOf is slotOf for queues of both kinds: it returns the queue offset.
func (o *oldQueues) offsetOf(q *oldQueue, phy int64) (off int64, ok bool) {
	if q == nil || q.kind == consumequeue.Simple {
		return o.slotOf(q, phy)
	}
	lo, hi := q.slots()
	for lo < hi {
		mid := lo + (hi-lo)/2
		switch u := o.batchAt(q, mid); {
		case u.Valid() && int64(u.Physical) == phy:
			return int64(u.Base), true
		case u.Valid() && int64(u.Physical) < phy:
			lo = mid + 1
		default:
			hi = mid
		}
	}
	return 0, false
}

// batchOf returns the number of the first unit of a batch queue whose base is
// at or behind off.
func (o *oldQueues) batchOf(q *oldQueue, off int64) int64 {
	if q == nil {
		return 0
	}
	lo, hi := q.slots()
	for lo < hi {
		mid := lo + (hi-lo)/2
		if u := o.batchAt(q, mid); u.Valid() && int64(u.Base) < off {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}
