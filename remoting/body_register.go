package remoting

import (
	"bufio"
	"bytes"
	"compress/zlib"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"strconv"
	"strings"
)

// RegisterBroker is the body of 103 REGISTER_BROKER.
type RegisterBroker struct {
	FilterServers []string
	Topics        TopicConfigTable
}

func (b *RegisterBroker) members(o *object) {
	o.strs("filterServerList", &b.FilterServers)
	o.obj("topicConfigSerializeWrapper", &b.Topics)
}

// BodyCRC is the checksum of a registration body in its header.
func BodyCRC(body []byte) int32 { return int32(crc32.ChecksumIEEE(body) & 0x7FFFFFFF) }

// The compressed body is a zlib stream. Inflated, integers big-endian:
//
//	i32 length, data version as JSON
//	i32 number of topics
//	    i32 length, "name readQueues writeQueues perm filterType {attributes}"
//	i32 length, filter servers as JSON
//	i32 number of queue mappings, from brokers of version 5.0.0 on
//	    i32 length, a mapping as JSON
//
// 4.9 leaves the attributes out.

const (
	maxRegisterPart  = 1 << 20 // bytes of one part
	topicLineMembers = 6
)

// EncodeCompressed returns the compressed form of the body. The error is a topic
// that this form cannot carry.
func (b *RegisterBroker) EncodeCompressed() ([]byte, error) {
	var out bytes.Buffer
	z := zlib.NewWriter(&out)
	w := partWriter{w: bufio.NewWriter(z)}
	w.part(EncodeBody(&b.Topics.DataVersion))
	w.count(len(b.Topics.Topics))
	for _, name := range sortedKeys(b.Topics.Topics) {
		t := b.Topics.Topics[name]
		if t.TopicName == "" || strings.Contains(t.TopicName+t.TopicFilterType, " ") {
			return nil, fmt.Errorf("topic %.100q with filter type %.40q cannot be written", t.TopicName, t.TopicFilterType)
		}
		w.part(t.appendLine(nil))
	}
	servers := []byte{'['}
	for i, s := range b.FilterServers {
		if i > 0 {
			servers = append(servers, ',')
		}
		servers = appendQuoted(servers, s)
	}
	w.part(append(servers, ']'))
	mappings, err := mappingParts(b.Topics.MappingInfos)
	if err != nil {
		return nil, err
	}
	w.count(len(mappings))
	for _, m := range mappings {
		w.part(m)
	}
	if err := w.w.Flush(); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

func mappingParts(infos RawJSON) (parts [][]byte, err error) {
	if len(infos) == 0 {
		return nil, nil
	}
	_, err = eachMember(infos, 0, 0, func(_, value []byte) error {
		parts = append(parts, value)
		return nil
	})
	return parts, err
}

// partWriter writes to a buffer before a compressor in memory; errors show at
// its Flush.
type partWriter struct{ w *bufio.Writer }

func (w partWriter) count(n int) {
	w.w.Write(binary.BigEndian.AppendUint32(nil, uint32(n))) //nolint:errcheck // sticky
}

func (w partWriter) part(b []byte) {
	w.count(len(b))
	w.w.Write(b) //nolint:errcheck // sticky
}

// appendLine appends the topic as it stands in a compressed registration.
func (b *TopicConfig) appendLine(dst []byte) []byte {
	dst = append(dst, b.TopicName...)
	for _, n := range []int32{b.ReadQueueNums, b.WriteQueueNums, b.Perm} {
		dst = append(dst, ' ')
		dst = strconv.AppendInt(dst, int64(n), 10)
	}
	dst = append(dst, ' ')
	dst = append(dst, b.TopicFilterType...)
	if b.Attributes != nil {
		dst = append(dst, ' ')
		o := object{out: &dst}
		dst = append(dst, '{')
		for i, k := range sortedKeys(b.Attributes) {
			o.comma(i)
			o.quoteText(k)
			dst = append(dst, ':')
			o.quoteText(b.Attributes[k])
		}
		dst = append(dst, '}')
	}
	return dst
}

func parseTopicLine(line []byte) (t TopicConfig, err error) {
	p := strings.SplitN(string(repair(nil, line)), " ", topicLineMembers)
	if len(p) < topicLineMembers-1 || p[0] == "" {
		return t, fmt.Errorf("topic %.100q has %d parts", line, len(p))
	}
	t.TopicName, t.TopicFilterType = p[0], p[4]
	for i, n := range []*int32{&t.ReadQueueNums, &t.WriteQueueNums, &t.Perm} {
		v, ok := parseInt(p[1+i], 32)
		if !ok {
			return t, fmt.Errorf("topic %.100q: %.40q is not a 32-bit integer", p[0], p[1+i])
		}
		*n = int32(v)
	}
	if len(p) == topicLineMembers {
		var a attributes
		if err := DecodeBody([]byte(`{"attributes":`+p[5]+`}`), &a); err != nil {
			return t, fmt.Errorf("topic %.100q: %w", p[0], err)
		}
		t.Attributes = a.values
	}
	return t, nil
}

type attributes struct{ values map[string]string }

func (a *attributes) members(o *object) { o.optStrMap("attributes", &a.values) }

// DecodeRegisterBroker reads the body of a registration by a broker of version.
// compressed is what the header says.
func DecodeRegisterBroker(data []byte, compressed bool, version int32) (*RegisterBroker, error) {
	var b RegisterBroker
	if !compressed {
		return &b, DecodeBody(data, &b)
	}
	inflating <- struct{}{}
	defer func() { <-inflating }()
	z, err := zlib.NewReader(bytes.NewReader(data))
	if err != nil {
		return nil, fmt.Errorf("compressed registration: %w", err)
	}
	r := partReader{r: bufio.NewReader(io.LimitReader(z, MaxInflatedBody+1)), left: MaxInflatedBody, parts: MaxInflatedTopics}
	r.registration(&b, version >= Version5_0_0)
	if r.err == nil { // the checksum is at the end
		_, err := io.Copy(io.Discard, r.r)
		r.fail(err)
	}
	if r.err != nil {
		return nil, fmt.Errorf("compressed registration: %w", r.err)
	}
	return &b, nil
}

// inflating bounds how many registrations are inflated at a time: each can
// become a thousand times larger, and they are rare.
var inflating = make(chan struct{}, 2)

type partReader struct {
	r     io.Reader
	left  int // bytes
	parts int
	err   error
}

func (r *partReader) fail(err error) {
	if r.err == nil && err != nil {
		r.err = err
	}
}

func (r *partReader) read(n int) []byte {
	if r.err != nil {
		return nil
	}
	if n > r.left {
		r.fail(fmt.Errorf("more than %d bytes", MaxInflatedBody))
		return nil
	}
	r.left -= n
	b := make([]byte, n)
	_, err := io.ReadFull(r.r, b)
	if errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	r.fail(err)
	return b
}

func (r *partReader) count() int {
	b := r.read(4)
	if r.err != nil {
		return 0
	}
	n := int32(binary.BigEndian.Uint32(b))
	if n < 0 || int(n) > r.parts {
		r.fail(fmt.Errorf("count %d", n))
		return 0
	}
	r.parts -= int(n)
	return int(n)
}

func (r *partReader) part() []byte {
	b := r.read(4)
	if r.err != nil {
		return nil
	}
	n := int32(binary.BigEndian.Uint32(b))
	if n < 0 || n > maxRegisterPart {
		r.fail(fmt.Errorf("part of %d bytes", n))
		return nil
	}
	return r.read(int(n))
}

func (r *partReader) registration(b *RegisterBroker, withMappings bool) {
	version := r.part()
	if r.err == nil {
		r.fail(DecodeBody(version, &b.Topics.DataVersion))
	}
	b.Topics.Topics = make(map[string]TopicConfig)
	for range r.count() {
		line := r.part()
		if r.err != nil {
			return
		}
		t, err := parseTopicLine(line)
		r.fail(err)
		b.Topics.Topics[t.TopicName] = t
	}
	servers := r.part()
	if r.err != nil {
		return
	}
	var list serverList
	r.fail(DecodeBody([]byte(`{"servers":`+string(servers)+`}`), &list))
	b.FilterServers = list.servers
	if withMappings {
		r.mappings(b)
	}
}

type serverList struct{ servers []string }

func (l *serverList) members(o *object) { o.strs("servers", &l.servers) }

// mappings gathers the queue mappings into a map by topic, as in the form that
// is not compressed.
func (r *partReader) mappings(b *RegisterBroker) {
	out := []byte{'{'}
	for i := range r.count() {
		part := r.part()
		var m mapping
		if r.err == nil {
			r.fail(DecodeBody(part, &m))
		}
		if r.err != nil {
			return
		}
		if i > 0 {
			out = append(out, ',')
		}
		out = append(appendQuoted(out, m.topic), ':')
		out = append(out, part...)
	}
	b.Topics.MappingInfos = append(out, '}')
}

type mapping struct{ topic string }

func (m *mapping) members(o *object) { o.str("topic", &m.topic) }
