package gantry

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// usageFS says what the disk use is.
type usageFS struct {
	vfs.FS
	used float64
	err  error
}

func (f *usageFS) DiskUsage(string) (vfs.Usage, error) {
	return vfs.Usage{Total: 10_000, Used: int64(f.used * 100), Free: 10_000 - int64(f.used*100)}, f.err
}

// hourlyStore holds one message an hour, one in each log file, beginning at a
// midnight in UTC.
func hourlyStore(t *testing.T, hours int, change func(*Options)) (*Store, *testClock, *usageFS) {
	t.Helper()
	clock := newClock()
	clock.set(time.Date(2024, 1, 1, 0, 0, 0, 0, time.Local).UnixMilli())
	disk := &usageFS{FS: memfs.New(), used: 10}
	opts := tinyOptions(disk, clock).with(change)
	s := mustOpen(t, opts)
	t.Cleanup(func() {
		mustClose(t, s)
		checkStore(t, disk)
	})
	for i := range hours {
		mustPut(t, s, &message.Message{
			Topic: "TopicTest", QueueID: int32(i % 2), Body: make([]byte, 3000),
			Properties: message.NewProperties("KEYS", fmt.Sprintf("k%d", i)),
		})
		clock.add(time.Hour)
	}
	waitDispatched(t, s)
	if err := s.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	return s, clock, disk
}

func TestCleanByAge(t *testing.T) {
	s, clock, disk := hourlyStore(t, 30, func(o *Options) { o.Reserved = 22 * time.Hour })
	clean := func(o CleanOptions) []Removal {
		t.Helper()
		r, err := s.Clean(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	// 30 hours have passed, it is six in the morning: not the hour.
	if r := clean(CleanOptions{}); len(r) != 0 {
		t.Fatalf("removed outside the hour: %+v", r)
	}
	dry := clean(CleanOptions{DryRun: true, AnyHour: true})
	if first, _ := s.Range(); first != 0 || len(dry) != 8 {
		t.Fatalf("a dry run removed up to %d, and names %d files", first, len(dry))
	}
	r := clean(CleanOptions{AnyHour: true})
	if fmt.Sprint(r) != fmt.Sprint(dry) {
		t.Errorf("removed %+v\nthe dry run said %+v", r, dry)
	}
	if !strings.Contains(r[0].Reason, "old") {
		t.Errorf("reason %q", r[0].Reason)
	}
	first, _ := s.Range()
	if want := message.PhysicalOffset(8 * 4096); first != want {
		t.Errorf("the log begins at %d, want %d", first, want)
	}
	for id := range int32(2) {
		min, max, err := s.QueueRange("TopicTest", id)
		if err != nil || min != 4 || max != 15 {
			t.Errorf("queue %d: %d to %d, %v", id, min, max, err)
		}
	}
	for i := range 30 {
		want := 1
		if i < 8 {
			want = 0
		}
		if got := len(queryBodies(t, s, "TopicTest", fmt.Sprintf("k%d", i), QueryOptions{})); got != want {
			t.Errorf("key k%d is found %d times, want %d", i, got, want)
		}
	}
	// Two days on, at four in the morning, all but the newest file is due; ten
	// go in one pass.
	clock.set(time.Date(2024, 1, 4, 4, 30, 0, 0, time.Local).UnixMilli())
	if r := clean(CleanOptions{}); len(r) != 10 {
		t.Errorf("a pass removed %d files, want 10", len(r))
	}
	disk.used = 76 // beyond DiskMaxUsedPercent age counts at any hour
	clock.add(5 * time.Hour)
	if r := clean(CleanOptions{}); len(r) != 10 {
		t.Errorf("a pass removed %d files, want 10", len(r))
	}
	if r := clean(CleanOptions{}); len(r) != 1 {
		t.Errorf("a pass removed %d files, want the last but one", len(r))
	}
	if r := clean(CleanOptions{}); len(r) != 0 {
		t.Errorf("the newest file was removed: %+v", r)
	}
}

func TestCleanByDisk(t *testing.T) {
	s, _, disk := hourlyStore(t, 20, func(o *Options) { o.KeepBytes = 5 * 4096 })
	put := func() error {
		_, err := s.Put(context.Background(), testMessage("x"))
		return err
	}
	disk.used = 84.99
	if r, err := s.Clean(context.Background(), CleanOptions{}); err != nil || len(r) != 0 {
		t.Errorf("below the limit: %+v, %v", r, err)
	}
	disk.used = 85.01
	r, err := s.Clean(context.Background(), CleanOptions{})
	if err != nil || len(r) != 10 || !strings.Contains(r[0].Reason, "85.01") {
		t.Errorf("above the limit: %d files, %v", len(r), err)
	}
	if err := put(); err != nil {
		t.Errorf("put at 85 %%: %v", err)
	}
	disk.used = 95
	r, err = s.Clean(context.Background(), CleanOptions{})
	if err != nil || len(r) != 4 {
		t.Errorf("%d files removed, the floor of five allows 4; %v", len(r), err)
	}
	if err := put(); PutStatusOf(err) != CreateMappedFileFailed {
		t.Errorf("put with a full disk: %v", err)
	}
	if got := bodies(t, s, "TopicTest", 0, 9); len(got) == 0 {
		t.Error("reading does not go on when the disk is full")
	}
	disk.used = 50
	if _, err := s.Clean(context.Background(), CleanOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := put(); err != nil {
		t.Errorf("put with space again: %v", err)
	}
	disk.used, disk.err = 99, fmt.Errorf("no such device")
	if r, err := s.Clean(context.Background(), CleanOptions{AnyHour: true}); err == nil || len(r) != 0 {
		t.Errorf("with unknown disk use: %+v, %v", r, err)
	}
}

// TestCleanKeepsDelayed: a file with messages that wait for their time does
// not go for its age.
func TestCleanKeepsDelayed(t *testing.T) {
	s, clock, _ := hourlyStore(t, 0, func(o *Options) {
		o.Reserved = time.Hour
		o.DelayLevels = "1s 10d"
	})
	mustPut(t, s, testMessage("later", "DELAY", "2"))
	for range 5 {
		mustPut(t, s, testMessage(strings.Repeat("x", 3000)))
	}
	waitDispatched(t, s)
	if err := s.Sync(context.Background()); err != nil {
		t.Fatal(err)
	}
	clock.add(5 * time.Hour)
	if r, err := s.Clean(context.Background(), CleanOptions{AnyHour: true}); err != nil || len(r) != 0 {
		t.Errorf("removed %+v, %v", r, err)
	}
}
