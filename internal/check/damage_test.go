package check

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// damager damages a store in memory.
type damager struct {
	*builder
}

func (d *damager) path(rel string) string { return filepath.Join(d.dir, filepath.FromSlash(rel)) }

func (d *damager) open(rel string) vfs.File {
	d.tb.Helper()
	f, err := d.fs.Open(d.path(rel), vfs.ReadWrite)
	d.must(err)
	return f
}

func (d *damager) get(rel string, off int64, n int) []byte {
	d.tb.Helper()
	f := d.open(rel)
	defer f.Close()
	p := make([]byte, n)
	if _, err := f.ReadAt(p, off); err != io.EOF {
		d.must(err)
	}
	return p
}

func (d *damager) set(rel string, off int64, p []byte) {
	d.tb.Helper()
	f := d.open(rel)
	defer f.Close()
	_, err := f.WriteAt(p, off)
	d.must(err)
}

func (d *damager) set32(rel string, off int64, v int32) {
	d.tb.Helper()
	d.set(rel, off, binary.BigEndian.AppendUint32(nil, uint32(v)))
}

func (d *damager) set64(rel string, off int64, v int64) {
	d.tb.Helper()
	d.set(rel, off, binary.BigEndian.AppendUint64(nil, uint64(v)))
}

func (d *damager) get32(rel string, off int64) int32 {
	d.tb.Helper()
	return int32(binary.BigEndian.Uint32(d.get(rel, off, 4)))
}

func (d *damager) get64(rel string, off int64) int64 {
	d.tb.Helper()
	return int64(binary.BigEndian.Uint64(d.get(rel, off, 8)))
}

func (d *damager) flip(rel string, off int64) {
	d.tb.Helper()
	p := d.get(rel, off, 1)
	d.set(rel, off, []byte{p[0] ^ 1})
}

func (d *damager) zero(rel string, off int64, n int64) {
	d.tb.Helper()
	d.set(rel, off, make([]byte, n))
}

func (d *damager) truncate(rel string, n int64) {
	d.tb.Helper()
	f := d.open(rel)
	defer f.Close()
	d.must(f.Truncate(n))
}

func (d *damager) size(rel string) int64 {
	d.tb.Helper()
	f := d.open(rel)
	defer f.Close()
	n, err := f.Size()
	d.must(err)
	return n
}

func (d *damager) remove(rel string) {
	d.tb.Helper()
	d.must(d.fs.Remove(d.path(rel)))
}

// removeAll removes the files of a folder, and the folder.
func (d *damager) removeAll(rel string) {
	d.tb.Helper()
	entries, err := d.fs.List(d.path(rel))
	d.must(err)
	for _, e := range entries {
		if e.IsDir() {
			d.removeAll(rel + "/" + e.Name)
		} else {
			d.remove(rel + "/" + e.Name)
		}
	}
	d.remove(rel)
}

func (d *damager) rename(from, to string) {
	d.tb.Helper()
	d.must(d.fs.Rename(d.path(from), d.path(to)))
}

// record returns the file of record i and its offset there.
func (d *damager) record(i int) (rel string, off int64) {
	at := d.at[i]
	start := at / d.logSize * d.logSize
	return "commitlog/" + segmentName(start), at - start
}

// in damages the record i at an offset within it.
func (d *damager) in(i int, within int64, p ...byte) {
	d.tb.Helper()
	rel, off := d.record(i)
	d.set(rel, off+within, p)
}

// end returns the last file of the log and the offset of its end.
func (d *damager) end() (rel string, off int64) {
	start := d.phy / d.logSize * d.logSize
	return "commitlog/" + segmentName(start), d.phy - start
}

// unit returns the file of a unit and its offset there.
func (d *damager) unit(queue string, slot int64) (rel string, off int64) {
	pos := slot * unitSize
	start := pos / d.cqSize * d.cqSize
	return "consumequeue/" + queue + "/" + segmentName(start), pos - start
}

func (d *damager) getUnit(queue string, slot int64) consumequeue.Unit {
	d.tb.Helper()
	rel, off := d.unit(queue, slot)
	u, err := consumequeue.DecodeUnit(d.get(rel, off, unitSize))
	d.must(err)
	return u
}

func (d *damager) setUnit(queue string, slot int64, u consumequeue.Unit) {
	d.tb.Helper()
	rel, off := d.unit(queue, slot)
	d.set(rel, off, consumequeue.AppendUnit(nil, u))
}

// Positions in a record with IPv4 hosts, and in index files of the small store.
const (
	atSize, atMagic, atCRC, atQueueID, atQueueOffset, atPhysical, atSysFlag = 0, 4, 8, 12, 20, 28, 36
	atBornTime, atBornPort, atStoreTime, atPrepared, atBodyLen, atBody      = 40, 52, 56, 76, 84, 88

	smallSlots = 16
	slotsAt    = 40
	entriesAt  = slotsAt + 4*smallSlots
)

func indexName(i int) string { return fmt.Sprintf("index/20231114221320%03d", i) }

// Shorthands of the expectations.
const (
	warn  = Warning
	fail  = Error
	mayBe = Severity(-1) // any, or none
)

type found map[string]Severity

// damages of the small store, which builder.small writes. Its log has files of
// 4096 bytes, its queues files of 5 units.
var damages = []struct {
	name   string
	damage func(d *damager)
	want   found  // all findings above Info, the worst of each rule
	info   string // a rule of which there must be an Info
	file   string // part of the file of the first finding of the first rule named like it, if not empty
}{
	// 1, 2
	{"log file without padding", func(d *damager) {
		d.rename("commitlog/"+segmentName(4096), "commitlog/4096")
	}, found{"log.name": fail, "log.gap": fail}, "", ""},
	{"log file name in other digits", func(d *damager) {
		d.rename("commitlog/"+segmentName(4096), "commitlog/"+strings.Repeat("٠", 16)+"٤٠٩٦")
	}, found{"log.name": fail, "log.gap": fail}, "", ""},
	{"log file name no multiple", func(d *damager) {
		d.rename("commitlog/"+segmentName(8192), "commitlog/"+segmentName(8292))
	}, found{"log.name": fail, "log.position": fail, "log.gap": fail, "queue.pointer": fail}, "", ""},
	{"log file cut", func(d *damager) { d.truncate("commitlog/"+segmentName(4096), 4095) },
		found{"log.length": fail, "log.record": fail}, "", segmentName(4096)},
	{"log file longer", func(d *damager) { d.truncate("commitlog/"+segmentName(4096), 5000) },
		found{"log.length": fail}, "", segmentName(4096)},
	{"last log file empty", func(d *damager) { d.write("commitlog/"+segmentName(16384), nil, 0) },
		found{"log.length": warn}, "", segmentName(16384)},
	{"log file missing", func(d *damager) { d.remove("commitlog/" + segmentName(4096)) },
		found{"log.gap": fail}, "", ""},

	// 3
	{"zeros over a record's head", func(d *damager) {
		rel, off := d.record(20)
		d.zero(rel, off, 80)
	}, found{"log.record": fail, "queue.pointer": fail}, "", ""},
	{"magic flipped", func(d *damager) { d.in(20, atMagic, 0xDB) }, found{"log.record": fail, "queue.pointer": fail}, "", ""},
	{"blank record too short", func(d *damager) {
		rel := "commitlog/" + segmentName(0)
		blank := d.blank(0)
		d.set32(rel, blank, d.get32(rel, blank)-1)
	}, found{"log.record": fail}, "", ""},
	{"blank record gone", func(d *damager) { d.zero("commitlog/"+segmentName(0), d.blank(0), 8) },
		found{"log.record": fail}, "", ""},
	{"last record torn after a clean stop", func(d *damager) { d.tear() },
		found{"log.torn": fail, "queue.ahead": fail, "index.ahead": warn}, "", ""},
	{"last record torn", func(d *damager) {
		d.tear()
		d.text("abort", "17")
	}, found{"log.torn": warn, "queue.ahead": warn, "index.ahead": warn}, "store.abort", ""},
	{"log cut to half", func(d *damager) {
		rel, off := d.record(30)
		d.zero(rel, off, 4096-off)
		for start := d.at[30]/4096*4096 + 4096; start <= d.phy; start += 4096 {
			d.remove("commitlog/" + segmentName(start))
		}
	}, found{"queue.ahead": fail, "index.ahead": warn, "checkpoint.values": warn}, "", ""},

	// 4 to 7
	{"size too small", func(d *damager) { d.in(20, atSize, 0, 0, 0, 90) }, found{"log.size": fail, "queue.pointer": fail}, "", ""},
	{"size too large", func(d *damager) { d.in(20, atSize, 0x7F, 0xFF, 0xFF, 0xFF) }, found{"log.size": fail, "queue.pointer": fail}, "", ""},
	{"size negative", func(d *damager) { d.in(20, atSize, 0x80, 0, 0, 0) }, found{"log.size": fail, "queue.pointer": fail}, "", ""},
	{"size one more", func(d *damager) {
		rel, off := d.record(20)
		d.set32(rel, off, d.get32(rel, off)+1)
	}, found{"log.size": fail, "queue.pointer": fail}, "", ""},
	{"body length negative", func(d *damager) { d.in(20, atBodyLen, 0xFF, 0xFF, 0xFF, 0xFF) }, found{"log.size": fail, "queue.pointer": fail}, "", ""},
	{"body length off by one", func(d *damager) {
		rel, off := d.record(20)
		d.set32(rel, off+atBodyLen, d.get32(rel, off+atBodyLen)+1)
	}, found{"log.size": fail, "queue.pointer": fail}, "", ""},
	{"position", func(d *damager) { d.in(20, atPhysical+7, 1) }, found{"log.position": fail, "queue.pointer": fail}, "", ""},
	{"two log files swapped", func(d *damager) {
		d.rename("commitlog/"+segmentName(4096), "commitlog/tmp")
		d.rename("commitlog/"+segmentName(8192), "commitlog/"+segmentName(4096))
		d.rename("commitlog/tmp", "commitlog/"+segmentName(8192))
	}, found{"log.position": fail, "queue.pointer": fail}, "", ""},
	{"last log file is a copy of the first", func(d *damager) {
		rel, _ := d.end()
		d.set(rel, 0, d.get("commitlog/"+segmentName(0), 0, 4096))
	}, found{"log.position": fail, "queue.ahead": fail, "index.ahead": warn, "checkpoint.values": warn}, "", ""},
	{"body", func(d *damager) { d.in(20, atBody+3, '!') }, found{"log.bodycrc": fail}, "", ""},
	{"body of the last record", func(d *damager) { d.in(59, atBody+3, '!') },
		found{"log.bodycrc": fail, "queue.ahead": fail, "index.ahead": warn}, "", ""},
	{"body CRC zero", func(d *damager) { d.in(20, atCRC, 0, 0, 0, 0) }, found{}, "log.bodycrc", ""},

	// 8 to 12
	{"store time before the last one", func(d *damager) {
		rel, off := d.record(20)
		d.set64(rel, off+atStoreTime, startTime-5)
	}, found{"log.time": warn}, "", ""},
	{"store time zero", func(d *damager) { d.in(20, atStoreTime, 0, 0, 0, 0, 0, 0, 0, 0) }, found{"log.time": warn, "index.seconds": mayBe}, "", ""},
	{"born in the future", func(d *damager) {
		rel, off := d.record(20)
		d.set64(rel, off+atBornTime, startTime*2)
	}, found{"log.time": warn}, "", ""},
	{"topic is no text", func(d *damager) {
		rel, off := d.topic(20)
		d.set(rel, off, []byte{0xFF})
	}, found{"log.topic": fail, "queue.pointer": fail}, "", ""},
	{"topic with a space", func(d *damager) {
		rel, off := d.topic(20)
		d.set(rel, off, []byte{' '})
	}, found{"log.topic": warn, "queue.owner": fail, "index.key": fail}, "queue.missing", ""},
	{"topic length reads as negative", func(d *damager) { d.longTopic() },
		found{"log.topic": fail}, "", ""},
	{"version 2 without need", func(d *damager) { d.shortV2() }, found{"log.topic": warn}, "", ""},
	{"delay level is no number", func(d *damager) {
		rel, off := d.find(13, "DELAY\x01")
		d.set(rel, off+6, []byte("x"))
	}, found{"log.properties": fail, "queue.tags": fail}, "", ""},
	{"property without value", func(d *damager) {
		rel, off := d.find(20, "KEYS\x01")
		d.set(rel, off+4, []byte("_"))
	}, found{"index.key": fail}, "log.properties", ""},
	{"port", func(d *damager) { d.in(20, atBornPort, 0x7F) }, found{"log.sysflag": fail, "queue.pointer": fail}, "", ""},
	{"unknown flag bit", func(d *damager) { d.in(20, atSysFlag+2, 0x40) }, found{}, "log.sysflag", ""},
	{"half message is none", func(d *damager) {
		rel, off := d.record(12)
		d.set64(rel, off+atPrepared, d.at[5])
	}, found{"log.prepared": fail}, "", ""},
	{"half message inside a record", func(d *damager) {
		rel, off := d.record(12)
		d.set64(rel, off+atPrepared, d.at[5]+1)
	}, found{"log.prepared": fail}, "", ""},

	// 13
	{"garbage behind the end", func(d *damager) {
		rel, off := d.end()
		d.set(rel, off+20, []byte("garbage"))
	}, found{"log.tail": warn}, "", ""},
	{"garbage behind the end of a crashed store", func(d *damager) {
		rel, off := d.end()
		d.set(rel, off+20, []byte("garbage"))
		d.text("abort", "")
	}, found{}, "log.tail", ""},
	{"garbage in a later file", func(d *damager) { d.write("commitlog/"+segmentName(16384), []byte("\x00\x00garbage"), 4096) },
		found{"log.tail": warn}, "", ""},
	{"old record behind the end", func(d *damager) {
		rel, off := d.end()
		d.set(rel, off+20, d.encode(message.PhysicalOffset(d.phy+20), startTime))
	}, found{}, "log.stale", ""},
	{"old record right at the end", func(d *damager) {
		// Not told apart from a clock that was set back.
		rel, off := d.end()
		d.set(rel, off, d.encode(message.PhysicalOffset(d.phy), startTime))
	}, found{"log.time": warn, "queue.missing": warn}, "", ""},
	{"old file behind the end", func(d *damager) {
		start := d.phy/4096*4096 + 4096
		d.write("commitlog/"+segmentName(start), d.encode(message.PhysicalOffset(start), startTime), 4096)
	}, found{}, "log.stale", ""},
	{"old records in the next file of a full one", func(d *damager) {
		rel, off := d.end()
		d.set(rel, off, message.AppendBlank(nil, int32(4096-off)))
		start := d.phy + 4096 - off
		d.write("commitlog/"+segmentName(start), append(make([]byte, 1000), d.encode(message.PhysicalOffset(start+1000), startTime)...), 4096)
	}, found{}, "log.stale", ""},
	{"new record behind zeros", func(d *damager) {
		rel, off := d.end()
		d.set(rel, off+20, d.encode(message.PhysicalOffset(d.phy+20), startTime*2))
	}, found{"log.record": fail, "queue.missing": warn}, "", ""},

	// 14 to 16
	{"queue file with a wrong name", func(d *damager) {
		d.rename("consumequeue/TopicA/0/"+segmentName(0), "consumequeue/TopicA/0/0")
	}, found{"queue.files": fail, "queue.missing": fail}, "", ""},
	{"queue's middle file missing", func(d *damager) {
		d.write("consumequeue/TopicA/0/"+segmentName(3*d.cqSize), nil, d.cqSize)
	}, found{"queue.files": fail}, "", "consumequeue/TopicA/0"},
	{"queue file cut", func(d *damager) { d.truncate("consumequeue/TopicA/0/"+segmentName(0), 50) },
		found{"queue.files": fail, "queue.missing": fail}, "", ""},
	{"queue's first file missing", func(d *damager) { d.remove("consumequeue/TopicA/0/" + segmentName(0)) },
		found{"queue.missing": fail}, "", ""},
	{"hole in a queue", func(d *damager) { d.setUnit("TopicB/1", 3, consumequeue.Unit{}) },
		found{"queue.end": warn, "queue.missing": fail}, "", ""},
	{"unit with negative size", func(d *damager) {
		u := d.getUnit("TopicB/1", 3)
		u.Size = -1
		d.setUnit("TopicB/1", 3, u)
	}, found{"queue.end": fail, "queue.missing": fail}, "", ""},
	{"units behind the end", func(d *damager) {
		d.setUnit("SCHEDULE_TOPIC_XXXX/2", 3, consumequeue.Unit{Physical: 5, Size: 100})
	}, found{"queue.end": warn}, "", "SCHEDULE_TOPIC_XXXX/2"},
	{"old unit right at the end", func(d *damager) {
		d.setUnit("TopicB/1", d.units("TopicB/1"), d.getUnit("TopicB/1", 1))
	}, found{"queue.order": fail, "queue.owner": fail}, "", "TopicB/1"},
	{"fill unit in the middle", func(d *damager) { d.setUnit("TopicB/1", 3, consumequeue.FillUnit) },
		found{"queue.fill": fail, "queue.missing": fail}, "", ""},
	{"gap unit in the place of a message", func(d *damager) {
		d.setUnit("TopicB/1", 3, consumequeue.Unit{Size: consumequeue.FillUnit.Size, Tags: 5})
	}, found{"queue.fill": fail, "queue.missing": fail}, "", ""},
	{"gap unit at the end", func(d *damager) {
		d.setUnit("TopicB/1", d.units("TopicB/1"), consumequeue.Unit{Size: consumequeue.FillUnit.Size, Tags: 5})
	}, found{}, "queue.fill", ""},

	// 17 to 22
	{"unit points nowhere", func(d *damager) {
		u := d.getUnit("TopicB/1", 3)
		u.Physical++
		d.setUnit("TopicB/1", 3, u)
	}, found{"queue.pointer": fail, "queue.missing": fail}, "", "TopicB/1"},
	{"unit size", func(d *damager) {
		u := d.getUnit("TopicB/1", 3)
		u.Size++
		d.setUnit("TopicB/1", 3, u)
	}, found{"queue.size": fail, "queue.order": mayBe}, "", "TopicB/1"},
	{"unit of another queue", func(d *damager) {
		u := d.getUnit("TopicB/1", 3)
		for i := range int64(100) {
			if o := d.getUnit("TopicC/0", i); o.Physical > u.Physical {
				d.setUnit("TopicB/1", 3, d.getUnit("TopicC/0", i-1))
				break
			}
		}
	}, found{"queue.owner": fail, "queue.shared": fail, "queue.missing": fail, "queue.order": mayBe}, "", ""},
	{"unit for a prepared message", func(d *damager) {
		q := fmt.Sprintf("TopicB/%d", 10%2)
		n := d.units(q)
		d.setUnit(q, n, consumequeue.Unit{Physical: message.PhysicalOffset(d.at[10]), Size: d.get32(d.rel(10), d.at[10]%4096)})
	}, found{"queue.transaction": fail, "queue.order": fail}, "", ""},
	{"tags code", func(d *damager) {
		u := d.getUnit("TopicB/1", 3)
		u.Tags++
		d.setUnit("TopicB/1", 3, u)
	}, found{"queue.tags": fail}, "", "TopicB/1"},
	{"delivery before the store time", func(d *damager) {
		u := d.getUnit("SCHEDULE_TOPIC_XXXX/2", 0)
		u.Tags = startTime - 1
		d.setUnit("SCHEDULE_TOPIC_XXXX/2", 0, u)
	}, found{"queue.tags": fail}, "", ""},
	{"two units swapped", func(d *damager) {
		a, b := d.getUnit("TopicB/1", 3), d.getUnit("TopicB/1", 4)
		d.setUnit("TopicB/1", 3, b)
		d.setUnit("TopicB/1", 4, a)
	}, found{"queue.order": fail, "queue.owner": fail, "queue.missing": fail}, "", ""},
	{"unit behind the log's end", func(d *damager) {
		d.setUnit("TopicB/1", d.units("TopicB/1"), consumequeue.Unit{Physical: message.PhysicalOffset(d.phy), Size: 100})
	}, found{"queue.ahead": fail}, "", "TopicB/1"},
	{"unit lost and the others moved up", func(d *damager) {
		n := d.units("TopicB/1")
		for i := int64(3); i < n; i++ {
			u := consumequeue.Unit{}
			if i+1 < n {
				u = d.getUnit("TopicB/1", i+1)
			}
			d.setUnit("TopicB/1", i, u)
		}
	}, found{"queue.owner": warn, "queue.missing": fail}, "", ""},

	// 23 to 25, 28
	{"last unit missing", func(d *damager) { d.setUnit("TopicA/0", d.units("TopicA/0")-1, consumequeue.Unit{}) },
		found{"queue.missing": fail}, "", "TopicA/0"},
	{"last unit missing after a crash", func(d *damager) {
		d.setUnit("TopicA/0", d.units("TopicA/0")-1, consumequeue.Unit{})
		d.text("abort", "")
	}, found{}, "queue.missing", ""},
	{"last message not dispatched", func(d *damager) {
		q := d.queueOf(59)
		d.setUnit(q, d.units(q)-1, consumequeue.Unit{})
	}, found{"queue.missing": warn}, "", ""},
	{"queue removed", func(d *damager) { d.removeAll("consumequeue/TopicA/0") },
		found{"queue.missing": fail, "config.offsets": warn}, "", "TopicA/0"},
	{"all queues removed", func(d *damager) { d.removeAll("consumequeue") },
		found{"queue.missing": fail, "config.offsets": warn, "config.delay": warn, "transaction.op": warn}, "", "consumequeue"},
	{"topic deleted", func(d *damager) {
		d.removeAll("consumequeue/TopicC")
		d.remove("config/topics.json")
		d.text("config/topics.json", `{"topicConfigTable":{"TopicA":{},"TopicB":{}}}`)
	}, found{}, "queue.missing", ""},
	{"type of a topic", func(d *damager) {
		d.remove("config/topics.json")
		d.text("config/topics.json", `{"topicConfigTable":{"TopicA":{"attributes":{"queue.type":"BatchCQ"}},"TopicB":{},"TopicC":{}}}`)
	}, found{"queue.type": fail}, "", "TopicA"},
	{"queue id out of range", func(d *damager) {
		d.remove("config/topics.json")
		d.text("config/topics.json", `{"topicConfigTable":{"TopicA":{"readQueueNums":1,"writeQueueNums":1},"TopicB":{},"TopicC":{}}}`)
	}, found{"queue.type": warn}, "", "TopicA/1"},

	// 29 to 37
	{"index file name", func(d *damager) { d.rename(indexName(1), "index/20231399221320001") },
		found{"index.file": fail}, "", "20231399221320001"},
	{"index file cut", func(d *damager) { d.truncate(indexName(1), 400) }, found{"index.file": fail}, "", indexName(1)},
	{"index file without header", func(d *damager) { d.truncate(indexName(1), 39) }, found{"index.file": fail}, "", indexName(1)},
	{"index count huge", func(d *damager) { d.set32(indexName(1), 36, 0x7FFFFFFF) }, found{"index.count": fail}, "", indexName(1)},
	{"index count negative", func(d *damager) { d.set32(indexName(1), 36, -1) }, found{"index.count": fail, "index.slot": fail}, "", ""},
	{"index count too small", func(d *damager) { d.set32(indexName(1), 36, 20) },
		found{"index.count": warn, "index.slot": fail, "index.order": fail, "index.times": warn}, "", ""},
	{"slot count", func(d *damager) { d.set32(indexName(1), 32, 3) }, found{"index.count": warn}, "", indexName(1)},
	{"slot huge", func(d *damager) { d.set32(indexName(1), slotsAt+4*d.slot(1, 5), 0x7FFFFFFF) },
		found{"index.slot": fail, "index.count": warn}, "", ""},
	{"slot empty", func(d *damager) { d.set32(indexName(1), slotsAt+4*d.slot(1, 5), 0) },
		found{"index.slot": fail, "index.count": warn}, "", ""},
	{"slot to an older entry", func(d *damager) {
		e := int64(31)
		for d.get32(indexName(1), entriesAt+20*e+16) == 0 {
			e--
		}
		d.set32(indexName(1), slotsAt+4*d.slot(1, e), d.get32(indexName(1), entriesAt+20*e+16))
	}, found{"index.slot": fail}, "", ""},
	{"chain to itself", func(d *damager) { d.set32(indexName(1), entriesAt+20*5+16, 5) }, found{"index.chain": fail}, "", ""},
	{"chain upwards", func(d *damager) { d.set32(indexName(1), entriesAt+20*5+16, 1999) }, found{"index.chain": fail}, "", ""},
	{"entry position huge", func(d *damager) { d.set64(indexName(1), entriesAt+20*5+4, 1<<40) }, found{"index.order": fail}, "", ""},
	{"entry position negative", func(d *damager) { d.set64(indexName(1), entriesAt+20*5+4, -1) }, found{"index.order": fail}, "", ""},
	{"entry hash negative", func(d *damager) { d.set32(indexName(1), entriesAt+20*5, -7) },
		found{"index.order": fail, "index.chain": fail, "index.slot": mayBe}, "", ""},
	{"header position", func(d *damager) { d.set64(indexName(1), 16, 3) }, found{"index.order": fail}, "", ""},
	{"entry hash", func(d *damager) {
		d.set32(indexName(1), entriesAt+20*5, d.get32(indexName(1), entriesAt+20*5)+smallSlots)
	}, found{"index.key": fail}, "index.missing", ""},
	{"entry points into a record", func(d *damager) {
		d.set64(indexName(1), entriesAt+20*6+4, d.get64(indexName(1), entriesAt+20*6+4)+1)
	}, found{"index.key": fail}, "", ""},
	{"entry of a rolled back message", func(d *damager) { d.in(10, atSysFlag+3, 0xC) }, found{"index.key": fail}, "", ""},
	{"entry seconds", func(d *damager) { d.set32(indexName(1), entriesAt+20*5+12, 77) }, found{"index.seconds": warn}, "", indexName(1)},
	{"first entry's seconds", func(d *damager) { d.set32(indexName(1), entriesAt+20+12, 77) }, found{"index.seconds": warn}, "", indexName(1)},
	{"begin time", func(d *damager) { d.set64(indexName(1), 0, d.get64(indexName(1), 0)-1) }, found{"index.times": warn}, "", ""},
	{"end time", func(d *damager) { d.set64(indexName(1), 8, d.get64(indexName(1), 8)+1) }, found{"index.times": warn}, "", ""},
	{"times crossed", func(d *damager) { d.set64(indexName(1), 0, startTime*2) },
		found{"index.times": warn, "index.seconds": mayBe}, "", ""},
	{"index files in each other's way", func(d *damager) {
		d.write("index/20231114221320999", d.get(indexName(1), 0, int(d.size(indexName(1)))), d.size(indexName(1)))
	}, found{"index.times": warn}, "", "999"},
	{"index file name older than the one before", func(d *damager) {
		d.rename(indexName(2), "index/20231114211320000")
	}, found{}, "index.times", ""},

	// 38 to 40
	{"checkpoint short", func(d *damager) { d.truncate("checkpoint", 8) }, found{"checkpoint.format": fail}, "", ""},
	{"checkpoint negative", func(d *damager) { d.set64("checkpoint", 8, -1) }, found{"checkpoint.format": fail}, "", ""},
	{"checkpoint missing", func(d *damager) { d.remove("checkpoint") }, found{"checkpoint.format": warn}, "", ""},
	{"checkpoint with something behind", func(d *damager) { d.flip("checkpoint", 4000) }, found{"checkpoint.format": warn}, "", ""},
	{"checkpoint ahead", func(d *damager) { d.set64("checkpoint", 0, startTime*2) }, found{"checkpoint.values": warn}, "", ""},
	{"checkpoint of an index file ahead", func(d *damager) { d.set64("checkpoint", 16, startTime*2) }, found{"checkpoint.values": warn}, "", ""},
	{"confirmed offset ahead", func(d *damager) { d.set64("checkpoint", 32, 1<<62) }, found{"checkpoint.values": warn}, "", ""},
	{"abort file", func(d *damager) { d.text("abort", "12345") }, found{}, "store.abort", ""},

	// 41 to 44, 47
	{"JSON torn", func(d *damager) { d.truncate("config/topics.json", 30) }, found{"config.json": fail}, "", "config/topics.json"},
	{"JSON torn, but with .bak", func(d *damager) {
		data := d.get("config/topics.json", 0, int(d.size("config/topics.json")))
		d.text("config/topics.json.bak", string(data))
		d.truncate("config/topics.json", 30)
	}, found{"config.json": warn}, "", ""},
	{"only .bak", func(d *damager) { d.rename("config/consumerOffset.json", "config/consumerOffset.json.bak") }, found{"config.json": warn}, "", ""},
	{"both empty", func(d *damager) {
		d.truncate("config/delayOffset.json", 0)
		d.text("config/delayOffset.json.bak", "")
	}, found{"config.json": fail}, "", ""},
	{"topic not configured", func(d *damager) {
		d.remove("config/topics.json")
		d.text("config/topics.json", `{"topicConfigTable":{"TopicA":{},"TopicB":{}}}`)
	}, found{"config.topics": warn}, "", "consumequeue/TopicC"},
	{"offset key without group", func(d *damager) { d.offsets(`"TopicA":{0:1}`) }, found{"config.topics": warn}, "", ""},
	{"offset of an unknown topic", func(d *damager) { d.offsets(`"TopicX@g":{0:0}`) }, found{"config.topics": warn}, "", ""},
	{"offset too high", func(d *damager) { d.offsets(`"TopicA@g":{0:1000}`) }, found{"config.offsets": warn}, "", ""},
	{"offset negative", func(d *damager) { d.offsets(`"TopicA@g":{"0":-1}`) }, found{"config.offsets": warn}, "", ""},
	{"offset of a strange queue", func(d *damager) { d.offsets(`"TopicA@g":{"x":1}`) }, found{"config.offsets": warn}, "", ""},
	{"delivery offset too high", func(d *damager) {
		d.remove("config/delayOffset.json")
		d.text("config/delayOffset.json", `{"offsetTable":{3:2}}`)
	}, found{"config.delay": warn}, "", ""},
	{"delay level zero", func(d *damager) {
		d.remove("config/delayOffset.json")
		d.text("config/delayOffset.json", `{"offsetTable":{0:0}}`)
	}, found{"config.delay": warn}, "", ""},
	{"op message without number", func(d *damager) { d.in(15, atBody, 'x') }, found{"log.bodycrc": fail}, "", ""},
	{"op message of a half message that is not there", func(d *damager) { d.op("9,") }, found{"transaction.op": warn}, "", ""},
	{"op message of text", func(d *damager) { d.op("x,") }, found{"transaction.op": warn}, "", ""},

	// 49, 50 and the rest
	{"epoch file", func(d *damager) { d.text("epochFileCheckpoint", "2\n0\n7-7000\n7-8000\n") }, found{"epoch.file": warn}, "", ""},
	{"epoch file's CRC", func(d *damager) { d.text("epochFileCheckpoint", "2\n773307084\n7-7000\n8-8000\n") }, found{"epoch.file": warn}, "", ""},
	{"epoch behind the log", func(d *damager) { d.text("epochFileCheckpoint", "1\n0\n7-70000000\n") }, found{"epoch.file": warn}, "", ""},
	{"sound epoch file", func(d *damager) { d.text("epochFileCheckpoint", "2\n773307083\n7-7000\n8-8000\n") }, found{}, "", ""},
	{"foreign file in the log", func(d *damager) { d.text("commitlog/.DS_Store", "x") }, found{}, "store.leftover", ""},
	{"foreign file in a queue", func(d *damager) { d.text("consumequeue/TopicA/0/"+segmentName(0)+".delete", "x") }, found{}, "store.leftover", ""},
	{"foreign file at the top", func(d *damager) { d.text("notes.txt", "x") }, found{}, "store.leftover", ""},
	{"name with a terminal command", func(d *damager) { d.text("a\x1b[31m", "x") }, found{}, "store.leftover", ""},
	{".bak at the top", func(d *damager) { d.text("brokerIdentity.bak", "x") }, found{}, "store.leftover", ""},
	{"log gone", func(d *damager) { d.removeAll("commitlog") }, found{"store.empty": fail}, "", "commitlog"},
	{"RocksDB queues", func(d *damager) {
		d.removeAll("consumequeue")
		d.text("consumequeue/CURRENT", "MANIFEST-000001")
	}, found{"config.delay": mayBe}, "store.foreign", ""},
	{"DLedger", func(d *damager) { d.write("dledger-n0/data/"+segmentName(0), nil, 100) }, found{"store.foreign": warn}, "", ""},
	{"nothing wrong", func(d *damager) {}, found{}, "", ""},
}

// blank returns the offset of the blank record in the log file at start.
func (d *damager) blank(start int64) int64 {
	last := int64(0)
	for i, at := range d.at {
		if at >= start && at < start+d.logSize {
			rel, off := d.record(i)
			last = off + int64(d.get32(rel, off))
		}
	}
	return last
}

func (d *damager) rel(i int) string {
	rel, _ := d.record(i)
	return rel
}

// tear zeroes the second half of the last record.
func (d *damager) tear() {
	rel, off := d.record(len(d.at) - 1)
	n := int64(d.get32(rel, off))
	d.zero(rel, off+n/2, n-n/2)
}

// topic returns where the topic of a record begins.
func (d *damager) topic(i int) (string, int64) {
	rel, off := d.record(i)
	return rel, off + atBody + int64(d.get32(rel, off+atBodyLen)) + 1
}

// find returns where a text stands in a record.
func (d *damager) find(i int, text string) (string, int64) {
	d.tb.Helper()
	rel, off := d.record(i)
	rec := d.get(rel, off, int(d.get32(rel, off)))
	at := strings.Index(string(rec), text)
	if at < 0 {
		d.tb.Fatalf("no %q in record %d", text, i)
	}
	return rel, off + int64(at)
}

// units returns the number of units of a queue.
func (d *damager) units(queue string) int64 { return int64(len(d.queues[queue].units) / unitSize) }

// queueOf returns the queue of a record.
func (d *damager) queueOf(i int) string {
	rel, off := d.record(i)
	v, err := message.Check(d.get(rel, off, int(d.get32(rel, off))), message.PhysicalOffset(d.at[i]), message.CheckOptions{})
	d.must(err)
	return fmt.Sprintf("%s/%d", v.Topic(), v.QueueID)
}

// encode returns a record that belongs at a position.
func (d *damager) encode(phy message.PhysicalOffset, storeTime int64) []byte {
	enc := message.Encoder{}
	rec, err := enc.Append(nil, msg("TopicB", 0, "k", "t", 10))
	d.must(err)
	message.Patch(rec, message.QueueOffset(d.units("TopicB/0")), phy, storeTime)
	return rec
}

// slot returns the slot of an entry.
func (d *damager) slot(file int, entry int64) int64 {
	return int64(d.get32(indexName(file), entriesAt+20*entry) % smallSlots)
}

func (d *damager) offsets(table string) {
	d.remove("config/consumerOffset.json")
	d.text("config/consumerOffset.json", `{"offsetTable":{`+table+`}}`)
}

// op replaces the body of the op message by another of two bytes.
func (d *damager) op(body string) {
	rel, off := d.record(15)
	d.set(rel, off+atBody, []byte(body))
	d.set32(rel, off+atCRC, int32(message.BodyCRC([]byte(body))))
}

// longTopic appends the record that Java writes for a topic of 128 bytes, and
// another one behind it.
func (d *damager) longTopic() {
	enc := message.Encoder{}
	m := msg("%RETRY%"+strings.Repeat("g", 121), 0, "k", "t", 10)
	rec, err := enc.Append(nil, m)
	d.must(err)
	// Version 2 has two bytes of topic length; version 1 has the second only.
	at := atBody + 10
	rec = append(rec[:at:at], rec[at+1:]...)
	binary.BigEndian.PutUint32(rec, uint32(len(rec)))
	binary.BigEndian.PutUint32(rec[atMagic:], message.MagicV1)
	message.Patch(rec, 0, message.PhysicalOffset(d.phy), d.now)
	rel, off := d.end()
	d.set(rel, off, rec)
}

// shortV2 appends a version 2 record with a short topic, and its unit.
func (d *damager) shortV2() {
	rec := d.encode(message.PhysicalOffset(d.phy), d.now)
	at := atBody + 10
	rec = append(rec[:at:at], append([]byte{0}, rec[at:]...)...)
	binary.BigEndian.PutUint32(rec, uint32(len(rec)))
	binary.BigEndian.PutUint32(rec[atMagic:], message.MagicV2)
	rel, off := d.end()
	d.set(rel, off, rec)
	d.setUnit("TopicB/0", d.units("TopicB/0"), consumequeue.Unit{Physical: message.PhysicalOffset(d.phy), Size: int32(len(rec)), Tags: message.HashTags("t")})
}

// results runs the check and returns the worst finding of each rule above Info,
// the rules with an Info, and the files by rule.
func results(t *testing.T, o Options) (above found, infos map[string]bool, files map[string]string) {
	t.Helper()
	above, infos, files = found{}, map[string]bool{}, map[string]string{}
	if _, err := Run(context.Background(), o, func(f Finding) {
		t.Log(f)
		if f.Severity == Info {
			infos[f.Rule] = true
			return
		}
		above[f.Rule] = max(above[f.Rule], f.Severity)
		if files[f.Rule] == "" {
			files[f.Rule] = f.File
		}
	}); err != nil {
		t.Fatal(err)
	}
	return above, infos, files
}

func TestDamage(t *testing.T) {
	for _, tt := range damages {
		t.Run(tt.name, func(t *testing.T) {
			d := &damager{builder: newBuilder(t, memfs.New(), "/s")}
			d.small()
			tt.damage(d)
			got, infos, files := results(t, Options{FS: d.fs, Dir: "/s", Level: Deep})
			tt.want.compare(t, got)
			if tt.info != "" && !infos[tt.info] {
				t.Errorf("no information of rule %s", tt.info)
			}
			if tt.file != "" {
				hit := false
				for rule := range tt.want {
					hit = hit || strings.Contains(files[rule], tt.file)
				}
				if !hit {
					t.Errorf("files %v, want one with %q", files, tt.file)
				}
			}
		})
	}
}

// compare fails unless got is what was wanted.
func (want found) compare(t *testing.T, got found) {
	t.Helper()
	exact := found{}
	for rule, sev := range want {
		if sev == mayBe {
			sev = got[rule]
		}
		if sev != 0 {
			exact[rule] = sev
		}
	}
	if diff := cmp.Diff(exact, got); diff != "" {
		t.Errorf("findings (-want +got):\n%s", diff)
	}
}

// putHostile makes the head of a record say that size and position.
func putHostile(rec []byte, size int32, phy int64) {
	binary.BigEndian.PutUint32(rec, uint32(size))
	binary.BigEndian.PutUint64(rec[atPhysical:], uint64(phy))
	binary.BigEndian.PutUint32(rec[atBodyLen:], uint32(size-atBody-10))
}
