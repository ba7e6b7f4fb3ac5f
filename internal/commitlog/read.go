package commitlog

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/message"
)

// find returns the file that holds [phy, phy+n), which lies in the readable
// part of the log. A position in front of the log is never taken for another
// one (store-behaviour R3).
func (l *Log) find(phy message.PhysicalOffset, n int) (*mappedfile.File, error) {
	if phy < l.Min() || int64(n) > int64(l.Confirmed()-phy) {
		return nil, l.missing(phy)
	}
	f := l.files.Find(int64(phy))
	if f == nil {
		return nil, l.missing(phy)
	}
	return f, nil
}

// readAt reads from one file; a file that was removed meanwhile counts as not
// found.
func (l *Log) readAt(f *mappedfile.File, p []byte, phy message.PhysicalOffset) error {
	n, err := f.ReadAt(p, int64(phy)-f.Start())
	switch {
	case n == len(p):
		return nil
	case errors.Is(err, base.ErrClosed):
		return l.missing(phy)
	case err == nil || err == io.EOF:
		return fmt.Errorf("read %d bytes at %d of the commit log, got %d: %w", len(p), phy, n, io.ErrUnexpectedEOF)
	}
	return fmt.Errorf("read commit log: %w", err)
}

// Read fills dst with the bytes of the log from phy on, across files, whatever
// they are. It returns an error that wraps base.ErrNotFound when not all of
// them are in [Min, Confirmed).
func (l *Log) Read(phy message.PhysicalOffset, dst []byte) error {
	for len(dst) > 0 {
		f, err := l.find(phy, len(dst))
		if err != nil {
			return err
		}
		part := dst[:min(int64(len(dst)), f.End()-int64(phy))]
		if err := l.readAt(f, part, phy); err != nil {
			return err
		}
		dst = dst[len(part):]
		phy += message.PhysicalOffset(len(part))
	}
	return nil
}

// ReadRecord reads the record that begins at phy into buf, or into a larger
// buffer when it does not fit; that buffer is returned for the next call. The
// view is of the buffer and lives as long as that is not changed.
//
// phy may come from anywhere: the error wraps base.ErrNotFound when it is
// outside [Min, Confirmed) and is a *base.CorruptError when no valid record
// begins there. Nothing is allocated by a size that is merely claimed.
func (l *Log) ReadRecord(phy message.PhysicalOffset, buf []byte, check message.CheckOptions) (message.View, []byte, error) {
	f, err := l.find(phy, message.MinRecordSize)
	if err != nil {
		return message.View{}, buf, err
	}
	pos := int64(phy) - f.Start()
	if f.Size()-pos < message.MinRecordSize {
		return message.View{}, buf, base.Corruptf(f.Path(), pos, "no record: %d bytes left in the file", f.Size()-pos)
	}
	// The size first: copying a guess would cost more than a second look.
	buf = slices.Grow(buf[:0], message.MinRecordSize)[:message.BlankSize]
	if err := l.readAt(f, buf, phy); err != nil {
		return message.View{}, buf, err
	}
	size, magic := splitHeader(buf)
	most := min(f.Size()-pos, int64(l.Confirmed()-phy))
	switch {
	case magic != message.MagicV1 && magic != message.MagicV2:
		return message.View{}, buf, base.Corruptf(f.Path(), pos, "no record: magic %#08x, size %d", magic, size)
	case size < message.MinRecordSize || size > most:
		return message.View{}, buf, base.Corruptf(f.Path(), pos, "record size %d is not within %d and %d", size, message.MinRecordSize, most)
	case size > largeRecord && size > int64(cap(buf)):
		if err := precheckLarge(f, pos, size); err != nil {
			return message.View{}, buf, l.readError(f, pos, err)
		}
	}
	buf = slices.Grow(buf[:0], int(size))[:size]
	if err := l.readAt(f, buf, phy); err != nil {
		return message.View{}, buf, err
	}
	view, err := message.Check(buf, phy, check)
	if err != nil {
		return message.View{}, buf, l.readError(f, pos, err)
	}
	return view, buf, nil
}

// ReadHeader reads the fixed part of the record, or of the blank record, that
// begins at phy: what a search by time needs. Kind says which it is. Errors are
// those of ReadRecord. Size, magic and position have been checked, the rest has
// not.
func (l *Log) ReadHeader(phy message.PhysicalOffset) (message.Header, error) {
	f, err := l.find(phy, message.BlankSize)
	if err != nil {
		return message.Header{}, err
	}
	var b [message.MaxHeaderSize]byte
	pos := int64(phy) - f.Start()
	rest := f.Size() - pos
	most := min(rest, int64(l.Confirmed()-phy))
	head := b[:min(message.MaxHeaderSize, most)]
	if err := l.readAt(f, head, phy); err != nil {
		return message.Header{}, err
	}
	h, err := message.ParseHeader(head)
	switch {
	case err != nil:
		return message.Header{}, corruptAt(f.Path(), pos, err)
	case h.Kind == message.KindBlank && int64(h.Size) == rest:
		return h, nil
	case h.Kind != message.KindRecord:
		return message.Header{}, base.Corruptf(f.Path(), pos, "no record: magic %#08x, size %d", h.Magic, h.Size)
	case int64(h.Size) > most:
		return message.Header{}, base.Corruptf(f.Path(), pos, "record size %d is not within %d and %d", h.Size, message.MinRecordSize, most)
	case h.PhysicalOffset != phy:
		return message.Header{}, base.Corruptf(f.Path(), pos, "physicalOffset %d differs from the position, %d", h.PhysicalOffset, phy)
	}
	return h, nil
}

// readError makes of an error of reading or checking what callers expect.
func (l *Log) readError(f *mappedfile.File, pos int64, err error) error {
	if errors.Is(err, base.ErrClosed) {
		return l.missing(message.PhysicalOffset(f.Start() + pos))
	}
	return corruptAt(f.Path(), pos, err)
}
