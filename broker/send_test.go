package broker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// sendV1 is the same header under the names of code 10.
func sendV1(h *remoting.SendMessageRequestV2) *remoting.SendMessageRequest {
	return &h.SendMessageRequest
}

// TestSend: what a sent message looks like, and its answer.
func TestSend(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 2)
	for _, c := range []struct {
		name   string
		change func(*remoting.SendMessageRequestV2)
		body   string
		want   func(m *message.Ext) error
	}{
		{name: "plain"},
		{name: "as it was sent", body: "\x78\x9c not really zlib", change: func(h *remoting.SendMessageRequestV2) {
			h.SysFlag, h.Flag = 1|0x300, -7
		}, want: func(m *message.Ext) error {
			if m.SysFlag != 0x301 || m.Flag != -7 || string(m.Body) != "\x78\x9c not really zlib" {
				return fmt.Errorf("sysFlag %#x flag %d body %q", m.SysFlag, m.Flag, m.Body)
			}
			return nil
		}},
		{name: "properties are kept", change: func(h *remoting.SendMessageRequestV2) {
			h.Properties = "KEYS\x01a b\x02UNIQ_KEY\x01mine\x02CLUSTER\x01other\x02POP_CK\x01x\x02own\x01v"
		}, want: func(m *message.Ext) error {
			want := map[string]string{"KEYS": "a b", "UNIQ_KEY": "mine", "CLUSTER": "DefaultCluster", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "own": "v"}
			if got := m.Properties.Map(); !maps.Equal(got, want) {
				return fmt.Errorf("properties %v, want %v", got, want)
			}
			return nil
		}},
		{name: "malformed properties", change: func(h *remoting.SendMessageRequestV2) { h.Properties = "\x01\x02\x02no value" },
			want: func(m *message.Ext) error {
				if m.UniqKey() == "" || !strings.HasPrefix(string(m.Properties), "\x01\x02\x02no value\x02") {
					return fmt.Errorf("properties %q", m.Properties)
				}
				return nil
			}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.body == "" {
				c.body = "body"
			}
			for code, header := range map[int32]func(*remoting.SendMessageRequestV2) remoting.Header{
				remoting.ReqSendMessageV2: func(h *remoting.SendMessageRequestV2) remoting.Header { return h },
				remoting.ReqSendMessage:   func(h *remoting.SendMessageRequestV2) remoting.Header { return sendV1(h) },
			} {
				h := sendHeader("T", 1)
				if c.change != nil {
					c.change(h)
				}
				resp := r.ok(code, header(h), []byte(c.body))
				got := decode(t, resp, new(remoting.SendMessageResponse))
				if got.MsgRegion != "DefaultRegion" || got.TraceOn != "true" || got.QueueID != 1 {
					t.Errorf("answer %+v", got)
				}
				_, at, err := message.ParseOffsetID(got.MsgID)
				if err != nil {
					t.Fatal(err)
				}
				m, err := r.b.store.MessageAt(at)
				if err != nil {
					t.Fatal(err)
				}
				if m.Topic != "T" || m.QueueID != 1 || int64(m.QueueOffset) != got.QueueOffset || m.BornTimestamp != h.BornTimestamp ||
					m.StoreHost != r.b.storeHost || got.TransactionID != m.UniqKey() || len(m.UniqKey()) < 4 {
					t.Errorf("stored %+v, answer %+v", m, got)
				}
				if c.want != nil {
					if err := c.want(&m); err != nil {
						t.Error(err)
					}
				}
			}
		})
	}
}

// TestSendRefused: what a send is refused for, and that nothing is stored then.
func TestSendRefused(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 2)
	r.createTopic("ReadOnly", 1, func(h *remoting.CreateTopicRequest) { h.Perm = remoting.PermRead })
	r.createTopic("NoQueues", 0)
	r.createTopic("Template", 3, func(h *remoting.CreateTopicRequest) { h.Perm = 7 })
	long := strings.Repeat("x", message.MaxPropertiesSize)
	for _, c := range []struct {
		name   string
		change func(*remoting.SendMessageRequestV2)
		body   []byte
		config map[string]string
		code   int32
		remark string
	}{
		{name: "queue id beyond", change: func(h *remoting.SendMessageRequestV2) { h.QueueID = 2 }, code: remoting.CodeInvalidParameter, remark: "request queueId[2] is illegal"},
		{name: "largest queue id", change: func(h *remoting.SendMessageRequestV2) { h.QueueID = math.MaxInt32 }, code: remoting.CodeInvalidParameter},
		{name: "no queues", change: func(h *remoting.SendMessageRequestV2) { h.Topic = "NoQueues" }, code: remoting.CodeInvalidParameter},
		{name: "no queues, any", change: func(h *remoting.SendMessageRequestV2) { h.Topic, h.QueueID = "NoQueues", -1 }, code: remoting.CodeInvalidParameter},
		{name: "empty body", body: []byte{}, code: remoting.CodeSystemError, remark: "body is empty"},
		{name: "body above the bound", body: make([]byte, 4<<20+1), code: remoting.CodeMessageIllegal, remark: "the message is illegal"},
		{name: "properties above the bound", change: func(h *remoting.SendMessageRequestV2) { h.Properties = "k\x01" + long }, code: remoting.CodeMessageIllegal, remark: "32k"},
		{name: "properties above with ours", change: func(h *remoting.SendMessageRequestV2) { h.Properties = "k\x01" + long[3:] }, code: remoting.CodeMessageIllegal, remark: "32k"},
		{name: "delay that is no number", change: func(h *remoting.SendMessageRequestV2) { h.Properties = "DELAY\x01soon\x02" }, code: remoting.CodeMessageIllegal},
		{name: "timer", change: func(h *remoting.SendMessageRequestV2) { h.Properties = "TIMER_DELAY_SEC\x013\x02" }, code: remoting.CodeSystemError, remark: "levels only"},
		{name: "inner batch to an ordinary topic", change: func(h *remoting.SendMessageRequestV2) { h.SysFlag = 0x80 }, code: remoting.CodeMessageIllegal},
		{name: "read-only topic", change: func(h *remoting.SendMessageRequestV2) { h.Topic = "ReadOnly" }, code: remoting.CodeNoPermission, remark: "the topic[ReadOnly] sending message is forbidden"},
		{name: "read-only broker", config: map[string]string{"brokerPermission": "4"}, code: remoting.CodeNoPermission, remark: "the broker[127.0.0.1] sending message is forbidden"},
		{name: "schedule topic", change: func(h *remoting.SendMessageRequestV2) { h.Topic = message.ScheduleTopic }, code: remoting.CodeNoPermission, remark: "is forbidden."},
		{name: "half topic", change: func(h *remoting.SendMessageRequestV2) { h.Topic = message.HalfTopic }, code: remoting.CodeNoPermission},
		{name: "topic of lost transactions", change: func(h *remoting.SendMessageRequestV2) { h.Topic = metadata.TransCheckMaxTimeTopic }, code: remoting.CodeNoPermission},
		{name: "no template", change: func(h *remoting.SendMessageRequestV2) { h.Topic, h.DefaultTopic = "New", "nope" }, code: remoting.CodeTopicNotExist, remark: "topic[New] not exist, apply first please!"},
		{name: "template that is none", change: func(h *remoting.SendMessageRequestV2) { h.Topic, h.DefaultTopic = "New", "T" }, code: remoting.CodeTopicNotExist},
		{name: "not made by themselves", change: func(h *remoting.SendMessageRequestV2) { h.Topic = "New" },
			config: map[string]string{"autoCreateTopicEnable": "false"}, code: remoting.CodeTopicNotExist},
		{name: "name with a dot", change: func(h *remoting.SendMessageRequestV2) { h.Topic = "a.b" }, code: remoting.CodeInvalidParameter, remark: "contains illegal characters"},
		{name: "name with a separator", change: func(h *remoting.SendMessageRequestV2) { h.Topic = "../T" }, code: remoting.CodeInvalidParameter},
		{name: "name with NUL", change: func(h *remoting.SendMessageRequestV2) { h.Topic = "T\x00" }, code: remoting.CodeInvalidParameter},
		{name: "no name", change: func(h *remoting.SendMessageRequestV2) { h.Topic = "" }, code: remoting.CodeInvalidParameter, remark: "blank"},
		{name: "long name", change: func(h *remoting.SendMessageRequestV2) { h.Topic = strings.Repeat("x", 128) }, code: remoting.CodeInvalidParameter, remark: "longer"},
		{name: "retry topic of a group that may not be made", change: func(h *remoting.SendMessageRequestV2) { h.Topic = "%RETRY%new" },
			config: map[string]string{"autoCreateSubscriptionGroup": "false"}, code: remoting.CodeSubscriptionGroupNotExist},
		{name: "retry topic of nobody", change: func(h *remoting.SendMessageRequestV2) { h.Topic = "%RETRY%" }, code: remoting.CodeSubscriptionGroupNotExist},
		{name: "transactions rejected", change: func(h *remoting.SendMessageRequestV2) { h.Properties = "TRAN_MSG\x01true\x02" },
			config: map[string]string{"rejectTransactionMessage": "true"}, code: remoting.CodeNoPermission, remark: "transaction message is forbidden"},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer r.configure(c.config)()
			topics := r.b.topics.Len()
			_, before := r.b.store.Range()
			h := sendHeader("T", 0)
			if c.change != nil {
				c.change(h)
			}
			if c.body == nil {
				c.body = []byte("body")
			}
			resp := r.call(remoting.ReqSendMessageV2, h, c.body)
			if resp.Code != c.code || !strings.Contains(resp.Remark, c.remark) {
				t.Errorf("answer %v, want %s %q", resp, remoting.ResponseName(c.code), c.remark)
			}
			if got := fieldNames(resp.Ext); !slices.Equal(got, []string{"MSG_REGION", "TRACE_ON"}) {
				t.Errorf("fields %v: Java looks at those of every answer", got)
			}
			if _, after := r.b.store.Range(); after != before {
				t.Error("something was stored")
			}
			if r.b.topics.Len() != topics {
				t.Error("a topic was made")
			}
		})
	}
	// A missing field is an answer of its own.
	resp := r.call(remoting.ReqSendMessageV2, &remoting.TopicRequest{Topic: "T"}, []byte("m"))
	if resp.Code != remoting.CodeSystemError || resp.Remark != "ext field a is missing" {
		t.Errorf("without fields: %v", resp)
	}
}

// TestSendToAnyQueue: a negative queue id is any queue to write to.
func TestSendToAnyQueue(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 4, func(h *remoting.CreateTopicRequest) { h.WriteQueueNums = 2 })
	seen := make(map[int32]bool)
	for range 64 {
		seen[r.send("T", -1, "m").QueueID] = true
	}
	if !maps.Equal(seen, map[int32]bool{0: true, 1: true}) {
		t.Errorf("queues %v, want 0 and 1", seen)
	}
	r.send("T", 3, "m") // older clients may know of more queues than there are to write to
}

// TestTopicFromSend: a topic that the first send to it makes.
func TestTopicFromSend(t *testing.T) {
	r := startRig(t)
	r.createTopic("Mine", 3, func(h *remoting.CreateTopicRequest) { h.Perm = 7 })
	for _, c := range []struct {
		name, template string
		wish           int32
		unit           bool
		queues, flag   int32
	}{
		{"few", "TBW102", 4, false, 4, 0},
		{"many", "TBW102", 100, false, 8, 0},
		{"negative", "TBW102", -5, false, 1, 0},
		{"unit", "TBW102", 4, true, 4, metadata.TopicFlagUnit},
		{"own", "Mine", 16, false, 3, 0},
		{"%RETRY%G", "TBW102", 4, true, 1, metadata.TopicFlagUnitSub},
	} {
		h := sendHeader(c.name, 0)
		h.DefaultTopic, h.DefaultTopicQueueNums, h.UnitMode = c.template, c.wish, c.unit
		r.ok(remoting.ReqSendMessageV2, h, []byte("m"))
		topic, ok := r.b.topics.Get(c.name)
		if !ok || topic.ReadQueueNums != c.queues || topic.WriteQueueNums != c.queues || topic.Perm != 6 || topic.TopicSysFlag != c.flag {
			t.Errorf("%s: %+v, want %+v", c.name, topic, c)
		}
	}
	// The topic is on disk before its message is answered.
	r.ok(remoting.ReqSendMessageV2, sendHeader("Saved", 0), []byte("m"))
	if !strings.Contains(string(readFile(t, r.b.opts.FS, "/store/config/topics.json")), `"Saved"`) {
		t.Error("the topic was not saved")
	}
}

func batchOf(t testing.TB, texts ...string) []byte {
	t.Helper()
	var data []byte
	var err error
	for i, text := range texts {
		data, err = message.AppendBatchItem(data, message.BatchItem{Flag: int32(i), Body: []byte(text), Properties: message.NewProperties("KEYS", fmt.Sprint("k", i))})
		if err != nil {
			t.Fatal(err)
		}
	}
	return data
}

// TestSendBatch: several messages by one request.
func TestSendBatch(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	r.send("T", 0, "before")
	h := sendHeader("T", 0)
	h.Batch = true
	resp := decode(t, r.ok(remoting.ReqSendBatchMessage, h, batchOf(t, "a", "", "c")), new(remoting.SendMessageResponse))
	if ids := strings.Split(resp.MsgID, ","); len(ids) != 3 || resp.QueueOffset != 1 {
		t.Fatalf("answer %+v", resp)
	}
	r.dispatched()
	if got := r.bodies("T", 0, 0); !slices.Equal(got, []string{"before", "a", "", "c"}) {
		t.Errorf("stored %q", got)
	}
	for i, id := range strings.Split(resp.MsgID, ",") {
		m, err := r.b.store.MessageByID(id)
		if err != nil || int64(m.QueueOffset) != int64(1+i) || m.Flag != int32(i) || m.Properties != message.NewProperties("KEYS", fmt.Sprint("k", i)) {
			t.Errorf("message %d: %+v, %v", i, m, err)
		}
	}
	// The flag counts, not the code.
	h2 := sendHeader("T", 0)
	h2.Batch = true
	r.ok(remoting.ReqSendMessageV2, h2, batchOf(t, "d"))

	many := batchOf(t, "")
	wordy, err := message.AppendBatchItem(nil, message.BatchItem{Body: []byte("x"), Properties: message.NewProperties("k", strings.Repeat("v", 1000))})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name   string
		change func(*remoting.SendMessageRequestV2)
		body   []byte
		code   int32
	}{
		{"no batch", nil, []byte("single body, not a batch"), remoting.CodeMessageIllegal},
		{"cut short", nil, batchOf(t, "abc")[:10], remoting.CodeMessageIllegal},
		{"retry topic", func(h *remoting.SendMessageRequestV2) { h.Topic = "%RETRY%G" }, batchOf(t, "a"), remoting.CodeMessageIllegal},
		{"of a transaction", func(h *remoting.SendMessageRequestV2) { h.SysFlag = 4 }, batchOf(t, "a"), remoting.CodeMessageIllegal},
		{"too many", nil, slices.Repeat(many, maxBatch+1), remoting.CodeMessageIllegal},
		{"too long", nil, make([]byte, 4<<20+1), remoting.CodeMessageIllegal},
		{"too long with its properties", nil, slices.Repeat(wordy, 4<<20/len(wordy)+1), remoting.CodeMessageIllegal},
		{"nothing", nil, nil, remoting.CodeSystemError},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, before := r.b.store.Range()
			h := sendHeader("T", 0)
			h.Batch = true
			if c.change != nil {
				c.change(h)
			}
			r.refused(c.code, remoting.ReqSendBatchMessage, h, c.body)
			if _, after := r.b.store.Range(); after != before {
				t.Error("something was stored")
			}
		})
	}
	// As many as are allowed get an answer with all their ids.
	resp = decode(t, r.ok(remoting.ReqSendBatchMessage, h, slices.Repeat(many, maxBatch)), new(remoting.SendMessageResponse))
	if n := strings.Count(resp.MsgID, ",") + 1; n != maxBatch {
		t.Errorf("%d ids, want %d", n, maxBatch)
	}
}

// TestSendOneway: a message without an answer arrives, and an error is silent.
func TestSendOneway(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	for i, topic := range []string{"T", "a.b", "T"} {
		req := remoting.NewRequest(remoting.ReqSendMessageV2, sendHeader(topic, 0))
		req.Body = []byte(fmt.Sprint("m", i))
		if err := r.client.InvokeOneway(t.Context(), "broker", req); err != nil {
			t.Fatal(err)
		}
	}
	waitFor(t, func() bool { return r.b.store.Stats().Puts == 2 })
	r.dispatched()
	got := r.bodies("T", 0, 0)
	if slices.Sort(got); !slices.Equal(got, []string{"m0", "m2"}) {
		t.Errorf("got %q", got)
	}
}

// TestPutCodes: the table of outcomes, by itself.
func TestPutCodes(t *testing.T) {
	for _, c := range []struct {
		err    error
		code   int32
		stored bool
		remark string
	}{
		{nil, remoting.CodeSuccess, true, ""},
		{fmt.Errorf("x: %w", gantry.ErrFlushTimeout), remoting.CodeFlushDiskTimeout, true, ""},
		{context.Canceled, remoting.CodeFlushDiskTimeout, true, ""},
		{context.DeadlineExceeded, remoting.CodeFlushDiskTimeout, true, ""},
		{gantry.ErrClosed, remoting.CodeServiceNotAvailable, false, "service not available now"},
		{gantry.ErrReadOnly, remoting.CodeServiceNotAvailable, false, "service not available now"},
		{gantry.ErrMessageIllegal, remoting.CodeMessageIllegal, false, "the message is illegal"},
		{gantry.ErrPropertiesSizeExceeded, remoting.CodeMessageIllegal, false, "32k"},
		{gantry.ErrBusy, remoting.CodeSystemBusy, false, "[PC_SYNCHRONIZED]"},
		{gantry.ErrDiskFull, remoting.CodeSystemError, false, "create mapped file failed"},
		{errors.New("whatever"), remoting.CodeSystemError, false, "UNKNOWN_ERROR"},
	} {
		code, remark, stored := putResponse(c.err)
		if code != c.code || stored != c.stored || !strings.HasPrefix(remark, c.remark) && !strings.Contains(remark, c.remark) {
			t.Errorf("%v: %d %q %v, want %+v", c.err, code, remark, stored, c)
		}
		if c.err != nil && !stored && !strings.Contains(remark, c.err.Error()) {
			t.Errorf("%v: the remark %q does not say why", c.err, remark)
		}
	}
	for s := gantry.PutOK; s <= gantry.UnknownError; s++ {
		if _, ok := putCodes[s]; !ok {
			t.Errorf("no code for %v", s)
		}
	}
}

// TestSendOnBadDisk: a full disk, a disk that fails and one that is slow.
func TestSendOnBadDisk(t *testing.T) {
	start := func(t *testing.T) (*rig, *faultfs.FS, *memfs.FS) {
		mem := memfs.NewCrashable(1)
		fault := faultfs.New(mem)
		r := startRig(t, func(o *Options) {
			o.FS = fault
			o.Store.Flush, o.Store.CleanInterval = gantry.FlushSync, time.Millisecond
			o.Store.SyncFlushTimeout = 50 * time.Millisecond
		})
		r.createTopic("T", 1)
		r.send("T", 0, "before")
		return r, fault, mem
	}
	t.Run("full", func(t *testing.T) {
		r, _, mem := start(t)
		fullDisk(t, r, mem, true)
		remark := r.refused(remoting.CodeSystemError, remoting.ReqSendMessageV2, sendHeader("T", 0), []byte("m"))
		if !strings.Contains(remark, "create mapped file failed") {
			t.Errorf("remark %q", remark)
		}
		if err := r.b.Healthy(); !errors.Is(err, gantry.ErrDiskFull) {
			t.Errorf("health: %v", err)
		}
		r.bodies("T", 0, 0) // reading goes on
		fullDisk(t, r, mem, false)
		r.send("T", 0, "after")
	})
	t.Run("sync fails", func(t *testing.T) {
		r, fault, _ := start(t)
		fault.Inject(faultfs.Rule{Ops: faultfs.OpSync | faultfs.OpMapFlush, Match: func(c faultfs.Call) bool { return strings.Contains(c.Name, "commitlog") }, Err: faultfs.ErrIO})
		for range 2 { // at once, and from then on
			remark := r.refused(remoting.CodeServiceNotAvailable, remoting.ReqSendMessageV2, sendHeader("T", 0), []byte("m"))
			if !strings.Contains(remark, "service not available now") {
				t.Errorf("remark %q", remark)
			}
		}
		if err := r.b.Healthy(); !errors.Is(err, gantry.ErrReadOnly) {
			t.Errorf("health: %v", err)
		}
		if got := r.bodies("T", 0, 0); len(got) == 0 || got[0] != "before" {
			t.Errorf("reading: %q", got)
		}
		fault.Clear()
	})
	t.Run("sync takes long", func(t *testing.T) {
		r, fault, _ := start(t)
		block := make(chan struct{})
		rule := fault.Inject(faultfs.Rule{Ops: faultfs.OpSync | faultfs.OpMapFlush, Match: func(c faultfs.Call) bool { return strings.Contains(c.Name, "commitlog/") }, Hook: func(faultfs.Call) { <-block }})
		resp := r.call(remoting.ReqSendMessageV2, sendHeader("T", 0), []byte("slow"))
		if resp.Code != remoting.CodeFlushDiskTimeout {
			t.Errorf("answer %v", resp)
		}
		if got := decode(t, resp, new(remoting.SendMessageResponse)); got.QueueOffset != 1 || got.MsgID == "" {
			t.Errorf("the answer does not say where the message is: %+v", got)
		}
		rule.Remove()
		close(block)
		r.send("T", 0, "after")
		if got := r.bodies("T", 0, 0); !slices.Equal(got, []string{"before", "slow", "after"}) {
			t.Errorf("got %q", got)
		}
	})
}

// fullDisk makes the disk full, or not any more, and waits until the store knows.
func fullDisk(t testing.TB, r *rig, mem *memfs.FS, full bool) {
	t.Helper()
	var usage *vfs.Usage
	if full {
		usage = &vfs.Usage{Total: 100, Used: 95, Free: 5}
	}
	mem.SetUsage(usage)
	waitFor(t, func() bool { return r.b.store.Stats().DiskFull == full })
}

// TestInline: the goroutine that reads a connection handles only sends that have
// nothing to wait for.
func TestInline(t *testing.T) {
	for _, flush := range []gantry.FlushMode{gantry.FlushAsync, gantry.FlushSync} {
		r := startRig(t, func(o *Options) { o.Store.Flush = flush })
		r.createTopic("T", 1)
		for _, c := range []struct {
			code  int32
			topic string
			want  bool
		}{
			{remoting.ReqSendMessage, "T", true},
			{remoting.ReqSendMessageV2, "T", true},
			{remoting.ReqSendBatchMessage, "T", true},
			{remoting.ReqSendMessageV2, "New", false}, // is made, saved and told to name servers
			{remoting.ReqSendMessage, "New", false},
			{remoting.ReqSendMessageV2, "", false},
			{remoting.ReqSendMessageV2, retryPrefix + "g", false},
			{remoting.ReqConsumerSendMsgBack, "T", false},
			{remoting.ReqPullMessage, "T", false},
		} {
			v1 := remoting.SendMessageRequest{Topic: c.topic}
			cmd := remoting.NewRequest(c.code, &remoting.SendMessageRequestV2{SendMessageRequest: v1})
			if c.code == remoting.ReqSendMessage {
				cmd = remoting.NewRequest(c.code, &v1)
			}
			if got := r.b.inline(cmd); got != (c.want && flush == gantry.FlushAsync) {
				t.Errorf("flush %v: request %d to %q: %v", flush, c.code, c.topic, got)
			}
		}
	}
}
