package metadata

import (
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

func openOffsets(t testing.TB, fsys *memfs.FS) *Offsets {
	t.Helper()
	o, err := OpenOffsets(fsys, configDir, nil)
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestCommit(t *testing.T) {
	o := openOffsets(t, memfs.New())
	commit := func(queueID int32, offset int64, want Committed, wantOffset int64, wantOK bool) {
		t.Helper()
		if got := o.Commit("g", "T", queueID, offset); got != want {
			t.Errorf("commit of %d in queue %d: got %v, want %v", offset, queueID, got, want)
		}
		if got, ok := o.Query("g", "T", queueID); got != wantOffset || ok != wantOK {
			t.Errorf("after a commit of %d in queue %d: got %d %t, want %d %t", offset, queueID, got, ok, wantOffset, wantOK)
		}
	}
	if _, ok := o.Query("g", "T", 0); ok {
		t.Error("an offset from nowhere")
	}
	commit(3, -1, NoOffset, 0, false)
	if got := o.Topics("g"); got != nil {
		t.Errorf("a commit of -1 makes %v", got)
	}
	commit(3, 100, Stored, 100, true)
	commit(1, 0, Stored, 0, true)
	commit(3, 50, Stored, 50, true) // also backwards
	commit(3, -1, NoOffset, 50, true)
	commit(-1, 5, Refused, 0, false)
	commit(MaxQueueNums, 5, Refused, 0, false)
	commit(MaxQueueNums-1, 5, Stored, 5, true)
	if got := o.Commit("g", "../T", 0, 5); got != Refused {
		t.Errorf("a topic with a bad name: %v", got)
	}
	if _, ok := o.Query("other", "T", 3); ok {
		t.Error("another group has the offset")
	}
	want := map[int32]int64{1: 0, 3: 50, MaxQueueNums - 1: 5}
	if d := cmp.Diff(want, o.Queues("g", "T")); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
	if d := cmp.Diff(map[string]map[int32]int64{"T@g": want}, o.Table().OffsetTable); d != "" {
		t.Errorf("table (-want +got)\n%s", d)
	}
}

// TestReset: while a reset is pending the target is the offset, whatever
// clients commit; a pull takes it once.
func TestReset(t *testing.T) {
	o := openOffsets(t, memfs.New())
	query := func(want int64, wantOK bool) {
		t.Helper()
		if got, ok := o.Query("g", "T", 2); got != want || ok != wantOK {
			t.Errorf("got %d %t, want %d %t", got, ok, want, wantOK)
		}
	}
	if _, pending := o.TakeReset("g", "T", 2); pending {
		t.Error("a reset from nowhere")
	}
	o.Commit("g", "T", 2, 500)
	if !o.AssignReset("g", "T", 2, 100) || !o.AssignReset("g", "T", 2, 120) {
		t.Fatal("refused")
	}
	query(120, true)
	if got := o.Commit("g", "T", 2, 501); got != ResetPending {
		t.Errorf("commit: %v", got)
	}
	if got := o.Commit("g", "T", 3, 7); got != Stored {
		t.Errorf("commit in another queue: %v", got)
	}
	query(120, true)
	if d := cmp.Diff(map[int32]int64{2: 120, 3: 7}, o.Queues("g", "T")); d != "" {
		t.Errorf("the target is not the offset\n%s", d)
	}
	if _, pending := o.TakeReset("g", "T", 3); pending {
		t.Error("another queue has a reset")
	}
	if _, pending := o.TakeReset("g", "none", 2); pending {
		t.Error("another topic has a reset")
	}
	if target, pending := o.TakeReset("g", "T", 2); target != 120 || !pending {
		t.Errorf("got %d %t", target, pending)
	}
	if _, pending := o.TakeReset("g", "T", 2); pending {
		t.Error("a reset was taken twice")
	}
	query(120, true)
	if got := o.Commit("g", "T", 2, 121); got != Stored {
		t.Errorf("commit after the pull: %v", got)
	}
	query(121, true)

	for name, ok := range map[string]bool{
		"negative target": o.AssignReset("g", "T", 2, -1),
		"negative queue":  o.AssignReset("g", "T", -1, 1),
		"no such queue":   o.AssignReset("g", "T", MaxQueueNums, 1),
		"bad topic":       o.AssignReset("g", "a b", 0, 1),
	} {
		if ok {
			t.Errorf("%s was possible", name)
		}
	}
	if n := o.resets.Load(); n != 0 {
		t.Errorf("%d resets are pending", n)
	}
}

func TestCloneOffsets(t *testing.T) {
	o := openOffsets(t, memfs.New())
	o.Commit("a", "T", 0, 5)
	o.Commit("a", "T", 2, 6)
	o.Commit("a", "U", 0, 7)
	o.Commit("b", "T", 1, 9)
	o.AssignReset("b", "T", 1, 3)
	if !o.Clone("a", "b", "T") || o.Clone("a", "b", "none") || o.Clone("none", "b", "T") || o.Clone("a", "", "T") {
		t.Error("wrong")
	}
	if !o.Clone("a", "a", "T") {
		t.Error("of itself")
	}
	want := map[int32]int64{0: 5, 2: 6}
	for _, group := range []string{"a", "b"} {
		if d := cmp.Diff(want, o.Queues(group, "T")); d != "" {
			t.Errorf("%s (-want +got)\n%s", group, d)
		}
	}
	o.Commit("b", "T", 0, 100)
	if got, _ := o.Query("a", "T", 0); got != 5 {
		t.Errorf("the clone shares its offsets: %d", got)
	}
	if _, pending := o.TakeReset("b", "T", 1); pending {
		t.Error("the reset of before is pending")
	}
}

// offsetsModel is what Offsets does, simply.
type offsetsModel struct {
	offsets, resets map[string]map[int32]int64 // by topic@group
}

func (m *offsetsModel) set(table map[string]map[int32]int64, key string, id int32, offset int64) {
	if table[key] == nil {
		table[key] = make(map[int32]int64)
	}
	table[key][id] = offset
}

// TestOffsetsModel: random calls, saving and opening again included.
func TestOffsetsModel(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		fsys := memfs.New()
		o := openOffsets(t, fsys)
		m := &offsetsModel{make(map[string]map[int32]int64), make(map[string]map[int32]int64)}
		group := rapid.SampledFrom([]string{"g", "h", "g@BROADCAST"})
		topic := rapid.SampledFrom([]string{"T", "U", "%RETRY%g"})
		id := rapid.Int32Range(-1, 5)
		offset := rapid.Int64Range(-2, 20)
		names := func() (g, tp, key string) {
			g, tp = group.Draw(r, "group"), topic.Draw(r, "topic")
			return g, tp, tp + "@" + g
		}
		r.Repeat(map[string]func(*rapid.T){
			"commit": func(r *rapid.T) {
				g, tp, key := names()
				id, offset := id.Draw(r, "id"), offset.Draw(r, "offset")
				want := Stored
				_, pending := m.resets[key][id]
				switch {
				case offset < 0:
					want = NoOffset
				case id < 0:
					want = Refused
				case pending:
					want = ResetPending
				default:
					m.set(m.offsets, key, id, offset)
				}
				if got := o.Commit(g, tp, id, offset); got != want {
					r.Fatalf("got %v, want %v", got, want)
				}
			},
			"assign": func(r *rapid.T) {
				g, tp, key := names()
				id, offset := id.Draw(r, "id"), offset.Draw(r, "offset")
				if o.AssignReset(g, tp, id, offset) != (id >= 0 && offset >= 0) {
					r.Fatal("wrong answer")
				}
				if id >= 0 && offset >= 0 {
					m.set(m.offsets, key, id, offset)
					m.set(m.resets, key, id, offset)
				}
			},
			"take": func(r *rapid.T) {
				g, tp, key := names()
				id := id.Draw(r, "id")
				want, wantOK := m.resets[key][id]
				delete(m.resets[key], id)
				if got, ok := o.TakeReset(g, tp, id); got != want || ok != wantOK {
					r.Fatalf("got %d %t, want %d %t", got, ok, want, wantOK)
				}
			},
			"clone": func(r *rapid.T) {
				g, tp, key := names()
				to := group.Draw(r, "to")
				source, ok := m.offsets[key]
				if o.Clone(g, to, tp) != ok {
					r.Fatal("wrong answer")
				}
				if ok && to != g {
					m.offsets[tp+"@"+to] = maps.Clone(source)
					delete(m.resets, tp+"@"+to)
				}
			},
			"delete": func(r *rapid.T) {
				g, tp, key := names()
				_, ok := m.offsets[key]
				if o.Delete(g, tp) != ok {
					r.Fatal("wrong answer")
				}
				delete(m.offsets, key)
				delete(m.resets, key)
			},
			"delete group": func(r *rapid.T) {
				g := group.Draw(r, "group")
				o.DeleteGroup(g)
				match := func(key string, _ map[int32]int64) bool { _, behind, _ := strings.Cut(key, "@"); return behind == g }
				maps.DeleteFunc(m.offsets, match)
				maps.DeleteFunc(m.resets, match)
			},
			"delete topic": func(r *rapid.T) {
				tp := topic.Draw(r, "topic")
				o.DeleteTopic(tp)
				match := func(key string, _ map[int32]int64) bool { return strings.HasPrefix(key, tp+"@") }
				maps.DeleteFunc(m.offsets, match)
				maps.DeleteFunc(m.resets, match)
			},
			"reopen": func(r *rapid.T) {
				if err := o.Save(); err != nil {
					r.Fatal(err)
				}
				o = openOffsets(t, fsys)
				clear(m.resets)
			},
			"": func(r *rapid.T) {
				if d := cmp.Diff(m.offsets, o.Table().OffsetTable); d != "" {
					r.Fatalf("(-want +got)\n%s", d)
				}
				for key, queues := range m.resets {
					tp, g, _ := strings.Cut(key, "@")
					for id, want := range queues {
						if got, ok := o.Query(g, tp, id); got != want || !ok {
							r.Fatalf("pending: got %d %t, want %d", got, ok, want)
						}
					}
				}
				size, resets := int64(0), int64(0)
				for i := range o.shards {
					for p, g := range o.shards[i].pairs {
						size += p.cost() + g.cost()
						resets += int64(len(g.resets))
					}
				}
				if size != o.size.Load() || resets != o.resets.Load() {
					r.Fatalf("size %d, resets %d are counted, there are %d and %d", o.size.Load(), o.resets.Load(), size, resets)
				}
			},
		})
	})
}

// TestOffsetsFull: when there is no room, known queues go on, new ones are
// refused, and deleting helps.
func TestOffsetsFull(t *testing.T) {
	o := openOffsets(t, memfs.New())
	o.Commit("g", "T", 0, 1)
	o.Commit("g", "T", 1, 1)
	used := o.size.Load()
	o.size.Store(MaxOffsetsSize)
	if got := o.Commit("g", "T", 0, 2); got != Stored {
		t.Errorf("known queue: %v", got)
	}
	for name, got := range map[string]Committed{"queue": o.Commit("g", "T", 2, 2), "topic": o.Commit("g", "U", 0, 2)} {
		if got != Refused {
			t.Errorf("new %s: %v", name, got)
		}
	}
	if o.AssignReset("g", "U", 0, 2) || o.Clone("g", "h", "T") {
		t.Error("a reset or a clone found room")
	}
	if got := o.size.Load(); got != MaxOffsetsSize {
		t.Errorf("size %d after refusals", got)
	}
	o.Delete("g", "T")
	if got := o.size.Load(); got != MaxOffsetsSize-used {
		t.Errorf("size %d after deleting", got)
	}
	if got := o.Commit("h", "T", 0, 2); got != Stored {
		t.Errorf("after deleting: %v", got)
	}
}

func TestLoadOffsets(t *testing.T) {
	type table = map[string]map[int32]int64
	tests := []struct {
		name, text string
		want       table
		saved      string // the offsetTable and what is behind, after a commit to z@z
	}{
		{"4.x", `{"offsetTable":{"T@g":{0:12,1:7}}}`, table{"T@g": {0: 12, 1: 7}}, `{"T@g":{0:12,1:7},"z@z":{0:1}}}`},
		{"quoted", `{"offsetTable":{"T@g":{"0":"12","1":7}}}`, table{"T@g": {0: 12, 1: 7}}, `{"T@g":{0:12,1:7},"z@z":{0:1}}}`},
		{"unsorted and repeated", `{"offsetTable":{"T@g":{7:1,3:2,7:3,5:4,3:5}}}`, table{"T@g": {3: 5, 5: 4, 7: 3}}, `{"T@g":{3:5,5:4,7:3},"z@z":{0:1}}}`},
		{"pair repeated", `{"offsetTable":{"T@g":{1:1},"T@g":{2:2}}}`, table{"T@g": {2: 2}}, `{"T@g":{2:2},"z@z":{0:1}}}`},
		{"none is -1", `{"offsetTable":{"T@g":{0:-1,1:7},"U@g":{0:-1}}}`, table{"T@g": {1: 7}, "U@g": {}}, `{"T@g":{1:7},"U@g":{},"z@z":{0:1}}}`},
		{"queue ids out of range", `{"offsetTable":{"T@g":{-1:3,2000000000:4}}}`, table{"T@g": {-1: 3, 2000000000: 4}}, `{"T@g":{-1:3,2000000000:4},"z@z":{0:1}}}`},
		{"broadcast", `{"offsetTable":{"T@g@__BROADCAST__":{0:1}}}`, table{"T@g@__BROADCAST__": {0: 1}}, `{"T@g@__BROADCAST__":{0:1},"z@z":{0:1}}}`},
		{"odd names", `{"offsetTable":{"@":{0:1},"\u00fc@\"":{0:2}}}`, table{"@": {0: 1}, "ü@\"": {0: 2}}, `{"@":{0:1},"z@z":{0:1},"ü@\"":{0:2}}}`},
		{"key without @", `{"offsetTable":{"T":[1,2],"T@g":{0:1}}}`, table{"T@g": {0: 1}}, `{"T":[1,2],"T@g":{0:1},"z@z":{0:1}}}`},
		{"unknown members", `{"lmqOffsetTable":{"a":5},"offsetTable":{},"groupTopicMap":{"g":["T"]},"x":null}`, table{}, `{"z@z":{0:1}},"lmqOffsetTable":{"a":5},"x":null}`},
		{"large", `{"offsetTable":{"T@g":{0:9223372036854775807}}}`, table{"T@g": {0: 9223372036854775807}}, `{"T@g":{0:9223372036854775807},"z@z":{0:1}}}`},
		{"nothing", `{}`, table{}, `{"z@z":{0:1}}}`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := memfs.New()
			writeFile(t, fsys, "consumerOffset.json", tt.text)
			o := openOffsets(t, fsys)
			if d := cmp.Diff(tt.want, o.Table().OffsetTable); d != "" {
				t.Errorf("(-want +got)\n%s", d)
			}
			o.Commit("z", "z", 0, 1)
			if err := o.Save(); err != nil {
				t.Fatal(err)
			}
			if _, got, _ := strings.Cut(readFile(t, fsys, "consumerOffset.json"), `"offsetTable":`); got != tt.saved {
				t.Errorf("saved\n got %s\nwant %s", got, tt.saved)
			}
		})
	}
}

// TestLightOffsetsWarn: the offsets of a broker with light queues are in a file
// of their own, which stays as it is.
func TestLightOffsetsWarn(t *testing.T) {
	fsys := memfs.New()
	const text = `{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":5},"offsetTable":{}}`
	writeFile(t, fsys, "lmqConsumerOffset.json", text)
	var l logs
	o, err := OpenOffsets(fsys, configDir, l.logger())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(l.String(), "lmqConsumerOffset.json") {
		t.Errorf("log: %s", &l)
	}
	o.Commit("g", "T", 0, 1)
	if err := o.Save(); err != nil {
		t.Fatal(err)
	}
	if got := readFile(t, fsys, "lmqConsumerOffset.json"); got != text {
		t.Errorf("it became %s", got)
	}
}

// TestCommitsWhileSaving: what was committed before a Save is in the file, and
// what is committed meanwhile is in the next.
func TestCommitsWhileSaving(t *testing.T) {
	fsys := memfs.New()
	o := openOffsets(t, fsys)
	const writers, commits = 4, 300
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for i := range int64(commits) {
				o.Commit(fmt.Sprint("g", w), fmt.Sprint("T", i%7), int32(i%5), i)
				o.Query(fmt.Sprint("g", w), "T1", 0)
			}
		})
	}
	stop := make(chan struct{})
	var saver sync.WaitGroup
	saver.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := o.Save(); err != nil {
					t.Error(err)
					return
				}
			}
		}
	})
	wg.Wait()
	close(stop)
	saver.Wait()
	if err := o.Save(); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(o.Table().OffsetTable, openOffsets(t, fsys).Table().OffsetTable); d != "" {
		t.Errorf("(-memory +file)\n%s", d)
	}
}
