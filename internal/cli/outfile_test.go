package cli

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestOutFile: a file has its name when it is whole, and only then.
func TestOutFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	o, err := createOut(name)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := o.Write([]byte("text\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file is there before it is whole: %v", err)
	}
	if err := o.finish(); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(name); string(got) != "text\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if _, err := os.Stat(name + partSuffix); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the part is still there: %v", err)
	}
}

// TestOutFileFails: what could not be written does not look whole. A file that
// is open for reading only stands for a full disk.
func TestOutFileFails(t *testing.T) {
	name := filepath.Join(t.TempDir(), "out")
	if err := os.WriteFile(name+partSuffix, []byte("before\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(name + partSuffix)
	if err != nil {
		t.Fatal(err)
	}
	o := newOut(name, f)
	if _, err := o.Write(make([]byte, 10)); err != nil {
		t.Fatal(err) // it is in the buffer
	}
	if _, err := o.Write(make([]byte, 4<<20)); err == nil || !strings.Contains(err.Error(), name+partSuffix) {
		t.Errorf("a write that fails: %v", err)
	}
	if err := o.finish(); err == nil {
		t.Error("the file was finished")
	}
	if _, err := os.Stat(name); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the file has its name: %v", err)
	}
}

// failingWriter is the standard output on a full disk.
type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if len(p) > w.left {
		n := w.left
		w.left = 0
		return n, errors.New("no space left on device")
	}
	w.left -= len(p)
	return len(p), nil
}

// TestFullOutput: commands whose output cannot be written say so and fail.
func TestFullOutput(t *testing.T) {
	b := newBench(t)
	b.store("/data", 100)
	for _, args := range []string{
		"export /data", "export /data --format csv", "grep /data", "grep /data --count", "dump /data/commitlog/00000000000000000000", "diff /data /data",
		"diff /data --sums", "verify /data", "info /data",
	} {
		for _, left := range []int{0, 5} {
			var stderr strings.Builder
			a := &app{console: newConsole(&failingWriter{left}, &stderr), stdin: strings.NewReader(""), fs: b.fs, now: func() time.Time { return testNow }}
			code := a.main(t.Context(), append([]string{"store"}, strings.Fields(args)...))
			if (code != exitFailed || !strings.Contains(stderr.String(), "no space left")) && !(args == "grep /data --count" && left == 5) {
				t.Errorf("%s with %d bytes left: exit code %d, %s", args, left, code, stderr.String())
			}
		}
	}
}
