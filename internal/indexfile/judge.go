package indexfile

import (
	"errors"
	"slices"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// findAnchor looks for the file that Trusted describes.
func (o *opener) findAnchor() error {
	o.anchor = -1
	t := o.st.Trusted
	if t == nil || t.Name == "" {
		return nil
	}
	if t.Count <= firstEntry {
		// The newest file had no entries: the one before it is full and ends
		// where the newest begins.
		for i, c := range o.all {
			if c.ex.wrong == "" && c.ex.hdr.EndPhy == t.EndPhy && c.ex.hdr.EndTime == t.EndTime && c.ex.hdr.Count >= c.geo.Entries {
				o.anchor = i
			}
		}
		return nil
	}
	for i, c := range o.all {
		if c.name != t.Name || c.ex.lost || t.Count > c.geo.Entries {
			continue
		}
		en, err := c.entry(t.Count - 1)
		if err != nil {
			return err
		}
		if en.Phy == t.EndPhy && en != (Entry{}) {
			o.anchor = i
		}
	}
	return nil
}

// entry reads one entry of a file that is not open.
func (c *candidate) entry(e int32) (en Entry, err error) {
	err = c.with(func(h vfs.File) error {
		en, err = readEntry(h, c.geo, e)
		return err
	})
	return en, err
}

func (c *candidate) with(fn func(h vfs.File) error) error {
	h, err := c.fs.Open(c.path, vfs.ReadOnly)
	if err != nil {
		return err
	}
	return errors.Join(fn(h), h.Close())
}

// judgeAll decides, in the order of the log, what of each file is kept.
func (o *opener) judgeAll() error {
	t := o.st.Trusted
	for i, c := range o.all {
		if err := o.ctx.Err(); err != nil {
			return err
		}
		if o.anchor < 0 && t != nil && t.Count > firstEntry && !o.has(t.Name) && (c.name > t.Name || c.ex.hdr.EndPhy >= t.EndPhy) && !o.hole {
			c.note("file %s, the newest at the last sync, is missing", t.Name)
			o.hole = true
		}
		if o.hole {
			c.note("messages before it are missing")
			o.drop = append(o.drop, c)
			continue
		}
		last := i == len(o.all)-1
		if c.empty() && last && o.follows(c) {
			o.kept = append(o.kept, c)
			continue
		}
		if o.anchor >= 0 && i > o.anchor {
			// Written after the last sync: the same messages are put again.
			o.drop = append(o.drop, c)
			continue
		}
		if c.empty() {
			o.drop = append(o.drop, c)
			// A file that follows another is seeded when it is made. If it is
			// not, or does not follow, or others follow it although it is not
			// full, then it had entries, perhaps of the last message as well.
			seeded := c.ex.hdr.EndPhy > 0 && (o.st.Clean || o.anchor >= 0)
			if last || !seeded && !o.nothingBefore(o.all[i+1]) {
				c.note("empty and not the successor of a full file")
				o.hole = true
			}
			continue
		}
		missing, err := o.judge(i, c)
		if err != nil {
			return err
		}
		if missing && i+1 < len(o.all) && o.nothingBefore(o.all[i+1]) {
			missing = false // the log does not have those messages any more
		}
		if c.want.HasEntries() {
			o.kept = append(o.kept, c)
		} else {
			o.drop = append(o.drop, c)
		}
		o.hole = missing
	}
	if o.anchor < 0 && !o.st.Clean && !o.knownEmpty() {
		o.dropLast = true
	}
	return nil
}

func (o *opener) has(name string) bool {
	return slices.ContainsFunc(o.all, func(c *candidate) bool { return c.name == name })
}

// follows says that an empty file is the regular successor of the last kept
// one. (Alone it says nothing and goes.)
func (o *opener) follows(c *candidate) bool {
	if len(o.kept) == 0 {
		return false
	}
	p := o.kept[len(o.kept)-1]
	seed := seedAfter(p.want.EndPhy, p.want.EndTime)
	h := c.ex.hdr
	h.Count, h.SlotCount = 0, 0
	return p.want.Count >= p.geo.Entries && h == seed && c.ex.size == c.geo.Size()
}

// nothingBefore says that all messages with keys before file c are gone from
// the log. The one at the file's begin may have keys before it.
func (o *opener) nothingBefore(c *candidate) bool {
	return c.ex.wrong == "" && c.ex.hdr.HasEntries() && c.ex.hdr.BeginPhy < o.st.LogMin
}

// judge sets what of a file with entries is kept. It returns true when entries
// that the file had, or may have had, are not.
func (o *opener) judge(i int, c *candidate) (missing bool, err error) {
	if c.ex.lost {
		c.want = Header{}
		return !c.ex.blank || c.ex.size < headerSize || c.ex.hdr.HasEntries(), nil
	}
	if i == o.anchor {
		ok, err := o.restore(c)
		if ok || err != nil {
			return false, err
		}
		o.anchor = -1 // believe the entries only as far as they agree
	}
	flushed := o.st.Clean || i < o.anchor ||
		c.ex.hdr.Count >= c.geo.Entries && c.ex.hdr.EndTime <= o.st.FlushedTime
	if flushed && c.ex.wrong == "" {
		return false, nil
	}
	missing, err = o.scan(c)
	if !o.st.Clean && i < len(o.all)-1 && c.want.Count < c.geo.Entries {
		// The next file is only made when this one is full.
		missing = true
	}
	return missing, err
}

// restore brings the anchor to the trusted state. It returns false when the
// header's begin is lost.
func (o *opener) restore(c *candidate) (bool, error) {
	t := o.st.Trusted
	count := t.Count
	if count <= firstEntry {
		count = c.ex.hdr.Count // the full file before the newest
	}
	last, err := c.entry(count - 1)
	if err != nil {
		return false, err
	}
	ok, err := o.setBegin(c, func(begin int64) bool { return timesAgree(begin, t.EndTime, count-1, last.Seconds) })
	if !ok || err != nil {
		return false, err
	}
	c.want.EndPhy, c.want.EndTime, c.want.Count = t.EndPhy, t.EndTime, count
	c.cutIt = c.cutIt || c.want.Count != c.ex.hdr.Count || c.want.EndTime != c.ex.hdr.EndTime || c.ex.wrong != ""
	o.restored = true
	return true, nil
}

// setBegin makes sure that begin time and position of the header are those of
// entry 1. The header is believed when its begin time passes agree.
func (o *opener) setBegin(c *candidate, agree func(begin int64) bool) (bool, error) {
	first, err := c.entry(firstEntry)
	if err != nil {
		return false, err
	}
	if h := c.ex.hdr; h.BeginPhy == first.Phy && h.BeginTime > 0 && agree(h.BeginTime) {
		return true, nil
	}
	if t, ok := o.storeTime(first.Phy); ok {
		c.want.BeginPhy, c.want.BeginTime, c.cutIt = first.Phy, t, true
		c.note("begin of the header read from the log")
		return true, nil
	}
	c.note("header does not belong to entry 1")
	return false, nil
}

// setEnd makes the end of the header that of the newest kept entry. It returns
// false when the exact time is not known; then the message must be put again.
func (o *opener) setEnd(c *candidate) (bool, error) {
	if !c.want.HasEntries() {
		return true, nil
	}
	last, err := c.entry(c.want.Count - 1)
	if err != nil {
		return false, err
	}
	if last.Phy == c.ex.hdr.EndPhy && c.ex.hdr.EndTime > 0 {
		return true, nil
	}
	if t, ok := o.storeTime(last.Phy); ok {
		c.want.EndPhy, c.want.EndTime = last.Phy, t
		return true, nil
	}
	return false, nil
}

// storeTime asks the log for the time of a record.
func (o *opener) storeTime(phy message.PhysicalOffset) (int64, bool) {
	if o.x.opt.StoreTime == nil || phy < o.st.LogMin || phy >= o.st.LogEnd {
		return 0, false
	}
	t, ok := o.x.opt.StoreTime(phy)
	return t, ok && t > 0
}

// scan believes the entries of a file as far as they agree with each other.
func (o *opener) scan(c *candidate) (missing bool, err error) {
	h := c.ex.hdr
	last := Entry{Phy: -1}
	if h.HasEntries() && h.Count <= c.geo.Entries {
		if last, err = c.entry(h.Count - 1); err != nil {
			return false, err
		}
	}
	ok, err := o.setBegin(c, func(begin int64) bool {
		return last.Phy != h.EndPhy || timesAgree(begin, h.EndTime, h.Count-1, last.Seconds)
	})
	if err != nil {
		return false, err
	}
	if !ok {
		c.want = Header{}
		return true, nil
	}
	limit := h.Count
	if c.ex.wrong != "" {
		limit = c.geo.Entries // the count is no better than the rest
	}
	err = c.with(func(f vfs.File) error {
		var reason string
		c.want.Count, reason, err = validPrefix(o.ctx, f, c.geo, limit, o.st.LogEnd)
		if err != nil || c.ex.wrong != "" {
			return err
		}
		c.note("%s", reason)
		bad, _, err := badSlots(f, c.geo, limit)
		if bad > 0 {
			c.note("%d slots out of range", bad)
		}
		return err
	})
	if err != nil {
		return false, err
	}
	c.cutIt, c.links = true, true
	known, err := o.setEnd(c)
	return !known || c.want.Count < limit, err
}
