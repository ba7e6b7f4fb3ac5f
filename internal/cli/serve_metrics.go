package cli

import (
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gantrymq/gantry/namesrv"
	"github.com/gantrymq/gantry/remoting"
)

// The name server's metrics; upstream's has none.
var (
	descNamesBrokers  = prometheus.NewDesc("gantry_namesrv_brokers", "Registered brokers, masters and slaves.", nil, nil)
	descNamesTopics   = prometheus.NewDesc("gantry_namesrv_topics", "Topics that have a route.", nil, nil)
	descNamesKeys     = prometheus.NewDesc("gantry_namesrv_kv_keys", "Keys of the KV configuration.", nil, nil)
	descNamesExpired  = prometheus.NewDesc("gantry_namesrv_brokers_expired_total", "Brokers that were silent for too long.", nil, nil)
	descNamesConns    = prometheus.NewDesc("gantry_namesrv_connections", "Open connections.", nil, nil)
	descNamesRequests = prometheus.NewDesc("gantry_namesrv_requests_total", "Requests handled.", []string{"request_code"}, nil)
)

// metrics serves the metrics of what runs when it is asked, and of the process.
func (s *servers) metrics() http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), serverCollector{s})
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

type serverCollector struct{ s *servers }

// Describe implements prometheus.Collector. What there is depends on what runs.
func (serverCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements prometheus.Collector.
func (c serverCollector) Collect(out chan<- prometheus.Metric) {
	if b := c.s.broker.Load(); b != nil {
		b.Collector().Collect(out)
	}
	if n := c.s.names.Load(); n != nil {
		collectNames(n.Stats(), out)
	}
}

func collectNames(st namesrv.Stats, out chan<- prometheus.Metric) {
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	send(descNamesBrokers, prometheus.GaugeValue, float64(st.Members))
	send(descNamesTopics, prometheus.GaugeValue, float64(st.Topics))
	send(descNamesKeys, prometheus.GaugeValue, float64(st.KVKeys))
	send(descNamesExpired, prometheus.CounterValue, float64(st.Expired))
	send(descNamesConns, prometheus.GaugeValue, float64(st.Remoting.Conns))
	for code, n := range st.Requests {
		send(descNamesRequests, prometheus.CounterValue, float64(n), strings.ToLower(remoting.RequestName(code)))
	}
	send(descNamesRequests, prometheus.CounterValue, float64(st.OtherRequests), "other")
}
