package cli

import (
	"context"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// patience is how long a test waits for what has to come.
const patience = 30 * time.Second

// running is a server command in this process.
type running struct {
	b      *bench
	at     readyJSON
	cancel context.CancelFunc
	stdout *lockedBuffer
	stderr *lockedBuffer
	done   chan struct{}
	out    outcome // valid when done is closed
}

// lockedBuffer keeps what is written to it, and sends the first lines on: each
// write of a command is one.
type lockedBuffer struct {
	mu    sync.Mutex
	text  strings.Builder
	lines chan string // nil: nobody waits
}

func (w *lockedBuffer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	select {
	case w.lines <- string(p):
	default: // nobody waits for it
	}
	return w.text.Write(p)
}

func (w *lockedBuffer) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.text.String()
}

// newServerBench is a bench with the clock of the system, as servers have it.
// Nothing of its servers runs when all have stopped: one that stops before
// another cannot tell its goroutines from the other's.
func newServerBench(t testing.TB) *bench {
	leaks := goleak.IgnoreCurrent()
	t.Cleanup(func() { goleak.VerifyNone(t, leaks) })
	b := newBench(t)
	b.now = time.Now()
	return b
}

// anyPorts has servers listen where there is room, with a store of small files.
var anyPorts = append([]string{"--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--data", "/data"}, smallSizes...)

// serve runs "gantry serve" on any ports, and returns when it is ready. It stops
// with the test if not before.
func (b *bench) serve(args ...string) *running {
	b.t.Helper()
	return b.server(append(append([]string{"serve"}, anyPorts...), args...)...)
}

// server runs a server command and returns when it is ready.
func (b *bench) server(args ...string) *running {
	b.t.Helper()
	r := b.start(args...)
	select {
	case line := <-r.stdout.lines:
		if err := json.Unmarshal([]byte(line), &r.at); err != nil {
			b.t.Fatalf("%v in %q", err, line)
		}
	case <-r.done:
		b.t.Fatalf("gantry %q: exit code %d\n%s", args, r.out.code, r.out.stderr)
	case <-time.After(patience):
		b.t.Fatalf("gantry %q is not ready\n%s", args, r.stderr)
	}
	return r
}

// start runs a server command with --json.
func (b *bench) start(args ...string) *running {
	b.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{
		b: b, cancel: cancel, stdout: &lockedBuffer{lines: make(chan string, 16)}, stderr: new(lockedBuffer), done: make(chan struct{}),
	}
	a := &app{console: newConsole(r.stdout, r.stderr), stdin: strings.NewReader(""), fs: b.fs, now: time.Now}
	go func() {
		defer close(r.done)
		r.out.code = a.main(ctx, append(args, "--json"))
		r.out.stdout, r.out.stderr = r.stdout.String(), r.stderr.String()
	}()
	b.t.Cleanup(func() { r.stop() })
	return r
}

// stop ends the command as a signal does, and returns what it did.
func (r *running) stop() outcome {
	r.b.t.Helper()
	r.cancel()
	return r.wait()
}

// wait waits for the command to end by itself.
func (r *running) wait() outcome {
	r.b.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.b.t.Fatalf("the server does not stop\n%s", r.stderr)
	}
	return r.out
}

// ask runs a client command against the server.
func (r *running) ask(args ...string) outcome { return r.askIn("", args...) }

func (r *running) askIn(stdin string, args ...string) outcome {
	r.b.now = time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return r.b.runIn(ctx, stdin, append(args, "--namesrv", r.at.NameServer)...)
}

// must is ask for a command that has to end with a code.
func (r *running) must(code int, args ...string) string {
	r.b.t.Helper()
	return r.mustIn(code, "", args...)
}

func (r *running) mustIn(code int, stdin string, args ...string) string {
	r.b.t.Helper()
	got := r.askIn(stdin, args...)
	if got.code != code {
		r.b.t.Fatalf("gantry %q: exit code %d, want %d\n%s%s", args, got.code, code, got.stdout, got.stderr)
	}
	return got.stdout
}
