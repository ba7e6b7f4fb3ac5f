package namesrv

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/gantrymq/gantry/remoting"
)

// A route is an encoded answer to 105 and what it was made for, besides the
// topic.
type route struct {
	acting    bool
	orderConf string
	body      []byte
}

// size is what a cached route takes, in bytes.
func (r *route) size() int64 { return int64(len(r.body) + len(r.orderConf) + 128) }

// syncTopicPrefix begins the topic by which the members of a broker learn of each
// other. Its route shows them as they are.
const syncTopicPrefix = "rmq_sys_SYNC_BROKER_MEMBER_"

// route returns the encoded route of a topic, nil if nobody has it. Nobody may
// change it. acting shows acting masters; orderConf, unless empty, is put in.
func (t *routeTable) route(name string, acting bool, orderConf string) []byte {
	t.mu.RLock()
	defer t.mu.RUnlock()
	tp := t.mu.topics[name]
	if tp == nil {
		return nil
	}
	old := tp.route.Load()
	if old != nil && old.acting == acting && old.orderConf == orderConf {
		return old.body
	}
	data := t.routeDataRLocked(tp, acting && !strings.HasPrefix(name, syncTopicPrefix))
	data.OrderTopicConf = orderConf
	r := &route{acting, orderConf, remoting.EncodeBody(data)}
	// Others may do the same at this moment, but nobody changes the table.
	more := r.size()
	if old != nil {
		more -= old.size()
	}
	if t.cachedBytes.Add(more) > t.bounds.cachedBytes || !tp.route.CompareAndSwap(old, r) {
		t.cachedBytes.Add(-more)
	}
	return r.body
}

func (t *routeTable) routeDataRLocked(tp *topic, acting bool) *remoting.TopicRouteData {
	data := &remoting.TopicRouteData{
		QueueDatas:        make([]remoting.QueueData, len(tp.queues)),
		BrokerDatas:       make([]remoting.BrokerData, len(tp.queues)),
		FilterServerTable: map[string][]string{},
	}
	var mappings map[string]json.RawMessage
	for i := range tp.queues {
		q := &tp.queues[i]
		b := t.mu.brokers[q.BrokerName]
		data.QueueDatas[i] = q.QueueData
		data.BrokerDatas[i] = b.data()
		if acting && b.acting && b.master() == nil && q.Perm&remoting.PermWrite == 0 {
			addrs := data.BrokerDatas[i].BrokerAddrs
			delete(addrs, b.members[0].id)
			addrs[masterID] = b.members[0].addr
		}
		for _, m := range b.members {
			if len(m.filterServers) > 0 {
				data.FilterServerTable[m.addr] = slices.Clone(m.filterServers)
			}
		}
		if q.mapping != nil {
			if mappings == nil {
				mappings = make(map[string]json.RawMessage)
			}
			mappings[q.BrokerName] = q.mapping
		}
	}
	if mappings != nil {
		// Each was read as JSON before.
		data.TopicQueueMappingByBroker, _ = json.Marshal(mappings)
	}
	return data
}

// data returns b as clients see it.
func (b *broker) data() remoting.BrokerData {
	addrs := make(map[int64]string, len(b.members))
	for _, m := range b.members {
		addrs[m.id] = m.addr
	}
	return remoting.BrokerData{Cluster: b.cluster, BrokerName: b.name, BrokerAddrs: addrs, ZoneName: b.zone, EnableActingMaster: b.acting}
}

// clusterInfo returns all clusters and brokers.
func (t *routeTable) clusterInfo() *remoting.ClusterInfo {
	t.mu.RLock()
	defer t.mu.RUnlock()
	info := &remoting.ClusterInfo{
		BrokerAddrTable:  make(map[string]remoting.BrokerData, len(t.mu.brokers)),
		ClusterAddrTable: make(map[string][]string, len(t.mu.clusters)),
	}
	for name, b := range t.mu.brokers {
		info.BrokerAddrTable[name] = b.data()
		info.ClusterAddrTable[b.cluster] = append(info.ClusterAddrTable[b.cluster], name)
	}
	for _, names := range info.ClusterAddrTable {
		slices.Sort(names)
	}
	return info
}
