//go:build unix

package cli

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// buildGantry builds the command.
func buildGantry(t testing.TB) (program string) {
	t.Helper()
	program = filepath.Join(t.TempDir(), "gantry")
	if out, err := exec.Command("go", "build", "-o", program, "../../cmd/gantry").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return program
}

// process is a gantry in a process of its own.
type process struct {
	t       testing.TB
	cmd     *exec.Cmd
	at      readyJSON
	took    time.Duration // until it was ready
	stderr  *lockedBuffer
	stopped bool
}

// newProcess starts a server and waits until it is ready.
func newProcess(t testing.TB, program string, args ...string) *process {
	t.Helper()
	p := &process{t: t, cmd: exec.Command(program, append(args, "--json")...), stderr: new(lockedBuffer)}
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !p.stopped {
			p.cmd.Process.Kill() //nolint:errcheck // the test has failed
			p.cmd.Wait()         //nolint:errcheck
		}
	})
	line, err := bufio.NewReader(stdout).ReadString('\n')
	p.took = time.Since(began)
	if err == nil {
		err = json.Unmarshal([]byte(line), &p.at)
	}
	if err != nil {
		t.Fatalf("%v in %q\n%s", err, line, p.stderr)
	}
	return p
}

// signal sends a signal and returns the exit code.
func (p *process) signal(s os.Signal) int {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.t.Fatal(err)
	}
	p.stopped = true
	err := p.cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
		p.t.Fatalf("%v (%v)\n%s", err, exit, p.stderr)
	}
	return p.cmd.ProcessState.ExitCode()
}

// rss is the memory of the process in MiB, or 0 where /proc does not tell.
func (p *process) rss() float64 {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	m := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(data)
	if m == nil {
		return 0
	}
	kib, _ := strconv.ParseFloat(string(m[1]), 64) // digits
	return kib / 1024
}

// watchRSS looks at the memory of the process until stop is called, which returns
// the most that it had.
func (p *process) watchRSS() (stop func() float64) {
	most, ended, done := 0.0, make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(20 * time.Millisecond)
		defer tick.Stop()
		for {
			most = max(most, p.rss())
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	}()
	return func() float64 {
		close(ended)
		<-done
		return most
	}
}

// cpu is what the process has used so far, or 0.
func (p *process) cpu() time.Duration {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", p.cmd.Process.Pid))
	if err != nil {
		return 0
	}
	_, rest, _ := strings.Cut(string(data), ") ")
	f := strings.Fields(rest)
	user, _ := strconv.Atoi(f[11]) // hundredths of a second
	system, _ := strconv.Atoi(f[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

// TestProcess: the real program, from its start to the two signals that end it.
func TestProcess(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	args := []string{"serve", "--data", dir, "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0"}
	program := buildGantry(t)
	gantry := func(stdin string, args ...string) (string, int) {
		t.Helper()
		cmd := exec.Command(program, args...)
		cmd.Stdin = strings.NewReader(stdin)
		cmd.Stderr = t.Output()
		out, err := cmd.Output()
		if _, ok := errors.AsType[*exec.ExitError](err); err != nil && !ok {
			t.Fatal(err)
		}
		return string(out), cmd.ProcessState.ExitCode()
	}
	for i, s := range []os.Signal{syscall.SIGTERM, os.Interrupt} {
		p := newProcess(t, program, args...)
		t.Logf("ready after %v, %.1f MiB resident", p.took.Round(time.Millisecond), p.rss())
		if p.at.ProcessID != p.cmd.Process.Pid {
			t.Errorf("process %d says that it is %d", p.cmd.Process.Pid, p.at.ProcessID)
		}
		if out, code := gantry("one\ntwo\n", "send", "Orders", "--lines", "--namesrv", p.at.NameServer); code != exitOK {
			t.Errorf("send: exit code %d, %s", code, out)
		}
		// A second one on the same directory, while the first is there.
		if out, code := gantry("", args...); code != exitFailed || out != "" {
			t.Errorf("a second broker: exit code %d, %q", code, out)
		}
		if out, code := gantry("", "receive", "Orders", "--from-earliest", "-n", "2", "--json", "--namesrv", p.at.NameServer); code != exitOK || len(bodies(t, out)) != 2 {
			t.Errorf("receive: exit code %d, %q", code, out)
		}
		if code := p.signal(s); code != exitOK {
			t.Errorf("%v: exit code %d\n%s", s, code, p.stderr)
		}
		out, code := gantry("", "store", "info", dir, "--json")
		if info := jsonLines[infoJSON](t, out)[0]; code != exitOK || !info.CleanStop || info.Messages != int64(2*i+2) {
			t.Errorf("%v: exit code %d, %+v", s, code, info)
		}
	}
}
