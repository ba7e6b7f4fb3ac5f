//go:build interop

package javastore

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/message"
)

// Topics are the topics that are not ordinary: in 5.x a broker tells its store
// of their attributes.
type Topics map[string]golden.TopicConfig

// Questions are what Java is asked beside all messages and queues. Fields that
// are answers are ignored.
type Questions struct {
	TopicConfig Topics             `json:"topicConfig,omitempty"`
	KeyQueries  []golden.KeyQuery  `json:"keyQueries,omitempty"`
	TagQueries  []golden.TagQuery  `json:"tagQueries,omitempty"` // 5.4.0 and later only
	TimeQueries []golden.TimeQuery `json:"timeQueries,omitempty"`
	GetMessage  []golden.Get       `json:"getMessage,omitempty"`
	Lookups     []golden.Lookup    `json:"lookups,omitempty"`
}

// Answer is what Java printed.
type Answer struct {
	golden.Observation
	UnknownConfig []string `json:"configNotInThisVersion"`
	Load          bool     `json:"load"`       // false: Java refused the directory
	Dispatched    bool     `json:"dispatched"` // queues and index have the whole log

	// After puts: the end of the log before them, and their results. Then
	// Messages has only what was put.
	MaxPhysicalOffsetBefore message.PhysicalOffset `json:"maxPhysicalOffsetBefore"`
	Puts                    []golden.Put           `json:"puts"`

	// Log is the end of Java's log, for a failing test to print.
	Log string `json:"-"`
}

// logConfig makes 5.x log warnings to standard error; the class is RocketMQ's
// own copy of logback. In 4.9 the program sets up the logger itself.
const logConfig = `<configuration>
  <appender name="err" class="org.apache.rocketmq.logging.ch.qos.logback.core.ConsoleAppender">
    <target>System.err</target>
    <encoder><pattern>%p %c{1} %m%n%ex{8}</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="err"/></root>
</configuration>
`

// exit codes of the Java program
const (
	exitDone   = 0
	exitHalted = 9
)

// Read opens dir as Java's store, asks for everything in it and the answers to
// the questions, and closes it cleanly.
func (s *Store) Read(ctx context.Context, dir string, c golden.Config, q Questions) (*Answer, error) {
	return s.run(ctx, exitDone, c, q, "read", dir)
}

// Append opens dir as Java's store, puts n messages and closes it cleanly.
// What is put depends on seed and number alone.
func (s *Store) Append(ctx context.Context, dir string, c golden.Config, topics Topics, n int, seed int64) (*Answer, error) {
	return s.run(ctx, exitDone, c, Questions{TopicConfig: topics}, "append", dir, strconv.Itoa(n), strconv.FormatInt(seed, 10))
}

// Crash opens dir as Java's store, puts n messages and halts the JVM at once:
// all are in the page cache, nothing was flushed on purpose, queues and index
// may be behind.
func (s *Store) Crash(ctx context.Context, dir string, c golden.Config, topics Topics, n int, seed int64) (*Answer, error) {
	return s.run(ctx, exitHalted, c, Questions{TopicConfig: topics}, "crash", dir, strconv.Itoa(n), strconv.FormatInt(seed, 10))
}

// namespace reports whether a process can have its own network: its replication
// listener, which cannot be bound to one address, is then not reachable.
var namespace = sync.OnceValue(func() bool {
	return runtime.GOOS == "linux" && exec.Command("unshare", "-n", "ip", "link", "set", "lo", "up").Run() == nil
})

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	port := l.Addr().(*net.TCPAddr).Port
	return port, l.Close()
}

func (s *Store) run(ctx context.Context, exit int, c golden.Config, q Questions, args ...string) (*Answer, error) {
	// Java's home and temporary files: logs, unpacked native libraries.
	home, err := os.MkdirTemp("", "gantry-interop-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(home)
	logFile := filepath.Join(home, "logback.xml")
	if err := os.WriteFile(logFile, []byte(logConfig), 0o600); err != nil {
		return nil, err
	}
	request, err := json.Marshal(q)
	if err != nil {
		return nil, err
	}
	argv := []string{"java", "-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1",
		"-Duser.home=" + home, "-Djava.io.tmpdir=" + home, "-Dfile.encoding=UTF-8",
		"-Drmq.logback.configurationFile=" + logFile,
		"--add-opens=java.base/java.nio=ALL-UNNAMED", "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
		"--add-opens=java.base/jdk.internal.ref=ALL-UNNAMED", "-cp", s.classPath, "gantry.interop.Main"}
	if namespace() {
		argv = append([]string{"unshare", "-n", "sh", "-c", `ip link set lo up && exec "$@"`, "sh"}, argv...)
	} else if c.HAListenPort, err = freePort(); err != nil {
		return nil, err
	}
	argv = append(argv, args...)
	argv = append(argv, c.Properties()...)

	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	// Without a UTF-8 locale Java writes '?' into the names of directories.
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	cmd.Stdin = bytes.NewReader(request)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err = cmd.Run()
	if ctx.Err() != nil {
		return nil, ctx.Err()
	}
	code := exitDone
	var ended *exec.ExitError
	if errors.As(err, &ended) {
		code = ended.ExitCode()
	} else if err != nil {
		return nil, err
	}
	if code != exit {
		return nil, fmt.Errorf("RocketMQ %s, %q: exit code %d, want %d\n%s", s.Version, args, code, exit, tail(stderr.String()))
	}
	a := &Answer{Log: tail(stderr.String())}
	if err := golden.DecodeObservation(stdout.Bytes(), a); err != nil {
		return nil, fmt.Errorf("RocketMQ %s, %q: answer: %w\n%s", s.Version, args, err, tail(stderr.String()))
	}
	return a, nil
}
