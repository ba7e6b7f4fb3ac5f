package cli

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/tool"
)

// The objects that recover --dry-run prints: one for each queue, index file and
// file that would change, then the summary.
type queueChangeJSON struct {
	Type      string `json:"type"`
	Topic     string `json:"topic"`
	QueueID   int32  `json:"queueId"`
	Added     int64  `json:"addedUnits"`
	Removed   int64  `json:"removedUnits"`
	Changed   int64  `json:"changedUnits"`
	MaxOffset int64  `json:"maxOffset"`
}

type indexChangeJSON struct {
	Type   string `json:"type"`
	File   string `json:"file"`
	Before int32  `json:"entriesBefore"`
	After  int32  `json:"entriesAfter"`
}

type fileChangeJSON struct {
	Type   string `json:"type"`
	File   string `json:"file"`
	Change string `json:"change"`
}

type recoverJSON struct {
	Type              string   `json:"type"`
	Changes           bool     `json:"changes"`
	Refused           string   `json:"refused,omitempty"`
	CleanStop         bool     `json:"cleanStop"`
	ForeignWriter     bool     `json:"foreignWriter"`
	MinPhysicalOffset int64    `json:"minPhysicalOffset"`
	MaxPhysicalOffset int64    `json:"maxPhysicalOffset"`
	ScannedFrom       int64    `json:"scannedFrom"`
	Replayed          int64    `json:"replayedRecords"`
	Truncated         int64    `json:"truncatedBytes"`
	TailReason        string   `json:"tailReason,omitempty"`
	SetAside          int64    `json:"setAsideRecords"`
	LostUnits         int64    `json:"lostUnits"`
	Queues            int      `json:"changedQueues"`
	IndexFiles        int      `json:"changedIndexFiles"`
	Quarantined       []string `json:"quarantined,omitempty"`
	Repaired          []string `json:"repaired,omitempty"`
	Warnings          []string `json:"warnings,omitempty"`
}

func (a *app) storeRecover() *cobra.Command {
	var dryRun, quarantine, live bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Show what opening a store would do to it",
		Long: `Opening a store recovers it: a torn end of the log is cut, queues and index are
brought into agreement with the log. With --dry-run all of that is done in
memory, by the same code, and told: what would be cut, rebuilt or lost, or why
opening would be refused. Nothing is changed. Exits with 1 when opening would
lose or rebuild anything, or be refused. With --live it is told what opening would
do if the broker that holds the store had crashed at the moment.

Where queues or index are made anew from a large log, they are in a temporary
file (TMPDIR) meanwhile.`,
		Example: "  gantry store recover --dry-run ./data\n  gantry store recover --dry-run --quarantine --json /var/rocketmq/store",
	}
	arguments(cmd, "DIR")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		if !dryRun {
			return usagef("--dry-run is missing: opening a store is what recovers it, this command only shows how")
		}
		o, err := a.readOptions(args[0], live)
		if err != nil {
			return err
		}
		if quarantine {
			o.Damage = gantry.QuarantineDamage
		}
		p, err := tool.Predict(ctx, args[0], o)
		if err == nil {
			err = a.printPrediction(p)
		}
		if err != nil {
			return failed(err)
		}
		if p.Changes() {
			return found()
		}
		return nil
	})
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "only show it, in fact change nothing")
	liveFlag(cmd, &live)
	cmd.Flags().BoolVar(&quarantine, "quarantine", false, "as if opened with the records behind damage to be set aside")
	return cmd
}

// toolOptions returns the options for a tool that reads a store which nobody may
// hold meanwhile.
func (a *app) toolOptions(dir string) (gantry.Options, error) {
	o := gantry.Options{ReadOnly: true, NoDelay: true}
	if err := a.options(&o, dir); err != nil {
		return o, err
	}
	return o, a.refuseHeld(dir, " first")
}

func (a *app) printPrediction(p tool.Prediction) error {
	r := p.Recovery
	if a.json {
		for _, q := range p.Queues {
			if err := a.printJSON(queueChangeJSON{"queue", q.Topic, q.QueueID, q.Added, q.Removed, q.Changed, q.MaxOffset}); err != nil {
				return err
			}
		}
		for _, x := range p.Index {
			if err := a.printJSON(indexChangeJSON{"indexFile", x.File, x.Before, x.After}); err != nil {
				return err
			}
		}
		for _, f := range p.Removed {
			if err := a.printJSON(fileChangeJSON{"file", f, "removed"}); err != nil {
				return err
			}
		}
		for _, f := range p.Created {
			if err := a.printJSON(fileChangeJSON{"file", f, "created"}); err != nil {
				return err
			}
		}
		sum := recoverJSON{
			Type: "summary", Changes: p.Changes(), CleanStop: r.CleanStop, ForeignWriter: r.ForeignWriter,
			MinPhysicalOffset: int64(r.MinOffset), MaxPhysicalOffset: int64(r.EndOffset), ScannedFrom: int64(r.ScannedFrom),
			Replayed: r.Replayed, Truncated: r.Truncated, TailReason: r.TailReason, SetAside: p.SetAside, LostUnits: p.LostUnits,
			Queues: len(p.Queues), IndexFiles: len(p.Index), Quarantined: r.Quarantined, Repaired: r.Repaired, Warnings: r.Warnings,
		}
		if p.Refused != nil {
			sum.Refused = p.Refused.Error()
		}
		return a.printJSON(sum)
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "%s\n", verdictOf(p))
	if p.Refused != nil {
		fmt.Fprintf(&b, "  %s\n", tool.Printable(p.Refused.Error()))
		return a.printf("%s", b.String())
	}
	stop := "clean"
	if !r.CleanStop {
		stop = "not clean"
	}
	fmt.Fprintf(&b, "  the last stop was %s; the log goes from %s to %s, %s would be compared with queues and index\n",
		stop, humanize.Comma(int64(r.MinOffset)), humanize.Comma(int64(r.EndOffset)), plural(r.Replayed, "record"))
	line := func(name, text string) { fmt.Fprintf(&b, "  %s: %s\n", name, tool.Printable(text)) }
	if r.TailReason != "" {
		line("the log ends there because", r.TailReason)
	}
	for _, s := range r.Repaired {
		line("mended", s)
	}
	for _, s := range r.Warnings {
		line("warning", s)
	}
	for _, f := range r.Quarantined {
		line("kept in", f)
	}
	for _, f := range p.Removed {
		line("removed", f)
	}
	for _, f := range p.Created {
		line("created", f)
	}
	if len(p.Queues) > 0 {
		w := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
		fmt.Fprintln(w, "  TOPIC\tQUEUE\tADDED\tREMOVED\tREPLACED\tNEXT OFFSET")
		for _, q := range p.Queues {
			fmt.Fprintf(w, "  %s\t%d\t%d\t%d\t%d\t%d\n", tool.Printable(q.Topic), q.QueueID, q.Added, q.Removed, q.Changed, q.MaxOffset)
		}
		w.Flush()
	}
	for _, x := range p.Index {
		was := fmt.Sprint(x.Before)
		if x.Before < 0 {
			was = "none"
		}
		line("index entries", fmt.Sprintf("%s, now %s, then %d", x.File, was, max(x.After, 0)))
	}
	return a.printf("%s", b.String())
}

// verdictOf says in one sentence what opening would do.
func verdictOf(p tool.Prediction) string {
	switch {
	case p.Refused != nil:
		return "Opening would be refused, and nothing changed."
	case !p.Changes():
		return "Opening would lose and rebuild nothing."
	}
	r := p.Recovery
	var lost, made []string
	if r.Truncated > 0 {
		lost = append(lost, plural(r.Truncated, "byte")+" behind the end of the log")
	}
	if p.SetAside > 0 {
		lost = append(lost, plural(p.SetAside, "record")+" set aside")
	}
	if p.LostUnits > 0 {
		lost = append(lost, plural(p.LostUnits, "queue unit")+" of messages that are not there")
	}
	if n := int64(len(p.Queues)); n > 0 {
		made = append(made, plural(n, "queue"))
	}
	if n := int64(len(p.Index)); n > 0 {
		made = append(made, plural(n, "index file"))
	}
	text := "Opening would"
	if len(lost) > 0 {
		text += " lose " + strings.Join(lost, ", ")
	}
	if len(lost) > 0 && len(made) > 0 {
		text += " and"
	}
	if len(made) > 0 {
		text += " change " + strings.Join(made, ", ")
	}
	if len(lost)+len(made) == 0 {
		text += " mend small things"
	}
	return text + "."
}
