package check

import "testing"

// TestSums: however many files and queues there are, the memory is bounded, and
// sums agree exactly when the units are the same.
func TestSums(t *testing.T) {
	for _, tc := range []struct{ files, queues int }{{0, 0}, {1, 400}, {20, 400}, {2000, 50_000}, {10_000_000, 1}, {1, 3_000_000}} {
		s := newSums(tc.files, tc.queues)
		n := 0
		for _, d := range s.differences {
			n += len(d)
		}
		if n > max(2*maxSums, tc.queues) {
			t.Errorf("%d files and %d queues: %d sums", tc.files, tc.queues, n)
		}
		if last := s.group(max(tc.files-1, 0)); last >= len(s.differences) {
			t.Errorf("%d files: the last one is in group %d of %d", tc.files, last, len(s.differences))
		}
	}
	type unit struct {
		phy, slot, tags int64
		size            int32
	}
	files := []segment{{start: 0, size: 1000}, {start: 1000, size: 1000}}
	for _, tc := range []struct {
		name    string
		records [2][]unit // by file, in any order
		units   []unit
		differ  [2]bool
	}{
		{"none", [2][]unit{}, nil, [2]bool{}},
		{"the same", [2][]unit{{{10, 1, 7, 100}, {0, 0, 7, 10}}, {{1500, 2, 0, 50}}}, []unit{{0, 0, 7, 10}, {10, 1, 7, 100}, {1500, 2, 0, 50}}, [2]bool{}},
		{"a unit too few", [2][]unit{{{0, 0, 7, 10}}, {{1500, 2, 0, 50}}}, []unit{{0, 0, 7, 10}}, [2]bool{false, true}},
		{"a unit too many", [2][]unit{{}, {{1500, 2, 0, 50}}}, []unit{{0, 0, 7, 10}, {1500, 2, 0, 50}}, [2]bool{true, false}},
		{"another slot", [2][]unit{{{0, 0, 7, 10}}}, []unit{{0, 1, 7, 10}}, [2]bool{true, false}},
		{"slots exchanged", [2][]unit{{{0, 0, 7, 10}, {10, 1, 7, 10}}}, []unit{{0, 1, 7, 10}, {10, 0, 7, 10}}, [2]bool{true, false}},
		{"other tags", [2][]unit{{{0, 0, 7, 10}}}, []unit{{0, 0, 8, 10}}, [2]bool{true, false}},
		{"another size", [2][]unit{{{0, 0, 7, 10}}}, []unit{{0, 0, 7, 11}}, [2]bool{true, false}},
		{"twice", [2][]unit{{{0, 0, 7, 10}}}, []unit{{0, 0, 7, 10}, {0, 0, 7, 10}}, [2]bool{true, false}},
		{"back and forth", [2][]unit{{{0, 0, 0, 1}, {9, 2, 0, 1}}, {{1000, 1, 0, 1}}}, []unit{{0, 0, 0, 1}, {1000, 1, 0, 1}, {9, 2, 0, 1}}, [2]bool{}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := newSums(len(files), 3)
			r := recordSums{sums: s, own: make([]uint64, 3)}
			for i, list := range tc.records {
				for _, u := range list {
					r.add(2, s.unit(u.phy, u.slot, u.tags, u.size))
				}
				r.settle(i)
			}
			us := unitSums{sums: s, files: files, q: 2}
			for _, u := range tc.units {
				us.add(u.phy, u.slot, u.tags, u.size)
			}
			us.settle()
			for i, want := range tc.differ {
				if got := s.differs(s.group(i), 2); got != want || s.suspect(s.group(i)) != want {
					t.Errorf("file %d differs: %v, want %v", i, got, want)
				}
			}
		})
	}
}
