// Package commitlog is the one sequence of records that all topics of a store
// share (RocketMQ: CommitLog). Its bytes are those of package message, packed
// back to back into files of equal size (package mappedfile):
//
//	+--------+--------+-----+--------+-------------------------+
//	| record | record |  …  | record | blank: rest of the file |
//	+--------+--------+-----+--------+-------------------------+
//
// A record never crosses the end of a file. When record and blank header (8
// bytes) do not fit, a blank record claims the rest and the record begins the
// next file. A position in the log, message.PhysicalOffset, counts from the
// start of the first file that ever was.
//
// # Life of a log
//
// Open finds the files and changes nothing. FindTail finds the end of the
// valid records and describes what stands behind it; the caller decides:
//
//   - Tail.Reason is nil: only zeros follow, as in a log that was stopped
//     cleanly or lost nothing.
//   - Reason is set and ValidBehind is 0: a torn tail. What was being written
//     when the machine stopped, and had not been confirmed, goes.
//   - ValidBehind is above 0: damage in the middle. Unless all of it lies in
//     the part that was never confirmed to be on disk (PowerLoss), nothing may
//     be cut off without a copy: see Quarantine.
//
// SetEnd then cuts the log there, durably, and lets the writer in.
//
// # Positions
//
//	Min <= Flushed <= End     on stable storage up to Flushed
//	Min <= Confirmed <= End   may be read and dispatched up to Confirmed
//
// Confirmed is Flushed with FlushSync, unless ReadUnflushed is set: what could
// still vanish is not shown. Otherwise it is End or, with a transient pool,
// what has been committed to the files.
//
// # Concurrency and locks
//
// All methods may be called concurrently, except that FindTail, TruncateTo and
// Quarantine belong to the time before SetEnd. Append holds one lock, and
// under it only chooses the position and the store time, lets the caller fill
// in the record, and copies it; creating files happens ahead of need, syncing
// never under that lock. One goroutine syncs (the flusher), and with a
// transient pool a second one commits.
//
// # Errors
//
// No space (base.ErrDiskFull) and a file that was not made in time
// (mappedfile.ErrCreateTimeout) leave the log as it was; the append can be
// repeated. After a failed sync the log is finished: every append and every
// wait for a flush answers with an error that wraps base.ErrReadOnly and the
// cause (store-behaviour F1). Damage is a *base.CorruptError.
package commitlog
