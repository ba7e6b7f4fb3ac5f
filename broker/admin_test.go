package broker

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestTopicAdmin: 17, 18, 21, 215, 305, 351.
func TestTopicAdmin(t *testing.T) {
	r := startRig(t)
	get := func(name string) *remoting.TopicConfig {
		t.Helper()
		resp := r.call(remoting.ReqGetTopicConfig, &remoting.GetTopicConfigRequest{Topic: name}, nil)
		if resp.Code != 0 {
			if resp.Code != remoting.CodeTopicNotExist {
				t.Errorf("%s: %v", name, resp)
			}
			return nil
		}
		return body(t, resp, new(remoting.TopicConfig))
	}
	r.createTopic("T", 3, func(h *remoting.CreateTopicRequest) {
		h.Perm, h.Order, h.TopicFilterType, h.Attributes = 4, true, "MULTI_TAG", "+message.type=FIFO"
	})
	if got := get("T"); got == nil || got.ReadQueueNums != 3 || got.Perm != 4 || !got.Order || got.TopicFilterType != "MULTI_TAG" || got.Attributes["message.type"] != "FIFO" {
		t.Errorf("made %+v", got)
	}
	for _, c := range []struct {
		name   string
		change func(*remoting.CreateTopicRequest)
		code   int32
		remark string
	}{
		{"system topic", func(h *remoting.CreateTopicRequest) { h.Topic = message.ScheduleTopic }, remoting.CodeInvalidParameter, "conflict with system topic"},
		{"bad name", func(h *remoting.CreateTopicRequest) { h.Topic = "a/b" }, remoting.CodeInvalidParameter, "illegal characters"},
		{"dots", func(h *remoting.CreateTopicRequest) { h.Topic = ".." }, remoting.CodeInvalidParameter, "illegal characters"},
		{"no name", func(h *remoting.CreateTopicRequest) { h.Topic = "" }, remoting.CodeInvalidParameter, "blank"},
		{"negative queues", func(h *remoting.CreateTopicRequest) { h.ReadQueueNums = -1 }, remoting.CodeInvalidParameter, "queues"},
		{"too many queues", func(h *remoting.CreateTopicRequest) { h.WriteQueueNums = 1<<31 - 1 }, remoting.CodeInvalidParameter, "queues"},
		{"permission", func(h *remoting.CreateTopicRequest) { h.Perm = 99 }, remoting.CodeInvalidParameter, "perm"},
		{"attribute", func(h *remoting.CreateTopicRequest) { h.Attributes = "+colour=red" }, remoting.CodeInvalidParameter, "colour"},
		{"no attribute", func(h *remoting.CreateTopicRequest) { h.Attributes = "red" }, remoting.CodeInvalidParameter, "neither"},
	} {
		h := &remoting.CreateTopicRequest{Topic: "N", DefaultTopic: "TBW102", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6, TopicFilterType: remoting.FilterTypeSingle}
		c.change(h)
		if remark := r.refused(c.code, remoting.ReqUpdateAndCreateTopic, h, nil); !strings.Contains(remark, c.remark) {
			t.Errorf("%s: %q", c.name, remark)
		}
	}
	list := func(topics ...remoting.TopicConfig) []byte {
		return remoting.EncodeBody(&remoting.TopicConfigList{Topics: topics})
	}
	topic := func(name string) remoting.TopicConfig {
		return remoting.TopicConfig{TopicName: name, ReadQueueNums: 2, WriteQueueNums: 2, Perm: 6, TopicFilterType: remoting.FilterTypeSingle}
	}
	r.ok(remoting.ReqUpdateAndCreateTopicList, nil, list(topic("L1"), topic("L2")))
	r.refused(remoting.CodeInvalidParameter, remoting.ReqUpdateAndCreateTopicList, nil, list(topic("L3"), topic("a b"), topic("L4")))
	for name, there := range map[string]bool{"L1": true, "L2": true, "L3": true, "L4": false} {
		if (get(name) != nil) != there {
			t.Errorf("%s is there: %v", name, !there)
		}
	}
	resp := r.ok(remoting.ReqGetAllTopicConfig, nil, nil)
	all := body(t, resp, new(remoting.TopicConfigTable)).Topics
	if _, ok := all["T"]; !ok || resp.Ext.Value("totalTopicNum") != name("", len(all)) {
		t.Errorf("all topics: %v %d", resp.Ext, len(all))
	}
	system := body(t, r.ok(remoting.ReqGetSystemTopicListFromBroker, nil, nil), new(remoting.TopicList)).TopicList
	for _, name := range []string{"TBW102", message.HalfTopic, "DefaultCluster", "broker-a"} {
		if !slices.Contains(system, name) {
			t.Errorf("system topics %v lack %s", system, name)
		}
	}

	// Deleting takes the offsets with it.
	r.b.groups.Find("G", true)
	r.commit("G", "L1", 0, 0)
	r.ok(remoting.ReqDeleteTopicInBroker, &remoting.TopicRequest{Topic: "L1"}, nil)
	if got := get("L1"); got != nil {
		t.Errorf("deleted, but %+v", got)
	}
	if topics := r.b.offsets.Topics("G"); len(topics) != 0 {
		t.Errorf("offsets in %v", topics)
	}
	r.ok(remoting.ReqDeleteTopicInBroker, &remoting.TopicRequest{Topic: "L1"}, nil) // again, as upstream
	r.refused(remoting.CodeInvalidParameter, remoting.ReqDeleteTopicInBroker, &remoting.TopicRequest{Topic: "TBW102"}, nil)
	r.refused(remoting.CodeInvalidParameter, remoting.ReqDeleteTopicInBroker, &remoting.TopicRequest{}, nil)
}

// TestGroupAdmin: 200, 201, 207, 225, 352.
func TestGroupAdmin(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 1)
	r.updateGroup("G", func(g *remoting.GroupConfig) { g.RetryMaxTimes = 5 })
	get := func(name string) (*remoting.GroupConfig, int32) {
		t.Helper()
		resp := r.call(remoting.ReqGetSubscriptionGroupConfig, &remoting.GroupRequest{Group: name}, nil)
		if resp.Code != 0 {
			return nil, resp.Code
		}
		return body(t, resp, new(remoting.GroupConfig)), 0
	}
	if g, _ := get("G"); g == nil || g.RetryMaxTimes != 5 {
		t.Errorf("made %+v", g)
	}
	if _, code := get("nope"); code != remoting.CodeSubscriptionGroupNotExist {
		t.Errorf("code %d", code)
	}
	bad := remoting.NewGroupConfig("a/b")
	r.refused(remoting.CodeInvalidParameter, remoting.ReqUpdateAndCreateSubscriptionGroup, nil, remoting.EncodeBody(&bad))
	list := &remoting.GroupConfigList{Groups: []remoting.GroupConfig{remoting.NewGroupConfig("G1"), remoting.NewGroupConfig("G2")}}
	r.ok(remoting.ReqUpdateSubscriptionGroupList, nil, remoting.EncodeBody(list))
	list.Groups = append(list.Groups[:1], bad, remoting.NewGroupConfig("G3"))
	r.refused(remoting.CodeInvalidParameter, remoting.ReqUpdateSubscriptionGroupList, nil, remoting.EncodeBody(list))
	if _, code := get("G3"); code == 0 {
		t.Error("the group behind the one that was refused was made")
	}
	resp := r.ok(remoting.ReqGetAllSubscriptionGroupConfig, nil, nil)
	all := body(t, resp, new(remoting.GroupConfigTable)).Groups
	if _, ok := all["G2"]; !ok || resp.Ext.Value("totalGroupNum") != name("", len(all)) {
		t.Errorf("all groups: %v %d", resp.Ext, len(all))
	}
	for _, clean := range []bool{false, true} {
		r.b.groups.Find("G", true)
		r.commit("G", "T", 0, 1)
		r.ok(remoting.ReqDeleteSubscriptionGroup, &remoting.DeleteGroupRequest{GroupName: "G", CleanOffset: clean}, nil)
		if _, code := get("G"); code == 0 {
			t.Error("the group is still there")
		}
		if _, ok := r.b.offsets.Query("G", "T", 0); ok == clean {
			t.Errorf("cleanOffset=%v: offsets are there: %v", clean, ok)
		}
	}
}

// TestAdminOnBadDisk: a change that cannot be saved is an error.
func TestAdminOnBadDisk(t *testing.T) {
	fault := faultfs.New(memfs.New())
	r := startRig(t, func(o *Options) { o.FS = fault })
	fault.Fail(faultfs.OpWrite, "*.json*", faultfs.ErrNoSpace)
	h := &remoting.CreateTopicRequest{Topic: "T", DefaultTopic: "TBW102", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6, TopicFilterType: remoting.FilterTypeSingle}
	r.refused(remoting.CodeSystemError, remoting.ReqUpdateAndCreateTopic, h, nil)
	g := remoting.NewGroupConfig("G")
	r.refused(remoting.CodeSystemError, remoting.ReqUpdateAndCreateSubscriptionGroup, nil, remoting.EncodeBody(&g))
	if err := r.b.save(); !errors.Is(err, faultfs.ErrNoSpace) {
		t.Errorf("save: %v", err)
	}
	fault.Clear()
	r.send("T", 0, "m") // it is there, and saved when that is possible
	if err := r.b.save(); err != nil {
		t.Error(err)
	}
}

// TestConfigRequests: 25 and 26.
func TestConfigRequests(t *testing.T) {
	r := startRig(t)
	read := func() remoting.Fields {
		t.Helper()
		resp := r.ok(remoting.ReqGetBrokerConfig, nil, nil)
		props, err := remoting.ParseProperties(resp.Body)
		if err != nil || !strings.Contains(resp.Ext.Value("version"), "counter") {
			t.Fatal(err, resp.Ext)
		}
		return props
	}
	if got := read().Value("brokerName"); got != "broker-a" {
		t.Errorf("brokerName=%s", got)
	}
	for _, c := range []struct {
		name, text string
		code       int32
		remark     string
	}{
		{"live", "transactionCheckMax=3\nregionId = Here \n", 0, ""},
		{"unknown, as mqadmin sends it", "flushDelayOffsetInterval=9000\n", 0, ""},
		{"nothing", "", 0, ""},
		{"as it is", "brokerName=broker-a\nlistenPort=10911\nclusterTopicEnable=TRUE\n", 0, ""},
		{"at the start only", "brokerName=broker-b", remoting.CodeNoPermission, "takes effect at the start"},
		{"at the start only, queues", "defaultTopicQueueNums=3", remoting.CodeNoPermission, "takes effect at the start"},
		{"black list", "brokerConfigPath=/x", remoting.CodeNoPermission, "Can not update config in black list."},
		{"bad value", "transactionCheckMax=many", remoting.CodeInvalidParameter, "transactionCheckMax=many"},
		{"not supported", "aclEnable=true", remoting.CodeInvalidParameter, "not supported"},
		{"all or nothing", "transactionCheckMax=7\nbrokerPermission=77", remoting.CodeInvalidParameter, "brokerPermission"},
		{"control characters", "regionId=a\\u0001b", remoting.CodeInvalidParameter, "control"},
	} {
		resp := r.call(remoting.ReqUpdateBrokerConfig, nil, []byte(c.text))
		if resp.Code != c.code || !strings.Contains(resp.Remark, c.remark) {
			t.Errorf("%s: %v", c.name, resp)
		}
	}
	got := read()
	if got.Value("transactionCheckMax") != "3" || got.Value("regionId") != "Here" {
		t.Errorf("transactionCheckMax=%s regionId=%q", got.Value("transactionCheckMax"), got.Value("regionId"))
	}
	r.ok(remoting.ReqUpdateBrokerConfig, nil, []byte("autoCreateTopicEnable=false"))
	r.refused(remoting.CodeTopicNotExist, remoting.ReqSendMessageV2, sendHeader("New", 0), []byte("m"))
	r.ok(remoting.ReqUpdateBrokerConfig, nil, []byte("autoCreateTopicEnable=true"))
	r.send("New", 0, "m")

	// Without the template there is nothing to switch on.
	r2 := startRig(t, func(o *Options) { o.Config.AutoCreateTopic = false })
	r2.refused(remoting.CodeNoPermission, remoting.ReqUpdateBrokerConfig, nil, []byte("autoCreateTopicEnable=true"))
	r2.ok(remoting.ReqUpdateBrokerConfig, nil, []byte("traceOn=false"))
}

// TestInspect: what tools ask about topics, groups and connections.
func TestInspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 2)
		start := time.Now().UnixMilli()
		for range 4 {
			r.send("T", 0, "m", "TAGS", "a")
			time.Sleep(time.Second)
		}
		p := r.newPeer("c")
		p.heartbeat("G", "T")
		p.heartbeat("PG")
		r.commit("G", "T", 0, 3)
		q := func(id int32) remoting.MessageQueue {
			return remoting.MessageQueue{Topic: "T", BrokerName: "broker-a", QueueID: id}
		}

		stats := body(t, r.ok(remoting.ReqGetTopicStatsInfo, &remoting.TopicRequest{Topic: "T"}, nil), new(remoting.TopicStats)).OffsetTable
		if got := stats[q(0)]; len(stats) != 2 || got.MinOffset != 0 || got.MaxOffset != 4 || got.LastUpdateTimestamp != start+3000 {
			t.Errorf("topic stats %+v", stats)
		}
		r.refused(remoting.CodeTopicNotExist, remoting.ReqGetTopicStatsInfo, &remoting.TopicRequest{Topic: "nope"}, nil)

		consumed := func(change func(*remoting.ConsumeStatsRequest)) map[remoting.MessageQueue]remoting.ConsumeOffset {
			t.Helper()
			h := &remoting.ConsumeStatsRequest{ConsumerGroup: "G"}
			change(h)
			return body(t, r.ok(remoting.ReqGetConsumeStats, h, nil), new(remoting.ConsumeStats)).OffsetTable
		}
		got := consumed(func(*remoting.ConsumeStatsRequest) {})
		if o := got[q(0)]; len(got) != 2 || o.BrokerOffset != 4 || o.ConsumerOffset != 3 || o.LastTimestamp != start+2000 {
			t.Errorf("consume stats %+v", got)
		}
		if got := consumed(func(h *remoting.ConsumeStatsRequest) { h.TopicList = " T; ;T;nope;T" }); len(got) != 2 {
			t.Errorf("consume stats of a list %+v", got)
		}
		if got := consumed(func(h *remoting.ConsumeStatsRequest) { h.Topic = "TBW102" }); len(got) != 0 {
			t.Errorf("of a topic that it does not consume %+v", got)
		}
		if got := consumed(func(h *remoting.ConsumeStatsRequest) { h.ConsumerGroup = "nope" }); len(got) != 0 {
			t.Errorf("of nobody %+v", got)
		}
		all := body(t, r.ok(remoting.ReqGetBrokerConsumeStats, &remoting.BrokerConsumeStatsRequest{}, nil), new(remoting.BrokerConsumeStats))
		if all.TotalDiff != 1 || all.TotalInflightDiff != 0 {
			t.Errorf("broker consume stats %+v", all)
		}
		if all := body(t, r.ok(remoting.ReqGetBrokerConsumeStats, &remoting.BrokerConsumeStatsRequest{IsOrder: true}, nil), new(remoting.BrokerConsumeStats)); all.TotalDiff != 0 {
			t.Errorf("of ordered topics %+v", all)
		}

		cc := body(t, r.ok(remoting.ReqGetConsumerConnectionList, &remoting.ConsumerGroupRequest{ConsumerGroup: "G"}, nil), new(remoting.ConsumerConnection))
		if len(cc.Connections) != 1 || cc.Connections[0].ClientID != "c" || cc.SubscriptionTable["T"].SubString != "*" {
			t.Errorf("connections %+v", cc)
		}
		r.refused(remoting.CodeConsumerNotOnline, remoting.ReqGetConsumerConnectionList, &remoting.ConsumerGroupRequest{ConsumerGroup: "nope"}, nil)
		pc := body(t, r.ok(remoting.ReqGetProducerConnectionList, &remoting.ProducerGroupRequest{ProducerGroup: "PG"}, nil), new(remoting.ProducerConnection))
		if len(pc.Connections) != 1 || pc.Connections[0].ClientID != "c" {
			t.Errorf("producers %+v", pc)
		}
		r.refused(remoting.CodeSystemError, remoting.ReqGetProducerConnectionList, &remoting.ProducerGroupRequest{ProducerGroup: "nope"}, nil)
		if got := body(t, r.ok(remoting.ReqGetAllProducerInfo, nil, nil), new(remoting.ProducerTable)).Data; len(got["PG"]) != 1 {
			t.Errorf("all producers %+v", got)
		}

		r.b.groups.Find("Past", true)
		r.commit("Past", "T", 0, 1)
		if got := body(t, r.ok(remoting.ReqQueryTopicConsumeByWho, &remoting.TopicRequest{Topic: "T"}, nil), new(remoting.GroupList)).Groups; !slices.Equal(got, []string{"G", "Past"}) {
			t.Errorf("groups %v", got)
		}
		if got := body(t, r.ok(remoting.ReqQueryTopicsByConsumer, &remoting.GroupRequest{Group: "G"}, nil), new(remoting.TopicList)); !slices.Equal(got.TopicList, []string{"T"}) || got.BrokerAddr != r.b.Addr() {
			t.Errorf("topics %+v", got)
		}
		if got := body(t, r.ok(remoting.ReqQuerySubscriptionByConsumer, &remoting.SubscriptionRequest{Group: "G", Topic: "T"}, nil), new(remoting.SubscriptionAnswer)); got.Subscription == nil || got.Subscription.SubString != "*" {
			t.Errorf("subscription %+v", got)
		}
		spans := body(t, r.ok(remoting.ReqQueryConsumeTimeSpan, &remoting.TopicGroupRequest{Group: "G", Topic: "T"}, nil), new(remoting.TimeSpans)).Spans
		if s := spans[0]; len(spans) != 2 || s.MinTimeStamp != start || s.MaxTimeStamp != start+3000 || s.ConsumeTimeStamp != start+2000 || s.DelayTime != 1000 {
			t.Errorf("time spans %+v, began at %d", spans, start)
		}
		r.refused(remoting.CodeTopicNotExist, remoting.ReqQueryConsumeTimeSpan, &remoting.TopicGroupRequest{Group: "G", Topic: "nope"}, nil)

		units := func(change func(*remoting.QueryQueueRequest)) *remoting.QueueContent {
			t.Helper()
			h := &remoting.QueryQueueRequest{Topic: "T", Count: 2}
			change(h)
			return body(t, r.ok(remoting.ReqQueryConsumeQueue, h, nil), new(remoting.QueueContent))
		}
		if got := units(func(h *remoting.QueryQueueRequest) { h.Index = 1 }); len(got.Units) != 2 || got.MaxQueueIndex != 4 || got.Units[0].TagsCode != 97 || got.FilterData != "" {
			t.Errorf("units %+v", got)
		}
		for _, index := range []int64{-1 << 63, 4, 1<<63 - 1} {
			units(func(h *remoting.QueryQueueRequest) { h.Index, h.Count = index, -1<<31 })
		}
		if got := units(func(h *remoting.QueryQueueRequest) { h.ConsumerGroup, h.Count = "nope", 1<<31-1 }); got.FilterData != "nope is not online!" || len(got.Units) != 4 {
			t.Errorf("units %+v", got)
		}
		r.refused(remoting.CodeSystemError, remoting.ReqQueryConsumeQueue, &remoting.QueryQueueRequest{Topic: "T", QueueID: 9}, nil)

		r.ok(remoting.ReqCloneGroupOffset, &remoting.CloneOffsetRequest{SrcGroup: "G", DestGroup: "Copy", Topic: "T"}, nil)
		if off, _ := r.b.offsets.Query("Copy", "T", 0); off != 3 {
			t.Errorf("copied offset %d", off)
		}
		r.ok(remoting.ReqCloneGroupOffset, &remoting.CloneOffsetRequest{SrcGroup: "G", DestGroup: "Copy2"}, nil)
		if off, _ := r.b.offsets.Query("Copy2", "T", 0); off != 3 {
			t.Errorf("copied offset %d", off)
		}
		r.refused(remoting.CodeInvalidParameter, remoting.ReqCloneGroupOffset, &remoting.CloneOffsetRequest{SrcGroup: "G", DestGroup: "a b", Topic: "T"}, nil)
		if table := body(t, r.ok(remoting.ReqGetAllConsumerOffset, nil, nil), new(remoting.ConsumerOffsets)).OffsetTable; table["T@G"][0] != 3 {
			t.Errorf("all offsets %v", table)
		}
		for _, code := range []int32{remoting.ReqCleanExpiredConsumeQueue, remoting.ReqCleanUnusedTopic, remoting.ReqDeleteExpiredCommitLog} {
			r.ok(code, nil, nil)
		}
	})
}
