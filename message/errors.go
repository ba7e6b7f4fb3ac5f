package message

import (
	"errors"
	"fmt"
)

// The statuses that refuse a message before anything is written (RocketMQ:
// PutMessageStatus). Every *RejectError wraps one of them.
var (
	// ErrMessageIllegal: the message can never be stored as it is
	// (RocketMQ: MESSAGE_ILLEGAL).
	ErrMessageIllegal = errors.New("message illegal")
	// ErrPropertiesSizeExceeded: the properties, with what the store adds to
	// them, do not fit (RocketMQ: PROPERTIES_SIZE_EXCEEDED).
	ErrPropertiesSizeExceeded = errors.New("properties size exceeded")
)

// RejectError says why a message was not encoded. Nothing was written, and the
// same message will be refused again.
type RejectError struct {
	Status error  // ErrMessageIllegal or ErrPropertiesSizeExceeded
	Field  string // "topic", "body", "record", "properties", "batch", or the name of a property
	Reason string // with the values: "200 bytes, limit 127"
}

// Error names status, field and reason.
func (e *RejectError) Error() string {
	return fmt.Sprintf("%v: %s: %s", e.Status, e.Field, e.Reason)
}

// Unwrap returns the status.
func (e *RejectError) Unwrap() error { return e.Status }

func illegal(field, format string, args ...any) error {
	return &RejectError{Status: ErrMessageIllegal, Field: field, Reason: fmt.Sprintf(format, args...)}
}

// sizeReason is the Reason for something too long.
func sizeReason(got, limit int) string { return fmt.Sprintf("%d bytes, limit %d", got, limit) }

// FormatError says why bytes are not a record, batch item or message id. It
// knows nothing of files: who does wraps it into a corruption error. The text
// is made only when it is asked for, because a search for the end of the log
// makes many of these and shows one.
type FormatError struct {
	Field  string // "size", "magic", "bodyLength", …, or the name of a property
	Reason string // "below the minimum of"
	// Got is the value found, Want the value or limit that Reason speaks of.
	// Both are 0 where there are no numbers to tell.
	Got, Want int64
}

// Error gives field, value found, reason and limit.
func (e *FormatError) Error() string {
	switch {
	case e.Field == fieldMagic:
		return fmt.Sprintf("%s %#x %s", e.Field, e.Got, e.Reason)
	case e.Got == 0 && e.Want == 0:
		return e.Field + " " + e.Reason
	}
	return fmt.Sprintf("%s %d %s %d", e.Field, e.Got, e.Reason, e.Want)
}

// Fields of a FormatError; the names are those of the format, section 3.1.
const (
	fieldSize        = "size"
	fieldMagic       = "magic"
	fieldPhysical    = "physicalOffset"
	fieldBornPort    = "bornHost port"
	fieldStorePort   = "storeHost port"
	fieldBodyLength  = "bodyLength"
	fieldBodyCRC     = "bodyCRC"
	fieldTopicLength = "topicLength"
	fieldTopic       = "topic"
	fieldPropsLength = "propertiesLength"
	fieldPropsCRC    = "property CRC"
	fieldID          = "message id"
)

func badFormat(field string, got int64, reason string, want int64) error {
	return &FormatError{Field: field, Got: got, Reason: reason, Want: want}
}
