package cli

import (
	"bufio"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry/internal/client"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// sendJSON says where a message is.
type sendJSON struct {
	Topic       string `json:"topic"`
	BrokerName  string `json:"brokerName"`
	QueueID     int32  `json:"queueId"`
	QueueOffset int64  `json:"queueOffset"`
	MsgID       string `json:"msgId"`       // unique key
	OffsetMsgID string `json:"offsetMsgId"` // offset id
	Status      string `json:"status"`
}

// sendGroup is the producer group of the command.
const sendGroup = "gantry_send"

func (a *app) send() *cobra.Command {
	var (
		cf               clientFlags
		tag, body, group string
		keys, properties []string
		lines            bool
	)
	cmd := &cobra.Command{
		Use:   "send",
		Short: "Send messages to a topic",
		Long: `Sends a message and prints where it was stored. The body is --body or what comes
on the standard input; with --lines every line is a message of its own, without
its end, and empty ones are passed over. A topic that does not exist is made,
where the brokers allow that. With --lines nothing more is sent after a message
that was refused.

Exits with 1 when a broker has the message but reports a doubt: that flushing it
took too long, for instance.`,
		Example: "  gantry send Orders --tag new --key order-4711 --body hello\n  tail -f app.log | gantry send Logs --lines",
	}
	arguments(cmd, "TOPIC")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		props, err := putProperties(tag, keys, properties)
		if err != nil {
			return err
		}
		if lines && cmd.Flags().Changed("body") {
			return usagef("--lines reads the standard input; --body is one message")
		}
		c, err := a.connect(&cf)
		if err != nil {
			return err
		}
		defer c.Close()
		p, err := client.NewProducer(c, client.ProducerOptions{Group: group})
		if err != nil {
			return usagef("--group: %v", err)
		}
		doubtful := false
		one := func(ctx context.Context, body []byte) error {
			res, err := p.Send(ctx, &message.Message{Topic: args[0], Properties: props, Body: body, BornTimestamp: a.now().UnixMilli()})
			if err != nil {
				return err
			}
			doubtful = doubtful || res.Status != client.SendOK
			return a.printSent(args[0], res)
		}
		if lines {
			err = a.sendLines(ctx, one)
		} else {
			data := []byte(body)
			if !cmd.Flags().Changed("body") {
				if data, err = a.readBody(ctx, 0); err != nil {
					return failed(err)
				}
			}
			if len(data) == 0 {
				return usagef("the body is empty, which brokers refuse")
			}
			err = one(ctx, data)
		}
		if err == nil && doubtful {
			return found()
		}
		return unanswered(err)
	})
	f := cmd.Flags()
	cf.add(cmd)
	f.StringVar(&group, "group", sendGroup, "producer group `NAME`")
	f.StringVar(&tag, "tag", "", "`TAG` (property TAGS)")
	f.StringArrayVar(&keys, "key", nil, "`KEY` (property KEYS); repeatable")
	f.StringArrayVar(&properties, "property", nil, "property as `NAME=VALUE`, DELAY=3 for instance; repeatable")
	f.StringVar(&body, "body", "", "`TEXT` of the body; default: the standard input")
	f.BoolVar(&lines, "lines", false, "each line of the standard input is a message")
	return cmd
}

func (a *app) sendLines(ctx context.Context, send func(context.Context, []byte) error) error {
	in := a.input(ctx, "messages, one per line,")
	defer in.Close()
	// A line is sent as it is, white space included. Who forgot the ends of
	// lines hears so before the memory is full.
	s := bufio.NewScanner(in)
	s.Buffer(nil, message.DefaultMaxMessageSize+len("\r\n")+1)
	n := 1
	for ; s.Scan(); n++ {
		if len(s.Bytes()) == 0 {
			continue
		}
		if err := send(ctx, s.Bytes()); err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := s.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n, err)
	}
	return nil
}

func (a *app) printSent(topic string, res client.SendResult) error {
	if a.json {
		return a.printJSON(sendJSON{topic, res.Queue.BrokerName, res.Queue.QueueID, res.QueueOffset, res.MsgID, res.OffsetMsgID, res.Status.String()})
	}
	return a.printf("%s %s queue %d offset %d  %s  id %s\n", tool.Printable(topic), res.Queue.BrokerName, res.Queue.QueueID, res.QueueOffset, res.Status, res.OffsetMsgID)
}
