package consumequeue

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

const (
	testDir    = "/store/consumequeue"
	testExtDir = "/store/consumequeue_ext"
	all        = message.PhysicalOffset(math.MaxInt64) // discard nothing
	recordSize = 100
)

// unit is the unit of the k-th record of a log whose records have equal size.
func unit(k int64) Unit {
	return Unit{message.PhysicalOffset(k * recordSize), recordSize, message.TagsCode(1000 + k)}
}

func units(from, to int64) (us []Unit) {
	for k := from; k < to; k++ {
		us = append(us, unit(k))
	}
	return us
}

// small has five units in a file.
func small(fsys vfs.FS) Options {
	return Options{FS: fsys, Dir: testDir, FileSize: 5 * UnitSize, Workers: 2}
}

func openTable(tb testing.TB, opt Options, discardFrom message.PhysicalOffset) (*Table, Report) {
	tb.Helper()
	t, report, err := OpenTable(context.Background(), opt, discardFrom)
	if err != nil {
		tb.Fatal(err)
	}
	return t, report
}

func queue(tb testing.TB, t *Table, topic string, id int32) *Queue {
	tb.Helper()
	q, err := t.GetOrCreate(topic, id)
	if err != nil {
		tb.Fatal(err)
	}
	return q
}

func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// putRange puts records [from, to) at the queue offsets of the same numbers.
func putRange(tb testing.TB, q *Queue, from, to int64) {
	tb.Helper()
	for k := from; k < to; k++ {
		if err := q.Put(message.QueueOffset(k), unit(k)); err != nil {
			tb.Fatal(err)
		}
	}
}

func reopen(tb testing.TB, t *Table, discardFrom message.PhysicalOffset) *Table {
	tb.Helper()
	must(tb, t.Close())
	t, _ = openTable(tb, t.opt, discardFrom)
	return t
}

// content reads a queue from Min to Max.
func content(tb testing.TB, q *Queue) []Unit {
	tb.Helper()
	us := make([]Unit, q.Max()-q.Min()+3)
	n, err := q.Read(q.Min(), us)
	if err != nil {
		tb.Fatal(err)
	}
	if want := int(q.Max() - q.Min()); n != want {
		tb.Fatalf("%s: read %d units, Min %d, Max %d", q, n, q.Min(), q.Max())
	}
	return us[:n]
}

type state struct {
	Min, Max    message.QueueOffset
	MaxPhysical message.PhysicalOffset
}

func stateOf(q *Queue) state { return state{q.Min(), q.Max(), q.MaxPhysical()} }

func wantState(tb testing.TB, q *Queue, want state) {
	tb.Helper()
	if got := stateOf(q); got != want {
		tb.Errorf("%s: %+v, want %+v", q, got, want)
	}
}

// tree is the content of all files below dir, without zeros at their ends.
func tree(tb testing.TB, fsys vfs.FS, dir string) map[string]string {
	tb.Helper()
	files := make(map[string]string)
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := fsys.List(dir)
		if errors.Is(err, fs.ErrNotExist) {
			return
		}
		must(tb, err)
		for _, e := range entries {
			name := filepath.Join(dir, e.Name)
			if e.IsDir() {
				walk(name)
				continue
			}
			files[name] = fmt.Sprintf("%d:%x", e.Size, strings.TrimRight(string(readFile(tb, fsys, name)), "\x00"))
		}
	}
	walk(dir)
	return files
}

func readFile(tb testing.TB, fsys vfs.FS, name string) []byte {
	tb.Helper()
	f, err := fsys.Open(name, vfs.ReadOnly)
	must(tb, err)
	defer f.Close()
	size, err := f.Size()
	must(tb, err)
	b := make([]byte, size)
	if size > 0 {
		must(tb, readFull(f, b, 0))
	}
	return b
}

// writeFile makes a file of the given length that begins with b.
func writeFile(tb testing.TB, fsys vfs.FS, name string, b []byte, size int64) {
	tb.Helper()
	must(tb, fsys.MkdirAll(filepath.Dir(name)))
	f, err := fsys.Create(name)
	must(tb, err)
	defer f.Close()
	must(tb, f.Truncate(size))
	if len(b) > 0 {
		_, err = f.WriteAt(b, 0)
		must(tb, err)
	}
	must(tb, f.Sync())
	must(tb, fsys.SyncDir(filepath.Dir(name)))
}

// overwrite changes bytes of an existing file.
func overwrite(tb testing.TB, fsys vfs.FS, name string, b []byte, pos int64) {
	tb.Helper()
	f, err := fsys.Open(name, vfs.ReadWrite)
	must(tb, err)
	defer f.Close()
	_, err = f.WriteAt(b, pos)
	must(tb, err)
	must(tb, f.Sync())
}

func appendUnits(us ...Unit) (b []byte) {
	for _, u := range us {
		b = AppendUnit(b, u)
	}
	return b
}

func queueFile(topic string, id int32, start int64) string {
	return filepath.Join(testDir, topic, fmt.Sprint(id), fileName(start))
}
