package check

import (
	"fmt"

	"github.com/gantrymq/gantry/message"
)

// logReader looks at single records of the log, without their bodies. It keeps
// the file open that it read last.
type logReader struct {
	c    *checker
	sink *sink // for read errors
	in   *input
	at   int // index of the open file
	buf  []byte
}

// recordInfo is a record without its body.
type recordInfo struct {
	message.Header
	topic string
	props message.Properties
}

func (l *logReader) close() {
	l.in.close()
	l.in = nil
	if l.sink != nil {
		l.sink.flush()
	}
}

// open makes the file that holds phy the current one.
func (l *logReader) open(phy int64) error {
	i := findSegment(l.c.log.files, phy)
	if i < 0 {
		return fmt.Errorf("no file of the log holds position %d", phy)
	}
	if l.in != nil && l.at == i {
		return nil
	}
	l.in.close()
	if l.sink == nil {
		l.sink = l.c.sink()
	}
	l.in = l.c.open(l.sink, l.c.segmentPath(l.c.log.dirs, l.c.log.files[i]))
	if l.in == nil {
		return fmt.Errorf("the file with position %d cannot be opened", phy)
	}
	l.at = i
	return nil
}

// look reads the record at phy. The error says why there is none; it is no
// finding. CRCs are not checked.
func (l *logReader) look(phy int64) (recordInfo, error) {
	if err := l.open(phy); err != nil {
		return recordInfo{}, err
	}
	const first = 1024
	off := phy - l.c.log.files[l.at].start
	rest := l.in.size - off
	if rest <= 0 {
		return recordInfo{}, fmt.Errorf("position %d is behind the end of its file", phy)
	}
	if l.buf == nil {
		l.buf = make([]byte, first)
	}
	head := l.buf[:min(rest, first)]
	l.in.read(head, off)
	h, err := message.ParseHeader(head)
	if err != nil {
		return recordInfo{}, err
	}
	if h.Kind != message.KindRecord {
		return recordInfo{}, fmt.Errorf("position %d is in unused space", phy)
	}
	if int64(h.PhysicalOffset) != phy {
		return recordInfo{}, fmt.Errorf("no record begins at position %d", phy)
	}
	if int64(h.Size) > rest {
		return recordInfo{}, fmt.Errorf("the record at position %d is longer than its file", phy)
	}
	// The record without its body is a record too, and of bounded size.
	tail := int64(h.Size) - int64(h.BodyOffset) - int64(h.BodyLen)
	if tail > maxRecordTail {
		return recordInfo{}, fmt.Errorf("the record at position %d has %d bytes behind its body", phy, tail)
	}
	rec := make([]byte, int64(h.BodyOffset)+tail)
	copy(rec, head[:h.BodyOffset])
	l.in.read(rec[h.BodyOffset:], off+int64(h.Size)-tail)
	v, err := checkBodyless(rec, h, message.PhysicalOffset(phy))
	if err != nil {
		return recordInfo{}, err
	}
	return recordInfo{Header: h, topic: v.Topic(), props: v.Props()}, nil
}
