package gantry

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// benchMessage has what the Java measurements have: a tag, two keys and a
// unique key, so three index entries and one for the tag.
func benchMessage(size int) *message.Message {
	return &message.Message{
		Topic: "BenchTopic",
		Body:  make([]byte, size),
		Properties: message.NewProperties(
			"TAGS", "TagA", "KEYS", "key-0123456 order-7654321",
			"UNIQ_KEY", "7F0000014E7B18B4AAC20A1B2C3D0000", "WAIT", "true"),
		BornTimestamp: testStart,
	}
}

// BenchmarkPutVersusLimit stores 300 000 messages of 1 KiB with queue and
// three index entries each, until they are dispatched, and beside it copies
// the same bytes into a mapped file whose blocks are reserved: the limit that
// no store can pass. Run it with -benchtime 5x -count 3.
func BenchmarkPutVersusLimit(b *testing.B) {
	const n = 300_000
	for _, size := range []int{1 << 10} {
		b.Run(fmt.Sprintf("body=%d", size), func(b *testing.B) {
			m := benchMessage(size)
			e := message.Encoder{}
			rec, err := e.Append(nil, m)
			if err != nil {
				b.Fatal(err)
			}
			var limit, store, dispatched time.Duration
			for b.Loop() {
				limit += copyLimit(b, rec, n)
				p, d := putMany(b, m, n)
				store += p
				dispatched += d
			}
			perSecond := func(d time.Duration) float64 { return float64(n*b.N) / d.Seconds() }
			b.ReportMetric(perSecond(limit), "limit-msg/s")
			b.ReportMetric(perSecond(store), "put-msg/s")
			b.ReportMetric(perSecond(dispatched), "dispatched-msg/s")
			b.ReportMetric(100*limit.Seconds()/dispatched.Seconds(), "%-of-limit")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// copyLimit copies rec n times into a mapped file with reserved blocks.
func copyLimit(b *testing.B, rec []byte, n int) time.Duration {
	b.Helper()
	fs := vfs.OS()
	size := int64(len(rec) * n)
	name := filepath.Join(b.TempDir(), "limit")
	f, err := fs.Create(name)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = fs.Remove(name) }()
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		b.Fatal(err)
	}
	if err := f.Allocate(0, size); err != nil {
		b.Fatal(err)
	}
	m, err := f.Map(true)
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = m.Unmap() }()
	start := time.Now()
	for i := range n {
		if _, err := m.WriteAt(rec, int64(i*len(rec))); err != nil {
			b.Fatal(err)
		}
	}
	return time.Since(start)
}

// putMany stores m n times in a new store, and returns how long that took
// until the last put returned, and until all was dispatched.
func putMany(b *testing.B, m *message.Message, n int) (put, dispatched time.Duration) {
	b.Helper()
	ctx := context.Background()
	s, err := Open(ctx, filepath.Join(b.TempDir(), "store"), &Options{CleanInterval: -1})
	if err != nil {
		b.Fatal(err)
	}
	for range 1000 { // make the first files
		if _, err := s.Put(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
	if err := s.WaitDispatched(ctx); err != nil {
		b.Fatal(err)
	}
	runtime.GC()
	start := time.Now()
	for range n {
		if _, err := s.Put(ctx, m); err != nil {
			b.Fatal(err)
		}
	}
	put = time.Since(start)
	if err := s.WaitDispatched(ctx); err != nil {
		b.Fatal(err)
	}
	dispatched = time.Since(start)
	if err := s.Close(); err != nil {
		b.Fatal(err)
	}
	return put, dispatched
}

// BenchmarkPut is the cost of one put, dispatcher aside; it must not allocate.
func BenchmarkPut(b *testing.B) {
	for _, size := range []int{128, 1 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("body=%d", size), func(b *testing.B) {
			ctx := context.Background()
			s, err := Open(ctx, filepath.Join(b.TempDir(), "store"), &Options{CleanInterval: -1})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			m := benchMessage(size)
			b.SetBytes(int64(size))
			b.ReportAllocs()
			for b.Loop() {
				if _, err := s.Put(ctx, m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkOpen opens a cleanly stopped store of many queues with one message
// each, page cache warm. Beside it stands the limit: listing each queue's
// directory and reading one page of its file.
func BenchmarkOpen(b *testing.B) {
	for _, queues := range []int{1_000, 10_000} {
		b.Run(fmt.Sprintf("queues=%d", queues), func(b *testing.B) {
			ctx := context.Background()
			dir := filepath.Join(b.TempDir(), "store")
			opts := &Options{CommitLogFileSize: 64 << 20, ConsumeQueueFileSize: 20_000, CleanInterval: -1}
			s, err := Open(ctx, dir, opts)
			if err != nil {
				b.Fatal(err)
			}
			for i := range queues {
				if _, err := s.Put(ctx, &message.Message{Topic: fmt.Sprintf("topic-%d", i), Body: []byte("x")}); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			var open, limit time.Duration
			for b.Loop() {
				start := time.Now()
				s, err := Open(ctx, dir, opts)
				if err != nil {
					b.Fatal(err)
				}
				open += time.Since(start)
				if err := s.Close(); err != nil {
					b.Fatal(err)
				}
				start = time.Now()
				readEachQueue(b, filepath.Join(dir, "consumequeue"))
				limit += time.Since(start)
			}
			b.ReportMetric(open.Seconds()*1e3/float64(b.N), "open-ms")
			b.ReportMetric(limit.Seconds()*1e3/float64(b.N), "limit-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// readEachQueue lists the directory of each queue and reads a page.
func readEachQueue(b *testing.B, dir string) {
	b.Helper()
	fs := vfs.OS()
	topics, err := fs.List(dir)
	if err != nil {
		b.Fatal(err)
	}
	page := make([]byte, 4096)
	for _, topic := range topics {
		queue := filepath.Join(dir, topic.Name, "0")
		files, err := fs.List(queue)
		if err != nil {
			b.Fatal(err)
		}
		f, err := fs.Open(filepath.Join(queue, files[len(files)-1].Name), vfs.ReadOnly)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := f.ReadAt(page, 0); err != nil {
			b.Fatal(err)
		}
		f.Close()
	}
}
