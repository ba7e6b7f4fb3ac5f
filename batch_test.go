package gantry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

func TestPutBatch(t *testing.T) {
	fs := memfs.NewCrashable(1)
	opts := smallOptions(fs, newClock())
	s := mustOpen(t, opts)
	mustPut(t, s, testMessage("before"))
	var batch []*message.Message
	want := []string{"before"}
	for i := range 5 {
		batch = append(batch, testMessage(fmt.Sprintf("b%d", i), "KEYS", fmt.Sprintf("k%d", i)))
		want = append(want, fmt.Sprintf("b%d", i))
	}
	res, err := s.PutBatch(context.Background(), batch)
	if err != nil {
		t.Fatal(err)
	}
	if res.QueueOffset != 1 || res.Count != 5 {
		t.Errorf("result %+v", res)
	}
	mustPut(t, s, testMessage("after"))
	want = append(want, "after")
	waitDispatched(t, s)
	if got := bodies(t, s, "TopicTest", 0, 0); !slices.Equal(got, want) {
		t.Errorf("got %q", got)
	}
	for i, id := range strings.Split(res.MsgID(), ",") {
		m, err := s.MessageByID(id)
		if err != nil || string(m.Body) != fmt.Sprintf("b%d", i) || m.StoreTimestamp != res.StoreTimestamp {
			t.Errorf("id %s gives %q, %v", id, m.Body, err)
		}
	}
	mustClose(t, s)
	checkStore(t, fs)
}

func TestPutBatchRefusals(t *testing.T) {
	s := mustOpen(t, smallOptions(memfs.New(), newClock()).with(func(o *Options) { o.MaxMessageSize = 1000 }))
	defer mustClose(t, s)
	other := testMessage("x")
	other.QueueID = 1
	half := testMessage("x")
	half.SysFlag = message.TxPrepared
	for name, batch := range map[string][]*message.Message{
		"empty":         {},
		"two queues":    {testMessage("x"), other},
		"transaction":   {testMessage("x"), half},
		"delayed":       {testMessage("x"), testMessage("x", "DELAY", "3")},
		"no body":       {testMessage("x"), {Topic: "TopicTest"}},
		"too large":     {testMessage(strings.Repeat("x", 600)), testMessage(strings.Repeat("x", 600))},
		"bad delay":     {testMessage("x", "DELAY", "x")},
		"topic of path": {{Topic: "../x", Body: []byte("x")}},
	} {
		if res, err := s.PutBatch(context.Background(), batch); !errors.Is(err, ErrMessageIllegal) {
			t.Errorf("%s: %+v, %v", name, res, err)
		}
	}
	if _, end := s.Range(); end != 0 {
		t.Errorf("refused batches were stored: the log ends at %d", end)
	}
}

// TestBatchRollsWhole: a batch that does not fit into the rest of the file
// goes to the next one as a whole.
func TestBatchRollsWhole(t *testing.T) {
	fs := memfs.NewCrashable(1)
	s := mustOpen(t, tinyOptions(fs, newClock()))
	mustPut(t, s, testMessage(strings.Repeat("x", 3000)))
	batch := []*message.Message{testMessage(strings.Repeat("a", 300)), testMessage(strings.Repeat("b", 300)), testMessage(strings.Repeat("c", 300))}
	res, err := s.PutBatch(context.Background(), batch)
	if err != nil {
		t.Fatal(err)
	}
	if res.PhysicalOffset != 4096 {
		t.Errorf("the batch begins at %d", res.PhysicalOffset)
	}
	mustClose(t, s)
	checkStore(t, fs)
}

func TestLightQueues(t *testing.T) {
	fs := memfs.NewCrashable(1)
	opts := smallOptions(fs, newClock()).with(func(o *Options) { o.LightQueues = true })
	s := mustOpen(t, opts)
	for i := range 10 {
		names := "%LMQ%a,%LMQ%b,%LMQ%a"
		if i%2 == 1 {
			names = "%LMQ%b"
		}
		mustPut(t, s, testMessage(fmt.Sprint(i), "INNER_MULTI_DISPATCH", names))
	}
	check := func(s *Store) {
		t.Helper()
		for topic, want := range map[string][]string{
			"%LMQ%a":    {"0", "2", "4", "6", "8"},
			"%LMQ%b":    {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
			"TopicTest": {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"},
		} {
			if got := bodies(t, s, topic, 0, 0); !slices.Equal(got, want) {
				t.Errorf("%s: got %q", topic, got)
			}
		}
	}
	waitDispatched(t, s)
	check(s)
	crashed := kill(s, fs)
	s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
	check(s)
	if _, err := s.Put(context.Background(), testMessage("x", "INNER_MULTI_DISPATCH", "NoLightQueue")); !errors.Is(err, ErrMessageIllegal) {
		t.Errorf("a queue that is no light queue: %v", err)
	}
	mustClose(t, s)
	checkStore(t, crashed)
}

func TestInnerBatches(t *testing.T) {
	fs := memfs.NewCrashable(1)
	opts := smallOptions(fs, newClock()).with(func(o *Options) {
		o.IsBatchTopic = func(topic string) bool { return topic == "Bulk" }
	})
	s := mustOpen(t, opts)
	put := func(n int) (PutResult, error) {
		m := &message.Message{Topic: "Bulk", Body: []byte("single")}
		if n > 1 {
			m.Body = nil
			for i := range n {
				body, err := message.AppendBatchItem(m.Body, message.BatchItem{Body: fmt.Appendf(nil, "item %d", i)})
				if err != nil {
					t.Fatal(err)
				}
				m.Body = body
			}
			m.SysFlag = message.InnerBatch | message.NeedUnwrap
			m.Properties = message.NewProperties("INNER_NUM", fmt.Sprint(n), "UNIQ_KEY", "u")
		}
		return s.Put(context.Background(), m)
	}
	var offsets []message.QueueOffset
	for _, n := range []int{1, 4, 1, 7, 3} {
		res, err := put(n)
		if err != nil {
			t.Fatal(err)
		}
		offsets = append(offsets, res.QueueOffset)
	}
	if d := cmp.Diff([]message.QueueOffset{0, 1, 5, 6, 13}, offsets); d != "" {
		t.Errorf("queue offsets (-want +got)\n%s", d)
	}
	waitDispatched(t, s)
	check := func(s *Store) {
		t.Helper()
		if min, max, err := s.QueueRange("Bulk", 0); err != nil || min != 0 || max != 16 {
			t.Errorf("queue from %d to %d, %v", min, max, err)
		}
		// An offset inside a batch gives the record that holds it.
		res, err := s.Get("Bulk", 0, 8, GetOptions{Max: 1})
		if err != nil || len(res.Records) != 1 || res.Records[0].QueueOffset != 6 || res.NextOffset != 13 {
			t.Errorf("get at 8: %+v, %v", res, err)
		}
	}
	check(s)
	crashed := kill(s, fs)
	s = mustOpen(t, opts.with(func(o *Options) { o.FS = crashed }))
	check(s)
	for name, m := range map[string]*message.Message{
		"no number":                {Topic: "Bulk", Body: []byte("x"), SysFlag: message.InnerBatch, Properties: message.NewProperties("INNER_NUM", "x")},
		"number without a batch":   {Topic: "Bulk", Body: []byte("x"), Properties: message.NewProperties("INNER_NUM", "3")},
		"batch for a simple topic": {Topic: "TopicTest", Body: []byte("x"), SysFlag: message.InnerBatch, Properties: message.NewProperties("INNER_NUM", "3")},
	} {
		if _, err := s.Put(context.Background(), m); !errors.Is(err, ErrMessageIllegal) {
			t.Errorf("%s: %v", name, err)
		}
	}
	mustClose(t, s)
	checkStore(t, crashed)
}
