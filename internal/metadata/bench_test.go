package metadata

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

func BenchmarkTopicGet(b *testing.B) {
	for _, n := range []int{10, 10_000} {
		b.Run(fmt.Sprintf("topics=%d", n), func(b *testing.B) {
			topics := mustOpen(b, memfs.New()).topics
			names := fillTopics(topics, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				if _, ok := topics.Get(names[i%n]); !ok {
					b.Fatal("missing")
				}
				i++
			}
		})
	}
}

func fillTopics(topics *Topics, n int) []string {
	m := topics.table.collect()
	names := make([]string, n)
	for i := range names {
		names[i] = fmt.Sprintf("Topic%06d", i)
		m[names[i]] = &topicEntry{config: newTopic(names[i], 8, 6)}
	}
	topics.table.fill(m)
	return names
}

func BenchmarkTopicCreate(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("topics=%d", n), func(b *testing.B) {
			topics := mustOpen(b, memfs.New()).topics
			fillTopics(topics, n)
			c := newTopic("Another", 8, remoting.PermRead)
			b.ReportAllocs()
			for b.Loop() {
				if _, err := topics.Update(c); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkCommit(b *testing.B) {
	for _, n := range []int{100, 100_000} {
		b.Run(fmt.Sprintf("queues=%d", n), func(b *testing.B) {
			o := openOffsets(b, memfs.New())
			keys := fillOffsets(b, o, n)
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				k := keys[i%n]
				if o.Commit(k.group, k.topic, int32(i%n%8), int64(i)) != Stored {
					b.Fatal("not stored")
				}
				i++
			}
		})
	}
}

func BenchmarkCommitParallel(b *testing.B) {
	const n = 100_000
	o := openOffsets(b, memfs.New())
	keys := fillOffsets(b, o, n)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for i := 0; pb.Next(); i++ {
			k := keys[i%n]
			o.Commit(k.group, k.topic, int32(i%n%8), int64(i))
		}
	})
}

// fillOffsets commits n offsets, 8 queues for each group and topic.
func fillOffsets(b *testing.B, o *Offsets, n int) []pair {
	keys := make([]pair, n)
	for i := range keys {
		keys[i] = pair{fmt.Sprintf("Topic%06d", i/8), fmt.Sprintf("GroupOfConsumers%04d", i/8%1000)}
		if o.Commit(keys[i].group, keys[i].topic, int32(i%8), int64(i)*1000) != Stored {
			b.Fatal("not stored")
		}
	}
	return keys
}

// BenchmarkEncodeOffsets compares with encoding/json on plain maps, in bytes of
// the file.
func BenchmarkEncodeOffsets(b *testing.B) {
	const n = 100_000
	o := openOffsets(b, memfs.New())
	fillOffsets(b, o, n)
	b.Run("with=metadata", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			b.SetBytes(int64(len(o.encode())))
		}
	})
	table := map[string]any{"offsetTable": o.Table().OffsetTable}
	b.Run("with=encoding-json", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			data, err := json.Marshal(table)
			if err != nil {
				b.Fatal(err)
			}
			b.SetBytes(int64(len(data)))
		}
	})
}

// BenchmarkSaveOffsets saves 100 000 offsets of which one has changed.
func BenchmarkSaveOffsets(b *testing.B) {
	o := openOffsets(b, memfs.New())
	fillOffsets(b, o, 100_000)
	b.ReportAllocs()
	for i := int64(0); b.Loop(); i++ {
		o.Commit("GroupOfConsumers0000", "Topic000000", 0, i)
		if err := o.Save(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkOpenOffsets(b *testing.B) {
	fsys := memfs.New()
	o := openOffsets(b, fsys)
	fillOffsets(b, o, 100_000)
	if err := o.Save(); err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(readFile(b, fsys, "consumerOffset.json"))))
	b.ReportAllocs()
	for b.Loop() {
		openOffsets(b, fsys)
	}
}
