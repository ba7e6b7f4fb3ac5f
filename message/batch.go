package message

import (
	"encoding/binary"
	"iter"
)

// A client batch body, and the body of an inner batch, is a row of items
// (RocketMQ: MessageDecoder.encodeMessage), integers big-endian:
//
//	0           4           8           12          16          20
//	+-----------+-----------+-----------+-----------+-----------+------
//	| size      | magic 0   | crc 0     | flag      | body len n| body
//	+-----------+-----------+-----------+-----------+-----------+------
//	20+n        22+n
//	+-----------+-----------+
//	| props len | properties|
//	+-----------+-----------+
//
// Nobody fills in or reads magic and crc.
const (
	posItemSize = 0
	posItemFlag = 12
	posItemBody = 16
	itemHead    = 20
	minItemSize = itemHead + 2
)

// BatchItem is one message of a batch. Body is part of the batch body it came
// from.
type BatchItem struct {
	Flag       int32
	Body       []byte
	Properties Properties
}

// SplitBatch yields the items of a batch body in order; the i-th item of an
// inner batch has the queue offset base + i. A *FormatError ends the sequence.
// A compressed body must be inflated before.
func SplitBatch(body []byte) iter.Seq2[BatchItem, error] {
	return func(yield func(BatchItem, error) bool) {
		for len(body) > 0 {
			item, size, err := parseItem(body)
			if !yield(item, err) || err != nil {
				return
			}
			body = body[size:]
		}
	}
}

// parseItem reads the item at the start of b and returns its size.
func parseItem(b []byte) (BatchItem, int, error) {
	be := binary.BigEndian
	if len(b) < minItemSize {
		return BatchItem{}, 0, badFormat("batch item size", int64(len(b)), "bytes left, fewer than", minItemSize)
	}
	size := int64(int32(be.Uint32(b[posItemSize:])))
	if size < minItemSize || size > int64(len(b)) {
		return BatchItem{}, 0, badFormat("batch item size", size, "is not within 22 and", int64(len(b)))
	}
	b = b[:size]
	bodyLen := int64(int32(be.Uint32(b[posItemBody:])))
	if room := size - minItemSize; bodyLen < 0 || bodyLen > room {
		return BatchItem{}, 0, badFormat("batch item body length", bodyLen, "is not within 0 and", room)
	}
	at := itemHead + int(bodyLen)
	propsLen := int64(int16(be.Uint16(b[at:])))
	if rest := size - int64(at) - 2; propsLen != rest {
		return BatchItem{}, 0, badFormat("batch item properties length", propsLen, "differs from the rest of the item,", rest)
	}
	return BatchItem{
		Flag:       int32(be.Uint32(b[posItemFlag:])),
		Body:       b[itemHead:at:at],
		Properties: Properties(b[at+2:]),
	}, int(size), nil
}

// AppendBatchItem appends an item to a batch body. The *RejectError of an item
// that its length fields cannot describe leaves dst as it is.
func AppendBatchItem(dst []byte, item BatchItem) ([]byte, error) {
	if len(item.Properties) > MaxPropertiesSize {
		return dst, &RejectError{Status: ErrPropertiesSizeExceeded, Field: "properties", Reason: sizeReason(len(item.Properties), MaxPropertiesSize)}
	}
	if most := 1<<31 - 1 - minItemSize - MaxPropertiesSize; len(item.Body) > most {
		return dst, &RejectError{Status: ErrMessageIllegal, Field: "body", Reason: sizeReason(len(item.Body), most)}
	}
	be := binary.BigEndian
	dst = be.AppendUint32(dst, uint32(minItemSize+len(item.Body)+len(item.Properties)))
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0) // magic and crc
	dst = be.AppendUint32(dst, uint32(item.Flag))
	dst = be.AppendUint32(dst, uint32(len(item.Body)))
	dst = append(dst, item.Body...)
	dst = be.AppendUint16(dst, uint16(len(item.Properties)))
	return append(dst, item.Properties...), nil
}

// AppendBatch encodes the client batch in m.Body as one record per item, back
// to back, and returns how many there are. All of m but body, flag and
// properties goes into every record; PreparedTransactionOffset is 0. The
// properties of m itself are not added to the items' (as from 5.4 on). A batch
// is refused whole, with a *RejectError: with a transaction type, a delay
// level, a body above MaxMessageSize, no item, or any item that Append would
// refuse.
func (e *Encoder) AppendBatch(dst []byte, m *Message) (out []byte, count int, err error) {
	switch level, err := m.Properties.DelayLevel(); {
	case err != nil:
		return dst, 0, err
	case level > 0:
		return dst, 0, illegal("batch", "delay level %d", level)
	case m.SysFlag.Transaction() != 0:
		return dst, 0, illegal("batch", "transaction type %#x", int32(m.SysFlag.Transaction()))
	case len(m.Body) > e.maxMessageSize():
		return dst, 0, illegal("batch", "%s", sizeReason(len(m.Body), e.maxMessageSize()))
	case len(m.Body) == 0:
		return dst, 0, illegal("batch", "no items")
	}
	one := *m
	one.PreparedTransactionOffset = 0
	out = dst
	for item, err := range SplitBatch(m.Body) {
		if err != nil {
			return dst, 0, illegal("batch", "item %d: %v", count, err)
		}
		one.Body, one.Flag, one.Properties = item.Body, item.Flag, item.Properties
		if out, err = e.Append(out, &one); err != nil {
			return dst, 0, err
		}
		count++
	}
	return out, count, nil
}
