package cli

import (
	"bytes"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/remoting"
)

// serveOptions returns what "gantry serve ARGS" would run, and what it tells.
func serveOptions(t *testing.T, args ...string) (o *serverOptions, notes string, err error) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	a := &app{console: newConsole(&stdout, &stderr), now: time.Now}
	f := &serverFlags{cmd: &cobra.Command{}}
	f.brokerFlags()
	f.cmd.Flags().StringVar(&f.namesrvListen, "namesrv-listen", defaultNamesrvListen, "")
	f.commonFlags()
	f.cmd.Flags().StringVar(&a.config, "config", "", "")
	f.cmd.Flags().StringArrayVar(&a.set, "set", nil, "")
	if err := f.cmd.ParseFlags(args); err != nil {
		t.Fatal(err)
	}
	o, err = a.serverOptions(f, true, true)
	return o, stderr.String(), err
}

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	name = filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// TestGenuineConfiguration: everything that a genuine broker says of its
// configuration is accepted as a file; what means nothing is listed, once.
func TestGenuineConfiguration(t *testing.T) {
	for _, version := range []string{"4.9.4", "5.4.0"} {
		t.Run(version, func(t *testing.T) {
			file := filepath.Join("testdata", "brokerconf", version+".conf")
			b := newServerBench(t)
			s := b.server("serve", "--config", file, "--data", "/data", "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0")
			sent := jsonLines[sendJSON](t, s.must(exitOK, "send", "Orders", "--body", "x", "--property", "DELAY=2", "--json"))
			if sent[0].BrokerName != "broker-a" {
				t.Errorf("sent to %q", sent[0].BrokerName)
			}
			got := s.stop()
			if got.code != exitOK {
				t.Errorf("exit code %d\n%s", got.code, got.stderr)
			}
			lists := 0
			for line := range strings.Lines(got.stderr) {
				if list, ok := strings.CutPrefix(line, "gantry: "+file+": not used here: "); ok {
					lists++
					if names := strings.Split(list, ", "); !slices.IsSorted(names) || !slices.Contains(names, "sendMessageThreadPoolNums") {
						t.Errorf("%q", names)
					}
					for _, used := range []string{"flushDiskType", "storePathRootDir", "brokerClusterName", "aclEnable", "brokerRole", "bindAddress", "metricsExporterType"} {
						if strings.Contains(list, used) {
							t.Errorf("%s is listed, and means something", used)
						}
					}
				}
			}
			if lists != 1 {
				t.Errorf("%d lists in\n%s", lists, got.stderr)
			}
			info := jsonLines[infoJSON](t, b.must(exitOK, "store", "info", "/data", "--json"))[0]
			if info.MappedFileSizeCommitLog != 67108864 {
				t.Errorf("files of %d bytes", info.MappedFileSizeCommitLog)
			}
		})
	}
}

// TestNamesrvConfiguration: the same for a name server's file.
func TestNamesrvConfiguration(t *testing.T) {
	file := writeFile(t, "namesrv.conf", `rocketmqHome=/opt/rocketmq
kvConfigPath=/kv/kvConfig.json
configBlackList=configBlackList;configStorePath;kvConfigPath
listenPort=0
bindAddress=127.0.0.1
orderMessageEnable=true
serverWorkerThreads=8
`)
	b := newServerBench(t)
	got := b.server("namesrv", "--config", file, "--set", "brokerName=b").stop()
	if !strings.Contains(got.stderr, "gantry: --set: not used here: brokerName\n") {
		t.Errorf("%s", got.stderr)
	}
	if want := "gantry: " + file + ": not used here: rocketmqHome, serverWorkerThreads\n"; !strings.Contains(got.stderr, want) || !strings.Contains(got.stderr, "/kv/kvConfig.json") {
		t.Errorf("%s", got.stderr)
	}
}

// TestRefusedSettings: what cannot be honoured is refused by name, unless the
// value asks for nothing.
func TestRefusedSettings(t *testing.T) {
	for _, tc := range []struct{ name, harmless, harmful string }{
		{"brokerRole", "ASYNC_MASTER", "SLAVE"},
		{"brokerRole", "ASYNC_MASTER", "SYNC_MASTER"},
		{"brokerId", "0", "1"},
		{"aclEnable", "false", "true"},
		{"authenticationEnabled", "false", "true"},
		{"storeType", "default", "defaultRocksDB"},
		{"enableDLegerCommitLog", "false", "true"},
		{"enableControllerMode", "false", "true"},
		{"duplicationEnable", "false", "true"},
		{"messageStorePlugIn", "", "org.apache.rocketmq.tieredstore.TieredMessageStore"},
		{"configManagerVersion", "v1", "v2"},
		{"fetchNamesrvAddrByAddressServer", "false", "true"},
		{"metricsExporterType", "DISABLE", "OTLP_GRPC"},
		{"flushDiskType", "ASYNC_FLUSH", "SOMETIMES"},
		{"listenPort", "10911", "port"},
		{"listenPort", "10911", "2"},
		{"brokerIP1", "10.0.0.1", "0.0.0.0"},
		{"mappedFileSizeCommitLog", "1048576", "-1"},
		{"serverChannelMaxIdleTimeSeconds", "60", "0"},
		{"kvConfigPath", "/x/kvConfig.json", "/x/other.json"},
	} {
		t.Run(tc.name+"="+tc.harmful, func(t *testing.T) {
			if _, notes, err := serveOptions(t, "--config", writeFile(t, "b.conf", tc.name+"="+tc.harmless)); err != nil || strings.Contains(notes, "not used") {
				t.Errorf("%s: %v, %q", tc.harmless, err, notes)
			}
			_, _, err := serveOptions(t, "--config", writeFile(t, "b.conf", tc.name+"="+tc.harmful))
			if err == nil || err.(*exitError).code != exitUsage || !strings.Contains(err.Error(), tc.harmful) {
				t.Errorf("%s: %v", tc.harmful, err)
			}
		})
	}
	t.Run("all are named", func(t *testing.T) {
		_, _, err := serveOptions(t, "--config", writeFile(t, "b.conf", "aclEnable=true\nstoreType=defaultRocksDB\nindexRocksDBEnable=true\n"))
		for _, name := range []string{"aclEnable=true", "storeType=defaultRocksDB", "indexRocksDBEnable=true"} {
			if err == nil || !strings.Contains(err.Error(), name) {
				t.Errorf("no %s in: %v", name, err)
			}
		}
	})
	t.Run("of --set", func(t *testing.T) {
		if _, _, err := serveOptions(t, "--set", "aclEnable=true"); err == nil || err.(*exitError).code != exitUsage || !strings.Contains(err.Error(), "aclEnable=true") {
			t.Errorf("%v", err)
		}
	})
}

// TestUnusedSettings: what means nothing is listed, wherever it stands.
func TestUnusedSettings(t *testing.T) {
	genuine, err := os.ReadFile(filepath.Join("testdata", "brokerconf", "5.4.0.conf"))
	if err != nil {
		t.Fatal(err)
	}
	var lines, sets []string
	for line := range strings.Lines(string(genuine)) {
		if line = strings.TrimSpace(line); strings.Contains(line, "=") && line[0] != '#' {
			lines, sets = append(lines, line), append(sets, "--set", line)
		}
	}
	if len(lines) < 200 {
		t.Fatalf("%d properties", len(lines))
	}
	file := writeFile(t, "b.conf", strings.Join(lines, "\n"))
	_, ofFile, err := serveOptions(t, "--config", file)
	_, ofSet, serr := serveOptions(t, sets...)
	if err != nil || serr != nil {
		t.Fatal(err, serr)
	}
	want := strings.Replace(ofFile, file, "--set", 1)
	if ofSet != want || !strings.Contains(ofSet, "mappedFileSizeTimerLog") {
		t.Errorf("of --set: %s\nof the file: %s", ofSet, ofFile)
	}
	_, notes, err := serveOptions(t, "--config", writeFile(t, "c.conf", "sendMessageThreadPoolNums=1\npullThreadPoolNums=2"), "--set", "pullThreadPoolNums=3", "--set", "x=y")
	if err != nil || !strings.Contains(notes, "c.conf: not used here: sendMessageThreadPoolNums\n") || !strings.Contains(notes, "--set: not used here: pullThreadPoolNums, x\n") {
		t.Errorf("%v, %q", err, notes)
	}
}

// TestPrecedence: a flag beats --set, which beats the file, which beats the
// default.
func TestPrecedence(t *testing.T) {
	type result struct {
		Dir, Listen, Advertise, Names, NamesListen, HTTP string
	}
	file := func(text string) string { return writeFile(t, "b.conf", text) }
	for _, tc := range []struct {
		name string
		args []string
		want result
	}{
		{"defaults", nil, result{defaultData, "127.0.0.1:10911", "127.0.0.1", "", "127.0.0.1:9876", ""}},
		{"file", []string{"--config", file("storePathRootDir=/store\nlistenPort=11011\nbindAddress=10.0.0.1\nbrokerIP1=10.0.0.2\nnamesrvAddr=10.0.0.3:9876;10.0.0.4:9876\nmetricsExporterType=PROM\nmetricsPromExporterPort=5558\n")},
			result{"/store", "10.0.0.1:11011", "10.0.0.2", "10.0.0.3:9876;10.0.0.4:9876", "127.0.0.1:9876", ":5558"}},
		{"--set beats the file", []string{"--config", file("storePathRootDir=/store\nlistenPort=11011\nbrokerIP1=10.0.0.2"), "--set", "listenPort=11111", "--set", "storePathRootDir=/other"},
			result{"/other", "127.0.0.1:11111", "10.0.0.2", "", "127.0.0.1:9876", ""}},
		{"flags beat both", []string{"--config", file("storePathRootDir=/store\nlistenPort=11011\nbindAddress=10.0.0.1\nbrokerIP1=10.0.0.2\nmetricsExporterType=PROM"),
			"--set", "listenPort=11111", "--data", "/flag", "--listen", "127.0.0.2:12000", "--advertise", "example.org", "--http", "127.0.0.1:80", "--namesrv-listen", ":9999"},
			result{"/flag", "127.0.0.2:12000", "example.org", "", ":9999", "127.0.0.1:80"}},
		{"a default that is given is a flag", []string{"--set", "listenPort=11111", "--listen", defaultListen},
			result{defaultData, "127.0.0.1:10911", "127.0.0.1", "", "127.0.0.1:9876", ""}},
		{"advertised is what it listens on", []string{"--listen", "127.0.0.7:10911"}, result{defaultData, "127.0.0.7:10911", "127.0.0.7", "", "127.0.0.1:9876", ""}},
		{"IPv6", []string{"--listen", "[::1]:10911"}, result{defaultData, "[::1]:10911", "::1", "", "127.0.0.1:9876", ""}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Setenv(namesrvEnv, "10.9.9.9:9876") // serve has its own
			o, _, err := serveOptions(t, tc.args...)
			if err != nil {
				t.Fatal(err)
			}
			c := o.broker.Config
			listen := fmt.Sprintf("%s:%d", c.BindAddress, c.ListenPort)
			if strings.Contains(c.BindAddress, ":") {
				listen = fmt.Sprintf("[%s]:%d", c.BindAddress, c.ListenPort)
			}
			got := result{o.broker.Dir, listen, c.Advertise, strings.Join(c.NameServers, ";"), o.names.Listen, o.http}
			if d := cmp.Diff(tc.want, got); d != "" {
				t.Error(d)
			}
		})
	}
	t.Run("store", func(t *testing.T) {
		o, _, err := serveOptions(t, "--config", writeFile(t, "b.conf",
			"storePathRootDir=/java/store\nstorePathCommitLog=/java/store/commitlog\nflushDiskType=SYNC_FLUSH\nfileReservedTime=48\ndeleteWhen=04"), "--data", "/moved")
		if err != nil {
			t.Fatal(err)
		}
		if s := o.broker.Store; s.Flush != gantry.FlushSync || s.Reserved != 48*time.Hour || !slices.Equal(s.CommitLogDirs, []string{filepath.Clean("/moved/commitlog")}) {
			t.Errorf("%+v", s)
		}
	})
}

// TestAdvertised: a broker that listens on all addresses tells one of them.
func TestAdvertised(t *testing.T) {
	for _, listen := range []string{"0.0.0.0:10911", ":10911", "[::]:10911"} {
		o, _, err := serveOptions(t, "--listen", listen)
		if err != nil {
			t.Fatal(err)
		}
		if ip, err := netip.ParseAddr(o.broker.Config.Advertise); err != nil || ip.IsUnspecified() {
			t.Errorf("%s: advertised %s", listen, o.broker.Config.Advertise)
		}
	}
	_, notes, err := serveOptions(t, "--set", "brokerIP1=10.0.0.2")
	if err != nil || !strings.Contains(notes, "10.0.0.2") || !strings.Contains(notes, "--listen 0.0.0.0:10911") {
		t.Errorf("%v, %q", err, notes)
	}
}

// TestServerUsage: wrong flags are code 2.
func TestServerUsage(t *testing.T) {
	b := newServerBench(t)
	t.Setenv(namesrvEnv, "")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"serve", "now"}, "unknown command"},
		{[]string{"serve", "--listen", "10911"}, "--listen 10911: want HOST:PORT"},
		{[]string{"serve", "--listen", "127.0.0.1:http"}, `"http" is no port`},
		{[]string{"serve", "--listen", "127.0.0.1:2"}, "VIP channel"},
		{[]string{"serve", "--namesrv-listen", "9876"}, "--namesrv-listen 9876: want HOST:PORT"},
		{[]string{"namesrv", "--listen", "9876"}, "--listen 9876: want HOST:PORT"},
		{[]string{"serve", "--advertise", "example.org:10911"}, "without a port"},
		{[]string{"serve", "--advertise", "0.0.0.0"}, "cannot connect"},
		{[]string{"serve", "--proxy-protocol", "on"}, "off, optional or required"},
		{[]string{"serve", "--proxy-from", "10.0.0.0/8"}, "--proxy-protocol"},
		{[]string{"serve", "--proxy-protocol", "required", "--proxy-from", "ten"}, "--proxy-from ten"},
		{[]string{"serve", "--tls-cert", "x"}, "go together"},
		{[]string{"serve", "--tls-required"}, "--tls-cert"},
		{[]string{"broker"}, "no name server"},
		{[]string{"broker", "--namesrv", "host"}, "--namesrv"},
		{[]string{"namesrv", "--set", "scanNotActiveBrokerInterval=often"}, "scanNotActiveBrokerInterval"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			got := b.run(tc.args...)
			if got.code != exitUsage || got.stdout != "" || !strings.Contains(got.stderr, tc.want) {
				t.Errorf("exit code %d, %q, want %q in %s", got.code, got.stdout, tc.want, got.stderr)
			}
		})
	}
	if files := b.tree("/"); len(files) > 0 {
		t.Errorf("files were made: %v", files)
	}
	t.Setenv(namesrvEnv, "host")
	if got := b.run("broker"); got.code != exitUsage || !strings.Contains(got.stderr, namesrvEnv) {
		t.Errorf("exit code %d, %s", got.code, got.stderr)
	}
}

// TestConnectionFlags: what the flags mean for the broker and for the name
// server beside it, which has to take its own broker's connection.
func TestConnectionFlags(t *testing.T) {
	cert, key := certificate(t)
	o, _, err := serveOptions(t, "--tls-cert", cert, "--tls-key", key, "--tls-required", "--proxy-protocol", "required", "--proxy-from", "10.0.0.1/8,192.168.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	want := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.168.0.0/16")}
	if b := o.broker; b.TLS == nil || !b.TLSRequired || b.Proxy != remoting.ProxyRequired || !slices.Equal(b.TrustedProxies, want) {
		t.Errorf("broker: %+v", b)
	}
	if n := o.names; n.TLS == nil || n.TLSRequired || n.Proxy != remoting.ProxyOptional || !slices.Equal(n.TrustedProxies, want) {
		t.Errorf("name server: %+v", n)
	}
}
