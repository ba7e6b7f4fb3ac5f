package inspect

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// patch changes bytes of a file.
func patch(t testing.TB, fsys vfs.FS, name string, off int64, p []byte) {
	t.Helper()
	f, err := fsys.Open(name, vfs.ReadWrite)
	if err == nil {
		_, err = f.WriteAt(p, off)
	}
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
}

func remove(t testing.TB, fsys vfs.FS, name string) {
	t.Helper()
	if err := fsys.Remove(name); err != nil {
		t.Fatal(err)
	}
}

func runDiff(t testing.TB, a, b *Store) ([]Difference, DiffResult) {
	t.Helper()
	var list []Difference
	res, err := Diff(context.Background(), a, b, DiffOptions{Report: func(d Difference) {
		if d.Detail == "" || d.File == "" || d.Offset < 0 || d.OnlyA+d.OnlyB+d.Differ == 0 {
			t.Errorf("incomplete difference %+v", d)
		}
		list = append(list, d)
	}})
	if err != nil {
		t.Fatal(err)
	}
	if res.Differences != int64(len(list)) {
		t.Errorf("%d differences reported, the result says %+v", len(list), res)
	}
	return list, res
}

// firstIndex is the path of the store's first index file.
func firstIndex(t testing.TB, s *Store) string {
	t.Helper()
	files := s.indexFiles()
	if len(files) == 0 {
		t.Fatal("no index")
	}
	return files[0]
}

// TestDiff: each damage to a copy is found, where it is, and nothing else.
func TestDiff(t *testing.T) {
	const name = "5.4.0-basic-clean"
	m := golden.MustLoad(t, name)
	a := openGolden(t, m, memfs.New(), name)
	var rec *golden.Message // not in the first file
	for i := range m.Messages {
		if m.Messages[i].PhysicalOffset > 3<<20 {
			rec = &m.Messages[i]
			break
		}
	}
	var blank golden.Blank
	for _, b := range m.Blanks {
		if b.Size > 5000 {
			blank = b
			break
		}
	}
	q := "/s/consumequeue/TopicTest/0/" + segmentName(0)
	for _, tc := range []struct {
		name   string
		change func(fsys vfs.FS)
		want   []string // "part file offset detail", each a part of it
	}{
		{"nothing", func(vfs.FS) {}, nil},
		{"a byte of a message", func(fsys vfs.FS) {
			at := int64(rec.PhysicalOffset) + 70
			patch(t, fsys, "/s/commitlog/"+segmentName(at>>20<<20), at%(1<<20), []byte{0xEE})
		}, []string{fmt.Sprintf("log commitlog/%s %d inside a message of %s/%d, offset %d, at %d", segmentName(int64(rec.PhysicalOffset)>>20<<20), rec.PhysicalOffset+70,
			rec.Topic, rec.QueueID, rec.QueueOffset, rec.PhysicalOffset)}},
		{"behind the records of a file", func(fsys vfs.FS) {
			at := int64(blank.PhysicalOffset)
			patch(t, fsys, "/s/commitlog/"+segmentName(at>>20<<20), at%(1<<20)+20, []byte("stale"))
		}, nil},
		{"behind the end", func(fsys vfs.FS) {
			end := int64(m.MaxPhysicalOffset)
			patch(t, fsys, "/s/commitlog/"+segmentName(end>>20<<20), end%(1<<20)+100, []byte("stale"))
		}, nil},
		{"an earlier end", func(fsys vfs.FS) {
			last := m.Messages[len(m.Messages)-1]
			patch(t, fsys, "/s/commitlog/"+segmentName(int64(last.PhysicalOffset)>>20<<20), int64(last.PhysicalOffset)%(1<<20), make([]byte, last.Size))
		}, []string{fmt.Sprintf("log commitlog/%s %d only in the first, messages: 1", segmentName(int64(m.MaxPhysicalOffset)>>20<<20), m.Messages[len(m.Messages)-1].PhysicalOffset)}},
		{"a later start", func(fsys vfs.FS) { remove(t, fsys, "/s/commitlog/"+segmentName(0)) },
			[]string{fmt.Sprintf("log commitlog/%s 0 positions 0 to 1048576 are only in the first", segmentName(0))}},
		{"a unit", func(fsys vfs.FS) { patch(t, fsys, q, 20*7+19, []byte{0x55}) },
			[]string{"queue consumequeue/TopicTest/0 7 queue offset 7: position"}},
		{"the end of a queue", func(fsys vfs.FS) { patch(t, fsys, q, 20*5, make([]byte, 20)) },
			[]string{"queue consumequeue/TopicTest/0 5 queue offset 5 is only in the first"}},
		{"a queue", func(fsys vfs.FS) {
			files, err := fsys.List("/s/consumequeue/TopicTest/1")
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				remove(t, fsys, filepath.Join("/s/consumequeue/TopicTest/1", f.Name))
			}
			remove(t, fsys, "/s/consumequeue/TopicTest/1")
		}, []string{"queue consumequeue/TopicTest/1 0 the queue is only in the first"}},
		{"the hash of a key", func(fsys vfs.FS) {
			patch(t, fsys, firstIndex(t, a), 40+int64(m.Config.IndexSlots)*4+20*3+3, []byte{1})
		}, []string{"index index"}},
		{"an index file", func(fsys vfs.FS) { remove(t, fsys, firstIndex(t, a)) }, []string{"index index"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			fsys := memfs.New()
			openGolden(t, m, fsys, name)
			tc.change(fsys)
			b, err := Open(Options{FS: fsys, Dir: "/s"})
			if err != nil {
				t.Fatal(err)
			}
			got, res := runDiff(t, a, b)
			back, _ := runDiff(t, b, a)
			if len(got) != len(tc.want) || len(back) != len(got) {
				t.Fatalf("%d differences, %d the other way round, want %d: %v", len(got), len(back), len(tc.want), got)
			}
			for i, d := range got {
				words := strings.SplitN(tc.want[i], " ", 4)
				if d.Part != words[0] || d.File != words[1] || len(words) > 2 && (fmt.Sprint(d.Offset) != words[2] || !strings.Contains(d.Detail, words[3])) {
					t.Errorf("got %+v, want %s", d, tc.want[i])
				}
				if r := back[i]; r.OnlyA != d.OnlyB || r.OnlyB != d.OnlyA || r.Differ != d.Differ {
					t.Errorf("the other way round %+v, want the reverse of %+v", r, d)
				}
			}
			if res.LogBytes == 0 || res.Queues == 0 || res.Units == 0 || res.IndexEntries == 0 {
				t.Errorf("compared only %+v", res)
			}
		})
	}
}

func TestSums(t *testing.T) {
	b := newBuilder(t, 4096)
	for range 100 {
		b.put("T", "", "", "some text")
	}
	read := func(s *Store) (list []RangeSum) {
		if err := s.Sums(context.Background(), func(r RangeSum) error { list = append(list, r); return nil }); err != nil {
			t.Fatal(err)
		}
		return list
	}
	want := read(b.open())
	if len(want) == 0 || want[0].From != 0 || want[len(want)-1].To != int64(len(b.log)) {
		t.Fatalf("sums %+v of a log of %d bytes", want, len(b.log))
	}
	b.log[b.at[50]+message.MinRecordSize-10] ^= 1
	differ := 0
	for i, r := range read(b.open()) {
		if i >= len(want) || r.From != want[i].From || r.To != want[i].To {
			t.Fatalf("other ranges: %+v", r)
		}
		if r.CRC != want[i].CRC {
			differ++
		}
	}
	if differ != 1 {
		t.Errorf("%d sums differ", differ)
	}
}
