package namesrv

import (
	"context"
	"net"
	"strings"
	"testing"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

// A source yields choices from the bytes of a fuzz input, zeros at its end.
type source struct{ data []byte }

func (s *source) byte() byte {
	if len(s.data) == 0 {
		return 0
	}
	b := s.data[0]
	s.data = s.data[1:]
	return b
}

func (s *source) pick(from ...string) string { return from[int(s.byte())%len(from)] }

func (s *source) bytes() []byte {
	n := min(int(s.byte()), len(s.data))
	b := s.data[:n]
	s.data = s.data[n:]
	return b
}

// request makes a request that mostly makes sense, with names from so few that
// they meet again.
func (s *source) request(codes []int32) *remoting.Command {
	code := codes[int(s.byte())%len(codes)]
	topic := func() string { return s.pick("T1", "T2", "T3", syncTopicPrefix+"b1", "a\nb", "") }
	id := func() remoting.BrokerIdentity {
		return remoting.BrokerIdentity{
			BrokerName: s.pick("b1", "b2", "C1", ""), BrokerAddr: s.pick("127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "x"),
			ClusterName: s.pick("C1", "C2", ""), BrokerID: int64(int8(s.byte())) % 3,
		}
	}
	var h remoting.Header
	var body []byte
	switch code {
	case remoting.ReqRegisterBroker:
		r := &remoting.RegisterBrokerRequest{BrokerIdentity: id(), EnableActingMaster: s.byte()%2 == 0, HeartbeatTimeoutMillis: int64(int8(s.byte())) << s.byte()}
		b := &remoting.RegisterBroker{Topics: remoting.TopicConfigTable{Topics: map[string]remoting.TopicConfig{}}}
		b.Topics.DataVersion = remoting.DataVersion{Counter: int64(s.byte() % 3), StateVersion: int64(s.byte() % 2)}
		for range s.byte() % 5 {
			name := topic()
			b.Topics.Topics[name] = topicConfig(name, int32(int8(s.byte())), int32(s.byte()))
		}
		if s.byte()%4 == 0 {
			b.Topics.MappingInfos = remoting.RawJSON(s.pick(`{"T1":{"bname":"b1","topic":"T1"}}`, `{"T2":{"bname":"b2","x":{0:1}}}`, `[]`, `{"T1":null}`))
		}
		body = remoting.EncodeBody(b)
		switch s.byte() % 8 {
		case 0:
			r.Compressed = true
			body, _ = b.EncodeCompressed() // what cannot be written is sent as nothing
		case 1:
			body = s.bytes()
		}
		h = r
	case remoting.ReqUnregisterBroker, remoting.ReqQueryDataVersion:
		i := id()
		h, body = &i, s.bytes()
		if s.byte()%2 == 0 {
			body = remoting.EncodeBody(&remoting.DataVersion{Counter: 1})
		}
	case remoting.ReqBrokerHeartbeat:
		i := id()
		h = &remoting.BrokerHeartbeatRequest{ClusterName: i.ClusterName, BrokerAddr: i.BrokerAddr, BrokerName: i.BrokerName}
	case remoting.ReqGetRouteInfoByTopic:
		h = &remoting.RouteInfoRequest{Topic: topic()}
	case remoting.ReqRegisterTopicInNamesrv:
		h = &remoting.TopicRequest{Topic: topic()}
		q := remoting.QueueData{BrokerName: id().BrokerName, ReadQueueNums: int32(int8(s.byte())), Perm: int32(s.byte())}
		body = remoting.EncodeBody(&remoting.TopicRouteData{QueueDatas: []remoting.QueueData{q}})
		if s.byte()%4 == 0 {
			body = s.bytes()
		}
	case remoting.ReqDeleteTopicInNamesrv:
		h = &remoting.DeleteTopicRequest{Topic: topic(), ClusterName: id().ClusterName}
	case remoting.ReqWipeWritePermOfBroker, remoting.ReqAddWritePermOfBroker:
		h = &remoting.BrokerNameRequest{BrokerName: id().BrokerName}
	case remoting.ReqPutKVConfig:
		h = &remoting.PutKVRequest{Namespace: s.pick(orderNamespace, "NS", ""), Key: topic(), Value: string(s.bytes())}
	case remoting.ReqGetKVConfig, remoting.ReqDeleteKVConfig:
		h = &remoting.KVRequest{Namespace: s.pick(orderNamespace, "NS", "NS2"), Key: topic()}
	case remoting.ReqUpdateNamesrvConfig:
		body = []byte(s.pick("orderMessageEnable=", "supportActingMaster=", "deleteTopicWithBrokerRegistration=", "x=") + s.pick("true", "false", "1"))
		if s.byte()%4 == 0 {
			body = s.bytes()
		}
	}
	req := remoting.NewRequest(code, h)
	req.Body = body
	if s.byte()%8 == 0 { // fields of the fuzzer's own
		req.Ext.Set(s.pick("topic", "brokerName", "brokerId", "cluster", zoneField), string(s.bytes()))
	}
	return req
}

// FuzzRequests sends sequences of requests over two connections, one of which
// may close.
func FuzzRequests(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte("\x04\x00\x00\x00\x00\x00\x00\x00\x01\x00\x03\x00\x04\x06\x01\x04\x06\x02\x04\x06\x00\x02\x01\x04\x00\x01\x01\x00\x01\x00\x00\x00\x01"))
	f.Add([]byte("register, route, wipe, unregister: whatever these letters choose to be, it has to be answered"))
	f.Fuzz(func(t *testing.T, data []byte) {
		mem := memfs.New()
		s, err := newServer(Options{FS: mem, Dir: kvDir})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Shutdown(context.Background()) //nolint:errcheck // the end
		dial := func(context.Context, string, string) (net.Conn, error) {
			ours, theirs := net.Pipe()
			s.server.ServeConn(theirs)
			return ours, nil
		}
		cl := remoting.NewClient(remoting.ClientOptions{Dial: dial})
		defer cl.Close() //nolint:errcheck // never fails
		codes := append(s.mux().Codes(), 9999)
		src := &source{data}
		for range 200 {
			if len(src.data) == 0 {
				break
			}
			addr := src.pick("one:1", "two:1", "two:1", "two:1")
			if src.byte()%32 == 1 {
				c, err := cl.Conn(t.Context(), addr)
				if err != nil {
					t.Fatal(err)
				}
				c.Close() //nolint:errcheck // never fails
			}
			req := src.request(codes)
			resp, err := cl.Invoke(t.Context(), addr, req)
			if err != nil {
				t.Fatalf("%v: %v", req, err)
			}
			if strings.HasPrefix(resp.Remark, "internal error") {
				t.Fatalf("%v: %v", req, resp)
			}
		}
		s.expire()
		checkInvariants(t, s.routes)
		if got, want := s.kv.mu.cost, s.kv.table.Load().cost(); got != want {
			t.Errorf("KV config counted as %d bytes, it has %d", got, want)
		}
		openKV(t, mem)
	})
}
