package check

import (
	"context"
	"flag"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"

	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
)

// What BenchmarkRun works on; with -benchdir it makes its stores only once.
var (
	benchBytes = flag.Int64("benchbytes", 256<<20, "bytes of the log of a benchmark's store")
	benchDir   = flag.String("benchdir", "", "folder that keeps the benchmarks' stores")
)

// benchStore writes a store with messages of one body size: 50 topics of 8
// queues, a unique key, a key and a tag each.
func benchStore(b *testing.B, body int) (dir string) {
	b.Helper()
	fs := vfs.OS()
	dir = filepath.Join(b.TempDir(), "store")
	if *benchDir != "" {
		dir = filepath.Join(*benchDir, fmt.Sprintf("%d-%d", *benchBytes, body))
	}
	if _, err := fs.Stat(dir); err == nil {
		return dir
	}
	s := newBuilder(b, fs, dir)
	s.logSize, s.cqSize = 64<<20, 6_000_000
	if *benchBytes > 4<<30 {
		s.logSize = 1 << 30
	}
	s.slots, s.entries = indexfile.DefaultGeometry.Slots, indexfile.DefaultGeometry.Entries
	for i := 0; s.phy < *benchBytes; i++ {
		m := msg(fmt.Sprintf("Topic%d", i%50), int32(i/50%8), fmt.Sprintf("key%d", i), "TagA", body)
		m.Properties = m.Properties.Set("UNIQ_KEY", fmt.Sprintf("7F0000014E7B18B4AAC2%012X", i))
		s.put(m)
	}
	s.close()
	return dir
}

// BenchmarkRun checks a whole store, all of it in the page cache. Beside it
// stands what reading the same bytes and computing their CRC-32 takes on as
// many goroutines, the limit that no checker beats: of log, queues and index
// everything that is not zero, once. MB/s count these bytes for both.
func BenchmarkRun(b *testing.B) {
	for _, body := range []int{100, 1 << 10, 4 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("body=%d", body), func(b *testing.B) {
			dir := benchStore(b, body)
			parts, size := dataParts(b, dir)
			b.Run("limit=crc", func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					crcParts(b, parts)
				}
			})
			for _, level := range []Level{Quick, Full, Deep} {
				b.Run("level="+level.String(), func(b *testing.B) {
					b.SetBytes(size)
					b.ReportAllocs()
					for b.Loop() {
						sum, err := Run(context.Background(), Options{Dir: dir, Level: level}, func(f Finding) { b.Fatal(f) })
						if err != nil || level > Quick && sum.Messages == 0 {
							b.Fatalf("%+v, %v", sum, err)
						}
					}
				})
			}
		})
	}
}

// dataPart is a range of a file.
type dataPart struct {
	path     string
	from, to int64
}

// dataParts returns where the files of a store's log, queues and index have
// data, in parts small enough to give all cores work.
func dataParts(b *testing.B, dir string) (parts []dataPart, total int64) {
	fs := vfs.OS()
	p := make([]byte, 64<<10)
	var walk func(dir string)
	walk = func(dir string) {
		entries, err := fs.List(dir)
		if err != nil {
			b.Fatal(err)
		}
		for _, e := range entries {
			path := filepath.Join(dir, e.Name)
			if e.IsDir() {
				walk(path)
				continue
			}
			f, err := fs.Open(path, vfs.ReadOnly)
			if err != nil {
				b.Fatal(err)
			}
			for at := int64(0); at < e.Size; {
				if at, err = f.NextData(at); err != nil {
					b.Fatal(err)
				}
				n, _ := f.ReadAt(p, at) // the length says how it went
				if k := int64(trimZeros(p[:n])); k > 0 {
					if last := len(parts) - 1; last >= 0 && parts[last].path == path && parts[last].to == at && at-parts[last].from < 64<<20 {
						parts[last].to = at + k
					} else {
						parts = append(parts, dataPart{path, at, at + k})
					}
					total += k
				}
				if n == 0 {
					break
				}
				at += int64(n)
			}
			f.Close()
		}
	}
	for _, sub := range []string{"commitlog", "consumequeue", "index"} {
		walk(filepath.Join(dir, sub))
	}
	return parts, total
}

// crcParts reads the parts and computes their CRCs.
func crcParts(b *testing.B, parts []dataPart) {
	c := &checker{ctx: context.Background(), o: Options{Workers: runtime.GOMAXPROCS(0)}}
	bufs := make([][]byte, c.o.Workers)
	var sum atomic.Int64
	if err := c.parallel(len(parts), func(worker, i int) error {
		f, err := vfs.OS().Open(parts[i].path, vfs.ReadOnly)
		if err != nil {
			return err
		}
		defer f.Close()
		if bufs[worker] == nil {
			bufs[worker] = make([]byte, 256<<10) // the fastest of 64 KiB to 4 MiB
		}
		for off := parts[i].from; off < parts[i].to; {
			p := bufs[worker][:min(256<<10, parts[i].to-off)]
			if n, err := f.ReadAt(p, off); n < len(p) {
				return err
			}
			sum.Add(int64(crc32.ChecksumIEEE(p)))
			off += int64(len(p))
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
