// Package faultfs wraps a file system and makes calls fail, stop short, wait or
// never happen, as a test asks. Rules say which calls are hit (Inject); a crash
// point says from which change on nothing reaches the base any more (CrashAt);
// all calls are counted (Count).
//
// A sync or flush that a rule makes fail does to the base what a failed sync
// does in the kernel: the dirty pages are forgotten. Package memfs supports
// that; on other bases the pages stay.
package faultfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// Op is a set of kinds of calls.
type Op uint32

// The kinds of calls. The ones beginning with Map are calls of a mapping.
const (
	OpCreate Op = 1 << iota
	OpOpen
	OpRemove
	OpRename
	OpMkdirAll
	OpSyncDir
	OpList
	OpStat
	OpLock
	OpLocked
	OpDiskUsage

	OpRead
	OpWrite
	OpSize
	OpTruncate
	OpAllocate
	OpNextData
	OpSync
	OpMap
	OpClose

	OpMapRead
	OpMapWrite
	OpMapFlush
	OpMapPopulate
	OpMapAdvise
	OpMapLockMemory
	OpMapUnlockMemory
	OpMapUnmap

	opEnd

	// OpAll is every call.
	OpAll = opEnd - 1
	// OpMutating is every call that changes content, names or what is durable.
	// CrashAt counts these. Lock is not among them, although it may make an
	// empty file.
	OpMutating = OpCreate | OpRemove | OpRename | OpMkdirAll | OpSyncDir |
		OpWrite | OpTruncate | OpAllocate | OpSync | OpMapWrite | OpMapFlush
	// OpRelease is every call that gives something back. They reach the base
	// even after a crash.
	OpRelease = OpClose | OpMapUnmap
)

var opNames = [...]string{
	"create", "open", "remove", "rename", "mkdir", "syncdir", "list", "stat", "lock", "locked", "diskusage",
	"read", "write", "size", "truncate", "allocate", "nextdata", "sync", "map", "close",
	"mapread", "mapwrite", "mapflush", "mappopulate", "mapadvise", "maplock", "mapunlock", "unmap",
}

// String joins the names of the kinds by "|".
func (o Op) String() string {
	var names []string
	for i, name := range opNames {
		if o&(1<<i) != 0 {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, "|")
}

// Errors to inject.
var (
	// ErrCrashed is the answer to every call after the crash point.
	ErrCrashed = errors.New("faultfs: crashed")
	// ErrIO is what a broken disk says.
	ErrIO error = syscall.EIO
	// ErrNoSpace is what a full disk says.
	ErrNoSpace = fmt.Errorf("%w: %w", base.ErrDiskFull, syscall.ENOSPC)
)

// Call describes one call to rules.
type Call struct {
	Op      Op
	Name    string // as the file was opened, or the argument
	NewName string // of Rename
	Off, N  int64  // the range; Off is the new length of Truncate
}

// Rule says what happens to which calls. All conditions must hold; the zero
// value of each means any.
type Rule struct {
	Ops   Op
	Name  string          // pattern of filepath.Match for the base name, or for the whole name when it has a separator
	Match func(Call) bool // a further condition; must not call the file system

	Nth   int // of the calls that the conditions fit, the first that is hit, from 1; 0 is 1
	Count int // how many are hit; 0: all from then on

	// Hook runs before the call and outside of all locks. It may block, which
	// models a slow disk, and may use the file system.
	Hook func(Call)
	// Err is the answer; the base is not called. Nil: the call goes on, or to
	// the next rule that fits. An answer that is a plain error is wrapped into
	// a *fs.PathError.
	Err error
	// Short is how many bytes of a write (OpWrite, OpMapWrite) still reach the
	// base before Err. With Err nil a shorter OpWrite answers io.ErrShortWrite.
	Short int
	// KeepDirty makes a failing OpSync or OpMapFlush leave the dirty pages
	// alone.
	KeepDirty bool
}

// Injection is a rule at work.
type Injection struct {
	fs   *FS
	rule Rule
	seen int // guarded by FS.mu
	hits int
}

// Remove ends the rule.
func (i *Injection) Remove() {
	i.fs.mu.Lock()
	defer i.fs.mu.Unlock()
	i.fs.rules = slices.DeleteFunc(i.fs.rules, func(x *Injection) bool { return x == i })
}

// Hits is how many calls the rule has hit.
func (i *Injection) Hits() int {
	i.fs.mu.Lock()
	defer i.fs.mu.Unlock()
	return i.hits
}

// Counter counts calls.
type Counter struct {
	Calls  int64 // all, also those that failed
	Errors int64
	Bytes  int64 // read or written by those that did not fail
}

type counterKey struct {
	op   Op
	name string
}

// FS is a file system with faults. All methods may be called concurrently.
type FS struct {
	base vfs.FS

	mu       sync.Mutex
	rules    []*Injection
	counters map[counterKey]*Counter
	changes  int // mutating calls
	crashAt  int // -1: never
	crashed  bool
}

var _ vfs.FS = (*FS)(nil)

// New wraps base. Without rules everything goes through.
func New(base vfs.FS) *FS {
	return &FS{base: base, counters: map[counterKey]*Counter{}, crashAt: -1}
}

// CrashAt wraps base so that its first k mutating calls go through and then
// nothing does: every further call fails with ErrCrashed, apart from closing
// and unmapping. k = 0 lets no change through. A crash point beyond the end of
// the workload is never reached: see Crashed.
func CrashAt(base vfs.FS, k int) *FS {
	f := New(base)
	f.crashAt = k
	return f
}

// Crash lets nothing through from now on.
func (f *FS) Crash() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.crashed = true
}

// Crashed reports whether the crash point was reached.
func (f *FS) Crashed() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.crashed
}

// Changes is the number of mutating calls so far.
func (f *FS) Changes() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.changes
}

// Inject adds a rule. Rules are asked in the order in which they were added.
// It panics when the name is not a pattern.
func (f *FS) Inject(r Rule) *Injection {
	if _, err := filepath.Match(r.Name, ""); err != nil {
		panic("faultfs: pattern " + r.Name + ": " + err.Error())
	}
	i := &Injection{fs: f, rule: r}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(slices.Clip(f.rules), i)
	return i
}

// Fail makes all calls of the kinds, on names that fit the pattern, fail with
// err: the short form of Inject.
func (f *FS) Fail(ops Op, name string, err error) *Injection {
	return f.Inject(Rule{Ops: ops, Name: name, Err: err})
}

// Clear removes all rules.
func (f *FS) Clear() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = nil
}

// Count sums up the calls of the kinds on names that fit the pattern.
func (f *FS) Count(ops Op, name string) Counter {
	f.mu.Lock()
	defer f.mu.Unlock()
	var sum Counter
	for k, c := range f.counters {
		if k.op&ops != 0 && matchName(name, k.name) {
			sum.Calls += c.Calls
			sum.Errors += c.Errors
			sum.Bytes += c.Bytes
		}
	}
	return sum
}

// ResetCounts forgets all counters, but not how far the crash point is.
func (f *FS) ResetCounts() {
	f.mu.Lock()
	defer f.mu.Unlock()
	clear(f.counters)
}

func matchName(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	if !strings.ContainsRune(pattern, filepath.Separator) {
		name = filepath.Base(name)
	}
	ok, _ := filepath.Match(pattern, name)
	return ok
}

func (r *Rule) fits(c Call) bool {
	return (r.Ops == 0 || r.Ops&c.Op != 0) &&
		(matchName(r.Name, c.Name) || r.Name != "" && c.NewName != "" && matchName(r.Name, c.NewName)) &&
		(r.Match == nil || r.Match(c))
}

// fault is what the rules made of a call.
type fault struct {
	err       error
	short     int  // bytes that still go through, when err is not nil
	dropDirty bool // the failed call was a sync
}

// before decides about one call: a nil fault lets it through. The answer of a
// call must go to after.
func (f *FS) before(c Call) *fault {
	for _, i := range f.hits(c) {
		r := &i.rule
		if r.Hook != nil {
			r.Hook(c)
		}
		switch {
		case r.Err != nil:
			return &fault{
				err:       pathError(c, r.Err),
				short:     r.Short,
				dropDirty: c.Op&(OpSync|OpMapFlush) != 0 && !r.KeepDirty,
			}
		case r.Short > 0 && c.Op == OpWrite && int64(r.Short) < c.N:
			return &fault{err: pathError(c, io.ErrShortWrite), short: r.Short}
		}
	}
	// The crash comes last: a call that waited in a hook while the power went
	// must not reach the base afterwards.
	f.mu.Lock()
	defer f.mu.Unlock()
	if c.Op&OpMutating != 0 {
		if f.changes == f.crashAt {
			f.crashed = true
		}
		f.changes++
	}
	if f.crashed && c.Op&OpRelease == 0 {
		return &fault{err: pathError(c, ErrCrashed)}
	}
	return nil
}

// hits returns the rules that hit a call, in order, up to the first that
// answers it.
func (f *FS) hits(c Call) []*Injection {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.crashed {
		return nil
	}
	var hit []*Injection
	for _, i := range f.rules {
		if !i.rule.fits(c) {
			continue
		}
		i.seen++
		first := max(i.rule.Nth, 1)
		if i.seen < first || i.rule.Count > 0 && i.seen >= first+i.rule.Count {
			continue
		}
		i.hits++
		hit = append(hit, i)
		if i.rule.Err != nil {
			break
		}
	}
	return hit
}

// pathError wraps an injected error as a file system would have made it.
func pathError(c Call, err error) error {
	if _, ok := errors.AsType[*fs.PathError](err); !ok {
		err = &fs.PathError{Op: c.Op.String(), Path: c.Name, Err: err}
	}
	if (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)) && !errors.Is(err, base.ErrDiskFull) {
		err = fmt.Errorf("%w: %w", base.ErrDiskFull, err)
	}
	return err
}

// after counts a call.
func (f *FS) after(c Call, n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	k := counterKey{c.Op, c.Name}
	counter := f.counters[k]
	if counter == nil {
		counter = &Counter{}
		f.counters[k] = counter
	}
	counter.Calls++
	if err != nil && err != io.EOF {
		counter.Errors++
	} else {
		counter.Bytes += int64(n)
	}
}

// do runs a call that moves no bytes.
func (f *FS) do(c Call, call func() error) (err error) {
	if fault := f.before(c); fault != nil {
		err = fault.err
	} else {
		err = call()
	}
	f.after(c, 0, err)
	return err
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	return f.open(Call{Op: OpCreate, Name: name}, func() (vfs.File, error) { return f.base.Create(name) })
}

// Open implements vfs.FS.
func (f *FS) Open(name string, mode vfs.Mode) (vfs.File, error) {
	return f.open(Call{Op: OpOpen, Name: name}, func() (vfs.File, error) { return f.base.Open(name, mode) })
}

func (f *FS) open(c Call, call func() (vfs.File, error)) (vfs.File, error) {
	var opened vfs.File
	err := f.do(c, func() (err error) {
		opened, err = call()
		return err
	})
	if err != nil {
		return nil, err
	}
	return &file{fs: f, base: opened, name: c.Name}, nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	return f.do(Call{Op: OpRemove, Name: name}, func() error { return f.base.Remove(name) })
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldName, newName string) error {
	return f.do(Call{Op: OpRename, Name: oldName, NewName: newName}, func() error {
		return f.base.Rename(oldName, newName)
	})
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(dir string) error {
	return f.do(Call{Op: OpMkdirAll, Name: dir}, func() error { return f.base.MkdirAll(dir) })
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	return f.do(Call{Op: OpSyncDir, Name: dir}, func() error { return f.base.SyncDir(dir) })
}

// List implements vfs.FS.
func (f *FS) List(dir string) (entries []vfs.Entry, err error) {
	err = f.do(Call{Op: OpList, Name: dir}, func() (err error) {
		entries, err = f.base.List(dir)
		return err
	})
	return entries, err
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (entry vfs.Entry, err error) {
	err = f.do(Call{Op: OpStat, Name: name}, func() (err error) {
		entry, err = f.base.Stat(name)
		return err
	})
	return entry, err
}

// Lock implements vfs.FS.
func (f *FS) Lock(name string) (vfs.Lock, error) {
	var held vfs.Lock
	err := f.do(Call{Op: OpLock, Name: name}, func() (err error) {
		held, err = f.base.Lock(name)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &lock{fs: f, base: held, name: name}, nil
}

// Locked implements vfs.FS.
func (f *FS) Locked(name string) (held bool, err error) {
	err = f.do(Call{Op: OpLocked, Name: name}, func() (err error) {
		held, err = f.base.Locked(name)
		return err
	})
	return held, err
}

// DiskUsage implements vfs.FS.
func (f *FS) DiskUsage(dir string) (usage vfs.Usage, err error) {
	err = f.do(Call{Op: OpDiskUsage, Name: dir}, func() (err error) {
		usage, err = f.base.DiskUsage(dir)
		return err
	})
	return usage, err
}
