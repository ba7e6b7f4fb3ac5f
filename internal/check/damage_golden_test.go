package check

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/internal/vfs/overlayfs"
)

// goldenDamages are damages of what the small store does not have.
var goldenDamages = []struct {
	name, store string
	damage      func(d *damager)
	want        found
	info        string
}{
	{"unit below the log's start in the middle", "4.9.8-preblank", func(d *damager) {
		name := "consumequeue/Young/0/" + segmentName(0)
		d.set(name, 3*unitSize, consumequeue.AppendUnit(nil, consumequeue.Unit{Physical: 100, Size: 100}))
	}, found{"queue.order": fail, "queue.expired": warn, "queue.missing": fail}, ""},

	// Extensions
	{"extension removed", "4.9.8-cqext", func(d *damager) { d.removeAll("consumequeue_ext") }, found{"queue.ext": warn}, ""},
	{"extension's store time", "4.9.8-cqext", func(d *damager) { d.flip(d.first("consumequeue_ext"), 10+7) }, found{"queue.ext": fail}, ""},
	{"extension's tags code", "4.9.8-cqext", func(d *damager) { d.flip(d.first("consumequeue_ext"), 2+7) }, found{"queue.tags": fail}, ""},
	{"extension unit without size", "4.9.8-cqext", func(d *damager) { d.zero(d.first("consumequeue_ext"), 0, 2) }, found{"queue.ext": fail}, ""},
	{"extension unit with another bit map length", "4.9.8-cqext", func(d *damager) { d.flip(d.first("consumequeue_ext"), 19) }, found{"queue.ext": fail}, ""},
	{"extension address", "4.9.8-cqext", func(d *damager) {
		d.set(d.first("consumequeue"), 12, []byte{0x80, 0x7F})
	}, found{"queue.ext": fail}, ""},

	// Batch queues
	{"batch unit's base", "5.4.0-batchcq", func(d *damager) { d.flip(d.batch(2), 2*batchSize+28+7) }, found{"queue.batch": fail}, ""},
	{"batch unit's count", "5.4.0-batchcq", func(d *damager) { d.set(d.batch(2), 2*batchSize+36, []byte{0, 99}) }, found{"queue.batch": fail}, ""},
	{"batch unit's store time", "5.4.0-batchcq", func(d *damager) { d.flip(d.batch(2), 2*batchSize+20+7) }, found{"queue.batch": fail}, ""},
	{"batch unit's reserved field", "5.4.0-batchcq", func(d *damager) { d.flip(d.batch(2), 2*batchSize+45) }, found{"queue.batch": fail}, ""},
	{"batch unit's tags", "5.4.0-batchcq", func(d *damager) { d.flip(d.batch(2), 2*batchSize+12+7) }, found{"queue.tags": fail}, ""},
	{"batch unit's size", "5.4.0-batchcq", func(d *damager) { d.flip(d.batch(2), 2*batchSize+8+3) }, found{"queue.size": fail, "queue.order": mayBe}, ""},
	{"batch unit's position", "5.4.0-batchcq", func(d *damager) { d.flip(d.batch(2), 2*batchSize+7) },
		found{"queue.pointer": fail, "queue.missing": fail, "queue.order": mayBe}, ""},
	{"hole in a batch queue", "5.4.0-batchcq", func(d *damager) { d.zero(d.batch(2), 2*batchSize, batchSize) },
		found{"queue.missing": fail, "queue.end": warn}, ""},
	{"batch queue removed", "5.4.0-batchcq", func(d *damager) { d.removeAll("batchconsumequeue") }, found{"queue.missing": fail}, ""},

	// Light queues
	{"unit of a light queue", "5.4.0-lmq", func(d *damager) { d.flip("consumequeue/%LMQ%a/0/"+segmentName(0), 2*unitSize+7) },
		found{"queue.pointer": fail, "queue.missing": fail, "queue.order": mayBe}, ""},
	{"light queue under another id", "5.4.0-lmq", func(d *damager) {
		name := "consumequeue/%LMQ%a/0/" + segmentName(0)
		d.write("consumequeue/%LMQ%a/1/"+segmentName(0), d.get(name, 0, int(d.size(name))), d.size(name))
	}, found{"queue.owner": fail}, ""},
	{"light queue removed", "5.4.0-lmq", func(d *damager) { d.removeAll("consumequeue/%LMQ%a") }, found{}, "queue.missing"},

	// Property CRC
	{"field under the property CRC", "5.4.0-propcrc", func(d *damager) { d.flip("commitlog/"+segmentName(0), 16) },
		found{"log.propcrc": fail, "queue.pointer": fail, "index.key": mayBe}, ""},
	{"property CRC not at the end", "5.4.0-propcrc", func(d *damager) {
		// The last byte of the first record's property CRC.
		n := int64(d.get32("commitlog/"+segmentName(0), 0))
		d.set("commitlog/"+segmentName(0), n-1, []byte("x"))
	}, found{"log.propcrc": warn}, ""},

	// Multi path
	{"the same file in two folders", "5.4.0-multipath", func(d *damager) {
		p := d.get("disk1/commitlog/"+segmentName(0), 0, 131072)
		d.write("disk2/commitlog/"+segmentName(0), p, 131072)
	}, found{"log.name": fail}, ""},
	{"a folder of the log is missing", "5.4.0-multipath", func(d *damager) { d.removeAll("disk2") },
		found{"log.gap": fail, "queue.missing": mayBe}, ""},

	// Timer
	{"timer wheel short", "5.4.0-broker-dir", func(d *damager) { d.truncate("timerwheel", 38707200-32) }, found{"timer.wheel": fail}, ""},
	{"timer slot's time", "5.4.0-broker-dir", func(d *damager) { d.flip("timerwheel", 946998*timerSlotSize+7) }, found{"timer.wheel": fail}, ""},
	{"timer slot's last position", "5.4.0-broker-dir", func(d *damager) { d.flip("timerwheel", 946998*timerSlotSize+16+7) }, found{"timer.wheel": fail}, ""},
	{"timer slot's first position", "5.4.0-broker-dir", func(d *damager) { d.set64("timerwheel", 946998*timerSlotSize+8, 52) }, found{"timer.wheel": fail}, ""},
	{"timer slot's number", "5.4.0-broker-dir", func(d *damager) { d.flip("timerwheel", 946998*timerSlotSize+24+3) }, found{"timer.wheel": fail}, ""},
	{"timer unit's previous one is itself", "5.4.0-broker-dir", func(d *damager) { d.set64("timerlog/"+segmentName(0), 208+4, 208) }, found{"timer.wheel": fail}, ""},
	{"timer unit's position", "5.4.0-broker-dir", func(d *damager) { d.flip("timerlog/"+segmentName(0), 208+28+7) }, found{"timer.wheel": fail}, ""},
	{"timer unit's size", "5.4.0-broker-dir", func(d *damager) { d.flip("timerlog/"+segmentName(0), 208+36+3) }, found{"timer.wheel": fail}, ""},
	{"timer unit's topic", "5.4.0-broker-dir", func(d *damager) { d.flip("timerlog/"+segmentName(0), 208+40+3) }, found{"timer.wheel": fail}, ""},
	{"timer unit's delay", "5.4.0-broker-dir", func(d *damager) { d.set32("timerlog/"+segmentName(0), 208+24, 60000) }, found{"timer.wheel": fail}, ""},
	{"timer log cut off", "5.4.0-broker-dir", func(d *damager) { d.zero("timerlog/"+segmentName(0), 156, 200) },
		found{"timer.wheel": fail, "timer.check": warn}, ""},
	{"garbage in the timer log", "5.4.0-broker-dir", func(d *damager) { d.set("timerlog/"+segmentName(0), 312, []byte("garbage")) }, found{"timer.wheel": fail}, ""},
	{"timercheck short", "5.4.0-broker-dir", func(d *damager) { d.truncate("config/timercheck", 20) }, found{"timer.check": warn}, ""},
	{"timercheck ahead of the log", "5.4.0-broker-dir", func(d *damager) { d.set64("config/timercheck", 8, 1<<40) }, found{"timer.check": warn}, ""},
	{"timercheck ahead of the queue", "5.4.0-broker-dir", func(d *damager) { d.set64("config/timercheck", 16, 1<<40) }, found{"timer.check": warn}, ""},

	// Compaction
	{"compaction log without its queue", "5.4.0-compaction", func(d *damager) {
		d.remove("compaction/compactionCq/CompactTopic/0/" + segmentName(138000))
	}, found{"compaction.files": fail}, ""},
	{"compaction queue without its log", "5.4.0-compaction", func(d *damager) {
		d.remove("compaction/compactionLog/CompactTopic/1/" + segmentName(0))
	}, found{"compaction.files": fail}, ""},
	{"compaction unit's offset", "5.4.0-compaction", func(d *damager) {
		d.flip("compaction/compactionCq/CompactTopic/1/"+segmentName(0), batchSize+28+7)
	}, found{"compaction.files": fail}, ""},
	{"compaction unit's position", "5.4.0-compaction", func(d *damager) {
		d.set("compaction/compactionCq/CompactTopic/1/"+segmentName(0), batchSize, []byte{0, 0, 0, 9})
	}, found{"compaction.files": fail}, ""},
	{"compaction unit's size", "5.4.0-compaction", func(d *damager) {
		d.set32("compaction/compactionCq/CompactTopic/1/"+segmentName(0), batchSize+8, 5)
	}, found{"compaction.files": fail}, ""},
	{"record in a compaction log", "5.4.0-compaction", func(d *damager) {
		d.flip("compaction/compactionLog/CompactTopic/1/"+segmentName(0), 90)
	}, found{"compaction.files": fail}, ""},
	{"compaction progress", "5.4.0-compaction", func(d *damager) {
		d.remove("compaction/position-checkpoint")
		d.text("compaction/position-checkpoint", `{"queueOffsetMap":{"CompactTopic_0":99999}}`)
	}, found{"compaction.files": warn}, ""},
	{"files of an unfinished compaction", "5.4.0-compaction", func(d *damager) {
		d.write("compaction/compactionLog/CompactTopic/1/compacting/"+segmentName(0), nil, 27600)
	}, found{}, "store.leftover"},

	// A crash excuses what was not flushed.
	{"checkpoint of a crashed store ahead", "5.4.0-crash-torn", func(d *damager) { d.set64("checkpoint", 8, startTime*2) },
		found{"checkpoint.values": warn, "log.torn": warn, "queue.ahead": warn, "index.ahead": warn}, ""},
}

// first returns the first file below a folder of the store, by name.
func (d *damager) first(rel string) string {
	d.tb.Helper()
	entries, err := d.fs.List(d.path(rel))
	d.must(err)
	if len(entries) == 0 {
		d.tb.Fatalf("nothing in %s", rel)
	}
	rel += "/" + entries[0].Name
	if entries[0].IsDir() {
		return d.first(rel)
	}
	return rel
}

// batch returns the first file of the batch queue with at least n units.
func (d *damager) batch(n int) string {
	d.tb.Helper()
	name := d.first("batchconsumequeue")
	u, err := consumequeue.DecodeBatchUnit(d.get(name, int64(n)*batchSize, batchSize))
	d.must(err)
	if !u.Valid() {
		d.tb.Fatalf("%s has no %d units", name, n)
	}
	return name
}

func TestDamageGolden(t *testing.T) {
	bases := map[string]vfs.FS{} // unpacked stores; each case damages a view of one
	for _, tt := range goldenDamages {
		t.Run(tt.store+" "+tt.name, func(t *testing.T) {
			m := golden.MustLoad(t, tt.store)
			if bases[tt.store] == nil {
				bases[tt.store] = memfs.New()
				if err := golden.UnpackTo(bases[tt.store], "/s", tt.store); err != nil {
					t.Fatal(err)
				}
			}
			fs := overlayfs.New(bases[tt.store])
			d := &damager{builder: newBuilder(t, fs, "/s")}
			tt.damage(d)
			o := Options{FS: fs, Dir: "/s", Level: Deep}
			if m.Config.CommitLogPaths != "" {
				o.CommitLogDirs = strings.Split(m.Config.CommitLogPaths, ",")
			}
			got, infos, _ := results(t, o)
			tt.want.compare(t, got)
			if tt.info != "" && !infos[tt.info] {
				t.Errorf("no information of rule %s", tt.info)
			}
		})
	}
}

// TestReadErrors checks that a bad sector is a finding with its place, counts
// as zeros, and does not hide what else is wrong.
func TestReadErrors(t *testing.T) {
	tests := []struct {
		name, file string
		want       found
	}{
		{"log", segmentName(8192), found{"io.read": fail, "log.record": mayBe, "log.size": mayBe, "log.bodycrc": mayBe, "queue.pointer": mayBe}},
		{"index", filepath.Base(indexName(1)), found{"io.read": fail, "index.order": mayBe, "index.chain": mayBe, "index.slot": mayBe, "index.count": mayBe, "index.key": mayBe, "index.file": mayBe, "index.times": mayBe, "index.seconds": mayBe}},
		{"checkpoint", "checkpoint", found{"io.read": fail}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBuilder(t, memfs.New(), "/s")
			b.small()
			fs := faultfs.New(b.fs)
			fs.Inject(faultfs.Rule{Ops: faultfs.OpRead, Name: tt.file, Err: faultfs.ErrIO,
				Match: func(c faultfs.Call) bool { return c.Off <= 512 && 512 < c.Off+c.N }})
			got, _, _ := results(t, Options{FS: fs, Dir: "/s", Level: Deep})
			tt.want.compare(t, got)
		})
	}
	t.Run("open", func(t *testing.T) {
		b := newBuilder(t, memfs.New(), "/s")
		b.small()
		fs := faultfs.New(b.fs)
		fs.Fail(faultfs.OpOpen, segmentName(4096), errors.New("no permission"))
		got, _, _ := results(t, Options{FS: fs, Dir: "/s"})
		found{"io.read": fail, "log.record": fail, "queue.pointer": fail}.compare(t, got)
	})
	t.Run("list", func(t *testing.T) {
		b := newBuilder(t, memfs.New(), "/s")
		b.small()
		fs := faultfs.New(b.fs)
		fs.Fail(faultfs.OpList, "TopicA", errors.New("no permission"))
		got, _, _ := results(t, Options{FS: fs, Dir: "/s"})
		found{"io.read": fail, "queue.missing": fail, "config.offsets": warn}.compare(t, got)
	})
}

// TestEveryRuleIsTested checks that each rule has a damage that leads to it.
func TestEveryRuleIsTested(t *testing.T) {
	tested := map[string]bool{"io.read": true, "log.propcrc": true}
	for _, d := range damages {
		for r := range d.want {
			tested[r] = true
		}
		tested[d.info] = true
	}
	for _, d := range goldenDamages {
		for r := range d.want {
			tested[r] = true
		}
		tested[d.info] = true
	}
	for _, r := range Rules() {
		if !tested[r.Name] {
			t.Errorf("no damage for rule %s %s", r.Number, r.Name)
		}
	}
}
