package metadata

import (
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

// TestIdleWritesNothing: once saved, nothing is written until something
// changes; opening writes nothing at all.
func TestIdleWritesNothing(t *testing.T) {
	mem := memfs.New()
	mustOpen(t, mem).save(t)
	for name, want := range map[string]bool{"topics.json": true, "subscriptionGroup.json": true, "consumerOffset.json": false, "consumerFilter.json": false} {
		if exists(mem, name) != want {
			t.Errorf("a new broker writes %s: %t", name, !want)
		}
	}
	counting := faultfs.New(mem)
	s, err := openAll(counting, likeGenuine("DefaultCluster"), nil)
	if err != nil {
		t.Fatal(err)
	}
	changes := func() int64 { return counting.Count(faultfs.OpMutating, "*").Calls }
	s.save(t)
	s.topics.CreateForSend("T", "none", 1, 0, true) //nolint:errcheck // it is the point that this does nothing
	s.topics.CreateForSend("TBW102", "", 1, 0, true)
	s.topics.SetOrder(nil)
	s.groups.Find("TOOLS_CONSUMER", true)
	s.groups.Find("a@b", true)
	s.offsets.Commit("g", "T", 0, -1)
	s.offsets.TakeReset("g", "T", 0)
	s.offsets.DeleteGroup("none")
	s.filters.Unregister("none")
	s.save(t)
	if n := changes(); n != 0 {
		t.Fatalf("%d changes of an idle broker", n)
	}
	for name, change := range map[string]func(){
		"topics.json":            func() { s.topics.CreateForSend("T", "TBW102", 1, 0, true) },
		"subscriptionGroup.json": func() { s.groups.Find("g", true) },
		"consumerOffset.json":    func() { s.offsets.Commit("g", "T", 0, 1) },
		"consumerFilter.json":    func() { s.filters.Register("g", []remoting.Subscription{sql("T", "a = 1", 1)}) },
	} {
		counting.ResetCounts()
		change()
		s.save(t)
		for _, other := range []string{"topics.json", "subscriptionGroup.json", "consumerOffset.json", "consumerFilter.json"} {
			writes := counting.Count(faultfs.OpWrite, other+".tmp").Calls
			if (writes > 0) != (other == name) {
				t.Errorf("a change for %s: %d writes of %s", name, writes, other)
			}
		}
	}
	counting.ResetCounts()
	s.offsets.Commit("g", "T", 0, 1) // which it is already
	s.save(t)
	if n := changes(); n != 0 {
		t.Errorf("%d changes after the same commit again", n)
	}
}

// TestOpenWritesNothing: not even where there is nothing, or something damaged.
func TestOpenWritesNothing(t *testing.T) {
	mem := memfs.New()
	writeFile(t, mem, "topics.json", "{damaged")
	writeFile(t, mem, "topics.json.bak", "{}")
	counting := faultfs.New(mem)
	if _, err := openAll(counting, likeGenuine("DefaultCluster"), nil); err != nil {
		t.Fatal(err)
	}
	if n := counting.Changes(); n != 0 {
		t.Errorf("%d changes", n)
	}
}

// TestEqualBytes: the same content gives the same bytes, versions apart,
// whatever the order in which it came.
func TestEqualBytes(t *testing.T) {
	version := regexp.MustCompile(`"dataVersion":\{[^}]*\}`)
	names := []string{"b", "a", "d", "c"}
	seen := make(map[string]bool)
	for range names {
		names = append(names[1:], names[0])
		s := mustOpen(t, memfs.New())
		s.filters.now = func() int64 { return 1 }
		for _, n := range names {
			s.topics.CreateForSend(n, "TBW102", 1, 0, true)
			s.groups.Find(n, true)
			s.offsets.Commit(n, "T", 0, 1)
			s.offsets.Commit("g", n, int32(n[0]), 1)
			s.filters.Register(n, []remoting.Subscription{sql("T", "a = 1", 1), sql(n, "a = 1", 1)})
		}
		all := ""
		for _, text := range [][]byte{s.topics.encode(), s.groups.encode(), s.offsets.encode(), s.filters.encode()} {
			all += version.ReplaceAllString(string(text), "") + "\n"
		}
		seen[all] = true
	}
	if len(seen) != 1 {
		t.Errorf("%d different contents: %v", len(seen), sortedKeys(seen))
	}
}

// fileCase is how one type reads one file.
type fileCase struct {
	name string // of the file
	good string // a content
	// open opens the file and says what is in it.
	open func(fsys vfs.FS, l *logs) (content string, save func() error, err error)
}

var fileCases = []fileCase{
	{"topics.json", `{"dataVersion":{"counter":3},"topicConfigTable":{"Orders":{"perm":4}}}`,
		func(fsys vfs.FS, l *logs) (string, func() error, error) {
			topics, err := OpenTopics(fsys, configDir, likeGenuine("c"), l.logger())
			if err != nil {
				return "", nil, err
			}
			if c, ok := topics.Get("Orders"); ok {
				return fmt.Sprint(c.Perm), topics.Save, nil
			}
			return "", topics.Save, nil
		}},
	{"subscriptionGroup.json", `{"dataVersion":{"counter":3},"subscriptionGroupTable":{"g":{"retryMaxTimes":4}}}`,
		func(fsys vfs.FS, l *logs) (string, func() error, error) {
			groups, err := OpenGroups(fsys, configDir, l.logger())
			if err != nil {
				return "", nil, err
			}
			if c, ok := groups.Get("g"); ok {
				return fmt.Sprint(c.RetryMaxTimes), groups.Save, nil
			}
			return "", groups.Save, nil
		}},
	{"consumerOffset.json", `{"offsetTable":{"T@g":{0:4}}}`,
		func(fsys vfs.FS, l *logs) (string, func() error, error) {
			o, err := OpenOffsets(fsys, configDir, l.logger())
			if err != nil {
				return "", nil, err
			}
			if n, ok := o.Query("g", "T", 0); ok {
				return fmt.Sprint(n), o.Save, nil
			}
			return "", o.Save, nil
		}},
	{"consumerFilter.json", fmt.Sprintf(filterFile, "true", "9223372036854775807", "a = 4", ""),
		func(fsys vfs.FS, l *logs) (string, func() error, error) {
			f, err := OpenFilters(fsys, configDir, l.logger())
			if err != nil {
				return "", nil, err
			}
			if e, ok := f.Get("Orders", "g1"); ok {
				return strings.TrimPrefix(e.Expression, "a = "), f.Save, nil
			}
			return "", f.Save, nil
		}},
}

// TestFallback: a missing, empty or damaged file is replaced by its .bak,
// loudly; and saving does not harm what is good.
func TestFallback(t *testing.T) {
	const missing = "(missing)"
	tests := []struct {
		name, main, bak string // "good" is the case's good content
		content         string
		log             string
		err             bool
	}{
		{"both missing", missing, missing, "", "", false},
		{"main good", "good", missing, "4", "", false},
		{"main good, backup damaged", "good", "{", "4", "", false},
		{"main missing", missing, "good", "4", "level=WARN", false},
		{"main empty", "", "good", "4", "level=ERROR", false},
		{"main blank", " \n", "good", "4", "level=ERROR", false},
		{"main cut", `{"offsetTable":{"T@g":{0:`, "good", "4", "level=ERROR", false},
		{"main of another kind", `[]`, "good", "4", "level=ERROR", false},
		{"both damaged", "{", "[", "", "", true},
		{"main damaged, no backup", "{", missing, "", "", true},
		{"main empty, no backup", "", missing, "", "", true},
		{"only a damaged backup", missing, "{", "", "", true},
	}
	for _, fc := range fileCases {
		for _, tt := range tests {
			t.Run(fc.name+"/"+tt.name, func(t *testing.T) {
				fsys := memfs.New()
				put := func(name, text string) {
					if text == "good" {
						text = fc.good
					}
					if text != missing {
						writeFile(t, fsys, name, text)
					}
				}
				put(fc.name, tt.main)
				put(fc.name+".bak", tt.bak)
				var l logs
				content, save, err := fc.open(fsys, &l)
				if tt.err {
					if err == nil || !strings.Contains(err.Error(), fc.name) || !strings.Contains(err.Error(), ".bak") {
						t.Errorf("error %v", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if content != tt.content {
					t.Errorf("content %q, want %q", content, tt.content)
				}
				if (l.String() != "") != (tt.log != "") || !strings.Contains(l.String(), tt.log) || tt.log != "" && !strings.Contains(l.String(), fc.name) {
					t.Errorf("log %q, want %q", &l, tt.log)
				}
				if err := save(); err != nil {
					t.Fatal(err)
				}
				if fell := tt.log != ""; fell {
					if !exists(fsys, fc.name) || readFile(t, fsys, fc.name+".bak") != fc.good {
						t.Error("no main file, or another backup than before")
					}
					if tt.main != missing && readFile(t, fsys, fc.name+".damaged") != tt.main {
						t.Error("the damaged file is gone")
					}
				}
				l = logs{}
				if content, _, err = fc.open(fsys, &l); err != nil || content != tt.content || l.String() != "" {
					t.Errorf("opened again: %q, %v, log %q", content, err, &l)
				}
			})
		}
	}
}

// TestHostileFiles: what is not the expected content is refused, without
// panics; with a .bak, that is used.
func TestHostileFiles(t *testing.T) {
	deep := strings.Repeat(`{"a":`, 60) + "1" + strings.Repeat("}", 60)
	tests := []struct{ file, name, text string }{
		{"topics.json", "list", `{"topicConfigTable":[]}`},
		{"topics.json", "entry is text", `{"topicConfigTable":{"T":"x"}}`},
		{"topics.json", "entry is null", `{"topicConfigTable":{"T":null}}`},
		{"topics.json", "perm is text", `{"topicConfigTable":{"T":{"perm":"rw"}}}`},
		{"topics.json", "perm is huge", `{"topicConfigTable":{"T":{"perm":99999999999}}}`},
		{"topics.json", "perm is a fraction", `{"topicConfigTable":{"T":{"perm":1.5}}}`},
		{"topics.json", "reference", `{"topicConfigTable":{"T":{"perm":6},"U":{"$ref":"$.topicConfigTable.T"}}}`},
		{"topics.json", "table is a reference", `{"topicConfigTable":{"$ref":"$"}}`},
		{"topics.json", "attributes are a list", `{"topicConfigTable":{"T":{"attributes":[]}}}`},
		{"topics.json", "version is text", `{"dataVersion":"1","topicConfigTable":{}}`},
		{"topics.json", "entry is deep", `{"topicConfigTable":{"T":` + deep + `}}`},
		{"topics.json", "deeper than read", strings.Repeat("[", 100_000)},
		{"topics.json", "unknown members without end", `{` + strings.Repeat(`"x":1,`, 3) + many(maxUnknown+1) + `}`},
		{"topics.json", "of an entry", `{"topicConfigTable":{"T":{` + many(maxUnknown+1) + `}}}`},
		{"subscriptionGroup.json", "list", `{"subscriptionGroupTable":[]}`},
		{"subscriptionGroup.json", "entry is a number", `{"subscriptionGroupTable":{"g":1}}`},
		{"subscriptionGroup.json", "forbidden is text", `{"forbiddenTable":{"g":{"T":"x"}}}`},
		{"subscriptionGroup.json", "forbidden is a list", `{"forbiddenTable":[]}`},
		{"subscriptionGroup.json", "reference", `{"subscriptionGroupTable":{"g":{"$ref":".."}}}`},
		{"consumerOffset.json", "list", `{"offsetTable":[]}`},
		{"consumerOffset.json", "null", `{"offsetTable":null}`},
		{"consumerOffset.json", "queues are a list", `{"offsetTable":{"T@g":[1]}}`},
		{"consumerOffset.json", "queue id is text", `{"offsetTable":{"T@g":{"a":1}}}`},
		{"consumerOffset.json", "queue id is huge", `{"offsetTable":{"T@g":{99999999999:1}}}`},
		{"consumerOffset.json", "offset is huge", `{"offsetTable":{"T@g":{0:9223372036854775808}}}`},
		{"consumerOffset.json", "offset is a fraction", `{"offsetTable":{"T@g":{0:1e3}}}`},
		{"consumerOffset.json", "offset is null", `{"offsetTable":{"T@g":{0:null}}}`},
		{"consumerOffset.json", "reference", `{"offsetTable":{"T@g":{0:1},"T@h":{"$ref":"$.offsetTable.T@g"}}}`},
		{"consumerOffset.json", "keys without @ without end", `{"offsetTable":{` + many(maxUnknown+1) + `}}`},
		{"consumerFilter.json", "list", `{"filterDataByTopic":[]}`},
		{"consumerFilter.json", "time is text", `{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bornTime":"x"}}}}}`},
		{"consumerFilter.json", "expression is a number", `{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"expression":1}}}}}`},
		{"consumerFilter.json", "positions are text", `{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitPos":"x"}}}}}}`},
		{"consumerFilter.json", "positions without end", `{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitPos":[1` + strings.Repeat(",1", 100) + `]}}}}}}`},
		{"consumerFilter.json", "reference", `{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"$ref":"@"}}}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.file+"/"+tt.name, func(t *testing.T) {
			for _, fc := range fileCases {
				if fc.name != tt.file {
					continue
				}
				fsys := memfs.New()
				writeFile(t, fsys, tt.file, tt.text)
				if _, _, err := fc.open(fsys, new(logs)); err == nil {
					t.Fatal("accepted")
				} else if !errors.Is(err, base.ErrCorrupt) || len(err.Error()) > 1000 {
					t.Errorf("error %v", err)
				}
				writeFile(t, fsys, tt.file+".bak", fc.good)
				if content, _, err := fc.open(fsys, new(logs)); err != nil || content != "4" {
					t.Errorf("with a backup: %q, %v", content, err)
				}
			}
		})
	}
}

// many makes n members.
func many(n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprintf(&b, `"m%d":0`, i)
	}
	return b.String()
}

// TestKeptAsItCame: what this version does not know or cannot serve is still in
// the file after saving.
func TestKeptAsItCame(t *testing.T) {
	fsys := memfs.New()
	files := map[string]string{
		"topics.json": `{"dataVersion":{"counter":3,"stateVersion":1,"timestamp":9},"future":{"a":[1,{"2":"x"}]},"topicConfigTable":{` +
			`"Orders":{"attributes":{"new.attribute":"v"},"future":[1,2.5e3,null],"order":false,"perm":6,"readQueueNums":8,"topicFilterType":"SINGLE_TAG","topicName":"Orders","topicSysFlag":0,"writeQueueNums":8},` +
			`"bad name":{"perm":6,"x":1},"Huge":{"readQueueNums":2147483647},"Negative":{"writeQueueNums":-1}}}`,
		"subscriptionGroup.json": `{"dataVersion":{"counter":3,"stateVersion":1,"timestamp":9},"forbiddenTable":{"g":{"T":4}},"future":1,"subscriptionGroupTable":{` +
			`"g":{"future":{"x":"y"},"groupRetryPolicy":{"customizedRetryPolicy":{"next":[1,2]},"type":"CUSTOMIZED"},"subscriptionDataSet":[{"topic":"T"}]},"bad name":{"retryMaxTimes":3,"x":1}}}`,
	}
	for name, text := range files {
		writeFile(t, fsys, name, text)
	}
	var l logs
	s, err := openAll(fsys, likeGenuine("DefaultCluster"), l.logger())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"bad name", "Huge", "Negative"} {
		if _, ok := s.topics.Get(name); ok || !strings.Contains(l.String(), name) {
			t.Errorf("topic %q is served, or nothing is logged", name)
		}
	}
	if _, ok := s.groups.Get("bad name"); ok {
		t.Error("the group is served")
	}
	// Changes of the entries themselves keep what is unknown in them, too.
	orders, _ := s.topics.Get("Orders")
	changed := *orders
	changed.Perm, changed.Attributes = 4, nil
	if _, err := s.topics.Update(changed); err != nil {
		t.Fatal(err)
	}
	g, _ := s.groups.Get("g")
	changedGroup := *g
	changedGroup.RetryMaxTimes, changedGroup.Attributes = 5, nil
	if _, err := s.groups.Update(changedGroup); err != nil {
		t.Fatal(err)
	}
	s.save(t)
	except := []string{"dataVersion/counter", "dataVersion/timestamp", "topicConfigTable/Orders/perm"}
	for name, text := range files {
		if l := lost(decode(t, text), decode(t, readFile(t, fsys, name)), "", except...); len(l) > 0 {
			t.Errorf("%s lost:\n%s", name, strings.Join(l, "\n"))
		}
	}
	// Something new under the name of what could not be served takes its place.
	if _, err := s.topics.Update(topic("Huge", 2)); err != nil {
		t.Fatal(err)
	}
	s.save(t)
	if got := at(t, decode(t, readFile(t, fsys, "topics.json")), "topicConfigTable", "Huge", "readQueueNums"); fmt.Sprint(got) != "2" {
		t.Errorf("Huge has %v queues", got)
	}
}

// TestSaveFails: after an error of any call the old content can be read, and
// the next Save succeeds.
func TestSaveFails(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpMkdirAll, faultfs.OpCreate, faultfs.OpWrite, faultfs.OpSync, faultfs.OpRename, faultfs.OpSyncDir} {
		t.Run(op.String(), func(t *testing.T) {
			mem := memfs.New()
			ffs := faultfs.New(mem)
			o, err := OpenOffsets(ffs, configDir, nil)
			if err != nil {
				t.Fatal(err)
			}
			fault := ffs.Fail(op, "*", faultfs.ErrIO)
			o.Commit("g", "T", 0, 1)
			for range 2 {
				if err := o.Save(); !errors.Is(err, faultfs.ErrIO) || !strings.Contains(err.Error(), "consumerOffset.json") {
					t.Fatalf("got %v", err)
				}
			}
			fault.Remove()
			if err := o.Save(); err != nil {
				t.Fatal(err)
			}
			if got, _ := openOffsets(t, mem).Query("g", "T", 0); got != 1 {
				t.Errorf("offset %d", got)
			}
		})
	}
}

// TestDirectoryRemoved: a Save that fails because the directory has gone is the
// last that does.
func TestDirectoryRemoved(t *testing.T) {
	fsys := memfs.New()
	o := openOffsets(t, fsys)
	o.Commit("g", "T", 0, 1)
	if err := o.Save(); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{filepath.Join(configDir, "consumerOffset.json"), configDir} {
		if err := fsys.Remove(name); err != nil {
			t.Fatal(err)
		}
	}
	o.Commit("g", "T", 0, 2)
	if err := o.Save(); err == nil {
		t.Error("saved into nowhere")
	}
	if err := o.Save(); err != nil {
		t.Error(err)
	}
	if got, _ := openOffsets(t, fsys).Query("g", "T", 0); got != 2 {
		t.Errorf("offset %d", got)
	}
}

// TestCrash: wherever a crash comes, the offsets of a Save that returned are
// there, or those of the one that was going on; also when the main file was
// damaged at the start.
func TestCrash(t *testing.T) {
	for _, start := range []string{"", "damaged"} {
		for _, policy := range memfs.Policies() {
			t.Run(fmt.Sprintf("start=%s/policy=%v", start, policy), func(t *testing.T) {
				for k := 0; ; k++ {
					mem := memfs.NewCrashable(int64(k))
					if start != "" {
						writeFile(t, mem, "consumerOffset.json.bak", `{"offsetTable":{"T@g":{0:0}}}`)
						writeFile(t, mem, "consumerOffset.json", "{"+start)
					}
					ffs := faultfs.CrashAt(mem, k)
					o, err := OpenOffsets(ffs, configDir, nil)
					if err != nil {
						t.Fatal(err)
					}
					acked := int64(0)
					for i := range int64(4) {
						o.Commit("g", "T", 0, i)
						o.Commit("g", "T", 1, -i*7)
						if o.Save() != nil {
							break
						}
						acked = i
					}
					after := mem.CrashClone(policy)
					again, err := OpenOffsets(after, configDir, nil)
					if err != nil {
						t.Fatalf("k=%d, acknowledged %d: %v", k, acked, err)
					}
					got, ok := again.Query("g", "T", 0)
					if ok && (got < acked || got > acked+1) || !ok && (acked > 0 || start != "") {
						t.Fatalf("k=%d, acknowledged %d: got %d %t", k, acked, got, ok)
					}
					// And the next life saves as well.
					again.Commit("g", "T", 0, 100)
					if err := again.Save(); err != nil {
						t.Fatal(err)
					}
					if got, _ := openOffsets(t, after.CrashClone(memfs.LoseUnsynced)).Query("g", "T", 0); got != 100 {
						t.Fatalf("k=%d: got %d after the next life", k, got)
					}
					if !ffs.Crashed() {
						break
					}
				}
			})
		}
	}
}

func TestTooLargeToSave(t *testing.T) {
	fsys := memfs.New()
	f := new(file)
	f.init(fsys, configDir, "x.json", nil)
	f.changes.Add(1)
	big := make([]byte, 256<<20+1)
	if err := f.save(func() []byte { return big }); err == nil || exists(fsys, "x.json") {
		t.Errorf("got %v", err)
	}
}

// TestTable: the copy-on-write map is a map.
func TestTable(t *testing.T) {
	var tab table[int]
	tab.fill(map[string]int{"a": 1, "b": 2})
	tab.set("c", 3)
	tab.set("a", 4)
	tab.remove("b")
	tab.remove("none")
	want := map[string]int{"a": 4, "c": 3}
	if got := tab.collect(); !maps.Equal(want, got) || tab.len() != 2 {
		t.Errorf("got %v, %d", got, tab.len())
	}
	if _, ok := tab.get("b"); ok {
		t.Error("b is there")
	}
	for range tab.all() { // stopping early is allowed
		break
	}
	if d := cmp.Diff(map[string]int{}, func() map[string]int { var empty table[int]; empty.fill(nil); return empty.collect() }()); d != "" {
		t.Error(d)
	}
}
