package cli

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/inspect"
	"github.com/gantrymq/gantry/internal/tool"
)

func (a *app) storeDump() *cobra.Command {
	var (
		as   string
		from int64
		n    int64
	)
	kinds := inspect.DumpKinds()
	cmd := &cobra.Command{
		Use:   "dump",
		Short: "Decode one file of a store piece by piece",
		Long: `Prints what is in a file, in the order in which it stands there: each with its
offset, and a mark where something is damaged. The kind of the file is made out
from its name, its folder and its content, or given by --as:

  ` + strings.Join(kinds[:len(kinds)/2], " ") + `
  ` + strings.Join(kinds[len(kinds)/2:], " ") + `

The geometry of index files is made out from their content, or given by
--set maxHashSlotNum and --set maxIndexNum. Exits with 1 when the file is
damaged.`,
		Example: "  gantry store dump ./data/commitlog/00000000000000000000 -n 10\n" +
			"  gantry store dump ./data/consumequeue/Orders/0/00000000000000000000 --json\n" +
			"  gantry store dump ./data/checkpoint",
	}
	arguments(cmd, "FILE")
	cmd.ValidArgsFunction = nil // files
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		switch {
		case n < 0:
			return usagef("-n %d is negative", n)
		case from < 0:
			return usagef("--from-offset %d is negative", from)
		}
		known := as == ""
		for _, k := range kinds {
			known = known || k == as
		}
		if !known {
			return usagef("--as %s: no such kind of file; there are %s", as, strings.Join(kinds, ", "))
		}
		o := gantry.Options{ReadOnly: true}
		if err := a.options(&o, args[0]); err != nil {
			return err
		}
		loc := a.now().Location()
		left := n
		var line []byte
		res, err := inspect.Dump(ctx, inspect.DumpOptions{
			FS: a.fs, Path: args[0], As: as, From: from, IndexSlots: o.IndexSlots, IndexEntries: o.IndexEntries,
			Begin: func(kind string) {
				if !a.json {
					a.printf("%s: %s\n", kind, tool.Printable(args[0]))
				}
			},
			Item: func(i inspect.Item) error {
				if a.json {
					line = itemJSON(line[:0], i)
				} else {
					line = append(line[:0], a.itemText(i, func(ms int64) string { return tool.Clock(ms, loc) })...)
				}
				if _, err := a.Write(line); err != nil {
					return err
				}
				if left--; left == 0 {
					return inspect.ErrEnough
				}
				return nil
			},
		})
		if err != nil {
			return failed(err)
		}
		if res.Damaged > 0 {
			a.note("damaged: %s of %s", humanize.Comma(res.Damaged), plural(res.Items, "item"))
			return found()
		}
		return nil
	})
	cmd.Flags().StringVar(&as, "as", "", "the `KIND` of the file")
	cmd.Flags().Int64Var(&from, "from-offset", 0, "begin at this `OFFSET` in the file")
	cmd.Flags().Int64VarP(&n, "number", "n", 0, "print `N` items; 0 means all")
	_ = cmd.RegisterFlagCompletionFunc("as", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
	return cmd
}

// itemText is a line for people.
func (a *app) itemText(i inspect.Item, clock func(int64) string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%12d %s", i.Offset, a.paint(bold, i.Kind))
	for _, f := range i.Fields {
		text := fmt.Sprint(f.Value)
		if ms, ok := f.Value.(int64); ok && strings.HasSuffix(f.Name, "Timestamp") && ms > 0 {
			text += " (" + clock(ms) + ")"
		}
		fmt.Fprintf(&b, " %s=%s", f.Name, tool.Printable(text))
	}
	if i.Damage != "" {
		b.WriteString(" " + a.paint(red, "! "+tool.Printable(i.Damage)))
	}
	b.WriteByte('\n')
	return b.String()
}

// itemJSON appends an item as an object whose fields keep their order.
func itemJSON(dst []byte, i inspect.Item) []byte {
	dst = strconv.AppendInt(append(dst, `{"offset":`...), i.Offset, 10)
	text := func(name, value string) {
		dst = tool.AppendString(append(tool.AppendString(append(dst, ','), name), ':'), value)
	}
	text("kind", i.Kind)
	for _, f := range i.Fields {
		switch v := f.Value.(type) {
		case string:
			text(f.Name, v)
		default:
			dst = append(tool.AppendString(append(dst, ','), f.Name), ':')
			dst = fmt.Append(dst, v)
		}
	}
	if i.Damage != "" {
		text("damage", i.Damage)
	}
	return append(dst, "}\n"...)
}
