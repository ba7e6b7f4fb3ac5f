package tool

import (
	"bytes"
	"encoding/binary"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/message"
)

const unitSize = consumequeue.UnitSize

// damages of a store, for each rule of section 20 of the format. do reports
// whether the store has what is to be damaged.
var damages = []struct {
	rule  string // number in section 20
	name  string
	found string // how a rule of verify begins that must tell; empty: there may be nothing to see
	do    func(d *damager) bool
	// what stays wrong in the repaired store: files that are copied as they are
	stays []string
}{
	// The files of the log.
	{"1", "log file name without padding", "log.name", inLogFile(1, func(d *damager, f string) {
		d.rename(f, filepath.Dir(f)+"/"+strings.TrimLeft(filepath.Base(f), "0"))
	}), nil},
	{"1", "log file name in other digits", "log.name", inLogFile(1, func(d *damager, f string) {
		d.rename(f, filepath.Dir(f)+"/"+strings.Map(func(r rune) rune { return '٠' + r - '0' }, filepath.Base(f)))
	}), nil},
	{"1", "log file name no multiple", "log.name", inLogFile(1, func(d *damager, f string) {
		start, _ := mappedfile.ParseFileName(filepath.Base(f))
		d.rename(f, filepath.Dir(f)+"/"+mappedfile.FileName(start+100))
	}), nil},
	{"1", "foreign files among the log", "store.leftover", func(d *damager) bool {
		dir := filepath.Dir(d.log()[0])
		d.write(dir+"/.DS_Store", []byte("x"))
		d.write(dir+"/00000000000000000000.bak", d.get(d.log()[1], 0, 5000))
		return true
	}, nil},
	{"1a", "log file cut", "log.length", inLogFile(1, func(d *damager, f string) { d.cut(f, d.size(f)/2) }), nil},
	{"1a", "log file longer", "log.length", inLogFile(1, func(d *damager, f string) {
		n := d.size(f)
		d.cut(f, n+5000)
		d.set(f, n+10, []byte("garbage")...)
	}), nil},
	{"1a", "last log file cut to nothing", "log.length", func(d *damager) bool {
		f := d.log()[len(d.log())-1]
		if len(d.log()) < 2 {
			return false
		}
		d.cut(f, 0)
		return true
	}, nil},
	{"2", "log file missing", "log.gap", inLogFile(1, func(d *damager, f string) { d.remove(f) }), nil},
	{"2", "log file far away", "", func(d *damager) bool {
		dir := filepath.Dir(d.log()[0])
		d.write(dir+"/09000000000000000000", []byte("no record"))
		return true
	}, nil},

	// Records.
	{"3", "zeros over a record's head", "log.record", inRecord(func(d *damager, r record) { d.zero(r.file, r.off, 80) }), nil},
	{"3", "magic flipped", "log.record", inRecord(func(d *damager, r record) { d.flip(r.file, r.off+4) }), nil},
	{"3", "a page of zeros", "", inRecord(func(d *damager, r record) {
		d.zero(r.file, r.off/4096*4096, min(4096, d.size(r.file)-r.off/4096*4096))
	}), nil},
	{"3", "64 KiB of garbage", "", inRecord(func(d *damager, r record) {
		d.set(r.file, r.off+7, bytes.Repeat([]byte{0xDA, 0xA3, 0x20, 0xA7}, int(min(64<<10, d.size(r.file)-r.off-7)/4))...)
	}), lostEnd},
	{"3", "blank record's size", "log.record", inBlank(func(d *damager, f string, off int64) { d.flip(f, off+3) }), nil},
	{"3", "blank record gone", "log.record", inBlank(func(d *damager, f string, off int64) { d.zero(f, off, 8) }), nil},
	{"3a", "last record torn", "log.", func(d *damager) bool {
		r := d.last()
		d.zero(r.file, r.off+60, int64(r.Size)-60)
		return true
	}, nil},
	{"3a", "log cut in the middle", "", func(d *damager) bool {
		r, ok := d.middle()
		if !ok {
			return false
		}
		d.zero(r.file, r.off, d.size(r.file)-r.off)
		for _, f := range d.log() {
			if filepath.Base(f) > filepath.Base(r.file) {
				d.remove(f)
			}
		}
		return true
	}, lostEnd},
	{"4", "size too small", "log.size", inRecord(func(d *damager, r record) { d.set32(r.file, r.off, 90) }), nil},
	{"4", "size too large", "log.size", inRecord(func(d *damager, r record) { d.set32(r.file, r.off, 0x7FFFFFFF) }), nil},
	{"4", "size negative", "log.size", inRecord(func(d *damager, r record) { d.set32(r.file, r.off, 0x80000000) }), nil},
	{"4", "size one more", "log.size", inRecord(func(d *damager, r record) { d.set32(r.file, r.off, uint32(r.Size)+1) }), nil},
	{"4", "body length negative", "log.size", inRecord(func(d *damager, r record) { d.set32(r.file, r.off+84, 0xFFFFFFFF) }), nil},
	{"4", "body length huge", "log.size", inRecord(func(d *damager, r record) { d.set32(r.file, r.off+84, 0x7FFFFFF0) }), nil},
	{"4", "properties' length", "log.size", inRecord(func(d *damager, r record) {
		d.set(r.file, r.off+88+int64(r.BodyLength)+1+int64(len(r.Topic)), 0x7F, 0xFF)
	}), nil},
	{"5", "position", "log.position", inRecord(func(d *damager, r record) { d.flip(r.file, r.off+35) }), nil},
	{"5", "two log files swapped", "log.position", func(d *damager) bool {
		l := d.log()
		if len(l) < 3 || filepath.Dir(l[0]) != filepath.Dir(l[1]) {
			return false
		}
		d.swap(l[0], l[1])
		return true
	}, nil},
	{"5", "log file overwritten with another", "log.position", func(d *damager) bool {
		l := d.log()
		if len(l) < 3 {
			return false
		}
		d.set(l[1], 0, d.get(l[0], 0, int(d.size(l[0])))...)
		return true
	}, nil},
	{"6", "body", "log.", inRecord(func(d *damager, r record) { d.flip(r.file, r.off+88+int64(r.BodyLength)/2) }), nil},
	{"6", "ten bodies", "log.", func(d *damager) bool {
		for i := 1; i < len(d.m.Messages); i += max(1, len(d.m.Messages)/10) {
			if m := &d.m.Messages[i]; m.BodyLength > 0 {
				f, off := d.find(int64(m.PhysicalOffset))
				h, err := message.ParseHeader(d.get(f, off, message.MaxHeaderSize))
				d.must(err)
				d.flip(f, off+int64(h.BodyOffset))
			}
		}
		return true
	}, lostEnd},
	{"6", "body of the last record", "log.", func(d *damager) bool {
		r := d.last()
		if r.BodyLength == 0 {
			return false
		}
		d.flip(r.file, r.off+88)
		return true
	}, nil},
	{"6", "body CRC zero", "log.", inRecord(func(d *damager, r record) { d.set32(r.file, r.off+8, 0) }), nil},
	{"7", "field under the property CRC", "log.propcrc", func(d *damager) bool {
		r, ok := d.middle()
		if ok = ok && d.m.Config.PropertyCRC; ok {
			d.flip(r.file, r.off+16)
		}
		return ok
	}, nil},
	{"8", "store time before the last one", "log.", inRecord(func(d *damager, r record) { d.set64(r.file, r.off+56, 1_000_000) }), []string{"index.times"}},
	{"8", "store time in the future", "log.", inRecord(func(d *damager, r record) { d.set64(r.file, r.off+56, 1<<60) }), []string{"index.times"}},
	{"9", "topic is no text", "log.topic", inRecord(func(d *damager, r record) { d.set(r.file, r.off+88+int64(r.BodyLength)+1, 0xFF) }), nil},
	{"9", "topic of another name", "", inRecord(func(d *damager, r record) { d.flip(r.file, r.off+88+int64(r.BodyLength)+1) }), nil},
	{"10", "delay level is no number", "log.properties", func(d *damager) bool {
		r, ok := d.pick(func(m *golden.Message) bool {
			return m.Topic == message.ScheduleTopic && m.SysFlag&(message.BornHostV6|message.StoreHostV6) == 0
		})
		if !ok {
			return false
		}
		p := d.get(r.file, r.off, int(r.Size))
		d.set(r.file, r.off+int64(bytes.LastIndex(p, []byte("DELAY\x01")))+6, 'x')
		return true
	}, nil},
	{"11", "port", "log.sysflag", inRecord(func(d *damager, r record) { d.set(r.file, r.off+52, 0x7F) }), nil},
	{"12", "half message lost", "", func(d *damager) bool {
		r, ok := d.pick(func(m *golden.Message) bool { return m.Topic == message.HalfTopic && m.BodyLength > 0 })
		if !ok {
			return false
		}
		d.flip(r.file, r.off+88)
		return true
	}, []string{"transaction.op"}},
	{"13", "garbage behind the end", "log.", func(d *damager) bool {
		f, off := d.end()
		if f == "" || off+100 > d.size(f) {
			return false
		}
		d.set(f, off+20, []byte("garbage")...)
		return true
	}, nil},
	{"13a", "old record behind the end", "", func(d *damager) bool {
		f, off := d.end()
		m := &d.m.Messages[0]
		if f == "" || off+int64(m.Size)+100 > d.size(f) {
			return false
		}
		src, at := d.find(int64(m.PhysicalOffset))
		p := d.get(src, at, int(m.Size))
		binary.BigEndian.PutUint64(p[28:], uint64(int64(d.m.MaxPhysicalOffset)+20))
		d.set(f, off+20, p...)
		return true
	}, nil},

	// Consume queues.
	{"14", "queue file with a wrong name", "queue.files", inQueue(func(d *damager, f string, n int64) { d.rename(f, filepath.Dir(f)+"/0") }), nil},
	{"14", "queue file cut", "queue.files", inQueue(func(d *damager, f string, n int64) { d.cut(f, 50) }), nil},
	{"14", "queue file much longer", "queue.files", inQueue(func(d *damager, f string, n int64) { d.cut(f, 64<<20) }), nil},
	{"14", "queue file far away", "queue.files", inQueue(func(d *damager, f string, n int64) {
		d.write(filepath.Dir(f)+"/"+mappedfile.FileName(d.size(f)*1_000_000_000), bytes.Repeat([]byte{1}, int(d.size(f))))
	}), nil},
	{"15", "hole in a queue", "queue.missing", inQueue(func(d *damager, f string, n int64) { d.zero(f, n/2*unitSize, unitSize) }), nil},
	{"15", "page of zeros in a queue", "queue.missing", inQueue(func(d *damager, f string, n int64) { d.zero(f, 0, min(4096, n*unitSize)) }), nil},
	{"15", "units behind the end", "", inQueue(func(d *damager, f string, n int64) {
		if (n+3)*unitSize <= d.size(f) {
			d.set(f, (n+2)*unitSize, d.get(f, 0, unitSize)...)
		}
	}), nil},
	{"16", "fill unit in the middle", "queue.fill", inQueue(func(d *damager, f string, n int64) {
		d.set(f, n/2*unitSize, consumequeue.AppendUnit(nil, consumequeue.FillUnit)...)
	}), nil},
	{"17", "unit points nowhere", "queue.pointer", inQueue(func(d *damager, f string, n int64) { d.flip(f, n/2*unitSize+7) }), nil},
	{"17", "unit points far away", "", inQueue(func(d *damager, f string, n int64) { d.set(f, n/2*unitSize, 0x70) }), nil},
	{"18", "unit size", "queue.size", inQueue(func(d *damager, f string, n int64) { d.flip(f, n/2*unitSize+11) }), nil},
	{"19", "two units swapped", "queue.owner", inQueue(func(d *damager, f string, n int64) {
		a, b := d.get(f, (n/2-1)*unitSize, unitSize), d.get(f, n/2*unitSize, unitSize)
		d.set(f, (n/2-1)*unitSize, append(b, a...)...)
	}), nil},
	{"19", "queue offset of a record", "queue.", inRecord(func(d *damager, r record) { d.flip(r.file, r.off+27) }), nil},
	{"19", "queue offset of a record, far away", "queue.", inRecord(func(d *damager, r record) { d.set(r.file, r.off+20, 0x40) }), nil},
	{"19", "queue offset of a record zero", "", inRecord(func(d *damager, r record) { d.zero(r.file, r.off+20, 8) }), nil},
	{"19", "queue id of a record", "queue.", inRecord(func(d *damager, r record) { d.flip(r.file, r.off+15) }), nil},
	{"20", "unit for another record", "", inQueue(func(d *damager, f string, n int64) {
		d.set(f, n/2*unitSize, d.get(f, 0, unitSize)...)
	}), nil},
	{"21", "tags code", "queue.", inQueue(func(d *damager, f string, n int64) { d.flip(f, n/2*unitSize+19) }), nil},
	{"22", "units in reverse", "queue.order", inQueue(func(d *damager, f string, n int64) {
		p := d.get(f, 0, int(n*unitSize))
		var r []byte
		for i := n - 1; i >= 0; i-- {
			r = append(r, p[i*unitSize:(i+1)*unitSize]...)
		}
		d.set(f, 0, r...)
	}), nil},
	{"22a", "unit behind the log's end", "queue.", inQueue(func(d *damager, f string, n int64) {
		d.set64(f, (n-1)*unitSize, uint64(d.m.MaxPhysicalOffset)+1000)
	}), nil},
	{"23", "queue removed", "queue.missing", inQueue(func(d *damager, f string, n int64) { d.remove(filepath.Dir(f)) }), nil},
	{"23", "all queues removed", "queue.missing", func(d *damager) bool {
		d.remove("consumequeue")
		d.remove("batchconsumequeue")
		return true
	}, nil},
	{"24", "two queues swapped", "queue.owner", func(d *damager) bool {
		var dirs []string
		for _, f := range d.files("consumequeue") {
			if dir := filepath.Dir(f); !slices.Contains(dirs, dir) {
				dirs = append(dirs, dir)
			}
		}
		for i := 1; i < len(dirs); i++ {
			if a, b := dirs[i-1]+"/"+mappedfile.FileName(0), dirs[i]+"/"+mappedfile.FileName(0); d.has(a) && d.has(b) &&
				d.get(a, 8, 4)[3] != 0 && d.get(b, 8, 4)[3] != 0 {
				d.swap(a, b)
				return true
			}
		}
		return false
	}, nil},
	{"25", "queue copied to another id", "queue.owner", inQueue(func(d *damager, f string, n int64) {
		d.write(filepath.Dir(filepath.Dir(f))+"/97/"+filepath.Base(f), d.get(f, 0, int(d.size(f))))
	}), nil},
	{"26", "extension removed", "queue.ext", func(d *damager) bool {
		if !d.has("consumequeue_ext") || len(d.files("consumequeue_ext")) == 0 {
			return false
		}
		d.remove("consumequeue_ext")
		return true
	}, nil},
	{"26", "extension unit", "queue.ext", func(d *damager) bool {
		files := d.files("consumequeue_ext")
		if len(files) == 0 {
			return false
		}
		d.zero(files[0], 0, 2)
		return true
	}, nil},
	{"27", "batch unit's base", "queue.batch", inBatch(func(d *damager, f string, n int64) { d.flip(f, n/2*46+35) }), nil},
	{"27", "hole in a batch queue", "queue.missing", inBatch(func(d *damager, f string, n int64) { d.zero(f, n/2*46, 46) }), nil},
	{"28", "topics without types", "", func(d *damager) bool {
		if !d.has("config/topics.json") {
			return false
		}
		d.remove("config/topics.json")
		return true
	}, []string{"queue.type", "config.topics", "config.json"}},

	// Index.
	{"29", "index file with a wrong name", "", inIndex(func(d *damager, f string) { d.rename(f, "index/abc") }), nil},
	{"29", "index file cut", "index.", inIndex(func(d *damager, f string) { d.cut(f, 100) }), nil},
	{"30", "index count", "index.", inIndex(func(d *damager, f string) { d.set32(f, 36, 0x7FFFFFFF) }), nil},
	{"31", "index slots", "index.", inIndex(func(d *damager, f string) {
		for i := int64(0); i < 200; i++ {
			d.set32(f, 40+4*i, 0x7FFFFFFF)
		}
	}), nil},
	{"32", "index chain goes round", "", inIndex(func(d *damager, f string) {
		e := 40 + 4*int64(d.m.Config.IndexSlots) + 20
		d.set32(f, e+16, 1)
	}), nil},
	{"33", "index position", "", inIndex(func(d *damager, f string) {
		d.set64(f, 40+4*int64(d.m.Config.IndexSlots)+20+4, 1<<50)
	}), nil},
	{"34", "index hash", "", inIndex(func(d *damager, f string) { d.flip(f, 40+4*int64(d.m.Config.IndexSlots)+20+3) }), nil},
	{"35", "index seconds", "index.", inIndex(func(d *damager, f string) {
		d.set32(f, 40+4*int64(d.m.Config.IndexSlots)+40+12, 1_000_000)
	}), nil},
	{"36", "index header times", "index.", inIndex(func(d *damager, f string) { d.set64(f, 0, 5) }), nil},
	{"36", "index header zero", "", inIndex(func(d *damager, f string) { d.zero(f, 0, 40) }), nil},
	{"37", "index removed", "", inIndex(func(d *damager, f string) { d.remove("index") }), nil},

	// Small files.
	{"38", "checkpoint cut", "checkpoint.format", func(d *damager) bool { d.cut("checkpoint", 20); return true }, nil},
	{"38", "checkpoint of garbage", "checkpoint.format", func(d *damager) bool {
		d.set("checkpoint", 0, bytes.Repeat([]byte{0xFF}, 4096)...)
		return true
	}, nil},
	{"39", "checkpoint ahead", "checkpoint.values", func(d *damager) bool { d.set64("checkpoint", 0, 1_700_000_000_000*2); return true }, nil},
	{"39", "checkpoint removed", "", func(d *damager) bool { d.remove("checkpoint"); return true }, nil},
	{"40", "abort file", "store.abort", func(d *damager) bool {
		if d.has("abort") {
			return false
		}
		d.write("abort", []byte("99"))
		return true
	}, nil},
	{"41", "topic configuration torn", "config.json", func(d *damager) bool {
		if !d.has("config/topics.json") {
			return false
		}
		if d.has("config/topics.json.bak") {
			d.remove("config/topics.json.bak")
		}
		d.cut("config/topics.json", 30)
		return true
	}, []string{"config.json", "queue.type"}},
	{"43", "consumer offsets too high", "config.offsets", func(d *damager) bool {
		if d.has("config/consumerOffset.json") {
			return false
		}
		d.write("config/consumerOffset.json", []byte(`{"offsetTable":{"TopicTest@g":{0:999999}}}`))
		return d.m.Queue("TopicTest", 0) != nil
	}, []string{"config.offsets", "config.topics"}},
	{"45", "timer wheel cut", "timer.wheel", inFile("timerwheel", func(d *damager) { d.cut("timerwheel", 32) }), []string{"timer.wheel"}},
	{"46", "timer progress", "timer.check", inFile("config/timercheck", func(d *damager) { d.set64("config/timercheck", 8, 1<<40) }), []string{"timer.check"}},
	{"48", "compaction queue", "compaction.files", func(d *damager) bool {
		files := d.files("compaction/compactionCq")
		if len(files) == 0 {
			return false
		}
		d.flip(files[0], 46+7)
		return true
	}, []string{"compaction.files"}},
	{"49", "epoch file", "epoch.file", func(d *damager) bool {
		d.write("epochFileCheckpoint", []byte("2\n77\n1-0\n2-100\n"))
		return true
	}, []string{"epoch.file"}},
	{"50", "leftovers", "store.leftover", func(d *damager) bool {
		d.write("core.1234", []byte("x"))
		d.write("consumequeue/notes.txt", []byte("x"))
		return true
	}, nil},
}

// lostEnd is what complains when the end of the log is gone: files with numbers
// from then.
var lostEnd = []string{"config.offsets", "config.delay", "transaction.op", "timer.check", "compaction.files"}

func inLogFile(i int, do func(d *damager, f string)) func(*damager) bool {
	return func(d *damager) bool {
		l := d.log()
		if len(l) < i+2 {
			return false
		}
		do(d, l[i])
		return true
	}
}

func inRecord(do func(d *damager, r record)) func(*damager) bool {
	return func(d *damager) bool {
		r, ok := d.middle()
		if ok {
			do(d, r)
		}
		return ok
	}
}

func inBlank(do func(d *damager, f string, off int64)) func(*damager) bool {
	return func(d *damager) bool {
		if len(d.m.Blanks) == 0 {
			return false
		}
		f, off := d.find(int64(d.m.Blanks[0].PhysicalOffset))
		do(d, f, off)
		return true
	}
}

func inQueue(do func(d *damager, f string, n int64)) func(*damager) bool {
	return func(d *damager) bool {
		f, n := d.queueFile("consumequeue", unitSize)
		if n < 4 {
			return false
		}
		do(d, f, n)
		return true
	}
}

func inBatch(do func(d *damager, f string, n int64)) func(*damager) bool {
	return func(d *damager) bool {
		f, n := d.queueFile("batchconsumequeue", consumequeue.BatchUnitSize)
		if n < 4 {
			return false
		}
		do(d, f, n)
		return true
	}
}

func inIndex(do func(d *damager, f string)) func(*damager) bool {
	return func(d *damager) bool {
		files := d.files("index")
		if len(files) == 0 {
			return false
		}
		do(d, files[0])
		return true
	}
}

func inFile(name string, do func(d *damager)) func(*damager) bool {
	return func(d *damager) bool {
		if !d.has(name) {
			return false
		}
		do(d)
		return true
	}
}

// end is where the log ends, when that is in a file.
func (d *damager) end() (file string, off int64) {
	r := d.last()
	if off = r.off + int64(r.Size); int64(d.m.MaxPhysicalOffset)%d.m.Config.CommitLogFileSize != off {
		return "", 0
	}
	return r.file, off
}
