package broker

import (
	"fmt"
	"io"
	"math"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestCounter: sums and rates of the last minute, hour and day.
func TestCounter(t *testing.T) {
	var c counter
	if got := c.rates(); got != [3]float64{} {
		t.Errorf("rates of nothing: %v", got)
	}
	c.sample(0, 0)
	for n := 1; n <= 2*dayEvery; n++ {
		c.add(20) // in two parts
		c.add(10)
		c.sample(int64(n)*10_000, n)
	}
	want := &remoting.StatsData{
		Minute: remoting.StatsItem{Sum: 6 * 30, TPS: 3, AvgPT: 15},
		Hour:   remoting.StatsItem{Sum: 360 * 30, TPS: 3, AvgPT: 15},
		Day:    remoting.StatsItem{Sum: 720 * 30, TPS: 3, AvgPT: 15},
	}
	if diff := cmp.Diff(want, c.data()); diff != "" {
		t.Error(diff)
	}
	for n := 2*dayEvery + 1; n < 2*dayEvery+4; n++ { // silence
		c.sample(int64(n)*10_000, n)
	}
	if got := c.rates(); got[0] != 0 || got[1] != 1.5 || got[2] != 0 {
		t.Errorf("rates %v", got)
	}
	if len(c.minute) != minuteSamples || len(c.hour) != hourSamples || len(c.day) > daySamples {
		t.Errorf("%d, %d, %d samples", len(c.minute), len(c.hour), len(c.day))
	}
}

// TestStatsRequests: 315 and 28, and that what is gone is forgotten.
func TestStatsRequests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 1)
		time.Sleep(samplePause + time.Millisecond)
		for range 5 {
			r.send("T", 0, "m")
		}
		id := r.send("T", 0, "m").MsgID
		r.begin("T", "half")
		r.bodies("T", 0, 0)
		r.ok(remoting.ReqConsumerSendMsgBack, sendBack(t, id, "CG"), nil)
		r.refused(remoting.CodeMessageIllegal, remoting.ReqSendMessageV2, sendHeader("T", 0, "DELAY", "x"), []byte("m"))
		time.Sleep(samplePause)
		synctest.Wait()
		for _, c := range []struct {
			name, key string
			sum       int64
		}{
			{"TOPIC_PUT_NUMS", "T", 6}, {"TOPIC_PUT_NUMS", message.HalfTopic, 1}, {"GROUP_GET_NUMS", "T@CG", 6}, {"SNDBCK_PUT_NUMS", "T@CG", 1},
			{"BROKER_PUT_NUMS", "broker-a", 8}, {"BROKER_GET_NUMS", "", 6},
		} {
			got := body(t, r.ok(remoting.ReqViewBrokerStatsData, &remoting.StatsDataRequest{StatsName: c.name, StatsKey: c.key}, nil), new(remoting.StatsData))
			if got.Minute.Sum != c.sum {
				t.Errorf("%s %s: %+v, want %d", c.name, c.key, got.Minute, c.sum)
			}
		}
		for _, name := range []string{"TOPIC_PUT_SIZE", "GROUP_GET_SIZE"} {
			key := map[string]string{"TOPIC_PUT_SIZE": "T", "GROUP_GET_SIZE": "T@CG"}[name]
			if got := body(t, r.ok(remoting.ReqViewBrokerStatsData, &remoting.StatsDataRequest{StatsName: name, StatsKey: key}, nil), new(remoting.StatsData)); got.Minute.Sum < 6*100 {
				t.Errorf("%s: %+v", name, got.Minute)
			}
		}
		for _, key := range []string{"nope", "T@nope", "", "@"} {
			r.refused(remoting.CodeSystemError, remoting.ReqViewBrokerStatsData, &remoting.StatsDataRequest{StatsName: "GROUP_GET_NUMS", StatsKey: key}, nil)
		}
		table := body(t, r.ok(remoting.ReqGetBrokerRuntimeInfo, nil, nil), new(remoting.KVTable)).Table
		for name, want := range map[string]string{
			"brokerActive": "true", "msgPutTotalTodayNow": "8", "msgGetTotalTodayNow": "6", "putMessageFailedTimes": "1",
			"putTps": `0\.8 0\.4 0\.4`, "runtime": `\[ 0 days, 0 hours, 0 minutes, 20 seconds \]`, "dispatchBehindBytes": "0",
		} {
			if ok, err := regexp.MatchString("^"+want+"$", table[name]); !ok || err != nil {
				t.Errorf("%s=%q, want %s", name, table[name], want)
			}
		}
		for name, v := range table { // mqadmin reads these as numbers
			if strings.HasSuffix(name, "Tps") {
				for f := range strings.FieldsSeq(v) {
					if _, err := strconv.ParseFloat(f, 64); err != nil {
						t.Errorf("%s=%q", name, v)
					}
				}
			}
		}
		r.ok(remoting.ReqDeleteTopicInBroker, &remoting.TopicRequest{Topic: "T"}, nil)
		time.Sleep(samplePause)
		synctest.Wait()
		if topics, groups := r.b.stats.snapshot(); topics["T"] != nil || groups[groupTopic{"CG", "T"}] != nil {
			t.Error("what is gone is still counted")
		}
		defer r.configure(map[string]string{"brokerPermission": "4"})()
		if table := body(t, r.ok(remoting.ReqGetBrokerRuntimeInfo, nil, nil), new(remoting.KVTable)).Table; table["brokerActive"] != "false" {
			t.Error("a broker that may not be written to is active")
		}
	})
}

// scrape returns the metrics by name and labels.
func scrape(t testing.TB, b *Broker) map[string]float64 {
	t.Helper()
	w := httptest.NewRecorder()
	b.Metrics().ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	text, err := io.ReadAll(w.Result().Body)
	if err != nil || w.Code != 200 {
		t.Fatalf("status %d, %v: %s", w.Code, err, text)
	}
	got := make(map[string]float64)
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatal(err)
		}
		got[strings.ReplaceAll(line[:i], `cluster="DefaultCluster",`, "")] = v
	}
	return got
}

// TestMetrics: the metrics say what has happened, and a client cannot make up
// labels.
func TestMetrics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := startRig(t)
		r.createTopic("T", 2)
		id := r.send("T", 0, "m").MsgID
		r.send("T", 0, "m")
		time.Sleep(2 * time.Second)
		r.ok(remoting.ReqSendMessageV2, sendHeader("T", 0, "__SHARDINGKEY", "s"), make([]byte, 1024))
		r.ok(remoting.ReqSendMessageV2, sendHeader("T", 0, "DELAY", "1"), []byte("m"))
		p := r.newPeer("c")
		p.heartbeat("CG", "T")
		p.heartbeat("PG")
		h := pullHeader("T", 0, 0)
		h.MaxMsgNums = 2
		r.ok(remoting.ReqPullMessage, h, nil)
		r.commit("CG", "T", 0, 1)
		r.ok(remoting.ReqConsumerSendMsgBack, sendBack(t, id, "CG", func(h *remoting.SendBackRequest) { h.DelayLevel = -1 }), nil)
		r.commitTx(r.begin("T", "tx"))
		r.rollbackTx(r.begin("T", "tx"))
		r.begin("T", "tx")
		time.Sleep(6 * time.Second)
		held := r.later(remoting.ReqPullMessage, holdHeader("T", 1, 0))
		synctest.Wait()

		// Codes of nobody, and answers of a client with codes of its own.
		r.call(123456, nil, nil)
		i := int32(0)
		p.answer = func(*remoting.Command) *remoting.Command { i++; return remoting.NewResponse(7000+i, "") }
		for range 5 {
			r.call(remoting.ReqGetConsumerRunningInfo, &remoting.RunningInfoRequest{ConsumerGroup: "CG", ClientID: "c"}, nil)
		}

		got := scrape(t, r.b)
		const node = `node_id="broker-a",node_type="broker"`
		for name, want := range map[string]float64{
			`rocketmq_messages_in_total{is_system="false",message_type="normal",` + node + `,topic="T"}`:                                     2,
			`rocketmq_messages_in_total{is_system="false",message_type="fifo",` + node + `,topic="T"}`:                                       1,
			`rocketmq_messages_in_total{is_system="false",message_type="transaction",` + node + `,topic="T"}`:                                1,
			`rocketmq_messages_in_total{is_system="true",message_type="transaction",` + node + `,topic="RMQ_SYS_TRANS_HALF_TOPIC"}`:          3,
			`rocketmq_messages_in_total{is_system="true",message_type="delay",` + node + `,topic="SCHEDULE_TOPIC_XXXX"}`:                     1,
			`rocketmq_messages_in_total{is_system="false",message_type="delay",` + node + `,topic="T"}`:                                      1,
			`rocketmq_message_size_count{is_system="false",message_type="normal",` + node + `,topic="T"}`:                                    2,
			`rocketmq_message_size_bucket{is_system="false",message_type="fifo",` + node + `,topic="T",le="1024"}`:                           0,
			`rocketmq_message_size_bucket{is_system="false",message_type="fifo",` + node + `,topic="T",le="4096"}`:                           1,
			`rocketmq_message_size_bucket{is_system="false",message_type="fifo",` + node + `,topic="T",le="+Inf"}`:                           1,
			`rocketmq_messages_out_total{consumer_group="CG",is_system="false",` + node + `,topic="T"}`:                                      2,
			`rocketmq_consumer_lag_messages{consumer_group="CG",is_retry="false",is_system="false",` + node + `,topic="T"}`:                  4,
			`rocketmq_consumer_inflight_messages{consumer_group="CG",is_retry="false",is_system="false",` + node + `,topic="T"}`:             1,
			`rocketmq_consumer_ready_messages{consumer_group="CG",is_retry="false",is_system="false",` + node + `,topic="T"}`:                3,
			`rocketmq_consumer_lag_latency_milliseconds{consumer_group="CG",is_retry="false",is_system="false",` + node + `,topic="T"}`:      8000,
			`rocketmq_consumer_queueing_latency_milliseconds{consumer_group="CG",is_retry="false",is_system="false",` + node + `,topic="T"}`: 6000,
			`rocketmq_send_to_dlq_messages_total{consumer_group="CG",is_system="false",` + node + `,topic="T"}`:                              1,
			`rocketmq_half_messages{` + node + `,topic="T"}`:                                                                                 1,
			`rocketmq_commit_messages_total{` + node + `,topic="T"}`:                                                                         1,
			`rocketmq_rollback_messages_total{` + node + `,topic="T"}`:                                                                       1,
			`rocketmq_finish_message_latency_milliseconds_count{` + node + `,topic="T"}`:                                                     1,
			`rocketmq_finish_message_latency_milliseconds_bucket{` + node + `,topic="T",le="5"}`:                                             1,
			`rocketmq_broker_permission{` + node + `}`:                                                                                       6,
			`rocketmq_processor_watermark{` + node + `,processor="send"}`:                                                                    0,
			`rocketmq_processor_watermark{` + node + `,processor="held"}`:                                                                    1,
			`rocketmq_producer_connections{language="go",` + node + `,protocol_type="remoting",version="v5_3_3"}`:                            1,
			`gantry_store_read_only`: 0,
			`gantry_connections`:     2,
		} {
			if v, ok := got[name]; !ok || v != want {
				t.Errorf("%s is %v (there: %v), want %v", name, v, ok, want)
			}
		}
		calls := 0
		for name, v := range got {
			if strings.HasPrefix(name, "rocketmq_rpc_latency_milliseconds_count") && strings.Contains(name, "get_consumer_running_info") {
				calls += int(v)
				if strings.Contains(name, "700") {
					t.Errorf("the label is the client's: %s", name)
				}
			}
			if strings.Contains(name, "123456") {
				t.Errorf("the label is the client's: %s", name)
			}
		}
		if calls != 5 {
			t.Errorf("%d calls counted, want 5", calls)
		}
		r.b.metrics.mu.RLock()
		n := len(r.b.metrics.latencies)
		r.b.metrics.mu.RUnlock()
		if n > 30 {
			t.Errorf("%d kinds of calls", n)
		}
		r.send("T", 1, "m")
		await(t, held)
		synctest.Wait()
		const pulls = `rocketmq_rpc_latency_milliseconds_count{is_long_polling="%v",` + node + `,protocol_type="remoting",request_code="pull_message",response_code="success",result="success"}`
		got = scrape(t, r.b)
		for _, held := range []bool{false, true} {
			if n := got[fmt.Sprintf(pulls, held)]; n != 1 {
				t.Errorf("%v pulls, held %v", n, held)
			}
		}
	})
}

// TestVersionLabel: the names are upstream's.
func TestVersionLabel(t *testing.T) {
	for v, want := range map[int32]string{
		-1: "v3_0", 0: "v3_0", 45: "v3_0", 46: "v3_1_0_snapshot", 47: "v3_1_0", 62: "v3_1_8_snapshot", 85: "v3_2_9", 86: "v3_3_1_snapshot", 103: "v3_3_9",
		121: "v3_4_9", 211: "v3_9_9", 232: "v4_1_0_snapshot", 317: "v4_5_2", 333: "v4_6_0", 401: "v4_9_4", 409: "v4_9_8", 493: "v5_4_0", 611: "v5_9_9",
		612: "higher_version", math.MaxInt32: "higher_version", math.MinInt32: "v3_0",
	} {
		if got := versionLabel(v); got != want {
			t.Errorf("%d: %s, want %s", v, got, want)
		}
	}
}

// TestHealthy: nil, then why not.
func TestHealthy(t *testing.T) {
	r := startRig(t)
	if err := r.b.Healthy(); err != nil {
		t.Error(err)
	}
	stopBroker(t, r.b)
	if err := r.b.Healthy(); err == nil {
		t.Error("a closed broker is healthy")
	}
	scrape(t, r.b) // and can still be asked
}
