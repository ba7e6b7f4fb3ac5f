package tool

import (
	"encoding/base64"
	"strconv"
	"unicode/utf8"

	"github.com/gantrymq/gantry/message"
)

// AppendJSON appends a stored message as a JSON object of the form of Message,
// without the end of the line. With raw a compressed body is left as it is; so
// is one that cannot be opened.
func AppendJSON(dst []byte, m *message.Ext, raw bool) []byte {
	number := func(name string, v int64) {
		dst = append(dst, name...)
		dst = strconv.AppendInt(dst, v, 10)
	}
	dst = append(dst, `{"topic":`...)
	dst = AppendString(dst, m.Topic)
	if !utf8.ValidString(m.Topic) {
		dst = append(dst, `,"topicBase64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, []byte(m.Topic))
		dst = append(dst, '"')
	}
	number(`,"queueId":`, int64(m.QueueID))
	number(`,"queueOffset":`, int64(m.QueueOffset))
	number(`,"commitLogOffset":`, int64(m.PhysicalOffset))
	number(`,"storeSize":`, int64(m.StoreSize))
	dst = append(dst, `,"magic":"`...)
	dst = appendHex32(dst, m.Magic)
	number(`","sysFlag":`, int64(m.SysFlag))
	number(`,"flag":`, int64(m.Flag))
	number(`,"bodyCRC":`, int64(m.BodyCRC))
	number(`,"bornTimestamp":`, m.BornTimestamp)
	dst = append(dst, `,"bornHost":"`...)
	dst = m.BornHost.AppendTo(dst)
	number(`","storeTimestamp":`, m.StoreTimestamp)
	dst = append(dst, `,"storeHost":"`...)
	dst = m.StoreHost.AppendTo(dst)
	number(`","reconsumeTimes":`, int64(m.ReconsumeTimes))
	number(`,"preparedTransactionOffset":`, int64(m.PreparedTransactionOffset))
	dst = append(dst, `,"msgId":"`...)
	dst = append(dst, m.MsgID()...)
	dst = append(dst, `","properties":`...)
	dst = appendProperties(dst, m.Properties)
	if !givesBack(m.Properties) {
		dst = append(dst, `,"propertiesBase64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, []byte(m.Properties))
		dst = append(dst, '"')
	}
	b := viewBody(m.Body, m.SysFlag, raw)
	if utf8.Valid(b.body) {
		dst = append(dst, `,"body":`...)
		dst = AppendString(dst, string(b.body))
	} else {
		dst = append(dst, `,"bodyBase64":"`...)
		dst = base64.StdEncoding.AppendEncode(dst, b.body)
		dst = append(dst, '"')
	}
	if b.compression != "" {
		dst = append(dst, `,"bodyCompression":"`...)
		dst = append(dst, b.compression...)
		dst = append(dst, '"')
	}
	if b.raw {
		dst = append(dst, `,"bodyRaw":true`...)
	}
	return append(dst, '}')
}

// shownBody is a body as it is shown.
type shownBody struct {
	body        []byte
	compression string // of the stored body; empty: none
	raw         bool   // body is the stored one although it is compressed
}

func viewBody(body []byte, f message.SysFlag, raw bool) (b shownBody) {
	b.body = body
	if c := f.CompressionType(); c != message.CompressionNone {
		b.compression = c.String()
		b.body, b.raw = plainBody(body, f, raw)
	}
	return b
}

func appendHex32(dst []byte, v uint32) []byte {
	const digits = "0123456789abcdef"
	for shift := 28; shift >= 0; shift -= 4 {
		dst = append(dst, digits[v>>shift&0xF])
	}
	return dst
}

// appendProperties appends the pairs that readers see as a JSON object, in
// their order. Of a doubled name it has the pair that counts.
func appendProperties(dst []byte, p message.Properties) []byte {
	var rest map[string]string // where names are doubled
	if doubled(p) {
		rest = p.Map()
	}
	dst = append(dst, '{')
	first := true
	for name, value := range p.All() {
		if rest != nil {
			if v, ok := rest[name]; !ok || v != value {
				continue
			}
			delete(rest, name)
		}
		if !first {
			dst = append(dst, ',')
		}
		first = false
		dst = AppendString(dst, name)
		dst = append(dst, ':')
		dst = AppendString(dst, value)
	}
	return append(dst, '}')
}

// doubled reports whether a name is there twice.
func doubled(p message.Properties) bool {
	var names [16]string
	var more map[string]bool
	n := 0
	for name := range p.All() {
		if more != nil {
			if more[name] {
				return true
			}
			more[name] = true
			continue
		}
		for _, o := range names[:n] {
			if o == name {
				return true
			}
		}
		if n == len(names) {
			more = make(map[string]bool, 2*n)
			for _, o := range names {
				more[o] = true
			}
			more[name] = true
			continue
		}
		names[n] = name
		n++
	}
	return false
}

// givesBack reports whether the JSON object of p's pairs, read again, gives
// p's bytes, but for the separator behind the last pair, which some releases
// leave out.
func givesBack(p message.Properties) bool {
	if !utf8.ValidString(string(p)) || doubled(p) {
		return false
	}
	rest := string(p)
	for name, value := range p.All() {
		// Nothing but the pair and its separator.
		n := len(name) + 1 + len(value)
		if len(rest) < n || rest[:len(name)] != name || rest[len(name)] != 0x01 || rest[len(name)+1:n] != value {
			return false
		}
		if rest = rest[n:]; rest != "" {
			rest = rest[1:] // 0x02, or the pair would be longer
		}
	}
	return rest == ""
}

// AppendString appends a JSON string as encoding/json writes it, without
// escaping for HTML.
func AppendString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	from := 0
	for i := 0; i < len(s); {
		if i = plainTo(s, i); i == len(s) {
			break
		}
		c := s[i]
		if c < utf8.RuneSelf {
			if c >= ' ' && c != '"' && c != '\\' {
				i++
				continue
			}
			dst = append(dst, s[from:i]...)
			switch c {
			case '"', '\\':
				dst = append(dst, '\\', c)
			case '\n', '\r', '\t', '\b', '\f':
				dst = append(dst, '\\', "btn\vfr"[c-'\b'])
			default:
				dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&0xF])
			}
			i++
			from = i
			continue
		}
		r, n := utf8.DecodeRuneInString(s[i:])
		escape := ""
		switch {
		case r == utf8.RuneError && n == 1:
			escape = `\ufffd`
		case r == '\u2028':
			escape = `\u2028`
		case r == '\u2029':
			escape = `\u2029`
		}
		if escape != "" {
			dst = append(append(dst, s[from:i]...), escape...)
			from = i + n
		}
		i += n
	}
	return append(append(dst, s[from:]...), '"')
}

// plainTo returns where, from i on, the first byte is that cannot stand in a JSON
// string as it is, or belongs to a longer character; len(s) without one. It
// looks at eight bytes at a time.
func plainTo(s string, i int) int {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	for ; i+8 <= len(s); i += 8 {
		x := uint64(s[i]) | uint64(s[i+1])<<8 | uint64(s[i+2])<<16 | uint64(s[i+3])<<24 |
			uint64(s[i+4])<<32 | uint64(s[i+5])<<40 | uint64(s[i+6])<<48 | uint64(s[i+7])<<56
		quote, slash := x^(ones*'"'), x^(ones*'\\')
		// The top bit of a byte is set where it was, where the byte is below a
		// blank, or where it is one of the two; then also in some above it.
		if (x|(x-ones*' ')|(quote-ones)|(slash-ones))&tops != 0 {
			break
		}
	}
	for i < len(s) && s[i] >= ' ' && s[i] < utf8.RuneSelf && s[i] != '"' && s[i] != '\\' {
		i++
	}
	return i
}
