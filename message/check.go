package message

import (
	"bytes"
	"encoding/binary"
	"math"
	"net/netip"
	"unicode/utf8"
)

// MaxHeaderSize is the length of everything before the body when both hosts are
// IPv6. Who has read that many bytes of a record, or all that a short one has,
// can call ParseHeader.
const MaxHeaderSize = fixedSize + 2*hostV6

// Kind says what lies at a position of the commit log.
type Kind uint8

// The kinds of Header.
const (
	KindEnd    Kind = iota // eight zero bytes: nothing was written here
	KindRecord             // a message
	KindBlank              // the rest of the file is unused
)

// Header is the fixed part of a record. For KindBlank only Size is set, for
// KindEnd nothing.
type Header struct {
	Kind                      Kind
	Size                      int32 // of the record; of a blank: the rest of the file
	Magic                     uint32
	BodyCRC                   uint32
	QueueID                   int32
	Flag                      int32
	QueueOffset               QueueOffset
	PhysicalOffset            PhysicalOffset // as the record says
	SysFlag                   SysFlag
	BornTimestamp             int64
	StoreTimestamp            int64
	ReconsumeTimes            int32
	PreparedTransactionOffset PhysicalOffset
	BodyOffset                int32 // from the start of the record
	BodyLen                   int32
}

// ParseHeader reads the fixed part of the record, blank or end that b begins
// with; b may be as short as the fixed part, or longer than the record. It
// checks what the fixed part alone can tell: the magic, that the size has room
// for the fields and the body, and that the ports are ports. Size is not
// compared with anything outside, so it is not to be allocated by before it was
// held against the file. Errors are *FormatError.
func ParseHeader(b []byte) (Header, error) {
	be := binary.BigEndian
	if len(b) < BlankSize {
		return Header{}, badFormat(fieldSize, int64(len(b)), "bytes left, fewer than", BlankSize)
	}
	size := int32(be.Uint32(b[posSize:]))
	magic := be.Uint32(b[posMagic:])
	switch magic {
	case MagicV1, MagicV2:
	case MagicBlank:
		if size < BlankSize {
			return Header{}, badFormat(fieldSize, int64(size), "of a blank, below the minimum of", BlankSize)
		}
		return Header{Kind: KindBlank, Size: size, Magic: magic}, nil
	case 0:
		if size == 0 {
			return Header{}, nil
		}
		fallthrough
	default:
		return Header{}, badFormat(fieldMagic, int64(magic), "is that of no record", 0)
	}

	if size < MinRecordSize {
		return Header{}, badFormat(fieldSize, int64(size), "below the minimum of", MinRecordSize)
	}
	if len(b) < posBornHost {
		return Header{}, badFormat(fieldSize, int64(len(b)), "bytes left, fewer than", MinRecordSize)
	}
	h := Header{
		Kind:           KindRecord,
		Size:           size,
		Magic:          magic,
		BodyCRC:        be.Uint32(b[posBodyCRC:]),
		QueueID:        int32(be.Uint32(b[posQueueID:])),
		Flag:           int32(be.Uint32(b[posFlag:])),
		QueueOffset:    QueueOffset(be.Uint64(b[posQueueOffset:])),
		PhysicalOffset: PhysicalOffset(be.Uint64(b[posPhysical:])),
		SysFlag:        SysFlag(be.Uint32(b[posSysFlag:])),
		BornTimestamp:  int64(be.Uint64(b[posBornTime:])),
	}
	born, store := bornSize(h.SysFlag), storeSize(h.SysFlag)
	body := fixedSize + born + store
	if len(b) < body {
		return Header{}, badFormat(fieldSize, int64(len(b)), "bytes left, fewer than", int64(body))
	}
	h.BodyOffset = int32(body)

	at := posBornHost + born
	if port := int32(be.Uint32(b[at-4:])); port < 0 || port > math.MaxUint16 {
		return Header{}, badFormat(fieldBornPort, int64(port), "is not within 0 and", math.MaxUint16)
	}
	h.StoreTimestamp = int64(be.Uint64(b[at:]))
	at += 8 + store
	if port := int32(be.Uint32(b[at-4:])); port < 0 || port > math.MaxUint16 {
		return Header{}, badFormat(fieldStorePort, int64(port), "is not within 0 and", math.MaxUint16)
	}
	h.ReconsumeTimes = int32(be.Uint32(b[at:]))
	h.PreparedTransactionOffset = PhysicalOffset(be.Uint64(b[at+4:]))
	h.BodyLen = int32(be.Uint32(b[at+12:]))

	// The two length fields and a topic of one byte are the least behind it.
	room := int64(size) - int64(body) - int64(topicHead(magic)) - 1 - 2
	if room < 0 {
		return Header{}, badFormat(fieldSize, int64(size), "below the minimum of", int64(size)-room)
	}
	if h.BodyLen < 0 || int64(h.BodyLen) > room {
		return Header{}, badFormat(fieldBodyLength, int64(h.BodyLen), "is not within 0 and", room)
	}
	return h, nil
}

// IsMagic reports whether b begins with the magic of a message's record, v1 or
// v2. A search for records looks at the four bytes behind each possible size.
func IsMagic(b []byte) bool {
	if len(b) < 4 {
		return false
	}
	m := binary.BigEndian.Uint32(b)
	return m == MagicV1 || m == MagicV2
}

func topicHead(magic uint32) int {
	if magic == MagicV2 {
		return 2
	}
	return 1
}

// View is a record in place. Its methods that return byte slices return parts
// of the record: the view and they live as long as nobody changes that buffer.
// A View is made by Check; the zero View has no record.
type View struct {
	Header
	rec      []byte
	topicAt  int32
	topicLen int32
	propsAt  int32
	propsLen int32
}

// parse reads a complete record; every field is inside rec afterwards.
func (v *View) parse(rec []byte) error {
	h, err := ParseHeader(rec)
	if err != nil {
		return err
	}
	if h.Kind != KindRecord {
		return badFormat(fieldMagic, int64(h.Magic), "is that of no record", 0)
	}
	if int64(h.Size) != int64(len(rec)) {
		return badFormat(fieldSize, int64(h.Size), "differs from the number of bytes,", int64(len(rec)))
	}
	be := binary.BigEndian
	at := int(h.BodyOffset) + int(h.BodyLen) // ParseHeader left room for the fields behind
	topicLen := 0
	if h.Magic == MagicV2 {
		topicLen = int(int16(be.Uint16(rec[at:])))
		at += 2
	} else {
		topicLen = int(int8(rec[at]))
		at++
	}
	if room := len(rec) - at - 2; topicLen < 1 || topicLen > room {
		return badFormat(fieldTopicLength, int64(topicLen), "is not within 1 and", int64(room))
	}
	v.topicAt, v.topicLen = int32(at), int32(topicLen)
	at += topicLen
	propsLen := int(int16(be.Uint16(rec[at:])))
	at += 2
	if rest := len(rec) - at; propsLen != rest {
		return badFormat(fieldPropsLength, int64(propsLen), "differs from the rest of the record,", int64(rest))
	}
	v.propsAt, v.propsLen = int32(at), int32(propsLen)
	v.Header, v.rec = h, rec
	if !utf8.Valid(v.TopicBytes()) {
		return &FormatError{Field: fieldTopic, Reason: "is not UTF-8"}
	}
	// No topic has one, and no checksum covers the topic: this is how a write
	// looks that was torn inside it.
	if bytes.IndexByte(v.TopicBytes(), 0) >= 0 {
		return &FormatError{Field: fieldTopic, Reason: "contains a zero byte"}
	}
	return nil
}

// CheckOptions says what Check does beyond structure and position.
type CheckOptions struct {
	// BodyCRC verifies the checksum of the body; an empty body has none.
	BodyCRC bool
	// PropertyCRC verifies the checksum of the whole record where the last
	// property is one. Records without it pass.
	PropertyCRC bool
	// RequirePropertyCRC verifies it and refuses records without (RocketMQ:
	// forceVerifyPropCRC, but BodyCRC stays a choice of its own). It also
	// accepts one that is glued to the value before, as some releases write
	// for batches; without this option such bytes are an ordinary value,
	// because a sender can make them up.
	RequirePropertyCRC bool
	// Strict refuses records that upstream's parser fails on because of a
	// property that is no number: see View.ParserError. Upstream loses such a
	// record, and what follows it, so a reader does better without; a
	// verifier wants to know.
	Strict bool
}

// Check tells whether rec, exactly the bytes from one record's start to its
// end, is a valid record that belongs at position at, and returns the view of
// it. Errors are *FormatError. Nothing is allocated for a valid record.
func Check(rec []byte, at PhysicalOffset, opt CheckOptions) (View, error) {
	var v View
	if err := v.parse(rec); err != nil {
		return View{}, err
	}
	if v.PhysicalOffset != at {
		return View{}, badFormat(fieldPhysical, int64(v.PhysicalOffset), "differs from the position,", int64(at))
	}
	if opt.BodyCRC && v.BodyLen > 0 {
		if crc := BodyCRC(v.Body()); crc != v.BodyCRC {
			return View{}, badFormat(fieldBodyCRC, int64(v.BodyCRC), "differs from that of the body,", int64(crc))
		}
	}
	if opt.PropertyCRC || opt.RequirePropertyCRC {
		switch stored, ok := v.propertyCRC(opt.RequirePropertyCRC); {
		case ok:
			if crc := int64(propertyCRC(rec)); crc != stored {
				return View{}, badFormat(fieldPropsCRC, stored, "differs from that of the record,", crc)
			}
		case opt.RequirePropertyCRC:
			return View{}, &FormatError{Field: fieldPropsCRC, Reason: "is missing"}
		}
	}
	if opt.Strict {
		if err := v.ParserError(); err != nil {
			return View{}, err
		}
	}
	return v, nil
}

// propertyCRC returns the CRC in the last property, with glued also when that
// property is not separated from the one before.
func (v *View) propertyCRC(glued bool) (int64, bool) {
	p := v.PropsBytes()
	if len(p) < crcTailSize {
		return 0, false
	}
	n := len(p) - crcTailSize
	if n > 0 && p[n-1] != pairSep && !glued {
		return 0, false
	}
	return parseCRCTail(p[n:])
}

// HasPropertyCRC reports whether the record ends in a property CRC.
func (v *View) HasPropertyCRC() bool {
	_, ok := v.propertyCRC(false)
	return ok
}

// ParserError returns the *FormatError that names the property upstream's
// parser fails on, or nil. It is of interest for stores written by others: an
// Encoder accepts no such message.
func (v *View) ParserError() error {
	p := v.props()
	var base, delay string
	num, ok := p.Get(PropInnerNum) // hardly ever: quicker than a look at all of them
	if ok {
		base, _ = p.Get(PropInnerBase)
	}
	topic := stringOf(v.TopicBytes())
	if topic == ScheduleTopic {
		delay, _ = p.Get(PropDelay)
	}
	if err := checkNumbers(topic, num, base, delay); err != nil {
		return err
	}
	return nil
}

// Decode copies a complete record into a message. It checks the structure, not
// the checksums and not the position.
func Decode(rec []byte) (Ext, error) {
	var v View
	if err := v.parse(rec); err != nil {
		return Ext{}, err
	}
	return v.Decode(), nil
}

// hostAt reads an address whose port ParseHeader has checked.
func hostAt(b []byte, v6 bool) netip.AddrPort {
	if v6 {
		return netip.AddrPortFrom(netip.AddrFrom16([16]byte(b)), uint16(binary.BigEndian.Uint32(b[16:])))
	}
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte(b)), uint16(binary.BigEndian.Uint32(b[4:])))
}
