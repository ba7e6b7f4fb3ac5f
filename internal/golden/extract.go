package golden

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/internal/vfs"
)

// What an archive may contain. The largest golden store has 41 MB in 150
// names; the limits stop a decompression bomb.
const (
	maxNames     = 10_000
	maxFileSize  = 64 << 20
	maxTotalSize = 256 << 20
	pageSize     = 4096
)

// extract unpacks a gzipped tar archive whose names all lie below top. Zero
// pages are not written, so files stay sparse where the file system can.
func extract(fsys vfs.FS, root, top string, r io.Reader, durable bool) error {
	if entries, err := fsys.List(root); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty", root)
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := fsys.MkdirAll(root); err != nil {
		return err
	}
	zr, err := gzip.NewReader(r)
	if err != nil {
		return err
	}
	tr := tar.NewReader(zr)
	names, total := 0, int64(0)
	dirs := []string{root}
	for {
		h, err := tr.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		names++
		if names > maxNames {
			return fmt.Errorf("more than %d names", maxNames)
		}
		rel, err := localName(h.Name, top)
		if err != nil {
			return err
		}
		target := filepath.Join(root, rel)
		switch h.Typeflag {
		case tar.TypeDir:
			if err := fsys.MkdirAll(target); err != nil {
				return err
			}
			dirs = append(dirs, target)
		case tar.TypeReg:
			if h.Size < 0 || h.Size > maxFileSize || h.Size > maxTotalSize-total {
				return fmt.Errorf("%q: %d bytes are too many", h.Name, h.Size)
			}
			total += h.Size
			if err := fsys.MkdirAll(filepath.Dir(target)); err != nil {
				return err
			}
			dirs = append(dirs, filepath.Dir(target))
			if err := writeFile(fsys, target, tr, h.Size, durable); err != nil {
				return fmt.Errorf("%q: %w", h.Name, err)
			}
		default:
			return fmt.Errorf("%q: type %q is neither a file nor a directory", h.Name, h.Typeflag)
		}
	}
	// The checksum of the compressed stream is verified at its end.
	if _, err := io.Copy(io.Discard, io.LimitReader(zr, maxTotalSize)); err != nil {
		return err
	}
	if durable {
		slices.Sort(dirs)
		for _, d := range slices.Compact(dirs) {
			if err := fsys.SyncDir(d); err != nil {
				return err
			}
		}
	}
	return nil
}

// localName checks a name from an archive and returns it relative to the top
// folder, in the form of the operating system.
func localName(name, top string) (string, error) {
	clean := strings.TrimSuffix(name, "/")
	if !fs.ValidPath(clean) || clean == "." || strings.ContainsAny(clean, "\\\x00") {
		return "", fmt.Errorf("name %q is not a relative path in simplest form", name)
	}
	rel, found := strings.CutPrefix(clean, top+"/")
	if clean == top {
		rel = "."
	} else if !found {
		return "", fmt.Errorf("name %q is not below %q", name, top)
	}
	local := filepath.FromSlash(rel)
	if !filepath.IsLocal(local) {
		return "", fmt.Errorf("name %q cannot be used on this system", name)
	}
	return local, nil
}

func writeFile(fsys vfs.FS, target string, r io.Reader, size int64, durable bool) (err error) {
	f, err := fsys.Create(target)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(size); err != nil {
		return err
	}
	buf := make([]byte, 16*pageSize)
	for off := int64(0); off < size; {
		n, err := io.ReadFull(r, buf[:min(int64(len(buf)), size-off)])
		if err != nil {
			return err
		}
		for i := 0; i < n; i += pageSize {
			page := buf[i:min(i+pageSize, n)]
			if allZero(page) {
				continue
			}
			if _, err := f.WriteAt(page, off+int64(i)); err != nil {
				return err
			}
		}
		off += int64(n)
	}
	if durable {
		return f.Sync()
	}
	return nil
}

func allZero(p []byte) bool {
	for _, b := range p {
		if b != 0 {
			return false
		}
	}
	return true
}
