package indexfile

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// State describes the index at the moment of a Sync: all entries up to the
// named one, in that file and in all older ones, are on stable storage. The
// caller keeps it in the checkpoint and hands it back to Open. The zero value
// promises nothing.
type State struct {
	Name    string                 // base name of the newest file; empty when there is no file
	Count   int32                  // header field of that file: number of entries + 1
	EndPhy  message.PhysicalOffset // of the newest entry; -1 when there is no file
	EndTime int64                  // store time of the newest entry, ms
	// MonotoneFrom: over all entries from this physical offset on, store times
	// were seen not to decrease. Time queries skip whole files by it.
	MonotoneFrom message.PhysicalOffset
	// Complete: every message that was put is in. Otherwise entries are
	// missing from MissingFrom on, because the index could not take them, and
	// Open has the caller put all messages from there again.
	Complete    bool
	MissingFrom message.PhysicalOffset
}

// Options say where the files are and how new ones are made.
type Options struct {
	FS  vfs.FS
	Dir string // the directory index/; made by the first roll when missing
	// Slots and Entries are the geometry of new files (maxHashSlotNum,
	// maxIndexNum). 0 means 5 000 000 and 20 000 000. Existing files keep
	// theirs.
	Slots, Entries int32
	Now            func() int64   // ms; nil: the system clock
	Location       *time.Location // zone of file names; nil: time.Local
	Logger         *slog.Logger   // nil: discard

	// OnDamage is told once per file of damage found after Open. nil: only logged.
	OnDamage func(file, reason string)
	// OnFull is told the end time of a full file when it and all before it are
	// on stable storage (checkpoint field indexMsgTimestamp). It is called on a
	// goroutine of the index, which Close waits for: it must not call Close.
	OnFull func(endTime int64)
	// OnDegraded is told the cause when the index stops taking entries and nil
	// when it takes them again. A cause that wraps base.ErrReadOnly is final.
	// It is called with the writer's lock held, from Put, Sync, TruncateFrom or
	// a goroutine of the index: it must not call the index.
	OnDegraded func(cause error)
	// Refill reads the records in [from, to) again, in order, and calls put for
	// each that has keys; it stops at put's first error and returns it. Records
	// that are damaged or no longer in the log it skips by itself. Put
	// calls it after an outage, with the writer's lock held and in portions of
	// some hundred messages, until the gap is closed. It must not call the
	// index. nil: new messages are indexed at once and the gap stays until the
	// next Open.
	Refill func(from, to message.PhysicalOffset, put func(phy message.PhysicalOffset, storeTime int64, hashes []int32) error) error
	// StoreTime reads the store time of the record at phy; ok is false where
	// none begins. Open asks it whether the newest entry fits the log, and
	// repairs headers with it. nil: files with such headers are built again.
	StoreTime func(phy message.PhysicalOffset) (ms int64, ok bool)
}

// OpenState is what the caller knows of the store when it opens the index.
type OpenState struct {
	Trusted *State // as last synced, nil when unknown
	Clean   bool   // the last writer stopped cleanly: what is there is complete and on disk
	// LogMin and LogEnd bound the recovered commit log. Entries at or past
	// LogEnd are removed.
	LogMin, LogEnd message.PhysicalOffset
	// FlushedTime is the checkpoint's indexMsgTimestamp: full files that end at
	// or before it were flushed. 0 when unknown.
	FlushedTime int64
}

// Report says what Open found and changed.
type Report struct {
	Files   int
	Foreign []string // names in the directory that are not index files, left alone
	Repairs []Repair
	// Intact: the index holds all that Trusted promised, so that the caller may
	// replay from its own dispatch position at the time of that state, if that
	// is later than replayFrom.
	Intact bool
}

// Repair is one thing that was wrong with a file.
type Repair struct {
	File   string // path
	Reason string
}

// Candidate is a possible hit: the hash fits, the record decides.
type Candidate struct {
	Phy message.PhysicalOffset
}

// FileInfo describes one index file.
type FileInfo struct {
	Path     string
	Size     int64
	Geometry Geometry
	Header   Header
}

// withDefaults fills in defaults and reports contradictions.
func (o Options) withDefaults() (Options, error) {
	o.Slots = cmp.Or(o.Slots, DefaultGeometry.Slots)
	o.Entries = cmp.Or(o.Entries, DefaultGeometry.Entries)
	if !o.geometry().valid() {
		return o, fmt.Errorf("index geometry: %d slots and %d entries, want at least 1 and 2", o.Slots, o.Entries)
	}
	if o.FS == nil {
		return o, errors.New("index: no file system")
	}
	if o.Now == nil {
		o.Now = func() int64 { return time.Now().UnixMilli() }
	}
	if o.Location == nil {
		o.Location = time.Local
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return o, nil
}

func (o Options) geometry() Geometry { return Geometry{Slots: o.Slots, Entries: o.Entries} }
