package commitlog

import (
	"errors"
	"fmt"
	"sync"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/message"
)

// FileInfo names a file of the log.
type FileInfo struct {
	Path       string
	Start, End message.PhysicalOffset // what it holds or will hold
}

func infoOf(f *mappedfile.File) FileInfo {
	return FileInfo{f.Path(), message.PhysicalOffset(f.Start()), message.PhysicalOffset(f.End())}
}

// Files returns the files of the log, oldest first.
func (l *Log) Files() []FileInfo {
	files := l.files.Files()
	infos := make([]FileInfo, len(files))
	for i, f := range files {
		infos[i] = infoOf(f)
	}
	return infos
}

// timeCache remembers the store time of the first record of files. It never
// changes, and finding it means opening the file.
type timeCache struct {
	sync.Mutex
	first map[int64]int64 // by start of the file
}

func (c *timeCache) get(start int64) (int64, bool) {
	c.Lock()
	defer c.Unlock()
	t, ok := c.first[start]
	return t, ok
}

func (c *timeCache) put(start, t int64) {
	c.Lock()
	defer c.Unlock()
	if c.first == nil {
		c.first = make(map[int64]int64)
	}
	c.first[start] = t
}

func (c *timeCache) forget(start int64) {
	c.Lock()
	defer c.Unlock()
	delete(c.first, start)
}

// firstRecord returns the header of the record that a file begins with; Kind
// says when there is none. The file is opened for it and closed again.
func (l *Log) firstRecord(f *mappedfile.File, check message.CheckOptions) (message.Header, error) {
	h, err := openHandle(l.opts.FS, f.Path())
	if err != nil {
		return message.Header{}, err
	}
	defer h.Close()
	w := newWalker(check, mappedfile.PageSize)
	w.reset(h, f.Path(), f.Start(), f.Size(), 0)
	found, err := w.next()
	switch {
	case err != nil:
		return message.Header{}, err
	case found == stepBlank:
		return message.Header{Kind: message.KindBlank}, nil
	case found == stepZero:
		return message.Header{Kind: message.KindEnd}, nil
	}
	return w.view.Header, nil
}

// StoreTimeOfFile returns the store time of the first record of the file that
// begins at start, 0 when the file begins with a blank record or nothing was
// written to it. When its first record is damaged the error is a
// *base.CorruptError, without such a file it wraps base.ErrNotFound.
func (l *Log) StoreTimeOfFile(start message.PhysicalOffset) (int64, error) {
	f := l.files.Find(int64(start))
	if f == nil || f.Start() != int64(start) {
		return 0, l.missing(start)
	}
	if t, ok := l.times.get(f.Start()); ok {
		return t, nil
	}
	if f.Readable() == 0 { // nothing yet, or an append is at work on it
		return 0, nil
	}
	h, err := l.firstRecord(f, message.CheckOptions{})
	if err != nil {
		return 0, l.gone(f, err)
	}
	if h.Kind != message.KindEnd { // that may still change
		l.times.put(f.Start(), h.StoreTimestamp)
	}
	return h.StoreTimestamp, nil
}

// NewestStoreTime returns a time, in ms, that no record in the file beginning at
// start is newer than: the store time of the first record behind the file, or
// of the last record of the log. Store times do not fall, so it is exact to
// the distance between two records. 0 means that it is not known.
func (l *Log) NewestStoreTime(start message.PhysicalOffset) (int64, error) {
	files := l.files.Files()
	i := 0
	for i < len(files) && files[i].Start() != int64(start) {
		i++
	}
	if i == len(files) {
		return 0, l.missing(start)
	}
	for _, f := range files[i+1:] {
		t, err := l.StoreTimeOfFile(message.PhysicalOffset(f.Start()))
		switch {
		case errors.Is(err, base.ErrCorrupt):
			continue // the next one knows as well
		case err != nil:
			return 0, err
		case t > 0:
			return t, nil
		}
	}
	return l.LastStoreTime(), nil
}

// gone makes base.ErrNotFound of an error that came because f was removed.
func (l *Log) gone(f *mappedfile.File, err error) error {
	if !errors.Is(err, base.ErrCorrupt) && l.files.Find(f.Start()) != f {
		return fmt.Errorf("%w: %w", l.missing(message.PhysicalOffset(f.Start())), err)
	}
	return err
}

// StartFileByTime returns the start of the newest file whose first record is
// valid and was stored at or before ts, a time in ms other than 0. ok is false
// when there is none: reading has to begin at Min, which is returned (RocketMQ:
// CommitLog.isMappedFileMatchedRecover). A file that begins with a blank, or
// with damage, does not count.
func (l *Log) StartFileByTime(ts int64, check message.CheckOptions) (start message.PhysicalOffset, ok bool, err error) {
	return l.startFile(check, func(h *message.Header) bool { return h.StoreTimestamp <= ts })
}

// StartFileByOffset is StartFileByTime for the position of the first record,
// which has to be at or before phy.
func (l *Log) StartFileByOffset(phy message.PhysicalOffset, check message.CheckOptions) (start message.PhysicalOffset, ok bool, err error) {
	return l.startFile(check, func(h *message.Header) bool { return h.PhysicalOffset <= phy })
}

// startFile walks backwards, as upstream does: the times of a log that others
// wrote need not be in order, so the newest match is not to be found by
// halving.
func (l *Log) startFile(check message.CheckOptions, match func(h *message.Header) bool) (message.PhysicalOffset, bool, error) {
	files := l.files.Files()
	for i := len(files) - 1; i >= 0; i-- {
		h, err := l.firstRecord(files[i], check)
		switch {
		case errors.Is(err, base.ErrCorrupt):
			continue
		case err != nil:
			return 0, false, l.gone(files[i], err)
		}
		if h.Kind == message.KindRecord && h.StoreTimestamp != 0 && match(&h) {
			return message.PhysicalOffset(files[i].Start()), true, nil
		}
	}
	return l.Min(), false, nil
}
