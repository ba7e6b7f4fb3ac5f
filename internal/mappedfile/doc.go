// Package mappedfile stores one long, growing sequence of bytes as a directory
// of files of equal size (RocketMQ: MappedFileQueue). Commit log, queue
// extension, timer log and compaction log have this shape.
//
//	offset      0           S           2S          3S
//	            +-----------+-----------+-----------+
//	file        | 000…000   | 000…S     | 000…2S    |   S = file size
//	            +-----------+-----------+-----------+
//	                                          ^flushed ^readable ^wrote
//
// A file is named by the offset of its first byte, 20 decimal digits. A new
// file has its full length at once, as RocketMQ expects, but its blocks are
// reserved in steps ahead of the writer. The position of the last byte is not
// stored anywhere: after OpenQueue every file counts as full, and the caller,
// who understands the content, finds the end and calls TruncateTo.
//
// # Concurrency
//
// One writer: File.Append, Stage and Publish, Queue.Writable, Prepare and
// TruncateTo are serialised by the caller (the append lock). Everything else
// may run beside it and beside each other: reads, Commit, Flush, RemoveFront.
// Bytes are stored first and the atomic position is moved afterwards, so a
// reader that respects Readable never sees half a write.
//
// Reads copy. A file is pinned during a copy, so that it can be removed at any
// moment: the name goes at once, mapping and handle go with the last reader.
//
// # Errors
//
// No space wraps base.ErrDiskFull; nothing has changed then and the call may
// be repeated. A failed sync is final for the whole Queue: every later write
// and flush answers with an error that wraps base.ErrReadOnly and the cause,
// because the kernel may have dropped what was to be written.
package mappedfile

import "errors"

// PageSize is the unit in which flushing by least pages counts, whatever the
// page size of the machine is. RocketMQ counts the same way.
const PageSize = 4096

var (
	// ErrFull says that the bytes do not fit into the rest of the file.
	ErrFull = errors.New("file is full")
	// ErrCreateTimeout says that the next file was not ready in time. It is
	// still being made; a later call gets it.
	ErrCreateTimeout = errors.New("timed out waiting for the next file")
	// ErrNoBuffer says that the transient pool has no free buffer and the
	// queue was told to fail then (RocketMQ: fastFailIfNoBufferInStorePool).
	ErrNoBuffer = errors.New("no free buffer in the transient pool")
)
