package consumequeue

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"
	"sync"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// maxMissing bounds the files that may be missing in one place of a queue.
// More is damage that nothing here should loop over.
const maxMissing = 1000

// listed is a file of a queue as its directory shows it.
type listed struct {
	start int64
	size  int64
}

// listedQueue is a queue's directory.
type listedQueue struct {
	topic string
	id    int32
	dir   string
	files []listed // ascending, never empty
}

func (l *listedQueue) path(i int) string { return filepath.Join(l.dir, fileName(l.files[i].start)) }

// OpenTable opens the queues below opt.Dir, which need not exist. It reads
// little and changes nothing: the end of each queue is searched for among the
// units of its last file, in a time that does not depend on how full it is.
//
// A unit counts when it is one and its record begins before discardFrom, which
// must hold for all units up to some slot and for none behind it. So that is
// the end of the log, or the position from which the log will be replayed;
// math.MaxInt64 takes the queues as they are. Units that do not count are gone
// for good after the next WriteOut or Sync, and anything else behind the end
// after TrimAll or before the queue is next written.
//
// The lengths of existing files decide the table's file size. Files that
// contradict each other are a *base.CorruptError that names both lengths, a
// queue that cannot be read is an error: nothing is opened in part.
func OpenTable(ctx context.Context, opt Options, discardFrom message.PhysicalOffset) (*Table, Report, error) {
	configured := opt.FileSize != 0
	opt, err := opt.withDefaults()
	if err != nil {
		return nil, Report{}, err
	}
	var report Report
	queues, err := list(ctx, opt, &report)
	if err != nil {
		return nil, report, fmt.Errorf("open consume queues: %w", err)
	}
	size, err := fileSize(opt, queues)
	if err != nil {
		return nil, report, fmt.Errorf("open consume queues: %w", err)
	}
	report.FileSize = size
	if configured && size != opt.FileSize {
		report.ConfiguredSize = opt.FileSize
		opt.Logger.Warn("length of consume queue files differs from the configured one",
			"dir", opt.Dir, "length", size, "configured", opt.FileSize)
	}
	if err := checkAll(opt, queues, size, &report); err != nil {
		return nil, report, fmt.Errorf("open consume queues: %w", err)
	}
	for what, names := range map[string][]string{
		"foreign name in consume queues": report.Foreign, "file missing in consume queue": report.Gaps,
		"short file in consume queue": report.Short, "long file in consume queue": report.Long,
	} {
		for _, name := range names {
			opt.Logger.Warn(what, "file", name)
		}
	}

	t := newTable(opt, size)
	qs := make([]*Queue, len(queues))
	tell := progress(opt.Progress, len(queues))
	err = parallel(ctx, opt.Workers, len(queues), func(i int) error {
		q := t.newQueue(queues[i].topic, queues[i].id)
		if err := q.load(&queues[i], int64(discardFrom)); err != nil {
			return fmt.Errorf("open consume queue %s: %w", q, err)
		}
		queues[i].files = nil
		qs[i] = q
		tell()
		return nil
	})
	if err != nil {
		return nil, report, err
	}
	t.topics = make(map[string]*topicEntry, len(qs))
	for _, q := range qs {
		t.addLocked(q)
	}
	return t, report, nil
}

// progress returns a function that counts to total and reports every
// thousandth and the last.
func progress(report func(done, total int), total int) func() {
	if report == nil {
		return func() {}
	}
	var mu sync.Mutex
	done := 0
	return func() {
		mu.Lock()
		defer mu.Unlock()
		if done++; done%1000 == 0 || done == total {
			report(done, total)
		}
	}
}

// list walks the topic folders.
func list(ctx context.Context, opt Options, report *Report) ([]listedQueue, error) {
	entries, err := opt.FS.List(opt.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var topics []string
	for _, e := range entries {
		if !e.IsDir() {
			if e.Name == "CURRENT" || strings.HasPrefix(e.Name, "MANIFEST-") || strings.HasSuffix(e.Name, ".sst") {
				return nil, fmt.Errorf("%w (%s)", ErrRocksDB, filepath.Join(opt.Dir, e.Name))
			}
			report.Foreign = append(report.Foreign, filepath.Join(opt.Dir, e.Name))
		} else if checkTopic(e.Name) != nil {
			report.Foreign = append(report.Foreign, filepath.Join(opt.Dir, e.Name))
		} else {
			topics = append(topics, e.Name)
		}
	}
	found := make([][]listedQueue, len(topics))
	foreign := make([][]string, len(topics))
	err = parallel(ctx, opt.Workers, len(topics), func(i int) (err error) {
		found[i], foreign[i], err = listTopic(opt, topics[i])
		return err
	})
	if err != nil {
		return nil, err
	}
	var queues []listedQueue
	for i := range topics {
		queues = append(queues, found[i]...)
		report.Foreign = append(report.Foreign, foreign[i]...)
	}
	report.Queues = len(queues)
	for i := range queues {
		report.Files += len(queues[i].files)
	}
	return queues, nil
}

func listTopic(opt Options, topic string) (queues []listedQueue, foreign []string, err error) {
	dir := filepath.Join(opt.Dir, topic)
	ids, err := opt.FS.List(dir)
	if err != nil {
		return nil, nil, err
	}
	for _, e := range ids {
		l := listedQueue{topic: topic, dir: filepath.Join(dir, e.Name)}
		var ok bool
		if l.id, ok = parseQueueID(e.Name); !ok || !e.IsDir() {
			foreign = append(foreign, l.dir)
			continue
		}
		var names []string
		if l.files, names, err = listFiles(opt.FS, l.dir); err != nil {
			return nil, nil, err
		}
		for _, name := range names {
			foreign = append(foreign, filepath.Join(l.dir, name))
		}
		if len(l.files) > 0 {
			queues = append(queues, l)
		}
	}
	return queues, foreign, nil
}

// listFiles returns the files of a queue by start and the names that are none.
func listFiles(fsys vfs.FS, dir string) (files []listed, foreign []string, err error) {
	entries, err := fsys.List(dir) // sorted by name, which is by start
	if err != nil {
		return nil, nil, err
	}
	for _, e := range entries {
		if start, ok := parseFileName(e.Name); ok && e.IsRegular() {
			files = append(files, listed{start, e.Size})
		} else {
			foreign = append(foreign, e.Name)
		}
	}
	return files, foreign, nil
}

// fileSize finds out the length that the table's files have. The distance of
// neighbours says it best, unless files between them are missing; where every
// queue has one file only, the length that most files have counts.
func fileSize(opt Options, queues []listedQueue) (int64, error) {
	unit := int64(opt.Kind.unitSize())
	step := int64(0) // smallest distance of neighbours
	var near string  // the file in front of it
	divisor := int64(0)
	var other string // a file that does not begin at 0
	count := make(map[int64]int)
	for i := range queues {
		q := &queues[i]
		for j, f := range q.files {
			if f.size >= unit && (opt.Kind == Batch || f.size%unit == 0) {
				count[f.size]++
			}
			if f.start > 0 {
				divisor, other = gcd(divisor, f.start), q.path(j)
			}
			if j > 0 {
				if d := f.start - q.files[j-1].start; step == 0 || d < step {
					step, near = d, q.path(j-1)
				}
			}
		}
	}
	most := mostCommon(count, opt.FileSize)
	if most == 0 && divisor > 0 {
		// A crash has left names only, and not all of them. The places of those
		// that are there are multiples of the length.
		switch {
		case divisor%opt.FileSize == 0:
			return opt.FileSize, nil
		case divisor < unit || opt.Kind == Simple && divisor%unit != 0:
			return 0, base.Corruptf(other, 0, "files begin at multiples of %d, which is no multiple of the unit size %d", divisor, unit)
		}
		return divisor, nil
	}
	if step == 0 || most > 0 && step%most == 0 {
		return cmp.Or(most, opt.FileSize), nil
	}
	if step < unit || opt.Kind == Simple && step%unit != 0 {
		return 0, base.Corruptf(near, 0, "files are %d bytes apart, which is no multiple of the unit size %d", step, unit)
	}
	return step, nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// mostCommon returns the length that most files have; among several, the
// configured one or else the largest. It is 0 when there is none.
func mostCommon(count map[int64]int, configured int64) (size int64) {
	for s, n := range count {
		if n > count[size] || n == count[size] && size != configured && (s == configured || s > size) {
			size = s
		}
	}
	return size
}

// checkAll holds all files against the table's file size. One last file of
// another length was cut or lengthened by something. Two of one such length, or
// one of the configured length, were made that way: the table is a mixture that
// Java would not load.
func checkAll(opt Options, queues []listedQueue, size int64, report *Report) error {
	odd := map[int64]bool{opt.FileSize: true}
	for i := range queues {
		q := &queues[i]
		if err := check(q, size, report); err != nil {
			return err
		}
		last := len(q.files) - 1
		if s := q.files[last].size; s > 0 && s != size && s%int64(opt.Kind.unitSize()) == 0 {
			if odd[s] {
				return base.Corruptf(q.path(last), min(s, size), "file of %d bytes, others have %d", s, size)
			}
			odd[s] = true
		}
	}
	return nil
}

func badLength(name string, got, want int64) error {
	return base.Corruptf(name, min(got, want), "file of %d bytes, expected %d", got, want)
}

// check holds the files of one queue against the table's file size. Whether a
// short file in the middle matters depends on where the queue ends.
func check(q *listedQueue, size int64, report *Report) error {
	for i, f := range q.files {
		if f.start%size != 0 {
			return base.Corruptf(q.path(i), 0, "start %d is no multiple of the file size %d", f.start, size)
		}
		if i < len(q.files)-1 {
			if f.size > size {
				return badLength(q.path(i), f.size, size)
			}
			missing := (q.files[i+1].start-f.start)/size - 1
			if missing > maxMissing {
				return base.Corruptf(q.path(i+1), 0, "%d files are missing before it", missing)
			}
			for k := int64(1); k <= missing; k++ {
				report.Gaps = append(report.Gaps, filepath.Join(q.dir, fileName(f.start+k*size)))
			}
			continue
		}
		switch {
		case f.size < size:
			report.Short = append(report.Short, q.path(i))
		case f.size > size:
			report.Long = append(report.Long, q.path(i))
		}
	}
	return nil
}
