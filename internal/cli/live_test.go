package cli

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// TestLiveBesideWriter runs the commands that read beside a store that is being written to:
// what they see is whole and in order, and the writer does not notice.
func TestLiveBesideWriter(t *testing.T) {
	dir := t.TempDir()
	s, err := gantry.Open(t.Context(), dir, &gantry.Options{
		CommitLogFileSize: 1 << 20, ConsumeQueueFileSize: 20_000, IndexSlots: 500, IndexEntries: 5000, DiskWarningPercent: 100, DiskCleanForciblyPercent: 100,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	put := func(i int) error {
		_, err := s.Put(context.Background(), &message.Message{
			Topic: fmt.Sprintf("T%d", i%3), QueueID: int32(i % 2), Body: []byte(strings.Repeat("x", i%900)),
			Properties: message.NewProperties("KEYS", fmt.Sprintf("k%d", i), "TAGS", "a"),
		})
		return err
	}
	for i := range 500 {
		if err := put(i); err != nil {
			t.Fatal(err)
		}
	}
	ctx, stop := context.WithCancel(t.Context())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 500; ctx.Err() == nil && i < 10_000; i++ {
			if err := put(i); err != nil {
				t.Error(err)
				return
			}
		}
	})
	defer writer.Wait()
	defer stop()
	b := &bench{t: t, fs: vfs.OS(), now: time.Now()}
	for range 3 {
		for _, f := range jsonLines[findingJSON](t, b.must(exitOK, "store", "verify", dir, "--live", "--json")) {
			if f.Severity == "error" || f.Severity == "warning" {
				t.Errorf("verify found %+v", f)
			}
		}
		got := b.run("store", "export", dir, "--live")
		if got.code != exitOK || strings.Contains(got.stderr, "passed over") {
			t.Fatalf("export: exit code %d, %s", got.code, got.stderr)
		}
		end := int64(0)
		all := jsonLines[tool.Message](t, got.stdout)
		for _, m := range all {
			if m.CommitLogOffset != end && m.CommitLogOffset != end>>20<<20+1<<20 {
				t.Fatalf("a message at %d behind one that ends at %d", m.CommitLogOffset, end)
			}
			end = m.CommitLogOffset + int64(m.StoreSize)
		}
		if len(all) < 500 {
			t.Errorf("%d messages were exported", len(all))
		}
		if got := b.run("store", "grep", dir, "--live", "--topic", "T1", "--key", "k4"); got.code != exitOK || strings.Count(got.stdout, "KEYS: k4\n") != 1 {
			t.Errorf("grep: exit code %d, %s%s", got.code, got.stdout, got.stderr)
		}
		b.must(exitOK, "store", "info", dir, "--live")
		if got := b.run("store", "recover", "--dry-run", dir, "--live"); got.code == exitFailed || strings.Contains(got.stdout, "refused") || strings.Contains(got.stdout, "not there") {
			t.Errorf("recover: exit code %d, %s%s", got.code, got.stdout, got.stderr)
		}
		b.must(exitOK, "store", "get", dir, "T1", "1", "0", "--live")
		b.must(exitOK, "store", "query", dir, "T1", "k4", "--live")
		b.must(exitOK, "store", "offset", dir, "T1", "1", "0", "--live")
		b.must(exitOK, "store", "dump", dir+"/commitlog/00000000000000000000", "-n", "5")
		b.must(exitFailed, "store", "grep", dir)
	}
	stop()
	writer.Wait()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if got := b.must(exitOK, "store", "verify", dir); !strings.HasPrefix(got, "OK") {
		t.Error(got)
	}
}
