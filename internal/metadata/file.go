package metadata

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/remoting"
)

// damagedSuffix is the name that a damaged file gets when it is replaced.
const damagedSuffix = ".damaged"

// ErrFull says that a table has as many entries as it may have.
var ErrFull = errors.New("too many entries")

// file is a configuration file, with its .bak, and how far it is behind the
// content in memory.
type file struct {
	fsys   vfs.FS
	path   string
	logger *slog.Logger

	// changes counts the changes of the content. A change is counted after it
	// was made, so that a content read after the counter has all it counts.
	changes atomic.Uint64

	saving struct {
		sync.Mutex        // held across the writing
		saved      uint64 // the changes that the file has
		damaged    bool   // the file under the main name is damaged, the .bak is good
		dirExists  bool
	}
}

func (f *file) init(fsys vfs.FS, dir, name string, logger *slog.Logger) {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	f.fsys, f.path, f.logger = fsys, filepath.Join(dir, name), logger
}

// load reads the file, or its .bak, and hands the content to use. It calls use
// not at all when there is neither.
func load[T any](f *file, use func(T)) error {
	used, cause, err := javajson.Load(f.fsys, f.path, use)
	switch {
	case err != nil:
		return fmt.Errorf("neither %s nor its .bak can be used: put a good copy in place of the first, or move both away to start without: %w", f.path, err)
	case used == "":
		f.logger.Info("no configuration file yet", "file", f.path)
	case used == f.path:
		f.logger.Info("configuration file read", "file", f.path)
	default:
		if cause != nil {
			f.logger.Error("configuration file is damaged, its backup is used", "file", f.path, "used", used, "err", cause)
		} else {
			f.logger.Warn("configuration file is missing, its backup is used", "file", f.path, "used", used)
		}
		f.saving.damaged = cause != nil
		f.changes.Add(1) // so that there is a main file again
	}
	return nil
}

// save writes what encode returns, unless nothing changed since the last time.
// After an error the file has its old content or the new one, and the next save
// writes again: it begins with a new file, so pages that a failed sync lost do
// not matter.
func (f *file) save(encode func() []byte) error {
	s := &f.saving
	s.Lock()
	defer s.Unlock()
	n := f.changes.Load()
	if n == s.saved {
		return nil
	}
	data := encode()
	if len(data) > javajson.MaxSize {
		return fmt.Errorf("save %s: %d bytes are more than the %d that could be read again", f.path, len(data), javajson.MaxSize)
	}
	if err := f.replaceLocked(data); err != nil {
		s.dirExists = false
		return fmt.Errorf("save %s: %w", f.path, err)
	}
	s.saved = n
	return nil
}

func (f *file) replaceLocked(data []byte) error {
	s := &f.saving
	if !s.dirExists {
		if err := f.fsys.MkdirAll(filepath.Dir(f.path)); err != nil {
			return err
		}
		s.dirExists = true
	}
	if s.damaged {
		// It must not become the .bak: a crash before the new file is in place
		// would leave nothing that can be read.
		if err := f.fsys.Rename(f.path, f.path+damagedSuffix); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := f.fsys.SyncDir(filepath.Dir(f.path)); err != nil {
			return err
		}
		s.damaged = false
	}
	return javajson.Save(f.fsys, f.path, data)
}

func nowMillis() int64 { return time.Now().UnixMilli() }

// advance makes v the next version.
func advance(v *remoting.DataVersion) {
	v.Counter++
	v.Timestamp = nowMillis()
}
