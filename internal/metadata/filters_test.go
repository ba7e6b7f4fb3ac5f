package metadata

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/sqlfilter"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

// clock is a time that a test sets, in ms since 1970.
type clock struct{ now int64 }

func openFilters(t testing.TB, fsys *memfs.FS, c *clock) *Filters {
	t.Helper()
	f, err := OpenFilters(fsys, configDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.now = func() int64 { return c.now }
	return f
}

func sql(topic, expression string, version int64) remoting.Subscription {
	return remoting.Subscription{Topic: topic, SubString: expression, ExpressionType: remoting.ExpressionSQL92, SubVersion: version}
}

func tag(topic string) remoting.Subscription {
	return remoting.Subscription{Topic: topic, SubString: "*", ExpressionType: remoting.ExpressionTag}
}

// shape is what tests compare of a filter.
type shape struct {
	Expression             string
	Version, Born, DeadFor int64
	Compiled               bool
}

func shapeOf(f *Filters, topic, group string) *shape {
	e, ok := f.Get(topic, group)
	if !ok {
		return nil
	}
	return &shape{e.Expression, e.ClientVersion, e.BornTime, e.DeadTime, e.Expr != nil}
}

func TestRegisterFilter(t *testing.T) {
	// A filter "a = 1" of version 10, born at 100, is there; at 200 its group
	// registers something.
	tests := []struct {
		name     string
		dead     bool
		register []remoting.Subscription
		want     *shape
		err      bool
	}{
		{"the same", false, []remoting.Subscription{sql("T", "a = 1", 10)}, &shape{"a = 1", 10, 100, 0, true}, false},
		{"the same, newer", false, []remoting.Subscription{sql("T", "a = 1", 11)}, &shape{"a = 1", 11, 100, 0, true}, false},
		{"another, newer", false, []remoting.Subscription{sql("T", "a = 2", 11)}, &shape{"a = 2", 11, 200, 0, true}, false},
		{"another, older", false, []remoting.Subscription{sql("T", "a = 2", 9)}, &shape{"a = 1", 10, 100, 0, true}, false},
		{"another of one version", false, []remoting.Subscription{sql("T", "a = 2", 10)}, &shape{"a = 1", 10, 100, 0, true}, false},
		{"broken, newer", false, []remoting.Subscription{sql("T", "a =", 11)}, nil, true},
		{"broken, older", false, []remoting.Subscription{sql("T", "a =", 9)}, &shape{"a = 1", 10, 100, 0, true}, false},
		{"unknown type", false, []remoting.Subscription{{Topic: "T", SubString: "x", ExpressionType: "REGEX", SubVersion: 11}}, nil, true},
		{"tags now", false, []remoting.Subscription{tag("T")}, &shape{"a = 1", 10, 100, 200, true}, false},
		{"no expression", false, []remoting.Subscription{sql("T", "", 11)}, &shape{"a = 1", 10, 100, 200, true}, false},
		{"other topics", false, []remoting.Subscription{tag("U"), sql("V", "b = 1", 1)}, &shape{"a = 1", 10, 100, 200, true}, false},
		{"nothing", false, nil, &shape{"a = 1", 10, 100, 200, true}, false},

		{"dead: the same", true, []remoting.Subscription{sql("T", "a = 1", 10)}, &shape{"a = 1", 10, 100, 0, true}, false},
		{"dead: the same, older", true, []remoting.Subscription{sql("T", "a = 1", 5)}, &shape{"a = 1", 5, 100, 0, true}, false},
		{"dead: another, older", true, []remoting.Subscription{sql("T", "a = 2", 5)}, &shape{"a = 2", 5, 200, 0, true}, false},
		{"dead: broken", true, []remoting.Subscription{sql("T", "a =", 10)}, nil, true},
		{"dead: other topics", true, []remoting.Subscription{tag("U")}, &shape{"a = 1", 10, 100, 150, true}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := &clock{100}
			f := openFilters(t, memfs.New(), c)
			if err := f.Register("g", []remoting.Subscription{sql("T", "a = 1", 10)}); err != nil {
				t.Fatal(err)
			}
			if err := f.Register("other", []remoting.Subscription{sql("T", "a = 1", 10)}); err != nil {
				t.Fatal(err)
			}
			if tt.dead {
				c.now = 150
				f.Unregister("g")
			}
			before, _ := f.Get("T", "g")
			beforeCopy := *before
			c.now = 200
			if err := f.Register("g", tt.register); (err != nil) != tt.err {
				t.Errorf("error %v", err)
			}
			if d := cmp.Diff(tt.want, shapeOf(f, "T", "g")); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if d := cmp.Diff(&shape{"a = 1", 10, 100, 0, true}, shapeOf(f, "T", "other")); d != "" {
				t.Errorf("another group's filter\n%s", d)
			}
			if before.DeadTime != beforeCopy.DeadTime || before.ClientVersion != beforeCopy.ClientVersion {
				t.Error("what Get returned before was changed")
			}
			checkFilterCounts(t, f)
		})
	}
}

func checkFilterCounts(t *testing.T, f *Filters) {
	t.Helper()
	count, bytes := 0, 0
	for topic, list := range f.table.all() {
		for _, e := range list {
			count++
			bytes += len(e.Expression)
			if e.Topic != topic {
				t.Errorf("%s is listed under %s", e.Topic, topic)
			}
		}
		if len(list) == 0 || !slices.IsSortedFunc(list, byGroup) {
			t.Errorf("topic %s: %d filters, sorted: %t", topic, len(list), slices.IsSortedFunc(list, byGroup))
		}
	}
	if count != f.mu.count || bytes != f.mu.bytes || count != f.Len() {
		t.Errorf("%d filters of %d bytes are counted, there are %d of %d", f.mu.count, f.mu.bytes, count, bytes)
	}
}

func TestRegisterSyntaxError(t *testing.T) {
	f := openFilters(t, memfs.New(), &clock{1})
	err := f.Register("g", []remoting.Subscription{sql("T", "a =", 1), sql("U", "b = 1", 1)})
	var syntax *sqlfilter.SyntaxError
	if !errors.As(err, &syntax) || !strings.Contains(err.Error(), "group g on topic T") {
		t.Errorf("got %v", err)
	}
	if _, ok := f.Get("U", "g"); !ok || f.Len() != 1 {
		t.Error("the other filter is missing")
	}
}

func TestFilterListings(t *testing.T) {
	f := openFilters(t, memfs.New(), &clock{1})
	for _, group := range []string{"h", "g", "i"} {
		if err := f.Register(group, []remoting.Subscription{sql("T", "a = 1", 1), sql("U"+group, "a = 1", 1)}); err != nil {
			t.Fatal(err)
		}
	}
	var groups, topics []string
	for _, e := range f.OnTopic("T") {
		groups = append(groups, e.Group)
		if want := f.Bloom().Positions(e.Group, "T"); !slices.Equal(e.Positions, want) {
			t.Errorf("positions of %s: %v, want %v", e.Group, e.Positions, want)
		}
	}
	for _, e := range f.OfGroup("g") {
		topics = append(topics, e.Topic)
	}
	if !slices.Equal(groups, []string{"g", "h", "i"}) || !slices.Equal(topics, []string{"T", "Ug"}) {
		t.Errorf("groups %v, topics %v", groups, topics)
	}
	if f.OnTopic("none") != nil || f.OfGroup("none") != nil {
		t.Error("something from nowhere")
	}
}

func TestFilterCovers(t *testing.T) {
	e := &Filter{BornTime: 100}
	for at, want := range map[int64]bool{99: false, 100: false, 101: true} {
		if got := e.Covers(at); got != want {
			t.Errorf("%d: got %t, want %t", at, got, want)
		}
	}
}

// TestDeadFilters: a filter is kept for a day after its group has gone.
func TestDeadFilters(t *testing.T) {
	const day = 24 * 60 * 60 * 1000
	c := &clock{1000}
	f := openFilters(t, memfs.New(), c)
	for _, group := range []string{"gone", "stays"} {
		if err := f.Register(group, []remoting.Subscription{sql("T", "a = 1", 1)}); err != nil {
			t.Fatal(err)
		}
	}
	f.Unregister("gone")
	c.now = 1000 + day - 1
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	if shapeOf(f, "T", "gone") == nil {
		t.Error("forgotten too early")
	}
	c.now++
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	if shapeOf(f, "T", "gone") != nil || shapeOf(f, "T", "stays") == nil {
		t.Error("forgotten too late, or the wrong one")
	}
	checkFilterCounts(t, f)
}

// TestFiltersMakeRoom: at the bound the filters that have been dead longest
// go; live ones never.
func TestFiltersMakeRoom(t *testing.T) {
	c := &clock{1}
	f := openFilters(t, memfs.New(), c)
	for i := range 8 {
		if err := f.Register(fmt.Sprint("g", i), []remoting.Subscription{sql("T", "a = 1", 1)}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 6 {
		c.now = int64(100 - i) // g5 dies first
		f.Unregister(fmt.Sprint("g", i))
	}
	f.mu.bytes += MaxExpressions - 8*5 // as if there were more of them
	if err := f.Register("new", []remoting.Subscription{sql("T", "a = 2", 1)}); err != nil {
		t.Fatal(err)
	}
	for i := range 8 {
		if got, want := shapeOf(f, "T", fmt.Sprint("g", i)) != nil, i != 5 && i != 4; got != want {
			t.Errorf("g%d is there: %t", i, got)
		}
	}
	f.mu.bytes += MaxExpressions
	err := f.Register("newer", []remoting.Subscription{sql("T", "a = 3", 1)})
	if !errors.Is(err, ErrFull) || shapeOf(f, "T", "newer") != nil {
		t.Errorf("no room: %v", err)
	}
	if shapeOf(f, "T", "g7") == nil || shapeOf(f, "T", "g0") != nil {
		t.Error("a live filter has gone, or a dead one has not")
	}
}

const filterFile = `{"filterDataByTopic":{"Orders":{"groupFilterData":{"g1":{"bloomFilterData":{"bitNum":112,"bitPos":[55,9,75]},` +
	`"bornTime":1704067200000,"clientVersion":1704067200001,"consumerGroup":"g1","dead":%s,"deadTime":%s,"expression":"%s","expressionType":"SQL92","topic":"Orders"%s}},"topic":"Orders"}}}`

func TestLoadFilters(t *testing.T) {
	alive := fmt.Sprintf(filterFile, "false", "0", "price > 10", "")
	dead := fmt.Sprintf(filterFile, "true", "1704067300000", "price > 10", "")
	tests := []struct {
		name, text string
		want       *shape // DeadFor is checked for being set
		dirty      bool   // the file is to be written
		log        string // "" none
	}{
		{"dead", dead, &shape{"price > 10", 1704067200001, 1704067200000, 1704067300000, true}, false, ""},
		{"alive", alive, &shape{"price > 10", 1704067200001, 1704067200000, -1, true}, true, ""},
		{"does not compile", fmt.Sprintf(filterFile, "true", "1704067300000", "price >", ""), &shape{"price >", 1704067200001, 1704067200000, 1704067300000, false}, false, "does not compile"},
		{"unknown type", strings.Replace(dead, "SQL92", "REGEX", 1), &shape{"price > 10", 1704067200001, 1704067200000, 1704067300000, false}, false, "is not known"},
		{"other bit map", strings.Replace(dead, "112", "113", 1), nil, true, "other parameters"},
		{"other positions", strings.Replace(dead, "[55,9,75]", "[55,9]", 1), nil, true, "other parameters"},
		{"no positions", strings.Replace(dead, `"bloomFilterData":{"bitNum":112,"bitPos":[55,9,75]},`, "", 1), nil, true, "other parameters"},
		{"position out of range", strings.Replace(dead, "[55,9,75]", "[55,9,112]", 1), nil, true, "other parameters"},
		{"empty", `{"filterDataByTopic":{}}`, nil, false, ""},
		{"null", `{"filterDataByTopic":null}`, nil, false, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := memfs.New()
			writeFile(t, fsys, "consumerFilter.json", tt.text)
			var l logs
			f, err := OpenFilters(fsys, configDir, l.logger())
			if err != nil {
				t.Fatal(err)
			}
			got := shapeOf(f, "Orders", "g1")
			if got != nil && tt.want.DeadFor < 0 && got.DeadFor > got.Born {
				got.DeadFor = -1
			}
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			if dirty := f.Changes() > 0; dirty != tt.dirty {
				t.Errorf("%d changes", f.Changes())
			}
			if (l.String() != "") != (tt.log != "") || !strings.Contains(l.String(), tt.log) {
				t.Errorf("log %q, want %q", &l, tt.log)
			}
			checkFilterCounts(t, f)
		})
	}
}

// TestSaveFilters: what is saved is what upstream saves, and unknown members
// are kept.
func TestSaveFilters(t *testing.T) {
	fsys := memfs.New()
	text := fmt.Sprintf(filterFile, "true", "1704067300000", "price > 10", `,"future":{"a":[1]}`)
	writeFile(t, fsys, "consumerFilter.json", text[:len(text)-1]+`,"more":1}`)
	c := &clock{1704067300001}
	f := openFilters(t, fsys, c)
	if err := f.Register("h", []remoting.Subscription{sql("Orders", "a = 'ü\"'", 7)}); err != nil {
		t.Fatal(err)
	}
	f.Unregister("h")
	if err := f.Save(); err != nil {
		t.Fatal(err)
	}
	positions := f.Bloom().Positions("h", "Orders")
	h := fmt.Sprintf(`"h":{"bloomFilterData":{"bitNum":112,"bitPos":[%d,%d,%d]},"bornTime":1704067300001,"clientVersion":7,"consumerGroup":"h","dead":true,`+
		`"deadTime":1704067300001,"expression":"a = 'ü\"'","expressionType":"SQL92","topic":"Orders"}`, positions[0], positions[1], positions[2])
	want := strings.Replace(text, `{"a":[1]}}}`, `{"a":[1]}},`+h+`}`, 1)
	want = want[:len(want)-1] + `,"more":1}`
	if got := readFile(t, fsys, "consumerFilter.json"); got != want {
		t.Errorf("saved\n got %s\nwant %s", got, want)
	}
}
