package message

import (
	"fmt"
	"testing"
)

func benchMessage(size int) *Message {
	m := messageB()
	m.Body = make([]byte, size)
	return m
}

func BenchmarkEncode(b *testing.B) {
	for _, size := range []int{128, 1 << 10, 64 << 10} {
		for _, crc := range []bool{false, true} {
			b.Run(fmt.Sprintf("body=%d/crc=%v", size, crc), func(b *testing.B) {
				m, e := benchMessage(size), Encoder{PropertyCRC: crc}
				buf := make([]byte, 0, size+1024)
				n, err := e.RecordSize(m)
				if err != nil {
					b.Fatal(err)
				}
				b.SetBytes(int64(n))
				b.ReportAllocs()
				for b.Loop() {
					rec, err := e.Append(buf, m)
					if err != nil {
						b.Fatal(err)
					}
					e.Patch(rec, 1, 2, 3)
				}
			})
		}
	}
}

func BenchmarkCheck(b *testing.B) {
	for _, size := range []int{128, 1 << 10, 64 << 10} {
		for _, crc := range []bool{false, true} {
			b.Run(fmt.Sprintf("body=%d/crc=%v", size, crc), func(b *testing.B) {
				rec := sealed(b, &Encoder{}, benchMessage(size), 1, 2, 3)
				b.SetBytes(int64(len(rec)))
				b.ReportAllocs()
				for b.Loop() {
					if _, err := Check(rec, 2, CheckOptions{BodyCRC: crc}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkDispatchFields(b *testing.B) {
	rec := sealed(b, &Encoder{}, benchMessage(0), 1, 2, 3)
	v, err := Check(rec, 2, CheckOptions{})
	if err != nil {
		b.Fatal(err)
	}
	hashes := make([]int32, 0, 8)
	b.ReportAllocs()
	for b.Loop() {
		hashes = v.IndexHashes(hashes[:0], true)
		if v.TagsCode(nil) == 0 || v.HasLightQueues() {
			b.Fatal("wrong values")
		}
	}
}
