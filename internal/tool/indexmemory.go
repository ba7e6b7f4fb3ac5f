package tool

import (
	"errors"
	"io"
	"sync"

	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
)

// indexMemory is a file system for making index files. What would be a mapping
// of a whole file, some 400 MiB, is the header and the slots in memory, some 20,
// and the entries behind them, which come one after the other, in long writes.
// Other files pass through.
type indexMemory struct {
	vfs.FS
	head  int64 // length of header and slots
	mu    sync.Mutex
	spare []byte // of a file that is done, for the next one
}

// maxIndexHead bounds header and slots in memory: a geometry may have been taken
// from a damaged file.
const maxIndexHead = 64 << 20

// withIndexMemory returns the file system to make index files of a geometry in.
func withIndexMemory(fsys vfs.FS, g indexfile.Geometry) vfs.FS {
	if g.Slots == 0 {
		g.Slots = indexfile.DefaultGeometry.Slots
	}
	head := indexfile.Geometry{Slots: g.Slots}.Size()
	if head > maxIndexHead {
		return fsys
	}
	return &indexMemory{FS: fsys, head: head}
}

// Create implements vfs.FS.
func (m *indexMemory) Create(name string) (vfs.File, error) {
	f, err := m.FS.Create(name)
	if err != nil {
		return nil, err
	}
	return &indexInMemory{File: f, of: m, size: m.head}, nil
}

// indexInMemory is a new index file. The index has one user for the mapping and
// the file at a time, and syncs the file when it has given up the mapping or
// holds its lock.
type indexInMemory struct {
	vfs.File
	of   *indexMemory
	size int64 // of head
	head []byte
	// Entries that are not written yet, from position at on.
	tail []byte
	at   int64
}

// Map implements vfs.File. The file holds nothing but zeros then.
func (f *indexInMemory) Map(bool) (vfs.Mapping, error) {
	f.of.mu.Lock()
	f.head, f.of.spare = f.of.spare, nil
	f.of.mu.Unlock()
	if f.head == nil {
		f.head = make([]byte, f.size)
	} else {
		clear(f.head)
	}
	f.tail, f.at = make([]byte, 0, copyChunk), f.size
	return indexMapping{f}, nil
}

// flush writes the entries.
func (f *indexInMemory) flush() error {
	if len(f.tail) == 0 {
		return nil
	}
	n, err := f.File.WriteAt(f.tail, f.at)
	if err != nil {
		return err
	}
	f.at += int64(n)
	f.tail = f.tail[:0]
	return nil
}

// writeOut writes everything.
func (f *indexInMemory) writeOut() error {
	err := f.flush()
	if err == nil && f.head != nil {
		err = writeData(f.File, f.head, 0)
	}
	return err
}

// Sync implements vfs.File.
func (f *indexInMemory) Sync() error {
	if err := f.writeOut(); err != nil {
		return err
	}
	return f.File.Sync()
}

// indexMapping is the view of the file.
type indexMapping struct{ f *indexInMemory }

// ReadAt implements vfs.Mapping.
func (m indexMapping) ReadAt(p []byte, off int64) (int, error) {
	if off+int64(len(p)) <= m.f.size {
		return copy(p, m.f.head[off:]), nil
	}
	// Nobody reads entries but where a slot turns out to be damaged, which it
	// cannot be in a new file.
	if err := m.f.writeOut(); err != nil {
		return 0, err
	}
	n, err := m.f.File.ReadAt(p, off)
	if errors.Is(err, io.EOF) {
		clear(p[n:])
		n, err = len(p), nil
	}
	return n, err
}

// WriteAt implements vfs.Mapping.
func (m indexMapping) WriteAt(p []byte, off int64) (int, error) {
	f := m.f
	if off+int64(len(p)) <= f.size {
		return copy(f.head[off:], p), nil
	}
	if off != f.at+int64(len(f.tail)) || len(f.tail)+len(p) > cap(f.tail) {
		if err := f.flush(); err != nil {
			return 0, err
		}
		f.at = off
	}
	f.tail = append(f.tail, p...)
	return len(p), nil
}

// Unmap implements vfs.Mapping. What cannot be written stays for Sync to fail on.
func (m indexMapping) Unmap() error {
	err := m.f.writeOut()
	if err == nil {
		m.f.of.mu.Lock()
		m.f.of.spare = m.f.head
		m.f.of.mu.Unlock()
		m.f.head, m.f.tail = nil, nil
	}
	return err
}

// The others have nothing to do.

func (m indexMapping) Flush(int64, int64) error            { return m.f.writeOut() }
func (indexMapping) Populate(int64, int64) error           { return nil }
func (indexMapping) Advise(int64, int64, vfs.Advice) error { return nil }
func (indexMapping) LockMemory(int64, int64) error         { return nil }
func (indexMapping) UnlockMemory(int64, int64) error       { return nil }
