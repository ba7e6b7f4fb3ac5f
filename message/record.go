package message

import (
	"encoding/binary"
	"hash/crc32"
	"math"
	"net/netip"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/gantrymq/gantry/internal/base"
)

// A record (RocketMQ: CommitLog, MessageExtEncoder), integers big-endian, as it
// lies in the commit log. B and S are 8 for an IPv4 host and 20 for an IPv6
// one, by SysFlag.
//
//	0           4           8           12          16          20
//	+-----------+-----------+-----------+-----------+-----------+
//	| size      | magic     | body CRC  | queue id  | flag      |
//	+-----------+-----------+-----------+-----------+-----------+
//	20                      28                      36          40
//	+-----------------------+-----------------------+-----------+
//	| queue offset          | physical offset       | sys flag  |
//	+-----------------------+-----------------------+-----------+
//	40                      48         48+B                    56+B
//	+-----------------------+-----------+-----------------------+
//	| born timestamp        | born host | store timestamp       |
//	+-----------------------+-----------+-----------------------+
//	56+B        56+B+S      60+B+S                  68+B+S      72+B+S
//	+-----------+-----------+-----------------------+-----------+
//	| store host| reconsume | prepared tx offset    | body len n|
//	+-----------+-----------+-----------------------+-----------+
//	| body, n bytes                                             |
//	+-----------+-----------+-----------+-----------------------+
//	| topic len | topic, t bytes        | props len | properties|
//	+-----------+-----------------------+-----------+-----------+
//
// The topic length is one byte in v1 and two in v2; both are signed. With the
// property CRC on, the last 20 bytes of the properties are
// "__CRC32#" 0x01 ten digits 0x02 (section 3.7).

// The disk format. Changing a value here breaks every existing store.
const (
	MagicV1    uint32 = 0xDAA320A7 // one byte of topic length
	MagicV2    uint32 = 0xDAA320AB // two bytes, 5.1.0 and later
	MagicBlank uint32 = 0xCBD43194 // fills the end of a file

	// MinRecordSize is the size of a v1 record with two IPv4 hosts whose body,
	// topic and properties are empty.
	MinRecordSize = 91
	// BlankSize is what must stay free behind a record in its file: the header
	// of the blank record that ends the file.
	BlankSize = 8

	posSize        = 0
	posMagic       = 4
	posBodyCRC     = 8
	posQueueID     = 12
	posFlag        = 16
	posQueueOffset = 20
	posPhysical    = 28
	posSysFlag     = 36
	posBornTime    = 40
	posBornHost    = 48

	hostV4 = 4 + 4
	hostV6 = 16 + 4
	// Everything before the body but the two hosts.
	fixedSize = 72

	crcDigits = 10
	// crcTailSize is the length of the property that holds the property CRC.
	crcTailSize = len(PropCRC32) + 1 + crcDigits + 1
	// Stored CRCs are non-negative Java ints.
	crcMask = 0x7FFFFFFF
)

// Limits that hold for writing, section 3.5.
const (
	// DefaultMaxMessageSize is RocketMQ's default of maxMessageSize: 4 MiB.
	DefaultMaxMessageSize = 4194304
	// recordOverhead is how much longer than a body a record may be.
	recordOverhead = 65536
	// MaxPropertiesSize is the most that the signed length field can say.
	MaxPropertiesSize = math.MaxInt16
	// MaxTopicSize limits ordinary topics, MaxRetryTopicSize those that begin
	// with %RETRY%; in bytes.
	MaxTopicSize      = math.MaxInt8
	MaxRetryTopicSize = 255
)

// Encoder turns messages into records. It holds settings only: any number of
// goroutines may use one.
type Encoder struct {
	// MaxMessageSize limits the body, in bytes; a whole record may be 65536
	// bytes longer. 0 means DefaultMaxMessageSize (RocketMQ: maxMessageSize).
	MaxMessageSize int
	// LongTopics gives every topic the limit of retry topics. Brokers refuse
	// that, upstream's store alone does not, so that stores exist which hold
	// such records; it is for copying those.
	LongTopics bool
	// PropertyCRC ends each record with a CRC over all of it as a property
	// (RocketMQ: enabledAppendPropCRC). Brokers before 5.2 take it for an
	// ordinary property. SealCRC fills it in.
	PropertyCRC bool
}

// plan is a message as it will be encoded.
type plan struct {
	size      int
	magic     uint32
	sysFlag   SysFlag
	props     Properties // without an incoming property CRC
	propsLen  int        // with separator and CRC, where they are added
	propsSep  bool
	born      netip.AddrPort
	store     netip.AddrPort
	topicHead int // size of the topic length field
}

// RecordSize returns the number of bytes that Append would add, or the
// *RejectError it would return.
func (e *Encoder) RecordSize(m *Message) (int, error) {
	r := m.Properties.Reserved()
	p, err := e.plan(m, &r)
	return p.size, err
}

// plan checks m against everything that a reader of the record will require,
// ours and upstream's, so that what was accepted can always be read again.
func (e *Encoder) plan(m *Message, r *Reserved) (plan, error) {
	p := plan{sysFlag: m.SysFlag, props: m.Properties, magic: MagicV1, topicHead: 1}

	// A CRC that came with the message says nothing about the record it will
	// be in, and a reader would believe it: drop it whether or not we add one.
	if r.hasCRC {
		p.props = p.props.Delete(PropCRC32)
	}
	p.propsLen = len(p.props)
	if e.PropertyCRC {
		p.propsSep = p.props.needsSep()
		p.propsLen += crcTailSize
	} else {
		// No checksum covers the properties, so a zero at their end is how a
		// torn write is told: see View.LooksTorn. No record of ours has one.
		p.propsSep = p.props != "" && p.props[len(p.props)-1] == 0
	}
	if p.propsSep {
		p.propsLen++
	}
	if p.propsLen > MaxPropertiesSize {
		err := illegal("properties", "%d bytes, limit %d", p.propsLen, MaxPropertiesSize).(*RejectError)
		err.Status = ErrPropertiesSizeExceeded
		return plan{}, err
	}

	limit := MaxTopicSize
	if e.LongTopics || strings.HasPrefix(m.Topic, RetryPrefix) {
		limit = MaxRetryTopicSize
	}
	switch {
	case m.Topic == "":
		return plan{}, illegal("topic", "empty")
	case len(m.Topic) > limit:
		return plan{}, illegal("topic", "%d bytes, limit %d", len(m.Topic), limit)
	case !utf8.ValidString(m.Topic):
		return plan{}, illegal("topic", "%q is not UTF-8", m.Topic)
	case strings.IndexByte(m.Topic, 0) >= 0:
		return plan{}, illegal("topic", "%q contains a zero byte", m.Topic)
	}
	// Upstream chooses by UTF-16 units, and writes a length byte that reads as
	// negative when the bytes are more than 127 and the units are not.
	if len(m.Topic) > math.MaxInt8 {
		p.magic, p.topicHead = MagicV2, 2
	}

	maxBody := e.maxMessageSize()
	if len(m.Body) > maxBody {
		return plan{}, illegal("body", "%d bytes, limit %d", len(m.Body), maxBody)
	}

	var bornSize, storeSize int
	p.born, bornSize, p.sysFlag = planHost(m.BornHost, p.sysFlag, BornHostV6)
	p.store, storeSize, p.sysFlag = planHost(m.StoreHost, p.sysFlag, StoreHostV6)

	size := int64(fixedSize) + int64(bornSize+storeSize+p.topicHead+len(m.Topic)+2+p.propsLen) + int64(len(m.Body))
	if most := min(int64(maxBody)+recordOverhead, math.MaxInt32); size > most {
		return plan{}, illegal("record", "%d bytes, limit %d", size, most)
	}
	p.size = int(size)

	if err := checkNumbers(m.Topic, r.InnerNum, r.InnerBase, r.Delay); err != nil {
		return plan{}, illegal(err.Field, "%s", err.Reason)
	}
	if p.sysFlag&InnerBatch != 0 && r.InnerNum != "" && r.InnerBase != "" {
		if _, _, ok := p.props.InnerBatch(); !ok {
			return plan{}, illegal(PropInnerNum, "an inner batch needs a count of at least 1 and a base of at least 0")
		}
	}
	return p, nil
}

func (e *Encoder) maxMessageSize() int {
	if e.MaxMessageSize <= 0 {
		return DefaultMaxMessageSize
	}
	return e.MaxMessageSize
}

// planHost returns the address as it is stored, its size, and f with the bit
// that tells a reader that size. The bit follows the address, whatever f said.
func planHost(h netip.AddrPort, f, bit SysFlag) (netip.AddrPort, int, SysFlag) {
	a := h.Addr().Unmap()
	switch {
	case !h.IsValid():
		return netip.AddrPortFrom(netip.IPv4Unspecified(), 0), hostV4, f &^ bit
	case a.Is4():
		return netip.AddrPortFrom(a, h.Port()), hostV4, f &^ bit
	default:
		return h, hostV6, f | bit
	}
}

// checkNumbers finds what upstream's parser of a record fails on: with both
// inner-batch properties present they must be numbers, and in the schedule
// topic so must DELAY (RocketMQ: CommitLog.checkMessageAndReturnSize).
func checkNumbers(topic, num, base, delay string) *FormatError {
	if num != "" && base != "" {
		if _, ok := parseInt(num, 16); !ok {
			return &FormatError{Field: PropInnerNum, Reason: "is no 16-bit number, and there is INNER_BASE"}
		}
		if _, ok := parseInt(base, 64); !ok {
			return &FormatError{Field: PropInnerBase, Reason: "is no 64-bit number, and there is INNER_NUM"}
		}
	}
	if topic == ScheduleTopic && delay != "" {
		if _, ok := parseInt(delay, 32); !ok {
			return &FormatError{Field: PropDelay, Reason: "is no 32-bit number, and the topic is the schedule topic"}
		}
	}
	return nil
}

// Append encodes m at the end of dst and returns the longer slice. Queue
// offset, physical offset and store time are zero, and the property CRC, if
// on, is a placeholder: see Patch and SealCRC. A *RejectError leaves dst as it
// is. With room in dst nothing is allocated.
//
// Properties that depend on the queue offset (INNER_BASE,
// INNER_MULTI_QUEUE_OFFSET) must be in m.Properties before: a caller that
// learns the offset under a lock calls Properties.Set and Append there.
func (e *Encoder) Append(dst []byte, m *Message) ([]byte, error) {
	r := m.Properties.Reserved()
	return e.AppendReserved(dst, m, &r)
}

// AppendReserved is Append for a message whose properties have been looked
// through: r is m.Properties.Reserved().
func (e *Encoder) AppendReserved(dst []byte, m *Message, r *Reserved) ([]byte, error) {
	p, err := e.plan(m, r)
	if err != nil {
		return dst, err
	}
	start := len(dst)
	dst = slices.Grow(dst, p.size)[:start+p.size]
	rec := dst[start:]
	be := binary.BigEndian

	be.PutUint32(rec[posSize:], uint32(p.size))
	be.PutUint32(rec[posMagic:], p.magic)
	be.PutUint32(rec[posBodyCRC:], BodyCRC(m.Body))
	be.PutUint32(rec[posQueueID:], uint32(m.QueueID))
	be.PutUint32(rec[posFlag:], uint32(m.Flag))
	be.PutUint64(rec[posQueueOffset:], 0)
	be.PutUint64(rec[posPhysical:], 0)
	be.PutUint32(rec[posSysFlag:], uint32(p.sysFlag))
	be.PutUint64(rec[posBornTime:], uint64(m.BornTimestamp))
	at := posBornHost
	at += putHost(rec[at:], p.born)
	be.PutUint64(rec[at:], 0) // store timestamp
	at += 8
	at += putHost(rec[at:], p.store)
	be.PutUint32(rec[at:], uint32(m.ReconsumeTimes))
	be.PutUint64(rec[at+4:], uint64(m.PreparedTransactionOffset))
	be.PutUint32(rec[at+12:], uint32(len(m.Body)))
	at += 16
	at += copy(rec[at:], m.Body)
	if p.topicHead == 2 {
		be.PutUint16(rec[at:], uint16(len(m.Topic)))
	} else {
		rec[at] = byte(len(m.Topic))
	}
	at += p.topicHead
	at += copy(rec[at:], m.Topic)
	be.PutUint16(rec[at:], uint16(p.propsLen))
	at += 2
	at += copy(rec[at:], p.props)
	if p.propsSep {
		rec[at] = pairSep
		at++
	}
	if e.PropertyCRC {
		putCRCTail(rec[at:at+crcTailSize], 0)
		at += crcTailSize
	}
	if at != len(rec) { // a call with values would allocate
		base.Assert(false, "encoded %d bytes of %d", at, len(rec))
	}
	return dst, nil
}

// putHost writes an address of planHost and returns its size.
func putHost(dst []byte, h netip.AddrPort) int {
	if a := h.Addr(); a.Is4() {
		ip := a.As4()
		copy(dst, ip[:])
		binary.BigEndian.PutUint32(dst[4:], uint32(h.Port()))
		return hostV4
	}
	ip := h.Addr().As16()
	copy(dst, ip[:])
	binary.BigEndian.PutUint32(dst[16:], uint32(h.Port()))
	return hostV6
}

// BodyCRC is the checksum that a record holds of its stored body: CRC-32 (IEEE)
// without the top bit.
func BodyCRC(body []byte) uint32 { return crc32.ChecksumIEEE(body) & crcMask }

// Size returns what the first bytes of a record or blank say is its size, 0 if
// there are fewer than four. The value is not checked.
func Size(rec []byte) int32 {
	if len(rec) < 4 {
		return 0
	}
	return int32(binary.BigEndian.Uint32(rec[posSize:]))
}

// Patch writes the three fields that are known only under the append lock into
// an encoded record. By upstream's rule q is 0 for PREPARED and ROLLBACK
// records. rec must be a record made by Append, or have passed Check.
func Patch(rec []byte, q QueueOffset, phy PhysicalOffset, storeTime int64) {
	be := binary.BigEndian
	be.PutUint64(rec[posQueueOffset:], uint64(q))
	be.PutUint64(rec[posPhysical:], uint64(phy))
	be.PutUint64(rec[posBornHost+bornSize(sysFlagOf(rec)):], uint64(storeTime))
}

// Patch patches and, if the encoder adds property CRCs, seals the records in
// recs, which lie back to back as Append left them: the first one gets q and
// phy, each other one the next queue offset and its own position.
func (e *Encoder) Patch(recs []byte, q QueueOffset, phy PhysicalOffset, storeTime int64) {
	for len(recs) > 0 {
		size := Size(recs)
		rec := recs[:size]
		Patch(rec, q, phy, storeTime)
		if e.PropertyCRC {
			SealCRC(rec)
		}
		q++
		phy += PhysicalOffset(size)
		recs = recs[size:]
	}
}

func sysFlagOf(rec []byte) SysFlag {
	return SysFlag(binary.BigEndian.Uint32(rec[posSysFlag:]))
}

func bornSize(f SysFlag) int {
	if f&BornHostV6 != 0 {
		return hostV6
	}
	return hostV4
}

func storeSize(f SysFlag) int {
	if f&StoreHostV6 != 0 {
		return hostV6
	}
	return hostV4
}

// SealCRC computes the property CRC of a complete record and writes it into the
// record's last 20 bytes, where an Encoder with PropertyCRC left room; only
// records of such an encoder may be passed. Any later change to the record
// needs another call.
func SealCRC(rec []byte) {
	tail := rec[len(rec)-crcTailSize:]
	if !isCRCTail(tail) { // a call with values would allocate
		base.Assert(false, "no room for the property CRC in %x", tail)
	}
	putCRCTail(tail, propertyCRC(rec))
}

// propertyCRC computes the CRC over all of rec but its last 20 bytes.
func propertyCRC(rec []byte) uint32 {
	return crc32.ChecksumIEEE(rec[:len(rec)-crcTailSize]) & crcMask
}

func putCRCTail(tail []byte, crc uint32) {
	n := copy(tail, PropCRC32)
	tail[n] = nameSep
	for i := range crcDigits { // the least significant digit first
		tail[n+1+i] = byte('0' + crc%10)
		crc /= 10
	}
	tail[n+1+crcDigits] = pairSep
}

func isCRCTail(tail []byte) bool {
	n := len(PropCRC32)
	return string(tail[:n]) == PropCRC32 && tail[n] == nameSep && tail[n+1+crcDigits] == pairSep
}

// parseCRCTail returns the CRC in the last bytes of a record; ok is false when
// they are not that property. A value no writer produces comes back as it is,
// so that it differs from every computed one.
func parseCRCTail(tail []byte) (crc int64, ok bool) {
	if !isCRCTail(tail) {
		return 0, false
	}
	digits := tail[len(PropCRC32)+1:][:crcDigits]
	for i := crcDigits - 1; i >= 0; i-- {
		d := digits[i]
		if d < '0' || d > '9' {
			return -1, true
		}
		crc = crc*10 + int64(d-'0')
	}
	return crc, true
}

// AppendBlank appends the header of the blank record that fills the last size
// bytes of a file; the rest of them is left as it is (section 3.4).
func AppendBlank(dst []byte, size int32) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	return binary.BigEndian.AppendUint32(dst, MagicBlank)
}
