package tool

import (
	"bufio"
	"bytes"
	"errors"
	"io"
)

// ErrLineTooLong is the error of a line above the limit; the next call goes on
// behind it.
var ErrLineTooLong = errors.New("the line is longer than the limit")

// Lines reads text line by line in constant memory. One goroutine uses it.
type Lines struct {
	r     *bufio.Reader
	limit int
	buf   []byte
	n     int
	bytes int64
}

// NewLines reads lines of at most limit bytes from r.
func NewLines(r io.Reader, limit int) *Lines {
	return &Lines{r: bufio.NewReaderSize(r, 64<<10), limit: limit}
}

// Next returns the next line that is not blank, without surrounding white
// space and valid until the next call. The last one may lack its end. io.EOF:
// there is none; ErrLineTooLong: there is, but not to be had.
func (l *Lines) Next() ([]byte, error) {
	for {
		line, err := l.next()
		if line = bytes.TrimSpace(line); len(line) > 0 || err != nil {
			return line, err
		}
	}
}

// Number is that of the line that Next returned, from 1.
func (l *Lines) Number() int { return l.n }

// Bytes is how much has been read of the input, in whole lines.
func (l *Lines) Bytes() int64 { return l.bytes }

// Buffered reports whether more of the input has been read than was returned,
// so that the next call may do without waiting for it.
func (l *Lines) Buffered() bool { return l.r.Buffered() > 0 }

func (l *Lines) next() (line []byte, err error) {
	l.n++
	l.buf = l.buf[:0]
	size := int64(0)
	for {
		part, err := l.r.ReadSlice('\n')
		size += int64(len(part))
		if size <= int64(l.limit) {
			l.buf = append(l.buf, part...)
		}
		switch {
		case err == bufio.ErrBufferFull:
			continue
		case err == io.EOF && size > 0:
			err = nil // the next call finds the end again
		}
		l.bytes += size
		if err == nil && size > int64(l.limit) {
			err = ErrLineTooLong
		}
		if err != nil {
			return nil, err
		}
		return l.buf, nil
	}
}
