package gantry

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/check/checktest"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// variant is a way to run a case.
type variant struct {
	name   string
	os     bool // on the operating system instead of in memory
	noMmap bool
	async  bool
}

var (
	inMemory    = variant{name: "mem"}
	allVariants = []variant{
		inMemory,
		{name: "mem-nommap", noMmap: true},
		{name: "mem-async", async: true},
		{name: "os", os: true},
		{name: "os-nommap-async", os: true, noMmap: true, async: true},
	}
)

// stop is how a store comes to an end before it is opened again.
type stop string

const (
	stopClean stop = "clean" // closed
	stopAbort stop = "abort" // closed, and the abort file is there all the same
	stopKill  stop = "kill"  // the process ended
)

var allStops = []stop{stopClean, stopAbort, stopKill}

// entry is a message that a put acknowledged.
type entry struct {
	topic    string
	queue    int32
	offset   message.QueueOffset
	physical message.PhysicalOffset
	size     int
	time     int64
	body     string
	props    message.Properties
}

// site is a store directory that a case works on: files that can be copied
// and damaged, and what was promised about them.
type site struct {
	t     testing.TB
	fs    vfs.FS
	dir   string
	clock *testClock
	opts  *Options // FS and Events are set by open
	acked []entry
	// fault, when set, makes open go through it.
	fault *faultfs.FS
	// keyStep above 1 makes verify look for one of so many keys.
	keyStep int32
	// unchecked: the test leaves damage that the checker would report.
	unchecked bool

	notes *notes
}

// notes is what a store reported through its events.
type notes struct {
	mu          sync.Mutex
	damage      []error
	writeErrors []string
	removed     []Removal
}

func (n *notes) damaged() []error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.damage)
}

func (n *notes) failedWrites() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.writeErrors)
}

// newSite returns an empty directory with the options of set-up S. When the
// test ends and has closed the store that is there, the checker looks at it.
func newSite(t testing.TB, v variant) *site {
	c := &site{t: t, dir: testDir, clock: newClock(), notes: new(notes)}
	t.Cleanup(c.check)
	if v.os {
		c.fs, c.dir = vfs.OS(), filepath.Join(t.TempDir(), "store")
	} else {
		c.fs = memfs.NewCrashable(1)
	}
	c.opts = smallOptions(nil, c.clock)
	c.opts.WriteWithoutMmap = v.noMmap
	if v.async {
		c.opts.Flush = FlushAsync
	}
	return c
}

// check runs the consistency checker over a store that was closed.
func (c *site) check() {
	c.t.Helper()
	if names := c.names(); c.unchecked || len(names) == 0 || slices.Contains(names, "abort") || c.t.Failed() {
		return
	}
	checktest.Dir(c.t, c.fs, c.dir, checktest.Configure(func(o *check.Options) { o.CommitLogDirs = c.opts.CommitLogDirs }))
}

// eachVariant runs f as a subtest in each variant.
func eachVariant(t *testing.T, variants []variant, f func(t *testing.T, c *site)) {
	t.Helper()
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) { f(t, newSite(t, v)) })
	}
}

// options are those that open uses.
func (c *site) options() *Options {
	return c.opts.with(func(o *Options) {
		o.FS = c.fs
		if c.fault != nil {
			o.FS = c.fault
		}
		n := c.notes
		o.Events.Damage = func(err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.damage = append(n.damage, err)
		}
		o.Events.WriteError = func(what string, err error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.writeErrors = append(n.writeErrors, fmt.Sprintf("%s: %v", what, err))
		}
		o.Events.Removed = func(r Removal) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.removed = append(n.removed, r)
		}
	})
}

// maxOpenAlloc is what opening a store of the size of these cases may
// allocate: some 6 MiB that it always does, and 8 MiB that no content of a file
// may exceed.
const maxOpenAlloc = 14 << 20

// open opens the store and fails the test when that does not work.
func (c *site) open() *Store {
	c.t.Helper()
	var s *Store
	var err error
	if n := allocated(func() { s, err = Open(context.Background(), c.dir, c.options()) }); n > maxOpenAlloc {
		c.t.Errorf("opening allocated %d bytes", n)
	}
	if err != nil {
		c.t.Fatalf("open: %v", err)
	}
	return s
}

// refused opens the store, which must fail and change nothing, and returns
// the error.
func (c *site) refused() error {
	c.t.Helper()
	before := c.tree()
	var s *Store
	var err error
	if n := allocated(func() { s, err = Open(context.Background(), c.dir, c.options()) }); n > maxOpenAlloc {
		c.t.Errorf("the refused opening allocated %d bytes", n)
	}
	if err == nil {
		s.abandon()
		c.t.Fatal("the store was opened")
	}
	if d := golden.DiffTrees(before, c.tree()); len(d) > 0 {
		c.t.Errorf("the refused opening changed files: %s", strings.Join(d, "; "))
	}
	if held, lerr := c.fs.Locked(c.path("lock")); lerr != nil || held {
		c.t.Errorf("the lock after a refused opening: held %v, %v", held, lerr)
	}
	return err
}

// stop ends the store in the given way; afterwards c is what that left.
func (c *site) stop(s *Store, how stop) {
	c.t.Helper()
	switch how {
	case stopKill:
		left := c.fork()
		s.abandon()
		c.fs, c.dir, c.fault = left.fs, left.dir, nil
		return
	case stopAbort:
		defer c.create("abort", []byte("4711"))
	}
	if err := s.Close(); err != nil {
		c.t.Fatalf("close: %v", err)
	}
}

// reopen is stop and open.
func (c *site) reopen(s *Store, how stop) *Store {
	c.t.Helper()
	c.stop(s, how)
	return c.open()
}

// fork copies the directory as it is now.
func (c *site) fork() *site {
	c.t.Helper()
	left := *c
	left.acked, left.notes, left.fault = slices.Clone(c.acked), new(notes), nil
	if mem, ok := c.fs.(*memfs.FS); ok {
		left.fs = mem.CrashClone(memfs.KeepAll)
		return &left
	}
	left.dir = filepath.Join(c.t.TempDir(), "store")
	must(c.t, copyTree(c.fs, c.dir, left.dir))
	return &left
}

func (c *site) path(elem ...string) string {
	return filepath.Join(append([]string{c.dir}, elem...)...)
}

func (c *site) tree() []golden.File {
	c.t.Helper()
	if _, err := c.fs.Stat(c.dir); err != nil {
		return nil
	}
	files, err := golden.Tree(c.fs, c.dir)
	must(c.t, err)
	return files
}

// names lists a directory below the store; a missing one is empty.
func (c *site) names(elem ...string) []string {
	c.t.Helper()
	entries, err := c.fs.List(c.path(elem...))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names
}

// logPlace is the commit log file, relative to the store, and the offset in it
// of a position.
func (c *site) logPlace(at message.PhysicalOffset) (name string, off int64) {
	size := c.opts.CommitLogFileSize
	start := int64(at) / size * size
	return filepath.Join("commitlog", fmt.Sprintf("%020d", start)), int64(at) - start
}

// patchLog overwrites bytes of the log.
func (c *site) patchLog(at message.PhysicalOffset, b []byte) {
	c.t.Helper()
	name, off := c.logPlace(at)
	c.patch(name, off, b)
}

// put stores m and notes what was promised.
func (c *site) put(s *Store, m *message.Message) PutResult {
	c.t.Helper()
	res := mustPut(c.t, s, m)
	c.note(res, m)
	return res
}

// putBatch stores a batch and notes what was promised.
func (c *site) putBatch(s *Store, msgs ...*message.Message) PutResult {
	c.t.Helper()
	res, err := s.PutBatch(context.Background(), msgs)
	if err != nil {
		c.t.Fatalf("put batch: %v", err)
	}
	c.note(res, msgs...)
	return res
}

func (c *site) note(res PutResult, msgs ...*message.Message) {
	at := res.PhysicalOffset
	for i, m := range msgs {
		size := res.Size
		if len(res.sizes) > 0 {
			size = int(res.sizes[i])
		}
		c.acked = append(c.acked, entry{res.Topic, res.QueueID, res.QueueOffset + message.QueueOffset(i), at, size, res.StoreTimestamp, string(m.Body), m.Properties})
		at += message.PhysicalOffset(size)
	}
}

// forget takes back what was promised of the messages that gone says.
func (c *site) forget(gone func(entry) bool) {
	c.acked = slices.DeleteFunc(c.acked, gone)
}

// verify holds the store to what was promised: every message of c.acked is
// returned exactly once, by its queue offset and by each of its keys, and
// nothing else is.
func (c *site) verify(s *Store) {
	c.t.Helper()
	waitDispatched(c.t, s)
	type queue struct {
		topic string
		id    int32
	}
	want, got := make(map[queue][]entry), make(map[queue][]entry)
	for _, e := range c.acked {
		q := queue{e.topic, e.queue}
		want[q] = append(want[q], e)
	}
	for _, q := range s.Queues() {
		for off := q.MinOffset; off < q.MaxOffset; {
			res, err := s.Get(q.Topic, q.QueueID, off, GetOptions{Max: 1000, MaxBytes: 8 << 20})
			if err != nil || len(res.Damaged) > 0 || res.NextOffset <= off {
				c.t.Fatalf("get %s/%d at %d: %v, %+v", q.Topic, q.QueueID, off, err, res)
			}
			msgs, err := res.Messages()
			must(c.t, err)
			for i, m := range msgs {
				if m.QueueOffset != res.Records[i].QueueOffset {
					c.t.Errorf("%s/%d: the message with offset %d is in slot %d", q.Topic, q.QueueID, m.QueueOffset, res.Records[i].QueueOffset)
				}
				k := queue{q.Topic, q.QueueID}
				got[k] = append(got[k], entry{m.Topic, m.QueueID, m.QueueOffset, m.PhysicalOffset, int(m.StoreSize), m.StoreTimestamp, string(m.Body), m.Properties})
			}
			off = res.NextOffset
		}
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(queue{}, entry{})); d != "" {
		c.t.Errorf("messages (-acknowledged +returned)\n%s", clip(d))
	}
	c.verifyKeys(s)
}

// verifyKeys is the part of verify that asks for keys.
func (c *site) verifyKeys(s *Store) {
	c.t.Helper()
	type key struct{ topic, text string }
	want := make(map[key][]message.PhysicalOffset)
	for _, e := range c.acked {
		keys := make(map[string]bool)
		for k := range e.props.Keys() {
			keys[k] = true
		}
		if u := e.props.UniqKey(); u != "" {
			keys[u] = true
		}
		for text := range keys {
			k := key{e.topic, text}
			want[k] = append(want[k], e.physical)
		}
	}
	for k, at := range want {
		if c.keyStep > 1 && message.IndexKeyHash(k.topic, k.text)%c.keyStep != 0 {
			continue
		}
		slices.Sort(at)
		slices.Reverse(at)
		if got := c.query(s, k.topic, k.text, QueryOptions{}); !slices.Equal(got, at) {
			c.t.Errorf("key %q of %s is found at %v, want %v", k.text, k.topic, got, at)
		}
	}
}

// query returns the positions of the messages with a key.
func (c *site) query(s *Store, topic, key string, o QueryOptions) []message.PhysicalOffset {
	c.t.Helper()
	found, err := s.Query(context.Background(), topic, key, o)
	if err != nil {
		c.t.Fatalf("query %s %s: %v", topic, key, err)
	}
	var at []message.PhysicalOffset
	for _, m := range found {
		at = append(at, m.PhysicalOffset)
	}
	return at
}

// queueRange compares the limits of a queue.
func (c *site) queueRange(s *Store, topic string, id int32, wantMin, wantMax message.QueueOffset) {
	c.t.Helper()
	lo, hi, err := s.QueueRange(topic, id)
	if err != nil || lo != wantMin || hi != wantMax {
		c.t.Errorf("%s/%d: offsets %d to %d (%v), want %d to %d", topic, id, lo, hi, err, wantMin, wantMax)
	}
}

// spread moves the clock before each of n puts to queue id of topic.
func (c *site) putMany(s *Store, topic string, id int32, n int) {
	c.t.Helper()
	for range n {
		i := len(c.acked)
		c.clock.add(time.Millisecond)
		c.put(s, &message.Message{
			Topic: topic, QueueID: id, Body: fmt.Appendf(nil, "body-%d", i),
			Properties: message.NewProperties("KEYS", fmt.Sprintf("key%d", i), "TAGS", fmt.Sprintf("tag%d", i%7)),
		})
	}
}

// indexReaders opens every index file, by name.
func (c *site) indexReaders() []*indexfile.Reader {
	c.t.Helper()
	var out []*indexfile.Reader
	for _, name := range c.names("index") {
		r, err := indexfile.OpenReader(c.fs, c.path("index", name), indexfile.Geometry{Slots: c.opts.IndexSlots, Entries: c.opts.IndexEntries})
		must(c.t, err)
		c.t.Cleanup(func() { _ = r.Close() })
		out = append(out, r)
	}
	return out
}

// said returns what opening reported and reading found, as text.
func (c *site) said(s *Store) []string {
	r := s.Recovery()
	out := slices.Concat(r.Warnings, r.Repaired)
	for _, err := range c.notes.damaged() {
		out = append(out, err.Error())
	}
	return out
}

// mentions counts the lines that hold text.
func mentions(lines []string, text string) int {
	n := 0
	for _, l := range lines {
		if strings.Contains(l, text) {
			n++
		}
	}
	return n
}

// holds checks that the error's text has all parts.
func holds(t testing.TB, err error, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if err == nil || !strings.Contains(err.Error(), p) {
			t.Errorf("error %q does not say %q", fmt.Sprint(err), p)
		}
	}
}

// corruptAt checks that err is a CorruptError at an offset of a file.
func corruptAt(t testing.TB, err error, file string, off int64) {
	t.Helper()
	ce, ok := errors.AsType[*base.CorruptError](err)
	if !ok || ce.File != file || ce.Offset != off {
		t.Errorf("error %v, want corruption of %s at %d", err, file, off)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clip shortens a long difference.
func clip(s string) string {
	const most = 4000
	if len(s) > most {
		return s[:most] + "…"
	}
	return s
}

// allocated returns the bytes that are allocated while f runs.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}
