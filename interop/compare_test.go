//go:build interop

package interop

import (
	"crypto/sha256"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/interop/javastore"
	"github.com/gantrymq/gantry/message"
)

// open opens a store of ours and closes it when the test ends, if the test has
// not done so.
func open(t *testing.T, dir string, c golden.Config) *gantry.Store {
	t.Helper()
	s, err := gantry.Open(t.Context(), dir, options(dir, c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close %s: %v", dir, err)
		}
	})
	return s
}

// closeAndCheck closes a store and runs the checker over its directory.
func closeAndCheck(t *testing.T, s *gantry.Store, c golden.Config) {
	t.Helper()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	summary, err := check.Run(t.Context(), check.Options{Dir: s.Dir(), Level: check.Deep, CommitLogDirs: c.CommitLogDirs(s.Dir())}, func(f check.Finding) {
		if f.Severity == check.Error {
			t.Errorf("checker: %s", f)
		}
	})
	if err != nil {
		t.Error(err)
	}
	if summary.Abort {
		t.Errorf("the abort file is still there")
	}
}

// checkRead checks that Java read the whole store and lost nothing promised.
func checkRead(t *testing.T, a *javastore.Answer, h *history) {
	t.Helper()
	if !a.Load || !a.Dispatched || a.WalkStopped != "" {
		t.Fatalf("Java: load %t, dispatched %t, %s\n%s", a.Load, a.Dispatched, a.WalkStopped, a.Log)
	}
	for _, p := range h.ours {
		checkSent(t, &a.Observation, p, h.wide)
	}
	for _, p := range h.java {
		if a.Message(p.PhysicalOffset) == nil {
			t.Errorf("Java lost its own message at %d", p.PhysicalOffset)
		}
	}
	for _, q := range a.Queues {
		if q.UnitsStopped != nil {
			t.Errorf("queue %s/%d: Java cannot read unit %d", q.Topic, q.ID, *q.UnitsStopped)
		}
	}
}

// checkPuts checks that all puts of Java succeeded.
func checkPuts(t *testing.T, a *javastore.Answer, n int) {
	t.Helper()
	if !a.Load || len(a.Puts) != n {
		t.Fatalf("Java: load %t, %d puts of %d\n%s", a.Load, len(a.Puts), n, a.Log)
	}
	for _, p := range a.Puts {
		if p.Status != "PUT_OK" || p.AppendStatus != "PUT_OK" {
			t.Fatalf("Java's put failed: %+v", p)
		}
	}
}

// comparePuts checks that we read what Java put.
func comparePuts(t *testing.T, s *gantry.Store, puts []golden.Put) {
	t.Helper()
	for _, p := range puts {
		m, err := s.MessageAt(p.PhysicalOffset)
		if err != nil {
			t.Errorf("Java's put %d: %v", p.Number, err)
			continue
		}
		if m.Topic != p.Topic || m.QueueID != p.QueueID || m.StoreTimestamp != p.StoreTimestamp {
			t.Errorf("Java's put %+v is read as %+v", p, m)
		}
		if p.Messages > 1 {
			continue // Sent has the bytes of the batch
		}
		if m.SysFlag&^(message.BornHostV6|message.StoreHostV6) != p.Sent.SysFlag&^(message.BornHostV6|message.StoreHostV6) ||
			golden.Hash(sha256.Sum256(m.Body)) != p.Sent.BodySHA256 || m.Tags() != p.Sent.Tags {
			t.Errorf("Java's put %+v with %+v is read as %+v", p, p.Sent, m)
		}
		if keys, _ := m.Properties.Get(message.PropKeys); keys != p.Sent.Keys {
			t.Errorf("Java's put %d with keys %q has keys %q", p.Number, p.Sent.Keys, keys)
		}
	}
}

// unitTags lets every message pass and notes the tags codes of the units.
type unitTags struct{ codes []message.TagsCode }

func (u *unitTags) MatchUnit(tags message.TagsCode) bool {
	u.codes = append(u.codes, tags)
	return true
}

func (u *unitTags) MatchRecord(*message.View) bool { return true }

// compare checks that we see exactly what Java sees, and answer its questions
// as it does.
func compare(t *testing.T, s *gantry.Store, a *javastore.Answer, version string, c golden.Config) {
	t.Helper()
	if err := s.WaitDispatched(t.Context()); err != nil {
		t.Fatal(err)
	}
	first, end := s.Range()
	if size := message.PhysicalOffset(c.CommitLogFileSize); size > 0 && end%size == 0 && end-size < a.MaxPhysicalOffset && a.MaxPhysicalOffset < end {
		// A log that ends with a full file: Java leaves off the blank record.
		if _, err := s.MessageAt(a.MaxPhysicalOffset); err != nil {
			end = a.MaxPhysicalOffset
		}
	}
	if first != a.MinPhysicalOffset || end != a.MaxPhysicalOffset {
		t.Errorf("our log goes from %d to %d, Java's from %d to %d", first, end, a.MinPhysicalOffset, a.MaxPhysicalOffset)
	}
	for i := range a.Messages {
		want := &a.Messages[i]
		got, err := s.MessageAt(want.PhysicalOffset)
		if err != nil {
			t.Errorf("message at %d: %v", want.PhysicalOffset, err)
			continue
		}
		if d := want.Diff(&got) + want.DiffProperties(got.Properties.Map()); d != "" {
			t.Error(d)
		}
		if got.MsgID() != want.ID {
			t.Errorf("message at %d has id %s, in Java %s", want.PhysicalOffset, got.MsgID(), want.ID)
		}
	}
	compareQueues(t, s, a, version)
	compareKeys(t, s, a)
	compareTimes(t, s, a, version)
	compareGets(t, s, a, c)
	for _, l := range a.Lookups {
		m, err := s.MessageAt(l.PhysicalOffset)
		if err != nil || m.MsgID() != l.ID {
			t.Errorf("lookup at %d: %s, %v; in Java %s", l.PhysicalOffset, m.MsgID(), err, l.ID)
		}
	}
}

func compareQueues(t *testing.T, s *gantry.Store, a *javastore.Answer, version string) {
	t.Helper()
	// A read makes an empty queue in Java, so those do not count.
	var want, got []string
	for _, q := range a.Queues {
		if q.Max > 0 {
			want = append(want, fmt.Sprintf("%s/%d %d-%d", q.Topic, q.ID, q.Min, q.Max))
		}
	}
	for _, q := range s.Queues() {
		if q.MaxOffset > 0 {
			got = append(got, fmt.Sprintf("%s/%d %d-%d", q.Topic, q.QueueID, q.MinOffset, q.MaxOffset))
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("queues (-Java +ours):\n%s", d)
		return
	}
	for i := range a.Queues {
		if q := &a.Queues[i]; q.Max > 0 {
			if q.Topic == message.ScheduleTopic && golden.CompareVersions(version, "5.0.0") < 0 {
				forgiveDeliveryTimes(a, q)
			}
			compareUnits(t, s, q)
		}
	}
}

// forgiveDeliveryTimes: 4.9 recovers before it knows the delay levels, and so
// writes units of delayed messages again with the hash of the tag in place of
// the time of delivery, which we mend when we open the store.
func forgiveDeliveryTimes(a *javastore.Answer, q *golden.Queue) {
	delays, err := message.ParseDelayLevels(message.DefaultDelayLevels)
	if err != nil {
		panic(err) // a constant
	}
	for i, u := range q.Units {
		m := a.Message(u.Physical)
		if m == nil || u.TagsCode != message.HashTags(m.Properties[message.PropTags]) {
			continue
		}
		if level, err := strconv.Atoi(m.Properties[message.PropDelay]); err == nil {
			q.Units[i].TagsCode = message.TagsCode(m.StoreTimestamp + delays.Delay(level))
		}
	}
}

// compareUnits reads a queue message by message.
func compareUnits(t *testing.T, s *gantry.Store, q *golden.Queue) {
	t.Helper()
	var units []golden.Unit
	var batchUnits []golden.BatchUnit
	for at := q.Min; at < q.Max; {
		tags := &unitTags{}
		res, err := s.Get(q.Topic, q.ID, at, gantry.GetOptions{Max: 1, Filter: tags})
		if err != nil || res.Status != gantry.Found || len(res.Records) != 1 || len(tags.codes) == 0 || res.NextOffset <= at {
			t.Errorf("queue %s/%d at %d: %v, %d records, next %d, %v", q.Topic, q.ID, at, res.Status, len(res.Records), res.NextOffset, err)
			return
		}
		rec := res.Records[0]
		h, err := message.ParseHeader(rec.Bytes)
		if err != nil {
			t.Error(err)
			return
		}
		units = append(units, golden.Unit{Physical: h.PhysicalOffset, Size: int32(len(rec.Bytes)), TagsCode: tags.codes[0]})
		batchUnits = append(batchUnits, golden.BatchUnit{
			QueueOffset: rec.QueueOffset, Pos: h.PhysicalOffset, Size: int32(len(rec.Bytes)), TagsCode: tags.codes[0],
			BatchNum: int16(res.NextOffset - at), CompactedOffset: -1,
		})
		at = res.NextOffset
	}
	if q.Type != "ConsumeQueue" {
		if d := cmp.Diff(q.BatchUnits, batchUnits); d != "" {
			t.Errorf("batch units of %s/%d (-Java +ours):\n%s", q.Topic, q.ID, d)
		}
		return
	}
	want := slices.Clone(q.Units)
	for _, x := range q.Ext { // our filter sees what the extension says
		want[x.Offset-q.Min].TagsCode = x.TagsCode
	}
	if d := cmp.Diff(want, units); d != "" {
		t.Errorf("units of %s/%d (-Java +ours):\n%s", q.Topic, q.ID, d)
	}
}

func compareKeys(t *testing.T, s *gantry.Store, a *javastore.Answer) {
	t.Helper()
	for _, q := range a.KeyQueries {
		hits, err := s.Query(t.Context(), q.Topic, q.Key, gantry.QueryOptions{})
		if err != nil {
			t.Errorf("query %s %q: %v", q.Topic, q.Key, err)
		}
		compareHits(t, a, "key", q.Topic, q.Key, q.IndexOffsets, hits, func(m *golden.Message) bool { return hasKey(m, q.Key) })
	}
	for _, q := range a.TagQueries {
		hits, err := s.Query(t.Context(), q.Topic, q.Tags, gantry.QueryOptions{Tag: true})
		if err != nil {
			t.Errorf("query %s by tag %q: %v", q.Topic, q.Tags, err)
		}
		compareHits(t, a, "tag", q.Topic, q.Tags, q.IndexOffsets, hits, func(m *golden.Message) bool { return m.Properties[message.PropTags] == q.Tags })
	}
}

// compareHits compares what Java's index gives for a key with what we find.
// Java returns collisions, which its clients sort out; a message twice when it
// has a key twice or was indexed again in recovery; and no more than maxHits.
func compareHits(t *testing.T, a *javastore.Answer, what, topic, key string, index golden.Offsets, hits []message.Ext, matches func(*golden.Message) bool) {
	t.Helper()
	var want, got []message.PhysicalOffset
	for _, at := range index {
		if m := a.Message(at); m != nil && m.Topic == topic && matches(m) {
			want = append(want, at)
		}
	}
	slices.Sort(want)
	want = slices.Compact(want)
	slices.Reverse(want) // newest first
	for _, h := range hits {
		got = append(got, h.PhysicalOffset)
	}
	if len(index) == maxHits && len(got) > len(want) {
		got = got[:len(want)]
	}
	if !slices.Equal(want, got) {
		t.Errorf("query %s by %s %q: ours %d, Java's %d", topic, what, key, got, want)
	}
}

func hasKey(m *golden.Message, key string) bool {
	return m.Properties[message.PropUniqKey] == key ||
		slices.Contains(slices.Collect(message.NewProperties("KEYS", m.Properties[message.PropKeys]).Keys()), key)
}

func compareTimes(t *testing.T, s *gantry.Store, a *javastore.Answer, version string) {
	t.Helper()
	for _, q := range a.TimeQueries {
		if q.Lower == nil {
			continue // 4.9 answers with some message near the time
		}
		lower, _, err := s.OffsetByTime(q.Topic, q.QueueID, q.Timestamp, gantry.Lower)
		upper, _, err2 := s.OffsetByTime(q.Topic, q.QueueID, q.Timestamp, gantry.Upper)
		if err != nil || err2 != nil || lower != *q.Lower || upper != *q.Upper {
			t.Errorf("%s/%d by time %d: lower %d, upper %d, %v %v; in Java %s %d, %d", q.Topic, q.QueueID, q.Timestamp, lower, upper,
				err, err2, version, *q.Lower, *q.Upper)
		}
	}
}

func compareGets(t *testing.T, s *gantry.Store, a *javastore.Answer, c golden.Config) {
	t.Helper()
	for _, q := range a.GetMessage {
		res, err := s.Get(q.Topic, q.QueueID, q.Offset, gantry.GetOptions{Max: q.MaxMsgNums, WireLimits: true})
		if err != nil {
			t.Errorf("get %s/%d at %d: %v", q.Topic, q.QueueID, q.Offset, err)
		}
		if q.Status == "NO_MATCHED_LOGIC_QUEUE" || q.MaxOffset == 0 && res.Status == gantry.NoMatchedLogicQueue {
			continue // in Java the question makes the queue
		}
		got := golden.Get{
			Topic: q.Topic, QueueID: q.QueueID, Offset: q.Offset, MaxMsgNums: q.MaxMsgNums, Status: res.Status.String(),
			NextBeginOffset: res.NextOffset, MinOffset: res.MinOffset, MaxOffset: res.MaxOffset, Count: len(res.Records),
		}
		for _, r := range res.Records {
			got.BufferTotalSize += len(r.Bytes)
			h, err := message.ParseHeader(r.Bytes)
			if err != nil {
				t.Error(err)
			}
			got.PhyOffsets = append(got.PhyOffsets, h.PhysicalOffset)
		}
		perFile := message.QueueOffset(c.ConsumeQueueFileSize / 20)
		if q.NextBeginOffset%perFile == 0 && got.NextBeginOffset > q.NextBeginOffset && len(got.PhyOffsets) > len(q.PhyOffsets) {
			// Java returns nothing from the next queue file.
			got.PhyOffsets = got.PhyOffsets[:len(q.PhyOffsets)]
			got.NextBeginOffset, got.Count, got.BufferTotalSize = q.NextBeginOffset, q.Count, q.BufferTotalSize
		}
		if d := cmp.Diff(q, got, cmpopts.EquateEmpty()); d != "" {
			t.Errorf("get %s/%d at %d (-Java +ours):\n%s", q.Topic, q.QueueID, q.Offset, d)
		}
	}
}
