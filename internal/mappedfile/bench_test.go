package mappedfile

import (
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
)

// BenchmarkAppend appends 1 KiB records to files of 64 MiB of the operating
// system, rolling and removing as it goes, in each way of writing. mode=limit
// is what the machine can do at best: copying the same bytes into mappings of
// reserved files, whose pages nobody made present.
//
//	go test -run xxx -bench Append -count 5 ./internal/mappedfile
func BenchmarkAppend(b *testing.B) {
	const size = 64 << 20
	rec := record(1, 1024)
	b.Run("mode=limit", func(b *testing.B) {
		fsys, dir := vfs.OS(), b.TempDir()
		var m vfs.Mapping
		next := func(i int) {
			f, err := fsys.Create(dir + "/" + FileName(int64(i)))
			must(b, err)
			must(b, f.Truncate(size))
			must(b, f.Allocate(0, size))
			m, err = f.Map(true)
			must(b, err)
			must(b, f.Close())
			must(b, fsys.Remove(dir+"/"+FileName(int64(i))))
		}
		next(0)
		b.SetBytes(int64(len(rec)))
		b.ReportAllocs()
		off := int64(0)
		for i := 1; b.Loop(); i++ {
			if off+int64(len(rec)) > size {
				b.StopTimer()
				must(b, m.Unmap())
				next(i)
				off = 0
				b.StartTimer()
			}
			if _, err := m.WriteAt(rec, off); err != nil {
				b.Fatal(err)
			}
			off += int64(len(rec))
		}
		must(b, m.Unmap())
	})
	for _, mode := range []struct {
		name string
		set  func(*Options)
	}{
		{"mapped", func(o *Options) { o.Mapped = true; o.Alloc = newAlloc(b, AllocatorOptions{}) }},
		{"mapped-no-allocator", func(o *Options) { o.Mapped = true }},
		{"positional", func(o *Options) { o.Alloc = newAlloc(b, AllocatorOptions{}) }},
		{"transient", func(o *Options) {
			o.Alloc, o.Pool = newAlloc(b, AllocatorOptions{}), NewTransientPool(2, size)
		}},
	} {
		b.Run("mode="+mode.name, func(b *testing.B) {
			dir := b.TempDir()
			q := open(b, vfs.OS(), size, func(o *Options) { o.Dirs = []string{dir} }, mode.set)
			f, err := q.Writable(0)
			must(b, err)
			b.SetBytes(int64(len(rec)))
			b.ReportAllocs()
			for b.Loop() {
				if f.Full() {
					b.StopTimer() // the disk is not what is measured
					must(b, errOf(q.Commit(0)))
					must(b, errOf(q.RemoveFront(1, nil)))
					q.flushed.Store(f.End())
					if f, err = q.Writable(0); err != nil {
						b.Fatal(err)
					}
					b.StartTimer()
				}
				if _, err := f.Append(rec); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReadAt reads 1 KiB records that are in memory, through the queue.
func BenchmarkReadAt(b *testing.B) {
	const size, n = 16 << 20, 16 << 10
	for _, mapped := range []string{"true", "false"} {
		b.Run("mapped="+mapped, func(b *testing.B) {
			dir := b.TempDir()
			q := open(b, vfs.OS(), size, func(o *Options) { o.Dirs, o.Mapped = []string{dir}, mapped == "true" })
			rec := record(1, 1024)
			for range n {
				must(b, errOf(put(q, rec)))
			}
			b.SetBytes(1024)
			b.ReportAllocs()
			off := int64(0)
			for b.Loop() {
				if _, err := q.ReadAt(rec, off); err != nil {
					b.Fatal(err)
				}
				off = (off + 7919*1024) % (n * 1024)
			}
		})
	}
}
