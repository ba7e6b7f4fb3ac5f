//go:build interop

package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gantrymq/gantry/interop/artifacts"
)

// scenarioLimit bounds one scenario; the longest takes 80 s on an idle machine.
const scenarioLimit = 4 * time.Minute

// result is what a program prints at the end of a scenario.
type result struct {
	Client   string         `json:"client"`
	Version  string         `json:"version"`
	Scenario string         `json:"scenario"`
	Suffix   string         `json:"suffix"`
	OK       bool           `json:"ok"`
	MS       int64          `json:"ms"`
	Facts    map[string]any `json:"facts"`
	Error    string         `json:"error"`
	Trace    string         `json:"trace"`
	Event    string         `json:"event"` // not the end: see Kit.pause of the Java program
}

// fact returns a fact as text.
func (r *result) fact(name string) string { return fmt.Sprint(r.Facts[name]) }

// program runs scenarios of one client against one name server.
type program interface {
	// run runs a scenario to its end. A scenario that pauses calls pause and
	// goes on when that returns.
	run(t *testing.T, scenario, suffix string, pause func(event string), args ...string) *result
}

var runs atomic.Int64

// newSuffix returns an ending for the names of a run. It is not longer than
// names of topics allow for.
func newSuffix() string {
	return fmt.Sprintf("%x-%d", time.Now().UnixMilli()&0xffffffff, runs.Add(1))
}

// check fails the test unless the scenario passed.
func (r *result) check(t *testing.T) {
	t.Helper()
	if r.OK {
		t.Logf("%d ms, %v", r.MS, r.Facts)
		return
	}
	t.Errorf("%s %s: %s\nfacts: %v\n%s", r.Client, r.Scenario, r.Error, r.Facts, r.Trace)
}

// javaClient is a JVM with the client of one version, in which scenarios run
// beside each other: starting one takes seconds.
type javaClient struct {
	p     *process
	stdin io.WriteCloser

	mu      sync.Mutex
	waiting map[string]chan *result // by suffix
}

// newJavaClient starts a JVM; properties are its system properties, with -D.
func newJavaClient(t *testing.T, version, namesrv string, properties ...string) *javaClient {
	t.Helper()
	path := clientClassPath(t, version)
	home, err := os.MkdirTemp(t.ArtifactDir(), "java-"+version+"-")
	if err != nil {
		t.Fatal(err)
	}
	argv := []string{"java", "-Xms128m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-XX:-UsePerfData", "-Dfile.encoding=UTF-8",
		"-Duser.home=" + home, "-Djava.io.tmpdir=" + home, "-Drocketmq.client.localOffsetStoreDir=" + filepath.Join(home, "offsets"),
		"-Drocketmq.client.logLevel=WARN", "-Drocketmq.log.level=WARN"}
	argv = append(append(argv, javaOpens...), properties...)
	argv = append(argv, "-cp", path, "interop.Main", namesrv)
	c := &javaClient{waiting: make(map[string]chan *result)}
	log := filepath.Join(home, "output")
	c.p, c.stdin, err = start("java client "+version, log, argv, nil, func(line string) bool { c.line(line); return false })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.stdin.Close()
		select {
		case <-c.p.done:
		case <-time.After(10 * time.Second):
			c.p.kill()
		}
		logTail(t, c.p.name, log)
	})
	return c
}

// line takes a line of output to whom it concerns.
func (c *javaClient) line(line string) {
	var r result
	if !strings.HasPrefix(line, "{") || json.Unmarshal([]byte(line), &r) != nil {
		return
	}
	c.mu.Lock()
	ch := c.waiting[r.Suffix]
	c.mu.Unlock()
	if ch != nil {
		ch <- &r
	}
}

func (c *javaClient) run(t *testing.T, scenario, suffix string, pause func(string), args ...string) *result {
	t.Helper()
	ch := make(chan *result, 16) // more than any scenario has lines
	c.mu.Lock()
	c.waiting[suffix] = ch
	c.mu.Unlock()
	c.send(t, append([]string{"run", scenario, suffix}, args...)...)
	limit := time.After(scenarioLimit)
	for {
		select {
		case r := <-ch:
			if r.Event == "" {
				return r
			}
			pause(r.Event)
			c.send(t, "go", suffix)
		case <-c.p.done:
			t.Fatalf("%s ended: %v", c.p.name, c.p.err)
		case <-limit:
			t.Fatalf("%s did not end", scenario)
		}
	}
}

func (c *javaClient) send(t *testing.T, words ...string) {
	t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := io.WriteString(c.stdin, strings.Join(words, " ")+"\n"); err != nil {
		t.Fatalf("%s: %v", c.p.name, err)
	}
}

// command is a client whose scenarios run in a process each.
type command struct {
	name string
	argv []string // without name server, scenario and suffix
	ns   string
	env  []string
}

func (c *command) run(t *testing.T, scenario, suffix string, _ func(string), args ...string) *result {
	t.Helper()
	var last result
	p, stdin := c.start(t, scenario, suffix, func(line string) { json.Unmarshal([]byte(line), &last) }, args...)
	defer stdin.Close()
	c.wait(t, p)
	if last.Scenario != scenario {
		t.Fatalf("%s %s ended without a result: %v", c.name, scenario, p.err)
	}
	return &last
}

// start runs a scenario and calls onLine with each line of its output.
func (c *command) start(t *testing.T, scenario, suffix string, onLine func(line string), args ...string) (*process, io.WriteCloser) {
	t.Helper()
	argv := append(append(append([]string{}, c.argv...), c.ns, scenario, suffix), args...)
	log := filepath.Join(t.ArtifactDir(), c.name+" "+scenario)
	p, stdin, err := start(c.name+" "+scenario, log, argv, c.env, func(line string) bool { onLine(line); return false })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.kill()
		logTail(t, p.name, log)
	})
	return p, stdin
}

// wait waits for the end of a process.
func (c *command) wait(t *testing.T, p *process) {
	t.Helper()
	select {
	case <-p.done:
	case <-time.After(scenarioLimit):
		t.Fatalf("%s did not end", p.name)
	}
}

var buildGoClient = sync.OnceValues(func() (string, error) {
	root, err := artifacts.Root()
	if err != nil {
		return "", err
	}
	binary := filepath.Join(tempDir, "goclient")
	cmd := exec.Command("go", "build", "-o", binary, ".")
	cmd.Dir = filepath.Join(root, "interop", "clients", "go")
	cmd.Env = append(os.Environ(), "GOFLAGS=-mod=readonly", "GOWORK=off") // it is a module of its own
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the Go client: %w\n%s", err, out)
	}
	return binary, nil
})

// newGoClient returns the client; broker is the address of the broker, which
// its scenario admin wants.
func newGoClient(t *testing.T, namesrv, broker string) *command {
	t.Helper()
	binary, err := buildGoClient()
	if err != nil {
		t.Fatal(err)
	}
	return &command{"go client", []string{binary}, namesrv, []string{"INTEROP_BROKER=" + broker}}
}

var installNodeClient = sync.OnceValues(func() (dir string, err error) {
	root, err := artifacts.Root()
	if err != nil {
		return "", err
	}
	cache, err := artifacts.Cache()
	if err != nil {
		return "", err
	}
	project := filepath.Join(root, "interop", "clients", "node")
	files := []string{filepath.Join(project, "package.json"), filepath.Join(project, "package-lock.json")}
	hash, err := artifacts.Hash(files...)
	if err != nil {
		return "", err
	}
	dir = filepath.Join(cache, "node-"+hash)
	return dir, artifacts.Made(dir, func(dir string) error {
		for _, name := range files {
			b, err := os.ReadFile(name)
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, filepath.Base(name)), b, 0o600)
			}
			if err != nil {
				return err
			}
		}
		return artifacts.Run(context.Background(), dir, "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund")
	})
})

func newNodeClient(t *testing.T, namesrv string) *command {
	t.Helper()
	dir, err := installNodeClient()
	root, rootErr := artifacts.Root()
	if err := errors.Join(err, rootErr); err != nil {
		t.Fatal(err)
	}
	return &command{"node client", []string{"node", filepath.Join(root, "interop", "clients", "node", "interop.js")}, namesrv,
		[]string{"NODE_PATH=" + filepath.Join(dir, "node_modules")}}
}

// clientVersions are those of the Java client: the last of 4.9 and a recent
// one.
var clientVersions = []string{"4.9.8", "5.4.0"}

// prepare fetches and builds all clients.
func prepare(t *testing.T) {
	t.Helper()
	for _, version := range clientVersions {
		clientClassPath(t, version)
	}
	_, goErr := buildGoClient()
	_, nodeErr := installNodeClient()
	if err := errors.Join(goErr, nodeErr); err != nil {
		t.Fatal(err)
	}
}

func clientClassPath(t *testing.T, version string) string {
	t.Helper()
	return classPath(t, "client", version, "11", "clients", "java")
}
