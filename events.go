package gantry

import "github.com/gantrymq/gantry/message"

// Events are calls that a store makes to tell what it does: tests wait on them
// instead of sleeping, metrics count them. All fields are optional. A function
// is called on the goroutine that did the work, possibly with locks held: it
// must return quickly and must not call the store.
type Events struct {
	// Arrived: a message can be read at this queue and offset. The broker
	// wakes waiting consumers.
	Arrived func(Arrival)
	// Delivered: the delay of a message for topic is over, and it was put there
	// with a record of size bytes.
	Delivered func(topic string, size int)
	// Dispatched: all messages before the offset are in their queues.
	Dispatched func(upTo message.PhysicalOffset)
	// Checkpointed: everything before the offset is on stable storage in log,
	// queues and index, and the checkpoint says so.
	Checkpointed func(upTo message.PhysicalOffset)
	// Removed: retention removed a file.
	Removed func(Removal)
	// Recovered: opening has finished.
	Recovered func(Recovery)
	// Damage: bytes that violate the format, or cannot be read, were met after
	// opening. The reader got an error or went around them; or it was a scrub
	// that met them (Options.ScrubRate), and no reader yet.
	Damage func(err error)
	// WriteError: writing queues, index, checkpoint or the offsets of delayed
	// messages failed. The store tries again and loses nothing meanwhile, unless
	// errors.Is(err, ErrReadOnly).
	WriteError func(what string, err error)
	// Failed: a sync failed. The store takes no more messages until it is
	// opened anew, and says so in every answer; what was acknowledged stays
	// readable. Called once.
	Failed func(err error)
}

// Arrival describes a message that has become readable.
type Arrival struct {
	Topic          string
	QueueID        int32
	QueueOffset    message.QueueOffset
	PhysicalOffset message.PhysicalOffset
	TagsCode       message.TagsCode
	StoreTimestamp int64 // ms
}

// Removal describes a file that retention removed, or would remove.
type Removal struct {
	File          string // path
	Size          int64  // bytes
	LastTimestamp int64  // ms; store time of its newest record
	Reason        string // for people
	Unread        bool   // it held delayed messages that were not delivered
}

// Recovery is what opening a store found and did.
type Recovery struct {
	CleanStop     bool                   // the last stop was clean
	ForeignWriter bool                   // another program (a Java broker) wrote last
	MinOffset     message.PhysicalOffset // of the log
	EndOffset     message.PhysicalOffset // of the log after recovery
	ScannedFrom   message.PhysicalOffset // where checking the log began
	Replayed      int64                  // records dispatched again
	Truncated     int64                  // bytes behind the end of the log that were removed
	TailReason    string                 // why the log ends there; empty: nothing but zeros follow
	Quarantined   []string               // files that now hold valid-looking records from behind the end
	Repaired      []string               // what else was mended, one sentence each
	Warnings      []string               // foreign names, gaps, one sentence each
}
