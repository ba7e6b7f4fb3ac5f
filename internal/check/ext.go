package check

import (
	"path/filepath"
	"strconv"

	"github.com/gantrymq/gantry/internal/consumequeue"
)

// extSet is the extension files of one queue.
type extSet struct {
	dir   string
	files []segment
	lost  bool // reported that the folder is missing
}

// extReader reads extension units of one queue at a time.
type extReader struct {
	c   *checker
	in  *input
	buf []byte
}

func (r *extReader) close() {
	if r.in != nil {
		r.buf = r.in.buf
		r.in.close()
		r.in = nil
	}
}

// listExt finds the extension files, and checks names and lengths like those
// of the queues.
func (c *checker) listExt(s *sink) {
	root := filepath.Join(c.dir, dirExt)
	var tally sizeTally
	var dirs []string
	c.queues.ext = map[string][]segment{}
	for _, te := range c.list(s, root) {
		if !te.IsDir() || c.ctx.Err() != nil {
			continue
		}
		for _, qe := range c.list(s, filepath.Join(root, te.Name)) {
			if _, err := strconv.ParseInt(qe.Name, 10, 32); err != nil || !qe.IsDir() {
				continue
			}
			dir := filepath.Join(root, te.Name, qe.Name)
			segs := c.listSegments(s, ruleQueueFiles, []string{dir})
			tally.add(segs)
			dirs = append(dirs, dir)
			c.queues.ext[dir] = segs
		}
	}
	size := tally.best(1)
	if size == 0 {
		return
	}
	for _, dir := range dirs {
		_, gaps := c.checkSegments(s, ruleQueueFiles, ruleQueueFiles, []string{dir}, c.queues.ext[dir], size)
		for _, g := range gaps {
			s.add(ruleQueueFiles, c.show(dir), 0, "no extension files for the bytes from %d to %d", g.from, g.to)
		}
	}
}

// extDir is the folder of a queue's extension.
func (c *checker) extDir(q *queue) string {
	return filepath.Join(c.dir, dirExt, q.topic.name, strconv.Itoa(int(q.id)))
}

// resolve reads the extension unit that a queue's unit refers to: rule 26. ok
// is false when there is none, which is reported.
func (r *extReader) resolve(q *queue, u consumequeue.Unit, e *expectation, name string, off int64) (consumequeue.ExtUnit, bool) {
	c := r.c
	n := q.note(c)
	if n.ext == nil {
		dir := c.extDir(q)
		n.ext = &extSet{dir: dir, files: c.queues.ext[dir]}
	}
	s := n.sink
	addr, _ := consumequeue.ExtOffset(u.Tags)
	if len(n.ext.files) == 0 {
		if !n.ext.lost {
			n.ext.lost = true
			s.addAs(ruleQueueExt, Warning, name, off, "the unit refers to the queue's extension, but there is no folder %s", c.show(n.ext.dir))
		}
		return consumequeue.ExtUnit{}, false
	}
	i := findSegment(n.ext.files, addr)
	if i < 0 {
		s.add(ruleQueueExt, name, off, "the address %d is in no file of the extension", addr)
		return consumequeue.ExtUnit{}, false
	}
	path := filepath.Join(n.ext.dir, segmentName(n.ext.files[i].start))
	if r.in == nil || r.in.path != path {
		r.close()
		if r.in = c.open(s, path); r.in == nil {
			return consumequeue.ExtUnit{}, false
		}
		r.in.reuse(r.buf)
	}
	at := addr - n.ext.files[i].start
	rest := r.in.size - at
	if rest < consumequeue.MinExtUnitSize {
		s.add(ruleQueueExt, name, off, "the address %d is %d bytes before the end of its file", addr, rest)
		return consumequeue.ExtUnit{}, false
	}
	ext, size, err := consumequeue.DecodeExtUnit(r.in.window(at, min(rest, consumequeue.MaxExtUnitSize), unitAhead))
	if err != nil || size <= 0 {
		s.add(ruleQueueExt, c.show(path), at, "no extension unit here, but queue offset %d refers to it: size %d, %v", e.slot, size, err)
		return consumequeue.ExtUnit{}, false
	}
	if ext.StoreTime != e.time {
		s.add(ruleQueueExt, c.show(path), at, "store time %d, the record at %d has %d", ext.StoreTime, e.phy, e.time)
	}
	return ext, true
}
