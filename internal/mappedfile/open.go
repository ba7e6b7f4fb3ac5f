package mappedfile

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path/filepath"
	"slices"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// maxSurplus is how much longer than the others the last file may be when the
// surplus is zero: a length rounded up to some page size. More than that means
// another file size, and then cutting would be wrong.
const maxSurplus = 64 << 10

// Report says what OpenQueue noticed and lived with. The caller decides what
// of it is worth a warning.
type Report struct {
	FileSize int64 // the file size in use
	Inferred bool  // FileSize was taken from the files

	// Foreign are the paths of entries that are not segments: any name that
	// is not 20 ASCII digits, directories, symbolic links. They are ignored.
	Foreign []string
	// Empty are the paths of files without length at the end of the queue, or
	// beside a file of the same name in another directory, left by a crash.
	// They count as absent and are replaced when the name is needed.
	Empty []string
	// Gaps are the ranges between files for which there is no file.
	Gaps []Gap
	// Short and Long are the last file when its length is wrong. A short one
	// reads as zeros in its missing part; a long one has only zeros in its
	// surplus. Before the first change it gets the right length. Files made
	// ahead, which hold nothing yet, do not count as later ones.
	Short, Long []Misfit
}

// Gap is the range [From, To) of offsets without a file.
type Gap struct{ From, To int64 }

// Misfit is a file of the wrong length.
type Misfit struct {
	Path string
	Size int64
}

// segmentEntry is a listed file that may belong to the queue.
type segmentEntry struct {
	dir, path string
	start     int64
	size      int64
	readOnly  bool
}

// OpenQueue lists the directories and returns the queue. It reads names and
// lengths, not content, opens files only when they are used, and changes
// nothing on disk. Directories that do not exist count as empty.
//
// Every file counts as full: wrote, committed and flushed are its size. The
// caller finds the end of the content and calls TruncateTo before it writes.
//
// What cannot be one queue is refused with a *base.CorruptError that names the
// path: a file of another length than FileSize that is not the last one, a
// start that is no multiple of the file size, one name in two directories.
func OpenQueue(opt Options) (*Queue, Report, error) {
	var rep Report
	if opt.FS == nil || len(opt.Dirs) == 0 {
		return nil, rep, errors.New("open segments: no file system or no directory given")
	}
	if opt.FileSize < 0 || opt.DefaultFileSize < 0 || opt.ReserveStep < 0 {
		return nil, rep, fmt.Errorf("open segments: negative size: file size %d, default %d, reserve step %d",
			opt.FileSize, opt.DefaultFileSize, opt.ReserveStep)
	}
	entries, err := listSegments(opt, &rep)
	if err != nil {
		return nil, rep, err
	}
	size := opt.FileSize
	if size == 0 {
		size = inferFileSize(entries)
		rep.Inferred = size > 0
	}
	if size == 0 {
		size = opt.DefaultFileSize
	}
	if size == 0 {
		return nil, rep, fmt.Errorf("open segments in %s: no file size given and no file to take it from", opt.Dirs[0])
	}
	if opt.Pool != nil && opt.Pool.size < size {
		return nil, rep, fmt.Errorf("open segments in %s: buffers of %d bytes are smaller than the file size %d",
			opt.Dirs[0], opt.Pool.size, size)
	}
	rep.FileSize = size
	if err := checkSegments(opt.FS, entries, size, &rep); err != nil {
		return nil, rep, err
	}
	return newQueue(opt, size, entries, rep), rep, nil
}

func newQueue(opt Options, size int64, entries []segmentEntry, rep Report) *Queue {
	q := &Queue{
		sh: shared{
			fs:          opt.FS,
			mapped:      opt.Mapped,
			random:      opt.RandomAccess,
			reserveStep: opt.ReserveStep,
			alloc:       opt.Alloc,
			log:         opt.Logger,
		},
		dirs:              slices.Sorted(slices.Values(opt.Dirs)),
		full:              opt.DirFull,
		size:              size,
		pool:              opt.Pool,
		failWithoutBuffer: opt.FailWithoutBuffer,
		warm:              opt.Warm,
		warmSyncPages:     opt.WarmSyncPages,
		lockMemory:        opt.LockMemory,
	}
	if q.sh.reserveStep == 0 {
		q.sh.reserveStep = 16 << 20
	}
	// Whole pages, so that the reserved end is never inside one.
	q.sh.reserveStep = (q.sh.reserveStep + PageSize - 1) &^ (PageSize - 1)
	if q.sh.log == nil {
		q.sh.log = slog.New(slog.DiscardHandler)
	}
	files := make([]*File, len(entries))
	for i, e := range entries {
		f := newFile(&q.sh, e.dir, e.path, e.start, size)
		f.readOnly = e.readOnly
		f.misfit = e.size != size
		f.setPositions(size)
		files[i] = f
	}
	q.files.Store(&files)
	if len(files) > 0 {
		q.flushed.Store(files[len(files)-1].End())
	}
	return q
}

// listSegments returns the files of all directories ordered by start, without
// the empty ones at the end.
func listSegments(opt Options, rep *Report) ([]segmentEntry, error) {
	var found []segmentEntry
	list := func(dir string, readOnly bool) error {
		entries, err := opt.FS.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("list segments: %w", err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name)
			start, ok := ParseFileName(e.Name)
			if !ok || !e.IsRegular() {
				rep.Foreign = append(rep.Foreign, path)
				continue
			}
			found = append(found, segmentEntry{dir, path, start, e.Size, readOnly})
		}
		return nil
	}
	listed := make(map[string]bool)
	for i, dir := range slices.Concat(opt.Dirs, opt.ReadOnlyDirs) {
		if clean := filepath.Clean(dir); !listed[clean] {
			listed[clean] = true
			if err := list(dir, i >= len(opt.Dirs)); err != nil {
				return nil, err
			}
		}
	}
	slices.SortFunc(found, func(a, b segmentEntry) int {
		return cmp.Or(cmp.Compare(a.start, b.start), cmp.Compare(a.path, b.path))
	})
	for i := 1; i < len(found); i++ {
		a, b := i-1, i
		if found[a].start != found[b].start {
			continue
		}
		// A crash may leave an empty file in one directory, and the next
		// attempt may have gone to another.
		if found[b].size > 0 {
			a, b = b, a
		}
		if found[b].size > 0 {
			return nil, base.Corruptf(found[i].path, 0, "also exists as %s", found[i-1].path)
		}
		rep.Empty = append(rep.Empty, found[b].path)
		found = slices.Delete(found, b, b+1)
		i--
	}
	for len(found) > 0 && found[len(found)-1].size == 0 {
		rep.Empty = append(rep.Empty, found[len(found)-1].path)
		found = found[:len(found)-1]
	}
	slices.Sort(rep.Empty)
	return found, nil
}

// inferFileSize returns the length that most files have. Between equally
// frequent ones the distance of neighbouring names decides, then the oldest
// file. 0 means that there is no file.
func inferFileSize(entries []segmentEntry) int64 {
	if len(entries) == 0 {
		return 0
	}
	count := make(map[int64]int)
	for _, e := range entries {
		count[e.size]++
	}
	distance := int64(0)
	for i := 1; i < len(entries); i++ {
		if d := entries[i].start - entries[i-1].start; distance == 0 || d < distance {
			distance = d
		}
	}
	best := entries[0].size
	for _, e := range entries[1:] {
		switch {
		case e.size == best:
		case count[e.size] > count[best], count[e.size] == count[best] && e.size == distance:
			best = e.size
		}
	}
	return best
}

// checkSegments refuses what cannot be one queue and reports what is merely
// odd.
func checkSegments(fsys vfs.FS, entries []segmentEntry, size int64, rep *Report) error {
	for i, e := range entries {
		last, err := true, error(nil)
		if e.size != size {
			if last, err = nothingIn(fsys, entries[i+1:]); err != nil {
				return fmt.Errorf("look for content behind %s: %w", e.path, err)
			}
		}
		switch {
		case e.size == size:
		case !last || e.size > size+maxSurplus:
			return base.Corruptf(e.path, min(e.size, size), "size %d, expected %d", e.size, size)
		case e.size < size:
			rep.Short = append(rep.Short, Misfit{e.path, e.size})
		default:
			at, err := nonZeroOf(fsys, e.path, size, e.size)
			if err != nil {
				return fmt.Errorf("check the surplus of a segment: %w", err)
			}
			if at >= 0 {
				return base.Corruptf(e.path, at, "size %d, expected %d, and the surplus is not zero", e.size, size)
			}
			rep.Long = append(rep.Long, Misfit{e.path, e.size})
		}
		if e.start%size != 0 {
			return base.Corruptf(e.path, 0, "name is not a multiple of the file size %d", size)
		}
		if e.start > maxStart(size) {
			return base.Corruptf(e.path, 0, "name is beyond the offset space")
		}
		if i > 0 {
			if end := entries[i-1].start + size; e.start > end {
				rep.Gaps = append(rep.Gaps, Gap{end, e.start})
			}
		}
	}
	return nil
}

// nothingIn reports whether the files hold nothing but zeros.
func nothingIn(fsys vfs.FS, entries []segmentEntry) (bool, error) {
	for _, e := range entries {
		if at, err := nonZeroOf(fsys, e.path, 0, e.size); err != nil || at >= 0 {
			return false, err
		}
	}
	return true, nil
}
