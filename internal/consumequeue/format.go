// Package consumequeue stores, for each topic and queue id, where the queue's
// messages lie in the commit log. A queue is a directory of files of one
// size; a file is an array of units; unit i of the whole queue belongs to
// queue offset i. Integers are big-endian.
//
//	0               8       12              20
//	+---------------+-------+---------------+
//	| physical off. | size  | tags code     |
//	+---------------+-------+---------------+
//
// A unit of size 0 was never written. Size MaxInt32 marks a fill unit: a slot
// that belongs to no message. Fill units stand before the first message of a
// queue that does not begin at a file's first slot (physical offset and tags
// code 0, as RocketMQ writes them), and in place of messages that are missing
// (tags code: the end of the last record before them, which is never 0).
//
// A batch queue has units of 46 bytes, each for one record that holds one or
// more messages; its queue offsets are found by searching the base field.
//
//	0          8      12     20           28     36      38          42         46
//	+----------+------+------+------------+------+-------+-----------+----------+
//	| phys.off.| size | tags | store time | base | count | compacted | reserved |
//	+----------+------+------+------------+------+-------+-----------+----------+
//
// A queue extension keeps what does not fit into a unit. Its units are packed;
// the tags code of the queue's unit is then the address of one: its byte
// offset in the extension with the top bit set.
//
//	0      2           10           18            20
//	+------+-----------+------------+-------------+--------+
//	| size | tags code | store time | bitmap len. | bitmap |
//	+------+-----------+------------+-------------+--------+
//
// Size 0 ends the data, a negative size ends the file.
//
// # Concurrency
//
// A Table and its Queues may be used by any number of goroutines. Readers run
// beside a writer and see units as soon as Put has returned, whether they
// have reached a file or not. The functions of this file are pure.
package consumequeue

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/message"
)

// The disk format. Changing a value here breaks every existing store.
const (
	posPhysical = 0
	posSize     = 8
	posTags     = 12
	UnitSize    = 20 // bytes of a unit

	posBatchStoreTime = 20
	posBatchBase      = 28
	posBatchCount     = 36
	posBatchCompacted = 38
	posBatchReserved  = 42
	BatchUnitSize     = 46 // bytes of a batch unit

	posExtSize      = 0
	posExtTags      = 2
	posExtStoreTime = 10
	posExtBitmapLen = 18
	posExtBitmap    = 20
	MinExtUnitSize  = 20            // bytes of an extension unit without a bitmap
	MaxExtUnitSize  = math.MaxInt16 // its size field is signed
	extEndSize      = 2             // bytes of an end marker
	extSpare        = 4             // bytes that must stay free behind a unit of a file
	extEndOfFile    = int16(-1)     // marker: go on with the next file
	fillSize        = math.MaxInt32 // size field of a fill unit
	extAddressBase  = math.MinInt64 // address of offset 0
	maxExtAddress   = math.MinInt32 - 1
)

// Unit is one slot of a queue (RocketMQ: the content of ConsumeQueue).
type Unit struct {
	Physical message.PhysicalOffset // where the record begins
	Size     int32                  // of the whole record
	Tags     message.TagsCode       // tag hash, time of delivery, or an extension address
}

// FillUnit is what stands in the slots before a queue's first message.
var FillUnit = Unit{Size: fillSize}

// IsFill reports whether the slot is one of those that belong to no message.
func (u Unit) IsFill() bool { return u.Size == fillSize }

// Valid reports whether the unit belongs to a message. Fill units do not.
func (u Unit) Valid() bool { return u.Physical >= 0 && u.Size > 0 && u.Size != fillSize }

// End is the position behind the record.
func (u Unit) End() message.PhysicalOffset {
	return u.Physical + message.PhysicalOffset(u.Size)
}

// headFill reports whether u stands before the first message of its queue.
func (u Unit) headFill() bool { return u.Size == fillSize && u.Tags == 0 }

// AppendUnit appends the bytes of u.
func AppendUnit(dst []byte, u Unit) []byte {
	var b [UnitSize]byte
	binary.BigEndian.PutUint64(b[posPhysical:], uint64(u.Physical))
	binary.BigEndian.PutUint32(b[posSize:], uint32(u.Size))
	binary.BigEndian.PutUint64(b[posTags:], uint64(u.Tags))
	return append(dst, b[:]...)
}

// DecodeUnit reads the unit at the beginning of b. It judges nothing: every 20
// bytes are some unit, see Valid. Less than UnitSize bytes are an error.
func DecodeUnit(b []byte) (Unit, error) {
	if len(b) < UnitSize {
		return Unit{}, fmt.Errorf("%w: %d bytes are less than a consume queue unit", base.ErrCorrupt, len(b))
	}
	return decodeUnit(b), nil
}

// decodeUnit is DecodeUnit for callers that know that b is long enough.
func decodeUnit(b []byte) Unit {
	_ = b[UnitSize-1]
	return Unit{
		Physical: message.PhysicalOffset(binary.BigEndian.Uint64(b[posPhysical:])),
		Size:     int32(binary.BigEndian.Uint32(b[posSize:])),
		Tags:     message.TagsCode(binary.BigEndian.Uint64(b[posTags:])),
	}
}

// BatchUnit is one slot of a batch queue (RocketMQ: the content of
// BatchConsumeQueue).
type BatchUnit struct {
	Physical  message.PhysicalOffset
	Size      int32
	Tags      message.TagsCode
	StoreTime int64               // ms since 1970
	Base      message.QueueOffset // of the record's first message
	Count     int16               // messages in the record
	Compacted int32               // -1 when unused
	Reserved  int32               // 0
}

// Valid reports whether the unit belongs to a record. The end unit of a sparse
// queue (physical offset -1, size 0) does not.
func (u BatchUnit) Valid() bool {
	return u.Physical >= 0 && u.Size > 0 && u.Base >= 0 && u.Count > 0
}

// End is the position behind the record.
func (u BatchUnit) End() message.PhysicalOffset {
	return u.Physical + message.PhysicalOffset(u.Size)
}

// Next is the queue offset behind the record's last message.
func (u BatchUnit) Next() message.QueueOffset { return u.Base + message.QueueOffset(u.Count) }

// AppendBatchUnit appends the bytes of u.
func AppendBatchUnit(dst []byte, u BatchUnit) []byte {
	var b [BatchUnitSize]byte
	binary.BigEndian.PutUint64(b[posPhysical:], uint64(u.Physical))
	binary.BigEndian.PutUint32(b[posSize:], uint32(u.Size))
	binary.BigEndian.PutUint64(b[posTags:], uint64(u.Tags))
	binary.BigEndian.PutUint64(b[posBatchStoreTime:], uint64(u.StoreTime))
	binary.BigEndian.PutUint64(b[posBatchBase:], uint64(u.Base))
	binary.BigEndian.PutUint16(b[posBatchCount:], uint16(u.Count))
	binary.BigEndian.PutUint32(b[posBatchCompacted:], uint32(u.Compacted))
	binary.BigEndian.PutUint32(b[posBatchReserved:], uint32(u.Reserved))
	return append(dst, b[:]...)
}

// DecodeBatchUnit reads the batch unit at the beginning of b. It judges
// nothing, see Valid. Less than BatchUnitSize bytes are an error.
func DecodeBatchUnit(b []byte) (BatchUnit, error) {
	if len(b) < BatchUnitSize {
		return BatchUnit{}, fmt.Errorf("%w: %d bytes are less than a batch consume queue unit", base.ErrCorrupt, len(b))
	}
	return decodeBatchUnit(b), nil
}

// decodeBatchUnit is DecodeBatchUnit for callers that know the length.
func decodeBatchUnit(b []byte) BatchUnit {
	_ = b[BatchUnitSize-1]
	return BatchUnit{
		Physical:  message.PhysicalOffset(binary.BigEndian.Uint64(b[posPhysical:])),
		Size:      int32(binary.BigEndian.Uint32(b[posSize:])),
		Tags:      message.TagsCode(binary.BigEndian.Uint64(b[posTags:])),
		StoreTime: int64(binary.BigEndian.Uint64(b[posBatchStoreTime:])),
		Base:      message.QueueOffset(binary.BigEndian.Uint64(b[posBatchBase:])),
		Count:     int16(binary.BigEndian.Uint16(b[posBatchCount:])),
		Compacted: int32(binary.BigEndian.Uint32(b[posBatchCompacted:])),
		Reserved:  int32(binary.BigEndian.Uint32(b[posBatchReserved:])),
	}
}

// ExtUnit is one unit of a queue's extension (RocketMQ:
// ConsumeQueueExt.CqExtUnit).
type ExtUnit struct {
	Tags      message.TagsCode // what the queue's unit would hold without an extension
	StoreTime int64            // ms since 1970
	Bitmap    []byte           // which filters matched, at most 32747 bytes
}

// size is the number of bytes of u in a file.
func (u ExtUnit) size() int { return MinExtUnitSize + len(u.Bitmap) }

// AppendExtUnit appends the bytes of u. A bitmap that is too long for the size
// field is a mistake of the caller and panics.
func AppendExtUnit(dst []byte, u ExtUnit) []byte {
	if u.size() > MaxExtUnitSize {
		panic(fmt.Sprintf("extension unit of %d bytes", u.size()))
	}
	var b [MinExtUnitSize]byte
	binary.BigEndian.PutUint16(b[posExtSize:], uint16(u.size()))
	binary.BigEndian.PutUint64(b[posExtTags:], uint64(u.Tags))
	binary.BigEndian.PutUint64(b[posExtStoreTime:], uint64(u.StoreTime))
	binary.BigEndian.PutUint16(b[posExtBitmapLen:], uint16(len(u.Bitmap)))
	return append(append(dst, b[:]...), u.Bitmap...)
}

// DecodeExtUnit reads the extension unit at the beginning of b and returns its
// size. Two sizes stand for ends and come without an error: 0 ends the data, a
// negative one ends the file. The bitmap aliases b; it is nil when empty.
func DecodeExtUnit(b []byte) (u ExtUnit, size int, err error) {
	if len(b) < extEndSize {
		return ExtUnit{}, 0, fmt.Errorf("%w: %d bytes are less than the size of an extension unit", base.ErrCorrupt, len(b))
	}
	size = int(int16(binary.BigEndian.Uint16(b[posExtSize:])))
	if size <= 0 {
		return ExtUnit{}, size, nil
	}
	if size < MinExtUnitSize {
		return ExtUnit{}, 0, fmt.Errorf("%w: extension unit size %d below minimum %d", base.ErrCorrupt, size, MinExtUnitSize)
	}
	if size > len(b) {
		return ExtUnit{}, 0, fmt.Errorf("%w: extension unit size %d, %d bytes left", base.ErrCorrupt, size, len(b))
	}
	n := int(int16(binary.BigEndian.Uint16(b[posExtBitmapLen:])))
	if n != size-MinExtUnitSize {
		return ExtUnit{}, 0, fmt.Errorf("%w: extension unit size %d, bitmap length %d", base.ErrCorrupt, size, n)
	}
	u.Tags = message.TagsCode(binary.BigEndian.Uint64(b[posExtTags:]))
	u.StoreTime = int64(binary.BigEndian.Uint64(b[posExtStoreTime:]))
	if n > 0 {
		u.Bitmap = b[posExtBitmap:size:size]
	}
	return u, size, nil
}

// IsExtAddress reports whether a tags code is the address of an extension
// unit. Hashes and times never are.
func IsExtAddress(code message.TagsCode) bool { return code <= maxExtAddress }

// ExtAddress makes the address of the extension unit at a byte offset, which
// must be below 2^63 - 2^31.
func ExtAddress(offset int64) message.TagsCode {
	return message.TagsCode(offset + extAddressBase)
}

// ExtOffset returns the byte offset that an address stands for; ok is false
// when code is no address.
func ExtOffset(code message.TagsCode) (offset int64, ok bool) {
	if !IsExtAddress(code) {
		return 0, false
	}
	return int64(code) - extAddressBase, true
}
