package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/internal/vfs"
)

// TestServe: from the ready line to a store that was closed cleanly, and again.
func TestServe(t *testing.T) {
	b := newServerBench(t)
	for i := range 3 {
		s := b.serve()
		if s.at.NameServer == "" || s.at.Broker == "" || s.at.Data != "/data" || s.at.HTTP != "" || s.at.ProcessID == 0 {
			t.Fatalf("ready: %+v", s.at)
		}
		s.must(exitOK, "send", "Orders", "--body", fmt.Sprint("message ", i), "--key", "k")
		if got := s.stop(); got.code != exitOK || strings.Count(got.stdout, "\n") != 1 {
			t.Fatalf("exit code %d, %q\n%s", got.code, got.stdout, got.stderr)
		}
		infos := jsonLines[infoJSON](t, b.must(exitOK, "store", "info", "/data", "--json"))
		if info := infos[0]; !info.CleanStop || info.Messages != int64(i+1) || info.Replayed != 0 || info.Locked {
			t.Fatalf("the store after stop %d: %+v", i, info)
		}
	}
	b.must(exitOK, "store", "verify", "/data")
}

// TestReadyLine: what people read.
func TestReadyLine(t *testing.T) {
	for _, tc := range []struct {
		name string
		args []string
		want string
	}{
		{"serve", append([]string{"serve", "--http", "127.0.0.1:0"}, anyPorts...),
			"gantry is ready: name server 127.0.0.1:N, broker 127.0.0.1:N, data /data, http://127.0.0.1:N/metrics; " +
				"for this machine only, others need --listen and --namesrv-listen and --advertise HOST\n"},
		{"serve, open", append([]string{"serve", "--advertise", "127.0.0.9"}, append(anyPorts, "--listen", "0.0.0.0:0", "--namesrv-listen", "0.0.0.0:0")...),
			"gantry is ready: name server 127.0.0.9:N, broker 127.0.0.9:N, data /data\n"},
		{"namesrv", []string{"namesrv", "--data", "/data", "--listen", "127.0.0.1:0"},
			"gantry is ready: name server 127.0.0.1:N; for this machine only, others need --listen\n"},
		{"broker", append([]string{"broker", "--namesrv", "127.0.0.1:1", "--data", "/data", "--listen", "127.0.0.1:0"}, smallSizes...),
			"gantry is ready: broker 127.0.0.1:N, data /data; for this machine only, others need --listen and --advertise HOST\n"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newServerBench(t)
			stdout, stderr := &lockedBuffer{lines: make(chan string, 1)}, new(lockedBuffer)
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			a := &app{console: newConsole(stdout, stderr), fs: b.fs, now: time.Now}
			code := make(chan int, 1)
			go func() { code <- a.main(ctx, tc.args) }()
			var line string
			select {
			case line = <-stdout.lines:
			case c := <-code:
				t.Fatalf("exit code %d: %s", c, stderr)
			}
			cancel()
			if c := <-code; c != exitOK {
				t.Errorf("exit code %d", c)
			}
			if got := portNumber.ReplaceAllString(line, ":N"); got != tc.want {
				t.Errorf("got  %swant %s", got, tc.want)
			}
			for line := range strings.Lines(stderr.String()) {
				if !strings.HasPrefix(line, "time=20") {
					t.Errorf("a line of the log without time: %s", line)
				}
			}
		})
	}
}

// TestRoles: a name server and two brokers, each a process of its own, one of
// which is found by the environment.
func TestRoles(t *testing.T) {
	b := newServerBench(t)
	names := b.server("namesrv", "--data", "/names", "--listen", "127.0.0.1:0")
	b.server(append([]string{"broker", "--namesrv", names.at.NameServer, "--data", "/a", "--listen", "127.0.0.1:0"}, smallSizes...)...)
	t.Setenv(namesrvEnv, names.at.NameServer)
	two := b.server(append([]string{"broker", "--set", "brokerName=broker-b", "--data", "/b", "--listen", "127.0.0.1:0"}, smallSizes...)...)

	// One producer has both make the topic, each when it sends there.
	seen := make(map[string]bool)
	for _, sent := range jsonLines[sendJSON](t, names.mustIn(exitOK, strings.Repeat("x\n", 16), "send", "Orders", "--lines", "--key", "k", "--json")) {
		seen[sent.BrokerName] = true
	}
	if len(seen) != 2 {
		t.Errorf("16 messages went to %v", seen)
	}
	if n := len(jsonLines[tool.Message](t, names.must(exitOK, "query", "Orders", "k", "--json"))); n != 16 {
		t.Errorf("%d messages of both brokers", n)
	}
	if n := len(jsonLines[tool.Message](t, names.must(exitOK, "receive", "Orders", "--from-earliest", "-n", "16", "--json"))); n != 16 {
		t.Errorf("%d messages received", n)
	}
	two.stop()
	got := jsonLines[sendJSON](t, names.must(exitOK, "send", "Orders", "--body", "x", "--json")) // it has left the name server
	if got[0].BrokerName != "broker-a" {
		t.Errorf("sent to %s, which has stopped", got[0].BrokerName)
	}
}

// TestServeFails: each with code 3, and a text that says what to do.
func TestServeFails(t *testing.T) {
	busy, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer busy.Close()
	addr := busy.Addr().String()
	above := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), netip.MustParseAddrPort(addr).Port()+2).String()

	b := newServerBench(t)
	s := b.serve()
	for _, tc := range []struct {
		name string
		args []string
		want []string
	}{
		{"port of the name server", []string{"--namesrv-listen", addr},
			[]string{"gantry: name server: listen tcp " + addr + ": bind: address already in use: another server has it: stop that one, or take another address with --listen and --namesrv-listen\n"}},
		{"port of the broker", []string{"--data", "/other", "--listen", addr},
			[]string{"listen tcp " + addr + ": ", "--listen"}},
		{"VIP channel", []string{"--data", "/other", "--listen", above},
			[]string{"VIP channel", addr, "--listen"}},
		{"HTTP port", []string{"--data", "/other", "--http", addr}, []string{"gantry: HTTP port: listen tcp " + addr}},
		{"second broker", nil, []string{"gantry: /data is held by process ", "--data"}},
		{"no such host", []string{"--data", "/other", "--namesrv-listen", "host.invalid:0"}, []string{"host.invalid"}},
		{"no such configuration", []string{"--config", "/none/broker.conf"}, []string{"/none/broker.conf"}},
		{"no such certificate", []string{"--tls-cert", "/none/cert", "--tls-key", "/none/key"}, []string{"TLS certificate", "/none/cert"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got := b.start(append(append([]string{"serve"}, anyPorts...), tc.args...)...).wait()
			if got.code != exitFailed || got.stdout != "" {
				t.Errorf("exit code %d, %q", got.code, got.stdout)
			}
			for _, want := range tc.want {
				if !strings.Contains(got.stderr, want) {
					t.Errorf("%q is not in\n%s", want, got.stderr)
				}
			}
		})
	}
	s.must(exitOK, "send", "Orders", "--body", "x") // it was not disturbed
	if got := s.stop(); got.code != exitOK {
		t.Errorf("exit code %d\n%s", got.code, got.stderr)
	}
}

// TestServeDamage: a store that is damaged in its middle is not opened, and the
// text says where, and what helps.
func TestServeDamage(t *testing.T) {
	b := newServerBench(t)
	s := b.serve()
	var in strings.Builder
	for i := range 400 { // more than a file
		fmt.Fprintf(&in, "message %d\n", i)
	}
	s.mustIn(exitOK, in.String(), "send", "Orders", "--lines")
	s.stop()
	// The record that begins here is not the last one of its file.
	if err := b.flip("/data/commitlog/00000000000000000000", 3); err != nil {
		t.Fatal(err)
	}
	if err := b.fs.Remove("/data/checkpoint"); err != nil { // so that all is read
		t.Fatal(err)
	}
	got := b.start(append([]string{"serve"}, anyPorts...)...).wait()
	if got.code != exitFailed || got.stdout != "" {
		t.Fatalf("exit code %d, %q", got.code, got.stdout)
	}
	for _, want := range []string{"commitlog/00000000000000000000", "0", "gantry store verify /data", "gantry store repair /data --out"} {
		if !strings.Contains(got.stderr, want) {
			t.Errorf("%q is not in\n%s", want, got.stderr)
		}
	}
}

// TestTakeover: the directory of a Java broker is served as it is.
func TestTakeover(t *testing.T) {
	for _, name := range []string{"4.9.4-broker-dir", "5.4.0-broker-dir"} {
		t.Run(name, func(t *testing.T) {
			b := newServerBench(t)
			b.unpack("/data", name)
			before := map[string]int64{}
			for _, q := range jsonLines[queueJSON](t, b.must(exitOK, "store", "info", "/data", "--json")) {
				if q.Type == "queue" {
					before[q.Topic] += q.Count
				}
			}
			s := b.server("serve", "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0", "--data", "/data", "--set", "fileReservedTime=1000000")
			received := 0
			for topic, n := range before {
				if strings.HasPrefix(topic, "%") || strings.HasPrefix(topic, "SCHEDULE") || strings.HasPrefix(topic, "RMQ_SYS") || n == 0 {
					continue
				}
				out := s.must(exitOK, "receive", topic, "--from-earliest", "--group", "new", "-n", fmt.Sprint(n), "--json")
				if got := len(jsonLines[tool.Message](t, out)); got != int(n) {
					t.Errorf("%d of %d messages of %s", got, n, topic)
				}
				received += int(n)
			}
			if received == 0 {
				t.Errorf("no messages in %v", before)
			}
			if got := s.stop(); got.code != exitOK {
				t.Errorf("exit code %d\n%s", got.code, got.stderr)
			}
			b.must(exitOK, "store", "info", "/data")
		})
	}
}

// TestListenerFails: a server that has lost a port stops, and says so.
func TestListenerFails(t *testing.T) {
	s := servers{http: &httpServer{failed: make(chan error, 1)}}
	gone := errors.New("gone")
	s.http.failed <- gone
	if err := s.wait(t.Context()); !errors.Is(err, gone) || !strings.Contains(err.Error(), "HTTP port") {
		t.Errorf("%v", err)
	}
}

// TestOwnNameServer: the broker's list of name servers has its own one first,
// once, and at an address that it can connect to.
func TestOwnNameServer(t *testing.T) {
	for _, tc := range []struct {
		own    string
		others []string
		want   []string
	}{
		{"127.0.0.1:9876", nil, []string{"127.0.0.1:9876"}},
		{"127.0.0.1:9876", []string{"10.0.0.1:9876", "127.0.0.1:9876"}, []string{"127.0.0.1:9876", "10.0.0.1:9876"}},
		{"0.0.0.0:9876", []string{"127.0.0.1:9876"}, []string{"127.0.0.1:9876"}},
		{"[::]:9876", nil, []string{"[::1]:9876"}},
		{"10.0.0.2:9876", nil, []string{"10.0.0.2:9876"}},
	} {
		if d := cmp.Diff(tc.want, withOwn(netip.MustParseAddrPort(tc.own), tc.others)); d != "" {
			t.Errorf("%s with %q: %s", tc.own, tc.others, d)
		}
	}
}

// portNumber is a port that the system has chosen.
var portNumber = regexp.MustCompile(`:[0-9]{4,5}\b`)

// TestServedStoreIsWhole: what a server leaves in its directory is known to the
// tools, and a copy of it has all of that.
func TestServedStoreIsWhole(t *testing.T) {
	b := newServerBench(t)
	s := b.serve("--set", "scrubRate=1MiB")
	s.must(exitOK, "send", "Orders", "--body", "x", "--key", "k")
	s.stop()
	if err := b.fs.MkdirAll("/data/namesrv"); err != nil {
		t.Fatal(err)
	}
	const kv = "/data/namesrv/kvConfig.json"
	if err := vfs.WriteFileAtomic(b.fs, kv, []byte(`{"configTable":{"ns":{"k":"v"}}}`)); err != nil {
		t.Fatal(err)
	}
	if got := b.must(exitOK, "store", "verify", "/data"); strings.Contains(got, "no release makes this") {
		t.Errorf("%s", got)
	}
	if got := b.run("store", "repair", "/data", "--out", "/copy"); got.code != exitOK || strings.Contains(got.stdout+got.stderr, "not a part of a store") {
		t.Errorf("exit code %d\n%s%s", got.code, got.stdout, got.stderr)
	}
	if _, err := b.fs.Stat(strings.Replace(kv, "/data", "/copy", 1)); err != nil {
		t.Error(err)
	}
}
