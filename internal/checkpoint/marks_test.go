package checkpoint

import (
	"errors"
	"testing"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// Fault L1: the lock comes first, changes nothing but its own file, and holds
// off a second owner.
func TestL1Lock(t *testing.T) {
	fs := newFS(t)
	l, err := TakeLock(fs, dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := content(t, fs, "/store/lock"); len(got) != 0 {
		t.Errorf("TakeLock wrote %q", got)
	}
	if _, err := TakeLock(fs, dir); !errors.Is(err, base.ErrLocked) {
		t.Errorf("second lock: %v", err)
	}
	if err := MarkLock(l); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	after := fs.CrashClone(memfs.LoseUnsynced)
	if err := after.SyncDir(dir); err != nil {
		t.Fatal(err)
	}
	if got := content(t, fs, "/store/lock"); string(got) != "lock" {
		t.Errorf("content %q, want lock", got)
	}

	ffs := faultfs.New(fs)
	if l, err = TakeLock(ffs, dir); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if err := MarkLock(l); err != nil {
		t.Fatal(err)
	}
	if n := ffs.Changes(); n != 0 {
		t.Errorf("MarkLock made %d changes although the content is right", n)
	}
}

// Fault L17: abort is on stable storage when CreateAbort returns, and gone for
// good when RemoveAbort does.
func TestL17AbortIsDurable(t *testing.T) {
	for k := 0; ; k++ {
		mem := newFS(t)
		fs := faultfs.CrashAt(mem, k)
		created := CreateAbort(fs, dir, 4711) == nil
		again := created && CreateAbort(fs, dir, 12) == nil
		removed := again && RemoveAbort(fs, dir) == nil
		for _, policy := range memfs.Policies() {
			for seed := range int64(4) {
				after := mem.CrashClone(policy, seed)
				has, err := HasAbort(after, dir)
				if err != nil {
					t.Fatal(err)
				}
				if has && removed || !has && created && !again {
					t.Fatalf("crash at change %d, %v: abort exists: %v; created %v, removed %v", k, policy, has, created, removed)
				}
				if created && !again && has {
					// The second CreateAbort may have begun to write its pid.
					pid, ok, err := AbortPID(after, dir)
					if err != nil || ok && pid != 4711 && pid != 12 {
						t.Fatalf("pid %d %v %v", pid, ok, err)
					}
				}
			}
		}
		if !fs.Crashed() {
			return
		}
	}
}

func TestAbort(t *testing.T) {
	fs := newFS(t)
	check := func(want bool, wantPID int, wantOK bool) {
		t.Helper()
		has, err := HasAbort(fs, dir)
		if err != nil || has != want {
			t.Fatalf("HasAbort %v, %v, want %v", has, err, want)
		}
		pid, ok, err := AbortPID(fs, dir)
		if err != nil || ok != wantOK || pid != wantPID {
			t.Fatalf("AbortPID %d, %v, %v", pid, ok, err)
		}
	}
	check(false, 0, false)
	if err := RemoveAbort(fs, dir); err != nil {
		t.Fatal(err)
	}
	if err := CreateAbort(fs, dir, 1234567); err != nil {
		t.Fatal(err)
	}
	check(true, 1234567, true)
	if got := content(t, fs, "/store/abort"); string(got) != "1234567" {
		t.Errorf("content %q, want the number alone", got)
	}
	if err := CreateAbort(fs, dir, 89); err != nil { // shorter
		t.Fatal(err)
	}
	check(true, 89, true)
	if err := RemoveAbort(fs, dir); err != nil {
		t.Fatal(err)
	}
	check(false, 0, false)
	for _, b := range []string{"", "x", "-5", "99999999999999999999999"} { // 4.x leaves it empty
		setContent(t, fs, "/store/abort", []byte(b))
		check(true, 0, false)
		if err := fs.Remove("/store/abort"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAbortErrors(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpOpen, faultfs.OpWrite, faultfs.OpTruncate, faultfs.OpSync, faultfs.OpSyncDir} {
		fs := faultfs.New(newFS(t))
		setContent(t, fs, "/store/abort", []byte("1"))
		fs.Inject(faultfs.Rule{Ops: op, Err: faultfs.ErrIO})
		if err := CreateAbort(fs, dir, 1); !errors.Is(err, faultfs.ErrIO) {
			t.Errorf("CreateAbort with failing %v: %v", op, err)
		}
	}
	for _, op := range []faultfs.Op{faultfs.OpRemove, faultfs.OpSyncDir} {
		fs := faultfs.New(newFS(t))
		if err := CreateAbort(fs, dir, 1); err != nil {
			t.Fatal(err)
		}
		fs.Inject(faultfs.Rule{Ops: op, Err: faultfs.ErrIO})
		if err := RemoveAbort(fs, dir); !errors.Is(err, faultfs.ErrIO) {
			t.Errorf("RemoveAbort with failing %v: %v", op, err)
		}
	}
}

// TestAbortWithoutSpace: where the file cannot be made, nothing has changed.
func TestAbortWithoutSpace(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpWrite} {
		fs := faultfs.New(newFS(t))
		fs.Inject(faultfs.Rule{Ops: op, Err: faultfs.ErrNoSpace})
		if err := CreateAbort(fs, dir, 4711); !errors.Is(err, base.ErrDiskFull) {
			t.Errorf("no space for %v: %v", op, err)
		}
		if left, err := HasAbort(fs, dir); left || err != nil {
			t.Errorf("no space for %v: the file is there: %v, %v", op, left, err)
		}
	}
	fs := faultfs.New(newFS(t))
	setContent(t, fs, "/store/abort", []byte("123456"))
	fs.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Err: faultfs.ErrNoSpace})
	if err := CreateAbort(fs, dir, 1); !errors.Is(err, base.ErrDiskFull) {
		t.Errorf("no space: %v", err)
	}
	if pid, ok, err := AbortPID(fs, dir); pid != 123456 || !ok || err != nil {
		t.Errorf("the old file is gone: %d, %v, %v", pid, ok, err)
	}
}
