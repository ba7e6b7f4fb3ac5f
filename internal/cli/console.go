package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/dustin/go-humanize"
	"golang.org/x/term"

	"github.com/gantrymq/gantry/internal/tool"
)

// console is where a command writes. Every result is written whole, so that an
// interrupted command leaves complete lines, and a progress line on a terminal
// is wiped out before anything else is written. It may be used concurrently.
type console struct {
	mu             sync.Mutex
	stdout, stderr io.Writer
	terminal       bool  // stderr is one
	colors         bool  // results may be colored: stdout is one
	shown          bool  // a progress line stands there
	err            error // of the first result that could not be written
}

func newConsole(stdout, stderr io.Writer) *console {
	colors := isTerminal(stdout) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	return &console{stdout: stdout, stderr: stderr, terminal: isTerminal(stderr), colors: colors}
}

// color is a color of text on a terminal.
type color string

// The colors.
const (
	red    color = "31"
	green  color = "32"
	yellow color = "33"
	faint  color = "2"
	bold   color = "1"
)

// paint gives text a color where that is wanted.
func (c *console) paint(col color, text string) string {
	if !c.colors {
		return text
	}
	return "\x1b[" + string(col) + "m" + text + "\x1b[0m"
}

// width is how many characters a line of results may have; 0: any number.
func (c *console) width() int {
	f, ok := c.stdout.(*os.File)
	if !ok {
		return 0
	}
	w, _, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return w
}

// Write writes results. After an error nothing more is written.
func (c *console) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wipeLocked()
	if c.err != nil {
		return 0, c.err
	}
	n, err := c.stdout.Write(p)
	if err != nil {
		c.err = fmt.Errorf("write the results: %w", err)
	}
	return n, c.err
}

// writeError returns the error of Write, for commands that did not look.
func (c *console) writeError() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wipeLocked()
	return c.err
}

func (c *console) wipeLocked() {
	if c.shown {
		c.shown = false
		io.WriteString(c.stderr, "\r\x1b[K")
	}
}

// errors is the standard error: what fails there has nowhere to go.
func (c *console) errors() io.Writer { return errorWriter{c} }

type errorWriter struct{ c *console }

func (w errorWriter) Write(p []byte) (int, error) {
	w.c.mu.Lock()
	defer w.c.mu.Unlock()
	w.c.wipeLocked()
	return w.c.stderr.Write(p)
}

// note tells the user something. Errors and names may hold what was stored:
// control characters are made visible.
func (c *console) note(format string, args ...any) {
	var b strings.Builder
	b.WriteString("gantry: ")
	for line := range strings.SplitSeq(fmt.Sprintf(format, args...), "\n") {
		b.WriteString(tool.Printable(line))
		b.WriteByte('\n')
	}
	io.WriteString(c.errors(), b.String())
}

// printf writes a result.
func (c *console) printf(format string, args ...any) error {
	_, err := fmt.Fprintf(c, format, args...)
	return err
}

// printJSON writes one object on a line.
func (c *console) printJSON(v any) error {
	enc := json.NewEncoder(c)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// logger logs from level on, everything with -v.
func (a *app) logger(level slog.Level) *slog.Logger {
	o := &slog.HandlerOptions{Level: level}
	if a.verbose {
		o.Level = slog.LevelDebug
	} else { // a warning on a terminal needs no time
		o.ReplaceAttr = func(groups []string, attr slog.Attr) slog.Attr {
			if len(groups) == 0 && attr.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return attr
		}
	}
	return slog.New(slog.NewTextHandler(a.errors(), o))
}

// meter shows how far long work has come: in a line that is written over on a
// terminal, else in one every few seconds.
type meter struct {
	c           *console
	now         func() time.Time
	step        string
	start, last time.Time // of the step; of what was shown
}

const (
	meterPause         = 5 * time.Second
	meterPauseTerminal = 200 * time.Millisecond
)

func (a *app) meter() *meter { return &meter{c: a.console, now: a.now} }

// show tells that done of total units of a step are done; total 0 is unknown.
// Calls must not overlap.
func (m *meter) show(step string, done, total int64, unit string) {
	now := m.now()
	if step != m.step {
		m.step, m.start, m.last = step, now, now
	}
	pause := meterPause
	if m.c.terminal {
		pause = meterPauseTerminal
	}
	if now.Sub(m.last) < pause {
		return
	}
	m.last = now
	amount := func(n int64) string { return humanize.Comma(n) + " " + unit }
	if unit == "bytes" {
		amount = func(n int64) string { return humanize.IBytes(uint64(max(n, 0))) }
	}
	rate := float64(done) / now.Sub(m.start).Seconds()
	line := fmt.Sprintf("%s: %s, %s/s", step, amount(done), amount(int64(rate)))
	if total > 0 {
		line = fmt.Sprintf("%s: %s of %s (%d %%), %s/s", step, amount(done), amount(total), done*100/total, amount(int64(rate)))
		if rate > 0 {
			left := time.Duration(float64(total-done) / rate * float64(time.Second))
			line += fmt.Sprintf(", %v left", max(left, 0).Round(time.Second))
		}
	}
	m.c.mu.Lock()
	defer m.c.mu.Unlock()
	if m.c.terminal {
		fmt.Fprintf(m.c.stderr, "\r\x1b[K%s", line)
		m.c.shown = true
		return
	}
	fmt.Fprintln(m.c.stderr, line)
}

// input is the standard input, interruptible. A user who forgot about it is
// told what the command waits for.
func (a *app) input(ctx context.Context, what string) io.ReadCloser {
	if isTerminal(a.stdin) {
		a.note("reading %s from the terminal; Ctrl-D ends it", what)
	}
	return interruptible(ctx, a.stdin)
}

func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// interruptible returns a reader of r whose Read ends with ctx, although that
// of r may wait for ever: for a terminal, or a pipe with a silent other end.
// Close it.
func interruptible(ctx context.Context, r io.Reader) io.ReadCloser {
	pr, pw := io.Pipe()
	go func() {
		_, err := io.Copy(pw, r)
		pw.CloseWithError(err)
	}()
	stop := context.AfterFunc(ctx, func() { pw.CloseWithError(ctx.Err()) })
	return &pipeReader{pr, stop}
}

type pipeReader struct {
	*io.PipeReader
	stop func() bool
}

func (p *pipeReader) Close() error {
	p.stop()
	return p.PipeReader.Close()
}
