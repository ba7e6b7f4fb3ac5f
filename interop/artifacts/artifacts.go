//go:build interop

package artifacts

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

// cacheVariable names the environment variable that chooses the cache.
const cacheVariable = "GANTRY_INTEROP_CACHE"

// Root returns the directory of the repository: the one with go.mod, from the
// working directory upwards.
func Root() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir, nil
		}
		parent := filepath.Dir(dir)
		if parent == dir {
			return "", errors.New("no go.mod above the working directory")
		}
		dir = parent
	}
}

// Cache returns the directory of the cache, which may not exist yet.
func Cache() (string, error) {
	if dir := os.Getenv(cacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("%w; set %s", err, cacheVariable)
	}
	return filepath.Join(dir, "gantry", "interop"), nil
}

// maven runs one at a time: the local repository is not made for more.
var maven sync.Mutex

// Java returns the class path of a Maven project of ours in a version of
// RocketMQ: the artifacts that its pom.xml names and the classes of its
// sources. The cache has both after the first time; name begins what is kept
// there.
func Java(ctx context.Context, name, project, version, release string) (string, error) {
	cache, err := Cache()
	if err != nil {
		return "", err
	}
	pom := filepath.Join(project, "pom.xml")
	pomHash, err := Hash(pom)
	if err != nil {
		return "", err
	}
	base := filepath.Join(cache, name+"-"+version+"-"+pomHash)
	lib := filepath.Join(base, "lib")
	maven.Lock()
	err = Made(lib, func(dir string) error {
		return Run(ctx, "", "mvn", "-q", "-B", "-f", pom, "-Drocketmq.version="+version,
			"dependency:copy-dependencies", "-DincludeScope=runtime", "-DoutputDirectory="+dir)
	})
	maven.Unlock()
	if err != nil {
		return "", fmt.Errorf("fetch RocketMQ %s: %w", version, err)
	}

	var sources []string
	err = filepath.WalkDir(filepath.Join(project, "src"), func(path string, d fs.DirEntry, err error) error {
		if err == nil && filepath.Ext(path) == ".java" {
			sources = append(sources, path)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	sourceHash, err := Hash(sources...)
	if err != nil {
		return "", err
	}
	jars := filepath.Join(lib, "*")
	classes := filepath.Join(base, "classes-"+sourceHash)
	err = Made(classes, func(dir string) error {
		args := []string{"--release", release, "-nowarn", "-Xlint:-options", "-proc:none", "-encoding", "UTF-8", "-d", dir, "-cp", jars}
		return Run(ctx, "", "javac", append(args, sources...)...)
	})
	if err != nil {
		return "", fmt.Errorf("compile against RocketMQ %s: %w", version, err)
	}
	return classes + string(os.PathListSeparator) + jars, nil
}

// Made returns when dir exists. It is filled under another name first, so that
// a directory of that name is complete, also when several processes make it.
func Made(dir string, fill func(dir string) error) error {
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

// Hash returns some digits that depend on the names and contents of files.
func Hash(names ...string) (string, error) {
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

// Run runs a program that must succeed, in dir if that is not empty. What it
// printed is in the error.
func Run(ctx context.Context, dir, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w\n%s", name, err, Tail(out.String()))
	}
	return nil
}

// Tail returns the last lines of a program's output, with its error.
func Tail(s string) string {
	const limit = 8 << 10
	s = strings.TrimSpace(s)
	if len(s) > limit {
		s = "… " + s[len(s)-limit:]
	}
	return s
}
