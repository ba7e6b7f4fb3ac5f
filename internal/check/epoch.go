package check

import (
	"bytes"
	"fmt"
	"hash/crc32"
	"path/filepath"
	"strconv"
	"strings"
)

// checkEpoch is rule 49: the epoch file of the controller mode, or its .bak.
func (c *checker) checkEpoch() error {
	s := c.sink()
	defer s.flush()
	const file = "epochFileCheckpoint"
	data, ok := c.slurp(s, filepath.Join(c.dir, file), 16<<20, ruleEpoch)
	bak, haveBak := c.slurp(s, filepath.Join(c.dir, file+".bak"), 16<<20, ruleEpoch)
	var err error
	if ok {
		if err = c.epochs(data); err == nil {
			return nil
		}
	}
	switch {
	case !ok && !haveBak:
	case haveBak && c.epochs(bak) == nil:
		if !ok {
			err = fmt.Errorf("missing")
		}
		s.add(ruleEpoch, file, 0, "%v; its .bak is sound", err)
	case !ok:
		s.add(ruleEpoch, file+".bak", 0, "%v, and there is no main file", c.epochs(bak))
	default:
		s.add(ruleEpoch, file, 0, "%v, and there is no sound .bak", err)
	}
	return nil
}

// epochs checks the content of an epoch file: the number of entries, their
// CRC, and one line "epoch-start" each.
func (c *checker) epochs(data []byte) error {
	next := func() (line []byte, ok bool) {
		if len(data) == 0 {
			return nil, false
		}
		i := bytes.IndexByte(data, '\n')
		if i < 0 {
			line, data = data, nil
		} else {
			line, data = data[:i], data[i+1:]
		}
		return bytes.TrimSuffix(line, []byte("\r")), true
	}
	first, _ := next()
	count, err := strconv.ParseInt(string(first), 10, 32)
	if err != nil || count < 0 {
		return fmt.Errorf("line 1, %s, is no number of entries", quoteShort(string(first)))
	}
	second, _ := next()
	crc, err := strconv.ParseInt(string(second), 10, 64)
	if err != nil || crc < 0 {
		return fmt.Errorf("line 2, %s, is no CRC", quoteShort(string(second)))
	}
	if sum := crc32.ChecksumIEEE(data) & crcMask; crc != 0 && int64(sum) != crc {
		return fmt.Errorf("CRC %d, computed %d", crc, sum)
	}
	n := int64(0)
	epoch, start := int64(-1), int64(-1)
	for {
		line, ok := next()
		if !ok {
			break
		}
		a, b, _ := strings.Cut(string(line), "-")
		e, err1 := strconv.ParseInt(a, 10, 64)
		p, err2 := strconv.ParseInt(b, 10, 64)
		if err1 != nil || err2 != nil || e < 0 || p < 0 {
			return fmt.Errorf("line %d, %s, is no epoch and position", n+3, quoteShort(string(line)))
		}
		if e <= epoch || p <= start {
			return fmt.Errorf("line %d: epoch %d from %d on does not follow epoch %d from %d on", n+3, e, p, epoch, start)
		}
		epoch, start = e, p
		n++
	}
	if n != count {
		return fmt.Errorf("%d entries instead of %d", n, count)
	}
	if start > c.log.end {
		return fmt.Errorf("the last epoch begins at %d, behind the end of the log at %d", start, c.log.end)
	}
	return nil
}
