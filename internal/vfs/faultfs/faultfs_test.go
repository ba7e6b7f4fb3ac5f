package faultfs_test

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/internal/vfs/vfstest"
)

func TestConformance(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
		mem := memfs.NewCrashable(1)
		must(t, mem.MkdirAll("/d"))
		return faultfs.New(faultfs.New(mem)), "/d"
	})
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func newFile(t *testing.T, fsys vfs.FS, name, data string) vfs.File {
	t.Helper()
	f, err := fsys.Create(name)
	must(t, err)
	_, err = f.WriteAt([]byte(data), 0)
	must(t, err)
	return f
}

// calls makes one call of each kind and returns their errors. The file exists.
func calls(fsys vfs.FS) map[faultfs.Op]error {
	errs := map[faultfs.Op]error{}
	_, errs[faultfs.OpCreate] = fsys.Create("/new")
	f, err := fsys.Open("/f", vfs.ReadWrite)
	errs[faultfs.OpOpen] = err
	if f != nil {
		_, errs[faultfs.OpRead] = f.ReadAt(make([]byte, 1), 0)
		_, errs[faultfs.OpWrite] = f.WriteAt([]byte("x"), 0)
		_, errs[faultfs.OpSize] = f.Size()
		errs[faultfs.OpTruncate] = f.Truncate(100)
		errs[faultfs.OpAllocate] = f.Allocate(0, 100)
		_, errs[faultfs.OpNextData] = f.NextData(0)
		m, err := f.Map(true)
		errs[faultfs.OpMap] = err
		if m != nil {
			_, errs[faultfs.OpMapRead] = m.ReadAt(make([]byte, 1), 0)
			_, errs[faultfs.OpMapWrite] = m.WriteAt([]byte("x"), 0)
			errs[faultfs.OpMapFlush] = m.Flush(0, 1)
			errs[faultfs.OpMapPopulate] = m.Populate(0, 1)
			errs[faultfs.OpMapAdvise] = m.Advise(0, 1, vfs.WillNeed)
			errs[faultfs.OpMapLockMemory] = m.LockMemory(0, 1)
			errs[faultfs.OpMapUnlockMemory] = m.UnlockMemory(0, 1)
			errs[faultfs.OpMapUnmap] = m.Unmap()
		}
		errs[faultfs.OpSync] = f.Sync()
		errs[faultfs.OpClose] = f.Close()
	}
	errs[faultfs.OpMkdirAll] = fsys.MkdirAll("/d")
	errs[faultfs.OpSyncDir] = fsys.SyncDir("/")
	_, errs[faultfs.OpList] = fsys.List("/")
	_, errs[faultfs.OpStat] = fsys.Stat("/f")
	_, errs[faultfs.OpDiskUsage] = fsys.DiskUsage("/")
	l, err := fsys.Lock("/lock")
	errs[faultfs.OpLock] = err
	if l != nil {
		err := l.Close()
		errs[faultfs.OpClose] = errors.Join(errs[faultfs.OpClose], err)
	}
	_, errs[faultfs.OpLocked] = fsys.Locked("/lock")
	errs[faultfs.OpRename] = fsys.Rename("/f", "/g")
	errs[faultfs.OpRemove] = fsys.Remove("/g")
	if errs[faultfs.OpRename] != nil {
		errs[faultfs.OpRemove] = fsys.Remove("/f")
	}
	return errs
}

func TestFailEachKind(t *testing.T) {
	for op := faultfs.OpCreate; op&faultfs.OpAll != 0; op <<= 1 {
		t.Run(op.String(), func(t *testing.T) {
			fsys := faultfs.New(memfs.New())
			must(t, newFile(t, fsys, "/f", "data").Close())
			i := fsys.Fail(op, "", faultfs.ErrIO)
			for got, err := range calls(fsys) {
				if hit := got == op; hit != errors.Is(err, syscall.EIO) || !hit && err != nil {
					t.Errorf("%v: error %v", got, err)
				}
				if _, ok := errors.AsType[*fs.PathError](err); err != nil && !ok && got != faultfs.OpClose {
					t.Errorf("%v: %v is not a path error", got, err)
				}
			}
			if i.Hits() == 0 || fsys.Count(op, "").Errors != int64(i.Hits()) {
				t.Errorf("%d hits, counter %+v", i.Hits(), fsys.Count(op, ""))
			}
			i.Remove()
			if f, err := fsys.Create("/later"); err != nil {
				t.Errorf("after Remove: %v", err)
			} else {
				must(t, f.Close())
			}
		})
	}
}

func TestRuleConditions(t *testing.T) {
	tests := []struct {
		name string
		rule faultfs.Rule
		want string // which of the writes to a/x, b/y, a/x, b/y, a/x fail
	}{
		{"all", faultfs.Rule{}, "*****"},
		{"by base name", faultfs.Rule{Name: "x"}, "*.*.*"},
		{"by pattern", faultfs.Rule{Name: "[y-z]"}, ".*.*."},
		{"by path", faultfs.Rule{Name: "/a/*"}, "*.*.*"},
		{"by path of another", faultfs.Rule{Name: "/c/*"}, "....."},
		{"by func", faultfs.Rule{Match: func(c faultfs.Call) bool { return c.Off >= 3 }}, "...**"},
		{"from the second", faultfs.Rule{Nth: 2}, ".****"},
		{"only the second", faultfs.Rule{Nth: 2, Count: 1}, ".*..."},
		{"the first two", faultfs.Rule{Count: 2}, "**..."},
		{"second of a name", faultfs.Rule{Name: "x", Nth: 2, Count: 1}, "..*.."},
		{"other kinds", faultfs.Rule{Ops: faultfs.OpRead | faultfs.OpSync}, "....."},
		{"several kinds", faultfs.Rule{Ops: faultfs.OpRead | faultfs.OpWrite}, "*****"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := faultfs.New(memfs.New())
			must(t, fsys.MkdirAll("/a"))
			must(t, fsys.MkdirAll("/b"))
			files := []vfs.File{newFile(t, fsys, "/a/x", ""), newFile(t, fsys, "/b/y", "")}
			tt.rule.Err = faultfs.ErrIO
			fsys.Inject(tt.rule)
			got := ""
			for i := range 5 {
				_, err := files[i%2].WriteAt([]byte("w"), int64(i))
				got += map[bool]string{true: ".", false: "*"}[err == nil]
			}
			if got != tt.want {
				t.Errorf("failed %s, want %s", got, tt.want)
			}
			fsys.Clear()
			if _, err := files[0].WriteAt([]byte("w"), 0); err != nil {
				t.Errorf("after Clear: %v", err)
			}
		})
	}
}

func TestShortWrite(t *testing.T) {
	tests := []struct {
		name   string
		rule   faultfs.Rule
		mapped bool
		want   string
		err    error
	}{
		{"no space after three", faultfs.Rule{Short: 3, Err: faultfs.ErrNoSpace}, false, "new---", base.ErrDiskFull},
		{"without a reason", faultfs.Rule{Short: 3}, false, "new---", io.ErrShortWrite},
		{"longer than the write", faultfs.Rule{Short: 30}, false, "newnew", nil},
		{"errno is enough", faultfs.Rule{Short: 1, Err: syscall.ENOSPC}, false, "n-----", base.ErrDiskFull},
		{"mapped", faultfs.Rule{Short: 2, Err: vfs.ErrFault}, true, "ne----", vfs.ErrFault},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := faultfs.New(memfs.New())
			f := newFile(t, fsys, "/f", "------")
			m, err := f.Map(true)
			must(t, err)
			tt.rule.Ops = faultfs.OpWrite | faultfs.OpMapWrite
			fsys.Inject(tt.rule)
			var w io.WriterAt = f
			if tt.mapped {
				w = m
			}
			n, err := w.WriteAt([]byte("newnew"), 0)
			if !errors.Is(err, tt.err) {
				t.Errorf("error %v, want %v", err, tt.err)
			}
			got, err := vfs.ReadFile(fsys, "/f", 100)
			must(t, err)
			if string(got) != tt.want {
				t.Errorf("file holds %q, want %q", got, tt.want)
			}
			if want := len("newnew"); tt.err != nil {
				if want = tt.rule.Short; n != want {
					t.Errorf("n = %d, want %d", n, want)
				}
			}
		})
	}
}

// TestFailedSyncLosesPages: after a sync that failed, the data reads well, the
// next sync succeeds, and yet nothing of it is on the disk.
func TestFailedSyncLosesPages(t *testing.T) {
	tests := []struct {
		name   string
		rule   faultfs.Rule
		mapped bool
		want   string
	}{
		{"sync", faultfs.Rule{Ops: faultfs.OpSync, Count: 1}, false, "old"},
		{"flush", faultfs.Rule{Ops: faultfs.OpMapFlush, Count: 1}, true, "old"},
		{"kept", faultfs.Rule{Ops: faultfs.OpSync, Count: 1, KeepDirty: true}, false, "new"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			mem := memfs.NewCrashable(1)
			fsys := faultfs.New(mem)
			f := newFile(t, fsys, "/f", "old")
			must(t, f.Sync())
			must(t, fsys.SyncDir("/"))
			m, err := f.Map(true)
			must(t, err)
			tt.rule.Err = faultfs.ErrIO
			fsys.Inject(tt.rule)
			sync := f.Sync
			if tt.mapped {
				sync = func() error { return m.Flush(0, 3) }
				_, err = m.WriteAt([]byte("new"), 0)
			} else {
				_, err = f.WriteAt([]byte("new"), 0)
			}
			must(t, err)
			if err := sync(); !errors.Is(err, syscall.EIO) {
				t.Errorf("first sync: %v", err)
			}
			must(t, sync())
			read := func(fsys vfs.FS) string {
				b, err := vfs.ReadFile(fsys, "/f", 100)
				must(t, err)
				return string(b)
			}
			if got := read(fsys); got != "new" {
				t.Errorf("before the crash: %q", got)
			}
			if got := read(mem.CrashClone(memfs.KeepAll)); got != tt.want {
				t.Errorf("after the crash: %q, want %q", got, tt.want)
			}
			mem.DropCache()
			if got := read(mem); got != tt.want {
				t.Errorf("after eviction: %q, want %q", got, tt.want)
			}
		})
	}
}

// TestCrashAt: exactly the first k changes arrive.
func TestCrashAt(t *testing.T) {
	workload := func(fsys vfs.FS) error {
		if err := fsys.MkdirAll("/d"); err != nil { // 0
			return err
		}
		f, err := fsys.Create("/d/f") // 1
		if err != nil {
			return err
		}
		defer f.Close()
		if _, err := f.WriteAt([]byte("abc"), 0); err != nil { // 2
			return err
		}
		m, err := f.Map(true)
		if err != nil {
			return err
		}
		defer m.Unmap()
		if _, err := m.WriteAt([]byte("B"), 1); err != nil { // 3
			return err
		}
		if err := f.Truncate(2); err != nil { // 4
			return err
		}
		if err := f.Sync(); err != nil { // 5
			return err
		}
		if err := fsys.Rename("/d/f", "/d/g"); err != nil { // 6
			return err
		}
		if err := fsys.SyncDir("/d"); err != nil { // 7
			return err
		}
		return fsys.Remove("/d/g") // 8
	}
	states := []string{"none", "empty", "f:", "f:abc", "f:aBc", "f:aB", "f:aB", "g:aB", "g:aB", "empty"}
	stateOf := func(fsys vfs.FS) string {
		entries, err := fsys.List("/d")
		if err != nil {
			return "none"
		}
		for _, e := range entries {
			b, err := vfs.ReadFile(fsys, "/d/"+e.Name, 100)
			must(t, err)
			return fmt.Sprintf("%s:%s", e.Name, b)
		}
		return "empty"
	}
	for k := 0; ; k++ {
		mem := memfs.NewCrashable(1)
		fsys := faultfs.CrashAt(mem, k)
		err := workload(fsys)
		if got := stateOf(mem); got != states[k] {
			t.Errorf("k = %d: %s, want %s", k, got, states[k])
		}
		if !fsys.Crashed() {
			if err != nil || k != len(states)-1 || fsys.Changes() != k {
				t.Errorf("no crash with k = %d: %v, %d changes", k, err, fsys.Changes())
			}
			break
		}
		if !errors.Is(err, faultfs.ErrCrashed) {
			t.Errorf("k = %d: error %v", k, err)
		}
		// Dead for reading too.
		if _, err := fsys.List("/"); !errors.Is(err, faultfs.ErrCrashed) {
			t.Errorf("k = %d: List after the crash: %v", k, err)
		}
	}
}

func TestCrashReleases(t *testing.T) {
	mem := memfs.New()
	fsys := faultfs.New(mem)
	f := newFile(t, fsys, "/f", "x")
	m, err := f.Map(true)
	must(t, err)
	l, err := fsys.Lock("/lock")
	must(t, err)
	fsys.Crash()
	for op, err := range calls(fsys) {
		if !errors.Is(err, faultfs.ErrCrashed) {
			t.Errorf("%v after the crash: %v", op, err)
		}
	}
	for _, err := range []error{m.Unmap(), f.Close(), l.Close()} {
		must(t, err)
	}
	if held, err := mem.Locked("/lock"); held || err != nil {
		t.Errorf("the lock is held: %v, %v", held, err)
	}
}

// TestHook: a call can be held up while others go on, and the crash comes
// before it arrives.
func TestHook(t *testing.T) {
	mem := memfs.New()
	fsys := faultfs.New(mem)
	f, g := newFile(t, fsys, "/f", "-"), newFile(t, fsys, "/g", "-")
	arrived, release := make(chan faultfs.Call), make(chan struct{})
	fsys.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Name: "f", Hook: func(c faultfs.Call) {
		arrived <- c
		<-release
	}})
	done := make(chan error)
	go func() {
		_, err := f.WriteAt([]byte("slow"), 7)
		done <- err
	}()
	want := faultfs.Call{Op: faultfs.OpWrite, Name: "/f", Off: 7, N: 4}
	if diff := cmp.Diff(want, <-arrived); diff != "" {
		t.Errorf("call (-want +got):\n%s", diff)
	}
	if _, err := g.WriteAt([]byte("fast"), 0); err != nil {
		t.Error(err)
	}
	fsys.Crash()
	close(release)
	if err := <-done; !errors.Is(err, faultfs.ErrCrashed) {
		t.Errorf("write that waited: %v", err)
	}
	if got, _ := vfs.ReadFile(mem, "/f", 100); string(got) != "-" {
		t.Errorf("the write arrived: %q", got)
	}
}

func TestCounters(t *testing.T) {
	fsys := faultfs.New(memfs.New())
	f := newFile(t, fsys, "/f", "12345")
	must(t, newFile(t, fsys, "/g", "123").Close())
	if _, err := f.ReadAt(make([]byte, 100), 0); err != io.EOF {
		t.Fatal(err)
	}
	fsys.Fail(faultfs.OpWrite, "f", faultfs.ErrIO)
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Fatal("no error")
	}
	must(t, f.Sync())
	tests := []struct {
		ops  faultfs.Op
		name string
		want faultfs.Counter
	}{
		{faultfs.OpWrite, "f", faultfs.Counter{Calls: 2, Errors: 1, Bytes: 5}},
		{faultfs.OpWrite, "", faultfs.Counter{Calls: 3, Errors: 1, Bytes: 8}},
		{faultfs.OpRead, "/f", faultfs.Counter{Calls: 1, Bytes: 5}},
		{faultfs.OpSync | faultfs.OpCreate, "", faultfs.Counter{Calls: 3}},
		{faultfs.OpRemove, "", faultfs.Counter{}},
		{faultfs.OpAll, "none", faultfs.Counter{}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, fsys.Count(tt.ops, tt.name)); diff != "" {
			t.Errorf("%v of %q (-want +got):\n%s", tt.ops, tt.name, diff)
		}
	}
	fsys.ResetCounts()
	if c := fsys.Count(faultfs.OpAll, ""); c != (faultfs.Counter{}) {
		t.Errorf("after reset: %+v", c)
	}
}

// TestWriteFileAtomicFails: whichever call fails, the caller learns of it and
// the file holds the old or the new content; nothing else is left.
func TestWriteFileAtomicFails(t *testing.T) {
	for _, tt := range []struct {
		op   faultfs.Op
		want string
	}{
		{faultfs.OpCreate, "old"},
		{faultfs.OpWrite, "old"},
		{faultfs.OpSync, "old"},
		{faultfs.OpClose, "old"},
		{faultfs.OpRename, "old"},
		{faultfs.OpSyncDir, "new"}, // but not known to be durable
	} {
		t.Run(tt.op.String(), func(t *testing.T) {
			fsys := faultfs.New(memfs.New())
			must(t, vfs.WriteFileAtomic(fsys, "/f", []byte("old")))
			i := fsys.Fail(tt.op, "", faultfs.ErrIO)
			if err := vfs.WriteFileAtomic(fsys, "/f", []byte("new")); !errors.Is(err, syscall.EIO) {
				t.Errorf("error %v", err)
			}
			i.Remove()
			got, err := vfs.ReadFile(fsys, "/f", 100)
			must(t, err)
			entries, err := fsys.List("/")
			must(t, err)
			if string(got) != tt.want || len(entries) != 1 {
				t.Errorf("file holds %q, %d entries", got, len(entries))
			}
		})
	}
}

// TestWriteFileAtomicCrashes: a crash at each change leaves the old or the new
// content, and the new one once the call has returned.
func TestWriteFileAtomicCrashes(t *testing.T) {
	for k := 0; ; k++ {
		mem := memfs.NewCrashable(int64(k))
		must(t, vfs.WriteFileAtomic(mem, "/f", []byte("old")))
		fsys := faultfs.CrashAt(mem, k)
		err := vfs.WriteFileAtomic(fsys, "/f", []byte("new"))
		for _, p := range memfs.Policies() {
			for seed := range int64(20) {
				got, readErr := vfs.ReadFile(mem.CrashClone(p, seed), "/f", 100)
				must(t, readErr)
				if s := string(got); s != "new" && (s != "old" || err == nil) {
					t.Errorf("crash at %d, %v, seed %d: file holds %q, the call said %v", k, p, seed, s, err)
				}
			}
		}
		if !fsys.Crashed() {
			break
		}
	}
}

func TestBadPattern(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("no panic for a bad pattern")
		}
	}()
	faultfs.New(memfs.New()).Fail(faultfs.OpAll, "[", faultfs.ErrIO)
}
