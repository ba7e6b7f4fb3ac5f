package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// limit is how long a test waits for something that has to happen.
const limit = 20 * time.Second

// A rig is a broker without listeners: its connections are pipes, so that it can
// live in a bubble of package synctest. Its files are in memory.
type rig struct {
	t testing.TB
	b *Broker
	*peer
}

// startRig starts a broker that stops with the test. Zero options are small.
func startRig(t testing.TB, change ...func(*Options)) *rig {
	t.Helper()
	opts := Options{Dir: "/store", Config: NewConfig(), FS: memfs.New(), Store: smallStore()}
	opts.Config.ListenPort = 10911
	opts.Logger = slog.New(panicWatch{t})
	for _, f := range change {
		f(&opts)
	}
	r := &rig{t: t, b: openRig(t, opts)}
	r.peer = r.newPeer("")
	return r
}

// panicWatch is a log handler by which a panic of a handler, which the server
// turns into an answer, fails the test.
type panicWatch struct{ t testing.TB }

func (panicWatch) Enabled(_ context.Context, l slog.Level) bool { return l >= slog.LevelError }
func (w panicWatch) WithAttrs([]slog.Attr) slog.Handler         { return w }
func (w panicWatch) WithGroup(string) slog.Handler              { return w }
func (w panicWatch) Handle(_ context.Context, r slog.Record) error {
	if strings.Contains(r.Message, "panic") {
		text := r.Message
		r.Attrs(func(a slog.Attr) bool { text += "\n" + a.String(); return true })
		w.t.Error(text)
	}
	return nil
}

// smallStore are the options of a store in memory.
func smallStore() gantry.Options {
	return gantry.Options{
		CommitLogFileSize: 16 << 20, ConsumeQueueFileSize: 20_000, IndexSlots: 1000, IndexEntries: 4000,
		DelayLevels: "1s 2s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s 1s",
	}
}

// openRig is Start without ports.
func openRig(t testing.TB, opts Options) *Broker {
	t.Helper()
	b, err := tryRig(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { stopBroker(t, b) })
	return b
}

func tryRig(opts Options) (*Broker, error) {
	b, err := newBroker(opts)
	if err != nil {
		return nil, err
	}
	ctx := context.Background()
	if err := b.resolve(ctx, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: opts.Config.ListenPort}); err != nil {
		return nil, err
	}
	if err := b.open(ctx); err != nil {
		return nil, err
	}
	return b, b.serve()
}

func stopBroker(t testing.TB, b *Broker) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := b.Shutdown(ctx); err != nil && b.store.Stats().Failure == nil {
		t.Errorf("shutdown: %v", err)
	}
}

// restart stops the broker cleanly and starts another one on its files.
func (r *rig) restart(change ...func(*Options)) {
	r.t.Helper()
	opts := r.b.opts
	opts.Config = *r.b.config()
	for _, f := range change {
		f(&opts)
	}
	r.peer.close()
	stopBroker(r.t, r.b)
	r.b = openRig(r.t, opts)
	r.peer = r.newPeer("")
}

// crash lets the machine go down with whatever is not on its disk, and starts
// again. The file system has to be crashable.
func (r *rig) crash(policy memfs.Policy, change ...func(*Options)) {
	r.t.Helper()
	opts := r.b.opts
	opts.Config = *r.b.config()
	opts.FS = r.b.opts.FS.(*memfs.FS).CrashClone(policy)
	for _, f := range change {
		f(&opts)
	}
	r.peer.close()
	stopBroker(r.t, r.b) // writes into the file system that nobody looks at any more
	r.b = openRig(r.t, opts)
	r.peer = r.newPeer("")
}

// A peer is a client of the broker.
type peer struct {
	t      testing.TB
	id     string
	client *remoting.Client
	pushes chan *remoting.Command // requests of the broker
	answer func(*remoting.Command) *remoting.Command
	closed sync.Once
}

// pushed are the requests that brokers send.
var pushed = []int32{
	remoting.ReqCheckTransactionState, remoting.ReqNotifyConsumerIDsChanged, remoting.ReqResetConsumerClientOffset,
	remoting.ReqGetConsumerStatusFromClient, remoting.ReqGetConsumerRunningInfo, remoting.ReqConsumeMessageDirectly,
	remoting.ReqPushReplyMessageToClient,
}

// newPeer returns a client with a connection of its own, which ends with the test.
func (r *rig) newPeer(id string) *peer {
	p := r.newPeerOf(id)
	r.t.Cleanup(p.close)
	return p
}

func (r *rig) newPeerOf(id string) *peer {
	p := &peer{t: r.t, id: id, pushes: make(chan *remoting.Command, 1024)}
	mux := remoting.NewMux()
	mux.Handle(func(_ context.Context, _ *remoting.Conn, cmd *remoting.Command) (*remoting.Command, error) {
		select {
		case p.pushes <- cmd:
		default: // nobody looks
		}
		if p.answer != nil {
			return p.answer(cmd), nil
		}
		return remoting.NewResponse(remoting.CodeSuccess, ""), nil
	}, pushed...)
	p.client = remoting.NewClient(remoting.ClientOptions{
		Options: remoting.Options{Mux: mux, Limits: remoting.Limits{IdleTimeout: -1}},
		Timeout: limit,
		Dial: func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			r.b.server.ServeConn(theirs)
			return ours, nil
		},
	})
	return p
}

func (p *peer) close() { p.closed.Do(func() { p.client.Close() }) } //nolint:errcheck // never fails

// invoke sends a request and returns its answer, whatever the code.
func (p *peer) invoke(ctx context.Context, cmd *remoting.Command) (*remoting.Command, error) {
	return p.client.Invoke(ctx, "broker", cmd)
}

// call is invoke of a request that is made here.
func (p *peer) call(code int32, h remoting.Header, body []byte) *remoting.Command {
	p.t.Helper()
	req := remoting.NewRequest(code, h)
	req.Body = body
	resp, err := p.invoke(p.t.Context(), req)
	if err != nil {
		p.t.Fatalf("%s: %v", remoting.RequestName(code), err)
	}
	return resp
}

// ok is a call that has to succeed.
func (p *peer) ok(code int32, h remoting.Header, body []byte) *remoting.Command {
	p.t.Helper()
	resp := p.call(code, h, body)
	if err := resp.Err(); err != nil {
		p.t.Fatalf("%s: %v", remoting.RequestName(code), err)
	}
	return resp
}

// refused is a call that has to be answered with a code; it returns the remark.
func (p *peer) refused(want, code int32, h remoting.Header, body []byte) string {
	p.t.Helper()
	resp := p.call(code, h, body)
	if resp.Code != want {
		p.t.Fatalf("%s %+v: answer %v, want %s", remoting.RequestName(code), h, resp, remoting.ResponseName(want))
	}
	return resp.Remark
}

// push waits for a request of the broker with a code; others before it are
// skipped.
func (p *peer) push(code int32) *remoting.Command {
	p.t.Helper()
	timeout := time.After(10 * limit) // producers are asked every 30 s
	for {
		select {
		case cmd := <-p.pushes:
			if cmd.Code == code {
				return cmd
			}
		case <-timeout:
			p.t.Fatalf("no %s", remoting.RequestName(code))
		}
	}
}

// later sends a request whose answer comes on the channel: nil when there is none.
func (p *peer) later(code int32, h remoting.Header) <-chan *remoting.Command {
	done := make(chan *remoting.Command, 1)
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	go func() {
		defer cancel()
		resp, _ := p.invoke(ctx, remoting.NewRequest(code, h)) //nolint:errcheck // nil says it
		done <- resp
	}()
	return done
}

// await waits for what later promised.
func await(t testing.TB, done <-chan *remoting.Command) *remoting.Command {
	t.Helper()
	select {
	case resp := <-done:
		return resp
	case <-time.After(2 * limit):
		t.Fatal("no answer")
		return nil
	}
}

// decode fills h from the ext fields of an answer.
func decode[H remoting.Header](t testing.TB, resp *remoting.Command, h H) H {
	t.Helper()
	if err := remoting.DecodeHeader(resp.Ext, h); err != nil {
		t.Fatalf("%v: %v", resp, err)
	}
	return h
}

// body fills b from the body of an answer.
func body[B remoting.Body](t testing.TB, resp *remoting.Command, b B) B {
	t.Helper()
	if err := remoting.DecodeBody(resp.Body, b); err != nil {
		t.Fatalf("%v: %v in %s", resp, err, resp.Body)
	}
	return b
}

// records decodes the messages of an answer.
func records(t testing.TB, data []byte) (list []message.Ext) {
	t.Helper()
	for len(data) > 0 {
		n := int(message.Size(data))
		if n <= 0 || n > len(data) {
			t.Fatalf("record of %d bytes, %d are left", n, len(data))
		}
		m, err := message.Decode(data[:n])
		if err != nil {
			t.Fatal(err)
		}
		list, data = append(list, m), data[n:]
	}
	return list
}

// createTopic makes a topic with n queues.
func (p *peer) createTopic(name string, n int32, change ...func(*remoting.CreateTopicRequest)) {
	p.t.Helper()
	h := &remoting.CreateTopicRequest{
		Topic: name, DefaultTopic: "TBW102", ReadQueueNums: n, WriteQueueNums: n,
		Perm: remoting.PermRead | remoting.PermWrite, TopicFilterType: remoting.FilterTypeSingle,
	}
	for _, f := range change {
		f(h)
	}
	p.ok(remoting.ReqUpdateAndCreateTopic, h, nil)
}

// sendHeader is what a producer sends with a message.
func sendHeader(topic string, queue int32, props ...string) *remoting.SendMessageRequestV2 {
	return &remoting.SendMessageRequestV2{SendMessageRequest: remoting.SendMessageRequest{
		ProducerGroup: "PG", Topic: topic, DefaultTopic: "TBW102", DefaultTopicQueueNums: 4, QueueID: queue,
		BornTimestamp: 1_700_000_000_000, Properties: string(message.NewProperties(props...)), MaxReconsumeTimes: -1,
	}}
}

// send stores a message and returns where.
func (p *peer) send(topic string, queue int32, text string, props ...string) *remoting.SendMessageResponse {
	p.t.Helper()
	return decode(p.t, p.ok(remoting.ReqSendMessageV2, sendHeader(topic, queue, props...), []byte(text)), new(remoting.SendMessageResponse))
}

// send is that of a peer, and waits until the message can be pulled.
func (r *rig) send(topic string, queue int32, text string, props ...string) *remoting.SendMessageResponse {
	r.t.Helper()
	resp := r.peer.send(topic, queue, text, props...)
	r.dispatched()
	return resp
}

// dispatched waits until what was stored can be pulled and queried.
func (r *rig) dispatched() {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	if err := r.b.store.WaitDispatched(ctx); err != nil {
		r.t.Fatal(err)
	}
}

// pullHeader is a pull that brings its own subscription and is not held.
func pullHeader(topic string, queue int32, offset int64) *remoting.PullMessageRequest {
	return &remoting.PullMessageRequest{
		ConsumerGroup: "CG", Topic: topic, QueueID: queue, QueueOffset: offset, MaxMsgNums: 32,
		SysFlag: remoting.PullSubscription, Subscription: "*", ExpressionType: remoting.ExpressionTag,
		SuspendTimeoutMillis: 15_000, RequestSource: -1,
	}
}

// hold is pullHeader that may be held.
func holdHeader(topic string, queue int32, offset int64) *remoting.PullMessageRequest {
	h := pullHeader(topic, queue, offset)
	h.SysFlag |= remoting.PullSuspend
	return h
}

// bodies pulls all messages of a queue from an offset on.
func (p *peer) bodies(topic string, queue int32, offset int64) (texts []string) {
	p.t.Helper()
	for {
		resp := p.call(remoting.ReqPullMessage, pullHeader(topic, queue, offset), nil)
		if resp.Code != remoting.CodeSuccess {
			return texts
		}
		for _, m := range records(p.t, resp.Body) {
			texts = append(texts, string(m.Body))
		}
		offset = decode(p.t, resp, new(remoting.PullMessageResponse)).NextBeginOffset
	}
}

// heartbeat says that p is a consumer of a group that subscribes to topics, or
// with no topic a producer of it.
func (p *peer) heartbeat(group string, topics ...string) *remoting.Command {
	p.t.Helper()
	return p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(p.heartbeatOf(group, topics...)))
}

func (p *peer) heartbeatOf(group string, topics ...string) *remoting.Heartbeat {
	hb := &remoting.Heartbeat{ClientID: p.id}
	if len(topics) == 0 {
		hb.Producers = []remoting.ProducerData{{GroupName: group}}
		return hb
	}
	c := remoting.ConsumerData{
		GroupName: group, Type: remoting.ConsumePassively, Model: remoting.Clustering, From: remoting.FromLastOffset,
	}
	for _, topic := range topics {
		c.Subscriptions = append(c.Subscriptions, remoting.Subscription{Topic: topic, SubString: "*", SubVersion: 1, ExpressionType: remoting.ExpressionTag})
	}
	hb.Consumers = []remoting.ConsumerData{c}
	return hb
}

// offset asks for the offset of a group; the error has the code.
func (p *peer) offset(group, topic string, queue int32) (int64, error) {
	p.t.Helper()
	resp := p.call(remoting.ReqQueryConsumerOffset, &remoting.QueryOffsetRequest{ConsumerGroup: group, Topic: topic, QueueID: queue, SetZeroIfNotFound: true}, nil)
	if err := resp.Err(); err != nil {
		return 0, err
	}
	return decode(p.t, resp, new(remoting.OffsetResponse)).Offset, nil
}

// commit stores an offset of a group.
func (p *peer) commit(group, topic string, queue int32, offset int64) *remoting.Command {
	p.t.Helper()
	return p.call(remoting.ReqUpdateConsumerOffset, &remoting.UpdateOffsetRequest{ConsumerGroup: group, Topic: topic, QueueID: queue, CommitOffset: offset}, nil)
}

// code is the response code in an error, or -1.
func code(err error) int32 {
	if e, ok := errors.AsType[*remoting.Error](err); ok {
		return e.Code
	}
	return -1
}

// ids numbers things, so that names differ.
func name(prefix string, i int) string { return fmt.Sprintf("%s%d", prefix, i) }
