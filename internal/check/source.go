package check

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/gantrymq/gantry/internal/vfs"
)

// pageSize is the unit in which an unreadable range is narrowed down.
const pageSize = 4096

// path is the operating system's path of a slash-separated name below the
// store's directory.
func (c *checker) path(rel string) string {
	return filepath.Join(c.dir, filepath.FromSlash(rel))
}

// show turns a path into Finding.File.
func (c *checker) show(path string) string {
	rel, err := filepath.Rel(c.dir, path)
	if err != nil || !filepath.IsLocal(rel) {
		return filepath.ToSlash(path)
	}
	return filepath.ToSlash(rel)
}

// input is an open file of the store that is only read. A read never fails:
// bytes that the disk does not give are reported once and count as zeros, so
// that a bad sector costs the records on it and not the rest of the check.
type input struct {
	c    *checker
	sink *sink
	f    vfs.File
	path string // operating system path
	file string // for findings
	size int64  // at open; what is added later is not looked at

	buf   []byte // what was read last
	bufAt int64
	bad   []span // reported
}

// span is a range of offsets.
type span struct{ from, to int64 }

func (s span) len() int64 { return s.to - s.from }

// open opens a file for reading. A failure is reported and gives nil.
func (c *checker) open(s *sink, path string) *input {
	f, err := c.fs.Open(path, vfs.ReadOnly)
	if err == nil {
		var size int64
		if size, err = f.Size(); err == nil {
			return &input{c: c, sink: s, f: f, path: path, file: c.show(path), size: size}
		}
		f.Close()
	}
	s.add(ruleRead, c.show(path), 0, "cannot be opened: %v", err)
	return nil
}

// reuse gives the input a buffer to read into, which another one is done with.
func (in *input) reuse(buf []byte) { in.buf = buf[:0] }

func (in *input) close() {
	if in != nil {
		in.f.Close()
	}
}

// read fills p with the bytes at off. The range must lie in the file.
func (in *input) read(p []byte, off int64) {
	in.c.bytes.Add(int64(len(p)))
	n, err := in.f.ReadAt(p, off)
	if n == len(p) {
		return
	}
	if errors.Is(err, io.EOF) {
		clear(p[n:])
		in.unreadable(span{off + int64(n), off + int64(len(p))}, errors.New("the file became shorter while it was read"))
		return
	}
	// Find out which pages it is.
	for at := int64(0); at < int64(len(p)); {
		page := p[at:min(int64(len(p)), at+pageSize-(off+at)%pageSize)]
		n, err := in.f.ReadAt(page, off+at)
		if n < len(page) {
			clear(page[n:])
			if err == nil {
				err = io.ErrNoProgress
			}
			in.unreadable(span{off + at + int64(n), off + at + int64(len(page))}, err)
		}
		at += int64(len(page))
	}
}

// unreadable reports a range once; adjoining ranges become one finding.
func (in *input) unreadable(r span, err error) {
	for i := range in.bad {
		b := &in.bad[i]
		if r.from >= b.from && r.to <= b.to {
			return
		}
		if r.from == b.to {
			b.to = r.to
			return
		}
	}
	if len(in.bad) < 1000 {
		in.bad = append(in.bad, r)
	}
	in.sink.add(ruleRead, in.file, r.from, "cannot be read: %v", err)
}

// window returns n bytes at off, which must lie in the file, out of a buffer
// that is read in pieces of ahead bytes. The slice is valid until the next
// call.
func (in *input) window(off, n, ahead int64) []byte {
	if lo := off - in.bufAt; lo >= 0 && lo+n <= int64(len(in.buf)) {
		return in.buf[lo : lo+n]
	}
	return in.fill(off, n, ahead)
}

// buffered returns what the buffer holds from off on.
func (in *input) buffered(off int64) []byte {
	if lo := off - in.bufAt; lo >= 0 && lo < int64(len(in.buf)) {
		return in.buf[lo:]
	}
	return nil
}

// fill is window for what is not in the buffer.
func (in *input) fill(off, n, ahead int64) []byte {
	want := min(max(n, ahead), in.size-off)
	kept := 0
	if lo := off - in.bufAt; lo >= 0 && lo < int64(len(in.buf)) {
		kept = copy(in.buf, in.buf[lo:])
	}
	if int64(cap(in.buf)) < want {
		grown := make([]byte, want)
		copy(grown, in.buf[:kept])
		in.buf = grown
	}
	in.buf = in.buf[:want]
	in.bufAt = off
	in.read(in.buf[kept:], off+int64(kept))
	return in.buf[:n]
}

// nextData returns the smallest offset at or behind off that may hold a byte
// other than zero.
func (in *input) nextData(off int64) int64 {
	next, err := in.f.NextData(off)
	if err != nil {
		return off // it is only a hint
	}
	return min(max(next, off), in.size)
}

// nonZero returns the first range of bytes that are not all zero at or behind
// off: from is the first such byte, last the offset behind the last one. ok is
// false when all is zero.
func (in *input) nonZero(off int64) (r span, ok bool) {
	// Where data ends there is mostly a hole: begin with little.
	for ahead := int64(pageSize); off < in.size; ahead = min(2*ahead, logAhead) {
		if in.c.ctx.Err() != nil {
			return r, ok
		}
		if off = in.nextData(off); off >= in.size {
			break
		}
		chunk := in.window(off, min(ahead, in.size-off), ahead)
		if end := trimZeros(chunk); end > 0 {
			if !ok {
				r.from, ok = off+int64(firstNonZero(chunk)), true
			}
			r.to = off + int64(end)
		}
		off += int64(len(chunk))
	}
	return r, ok
}

// tolerant gives package indexfile and others a file system to read from that
// has no read errors: like input it reports them and goes on with zeros.
type tolerant struct {
	vfs.FS
	c *checker
	s *sink
}

// Open opens a file for reading.
func (t tolerant) Open(name string, _ vfs.Mode) (vfs.File, error) {
	f, err := t.FS.Open(name, vfs.ReadOnly)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &tolerantFile{f, &input{c: t.c, sink: t.s, f: f, path: name, file: t.c.show(name), size: size}}, nil
}

// tolerantFile is a file opened by tolerant.
type tolerantFile struct {
	vfs.File
	in *input
}

// Size is the length when the file was opened.
func (t *tolerantFile) Size() (int64, error) { return t.in.size, nil }

// ReadAt fails at the end of the file only.
func (t *tolerantFile) ReadAt(p []byte, off int64) (int, error) {
	n := min(int64(len(p)), max(t.in.size-off, 0))
	t.in.read(p[:n], off)
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// NextData is a hint and does not fail.
func (t *tolerantFile) NextData(off int64) (int64, error) { return t.in.nextData(off), nil }

// trimZeros returns the length of p without the zeros at its end.
func trimZeros(p []byte) int {
	for len(p) >= len(zeroBlock) && string(p[len(p)-len(zeroBlock):]) == zeroBlock {
		p = p[:len(p)-len(zeroBlock)]
	}
	n := len(p)
	for n > 0 && p[n-1] == 0 {
		n--
	}
	return n
}

// firstNonZero returns the offset of the first byte that is not zero, or len(p).
func firstNonZero(p []byte) int {
	n := 0
	for len(p)-n >= len(zeroBlock) && string(p[n:n+len(zeroBlock)]) == zeroBlock {
		n += len(zeroBlock)
	}
	for n < len(p) && p[n] == 0 {
		n++
	}
	return n
}

// zeroBlock is compared with as a string, which the runtime does with vector
// instructions.
var zeroBlock = strings.Repeat("\x00", 256)

// list lists a directory; a missing one is empty.
func (c *checker) list(s *sink, dir string) []vfs.Entry {
	entries, err := c.fs.List(dir)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.add(ruleRead, c.show(dir), 0, "cannot be listed: %v", err)
		}
		return nil
	}
	for _, e := range entries {
		if e.IsRegular() {
			c.files.Add(1)
		}
	}
	return entries
}

// slurp reads a whole small file. ok is false when it does not exist or cannot
// be opened; a file above limit is reported under r and refused.
func (c *checker) slurp(s *sink, path string, limit int64, r *rule) (data []byte, ok bool) {
	e, err := c.fs.Stat(path)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			s.add(ruleRead, c.show(path), 0, "cannot be looked up: %v", err)
		}
		return nil, false
	}
	if !e.IsRegular() {
		s.addAs(ruleLeftover, Info, c.show(path), 0, "is not a file (%v)", e.Mode.Type())
		return nil, false
	}
	in := c.open(s, path)
	if in == nil {
		return nil, false
	}
	defer in.close()
	if in.size > limit {
		s.add(r, in.file, 0, "has %d bytes, more than the %d that are looked at", in.size, limit)
		return nil, false
	}
	data = make([]byte, in.size)
	in.read(data, 0)
	return data, true
}

// plural is for texts: 1 record, 2 records.
func plural(n int64, what string) string {
	if n == 1 {
		return fmt.Sprintf("%d %s", n, what)
	}
	return fmt.Sprintf("%d %ss", n, what)
}
