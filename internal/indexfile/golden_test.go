package indexfile

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// goldenPuts is what a store of this manifest dispatches to the index.
func goldenPuts(m *golden.Manifest, version string) []put {
	withTags := version >= "5.4.0"
	var ps []put
	for _, msg := range m.Messages {
		if msg.Undecodable {
			continue
		}
		hs := message.IndexHashes(nil, msg.Topic, message.Properties(msg.RawProperties), msg.SysFlag, withTags)
		if len(hs) > 0 {
			ps = append(ps, put{msg.PhysicalOffset, msg.StoreTimestamp, hs})
		}
	}
	return ps
}

// goldenIndex unpacks a store and returns its index files as Java orders them,
// nil when there are none.
func goldenIndex(t *testing.T, name string) (*memfs.FS, string, []string) {
	t.Helper()
	fs := memfs.NewCrashable(1)
	if err := golden.UnpackTo(fs, "/s", name); err != nil {
		t.Fatal(err)
	}
	dir := "/s/index"
	entries, err := fs.List(dir)
	if err != nil {
		return fs, dir, nil
	}
	var files []string
	for _, e := range entries {
		if isFileName(e.Name) {
			files = append(files, filepath.Join(dir, e.Name))
		}
	}
	return fs, dir, files
}

// The same messages give the same bytes as Java wrote, in every file but for
// its name. A count of 1 in an unused file is written by Java when it closes.
func TestGoldenBytesOfJava(t *testing.T) {
	// The index of these does not begin with the log: Java deleted log files,
	// or it deleted and rebuilt index files after a crash.
	partial := []string{"expired", "preblank", "crash-middle", "badtopic"}
	var compared atomic.Int32
	t.Cleanup(func() {
		if n := compared.Load(); n < 80 {
			t.Errorf("only %d files compared", n)
		}
	})
	golden.Each(t, func(t *testing.T, name string) {
		version, kind := golden.SplitName(name)
		jfs, _, files := goldenIndex(t, name)
		if len(files) == 0 || slices.Contains(partial, kind) {
			return
		}
		m := golden.MustLoad(t, name)
		e := newEnv(memfs.New(), m.Config.IndexSlots, m.Config.IndexEntries)
		x, _, _ := e.open(t, everything(true))
		mustPut(t, x, goldenPuts(m, version)...)
		ours := x.Files()
		for i, path := range files {
			want := readFile(t, jfs, path)
			h := decodeHeader((*[headerSize]byte)(want))
			if h.Count == firstEntry {
				putInt32((*[slotSize]byte)(want[posCount:]), 0)
			}
			if !h.HasEntries() && i == len(ours) {
				continue // Java makes the next file when it closes
			}
			if i >= len(ours) {
				t.Fatalf("Java has %d files, we have %d", len(files), len(ours))
			}
			got := readFile(t, e.fs, ours[i].Path)
			if kind == "crash-lag" && i == len(files)-1 {
				// The archive's index is older than its log.
				n := h.Count
				g := ours[i].Geometry
				got, want = got[g.entryPos(1):g.entryPos(n)], want[g.entryPos(1):g.entryPos(n)]
			} else if strings.HasPrefix(kind, "crash-torn") && i == len(files)-1 {
				// The index knows the record that was torn afterwards.
				n := ours[i].Header.Count
				g := ours[i].Geometry
				got, want = got[g.entryPos(1):g.entryPos(n)], want[g.entryPos(1):g.entryPos(n)]
			}
			compared.Add(1)
			if !bytes.Equal(got, want) {
				t.Errorf("%s differs, our header %+v, Java's %+v", path, ours[i].Header, h)
			}
		}
	})
}

// Opening a Java index changes nothing when it was closed in order, whatever
// geometry is configured, and every key query of the manifest gives what Java
// gave, and more where Java misses messages.
func TestGoldenQueries(t *testing.T) {
	golden.Each(t, func(t *testing.T, name string) {
		version, _ := golden.SplitName(name)
		fs, dir, files := goldenIndex(t, name)
		m := golden.MustLoad(t, name)
		if len(files) == 0 || m.Kind == golden.Crash {
			return
		}
		before := map[string][]byte{}
		for _, f := range files {
			before[f] = readFile(t, fs, f)
		}
		for _, g := range []Geometry{{m.Config.IndexSlots, m.Config.IndexEntries}, {0, 0}, {3, 9}} {
			e := newEnv(fs, g.Slots, g.Entries)
			e.opt.Dir = dir
			x, from, rep := e.open(t, OpenState{Clean: true, LogMin: m.MinPhysicalOffset, LogEnd: m.MaxPhysicalOffset})
			if g == e.opt.geometry() && len(rep.Repairs) > 0 && g.Slots == m.Config.IndexSlots {
				t.Errorf("repairs: %+v", rep.Repairs)
			}
			ps := goldenPuts(m, version)
			if len(ps) > 0 && from != ps[len(ps)-1].phy {
				t.Errorf("replay from %d, want the last message with keys, %d", from, ps[len(ps)-1].phy)
			}
			for _, q := range m.KeyQueries {
				if q.IndexError != "" {
					continue
				}
				hash := message.IndexKeyHash(q.Topic, q.Key)
				got := lookup(t, x, hash, q.Begin, q.End)
				java := slices.Compact(slices.Clone([]message.PhysicalOffset(q.IndexOffsets)))
				for _, phy := range java {
					if !slices.Contains(got, phy) {
						t.Errorf("query %+v: got %v", q, got)
						break
					}
				}
				var want []message.PhysicalOffset // exact, by the records
				for _, p := range slices.Backward(ps) {
					if slices.Contains(p.hashes, hash) && p.time >= q.Begin && p.time <= q.End {
						want = append(want, p.phy)
					}
				}
				got = slices.DeleteFunc(got, func(phy message.PhysicalOffset) bool {
					i := slices.IndexFunc(ps, func(p put) bool { return p.phy == phy })
					return i < 0 || ps[i].time < q.Begin || ps[i].time > q.End
				})
				if !slices.Equal(want, got) {
					t.Errorf("query %+v: got %v, want %v", q, got, want)
				}
			}
			if n := len(e.damage); n != 0 {
				t.Errorf("damage in %v", e.damage)
			}
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				if !bytes.Equal(before[f], readFile(t, fs, f)) {
					t.Errorf("%s was changed", f)
				}
			}
		}
	})
}

// After a crash of Java the index is complete again once the log was replayed
// from where Open says, and equal to what Java would hold without the crash.
func TestGoldenCrash(t *testing.T) {
	golden.Each(t, func(t *testing.T, name string) {
		version, kind := golden.SplitName(name)
		fs, dir, files := goldenIndex(t, name)
		m := golden.MustLoad(t, name)
		if len(files) == 0 || m.Kind != golden.Crash {
			return
		}
		var raw vfs.FS = fs
		e := newEnv(raw, m.Config.IndexSlots, m.Config.IndexEntries)
		e.opt.Dir = dir
		x, from, _ := e.open(t, OpenState{LogMin: m.MinPhysicalOffset, LogEnd: m.MaxPhysicalOffset, FlushedTime: m.Checkpoint.IndexMsgTimestamp})
		ps := goldenPuts(m, version)
		for _, p := range ps {
			if p.phy >= from {
				mustPut(t, x, p)
			}
		}
		verify(t, x, ps)
		if n := len(e.damage); n != 0 {
			t.Errorf("damage in %v", e.damage)
		}
		e2 := newEnv(memfs.New(), m.Config.IndexSlots, m.Config.IndexEntries)
		y, _, _ := e2.open(t, everything(true))
		mustPut(t, y, ps...)
		a, b := x.Files(), y.Files()
		if len(a) != len(b) {
			t.Fatalf("%d files, want %d", len(a), len(b))
		}
		for i := range a {
			if !bytes.Equal(readFile(t, fs, a[i].Path), readFile(t, e2.fs, b[i].Path)) {
				t.Errorf("%s differs: %+v, want %+v", a[i].Path, a[i].Header, b[i].Header)
			}
		}
		t.Logf("%s: replayed from %d of %d", kind, from, m.MaxPhysicalOffset)
	})
}
