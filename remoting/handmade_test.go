package remoting

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// strictServer answers every known code: it decodes the typed header, if the
// code has one, and the JSON body, if it has to have one, and says success or
// what is wrong. It stands for a broker as far as this package goes.
func strictServer(t *testing.T) *testServer {
	t.Helper()
	mux := NewMux()
	for _, c := range RequestCodes() {
		mux.Handle(func(_ context.Context, _ *Conn, req *Command) (*Command, error) {
			if h := RequestHeader(req.Code); h != nil {
				if err := DecodeHeader(req.Ext, h); err != nil {
					return nil, err
				}
			}
			if body := requestBodies[req.Code]; body != nil {
				if err := DecodeBody(req.Body, body()); err != nil {
					return nil, err
				}
			}
			return NewResponse(CodeSuccess, ""), nil
		}, c.Code)
	}
	srv, err := NewServer(ServerOptions{Options: Options{Mux: mux}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go srv.Serve(l)                   //nolint:errcheck // ends with the server
	t.Cleanup(func() { srv.Close() }) //nolint:errcheck // never fails
	return &testServer{Server: srv, addr: l.Addr().String()}
}

// What a server that only knows the protocol does with a hand-made frame.
const (
	wantAnswer  = "answer"  // any code; here success
	wantClose   = "close"   // the connection closes
	wantSilence = "silence" // nothing, and the connection works on
)

// handMade says what we do with those of the 99 frames that are not answered
// with success: by the protocol, whatever the two versions of upstream do.
var handMade = map[string]string{
	"unknown code, name server":      "3  request type 9999 not supported",
	"unknown code, broker":           "3  request type 9999 not supported",
	"unknown code, oneway":           wantSilence,
	"unknown code, binary header":    "3  request type 9999 not supported",
	"response nobody asked for":      wantSilence,
	"route without topic field":      "1 ext field topic is missing",
	"route without extFields":        "1 ext field topic is missing",
	"send, no producerGroup":         "1 ext field producerGroup is missing",
	"send, queueId not a number":     `1 ext field queueId: "zero" is not a 32-bit integer`,
	"heartbeat without body":         "1 the body is empty",
	"heartbeat, not JSON":            "1 body: json: offset 1: unexpected 'o' instead of a name",
	"lock without body":              "1 the body is empty",
	"serialize type 5":               wantClose,
	"header is not JSON":             wantClose,
	"header is an empty object":      "3  request type 0 not supported",
	"header length beyond the frame": wantClose,
	"frame length 0":                 wantClose,
	"frame length 3":                 wantClose,
	"frame length 16777217":          wantClose,
	"frame length negative":          wantClose,
	"HTTP":                           wantClose,
	"binary header cut short":        wantClose,
}

// notRecorded are frames that the recorder could not keep as they were.
var notRecorded = map[string][]byte{
	"frame length 0":        make([]byte, 8),
	"frame length 3":        append(binary.BigEndian.AppendUint32(nil, 3), 0, 0, 0),
	"frame length 16777217": append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 16777217), 10), "0000000000"...),
	"frame length negative": append(binary.BigEndian.AppendUint32(nil, 0x80000000), make([]byte, 8)...),
	"HTTP":                  []byte("GET / HTTP/1.1\r\nHost: x\r\n\r\n"),
}

type handMadeCase struct {
	name  string
	bytes []byte
}

// handMadeCases pairs the names of the recorded cases with the bytes of their
// connections, which were made one after the other.
func handMadeCases(t *testing.T, version string) (cases []handMadeCase) {
	t.Helper()
	answers, err := readGzip(filepath.Join(wireDir, "raw__"+version+"__rawframes.answers.txt.gz"))
	if err != nil {
		t.Fatal(err)
	}
	var conns []string
	sent := make(map[string][]byte)
	for _, r := range loadRecordings(t) {
		if r.file != "raw__"+version+"__rawframes" {
			continue
		}
		if _, ok := sent[r.Conn]; !ok {
			conns = append(conns, r.Conn)
			sent[r.Conn] = nil
		}
		if r.Dir == "c2s" && r.Kind != "close" {
			sent[r.Conn] = append(sent[r.Conn], r.raw(t)...)
		}
	}
	for line := range strings.Lines(string(answers)) {
		var c struct {
			Case string `json:"case"`
		}
		if err := json.Unmarshal([]byte(line), &c); err != nil {
			t.Fatal(err)
		}
		if c.Case == "" {
			continue
		}
		data := notRecorded[c.Case]
		if c.Case != "frame length 16777217" {
			if len(conns) == 0 {
				t.Fatalf("no connection is left for %s", c.Case)
			}
			if data == nil {
				data = sent[conns[0]]
			}
			conns = conns[1:]
		}
		cases = append(cases, handMadeCase{c.Case, data})
	}
	if len(conns) > 0 || len(cases) != 99 {
		t.Fatalf("%d cases, %d connections are left", len(cases), len(conns))
	}
	return cases
}

// TestHandMadeFrames sends the 99 hand-made frames of the recordings, each on a
// connection of its own, and looks at what comes back. A well-behaved client
// works beside all of it.
func TestHandMadeFrames(t *testing.T) {
	s := strictServer(t)
	good := NewClient(ClientOptions{Timeout: patience})
	defer good.Close() //nolint:errcheck // never fails
	checked := 0
	for _, version := range []string{"4.9.4", "5.4.0"} {
		for _, c := range handMadeCases(t, version) {
			t.Run(version+"/"+c.name, func(t *testing.T) {
				want, ok := handMade[c.name]
				if !ok {
					want = wantAnswer
				} else {
					checked++
				}
				p := dialRaw(t, s.addr)
				if c.name == "frame in two pieces" {
					p.send(c.bytes[:9])
					p.send(c.bytes[9:])
				} else {
					p.send(c.bytes)
				}
				p.check(want, c.bytes)
				if resp, err := good.Invoke(context.Background(), s.addr, NewRequest(ReqGetMaxOffset, &MaxOffsetRequest{Topic: "T"})); err != nil || resp.Code != CodeSuccess {
					t.Errorf("the good client: %v, %v", resp, err)
				}
			})
		}
	}
	if checked != 2*len(handMade) {
		t.Errorf("%d of %d expectations were looked at", checked, 2*len(handMade))
	}
}

func (p *rawPeer) check(want string, sent []byte) {
	p.t.Helper()
	switch want {
	case wantClose:
		p.closed()
		return
	case wantSilence:
		p.send(request(ReqHeartBeat, 4711, "{}"))
		if got := p.read(); got.Opaque != 4711 {
			p.t.Errorf("got %v, want silence", got)
		}
		return
	}
	requests := make(map[int32]*Command)
	for len(sent) > 0 {
		req, n, err := DecodeFrame(sent)
		if err != nil {
			p.t.Fatal(err)
		}
		sent = sent[n:]
		requests[req.Opaque] = req
	}
	for range len(requests) { // in any order
		got := p.read()
		req := requests[got.Opaque]
		delete(requests, got.Opaque)
		if req == nil || got.Header != req.Header || !got.IsResponse() {
			p.t.Errorf("answer %v with header %v to %v", got, got.Header, req)
		}
		text := fmt.Sprintf("%d %s", got.Code, got.Remark)
		if want == wantAnswer {
			text = strings.TrimSpace(strings.Replace(text, "0", wantAnswer, 1))
		}
		if text != want {
			p.t.Errorf("got %q, want %q", text, want)
		}
	}
}

// TestMemoryOfHostileLengths: connections that announce the largest frames and
// send little get little memory: at most growth times what they sent, and
// constants.
func TestMemoryOfHostileLengths(t *testing.T) {
	const conns = 100
	const sent = 20_000
	// What each connection may take: its goroutines and structures, the read
	// buffer, the memory of the part.
	const bound = 48<<10 + growth*sent
	s := startServer(t, ServerOptions{})
	header := `{"code":7001}`
	for name, prefix := range map[string][]byte{
		"body":          append(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, MaxFrameSize-4), uint32(len(header))), header...),
		"JSON header":   binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, MaxFrameSize-4), MaxHeaderSize),
		"binary header": binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, MaxFrameSize-4), 1<<24|MaxHeaderSize),
	} {
		t.Run(name, func(t *testing.T) {
			frame := append(bytes.Clone(prefix), bytes.Repeat([]byte{' '}, sent)...)
			before := heapInUse()
			var peers []*rawPeer
			for range conns {
				p := dialRaw(t, s.addr)
				p.send(frame)
				peers = append(peers, p)
			}
			charged := int64(conns * (sent - smallPart - minReadBuffer))
			s.waitFor(t, "all to be read", func(st Stats) bool { return st.RequestBytes >= charged })
			if used := heapInUse() - before; used > conns*bound {
				t.Errorf("%d connections take %d bytes, %d each; the bound is %d", conns, used, used/conns, bound)
			} else {
				t.Logf("%d bytes for each connection; announced 16 MiB, sent %d", used/conns, sent)
			}
			if st := s.Stats(); st.RequestBytes > conns*growth*sent {
				t.Errorf("%d bytes are charged", st.RequestBytes)
			}
			for _, p := range peers {
				p.nc.Close() //nolint:errcheck // on purpose
			}
			s.waitFor(t, "the end of all", func(st Stats) bool { return st.Conns == 0 && st.RequestBytes == 0 })
		})
	}
}

// TestMemoryOfIdleConnections: what a connection costs that has sent a request
// and is silent now.
func TestMemoryOfIdleConnections(t *testing.T) {
	const conns, bound = 400, 24 << 10
	s := startServer(t, ServerOptions{})
	frame := mustFrame(sendRequest(HeaderJSON, 1<<10))
	before := heapInUse()
	for range conns {
		p := dialRaw(t, s.addr)
		p.send(frame)
		if got := p.read(); got.Code != CodeRequestCodeNotSupported {
			t.Fatalf("got %v", got)
		}
		p.buf = nil
	}
	used := heapInUse() - before
	t.Logf("%d bytes for each connection, both sides", used/conns)
	if used > conns*bound {
		t.Errorf("%d connections take %d bytes, %d each; the bound is %d", conns, used, used/conns, bound)
	}
}

func heapInUse() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapInuse + m.StackInuse)
}

// TestBombs: inputs that are small and want to become large, or to take long.
func TestBombs(t *testing.T) {
	s := strictServer(t)
	for name, frame := range map[string][]byte{
		"nested lists":     jsonFrame(`{"code":34,"x":` + strings.Repeat("[", 1<<20)),
		"nested objects":   jsonFrame(`{"code":34,"extFields":{"a":` + strings.Repeat(`{"a":`, 1<<18)),
		"many fields":      jsonFrame(`{"code":34,"extFields":{` + strings.Repeat(`"a":"","b":"",`, 1<<16)),
		"endless string":   jsonFrame(`{"code":34,"remark":"` + strings.Repeat(`\u0041`, 1<<18)),
		"many empty pairs": rawFrame(HeaderBinary, "\x00\x22\x00\x01\xdf\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00\x00"+binaryFields(1<<16), nil),
	} {
		t.Run(name, func(t *testing.T) {
			p := dialRaw(t, s.addr)
			p.nc.Write(frame) //nolint:errcheck // the server may have closed already
			p.closed()
		})
	}
	for name, body := range map[string]string{
		"nested body":        `{"clientID":` + strings.Repeat("[", 1<<20),
		"many consumers":     `{"consumerDataSet":[` + strings.Repeat("{},", 1<<18) + `{}]}`,
		"many members":       `{` + strings.Repeat(`"a":0,`, 1<<20) + `"b":0}`,
		"many subscriptions": `{"consumerDataSet":[{"subscriptionDataSet":[` + strings.Repeat(`{},`, 1<<18) + `{}]}]}`,
		"object as a key":    `{"consumerDataSet":` + strings.Repeat("{", 1<<20),
	} {
		t.Run(name, func(t *testing.T) {
			p := dialRaw(t, s.addr)
			p.send(request(ReqHeartBeat, 9, body))
			if got := p.read(); got.Opaque != 9 || got.Code != CodeSystemError || !strings.HasPrefix(got.Remark, "body: ") {
				t.Errorf("got %v", got)
			}
		})
	}
	t.Run("inflating registration", func(t *testing.T) {
		b := RegisterBroker{Topics: TopicConfigTable{Topics: map[string]TopicConfig{}}}
		for i := range 20 { // 20 MB in about 20 KB
			name := fmt.Sprint(i, strings.Repeat("x", maxRegisterPart-100))
			b.Topics.Topics[name] = TopicConfig{TopicName: name, TopicFilterType: FilterTypeSingle}
		}
		data, err := b.EncodeCompressed()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := DecodeRegisterBroker(data, true, Version5_0_0); err == nil || !strings.Contains(err.Error(), "more than") {
			t.Errorf("%d bytes: %v", len(data), err)
		}
		var e *FieldError
		if errors.As(err, &e) {
			t.Error("no field is wrong")
		}
	})
}
