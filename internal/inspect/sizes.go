package inspect

import (
	"cmp"
	"context"
	"errors"
	"path/filepath"
	"slices"

	"github.com/gantrymq/gantry/internal/vfs"
)

// TopicSize is how much of a log belongs to a topic, by its consume queues.
type TopicSize struct {
	Topic    string
	Queues   int
	Messages int64 // units that point into the log
	Bytes    int64 // of their records
	Estimate bool  // only a sample of the units was looked at
}

// maxSized is how many units are read to learn the sizes of topics; where there
// are more, samples have to do.
const maxSized = 4_000_000

// sampleUnits is how many units lie next to each other in a sample.
const sampleUnits = 256

// TopicSizes returns the sizes of all topics, the largest first. A record that
// several queues refer to counts for each of their topics.
func (s *Store) TopicSizes(ctx context.Context) ([]TopicSize, error) {
	queues, err := s.Queues()
	if err != nil {
		return nil, err
	}
	counts := make([]int64, len(queues)) // units on disk
	total := int64(0)
	for i := range queues {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		counts[i] = s.countUnits(&queues[i])
		total += counts[i]
	}
	var list []TopicSize
	for i := range queues {
		q := &queues[i]
		if n := len(list); n == 0 || list[n-1].Topic != q.Topic {
			list = append(list, TopicSize{Topic: q.Topic})
		}
		t := &list[len(list)-1]
		t.Queues++
		if total <= maxSized {
			err = s.addAll(ctx, q, t)
		} else {
			err = s.addSamples(ctx, q, counts[i], max(counts[i]*maxSized/total/sampleUnits, 1), t)
		}
		if err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(list, func(a, b TopicSize) int { return cmp.Compare(b.Bytes, a.Bytes) })
	return list, nil
}

// countUnits is how many units lie between the start of a queue's first file and
// its end.
func (s *Store) countUnits(q *Queue) int64 {
	n := int64(0)
	for i := len(q.files) - 1; i >= 0; i-- {
		if n > 0 {
			n += q.files[i].size / q.unit
			continue
		}
		n = s.unitsIn(q, i)
	}
	return n
}

// unitsIn is how many units a file has, found by halving.
func (s *Store) unitsIn(q *Queue, file int) int64 {
	f, err := s.fs.Open(filepath.Join(q.dir, segmentName(q.files[file].start)), vfs.ReadOnly)
	if err != nil {
		return 0
	}
	defer f.Close()
	lo, hi := int64(0), q.files[file].size/q.unit
	for lo < hi {
		mid := lo + (hi-lo)/2
		if _, ok := s.unitIn(f, q, file, mid); ok {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo
}

func (s *Store) addAll(ctx context.Context, q *Queue, t *TopicSize) error {
	err := s.walk(ctx, q, func(u unit, _ int, _ int64) error {
		if !u.fill && int64(u.Physical) >= s.Min() {
			t.Messages += int64(u.Count)
			t.Bytes += int64(u.Size)
		}
		return nil
	})
	if errors.Is(err, errStop) {
		return nil
	}
	return err
}

// addSamples looks at some runs of units, and takes all others to be like them.
func (s *Store) addSamples(ctx context.Context, q *Queue, count, samples int64, t *TopicSize) error {
	var seen, messages, bytes int64
	buf := make([]byte, sampleUnits*q.unit)
	per := int64(0)
	if len(q.files) > 0 {
		per = q.files[0].size / q.unit
	}
	for i := range samples {
		if err := ctx.Err(); err != nil {
			return err
		}
		at := count * i / samples
		if per == 0 || at/per >= int64(len(q.files)) {
			break
		}
		g := q.files[at/per]
		f, err := s.fs.Open(filepath.Join(q.dir, segmentName(g.start)), vfs.ReadOnly)
		if err != nil {
			continue
		}
		off := at % per * q.unit
		p := buf[:max(min(int64(len(buf)), (g.size-off)/q.unit*q.unit, (count-at)*q.unit), 0)]
		err = readAt(f, p, off)
		f.Close()
		if err != nil {
			continue
		}
		for ; len(p) > 0; p, off = p[q.unit:], off+q.unit {
			u, ok := q.decode(p, (g.start+off)/q.unit)
			if !ok {
				break
			}
			seen++
			if !u.fill && int64(u.Physical) >= s.Min() {
				messages += int64(u.Count)
				bytes += int64(u.Size)
			}
		}
	}
	if seen > 0 {
		scale := float64(count) / float64(seen)
		t.Messages += int64(float64(messages) * scale)
		t.Bytes += int64(float64(bytes) * scale)
	}
	t.Estimate = t.Estimate || seen < count
	return nil
}
