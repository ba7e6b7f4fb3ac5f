package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

const (
	// queryPage is how many messages one request asks for.
	queryPage = 1024
	// A page is all there is if it has fewer messages than fullPage and fewer
	// bytes than fullPageBytes. Java brokers give 64, or 32 by unique key.
	fullPage      = 32
	fullPageBytes = 4 << 20
	// maxQuery and maxQueryBytes bound the answer to a query.
	maxQuery      = 100_000
	maxQueryBytes = 1 << 30
	// indexStep is how exact the times in an index are: rounded down to it,
	// counted from the first entry of a file.
	indexStep = time.Second
)

// QueryOptions say what Query looks for.
type QueryOptions struct {
	// From and To bound the store time. Zero: no bound.
	From, To time.Time
	// Max bounds the messages; the newest are returned. 0 means all.
	Max int
	// Unique takes the key for a unique one (UNIQ_KEY), not one of KEYS.
	Unique bool
}

// QueryResult is what Query found.
type QueryResult struct {
	// Messages are ordered by store time, the newest first.
	Messages []message.Ext
	// Truncated says that there may be more, which could not be had: brokers
	// answer by pages, and nothing leads to the next one when more than a
	// page was stored within one second; or the result grew too large.
	Truncated bool
}

// Query asks the masters of all brokers that have the topic for messages with a
// key. What they return is checked against the key itself, as they go by its
// hash. If some fail, the result has what the others gave, and err tells.
func (c *Client) Query(ctx context.Context, topic, key string, opts QueryOptions) (QueryResult, error) {
	route, err := c.Route(ctx, topic)
	if err != nil {
		return QueryResult{}, err
	}
	q := query{c: c, topic: topic, key: key, opts: opts}
	var errs []error
	for _, broker := range route.Brokers() {
		addr, err := route.Master(broker)
		if err == nil {
			err = q.ask(ctx, addr)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("query broker %s: %w", broker, err))
		}
	}
	slices.SortStableFunc(q.found.Messages, func(a, b message.Ext) int {
		return cmp.Or(cmp.Compare(b.StoreTimestamp, a.StoreTimestamp), cmp.Compare(b.PhysicalOffset, a.PhysicalOffset))
	})
	if opts.Max > 0 && len(q.found.Messages) > opts.Max {
		q.found.Messages = q.found.Messages[:opts.Max]
	}
	return q.found, errors.Join(errs...)
}

// query is a Query that runs.
type query struct {
	c     *Client
	topic string
	key   string
	opts  QueryOptions
	found QueryResult
	bytes int64
}

// ask collects the messages of one broker, the newest first, page by page: the
// next one ends where the last one began.
func (q *query) ask(ctx context.Context, addr string) error {
	end := int64(math.MaxInt64)
	if !q.opts.To.IsZero() {
		end = q.opts.To.UnixMilli()
	}
	seen := make(map[message.PhysicalOffset]struct{})
	hits := 0
	for {
		page, full, err := q.page(ctx, addr, end)
		if err != nil || len(page) == 0 {
			return err
		}
		oldest, fresh := int64(math.MaxInt64), 0
		for _, m := range page {
			oldest = min(oldest, m.StoreTimestamp)
			if _, ok := seen[m.PhysicalOffset]; ok {
				continue
			}
			seen[m.PhysicalOffset] = struct{}{}
			fresh++
			if !q.matches(&m) {
				continue
			}
			if len(q.found.Messages) >= maxQuery || q.bytes > maxQueryBytes {
				q.found.Truncated = true
				return nil
			}
			q.found.Messages = append(q.found.Messages, m)
			q.bytes += int64(len(m.Body) + len(m.Properties))
			hits++
		}
		switch {
		case q.opts.Max > 0 && hits >= q.opts.Max, len(seen) > maxQuery:
			q.found.Truncated = q.found.Truncated || hits < q.opts.Max
			return nil
		case fresh > 0:
			end = min(end, oldest)
		case !full:
			return nil
		default: // more than a page within one second
			q.found.Truncated = true
			end = min(end, oldest) - indexStep.Milliseconds()
		}
		if !q.opts.From.IsZero() && end < q.opts.From.UnixMilli() || end < 0 {
			return nil
		}
	}
}

// page asks for the messages stored up to end. full says that there may be more.
func (q *query) page(ctx context.Context, addr string, end int64) (page []message.Ext, full bool, err error) {
	h := &remoting.QueryMessageRequest{
		Topic: q.topic, Key: q.key, MaxNum: queryPage, EndTimestamp: end, UniqueKeyQuery: q.opts.Unique, IndexType: "K",
	}
	if q.opts.Unique {
		h.IndexType = "U"
	}
	if !q.opts.From.IsZero() {
		h.BeginTimestamp = q.opts.From.Add(-indexStep).UnixMilli() // matches looks again
	}
	resp, err := q.c.call(ctx, addr, remoting.NewRequest(remoting.ReqQueryMessage, h), 3*q.c.opts.Timeout) // as upstream
	if hasCode(err, remoting.CodeQueryNotFound) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	page, err = decodeMessages(resp.Body)
	return page, len(page) >= fullPage || len(resp.Body) >= fullPageBytes, err
}

// matches reports whether a message is one that was asked for.
func (q *query) matches(m *message.Ext) bool {
	if m.Topic != q.topic || !q.opts.From.IsZero() && m.StoreTimestamp < q.opts.From.UnixMilli() ||
		!q.opts.To.IsZero() && m.StoreTimestamp > q.opts.To.UnixMilli() {
		return false
	}
	if q.opts.Unique {
		return m.UniqKey() == q.key
	}
	for k := range m.Keys() {
		if k == q.key {
			return true
		}
	}
	return false
}

// ViewMessage returns the message with an offset id, from the broker that the
// id names.
func (c *Client) ViewMessage(ctx context.Context, msgID string) (message.Ext, error) {
	host, at, err := message.ParseOffsetID(msgID)
	if err != nil {
		return message.Ext{}, err
	}
	return c.ViewMessageAt(ctx, host.String(), at)
}

// ViewMessageAt returns the message at a position of the commit log of the
// broker at addr.
func (c *Client) ViewMessageAt(ctx context.Context, addr string, at message.PhysicalOffset) (message.Ext, error) {
	resp, err := c.call(ctx, addr, remoting.NewRequest(remoting.ReqViewMessageByID, &remoting.ViewMessageRequest{Offset: int64(at)}), c.opts.Timeout)
	if err != nil {
		return message.Ext{}, err
	}
	all, err := decodeMessages(resp.Body)
	if err == nil && len(all) != 1 {
		err = fmt.Errorf("%d messages", len(all))
	}
	if err != nil {
		return message.Ext{}, fmt.Errorf("message at %d of %s: %w", at, addr, err)
	}
	return all[0], nil
}
