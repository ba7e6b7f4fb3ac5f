package message

import (
	"bytes"
	"net/netip"
)

// Record returns the bytes of the whole record.
func (v *View) Record() []byte { return v.rec }

// Body returns the stored body.
func (v *View) Body() []byte {
	at := v.BodyOffset
	return v.rec[at : at+v.BodyLen : at+v.BodyLen]
}

// TopicBytes returns the topic, valid UTF-8 and never empty.
func (v *View) TopicBytes() []byte {
	at := v.topicAt
	return v.rec[at : at+v.topicLen : at+v.topicLen]
}

// Topic returns a copy of the topic.
func (v *View) Topic() string { return string(v.TopicBytes()) }

// PropsBytes returns the properties as they are stored.
func (v *View) PropsBytes() []byte {
	at := v.propsAt
	return v.rec[at : at+v.propsLen : at+v.propsLen]
}

// Props returns a copy of the properties.
func (v *View) Props() Properties { return Properties(v.PropsBytes()) }

// props is Props without the copy, for use inside one call.
func (v *View) props() Properties { return Properties(stringOf(v.PropsBytes())) }

// LooksTorn reports whether a record that passed Check, and lies at fileOffset
// in its file, looks like a write that reached the disk in part: the last byte
// of its properties is zero, or a whole disk sector of them is, up to the
// record's end. The body's checksum does not cover them, so Check alone does
// not see it; everywhere else a lost part makes Check fail. A sender can write
// such properties too (an Encoder puts a separator behind a zero at the end),
// so the question is only for records that may not have been flushed.
func (v *View) LooksTorn(fileOffset int64) bool {
	p := v.PropsBytes()
	if len(p) == 0 {
		return false
	}
	if p[len(p)-1] == 0 {
		return true
	}
	start := int((fileOffset + int64(v.propsAt)) % sectorSize)
	for at := (sectorSize - start) % sectorSize; at < len(p); at += sectorSize {
		if allZero(p[at:min(at+sectorSize, len(p))]) {
			return true
		}
	}
	return false
}

// sectorSize is the smallest unit that a disk writes.
const sectorSize = 512

func allZero(b []byte) bool { return len(bytes.TrimLeft(b, "\x00")) == 0 }

// GetProp returns the value of a property by the rules of Properties.Get.
// Nothing is copied or allocated.
func (v *View) GetProp(name string) ([]byte, bool) {
	value, ok := v.props().Get(name)
	if !ok {
		return nil, false
	}
	return bytesOf(value), true
}

// BornHost returns the sender's address.
func (v *View) BornHost() netip.AddrPort {
	return hostAt(v.rec[posBornHost:], v.SysFlag&BornHostV6 != 0)
}

// StoreHost returns the broker's address.
func (v *View) StoreHost() netip.AddrPort {
	at := posBornHost + bornSize(v.SysFlag) + 8
	return hostAt(v.rec[at:], v.SysFlag&StoreHostV6 != 0)
}

// OffsetID returns the record's offset message id.
func (v *View) OffsetID() string { return OffsetID(v.StoreHost(), v.PhysicalOffset) }

// TagsCode returns what the record's consume queue unit keeps: the hash of its
// tags or, in the schedule topic with a DELAY above 0, the store time plus
// delay(level) in ms. delay may be nil where no such record can come. A DELAY
// that is no number counts as none (section 6.2).
func (v *View) TagsCode(delay func(level int) int64) TagsCode {
	p := v.props()
	if delay != nil && string(v.TopicBytes()) == ScheduleTopic {
		if s, ok := p.Get(PropDelay); ok {
			if level, ok := parseInt(s, 32); ok && level > 0 {
				return TagsCode(v.StoreTimestamp + delay(int(level)))
			}
		}
	}
	return HashTags(p.Tags())
}

// IndexHashes appends the hashes of the record's index entries, as the function
// of that name does.
func (v *View) IndexHashes(dst []int32, withTags bool) []int32 {
	return IndexHashes(dst, stringOf(v.TopicBytes()), v.props(), v.SysFlag, withTags)
}

// InnerBatch returns the first queue offset and the number of messages of an
// inner batch. ok is false unless the record has the InnerBatch flag and both
// properties make sense. Without the flag the properties mean nothing: any
// sender can put them into an ordinary message.
func (v *View) InnerBatch() (base QueueOffset, num int16, ok bool) {
	if v.SysFlag&InnerBatch == 0 {
		return 0, 0, false
	}
	return v.props().InnerBatch()
}

// BatchNum returns how many queue offsets the record takes up in its own queue:
// the number of messages of an inner batch, else 1; 0 when it gets no unit.
func (v *View) BatchNum() int {
	if !v.SysFlag.Queued() {
		return 0
	}
	if _, num, ok := v.InnerBatch(); ok {
		return int(num)
	}
	return 1
}

// HasLightQueues reports whether both lists of light queues are present.
// LightQueues then says which.
func (v *View) HasLightQueues() bool {
	// Nearly no record has them: one search instead of two parses.
	if !bytes.Contains(v.PropsBytes(), []byte(PropInnerMultiDispatch)) {
		return false
	}
	p := v.props()
	_, names := p.Get(PropInnerMultiDispatch)
	_, offsets := p.Get(PropInnerMultiQueueOffset)
	return names && offsets
}

// LightQueues is Properties.LightQueues of the record; the names are copies.
func (v *View) LightQueues() ([]LightQueue, error) {
	if !v.HasLightQueues() {
		return nil, nil
	}
	return v.Props().LightQueues()
}

// Decode returns a copy of the record as a message.
func (v *View) Decode() Ext {
	return Ext{
		Message: Message{
			Topic:                     v.Topic(),
			QueueID:                   v.QueueID,
			Flag:                      v.Flag,
			SysFlag:                   v.SysFlag,
			Body:                      bytes.Clone(v.Body()),
			Properties:                v.Props(),
			BornTimestamp:             v.BornTimestamp,
			BornHost:                  v.BornHost(),
			StoreHost:                 v.StoreHost(),
			ReconsumeTimes:            v.ReconsumeTimes,
			PreparedTransactionOffset: v.PreparedTransactionOffset,
		},
		QueueOffset:    v.QueueOffset,
		PhysicalOffset: v.PhysicalOffset,
		StoreTimestamp: v.StoreTimestamp,
		StoreSize:      v.Size,
		Magic:          v.Magic,
		BodyCRC:        v.Header.BodyCRC,
	}
}
