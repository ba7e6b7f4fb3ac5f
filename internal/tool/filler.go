package tool

import (
	"bytes"
	"encoding/binary"
	"hash/crc32"
	"io"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// A repaired log has records of its own in the place of what was lost, so that
// whoever scans the log, a Java broker as well, comes through.
//
// A filler covers a damaged range. It is a rolled back message of topic
// FillerTopic with a body of zeros: no broker dispatches those, so it needs no
// queue, takes no queue offset and is delivered to nobody. A range that is
// longer than maxFiller gets several. The smallest has 92 bytes: its topic is
// cut to what fits, one byte at least. Every message has at least that size, so
// what lies between two true ends of records can always be filled. A range up
// to the end of its file becomes a blank record, which needs 8 bytes.
//
// A placeholder is an empty message that takes a lost message's queue offset. It
// lies where the lost message lay, and has the property PlaceholderProperty.
const (
	// FillerTopic is the topic of the records that cover damaged ranges.
	FillerTopic = "rmq_sys_filler"
	// PlaceholderProperty marks a message that stands for a lost one.
	PlaceholderProperty = "GANTRY_LOST"

	fillerFlag = 0x46494C4C // "FILL", in the record's flag
	maxFiller  = 1 << 20
	minFiller  = message.MinRecordSize + 1

	// Positions in a record with two IPv4 hosts.
	posFlag, posBodyLen, posBody = 16, 84, 88
	posBodyCRC, posQueueID       = 8, 12
	posPhysical, posStoreTime    = 28, 56
)

// crcMask: stored CRCs are Java ints that are not negative.
const crcMask = math.MaxInt32

// zeroCRC is the body CRC of n zero bytes.
func zeroCRC(n int) uint32 {
	if n == 0 {
		return 0
	}
	if n == maxFiller/2 { // the usual piece of a large range
		return halfCRC()
	}
	return crcOfZeros(n)
}

var halfCRC = sync.OnceValue(func() uint32 { return crcOfZeros(maxFiller / 2) })

func crcOfZeros(n int) uint32 {
	crc := uint32(0)
	for n > 0 {
		part := min(n, pageSize)
		crc = crc32.Update(crc, crc32.IEEETable, []byte(zeroPage)[:part])
		n -= part
	}
	return crc & crcMask
}

// fillerPieces cuts a range of n bytes into sizes of fillers. n is at least
// minFiller.
func fillerPieces(n int64) (sizes []int64) {
	// A piece has a body of maxFiller/2 bytes, so that its CRC is known.
	const piece = posBody + maxFiller/2 + 1 + int64(len(FillerTopic)) + 2
	for n >= piece+maxFiller/2 {
		sizes = append(sizes, piece)
		n -= piece
	}
	return append(sizes, n)
}

// fillerParts returns the bytes in front of and behind the body of a filler of
// size bytes at a position. The body is zeros. topic is FillerTopic, except
// where a reader looks at who was there.
func fillerParts(at, size, storeTime int64, topic string) (head, tail []byte) {
	topic = topic[:min(int64(len(topic)), size-message.MinRecordSize)]
	body := size - message.MinRecordSize - int64(len(topic))
	head = make([]byte, posBody)
	be := binary.BigEndian
	be.PutUint32(head, uint32(size))
	be.PutUint32(head[4:], message.MagicV1)
	be.PutUint32(head[posBodyCRC:], zeroCRC(int(body)))
	be.PutUint32(head[posFlag:], fillerFlag)
	be.PutUint64(head[posPhysical:], uint64(at))
	be.PutUint32(head[36:], uint32(message.TxRollback))
	be.PutUint64(head[40:], uint64(storeTime)) // born
	be.PutUint64(head[posStoreTime:], uint64(storeTime))
	be.PutUint32(head[posBodyLen:], uint32(body))
	tail = append(tail, byte(len(topic)))
	tail = append(tail, topic...)
	return head, append(tail, 0, 0)
}

// IsFiller reports whether a record covers a damaged range.
func IsFiller(v *message.View) bool {
	return v.Flag == fillerFlag && v.SysFlag.Transaction() == message.TxRollback &&
		strings.HasPrefix(FillerTopic, string(v.TopicBytes())) && isZero(v.Body())
}

// IsPlaceholder reports whether a record stands for a lost message.
func IsPlaceholder(v *message.View) bool {
	_, ok := v.GetProp(PlaceholderProperty)
	return ok && v.Flag == fillerFlag
}

// writeFillers covers [from, to), positions in the log, in the file that begins
// at start. Where a body goes there are zeros already.
func writeFillers(f io.WriterAt, start, from, to, storeTime int64, topic string) error {
	at := from
	for _, size := range fillerPieces(to - from) {
		head, tail := fillerParts(at, size, storeTime, topic)
		if _, err := f.WriteAt(head, at-start); err != nil {
			return err
		}
		if _, err := f.WriteAt(tail, at+size-start-int64(len(tail))); err != nil {
			return err
		}
		at += size
	}
	return nil
}

// clearRange makes a range of a repaired log zeros again: the records in it are
// ours. Bodies of fillers are zeros already.
func clearRange(f vfs.File, start, from, to int64) error {
	for at := from; at < to; {
		var head [posBody]byte
		if err := readWhole(f, head[:], at-start); err != nil {
			return err
		}
		size := int64(message.Size(head[:]))
		h, err := message.ParseHeader(head[:])
		if err != nil || size <= 0 || size > to-at {
			size = to - at // cannot be, but must not last for ever
		}
		filler := err == nil && h.Kind == message.KindRecord && h.Flag == fillerFlag && h.SysFlag.Transaction() == message.TxRollback
		parts := [][2]int64{{0, size}}
		if tail := int64(len(FillerTopic)+len(message.HalfTopic)) + 3; filler && size > posBody+tail {
			parts = [][2]int64{{0, posBody}, {size - tail, size}}
		} else if err == nil && h.Kind == message.KindBlank {
			parts[0][1] = message.BlankSize
		}
		for _, p := range parts {
			if _, err := f.WriteAt(make([]byte, p[1]-p[0]), at-start+p[0]); err != nil {
				return err
			}
		}
		at += size
	}
	return nil
}

// writeBlank ends a file with a blank record over its last n bytes.
func writeBlank(f io.WriterAt, fileSize, n int64) error {
	_, err := f.WriteAt(message.AppendBlank(nil, int32(n)), fileSize-n)
	return err
}

// lostSlot is what a placeholder stands for.
type lostSlot struct {
	topic   string
	queueID int32
	offset  int64 // queue offset
	count   int16 // messages; above 1 an inner batch
	phy     int64
	size    int32 // of the lost record
}

// placeholder returns the record for a lost slot, of at most room bytes. What it
// leaves of room is nothing or enough for a filler. nil: it does not fit.
func placeholder(s lostSlot, room, storeTime int64) []byte {
	m := message.Message{Topic: s.topic, QueueID: s.queueID, Flag: fillerFlag, BornTimestamp: storeTime}
	var batch message.Properties
	if s.count > 1 {
		m.SysFlag = message.InnerBatch | message.NeedUnwrap
		batch = message.NewProperties(message.PropInnerNum, strconv.Itoa(int(s.count)), message.PropInnerBase, strconv.FormatInt(s.offset, 10))
		for range s.count {
			m.Body, _ = message.AppendBatchItem(m.Body, message.BatchItem{}) // always fits
		}
	}
	enc := message.Encoder{LongTopics: true, MaxMessageSize: math.MaxInt32 - (1 << 17)}
	m.Properties = batch
	base, err := enc.RecordSize(&m)
	if err != nil {
		return nil
	}
	left := room - int64(base)
	const mark = int64(len(PlaceholderProperty)) + 3 // separators and a value of one byte
	switch {
	case left < 0:
		return nil
	case left < mark:
		// No room to say what it is. Separators alone are no property.
		m.Properties = batch + message.Properties(bytes.Repeat([]byte{2}, int(left)))
	case left-mark < minFiller:
		m.Properties = batch + message.NewProperties(PlaceholderProperty, strings.Repeat("1", int(left-mark)+1))
	default:
		m.Properties = batch + message.NewProperties(PlaceholderProperty, "1")
	}
	rec, err := enc.Append(nil, &m)
	if err != nil {
		return nil
	}
	message.Patch(rec, message.QueueOffset(s.offset), message.PhysicalOffset(s.phy), storeTime)
	return rec
}
