package check

import (
	"encoding/binary"
	"math"
	"path/filepath"

	"github.com/gantrymq/gantry/internal/checkpoint"
	"github.com/gantrymq/gantry/message"
)

// The layout of the checkpoint, section 11 of the format.
const (
	checkpointSize  = 4096
	checkpointUsed  = 48 // bytes of RocketMQ's fields
	checkpointFirst = 512
	checkpointLast  = 1536 // Gantry keeps its own fields between these
)

// checkCheckpoint is rules 38 and 39.
func (c *checker) checkCheckpoint() error {
	s := c.sink()
	defer s.flush()
	const file = "checkpoint"
	data, ok := c.slurp(s, filepath.Join(c.dir, file), 1<<20, ruleCheckpointFormat)
	if !ok {
		if c.log.end > c.log.min {
			s.addAs(ruleCheckpointFormat, Warning, file, 0, "there is no checkpoint")
		}
		return nil
	}
	if len(data) != checkpointSize {
		s.add(ruleCheckpointFormat, file, 0, "%d bytes instead of %d", len(data), checkpointSize)
	}
	var v [checkpointUsed / 8]int64
	for i := range v {
		if 8*i+8 <= len(data) {
			v[i] = int64(binary.BigEndian.Uint64(data[8*i:]))
		}
	}
	names := []string{"physicMsgTimestamp", "logicsMsgTimestamp", "indexMsgTimestamp", "masterFlushedOffset", "confirmPhyOffset", "logicsPhysicalOffset"}
	for i, n := range v {
		if n < 0 {
			s.add(ruleCheckpointFormat, file, int64(8*i), "%s is %d", names[i], n)
		}
	}
	if len(data) > checkpointUsed {
		c.checkpointRest(s, file, data)
	}
	if c.live {
		return nil // the values move while the log is read
	}
	last := c.log.newest()
	for i, n := range v[:2] {
		if n > last && last > 0 {
			s.add(ruleCheckpointValues, file, int64(8*i), "%s %d is later than the newest record, %d: the log has lost its end", names[i], n, last)
		}
	}
	newest, match := int64(math.MinInt64), v[2] == 0
	oldest := int64(math.MaxInt64)
	for _, f := range c.index.files {
		if f.ok {
			newest, oldest = max(newest, f.hdr.EndTime), min(oldest, f.hdr.EndTime)
			match = match || f.hdr.EndTime == v[2]
		}
	}
	switch {
	case match || v[2] < 0 || newest == math.MinInt64 && last == 0:
	case v[2] > max(newest, last):
		s.add(ruleCheckpointValues, file, 16, "%s %d is later than any message and index file", names[2], v[2])
	case v[2] > oldest:
		s.addAs(ruleCheckpointValues, Info, file, 16, "%s %d is the end of no index file", names[2], v[2])
	}
	c.checkpointExt(s, file)
	for i := 4; i < 6; i++ {
		if v[i] > c.log.end && len(c.log.files) > 0 {
			s.add(ruleCheckpointValues, file, int64(8*i), "%s %d is behind the end of the log at %d", names[i], v[i], c.log.end)
		}
	}
	return nil
}

// checkpointExt compares Gantry's own fields with the log, if they are there
// and up to date.
func (c *checker) checkpointExt(s *sink, file string) {
	f, err := checkpoint.Open(tolerant{c.fs, c, c.sink()}, filepath.Join(c.dir, file), nil)
	if err != nil {
		return // reading it before has reported that
	}
	defer f.Close()
	_, ext := f.Load()
	if ext == nil {
		return
	}
	end := message.PhysicalOffset(c.log.end)
	if ext.FlushedTo > end {
		s.add(ruleCheckpointValues, file, checkpointFirst, "the log was flushed up to %d, but ends at %d: it has lost its end", ext.FlushedTo, end)
	}
	if ext.DispatchedTo > end {
		s.add(ruleCheckpointValues, file, checkpointFirst, "queues and index were complete up to %d, but the log ends at %d", ext.DispatchedTo, end)
	}
}

// checkpointRest looks at what is behind RocketMQ's fields: zeros, but for the
// place where Gantry keeps its own.
func (c *checker) checkpointRest(s *sink, file string, data []byte) {
	for off := checkpointUsed; off < len(data); off++ {
		if off == checkpointFirst {
			off = checkpointLast
			if off >= len(data) {
				break
			}
		}
		if data[off] != 0 {
			s.addAs(ruleCheckpointFormat, Warning, file, int64(off), "byte %d is not zero", off)
			return
		}
	}
}

// newest returns the latest store time of a record, also of one that was being
// written when the store stopped; 0 when there is none.
func (l *logSet) newest() int64 {
	t := int64(0)
	for i, r := range l.results {
		if r != nil && i < max(l.live, 1) {
			t = max(t, r.maxTime)
		}
	}
	return t
}
