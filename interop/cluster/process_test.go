//go:build interop

package cluster

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gantrymq/gantry/interop/artifacts"
)

// startLimit and stopLimit bound how long a server takes; a Java broker on a
// busy machine takes half a minute.
const (
	startLimit = 120 * time.Second
	stopLimit  = 60 * time.Second
)

// process is a program that runs beside the test. Its output goes to a file.
type process struct {
	name  string
	cmd   *exec.Cmd
	log   string        // name of the file; appended to
	ready chan string   // gets the first line that onLine asked for
	done  chan struct{} // closed when it has ended
	err   error         // how it ended; read after done
}

// start runs a program. onLine is called with each line of standard output,
// nil for none; if it returns true, the line is what ready gets.
func start(name, log string, argv, env []string, onLine func(line string) bool) (*process, io.WriteCloser, error) {
	out, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, nil, err
	}
	p := &process{name: name, cmd: exec.Command(argv[0], argv[1:]...), log: log, ready: make(chan string, 1), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = out
	stdin, err := p.cmd.StdinPipe()
	if err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, nil, errors.Join(err, out.Close())
	}
	if err := p.cmd.Start(); err != nil {
		return nil, nil, errors.Join(fmt.Errorf("start %s: %w", name, err), out.Close())
	}
	go func() {
		lines := bufio.NewReader(stdout)
		for {
			line, err := lines.ReadString('\n')
			if line != "" {
				io.WriteString(out, line)
				if onLine != nil && onLine(strings.TrimRight(line, "\r\n")) {
					select {
					case p.ready <- strings.TrimRight(line, "\r\n"):
					default:
					}
				}
			}
			if err != nil {
				break
			}
		}
		p.err = p.cmd.Wait()
		out.Close()
		close(p.done)
	}()
	return p, stdin, nil
}

// waitReady returns the line that said so.
func (p *process) waitReady(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	select {
	case line := <-p.ready:
		return line, nil
	case <-p.done:
		return "", fmt.Errorf("%s ended: %v", p.name, p.err)
	case <-ctx.Done():
		return "", fmt.Errorf("%s did not get ready: %w", p.name, ctx.Err())
	}
}

// kill ends it with SIGKILL, if it has not ended, and waits.
func (p *process) kill() {
	p.cmd.Process.Kill()
	<-p.done
}

// stop ends it with SIGTERM and waits. The error says that it did not end in
// time or not as a server ends on this signal: Java exits with 143.
func (p *process) stop() error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		return fmt.Errorf("stop %s: %w", p.name, err)
	}
	select {
	case <-p.done:
	case <-time.After(stopLimit):
		p.kill()
		return fmt.Errorf("%s did not stop", p.name)
	}
	if code := p.cmd.ProcessState.ExitCode(); code != 0 && code != 143 {
		return fmt.Errorf("stop %s: %w", p.name, p.err)
	}
	return nil
}

// logTail makes a failed test print the end of a program's log.
func logTail(t *testing.T, name, file string) {
	if !t.Failed() {
		return
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Logf("log of %s: %v", name, err)
		return
	}
	t.Logf("log of %s:\n%s", name, artifacts.Tail(string(b)))
}

// await waits for what another process does: until ok says so. A test that
// waits has no event for it, so it asks.
func await(t *testing.T, limit time.Duration, what string, ok func() (done bool, why error)) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for {
		done, why := ok()
		if done {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("waited in vain for %s: %v", what, why)
		}
	}
}
