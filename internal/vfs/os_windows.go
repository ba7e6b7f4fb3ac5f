package vfs

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"golang.org/x/sys/windows"
)

const nonBlock = 0

// openOS is os.OpenFile, but lets the file be removed and renamed while it is
// open, as on other systems.
func openOS(name string, flag int, _ fs.FileMode) (*os.File, error) {
	fail := func(err error) (*os.File, error) {
		return nil, &fs.PathError{Op: "open", Path: name, Err: err}
	}
	if name == "" {
		return fail(syscall.ENOENT)
	}
	path, err := windows.UTF16PtrFromString(name)
	if err != nil {
		return fail(err)
	}
	access := uint32(windows.GENERIC_READ)
	if flag&os.O_RDWR != 0 {
		access |= windows.GENERIC_WRITE
	}
	disposition := uint32(windows.OPEN_EXISTING)
	switch {
	case flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		disposition = windows.CREATE_NEW
	case flag&os.O_CREATE != 0:
		disposition = windows.OPEN_ALWAYS
	}
	h, err := windows.CreateFile(path, access,
		windows.FILE_SHARE_READ|windows.FILE_SHARE_WRITE|windows.FILE_SHARE_DELETE,
		nil, disposition, windows.FILE_ATTRIBUTE_NORMAL, 0)
	if err != nil {
		return fail(err)
	}
	return os.NewFile(uintptr(h), name), nil
}

func isNoSpace(err error) bool {
	return errors.Is(err, windows.ERROR_DISK_FULL) || errors.Is(err, windows.ERROR_HANDLE_DISK_FULL)
}

// allocate: a file that is not sparse has blocks for its whole length.
func (f *osFile) allocate(off, n int64) error {
	_, err := f.Size() // whether the file is open
	return err
}

func duplicate(f *os.File) (*os.File, error) {
	self := windows.CurrentProcess()
	var h windows.Handle
	err := windows.DuplicateHandle(self, windows.Handle(f.Fd()), self, &h, 0, false, windows.DUPLICATE_SAME_ACCESS)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(h), f.Name()), nil
}

// SyncDir has nothing to do: there is no call for it, and NTFS keeps names in
// its journal.
func (osFS) SyncDir(dir string) error {
	fi, err := os.Stat(dir)
	if err == nil && !fi.IsDir() {
		err = &fs.PathError{Op: "sync", Path: dir, Err: syscall.ENOTDIR}
	}
	return err
}

func (osFS) DiskUsage(dir string) (Usage, error) {
	path, err := windows.UTF16PtrFromString(dir)
	var free, total, allFree uint64
	if err == nil {
		err = windows.GetDiskFreeSpaceEx(path, &free, &total, &allFree)
	}
	if err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return Usage{Total: int64(total), Free: int64(free), Used: int64(total - allFree)}, nil
}
