package broker

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// startBench starts a broker on the disk, over TCP.
func startBench(b *testing.B) (*Broker, *remoting.Client) {
	b.Helper()
	br := startTCP(b, func(o *Options) {
		o.FS, o.Dir = nil, b.TempDir()
		o.Store = gantry.Options{CommitLogFileSize: 256 << 20, DiskWarningPercent: 100}
	})
	client := remoting.NewClient(remoting.ClientOptions{Timeout: time.Minute})
	b.Cleanup(func() { client.Close() }) //nolint:errcheck // never fails
	return br, client
}

// BenchmarkSend measures messages of 1 KiB that 64 producers send over one
// connection, each waiting for its answer, and in the same run what the parts
// cost by themselves: the store, and requests that need nothing of it. CPU time
// is that of the whole process, the producers included.
func BenchmarkSend(b *testing.B) {
	payload := make([]byte, 1<<10)
	run := func(b *testing.B, producers int, one func() error) {
		b.Helper()
		b.SetBytes(int64(len(payload)))
		b.ReportAllocs()
		var left atomic.Int64
		left.Store(int64(b.N))
		cpu := cpuTime()
		b.ResetTimer()
		var wg sync.WaitGroup
		for range producers {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					if err := one(); err != nil {
						b.Error(err)
						return
					}
				}
			})
		}
		wg.Wait()
		b.StopTimer()
		b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/msg")
	}
	b.Run("op=send/producers=64", func(b *testing.B) {
		br, client := startBench(b)
		h := sendHeader("T", 0, "KEYS", "k", message.PropUniqKey, "7F00000119635FFD2B2794F4DD1C0000")
		req := remoting.NewRequest(remoting.ReqSendMessageV2, h)
		req.Body = payload
		run(b, 64, func() error {
			resp, err := client.Invoke(context.Background(), br.Addr(), req)
			if err == nil {
				err = resp.Err()
			}
			return err
		})
	})
	b.Run("op=ask/producers=64", func(b *testing.B) {
		br, client := startBench(b)
		req := remoting.NewRequest(remoting.ReqGetMinOffset, &remoting.QueueRequest{Topic: "T"})
		req.Body = payload
		run(b, 64, func() error {
			_, err := client.Invoke(context.Background(), br.Addr(), req)
			return err
		})
	})
	b.Run("op=put/producers=64", func(b *testing.B) {
		br, _ := startBench(b)
		run(b, 64, func() error {
			_, err := br.store.Put(context.Background(), &message.Message{
				Topic: "T", Body: payload, Properties: message.NewProperties("KEYS", "k", message.PropUniqKey, "7F00000119635FFD2B2794F4DD1C0000"),
			})
			return err
		})
	})
}

// A script is a connection on which the same requests come over and over, some
// at a time, from a client that takes no CPU. Its end comes when the reader wants
// more than left bytes, so whatever was read has been answered then.
type script struct {
	net.Conn // the addresses
	requests []byte
	at, left int
	read     chan struct{} // closed when nothing is left
}

func (s *script) Read(b []byte) (int, error) {
	if s.left == 0 {
		close(s.read)
		return 0, io.EOF
	}
	n := copy(b[:min(len(b), s.left)], s.requests[s.at:])
	s.at = (s.at + n) % len(s.requests)
	s.left -= n
	return n, nil
}

func (s *script) Write(b []byte) (int, error) { return len(b), nil }

// BenchmarkSendOnly measures what a message of 1 KiB costs the broker without
// sockets and clients, when eight come at a time as a Java client sends them.
func BenchmarkSendOnly(b *testing.B) {
	const atOnce = 8
	br, client := startBench(b)
	h := sendHeader("T", 0, message.PropKeys, "key-1234 key-5678", message.PropUniqKey, "FD000000000000000000000000000002310F5FFD2B2794D510430005",
		message.PropWait, "true", message.PropTags, "a")
	req := remoting.NewRequest(remoting.ReqSendMessageV2, h)
	req.Body = make([]byte, 1<<10)
	if resp, err := client.Invoke(b.Context(), br.Addr(), req); err != nil || resp.Err() != nil { // makes the topic
		b.Fatal(resp, err)
	}
	frame := frameOf(b, req.Code, 1, h, req.Body)
	s := &script{Conn: dialTCP(b, br), requests: bytes.Repeat(frame, atOnce), left: b.N * len(frame), read: make(chan struct{})}
	b.ReportAllocs()
	cpu := cpuTime()
	b.ResetTimer()
	br.server.ServeConn(s)
	<-s.read
	if err := br.store.WaitDispatched(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.StopTimer()
	b.ReportMetric(float64(cpuTime()-cpu)/float64(b.N), "cpu-ns/msg")
	if got := br.stats.puts.sum.Load(); got != int64(b.N)+1 {
		b.Errorf("%d messages were stored, want %d", got, b.N+1)
	}
}

// BenchmarkLongPoll measures how long a message takes from its producer, until a
// consumer whose pull is held has it, both over TCP.
func BenchmarkLongPoll(b *testing.B) {
	for _, held := range []int{1, 1000} {
		b.Run(fmt.Sprintf("held=%d", held), func(b *testing.B) {
			br, client := startBench(b)
			consumer := remoting.NewClient(remoting.ClientOptions{Timeout: time.Minute})
			defer consumer.Close() //nolint:errcheck // never fails
			must := func(resp *remoting.Command, err error) *remoting.Command {
				if err != nil {
					b.Fatal(err)
				}
				return resp
			}
			req := remoting.NewRequest(remoting.ReqSendMessageV2, sendHeader("T", 0))
			req.Body = make([]byte, 1<<10)
			must(client.Invoke(b.Context(), br.Addr(), req))
			for range held - 1 { // others, that want something else
				h := holdHeader("T", 0, 0)
				h.Subscription = "other"
				go client.Invoke(b.Context(), br.Addr(), remoting.NewRequest(remoting.ReqPullMessage, h)) //nolint:errcheck // it ends with the benchmark
			}
			if err := br.store.WaitDispatched(b.Context()); err != nil {
				b.Fatal(err)
			}
			var took []time.Duration
			b.ResetTimer()
			for next := int64(1); next <= int64(b.N); next++ {
				done := make(chan time.Time, 1)
				go func() {
					resp, err := consumer.Invoke(b.Context(), br.Addr(), remoting.NewRequest(remoting.ReqPullMessage, holdHeader("T", 0, next)))
					if err != nil || resp.Code != 0 {
						b.Errorf("pull: %v, %v", resp, err)
					}
					done <- time.Now()
				}()
				for br.holds.count.Load() < int64(held) {
					runtime.Gosched()
				}
				start := time.Now()
				must(client.Invoke(b.Context(), br.Addr(), req))
				took = append(took, (<-done).Sub(start))
			}
			b.StopTimer()
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)/2]), "p50-ns")
			b.ReportMetric(float64(took[len(took)*99/100]), "p99-ns")
		})
	}
}

// BenchmarkPull measures pulls of 32 messages of 1 KiB.
func BenchmarkPull(b *testing.B) {
	br, client := startBench(b)
	req := remoting.NewRequest(remoting.ReqSendMessageV2, sendHeader("T", 0))
	req.Body = make([]byte, 1<<10)
	for range 32 {
		if resp, err := client.Invoke(b.Context(), br.Addr(), req); err != nil || resp.Code != 0 {
			b.Fatal(resp, err)
		}
	}
	if err := br.store.WaitDispatched(b.Context()); err != nil {
		b.Fatal(err)
	}
	pull := remoting.NewRequest(remoting.ReqPullMessage, pullHeader("T", 0, 0))
	b.SetBytes(32 << 10)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := client.Invoke(b.Context(), br.Addr(), pull)
		if err != nil || resp.Code != 0 || len(resp.Body) < 32<<10 {
			b.Fatal(resp, err)
		}
	}
}

// BenchmarkStart measures how long a broker takes until it is ready, name server
// apart.
func BenchmarkStart(b *testing.B) {
	for _, c := range []struct {
		name   string
		topics int
	}{{"store=new", 0}, {"store=1000-topics", 1000}} {
		b.Run(c.name, func(b *testing.B) {
			dir := b.TempDir()
			opts := Options{Dir: dir, Config: NewConfig(), Store: gantry.Options{DiskWarningPercent: 100}}
			opts.Config.ListenPort = 0
			start := func() *Broker {
				br, err := Start(b.Context(), opts)
				if err != nil {
					b.Fatal(err)
				}
				return br
			}
			br := start()
			for i := range c.topics {
				t := remoting.TopicConfig{TopicName: name("T", i), ReadQueueNums: 4, WriteQueueNums: 4, Perm: 6, TopicFilterType: remoting.FilterTypeSingle}
				if _, err := br.topics.Update(t); err != nil {
					b.Fatal(err)
				}
				if _, err := br.store.Put(b.Context(), &message.Message{Topic: t.TopicName, Body: []byte("m")}); err != nil {
					b.Fatal(err)
				}
			}
			stopBroker(b, br)
			var took time.Duration
			for b.Loop() {
				at := time.Now()
				if c.topics == 0 {
					opts.Dir = b.TempDir()
				}
				br := start()
				took += time.Since(at)
				stopBroker(b, br)
			}
			b.ReportMetric(float64(took.Milliseconds())/float64(b.N), "ready-ms")
		})
	}
}

var idle = flag.Int("idle", 0, "connections for TestIdleMemory; 0 leaves it out")

// TestIdleMemory measures what idle connections of consumers take: -idle=10000.
func TestIdleMemory(t *testing.T) {
	if *idle == 0 {
		t.Skip("-idle is not given")
	}
	b := startTCP(t, func(o *Options) {})
	var m runtime.MemStats
	used := func() uint64 {
		runtime.GC()
		runtime.ReadMemStats(&m)
		return m.HeapInuse + m.StackInuse
	}
	before := used()
	conns := make([]net.Conn, 0, *idle)
	defer func() {
		for _, nc := range conns {
			nc.Close() //nolint:errcheck // the end
		}
	}()
	for i := range *idle {
		nc, err := net.Dial("tcp", b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		conns = append(conns, nc)
		p := &peer{t: t, id: name("client-", i)}
		for _, frame := range [][]byte{
			frameOf(t, remoting.ReqHeartBeat, 1, nil, remoting.EncodeBody(p.heartbeatOf(name("G", i%100), "T"))),
			frameOf(t, remoting.ReqPullMessage, 2, holdHeader("TBW102", 0, 0), nil),
		} {
			if _, err := nc.Write(frame); err != nil {
				t.Fatal(err)
			}
		}
		for {
			c, err := readFrame(nc)
			if err != nil {
				t.Fatal(err)
			}
			if c.IsResponse() && c.Opaque == 1 {
				break
			}
		}
	}
	waitFor(t, func() bool { return b.holds.count.Load() == int64(*idle) })
	each := (used() - before) / uint64(*idle)
	t.Logf("%d connections, each a member of a group with a held pull: %d MiB, %d bytes each", *idle, (each*uint64(*idle))>>20, each)
	if each > 30<<10 { // 10 000 in 300 MiB
		t.Errorf("%d bytes each", each)
	}
}
