package tool

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gantrymq/gantry/internal/vfs"
)

// partialSuffix is behind the name of a directory that is being written.
const partialSuffix = ".partial"

// newDir is a store directory in the making. Everything is written below
// NEW.partial, which gets its name when it is whole and on stable storage: a
// full disk, an interruption or a crash leaves nothing that looks like a store.
type newDir struct {
	fs    vfs.FS
	final string // NEW
	path  string // NEW.partial

	mu   sync.Mutex
	dirs map[string]bool // that hold files made by create
}

// makeNewDir prepares the making of final from the store in source. final must
// not exist, or be an empty directory, and must not lie in the source.
func makeNewDir(fsys vfs.FS, source, final string) (*newDir, error) {
	final = filepath.Clean(final)
	if inside(final, source) {
		return nil, fmt.Errorf("%s lies inside the store %s, which must not change", final, source)
	}
	d := &newDir{fs: fsys, final: final, path: final + partialSuffix, dirs: map[string]bool{}}
	if inside(d.path, source) {
		return nil, fmt.Errorf("%s lies inside the store %s, which must not change", d.path, source)
	}
	if _, err := fsys.Stat(d.path); err == nil {
		return nil, fmt.Errorf("%s: an earlier run left it, or another one is at work; remove it first: %w", d.path, fs.ErrExist)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	e, err := fsys.Stat(final)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, err
	case !e.IsDir():
		return nil, fmt.Errorf("%s is not a directory: %w", final, fs.ErrExist)
	default:
		entries, err := fsys.List(final)
		if err != nil {
			return nil, err
		}
		if len(entries) > 0 {
			return nil, fmt.Errorf("%s is not empty: %w", final, fs.ErrExist)
		}
		// Its name is needed at the end: better to fail now.
		if err := fsys.Remove(final); err != nil {
			return nil, fmt.Errorf("%s exists and cannot be replaced, name a directory that does not: %w", final, err)
		}
	}
	return d, fsys.MkdirAll(d.path)
}

// inside reports whether name is dir or lies below it, symbolic links followed.
func inside(name, dir string) bool {
	rel, err := filepath.Rel(realPath(dir), realPath(name))
	return err == nil && filepath.IsLocal(rel)
}

// realPath is the absolute path of a name, with the links in that part of it
// that exists followed.
func realPath(name string) string {
	abs, err := filepath.Abs(name)
	if err != nil {
		return filepath.Clean(name)
	}
	for head, tail := abs, ""; ; {
		if real, err := filepath.EvalSymlinks(head); err == nil {
			return filepath.Join(real, tail)
		}
		parent := filepath.Dir(head)
		if parent == head {
			return abs
		}
		head, tail = parent, filepath.Join(filepath.Base(head), tail)
	}
}

// at is the path of a slash-separated name in the new directory.
func (d *newDir) at(rel string) string { return filepath.Join(d.path, filepath.FromSlash(rel)) }

// create makes a file, and the directories above it.
func (d *newDir) create(rel string) (vfs.File, error) {
	name := d.at(rel)
	dir := filepath.Dir(name)
	if err := d.makeDir(dir); err != nil {
		return nil, err
	}
	return d.fs.Create(name)
}

func (d *newDir) makeDir(dir string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dirs[dir] {
		return nil
	}
	err := d.fs.MkdirAll(dir)
	d.dirs[dir] = err == nil
	return err
}

// finish gives the directory its name. Files must have been synced; the names
// of those that create made are synced here.
func (d *newDir) finish() error {
	for dir := range d.dirs {
		if err := d.fs.SyncDir(dir); err != nil {
			return err
		}
	}
	if err := d.fs.SyncDir(d.path); err != nil {
		return err
	}
	if err := d.fs.Rename(d.path, d.final); err != nil {
		return fmt.Errorf("%s is complete but cannot be renamed: %w", d.path, err)
	}
	return d.fs.SyncDir(filepath.Dir(d.final))
}

// abandon removes what was written.
func (d *newDir) abandon() error { return removeAll(d.fs, d.path) }

// removeAll removes a name and everything below it. What is missing is fine.
func removeAll(fsys vfs.FS, name string) error {
	e, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if e.IsDir() {
		entries, err := fsys.List(name)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := removeAll(fsys, filepath.Join(name, e.Name)); err != nil {
				return err
			}
		}
	}
	if err := fsys.Remove(name); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// RefuseDLedger fails for a store whose log is not in commitlog files.
func RefuseDLedger(fsys vfs.FS, dir string) error {
	entries, err := fsys.List(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name, "dledger-") {
			return fmt.Errorf("%s: the commit log is DLedger's: %w", filepath.Join(dir, e.Name), errors.ErrUnsupported)
		}
	}
	return nil
}
