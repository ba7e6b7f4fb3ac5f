package consumequeue

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/message"
)

// extension is the packed units that a queue's addresses lead to (RocketMQ:
// ConsumeQueueExt). It is loaded when it is first used. What it holds can be
// had from the log again, so damage in it is never an error of the queue:
// units without an extension then hold the plain tags code.
//
// All fields are guarded by the mutex of the queue.
type extension struct {
	q      *Queue
	files  run
	loaded bool
	broken error // why it cannot be loaded; nothing is appended then

	endKnown bool
	written  int64 // byte offset up to which units are in files
	buf      []byte
}

// extLocked returns the queue's extension, which the table must have.
func (q *Queue) extLocked() *extension {
	if q.ext == nil {
		q.ext = &extension{q: q}
		q.ext.files.init(q, true, q.t.opt.ExtFileSize)
	}
	return q.ext
}

// GetExt returns the extension unit at an address from a unit's tags code. The
// bitmap is the caller's. An address that leads nowhere, because the extension
// is missing or its file has been deleted, is an error that wraps
// base.ErrNotFound; a unit that violates the format is a *base.CorruptError.
// In both cases the tags are those of the record.
func (q *Queue) GetExt(addr message.TagsCode) (ExtUnit, error) {
	if q.t.opt.ExtDir == "" {
		return ExtUnit{}, fmt.Errorf("extension of consume queue %s: %w", q, base.ErrNotFound)
	}
	q.mu.Lock()
	e := q.extLocked()
	x, n, pos, err := e.locate(addr)
	q.mu.Unlock()
	if err == nil && n >= 0 {
		x, _, err = e.readUnit(n, pos)
	}
	if err != nil {
		return ExtUnit{}, fmt.Errorf("extension of consume queue %s: %w", q, err)
	}
	return x, nil
}

// load lists the extension's files.
func (e *extension) load() {
	if e.loaded {
		return
	}
	e.loaded = true
	t := e.q.t
	dir := e.files.dir()
	files, foreign, err := listFiles(t.opt.FS, dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		e.broken = err
	}
	for _, name := range foreign {
		t.opt.Logger.Warn("foreign name in consume queue extension", "file", filepath.Join(dir, name))
	}
	if len(files) == 0 || e.broken != nil {
		return
	}
	step, count := int64(0), make(map[int64]int)
	for i, f := range files {
		if f.size > MinExtUnitSize+extSpare {
			count[f.size]++
		}
		if i > 0 && (step == 0 || f.start-files[i-1].start < step) {
			step = f.start - files[i-1].start
		}
	}
	size := mostCommon(count, t.opt.ExtFileSize)
	if step > 0 && (size == 0 || step%size != 0) {
		size = step
	}
	size = cmp.Or(size, t.opt.ExtFileSize)
	last := files[len(files)-1]
	for _, f := range files {
		if f.start%size != 0 || f.size > size {
			e.broken = base.Corruptf(filepath.Join(dir, fileName(f.start)), 0, "extension file of %d bytes at %d, expected %d bytes", f.size, f.start, size)
		}
	}
	if n := (last.start-files[0].start)/size + 1; n > int64(len(files))+maxMissing {
		e.broken = base.Corruptf(filepath.Join(dir, fileName(last.start)), 0, "%d extension files are missing before it", n-int64(len(files)))
	}
	if e.broken != nil {
		t.opt.Logger.Warn("consume queue extension is not usable", "topic", e.q.topic, "queue", e.q.id, "err", e.broken)
		return
	}
	e.files.size = size
	e.files.first, e.files.last = files[0].start/size, last.start/size
	e.files.tailUnknown = true
	if size != t.opt.ExtFileSize {
		t.opt.Logger.Warn("length of consume queue extension files differs from the configured one",
			"dir", dir, "length", size, "configured", t.opt.ExtFileSize)
	}
}

// get reads the unit at an address.
func (e *extension) get(addr message.TagsCode) (ExtUnit, error) {
	x, n, pos, err := e.locate(addr)
	if err == nil && n >= 0 {
		x, _, err = e.readUnit(n, pos)
	}
	return x, err
}

// locate returns a buffered unit and n < 0, or the place of a written one.
func (e *extension) locate(addr message.TagsCode) (x ExtUnit, n, pos int64, err error) {
	off, ok := ExtOffset(addr)
	if !ok {
		return x, 0, 0, fmt.Errorf("%d is no extension address: %w", addr, base.ErrNotFound)
	}
	e.load()
	if at := off - e.written; e.endKnown && at >= 0 {
		if at >= int64(len(e.buf)) {
			return x, 0, 0, fmt.Errorf("address %d is behind the end: %w", addr, base.ErrNotFound)
		}
		x, size, err := DecodeExtUnit(e.buf[at:])
		if err == nil && size <= 0 {
			err = base.ErrNotFound
		}
		x.Bitmap = append([]byte(nil), x.Bitmap...)
		return x, -1, 0, err
	}
	n, pos = off/e.files.size, off%e.files.size
	if !e.files.holdsLocked(n) {
		return x, 0, 0, fmt.Errorf("no file for address %d: %w", addr, base.ErrNotFound)
	}
	return x, n, pos, nil
}

// readUnit reads the unit at pos of file n. An end is ErrNotFound. It needs no
// lock once the extension is loaded.
func (e *extension) readUnit(n, pos int64) (ExtUnit, int, error) {
	left := e.files.size - pos
	buf := make([]byte, min(256, left))
	if err := e.files.readAt(n, buf, pos); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			err = fmt.Errorf("%w: %w", base.ErrNotFound, err)
		}
		return ExtUnit{}, 0, err
	}
	if len(buf) >= extEndSize {
		// A claimed size is at most 32767.
		if size := int64(int16(uint16(buf[0])<<8 | uint16(buf[1]))); size > int64(len(buf)) && size <= left {
			buf = make([]byte, size)
			if err := e.files.readAt(n, buf, pos); err != nil {
				return ExtUnit{}, 0, err
			}
		}
	}
	x, size, err := DecodeExtUnit(buf)
	if err != nil {
		return ExtUnit{}, 0, &base.CorruptError{File: e.files.path(n), Offset: pos, Reason: "extension unit", Err: err}
	}
	if size <= 0 {
		return ExtUnit{}, size, fmt.Errorf("no extension unit at offset %d of %s: %w", pos, e.files.path(n), base.ErrNotFound)
	}
	x.Bitmap = append([]byte(nil), x.Bitmap...)
	return x, size, nil
}

// append adds a unit and returns its address, or its plain tags code when it
// cannot have one. An error means that nothing changed and the caller should
// try again.
func (e *extension) append(x ExtUnit) (message.TagsCode, error) {
	e.load()
	if e.broken != nil {
		return x.Tags, nil
	}
	size := int64(x.size())
	if size > MaxExtUnitSize || size > e.files.size-extSpare {
		e.q.t.opt.Logger.Warn("extension unit is too long", "topic", e.q.topic, "queue", e.q.id, "size", size)
		return x.Tags, nil
	}
	if err := e.findEnd(); err != nil {
		return 0, err
	}
	end := e.written + int64(len(e.buf))
	pos := end % e.files.size
	if pos > 0 && size > e.files.size-pos-extSpare {
		if err := e.roll(); err != nil {
			return 0, err
		}
		end = e.written
	}
	if end > math.MaxInt64+maxExtAddress-MaxExtUnitSize {
		return x.Tags, nil // no address left
	}
	if len(e.buf) > 0 && len(e.buf)+int(size) > maxBuffer {
		if err := e.writeOut(); err != nil {
			return 0, err
		}
	}
	e.buf = AppendExtUnit(e.buf, x)
	return ExtAddress(end), nil
}

// roll ends the current file with its marker.
func (e *extension) roll() error {
	if err := e.writeOut(); err != nil {
		return err
	}
	n, pos := e.written/e.files.size, e.written%e.files.size
	if err := e.files.trimLocked(n, pos); err != nil {
		return err
	}
	if pos+extEndSize <= e.files.size { // always, in files that a writer of this format made
		if err := e.files.writeAtLocked(n, []byte{0xff, 0xff}, pos); err != nil {
			return err
		}
	}
	e.written = (n + 1) * e.files.size
	return nil
}

// findEnd finds where the next unit goes: behind the last one that the queue
// refers to or, when none of its last units has an address, behind the last
// one that there is.
func (e *extension) findEnd() error {
	if e.endKnown {
		return nil
	}
	end, err := e.lastReferred()
	if err != nil {
		return err
	}
	if end < 0 {
		if end, err = e.naturalEnd(); err != nil {
			return err
		}
	}
	e.written, e.endKnown = end, true
	e.files.tailUnknown = !e.files.emptyLocked()
	return nil
}

// lastReferred returns the end of the unit with the largest address in the last
// units of the queue, or -1.
func (e *extension) lastReferred() (int64, error) {
	const look = 64
	q := e.q
	slot := max(q.startLocked(), q.end.Load()-look)
	var buf [look * UnitSize]byte
	last := int64(-1)
	for slot < q.end.Load() {
		n, err := q.readLocked(slot, buf[:])
		if err != nil {
			return 0, err
		}
		for i := range n {
			if off, ok := ExtOffset(decodeUnit(buf[i*UnitSize:]).Tags); ok {
				last = max(last, off)
			}
		}
		slot += int64(n)
	}
	if last >= 0 && e.files.emptyLocked() {
		// The files are lost. New units must not get the addresses of old ones.
		return (last/e.files.size + 1) * e.files.size, nil
	}
	if last < 0 || !e.files.holdsLocked(last/e.files.size) {
		return -1, nil
	}
	n, pos := last/e.files.size, last%e.files.size
	_, size, err := e.readUnit(n, pos)
	if err != nil {
		if errors.Is(err, base.ErrNotFound) || errors.Is(err, base.ErrCorrupt) {
			return -1, nil
		}
		return 0, err
	}
	return last + int64(size), nil
}

// naturalEnd walks the units of the last file. A unit that does not decode
// ends them.
func (e *extension) naturalEnd() (int64, error) {
	if e.files.emptyLocked() {
		return 0, nil
	}
	n := e.files.last
	buf := make([]byte, 64<<10)
	for pos := int64(0); pos < e.files.size; {
		p := buf[:min(int64(len(buf)), e.files.size-pos)]
		if err := e.files.readAt(n, p, pos); err != nil {
			return 0, err
		}
		used := int64(0)
		for {
			_, size, err := DecodeExtUnit(p[used:])
			if size < 0 {
				return (n + 1) * e.files.size, nil
			}
			if err != nil && used > 0 && pos+int64(len(p)) < e.files.size {
				break // it may only be cut off by the buffer
			}
			if err != nil || size == 0 {
				return n*e.files.size + pos + used, nil
			}
			used += int64(size)
		}
		pos += used
	}
	return (n + 1) * e.files.size, nil
}

// forgetEnd is called when units of the queue are taken away: the end is then
// found anew. Units that cannot be written stay, and are referred to by none.
func (e *extension) forgetEnd() {
	if e.endKnown && e.writeOut() == nil {
		e.endKnown = false
	}
}

// writeOut writes the buffered units. After an error they are still buffered.
func (e *extension) writeOut() error {
	if len(e.buf) == 0 {
		return nil
	}
	n, pos := e.written/e.files.size, e.written%e.files.size
	if err := e.files.trimLocked(n, pos); err != nil {
		return err
	}
	if err := e.files.writeAtLocked(n, e.buf, pos); err != nil {
		return err
	}
	e.written += int64(len(e.buf))
	e.buf = e.buf[:0]
	return nil
}

func (e *extension) releaseBuffer() { e.buf = nil }

// expire removes the files in front of the one that the unit at slot low, or
// the last one of an expired queue, refers to.
func (e *extension) expire(low int64) (removed []RemovedFile, err error) {
	e.load()
	r := &e.files
	if e.broken != nil || r.last <= r.first {
		return nil, nil
	}
	q := e.q
	slot := min(low, q.end.Load()-1)
	var buf [64 * UnitSize]byte
	count, err := q.readLocked(slot, buf[:])
	if err != nil {
		return nil, err
	}
	keep := r.first
	for i := range count {
		if off, ok := ExtOffset(decodeUnit(buf[i*UnitSize:]).Tags); ok {
			keep = min(off/r.size, r.last)
			break
		}
	}
	for n := r.first; n < keep; n++ {
		f := RemovedFile{Path: r.path(n), Topic: q.topic, QueueID: q.id, First: message.QueueOffset(low), Size: r.size}
		if err := r.removeLocked(n); err != nil {
			return removed, errors.Join(err, r.syncDirLocked())
		}
		removed = append(removed, f)
	}
	return removed, r.syncDirLocked()
}
