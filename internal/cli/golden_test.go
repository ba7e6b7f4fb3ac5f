package cli

import (
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// TestGolden runs the commands that read on every store that Java wrote: they
// answer what the manifest says, with the exit codes of the contract, and do
// not change a byte.
func TestGolden(t *testing.T) {
	golden.Each(t, func(t *testing.T, name string) {
		if _, kind := golden.SplitName(name); testing.Short() && strings.HasPrefix(name, "4") && kind != "expired" {
			t.Skip("the stores of 5.x are enough for the race detector")
		}
		m := golden.MustLoad(t, name)
		b := newBench(t)
		b.unpack("/store", name)
		before := b.tree("/store")
		g := goldenStore{b, m, nil}
		if dirs := m.Config.CommitLogDirs("/store"); len(dirs) > 1 {
			g.set = []string{"--set", "storePathCommitLog=" + strings.Join(dirs, ",")}
		}
		g.info()
		g.gets()
		g.query()
		g.offset()
		if d := golden.DiffTrees(before, b.tree("/store")); len(d) > 0 {
			t.Errorf("the directory has changed: %q", d)
		}
	})
}

type goldenStore struct {
	*bench
	m   *golden.Manifest
	set []string
}

// on runs a store command on the store.
func (g goldenStore) on(code int, verb string, args ...string) string {
	g.t.Helper()
	return g.must(code, slices.Concat([]string{"store", verb, "/store"}, args, g.set)...)
}

func (g goldenStore) info() {
	code := exitOK
	if _, err := g.fs.Stat("/store/abort"); err == nil {
		code = exitFound
	}
	if (g.m.Kind == golden.Crash) != (code == exitFound) {
		g.t.Errorf("a %s store and exit code %d", g.m.Kind, code)
	}
	g.on(code, "info")
	out := g.on(code, "info", "--json")
	store := jsonLines[infoJSON](g.t, strings.SplitAfter(out, "\n")[0])[0]
	if store.Type != "store" || store.CleanStop != (code == exitOK) || store.MinPhysicalOffset != int64(g.m.MinPhysicalOffset) ||
		store.MaxPhysicalOffset < int64(g.m.MaxPhysicalOffset) || len(g.m.Messages) > 0 && store.EarliestTimestamp != g.m.Messages[0].StoreTimestamp ||
		store.MappedFileSizeCommitLog != g.m.Config.CommitLogFileSize || store.Queues != strings.Count(out, `"type":"queue"`) {
		g.t.Errorf("info printed %+v", store)
	}
	for _, f := range store.IndexFiles {
		if f.MaxHashSlotNum != g.m.Config.IndexSlots || f.MaxIndexNum != g.m.Config.IndexEntries {
			g.t.Errorf("index file %+v, made with %d slots and %d entries", f, g.m.Config.IndexSlots, g.m.Config.IndexEntries)
		}
	}
}

// first returns the first message of a queue; nil when it has none that the
// log still holds.
func (g goldenStore) first(q golden.Queue) *golden.Message {
	switch {
	case len(q.BatchUnits) > 0:
		return g.m.Message(q.BatchUnits[0].Pos)
	case len(q.Units) > 0:
		return g.m.Message(q.Units[0].Physical)
	}
	return nil
}

func (g goldenStore) gets() {
	for _, q := range g.m.Queues {
		args := []string{q.Topic, fmt.Sprint(q.ID), "--json"}
		want := g.first(q)
		if want == nil {
			g.on(exitFound, "get", args...)
			continue
		}
		got := jsonLines[tool.Message](g.t, g.on(exitOK, "get", args...))
		if len(got) != 1 || got[0].CommitLogOffset != int64(want.PhysicalOffset) || got[0].MsgID != want.ID || got[0].BodyCRC != want.BodyCRC ||
			got[0].StoreTimestamp != want.StoreTimestamp || got[0].StoreSize != want.Size {
			g.t.Errorf("get %s/%d printed %+v, want the message at %d", q.Topic, q.ID, got, want.PhysicalOffset)
		}
	}
	g.on(exitFound, "get", "NoSuchTopic", "0")
}

func (g goldenStore) query() {
	for _, want := range slices.Backward(g.m.Messages) {
		keys := strings.Fields(want.Properties[message.PropKeys])
		if len(keys) == 0 || !want.SysFlag.Indexed() {
			continue
		}
		got := jsonLines[tool.Message](g.t, g.on(exitOK, "query", want.Topic, keys[0], "-n", "0", "--json"))
		if !slices.ContainsFunc(got, func(m tool.Message) bool { return m.CommitLogOffset == int64(want.PhysicalOffset) }) {
			g.t.Errorf("query %s %s did not print the message at %d", want.Topic, keys[0], want.PhysicalOffset)
		}
		g.on(exitOK, "query", want.Topic, keys[0], "-n", "1")
		break
	}
	g.on(exitFound, "query", "TopicTest", "no such key")
}

func (g goldenStore) offset() {
	for _, q := range g.m.Queues {
		if first := g.first(q); first != nil {
			got := jsonLines[offsetJSON](g.t, g.on(exitOK, "offset", q.Topic, fmt.Sprint(q.ID), "0", "--json"))
			want := offsetJSON{q.Topic, q.ID, 0, int64(q.Min), true}
			if len(got) != 1 || got[0] != want {
				g.t.Errorf("offset of time 0 printed %+v, want %+v", got, want)
			}
			if got := g.on(exitOK, "offset", q.Topic, fmt.Sprint(q.ID), "0", "--upper"); !strings.HasPrefix(got, fmt.Sprint(q.Min)+" (no message") {
				g.t.Errorf("offset --upper of time 0 printed %q", got)
			}
			break
		}
	}
	g.on(exitFound, "offset", "TopicTest", "99", "0")
}

// readable is a file system that its user has no permission to change.
type readable struct{ vfs.FS }

func (readable) denied() error { return fs.ErrPermission }

func (r readable) Open(name string, mode vfs.Mode) (vfs.File, error) {
	if mode != vfs.ReadOnly {
		return nil, r.denied()
	}
	return r.FS.Open(name, mode)
}

func (r readable) Create(string) (vfs.File, error) { return nil, r.denied() }
func (r readable) Lock(string) (vfs.Lock, error)   { return nil, r.denied() }
func (r readable) Remove(string) error             { return r.denied() }
func (r readable) Rename(string, string) error     { return r.denied() }
func (r readable) MkdirAll(string) error           { return r.denied() }
func (r readable) SyncDir(string) error            { return r.denied() }

// TestWithoutPermission: the commands that read need no right to write,
// whatever state the store is in.
func TestWithoutPermission(t *testing.T) {
	for _, name := range []string{"4.9.8-basic-clean", "4.9.8-crash-lag", "5.4.0-crash-middle"} {
		b := newBench(t)
		b.unpack("/store", name)
		b.fs = readable{b.fs}
		for _, args := range [][]string{
			{"get", "/store", "TopicTest", "0"}, {"query", "/store", "AaTopic", "Aa"}, {"offset", "/store", "TopicTest", "0", "0"},
			{"get", "/store", "TopicTest", "0", "--live"},
		} {
			b.must(exitOK, append([]string{"store"}, args...)...)
		}
		for _, verb := range []string{"info", "verify"} {
			if got := b.run("store", verb, "/store"); got.code > exitFound {
				t.Errorf("%s of %s: %+v", verb, name, got)
			}
		}
		if got := b.run("store", "put", "/store", "TopicTest", "--body", "x"); got.code != exitFailed || !strings.Contains(got.stderr, "permission denied") {
			t.Errorf("put: %+v", got)
		}
	}
}

// TestGoldenPut adds messages to stores of Java: one that is stopped cleanly
// and one that crashed. Afterwards they are in order, and new files are like
// those that are there.
func TestGoldenPut(t *testing.T) {
	for _, name := range []string{"4.9.8-basic-clean", "5.4.0-crash-torn", "5.4.0-broker-dir"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newBench(t)
			b.unpack("/store", name)
			next := golden.MustLoad(t, name).Queue("TopicTest", 1).Max
			sizes := sizesOf(b.tree("/store"))
			for i := range 40 {
				args := []string{"store", "put", "/store", "TopicTest", "--queue", "1", "--body", strings.Repeat("x", 40_000), "--json"}
				for k := range 60 { // so many that a new index file is needed
					args = append(args, "--key", fmt.Sprintf("new-%d-%d", i, k))
				}
				out := b.must(exitOK, args...)
				got := jsonLines[putJSON](t, out)[0]
				if got.QueueOffset != int64(next)+int64(i) || got.Status != "PUT_OK" || got.StoreTimestamp != testNow.UnixMilli() {
					t.Fatalf("put %d printed %+v", i, got)
				}
			}
			hit := jsonLines[tool.Message](t, b.must(exitOK, "store", "query", "/store", "TopicTest", "new-39-59", "--json"))
			if len(hit) != 1 || hit[0].QueueOffset != int64(next)+39 {
				t.Errorf("query printed %+v", hit)
			}
			b.must(exitOK, "store", "verify", "/store")
			b.must(exitOK, "store", "info", "/store")
			for kind, size := range sizesOf(b.tree("/store")) {
				if len(size) != 1 || size[0] != sizes[kind][0] {
					t.Errorf("files of %s have sizes %d, had %d", kind, size, sizes[kind])
				}
			}
		})
	}
}

// sizesOf lists the different sizes of the files of each kind that comes in
// sizes.
func sizesOf(files []golden.File) map[string][]int64 {
	sizes := make(map[string][]int64)
	for _, f := range files {
		kind, _, _ := strings.Cut(f.Path, "/")
		switch kind {
		case "commitlog", "consumequeue", "index":
			if !slices.Contains(sizes[kind], f.Size) {
				sizes[kind] = append(sizes[kind], f.Size)
			}
		}
	}
	return sizes
}

// TestOnDisk runs the commands once on the file system of the operating
// system, with files and directories that must not be written.
func TestOnDisk(t *testing.T) {
	b := &bench{t: t, fs: vfs.OS(), now: testNow}
	dir := golden.Unpack(t, "5.4.0-lmq")
	before := b.tree(dir)
	for _, args := range [][]string{
		{"info", dir}, {"get", dir, "TopicTest", "0", "-n", "0"}, {"query", dir, "TopicTest", "l0"}, {"offset", dir, "TopicTest", "0", "-1h"}, {"verify", dir},
	} {
		b.must(exitOK, append([]string{"store"}, args...)...)
	}
	if d := golden.DiffTrees(before, b.tree(dir)); len(d) > 0 {
		t.Errorf("the directory has changed: %q", d)
	}
	b.must(exitOK, "store", "put", dir, "TopicTest", "--body", "one more", "--set", "diskSpaceWarningLevelRatio=100")
	b.must(exitOK, "store", "verify", dir)
}
