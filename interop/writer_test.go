//go:build interop

package interop

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/message"
)

// writerVariable makes the test binary a writer: it holds a writerTask.
const writerVariable = "GANTRY_INTEROP_WRITER"

// writerTask tells a writer process what to do.
type writerTask struct {
	Dir    string
	Config golden.Config
	Seed   int64
	Count  int // puts before a clean end; 0: put until killed
	Wide   bool
}

// ack is one line of a writer's output: this put was promised.
type ack struct {
	Seed           int64
	I              int
	Topic          string // as stored
	QueueID        int32
	QueueOffset    message.QueueOffset
	PhysicalOffset message.PhysicalOffset
	StoreTimestamp int64
	MsgID          string
}

// maxPuts ends a writer whose killer has gone.
const maxPuts = 200_000

func TestMain(m *testing.M) {
	if task := os.Getenv(writerVariable); task != "" {
		if err := writer(task); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// writer is the process that is killed: it opens the store, puts, and prints
// each result as soon as it has it.
func writer(text string) error {
	var task writerTask
	if err := json.Unmarshal([]byte(text), &task); err != nil {
		return err
	}
	ctx := context.Background()
	s, err := gantry.Open(ctx, task.Dir, options(task.Dir, task.Config))
	if err != nil {
		return err
	}
	n := task.Count
	if n == 0 {
		n = maxPuts
	}
	for i := range n {
		msgs := workload(task.Seed, i, task.Wide)
		var res gantry.PutResult
		if len(msgs) == 1 {
			res, err = s.Put(ctx, msgs[0])
		} else {
			res, err = s.PutBatch(ctx, msgs)
		}
		if err != nil {
			return fmt.Errorf("put %d: %w", i, err)
		}
		line, err := json.Marshal(ack{task.Seed, i, res.Topic, res.QueueID, res.QueueOffset, res.PhysicalOffset, res.StoreTimestamp, res.MsgID()})
		if err != nil {
			return err
		}
		if _, err := os.Stdout.Write(append(line, '\n')); err != nil {
			return err
		}
	}
	if task.Count == 0 {
		return errors.New("nobody killed the writer")
	}
	return s.Close()
}

// write runs a writer process to its end and returns what was promised.
func write(t *testing.T, task writerTask) []ack {
	t.Helper()
	return runWriter(t, task, 0)
}

// writeAndKill kills a writer process with SIGKILL when it has promised n
// puts, and returns what it had promised until it died.
func writeAndKill(t *testing.T, task writerTask, n int) []ack {
	t.Helper()
	task.Count = 0
	return runWriter(t, task, n)
}

func runWriter(t *testing.T, task writerTask, killAfter int) []ack {
	t.Helper()
	text, err := json.Marshal(task)
	if err != nil {
		t.Fatal(err)
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), exe)
	cmd.Env = append(os.Environ(), writerVariable+"="+string(text))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var acks []ack
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break // the end, perhaps within a line
		}
		var a ack
		if err := json.Unmarshal(line, &a); err != nil {
			t.Fatalf("writer printed %q", line)
		}
		acks = append(acks, a)
		if len(acks) == killAfter {
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	err = cmd.Wait()
	if killAfter == 0 && err != nil {
		t.Fatalf("writer: %v\n%s", err, stderr.String())
	}
	if killAfter > 0 && (len(acks) < killAfter || err == nil) {
		t.Fatalf("writer was to be killed after %d puts, ended after %d: %v\n%s", killAfter, len(acks), err, stderr.String())
	}
	return acks
}

// removeEmptyFiles does what an operator of Java before 5.1.3 has to do after a
// crash: a log or queue file that was made but had not got its length yet keeps
// those versions from starting, whoever made it. Later ones remove it
// themselves. Such a file holds nothing.
func removeEmptyFiles(t *testing.T, dir, version string) {
	t.Helper()
	if golden.CompareVersions(version, "5.1.3") >= 0 {
		return
	}
	for _, pattern := range []string{"commitlog/*", "consumequeue/*/*/*"} {
		names, err := filepath.Glob(filepath.Join(dir, filepath.FromSlash(pattern)))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			if info, err := os.Stat(name); err != nil {
				t.Fatal(err)
			} else if info.Mode().IsRegular() && info.Size() == 0 {
				t.Logf("%s is empty and was removed for RocketMQ %s", name, version)
				if err := os.Remove(name); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
}

// small is a geometry in which a few dozen messages roll every kind of file.
func small() golden.Config {
	return golden.Config{
		CommitLogFileSize: 64 << 10, ConsumeQueueFileSize: 400, IndexSlots: 50, IndexEntries: 100,
		FileReservedTime: 1_000_000, DiskMaxUsedSpaceRatio: 99,
	}
}

// options are our options for a configuration of Java. Nothing expires.
func options(dir string, c golden.Config) *gantry.Options {
	return &gantry.Options{
		CommitLogFileSize: c.CommitLogFileSize, ConsumeQueueFileSize: c.ConsumeQueueFileSize, IndexSlots: c.IndexSlots, IndexEntries: c.IndexEntries,
		CommitLogDirs: c.CommitLogDirs(dir), PropertyCRC: c.PropertyCRC, VerifyPropertyCRC: c.PropertyCRC, LightQueues: c.LightQueues,
		QueueExt: c.ConsumeQueueExt, IsBatchTopic: isBatchTopic, Reserved: -1, CleanInterval: -1,
	}
}

// batchTopic has batch consume queues.
const batchTopic = "InteropBatch"

func isBatchTopic(topic string) bool { return topic == batchTopic }
