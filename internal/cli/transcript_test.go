package cli

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
)

var update = flag.Bool("update", false, "write the transcripts anew")

// TestTranscripts runs the commands in testdata/transcripts and compares what
// they print. A line that begins with "$ " is a command; "# " and blank lines
// stay as they are; everything else is output: first the results, then, each
// behind "! ", what went to the standard error, then the exit code if it is
// not 0. A command ending in <<END takes the lines up to END as its input.
//
// Each transcript has a file system in memory for the stores, a folder of its
// own for other files, and a clock that goes on by a second with each command.
// Besides gantry there are the commands of script.builtin.
func TestTranscripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "transcripts", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for i, name := range files {
		if files[i], err = filepath.Abs(name); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			s := &script{bench: newBench(t), dir: t.TempDir(), locks: map[string]vfs.Lock{}, trees: map[string][]golden.File{}}
			if s.home, err = os.Getwd(); err != nil {
				t.Fatal(err)
			}
			t.Chdir(s.dir)
			got := s.play(string(text))
			if *update {
				err = os.WriteFile(name, []byte(got), 0o644)
			} else if d := cmp.Diff(string(text), got); d != "" {
				t.Errorf("(-want +got; go test ./internal/cli -update writes it anew)\n%s", d)
			}
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}

// bytesRead is how much verify has read, which depends on how its goroutines
// share the work.
var bytesRead = regexp.MustCompile(`("type":"summary".*"bytes":)[0-9]+(,)|(?m:( files?, )[0-9.]+ [KM]?i?B( read)$)`)

// script is a transcript being played.
type script struct {
	*bench
	home, dir string // of the test, of the files beside the stores
	locks     map[string]vfs.Lock
	trees     map[string][]golden.File
}

// play runs the commands of a transcript and returns it with their output.
func (s *script) play(text string) string {
	var out strings.Builder
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		if strings.HasPrefix(line, "# ") || line == "" && (i+1 == len(lines) || strings.HasPrefix(lines[i+1], "# ") || strings.HasPrefix(lines[i+1], "$ ")) {
			out.WriteString(line + "\n")
			continue
		}
		command, ok := strings.CutPrefix(line, "$ ")
		if !ok {
			continue // old output
		}
		out.WriteString(line + "\n")
		var input strings.Builder
		command, end, ok := strings.Cut(command, "<<")
		if ok {
			for i++; i < len(lines) && lines[i] != end; i++ {
				input.WriteString(lines[i] + "\n")
				out.WriteString(lines[i] + "\n")
			}
			out.WriteString(end + "\n")
		}
		out.WriteString(s.command(command, input.String()))
	}
	return out.String()
}

func (s *script) command(line, input string) string {
	args, err := split(line)
	if err != nil || len(args) == 0 {
		s.t.Fatalf("%q: %v", line, err)
	}
	s.now = s.now.Add(time.Second)
	if args[0] != "gantry" {
		out, err := s.builtin(input, args[0], args[1:]...)
		if err != nil {
			s.t.Fatalf("%s: %v", line, err)
		}
		return out
	}
	got := s.runIn(s.t.Context(), input, args[1:]...)
	out := strings.Builder{}
	out.WriteString(bytesRead.ReplaceAllString(got.stdout, "${1}${3}N${2}${4}"))
	if got.stdout != "" && !strings.HasSuffix(got.stdout, "\n") {
		s.t.Errorf("%s: the output does not end a line", line)
	}
	for l := range strings.Lines(got.stderr) {
		out.WriteString("! " + l)
	}
	if got.code != 0 {
		fmt.Fprintf(&out, "exit %d\n", got.code)
	}
	return out.String()
}

// builtin runs one of the other commands:
//
//	unpack NAME DIR        a golden store
//	write FILE             the input into a file beside the stores
//	cat FILE               what is in one, shortened; ls: their names
//	append FILE            the input to the end of one
//	copy DIR NEW           a store
//	zero FILE FROM TO      bytes of a store's file
//	clock DURATION         time goes by
//	lock DIR, unlock DIR   what a broker does that runs or stops
//	abort DIR              makes it look as if the store had not been closed
//	flip FILE OFFSET       damages a byte
//	rm FILE…               of a store
//	mkdir DIR
//	snapshot DIR           remembers it, for
//	unchanged DIR          which fails when a byte in it differs
//	files DIR              their sizes and names
func (s *script) builtin(input, name string, args ...string) (string, error) {
	arg := func(i int) string {
		if i >= len(args) {
			s.t.Fatalf("%s needs %d arguments", name, i+1)
		}
		return args[i]
	}
	switch name {
	case "unpack":
		// The archives are found from the folder of the package.
		if err := os.Chdir(s.home); err != nil {
			return "", err
		}
		return "", errors.Join(golden.UnpackTo(s.fs, arg(1), arg(0)), os.Chdir(s.dir))
	case "write":
		return "", os.WriteFile(arg(0), []byte(input), 0o644)
	case "append":
		f, err := os.OpenFile(arg(0), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			return "", err
		}
		_, err = f.WriteString(strings.TrimSuffix(input, "\n"))
		return "", errors.Join(err, f.Close())
	case "cat":
		data, err := os.ReadFile(arg(0))
		var out strings.Builder
		for l := range strings.Lines(string(data)) {
			if l = strings.TrimSuffix(l, "\n"); len(l) > 150 {
				l = strings.ToValidUTF8(l[:100], "") + " … " + strings.ToValidUTF8(l[len(l)-40:], "")
			}
			out.WriteString(l + "\n")
		}
		return out.String(), err
	case "ls":
		entries, err := os.ReadDir(".")
		var out strings.Builder
		for _, e := range entries {
			out.WriteString(e.Name() + "\n")
		}
		return out.String(), err
	case "copy":
		for _, f := range s.tree(arg(0)) {
			data, err := vfs.ReadFile(s.fs, filepath.Join(arg(0), f.Path), 1<<30)
			if err != nil {
				return "", err
			}
			to := filepath.Join(arg(1), f.Path)
			if err := errors.Join(s.fs.MkdirAll(filepath.Dir(to)), vfs.WriteFileAtomic(s.fs, to, data)); err != nil {
				return "", err
			}
		}
		return "", nil
	case "zero":
		from, err1 := strconv.ParseInt(arg(1), 10, 64)
		to, err2 := strconv.ParseInt(arg(2), 10, 64)
		f, err := s.fs.Open(arg(0), vfs.ReadWrite)
		if err = errors.Join(err, err1, err2); err != nil {
			return "", err
		}
		_, err = f.WriteAt(make([]byte, to-from), from)
		return "", errors.Join(err, f.Close())
	case "clock":
		d, err := time.ParseDuration(arg(0))
		s.now = s.now.Add(d)
		return "", err
	case "lock":
		l, err := s.fs.Lock(filepath.Join(arg(0), "lock"))
		s.locks[arg(0)] = l
		return "", err
	case "unlock":
		return "", s.locks[arg(0)].Close()
	case "abort":
		return "", vfs.WriteFileAtomic(s.fs, filepath.Join(arg(0), "abort"), []byte("4711"))
	case "flip":
		off, err := strconv.ParseInt(arg(1), 10, 64)
		if err != nil {
			return "", err
		}
		return "", s.flip(arg(0), off)
	case "rm":
		for _, f := range args {
			if err := s.fs.Remove(f); err != nil {
				return "", err
			}
		}
		return "", nil
	case "mkdir":
		return "", s.fs.MkdirAll(arg(0))
	case "snapshot":
		s.trees[arg(0)] = s.tree(arg(0))
		return "", nil
	case "unchanged":
		if d := golden.DiffTrees(s.trees[arg(0)], s.tree(arg(0))); len(d) > 0 {
			return "", fmt.Errorf("changed: %q", d)
		}
		return "", nil
	case "files":
		var out strings.Builder
		for _, f := range s.tree(arg(0)) {
			fmt.Fprintf(&out, "%10d %s\n", f.Size, f.Path)
		}
		return out.String(), nil
	}
	return "", fmt.Errorf("no such command")
}

// flip changes one byte of a file.
func (b *bench) flip(name string, off int64) error {
	f, err := b.fs.Open(name, vfs.ReadWrite)
	if err != nil {
		return err
	}
	defer f.Close()
	var p [1]byte
	if _, err := f.ReadAt(p[:], off); err != nil {
		return err
	}
	p[0] ^= 0x40
	_, err = f.WriteAt(p[:], off)
	return err
}

// split cuts a line into words as a shell would: '…' as it is, "…" with Go's
// escapes.
func split(line string) (words []string, err error) {
	line = strings.TrimSpace(line)
	for line != "" {
		word := ""
		for line != "" && line[0] != ' ' {
			switch line[0] {
			case '\'':
				text, rest, ok := strings.Cut(line[1:], "'")
				if !ok {
					return nil, fmt.Errorf("no end of %s", line)
				}
				word, line = word+text, rest
			case '"':
				q, err := strconv.QuotedPrefix(line)
				if err != nil {
					return nil, err
				}
				text, err := strconv.Unquote(q)
				if err != nil {
					return nil, err
				}
				word, line = word+text, line[len(q):]
			default:
				n := strings.IndexAny(line, ` '"`)
				if n < 0 {
					n = len(line)
				}
				word, line = word+line[:n], line[n:]
			}
		}
		words = append(words, word)
		line = strings.TrimLeft(line, " ")
	}
	return words, nil
}
