package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/message"
)

func (a *app) storeQuery() *cobra.Command {
	var (
		live, raw, unique, tag bool
		n                      int
	)
	cmd := &cobra.Command{
		Use:   "query",
		Short: "Print the messages that have a key, newest first",
		Long: `Looks a key up in the index and prints the messages whose KEYS or UNIQ_KEY hold
it. Every message is read and compared: what is printed has the key. Exits with
1 when there is none.`,
		Example: "  gantry store query ./data Orders order-4711 --from -2h",
	}
	arguments(cmd, "DIR", "TOPIC", "KEY")
	from, to := a.windowFlags(cmd)
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		if n < 0 {
			return usagef("-n %d is negative", n)
		}
		if unique && tag {
			return usagef("--unique and --tag exclude each other")
		}
		opts := gantry.QueryOptions{UniqueKey: unique, Tag: tag}
		var err error
		if opts.From, opts.To, err = window(from, to); err != nil {
			return err
		}
		if n > 0 {
			opts.Max = n + 1 // to know whether there are more
		}
		s, err := a.openToRead(ctx, args[0], live)
		if err != nil {
			return err
		}
		defer s.Close()
		hits := 0
		err = s.QueryRecords(ctx, args[1], args[2], opts, func(rec []byte) error {
			if hits++; n > 0 && hits > n {
				return nil
			}
			m, err := message.Decode(rec)
			if err != nil {
				return err
			}
			return a.printMessage(m, raw)
		})
		switch {
		case err != nil:
			return err
		case hits == 0:
			a.note("no message of topic %s has %q", args[1], args[2])
			return found()
		case n > 0 && hits > n:
			a.note("there are more; -n 0 prints all")
		}
		return nil
	})
	liveFlag(cmd, &live)
	rawFlag(cmd, &raw)
	cmd.Flags().IntVarP(&n, "number", "n", 64, "at most `N` messages; 0 means all")
	cmd.Flags().BoolVar(&unique, "unique", false, "compare with UNIQ_KEY only")
	cmd.Flags().BoolVar(&tag, "tag", false, "KEY is a tag (stores written by RocketMQ 5.4.0 or later, or by Gantry)")
	return cmd
}
