package client

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/gantrymq/gantry/remoting"
)

const (
	// defaultTopic is the template of topics that are made by the first send.
	defaultTopic = "TBW102"
	// maxTopicQueues bounds the queues of a topic that a route may name.
	maxTopicQueues = 1 << 16
	masterID       = 0
)

// A Route says which brokers have a topic (upstream: TopicRouteData). It does
// not change; nobody may change what it refers to.
type Route struct {
	Topic string
	Data  remoting.TopicRouteData

	brokers map[string]map[int64]string // addresses by name and id
	write   []remoting.MessageQueue
	read    []remoting.MessageQueue
	next    *atomic.Uint32 // counts sends; shared by the routes of a topic
}

// newRoute looks through what a name server said of a topic. next is that of
// the route before, or nil.
func newRoute(topic string, data remoting.TopicRouteData, next *atomic.Uint32) (*Route, error) {
	r := &Route{Topic: topic, Data: data, brokers: make(map[string]map[int64]string), next: next}
	if next == nil {
		r.next = new(atomic.Uint32)
		r.next.Store(rand.Uint32()) // not all clients begin with the same queue
	}
	for _, b := range data.BrokerDatas {
		r.brokers[b.BrokerName] = b.BrokerAddrs
	}
	queues := slices.Clone(data.QueueDatas)
	slices.SortStableFunc(queues, func(a, b remoting.QueueData) int { return compareJava(a.BrokerName, b.BrokerName) })
	var err error
	for _, q := range queues {
		if q.Perm&remoting.PermRead != 0 {
			if r.read, err = r.appendQueues(r.read, q.BrokerName, q.ReadQueueNums); err != nil {
				return nil, err
			}
		}
		// As upstream: without a master there is nobody to send to.
		if q.Perm&remoting.PermWrite != 0 && r.brokers[q.BrokerName][masterID] != "" && data.OrderTopicConf == "" {
			if r.write, err = r.appendQueues(r.write, q.BrokerName, q.WriteQueueNums); err != nil {
				return nil, err
			}
		}
	}
	if data.OrderTopicConf != "" {
		err = r.orderQueues(data.OrderTopicConf)
	}
	return r, err
}

func (r *Route) appendQueues(dst []remoting.MessageQueue, broker string, n int32) ([]remoting.MessageQueue, error) {
	if int(max(n, 0)) > maxTopicQueues-len(dst) {
		return nil, fmt.Errorf("route of topic %s: more than %d queues", r.Topic, maxTopicQueues)
	}
	for id := range n {
		dst = append(dst, remoting.MessageQueue{Topic: r.Topic, BrokerName: broker, QueueID: id})
	}
	return dst, nil
}

// orderQueues takes the queues to write to from "broker-a:4;broker-b:4".
func (r *Route) orderQueues(conf string) error {
	for part := range strings.SplitSeq(conf, ";") {
		broker, nums, ok := strings.Cut(part, ":")
		n, err := strconv.ParseInt(nums, 10, 32)
		if !ok || err != nil {
			return fmt.Errorf("route of topic %s: bad orderTopicConf %q", r.Topic, part)
		}
		if r.write, err = r.appendQueues(r.write, broker, int32(n)); err != nil {
			return err
		}
	}
	return nil
}

// as returns r as the route of a topic that does not exist yet and will be made
// like r's, with at most nums queues on each broker.
func (r *Route) as(topic string, nums int32, next *atomic.Uint32) (*Route, error) {
	data := r.Data
	data.OrderTopicConf = ""
	data.QueueDatas = slices.Clone(data.QueueDatas)
	for i := range data.QueueDatas {
		q := &data.QueueDatas[i]
		n := min(nums, q.ReadQueueNums)
		q.ReadQueueNums, q.WriteQueueNums = n, n
	}
	return newRoute(topic, data, next)
}

// WriteQueues returns the queues that may be written, ordered by broker name
// and id.
func (r *Route) WriteQueues() []remoting.MessageQueue { return slices.Clone(r.write) }

// ReadQueues returns the queues that may be read, ordered by broker name and id.
func (r *Route) ReadQueues() []remoting.MessageQueue { return slices.Clone(r.read) }

// Brokers returns the names of the brokers, in order.
func (r *Route) Brokers() []string {
	names := make([]string, 0, len(r.brokers))
	for name := range r.brokers {
		names = append(names, name)
	}
	slices.SortFunc(names, compareJava)
	return names
}

// Master returns the address of a broker's master.
func (r *Route) Master(broker string) (addr string, err error) {
	if addr := r.brokers[broker][masterID]; addr != "" {
		return addr, nil
	}
	return "", fmt.Errorf("master of broker %s of topic %s: %w", broker, r.Topic, ErrNoBroker)
}

// replica returns the address of the replica with that id; if there is none,
// the master's or that of the lowest id.
func (r *Route) replica(broker string, id int64) (addr string, err error) {
	addrs := r.brokers[broker]
	lowest := int64(-1)
	for i := range addrs {
		if lowest < 0 || i < lowest {
			lowest = i
		}
	}
	if addr := cmp.Or(addrs[id], addrs[masterID], addrs[lowest]); addr != "" {
		return addr, nil
	}
	return "", fmt.Errorf("broker %s of topic %s: %w", broker, r.Topic, ErrNoBroker)
}

// masterOf returns the address of the master that has a queue.
func (c *Client) masterOf(ctx context.Context, q remoting.MessageQueue) (string, error) {
	r, err := c.Route(ctx, q.Topic)
	if err != nil {
		return "", err
	}
	return r.Master(q.BrokerName)
}
