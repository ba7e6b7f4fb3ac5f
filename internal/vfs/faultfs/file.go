package faultfs

import (
	"io"

	"github.com/gantrymq/gantry/internal/vfs"
)

// dirtyDropper is implemented by files and mappings that can forget pages that
// are not durable, as after a failed sync; n < 0 means to the end.
type dirtyDropper interface{ DropDirty(off, n int64) }

func dropDirty(x any, off, n int64) {
	if d, ok := x.(dirtyDropper); ok {
		d.DropDirty(off, n)
	}
}

// read and write run calls that move bytes.
func (f *FS) read(c Call, r io.ReaderAt, p []byte) (n int, err error) {
	if fault := f.before(c); fault != nil {
		err = fault.err
	} else {
		n, err = r.ReadAt(p, c.Off)
	}
	f.after(c, n, err)
	return n, err
}

func (f *FS) write(c Call, w io.WriterAt, p []byte) (n int, err error) {
	if fault := f.before(c); fault != nil {
		err = fault.err
		if fault.short > 0 {
			n, _ = w.WriteAt(p[:min(fault.short, len(p))], c.Off)
		}
	} else {
		n, err = w.WriteAt(p, c.Off)
	}
	f.after(c, n, err)
	return n, err
}

// sync runs a call that makes a range of x durable.
func (f *FS) sync(c Call, x any, call func() error) (err error) {
	if fault := f.before(c); fault != nil {
		err = fault.err
		if fault.dropDirty {
			dropDirty(x, c.Off, c.N)
		}
	} else {
		err = call()
	}
	f.after(c, 0, err)
	return err
}

type file struct {
	fs   *FS
	base vfs.File
	name string
}

func (f *file) call(op Op, off, n int64) Call { return Call{Op: op, Name: f.name, Off: off, N: n} }

func (f *file) ReadAt(p []byte, off int64) (int, error) {
	return f.fs.read(f.call(OpRead, off, int64(len(p))), f.base, p)
}

func (f *file) WriteAt(p []byte, off int64) (int, error) {
	return f.fs.write(f.call(OpWrite, off, int64(len(p))), f.base, p)
}

func (f *file) Size() (size int64, err error) {
	err = f.fs.do(f.call(OpSize, 0, 0), func() (err error) {
		size, err = f.base.Size()
		return err
	})
	return size, err
}

func (f *file) Truncate(size int64) error {
	return f.fs.do(f.call(OpTruncate, size, 0), func() error { return f.base.Truncate(size) })
}

func (f *file) Allocate(off, n int64) error {
	return f.fs.do(f.call(OpAllocate, off, n), func() error { return f.base.Allocate(off, n) })
}

func (f *file) NextData(off int64) (next int64, err error) {
	err = f.fs.do(f.call(OpNextData, off, 0), func() (err error) {
		next, err = f.base.NextData(off)
		return err
	})
	return next, err
}

func (f *file) Sync() error {
	return f.fs.sync(f.call(OpSync, 0, -1), f.base, f.base.Sync)
}

// DropDirty lets one faultfs lie above another.
func (f *file) DropDirty(off, n int64) { dropDirty(f.base, off, n) }

func (f *file) Map(writable bool) (vfs.Mapping, error) {
	var mapped vfs.Mapping
	err := f.fs.do(f.call(OpMap, 0, 0), func() (err error) {
		mapped, err = f.base.Map(writable)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &mapping{fs: f.fs, base: mapped, name: f.name}, nil
}

func (f *file) Close() error { return f.fs.release(f.call(OpClose, 0, 0), f.base.Close) }

// release runs a call that gives something back. It reaches the base even when
// it is to fail: a failed close(2) has closed the file, too.
func (f *FS) release(c Call, call func() error) error {
	fault := f.before(c)
	err := call()
	if fault != nil {
		err = fault.err
	}
	f.after(c, 0, err)
	return err
}

// lock is a held lock: a file for the calls that it has.
type lock struct {
	fs   *FS
	base vfs.Lock
	name string
}

func (l *lock) call(op Op, off, n int64) Call { return Call{Op: op, Name: l.name, Off: off, N: n} }

func (l *lock) ReadAt(p []byte, off int64) (int, error) {
	return l.fs.read(l.call(OpRead, off, int64(len(p))), l.base, p)
}

func (l *lock) WriteAt(p []byte, off int64) (int, error) {
	return l.fs.write(l.call(OpWrite, off, int64(len(p))), l.base, p)
}

func (l *lock) Sync() error { return l.fs.sync(l.call(OpSync, 0, -1), l.base, l.base.Sync) }

func (l *lock) Close() error { return l.fs.release(l.call(OpClose, 0, 0), l.base.Close) }

type mapping struct {
	fs   *FS
	base vfs.Mapping
	name string
}

func (m *mapping) call(op Op, off, n int64) Call { return Call{Op: op, Name: m.name, Off: off, N: n} }

func (m *mapping) ReadAt(p []byte, off int64) (int, error) {
	return m.fs.read(m.call(OpMapRead, off, int64(len(p))), m.base, p)
}

func (m *mapping) WriteAt(p []byte, off int64) (int, error) {
	return m.fs.write(m.call(OpMapWrite, off, int64(len(p))), m.base, p)
}

func (m *mapping) Flush(off, n int64) error {
	return m.fs.sync(m.call(OpMapFlush, off, n), m.base, func() error { return m.base.Flush(off, n) })
}

// DropDirty lets one faultfs lie above another.
func (m *mapping) DropDirty(off, n int64) { dropDirty(m.base, off, n) }

func (m *mapping) Populate(off, n int64) error {
	return m.fs.do(m.call(OpMapPopulate, off, n), func() error { return m.base.Populate(off, n) })
}

func (m *mapping) Advise(off, n int64, a vfs.Advice) error {
	return m.fs.do(m.call(OpMapAdvise, off, n), func() error { return m.base.Advise(off, n, a) })
}

func (m *mapping) LockMemory(off, n int64) error {
	return m.fs.do(m.call(OpMapLockMemory, off, n), func() error { return m.base.LockMemory(off, n) })
}

func (m *mapping) UnlockMemory(off, n int64) error {
	return m.fs.do(m.call(OpMapUnlockMemory, off, n), func() error { return m.base.UnlockMemory(off, n) })
}

func (m *mapping) Unmap() error { return m.fs.release(m.call(OpMapUnmap, 0, 0), m.base.Unmap) }
