package remoting

import (
	"fmt"
	"strconv"
)

// json decodes a JSON header. Names that are not known are skipped; null is
// the same as absent.
func (d *headerDecoder) json(b []byte, c *Command) (remark fieldSpan, hasExt bool, err error) {
	c.Language = LanguageUnknown
	i := skipSpace(b, 0)
	if i >= len(b) || b[i] != '{' {
		return remark, false, jsonErrorf(i, "not an object")
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return remark, false, atEnd(b, i+1)
	}
	for more := true; more; {
		if i >= len(b) || b[i] != '"' {
			return remark, false, jsonErrorf(i, "no name")
		}
		end, _, err := stringEnd(b, i)
		if err != nil {
			return remark, false, err
		}
		name := b[i+1 : end-1]
		if i = skipSpace(b, end); i >= len(b) || b[i] != ':' {
			return remark, false, jsonErrorf(i, "no colon behind a name")
		}
		i = skipSpace(b, i+1)
		if string(name) == "extFields" && i < len(b) && b[i] == '{' {
			hasExt = true
			d.spans, d.seen = d.spans[:0], 0
			if i, err = d.jsonFields(b, i); err != nil {
				return remark, false, err
			}
		} else {
			if end, err = valueEnd(b, i, 1); err != nil {
				return remark, false, err
			}
			if err := d.jsonMember(name, b[i:end], c, &remark); err != nil {
				return remark, false, err
			}
			i = end
		}
		if more, i, err = separator(b, i, '}'); err != nil {
			return remark, false, err
		}
	}
	return remark, hasExt, atEnd(b, i)
}

// atEnd reports anything but white space at or after i.
func atEnd(b []byte, i int) error {
	if i = skipSpace(b, i); i < len(b) {
		return jsonErrorf(i, "data behind the value")
	}
	return nil
}

func (d *headerDecoder) jsonMember(name, v []byte, c *Command, remark *fieldSpan) (err error) {
	if v[0] == 'n' {
		return nil
	}
	switch string(name) {
	case "code":
		c.Code, err = jsonInt32(v)
	case "version":
		c.Version, err = jsonInt32(v)
	case "opaque":
		c.Opaque, err = jsonInt32(v)
	case "flag":
		c.Flag, err = jsonInt32(v)
	case "language":
		if v[0] == '"' {
			c.Language = ParseLanguage(string(v[1 : len(v)-1]))
		} else if n, err := jsonInt32(v); err == nil {
			c.Language = languageOf(int64(n))
		}
	case "remark":
		remark.mid = len(d.arena)
		err = d.text(v)
		remark.end = len(d.arena)
	case "extFields":
		return fmt.Errorf("extFields is not an object")
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// jsonInt32 reads an integer, which may stand in quotes.
func jsonInt32(v []byte) (int32, error) {
	if len(v) > 2 && v[0] == '"' {
		v = v[1 : len(v)-1]
	}
	if n, ok := parseInt(v, 32); ok {
		return int32(n), nil
	}
	return 0, fmt.Errorf("%.40q is not a 32-bit integer", v)
}

// parseInt reads a decimal integer of 32 or 64 bits with an optional sign, as
// Java's parseInt and parseLong do.
func parseInt[T string | []byte](s T, bits uint) (int64, bool) {
	i, negative := 0, false
	if len(s) > 0 && (s[0] == '-' || s[0] == '+') {
		i, negative = 1, s[0] == '-'
	}
	if i == len(s) {
		return 0, false
	}
	limit := uint64(1) << (bits - 1)
	var n uint64
	for ; i < len(s); i++ {
		c := s[i] - '0'
		if c > 9 || n > (1<<63)/10 {
			return 0, false
		}
		n = n*10 + uint64(c)
	}
	if negative {
		return -int64(n), n <= limit
	}
	return int64(n), n < limit
}

// jsonFields reads the object of ext fields at i and returns the offset behind.
func (d *headerDecoder) jsonFields(b []byte, i int) (int, error) {
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1, nil
	}
	for {
		if i >= len(b) || b[i] != '"' {
			return 0, jsonErrorf(i, "no name of an ext field")
		}
		s := fieldSpan{start: len(d.arena)}
		var end int
		var err error
		if i+2 < len(b) && b[i+2] == '"' && isPlain(b[i+1]) {
			// Messages are sent with names of one letter.
			d.arena, end = append(d.arena, b[i+1]), i+3
		} else if end, err = d.quoted(b, i); err != nil {
			return 0, err
		}
		s.mid = len(d.arena)
		if i = skipSpace(b, end); i >= len(b) || b[i] != ':' {
			return 0, jsonErrorf(i, "no colon behind a name")
		}
		i = skipSpace(b, i+1)
		if i < len(b) && b[i] == '"' {
			end, err = d.quoted(b, i)
		} else if end, err = valueEnd(b, i, 2); err == nil {
			// Numbers and booleans, as the C++ and the Node client send
			// them, count as their text; null is absent.
			d.arena = append(d.arena, b[i:end]...)
		}
		if err != nil {
			return 0, err
		}
		s.end = len(d.arena)
		if b[i] != 'n' {
			if err := d.add(s); err != nil {
				return 0, err
			}
		}
		more, next, err := separator(b, end, '}')
		if err != nil || !more {
			return next, err
		}
		i = next
	}
}

// text appends the text of the value v to the arena: of a string what it
// stands for, of anything else its JSON.
func (d *headerDecoder) text(v []byte) (err error) {
	if v[0] != '"' {
		d.arena = append(d.arena, v...)
		return nil
	}
	d.arena, err = unquote(d.arena, v)
	return err
}

// quoted appends what the string at b[i] stands for and returns the offset
// behind it.
func (d *headerDecoder) quoted(b []byte, i int) (end int, err error) {
	d.arena, end, err = unquoteAt(d.arena, b, i)
	return end, err
}

// appendJSONHeader appends the JSON header of c, members in upstream's order.
// Upstream names the encoding in each header, and no reader looks at it; ours
// name it in requests only.
func appendJSONHeader(dst []byte, c *Command) []byte {
	dst = append(dst, `{"code":`...)
	dst = strconv.AppendInt(dst, int64(c.Code), 10)
	if c.typed != nil {
		dst = append(dst, `,"extFields":{`...)
		dst = appendTyped(dst, c.typed)
		dst = append(dst, '}')
	} else if c.Ext != nil {
		dst = append(dst, `,"extFields":{`...)
		for i := range c.Ext {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = appendQuoted(dst, c.Ext[i].Name)
			dst = append(dst, ':')
			dst = appendQuoted(dst, c.Ext[i].Value)
		}
		dst = append(dst, '}')
	}
	dst = append(dst, `,"flag":`...)
	dst = strconv.AppendInt(dst, int64(c.Flag), 10)
	dst = append(dst, `,"language":"`...)
	dst = append(dst, c.Language.String()...)
	dst = append(dst, `","opaque":`...)
	dst = strconv.AppendInt(dst, int64(c.Opaque), 10)
	if c.Remark != "" {
		dst = append(dst, `,"remark":`...)
		dst = appendQuoted(dst, c.Remark)
	}
	if !c.IsResponse() {
		dst = append(dst, `,"serializeTypeCurrentRPC":"JSON"`...)
	}
	dst = append(dst, `,"version":`...)
	dst = strconv.AppendInt(dst, int64(c.Version), 10)
	return append(dst, '}')
}
