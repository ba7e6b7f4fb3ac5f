package cli

import (
	"context"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/check"
	"github.com/gantrymq/gantry/internal/tool"
)

// findingJSON is a finding, summaryJSON the last line.
type findingJSON struct {
	Severity string `json:"severity"`
	Rule     string `json:"rule"`
	File     string `json:"file"`
	Offset   int64  `json:"offset"`
	Count    int64  `json:"count"` // places it stands for
	Detail   string `json:"detail"`
	Meaning  string `json:"meaning,omitempty"`
	Repair   string `json:"repair,omitempty"`
}

type summaryJSON struct {
	Type              string `json:"type"`
	Findings          int    `json:"findings"`
	Errors            int    `json:"errors"`
	Warnings          int    `json:"warnings"`
	Infos             int    `json:"infos"`
	Files             int64  `json:"files"`
	Bytes             int64  `json:"bytes"` // read
	Messages          int64  `json:"messages"`
	DamagedMessages   int64  `json:"damagedMessages"`
	Topics            int64  `json:"topics"`
	Queues            int64  `json:"queues"`
	Units             int64  `json:"units"`
	IndexFiles        int64  `json:"indexFiles"`
	IndexEntries      int64  `json:"indexEntries"`
	MinPhysicalOffset int64  `json:"minPhysicalOffset"`
	MaxPhysicalOffset int64  `json:"maxPhysicalOffset"`
	EarliestTimestamp int64  `json:"earliestTimestamp"`
	LatestTimestamp   int64  `json:"latestTimestamp"`
	CleanStop         bool   `json:"cleanStop"`
}

func (a *app) storeVerify() *cobra.Command {
	var quick, deep, live bool
	cmd := &cobra.Command{
		Use:   "verify",
		Short: "Check a store directory against the format's invariants",
		Long: `Reads every record, queue unit and index entry, compares them with each other,
and prints each finding with file, offset and what it means. --quick looks at
names, lengths and ends only; --deep also looks for every key of every message.
It works on directories that cannot be opened. Exits with 1 when a finding has
severity error.`,
		Example: "  gantry store verify ./data\n  gantry store verify --quick --json /var/rocketmq/store",
	}
	arguments(cmd, "DIR")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		if quick && deep {
			return usagef("--quick and --deep exclude each other")
		}
		o, err := a.readOptions(args[0], live)
		if err != nil {
			return err
		}
		if err := a.findStore(args[0], o); err != nil {
			return failed(err)
		}
		co := checkOptions(o, filepath.Clean(args[0]))
		switch {
		case quick:
			co.Level = check.Quick
		case deep:
			co.Level = check.Deep
		}
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(nil)
		print := a.findingPrinter()
		sum, err := check.Run(ctx, co, func(f check.Finding) {
			if err := print(f); err != nil {
				cancel(err) // nobody reads on
			}
		})
		if err == nil {
			err = a.printSummary(sum)
		} else if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		if err != nil {
			return failed(err)
		}
		if sum.Errors > 0 {
			return found()
		}
		return nil
	})
	liveFlag(cmd, &live)
	cmd.Flags().BoolVar(&quick, "quick", false, "names, lengths, headers and ends only")
	cmd.Flags().BoolVar(&deep, "deep", false, "also look for every key of every message")
	return cmd
}

// findStore fails when nothing in dir looks like a part of a store.
func (a *app) findStore(dir string, o gantry.Options) error {
	entries, err := a.fs.List(dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		switch e.Name {
		case "commitlog", "consumequeue", "batchconsumequeue", "index", "checkpoint":
			return nil
		}
		if strings.HasPrefix(e.Name, "dledger-") {
			return nil
		}
	}
	if len(o.CommitLogDirs) > 0 {
		return nil
	}
	return fmt.Errorf("%s: not a store, nothing of one is in it: %w", dir, fs.ErrNotExist)
}

// checkOptions translates the options of a store.
func checkOptions(o gantry.Options, dir string) check.Options {
	// The checker takes relative directories as relative to dir, a store as
	// relative to the current one.
	below := func(dirs []string) (out []string) {
		for _, d := range dirs {
			if rel, err := filepath.Rel(dir, d); err == nil && !filepath.IsAbs(d) {
				d = rel
			} else if abs, err := filepath.Abs(d); err == nil {
				d = abs
			}
			out = append(out, d)
		}
		return out
	}
	roundUp := func(n int64) int64 { return (n + 19) / 20 * 20 }
	return check.Options{
		FS: o.FS, Dir: dir,
		CommitLogDirs: below(o.CommitLogDirs), ReadOnlyDirs: below(o.ReadOnlyCommitLogDirs),
		CommitLogFileSize: o.CommitLogFileSize, ConsumeQueueFileSize: roundUp(o.ConsumeQueueFileSize),
		IndexSlots: o.IndexSlots, IndexEntries: o.IndexEntries, DelayLevels: o.DelayLevels,
		Progress: func(done, total int64) {
			o.Progress(gantry.Progress{Step: "verifying", Done: done, Total: total, Unit: "bytes"})
		},
	}
}

// findingPrinter returns a function that prints findings. For people it says
// once what findings of one kind mean and what mends them.
func (a *app) findingPrinter() func(check.Finding) error {
	type kind struct{ rule, meaning, repair string }
	told := make(map[kind]bool)
	return func(f check.Finding) error {
		if a.json {
			return a.printJSON(findingJSON{f.Severity.String(), f.Rule, f.File, f.Offset, f.Count, f.Detail, f.Meaning, f.Repair})
		}
		text := tool.Printable(f.String()) + "\n"
		if k := (kind{f.Rule, f.Meaning, f.Repair}); !told[k] {
			told[k] = true
			for _, line := range []struct{ name, text string }{{"means", f.Meaning}, {"repair", f.Repair}} {
				if line.text != "" {
					text += fmt.Sprintf("    %s: %s\n", line.name, tool.Printable(line.text))
				}
			}
		}
		return a.printf("%s", text)
	}
}

// printSummary says in one sentence how it turned out; for machines it is the
// last object.
func (a *app) printSummary(s check.Summary) error {
	if a.json {
		return a.printJSON(summaryJSON{
			"summary", s.Errors + s.Warnings + s.Infos, s.Errors, s.Warnings, s.Infos, s.Files, s.Bytes, s.Messages, s.Damaged,
			s.Topics, s.Queues, s.Units, s.IndexFiles, s.IndexEntries, int64(s.LogMin), int64(s.LogEnd), s.FirstStoreTime, s.LastStoreTime, !s.Abort,
		})
	}
	verdict := "OK"
	if s.Errors+s.Warnings > 0 {
		verdict = plural(s.Errors, "error") + ", " + plural(s.Warnings, "warning")
	}
	return a.printf("%s: %s, %s, %s, %s, %s read\n", verdict, plural(s.Messages, "message"), plural(s.Units, "queue unit"),
		fmt.Sprintf("%s index entries", humanize.Comma(s.IndexEntries)), plural(s.Files, "file"), humanize.IBytes(uint64(s.Bytes)))
}
