package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// lockedHere is for systems whose locks do not exclude the same process.
func lockedHere(string) bool { return false }

// lockFile takes the lock of an open description: it belongs to f alone, so
// it also excludes a second opener in this process and does not vanish when
// some other descriptor of the file is closed. Against the classic POSIX lock
// of a Java process it counts like one.
func lockFile(f *os.File) error {
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: 0, Len: 1}
	return control(f, func(fd int) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_OFD_SETLK, &lk)
	})
}

func unlockFile(f *os.File) error { return nil } // closing f unlocks

func isLockHeld(err error) bool {
	return errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES)
}

// lockHeld asks whether lockFile would be refused.
func lockHeld(f *os.File) (bool, error) {
	lk := unix.Flock_t{Type: unix.F_WRLCK, Whence: 0, Start: 0, Len: 1}
	err := control(f, func(fd int) error {
		return unix.FcntlFlock(uintptr(fd), unix.F_OFD_GETLK, &lk)
	})
	return err == nil && lk.Type != unix.F_UNLCK, err
}
