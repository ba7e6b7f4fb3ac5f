package gantry

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// crashInspection is what a store is found to hold.
type crashInspection struct {
	min, end message.PhysicalOffset
	messages map[crashPlace]crashFound
	recovery Recovery
}

// crashFound is a message as a reader sees it.
type crashFound struct {
	n        int
	physical message.PhysicalOffset
}

// inspect opens what a crash left and looks at everything: each queue without
// holes, each message once and found by its key; a second opening finds the
// same and has nothing to do; puts go on where they should; delayed messages
// come; and the checker has nothing to say. It does not know what was promised.
func (r *crashRun) inspect(fsys *memfs.FS, clock *testClock, look bool) (*crashInspection, error) {
	opts := r.opts.with(func(o *Options) { o.FS, o.Now, o.NoDelivery = fsys, clock.now, true })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var before *crashInspection
	if look { // a look shows what opening gives, and changes nothing; sizes are read off the files
		opts.CommitLogFileSize, opts.ConsumeQueueFileSize = 0, 0
		print := fsys.Fingerprint()
		err := withStore(ctx, opts.with(func(o *Options) { o.ReadOnly = true }), func(s *Store) (err error) {
			before, err = readAll(s)
			return err
		})
		// A crash before the log's directory was there leaves no store yet.
		if err != nil && !errors.Is(err, errNoStoreYet) {
			return nil, fmt.Errorf("read-only: %w", err)
		}
		if fsys.Fingerprint() != print {
			return nil, errors.New("opening read-only changed the files")
		}
	}
	var first *crashInspection
	err := withStore(ctx, opts, func(s *Store) (err error) {
		if first, err = readAll(s); err == nil {
			err = checkKeys(ctx, s, first)
		}
		if err == nil && before != nil && !maps.Equal(before.messages, first.messages) {
			err = fmt.Errorf("a look shows %v, opening %v", before.messages, first.messages)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("first opening: %w", err)
	}
	err = withStore(ctx, opts, func(s *Store) error {
		second, err := readAll(s)
		if err != nil {
			return err
		}
		if !maps.Equal(first.messages, second.messages) {
			return fmt.Errorf("it finds %v, the first found %v", second.messages, first.messages)
		}
		if rec := s.Recovery(); !rec.CleanStop || rec.Replayed > 0 || rec.Truncated > 0 || len(rec.Repaired) > 0 {
			return fmt.Errorf("after a clean stop it did work: %+v", rec)
		}
		return putMore(ctx, s, second)
	})
	if err != nil {
		return first, fmt.Errorf("second opening: %w", err)
	}
	if r.deliver {
		clock.add(time.Hour)
		err := withStore(ctx, opts.with(func(o *Options) { o.NoDelivery = false }), func(s *Store) error { return delivered(ctx, s) })
		if err != nil {
			return first, fmt.Errorf("third opening: %w", err)
		}
	}
	return first, checkImage(ctx, fsys, testDir, r.opts)
}

var errNoStoreYet = errors.New("no store yet")

// withStore opens, uses and closes a store.
func withStore(ctx context.Context, opts *Options, use func(*Store) error) error {
	s, err := Open(ctx, testDir, opts)
	if err != nil {
		if opts.ReadOnly && errors.Is(err, fs.ErrNotExist) {
			return errNoStoreYet
		}
		return fmt.Errorf("open: %w", err)
	}
	err = use(s)
	if cerr := s.Close(); err == nil && cerr != nil {
		err = fmt.Errorf("close: %w", cerr)
	}
	return err
}

// readAll reads all queues.
func readAll(s *Store) (*crashInspection, error) {
	in := &crashInspection{messages: make(map[crashPlace]crashFound), recovery: s.Recovery()}
	in.min, in.end = s.Range()
	for _, q := range s.Queues() {
		if q.MinOffset > 0 && in.min == 0 {
			return nil, fmt.Errorf("queue %s/%d begins at %d, the log at 0", q.Topic, q.QueueID, q.MinOffset)
		}
		if err := in.readQueue(s, q); err != nil {
			return nil, fmt.Errorf("queue %s/%d: %w", q.Topic, q.QueueID, err)
		}
	}
	return in, nil
}

func (in *crashInspection) readQueue(s *Store, q QueueInfo) error {
	seen := make(map[int]bool)
	for next := q.MinOffset; next < q.MaxOffset; {
		res, err := s.Get(q.Topic, q.QueueID, next, GetOptions{})
		if err != nil || res.Status != Found || len(res.Damaged) > 0 {
			return fmt.Errorf("get at %d of %d to %d: %v, %v, %v", next, q.MinOffset, q.MaxOffset, res.Status, err, res.Damaged)
		}
		msgs, err := res.Messages()
		if err != nil {
			return err
		}
		for i, m := range msgs {
			n := crashNumber(string(m.Body))
			if m.SysFlag&message.InnerBatch != 0 {
				n = innerNumber(&m)
			}
			// The same message twice in one queue is right only where a
			// delivery is repeated.
			_, delayed := m.Properties.Get(message.PropRealTopic)
			off := res.Records[i].QueueOffset
			if n == 0 || off != next || seen[n] && (!delayed || q.Topic == message.ScheduleTopic) {
				return fmt.Errorf("at offset %d stands message %d in slot %d, seen before: %v: %q", next, n, off, seen[n], m.Body)
			}
			seen[n] = true
			in.messages[crashPlace{q.Topic, q.QueueID, off}] = crashFound{n, m.PhysicalOffset}
			next++
			if count, err := m.Properties.InnerNum(); err == nil && m.SysFlag&message.InnerBatch != 0 {
				next = off + message.QueueOffset(count)
			}
		}
	}
	return nil
}

// checkKeys looks for the key of each message.
func checkKeys(ctx context.Context, s *Store, in *crashInspection) error {
	type query struct{ topic, key string }
	want := make(map[query][]message.PhysicalOffset)
	for place, m := range in.messages {
		topic := place.topic
		if message.IsLight(topic) {
			continue // the record's topic is another
		}
		q := query{topic, crashKey(m.n)}
		want[q] = append(want[q], m.physical)
	}
	for q, at := range want {
		slices.Sort(at)
		var got []message.PhysicalOffset
		found, err := s.Query(ctx, q.topic, q.key, QueryOptions{})
		if err != nil {
			return err
		}
		for _, m := range slices.Backward(found) {
			got = append(got, m.PhysicalOffset)
		}
		if !slices.Equal(got, at) {
			return fmt.Errorf("key %s of %s leads to %v, want %v", q.key, q.topic, got, at)
		}
	}
	return nil
}

// putMore stores one more message.
func putMore(ctx context.Context, s *Store, in *crashInspection) error {
	const topic, n = "TopicTest", 1 << 20
	want := message.QueueOffset(0)
	if _, next, err := s.QueueRange(topic, 0); err == nil {
		want = next
	}
	m := &message.Message{Topic: topic, Body: []byte(crashBody(n)), Properties: message.NewProperties("KEYS", crashKey(n))}
	res, err := s.Put(ctx, m)
	if err != nil {
		return fmt.Errorf("put: %w", err)
	}
	if res.QueueOffset != want || res.PhysicalOffset < in.end {
		return fmt.Errorf("a put got offset %d at %d, want %d, the log ended at %d", res.QueueOffset, res.PhysicalOffset, want, in.end)
	}
	if err := s.WaitDispatched(ctx); err != nil {
		return err
	}
	if found, err := s.Query(ctx, topic, crashKey(n), QueryOptions{}); err != nil || len(found) != 1 {
		return fmt.Errorf("a put is found %d times by its key, %v", len(found), err)
	}
	return nil
}

// delivered waits until every message of the schedule topic, all of which are
// due, has come to its own topic.
func delivered(ctx context.Context, s *Store) error {
	for {
		next := message.QueueOffset(0)
		if _, end, err := s.QueueRange("TopicTest", 0); err == nil {
			next = end
		}
		in, err := readAll(s)
		if err != nil {
			return err
		}
		there := make(map[int]bool)
		for place, m := range in.messages {
			there[m.n] = there[m.n] || place.topic != message.ScheduleTopic
		}
		missing := slices.DeleteFunc(slices.Sorted(maps.Keys(there)), func(n int) bool { return there[n] })
		if len(missing) == 0 {
			return nil
		}
		if err := s.WaitReadable(ctx, "TopicTest", 0, next); err != nil {
			return fmt.Errorf("delayed messages %v do not come: %w", missing, err)
		}
	}
}

// checkImage runs the consistency checker over a closed store.
func checkImage(ctx context.Context, fsys vfs.FS, dir string, opts *Options) error {
	var findings []error
	_, err := check.Run(ctx, check.Options{FS: fsys, Dir: dir, Level: check.Deep, DelayLevels: opts.DelayLevels, Workers: 1}, func(f check.Finding) {
		if f.Severity >= check.Warning {
			findings = append(findings, errors.New(f.String()))
		}
	})
	return errors.Join(append(findings, err)...)
}

// innerNumber is the number of the message that an inner batch stands for.
func innerNumber(m *message.Ext) int {
	key, _ := m.Properties.Get("KEYS")
	var n int
	if _, err := fmt.Sscanf(key, "k%d", &n); err != nil {
		return 0
	}
	return n
}
