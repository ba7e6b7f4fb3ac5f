//go:build unix

package gantry

import (
	"io/fs"
	"syscall"
)

// inode is the number that identifies a file on its file system.
func inode(info fs.FileInfo) uint64 {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return 0
	}
	return uint64(st.Ino)
}
