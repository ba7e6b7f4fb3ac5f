package client

import (
	"context"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gantrymq/gantry/remoting"
)

const (
	// routeUse is how long a route that nobody asks for is kept up to date.
	routeUse = 2 * time.Minute
	// routeAgain is the least time between two look-ups of a topic that are
	// caused by errors.
	routeAgain = 500 * time.Millisecond
	// maxRoutes bounds the topics whose routes are kept.
	maxRoutes = 10_000
)

// routeTable keeps the routes of the topics in use.
type routeTable struct {
	mu struct {
		sync.Mutex
		topics map[string]*topicRoute
	}
}

// topicRoute is what is known of a topic. routeTable.mu guards it.
type topicRoute struct {
	route   *Route // nil: never had one
	missing bool   // when last asked, the name server knew no such topic
	stale   bool   // an error says that it may be wrong
	sent    bool   // some producer sends there
	tried   time.Time
	used    time.Time
	err     error         // of the last look-up
	busy    chan struct{} // closed when the look-up under way is over; nil: there is none
	next    *atomic.Uint32

	// made is the route for sending as long as the topic does not exist, made
	// of like for likeNums queues on each broker.
	made, like *Route
	likeNums   int32
}

func (t *routeTable) init() { t.mu.topics = make(map[string]*topicRoute) }

// Route returns the route of a topic: one that is refreshed every 30 s while it
// is used, and after errors. A topic that no name server knows is a
// *remoting.Error with TOPIC_NOT_EXIST; it is asked for again each time.
func (c *Client) Route(ctx context.Context, topic string) (*Route, error) {
	return c.lookUp(ctx, topic, false)
}

// publishRoute is Route for producers: a topic that does not exist has the
// route of the template topic, cut to nums queues. That there is none is
// believed until the next refresh, or until an error.
func (c *Client) publishRoute(ctx context.Context, topic string, nums int32) (*Route, error) {
	r, err := c.lookUp(ctx, topic, true)
	if err == nil || !hasCode(err, remoting.CodeTopicNotExist) || topic == defaultTopic {
		return r, err
	}
	template, terr := c.lookUp(ctx, defaultTopic, true)
	if terr != nil {
		return nil, fmt.Errorf("%w (nor the topic %s, by which it would be made: %w)", err, defaultTopic, terr)
	}
	return c.routes.likeTemplate(topic, template, nums)
}

// lookUp returns the route of a topic, from the table if what is there is good
// enough.
func (c *Client) lookUp(ctx context.Context, topic string, sent bool) (*Route, error) {
	c.routes.mu.Lock()
	e := c.routes.entryLocked(topic)
	now := time.Now()
	e.used = now
	e.sent = e.sent || sent
	if e.goodLocked(now, sent) {
		defer c.routes.mu.Unlock()
		return e.resultLocked()
	}
	busy := c.startLookUpLocked(topic, e)
	c.routes.mu.Unlock()
	if busy == nil {
		return nil, ErrClosed
	}
	select {
	case <-busy:
	case <-ctx.Done():
		return nil, fmt.Errorf("route of topic %s: %w", topic, ctx.Err())
	}
	c.routes.mu.Lock()
	defer c.routes.mu.Unlock()
	return e.resultLocked()
}

// goodLocked reports whether a name server need not be asked.
func (e *topicRoute) goodLocked(now time.Time, sent bool) bool {
	age := now.Sub(e.tried)
	switch {
	case e.route != nil:
		return !e.stale || age < routeAgain
	case e.missing && sent:
		return age < routeAgain || !e.stale && age < routeInterval
	}
	return false
}

// resultLocked returns the route; an old one is better than none.
func (e *topicRoute) resultLocked() (*Route, error) {
	if e.route != nil {
		return e.route, nil
	}
	return nil, e.err
}

// startLookUpLocked starts to ask for a topic, unless that is under way. The
// look-up does not depend on who wanted it first. nil: the client is closed.
func (c *Client) startLookUpLocked(topic string, e *topicRoute) chan struct{} {
	if e.busy != nil {
		return e.busy
	}
	busy := make(chan struct{})
	if !c.spawn(func() {
		changed := c.fetchRoute(topic, e)
		close(busy)
		if changed {
			c.routeChanged(topic)
		}
	}) {
		return nil
	}
	e.busy = busy
	return busy
}

// fetchRoute asks a name server for a topic, puts the answer into e and reports
// whether it is another one than before.
func (c *Client) fetchRoute(topic string, e *topicRoute) (changed bool) {
	data, err := c.askRoute(topic)
	c.routes.mu.Lock()
	defer c.routes.mu.Unlock()
	e.busy, e.tried = nil, time.Now()
	e.missing = hasCode(err, remoting.CodeTopicNotExist)
	if err == nil && (e.route == nil || !reflect.DeepEqual(*data, e.route.Data)) {
		var r *Route
		if r, err = newRoute(topic, *data, e.next); err == nil {
			e.route, e.next, changed = r, r.next, true
		}
	}
	e.err = err
	// Upstream too keeps what it had when the topic has gone.
	e.stale = err != nil && !e.missing
	return changed
}

func (c *Client) askRoute(topic string) (*remoting.TopicRouteData, error) {
	req := remoting.NewRequest(remoting.ReqGetRouteInfoByTopic, &remoting.RouteInfoRequest{Topic: topic})
	resp, err := c.InvokeNameServer(context.Background(), req) // bounded by its timeouts, and by Close
	if err == nil {
		err = resp.Err()
	}
	if err != nil {
		return nil, fmt.Errorf("route of topic %s: %w", topic, err)
	}
	data := new(remoting.TopicRouteData)
	if err := remoting.DecodeBody(resp.Body, data); err != nil {
		return nil, fmt.Errorf("route of topic %s: %w", topic, err)
	}
	return data, nil
}

// routeChanged tells those who depend on the brokers and queues of a topic.
func (c *Client) routeChanged(topic string) {
	signal(c.beatNow)
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, cs := range c.mu.consumers {
		if _, ok := cs.subs[topic]; ok {
			signal(cs.rebalanceNow)
		}
	}
}

// doubtRoute has the route of a topic looked up before it is used again.
func (c *Client) doubtRoute(topic string) {
	c.routes.mu.Lock()
	defer c.routes.mu.Unlock()
	if e := c.routes.mu.topics[topic]; e != nil {
		e.stale = true
	}
}

// keepRoutes refreshes routes in use, and forgets the others.
func (c *Client) keepRoutes(ctx context.Context) {
	t := time.NewTicker(routeInterval)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		c.mu.Lock()
		producers := len(c.mu.producers) > 0
		c.mu.Unlock()
		c.each(ctx, c.routes.inUse(producers), c.refreshRoute)
	}
}

func (c *Client) refreshRoute(topic string) {
	c.routes.mu.Lock()
	e := c.routes.mu.topics[topic]
	var busy chan struct{}
	if e != nil {
		busy = c.startLookUpLocked(topic, e)
	}
	c.routes.mu.Unlock()
	if busy == nil {
		return
	}
	<-busy // bounded by the timeouts of the look-up
	c.routes.mu.Lock()
	err, missing := e.err, e.missing
	c.routes.mu.Unlock()
	if err != nil && !missing {
		c.log.Info("route not refreshed", "topic", topic, "err", err)
	}
}

// entryLocked returns the entry of a topic, and makes room for it if need be.
func (t *routeTable) entryLocked(topic string) *topicRoute {
	if e := t.mu.topics[topic]; e != nil {
		return e
	}
	if len(t.mu.topics) >= maxRoutes {
		var oldest string
		var when time.Time
		for name, e := range t.mu.topics {
			if e.busy == nil && (when.IsZero() || e.used.Before(when)) {
				oldest, when = name, e.used
			}
		}
		delete(t.mu.topics, oldest)
	}
	e := new(topicRoute)
	t.mu.topics[topic] = e
	return e
}

// likeTemplate returns the route of a topic that will be made like template.
func (t *routeTable) likeTemplate(topic string, template *Route, nums int32) (*Route, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e := t.entryLocked(topic)
	if e.like == template && e.likeNums == nums {
		return e.made, nil
	}
	r, err := template.as(topic, nums, e.next)
	if err == nil {
		e.like, e.likeNums, e.made, e.next = template, nums, r, r.next
	}
	return r, err
}

// inUse returns the topics that are used, and removes the others. Topics that
// producers send to stay as long as there are producers, or their brokers would
// forget them between two sends.
func (t *routeTable) inUse(producers bool) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	maps.DeleteFunc(t.mu.topics, func(_ string, e *topicRoute) bool {
		return e.busy == nil && now.Sub(e.used) > routeUse && !(e.sent && producers)
	})
	return slices.Sorted(maps.Keys(t.mu.topics))
}

// addrs returns the addresses of all brokers in the table: the masters, or all
// replicas.
func (t *routeTable) addrs(all bool) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	set := make(map[string]struct{})
	for _, e := range t.mu.topics {
		if e.route == nil {
			continue
		}
		for _, addrs := range e.route.brokers {
			for id, addr := range addrs {
				if addr != "" && (all || id == masterID) {
					set[addr] = struct{}{}
				}
			}
		}
	}
	return slices.Sorted(maps.Keys(set))
}
