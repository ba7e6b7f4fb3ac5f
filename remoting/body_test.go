package remoting

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"sort"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// requestBodies and responseBodies have the JSON body of each command, by
// request code.
var requestBodies = map[int32]func() Body{
	ReqUpdateAndCreateTopicList:         func() Body { return new(TopicConfigList) },
	ReqHeartBeat:                        func() Body { return new(Heartbeat) },
	ReqLockBatchMQ:                      func() Body { return new(LockBatch) },
	ReqUnlockBatchMQ:                    func() Body { return new(LockBatch) },
	ReqCheckClientConfig:                func() Body { return new(CheckClient) },
	ReqRegisterBroker:                   func() Body { return new(RegisterBroker) },
	ReqUpdateAndCreateSubscriptionGroup: func() Body { return new(GroupConfig) },
	ReqUpdateSubscriptionGroupList:      func() Body { return new(GroupConfigList) },
	ReqRegisterTopicInNamesrv:           func() Body { return new(TopicRouteData) },
	ReqResetConsumerClientOffset:        func() Body { return new(ResetOffset) },
	ReqQueryDataVersion:                 func() Body { return new(DataVersion) },
	ReqQueryAssignment:                  func() Body { return new(QueryAssignment) },
	ReqSetMessageRequestMode:            func() Body { return new(RequestMode) },
}

var responseBodies = map[int32]func() Body{
	ReqGetAllTopicConfig:               func() Body { return new(TopicConfigTable) },
	ReqGetBrokerRuntimeInfo:            func() Body { return new(KVTable) },
	ReqGetConsumerListByGroup:          func() Body { return new(ConsumerList) },
	ReqLockBatchMQ:                     func() Body { return new(LockBatchResult) },
	ReqGetAllConsumerOffset:            func() Body { return new(ConsumerOffsets) },
	ReqGetAllDelayOffset:               func() Body { return new(DelayOffsets) },
	ReqRegisterBroker:                  func() Body { return new(KVTable) },
	ReqGetRouteInfoByTopic:             func() Body { return new(TopicRouteData) },
	ReqGetBrokerClusterInfo:            func() Body { return new(ClusterInfo) },
	ReqGetAllSubscriptionGroupConfig:   func() Body { return new(GroupConfigTable) },
	ReqGetTopicStatsInfo:               func() Body { return new(TopicStats) },
	ReqGetConsumerConnectionList:       func() Body { return new(ConsumerConnection) },
	ReqGetProducerConnectionList:       func() Body { return new(ProducerConnection) },
	ReqGetAllTopicListFromNameServer:   func() Body { return new(TopicList) },
	ReqGetConsumeStats:                 func() Body { return new(ConsumeStats) },
	ReqGetKVListByNamespace:            func() Body { return new(KVTable) },
	ReqGetConsumerStatusFromClient:     func() Body { return new(ConsumerStatus) },
	ReqInvokeBrokerToResetOffset:       func() Body { return new(ResetOffset) },
	ReqInvokeBrokerToGetConsumerStatus: func() Body { return new(ConsumerStatus) },
	ReqGetTopicsByCluster:              func() Body { return new(TopicList) },
	ReqQueryTopicConsumeByWho:          func() Body { return new(GroupList) },
	ReqQueryConsumeTimeSpan:            func() Body { return new(TimeSpans) },
	ReqGetSystemTopicListFromNS:        func() Body { return new(TopicList) },
	ReqGetSystemTopicListFromBroker:    func() Body { return new(TopicList) },
	ReqGetConsumerRunningInfo:          func() Body { return new(ConsumerRunningInfo) },
	ReqQueryCorrectionOffset:           func() Body { return new(CorrectionOffsets) },
	ReqConsumeMessageDirectly:          func() Body { return new(ConsumeDirectlyResult) },
	ReqViewBrokerStatsData:             func() Body { return new(StatsData) },
	ReqGetBrokerConsumeStats:           func() Body { return new(BrokerConsumeStats) },
	ReqQueryConsumeQueue:               func() Body { return new(QueueContent) },
	ReqQueryDataVersion:                func() Body { return new(DataVersion) },
	ReqGetAllProducerInfo:              func() Body { return new(ProducerTable) },
	ReqQueryTopicsByConsumer:           func() Body { return new(TopicList) },
	ReqQuerySubscriptionByConsumer:     func() Body { return new(SubscriptionAnswer) },
	ReqGetTopicConfig:                  func() Body { return new(TopicConfig) },
	ReqGetSubscriptionGroupConfig:      func() Body { return new(GroupConfig) },
	ReqUpdateAndGetGroupForbidden:      func() Body { return new(GroupForbidden) },
	ReqQueryAssignment:                 func() Body { return new(Assignments) },
}

// bodyOf returns an empty body for a recorded frame, nil if it has none of
// JSON.
func bodyOf(r *frameRecord) Body {
	table, code := requestBodies, r.Code
	if r.Kind == "response" {
		if r.ReqCode == nil || r.Code != CodeSuccess {
			return nil
		}
		table, code = responseBodies, *r.ReqCode
	}
	if r.BodyLen == 0 || table[code] == nil {
		return nil
	}
	return table[code]()
}

// TestRecordedBodies decodes every recorded JSON body and encodes it again:
// everything recorded has to be there with the same value, and what was not
// recorded (older versions have fewer members) may only have its default.
func TestRecordedBodies(t *testing.T) {
	seen := make(map[string]int)
	for _, r := range loadRecordings(t) {
		b := bodyOf(r)
		data := r.body(t)
		if b == nil || data == nil || string(data) == "{oops" {
			continue
		}
		name := fmt.Sprintf("%T", b)
		seen[name]++
		if err := DecodeBody(data, b); err != nil {
			t.Errorf("%s:%d: %s: %v\n%s", r.file, r.line, name, err, data)
			continue
		}
		again := EncodeBody(b)
		if bytes.ContainsAny(again, " \n") && !bytes.ContainsAny(data, " \n") {
			t.Errorf("%s:%d: %s is not compact: %s", r.file, r.line, name, again)
		}
		want, err := tree(data)
		if err != nil {
			t.Fatal(err)
		}
		got, err := tree(again)
		if err != nil {
			t.Errorf("%s:%d: %s: encoded %s: %v", r.file, r.line, name, again, err)
			continue
		}
		for _, diff := range missing("", want, got) {
			t.Errorf("%s:%d: %s%s", r.file, r.line, name, diff)
		}
		b2 := reflect.New(reflect.TypeOf(b).Elem()).Interface().(Body)
		if err := DecodeBody(again, b2); err != nil {
			t.Errorf("%s:%d: %s: decode again: %v", r.file, r.line, name, err)
		} else if diff := cmp.Diff(b, b2, cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s:%d: %s decoded again differs (-first +second):\n%s", r.file, r.line, name, diff)
		}
	}
	var names []string
	for name, n := range seen {
		names = append(names, fmt.Sprintf("%s %d", strings.TrimPrefix(name, "*remoting."), n))
	}
	sort.Strings(names)
	t.Logf("%d kinds of bodies: %s", len(names), strings.Join(names, ", "))
	if len(names) < 32 {
		t.Errorf("%d kinds of bodies in the recordings, want at least 32", len(names))
	}
}

// tree reads JSON in fastjson's dialect. Keys of maps that are objects are
// their text.
func tree(b []byte) (any, error) {
	end, err := valueEnd(b, 0, 0)
	if err == nil {
		err = atEnd(b, end)
	}
	if err != nil {
		return nil, err
	}
	switch b[0] {
	case '{':
		m := make(map[string]any)
		_, err := eachMember(b, 0, 0, func(name, value []byte) error {
			v, err := tree(value)
			key := string(name)
			if name[0] == '"' {
				key, _ = readText(name) //nolint:errcheck // checked by valueEnd
			}
			m[key] = v
			return err
		})
		return m, err
	case '[':
		l := []any{}
		_, err := eachElement(b, 0, 0, func(value []byte) error {
			v, err := tree(value)
			l = append(l, v)
			return err
		})
		return l, err
	case '"':
		return readText(b)
	}
	return json.Number(b[:end]), nil
}

// derived are members that upstream computes from others while writing.
var derived = map[string]bool{"consumeTimeStampStr": true, "maxTimeStampStr": true, "minTimeStampStr": true, "mappingDetail": true}

// defaults are members of newer versions whose default is not zero.
var defaults = map[string]any{"consumeTimeoutMinute": json.Number("15"), "expressionType": "TAG"}

// missing says what of want is not in got, and what got has besides.
func missing(path string, want, got any) (diffs []string) {
	switch want := want.(type) {
	case map[string]any:
		g, ok := got.(map[string]any)
		if !ok {
			return []string{fmt.Sprintf("%s: %v instead of an object", path, got)}
		}
		for name, v := range want {
			if e, ok := g[name]; ok {
				diffs = append(diffs, missing(path+"."+name, v, e)...)
			} else if !derived[name] && v != json.Number("null") {
				diffs = append(diffs, fmt.Sprintf("%s.%s is missing", path, name))
			}
		}
		for name, v := range g {
			if _, ok := want[name]; !ok && !isDefault(name, v) {
				diffs = append(diffs, fmt.Sprintf("%s.%s is %v and was not recorded", path, name, v))
			}
		}
	case []any:
		g, ok := got.([]any)
		if !ok || len(g) != len(want) {
			return []string{fmt.Sprintf("%s: %v instead of %v", path, got, want)}
		}
		for i := range want {
			diffs = append(diffs, missing(fmt.Sprintf("%s[%d]", path, i), want[i], g[i])...)
		}
	case json.Number:
		if sameNumber(want, got) {
			return nil
		}
		return []string{fmt.Sprintf("%s: %v instead of %v", path, got, want)}
	default:
		if want != got && !(strings.Contains(path, ".codeSet[") && fmt.Sprint(want) == fmt.Sprint(got)) {
			return []string{fmt.Sprintf("%s: %v instead of %v", path, got, want)}
		}
	}
	return diffs
}

func sameNumber(want json.Number, got any) bool {
	g, ok := got.(json.Number)
	if !ok || want == g {
		return ok
	}
	if strings.Contains(string(want), ".") {
		w, err1 := want.Float64()
		f, err2 := g.Float64()
		return err1 == nil && err2 == nil && w == f
	}
	return false
}

func isDefault(name string, v any) bool {
	if v == defaults[name] {
		return true
	}
	switch v := v.(type) {
	case json.Number:
		return v == "0" || v == "false" || v == "0.0"
	case string:
		return v == ""
	case []any:
		return len(v) == 0
	case map[string]any:
		return len(v) == 0
	}
	return false
}

func TestBodyForms(t *testing.T) {
	queue := MessageQueue{Topic: "T", BrokerName: "b", QueueID: 0}
	for _, tt := range []struct {
		name string
		in   string
		want Body
		out  string // "" if it need not be looked at
	}{
		{
			name: "integer keys without quotes",
			in:   `{"brokerDatas":[{"brokerAddrs":{0:"x:1",3:"y:2"},"brokerName":"b","cluster":"c"}],"filterServerTable":{},"queueDatas":[]}`,
			want: &TopicRouteData{BrokerDatas: []BrokerData{{Cluster: "c", BrokerName: "b", BrokerAddrs: map[int64]string{0: "x:1", 3: "y:2"}}}},
			out:  `{"brokerDatas":[{"brokerAddrs":{"0":"x:1","3":"y:2"},"brokerName":"b","cluster":"c","enableActingMaster":false}],"filterServerTable":{},"queueDatas":[]}`,
		},
		{
			name: "integer keys in quotes",
			in:   `{"brokerDatas":[{"brokerAddrs":{"0":"x:1"},"brokerName":"b","cluster":"c"}]}`,
			want: &TopicRouteData{BrokerDatas: []BrokerData{{Cluster: "c", BrokerName: "b", BrokerAddrs: map[int64]string{0: "x:1"}}}},
		},
		{
			name: "queue as bare object",
			in:   `{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}`,
			want: &ResetOffset{OffsetTable: map[MessageQueue]int64{queue: 5}},
			out:  `{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}`,
		},
		{
			name: "queue in a string",
			in:   `{"offsetTable":{"{\"brokerName\":\"b\",\"queueId\":0,\"topic\":\"T\"}":5}}`,
			want: &ResetOffset{OffsetTable: map[MessageQueue]int64{queue: 5}},
		},
		{
			name: "list of pairs",
			in:   `{"offsetTable":[[{"brokerName":"b","queueId":0,"topic":"T"},5],[{"brokerName":"b","queueId":1,"topic":"T"},7]]}`,
			want: &ResetOffset{OffsetTable: map[MessageQueue]int64{queue: 5, {Topic: "T", BrokerName: "b", QueueID: 1}: 7}},
		},
		{
			name: "list with offsets, for C++",
			in:   `{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"T"}]}`,
			want: &ResetOffset{OffsetTable: map[MessageQueue]int64{queue: 5}},
		},
		{
			name: "C++ heartbeat: ordinals, numbers in strings, members left out, newline",
			in: `{"clientID":"x","consumerDataSet":[{"consumeFromWhere":0,"consumeType":1,"groupName":"g","messageModel":1,` +
				`"subscriptionDataSet":[{"codeSet":["97","-3"],"subString":"a","subVersion":"1700000000000000000","topic":"T"}]}]}` + "\n",
			want: &Heartbeat{ClientID: "x", Consumers: []ConsumerData{{
				GroupName: "g", Type: ConsumePassively, Model: Clustering, From: FromLastOffset,
				Subscriptions: []Subscription{{Topic: "T", SubString: "a", Codes: []int32{97, -3}, SubVersion: 1700000000000000000, ExpressionType: "TAG"}},
			}}},
		},
		{
			name: "enums that nobody knows, null, numbers as text",
			in:   `{"clientID":7,"consumerDataSet":[{"consumeType":"NOSUCH","groupName":null,"messageModel":99}],"producerDataSet":null}`,
			want: &Heartbeat{ClientID: "7", Consumers: []ConsumerData{{Type: -1, Model: -1, From: -1}}},
			out: `{"clientID":"7","consumerDataSet":[{"groupName":"","subscriptionDataSet":[],"unitMode":false}],` +
				`"heartbeatFingerprint":0,"producerDataSet":[],"withoutSub":false}`,
		},
		{
			name: "consume result by ordinal",
			in:   `{"autoCommit":true,"consumeResult":1,"order":"true","spentTimeMills":3}`,
			want: &ConsumeDirectlyResult{AutoCommit: true, Order: true, Result: ConsumedLater, SpentTimeMills: 3},
			out:  `{"autoCommit":true,"consumeResult":"CR_LATER","order":true,"spentTimeMills":3}`,
		},
		{
			name: "offsets by text and queue",
			in:   `{"offsetTable":{"T@G":{0:7,"1":8},"T2@G":{}}}`,
			want: &ConsumerOffsets{OffsetTable: map[string]map[int32]int64{"T@G": {0: 7, 1: 8}, "T2@G": nil}},
			out:  `{"offsetTable":{"T2@G":{},"T@G":{"0":7,"1":8}}}`,
		},
		{
			name: "double as Java writes it",
			in:   `{"consumeTps":0,"offsetTable":{}}`,
			want: &ConsumeStats{},
			out:  `{"consumeTps":0.0,"offsetTable":{}}`,
		},
		{
			name: "the last of two members counts, escapes in names",
			in:   `{"topicList":["a"],"topic\u004cist":["b"]}`,
			want: &TopicList{TopicList: []string{"b"}},
			out:  `{"topicList":["b"]}`,
		},
		{
			name: "escapes and characters",
			in:   `{"consumerIdList":["a\"\\\u0001\n\u00e4\ud83d\ude00","ä😀","\ud800x"]}`,
			want: &ConsumerList{ConsumerIDs: []string{"a\"\\\x01\nä😀", "ä😀", "?x"}},
			out:  `{"consumerIdList":["a\"\\\u0001\nä😀","ä😀","?x"]}`,
		},
		{
			name: "defaults of a group",
			in:   `{"groupName":"g"}`,
			want: new(NewGroupConfig("g")),
		},
		{
			name: "JSON that is passed on",
			in:   `{"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED","next":{1:[2,{}]}}}`,
			want: func() Body {
				g := NewGroupConfig("g")
				g.RetryPolicy = RawJSON(`{"type":"CUSTOMIZED","next":{1:[2,{}]}}`)
				return &g
			}(),
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := reflect.New(reflect.TypeOf(tt.want).Elem()).Interface().(Body)
			if err := DecodeBody([]byte(tt.in), got); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, got, cmpopts.EquateEmpty()); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			if out := string(EncodeBody(got)); tt.out != "" && out != tt.out {
				t.Errorf("encoded\n%s, want\n%s", out, tt.out)
			}
		})
	}
}

func TestResetOffsetList(t *testing.T) {
	b := ResetOffset{OffsetTable: map[MessageQueue]int64{{"T", "b", 1}: 7, {"T", "b", 0}: 5}}
	const want = `{"offsetTable":[{"brokerName":"b","offset":5,"queueId":0,"topic":"T"},{"brokerName":"b","offset":7,"queueId":1,"topic":"T"}]}`
	if got := string(b.EncodeList()); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if !json.Valid(b.EncodeList()) {
		t.Error("not JSON")
	}
}

func TestBodyErrors(t *testing.T) {
	deep := strings.Repeat("[", MaxNesting+1)
	many := strings.Repeat(`{},`, 10_000)
	for _, tt := range []struct {
		name string
		in   string
		body Body
		want string // part of the error
	}{
		{"empty", "", new(TopicList), "empty"},
		{"only white space", " \n", new(TopicList), "empty"},
		{"not JSON", "{oops", new(Heartbeat), "instead of a name"},
		{"cut", `{"topicList":["a"`, new(TopicList), "neither a comma"},
		{"string does not end", `{"topicList":["a]}`, new(TopicList), "does not end"},
		{"data behind", `{} {}`, new(TopicList), "behind the value"},
		{"not an object", `[]`, new(TopicList), "a list instead of an object"},
		{"wrong type of a list", `{"topicList":{}}`, new(TopicList), "topicList: an object instead of a list"},
		{"wrong type of an element", `{"topicList":[{}]}`, new(TopicList), "topicList: an object instead of text"},
		{"number out of range", `{"version":2147483648}`, new(Connection), "version"},
		{"number that is none", `{"counter":"x"}`, new(DataVersion), "counter"},
		{"integer key that is none", `{"brokerAddrs":{"x":"y"}}`, new(BrokerData), "brokerAddrs"},
		{"queue that is none", `{"offsetTable":{"x":1}}`, new(ResetOffset), "offsetTable"},
		{"queue as number", `{"offsetTable":{7:1}}`, new(ResetOffset), "offsetTable"},
		{"pair without a value", `{"offsetTable":[[{}]]}`, new(ResetOffset), "neither"},
		{"pair with too much", `{"offsetTable":[[{},1,2]]}`, new(ResetOffset), "more than"},
		{"unknown escape", `{"clientID":"\q"}`, new(Heartbeat), "escape"},
		{"deep, in a member that is skipped", `{"x":` + deep, new(TopicList), "levels"},
		{"deep objects", `{"x":` + strings.Repeat(`{"a":`, MaxNesting), new(TopicList), "levels"},
		{"deep object keys", `{"offsetTable":` + strings.Repeat(`{`, MaxNesting), new(ResetOffset), "levels"},
		{"too many elements", `{"consumerDataSet":[{"subscriptionDataSet":[` + many + `{}]}]}`, new(Heartbeat), "subscriptionDataSet: elements take"},
		{"too many members", `{` + strings.Repeat(`"a":1,`, MaxMembers) + `"b":2}`, new(TopicList), "members"},
		{"too many entries", `{"topicConfigTable":{` + strings.Repeat(`"":{},`, 10_000) + `"":{}}}`, new(TopicConfigTable), "topicConfigTable: elements take"},
		{"too many queues", `{"offsetTable":{` + strings.Repeat(`{}:0,`, 20_000) + `{}:0}}`, new(ResetOffset), "offsetTable: elements take"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := DecodeBody([]byte(tt.in), tt.body)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("got %v, want an error with %q", err, tt.want)
			}
		})
	}
	var j *JSONError
	if err := DecodeBody([]byte(`{"a"`), new(TopicList)); !errors.As(err, &j) {
		t.Errorf("%v is no JSONError", err)
	}
}

func TestRegisterBroker(t *testing.T) {
	b := RegisterBroker{
		FilterServers: []string{"f1"},
		Topics: TopicConfigTable{
			DataVersion: DataVersion{StateVersion: 1, Timestamp: 1795990027306, Counter: 7},
			Topics: map[string]TopicConfig{
				"T":          {TopicName: "T", ReadQueueNums: 4, WriteQueueNums: 8, Perm: 6, TopicFilterType: "SINGLE_TAG"},
				"%RETRY%G_ä": {TopicName: "%RETRY%G_ä", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 7, TopicFilterType: "MULTI_TAG", Attributes: map[string]string{"message.type": "a b"}},
			},
			MappingInfos: RawJSON(`{"T":{"bname":"b","currIdMap":{0:1},"topic":"T"}}`),
		},
	}
	data, err := b.EncodeCompressed()
	if err != nil {
		t.Fatal(err)
	}
	got, err := DecodeRegisterBroker(data, true, Version5_0_0)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&b, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("compressed (-want +got):\n%s", diff)
	}
	if got, err = DecodeRegisterBroker(EncodeBody(&b), false, Version5_0_0); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(&b, got, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("plain (-want +got):\n%s", diff)
	}
	if _, err := DecodeRegisterBroker(data[:len(data)-9], true, Version5_0_0); err == nil {
		t.Error("a cut stream was accepted")
	}
	if _, err := DecodeRegisterBroker([]byte("no zlib"), true, Version5_0_0); err == nil {
		t.Error("what is no stream was accepted")
	}
}

// TestRegistrationCRC recomputes the checksum of recorded registrations.
func TestRegistrationCRC(t *testing.T) {
	n := 0
	for _, r := range loadRecordings(t) {
		if r.Kind != "request" || r.Code != ReqRegisterBroker {
			continue
		}
		var h RegisterBrokerRequest
		if err := DecodeHeader(r.fields(t), &h); err != nil {
			t.Fatal(err)
		}
		body := r.body(t)
		if body == nil {
			continue // too long for the recorder
		}
		if len(body) != r.BodyLen {
			t.Errorf("%s:%d: body of %d bytes, recorded %d", r.file, r.line, len(body), r.BodyLen)
			continue
		}
		if got := BodyCRC(body); got != h.BodyCRC32 {
			t.Errorf("%s:%d: checksum %d, want %d", r.file, r.line, got, h.BodyCRC32)
		}
		n++
	}
	if n == 0 {
		t.Error("no registrations recorded")
	}
}

func TestProperties(t *testing.T) {
	in := "# comment\n! another\n\na=1\n b : 2\nc 3\nd\ne=\\u0041\\t\\\\x\\=y\nf=one \\\n   two\na=4\npath=C:\\\\x\r\nlast=x=y"
	want := Fields{{"a", "4"}, {"b", "2"}, {"c", "3"}, {"d", ""}, {"e", "A\t\\x=y"}, {"f", "one two"}, {"path", `C:\x`}, {"last", "x=y"}}
	got, err := ParseProperties([]byte(in))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := ParseProperties([]byte(strings.Repeat("a\n", maxProperties+1))); err == nil {
		t.Error("no bound")
	}
	const text = "a=1\nb=x y\n"
	got, err = ParseProperties([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if out := string(AppendProperties(nil, got)); out != text {
		t.Errorf("got %q, want %q", out, text)
	}
}

// TestRecordedProperties parses every recorded configuration.
func TestRecordedProperties(t *testing.T) {
	n := 0
	for _, r := range loadRecordings(t) {
		code := r.Code
		if r.ReqCode != nil {
			code = *r.ReqCode
		}
		if code != ReqGetBrokerConfig && code != ReqGetNamesrvConfig && code != ReqUpdateBrokerConfig && code != ReqUpdateNamesrvConfig {
			continue
		}
		body := r.body(t)
		if len(body) == 0 {
			continue
		}
		n++
		f, err := ParseProperties(body)
		if err != nil || len(f) != bytes.Count(bytes.TrimSpace(body), []byte("\n"))+1 {
			t.Errorf("%s:%d: %d properties, error %v, of\n%s", r.file, r.line, len(f), err, body)
		}
	}
	if n < 10 {
		t.Errorf("%d configurations recorded, want at least 10", n)
	}
}
