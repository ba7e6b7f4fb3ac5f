package check

import (
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/gantrymq/gantry/internal/consumequeue"
	"github.com/gantrymq/gantry/message"
)

// The folders that a compaction works in; a crash can leave them.
var compactionWork = []string{"compacting", "replicating"}

// checkCompaction is rule 48.
func (c *checker) checkCompaction() error {
	s := c.sink()
	defer s.flush()
	root := filepath.Join(c.dir, "compaction")
	queues := map[string]bool{}
	for _, part := range []string{"compactionLog", "compactionCq"} {
		for _, t := range c.list(s, filepath.Join(root, part)) {
			if !t.IsDir() {
				continue
			}
			for _, q := range c.list(s, filepath.Join(root, part, t.Name)) {
				if _, err := strconv.ParseInt(q.Name, 10, 32); err == nil && q.IsDir() {
					queues[t.Name+"/"+q.Name] = true
				}
			}
		}
	}
	names := make([]string, 0, len(queues))
	for n := range queues {
		names = append(names, n)
	}
	slices.Sort(names)
	for _, n := range names {
		if c.ctx.Err() != nil {
			return c.ctx.Err()
		}
		topic, id, _ := strings.Cut(n, "/")
		c.compactionQueue(s, root, topic, id)
	}
	const positions = "compaction/position-checkpoint"
	c.loadJSON(s, positions, func() (func([]string, jsonValue), func()) {
		found := c.sink()
		return func(path []string, v jsonValue) { c.compactionPosition(found, positions, path, v) }, func() { found.flush() }
	})
	return nil
}

// compactionPosition looks at one value of position-checkpoint.
func (c *checker) compactionPosition(s *sink, rel string, path []string, v jsonValue) {
	if len(path) != 2 || path[0] != "queueOffsetMap" {
		return
	}
	i := strings.LastIndexByte(path[1], '_')
	off, ok := v.integer()
	if i <= 0 || !ok {
		s.addAs(ruleCompaction, Warning, rel, v.offset, "%s: %s is no queue and offset", quoteShort(path[1]), quoteShort(v.text))
		return
	}
	id, err := strconv.ParseInt(path[1][i+1:], 10, 32)
	if end := c.queueEnd(path[1][:i], int32(id)); err != nil || off < 0 || off > end && !c.abort && !c.live && !c.rocksQueues {
		s.addAs(ruleCompaction, Warning, rel, v.offset, "%s: offset %d, but the queue ends at %d", quoteShort(path[1]), off, end)
	}
}

// compactionQueue checks the pairs of log and queue files of one queue.
func (c *checker) compactionQueue(s *sink, root, topic, id string) {
	logDir := filepath.Join(root, "compactionLog", topic, id)
	cqDir := filepath.Join(root, "compactionCq", topic, id)
	logs := c.listSegments(s, ruleCompaction, []string{logDir}, compactionWork...)
	cqs := c.listSegments(s, ruleCompaction, []string{cqDir}, compactionWork...)
	for _, w := range compactionWork {
		for _, dir := range []string{logDir, cqDir} {
			if n := countRegular(c.list(s, filepath.Join(dir, w))); n > 0 {
				s.add(ruleLeftover, c.show(filepath.Join(dir, w)), 0, "%s of a compaction that was not finished", plural(int64(n), "file"))
			}
		}
	}
	sev := Error
	if c.live {
		sev = Info
	}
	base := int64(-1)
	for i, j := 0, 0; i < len(logs) || j < len(cqs); {
		switch {
		case j == len(cqs) || i < len(logs) && logs[i].start < cqs[j].start:
			s.addAs(ruleCompaction, sev, c.show(c.segmentPath([]string{logDir}, logs[i])), 0, "the log file has no queue file of the same name")
			i++
		case i == len(logs) || cqs[j].start < logs[i].start:
			s.addAs(ruleCompaction, sev, c.show(c.segmentPath([]string{cqDir}, cqs[j])), 0, "the queue file has no log file of the same name")
			j++
		default:
			if c.o.Level > Quick {
				base = c.compactionPair(s, sev, topic, id, c.segmentPath([]string{logDir}, logs[i]), c.segmentPath([]string{cqDir}, cqs[j]), logs[i].start, base)
			}
			i, j = i+1, j+1
		}
	}
}

// compactionPair compares one queue file with its log file and returns the last
// queue offset.
func (c *checker) compactionPair(s *sink, sev Severity, topic, id, logPath, cqPath string, start, base int64) int64 {
	log, cq := c.open(s, logPath), c.open(s, cqPath)
	defer func() { log.close(); cq.close() }()
	if log == nil || cq == nil {
		return base
	}
	for off := int64(0); off+batchSize <= cq.size; off += batchSize {
		if off%(batchSize*256) == 0 && c.ctx.Err() != nil {
			return base
		}
		u, _ := consumequeue.DecodeBatchUnit(cq.window(off, batchSize, unitAhead))
		if !u.Valid() {
			if r, ok := cq.nonZero(off + batchSize); ok {
				s.addAs(ruleCompaction, Warning, cq.file, r.from, "data behind the last unit")
			}
			return base
		}
		if int64(u.Base) <= base {
			s.addAs(ruleCompaction, sev, cq.file, off, "queue offset %d after %d", u.Base, base)
		}
		base = int64(u.Base)
		at := int64(u.Physical) - start
		if at < 0 || at+int64(u.Size) > log.size {
			s.addAs(ruleCompaction, sev, cq.file, off, "queue offset %d: position %d and size %d are not in the log file", u.Base, u.Physical, u.Size)
			continue
		}
		h, topicName, err := c.compactionRecord(log, at, u.Size, u.Physical)
		switch {
		case err != nil:
			s.addAs(ruleCompaction, sev, log.file, at, "queue offset %d: %v", u.Base, err)
		case h.QueueOffset != u.Base || topicName != topic || strconv.Itoa(int(h.QueueID)) != id:
			s.addAs(ruleCompaction, sev, log.file, at, "the record is one of %s/%d, offset %d, the unit says offset %d", quoteShort(topicName), h.QueueID, h.QueueOffset, u.Base)
		}
	}
	return base
}

// compactionRecord reads the record of a unit; its position is that in the
// compaction log.
func (c *checker) compactionRecord(log *input, at int64, size int32, phy message.PhysicalOffset) (message.Header, string, error) {
	if size < message.MinRecordSize {
		return message.Header{}, "", &message.FormatError{Field: "size", Got: int64(size), Reason: "below the minimum of", Want: message.MinRecordSize}
	}
	if size <= largeRecord {
		v, err := message.Check(log.window(at, int64(size), logAhead), phy, message.CheckOptions{BodyCRC: true})
		if err != nil {
			return message.Header{}, "", err
		}
		return v.Header, v.Topic(), nil
	}
	head := log.window(at, message.MaxHeaderSize, unitAhead)
	h, err := message.ParseHeader(head)
	if err != nil {
		return h, "", err
	}
	tail := int64(h.Size) - int64(h.BodyOffset) - int64(h.BodyLen)
	if h.Kind != message.KindRecord || h.Size != size || tail > maxRecordTail || tail > math.MaxInt32 {
		return h, "", &message.FormatError{Field: "size", Got: int64(h.Size), Reason: "differs from that of the unit,", Want: int64(size)}
	}
	rec := make([]byte, int64(h.BodyOffset)+tail)
	copy(rec, head[:h.BodyOffset])
	log.read(rec[h.BodyOffset:], at+int64(size)-tail)
	v, err := checkBodyless(rec, h, phy)
	if err != nil {
		return h, "", err
	}
	return h, v.Topic(), nil
}
