package metadata

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// Each loader: whatever the file is, opening does not panic; and what it
// accepts is saved so that opening again finds the same.

func seeds(f *testing.F, name string, more ...string) {
	for _, store := range goldenStores {
		f.Add([]byte(readFile(f, goldenConfig(f, store), name)))
	}
	for _, fc := range fileCases {
		if fc.name == name {
			f.Add([]byte(fc.good))
		}
	}
	for _, text := range more {
		f.Add([]byte(text))
	}
}

func fuzzFS(t *testing.T, name string, data []byte) *memfs.FS {
	fsys := memfs.New()
	writeFile(t, fsys, name, string(data))
	return fsys
}

func FuzzTopics(f *testing.F) {
	seeds(f, "topics.json", `{"topicConfigTable":{"a b":{"x":1},"T":{"attributes":null,"y":"z"}},"u":[{1:2}]}`)
	f.Fuzz(func(t *testing.T, data []byte) {
		fsys := fuzzFS(t, "topics.json", data)
		topics, err := OpenTopics(fsys, configDir, likeGenuine("c"), nil)
		if err != nil {
			return
		}
		topics.file.changes.Add(1)
		if err := topics.Save(); err != nil {
			t.Fatal(err)
		}
		again, err := OpenTopics(fsys, configDir, likeGenuine("c"), nil)
		if err != nil {
			t.Fatalf("%v in %s", err, readFile(t, fsys, "topics.json"))
		}
		if d := cmp.Diff(topics.Table().Topics, again.Table().Topics); d != "" {
			t.Errorf("(-saved +opened)\n%s", d)
		}
		if d := cmp.Diff(fmt.Sprint(topics.kept.unknown), fmt.Sprint(again.kept.unknown)); d != "" {
			t.Errorf("unknown (-saved +opened)\n%s", d)
		}
	})
}

func FuzzGroups(f *testing.F) {
	seeds(f, "subscriptionGroup.json", `{"forbiddenTable":{"g":{"T":-4}},"subscriptionGroupTable":{"a b":{"x":1},"g":{"groupRetryPolicy":"x","y":{3:4}}}}`)
	f.Fuzz(func(t *testing.T, data []byte) {
		fsys := fuzzFS(t, "subscriptionGroup.json", data)
		groups, err := OpenGroups(fsys, configDir, nil)
		if err != nil {
			return
		}
		groups.file.changes.Add(1)
		if err := groups.Save(); err != nil {
			t.Fatal(err)
		}
		again, err := OpenGroups(fsys, configDir, nil)
		if err != nil {
			t.Fatalf("%v in %s", err, readFile(t, fsys, "subscriptionGroup.json"))
		}
		if d := cmp.Diff(groups.Table(), again.Table()); d != "" {
			t.Errorf("(-saved +opened)\n%s", d)
		}
	})
}

func FuzzOffsets(f *testing.F) {
	seeds(f, "consumerOffset.json", `{"offsetTable":{"T@g":{7:1,3:"2",7:-1},"x":[],"é@\n":{}},"m":1}`)
	f.Fuzz(func(t *testing.T, data []byte) {
		fsys := fuzzFS(t, "consumerOffset.json", data)
		o, err := OpenOffsets(fsys, configDir, nil)
		if err != nil {
			return
		}
		for i := range o.shards {
			for p, g := range o.shards[i].pairs {
				for _, q := range g.queues {
					if got, ok := o.Query(p.group, p.topic, q.id); !ok || got != q.offset || got < 0 {
						t.Fatalf("%s queue %d: got %d %t, want %d", p, q.id, got, ok, q.offset)
					}
				}
			}
		}
		o.file.changes.Add(1)
		if err := o.Save(); err != nil {
			t.Fatal(err)
		}
		again, err := OpenOffsets(fsys, configDir, nil)
		if err != nil {
			t.Fatalf("%v in %s", err, readFile(t, fsys, "consumerOffset.json"))
		}
		if d := cmp.Diff(o.Table(), again.Table()); d != "" {
			t.Errorf("(-saved +opened)\n%s", d)
		}
	})
}

func FuzzFilters(f *testing.F) {
	seeds(f, "consumerFilter.json", fmt.Sprintf(filterFile, "false", "0", "a in ('x', 'é')", `,"z":[1]`))
	f.Fuzz(func(t *testing.T, data []byte) {
		fsys := fuzzFS(t, "consumerFilter.json", data)
		open := func() (*Filters, map[string]string) {
			filters, err := OpenFilters(fsys, configDir, nil)
			if err != nil {
				return nil, nil
			}
			all := make(map[string]string)
			for topic, list := range filters.table.all() {
				for _, e := range list {
					expr := e.Expr
					c := *e
					c.Expr = nil
					all[topic+"\x00"+e.Group] = fmt.Sprintf("%+v %t", c, expr != nil)
				}
			}
			return filters, all
		}
		filters, before := open()
		if filters == nil {
			return
		}
		checkFilterCounts(t, filters)
		filters.now = func() int64 { return -1 << 62 } // nothing is old
		filters.file.changes.Add(1)
		if err := filters.Save(); err != nil {
			t.Fatal(err)
		}
		_, after := open()
		if d := cmp.Diff(before, after); d != "" {
			t.Errorf("(-saved +opened)\n%s\n%s", d, readFile(t, fsys, "consumerFilter.json"))
		}
	})
}

// FuzzMembers: the walk over an object finds what encoding/json finds.
func FuzzMembers(f *testing.F) {
	f.Add([]byte(` {"a":1, "b" : {"c":[1,"}"]},"\u0041":"x\"y" , "e":[], "t":true}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		got := make(map[string]string)
		walk := eachMember(data, func(name string, value []byte) error {
			got[name] = string(value)
			return nil
		})
		var want map[string]rawText
		if javajson.Unmarshal(data, &want) != nil || want == nil {
			return // not well-formed, or null: that walk did not panic is enough
		}
		if _, ref := want["$ref"]; ref {
			if walk == nil {
				t.Error("a reference was accepted")
			}
			return
		}
		if std, err := javajson.Normalize(data); err != nil || string(std) != string(data) {
			return // with bare keys, which the walk never sees
		}
		if walk != nil {
			t.Fatal(walk)
		}
		if len(got) != len(want) {
			t.Fatalf("got %d members, want %d", len(got), len(want))
		}
		for name, v := range want {
			if got[name] != string(v) {
				t.Errorf("%q: got %q, want %q", name, got[name], v)
			}
		}
	})
}

// rawText is a value as it stands in the text.
type rawText string

func (r *rawText) UnmarshalJSON(b []byte) error {
	*r = rawText(b)
	return nil
}
