package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// Times of a consumer that upstream's have too (section 9).
const (
	flushInterval     = 5 * time.Second
	rebalanceInterval = 20 * time.Second
	rebalanceAgain    = time.Second // when something could not be done, doubling
	rebalancePause    = 100 * time.Millisecond
	lockInterval      = 20 * time.Second
	lockLife          = 30 * time.Second // without a refresh we take a lock for lost
	lockTimeout       = time.Second
	suspendPause      = time.Second     // of a queue read in order, after a failure
	sendBackAgain     = 5 * time.Second // when a failed message could not be given back
	holdTime          = 15 * time.Second
	holdTimeout       = 30 * time.Second
	defaultCloseGrace = 10 * time.Second
)

// Defaults of ConsumerOptions.
const (
	defaultConcurrency   = 20
	defaultMaxReconsume  = 16
	defaultMaxQueued     = 1000
	defaultMaxCacheBytes = 256 << 20
)

// A Result says what becomes of the messages that a handler was given. The zero
// value: they are consumed.
type Result struct {
	kind  resultKind
	level int32
	pause time.Duration
}

type resultKind uint8

const (
	resultConsumed resultKind = iota
	resultRetry
	resultSuspend
)

// Consumed is the result for messages that are done with.
func Consumed() Result { return Result{} }

// RetryLater is the result for messages that are to come again, later and later
// each time, and after ConsumerOptions.MaxReconsumeTimes go to the dead letters.
// A consumer that reads in order tries again after a second.
func RetryLater() Result { return Result{kind: resultRetry} }

// RetryAtLevel is RetryLater with a delay level of the broker, from 1.
func RetryAtLevel(level int) Result { return Result{kind: resultRetry, level: int32(max(level, 1))} }

// DeadLetter is the result for messages that go to the dead letters at once.
func DeadLetter() Result { return Result{kind: resultRetry, level: -1} }

// Suspend is the result for a consumer that reads in order: the same messages
// come again after pause, and nothing else of their queue before. Others take
// it for RetryLater.
func Suspend(pause time.Duration) Result { return Result{kind: resultSuspend, pause: pause} }

// A Handler consumes messages of one queue. Bodies compressed by zlib are
// inflated, and messages that come again have the topic they were sent to. The
// messages are the handler's. ctx ends when a consumer that is closed waits no
// longer. A handler must not close its consumer or client.
type Handler func(ctx context.Context, ms []message.Ext) Result

// ConsumerOptions are the options of a Consumer. Zero fields have the defaults.
type ConsumerOptions struct {
	Group string
	// Subscriptions say which messages of which topics are wanted. All
	// members of a group must have the same.
	Subscriptions map[string]Expression
	Handler       Handler

	// Broadcast gives every member all messages, instead of sharing them out.
	// Failed messages do not come again. Offsets are kept in OffsetFile; ""
	// keeps them in memory only.
	Broadcast  bool
	OffsetFile string
	// From says where a group starts that has no offset: at the end by
	// default. FromTime belongs to remoting.FromTimestamp. Brokers that have
	// all of a queue start new groups at its beginning nevertheless.
	From     remoting.ConsumeFrom
	FromTime time.Time
	// FromStrict keeps those brokers from it. It has no effect on brokers of
	// 4.9.
	FromStrict bool
	// Orderly handles the messages of a queue one after the other, with the
	// queue locked against other members.
	Orderly bool

	// Concurrency bounds the handlers that run at a time. 0 means 20.
	Concurrency int
	// BatchSize bounds the messages that a handler is given. 0 means 1.
	BatchSize int
	// PullMax bounds the messages of one pull. 0 means 32.
	PullMax int
	// MaxQueued bounds the messages of one queue that wait or are handled,
	// MaxCacheBytes the bodies of all queues; at the bound, or one pull above
	// it, nothing is pulled. 0 means 1000 and 256 MiB.
	MaxQueued     int
	MaxCacheBytes int64
	// MaxReconsumeTimes is how often a message comes again. 0 means 16, or
	// without end for Orderly; negative, never.
	MaxReconsumeTimes int
	// CloseGrace is how long Close waits for handlers before their ctx ends.
	// 0 means 10 s.
	CloseGrace time.Duration
}

func (o ConsumerOptions) withDefaults() (ConsumerOptions, error) {
	switch {
	case o.Group == "":
		return o, errors.New("no group")
	case len(o.Subscriptions) == 0:
		return o, errors.New("no subscription")
	case o.Handler == nil:
		return o, errors.New("no handler")
	case o.Orderly && o.Broadcast:
		return o, errors.New("broadcasting consumers cannot read in order: there is nothing to lock")
	case o.From != remoting.FromLastOffset && o.From != remoting.FromFirstOffset && o.From != remoting.FromTimestamp:
		return o, fmt.Errorf("unknown From %d", o.From)
	case o.Concurrency < 0, o.BatchSize < 0, o.PullMax < 0, o.MaxQueued < 0, o.MaxCacheBytes < 0, o.CloseGrace < 0:
		return o, errors.New("a number is negative")
	}
	for v, d := range map[*int]int{
		&o.Concurrency: defaultConcurrency, &o.BatchSize: 1, &o.PullMax: defaultPullMax, &o.MaxQueued: defaultMaxQueued,
	} {
		if *v == 0 {
			*v = d
		}
	}
	if o.MaxCacheBytes == 0 {
		o.MaxCacheBytes = defaultMaxCacheBytes
	}
	if o.CloseGrace == 0 {
		o.CloseGrace = defaultCloseGrace
	}
	switch {
	case o.MaxReconsumeTimes < 0:
		o.MaxReconsumeTimes = 0
	case o.MaxReconsumeTimes == 0 && o.Orderly:
		o.MaxReconsumeTimes = -1 // without end
	case o.MaxReconsumeTimes == 0:
		o.MaxReconsumeTimes = defaultMaxReconsume
	}
	return o, nil
}

// A Consumer is a member of a consumer group (upstream: DefaultMQPushConsumer).
//
// For each queue that is its share two goroutines run: one pulls, one hands out
// to handlers. A queue that is no longer its share is stopped, its offset
// committed, and, when it was read in order, unlocked after its handler.
type Consumer struct {
	c            *Client
	opts         ConsumerOptions
	log          *slog.Logger
	started      time.Time
	retryTopic   string                           // "" for broadcasting
	subs         map[string]remoting.Subscription // by topic; does not change
	slots        chan struct{}                    // handlers that run
	cached       atomic.Int64                     // bytes of bodies that wait or are handled
	rebalanceNow chan struct{}                    // of capacity 1
	local        localOffsets                     // of a broadcasting consumer

	stop      context.CancelFunc // ends everything but handlers
	abandon   context.CancelFunc // ends handlers
	abandoned <-chan struct{}    // closed by abandon
	loops     sync.WaitGroup     // loops, queues and what stops them
	handlers  sync.WaitGroup
	closeOnce sync.Once

	mu struct {
		sync.Mutex
		closed bool
		queues map[remoting.MessageQueue]*queue
		// leaving are queues that are being stopped and cannot come back yet.
		leaving map[remoting.MessageQueue]struct{}
	}
}

// NewConsumer starts a consumer of a group; ctx bounds starting. Topics that do
// not exist yet are picked up when they do. The caller has to call Close, or
// close the client.
func NewConsumer(ctx context.Context, c *Client, opts ConsumerOptions) (*Consumer, error) {
	cs, err := newConsumer(c, opts)
	if err != nil {
		return nil, fmt.Errorf("consumer options: %w", err)
	}
	work, stop := context.WithCancel(context.Background())
	handle, abandon := context.WithCancel(context.Background())
	cs.stop, cs.abandon, cs.abandoned = stop, abandon, handle.Done()
	c.mu.Lock()
	switch {
	case c.mu.closed:
		err = ErrClosed
	case c.mu.consumers[opts.Group] != nil:
		err = fmt.Errorf("the client has a consumer of group %s", opts.Group)
	default:
		c.mu.consumers[opts.Group] = cs
		c.changedLocked()
	}
	c.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if err := cs.introduce(ctx); err != nil {
		cs.Close() //nolint:errcheck // never fails
		return nil, fmt.Errorf("start consumer of group %s: %w", opts.Group, err)
	}
	cs.loops.Go(func() { cs.keepBalance(work, handle) })
	cs.loops.Go(func() { cs.keepFlushing(work) })
	if opts.Orderly {
		cs.loops.Go(func() { cs.keepLocks(work) })
	}
	return cs, nil
}

func newConsumer(c *Client, opts ConsumerOptions) (*Consumer, error) {
	opts, err := opts.withDefaults()
	if err != nil {
		return nil, err
	}
	cs := &Consumer{
		c: c, opts: opts, started: time.Now(), log: c.log.With("consumerGroup", opts.Group),
		subs:         make(map[string]remoting.Subscription),
		slots:        make(chan struct{}, opts.Concurrency),
		rebalanceNow: make(chan struct{}, 1),
	}
	version := time.Now().UnixMilli()
	for topic, e := range opts.Subscriptions {
		if cs.subs[topic], err = e.subscribe(topic, version); err != nil {
			return nil, fmt.Errorf("subscription of topic %s: %w", topic, err)
		}
	}
	if !opts.Broadcast {
		cs.retryTopic = message.RetryPrefix + opts.Group
		if cs.subs[cs.retryTopic], err = (Expression{}).subscribe(cs.retryTopic, version); err != nil {
			return nil, err
		}
	}
	if opts.Broadcast {
		if cs.local.offsets, err = readOffsets(opts.OffsetFile); err != nil {
			return nil, err
		}
	}
	cs.mu.queues = make(map[remoting.MessageQueue]*queue)
	cs.mu.leaving = make(map[remoting.MessageQueue]struct{})
	return cs, nil
}

// introduce tells the brokers of the subscribed topics of the consumer before it
// pulls, as they filter by what they were told. Brokers that do not answer are
// told later; conditions are checked by them, so that a wrong one is an error
// here.
func (cs *Consumer) introduce(ctx context.Context) error {
	for topic, sub := range cs.subs {
		route, err := cs.c.Route(ctx, topic)
		if hasCode(err, remoting.CodeTopicNotExist) {
			continue
		}
		if err != nil {
			return err
		}
		if sub.ExpressionType == remoting.ExpressionTag {
			continue
		}
		for _, broker := range route.Brokers() {
			if err := cs.checkCondition(ctx, route, broker, sub); err != nil {
				return err
			}
		}
	}
	cs.c.beatAll(ctx, false)
	return ctx.Err()
}

func (cs *Consumer) checkCondition(ctx context.Context, route *Route, broker string, sub remoting.Subscription) error {
	addr, err := route.replica(broker, masterID)
	if err != nil {
		return err
	}
	req := remoting.NewRequest(remoting.ReqCheckClientConfig, nil)
	req.Body = remoting.EncodeBody(&remoting.CheckClient{ClientID: cs.c.opts.ClientID, Group: cs.opts.Group, Subscription: sub})
	_, err = cs.c.call(ctx, addr, req, cs.c.opts.Timeout)
	return err
}

// data returns the consumer as a heartbeat describes it. It is called under the
// client's lock.
func (cs *Consumer) data() remoting.ConsumerData {
	d := remoting.ConsumerData{
		GroupName: cs.opts.Group, Type: remoting.ConsumePassively, Model: remoting.Clustering, From: cs.opts.From,
	}
	if cs.opts.Broadcast {
		d.Model = remoting.Broadcasting
	}
	for _, topic := range slices.Sorted(maps.Keys(cs.subs)) {
		d.Subscriptions = append(d.Subscriptions, cs.subs[topic])
	}
	return d
}

// Close stops pulling, waits for the handlers that run, commits the offsets,
// unlocks the queues and leaves the group. Messages that wait are not handled.
// It may be called more than once.
func (cs *Consumer) Close() error {
	cs.closeOnce.Do(func() {
		cs.mu.Lock()
		cs.mu.closed = true
		cs.mu.Unlock()
		cs.stop()
		grace := time.AfterFunc(cs.opts.CloseGrace, cs.abandon)
		cs.loops.Wait()
		cs.handlers.Wait()
		grace.Stop()
		cs.abandon()

		ctx, cancel := context.WithTimeout(context.Background(), defaultCloseGrace)
		defer cancel()
		cs.leaveAll(ctx)
		cs.c.mu.Lock()
		delete(cs.c.mu.consumers, cs.opts.Group)
		cs.c.changedLocked()
		cs.c.mu.Unlock()
		cs.c.unregister(ctx, &remoting.UnregisterClientRequest{ConsumerGroup: cs.opts.Group})
	})
	return nil
}

// leaveAll commits the offsets of all queues, and unlocks them.
func (cs *Consumer) leaveAll(ctx context.Context) {
	cs.mu.Lock()
	queues := cs.mu.queues
	cs.mu.queues = make(map[remoting.MessageQueue]*queue)
	cs.mu.Unlock()
	cs.commitAll(ctx, queues)
	if cs.opts.Orderly {
		cs.unlock(ctx, slices.Collect(maps.Keys(queues)))
	}
}

// Queues returns the queues that are the consumer's share now, in order.
func (cs *Consumer) Queues() []remoting.MessageQueue {
	cs.mu.Lock()
	defer cs.mu.Unlock()
	return slices.SortedFunc(maps.Keys(cs.mu.queues), compareQueues)
}
