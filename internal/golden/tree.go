package golden

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/internal/vfs"
)

// File describes a regular file of a store directory.
type File struct {
	Path    string `json:"path"` // relative to the root, with slashes
	Size    int64  `json:"size"`
	SHA256  Hash   `json:"sha256"`
	AllZero bool   `json:"allZero"` // not empty, and every byte is zero
}

// Tree lists the regular files below root, sorted by path. Two equal results
// mean that no byte of any file differs; empty directories are not listed.
func Tree(fsys vfs.FS, root string) ([]File, error) {
	var files []File
	var walk func(rel string) error
	walk = func(rel string) error {
		entries, err := fsys.List(filepath.Join(root, filepath.FromSlash(rel)))
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := path.Join(rel, e.Name)
			switch {
			case e.IsDir():
				if err := walk(name); err != nil {
					return err
				}
			case e.IsRegular():
				f, err := hashFile(fsys, root, name)
				if err != nil {
					return err
				}
				files = append(files, f)
			}
		}
		return nil
	}
	if err := walk(""); err != nil {
		return nil, err
	}
	slices.SortFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	return files, nil
}

func hashFile(fsys vfs.FS, root, name string) (file File, err error) {
	f, err := fsys.Open(filepath.Join(root, filepath.FromSlash(name)), vfs.ReadOnly)
	if err != nil {
		return File{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	size, err := f.Size()
	if err != nil {
		return File{}, err
	}
	h := sha256.New()
	zero := true
	buf := make([]byte, 16*pageSize)
	for off := int64(0); off < size; {
		n, err := f.ReadAt(buf[:min(int64(len(buf)), size-off)], off)
		if n == 0 && err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return File{}, err
		}
		zero = zero && allZero(buf[:n])
		h.Write(buf[:n])
		off += int64(n)
	}
	file = File{Path: name, Size: size, AllZero: zero && size > 0}
	h.Sum(file.SHA256[:0])
	return file, nil
}

// DiffTrees compares two listings and returns one line for each path that is
// missing on one side or differs in size or content. No lines mean equal.
func DiffTrees(want, got []File) []string {
	type pair struct{ want, got *File }
	byPath := map[string]*pair{}
	at := func(p string) *pair {
		if byPath[p] == nil {
			byPath[p] = &pair{}
		}
		return byPath[p]
	}
	for i := range want {
		at(want[i].Path).want = &want[i]
	}
	for i := range got {
		at(got[i].Path).got = &got[i]
	}
	var lines []string
	for _, p := range slices.Sorted(maps.Keys(byPath)) {
		w, g := byPath[p].want, byPath[p].got
		switch {
		case g == nil:
			lines = append(lines, p+": missing")
		case w == nil:
			lines = append(lines, p+": unexpected")
		case w.Size != g.Size:
			lines = append(lines, fmt.Sprintf("%s: size %d, want %d", p, g.Size, w.Size))
		case w.SHA256 != g.SHA256:
			lines = append(lines, p+": content differs")
		}
	}
	return lines
}
