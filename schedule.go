package gantry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/javajson"
	"github.com/gantrymq/gantry/message"
)

// timerProps ask for a delay of any length.
var timerProps = []string{message.PropTimerDelaySec, message.PropTimerDelayMS, message.PropTimerDeliverMS}

// scheduled returns m, or when its DELAY property is a level above 0 a message
// for the schedule topic, written to space (format: section 16.1).
func (s *Store) scheduled(m *message.Message, space *message.Message) (*message.Message, error) {
	level, err := m.DelayLevel()
	if err != nil {
		return nil, illegal(message.PropDelay, "%v", err)
	}
	timed := false
	for _, name := range timerProps {
		if _, ok := m.Properties.Get(name); !ok {
			continue
		}
		if timed = true; level <= 0 {
			return nil, illegal(name, "asks for a delay of its own length; this store has delay levels only")
		}
	}
	if level <= 0 || m.Topic == message.ScheduleTopic {
		return m, nil
	}
	*space = *m
	if timed { // the level wins, and nobody is to take the message for a timer later
		for _, name := range timerProps {
			space.Properties = space.Properties.Delete(name)
		}
	}
	if top := s.delays.Max(); level > top {
		level = top
		space.Properties = space.Properties.Set(message.PropDelay, strconv.Itoa(level))
	}
	space.Properties = space.Properties.
		Set(message.PropRealTopic, m.Topic).
		Set(message.PropRealQueueID, strconv.Itoa(int(m.QueueID)))
	space.Topic, space.QueueID = message.ScheduleTopic, int32(level-1)
	return space, nil
}

// scheduler delivers the messages of the schedule topic when their time has
// come (RocketMQ: ScheduleMessageService). Delivery is at least once: after a
// crash those delivered since the last checkpoint are delivered again.
type scheduler struct {
	s       *Store
	arrived chan struct{} // a message has come into the schedule topic

	mu      sync.Mutex
	offsets map[int]message.QueueOffset // level -> the next to deliver
	saved   map[int]message.QueueOffset // as they stand in the file
	version int64                       // of the file
}

const (
	// scheduleRetryPause is the pause after a delivery that failed.
	scheduleRetryPause = 100 * time.Millisecond
	// scheduleCheck bounds the time that a change of the system clock goes
	// unnoticed.
	scheduleCheck = time.Second
)

// delayOffsets is delayOffset.json (format: section 14.6).
type delayOffsets struct {
	DataVersion struct {
		Counter int64 `json:"counter"`
	} `json:"dataVersion"`
	OffsetTable map[int]int64 `json:"offsetTable"`
}

func (d *scheduler) file() string {
	return filepath.Join(d.s.dir, "config", "delayOffset.json")
}

// load reads the offsets and brings each into the limits of its queue.
func (d *scheduler) load(s *Store) error {
	d.s = s
	d.arrived = make(chan struct{}, 1)
	d.offsets = make(map[int]message.QueueOffset)
	used, cause, err := javajson.Load(s.fs, d.file(), func(v delayOffsets) {
		d.version = v.DataVersion.Counter
		for level, off := range v.OffsetTable {
			d.offsets[level] = message.QueueOffset(off)
		}
	})
	if cause = errors.Join(cause, err); cause != nil {
		s.warn("offsets of delayed messages, read from %q: %v", used, cause)
	}
	for level := 1; level <= s.delays.Max(); level++ {
		q := s.queues.Get(message.ScheduleTopic, int32(level-1))
		if q == nil {
			continue
		}
		if off, known := d.offsets[level]; known {
			d.offsets[level] = min(max(off, 0), q.Max())
			d.next(level, q)
		} else if q.Max() > 0 {
			d.offsets[level] = q.Min()
		}
	}
	d.saved = maps.Clone(d.offsets)
	return nil
}

// snapshot returns the offsets when they differ from the file, else nil. What
// was delivered below them is in the log by then: save them after flushing it.
func (d *scheduler) snapshot() map[int]message.QueueOffset {
	d.mu.Lock()
	defer d.mu.Unlock()
	if maps.Equal(d.offsets, d.saved) {
		return nil
	}
	return maps.Clone(d.offsets)
}

// save writes offsets that snapshot returned.
func (d *scheduler) save(offsets map[int]message.QueueOffset) error {
	if offsets == nil {
		return nil
	}
	if err := d.s.fs.MkdirAll(filepath.Dir(d.file())); err != nil {
		return err
	}
	levels := make([]int, 0, len(offsets))
	for level := range offsets {
		levels = append(levels, level)
	}
	slices.Sort(levels)
	out := fmt.Appendf(nil, "{\n\t\"dataVersion\":{\n\t\t\"counter\":%d,\n\t\t\"stateVersion\":0,\n\t\t\"timestamp\":%d\n\t},\n\t\"offsetTable\":{", d.version+1, d.s.opts.Now())
	for i, level := range levels {
		if i > 0 {
			out = append(out, ',')
		}
		out = fmt.Appendf(out, "%d:%d", level, offsets[level])
	}
	out = append(out, "\n\t}\n}"...)
	if err := javajson.Save(d.s.fs, d.file(), out); err != nil {
		return fmt.Errorf("save the offsets of delayed messages: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.version++
	d.saved = offsets
	return nil
}

// notify tells that a message has come into the schedule topic.
func (d *scheduler) notify() {
	select {
	case d.arrived <- struct{}{}:
	default:
	}
}

// run delivers until ctx ends.
func (d *scheduler) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-d.arrived:
		case <-timer.C:
		}
		wait := d.deliverDue(ctx)
		if wait < 0 {
			timer.Stop() // nothing is waiting: the next arrival wakes us
			continue
		}
		timer.Reset(min(wait, scheduleCheck))
	}
}

// deliverDue delivers what is due in all levels and returns how long nothing
// else will be; negative: nothing is waiting.
func (d *scheduler) deliverDue(ctx context.Context) time.Duration {
	next := time.Duration(-1)
	for level := 1; level <= d.s.delays.Max(); level++ {
		wait, err := d.deliverLevel(ctx, level)
		if err != nil {
			if ctx.Err() != nil {
				return -1
			}
			d.s.reportWriteError("delivery of delayed messages", err)
			wait = scheduleRetryPause
		}
		if wait >= 0 && (next < 0 || wait < next) {
			next = wait
		}
	}
	return next
}

// deliverLevel delivers what is due in one level and returns the time until
// its next message is; negative: it has none.
func (d *scheduler) deliverLevel(ctx context.Context, level int) (time.Duration, error) {
	q := d.s.queues.Get(message.ScheduleTopic, int32(level-1))
	if q == nil {
		return -1, nil
	}
	off := d.next(level, q)
	for ; off < q.Max(); off++ {
		if ctx.Err() != nil {
			return -1, ctx.Err()
		}
		u, err := placeAt(q, off)
		if err != nil {
			return -1, err
		}
		if u.Valid() {
			now := d.s.opts.Now()
			wait := int64(d.s.unitTags(q, u.Unit)) - now
			// Further ahead than the level's delay: the clock was set back.
			if wait > 0 && wait <= d.s.delays.Delay(level) {
				d.set(level, off)
				return time.Duration(wait) * time.Millisecond, nil
			}
			if err := d.deliver(ctx, u.Physical); err != nil {
				return -1, err
			}
			d.set(level, off+1)
		}
	}
	d.set(level, off)
	return -1, nil
}

func (d *scheduler) set(level int, off message.QueueOffset) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if now, known := d.offsets[level]; !known || off > now {
		d.offsets[level] = off
	}
}

// next returns the next offset of a level to deliver. Messages whose files
// went before their time are reported (store-behaviour T4).
func (d *scheduler) next(level int, q *consumequeue.Queue) message.QueueOffset {
	d.mu.Lock()
	off, known := d.offsets[level]
	first := q.Min()
	if known && off < first {
		d.offsets[level] = first
	}
	d.mu.Unlock()
	if known && off < first {
		d.s.reportDamage(fmt.Errorf("delayed message lost: %d of level %d went with the log's files before their time", first-off, level))
	}
	return max(off, first)
}

// deliver appends the message at a position to its own topic. A message that
// cannot be read, or never could have been stored, is reported and passed by:
// it must not hold up the others.
func (d *scheduler) deliver(ctx context.Context, at message.PhysicalOffset) error {
	m, err := d.s.MessageAt(at)
	if errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNotFound) {
		d.s.reportDamage(fmt.Errorf("delayed message lost: %w", err))
		return nil
	}
	if err != nil {
		return err
	}
	real := m.Message
	topic, _ := m.Properties.Get(message.PropRealTopic)
	id, _ := m.Properties.Get(message.PropRealQueueID)
	queueID, err := strconv.ParseInt(id, 10, 32)
	if err != nil || checkNames(topic, int32(queueID)) != nil {
		d.s.reportDamage(fmt.Errorf("delayed message at %d names no topic to deliver to: %s=%q %s=%q", at, message.PropRealTopic, topic, message.PropRealQueueID, id))
		return nil
	}
	real.Topic, real.QueueID = topic, int32(queueID)
	if real.Body == nil {
		real.Body = []byte{}
	}
	props := real.Properties.Reserved()
	res, err := d.s.put(ctx, &real, &props, false)
	if err != nil {
		if errors.Is(err, ErrMessageIllegal) || errors.Is(err, ErrPropertiesSizeExceeded) {
			d.s.reportDamage(fmt.Errorf("delayed message at %d cannot be delivered: %w", at, err))
			return nil
		}
		return err
	}
	if d.s.opts.Events.Delivered != nil {
		d.s.opts.Events.Delivered(topic, res.Size)
	}
	return nil
}

// DelayProgress says how far the messages of one delay level were delivered.
type DelayProgress struct {
	Level int
	Next  message.QueueOffset // the next to deliver, in queue Level-1 of the schedule topic
	End   message.QueueOffset // of that queue
}

// Delays returns how far each delay level has come that was ever used, and the
// version of the offsets as they were last saved.
func (s *Store) Delays() (levels []DelayProgress, version int64) {
	d := &s.scheduler
	d.mu.Lock()
	for level, next := range d.offsets {
		levels = append(levels, DelayProgress{Level: level, Next: next})
	}
	version = d.version
	d.mu.Unlock()
	slices.SortFunc(levels, func(a, b DelayProgress) int { return a.Level - b.Level })
	for i := range levels {
		if q := s.queues.Get(message.ScheduleTopic, int32(levels[i].Level-1)); q != nil {
			levels[i].End = q.Max()
		}
	}
	return levels, version
}

// pendingFrom returns the position of the oldest message that waits for its
// time, or MaxInt64.
func (d *scheduler) pendingFrom() message.PhysicalOffset {
	first := message.PhysicalOffset(math.MaxInt64)
	for level := 1; level <= d.s.delays.Max(); level++ {
		q := d.s.queues.Get(message.ScheduleTopic, int32(level-1))
		if q == nil {
			continue
		}
		d.mu.Lock()
		off := max(d.offsets[level], q.Min())
		d.mu.Unlock()
		if u, err := placeAt(q, off); err == nil && u.Valid() {
			first = min(first, u.Physical)
		}
	}
	return first
}
