package cli

import (
	"context"
	"fmt"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry/internal/tool"
)

// rebuildJSON is the last object that rebuild prints, behind the events.
type rebuildJSON struct {
	Type              string `json:"type"`
	Out               string `json:"out"`
	Messages          int64  `json:"messages"`
	Queues            int64  `json:"queues"`
	Units             int64  `json:"units"`
	IndexFiles        int    `json:"indexFiles"`
	IndexEntries      int64  `json:"indexEntries"`
	Misplaced         int64  `json:"misplacedRecords"`
	MinPhysicalOffset int64  `json:"minPhysicalOffset"`
	MaxPhysicalOffset int64  `json:"maxPhysicalOffset"`
}

func (a *app) storeRebuild() *cobra.Command {
	var ro tool.RebuildOptions
	var inPlace bool
	cmd := &cobra.Command{
		Use:   "rebuild",
		Short: "Make queues and index anew from the log",
		Long: `Reads the log and makes the consume queues and the key index anew, as a broker
would have made them. With --out everything else is copied into a new store.
With --in-place the new directories take the place of the old ones; the store
must have been closed properly, and the old directories are removed at the end.

A damaged log is refused with exit code 1: gantry store repair is for that. Bit
maps of queue extensions are not made: brokers then filter message by message.`,
		Example: "  gantry store rebuild ./data --out ./rebuilt\n  gantry store rebuild ./data --queues --topic Orders --in-place",
	}
	arguments(cmd, "DIR")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		switch {
		case (ro.Out == "") != inPlace:
			return usagef("either --out or --in-place is needed")
		case ro.Topic != "" && ro.Index:
			return usagef("--topic and --index exclude each other: there is one index for all topics")
		}
		ro.Dir = args[0]
		var err error
		if ro.Store, err = a.toolOptions(args[0]); err != nil {
			return err
		}
		if err := a.findStore(args[0], ro.Store); err != nil {
			return failed(err)
		}
		p := a.eventPrinter()
		ro.Event = p.event
		sum, err := tool.Rebuild(ctx, ro)
		if err != nil {
			return err
		}
		out := ro.Out
		if inPlace {
			out = args[0]
		}
		if err := a.printRebuild(out, sum, p); err != nil {
			return failed(err)
		}
		if sum.Misplaced > 0 {
			return found()
		}
		return nil
	})
	f := cmd.Flags()
	f.BoolVar(&ro.Queues, "queues", false, "make the consume queues")
	f.BoolVar(&ro.Index, "index", false, "make the index; without --queues and --index both are made")
	f.StringVar(&ro.Topic, "topic", "", "make only the queues of this `topic`")
	f.StringVar(&ro.Out, "out", "", "the new store, a `directory` that does not exist or is empty")
	f.BoolVar(&inPlace, "in-place", false, "change the store itself")
	_ = cmd.MarkFlagDirname("out") // the flag exists
	return cmd
}

func (a *app) printRebuild(out string, s tool.RebuildSummary, p *eventPrinter) error {
	if a.json {
		return a.printJSON(rebuildJSON{"summary", out, s.Messages, s.Queues, s.Units, s.IndexFiles, s.IndexEntries, s.Misplaced, int64(s.MinOffset), int64(s.EndOffset)})
	}
	text := fmt.Sprintf("From %s in the log: %s in %s, %s index entries in %s; the store is %s.\n", plural(s.Messages, "message"),
		plural(s.Units, "unit"), plural(s.Queues, "queue"), humanize.Comma(s.IndexEntries), plural(int64(s.IndexFiles), "file"), out)
	if s.Misplaced > 0 {
		text = fmt.Sprintf("%s got no unit. %s", plural(s.Misplaced, "record"), text)
	}
	return a.printf("%s%s", text, p.text(""))
}
