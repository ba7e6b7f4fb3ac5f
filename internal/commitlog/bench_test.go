package commitlog

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// benchPut is a put whose Fill costs what that of a store does.
type benchPut struct {
	rec []byte
	q   message.QueueOffset
}

func newBenchPut(tb testing.TB, body int) *benchPut {
	m := sized(body+92, 1)
	m.Properties = message.NewProperties("KEYS", "order-4711 customer-0815", "TAGS", "TagA", "UNIQ_KEY", "7F0000014E7B18B4AAC20A1B2C3D0000")
	return &benchPut{rec: newPut(tb, 0, m).recs}
}

func (p *benchPut) Fill(phy message.PhysicalOffset, storeTime int64) ([]byte, error) {
	message.Patch(p.rec, p.q, phy, storeTime)
	return p.rec, nil
}

func (p *benchPut) Appended(message.PhysicalOffset, int64) { p.q++ }

func benchLog(b *testing.B, opts Options) *Log {
	b.Helper()
	opts.FS = vfs.OS()
	opts.Dirs = []string{b.TempDir()}
	l, _, err := Open(opts)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { l.Close() })
	if err := l.SetEnd(0, 0); err != nil {
		b.Fatal(err)
	}
	return l
}

// keepSmall removes all but the newest files now and then, so that a long run
// does not fill the disk.
func keepSmall(b *testing.B, l *Log) {
	if len(l.files.Files()) > 3 {
		b.StopTimer()
		if _, err := l.RemoveFront(1, func(FileInfo) bool { return true }); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}

// BenchmarkLimit is what the machine allows: copying the bytes of a record into
// a mapped file whose blocks are reserved and whose pages are not present, and
// writing and syncing it.
func BenchmarkLimit(b *testing.B) {
	const size = 256 << 20
	create := func(b *testing.B, name string) vfs.File {
		f, err := vfs.OS().Create(name)
		if err == nil {
			err = errors.Join(f.Truncate(size), f.Allocate(0, size), f.Sync())
		}
		if err != nil {
			b.Fatal(err)
		}
		return f
	}
	for _, body := range []int{128, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("flush=async/body=%d", body), func(b *testing.B) {
			rec := newBenchPut(b, body).rec
			b.SetBytes(int64(len(rec)))
			name := filepath.Join(b.TempDir(), "limit")
			var f vfs.File
			var m vfs.Mapping
			drop := func() {
				if f != nil {
					m.Unmap()
					f.Close()
					vfs.OS().Remove(name)
				}
			}
			defer func() { drop() }()
			for off := int64(size); b.Loop(); off += int64(len(rec)) {
				if off+int64(len(rec)) > size {
					b.StopTimer()
					drop()
					f = create(b, name)
					var err error
					if m, err = f.Map(true); err != nil {
						b.Fatal(err)
					}
					off = 0
					b.StartTimer()
				}
				m.WriteAt(rec, off)
			}
		})
	}
	b.Run("flush=sync/body=1024/waiters=1", func(b *testing.B) {
		rec := newBenchPut(b, 1<<10).rec
		f := create(b, filepath.Join(b.TempDir(), "limit"))
		defer f.Close()
		off := int64(0)
		for b.Loop() {
			if _, err := f.WriteAt(rec, off); err != nil {
				b.Fatal(err)
			}
			if err := f.Sync(); err != nil {
				b.Fatal(err)
			}
			off += int64(len(rec))
		}
		b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
	})
}

func BenchmarkAppend(b *testing.B) {
	for _, body := range []int{128, 1 << 10, 64 << 10} {
		b.Run(fmt.Sprintf("flush=async/body=%d", body), func(b *testing.B) {
			l := benchLog(b, Options{})
			p := newBenchPut(b, body)
			b.SetBytes(int64(len(p.rec)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if _, _, err := l.Append(len(p.rec), p); err != nil {
					b.Fatal(err)
				}
				if i&0xFFFF == 0 {
					keepSmall(b, l)
				}
			}
		})
	}
	for _, waiters := range []int{1, 64, 1024} {
		b.Run(fmt.Sprintf("flush=sync/body=1024/waiters=%d", waiters), func(b *testing.B) {
			l := benchLog(b, Options{Flush: FlushSync})
			ctx := context.Background()
			b.SetParallelism((waiters + 1) / 2) // times GOMAXPROCS, 2 here
			var worst atomic.Int64
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				p := newBenchPut(b, 1<<10)
				for pb.Next() {
					start := time.Now()
					phy, _, err := l.Append(len(p.rec), p)
					if err == nil {
						err = l.WaitFlushed(ctx, phy+message.PhysicalOffset(len(p.rec)))
					}
					if err != nil {
						b.Error(err)
						return
					}
					if d := int64(time.Since(start)); d > worst.Load() {
						worst.Store(d)
					}
				}
			})
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
			b.ReportMetric(float64(worst.Load()), "max-ns")
			b.ReportMetric(float64(b.N)/float64(l.syncs.Load()), "puts/sync")
		})
	}
}

// BenchmarkFindTail checks a log of four full files of 256 MiB, all in the page
// cache, as an opening after a crash without a checkpoint does.
func BenchmarkFindTail(b *testing.B) {
	const fileSize, files = 256 << 20, 4
	for _, body := range []int{128, 1 << 10, 64 << 10} {
		opts := Options{FS: vfs.OS(), Dirs: []string{b.TempDir()}, FileSize: fileSize}
		l, _, err := Open(opts)
		if err != nil {
			b.Fatal(err)
		}
		if err := l.SetEnd(0, 0); err != nil {
			b.Fatal(err)
		}
		for p := newBenchPut(b, body); l.End() < files*fileSize; {
			if _, _, err := l.Append(len(p.rec), p); err != nil {
				b.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			b.Fatal(err)
		}
		for _, workers := range []int{1, 2} {
			b.Run(fmt.Sprintf("body=%d/workers=%d", body, workers), func(b *testing.B) {
				var read int64
				b.ReportAllocs()
				for b.Loop() {
					l, _, err := Open(opts)
					if err != nil {
						b.Fatal(err)
					}
					scan := ScanOptions{Check: message.CheckOptions{BodyCRC: true}, Workers: workers}
					tail, err := l.FindTail(context.Background(), l.Min(), scan)
					if err != nil || tail.Reason != nil || tail.Records == 0 {
						b.Fatal(tail, err)
					}
					read += int64(tail.End)
					l.Close()
				}
				gib := float64(read) / (1 << 30)
				b.ReportMetric(b.Elapsed().Seconds()/gib, "s/GiB")
				b.ReportMetric(gib/b.Elapsed().Seconds(), "GiB/s")
			})
		}
	}
}
