package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
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
	LostMessages      int64  `json:"lostMessages"`
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
		Long: `Reads every record, queue unit and index entry and compares them with each
other. A sentence says how it turned out; then comes each finding, with file and
offset, what it means for messages and which command mends it. --quick looks at
names, lengths and ends only; --deep also names each message that some key of it
does not lead to, and looks into batches. It works on directories that cannot be
opened, and changes nothing. Exits with 1 when a finding has severity error.`,
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
		var list []check.Finding // for people the verdict comes first
		sum, err := check.Run(ctx, co, func(f check.Finding) {
			if !a.json {
				list = append(list, f)
			} else if err := a.printJSON(jsonFinding(f)); err != nil {
				cancel(err) // nobody reads on
			}
		})
		if err == nil {
			err = a.printVerdict(sum, list, quick)
		} else if cause := context.Cause(ctx); cause != nil {
			err = cause
			if !a.json && len(list) > 0 {
				a.note("found before it ended:")
				err = errors.Join(err, a.printFindings(list))
			}
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

func jsonFinding(f check.Finding) findingJSON {
	return findingJSON{f.Severity.String(), f.Rule, f.File, f.Offset, f.Count, f.Detail, f.Meaning, f.Repair}
}

// printFindings prints findings for people, the worst first. It says once what
// findings of one kind mean and what mends them.
func (a *app) printFindings(list []check.Finding) error {
	type kind struct{ rule, meaning, repair string }
	told := make(map[kind]bool)
	slices.SortStableFunc(list, func(x, y check.Finding) int { return cmp.Compare(y.Severity, x.Severity) })
	var out strings.Builder
	for _, f := range list {
		out.WriteString(a.paint(severityColor[f.Severity], f.Severity.String()))
		fmt.Fprintf(&out, " %s\n", tool.Printable(strings.TrimPrefix(f.String(), f.Severity.String()+" ")))
		if k := (kind{f.Rule, f.Meaning, f.Repair}); !told[k] {
			told[k] = true
			for _, line := range []struct{ name, text string }{{"means", f.Meaning}, {"repair", f.Repair}} {
				if line.text != "" {
					fmt.Fprintf(&out, "    %s: %s\n", line.name, tool.Printable(line.text))
				}
			}
		}
	}
	return a.printf("%s", out.String())
}

var severityColor = map[check.Severity]color{check.Info: faint, check.Warning: yellow, check.Error: red}

// printVerdict says in one sentence how it turned out, and then what was found;
// for machines it is the last object.
func (a *app) printVerdict(s check.Summary, list []check.Finding, quick bool) error {
	if a.json {
		return a.printJSON(summaryJSON{
			"summary", s.Errors + s.Warnings + s.Infos, s.Errors, s.Warnings, s.Infos, s.Files, s.Bytes, s.Messages, s.Damaged, s.Lost,
			s.Topics, s.Queues, s.Units, s.IndexFiles, s.IndexEntries, int64(s.LogMin), int64(s.LogEnd), s.FirstStoreTime, s.LastStoreTime, !s.Abort,
		})
	}
	messages := plural(s.Messages, "message")
	if quick {
		messages = "at a quick look, which does not count messages" // of the last file only
	}
	read := fmt.Sprintf("%s, %s, %s index entries, %s, %s read", messages, plural(s.Units, "queue unit"),
		humanize.Comma(s.IndexEntries), plural(s.Files, "file"), humanize.IBytes(uint64(s.Bytes)))
	if s.Errors+s.Warnings == 0 {
		if err := a.printf("%s: %s\n", a.paint(green, "OK"), read); err != nil {
			return err
		}
		return a.printFindings(list)
	}
	worst := yellow
	if s.Errors > 0 {
		worst = red
	}
	verdict := fmt.Sprintf("%s: %s, %s", plural(s.Errors+s.Warnings, "problem"), plural(s.Errors, "error"), plural(s.Warnings, "warning"))
	if s.Lost > 0 {
		verdict += "; " + plural(s.Lost, "message") + " lost"
	}
	if m := mends(list); m != "" {
		verdict += "; " + m + " can mend it"
	}
	if err := a.printf("%s\n%s\n", a.paint(worst, verdict), read); err != nil {
		return err
	}
	return a.printFindings(list)
}

// mends is the command that mends most of what is worse than information.
func mends(list []check.Finding) string {
	best, rank := "", 0
	for _, f := range list {
		if f.Severity == check.Info {
			continue
		}
		for i, c := range []struct{ text, name string }{
			{"opening the store", "opening the store"},
			{"gantry store rebuild", "`gantry store rebuild`"},
			{"gantry store repair", "`gantry store repair`"},
		} {
			if i >= rank && strings.Contains(f.Repair, c.text) {
				best, rank = c.name, i
			}
		}
	}
	return best
}
