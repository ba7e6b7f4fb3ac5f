package commitlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestC19TornTailAtEveryByte loses the end of the last record from every byte
// on, as zeros and by cutting the file.
func TestC19TornTailAtEveryByte(t *testing.T) {
	lasts := []struct {
		name string
		m    *message.Message
	}{
		{"with properties", msg(strings.Repeat("A", 32), "KEYS", "k1", "TAGS", "a")},
		{"without properties", &message.Message{Topic: "TopicTest", Body: []byte("hello")}},
		{"without body", &message.Message{Topic: "TopicTest", Properties: message.NewProperties("TAGS", "a")}},
	}
	for _, last := range lasts {
		t.Run(last.name, func(t *testing.T) {
			build := func() (*memfs.FS, int64, []byte) {
				mem, _ := makeLog(t, 8192, repeat(9, 139)...)
				l, _ := startLog(t, testOptions(mem, 8192))
				p := newPut(t, 9, last.m)
				phy, _, err := l.Append(len(p.recs), p)
				if err != nil {
					t.Fatal(err)
				}
				l.Close()
				return mem, int64(phy), p.recs
			}
			for _, cut := range []bool{false, true} {
				_, _, whole := build()
				for c := 0; c <= len(whole); c++ {
					mem, at, rec := build()
					torn := bytes.Clone(rec)
					clear(torn[c:])
					intact := bytes.Equal(torn, rec)
					if cut {
						f, err := mem.Open(filepath.Join(testDir, fmt.Sprintf("%020d", 0)), vfs.ReadWrite)
						if err != nil {
							t.Fatal(err)
						}
						if err := f.Truncate(at + int64(c)); err != nil {
							t.Fatal(err)
						}
						f.Close()
					} else {
						patchFile(t, mem, 0, at, torn)
					}
					wantEnd, want := at, 9
					if intact {
						wantEnd, want = at+int64(len(rec)), 10
					}
					l, tail := startLog(t, testOptions(mem, 8192))
					if int64(tail.End) != wantEnd || tail.Records != int64(want) || tail.ValidBehind+tail.Stale != 0 {
						t.Fatalf("c=%d cut=%v: tail %+v", c, cut, tail)
					}
					if nothing := lastNonZero(torn) == 0; (tail.Reason == nil) != (intact || nothing) {
						t.Fatalf("c=%d cut=%v: reason %v", c, cut, tail.Reason)
					}
					if got := appendSized(t, l, 120, byte(want)); int64(got) != wantEnd {
						t.Fatalf("c=%d cut=%v: next record at %d", c, cut, got)
					}
					l.Close()
					if again := findTail(t, mem, 8192); again.Records != int64(want)+1 || again.Reason != nil {
						t.Fatalf("c=%d cut=%v: second opening: %+v", c, cut, again)
					}
				}
			}
		})
	}
}

func TestC21SpecialCRC(t *testing.T) {
	bodies := []struct {
		body string
		crc  uint32
	}{
		{"\x9d\x0a\xd9\x6d", 0},
		{"\xff\xff\xff\xff", 0x7FFFFFFF},
		{"", 0},
		{"\x00", 0x5202EF8D},
	}
	mem := memfs.New()
	l, _ := startLog(t, testOptions(mem, 8192))
	for _, b := range bodies {
		p := newPut(t, 0, msg(b.body))
		if _, _, err := l.Append(len(p.recs), p); err != nil {
			t.Fatal(err)
		}
		if got := binary.BigEndian.Uint32(p.recs[8:]); got != b.crc {
			t.Errorf("CRC of % x is %#x, want %#x", b.body, got, b.crc)
		}
	}
	for i := range 5 {
		appendSized(t, l, 150, byte(i))
	}
	l.Close()
	if tail := findTail(t, mem, 8192); tail.Records != 9 || tail.Reason != nil {
		t.Errorf("tail %+v", tail)
	}
}

// hostile are changes to a record of 139 bytes of C19: body of 32, topic T,
// 15 bytes of properties.
func hostile(rest int64) map[string]func(rec []byte) {
	be := binary.BigEndian
	const bodyLen, topicLen, propsLen = 84, 88 + 32, 88 + 32 + 2
	i32 := func(at int, v uint32) func([]byte) { return func(r []byte) { be.PutUint32(r[at:], v) } }
	i16 := func(at int, v uint16) func([]byte) { return func(r []byte) { be.PutUint16(r[at:], v) } }
	return map[string]func([]byte){
		"size 0":           i32(0, 0),
		"size 3":           i32(0, 3),
		"size 90":          i32(0, 90),
		"size 91":          i32(0, 91),
		"size max":         i32(0, math.MaxInt32),
		"size min":         i32(0, 1<<31),
		"size +1":          i32(0, 140),
		"size -1":          i32(0, 138),
		"size rest":        i32(0, uint32(rest)),
		"size rest+1":      i32(0, uint32(rest+1)),
		"body -1":          i32(bodyLen, math.MaxUint32),
		"body max":         i32(bodyLen, math.MaxInt32),
		"body +1":          i32(bodyLen, 33),
		"topic 0":          func(r []byte) { r[topicLen] = 0 },
		"topic 255":        func(r []byte) { r[topicLen] = 255 },
		"properties -1":    i16(propsLen, 0xFFFF),
		"properties 32767": i16(propsLen, 32767),
		"properties +1":    i16(propsLen, 16),
		"magic 0":          i32(4, 0),
		"magic blank":      i32(4, message.MagicBlank),
		"magic v2":         i32(4, message.MagicV2),
		"born host IPv6":   func(r []byte) { r[39] ^= byte(message.BornHostV6) },
		"store host IPv6":  func(r []byte) { r[39] ^= byte(message.StoreHostV6) },
		"position +1":      func(r []byte) { r[35]++ },
		"body byte":        func(r []byte) { r[90] ^= 1 },
	}
}

func TestC23HostileLengths(t *testing.T) {
	const fileSize = 1 << 20
	build := func() (*memfs.FS, []int64, []byte) {
		mem := memfs.New()
		l, _ := startLog(t, testOptions(mem, fileSize))
		var at []int64
		var rec []byte
		for i := range 10 {
			p := newPut(t, message.QueueOffset(i), msg(strings.Repeat("A", 32), "KEYS", "k1", "TAGS", "a"))
			phy, _, err := l.Append(139, p)
			if err != nil {
				t.Fatal(err)
			}
			at, rec = append(at, int64(phy)), p.recs
		}
		l.Close()
		return mem, at, rec
	}
	for _, victim := range []int{9, 4} {
		for name := range hostile(0) {
			t.Run(fmt.Sprintf("%s in record %d", name, victim), func(t *testing.T) {
				mem, at, _ := build()
				rec := readFile(t, mem, 0)[at[victim]:][:139]
				hostile(fileSize - at[victim])[name](rec)
				patchFile(t, mem, 0, at[victim], rec)
				l, _ := openLog(t, testOptions(mem, fileSize))

				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				tail, err := l.FindTail(context.Background(), 0, checkAll)
				runtime.ReadMemStats(&after)
				if err != nil {
					t.Fatal(err)
				}
				if used := after.TotalAlloc - before.TotalAlloc; used > 8<<20 {
					t.Errorf("allocated %d bytes", used)
				}
				if int64(tail.End) != at[victim] || tail.Records != int64(victim) {
					t.Fatalf("tail %+v", tail)
				}
				wantCorrupt(t, tail.Reason, fmt.Sprintf("%020d", 0), at[victim])
				if tail.ValidBehind != 9-victim || tail.Stale != 0 || tail.Partial {
					t.Errorf("tail %+v, want %d valid records behind", tail, 9-victim)
				}
				if victim < 9 && (int64(tail.FirstBehind) != at[victim+1] || int64(tail.LastBehind) != at[9] || tail.PowerLoss) {
					t.Errorf("tail %+v", tail)
				}
				if int64(tail.DataEnd) < at[9]+100 || int64(tail.DataEnd) > at[9]+139 {
					t.Errorf("data end %d", tail.DataEnd)
				}
				// A scan that takes the log to be whole stops at the same place.
				end, err := l.Scan(context.Background(), 0, l.End(), checkAll, func(*message.View) error { return nil })
				if int64(end) != at[victim] {
					t.Errorf("scan ended at %d: %v", end, err)
				}
				wantCorrupt(t, err, fmt.Sprintf("%020d", 0), at[victim])
				_, _, err = l.ReadRecord(message.PhysicalOffset(at[victim]), nil, checkAll.Check)
				wantCorrupt(t, err, fmt.Sprintf("%020d", 0), at[victim])
			})
		}
	}
}

// TestL2DamageInTheMiddle: one body byte in the second of five files.
func TestL2DamageInTheMiddle(t *testing.T) {
	for _, workers := range []int{1, 2, 8} {
		t.Run(fmt.Sprint(workers), func(t *testing.T) {
			mem, at := makeLog(t, 4096, repeat(20, 1000)...)
			patchFile(t, mem, 4096, 1000+500, []byte{'!'})
			before := snapshot(t, mem)
			l, _ := openLog(t, testOptions(mem, 4096))
			opts := checkAll
			opts.Workers = workers
			tail, err := l.FindTail(context.Background(), 0, opts)
			if err != nil {
				t.Fatal(err)
			}
			wantCorrupt(t, tail.Reason, fmt.Sprintf("%020d", 4096), 1000)
			want := Tail{
				End: at[5], Reason: tail.Reason, Records: 5, Last: at[4], StoreTime: testTime, FirstDisorder: -1,
				ValidBehind: 14, FirstBehind: at[6], LastBehind: at[19], DataEnd: at[19] + 1000,
			}
			if diff := cmp.Diff(want, tail, cmp.Comparer(func(a, b error) bool { return a == b })); diff != "" {
				t.Error(diff)
			}
			l.Close()
			if diff := cmp.Diff(before, snapshot(t, mem)); diff != "" {
				t.Error("finding the tail changed something", diff)
			}
		})
	}
}

// TestDamagedBlank: what ends a file is lost, and the next file is intact.
func TestDamagedBlank(t *testing.T) {
	for name, bytes := range map[string][]byte{
		"size":  {0, 0, 0, 99},
		"magic": {0, 0, 0, 96, 1, 2, 3, 4},
		"zero":  make([]byte, 8),
	} {
		t.Run(name, func(t *testing.T) {
			mem, at := makeLog(t, 4096, repeat(8, 1000)...)
			patchFile(t, mem, 0, 4000, bytes)
			tail := findTail(t, mem, 4096)
			wantCorrupt(t, tail.Reason, fmt.Sprintf("%020d", 0), 4000)
			if tail.End != 4000 || tail.ValidBehind != 4 || tail.FirstBehind != at[4] {
				t.Errorf("tail %+v", tail)
			}
			if want := name == "zero"; tail.PowerLoss != want {
				t.Errorf("power loss %v, want %v", tail.PowerLoss, want)
			}
		})
	}
}

// TestL20MissingFile: upstream does not notice and hangs later.
func TestL20MissingFile(t *testing.T) {
	mem, at := makeLog(t, 4096, repeat(16, 1000)...)
	if err := mem.Remove(filepath.Join(testDir, fmt.Sprintf("%020d", 8192))); err != nil {
		t.Fatal(err)
	}
	l, report := openLog(t, testOptions(mem, 4096))
	if len(report.Gaps) != 1 || report.Gaps[0].From != 8192 || report.Gaps[0].To != 12288 {
		t.Errorf("report %+v", report)
	}
	tail, err := l.FindTail(context.Background(), 0, checkAll)
	if err != nil {
		t.Fatal(err)
	}
	wantCorrupt(t, tail.Reason, fmt.Sprintf("%020d", 12288), 0)
	if tail.End != 8192 || tail.Records != 8 || tail.ValidBehind != 4 || tail.FirstBehind != at[12] || tail.PowerLoss {
		t.Errorf("tail %+v", tail)
	}
	end, err := l.Scan(context.Background(), 0, l.End(), checkAll, func(*message.View) error { return nil })
	wantCorrupt(t, err, fmt.Sprintf("%020d", 12288), 0)
	if end != 8192 {
		t.Errorf("scan ended at %d", end)
	}
	_, _, err = l.ReadRecord(8192, nil, checkAll.Check)
	wantCorrupt(t, err, fmt.Sprintf("%020d", 12288), 0)
}

// TestL3OldRecordsDoNotReturn: A, B, C of equal size; B is damaged, the log is
// cut there, one record of that size is appended. C must not follow it.
func TestL3OldRecordsDoNotReturn(t *testing.T) {
	mem, at := makeLog(t, 4096, 200, 200, 200)
	patchFile(t, mem, 0, int64(at[1])+100, []byte{'!'})
	l, tail := startLog(t, testOptions(mem, 4096))
	if tail.End != at[1] || tail.ValidBehind != 1 {
		t.Fatalf("tail %+v", tail)
	}
	appendSized(t, l, 200, 7)
	l.Close()
	if got := findTail(t, mem, 4096); got.End != at[2] || got.Records != 2 || got.Reason != nil {
		t.Errorf("after a restart: %+v", got)
	}
}

// TestL3StaleRecords: the same, cut by a program that leaves the old bytes.
func TestL3StaleRecords(t *testing.T) {
	restamp := func(t *testing.T, mem *memfs.FS, at message.PhysicalOffset, storeTime int64) {
		t.Helper()
		rec := readFile(t, mem, 0)[at:][:200]
		message.Patch(rec, 9, at, storeTime)
		patchFile(t, mem, 0, int64(at), rec)
	}
	t.Run("behind the end", func(t *testing.T) {
		mem, at := makeLog(t, 4096, repeat(6, 200)...)
		restamp(t, mem, at[2], testTime+5) // written after the cut
		patchFile(t, mem, 0, int64(at[3]), make([]byte, 200))
		restamp(t, mem, at[5], testTime+5) // not stale
		tail := findTail(t, mem, 4096)
		if tail.End != at[3] || tail.Stale != 1 || tail.ValidBehind != 1 || tail.FirstBehind != at[5] {
			t.Errorf("tail %+v", tail)
		}
	})
	t.Run("in the chain", func(t *testing.T) {
		mem, at := makeLog(t, 4096, repeat(6, 200)...)
		restamp(t, mem, at[2], testTime+5)
		tail := findTail(t, mem, 4096)
		if tail.Records != 6 || tail.Disorder != 1 || tail.FirstDisorder != at[3] || tail.Reason != nil {
			t.Errorf("tail %+v", tail)
		}
	})
	t.Run("in the chain, across files", func(t *testing.T) {
		mem, at := makeLog(t, 1024, repeat(6, 300)...) // three per file
		restamped := readFile(t, mem, 0)[600:900]
		message.Patch(restamped, 9, 600, testTime+5)
		patchFile(t, mem, 0, 600, restamped)
		tail := findTail(t, mem, 1024)
		if tail.Records != 6 || tail.Disorder != 1 || tail.FirstDisorder != at[3] {
			t.Errorf("tail %+v", tail)
		}
	})
}

// TestPowerLoss tells lost sectors from damage.
func TestPowerLoss(t *testing.T) {
	tests := []struct {
		name   string
		damage func(file []byte)
		want   bool
		behind int
	}{
		// Records of 700 bytes; the third is [1400, 2100).
		{"bit in the body", func(f []byte) { f[1600] ^= 1 }, false, 3},
		{"bytes in the body", func(f []byte) { copy(f[1600:], "\x00\x00\x00\x00\x00\x00\x00\x00") }, false, 3},
		{"sector of the body", func(f []byte) { clear(f[1536:2048]) }, true, 3},
		{"sector with its head", func(f []byte) { clear(f[1400:1536]) }, true, 3},
		{"sector with its end", func(f []byte) { clear(f[2048:2560]) }, true, 2},
		{"its page and the next", func(f []byte) { clear(f[1400:4096]) }, true, 0},
		{"garbage head", func(f []byte) { copy(f[1400:], "garbage garbage") }, false, 3},
		{"zero size", func(f []byte) { clear(f[1400:1404]) }, false, 3},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			mem, at := makeLog(t, 8192, repeat(6, 700)...)
			file := readFile(t, mem, 0)
			// All but "zero to the end" keep the last records: 4200 bytes used.
			test.damage(file[:4200])
			patchFile(t, mem, 0, 0, file[:4200])
			tail := findTail(t, mem, 8192)
			if tail.End != at[2] || tail.PowerLoss != test.want || tail.ValidBehind != test.behind {
				t.Errorf("tail %+v", tail)
			}
			if tail.Reason == nil {
				t.Error("no reason")
			}
		})
	}
}

// TestRecordInsideBody: a body can hold what looks like a record at its own
// position. It is none, unless nothing tells where the record around it ends.
func TestRecordInsideBody(t *testing.T) {
	fake := newPut(t, 0, sized(150, 3)).recs
	message.Patch(fake, 5, 300+88+10, testTime) // where it will lie
	m := msg(strings.Repeat("x", 10) + string(fake) + strings.Repeat("y", 1000))
	build := func(damage func(rec []byte)) Tail {
		mem, _ := makeLog(t, 8192, 300)
		l, _ := startLog(t, testOptions(mem, 8192))
		p := newPut(t, 1, m)
		phy, _, err := l.Append(len(p.recs), p)
		if err != nil || phy != 300 {
			t.Fatal(phy, err)
		}
		l.Close()
		rec := bytes.Clone(p.recs)
		damage(rec)
		patchFile(t, mem, 0, 300, rec)
		return findTail(t, mem, 8192)
	}
	if tail := build(func(rec []byte) { clear(rec[600:]) }); tail.End != 300 || tail.ValidBehind != 1 {
		// Its length fields are lost, so whatever is found has to count.
		t.Errorf("torn: %+v", tail)
	}
	if tail := build(func(rec []byte) { rec[900] ^= 1 }); tail.End != 300 || tail.ValidBehind != 0 {
		t.Errorf("damaged in the body: %+v", tail)
	}
	if tail := build(func([]byte) {}); tail.Records != 2 || tail.Reason != nil {
		t.Errorf("intact: %+v", tail)
	}
}

// TestLargeRecord: records above the size whose claim decides nothing.
func TestLargeRecord(t *testing.T) {
	const fileSize = 16 << 20
	mem := memfs.New()
	l, _ := startLog(t, testOptions(mem, fileSize))
	enc := message.Encoder{MaxMessageSize: 8 << 20}
	for i, size := range []int{5 << 20, 6 << 20, 300} {
		recs, err := enc.Append(nil, sized(size, byte(i)))
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := l.Append(size, &put{enc: enc, recs: recs}); err != nil {
			t.Fatal(err)
		}
	}
	if _, buf, err := l.ReadRecord(5<<20, nil, checkAll.Check); err != nil || len(buf) != 6<<20 {
		t.Errorf("read: %d bytes, %v", len(buf), err)
	}
	l.Close()
	if tail := findTail(t, mem, fileSize); tail.Records != 3 || tail.Reason != nil {
		t.Fatalf("tail %+v", tail)
	}
	damage := map[string]func(rec []byte){
		"claims the rest of the file": func(r []byte) { binary.BigEndian.PutUint32(r, 11<<20) },
		"consistent claim, wrong CRC": func(r []byte) { r[1000] ^= 1 },
	}
	for name, change := range damage {
		t.Run(name, func(t *testing.T) {
			rec := bytes.Clone(readFile(t, mem, 0)[5<<20:][:2000])
			old := bytes.Clone(rec)
			change(rec)
			patchFile(t, mem, 0, 5<<20, rec)
			defer patchFile(t, mem, 0, 5<<20, old)
			l, _ := openLog(t, testOptions(mem, fileSize))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, _, err := l.ReadRecord(5<<20, nil, message.CheckOptions{})
			if name == "consistent claim, wrong CRC" || err != nil {
				wantCorrupt(t, err, fmt.Sprintf("%020d", 0), 5<<20)
			}
			runtime.ReadMemStats(&after)
			if used := after.TotalAlloc - before.TotalAlloc; used > 1<<20 {
				t.Errorf("allocated %d bytes", used)
			}
			tail, err := l.FindTail(context.Background(), 0, checkAll)
			if err != nil || tail.End != 5<<20 || tail.ValidBehind != 1 || tail.FirstBehind != 11<<20 {
				t.Errorf("tail %+v, %v", tail, err)
			}
		})
	}
}

// TestSearchIsLinear: a file made of would-be records that all claim to be
// large costs a bounded amount of reading, and the search says that it gave
// up.
func TestSearchIsLinear(t *testing.T) {
	const fileSize = 8 << 20
	mem := memfs.New()
	file := make([]byte, fileSize)
	copy(file, "no record")
	head := newPut(t, 0, sized(200, 1)).recs
	for at := 512; at+100 < fileSize; at += 92 {
		copy(file[at:], head[:92])
		binary.BigEndian.PutUint32(file[at:], uint32(min(3<<20, fileSize-at)))
		binary.BigEndian.PutUint64(file[at+posPhysical:], uint64(at))
		binary.BigEndian.PutUint32(file[at+84:], 100)
	}
	if err := mem.MkdirAll(testDir); err != nil {
		t.Fatal(err)
	}
	f, err := mem.Create(filepath.Join(testDir, fmt.Sprintf("%020d", 0)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(file, 0); err != nil {
		t.Fatal(err)
	}
	f.Close()
	fsys := faultfs.New(mem)
	tail := findTail(t, fsys, fileSize)
	if !tail.Partial || tail.End != 0 {
		t.Errorf("tail %+v", tail)
	}
	if read := fsys.Count(faultfs.OpRead, "").Bytes; read > 16*fileSize {
		t.Errorf("read %d bytes of a file of %d", read, fileSize)
	}
}

// TestSearchStopsCounting: very many records behind damage.
func TestSearchStopsCounting(t *testing.T) {
	n := maxBehind + 1000
	mem, _ := makeLog(t, 16<<20, repeat(n, 100)...)
	patchFile(t, mem, 0, 95, []byte{1})
	tail := findTail(t, mem, 16<<20)
	if tail.End != 0 || tail.ValidBehind != maxBehind || !tail.Partial || tail.FirstBehind != 100 {
		t.Errorf("tail %+v", tail)
	}
}

// TestSearchSkipsHoles: an empty log of large files is found to be empty
// without reading it.
func TestSearchSkipsHoles(t *testing.T) {
	mem, _ := makeLog(t, 1<<30, 200)
	fsys := faultfs.New(mem)
	tail := findTail(t, fsys, 1<<30)
	if tail.Records != 1 || tail.Reason != nil {
		t.Errorf("tail %+v", tail)
	}
	if read := fsys.Count(faultfs.OpRead, "").Bytes; read > 4<<20 {
		t.Errorf("read %d bytes", read)
	}
}

func TestFindTailFrom(t *testing.T) {
	mem, at := makeLog(t, 4096, repeat(10, 1000)...)
	l, _ := openLog(t, testOptions(mem, 4096))
	tests := []struct {
		from    message.PhysicalOffset
		records int64
		end     message.PhysicalOffset
	}{
		{0, 10, at[9] + 1000},
		{at[3], 7, at[9] + 1000},
		{4000, 6, at[9] + 1000}, // the blank
		{4096, 6, at[9] + 1000},
		{at[9], 1, at[9] + 1000},
		{at[9] + 1000, 0, at[9] + 1000},
		{12288, 0, 12288},
		{at[1] + 1, 0, at[1] + 1}, // no boundary
	}
	for _, test := range tests {
		tail, err := l.FindTail(context.Background(), test.from, checkAll)
		if err != nil || tail.Records != test.records || tail.End != test.end {
			t.Errorf("from %d: %+v, %v", test.from, tail, err)
		}
	}
	for _, from := range []message.PhysicalOffset{-1, 12289, math.MaxInt64} {
		if _, err := l.FindTail(context.Background(), from, checkAll); !errors.Is(err, base.ErrNotFound) {
			t.Errorf("from %d: %v", from, err)
		}
	}
}

func TestFindTailReportsErrors(t *testing.T) {
	mem, _ := makeLog(t, 4096, repeat(40, 1000)...)
	for _, op := range []faultfs.Op{faultfs.OpOpen, faultfs.OpRead, faultfs.OpSize} {
		t.Run(op.String(), func(t *testing.T) {
			fsys := faultfs.New(mem)
			l, _ := openLog(t, testOptions(fsys, 4096))
			fsys.Fail(op, "*20480", faultfs.ErrIO)
			_, err := l.FindTail(context.Background(), 0, checkAll)
			if !errors.Is(err, faultfs.ErrIO) || errors.Is(err, base.ErrCorrupt) {
				t.Errorf("got %v: a broken disk is no torn tail", err)
			}
		})
	}
	t.Run("context", func(t *testing.T) {
		l, _ := openLog(t, testOptions(mem, 4096))
		ctx, cancel := context.WithCancel(context.Background())
		cancel()
		if _, err := l.FindTail(ctx, 0, checkAll); !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("progress", func(t *testing.T) {
		l, _ := openLog(t, testOptions(mem, 4096))
		var calls []int64
		opts := checkAll
		opts.Progress = func(done, total int64) {
			if total != 40960 || len(calls) > 0 && done <= calls[len(calls)-1] {
				t.Errorf("progress %d of %d after %v", done, total, calls)
			}
			calls = append(calls, done)
		}
		if _, err := l.FindTail(context.Background(), 0, opts); err != nil {
			t.Fatal(err)
		}
		if len(calls) == 0 || calls[len(calls)-1] != 40960 {
			t.Errorf("progress %v", calls)
		}
	})
}

// TestC33Sizes: files of the wrong length and foreign names.
func TestC33Sizes(t *testing.T) {
	resize := func(t *testing.T, mem *memfs.FS, start, size int64) {
		t.Helper()
		f, err := mem.Open(filepath.Join(testDir, fmt.Sprintf("%020d", start)), vfs.ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
	}
	tests := []struct {
		name    string
		change  func(t *testing.T, mem *memfs.FS)
		refused bool
		check   func(r Report) bool
	}{
		{"short middle file", func(t *testing.T, mem *memfs.FS) { resize(t, mem, 4096, 4095) }, true, nil},
		{"short last file", func(t *testing.T, mem *memfs.FS) { resize(t, mem, 8192, 4095) }, false, func(r Report) bool { return len(r.Short) == 1 }},
		{"long last file", func(t *testing.T, mem *memfs.FS) { resize(t, mem, 8192, 8192) }, false, func(r Report) bool { return len(r.Long) == 1 }},
		{"foreign names", func(t *testing.T, mem *memfs.FS) {
			for _, name := range []string{".DS_Store", "00000000000000000000.bak", "12288"} {
				f, err := mem.Create(filepath.Join(testDir, name))
				if err != nil {
					t.Fatal(err)
				}
				f.Close()
			}
			if err := mem.MkdirAll(filepath.Join(testDir, "lost+found")); err != nil {
				t.Fatal(err)
			}
		}, false, func(r Report) bool { return len(r.Foreign) == 4 }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			mem, _ := makeLog(t, 4096, repeat(9, 1000)...)
			test.change(t, mem)
			l, report, err := Open(testOptions(mem, 4096))
			if test.refused {
				if !errors.Is(err, base.ErrCorrupt) {
					t.Fatalf("got %v", err)
				}
				return
			}
			if err != nil || !test.check(report) {
				t.Fatalf("report %+v, %v", report, err)
			}
			l.Close()
			l, tail := startLog(t, testOptions(mem, 4096))
			if tail.Records != 9 || tail.Reason != nil {
				t.Errorf("tail %+v", tail)
			}
			for i := range 4 {
				appendSized(t, l, 1000, byte(i))
			}
			l.Close()
			if tail := findTail(t, mem, 4096); tail.Records != 13 || tail.Reason != nil {
				t.Errorf("later: %+v", tail)
			}
		})
	}
}

// TestPropertyCRC: with it, damage in the properties is seen.
func TestPropertyCRC(t *testing.T) {
	mem := memfs.New()
	l, _ := startLog(t, testOptions(mem, 4096))
	p := &put{enc: message.Encoder{PropertyCRC: true}}
	recs, err := p.enc.Append(nil, msg("body", "KEYS", "key"))
	if err != nil {
		t.Fatal(err)
	}
	p.recs = recs
	if _, _, err := l.Append(len(recs), p); err != nil {
		t.Fatal(err)
	}
	l.Close()
	at := int64(bytes.Index(recs, []byte("key")))
	patchFile(t, mem, 0, at, []byte("KEY"))
	l, _ = openLog(t, testOptions(mem, 4096))
	for _, test := range []struct {
		check message.CheckOptions
		want  int64
	}{{message.CheckOptions{BodyCRC: true}, 1}, {message.CheckOptions{PropertyCRC: true}, 0}, {message.CheckOptions{RequirePropertyCRC: true}, 0}} {
		tail, err := l.FindTail(context.Background(), 0, ScanOptions{Check: test.check})
		if err != nil || tail.Records != test.want {
			t.Errorf("%+v: %+v, %v", test.check, tail, err)
		}
	}
}

func TestPrecheckMatchesCheck(t *testing.T) {
	rec := newPut(t, 0, msg(strings.Repeat("A", 32), "KEYS", "k1", "TAGS", "a")).recs
	if err := precheckLarge(bytes.NewReader(rec), 0, int64(len(rec))); err != nil {
		t.Fatalf("a good record: %v", err)
	}
	if crc32.ChecksumIEEE(rec[88:120])&0x7FFFFFFF != binary.BigEndian.Uint32(rec[8:]) {
		t.Fatal("the test looks at the wrong bytes")
	}
	for name, change := range hostile(int64(len(rec))) {
		bad := bytes.Clone(rec)
		change(bad)
		_, want := message.Check(bad, 0, message.CheckOptions{BodyCRC: true})
		if name == "position +1" {
			want = nil // the precheck leaves the position to Check
		}
		got := precheckLarge(bytes.NewReader(bad), 0, int64(len(bad)))
		if (got == nil) != (want == nil) {
			t.Errorf("%s: precheck says %v, Check says %v", name, got, want)
		}
	}
}
