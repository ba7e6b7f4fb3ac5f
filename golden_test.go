package gantry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/commitlog"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// goldenOptions are the options for a golden store: the settings it was
// written with, a clock behind its newest message, and no work of our own on
// its content.
func goldenOptions(m *golden.Manifest, fs vfs.FS) *Options {
	last := int64(testStart)
	for _, msg := range m.Messages {
		last = max(last, msg.StoreTimestamp)
	}
	return &Options{
		FS:                        fs,
		CommitLogFileSize:         m.Config.CommitLogFileSize,
		ConsumeQueueFileSize:      m.Config.ConsumeQueueFileSize,
		CommitLogDirs:             m.Config.CommitLogDirs(testDir),
		BatchConsumeQueueFileSize: m.Config.BatchConsumeQueueFileSize,
		ConsumeQueueExtFileSize:   m.Config.ConsumeQueueExtFileSize,
		IndexSlots:                m.Config.IndexSlots,
		IndexEntries:              m.Config.IndexEntries,
		IndexLocation:             m.Location(),
		QueueExt:                  m.Config.ConsumeQueueExt,
		LightQueues:               m.Config.LightQueues || m.Config.MultiDispatch,
		PropertyCRC:               m.Config.PropertyCRC,
		NoTagIndex:                !m.IndexesTags(),
		NoDelay:                   true,
		CleanInterval:             -1,
		Now:                       func() int64 { return last + 1 },
	}
}

// damagedInTheMiddle lists the stores that Java cuts at damage although valid
// records follow (store-behaviour L2). We refuse to write them.
func damagedInTheMiddle(name string) bool {
	return strings.HasSuffix(name, "crash-middle") || strings.HasSuffix(name, "badtopic")
}

// TestGolden opens every golden store, read-only and for writing, compares
// everything that can be read with what Java reads, and does so again after a
// clean stop.
func TestGolden(t *testing.T) {
	golden.Each(t, func(t *testing.T, name string) {
		m := golden.MustLoad(t, name)
		fs := memfs.New()
		if err := golden.UnpackTo(fs, testDir, name); err != nil {
			t.Fatal(err)
		}
		before := tree(t, fs)
		opts := goldenOptions(m, fs)

		s := mustOpen(t, opts.with(func(o *Options) { o.ReadOnly = true }))
		if damagedInTheMiddle(name) {
			goldenBehind(t, s, m)
		} else {
			compareGolden(t, s, m)
		}
		mustClose(t, s)
		unchanged(t, fs, before, "a read-only opening")

		if damagedInTheMiddle(name) {
			_, err := Open(context.Background(), testDir, opts)
			var corrupt *CorruptError
			if !errors.As(err, &corrupt) {
				t.Fatalf("opening a log with damage in the middle: %v", err)
			}
			unchanged(t, fs, before, "a refused opening")
			opts.Damage = QuarantineDamage
		}
		s = mustOpen(t, opts)
		compareGolden(t, s, m)
		if damagedInTheMiddle(name) && len(s.Recovery().Quarantined) == 0 {
			t.Error("nothing was set aside")
		}
		mustClose(t, s)
		s = mustOpen(t, opts)
		if r := s.Recovery(); !r.CleanStop || r.ForeignWriter || r.Replayed > 0 {
			t.Errorf("after our own clean stop: %+v", r)
		}
		compareGolden(t, s, m)
		if state := scrub(t, s); state.Findings > 0 {
			t.Errorf("a scrub finds damage: %+v", state)
		}
		mustClose(t, s)
	})
}

// TestGoldenRebuild throws queues, index and checkpoint of each golden store
// away and compares what is built from the log with what Java had built, byte
// for byte.
func TestGoldenRebuild(t *testing.T) {
	golden.Each(t, func(t *testing.T, name string) {
		m := golden.MustLoad(t, name)
		if reason := notDerivable(m, name); reason != "" {
			t.Log("not compared:", reason)
			return
		}
		fs := memfs.New()
		if err := golden.UnpackTo(fs, testDir, name); err != nil {
			t.Fatal(err)
		}
		java := readTree(t, fs)
		for file := range java {
			if dir, _, _ := strings.Cut(strings.TrimPrefix(file, testDir+"/"), "/"); derived[dir] {
				if err := fs.Remove(file); err != nil {
					t.Fatal(err)
				}
			}
		}
		s := mustOpen(t, goldenOptions(m, fs).with(func(o *Options) {
			o.IsBatchTopic = func(topic string) bool { return m.TopicConfig[topic].Attributes["queue.type"] == "BatchCQ" }
		}))
		mustClose(t, s)
		ours := readTree(t, fs)
		for _, dir := range []string{"consumequeue", "consumequeue_ext", "batchconsumequeue", "index"} {
			compareTrees(t, name, dir, java, ours)
		}
	})
}

var derived = map[string]bool{"consumequeue": true, "consumequeue_ext": true, "batchconsumequeue": true, "index": true, "checkpoint": true}

// notDerivable says why a store's queues and index do not follow from its log;
// "" when they do.
func notDerivable(m *golden.Manifest, name string) string {
	_, kind := golden.SplitName(name)
	switch {
	case m.Kind == golden.Crash:
		return "Java's own files are those of a crash"
	case damagedInTheMiddle(name):
		return "the log is damaged"
	case kind == "expired":
		return "queues and index still speak of messages that the log has lost"
	case kind == "cqext" || kind == "filter-dir":
		return "the bit maps of extensions come from the filters of consumers"
	case name == "5.4.0-lmqgap":
		return "Java put units into other slots than the offsets in their records"
	}
	return ""
}

// compareTrees compares the files of one directory; index files by their
// order, because their names are times.
func compareTrees(t *testing.T, store, dir string, java, ours map[string][]byte) {
	t.Helper()
	pick := func(all map[string][]byte) (names []string) {
		for name := range all {
			if strings.HasPrefix(name, path.Join(testDir, dir)+"/") {
				names = append(names, name)
			}
		}
		slices.Sort(names)
		return names
	}
	want, got := pick(java), pick(ours)
	if dir == "index" && len(want) == len(got) {
		for i := range want {
			diffBytes(t, want[i], java[want[i]], ours[got[i]])
		}
		return
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("%s: files (-java +ours)\n%s", dir, d)
		return
	}
	for _, name := range want {
		diffBytes(t, name, java[name], ours[name])
	}
}

func diffBytes(t *testing.T, name string, want, got []byte) {
	t.Helper()
	if bytes.Equal(want, got) {
		return
	}
	at := 0
	for at < min(len(want), len(got)) && want[at] == got[at] {
		at++
	}
	show := func(b []byte) []byte { return b[min(at, len(b)):min(at+48, len(b))] }
	t.Errorf("%s: %d and %d bytes, differ at %d\njava %x\nours %x", name, len(want), len(got), at, show(want), show(got))
}

func readTree(t *testing.T, fs vfs.FS) map[string][]byte {
	t.Helper()
	out := make(map[string][]byte)
	for _, f := range tree(t, fs) {
		name := path.Join(testDir, f.Path)
		h, err := fs.Open(name, vfs.ReadOnly)
		if err != nil {
			t.Fatal(err)
		}
		b := make([]byte, f.Size)
		if _, err := h.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		h.Close()
		out[name] = b
	}
	return out
}

func tree(t *testing.T, fs vfs.FS) []golden.File {
	t.Helper()
	files, err := golden.Tree(fs, testDir)
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func unchanged(t *testing.T, fs vfs.FS, before []golden.File, what string) {
	t.Helper()
	if d := golden.DiffTrees(before, tree(t, fs)); len(d) > 0 {
		t.Errorf("%s changed the directory:\n%s", what, strings.Join(d, "\n"))
	}
}

// compareGolden compares what s holds and answers with the manifest.
func compareGolden(t *testing.T, s *Store, m *golden.Manifest) {
	t.Helper()
	goldenMessages(t, s, m)
	goldenQueues(t, s, m)
	goldenKeys(t, s, m)
	goldenTimes(t, s, m)
	goldenGets(t, s, m)
	goldenLookups(t, s, m)
}

// goldenBehind checks a look at a store with damage in the middle: what Java
// has is there, and so are messages behind the damage, by queue and by key.
func goldenBehind(t *testing.T, s *Store, m *golden.Manifest) {
	t.Helper()
	for _, want := range m.Messages {
		if got, err := s.MessageAt(want.PhysicalOffset); err != nil || want.Diff(&got) != "" {
			t.Errorf("message at %d: %v", want.PhysicalOffset, err)
		}
	}
	behind, damaged := 0, 0
	for _, q := range s.Queues() {
		for off := q.MinOffset; off < q.MaxOffset; {
			res, err := s.Get(q.Topic, q.QueueID, off, GetOptions{})
			if err != nil || res.NextOffset == off {
				t.Fatalf("get %s/%d at %d: %v, next %d", q.Topic, q.QueueID, off, err, res.NextOffset)
			}
			off = res.NextOffset
			damaged += len(res.Damaged)
			msgs, err := res.Messages()
			if err != nil {
				t.Fatal(err)
			}
			for _, msg := range msgs {
				if msg.PhysicalOffset < m.MaxPhysicalOffset {
					continue
				}
				behind++
				for key := range msg.Keys() {
					found, err := s.Query(context.Background(), msg.Topic, key, QueryOptions{})
					has := slices.ContainsFunc(found, func(f message.Ext) bool { return f.PhysicalOffset == msg.PhysicalOffset })
					if !has {
						t.Errorf("message at %d is not found by its key %q: %v", msg.PhysicalOffset, key, err)
					}
				}
			}
		}
	}
	wantBehind, wantDamaged := 348, 1
	if m.Store == "badtopic" {
		wantBehind, wantDamaged = 3, 0 // Java never made a unit for the damaged one
	}
	if behind != wantBehind || damaged != wantDamaged {
		t.Errorf("%d messages behind the damage and %d damaged ones, want %d and %d", behind, damaged, wantBehind, wantDamaged)
	}
}

func goldenMessages(t *testing.T, s *Store, m *golden.Manifest) {
	t.Helper()
	if first, end := s.Range(); first != m.MinPhysicalOffset || end != m.MaxPhysicalOffset {
		t.Errorf("the log reaches from %d to %d, in Java from %d to %d", first, end, m.MinPhysicalOffset, m.MaxPhysicalOffset)
	}
	i := 0
	_, err := s.log.Scan(context.Background(), s.log.Min(), s.log.End(), commitlog.ScanOptions{Check: message.CheckOptions{BodyCRC: true}}, func(v *message.View) error {
		if i == len(m.Messages) {
			return fmt.Errorf("message at %d, which Java does not have", v.PhysicalOffset)
		}
		got := v.Decode()
		if d := m.Messages[i].Diff(&got); d != "" {
			t.Errorf("message %d:\n%s", i, d)
		}
		if d := m.Messages[i].DiffProperties(got.Properties.Map()); d != "" {
			t.Errorf("message %d:\n%s", i, d)
		}
		i++
		return nil
	})
	if err != nil || i != len(m.Messages) {
		t.Errorf("read %d of %d messages: %v", i, len(m.Messages), err)
	}
}

// goldenUnits returns the units that Java lists for a queue, without what it
// delivered while it was being looked at.
func goldenUnits(m *golden.Manifest, q golden.Queue) []golden.Unit {
	units := q.Units
	if n := len(units); n > 0 && units[n-1].Physical == m.MaxPhysicalOffset {
		units = units[:n-1]
	}
	return units
}

func goldenQueues(t *testing.T, s *Store, m *golden.Manifest) {
	t.Helper()
	type row struct {
		Topic    string
		ID       int32
		Min, Max message.QueueOffset
	}
	var want, got []row
	for _, q := range m.Queues {
		r := row{q.Topic, q.ID, q.Min, q.Max}
		r.Max -= message.QueueOffset(len(q.Units) - len(goldenUnits(m, q)))
		if expiredInJava49(m, q) {
			r.Min = r.Max // 4.9 keeps min 0 and answers with foreign bytes
		}
		if r.Max > 0 {
			want = append(want, r)
		}
	}
	for _, q := range s.Queues() {
		if q.MaxOffset > 0 {
			got = append(got, row{q.Topic, q.QueueID, q.MinOffset, q.MaxOffset})
		}
	}
	slices.SortFunc(want, func(a, b row) int {
		return strings.Compare(fmt.Sprintf("%s\x00%09d", a.Topic, a.ID), fmt.Sprintf("%s\x00%09d", b.Topic, b.ID))
	})
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("queues (-java +ours)\n%s", d)
	}
	for _, q := range m.Queues {
		ours := s.queues.Get(q.Topic, q.ID)
		if ours != nil && ours.Max() > 0 && !expiredInJava49(m, q) {
			goldenQueueUnits(t, s, m, q, ours)
		}
	}
}

// expiredInJava49: 4.9 does not correct the minimum of a queue whose messages
// are all gone (store-behaviour 1.10).
func expiredInJava49(m *golden.Manifest, q golden.Queue) bool {
	if m.AtLeast("5.0.0") || len(q.Units) == 0 {
		return false
	}
	for _, u := range q.Units {
		if u.Physical >= m.MinPhysicalOffset {
			return false
		}
	}
	return true
}

func goldenQueueUnits(t *testing.T, s *Store, m *golden.Manifest, q golden.Queue, ours *consumequeue.Queue) {
	t.Helper()
	if len(q.BatchUnits) > 0 {
		var want, got []consumequeue.BatchUnit
		for _, u := range q.BatchUnits {
			want = append(want, consumequeue.BatchUnit{Physical: u.Pos, Size: u.Size, Tags: u.TagsCode, Base: u.QueueOffset, Count: u.BatchNum, Compacted: u.CompactedOffset})
		}
		r := placeReader{queue: ours, next: ours.Min()}
		for {
			p, ok, err := r.read()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			u := r.batch[r.at-1]
			u.StoreTime = 0 // not in the manifest
			got = append(got, u)
			_ = p
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("batch queue %s/%d (-java +ours)\n%s", q.Topic, q.ID, d)
		}
		return
	}
	units := goldenUnits(m, q)
	r := placeReader{queue: ours, next: ours.Min()}
	for i, want := range units {
		p, ok, err := r.read()
		if err != nil || !ok {
			t.Fatalf("queue %s/%d has %d units, %d in Java: %v", q.Topic, q.ID, i, len(units), err)
		}
		got := golden.Unit{Physical: p.Physical, Size: p.Size, TagsCode: p.Tags}
		if got != want {
			t.Fatalf("queue %s/%d offset %d holds %+v, in Java %+v", q.Topic, q.ID, p.offset, got, want)
		}
		if i < len(q.Ext) && q.Ext[i].Size > 0 {
			x, err := ours.GetExt(p.Tags)
			if err != nil {
				t.Fatalf("extension of queue %s/%d offset %d: %v", q.Topic, q.ID, p.offset, err)
			}
			if w := q.Ext[i]; x.Tags != w.TagsCode || x.StoreTime != w.MsgStoreTime || !bytes.Equal(x.Bitmap, w.BitMap) {
				t.Fatalf("extension of queue %s/%d offset %d is %+v, in Java %+v", q.Topic, q.ID, p.offset, x, w)
			}
		}
	}
}

// withKey returns the positions of the messages that a query by key has to
// find, newest first: from the manifest's messages, not from an index.
func withKey(m *golden.Manifest, topic string, begin, end int64, has func(p map[string]string) bool) []message.PhysicalOffset {
	var out []message.PhysicalOffset
	for _, msg := range slices.Backward(m.Messages) {
		if msg.Topic == topic && msg.SysFlag.Indexed() && msg.StoreTimestamp >= begin && msg.StoreTimestamp <= end && has(msg.Properties) {
			out = append(out, msg.PhysicalOffset)
		}
	}
	return out
}

func goldenKeys(t *testing.T, s *Store, m *golden.Manifest) {
	t.Helper()
	ask := func(what, topic, key string, max int, opts QueryOptions, want []message.PhysicalOffset) {
		t.Helper()
		opts.Max = max
		found, err := s.Query(context.Background(), topic, key, opts)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		var got []message.PhysicalOffset
		for _, f := range found {
			got = append(got, f.PhysicalOffset)
		}
		if max > 0 && len(want) > max {
			want = want[:max]
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", what, got, want)
		}
	}
	for _, q := range m.KeyQueries {
		want := withKey(m, q.Topic, q.Begin, q.End, func(p map[string]string) bool {
			return p["UNIQ_KEY"] == q.Key || slices.Contains(strings.Split(p["KEYS"], " "), q.Key)
		})
		if q.Key == "" {
			want = nil
			continue
		}
		ask(fmt.Sprintf("key %q of %s from %d to %d", q.Key, q.Topic, q.Begin, q.End), q.Topic, q.Key, q.MaxNum,
			QueryOptions{From: q.Begin, To: positive(q.End)}, want)
	}
	for _, q := range m.TagQueries {
		want := withKey(m, q.Topic, q.Begin, q.End, func(p map[string]string) bool { return p["TAGS"] == q.Tags })
		ask(fmt.Sprintf("tag %q of %s", q.Tags, q.Topic), q.Topic, q.Tags, q.MaxNum, QueryOptions{From: q.Begin, To: positive(q.End), Tag: true}, want)
	}
}

// positive is an upper bound that is not taken for "none".
func positive(ms int64) int64 { return max(ms, 1) }

func goldenTimes(t *testing.T, s *Store, m *golden.Manifest) {
	t.Helper()
	for _, q := range m.TimeQueries {
		mq := m.Queue(q.Topic, q.QueueID)
		if mq == nil || mq.Max == 0 {
			continue
		}
		times := make(map[message.QueueOffset]int64)
		next := mq.Min
		for _, u := range goldenUnits(m, *mq) {
			if msg := m.Message(u.Physical); msg != nil {
				times[next] = msg.StoreTimestamp
			}
			next++
		}
		if len(times) == 0 {
			continue
		}
		lower, upper := next, message.QueueOffset(math.MinInt64)
		for off, ms := range times {
			if ms >= q.Timestamp {
				lower = min(lower, off)
			}
			if ms <= q.Timestamp {
				upper = max(upper, off)
			}
		}
		got, found, err := s.OffsetByTime(q.Topic, q.QueueID, q.Timestamp, Lower)
		if err != nil || got != lower || found != (lower < next) {
			t.Errorf("%s/%d lower(%d) = %d %v %v, want %d", q.Topic, q.QueueID, q.Timestamp, got, found, err, lower)
		}
		wantFound := upper != math.MinInt64
		if !wantFound {
			upper = mq.Min
		}
		got, found, err = s.OffsetByTime(q.Topic, q.QueueID, q.Timestamp, Upper)
		if err != nil || got != upper || found != wantFound {
			t.Errorf("%s/%d upper(%d) = %d %v %v, want %d %v", q.Topic, q.QueueID, q.Timestamp, got, found, err, upper, wantFound)
		}
		if q.Lower != nil && (lower != *q.Lower || upper != *q.Upper) {
			t.Errorf("%s/%d at %d: Java says %d and %d, the messages say %d and %d", q.Topic, q.QueueID, q.Timestamp, *q.Lower, *q.Upper, lower, upper)
		}
	}
}

func goldenGets(t *testing.T, s *Store, m *golden.Manifest) {
	t.Helper()
	for _, g := range m.GetMessage {
		if m.TopicConfig[g.Topic].Attributes["cleanup.policy"] == "COMPACTION" {
			continue // Java answers from its compacted copy
		}
		got, err := s.Get(g.Topic, g.QueueID, g.Offset, GetOptions{Max: g.MaxMsgNums, WireLimits: true})
		if err != nil {
			t.Fatal(err)
		}
		want := g.Status
		mq := m.Queue(g.Topic, g.QueueID)
		switch {
		case mq == nil || mq.Max == 0:
			// A queue that does not exist is not made by asking (R1).
			if got.Status != NoMatchedLogicQueue && got.Status != NoMessageInQueue {
				t.Errorf("get %s/%d: %v for a queue without messages", g.Topic, g.QueueID, got.Status)
			}
			continue
		case expiredInJava49(m, *mq), len(goldenUnits(m, *mq)) != len(mq.Units):
			continue // Java's minimum, or maximum, is not that of the files
		}
		if fileSize := m.Config.ConsumeQueueFileSize; fileSize > 0 && len(got.Records) > g.Count && int64(g.NextBeginOffset)*consumequeue.UnitSize%fileSize == 0 {
			// Java stops at the end of a queue file; we go on (R8).
			got.Records, got.NextOffset = got.Records[:g.Count], g.NextBeginOffset
		}
		// An inner batch counts as its messages in Java.
		var positions golden.Offsets
		count := 0
		for _, r := range got.Records {
			ext, err := message.Decode(r.Bytes)
			if err != nil {
				t.Fatal(err)
			}
			positions = append(positions, ext.PhysicalOffset)
			if _, num, ok := ext.Properties.InnerBatch(); ok && ext.SysFlag&message.InnerBatch != 0 {
				count += int(num)
			} else {
				count++
			}
		}
		if got.Status.String() != want || got.NextOffset != g.NextBeginOffset || got.MinOffset != g.MinOffset || got.MaxOffset != g.MaxOffset ||
			count != g.Count || !slices.Equal(positions, g.PhyOffsets) {
			t.Errorf("get %s/%d at %d max %d: %v next %d (%d to %d) %d messages %v, in Java %s next %d (%d to %d) %d messages %v",
				g.Topic, g.QueueID, g.Offset, g.MaxMsgNums, got.Status, got.NextOffset, got.MinOffset, got.MaxOffset, count, positions,
				want, g.NextBeginOffset, g.MinOffset, g.MaxOffset, g.Count, g.PhyOffsets)
		}
	}
}

func goldenLookups(t *testing.T, s *Store, m *golden.Manifest) {
	t.Helper()
	for _, l := range m.Lookups {
		got, err := s.MessageAt(l.PhysicalOffset)
		if m.Message(l.PhysicalOffset) == nil {
			if err == nil {
				t.Errorf("message at %d, where none begins", l.PhysicalOffset)
			}
			continue
		}
		if err != nil || got.MsgID() != l.ID {
			t.Errorf("message at %d is %s, in Java %s: %v", l.PhysicalOffset, got.MsgID(), l.ID, err)
		}
	}
}
