package vfs_test

import (
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/vfstest"
)

func TestOSConformance(t *testing.T) {
	vfstest.Run(t, func(t *testing.T) (vfs.FS, string) { return vfs.OS(), t.TempDir() })
}

func TestUsageRatio(t *testing.T) {
	for _, tt := range []struct {
		name  string
		usage vfs.Usage
		want  float64
	}{
		{"nothing known", vfs.Usage{}, 0},
		{"empty", vfs.Usage{Total: 100, Free: 100}, 0},
		{"full", vfs.Usage{Total: 100, Used: 100}, 1},
		{"reserved blocks count for nobody", vfs.Usage{Total: 100, Used: 60, Free: 20}, 0.75},
	} {
		if got := tt.usage.Ratio(); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
