package indexfile

import (
	"context"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

const (
	root = "/index"
	// start is where the clock of a test begins.
	start = 1_700_000_000_000
)

// tb is what tests, benchmarks, fuzz targets and rapid have in common.
type tb interface {
	Helper()
	Error(args ...any)
	Errorf(format string, args ...any)
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Cleanup(func())
}

// put is one message as the index sees it.
type put struct {
	phy    message.PhysicalOffset
	time   int64
	hashes []int32
}

// env is an index on a file system in memory with a clock that only the test
// moves.
type env struct {
	fs      vfs.FS
	opt     Options
	now     int64
	damage  []string // files reported by OnDamage
	reasons []string // … and why
	full    []int64  // end times reported by OnFull
	mu      sync.Mutex
}

func newEnv(fs vfs.FS, slots, entries int32) *env {
	e := &env{fs: fs, now: start}
	e.opt = Options{
		FS: fs, Dir: root, Slots: slots, Entries: entries, Location: time.UTC,
		Now: func() int64 { return e.now },
		OnDamage: func(file, reason string) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.damage = append(e.damage, filepath.Base(file))
			e.reasons = append(e.reasons, reason)
		},
		OnFull: func(end int64) {
			e.mu.Lock()
			defer e.mu.Unlock()
			e.full = append(e.full, end)
		},
	}
	return e
}

// everything is an OpenState that excludes no entry.
func everything(clean bool) OpenState {
	return OpenState{Clean: clean, LogEnd: math.MaxInt64}
}

func (e *env) open(t tb, st OpenState) (*Index, message.PhysicalOffset, Report) {
	t.Helper()
	x, from, rep, err := Open(context.Background(), e.opt, st)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x, from, rep
}

// reopen closes x in order and opens it again with the state of its last sync.
func (e *env) reopen(t tb, x *Index) (*Index, message.PhysicalOffset, Report) {
	t.Helper()
	st, err := x.Sync()
	if err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	return e.open(t, OpenState{Trusted: &st, Clean: true, LogEnd: math.MaxInt64})
}

func mustPut(t tb, x *Index, ps ...put) {
	t.Helper()
	for _, p := range ps {
		if err := x.Put(p.phy, p.time, p.hashes); err != nil {
			t.Fatalf("put %v: %v", p, err)
		}
	}
}

func mustSync(t tb, x *Index) State {
	t.Helper()
	st, err := x.Sync()
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func lookup(t tb, x *Index, hash int32, begin, end int64) []message.PhysicalOffset {
	t.Helper()
	var got []message.PhysicalOffset
	for c, err := range x.Lookup(hash, begin, end) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, c.Phy)
	}
	return got
}

func lookupAll(t tb, x *Index, hash int32) []message.PhysicalOffset {
	t.Helper()
	return lookup(t, x, hash, 0, math.MaxInt64)
}

// hits is the right answer: newest first, each message once.
func hits(ps []put, hash int32) []message.PhysicalOffset {
	var want []message.PhysicalOffset
	for _, p := range slices.Backward(ps) {
		if slices.Contains(p.hashes, hash) {
			want = append(want, p.phy)
		}
	}
	return want
}

// verify looks up every key.
func verify(t tb, x *Index, ps []put) {
	t.Helper()
	seen := map[int32]bool{}
	for _, p := range ps {
		for _, h := range p.hashes {
			if seen[h] {
				continue
			}
			seen[h] = true
			if d := cmp.Diff(hits(ps, h), lookupAll(t, x, h)); d != "" {
				t.Fatalf("hash %d (-want +got):\n%s", h, d)
			}
		}
	}
}

func readFile(t tb, fs vfs.FS, path string) []byte {
	t.Helper()
	f, err := fs.Open(path, vfs.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, size)
	if _, err := f.ReadAt(b, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	return b
}

func writeFile(t tb, fs vfs.FS, path string, b []byte) {
	t.Helper()
	if err := fs.MkdirAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if _, err := fs.Stat(path); err == nil {
		if err := fs.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
	f, err := fs.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := fs.SyncDir(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
}

// change alters one file in place.
func change(t tb, fs vfs.FS, path string, fn func(f vfs.File)) {
	t.Helper()
	f, err := fs.Open(path, vfs.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	fn(f)
	if err := f.Sync(); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
}

func names(t tb, fs vfs.FS) []string {
	t.Helper()
	entries, err := fs.List(root)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name)
	}
	return out
}

// snapshot is the content of the directory.
func snapshot(t tb, fs vfs.FS) map[string]string {
	t.Helper()
	m := map[string]string{}
	for _, n := range names(t, fs) {
		m[n] = string(readFile(t, fs, filepath.Join(root, n)))
	}
	return m
}

// sequence makes n messages of 100 bytes from position first on, one second
// apart, with two keys each: one of their own and one that others share.
func sequence(first message.PhysicalOffset, n int) []put {
	ps := make([]put, n)
	for i := range ps {
		phy := first + message.PhysicalOffset(100*i)
		ps[i] = put{phy, start + int64(phy)*10, []int32{(int32(phy)*7919 + 13) & math.MaxInt32, int32(phy/100)%5 + 1}}
	}
	return ps
}

// check reads a file raw and verifies invariants 29 to 33 and 36 of the format.
func check(t tb, fs vfs.FS, path string, g Geometry) {
	t.Helper()
	r, err := OpenReader(fs, path, g)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if r.Wrong() != "" {
		t.Fatalf("%s: %s", path, r.Wrong())
	}
	if r.Geometry() != g || r.Size() != g.Size() {
		t.Fatalf("%s: geometry %v, size %d, want %v", path, r.Geometry(), r.Size(), g)
	}
	h := r.Header()
	newest := map[int32]int32{}
	last := message.PhysicalOffset(0)
	err = r.Entries(firstEntry, h.next(), func(e int32, en Entry) bool {
		slot := en.Hash % g.Slots
		if en.Hash < 0 || en.Phy < last || en.Prev != newest[slot] {
			t.Errorf("%s: entry %d is %+v, want previous %d, at least at %d", path, e, en, newest[slot], last)
		}
		newest[slot], last = e, en.Phy
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	slots := map[int32]int32{}
	if err := r.Slots(func(slot, v int32) bool { slots[slot] = v; return true }); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(newest, slots); d != "" {
		t.Errorf("%s: slots (-want +got):\n%s", path, d)
	}
	if int(h.SlotCount) != len(slots) {
		t.Errorf("%s: header has %d slots in use, there are %d", path, h.SlotCount, len(slots))
	}
	if h.HasEntries() && (last != h.EndPhy || h.BeginTime > h.EndTime) {
		t.Errorf("%s: header %+v, last entry at %d", path, h, last)
	}
	err = r.Entries(h.next(), g.Entries, func(e int32, en Entry) bool {
		if en != (Entry{}) {
			t.Errorf("%s: entry %d behind the last is %+v", path, e, en)
		}
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
}

func checkAll(t tb, e *env) {
	t.Helper()
	for _, n := range names(t, e.fs) {
		if isFileName(n) {
			check(t, e.fs, filepath.Join(root, n), e.opt.geometry())
		}
	}
}

func newMem() *memfs.FS { return memfs.NewCrashable(1) }

func phys(ps ...int) []message.PhysicalOffset {
	var out []message.PhysicalOffset
	for _, p := range ps {
		out = append(out, message.PhysicalOffset(p))
	}
	return out
}

func ExampleGeometry_Size() {
	fmt.Println(DefaultGeometry.Size())
	// Output: 420000040
}
