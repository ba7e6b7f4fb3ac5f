package check

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"unicode"

	"github.com/gantrymq/gantry/internal/vfs"
)

// segment is one file of a mapped-file queue: a directory, or several, of
// files of one length named by the position of their first byte.
type segment struct {
	start int64 // from the name
	size  int64 // length of the file
	dir   int32 // which of several directories
}

func (g segment) end() int64 { return g.start + g.size }

// segmentName is the file name of a start position.
func segmentName(start int64) string { return fmt.Sprintf("%020d", start) }

// parseSegmentName is the reverse. Only 20 ASCII digits are a name.
func parseSegmentName(name string) (int64, bool) {
	if len(name) != 20 {
		return 0, false
	}
	for i := range len(name) {
		if name[i] < '0' || name[i] > '9' {
			return 0, false
		}
	}
	n, err := strconv.ParseInt(name, 10, 64)
	return n, err == nil && n < maxPosition
}

// maxPosition bounds positions, so that adding a file size to one does not
// overflow.
const maxPosition = 1 << 62

// numeric reports whether a file name looks like one that was meant for a
// segment: nothing but digits of any script.
func numeric(name string) bool {
	if name == "" {
		return false
	}
	for _, r := range name {
		if (r < '0' || r > '9') && !isForeignDigit(r) {
			return false
		}
	}
	return true
}

func isForeignDigit(r rune) bool { return r > unicode.MaxASCII && unicode.IsDigit(r) }

// listSegments lists the files of one queue, sorted by start, and reports
// names that do not belong: as name those that look like a wrong segment name,
// as leftovers all others. Directories in skip are passed over in silence.
func (c *checker) listSegments(s *sink, name *rule, dirs []string, skip ...string) []segment {
	var segs []segment
	for i, dir := range dirs {
		for _, e := range c.list(s, dir) {
			path := filepath.Join(dir, e.Name)
			start, ok := parseSegmentName(e.Name)
			switch {
			case e.IsDir():
				if !slices.Contains(skip, e.Name) {
					s.add(ruleLeftover, c.show(path), 0, "a folder among the files; brokers before 5.1 do not start with it")
				}
			case !e.IsRegular():
				s.add(ruleLeftover, c.show(path), 0, "not a file of its own (%v); it is not followed", e.Mode.Type())
			case ok:
				segs = append(segs, segment{start: start, size: e.Size, dir: int32(i)})
			case numeric(e.Name):
				s.add(name, c.show(path), 0, "the name is not 20 ASCII digits of a possible position")
			default:
				s.add(ruleLeftover, c.show(path), 0, "a foreign file; a Java broker does not start with it")
			}
		}
	}
	slices.SortStableFunc(segs, func(a, b segment) int { return cmp.Compare(a.start, b.start) })
	return segs
}

// inferFileSize finds the length that the files of a queue were made with from
// their lengths and names: the one that most of both agree with. unit divides
// it. 0 when there is nothing to go by.
func inferFileSize(segs []segment, unit int64) int64 {
	var tally sizeTally
	tally.add(segs)
	return tally.best(unit)
}

// sizeTally collects votes for a file length over many queues.
type sizeTally struct {
	lengths map[int64]int
	gaps    map[int64]int
}

// maxTally bounds the lengths that are told apart; a healthy store has one.
const maxTally = 1000

func (t *sizeTally) add(segs []segment) {
	if t.lengths == nil {
		t.lengths, t.gaps = map[int64]int{}, map[int64]int{}
	}
	for i, g := range segs {
		if g.size > 0 && (len(t.lengths) < maxTally || t.lengths[g.size] > 0) {
			t.lengths[g.size]++
		}
		if i > 0 {
			if d := g.start - segs[i-1].start; d > 0 && (len(t.gaps) < maxTally || t.gaps[d] > 0) {
				t.gaps[d]++
			}
		}
	}
}

func (t *sizeTally) best(unit int64) int64 {
	best, bestVotes := int64(0), -1
	consider := func(n int64) {
		if n <= 0 || n%unit != 0 {
			return
		}
		votes := 2*t.lengths[n] + 2*t.gaps[n]
		// Of two lengths with equal votes the greater: a file is cut more
		// often than it grows.
		if votes > bestVotes || votes == bestVotes && n > best {
			best, bestVotes = n, votes
		}
	}
	for n := range t.lengths {
		consider(n)
	}
	for n := range t.gaps {
		if t.lengths[n] > 0 || len(t.lengths) == 1 {
			consider(n)
		}
	}
	return best
}

// checkSegments reports names that are no multiple of the file size, wrong
// lengths and names given twice. It returns the files that can be used, cut to
// what fits between their neighbours, and the gaps between them.
func (c *checker) checkSegments(s *sink, name, length *rule, dirs []string, segs []segment, fileSize int64) (usable []segment, gaps []span) {
	all := s
	for i, g := range segs {
		if s = all; i == len(segs)-1 && c.live {
			s = c.movingSink() // it may just be made
			defer func(last *sink) { all.take(last) }(s)
		}
		file := c.show(c.segmentPath(dirs, g))
		if g.start%fileSize != 0 {
			s.add(name, file, 0, "the name is no multiple of the file size %d", fileSize)
			if len(usable) > 0 && g.start < usable[len(usable)-1].start+fileSize {
				continue
			}
		}
		if len(usable) > 0 && g.start == usable[len(usable)-1].start {
			s.add(name, file, 0, "the same name is also in another folder: %s", c.show(c.segmentPath(dirs, usable[len(usable)-1])))
			continue
		}
		switch {
		case g.size == fileSize:
		case g.size == 0 && i == len(segs)-1:
			s.addAs(length, Warning, file, 0, "the last file is empty; brokers before 5.1.3 do not start with it, later ones remove it")
		case g.size > fileSize:
			s.add(length, file, 0, "%d bytes long instead of %d; what is behind is not looked at", g.size, fileSize)
			g.size = fileSize
		default:
			s.add(length, file, 0, "%d bytes long instead of %d", g.size, fileSize)
		}
		if n := len(usable); n > 0 {
			if prev := usable[n-1].start + fileSize; g.start > prev {
				gaps = append(gaps, span{prev, g.start})
			}
		}
		usable = append(usable, g)
	}
	return usable, gaps
}

func (c *checker) segmentPath(dirs []string, g segment) string {
	return filepath.Join(dirs[g.dir], segmentName(g.start))
}

// findSegment returns the file that holds position off, or -1.
func findSegment(segs []segment, off int64) int {
	i, found := slices.BinarySearchFunc(segs, off, func(g segment, off int64) int { return cmp.Compare(g.start, off) })
	if !found {
		i--
	}
	if i < 0 || off >= segs[i].end() {
		return -1
	}
	return i
}

// countRegular counts the regular files of a listing.
func countRegular(entries []vfs.Entry) int {
	n := 0
	for _, e := range entries {
		if e.IsRegular() {
			n++
		}
	}
	return n
}
