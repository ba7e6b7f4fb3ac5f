// Package golden gives tests the store directories in testdata/golden, which
// the genuine Java message store of RocketMQ wrote, and the manifests that say
// what the same Java version reads from them. It unpacks an archive into the
// operating system's file system or into any vfs.FS, loads a manifest into
// structs with exact 64-bit integers, and compares decoded messages with it.
//
// An archive is NAME.tar.gz with one top folder NAME, which is the store root;
// its manifest is NAME.json.gz. NAME is the RocketMQ version, a minus sign and
// the kind of store: 5.4.0-crash-torn. testdata/golden/README.md describes the
// kinds and how each was made.
//
// Nothing is kept between calls, and every call gives its own copy: functions
// may be called concurrently and results may be changed. Archives are treated
// as hostile although they are our own, so that the code can unpack others:
// names cannot leave the destination, and sizes are limited.
package golden

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
)

const (
	archiveSuffix  = ".tar.gz"
	manifestSuffix = ".json.gz"
)

// Dir returns the absolute path of testdata/golden. It is looked for from the
// working directory upwards, beside go.mod, because go test runs a test in its
// package's directory.
func Dir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			golden := filepath.Join(dir, "testdata", "golden")
			if _, err := os.Stat(golden); err != nil {
				return "", err
			}
			return golden, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("golden: no go.mod above the working directory")
		}
		dir = parent
	}
}

// Names returns the names of all golden stores, sorted. A store without its
// manifest, or the reverse, is an error.
func Names() ([]string, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	archives, manifests := []string{}, []string{}
	for _, e := range entries {
		if name, ok := strings.CutSuffix(e.Name(), archiveSuffix); ok {
			archives = append(archives, name)
		}
		if name, ok := strings.CutSuffix(e.Name(), manifestSuffix); ok {
			manifests = append(manifests, name)
		}
	}
	slices.Sort(archives)
	slices.Sort(manifests)
	if !slices.Equal(archives, manifests) {
		return nil, fmt.Errorf("golden: archives %q do not match manifests %q", archives, manifests)
	}
	return archives, nil
}

// SplitName cuts a store's name into the RocketMQ version and the rest:
// "5.4.0-crash-torn" into "5.4.0" and "crash-torn".
func SplitName(name string) (version, store string) {
	version, store, _ = strings.Cut(name, "-")
	return version, store
}

// Each runs f as a parallel subtest for every golden store.
func Each(t *testing.T, f func(t *testing.T, name string)) {
	t.Helper()
	names, err := Names()
	if err != nil {
		t.Fatal(err)
	}
	if len(names) == 0 {
		t.Fatal("no golden stores")
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f(t, name)
		})
	}
}

// Unpack unpacks a store into a new temporary directory of the operating
// system, removed when the test ends, and returns the store's root.
func Unpack(tb testing.TB, name string) string {
	tb.Helper()
	root := filepath.Join(tb.TempDir(), "store")
	if err := unpack(vfs.OS(), root, name, false); err != nil {
		tb.Fatal(err)
	}
	return root
}

// UnpackTo unpacks a store so that root becomes its root directory. Everything
// is durable when it returns, so that a crashable file system has all of it
// after a crash. root must be empty or not exist.
func UnpackTo(fsys vfs.FS, root, name string) error {
	return unpack(fsys, root, name, true)
}

func unpack(fsys vfs.FS, root, name string, durable bool) (err error) {
	dir, err := Dir()
	if err != nil {
		return err
	}
	f, err := os.Open(filepath.Join(dir, filepath.Base(name)+archiveSuffix))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := extract(fsys, root, name, f, durable); err != nil {
		return fmt.Errorf("unpack golden store %s: %w", name, err)
	}
	return nil
}

// Load reads the manifest of a store.
func Load(name string) (*Manifest, error) {
	dir, err := Dir()
	if err != nil {
		return nil, err
	}
	f, err := os.Open(filepath.Join(dir, filepath.Base(name)+manifestSuffix))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	m, err := decodeManifest(f)
	if err != nil {
		return nil, fmt.Errorf("manifest of golden store %s: %w", name, err)
	}
	return m, nil
}

// MustLoad is Load for tests.
func MustLoad(tb testing.TB, name string) *Manifest {
	tb.Helper()
	m, err := Load(name)
	if err != nil {
		tb.Fatal(err)
	}
	return m
}
