package cli

import (
	"context"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/message"
)

func (a *app) storeGet() *cobra.Command {
	var (
		live, raw bool
		n         int
		id        string
		physical  int64
	)
	cmd := &cobra.Command{
		Use:   "get",
		Short: "Print messages by queue offset, message id or position",
		Long: `Prints messages of one queue, -n of them from OFFSET (the first one when it is
left out) on, or with --id or --physical the one message that has an offset
message id, or that starts at a position of the commit log. (A UNIQ_KEY, the id
that a client shows, is a key: see query --unique.) Exits with 1 when nothing is
there, and when a message on the way is damaged.`,
		Example: "  gantry store get ./data Orders 0 120 -n 5\n  gantry store get ./data --id 7F00000100002A9F000000000000005E",
	}
	arguments(cmd, "DIR", "[TOPIC", "QUEUE]", "[OFFSET]")
	cmd.Use = "get DIR {TOPIC QUEUE [OFFSET] | --id MSGID | --physical OFFSET}"
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		byID, byPosition := cmd.Flags().Changed("id"), cmd.Flags().Changed("physical")
		switch {
		case byID && byPosition:
			return usagef("--id and --physical exclude each other")
		case (byID || byPosition) && (len(args) > 1 || cmd.Flags().Changed("number")):
			return usagef("--id and --physical name one message, without TOPIC, QUEUE, OFFSET and -n")
		case !byID && !byPosition && len(args) < 3:
			return usagef("give TOPIC and QUEUE, or --id, or --physical")
		case n < 0:
			return usagef("-n %d is negative", n)
		case physical < 0:
			return usagef("--physical %d is negative", physical)
		}
		if byID {
			_, at, err := message.ParseOffsetID(id)
			if err != nil {
				return usagef("--id %s: %v", id, err)
			}
			physical = int64(at)
		}
		if byID || byPosition {
			s, err := a.openToRead(ctx, args[0], live)
			if err != nil {
				return err
			}
			defer s.Close()
			m, err := s.MessageAt(message.PhysicalOffset(physical))
			if err != nil {
				return err
			}
			return a.printMessage(m, raw)
		}

		queueID, err := queueArg(args[2])
		if err != nil {
			return err
		}
		offset := int64(0)
		if len(args) == 4 {
			if offset, err = strconv.ParseInt(args[3], 10, 64); err != nil || offset < 0 {
				return usagef("OFFSET %q is no number from 0 on", args[3])
			}
		}
		s, err := a.openToRead(ctx, args[0], live)
		if err != nil {
			return err
		}
		defer s.Close()
		first, next, err := s.QueueRange(args[1], queueID)
		if err != nil {
			return err
		}
		from := message.QueueOffset(offset)
		if len(args) < 4 {
			from = first
		}
		if from < first || from >= next {
			if first == next {
				a.note("queue %s/%d is empty, its next message gets offset %d", args[1], queueID, next)
			} else {
				a.note("queue %s/%d has no message at offset %d: it holds %d to %d", args[1], queueID, from, first, next-1)
			}
			return found()
		}
		end := next
		if n > 0 {
			end = min(end, from+message.QueueOffset(n))
		}
		return a.printQueue(ctx, s, args[1], queueID, from, end, raw)
	})
	liveFlag(cmd, &live)
	rawFlag(cmd, &raw)
	cmd.Flags().IntVarP(&n, "number", "n", 1, "print `N` messages; 0 means all")
	cmd.Flags().StringVar(&id, "id", "", "the message with this `MSGID` (32 or 56 hex digits)")
	cmd.Flags().Int64Var(&physical, "physical", 0, "the message at this `OFFSET` in the commit log")
	return cmd
}

// printQueue prints the messages of a queue at the offsets from … end-1.
func (a *app) printQueue(ctx context.Context, s *gantry.Store, topic string, queueID int32, from, end message.QueueOffset, raw bool) error {
	printed, damaged := 0, 0
	for offset := from; offset < end; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		res, err := s.Get(topic, queueID, offset, gantry.GetOptions{Max: int(min(end-offset, 32))})
		if err != nil {
			return err
		}
		for _, err := range res.Damaged {
			damaged++
			a.note("%v", err)
		}
		for _, rec := range res.Records {
			if rec.QueueOffset >= end { // Get went on to it because offsets before it are empty
				break
			}
			m, err := message.Decode(rec.Bytes)
			if err != nil {
				return err
			}
			if err := a.printMessage(m, raw); err != nil {
				return err
			}
			printed++
		}
		if res.NextOffset == offset {
			break
		}
		offset = res.NextOffset
	}
	if printed == 0 && damaged == 0 {
		a.note("queue %s/%d has lost what was at offset %d", topic, queueID, from)
	}
	if printed == 0 || damaged > 0 {
		return found()
	}
	return nil
}
