// Package base holds what every layer needs and nothing else: the error values
// that the public package re-exports, the corruption error, and assertions.
// It imports the standard library only.
package base

import (
	"errors"
	"fmt"
)

// The sentinels of the module. The root package aliases them; recovery and
// callers branch on them with errors.Is, never on text.
var (
	// ErrClosed: the store, log, queue or file has been closed.
	ErrClosed = errors.New("closed")
	// ErrCorrupt: stored bytes violate the format. Every such error is, or
	// wraps, a *CorruptError.
	ErrCorrupt = errors.New("corrupt")
	// ErrNotFound: no such topic, queue, message or file.
	ErrNotFound = errors.New("not found")
	// ErrReadOnly: a write failed earlier, or the store was opened read-only.
	ErrReadOnly = errors.New("read-only")
	// ErrLocked: another process or another Store holds the directory.
	ErrLocked = errors.New("locked by another process")
	// ErrDiskFull: no space left for what was to be written. Nothing was
	// written; the operation can be repeated when there is space again.
	ErrDiskFull = errors.New("disk full")
)

// CorruptError says where and why stored bytes violate the format;
// errors.Is(err, ErrCorrupt) holds.
type CorruptError struct {
	File   string // the file's path, as it was opened
	Offset int64  // within File
	Reason string // what is wrong, with the values: "record size 17 below minimum 91"
	Err    error  // the cause, may be nil
}

// Error names file, offset and reason.
func (e *CorruptError) Error() string {
	s := fmt.Sprintf("%s: corrupt at offset %d: %s", e.File, e.Offset, e.Reason)
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap makes errors.Is(err, ErrCorrupt) and the cause visible.
func (e *CorruptError) Unwrap() []error {
	if e.Err == nil {
		return []error{ErrCorrupt}
	}
	return []error{ErrCorrupt, e.Err}
}

// Corruptf makes a *CorruptError with a formatted reason.
func Corruptf(file string, offset int64, format string, args ...any) error {
	return &CorruptError{File: file, Offset: offset, Reason: fmt.Sprintf(format, args...)}
}
