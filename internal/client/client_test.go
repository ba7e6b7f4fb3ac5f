package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

func TestOptions(t *testing.T) {
	ns := []string{"a:1; b:2;", "[::1]:3"}
	tests := []struct {
		name string
		opts Options
		err  string
	}{
		{"several name servers", Options{NameServers: ns}, ""},
		{"none", Options{}, "no name server"},
		{"only separators", Options{NameServers: []string{" ; "}}, "no name server"},
		{"without a port", Options{NameServers: []string{"a"}}, "missing port"},
		{"negative time", Options{NameServers: ns, Timeout: -1}, "negative"},
		{"too many in flight", Options{NameServers: ns, MaxInFlight: 1 << 20}, "MaxInFlight"},
		{"too many bytes in flight", Options{NameServers: ns, MaxInFlightBytes: 1 << 40}, "MaxInFlightBytes"},
		{"half of the credentials", Options{NameServers: ns, Credentials: Credentials{AccessKey: "x"}}, "secret"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			c, err := New(test.opts)
			if err != nil {
				if test.err == "" || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v", err)
				}
				return
			}
			defer c.Close() //nolint:errcheck // never fails
			if test.err != "" || strings.Join(c.NameServers(), " ") != "a:1 b:2 [::1]:3" || !strings.Contains(c.ID(), "@") {
				t.Errorf("name servers %q, id %s", c.NameServers(), c.ID())
			}
		})
	}
}

func TestConsumerOptions(t *testing.T) {
	handle := new(collector).handle
	good := func() ConsumerOptions {
		return ConsumerOptions{Group: "G", Handler: handle, Subscriptions: map[string]Expression{"T": {}}}
	}
	tests := map[string]func(o *ConsumerOptions){
		"no group":              func(o *ConsumerOptions) { o.Group = "" },
		"no handler":            func(o *ConsumerOptions) { o.Handler = nil },
		"no subscription":       func(o *ConsumerOptions) { o.Subscriptions = nil },
		"bad expression":        func(o *ConsumerOptions) { o.Subscriptions = map[string]Expression{"T": {Text: "||"}} },
		"ordered broadcast":     func(o *ConsumerOptions) { o.Orderly, o.Broadcast = true, true },
		"unknown start":         func(o *ConsumerOptions) { o.From = 77 },
		"negative":              func(o *ConsumerOptions) { o.BatchSize = -1 },
		"offsets that are none": func(o *ConsumerOptions) { o.Broadcast, o.OffsetFile = true, "consumer.go" },
	}
	for name, spoil := range tests {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T, cl *cluster) {
				cl.brokers["a"].topic("T", 1)
				c := cl.client("c1")
				defer c.Close() //nolint:errcheck // never fails
				opts := good()
				spoil(&opts)
				if cs, err := NewConsumer(t.Context(), c, opts); err == nil {
					t.Errorf("got %v", cs)
				}
			})
		})
	}
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		c := cl.client("c1")
		startConsumer(t, c, good())
		newProducer(t, c, ProducerOptions{})
		if _, err := NewConsumer(t.Context(), c, good()); err == nil {
			t.Error("a second consumer of the group")
		}
		if _, err := NewProducer(c, ProducerOptions{Group: "PG"}); err == nil {
			t.Error("a second producer of the group")
		}
		if _, err := NewProducer(c, ProducerOptions{}); err == nil {
			t.Error("a producer without a group")
		}
		c.Close() //nolint:errcheck // never fails
		if _, err := NewConsumer(t.Context(), c, good()); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := NewProducer(c, ProducerOptions{Group: "P2"}); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := c.Route(t.Context(), "T2"); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		if _, err := c.Invoke(t.Context(), addrA, remoting.NewRequest(remoting.ReqGetMaxOffset, nil)); !errors.Is(err, ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
	})
}

// TestCloseWhileBusy: Close ends a client that is in the middle of everything.
func TestCloseWhileBusy(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		a := cl.brokers["a"]
		a.topic("T", 4)
		c := cl.client("c1")
		p := newProducer(t, c, ProducerOptions{})
		startConsumer(t, c, ConsumerOptions{Handler: new(collector).handle})
		startConsumer(t, c, ConsumerOptions{Group: "O", Handler: new(collector).handle, Orderly: true})
		for range 20 {
			if err := p.SendAsync(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}, func(SendResult, error) {}); err != nil {
				t.Fatal(err)
			}
		}
		var wg sync.WaitGroup
		for range 2 { // twice at the same time
			wg.Go(func() { c.Close() }) //nolint:errcheck // never fails
		}
		wg.Wait()
		synctest.Wait()
		n := 0
		c.states.Range(func(any, any) bool { n++; return true })
		if n != 0 || c.rc.Stats().Conns != 0 {
			t.Errorf("%d connections are remembered", n)
		}
	})
}

// TestSignature is the example of section 10.4.
func TestSignature(t *testing.T) {
	cr := Credentials{AccessKey: "ak", SecretKey: "sk"}
	req := &remoting.Command{Code: 14, Ext: remoting.Fields{{Name: "topic", Value: "T"}, {Name: "queueId", Value: "0"}, {Name: "consumerGroup", Value: "CG"}}, Body: []byte("BODY")}
	for range 2 { // a request that was signed before
		req = cr.sign(req)
		if got := req.Ext.Value("Signature"); got != "AQrQONzZqoGX2Em2En38U7vUqXc=" || req.Ext.Value("AccessKey") != "ak" {
			t.Errorf("got %q, %v", got, req.Ext)
		}
	}
	cr.SecurityToken = "token"
	if got := cr.sign(req); got.Ext.Value("SecurityToken") != "token" || got.Ext.Value("Signature") == req.Ext.Value("Signature") {
		t.Errorf("got %v", got.Ext)
	}
	if _, ok := req.Ext.Get("SecurityToken"); ok {
		t.Error("the request was changed")
	}
}

// TestSignedRequests: with credentials all requests are signed.
func TestSignedRequests(t *testing.T) {
	bubble(t, func(t *testing.T, cl *cluster) {
		cl.brokers["a"].topic("T", 1)
		c := cl.client("c1", func(o *Options) {
			o.Credentials = Credentials{AccessKey: "ak", SecretKey: "sk"}
			o.Header = remoting.HeaderBinary
		})
		defer c.Close() //nolint:errcheck // never fails
		p := newProducer(t, c, ProducerOptions{})
		if _, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if err := p.SendOneway(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		cl.mu.Lock()
		defer cl.mu.Unlock()
		n := 0
		for addr, reqs := range cl.calls {
			for _, req := range reqs {
				n++
				if len(req.Ext.Value("Signature")) != 28 || req.Header != remoting.HeaderBinary {
					t.Errorf("%s: %v with %v, %v", addr, req, req.Ext, req.Header)
				}
			}
		}
		if n < 4 {
			t.Errorf("%d requests", n)
		}
	})
}

func TestLimiter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(3, 100)
		ctx := t.Context()
		get := func(bytes int64) chan error {
			done := make(chan error, 1)
			go func() { done <- l.acquire(ctx, bytes) }()
			synctest.Wait()
			return done
		}
		has := func(done chan error, want bool) {
			t.Helper()
			synctest.Wait()
			if (len(done) == 1) != want {
				t.Errorf("got in: %v, want %v", !want, want)
			}
		}
		has(get(60), true)
		large := get(50) // does not fit
		small := get(10) // would, but came later
		has(large, false)
		has(small, false)
		l.release(60)
		has(large, true)
		has(small, true)
		has(get(40), true)
		fourth := get(0)
		has(fourth, false)
		l.release(50)
		has(fourth, true)
		l.release(10)
		l.release(40)
		l.release(0)
		has(get(1000), true) // alone it may
		second := get(1)
		has(second, false)
		l.release(1000)
		has(second, true)
		// Who gives up makes way for those behind.
		has(get(90), true)
		short, cancel := context.WithCancel(t.Context())
		given := make(chan error, 1)
		go func() { given <- l.acquire(short, 50) }()
		synctest.Wait()
		behind := get(5)
		has(behind, false)
		cancel()
		has(behind, true)
		if err := <-given; !errors.Is(err, context.Canceled) {
			t.Errorf("got %v", err)
		}
		l.release(5)
		l.release(90)
		l.release(1)
		if l.mu.count != 0 || l.mu.bytes != 0 || l.mu.queue.Len() != 0 {
			t.Errorf("left over: %d, %d bytes", l.mu.count, l.mu.bytes)
		}
	})
}

// TestNames: what is printed is what users of upstream know.
func TestNames(t *testing.T) {
	for got, want := range map[string]string{
		SendOK.String(): "SEND_OK", SlaveNotAvailable.String(): "SLAVE_NOT_AVAILABLE", SendStatus(9).String(): "SendStatus(9)",
		PullFound.String(): "FOUND", PullMoved.String(): "OFFSET_ILLEGAL", PullStatus(-1).String(): "PullStatus(-1)",
		TransactionUnknown.String(): "UNKNOW", TransactionState(7).String(): "TransactionState(7)",
	} {
		if got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// TestNetwork: the same over TCP with TLS, and no goroutine is left.
func TestNetwork(t *testing.T) {
	defer goleak.VerifyNone(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AddCert(cert)

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	mux := remoting.NewMux()
	mux.Handle(func(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
		return body(&remoting.TopicRouteData{
			QueueDatas:  []remoting.QueueData{{BrokerName: "a", ReadQueueNums: 1, WriteQueueNums: 1, Perm: 6}},
			BrokerDatas: []remoting.BrokerData{{BrokerName: "a", BrokerAddrs: map[int64]string{0: addr}}},
		}), nil
	}, remoting.ReqGetRouteInfoByTopic)
	mux.Handle(remoting.Handler(stored(remoting.CodeSuccess)), remoting.ReqSendMessageV2)
	mux.Handle(remoting.Handler(always(remoting.CodeSuccess)), remoting.ReqHeartBeat, remoting.ReqUnregisterClient)
	s, err := remoting.NewServer(remoting.ServerOptions{
		Options: remoting.Options{Mux: mux, TLS: &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}}, TLSRequired: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := s.Serve(l); err != nil {
			t.Error(err)
		}
	})
	c, err := New(Options{NameServers: []string{addr}, TLS: &tls.Config{RootCAs: roots}})
	if err != nil {
		t.Fatal(err)
	}
	p := newProducer(t, c, ProducerOptions{})
	for range 10 {
		if res, err := p.Send(t.Context(), &message.Message{Topic: "T", Body: []byte("x")}); err != nil || res.OffsetMsgID == "" {
			t.Errorf("got %+v, %v", res, err)
		}
	}
	c.Close() //nolint:errcheck // never fails
	s.Close() //nolint:errcheck // never fails
	wg.Wait()
}
