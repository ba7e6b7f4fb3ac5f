package tool

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
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

// TestLogScanStops: reading ends when a batch cannot be dealt with, and at a
// damaged record, although much of the log is left.
func TestLogScanStops(t *testing.T) {
	const fileSize = 4 << 20
	fsys := memfs.New()
	var parts []logPart
	enc := message.Encoder{}
	body := []byte(strings.Repeat("b", 100<<10))
	for start := int64(0); start < 16*fileSize; start += fileSize {
		var p []byte
		for {
			rec, err := enc.Append(nil, &message.Message{Topic: "Topic", Body: body})
			if err != nil {
				t.Fatal(err)
			}
			if rest := fileSize - len(p); len(rec)+message.BlankSize > rest {
				p = message.AppendBlank(p, int32(rest))
				break
			}
			message.Patch(rec, 0, message.PhysicalOffset(start+int64(len(p))), 1_700_000_000_000)
			p = append(p, rec...)
		}
		name := fmt.Sprint("/", start)
		f, err := fsys.Create(name)
		if err == nil {
			_, err = f.WriteAt(p, 0)
		}
		if err == nil {
			err = errors.Join(f.Truncate(fileSize), f.Close())
		}
		if err != nil {
			t.Fatal(err)
		}
		parts = append(parts, logPart{name, start})
	}
	s := logScan{fs: fsys, parts: parts, fileSize: fileSize}
	full := errors.New("disk full")
	if err := s.run(t.Context(), func(*logBatch) error { return full }); !errors.Is(err, full) {
		t.Errorf("got %v, want %v", err, full)
	}
	f, err := fsys.Open("/0", vfs.ReadWrite)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte("damage"), 1000); err != nil {
		t.Fatal(err)
	}
	if err := s.run(t.Context(), func(*logBatch) error { return nil }); err != nil || s.stopped == nil || s.end != 0 {
		t.Errorf("the records end at %d, %v, %v", s.end, s.stopped, err)
	}
}
