package gantry

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"

	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/message"
)

// removals are the topics whose queues were removed, and where the log ended
// then: records of a topic before that belong to no queue, however often they are
// replayed. A topic goes from here when the log has none of them left.
type removals map[string]message.PhysicalOffset

// cover reports whether a record of the topic was removed with its queues.
func (r removals) cover(topic string, at message.PhysicalOffset) bool {
	end, ok := r[topic]
	return ok && at < end
}

// removalsFile is removedTopics.json: beside upstream's files, so that it goes
// where they go.
type removalsFile struct {
	Removed map[string]int64 `json:"removedTopics"`
}

func (s *Store) removalsName() string { return filepath.Join(s.dir, "config", "removedTopics.json") }

// errRetired: the queue that a put was for has been removed; it has to begin
// again.
var errRetired = errors.New("the queue was removed meanwhile")

// RemoveTopic removes the queues of a topic: its messages cannot be read by queue
// any more, and the next ones get offsets from 0 on, as in a Java broker
// (RocketMQ: DefaultMessageStore.deleteTopics). In the log, and by id and key,
// they are found until they expire. A topic without queues is no error. When
// RemoveTopic returns nil, no crash brings the messages back.
//
// A put that runs beside it is before or after it.
func (s *Store) RemoveTopic(ctx context.Context, topic string) error {
	if err := checkNames(topic, 0); err != nil {
		return err
	}
	if topic == message.ScheduleTopic {
		return illegal("topic", "is where delayed messages wait")
	}
	if s.closed.Load() {
		return ErrClosed
	}
	if s.opts.ReadOnly {
		return fmt.Errorf("the store was opened read-only: %w", ErrReadOnly)
	}
	if err := s.failure(); err != nil {
		return fmt.Errorf("%w: %w", ErrReadOnly, err)
	}
	if err := s.log.Flush(ctx); err != nil { // most of it before others have to wait
		return fmt.Errorf("remove topic %s: %w", topic, err)
	}
	found, err := s.removeTopic(topic)
	if err != nil {
		return fmt.Errorf("remove topic %s: %w", topic, err)
	}
	if !found {
		return nil
	}
	s.opts.Logger.Info("removed the queues of a topic", "topic", topic)
	return s.writeCheckpoint(ctx, false)
}

func (s *Store) removeTopic(topic string) (found bool, err error) {
	s.dispatchMu.Lock() // nothing is dispatched meanwhile
	defer s.dispatchMu.Unlock()
	if batch := *s.batchTopics.Load(); batch[topic] { // made again, it is what its maker says
		batch = maps.Clone(batch)
		delete(batch, topic)
		s.batchTopics.Store(&batch)
	}
	end, found, err := s.retire(topic)
	if err != nil || !found && !s.removalFailed {
		return false, err
	}
	defer s.table.settle(topic)
	// What is removed must be behind the end that a crash could leave, or new
	// records would take its place in the log.
	if err := s.log.Flush(context.Background()); err != nil {
		return true, err // final
	}
	if found {
		next := maps.Clone(s.removed)
		if next == nil {
			next = make(removals)
		}
		next[topic] = end
		s.removed = next
	}
	// Queues that are gone without a note come back with a replay; a note
	// whose queues are there still is made good by the next opening.
	err = errors.Join(s.saveRemovals(), s.queues.RemoveTopic(topic))
	s.removalFailed = err != nil
	return true, err
}

// retire takes the queues of a topic away from puts. Every record of theirs is in
// the log before end.
func (s *Store) retire(topic string) (end message.PhysicalOffset, found bool, err error) {
	s.gate.Lock() // no put is between its offset and its record
	defer s.gate.Unlock()
	if s.closed.Load() {
		return 0, false, ErrClosed
	}
	t := &s.table
	t.mu.Lock()
	defer t.mu.Unlock()
	for key, q := range t.m {
		if key.topic == topic {
			q.removed.Store(true)
			delete(t.m, key)
			found = true
		}
	}
	for q := range s.queues.Topic(topic) {
		found = found || q.Max() > 0
	}
	if found {
		t.removing = topic
	}
	return s.log.End(), found, nil
}

// settle ends what retire began: the queues are gone.
func (t *queueTable) settle(topic string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.removing == topic {
		t.removing = ""
	}
}

// saveRemovals writes the removals that still mean something. The caller holds
// dispatchMu, or is recovery.
func (s *Store) saveRemovals() error {
	maps.DeleteFunc(s.removed, func(_ string, end message.PhysicalOffset) bool { return end <= s.log.Min() })
	file := removalsFile{make(map[string]int64, len(s.removed))}
	for topic, end := range s.removed {
		file.Removed[topic] = int64(end)
	}
	data, err := json.Marshal(file)
	if err != nil {
		return err
	}
	if err := s.fs.MkdirAll(filepath.Dir(s.removalsName())); err != nil {
		return err
	}
	return javajson.Save(s.fs, s.removalsName(), append(data, '\n'))
}

// recoverRemovals reads the removals before anything is replayed, and ends those
// that a crash has interrupted: then all records are compared with the queues.
func (s *Store) recoverRemovals(plan *recoveryPlan, end message.PhysicalOffset) error {
	s.removed = make(removals)
	used, cause, err := javajson.Load(s.fs, s.removalsName(), func(f removalsFile) {
		for topic, at := range f.Removed {
			s.removed[topic] = message.PhysicalOffset(at)
		}
	})
	if cause = errors.Join(cause, err); cause != nil {
		s.warn("topics that were removed, read from %q: %v", used, cause)
	}
	changed := false
	for topic, at := range s.removed {
		if at > end { // the log is not the one it was: what comes there now is new
			s.removed[topic] = end
			changed = true
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(s.removed)) {
		if !s.holdsRemoved(topic) {
			continue
		}
		s.repaired("topic %s was removed, its queues were not", topic)
		if err := s.queues.RemoveTopic(topic); err != nil {
			return fmt.Errorf("remove topic %s: %w", topic, err)
		}
		plan.replayFrom = s.log.Min()
	}
	if changed {
		return s.saveRemovals()
	}
	return nil
}

// holdsRemoved reports whether a queue of the topic is from before its removal, or
// what is left of one.
func (s *Store) holdsRemoved(topic string) bool {
	end := s.removed[topic]
	if end <= s.log.Min() {
		return false
	}
	for q := range s.queues.Topic(topic) {
		if q.Max() > 0 && q.MaxPhysical() <= end {
			return true
		}
		if p, err := placeAt(q, q.Min()); err == nil && p.Valid() && p.Physical < end {
			return true
		}
	}
	return false
}
