//go:build unix

package cli

import (
	"context"
	"flag"
	"fmt"
	"net"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/client"
	"github.com/gantrymq/gantry/internal/vfs"
	"github.com/gantrymq/gantry/message"
	"github.com/gantrymq/gantry/remoting"
)

// figures has TestFigures measure, and fail when a figure is above its bound: on a
// machine that does other work besides it would fail for no reason of ours.
var (
	figures  = flag.Bool("figures", false, "measure a server process: go test ./internal/cli -run TestFigures -figures -v")
	messages = flag.Int("messages", 200_000, "how many TestFigures sends")
)

const (
	maxReady    = 100 * time.Millisecond
	maxIdleRSS  = 64.0  // MiB
	maxLoadRSS  = 256.0 // MiB, 64 producers
	maxConnsRSS = 300.0 // MiB, 10 000 connections

	producers = 64
	bodySize  = 1 << 10
	idleConns = 10_000
)

func TestFigures(t *testing.T) {
	if !*figures {
		t.Skip("takes long, and wants a quiet machine: -figures")
	}
	program := buildGantry(t)
	start := func(t *testing.T) *process {
		return newProcess(t, program, "serve", "--data", filepath.Join(t.TempDir(), "data"), "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0")
	}
	t.Run("ready", func(t *testing.T) {
		var took []time.Duration
		rss := 0.0
		for range 9 {
			p := start(t)
			took, rss = append(took, p.took), max(rss, p.rss())
			p.signal(syscall.SIGTERM)
		}
		slices.Sort(took)
		t.Logf("ready after %v (%v to %v), at most %.1f MiB resident", took[4], took[0], took[8], rss)
		if took[4] > maxReady || rss > maxIdleRSS {
			t.Errorf("bounds are %v and %v MiB", maxReady, maxIdleRSS)
		}
	})
	t.Run("load", func(t *testing.T) {
		p := start(t)
		c := newTestClient(t, p.at.NameServer)
		send(t, c, *messages/10) // files are made, pools filled
		most := p.watchRSS()
		cpu, began := p.cpu(), time.Now()
		send(t, c, *messages)
		took, used := time.Since(began), p.cpu()-cpu
		rss := most()
		t.Logf("%d producers, %d messages of %d bytes: %.0f/s, %.1f µs of the broker's CPU per message, at most %.1f MiB resident (%.1f at the end)",
			producers, *messages, bodySize, float64(*messages)/took.Seconds(), float64(used.Microseconds())/float64(*messages), rss, p.rss())
		if rss > maxLoadRSS {
			t.Errorf("the bound is %v MiB", maxLoadRSS)
		}
	})
	t.Run("connections", func(t *testing.T) {
		p := start(t)
		before := p.rss()
		frame, err := remoting.AppendFrame(nil, remoting.NewRequest(remoting.ReqGetMaxOffset, &remoting.MaxOffsetRequest{Topic: "TBW102"}))
		if err != nil {
			t.Fatal(err)
		}
		for i := range idleConns {
			nc, err := net.Dial("tcp", p.at.Broker)
			if err != nil {
				t.Fatalf("connection %d: %v", i, err)
			}
			defer nc.Close()
			if _, err := nc.Write(frame); err != nil {
				t.Fatal(err)
			}
			if _, err := nc.Read(make([]byte, 4<<10)); err != nil { // it has been served
				t.Fatalf("connection %d: %v", i, err)
			}
		}
		rss := p.rss()
		t.Logf("%d connections that have asked once: %.1f MiB resident, %.1f before", idleConns, rss, before)
		if rss > maxConnsRSS {
			t.Errorf("the bound is %v MiB", maxConnsRSS)
		}
	})
}

func newTestClient(t testing.TB, nameServer string) *client.Client {
	t.Helper()
	c, err := client.New(client.Options{NameServers: []string{nameServer}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// send sends n messages by as many producers at a time as the load has.
func send(t testing.TB, c *client.Client, n int) {
	t.Helper()
	p, err := client.NewProducer(c, client.ProducerOptions{Group: "load"})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	todo := make(chan struct{}, n)
	for range n {
		todo <- struct{}{}
	}
	close(todo)
	var wg sync.WaitGroup
	for range producers {
		wg.Go(func() {
			m := &message.Message{Topic: "Load", Body: make([]byte, bodySize), Properties: message.NewProperties(message.PropTags, "a", message.PropKeys, "k1 k2")}
			for range todo {
				if _, err := p.Send(t.Context(), m); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// BenchmarkLongPoll is how long a message takes from the call that sends it to
// the handler of a consumer that waits for it, through two connections.
func BenchmarkLongPoll(b *testing.B) {
	bench := newServerBench(b)
	bench.fs = vfs.OS()
	s := bench.server("serve", "--data", filepath.Join(b.TempDir(), "data"), "--listen", "127.0.0.1:0", "--namesrv-listen", "127.0.0.1:0",
		"--set", "defaultTopicQueueNums=1")
	sender, receiver := newTestClient(b, s.at.NameServer), newTestClient(b, s.at.NameServer)
	p, err := client.NewProducer(sender, client.ProducerOptions{Group: "p"})
	if err != nil {
		b.Fatal(err)
	}
	m := &message.Message{Topic: "LongPoll", Body: make([]byte, bodySize)}
	if _, err := p.Send(b.Context(), m); err != nil { // makes the topic
		b.Fatal(err)
	}
	came := make(chan time.Time)
	cons, err := client.NewConsumer(b.Context(), receiver, client.ConsumerOptions{
		Group: "c", Subscriptions: map[string]client.Expression{m.Topic: {}}, From: remoting.FromFirstOffset,
		Handler: func(context.Context, []message.Ext) client.Result {
			came <- time.Now()
			return client.Consumed()
		},
	})
	if err != nil {
		b.Fatal(err)
	}
	defer cons.Close()
	<-came
	var took []time.Duration
	for b.Loop() {
		// The answer to the last pull has been handled; the next pull is on
		// its way, and mostly held by the time a message was stored.
		began := time.Now()
		if _, err := p.Send(b.Context(), m); err != nil {
			b.Fatal(err)
		}
		took = append(took, (<-came).Sub(began))
	}
	slices.Sort(took)
	for _, q := range []int{50, 99} {
		b.ReportMetric(float64(took[len(took)*q/100].Microseconds()), fmt.Sprintf("p%d-µs", q))
	}
}
