package inspect

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// scanned is what a scan found: positions.
type scanned struct {
	phys   []int64
	damage []Damage
	ScanResult
}

func scanAll(t testing.TB, s *Store, o ScanOptions) scanned {
	t.Helper()
	var got scanned
	o.Format = func(dst []byte, v *message.View) ([]byte, error) {
		return binary.BigEndian.AppendUint64(dst, uint64(v.PhysicalOffset)), nil
	}
	o.Take = func(f Found) error {
		from := 0
		for i, end := range f.Ends {
			if end-from != 8 || f.Nexts[i] > f.Next {
				t.Fatalf("message %d is %d bytes long, next %d of %d", i, end-from, f.Nexts[i], f.Next)
			}
			got.phys = append(got.phys, int64(binary.BigEndian.Uint64(f.Data[from:])))
			from = end
		}
		return nil
	}
	o.Damage = func(d Damage) { got.damage = append(got.damage, d) }
	var done, total int64
	o.Progress = func(d, all int64) {
		if d < done && all == total || d > all {
			t.Errorf("progress %d of %d after %d", d, all, done)
		}
		done, total = d, all
	}
	var err error
	if got.ScanResult, err = s.Scan(context.Background(), o); err != nil {
		t.Fatal(err)
	}
	if got.Messages != int64(len(got.phys)) || got.Damaged != int64(len(got.damage)) {
		t.Errorf("%d messages and %d damaged ranges, but the result says %+v", len(got.phys), len(got.damage), got.ScanResult)
	}
	if !slices.IsSorted(got.phys) {
		t.Error("positions are not in order")
	}
	return got
}

func openGolden(t testing.TB, m *golden.Manifest, fsys vfs.FS, name string) *Store {
	t.Helper()
	if err := golden.UnpackTo(fsys, "/s", name); err != nil {
		t.Fatal(err)
	}
	s, err := Open(Options{FS: fsys, Dir: "/s", CommitLogDirs: m.Config.CommitLogDirs("/s")})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// TestScanGolden: a scan finds what Java finds, behind damage also more, and
// the same for each topic, tag and key whichever way it goes.
func TestScanGolden(t *testing.T) {
	golden.Each(t, func(t *testing.T, name string) {
		m := golden.MustLoad(t, name)
		s := openGolden(t, m, memfs.New(), name)
		var want []int64
		topics, keys := map[string]bool{}, map[[2]string]bool{}
		for i := range m.Messages {
			msg := &m.Messages[i]
			if msg.Undecodable {
				continue
			}
			want = append(want, int64(msg.PhysicalOffset))
			topics[msg.Topic] = true
			for k := range strings.SplitSeq(msg.Properties["KEYS"], " ") {
				if k != "" {
					keys[[2]string{msg.Topic, k}] = true
				}
			}
		}
		all := scanAll(t, s, ScanOptions{})
		switch m.Store {
		case "crash-middle", "badtopic": // Java stops at the damage
			if len(all.damage) != 1 || len(all.phys) <= len(want) || !slices.Equal(all.phys[:len(want)], want) || all.damage[0].From != int64(m.MaxPhysicalOffset) {
				t.Errorf("%d messages and damage %v; Java reads %d up to %d", len(all.phys), all.damage, len(want), m.MaxPhysicalOffset)
			}
		default:
			if !slices.Equal(all.phys, want) || len(all.damage) > 0 {
				t.Errorf("%d messages and damage %v; Java has %d", len(all.phys), all.damage, len(want))
			}
			if all.End != int64(m.MaxPhysicalOffset) || all.By != "log" || (all.TailReason != "") != (m.Store == "crash-torn") {
				t.Errorf("end %d by %q, %q; Java says %d", all.End, all.By, all.TailReason, m.MaxPhysicalOffset)
			}
		}
		compare := func(f Filter) {
			a, b := scanAll(t, s, ScanOptions{Filter: f, LogOnly: true}), scanAll(t, s, ScanOptions{Filter: f})
			if !slices.Equal(a.phys, b.phys) {
				t.Errorf("%+v: %d messages by the log, %d by the %s", f, len(a.phys), len(b.phys), b.By)
			}
		}
		if !strings.HasPrefix(name, "5.4.0") && name != "4.9.4-broker-dir" {
			return
		}
		n := 0 // maps come in another order each time
		for topic := range topics {
			if n++; n > 3 {
				break
			}
			compare(Filter{Topic: topic})
			compare(Filter{Topic: topic, Tag: "TagA"})
		}
		n = 0
		for k := range keys {
			if n++; n > 3 {
				break
			}
			compare(Filter{Topic: k[0], Key: k[1]})
		}
	})
}

// TestScanTags: tags are compared whole, whatever they are.
func TestScanTags(t *testing.T) {
	const name = "5.4.0-basic-clean"
	m := golden.MustLoad(t, name)
	s := openGolden(t, m, memfs.New(), name)
	tags := map[string][]int64{}
	for i := range m.Messages {
		if tag := m.Messages[i].Properties["TAGS"]; tag != "" {
			tags[tag] = append(tags[tag], int64(m.Messages[i].PhysicalOffset))
		}
	}
	if len(tags) < 5 {
		t.Fatalf("only %d tags", len(tags))
	}
	for tag, phys := range tags {
		if got := scanAll(t, s, ScanOptions{Filter: Filter{Tag: tag}}); !slices.Equal(got.phys, phys) {
			t.Errorf("tag %q: %d messages, want %d", tag, len(got.phys), len(phys))
		}
	}
}

// TestScanWindow: a time window gives the same with and without looking at
// files.
func TestScanWindow(t *testing.T) {
	const name = "5.4.0-basic-clean"
	m := golden.MustLoad(t, name)
	s := openGolden(t, m, memfs.New(), name)
	times := []int64{0, 1}
	for i := 0; i < len(m.Messages); i += 297 {
		times = append(times, m.Messages[i].StoreTimestamp)
	}
	times = append(times, m.Messages[len(m.Messages)-1].StoreTimestamp+1)
	for _, from := range times {
		for _, to := range times {
			if to != 0 && from > to {
				continue
			}
			var want []int64
			for i := range m.Messages {
				if ts := m.Messages[i].StoreTimestamp; ts >= from && (to == 0 || ts <= to) {
					want = append(want, int64(m.Messages[i].PhysicalOffset))
				}
			}
			if got := scanAll(t, s, ScanOptions{Filter: Filter{From: from, To: to}}); !slices.Equal(got.phys, want) {
				t.Errorf("from %d to %d: %d messages, want %d", from, to, len(got.phys), len(want))
			}
		}
	}
}

// builder writes a log, and queues and index as far as a test wants them.
type builder struct {
	t    testing.TB
	fs   vfs.FS
	size int64
	log  []byte
	at   []int64 // positions of the records
	now  int64
	seq  map[string]int64
}

func newBuilder(t testing.TB, size int64) *builder {
	return &builder{t: t, fs: memfs.New(), size: size, now: 1_700_000_000_000, seq: map[string]int64{}}
}

// put appends a message and returns its position.
func (b *builder) put(topic, tags, keys string, body string) int64 {
	b.t.Helper()
	m := &message.Message{Topic: topic, Body: []byte(body), Properties: message.NewProperties(message.PropTags, tags, message.PropKeys, keys)}
	var enc message.Encoder
	rec, err := enc.Append(nil, m)
	if err != nil {
		b.t.Fatal(err)
	}
	if left := b.size - int64(len(b.log))%b.size; int64(len(rec))+message.BlankSize > left {
		b.log = append(message.AppendBlank(b.log, int32(left)), make([]byte, left-message.BlankSize)...)
	}
	at := int64(len(b.log))
	b.now += 10
	enc.Patch(rec, message.QueueOffset(b.seq[topic]), message.PhysicalOffset(at), b.now)
	b.seq[topic]++
	b.log = append(b.log, rec...)
	b.at = append(b.at, at)
	return at
}

func (b *builder) write(name string, data []byte, size int64) {
	b.t.Helper()
	path := filepath.Join("/s", name)
	err := b.fs.MkdirAll(filepath.Dir(path))
	if err == nil {
		err = b.fs.Remove(path)
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
	}
	var f vfs.File
	if err == nil {
		f, err = b.fs.Create(path)
	}
	if err == nil {
		_, err = f.WriteAt(data, 0)
	}
	if err == nil {
		err = f.Truncate(size)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	f.Close()
}

// open writes the log and opens the store.
func (b *builder) open() *Store {
	b.t.Helper()
	for at := int64(0); at == 0 || at < int64(len(b.log)); at += b.size {
		b.write("commitlog/"+segmentName(at), b.log[at:min(at+b.size, int64(len(b.log)))], b.size)
	}
	s, err := Open(Options{FS: b.fs, Dir: "/s"})
	if err != nil {
		b.t.Fatal(err)
	}
	return s
}

// TestScanDamage: whatever is damaged, the others are found.
func TestScanDamage(t *testing.T) {
	fill := func(t *testing.T) *builder {
		b := newBuilder(t, 4096)
		for i := range 60 {
			b.put("T", "a", "", strings.Repeat("x", i*13%400))
		}
		return b
	}
	lengthOf := func(b *builder, i int) int64 { return int64(message.Size(b.log[b.at[i]:])) }
	for _, tc := range []struct {
		name   string
		damage func(b *builder) (lost []int, ranges int)
		tail   bool
	}{
		{"none", func(*builder) ([]int, int) { return nil, 0 }, false},
		{"a body", func(b *builder) ([]int, int) { b.log[b.at[7]+90] ^= 1; return []int{7}, 1 }, false},
		{"a size made small", func(b *builder) ([]int, int) {
			binary.BigEndian.PutUint32(b.log[b.at[7]:], 100)
			return []int{7}, 2 // the record, and what is behind its claimed end
		}, false},
		{"a size of nearly everything", func(b *builder) ([]int, int) {
			binary.BigEndian.PutUint32(b.log[b.at[20]:], 0x7fffffff)
			return []int{20}, 1
		}, false},
		{"a size that leads to another record", func(b *builder) ([]int, int) {
			binary.BigEndian.PutUint32(b.log[b.at[7]:], uint32(b.at[9]-b.at[7]))
			return []int{7, 8}, 1 // 8 stands where 7 claims to be: nobody can tell
		}, false},
		{"a magic", func(b *builder) ([]int, int) { b.log[b.at[7]+5] ^= 1; return []int{7}, 1 }, false},
		{"a position", func(b *builder) ([]int, int) { b.log[b.at[7]+35] ^= 1; return []int{7}, 1 }, false},
		{"zeros", func(b *builder) ([]int, int) {
			clear(b.log[b.at[7]:b.at[9]])
			return []int{7, 8}, 1
		}, false},
		{"the first record", func(b *builder) ([]int, int) { clear(b.log[:30]); return []int{0}, 1 }, false},
		{"the last record of a file", func(b *builder) ([]int, int) {
			i := slices.IndexFunc(b.at, func(at int64) bool { return at >= 4096 }) - 1
			clear(b.log[b.at[i]:4096])
			return []int{i}, 1
		}, false},
		{"the last one", func(b *builder) ([]int, int) {
			clear(b.log[len(b.log)-20:])
			b.log[len(b.log)-len("TAGS\x01a\x02")-1] = 9 // properties do not fit
			return []int{59}, 0
		}, true},
		{"the last one is half", func(b *builder) ([]int, int) {
			n := lengthOf(b, 59)
			clear(b.log[b.at[59]+n/2:])
			return []int{59}, 0
		}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			b := fill(t)
			lost, ranges := tc.damage(b)
			got := scanAll(t, b.open(), ScanOptions{})
			var want []int64
			for i, at := range b.at {
				if !slices.Contains(lost, i) {
					want = append(want, at)
				}
			}
			if !slices.Equal(got.phys, want) {
				t.Errorf("found %d, want %d: %v", len(got.phys), len(want), got.damage)
			}
			if len(got.damage) != ranges || (got.TailReason != "") != tc.tail {
				t.Errorf("damage %v and %q, want %d ranges", got.damage, got.TailReason, ranges)
			}
			for _, d := range got.damage {
				if d.To <= d.From || d.Reason == "" || d.File == "" {
					t.Errorf("%+v", d)
				}
			}
		})
	}
}

// TestScanEnd: old records behind the end of the log are not found.
func TestScanEnd(t *testing.T) {
	b := newBuilder(t, 8192)
	for range 30 {
		b.put("T", "", "", "old")
	}
	old := slices.Clone(b.log)
	n := len(b.at)
	// The log is cut in the middle and goes on later with other records.
	b.log, b.at, b.now = b.log[:b.at[n/2]], b.at[:n/2], b.now+1000
	for range 3 {
		b.put("T", "", "", "a new one")
	}
	b.log = append(b.log, old[len(b.log):]...)
	got := scanAll(t, b.open(), ScanOptions{})
	if !slices.Equal(got.phys, b.at) || len(got.damage) > 0 {
		t.Errorf("found %d up to %d, want %d; %v", len(got.phys), got.End, len(b.at), got.damage)
	}
}

func TestScanFilter(t *testing.T) {
	b := newBuilder(t, 4096)
	for i := range 40 {
		b.put(fmt.Sprintf("T%d", i%2), fmt.Sprintf("t%d", i%3), fmt.Sprintf("k%d k", i), fmt.Sprintf("body number %d.", i))
	}
	s := b.open()
	for _, tc := range []struct {
		name string
		f    Filter
		want func(i int) bool
	}{
		{"nothing", Filter{}, func(int) bool { return true }},
		{"topic", Filter{Topic: "T1"}, func(i int) bool { return i%2 == 1 }},
		{"tag", Filter{Tag: "t2"}, func(i int) bool { return i%3 == 2 }},
		{"half a tag", Filter{Tag: "t"}, func(int) bool { return false }},
		{"key", Filter{Key: "k7"}, func(i int) bool { return i == 7 }},
		{"key of all", Filter{Key: "k"}, func(int) bool { return true }},
		{"keys", Filter{Key: "k7 k"}, func(int) bool { return false }},
		{"property", Filter{Properties: [][2]string{{"TAGS", "t0"}, {"KEYS", ""}}}, func(i int) bool { return i%3 == 0 }},
		{"no such property", Filter{Properties: [][2]string{{"x", ""}}}, func(int) bool { return false }},
		{"body", Filter{Body: regexp.MustCompile(`number 1\d\.$`)}, func(i int) bool { return i >= 10 && i < 20 }},
		{"all", Filter{Topic: "T0", Tag: "t1", Body: regexp.MustCompile(`(?i)NUMBER`)}, func(i int) bool { return i%2 == 0 && i%3 == 1 }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var want []int64
			for i, at := range b.at {
				if tc.want(i) {
					want = append(want, at)
				}
			}
			if got := scanAll(t, s, ScanOptions{Filter: tc.f}); !slices.Equal(got.phys, want) {
				t.Errorf("found %v, want %v", got.phys, want)
			}
		})
	}
}

func TestScanFrom(t *testing.T) {
	b := newBuilder(t, 4096)
	for range 50 {
		b.put("T", "", "", "some text")
	}
	s := b.open()
	for i, at := range b.at {
		if got := scanAll(t, s, ScanOptions{From: at}); !slices.Equal(got.phys, b.at[i:]) || len(got.damage) > 0 {
			t.Fatalf("from %d: %d messages, want %d; %v", at, len(got.phys), len(b.at)-i, got.damage)
		}
	}
	if got := scanAll(t, s, ScanOptions{From: 1 << 40}); len(got.phys) > 0 {
		t.Errorf("%d messages behind the end", len(got.phys))
	}
	// Enough is enough.
	n := 0
	res, err := s.Scan(context.Background(), ScanOptions{
		Format: func(dst []byte, _ *message.View) ([]byte, error) { return append(dst, 1), nil },
		Take:   func(f Found) error { n += len(f.Ends); return ErrEnough },
	})
	if err != nil || n == 0 || res.Messages != int64(n) {
		t.Errorf("%d messages, %+v, %v", n, res, err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err = s.Scan(ctx, ScanOptions{
		Format: func(dst []byte, _ *message.View) ([]byte, error) { return dst, nil },
		Take:   func(Found) error { return nil },
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	boom := errors.New("boom")
	if _, err := s.Scan(context.Background(), ScanOptions{
		Format: func([]byte, *message.View) ([]byte, error) { return nil, boom }, Take: func(Found) error { return nil },
	}); !errors.Is(err, boom) {
		t.Errorf("Format failed: %v", err)
	}
}

func TestRequired(t *testing.T) {
	for re, want := range map[string]string{
		`abc`: "abc", `a+bcd[0-9]*ef`: "bcd", `(?i)abc`: "", `abc|abd`: "ab", `(order-)(\d+)`: "order-", `x?`: "", `(abc){2,}`: "abc", `(abc){0,2}`: "",
		`a.c`: "a", `^名字$`: "名字", `[a-z]`: "", "\ufffd": "",
	} {
		m := newMatcher(&Filter{Body: regexp.MustCompile(re)})
		if string(m.need) != want {
			t.Errorf("%s needs %q, want %q", re, m.need, want)
		}
	}
}

// TestScanStops: a scan that ends early, because enough was found or because
// what it found cannot be written, ends although much of the log is left.
func TestScanStops(t *testing.T) {
	b := newBuilder(t, 1<<20)
	body := strings.Repeat("x", 256<<10)
	for range 150 {
		b.put("T", "", "", body)
	}
	s := b.open()
	full := errors.New("disk full")
	for _, want := range []error{nil, full} {
		n := 0
		_, err := s.Scan(t.Context(), ScanOptions{
			Format: func(dst []byte, _ *message.View) ([]byte, error) { return append(dst, 'x'), nil },
			Take: func(f Found) error {
				if n += len(f.Ends); want == nil {
					return ErrEnough
				}
				return want
			},
		})
		if !errors.Is(err, want) || n == 0 || n == len(b.at) {
			t.Errorf("%d messages, %v, want %v", n, err, want)
		}
	}
}

// TestOpenDLedger: what is in a DLedger log is not there for a scan, so that no
// store is opened that would seem to be empty.
func TestOpenDLedger(t *testing.T) {
	fsys := memfs.New()
	if err := fsys.MkdirAll("/s/dledger-n0/data"); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(Options{FS: fsys, Dir: "/s"}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("got %v, want %v", err, errors.ErrUnsupported)
	}
}
