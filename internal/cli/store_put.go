package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/tool"
	"github.com/gantrymq/gantry/message"
)

// putJSON says where a message was stored.
type putJSON struct {
	Topic           string `json:"topic"`
	QueueID         int32  `json:"queueId"`
	QueueOffset     int64  `json:"queueOffset"`
	CommitLogOffset int64  `json:"commitLogOffset"`
	StoreSize       int    `json:"storeSize"`
	StoreTimestamp  int64  `json:"storeTimestamp"`
	MsgID           string `json:"msgId"`
	Status          string `json:"status"`
}

func (a *app) storePut() *cobra.Command {
	var (
		queue            int32
		tag, body        string
		keys, properties []string
	)
	cmd := &cobra.Command{
		Use:   "put",
		Short: "Append one message, creating the store if need be",
		Long: `Appends one message and prints where it was stored. The body is --body or what
comes on the standard input. The message is on stable storage when the command
ends. A message with a DELAY property waits in the schedule topic for a broker
to deliver it.`,
		Example: "  gantry store put ./data Orders --tag new --key order-4711 --body hello\n  gantry store put ./data Orders < body.bin",
	}
	arguments(cmd, "DIR", "TOPIC")
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		props, err := putProperties(tag, keys, properties)
		if err != nil {
			return err
		}
		if queue < 0 {
			return usagef("--queue %d is negative", queue)
		}
		var o gantry.Options
		if err := a.options(&o, args[0]); err != nil {
			return err
		}
		m := message.Message{
			Topic: args[1], QueueID: queue, BornTimestamp: a.now().UnixMilli(), Body: []byte(body),
			BornHost: netip.MustParseAddrPort("127.0.0.1:0"), Properties: props,
		}
		if !cmd.Flags().Changed("body") {
			if m.Body, err = a.readBody(ctx, o.MaxMessageSize); err != nil {
				return err
			}
		}
		s, err := a.openToWrite(ctx, args[0], &o)
		if err != nil {
			return err
		}
		res, err := s.Put(ctx, &m)
		if err := errors.Join(err, s.Close()); err != nil {
			return failed(err)
		}
		if a.json {
			return a.printJSON(putJSON{
				res.Topic, res.QueueID, int64(res.QueueOffset), int64(res.PhysicalOffset), res.Size, res.StoreTimestamp, res.MsgID(), gantry.PutOK.String(),
			})
		}
		return a.printf("%s queue %d offset %d  stored %s  position %d  size %d  id %s\n", tool.Printable(res.Topic), res.QueueID, res.QueueOffset,
			tool.Clock(res.StoreTimestamp, a.now().Location()), res.PhysicalOffset, res.Size, res.MsgID())
	})
	f := cmd.Flags()
	f.Int32Var(&queue, "queue", 0, "queue `ID`")
	f.StringVar(&tag, "tag", "", "`TAG` (property TAGS)")
	f.StringArrayVar(&keys, "key", nil, "`KEY` (property KEYS); repeatable")
	f.StringArrayVar(&properties, "property", nil, "property as `NAME=VALUE`; repeatable")
	f.StringVar(&body, "body", "", "`TEXT` of the body; default: the standard input")
	return cmd
}

// putProperties joins what the flags say.
func putProperties(tag string, keys, pairs []string) (p message.Properties, err error) {
	set := func(flag, name, value string) error {
		if err := message.CheckProperty(name, value); err != nil {
			return usagef("--%s: %v", flag, err)
		}
		p = p.Set(name, value)
		return nil
	}
	for _, pair := range pairs {
		name, value, ok := strings.Cut(pair, "=")
		if !ok {
			return "", usagef("--property %q is not NAME=VALUE", pair)
		}
		if err := set("property", name, value); err != nil {
			return "", err
		}
	}
	for _, key := range keys {
		if key == "" || strings.Contains(key, " ") {
			return "", usagef("--key %q: a key is not empty and has no blanks, which separate keys", key)
		}
	}
	if len(keys) > 0 {
		if err := set("key", message.PropKeys, strings.Join(keys, " ")); err != nil {
			return "", err
		}
	}
	if tag != "" {
		err = set("tag", message.PropTags, tag)
	}
	return p, err
}

// readBody reads the standard input, but not much more than a message can
// hold: the store then refuses it with its reason.
func (a *app) readBody(ctx context.Context, limit int) ([]byte, error) {
	if limit == 0 {
		limit = message.DefaultMaxMessageSize
	}
	in := a.input(ctx, "the body")
	defer in.Close()
	body, err := io.ReadAll(io.LimitReader(in, int64(limit)+1))
	if err != nil {
		return nil, fmt.Errorf("read the body: %w", err)
	}
	return body, nil
}
