package check_test

import (
	"context"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
)

// goldenFindings are the findings above Info that the golden stores must give,
// by the end of their names. Stores that are not here must give none.
var goldenFindings = map[string]map[string]check.Severity{
	// Damaged on purpose.
	"-crash-torn": {
		"log.torn":    check.Warning, // half of the last record is zero
		"queue.ahead": check.Warning, // its unit
		"index.ahead": check.Warning, // its keys
	},
	"-crash-middle": {"log.bodycrc": check.Error},
	// Faults of Java that the stores were made to show.
	"5.4.0-badtopic": {
		"log.topic":     check.Error,   // 128 bytes of topic in a version 1 record
		"queue.missing": check.Warning, // what Java never dispatched behind it
	},
	"5.4.0-lmqgap":  {"queue.owner": check.Warning},   // units in lower slots
	"4.9.8-expired": {"queue.expired": check.Warning}, // queues that 4.9 misreads
}

func wantGolden(name string) map[string]check.Severity {
	for suffix, want := range goldenFindings {
		if strings.HasSuffix(name, suffix) {
			return want
		}
	}
	return map[string]check.Severity{}
}

func logDirs(m *golden.Manifest) []string {
	if m.Config.CommitLogPaths == "" {
		return nil
	}
	return strings.Split(m.Config.CommitLogPaths, ",")
}

// runGolden checks a store and returns the worst severity above Info of each
// rule.
func runGolden(t *testing.T, o check.Options) (map[string]check.Severity, check.Summary) {
	t.Helper()
	got := map[string]check.Severity{}
	sum, err := check.Run(context.Background(), o, func(f check.Finding) {
		if f.Severity > check.Info {
			got[f.Rule] = max(got[f.Rule], f.Severity)
			t.Log(f)
		}
		if f.Detail == "" || f.Meaning == "" || f.Repair == "" || f.Count < 1 || f.Offset < 0 || filepath.IsAbs(f.File) {
			t.Errorf("incomplete finding %+v", f)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	return got, sum
}

// TestGolden checks every golden store, with all settings given and with none.
func TestGolden(t *testing.T) {
	golden.Each(t, func(t *testing.T, name string) {
		m := golden.MustLoad(t, name)
		fs := memfs.New()
		if err := golden.UnpackTo(fs, "/s", name); err != nil {
			t.Fatal(err)
		}
		before, err := golden.Tree(fs, "/s")
		if err != nil {
			t.Fatal(err)
		}
		want := wantGolden(name)
		inferred := check.Options{FS: fs, Dir: "/s", Level: check.Deep, CommitLogDirs: logDirs(m)}
		got, sum := runGolden(t, inferred)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("findings at level deep (-want +got):\n%s", d)
		}
		compareSummary(t, m, sum)

		given := inferred
		given.CommitLogFileSize, given.ConsumeQueueFileSize = m.Config.CommitLogFileSize, m.Config.ConsumeQueueFileSize
		given.IndexSlots, given.IndexEntries = m.Config.IndexSlots, m.Config.IndexEntries
		given.DelayLevels = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
		given.Level, given.Workers = check.Full, 1
		got, full := runGolden(t, given)
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("findings at level full with all settings given (-want +got):\n%s", d)
		}
		if full.Messages != sum.Messages || full.LogEnd != sum.LogEnd || full.Units != sum.Units {
			t.Errorf("level full says %+v, level deep %+v", full, sum)
		}

		// The quick level sees ends only: never more than the others.
		quick := inferred
		quick.Level = check.Quick
		got, sum = runGolden(t, quick)
		maps.DeleteFunc(got, func(rule string, sev check.Severity) bool { return want[rule] >= sev })
		if len(got) > 0 {
			t.Errorf("level quick finds more: %v", got)
		}
		if sum.LogMin != full.LogMin || sum.LogEnd != full.LogEnd {
			t.Errorf("level quick: log from %d to %d, want %d to %d", sum.LogMin, sum.LogEnd, full.LogMin, full.LogEnd)
		}

		after, err := golden.Tree(fs, "/s")
		if err != nil {
			t.Fatal(err)
		}
		if d := golden.DiffTrees(before, after); len(d) > 0 {
			t.Errorf("checking changed the store: %q", d)
		}
	})
}

// compareSummary compares what was counted with what Java counted. Of stores
// that Java recovers by cutting, or cannot read, the check knows more.
func compareSummary(t *testing.T, m *golden.Manifest, sum check.Summary) {
	t.Helper()
	switch m.Store {
	case "crash-middle", "badtopic":
		if sum.Damaged != 1 || sum.LogEnd <= m.MaxPhysicalOffset || sum.Messages <= int64(len(m.Messages)) {
			t.Errorf("%d messages up to %d and %d damaged; Java keeps %d up to %d", sum.Messages, sum.LogEnd, sum.Damaged, len(m.Messages), m.MaxPhysicalOffset)
		}
		return
	}
	if sum.LogMin != m.MinPhysicalOffset || sum.LogEnd != m.MaxPhysicalOffset {
		t.Errorf("log from %d to %d, Java says %d to %d", sum.LogMin, sum.LogEnd, m.MinPhysicalOffset, m.MaxPhysicalOffset)
	}
	if sum.Messages != int64(len(m.Messages)) {
		t.Errorf("%d messages, Java says %d", sum.Messages, len(m.Messages))
	}
	if n := len(m.Messages); n > 0 && (sum.FirstStoreTime != m.Messages[0].StoreTimestamp || sum.LastStoreTime != m.Messages[n-1].StoreTimestamp) {
		t.Errorf("store times %d to %d, Java says %d to %d", sum.FirstStoreTime, sum.LastStoreTime, m.Messages[0].StoreTimestamp, m.Messages[n-1].StoreTimestamp)
	}
	if crashed := m.Kind == golden.Crash; sum.Abort != crashed || sum.InUse {
		t.Errorf("abort %v, in use %v; the store is %s", sum.Abort, sum.InUse, m.Kind)
	}
	if want := m.Kind != golden.Crash && sum.Warnings+sum.Errors == 0; sum.Clean != want {
		t.Errorf("clean %v, want %v", sum.Clean, want)
	}
}
