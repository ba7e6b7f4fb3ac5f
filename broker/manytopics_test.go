package broker

import (
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

// TestManyTopics: more topics than fit into a frame are registered, and listed
// for who asks for pages.
func TestManyTopics(t *testing.T) {
	const count = 50_000
	long := strings.Repeat("x", 100)
	var file strings.Builder
	file.WriteString(`{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":1700000000000},"topicConfigTable":{`)
	for i := range count {
		if i > 0 {
			file.WriteByte(',')
		}
		name := fmt.Sprintf("%s-%06d", long, i)
		fmt.Fprintf(&file, `%q:{"attributes":{},"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":%q,"topicSysFlag":0,"writeQueueNums":4}`, name, name)
	}
	file.WriteString("}}")
	mem := memfs.New()
	if err := mem.MkdirAll("/store/config"); err != nil {
		t.Fatal(err)
	}
	if err := vfs.WriteFileAtomic(mem, "/store/config/topics.json", []byte(file.String())); err != nil {
		t.Fatal(err)
	}
	names := startNames(t, "127.0.0.1:0").Addr().String()
	r := startRegistered(t, withNames(names), func(o *Options) { o.FS = mem })
	client := remoting.NewClient(remoting.ClientOptions{})
	defer client.Close() //nolint:errcheck // never fails
	last := fmt.Sprintf("%s-%06d", long, count-1)
	if got := route(t, client, names, last); got == nil || got.QueueDatas[0].ReadQueueNums != 4 || got.QueueDatas[0].Perm != 6 {
		t.Errorf("route of the last topic: %+v", got)
	}
	if got := route(t, client, names, metadata.TemplateTopic); got == nil || got.QueueDatas[0].Perm != 7 {
		t.Errorf("route of the template: %+v", got)
	}

	// As the Java client does, its end one short included.
	all := make(map[string]remoting.TopicConfig)
	h := remoting.AllTopicConfigRequest{MaxTopicNum: 20_000}
	for {
		resp := r.ok(remoting.ReqGetAllTopicConfig, &h, nil)
		table := body(t, resp, new(remoting.TopicConfigTable))
		maps.Copy(all, table.Topics)
		h.TopicSeq += int32(len(table.Topics))
		h.DataVersion = string(remoting.EncodeBody(&table.DataVersion))
		to := decode(t, resp, new(remoting.AllTopicConfigResponse))
		if len(table.Topics) == 0 || h.TopicSeq >= to.TotalTopicNum-1 {
			break
		}
	}
	if len(all) != r.b.topics.Len() || len(all) < count {
		t.Errorf("%d topics in pages, there are %d", len(all), r.b.topics.Len())
	}
}

// TestPage: where pages begin and end.
func TestPage(t *testing.T) {
	all := map[string]int{"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
	version := remoting.DataVersion{Timestamp: 7, Counter: 1}
	same := string(remoting.EncodeBody(&version))
	for _, tc := range []struct {
		asked      string
		from, most int32
		want       string
	}{
		{"", 0, 2, "map[a:1 b:2]"},
		{same, 2, 2, "map[c:3 d:4 e:5]"}, // or Java's client would leave out the last
		{same, 2, 1, "map[c:3]"},
		{same, 4, 2, "map[e:5]"},
		{same, 5, 2, "map[]"},
		{same, 1 << 30, 1, "map[]"},
		{same, -1, 1, "map[a:1]"},
		{`{"counter":2,"timestamp":7,"stateVersion":0}`, 2, 2, "map[a:1 b:2]"}, // changed meanwhile
		{"nonsense", 2, 2, "map[a:1 b:2]"},
		{"", 0, 4, "map[a:1 b:2 c:3 d:4 e:5]"},
		{"", 0, 1 << 30, "map[a:1 b:2 c:3 d:4 e:5]"},
	} {
		if got := fmt.Sprint(page(all, tc.asked, version, tc.from, tc.most)); got != tc.want {
			t.Errorf("%q from %d, %d: %s, want %s", tc.asked, tc.from, tc.most, got, tc.want)
		}
	}
}
