package inspect

import (
	"context"
	"encoding/binary"
	"io/fs"
	"slices"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/internal/indexfile"
	"github.com/gantrymq/gantry/message"
)

// FuzzStore mutates a small store and searches it, compares it with the sound
// one and adds up its topics: nothing panics or goes on for ever, and no record
// is found twice or out of order. The input is a row of mutations of 8 bytes:
// number of the file, what to do, offset (2), value (4).
func FuzzStore(f *testing.F) {
	const fileSize = 1024
	names := []string{"commitlog/" + segmentName(0), "commitlog/" + segmentName(fileSize), "commitlog/" + segmentName(2*fileSize),
		"consumequeue/T/0/" + segmentName(0), "index/20261130120000000"}
	sound := map[string][]byte{}
	var first *Store
	{
		b := newBuilder(f, fileSize)
		var units []byte
		geo := indexfile.Geometry{Slots: 4, Entries: 40}
		index := make([]byte, geo.Size())
		be := binary.BigEndian
		for i := range 18 {
			at := b.put("T", "a", "key", "some text")
			v, err := message.Check(b.log[at:], message.PhysicalOffset(at), checks)
			if err != nil {
				f.Fatal(err)
			}
			units = consumequeue.AppendUnit(units, consumequeue.Unit{Physical: v.PhysicalOffset, Size: v.Size, Tags: v.TagsCode(nil)})
			h := message.IndexKeyHash("T", "key")
			slot, e := index[40+4*(h%4):], index[40+4*4+20*(i+1):]
			be.PutUint32(e, uint32(h))
			be.PutUint64(e[4:], uint64(at))
			copy(e[16:], slot[:4])
			be.PutUint32(slot, uint32(i+1))
			if i == 0 {
				be.PutUint64(index, uint64(b.now))
				be.PutUint32(index[32:], 1)
			}
			be.PutUint64(index[8:], uint64(b.now))
			be.PutUint64(index[24:], uint64(at))
			be.PutUint32(index[36:], uint32(i+2))
		}
		b.write(names[3], units, 40*consumequeue.UnitSize)
		b.write(names[4], index, int64(len(index)))
		first = b.open()
		for i := range 3 {
			sound[names[i]] = append([]byte{}, b.log[min(i*fileSize, len(b.log)):min((i+1)*fileSize, len(b.log))]...)
		}
		sound[names[3]] = append(units, make([]byte, 40*consumequeue.UnitSize-len(units))...)
		sound[names[4]] = index
	}
	mutation := func(file, what byte, off uint16, value uint32) []byte {
		return binary.BigEndian.AppendUint32([]byte{file, what, byte(off >> 8), byte(off)}, value)
	}
	f.Add([]byte{})
	for _, off := range []uint16{0, 4, 28, 32, 84, 120, 500} {
		for _, v := range []uint32{0, 1, 100, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF} {
			f.Add(mutation(0, 0, off, v))
			f.Add(mutation(3, 0, off, v))
			f.Add(mutation(4, 0, off, v))
		}
	}
	for i := range names {
		f.Add(mutation(byte(i), 1, 13, 0))
		f.Add(mutation(byte(i), 2, 0, 0))
		f.Add(mutation(byte(i), 3, 1, 0))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		b := newBuilder(t, fileSize)
		files := map[string][]byte{}
		for name, p := range sound {
			files[name] = slices.Clone(p)
		}
		for ; len(data) >= 8 && len(data) <= 8*16; data = data[8:] {
			name := names[int(data[0])%len(names)]
			off, value := int(binary.BigEndian.Uint16(data[2:])), data[4:8]
			p := files[name]
			switch data[1] % 4 {
			case 0:
				if off < len(p) {
					copy(p[off:], value)
				}
			case 1:
				p = append(p, make([]byte, max(0, off-len(p)))...)[:min(off, 1<<13)]
			case 2:
				p = nil
			case 3:
				p = slices.Clone(files[names[off%len(names)]])
			}
			files[name] = p
		}
		for name, p := range files {
			if p != nil {
				b.write(name, p, int64(max(len(p), fileSize*min(1, len(p)))))
			}
		}
		if _, err := b.fs.Stat("/s"); err != nil {
			return
		}
		s, err := Open(Options{FS: b.fs, Dir: "/s"})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		defer cancel()
		all := scanAll(t, s, ScanOptions{})
		for i := 1; i < len(all.phys); i++ {
			if all.phys[i] <= all.phys[i-1] {
				t.Fatalf("position %d after %d", all.phys[i], all.phys[i-1])
			}
		}
		for _, filter := range []Filter{{Topic: "T"}, {Topic: "T", Key: "key"}, {Topic: "T", Tag: "a"}, {From: 1_700_000_000_050}} {
			scanAll(t, s, ScanOptions{Filter: filter, Workers: 2})
		}
		if _, err := s.TopicSizes(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := Diff(ctx, first, s, DiffOptions{Report: func(Difference) {}}); err != nil {
			t.Fatal(err)
		}
		if err := s.Sums(ctx, func(RangeSum) error { return nil }); err != nil && !isNotExist(err) {
			t.Fatal(err)
		}
	})
}

func isNotExist(err error) bool { _, ok := err.(*fs.PathError); return ok }
