//go:build interop

package cluster

import (
	"encoding/json"
	"math/rand/v2"
	"sync"
	"testing"
	"time"
)

// stored is a message as the Go client's load and readback print it.
type stored struct {
	Event  string `json:"event"` // ack, stored
	Key    string `json:"key"`
	Queue  int    `json:"queue"`
	Offset int64  `json:"offset"`
	ID     string `json:"id"`
}

// place is where a message is; two messages cannot be at one.
type place struct {
	queue  int
	offset int64
}

// loadRun is what a running load has been promised.
type loadRun struct {
	mu     sync.Mutex
	acks   []stored
	reach  int           // when there are so many,
	hit    chan struct{} // this is closed
	result *result
}

func (l *loadRun) line(line string) {
	var s stored
	var r result
	if json.Unmarshal([]byte(line), &s) != nil || json.Unmarshal([]byte(line), &r) != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if r.Scenario != "" {
		l.result = &r
	}
	if s.Event != "ack" {
		return
	}
	l.acks = append(l.acks, s)
	if l.hit != nil && len(l.acks) >= l.reach {
		close(l.hit)
		l.hit = nil
	}
}

// more returns a channel that is closed after n more acknowledgements.
func (l *loadRun) more(n int) <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	hit := make(chan struct{})
	l.reach, l.hit = len(l.acks)+n, hit
	return hit
}

// TestKillNine kills a broker that flushes before it answers, again and again
// while a client sends and consumes: what was acknowledged is there afterwards,
// once and where the client was told, and the consumer gets all of it.
func TestKillNine(t *testing.T) {
	t.Parallel()
	k, rounds := ours(t), 8
	if k != gantry {
		rounds = 2 // a genuine broker takes long to start
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))

	p := newPair(t, k, brokerConfig{set: map[string]string{"flushDiskType": "SYNC_FLUSH", "mappedFileSizeCommitLog": "1048576"}})
	p.start(t)
	client := newGoClient(t, p.namesrv, p.broker)
	var l loadRun
	suffix := newSuffix()
	load, stdin := client.start(t, "load", suffix, l.line)
	wait := func(n int) {
		t.Helper()
		select {
		case <-l.more(n):
		case <-load.done:
			t.Fatalf("the client ended: %v", load.err)
		case <-time.After(startLimit):
			t.Fatalf("the client did not get %d more acknowledgements", n)
		}
	}
	for range rounds {
		wait(1 + rng.IntN(400))
		p.last().kill(t)
		p.last().start(t)
	}
	wait(50) // it works after the last start, too
	if err := stdin.Close(); err != nil {
		t.Fatal(err)
	}
	client.wait(t, load)
	if l.result == nil {
		t.Fatalf("the client ended without a result: %v", load.err)
	}
	l.result.check(t)
	if l.result.Facts["failed"] == float64(0) {
		t.Errorf("no send failed: the broker was never away")
	}

	var all []stored
	back, backIn := client.start(t, "readback", suffix, func(line string) {
		var s stored
		if json.Unmarshal([]byte(line), &s) == nil && s.Event == "stored" {
			all = append(all, s)
		}
	})
	defer backIn.Close()
	client.wait(t, back)
	if back.err != nil {
		t.Fatalf("reading back: %v", back.err)
	}
	checkStored(t, l.acks, all)
}

// checkStored compares what was acknowledged with what was read, queue after
// queue from offset 0.
func checkStored(t *testing.T, acks, all []stored) {
	t.Helper()
	t.Logf("%d acknowledged, %d stored", len(acks), len(all))
	byPlace := make(map[place]stored)
	ids, keys := make(map[string]bool), make(map[string]bool)
	next := make(map[int]int64)
	for _, s := range all {
		at := place{s.Queue, s.Offset}
		if s.Offset != next[s.Queue] {
			t.Errorf("queue %d: offset %d after %d", s.Queue, s.Offset, next[s.Queue]-1)
		}
		next[s.Queue] = s.Offset + 1
		if ids[s.ID] || keys[s.Key] {
			t.Errorf("message %+v is there twice", s)
		}
		ids[s.ID], keys[s.Key] = true, true
		byPlace[at] = s
	}
	for _, a := range acks {
		got, ok := byPlace[place{a.Queue, a.Offset}]
		if a.Event = "stored"; !ok || got != a {
			t.Errorf("acknowledged %+v, but there is %+v (%t)", a, got, ok)
		}
	}
}
