package metadata

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

func TestFindGroup(t *testing.T) {
	tests := []struct {
		name, group string
		auto        bool
		found, made bool
	}{
		{"built in", "TOOLS_CONSUMER", false, true, false},
		{"new", "g", true, true, true},
		{"new, not allowed", "g", false, false, false},
		{"new of the broker's kind", "CID_RMQ_SYS_REVIVE_GROUP", false, true, true},
		{"longest with a retry topic", strings.Repeat("g", 248), true, true, true},
		{"too long for a retry topic", strings.Repeat("g", 249), true, false, false},
		{"bad name", "a@b", true, false, false},
		{"no name", "", true, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			groups := mustOpen(t, memfs.New()).groups
			version := groups.Version()
			c, made := groups.Find(tt.group, tt.auto)
			if (c != nil) != tt.found || made != tt.made {
				t.Fatalf("found %v, made %t", c, made)
			}
			if got := groups.Version().Counter - version.Counter; (got == 1) != tt.made {
				t.Errorf("%d changes", got)
			}
			if c == nil {
				return
			}
			want := newGroup(tt.group)
			if d := cmp.Diff(want, *c); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if again, made := groups.Find(tt.group, false); again != c || made {
				t.Errorf("a second time: %v, %t", again, made)
			}
		})
	}
}

func TestUpdateGroup(t *testing.T) {
	with := func(change func(*remoting.GroupConfig)) remoting.GroupConfig {
		c := remoting.NewGroupConfig("g")
		change(&c)
		return c
	}
	deep := strings.Repeat(`{"a":`, 17) + "1" + strings.Repeat("}", 17)
	tests := []struct {
		name   string
		config remoting.GroupConfig
		want   func(*remoting.GroupConfig)
		err    string
	}{
		{"new", with(func(c *remoting.GroupConfig) { c.RetryMaxTimes, c.ConsumeEnable = 3, false }),
			func(c *remoting.GroupConfig) { c.RetryMaxTimes, c.ConsumeEnable = 3, false }, ""},
		{"existing", with(func(c *remoting.GroupConfig) {
			c.GroupName, c.Attributes = "old", map[string]string{"+priority.factor": "100"}
		}),
			func(c *remoting.GroupConfig) {
				c.GroupName, c.Attributes = "old", map[string]string{"priority.factor": "100"}
			}, ""},
		{"retry policy with bare keys", with(func(c *remoting.GroupConfig) { c.RetryPolicy = remoting.RawJSON(`{"type":"CUSTOMIZED","x":{1:2}}`) }),
			func(c *remoting.GroupConfig) {
				c.RetryPolicy = remoting.RawJSON(`{"type":"CUSTOMIZED","x":{"1":2}}`)
			}, ""},
		{"long name that exists", with(func(c *remoting.GroupConfig) { c.GroupName = strings.Repeat("g", 200) }),
			func(c *remoting.GroupConfig) { c.GroupName = strings.Repeat("g", 200) }, ""},

		{"bad name", with(func(c *remoting.GroupConfig) { c.GroupName = "" }), nil, "The specified group is blank."},
		{"bad attribute", with(func(c *remoting.GroupConfig) { c.Attributes = map[string]string{"+priority.factor": "101"} }), nil,
			`value "101" of attribute priority.factor is not an integer from 0 to 100`},
		{"negative retry queues", with(func(c *remoting.GroupConfig) { c.RetryQueueNums = -1 }), nil, "retryQueueNums -1 is not from 0 to 131072"},
		{"object as key", with(func(c *remoting.GroupConfig) { c.RetryPolicy = remoting.RawJSON(`{{"a":1}:2}`) }), nil, "groupRetryPolicy is not the expected JSON"},
		{"control character", with(func(c *remoting.GroupConfig) { c.RetryPolicy = remoting.RawJSON("{\"a\":\"\n\"}") }), nil, "groupRetryPolicy is not the expected JSON"},
		{"list as retry policy", with(func(c *remoting.GroupConfig) { c.RetryPolicy = remoting.RawJSON(`[]`) }), nil, "groupRetryPolicy is not the expected JSON"},
		{"too deep", with(func(c *remoting.GroupConfig) { c.RetryPolicy = remoting.RawJSON(deep) }), nil, "groupRetryPolicy is not the expected JSON"},
		{"object as subscriptions", with(func(c *remoting.GroupConfig) { c.SubscriptionDataSet = remoting.RawJSON(`{}`) }), nil, "subscriptionDataSet is not the expected JSON"},
		{"too long", with(func(c *remoting.GroupConfig) {
			c.SubscriptionDataSet = remoting.RawJSON("[" + strings.Repeat("1,", 40_000) + "1]")
		}), nil,
			"subscriptionDataSet has 80003 bytes, 65536 are allowed"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := memfs.New()
			groups := mustOpen(t, fsys).groups
			groups.Find("old", true)
			groups.Find(strings.Repeat("g", 200), true)
			version := groups.Version()
			got, err := groups.Update(tt.config)
			checkInvalid(t, err, tt.err)
			if err != nil {
				if groups.Version() != version {
					t.Error("a refused update changed the version")
				}
				return
			}
			want := remoting.NewGroupConfig("g")
			want.Attributes = map[string]string{}
			tt.want(&want)
			if d := cmp.Diff(want, *got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if groups.Version().Counter != version.Counter+1 {
				t.Errorf("version %+v after %+v", groups.Version(), version)
			}
			// What a request brought can be read again.
			if err := groups.Save(); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(groups.Table(), mustOpen(t, fsys).groups.Table()); d != "" {
				t.Errorf("(-saved +opened)\n%s", d)
			}
		})
	}
}

func TestForbidden(t *testing.T) {
	fsys := memfs.New()
	writeFile(t, fsys, "subscriptionGroup.json", `{"forbiddenTable":{"g":{"T":4,"U":2,"V":-1},"h":{"T":6}},"subscriptionGroupTable":{"g":{}}}`)
	groups := mustOpen(t, fsys).groups
	check := func(group, topic string, perm int32, want bool) {
		t.Helper()
		if got := groups.IsForbidden(group, topic, perm); got != want {
			t.Errorf("%s on %s, %d: got %t, want %t", group, topic, perm, got, want)
		}
	}
	check("g", "T", remoting.PermRead, true)
	check("g", "T", remoting.PermWrite, false)
	check("g", "U", remoting.PermRead, false)
	check("g", "V", remoting.PermRead, false)
	check("h", "T", remoting.PermRead, true)
	check("none", "T", remoting.PermRead, false)
	if got, want := string(groups.Table().ForbiddenTable), `{"g":{"T":4,"U":2,"V":-1},"h":{"T":6}}`; got != want {
		t.Errorf("table: got %s, want %s", got, want)
	}
	if !groups.Delete("g") {
		t.Error("nothing was deleted")
	}
	check("g", "T", remoting.PermRead, false)
	check("h", "T", remoting.PermRead, true)
	if !groups.Delete("h") { // which is only in the forbidden table
		t.Error("nothing was deleted")
	}
	if err := groups.Save(); err != nil {
		t.Fatal(err)
	}
	if text := readFile(t, fsys, "subscriptionGroup.json"); !strings.Contains(text, `"forbiddenTable":{}`) {
		t.Errorf("saved: %s", text)
	}
}

func TestDeleteGroup(t *testing.T) {
	groups := mustOpen(t, memfs.New()).groups
	groups.Find("g", true)
	version := groups.Version()
	if !groups.Delete("g") || groups.Delete("g") {
		t.Error("a group is deleted once")
	}
	if _, ok := groups.Get("g"); ok || groups.Version().Counter != version.Counter+1 {
		t.Errorf("still there, or version %+v after %+v", groups.Version(), version)
	}
}

func TestGroupsFull(t *testing.T) {
	var l logs
	groups, err := OpenGroups(memfs.New(), configDir, l.logger())
	if err != nil {
		t.Fatal(err)
	}
	many := make(map[string]*groupEntry, MaxGroups)
	for i := range MaxGroups {
		many[string([]byte{byte(i), byte(i >> 8), byte(i >> 16)})] = &groupEntry{}
	}
	groups.table.fill(many)
	if c, made := groups.Find("g", true); c != nil || made || !strings.Contains(l.String(), "too many") {
		t.Errorf("Find: %v, %t, log %s", c, made, &l)
	}
	if _, err := groups.Update(remoting.NewGroupConfig("g")); !errors.Is(err, ErrFull) {
		t.Errorf("Update: %v", err)
	}
}
