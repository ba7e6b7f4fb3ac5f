package tool

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// benchStore writes a log of n messages of size bytes of body, two keys and a
// tag in 16 queues, and no queues or index.
func benchStore(b *testing.B, n, size int) (dir string, bytesInLog int64) {
	b.Helper()
	dir = filepath.Join(b.TempDir(), "store")
	const fileSize = 64 << 20
	if err := os.MkdirAll(filepath.Join(dir, "commitlog"), 0o755); err != nil {
		b.Fatal(err)
	}
	enc := message.Encoder{}
	var file []byte
	start := int64(0)
	write := func() {
		name := filepath.Join(dir, "commitlog", fmt.Sprintf("%020d", start))
		if err := os.WriteFile(name, file, 0o644); err != nil {
			b.Fatal(err)
		}
		if err := os.Truncate(name, fileSize); err != nil {
			b.Fatal(err)
		}
		start += fileSize
		file = file[:0]
	}
	var offsets [16]int64
	body := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
	for i := range n {
		q := i * 7 % 16
		rec, err := enc.Append(nil, &message.Message{
			Topic: fmt.Sprint("Topic", q/4), QueueID: int32(q % 4), Body: body, BornHost: netip.MustParseAddrPort("10.0.0.1:1"),
			StoreHost: netip.MustParseAddrPort("10.0.0.2:10911"), BornTimestamp: 1_700_000_000_000,
			Properties: message.NewProperties(message.PropUniqKey, fmt.Sprintf("7F0000014E7B18B4AAC2%012X", i), message.PropKeys, fmt.Sprint("order-", i), message.PropTags, "TagA"),
		})
		if err != nil {
			b.Fatal(err)
		}
		if rest := fileSize - len(file); len(rec)+message.BlankSize > rest {
			file = message.AppendBlank(file, int32(rest))
			write()
		}
		message.Patch(rec, message.QueueOffset(offsets[q]), message.PhysicalOffset(start+int64(len(file))), 1_700_000_000_000+int64(i/100))
		offsets[q]++
		file = append(file, rec...)
	}
	end := start + int64(len(file))
	write()
	return dir, end
}

// crcAll is the limit: reading the log and computing a checksum over all of it,
// on as many cores.
func crcAll(b *testing.B, dir string) {
	names, err := filepath.Glob(filepath.Join(dir, "commitlog", "*"))
	if err != nil {
		b.Fatal(err)
	}
	next := make(chan string)
	var group sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		group.Go(func() {
			buf := make([]byte, 1<<20)
			for name := range next {
				f, err := os.Open(name)
				if err != nil {
					b.Error(err)
					continue
				}
				sum := uint32(0)
				for {
					n, err := f.Read(buf)
					sum = crc32.Update(sum, crc32.IEEETable, buf[:n])
					if err != nil {
						break
					}
				}
				f.Close()
			}
		})
	}
	for _, n := range names {
		next <- n
	}
	close(next)
	group.Wait()
}

// BenchmarkRebuild makes queues and index of 500 000 messages with two keys and
// a tag, in place; warm pages. The metric ratio is its time over that of reading
// the log and computing its checksum.
func BenchmarkRebuild(b *testing.B) {
	for _, size := range []int{100, 1 << 10} {
		b.Run(fmt.Sprintf("body=%d", size), func(b *testing.B) {
			const n = 500_000
			dir, total := benchStore(b, n, size)
			crcAll(b, dir) // warm
			b.SetBytes(total)
			o := gantry.Options{FS: vfs.OS(), IndexSlots: 500_000, IndexEntries: 2_000_000}
			for b.Loop() {
				sum, err := Rebuild(b.Context(), RebuildOptions{Dir: dir, Store: o})
				if err != nil || sum.Messages != n || sum.Units != n || sum.IndexEntries != 3*n {
					b.Fatalf("%+v, %v", sum, err)
				}
			}
			took := b.Elapsed() / time.Duration(b.N)
			b.ReportMetric(n/took.Seconds(), "msgs/s")
			began := time.Now()
			const rounds = 3
			for range rounds {
				crcAll(b, dir)
			}
			b.ReportMetric(float64(took)/float64(time.Since(began)/rounds), "ratio")
		})
	}
}

// BenchmarkRepair copies the same store; ratio as above.
func BenchmarkRepair(b *testing.B) {
	const n = 500_000
	dir, total := benchStore(b, n, 1<<10)
	crcAll(b, dir)
	b.SetBytes(total)
	out := filepath.Join(b.TempDir(), "new")
	for b.Loop() {
		sum, err := Repair(b.Context(), RepairOptions{Dir: dir, Out: out, Store: gantry.Options{FS: vfs.OS(), IndexSlots: 500_000, IndexEntries: 2_000_000}})
		if err != nil || sum.Messages != n || !sum.Kept() {
			b.Fatalf("%+v, %v", sum, err)
		}
		b.StopTimer()
		if err := os.RemoveAll(out); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
	took := b.Elapsed() / time.Duration(b.N)
	b.ReportMetric(n/took.Seconds(), "msgs/s")
}
