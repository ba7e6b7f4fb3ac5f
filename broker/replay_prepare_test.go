package broker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"testing/synctest"

	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// prepare brings the broker into the state in which the recorded one was at the
// beginning: topics, groups, members and messages, as far as the answers show.
func (p *player) prepare() {
	p.prepareTopics()
	p.prepareOffsets()
	p.prepareMembers()
	p.prepareMessages()
}

// exchanges yields requests to the broker with their answers.
func (p *player) exchanges(yield func(ask, answer *frameRecord) bool) {
	open := make(map[wireID]*frameRecord)
	for _, l := range p.lines {
		id := wireID{l.Conn + l.Peer, l.Opaque}
		switch {
		case l.Dir == "c2s" && (l.Kind == "request" || l.Kind == "oneway"):
			open[id] = l
		case l.Dir == "s2c" && l.Kind == "response" && open[id] != nil:
			ask := open[id]
			delete(open, id)
			if !yield(ask, l) {
				return
			}
		}
	}
}

func topicOf(ask *frameRecord) string {
	for _, name := range []string{"topic", "b"} {
		if v, ok := ask.ext.Get(name); ok {
			return v
		}
	}
	return ""
}

// prepareTopics makes the topics that were there before anybody made them.
func (p *player) prepareTopics() {
	decided := make(map[string]bool)
	decide := func(c remoting.TopicConfig, exists bool) {
		if c.TopicName == "" || decided[c.TopicName] {
			return
		}
		decided[c.TopicName] = true
		if !exists || p.b.topics.IsSystem(c.TopicName) || strings.HasPrefix(c.TopicName, retryPrefix) && !p.mqadmin() {
			return
		}
		if c.TopicFilterType == "" {
			c.TopicFilterType = remoting.FilterTypeSingle
		}
		c.Attributes = nil
		if _, err := p.b.topics.Update(c); err != nil {
			p.t.Fatal(err)
		}
	}
	for ask, answer := range p.exchanges {
		text, _ := answer.content(p.t)
		switch {
		case ask.Code == remoting.ReqUpdateAndCreateTopic, ask.Code == remoting.ReqDeleteTopicInBroker:
			decided[topicOf(ask)] = decided[topicOf(ask)] || ask.Code == remoting.ReqUpdateAndCreateTopic
		case ask.Code == remoting.ReqGetTopicConfig && answer.Code == 0:
			var c remoting.TopicConfig
			if err := remoting.DecodeBody(text, &c); err != nil {
				p.t.Fatalf("%s: %v", answer.where, err)
			}
			decide(c, true)
		case ask.Code == remoting.ReqGetRouteInfoByTopic:
			c := remoting.TopicConfig{TopicName: topicOf(ask)}
			if answer.Code == 0 {
				var route remoting.TopicRouteData
				if err := remoting.DecodeBody(text, &route); err != nil {
					p.t.Fatalf("%s: %v", answer.where, err)
				}
				q := route.QueueDatas[0]
				c.ReadQueueNums, c.WriteQueueNums, c.Perm, c.TopicSysFlag = q.ReadQueueNums, q.WriteQueueNums, q.Perm, q.TopicSysFlag
			}
			decide(c, answer.Code == 0)
		}
	}
	// Those whose route nobody asked for.
	for ask, answer := range p.exchanges {
		if ask.ofBroker() && answer.Code != remoting.CodeTopicNotExist && answer.Code != remoting.CodeInvalidParameter && metadata.ValidTopic(topicOf(ask)) == nil {
			decide(remoting.TopicConfig{TopicName: topicOf(ask), ReadQueueNums: 4, WriteQueueNums: 4, Perm: 6}, ask.Code != remoting.ReqGetTopicConfig || answer.Code == 0)
		}
	}
}

func (p *player) mqadmin() bool {
	return strings.HasPrefix(p.scenario, "mqadmin") || strings.HasPrefix(p.scenario, "admincalls")
}

// prepareOffsets commits what groups had committed before.
func (p *player) prepareOffsets() {
	type groupQueue struct {
		group string
		queueKey
	}
	known := make(map[groupQueue]bool)
	for ask, answer := range p.exchanges {
		group := ask.ext.Value("consumerGroup")
		if group != "" && metadata.ValidGroup(group) == nil && answer.Code != remoting.CodeSubscriptionGroupNotExist {
			p.b.groups.Find(group, true)
		}
		if g := ask.ext.Value("group"); ask.Code == remoting.ReqInvokeBrokerToResetOffset && g != "" {
			p.b.groups.Find(g, true)
		}
		k := groupQueue{group, queueKey{topicOf(ask), int32(intOf(ask.ext.Value("queueId")))}}
		switch {
		case known[k] || !ask.ofBroker() || k.queueID < 0:
		case ask.Code == remoting.ReqQueryConsumerOffset && answer.Code == 0:
			if off := intOf(answer.ext.Value("offset")); off > 0 && !p.committed(k.group, k.topic, ask) {
				p.b.offsets.Commit(k.group, k.topic, k.queueID, off)
			}
			known[k] = true
		}
	}
}

// committed reports whether the group commits offsets in the topic before l.
func (p *player) committed(group, topic string, l *frameRecord) bool {
	for _, c := range p.lines {
		if c == l {
			return false
		}
		if c.Dir == "c2s" && (c.Code == remoting.ReqUpdateConsumerOffset || c.Code == remoting.ReqPullMessage) &&
			c.ext.Value("consumerGroup") == group && c.ext.Value("topic") == topic && intOf(c.ext.Value("commitOffset")) > 0 {
			return true
		}
	}
	return false
}

// prepareMembers connects the clients that tools looked at.
func (p *player) prepareMembers() {
	// Those that the recording shows being asked have their connections in it.
	asked := make(map[string]string) // client id → connection; "": one whose id the request does not have
	for _, l := range p.lines {
		if l.Dir == "s2c" && l.Kind == "request" && l.ofBroker() {
			asked[l.ext.Value("clientId")] = l.Conn
		}
	}
	beat := func(c remoting.Connection, hb *remoting.Heartbeat) {
		conn := asked[c.ClientID]
		if conn == "" {
			conn = asked[""]
		}
		if conn == "" {
			conn = "made up " + c.ClientID
		}
		hb.ClientID = c.ClientID
		req := remoting.NewRequest(remoting.ReqHeartBeat, nil)
		req.Language, req.Version, req.Opaque, req.Body = c.Language, c.Version, -1, remoting.EncodeBody(hb)
		frame, err := remoting.AppendFrame(nil, req)
		if err != nil {
			p.t.Fatal(err)
		}
		w := p.wire(conn)
		if _, err := w.nc.Write(frame); err != nil {
			p.t.Fatal(err)
		}
		if a := within(func() *remoting.Command { return w.answer(-1) }); a == nil || a.Code != 0 {
			p.t.Fatalf("heartbeat of %s: %v", c.ClientID, a)
		}
	}
	if !p.mqadmin() {
		return
	}
	done := make(map[string]bool)
	for ask, answer := range p.exchanges {
		if answer.Code != 0 || !ask.ofBroker() {
			continue
		}
		text, whole := answer.content(p.t)
		group := ask.ext.Value("consumerGroup") + ask.ext.Value("producerGroup") + ask.ext.Value("group")
		if done[group] || !whole {
			continue
		}
		switch ask.Code {
		case remoting.ReqQueryConsumeQueue, remoting.ReqQuerySubscriptionByConsumer:
			var s struct {
				SubscriptionData *struct{ SubString string }
			}
			if json.Unmarshal(text, &s) != nil || s.SubscriptionData == nil {
				continue
			}
			beat(remoting.Connection{ClientID: "c", Version: 493}, &remoting.Heartbeat{Consumers: []remoting.ConsumerData{{
				GroupName: group, Type: remoting.ConsumePassively, Model: remoting.Clustering,
				Subscriptions: []remoting.Subscription{{Topic: topicOf(ask), SubString: s.SubscriptionData.SubString, SubVersion: 1}},
			}}})
		case remoting.ReqGetConsumerConnectionList:
			var b remoting.ConsumerConnection
			if err := remoting.DecodeBody(text, &b); err != nil {
				p.t.Fatal(err)
			}
			for _, c := range b.Connections {
				beat(c, &remoting.Heartbeat{Consumers: []remoting.ConsumerData{{
					GroupName: group, Type: b.Type, Model: b.Model, From: b.From,
					Subscriptions: slices.Collect(maps.Values(b.SubscriptionTable)),
				}}})
			}
		case remoting.ReqGetProducerConnectionList:
			var b remoting.ProducerConnection
			if err := remoting.DecodeBody(text, &b); err != nil {
				p.t.Fatal(err)
			}
			for _, c := range b.Connections {
				beat(c, &remoting.Heartbeat{Producers: []remoting.ProducerData{{GroupName: group}}})
			}
		case remoting.ReqGetConsumerRunningInfo, remoting.ReqInvokeBrokerToGetConsumerStatus, remoting.ReqConsumeMessageDirectly:
			id := ask.ext.Value("clientId") + ask.ext.Value("clientAddr")
			if id == "" {
				var status remoting.ConsumerStatus
				if err := remoting.DecodeBody(text, &status); err != nil {
					p.t.Fatal(err)
				}
				for id = range status.ConsumerTable {
				}
			}
			if slices.Contains(p.b.clients.Members.ClientIDs(group), id) {
				continue
			}
			topic := "T"
			if v := ask.ext.Value("topic"); v != "" {
				topic = v
			}
			beat(remoting.Connection{ClientID: id, Version: 493}, &remoting.Heartbeat{Consumers: []remoting.ConsumerData{{
				GroupName: group, Type: remoting.ConsumePassively, Model: remoting.Clustering,
				Subscriptions: []remoting.Subscription{{Topic: topic, SubString: "*", SubVersion: 1}},
			}}})
			continue
		case remoting.ReqViewBrokerStatsData:
			if _, g, ok := strings.Cut(ask.ext.Value("statsKey"), "@"); ok {
				p.b.groups.Find(g, true)
			}
			p.b.stats.topic(ask.ext.Value("statsKey")).puts.add(1)
			topic, group, _ := strings.Cut(ask.ext.Value("statsKey"), "@")
			p.b.stats.group(group, topic).gets.add(1)
			continue
		default:
			continue
		}
		done[group] = true
	}
}

// prepareMessages stores what was stored before: as many messages as the ends of
// queues show, with the recorded content where an answer has it.
func (p *player) prepareMessages() {
	known := make(map[queueKey]map[int64]*message.Ext)
	base := make(map[queueKey]int64)
	sent := make(map[queueKey]int64)
	before := make(map[*frameRecord]int64) // messages sent to the queue before a send
	open := make(map[wireID]*frameRecord)
	note := func(data []byte) {
		for _, m := range wholeRecords(data) {
			k := queueKey{m.Topic, m.QueueID}
			if known[k] == nil {
				known[k] = make(map[int64]*message.Ext)
			}
			if known[k][int64(m.QueueOffset)] == nil {
				known[k][int64(m.QueueOffset)] = &m
			}
			if p.mqadmin() && sent[k] == 0 { // tools look at what was there
				base[k] = max(base[k], int64(m.QueueOffset)+1)
			}
		}
	}
	end := func(topic string, queue string, n int64) {
		k := queueKey{topic, int32(intOf(queue))}
		if old, ok := base[k]; k.queueID >= 0 && n >= 0 && (!ok || p.mqadmin() && sent[k] == 0 && n > old) {
			base[k] = n - sent[k]
		}
	}
	for _, l := range p.lines {
		id := wireID{l.Conn, l.Opaque}
		text, _ := l.content(p.t)
		switch {
		case !l.ofBroker():
		case l.Dir == "c2s" && (l.Kind == "request" || l.Kind == "oneway"):
			open[id] = l
			switch l.Code {
			case remoting.ReqSendMessage, remoting.ReqSendMessageV2, remoting.ReqSendReplyMessage, remoting.ReqSendReplyMessageV2:
				props := l.ext.Value("i") + l.ext.Value("properties")
				if !strings.Contains(props, message.PropDelay+"\x01") && !strings.Contains(props, message.PropTransactionPrepared) {
					k := queueKey{topicOf(l), int32(intOf(l.ext.Value("e") + l.ext.Value("queueId")))}
					before[l] = sent[k]
					sent[k]++
				}
			case remoting.ReqSendBatchMessage:
				before[l] = sent[queueKey{topicOf(l), int32(intOf(l.ext.Value("e")))}]
				for range message.SplitBatch(text) {
					sent[queueKey{topicOf(l), int32(intOf(l.ext.Value("e")))}]++
				}
			}
		case l.Dir == "s2c" && l.Kind == "request":
			note(text)
		case l.Dir == "s2c" && l.Kind == "response" && open[id] != nil:
			ask := open[id]
			switch topic := topicOf(ask); ask.Code {
			case remoting.ReqSearchOffsetByTimestamp:
				if p.mqadmin() {
					end(topic, ask.ext.Value("queueId"), intOf(l.ext.Value("offset")))
				}
			case remoting.ReqGetMaxOffset:
				end(topic, ask.ext.Value("queueId"), intOf(l.ext.Value("offset")))
			case remoting.ReqPullMessage, remoting.ReqLitePullMessage:
				note(text)
				if !strings.HasPrefix(topic, retryPrefix) {
					end(topic, ask.ext.Value("queueId"), intOf(l.ext.Value("maxOffset")))
				}
			case remoting.ReqQueryConsumeQueue:
				var c remoting.QueueContent
				if remoting.DecodeBody(text, &c) == nil {
					end(topic, ask.ext.Value("queueId"), c.MaxQueueIndex)
				}
			case remoting.ReqViewMessageByID, remoting.ReqQueryMessage:
				note(text)
			case remoting.ReqSendMessage, remoting.ReqSendMessageV2, remoting.ReqSendBatchMessage, remoting.ReqSendReplyMessage, remoting.ReqSendReplyMessageV2:
				if n, ok := before[ask]; ok {
					k := queueKey{topic, int32(intOf(l.ext.Value("queueId")))}
					if _, ok := base[k]; !ok && l.ext.Value("queueOffset") != "" {
						base[k] = intOf(l.ext.Value("queueOffset")) - n
					}
				}
			}
		}
	}
	// In the order in which they were stored, for the sake of their times.
	var all []*message.Ext
	for k, n := range base {
		if _, ok := p.b.topics.Get(k.topic); !ok && p.mqadmin() && metadata.ValidTopic(k.topic) == nil {
			_, err := p.b.topics.Update(remoting.TopicConfig{TopicName: k.topic, ReadQueueNums: 8, WriteQueueNums: 8, Perm: 6, TopicFilterType: remoting.FilterTypeSingle})
			if err != nil {
				p.t.Fatal(err)
			}
		} else if !ok || n > 5000 {
			continue
		}
		last := int64(1)
		for at := range n {
			m := known[k][at]
			if m == nil {
				p.fillers[queueKey{k.topic, k.queueID}] = at + 1
				m = &message.Ext{
					Message:        message.Message{Topic: k.topic, QueueID: k.queueID, Body: bytes.Repeat([]byte{'f'}, 10)},
					PhysicalOffset: -1, StoreTimestamp: last, QueueOffset: message.QueueOffset(at),
				}
			}
			last = max(last, m.StoreTimestamp)
			m.StoreTimestamp = last
			all = append(all, m)
		}
	}
	slices.SortStableFunc(all, func(a, b *message.Ext) int {
		return cmp.Or(cmp.Compare(a.StoreTimestamp, b.StoreTimestamp), cmp.Compare(a.QueueOffset, b.QueueOffset))
	})
	for _, m := range all {
		p.clock.Store(m.StoreTimestamp)
		p.store(m)
	}
	p.clock.Store(0)
	synctest.Wait()
}

func (p *player) store(m *message.Ext) {
	c := m.Message
	c.StoreHost = p.b.storeHost
	res, err := p.b.store.Put(context.Background(), &c)
	if err != nil {
		p.t.Fatal(err)
	}
	if m.PhysicalOffset >= 0 {
		p.physical[int64(m.PhysicalOffset)] = int64(res.PhysicalOffset)
	}
}
