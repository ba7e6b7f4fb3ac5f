package gantry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

func mustRemove(t testing.TB, s *Store, topic string) {
	t.Helper()
	if err := s.RemoveTopic(context.Background(), topic); err != nil {
		t.Fatal(err)
	}
}

// TestRemoveTopic: the queues of a topic begin again, and what was in them never
// comes back: not after a stop, a crash or the loss of what can be derived.
func TestRemoveTopic(t *testing.T) {
	fs := memfs.NewCrashable(1)
	opts := smallOptions(fs, newClock())
	s := mustOpen(t, opts)
	for i := range 5 {
		mustPut(t, s, testMessage(fmt.Sprintf("old%d", i), "KEYS", "k"))
	}
	other := testMessage("other")
	other.Topic = "Other"
	mustPut(t, s, other)
	mustRemove(t, s, "TopicTest")
	if _, _, err := s.QueueRange("TopicTest", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("its queue is there: %v", err)
	}
	mustRemove(t, s, "TopicTest") // it has none now
	mustRemove(t, s, "Never")
	want := []string{"new0", "new1"}
	for i, body := range want {
		if res := mustPut(t, s, testMessage(body, "KEYS", "k")); res.QueueOffset != message.QueueOffset(i) {
			t.Errorf("%s got offset %d", body, res.QueueOffset)
		}
	}
	verify := func(t *testing.T, fs *memfs.FS) {
		t.Helper()
		s := mustOpen(t, opts.with(func(o *Options) { o.FS = fs }))
		if got := bodies(t, s, "TopicTest", 0, 0); !slices.Equal(got, want) {
			t.Errorf("the queue holds %q, want %q", got, want)
		}
		if got := bodies(t, s, "Other", 0, 0); !slices.Equal(got, []string{"other"}) {
			t.Errorf("the other topic holds %q", got)
		}
		if got := queryBodies(t, s, "TopicTest", "k", QueryOptions{}); len(got) != 7 {
			t.Errorf("by key: %q", got)
		}
		if res := mustPut(t, s, testMessage("new2")); res.QueueOffset != 2 {
			t.Errorf("the next message got offset %d", res.QueueOffset)
		}
		mustClose(t, s)
		checkStore(t, fs)
	}
	waitDispatched(t, s)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	crashed := kill(s, fs)
	t.Run("killed", func(t *testing.T) { verify(t, crashed.CrashClone(memfs.LoseUnsynced)) })
	for _, lost := range [][]string{{"checkpoint"}, {"index"}, {"consumequeue"}, {"checkpoint", "consumequeue"}} {
		t.Run(fmt.Sprint("without ", lost), func(t *testing.T) {
			fs := crashed.CrashClone(memfs.KeepAll)
			for _, name := range lost {
				removeAll(t, fs, testDir+"/"+name)
			}
			verify(t, fs)
		})
	}
}

// TestFault_D6_TopicStaysAway: no folder of the queues after a crash right behind
// the removal (store-behaviour D6).
func TestFault_D6_TopicStaysAway(t *testing.T) {
	mem := memfs.NewCrashable(1)
	opts := smallOptions(mem, newClock())
	s := mustOpen(t, opts)
	for i := range 5 {
		mustPut(t, s, keyed(i))
	}
	mustRemove(t, s, "TopicTest")
	crashed := kill(s, mem).CrashClone(memfs.LoseUnsynced)
	removeAll(t, crashed, testDir+"/checkpoint") // everything is replayed
	s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
	waitDispatched(t, s)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := crashed.Stat(testDir + "/consumequeue/TopicTest"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the folder is there: %v", err)
	}
	if n := s.Stats().Queues; n != 0 {
		t.Errorf("%d queues", n)
	}
	mustClose(t, s)
}

// TestRemovalOutlivesItsRecords: a note goes when retention has removed what it
// speaks of, and one that points behind the log holds for nothing new.
func TestRemovalOutlivesItsRecords(t *testing.T) {
	mem := memfs.NewCrashable(1)
	clock := newClock()
	opts := tinyOptions(mem, clock).with(func(o *Options) { twoSeconds(o); o.DeleteBatch = 100 })
	s := mustOpen(t, opts)
	mustPut(t, s, keyed(1))
	mustRemove(t, s, "TopicTest")
	for i := range 40 {
		m := keyed(i)
		m.Topic, m.Body = "Other", make([]byte, 1000)
		mustPut(t, s, m)
	}
	waitDispatched(t, s)
	clock.add(time.Hour)
	if gone, err := s.Clean(t.Context(), CleanOptions{AnyHour: true}); err != nil || len(gone) == 0 {
		t.Fatalf("%d files removed, %v", len(gone), err)
	}
	mustRemove(t, s, "Other")
	if len(s.removed) != 1 {
		t.Errorf("noted: %v", s.removed)
	}
	mustClose(t, s)

	for _, dir := range []string{"commitlog", "index", "checkpoint"} { // a new log
		removeAll(t, mem, testDir+"/"+dir)
	}
	s = mustOpen(t, opts)
	m := keyed(0)
	m.Topic = "Other"
	mustPut(t, s, m)
	crashed := kill(s, mem).CrashClone(memfs.LoseUnsynced)
	removeAll(t, crashed, testDir+"/checkpoint")
	s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
	if got := bodies(t, s, "Other", 0, 0); len(got) != 1 {
		t.Errorf("the new log's message is not there: %q", got)
	}
	mustClose(t, s)
}

// TestRemoveBatchTopic: a topic that had batch queues and is made again without
// the attribute has simple ones.
func TestRemoveBatchTopic(t *testing.T) {
	mem := memfs.NewCrashable(1)
	opts := smallOptions(mem, newClock())
	s := mustOpen(t, opts.with(func(o *Options) { o.IsBatchTopic = func(topic string) bool { return topic == "TopicTest" } }))
	mustPut(t, s, keyed(0))
	mustClose(t, s)
	s = mustOpen(t, opts) // its folder tells
	mustPut(t, s, keyed(1))
	mustRemove(t, s, "TopicTest")
	if res := mustPut(t, s, keyed(2)); res.QueueOffset != 0 {
		t.Errorf("offset %d", res.QueueOffset)
	}
	mustClose(t, s)
	for dir, there := range map[string]bool{"consumequeue": true, "batchconsumequeue": false} {
		if _, err := mem.Stat(testDir + "/" + dir + "/TopicTest"); (err == nil) != there {
			t.Errorf("%s: %v", dir, err)
		}
	}
	s = mustOpen(t, opts)
	if got := bodies(t, s, "TopicTest", 0, 0); !slices.Equal(got, []string{"body-2"}) {
		t.Errorf("%q", got)
	}
	mustClose(t, s)
	checkStore(t, mem)
}

// TestRemoveUnusedBatchTopic: a topic that topics.json marks, and that had no
// message yet, is made again as its maker says.
func TestRemoveUnusedBatchTopic(t *testing.T) {
	mem := memfs.NewCrashable(1)
	if err := mem.MkdirAll(testDir + "/config"); err != nil {
		t.Fatal(err)
	}
	const topics = `{"topicConfigTable":{"TopicTest":{"attributes":{"queue.type":"BatchCQ"}}}}`
	if err := vfs.WriteFileAtomic(mem, testDir+"/config/topics.json", []byte(topics)); err != nil {
		t.Fatal(err)
	}
	s := mustOpen(t, smallOptions(mem, newClock()))
	if !s.isBatchTopic("TopicTest") {
		t.Fatal("the file is not read")
	}
	mustRemove(t, s, "TopicTest")
	if s.isBatchTopic("TopicTest") {
		t.Error("it has batch queues still")
	}
	mustClose(t, s)
}

// TestRemoveLightQueues: a light queue goes as other queues do, and stays when a
// topic goes whose messages are in it.
func TestRemoveLightQueues(t *testing.T) {
	mem := memfs.NewCrashable(1)
	opts := smallOptions(mem, newClock()).with(func(o *Options) { o.LightQueues = true })
	s := mustOpen(t, opts)
	put := func(body, names string) {
		t.Helper()
		mustPut(t, s, testMessage(body, message.PropInnerMultiDispatch, names))
	}
	put("0", "%LMQ%a,%LMQ%b,%LMQ%c")
	put("1", "%LMQ%a,%LMQ%b,%LMQ%c")
	late := testMessage("late")
	props := late.Properties.Reserved()
	targets, err := s.lightTargets("%LMQ%a")
	if err != nil {
		t.Fatal(err)
	}
	p := s.newPending(s.topicQueue("TopicTest", 0))
	defer p.release()
	if err := p.add(late, &props, 1); err != nil {
		t.Fatal(err)
	}
	p.items[0].light = targets
	mustRemove(t, s, "%LMQ%a")
	if _, err := s.append(p, late); !errors.Is(err, errRetired) {
		t.Errorf("the offset of a light queue that is gone: %v", err)
	}
	mustRemove(t, s, "%LMQ%c")
	put("2", "%LMQ%a,%LMQ%b")
	mustRemove(t, s, "TopicTest")
	put("3", "%LMQ%a,%LMQ%b")
	verify := func(t *testing.T) {
		t.Helper()
		waitDispatched(t, s)
		for topic, want := range map[string][]string{"TopicTest": {"3"}, "%LMQ%a": {"2", "3"}, "%LMQ%b": {"0", "1", "2", "3"}} {
			if got := bodies(t, s, topic, 0, 0); !slices.Equal(got, want) {
				t.Errorf("%s: %q, want %q", topic, got, want)
			}
		}
		if _, _, err := s.QueueRange("%LMQ%c", 0); !errors.Is(err, ErrNotFound) {
			t.Errorf("%%LMQ%%c is there: %v", err)
		}
	}
	verify(t)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	crashed := kill(s, mem).CrashClone(memfs.KeepAll)
	for _, name := range []string{"checkpoint", "consumequeue"} {
		removeAll(t, crashed, testDir+"/"+name)
	}
	for range 2 { // the second opening has nothing to do
		s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
		verify(t)
		if t.Failed() {
			return
		}
		mustClose(t, s)
		checkStore(t, crashed)
	}
	if r := s.Recovery(); len(r.Repaired) > 0 {
		t.Errorf("repaired: %q", r.Repaired)
	}
}

// TestRemoveTopicAgain: a removal that failed on the way can be repeated, and
// then holds.
func TestRemoveTopicAgain(t *testing.T) {
	mem := memfs.NewCrashable(1)
	fault := faultfs.New(mem)
	opts := smallOptions(mem, newClock()).with(func(o *Options) { o.FS = fault })
	s := mustOpen(t, opts)
	mustPut(t, s, keyed(0))
	waitDispatched(t, s)
	if err := s.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	fault.Fail(faultfs.OpCreate, "*removedTopics.json.tmp", errors.New("no"))
	if err := s.RemoveTopic(t.Context(), "TopicTest"); err == nil {
		t.Fatal("removed without a note")
	}
	fault.Clear()
	mustRemove(t, s, "TopicTest")
	crashed := kill(s, mem).CrashClone(memfs.LoseUnsynced)
	s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
	if _, _, err := s.QueueRange("TopicTest", 0); !errors.Is(err, ErrNotFound) {
		t.Errorf("its queue is back: %v", err)
	}
	mustClose(t, s)
	checkStore(t, crashed)
}

// TestRemoveTopicRefused: what cannot be removed, and when.
func TestRemoveTopicRefused(t *testing.T) {
	mem := memfs.NewCrashable(1)
	opts := smallOptions(mem, newClock())
	s := mustOpen(t, opts)
	mustPut(t, s, keyed(0))
	for _, topic := range []string{"", ".", "a/b", message.ScheduleTopic} {
		if err := s.RemoveTopic(t.Context(), topic); !errors.Is(err, ErrMessageIllegal) {
			t.Errorf("%q: %v", topic, err)
		}
	}
	mustClose(t, s)
	if err := s.RemoveTopic(t.Context(), "TopicTest"); !errors.Is(err, ErrClosed) {
		t.Errorf("closed: %v", err)
	}
	s = mustOpen(t, opts.with(func(o *Options) { o.ReadOnly = true }))
	if err := s.RemoveTopic(t.Context(), "TopicTest"); !errors.Is(err, ErrReadOnly) {
		t.Errorf("read-only: %v", err)
	}
	mustClose(t, s)
}

// TestRemoveTopicAmongPuts: puts that run beside removals are before or after
// them: offsets begin at 0 and have no gaps, and no message is lost but by a
// removal.
func TestRemoveTopicAmongPuts(t *testing.T) {
	mem := memfs.NewCrashable(1)
	opts := smallOptions(mem, newClock())
	s := mustOpen(t, opts)
	var wg sync.WaitGroup
	last := make([]PutResult, 4)
	for w := range last {
		wg.Go(func() {
			for i := range 300 {
				switch {
				case i%10 == 9:
					res, err := s.PutBatch(context.Background(), []*message.Message{keyed(i), keyed(i)})
					if err != nil {
						t.Error(err)
						return
					}
					last[w] = res
				default:
					last[w] = mustPut(t, s, keyed(i))
				}
			}
		})
	}
	for range 20 {
		mustRemove(t, s, "TopicTest")
	}
	wg.Wait()
	read := func() (offsets []message.PhysicalOffset) {
		waitDispatched(t, s)
		first, end, err := s.QueueRange("TopicTest", 0)
		if errors.Is(err, ErrNotFound) {
			return nil
		}
		if err != nil || first != 0 {
			t.Fatalf("range %d to %d, %v", first, end, err)
		}
		for off := first; off < end; off++ {
			at, err := s.PhysicalOffsetOf("TopicTest", 0, off)
			if err != nil {
				t.Fatalf("offset %d: %v", off, err)
			}
			m, err := s.MessageAt(at)
			if err != nil || m.QueueOffset != off {
				t.Fatalf("offset %d of the record of %d, %v", m.QueueOffset, off, err)
			}
			offsets = append(offsets, at)
		}
		return offsets
	}
	before := read()
	for _, res := range last {
		if res.PhysicalOffset >= s.removed["TopicTest"] && !slices.Contains(before, res.PhysicalOffset) {
			t.Errorf("the message at %d was put after the last removal and is gone", res.PhysicalOffset)
		}
	}
	crashed := kill(s, mem).CrashClone(memfs.LoseUnsynced)
	removeAll(t, crashed, testDir+"/checkpoint")
	s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
	if after := read(); !slices.Equal(after, before) {
		t.Errorf("after a crash %d messages, before %d", len(after), len(before))
	}
	mustClose(t, s)
	checkStore(t, crashed)
}

// TestRemoveTopicCrash: crashed at each of its operations, a removal has been or
// has not; once it was confirmed it has.
func TestRemoveTopicCrash(t *testing.T) {
	old := []string{"old0", "old1", "old2"}
	for k := 0; ; k++ {
		mem := memfs.NewCrashable(int64(k))
		clock := newClock()
		fault := faultfs.CrashAt(mem, k)
		opts := smallOptions(mem, clock).with(func(o *Options) { o.FS, o.Flush, o.CheckpointInterval = fault, FlushSync, 1<<40 })
		removed := false
		var acked []string
		work := func() error {
			s, err := Open(context.Background(), testDir, opts)
			if err != nil {
				return err
			}
			defer s.abandon()
			for _, body := range old {
				if _, err := s.Put(context.Background(), testMessage(body)); err != nil {
					return err
				}
				acked = append(acked, body)
			}
			if err := s.Sync(context.Background()); err != nil {
				return err
			}
			if err := s.RemoveTopic(context.Background(), "TopicTest"); err != nil {
				return err
			}
			removed, acked = true, nil
			for _, body := range []string{"new0", "new1"} {
				if _, err := s.Put(context.Background(), testMessage(body)); err != nil {
					return err
				}
				acked = append(acked, body)
			}
			return s.Close()
		}
		err := work()
		for name, policy := range map[string]memfs.Policy{"lose unsynced": memfs.LoseUnsynced, "lose random pages": memfs.LoseRandomPages} {
			image := mem.CrashClone(policy)
			s := mustOpen(t, opts.with(func(o *Options) { o.FS = image }))
			var got []string
			if _, _, err := s.QueueRange("TopicTest", 0); err == nil {
				got = bodies(t, s, "TopicTest", 0, 0)
			}
			switch {
			case removed && len(got) >= len(acked) && slices.Equal(got[:len(acked)], acked) && !slices.Contains(got, "old0"):
			case !removed && len(got) == 0: // nothing yet, or removed and not confirmed
				if len(acked) > 0 && len(acked) < len(old) {
					t.Errorf("operation %d, %s: acknowledged messages are gone: %q", k, name, acked)
				}
			case !removed && len(got) >= len(acked) && slices.Equal(got[:len(acked)], acked):
			default:
				t.Errorf("operation %d, %s: removed %v: %q, acknowledged %q", k, name, removed, got, acked)
			}
			mustClose(t, s)
			checkStore(t, image)
		}
		if t.Failed() {
			t.Fatalf("operation %d: %v", k, err)
		}
		if !fault.Crashed() {
			if err != nil {
				t.Fatal(err)
			}
			break
		}
	}
}
