package inspect

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

func runDump(t testing.TB, o DumpOptions) ([]Item, DumpResult, error) {
	t.Helper()
	var items []Item
	last := int64(-1)
	damaged := int64(0)
	o.Item = func(i Item) error {
		if i.Offset < last || i.Kind == "" {
			t.Errorf("%s: %+v behind %d", o.Path, i, last)
		}
		last = i.Offset
		if i.Damage != "" {
			damaged++
		}
		items = append(items, i)
		return nil
	}
	res, err := Dump(context.Background(), o)
	if res.Items != int64(len(items)) || res.Damaged != damaged {
		t.Errorf("%s: %d items, %d damaged, the result says %+v", o.Path, len(items), damaged, res)
	}
	return items, res, err
}

func (i Item) get(name string) any {
	for _, f := range i.Fields {
		if f.Name == name {
			return f.Value
		}
	}
	return nil
}

// TestDumpGolden: every file of every store is decoded, without damage where
// there is none, and the log's records are those that Java reads.
func TestDumpGolden(t *testing.T) {
	kinds := map[string]int{}
	all, err := golden.Names()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range all {
		m := golden.MustLoad(t, name)
		fsys := memfs.New()
		if err := golden.UnpackTo(fsys, "/s", name); err != nil {
			t.Fatal(err)
		}
		files, err := golden.Tree(fsys, "/s")
		if err != nil {
			t.Fatal(err)
		}
		var records []int64
		for _, f := range files {
			items, res, err := runDump(t, DumpOptions{FS: fsys, Path: filepath.Join("/s", f.Path), IndexSlots: m.Config.IndexSlots, IndexEntries: m.Config.IndexEntries})
			if strings.HasPrefix(f.Path, "rocksdbstore/") {
				if !errors.Is(err, ErrForeign) {
					t.Errorf("%s %s: %v", name, f.Path, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%s %s: %v", name, f.Path, err)
				continue
			}
			kinds[res.Kind]++
			if m.Kind != golden.Crash && res.Damaged > 0 && m.Store != "badtopic" {
				i := slices.IndexFunc(items, func(i Item) bool { return i.Damage != "" })
				t.Errorf("%s %s: %+v", name, f.Path, items[i])
			}
			if res.Kind == "commit log file" {
				for _, i := range items {
					if i.Kind == "record" && i.Damage == "" {
						records = append(records, i.get("physicalOffset").(int64))
					}
				}
			}
		}
		if m.Kind == golden.Crash || m.Store == "badtopic" || len(m.Config.CommitLogDirs("/s")) > 1 {
			continue
		}
		var want []int64
		for i := range m.Messages {
			want = append(want, int64(m.Messages[i].PhysicalOffset))
		}
		if !slices.Equal(records, want) {
			t.Errorf("%s: %d records, Java reads %d", name, len(records), len(want))
		}
	}
	for _, what := range []string{"commit log file", "consume queue file", "batch consume queue file", "consume queue extension file", "index file", "checkpoint",
		"abort file", "lock file", "timer wheel", "timer log file", "timer checkpoint", "compaction log file", "compaction queue file", "JSON file"} {
		if kinds[what] == 0 {
			t.Errorf("no %s was met", what)
		}
	}
}

// TestDump: the small kinds, and damage in each.
func TestDump(t *testing.T) {
	var log []byte
	{
		b := newBuilder(t, 4096)
		for range 3 {
			b.put("T", "", "", "text")
		}
		log = b.log
	}
	n := int64(len(log) / 3)
	for _, tc := range []struct {
		name, path, data string
		want             []string // "offset kind damage" or with fields
		kind             string
	}{
		{"epoch file", "epochFileCheckpoint", "2\n773307083\n7-7000\n8-8000\n",
			[]string{"0 count  entries=2", "2 crc  crc=773307083", "12 epoch  epoch=7 startOffset=7000", "19 epoch  epoch=8 startOffset=8000"}, "epoch file"},
		{"damaged epoch file", "epochFileCheckpoint.bak", "3\n1\n7-7000\n6-8000\nx\n",
			[]string{"0 count  entries=3", "2 crc the CRC of the entries is", "4 epoch  epoch=7", "11 epoch does not follow", "18 epoch no epoch and position text=x"}, "epoch file"},
		{"too few epochs", "epochFileCheckpoint", "3\n0\n7-7000\n", []string{"0 count", "2 crc", "4 epoch", "11 end 1 entries instead of 3"}, "epoch file"},
		{"identity", "brokerIdentity", "c#b#1", []string{"0 identity  clusterName=c brokerName=b brokerId=1"}, "broker identity"},
		{"damaged identity", "brokerIdentity-temp", "c#b#1", []string{"0 identity 3 parts instead of 4"}, "broker identity"},
		{"abort", "abort", "4711", []string{"0 process  pid=4711"}, "abort file"},
		{"old abort", "abort", "", []string{"0 empty"}, "abort file"},
		{"odd abort", "abort.bak", "x", []string{"0 text no process id"}, "abort file"},
		{"json", "config/delayOffset.json", "{\n\t\"offsetTable\":{1:40,3:\"x\"},\"e\":{},\"l\":[true,null]}",
			[]string{"20 value  key=offsetTable.1 value=40", `25 value  key=offsetTable.3 value="x"`, "34 value  key=e value={}", "42 value  key=l.0 value=true", "47 value  key=l.1 value=null"}, "JSON file"},
		{"damaged json", "config/topics.json", `{"a":`, []string{"5 json the file ends too early"}, "JSON file"},
		{"empty json", "config/topics.json", ``, []string{"0 json"}, "JSON file"},
		{"two values", "config/topics.json", `{"a":1} 2`, []string{"5 value", "9 json something follows"}, "JSON file"},
		{"short checkpoint", "checkpoint", strings.Repeat("\x00", 12), []string{"0 field 12 bytes instead of 4096", "8 field"}, "checkpoint"},
		{"checkpoint of another", "checkpoint", string(slices.Concat(make([]byte, 2000), []byte{7}, make([]byte, 2095))),
			[]string{"0 field", "8 field", "16 field", "24 field", "32 field", "40 field", "2000 bytes not zero hex=07"}, "checkpoint"},
		{"timercheck", "config/timercheck", strings.Repeat("\x00", 4096), []string{"0 field  lastReadTimestamp=0", "8 field", "16 field", "24 field", "32 field", "40 field", "48 field"}, "timer checkpoint"},
		{"timer wheel", "timerwheel", strings.Repeat("\x00", 64), []string{"0 length 64 bytes instead of", "0 empty"}, "timer wheel"},
		{"timer log", "timerlog/" + segmentName(0), "\x00\x00\x00\x34" + strings.Repeat("\x00", 48) + "\x00\x00\x00\x01garbage and more",
			[]string{"0 unit  size=52", "52 bytes neither a unit nor the end"}, "timer log file"},
		{"queue", "consumequeue/T/0/" + segmentName(40), strings.Repeat("\x00", 8) + "\x7f\xff\xff\xff" + strings.Repeat("\x00", 8+20) + strings.Repeat("\x00", 7) + "\x05\x00\x00\x00\x63" + strings.Repeat("\x00", 8) + "\x01\x02\x03",
			[]string{"0 fill  queueOffset=2", "20 empty  queueOffset=3 units=1", "40 unit behind the queue's end queueOffset=4 physicalOffset=5 size=99", "60 bytes less than a unit"}, "consume queue file"},
		{"log", "commitlog/" + segmentName(0), string(log) + strings.Repeat("\x00", 100), []string{"0 record ", fmt.Sprintf("%d record ", n), fmt.Sprintf("%d record ", 2*n), fmt.Sprintf("%d zeros  bytes=100", 3*n)}, "commit log file"},
		{"log by content", "some.bin", string(log), []string{"0 record ", fmt.Sprintf("%d record ", n), fmt.Sprintf("%d record ", 2*n)}, "commit log file"},
		{"damaged log", "commitlog/" + segmentName(0), string(log[:n]) + strings.Repeat("x", int(n)) + string(log[2*n:]),
			[]string{"0 record ", fmt.Sprintf("%d bytes no record begins here", n), fmt.Sprintf("%d record ", 2*n)}, "commit log file"},
		{"zeros in a log", "commitlog/" + segmentName(0), string(log[:n]) + strings.Repeat("\x00", int(n)) + string(log[2*n:]),
			[]string{"0 record ", fmt.Sprintf("%d zeros zeros between records", n), fmt.Sprintf("%d record ", 2*n)}, "commit log file"},
		{"log with blank", "commitlog/" + segmentName(0), string(log) + string(message.AppendBlank(nil, 50)) + strings.Repeat("s", 42),
			[]string{"0 record ", fmt.Sprintf("%d record ", n), fmt.Sprintf("%d record ", 2*n), fmt.Sprintf("%d blank  size=50", 3*n)}, "commit log file"},
		{"body of a log", "commitlog/" + segmentName(0), string(log[:89]) + "X" + string(log[90:n]), []string{"0 record bodyCRC"}, "commit log file"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := newBuilder(t, 0)
			b.write(tc.path, []byte(tc.data), int64(len(tc.data)))
			items, res, err := runDump(t, DumpOptions{FS: b.fs, Path: filepath.Join("/s", tc.path)})
			if err != nil || res.Kind != tc.kind || len(items) != len(tc.want) {
				t.Fatalf("%s, %v: %v, want %v", res.Kind, err, items, tc.want)
			}
			for i, item := range items {
				text := fmt.Sprintf("%d %s %s", item.Offset, item.Kind, item.Damage)
				for _, f := range item.Fields {
					text += fmt.Sprintf(" %s=%v", f.Name, f.Value)
				}
				want, rest, _ := strings.Cut(tc.want[i], "=")
				if cut := strings.LastIndexByte(want, ' '); rest != "" && cut >= 0 {
					// the fields may stand anywhere behind
					if !strings.HasPrefix(text, want[:cut]) || !strings.Contains(text, want[cut:]+"=") {
						t.Errorf("item %d is %q, want %q", i, text, tc.want[i])
					}
				} else if !strings.HasPrefix(text, tc.want[i]) {
					t.Errorf("item %d is %q, want %q", i, text, tc.want[i])
				}
				for w := range strings.SplitSeq(tc.want[i], " ") {
					if strings.Contains(w, "=") && !strings.Contains(text, w) {
						t.Errorf("item %d is %q without %s", i, text, w)
					}
				}
			}
			if from, _, err := runDump(t, DumpOptions{FS: b.fs, Path: filepath.Join("/s", tc.path), From: 1}); err != nil || len(from) >= len(items) && len(items) > 0 && items[0].Offset == 0 {
				t.Errorf("from offset 1: %d items, %v", len(from), err)
			}
		})
	}
}

func TestDumpForeign(t *testing.T) {
	b := newBuilder(t, 0)
	for _, name := range []string{"rocksdbstore/CURRENT", "rocksdbstore/MANIFEST-000004", "rocksdbstore/000008.log", "dledger-n0/data/" + segmentName(0), "tieredStore/x",
		"commitlog/" + segmentName(0), "other/x", "other/y.sst", "consumequeue/CURRENT", "consumequeue/MANIFEST-1"} {
		b.write(name, []byte("1234567890"), 10)
	}
	for path, want := range map[string]string{
		"rocksdbstore": "a RocksDB database", "rocksdbstore/000008.log": "a file of a RocksDB database", "dledger-n0": "the folder of a DLedger log",
		"dledger-n0/data/" + segmentName(0): "a file of a DLedger log", "tieredStore": "a folder of tiered storage", "tieredStore/x": "a file of tiered storage",
		"": "a store, a folder", "other": "a folder", "other/y.sst": "a file of a RocksDB database", "consumequeue": "a RocksDB database",
	} {
		_, res, err := runDump(t, DumpOptions{FS: b.fs, Path: filepath.Join("/s", path)})
		if !errors.Is(err, ErrForeign) || !strings.HasPrefix(res.Kind, want) {
			t.Errorf("%s: %q, %v, want %s", path, res.Kind, err, want)
		}
	}
	if _, _, err := runDump(t, DumpOptions{FS: b.fs, Path: "/s/other/x"}); err == nil || errors.Is(err, ErrForeign) {
		t.Errorf("an unknown file: %v", err)
	}
	if _, _, err := runDump(t, DumpOptions{FS: b.fs, Path: "/s/other/x", As: "no such kind"}); err == nil {
		t.Error("an unknown kind was accepted")
	}
	enough := 0
	res, err := Dump(context.Background(), DumpOptions{FS: b.fs, Path: "/s/other/x", As: "lock", Item: func(Item) error { enough++; return ErrEnough }})
	if err != nil || enough != 1 || res.Kind != "lock file" {
		t.Errorf("%+v, %v", res, err)
	}
}

// FuzzDump: no file makes Dump panic or go on for ever, and nothing is told
// twice.
func FuzzDump(f *testing.F) {
	var log []byte
	{
		b := newBuilder(f, 4096)
		for range 3 {
			b.put("T", "a", "k", "text")
		}
		log = message.AppendBlank(b.log, 100)
	}
	for i := range fileKinds {
		f.Add(uint8(i), log)
		f.Add(uint8(i), []byte("{1:2,\"a\":[]}"))
		f.Add(uint8(i), []byte("1\n0\n1-2\n"))
		f.Add(uint8(i), append(make([]byte, 60), 1, 2, 3))
	}
	f.Fuzz(func(t *testing.T, kind uint8, data []byte) {
		fsys := memfs.New()
		if err := fsys.MkdirAll("/s"); err != nil {
			t.Fatal(err)
		}
		file, err := fsys.Create("/s/" + segmentName(0))
		if err == nil {
			_, err = file.WriteAt(data, 0)
		}
		if err != nil {
			t.Fatal(err)
		}
		file.Close()
		items, _, _ := runDump(t, DumpOptions{FS: fsys, Path: "/s/" + segmentName(0), As: fileKinds[int(kind)%len(fileKinds)].name})
		if len(items) > len(data)+16 {
			t.Fatalf("%d items of %d bytes", len(items), len(data))
		}
	})
}
