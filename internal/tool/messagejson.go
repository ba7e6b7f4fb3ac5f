package tool

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"unicode/utf8"

	"github.com/gantrymq/gantry/message"
)

// Message is a stored message in the JSON of the commands. Field names are
// upstream's; times are ms.
type Message struct {
	Topic                     string `json:"topic"`
	QueueID                   int32  `json:"queueId"`
	QueueOffset               int64  `json:"queueOffset"`
	CommitLogOffset           int64  `json:"commitLogOffset"`
	StoreSize                 int32  `json:"storeSize"`
	Magic                     string `json:"magic"` // hexadecimal
	SysFlag                   int32  `json:"sysFlag"`
	Flag                      int32  `json:"flag"`
	BodyCRC                   uint32 `json:"bodyCRC"` // of the stored body
	BornTimestamp             int64  `json:"bornTimestamp"`
	BornHost                  string `json:"bornHost"`
	StoreTimestamp            int64  `json:"storeTimestamp"`
	StoreHost                 string `json:"storeHost"`
	ReconsumeTimes            int32  `json:"reconsumeTimes"`
	PreparedTransactionOffset int64  `json:"preparedTransactionOffset"`
	MsgID                     string `json:"msgId"` // the offset id
	Properties                pairs  `json:"properties"`
	// PropertiesBase64 holds the property bytes when Properties cannot give
	// them back exactly: pairs that vanish on reading, doubled names, bytes
	// that are no UTF-8.
	PropertiesBase64 string  `json:"propertiesBase64,omitempty"`
	Body             *string `json:"body,omitempty"` // when it is UTF-8
	BodyBase64       *string `json:"bodyBase64,omitempty"`
	// BodyCompression names how the stored body is compressed. The body above
	// is the inflated one, unless BodyRaw says that it is the stored one.
	BodyCompression string `json:"bodyCompression,omitempty"`
	BodyRaw         bool   `json:"bodyRaw,omitempty"`
}

// ToJSON converts a stored message. With raw a compressed body is left as it
// is; so is one that cannot be inflated.
func ToJSON(m message.Ext, raw bool) Message {
	out := Message{
		Topic: m.Topic, QueueID: m.QueueID, QueueOffset: int64(m.QueueOffset),
		CommitLogOffset: int64(m.PhysicalOffset), StoreSize: m.StoreSize,
		Magic: fmt.Sprintf("%08x", m.Magic), SysFlag: int32(m.SysFlag), Flag: m.Flag, BodyCRC: m.BodyCRC,
		BornTimestamp: m.BornTimestamp, BornHost: m.BornHost.String(),
		StoreTimestamp: m.StoreTimestamp, StoreHost: m.StoreHost.String(),
		ReconsumeTimes: m.ReconsumeTimes, PreparedTransactionOffset: int64(m.PreparedTransactionOffset),
		MsgID:      m.MsgID(),
		Properties: pairs(m.Properties),
	}
	if !givesBack(m.Properties) {
		out.PropertiesBase64 = base64.StdEncoding.EncodeToString([]byte(m.Properties))
	}
	body := m.Body
	if c := m.SysFlag.CompressionType(); c != message.CompressionNone {
		out.BodyCompression = c.String()
		body, out.BodyRaw = plainBody(m, raw)
	}
	if utf8.Valid(body) {
		s := string(body)
		out.Body = &s
	} else {
		s := base64.StdEncoding.EncodeToString(body)
		out.BodyBase64 = &s
	}
	return out
}

// FromJSON converts back. Of the offsets, ids and sizes only the place that the
// message had in its log is part of the result. A body that was inflated is
// compressed again.
func FromJSON(data []byte) (m message.Ext, err error) {
	var j Message
	if err := json.Unmarshal(data, &j); err != nil {
		if bad, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && bad.Field != "" {
			err = fmt.Errorf("%s: a %s does not fit", bad.Field, bad.Value)
		}
		return m, err
	}
	if j.Topic == "" {
		return m, errors.New("topic is missing")
	}
	m.Message = message.Message{
		Topic: j.Topic, QueueID: j.QueueID, Flag: j.Flag, SysFlag: message.SysFlag(j.SysFlag),
		BornTimestamp: j.BornTimestamp, ReconsumeTimes: j.ReconsumeTimes,
		PreparedTransactionOffset: message.PhysicalOffset(j.PreparedTransactionOffset),
		Properties:                message.Properties(j.Properties),
	}
	m.StoreTimestamp, m.PhysicalOffset = j.StoreTimestamp, message.PhysicalOffset(j.CommitLogOffset)
	for _, h := range []struct {
		name, text string
		to         *netip.AddrPort
	}{{"bornHost", j.BornHost, &m.BornHost}, {"storeHost", j.StoreHost, &m.StoreHost}} {
		if h.text == "" {
			continue
		}
		if *h.to, err = netip.ParseAddrPort(h.text); err != nil {
			return m, fmt.Errorf("%s: %w", h.name, err)
		}
	}
	if j.PropertiesBase64 != "" {
		raw, err := base64.StdEncoding.DecodeString(j.PropertiesBase64)
		if err != nil {
			return m, fmt.Errorf("propertiesBase64: %w", err)
		}
		m.Properties = message.Properties(raw)
	}
	m.Body, err = j.body()
	return m, err
}

// body returns the body as it is to be stored.
func (j *Message) body() (body []byte, err error) {
	switch {
	case j.Body != nil && j.BodyBase64 != nil:
		return nil, errors.New("both body and bodyBase64 are given")
	case j.BodyBase64 != nil:
		if body, err = base64.StdEncoding.DecodeString(*j.BodyBase64); err != nil {
			return nil, fmt.Errorf("bodyBase64: %w", err)
		}
	case j.Body != nil:
		body = []byte(*j.Body)
	default:
		return nil, errors.New("neither body nor bodyBase64 is given")
	}
	if j.BodyCompression == "" || j.BodyRaw {
		return body, nil
	}
	c := message.SysFlag(j.SysFlag).CompressionType()
	if c.String() != j.BodyCompression {
		return nil, fmt.Errorf("bodyCompression is %q, the sysFlag says %q", j.BodyCompression, c)
	}
	return deflate(body, c)
}

// pairs are message.Properties that become a JSON object whose pairs keep
// their order. Of a doubled name the object has the pair that counts.
type pairs message.Properties

// MarshalJSON implements json.Marshaler.
func (p pairs) MarshalJSON() ([]byte, error) {
	rest := message.Properties(p).Map()
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	b.WriteByte('{')
	text := func(s string, end byte) {
		_ = enc.Encode(s) // a string, into memory
		b.Truncate(b.Len() - len("\n"))
		b.WriteByte(end)
	}
	for name, value := range message.Properties(p).All() {
		if v, ok := rest[name]; ok && v == value {
			delete(rest, name)
			text(name, ':')
			text(value, ',')
		}
	}
	if b.Len() > 1 {
		b.Truncate(b.Len() - len(","))
	}
	b.WriteByte('}')
	return b.Bytes(), nil
}

// UnmarshalJSON implements json.Unmarshaler. A pair that no reader of a
// message would find is an error.
func (p *pairs) UnmarshalJSON(data []byte) error {
	var out message.Properties
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		if t == nil { // null
			return err
		}
		return errors.New("properties are no object")
	}
	for dec.More() {
		name, err := dec.Token()
		if err != nil {
			return err
		}
		value, err := dec.Token()
		if err != nil {
			return err
		}
		v, ok := value.(string)
		if !ok {
			return fmt.Errorf("property %q is no string", name)
		}
		if err := message.CheckProperty(name.(string), v); err != nil {
			return err
		}
		if out = out.Set(name.(string), v); len(out) > message.MaxPropertiesSize {
			return fmt.Errorf("properties of more than %d bytes", message.MaxPropertiesSize)
		}
	}
	*p = pairs(out)
	_, err := dec.Token()
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// givesBack reports whether the JSON object of p's pairs, read again, gives
// p's bytes, but for the separator behind the last pair, which some releases
// leave out.
func givesBack(p message.Properties) bool {
	if !utf8.ValidString(string(p)) {
		return false
	}
	rest := string(p)
	seen := make(map[string]bool)
	for name, value := range p.All() {
		pair := name + "\x01" + value
		if len(rest) < len(pair) || rest[:len(pair)] != pair || seen[name] {
			return false
		}
		seen[name] = true
		if rest = rest[len(pair):]; rest != "" {
			rest = rest[1:] // 0x02, or the pair would be longer
		}
	}
	return rest == ""
}
