package cli

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestServingTranscripts plays the files in testdata/serving, which look as those
// of TestTranscripts do. "gantry serve" runs until "stop"; the commands between
// find it by the environment. What differs from run to run is replaced.
func TestServingTranscripts(t *testing.T) {
	files, err := filepath.Glob(filepath.Join("testdata", "serving", "*.txt"))
	if err != nil || len(files) == 0 {
		t.Fatal("no transcripts", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			p := &serving{bench: newServerBench(t)}
			got := p.play(string(text))
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			} else if d := cmp.Diff(string(text), got); d != "" {
				t.Errorf("(-want +got; go test ./internal/cli -run Serving -update writes it anew)\n%s", d)
			}
		})
	}
}

// serving is a transcript being played.
type serving struct {
	*bench
	server *running
}

func (p *serving) play(text string) string {
	var out strings.Builder
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i := 0; i < len(lines); i++ {
		line := lines[i]
		command, ok := strings.CutPrefix(line, "$ ")
		switch {
		case ok:
		case line == "", strings.HasPrefix(line, "# "):
			fmt.Fprintln(&out, line)
			continue
		default: // old output
			continue
		}
		fmt.Fprintln(&out, line)
		command, end, ok := strings.Cut(command, "<<")
		var input strings.Builder
		if ok {
			for i++; i < len(lines) && lines[i] != end; i++ {
				fmt.Fprintln(&input, lines[i])
			}
			fmt.Fprintf(&out, "%s%s\n", input.String(), end)
		}
		out.WriteString(p.command(command, input.String()))
	}
	return out.String()
}

func (p *serving) command(line, input string) string {
	args, err := split(line)
	if err != nil || len(args) == 0 {
		p.t.Fatalf("%q: %v", line, err)
	}
	var got outcome
	switch {
	case args[0] == "stop":
		if got = p.server.stop(); got.code == exitOK {
			return "" // its log says more than anybody wants to compare
		}
	case len(args) > 1 && args[1] == "serve" && p.server == nil:
		p.server = p.serve(args[2:]...)
		p.setenv(namesrvEnv, p.server.at.NameServer)
		got.stdout = p.server.stdout.String()
	default:
		p.now = time.Now()
		got = p.runIn(context.Background(), input, args[1:]...)
	}
	var out strings.Builder
	out.WriteString(got.stdout)
	for l := range strings.Lines(got.stderr) {
		out.WriteString("! " + l)
	}
	if got.code != 0 {
		fmt.Fprintf(&out, "exit %d\n", got.code)
	}
	text := out.String()
	for _, r := range varying {
		text = r.what.ReplaceAllString(text, r.by)
	}
	return text
}

func (p *serving) setenv(name, value string) { p.t.(*testing.T).Setenv(name, value) }

// varying is what no two runs have in common.
var varying = []struct {
	what *regexp.Regexp
	by   string
}{
	{regexp.MustCompile(`\b[0-9A-F]{32}\b`), "ID"},
	{regexp.MustCompile(`\b20[0-9]{2}-[0-9]{2}-[0-9]{2} [0-9:.]+`), "TIME"},
	{regexp.MustCompile(`(Timestamp|pid)":[0-9]+`), `$1":N`},
	{regexp.MustCompile(`by process [0-9]+`), "by process N"},
	{regexp.MustCompile(`127\.0\.0\.1:[0-9]+`), "127.0.0.1:PORT"},
}
