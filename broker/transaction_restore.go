package broker

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
)

// javaCopies are half messages from before the start that a Java broker may have
// copied without naming the first: copies are known by their unique key, and
// told from another message with the same key by their number of checks.
type javaCopies struct {
	byKey map[string]*half
	keyOf map[*half]string
}

func (j *javaCopies) add(key string, h *half) {
	if key == "" {
		return
	}
	if j.byKey == nil {
		j.byKey, j.keyOf = make(map[string]*half), make(map[*half]string)
	}
	if before := j.byKey[key]; before != nil {
		delete(j.keyOf, before)
	}
	j.byKey[key], j.keyOf[h] = h, key
}

func (j *javaCopies) forget(h *half) {
	if key, ok := j.keyOf[h]; ok {
		delete(j.byKey, key)
		delete(j.keyOf, h)
	}
}

// restore finds the half messages that are open in the store. Nobody uses t yet.
func (t *transactions) restore() error {
	r := restoring{t: t, over: make(map[message.QueueOffset]bool), keysOver: make(map[string]bool)}
	if err := t.scan(message.OpHalfTopic, r.op); err != nil {
		return err
	}
	if err := t.scan(message.HalfTopic, r.half); err != nil {
		return err
	}
	if n := len(t.open); n > 0 {
		t.b.log.Info("transactions are open", "count", n)
	}
	return nil
}

// restoring is what restore knows while it reads.
type restoring struct {
	t        *transactions
	over     map[message.QueueOffset]bool // by the offset of any copy
	keysOver map[string]bool              // of half messages that are over and name no first
}

// op takes in an op message.
func (r *restoring) op(m *message.Ext) {
	r.t.opEnd = m.QueueOffset + 1
	if m.Tags() != opTag {
		return
	}
	for s := range strings.SplitSeq(string(m.Body), ",") {
		if n, err := strconv.ParseInt(strings.TrimSpace(s), 10, 64); err == nil {
			r.over[message.QueueOffset(n)] = true
			r.t.ops = append(r.t.ops, op{m.QueueOffset, message.QueueOffset(n)})
		}
	}
}

// half takes in a half message or copy: it takes the place of what it is a copy
// of. When one of several is over, all are.
func (r *restoring) half(m *message.Ext) {
	t := r.t
	t.halfEnd = m.QueueOffset + 1
	first, linked := firstOf(m)
	key := m.Properties.UniqKey()
	javas := !linked && checkTimes(m.Properties) > 0
	h := t.open[first]
	if h == nil && javas {
		h = t.javas.byKey[key]
	}
	if r.over[m.QueueOffset] || r.over[first] || javas && r.keysOver[key] {
		r.over[first] = true
		if !linked {
			r.keysOver[key] = true
		}
		if h != nil {
			r.over[h.first] = true
			t.release(h, true)
		}
		return
	}
	if h == nil {
		h = &half{first: first, group: groupOf(&m.Message), topic: meantFor(&m.Message), restored: true}
		t.openLocked(h)
		if !linked {
			t.javas.add(key, h)
		}
	}
	t.moveLocked(h, m.QueueOffset, m.PhysicalOffset, t.due(m.Properties, m.StoreTimestamp))
}

// scan calls fn for each message of queue 0 of a topic from the saved offset on.
func (t *transactions) scan(topic string, fn func(*message.Ext)) error {
	first, end, err := t.b.store.QueueRange(topic, 0)
	if errors.Is(err, gantry.ErrNotFound) {
		return nil
	}
	if err != nil {
		return err
	}
	at := first
	if saved, ok := t.b.offsets.Query(metadata.TransactionGroup, topic, 0); ok {
		at = min(max(first, message.QueueOffset(saved)), end)
	}
	// What lies before is over, and so are offsets that were never reached.
	if topic == message.HalfTopic {
		t.halfEnd = at
	} else {
		t.opEnd = at
	}
	for at < end {
		got, err := t.b.store.Get(topic, 0, at, gantry.GetOptions{Max: 256, MaxBytes: 4 << 20})
		if err != nil {
			return fmt.Errorf("read %s from offset %d: %w", topic, at, err)
		}
		for _, d := range got.Damaged {
			t.b.log.Error("message of a transaction cannot be read", "topic", topic, "err", d)
			if topic == message.HalfTopic {
				t.stats.Lost++
			}
		}
		for _, r := range got.Records {
			m, err := message.Decode(r.Bytes)
			if err != nil {
				return fmt.Errorf("read %s at offset %d: %w", topic, r.QueueOffset, err)
			}
			m.QueueOffset = r.QueueOffset
			fn(&m)
		}
		if got.NextOffset <= at {
			return fmt.Errorf("read %s at offset %d, before its end %d: %v", topic, at, end, got.Status)
		}
		at = got.NextOffset
	}
	return nil
}
