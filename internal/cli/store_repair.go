package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry/internal/tool"
)

// repairJSON is the last object that repair prints, behind the events.
type repairJSON struct {
	Type              string `json:"type"`
	Out               string `json:"out"`
	Kept              bool   `json:"kept"` // nothing was lost
	Messages          int64  `json:"messages"`
	Units             int64  `json:"units"`
	LostMessages      int64  `json:"lostMessages"`
	Placeholders      int64  `json:"placeholders"`
	Damaged           int    `json:"damagedRanges"`
	DamagedBytes      int64  `json:"damagedBytes"`
	TailBytes         int64  `json:"tailBytes"`
	BehindEnd         int64  `json:"messagesBehindEnd"`
	Corrected         int64  `json:"correctedRecords"`
	Misplaced         int64  `json:"misplacedRecords"`
	ChecksumsAdded    int64  `json:"checksumsAdded"`
	Unreadable        int    `json:"unreadablePlaces"`
	LeftOut           int    `json:"filesLeftOut"`
	MinPhysicalOffset int64  `json:"minPhysicalOffset"`
	MaxPhysicalOffset int64  `json:"maxPhysicalOffset"`
}

func (a *app) storeRepair() *cobra.Command {
	var out, lost string
	cmd := &cobra.Command{
		Use:   "repair",
		Short: "Make a healthy copy of a damaged store",
		Long: `Copies a store that may be damaged in any way into a new directory, and keeps
every intact record at its position in the log, so that message ids and queue
offsets stay true. Damaged ranges are covered with fillers, records of a topic
of their own that nobody gets; queues and index are made anew from the log. The
damaged bytes, and a report, are in NEW/quarantine. The store itself is only
read.

--lost says what becomes of the queue offset of a lost message: a gap, which
Gantry skips, or the place of an empty message with the property
` + tool.PlaceholderProperty + `, for a store that a Java broker will serve: it skips more than the gap.

Exits with 1 when something could not be kept.`,
		Example: "  gantry store repair ./data --out ./repaired\n  gantry store repair /var/rocketmq/store --out /var/rocketmq/new --lost placeholder",
	}
	arguments(cmd, "DIR")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		ro := tool.RepairOptions{Dir: args[0], Out: out}
		switch lost {
		case "gap":
		case "placeholder":
			ro.Lost = tool.LostPlaceholder
		default:
			return usagef("--lost %s: must be gap or placeholder", lost)
		}
		if out == "" {
			return usagef("--out is missing: a repair makes a copy and leaves the store as it is")
		}
		var err error
		if ro.Store, err = a.toolOptions(args[0]); err != nil {
			return err
		}
		if err := a.findStore(args[0], ro.Store); err != nil {
			return failed(err)
		}
		p := a.eventPrinter()
		ro.Event = p.event
		sum, err := tool.Repair(ctx, ro)
		if err != nil {
			return err
		}
		if err := a.printRepair(out, sum, p); err != nil {
			return failed(err)
		}
		if !sum.Kept() {
			return found()
		}
		return nil
	})
	cmd.Flags().StringVar(&out, "out", "", "the new store, a `directory` that does not exist or is empty")
	cmd.Flags().StringVar(&lost, "lost", "gap", "what the queue offset of a lost message becomes: gap or placeholder")
	_ = cmd.MarkFlagDirname("out") // the flag exists
	return cmd
}

func (a *app) printRepair(out string, s tool.RepairSummary, p *eventPrinter) error {
	if a.json {
		return a.printJSON(repairJSON{
			"summary", out, s.Kept(), s.Messages, s.Units, s.LostMessages, s.Placeholders, s.Damaged, s.DamagedBytes, s.TailBytes, s.BehindEnd,
			s.Corrected, s.Misplaced, s.ChecksumsAdded, s.Unreadable, s.LeftOut, int64(s.MinOffset), int64(s.EndOffset),
		})
	}
	var bad []string
	for _, x := range []struct {
		n    int64
		what string
	}{
		{int64(s.Damaged), "damaged place"}, {s.LostMessages, "lost message"}, {s.Misplaced, "record without a place"},
		{s.BehindEnd, "queue unit"}, {int64(s.Unreadable), "unreadable place"},
	} {
		switch {
		case x.n == 0:
		case x.what == "queue unit":
			bad = append(bad, plural(x.n, x.what)+" behind the end of the log")
		default:
			bad = append(bad, plural(x.n, x.what))
		}
	}
	if s.TailBytes > 0 {
		bad = append(bad, fmt.Sprintf("%s cut behind the end of the log", plural(s.TailBytes, "byte")))
	}
	text := "Nothing was lost"
	if len(bad) > 0 {
		text = strings.ToUpper(bad[0][:1]) + strings.Join(bad, ", ")[1:]
	}
	text = fmt.Sprintf("%s; %s in %s.\n", text, plural(s.Messages, "message"), out)
	return a.printf("%s%s", text, p.text(fmt.Sprintf(", all of them in %s/quarantine/report.ndjson", out)))
}

// eventPrinter prints the events of a repair or rebuild: for machines as they
// come, for people it keeps some until the outcome is known. Lost messages that
// follow each other in a queue become one line.
type eventPrinter struct {
	a      *app
	events []tool.Event
	more   int64
}

// maxEventLines bounds what people get to read.
const maxEventLines = 30

func (a *app) eventPrinter() *eventPrinter { return &eventPrinter{a: a} }

func (p *eventPrinter) event(e tool.Event) {
	if p.a.json {
		_ = p.a.printJSON(e) // main looks for the error
		return
	}
	if e.Type == "lost" {
		for i := range p.events { // queues take turns in the log
			if joinLost(&p.events[i], e) {
				return
			}
		}
	}
	if len(p.events) >= maxEventLines {
		p.more++
		return
	}
	p.events = append(p.events, e)
}

// joinLost adds a lost message to the ones before it.
func joinLost(last *tool.Event, e tool.Event) bool {
	if last.Type != "lost" || e.Type != "lost" || last.Became != e.Became || last.Topic != e.Topic || last.QueueID != e.QueueID ||
		last.QueueOffset+max(last.Count, 1) != e.QueueOffset {
		return false
	}
	m := *last.EventMessage
	m.Count, m.Keys = max(m.Count, 1)+max(e.Count, 1), nil
	last.EventMessage = &m
	return true
}

// text is what is kept, a line for each. where says where all of it is.
func (p *eventPrinter) text(where string) string {
	var b strings.Builder
	for _, e := range p.events {
		fmt.Fprintf(&b, "  %s\n", tool.Printable(eventText(e)))
	}
	if p.more > 0 {
		fmt.Fprintf(&b, "  and %s more%s\n", humanize.Comma(p.more), where)
	}
	return b.String()
}

// eventText is an event in one line.
func eventText(e tool.Event) string {
	at := e.File
	if e.Offset > 0 || e.Type == "damage" {
		at = fmt.Sprintf("%s@%d", e.File, e.Offset)
	}
	who := ""
	if m := e.EventMessage; m != nil {
		who = fmt.Sprintf("%s/%d offset %d", m.Topic, m.QueueID, m.QueueOffset)
		if m.Count > 1 {
			who = fmt.Sprintf("%s/%d offsets %d to %d", m.Topic, m.QueueID, m.QueueOffset, m.QueueOffset+m.Count-1)
		}
		if len(m.Keys) > 0 {
			who += " (keys " + strings.Join(m.Keys, " ") + ")"
		}
	}
	switch e.Type {
	case "damage":
		text := fmt.Sprintf("damage %s, %s: %s", at, plural(e.Length, "byte"), e.Reason)
		if who != "" {
			text += "; was " + who
		}
		return text
	case "tail":
		return fmt.Sprintf("cut %s, %s: %s", at, plural(e.Length, "byte"), e.Reason)
	case "lost":
		now := map[string]string{"gap": "a gap stands there", "placeholder": "an empty message stands there"}[e.Became]
		return fmt.Sprintf("lost %s: %s", who, cmp.Or(now, "nothing stands there"))
	case "behind":
		return fmt.Sprintf("lost %s: behind the end of the log", who)
	case "corrected", "misplaced":
		return fmt.Sprintf("%s %s, position %d: %s", e.Type, who, e.CommitLogOffset, e.Reason)
	}
	return fmt.Sprintf("%s %s: %s", e.Type, at, e.Reason)
}
