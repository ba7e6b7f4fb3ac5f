//go:build unix

package vfs

import (
	"io/fs"
	"syscall"
)

// statBlock is the unit of st_blocks, whatever the file system's block is.
const statBlock = 512

// allocatedOf returns the bytes of a regular file's blocks.
func allocatedOf(fi fs.FileInfo) int64 {
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int64(st.Blocks) * statBlock
	}
	return fi.Size()
}
