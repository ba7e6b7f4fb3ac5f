package gantry

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/vfs"
)

// bytes returns the content of a file.
func (c *site) bytes(elem ...string) []byte {
	c.t.Helper()
	data, err := readFile(c.fs, c.path(elem...))
	must(c.t, err)
	return data
}

// edit opens a file for f to change.
func (c *site) edit(name string, f func(vfs.File) error) {
	c.t.Helper()
	file, err := c.fs.Open(c.path(name), vfs.ReadWrite)
	must(c.t, err)
	must(c.t, f(file))
	must(c.t, file.Sync())
	must(c.t, file.Close())
}

// patch overwrites bytes of a file.
func (c *site) patch(name string, off int64, b []byte) {
	c.t.Helper()
	c.edit(name, func(f vfs.File) error {
		_, err := f.WriteAt(b, off)
		return err
	})
}

func (c *site) patch32(name string, off int64, v uint32) {
	c.t.Helper()
	c.patch(name, off, binary.BigEndian.AppendUint32(nil, v))
}

// zero overwrites [from, to) of a file with zeros.
func (c *site) zero(name string, from, to int64) {
	c.t.Helper()
	c.patch(name, from, make([]byte, to-from))
}

// resize sets the length of a file.
func (c *site) resize(name string, size int64) {
	c.t.Helper()
	c.edit(name, func(f vfs.File) error { return f.Truncate(size) })
}

// create makes a file.
func (c *site) create(name string, content []byte) {
	c.t.Helper()
	must(c.t, writeNew(c.fs, c.path(name), content))
}

// remove removes a file, or a directory with all that is in it.
func (c *site) remove(elem ...string) {
	c.t.Helper()
	must(c.t, removeTree(c.fs, c.path(elem...)))
}

func readFile(fsys vfs.FS, name string) ([]byte, error) {
	f, err := fsys.Open(name, vfs.ReadOnly)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	_, err = io.ReadFull(io.NewSectionReader(f, 0, size), b)
	return b, err
}

func writeNew(fsys vfs.FS, name string, content []byte) error {
	f, err := fsys.Create(name)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(content, 0); err != nil {
		return err
	}
	return errors.Join(f.Sync(), fsys.SyncDir(filepath.Dir(name)), f.Close())
}

// copyTree copies directories and regular files; zero pages stay holes.
func copyTree(fsys vfs.FS, from, to string) error {
	if err := fsys.MkdirAll(to); err != nil {
		return err
	}
	entries, err := fsys.List(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		src, dst := filepath.Join(from, e.Name), filepath.Join(to, e.Name)
		switch {
		case e.IsDir():
			err = copyTree(fsys, src, dst)
		case e.IsRegular():
			err = copyFile(fsys, src, dst)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(fsys vfs.FS, from, to string) error {
	data, err := readFile(fsys, from)
	if err != nil {
		return err
	}
	f, err := fsys.Create(to)
	if err != nil {
		return err
	}
	if err := f.Truncate(int64(len(data))); err != nil {
		return err
	}
	zero := make([]byte, 4096)
	for off := 0; off < len(data); off += len(zero) {
		page := data[off:min(off+len(zero), len(data))]
		if bytes.Equal(page, zero[:len(page)]) {
			continue
		}
		if _, err := f.WriteAt(page, int64(off)); err != nil {
			return err
		}
	}
	return f.Close()
}

func removeTree(fsys vfs.FS, name string) error {
	if e, err := fsys.Stat(name); err != nil {
		return err
	} else if e.IsDir() {
		entries, err := fsys.List(name)
		if err != nil {
			return err
		}
		for _, e := range entries {
			if err := removeTree(fsys, filepath.Join(name, e.Name)); err != nil {
				return err
			}
		}
	}
	return errors.Join(fsys.Remove(name), fsys.SyncDir(filepath.Dir(name)))
}
