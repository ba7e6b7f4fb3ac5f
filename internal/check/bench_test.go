package check

import (
	"context"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"runtime"
	"sync"
	"testing"

	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/internal/vfs"
)

// benchStore writes a store of about 256 MB with messages of one body size: 50
// topics of 8 queues, a unique key, a key and a tag each.
func benchStore(b *testing.B, body int) (dir string, logBytes int64) {
	b.Helper()
	dir = filepath.Join(b.TempDir(), "store")
	s := newBuilder(b, vfs.OS(), dir)
	s.logSize, s.cqSize = 64<<20, 6_000_000
	s.slots, s.entries = indexfile.DefaultGeometry.Slots, indexfile.DefaultGeometry.Entries
	for i := 0; s.phy < 256<<20; i++ {
		m := msg(fmt.Sprintf("Topic%d", i%50), int32(i/50%8), fmt.Sprintf("key%d", i), "TagA", body)
		m.Properties = m.Properties.Set("UNIQ_KEY", fmt.Sprintf("7F0000014E7B18B4AAC2%012X", i))
		s.put(m)
	}
	s.close()
	return dir, s.phy
}

// BenchmarkRun checks a whole store, all of it in the page cache. Bytes are
// those of the log; queues and index come on top. Beside it stands what reading
// the same log files and computing their CRC-32 takes, file by file on as many
// goroutines: the limit that no checker beats.
func BenchmarkRun(b *testing.B) {
	for _, body := range []int{100, 1 << 10, 16 << 10} {
		b.Run(fmt.Sprintf("body=%d", body), func(b *testing.B) {
			dir, size := benchStore(b, body)
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
			b.Run("limit=crc", func(b *testing.B) {
				b.SetBytes(size)
				for b.Loop() {
					crcLog(b, dir)
				}
			})
		})
	}
}

func crcLog(b *testing.B, dir string) {
	fs := vfs.OS()
	entries, err := fs.List(filepath.Join(dir, "commitlog"))
	if err != nil {
		b.Fatal(err)
	}
	c := &checker{ctx: context.Background(), o: Options{Workers: runtime.GOMAXPROCS(0)}}
	var mu sync.Mutex
	sum := uint32(0)
	if err := c.parallel(len(entries), func(_, i int) error {
		f, err := fs.Open(filepath.Join(dir, "commitlog", entries[i].Name), vfs.ReadOnly)
		if err != nil {
			return err
		}
		defer f.Close()
		p := make([]byte, logAhead)
		for off := int64(0); off < entries[i].Size; off += logAhead {
			n, err := f.ReadAt(p, off)
			if n == 0 {
				return err
			}
			crc := crc32.ChecksumIEEE(p[:n])
			mu.Lock()
			sum ^= crc
			mu.Unlock()
		}
		return nil
	}); err != nil {
		b.Fatal(err)
	}
}
