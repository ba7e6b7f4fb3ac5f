package broker

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// A difference is a way in which we are known to answer otherwise than the
// recorded broker. applies turns what was recorded into what we answer, and
// reports whether there was something to turn.
type difference struct {
	name, reason string
	applies      func(p *player, q *question, want, got *outcome) bool
}

// outcome is what of an answer is compared.
type outcome struct {
	silent bool
	code   int32
	fields remoting.Fields
	body   []byte
	whole  bool
}

func (p *player) compare(q *question, theirs *frameRecord, ours *remoting.Command) {
	want, got := &outcome{silent: theirs == nil}, &outcome{silent: ours == nil, whole: true}
	if theirs != nil {
		want.code, want.fields = theirs.Code, slices.Clone(theirs.ext)
		want.body, want.whole = theirs.content(p.t)
	}
	if ours != nil {
		got.code, got.fields, got.body = ours.Code, ours.Ext, ours.Body
	}
	p.seen.mu.Lock()
	p.seen.codes[q.ask.Code]++
	p.seen.mu.Unlock()
	for _, d := range differences {
		if d.applies(p, q, want, got) {
			p.seen.mu.Lock()
			p.seen.differences[d.name]++
			p.seen.mu.Unlock()
		}
	}
	what := fmt.Sprintf("%s: %s %v", q.ask.where, remoting.RequestName(q.ask.Code), q.sent.Ext)
	if want.silent != got.silent || want.code != got.code {
		remark := ""
		if ours != nil {
			remark = ours.Remark
		}
		p.t.Errorf("%s: answer %d (silent %v) %q, recorded %d (silent %v)", what, got.code, got.silent, remark, want.code, want.silent)
		return
	}
	p.compareFields(what, q, want, got)
	p.compareBody(what, q, want, got)
}

// volatile are fields whose values depend on time and place.
var volatile = map[string]bool{
	"msgId": true, "timestamp": true, "version": true, "indexLastUpdateTimestamp": true, "indexLastUpdatePhyoffset": true,
	"totalTopicNum": true, "totalGroupNum": true, "recallHandle": true, "transactionId": true,
}

func (p *player) compareFields(what string, q *question, want, got *outcome) {
	a, b := fieldNames(want.fields), fieldNames(got.fields)
	if !slices.Equal(a, b) {
		p.t.Errorf("%s: fields %v, recorded %v", what, b, a)
		return
	}
	for name, v := range want.fields.All() {
		if ours := got.fields.Value(name); ours != v && !volatile[name] {
			p.t.Errorf("%s: field %s=%s, recorded %s", what, name, ours, v)
		}
	}
}

func (p *player) compareBody(what string, q *question, want, got *outcome) {
	if len(want.body) == 0 != (len(got.body) == 0) {
		p.t.Errorf("%s: body of %d bytes, recorded %d", what, len(got.body), len(want.body))
		return
	}
	switch {
	case len(want.body) == 0:
	case !want.whole && want.body[0] == '{': // it cannot be parsed
	case want.body[0] == '{' || want.body[0] == '[':
		a, err := parseJSON(string(want.body))
		if err != nil {
			p.t.Errorf("%s: recorded: %v", what, err)
			return
		}
		b, err := parseJSON(string(got.body))
		if err != nil {
			p.t.Errorf("%s: ours: %v", what, err)
			return
		}
		for _, diff := range compareNodes(nil, "", a, b) {
			if !p.knownBody(q.ask.Code, diff) {
				p.t.Errorf("%s: body: %s", what, diff)
			}
		}
	case q.ask.Code == remoting.ReqGetBrokerConfig: // its own comparison
	default:
		p.compareRecords(what, want.body, got.body)
	}
}

// bodyDifferences are members of bodies that we do not have, or upstream has not.
var bodyDifferences = []struct {
	name, reason string
	code         int32 // 0: any
	old          bool  // only where 4.9.4 was recorded
	diff         *regexp.Regexp
}{
	{"members of 5.x", "4.9.4 has fewer", 0, true, regexp.MustCompile(` is new$`)},
	{"levels", "the broker that was recorded had delivered messages of these levels before", 28, false, regexp.MustCompile(`^\.table\.scheduleMessageOffset_\d+ is missing$`)},
	{"name of a directory", "it is part of a member's name", 28, false, regexp.MustCompile(`^\.table\.commitLogDiskRatio_/.* is (new|missing)$`)},
	{"names of 4.x", "tools of both versions get what they look for", 28, false, regexp.MustCompile(`^\.table\.(getTransferedTps|brokerVersion) is new$`)},
	{"static topics, all", "there are none, and clients do without the members", 21, false, regexp.MustCompile(`^\.(topicQueueMapping\w+|mappingDataVersion) is missing$`)},
	{"times as text", "upstream's beans have them by accident; tools make their own", 303, false, regexp.MustCompile(`TimeStampStr is missing$`)},
}

func (p *player) knownBody(code int32, diff string) bool {
	for _, d := range bodyDifferences {
		if (d.code == 0 || d.code == code) && (p.old || !d.old) && d.diff.MatchString(diff) {
			p.seen.mu.Lock()
			p.seen.differences[d.name]++
			p.seen.mu.Unlock()
			return true
		}
	}
	return false
}

// compareNodes lists how two JSON values differ: in members, kinds and values
// that do not depend on time or on what was there before.
func compareNodes(diffs []string, at string, want, got *node) []string {
	switch {
	case want.members != nil && got.members != nil:
		for name, w := range want.members {
			if g := got.members[name]; g != nil {
				diffs = compareNodes(diffs, at+"."+name, w, g)
			} else if name != "*" {
				diffs = append(diffs, at+"."+name+" is missing")
			}
		}
		for name := range got.members {
			if want.members[name] == nil && name != "*" {
				diffs = append(diffs, at+"."+name+" is new")
			}
		}
		return diffs
	case want.isList && got.isList:
		if len(want.items) > 0 && len(got.items) > 0 {
			return compareNodes(diffs, at+"[0]", want.items[0], got.items[0])
		}
		return diffs
	case kindOf(want) != kindOf(got):
		return append(diffs, fmt.Sprintf("%s is a %s (%s), recorded a %s (%s)", at, kindOf(got), got.scalar, kindOf(want), want.scalar))
	}
	return diffs
}

func kindOf(n *node) string {
	switch {
	case n.members != nil:
		return "object"
	case n.isList:
		return "list"
	case n.scalar[0] == '"':
		return "text"
	case n.scalar == "true", n.scalar == "false":
		return "boolean"
	case n.scalar == "null":
		return "null"
	}
	return "number"
}

// laterProperties are those whose values, or presence, depend on the version of
// the broker or on the time.
var laterProperties = []string{"MSG_REGION", "TRACE_ON", "CLUSTER", "UNIQ_KEY", "ORIGIN_MESSAGE_ID", "PUSH_REPLY_TIME", propFirst, message.PropRealTopic, message.PropRealQueueID, "1ST_POP_TIME", propCheckTimes, propTransactionID}

// compareRecords compares messages, those apart that stand for unknown ones.
func (p *player) compareRecords(what string, want, got []byte) {
	a, b := wholeRecords(want), wholeRecords(got)
	if len(b) < len(a) {
		p.t.Errorf("%s: %d messages, recorded %d", what, len(b), len(a))
		return
	}
	for i := range a {
		w, g := &a[i], &b[i]
		if int64(g.QueueOffset) < p.fillers[queueKey{g.Topic, g.QueueID}] {
			continue
		}
		key := func(m *message.Ext) string {
			props := m.Properties.Map()
			if props[message.PropWait] == "true" { // the default: 4.9.4 does not store it
				delete(props, message.PropWait)
			}
			for _, name := range laterProperties {
				delete(props, name)
			}
			body := m.Body
			if isRetryTopic(m.Topic) { // several come back at about the same time, in any order
				delete(props, message.PropKeys)
				return fmt.Sprintf("%s/%d@%d reconsumed %d properties %v", m.Topic, m.QueueID, m.QueueOffset, m.ReconsumeTimes, props)
			}
			return fmt.Sprintf("%s/%d@%d flag %d sysFlag %#x reconsumed %d born %d body %d %.40q properties %v",
				m.Topic, m.QueueID, m.QueueOffset, m.Flag, m.SysFlag, m.ReconsumeTimes, m.BornTimestamp, len(body), body, props)
		}
		if x, y := key(w), key(g); x != y {
			p.t.Errorf("%s: message %d:\n ours     %s\n recorded %s", what, i, y, x)
		}
	}
}

// upstreamOnly are requests for what this broker does not do: it says so, by code
// 3, where upstream does it or has other words.
var upstreamOnly = map[int32]bool{
	50: true, 51: true, 52: true, 53: true, 54: true, // access control of 4.x
	353: true, 354: true, 370: true, 400: true, 401: true, 513: true, 907: true, 908: true, 1007: true,
	2001: true, 2002: true, 2003: true, 2004: true, // cold data
	3001: true, 3002: true, 3003: true, 3004: true, 3005: true, 3006: true, 3007: true, 3008: true, 3009: true, 3010: true, // access control of 5.x
	5001: true, 200050: true, 200051: true, 200053: true, 200056: true, // timer engine, pop
}

func isSend(code int32) bool {
	return code == remoting.ReqSendMessage || code == remoting.ReqSendMessageV2 || code == remoting.ReqSendBatchMessage
}

func isPull(code int32) bool {
	return code == remoting.ReqPullMessage || code == remoting.ReqLitePullMessage
}

// unanswered reports whether a message for a topic had been sent when the
// recorded broker had not answered it.
func (p *player) unanswered(topic string) bool {
	for _, q := range p.asked {
		if isSend(q.ask.Code) && topicOf(q.ask) == topic && !q.compared {
			return true
		}
	}
	return false
}

// become makes the recorded outcome ours.
func (o *outcome) become(got *outcome) bool {
	*o = *got
	return true
}

var differences = []difference{
	{"not supported", "ACLs, pop, static topics, replication, cold data: answered with code 3",
		func(_ *player, q *question, want, got *outcome) bool {
			return upstreamOnly[q.ask.Code] && got.code == remoting.CodeRequestCodeNotSupported && want.become(got)
		}},
	{"static topics", "there are none: a topic that is asked for by name is an ordinary one",
		func(p *player, q *question, want, got *outcome) bool {
			return q.ask.Code == remoting.ReqGetTopicConfig && strings.Contains(p.scenario, "tatic") && want.become(got)
		}},
	{"timers", "delays of any length are refused with 1, as by a broker without timers",
		func(p *player, q *question, want, got *outcome) bool {
			if !strings.Contains(p.scenario, "producer-timer") {
				return false
			}
			if isSend(q.ask.Code) && strings.Contains(q.ask.ext.Value("i"), "TIMER_") && got.code == remoting.CodeSystemError {
				return want.become(got)
			}
			return isPull(q.ask.Code) && want.code == 0 && got.code == remoting.CodePullNotFound && want.become(got) // they never come
		}},
	{"empty queue, 4.9.4", "code 14 for a queue without messages: 4.9.4 says 0, we say 22 as 5.4.0",
		func(p *player, q *question, want, got *outcome) bool {
			return p.old && q.ask.Code == remoting.ReqQueryConsumerOffset && want.fields.Value("offset") == "0" &&
				got.code == remoting.CodeQueryNotFound && want.become(got)
		}},
	{"fields of 5.x", "4.9.4 has fewer fields and members in its answers",
		func(p *player, q *question, want, got *outcome) bool {
			if !p.old {
				return false
			}
			added := false
			for _, name := range []string{"transactionId", "topicSysFlag", "groupSysFlag", "IS_SUPPORT_HEART_BEAT_V2", "IS_SUB_CHANGE", "totalTopicNum", "totalGroupNum"} {
				if v, ok := got.fields.Get(name); ok && want.code == got.code {
					want.fields.Set(name, v)
					added = true
				}
			}
			return added
		}},
	{"29 for 1", "names and queue ids that cannot be: 4.9.4 says 1, we say 29 as 5.4.0",
		func(p *player, _ *question, want, got *outcome) bool {
			return p.old && want.code == remoting.CodeSystemError && got.code == remoting.CodeInvalidParameter && want.become(got)
		}},
	{"reset on the server", "4.9.4 can only tell consumers that are online (206 if none is)",
		func(p *player, q *question, want, got *outcome) bool {
			return p.old && q.ask.Code == remoting.ReqInvokeBrokerToResetOffset && want.code == remoting.CodeConsumerNotOnline && got.code == 0 && want.become(got)
		}},
	{"nearest in time, 4.9.4", "code 29: 4.9.4 answers the nearest message, we the next one as 5.4.0",
		func(p *player, q *question, want, got *outcome) bool {
			if !p.old || q.ask.Code != remoting.ReqSearchOffsetByTimestamp || want.fields.Value("offset") == got.fields.Value("offset") {
				return false
			}
			return want.become(got)
		}},
	{"age of the subscription", "code 25 or not: heartbeat and pull were on their way at the same time, and Java handled them in another order",
		func(_ *player, q *question, want, got *outcome) bool {
			return isPull(q.ask.Code) && want.code != got.code && (want.code == remoting.CodeSubscriptionNotLatest || got.code == remoting.CodeSubscriptionNotLatest) && want.become(got)
		}},
	{"on its way", "a message was on its way, or a delay was over, at about the same time",
		func(p *player, q *question, want, got *outcome) bool {
			if want.code != 0 || got.code != 0 {
				return false
			}
			topic := topicOf(q.ask)
			switch {
			case q.ask.Code == remoting.ReqGetMaxOffset && intOf(got.fields.Value("offset")) == intOf(want.fields.Value("offset"))+1 && p.unanswered(topic):
				want.fields.Set("offset", got.fields.Value("offset"))
				return true
			case isPull(q.ask.Code) && strings.HasPrefix(topic, "%") && want.fields.Value("maxOffset") != got.fields.Value("maxOffset"):
				return want.become(got)
			}
			return false
		}},
	{"length of a hold", "a hold ends when its time is over; Java looks every 5 s, and a message that comes in between is the answer",
		func(_ *player, q *question, want, got *outcome) bool {
			return isPull(q.ask.Code) && want.code == 0 && got.code == remoting.CodePullNotFound && want.become(got)
		}},
	{"half queue", "the queue offset of half messages, and of delayed ones in their queue, depends on what else was there",
		func(_ *player, q *question, want, got *outcome) bool {
			props := q.sent.Ext.Value("i") + q.sent.Ext.Value("properties")
			if !isSend(q.ask.Code) || !strings.Contains(props, message.PropTransactionPrepared) && !strings.Contains(props, message.PropDelay+"\x01") {
				return false
			}
			want.fields.Set("queueOffset", got.fields.Value("queueOffset"))
			return true
		}},
	{"reply without a body", "client-go forgets it; Java fails with 1, we pass it on (and nobody takes it in the recording)",
		func(_ *player, q *question, want, got *outcome) bool {
			return (q.ask.Code == remoting.ReqSendReplyMessage || q.ask.Code == remoting.ReqSendReplyMessageV2) && len(q.sent.Body) == 0 && want.code == 1 && want.become(got)
		}},
}
