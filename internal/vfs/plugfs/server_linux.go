//go:build amd64 || arm64

package plugfs

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"path"
	"sync/atomic"
	"syscall"
	"time"

	fusefs "github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
)

// server serves one vfs.FS at one mount point.
type server struct {
	fsys vfs.FS
	fuse *fuse.Server
	// What requests are answered with instead of being done: every one, or
	// those that change something. 0: none.
	dead, frozen atomic.Int32
}

// mount serves fsys at dir.
func mount(dir string, fsys vfs.FS) (*server, error) {
	s := &server{fsys: fsys}
	long := time.Hour // nobody but the kernel changes anything
	never := time.Duration(0)
	f, err := fusefs.Mount(dir, &node{s: s}, &fusefs.Options{
		EntryTimeout: &long, AttrTimeout: &long, NegativeTimeout: &never,
		MountOptions: fuse.MountOptions{
			DirectMountStrict: true, FsName: "plugfs", Name: "plugfs", DisableXAttrs: true,
			// Otherwise the kernel drops a file's pages when its time changes,
			// and a page that it reads again while a write of it is under way
			// stays in the cache as it was before that write.
			ExplicitDataCacheControl: true,
		},
	})
	if err != nil {
		return nil, err
	}
	s.fuse = f
	return s, nil
}

// kill answers every request with an error from now on.
func (s *server) kill() { s.dead.Store(int32(syscall.EIO)) }

// freeze answers with errno what would change something; 0 ends it.
func (s *server) freeze(errno syscall.Errno) { s.frozen.Store(int32(errno)) }

func (s *server) mayRead() syscall.Errno { return syscall.Errno(s.dead.Load()) }

func (s *server) mayWrite() syscall.Errno {
	if errno := s.mayRead(); errno != 0 {
		return errno
	}
	return syscall.Errno(s.frozen.Load())
}

// errnoOf makes an error of a vfs.FS one of the system.
func errnoOf(err error) syscall.Errno {
	var errno syscall.Errno
	switch {
	case err == nil:
		return 0
	case errors.Is(err, base.ErrDiskFull):
		return syscall.ENOSPC
	case errors.As(err, &errno):
		return errno
	case errors.Is(err, fs.ErrNotExist):
		return syscall.ENOENT
	case errors.Is(err, fs.ErrExist):
		return syscall.EEXIST
	case errors.Is(err, fs.ErrInvalid):
		return syscall.EINVAL
	}
	return syscall.EIO
}

// node is a file or directory that the kernel knows. It has no state of its
// own: its place in the tree is its name.
type node struct {
	fusefs.Inode
	s *server
}

var (
	_ fusefs.NodeLookuper  = (*node)(nil)
	_ fusefs.NodeGetattrer = (*node)(nil)
	_ fusefs.NodeSetattrer = (*node)(nil)
	_ fusefs.NodeOpener    = (*node)(nil)
	_ fusefs.NodeCreater   = (*node)(nil)
	_ fusefs.NodeMkdirer   = (*node)(nil)
	_ fusefs.NodeUnlinker  = (*node)(nil)
	_ fusefs.NodeRmdirer   = (*node)(nil)
	_ fusefs.NodeRenamer   = (*node)(nil)
	_ fusefs.NodeReaddirer = (*node)(nil)
	_ fusefs.NodeFsyncer   = (*node)(nil)
	_ fusefs.NodeStatfser  = (*node)(nil)
)

func (n *node) name(elem ...string) string {
	return path.Join(append([]string{"/", n.Path(nil)}, elem...)...)
}

func fill(out *fuse.Attr, e vfs.Entry) {
	out.Mode = syscall.S_IFREG | 0o644
	if e.IsDir() {
		out.Mode = syscall.S_IFDIR | 0o755
	}
	out.Size, out.Blocks, out.Blksize = uint64(e.Size), uint64(e.Allocated)/512, 4096
	t := time.UnixMilli(e.ModTime)
	out.SetTimes(&t, &t, &t)
	out.Nlink = 1
}

// child returns the inode of a name below n. One that the kernel knows already
// must be that one again: it has the page cache.
func (n *node) child(ctx context.Context, name string, e vfs.Entry) *fusefs.Inode {
	if known := n.GetChild(name); known != nil {
		return known
	}
	mode := uint32(syscall.S_IFREG)
	if e.IsDir() {
		mode = syscall.S_IFDIR
	}
	return n.NewInode(ctx, &node{s: n.s}, fusefs.StableAttr{Mode: mode})
}

func (n *node) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	if errno := n.s.mayRead(); errno != 0 {
		return nil, errno
	}
	e, err := n.s.fsys.Stat(n.name(name))
	if err != nil {
		return nil, errnoOf(err)
	}
	fill(&out.Attr, e)
	return n.child(ctx, name, e), 0
}

func (n *node) Getattr(_ context.Context, f fusefs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	if errno := n.s.mayRead(); errno != 0 {
		return errno
	}
	if h, ok := f.(*handle); ok { // its name may be gone
		size, err := h.f.Size()
		if err != nil {
			return errnoOf(err)
		}
		fill(&out.Attr, vfs.Entry{Size: size, Allocated: size, ModTime: time.Now().UnixMilli()})
		if e, err := n.s.fsys.Stat(n.name()); err == nil && e.Size == size {
			fill(&out.Attr, e)
		}
		return 0
	}
	e, err := n.s.fsys.Stat(n.name())
	if err != nil {
		return errnoOf(err)
	}
	fill(&out.Attr, e)
	return 0
}

func (n *node) Setattr(ctx context.Context, f fusefs.FileHandle, in *fuse.SetAttrIn, out *fuse.AttrOut) syscall.Errno {
	if size, ok := in.GetSize(); ok {
		if errno := n.s.mayWrite(); errno != 0 {
			return errno
		}
		file, done, errno := n.writable(f)
		if errno != 0 {
			return errno
		}
		defer done()
		if err := file.Truncate(int64(size)); err != nil {
			return errnoOf(err)
		}
	}
	return n.Getattr(ctx, f, out)
}

// writable returns the file of a handle, or opens the one with the node's name.
func (n *node) writable(f fusefs.FileHandle) (file vfs.File, done func(), errno syscall.Errno) {
	if h, ok := f.(*handle); ok {
		return h.f, func() {}, 0
	}
	file, err := n.s.fsys.Open(n.name(), vfs.ReadWrite)
	if err != nil {
		return nil, nil, errnoOf(err)
	}
	return file, func() { _ = file.Close() }, 0
}

func (n *node) Open(_ context.Context, flags uint32) (fusefs.FileHandle, uint32, syscall.Errno) {
	mode, errno := vfs.ReadOnly, n.s.mayRead()
	if flags&syscall.O_ACCMODE != syscall.O_RDONLY {
		mode, errno = vfs.ReadWrite, n.s.mayWrite()
	}
	if errno != 0 {
		return nil, 0, errno
	}
	f, err := n.s.fsys.Open(n.name(), mode)
	if err != nil {
		return nil, 0, errnoOf(err)
	}
	return &handle{n.s, f}, fuse.FOPEN_KEEP_CACHE, 0
}

func (n *node) Create(ctx context.Context, name string, _, _ uint32, out *fuse.EntryOut) (*fusefs.Inode, fusefs.FileHandle, uint32, syscall.Errno) {
	if errno := n.s.mayWrite(); errno != 0 {
		return nil, nil, 0, errno
	}
	f, err := n.s.fsys.Create(n.name(name))
	if err != nil {
		return nil, nil, 0, errnoOf(err)
	}
	e, err := n.s.fsys.Stat(n.name(name))
	if err != nil {
		return nil, nil, 0, errnoOf(err)
	}
	fill(&out.Attr, e)
	in := n.NewInode(ctx, &node{s: n.s}, fusefs.StableAttr{Mode: syscall.S_IFREG})
	return in, &handle{n.s, f}, fuse.FOPEN_KEEP_CACHE, 0
}

func (n *node) Mkdir(ctx context.Context, name string, _ uint32, out *fuse.EntryOut) (*fusefs.Inode, syscall.Errno) {
	if errno := n.s.mayWrite(); errno != 0 {
		return nil, errno
	}
	full := n.name(name)
	if _, err := n.s.fsys.Stat(full); err == nil {
		return nil, syscall.EEXIST
	}
	if err := n.s.fsys.MkdirAll(full); err != nil {
		return nil, errnoOf(err)
	}
	e, err := n.s.fsys.Stat(full)
	if err != nil {
		return nil, errnoOf(err)
	}
	fill(&out.Attr, e)
	return n.child(ctx, name, e), 0
}

func (n *node) Unlink(_ context.Context, name string) syscall.Errno { return n.remove(name) }
func (n *node) Rmdir(_ context.Context, name string) syscall.Errno  { return n.remove(name) }

func (n *node) remove(name string) syscall.Errno {
	if errno := n.s.mayWrite(); errno != 0 {
		return errno
	}
	return errnoOf(n.s.fsys.Remove(n.name(name)))
}

func (n *node) Rename(_ context.Context, name string, newParent fusefs.InodeEmbedder, newName string, flags uint32) syscall.Errno {
	if errno := n.s.mayWrite(); errno != 0 {
		return errno
	}
	if flags != 0 {
		return syscall.EINVAL
	}
	return errnoOf(n.s.fsys.Rename(n.name(name), newParent.(*node).name(newName)))
}

func (n *node) Readdir(context.Context) (fusefs.DirStream, syscall.Errno) {
	if errno := n.s.mayRead(); errno != 0 {
		return nil, errno
	}
	entries, err := n.s.fsys.List(n.name())
	if err != nil {
		return nil, errnoOf(err)
	}
	list := make([]fuse.DirEntry, len(entries))
	for i, e := range entries {
		list[i] = fuse.DirEntry{Name: e.Name, Mode: syscall.S_IFREG}
		if e.IsDir() {
			list[i].Mode = syscall.S_IFDIR
		}
	}
	return fusefs.NewListDirStream(list), 0
}

func (n *node) Fsync(_ context.Context, f fusefs.FileHandle, _ uint32) syscall.Errno {
	if errno := n.s.mayWrite(); errno != 0 {
		return errno
	}
	if h, ok := f.(*handle); ok {
		return errnoOf(h.f.Sync())
	}
	return errnoOf(n.s.fsys.SyncDir(n.name()))
}

func (n *node) Statfs(_ context.Context, out *fuse.StatfsOut) syscall.Errno {
	if errno := n.s.mayRead(); errno != 0 {
		return errno
	}
	u, err := n.s.fsys.DiskUsage(n.name())
	if err != nil {
		return errnoOf(err)
	}
	const unit = 4096
	out.Bsize, out.Frsize, out.NameLen = unit, unit, 255
	out.Blocks, out.Bfree, out.Bavail = uint64(u.Total)/unit, uint64(u.Total-u.Used)/unit, uint64(u.Free)/unit
	return 0
}

// handle is an open file.
type handle struct {
	s *server
	f vfs.File
}

var (
	_ fusefs.FileReader    = (*handle)(nil)
	_ fusefs.FileWriter    = (*handle)(nil)
	_ fusefs.FileAllocater = (*handle)(nil)
	_ fusefs.FileLseeker   = (*handle)(nil)
	_ fusefs.FileReleaser  = (*handle)(nil)
)

func (h *handle) Read(_ context.Context, dest []byte, off int64) (fuse.ReadResult, syscall.Errno) {
	if errno := h.s.mayRead(); errno != 0 {
		return nil, errno
	}
	n, err := h.f.ReadAt(dest, off)
	if err != nil && err != io.EOF {
		return nil, errnoOf(err)
	}
	return fuse.ReadResultData(dest[:n]), 0
}

func (h *handle) Write(_ context.Context, data []byte, off int64) (uint32, syscall.Errno) {
	if errno := h.s.mayWrite(); errno != 0 {
		return 0, errno
	}
	n, err := h.f.WriteAt(data, off)
	return uint32(n), errnoOf(err)
}

func (h *handle) Allocate(_ context.Context, off, size uint64, mode uint32) syscall.Errno {
	if errno := h.s.mayWrite(); errno != 0 {
		return errno
	}
	if mode != unix.FALLOC_FL_KEEP_SIZE {
		return syscall.ENOTSUP
	}
	return errnoOf(h.f.Allocate(int64(off), int64(size)))
}

func (h *handle) Lseek(_ context.Context, off uint64, whence uint32) (uint64, syscall.Errno) {
	if errno := h.s.mayRead(); errno != 0 {
		return 0, errno
	}
	size, err := h.f.Size()
	if err != nil {
		return 0, errnoOf(err)
	}
	switch {
	case off >= uint64(size):
		return 0, syscall.ENXIO
	case whence == unix.SEEK_HOLE:
		return uint64(size), 0
	case whence != unix.SEEK_DATA:
		return 0, syscall.EINVAL
	}
	next, err := h.f.NextData(int64(off))
	if err == nil && next >= size {
		return 0, syscall.ENXIO
	}
	return uint64(next), errnoOf(err)
}

func (h *handle) Release(context.Context) syscall.Errno { return errnoOf(h.f.Close()) }
