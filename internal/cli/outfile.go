package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/tool"
)

// outFile is a file for results that becomes whole at once: until finish it is
// called FILE.part, so that nobody takes a part for the whole.
type outFile struct {
	name string
	f    *os.File
	w    *bufio.Writer
}

const partSuffix = ".part"

// createOut begins a new file. It replaces none.
func createOut(name string) (*outFile, error) {
	if _, err := os.Lstat(name); err == nil {
		return nil, fmt.Errorf("%s is there already: remove it, or go on with it by --resume", name)
	}
	f, err := os.OpenFile(name+partSuffix, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return nil, fmt.Errorf("%s is there, of an export that did not come to its end: go on with it by --resume %s, or remove it", name+partSuffix, name)
	}
	if err != nil {
		return nil, err
	}
	return newOut(name, f), nil
}

func newOut(name string, f *os.File) *outFile {
	return &outFile{name: name, f: f, w: bufio.NewWriterSize(f, 1<<20)}
}

// resumeOut goes on with a file, whole or part, behind its last whole record.
// Without one it begins it.
func resumeOut(name string, isCSV bool) (*outFile, tool.Exported, error) {
	part := name + partSuffix
	if _, err := os.Lstat(part); errors.Is(err, fs.ErrNotExist) {
		if err := os.Rename(name, part); errors.Is(err, fs.ErrNotExist) {
			out, err := createOut(name)
			return out, tool.Exported{}, err
		} else if err != nil {
			return nil, tool.Exported{}, err
		}
	}
	f, err := os.OpenFile(part, os.O_RDWR, 0)
	if err != nil {
		return nil, tool.Exported{}, err
	}
	e, err := exportedTo(f, isCSV)
	if err != nil {
		return nil, e, errors.Join(fmt.Errorf("%s: %w", part, err), f.Close())
	}
	return newOut(name, f), e, nil
}

func exportedTo(f *os.File, isCSV bool) (e tool.Exported, err error) {
	fi, err := f.Stat()
	if err != nil {
		return e, err
	}
	if e, err = tool.ReadExported(f, fi.Size(), isCSV); err != nil {
		return e, err
	}
	if err := f.Truncate(e.Size); err != nil {
		return e, err
	}
	_, err = f.Seek(e.Size, 0)
	return e, err
}

// Write writes results.
func (o *outFile) Write(p []byte) (int, error) {
	n, err := o.w.Write(p)
	if err != nil {
		err = fmt.Errorf("write %s: %w", o.name+partSuffix, err)
	}
	return n, err
}

// finish makes the file whole and gives it its name.
func (o *outFile) finish() error {
	err := o.w.Flush()
	if err == nil {
		err = o.f.Sync()
	}
	if err := errors.Join(err, o.f.Close()); err != nil {
		return fmt.Errorf("write %s: %w", o.name+partSuffix, err)
	}
	if err := os.Rename(o.name+partSuffix, o.name); err != nil {
		return err
	}
	// Best effort: the bytes are safe, and not every system can sync a folder.
	if d, err := os.Open(filepath.Dir(o.name)); err == nil {
		_ = d.Sync()
		d.Close()
	}
	return nil
}

// abandon leaves the part as it is, to be gone on with.
func (o *outFile) abandon() {
	_ = o.w.Flush() // what is cut by a full disk, resuming cuts off
	o.f.Close()
}
