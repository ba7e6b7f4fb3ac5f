// Package vfs is the only way from a store to its files. It exists so that
// every call that matters for durability can be observed, failed, delayed or
// undone by a test: package memfs is a crashable file system in memory,
// package faultfs injects failures into any other, package overlayfs keeps all
// changes in memory above a directory that must not change. OS is the
// operating system.
//
// Names are operating system paths (made with path/filepath). Errors are
// *fs.PathError or wrap one; errors.Is with fs.ErrNotExist, fs.ErrExist and
// base.ErrDiskFull works on all implementations. All methods may be called
// concurrently unless a method says otherwise.
package vfs

import (
	"errors"
	"io"
	"io/fs"
)

// ErrFault says that a page of a mapping could not be had: the device cannot
// read it, there is no block left for it, or the file became shorter than the
// mapping. The process goes on, the page stays as it is.
var ErrFault = errors.New("memory fault in a mapped file")

// Mode says what an opened file is for.
type Mode int

// The modes of FS.Open.
const (
	ReadOnly  Mode = iota // reading only; works without write permission
	ReadWrite             // reading and writing; the file must exist
)

// FS is a file system.
type FS interface {
	// Create makes a new, empty file and opens it for reading and writing. It
	// fails with fs.ErrExist when the name exists. The name is durable after
	// SyncDir of its directory.
	Create(name string) (File, error)
	// Open opens an existing regular file, also through a symbolic link.
	// Anything else is an error.
	Open(name string, mode Mode) (File, error)
	// Remove removes a file or an empty directory. Open files and mappings of
	// it stay usable. The removal is durable after SyncDir.
	Remove(name string) error
	// Rename replaces newName by oldName; newName may be a file or nothing.
	// Durable after SyncDir of both directories; until then a crash may leave
	// a file under both names.
	Rename(oldName, newName string) error
	// MkdirAll makes a directory and its missing parents, durably: every
	// directory entry that it made is on stable storage when it returns.
	MkdirAll(dir string) error
	// SyncDir makes the names in dir durable.
	SyncDir(dir string) error
	// List returns the entries of dir sorted by name, symbolic links as such.
	List(dir string) ([]Entry, error)
	// Stat describes one name without following a symbolic link.
	Stat(name string) (Entry, error)
	// Lock takes the exclusive lock that a Java broker takes: a POSIX record
	// lock on byte 0 of name, as an open-file-description lock where the
	// system has them. The file is created when it is missing. When somebody
	// else holds it the error wraps base.ErrLocked. Close releases the lock
	// and leaves the file.
	Lock(name string) (Lock, error)
	// Locked says whether somebody holds that lock, without taking it and
	// without write permission. A missing file is not locked.
	Locked(name string) (bool, error)
	// DiskUsage returns the space of the file system that holds dir.
	DiskUsage(dir string) (Usage, error)
}

// Entry is what List and Stat know of a name.
type Entry struct {
	Name    string // base name
	Size    int64  // of a regular file
	Mode    fs.FileMode
	ModTime int64 // ms since 1970
	// Allocated is how much of the disk a regular file occupies, in bytes:
	// less than Size for a sparse file. Size where the system does not tell.
	Allocated int64
}

// IsRegular reports whether the entry is an ordinary file (not a directory,
// not a symbolic link).
func (e Entry) IsRegular() bool { return e.Mode.IsRegular() }

// IsDir reports whether the entry is a directory.
func (e Entry) IsDir() bool { return e.Mode.IsDir() }

// Usage is the space of a file system in bytes.
type Usage struct {
	Total int64
	Free  int64 // for this process; less than the file system's own count where blocks are reserved
	Used  int64
}

// Ratio is the used part of what is usable, 0 to 1.
func (u Usage) Ratio() float64 {
	if u.Used+u.Free <= 0 {
		return 0
	}
	return float64(u.Used) / float64(u.Used+u.Free)
}

// Lock is a held lock. File gives access to the locked file's content without
// opening it a second time.
type Lock interface {
	io.ReaderAt
	io.WriterAt
	Sync() error
	Close() error // releases the lock; the file stays; may be called again
}

// File is an open file. Reads and writes at an offset may run concurrently.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Size is the current length in bytes.
	Size() (int64, error)
	// Truncate sets the length. A longer file reads as zeros in the new part
	// and has no blocks there.
	Truncate(size int64) error
	// Allocate reserves blocks for [off, off+n) without changing content or
	// length, so that a later store through a mapping cannot fault. No space
	// is an error that wraps base.ErrDiskFull, and then the content is
	// unchanged. Nobody may write to the range meanwhile: a file system that
	// cannot reserve gets zeros written where it has none. Behind the end of
	// the file such a file system reserves nothing.
	Allocate(off, n int64) error
	// NextData returns the smallest offset >= off that may hold a byte other
	// than zero, or the size of the file when there is none. It is a hint for
	// skipping holes: returning off is always correct.
	NextData(off int64) (int64, error)
	// Sync returns nil when content and length are on stable storage,
	// including what was stored through mappings of the file. After an error
	// the kernel may have dropped the dirty pages: the caller must not try
	// again and believe the answer.
	Sync() error
	// Map makes a shared mapping of [0, length), writable or not. The file
	// may be closed before the mapping is unmapped.
	Map(writable bool) (Mapping, error)
}

// Advice is a hint for Mapping.Advise.
type Advice int

// The hints, after madvise(2).
const (
	WillNeed Advice = iota
	Random
	DontNeed
)

// Mapping is a shared view of a whole file. Access goes through methods so
// that a test file system sees every store and may lose any page not flushed,
// and so that a bad sector is an error rather than a fault. The caller must
// not use a mapping after Unmap, and keeps users and Unmap apart itself.
type Mapping interface {
	// ReadAt copies bytes out. A range outside the mapping is a bug and
	// panics; a page that the device cannot give, or that the file no longer
	// has, is an error that wraps ErrFault.
	ReadAt(p []byte, off int64) (int, error)
	// WriteAt copies bytes in. The range must have been allocated. A range
	// outside the mapping is a bug and panics; a page that cannot be had, and
	// a mapping that is not writable, are errors, after which a part of the
	// range may hold the new bytes. The bytes are on stable storage after
	// Flush of the range or Sync of the file.
	WriteAt(p []byte, off int64) (int, error)
	// Flush returns nil when the range is on stable storage, and the length
	// of the file at least to the end of the range. The remark at File.Sync
	// holds for errors here as well.
	Flush(off, n int64) error
	// Populate makes the pages of the range present for writing, so that the
	// writer does not wait for page faults. The range must be allocated. It
	// is a hint: systems without it return nil.
	Populate(off, n int64) error
	// Advise passes a hint for the range.
	Advise(off, n int64, a Advice) error
	// LockMemory and UnlockMemory pin the range in memory (mlock, munlock).
	LockMemory(off, n int64) error
	UnlockMemory(off, n int64) error
	// Unmap ends the view. Stores not flushed stay in the page cache.
	Unmap() error
}
