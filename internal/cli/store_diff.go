package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry/internal/inspect"
	"github.com/gantrymq/gantry/internal/tool"
)

// differenceJSON is a difference, diffJSON the last line.
type differenceJSON struct {
	Part    string `json:"part"`
	File    string `json:"file"`
	Offset  int64  `json:"offset"`
	OnlyA   int64  `json:"onlyFirst"`
	OnlyB   int64  `json:"onlySecond"`
	Differ  int64  `json:"differ"`
	Details string `json:"detail"`
}

type diffJSON struct {
	Type         string `json:"type"`
	Differences  int64  `json:"differences"`
	LogBytes     int64  `json:"logBytes"`
	Queues       int64  `json:"queues"`
	Units        int64  `json:"units"`
	IndexEntries int64  `json:"indexEntries"`
	OnlyA        int64  `json:"messagesOnlyFirst"`
	OnlyB        int64  `json:"messagesOnlySecond"`
}

// sumJSON is a line of --sums.
type sumJSON struct {
	From int64  `json:"fromPhysicalOffset"`
	To   int64  `json:"toPhysicalOffset"`
	CRC  string `json:"crc32"`
}

func (a *app) storeDiff() *cobra.Command {
	var sums, live bool
	cmd := &cobra.Command{
		Use:   "diff",
		Short: "Compare two stores: a master and its slave, before and after",
		Long: `Compares the logs byte by byte where both have messages, the consume queues unit
by unit and the indexes entry by entry, and says for each file or queue where
they begin to differ, and which messages only one of them has. What each broker
makes for itself is left out: bytes behind the last record of a file, the names
of index files, addresses in queue extensions, configuration files.

With --sums it prints checksums of one store's log, of ranges that lie alike in
every store: for stores on two machines, compare what it prints there. Exits with
1 when the stores differ.`,
		Example: "  gantry store diff /var/rocketmq/master /var/rocketmq/slave\n  gantry store diff ./data --sums > here.txt",
	}
	arguments(cmd, "DIR", "[DIR2]")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		switch {
		case sums && len(args) > 1:
			return usagef("--sums is for one directory")
		case !sums && len(args) < 2:
			return usagef("DIR2 is missing")
		}
		var stores []*inspect.Store
		for _, dir := range args {
			s, err := a.openToInspect(dir, live)
			if err != nil {
				return err
			}
			stores = append(stores, s)
		}
		if sums {
			return failed(stores[0].Sums(ctx, a.printSum))
		}
		var list []inspect.Difference
		meter := a.meter()
		res, err := inspect.Diff(ctx, stores[0], stores[1], inspect.DiffOptions{
			Report:   func(d inspect.Difference) { list = append(list, d) },
			Progress: func(done, total int64) { meter.show("comparing", done, total, "bytes") },
		})
		if err == nil {
			err = a.printDiff(res, list)
		}
		if err != nil {
			return failed(err)
		}
		if res.Differences > 0 {
			return found()
		}
		return nil
	})
	liveFlag(cmd, &live)
	cmd.Flags().BoolVar(&sums, "sums", false, "print checksums of one store's log")
	return cmd
}

func (a *app) printSum(r inspect.RangeSum) error {
	crc := fmt.Sprintf("%08x", r.CRC)
	if a.json {
		return a.printJSON(sumJSON{r.From, r.To, crc})
	}
	return a.printf("%s  %20d  %20d\n", crc, r.From, r.To)
}

func (a *app) printDiff(res inspect.DiffResult, list []inspect.Difference) error {
	if a.json {
		for _, d := range list {
			if err := a.printJSON(differenceJSON{d.Part, d.File, d.Offset, d.OnlyA, d.OnlyB, d.Differ, d.Detail}); err != nil {
				return err
			}
		}
		return a.printJSON(diffJSON{"summary", res.Differences, res.LogBytes, res.Queues, res.Units, res.IndexEntries, res.OnlyA, res.OnlyB})
	}
	compared := fmt.Sprintf("%s of log, %s with %s, %s index entries in both", humanize.IBytes(uint64(res.LogBytes)),
		plural(res.Queues, "queue"), plural(res.Units, "unit"), humanize.Comma(res.IndexEntries))
	if res.Differences == 0 {
		return a.printf("%s: %s\n", a.paint(green, "equal"), compared)
	}
	verdict := plural(res.Differences, "difference")
	if res.OnlyA > 0 {
		verdict += "; " + plural(res.OnlyA, "message") + " only in the first store"
	}
	if res.OnlyB > 0 {
		verdict += "; " + plural(res.OnlyB, "message") + " only in the second"
	}
	var out strings.Builder
	fmt.Fprintf(&out, "%s\n%s\n", a.paint(red, verdict), compared)
	for _, d := range list {
		fmt.Fprintf(&out, "%s %s: %s\n", d.Part, tool.Printable(d.File), tool.Printable(d.Detail))
	}
	return a.printf("%s", out.String())
}
