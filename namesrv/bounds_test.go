package namesrv

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/remoting"
)

func TestBounds(t *testing.T) {
	tight := bounds{
		brokers: 2, members: 3, membersPerBroker: 2, topics: 3, queues: 5, queueNums: 16, filterServers: 1,
		mappingBytes: 30, cachedBytes: 1 << 20,
	}
	master := brokerA()
	named := func(name string, port int) brokerSpec {
		return brokerSpec{cluster: "C", name: name, addr: fmt.Sprintf("127.0.0.1:%d", port), version: 1, topics: twoTopics()}
	}
	mapping := func(topic string, n int) func(*registration) {
		return func(r *registration) { r.mappings = map[string][]byte{topic: []byte(strings.Repeat("1", n))} }
	}
	for _, tc := range []struct {
		name  string
		steps []step
		last  brokerSpec
		by    func(*registration)
		err   string
		want  counts
	}{
		{"a third broker", []step{reg(master), reg(named("b", 1))}, named("c", 2), nil, "2 brokers", counts{1, 2, 2, 2, 4}},
		{"a broker that is known", []step{reg(master), reg(named("b", 1))}, named("b", 3), nil, "", counts{1, 2, 2, 2, 4}},
		{"a third member", []step{reg(master), reg(master.at(1, "127.0.0.1:1"))}, master.at(2, "127.0.0.1:2"), nil, "2 members", counts{1, 1, 2, 2, 2}},
		{"a fourth member of all", []step{reg(master), reg(master.at(1, "127.0.0.1:1")), reg(named("b", 2))}, named("b", 3).at(1, "127.0.0.1:4"), nil, "3 members", counts{1, 2, 3, 2, 4}},
		{"a fourth topic", []step{reg(master.having(1, twoTopics("T1", "T2", "T3")...))}, master.having(2, twoTopics("T4", "T5")...), nil, "", counts{1, 1, 1, 3, 3}},
		{"a sixth queue", []step{reg(master.having(1, twoTopics("T1", "T2", "T3")...))}, named("b", 1).having(1, twoTopics("T1", "T2", "T3")...), nil, "", counts{1, 2, 2, 3, 5}},
		{"a mapping that fits", []step{reg(master)}, master.having(2), mapping("T1", 30), "", counts{1, 1, 1, 2, 2}},
		{"a mapping that does not", []step{reg(master)}, master.having(2), mapping("T1", 31), "", counts{1, 1, 1, 2, 2}},
		{"a mapping of a topic unknown", []step{reg(master)}, master.having(2), mapping("T9", 1), "", counts{1, 1, 1, 2, 2}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			tt := newTableTest(t, tight)
			for _, s := range tc.steps {
				s(tt)
			}
			var change []func(*registration)
			if tc.by != nil {
				change = append(change, tc.by)
			}
			_, err := tt.register(tc.last, change...)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("error %v, want %q", err, tc.err)
			}
			if got := tt.counts(); got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
			if tt.mu.mappingBytes > tight.mappingBytes {
				t.Errorf("%d bytes of mappings", tt.mu.mappingBytes)
			}
			checkInvariants(t, tt.routeTable)
		})
	}
}

func TestRegisterTopicNoRoom(t *testing.T) {
	b := defaultBounds
	b.topics = 2
	tt := newTableTest(t, b)
	reg(brokerA())(tt)
	if tt.registerTopic("T9", []remoting.QueueData{{BrokerName: "broker-a"}}) {
		t.Error("a topic beyond the bound was registered")
	}
	if !tt.registerTopic("T1", []remoting.QueueData{{BrokerName: "broker-a", Perm: 2}}) {
		t.Error("a topic that is known was refused")
	}
	checkInvariants(t, tt.routeTable)
}

func TestCheckName(t *testing.T) {
	for _, tc := range []struct {
		name, in string
		ok       bool
	}{
		{"plain", "broker-a", true},
		{"percent and underscore", "%RETRY%group_1", true},
		{"other scripts", "主题", true},
		{"blank inside", "has space", true},
		{"longest", strings.Repeat("x", 255), true},
		{"empty", "", false},
		{"too long", strings.Repeat("x", 256), false},
		{"line feed", "a\nb", false},
		{"escape", "a\x1b[31m", false},
		{"zero", "a\x00", false},
		{"C1 control", "a\u0085b", false},
		{"not UTF-8", "a\xff", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := checkName("topic", tc.in, maxTopicLen); (err == nil) != tc.ok {
				t.Errorf("%q: %v", tc.in, err)
			}
		})
	}
}

func TestCheckAddr(t *testing.T) {
	for _, tc := range []struct {
		in string
		ok bool
	}{
		{"127.0.0.1:10911", true},
		{"broker-a.example.com:1", true},
		{"[::1]:65535", true},
		{"2001:db8::1:10911", true}, // as Java writes it
		{"[fe80::1%eth0]:10911", true},
		{"", false},
		{":10911", false},
		{"127.0.0.1", false},
		{"127.0.0.1:", false},
		{"127.0.0.1:0", false},
		{"127.0.0.1:65536", false},
		{"127.0.0.1:-1", false},
		{"127.0.0.1:1x", false},
		{"a,b:1", false},
		{"a b:1", false},
		{"a\n:1", false},
		{`a":1`, false},
		{"ü:1", false},
		{strings.Repeat("x", 400) + ":1", false},
	} {
		t.Run(tc.in, func(t *testing.T) {
			if err := checkAddr("addr", tc.in); (err == nil) != tc.ok {
				t.Errorf("%v", err)
			}
		})
	}
}

func TestNewRegistration(t *testing.T) {
	good := remoting.RegisterBrokerRequest{
		BrokerIdentity: remoting.BrokerIdentity{BrokerName: "b", BrokerAddr: "127.0.0.1:1", ClusterName: "C"},
		HAServerAddr:   "127.0.0.1:2",
	}
	body := func(topics ...remoting.TopicConfig) *remoting.RegisterBroker {
		return &remoting.RegisterBroker{Topics: topicTable(brokerSpec{topics: topics})}
	}
	withMappings := func(infos string) *remoting.RegisterBroker {
		b := body(twoTopics()...)
		b.Topics.MappingInfos = remoting.RawJSON(infos)
		return b
	}
	withServers := func(servers ...string) *remoting.RegisterBroker {
		b := body(twoTopics()...)
		b.FilterServers = servers
		return b
	}
	for _, tc := range []struct {
		name    string
		header  func(*remoting.RegisterBrokerRequest)
		zone    string
		body    *remoting.RegisterBroker
		topics  int
		refused string
		err     string
	}{
		{name: "good", body: body(twoTopics()...), topics: 2},
		{name: "no body", topics: 0},
		{name: "no HA address", header: func(h *remoting.RegisterBrokerRequest) { h.HAServerAddr = "" }, body: body(twoTopics()...), topics: 2},
		{name: "no cluster", header: func(h *remoting.RegisterBrokerRequest) { h.ClusterName = "" }, err: "clusterName is empty"},
		{name: "broker with line feed", header: func(h *remoting.RegisterBrokerRequest) { h.BrokerName = "a\n" }, err: "control characters"},
		{name: "address without port", header: func(h *remoting.RegisterBrokerRequest) { h.BrokerAddr = "localhost" }, err: "not host:port"},
		{name: "HA address without port", header: func(h *remoting.RegisterBrokerRequest) { h.HAServerAddr = "localhost" }, err: "haServerAddr"},
		{name: "negative id", header: func(h *remoting.RegisterBrokerRequest) { h.BrokerID = -1 }, err: "brokerId is negative"},
		{name: "long zone", zone: strings.Repeat("z", 256), err: "zone of 256 bytes"},
		{name: "one topic with a bad name", body: body(append(twoTopics(), topicConfig("a\x07", 1, 6))...), topics: 2, refused: "control characters"},
		{name: "one topic without name", body: body(append(twoTopics(), topicConfig("", 1, 6))...), topics: 2, refused: "empty"},
		{name: "one topic with too many queues", body: body(append(twoTopics(), topicConfig("T3", 1<<30, 6))...), topics: 2, refused: "1073741824 queues"},
		{name: "one topic with less than none", body: body(append(twoTopics(), topicConfig("T3", -1, 6))...), topics: 2, refused: "-1 queues"},
		{name: "mappings", body: withMappings(`{"T1":{"bname":"b","currIdMap":{0:1}}}`), topics: 2},
		{name: "mappings of another broker", body: withMappings(`{"T1":{"bname":"c"}}`), topics: 2, refused: "not of this broker"},
		{name: "mappings that are a list", body: withMappings(`[1]`), topics: 2, refused: "queue mappings"},
		{name: "filter server that is none", body: withServers("x"), topics: 2, refused: "filter server"},
		{name: "many filter servers", body: withServers(make([]string, 65)...), topics: 2, refused: "65 filter servers"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := good
			if tc.header != nil {
				tc.header(&h)
			}
			req := remoting.NewRequest(remoting.ReqRegisterBroker, &h)
			if tc.zone != "" {
				req.Ext.Set(zoneField, tc.zone)
			}
			if tc.body != nil {
				req.Body = remoting.EncodeBody(tc.body)
			}
			r, refused, err := newRegistration(&h, req, defaultBounds)
			if !matches(err, tc.err) || !matches(refused, tc.refused) {
				t.Fatalf("error %v, want %q; refused %v, want %q", err, tc.err, refused, tc.refused)
			}
			if err == nil && len(r.topics) != tc.topics {
				t.Errorf("%d topics, want %d", len(r.topics), tc.topics)
			}
		})
	}
}

// matches reports whether err has a text, or is nil if that is "".
func matches(err error, text string) bool {
	if text == "" {
		return err == nil
	}
	return err != nil && strings.Contains(err.Error(), text)
}

func TestRegistrationForms(t *testing.T) {
	body := &remoting.RegisterBroker{Topics: topicTable(brokerSpec{version: 7, topics: twoTopics()})}
	body.Topics.MappingInfos = remoting.RawJSON(`{"T1":{"bname":"b", "currIdMap":{0:1}, "topic":"T1"}}`)
	compressed, err := body.EncodeCompressed()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"T1", "T2"}
	for _, tc := range []struct {
		name       string
		version    int32
		data       []byte
		compressed bool
	}{
		{"plain", remoting.CurrentVersion, remoting.EncodeBody(body), false},
		{"compressed", remoting.CurrentVersion, compressed, true},
		{"before 3.0.11", remoting.Version3_0_11 - 1, remoting.EncodeBody(&body.Topics), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := &remoting.RegisterBrokerRequest{
				BrokerIdentity: remoting.BrokerIdentity{BrokerName: "b", BrokerAddr: "127.0.0.1:1", ClusterName: "C"},
				Compressed:     tc.compressed,
			}
			req := remoting.NewRequest(remoting.ReqRegisterBroker, h)
			req.Version, req.Body = tc.version, tc.data
			r, refused, err := newRegistration(h, req, defaultBounds)
			if err != nil || refused != nil {
				t.Fatal(err, refused)
			}
			tt := newTableTest(t, defaultBounds)
			if _, err := tt.routeTable.register(r); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, tt.topicNames(everyTopic)); diff != "" {
				t.Errorf("topics (-want +got):\n%s", diff)
			}
			if got := string(r.mappings["T1"]); got != `{"bname":"b","currIdMap":{"0":1},"topic":"T1"}` {
				t.Errorf("mapping %s", got)
			}
			if r.version.Counter != 7 {
				t.Errorf("version %+v", r.version)
			}
		})
	}
}

func TestBrokerTimeout(t *testing.T) {
	for _, tc := range []struct {
		millis int64
		want   time.Duration
	}{
		{0, 120 * time.Second},
		{-5, 120 * time.Second},
		{10_000, 10 * time.Second},
		{1 << 62, 24 * time.Hour},
	} {
		if got := brokerTimeout(tc.millis); got != tc.want {
			t.Errorf("%d ms: %v, want %v", tc.millis, got, tc.want)
		}
	}
}
