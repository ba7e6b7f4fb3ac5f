package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry/internal/inspect"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// countJSON is the answer to grep --count for machines.
type countJSON struct {
	Messages int64 `json:"messages"`
}

func (a *app) storeGrep() *cobra.Command {
	var (
		raw, count bool
		n          int64
	)
	cmd := &cobra.Command{
		Use:   "grep",
		Short: "Search the log for messages",
		Long: `Prints the messages that fit all of the flags, in the order in which they were
stored. With --topic, consume queues and key index are used where they lead to
the messages quicker than the log does and fit it; when they lead to none the
log is read to be certain. The store may be damaged: what is intact is found,
and what was passed over is told. Exits with 1 when there is no hit.`,
		Example: "  gantry store grep ./data --topic Orders --body 'customer.*4711'\n" +
			"  gantry store grep ./data --topic Orders --from \"2026-11-29 12:00:00\" --json\n" +
			"  gantry store grep ./data --property region=eu --count",
	}
	arguments(cmd, "DIR")
	f := a.filterFlags(cmd)
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		if n < 0 {
			return usagef("-n %d is negative", n)
		}
		filter, err := f.filter()
		if err != nil {
			return err
		}
		s, err := a.openToInspect(args[0], f.live)
		if err != nil {
			return err
		}
		format := a.messageFormat(raw)
		if count {
			format = func(dst []byte, _ *message.View) ([]byte, error) { return dst, nil }
		}
		left := n
		meter := a.meter()
		res, err := s.Scan(ctx, inspect.ScanOptions{
			Filter: filter, LogOnly: f.scan, Format: format, Damage: a.damageNotes(),
			Take: func(found inspect.Found) error {
				if n > 0 {
					found = cut(found, left)
				}
				if !count {
					if _, err := a.Write(found.Data); err != nil {
						return err
					}
				}
				if left -= int64(len(found.Ends)); n > 0 && left <= 0 {
					return inspect.ErrEnough
				}
				return nil
			},
			Progress: func(done, total int64) { meter.show("searching", done, total, "bytes") },
		})
		if err != nil {
			return failed(err)
		}
		a.scanNotes(res)
		if n > 0 {
			res.Messages = min(res.Messages, n)
		}
		if count {
			if a.json {
				err = a.printJSON(countJSON{res.Messages})
			} else {
				err = a.printf("%d\n", res.Messages)
			}
		}
		if err == nil && res.Messages == 0 {
			if !count {
				a.note("no message fits, of %s", plural(res.Records, "record"))
			}
			err = found()
		}
		return err
	})
	rawFlag(cmd, &raw)
	cmd.Flags().Int64VarP(&n, "number", "n", 0, "at most `N` messages; 0 means all")
	cmd.Flags().BoolVar(&count, "count", false, "print how many there are, not what they are")
	return cmd
}

// messageFormat is how messages are printed, for people or machines. It may be
// called concurrently.
func (a *app) messageFormat(raw bool) func(dst []byte, v *message.View) ([]byte, error) {
	loc := a.now().Location()
	return func(dst []byte, v *message.View) ([]byte, error) {
		m := v.Decode()
		if a.json {
			return append(tool.AppendJSON(dst, &m, raw), '\n'), nil
		}
		return append(dst, tool.Text(m, raw, loc)...), nil
	}
}
