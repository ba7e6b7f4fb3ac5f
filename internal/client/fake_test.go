package client

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/gantrymq/gantry/remoting"
)

// A cluster is name servers and brokers in memory, joined by pipes, so that
// tests run in virtual time. It knows just enough to be a peer; each test
// changes what it is about by answer.
type cluster struct {
	t       *testing.T
	mu      sync.Mutex
	servers map[string]*remoting.Server
	brokers map[string]*fakeBroker // by name
	refused map[string]bool        // addresses that cannot be dialled
	dials   map[string]int
	calls   map[string][]*remoting.Command // requests by address
	answers map[string]map[int32]answer    // by address and code
}

// An answer replaces what a fake would do. Returning remoting.Later, it leaves
// the request to the fake.
type answer func(ctx context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error)

const (
	nsAddr  = "ns-1:9876"
	nsAddr2 = "ns-2:9876"
	addrA   = "10.0.0.1:10911"
	addrB   = "10.0.0.2:10911"
)

// bubble runs fn in virtual time with a cluster of the brokers a and b.
func bubble(t *testing.T, fn func(t *testing.T, cl *cluster)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		cl := &cluster{
			t: t, servers: make(map[string]*remoting.Server), brokers: make(map[string]*fakeBroker),
			refused: make(map[string]bool), dials: make(map[string]int), calls: make(map[string][]*remoting.Command),
			answers: make(map[string]map[int32]answer),
		}
		for _, addr := range []string{nsAddr, nsAddr2} {
			cl.serve(addr, map[int32]answer{remoting.ReqGetRouteInfoByTopic: cl.route})
		}
		cl.addBroker("a", addrA)
		cl.addBroker("b", addrB)
		defer func() {
			for _, s := range cl.servers {
				s.Close() //nolint:errcheck // never fails
			}
		}()
		fn(t, cl)
	})
}

// serve starts a server at addr with handlers by code.
func (cl *cluster) serve(addr string, handlers map[int32]answer) {
	mux := remoting.NewMux()
	for code, h := range handlers {
		mux.Handle(func(ctx context.Context, conn *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
			cl.mu.Lock()
			cl.calls[addr] = append(cl.calls[addr], req)
			special := cl.answers[addr][code]
			cl.mu.Unlock()
			if special != nil {
				if resp, err := special(ctx, conn, req); resp != remoting.Later {
					return resp, err
				}
			}
			return h(ctx, conn, req)
		}, code)
	}
	opts := remoting.ServerOptions{Options: remoting.Options{Mux: mux}}
	if b := cl.brokerAt(addr); b != nil {
		opts.OnClose = func(conn *remoting.Conn, _ error) { b.forget(conn) }
	}
	s, err := remoting.NewServer(opts)
	if err != nil {
		cl.t.Fatal(err)
	}
	cl.mu.Lock()
	cl.servers[addr] = s
	cl.mu.Unlock()
}

func (cl *cluster) brokerAt(addr string) *fakeBroker {
	for _, b := range cl.brokers {
		if b.addr == addr {
			return b
		}
	}
	return nil
}

func (cl *cluster) dial(_ context.Context, _, addr string) (net.Conn, error) {
	cl.mu.Lock()
	cl.dials[addr]++
	s := cl.servers[addr]
	refused := cl.refused[addr]
	cl.mu.Unlock()
	if s == nil || refused {
		return nil, errors.New("connection refused")
	}
	ours, theirs := net.Pipe()
	s.ServeConn(theirs)
	return ours, nil
}

// answer sets how the server at addr answers a code; nil undoes it.
func (cl *cluster) answer(addr string, code int32, a answer) {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	if cl.answers[addr] == nil {
		cl.answers[addr] = make(map[int32]answer)
	}
	cl.answers[addr][code] = a
}

// always answers with a code.
func always(code int32) answer {
	return func(context.Context, *remoting.Conn, *remoting.Command) (*remoting.Command, error) {
		return remoting.NewResponse(code, "scripted"), nil
	}
}

// silent never answers.
func silent(ctx context.Context, _ *remoting.Conn, _ *remoting.Command) (*remoting.Command, error) {
	<-ctx.Done()
	return nil, nil
}

// hangUp closes the connection instead of answering.
func hangUp(_ context.Context, conn *remoting.Conn, _ *remoting.Command) (*remoting.Command, error) {
	conn.Close() //nolint:errcheck // never fails
	return nil, nil
}

func (cl *cluster) refuse(addr string, refused bool) {
	cl.mu.Lock()
	cl.refused[addr] = refused
	s := cl.servers[addr]
	cl.mu.Unlock()
	if refused {
		for _, conn := range s.Conns() {
			conn.Close() //nolint:errcheck // never fails
		}
	}
}

// dialled returns how often somebody wanted a connection to addr.
func (cl *cluster) dialled(addr string) int {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return cl.dials[addr]
}

// requests returns what the server at addr was asked with a code.
func (cl *cluster) requests(addr string, code int32) []*remoting.Command {
	cl.mu.Lock()
	defer cl.mu.Unlock()
	return slices.DeleteFunc(slices.Clone(cl.calls[addr]), func(c *remoting.Command) bool { return c.Code != code })
}

// client returns a client of the cluster that is closed at the end.
func (cl *cluster) client(id string, change ...func(*Options)) *Client {
	cl.t.Helper()
	opts := Options{NameServers: []string{nsAddr + ";" + nsAddr2}, ClientID: id, Dial: cl.dial}
	for _, f := range change {
		f(&opts)
	}
	c, err := New(opts)
	if err != nil {
		cl.t.Fatal(err)
	}
	return c
}

// route answers 105.
func (cl *cluster) route(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
	var h remoting.RouteInfoRequest
	if err := remoting.DecodeHeader(req.Ext, &h); err != nil {
		return nil, err
	}
	var data remoting.TopicRouteData
	cl.mu.Lock()
	defer cl.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(cl.brokers)) {
		b := cl.brokers[name]
		b.mu.Lock()
		if n, ok := b.topics[h.Topic]; ok {
			addrs := map[int64]string{0: b.addr}
			maps.Copy(addrs, b.replicas)
			data.BrokerDatas = append(data.BrokerDatas, remoting.BrokerData{Cluster: "C", BrokerName: name, BrokerAddrs: addrs})
			data.QueueDatas = append(data.QueueDatas, remoting.QueueData{BrokerName: name, ReadQueueNums: n, WriteQueueNums: n, Perm: 6})
		}
		b.mu.Unlock()
	}
	if len(data.QueueDatas) == 0 {
		return remoting.NewResponse(remoting.CodeTopicNotExist, "no route of "+h.Topic), nil
	}
	return body(&data), nil
}

func body(b remoting.Body) *remoting.Command {
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.Body = remoting.EncodeBody(b)
	return resp
}

func header(h remoting.Header) *remoting.Command {
	resp := remoting.NewResponse(remoting.CodeSuccess, "")
	resp.SetHeader(h)
	return resp
}
