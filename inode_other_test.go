//go:build !unix

package gantry

import "io/fs"

// inode: other systems do not number files in the same way.
func inode(fs.FileInfo) uint64 { return 0 }
