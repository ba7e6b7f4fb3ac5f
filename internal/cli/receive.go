package cli

import (
	"context"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gantrymq/gantry/internal/client"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// positionTimeout bounds the time in which a new group is given its beginning.
const positionTimeout = 5 * time.Second

// receiveGroup is the consumer group of the command.
const receiveGroup = "gantry_receive"

func (a *app) receive() *cobra.Command {
	var (
		cf              clientFlags
		group, tag, sql string
		fromEarliest    bool
		n               int
		idle            time.Duration
	)
	cmd := &cobra.Command{
		Use:   "receive",
		Short: "Consume messages of a topic and print them",
		Long: `Joins a consumer group, prints the messages of the topic as they come, and
consumes them: the group goes on behind them the next time. A group that is new
begins with the messages stored from now on, or with --from-earliest with those
that are there. (Brokers of RocketMQ 4.x also give a new group what they still have
in memory.) The messages of a queue come in order, and to one member of the group at
a time.

Ends with Ctrl-C, after -n messages, or when --idle passes without one; exits with
1 when there was none.`,
		Example: "  gantry receive Orders --group audit --tag 'new || paid'\n  gantry receive Orders --from-earliest --idle 3s --json",
	}
	arguments(cmd, "TOPIC")
	cmd.ValidArgsFunction = cobra.NoFileCompletions
	cmd.RunE = run(func(ctx context.Context, args []string) error {
		switch {
		case n < 0:
			return usagef("-n %d is negative", n)
		case idle < 0:
			return usagef("--idle %v is negative", idle)
		case tag != "" && sql != "":
			return usagef("--tag and --sql exclude each other")
		case group == "":
			return usagef("--group is empty")
		}
		began := a.now()
		expr := client.Expression{Text: tag}
		if sql != "" {
			expr = client.SQL(sql)
		}
		c, err := a.connect(&cf)
		if err != nil {
			return err
		}
		defer c.Close()
		// A consumer waits for a topic that does not exist yet; a person
		// wants to know that they mistyped it.
		if _, err := c.Route(ctx, args[0]); err != nil {
			return unanswered(err)
		}
		r := &receiver{a: a, max: n, more: make(chan struct{}, 1), done: make(chan struct{}), interrupted: func() bool { return ctx.Err() != nil }}
		opts := client.ConsumerOptions{
			Group: group, Subscriptions: map[string]client.Expression{args[0]: expr}, Handler: r.handle,
			// By time and not the end: a queue may be found, and even made,
			// only after the first messages for it were sent.
			From: remoting.FromTimestamp, FromTime: began, FromStrict: true,
			// In order, as then messages beyond the last one wanted can stay
			// where they are.
			Orderly: true, CloseGrace: time.Millisecond,
		}
		if fromEarliest {
			opts.From, opts.FromTime = remoting.FromFirstOffset, time.Time{}
		}
		cons, err := client.NewConsumer(ctx, c, opts)
		if err != nil {
			return failed(err)
		}
		position(ctx, c, opts, args[0])
		r.wait(ctx, idle)
		if err := cons.Close(); err != nil {
			return failed(err)
		}
		if r.err != nil {
			return failed(r.err)
		}
		if r.count == 0 {
			return found()
		}
		return nil
	})
	f := cmd.Flags()
	cf.add(cmd)
	f.StringVar(&group, "group", receiveGroup, "consumer group `NAME`")
	f.StringVar(&tag, "tag", "", "only messages with one of these tags, `\"a || b\"`")
	f.StringVar(&sql, "sql", "", "only messages whose properties meet this SQL92 `condition`")
	f.BoolVar(&fromEarliest, "from-earliest", false, "a new group begins with the messages that are there")
	f.IntVarP(&n, "number", "n", 0, "stop after `N` messages; 0 means never")
	f.DurationVar(&idle, "idle", 0, "stop when no message came for this `long` (5s, 1m); 0 means never")
	return cmd
}

// position commits where a new group begins, for all queues of the topic. The
// consumer may be at its end before it has come to all of them, and the next one
// must not take what is there then for the beginning; so it goes on after Ctrl-C.
// What fails here is left to the consumer, which asks for the same.
func position(ctx context.Context, c *client.Client, opts client.ConsumerOptions, topic string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), positionTimeout)
	defer cancel()
	route, err := c.Route(ctx, topic)
	if err != nil {
		return
	}
	for _, q := range route.ReadQueues() {
		if _, ok, err := c.CommittedOffset(ctx, opts.Group, q); ok || err != nil {
			continue
		}
		offset, err := c.MinOffset(ctx, q)
		if opts.From == remoting.FromTimestamp {
			offset, err = c.SearchOffset(ctx, q, opts.FromTime, false)
		}
		if err == nil {
			_ = c.CommitOffset(ctx, opts.Group, q, offset)
		}
	}
}

// receiver prints messages until it has enough.
type receiver struct {
	a    *app
	max  int
	more chan struct{} // something was printed
	done chan struct{} // closed when it is enough
	// interrupted says that the user has had enough: nothing more is printed.
	interrupted func() bool

	mu    sync.Mutex
	count int
	ended bool
	err   error // why a message could not be printed
}

// handle prints messages. Those beyond the last one wanted stay in their queue.
func (r *receiver) handle(_ context.Context, ms []message.Ext) client.Result {
	r.mu.Lock()
	defer r.mu.Unlock()
	for i := range ms { // one at a time: BatchSize is 1
		if r.ended || r.interrupted() {
			return client.Suspend(time.Minute)
		}
		if r.err = r.a.printMessage(ms[i], false); r.err != nil {
			r.endLocked()
			return client.Suspend(time.Minute)
		}
		if r.count++; r.count == r.max {
			r.endLocked()
		}
	}
	select {
	case r.more <- struct{}{}:
	default:
	}
	return client.Consumed()
}

func (r *receiver) endLocked() {
	r.ended = true
	close(r.done)
}

// wait returns when it is enough.
func (r *receiver) wait(ctx context.Context, idle time.Duration) {
	var timeout <-chan time.Time
	for {
		if idle > 0 {
			timeout = time.After(idle)
		}
		select {
		case <-r.more:
		case <-r.done:
			return
		case <-ctx.Done():
			return
		case <-timeout:
			r.mu.Lock()
			defer r.mu.Unlock()
			if !r.ended {
				r.endLocked()
			}
			return
		}
	}
}
