package gantry

import (
	"errors"
	"fmt"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/message"
)

// Errors to compare with errors.Is.
var (
	ErrClosed   = base.ErrClosed   // the store has been closed
	ErrCorrupt  = base.ErrCorrupt  // stored bytes violate the format; see CorruptError
	ErrNotFound = base.ErrNotFound // no such topic, queue or message
	ErrReadOnly = base.ErrReadOnly // a write failed earlier, or opened read-only
	ErrLocked   = base.ErrLocked   // another process, or another Store, holds the directory
	ErrDiskFull = base.ErrDiskFull // no space; nothing was stored, try again when there is

	// ErrMessageIllegal and ErrPropertiesSizeExceeded refuse a message for
	// what it is (RocketMQ: MESSAGE_ILLEGAL, PROPERTIES_SIZE_EXCEEDED).
	ErrMessageIllegal         = message.ErrMessageIllegal
	ErrPropertiesSizeExceeded = message.ErrPropertiesSizeExceeded

	// ErrFlushTimeout: the message is stored, will be consumed and must not be
	// sent again for that reason alone, but it was not confirmed on stable
	// storage in time (RocketMQ: FLUSH_DISK_TIMEOUT).
	ErrFlushTimeout = errors.New("stored, but not confirmed on disk in time")

	// ErrBusy: the append lock has been held for too long; nothing was stored
	// (RocketMQ: OS_PAGE_CACHE_BUSY).
	ErrBusy = errors.New("store is busy")

	// ErrQueuesWithoutLog: there are consume queues with messages but no
	// commit log, as when a volume is not mounted.
	ErrQueuesWithoutLog = errors.New("consume queues exist but the commit log is empty")

	// ErrUnsupported: the directory uses a storage kind that this store does
	// not read (RocksDB consume queues, DLedger).
	ErrUnsupported = errors.New("not supported")
)

// CorruptError says where and why stored bytes violate the format.
type CorruptError = base.CorruptError

// PutStatus is the outcome of a put in upstream's words (RocketMQ:
// PutMessageStatus). The broker maps it to a response code.
type PutStatus int

// The statuses that a store without replication produces.
const (
	PutOK PutStatus = iota
	FlushDiskTimeout
	ServiceNotAvailable
	MessageIllegal
	PropertiesSizeExceeded
	OSPageCacheBusy
	CreateMappedFileFailed
	UnknownError
)

var putStatusNames = [...]string{
	PutOK:                  "PUT_OK",
	FlushDiskTimeout:       "FLUSH_DISK_TIMEOUT",
	ServiceNotAvailable:    "SERVICE_NOT_AVAILABLE",
	MessageIllegal:         "MESSAGE_ILLEGAL",
	PropertiesSizeExceeded: "PROPERTIES_SIZE_EXCEEDED",
	OSPageCacheBusy:        "OS_PAGE_CACHE_BUSY",
	CreateMappedFileFailed: "CREATE_MAPPED_FILE_FAILED",
	UnknownError:           "UNKNOWN_ERROR",
}

// String returns upstream's name.
func (s PutStatus) String() string {
	if s < 0 || int(s) >= len(putStatusNames) {
		return fmt.Sprintf("PutStatus(%d)", int(s))
	}
	return putStatusNames[s]
}

// PutStatusOf returns upstream's status for an error that Put returned.
func PutStatusOf(err error) PutStatus {
	switch {
	case err == nil:
		return PutOK
	case errors.Is(err, ErrFlushTimeout):
		return FlushDiskTimeout
	case errors.Is(err, ErrMessageIllegal):
		return MessageIllegal
	case errors.Is(err, ErrPropertiesSizeExceeded):
		return PropertiesSizeExceeded
	case errors.Is(err, ErrBusy):
		return OSPageCacheBusy
	case errors.Is(err, ErrClosed), errors.Is(err, ErrReadOnly):
		return ServiceNotAvailable
	case errors.Is(err, ErrDiskFull), errors.Is(err, mappedfile.ErrCreateTimeout), errors.Is(err, mappedfile.ErrNoBuffer), errors.Is(err, commitlog.ErrBehind):
		return CreateMappedFileFailed
	}
	return UnknownError
}
