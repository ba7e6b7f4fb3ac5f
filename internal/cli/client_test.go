package cli

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// bodies returns those of the messages that a command printed as JSON, sorted:
// the queues of a topic have no order among each other.
func bodies(t *testing.T, out string) []string {
	t.Helper()
	got := []string{}
	for _, m := range jsonLines[tool.Message](t, out) {
		got = append(got, bodyOf(t, m))
	}
	slices.Sort(got)
	return got
}

func bodyOf(t *testing.T, m tool.Message) string {
	t.Helper()
	if m.Body != nil {
		return *m.Body
	}
	body, err := base64.StdEncoding.DecodeString(*m.BodyBase64)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func wantBodies(t *testing.T, out string, want ...string) {
	t.Helper()
	want = append([]string{}, want...)
	slices.Sort(want)
	if d := cmp.Diff(want, bodies(t, out)); d != "" {
		t.Error(d)
	}
}

// TestSendLines: each line is a message, as it is.
func TestSendLines(t *testing.T) {
	s := newServerBench(t).serve()
	long := strings.Repeat("long ", 100_000) // more than a read, and compressed on its way
	in := "first\n  with spaces \n\n\twindows\r\n" + long + "\nlast without an end"
	sent := jsonLines[sendJSON](t, s.mustIn(exitOK, in, "send", "Orders", "--lines", "--tag", "a", "--json"))
	if len(sent) != 5 {
		t.Errorf("%d messages were sent", len(sent))
	}
	ids := make(map[string]bool)
	for _, m := range sent {
		ids[m.OffsetMsgID], ids[m.MsgID] = true, true
		if m.Status != "SEND_OK" || m.Topic != "Orders" || m.BrokerName != "broker-a" {
			t.Errorf("%+v", m)
		}
	}
	if len(ids) != 10 {
		t.Errorf("ids repeat: %v", slices.Collect(maps.Keys(ids)))
	}
	wantBodies(t, s.must(exitOK, "receive", "Orders", "--from-earliest", "-n", "5", "--json"),
		"first", "  with spaces ", "\twindows", long, "last without an end")

	t.Run("too long", func(t *testing.T) {
		got := s.askIn("short\n"+strings.Repeat("x", message.DefaultMaxMessageSize+10)+"\nnever sent\n", "send", "Orders", "--lines", "--json")
		if n := len(jsonLines[sendJSON](t, got.stdout)); got.code != exitFailed || n != 1 || !strings.Contains(got.stderr, "line 2: ") {
			t.Errorf("exit code %d, %d sent, %s", got.code, n, got.stderr)
		}
	})
	t.Run("refused", func(t *testing.T) {
		got := s.askIn("one\ntwo\n", "send", "No/Topic", "--lines")
		if got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, "line 1: ") {
			t.Errorf("exit code %d, %q, %s", got.code, got.stdout, got.stderr)
		}
	})
}

// TestSendBody: the body is --body or all of the input, whatever it holds.
func TestSendBody(t *testing.T) {
	s := newServerBench(t).serve()
	s.mustIn(exitOK, "two\nlines\n", "send", "Orders")
	s.mustIn(exitOK, "not read", "send", "Orders", "--body", "flag")
	s.mustIn(exitOK, "\xff\x00", "send", "Orders", "--property", "color=red", "--key", "a", "--key", "b", "--tag", "t")
	out := s.must(exitOK, "receive", "Orders", "--from-earliest", "-n", "3", "--json")
	wantBodies(t, out, "\xff\x00", "flag", "two\nlines\n")
	for _, m := range jsonLines[tool.Message](t, out) {
		if p := message.Properties(m.Properties).Map(); bodyOf(t, m) == "\xff\x00" && (p["KEYS"] != "a b" || p["TAGS"] != "t" || p["color"] != "red") {
			t.Errorf("properties %v", p)
		}
	}
	for _, empty := range []outcome{s.askIn("", "send", "Orders"), s.ask("send", "Orders", "--body", "")} {
		if empty.code != exitUsage || empty.stdout != "" || !strings.Contains(empty.stderr, "empty") {
			t.Errorf("an empty body: exit code %d, %s", empty.code, empty.stderr)
		}
	}
	if got := s.askIn(strings.Repeat("x", message.DefaultMaxMessageSize+1), "send", "Orders"); got.code != exitFailed || got.stdout != "" {
		t.Errorf("a large body: exit code %d, %s", got.code, got.stderr)
	}
}

// TestSendDelayed: the property DELAY has a message come later.
func TestSendDelayed(t *testing.T) {
	s := newServerBench(t).serve("--set", "messageDelayLevel=1s 2h")
	s.must(exitOK, "send", "Orders", "--body", "in an hour", "--property", "DELAY=2")
	s.must(exitOK, "send", "Orders", "--body", "in a second", "--property", "DELAY=1", "--key", "k")
	if got := s.ask("query", "Orders", "k"); got.code != exitFound {
		t.Errorf("it is there already: %s", got.stdout)
	}
	wantBodies(t, s.must(exitOK, "receive", "Orders", "--from-earliest", "-n", "1", "--json"), "in a second")
}

// TestReceive: what a group gets, and that it goes on where it was.
func TestReceive(t *testing.T) {
	s := newServerBench(t).serve()
	var in strings.Builder
	var all []string
	for i := range 40 { // ten in each queue
		all = append(all, fmt.Sprintf("message %02d", i))
		fmt.Fprintln(&in, all[i])
	}
	s.mustIn(exitOK, in.String(), "send", "Orders", "--lines")

	t.Run("-n is exact, and the rest comes next", func(t *testing.T) {
		var got []string
		for _, n := range []int{1, 7, 12, 20} {
			out := s.must(exitOK, "receive", "Orders", "--group", "exact", "--from-earliest", "-n", fmt.Sprint(n), "--json")
			if m := len(bodies(t, out)); m != n {
				t.Errorf("%d messages, want %d", m, n)
			}
			got = append(got, bodies(t, out)...)
		}
		slices.Sort(got)
		if d := cmp.Diff(all, got); d != "" {
			t.Errorf("lost or twice: %s", d)
		}
		s.must(exitFound, "receive", "Orders", "--group", "exact", "--from-earliest", "--idle", "300ms")
	})
	t.Run("--idle", func(t *testing.T) {
		out := s.must(exitOK, "receive", "Orders", "--group", "idle", "--from-earliest", "--idle", "1s", "--json")
		wantBodies(t, out, all...)
	})
	t.Run("in order", func(t *testing.T) {
		last := make(map[int32]int64)
		for _, m := range jsonLines[tool.Message](t, s.must(exitOK, "receive", "Orders", "--group", "order", "--from-earliest", "-n", "40", "--json")) {
			if at, ok := last[m.QueueID]; ok && m.QueueOffset != at+1 {
				t.Errorf("queue %d: %d after %d", m.QueueID, m.QueueOffset, at)
			}
			last[m.QueueID] = m.QueueOffset
		}
	})
	t.Run("from now on", func(t *testing.T) {
		s.must(exitFound, "receive", "Orders", "--group", "new", "--idle", "300ms")
		s.must(exitOK, "send", "Orders", "--body", "later")
		wantBodies(t, s.must(exitOK, "receive", "Orders", "--group", "new", "-n", "1", "--json"), "later")
	})
}

func TestReceiveFilters(t *testing.T) {
	s := newServerBench(t).serve()
	for _, m := range []struct{ tag, color string }{{"new", "red"}, {"paid", "green"}, {"sent", "red"}} {
		s.must(exitOK, "send", "Orders", "--body", m.tag, "--tag", m.tag, "--property", "color="+m.color)
	}
	for i, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"--tag", "new"}, []string{"new"}},
		{[]string{"--tag", "new || sent"}, []string{"new", "sent"}},
		{[]string{"--tag", "*"}, []string{"new", "paid", "sent"}},
		{[]string{"--sql", "color = 'red'"}, []string{"new", "sent"}},
		{[]string{"--sql", "color = 'red' AND TAGS <> 'new'"}, []string{"sent"}},
	} {
		args := append([]string{"receive", "Orders", "--from-earliest", "--group", fmt.Sprint("g", i), "-n", fmt.Sprint(len(tc.want)), "--json"}, tc.args...)
		wantBodies(t, s.must(exitOK, args...), tc.want...)
	}
	// Nothing more would have come.
	s.must(exitFound, "receive", "Orders", "--group", "g1", "--tag", "new || sent", "--idle", "300ms")
}

// TestReceiveInterrupted: Ctrl-C ends it with complete lines, and what was
// printed is consumed.
func TestReceiveInterrupted(t *testing.T) {
	b := newServerBench(t)
	s := b.serve()
	s.mustIn(exitOK, strings.Repeat("message\n", 200), "send", "Orders", "--lines")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stdout := &cancelWriter{cancel: cancel, after: 10}
	a := &app{console: newConsole(stdout, io.Discard), fs: b.fs, now: time.Now}
	args := []string{"receive", "Orders", "--from-earliest", "--json", "--namesrv", s.at.NameServer}
	if code := a.main(ctx, args); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	first := len(bodies(t, stdout.String()))
	if first < 10 || first > 190 {
		t.Errorf("%d messages before the end", first)
	}
	out := s.must(exitOK, "receive", "Orders", "-n", fmt.Sprint(200-first), "--json")
	if n := len(bodies(t, out)); first+n != 200 {
		t.Errorf("%d and %d messages", first, n)
	}
	s.must(exitFound, "receive", "Orders", "--idle", "300ms")
}

// TestReceiveCannotPrint: messages that could not be printed are not consumed.
func TestReceiveCannotPrint(t *testing.T) {
	b := newServerBench(t)
	s := b.serve()
	s.mustIn(exitOK, "one\ntwo\n", "send", "Orders", "--lines")
	var stderr strings.Builder
	a := &app{console: newConsole(brokenWriter{}, &stderr), fs: b.fs, now: time.Now}
	if code := a.main(t.Context(), []string{"receive", "Orders", "--from-earliest", "--namesrv", s.at.NameServer}); code != exitFailed || !strings.Contains(stderr.String(), errBroken.Error()) {
		t.Errorf("exit code %d, %q", code, stderr.String())
	}
	wantBodies(t, s.must(exitOK, "receive", "Orders", "-n", "2", "--json"), "one", "two")
}

var errBroken = errors.New("broken")

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errBroken }

// TestQuery: the same answers as of the store, from the servers.
func TestQuery(t *testing.T) {
	b := newServerBench(t)
	s := b.serve()
	for i, key := range []string{"Ea", "FB", "Ea"} { // equal hashes
		s.must(exitOK, "send", "Orders", "--key", key, "--key", "all", "--body", fmt.Sprint(key, i))
	}
	s.must(exitOK, "send", "Invoices", "--key", "Ea", "--body", "another topic")
	for _, tc := range []struct {
		args []string
		want []string
	}{
		{[]string{"Ea"}, []string{"Ea0", "Ea2"}}, {[]string{"FB"}, []string{"FB1"}}, {[]string{"all"}, []string{"Ea0", "Ea2", "FB1"}},
		{[]string{"all", "-n", "1"}, []string{"Ea2"}}, {[]string{"all", "-n", "0"}, []string{"Ea0", "Ea2", "FB1"}},
		{[]string{"all", "--from", "-1h"}, []string{"Ea0", "Ea2", "FB1"}},
	} {
		wantBodies(t, s.must(exitOK, append([]string{"query", "Orders", "--json"}, tc.args...)...), tc.want...)
	}
	for _, args := range [][]string{{"none"}, {"all", "--to", "-1h"}, {"ea"}, {"Ea", "--unique"}} {
		got := s.ask(append([]string{"query", "Orders"}, args...)...)
		if got.code != exitFound || got.stdout != "" || !strings.Contains(got.stderr, "no message of topic Orders has") {
			t.Errorf("%q: exit code %d, %q, %s", args, got.code, got.stdout, got.stderr)
		}
	}
	sent := jsonLines[sendJSON](t, s.must(exitOK, "send", "Orders", "--body", "unique", "--json"))
	wantBodies(t, s.must(exitOK, "query", "Orders", sent[0].MsgID, "--unique", "--json"), "unique")

	asked := s.must(exitOK, "query", "Orders", "all", "--json")
	s.stop()
	if d := cmp.Diff(b.must(exitOK, "store", "query", "/data", "Orders", "all", "--json"), asked); d != "" {
		t.Errorf("(-store +servers)\n%s", d)
	}
}

// TestClientFails: no servers, no topic: code 3, at once, with the reason.
func TestClientFails(t *testing.T) {
	nobody, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := nobody.Addr().String()
	nobody.Close()

	b := newServerBench(t)
	s := b.serve("--set", "autoCreateTopicEnable=false")
	commands := [][]string{{"send", "Orders", "--body", "x"}, {"receive", "Orders"}, {"query", "Orders", "k"}}
	for _, args := range commands {
		t.Run(args[0], func(t *testing.T) {
			if got := b.run(append(args, "--namesrv", addr)...); got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, addr) || !strings.Contains(got.stderr, "refused") {
				t.Errorf("no name server: exit code %d, %s", got.code, got.stderr)
			}
			if got := s.ask(args...); got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, "topic Orders: ") || strings.Count(got.stderr, "\n") != 1 {
				t.Errorf("no topic: exit code %d, %s", got.code, got.stderr)
			}
			if got := b.run(append(args, "--namesrv", addr+";"+s.at.NameServer)...); got.code != exitFailed || !strings.Contains(got.stderr, "topic Orders: ") {
				t.Errorf("the second name server: exit code %d, %s", got.code, got.stderr)
			}
			for from, run := range map[string]func() outcome{
				"--namesrv":   func() outcome { return b.run(append(args, "--namesrv", "host")...) },
				"namesrvAddr": func() outcome { return b.run(append(args, "--set", "namesrvAddr=host")...) },
				"--set":       func() outcome { return b.run(append(args, "--set", "brokerName=b", "--namesrv", addr)...) },
			} {
				if got := run(); got.code != exitUsage || !strings.Contains(got.stderr, "gantry: "+from) {
					t.Errorf("%s: exit code %d, %s", from, got.code, got.stderr)
				}
			}
			if got := b.run(append(args, "--config", "/none.conf", "--namesrv", addr)...); got.code != exitFailed || !strings.Contains(got.stderr, "/none.conf") {
				t.Errorf("no configuration: exit code %d, %s", got.code, got.stderr)
			}
		})
	}
	t.Run("usage", func(t *testing.T) {
		for _, args := range [][]string{
			{"send"}, {"send", ""}, {"send", "T", "more"}, {"send", "T", "--lines", "--body", "x"}, {"send", "T", "--key", "a b", "--body", "x"},
			{"send", "T", "--property", "x", "--body", "x"}, {"send", "T", "--body", "x", "--group", ""},
			{"receive"}, {"receive", "T", "-n", "-1"}, {"receive", "T", "--idle", "-1s"}, {"receive", "T", "--idle", "5"}, {"receive", "T", "--group", ""},
			{"receive", "T", "--tag", "a", "--sql", "b = 1"},
			{"query", "T"}, {"query", "T", "k", "-n", "-1"}, {"query", "T", "k", "--from", "2h", "--to", "-1h"},
		} {
			if got := b.run(append(args, "--namesrv", addr)...); got.code != exitUsage || got.stdout != "" {
				t.Errorf("%q: exit code %d, %s", args, got.code, got.stderr)
			}
		}
	})
	t.Run("condition", func(t *testing.T) {
		b := newServerBench(t)
		s := b.serve()
		s.must(exitOK, "send", "Orders", "--body", "x")
		if got := s.ask("receive", "Orders", "--sql", "a = = 1"); got.code != exitFailed || got.stdout != "" || !strings.Contains(got.stderr, "SUBSCRIPTION_PARSE_FAILED") {
			t.Errorf("exit code %d, %s", got.code, got.stderr)
		}
	})
}

// TestClientFindsServers: by the flag, before a property, before the
// environment.
func TestClientFindsServers(t *testing.T) {
	b := newServerBench(t)
	s := b.serve()
	right, wrong := s.at.NameServer, "127.0.0.1:1"
	for _, tc := range []struct {
		name, env string
		args      []string
	}{
		{"environment", right, nil},
		{"file", wrong, []string{"--config", writeFile(t, "c.conf", "namesrvAddr="+right)}},
		{"--set", wrong, []string{"--config", writeFile(t, "c.conf", "namesrvAddr="+wrong), "--set", "namesrvAddr=" + right}},
		{"flag", wrong, []string{"--set", "namesrvAddr=" + wrong, "--namesrv", right}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(namesrvEnv, tc.env)
			b.must(exitOK, append([]string{"send", "Orders", "--body", "x"}, tc.args...)...)
		})
	}
	file := writeFile(t, "c.conf", "brokerName=b\nnamesrvAddr="+right)
	if got := b.run("send", "Orders", "--body", "x", "--config", file); got.code != exitOK || got.stderr != "gantry: "+file+": not used here: brokerName\n" {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
}
