package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"strconv"

	"github.com/gantrymq/gantry/internal/vfs"
)

// Names of the files in the store directory.
const (
	FileName  = "checkpoint"
	AbortName = "abort"
	LockName  = "lock"
)

const lockContent = "lock"

// TakeLock locks the store directory: the lock that a Java broker takes, on
// the file lock, which is created when it is missing. When somebody else has
// it the error wraps base.ErrLocked. Nothing else is changed: the caller does
// not know yet whether it will open the store.
func TakeLock(fsys vfs.FS, dir string) (vfs.Lock, error) {
	l, err := fsys.Lock(filepath.Join(dir, LockName))
	if err != nil {
		return nil, fmt.Errorf("lock store %s: %w", dir, err)
	}
	return l, nil
}

// MarkLock gives the lock file the content that a Java broker gives it, unless
// it has it.
func MarkLock(l vfs.Lock) error {
	var b [len(lockContent)]byte
	n, err := l.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		return fmt.Errorf("read lock file: %w", err)
	}
	if string(b[:n]) == lockContent {
		return nil
	}
	if _, err := l.WriteAt([]byte(lockContent), 0); err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	if err := l.Sync(); err != nil {
		return fmt.Errorf("write lock file: %w", err)
	}
	return nil
}

// CreateAbort makes the file abort, which says that the store is open or was
// not closed, with the process id as content. It is on stable storage when
// CreateAbort returns nil, and must be before anything else in the store is
// changed. A file left behind by a crash gets the new content.
func CreateAbort(fsys vfs.FS, dir string, pid int) error {
	if err := createAbort(fsys, filepath.Join(dir, AbortName), strconv.Itoa(pid)); err != nil {
		return fmt.Errorf("create abort file: %w", err)
	}
	if err := fsys.SyncDir(dir); err != nil {
		return fmt.Errorf("create abort file: %w", err)
	}
	return nil
}

func createAbort(fsys vfs.FS, path, content string) (err error) {
	f, err := fsys.Create(path)
	old := errors.Is(err, fs.ErrExist)
	if old {
		f, err = fsys.Open(path, vfs.ReadWrite)
	}
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, f.Close())
		if err != nil && !old {
			err = errors.Join(err, fsys.Remove(path)) // the store is not opened: nothing must have changed
		}
	}()
	// Over the old content, in one sector, and only then to the new length:
	// where there is no space the old file stays as it is, and no crash leaves
	// digits of two numbers. Blanks make what stands behind them unreadable.
	over := content
	if old {
		over += "          "
	}
	if _, err := f.WriteAt([]byte(over), 0); err != nil {
		return err
	}
	if old {
		if err := f.Sync(); err != nil {
			return err
		}
		if err := f.Truncate(int64(len(content))); err != nil {
			return err
		}
	}
	return f.Sync()
}

// RemoveAbort removes the file abort durably. It is the last step of an
// orderly close. A missing file is fine.
func RemoveAbort(fsys vfs.FS, dir string) error {
	err := fsys.Remove(filepath.Join(dir, AbortName))
	if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err == nil {
		err = fsys.SyncDir(dir)
	}
	if err != nil {
		return fmt.Errorf("remove abort file: %w", err)
	}
	return nil
}

// HasAbort reports whether the file abort exists: the last owner of the store
// did not close it. Only its existence counts, not what it is.
func HasAbort(fsys vfs.FS, dir string) (bool, error) {
	_, err := fsys.Stat(filepath.Join(dir, AbortName))
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, fmt.Errorf("look for abort file: %w", err)
}

// AbortPID returns the process id in the file abort. ok is false when there is
// none: brokers before 5.0 leave the file empty.
func AbortPID(fsys vfs.FS, dir string) (pid int, ok bool, err error) {
	f, err := fsys.Open(filepath.Join(dir, AbortName), vfs.ReadOnly)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, false, nil
	}
	if err != nil {
		return 0, false, fmt.Errorf("read abort file: %w", err)
	}
	defer f.Close()
	var b [20]byte
	n, err := f.ReadAt(b[:], 0)
	if err != nil && err != io.EOF {
		return 0, false, fmt.Errorf("read abort file: %w", err)
	}
	pid, err = strconv.Atoi(string(b[:n]))
	if err != nil || pid <= 0 {
		return 0, false, nil
	}
	return pid, true, nil
}
