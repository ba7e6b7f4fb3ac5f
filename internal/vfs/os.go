package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/gantrymq/gantry/internal/base"
)

// OS returns the file system of the operating system. The value has no state;
// all values are equal.
//
// On Linux mappings are shared mappings of the page cache, Allocate reserves
// blocks with fallocate(2), and the store lock is an open-file-description
// lock. Elsewhere a mapping is the plain reading and writing of the file.
func OS() FS { return osFS{} }

const (
	filePerm = 0o644
	dirPerm  = 0o755
)

// errNotRegular is the answer to opening a directory, a pipe or a device.
var errNotRegular = errors.New("not a regular file")

type osFS struct{}

func (osFS) Create(name string) (File, error) {
	f, err := openOS(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, filePerm)
	if err != nil {
		return nil, diskFull(err)
	}
	return newOSFile(f, name, true), nil
}

// TempFile makes a file in the folder for temporary files. Where the system
// allows it, it has no name: closing it, or the end of the process, frees its
// space. Elsewhere the name stays.
func TempFile() (File, error) {
	f, err := os.CreateTemp("", "gantry-*")
	if err != nil {
		return nil, diskFull(err)
	}
	_ = os.Remove(f.Name())
	return newOSFile(f, f.Name(), true), nil
}

func (osFS) Open(name string, mode Mode) (File, error) {
	flag := os.O_RDONLY
	if mode == ReadWrite {
		flag = os.O_RDWR
	}
	f, err := openRegular(name, flag)
	if err != nil {
		return nil, err
	}
	return newOSFile(f, name, mode == ReadWrite), nil
}

// openRegular opens an existing regular file. It never waits: a pipe that
// somebody put where a file was expected must not hang the store.
func openRegular(name string, flag int) (*os.File, error) {
	f, err := openOS(name, flag|nonBlock, filePerm)
	if err != nil {
		return nil, err
	}
	fi, err := f.Stat()
	if err == nil && !fi.Mode().IsRegular() {
		err = &fs.PathError{Op: "open", Path: name, Err: errNotRegular}
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

func (osFS) Remove(name string) error { return os.Remove(name) }

func (osFS) Rename(oldName, newName string) error {
	err := os.Rename(oldName, newName)
	if le, ok := errors.AsType[*os.LinkError](err); ok {
		// All errors of a file system are path errors.
		err = &fs.PathError{Op: "rename", Path: oldName, Err: fmt.Errorf("to %s: %w", newName, le.Err)}
	}
	return diskFull(err)
}

func (o osFS) MkdirAll(dir string) error {
	dir = filepath.Clean(dir)
	fi, err := os.Stat(dir)
	if err == nil {
		if !fi.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		return nil
	}
	if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	parent := filepath.Dir(dir)
	if parent == dir {
		return err
	}
	if err := o.MkdirAll(parent); err != nil {
		return err
	}
	// Somebody may make the directory at the same moment. Then it is not ours,
	// but we cannot know whether its maker has synced the parent: do it here.
	if err := os.Mkdir(dir, dirPerm); err != nil && !errors.Is(err, fs.ErrExist) {
		return diskFull(err)
	}
	return o.SyncDir(parent)
}

func (osFS) List(dir string) ([]Entry, error) {
	names, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(names))
	for _, d := range names {
		fi, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue // removed since the directory was read
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, entryOf(fi))
	}
	return entries, nil
}

func (osFS) Stat(name string) (Entry, error) {
	fi, err := os.Lstat(name)
	if err != nil {
		return Entry{}, err
	}
	return entryOf(fi), nil
}

func entryOf(fi fs.FileInfo) Entry {
	e := Entry{Name: fi.Name(), Mode: fi.Mode(), ModTime: fi.ModTime().UnixMilli()}
	if e.IsRegular() {
		e.Size = fi.Size()
		e.Allocated = allocatedOf(fi)
	}
	return e
}

// osFile is an open file of the operating system. The methods allocate,
// nextData, sync and mapFile are in the files for each system.
type osFile struct {
	f        *os.File
	name     string
	writable bool
}

func newOSFile(f *os.File, name string, writable bool) *osFile {
	return &osFile{f: f, name: name, writable: writable}
}

func (f *osFile) ReadAt(p []byte, off int64) (int, error) { return f.f.ReadAt(p, off) }

func (f *osFile) WriteAt(p []byte, off int64) (int, error) {
	n, err := f.f.WriteAt(p, off)
	return n, diskFull(err)
}

func (f *osFile) Size() (int64, error) {
	fi, err := f.f.Stat()
	if err != nil {
		return 0, err
	}
	return fi.Size(), nil
}

func (f *osFile) Truncate(size int64) error { return diskFull(f.f.Truncate(size)) }

func (f *osFile) Allocate(off, n int64) error {
	if off < 0 || n < 0 || off > maxOffset-n {
		return f.wrap("allocate", fs.ErrInvalid)
	}
	if !f.writable {
		return f.wrap("allocate", syscall.EBADF)
	}
	if n == 0 {
		return nil
	}
	return f.wrap("allocate", f.allocate(off, n))
}

func (f *osFile) NextData(off int64) (int64, error) {
	if off < 0 {
		return 0, f.wrap("seek", errors.New("negative offset"))
	}
	next, err := f.nextData(off)
	return next, f.wrap("seek", err)
}

// allocateByWriting reserves blocks on file systems that have no call for it:
// it writes zeros over every page that reads as zeros, hole or not. The length
// must not change, so nothing happens behind the end of the file.
func (f *osFile) allocateByWriting(off, n int64) error {
	size, err := f.Size()
	if err != nil {
		return err
	}
	end := min(off+n, size)
	const page = 4096
	var buf, zero [page]byte
	for pos := off &^ (page - 1); pos < end; pos += page {
		chunk := buf[:min(page, size-pos)]
		if _, err := f.f.ReadAt(chunk, pos); err != nil {
			return err
		}
		if string(chunk) != string(zero[:len(chunk)]) {
			continue
		}
		if _, err := f.f.WriteAt(chunk, pos); err != nil {
			return err
		}
	}
	return nil
}

func (f *osFile) Close() error { return f.f.Close() }

func (f *osFile) Sync() error { return f.wrap("sync", f.sync()) }

func (f *osFile) Map(writable bool) (Mapping, error) {
	if writable && !f.writable {
		return nil, f.wrap("map", fs.ErrPermission)
	}
	size, err := f.Size()
	if err != nil {
		return nil, f.wrap("map", err)
	}
	if int64(int(size)) != size {
		return nil, f.wrap("map", fmt.Errorf("%d bytes do not fit the address space", size))
	}
	m, err := f.mapFile(size, writable)
	return m, f.wrap("map", err)
}

// maxOffset is the largest position in a file.
const maxOffset = 1<<63 - 1

// wrap makes err a path error that names the file, unless it is one already.
func (f *osFile) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*fs.PathError](err); !ok {
		err = &fs.PathError{Op: op, Path: f.name, Err: err}
	}
	return diskFull(err)
}

// diskFull makes errors.Is(err, base.ErrDiskFull) hold for the errors by which
// the system says that there is no space, or no quota left.
func diskFull(err error) error {
	if err == nil || !isNoSpace(err) || errors.Is(err, base.ErrDiskFull) {
		return err
	}
	return fmt.Errorf("%w: %w", base.ErrDiskFull, err)
}

// checkRange panics when [off, off+n) is not part of a mapping of size bytes.
func checkRange(name string, off, n, size int64) {
	if off < 0 || n < 0 || off > size-n {
		panic(fmt.Sprintf("vfs: range [%d, %d+%d) outside the mapping of %s (%d bytes)", off, off, n, name, size))
	}
}
