package inspect

import (
	"fmt"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// follow reads the records that pointers lead to. One that leads to something
// else makes j.err a *lieError.
func (w *worker) follow(j *job) {
	resume := j.resume
	for _, p := range j.pointers {
		v, err := w.record(p)
		if err == nil && p.slot >= 0 {
			err = w.owns(&v, p)
		}
		if err != nil {
			j.err = &lieError{resume, fmt.Sprintf("position %d: %v", p.phy, err)}
			return
		}
		j.records++
		if w.m.match(&v) {
			w.keep(j, &v)
			if j.err != nil {
				return
			}
		}
		resume = p.phy + int64(v.Size)
	}
}

// owns reports an error unless the record is the one that a queue's unit is
// for.
func (w *worker) owns(v *message.View, p pointer) error {
	offset := int64(v.QueueOffset)
	if base, _, ok := v.InnerBatch(); ok {
		offset = int64(base)
	}
	if string(v.TopicBytes()) != w.m.Topic || v.QueueID != p.id || offset != p.slot {
		return fmt.Errorf("the record is one of %s/%d, offset %d", v.TopicBytes(), v.QueueID, offset)
	}
	return nil
}

// record reads the record that a pointer leads to, complete and checked.
func (w *worker) record(p pointer) (message.View, error) {
	s := w.sc.s
	i := s.fileAt(p.phy)
	if i < 0 {
		return message.View{}, fmt.Errorf("no file holds it")
	}
	if w.f == nil || w.i != i {
		w.close()
		f, err := s.fs.Open(s.log[i].path, vfs.ReadOnly)
		if err != nil {
			w.f = nil
			return message.View{}, err
		}
		w.f, w.i = f, i
	}
	off := p.phy - s.log[i].start
	rest := s.log[i].size - off
	size := int64(p.size)
	if size == 0 {
		const first = 4096
		head := w.space(min(rest, first))
		if err := readAt(w.f, head, off); err != nil {
			return message.View{}, err
		}
		h, err := message.ParseHeader(head)
		if err != nil {
			return message.View{}, err
		}
		if h.Kind != message.KindRecord {
			return message.View{}, fmt.Errorf("unused space")
		}
		size = int64(h.Size)
	}
	if size < message.MinRecordSize || size > min(rest, maxRecord) {
		return message.View{}, fmt.Errorf("size %d", size)
	}
	rec := w.space(size)
	if err := readAt(w.f, rec, off); err != nil {
		return message.View{}, err
	}
	return message.Check(rec, message.PhysicalOffset(p.phy), checks)
}

func (w *worker) space(n int64) []byte {
	if int64(cap(w.buf)) < n {
		w.buf = make([]byte, n)
	}
	return w.buf[:n]
}
