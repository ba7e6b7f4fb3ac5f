package metadata

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

func topic(name string, queues int32, change ...func(*remoting.TopicConfig)) remoting.TopicConfig {
	c := newTopic(name, queues, remoting.PermRead|remoting.PermWrite)
	for _, f := range change {
		f(&c)
	}
	return c
}

func TestUpdateTopic(t *testing.T) {
	tests := []struct {
		name   string
		config remoting.TopicConfig
		want   remoting.TopicConfig
		err    string
	}{
		{"new", topic("T", 4), topic("T", 4), ""},
		{"new with everything",
			remoting.TopicConfig{TopicName: "T", ReadQueueNums: 2, WriteQueueNums: 0, Perm: 4, TopicFilterType: "MULTI_TAG", TopicSysFlag: 3, Order: true, Attributes: map[string]string{"+message.type": "FIFO"}},
			remoting.TopicConfig{TopicName: "T", ReadQueueNums: 2, WriteQueueNums: 0, Perm: 4, TopicFilterType: "MULTI_TAG", TopicSysFlag: 3, Order: true, Attributes: map[string]string{"message.type": "FIFO"}}, ""},
		{"existing", topic("Old", 9, func(c *remoting.TopicConfig) { c.Attributes = nil }),
			topic("Old", 9, func(c *remoting.TopicConfig) { c.Attributes = map[string]string{"message.type": "DELAY"} }), ""},
		{"bad name", topic("a b", 4), remoting.TopicConfig{}, "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$"},
		{"system topic", topic("SCHEDULE_TOPIC_XXXX", 4), remoting.TopicConfig{}, "The topic[SCHEDULE_TOPIC_XXXX] is conflict with system topic."},
		{"cluster", topic("DefaultCluster", 4), remoting.TopicConfig{}, "The topic[DefaultCluster] is conflict with system topic."},
		{"bad perm", topic("T", 4, func(c *remoting.TopicConfig) { c.Perm = 8 }), remoting.TopicConfig{}, "perm 8 is not from 0 to 7"},
		{"negative queues", topic("T", 4, func(c *remoting.TopicConfig) { c.ReadQueueNums = -1 }), remoting.TopicConfig{}, "-1 read queues and 4 write queues: a topic has 0 to 131072"},
		{"too many queues", topic("T", 1<<30), remoting.TopicConfig{}, "1073741824 read queues and 1073741824 write queues: a topic has 0 to 131072"},
		{"bad filter type", topic("T", 4, func(c *remoting.TopicConfig) { c.TopicFilterType = "X" }), remoting.TopicConfig{}, `topicFilterType "X" is neither SINGLE_TAG nor MULTI_TAG`},
		{"bad attribute", topic("T", 4, func(c *remoting.TopicConfig) { c.Attributes = map[string]string{"+x": "1"} }), remoting.TopicConfig{}, `unsupported attribute "x", known are cleanup.policy, message.type, queue.type, reserve.time`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			topics := mustOpen(t, memfs.New()).topics
			old, err := topics.Update(topic("Old", 4, func(c *remoting.TopicConfig) { c.Attributes = map[string]string{"+message.type": "DELAY"} }))
			if err != nil {
				t.Fatal(err)
			}
			oldCopy := *old
			version, changes := topics.Version(), topics.Changes()
			got, err := topics.Update(tt.config)
			checkInvalid(t, err, tt.err)
			if err != nil {
				if topics.Version() != version || topics.Changes() != changes {
					t.Error("a refused update changed the version")
				}
				return
			}
			stored, ok := topics.Get(tt.config.TopicName)
			if d := cmp.Diff(tt.want, *got); d != "" || !ok || stored != got {
				t.Errorf("(-want +got)\n%s", d)
			}
			if topics.Version().Counter != version.Counter+1 || topics.Changes() != changes+1 {
				t.Errorf("version %+v after %+v", topics.Version(), version)
			}
			if d := cmp.Diff(oldCopy, *old); d != "" {
				t.Errorf("what Get returned before was changed\n%s", d)
			}
		})
	}
}

func TestDeleteTopic(t *testing.T) {
	topics := mustOpen(t, memfs.New()).topics
	if _, err := topics.Update(topic("T", 4)); err != nil {
		t.Fatal(err)
	}
	version := topics.Version()
	if ok, err := topics.Delete("T"); !ok || err != nil {
		t.Errorf("existing: %t, %v", ok, err)
	}
	if _, ok := topics.Get("T"); ok || topics.Version().Counter != version.Counter+1 {
		t.Error("the topic is still there, or the version is")
	}
	if ok, err := topics.Delete("T"); ok || err != nil {
		t.Errorf("once more: %t, %v", ok, err)
	}
	_, err := topics.Delete("TBW102")
	checkInvalid(t, err, "The topic[TBW102] is conflict with system topic.")
	if topics.Version().Counter != version.Counter+1 {
		t.Error("nothing was deleted, but the version is another")
	}
}

func TestCreateForSend(t *testing.T) {
	template := topic("Template", 5, func(c *remoting.TopicConfig) {
		c.Perm, c.TopicFilterType, c.Order = remoting.PermRead|remoting.PermInherit, "MULTI_TAG", true
	})
	tests := []struct {
		name            string
		topic, template string
		queues, sysFlag int32
		noAuto          bool
		want            remoting.TopicConfig // zero: not found
	}{
		{"like TBW102", "T", "TBW102", 4, 0, false, topic("T", 4)},
		{"no more queues than it has", "T", "TBW102", 100, 0, false, topic("T", 8)},
		{"at least one queue", "T", "TBW102", 0, 0, false, topic("T", 1)},
		{"negative wish", "T", "TBW102", -5, 0, false, topic("T", 1)},
		{"unit", "T", "TBW102", 4, TopicFlagUnit, false, topic("T", 4, func(c *remoting.TopicConfig) { c.TopicSysFlag = 1 })},
		{"like another, its order and attributes apart", "T", "Template", 4, 0, true, topic("T", 4, func(c *remoting.TopicConfig) {
			c.Perm, c.TopicFilterType = remoting.PermRead, "MULTI_TAG"
		})},
		{"like the cluster", "T", "DefaultCluster", 4, 0, true, topic("T", 4)},
		{"retry without template", "%RETRY%g", "nosuch", 4, TopicFlagUnitSub, false, topic("%RETRY%g", 1, func(c *remoting.TopicConfig) { c.TopicSysFlag = 2 })},
		{"retry with template", "%RETRY%g", "TBW102", 4, 0, false, topic("%RETRY%g", 4)},
		{"no such template", "T", "nosuch", 4, 0, false, remoting.TopicConfig{}},
		{"not inheritable", "T", "SELF_TEST_TOPIC", 4, 0, false, remoting.TopicConfig{}},
		{"TBW102 without auto-creation", "T", "TBW102", 4, 0, true, remoting.TopicConfig{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			topics := mustOpen(t, memfs.New()).topics
			if _, err := topics.Update(template); err != nil {
				t.Fatal(err)
			}
			version := topics.Version()
			got, created, err := topics.CreateForSend(tt.topic, tt.template, tt.queues, tt.sysFlag, !tt.noAuto)
			if tt.want.TopicName == "" {
				if !errors.Is(err, base.ErrNotFound) || created || topics.Version() != version {
					t.Errorf("got %+v, %t, %v", got, created, err)
				}
				return
			}
			if err != nil || !created || topics.Version().Counter != version.Counter+1 {
				t.Fatalf("%t, %v", created, err)
			}
			if d := cmp.Diff(tt.want, *got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			again, created, err := topics.CreateForSend(tt.topic, "nosuch", 1, 1, false)
			if again != got || created || err != nil {
				t.Errorf("a second time: %+v, %t, %v", again, created, err)
			}
		})
	}
	t.Run("bad name", func(t *testing.T) {
		_, _, err := mustOpen(t, memfs.New()).topics.CreateForSend("a b", "TBW102", 4, 0, true)
		checkInvalid(t, err, "The specified topic: a b, contains illegal characters, allowing only ^[%|a-zA-Z0-9_-]+$")
	})
}

func TestCreateRetryAndDLQ(t *testing.T) {
	topics := mustOpen(t, memfs.New()).topics
	check := func(what string, wantChanged bool, want remoting.TopicConfig, got *remoting.TopicConfig, changed bool, err error) {
		t.Helper()
		if err != nil || changed != wantChanged {
			t.Fatalf("%s: %t, %v", what, changed, err)
		}
		if d := cmp.Diff(want, *got); d != "" {
			t.Errorf("%s (-want +got)\n%s", what, d)
		}
		if stored, _ := topics.Get(want.TopicName); stored != got {
			t.Errorf("%s: %+v is stored", what, stored)
		}
	}
	ordered := func(c *remoting.TopicConfig) { c.Order = true }
	c, changed, err := topics.CreateRetry("g", 2, false, 0)
	check("new", true, topic("%RETRY%g", 2), c, changed, err)
	c, changed, err = topics.CreateRetry("g", 5, false, 2)
	check("existing", false, topic("%RETRY%g", 2), c, changed, err)
	c, changed, err = topics.CreateRetry("g", 5, true, 0)
	check("order comes", true, topic("%RETRY%g", 2, ordered), c, changed, err)
	c, changed, err = topics.CreateRetry("g", 5, false, 0)
	check("order goes", true, topic("%RETRY%g", 2), c, changed, err)
	c, changed, err = topics.CreateRetry("h", 0, true, TopicFlagUnitSub)
	check("at least one queue", true, topic("%RETRY%h", 1, ordered, func(c *remoting.TopicConfig) { c.TopicSysFlag = 2 }), c, changed, err)
	c, changed, err = topics.CreateDLQ("g")
	check("dead letters", true, topic("%DLQ%g", 1), c, changed, err)
	c, changed, err = topics.CreateDLQ("g")
	check("dead letters again", false, topic("%DLQ%g", 1), c, changed, err)
	c, changed, err = topics.CreateTransCheckMaxTime()
	check("given up", true, topic("TRANS_CHECK_MAX_TIME_TOPIC", 1), c, changed, err)

	_, _, err = topics.CreateRetry(strings.Repeat("g", 249), 1, false, 0)
	var invalid *InvalidError
	if !errors.As(err, &invalid) {
		t.Errorf("a name that is too long: %v", err)
	}
}

func TestSetOrder(t *testing.T) {
	topics := mustOpen(t, memfs.New()).topics
	if _, err := topics.Update(topic("T", 4)); err != nil {
		t.Fatal(err)
	}
	version := topics.Version()
	topics.SetOrder(map[string]string{"T": "broker-a:4", "unknown": "broker-a:2"})
	if c, _ := topics.Get("T"); !c.Order || topics.Version().Counter != version.Counter+1 {
		t.Errorf("%+v, version %+v", c, topics.Version())
	}
	version = topics.Version()
	topics.SetOrder(map[string]string{"T": "broker-a:4"})
	topics.SetOrder(nil)
	if c, _ := topics.Get("T"); !c.Order || topics.Version() != version {
		t.Errorf("nothing new: %+v, version %+v", c, topics.Version())
	}
	if _, ok := topics.Get("unknown"); ok {
		t.Error("a topic was made")
	}
}

func TestIsBatch(t *testing.T) {
	topics := mustOpen(t, memfs.New()).topics
	for name, queueType := range map[string]string{"B": "BatchCQ", "S": "SimpleCQ"} {
		if _, err := topics.Update(topic(name, 1, func(c *remoting.TopicConfig) { c.Attributes = map[string]string{"+queue.type": queueType} })); err != nil {
			t.Fatal(err)
		}
	}
	if !topics.IsBatch("B") || topics.IsBatch("S") || topics.IsBatch("none") {
		t.Error("wrong")
	}
}

// TestTableIsACopy: what a registration does to its table is its own matter.
func TestTableIsACopy(t *testing.T) {
	topics := mustOpen(t, memfs.New()).topics
	table := topics.Table()
	if table.DataVersion != topics.Version() || !slices.Equal(sortedKeys(table.Topics), topics.Names()) || len(table.Topics) != topics.Len() {
		t.Error("the table is not the topics")
	}
	c := table.Topics["TBW102"]
	c.Perm = 0
	table.Topics["TBW102"] = c
	delete(table.Topics, "broker-a")
	if c, _ := topics.Get("TBW102"); c.Perm != 7 {
		t.Error("the topic was changed")
	}
	if _, ok := topics.Get("broker-a"); !ok {
		t.Error("the topic was deleted")
	}
}

// TestTopicsFull: clients cannot make topics without end.
func TestTopicsFull(t *testing.T) {
	topics := mustOpen(t, memfs.New()).topics
	e := &topicEntry{config: topic("x", 1)}
	many := make(map[string]*topicEntry, MaxTopics)
	for i := range MaxTopics - 1 {
		many[string([]byte{byte(i), byte(i >> 8), byte(i >> 16)})] = e
	}
	many["TBW102"] = &topicEntry{config: topic("TBW102", 8, func(c *remoting.TopicConfig) { c.Perm = 7 })}
	topics.table.fill(many)
	if _, err := topics.Update(topic("T", 1)); !errors.Is(err, ErrFull) {
		t.Errorf("Update: %v", err)
	}
	if _, _, err := topics.CreateForSend("T", "TBW102", 1, 0, true); !errors.Is(err, ErrFull) {
		t.Errorf("CreateForSend: %v", err)
	}
	if _, err := topics.Delete("\x00\x00\x00"); err != nil {
		t.Fatal(err)
	}
	if _, err := topics.Update(topic("T", 1)); err != nil {
		t.Errorf("after a deletion: %v", err)
	}
}

// TestKnownMembers: every member that package remoting writes is known here, or
// it would be in the file twice.
func TestKnownMembers(t *testing.T) {
	full := map[string]string{"a": "b"}
	for name, tt := range map[string]struct {
		body  remoting.Body
		known map[string]bool
	}{
		"topic": {&remoting.TopicConfig{Attributes: full}, topicMembers},
		"group": {&remoting.GroupConfig{Attributes: full, RetryPolicy: []byte("{}"), SubscriptionDataSet: []byte("[]")}, groupMembers},
	} {
		got := sortedKeys(decode(t, string(remoting.EncodeBody(tt.body))))
		if d := cmp.Diff(got, sortedKeys(tt.known)); d != "" {
			t.Errorf("%s (-written +known)\n%s", name, d)
		}
	}
}
