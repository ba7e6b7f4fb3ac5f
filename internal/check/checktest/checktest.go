// Package checktest lets tests end in the consistency checker.
package checktest

import (
	"context"
	"slices"
	"testing"

	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/vfs"
)

// Option changes what Dir asks for.
type Option func(*settings)

type settings struct {
	check check.Options
	allow []string
}

// Allow accepts findings of these rules: for stores that a test damaged, or
// left without closing them.
func Allow(rules ...string) Option {
	return func(s *settings) { s.allow = append(s.allow, rules...) }
}

// Configure changes the checker's options, for example the folders of the
// commit log. Directory and file system are set after it.
func Configure(f func(*check.Options)) Option {
	return func(s *settings) { f(&s.check) }
}

// Dir checks the store in dir, at the deep level, and fails the test on any
// finding of severity warning or error, each of which it prints. It returns the
// summary. A nil fs is the operating system.
func Dir(t testing.TB, fs vfs.FS, dir string, opts ...Option) check.Summary {
	t.Helper()
	s := settings{check: check.Options{Level: check.Deep}}
	for _, o := range opts {
		o(&s)
	}
	s.check.FS, s.check.Dir = fs, dir
	sum, err := check.Run(context.Background(), s.check, func(f check.Finding) {
		if f.Severity >= check.Warning && !slices.Contains(s.allow, f.Rule) {
			t.Errorf("store %s: %v (%d)", dir, f, f.Count)
		}
	})
	if err != nil {
		t.Errorf("check store %s: %v", dir, err)
	}
	return sum
}
