package check

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"path/filepath"
	"testing"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// builder writes a store as a broker would have left it after a clean stop,
// without using the store's own code above the record and unit codecs.
type builder struct {
	tb             testing.TB
	fs             vfs.FS
	dir            string
	logSize        int64
	cqSize         int64
	slots, entries int32
	crc            bool
	max            int // message size, 0: the default

	now       int64
	phy       int64
	log       []byte // of the current log file
	rec       []byte
	at        []int64 // positions of the records
	skipIndex int     // number of the record that is not indexed, -1
	queues    map[string]*builtQueue
	order     []string
	index     *builtIndex
	files     int
	prev      [2]int64 // end position and time of the index file before
}

type builtQueue struct {
	dir   string
	units []byte
}

type builtIndex struct {
	slots   []int32
	entries []byte
	count   int32
	used    int32
	begin   [2]int64 // position, time
	end     [2]int64
}

// startTime is the store time of a builder's first message.
const startTime = 1_700_000_000_000

func newBuilder(tb testing.TB, fs vfs.FS, dir string) *builder {
	return &builder{tb: tb, fs: fs, dir: dir, logSize: 4096, cqSize: 5 * unitSize, slots: 16, entries: 32,
		now: startTime, skipIndex: -1, queues: map[string]*builtQueue{}}
}

func (b *builder) must(err error) {
	b.tb.Helper()
	if err != nil {
		b.tb.Fatal(err)
	}
}

// text makes a file.
func (b *builder) text(rel, data string) { b.write(rel, []byte(data), int64(len(data))) }

// write makes a file of that length which begins with data.
func (b *builder) write(rel string, data []byte, length int64) {
	b.tb.Helper()
	path := filepath.Join(b.dir, filepath.FromSlash(rel))
	b.must(b.fs.MkdirAll(filepath.Dir(path)))
	f, err := b.fs.Create(path)
	b.must(err)
	b.must(f.Truncate(length))
	_, err = f.WriteAt(data, 0)
	b.must(err)
	b.must(f.Close())
}

// msg is a small message with a key and a tag.
func msg(topic string, queue int32, key, tag string, body int) *message.Message {
	text := make([]byte, body)
	for i := range text {
		text[i] = byte('a' + i%26)
	}
	return &message.Message{
		Topic: topic, QueueID: queue, Body: text,
		Properties:    message.NewProperties(message.PropKeys, key, message.PropTags, tag),
		BornTimestamp: startTime, BornHost: netip.MustParseAddrPort("10.0.0.1:5000"), StoreHost: netip.MustParseAddrPort("10.0.0.2:10911"),
	}
}

// put stores a message.
func (b *builder) put(m *message.Message) message.PhysicalOffset {
	b.tb.Helper()
	enc := message.Encoder{PropertyCRC: b.crc, MaxMessageSize: b.max}
	rec, err := enc.Append(b.rec[:0], m)
	b.must(err)
	b.rec = rec
	if b.log == nil {
		b.log = make([]byte, 0, b.logSize)
	}
	if left := b.logSize - int64(len(b.log)); int64(len(rec))+message.BlankSize > left {
		b.log = message.AppendBlank(b.log, int32(left))
		b.roll()
	}
	key := fmt.Sprintf("%s/%d", m.Topic, m.QueueID)
	q := b.queues[key]
	if q == nil {
		q = &builtQueue{dir: key}
		b.queues[key] = q
		b.order = append(b.order, key)
	}
	at := message.PhysicalOffset(b.phy)
	offset := message.QueueOffset(len(q.units) / unitSize)
	if !m.SysFlag.Queued() {
		offset = 0
	}
	enc.Patch(rec, offset, at, b.now)
	v, err := message.Check(rec, at, message.CheckOptions{})
	b.must(err)
	if m.SysFlag.Queued() {
		levels, _ := message.ParseDelayLevels(message.DefaultDelayLevels)
		q.units = consumequeue.AppendUnit(q.units, consumequeue.Unit{Physical: at, Size: v.Size, Tags: v.TagsCode(levels.Delay)})
	}
	if len(b.at) != b.skipIndex {
		for _, h := range v.IndexHashes(nil, true) {
			b.indexPut(h)
		}
	}
	b.at = append(b.at, int64(at))
	b.log = append(b.log, rec...)
	b.phy += int64(len(rec))
	b.now += 7
	return at
}

func (b *builder) roll() {
	start := b.phy / b.logSize * b.logSize
	b.write("commitlog/"+segmentName(start), b.log, b.logSize)
	b.log = b.log[:0]
	b.phy = start + b.logSize
}

func (b *builder) indexPut(hash int32) {
	x := b.index
	if x == nil {
		x = &builtIndex{slots: make([]int32, b.slots), count: 1, begin: b.prev, end: b.prev}
		x.entries = make([]byte, indexEntrySize)
		b.index = x
	}
	slot := hash % b.slots
	e := make([]byte, indexEntrySize)
	binary.BigEndian.PutUint32(e, uint32(hash))
	binary.BigEndian.PutUint64(e[4:], uint64(b.phy))
	binary.BigEndian.PutUint32(e[12:], uint32(indexSeconds(b.now, x.begin[1])))
	binary.BigEndian.PutUint32(e[16:], uint32(x.slots[slot]))
	if x.slots[slot] == 0 {
		x.used++
	}
	if x.count == 1 {
		x.begin = [2]int64{b.phy, b.now}
	}
	x.entries = append(x.entries, e...)
	x.slots[slot] = x.count
	x.count++
	x.end = [2]int64{b.phy, b.now}
	if x.count >= b.entries {
		b.writeIndex()
	}
}

func (b *builder) writeIndex() {
	x := b.index
	if x == nil {
		return
	}
	var data []byte
	be := binary.BigEndian
	data = be.AppendUint64(data, uint64(x.begin[1]))
	data = be.AppendUint64(data, uint64(x.end[1]))
	data = be.AppendUint64(data, uint64(x.begin[0]))
	data = be.AppendUint64(data, uint64(x.end[0]))
	data = be.AppendUint32(data, uint32(x.used))
	data = be.AppendUint32(data, uint32(x.count))
	for _, s := range x.slots {
		data = be.AppendUint32(data, uint32(s))
	}
	data = append(data, x.entries...)
	b.write(fmt.Sprintf("index/20231114221320%03d", b.files), data, indexfile.Geometry{Slots: b.slots, Entries: b.entries}.Size())
	b.files++
	b.prev = x.end
	b.index = nil
}

// close writes everything that is still in memory.
func (b *builder) close() {
	start := b.phy / b.logSize * b.logSize
	b.write("commitlog/"+segmentName(start), b.log, b.logSize)
	for _, key := range b.order {
		q := b.queues[key]
		for at := int64(0); at == 0 || at < int64(len(q.units)); at += b.cqSize {
			b.write("consumequeue/"+q.dir+"/"+segmentName(at), q.units[min(at, int64(len(q.units))):min(at+b.cqSize, int64(len(q.units)))], b.cqSize)
		}
	}
	b.writeIndex()
	cp := make([]byte, checkpointSize)
	binary.BigEndian.PutUint64(cp, uint64(b.now-7))
	binary.BigEndian.PutUint64(cp[8:], uint64(b.now-7))
	b.write("checkpoint", cp, checkpointSize)
	b.write("lock", []byte("lock"), 4)
}

// small writes a store of some files each, with every kind of record.
func (b *builder) small() {
	for i := range 60 {
		m := msg(fmt.Sprintf("Topic%c", 'A'+i%3), int32(i%2), fmt.Sprintf("key%d", i), fmt.Sprintf("tag%d", i%4), 20+i*7%300)
		switch i {
		case 10:
			m.SysFlag = message.TxPrepared
		case 11:
			m.SysFlag, m.PreparedTransactionOffset = message.TxRollback, 0
		case 12:
			m.SysFlag |= message.TxCommit
		case 13:
			m.Topic, m.QueueID = message.ScheduleTopic, 2
			m.Properties = m.Properties.Set(message.PropDelay, "3")
		case 14:
			m.Topic, m.QueueID = message.HalfTopic, 0
		case 15:
			m.Topic, m.QueueID, m.Body = message.OpHalfTopic, 0, []byte("0,")
			m.Properties = message.NewProperties(message.PropTags, "d")
		case 16:
			m.BornHost = netip.MustParseAddrPort("[2001:db8::1]:4000")
		}
		b.put(m)
	}
	b.close()
	b.text("config/topics.json", `{"topicConfigTable":{"TopicA":{"readQueueNums":2,"writeQueueNums":2},"TopicB":{"readQueueNums":2,"writeQueueNums":2},"TopicC":{"readQueueNums":2,"writeQueueNums":2}}}`)
	b.text("config/consumerOffset.json", `{"offsetTable":{"TopicA@g":{0:3,1:2}}}`)
	b.text("config/delayOffset.json", `{"offsetTable":{3:1}}`)
}
