package broker

import (
	"math"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestPullRefused: what a pull is refused for, in upstream's order.
func TestPullRefused(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 2)
	r.createTopic("WriteOnly", 1, func(h *remoting.CreateTopicRequest) { h.Perm = remoting.PermWrite })
	r.updateGroup("Off", func(g *remoting.GroupConfig) { g.ConsumeEnable = false })
	r.updateGroup("NoBroadcast", func(g *remoting.GroupConfig) { g.ConsumeBroadcastEnable = false })
	b := r.newPeer("b")
	hb := b.heartbeatOf("NoBroadcast", "T")
	hb.Consumers[0].Model = remoting.Broadcasting
	b.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(hb))
	r.newPeer("c").heartbeat("Member", "T")

	for _, c := range []struct {
		name   string
		change func(*remoting.PullMessageRequest)
		config map[string]string
		code   int32
		remark string
		why    string
	}{
		{name: "broker", config: map[string]string{"brokerPermission": "2"}, code: remoting.CodeNoPermission, remark: "the broker[broker-a] pulling", why: "1"},
		{name: "group that may not be made", change: func(h *remoting.PullMessageRequest) { h.ConsumerGroup = "new" },
			config: map[string]string{"autoCreateSubscriptionGroup": "false"}, code: remoting.CodeSubscriptionGroupNotExist, remark: "subscription group [new] does not exist"},
		{name: "bad name of a group", change: func(h *remoting.PullMessageRequest) { h.ConsumerGroup = "../x" }, code: remoting.CodeSubscriptionGroupNotExist},
		{name: "empty name of a group", change: func(h *remoting.PullMessageRequest) { h.ConsumerGroup = "" }, code: remoting.CodeSubscriptionGroupNotExist},
		{name: "group switched off", change: func(h *remoting.PullMessageRequest) { h.ConsumerGroup = "Off" }, code: remoting.CodeNoPermission, remark: "subscription group no permission, Off", why: "2"},
		{name: "unknown topic", change: func(h *remoting.PullMessageRequest) { h.Topic = "nope" }, code: remoting.CodeTopicNotExist, remark: "topic[nope] not exist, apply first please!"},
		{name: "topic with a separator", change: func(h *remoting.PullMessageRequest) { h.Topic = "../T" }, code: remoting.CodeTopicNotExist},
		{name: "write-only topic", change: func(h *remoting.PullMessageRequest) { h.Topic = "WriteOnly" }, code: remoting.CodeNoPermission, remark: "the topic[WriteOnly] pulling message is forbidden", why: "3"},
		{name: "queue id beyond", change: func(h *remoting.PullMessageRequest) { h.QueueID = 2 }, code: remoting.CodeInvalidParameter, remark: "queueId[2] is illegal"},
		{name: "largest queue id", change: func(h *remoting.PullMessageRequest) { h.QueueID = math.MaxInt32 }, code: remoting.CodeInvalidParameter},
		{name: "negative queue id", change: func(h *remoting.PullMessageRequest) { h.QueueID = math.MinInt32 }, code: remoting.CodeInvalidParameter},
		{name: "broken SQL", change: func(h *remoting.PullMessageRequest) {
			h.ExpressionType, h.Subscription = remoting.ExpressionSQL92, "a >"
		}, code: remoting.CodeSubscriptionParseFailed},
		{name: "unknown type", change: func(h *remoting.PullMessageRequest) { h.ExpressionType = "XPATH" }, code: remoting.CodeSubscriptionParseFailed, remark: "neither TAG nor SQL92"},
		{name: "SQL switched off", change: func(h *remoting.PullMessageRequest) {
			h.ExpressionType, h.Subscription = remoting.ExpressionSQL92, "a > 1"
		}, config: map[string]string{"enablePropertyFilter": "false"}, code: remoting.CodeSystemError, remark: "does not support consumer to filter message by SQL92"},
		{name: "no heartbeat yet", change: func(h *remoting.PullMessageRequest) { h.SysFlag = 0 }, code: remoting.CodeSubscriptionNotExist},
		{name: "topic of no subscription", change: func(h *remoting.PullMessageRequest) {
			h.SysFlag, h.ConsumerGroup, h.Topic = 0, "Member", "TBW102"
		}, code: remoting.CodeSubscriptionNotExist},
		{name: "newer subscription", change: func(h *remoting.PullMessageRequest) {
			h.SysFlag, h.ConsumerGroup, h.SubVersion = 0, "Member", 2
		}, code: remoting.CodeSubscriptionNotLatest},
		{name: "broadcast not allowed", change: func(h *remoting.PullMessageRequest) { h.SysFlag, h.ConsumerGroup = 0, "NoBroadcast" }, code: remoting.CodeNoPermission},
		{name: "good", code: remoting.CodePullNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer r.configure(c.config)()
			h := pullHeader("T", 0, 0)
			if c.change != nil {
				c.change(h)
			}
			resp := r.call(remoting.ReqPullMessage, h, nil)
			if resp.Code != c.code || !strings.Contains(resp.Remark, c.remark) {
				t.Errorf("answer %v, want %s %q", resp, remoting.ResponseName(c.code), c.remark)
			}
			if got := resp.Ext.Value("forbiddenType"); got != c.why {
				t.Errorf("forbiddenType %q, want %q", got, c.why)
			}
		})
	}
}

// configure changes settings of the broker, and returns how to change them back.
func (r *rig) configure(settings map[string]string) (undo func()) {
	r.t.Helper()
	old := r.b.config()
	next := *old
	for name, value := range settings {
		if err := next.Set(name, value); err != nil {
			r.t.Fatal(err)
		}
	}
	r.b.cfg.Store(&next)
	return func() { r.b.cfg.Store(old) }
}

// updateGroup makes a group.
func (p *peer) updateGroup(name string, change func(*remoting.GroupConfig)) {
	p.t.Helper()
	g := remoting.NewGroupConfig(name)
	change(&g)
	p.ok(remoting.ReqUpdateAndCreateSubscriptionGroup, nil, remoting.EncodeBody(&g))
}

// TestPullOffsets: where a pull goes on for each place it may ask for.
func TestPullOffsets(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 2)
	for range 3 {
		r.send("T", 0, "m")
	}
	for _, c := range []struct {
		name          string
		queue         int32
		offset        int64
		code          int32
		remark        string
		next, lo, end int64
	}{
		{"first", 0, 0, 0, "FOUND", 3, 0, 3},
		{"last", 0, 2, 0, "FOUND", 3, 0, 3},
		{"end", 0, 3, remoting.CodePullNotFound, "OFFSET_OVERFLOW_ONE", 3, 0, 3},
		{"behind the end", 0, 4, remoting.CodePullOffsetMoved, "OFFSET_OVERFLOW_BADLY", 3, 0, 3},
		{"largest", 0, math.MaxInt64, remoting.CodePullOffsetMoved, "OFFSET_OVERFLOW_BADLY", 3, 0, 3},
		{"-1", 0, -1, remoting.CodePullOffsetMoved, "OFFSET_TOO_SMALL", 0, 0, 3},
		{"smallest", 0, math.MinInt64, remoting.CodePullOffsetMoved, "OFFSET_TOO_SMALL", 0, 0, 3},
		{"empty queue", 1, 0, remoting.CodePullNotFound, "NO_MESSAGE_IN_QUEUE", 0, 0, 0},
		{"empty queue, other offset", 1, 5, remoting.CodePullOffsetMoved, "NO_MESSAGE_IN_QUEUE", 0, 0, 0},
		{"empty queue, -1", 1, -1, remoting.CodePullOffsetMoved, "NO_MESSAGE_IN_QUEUE", 0, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			resp := r.call(remoting.ReqPullMessage, pullHeader("T", c.queue, c.offset), nil)
			got := decode(t, resp, new(remoting.PullMessageResponse))
			if resp.Code != c.code || resp.Remark != c.remark || got.NextBeginOffset != c.next || got.MinOffset != c.lo || got.MaxOffset != c.end {
				t.Errorf("answer %v %+v, want %+v", resp, got, c)
			}
			for _, name := range []string{"suggestWhichBrokerId", "topicSysFlag", "groupSysFlag"} {
				if v := resp.Ext.Value(name); v != "0" {
					t.Errorf("field %s=%q", name, v)
				}
			}
		})
	}
}

// TestPullLimits: how much one pull gets.
func TestPullLimits(t *testing.T) {
	r := startRig(t, func(o *Options) { o.Store.CommitLogFileSize = 64 << 20 })
	r.createTopic("T", 1)
	for range 1100 {
		r.send("T", 0, "m")
	}
	r.createTopic("Large", 1)
	for range 3 {
		r.send("Large", 0, strings.Repeat("x", 200<<10))
	}
	r.createTopic("Huge", 1)
	r.send("Huge", 0, strings.Repeat("x", 4<<20))
	for _, c := range []struct {
		name   string
		topic  string
		change func(*remoting.PullMessageRequest)
		want   int
	}{
		{"as asked", "T", func(h *remoting.PullMessageRequest) { h.MaxMsgNums = 7 }, 7},
		{"none asked", "T", func(h *remoting.PullMessageRequest) { h.MaxMsgNums = 0 }, 1},
		{"negative", "T", func(h *remoting.PullMessageRequest) { h.MaxMsgNums = math.MinInt32 }, 1},
		{"too many", "T", func(h *remoting.PullMessageRequest) { h.MaxMsgNums = math.MaxInt32 }, maxPullMessages},
		{"bytes asked", "T", func(h *remoting.PullMessageRequest) { h.MaxMsgBytes = 500 }, 2},
		{"bytes", "Large", func(h *remoting.PullMessageRequest) {}, 1},
		{"more bytes asked", "Large", func(h *remoting.PullMessageRequest) { h.MaxMsgBytes = math.MaxInt32 }, 1},
		{"negative bytes", "Large", func(h *remoting.PullMessageRequest) { h.MaxMsgBytes = -1 }, 1},
		{"one larger than the bound", "Huge", func(h *remoting.PullMessageRequest) {}, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := pullHeader(c.topic, 0, 0)
			c.change(h)
			resp := r.ok(remoting.ReqPullMessage, h, nil)
			if got := len(records(t, resp.Body)); got != c.want {
				t.Errorf("%d messages, want %d", got, c.want)
			}
			if next := decode(t, resp, new(remoting.PullMessageResponse)).NextBeginOffset; next != int64(c.want) {
				t.Errorf("next %d, want %d", next, c.want)
			}
		})
	}
}

// TestPullFilters: tags and SQL92, from the request and from the heartbeat, and
// what does not apply to retry topics.
func TestPullFilters(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	// Aa and BB have the same hash.
	for _, tags := range []string{"a", "Aa", "BB", "c", ""} {
		props := []string{"tag", tags + "!", "n", "5"}
		if tags != "" {
			props = append(props, message.PropTags, tags)
		}
		r.send("T", 0, "body of "+tags, props...)
	}
	for _, c := range []struct{ name, kind, text, want string }{
		{"all", "TAG", "*", "a Aa BB c "},
		{"nothing means all", "TAG", "", "a Aa BB c "},
		{"no type means tags", "", "a", "a"},
		{"two", "TAG", "a || c", "a c"},
		{"same hash", "TAG", "Aa", "Aa"},
		{"same hash, other", "TAG", " BB ", "BB"},
		{"none has it", "TAG", "z", "-"},
		{"SQL", "SQL92", "TAGS IN ('a', 'c') AND n BETWEEN 1 AND 9", "a c"},
		{"SQL, null", "SQL92", "TAGS IS NULL", ""},
		{"SQL, no match", "SQL92", "n > 5", "-"},
		{"SQL, not a boolean", "SQL92", "nothere = 1", "-"},
	} {
		t.Run(c.name, func(t *testing.T) {
			h := pullHeader("T", 0, 0)
			h.ExpressionType, h.Subscription = c.kind, c.text
			resp := r.call(remoting.ReqPullMessage, h, nil)
			var got []string
			for _, m := range records(t, resp.Body) {
				got = append(got, strings.TrimPrefix(string(m.Body), "body of "))
			}
			text := strings.Join(got, " ")
			if resp.Code == remoting.CodePullRetryImmediately {
				text = "-"
			}
			if text != c.want {
				t.Errorf("got %q (%v), want %q", text, resp, c.want)
			}
			if next := decode(t, resp, new(remoting.PullMessageResponse)).NextBeginOffset; next != 5 {
				t.Errorf("next %d, want 5", next)
			}
		})
	}

	t.Run("heartbeat", func(t *testing.T) {
		p := r.newPeer("c")
		hb := p.heartbeatOf("G", "T", "%RETRY%G")
		for i := range hb.Consumers[0].Subscriptions {
			s := &hb.Consumers[0].Subscriptions[i]
			s.ExpressionType, s.SubString = remoting.ExpressionSQL92, "TAGS = 'c'"
		}
		p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(hb))
		h := pullHeader("T", 0, 0)
		h.ConsumerGroup, h.SysFlag, h.SubVersion, h.Subscription = "G", 0, 1, ""
		if got := records(t, r.ok(remoting.ReqPullMessage, h, nil).Body); len(got) != 1 || got[0].Tags() != "c" {
			t.Errorf("got %v", got)
		}
		r.send("%RETRY%G", 0, "again", message.PropTags, "a")
		h.Topic = "%RETRY%G"
		if got := records(t, r.ok(remoting.ReqPullMessage, h, nil).Body); len(got) != 1 {
			t.Errorf("what was chosen once is not tried again: %v", got)
		}
		defer r.configure(map[string]string{"filterSupportRetry": "true"})()
		if resp := r.call(remoting.ReqPullMessage, h, nil); resp.Code != remoting.CodePullRetryImmediately {
			t.Errorf("with filterSupportRetry: %v", resp)
		}
	})
}

// TestPullCommits: a pull with the flag commits, but nothing negative, not what
// is the broker's own, and not while a reset is pending.
func TestPullCommits(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	r.send("T", 0, "m")
	pull := func(group string, commit int64) *remoting.Command {
		h := pullHeader("T", 0, 0)
		h.ConsumerGroup, h.CommitOffset = group, commit
		h.SysFlag |= remoting.PullCommitOffset
		return r.call(remoting.ReqPullMessage, h, nil)
	}
	for _, c := range []struct {
		commit, want int64
	}{{-1, -1}, {1, 1}, {-1, 1}, {0, 0}, {math.MinInt64, 0}, {math.MaxInt64, math.MaxInt64}} {
		pull("CG", c.commit)
		got, ok := r.b.offsets.Query("CG", "T", 0)
		if !ok {
			got = -1
		}
		if got != c.want {
			t.Errorf("after a commit of %d: %d, want %d", c.commit, got, c.want)
		}
	}
	if !r.b.offsets.AssignReset("CG", "T", 0, 1) {
		t.Fatal("no reset")
	}
	if resp := pull("CG", 0); resp.Code != remoting.CodePullOffsetMoved || resp.Remark != "OFFSET_RESET" || resp.Ext.Value("nextBeginOffset") != "1" {
		t.Errorf("the pull after a reset: %v %v", resp, resp.Ext)
	}
	if off, _ := r.b.offsets.Query("CG", "T", 0); off != 1 {
		t.Errorf("the offset that was reset is %d, want 1", off)
	}
	if resp := pull("CG", 0); resp.Code != 0 {
		t.Errorf("the pull after that: %v", resp)
	}
	pull("CID_RMQ_SYS_TRANS", 1)
	if _, ok := r.b.offsets.Query("CID_RMQ_SYS_TRANS", "T", 0); ok {
		t.Error("a client commits offsets of the broker's own group")
	}
}

// TestPullSubscriptionForbidden: a group that may not read one topic.
func TestPullSubscriptionForbidden(t *testing.T) {
	r := startRig(t)
	files := r.b.opts.FS
	r.b.groups.Find("CG", true)
	r.createTopic("T", 1)
	opts := r.b.opts
	stopBroker(t, r.b)
	replaceInFile(t, files, "/store/config/subscriptionGroup.json", `"forbiddenTable":{`, `"forbiddenTable":{"CG":{"T":4}`)
	r.b = openRig(t, opts)
	r.peer = r.newPeer("")
	resp := r.call(remoting.ReqPullMessage, pullHeader("T", 0, 0), nil)
	if resp.Code != remoting.CodeNoPermission || resp.Ext.Value("forbiddenType") != "5" {
		t.Errorf("answer %v %v", resp, resp.Ext)
	}
}
