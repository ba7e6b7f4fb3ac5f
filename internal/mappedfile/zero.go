package mappedfile

import (
	"cmp"
	"fmt"
	"io"
	"sync"

	"github.com/gantrymq/gantry/internal/vfs"
)

// zeroChunk is how much findNonZero reads at a time.
const zeroChunk = 256 << 10

var zeroBuffers = sync.Pool{New: func() any { b := make([]byte, zeroChunk); return &b }}

// nonZeroOf returns the position of the first byte other than zero in
// [from, to) of a file, -1 when there is none. The file may end before to.
func nonZeroOf(fsys vfs.FS, path string, from, to int64) (int64, error) {
	h, err := fsys.Open(path, vfs.ReadOnly)
	if err != nil {
		return 0, err
	}
	defer h.Close()
	length, err := h.Size()
	if err != nil {
		return 0, err
	}
	at, err := findNonZero(h, from, min(to, length))
	if err != nil {
		return 0, fmt.Errorf("%s: %w", path, err)
	}
	return at, nil
}

// findNonZero returns the position of the first byte other than zero in
// [from, to), -1 when there is none. Holes are skipped where the file system
// knows them.
func findNonZero(h vfs.File, from, to int64) (int64, error) {
	bp := zeroBuffers.Get().(*[]byte)
	defer zeroBuffers.Put(bp)
	for from < to {
		next, err := h.NextData(from)
		if err != nil {
			return 0, fmt.Errorf("look for data from %d: %w", from, err)
		}
		if next >= to {
			return -1, nil
		}
		from = max(from, next)
		p := (*bp)[:min(to-from, zeroChunk)]
		n, err := h.ReadAt(p, from)
		if n < len(p) {
			if err == nil || err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return 0, fmt.Errorf("read %d bytes at %d: %w", len(p), from, err)
		}
		if i := firstNonZero(p); i >= 0 {
			return from + int64(i), nil
		}
		from += int64(len(p))
	}
	return -1, nil
}

// zeroFrom overwrites [from, to) with zeros, page by page where there is
// something else: that needs no space, whatever the file has of holes.
func zeroFrom(h vfs.File, from, to int64) error {
	bp := zeroBuffers.Get().(*[]byte)
	defer zeroBuffers.Put(bp)
	for {
		at, err := findNonZero(h, from, to)
		if err != nil || at < 0 {
			return err
		}
		p := (*bp)[:min(to-at, zeroChunk-at%PageSize)] // ends with a page, or at to
		if n, err := h.ReadAt(p, at); n < len(p) {
			return fmt.Errorf("read %d bytes at %d: %w", len(p), at, cmp.Or(err, io.ErrUnexpectedEOF))
		}
		from = at + int64(len(p))
		for len(p) > 0 {
			n := int(min(int64(len(p)), PageSize-at%PageSize))
			if firstNonZero(p[:n]) >= 0 {
				clear(p[:n])
				if _, err := h.WriteAt(p[:n], at); err != nil {
					return err
				}
			}
			p, at = p[n:], at+int64(n)
		}
	}
}

// firstNonZero returns the index of the first byte other than zero, or -1.
func firstNonZero(p []byte) int {
	i := 0
	for ; i+8 <= len(p); i += 8 {
		if p[i]|p[i+1]|p[i+2]|p[i+3]|p[i+4]|p[i+5]|p[i+6]|p[i+7] != 0 {
			break
		}
	}
	for ; i < len(p); i++ {
		if p[i] != 0 {
			return i
		}
	}
	return -1
}
