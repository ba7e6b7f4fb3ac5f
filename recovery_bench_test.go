package gantry

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/gantrymq/gantry/message"
)

var openGiB = flag.Float64("bench.gib", 0.25, "size of the store for BenchmarkCrashOpen, in GiB")

// BenchmarkCrashOpen opens a store of messages of 1 KiB that was not stopped
// cleanly, page cache warm: with a checkpoint and a thousand messages since, and
// without any, when every record is compared with queues and index. The figures
// of 8 GiB: go test -run - -bench CrashOpen -bench.gib 8 -benchtime 3x -timeout 1h
func BenchmarkCrashOpen(b *testing.B) {
	ctx := context.Background()
	dir := filepath.Join(b.TempDir(), "store")
	opts := &Options{CleanInterval: -1}
	s, err := Open(ctx, dir, opts)
	must(b, err)
	m := benchMessage(1 << 10)
	put := func(n int) {
		for range n {
			if _, err := s.Put(ctx, m); err != nil {
				b.Fatal(err)
			}
		}
		if err := s.WaitDispatched(ctx); err != nil {
			b.Fatal(err)
		}
	}
	rec := int(mustPut(b, s, m).Size)
	total := int(*openGiB * (1 << 30) / float64(rec))
	for done := 0; done < total; done += 100_000 { // each its own keys, as in life
		for i := range min(100_000, total-done) {
			m.Properties = message.NewProperties("TAGS", "TagA", "KEYS", fmt.Sprintf("key-%d order-%d", done+i, i), "UNIQ_KEY", fmt.Sprintf("u%032d", done+i))
			if _, err := s.Put(ctx, m); err != nil {
				b.Fatal(err)
			}
		}
		put(0)
	}
	must(b, s.Sync(ctx))
	put(1000)
	s.abandon()
	for _, checkpointed := range []bool{true, false} {
		b.Run(fmt.Sprintf("checkpoint=%v", checkpointed), func(b *testing.B) {
			var open, slowest time.Duration
			replayed := int64(0)
			for b.Loop() {
				if !checkpointed {
					must(b, os.Remove(filepath.Join(dir, "checkpoint")))
				}
				start := time.Now()
				opened, err := Open(ctx, dir, opts)
				must(b, err)
				d := time.Since(start)
				open += d
				slowest = max(slowest, d)
				replayed = opened.Recovery().Replayed
				s = opened
				put(1000)
				s.abandon() // unclean, with the same work for the next one
			}
			b.ReportMetric(open.Seconds()*1e3/float64(b.N), "open-ms")
			b.ReportMetric(slowest.Seconds()*1e3, "slowest-ms")
			b.ReportMetric(open.Seconds()/float64(b.N) / *openGiB, "s/GiB")
			b.ReportMetric(float64(replayed), "replayed")
			b.ReportMetric(0, "ns/op")
		})
	}
}
