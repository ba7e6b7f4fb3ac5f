package commitlog

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

const (
	testDir = "/store/commitlog"

	testTime int64 = 1_700_000_000_000 // ms, where test clocks begin
)

// checkAll verifies everything that can be verified.
var checkAll = ScanOptions{Check: message.CheckOptions{BodyCRC: true, PropertyCRC: true}}

// clock is a time that only the test moves.
type clock struct{ now atomic.Int64 }

func newClock() *clock {
	c := &clock{}
	c.now.Store(testTime)
	return c
}

func (c *clock) Now() int64 { return c.now.Load() }

// put is an Appender for one message, or for several as one batch.
type put struct {
	enc   message.Encoder
	recs  []byte
	first message.QueueOffset

	phy       message.PhysicalOffset // what Appended was told
	storeTime int64
	appended  int
	fills     int
}

// newPut encodes messages with consecutive queue offsets from first on.
func newPut(t testing.TB, first message.QueueOffset, msgs ...*message.Message) *put {
	t.Helper()
	p := &put{first: first}
	for _, m := range msgs {
		recs, err := p.enc.Append(p.recs, m)
		if err != nil {
			t.Fatalf("encode: %v", err)
		}
		p.recs = recs
	}
	return p
}

func (p *put) Fill(phy message.PhysicalOffset, storeTime int64) ([]byte, error) {
	p.fills++
	p.enc.Patch(p.recs, p.first, phy, storeTime)
	return p.recs, nil
}

func (p *put) Appended(phy message.PhysicalOffset, storeTime int64) {
	p.phy, p.storeTime = phy, storeTime
	p.appended++
}

// msg is a message whose record, with topic T and no properties, is 92 bytes
// longer than its body.
func msg(body string, props ...string) *message.Message {
	return &message.Message{
		Topic:         "T",
		Body:          []byte(body),
		Properties:    message.NewProperties(props...),
		BornTimestamp: testTime,
		BornHost:      netip.MustParseAddrPort("127.0.0.1:10000"),
		StoreHost:     netip.MustParseAddrPort("127.0.0.1:10911"),
	}
}

// sized is a message whose record has exactly size bytes. Bodies contain no
// zero bytes, so that lost sectors can be told.
func sized(size int, fill byte) *message.Message {
	return msg(strings.Repeat(string(rune('A'+fill%26)), size-92))
}

// appendSized appends a record of size bytes and returns its position.
func appendSized(t testing.TB, l *Log, size int, fill byte) message.PhysicalOffset {
	t.Helper()
	phy, _, err := l.Append(size, newPut(t, message.QueueOffset(fill), sized(size, fill)))
	if err != nil {
		t.Fatalf("append %d bytes: %v", size, err)
	}
	return phy
}

// testOptions are those of a small log on fs whose files are made by the writer
// itself, so that a test knows what happens when.
func testOptions(fsys vfs.FS, fileSize int64) Options {
	c := newClock()
	return Options{
		FS:           fsys,
		Dirs:         []string{testDir},
		FileSize:     fileSize,
		CreateInline: true,
		Now:          c.Now,
	}
}

// openLog opens a log without setting its end. It is closed with the test.
func openLog(t testing.TB, opts Options) (*Log, Report) {
	t.Helper()
	l, report, err := Open(opts)
	if err != nil {
		t.Fatalf("open: %v", err)
	}
	t.Cleanup(func() { l.Close() })
	return l, report
}

// startLog opens a log, sets its end where the valid records end, and returns
// it with what FindTail said.
func startLog(t testing.TB, opts Options) (*Log, Tail) {
	t.Helper()
	l, _ := openLog(t, opts)
	tail, err := l.FindTail(context.Background(), l.Min(), checkAll)
	if err != nil {
		t.Fatalf("find tail: %v", err)
	}
	if err := l.SetEnd(tail.End, tail.StoreTime); err != nil {
		t.Fatalf("set end %d: %v", tail.End, err)
	}
	return l, tail
}

// findTail opens the log in a file system and returns its tail.
func findTail(t testing.TB, fsys vfs.FS, fileSize int64) Tail {
	t.Helper()
	l, _ := openLog(t, testOptions(fsys, fileSize))
	defer l.Close()
	tail, err := l.FindTail(context.Background(), l.Min(), checkAll)
	if err != nil {
		t.Fatalf("find tail: %v", err)
	}
	return tail
}

// record is what a test compares of a stored record.
type record struct {
	Phy   message.PhysicalOffset
	Queue message.QueueOffset
	Body  string
}

// scanAll returns all records from the start of the log to Confirmed.
func scanAll(t testing.TB, l *Log) []record {
	t.Helper()
	var got []record
	end, err := l.Scan(context.Background(), l.Min(), l.Confirmed(), checkAll, func(v *message.View) error {
		got = append(got, record{v.PhysicalOffset, v.QueueOffset, string(v.Body())})
		return nil
	})
	if err != nil || end != l.Confirmed() {
		t.Fatalf("scan ended at %d of %d: %v", end, l.Confirmed(), err)
	}
	return got
}

// wantCorrupt fails the test unless err is a corruption error for the file and
// offset.
func wantCorrupt(t testing.TB, err error, file string, off int64) {
	t.Helper()
	var c *base.CorruptError
	if !errors.As(err, &c) {
		t.Fatalf("got %v, want a CorruptError", err)
	}
	if filepath.Base(c.File) != file || c.Offset != off {
		t.Fatalf("got %v, want one for %s at %d", err, file, off)
	}
}

// patchFile overwrites bytes of a log file behind the log's back.
func patchFile(t testing.TB, fsys vfs.FS, start, off int64, p []byte) {
	t.Helper()
	f, err := fsys.Open(filepath.Join(testDir, fmt.Sprintf("%020d", start)), vfs.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteAt(p, off); err != nil {
		t.Fatal(err)
	}
}

// readFile returns the content of a log file.
func readFile(t testing.TB, fsys vfs.FS, start int64) []byte {
	t.Helper()
	f, err := fsys.Open(filepath.Join(testDir, fmt.Sprintf("%020d", start)), vfs.ReadOnly)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		t.Fatal(err)
	}
	p := make([]byte, size)
	if err := readFull(f, p, 0); err != nil {
		t.Fatal(err)
	}
	return p
}

// snapshot returns names and contents of all files of the log.
func snapshot(t testing.TB, fsys vfs.FS) map[string]string {
	t.Helper()
	entries, err := fsys.List(testDir)
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, e := range entries {
		var start int64
		fmt.Sscanf(e.Name, "%d", &start)
		files[e.Name] = string(readFile(t, fsys, start))
	}
	return files
}

// makeLog writes one record for each size, closes the log cleanly, and returns
// the file system and the positions.
func makeLog(t testing.TB, fileSize int64, sizes ...int) (*memfs.FS, []message.PhysicalOffset) {
	t.Helper()
	mem := memfs.New()
	l, _ := startLog(t, testOptions(mem, fileSize))
	var at []message.PhysicalOffset
	for i, size := range sizes {
		at = append(at, appendSized(t, l, size, byte(i)))
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return mem, at
}

// repeat returns n times size.
func repeat(n, size int) []int {
	sizes := make([]int, n)
	for i := range sizes {
		sizes[i] = size
	}
	return sizes
}
