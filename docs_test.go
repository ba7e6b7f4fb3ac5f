package gantry

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// testNames returns the tests of each package, by its folder's last name; that
// of the root is "".
func testNames(t *testing.T) map[string]map[string]bool {
	t.Helper()
	names := make(map[string]map[string]bool)
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(t \*testing\.T\)`)
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".") && d.Name() != "."):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(path, "_test.go") && !strings.Contains(path, "vfstest"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		pkg := filepath.Base(filepath.Dir(path))
		if pkg == "." {
			pkg = ""
		}
		if names[pkg] == nil {
			names[pkg] = make(map[string]bool)
		}
		for _, m := range function.FindAllSubmatch(text, -1) {
			names[pkg][string(m[1])] = true
		}
		return nil
	})
	must(t, err)
	return names
}

// namedTest is a test as a document names it: the package in front, when it is
// not the root, and a subtest behind; "…" stands for the rest of the name.
var namedTest = regexp.MustCompile("(?:\\b([a-z]\\w*) )?`(Test\\w+)(…?)((?:/[^`]+)?)`")

// checkNamedTests checks that the tests that text names exist, and returns how
// many it names.
func checkNamedTests(t *testing.T, names map[string]map[string]bool, where, text string) int {
	t.Helper()
	found := namedTest.FindAllStringSubmatch(text, -1)
	for _, m := range found {
		pkg, name, short, sub := m[1], m[2], m[3] != "", m[4]
		if names[pkg] == nil { // some other word
			pkg = ""
		}
		ok := names[pkg][name]
		for full := range names[pkg] {
			ok = ok || short && strings.HasPrefix(full, name)
		}
		if name == "TestCrashAtEveryOperation" && sub != "" {
			scenario := false
			for _, sc := range crashScenarios {
				scenario = scenario || sub == "/"+sc.name
			}
			ok = ok && scenario
		}
		if !ok {
			t.Errorf("%s: there is no %s %s%s", where, pkg, name, sub)
		}
	}
	return len(found)
}

// TestCrashSafetyNamesTests: every numbered statement of docs/crash-safety.md
// names a test, and all tests that it names exist.
func TestCrashSafetyNamesTests(t *testing.T) {
	data, err := os.ReadFile("docs/crash-safety.md")
	must(t, err)
	names := testNames(t)
	text := string(data)
	checkNamedTests(t, names, "crash-safety.md", text)
	number := regexp.MustCompile(`(?m)^\*\*(\d+)\.\*\*`)
	at := number.FindAllStringSubmatchIndex(text, -1)
	for i, m := range at {
		if got := text[m[2]:m[3]]; got != fmt.Sprint(i+1) {
			t.Errorf("statement %s follows %d", got, i)
		}
		paragraph, _, _ := strings.Cut(text[m[0]:], "\n\n")
		_, tests, _ := strings.Cut(paragraph, "→")
		if len(namedTest.FindAllString(tests, -1)) == 0 {
			t.Errorf("statement %d names no test", i+1)
		}
	}
	if len(at) < 40 {
		t.Errorf("only %d statements", len(at))
	}
	for _, ref := range regexp.MustCompile(`see (\d+)`).FindAllStringSubmatch(text, -1) {
		if !strings.Contains(text, "**"+ref[1]+".**") {
			t.Errorf("statement %s is referred to", ref[1])
		}
	}
}

// TestUpstreamFaultsAreComplete: docs/upstream-faults.md has a line for each
// fault, each line names a test, and all tests that it names exist.
func TestUpstreamFaultsAreComplete(t *testing.T) {
	data, err := os.ReadFile("docs/upstream-faults.md")
	must(t, err)
	names := testNames(t)
	listed := make(map[string]bool)
	letters, row := regexp.MustCompile(`\b([A-Z]{1,2})(\d+)\b`), regexp.MustCompile(`(?m)^\| ([^|]+) \|.*\|$`)
	for _, m := range row.FindAllStringSubmatch(string(data), -1) {
		if m[1] == "id" {
			continue
		}
		cell := m[1]
		ids := letters.FindAllStringSubmatch(cell, -1)
		for _, id := range ids {
			listed[id[0]] = true
		}
		if strings.Contains(cell, "…") { // from … to
			var from, to int
			_, _ = fmt.Sscan(ids[0][2], &from)
			_, _ = fmt.Sscan(ids[1][2], &to)
			for n := from; n <= to; n++ {
				listed[ids[0][1]+fmt.Sprint(n)] = true
			}
			for n := 2; n+1 < len(ids); n += 2 {
				_, _ = fmt.Sscan(ids[n][2], &from)
				_, _ = fmt.Sscan(ids[n+1][2], &to)
				for k := from; k <= to; k++ {
					listed[ids[n][1]+fmt.Sprint(k)] = true
				}
			}
		}
		if checkNamedTests(t, names, "upstream-faults.md", m[0]) == 0 {
			t.Errorf("%s: no test is named", cell)
		}
	}
	for letter, last := range map[string]int{"L": 21, "A": 12, "F": 9, "D": 11, "R": 8, "Q": 15, "C": 14, "T": 9, "CF": 1} {
		for n := 1; n <= last; n++ {
			if id := letter + fmt.Sprint(n); !listed[id] {
				t.Errorf("fault %s is missing", id)
			}
		}
	}
}
