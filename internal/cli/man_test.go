package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// TestMan: each command has a page with what its help says.
func TestMan(t *testing.T) {
	b := newBench(t)
	dir := filepath.Join(t.TempDir(), "man1")
	if got := b.run("man", dir); got.code != exitOK {
		t.Fatalf("%+v", got)
	}
	a := &app{console: newConsole(nil, nil)}
	n := 0
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		page, err := os.ReadFile(filepath.Join(dir, pageName(cmd)+".1"))
		if err != nil {
			t.Error(err)
			return
		}
		n++
		text := strings.NewReplacer(`\-`, "-", `\&`, "", `\e`, `\`).Replace(string(page))
		for _, want := range []string{cmd.Short, strings.TrimSpace(strings.Split(cmd.Long, "\n")[0]), strings.TrimSpace(cmd.Example), ".SH EXIT STATUS"} {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %q", pageName(cmd), want)
			}
		}
		for l := range strings.Lines(string(page)) {
			if request, _, _ := strings.Cut(l, " "); strings.HasPrefix(l, ".") && !strings.Contains(".TH .SH .PP .nf .fi", strings.TrimSpace(request)) {
				t.Errorf("%s: %q is taken for a request", pageName(cmd), l)
			}
		}
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				walk(sub)
			}
		}
	}
	walk(a.root())
	if files, err := os.ReadDir(dir); err != nil || len(files) < n {
		t.Errorf("%d pages for %d commands, %v", len(files), n, err)
	}
}

// TestHelp: every command has an example and ends its sentences.
func TestHelp(t *testing.T) {
	a := &app{console: newConsole(nil, nil)}
	var walk func(cmd *cobra.Command)
	walk = func(cmd *cobra.Command) {
		if cmd.Short == "" || cmd.Long == "" || !strings.HasSuffix(cmd.Long, ".") {
			t.Errorf("%s: its help is not complete", cmd.CommandPath())
		}
		for l := range strings.Lines(cmd.Example) {
			if !strings.HasPrefix(l, "  ") || !strings.Contains(l, "gantry ") {
				t.Errorf("%s: example %q", cmd.CommandPath(), l)
			}
		}
		if cmd.Example == "" {
			t.Errorf("%s has no example", cmd.CommandPath())
		}
		for l := range strings.Lines(cmd.Long) {
			if len([]rune(l)) > 101 {
				t.Errorf("%s: a line of %d characters", cmd.CommandPath(), len([]rune(l)))
			}
		}
		for _, sub := range cmd.Commands() {
			walk(sub)
		}
	}
	walk(a.root())
}
