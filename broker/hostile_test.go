package broker

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"math"
	"net"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// startTCP starts a broker that listens on loopback.
func startTCP(t testing.TB, change func(*Options)) *Broker {
	t.Helper()
	opts := Options{Dir: "/store", Config: NewConfig(), FS: memfs.New(), Store: smallStore()}
	opts.Config.ListenPort = 0
	change(&opts)
	b, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopBroker(t, b) })
	return b
}

func dialTCP(t testing.TB, b *Broker) net.Conn {
	t.Helper()
	nc, err := net.Dial("tcp", b.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { nc.Close() }) //nolint:errcheck // the end
	return nc
}

func frameOf(t testing.TB, code, opaque int32, h remoting.Header, body []byte) []byte {
	t.Helper()
	req := remoting.NewRequest(code, h)
	req.Opaque, req.Body = opaque, body
	frame, err := remoting.AppendFrame(nil, req)
	if err != nil {
		t.Fatal(err)
	}
	return frame
}

// TestTooManyConnections: those beyond the bound are closed, the others work.
func TestTooManyConnections(t *testing.T) {
	const most = 10
	b := startTCP(t, func(o *Options) { o.Limits.MaxConns = most })
	ping := frameOf(t, remoting.ReqGetMaxOffset, 1, &remoting.MaxOffsetRequest{Topic: "T", Committed: true}, nil)
	works := func(nc net.Conn) bool {
		nc.SetDeadline(time.Now().Add(limit)) //nolint:errcheck // the read tells
		if _, err := nc.Write(ping); err != nil {
			return false
		}
		_, err := readFrame(nc)
		return err == nil
	}
	var good []net.Conn
	for range most {
		good = append(good, dialTCP(t, b))
	}
	waitFor(t, func() bool { return b.server.Stats().Conns == most })
	before := heapInUse()
	for range 30 * most {
		nc, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if works(nc) {
			t.Error("a connection beyond the bound is served")
		}
		nc.Close() //nolint:errcheck // refused
	}
	if grown := heapInUse() - before; grown > 30*most*1024 {
		t.Errorf("%d refused connections leave %d KiB", 30*most, grown>>10)
	}
	for i, nc := range good {
		if !works(nc) {
			t.Errorf("connection %d does not work any more", i)
		}
	}
	good[0].Close() //nolint:errcheck // makes room
	waitFor(t, func() bool { return b.server.Stats().Conns < most })
	if !works(dialTCP(t, b)) {
		t.Error("there is room, but a new connection is not served")
	}
	if n := b.server.Stats().Refused; n < 30*most {
		t.Errorf("%d were refused", n)
	}
}

// heapInUse is what is reachable, in bytes.
func heapInUse() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestNeverReads: clients that ask for much and read nothing take a bounded
// amount of memory, and others are served.
func TestNeverReads(t *testing.T) {
	const queued = 8 << 20
	b := startTCP(t, func(o *Options) {
		o.Limits.MaxQueued, o.Limits.MaxQueuedTotal, o.Limits.WriteTimeout = queued, 4*queued, time.Second
		o.Store.CommitLogFileSize = 64 << 20
	})
	client := remoting.NewClient(remoting.ClientOptions{Timeout: limit})
	defer client.Close() //nolint:errcheck // never fails
	call := func(req *remoting.Command) *remoting.Command {
		t.Helper()
		resp, err := client.Invoke(t.Context(), b.Addr(), req)
		if err != nil {
			t.Fatal(err)
		}
		return resp
	}
	for range 16 {
		req := remoting.NewRequest(remoting.ReqSendMessageV2, sendHeader("T", 0, "KEYS", "k"))
		req.Body = make([]byte, 1<<20)
		if resp := call(req); resp.Code != 0 {
			t.Fatal(resp)
		}
	}
	if err := b.store.WaitDispatched(t.Context()); err != nil {
		t.Fatal(err)
	}
	pull := frameOf(t, remoting.ReqPullMessage, 1, pullHeader("T", 0, 0), nil)
	query := frameOf(t, remoting.ReqQueryMessage, 2, &remoting.QueryMessageRequest{Topic: "T", Key: "k", MaxNum: 1024, EndTimestamp: math.MaxInt64}, nil)

	var heap runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&heap)
	before, most := heap.HeapAlloc, uint64(0)
	var wg sync.WaitGroup
	for range 20 {
		nc := dialTCP(t, b)
		wg.Go(func() {
			for range 200 { // until it is closed, or not read any more
				nc.SetWriteDeadline(time.Now().Add(2 * time.Second)) //nolint:errcheck // the write tells
				if _, err := nc.Write(append(slices.Clone(pull), query...)); err != nil {
					return
				}
			}
		})
	}
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			runtime.ReadMemStats(&heap)
			most = max(most, heap.HeapAlloc)
			start := time.Now()
			if resp := call(remoting.NewRequest(remoting.ReqGetMaxOffset, &remoting.MaxOffsetRequest{Topic: "T"})); resp.Code != 0 {
				t.Errorf("a good client gets %v", resp)
			}
			if took := time.Since(start); took > 5*time.Second {
				t.Errorf("a good client waits %v", took)
			}
		}
	}()
	wg.Wait()
	close(stop)
	<-done
	// Queued answers, one beyond the bound for each connection at most; answers
	// that are being made; garbage that the collector lets be.
	bound := uint64(2 * (4*queued + 20*(12<<20) + maxPulls*(2<<20) + maxQueries*(24<<20)))
	grown := max(most, before) - before
	if grown > bound {
		t.Errorf("the heap grew by %d MiB, at most %d MiB", grown>>20, bound>>20)
	}
	t.Logf("the heap grew by %d MiB", grown>>20)
	waitFor(t, func() bool { return b.server.Stats().Conns == 1 }) // the silent ones are closed
}

// TestJSONBombs: bodies that are small and mean much are refused, whoever reads
// them, without taking much memory.
func TestJSONBombs(t *testing.T) {
	r := startRig(t)
	deep := func(open, shut string) []byte {
		return []byte(strings.Repeat(open, 100_000) + strings.Repeat(shut, 100_000))
	}
	const million = 1 << 17 // nearly
	bombs := map[string][]byte{
		"deep lists":       deep("[", "]"),
		"deep objects":     deep(`{"a":`, "}"),
		"open for ever":    bytes.Repeat([]byte("["), 2*million),
		"many groups":      []byte(`{"clientID":"c","consumerDataSet":[` + strings.Repeat(`{},`, million) + `{}]}`),
		"many tags":        []byte(`{"clientID":"c","consumerDataSet":[{"groupName":"G","subscriptionDataSet":[{"topic":"T","tagsSet":[` + strings.Repeat(`"",`, million) + `""]}]}]}`),
		"many queues":      []byte(`{"clientId":"c","consumerGroup":"G","mqSet":[` + strings.Repeat(`{},`, million) + `{}]}`),
		"many topics":      []byte(`{"topicConfigList":[` + strings.Repeat(`{},`, million) + `{}]}`),
		"many configs":     []byte(`{"groupConfigList":[` + strings.Repeat(`{},`, million) + `{}]}`),
		"many attributes":  []byte(`{"groupName":"G","attributes":{` + strings.Repeat(`"a":"",`, million) + `"b":""}}`),
		"long number":      []byte(`{"clientID":` + strings.Repeat("9", 4*million) + `}`),
		"long text":        []byte(`{"clientID":"` + strings.Repeat("x", 4*million) + `"}`),
		"many members":     []byte(`{` + strings.Repeat(`"a":1,`, million) + `"b":1}`),
		"long expression":  []byte(`{"clientId":"c","group":"G","subscriptionData":{"topic":"T","expressionType":"SQL92","subString":"` + strings.Repeat("(", 4*million) + `"}}`),
		"wide expression":  []byte(`{"clientId":"c","group":"G","subscriptionData":{"topic":"T","expressionType":"SQL92","subString":"a=1` + strings.Repeat(" OR a=1", million/4) + `"}}`),
		"escapes":          []byte(`{"clientID":"` + strings.Repeat(`\u0000`, million) + `"}`),
		"no JSON":          bytes.Repeat([]byte{0xff}, million),
		"properties, long": bytes.Repeat([]byte("a=b\n"), million),
	}
	codes := []int32{
		remoting.ReqHeartBeat, remoting.ReqLockBatchMQ, remoting.ReqUnlockBatchMQ, remoting.ReqCheckClientConfig,
		remoting.ReqUpdateAndCreateTopicList, remoting.ReqUpdateAndCreateSubscriptionGroup, remoting.ReqUpdateSubscriptionGroupList,
		remoting.ReqUpdateBrokerConfig,
	}
	// In lists of configurations members that nobody knows are ignored, and then
	// nothing is left.
	strict := []int32{remoting.ReqHeartBeat, remoting.ReqLockBatchMQ, remoting.ReqUnlockBatchMQ, remoting.ReqUpdateAndCreateSubscriptionGroup}
	var heap runtime.MemStats
	for name, bomb := range bombs {
		for _, code := range codes {
			runtime.ReadMemStats(&heap)
			before := heap.TotalAlloc
			start := time.Now()
			resp := r.call(code, nil, bomb)
			if took := time.Since(start); took > limit/4 {
				t.Errorf("%s to %s took %v", name, remoting.RequestName(code), took)
			}
			runtime.ReadMemStats(&heap)
			// All that was ever taken, with what slices were before they grew.
			if used := heap.TotalAlloc - before; used > 80*uint64(len(bomb))+32<<20 {
				t.Errorf("%s to %s took %d MiB for %d KiB", name, remoting.RequestName(code), used>>20, len(bomb)>>10)
			}
			if resp.Code == 0 && slices.Contains(strict, code) {
				t.Errorf("%s to %s: success", name, remoting.RequestName(code))
			}
		}
	}
	if n := r.b.groups.Len(); n > 10 {
		t.Errorf("there are %d groups", n)
	}
}

// hostileNames are no names of topics and groups, or such of none.
var hostileNames = []string{
	"", ".", "..", "../x", "a/b", `a\b`, "a\x00b", "a b", "a.b", "\xff", "%RETRY%", "%DLQ%", "%RETRY%../x", "a@b", "a\x01b\x02",
	strings.Repeat("x", 128), strings.Repeat("x", 300), strings.Repeat("x", 1<<16), "TBW102", message.HalfTopic, "CID_RMQ_SYS_TRANS",
}

// hostileNumbers are the ends of ranges.
var hostileNumbers = []int64{math.MinInt64, math.MinInt32, -1, 0, 1, 1 << 17, math.MaxInt32, 1 << 40, math.MaxInt64 - 100, math.MaxInt64}

// TestHostileFields sends each request that there is with hostile values in each
// of its fields. It is answered, nothing panics, nothing appears beside the
// directories of the store, and no value costs more than 4 MiB on the way: the
// bound for what follows from a field, whatever it says.
func TestHostileFields(t *testing.T) {
	r := startRig(t, func(o *Options) { o.Config.LongPolling, o.Config.ShortPolling = false, time.Millisecond })
	r.createTopic("T", 2)
	r.send("T", 0, "m", "KEYS", "k")
	p := r.newPeer("c")
	p.heartbeat("G", "T")
	sent := 0
	began := heapInUse()
	var heap runtime.MemStats
	for _, code := range r.b.handlers().Codes() {
		h := remoting.RequestHeader(code)
		if h == nil {
			continue
		}
		for i, f := range fullHeader(t, code) {
			var values []string
			for _, n := range hostileNumbers {
				values = append(values, strconv.FormatInt(n, 10))
			}
			values = append(values, hostileNames...)
			for _, v := range values {
				req := remoting.NewRequest(code, nil)
				req.Ext = fullHeader(t, code)
				req.Ext[i].Value = v
				req.Body = []byte("body")
				if code == remoting.ReqEndTransaction && f.Name == "commitOrRollback" && v == "0" {
					continue // not answered
				}
				runtime.ReadMemStats(&heap)
				before := heap.TotalAlloc
				ctx, cancel := context.WithTimeout(t.Context(), limit)
				resp, err := r.invoke(ctx, req)
				cancel()
				if err != nil {
					t.Fatalf("%s, %s=%.80q: %v", remoting.RequestName(code), f.Name, v, err)
				}
				if runtime.ReadMemStats(&heap); heap.TotalAlloc-before > 4<<20 {
					t.Errorf("%s, %s=%.80q took %d KiB", remoting.RequestName(code), f.Name, v, (heap.TotalAlloc-before)>>10)
				}
				if strings.Contains(resp.Remark, "internal error") {
					t.Errorf("%s, %s=%.80q: %v", remoting.RequestName(code), f.Name, v, resp)
				}
				sent++
			}
		}
	}
	grown := heapInUse() - began
	t.Logf("%d requests, which leave %d KiB", sent, grown>>10)
	if grown > 32<<20 {
		t.Errorf("%d requests leave %d MiB", sent, grown>>20)
	}
	entries, err := r.b.opts.FS.List("/")
	if err != nil || len(entries) != 1 {
		t.Errorf("beside the store: %v, %v", entries, err)
	}
	r.createTopic("T", 2)
	r.send("T", 0, "it still works")
}

// TestLargeBodies: bodies that may take a multiple of their length when decoded
// are decoded a few at a time; small ones do not wait for them.
func TestLargeBodies(t *testing.T) {
	r := startRig(t)
	for range maxLarge {
		r.b.large.enter(t.Context())
	}
	big := []byte(`{"clientID":"c","x":"` + strings.Repeat("y", largeBody) + `"}`)
	req := remoting.NewRequest(remoting.ReqHeartBeat, nil)
	req.Body = big
	done := make(chan *remoting.Command, 1)
	go func() {
		resp, _ := r.newPeer("big").invoke(context.Background(), req) //nolint:errcheck // nil says it
		done <- resp
	}()
	r.newPeer("c").heartbeat("G", "T")
	select {
	case resp := <-done:
		t.Fatalf("a large body does not wait: %v", resp)
	default:
	}
	r.b.large.leave()
	if resp := await(t, done); resp == nil || resp.Code != 0 {
		t.Errorf("answer %v", resp)
	}
	if n := len(r.b.large); n != maxLarge-1 {
		t.Errorf("%d places are taken, want %d", n, maxLarge-1)
	}
}

// fullHeader returns the fields of a request with good values.
func fullHeader(t testing.TB, code int32) remoting.Fields {
	t.Helper()
	good := map[string]string{
		"topic": "T", "b": "T", "consumerGroup": "G", "group": "G", "groupName": "G", "producerGroup": "PG", "a": "PG", "defaultTopic": "TBW102", "c": "TBW102",
		"key": "k", "clientId": "c", "srcGroup": "G", "destGroup": "G2", "statsName": "TOPIC_PUT_NUMS", "statsKey": "T", "topicFilterType": "SINGLE_TAG",
		"subscription": "*", "commitOrRollback": "8", "properties": "a\x01b\x02", "i": "a\x01b\x02", "perm": "6", "sysFlag": "4",
	}
	// Names of all fields, optional ones too, from a header whose fields are not
	// their defaults: what is decoded from text that fits everything.
	probe := remoting.Fields{}
	h := remoting.RequestHeader(code)
	for _, name := range allFieldNames {
		probe = append(probe, remoting.Field{Name: name, Value: "7"})
	}
	for _, name := range []string{"order", "isOrder", "isForce", "unitMode", "k", "batch", "m", "cleanOffset", "offline", "jstackEnable", "fromTransactionCheck", "setZeroIfNotFound", "committed", "lo", "_UNIQUE_KEY_QUERY", "force"} {
		probe.Set(name, "true")
	}
	for _, name := range []string{"setZeroIfNotFound", "committed", "batch", "m"} {
		probe.Set(name, "false")
	}
	if err := remoting.DecodeHeader(probe, h); err != nil {
		t.Fatalf("%s: %v", remoting.RequestName(code), err)
	}
	fields := remoting.EncodeHeader(h)
	for i := range fields {
		if v, ok := good[fields[i].Name]; ok && code != remoting.ReqSendMessageV2 && code != remoting.ReqSendBatchMessage && code != remoting.ReqSendReplyMessageV2 {
			fields[i].Value = v
		} else if ok && len(fields[i].Name) == 1 {
			fields[i].Value = v
		} else if fields[i].Value == "7" {
			fields[i].Value = "0"
		}
	}
	return fields
}

var allFieldNames = strings.Fields(`a b c d e f g h i j l n topic group groupName consumerGroup producerGroup defaultTopic defaultTopicQueueNums queueId sysFlag
	bornTimestamp flag properties reconsumeTimes maxReconsumeTimes queueOffset maxMsgNums commitOffset suspendTimeoutMillis subscription subVersion
	expressionType maxMsgBytes requestSource proxyFrowardClientId key maxNum beginTimestamp endTimestamp indexType lastKey offset timestamp boundaryType
	clientID clientId clientAddr delayLevel originMsgId originTopic tranStateTableOffset commitLogOffset commitOrRollback msgId transactionId
	readQueueNums writeQueueNums perm topicFilterType topicSysFlag groupSysFlag attributes index count srcGroup destGroup statsName statsKey topicList
	brokerName topicSeq dataVersion maxTopicNum groupSeq maxGroupNum name value namespace compareGroup filterGroups`)

// TestSlowFrames: a frame that arrives byte by byte, or never to its end, holds up
// nobody else and is not waited for without end.
func TestSlowFrames(t *testing.T) {
	b := startTCP(t, func(o *Options) { o.Limits.FrameTimeout = 300 * time.Millisecond })
	half := dialTCP(t, b)
	frame := frameOf(t, remoting.ReqSendMessageV2, 1, sendHeader("T", 0), make([]byte, 1<<20))
	if _, err := half.Write(frame[:1000]); err != nil {
		t.Fatal(err)
	}
	good := dialTCP(t, b)
	if _, err := good.Write(frame); err != nil {
		t.Fatal(err)
	}
	if c, err := readFrame(good); err != nil || c.Code != 0 {
		t.Errorf("a good client gets %v, %v", c, err)
	}
	half.SetReadDeadline(time.Now().Add(limit)) //nolint:errcheck // the read tells
	if _, err := io.ReadAll(half); err != nil {
		t.Errorf("half a frame: %v", err) // closed by the broker: no error
	}
	lengths := []uint32{1<<31 - 1, 1 << 31, math.MaxUint32, 16<<20 + 1}
	for _, n := range lengths {
		nc := dialTCP(t, b)
		nc.SetReadDeadline(time.Now().Add(limit)) //nolint:errcheck // the read tells
		if _, err := nc.Write(binary.BigEndian.AppendUint32(nil, n)); err != nil {
			t.Fatal(err)
		}
		if data, err := io.ReadAll(nc); err != nil || len(data) > 0 {
			t.Errorf("length %d: %q, %v", n, data, err)
		}
	}
	if n := b.server.Stats().RequestBytes; n != 0 {
		t.Errorf("%d bytes of requests are still counted", n)
	}
}
