package vfs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"

	"github.com/gantrymq/gantry/internal/base"
)

func (osFS) Lock(name string) (Lock, error) {
	if lockedHere(name) {
		return nil, &fs.PathError{Op: "lock", Path: name, Err: base.ErrLocked}
	}
	f, err := openOS(name, os.O_RDWR|os.O_CREATE|nonBlock, filePerm)
	if err != nil {
		return nil, diskFull(err)
	}
	if err := lockFile(f); err != nil {
		f.Close()
		if isLockHeld(err) {
			err = fmt.Errorf("%w: %w", base.ErrLocked, err)
		}
		return nil, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	return &osLock{osFile: newOSFile(f, name, true)}, nil
}

func (osFS) Locked(name string) (bool, error) {
	if lockedHere(name) {
		return true, nil
	}
	f, err := openRegular(name, os.O_RDONLY)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	held, err := lockHeld(f)
	if err != nil {
		return false, &fs.PathError{Op: "lock", Path: name, Err: err}
	}
	return held, nil
}

// osLock is the locked file. Only the methods of Lock are visible.
type osLock struct {
	*osFile
	once sync.Once
	err  error
}

// Close may be called again; the answer stays.
func (l *osLock) Close() error {
	l.once.Do(func() {
		l.err = errors.Join(unlockFile(l.f), l.f.Close())
	})
	return l.err
}
