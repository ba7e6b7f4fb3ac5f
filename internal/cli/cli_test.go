package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// store makes a store with n messages of topic Orders, queue 0.
func (b *bench) store(dir string, n int) {
	b.t.Helper()
	var in strings.Builder
	for i := range n {
		fmt.Fprintf(&in, `{"topic":"Orders","properties":{"KEYS":"k"},"body":"message %d"}`+"\n", i)
	}
	b.mustIn(exitOK, in.String(), append([]string{"store", "import", dir}, smallSizes...)...)
}

// cancelWriter cancels a command when it has printed some lines.
type cancelWriter struct {
	strings.Builder
	cancel context.CancelFunc
	after  int
}

func (w *cancelWriter) Write(p []byte) (int, error) {
	n, err := w.Builder.Write(p)
	if strings.Count(w.String(), "\n") >= w.after {
		w.cancel()
	}
	return n, err
}

// TestInterrupt: commands stop when they are told to, with complete lines.
func TestInterrupt(t *testing.T) {
	for _, verb := range [][]string{
		{"get", "/data", "Orders", "0", "-n", "0", "--json"}, {"query", "/data", "Orders", "k", "-n", "0", "--json"},
	} {
		t.Run(verb[0], func(t *testing.T) {
			b := newBench(t)
			b.store("/data", 200)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			stdout := &cancelWriter{cancel: cancel, after: 10}
			var stderr strings.Builder
			a := &app{console: newConsole(stdout, &stderr), fs: b.fs, now: func() time.Time { return b.now }}
			if code := a.main(ctx, append([]string{"store"}, verb...)); code != exitFailed || stderr.String() != "gantry: interrupted\n" {
				t.Errorf("exit code %d, %q", code, stderr.String())
			}
			if n := len(jsonLines[tool.Message](t, stdout.String())); n < 10 || n >= 200 {
				t.Errorf("%d messages were printed", n)
			}
		})
	}
	t.Run("import", func(t *testing.T) {
		b := newBench(t)
		b.store("/data", 1)
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		// The input does not end, and reading it does not return.
		in, feed := io.Pipe()
		go func() {
			for range 3 {
				io.WriteString(feed, `{"topic":"Orders","body":"x"}`+"\n")
			}
			cancel()
		}()
		defer feed.Close()
		var stdout, stderr strings.Builder
		a := &app{console: newConsole(&stdout, &stderr), stdin: in, fs: b.fs, now: func() time.Time { return b.now }}
		code := a.main(ctx, append([]string{"store", "import", "/data"}, smallSizes...))
		if code != exitFailed || stdout.String() != "" || !strings.HasSuffix(stderr.String(), " goes on\ngantry: interrupted\n") {
			t.Errorf("exit code %d, %q, %q", code, stdout.String(), stderr.String())
		}
		b.must(exitOK, "store", "info", "/data") // it was closed
		b.must(exitOK, "store", "verify", "/data")
	})
	t.Run("put", func(t *testing.T) {
		b := newBench(t)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		in, feed := io.Pipe()
		defer feed.Close()
		var stdout, stderr strings.Builder
		a := &app{console: newConsole(&stdout, &stderr), stdin: in, fs: b.fs, now: func() time.Time { return b.now }}
		if code := a.main(ctx, []string{"store", "put", "/data", "Orders"}); code != exitFailed || stderr.String() != "gantry: interrupted\n" {
			t.Errorf("exit code %d, %q", code, stderr.String())
		}
		b.must(exitFailed, "store", "info", "/data") // nothing was made
	})
	t.Run("verify", func(t *testing.T) {
		b := newBench(t)
		b.store("/data", 10)
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if got := b.runIn(ctx, "", "store", "verify", "/data"); got != (outcome{exitFailed, "", "gantry: interrupted\n"}) {
			t.Errorf("%+v", got)
		}
	})
}

// fullWriter takes some writes and then fails.
type fullWriter struct{ left int }

var errFull = errors.New("no space left on device")

func (w *fullWriter) Write(p []byte) (int, error) {
	if w.left--; w.left < 0 {
		return 0, errFull
	}
	return len(p), nil
}

// TestOutputFails: results that cannot be written are no success.
func TestOutputFails(t *testing.T) {
	b := newBench(t)
	b.store("/data", 10)
	if err := b.flip("/data/commitlog/00000000000000000000", 95); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"--help"}, {"store", "info", "/data"}, {"store", "info", "/data", "--json"}, {"store", "get", "/data", "Orders", "0", "-n", "0"},
		{"store", "query", "/data", "Orders", "k"}, {"store", "offset", "/data", "Orders", "0", "0"}, {"store", "offset", "/data", "Orders", "0", "0", "--json"},
		{"store", "put", "/new", "Orders", "--body", "x"}, {"store", "put", "/new", "Orders", "--body", "x", "--json"},
		{"store", "import", "/new"}, {"store", "import", "/new", "--json"}, {"store", "verify", "/data"}, {"store", "verify", "/data", "--json"},
	} {
		for written := range 2 {
			if written == 1 && len(args) < 6 && args[len(args)-1] != "/data" { // one line in all
				continue
			}
			var stderr strings.Builder
			a := &app{console: newConsole(&fullWriter{written}, &stderr), stdin: strings.NewReader(""), fs: b.fs, now: func() time.Time { return b.now }}
			code := a.main(context.Background(), args)
			if fails := strings.Contains(stderr.String(), "write the results: no space left on device"); (code == exitFailed) != fails || written == 0 && !fails {
				t.Errorf("gantry %q after %d lines: exit code %d, %q", args, written, code, stderr.String())
			}
		}
	}
}

// TestLive reads beside a process that writes.
func TestLive(t *testing.T) {
	b := newBench(t)
	b.store("/data", 3)
	s, err := gantry.Open(context.Background(), "/data", &gantry.Options{FS: b.fs, Now: func() int64 { return b.now.UnixMilli() }, CleanInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(body string) {
		m := message.Message{Topic: "Orders", Body: []byte(body), Properties: message.NewProperties("KEYS", "k")}
		if _, err := s.Put(context.Background(), &m); err != nil {
			t.Fatal(err)
		}
	}
	put("by the running store")
	for _, args := range [][]string{
		{"info", "/data"}, {"get", "/data", "Orders", "0"}, {"query", "/data", "Orders", "k"}, {"offset", "/data", "Orders", "0", "0"}, {"verify", "/data"},
	} {
		b.must(exitFailed, append([]string{"store"}, args...)...)
		b.must(exitOK, append(append([]string{"store"}, args...), "--live")...)
	}
	if got := b.must(exitOK, "store", "get", "/data", "Orders", "0", "3", "--live"); !strings.Contains(got, "by the running store") {
		t.Errorf("get printed %q", got)
	}
	put("the store goes on")
	if info := jsonLines[infoJSON](t, strings.SplitAfter(b.must(exitOK, "store", "info", "/data", "--live", "--json"), "\n")[0])[0]; !info.Locked || info.Messages != 5 {
		t.Errorf("info printed %+v", info)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	b.must(exitOK, "store", "verify", "/data")
}

// TestDisk: what fails in the file system is no finding.
func TestDisk(t *testing.T) {
	b := newBench(t)
	b.store("/data", 3)
	mem := b.fs.(*memfs.FS)
	faults := faultfs.New(mem)
	b.fs = faults
	faults.Fail(faultfs.OpRead|faultfs.OpMapRead, "/data/commitlog/*", faultfs.ErrIO)
	for _, args := range [][]string{{"info", "/data"}, {"get", "/data", "Orders", "0"}, {"put", "/data", "Orders", "--body", "x"}} {
		if got := b.run(append([]string{"store"}, args...)...); got.code != exitFailed || !strings.Contains(got.stderr, faultfs.ErrIO.Error()) {
			t.Errorf("a log that cannot be read: %+v", got)
		}
	}
	faults.Clear()
	mem.SetCapacity(mem.Used())
	before := b.tree("/data")
	if got := b.run("store", "put", "/data", "Orders", "--body", strings.Repeat("x", 60_000)); got.code != exitFailed || !strings.Contains(got.stderr, "disk") {
		t.Errorf("a full disk: %+v", got)
	}
	mem.SetCapacity(0)
	if got := b.run("store", "get", "/data", "Orders", "0", "3"); got.code != exitFound {
		t.Errorf("%d files before; %+v", len(before), got)
	}
}

// TestMeter: progress is a line that is written over on a terminal, and one
// every few seconds elsewhere.
func TestMeter(t *testing.T) {
	for _, tc := range []struct {
		name     string
		terminal bool
		want     string
	}{
		{"plain", false, "replaying: 500 MiB of 1.0 GiB (48 %), 100 MiB/s, 5s left\n" +
			"replaying: 1000 MiB of 1.0 GiB (97 %), 100 MiB/s, 0s left\n" +
			"importing: 5,000 messages, 1,000 messages/s\n"},
		{"terminal", true, "\r\x1b[Kreplaying: 100 MiB of 1.0 GiB (9 %), 100 MiB/s, 9s left" +
			"\r\x1b[Kreplaying: 200 MiB of 1.0 GiB (19 %), 100 MiB/s, 8s left\r\x1b[Kgantry: a note\n" +
			"\r\x1b[Kreplaying: 300 MiB of 1.0 GiB (29 %), 100 MiB/s, 7s left\r\x1b[K"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			now := testNow
			var stdout, stderr strings.Builder
			a := &app{console: newConsole(&stdout, &stderr), now: func() time.Time { return now }}
			a.terminal = tc.terminal
			m := a.meter()
			for i := range int64(11) {
				m.show("replaying", i*100<<20, 1<<30, "bytes")
				if tc.terminal && i == 2 {
					a.note("a note")
				}
				if tc.terminal && i == 3 {
					break
				}
				now = now.Add(time.Second)
			}
			if !tc.terminal {
				m.show("importing", 0, 0, "messages")
				now = now.Add(5 * time.Second)
				m.show("importing", 5000, 0, "messages")
			}
			a.printf("result\n")
			if stderr.String() != tc.want || stdout.String() != "result\n" {
				t.Errorf("printed %q, want %q", stderr.String(), tc.want)
			}
		})
	}
}

// TestCompletion: cobra completes commands, flags and directories.
func TestCompletion(t *testing.T) {
	b := newBench(t)
	for _, tc := range []struct{ args, want string }{
		{"store g", "get\tPrint messages by queue offset, message id or position\ngrep\tSearch the log for messages\n:4\n"},
		{"store info ", ":16\n"},
		{"store get /data ", ":4\n"},
		{"store verify --qu", "--quick\tnames, lengths, headers and ends only\n:4\n"},
		{"--config ", "conf\nproperties\n:8\n"},
		{"help st", "store\tLook into a store directory, or write one\n:4\n"},
	} {
		args := append([]string{"__complete"}, strings.Split(tc.args, " ")...)
		if got := b.must(exitOK, args...); got != tc.want {
			t.Errorf("%q completes to %q, want %q", tc.args, got, tc.want)
		}
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if got := b.must(exitOK, "completion", shell); !strings.Contains(got, "gantry") {
			t.Errorf("completion %s printed %d bytes", shell, len(got))
		}
	}
}

// TestPutBody: a body is taken as it is, up to the limit, and never wholly
// read when it is larger.
func TestPutBody(t *testing.T) {
	b := newBench(t)
	body := "line\r\n\x00\xff\n"
	b.mustIn(exitOK, body, append([]string{"store", "put", "/data", "Orders"}, smallSizes...)...)
	b.must(exitOK, "store", "put", "/data", "Orders", "--body", "")
	_, all := b.export("/data")
	if len(all) != 2 || *all[0].BodyBase64 != "bGluZQ0KAP8K" || *all[1].Body != "" {
		t.Errorf("stored %+v", all)
	}
	var stderr strings.Builder
	in := &zeros{}
	a := &app{console: newConsole(io.Discard, &stderr), stdin: in, fs: b.fs, now: func() time.Time { return b.now }}
	if code := a.main(context.Background(), []string{"store", "put", "/data", "Orders", "--set", "maxMessageSize=1000"}); code != exitFailed ||
		!strings.Contains(stderr.String(), "1001 bytes, limit 1000") {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
}

// zeros is a file without an end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// TestPutDelayed: a delayed message waits in the schedule topic, and others
// that are due are left alone.
func TestPutDelayed(t *testing.T) {
	b := newBench(t)
	got := jsonLines[putJSON](t, b.must(exitOK, append([]string{"store", "put", "/data", "Orders", "--property", "DELAY=1", "--body", "later", "--json"}, smallSizes...)...))
	if got[0].Topic != message.ScheduleTopic {
		t.Errorf("stored as %+v", got)
	}
	b.now = b.now.Add(time.Hour)
	b.must(exitOK, "store", "put", "/data", "Orders", "--body", "now")
	if out := b.must(exitOK, "store", "get", "/data", "Orders", "0", "-n", "0", "--json"); len(jsonLines[tool.Message](t, out)) != 1 {
		t.Errorf("the queue holds %s", out)
	}
}
