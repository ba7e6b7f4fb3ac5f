//go:build darwin || freebsd

package vfs

import (
	"io/fs"

	"golang.org/x/sys/unix"
)

func (osFS) DiskUsage(dir string) (Usage, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	unit := int64(st.Bsize)
	return Usage{
		Total: int64(st.Blocks) * unit,
		Free:  int64(st.Bavail) * unit,
		Used:  int64(st.Blocks-st.Bfree) * unit,
	}, nil
}
