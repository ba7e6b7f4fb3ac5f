package javajson

import (
	"errors"
	"fmt"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// version is what a configuration file of this test holds.
type version struct{ N int }

// TestSaveCrash crashes Save at each of its changes: whatever survives, Load
// gives the content before or after, never none and never a mixture, and what
// Save has returned for is there.
func TestSaveCrash(t *testing.T) {
	const name = "/config/topics.json"
	load := func(fsys *memfs.FS) int {
		got := 0
		if _, _, err := Load(fsys, name, func(v version) { got = v.N }); err != nil {
			t.Errorf("load: %v", err)
		}
		return got
	}
	states := 0
	for k := 0; ; k++ {
		mem := memfs.NewCrashable(int64(k))
		if err := mem.MkdirAll("/config"); err != nil {
			t.Fatal(err)
		}
		fs := faultfs.CrashAt(mem, k)
		done, tried := 0, 0
		for n := 1; n <= 4; n++ {
			// The padding makes a torn file no valid one by accident.
			err := Save(fs, name, fmt.Appendf(nil, "{\"pad\":\"%04000d\",\n\t\"N\":%d}", n, n))
			tried = n
			if err != nil {
				if !errors.Is(err, faultfs.ErrCrashed) {
					t.Fatal(err)
				}
				break
			}
			done = n
		}
		for _, policy := range memfs.Policies() {
			for seed := range int64(5) {
				clone := mem.CrashClone(policy, seed)
				if got := load(clone); got < done || got > tried {
					t.Errorf("crash at %d, %v, seed %d: version %d was saved, %d was tried, %d is there", k, policy, seed, done, tried, got)
				}
				// A crash has left things; the next Save goes over them.
				if err := Save(clone, name, []byte(`{"N":100}`)); err != nil {
					t.Errorf("crash at %d, %v, seed %d: save: %v", k, policy, seed, err)
				} else if got := load(clone.CrashClone(memfs.LoseUnsynced)); got != 100 {
					t.Errorf("crash at %d, %v, seed %d: after the next save version %d is there", k, policy, seed, got)
				}
				states++
			}
		}
		if !fs.Crashed() {
			break
		}
	}
	t.Logf("%d crash states", states)
}
