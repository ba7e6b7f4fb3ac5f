package gantry

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var mutate = flag.Bool("mutations", false, "break the code in each of the ways of the mutation table and run the test that has to notice")

// mutation is a deliberate bug and the test that has to fail with it.
type mutation struct {
	name     string
	file     string // below the module
	old, new string // old occurs once in it
	more     []edit // further places
	run      string // test, for -run
	also     string // instead of the root: the package of the test
}

type edit struct{ file, old, new string }

func (m *mutation) edits() []edit { return append([]edit{{m.file, m.old, m.new}}, m.more...) }

// mutations hold the argument of docs/crash-safety.md against the code: each is
// a step that somebody could leave out or do in the wrong order, and the tests
// must not let that pass.
var mutations = []mutation{
	{
		name: "a put is acknowledged before its flush", file: "put.go",
		old: "	err := s.log.WaitFlushed(ctx, res.PhysicalOffset+message.PhysicalOffset(res.Size))\n",
		new: "	var err error\n	s.log.RequestFlush()\n",
		run: "TestCrashAtEveryOperation/^sync$",
	},
	{
		name: "the flusher does not sync", file: "internal/mappedfile/flush.go",
		old: "		err = v.mapping.Flush(from, end-from)\n", new: "		_ = from\n",
		run: "TestCrashAtEveryOperation/^sync_group$",
	},
	{
		name: "the end of the flushed range is taken after the sync", file: "internal/mappedfile/flush.go",
		old: "	f.flushed.Store(end)\n", new: "	f.flushed.Store(f.Readable())\n",
		run: "TestFlushedIsWhatWasSynced", also: "./internal/commitlog",
	},
	{
		name: "the end is published before the bytes are written", file: "internal/commitlog/append.go",
		old: "	if err := f.Stage(recs); err != nil {\n		return 0, 0, err\n	}\n	a.Appended(phy, storeTime)\n",
		new: "	l.end.Store(int64(phy) + int64(size))\n	if err := f.Stage(recs); err != nil {\n		return 0, 0, err\n	}\n	a.Appended(phy, storeTime)\n",
		run: "TestPublishedAfterWritten", also: "./internal/commitlog",
	},
	{
		name: "a new log file's name is not synced", file: "internal/mappedfile/create.go",
		old: "	if err := q.sh.fs.SyncDir(f.dir); err != nil {\n		return err\n	}\n", new: "",
		run: "TestCrashAtEveryOperation/^sync$",
	},
	{
		name: "a new log file's length is not synced", file: "internal/mappedfile/create.go",
		old: "	if err := h.Sync(); err != nil {\n		return err\n	}\n	if err := q.sh.fs.SyncDir", new: "	if err := q.sh.fs.SyncDir",
		run: "TestCrashAtEveryOperation/^sync$",
	},
	{
		name: "files that are found are taken for durable", file: "internal/mappedfile/truncate.go",
		old: "	if err := q.settle(files[:keep+1], fresh); err != nil {\n", new: "	if err := q.settle(nil, nil); err != nil {\n",
		run: "TestKilledWhileAFileIsMade",
	},
	{
		name: "blocks are not reserved", file: "internal/mappedfile/create.go",
		old: "	switch err := h.Allocate(0, first); {\n", new: "	switch err := error(nil); {\n",
		run: "TestC37FileSystemFull",
	},
	{
		name: "a third log file is begun while the first is not flushed", file: "internal/commitlog/append.go",
		old: "		if l.files.Flushed() < f.Start() {\n", new: "		if false {\n",
		more: []edit{{"internal/mappedfile/roll.go", "		if files := q.Files(); len(files) > 1 && q.Flushed() < last.start {\n", "		if files := q.Files(); false {\n"}},
		run:  "TestErrBehind", also: "./internal/commitlog",
	},
	{
		name: "the tail is not zeroed", file: "internal/mappedfile/truncate.go",
		old: "	if !dirty {\n		return nil\n	}\n	err := func() error {", new: "	if true {\n		return nil\n	}\n	err := func() error {",
		run: "TestFault_L3_OldRecordsComeBack|TestC19TornTail",
	},
	{
		name: "the zeroed tail is not synced", file: "internal/mappedfile/truncate.go",
		old: "		return h.Sync()\n	}()", new: "		return nil\n	}()",
		run: "TestTruncateKeepsLength", also: "./internal/mappedfile",
	},
	{
		name: "the checkpoint comes before the log's flush", file: "flush.go",
		old: "	if err := s.log.Flush(ctx); err != nil {\n		return fmt.Errorf(\"flush the commit log: %w\", err)\n	}\n	if err := s.scheduler.save(delayed)", new: "	if err := s.scheduler.save(delayed)",
		run: "TestCrashAtEveryOperation/^(async_without_mmap|killed_async)$",
	},
	{
		name: "the checkpoint comes before the queues' sync", file: "flush.go",
		old: "	if err := s.queues.Sync(ctx); err != nil {\n		return fmt.Errorf(\"sync consume queues: %w\", err)\n	}\n", new: "",
		run: "TestCrashAtEveryOperation/^sync$",
	},
	{
		name: "the dispatch position is taken after the queues' sync", file: "flush.go",
		old: "	e := checkpoint.Ext{\n", new: "	s.dispatchMu.Lock()\n	at = s.dispatched\n	queueCount, queueHash = s.queues.Fingerprint()\n	s.dispatchMu.Unlock()\n	e := checkpoint.Ext{\n",
		run: "TestDispatchPositionComesFirst",
	},
	{
		name: "queue files are not synced", file: "internal/consumequeue/run.go",
		old: "		err = h.file.Sync()\n", new: "",
		run: "TestCrashAtEveryOperation/^sync$",
	},
	{
		name: "the index is not synced", file: "internal/indexfile/sync.go",
		old: "	if err := w.h.Sync(); err != nil {\n		return err\n	}\n	w.synced = sealed\n", new: "	w.synced = sealed\n",
		run: "TestCrashAtEveryOperation/^sync$",
	},
	{
		name: "the checkpoint is not synced before its other half", file: "internal/checkpoint/checkpoint.go",
		old: "	return f.sync()\n}\n\nfunc (f *File) sync() error {", new: "	return nil\n}\n\nfunc (f *File) sync() error {",
		run: "TestCrashDuringSave", also: "./internal/checkpoint",
	},
	{
		name: "the lock is taken after reading", file: "open.go",
		old: "	undo, err := s.enter()\n", new: "	if err := s.openFiles(); err != nil {\n		return err\n	}\n	if err := s.recover(ctx); err != nil {\n		return err\n	}\n	undo, err := s.enter()\n",
		run: "TestFault_L1_LockBeforeAnything",
	},
	{
		name: "abort comes after the changes", file: "recover.go",
		old: "	if err := checkpoint.CreateAbort(s.fs, s.dir, os.Getpid()); err != nil {\n		return fmt.Errorf(\"create the abort file: %w\", err)\n	}\n	if s.lock", new: "	defer func() { _ = checkpoint.CreateAbort(s.fs, s.dir, os.Getpid()) }()\n	if s.lock",
		run: "TestFault_L17_AbortFirst",
	},
	{
		name: "abort goes before the last checkpoint", file: "flush.go",
		old: "	err := s.finish()\n	if err == nil {\n		err = checkpoint.RemoveAbort(s.fs, s.dir)\n	}\n", new: "	_ = checkpoint.RemoveAbort(s.fs, s.dir)\n	err := s.finish()\n",
		run: "TestCrashAtEveryOperation/^async_without_mmap$",
	},
	{
		name: "a failed sync is tried again", file: "internal/mappedfile/flush.go",
		old: "		return done, f.sh.fail.set(fmt.Errorf(\"sync %s: %w\", f.path, err))\n", new: "		return done, fmt.Errorf(\"sync %s: %w\", f.path, err)\n",
		run: "TestFault_F1_FailedSyncIsFinal|TestFailureIsSaidEverywhere",
	},
	{
		name: "what recovery found is not written again", file: "recover.go",
		old: "	if !s.recovery.CleanStop && !s.opts.ReadOnly && plan.flushedTo >= 0 {\n", new: "	if false {\n",
		run: "TestFailedSyncThenKillThenPower",
	},
	{
		name: "what recovery found is not flushed", file: "internal/commitlog/log.go",
		old: "		l.files.MarkUnflushed(from)\n", new: "		from = 0\n",
		run: "TestCrashAtEveryOperation/^killed",
	},
	{
		name: "the queues' fingerprint is not compared", file: "recover.go",
		old: "		if count != plan.ext.QueueCount || hash != plan.ext.QueueHash {\n", new: "		if false && (count != 0 || hash != 0) {\n",
		run: "TestFault_L8_OneQueueMissing",
	},
	{
		name: "the body's checksum is not verified", file: "recover.go",
		old: "	return message.CheckOptions{BodyCRC: !s.opts.SkipCRC}\n", new: "	return message.CheckOptions{}\n",
		run: "TestCrashAtEveryOperation/^(sync|async)$|TestC23SectorLost",
	},
	{
		name: "a torn tail is taken for damage", file: "recover.go",
		old: "	if tail.PowerLoss && !s.recovery.CleanStop && tail.End >= plan.flushedTo {\n", new: "	if false {\n",
		run: "TestCrashAtEveryOperation/^async",
	},
	{
		name: "damage before the flushed position is taken for a torn tail", file: "recover.go",
		old: "	if tail.PowerLoss && !s.recovery.CleanStop && tail.End >= plan.flushedTo {\n", new: "	if tail.PowerLoss && !s.recovery.CleanStop {\n",
		run: "TestFault_L2_DamageInTheMiddle|TestC23SectorLost",
	},
	{
		name: "offsets of delayed messages are taken after the flush", file: "flush.go",
		old: "	if err := s.scheduler.save(delayed); err != nil {\n", new: "	_ = delayed\n	if err := s.scheduler.save(s.scheduler.snapshot()); err != nil {\n",
		run: "TestDelayOffsetsBehindDeliveries",
	},
	{
		name: "the file of offsets is not synced before it is renamed", file: "internal/javajson/javajson.go",
		old: "	if err == nil {\n		err = f.Sync()\n	}\n", new: "",
		run: "TestSaveCrash", also: "./internal/javajson",
	},
	{
		name: "retention does not wait for the dispatcher", file: "retention.go",
		old: "		if s.dispatchedPosition() < next.Start {\n", new: "		if false {\n",
		run: "TestFault_D9_CleaningWaitsForDispatch",
	},
	{
		name: "removed log files' names are not synced one by one", file: "internal/mappedfile/file.go",
		old: "	if err := f.sh.fs.SyncDir(f.dir); err != nil {\n		return fmt.Errorf(\"sync directory after removing %s: %w\", f.path, err)\n	}\n", new: "",
		run: "TestCrashAtEveryOperation/^retention",
	},
	{
		name: "units that could not be written are forgotten", file: "internal/consumequeue/table.go",
		old: "			t.pending.enqueue(q)\n			note(err)\n", new: "			note(err)\n",
		run: "TestFault_D3_D4_QueueWriteErrors",
	},
	{
		name: "a hole in the ring is not noticed", file: "dispatch.go",
		old: "		case it != nil && it.physical == s.dispatched.to && it.end() <= limit:\n", new: "		case it != nil && it.end() <= limit:\n",
		run: "TestDispatchRingOverflows",
	},
}

// TestMutationsApply: the table names code that is there, and tests that are.
func TestMutationsApply(t *testing.T) {
	names := testNames(t)
	for _, m := range mutations {
		for _, run := range strings.Split(m.run, "|") {
			name, _, _ := strings.Cut(run, "/")
			if strings.HasPrefix(name, "Test") && !names[strings.TrimPrefix(filepath.Base(m.also), ".")][name] {
				t.Errorf("%s: there is no test %s", m.name, name)
			}
		}
	}
	for _, m := range mutations {
		for _, e := range m.edits() {
			text, err := os.ReadFile(e.file)
			if err != nil {
				t.Errorf("%s: %v", m.name, err)
				continue
			}
			if n := strings.Count(string(text), e.old); n != 1 {
				t.Errorf("%s: %s has what is to be replaced %d times", m.name, e.file, n)
			}
		}
	}
}

// TestMutations breaks the code in each way and expects a test to fail. It takes
// some ten minutes: go test -run 'TestMutations$' -mutations -v -timeout 2h
func TestMutations(t *testing.T) {
	if !*mutate {
		t.Skip("takes some ten minutes; run it with -mutations")
	}
	root, err := os.Getwd()
	must(t, err)
	for _, m := range mutations {
		t.Run(strings.ReplaceAll(m.name, " ", "_"), func(t *testing.T) {
			dir := t.TempDir()
			replace := make(map[string]string)
			for i, e := range m.edits() {
				original := filepath.Join(root, e.file)
				text, err := os.ReadFile(original)
				must(t, err)
				broken := filepath.Join(dir, fmt.Sprintf("broken%d.go", i))
				must(t, os.WriteFile(broken, bytes.Replace(text, []byte(e.old), []byte(e.new), 1), 0o600))
				replace[original] = broken
			}
			overlay := filepath.Join(dir, "overlay.json")
			data, err := json.Marshal(map[string]any{"Replace": replace})
			must(t, err)
			must(t, os.WriteFile(overlay, data, 0o600))

			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
			defer cancel()
			args := []string{"test", "-count=1", "-overlay", overlay, "-run", m.run, "-timeout", "5m"}
			if m.also != "" {
				args = append(args, m.also)
			} else {
				// 2 000 images of each scenario that the pattern names.
				args = append(args, ".", "-crash.long", fmt.Sprintf("-crash.states=%d", 2000*len(crashScenarios)))
			}
			cmd := exec.CommandContext(ctx, "go", args...)
			cmd.Dir = root
			out, err := cmd.CombinedOutput()
			if err == nil {
				t.Fatalf("nobody noticed: go %s", strings.Join(args, " "))
			}
			said := failureLines(string(out))
			if len(said) == 0 {
				t.Fatalf("no test failed, but: %v\n%s", err, clip(string(out)))
			}
			t.Logf("noticed by %s", strings.Join(said, "\n"))
		})
	}
}

// failureLines are the name of the first test that failed and what it said
// first.
func failureLines(out string) []string {
	var name string
	var said []string
	for l := range strings.Lines(out) {
		l = strings.TrimSpace(l)
		switch {
		case strings.HasPrefix(l, "panic: test timed out"):
			return nil // a busy machine, perhaps
		case name == "" && (strings.HasPrefix(l, "--- FAIL") || strings.HasPrefix(l, "panic:")):
			name = l
		case name != "" && len(said) < 2 && strings.Contains(l, "_test.go:") && !strings.Contains(l, "-crash.seed="):
			said = append(said, l[:min(len(l), 300)])
		}
	}
	if name == "" {
		return nil
	}
	return append([]string{name}, said...)
}
