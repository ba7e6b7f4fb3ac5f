package check

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// tinyStore is a store directory as bytes: every kind of file that the check
// looks into, each as short as it can be.
func tinyStore(tb testing.TB) map[string][]byte {
	tb.Helper()
	fs := memfs.New()
	b := newBuilder(tb, fs, "/s")
	b.logSize, b.cqSize, b.slots, b.entries = 1024, 4*unitSize, 4, 8
	for i := range 8 {
		m := msg("T"+string(rune('a'+i%2)), 0, fmt.Sprintf("k%d", i), "t", 10)
		switch i {
		case 3:
			m.Topic = message.ScheduleTopic
			m.Properties = m.Properties.Set(message.PropDelay, "1")
		case 4:
			m.Properties = m.Properties.Set(message.PropInnerMultiDispatch, "%LMQ%a").Set(message.PropInnerMultiQueueOffset, "0")
		case 5:
			m.Topic, m.Body = message.OpHalfTopic, []byte("0,")
		case 6:
			m.SysFlag |= message.TxCommit
			m.PreparedTransactionOffset = message.PhysicalOffset(b.at[1])
		}
		b.put(m)
	}
	b.close()
	b.write("consumequeue/%LMQ%a/0/"+segmentName(0), consumequeue.AppendUnit(nil, consumequeue.Unit{
		Physical: message.PhysicalOffset(b.at[4]), Size: 200, Tags: consumequeue.ExtAddress(0)}), b.cqSize)
	b.write("consumequeue_ext/%LMQ%a/0/"+segmentName(0), consumequeue.AppendExtUnit(nil, consumequeue.ExtUnit{Tags: 1, StoreTime: startTime, Bitmap: []byte{1}}), 100)
	b.write("batchconsumequeue/Tb/0/"+segmentName(0), consumequeue.AppendBatchUnit(nil, consumequeue.BatchUnit{
		Physical: message.PhysicalOffset(b.at[1]), Size: 150, StoreTime: startTime + 7, Count: 1, Compacted: -1}), 3*batchSize)
	b.text("config/topics.json", `{"topicConfigTable":{"Ta":{"readQueueNums":1},"Tb":{"attributes":{"queue.type":"BatchCQ"}}}}`)
	b.text("config/consumerOffset.json", `{"offsetTable":{"Ta@g":{0:1}}}`)
	b.text("config/delayOffset.json", `{"offsetTable":{1:0}}`)
	b.text("epochFileCheckpoint", "1\n0\n1-0\n")
	unit := make([]byte, timerUnitSize)
	binary.BigEndian.PutUint32(unit, timerUnitSize)
	binary.BigEndian.PutUint64(unit[4:], ^uint64(0))
	binary.BigEndian.PutUint32(unit[12:], 1)
	binary.BigEndian.PutUint64(unit[16:], startTime)
	b.write("timerlog/"+segmentName(0), unit, 3*timerUnitSize)
	slot := make([]byte, timerSlotSize)
	binary.BigEndian.PutUint64(slot, 5*timerSlots)
	b.write("timerwheel", slot, 2*timerSlotSize)
	rec := make([]byte, 0, 200)
	rec, err := (&message.Encoder{}).Append(rec, msg("Tc", 0, "k", "t", 5))
	b.must(err)
	b.write("compaction/compactionLog/Tc/0/"+segmentName(0), rec, 300)
	b.write("compaction/compactionCq/Tc/0/"+segmentName(0), consumequeue.AppendBatchUnit(nil, consumequeue.BatchUnit{Size: int32(len(rec)), Count: 1, Compacted: -1}), 2*batchSize)
	b.text("compaction/position-checkpoint", `{"queueOffsetMap":{"Tc_0":0}}`)

	files := map[string][]byte{}
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := fs.List(dir)
		b.must(err)
		for _, e := range entries {
			path := filepath.Join(dir, e.Name)
			if e.IsDir() {
				walk(path)
				continue
			}
			f, err := fs.Open(path, vfs.ReadOnly)
			b.must(err)
			data := make([]byte, e.Size)
			_, err = f.ReadAt(data, 0)
			b.must(err)
			b.must(f.Close())
			rel, err := filepath.Rel("/s", path)
			b.must(err)
			files[rel] = data
		}
	}
	walk("/s")
	return files
}

// FuzzRun mutates a small store directory and checks that Run neither panics
// nor takes long, at every level. The input is a row of mutations of 8 bytes:
// number of the file, what to do, offset (2), value (4).
func FuzzRun(f *testing.F) {
	tiny := tinyStore(f)
	names := slices.Sorted(maps.Keys(tiny))
	mutation := func(name string, what byte, off uint16, value uint32) []byte {
		i := slices.Index(names, name)
		if i < 0 {
			f.Fatalf("no file %s", name)
		}
		b := []byte{byte(i), what, byte(off >> 8), byte(off)}
		return binary.BigEndian.AppendUint32(b, value)
	}
	log := "commitlog/" + segmentName(0)
	for _, off := range []uint16{0, 4, 8, 12, 20, 24, 28, 36, 56, 76, 84, 98, 102} {
		for _, v := range []uint32{0, 1, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF} {
			f.Add(mutation(log, 0, off, v))
		}
	}
	for _, name := range names {
		f.Add(mutation(name, 1, 0, 0))
		f.Add(mutation(name, 1, 13, 0))
		f.Add(mutation(name, 1, 3000, 0))
		f.Add(mutation(name, 0, 0, 0xFFFFFFFF))
		f.Add(append(mutation(name, 0, 8, 0x7FFFFFFF), mutation(name, 2, 0, 0)...))
	}
	index := names[slices.IndexFunc(names, func(n string) bool { return filepath.Dir(n) == "index" })]
	for off := uint16(0); off < 100; off += 4 {
		f.Add(mutation(index, 0, off, 0x7FFFFFFF))
		f.Add(mutation(index, 0, off, 3))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		fs := memfs.New()
		files := maps.Clone(tiny)
		abort := false
		for len(data) >= 8 && len(data) <= 8*32 {
			name := names[int(data[0])%len(names)]
			off, value := int(binary.BigEndian.Uint16(data[2:])), data[4:8]
			p := slices.Clone(files[name])
			switch data[1] % 5 {
			case 0:
				if off < len(p) {
					copy(p[off:], value)
				}
			case 1:
				p = append(p, make([]byte, max(0, off-len(p)))...)[:min(off, 1<<14)]
			case 2:
				abort = true
			case 3: // the content of another file
				p = slices.Clone(files[names[off%len(names)]])
			case 4:
				if off < len(p) {
					clear(p[off:])
				}
			}
			files[name] = p
			data = data[8:]
		}
		for name, p := range files {
			path := filepath.Join("/s", name)
			if err := fs.MkdirAll(filepath.Dir(path)); err != nil {
				t.Fatal(err)
			}
			f, err := fs.Create(path)
			if err == nil {
				_, err = f.WriteAt(p, 0)
			}
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		if abort {
			f, err := fs.Create("/s/abort")
			if err != nil {
				t.Fatal(err)
			}
			f.Close()
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		for _, level := range []Level{Quick, Full, Deep} {
			n := 0
			sum, err := Run(ctx, Options{FS: fs, Dir: "/s", Level: level, Workers: 2, MaxFindings: 100}, func(f Finding) {
				if n++; f.Rule == "" || f.Detail == "" || f.Count < 1 {
					t.Fatalf("incomplete finding %+v", f)
				}
			})
			if err != nil {
				t.Fatalf("level %v: %v", level, err)
			}
			if n > 100+len(rules) || sum.LogEnd < sum.LogMin {
				t.Fatalf("level %v: %d findings, %+v", level, n, sum)
			}
		}
	})
}
