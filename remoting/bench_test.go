package remoting

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// sendRequest is a SEND_MESSAGE_V2 as the Java client sends it.
func sendRequest(typ HeaderType, body int) *Command {
	return &Command{
		Code: ReqSendMessageV2, Language: LanguageJava, Version: 493, Opaque: 12345, Header: typ,
		Ext: Fields{
			{"a", "BenchProducer"}, {"b", "BenchTopic"}, {"c", "TBW102"}, {"d", "4"}, {"e", "3"}, {"f", "0"},
			{"g", "1795989627167"}, {"h", "0"},
			{"i", "KEYS\x01key-1234 key-5678\x02UNIQ_KEY\x01FD000000000000000000000000000002310F5FFD2B2794D510430005\x02WAIT\x01true\x02TAGS\x01a\x02"},
			{"j", "0"}, {"k", "false"}, {"m", "false"}, {"n", "broker-a"},
		},
		Body: bytes.Repeat([]byte{'x'}, body),
	}
}

func sendResponse() *SendMessageResponse {
	return &SendMessageResponse{
		MsgID: "7F0000010000634300000000000011C2", QueueID: 3, QueueOffset: 123456, MsgRegion: "DefaultRegion", TraceOn: "true",
		TransactionID: "FD000000000000000000000000000002310F5FFD2B2794D510430005",
	}
}

func BenchmarkDecodeFrame(b *testing.B) {
	for _, typ := range []HeaderType{HeaderJSON, HeaderBinary} {
		b.Run("header="+typ.String(), func(b *testing.B) {
			frame, err := AppendFrame(nil, sendRequest(typ, 1<<10))
			if err != nil {
				b.Fatal(err)
			}
			h, err := parseHead(frame)
			if err != nil {
				b.Fatal(err)
			}
			var d headerDecoder // a connection has one
			b.SetBytes(int64(len(frame)))
			b.ReportAllocs()
			defer reportCPU(b)()
			for b.Loop() {
				in := new(inbound)
				if err := d.decode(h.typ, frame[prefixLen:prefixLen+h.headerLen], in); err != nil {
					b.Fatal(err)
				}
				in.cmd.Body = bytes.Clone(frame[prefixLen+h.headerLen:])
			}
		})
	}
}

// BenchmarkSendRoundTrip is what the protocol costs a broker for one message:
// decode the frame and its typed header, encode the typed answer.
func BenchmarkSendRoundTrip(b *testing.B) {
	for _, typ := range []HeaderType{HeaderJSON, HeaderBinary} {
		b.Run("header="+typ.String(), func(b *testing.B) {
			frame, err := AppendFrame(nil, sendRequest(typ, 1<<10))
			if err != nil {
				b.Fatal(err)
			}
			h, err := parseHead(frame)
			if err != nil {
				b.Fatal(err)
			}
			var d headerDecoder
			var out []byte
			b.ReportAllocs()
			defer reportCPU(b)()
			for b.Loop() {
				in := new(inbound)
				if err := d.decode(h.typ, frame[prefixLen:prefixLen+h.headerLen], in); err != nil {
					b.Fatal(err)
				}
				req := &in.cmd
				req.Body = bytes.Clone(frame[prefixLen+h.headerLen:])
				if _, err := DecodeSendMessage(req); err != nil {
					b.Fatal(err)
				}
				resp := NewResponse(CodeSuccess, "")
				resp.Header, resp.Opaque = typ, req.Opaque
				resp.SetHeader(sendResponse())
				if out, err = AppendFrame(out[:0], resp); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkEncodeFrame(b *testing.B) {
	for _, typ := range []HeaderType{HeaderJSON, HeaderBinary} {
		b.Run("header="+typ.String(), func(b *testing.B) {
			c := sendRequest(typ, 1<<10)
			var out []byte
			b.ReportAllocs()
			defer reportCPU(b)()
			for b.Loop() {
				var err error
				if out, err = AppendFrame(out[:0], c); err != nil {
					b.Fatal(err)
				}
			}
			b.SetBytes(int64(len(out)))
		})
	}
}

// BenchmarkFields compares looking up the 13 fields of a send in a slice and in
// a map, made for it.
func BenchmarkFields(b *testing.B) {
	ext := sendRequest(HeaderJSON, 0).Ext
	names := strings.Split("abcdefghijkmn", "")
	b.Run("kind=slice", func(b *testing.B) {
		b.ReportAllocs()
		defer reportCPU(b)()
		for b.Loop() {
			f := make(Fields, 0, 16)
			f = append(f, ext...)
			for _, n := range names {
				if _, ok := f.Get(n); !ok {
					b.Fatal(n)
				}
			}
		}
	})
	b.Run("kind=map", func(b *testing.B) {
		b.ReportAllocs()
		defer reportCPU(b)()
		for b.Loop() {
			m := make(map[string]string, len(ext))
			for _, f := range ext {
				m[f.Name] = f.Value
			}
			for _, n := range names {
				if _, ok := m[n]; !ok {
					b.Fatal(n)
				}
			}
		}
	})
}

// BenchmarkEcho is a round trip over loopback: callers pipeline on conns
// connections, the handler decodes a send and answers it.
func BenchmarkEcho(b *testing.B) {
	for _, inline := range []bool{false, true} {
		for _, conns := range []int{1, 64} {
			b.Run(fmt.Sprintf("inline=%v/conns=%d/callers=64", inline, conns), func(b *testing.B) {
				benchmarkEcho(b, inline, conns, 64)
			})
		}
	}
}

func benchmarkEcho(b *testing.B, inline bool, conns, callers int) {
	mux := NewMux()
	mux.Handle(func(_ context.Context, _ *Conn, req *Command) (*Command, error) {
		if _, err := DecodeSendMessage(req); err != nil {
			return nil, err
		}
		resp := NewResponse(CodeSuccess, "")
		resp.SetHeader(sendResponse())
		return resp, nil
	}, ReqSendMessageV2)
	opts := Options{Mux: mux}
	if inline {
		opts.Inline = func(*Command) bool { return true }
	}
	s, err := NewServer(ServerOptions{Options: opts})
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close() //nolint:errcheck // never fails
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	go s.Serve(l) //nolint:errcheck // ends with the server
	var cl []*Client
	for range conns {
		c := NewClient(ClientOptions{Timeout: time.Minute})
		defer c.Close() //nolint:errcheck // never fails
		cl = append(cl, c)
	}
	ctx := b.Context()
	addr := l.Addr().String()
	req := sendRequest(HeaderJSON, 1<<10)
	work := make(chan struct{}, 1024)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for range work {
				resp, err := cl[i%conns].Invoke(ctx, addr, req)
				if err == nil {
					err = resp.Err()
				}
				if err != nil {
					b.Error(err)
				}
			}
		})
	}
	b.ReportAllocs()
	defer reportCPU(b)()
	for b.Loop() {
		work <- struct{}{}
	}
	close(work)
	wg.Wait()
}
