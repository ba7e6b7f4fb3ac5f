package tool

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// buffer is a file in memory.
type buffer []byte

func (b buffer) WriteAt(p []byte, off int64) (int, error) { return copy(b[off:], p), nil }

// TestFillers: a range of every size from the smallest on is covered by records
// that are valid, of no effect, and known again.
func TestFillers(t *testing.T) {
	const start = 4096
	sizes := []int64{}
	for n := int64(minFiller); n < 300; n++ {
		sizes = append(sizes, n)
	}
	sizes = append(sizes, 4096, 100_000, 1<<20-1, 1<<20, 1<<20+1, 1<<20+91, 3<<20, 5<<20+17)
	for _, n := range sizes {
		b := make(buffer, n+20)
		if err := writeFillers(b, start, start+10, start+10+n, 1_700_000_000_000, FillerTopic); err != nil {
			t.Fatal(err)
		}
		if !isZero(b[:10]) || !isZero(b[10+n:]) {
			t.Fatalf("%d bytes: something is written outside", n)
		}
		for off := int64(10); off < 10+n; {
			size := int64(message.Size(b[off:]))
			if size < minFiller || size > maxFiller+maxFiller/2 || off+size > 10+n {
				t.Fatalf("%d bytes: a record of %d at %d", n, size, off)
			}
			v, err := message.Check(b[off:off+size], message.PhysicalOffset(start+off), message.CheckOptions{BodyCRC: true, Strict: true})
			if err != nil {
				t.Fatalf("%d bytes, record at %d: %v", n, off, err)
			}
			if v.SysFlag.Queued() || v.SysFlag.Indexed() || v.QueueOffset != 0 || v.StoreTimestamp != 1_700_000_000_000 || !IsFiller(&v) {
				t.Fatalf("%d bytes: %+v", n, v.Header)
			}
			off += size
		}
	}
}

func TestZeroCRC(t *testing.T) {
	for _, n := range []int{0, 1, 4095, 4096, 4097, maxFiller / 2, maxFiller} {
		want := uint32(0)
		if n > 0 {
			want = message.BodyCRC(make([]byte, n))
		}
		if got := zeroCRC(n); got != want {
			t.Errorf("%d zeros: %#x, want %#x", n, got, want)
		}
	}
}

// TestPlaceholders: in any room there is either a valid record for the lost slot,
// after which nothing or a filler fits, or none.
func TestPlaceholders(t *testing.T) {
	for _, topic := range []string{"T", "TopicTest", strings.Repeat("x", 127), "%RETRY%" + strings.Repeat("g", 200)} {
		for _, count := range []int16{1, 3} {
			fits := false
			for room := int64(80); room < 900; room++ {
				s := lostSlot{topic: topic, queueID: 3, offset: 77, count: count, phy: 5000, size: int32(room)}
				rec := placeholder(s, room, 1_700_000_000_000)
				if rec == nil {
					if fits {
						t.Fatalf("%s: %d bytes are not enough, less were", topic, room)
					}
					continue
				}
				fits = true
				if left := room - int64(len(rec)); left < 0 || left > 0 && left < minFiller {
					t.Fatalf("%s: %d of %d bytes", topic, len(rec), room)
				}
				v, err := message.Check(rec, 5000, message.CheckOptions{BodyCRC: true, Strict: true})
				if err != nil {
					t.Fatal(err)
				}
				base, num, batch := v.InnerBatch()
				if v.Topic() != topic || v.QueueID != 3 || v.QueueOffset != 77 || !v.SysFlag.Queued() || batch != (count > 1) || batch && (base != 77 || num != count) ||
					v.StoreTimestamp != 1_700_000_000_000 {
					t.Fatalf("%+v", v.Header)
				}
				if count == 1 && v.BodyLen != 0 {
					t.Fatal("the body is not empty")
				}
				if !IsPlaceholder(&v) && v.BodyLen+v.BodyOffset+int32(len(topic))+60 < int32(room) {
					t.Fatalf("%d bytes have room for the mark", room)
				}
			}
			if !fits {
				t.Errorf("%s: never fits", topic)
			}
		}
	}
}

// TestClearRange: what was put into a range can be taken out again.
func TestClearRange(t *testing.T) {
	fsys := memfs.New()
	f, err := fsys.Create("/f")
	if err != nil {
		t.Fatal(err)
	}
	const size = 2 << 20
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	if err := writeFillers(f, 0, 0, 1000, 5, FillerTopic); err != nil {
		t.Fatal(err)
	}
	rec := placeholder(lostSlot{topic: "T", count: 2, phy: 1000}, 400, 5)
	if _, err := f.WriteAt(rec, 1000); err != nil {
		t.Fatal(err)
	}
	if err := writeFillers(f, 0, 1000+int64(len(rec)), size-100, 5, message.HalfTopic); err != nil {
		t.Fatal(err)
	}
	if err := writeBlank(f, size, 100); err != nil {
		t.Fatal(err)
	}
	if err := clearRange(f, 0, 0, size); err != nil {
		t.Fatal(err)
	}
	p := make([]byte, size)
	if _, err := f.ReadAt(p, 0); err != nil && err != io.EOF {
		t.Fatal(err)
	}
	if !isZero(p) {
		t.Errorf("something is left at %d", bytes.IndexFunc(p, func(r rune) bool { return r != 0 }))
	}
}

// FuzzLogWalk: whatever a log file holds, walking it ends, and what is left of it
// behind the repair is a chain of valid records.
func FuzzLogWalk(f *testing.F) {
	const fileSize = 8192
	rec := func(at int64, body string) []byte {
		enc := message.Encoder{}
		r, err := enc.Append(nil, &message.Message{Topic: "Topic", Body: []byte(body)})
		if err != nil {
			f.Fatal(err)
		}
		message.Patch(r, 0, message.PhysicalOffset(at), 1_700_000_000_000)
		return r
	}
	var sound []byte
	for len(sound) < 3000 {
		sound = append(sound, rec(int64(len(sound)), strings.Repeat("b", len(sound)%300))...)
	}
	f.Add(sound, uint16(0), uint16(0))
	f.Add(sound, uint16(100), uint16(90))
	f.Add(sound, uint16(1000), uint16(1))
	f.Add(append(bytes.Clone(sound), message.AppendBlank(nil, int32(fileSize-len(sound)))...), uint16(2500), uint16(300))
	inner := rec(300, string(rec(300+88, "inside")))
	f.Add(append(append(bytes.Clone(sound[:0]), make([]byte, 300)...), inner...), uint16(300), uint16(4))
	f.Fuzz(func(t *testing.T, data []byte, at, n uint16) {
		p := make([]byte, fileSize)
		copy(p, data)
		for i := int(at); i < min(int(at)+int(n), fileSize); i++ {
			p[i] ^= 0x5A
		}
		fsys := memfs.New()
		in, err := fsys.Create("/in")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := in.WriteAt(p, 0); err != nil {
			t.Fatal(err)
		}
		var out vfs.File
		w := &logWalker{ctx: context.Background(), fileSize: fileSize, fs: fsys, bad: func(string, int64, int64, error) {}}
		w.create = func() (vfs.File, error) {
			out, err = fsys.Create("/out")
			if err != nil {
				return nil, err
			}
			return out, out.Truncate(fileSize)
		}
		w.keep = func() (vfs.File, error) { return fsys.Create("/kept") }
		r, err := w.walk("/in", "in", 0)
		if err != nil {
			t.Fatal(err)
		}
		if r.records == 0 {
			return
		}
		out, err = fsys.Open("/out", vfs.ReadWrite)
		if err != nil {
			t.Fatal(err)
		}
		last := int64(0)
		for _, d := range r.ranges {
			if d.from < last || d.to-d.from < minFiller || d.to > r.end {
				t.Fatalf("range %+v behind %d, end %d", d, last, r.end)
			}
			last = d.to
			if err := writeFillers(out, 0, d.from, d.to, d.time, FillerTopic); err != nil {
				t.Fatal(err)
			}
		}
		got := make([]byte, fileSize)
		if _, err := out.ReadAt(got, 0); err != nil && err != io.EOF {
			t.Fatal(err)
		}
		records := int64(0)
		for off := int64(0); off < r.end; {
			if magic := binary.BigEndian.Uint32(got[off+4:]); magic == message.MagicBlank {
				if !r.full || int64(message.Size(got[off:])) != fileSize-off {
					t.Fatalf("blank at %d", off)
				}
				break
			}
			size := int64(message.Size(got[off:]))
			if size < minFiller-1 || off+size > r.end {
				t.Fatalf("record of %d bytes at %d, end %d", size, off, r.end)
			}
			v, err := message.Check(got[off:off+size], message.PhysicalOffset(off), message.CheckOptions{BodyCRC: true, Strict: true})
			if err != nil {
				t.Fatalf("at %d: %v", off, err)
			}
			if !IsFiller(&v) {
				records++
			}
			off += size
		}
		if records > r.records {
			t.Fatalf("%d records, the walk found %d", records, r.records)
		}
	})
}
