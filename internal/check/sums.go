package check

import (
	"math/bits"
	"math/rand/v2"
	"sync/atomic"
)

// sums proves that queues and log agree without looking anything up: over the
// records of some log files, and over the units that point into these files, it
// adds up for each queue a hash of position, size, tags code and queue offset.
// Where the two sums are equal the two sets are, to one chance in 2^64. Where
// not, the log files are read a second time, and the records of that queue are
// compared one by one with its units (package-internal: expectations).
//
// Queues of which not every unit can be told from its record alone are not
// added up but always compared one by one; see queue.summed.
type sums struct {
	seed  [6]uint64 // so that nobody can make a store whose sums agree by design
	shift int       // 2^shift log files following each other share their sums
	// differences is, for each such group and queue.idx, the sum of the records
	// less that of the units. While the log is walked it is added to atomically.
	differences [][]uint64
}

// maxSums bounds the memory for sums: 16 MiB.
const maxSums = 2 << 20

func newSums(files, queues int) *sums {
	s := &sums{}
	for i := range s.seed {
		s.seed[i] = rand.Uint64()
	}
	for (files>>s.shift+1)*queues > maxSums && files>>s.shift > 0 {
		s.shift++
	}
	s.differences = make([][]uint64, files>>s.shift+1)
	for i := range s.differences {
		s.differences[i] = make([]uint64, queues)
	}
	return s
}

// unit is the hash of a unit.
func (s *sums) unit(phy, slot, tags int64, size int32) uint64 {
	return fold(fold(uint64(phy)^s.seed[0], uint64(slot)^s.seed[1])^s.seed[2], fold(uint64(tags)^s.seed[3], uint64(size)^s.seed[4])^s.seed[5])
}

func fold(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// group is the group of the log file with that index.
func (s *sums) group(file int) int { return file >> s.shift }

// differs reports whether records and units of a queue differ in a group.
func (s *sums) differs(group int, q int32) bool { return s.differences[group][q] != 0 }

// suspect reports whether some queue differs in a group.
func (s *sums) suspect(group int) bool {
	for _, d := range s.differences[group] {
		if d != 0 {
			return true
		}
	}
	return false
}

// recordSums is what one goroutine has added up in the log file that it walks.
type recordSums struct {
	sums *sums
	own  []uint64 // by queue.idx
	used []int32  // queues with a record
}

func (r *recordSums) add(q int32, hash uint64) {
	if r.own[q] == 0 {
		r.used = append(r.used, q)
	}
	r.own[q] += hash
}

// settle adds the sums to those of the file's group.
func (r *recordSums) settle(file int) {
	if r.sums == nil {
		return
	}
	to := r.sums.differences[r.sums.group(file)]
	for _, q := range r.used {
		atomic.AddUint64(&to[q], r.own[q])
		r.own[q] = 0
	}
	r.used = r.used[:0]
}

// unitSums adds up the units of one queue. The positions of units increase, so
// that the range of a group is entered once.
type unitSums struct {
	sums     *sums
	files    []segment // of the log
	q        int32
	from, to int64 // positions of the current group; none at first
	group    int
	sum      uint64
}

func (u *unitSums) add(phy, slot, tags int64, size int32) {
	if phy < u.from || phy >= u.to {
		u.settle()
		i := findSegment(u.files, phy)
		if i < 0 {
			return
		}
		u.from, u.to, u.group = u.files[i].start, u.files[i].end(), u.sums.group(i)
	}
	u.sum += u.sums.unit(phy, slot, tags, size)
}

// settle subtracts the sum from that of the records.
func (u *unitSums) settle() {
	if u.sum != 0 {
		u.sums.differences[u.group][u.q] -= u.sum
		u.sum = 0
	}
	u.from, u.to = 0, 0
}
