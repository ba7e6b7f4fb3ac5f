package checkpoint

import (
	"encoding/binary"
	"hash/crc32"
	"strings"

	"github.com/gantrymq/gantry/message"
)

// The disk format. Changing a value here breaks every existing store.
const (
	fileSize = 4096

	// RocketMQ's part.
	posPhysicTime     = 0
	posLogicsTime     = 8
	posIndexTime      = 16
	posMasterFlushed  = 24
	posConfirm        = 32
	posLogicsPhysical = 40
	valuesSize        = 48

	// Our part: two slots, each in a disk sector of its own.
	slotSize  = 512
	slotCount = 2
	firstSlot = 512

	slotPosMagic         = 0
	slotPosVersion       = 8
	slotPosFlags         = 12
	slotPosSeq           = 16
	slotPosValues        = 24  // what bytes 0–47 are after the save
	slotPosBefore        = 72  // what they were before it
	slotPosDispatchedTo  = 120 // …
	slotPosLastRecord    = 128
	slotPosFlushedTo     = 136
	slotPosLastStoreTime = 144
	slotPosQueueCount    = 152
	slotPosQueueHash     = 160
	slotPosIndexName     = 168
	slotPosIndexCount    = 188
	slotPosIndexEndPhy   = 192
	slotPosIndexEndTime  = 200
	slotPosMonotoneFrom  = 208
	slotPosMissingFrom   = 216
	slotPosEnd           = 224 // zero from here to the checksum
	slotPosCRC           = 508

	indexNameSize = slotPosIndexCount - slotPosIndexName
	slotVersion   = 1

	flagClean         = 1 << 0
	flagIndexComplete = 1 << 1
)

const slotMagic = "GANTRYCP"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Values are the six fields that RocketMQ keeps in the file. A zero is what a
// new file holds and means unknown.
type Values struct {
	PhysicTime     int64                  // physicMsgTimestamp: store time of the newest flushed record, ms
	LogicsTime     int64                  // logicsMsgTimestamp: the same for the consume queues, ms
	IndexTime      int64                  // indexMsgTimestamp: end of the newest full and flushed index file, ms
	MasterFlushed  message.PhysicalOffset // masterFlushedOffset, of a slave; since 5.0.0
	Confirm        message.PhysicalOffset // confirmPhyOffset; since 5.1.1
	LogicsPhysical message.PhysicalOffset // logicsPhysicalOffset: newest dispatched record; since 5.5.1
}

// Ext is our own part of the file: what was on stable storage when Save was
// called. Java brokers neither read nor change it.
type Ext struct {
	// DispatchedTo: all records before it are in the consume queues and the
	// index, and these are on stable storage.
	DispatchedTo message.PhysicalOffset
	// LastRecord is where the newest record before FlushedTo begins, -1 when
	// there is none.
	LastRecord message.PhysicalOffset
	// FlushedTo: the log before it is on stable storage.
	FlushedTo     message.PhysicalOffset
	LastStoreTime int64 // of LastRecord, ms
	// Clean: written by an orderly close, everything is complete.
	Clean bool
	// QueueCount and QueueHash are consumequeue.Table.Fingerprint.
	QueueCount uint64
	QueueHash  uint64
	Index      IndexState
	Seq        uint64 // number of the Save; set by Save
}

// IndexState has the fields of indexfile.State and converts to it.
type IndexState struct {
	Name         string
	Count        int32
	EndPhy       message.PhysicalOffset
	EndTime      int64
	MonotoneFrom message.PhysicalOffset
	Complete     bool
	MissingFrom  message.PhysicalOffset
}

func putInt64(b []byte, pos int, v int64) { binary.BigEndian.PutUint64(b[pos:], uint64(v)) }
func int64At(b []byte, pos int) int64     { return int64(binary.BigEndian.Uint64(b[pos:])) }

func encodeValues(v Values) (b [valuesSize]byte) {
	putInt64(b[:], posPhysicTime, v.PhysicTime)
	putInt64(b[:], posLogicsTime, v.LogicsTime)
	putInt64(b[:], posIndexTime, v.IndexTime)
	putInt64(b[:], posMasterFlushed, int64(v.MasterFlushed))
	putInt64(b[:], posConfirm, int64(v.Confirm))
	putInt64(b[:], posLogicsPhysical, int64(v.LogicsPhysical))
	return b
}

func decodeValues(b [valuesSize]byte) Values {
	return Values{
		PhysicTime:     int64At(b[:], posPhysicTime),
		LogicsTime:     int64At(b[:], posLogicsTime),
		IndexTime:      int64At(b[:], posIndexTime),
		MasterFlushed:  message.PhysicalOffset(int64At(b[:], posMasterFlushed)),
		Confirm:        message.PhysicalOffset(int64At(b[:], posConfirm)),
		LogicsPhysical: message.PhysicalOffset(int64At(b[:], posLogicsPhysical)),
	}
}

// slot is one of the two copies of our part.
type slot struct {
	ext    Ext
	values [valuesSize]byte // bytes 0–47 after the save
	before [valuesSize]byte // bytes 0–47 before the save
}

func encodeSlot(s slot) (b [slotSize]byte) {
	copy(b[slotPosMagic:], slotMagic)
	binary.BigEndian.PutUint32(b[slotPosVersion:], slotVersion)
	flags := uint32(0)
	if s.ext.Clean {
		flags |= flagClean
	}
	if s.ext.Index.Complete {
		flags |= flagIndexComplete
	}
	binary.BigEndian.PutUint32(b[slotPosFlags:], flags)
	binary.BigEndian.PutUint64(b[slotPosSeq:], s.ext.Seq)
	copy(b[slotPosValues:], s.values[:])
	copy(b[slotPosBefore:], s.before[:])
	putInt64(b[:], slotPosDispatchedTo, int64(s.ext.DispatchedTo))
	putInt64(b[:], slotPosLastRecord, int64(s.ext.LastRecord))
	putInt64(b[:], slotPosFlushedTo, int64(s.ext.FlushedTo))
	putInt64(b[:], slotPosLastStoreTime, s.ext.LastStoreTime)
	binary.BigEndian.PutUint64(b[slotPosQueueCount:], s.ext.QueueCount)
	binary.BigEndian.PutUint64(b[slotPosQueueHash:], s.ext.QueueHash)
	copy(b[slotPosIndexName:slotPosIndexCount], s.ext.Index.Name)
	binary.BigEndian.PutUint32(b[slotPosIndexCount:], uint32(s.ext.Index.Count))
	putInt64(b[:], slotPosIndexEndPhy, int64(s.ext.Index.EndPhy))
	putInt64(b[:], slotPosIndexEndTime, s.ext.Index.EndTime)
	putInt64(b[:], slotPosMonotoneFrom, int64(s.ext.Index.MonotoneFrom))
	putInt64(b[:], slotPosMissingFrom, int64(s.ext.Index.MissingFrom))
	binary.BigEndian.PutUint32(b[slotPosCRC:], crc32.Checksum(b[:slotPosCRC], castagnoli))
	return b
}

// decodeSlot returns false for a slot that was never written, was torn, or is
// of a version that this program does not know.
func decodeSlot(b [slotSize]byte) (s slot, ok bool) {
	if string(b[slotPosMagic:slotPosVersion]) != slotMagic ||
		binary.BigEndian.Uint32(b[slotPosVersion:]) != slotVersion ||
		binary.BigEndian.Uint32(b[slotPosCRC:]) != crc32.Checksum(b[:slotPosCRC], castagnoli) {
		return slot{}, false
	}
	flags := binary.BigEndian.Uint32(b[slotPosFlags:])
	copy(s.values[:], b[slotPosValues:])
	copy(s.before[:], b[slotPosBefore:])
	s.ext = Ext{
		DispatchedTo:  message.PhysicalOffset(int64At(b[:], slotPosDispatchedTo)),
		LastRecord:    message.PhysicalOffset(int64At(b[:], slotPosLastRecord)),
		FlushedTo:     message.PhysicalOffset(int64At(b[:], slotPosFlushedTo)),
		LastStoreTime: int64At(b[:], slotPosLastStoreTime),
		Clean:         flags&flagClean != 0,
		QueueCount:    binary.BigEndian.Uint64(b[slotPosQueueCount:]),
		QueueHash:     binary.BigEndian.Uint64(b[slotPosQueueHash:]),
		Index: IndexState{
			Name:         strings.TrimRight(string(b[slotPosIndexName:slotPosIndexCount]), "\x00"),
			Count:        int32(binary.BigEndian.Uint32(b[slotPosIndexCount:])),
			EndPhy:       message.PhysicalOffset(int64At(b[:], slotPosIndexEndPhy)),
			EndTime:      int64At(b[:], slotPosIndexEndTime),
			MonotoneFrom: message.PhysicalOffset(int64At(b[:], slotPosMonotoneFrom)),
			Complete:     flags&flagIndexComplete != 0,
			MissingFrom:  message.PhysicalOffset(int64At(b[:], slotPosMissingFrom)),
		},
		Seq: binary.BigEndian.Uint64(b[slotPosSeq:]),
	}
	return s, true
}

// matches says that bytes 0–47 of the file are what they were before or after
// the save of s, or, when that was torn, each byte is one of the two. If not,
// another program has changed them since and the slot says nothing any more.
func (s slot) matches(disk [valuesSize]byte) bool {
	for i, b := range disk {
		if b != s.values[i] && b != s.before[i] {
			return false
		}
	}
	return true
}
