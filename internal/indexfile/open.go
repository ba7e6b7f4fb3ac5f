package indexfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
)

// damagedSuffix marks a file that was set aside. Java brokers skip such names.
const damagedSuffix = ".damaged"

// Open opens the index files and brings them into order: what the state says
// was synced is believed, what was written after it is dropped; without a state
// entries are believed as far as they agree with each other. Entries at or past
// LogEnd go. Whatever is dropped lies behind what is kept, in the order of the
// log, so that putting all messages from replayFrom on again makes the index
// complete; messages that are still in are skipped. Damage that is found in
// the middle therefore costs everything behind it, unless the messages that
// are missing are no longer in the log.
//
// A file keeps the geometry it was made with. Files of which nothing can be
// read are renamed to NAME.damaged, or removed when they hold no entry.
//
// Changes on disk are only made for repair, are durable when Open returns, and
// may be cut short at any point: the next Open makes them again. A clean index
// is not changed, mapped or allocated; of a clean file a few places are read,
// of the newest all slots.
func Open(ctx context.Context, opt Options, st OpenState) (x *Index, replayFrom message.PhysicalOffset, rep Report, err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return nil, 0, rep, err
	}
	if st.Trusted != nil && *st.Trusted == (State{}) {
		st.Trusted = nil // promises nothing
	}
	o := &opener{ctx: ctx, st: st, x: &Index{opt: opt}}
	if replayFrom, err = o.open(); err != nil {
		return nil, 0, o.rep, fmt.Errorf("open index: %w", err)
	}
	return o.x, replayFrom, o.rep, nil
}

// opener is one run of Open.
type opener struct {
	ctx  context.Context
	st   OpenState
	x    *Index
	rep  Report
	all  []*candidate // in the order of the log
	kept []*candidate
	drop []*candidate // to be removed, in the order of the log

	anchor   int  // index in all of the file that Trusted describes, or -1
	restored bool // it was brought to that state
	hole     bool // something behind kept is missing that was there
	dropLast bool // the last message may be incomplete
}

// candidate is a file on the way into the index.
type candidate struct {
	*file
	ex    examined
	want  Header // what the header must be; Count is what is kept
	cutIt bool   // want differs from what is on disk, or may
	links bool   // the links are not to be trusted
	notes []string
}

func (c *candidate) empty() bool { return !c.ex.lost && c.ex.wrong == "" && !c.ex.hdr.HasEntries() }

func (o *opener) open() (replayFrom message.PhysicalOffset, err error) {
	if err := o.list(); err != nil {
		return 0, err
	}
	if err := o.findAnchor(); err != nil {
		return 0, err
	}
	if err := o.judgeAll(); err != nil {
		return 0, err
	}
	if err := o.bound(); err != nil {
		return 0, err
	}
	replayFrom, err = o.giveUpLast()
	if err != nil {
		return 0, err
	}
	if err := o.checkNewest(); err != nil {
		return 0, err
	}
	if err := o.apply(); err != nil {
		return 0, err
	}
	o.finish()
	return replayFrom, nil
}

// list examines all files of the directory and sorts them.
func (o *opener) list() error {
	x := o.x
	entries, err := x.opt.FS.List(x.opt.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		x.mu.dirMissing = true
		return nil
	}
	if err != nil {
		return err
	}
	hints := []Geometry{x.opt.geometry(), DefaultGeometry}
	var lost []*candidate
	for _, e := range entries {
		if err := o.ctx.Err(); err != nil {
			return err
		}
		path := filepath.Join(x.opt.Dir, e.Name)
		if _, ok := parseFileName(e.Name); ok {
			x.mu.lastName = max(x.mu.lastName, e.Name) // foreign or not, the name is taken
		}
		if !isFileName(e.Name) || !e.IsRegular() {
			o.rep.Foreign = append(o.rep.Foreign, path)
			x.opt.Logger.Warn("not an index file, ignored", "file", path)
			continue
		}
		c := &candidate{file: &file{fs: x.opt.FS, name: e.Name, path: path}}
		if err := c.examine(hints); err != nil {
			return err
		}
		if c.ex.lost {
			lost = append(lost, c)
		} else {
			hints = appendHint(hints, c.ex.geo)
		}
		o.all = append(o.all, c)
	}
	for _, c := range lost { // perhaps it is like its neighbours
		if err := c.examine(hints); err != nil {
			return err
		}
	}
	told := []Geometry{x.opt.geometry()}
	for _, c := range o.all {
		c.note("%s", c.ex.wrong)
		if !c.ex.lost && !slices.Contains(told, c.geo) {
			// Once for each: a changed setting is no damage.
			told = appendHint(told, c.geo)
			c.note("made with %d slots and %d entries and used like that, new files get %d and %d",
				c.geo.Slots, c.geo.Entries, x.opt.Slots, x.opt.Entries)
		}
	}
	slices.SortStableFunc(o.all, compare)
	o.placeUnordered()
	return nil
}

const maxHints = 8

func appendHint(hints []Geometry, g Geometry) []Geometry {
	if len(hints) < maxHints && !slices.Contains(hints, g) {
		hints = append(hints, g)
	}
	return hints
}

func (c *candidate) examine(hints []Geometry) error {
	h, err := c.fs.Open(c.path, vfs.ReadOnly)
	if err != nil {
		return err
	}
	c.ex, err = examine(h, hints)
	c.geo, c.want, c.size = c.ex.geo, c.ex.hdr, c.ex.size
	return errors.Join(err, h.Close())
}

func (c *candidate) note(format string, args ...any) {
	if s := fmt.Sprintf(format, args...); s != "" {
		c.notes = append(c.notes, s)
	}
}

// compare orders files by where they end in the log. Where two end with the
// same message the one that begins later is newer, and a file that follows a
// full one and has no entries yet is newer still.
func compare(a, b *candidate) int {
	return cmp.Or(
		cmp.Compare(a.ex.hdr.EndPhy, b.ex.hdr.EndPhy),
		cmp.Compare(a.ex.hdr.BeginPhy, b.ex.hdr.BeginPhy),
		cmp.Compare(b2i(a.empty()), b2i(b.empty())),
		cmp.Compare(a.name, b.name))
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}

// placeUnordered moves files whose headers do not say where they belong to
// where their names say.
func (o *opener) placeUnordered() {
	var good, bad []*candidate
	for _, c := range o.all {
		if c.ex.lost || c.ex.wrong != "" || c.empty() && c.ex.hdr.EndPhy == 0 {
			bad = append(bad, c)
		} else {
			good = append(good, c)
		}
	}
	slices.SortFunc(bad, func(a, b *candidate) int { return cmp.Compare(a.name, b.name) })
	for _, c := range bad {
		i := len(good)
		for i > 0 && good[i-1].name > c.name {
			i--
		}
		good = slices.Insert(good, i, c)
	}
	o.all = good
}

// bound drops entries that the log does not have, and those behind a gap that
// an outage left.
func (o *opener) bound() error {
	n, err := o.cutFrom(o.st.LogEnd)
	if err != nil {
		return err
	}
	if n > 0 {
		o.dropLast = true
		c := o.last()
		o.x.opt.Logger.Warn("index was ahead of the log", "logEnd", o.st.LogEnd, "entries", n)
		o.rep.Repairs = append(o.rep.Repairs, Repair{File: pathOf(c, o.x.opt.Dir), Reason: fmt.Sprintf("entries past the end of the log, %d", o.st.LogEnd)})
	}
	if t := o.st.Trusted; t != nil && !t.Complete {
		if _, err := o.cutFrom(t.MissingFrom); err != nil {
			return err
		}
		o.dropLast = true
	}
	o.dropLast = o.dropLast || o.hole
	return nil
}

func pathOf(c *candidate, dir string) string {
	if c == nil {
		return dir
	}
	return c.path
}

// last returns the newest kept file that has entries.
func (o *opener) last() *candidate {
	for i := len(o.kept) - 1; i >= 0; i-- {
		if o.kept[i].want.HasEntries() {
			return o.kept[i]
		}
	}
	return nil
}

// cutFrom drops all entries at or past phy and says how many.
func (o *opener) cutFrom(phy message.PhysicalOffset) (dropped int, err error) {
	for len(o.kept) > 0 {
		c := o.kept[len(o.kept)-1]
		n := int32(firstEntry)
		if c.want.HasEntries() {
			err := c.with(func(f vfs.File) (err error) {
				n, err = firstAtOrAfter(f, c.geo, c.want.Count, phy)
				return err
			})
			if err != nil {
				return dropped, err
			}
		} else if dropped == 0 && c.want.EndPhy < phy {
			// Keep the empty successor as long as nothing goes before it.
			before := o.kept[:len(o.kept)-1]
			if len(before) == 0 || before[len(before)-1].want.EndPhy < phy {
				return 0, nil
			}
		}
		dropped += int(max(c.want.Count-n, 0))
		if n > firstEntry {
			c.cutIt = c.cutIt || n < c.want.Count
			c.want.Count = n
			return dropped, nil
		}
		c.want = Header{}
		o.drop = append([]*candidate{c}, o.drop...)
		o.kept = o.kept[:len(o.kept)-1]
	}
	return dropped, nil
}

// giveUpLast drops the newest message where it may lack keys, and says from
// where messages must be put again. That message is put again as well, which
// also makes the header's end exact.
func (o *opener) giveUpLast() (message.PhysicalOffset, error) {
	from := o.st.LogMin
	for tries := 0; ; tries++ {
		c := o.last()
		if c == nil {
			break
		}
		en, err := c.entry(c.want.Count - 1)
		if err != nil {
			return 0, err
		}
		if en.Phy < o.st.LogMin {
			break
		}
		const maxTries = 100 // if the log cannot be asked, do not ask for ever
		if tries < maxTries && o.x.opt.StoreTime != nil {
			if _, ok := o.storeTime(en.Phy); !ok {
				c.note("newest entry at %d, where the log has no record", en.Phy)
				o.dropLast = true
				if _, err := o.cutFrom(en.Phy); err != nil {
					return 0, err
				}
				continue
			}
		}
		from = en.Phy
		if o.dropLast {
			if _, err := o.cutFrom(en.Phy); err != nil {
				return 0, err
			}
		}
		break
	}
	o.rep.Intact = !o.dropLast && (o.restored || o.knownEmpty())
	return min(from, max(o.st.LogEnd, o.st.LogMin)), nil
}

// knownEmpty says that there is no file and there was none.
func (o *opener) knownEmpty() bool {
	t := o.st.Trusted
	return len(o.all) == 0 && t != nil && t.Name == "" && t.Complete
}

// checkNewest looks at the slots of the file that will be written to: the next
// entry must not follow a bad one. After an unclean stop the part behind the
// entries must be empty as well.
func (o *opener) checkNewest() error {
	c := o.last()
	if c == nil || c.want.Count >= c.geo.Entries {
		return nil
	}
	// Nothing was added since all was in order: the header fits the slots.
	settled := (o.st.Clean || o.restored) && c.want.Count == c.ex.hdr.Count
	if c.cutIt && !settled {
		return nil
	}
	return c.with(func(f vfs.File) error {
		bad, used, err := badSlots(f, c.geo, c.want.Count)
		if err != nil {
			return err
		}
		switch {
		case bad > 0:
			c.cutIt = true
			if o.st.Clean {
				c.note("%d slots out of range", bad)
			}
		case settled && used != c.ex.hdr.SlotCount:
			c.cutIt, c.links = true, true
			c.note("%d slots in use, the header says %d", used, c.ex.hdr.SlotCount)
		}
		if !o.st.Clean && !c.cutIt {
			zero, err := isZeroFrom(f, c.ex.size, c.geo.entryPos(c.want.Count))
			c.cutIt = !zero
			return err
		}
		return nil
	})
}

// apply makes the changes. Files go newest first, durably one by one, and
// before others are cut: whenever it is interrupted, the damage that made it
// necessary can still be seen.
func (o *opener) apply() error {
	for _, c := range slices.Backward(o.drop) {
		if err := o.remove(c); err != nil {
			return err
		}
	}
	for _, c := range o.kept {
		if c.cutIt {
			r, err := c.cut(o.ctx, c.want.Count, c.links, c.want)
			if err != nil {
				return fmt.Errorf("repair %s: %w", c.path, err)
			}
			if r.links > 0 {
				c.note("%d links corrected", r.links)
			}
		} else {
			c.setHeader(c.want)
		}
		o.report(c)
	}
	return nil
}

// report tells all that is to say of a file at once.
func (o *opener) report(c *candidate) {
	if len(c.notes) == 0 {
		return
	}
	reason := strings.Join(c.notes, "; ")
	o.x.opt.Logger.Warn("index file is not as it should be", "file", c.path, "reason", reason)
	o.rep.Repairs = append(o.rep.Repairs, Repair{File: c.path, Reason: reason})
}

// remove takes a file out of the directory for good. One that holds something
// which nobody understands is only renamed.
func (o *opener) remove(c *candidate) error {
	x := o.x
	o.report(c)
	var err error
	if c.ex.lost && !c.ex.blank {
		err = x.opt.FS.Rename(c.path, c.path+damagedSuffix)
	} else {
		err = x.opt.FS.Remove(c.path)
	}
	if err == nil {
		err = x.opt.FS.SyncDir(x.opt.Dir)
	}
	if err != nil {
		return err
	}
	x.opt.Logger.Info("index file removed", "file", c.path, "renamed", c.ex.lost && !c.ex.blank)
	return nil
}

// finish hands the files to the index.
func (o *opener) finish() {
	x := o.x
	list := make([]*file, len(o.kept))
	for i, c := range o.kept {
		list[i] = c.file
		c.sealed.Store(i < len(o.kept)-1)
	}
	if !x.mu.dirMissing {
		x.mu.made = 1 // a killed process may have left names that are not durable
	}
	x.mu.lastPhy = -1
	if c := o.last(); c != nil {
		h := c.header()
		x.mu.lastPhy, x.mu.lastTime = h.EndPhy, h.EndTime
		x.monotoneFrom.Store(int64(h.EndPhy) + 1)
	}
	if o.restored {
		x.monotoneFrom.Store(int64(o.st.Trusted.MonotoneFrom))
	}
	x.setListLocked(list)
	o.rep.Files = len(list)
}
