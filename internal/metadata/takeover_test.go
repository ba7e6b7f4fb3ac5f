package metadata

import (
	"bufio"
	"compress/gzip"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/sqlfilter"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

var goldenStores = []string{"4.9.4-broker-dir", "5.4.0-broker-dir", "5.4.0-filter-dir"}

// TestTakeover: what a genuine broker left is there, and still is in the file
// after a change and a Save.
func TestTakeover(t *testing.T) {
	files := []string{"topics.json", "subscriptionGroup.json", "consumerOffset.json", "consumerFilter.json"}
	for _, store := range goldenStores {
		t.Run(store, func(t *testing.T) {
			fsys := goldenConfig(t, store)
			before := make(map[string]map[string]any)
			for _, name := range files {
				before[name] = decode(t, readFile(t, fsys, name))
			}
			var l logs
			s, err := openAll(fsys, likeGenuine("GoldenCluster"), l.logger())
			if err != nil {
				t.Fatal(err)
			}
			if l.String() != "" {
				t.Errorf("warnings: %s", &l)
			}
			compareTopics(t, at(t, before["topics.json"], "topicConfigTable").(map[string]any), s.topics)
			compareGroups(t, at(t, before["subscriptionGroup.json"], "subscriptionGroupTable").(map[string]any), s.groups)
			compareOffsets(t, at(t, before["consumerOffset.json"], "offsetTable").(map[string]any), s.offsets)

			// Each has a change, so that each is written.
			if _, _, err := s.topics.CreateDLQ("g-new"); err != nil {
				t.Fatal(err)
			}
			s.groups.Find("g-new", true)
			s.offsets.Commit("g-new", "TopicTest", 0, 5)
			if err := s.filters.Register("g-new", []remoting.Subscription{{Topic: "TopicTest", SubString: "a = 1", ExpressionType: "SQL92"}}); err != nil {
				t.Fatal(err)
			}
			s.save(t)
			for _, name := range files {
				after := decode(t, readFile(t, fsys, name))
				except := []string{"groupTopicMap", "dataVersion/counter", "dataVersion/timestamp"}
				if l := lost(before[name], after, "", except...); len(l) > 0 {
					t.Errorf("%s lost:\n%s", name, strings.Join(l, "\n"))
				}
				if !strings.Contains(readFile(t, fsys, name), "g-new") {
					t.Errorf("%s has no change", name)
				}
				if readFile(t, fsys, name+".bak") == readFile(t, fsys, name) {
					t.Errorf("%s.bak is not the file of before", name)
				}
			}

			again, err := openAll(fsys, likeGenuine("GoldenCluster"), nil)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(s.topics.Table(), again.topics.Table()); d != "" {
				t.Errorf("topics (-saved +opened)\n%s", d)
			}
			if d := cmp.Diff(s.groups.Table(), again.groups.Table()); d != "" {
				t.Errorf("groups (-saved +opened)\n%s", d)
			}
			if d := cmp.Diff(s.offsets.Table(), again.offsets.Table()); d != "" {
				t.Errorf("offsets (-saved +opened)\n%s", d)
			}
		})
	}
}

func compareTopics(t *testing.T, want map[string]any, topics *Topics) {
	t.Helper()
	for name, entry := range want {
		got, ok := topics.Get(name)
		if !ok {
			t.Errorf("no topic %s", name)
			continue
		}
		if l := lost(entry, decode(t, string(remoting.EncodeBody(got))), ""); len(l) > 0 {
			t.Errorf("topic %s: %v", name, l)
		}
	}
	if len(want) < 10 {
		t.Errorf("only %d topics to compare", len(want))
	}
}

func compareGroups(t *testing.T, want map[string]any, groups *Groups) {
	t.Helper()
	for name, entry := range want {
		got, ok := groups.Get(name)
		if !ok {
			t.Errorf("no group %s", name)
			continue
		}
		if l := lost(entry, decode(t, string(remoting.EncodeBody(got))), ""); len(l) > 0 {
			t.Errorf("group %s: %v", name, l)
		}
	}
	if len(want) < 10 {
		t.Errorf("only %d groups to compare", len(want))
	}
}

func compareOffsets(t *testing.T, want map[string]any, offsets *Offsets) {
	t.Helper()
	n := 0
	for key, queues := range want {
		topic, group, _ := strings.Cut(key, "@")
		for id, text := range queues.(map[string]any) {
			queueID, _ := strconv.Atoi(id)
			got, ok := offsets.Query(group, topic, int32(queueID))
			if !ok || text.(json.Number).String() != strconv.FormatInt(got, 10) {
				t.Errorf("%s queue %s: got %d %t, want %s", key, id, got, ok, text)
			}
			n++
		}
		if !slices.Contains(offsets.Topics(group), topic) || !slices.Contains(offsets.Groups(topic), group) {
			t.Errorf("%s is in no listing", key)
		}
	}
	if n < 10 {
		t.Errorf("only %d offsets to compare", n)
	}
}

// TestTakeoverOfFilters: the filter that a Java broker saved is there, dead, and
// becomes alive with its old birth when the group comes back.
func TestTakeoverOfFilters(t *testing.T) {
	fsys := goldenConfig(t, "5.4.0-filter-dir")
	s, err := openAll(fsys, likeGenuine("GoldenCluster"), nil)
	if err != nil {
		t.Fatal(err)
	}
	const expression = "n between 5 and 12 and TAGS is not null"
	expr, err := sqlfilter.Compile(expression)
	if err != nil {
		t.Fatal(err)
	}
	want := &Filter{
		Topic: "TopicTest", Group: "cg_sql", Expression: expression, Type: "SQL92", Expr: expr,
		ClientVersion: 1795990498798, BornTime: 1795990498439, DeadTime: 1795990523510, Positions: []int{108, 92, 37},
	}
	got, ok := s.filters.Get("TopicTest", "cg_sql")
	opts := cmp.Options{cmp.AllowUnexported(Filter{}), cmp.Comparer(func(a, b *sqlfilter.Expr) bool { return a.String() == b.String() })}
	if d := cmp.Diff(want, got, opts); !ok || d != "" {
		t.Fatalf("(-want +got)\n%s", d)
	}
	if err := s.filters.Register("cg_sql", []remoting.Subscription{{Topic: "TopicTest", SubString: expression, ExpressionType: "SQL92", SubVersion: 1795990600000}}); err != nil {
		t.Fatal(err)
	}
	want.ClientVersion, want.DeadTime = 1795990600000, 0
	got, _ = s.filters.Get("TopicTest", "cg_sql")
	if d := cmp.Diff(want, got, opts); d != "" {
		t.Errorf("after the group came back (-want +got)\n%s", d)
	}
}

// wire calls fn with the frames of a recording that carry a body.
func wire(t *testing.T, name string, fn func(code, reqCode int, body string)) {
	t.Helper()
	f, err := os.Open(filepath.Join("..", "..", "testdata", "wire", name+".ndjson.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	zr, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	sc := bufio.NewScanner(zr)
	sc.Buffer(nil, 4<<20)
	for sc.Scan() {
		var frame struct {
			Code     int             `json:"code"`
			ReqCode  int             `json:"reqCode"`
			Body     json.RawMessage `json:"body"`
			BodyText string          `json:"bodyText"`
		}
		if err := json.Unmarshal(sc.Bytes(), &frame); err != nil {
			t.Fatal(err)
		}
		text := frame.BodyText
		if text == "" && len(frame.Body) > 0 && frame.Body[0] == '{' {
			text = string(frame.Body)
		}
		if text != "" {
			fn(frame.Code, frame.ReqCode, text)
		}
	}
	if err := sc.Err(); err != nil {
		t.Fatal(err)
	}
}

// TestBuiltInTopics: a new broker has the topics that a genuine one of 5.4.0
// with its defaults has, with the same configuration.
func TestBuiltInTopics(t *testing.T) {
	var file remoting.TopicConfigTable
	if err := remoting.DecodeBody([]byte(readFile(t, goldenConfig(t, "5.4.0-broker-dir"), "topics.json")), &file); err != nil {
		t.Fatal(err)
	}
	genuine := file.Topics
	fresh, err := OpenTopics(memfs.New(), configDir, likeGenuine("GoldenCluster"), nil)
	if err != nil {
		t.Fatal(err)
	}
	maps.DeleteFunc(genuine, func(name string, _ remoting.TopicConfig) bool {
		return !fresh.IsSystem(name) || strings.Contains(name, "ROCKSDB") // those are for transactions in RocksDB
	})
	if len(genuine) != 13 {
		t.Fatalf("%d system topics in the golden store, want 13: %v", len(genuine), sortedKeys(genuine))
	}
	if d := cmp.Diff(genuine, fresh.Table().Topics); d != "" {
		t.Errorf("(-genuine +ours)\n%s", d)
	}
}

// TestSystemTopicList: the answer to 305 is the genuine one.
func TestSystemTopicList(t *testing.T) {
	var genuine []string
	wire(t, "mqadmin/mqadmin-5.4.0__5.4.0__exportMetadata-t", func(_, reqCode int, body string) {
		if reqCode == 305 {
			var l remoting.TopicList
			if err := remoting.DecodeBody([]byte(body), &l); err != nil {
				t.Fatal(err)
			}
			genuine = l.TopicList
		}
	})
	slices.Sort(genuine)
	if d := cmp.Diff(genuine, mustOpen(t, memfs.New()).topics.System()); d != "" || len(genuine) == 0 {
		t.Errorf("(-genuine +ours)\n%s", d)
	}
}

func TestDefaults(t *testing.T) {
	open := func(d Defaults) *Topics {
		topics, err := OpenTopics(memfs.New(), configDir, d, nil)
		if err != nil {
			t.Fatal(err)
		}
		return topics
	}
	plain := open(Defaults{ClusterName: "c", BrokerName: "b"})
	for name, perm := range map[string]int32{"c": 1, "b": 1} {
		if c, ok := plain.Get(name); !ok || c.Perm != perm {
			t.Errorf("topic %s: %+v, want perm %d", name, c, perm)
		}
	}
	if _, ok := plain.Get(TemplateTopic); ok {
		t.Error("TBW102 exists without AutoCreateTopic")
	}
	full := open(Defaults{ClusterName: "c", BrokerName: "b", AutoCreateTopic: true, DefaultTopicQueueNums: 3, ReviveQueueNums: 2, TraceTopic: "MyTrace"})
	for name, queues := range map[string]int32{TemplateTopic: 3, "rmq_sys_REVIVE_LOG_c": 2, "MyTrace": 1} {
		if c, ok := full.Get(name); !ok || c.WriteQueueNums != queues {
			t.Errorf("topic %s: %+v, want %d queues", name, c, queues)
		}
	}
	if !full.IsSystem("MyTrace") || plain.IsSystem("MyTrace") {
		t.Error("the trace topic is a system topic where it is the trace topic")
	}
}

// TestBuiltInGroups: a new broker has the groups of the genuine one, with the
// same configuration.
func TestBuiltInGroups(t *testing.T) {
	file := at(t, decode(t, readFile(t, goldenConfig(t, "5.4.0-broker-dir"), "subscriptionGroup.json")), "subscriptionGroupTable").(map[string]any)
	groups := mustOpen(t, memfs.New()).groups
	for name, config := range file {
		got, ok := groups.Get(name)
		if strings.HasPrefix(name, "cg_") {
			if ok {
				t.Errorf("group %s exists from the start", name)
			}
			continue
		}
		if !ok {
			t.Errorf("no group %s", name)
			continue
		}
		if d := cmp.Diff(config, any(decode(t, string(remoting.EncodeBody(got))))); d != "" {
			t.Errorf("%s (-genuine +ours)\n%s", name, d)
		}
	}
	if groups.Len() != 8 {
		t.Errorf("%d groups, want 8", groups.Len())
	}
}
