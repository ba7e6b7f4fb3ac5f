package vfs

import (
	"errors"
	"os"

	"golang.org/x/sys/windows"
)

// lockedHere is for systems whose locks do not exclude the same process.
func lockedHere(string) bool { return false }

// lockFile takes the lock on byte 0, as a Java virtual machine does here.
func lockFile(f *os.File) error {
	return windows.LockFileEx(windows.Handle(f.Fd()),
		windows.LOCKFILE_EXCLUSIVE_LOCK|windows.LOCKFILE_FAIL_IMMEDIATELY, 0, 1, 0, &windows.Overlapped{})
}

func unlockFile(f *os.File) error {
	return windows.UnlockFileEx(windows.Handle(f.Fd()), 0, 1, 0, &windows.Overlapped{})
}

func isLockHeld(err error) bool {
	return errors.Is(err, windows.ERROR_LOCK_VIOLATION) || errors.Is(err, windows.ERROR_IO_PENDING)
}

// lockHeld finds out by trying: there is no call that only asks. For the moment
// of the trial others see the lock as held.
func lockHeld(f *os.File) (bool, error) {
	switch err := lockFile(f); {
	case err == nil:
		return false, unlockFile(f)
	case isLockHeld(err):
		return true, nil
	default:
		return false, err
	}
}
