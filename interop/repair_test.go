//go:build interop

package interop

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/golden"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/interop/javastore"
	"github.com/gantrymq/gantry/message"
)

// damageLog breaks a store's log in three ways, and returns the positions of the
// messages that are lost with that: bodies here and there, a page of zeros, and
// a whole file.
func damageLog(t *testing.T, dir string, c golden.Config, all []golden.Message) map[message.PhysicalOffset]bool {
	t.Helper()
	lost := map[message.PhysicalOffset]bool{}
	hit := func(from, to message.PhysicalOffset) {
		for i := range all {
			if m := &all[i]; m.PhysicalOffset < to && m.PhysicalOffset+message.PhysicalOffset(m.Size) > from {
				lost[m.PhysicalOffset] = true
			}
		}
	}
	write := func(phy message.PhysicalOffset, p []byte) {
		start := int64(phy) / c.CommitLogFileSize * c.CommitLogFileSize
		f, err := os.OpenFile(filepath.Join(dir, "commitlog", fmt.Sprintf("%020d", start)), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if _, err := f.WriteAt(p, int64(phy)-start); err != nil {
			t.Fatal(err)
		}
		hit(phy, phy+message.PhysicalOffset(len(p)))
	}
	size := message.PhysicalOffset(c.CommitLogFileSize)
	last := all[len(all)-1].PhysicalOffset
	if last < 3*size {
		t.Fatalf("the log ends at %d: too short to be damaged", last)
	}
	for i := 3; i < len(all)-5; i += 17 {
		if m := &all[i]; m.BodyLength > 0 && m.PhysicalOffset/size != 1 {
			// The last byte of a body: behind it are topic, properties and lengths.
			end := m.PhysicalOffset + message.PhysicalOffset(m.Size) - message.PhysicalOffset(len(m.RawProperties)) - 2 - message.PhysicalOffset(len(m.Topic)) - 2
			write(end, []byte{0xA5, 0x5A}[:1])
		}
	}
	page := (2*size + size/2) / 4096 * 4096
	write(page, make([]byte, 4096))
	if err := os.Remove(filepath.Join(dir, "commitlog", fmt.Sprintf("%020d", size))); err != nil {
		t.Fatal(err)
	}
	hit(size, 2*size)
	return lost
}

// TestJavaReadsRepaired: Java opens a repaired store, has every surviving message
// in its place, delivers them in order, goes on with the right queue offsets, and
// comes through a recovery of its own. With placeholders a consumer that pulls
// from the start gets every surviving message.
func TestJavaReadsRepaired(t *testing.T) {
	for _, version := range javastore.Versions {
		for name, lostMode := range map[string]tool.Lost{"gap": tool.LostGap, "placeholder": tool.LostPlaceholder} {
			t.Run(version+"/"+name, func(t *testing.T) {
				t.Parallel()
				java := javaStore(t, version)
				dir, out, c := t.TempDir(), filepath.Join(t.TempDir(), "new"), small()
				put, err := java.Append(t.Context(), dir, c, nil, 6*puts, 1)
				if err != nil {
					t.Fatal(err)
				}
				checkPuts(t, put, 6*puts)
				before, err := java.Read(t.Context(), dir, c, javastore.Questions{})
				if err != nil {
					t.Fatal(err)
				}
				lost := damageLog(t, dir, c, before.Messages)
				sum, err := tool.Repair(t.Context(), tool.RepairOptions{Dir: dir, Out: out, Lost: lostMode, Store: *repairOptions(dir, c)})
				if err != nil {
					t.Fatal(err)
				}
				if sum.Messages < int64(len(before.Messages)-len(lost)) || len(lost) < 10 || sum.LostMessages < 10 {
					t.Errorf("%+v, with %d of %d messages damaged", sum, len(lost), len(before.Messages))
				}
				if _, err := check.Run(t.Context(), check.Options{Dir: out, Level: check.Deep}, func(f check.Finding) {
					if f.Severity > check.Info {
						t.Errorf("checker: %s", f)
					}
				}); err != nil {
					t.Fatal(err)
				}

				// Java reads it: messages, and each queue as a consumer does.
				var q javastore.Questions
				for i := range before.Queues {
					for off := before.Queues[i].Min; off < before.Queues[i].Max; off++ {
						q.GetMessage = append(q.GetMessage, golden.Get{Topic: before.Queues[i].Topic, QueueID: before.Queues[i].ID, Offset: off, MaxMsgNums: 32})
					}
				}
				after, err := java.Read(t.Context(), out, c, q)
				if err != nil {
					t.Fatal(err)
				}
				survivors(t, before, after, lost)
				consume(t, before, after, lost, lostMode == tool.LostPlaceholder)

				// Java goes on, is killed, and recovers.
				more, err := java.Crash(t.Context(), out, c, nil, puts, 2)
				if err != nil {
					t.Fatal(err)
				}
				checkPuts(t, more, puts)
				for _, p := range more.Puts {
					if w := before.Queue(p.Topic, p.QueueID); w != nil && p.LogicsOffset < w.Max && p.Sent != nil && p.Sent.SysFlag.Queued() {
						t.Errorf("Java gave offset %d of %s/%d again; it had come to %d", p.LogicsOffset, p.Topic, p.QueueID, w.Max)
					}
				}
				removeEmptyFiles(t, out, version)
				if after, err = java.Read(t.Context(), out, c, javastore.Questions{}); err != nil {
					t.Fatal(err)
				}
				survivors(t, before, after, lost)
				s := open(t, out, c)
				comparePuts(t, s, more.Puts)
				closeAndCheck(t, s, c)
			})
		}
	}
}

// survivors checks that Java has every message that was not damaged, as it was,
// at its queue offset.
func survivors(t *testing.T, before, after *javastore.Answer, lost map[message.PhysicalOffset]bool) {
	t.Helper()
	if !after.Load || !after.Dispatched || after.WalkStopped != "" {
		t.Fatalf("Java: load %t, dispatched %t, %s\n%s", after.Load, after.Dispatched, after.WalkStopped, after.Log)
	}
	for i := range before.Messages {
		want := &before.Messages[i]
		if lost[want.PhysicalOffset] {
			continue
		}
		got := after.Message(want.PhysicalOffset)
		if got == nil || got.RawSHA256 != want.RawSHA256 {
			t.Errorf("Java has not the message at %d: %+v", want.PhysicalOffset, got)
			return
		}
	}
	for i := range before.Queues {
		w := &before.Queues[i]
		g := after.Queue(w.Topic, w.ID)
		for k, u := range w.Units {
			if lost[u.Physical] {
				continue
			}
			at := int(w.Min) + k - int(g.Min)
			if g == nil || at < 0 || at >= len(g.Units) || g.Units[at] != u {
				t.Errorf("Java's queue %s/%d has not the unit of offset %d", w.Topic, w.ID, int(w.Min)+k)
				return
			}
		}
	}
}

// consume follows a consumer that pulls each queue from its start.
func consume(t *testing.T, before, after *javastore.Answer, lost map[message.PhysicalOffset]bool, complete bool) {
	t.Helper()
	type place struct {
		topic string
		id    int32
		off   message.QueueOffset
	}
	answers := map[place]*golden.Get{}
	for i := range after.GetMessage {
		g := &after.GetMessage[i]
		answers[place{g.Topic, g.QueueID, g.Offset}] = g
	}
	for i := range before.Queues {
		w := &before.Queues[i]
		var want, got []message.PhysicalOffset
		for _, u := range w.Units {
			if !lost[u.Physical] {
				want = append(want, u.Physical)
			}
		}
		for off := w.Min; off < w.Max; {
			g := answers[place{w.Topic, w.ID, off}]
			if g == nil || g.NextBeginOffset <= off {
				t.Errorf("%s/%d: stuck at %d: %+v", w.Topic, w.ID, off, g)
				return
			}
			for _, phy := range g.PhyOffsets {
				if before.Message(phy) != nil && !lost[phy] {
					got = append(got, phy)
				}
			}
			off = g.NextBeginOffset
		}
		switch {
		case complete && fmt.Sprint(got) != fmt.Sprint(want):
			t.Errorf("%s/%d: the consumer got %d messages, %d survived", w.Topic, w.ID, len(got), len(want))
		case !ordered(got):
			t.Errorf("%s/%d: out of order: %v", w.Topic, w.ID, got)
		}
	}
}

func ordered(l []message.PhysicalOffset) bool {
	for i := 1; i < len(l); i++ {
		if l[i] <= l[i-1] {
			return false
		}
	}
	return true
}

// repairOptions are the options of a command.
func repairOptions(dir string, c golden.Config) *gantry.Options {
	o := options(dir, c)
	o.FS, o.CommitLogDirs, o.IsBatchTopic = vfs.OS(), nil, nil
	return o
}
