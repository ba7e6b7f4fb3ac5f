package indexfile

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

func benchIndex(b *testing.B, slots, entries int32) (*env, *Index) {
	b.Helper()
	e := newEnv(vfs.OS(), slots, entries)
	e.opt.Dir = filepath.Join(b.TempDir(), "index")
	e.opt.OnDamage = func(file, reason string) { b.Fatalf("damage in %s: %s", file, reason) }
	x, _, _ := e.open(b, everything(true))
	return e, x
}

// A message of three keys in files of the default geometry: new files, warm
// pages, no sync.
func BenchmarkPut(b *testing.B) {
	for _, keys := range []int{1, 3} {
		b.Run(fmt.Sprintf("keys=%d", keys), func(b *testing.B) {
			_, x := benchIndex(b, 0, 0)
			rnd := rand.New(rand.NewPCG(1, 1))
			hashes := make([]int32, 1<<16)
			for i := range hashes {
				hashes[i] = rnd.Int32()
			}
			phy, now := message.PhysicalOffset(0), int64(start)
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				if err := x.Put(phy, now, hashes[n:n+keys]); err != nil {
					b.Fatal(err)
				}
				if n += keys; n+keys > len(hashes) {
					n = 0
				}
				phy += 1024
				now += int64(phy) >> 12 & 1
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*keys), "ns/key")
		})
	}
}

// The limit for Put: the same stores without the index around them, that is
// per key one load and one store of a random slot and 20 bytes in a row, and
// a header per message.
func BenchmarkPutLimit(b *testing.B) {
	b.Run("keys=3", func(b *testing.B) {
		fs, g := vfs.OS(), DefaultGeometry
		f, err := fs.Create(filepath.Join(b.TempDir(), "plain"))
		if err != nil {
			b.Fatal(err)
		}
		defer f.Close()
		if err := f.Truncate(g.Size()); err != nil {
			b.Fatal(err)
		}
		if err := f.Allocate(0, g.Size()); err != nil {
			b.Fatal(err)
		}
		m, err := f.Map(true)
		if err != nil {
			b.Fatal(err)
		}
		defer m.Unmap()
		rnd := rand.New(rand.NewPCG(1, 1))
		var entries [3 * entrySize]byte
		var slot [slotSize]byte
		var header [headerSize]byte
		at := g.entryPos(1)
		for b.Loop() {
			for range 3 {
				pos := g.slotPos(rnd.Int32N(g.Slots))
				m.ReadAt(slot[:], pos)
				m.WriteAt(slot[:], pos)
			}
			if at+int64(len(entries)) > g.Size() {
				at = g.entryPos(1)
			}
			m.WriteAt(entries[:], at)
			at += int64(len(entries))
			m.WriteAt(header[:], 0)
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*3), "ns/key")
	})
}

// One key of one message in a full file of the default geometry: chains of
// four entries on average.
func BenchmarkLookup(b *testing.B) {
	for _, files := range []int{1, 20} {
		b.Run(fmt.Sprintf("files=%d", files), func(b *testing.B) {
			g := Geometry{100_000, 400_000}
			_, x := benchIndex(b, g.Slots, g.Entries)
			rnd := rand.New(rand.NewPCG(1, 1))
			n := files * int(g.Entries-1)
			hashes := make([]int32, 0, n)
			for i := 0; i+3 <= n; i += 3 {
				hs := []int32{rnd.Int32(), rnd.Int32(), rnd.Int32()}
				if err := x.Put(message.PhysicalOffset(1024*i), start+int64(i), hs); err != nil {
					b.Fatal(err)
				}
				hashes = append(hashes, hs...)
			}
			b.Run("window=all", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					i := rnd.IntN(len(hashes))
					found := 0
					for _, err := range x.Lookup(hashes[i], 0, math.MaxInt64) {
						if err != nil {
							b.Fatal(err)
						}
						found++
					}
					if found == 0 {
						b.Fatal("not found")
					}
				}
			})
			b.Run("window=1s", func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					i := rnd.IntN(len(hashes))
					at := start + int64(i/3*3)
					found := 0
					for range x.Lookup(hashes[i], at, at+1000) {
						found++
					}
					if found == 0 {
						b.Fatal("not found")
					}
				}
			})
		})
	}
	// A key that a third of all messages have, newest 32.
	b.Run("hot/newest=32", func(b *testing.B) {
		_, x := benchIndex(b, 100_000, 400_000)
		for i := range 390_000 {
			if err := x.Put(message.PhysicalOffset(1024*i), start+int64(i), []int32{int32(i % 3)}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			n := 0
			for range x.Lookup(1, 0, math.MaxInt64) {
				if n++; n == 32 {
					break
				}
			}
		}
	})
	b.Run("hot/old-second", func(b *testing.B) {
		_, x := benchIndex(b, 100_000, 400_000)
		for i := range 390_000 {
			if err := x.Put(message.PhysicalOffset(1024*i), start+int64(i), []int32{int32(i % 3)}); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportAllocs()
		for b.Loop() {
			n := 0
			for range x.Lookup(1, start+5000, start+6000) {
				n++
			}
			if n == 0 {
				b.Fatal("not found")
			}
		}
	})
}

// Opening a full file of the default geometry in order, with all slots in use.
func BenchmarkOpen(b *testing.B) {
	e, x := benchIndex(b, 0, 0)
	rnd := rand.New(rand.NewPCG(1, 1))
	hs := make([]int32, 16)
	for i := 0; i < 8_000_000; i += len(hs) {
		for j := range hs {
			hs[j] = rnd.Int32()
		}
		if err := x.Put(message.PhysicalOffset(i), start, hs); err != nil {
			b.Fatal(err)
		}
	}
	st := mustSync(b, x)
	for _, how := range []struct {
		name string
		st   OpenState
	}{
		{"clean", OpenState{Trusted: &st, Clean: true, LogEnd: math.MaxInt64}},
		{"crash-trusted", OpenState{Trusted: &st, LogEnd: math.MaxInt64}},
		{"crash-java", OpenState{LogEnd: math.MaxInt64}},
	} {
		b.Run(how.name, func(b *testing.B) {
			for b.Loop() {
				y, _, _ := e.open(b, how.st)
				if err := y.Close(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// A sync of a file of which little was touched since the last one.
func BenchmarkSync(b *testing.B) {
	for _, messages := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("messages=%d", messages), func(b *testing.B) {
			_, x := benchIndex(b, 0, 0)
			rnd := rand.New(rand.NewPCG(1, 1))
			phy := message.PhysicalOffset(0)
			for b.Loop() {
				b.StopTimer()
				for range messages {
					if err := x.Put(phy, start, []int32{rnd.Int32(), rnd.Int32(), rnd.Int32()}); err != nil {
						b.Fatal(err)
					}
					phy += 1024
				}
				b.StartTimer()
				mustSync(b, x)
			}
		})
	}
}
