package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
)

// WriteFileAtomic replaces the content of name, durably: whenever a crash
// comes, name holds the old content or data, and data once it has returned.
// Meanwhile name+".tmp" exists; one that a crash has left is overwritten.
// Calls for one name must not run at the same time.
func WriteFileAtomic(fsys FS, name string, data []byte) error {
	tmp := name + ".tmp"
	f, err := fsys.Create(tmp)
	if errors.Is(err, fs.ErrExist) {
		if err := fsys.Remove(tmp); err != nil {
			return err
		}
		f, err = fsys.Create(tmp)
	}
	if err != nil {
		return err
	}
	_, err = f.WriteAt(data, 0)
	if err == nil {
		// The content must be on the disk before the name is: a crash in
		// between would leave an empty file under it.
		err = f.Sync()
	}
	if closeErr := f.Close(); err == nil {
		err = closeErr
	}
	if err == nil {
		err = fsys.Rename(tmp, name)
	}
	if err != nil {
		// Do not leave half a file; when it cannot be removed either, the
		// first error is the one that matters.
		_ = fsys.Remove(tmp)
		return err
	}
	return fsys.SyncDir(filepath.Dir(name))
}

// ReadFile returns the content of name. A file of more than limit bytes is an
// error, so that nobody's file can take all memory.
func ReadFile(fsys FS, name string, limit int64) ([]byte, error) {
	f, err := fsys.Open(name, ReadOnly)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	if size > limit {
		return nil, &fs.PathError{Op: "read", Path: name, Err: fmt.Errorf("%d bytes are more than the limit of %d", size, limit)}
	}
	data := make([]byte, size)
	n, err := f.ReadAt(data, 0)
	if err != nil && err != io.EOF {
		return nil, err
	}
	return data[:n], nil // shorter when the file was cut meanwhile
}
