//go:build interop

package cluster

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry/interop/artifacts"
)

// kind is an implementation of name server and broker.
type kind string

const (
	gantry  kind = "gantry"
	java494 kind = "java-4.9.4"
	java540 kind = "java-5.4.0"
)

// javaKinds are the genuine ones.
var javaKinds = []kind{java494, java540}

// version is RocketMQ's, of a genuine kind.
func (k kind) version() string { return strings.TrimPrefix(string(k), "java-") }

// ours returns the kind under test.
func ours(t *testing.T) kind {
	t.Helper()
	switch k := kind(os.Getenv("GANTRY_INTEROP_SERVER")); k {
	case "", gantry:
		return gantry
	case java494, java540:
		return k
	default:
		t.Fatalf("GANTRY_INTEROP_SERVER=%s: no such kind", k)
		return ""
	}
}

const (
	defaultCluster = "DefaultCluster"
	defaultBroker  = "broker-a"
)

// settings are what the scenarios need of a broker, by upstream's names: SQL
// expressions, short delays, quick transaction checks.
var settings = map[string]string{
	"enablePropertyFilter":     "true",
	"messageDelayLevel":        "1s 2s" + strings.Repeat(" 1s", 16),
	"transactionTimeOut":       "2000",
	"transactionCheckInterval": "3000",
	"mappedFileSizeCommitLog":  "67108864",
}

// brokerConfig is what a broker needs to know. The zero value of a field is
// the default.
type brokerConfig struct {
	name    string // broker-a
	cluster string // DefaultCluster
	namesrv []string
	dir     string            // store; a new directory
	set     map[string]string // on top of settings
	file    bool              // ours gets a configuration file, as a genuine broker does, not flags
}

// server is a process with a name server, a broker or both. It is made once
// and can be started several times on its directory and its ports.
type server struct {
	kind       kind
	name       string
	brokerName string   // "" without a broker
	broker     string   // address
	namesrvs   []string // addresses: its own or those that it registers with
	argv       []string
	env        []string
	log        string
	isReady    func(line string) bool
	p          *process // nil while it does not run
}

func (s *server) start(t *testing.T) {
	t.Helper()
	p, _, err := start(s.name, s.log, s.argv, s.env, s.isReady)
	if err != nil {
		t.Fatal(err)
	}
	s.p = p
	begin := time.Now()
	line, err := p.waitReady(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if s.kind == gantry && (s.broker != "" && !strings.Contains(line, s.broker)) {
		t.Errorf("%s: ready line %q without %s", s.name, line, s.broker)
	}
	if s.brokerName != "" {
		for _, ns := range s.namesrvs {
			await(t, 30*time.Second, s.name+" in "+ns, func() (bool, error) { return registered(t, ns, s.brokerName, s.broker) })
		}
	}
	t.Logf("%s ready after %v", s.name, time.Since(begin).Round(time.Millisecond))
}

// stop stops it as an operator does.
func (s *server) stop(t *testing.T) {
	t.Helper()
	if err := s.p.stop(); err != nil {
		t.Error(err)
	}
	s.p = nil
}

// kill is the crash of the process.
func (s *server) kill(t *testing.T) {
	t.Helper()
	s.p.kill()
	s.p = nil
}

// logFile names the file for a server's output; go test -artifacts keeps it.
func logFile(t *testing.T, role, addr string) string {
	return filepath.Join(t.ArtifactDir(), role+"-"+port(addr)+".log")
}

// made registers what has to happen at the end of the test.
func (s *server) made(t *testing.T) *server {
	t.Cleanup(func() {
		if s.p != nil {
			s.p.kill()
		}
		logTail(t, s.name, s.log)
	})
	return s
}

func newNamesrv(t *testing.T, k kind) *server {
	t.Helper()
	addr := fmt.Sprint("127.0.0.1:", freePort(t))
	dir := t.TempDir()
	s := &server{kind: k, name: string(k) + " name server " + addr, namesrvs: []string{addr}, log: logFile(t, "namesrv", addr)}
	if k == gantry {
		s.argv = []string{gantryBinary(t), "namesrv", "-v", "--data", filepath.Join(dir, "data"), "--listen", addr}
		s.isReady = anyLine
		return s.made(t)
	}
	conf := writeProperties(t, filepath.Join(dir, "namesrv.conf"), map[string]string{"listenPort": port(addr), "bindAddress": "127.0.0.1"})
	s.argv = java(t, k, dir, "org.apache.rocketmq.namesrv.NamesrvStartup", "-c", conf)
	s.isReady = bootSuccess
	return s.made(t)
}

func newBroker(t *testing.T, k kind, c brokerConfig) *server {
	t.Helper()
	addr := fmt.Sprint("127.0.0.1:", freePort(t))
	set := c.settings()
	dir := t.TempDir()
	if c.dir == "" {
		c.dir = filepath.Join(dir, "store")
	}
	s := &server{kind: k, name: fmt.Sprintf("%s %s %s", k, set["brokerName"], addr), brokerName: set["brokerName"], broker: addr, namesrvs: c.namesrv,
		log: logFile(t, "broker", addr)}
	if k == gantry {
		s.argv = append([]string{gantryBinary(t), "broker", "-v", "--data", c.dir, "--listen", addr, "--namesrv", strings.Join(c.namesrv, ";")}, setFlags(set)...)
		s.isReady = anyLine
		return s.made(t)
	}
	conf := writeProperties(t, filepath.Join(dir, "broker.conf"), c.java(addr))
	s.argv = java(t, k, dir, "org.apache.rocketmq.broker.BrokerStartup", "-c", conf)
	s.isReady = bootSuccess
	return s.made(t)
}

func (c brokerConfig) settings() map[string]string {
	set := maps.Clone(settings)
	set["brokerName"], set["brokerClusterName"] = defaultBroker, defaultCluster
	if c.name != "" {
		set["brokerName"] = c.name
	}
	if c.cluster != "" {
		set["brokerClusterName"] = c.cluster
	}
	maps.Copy(set, c.set)
	return set
}

// java returns all settings that a genuine broker needs.
func (c brokerConfig) java(addr string) map[string]string {
	set := c.settings()
	maps.Copy(set, map[string]string{
		"brokerId": "0", "brokerIP1": "127.0.0.1", "brokerIP2": "127.0.0.1", "listenPort": port(addr), "bindAddress": "127.0.0.1",
		"namesrvAddr": strings.Join(c.namesrv, ";"), "storePathRootDir": c.dir, "storePathCommitLog": filepath.Join(c.dir, "commitlog"),
		"diskMaxUsedSpaceRatio": "95", "waitTimeMillsInSendQueue": "5000", // the disk may be full, the machine busy
	})
	return set
}

// pair is a name server with one broker, of one kind; ours are one process.
type pair struct {
	kind    kind
	namesrv string
	broker  string
	servers []*server // in the order of starting; the last has the broker
}

// newPair makes a pair, which is not started. namesrv of c is ignored.
func newPair(t *testing.T, k kind, c brokerConfig) *pair {
	t.Helper()
	if k != gantry {
		ns := newNamesrv(t, k)
		c.namesrv = ns.namesrvs
		b := newBroker(t, k, c)
		return &pair{k, ns.namesrvs[0], b.broker, []*server{ns, b}}
	}
	p := &pair{kind: k, namesrv: fmt.Sprint("127.0.0.1:", freePort(t)), broker: fmt.Sprint("127.0.0.1:", freePort(t))}
	dir := t.TempDir()
	if c.dir == "" {
		c.dir = filepath.Join(dir, "data")
	}
	set := c.settings()
	s := &server{kind: k, name: "gantry serve", brokerName: set["brokerName"], broker: p.broker, namesrvs: []string{p.namesrv}, log: logFile(t, "serve", p.broker), isReady: anyLine}
	flags := setFlags(set)
	if c.file {
		c.namesrv = []string{p.namesrv}
		flags = []string{"--config", writeProperties(t, filepath.Join(dir, "broker.conf"), c.java(p.broker))}
	}
	s.argv = append([]string{gantryBinary(t), "serve", "-v", "--data", c.dir, "--listen", p.broker, "--namesrv-listen", p.namesrv}, flags...)
	p.servers = []*server{s.made(t)}
	return p
}

func (p *pair) start(t *testing.T) {
	t.Helper()
	for _, s := range p.servers {
		s.start(t)
	}
}

func (p *pair) stop(t *testing.T) {
	t.Helper()
	for _, s := range slices.Backward(p.servers) {
		s.stop(t)
	}
}

// last is the server with the broker.
func (p *pair) last() *server { return p.servers[len(p.servers)-1] }

func anyLine(string) bool          { return true }
func bootSuccess(line string) bool { return strings.Contains(line, "boot success") }

func port(addr string) string { return addr[strings.LastIndexByte(addr, ':')+1:] }

func setFlags(set map[string]string) (args []string) {
	for _, k := range slices.Sorted(maps.Keys(set)) {
		args = append(args, "--set", k+"="+set[k])
	}
	return args
}

func writeProperties(t *testing.T, name string, set map[string]string) string {
	t.Helper()
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(set)) {
		fmt.Fprintf(&b, "%s=%s\n", k, set[k])
	}
	if err := os.WriteFile(name, []byte(b.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

// logback makes a version log warnings to standard error: 5.x has its own copy
// of logback, and 4.9.4 reads files of these names from its home.
const logback = `<configuration>
  <appender name="err" class="%sch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%%d{HH:mm:ss.SSS} %%p %%c{1} %%m%%n%%ex{8}</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="err"/></root>
</configuration>
`

// javaOpens is what old RocketMQ wants of a Java that is newer than it.
var javaOpens = []string{
	"--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED", "--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED",
}

// java returns the command line of a server's main class. Everything that it
// writes outside its store goes to dir.
func java(t *testing.T, k kind, dir, class string, args ...string) []string {
	t.Helper()
	classPath := serverClassPath(t, k)
	conf := filepath.Join(dir, "home", "conf")
	if err := os.MkdirAll(conf, 0o700); err != nil {
		t.Fatal(err)
	}
	for name, prefix := range map[string]string{"logback_broker.xml": "", "logback_namesrv.xml": "", "logback5.xml": "org.apache.rocketmq.logging."} {
		if err := os.WriteFile(filepath.Join(conf, name), fmt.Appendf(nil, logback, prefix), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	argv := []string{"java", "-Xms256m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Dfile.encoding=UTF-8",
		"-Duser.home=" + dir, "-Djava.io.tmpdir=" + dir, "-Drocketmq.home.dir=" + filepath.Join(dir, "home"),
		"-Drmq.logback.configurationFile=" + filepath.Join(conf, "logback5.xml")}
	argv = append(argv, javaOpens...)
	return append(append(argv, "-cp", classPath, class), args...)
}

// serverClassPath has the genuine servers and tools of a version, and ours to
// look at a broker with.
func serverClassPath(t *testing.T, k kind) string {
	t.Helper()
	return classPath(t, "servers", k.version(), "8", "cluster", "java")
}

func classPath(t *testing.T, name, version, release string, project ...string) string {
	t.Helper()
	root, err := artifacts.Root()
	if err != nil {
		t.Fatal(err)
	}
	path, err := artifacts.Java(t.Context(), name, filepath.Join(append([]string{root, "interop"}, project...)...), version, release)
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildGantry = sync.OnceValues(func() (string, error) {
	if binary := os.Getenv("GANTRY_INTEROP_BINARY"); binary != "" {
		return filepath.Abs(binary)
	}
	root, err := artifacts.Root()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(tempDir, "gantry")
	cmd := exec.Command("go", "build", "-o", binary, "./cmd/gantry")
	cmd.Dir = root
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build gantry: %w\n%s", err, out)
	}
	return binary, nil
})

// gantryBinary builds the program under test, unless the environment names one.
func gantryBinary(t *testing.T) string {
	t.Helper()
	binary, err := buildGantry()
	if err != nil {
		t.Fatal(err)
	}
	return binary
}

// tempDir is a directory for the whole run.
var tempDir string

func TestMain(m *testing.M) {
	var err error
	if tempDir, err = os.MkdirTemp("", "gantry-interop-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	code := m.Run()
	os.RemoveAll(tempDir)
	os.Exit(code)
}
