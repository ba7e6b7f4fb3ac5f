package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// testNow is a moment after the golden stores were made.
var testNow = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

// bench is a file system and a clock for commands.
type bench struct {
	t   testing.TB
	fs  vfs.FS
	now time.Time
}

func newBench(t testing.TB) *bench { return &bench{t: t, fs: memfs.New(), now: testNow} }

// outcome is what a command did.
type outcome struct {
	code           int
	stdout, stderr string
}

// run runs a command line, without the name of the program.
func (b *bench) run(args ...string) outcome { return b.runIn(context.Background(), "", args...) }

func (b *bench) runIn(ctx context.Context, stdin string, args ...string) outcome {
	var stdout, stderr bytes.Buffer
	now := b.now
	a := &app{
		console: newConsole(&stdout, &stderr), stdin: strings.NewReader(stdin), fs: b.fs,
		now: func() time.Time { return now },
	}
	code := a.main(ctx, args)
	return outcome{code, stdout.String(), stderr.String()}
}

// must runs a command that has to end with a code, and returns its output.
func (b *bench) must(code int, args ...string) string {
	b.t.Helper()
	return b.mustIn(code, "", args...)
}

func (b *bench) mustIn(code int, stdin string, args ...string) string {
	b.t.Helper()
	got := b.runIn(context.Background(), stdin, args...)
	if got.code != code {
		b.t.Fatalf("gantry %q: exit code %d, want %d\n%s%s", args, got.code, code, got.stdout, got.stderr)
	}
	return got.stdout
}

// tree lists the files below dir.
func (b *bench) tree(dir string) []golden.File {
	b.t.Helper()
	files, err := golden.Tree(b.fs, dir)
	if err != nil {
		b.t.Fatal(err)
	}
	return files
}

// unpack unpacks a golden store into dir.
func (b *bench) unpack(dir, name string) {
	b.t.Helper()
	if err := golden.UnpackTo(b.fs, dir, name); err != nil {
		b.t.Fatal(err)
	}
}

// jsonLines decodes one object per line and refuses anything else.
func jsonLines[T any](t testing.TB, out string) (all []T) {
	t.Helper()
	for line := range strings.Lines(out) {
		var v T
		d := json.NewDecoder(strings.NewReader(line))
		if err := d.Decode(&v); err != nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("%v in line %q", err, line)
		}
		if _, err := d.Token(); err != io.EOF {
			t.Fatalf("more than an object in line %q", line)
		}
		all = append(all, v)
	}
	return all
}

// smallSizes make a new store small.
var smallSizes = []string{
	"--set", "mappedFileSizeCommitLog=65536", "--set", "mappedFileSizeConsumeQueue=2000", "--set", "maxHashSlotNum=100", "--set", "maxIndexNum=400",
}
