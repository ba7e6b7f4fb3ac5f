package commitlog

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// writeModes are the ways in which bytes get into the files.
var writeModes = []struct {
	name string
	set  func(*Options)
}{
	{"mapped", func(*Options) {}},
	{"positional", func(o *Options) { o.WriteWithoutMmap = true }},
	{"pool", func(o *Options) { o.PoolSize = 2 }},
	{"allocator", func(o *Options) { o.CreateInline = false }},
}

func TestAppendIsReadBack(t *testing.T) {
	for _, mode := range writeModes {
		t.Run(mode.name, func(t *testing.T) {
			mem := memfs.New()
			mem.RequireAllocated(true)
			opts := testOptions(mem, 8192)
			mode.set(&opts)
			l, _ := startLog(t, opts)
			var want []record
			for i := range 40 {
				body := strings.Repeat(string(rune('a'+i%26)), i*37%1500)
				p := newPut(t, message.QueueOffset(i), msg(body, "KEYS", fmt.Sprint("k", i)))
				phy, storeTime, err := l.Append(len(p.recs), p)
				if err != nil {
					t.Fatal(err)
				}
				if p.phy != phy || p.storeTime != storeTime || p.appended != 1 || storeTime != testTime {
					t.Fatalf("put %d: got %d at %d, Appended was told %d at %d, %d times", i, phy, storeTime, p.phy, p.storeTime, p.appended)
				}
				if end := phy + message.PhysicalOffset(len(p.recs)); l.End() != end {
					t.Fatalf("end %d, want %d", l.End(), end)
				}
				want = append(want, record{phy, message.QueueOffset(i), body})
			}
			if err := l.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
			if got := scanAll(t, l); !cmp.Equal(got, want) {
				t.Fatal(cmp.Diff(want, got))
			}
			for _, r := range want {
				v, _, err := l.ReadRecord(r.Phy, nil, checkAll.Check)
				if err != nil || string(v.Body()) != r.Body {
					t.Fatalf("read %d: %q, %v", r.Phy, v.Body(), err)
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}

			// And after opening again, with the other file layout options.
			again, tail := startLog(t, testOptions(mem, 0))
			if tail.Reason != nil || tail.Records != int64(len(want)) || tail.Last != want[len(want)-1].Phy || again.FileSize() != 8192 {
				t.Fatalf("tail %+v, file size %d", tail, again.FileSize())
			}
			if got := scanAll(t, again); !cmp.Equal(got, want) {
				t.Fatal(cmp.Diff(want, got))
			}
		})
	}
}

// TestAppendBytes compares with the worked records of the format document:
// records A and B, 18.1 and 18.2, then the blank of 18.5.
func TestAppendBytes(t *testing.T) {
	mem := memfs.New()
	opts := testOptions(mem, 1024)
	now := int64(1704067200001)
	opts.Now = func() int64 { return now }
	l, _ := startLog(t, opts)
	a := msg("hi")
	a.BornTimestamp = 1704067200000
	b := msg("hello rocketmq", "KEYS", "key1", "UNIQ_KEY", "7F0000014E7B18B4AAC20A1B2C3D0000", "TAGS", "TagA")
	b.Topic, b.QueueID = "TopicTest", 3
	b.BornTimestamp = 1704067201000
	b.BornHost = a.StoreHost
	c := newPut(t, 0, sized(750, 0)) // 270+750 leaves 4 bytes
	for _, p := range []*put{newPut(t, 0, a), newPut(t, 7, b), c} {
		if _, _, err := l.Append(len(p.recs), p); err != nil {
			t.Fatal(err)
		}
		now = 1704067201234
	}
	file := readFile(t, mem, 0)
	if got, want := fmt.Sprintf("%x", file[:12]), "0000005edaa320a758932aac"; got != want {
		t.Errorf("record A begins with %s, want %s", got, want)
	}
	if got, want := fmt.Sprintf("%x", file[94:106]), "000000b0daa320a773307b09"; got != want {
		t.Errorf("record B begins with %s, want %s", got, want)
	}
	if got := int64(binary.BigEndian.Uint64(file[94+56:])); got != 1704067201234 {
		t.Errorf("record B was stored at %d", got)
	}
	if got, want := fmt.Sprintf("%x", file[270:278]), "000002f2cbd43194"; got != want {
		t.Errorf("blank %s, want %s", got, want)
	}
	if n := lastNonZero(file[278:]); n != 0 {
		t.Errorf("the rest of the file is not zero up to %d", 278+n)
	}
	if c.phy != 1024 {
		t.Errorf("the record behind the blank is at %d", c.phy)
	}
}

func TestC25ExactFits(t *testing.T) {
	const fileSize = 1 << 20
	tests := []struct {
		name   string
		second int // size of the second record, behind one of 1,000,000 bytes
		third  message.PhysicalOffset
		blank  int64 // position of the blank record
		size   uint32
	}{
		{"leaves 8", 48_568, 1_048_576, 1_048_568, 8},
		{"leaves 7", 48_569, 1_048_576, 1_000_000, 48_576},
		{"leaves 9", 48_567, 1_048_576, 1_048_567, 9},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			mem := memfs.New()
			l, _ := startLog(t, testOptions(mem, fileSize))
			appendSized(t, l, 1_000_000, 0)
			second := appendSized(t, l, test.second, 1)
			third := appendSized(t, l, 100, 2)
			want := []message.PhysicalOffset{1_000_000, 1_048_576}
			if test.blank == 1_000_000 {
				want = []message.PhysicalOffset{1_048_576, 1_048_576 + message.PhysicalOffset(test.second)}
			}
			if second != want[0] || third != want[1] {
				t.Fatalf("records at %d and %d, want %v", second, third, want)
			}
			blank := message.AppendBlank(nil, int32(test.size))
			if got := readFile(t, mem, 0)[test.blank:][:8]; !bytes.Equal(got, blank) {
				t.Fatalf("blank at %d: %x, want %x", test.blank, got, blank)
			}
			l.Close()
			if tail := findTail(t, mem, fileSize); tail.Reason != nil || tail.Last != third || tail.End != third+100 {
				t.Fatalf("tail %+v", tail)
			}
		})
	}
}

func TestA2RecordLargerThanFile(t *testing.T) {
	for _, test := range []struct {
		size int
		ok   bool
	}{{64<<10 - 8, true}, {64<<10 - 7, false}, {64 << 10, false}, {70 << 10, false}} {
		t.Run(fmt.Sprint(test.size), func(t *testing.T) {
			mem := memfs.New()
			l, _ := startLog(t, testOptions(mem, 64<<10))
			appendSized(t, l, 200, 0)
			before, files := l.End(), snapshot(t, mem)
			p := newPut(t, 1, sized(test.size, 1))
			_, _, err := l.Append(test.size, p)
			if test.ok {
				if err != nil || p.phy != 64<<10 {
					t.Fatalf("append: %v, at %d", err, p.phy)
				}
				return
			}
			if !errors.Is(err, message.ErrMessageIllegal) {
				t.Fatalf("got %v, want ErrMessageIllegal", err)
			}
			if l.End() != before || p.fills != 0 {
				t.Fatalf("end moved from %d to %d, %d fills", before, l.End(), p.fills)
			}
			if diff := cmp.Diff(files, snapshot(t, mem)); diff != "" {
				t.Fatal(diff)
			}
		})
	}
}

// failing is an Appender that refuses or panics.
type failing struct {
	put
	err   error
	panic string // "fill" or "appended"
}

func (f *failing) Fill(phy message.PhysicalOffset, storeTime int64) ([]byte, error) {
	if f.panic == "fill" {
		panic("fill")
	}
	recs, _ := f.put.Fill(phy, storeTime)
	return recs, f.err
}

func (f *failing) Appended(phy message.PhysicalOffset, storeTime int64) {
	if f.panic == "appended" {
		panic("appended")
	}
	f.put.Appended(phy, storeTime)
}

// TestA1PanicInAppend: upstream rejects every put for hours after one.
func TestA1PanicInAppend(t *testing.T) {
	for _, where := range []string{"fill", "appended"} {
		t.Run(where, func(t *testing.T) {
			l, _ := startLog(t, testOptions(memfs.New(), 8192))
			first := appendSized(t, l, 100, 0)
			func() {
				defer func() {
					if r := recover(); r != where {
						t.Errorf("recovered %v", r)
					}
				}()
				p := newPut(t, 1, sized(500, 1))
				l.Append(500, &failing{put: *p, panic: where})
			}()
			if l.LockedSince() != 0 {
				t.Errorf("the lock is still marked as taken since %d", l.LockedSince())
			}
			if got := appendSized(t, l, 100, 2); got != first+100 {
				t.Errorf("next record at %d, want %d", got, first+100)
			}
			if got := scanAll(t, l); len(got) != 2 {
				t.Errorf("%d records, want 2", len(got))
			}
		})
	}
}

func TestAppendRefusedByAppender(t *testing.T) {
	l, _ := startLog(t, testOptions(memfs.New(), 8192))
	refused := errors.New("refused")
	p := newPut(t, 0, sized(200, 0))
	if _, _, err := l.Append(200, &failing{put: *p, err: refused}); !errors.Is(err, refused) {
		t.Errorf("got %v, want the error of Fill", err)
	}
	if _, _, err := l.Append(201, newPut(t, 0, sized(200, 0))); err == nil || !strings.Contains(err.Error(), "200") {
		t.Errorf("got %v for records of another length", err)
	}
	if l.End() != 0 {
		t.Errorf("end %d after refused puts", l.End())
	}
}

func TestLockedSinceDuringAppend(t *testing.T) {
	l, _ := startLog(t, testOptions(memfs.New(), 8192))
	p := &observer{put: newPut(t, 0, sized(200, 0)), log: l}
	if _, _, err := l.Append(200, p); err != nil {
		t.Fatal(err)
	}
	if p.locked != testTime || l.LockedSince() != 0 {
		t.Errorf("locked since %d during the append, %d after it", p.locked, l.LockedSince())
	}
	if p.endThen != 0 {
		t.Errorf("the record could be seen up to %d before Appended had returned", p.endThen)
	}
}

type observer struct {
	*put
	log     *Log
	locked  int64
	endThen message.PhysicalOffset
}

func (o *observer) Appended(phy message.PhysicalOffset, storeTime int64) {
	o.locked, o.endThen = o.log.LockedSince(), o.log.End()
	o.put.Appended(phy, storeTime)
}

func TestA3StoreTimeNeverFalls(t *testing.T) {
	mem := memfs.New()
	opts := testOptions(mem, 8192)
	now := int64(testTime)
	opts.Now = func() int64 { return now }
	l, _ := startLog(t, opts)
	var got []int64
	for _, step := range []int64{0, 5, -3_600_000, 10, 3_600_000} {
		now += step
		p := newPut(t, 0, sized(100, 0))
		_, storeTime, err := l.Append(100, p)
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, storeTime)
	}
	want := []int64{testTime, testTime + 5, testTime + 5, testTime + 5, testTime + 15}
	if !cmp.Equal(got, want) {
		t.Errorf("store times %v, want %v", got, want)
	}
	l.Close()

	// The clock is set back between two runs.
	now = testTime
	l, tail := startLog(t, opts)
	if _, storeTime, err := l.Append(100, newPut(t, 0, sized(100, 0))); err != nil || storeTime != testTime+15 {
		t.Errorf("store time %d after a restart, want %d; %v", storeTime, testTime+15, err)
	}
	if tail.Disorder != 0 || tail.StoreTime != testTime+15 {
		t.Errorf("tail %+v", tail)
	}
}

func TestBatchIsInOneFile(t *testing.T) {
	mem := memfs.New()
	l, _ := startLog(t, testOptions(mem, 4096))
	appendSized(t, l, 3000, 0)
	batch := newPut(t, 10, sized(400, 1), sized(400, 2), sized(300, 3)) // 4 bytes too long with the blank
	phy, _, err := l.Append(len(batch.recs), batch)
	if err != nil || phy != 4096 {
		t.Fatalf("batch at %d: %v", phy, err)
	}
	if _, _, err := l.Append(4092, newPut(t, 20, sized(2000, 1), sized(2092, 2))); !errors.Is(err, message.ErrMessageIllegal) {
		t.Errorf("a batch larger than a file: %v", err)
	}
	want := []message.PhysicalOffset{0, 4096, 4496, 4896}
	for i, r := range scanAll(t, l) {
		if r.Phy != want[i] {
			t.Errorf("record %d at %d, want %d", i, r.Phy, want[i])
		}
	}
	if got := readFile(t, mem, 0)[3000:3008]; !bytes.Equal(got, message.AppendBlank(nil, 1096)) {
		t.Errorf("where the batch did not fit: %x", got)
	}
}

// TestA12LargeBlank: upstream cannot write a blank of more than 4 MiB through
// its shared buffers.
func TestA12LargeBlank(t *testing.T) {
	for _, mode := range writeModes {
		t.Run(mode.name, func(t *testing.T) {
			opts := testOptions(memfs.New(), 16<<20)
			mode.set(&opts)
			l, _ := startLog(t, opts)
			enc := message.Encoder{MaxMessageSize: 10 << 20}
			for i, size := range []int{10 << 20, 8 << 20} {
				p := &put{enc: enc}
				recs, err := enc.Append(nil, sized(size, byte(i)))
				if err != nil {
					t.Fatal(err)
				}
				p.recs = recs
				if phy, _, err := l.Append(size, p); err != nil || phy != message.PhysicalOffset(i)*16<<20 {
					t.Fatalf("record %d at %d: %v", i, phy, err)
				}
			}
		})
	}
}

func TestA9ShortWrites(t *testing.T) {
	for _, mode := range []string{"positional", "pool"} {
		t.Run(mode, func(t *testing.T) {
			fsys := faultfs.New(memfs.New())
			opts := testOptions(fsys, 8192)
			for _, m := range writeModes {
				if m.name == mode {
					m.set(&opts)
				}
			}
			l, _ := startLog(t, opts)
			fsys.Inject(faultfs.Rule{Ops: faultfs.OpWrite, Short: 50})
			for i := range 20 {
				appendSized(t, l, 1000, byte(i))
			}
			if err := l.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
			if got := scanAll(t, l); len(got) != 20 {
				t.Errorf("%d records, want 20", len(got))
			}
		})
	}
}

// TestFailedWriteLeavesNothing: a write that failed half way is not in the log,
// nor are its bytes behind a shorter one that follows.
func TestFailedWriteLeavesNothing(t *testing.T) {
	for _, mode := range writeModes[:2] {
		for _, cause := range []error{faultfs.ErrIO, faultfs.ErrNoSpace} {
			t.Run(fmt.Sprintf("%s/%v", mode.name, cause), func(t *testing.T) {
				mem := memfs.New()
				fsys := faultfs.New(mem)
				opts := testOptions(fsys, 8192)
				mode.set(&opts)
				l, _ := startLog(t, opts)
				appendSized(t, l, 300, 0)
				fsys.Inject(faultfs.Rule{Ops: faultfs.OpWrite | faultfs.OpMapWrite, Count: 1, Short: 700, Err: cause})
				p := newPut(t, 1, sized(1000, 1))
				if _, _, err := l.Append(1000, p); !errors.Is(err, cause) {
					t.Fatalf("got %v", err)
				}
				if l.End() != 300 || p.appended != 0 || l.Err() != nil {
					t.Errorf("end %d, appended %d times, log failed: %v", l.End(), p.appended, l.Err())
				}
				if got := appendSized(t, l, 200, 2); got != 300 {
					t.Errorf("next record at %d", got)
				}
				if got := findTail(t, mem, 8192); got.Records != 2 || got.Reason != nil {
					t.Errorf("tail %+v", got)
				}
			})
		}
	}
}

// TestC37NoSpaceAtRoll: creating the next file fails five times.
func TestC37NoSpaceAtRoll(t *testing.T) {
	for _, op := range []faultfs.Op{faultfs.OpCreate, faultfs.OpTruncate, faultfs.OpAllocate, faultfs.OpSync} {
		t.Run(op.String(), func(t *testing.T) {
			mem := memfs.New()
			fsys := faultfs.New(mem)
			l, _ := startLog(t, testOptions(fsys, 4096))
			for i := range 7 {
				appendSized(t, l, 500, byte(i))
			}
			if err := l.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
			before := snapshot(t, mem)
			rule := fsys.Inject(faultfs.Rule{Ops: op, Name: "*4096", Count: 5, Err: faultfs.ErrNoSpace})
			failures := 0
			for ; failures < 20; failures++ {
				p := newPut(t, 7, sized(600, 7))
				phy, _, err := l.Append(600, p)
				if err == nil {
					if phy != 4096 {
						t.Errorf("first record of the new file at %d", phy)
					}
					break
				}
				if !errors.Is(err, base.ErrDiskFull) {
					t.Fatalf("got %v, want ErrDiskFull", err)
				}
				if l.End() != 3500 || p.appended != 0 {
					t.Fatalf("end %d, appended %d times", l.End(), p.appended)
				}
				if got := snapshot(t, mem); got[fmt.Sprintf("%020d", 0)] != before[fmt.Sprintf("%020d", 0)] {
					t.Fatal("a failed put changed the current file")
				}
			}
			// Some attempts meet the rule more than once.
			if rule.Hits() != 5 || failures < 2 || failures > 5 {
				t.Errorf("%d puts failed in %d calls", failures, rule.Hits())
			}
			l.Close()
			if tail := findTail(t, mem, 4096); tail.Records != 8 || tail.Reason != nil {
				t.Errorf("tail %+v", tail)
			}
		})
	}
}

// TestA4FullDisk: a disk that is really full. The file system panics where a
// real one would send SIGBUS.
func TestA4FullDisk(t *testing.T) {
	for _, mode := range writeModes {
		t.Run(mode.name, func(t *testing.T) {
			mem := memfs.New()
			mem.SetCapacity(80 << 10)
			opts := testOptions(mem, 32<<10)
			opts.ReserveStep = 8 << 10
			mode.set(&opts)
			l, _ := startLog(t, opts)
			want, full := 0, 0
			for i := range 300 {
				p := newPut(t, message.QueueOffset(want), sized(500, byte(i)))
				_, _, err := l.Append(500, p)
				switch {
				case err == nil:
					want++
				case errors.Is(err, base.ErrDiskFull):
					full++
				default:
					t.Fatalf("put %d: %v", i, err)
				}
				if full == 10 {
					mem.SetCapacity(1 << 20)
				}
			}
			if full < 10 || want < 200 {
				t.Errorf("%d puts failed, %d succeeded", full, want)
			}
			if err := l.Flush(context.Background()); err != nil {
				t.Fatal(err)
			}
			for i, r := range scanAll(t, l) {
				if r.Queue != message.QueueOffset(i) {
					t.Fatalf("record %d has queue offset %d", i, r.Queue)
				}
			}
			if err := l.Close(); err != nil {
				t.Fatal(err)
			}
			if tail := findTail(t, mem, 0); tail.Records != int64(want) || tail.Reason != nil {
				t.Errorf("tail %+v, want %d records", tail, want)
			}
		})
	}
}

func TestCreateTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := faultfs.New(memfs.New())
		opts := testOptions(fsys, 4096)
		opts.CreateInline = false
		l, _ := startLog(t, opts)
		release := make(chan struct{})
		fsys.Inject(faultfs.Rule{Ops: faultfs.OpCreate, Name: "*4096", Count: 1, Hook: func(faultfs.Call) { <-release }})
		appendSized(t, l, 4000, 0)
		start := time.Now()
		_, _, err := l.Append(200, newPut(t, 1, sized(200, 1)))
		if !errors.Is(err, mappedfile.ErrCreateTimeout) || time.Since(start) != 5*time.Second || l.End() != 4000 {
			t.Errorf("got %v after %v, end %d", err, time.Since(start), l.End())
		}
		close(release)
		synctest.Wait()
		if got := appendSized(t, l, 200, 1); got != 4096 {
			t.Errorf("record at %d", got)
		}
		l.Close()
	})
}

func TestAppendBeforeAndAfter(t *testing.T) {
	mem := memfs.New()
	l, _ := openLog(t, testOptions(mem, 4096))
	p := newPut(t, 0, sized(200, 0))
	if _, _, err := l.Append(200, p); !errors.Is(err, errNotStarted) {
		t.Errorf("before SetEnd: %v", err)
	}
	if err := l.WaitFlushed(context.Background(), 1); !errors.Is(err, errNotStarted) {
		t.Errorf("waiting before SetEnd: %v", err)
	}
	if entries, err := mem.List(testDir); err == nil {
		t.Errorf("opening made %v", entries)
	}
	if err := l.SetEnd(0, 0); err != nil {
		t.Fatal(err)
	}
	if err := l.SetEnd(0, 0); !errors.Is(err, errStarted) {
		t.Errorf("second SetEnd: %v", err)
	}
	if _, err := l.FindTail(context.Background(), 0, checkAll); !errors.Is(err, errStarted) {
		t.Errorf("FindTail while running: %v", err)
	}
	appendSized(t, l, 200, 0)
	for range 2 {
		if err := l.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	}
	if _, _, err := l.Append(200, p); !errors.Is(err, base.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
	if _, _, err := l.ReadRecord(0, nil, checkAll.Check); !errors.Is(err, base.ErrClosed) {
		t.Errorf("reading after Close: %v", err)
	}
	if err := l.WaitConfirmed(context.Background(), 1000); !errors.Is(err, base.ErrClosed) {
		t.Errorf("waiting after Close: %v", err)
	}
}

func TestOpenRefuses(t *testing.T) {
	tests := []struct {
		name string
		opts func(*Options)
	}{
		{"pool without mapping", func(o *Options) { o.PoolSize, o.WriteWithoutMmap = 1, true }},
		{"file size too small for a record", func(o *Options) { o.FileSize = 98 }},
		{"no directory", func(o *Options) { o.Dirs = nil }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			opts := testOptions(memfs.New(), 4096)
			opts.CreateInline = false
			test.opts(&opts)
			if l, _, err := Open(opts); err == nil {
				l.Close()
				t.Error("opened")
			}
		})
	}
}

func TestSetEndInsideMissingFile(t *testing.T) {
	l, _ := openLog(t, testOptions(memfs.New(), 4096))
	if err := l.SetEnd(100, 0); err == nil {
		t.Error("a log without files ends inside one")
	}
	if err := l.SetEnd(8192, 0); err != nil {
		t.Fatal(err)
	}
	if l.Min() != 8192 || l.End() != 8192 || l.Flushed() != 8192 || l.Confirmed() != 8192 {
		t.Errorf("stats %+v", l.Stats())
	}
	if got := appendSized(t, l, 100, 0); got != 8192 {
		t.Errorf("first record at %d", got)
	}
}

// TestMultiPath spreads the files over directories, one of them only read.
func TestMultiPath(t *testing.T) {
	mem := memfs.New()
	opts := testOptions(mem, 4096)
	opts.Dirs = []string{"/a/commitlog", "/b/commitlog"}
	l, _ := startLog(t, opts)
	for i := range 16 {
		appendSized(t, l, 1000, byte(i))
	}
	l.Close()
	for i, dir := range opts.Dirs {
		entries, err := mem.List(dir)
		if err != nil || len(entries) != 2 || entries[0].Name != fmt.Sprintf("%020d", i*4096) {
			t.Errorf("%s holds %v, %v", dir, entries, err)
		}
	}
	opts.Dirs, opts.ReadOnlyDirs = opts.Dirs[:1], opts.Dirs[1:]
	l, tail := startLog(t, opts)
	if tail.Records != 16 || tail.Reason != nil {
		t.Errorf("tail %+v", tail)
	}
	if _, _, err := l.Append(96, newPut(t, 0, sized(96, 0))); !errors.Is(err, base.ErrReadOnly) {
		t.Errorf("append to a directory that is only read: %v", err)
	}
}

func TestAppendAllocatesNothing(t *testing.T) {
	if testing.CoverMode() != "" {
		t.Skip("coverage counters change what escapes")
	}
	opts := testOptions(vfs.OS(), 64<<20)
	opts.Dirs = []string{filepath.Join(t.TempDir(), "commitlog")}
	l, _ := startLog(t, opts)
	p := newPut(t, 0, sized(1000, 1))
	perPut := testing.AllocsPerRun(1000, func() {
		if _, _, err := l.Append(1000, p); err != nil {
			t.Fatal(err)
		}
	})
	if perPut != 0 {
		t.Errorf("%.1f allocations per append", perPut)
	}
}
