package memfs_test

import (
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/internal/vfs/vfstest"
)

func TestConformance(t *testing.T) {
	tests := []struct {
		name  string
		newFS func() *memfs.FS
	}{
		{"plain", memfs.New},
		{"crashable", func() *memfs.FS { return memfs.NewCrashable(1) }},
		{"clone", func() *memfs.FS { return memfs.NewCrashable(1).CrashClone(memfs.KeepAll) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			vfstest.Run(t, func(t *testing.T) (vfs.FS, string) {
				fsys := tt.newFS()
				if err := fsys.MkdirAll("/store"); err != nil {
					t.Fatal(err)
				}
				return fsys, "/store"
			})
		})
	}
}
