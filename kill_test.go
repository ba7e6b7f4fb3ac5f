//go:build unix

package gantry

import (
	"bufio"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// killVariable makes the test binary be the process that is killed. It holds
// the store's directory, the first message number and the options.
const killVariable = "GANTRY_TEST_KILL"

// killOptions are those of the process that is killed and of the one that looks.
func killOptions(kind string) *Options {
	o := &Options{
		CommitLogFileSize: 64 << 10, ConsumeQueueFileSize: 2000, IndexSlots: 64, IndexEntries: 256,
		CheckpointInterval: 20 * time.Millisecond, FlushInterval: 5 * time.Millisecond, CleanInterval: -1,
	}
	if strings.HasPrefix(kind, "sync") {
		o.Flush = FlushSync
	}
	o.WriteWithoutMmap = strings.HasSuffix(kind, "nommap")
	return o
}

var killKinds = []string{"sync", "async", "sync-nommap", "async-nommap"}

// killedProcess puts messages and reports each acknowledgement in a line, until
// somebody kills it.
func killedProcess(dir string, first int, kind string) error {
	ctx := context.Background()
	s, err := Open(ctx, dir, killOptions(kind))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	n := first
	errs := make(chan error)
	for p := range 3 {
		go func() {
			for {
				mu.Lock()
				n++
				mine := n
				mu.Unlock()
				m := &message.Message{
					Topic: "TopicTest", QueueID: int32(p), Body: []byte(crashBody(mine)),
					Properties: message.NewProperties("KEYS", crashKey(mine), "TAGS", "a"),
				}
				res, err := s.Put(ctx, m)
				if err != nil {
					errs <- err
					return
				}
				// One write for each line, so that a line is whole or not there.
				if _, err := fmt.Fprintf(os.Stdout, "ack %d %d %d %d\n", mine, p, res.QueueOffset, res.PhysicalOffset); err != nil {
					errs <- err
					return
				}
			}
		}()
	}
	return <-errs
}

// TestKilledProcess kills a process under load, again and again, at any moment
// of its life, its recovery among them. Whatever it had acknowledged is there,
// once, whatever the flush mode. -crash.long makes it many times more.
func TestKilledProcess(t *testing.T) {
	if v := os.Getenv(killVariable); v != "" {
		parts := strings.SplitN(v, "|", 3)
		first, err := strconv.Atoi(parts[1])
		if err == nil {
			err = killedProcess(parts[0], first, parts[2])
		}
		fmt.Fprintln(os.Stderr, err)
		os.Exit(3)
	}
	rounds := 8
	if *crashLong {
		rounds = 300
	}
	seed := time.Now().UnixNano()
	rng := rand.New(rand.NewPCG(uint64(seed), 7))
	t.Logf("seed %d", seed)
	kills, early, acked := 0, 0, 0
	for store := 0; kills < rounds && !t.Failed(); store++ {
		dir := filepath.Join(t.TempDir(), "store")
		claim := crashClaim{tried: rounds << 16}
		last := min(rounds, kills+20) // with one store verification would become slow
		for kills < last {
			kind := killKinds[kills%len(killKinds)]
			acks := runAndKill(t, rng, dir, kills<<16, kind)
			claim.acked = append(claim.acked, acks...)
			acked += len(acks)
			kills++
			if len(acks) == 0 {
				early++
			}
			if kills%3 == 1 || kills == last { // otherwise the next process recovers
				verifyKilled(t, dir, killOptions(kind), claim)
			}
		}
		must(t, os.RemoveAll(dir))
	}
	t.Logf("%d kills, %d of them before the first message; %d messages were acknowledged and are there", kills, early, acked)
	if acked == 0 {
		t.Error("nothing was acknowledged at all")
	}
}

// runAndKill starts the process, kills it after some acknowledgements or after
// a moment, and returns what it had acknowledged.
func runAndKill(t *testing.T, rng *rand.Rand, dir string, first int, kind string) []promise {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s|%d|%s", killVariable, dir, first, kind))
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	kill := func() { _ = cmd.Process.Signal(syscall.SIGKILL) } // it may have ended by itself: seen below
	limit := 1 + rng.IntN(300)
	var timer *time.Timer
	if rng.IntN(3) == 0 { // while it opens the store, or soon after
		timer = time.AfterFunc(time.Duration(rng.IntN(40))*time.Millisecond, kill)
		defer timer.Stop()
	}
	var acks []promise
	for lines := bufio.NewScanner(out); lines.Scan(); {
		var p promise
		var queue int32
		var off, phy int64
		if _, err := fmt.Sscanf(lines.Text(), "ack %d %d %d %d", &p.n, &queue, &off, &phy); err != nil {
			continue // of the test framework
		}
		p.place, p.physical = crashPlace{"TopicTest", queue, message.QueueOffset(off)}, message.PhysicalOffset(phy)
		if acks = append(acks, p); len(acks) == limit {
			kill() // lines that it had written by then still come
		}
	}
	err = cmd.Wait()
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || !status.Signaled() || status.Signal() != syscall.SIGKILL {
		t.Fatalf("the process ended by itself: %v\n%s", err, said.String())
	}
	return acks
}

// verifyKilled opens what is left and holds it to what was acknowledged.
func verifyKilled(t *testing.T, dir string, opts *Options, claim crashClaim) {
	t.Helper()
	ctx := context.Background()
	s, err := Open(ctx, dir, opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	in, err := readAll(s)
	if err == nil {
		err = checkKeys(ctx, s, in)
	}
	if err == nil {
		st := crashState{claim: claim}
		err = st.holds(in, true)
	}
	if err != nil {
		t.Errorf("%v\nrecovery %+v", err, s.Recovery())
	}
	mustClose(t, s)
	if err := checkImage(ctx, vfs.OS(), dir, opts); err != nil {
		t.Error(err)
	}
}
