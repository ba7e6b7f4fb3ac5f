package remoting

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// The binary header up to the remark.
const (
	posBinCode     = 0
	posBinLanguage = 2
	posBinVersion  = 3
	posBinOpaque   = 5
	posBinFlag     = 9
	posBinRemark   = 13
	minBinHeader   = posBinRemark + 4 + 4
)

var errCut = errors.New("cut short")

// binary decodes a binary header. Bytes behind the fields are ignored, fields
// without name or value are absent: both as in Java.
func (d *headerDecoder) binary(b []byte, c *Command) (remark fieldSpan, hasExt bool, err error) {
	if len(b) < minBinHeader {
		return remark, false, errCut
	}
	c.Code = int32(int16(binary.BigEndian.Uint16(b[posBinCode:])))
	c.Language = languageOf(int64(b[posBinLanguage]))
	c.Version = int32(int16(binary.BigEndian.Uint16(b[posBinVersion:])))
	c.Opaque = int32(binary.BigEndian.Uint32(b[posBinOpaque:]))
	c.Flag = int32(binary.BigEndian.Uint32(b[posBinFlag:]))
	text, rest, err := cutBytes(b[posBinRemark:], 4)
	if err != nil {
		return remark, false, fmt.Errorf("remark: %w", err)
	}
	d.arena = repair(d.arena, text)
	remark.end = len(d.arena)
	entries, _, err := cutBytes(rest, 4)
	if err != nil {
		return remark, false, fmt.Errorf("ext fields: %w", err)
	}
	for len(entries) > 0 {
		var name, value []byte
		if name, entries, err = cutBytes(entries, 2); err != nil {
			return remark, false, fmt.Errorf("name of ext field %d: %w", len(d.spans), err)
		}
		if value, entries, err = cutBytes(entries, 4); err != nil {
			return remark, false, fmt.Errorf("value of ext field %d: %w", len(d.spans), err)
		}
		if len(name) == 0 || len(value) == 0 {
			continue
		}
		s := fieldSpan{start: len(d.arena)}
		d.arena = repair(d.arena, name)
		s.mid = len(d.arena)
		d.arena = repair(d.arena, value)
		s.end = len(d.arena)
		if err := d.add(s); err != nil {
			return remark, false, err
		}
	}
	return remark, len(d.spans) > 0, nil
}

// cutBytes splits b behind a length of width 2 or 4 bytes and as many bytes as
// that says.
func cutBytes(b []byte, width int) (text, rest []byte, err error) {
	if len(b) < width {
		return nil, nil, errCut
	}
	var n int64
	if width == 2 {
		n = int64(int16(binary.BigEndian.Uint16(b)))
	} else {
		n = int64(int32(binary.BigEndian.Uint32(b)))
	}
	if n < 0 || n > int64(len(b)-width) {
		return nil, nil, fmt.Errorf("length %d, %d bytes left", n, len(b)-width)
	}
	return b[width : width+int(n)], b[width+int(n):], nil
}

// appendBinaryHeader appends the binary header of c, which fitsBinary.
func appendBinaryHeader(dst []byte, c *Command) []byte {
	language := c.Language
	if int(language) >= len(languageNames) {
		language = LanguageOther
	}
	dst = binary.BigEndian.AppendUint16(dst, uint16(c.Code))
	dst = append(dst, byte(language))
	dst = binary.BigEndian.AppendUint16(dst, uint16(c.Version))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Opaque))
	dst = binary.BigEndian.AppendUint32(dst, uint32(c.Flag))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(c.Remark)))
	dst = append(dst, c.Remark...)
	size := 0
	for i := range c.Ext {
		size += 2 + len(c.Ext[i].Name) + 4 + len(c.Ext[i].Value)
	}
	dst = binary.BigEndian.AppendUint32(dst, uint32(size))
	for i := range c.Ext {
		dst = binary.BigEndian.AppendUint16(dst, uint16(len(c.Ext[i].Name)))
		dst = append(dst, c.Ext[i].Name...)
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(c.Ext[i].Value)))
		dst = append(dst, c.Ext[i].Value...)
	}
	return dst
}
