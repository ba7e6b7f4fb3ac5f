package consumequeue

import (
	"bytes"
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// withExtension has three extension units of 30 bytes in a file.
func withExtension(fsys vfs.FS) Options {
	opt := small(fsys)
	opt.ExtDir, opt.ExtFileSize = testExtDir, 100
	return opt
}

func extUnit(k int64) ExtUnit {
	return ExtUnit{Tags: unit(k).Tags, StoreTime: 1_700_000_000_000 + k, Bitmap: []byte{byte(k), 1, 2, 3, 4, 5, 6, 7, 8, 9}}
}

func putExts(tb testing.TB, q *Queue, from, to int64) {
	tb.Helper()
	for k := from; k < to; k++ {
		must(tb, q.PutExt(message.QueueOffset(k), unit(k), extUnit(k)))
	}
}

// wantExts checks that units [from, Max) lead to their extension units.
func wantExts(tb testing.TB, q *Queue, from int64) {
	tb.Helper()
	for i, u := range content(tb, q) {
		k := int64(q.Min()) + int64(i)
		if k < from {
			continue
		}
		x, err := q.GetExt(u.Tags)
		if err != nil || !cmp.Equal(x, extUnit(k)) {
			tb.Errorf("extension of %d (%d) is %+v, %v", k, u.Tags, x, err)
		}
	}
}

func extFile(start int64) string { return filepath.Join(testExtDir, "T", "0", fileName(start)) }

func TestExtension(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, withExtension(mem), all)
	q := queue(t, table, "T", 0)
	putExts(t, q, 0, 5)
	wantExts(t, q, 0) // in memory
	must(t, table.WriteOut())
	wantExts(t, q, 0)
	for range 2 {
		table = reopen(t, table, all)
		q = table.Get("T", 0)
		wantExts(t, q, 0)
		n := int64(q.Max())
		putExts(t, q, n, n+4)
		wantExts(t, q, 0)
	}
	must(t, table.Close())

	// Three units, the marker, and zeros to the end of the file.
	want := AppendExtUnit(AppendExtUnit(AppendExtUnit(nil, extUnit(0)), extUnit(1)), extUnit(2))
	want = append(want, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0)
	if got := readFile(t, mem, extFile(0)); !bytes.Equal(got, want) {
		t.Errorf("first file %x, want %x", got, want)
	}
	if got := len(tree(t, mem, testExtDir)); got != 5 {
		t.Errorf("%d files for 13 units", got)
	}

	// Without extensions the same store answers, and keeps the addresses.
	opt := withExtension(mem)
	opt.ExtDir = ""
	table, _ = openTable(t, opt, all)
	q = table.Get("T", 0)
	var one [1]Unit
	if _, err := q.Read(3, one[:]); err != nil || !IsExtAddress(one[0].Tags) {
		t.Errorf("%+v, %v", one, err)
	}
	if _, err := q.GetExt(one[0].Tags); !errors.Is(err, base.ErrNotFound) {
		t.Errorf("GetExt without extensions: %v", err)
	}
	if changed, err := q.Ensure(3, unit(3)); changed || err != nil {
		t.Errorf("Ensure of a unit with an address: %t, %v", changed, err)
	}
	must(t, q.PutExt(13, unit(13), extUnit(13)))
	if _, err := q.Read(13, one[:]); err != nil || one[0] != unit(13) {
		t.Errorf("unit %+v, %v, want plain tags", one, err)
	}
	must(t, table.Close())
}

func TestExtensionEnsure(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, withExtension(mem), all)
	q := queue(t, table, "T", 0)
	putExts(t, q, 0, 5)
	table = reopen(t, table, all)
	q = table.Get("T", 0)
	before := tree(t, mem, testExtDir)
	for k := range int64(5) {
		must(t, q.PutExt(message.QueueOffset(k), unit(k), extUnit(k)))
		if changed, err := q.EnsureExt(message.QueueOffset(k), unit(k), extUnit(k)); changed || err != nil {
			t.Errorf("EnsureExt(%d) = %t, %v", k, changed, err)
		}
	}
	must(t, table.Sync(context.Background()))
	if diff := cmp.Diff(before, tree(t, mem, testExtDir)); diff != "" {
		t.Errorf("a replay of what is there made units: %s", diff)
	}
	// Another tags code, a lost unit.
	x := extUnit(9)
	if changed, err := q.EnsureExt(2, unit(2), x); !changed || err != nil {
		t.Errorf("other extension unit: %t, %v", changed, err)
	}
	var one [1]Unit
	q.Read(2, one[:])
	if got, err := q.GetExt(one[0].Tags); err != nil || !cmp.Equal(got, x) {
		t.Errorf("extension %+v, %v", got, err)
	}
	must(t, q.PutExt(5, unit(5), ExtUnit{Tags: 1, Bitmap: make([]byte, MaxExtUnitSize)})) // too long
	q.Read(5, one[:])
	if one[0].Tags != 1 && one[0] != unit(5) {
		t.Errorf("unit %+v", one[0])
	}
	must(t, table.Close())
}

// TestExtensionLost: without its files an extension is not an error of the
// queue, and new units do not take the addresses of old ones.
func TestExtensionLost(t *testing.T) {
	mem := memfs.New()
	table, _ := openTable(t, withExtension(mem), all)
	putExts(t, queue(t, table, "T", 0), 0, 5)
	must(t, table.Close())
	must(t, mem.Remove(extFile(0)))
	must(t, mem.Remove(extFile(100)))
	table, _ = openTable(t, withExtension(mem), all)
	q := table.Get("T", 0)
	for _, u := range content(t, q) {
		if _, err := q.GetExt(u.Tags); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("GetExt of a lost unit: %v", err)
		}
	}
	putExts(t, q, 5, 9)
	wantExts(t, q, 5)
	for _, u := range content(t, q)[:5] {
		if _, err := q.GetExt(u.Tags); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("GetExt of a lost unit: %v", err)
		}
	}
	must(t, table.Close())
}

func TestExtensionDamage(t *testing.T) {
	for name, damage := range map[string]func(tb testing.TB, fsys vfs.FS){
		"size field":      func(tb testing.TB, fsys vfs.FS) { overwrite(tb, fsys, extFile(0), []byte{0x7f, 0xff}, 30) },
		"size below":      func(tb testing.TB, fsys vfs.FS) { overwrite(tb, fsys, extFile(0), []byte{0, 3}, 30) },
		"bitmap length":   func(tb testing.TB, fsys vfs.FS) { overwrite(tb, fsys, extFile(0), []byte{0x7f, 0xff}, 48) },
		"zeros":           func(tb testing.TB, fsys vfs.FS) { overwrite(tb, fsys, extFile(0), make([]byte, 30), 30) },
		"foreign lengths": func(tb testing.TB, fsys vfs.FS) { writeFile(tb, fsys, extFile(350), []byte("x"), 7) },
	} {
		t.Run(name, func(t *testing.T) {
			mem := memfs.New()
			table, _ := openTable(t, withExtension(mem), all)
			putExts(t, queue(t, table, "T", 0), 0, 5)
			must(t, table.Close())
			damage(t, mem)
			table, _ = openTable(t, withExtension(mem), all)
			q := table.Get("T", 0)
			us := content(t, q)
			if x, err := q.GetExt(us[1].Tags); err == nil || !errors.Is(err, base.ErrNotFound) && !errors.Is(err, base.ErrCorrupt) {
				t.Errorf("damaged unit: %+v, %v", x, err)
			}
			for k := range int64(8) { // replay, and go on
				_, err := q.EnsureExt(message.QueueOffset(k), unit(k), extUnit(k))
				must(t, err)
			}
			if name == "foreign lengths" { // not usable: plain tags codes
				us = content(t, q)
				if us[7] != unit(7) {
					t.Errorf("unit %+v", us[7])
				}
			} else {
				wantExts(t, q, 0)
			}
			must(t, table.Close())
		})
	}
}

// TestExtensionTruncate: the end of the extension follows the queue's, and
// stale units behind it are gone.
func TestExtensionTruncate(t *testing.T) {
	for _, reopened := range []bool{false, true} {
		mem := memfs.New()
		table, _ := openTable(t, withExtension(mem), all)
		q := queue(t, table, "T", 0)
		putExts(t, q, 0, 10)
		if reopened {
			must(t, table.Close())
			table, _ = openTable(t, withExtension(mem), 400)
			q = table.Get("T", 0)
		} else {
			must(t, q.TruncateFrom(400))
		}
		wantState(t, q, state{0, 4, 400})
		wantExts(t, q, 0)
		putExts(t, q, 4, 5)
		wantExts(t, q, 0)
		table = reopen(t, table, all)
		wantExts(t, table.Get("T", 0), 0)
		must(t, table.Close())
		files := tree(t, mem, testExtDir)
		if len(files) != 2 || len(bytes.TrimRight(readFile(t, mem, extFile(100)), "\x00")) > 60 {
			t.Errorf("reopened %t: files %v", reopened, files)
		}
	}
}

func TestExtensionExpires(t *testing.T) {
	ffs := faultfs.New(memfs.New())
	opt := withExtension(ffs)
	table, _ := openTable(t, opt, all)
	q := queue(t, table, "T", 0)
	putExts(t, q, 0, 14) // files of 3 units
	must(t, table.WriteOut())
	bad := ffs.Inject(faultfs.Rule{Ops: faultfs.OpRemove, Match: func(c faultfs.Call) bool { return strings.HasPrefix(c.Name, testExtDir) }, Err: faultfs.ErrIO})
	if _, err := table.DeleteBefore(700); !errors.Is(err, faultfs.ErrIO) {
		t.Errorf("error %v", err)
	}
	bad.Remove()
	removed, err := table.DeleteBefore(700) // again, although the minimum stands (C7)
	must(t, err)
	var got []string
	for _, f := range removed {
		got = append(got, f.Path)
	}
	if want := []string{extFile(0), extFile(100)}; !slices.Equal(got, want) {
		t.Errorf("removed %q, want %q", got, want)
	}
	wantExts(t, q, 0)
	_, err = table.DeleteBefore(1 << 40)
	must(t, err)
	if files := tree(t, ffs, testExtDir); len(files) != 1 {
		t.Errorf("an expired queue keeps %v", files)
	}
	table = reopen(t, table, all)
	q = table.Get("T", 0)
	must(t, q.CorrectMin(1<<40))
	putExts(t, q, 14, 20)
	wantExts(t, q, 14)
	must(t, table.Close())
}

// TestExtensionWriteError: each call fails in turn with no space; nothing is
// lost, and every address leads to its unit.
func TestExtensionWriteError(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpWrite} {
		for nth := 1; ; nth++ {
			ffs := faultfs.New(memfs.New())
			opt := withExtension(ffs)
			opt.BufferBytes = 1
			table, _ := openTable(t, opt, all)
			q := queue(t, table, "T", 0)
			fault := ffs.Inject(faultfs.Rule{Ops: op, Nth: nth, Count: 1, Err: faultfs.ErrNoSpace, Short: 9})
			failed := 0
			for k := int64(0); k < 12; k++ {
				if err := q.PutExt(message.QueueOffset(k), unit(k), extUnit(k)); err != nil {
					if !errors.Is(err, base.ErrDiskFull) {
						t.Fatal(err)
					}
					failed++
					k--
					continue
				}
				if err := table.WriteOut(); err != nil {
					failed++
				}
			}
			must(t, table.WriteOut())
			wantExts(t, q, 0)
			table = reopen(t, table, all)
			wantState(t, table.Get("T", 0), state{0, 12, 1200})
			wantExts(t, table.Get("T", 0), 0)
			must(t, table.Close())
			if fault.Hits() == 0 {
				break
			}
			if failed != 1 {
				t.Errorf("%s %d: %d failures", op, nth, failed)
			}
		}
	}
}
