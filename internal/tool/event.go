package tool

import (
	"bufio"
	"encoding/json"
	"errors"

	"github.com/gantrymq/gantry/internal/vfs"
)

// Event is one thing that a repair or rebuild found or did. Field names are
// those of the report.
type Event struct {
	// Type is one of
	//   damage      a range of the log without a valid record
	//   tail        bytes behind the end of the log
	//   lost        a message that a queue knows and the log does not
	//   behind      queue offsets whose messages lay behind the end of the log
	//   corrected   a record got back the queue offset that its queue proves
	//   misplaced   a record that cannot have the place that it claims
	//   moved       a log file under a wrong name
	//   leftOut     a file that is not in the copy
	//   unreadable  bytes that the disk does not give
	Type            string `json:"type"`
	File            string `json:"file,omitempty"`
	Offset          int64  `json:"offset"`
	CommitLogOffset int64  `json:"commitLogOffset"` // -1: not in the log, or not known
	Length          int64  `json:"length,omitempty"`
	Reason          string `json:"reason,omitempty"`
	Quarantine      string `json:"quarantine,omitempty"`
	Records         int64  `json:"records,omitempty"`
	*EventMessage
	// Became is what a lost message's queue offset became: "gap",
	// "placeholder" or "nothing".
	Became string `json:"became,omitempty"`
}

// EventMessage is the message that an event is about.
type EventMessage struct {
	Topic       string   `json:"topic"`
	QueueID     int32    `json:"queueId"`
	QueueOffset int64    `json:"queueOffset"`
	Count       int64    `json:"count,omitempty"` // queue offsets, from QueueOffset on, if it is not one
	StoreSize   int32    `json:"storeSize,omitempty"`
	Keys        []string `json:"keys,omitempty"`
	MsgID       string   `json:"msgId,omitempty"`
}

// report writes events to a file of the new store, one JSON object per line. It
// exists only if there is something to tell.
type report struct {
	out   *newDir // nil: there is no file
	event func(Event)
	file  vfs.File
	buf   *bufio.Writer
	at    int64
	err   error
}

// reportName is the report's file.
const reportName = quarantineDir + "/report.ndjson"

func (r *report) add(e Event) {
	if r.event != nil {
		r.event(e)
	}
	if r.err != nil || r.out == nil {
		return
	}
	if r.file == nil {
		if r.file, r.err = r.out.create(reportName); r.err != nil {
			return
		}
		r.buf = bufio.NewWriterSize(r, 64<<10)
	}
	enc := json.NewEncoder(r.buf)
	enc.SetEscapeHTML(false)
	r.err = enc.Encode(e)
}

// Write appends to the file.
func (r *report) Write(p []byte) (int, error) {
	n, err := r.file.WriteAt(p, r.at)
	r.at += int64(n)
	return n, err
}

func (r *report) close() error {
	if r.file == nil {
		return r.err
	}
	if r.err == nil {
		r.err = r.buf.Flush()
	}
	if r.err == nil {
		r.err = r.file.Sync()
	}
	return errors.Join(r.err, r.file.Close())
}
