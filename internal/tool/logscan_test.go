package tool

import (
	"context"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// FuzzLogScan: whatever a log holds, reading it ends, and what it gives out are
// its records, in order.
func FuzzLogScan(f *testing.F) {
	const fileSize = 4096
	var sound []byte
	enc := message.Encoder{}
	for i := range 12 {
		rec, err := enc.Append(nil, &message.Message{Topic: "Topic", Body: []byte(strings.Repeat("b", 20*i)), Properties: message.NewProperties("KEYS", "k", "TAGS", "t")})
		if err != nil {
			f.Fatal(err)
		}
		message.Patch(rec, message.QueueOffset(i), message.PhysicalOffset(len(sound)), 1_700_000_000_000)
		sound = append(sound, rec...)
	}
	f.Add(sound, 0, byte(0))
	f.Add(append(sound[:len(sound):len(sound)], message.AppendBlank(nil, int32(fileSize-len(sound)))...), 0, byte(0))
	for _, at := range []int{0, 1, 4, 8, 28, 84, 90, 300} {
		f.Add(sound, at, byte(0x81))
	}
	f.Fuzz(func(t *testing.T, data []byte, at int, x byte) {
		p := make([]byte, fileSize)
		copy(p, data)
		if at >= 0 && at < len(p) {
			p[at] ^= x
		}
		fsys := memfs.New()
		in, err := fsys.Create("/0")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.WriteAt(p, 0); err != nil {
			t.Fatal(err)
		}
		s := logScan{fs: fsys, parts: []logPart{{"/0", 0}}, fileSize: fileSize, tags: true, light: true}
		next := int64(0)
		err = s.run(context.Background(), func(b *logBatch) error {
			for i := range b.items {
				it := &b.items[i]
				if it.phy != next {
					t.Fatalf("record at %d, expected at %d", it.phy, next)
				}
				if _, err := message.Check(p[it.phy:it.phy+int64(it.size)], message.PhysicalOffset(it.phy), message.CheckOptions{BodyCRC: true}); err != nil {
					t.Fatal(err)
				}
				next += int64(it.size)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		if s.end != next && s.end != fileSize || s.end == fileSize && s.stopped != nil && next != fileSize {
			t.Fatalf("the records end at %d, the log at %d: %v", next, s.end, s.stopped)
		}
	})
}
