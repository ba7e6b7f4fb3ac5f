//go:build interop

package interop

import (
	"fmt"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/interop/javastore"
	"github.com/gantrymq/gantry/message"
)

// TestFeatures: what is off by default. We write, Java reads and appends, we
// read, Java reads again.
func TestFeatures(t *testing.T) {
	plain := func(i int) []*message.Message { return workload(1, i, true) }
	for _, tc := range []struct {
		name   string
		change func(c *golden.Config)
		topics javastore.Topics
		put    func(i int) []*message.Message
		check  func(t *testing.T, a *javastore.Answer)
	}{
		{
			name:   "property CRC",
			change: func(c *golden.Config) { c.PropertyCRC = true },
			put:    plain,
			check: func(t *testing.T, a *javastore.Answer) {
				for _, m := range a.Messages {
					if m.Properties[message.PropCRC32] == "" {
						t.Errorf("message at %d has no property CRC", m.PhysicalOffset)
					}
				}
			},
		},
		{
			name:   "several directories",
			change: func(c *golden.Config) { c.CommitLogPaths = "disk1/commitlog,disk2/commitlog" },
			put:    plain,
		},
		{
			name:   "queue extension",
			change: func(c *golden.Config) { c.ConsumeQueueExt = true },
			put:    plain,
			check: func(t *testing.T, a *javastore.Answer) {
				if q := a.Queue("InteropA", 0); q == nil || len(q.Ext) != len(q.Units) {
					t.Errorf("queue without extensions: %+v", q)
				}
			},
		},
		{
			name:   "light queues",
			change: func(c *golden.Config) { c.LightQueues, c.MultiDispatch = true, true },
			put: func(i int) []*message.Message {
				m := workload(1, 0, true)[0]
				m.Flag = int32(i)
				m.Properties = m.Properties.Set(message.PropInnerMultiDispatch, fmt.Sprintf("%%LMQ%%a,%%LMQ%%b%d", i%3))
				return []*message.Message{m}
			},
			check: func(t *testing.T, a *javastore.Answer) {
				if q := a.Queue("%LMQ%a", 0); q == nil || q.Max != puts {
					t.Errorf("light queue %+v, want %d messages", q, puts)
				}
			},
		},
		{
			name:   "batch queues",
			change: func(*golden.Config) {}, // the topic's attribute decides
			topics: javastore.Topics{
				batchTopic: {Queues: 1, Attributes: map[string]string{"queue.type": "BatchCQ"}},
				"InteropA": {Queues: 3}, "InteropB": {Queues: 3},
			},
			put: func(i int) []*message.Message {
				n := 1 + i%5
				m := workload(1, 0, true)[0]
				m.Topic, m.SysFlag, m.Body = batchTopic, message.InnerBatch|message.NeedUnwrap, nil
				for k := range n {
					var err error
					m.Body, err = message.AppendBatchItem(m.Body, message.BatchItem{Flag: int32(k), Body: fmt.Appendf(nil, "item %d of %d", k, i)})
					if err != nil {
						panic(err) // the same for every run
					}
				}
				m.Properties = m.Properties.Set(message.PropInnerNum, fmt.Sprint(n))
				return []*message.Message{m}
			},
			check: func(t *testing.T, a *javastore.Answer) {
				q := a.Queue(batchTopic, 0)
				if q == nil || q.Type != "BatchConsumeQueue" || len(q.BatchUnits) != puts || q.Max != puts/5*(1+2+3+4+5) {
					t.Errorf("batch queue: %+v", q)
				}
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			version := "5.4.0"
			java := javaStore(t, version)
			dir, c := t.TempDir(), small()
			tc.change(&c)
			s := open(t, dir, c)
			q := newQuestions(true)
			for i := range puts {
				var err error
				msgs := tc.put(i)
				if len(msgs) == 1 {
					_, err = s.Put(t.Context(), msgs[0])
				} else {
					_, err = s.PutBatch(t.Context(), msgs)
				}
				if err != nil {
					t.Fatalf("put %d: %v", i, err)
				}
				for _, m := range msgs {
					for key := range m.Keys() {
						q.key(m.Topic, key)
					}
				}
			}
			closeAndCheck(t, s, c)
			q.TopicConfig = tc.topics
			none := &history{wide: true}

			a, err := java.Read(t.Context(), dir, c, q.Questions)
			if err != nil {
				t.Fatal(err)
			}
			checkRead(t, a, none)
			if tc.check != nil {
				tc.check(t, a)
			}
			s = open(t, dir, c)
			compare(t, s, a, version, c)
			closeAndCheck(t, s, c)

			put, err := java.Append(t.Context(), dir, c, tc.topics, kinds, 7)
			if err != nil {
				t.Fatal(err)
			}
			checkPuts(t, put, kinds)
			s = open(t, dir, c)
			comparePuts(t, s, put.Puts)
			closeAndCheck(t, s, c)

			if a, err = java.Read(t.Context(), dir, c, q.Questions); err != nil {
				t.Fatal(err)
			}
			checkRead(t, a, &history{wide: true, java: put.Puts})
			s = open(t, dir, c)
			compare(t, s, a, version, c)
			closeAndCheck(t, s, c)
		})
	}
}
