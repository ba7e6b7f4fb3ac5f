package broker

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/vfs/faultfs"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// TestStartFails: a start that fails half way leaves no goroutine, no listener
// and no lock.
func TestStartFails(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the end
	port := l.Addr().(*net.TCPAddr).Port
	for _, c := range []struct {
		name   string
		change func(*Options, *faultfs.FS)
		want   string
	}{
		{"contradiction", func(o *Options, _ *faultfs.FS) { o.Config.BrokerName = "" }, "must not be empty"},
		{"limit", func(o *Options, _ *faultfs.FS) { o.Limits.MaxConns = -1 }, "MaxConns"},
		{"TLS without a certificate", func(o *Options, _ *faultfs.FS) { o.TLSRequired = true }, "TLS"},
		{"port in use", func(o *Options, _ *faultfs.FS) { o.Config.ListenPort = port }, "in use"},
		{"VIP port in use", func(o *Options, _ *faultfs.FS) { o.Config.ListenPort = port + 2 }, "VIP channel"},
		{"address of another machine", func(o *Options, _ *faultfs.FS) { o.Config.BindAddress = "192.0.2.1" }, "listen"},
		{"store options", func(o *Options, _ *faultfs.FS) { o.Store.DelayLevels = "soon" }, "DelayLevels"},
		{"store cannot be opened", func(_ *Options, f *faultfs.FS) { f.Fail(faultfs.OpList, "commitlog", faultfs.ErrIO) }, "input/output"},
		{"topics cannot be read", func(_ *Options, f *faultfs.FS) { f.Fail(faultfs.OpOpen, "topics.json", faultfs.ErrIO) }, "topics.json"},
		{"groups cannot be read", func(_ *Options, f *faultfs.FS) { f.Fail(faultfs.OpOpen, "subscriptionGroup.json", faultfs.ErrIO) }, "subscriptionGroup.json"},
		{"offsets cannot be read", func(_ *Options, f *faultfs.FS) { f.Fail(faultfs.OpOpen, "consumerOffset.json", faultfs.ErrIO) }, "consumerOffset.json"},
		{"filters cannot be read", func(_ *Options, f *faultfs.FS) { f.Fail(faultfs.OpOpen, "consumerFilter.json", faultfs.ErrIO) }, "consumerFilter.json"},
	} {
		t.Run(c.name, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			mem := memfs.New()
			for _, name := range []string{"topics", "subscriptionGroup", "consumerOffset", "consumerFilter"} { // to be read
				if err := mem.MkdirAll("/store/config"); err != nil {
					t.Fatal(err)
				}
				writeFile(t, mem, "/store/config/"+name+".json", []byte("{}"))
			}
			fault := faultfs.New(mem)
			opts := Options{Dir: "/store", Config: NewConfig(), FS: fault, Store: smallStore()}
			opts.Config.ListenPort = 0
			good := opts
			c.change(&opts, fault)
			b, err := Start(t.Context(), opts)
			if err == nil {
				stopBroker(t, b)
			}
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Fatalf("error %v, want one about %q", err, c.want)
			}
			if held, err := mem.Locked("/store/lock"); err == nil && held {
				t.Error("the store is still locked")
			}
			if opts.Config.ListenPort > 0 {
				free, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port-2)))
				if err != nil {
					t.Errorf("a port is still taken: %v", err)
				} else {
					free.Close() //nolint:errcheck // unused
				}
			}
			fault.Clear()
			b, err = Start(t.Context(), good)
			if err != nil {
				t.Fatalf("when the cause is gone: %v", err)
			}
			stopBroker(t, b)
		})
	}
}

// TestStartCancelled: cancelling ctx stops the opening.
func TestStartCancelled(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	opts := Options{Dir: "/store", Config: NewConfig(), FS: memfs.New(), Store: smallStore()}
	opts.Config.ListenPort = 0
	b, err := Start(ctx, opts)
	if err == nil { // an empty store is opened before anybody looks
		stopBroker(t, b)
	} else if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// TestStartOnRestoreError: half messages that cannot be read are no reason to
// forget them.
func TestStartOnRestoreError(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	mem := memfs.New()
	r := startRig(t, func(o *Options) { o.FS = mem })
	r.createTopic("T", 1)
	x := r.begin("T", "m")
	opts := r.b.opts
	r.close()
	stopBroker(t, r.b)
	fault := faultfs.New(mem)
	opts.FS, opts.Store.WriteWithoutMmap = fault, true
	fault.Inject(faultfs.Rule{Ops: faultfs.OpRead, Match: func(c faultfs.Call) bool {
		return strings.Contains(c.Name, "RMQ_SYS_TRANS_HALF_TOPIC")
	}, Err: faultfs.ErrIO})
	if _, err := tryRig(opts); !errors.Is(err, faultfs.ErrIO) {
		t.Fatalf("error %v", err)
	}
	if held, _ := mem.Locked("/store/lock"); held {
		t.Error("the store is still locked")
	}
	fault.Clear()
	r.b = openRig(t, opts)
	r.peer = r.newPeer("")
	r.wantOpen(1)
	r.commitTx(x)
	r.wantVisible("T", "m")
	r.close()
	stopBroker(t, r.b)
}

// TestSecondBroker: a directory has one broker at a time, and the refused one
// changes nothing.
func TestSecondBroker(t *testing.T) {
	dir := t.TempDir()
	opts := Options{Dir: dir, Config: NewConfig(), Store: smallStore()}
	opts.Config.ListenPort = 0
	b, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer stopBroker(t, b)
	_, err = Start(t.Context(), opts)
	if !errors.Is(err, gantry.ErrLocked) || !strings.Contains(err.Error(), dir) {
		t.Errorf("second broker: %v", err)
	}
	if err := b.Healthy(); err != nil {
		t.Error(err)
	}
}

// TestListen: the two ports, and what clients are told.
func TestListen(t *testing.T) {
	opts := Options{Dir: "/store", Config: NewConfig(), FS: memfs.New(), Store: smallStore()}
	opts.Config.ListenPort, opts.Config.Advertise = 0, "localhost"
	b, err := Start(t.Context(), opts)
	if err != nil {
		t.Fatal(err)
	}
	defer stopBroker(t, b)
	host, port, err := net.SplitHostPort(b.Addr())
	if err != nil || host != "localhost" {
		t.Errorf("address %s, %v", b.Addr(), err)
	}
	if !b.storeHost.Addr().IsLoopback() || !b.ListensOn().IsLoopback() {
		t.Errorf("store host %v, listens on %v", b.storeHost, b.ListensOn())
	}
	n, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	client := remoting.NewClient(remoting.ClientOptions{})
	defer client.Close() //nolint:errcheck // never fails
	for _, p := range []int{n, n - 2} {
		resp, err := client.Invoke(t.Context(), net.JoinHostPort("127.0.0.1", strconv.Itoa(p)), remoting.NewRequest(remoting.ReqGetBrokerRuntimeInfo, nil))
		if err != nil || resp.Code != 0 {
			t.Errorf("port %d: %v, %v", p, resp, err)
		}
	}
	opts.Config.Advertise = "no.such.host.invalid"
	if _, err := Start(t.Context(), opts); err == nil || !strings.Contains(err.Error(), "no.such.host.invalid") {
		t.Errorf("unknown host: %v", err)
	}
}

// TestListenerFails: a listener that fails for good is reported.
func TestListenerFails(t *testing.T) {
	r := startRig(t)
	l := failingListener{errors.New("gone")}
	r.b.serving.Go(func() {
		if err := r.b.server.Serve(l); err != nil {
			r.b.failed <- err
		}
	})
	select {
	case err := <-r.b.Failed():
		if !strings.Contains(err.Error(), "gone") {
			t.Error(err)
		}
	case <-time.After(limit):
		t.Fatal("nobody is told")
	}
}

type failingListener struct{ err error }

func (l failingListener) Accept() (net.Conn, error) { return nil, l.err }
func (l failingListener) Close() error              { return nil }
func (l failingListener) Addr() net.Addr            { return &net.TCPAddr{} }

// TestShutdown: it may be called again and at the same time, and ends in time
// though clients hold pulls and send.
func TestShutdown(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r := startRig(t)
	r.createTopic("T", 1)
	done := r.later(remoting.ReqPullMessage, holdHeader("T", 0, 0))
	stop := make(chan struct{})
	var sending sync.WaitGroup
	acked := 0
	sending.Go(func() {
		for i := 0; ; i++ {
			req := remoting.NewRequest(remoting.ReqSendMessageV2, sendHeader("T", 0))
			req.Body = []byte(fmt.Sprint(i))
			resp, err := r.invoke(context.Background(), req)
			if err != nil || resp.Code != 0 {
				return // refused while it shuts down
			}
			if acked++; acked == 50 {
				close(stop)
			}
		}
	})
	<-stop
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() { stopBroker(t, r.b) })
	}
	wg.Wait()
	await(t, done)
	sending.Wait()
	opts := r.b.opts
	r.close()
	r.b = openRig(t, opts)
	r.peer = r.newPeer("")
	if got := r.bodies("T", 0, 0); len(got) < acked {
		t.Errorf("%d messages, %d were acknowledged", len(got), acked)
	}
	if rec := r.b.store.Recovery(); !rec.CleanStop {
		t.Error("the stop was not clean")
	}
	r.close()
	stopBroker(t, r.b)
}

// TestShutdownInTime: clients that neither answer nor read do not hold it up
// longer than the caller wants.
func TestShutdownInTime(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	r := startRig(t)
	p := r.newPeer("c")
	block := make(chan struct{})
	p.answer = func(*remoting.Command) *remoting.Command { <-block; return nil }
	p.heartbeat("G", "T")
	asked := r.later(remoting.ReqGetConsumerRunningInfo, &remoting.RunningInfoRequest{ConsumerGroup: "G", ClientID: "c"})
	p.push(remoting.ReqGetConsumerRunningInfo)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	start := time.Now()
	if err := r.b.Shutdown(ctx); err != nil {
		t.Error(err)
	}
	if took := time.Since(start); took > relayTimeout/2 {
		t.Errorf("it took %v", took)
	}
	await(t, asked)
	close(block)
	p.close()
	r.close()
	b := openRig(t, r.b.opts)
	if !b.store.Recovery().CleanStop {
		t.Error("the stop was not clean")
	}
	stopBroker(t, b)
}

// TestRestart keeps everything: topics, groups, offsets, filters, delayed
// messages, open transactions.
func TestRestart(t *testing.T) { synctest.Test(t, testRestart) }

func testRestart(t *testing.T) {
	r := startRig(t)
	r.createTopic("T", 3, func(h *remoting.CreateTopicRequest) { h.Order = true })
	r.updateGroup("G", func(g *remoting.GroupConfig) { g.RetryMaxTimes = 7 })
	r.send("T", 0, "m", "KEYS", "k")
	r.commit("G", "T", 0, 1)
	r.send("T", 1, "later", message.PropDelay, "2")
	r.begin("T", "open")
	p := r.newPeer("c")
	hb := p.heartbeatOf("S", "T")
	hb.Consumers[0].Subscriptions[0].ExpressionType, hb.Consumers[0].Subscriptions[0].SubString = remoting.ExpressionSQL92, "a > 1"
	p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(hb))
	p.close()
	topics := r.b.topics.Len()
	r.restart()
	if got, ok := r.b.topics.Get("T"); !ok || got.ReadQueueNums != 3 || !got.Order || r.b.topics.Len() != topics {
		t.Errorf("topic %+v, %d topics", got, r.b.topics.Len())
	}
	if g, ok := r.b.groups.Get("G"); !ok || g.RetryMaxTimes != 7 {
		t.Errorf("group %+v", g)
	}
	if off, _ := r.offset("G", "T", 0); off != 1 {
		t.Errorf("offset %d", off)
	}
	if f, ok := r.b.filters.Get("T", "S"); !ok || f.Expression != "a > 1" {
		t.Errorf("filter %+v", f)
	}
	r.wantOpen(1)
	if got := r.bodies("T", 0, 0); len(got) != 1 || got[0] != "m" {
		t.Errorf("messages %q", got)
	}
	resp := await(t, r.later(remoting.ReqPullMessage, holdHeader("T", 1, 0)))
	if got := records(t, resp.Body); len(got) != 1 || string(got[0].Body) != "later" {
		t.Errorf("delayed %v", resp)
	}
}

// TestDamagedFiles: a damaged configuration file is replaced by its backup, and
// without one the broker does not start as if there had been nothing.
func TestDamagedFiles(t *testing.T) {
	files := []string{"topics.json", "subscriptionGroup.json", "consumerOffset.json", "consumerFilter.json"}
	for _, file := range files {
		t.Run(file, func(t *testing.T) {
			defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
			r := startRig(t)
			change := func(i int) {
				r.createTopic(name("T", i), 1)
				r.updateGroup(name("G", i), func(*remoting.GroupConfig) {})
				r.commit(name("G", i), name("T", i), 0, 0)
				p := r.newPeer(name("c", i))
				hb := p.heartbeatOf(name("S", i), name("T", i))
				hb.Consumers[0].Subscriptions[0].ExpressionType, hb.Consumers[0].Subscriptions[0].SubString = remoting.ExpressionSQL92, "a > 1"
				p.ok(remoting.ReqHeartBeat, nil, remoting.EncodeBody(hb))
				if err := r.b.save(); err != nil {
					t.Fatal(err)
				}
				p.close()
			}
			change(1)
			change(2) // now there is a backup with the first
			opts := r.b.opts
			r.close()
			stopBroker(t, r.b)
			path := filepath.Join("/store/config", file)
			writeFile(t, opts.FS, path, []byte(`{"offsetTable":{"cut`))
			r.b = openRig(t, opts)
			ok := false
			switch file {
			case "topics.json":
				_, ok = r.b.topics.Get("T1")
			case "subscriptionGroup.json":
				_, ok = r.b.groups.Get("G1")
			case "consumerOffset.json":
				_, ok = r.b.offsets.Query("G1", "T1", 0)
			case "consumerFilter.json":
				_, ok = r.b.filters.Get("T1", "S1")
			}
			if !ok {
				t.Error("the backup was not used")
			}
			stopBroker(t, r.b)

			writeFile(t, opts.FS, path, []byte("garbage"))
			writeFile(t, opts.FS, path+".bak", []byte("garbage"))
			if _, err := tryRig(opts); err == nil || !strings.Contains(err.Error(), file) {
				t.Errorf("with nothing to read: %v", err)
			}
		})
	}
}
