// Package overlayfs keeps all changes to a file system to itself. The file
// system below is only read, so a store can be opened, recovered and changed
// as ever and the directory on the disk stays as it is, byte for byte. That is
// what a dry run is.
//
// Files are copied page by page as they are written: in memory, and above some
// MiB in a temporary file without a name, which is gone when its process ends.
// Nothing is ever durable;
// Sync and SyncDir only answer. A file must be named in one way, either absolute
// or relative to the current directory.
//
// The base should not change meanwhile. Where another process adds to it,
// NewSnapshot keeps the names in each directory as they were when it was first
// listed, or they were first asked for; what is seen of the contents of files that change is not defined.
package overlayfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// FS is a file system above another one. All methods may be called
// concurrently.
type FS struct {
	base vfs.FS

	// One lock for names and contents. It is held during reads of the base,
	// shared by readers.
	mu sync.RWMutex
	// roots are the starting points of names: "/" and ".", on some systems one
	// for each volume.
	roots map[string]*node
	pages pages
	// unfinished is set for a snapshot: entries that it leaves out.
	unfinished func(vfs.Entry) bool
}

var _ vfs.FS = (*FS)(nil)

// New returns an empty overlay above base.
func New(base vfs.FS) *FS {
	return &FS{base: base, roots: map[string]*node{}, pages: pages{limit: memoryPages, temp: vfs.TempFile}}
}

// NewSnapshot is New for a base that another process adds files to: a name that
// comes into a directory after that was listed, or after somebody has asked for
// it in vain, does not exist here, and can be created. A file that goes is gone.
// Entries that are unfinished when a directory is first listed count as coming
// later.
func NewSnapshot(base vfs.FS, unfinished func(vfs.Entry) bool) *FS {
	f := New(base)
	f.unfinished = unfinished
	return f
}

// node is a file or directory that somebody has opened or changed. What has no
// node is as in the base. FS.mu guards it.
type node struct {
	mode    fs.FileMode // as in the base
	dir     bool        // a directory, or a link to one
	modTime int64
	refs    int // open files, mappings and locks
	locked  bool

	// below is the name in the base, or empty. For a directory it says where
	// names that are not in children come from. For a file, where pages come
	// from.
	below string

	// Of a directory: names that differ from the base or are in use. nil is a
	// name that was removed.
	children map[string]*node
	// listed are the names that the base had when a snapshot first listed the
	// directory; nil: it has not yet.
	listed map[string]struct{}

	changed bool // not what the base has under this name
	gone    bool // a file without a name

	content
}

const (
	filePerm = 0o644
	dirPerm  = 0o755
)

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

// split cuts a name into its root and the components.
func split(name string) (root string, parts []string, err error) {
	if name == "" {
		return "", nil, fs.ErrNotExist
	}
	if strings.IndexByte(name, 0) >= 0 {
		return "", nil, fs.ErrInvalid
	}
	name = filepath.Clean(name)
	root = filepath.VolumeName(name)
	rest := name[len(root):]
	if rest != "" && rest[0] == filepath.Separator {
		root += string(filepath.Separator)
		rest = rest[1:]
	}
	if root == "" {
		root = "."
	}
	if rest == "" || rest == "." {
		return root, nil, nil
	}
	parts = strings.Split(rest, string(filepath.Separator))
	for _, p := range parts {
		if len(p) > 255 {
			return "", nil, syscall.ENAMETOOLONG
		}
	}
	return root, parts, nil
}

func (f *FS) rootLocked(root string) *node {
	n := f.roots[root]
	if n == nil {
		n = &node{mode: fs.ModeDir | dirPerm, dir: true, below: root}
		f.roots[root] = n
	}
	return n
}

// childLocked finds name in dir. It makes a node for something of the base but
// does not enter it into the directory; walkLocked and openLocked do.
func (f *FS) childLocked(dir *node, name string) (*node, error) {
	if !dir.dir {
		return nil, syscall.ENOTDIR
	}
	if n, ok := dir.children[name]; ok {
		if n == nil {
			return nil, fs.ErrNotExist
		}
		return n, nil
	}
	if _, was := dir.listed[name]; dir.below == "" || dir.listed != nil && !was {
		return nil, fs.ErrNotExist
	}
	below := filepath.Join(dir.below, name)
	e, err := f.base.Stat(below)
	if f.unfinished != nil && errors.Is(err, fs.ErrNotExist) {
		dir.setChild(name, nil) // it may come, and must not come here
	}
	if err != nil {
		return nil, err
	}
	n := &node{mode: e.Mode, below: below, modTime: e.ModTime}
	if n.dir = e.IsDir() || f.leadsToDir(below, e); !n.dir {
		n.size, n.limit = e.Size, e.Size
		n.sizeUnknown = !e.IsRegular()
	}
	return n, nil
}

// leadsToDir reports whether a symbolic link of the base points to a
// directory: stores often have the commit log on a disk of its own.
func (f *FS) leadsToDir(below string, e vfs.Entry) bool {
	if e.Mode&fs.ModeSymlink == 0 {
		return false
	}
	target, err := f.base.Stat(below + string(filepath.Separator) + ".")
	return err == nil && target.IsDir()
}

// walkLocked finds a name. Directories on the way are kept when keep is true,
// and must be when something in them is to change.
func (f *FS) walkLocked(root string, parts []string, keep bool) (*node, error) {
	n := f.rootLocked(root)
	for _, p := range parts {
		next, err := f.childLocked(n, p)
		if err != nil {
			return nil, err
		}
		if (keep || f.unfinished != nil) && next.dir {
			n.setChild(p, next)
		}
		n = next
	}
	return n, nil
}

func (n *node) setChild(name string, child *node) {
	if n.children == nil {
		n.children = map[string]*node{}
	}
	n.children[name] = child
}

func (f *FS) findLocked(name string) (*node, error) {
	root, parts, err := split(name)
	if err != nil {
		return nil, err
	}
	return f.walkLocked(root, parts, false)
}

// parentLocked finds the directory of name, to change it, and the last part.
func (f *FS) parentLocked(name string) (dir *node, last string, err error) {
	root, parts, err := split(name)
	if err != nil {
		return nil, "", err
	}
	if len(parts) == 0 {
		return nil, "", fs.ErrInvalid // a root is nobody's entry
	}
	dir, err = f.walkLocked(root, parts[:len(parts)-1], true)
	if err == nil && !dir.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, "", err
	}
	return dir, parts[len(parts)-1], nil
}

// removeChild lets a name lead nowhere, also when the base has it.
func (n *node) removeChild(name string) {
	if n.below == "" {
		delete(n.children, name)
	} else {
		n.setChild(name, nil)
	}
	n.modTime = nowMillis()
}

func nowMillis() int64 { return time.Now().UnixMilli() }

// Create implements vfs.FS.
func (f *FS) Create(name string) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.lookLocked(name)
	if err == nil && at.node != nil {
		err = fs.ErrExist
	}
	if err != nil {
		return nil, pathError("create", name, err)
	}
	return f.createLocked(at), nil
}

// place is an entry of a directory. The node is nil when there is no such
// entry, or when nobody has entered it yet: see openLocked.
type place struct {
	dir  *node
	last string // name in dir
	name string // as the caller spelled it
	node *node
}

// lookLocked finds the place of a name, whether it exists or not. The
// directory of it must.
func (f *FS) lookLocked(name string) (place, error) {
	dir, last, err := f.parentLocked(name)
	if err != nil {
		return place{}, err
	}
	n, err := f.childLocked(dir, last)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return place{}, err
	}
	return place{dir: dir, last: last, name: name, node: n}, nil
}

func (f *FS) createLocked(at place) *file {
	at.node = &node{mode: filePerm, modTime: nowMillis(), changed: true, refs: 1}
	at.dir.setChild(at.last, at.node)
	at.dir.modTime = at.node.modTime
	return &file{fs: f, place: at, writable: true}
}

// openLocked opens what is in a place and enters it into the directory: all
// who open it must get the same node.
func (f *FS) openLocked(at place, writable bool) (*file, error) {
	if at.node == nil {
		return nil, fs.ErrNotExist
	}
	if at.node.dir {
		return nil, errors.New("not a regular file")
	}
	if err := f.acquireLocked(at.node); err != nil {
		return nil, err
	}
	at.dir.setChild(at.last, at.node)
	return &file{fs: f, place: at, writable: writable}, nil
}

// Open implements vfs.FS.
func (f *FS) Open(name string, mode vfs.Mode) (vfs.File, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	at, err := f.lookLocked(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	opened, err := f.openLocked(at, mode == vfs.ReadWrite)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return opened, nil
}

// Remove implements vfs.FS.
func (f *FS) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.removeNameLocked(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	return nil
}

func (f *FS) removeNameLocked(name string) error {
	at, err := f.lookLocked(name)
	if err != nil {
		return err
	}
	if at.node == nil {
		return fs.ErrNotExist
	}
	if at.node.dir {
		entries, err := f.listLocked(at.node)
		if err != nil {
			return err
		}
		if len(entries) > 0 {
			return syscall.ENOTEMPTY
		}
	}
	at.dir.removeChild(at.last)
	f.unlinkLocked(at.node)
	return nil
}

// unlinkLocked is called when a file has lost its name: its pages go with its
// last user.
func (f *FS) unlinkLocked(n *node) {
	n.gone = true
	if n.refs == 0 {
		f.forgetLocked(&n.content)
	}
}

// Rename implements vfs.FS.
func (f *FS) Rename(oldName, newName string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.renameLocked(oldName, newName); err != nil {
		return pathError("rename", oldName, fmt.Errorf("to %s: %w", newName, err))
	}
	return nil
}

func (f *FS) renameLocked(oldName, newName string) error {
	from, err := f.lookLocked(oldName)
	if err != nil {
		return err
	}
	n := from.node
	if n == nil {
		return fs.ErrNotExist
	}
	if n.dir {
		from.dir.setChild(from.last, n) // so that inside finds it
	}
	to, err := f.lookLocked(newName)
	if err != nil {
		return err
	}
	switch {
	case from.dir == to.dir && from.last == to.last:
		return nil
	case to.node != nil && to.node.dir:
		return fs.ErrExist
	case n.dir && to.node != nil:
		return syscall.ENOTDIR
	case n.dir && inside(to.dir, n):
		return fs.ErrInvalid
	}
	n.changed = true
	if to.node != nil {
		f.unlinkLocked(to.node)
	}
	to.dir.setChild(to.last, n)
	from.dir.removeChild(from.last)
	return nil
}

// inside reports whether d is top or somewhere below it. Directories on the
// way to d have nodes: parentLocked keeps them.
func inside(d, top *node) bool {
	if d == top {
		return true
	}
	for _, n := range top.children {
		if n != nil && n.dir && inside(d, n) {
			return true
		}
	}
	return false
}

// MkdirAll implements vfs.FS.
func (f *FS) MkdirAll(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	root, parts, err := split(name)
	if err != nil {
		return pathError("mkdir", name, err)
	}
	n := f.rootLocked(root)
	for _, p := range parts {
		next, err := f.childLocked(n, p)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			next = &node{mode: fs.ModeDir | dirPerm, dir: true, modTime: nowMillis(), changed: true}
		case err != nil:
			return pathError("mkdir", name, err)
		case !next.dir:
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		n.setChild(p, next)
		n = next
	}
	return nil
}

// SyncDir implements vfs.FS. Nothing is durable here.
func (f *FS) SyncDir(dir string) error {
	_, err := f.dirOf("sync", dir)
	return err
}

func (f *FS) dirOf(op, name string) (*node, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.findLocked(name)
	if err == nil && n.below != "" && n == f.roots[n.below] {
		_, err = f.base.Stat(n.below)
	}
	if err == nil && !n.dir {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError(op, name, err)
	}
	return n, nil
}

// List implements vfs.FS.
func (f *FS) List(dir string) ([]vfs.Entry, error) {
	n, err := f.dirOf("list", dir)
	if err != nil {
		return nil, err
	}
	if f.unfinished != nil {
		f.mu.Lock()
		defer f.mu.Unlock()
	} else {
		f.mu.RLock()
		defer f.mu.RUnlock()
	}
	entries, err := f.listLocked(n)
	if err != nil {
		return nil, pathError("list", dir, err)
	}
	return entries, nil
}

func (f *FS) listLocked(n *node) ([]vfs.Entry, error) {
	var entries []vfs.Entry
	if n.below != "" {
		below, err := f.base.List(n.below)
		if err != nil {
			return nil, err
		}
		if f.unfinished != nil && n.listed == nil {
			n.listed = make(map[string]struct{}, len(below))
			for _, e := range below {
				if !f.unfinished(e) {
					n.listed[e.Name] = struct{}{}
				}
			}
		}
		entries = slices.DeleteFunc(below, func(e vfs.Entry) bool {
			child, known := n.children[e.Name]
			_, was := n.listed[e.Name]
			return known && (child == nil || child.changed) || n.listed != nil && !was
		})
	}
	for name, child := range n.children {
		if child != nil && child.changed {
			entries = append(entries, child.entry(name))
		}
	}
	slices.SortFunc(entries, func(a, b vfs.Entry) int { return strings.Compare(a.Name, b.Name) })
	return entries, nil
}

func (n *node) entry(name string) vfs.Entry {
	e := vfs.Entry{Name: name, Mode: n.mode, ModTime: n.modTime} // Allocated: nothing of it is on the disk
	if e.IsRegular() {
		e.Size = n.size
	}
	return e
}

// Stat implements vfs.FS.
func (f *FS) Stat(name string) (vfs.Entry, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.findLocked(name)
	if err != nil {
		return vfs.Entry{}, pathError("stat", name, err)
	}
	return n.entry(filepath.Base(name)), nil
}

// Lock implements vfs.FS. It fails when somebody holds the lock in the base,
// or here. It does not take the lock in the base, so it keeps nobody out.
func (f *FS) Lock(name string) (vfs.Lock, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	opened, err := f.lockLocked(name)
	if err != nil {
		return nil, pathError("lock", name, err)
	}
	opened.node.locked = true
	return &lock{file: opened}, nil
}

func (f *FS) lockLocked(name string) (*file, error) {
	at, err := f.lookLocked(name)
	if err != nil {
		return nil, err
	}
	if at.node == nil {
		return f.createLocked(at), nil
	}
	held, err := f.heldLocked(at.node)
	if err != nil {
		return nil, err
	}
	if held {
		return nil, base.ErrLocked
	}
	return f.openLocked(at, true)
}

func (f *FS) heldLocked(n *node) (bool, error) {
	if n.locked || n.below == "" {
		return n.locked, nil
	}
	return f.base.Locked(n.below)
}

// Locked implements vfs.FS.
func (f *FS) Locked(name string) (bool, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	n, err := f.findLocked(name)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, pathError("lock", name, err)
	}
	held, err := f.heldLocked(n)
	if err != nil {
		return false, pathError("lock", name, err)
	}
	return held, nil
}

// DiskUsage implements vfs.FS: that of the base. A directory that only exists
// here is where its nearest parent in the base is.
func (f *FS) DiskUsage(dir string) (vfs.Usage, error) {
	if _, err := f.dirOf("statfs", dir); err != nil {
		return vfs.Usage{}, err
	}
	for {
		u, err := f.base.DiskUsage(dir)
		parent := filepath.Dir(dir)
		if !errors.Is(err, fs.ErrNotExist) || parent == dir {
			return u, err
		}
		dir = parent
	}
}
