package check

import (
	"context"
	"errors"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

func smallStore(t *testing.T) *damager {
	t.Helper()
	d := &damager{builder: newBuilder(t, memfs.New(), "/s")}
	d.small()
	return d
}

func run(t *testing.T, o Options) ([]Finding, Summary) {
	t.Helper()
	var list []Finding
	sum, err := Run(context.Background(), o, func(f Finding) { list = append(list, f) })
	if err != nil {
		t.Fatal(err)
	}
	return list, sum
}

func TestSummary(t *testing.T) {
	d := smallStore(t)
	findings, got := run(t, Options{FS: d.fs, Dir: "/s", Level: Deep})
	if len(findings) > 0 {
		t.Errorf("findings of a sound store: %v", findings)
	}
	want := Summary{
		Files: got.Files, Bytes: got.Bytes,
		Messages: 60, Units: 58, Queues: 9, Topics: 6, IndexFiles: 4, IndexEntries: got.IndexEntries,
		LogMin: 0, LogEnd: message.PhysicalOffset(d.phy),
		FirstStoreTime: startTime, LastStoreTime: startTime + 59*7,
		Clean: true,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("summary (-want +got):\n%s", diff)
	}
	if got.Files < 20 || got.Bytes < d.phy || got.IndexEntries < 100 {
		t.Errorf("too little was looked at: %+v", got)
	}
}

func TestOptionErrors(t *testing.T) {
	mem := memfs.New()
	if err := mem.MkdirAll("/s"); err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name string
		o    Options
		want string
	}{
		{"no directory", Options{FS: mem}, "no directory given"},
		{"missing directory", Options{FS: mem, Dir: "/none"}, "check store: "},
		{"level", Options{FS: mem, Dir: "/s", Level: 7}, "unknown level 7"},
		{"log size", Options{FS: mem, Dir: "/s", CommitLogFileSize: -1}, "negative commit log file size -1"},
		{"queue size", Options{FS: mem, Dir: "/s", ConsumeQueueFileSize: 30}, "consume queue file size 30 is no multiple of 20"},
		{"index", Options{FS: mem, Dir: "/s", IndexSlots: -1}, "negative index geometry -1/0"},
		{"delays", Options{FS: mem, Dir: "/s", DelayLevels: "1x"}, "delay levels"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := Run(context.Background(), tt.o, nil)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want one with %q", err, tt.want)
			}
		})
	}
	if _, err := Run(context.Background(), Options{FS: mem, Dir: "/none"}, nil); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("error %v does not say that the directory does not exist", err)
	}
}

func TestEmptyStore(t *testing.T) {
	mem := memfs.New()
	if err := mem.MkdirAll("/s"); err != nil {
		t.Fatal(err)
	}
	findings, sum := run(t, Options{FS: mem, Dir: "/s"})
	if len(findings) > 0 || !sum.Clean {
		t.Errorf("findings %v, summary %+v", findings, sum)
	}
}

// TestReadsOnly checks that nothing but reading reaches the file system.
func TestReadsOnly(t *testing.T) {
	d := smallStore(t)
	d.text("abort", "1")
	fs := faultfs.New(d.fs)
	run(t, Options{FS: fs, Dir: "/s", Level: Deep})
	for _, op := range []faultfs.Op{faultfs.OpMutating, faultfs.OpLock, faultfs.OpMap, faultfs.OpMapRead} {
		if n := fs.Count(op, ""); n.Calls > 0 {
			t.Errorf("%d calls of %v", n.Calls, op)
		}
	}
	if opened, closed := fs.Count(faultfs.OpOpen, "").Calls, fs.Count(faultfs.OpClose, "").Calls; opened != closed {
		t.Errorf("%d files opened, %d closed", opened, closed)
	}
}

func TestCancel(t *testing.T) {
	d := smallStore(t)
	ctx, cancel := context.WithCancel(context.Background())
	fs := faultfs.New(d.fs)
	fs.Inject(faultfs.Rule{Ops: faultfs.OpOpen, Name: segmentName(4096), Hook: func(faultfs.Call) { cancel() }})
	if _, err := Run(ctx, Options{FS: fs, Dir: "/s"}, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if opened, closed := fs.Count(faultfs.OpOpen, "").Calls, fs.Count(faultfs.OpClose, "").Calls; opened != closed {
		t.Errorf("%d files opened, %d closed", opened, closed)
	}
}

func TestProgress(t *testing.T) {
	d := smallStore(t)
	var calls int
	var last, lastTotal int64
	run(t, Options{FS: d.fs, Dir: "/s", Progress: func(done, total int64) {
		if done < last || done > total || total <= 0 {
			t.Errorf("%d of %d after %d", done, total, last)
		}
		calls, last, lastTotal = calls+1, done, total
	}})
	if calls < 2 || last != lastTotal {
		t.Errorf("%d calls, the last one with %d of %d", calls, last, lastTotal)
	}
}

// TestInUse checks that a store which somebody has open is not blamed for what
// is being written.
func TestInUse(t *testing.T) {
	d := smallStore(t)
	d.text("abort", "77")
	lock, err := d.fs.Lock("/s/lock")
	if err != nil {
		t.Fatal(err)
	}
	d.tear()
	d.set64("checkpoint", 0, startTime*2)
	findings, sum := run(t, Options{FS: d.fs, Dir: "/s", Level: Deep})
	for _, f := range findings {
		if f.Severity > Info {
			t.Errorf("%v", f)
		}
	}
	if !sum.InUse || !sum.Abort || sum.Clean {
		t.Errorf("summary %+v", sum)
	}
	if err := lock.Close(); err != nil {
		t.Fatal(err)
	}
	if _, sum = run(t, Options{FS: d.fs, Dir: "/s"}); sum.InUse || sum.Warnings == 0 {
		t.Errorf("summary after closing %+v", sum)
	}
}

// TestMany checks that a flood of findings stays bounded, is counted, and that
// one rule does not hide the others.
func TestMany(t *testing.T) {
	d := smallStore(t)
	for q, x := range d.queues {
		if strings.HasPrefix(q, "Topic") {
			for i := range d.units(q) {
				u, _ := consumequeue.DecodeUnit(x.units[i*unitSize:])
				u.Tags++
				d.setUnit(q, i, u)
			}
		}
	}
	for i := range 300 {
		d.text(fmt.Sprintf("leftover%03d", i), "")
	}
	findings, sum := run(t, Options{FS: d.fs, Dir: "/s", MaxFindings: 250})
	passed, count := map[string]int{}, map[string]int64{}
	for _, f := range findings {
		passed[f.Rule]++
		count[f.Rule] += f.Count
	}
	if want := map[string]int64{"queue.tags": 55, "store.leftover": 300}; !cmp.Equal(want, count) {
		t.Errorf("places by rule %v, want %v", count, want)
	}
	if passed["store.leftover"] != perRule+1 || sum.Infos != 300 || sum.Errors != 55 {
		t.Errorf("%v findings, summary %+v", passed, sum)
	}
}

// TestSameOrder checks that the order of findings does not depend on how the
// work was divided.
func TestSameOrder(t *testing.T) {
	d := smallStore(t)
	for i := 3; i < 60; i += 4 {
		d.in(i, atBody, '!')
	}
	for q := range d.queues {
		d.setUnit(q, 0, consumequeue.Unit{Physical: 7, Size: 100})
	}
	d.set32(indexName(1), entriesAt+20*5+16, 5)
	one, _ := run(t, Options{FS: d.fs, Dir: "/s", Workers: 1})
	for range 5 {
		many, _ := run(t, Options{FS: d.fs, Dir: "/s", Workers: 4})
		if diff := cmp.Diff(one, many); diff != "" {
			t.Fatalf("findings (-one worker +four):\n%s", diff)
		}
	}
}

// TestLargeRecord checks records that are not held in memory.
func TestLargeRecord(t *testing.T) {
	const size = largeRecord + 100_000
	build := func(t *testing.T) *damager {
		d := &damager{builder: newBuilder(t, memfs.New(), "/s")}
		d.logSize, d.crc = 16<<20, true
		d.max = size
		d.put(msg("TopicA", 0, "k1", "t", 10))
		d.put(msg("TopicA", 0, "k2", "t", size))
		d.put(msg("TopicA", 0, "k3", "t", 10))
		d.close()
		return d
	}
	tests := []struct {
		name   string
		damage func(d *damager)
		want   found
	}{
		{"sound", func(d *damager) {}, found{}},
		{"body", func(d *damager) { d.in(1, atBody+largeRecord/2, '!') }, found{"log.propcrc": fail, "queue.pointer": fail}},
		{"flag", func(d *damager) { d.in(1, 16, 1) }, found{"log.propcrc": fail, "queue.pointer": fail}},
		{"body length", func(d *damager) { d.in(1, atBodyLen+1, 0) }, found{"log.size": fail, "queue.pointer": fail}},
		{"size", func(d *damager) {
			rel, off := d.record(1)
			d.set32(rel, off, d.get32(rel, off)-1)
		}, found{"log.size": fail, "queue.pointer": fail}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := build(t)
			tt.damage(d)
			got, _, _ := results(t, Options{FS: d.fs, Dir: "/s", Level: Deep})
			tt.want.compare(t, got)
		})
	}
}

// TestHostileTail checks that a log whose unused rest pretends to be records
// everywhere is left after a bounded time.
func TestHostileTail(t *testing.T) {
	d := &damager{builder: newBuilder(t, memfs.New(), "/s")}
	d.logSize = 8 << 20
	d.put(msg("TopicA", 0, "k", "t", 10))
	d.close()
	rel, off := d.end()
	tail := make([]byte, d.logSize-off-200)
	rest := int32(len(tail))
	for at := int64(0); at+100 < int64(len(tail)); at += 100 {
		rec := tail[at:]
		copy(rec, d.get(rel, d.at[0], 90))
		putHostile(rec, rest-int32(at), d.phy+8+at)
	}
	d.set(rel, off+8, tail)
	findings, sum := run(t, Options{FS: d.fs, Dir: "/s"})
	if sum.Messages != 1 || int64(sum.LogEnd) != d.phy || sum.Bytes > 40*d.logSize {
		t.Errorf("summary %+v, findings %v", sum, findings)
	}
}

// TestDocTable checks that the package comment lists the rules as they are.
func TestDocTable(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "doc.go", nil, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	doc := f.Doc.Text()
	names := map[string]bool{}
	for _, r := range Rules() {
		line := fmt.Sprintf("\t%-4s %-19s %-8s %s\n", r.Number, r.Name, r.Severity, r.What)
		if !strings.Contains(doc, line) {
			t.Errorf("the package comment lacks the line %q", line)
		}
		if names[r.Name] || r.Meaning == "" || r.Repair == "" {
			t.Errorf("rule %s: given twice, or without meaning or repair", r.Name)
		}
		names[r.Name] = true
	}
	for n := 1; n <= 50; n++ {
		if !strings.Contains(doc, fmt.Sprintf("\n\t%-4d ", n)) {
			t.Errorf("no rule for number %d of section 20", n)
		}
	}
}

func TestTexts(t *testing.T) {
	f := Finding{Severity: Error, Rule: "log.size", File: "commitlog/0", Offset: 7, Detail: "bad"}
	if got, want := f.String(), "error log.size commitlog/0@7: bad"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	for _, tt := range []struct{ got, want string }{
		{Info.String(), "info"}, {Warning.String(), "warning"}, {Severity(9).String(), "severity(9)"},
		{Quick.String(), "quick"}, {Full.String(), "full"}, {Deep.String(), "deep"}, {Level(9).String(), "level(9)"},
		{printable("a\x1b[31m\n中"), "a\uFFFD[31m\uFFFD中"},
		{plural(1, "unit"), "1 unit"}, {plural(2, "unit"), "2 units"},
		{quoteShort(strings.Repeat("中", 30)), `"` + strings.Repeat("中", 13) + `"…`},
	} {
		if tt.got != tt.want {
			t.Errorf("got %q, want %q", tt.got, tt.want)
		}
	}
	s := Summary{Infos: 1, Warnings: 2, Errors: 3}
	if s.Count(Info) != 1 || s.Count(Warning) != 2 || s.Count(Error) != 3 {
		t.Errorf("counts of %+v", s)
	}
}

var _ vfs.FS = tolerant{}

// TestScanProps checks that the one pass over the properties sees what package
// message sees.
func TestScanProps(t *testing.T) {
	var r propScan // one for all: nothing of a string stays
	for _, s := range []string{
		"", "KEYS\x01a b  c\x02TAGS\x01t\x02UNIQ_KEY\x01u\x02", "KEYS\x01a", "\x02\x02KEYS\x01a\x02\x02", "KEYS\x01\x02", "\x01a\x02", "KEYS",
		"KEYS\x01a\x02KEYS\x01b\x02", "KEYS\x01a\x02KEYS\x01\x02", "TAGS\x01a\x01b\x02", "DELAY\x013\x02INNER_NUM\x012\x02INNER_BASE\x015\x02",
		"INNER_MULTI_DISPATCH\x01%LMQ%a,%LMQ%b\x02INNER_MULTI_QUEUE_OFFSET\x011,2\x02", "K\x01v\x02TAGS\x01中文\x02", "KEYS\x01 \x02", "xKEYS\x01a\x02",
	} {
		p := message.Properties(s)
		r.scan([]byte(s))
		for _, x := range []struct {
			name string
			got  []byte
		}{
			{message.PropKeys, r.keys}, {message.PropTags, r.tags}, {message.PropUniqKey, r.uniqKey}, {message.PropDelay, r.delay},
			{message.PropInnerNum, r.innerNum}, {message.PropInnerBase, r.innerBase},
			{message.PropInnerMultiDispatch, r.lightQueues}, {message.PropInnerMultiQueueOffset, r.lightOffsets},
		} {
			if want, _ := p.Get(x.name); string(x.got) != want {
				t.Errorf("%q: %s is %q, want %q", s, x.name, x.got, want)
			}
		}
		if want := p.Problems() != (message.PropertyProblems{}); r.hidden != want {
			t.Errorf("%q: hidden %v, want %v", s, r.hidden, want)
		}
		enc := message.Encoder{}
		m := msg("Topic", 0, "", "", 1)
		m.Properties = p
		rec, err := enc.Append(nil, m)
		if err != nil {
			t.Fatal(err)
		}
		v, err := message.Check(rec, 0, message.CheckOptions{})
		if err != nil {
			t.Fatal(err)
		}
		w := &logWorker{view: v}
		w.props.scan(v.PropsBytes())
		w.keyHashes()
		if want := v.IndexHashes(nil, true); !cmp.Equal(append([]int32{}, want...), append([]int32{}, w.hashes...)) {
			t.Errorf("%q: hashes %v, want %v", s, w.hashes, want)
		}
		if want := len(v.IndexHashes(nil, false)); w.keyCount != want {
			t.Errorf("%q: %d keys, want %d", s, w.keyCount, want)
		}
	}
	for _, key := range []string{"vlsoaerz", "flrkafys", "polygenelubricants", "😀"} {
		if got, want := keyHash(message.HashAppend(message.JavaHash("TopicTest"), "#"), []byte(key)), message.IndexKeyHash("TopicTest", key); got != want {
			t.Errorf("hash of %s: %d, want %d", key, got, want)
		}
	}
}
