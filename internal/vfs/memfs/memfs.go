// Package memfs is a file system in memory for tests. Files are sparse maps of
// 4 KiB pages, so a file of 1 GiB costs what was written into it.
//
// A crashable file system (NewCrashable) also knows what is on stable storage,
// and CrashClone makes the file system that a power cut might leave. The model:
//
//   - A page of a file is durable as it was at the last File.Sync, or at the
//     last Mapping.Flush of a range that touches the page. Stores through a
//     mapping and WriteAt are alike. Of a page written since then a crash keeps
//     the durable content, the latest content, or the content at some moment
//     in between; pages are independent of each other.
//   - The length of a file is durable as of the last Sync. Flush makes it
//     durable up to the end of the flushed range. Unsynced truncations, in both
//     directions, happen or do not, independently of the pages.
//   - Reserved blocks are durable after Sync, or Flush of the range.
//   - Creations, removals and renames are durable after SyncDir. Until then a
//     crash leaves a name at any state of its history since the last SyncDir;
//     names are independent of each other, except that a rename does not lose
//     the file under both names, and that a renamed directory has exactly one.
//     A file without a name is gone, whatever was synced in it.
//   - MkdirAll is durable by itself.
//
// The model is harsher than any one real file system: a store that survives it
// relies on nothing but the promises in package vfs.
package memfs

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// FS is a file system in memory. It starts with an empty root directory, "/";
// relative names start there too. All methods may be called concurrently.
type FS struct {
	crashable bool
	seed      int64

	// One lock for everything: a crash must see all files at one moment.
	mu  sync.RWMutex
	rng *rand.Rand
	seq uint64 // changes so far; orders what is not durable

	root             *node
	capacity         int64 // bytes; 0: no limit
	used             int64 // bytes of allocated blocks of files that can be reached
	usage            *vfs.Usage
	requireAllocated bool
	now              func() int64
}

// unlimited is the size of a file system without a capacity.
const unlimited = 1 << 40

func (f *FS) limitLocked() int64 {
	if f.capacity > 0 {
		return f.capacity
	}
	return unlimited
}

var _ vfs.FS = (*FS)(nil)

// New makes an empty file system that does not keep track of what is durable.
func New() *FS { return newFS(false, 0) }

// NewCrashable makes an empty file system for CrashClone. The seed decides
// what clones look like; equal seeds and equal calls give equal clones.
func NewCrashable(seed int64) *FS { return newFS(true, seed) }

func newFS(crashable bool, seed int64) *FS {
	f := &FS{
		crashable: crashable,
		seed:      seed,
		rng:       rand.New(rand.NewPCG(uint64(seed), 0x6d656d6673)),
		now:       func() int64 { return time.Now().UnixMilli() },
	}
	f.root = &node{dir: true, links: 1, entries: map[string]*node{}, modTime: f.now()}
	return f
}

// SetCapacity limits the allocated blocks of all files together; what would go
// beyond fails with base.ErrDiskFull. Zero means no limit but 1 TiB. A store through a
// mapping into a page without a block panics with "SIGBUS" when there is none
// left: on a real system it would be a memory fault.
func (f *FS) SetCapacity(bytes int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.capacity = bytes
}

// Used returns the bytes of all allocated blocks.
func (f *FS) Used() int64 {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.used
}

// SetUsage makes DiskUsage answer u; nil: the truth again.
func (f *FS) SetUsage(u *vfs.Usage) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.usage = u
}

// SetNow replaces the clock (ms since 1970) that gives files their time.
func (f *FS) SetNow(now func() int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.now = now
}

// RequireAllocated makes every store through a mapping into a page that has no
// block panic, not only when the file system is full. It finds users that
// forget to allocate.
func (f *FS) RequireAllocated(on bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requireAllocated = on
}

// node is a file or a directory. FS.mu guards it.
type node struct {
	dir     bool
	modTime int64
	links   int  // names that lead here
	refs    int  // open files, mappings and locks
	locked  bool // by Lock

	// Of a directory: what it holds now, and for each name that changed since
	// the last SyncDir all states since then, oldest first; the first is the
	// durable one.
	entries map[string]*node
	history map[string][]nameState

	content
}

// nameState is what a name led to after one change.
type nameState struct {
	node *node  // nil: no such name
	seq  uint64 // of the change; 0 for the durable state
	link *rename
}

// rename ties the two changes of a rename together.
type rename struct {
	seq              uint64
	oldDir, newDir   *node
	oldName, newName string
	dir              bool // what was renamed is a directory
}

var errNotEmpty = syscall.ENOTEMPTY

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// split cuts a name into its components.
func split(name string) ([]string, error) {
	if name == "" {
		return nil, fs.ErrNotExist
	}
	if strings.IndexByte(name, 0) >= 0 {
		return nil, fs.ErrInvalid
	}
	clean := path.Clean("/" + filepath.ToSlash(name))
	if clean == "/" {
		return nil, nil
	}
	parts := strings.Split(clean[1:], "/")
	for _, p := range parts {
		if len(p) > 255 {
			return nil, syscall.ENAMETOOLONG
		}
	}
	return parts, nil
}

func (f *FS) walkLocked(parts []string) (*node, error) {
	n := f.root
	for _, p := range parts {
		if !n.dir {
			return nil, syscall.ENOTDIR
		}
		if n = n.entries[p]; n == nil {
			return nil, fs.ErrNotExist
		}
	}
	return n, nil
}

// parentLocked finds the directory of name and name's last component.
func (f *FS) parentLocked(name string) (dir *node, last string, err error) {
	parts, err := split(name)
	if err != nil {
		return nil, "", err
	}
	if len(parts) == 0 {
		return nil, "", fs.ErrInvalid // the root is nobody's entry
	}
	dir, err = f.walkLocked(parts[:len(parts)-1])
	if err != nil {
		return nil, "", err
	}
	if !dir.dir {
		return nil, "", syscall.ENOTDIR
	}
	return dir, parts[len(parts)-1], nil
}

func (f *FS) findLocked(name string) (*node, error) {
	parts, err := split(name)
	if err != nil {
		return nil, err
	}
	return f.walkLocked(parts)
}

// setNameLocked lets a name lead to n (nil: nowhere) and keeps the history.
func (f *FS) setNameLocked(dir *node, name string, n *node, link *rename) {
	old := dir.entries[name]
	f.seq++
	if f.crashable {
		h := dir.history[name]
		if h == nil {
			if dir.history == nil {
				dir.history = map[string][]nameState{}
			}
			h = append(h, nameState{node: old})
		}
		seq := f.seq
		if link != nil {
			seq = link.seq
		}
		dir.history[name] = append(h, nameState{node: n, seq: seq, link: link})
	}
	if n == nil {
		delete(dir.entries, name)
	} else {
		dir.entries[name] = n
		n.links++
	}
	if old != nil {
		old.links--
		f.releaseLocked(old)
	}
	dir.modTime = f.now()
}

// releaseLocked gives the blocks of a file back when nothing leads to it any
// more. Its content stays as long as a crash could bring it back.
func (f *FS) releaseLocked(n *node) {
	if n.links == 0 && n.refs == 0 && !n.dir {
		f.used -= n.allocated() * pageSize
	}
}

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.createLocked(name)
	if err != nil {
		return nil, pathError("create", name, err)
	}
	return f.newFileLocked(n, name, true), nil
}

func (f *FS) createLocked(name string) (*node, error) {
	dir, last, err := f.parentLocked(name)
	if err != nil {
		return nil, err
	}
	if dir.entries[last] != nil {
		return nil, fs.ErrExist
	}
	n := &node{modTime: f.now()}
	f.setNameLocked(dir, last, n, nil)
	return n, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string, mode vfs.Mode) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.findLocked(name)
	if err == nil && n.dir {
		err = errors.New("not a regular file")
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return f.newFileLocked(n, name, mode == vfs.ReadWrite), nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	dir, last, err := f.parentLocked(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	switch n := dir.entries[last]; {
	case n == nil:
		return pathError("remove", name, fs.ErrNotExist)
	case n.dir && len(n.entries) > 0:
		return pathError("remove", name, errNotEmpty)
	}
	f.setNameLocked(dir, last, nil, nil)
	return nil
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldName, newName string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.renameLocked(oldName, newName)
	if err != nil {
		return pathError("rename", oldName, fmt.Errorf("to %s: %w", newName, err))
	}
	return nil
}

func (f *FS) renameLocked(oldName, newName string) error {
	oldDir, oldLast, err := f.parentLocked(oldName)
	if err != nil {
		return err
	}
	n := oldDir.entries[oldLast]
	if n == nil {
		return fs.ErrNotExist
	}
	newDir, newLast, err := f.parentLocked(newName)
	if err != nil {
		return err
	}
	target := newDir.entries[newLast]
	switch {
	case target == n:
		return nil
	case target != nil && target.dir:
		return fs.ErrExist
	case n.dir && target != nil:
		return syscall.ENOTDIR
	case n.dir && inside(newDir, n):
		return fs.ErrInvalid
	}
	link := &rename{seq: f.seq + 1, oldDir: oldDir, newDir: newDir, oldName: oldLast, newName: newLast, dir: n.dir}
	f.setNameLocked(newDir, newLast, n, link)
	f.setNameLocked(oldDir, oldLast, nil, link)
	return nil
}

// inside reports whether d is top or somewhere below it.
func inside(d, top *node) bool {
	if d == top {
		return true
	}
	for _, n := range top.entries {
		if n.dir && inside(d, n) {
			return true
		}
	}
	return false
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	parts, err := split(name)
	if err != nil {
		return pathError("mkdir", name, err)
	}
	n := f.root
	for _, p := range parts {
		next := n.entries[p]
		if next == nil {
			next = &node{dir: true, links: 1, entries: map[string]*node{}, modTime: f.now()}
			f.seq++
			n.entries[p] = next
			delete(n.history, p) // durable at once
		}
		if !next.dir {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		n = next
	}
	return nil
}

// SyncDir implements vfs.FS.
func (f *FS) SyncDir(dir string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.findLocked(dir)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError("sync", dir, err)
	}
	f.seq++
	for _, states := range n.history {
		for _, s := range states {
			if s.link != nil && s.link.dir {
				settleRename(n, s.link)
			}
		}
	}
	n.history = nil
	return nil
}

// settleRename makes the other half of a directory's rename durable when the
// directory "synced" is: a directory has one place, never two.
func settleRename(synced *node, r *rename) {
	for _, side := range []struct {
		dir  *node
		name string
	}{{r.oldDir, r.oldName}, {r.newDir, r.newName}} {
		if side.dir == synced {
			continue
		}
		h := side.dir.history[side.name]
		i := slices.IndexFunc(h, func(s nameState) bool { return s.link == r })
		switch {
		case i < 0: // durable before
		case i == len(h)-1:
			delete(side.dir.history, side.name)
		default:
			h = slices.Clone(h[i:])
			h[0].seq, h[0].link = 0, nil
			side.dir.history[side.name] = h
		}
	}
}

// List implements vfs.FS.
func (f *FS) List(dir string) ([]vfs.Entry, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.findLocked(dir)
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("list", dir, err)
	}
	entries := make([]vfs.Entry, 0, len(n.entries))
	for name, e := range n.entries {
		entries = append(entries, e.entry(name))
	}
	slices.SortFunc(entries, func(a, b vfs.Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (vfs.Entry, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.findLocked(name)
	if err != nil {
		return vfs.Entry{}, pathError("stat", name, err)
	}
	return n.entry(filepath.Base(name)), nil
}

func (n *node) entry(name string) vfs.Entry {
	e := vfs.Entry{Name: name, Size: n.size, Mode: 0o644, ModTime: n.modTime, Allocated: n.allocated() * pageSize}
	if n.dir {
		e.Mode = fs.ModeDir | 0o755
	}
	return e
}

// Lock implements vfs.FS. A second Lock fails until the first is closed; a
// CrashClone has no locks.
func (f *FS) Lock(name string) (vfs.Lock, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.findLocked(name)
	if errors.Is(err, fs.ErrNotExist) {
		n, err = f.createLocked(name)
	}
	switch {
	case err != nil:
	case n.dir:
		err = errors.New("not a regular file")
	case n.locked:
		err = base.ErrLocked
	}
	if err != nil {
		return nil, pathError("lock", name, err)
	}
	n.locked = true
	return &lock{file: f.newFileLocked(n, name, true)}, nil
}

// Locked implements vfs.FS.
func (f *FS) Locked(name string) (bool, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	n, err := f.findLocked(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, pathError("lock", name, err)
	}
	return n.locked, nil
}

// DiskUsage implements vfs.FS: allocated blocks against the capacity.
func (f *FS) DiskUsage(dir string) (vfs.Usage, error) {
	f.mu.RLock()
	defer f.mu.RUnlock()
	if _, err := f.findLocked(dir); err != nil {
		return vfs.Usage{}, pathError("statfs", dir, err)
	}
	if f.usage != nil {
		return *f.usage, nil
	}
	total := f.limitLocked()
	return vfs.Usage{Total: total, Free: max(0, total-f.used), Used: f.used}, nil
}
