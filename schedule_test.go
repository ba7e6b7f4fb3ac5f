package gantry

import (
	"context"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// bubbleOptions are smallOptions with the clock of a synctest bubble.
func bubbleOptions(fs *memfs.FS) *Options {
	o := smallOptions(fs, newClock())
	o.Now = func() int64 { return time.Now().UnixMilli() }
	return o
}

func TestDelayedDelivery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := memfs.NewCrashable(1)
		opts := bubbleOptions(fs)
		s := mustOpen(t, opts)
		start := time.Now()
		for body, level := range map[string]string{"one": "1", "two": "2", "top": "99"} {
			res := mustPut(t, s, testMessage(body, "DELAY", level, "TAGS", "a", "KEYS", "k-"+body))
			if res.Topic != message.ScheduleTopic {
				t.Errorf("%s was stored under %s", body, res.Topic)
			}
		}
		for _, step := range []struct {
			at   time.Duration
			want []string
		}{
			{900 * time.Millisecond, nil},
			{1100 * time.Millisecond, []string{"one"}},
			{4900 * time.Millisecond, []string{"one"}},
			{5100 * time.Millisecond, []string{"one", "two"}},
			{2*time.Hour + time.Second, []string{"one", "two", "top"}},
		} {
			time.Sleep(time.Until(start.Add(step.at)))
			synctest.Wait()
			if got := bodies(t, s, "TopicTest", 0, 0); !slices.Equal(got, step.want) {
				t.Errorf("after %v: got %q, want %q", step.at, got, step.want)
			}
		}
		res, err := s.Get("TopicTest", 0, 0, GetOptions{Filter: Tags("a")})
		if err != nil || len(res.Records) != 3 {
			t.Errorf("delivered messages by tag: %d, %v", len(res.Records), err)
		}
		if got := queryBodies(t, s, "TopicTest", "k-two", QueryOptions{}); !slices.Equal(got, []string{"two"}) {
			t.Errorf("delivered message by key: %q", got)
		}
		mustClose(t, s)

		// Nothing is delivered again, neither after a clean stop nor after a crash.
		s = mustOpen(t, opts)
		time.Sleep(3 * time.Hour)
		synctest.Wait()
		if got := len(bodies(t, s, "TopicTest", 0, 0)); got != 3 {
			t.Errorf("%d messages after a clean stop, want 3", got)
		}
		mustPut(t, s, testMessage("late", "DELAY", "1"))
		synctest.Wait()
		crashed := kill(s, fs)
		time.Sleep(time.Minute)
		s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
		time.Sleep(time.Second)
		synctest.Wait()
		if got := bodies(t, s, "TopicTest", 0, 3); !slices.Equal(got, []string{"late"}) {
			t.Errorf("a delayed message that was due while the store was down: %q", got)
		}
		mustClose(t, s)
		checkStore(t, crashed)
	})
}

// TestDelayOffsetsFile: the offsets are kept in upstream's file and dialect,
// and a damaged file falls back to the one before.
func TestDelayOffsetsFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fs := memfs.NewCrashable(1)
		opts := bubbleOptions(fs)
		s := mustOpen(t, opts)
		mustPut(t, s, testMessage("a", "DELAY", "1"))
		time.Sleep(2 * time.Second)
		mustClose(t, s)
		name := testDir + "/config/delayOffset.json"
		data, err := vfs.ReadFile(fs, name, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(data), "1:1") {
			t.Errorf("the file holds %s", data)
		}
		s = mustOpen(t, opts)
		mustPut(t, s, testMessage("b", "DELAY", "1"))
		time.Sleep(2 * time.Second)
		mustClose(t, s)
		if err := javajson.Save(fs, name, []byte("{torn")); err != nil {
			t.Fatal(err)
		}
		s = mustOpen(t, opts)
		time.Sleep(time.Minute)
		synctest.Wait()
		if got := bodies(t, s, "TopicTest", 0, 0); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("with a damaged file: %q", got)
		}
		if w := s.Recovery().Warnings; len(w) == 0 || !strings.Contains(w[0], "delayOffset.json") {
			t.Errorf("the damage is not reported: %q", w)
		}
		mustClose(t, s)
	})
}

// TestDelayOffsetsBehindDeliveries: a message is delivered while a checkpoint
// flushes the log. The offsets that the checkpoint saves must not pass it: the
// delivery is not on the disk, and when it is lost it has to come again.
func TestDelayOffsetsBehindDeliveries(t *testing.T) {
	clock := newClock()
	mem := memfs.NewCrashable(1)
	fault := faultfs.New(mem)
	opts := smallOptions(fault, clock).with(func(o *Options) {
		o.Flush, o.DelayLevels = FlushAsync, "1s"
		o.FlushInterval, o.FlushThoroughInterval, o.CheckpointInterval = time.Hour, time.Hour, time.Hour
	})
	s := mustOpen(t, opts)
	// Longer than a page, so that what follows lies in others.
	for _, body := range []string{"first", "second"} {
		mustPut(t, s, testMessage(body+strings.Repeat(".", 5000), "DELAY", "1"))
		clock.add(500 * time.Millisecond)
	}
	waitDispatched(t, s) // the first is due, the second in 500 ms
	delivered := func(n message.QueueOffset) {
		t.Helper()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		s.scheduler.notify()
		if err := s.WaitReadable(ctx, "TopicTest", 0, n); err != nil {
			t.Fatal(err)
		}
		waitDispatched(t, s)
	}
	delivered(0)
	fault.Inject(faultfs.Rule{Ops: anySync, Name: testDir + "/" + firstLogFile, Count: 1, Hook: func(faultfs.Call) {
		clock.add(500 * time.Millisecond) // the second is due
		delivered(1)
		s.scheduler.await(t, 2)
	}})
	if err := s.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	left := mem.CrashClone(memfs.LoseUnsynced)
	s.abandon()
	s = mustOpen(t, opts.with(func(o *Options) { o.FS = left }))
	delivered(1)
	got := bodies(t, s, "TopicTest", 0, 0)
	if len(got) != 2 || got[0][:5] != "first" || got[1][:5] != "secon" {
		t.Errorf("delivered are %.10q", got)
	}
	mustClose(t, s)
}

// await waits until the offset of level 1 is off: it moves after the message
// has been put.
func (d *scheduler) await(t *testing.T, off message.QueueOffset) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); ; {
		d.mu.Lock()
		now := d.offsets[1]
		d.mu.Unlock()
		if now >= off {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the offset is %d, want %d", now, off)
		}
		runtime.Gosched()
	}
}

// TestDelayLevelWins: a message with both has its level only, as upstream.
func TestDelayLevelWins(t *testing.T) {
	s := mustOpen(t, smallOptions(memfs.New(), newClock()))
	defer mustClose(t, s)
	res := mustPut(t, s, testMessage("x", "TIMER_DELAY_SEC", "10", "TIMER_DELIVER_MS", "1700000000000", "DELAY", "2", "KEYS", "k"))
	m, err := s.MessageAt(res.PhysicalOffset)
	if err != nil || m.Topic != message.ScheduleTopic || m.QueueID != 1 {
		t.Fatalf("%+v, %v", m, err)
	}
	for _, name := range timerProps {
		if v, ok := m.Properties.Get(name); ok {
			t.Errorf("%s=%s", name, v)
		}
	}
	if keys, _ := m.Properties.Get("KEYS"); keys != "k" {
		t.Errorf("keys %q", keys)
	}
}

func TestDelayRefusals(t *testing.T) {
	s := mustOpen(t, smallOptions(memfs.New(), newClock()))
	defer mustClose(t, s)
	for name, m := range map[string]*message.Message{
		"level is no number":  testMessage("x", "DELAY", "soon"),
		"delay of its own":    testMessage("x", "TIMER_DELAY_SEC", "10"),
		"delivery time given": testMessage("x", "TIMER_DELIVER_MS", "1700000000000"),
	} {
		if res, err := s.Put(context.Background(), m); PutStatusOf(err) != MessageIllegal {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	if _, end := s.Range(); end != 0 {
		t.Errorf("refused messages were stored: the log ends at %d", end)
	}
}
