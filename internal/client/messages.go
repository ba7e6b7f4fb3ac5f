package client

import (
	"bytes"
	"compress/zlib"
	"fmt"
	"io"
	"sync"

	"github.com/gantrymq/gantry/message"
)

const (
	// maxPlainBody bounds an inflated body, in bytes: sixteen times the
	// default limit of a message. What is larger stays compressed.
	maxPlainBody = 64 << 20
	// maxPlainTotal bounds the inflated bodies of one answer.
	maxPlainTotal = 256 << 20
	// compressLevel is upstream's default.
	compressLevel = 5
)

// decodeMessages decodes the records that the body of an answer consists of.
// Compressed bodies are inflated, and the sysFlag says so then; those that
// cannot be, or would be too large, stay as they are.
func decodeMessages(body []byte) ([]message.Ext, error) {
	var all []message.Ext
	budget := int64(maxPlainTotal)
	for rest := body; len(rest) > 0; {
		size := int64(message.Size(rest))
		if size < message.MinRecordSize || size > int64(len(rest)) {
			return nil, fmt.Errorf("message at byte %d of %d: size %d", len(body)-len(rest), len(body), size)
		}
		m, err := message.Decode(rest[:size])
		if err != nil {
			return nil, fmt.Errorf("message at byte %d of %d: %w", len(body)-len(rest), len(body), err)
		}
		rest = rest[size:]
		budget -= inflate(&m.Message, budget)
		all = append(all, m)
	}
	return all, nil
}

// inflate replaces a body compressed by zlib by the plain one, and returns its
// size; 0 if it stays as it is.
func inflate(m *message.Message, limit int64) int64 {
	if m.SysFlag.CompressionType() != message.CompressionZlib {
		return 0
	}
	limit = min(limit, maxPlainBody)
	r, err := zlib.NewReader(bytes.NewReader(m.Body))
	if err != nil {
		return 0
	}
	plain, err := io.ReadAll(io.LimitReader(r, limit+1))
	if err != nil || int64(len(plain)) > limit {
		return 0
	}
	m.Body = plain
	m.SysFlag = m.SysFlag.WithCompression(message.CompressionNone)
	return int64(len(plain))
}

// deflaters keeps writers, which are large.
var deflaters = sync.Pool{New: func() any {
	w, err := zlib.NewWriterLevel(io.Discard, compressLevel)
	if err != nil {
		panic(err) // the level is a constant
	}
	return w
}}

// deflate returns a body compressed by zlib.
func deflate(body []byte) ([]byte, error) {
	w := deflaters.Get().(*zlib.Writer)
	defer deflaters.Put(w)
	var b bytes.Buffer
	w.Reset(&b)
	if _, err := w.Write(body); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// unwrapBatch returns the messages that are in an inner batch of 5.x, or m
// itself if it is none or does not hold what it says. Those before the offset
// from were had before.
func unwrapBatch(m message.Ext, from message.QueueOffset) []message.Ext {
	base, num, ok := m.Properties.InnerBatch()
	if !ok || m.SysFlag&(message.InnerBatch|message.NeedUnwrap) != message.InnerBatch|message.NeedUnwrap {
		return []message.Ext{m}
	}
	var all []message.Ext
	i := message.QueueOffset(0)
	for item, err := range message.SplitBatch(m.Body) {
		if err != nil || i >= message.QueueOffset(num) {
			return []message.Ext{m}
		}
		one := m
		one.SysFlag &^= message.InnerBatch | message.NeedUnwrap
		one.Flag, one.Body, one.Properties = item.Flag, item.Body, item.Properties
		one.QueueOffset = base + i
		i++
		if one.QueueOffset >= from {
			all = append(all, one)
		}
	}
	return all
}
