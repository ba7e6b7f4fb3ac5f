//go:build interop

package javastore

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// Versions are the RocketMQ versions that the tests work with: the last line
// of 4.x without and with what 5.x added to the store, and the newest whose
// queues are not RocksDB by default.
var Versions = []string{"4.9.4", "5.1.4", "5.4.0"}

// cacheVariable names the environment variable that chooses the cache.
const cacheVariable = "GANTRY_INTEROP_CACHE"

// Store is the genuine store of one version, ready to run. It may be used
// concurrently.
type Store struct {
	Version   string
	classPath string
}

var builds sync.Map // version to func() (*Store, error)

// Build fetches the artifacts of a version and compiles the Java program
// against them, unless the cache has both. Within one process that happens
// once per version.
func Build(ctx context.Context, version string) (*Store, error) {
	once, _ := builds.LoadOrStore(version, sync.OnceValues(func() (*Store, error) { return build(ctx, version) }))
	return once.(func() (*Store, error))()
}

func build(ctx context.Context, version string) (*Store, error) {
	project, err := projectDir()
	if err != nil {
		return nil, err
	}
	sources, err := filepath.Glob(filepath.Join(project, "src", "main", "java", "gantry", "interop", "*.java"))
	if err != nil {
		return nil, err
	}
	if len(sources) == 0 {
		return nil, fmt.Errorf("no Java sources in %s", project)
	}
	cache, err := cacheDir()
	if err != nil {
		return nil, err
	}
	pom := filepath.Join(project, "pom.xml")
	pomHash, err := hashFiles(pom)
	if err != nil {
		return nil, err
	}
	sourceHash, err := hashFiles(sources...)
	if err != nil {
		return nil, err
	}
	base := filepath.Join(cache, version+"-"+pomHash)

	lib := filepath.Join(base, "lib")
	err = made(lib, func(dir string) error {
		return command(ctx, "mvn", "-q", "-B", "-f", pom, "-Drocketmq.version="+version,
			"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+dir)
	})
	if err != nil {
		return nil, fmt.Errorf("fetch RocketMQ %s: %w", version, err)
	}
	jars := filepath.Join(lib, "*")
	classes := filepath.Join(base, "classes-"+sourceHash)
	err = made(classes, func(dir string) error {
		args := []string{"--release", "8", "-nowarn", "-Xlint:-options", "-proc:none", "-encoding", "UTF-8", "-d", dir, "-cp", jars}
		return command(ctx, "javac", append(args, sources...)...)
	})
	if err != nil {
		return nil, fmt.Errorf("compile against RocketMQ %s: %w", version, err)
	}
	return &Store{Version: version, classPath: classes + string(os.PathListSeparator) + jars}, nil
}

// projectDir finds interop/java from the working directory upwards.
func projectDir() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "interop", "java"), nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}

func cacheDir() (string, error) {
	if dir := os.Getenv(cacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w; set %s", err, cacheVariable)
	}
	return filepath.Join(dir, "gantry", "interop"), nil
}

// made returns when dir exists. It is filled under another name first, so that
// a directory of that name is complete, also when several processes make it.
func made(dir string, fill func(dir string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(parent, filepath.Base(dir)+".tmp-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if err := fill(tmp); err != nil {
		return err
	}
	err = os.Rename(tmp, dir)
	if _, statErr := os.Stat(dir); statErr == nil && (errors.Is(err, fs.ErrExist) || errors.Is(err, fs.ErrPermission)) {
		return nil // another process was faster
	}
	return err
}

func hashFiles(names ...string) (string, error) {
	h := sha256.New()
	for _, name := range slices.Sorted(slices.Values(names)) {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%s %d\n", filepath.Base(name), len(b))
		h.Write(b)
	}
	return hex.EncodeToString(h.Sum(nil)[:6]), nil
}

// command runs a program that must succeed; what it printed is in the error.
func command(ctx context.Context, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, tail(out.String()))
	}
	return nil
}

// tail returns the last lines of a program's output, with its error.
func tail(s string) string {
	const limit = 8 << 10
	s = strings.TrimSpace(s)
	if len(s) > limit {
		s = "… " + s[len(s)-limit:]
	}
	return s
}
