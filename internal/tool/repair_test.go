package tool

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/mappedfile"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// storeOptions are the options that a command would have for a golden store.
func storeOptions(fsys vfs.FS, m *golden.Manifest, dir string) gantry.Options {
	o := gantry.Options{FS: fsys, Now: func() int64 { return 1_800_000_000_000 }, NoDelay: true, CleanInterval: -1, NoDelivery: true}
	if dirs := m.Config.CommitLogDirs(dir); len(dirs) > 1 {
		o.CommitLogDirs = dirs
	}
	return o
}

// TestRepairGolden: the copy of an undamaged store has the same log, byte for
// byte, and the same queues, and nothing to report.
func TestRepairGolden(t *testing.T) {
	eachStore(t, func(t *testing.T, name string) {
		b := loadBase(t, name)
		d := b.damager(t)
		was, _ := d.verify("/s", nil)
		before := d.tree("/s")
		var events []Event
		sum, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: d.options(), Event: func(e Event) { events = append(events, e) }})
		if err != nil {
			t.Fatal(err)
		}
		if diff := golden.DiffTrees(before, d.tree("/s")); len(diff) > 0 {
			t.Errorf("the source has changed: %q", diff)
		}
		after, _ := d.verify("/n", func(f check.Finding) { t.Log(f) })
		for r, sev := range after {
			if sev > check.Info && sev > was[r] {
				t.Errorf("copy: %s %s", sev, r)
			}
		}
		d.readAll(b, d.intact(b), false)
		damaged := strings.HasSuffix(name, "crash-torn") || strings.HasSuffix(name, "crash-middle") || name == "5.4.0-badtopic"
		if sum.Kept() == damaged || damaged == (len(events) == 0) {
			t.Errorf("%+v, %d events", sum, len(events))
		}
		if damaged {
			return
		}
		if b.m.Kind != golden.Crash {
			d.sameQueues()
			d.sameIndex()
		}
		copied := map[string]golden.File{}
		for _, f := range d.tree("/n") {
			copied[f.Path] = f
		}
		for _, f := range before {
			top, _, _ := strings.Cut(f.Path, "/")
			got, ok := copied[f.Path]
			switch {
			case slices.Contains([]string{"consumequeue", "batchconsumequeue", "consumequeue_ext", "index", "checkpoint", "abort", "abort.bak", "lock"}, top):
			case !ok && f.AllZero: // a log file made ahead
			case got != f:
				t.Errorf("%s is not as it was", f.Path)
			}
		}
	})
}

// TestCrashMiddle follows one damaged message through both ways of filling its
// place.
func TestCrashMiddle(t *testing.T) {
	b := loadBase(t, "5.4.0-crash-middle")
	const slot = 125 // of TopicTest/0
	for _, lost := range []Lost{LostGap, LostPlaceholder} {
		d := b.damager(t)
		var events []Event
		sum, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Lost: lost, Store: d.options(), Event: func(e Event) { events = append(events, e) }})
		if err != nil {
			t.Fatal(err)
		}
		if sum.Messages != 561 || sum.LostMessages != 1 || sum.Damaged != 1 || sum.DamagedBytes != 290 || sum.Placeholders != int64(lost) {
			t.Errorf("%+v", sum)
		}
		if len(events) != 2 || events[0].Type != "damage" || events[1].Type != "lost" || events[1].Topic != "TopicTest" || events[1].QueueOffset != slot ||
			!slices.Contains(events[1].Keys, "k125") || events[1].Became != []string{"gap", "placeholder"}[lost] {
			t.Errorf("events %+v", events)
		}
		// The report has the same, and the damaged bytes are kept in their place.
		var report []Event
		for line := range bytes.Lines(d.content("/n/" + reportName)) {
			var e Event
			d.must(json.Unmarshal(line, &e))
			report = append(report, e)
		}
		if fmt.Sprintf("%+v", *report[1].EventMessage) != fmt.Sprintf("%+v", *events[1].EventMessage) || len(report) != 2 {
			t.Errorf("report %+v", report)
		}
		at := events[0].Offset
		if want, got := d.get(events[0].File, at, 290), d.content("/n/" + events[0].Quarantine)[at:at+290]; !bytes.Equal(want, got) {
			t.Error("the damaged bytes are not in quarantine")
		}

		o := storeOptions(d.fs, b.m, "/n")
		s, err := gantry.Open(t.Context(), "/n", &o)
		if err != nil {
			t.Fatal(err)
		}
		res, err := s.Get("TopicTest", 0, slot, gantry.GetOptions{Max: 1})
		if err != nil || len(res.Records) != 1 {
			t.Fatalf("%v, %v", res.Status, err)
		}
		m, err := message.Decode(res.Records[0].Bytes)
		if err != nil {
			t.Fatal(err)
		}
		if value, marked := m.Properties.Get(PlaceholderProperty); lost == LostGap && (m.QueueOffset != slot+1 || marked) ||
			lost == LostPlaceholder && (m.QueueOffset != slot || !marked || len(m.Body) > 0 || int64(m.PhysicalOffset) != events[0].CommitLogOffset) {
			t.Errorf("offset %d at %d, mark %q", m.QueueOffset, m.PhysicalOffset, value)
		}
		d.must(s.Close())

		// Repairing it again changes nothing in the log and loses nothing more.
		sum, err = Repair(t.Context(), RepairOptions{Dir: "/n", Out: "/m", Lost: lost, Store: o})
		if err != nil || sum.Damaged > 0 || sum.Messages != 561 || sum.Placeholders > 0 {
			t.Errorf("again: %+v, %v", sum, err)
		}
		for _, f := range d.tree("/n") {
			if strings.HasPrefix(f.Path, "commitlog/") && !bytes.Equal(d.content("/n/"+f.Path), d.content("/m/"+f.Path)) {
				t.Errorf("%s differs after the second repair", f.Path)
			}
		}
	}
}

// TestRepairUnreadable: what the disk does not give is reported with its place,
// and costs no more than what is there.
func TestRepairUnreadable(t *testing.T) {
	b := loadBase(t, "4.9.4-broker-dir")
	for _, tt := range []struct{ name, file string }{
		{"log", "commitlog/00000000000000000000"}, {"queue", "consumequeue/TopicTest/0/00000000000000000000"},
		{"config", "config/topics.json"}, {"whole log file", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := b.damager(t)
			fsys := faultfs.New(d.fs)
			if tt.file == "" {
				fsys.Fail(faultfs.OpOpen, d.path("commitlog/00000000000000000000"), faultfs.ErrIO)
			} else {
				fsys.Inject(faultfs.Rule{Ops: faultfs.OpRead, Name: d.path(tt.file), Err: faultfs.ErrIO,
					Match: func(c faultfs.Call) bool { return c.Off <= 100 && 100 < c.Off+c.N }})
			}
			o := d.options()
			o.FS = fsys
			var bad []Event
			sum, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: o, Event: func(e Event) {
				if e.Type == "unreadable" {
					bad = append(bad, e)
				}
			}})
			if tt.file == "" { // the only one
				if err == nil && sum.Messages > 0 {
					t.Errorf("%+v", sum)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if tt.name != "queue" && (len(bad) != 1 || bad[0].File != tt.file || bad[0].Offset != 0 || bad[0].Length == 0 || sum.Unreadable != 1) {
				t.Errorf("events %+v", bad)
			}
			if tt.name == "log" && (sum.Messages < 150 || sum.DamagedBytes > 3*pageSize) {
				t.Errorf("%+v", sum)
			}
		})
	}
}

// TestRepairFails: whatever call fails while the copy is written, Repair says so
// and leaves nothing behind.
func TestRepairFails(t *testing.T) {
	b := loadBase(t, "5.4.0-lmq")
	for _, err := range []error{faultfs.ErrNoSpace, faultfs.ErrIO} {
		for k := 1; ; k += 1 + k/15 {
			d := b.damager(t)
			fsys := faultfs.New(d.fs)
			hit := fsys.Inject(faultfs.Rule{Ops: faultfs.OpCreate | faultfs.OpWrite | faultfs.OpTruncate | faultfs.OpMapWrite | faultfs.OpAllocate | faultfs.OpSync | faultfs.OpRename,
				Nth: k, Count: 1, Err: err})
			o := d.options()
			o.FS = fsys
			_, got := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: o})
			if hit.Hits() == 0 {
				if got != nil {
					t.Fatal(got)
				}
				break
			}
			if got == nil { // it was tried again
				d.verifyClean("/n")
				continue
			}
			if !errors.Is(got, err) {
				t.Fatalf("call %d fails with %v, and Repair gives %v", k, err, got)
			}
			if errors.Is(err, faultfs.ErrNoSpace) && !errors.Is(got, base.ErrDiskFull) {
				t.Errorf("call %d: %v", k, got)
			}
			for _, dir := range []string{"/n", "/n.partial"} {
				if _, err := d.fs.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("call %d: %s is left: %v", k, dir, err)
				}
			}
		}
	}
}

// TestRepairCrash: a crash leaves nothing under the name of the new store, or all
// of it.
func TestRepairCrash(t *testing.T) {
	b := loadBase(t, "5.4.0-lmq")
	for k := 0; ; k += 1 + k/10 {
		d := b.damager(t)
		fsys := faultfs.CrashAt(d.fs, k)
		o := d.options()
		o.FS = fsys
		_, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: o})
		for _, p := range []memfs.Policy{memfs.LoseUnsynced, memfs.LoseRandomPages} {
			after := &damager{t, b.m, d.fs.CrashClone(p, int64(k)), d.dirs}
			if _, serr := after.fs.Stat("/n"); errors.Is(serr, fs.ErrNotExist) {
				if err == nil {
					t.Fatal("the new store is gone after a crash")
				}
				continue
			}
			after.verifyClean("/n")
			after.readAll(b, after.intact(b), false)
			if t.Failed() {
				t.Fatalf("crash at change %d, %v", k, p)
			}
		}
		if !fsys.Crashed() {
			break
		}
	}
}

// TestRepairRefuses: no store, a place for the copy that will not do, an end.
func TestRepairRefuses(t *testing.T) {
	b := loadBase(t, "5.4.0-lmq")
	d := b.damager(t)
	d.must(d.fs.MkdirAll("/empty"))
	d.must(d.fs.MkdirAll("/full/x"))
	d.must(d.fs.MkdirAll("/again.partial"))
	d.write("../file", []byte("x"))
	for _, tt := range []struct {
		out string
		ok  bool
	}{
		{"/empty", true}, {"/full", false}, {"/again", false}, {"/file", false}, {"/s", false}, {"/s/new", false}, {"/t/../s/new", false},
	} {
		_, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: tt.out, Store: d.options()})
		if (err == nil) != tt.ok {
			t.Errorf("out %s: %v", tt.out, err)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Repair(ctx, RepairOptions{Dir: "/s", Out: "/c", Store: d.options()}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := d.fs.Stat("/c.partial"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after an interruption: %v", err)
	}
	d.must(d.fs.MkdirAll("/s/dledger-n0"))
	if _, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/l", Store: d.options()}); !errors.Is(err, errors.ErrUnsupported) {
		t.Error(err)
	}
}

// TestHalfMessages: the commit record of a lost half message still points at
// something that says what it was.
func TestHalfMessages(t *testing.T) {
	b := loadBase(t, "5.4.0-broker-dir")
	d := b.damager(t)
	n := 0
	for i := range b.m.Messages {
		if m := &b.m.Messages[i]; m.Topic == message.HalfTopic {
			file, off := d.find(int64(m.PhysicalOffset))
			d.flip(file, off+posBody)
			n++
		}
	}
	sum, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: d.options()})
	if err != nil || n == 0 || sum.LostMessages+sum.BehindEnd != int64(n) {
		t.Fatalf("%d half messages, %+v, %v", n, sum, err)
	}
	if found, _ := d.verify("/n", func(f check.Finding) { t.Log(f) }); found["log.prepared"] > check.Info {
		t.Error("commit records point nowhere")
	}
}

// TestRepairRest: what a server keeps beside its store comes along, what says
// nothing about a copy does not, and what is foreign is left out and named.
func TestRepairRest(t *testing.T) {
	b := loadBase(t, "5.4.0-lmq")
	d := b.damager(t)
	for _, name := range []string{"namesrv/kvConfig.json", "config/topics.json.bak", "scrub.json", "notes.txt"} {
		d.must(d.fs.MkdirAll(d.path(path.Dir(name))))
		if _, err := d.fs.Stat(d.path(name)); err == nil {
			d.must(d.fs.Remove(d.path(name)))
		}
		d.write(name, []byte("{}"))
	}
	var left []string
	_, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: d.options(), Event: func(e Event) { left = append(left, e.Type+" "+e.File) }})
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"leftOut notes.txt"}; !slices.Equal(left, want) {
		t.Errorf("told of %q, want %q", left, want)
	}
	for name, want := range map[string]bool{"namesrv/kvConfig.json": true, "config/topics.json.bak": true, "scrub.json": false, "notes.txt": false} {
		if _, err := d.fs.Stat("/n/" + name); (err == nil) != want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestPredictMissingFile: where a file of the log is missing, the dry run counts
// the records behind it, which opening would set aside.
func TestPredictMissingFile(t *testing.T) {
	b := loadBase(t, "5.4.0-basic-clean")
	d := b.damager(t)
	l := d.log()
	start, _ := mappedfile.ParseFileName(filepath.Base(l[2]))
	d.remove(l[1])
	want := int64(0)
	for i := range b.m.Messages {
		if int64(b.m.Messages[i].PhysicalOffset) >= start {
			want++
		}
	}
	o := d.options()
	o.Damage = gantry.QuarantineDamage
	p, err := Predict(t.Context(), "/s", o)
	if err != nil || p.Refused != nil {
		t.Fatal(err, p.Refused)
	}
	if p.SetAside != want {
		t.Errorf("%d records would be set aside, want %d", p.SetAside, want)
	}
}
