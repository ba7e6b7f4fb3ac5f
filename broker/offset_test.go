package broker

import (
	"math"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestConsumerOffset: 14 and 15, all their codes.
func TestConsumerOffset(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 3)
	r.send("T", 0, "m")
	r.b.groups.Find("G", true)
	notFound := func(queue int32) {
		t.Helper()
		if off, err := r.offset("G", "T", queue); code(err) != remoting.CodeQueryNotFound {
			t.Errorf("queue %d: %d, %v, want QUERY_NOT_FOUND", queue, off, err)
		}
	}
	want := func(queue int32, off int64) {
		t.Helper()
		if got, err := r.offset("G", "T", queue); err != nil || got != off {
			t.Errorf("queue %d: %d, %v, want %d", queue, got, err, off)
		}
	}
	want(0, 0)   // a young queue is begun at its first message
	notFound(1)  // an empty one is not
	notFound(77) // nor one that there is not
	resp := r.call(remoting.ReqQueryConsumerOffset, &remoting.QueryOffsetRequest{ConsumerGroup: "G", Topic: "T"}, nil)
	if resp.Code != remoting.CodeQueryNotFound {
		t.Errorf("setZeroIfNotFound=false: %v", resp)
	}
	func() {
		defer r.configure(map[string]string{"accessMessageInMemoryMaxRatio": "0"})()
		r.send("T", 0, "m")
		notFound(0) // an old one is not begun at its first message
	}()

	for _, c := range []struct {
		commit, want int64
	}{{1, 1}, {0, 0}, {-1, 0}, {math.MinInt64, 0}, {math.MaxInt64, math.MaxInt64}, {2, 2}} {
		if resp := r.commit("G", "T", 0, c.commit); resp.Code != 0 {
			t.Errorf("commit %d: %v", c.commit, resp)
		}
		want(0, c.want)
	}
	if resp := r.commit("G", "T", 1, -1); resp.Code != 0 {
		t.Error(resp)
	}
	notFound(1)

	for _, c := range []struct {
		group, topic string
		queue        int32
		code         int32
	}{
		{"nope", "T", 0, remoting.CodeSubscriptionGroupNotExist},
		{"G", "nope", 0, remoting.CodeTopicNotExist},
		{"G", "T", 3, remoting.CodeInvalidParameter},
		{"G", "T", -1, remoting.CodeInvalidParameter},
		{"G", "T", math.MaxInt32, remoting.CodeInvalidParameter},
		{"G", "T", math.MinInt32, remoting.CodeInvalidParameter},
	} {
		if resp := r.commit(c.group, c.topic, c.queue, 1); resp.Code != c.code {
			t.Errorf("commit for %+v: %v", c, resp)
		}
	}
}

// TestQueueOffsets: 29 to 32.
func TestQueueOffsets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 2)
		start := time.Now().UnixMilli()
		for range 3 {
			r.send("T", 0, "m") // at start, +1 s and +2 s
			time.Sleep(time.Second)
		}
		offset := func(code int32, h remoting.Header) int64 {
			t.Helper()
			return decode(t, r.ok(code, h, nil), new(remoting.OffsetResponse)).Offset
		}
		for _, q := range []struct {
			topic           string
			queue           int32
			lo, hi, earlist int64
		}{{"T", 0, 0, 3, start}, {"T", 1, 0, 0, -1}, {"T", -1, 0, 0, -1}, {"T", math.MinInt32, 0, 0, -1}, {"nope", 0, 0, 0, -1}, {"", 0, 0, 0, -1}, {"../x", 0, 0, 0, -1}} {
			if got := offset(remoting.ReqGetMaxOffset, &remoting.MaxOffsetRequest{Topic: q.topic, QueueID: q.queue}); got != q.hi {
				t.Errorf("%+v: max %d", q, got)
			}
			if got := offset(remoting.ReqGetMinOffset, &remoting.QueueRequest{Topic: q.topic, QueueID: q.queue}); got != q.lo {
				t.Errorf("%+v: min %d", q, got)
			}
			resp := r.ok(remoting.ReqGetEarliestMsgStoreTime, &remoting.QueueRequest{Topic: q.topic, QueueID: q.queue}, nil)
			if got := decode(t, resp, new(remoting.TimestampResponse)).Timestamp; got != q.earlist {
				t.Errorf("%+v: earliest %d", q, got)
			}
		}
		for _, c := range []struct {
			at    int64
			bound string
			want  int64
		}{
			{0, "", 0}, {start, "LOWER", 0}, {start + 1, "lower", 1}, {start + 1000, "", 1}, {start + 1001, "", 2}, {start + 2001, "", 3}, {math.MaxInt64, "", 3}, {math.MinInt64, "", 0},
			{start, "UPPER", 0}, {start + 999, "upper", 0}, {start + 1000, "UPPER", 1}, {math.MaxInt64, "UPPER", 2}, {0, "UPPER", 0}, {start + 1001, "sideways", 2},
		} {
			got := offset(remoting.ReqSearchOffsetByTimestamp, &remoting.SearchOffsetRequest{Topic: "T", Timestamp: c.at, BoundaryType: c.bound})
			if got != c.want {
				t.Errorf("offset at start%+d, %s: %d, want %d", c.at-start, c.bound, got, c.want)
			}
		}
		if got := offset(remoting.ReqSearchOffsetByTimestamp, &remoting.SearchOffsetRequest{Topic: "nope", Timestamp: 5}); got != 0 {
			t.Errorf("unknown queue: %d", got)
		}
	})
}

// TestResetOffset: an administrator's reset wins over commits until the group's
// next pull has heard of it.
func TestResetOffset(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 2)
		start := time.Now().UnixMilli()
		for range 5 {
			r.send("T", 0, "m")
			time.Sleep(time.Second)
		}
		r.b.groups.Find("CG", true)
		r.commit("CG", "T", 0, 3)
		reset := func(change func(*remoting.ResetOffsetRequest)) *remoting.Command {
			h := &remoting.ResetOffsetRequest{Topic: "T", Group: "CG", Timestamp: -1, IsForce: true, QueueID: -1, Offset: -1}
			change(h)
			return r.call(remoting.ReqInvokeBrokerToResetOffset, h, nil)
		}
		q := func(id int32) remoting.MessageQueue {
			return remoting.MessageQueue{Topic: "T", BrokerName: "broker-a", QueueID: id}
		}
		for _, c := range []struct {
			name   string
			change func(*remoting.ResetOffsetRequest)
			want   map[remoting.MessageQueue]int64
		}{
			{"to the end", func(h *remoting.ResetOffsetRequest) {}, map[remoting.MessageQueue]int64{q(0): 5, q(1): 0}},
			{"to a time", func(h *remoting.ResetOffsetRequest) { h.Timestamp = start + 1000 }, map[remoting.MessageQueue]int64{q(0): 1, q(1): 0}},
			{"only back", func(h *remoting.ResetOffsetRequest) { h.Timestamp, h.IsForce = start+3000, false }, map[remoting.MessageQueue]int64{q(0): 1, q(1): 0}},
			{"one queue", func(h *remoting.ResetOffsetRequest) { h.QueueID = 1 }, map[remoting.MessageQueue]int64{q(1): 0}},
			{"to an offset", func(h *remoting.ResetOffsetRequest) { h.QueueID, h.Offset = 0, 2 }, map[remoting.MessageQueue]int64{q(0): 2}},
			{"one behind the end", func(h *remoting.ResetOffsetRequest) { h.QueueID, h.Offset = 0, 6 }, map[remoting.MessageQueue]int64{q(0): 5}},
		} {
			got := body(t, reset(c.change), new(remoting.ResetOffset)).OffsetTable
			if len(got) != len(c.want) {
				t.Errorf("%s: %v", c.name, got)
			}
			for queue, off := range c.want {
				if got[queue] != off {
					t.Errorf("%s: %v, want %v", c.name, got, c.want)
				}
				if stored, _ := r.b.offsets.Query("CG", "T", queue.QueueID); stored != off {
					t.Errorf("%s: queue %d goes on at %d, want %d", c.name, queue.QueueID, stored, off)
				}
			}
		}
		for name, c := range map[string]struct {
			change func(*remoting.ResetOffsetRequest)
			code   int32
		}{
			"unknown topic": {func(h *remoting.ResetOffsetRequest) { h.Topic = "nope" }, remoting.CodeTopicNotExist},
			"unknown group": {func(h *remoting.ResetOffsetRequest) { h.Group = "nope" }, remoting.CodeSubscriptionGroupNotExist},
			"queue beyond":  {func(h *remoting.ResetOffsetRequest) { h.QueueID = 2 }, remoting.CodeSystemError},
			"offset beyond": {func(h *remoting.ResetOffsetRequest) { h.QueueID, h.Offset = 0, 7 }, remoting.CodeSystemError},
			"largest":       {func(h *remoting.ResetOffsetRequest) { h.QueueID, h.Offset = 0, math.MaxInt64 }, remoting.CodeSystemError},
		} {
			if resp := reset(c.change); resp.Code != c.code {
				t.Errorf("%s: %v", name, resp)
			}
		}

		reset(func(h *remoting.ResetOffsetRequest) { h.QueueID, h.Offset = 0, 2 })
		if resp := r.commit("CG", "T", 0, 4); resp.Code != 0 || resp.Remark != "Offset has been previously reset" {
			t.Errorf("commit while the reset is pending: %v", resp)
		}
		if off, err := r.offset("CG", "T", 0); off != 2 {
			t.Errorf("offset while the reset is pending: %d, %v", off, err)
		}
		resp := r.call(remoting.ReqPullMessage, pullHeader("T", 0, 4), nil)
		if resp.Code != remoting.CodePullOffsetMoved || decode(t, resp, new(remoting.PullMessageResponse)).NextBeginOffset != 2 {
			t.Errorf("the pull that hears of it: %v %v", resp, resp.Ext)
		}
		if resp := r.call(remoting.ReqPullMessage, pullHeader("T", 0, 2), nil); resp.Code != 0 {
			t.Errorf("the next pull: %v", resp)
		}
		r.commit("CG", "T", 0, 4)
		if off, _ := r.offset("CG", "T", 0); off != 4 {
			t.Errorf("commits count again: %d", off)
		}
	})
}

// TestResetClients: without useServerSideResetOffset the members are told, as 4.x
// does, each in the form that it reads.
func TestResetClients(t *testing.T) {
	r := startRig(t, func(o *Options) { o.Config.UseServerSideResetOffset = false })
	r.createTopic("T", 1)
	r.b.groups.Find("G", true)
	h := &remoting.ResetOffsetRequest{Topic: "T", Group: "G", Timestamp: -1, IsForce: true, QueueID: -1, Offset: -1}
	r.refused(remoting.CodeConsumerNotOnline, remoting.ReqInvokeBrokerToResetOffset, h, nil)
	p, cpp := r.newPeer("java"), r.newPeer("cpp")
	p.heartbeat("G", "T")
	hb := remoting.NewRequest(remoting.ReqHeartBeat, nil)
	hb.Body, hb.Language, hb.Version = remoting.EncodeBody(cpp.heartbeatOf("G", "T")), remoting.LanguageCPP, 333
	if resp, err := cpp.invoke(t.Context(), hb); err != nil || resp.Code != 0 {
		t.Fatal(resp, err)
	}
	r.ok(remoting.ReqInvokeBrokerToResetOffset, h, nil)
	for peer, want := range map[*peer]string{
		p:   `{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:0}}`,
		cpp: `{"offsetTable":[{"brokerName":"broker-a","offset":0,"queueId":0,"topic":"T"}]}`,
	} {
		got := peer.push(remoting.ReqResetConsumerClientOffset)
		if string(got.Body) != want || !got.IsOneway() || got.Ext.Value("group") != "G" {
			t.Errorf("%s gets %v %s, want %s", peer.id, got.Ext, got.Body, want)
		}
	}
}

// TestClampOffsets: after a crash that lost messages which had been consumed, the
// messages that take their offsets are not missed.
func TestClampOffsets(t *testing.T) {
	r := startRig(t, func(o *Options) {
		o.FS = memfs.NewCrashable(1)
		o.Store.FlushInterval, o.Store.FlushThoroughInterval, o.Store.CheckpointInterval = time.Hour, time.Hour, time.Hour
	})
	r.createTopic("T", 1)
	r.createTopic("Gone", 1)
	r.send("T", 0, "safe")
	if err := r.b.store.Sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.send("T", 0, "lost")
	r.send("Gone", 0, "lost")
	r.b.groups.Find("G", true)
	r.commit("G", "T", 0, 2)
	r.commit("G", "Gone", 0, 1)
	if err := r.b.save(); err != nil {
		t.Fatal(err)
	}
	r.crash(memfs.LoseUnsynced)
	for topic, want := range map[string]int64{"T": 1, "Gone": 0} {
		if off, _ := r.b.offsets.Query("G", topic, 0); off != want {
			t.Errorf("%s goes on at %d, want %d", topic, off, want)
		}
	}
	r.send("T", 0, "new")
	if got := r.bodies("T", 0, 1); len(got) != 1 || got[0] != "new" {
		t.Errorf("got %q", got)
	}
}

// TestQuery: by key, exactly, oldest first, page by page.
func TestQuery(t *testing.T) {
	r := startRig(t, func(o *Options) { o.Store.IndexSlots, o.Store.IndexEntries = 1000, 20_000 })
	r.createTopic("T", 2)
	r.createTopic("Other", 1)
	// "Ea" and "FB" have the same hash.
	ea := r.send("T", 0, "ea", "KEYS", "Ea x")
	r.send("T", 1, "fb", "KEYS", "FB x")
	r.send("Other", 0, "other", "KEYS", "Ea")
	query := func(change func(*remoting.QueryMessageRequest)) (string, *remoting.Command) {
		t.Helper()
		h := &remoting.QueryMessageRequest{Topic: "T", Key: "Ea", MaxNum: 64, EndTimestamp: math.MaxInt64}
		change(h)
		resp := r.call(remoting.ReqQueryMessage, h, nil)
		var texts []string
		for _, m := range records(t, resp.Body) {
			texts = append(texts, string(m.Body))
		}
		if resp.Code != 0 {
			return remoting.ResponseName(resp.Code), resp
		}
		return strings.Join(texts, " "), resp
	}
	const none = "QUERY_NOT_FOUND"
	for _, c := range []struct {
		name   string
		change func(*remoting.QueryMessageRequest)
		want   string
	}{
		{"key", func(h *remoting.QueryMessageRequest) {}, "ea"},
		{"same hash", func(h *remoting.QueryMessageRequest) { h.Key = "FB" }, "fb"},
		{"same hash, nobody has it", func(h *remoting.QueryMessageRequest) { h.Key = "C#" + "x" }, none},
		{"several", func(h *remoting.QueryMessageRequest) { h.Key = "x" }, "ea fb"},
		{"the newest", func(h *remoting.QueryMessageRequest) { h.Key, h.MaxNum = "x", 1 }, "fb"},
		{"no number", func(h *remoting.QueryMessageRequest) { h.Key, h.MaxNum = "x", math.MinInt32 }, "fb"},
		{"other topic", func(h *remoting.QueryMessageRequest) { h.Topic = "Other" }, "other"},
		{"unknown topic", func(h *remoting.QueryMessageRequest) { h.Topic = "nope" }, none},
		{"unknown key", func(h *remoting.QueryMessageRequest) { h.Key = "y" }, none},
		{"empty key", func(h *remoting.QueryMessageRequest) { h.Key = "" }, none},
		{"too late", func(h *remoting.QueryMessageRequest) { h.BeginTimestamp = math.MaxInt64 - 1 }, none},
		{"too early", func(h *remoting.QueryMessageRequest) { h.EndTimestamp = 5 }, none},
		{"turned times", func(h *remoting.QueryMessageRequest) { h.BeginTimestamp, h.EndTimestamp = 9, 3 }, none},
		{"unique key", func(h *remoting.QueryMessageRequest) { h.Key, h.UniqueKeyQuery = ea.TransactionID, true }, "ea"},
		{"unique key, 5.4", func(h *remoting.QueryMessageRequest) { h.Key, h.IndexType = ea.TransactionID, "U" }, "ea"},
		{"no unique key", func(h *remoting.QueryMessageRequest) { h.UniqueKeyQuery = true }, none},
		{"bad last key", func(h *remoting.QueryMessageRequest) { h.LastKey = "garbage" }, "ea"},
	} {
		got, resp := query(c.change)
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
		h := decode(t, resp, new(remoting.QueryMessageResponse))
		if found := resp.Code == 0; found != (h.IndexLastUpdateTimestamp > 0) {
			t.Errorf("%s: index %+v", c.name, h)
		}
	}

	// Pages: each goes on before the first message of the one before.
	for i := range 150 {
		r.send("T", 0, name("", i), "KEYS", "many")
	}
	next := 150
	last := ""
	for page := 0; ; page++ {
		h := &remoting.QueryMessageRequest{Topic: "T", Key: "many", MaxNum: 64, EndTimestamp: math.MaxInt64, LastKey: last}
		resp := r.call(remoting.ReqQueryMessage, h, nil)
		if resp.Code == remoting.CodeQueryNotFound {
			break
		}
		got := records(t, resp.Body)
		for i := range got {
			if want := name("", next-len(got)+i); string(got[i].Body) != want {
				t.Fatalf("page %d has %q at %d, want %s", page, got[i].Body, i, want)
			}
		}
		next -= len(got)
		last = name("", int(got[0].PhysicalOffset))
	}
	if next != 0 {
		t.Errorf("the pages end at %d", next)
	}

	// One answer is bounded, and the rest comes with the next.
	for range 5 {
		r.send("T", 0, strings.Repeat("z", 3<<20), "KEYS", "large")
	}
	_, resp := query(func(h *remoting.QueryMessageRequest) { h.Key = "large" })
	if got := records(t, resp.Body); len(got) != 2 || len(resp.Body) > maxQueryBytes {
		t.Errorf("%d messages in %d bytes", len(got), len(resp.Body))
	}
}

// TestViewMessage: 33, with positions of all kinds.
func TestViewMessage(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	_, at, err := message.ParseOffsetID(r.send("T", 0, "m").MsgID)
	if err != nil {
		t.Fatal(err)
	}
	resp := r.ok(remoting.ReqViewMessageByID, &remoting.ViewMessageRequest{Offset: int64(at)}, nil)
	if got := records(t, resp.Body); len(got) != 1 || string(got[0].Body) != "m" {
		t.Errorf("got %v", got)
	}
	_, end := r.b.store.Range()
	for _, off := range []int64{int64(at) + 1, int64(end), int64(end) + 1, -1, math.MinInt64, math.MaxInt64, math.MaxInt64 - 50} {
		if remark := r.refused(remoting.CodeSystemError, remoting.ReqViewMessageByID, &remoting.ViewMessageRequest{Offset: off}, nil); !strings.HasPrefix(remark, "can not find message by the offset") {
			t.Errorf("position %d: %q", off, remark)
		}
	}
}
