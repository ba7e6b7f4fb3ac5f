package tool

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/gantrymq/gantry/internal/vfs"
)

const (
	// pageSize is the unit in which zeros are left out of copies, and in which
	// an unreadable range is narrowed down.
	pageSize = 4096
	// copyChunk is how much is read at a time: disks like long reads.
	copyChunk = 1 << 20
)

var zeroPage = strings.Repeat("\x00", pageSize)

// isZero reports whether all bytes are zero.
func isZero(p []byte) bool {
	for len(p) > pageSize {
		if string(p[:pageSize]) != zeroPage {
			return false
		}
		p = p[pageSize:]
	}
	return string(p) == zeroPage[:len(p)]
}

// trimZeros returns the length of p without the zeros at its end.
func trimZeros(p []byte) int {
	n := len(p)
	for n >= pageSize && isZero(p[n-pageSize:n]) {
		n -= pageSize
	}
	for n > 0 && p[n-1] == 0 {
		n--
	}
	return n
}

// unreadable is told about bytes that the disk does not give. Calls may come
// from several goroutines.
type unreadable func(name string, off, n int64, err error)

// sourceFile is a file that is only read, on a disk that may be failing. Bytes
// that cannot be read, and bytes behind its end, are zeros, so that a bad
// sector costs what is on it and nothing else. One goroutine uses it.
type sourceFile struct {
	f    vfs.File
	name string // for reports: relative to the store, with slashes
	size int64
	bad  unreadable

	badFrom, badTo int64 // the last range that was reported
}

// openSource opens a file; one that cannot be opened is an error.
func openSource(fsys vfs.FS, path, name string, bad unreadable) (*sourceFile, error) {
	f, err := fsys.Open(path, vfs.ReadOnly)
	if err != nil {
		return nil, err
	}
	size, err := f.Size()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &sourceFile{f: f, name: name, size: size, bad: bad}, nil
}

func (s *sourceFile) close() {
	if s != nil {
		s.f.Close() // only read: nothing can be lost
	}
}

// read fills p with the bytes at off.
func (s *sourceFile) read(p []byte, off int64) {
	if over := off + int64(len(p)) - max(s.size, off); over > 0 {
		clear(p[int64(len(p))-over:])
		p = p[:int64(len(p))-over]
	}
	if len(p) == 0 {
		return
	}
	n, err := s.f.ReadAt(p, off)
	if n == len(p) {
		return
	}
	if errors.Is(err, io.EOF) { // it became shorter
		clear(p[n:])
		s.report(off+int64(n), int64(len(p)-n), io.ErrUnexpectedEOF)
		return
	}
	for at := int64(0); at < int64(len(p)); { // which pages is it?
		page := p[at:min(int64(len(p)), at+pageSize-(off+at)%pageSize)]
		n, err := s.f.ReadAt(page, off+at)
		if n < len(page) {
			clear(page[n:])
			if err == nil {
				err = io.ErrNoProgress
			}
			s.report(off+at+int64(n), int64(len(page)-n), err)
		}
		at += int64(len(page))
	}
}

// report tells about a range once, although it may be read again and again.
func (s *sourceFile) report(off, n int64, err error) {
	if off >= s.badFrom && off+n <= s.badTo {
		return
	}
	if off != s.badTo || s.badTo == 0 {
		s.badFrom = off
	}
	s.badTo = off + n
	if s.bad != nil {
		s.bad(s.name, off, n, err)
	}
}

// nextData returns where bytes other than zero may begin at or behind off.
func (s *sourceFile) nextData(off int64) int64 {
	if off >= s.size {
		return off
	}
	next, err := s.f.NextData(off)
	if err != nil {
		return off // only a hint
	}
	return max(next, off)
}

// writeData writes p at off of a file that has zeros there, and leaves out
// whole pages of zeros, so that the file stays as sparse as it can be.
func writeData(f io.WriterAt, p []byte, off int64) error {
	for len(p) > 0 {
		n := int64(0) // bytes to be written
		for n < int64(len(p)) {
			page := min(pageSize-(off+n)%pageSize, int64(len(p))-n)
			if isZero(p[n : n+page]) {
				break
			}
			n += page
		}
		if n > 0 {
			if _, err := f.WriteAt(p[:n], off); err != nil {
				return err
			}
			p, off = p[n:], off+n
			continue
		}
		n = min(pageSize-off%pageSize, int64(len(p)))
		p, off = p[n:], off+n
	}
	return nil
}

// copyRange copies [from, to) of src to the same place in dst, which has zeros
// there. told, if not nil, is told how many bytes went by.
func copyRange(ctx context.Context, dst io.WriterAt, src *sourceFile, from, to int64, buf []byte, told func(int64)) error {
	to = min(to, src.size)
	for off := from; off < to; {
		if err := ctx.Err(); err != nil {
			return err
		}
		next := min(src.nextData(off), to)
		if told != nil {
			told(next - off)
		}
		if off = next; off >= to {
			break
		}
		p := buf[:min(int64(len(buf)), to-off)]
		src.read(p, off)
		if err := writeData(dst, p, off); err != nil {
			return err
		}
		off += int64(len(p))
		if told != nil {
			told(int64(len(p)))
		}
	}
	return nil
}

// treeCopy copies files of a store into a new one.
type treeCopy struct {
	fs  vfs.FS
	dst *newDir
	bad unreadable
	// skipped is told of what is no file or directory.
	skipped func(name, reason string)
	told    func(int64)
	buf     []byte
}

// maxDepth bounds how deep directories of a store are nested: compaction logs
// have five levels. It ends loops of symbolic links.
const maxDepth = 12

// tree copies what lies at path to the name rel of the new store. A missing
// one is fine.
func (c *treeCopy) tree(ctx context.Context, path, rel string, depth int) error {
	entries, err := c.fs.List(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		c.bad(rel, 0, 0, err)
		return nil
	}
	if depth > maxDepth {
		c.skipped(rel, "nested too deeply")
		return nil
	}
	if err := c.dst.fs.MkdirAll(c.dst.at(rel)); err != nil {
		return err
	}
	for _, e := range entries {
		name := rel + "/" + e.Name
		if err := c.entry(ctx, filepath.Join(path, e.Name), name, e, depth); err != nil {
			return err
		}
	}
	return nil
}

// entry copies one directory entry. Symbolic links are followed.
func (c *treeCopy) entry(ctx context.Context, path, name string, e vfs.Entry, depth int) error {
	link := e.Mode&fs.ModeSymlink != 0
	if e.IsDir() {
		return c.tree(ctx, path, name, depth+1)
	}
	if link {
		if _, err := c.fs.List(path); err == nil {
			return c.tree(ctx, path, name, depth+1)
		}
	}
	if !link && !e.IsRegular() {
		c.skipped(name, "not a file")
		return nil
	}
	return c.file(ctx, path, name)
}

// file copies one file, with its length and its holes, to stable storage.
func (c *treeCopy) file(ctx context.Context, path, name string) (err error) {
	src, err := openSource(c.fs, path, name, c.bad)
	if err != nil {
		c.bad(name, 0, 0, err)
		return nil
	}
	defer src.close()
	dst, err := c.dst.create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	if err := dst.Truncate(src.size); err != nil {
		return err
	}
	if c.buf == nil {
		c.buf = make([]byte, copyChunk)
	}
	if err := copyRange(ctx, dst, src, 0, src.size, c.buf, c.told); err != nil {
		return err
	}
	return dst.Sync()
}
