package commitlog

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// TruncateTo cuts the log at end, durably: later files are removed and what
// lies behind end in its file is zero afterwards, so that old records cannot
// come back behind new ones (store-behaviour L3). Where only zeros follow it
// changes nothing on disk. It is for the time before SetEnd, which calls it;
// after an error, or a crash, it can be repeated.
func (l *Log) TruncateTo(end message.PhysicalOffset) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if s := state(l.state.Load()); s != stateOpened {
		return l.stateError(s)
	}
	if first := l.files.First(); first != nil && int64(end) < first.Start() {
		return fmt.Errorf("cut the commit log at %d, in front of its start %d", end, first.Start())
	}
	if err := l.files.TruncateTo(int64(end)); err != nil {
		return fmt.Errorf("cut the commit log: %w", err)
	}
	l.end.Store(l.files.MaxOffset())
	return nil
}

// Renew writes the bytes in [from, end) once more, so that the next flush writes
// them out whatever the system believes. A sync that failed before this process
// began may have left pages that read as they were written, count as clean, and
// are not on the disk: recovery would find them good, and a power cut would
// find them missing (store-behaviour F1). It is for the time before SetEnd,
// which flushes. Files in directories that are only read stay as they are.
func (l *Log) Renew(from, end message.PhysicalOffset) error {
	if s := state(l.state.Load()); s != stateOpened {
		return l.stateError(s)
	}
	var buf []byte
	for _, f := range l.files.Files() {
		if l.readOnly(f) {
			continue
		}
		stop := min(int64(end)-f.Start(), f.Size())
		for off := max(int64(from)-f.Start(), 0); off < stop; {
			if buf == nil {
				buf = make([]byte, min(chunkSize, l.size))
			}
			chunk := buf[:min(int64(len(buf)), stop-off)]
			if err := readFull(f, chunk, off); err != nil {
				return fmt.Errorf("write the commit log from %d again: %w", f.Start()+off, err)
			}
			if _, err := f.WriteAt(chunk, off); err != nil {
				return fmt.Errorf("write the commit log from %d again: %w", f.Start()+off, err)
			}
			off += int64(len(chunk))
		}
	}
	return nil
}

// Quarantined is a copy of bytes from behind the end of a log.
type Quarantined struct {
	Path string
	From message.PhysicalOffset // where its first byte was
	Size int64
}

// Quarantine copies everything that is not zero behind end into new files in
// dir, which is made when it is missing. The copies are on stable storage when
// it returns; the log is not changed. There is one copy per log file, named by
// the position of its first byte as log files are, with ".quarantine" and, when
// that exists, a number behind. Zeros inside a copy take no space, zeros at its
// end are left out.
//
// On an error the copies made so far are removed.
func (l *Log) Quarantine(end message.PhysicalOffset, dir string) (copies []Quarantined, err error) {
	fsys := l.opts.FS
	defer func() {
		if err != nil {
			for _, c := range copies {
				err = errors.Join(err, fsys.Remove(c.Path))
			}
			copies, err = nil, fmt.Errorf("quarantine the commit log from %d on: %w", end, err)
		}
	}()
	buf := make([]byte, min(chunkSize, l.size))
	for _, f := range l.files.Files() {
		if f.End() <= int64(end) {
			continue
		}
		from := max(int64(end)-f.Start(), 0)
		h, err := openHandle(fsys, f.Path())
		if err != nil {
			return copies, err
		}
		out := copier{fs: fsys, dir: dir, from: message.PhysicalOffset(f.Start() + from)}
		err = out.copy(h, from, f.Size(), buf)
		if out.file != nil {
			copies = append(copies, out.Quarantined)
			if err == nil {
				err = out.file.Sync()
			}
			err = errors.Join(err, out.file.Close())
		}
		if err = errors.Join(err, h.Close()); err != nil {
			return copies, err
		}
	}
	if len(copies) > 0 {
		return copies, fsys.SyncDir(dir)
	}
	return nil, nil
}

// copier makes one copy for Quarantine, if there is something to copy.
type copier struct {
	Quarantined
	fs   vfs.FS
	dir  string
	from message.PhysicalOffset
	file vfs.File
}

// copy copies [from, size) of h except zeros.
func (c *copier) copy(h *handle, from, size int64, buf []byte) error {
	for off := from; ; {
		data, err := h.nextData(off, size)
		if err != nil || data == size {
			return err
		}
		off = data
		chunk := buf[:min(int64(len(buf)), size-off)]
		if err := readFull(h, chunk, off); err != nil {
			return err
		}
		if n := lastNonZero(chunk); n > 0 {
			if err := c.create(); err != nil {
				return err
			}
			if _, err := c.file.WriteAt(chunk[:n], off-from); err != nil {
				return err
			}
			c.Size = off - from + int64(n)
		}
		off += int64(len(chunk))
	}
}

// create makes the file on its first call.
func (c *copier) create() error {
	if c.file != nil {
		return nil
	}
	if err := c.fs.MkdirAll(c.dir); err != nil {
		return err
	}
	name := filepath.Join(c.dir, mappedfile.FileName(int64(c.from))+".quarantine")
	path := name
	for i := 1; ; i++ {
		f, err := c.fs.Create(path)
		if err == nil {
			c.file, c.Path, c.From = f, path, c.from
			return nil
		}
		if !errors.Is(err, fs.ErrExist) || i > 1000 {
			return err
		}
		path = fmt.Sprintf("%s.%d", name, i)
	}
}

// RemoveFront removes up to n files from the front of the log, as long as due
// says so, but never the last one. It returns those that are gone; an error may
// come with some. Readers that are in the middle of a copy finish, later ones
// get base.ErrNotFound.
func (l *Log) RemoveFront(n int, due func(FileInfo) bool) ([]FileInfo, error) {
	if s := state(l.state.Load()); s == stateClosed {
		return nil, l.stateError(s)
	}
	files, err := l.files.RemoveFront(n, func(f *mappedfile.File) bool {
		return due(infoOf(f))
	})
	removed := make([]FileInfo, len(files))
	for i, f := range files {
		removed[i] = infoOf(f)
		l.times.forget(f.Start())
	}
	if err != nil {
		err = fmt.Errorf("remove commit log files: %w", err)
	}
	return removed, err
}
