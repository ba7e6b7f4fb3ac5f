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
	TopicBase64               string `json:"topicBase64,omitempty"` // when it is no UTF-8
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

// FromJSON converts back. Of the offsets, ids and sizes only the place that the
// message had in its log is part of the result. A body that was inflated is
// compressed again.
func FromJSON(data []byte) (m message.Ext, err error) {
	if !utf8.Valid(data) {
		return m, errNoUTF8 // json.Unmarshal would put other characters there
	}
	var j Message
	if err := json.Unmarshal(data, &j); err != nil {
		if bad, ok := errors.AsType[*json.UnmarshalTypeError](err); ok && bad.Field != "" {
			err = fmt.Errorf("%s: a %s does not fit", bad.Field, bad.Value)
		}
		return m, err
	}
	return j.message()
}

// errNoUTF8: what is no text stands in Base64.
var errNoUTF8 = errors.New("the record is no UTF-8 text: convert the file, or use the Base64 fields")

// message checks the fields and makes them a message.
func (j *Message) message() (m message.Ext, err error) {
	if j.TopicBase64 != "" {
		topic, err := base64.StdEncoding.DecodeString(j.TopicBase64)
		if err != nil {
			return m, fmt.Errorf("topicBase64: %w", err)
		}
		j.Topic = string(topic)
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
