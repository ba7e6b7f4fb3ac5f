// Package indexfile keeps the key index of a store: which messages have a key
// with a given hash. The index is the files of one directory, each a hash
// table on disk that is filled once and never changed afterwards. Integers are
// big-endian.
//
//	0                40               40 + 4·slots
//	+----------------+----------------+--------------------------------+
//	| header         | slots, 4 bytes | entries, 20 bytes each         |
//	+----------------+----------------+--------------------------------+
//
//	header   0        8        16       24       32    36    40
//	         +--------+--------+--------+--------+-----+-----+
//	         | begin  | end    | begin  | end    |slots|count|
//	         | time   | time   | phy    | phy    |used | + 1 |
//	         +--------+--------+--------+--------+-----+-----+
//
//	entry    0     4        12    16    20
//	         +-----+--------+-----+-----+
//	         |hash | phy    |secs |prev |
//	         +-----+--------+-----+-----+
//
// A slot holds the number of the newest entry whose hash modulo the number of
// slots is the slot's; prev leads from each entry to the one before it in the
// same slot. Numbers start at 1, 0 is the end. A file is full when one more
// entry would reach the configured number; then the next file is made, with
// the full one's end as begin and end of its header. docs/format/index.md has
// the rules in full.
//
// Index is used by one writer (Put) beside any number of readers (Lookup),
// also beside Sync and DeleteBefore. The order of stores is entries, slots,
// header; readers go by the count that is published last, in memory.
package indexfile

import (
	"encoding/binary"
	"errors"
	"math"
	"strconv"
	"time"

	"github.com/gantrymq/gantry/message"
)

// The disk format. Changing a value here breaks every existing store.
const (
	posBeginTime = 0
	posEndTime   = 8
	posBeginPhy  = 16
	posEndPhy    = 24
	posSlotCount = 32
	posCount     = 36
	headerSize   = 40

	slotSize = 4

	posHash      = 0
	posPhy       = 4
	posSeconds   = 12
	posPrev      = 16
	entrySize    = 20
	firstEntry   = 1 // entry 0 is never used: a slot of 0 is empty
	nameDigits   = 17
	maxSeconds   = math.MaxInt32
	defaultSlots = 5_000_000
	defaultCount = 20_000_000
)

// Geometry is the number of slots and entries of a file. It is configuration
// and not stored in the file.
type Geometry struct {
	Slots   int32 // maxHashSlotNum
	Entries int32 // maxIndexNum: one more than a file can hold, because entry 0 is unused
}

// DefaultGeometry is RocketMQ's default; such a file has 420 000 040 bytes.
var DefaultGeometry = Geometry{Slots: defaultSlots, Entries: defaultCount}

// Size is the length of a file of this geometry.
func (g Geometry) Size() int64 {
	return headerSize + slotSize*int64(g.Slots) + entrySize*int64(g.Entries)
}

// valid says whether a file of this geometry can hold an entry.
func (g Geometry) valid() bool { return g.Slots >= 1 && g.Entries >= 2 }

func (g Geometry) slotPos(slot int32) int64 { return headerSize + slotSize*int64(slot) }

func (g Geometry) entryPos(e int32) int64 {
	return headerSize + slotSize*int64(g.Slots) + entrySize*int64(e)
}

// Header is the header of a file (RocketMQ: IndexHeader). A file that follows
// a full one starts with that one's end as begin and end and with Count 0.
type Header struct {
	BeginTime int64                  // store time of entry 1, ms
	EndTime   int64                  // store time of the newest entry, ms
	BeginPhy  message.PhysicalOffset // of entry 1
	EndPhy    message.PhysicalOffset // of the newest entry
	SlotCount int32                  // hashSlotCount: slots in use
	Count     int32                  // indexCount: number of entries + 1; 0 in a file not yet used
}

// next is the number of the entry that comes next: Count as upstream loads it.
func (h Header) next() int32 { return max(h.Count, firstEntry) }

// HasEntries reports whether the file holds an entry.
func (h Header) HasEntries() bool { return h.Count > firstEntry }

func putHeader(b *[headerSize]byte, h Header) {
	binary.BigEndian.PutUint64(b[posBeginTime:], uint64(h.BeginTime))
	binary.BigEndian.PutUint64(b[posEndTime:], uint64(h.EndTime))
	binary.BigEndian.PutUint64(b[posBeginPhy:], uint64(h.BeginPhy))
	binary.BigEndian.PutUint64(b[posEndPhy:], uint64(h.EndPhy))
	binary.BigEndian.PutUint32(b[posSlotCount:], uint32(h.SlotCount))
	binary.BigEndian.PutUint32(b[posCount:], uint32(h.Count))
}

func decodeHeader(b *[headerSize]byte) Header {
	return Header{
		BeginTime: int64(binary.BigEndian.Uint64(b[posBeginTime:])),
		EndTime:   int64(binary.BigEndian.Uint64(b[posEndTime:])),
		BeginPhy:  message.PhysicalOffset(binary.BigEndian.Uint64(b[posBeginPhy:])),
		EndPhy:    message.PhysicalOffset(binary.BigEndian.Uint64(b[posEndPhy:])),
		SlotCount: int32(binary.BigEndian.Uint32(b[posSlotCount:])),
		Count:     int32(binary.BigEndian.Uint32(b[posCount:])),
	}
}

// Entry is one key of one message.
type Entry struct {
	Hash    int32 // of the key text, non-negative
	Phy     message.PhysicalOffset
	Seconds int32 // since the file's BeginTime; see Header for entry 1
	Prev    int32 // number of the entry before it in the chain of its slot; 0: none
}

func putEntry(b []byte, e Entry) {
	_ = b[entrySize-1]
	binary.BigEndian.PutUint32(b[posHash:], uint32(e.Hash))
	binary.BigEndian.PutUint64(b[posPhy:], uint64(e.Phy))
	binary.BigEndian.PutUint32(b[posSeconds:], uint32(e.Seconds))
	binary.BigEndian.PutUint32(b[posPrev:], uint32(e.Prev))
}

// decodeEntry reads the first entrySize bytes of b, which must be there.
func decodeEntry(b []byte) Entry {
	_ = b[entrySize-1]
	return Entry{
		Hash:    int32(binary.BigEndian.Uint32(b[posHash:])),
		Phy:     message.PhysicalOffset(binary.BigEndian.Uint64(b[posPhy:])),
		Seconds: int32(binary.BigEndian.Uint32(b[posSeconds:])),
		Prev:    int32(binary.BigEndian.Uint32(b[posPrev:])),
	}
}

// seconds is the time field of an entry: whole seconds since begin, which is
// what the header holds before the entry is counted. The subtraction may wrap,
// as upstream's does.
func seconds(storeTime, begin int64) int32 {
	if begin <= 0 {
		return 0
	}
	d := (storeTime - begin) / 1000
	return int32(min(max(d, 0), maxSeconds))
}

// entryTime is the store time of entry e, truncated to seconds after beginTime.
// ok is false when the field proves nothing: 0 and the maximum may have been
// clamped. Entry 1 was computed against another base; it is the one that set
// beginTime.
func entryTime(e, secs int32, beginTime int64) (at int64, ok bool) {
	switch {
	case beginTime <= 0:
		return 0, false
	case e == firstEntry:
		return beginTime, true
	case secs <= 0 || secs == maxSeconds || beginTime > math.MaxInt64-int64(secs)*1000:
		return 0, false
	}
	return beginTime + int64(secs)*1000, true
}

// timeSlack (ms) covers the truncation of times to seconds.
const timeSlack = 1000

// before and after say that a time lies more than the slack before or after
// another. They are right for all values.
func before(t, other int64) bool { return t < other && uint64(other)-uint64(t) > timeSlack }
func after(t, other int64) bool  { return before(other, t) }

// isFileName reports whether name looks like an index file's: 17 digits.
func isFileName(name string) bool {
	if len(name) != nameDigits {
		return false
	}
	for i := range len(name) {
		if name[i] < '0' || name[i] > '9' {
			return false
		}
	}
	return true
}

// fileName is the name of a file created at ms: yyyyMMddHHmmssSSS in zone loc.
func fileName(ms int64, loc *time.Location) string {
	return civilName(time.UnixMilli(ms).In(loc))
}

func civilName(t time.Time) string {
	if t.Year() < 0 {
		return "00000101000000000"
	}
	if t.Year() > 9999 {
		return "99991231235959999"
	}
	b := t.AppendFormat(make([]byte, 0, nameDigits), "20060102150405")
	ms := t.Nanosecond() / int(time.Millisecond)
	return string(append(b, byte('0'+ms/100), byte('0'+ms/10%10), byte('0'+ms%10)))
}

// parseFileName reads the wall clock time of a name, without its zone.
func parseFileName(name string) (time.Time, bool) {
	if !isFileName(name) {
		return time.Time{}, false
	}
	t, err := time.Parse("20060102150405", name[:14])
	if err != nil {
		return time.Time{}, false
	}
	ms, _ := strconv.Atoi(name[14:])
	return t.Add(time.Duration(ms) * time.Millisecond), true
}

var errNoName = errors.New("no file name left behind 99999999999999999")

// nameAfter is the name for a file created at ms that sorts behind last: the
// time itself, or one millisecond after last when the clock or the zone went
// back, or when two files are made within one millisecond.
func nameAfter(last string, ms int64, loc *time.Location) (string, error) {
	name := fileName(ms, loc)
	if name > last {
		return name, nil
	}
	if t, ok := parseFileName(last); ok {
		if name = civilName(t.Add(time.Millisecond)); name > last {
			return name, nil
		}
	}
	n, err := strconv.ParseUint(last, 10, 64) // digits that are no date: count on
	if err != nil {
		return "", err
	}
	if n++; n >= 1e17 {
		return "", errNoName
	}
	name = strconv.FormatUint(n, 10)
	for len(name) < nameDigits {
		name = "0" + name
	}
	return name, nil
}
