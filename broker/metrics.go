package broker

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gantrymq/gantry/internal/metadata"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// metrics are what Prometheus gets: names and labels are those that a broker of
// RocketMQ 5.4 shows (upstream: BrokerMetricsConstant, to whose names its
// exporter adds the unit), so that its dashboards work. What can be read off when
// it is asked for is; only latencies are kept here.
type metrics struct {
	b *Broker

	mu        sync.RWMutex
	latencies map[call]*histogram
	// waited are the pulls that were held and are being answered.
	waited sync.Map // *remoting.Command -> nothing
}

// call is a kind of request with one kind of outcome.
type call struct {
	request, response int32
	oneway, held      bool
}

// Upper bounds of latencies, in ms, as upstream's.
var latencyBounds = []float64{1, 3, 5, 7, 10, 100, 1000, 2000, 3000}

type histogram struct {
	mu     sync.Mutex
	count  uint64
	sum    float64 // ms
	bucket []uint64
}

func newMetrics(b *Broker) *metrics { return &metrics{b: b, latencies: make(map[call]*histogram)} }

// observe is told of each request.
func (m *metrics) observe(_ *remoting.Conn, req *remoting.Command, code int32, took time.Duration) {
	k := call{request: req.Code, response: code, oneway: req.IsOneway()}
	if isPullCode(req.Code) {
		_, k.held = m.waited.Load(req)
	}
	m.mu.RLock()
	h := m.latencies[k]
	m.mu.RUnlock()
	if h == nil {
		if h = m.first(k); h == nil {
			return
		}
	}
	ms := float64(took) / float64(time.Millisecond)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.count++
	h.sum += ms
	for i, bound := range latencyBounds {
		if ms <= bound {
			h.bucket[i]++
		}
	}
}

// first returns what counts calls of kind k, of which there may have been none; nil
// for a request that nobody knows, since its label would be the client's to choose.
func (m *metrics) first(k call) *histogram {
	if !knownRequests[k.request] {
		return nil
	}
	if !knownResponses[k.response] {
		k.response = -1 // a client's whose answer was passed on
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	h := m.latencies[k]
	if h == nil {
		h = &histogram{bucket: make([]uint64, len(latencyBounds))}
		m.latencies[k] = h
	}
	return h
}

// processors are upstream's thread pools, whose queues it shows: there are none
// here, so nothing waits in them.
var processors = []string{
	"send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat", "lite_pull", "transaction", "consumer_manager", "admin", "reply",
}

func isPullCode(code int32) bool {
	return code == remoting.ReqPullMessage || code == remoting.ReqLitePullMessage
}

var knownRequests = func() map[int32]bool {
	known := make(map[int32]bool)
	for _, c := range remoting.RequestCodes() {
		known[c.Code] = true
	}
	return known
}()

var knownResponses = func() map[int32]bool {
	known := make(map[int32]bool)
	for _, c := range remoting.ResponseCodes() {
		known[c.Code] = true
	}
	return known
}()

// Labels of every metric, then those of some.
var (
	nodeLabels  = []string{"cluster", "node_type", "node_id"}
	topicLabels = []string{"topic", "message_type", "is_system"}
	groupLabels = []string{"topic", "consumer_group", "is_system"}
	lagLabels   = []string{"topic", "consumer_group", "is_retry", "is_system"}
	diskLabels  = []string{"storage_type", "storage_medium"}
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("rocketmq_"+name, help, append(append([]string(nil), nodeLabels...), labels...), nil)
}

var (
	descPermission     = desc("broker_permission", "Permission of the broker: 4 read, 2 write.")
	descMessagesIn     = desc("messages_in_total", "Messages stored.", topicLabels...)
	descMessagesOut    = desc("messages_out_total", "Messages given to consumers.", groupLabels...)
	descThroughputIn   = desc("throughput_in_total", "Bytes of the records stored.", topicLabels...)
	descThroughputOut  = desc("throughput_out_total", "Bytes of the records given to consumers.", groupLabels...)
	descMessageSize    = desc("message_size", "Bytes of the records stored, one by one.", topicLabels...)
	descDLQ            = desc("send_to_dlq_messages_total", "Messages that a group gave up.", groupLabels...)
	descLatency        = desc("rpc_latency_milliseconds", "Time from the request to its answer.", "protocol_type", "request_code", "response_code", "is_long_polling", "result")
	descProducers      = desc("producer_connections", "Producers by language and version.", "language", "version", "protocol_type")
	descConsumers      = desc("consumer_connections", "Consumers by group, language and version.", "consumer_group", "language", "version", "consume_mode", "protocol_type", "is_system")
	descLag            = desc("consumer_lag_messages", "Messages that a group has not consumed.", lagLabels...)
	descLagLatency     = desc("consumer_lag_latency_milliseconds", "Age of the oldest message that a group has not consumed.", lagLabels...)
	descInflight       = desc("consumer_inflight_messages", "Messages that a group was given and has not consumed.", lagLabels...)
	descQueueing       = desc("consumer_queueing_latency_milliseconds", "Age of the oldest message that a group was not given.", lagLabels...)
	descReady          = desc("consumer_ready_messages", "Messages that a group was not given.", lagLabels...)
	descTopics         = desc("topic_number", "Topics.")
	descGroups         = desc("consumer_group_number", "Consumer groups.")
	descHalf           = desc("half_messages", "Half messages whose outcome is open.", "topic")
	descCommitted      = desc("commit_messages_total", "Transactions committed.", "topic")
	descRolledBack     = desc("rollback_messages_total", "Transactions rolled back.", "topic")
	descFinish         = desc("finish_message_latency_milliseconds", "Seconds from the birth of a transaction to its commit. The name is upstream's, and so is the unit.", "topic")
	descStorage        = desc("storage_size_bytes", "In use on the file system of the store.", diskLabels...)
	descFlushBehind    = desc("storage_flush_behind_bytes", "Bytes of the log not on stable storage.", diskLabels...)
	descDispatchBehind = desc("storage_dispatch_behind_bytes", "Bytes of the log that cannot be read by queue yet.", diskLabels...)
	descReserve        = desc("storage_message_reserve_time_milliseconds", "Age of the oldest message.", diskLabels...)

	descWatermark    = desc("processor_watermark", "Requests that wait for a thread, none; those that are worked on (all) or held.", "processor")
	descDamaged      = prometheus.NewDesc("gantry_store_damaged_reads_total", "Reads that met bytes which violate the format.", nil, nil)
	descWriteErrors  = prometheus.NewDesc("gantry_store_write_errors_total", "Failed writes of queues, index, checkpoint or delay offsets.", nil, nil)
	descScrubPasses  = prometheus.NewDesc("gantry_store_scrub_passes_total", "Passes of the background check that came to their end.", nil, nil)
	descScrubBytes   = prometheus.NewDesc("gantry_store_scrub_bytes", "Bytes verified in this pass, or in the last one.", nil, nil)
	descScrubDamage  = prometheus.NewDesc("gantry_store_scrub_findings", "Damage found in this pass, or in the last one.", nil, nil)
	descReadOnly     = prometheus.NewDesc("gantry_store_read_only", "1 when a failed sync made the store read-only for good.", nil, nil)
	descDiskFull     = prometheus.NewDesc("gantry_store_disk_full", "1 while messages are refused because the disk is full.", nil, nil)
	descConnections  = prometheus.NewDesc("gantry_connections", "Open connections.", nil, nil)
	descRefusedConns = prometheus.NewDesc("gantry_connections_refused_total", "Connections beyond the bound.", nil, nil)
	descLostHalves   = prometheus.NewDesc("gantry_transactions_lost_total", "Half messages removed or damaged before their outcome was known.", nil, nil)
)

// Metrics serves the broker's metrics in the text format of Prometheus.
func (b *Broker) Metrics() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(b.metrics)
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Collector gives the same to a registry that has more.
func (b *Broker) Collector() prometheus.Collector { return b.metrics }

// Healthy returns why the broker cannot take messages, or nil.
func (b *Broker) Healthy() error {
	return b.store.Writable()
}

// Describe implements prometheus.Collector. The metrics are made when they are
// asked for, so there is nothing to tell ahead.
func (m *metrics) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (m *metrics) Collect(out chan<- prometheus.Metric) {
	cfg := m.b.config()
	c := collector{m.b, out, []string{cfg.ClusterName, "broker", cfg.BrokerName}}
	c.traffic()
	c.connections()
	c.lag()
	c.storage()
	m.rpc(c)
	c.gauge(descPermission, float64(cfg.BrokerPermission))
	c.gauge(descTopics, float64(m.b.topics.Len()))
	c.gauge(descGroups, float64(m.b.groups.Len()))
	for topic, n := range m.b.transactions.openByTopic() {
		c.gauge(descHalf, float64(n), topic)
	}
	c.plain(descLostHalves, prometheus.CounterValue, float64(m.b.transactions.snapshot().Lost))
}

// collector sends metrics of one broker.
type collector struct {
	b    *Broker
	out  chan<- prometheus.Metric
	node []string
}

func (c collector) send(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels []string) {
	c.out <- prometheus.MustNewConstMetric(d, kind, v, append(append([]string(nil), c.node...), labels...)...)
}

func (c collector) gauge(d *prometheus.Desc, v float64, labels ...string) {
	c.send(d, prometheus.GaugeValue, v, labels)
}

func (c collector) counter(d *prometheus.Desc, v float64, labels ...string) {
	c.send(d, prometheus.CounterValue, v, labels)
}

// plain is for metrics of our own, which have no labels.
func (c collector) plain(d *prometheus.Desc, kind prometheus.ValueType, v float64) {
	c.out <- prometheus.MustNewConstMetric(d, kind, v)
}

func yes(b bool) string { return strconv.FormatBool(b) }

func (c collector) traffic() {
	topics, groups := c.b.stats.snapshot()
	for name, t := range topics {
		for k := range kinds {
			in := &t.in[k]
			if in.count.Load() == 0 {
				continue
			}
			labels := []string{name, k.String(), yes(c.b.topics.IsSystem(name))}
			c.counter(descMessagesIn, float64(in.count.Load()), labels...)
			c.counter(descThroughputIn, float64(in.bytes.Load()), labels...)
			c.histogram(descMessageSize, &in.sizes, sizeBounds, labels...)
		}
		if n := t.committed.Load(); n > 0 {
			c.counter(descCommitted, float64(n), name)
			c.histogram(descFinish, &t.finish, finishBounds, name)
		}
		if n := t.rolledBack.Load(); n > 0 {
			c.counter(descRolledBack, float64(n), name)
		}
	}
	for k, g := range groups {
		labels := []string{k.topic, k.group, yes(c.b.topics.IsSystem(k.topic) || metadata.IsSystemGroup(k.group))}
		if g.gets.sum.Load() > 0 {
			c.counter(descMessagesOut, float64(g.gets.sum.Load()), labels...)
			c.counter(descThroughputOut, float64(g.bytes.sum.Load()), labels...)
		}
		if n := g.dead.Load(); n > 0 {
			c.counter(descDLQ, float64(n), labels...)
		}
	}
}

func (c collector) histogram(d *prometheus.Desc, h *tally, bounds []float64, labels ...string) {
	labels = append(append([]string(nil), c.node...), labels...)
	c.out <- prometheus.MustNewConstHistogram(d, uint64(h.count.Load()), float64(h.sum.Load()), h.buckets(bounds), labels...)
}

// connections counts clients by language and version.
func (c collector) connections() {
	type producers struct{ language, version string }
	type consumers struct{ group, language, version, mode string }
	made, used := make(map[producers]int), make(map[consumers]int)
	for _, group := range c.b.clients.Producers.Groups() {
		for _, m := range c.b.clients.Producers.Of(group) {
			made[producers{strings.ToLower(m.Language.String()), versionLabel(m.Version)}]++
		}
	}
	for _, group := range c.b.clients.Members.Groups() {
		g, _ := c.b.clients.Members.Group(group)
		for _, m := range c.b.clients.Members.Of(group) {
			used[consumers{group, strings.ToLower(m.Language.String()), versionLabel(m.Version), consumeMode(g.Type)}]++
		}
	}
	for k, n := range made {
		c.gauge(descProducers, float64(n), k.language, k.version, "remoting")
	}
	for k, n := range used {
		c.gauge(descConsumers, float64(n), k.group, k.language, k.version, k.mode, "remoting", yes(metadata.IsSystemGroup(k.group)))
	}
}

// versionLabel names the version that a client sends as a number (upstream:
// MQVersion). The number is the client's to choose, the names are not.
func versionLabel(v int32) string {
	const v310, v331, v400, above = 46, 86, 212, 612 // the snapshots before those releases
	name := ""
	switch n := (v &^ 1); {
	case v >= above:
		return "higher_version"
	case n >= v400:
		n = (n - v400) / 2
		name = fmt.Sprintf("v%d_%d_%d", 4+n/100, n/10%10, n%10)
	case n >= v331: // their last digit begins at 1
		n = (n - v331) / 2
		name = fmt.Sprintf("v3_%d_%d", 3+n/9, 1+n%9)
	case n >= v310:
		n = (n - v310) / 2
		name = fmt.Sprintf("v3_%d_%d", 1+n/10, n%10)
	default:
		return "v3_0"
	}
	if v%2 == 0 {
		name += "_snapshot"
	}
	return name
}

func consumeMode(t remoting.ConsumeType) string {
	if t == remoting.ConsumePassively {
		return "push"
	}
	return "pull"
}

// lag tells how far groups are behind, topic by topic.
func (c collector) lag() {
	now := c.b.now()
	for _, group := range c.b.groups.Names() {
		for _, name := range c.b.offsets.Topics(group) {
			if _, ok := c.b.topics.Get(name); !ok || c.b.topics.IsSystem(name) {
				continue
			}
			var behind, given, age, waiting int64
			for id, at := range c.b.offsets.Queues(group, name) {
				first, end := c.b.queueRange(name, id)
				at = max(at, int64(first))
				if at >= int64(end) {
					continue
				}
				next := min(max(at, c.b.stats.pulledUpTo(group, name, id)), int64(end))
				behind += int64(end) - at
				given += next - at
				age = max(age, c.age(name, id, at, now))
				if next < int64(end) {
					waiting = max(waiting, c.age(name, id, next, now))
				}
			}
			labels := []string{name, group, yes(isRetryTopic(name)), yes(metadata.IsSystemGroup(group))}
			c.gauge(descLag, float64(behind), labels...)
			c.gauge(descInflight, float64(given), labels...)
			c.gauge(descReady, float64(behind-given), labels...)
			c.gauge(descLagLatency, float64(age), labels...)
			c.gauge(descQueueing, float64(waiting), labels...)
		}
	}
}

// age is how long ago a message was stored, in ms, or 0 when that is not known.
func (c collector) age(topic string, id int32, off, now int64) int64 {
	stored, err := c.b.store.StoreTimeAt(topic, id, message.QueueOffset(off))
	if err != nil {
		return 0
	}
	return max(now-stored, 0)
}

func (c collector) storage() {
	st := c.b.store.Stats()
	where := []string{"local", "disk"}
	used, _, _ := c.b.diskUse()
	c.gauge(descStorage, float64(used), where...)
	c.gauge(descFlushBehind, float64(st.EndOffset-st.FlushedOffset), where...)
	c.gauge(descDispatchBehind, float64(st.EndOffset-st.DispatchedTo), where...)
	if t, err := c.b.store.EarliestTime(); err == nil {
		c.gauge(descReserve, float64(c.b.now()-t), where...)
	}
	c.plain(descDamaged, prometheus.CounterValue, float64(st.DamagedReads))
	c.plain(descWriteErrors, prometheus.CounterValue, float64(st.WriteErrors))
	c.plain(descScrubPasses, prometheus.CounterValue, float64(st.Scrub.Passes))
	c.plain(descScrubBytes, prometheus.GaugeValue, float64(st.Scrub.Bytes))
	c.plain(descScrubDamage, prometheus.GaugeValue, float64(st.Scrub.Findings))
	c.plain(descReadOnly, prometheus.GaugeValue, oneIf(st.Failure != nil))
	c.plain(descDiskFull, prometheus.GaugeValue, oneIf(st.DiskFull))
	s := c.b.server.Stats()
	c.plain(descConnections, prometheus.GaugeValue, float64(s.Conns))
	c.plain(descRefusedConns, prometheus.CounterValue, float64(s.Refused))
	for _, name := range processors {
		c.gauge(descWatermark, 0, name)
	}
	c.gauge(descWatermark, float64(s.InFlight), "all")
	c.gauge(descWatermark, float64(s.Held), "held")
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// rpc sends the latencies.
func (m *metrics) rpc(c collector) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	for k, h := range m.latencies {
		h.mu.Lock()
		buckets := make(map[float64]uint64, len(latencyBounds))
		for i, bound := range latencyBounds {
			buckets[bound] = h.bucket[i]
		}
		result := "success"
		if k.oneway {
			result = "oneway"
		}
		labels := append(append([]string(nil), c.node...), "remoting",
			strings.ToLower(remoting.RequestName(k.request)), strings.ToLower(remoting.ResponseName(k.response)), yes(k.held), result)
		c.out <- prometheus.MustNewConstHistogram(descLatency, h.count, h.sum, buckets, labels...)
		h.mu.Unlock()
	}
}
