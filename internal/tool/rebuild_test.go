package tool

import (
	"bytes"
	"errors"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestRebuildGolden makes queues and index of every store anew: in the clean
// ones they are, byte for byte, what Java had built.
func TestRebuildGolden(t *testing.T) {
	eachStore(t, func(t *testing.T, name string) {
		b := loadBase(t, name)
		d := b.damager(t)
		clean := b.m.Kind != golden.Crash
		sum, err := Rebuild(t.Context(), RebuildOptions{Dir: "/s", Out: "/n", Store: d.options(), Event: func(e Event) { t.Logf("%+v %+v", e, e.EventMessage) }})
		if strings.HasSuffix(name, "crash-middle") || name == "5.4.0-badtopic" {
			if _, serr := d.fs.Stat("/n"); !errors.Is(err, base.ErrCorrupt) || !errors.Is(serr, fs.ErrNotExist) {
				t.Errorf("a damaged log gives %v, and %v", err, serr)
			}
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", sum)
		if sum.Misplaced > 0 {
			t.Errorf("%d records without a place", sum.Misplaced)
		}
		was, _ := d.verify("/s", nil)
		after, _ := d.verify("/n", func(f check.Finding) { t.Log(f) })
		for r, sev := range after {
			if sev > check.Info && sev > was[r] {
				t.Errorf("rebuilt store: %s %s", sev, r)
			}
		}
		if clean {
			d.sameQueues()
			d.sameIndex()
		}
		o := storeOptions(d.fs, d.m, "/n")
		s, err := gantry.Open(t.Context(), "/n", &o)
		if err != nil {
			t.Fatal(err)
		}
		if r := s.Recovery(); !r.CleanStop || r.ForeignWriter || r.Replayed > 0 || r.Truncated > 0 || len(r.Repaired) > 0 {
			t.Errorf("opening the rebuilt store: %+v", r)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
}

// content reads a file wherever it lies.
func (d *damager) content(name string) []byte {
	d.tb.Helper()
	f, err := d.fs.Open(name, 0)
	d.must(err)
	defer f.Close()
	n, err := f.Size()
	d.must(err)
	p := make([]byte, n)
	if _, err := f.ReadAt(p, 0); n > 0 {
		d.must(err)
	}
	return p
}

// sameQueues compares the queues of the store with the rebuilt ones.
func (d *damager) sameQueues() {
	t := d.tb
	for _, root := range queueDirs {
		want := d.files(root)
		for _, f := range want {
			a := d.content(d.path(f))
			b, err := d.fs.Stat(filepath.Join("/n", f))
			if err != nil {
				if !bytes.Equal(a, make([]byte, len(a))) {
					t.Errorf("%s: %v", f, err)
				}
				continue
			}
			if b.Size != int64(len(a)) {
				t.Errorf("%s: %d bytes, want %d", f, b.Size, len(a))
			}
			got := d.content(filepath.Join("/n", f))
			if d.has(queueExtDir) {
				a, got = d.plain("/s", f, a), d.plain("/n", f, got)
			}
			unit := unitSizeOf(consumequeue.Simple)
			if root == queueDirs[consumequeue.Batch] {
				unit = consumequeue.BatchUnitSize
			}
			for i := int64(0); i+unit <= int64(len(a)) && i+unit <= int64(len(got)); i += unit {
				if !bytes.Equal(a[i:i+unit], got[i:i+unit]) {
					t.Errorf("%s: unit %d is\n%x, want\n%x", f, i/unit, got[i:i+unit], a[i:i+unit])
					break
				}
			}
		}
	}
}

// plain replaces addresses of extension units by the tags codes in them: the
// units have bit maps that the log does not tell.
func (d *damager) plain(root, file string, p []byte) []byte {
	d.tb.Helper()
	table, _, err := consumequeue.OpenTable(d.tb.Context(), consumequeue.Options{FS: d.fs, Dir: root + "/" + queueDirs[0], ExtDir: root + "/" + queueExtDir}, 1<<62)
	d.must(err)
	defer table.Discard()
	parts := strings.Split(file, "/")
	var q *consumequeue.Queue
	for x := range table.All() {
		if x.String() == parts[1]+"/"+parts[2] {
			q = x
		}
	}
	p = bytes.Clone(p)
	for i := 0; i+unitSize <= len(p); i += unitSize {
		u, err := consumequeue.DecodeUnit(p[i:])
		d.must(err)
		if consumequeue.IsExtAddress(u.Tags) {
			x, err := q.GetExt(u.Tags)
			d.must(err)
			u.Tags = x.Tags ^ message.TagsCode(x.StoreTime<<20)
			copy(p[i:], consumequeue.AppendUnit(nil, u))
		}
	}
	return p
}

// sameIndex compares the index files in their order; names are times of day.
func (d *damager) sameIndex() {
	t := d.tb
	want := d.files("index")
	entries, _ := d.fs.List("/n/index")
	if b := d.m.MinPhysicalOffset; b > 0 && len(want) != len(entries) {
		return // files begin elsewhere: the log does not reach back
	}
	if len(want) != len(entries) {
		t.Errorf("%d index files, want %d", len(entries), len(want))
		return
	}
	for i, f := range want {
		a, b := d.content(d.path(f)), d.content("/n/index/"+entries[i].Name)
		if d.m.MinPhysicalOffset > 0 && i == 0 {
			continue
		}
		if !bytes.Equal(a, b) {
			t.Errorf("index file %d differs", i)
		}
	}
}

// TestRebuildInPlace replaces queues and index of a store, and survives a crash
// at every change.
func TestRebuildInPlace(t *testing.T) {
	b := loadBase(t, "5.4.0-lmq")
	for _, topic := range []string{"", "TopicTest"} {
		for k := 0; ; k += 1 + k/20 {
			d := b.damager(t)
			fsys := faultfs.CrashAt(d.fs, k)
			o := d.options()
			o.FS = fsys
			ro := RebuildOptions{Dir: "/s", Topic: topic, Store: o}
			_, err := Rebuild(t.Context(), ro)
			if !fsys.Crashed() {
				if err != nil {
					t.Fatal(err)
				}
				d.verifyClean("/s")
				d.reopen(false)
				if d.has(stagingDir) {
					t.Error("the staging directory is left")
				}
				break
			}
			if err == nil {
				t.Fatalf("crash at change %d: no error", k)
			}
			for _, p := range []memfs.Policy{memfs.LoseUnsynced, memfs.KeepAll, memfs.LoseRandomPages} {
				after := &damager{t, b.m, d.fs.CrashClone(p, int64(k)), d.dirs}
				after.reopen(true)
				if t.Failed() {
					t.Fatalf("crash at change %d, %v", k, p)
				}
				again := &damager{t, b.m, d.fs.CrashClone(p, int64(k)), d.dirs}
				ro.Store.FS = again.fs
				if _, err := Rebuild(t.Context(), ro); err != nil {
					t.Fatalf("again after a crash at change %d, %v: %v", k, p, err)
				}
				again.verifyClean("/s")
				if t.Failed() {
					t.Fatalf("again after a crash at change %d, %v", k, p)
				}
			}
		}
	}
}

func (d *damager) verifyClean(dir string) {
	d.tb.Helper()
	found, _ := d.verify(dir, func(f check.Finding) {
		if f.Severity > check.Info {
			d.tb.Error(f)
		}
	})
	_ = found
}

// reopen opens the store and reads all of it.
func (d *damager) reopen(recovered bool) {
	d.tb.Helper()
	o := d.options()
	s, err := gantry.Open(d.tb.Context(), "/s", &o)
	if err != nil {
		d.tb.Fatal(err)
	}
	defer s.Close()
	if r := s.Recovery(); !recovered && (r.Replayed > 0 || len(r.Repaired) > 0) && !r.ForeignWriter {
		d.tb.Errorf("opening: %+v", r)
	}
	for i := range d.m.Messages {
		m := &d.m.Messages[i]
		res, err := s.Get(m.Topic, m.QueueID, m.QueueOffset, gantry.GetOptions{Max: 1})
		if err != nil || len(res.Records) != 1 {
			d.tb.Errorf("get %s/%d offset %d: %v, %v", m.Topic, m.QueueID, m.QueueOffset, res.Status, err)
			return
		}
	}
}

// TestRebuildRefuses: a store that is held or was not closed is not changed.
func TestRebuildRefuses(t *testing.T) {
	b := loadBase(t, "5.4.0-lmq")
	t.Run("held", func(t *testing.T) {
		d := b.damager(t)
		lock, err := checkpoint.TakeLock(d.fs, "/s")
		d.must(err)
		defer lock.Close()
		for _, out := range []string{"", "/n"} {
			if _, err := Rebuild(t.Context(), RebuildOptions{Dir: "/s", Out: out, Store: d.options()}); !errors.Is(err, gantry.ErrLocked) {
				t.Errorf("out %q: %v", out, err)
			}
		}
		if _, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: d.options()}); !errors.Is(err, gantry.ErrLocked) {
			t.Errorf("repair: %v", err)
		}
	})
	t.Run("unclean", func(t *testing.T) {
		d := b.damager(t)
		d.write("abort", nil)
		before := d.tree("/s")
		if _, err := Rebuild(t.Context(), RebuildOptions{Dir: "/s", Store: d.options()}); !errors.Is(err, errUnclean) {
			t.Error(err)
		}
		if diff := golden.DiffTrees(before, d.tree("/s")); len(diff) > 0 {
			t.Errorf("changed: %q", diff)
		}
		if _, err := Rebuild(t.Context(), RebuildOptions{Dir: "/s", Out: "/n", Store: d.options()}); err != nil {
			t.Errorf("a copy of an unclean store: %v", err)
		}
		d.verifyClean("/n")
	})
	t.Run("index of one topic", func(t *testing.T) {
		d := b.damager(t)
		if _, err := Rebuild(t.Context(), RebuildOptions{Dir: "/s", Index: true, Topic: "T", Store: d.options()}); err == nil {
			t.Error("no error")
		}
	})
}

// TestRebuildOne: only what was asked for is made, the rest is copied.
func TestRebuildOne(t *testing.T) {
	b := loadBase(t, "5.4.0-lmq")
	for _, tt := range []struct {
		name   string
		o      RebuildOptions
		damage func(d *damager)
	}{
		{"queues", RebuildOptions{Queues: true}, func(d *damager) { d.remove("consumequeue") }},
		{"index", RebuildOptions{Index: true}, func(d *damager) { d.remove("index") }},
		{"topic", RebuildOptions{Topic: "TopicTest"}, func(d *damager) { d.remove("consumequeue/TopicTest") }},
		{"light queue", RebuildOptions{Topic: "%LMQ%a"}, func(d *damager) { d.remove("consumequeue/%LMQ%a") }},
	} {
		for _, inPlace := range []bool{false, true} {
			t.Run(tt.name, func(t *testing.T) {
				d := b.damager(t)
				tt.damage(d)
				o := tt.o
				o.Dir, o.Store = "/s", d.options()
				o.Store.ConsumeQueueFileSize = b.m.Config.ConsumeQueueFileSize // nothing may be there to tell
				dir := "/s"
				if !inPlace {
					o.Out, dir = "/n", "/n"
				}
				if _, err := Rebuild(t.Context(), o); err != nil {
					t.Fatal(err)
				}
				d.verifyClean(dir)
				undamaged := &damager{t, b.m, b.fs, d.dirs}
				for _, f := range undamaged.files("consumequeue") {
					if !bytes.Equal(undamaged.content("/s/"+f), d.content(dir+"/"+f)) {
						t.Errorf("%s differs", f)
					}
				}
				if len(d.files("index")) == 0 && inPlace {
					t.Error("no index")
				}
			})
		}
	}
}
