//go:build unix && !linux && !darwin && !freebsd

package vfs

import (
	"errors"
	"io/fs"
)

func (osFS) DiskUsage(dir string) (Usage, error) {
	return Usage{}, &fs.PathError{Op: "statfs", Path: dir, Err: errors.ErrUnsupported}
}
