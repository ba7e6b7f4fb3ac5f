//go:build unix && !linux

package vfs

import (
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// Without locks of an open description there is the classic lock of a process.
// It does not exclude the same process, and it vanishes when the process closes
// any descriptor of the file. So a table says which files this process has
// locked, and a file in it is not opened again to ask. A caller must not open
// the file of a lock that it holds in another way than through the lock.
var locks struct {
	sync.Mutex
	held map[fileID]bool
}

type fileID struct{ dev, ino uint64 }

func idOf(st *unix.Stat_t) fileID { return fileID{uint64(st.Dev), uint64(st.Ino)} }

func lockedHere(name string) bool {
	var st unix.Stat_t
	if unix.Stat(name, &st) != nil {
		return false
	}
	locks.Lock()
	defer locks.Unlock()
	return locks.held[idOf(&st)]
}

func lockFile(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	locks.Lock()
	defer locks.Unlock()
	if locks.held[idOf(&st)] {
		return unix.EAGAIN
	}
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: 0, Len: 1}
	if err := unix.FcntlFlock(f.Fd(), unix.F_SETLK, &lk); err != nil {
		return err
	}
	if locks.held == nil {
		locks.held = map[fileID]bool{}
	}
	locks.held[idOf(&st)] = true
	return nil
}

// unlockFile forgets the lock; closing f, which comes next, gives it up.
func unlockFile(f *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	locks.Lock()
	defer locks.Unlock()
	delete(locks.held, idOf(&st))
	return nil
}

func isLockHeld(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES)
}

// lockHeld asks whether another process holds the lock.
func lockHeld(f *os.File) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: 0, Len: 1}
	err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lk)
	return err == nil && lk.Type != unix.F_UNLCK, err
}
