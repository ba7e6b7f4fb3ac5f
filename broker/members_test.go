package broker

import (
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

func (p *peer) members(group string) ([]string, error) {
	p.t.Helper()
	resp := p.call(remoting.ReqGetConsumerListByGroup, &remoting.ConsumerGroupRequest{ConsumerGroup: group}, nil)
	if err := resp.Err(); err != nil {
		return nil, err
	}
	return body(p.t, resp, new(remoting.ConsumerList)).ConsumerIDs, nil
}

// TestHeartbeat: what a heartbeat makes, and who hears of it.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 1)
		a, b := r.newPeer("a"), r.newPeer("b")
		resp := a.heartbeat("G", "T")
		if got := resp.Ext; got.Value("IS_SUPPORT_HEART_BEAT_V2") != "true" || got.Value("IS_SUB_CHANGE") != "true" {
			t.Errorf("fields %v", got)
		}
		topic, ok := r.b.topics.Get("%RETRY%G")
		if !ok || topic.ReadQueueNums != 1 || topic.Perm != 6 {
			t.Fatalf("retry topic %+v", topic)
		}
		if _, ok := r.b.groups.Get("G"); !ok {
			t.Error("the group was not made")
		}
		if ids, err := a.members("G"); err != nil || !slices.Equal(ids, []string{"a"}) {
			t.Errorf("members %v, %v", ids, err)
		}
		a.push(remoting.ReqNotifyConsumerIDsChanged)
		time.Sleep(time.Second)
		b.heartbeat("G", "T")
		for _, p := range []*peer{a, b} {
			if cmd := p.push(remoting.ReqNotifyConsumerIDsChanged); cmd.Ext.Value("consumerGroup") != "G" || !cmd.IsOneway() {
				t.Errorf("notification %v %v", cmd, cmd.Ext)
			}
		}
		time.Sleep(time.Second)
		a.heartbeat("G", "T") // nothing new
		synctest.Wait()
		if n := len(a.pushes) + len(b.pushes); n != 0 {
			t.Errorf("%d notifications without a change", n)
		}
		// A connection that closes is gone at once.
		b.close()
		a.push(remoting.ReqNotifyConsumerIDsChanged)
		if ids, _ := a.members("G"); !slices.Equal(ids, []string{"a"}) {
			t.Errorf("members %v", ids)
		}
		// And so is who says farewell; with the last member the group goes.
		a.ok(remoting.ReqUnregisterClient, &remoting.UnregisterClientRequest{ClientID: "a", ConsumerGroup: "G"}, nil)
		if remark := r.refused(remoting.CodeSystemError, remoting.ReqGetConsumerListByGroup, &remoting.ConsumerGroupRequest{ConsumerGroup: "G"}, nil); remark != "no consumer for this group, G" {
			t.Errorf("remark %q", remark)
		}
		h := pullHeader("T", 0, 0)
		h.ConsumerGroup, h.SysFlag = "G", 0
		r.refused(remoting.CodeSubscriptionNotExist, remoting.ReqPullMessage, h, nil)
		a.heartbeat("G", "T") // and comes back
		if resp := r.call(remoting.ReqPullMessage, h, nil); resp.Code != remoting.CodePullNotFound {
			t.Errorf("pull of the group that is back: %v", resp)
		}
	})
}

// TestNotificationFirst: 40 leaves before the answer to the heartbeat that is the
// reason for it.
func TestNotificationFirst(t *testing.T) {
	r := startRig(t)
	ours, theirs := net.Pipe()
	defer ours.Close() //nolint:errcheck // the end
	r.b.server.ServeConn(theirs)
	req := remoting.NewRequest(remoting.ReqHeartBeat, nil)
	req.Body = remoting.EncodeBody(r.newPeer("a").heartbeatOf("G", "T"))
	frame, err := remoting.AppendFrame(nil, req)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := ours.Write(frame); err != nil {
		t.Fatal(err)
	}
	for _, response := range []bool{false, true} {
		if c, err := readFrame(ours); err != nil || c.IsResponse() != response {
			t.Fatalf("got %v, %v", c, err)
		}
	}
}

// TestHeartbeatKinds: groups that are not like others.
func TestHeartbeatKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 1)
		p := r.newPeer("p")
		part := func(name string, f func(*testing.T)) { t.Log(name); f(t) } // a bubble has no subtests
		part("broadcast", func(t *testing.T) {
			hb := p.heartbeatOf("B", "T")
			hb.Consumers[0].Model = remoting.Broadcasting
			p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(hb))
			synctest.Wait()
			if n := len(p.pushes); n != 0 {
				t.Errorf("%d notifications: each of its members has all queues", n)
			}
		})
		part("quiet", func(t *testing.T) {
			r.updateGroup("Q", func(g *remoting.GroupConfig) { g.NotifyConsumerIDsChanged = false })
			p.heartbeat("Q", "T")
			synctest.Wait()
			if n := len(p.pushes); n != 0 {
				t.Errorf("%d notifications of a group that wants none", n)
			}
		})
		part("unit mode, orderly", func(t *testing.T) {
			r.updateGroup("U", func(g *remoting.GroupConfig) { g.ConsumeMessageOrderly, g.RetryQueueNums = true, 5 })
			hb := p.heartbeatOf("U", "T")
			hb.Consumers[0].UnitMode = true
			p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(hb))
			topic, _ := r.b.topics.Get("%RETRY%U")
			if topic == nil || topic.TopicSysFlag != metadata.TopicFlagUnitSub || !topic.Order || topic.ReadQueueNums != 5 {
				t.Errorf("retry topic %+v", topic)
			}
		})
		part("not allowed", func(t *testing.T) {
			defer r.configure(map[string]string{"autoCreateSubscriptionGroup": "false"})()
			hb := p.heartbeatOf("New", "T")
			hb.Consumers = append(hb.Consumers, p.heartbeatOf("U", "T").Consumers...)
			p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(hb))
			if _, err := p.members("New"); code(err) != remoting.CodeSystemError {
				t.Errorf("a member of a group that may not be made: %v", err)
			}
			if ids, err := p.members("U"); err != nil || len(ids) != 1 {
				t.Errorf("the group beside it: %v, %v", ids, err)
			}
		})
		part("heartbeat V2", func(t *testing.T) {
			sql := p.heartbeatOf("V", "T")
			s := &sql.Consumers[0].Subscriptions[0]
			s.ExpressionType, s.SubString = remoting.ExpressionSQL92, "a > 1"
			sql.Fingerprint = 7
			p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(sql))
			short := p.heartbeatOf("V", "T")
			short.Consumers[0].Subscriptions, short.WithoutSub, short.Fingerprint = nil, true, 7
			resp := p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(short))
			if got := resp.Ext.Value("IS_SUB_CHANGE"); got != "false" {
				t.Errorf("IS_SUB_CHANGE=%s", got)
			}
			if f, ok := r.b.filters.Get("T", "V"); !ok || f.Dead() {
				t.Errorf("a heartbeat without subscriptions ends the filter: %+v", f)
			}
			p.ok(remoting.ReqUnregisterClient, &remoting.UnregisterClientRequest{ClientID: "p", ConsumerGroup: "V"}, nil)
			if f, _ := r.b.filters.Get("T", "V"); !f.Dead() {
				t.Error("the filter outlives its group")
			}
		})
		part("broken SQL", func(t *testing.T) {
			hb := p.heartbeatOf("S", "T")
			s := &hb.Consumers[0].Subscriptions[0]
			s.ExpressionType, s.SubString = remoting.ExpressionSQL92, "a >"
			p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(hb))
			h := pullHeader("T", 0, 0)
			h.ConsumerGroup, h.SysFlag = "S", 0
			r.refused(remoting.CodeSubscriptionParseFailed, remoting.ReqPullMessage, h, nil)
		})
		part("bad names", func(t *testing.T) {
			groups := r.b.groups.Len()
			for _, group := range []string{"../x", "a.b", "a b", strings.Repeat("x", 250)} {
				p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(p.heartbeatOf(group, "T")))
			}
			r.refused(remoting.CodeSystemError, remoting.ReqHeartBeat, nil, remoting.EncodeBody(p.heartbeatOf(strings.Repeat("x", 300), "T")))
			if n := r.b.groups.Len(); n != groups {
				t.Errorf("%d groups were made", n-groups)
			}
		})
		part("expiry", func(t *testing.T) {
			p.heartbeat("E", "T")
			time.Sleep(131 * time.Second)
			if _, err := r.members("E"); code(err) != remoting.CodeSystemError {
				t.Errorf("a silent member is still there: %v", err)
			}
		})
	})
}

// TestCheckClientConfig: 46.
func TestCheckClientConfig(t *testing.T) {
	r := startRig(t)
	for _, c := range []struct {
		kind, text string
		off        bool
		code       int32
	}{
		{"TAG", "a || b", false, 0}, {"", "a", false, 0}, {"tag", "a", false, 0},
		{"SQL92", "a > 1 AND b IS NOT NULL", false, 0},
		{"SQL92", "a > > 1", false, remoting.CodeSubscriptionParseFailed},
		{"SQL92", "", false, remoting.CodeSubscriptionParseFailed},
		{"XPATH", "/a", false, remoting.CodeSubscriptionParseFailed},
		{"SQL92", "a > 1", true, remoting.CodeSystemError},
	} {
		undo := r.configure(map[string]string{"enablePropertyFilter": map[bool]string{false: "true", true: "false"}[c.off]})
		resp := r.call(remoting.ReqCheckClientConfig, nil, remoting.EncodeBody(&remoting.CheckClient{
			ClientID: "c", Group: "G", Subscription: remoting.Subscription{Topic: "T", ExpressionType: c.kind, SubString: c.text},
		}))
		undo()
		if resp.Code != c.code {
			t.Errorf("%+v: %v", c, resp)
		}
	}
}

// TestRelay: 307 and 309 reach the client and bring its answer back.
func TestRelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 1)
		id := r.send("T", 0, "m").MsgID
		p := r.newPeer("c")
		p.answer = func(cmd *remoting.Command) *remoting.Command {
			resp := remoting.NewResponse(77, "as I say")
			resp.Body = []byte("answer to " + remoting.RequestName(cmd.Code))
			return resp
		}
		p.heartbeat("G", "T")
		info := &remoting.RunningInfoRequest{ConsumerGroup: "G", ClientID: "c"}
		direct := &remoting.ConsumeDirectlyRequest{ConsumerGroup: "G", ClientID: "c", MsgID: id, BrokerName: "x"}

		resp := r.call(remoting.ReqGetConsumerRunningInfo, info, nil)
		if resp.Code != 77 || resp.Remark != "as I say" || string(resp.Body) != "answer to GET_CONSUMER_RUNNING_INFO" {
			t.Errorf("answer %v %s", resp, resp.Body)
		}
		if cmd := p.push(remoting.ReqGetConsumerRunningInfo); cmd.Ext.Value("clientId") != "c" || cmd.IsOneway() {
			t.Errorf("asked %v %v", cmd, cmd.Ext)
		}
		if resp := r.call(remoting.ReqConsumeMessageDirectly, direct, nil); resp.Code != 77 {
			t.Errorf("answer %v", resp)
		}
		cmd := p.push(remoting.ReqConsumeMessageDirectly)
		if got := records(t, cmd.Body); len(got) != 1 || string(got[0].Body) != "m" || cmd.Ext.Value("brokerName") != "broker-a" || cmd.Ext.Value("topicSysFlag") != "0" {
			t.Errorf("asked %v with %v", cmd.Ext, got)
		}

		for name, c := range map[string]struct {
			code int32
			h    remoting.Header
			want int32
		}{
			"unknown client": {remoting.ReqGetConsumerRunningInfo, &remoting.RunningInfoRequest{ConsumerGroup: "G", ClientID: "d"}, remoting.CodeSystemError},
			"unknown group":  {remoting.ReqGetConsumerRunningInfo, &remoting.RunningInfoRequest{ConsumerGroup: "H", ClientID: "c"}, remoting.CodeSystemError},
			"no message":     {remoting.ReqConsumeMessageDirectly, &remoting.ConsumeDirectlyRequest{ConsumerGroup: "G", ClientID: "c", MsgID: message.OffsetID(r.b.storeHost, 1<<40)}, remoting.CodeSystemError},
			"bad id":         {remoting.ReqConsumeMessageDirectly, &remoting.ConsumeDirectlyRequest{ConsumerGroup: "G", ClientID: "c", MsgID: "zz"}, remoting.CodeSystemError},
			"no id":          {remoting.ReqConsumeMessageDirectly, &remoting.ConsumeDirectlyRequest{ConsumerGroup: "G", ClientID: "c"}, remoting.CodeSystemError},
		} {
			if resp := r.call(c.code, c.h, nil); resp.Code != c.want {
				t.Errorf("%s: %v", name, resp)
			}
		}

		// A client that does not answer.
		block := make(chan struct{})
		defer close(block)
		p.answer = func(*remoting.Command) *remoting.Command { <-block; return nil }
		start := time.Now()
		r.refused(remoting.CodeConsumeMsgTimeout, remoting.ReqGetConsumerRunningInfo, info, nil)
		if took := time.Since(start); took != relayTimeout {
			t.Errorf("it took %v", took)
		}
		// Many questions for silent clients do not pile up without end.
		var done []<-chan *remoting.Command
		for range maxRelays {
			done = append(done, r.later(remoting.ReqGetConsumerRunningInfo, info))
		}
		synctest.Wait()
		r.refused(remoting.CodeSystemBusy, remoting.ReqGetConsumerRunningInfo, info, nil)
		for _, d := range done {
			await(t, d)
		}

		old := remoting.NewRequest(remoting.ReqHeartBeat, nil)
		old.Version, old.Body = remoting.Version3_1_8-1, remoting.EncodeBody(p.heartbeatOf("G", "T"))
		if resp, err := p.invoke(t.Context(), old); err != nil || resp.Code != 0 {
			t.Fatal(resp, err)
		}
		if remark := r.refused(remoting.CodeSystemError, remoting.ReqGetConsumerRunningInfo, info, nil); !strings.Contains(remark, "too low") {
			t.Errorf("old client: %q", remark)
		}
	})
}

// TestConsumerStatus: 223 asks all members side by side.
func TestConsumerStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 1)
		h := &remoting.ConsumerStatusRequest{Topic: "T", Group: "G"}
		r.refused(remoting.CodeSystemError, remoting.ReqInvokeBrokerToGetConsumerStatus, h, nil)
		block := make(chan struct{})
		defer close(block)
		for _, id := range []string{"a", "b", "silent", "garbage", "error"} {
			p := r.newPeer(id)
			p.answer = func(cmd *remoting.Command) *remoting.Command {
				if cmd.Code != remoting.ReqGetConsumerStatusFromClient {
					return remoting.NewResponse(0, "")
				}
				resp := remoting.NewResponse(0, "")
				resp.Body = []byte(`{"messageQueueTable":{{"brokerName":"broker-a","queueId":0,"topic":"T"}:` + map[string]string{"a": "5", "b": "7", "garbage": "x"}[id] + `}}`)
				switch id {
				case "silent":
					<-block
				case "error":
					resp.Code = 1
				}
				return resp
			}
			p.heartbeat("G", "T")
		}
		start := time.Now()
		got := body(t, r.ok(remoting.ReqInvokeBrokerToGetConsumerStatus, h, nil), new(remoting.ConsumerStatus)).ConsumerTable
		if took := time.Since(start); took != statusTimeout {
			t.Errorf("it took %v", took)
		}
		q := remoting.MessageQueue{Topic: "T", BrokerName: "broker-a"}
		if len(got) != 2 || got["a"][q] != 5 || got["b"][q] != 7 {
			t.Errorf("got %v", got)
		}
		h.ClientAddr = "b"
		got = body(t, r.ok(remoting.ReqInvokeBrokerToGetConsumerStatus, h, nil), new(remoting.ConsumerStatus)).ConsumerTable
		if len(got) != 1 || got["b"][q] != 7 {
			t.Errorf("got %v", got)
		}
	})
}

// TestReply: a reply is pushed to who asked, and kept.
func TestReply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		asker := r.newPeer("asker")
		asker.heartbeat("PG")
		topic := "DefaultCluster_REPLY_TOPIC"
		reply := func(to string) *remoting.SendMessageRequestV2 {
			return sendHeader(topic, 0, "REPLY_TO_CLIENT", to, "CORRELATION_ID", "id", "MSG_TYPE", "reply")
		}
		resp := r.ok(remoting.ReqSendReplyMessageV2, reply("asker"), []byte("answer"))
		if got := decode(t, resp, new(remoting.SendMessageResponse)); len(got.MsgID) != 32 || got.QueueOffset != 0 {
			t.Errorf("answer %+v", got)
		}
		cmd := asker.push(remoting.ReqPushReplyMessageToClient)
		h := decode(t, cmd, new(remoting.ReplyMessageRequest))
		props := message.Properties(h.Properties)
		if id, _ := props.Get("CORRELATION_ID"); id != "id" || string(cmd.Body) != "answer" || h.Topic != topic {
			t.Errorf("pushed %+v %s", h, cmd.Body)
		}
		if at, _ := props.Get("PUSH_REPLY_TIME"); at == "" {
			t.Error("it does not say when it was pushed")
		}
		for _, name := range []string{"reconsumeTimes", "unitMode"} {
			if _, ok := cmd.Ext.Get(name); !ok {
				t.Errorf("field %s is missing", name)
			}
		}
		m, _ := r.last(topic, 0)
		if string(m.Body) != "answer" {
			t.Errorf("kept %+v", m)
		}
		r.ok(remoting.ReqSendReplyMessage, sendV1(reply("asker")), nil) // client-go has no body
		if cmd := asker.push(remoting.ReqPushReplyMessageToClient); len(cmd.Body) != 0 {
			t.Errorf("pushed %q", cmd.Body)
		}

		r.refused(remoting.CodeSystemError, remoting.ReqSendReplyMessageV2, reply("nobody"), []byte("x"))
		r.refused(remoting.CodeSystemError, remoting.ReqSendReplyMessageV2, sendHeader(topic, 0), []byte("x"))
		h2 := reply("asker")
		h2.QueueID = 9
		r.refused(remoting.CodeInvalidParameter, remoting.ReqSendReplyMessageV2, h2, []byte("x"))
		h2 = reply("asker")
		h2.Topic = message.HalfTopic
		r.refused(remoting.CodeNoPermission, remoting.ReqSendReplyMessageV2, h2, []byte("x"))

		defer r.configure(map[string]string{"storeReplyMessageEnable": "false"})()
		_, before := r.b.store.Range()
		if got := decode(t, r.ok(remoting.ReqSendReplyMessageV2, reply("asker"), []byte("y")), new(remoting.SendMessageResponse)); got.MsgID != "0" {
			t.Errorf("answer %+v", got)
		}
		if _, after := r.b.store.Range(); after != before {
			t.Error("it was kept")
		}
		asker.answer = func(*remoting.Command) *remoting.Command { return remoting.NewResponse(1, "no room") }
		if remark := r.refused(remoting.CodeSystemError, remoting.ReqSendReplyMessageV2, reply("asker"), []byte("z")); !strings.Contains(remark, "no room") {
			t.Errorf("remark %q", remark)
		}
	})
}
