package remoting

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
)

// MessageQueue names one queue of a topic on one broker.
type MessageQueue struct {
	Topic      string
	BrokerName string
	QueueID    int32
}

func (q *MessageQueue) members(o *object) {
	o.str("brokerName", &q.BrokerName)
	o.i32("queueId", &q.QueueID)
	o.str("topic", &q.Topic)
}

func compareQueues(a, b MessageQueue) int {
	return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.BrokerName, b.BrokerName), cmp.Compare(a.QueueID, b.QueueID))
}

// queueMap is a map by message queue that is always written.
func queueMap[V any](o *object, name string, p *map[MessageQueue]V, write func(V), read func(v []byte) (V, error)) {
	if o.out != nil {
		o.key(name)
		writeQueueMap(o, *p, write)
		return
	}
	*p = nil
	if v := o.get(name); v != nil {
		m, err := readQueueMap(o.reader, v, read)
		o.fail(name, err)
		*p = m
	}
}

// writeQueueMap writes a map as fastjson does, with the queue as a bare object,
// which all clients read.
func writeQueueMap[V any](o *object, m map[MessageQueue]V, write func(V)) {
	*o.out = append(*o.out, '{')
	for i, q := range slices.SortedFunc(maps.Keys(m), compareQueues) {
		o.comma(i)
		o.write(&q)
		*o.out = append(*o.out, ':')
		write(m[q])
	}
	*o.out = append(*o.out, '}')
}

// readQueueMap reads a map in that form, with the queue in a string, or as a
// list of pairs.
func readQueueMap[V any](r *bodyReader, v []byte, read func(v []byte) (V, error)) (m map[MessageQueue]V, err error) {
	size := entrySize + sizeOf[MessageQueue]() + sizeOf[V]()
	entry := func(key, value []byte) error {
		if err := r.take(size); err != nil {
			return err
		}
		q, err := r.queue(key)
		if err != nil {
			return err
		}
		e, err := read(value)
		if err != nil {
			return fmt.Errorf("%s/%s/%d: %w", q.BrokerName, q.Topic, q.QueueID, err)
		}
		put(&m, q, e)
		return nil
	}
	switch v[0] {
	case '{':
		_, err = eachMember(v, 0, 0, entry)
	case '[':
		_, err = eachElement(v, 0, 0, func(e []byte) error { return r.pair(e, entry) })
	default:
		err = fmt.Errorf("%s instead of a map", kindOf(v))
	}
	return m, err
}

// queue reads a queue that is the key of a map.
func (r *bodyReader) queue(key []byte) (q MessageQueue, err error) {
	if key[0] == '"' {
		if key, err = unquote(nil, key); err != nil {
			return q, err
		}
		end, err := valueEnd(key, 0, 1)
		if err == nil {
			err = atEnd(key, end)
		}
		if err != nil {
			return q, fmt.Errorf("queue: %w", err)
		}
	}
	return q, r.object(key, &q)
}

// pair reads an element of the list form of a map by queue: [queue, value], or
// the queue's members and "offset" in one object.
func (r *bodyReader) pair(v []byte, entry func(key, value []byte) error) error {
	var parts [][]byte
	switch v[0] {
	case '[':
		_, err := eachElement(v, 0, 0, func(e []byte) error {
			if len(parts) == 2 {
				return fmt.Errorf("more than a queue and a value")
			}
			parts = append(parts, e)
			return nil
		})
		if err != nil {
			return err
		}
		if len(parts) == 2 {
			return entry(parts[0], parts[1])
		}
	case '{':
		var offset []byte
		_, err := eachMember(v, 0, 0, func(name, value []byte) error {
			if string(plainName(name)) == "offset" {
				offset = value
			}
			return nil
		})
		if err != nil {
			return err
		}
		if offset != nil {
			return entry(v, offset)
		}
	}
	return fmt.Errorf("neither a queue with a value nor one with an offset")
}

// queueOffsets is a map of offsets by queue.
func (o *object) queueOffsets(name string, p *map[MessageQueue]int64) {
	queueMap(o, name, p, o.int, readInt64)
}

// queueObjects is a map of objects by queue.
func queueObjects[T any, P pointerTo[T]](o *object, name string, p *map[MessageQueue]T) {
	queueMap(o, name, p, func(e T) { o.write(P(&e)) },
		func(v []byte) (T, error) { return readValue[T, P](v, o.reader) })
}

// ResetOffset is the body of 220 RESET_CONSUMER_CLIENT_OFFSET and of the answer
// to 222 INVOKE_BROKER_TO_RESET_OFFSET.
type ResetOffset struct {
	OffsetTable map[MessageQueue]int64
}

func (b *ResetOffset) members(o *object) { o.queueOffsets("offsetTable", &b.OffsetTable) }

// EncodeList returns the body in the form that C++ clients, and what is built
// on them, read: a list of queues with their offsets.
func (b *ResetOffset) EncodeList() []byte {
	out := []byte(`{"offsetTable":[`)
	o := object{out: &out}
	for i, q := range slices.SortedFunc(maps.Keys(b.OffsetTable), compareQueues) {
		o.comma(i)
		o.write(&queueOffset{q, b.OffsetTable[q]})
	}
	return append(out, "]}"...)
}

type queueOffset struct {
	MessageQueue
	offset int64
}

func (q *queueOffset) members(o *object) {
	o.str("brokerName", &q.BrokerName)
	o.i64("offset", &q.offset)
	o.i32("queueId", &q.QueueID)
	o.str("topic", &q.Topic)
}

// ConsumerStatus is the body of the answers to 221
// GET_CONSUMER_STATUS_FROM_CLIENT and 223 INVOKE_BROKER_TO_GET_CONSUMER_STATUS.
type ConsumerStatus struct {
	MessageQueueTable map[MessageQueue]int64
	ConsumerTable     map[string]map[MessageQueue]int64 // by client id
}

func (b *ConsumerStatus) members(o *object) {
	const name = "consumerTable"
	if o.out != nil {
		appendMap(o, name, sortedKeys(b.ConsumerTable), b.ConsumerTable, o.quoteText,
			func(m map[MessageQueue]int64) { writeQueueMap(o, m, o.int) })
	} else {
		b.ConsumerTable = nil
		o.entries(name, textSize+int64Size, func(key, value []byte) error {
			client, err := readText(key)
			if err != nil {
				return err
			}
			m, err := readQueueMap(o.reader, value, readInt64)
			put(&b.ConsumerTable, client, m)
			return err
		})
	}
	o.queueOffsets("messageQueueTable", &b.MessageQueueTable)
}
