package inspect

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/internal/vfs"
)

// Options say where a store is.
type Options struct {
	FS  vfs.FS // nil: the operating system
	Dir string
	// CommitLogDirs hold the files of the log; none: commitlog below Dir.
	// ReadOnlyDirs hold more of them. Both are paths as they are opened.
	CommitLogDirs, ReadOnlyDirs []string
	// CommitLogFileSize and ConsumeQueueFileSize are the lengths of files, 0:
	// read off the files.
	CommitLogFileSize, ConsumeQueueFileSize int64
}

// Store is a store directory. It holds no open files.
type Store struct {
	fs      vfs.FS
	dir     string
	queueSz int64
	log     []logFile // by start
	logSize int64     // length of a log file
	// abort: the last stop was not clean, or the store is in use; held: it is.
	abort, held bool
}

// logFile is one file of the log.
type logFile struct {
	path  string
	start int64 // position of its first byte
	size  int64 // of what can be read of it
}

func (f *logFile) end() int64 { return f.start + f.size }

// maxPosition bounds positions, so that sums of two do not overflow.
const maxPosition = 1 << 62

// Open finds the files of a store's log.
func Open(o Options) (*Store, error) {
	s := &Store{fs: o.FS, dir: o.Dir, queueSz: o.ConsumeQueueFileSize, logSize: o.CommitLogFileSize}
	if s.fs == nil {
		s.fs = vfs.OS()
	}
	if err := tool.RefuseDLedger(s.fs, s.dir); err != nil {
		return nil, err
	}
	dirs := append(slices.Clone(o.CommitLogDirs), o.ReadOnlyDirs...)
	if len(o.CommitLogDirs) == 0 {
		dirs = append(dirs, filepath.Join(s.dir, "commitlog"))
	}
	for _, dir := range dirs {
		segs, err := listSegments(s.fs, dir)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, err
		}
		for _, g := range segs {
			s.log = append(s.log, logFile{filepath.Join(dir, segmentName(g.start)), g.start, g.size})
		}
	}
	slices.SortStableFunc(s.log, func(a, b logFile) int { return cmp.Compare(a.start, b.start) })
	s.log = slices.CompactFunc(s.log, func(a, b logFile) bool { return a.start == b.start })
	if s.logSize == 0 {
		s.logSize = commonSize(s.log, func(f logFile) segment { return segment{f.start, f.size} }, 1)
	}
	for i := range s.log {
		f := &s.log[i]
		f.size = min(f.size, s.logSize)
		if i > 0 { // overlapping names: what follows counts from its own start
			s.log[i-1].size = min(s.log[i-1].size, f.start-s.log[i-1].start)
		}
	}
	if _, err := s.fs.Stat(filepath.Join(s.dir, "abort")); err == nil {
		s.abort = true
	}
	if held, err := s.fs.Locked(filepath.Join(s.dir, "lock")); err == nil {
		s.held = held
	}
	return s, nil
}

// Empty reports whether the store has no file of a log.
func (s *Store) Empty() bool { return len(s.log) == 0 }

// Min is where the log begins; Top is where its last file ends. The records end
// somewhere before.
func (s *Store) Min() int64 {
	if len(s.log) == 0 {
		return 0
	}
	return s.log[0].start
}

// Top is where the last file of the log ends.
func (s *Store) Top() int64 {
	if len(s.log) == 0 {
		return 0
	}
	return s.log[len(s.log)-1].end()
}

// fileAt returns the index of the log file that holds a position, or -1.
func (s *Store) fileAt(phy int64) int {
	i, found := slices.BinarySearchFunc(s.log, phy, func(f logFile, phy int64) int { return cmp.Compare(f.start, phy) })
	if !found {
		i--
	}
	if i < 0 || phy >= s.log[i].end() {
		return -1
	}
	return i
}

// segment is a file whose name is the position of its first byte.
type segment struct{ start, size int64 }

func segmentName(start int64) string { return fmt.Sprintf("%020d", start) }

// parseSegmentName is the reverse: 20 ASCII digits.
func parseSegmentName(name string) (int64, bool) {
	if len(name) != 20 {
		return 0, false
	}
	for i := range len(name) {
		if name[i] < '0' || name[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(name, 10, 64)
	return n, err == nil && n < maxPosition
}

// listSegments lists the files of a directory that have such a name, by start.
func listSegments(fsys vfs.FS, dir string) ([]segment, error) {
	entries, err := fsys.List(dir)
	if err != nil {
		return nil, err
	}
	var segs []segment
	for _, e := range entries {
		start, ok := parseSegmentName(e.Name)
		if !ok || e.IsDir() {
			continue
		}
		size := e.Size
		if !e.IsRegular() { // a symbolic link: of what it leads to
			if size, err = fileSize(fsys, filepath.Join(dir, e.Name)); err != nil {
				continue
			}
		}
		segs = append(segs, segment{start, size})
	}
	return segs, nil
}

func fileSize(fsys vfs.FS, path string) (int64, error) {
	f, err := fsys.Open(path, vfs.ReadOnly)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Size()
}

// commonSize is the length that most files have, of several the greatest: files
// are cut more often than they grow. It is a multiple of unit; 0: there is none.
func commonSize[T any](files []T, of func(T) segment, unit int64) int64 {
	votes := make(map[int64]int)
	best := int64(0)
	for _, f := range files {
		n := of(f).size
		if n <= 0 || n%unit != 0 {
			continue
		}
		votes[n]++
		if votes[n] > votes[best] || votes[n] == votes[best] && n > best {
			best = n
		}
	}
	return best
}

// readAt fills p with the bytes at off; what the file does not have is zeros.
// The error is for what the disk does not give.
func readAt(f vfs.File, p []byte, off int64) error {
	n, err := f.ReadAt(p, off)
	if n == len(p) {
		return nil
	}
	clear(p[n:])
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}
