package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry/internal/client"
)

func (a *app) query() *cobra.Command {
	var (
		cf     clientFlags
		n      int
		unique bool
	)
	cmd := &cobra.Command{
		Use:   "query",
		Short: "Ask the servers for the messages that have a key, newest first",
		Long: `Asks all brokers that have the topic and prints the messages whose KEYS hold the
key, or with --unique those whose UNIQ_KEY it is. What is printed has the key.
Exits with 1 when there is none.`,
		Example: "  gantry query Orders order-4711 --from -2h",
	}
	arguments(cmd, "TOPIC", "KEY")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	from, to := a.windowFlags(cmd)
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		if n < 0 {
			return usagef("-n %d is negative", n)
		}
		lo, hi, err := window(from, to)
		if err != nil {
			return err
		}
		opts := client.QueryOptions{Max: n, Unique: unique}
		if lo > 0 {
			opts.From = time.UnixMilli(lo)
		}
		if hi > 0 {
			opts.To = time.UnixMilli(hi)
		}
		c, err := a.connect(&cf)
		if err != nil {
			return err
		}
		defer c.Close()
		res, err := c.Query(ctx, args[0], args[1], opts)
		for _, m := range res.Messages {
			if err := a.printMessage(m, false); err != nil {
				return err
			}
		}
		switch {
		case err != nil:
			return unanswered(err)
		case len(res.Messages) == 0:
			a.note("no message of topic %s has %q", args[0], args[1])
			return found()
		case res.Truncated:
			a.note("there are more; --from and --to narrow the query")
		}
		return nil
	})
	cf.add(cmd)
	cmd.Flags().IntVarP(&n, "number", "n", 64, "at most `N` messages; 0 means all")
	cmd.Flags().BoolVar(&unique, "unique", false, "compare with UNIQ_KEY only")
	return cmd
}
