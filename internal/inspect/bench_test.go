package inspect

import (
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"runtime"
	"sync"
	"testing"

	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// What the benchmarks work on; with -benchdir they make their stores only once.
var (
	benchBytes = flag.Int64("benchbytes", 256<<20, "bytes of the log of a benchmark's store")
	benchDir   = flag.String("benchdir", "", "folder that keeps the benchmarks' stores")
)

// benchStore writes a log of messages with bodies of text.
func benchStore(b *testing.B, body int) (*Store, int64) {
	b.Helper()
	dir := filepath.Join(b.TempDir(), "s")
	if *benchDir != "" {
		dir = filepath.Join(*benchDir, fmt.Sprintf("inspect-%d-%d", *benchBytes, body))
	}
	fsys := vfs.OS()
	if _, err := fsys.Stat(dir); err != nil {
		writeBenchStore(b, fsys, filepath.Join(dir, "commitlog"), body)
	}
	s, err := Open(Options{Dir: dir})
	if err != nil {
		b.Fatal(err)
	}
	return s, s.Top()
}

func writeBenchStore(b *testing.B, fsys vfs.FS, dir string, body int) {
	b.Helper()
	const fileSize = 64 << 20
	if err := fsys.MkdirAll(dir); err != nil {
		b.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	words := []string{"order", "customer", "price", "street", "city", "item", "total", "the", "of"}
	var enc message.Encoder
	for n, i := int64(0), 0; n < *benchBytes; n += fileSize {
		log := make([]byte, 0, fileSize)
		for {
			m := &message.Message{Topic: fmt.Sprintf("Topic%d", i%50), QueueID: int32(i / 50 % 8), BornTimestamp: 1_700_000_000_000 + int64(i)}
			for len(m.Body) < body {
				m.Body = append(append(m.Body, words[rng.IntN(len(words))]...), ' ')
			}
			if i%1000 == 0 {
				m.Body = append(m.Body, "needle-4711"...)
			}
			m.Properties = message.NewProperties("KEYS", fmt.Sprintf("key%d", i), "UNIQ_KEY", fmt.Sprintf("7F0000014E7B18B4AAC2%012X", i), "TAGS", "TagA")
			at := len(log)
			size, err := enc.RecordSize(m)
			if err != nil {
				b.Fatal(err)
			}
			if at+size+message.BlankSize > fileSize {
				log = message.AppendBlank(log, int32(fileSize-at))
				break
			}
			if log, err = enc.Append(log, m); err != nil {
				b.Fatal(err)
			}
			enc.Patch(log[at:], message.QueueOffset(i/400), message.PhysicalOffset(n+int64(at)), m.BornTimestamp+1)
			i++
		}
		f, err := fsys.Create(filepath.Join(dir, segmentName(n)))
		if err == nil {
			_, err = f.WriteAt(log, 0)
		}
		if err == nil {
			err = f.Truncate(fileSize)
		}
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkScan: what searching and exporting a log takes, in the page cache.
// Beside it stands reading the same files and computing their CRC on as many
// cores, the limit.
func BenchmarkScan(b *testing.B) {
	for _, body := range []int{100, 1 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("body=%d", body), func(b *testing.B) {
			s, size := benchStore(b, body)
			b.Run("limit=crc", func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					crcLog(b, s)
				}
			})
			json := func(dst []byte, v *message.View) ([]byte, error) {
				m := v.Decode()
				return append(tool.AppendJSON(dst, &m, false), '\n'), nil
			}
			for _, bm := range []struct {
				name string
				f    Filter
			}{
				{"topic", Filter{Topic: "Topic7"}},
				{"text", Filter{Body: regexp.MustCompile(`needle-4711`)}},
				{"regexp", Filter{Body: regexp.MustCompile(`needle-\d+`)}},
				{"slow-regexp", Filter{Body: regexp.MustCompile(`[a-z]+le-\d`)}},
				{"export", Filter{}},
			} {
				b.Run("for="+bm.name, func(b *testing.B) {
					b.SetBytes(size)
					n, bytes := int64(0), 0
					for b.Loop() {
						res, err := s.Scan(context.Background(), ScanOptions{Filter: bm.f, Format: json,
							Take: func(f Found) error { bytes += len(f.Data); return nil }, Damage: func(d Damage) { b.Fatal(d) }})
						if err != nil || res.Messages == 0 {
							b.Fatal(res, err)
						}
						n += res.Messages
					}
					b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "msgs/s")
				})
			}
		})
	}
}

func crcLog(b *testing.B, s *Store) {
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			p := make([]byte, 256<<10)
			sum := uint32(0)
			for i := range next {
				f, err := s.fs.Open(s.log[i].path, vfs.ReadOnly)
				if err != nil {
					b.Error(err)
					return
				}
				for off := int64(0); off < s.log[i].size; off += int64(len(p)) {
					n, _ := f.ReadAt(p, off)
					sum ^= crc32.ChecksumIEEE(p[:n])
				}
				f.Close()
			}
			runtime.KeepAlive(sum)
		})
	}
	for i := range s.log {
		next <- i
	}
	close(next)
	wg.Wait()
}
