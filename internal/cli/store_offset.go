package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/tool"
)

const offsetName = "offset"

// offsetJSON is the answer for machines.
type offsetJSON struct {
	Topic     string `json:"topic"`
	QueueID   int32  `json:"queueId"`
	Timestamp int64  `json:"timestamp"`
	Offset    int64  `json:"offset"`
	Found     bool   `json:"found"`
}

func (a *app) storeOffset() *cobra.Command {
	var live, upper bool
	cmd := &cobra.Command{
		Use:   offsetName,
		Short: "Print the queue offset of a point in time",
		Long: `Prints the offset of the first message stored at or after TIME, with --upper of
the last one stored at or before it. When no message lies on that side, the
answer is upstream's (the maximum, with --upper the minimum) and found is false.
TIME is ms since 1970, RFC 3339, "2026-11-29 10:00:00", or -2h for two hours
ago. Exits with 1 when the queue is unknown.`,
		Example: "  gantry store offset ./data Orders 0 \"2026-11-29 10:00:00\"\n  gantry store offset ./data Orders 0 -2h --upper",
	}
	arguments(cmd, "DIR", "TOPIC", "QUEUE", "TIME")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		queueID, err := queueArg(args[2])
		if err != nil {
			return err
		}
		ms, err := tool.ParseTime(args[3], a.now())
		if err != nil {
			return usagef("TIME %v", err)
		}
		s, err := a.openToRead(ctx, args[0], live)
		if err != nil {
			return err
		}
		defer s.Close()
		bound := gantry.Lower
		if upper {
			bound = gantry.Upper
		}
		off, ok, err := s.OffsetByTime(args[1], queueID, ms, bound)
		switch {
		case err != nil:
			return err
		case a.json:
			return a.printJSON(offsetJSON{args[1], queueID, ms, int64(off), ok})
		case !ok:
			return a.printf("%d (no message on that side of %s)\n", off, tool.Clock(ms, a.now().Location()))
		}
		return a.printf("%d\n", off)
	})
	liveFlag(cmd, &live)
	cmd.Flags().BoolVar(&upper, "upper", false, "the last message at or before TIME")
	return cmd
}
