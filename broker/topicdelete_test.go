package broker

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestTopicMadeAgain: a topic that was deleted and made again begins at offset 0
// and shows nothing of the one before, also after a crash; whoever waited for its
// messages is answered.
func TestTopicMadeAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memfs.NewCrashable(1)
		r := startRig(t, func(o *Options) { o.FS = mem })
		r.createTopic("T", 2)
		r.createTopic("Other", 1)
		r.send("Other", 0, "other")
		var id string
		for _, text := range []string{"a", "b", "c"} {
			id = r.send("T", 0, text, "KEYS", "k").MsgID
		}
		r.commit("CG", "T", 0, 3)
		held := r.later(remoting.ReqPullMessage, holdHeader("T", 0, 3))
		synctest.Wait()
		before := time.Now()
		r.ok(remoting.ReqDeleteTopicInBroker, &remoting.TopicRequest{Topic: "T"}, nil)
		if resp := await(t, held); resp.Code != remoting.CodeTopicNotExist || time.Since(before) > time.Second {
			t.Errorf("who waited got %v after %v", resp, time.Since(before))
		}
		r.createTopic("T", 2)
		ends := func() (first, end int64) {
			t.Helper()
			q := remoting.QueueRequest{Topic: "T", QueueID: 0}
			first = decode(t, r.ok(remoting.ReqGetMinOffset, &q, nil), new(remoting.OffsetResponse)).Offset
			end = decode(t, r.ok(remoting.ReqGetMaxOffset, &remoting.MaxOffsetRequest{Topic: "T", QueueID: 0}, nil), new(remoting.OffsetResponse)).Offset
			return first, end
		}
		if first, end := ends(); first != 0 || end != 0 {
			t.Errorf("the new topic has offsets %d to %d", first, end)
		}
		r.refused(remoting.CodeQueryNotFound, remoting.ReqQueryConsumerOffset, &remoting.QueryOffsetRequest{ConsumerGroup: "CG", Topic: "T", SetZeroIfNotFound: true}, nil)
		if res := r.send("T", 0, "new"); res.QueueOffset != 0 {
			t.Errorf("the first message has offset %d", res.QueueOffset)
		}
		look := func() {
			t.Helper()
			if got := r.bodies("T", 0, 0); !slices.Equal(got, []string{"new"}) {
				t.Errorf("the topic has %q", got)
			}
			if got := r.bodies("Other", 0, 0); !slices.Equal(got, []string{"other"}) {
				t.Errorf("the other topic has %q", got)
			}
		}
		look()
		// A new group begins with what is there, as in a young topic.
		if off := decode(t, r.ok(remoting.ReqQueryConsumerOffset, &remoting.QueryOffsetRequest{ConsumerGroup: "CG", Topic: "T", SetZeroIfNotFound: true}, nil), new(remoting.OffsetResponse)).Offset; off != 0 {
			t.Errorf("a new group begins at %d", off)
		}
		// The log has the old ones still.
		r.ok(remoting.ReqViewMessageByID, &remoting.ViewMessageRequest{Offset: int64(physicalOf(t, id))}, nil)
		r.restart()
		look()
		r.crash(memfs.KeepAll)
		look()
	})
}

func physicalOf(t testing.TB, id string) message.PhysicalOffset {
	t.Helper()
	_, at, err := message.ParseOffsetID(id)
	if err != nil {
		t.Fatal(err)
	}
	return at
}

// TestCleanUnusedTopic: 316 removes the queues of topics that are none.
func TestCleanUnusedTopic(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	r.send("T", 0, "m")
	r.send("T", 0, "m", "DELAY", "18")
	r.begin("T", "half")
	for _, topic := range []string{"Gone", "%LMQ%light"} {
		if _, err := r.b.store.Put(t.Context(), &message.Message{Topic: topic, Body: []byte("m")}); err != nil {
			t.Fatal(err)
		}
	}
	r.dispatched()
	topics := func() (names []string) {
		for _, q := range r.b.store.Queues() {
			names = append(names, q.Topic)
		}
		slices.Sort(names)
		return slices.Compact(names)
	}
	before := topics()
	r.ok(remoting.ReqCleanUnusedTopic, nil, nil)
	want := slices.DeleteFunc(before, func(name string) bool { return name == "Gone" })
	if got := topics(); !slices.Equal(got, want) || len(want) != 4 {
		t.Errorf("queues of %q, want %q", got, want)
	}
}
