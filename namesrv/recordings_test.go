package namesrv

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/remoting"
)

// A frameRecord is one line of a recording; testdata/wire/README.md describes it.
type frameRecord struct {
	where string // file:line

	Conn      string          `json:"conn"`
	Peer      string          `json:"peer"`
	Dir       string          `json:"dir"`
	Kind      string          `json:"kind"`
	Code      int32           `json:"code"`
	Opaque    int32           `json:"opaque"`
	Version   int32           `json:"version"`
	Remark    string          `json:"remark"`
	ExtFields map[string]any  `json:"extFields"`
	Body      json.RawMessage `json:"body"`
	BodyText  *string         `json:"bodyText"`
	Truncated bool            `json:"truncated"`
	Raw       string          `json:"raw"`
}

// text is the body, of which long ones that are not JSON lack the end.
func (r *frameRecord) text() []byte {
	switch {
	case r.BodyText != nil:
		return []byte(*r.BodyText)
	case len(r.Body) == 0 || r.Body[0] != '{':
		return nil
	}
	var out bytes.Buffer
	if json.Compact(&out, r.Body) != nil {
		return nil
	}
	return out.Bytes()
}

// An exchange is a request to the name server with its answer; nil is none.
type exchange struct{ ask, answer *frameRecord }

// loadExchanges returns what a recording has of the name server, in the order
// in which it was answered.
func loadExchanges(t *testing.T, file string) []*exchange {
	t.Helper()
	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	var all []*exchange
	type key struct {
		conn   string
		opaque int32
	}
	open := make(map[key]*exchange)
	s := bufio.NewScanner(z)
	s.Buffer(nil, 64<<20)
	for n := 1; s.Scan(); n++ {
		if !bytes.Contains(s.Bytes(), []byte(`"peer":"namesrv"`)) { // cheaper than decoding it
			continue
		}
		r := &frameRecord{where: fmt.Sprintf("%s:%d", strings.TrimSuffix(filepath.Base(file), ".ndjson.gz"), n)}
		if err := json.Unmarshal(s.Bytes(), r); err != nil {
			t.Fatalf("%s: %v", r.where, err)
		}
		if r.Peer != "namesrv" {
			continue
		}
		k := key{r.Conn, r.Opaque}
		switch {
		case r.Dir == "c2s" && (r.Kind == "request" || r.Kind == "oneway"):
			e := &exchange{ask: r}
			all, open[k] = append(all, e), e
		case r.Dir == "s2c" && r.Kind == "response" && open[k] != nil:
			e := open[k]
			e.answer = r
			delete(open, k)
			i := slices.Index(all, e)
			all = append(slices.Delete(all, i, i+1), e)
		}
	}
	if err := s.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}

// An answer is what of an answer is compared.
type answer struct {
	Code   int32
	Remark string
	Ext    map[string]string
	Body   any
}

func recordedAnswer(t *testing.T, r *frameRecord) answer {
	a := answer{Code: r.Code, Remark: r.Remark, Ext: map[string]string{}, Body: bodyValue(t, r.text())}
	for k, v := range r.ExtFields {
		a.Ext[k] = fmt.Sprint(v)
	}
	return a
}

func ourAnswer(t *testing.T, c *remoting.Command) answer {
	a := answer{Code: c.Code, Remark: c.Remark, Ext: map[string]string{}, Body: bodyValue(t, c.Body)}
	maps.Insert(a.Ext, c.Ext.All())
	return a
}

// bodyValue decodes JSON, with or without quotes around integer keys. Other text
// stays as it is. The order of a list of topics says nothing.
func bodyValue(t *testing.T, data []byte) any {
	t.Helper()
	if len(data) == 0 || data[0] != '{' {
		return string(data)
	}
	var v map[string]any
	if err := javajson.Unmarshal(data, &v); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
	if list, ok := v["topicList"].([]any); ok {
		slices.SortFunc(list, func(a, b any) int { return strings.Compare(a.(string), b.(string)) })
	}
	return v
}

// A difference is a way in which we are known to answer otherwise than the
// recorded server. adapt turns what was recorded into what we answer; it
// reports whether there was something to turn.
type difference struct {
	name, reason string
	adapt        func(ask *frameRecord, want *answer, got answer) bool
	used         bool
}

func knownDifferences() []*difference {
	return []*difference{
		{name: "link to a FAQ", reason: "a page of upstream's project, which differs between its versions",
			adapt: func(ask *frameRecord, want *answer, _ answer) bool {
				i := strings.Index(want.Remark, "\nSee http")
				if i >= 0 {
					want.Remark = want.Remark[:i]
				}
				return i >= 0
			}},
		{name: "topic missing", reason: "upstream looks for the topic null; we name the field",
			adapt: func(ask *frameRecord, want *answer, _ answer) bool {
				if ask.Code != remoting.ReqGetRouteInfoByTopic || ask.ExtFields["topic"] != nil {
					return false
				}
				want.Code, want.Remark = remoting.CodeSystemError, "ext field topic is missing"
				return true
			}},
		{name: "unknown code unanswered", reason: "4.9.4 says nothing; 5.4.0 answers 3",
			adapt: func(ask *frameRecord, want *answer, _ answer) bool {
				if want.Code != noAnswer {
					return false
				}
				*want = answer{Code: remoting.CodeRequestCodeNotSupported, Remark: fmt.Sprintf(" request type %d not supported", ask.Code), Ext: map[string]string{}, Body: ""}
				return true
			}},
		{name: "no enableActingMaster", reason: "4.9.4 has no acting masters; 5.4.0 always writes the member",
			adapt: func(_ *frameRecord, want *answer, _ answer) bool { return addActingMaster(want.Body) }},
		{name: "other properties", reason: "most of upstream's configure its network library; ours are a part of 5.4.0's, with the same defaults",
			adapt: func(ask *frameRecord, want *answer, got answer) bool {
				if ask.Code != remoting.ReqGetNamesrvConfig {
					return false
				}
				want.Body = commonProperties(want.Body.(string), got.Body.(string))
				return true
			}},
	}
}

const noAnswer = -1

func addActingMaster(body any) bool {
	added := false
	add := func(broker any) {
		if b := broker.(map[string]any); b["enableActingMaster"] == nil {
			b["enableActingMaster"], added = false, true
		}
	}
	v, _ := body.(map[string]any)
	if list, ok := v["brokerDatas"].([]any); ok {
		for _, b := range list {
			add(b)
		}
	}
	if table, ok := v["brokerAddrTable"].(map[string]any); ok {
		for _, b := range table {
			add(b)
		}
	}
	return added
}

// commonProperties returns our properties with the values that upstream has for
// them, apart from those that belong to the place where the server ran.
func commonProperties(want, got string) string {
	theirs, err := remoting.ParseProperties([]byte(want))
	if err != nil {
		return err.Error()
	}
	ours, err := remoting.ParseProperties([]byte(got))
	if err != nil {
		return err.Error()
	}
	for i := range ours {
		switch ours[i].Name {
		case "kvConfigPath", "listenPort", "bindAddress", "deleteTopicWithBrokerRegistration":
			continue
		}
		if v, ok := theirs.Get(ours[i].Name); ok {
			ours[i].Value = v
		}
	}
	return string(remoting.AppendProperties(nil, ours))
}

// TestRecordings replays what was sent to name servers of 4.9.4 and 5.4.0 and
// compares the answers with theirs.
func TestRecordings(t *testing.T) {
	files, err := filepath.Glob("../testdata/wire/*.ndjson.gz")
	if err != nil {
		t.Fatal(err)
	}
	more, err := filepath.Glob("../testdata/wire/mqadmin/*.ndjson.gz")
	if err != nil {
		t.Fatal(err)
	}
	known := knownDifferences()
	byCode := make(map[int32]int)
	for _, file := range append(files, more...) {
		exchanges := loadExchanges(t, file)
		if len(exchanges) == 0 {
			continue
		}
		t.Run(strings.TrimSuffix(filepath.Base(file), ".ndjson.gz"), func(t *testing.T) {
			r := newReplay(t, exchanges)
			if !strings.Contains(file, "registration") { // there the broker registers itself
				r.infer = true
				r.register()
			}
			for _, e := range exchanges {
				r.play(e, known)
				byCode[e.ask.Code]++
			}
			checkInvariants(t, r.srv.routes)
		})
	}
	for _, d := range known {
		if !d.used {
			t.Errorf("no recording shows the difference %q (%s)", d.name, d.reason)
		}
	}
	t.Logf("requests replayed by code: %v", byCode)
	for _, code := range []int32{100, 101, 102, 103, 104, 105, 106, 205, 206, 216, 219, 224, 318, 319, 322, 327} {
		if byCode[code] == 0 {
			t.Errorf("no request with code %d: recordings are missing", code)
		}
	}
}

// A replay brings a server into the state that the recorded one must have been
// in, by registering and by KV config, and then sends what was recorded.
type replay struct {
	*testClient
	infer  bool // register what the answers show
	broker brokerSpec
	topics map[string]remoting.TopicConfig
	conns  map[string]net.Conn
}

func newReplay(t *testing.T, exchanges []*exchange) *replay {
	r := &replay{
		testClient: startTest(t, Options{DeleteTopicWithBrokerRegistration: true}),
		broker:     brokerSpec{cluster: "DefaultCluster", name: "broker-a", addr: "127.0.0.1:10911"},
		topics:     make(map[string]remoting.TopicConfig),
		conns:      make(map[string]net.Conn),
	}
	// The topics of every broker; which others there are the answers tell.
	for _, name := range []string{"TBW102", "BenchmarkTest"} {
		r.topics[name] = topicConfig(name, 8, 7)
	}
	for _, e := range exchanges {
		var b remoting.BrokerData
		switch {
		case e.answer == nil || e.answer.Code != 0:
		case e.ask.Code == remoting.ReqGetRouteInfoByTopic:
			var route remoting.TopicRouteData
			r.decode(e.answer.text(), &route)
			b = route.BrokerDatas[0]
		case e.ask.Code == remoting.ReqGetBrokerClusterInfo:
			var info remoting.ClusterInfo
			r.decode(e.answer.text(), &info)
			b = info.BrokerAddrTable[r.broker.name]
		}
		if len(b.BrokerAddrs) > 0 {
			r.broker.addr, r.broker.acting = b.BrokerAddrs[0], b.EnableActingMaster
			break
		}
	}
	t.Cleanup(func() {
		for _, nc := range r.conns {
			nc.Close() //nolint:errcheck // the end
		}
	})
	return r
}

// register registers the broker with its topics of now.
func (r *replay) register() {
	r.t.Helper()
	r.broker.version++
	r.broker.topics = slices.Collect(maps.Values(r.topics))
	if err := r.testClient.register(r.broker).Err(); err != nil {
		r.t.Fatal(err)
	}
}

// play prepares for a request, sends it and compares the answer.
func (r *replay) play(e *exchange, known []*difference) {
	t := r.t.(*testing.T)
	t.Helper()
	if e.answer != nil {
		r.prepare(e)
	}
	got := r.send(e.ask)
	if got == nil { // oneway
		return
	}
	want := answer{Code: noAnswer}
	if e.answer != nil {
		want = recordedAnswer(t, e.answer)
	}
	ours := ourAnswer(t, got)
	for _, d := range known {
		d.used = d.adapt(e.ask, &want, ours) || d.used
	}
	if diff := cmp.Diff(want, ours); diff != "" {
		t.Errorf("%s: %s %v: answer (-recorded +ours):\n%s", e.ask.where, remoting.RequestName(e.ask.Code), e.ask.ExtFields, diff)
	}
}

// prepare does what must have happened before the recorded answer, apart from
// what the recording has itself.
func (r *replay) prepare(e *exchange) {
	r.t.Helper()
	text := e.answer.text()
	ext := func(name string) string { s, _ := e.ask.ExtFields[name].(string); return s }
	switch e.ask.Code {
	case remoting.ReqGetRouteInfoByTopic:
		if !r.infer {
			return
		}
		if e.answer.Code == 0 {
			r.alignRoute(ext("topic"), text)
		} else if _, ok := r.topics[ext("topic")]; ok {
			delete(r.topics, ext("topic"))
			r.register()
		}
	case remoting.ReqGetAllTopicListFromNameServer, remoting.ReqGetTopicsByCluster:
		var list remoting.TopicList
		r.decode(text, &list)
		r.alignTopics(list.TopicList)
	case remoting.ReqWipeWritePermOfBroker, remoting.ReqAddWritePermOfBroker:
		var n int
		for _, v := range e.answer.ExtFields {
			fmt.Sscan(v.(string), &n) //nolint:errcheck // then the answer differs
		}
		names := slices.Sorted(maps.Keys(r.topics))
		for i := 0; len(names) < n; i++ {
			names = append(names, fmt.Sprintf("T_unknown_%d", i))
		}
		r.alignTopics(names)
	case remoting.ReqGetKVConfig:
		if v, ok := e.answer.ExtFields["value"].(string); ok {
			r.ok(remoting.ReqPutKVConfig, &remoting.PutKVRequest{Namespace: ext("namespace"), Key: ext("key"), Value: v}, nil)
		}
	case remoting.ReqRegisterBroker:
		var table remoting.KVTable
		r.decode(text, &table)
		for k, v := range table.Table {
			r.ok(remoting.ReqPutKVConfig, &remoting.PutKVRequest{Namespace: orderNamespace, Key: k, Value: v}, nil)
		}
	}
}

func (r *replay) decode(text []byte, b remoting.Body) {
	r.t.Helper()
	if err := remoting.DecodeBody(text, b); err != nil {
		r.t.Fatal(err)
	}
}

// alignRoute gives the broker what it must have registered of a topic.
func (r *replay) alignRoute(topic string, text []byte) {
	r.t.Helper()
	var route remoting.TopicRouteData
	r.decode(text, &route)
	q := route.QueueDatas[0]
	c := remoting.TopicConfig{
		TopicName: topic, ReadQueueNums: q.ReadQueueNums, WriteQueueNums: q.WriteQueueNums,
		Perm: q.Perm, TopicSysFlag: q.TopicSysFlag, TopicFilterType: remoting.FilterTypeSingle,
	}
	if !cmp.Equal(r.topics[topic], c) {
		r.topics[topic] = c
		r.register()
	}
	if route.TopicQueueMappingByBroker != nil {
		r.registerStatic(topic, route.TopicQueueMappingByBroker)
	}
}

// registerStatic registers the mapping of a static topic, integer keys without
// quotes as upstream writes them.
func (r *replay) registerStatic(topic string, byBroker []byte) {
	r.t.Helper()
	var mappings map[string]json.RawMessage
	if err := json.Unmarshal(byBroker, &mappings); err != nil {
		r.t.Fatal(err)
	}
	bare := regexp.MustCompile(`"(\d+)":`).ReplaceAll(mappings[r.broker.name], []byte("$1:"))
	r.broker.version++
	body := &remoting.RegisterBroker{Topics: topicTable(r.broker)}
	body.Topics.MappingInfos = slices.Concat([]byte(`{"`+topic+`":`), bare, []byte("}"))
	r.ok(remoting.ReqRegisterBroker, &remoting.RegisterBrokerRequest{
		BrokerIdentity: remoting.BrokerIdentity{BrokerName: r.broker.name, BrokerAddr: r.broker.addr, ClusterName: r.broker.cluster},
	}, remoting.EncodeBody(body))
}

// alignTopics gives the broker exactly these topics.
func (r *replay) alignTopics(names []string) {
	r.t.Helper()
	topics := make(map[string]remoting.TopicConfig, len(names))
	for _, name := range names {
		c, ok := r.topics[name]
		if !ok {
			c = topicConfig(name, 4, 6)
		}
		topics[name] = c
	}
	r.topics = topics
	r.register()
}

// send sends a recorded request over a connection of its own for each recorded
// one, and returns the answer, nil for a oneway request.
func (r *replay) send(ask *frameRecord) *remoting.Command {
	t := r.t
	t.Helper()
	nc := r.conns[ask.Conn]
	if nc == nil {
		var err error
		if nc, err = net.Dial("tcp", r.addr); err != nil {
			t.Fatal(err)
		}
		r.conns[ask.Conn] = nc
	}
	if _, err := nc.Write(frameOf(t, ask)); err != nil {
		t.Fatal(err)
	}
	if ask.Kind == "oneway" {
		return nil
	}
	for {
		head := make([]byte, 4)
		if _, err := io.ReadFull(nc, head); err != nil {
			t.Fatalf("%s: %v", ask.where, err)
		}
		frame := append(head, make([]byte, binary.BigEndian.Uint32(head))...)
		if _, err := io.ReadFull(nc, frame[4:]); err != nil {
			t.Fatalf("%s: %v", ask.where, err)
		}
		c, _, err := remoting.DecodeFrame(frame)
		if err != nil {
			t.Fatalf("%s: %v", ask.where, err)
		}
		if c.Opaque == ask.Opaque {
			return c
		}
	}
}

// frameOf returns the frame as it was sent. Long ones were not kept as bytes and
// are made again; of a registration that was cut the topics are those before the
// cut.
func frameOf(t testing.TB, r *frameRecord) []byte {
	t.Helper()
	if r.Raw != "" {
		b, err := hex.DecodeString(r.Raw)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	c := &remoting.Command{Code: r.Code, Opaque: r.Opaque, Version: r.Version, Ext: remoting.Fields{}, Body: r.text()}
	for k, v := range r.ExtFields {
		c.Ext.Set(k, fmt.Sprint(v))
	}
	if r.Truncated {
		c.Body = mendRegistration(t, string(c.Body))
		c.Ext.Set("bodyCrc32", fmt.Sprint(remoting.BodyCRC(c.Body)))
	}
	b, err := remoting.AppendFrame(nil, c)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

var wholeTopic = regexp.MustCompile(`"writeQueueNums":\d+\}`)

// mendRegistration closes a registration body behind the last whole topic, and
// adds the topic by which members learn of each other.
func mendRegistration(t testing.TB, text string) []byte {
	t.Helper()
	ends := wholeTopic.FindAllStringIndex(text, -1)
	if len(ends) == 0 {
		t.Fatalf("no topic in %s", text)
	}
	const member = `,"rmq_sys_SYNC_BROKER_MEMBER_broker-a":{"order":false,"perm":1,"readQueueNums":1,"topicFilterType":"SINGLE_TAG",` +
		`"topicName":"rmq_sys_SYNC_BROKER_MEMBER_broker-a","topicSysFlag":0,"writeQueueNums":1}`
	body := []byte(text[:ends[len(ends)-1][1]] + member + "}}}")
	if _, err := remoting.DecodeRegisterBroker(body, false, remoting.CurrentVersion); err != nil {
		t.Fatalf("mended registration: %v", err)
	}
	return body
}
