//go:build !linux

package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// sync writes everything out, on macOS with F_FULLFSYNC.
func (f *osFile) sync() error { return f.f.Sync() }

// nextData knows nothing of holes.
func (f *osFile) nextData(off int64) (int64, error) {
	size, err := f.Size()
	return min(off, size), err
}

// mapping is a mapping for systems where memory is not mapped: each access
// reads or writes the file. It is slower but coherent with the file, like a
// real one.
type mapping struct {
	f        *os.File // its own: the file may be closed before the mapping
	name     string
	length   int64
	writable bool
}

func (f *osFile) mapFile(size int64, writable bool) (Mapping, error) {
	dup, err := duplicate(f.f)
	if err != nil {
		return nil, err
	}
	return &mapping{f: dup, name: f.name, length: size, writable: writable}, nil
}

// mappedPage is the page size that the end of a mapped file is rounded up to.
const mappedPage = 4096

// inFile returns how many of the n bytes at off the file has. Behind the last
// page of the file there is no memory.
func (m *mapping) inFile(op string, off, n int64) (int64, error) {
	fi, err := m.f.Stat()
	if err != nil {
		return 0, &fs.PathError{Op: op, Path: m.name, Err: err}
	}
	size := fi.Size()
	pages := size / mappedPage
	if size%mappedPage != 0 {
		pages++
	}
	if n > 0 && (off+n-1)/mappedPage >= pages {
		return 0, &fs.PathError{Op: op, Path: m.name, Err: ErrFault}
	}
	return min(n, max(0, size-off)), nil
}

func (m *mapping) ReadAt(p []byte, off int64) (int, error) {
	checkRange(m.name, off, int64(len(p)), m.length)
	n, err := m.inFile("read mapped", off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	clear(p[n:])
	got, err := m.f.ReadAt(p[:n], off)
	if err == io.EOF { // cut at this moment
		clear(p[got:])
		err = nil
	}
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (m *mapping) WriteAt(p []byte, off int64) (int, error) {
	checkRange(m.name, off, int64(len(p)), m.length)
	if !m.writable {
		return 0, &fs.PathError{Op: "write mapped", Path: m.name, Err: fs.ErrPermission}
	}
	n, err := m.inFile("write mapped", off, int64(len(p)))
	if err != nil {
		return 0, err
	}
	// What is stored behind the end of the file never gets into it.
	if _, err := m.f.WriteAt(p[:n], off); err != nil {
		return 0, diskFull(err)
	}
	return len(p), nil
}

func (m *mapping) Flush(off, n int64) error {
	checkRange(m.name, off, n, m.length)
	if n == 0 || !m.writable {
		return nil
	}
	return diskFull(m.f.Sync())
}

func (m *mapping) Populate(off, n int64) error {
	checkRange(m.name, off, n, m.length)
	return nil
}

func (m *mapping) Advise(off, n int64, _ Advice) error {
	checkRange(m.name, off, n, m.length)
	return nil
}

// LockMemory has no memory to lock, and says so.
func (m *mapping) LockMemory(off, n int64) error {
	checkRange(m.name, off, n, m.length)
	return &fs.PathError{Op: "mlock", Path: m.name, Err: errors.ErrUnsupported}
}

func (m *mapping) UnlockMemory(off, n int64) error {
	checkRange(m.name, off, n, m.length)
	return &fs.PathError{Op: "munlock", Path: m.name, Err: errors.ErrUnsupported}
}

func (m *mapping) Unmap() error { return m.f.Close() }
