// Package archtest checks the structure of the module: which package may
// import which, and a few rules that no linter knows.
package archtest

import (
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/gantrymq/gantry"

// levels is the table in ARCHITECTURE.md: a package may import packages of
// lower levels, and none of its own level, except where also says so.
var levels = []struct {
	pkg   string // below the module; "." is the root
	level int
	also  []string // packages of its own level that it may import
}{
	{"internal/base", 0, nil},
	{"remoting", 0, nil},
	{"internal/vfs", 1, nil},
	{"internal/vfs/memfs", 1, []string{"internal/vfs"}},
	{"internal/vfs/faultfs", 1, []string{"internal/vfs"}},
	{"internal/vfs/overlayfs", 1, []string{"internal/vfs"}},
	{"internal/vfs/vfstest", 1, []string{"internal/vfs"}},
	{"internal/vfs/plugfs", 1, []string{"internal/vfs", "internal/vfs/memfs"}},
	{"message", 1, nil},
	{"internal/mappedfile", 2, nil},
	{"internal/javajson", 2, nil},
	{"internal/sqlfilter", 2, nil},
	{"internal/commitlog", 3, nil},
	{"internal/consumequeue", 3, nil},
	{"internal/indexfile", 3, nil},
	{"internal/checkpoint", 3, nil},
	{"internal/golden", 3, nil},
	{"internal/metadata", 3, nil},
	{"internal/membership", 3, nil},
	{".", 4, nil},
	{"internal/check", 4, nil},
	{"internal/check/checktest", 4, []string{"internal/check"}},
	{"internal/tool", 5, nil},
	{"internal/inspect", 5, []string{"internal/tool"}},
	{"namesrv", 5, nil},
	{"broker", 5, nil},
	{"internal/client", 5, nil},
	{"gantrytest", 6, nil},
	{"internal/cli", 6, nil},
	{"cmd/gantry", 7, nil},
}

// core packages depend on the standard library and golang.org/x/sys only.
const coreMaxLevel = 4

func root(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// sources calls fn with each Go file that is not a test.
func sources(t *testing.T, fn func(pkg, file string)) {
	t.Helper()
	dir := root(t)
	err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := d.Name()
		if d.IsDir() && (strings.HasPrefix(name, ".") && name != "." || name == "testdata" || name == "interop") {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		rel, err := filepath.Rel(dir, filepath.Dir(path))
		if err != nil {
			return err
		}
		fn(filepath.ToSlash(rel), path)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func imports(t *testing.T, file string) []string {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
	if err != nil {
		t.Fatal(err)
	}
	var paths []string
	for _, spec := range f.Imports {
		path, err := strconv.Unquote(spec.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		paths = append(paths, path)
	}
	return paths
}

func TestImportsPointDown(t *testing.T) {
	level := make(map[string]int)
	also := make(map[string][]string)
	for _, l := range levels {
		level[l.pkg] = l.level
		also[l.pkg] = l.also
	}
	sources(t, func(pkg, file string) {
		from, ok := level[pkg]
		if !ok {
			t.Errorf("package %s has no level: add it to the table here and in ARCHITECTURE.md", pkg)
			return
		}
		for _, path := range imports(t, file) {
			if err := mayImport(pkg, from, path, level, also); err != nil {
				t.Errorf("%s: %v", file, err)
			}
		}
	})
}

func mayImport(pkg string, from int, path string, level map[string]int, also map[string][]string) error {
	rel := "."
	if path != module {
		var ok bool
		if rel, ok = strings.CutPrefix(path, module+"/"); !ok {
			if from <= coreMaxLevel && strings.Contains(strings.SplitN(path, "/", 2)[0], ".") &&
				!strings.HasPrefix(path, "golang.org/x/sys/") && !testSupport(pkg) {
				return fmt.Errorf("the core imports %s; it may use the standard library and golang.org/x/sys only", path)
			}
			return nil
		}
	}
	to, ok := level[rel]
	if !ok {
		return fmt.Errorf("imports %s, which has no level", path)
	}
	if to < from || to == from && slices.Contains(also[pkg], rel) {
		return nil
	}
	return fmt.Errorf("level %d imports %s of level %d", from, path, to)
}

// testSupport packages are imported by tests only.
func testSupport(pkg string) bool {
	return pkg == "internal/vfs/vfstest" || pkg == "internal/vfs/plugfs" || pkg == "internal/golden" || pkg == "internal/check/checktest"
}

// TestFilesGoThroughVFS: store code reaches files through internal/vfs alone,
// so that every call can be observed and failed by a test.
func TestFilesGoThroughVFS(t *testing.T) {
	for _, l := range levels {
		if l.level > coreMaxLevel || l.level < 1 || strings.HasPrefix(l.pkg, "internal/vfs") || testSupport(l.pkg) {
			continue
		}
		files, err := filepath.Glob(filepath.Join(root(t), filepath.FromSlash(l.pkg), "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			for _, call := range []string{"os.Open", "os.Create", "os.Remove", "os.Rename", "os.Mkdir", "os.ReadFile", "os.WriteFile", "os.Stat", "unix.Mmap"} {
				if strings.Contains(string(text), call) {
					t.Errorf("%s calls %s; use vfs.FS", file, call)
				}
			}
		}
	}
}

// TestPackageComments: every package says what it is for, directly above its
// package clause.
func TestPackageComments(t *testing.T) {
	documented := make(map[string]bool)
	sources(t, func(pkg, file string) {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.PackageClauseOnly)
		if err != nil {
			t.Fatal(err)
		}
		documented[pkg] = documented[pkg] || f.Doc != nil
	})
	for pkg, ok := range documented {
		if !ok {
			t.Errorf("package %s has no package comment", pkg)
		}
	}
}
