package tool

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// TestCorrected: a record whose queue, queue offset or topic was damaged gets
// back what its queue proves, with the old queues and, for the offset, without
// them.
func TestCorrected(t *testing.T) {
	b := loadBase(t, "5.4.0-lmq")
	pick := func(d *damager) record {
		r, ok := d.pick(func(m *golden.Message) bool {
			return m.Topic == "%RETRY%g" || m.Topic == "TopicTest" && len(m.Properties["INNER_MULTI_DISPATCH"]) == 0
		})
		if !ok {
			t.Fatal("no message")
		}
		return r
	}
	for _, tt := range []struct {
		name     string
		damage   func(d *damager, r record)
		noQueues bool
	}{
		{"offset a little higher", func(d *damager, r record) { d.set(r.file, r.off+27, d.get(r.file, r.off+27, 1)[0]+1) }, false},
		{"offset a little higher, no queues", func(d *damager, r record) { d.set(r.file, r.off+27, d.get(r.file, r.off+27, 1)[0]+1) }, true},
		{"offset lower", func(d *damager, r record) { d.set(r.file, r.off+27, d.get(r.file, r.off+27, 1)[0]-1) }, false},
		{"offset lower, no queues", func(d *damager, r record) { d.set(r.file, r.off+27, d.get(r.file, r.off+27, 1)[0]-1) }, true},
		{"offset zero", func(d *damager, r record) { d.zero(r.file, r.off+20, 8) }, false},
		{"offset zero, no queues", func(d *damager, r record) { d.zero(r.file, r.off+20, 8) }, true},
		{"offset far away", func(d *damager, r record) { d.set(r.file, r.off+21, 0x10) }, false},
		{"offset far away, no queues", func(d *damager, r record) { d.set(r.file, r.off+21, 0x10) }, true},
		{"offset negative", func(d *damager, r record) { d.set(r.file, r.off+20, 0x80) }, false},
		{"queue id", func(d *damager, r record) { d.set32(r.file, r.off+12, 77) }, false},
		{"queue id negative", func(d *damager, r record) { d.set32(r.file, r.off+12, 0x80000000) }, false},
		{"topic", func(d *damager, r record) { d.flip(r.file, r.off+posBody+int64(r.BodyLength)+3) }, false},
		{"topic that is no folder", func(d *damager, r record) { d.set(r.file, r.off+posBody+int64(r.BodyLength)+3, '/') }, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := b.damager(t)
			r := pick(d)
			want := d.get(r.file, r.off, int(r.Size))
			tt.damage(d, r)
			o := d.options()
			if tt.noQueues {
				d.remove("consumequeue")
				o.ConsumeQueueFileSize = b.m.Config.ConsumeQueueFileSize
			}
			sum, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: o, Event: func(e Event) { t.Logf("%+v %+v", e, e.EventMessage) }})
			if err != nil {
				t.Fatal(err)
			}
			d.verifyClean("/n")
			if sum.Corrected != 1 || sum.LostMessages+sum.Misplaced > 0 || sum.Messages != int64(len(b.m.Messages)) {
				t.Errorf("%+v", sum)
			}
			if got := d.content("/n/" + r.file)[r.off:][:r.Size]; !bytes.Equal(got, want) {
				t.Errorf("the record is\n%x, want\n%x", got, want)
			}
		})
	}
}

// TestNoPlace: of two records that claim one place, with nothing to tell which is
// right, the one that fits the others stays, and the other is put aside.
func TestNoPlace(t *testing.T) {
	d, at := smallStore(t, 40)
	f := "commitlog/00000000000000000000"
	// The 20th says that it is the 10th, and there is a message between 19 and 21
	// already: itself, with another offset.
	d.set64(f, at[20]+20, 10)
	d.set64(f, at[21]+20, 20)
	d.remove("consumequeue")
	var events []Event
	sum, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: gantry.Options{FS: d.fs, Now: now2024}, Event: func(e Event) { events = append(events, e) }})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		t.Logf("%+v %+v", e, e.EventMessage)
	}
	if sum.Messages+sum.Misplaced != 40 || sum.Misplaced == 0 && sum.Corrected == 0 {
		t.Errorf("%+v", sum)
	}
	d.verifyClean("/n")
}

func now2024() int64 { return 1_704_067_200_000 }

// smallStore makes a store with n messages in one queue and returns where they
// lie in its first log file.
func smallStore(t testing.TB, n int) (*damager, []int64) {
	t.Helper()
	fsys := memfs.NewCrashable(1)
	at := fill(t, fsys, "/s", n, 20)
	b := loadBase(t, "5.4.0-lmq")
	return &damager{t, b.m, fsys, []string{"/s/commitlog"}}, at
}

// fill puts n messages with bodies of size bytes into a new store.
func fill(t testing.TB, fsys vfs.FS, dir string, n, size int) (at []int64) {
	t.Helper()
	s, err := gantry.Open(t.Context(), dir, &gantry.Options{
		FS: fsys, Now: now2024, CommitLogFileSize: 1 << 20, ConsumeQueueFileSize: 20000, IndexSlots: 500, IndexEntries: 2000, CleanInterval: -1,
	})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		res, err := s.Put(t.Context(), &message.Message{
			Topic: "Orders", Body: bytes.Repeat([]byte("x"), size), BornHost: netip.MustParseAddrPort("10.0.0.1:1"),
			Properties: message.NewProperties(message.PropKeys, fmt.Sprint("k", i), message.PropTags, "A"),
		})
		if err != nil {
			t.Fatal(err)
		}
		at = append(at, int64(res.PhysicalOffset))
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return at
}

// TestPlaceholdersWithoutQueues: placeholders find room even if no queue tells
// where the lost messages lay.
func TestPlaceholdersWithoutQueues(t *testing.T) {
	d, at := smallStore(t, 40)
	f := "commitlog/00000000000000000000"
	for i := 10; i < 15; i++ {
		d.zero(f, at[i], 90)
	}
	d.remove("consumequeue")
	sum, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Lost: LostPlaceholder, Store: gantry.Options{FS: d.fs, Now: now2024}})
	if err != nil {
		t.Fatal(err)
	}
	// The bytes of five small records hold fewer placeholders than that.
	if sum.LostMessages != 5 || sum.Messages != 35 || sum.Placeholders != 0 && sum.Placeholders != 5 {
		t.Errorf("%+v", sum)
	}
	d.verifyClean("/n")
	s, err := gantry.Open(t.Context(), "/n", &gantry.Options{FS: d.fs, Now: now2024, CleanInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, q := range s.Queues() {
		if q.MaxOffset != 40 {
			t.Errorf("%+v", q)
		}
	}
}

// TestLastOffsetsStay: the queue offsets of messages that were lost at the end of
// their queue are not given again.
func TestLastOffsetsStay(t *testing.T) {
	d, at := smallStore(t, 40)
	s, err := gantry.Open(t.Context(), "/s", &gantry.Options{FS: d.fs, Now: now2024, CleanInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Put(t.Context(), &message.Message{Topic: "Later", Body: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	d.must(s.Close())
	for i := 35; i < 40; i++ {
		d.zero("commitlog/00000000000000000000", at[i], 90)
	}
	sum, err := Repair(t.Context(), RepairOptions{Dir: "/s", Out: "/n", Store: gantry.Options{FS: d.fs, Now: now2024}})
	if err != nil || sum.LostMessages != 5 || sum.Placeholders != 1 || sum.Messages != 36 {
		t.Fatalf("%+v, %v", sum, err)
	}
	d.verifyClean("/n")
	s, err = gantry.Open(t.Context(), "/n", &gantry.Options{FS: d.fs, Now: now2024, CleanInterval: -1})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	res, err := s.Put(t.Context(), &message.Message{Topic: "Orders", Body: []byte("x")})
	if err != nil || res.QueueOffset != 40 {
		t.Errorf("the next message has offset %d, want 40: %v", res.QueueOffset, err)
	}
}
