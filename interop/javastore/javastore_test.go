//go:build interop

package javastore

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/message"
)

// TestReadGolden lets Java read stores that Java wrote, and compares with
// their manifests: what the driver says of a store is what Java holds. It also
// shows that a later version opens a store of an earlier one.
func TestReadGolden(t *testing.T) {
	for _, tc := range []struct{ version, store string }{
		{"4.9.4", "4.9.4-basic-clean"},
		{"4.9.4", "4.9.4-crash-torn"},
		{"5.1.4", "5.1.4-basic-clean"},
		{"5.1.4", "5.1.4-longretry"},
		{"5.4.0", "5.4.0-basic-clean"},
		{"5.4.0", "5.4.0-crash-flushed"},
		{"5.4.0", "5.4.0-batchcq"},
		{"5.4.0", "5.4.0-cqext"},
		{"5.4.0", "5.4.0-multipath"},
		{"5.4.0", "4.9.4-basic-clean"},
	} {
		t.Run(tc.version+" reads "+tc.store, func(t *testing.T) {
			t.Parallel()
			java, err := Build(t.Context(), tc.version)
			if err != nil {
				t.Fatal(err)
			}
			m := golden.MustLoad(t, tc.store)
			root := golden.Unpack(t, tc.store)
			c := m.Config
			c.FileReservedTime = 1_000_000 // nothing may expire while we look
			q := Questions{TopicConfig: m.TopicConfig, KeyQueries: m.KeyQueries, TimeQueries: m.TimeQueries, Lookups: m.Lookups, GetMessage: m.GetMessage}
			if tc.version == m.Version {
				q.TagQueries = m.TagQueries
			}
			a, err := java.Read(t.Context(), root, c, q)
			if err != nil {
				t.Fatal(err)
			}
			if !a.Load || !a.Dispatched || len(a.UnknownConfig) > 0 {
				t.Fatalf("load %t, dispatched %t, unknown settings %q", a.Load, a.Dispatched, a.UnknownConfig)
			}
			want, got := m.Observation, a.Observation
			options := cmp.Options{cmpopts.EquateEmpty(), cmp.Comparer(func(a, b golden.Hash) bool { return a == b }),
				cmpopts.EquateComparable(message.Message{}.BornHost)}
			if !m.AtLeast("5.0.0") {
				// 4.9 looks for a time in the queue file with that modification
				// time, which unpacking does not keep.
				want.TimeQueries, got.TimeQueries = nil, nil
			}
			if tc.version != m.Version {
				// Another version answers in its own way; what is stored is the same.
				want, got = golden.Observation{Messages: want.Messages, Blanks: want.Blanks, Queues: want.Queues},
					golden.Observation{Messages: got.Messages, Blanks: got.Blanks, Queues: got.Queues}
			}
			// Which empty queues exist depends on who asked for them before.
			want.Queues, got.Queues = used(want.Queues), used(got.Queues)
			if d := cmp.Diff(want, got, options); d != "" {
				t.Errorf("(-manifest +read):\n%.4000s", d)
			}
		})
	}
}

func used(queues []golden.Queue) []golden.Queue {
	return slices.DeleteFunc(queues, func(q golden.Queue) bool { return q.Max == 0 })
}

// TestAppendAndCrash checks that puts arrive, that a halted JVM leaves a
// crashed store, and that the next opening recovers it.
func TestAppendAndCrash(t *testing.T) {
	c := golden.Config{CommitLogFileSize: 64 << 10, ConsumeQueueFileSize: 400, IndexSlots: 50, IndexEntries: 100, DiskMaxUsedSpaceRatio: 99}
	for _, version := range Versions {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			java, err := Build(t.Context(), version)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			appended, err := java.Append(t.Context(), dir, c, nil, 60, 1)
			if err != nil {
				t.Fatal(err)
			}
			crashed, err := java.Crash(t.Context(), dir, c, nil, 60, 2)
			if err != nil {
				t.Fatal(err)
			}
			if appended.MaxPhysicalOffset == 0 || crashed.MaxPhysicalOffsetBefore != appended.MaxPhysicalOffset {
				t.Errorf("the log ended at %d and began at %d", appended.MaxPhysicalOffset, crashed.MaxPhysicalOffsetBefore)
			}
			read, err := java.Read(t.Context(), dir, c, Questions{})
			if err != nil {
				t.Fatal(err)
			}
			if read.MaxPhysicalOffset != crashed.MaxPhysicalOffset || read.WalkStopped != "" {
				t.Errorf("after the crash the log ends at %d, want %d; %s", read.MaxPhysicalOffset, crashed.MaxPhysicalOffset, read.WalkStopped)
			}
			for _, p := range append(appended.Puts, crashed.Puts...) {
				if p.Status != "PUT_OK" || p.AppendStatus != "PUT_OK" || read.Message(p.PhysicalOffset) == nil {
					t.Errorf("put %+v has no message", p)
				}
			}
			if want := (60 + 60) / 12 * 14; len(read.Messages) != want {
				t.Errorf("%d messages, want %d", len(read.Messages), want)
			}
		})
	}
}
