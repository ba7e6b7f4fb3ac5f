package gantry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/check/checktest"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// modelMessage is a message as the model remembers it.
type modelMessage struct {
	topic     string
	queue     int32
	offset    message.QueueOffset
	physical  message.PhysicalOffset
	end       message.PhysicalOffset
	storeTime int64
	body      string
	key, tag  string
}

// model is a store as a list.
type model struct {
	t     *rapid.T
	fs    *memfs.FS
	clock *testClock
	opts  *Options
	s     *Store
	log   []modelMessage // all that exist, in the order of the log
	next  map[string]message.QueueOffset
	n     int
}

func queueName(topic string, id int32) string { return fmt.Sprintf("%s/%d", topic, id) }

func (m *model) open() {
	s, err := Open(context.Background(), testDir, m.opts)
	if err != nil {
		m.t.Fatalf("open: %v", err)
	}
	m.s = s
}

// message draws a message.
func (m *model) message() *message.Message {
	m.n++
	t := m.t
	msg := &message.Message{
		Topic:   rapid.SampledFrom([]string{"A", "B", "%RETRY%g"}).Draw(t, "topic"),
		QueueID: rapid.Int32Range(0, 1).Draw(t, "queue"),
		Body:    fmt.Appendf(nil, "%d:%*d", m.n, rapid.IntRange(1, 700).Draw(t, "size"), m.n),
	}
	// "Aa" and "BB" collide, in topic and key alike.
	key := rapid.SampledFrom([]string{"Aa", "BB", "k1", "k2", ""}).Draw(t, "key")
	tag := rapid.SampledFrom([]string{"Aa", "BB", ""}).Draw(t, "tag")
	msg.Properties = message.NewProperties("KEYS", key, "TAGS", tag, "UNIQ_KEY", fmt.Sprintf("u%d", m.n))
	return msg
}

func (m *model) remember(res PutResult, msgs ...*message.Message) {
	at := res.PhysicalOffset
	for i, msg := range msgs {
		size := message.PhysicalOffset(res.Size)
		if len(res.sizes) > 0 {
			size = message.PhysicalOffset(res.sizes[i])
		}
		key, _ := msg.Properties.Get("KEYS")
		mm := modelMessage{
			topic: msg.Topic, queue: msg.QueueID, offset: res.QueueOffset + message.QueueOffset(i),
			physical: at, end: at + size, storeTime: res.StoreTimestamp,
			body: string(msg.Body), key: key, tag: msg.Tags(),
		}
		at += size
		name := queueName(mm.topic, mm.queue)
		if mm.offset != m.next[name] {
			m.t.Fatalf("%s got offset %d, want %d", name, mm.offset, m.next[name])
		}
		m.next[name]++
		m.log = append(m.log, mm)
	}
}

func (m *model) put() {
	msg := m.message()
	res, err := m.s.Put(context.Background(), msg)
	if err != nil {
		m.t.Fatalf("put: %v", err)
	}
	m.remember(res, msg)
}

func (m *model) putBatch() {
	first := m.message()
	msgs := []*message.Message{first}
	for range rapid.IntRange(0, 3).Draw(m.t, "more") {
		msg := m.message()
		msg.Topic, msg.QueueID = first.Topic, first.QueueID
		msgs = append(msgs, msg)
	}
	res, err := m.s.PutBatch(context.Background(), msgs)
	if bodies := bodySize(msgs); errors.Is(err, ErrMessageIllegal) && bodies+len(msgs)*300 > int(m.opts.CommitLogFileSize) {
		return // may be too long for a file
	}
	if err != nil {
		m.t.Fatalf("batch: %v", err)
	}
	m.remember(res, msgs...)
}

func bodySize(msgs []*message.Message) (n int) {
	for _, m := range msgs {
		n += len(m.Body)
	}
	return n
}

// live returns the messages that retention has left.
func (m *model) live() []modelMessage {
	first, _ := m.s.Range()
	i := slices.IndexFunc(m.log, func(mm modelMessage) bool { return mm.physical >= first })
	if i < 0 {
		return nil
	}
	return m.log[i:]
}

// compare reads everything and compares it.
func (m *model) compare() {
	t := m.t
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	if err := m.s.WaitDispatched(ctx); err != nil {
		t.Fatal(err)
	}
	live := m.live()
	perQueue := make(map[string][]modelMessage)
	for _, mm := range live {
		name := queueName(mm.topic, mm.queue)
		perQueue[name] = append(perQueue[name], mm)
	}
	for name, next := range m.next {
		var topic string
		var id int32
		for _, mm := range m.log {
			if queueName(mm.topic, mm.queue) == name {
				topic, id = mm.topic, mm.queue
			}
		}
		if topic == "" {
			continue // all of its messages were lost in a crash
		}
		want := perQueue[name]
		lo, hi, err := m.s.QueueRange(topic, id)
		if err != nil {
			t.Fatal(err)
		}
		wantMin := next
		if len(want) > 0 {
			wantMin = want[0].offset
		}
		if lo != wantMin || hi != next {
			t.Fatalf("queue %s reaches from %d to %d, want %d to %d", name, lo, hi, wantMin, next)
		}
		off := lo
		for _, w := range want {
			res, err := m.s.Get(topic, id, off, GetOptions{Max: 1})
			if err != nil || len(res.Records) != 1 {
				t.Fatalf("get %s at %d: %+v, %v", name, off, res, err)
			}
			got, err := message.Decode(res.Records[0].Bytes)
			if err != nil || string(got.Body) != w.body || got.PhysicalOffset != w.physical || got.StoreTimestamp != w.storeTime {
				t.Fatalf("get %s at %d: %+v, %v; want %+v", name, off, got, err, w)
			}
			off = res.NextOffset
		}
	}
	m.compareKeys(live)
	m.compareTimes(perQueue)
}

func (m *model) compareKeys(live []modelMessage) {
	t := m.t
	topic := rapid.SampledFrom([]string{"A", "B"}).Draw(t, "topic of the query")
	key := rapid.SampledFrom([]string{"Aa", "BB", "k1", "none"}).Draw(t, "key of the query")
	tag := rapid.Bool().Draw(t, "by tag")
	from := m.clock.now() - rapid.Int64Range(-5, 3000).Draw(t, "from")
	to := from + rapid.Int64Range(0, 3000).Draw(t, "to")
	limit := rapid.IntRange(0, 3).Draw(t, "limit")
	var want []string
	for _, mm := range slices.Backward(live) {
		has := mm.key == key
		if tag {
			has = mm.tag == key
		}
		if mm.topic == topic && has && mm.storeTime >= from && mm.storeTime <= to && (limit == 0 || len(want) < limit) {
			want = append(want, mm.body)
		}
	}
	found, err := m.s.Query(context.Background(), topic, key, QueryOptions{From: from, To: to, Max: limit, Tag: tag})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range found {
		got = append(got, string(f.Body))
	}
	if !slices.Equal(got, want) {
		t.Fatalf("query %s %s tag=%v from %d to %d limit %d: got %q, want %q", topic, key, tag, from, to, limit, got, want)
	}
}

func (m *model) compareTimes(perQueue map[string][]modelMessage) {
	t := m.t
	ms := m.clock.now() - rapid.Int64Range(-5, 3000).Draw(t, "time")
	for name, msgs := range perQueue {
		last := msgs[len(msgs)-1]
		lower, upper, before := last.offset+1, msgs[0].offset, false
		for _, mm := range slices.Backward(msgs) {
			if mm.storeTime >= ms {
				lower = mm.offset
			}
			if mm.storeTime <= ms && !before {
				upper, before = mm.offset, true
			}
		}
		got, found, err := m.s.OffsetByTime(last.topic, last.queue, ms, Lower)
		if err != nil || got != lower || found != (lower <= last.offset) {
			t.Fatalf("%s lower(%d) = %d %v %v, want %d", name, ms, got, found, err, lower)
		}
		got, found, err = m.s.OffsetByTime(last.topic, last.queue, ms, Upper)
		if err != nil || got != upper || found != before {
			t.Fatalf("%s upper(%d) = %d %v %v, want %d %v", name, ms, got, found, err, upper, before)
		}
	}
}

// crash ends the machine, or only the process, and opens what is left.
func (m *model) crash() {
	policy := rapid.SampledFrom(memfs.Policies()).Draw(m.t, "policy")
	clone := m.fs.CrashClone(policy, rapid.Int64().Draw(m.t, "seed"))
	m.s.abandon()
	m.fs = clone
	m.opts = m.opts.with(func(o *Options) { o.FS = clone })
	m.open()
	// The survivors are a prefix of the log; under FlushSync, and when only
	// the process ended, that is all of it.
	_, end := m.s.Range()
	kept := 0
	for kept < len(m.log) && m.log[kept].end <= end {
		kept++
	}
	if kept < len(m.log) && (m.opts.Flush == FlushSync || policy == memfs.KeepAll) {
		m.t.Fatalf("%v: %d of %d messages survive; %+v", policy, kept, len(m.log), m.s.Recovery())
	}
	for _, mm := range m.log[kept:] {
		m.next[queueName(mm.topic, mm.queue)]--
	}
	m.log = m.log[:kept]
}

// TestModel compares a store with a list, over random puts, batches, queries,
// cleaning, stops and crashes, with random options and tiny files. A longer
// run: go test -run TestModel -rapid.checks=2000.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		m := &model{t: t, clock: newClock(), next: make(map[string]message.QueueOffset)}
		m.fs = memfs.NewCrashable(rapid.Int64().Draw(t, "seed"))
		m.opts = tinyOptions(m.fs, m.clock)
		m.opts.CommitLogFileSize = rapid.SampledFrom([]int64{2048, 4096, 20_000}).Draw(t, "log file size")
		m.opts.ConsumeQueueFileSize = rapid.SampledFrom([]int64{60, 200, 2000}).Draw(t, "queue file size")
		m.opts.IndexEntries = rapid.Int32Range(8, 60).Draw(t, "index entries")
		m.opts.Flush = rapid.SampledFrom([]FlushMode{FlushSync, FlushAsync}).Draw(t, "flush")
		m.opts.WriteWithoutMmap = rapid.Bool().Draw(t, "without mmap")
		m.opts.PropertyCRC = rapid.Bool().Draw(t, "property CRC")
		m.opts.Reserved = 3 * time.Second
		m.opts.DiskWarningPercent = 100
		m.open()
		t.Repeat(map[string]func(*rapid.T){
			"put":       func(*rapid.T) { m.put() },
			"put again": func(*rapid.T) { m.put() },
			"batch":     func(*rapid.T) { m.putBatch() },
			"time":      func(*rapid.T) { m.clock.add(time.Duration(rapid.IntRange(0, 900).Draw(t, "ms")) * time.Millisecond) },
			"back":      func(*rapid.T) { m.clock.add(-time.Duration(rapid.IntRange(0, 300).Draw(t, "ms")) * time.Millisecond) },
			"sync": func(t *rapid.T) {
				if err := m.s.Sync(context.Background()); err != nil {
					t.Fatal(err)
				}
			},
			"clean": func(t *rapid.T) {
				if err := m.s.Sync(context.Background()); err != nil {
					t.Fatal(err)
				}
				if _, err := m.s.Clean(context.Background(), CleanOptions{AnyHour: true}); err != nil {
					t.Fatal(err)
				}
			},
			"compare": func(*rapid.T) { m.compare() },
			"reopen": func(t *rapid.T) {
				if err := m.s.Close(); err != nil {
					t.Fatal(err)
				}
				m.open()
				if r := m.s.Recovery(); r.Replayed > 0 || !r.CleanStop {
					t.Fatalf("after a clean stop: %+v", r)
				}
			},
			"crash": func(*rapid.T) { m.crash() },
		})
		m.compare()
		if err := m.s.Close(); err != nil {
			t.Fatal(err)
		}
		checktest.Dir(failing{t: t}, m.fs, testDir)
	})
}

// failing lets helpers for testing.TB report through rapid.
type failing struct {
	testing.TB // only for what the helpers do not call
	t          *rapid.T
}

func (f failing) Helper()                           { f.t.Helper() }
func (f failing) Errorf(format string, args ...any) { f.t.Errorf(format, args...) }
