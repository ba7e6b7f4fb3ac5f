package vfs

import (
	"errors"
	"io/fs"
	"os"
	"runtime"
	"runtime/debug"
	"unsafe"

	"golang.org/x/sys/unix"
)

const nonBlock = unix.O_NONBLOCK

func openOS(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}

func isNoSpace(err error) bool {
	return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)
}

// control runs fn with the descriptor, which cannot be closed meanwhile, and
// repeats it as long as a signal interrupts the call.
func (f *osFile) control(fn func(fd int) error) error { return control(f.f, fn) }

func control(f *os.File, fn func(fd int) error) error {
	conn, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var callErr error
	err = conn.Control(func(fd uintptr) {
		for {
			if callErr = fn(int(fd)); callErr != unix.EINTR {
				return
			}
		}
	})
	if err != nil {
		return fs.ErrClosed // the only reason not to call fn
	}
	return callErr
}

func (f *osFile) allocate(off, n int64) error {
	err := f.control(func(fd int) error {
		return unix.Fallocate(fd, unix.FALLOC_FL_KEEP_SIZE, off, n)
	})
	if err == unix.EOPNOTSUPP || err == unix.ENOSYS {
		return f.allocateByWriting(off, n)
	}
	return err
}

func (f *osFile) nextData(off int64) (int64, error) {
	var next int64
	err := f.control(func(fd int) (err error) {
		// The position of the descriptor moves; nothing here depends on it.
		next, err = unix.Seek(fd, off, unix.SEEK_DATA)
		return err
	})
	if (next > off || err == unix.ENXIO) && f.hidesPages() {
		err = unix.EOPNOTSUPP
	}
	switch err {
	case nil:
		return next, nil
	case unix.ENXIO: // no data from here on
		return f.Size()
	case unix.EINVAL, unix.EOPNOTSUPP: // the file system does not know
		size, err := f.Size()
		return min(off, size), err
	}
	return 0, err
}

// hidesPages reports whether what was stored through a mapping, and has not been
// written out yet, is invisible to a search for data: FUSE asks the server, who
// does not know it (package plugfs shows it).
func (f *osFile) hidesPages() bool {
	var st unix.Statfs_t
	err := f.control(func(fd int) error { return unix.Fstatfs(fd, &st) })
	return err != nil || int64(st.Type) == unix.FUSE_SUPER_MAGIC
}

// sync: fdatasync leaves out only what is not needed to read the data back,
// that is the times. A changed length and new blocks are part of it.
func (f *osFile) sync() error { return f.control(unix.Fdatasync) }

func (osFS) SyncDir(dir string) error {
	d, err := os.OpenFile(dir, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return err
	}
	defer d.Close()
	err = control(d, unix.Fsync)
	if err == unix.EINVAL {
		// File systems that write names at once, or cannot do more, have no
		// fsync for directories (CIFS and some FUSE file systems).
		return nil
	}
	if err != nil {
		return diskFull(&fs.PathError{Op: "sync", Path: dir, Err: err})
	}
	return nil
}

func (osFS) DiskUsage(dir string) (Usage, error) {
	var st unix.Statfs_t
	for {
		err := unix.Statfs(dir, &st)
		if err == nil {
			break
		}
		if err != unix.EINTR {
			return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
		}
	}
	unit := int64(st.Frsize)
	if unit <= 0 {
		unit = int64(st.Bsize)
	}
	return Usage{
		Total: int64(st.Blocks) * unit,
		Free:  int64(st.Bavail) * unit,
		Used:  int64(st.Blocks-st.Bfree) * unit,
	}, nil
}

// mapping is a shared mapping of the page cache.
type mapping struct {
	data     []byte // nil after Unmap
	name     string
	writable bool
	unmapped bool
}

func (f *osFile) mapFile(size int64, writable bool) (Mapping, error) {
	m := &mapping{name: f.name, writable: writable}
	if size == 0 {
		return m, nil // mmap refuses length zero
	}
	prot := unix.PROT_READ
	if writable {
		prot |= unix.PROT_WRITE
	}
	err := f.control(func(fd int) (err error) {
		m.data, err = unix.Mmap(fd, 0, int(size), prot, unix.MAP_SHARED)
		return err
	})
	if err != nil {
		return nil, err
	}
	return m, nil
}

// ReadAt and WriteAt touch memory that the kernel may refuse to provide: the
// disk is broken, or somebody cut the file. The signal for that would end the
// process; SetPanicOnFault makes it a panic of this goroutine, which recovered
// turns into an error.

func (m *mapping) ReadAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off > int64(len(m.data)-len(p)) {
		m.outOfRange(off, int64(len(p)))
	}
	src := m.data[int(off) : int(off)+len(p)]
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			n, err = 0, m.fault("read mapped", r)
		}
	}()
	return copy(p, src), nil
}

func (m *mapping) WriteAt(p []byte, off int64) (n int, err error) {
	if off < 0 || off > int64(len(m.data)-len(p)) {
		m.outOfRange(off, int64(len(p)))
	}
	if !m.writable {
		return 0, &fs.PathError{Op: "write mapped", Path: m.name, Err: fs.ErrPermission}
	}
	dst := m.data[int(off) : int(off)+len(p)]
	old := debug.SetPanicOnFault(true)
	defer func() {
		debug.SetPanicOnFault(old)
		if r := recover(); r != nil {
			n, err = 0, m.fault("write mapped", r)
		}
	}()
	return copy(dst, p), nil
}

func (m *mapping) outOfRange(off, n int64) { checkRange(m.name, off, n, int64(len(m.data))) }

// fault turns the recovered value of a memory fault inside the mapping into an
// error. Any other panic goes on.
func (m *mapping) fault(op string, r any) error {
	re, ok := r.(runtime.Error)
	if !ok {
		panic(r)
	}
	at, ok := re.(interface{ Addr() uintptr })
	if !ok {
		panic(r)
	}
	start := uintptr(unsafe.Pointer(unsafe.SliceData(m.data)))
	if at.Addr() < start || at.Addr() >= start+uintptr(len(m.data)) {
		panic(r)
	}
	return &fs.PathError{Op: op, Path: m.name, Err: ErrFault}
}

// pages returns the bytes of all pages that [off, off+n) touches.
func (m *mapping) pages(off, n int64) []byte {
	checkRange(m.name, off, n, int64(len(m.data)))
	if n == 0 {
		return nil
	}
	start := off &^ int64(os.Getpagesize()-1)
	return m.data[start : off+n]
}

func (m *mapping) wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	return diskFull(&fs.PathError{Op: op, Path: m.name, Err: err})
}

func (m *mapping) Flush(off, n int64) error {
	b := m.pages(off, n)
	if len(b) == 0 {
		return nil
	}
	for {
		if err := unix.Msync(b, unix.MS_SYNC); err != unix.EINTR {
			return m.wrap("msync", err)
		}
	}
}

func (m *mapping) Populate(off, n int64) error {
	b := m.pages(off, n)
	if len(b) == 0 || !m.writable {
		return nil
	}
	for {
		err := unix.Madvise(b, unix.MADV_POPULATE_WRITE)
		switch err {
		case unix.EINTR:
			continue
		case unix.EINVAL: // kernels before 5.14
			return nil
		}
		return m.wrap("populate", err)
	}
}

func (m *mapping) Advise(off, n int64, a Advice) error {
	b := m.pages(off, n)
	if len(b) == 0 {
		return nil
	}
	advice := 0
	switch a {
	case WillNeed:
		advice = unix.MADV_WILLNEED
	case Random:
		advice = unix.MADV_RANDOM
	case DontNeed:
		// Of a shared mapping this drops only the page table entries; what
		// was stored stays in the page cache.
		advice = unix.MADV_DONTNEED
	default:
		return m.wrap("advise", errors.New("unknown advice"))
	}
	return m.wrap("advise", unix.Madvise(b, advice))
}

func (m *mapping) LockMemory(off, n int64) error {
	b := m.pages(off, n)
	if len(b) == 0 {
		return nil
	}
	return m.wrap("mlock", unix.Mlock(b))
}

func (m *mapping) UnlockMemory(off, n int64) error {
	b := m.pages(off, n)
	if len(b) == 0 {
		return nil
	}
	return m.wrap("munlock", unix.Munlock(b))
}

func (m *mapping) Unmap() error {
	if m.unmapped {
		return m.wrap("unmap", fs.ErrClosed)
	}
	m.unmapped = true
	if m.data == nil {
		return nil
	}
	data := m.data
	m.data = nil
	return m.wrap("unmap", unix.Munmap(data))
}
