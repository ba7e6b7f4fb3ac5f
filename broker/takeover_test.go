package broker

import (
	"encoding/json"
	"strconv"
	"strings"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

// TestTakeOver: the directory of a Java broker is served as it is: the same
// topics, groups, offsets and messages; and it goes on from there.
func TestTakeOver(t *testing.T) {
	for _, store := range []string{"4.9.4-broker-dir", "5.4.0-broker-dir"} {
		t.Run(store, func(t *testing.T) {
			mem := memfs.New()
			if err := golden.UnpackTo(mem, "/store", store); err != nil {
				t.Fatal(err)
			}
			read := func(name string, v any) {
				t.Helper()
				if err := javajson.Unmarshal(readFile(t, mem, "/store/config/"+name), v); err != nil {
					t.Fatal(err)
				}
			}
			var topics struct {
				TopicConfigTable map[string]struct{ ReadQueueNums, WriteQueueNums, Perm int32 }
			}
			var groups struct {
				SubscriptionGroupTable map[string]struct{ RetryMaxTimes int32 }
			}
			var offsets struct {
				OffsetTable map[string]map[string]int64
			}
			read("topics.json", &topics)
			read("subscriptionGroup.json", &groups)
			read("consumerOffset.json", &offsets)
			manifest, err := golden.Load(store)
			if err != nil {
				t.Fatal(err)
			}

			r := startRig(t, func(o *Options) {
				o.FS, o.Config.ClusterName = mem, "GoldenCluster"
				o.Store = gantry.Options{CleanInterval: -1, NoDelivery: true}
			})
			check := func() {
				t.Helper()
				for name, want := range topics.TopicConfigTable {
					got := body(t, r.ok(remoting.ReqGetTopicConfig, &remoting.GetTopicConfigRequest{Topic: name}, nil), new(remoting.TopicConfig))
					if got.ReadQueueNums != want.ReadQueueNums || got.WriteQueueNums != want.WriteQueueNums || got.Perm != want.Perm {
						t.Errorf("topic %s: %+v, want %+v", name, got, want)
					}
				}
				for name, want := range groups.SubscriptionGroupTable {
					got := body(t, r.ok(remoting.ReqGetSubscriptionGroupConfig, &remoting.GroupRequest{Group: name}, nil), new(remoting.GroupConfig))
					if got.RetryMaxTimes != want.RetryMaxTimes {
						t.Errorf("group %s: %+v, want %+v", name, got, want)
					}
				}
				n := 0
				for key, queues := range offsets.OffsetTable {
					topic, group, _ := strings.Cut(key, "@")
					for id, want := range queues {
						queue, err := strconv.Atoi(id)
						if err != nil {
							t.Fatal(err)
						}
						if want < 0 { // no offset
							continue
						}
						if got, err := r.offset(group, topic, int32(queue)); got != want || err != nil {
							t.Errorf("offset of %s in %s/%d: %d, %v, want %d", group, topic, queue, got, err, want)
						}
						n++
					}
				}
				if n < 10 {
					t.Errorf("only %d offsets", n)
				}
			}
			check()
			if got, want := r.messages(), len(manifest.Messages); got < want/2 || got > want {
				t.Errorf("%d messages can be pulled, the log has %d", got, want)
			}
			for _, l := range manifest.Lookups {
				if l.ID == "" { // nothing is there
					r.refused(remoting.CodeSystemError, remoting.ReqViewMessageByID, &remoting.ViewMessageRequest{Offset: int64(l.PhysicalOffset)}, nil)
					continue
				}
				resp := r.ok(remoting.ReqViewMessageByID, &remoting.ViewMessageRequest{Offset: int64(l.PhysicalOffset)}, nil)
				if m := records(t, resp.Body)[0]; m.MsgID() != l.ID {
					t.Errorf("message at %d: %s, want %s", l.PhysicalOffset, m.MsgID(), l.ID)
				}
			}
			// One transaction is open, with one question after the other.
			r.wantOpen(1)
			for _, h := range r.b.transactions.open {
				m, err := r.b.store.MessageAt(h.physical)
				if times := checkTimes(m.Properties); err != nil || times < 5 {
					t.Errorf("the open one was checked %d times, %+v, %v", times, h, err)
				}
			}

			before := r.messages()
			r.send("TopicTest", 0, "new", "KEYS", "new")
			r.commitTx(r.begin("TopicTest", "committed"))
			if got := r.messages(); got != before+4 { // the half message and the op message, too
				t.Errorf("%d messages, want %d", got, before+4)
			}
			r.restart()
			delete(offsets.OffsetTable, "RMQ_SYS_TRANS_HALF_TOPIC@CID_RMQ_SYS_TRANS") // they move on
			delete(offsets.OffsetTable, "RMQ_SYS_TRANS_OP_HALF_TOPIC@CID_RMQ_SYS_TRANS")
			check()
			r.wantOpen(1)
			if got := r.messages(); got != before+4 {
				t.Errorf("%d messages after a restart, want %d", got, before+4)
			}
			// Java can read what was written.
			if !json.Valid(normalized(t, readFile(t, mem, "/store/config/topics.json"))) {
				t.Error("topics.json is not JSON any more")
			}
		})
	}
}

func normalized(t testing.TB, data []byte) []byte {
	t.Helper()
	std, err := javajson.Normalize(data)
	if err != nil {
		t.Fatal(err)
	}
	return std
}

// messages counts what can be pulled from all queues.
func (r *rig) messages() (n int) {
	r.t.Helper()
	r.dispatched()
	for _, q := range r.b.store.Queues() {
		for off := q.MinOffset; off < q.MaxOffset; {
			got, err := r.b.store.Get(q.Topic, q.QueueID, off, gantry.GetOptions{})
			if err != nil || got.NextOffset <= off {
				r.t.Fatalf("%s/%d at %d: %v, %v", q.Topic, q.QueueID, off, got.Status, err)
			}
			for range got.Records {
				n++
			}
			off = got.NextOffset
		}
	}
	return n
}
