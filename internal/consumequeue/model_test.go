package consumequeue

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// modelQueue is what a queue must hold.
type modelQueue struct {
	units map[int64]Unit // also expired ones whose file is still there
	max   int64
}

func (m *modelQueue) last() int64 {
	if len(m.units) == 0 {
		return -1
	}
	return slices.Max(slices.Collect(maps.Keys(m.units)))
}

// min is the first slot with a record at or behind logMin.
func (m *modelQueue) min(logMin message.PhysicalOffset) int64 {
	min := m.max
	for slot, u := range m.units {
		if u.Physical >= logMin && slot < min {
			min = slot
		}
	}
	return min
}

// TestModel runs random calls against a table and maps side by side, with clean
// reopening in between.
func TestModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		opt := Options{
			FS:           memfs.New(),
			Dir:          testDir,
			FileSize:     rapid.Int64Range(2, 300).Draw(t, "unitsPerFile") * UnitSize,
			MaxOpenFiles: rapid.IntRange(1, 3).Draw(t, "maxOpenFiles"),
			BufferBytes:  rapid.Int64Range(1, 3000).Draw(t, "bufferBytes"),
			Workers:      2,
		}
		ctx := context.Background()
		table, _, err := OpenTable(ctx, opt, all)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { table.Close() }()
		type key struct {
			topic string
			id    int32
		}
		model := make(map[key]*modelQueue)
		keys := []key{{"A", 0}, {"A", 1}, {"B", 0}}
		logEnd, logMin := message.PhysicalOffset(0), message.PhysicalOffset(0)
		do := func(err error) {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
		}
		draw := func() (*Queue, *modelQueue) {
			k := rapid.SampledFrom(keys).Draw(t, "queue")
			q, err := table.GetOrCreate(k.topic, k.id)
			do(err)
			if model[k] == nil {
				model[k] = &modelQueue{units: map[int64]Unit{}}
			}
			return q, model[k]
		}
		ends := []message.PhysicalOffset{0} // where records end
		record := func() Unit {
			u := Unit{logEnd, int32(rapid.IntRange(1, 50).Draw(t, "size")), message.TagsCode(rapid.Int32().Draw(t, "tags"))}
			logEnd = u.End()
			ends = append(ends, logEnd)
			return u
		}
		put := func(q *Queue, m *modelQueue, slot int64, u Unit) {
			do(q.Put(message.QueueOffset(slot), u))
			m.units[slot] = u
			m.max = slot + 1
		}

		t.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) {
				q, m := draw()
				for range rapid.IntRange(1, 300).Draw(t, "n") {
					put(q, m, m.max, record())
				}
			},
			"put behind a gap": func(*rapid.T) {
				q, m := draw()
				put(q, m, m.max+rapid.Int64Range(1, 400).Draw(t, "gap"), record())
			},
			"put again": func(*rapid.T) {
				q, m := draw()
				if low := m.min(logMin); low < m.max {
					slot := rapid.Int64Range(low, m.max-1).Draw(t, "slot")
					if u, ok := m.units[slot]; ok {
						do(q.Put(message.QueueOffset(slot), u))
						changed, err := q.Ensure(message.QueueOffset(slot), u)
						if changed || err != nil {
							t.Fatalf("Ensure of what is there: %t, %v", changed, err)
						}
					}
				}
			},
			"replace": func(*rapid.T) {
				q, m := draw()
				if low := m.min(logMin); low < m.max {
					slot := rapid.Int64Range(low, m.max-1).Draw(t, "slot")
					if u, ok := m.units[slot]; ok {
						u.Tags++
						changed, err := q.Ensure(message.QueueOffset(slot), u)
						if !changed || err != nil {
							t.Fatalf("Ensure of something else: %t, %v", changed, err)
						}
						m.units[slot] = u
					}
				}
			},
			"write out": func(*rapid.T) { do(table.WriteOut()) },
			"sync":      func(*rapid.T) { do(table.Sync(ctx)) },
			"trim":      func(*rapid.T) { do(table.TrimAll(ctx)) },
			"truncate": func(*rapid.T) {
				logEnd = rapid.SampledFrom(ends).Draw(t, "end")
				ends = slices.DeleteFunc(ends, func(e message.PhysicalOffset) bool { return e > logEnd })
				do(table.TruncateFrom(ctx, logEnd))
				for _, m := range model {
					low := m.max
					for slot, u := range m.units {
						if u.Physical >= logEnd {
							low = min(low, slot)
							delete(m.units, slot)
						}
					}
					if low < m.max {
						m.max = low
						if last := m.last(); last >= 0 {
							m.max = last + 1
						}
					}
				}
			},
			"expire": func(*rapid.T) {
				logMin = rapid.SampledFrom(ends).Draw(t, "min")
				ends = slices.DeleteFunc(ends, func(e message.PhysicalOffset) bool { return e < logMin })
				_, err := table.DeleteBefore(logMin)
				do(err)
				for k, m := range model {
					files := table.Get(k.topic, k.id).Files()
					if len(files) == 0 {
						continue
					}
					first, _ := parseFileName(filepath.Base(files[0]))
					maps.DeleteFunc(m.units, func(slot int64, u Unit) bool {
						gone := slot < first/UnitSize
						if gone && u.Physical >= logMin {
							t.Fatalf("%v: slot %d was deleted, %+v", k, slot, u)
						}
						return gone
					})
				}
			},
			"remove queue": func(*rapid.T) {
				k := rapid.SampledFrom(keys).Draw(t, "queue")
				do(table.RemoveQueue(k.topic, k.id))
				delete(model, k)
			},
			"reopen": func(*rapid.T) {
				count, hash := table.Fingerprint()
				do(table.Close())
				discard := logEnd
				if rapid.Bool().Draw(t, "natural") {
					discard = all
				}
				table, _, err = OpenTable(ctx, opt, discard)
				do(err)
				if c, h := table.Fingerprint(); c != count || h != hash {
					t.Fatalf("fingerprint %d %x became %d %x", count, hash, c, h)
				}
				do(table.CorrectMin(ctx, logMin))
				for k, m := range model {
					if q := table.Get(k.topic, k.id); q == nil {
						if len(m.units) > 0 {
							t.Fatalf("queue %v is gone", k)
						}
						delete(model, k)
					} else if len(m.units) == 0 {
						m.max = int64(q.Max()) // what head fills remember
					}
				}
			},
			"reopen and replay": func(*rapid.T) {
				do(table.Close())
				from := rapid.SampledFrom(ends).Draw(t, "from")
				table, _, err = OpenTable(ctx, opt, from)
				do(err)
				do(table.CorrectMin(ctx, logMin))
				type rec struct {
					key
					slot int64
					unit Unit
				}
				var log []rec
				for k, m := range model {
					for slot, u := range m.units {
						if u.Physical >= from {
							log = append(log, rec{k, slot, u})
						}
					}
				}
				slices.SortFunc(log, func(a, b rec) int { return cmp.Compare(a.unit.Physical, b.unit.Physical) })
				for _, r := range log {
					q, err := table.GetOrCreate(r.topic, r.id)
					do(err)
					_, err = q.Ensure(message.QueueOffset(r.slot), r.unit)
					do(err)
				}
				for k, m := range model {
					if q := table.Get(k.topic, k.id); q == nil {
						if len(m.units) > 0 {
							t.Fatalf("queue %v is gone", k)
						}
						delete(model, k)
					} else if len(m.units) == 0 {
						m.max = int64(q.Max())
					}
				}
			},
			"": func(*rapid.T) {
				for k, m := range model {
					q := table.Get(k.topic, k.id)
					low := m.min(logMin)
					if int64(q.Min()) != low || int64(q.Max()) != m.max {
						t.Fatalf("%s: %d to %d, want %d to %d", q, q.Min(), q.Max(), low, m.max)
					}
					phy := message.PhysicalOffset(0)
					if last := m.last(); last >= 0 {
						phy = m.units[last].End()
					}
					if q.MaxPhysical() != phy {
						t.Fatalf("%s: MaxPhysical %d, want %d", q, q.MaxPhysical(), phy)
					}
					got := make([]Unit, m.max-low+1)
					n, err := q.Read(q.Min(), got)
					if err != nil || int64(n) != m.max-low {
						t.Fatalf("%s: read %d units of %d: %v", q, n, m.max-low, err)
					}
					for i, u := range got[:n] {
						want, ok := m.units[low+int64(i)]
						if ok && u != want || !ok && !u.IsFill() {
							t.Fatalf("%s: slot %d holds %+v, want %+v (%t)", q, low+int64(i), u, want, ok)
						}
					}
				}
				if n := table.OpenFiles(); n > opt.MaxOpenFiles {
					t.Fatalf("%d open files", n)
				}
				if n := table.Buffered(); n > max(opt.BufferBytes, maxBuffer) {
					t.Fatalf("%d bytes buffered", n)
				}
			},
		})
	})
}

// TestModelBatch is TestModel for batch queues.
func TestModelBatch(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ctx := context.Background()
		opt := Options{
			FS: memfs.New(), Dir: testDir, Kind: Batch,
			FileSize: rapid.Int64Range(2, 30).Draw(t, "unitsPerFile") * BatchUnitSize,
			Workers:  2,
		}
		table, _, err := OpenTable(ctx, opt, all)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { table.Close() }()
		q, err := table.GetOrCreate("T", 1)
		if err != nil {
			t.Fatal(err)
		}
		var model []BatchUnit // those whose file is still there
		slot := int64(0)      // of the first
		var next message.QueueOffset
		logEnd, logMin := message.PhysicalOffset(0), message.PhysicalOffset(0)
		t.Repeat(map[string]func(*rapid.T){
			"put": func(*rapid.T) {
				for range rapid.IntRange(1, 40).Draw(t, "n") {
					u := BatchUnit{
						Physical: logEnd, Size: int32(rapid.IntRange(1, 50).Draw(t, "size")),
						Base: next, Count: int16(rapid.IntRange(1, 5).Draw(t, "count")), Compacted: -1,
					}
					if rapid.IntRange(0, 9).Draw(t, "gap") == 0 {
						u.Base += 3
					}
					for range 2 { // and a duplicate
						if err := q.PutBatch(u); err != nil {
							t.Fatal(err)
						}
					}
					logEnd, next = u.End(), u.Next()
					model = append(model, u)
				}
			},
			"write out": func(*rapid.T) {
				if err := table.WriteOut(); err != nil {
					t.Fatal(err)
				}
			},
			"truncate": func(*rapid.T) {
				logEnd = message.PhysicalOffset(rapid.Int64Range(int64(logMin), int64(logEnd)).Draw(t, "end"))
				if err := table.TruncateFrom(ctx, logEnd); err != nil {
					t.Fatal(err)
				}
				for len(model) > 0 && model[len(model)-1].Physical >= logEnd {
					next = model[len(model)-1].Base
					model = model[:len(model)-1]
				}
				if len(model) > 0 {
					next = model[len(model)-1].Next()
				}
			},
			"expire": func(*rapid.T) {
				logMin = message.PhysicalOffset(rapid.Int64Range(int64(logMin), int64(logEnd)).Draw(t, "min"))
				if _, err := table.DeleteBefore(logMin); err != nil {
					t.Fatal(err)
				}
				if files := q.Files(); len(files) > 0 {
					start, _ := parseFileName(filepath.Base(files[0]))
					for ; slot < start/BatchUnitSize; slot++ {
						if model[0].Physical >= logMin {
							t.Fatalf("slot %d was deleted, %+v", slot, model[0])
						}
						model = model[1:]
					}
				}
			},
			"reopen": func(*rapid.T) {
				live := slices.ContainsFunc(model, func(u BatchUnit) bool { return u.Physical >= logMin })
				if !live {
					return // the offsets of an emptied batch queue are not in its files
				}
				if err := table.Close(); err != nil {
					t.Fatal(err)
				}
				if table, _, err = OpenTable(ctx, opt, logEnd); err != nil {
					t.Fatal(err)
				}
				q = table.Get("T", 1)
				if err := table.CorrectMin(ctx, logMin); err != nil {
					t.Fatal(err)
				}
			},
			"": func(*rapid.T) {
				live := model
				for len(live) > 0 && live[0].Physical < logMin {
					live = live[1:]
				}
				low := next
				if len(live) > 0 {
					low = live[0].Base
				}
				if q.Min() != low || q.Max() != next {
					t.Fatalf("%d to %d, want %d to %d", q.Min(), q.Max(), low, next)
				}
				got := make([]BatchUnit, len(live)+1)
				n, err := q.ReadBatch(q.Min(), got)
				if err != nil || !slices.Equal(got[:n], live) {
					t.Fatalf("%v, %v, want %v", got[:n], err, live)
				}
				if len(live) == 0 {
					return
				}
				i := rapid.IntRange(0, len(live)-1).Draw(t, "i")
				off := live[i].Base + message.QueueOffset(rapid.IntRange(0, int(live[i].Count)-1).Draw(t, "in"))
				if n, err := q.ReadBatch(off, got[:1]); n != 1 || err != nil || got[0] != live[i] {
					t.Fatal(fmt.Sprintf("ReadBatch(%d) = %+v, %v, want %+v", off, got[0], err, live[i]))
				}
			},
		})
	})
}
