package membership

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/gantrymq/gantry/internal/base"
	"github.com/gantrymq/gantry/remoting"
)

// TestConcurrent has everything called at the same time. Connections close
// while their heartbeats are handled; when all are closed nothing is left.
func TestConcurrent(t *testing.T) {
	var sent notes
	r := newRegistry(t, Options{Notify: sent.send, NotifyWindow: time.Millisecond, OnChange: func(Change) {}})
	const workers, rounds = 8, 60
	var wg sync.WaitGroup
	var stay sync.Mutex
	var staying []*testConn
	for w := range workers {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(uint64(w), 1))
			for range rounds {
				c := newConn()
				var inner sync.WaitGroup
				for range 3 {
					group, id := fmt.Sprint("G", rnd.IntN(5)), fmt.Sprint("client", rnd.IntN(6))
					version := rnd.Int64N(100)
					inner.Go(func() {
						hb := consumers(id, push(group, sub("T", "a || b", version), sub(group, "*", version)))
						hb.Producers = producers(id, group).Producers
						if _, err := r.Heartbeat(c, remoting.LanguageGo, 1, hb); err != nil && !errors.Is(err, base.ErrClosed) {
							t.Error(err)
						}
						look(r, group, id)
						b := &remoting.LockBatch{ConsumerGroup: group, ClientID: id, Queues: queues("T", 4)}
						if _, err := r.Locks.TryLock(b); err != nil {
							t.Error(err)
						}
						r.Unregister(c, &remoting.UnregisterClientRequest{ClientID: id, ConsumerGroup: group})
						if err := r.Locks.Unlock(b); err != nil {
							t.Error(err)
						}
					})
				}
				if rnd.IntN(2) == 0 {
					inner.Wait()
				}
				if rnd.IntN(4) == 0 {
					stay.Lock()
					staying = append(staying, c) // what is left is not nothing
					stay.Unlock()
				} else {
					hangUp(r, c)
				}
				inner.Wait()
				if rnd.IntN(10) == 0 {
					r.expire()
				}
			}
		})
	}
	wg.Wait()
	if problem := broken(r); problem != "" {
		t.Error(problem)
	}
	for _, c := range staying {
		hangUp(r, c)
	}
	if s := r.Stats(); s != (Stats{}) {
		t.Errorf("after all connections have closed: %+v", s)
	}
}

func look(r *Registry, group, id string) {
	if ids := r.Members.ClientIDs(group); !slices.IsSorted(ids) {
		panic("client ids are not in order")
	}
	if s, err := r.Members.ForPull(group, "T", 0, true); err == nil && !s.MatchTags("a") {
		panic("a is not subscribed to")
	}
	r.Members.Find(group, id)
	r.Members.Of(group)
	r.Members.GroupsOf("T")
	r.Members.Connections(group)
	r.Producers.Pick(group)
	r.Producers.Client(id)
	r.Producers.Table()
	r.Locks.HasLocks(group)
	r.Stats()
}

// TestOverRemoting: with genuine connections a client is notified before its
// heartbeat is answered, and is out as soon as its connection closes.
func TestOverRemoting(t *testing.T) {
	var r *Registry
	left := make(chan Change, 10)
	r = newRegistry(t, Options{
		Notify: func(c Conn, group string) {
			cmd := remoting.NewRequest(remoting.ReqNotifyConsumerIDsChanged, &remoting.ConsumerGroupRequest{ConsumerGroup: group})
			if err := c.(*remoting.Conn).InvokeOneway(cmd); err != nil && !errors.Is(err, remoting.ErrClosed) {
				t.Error(err)
			}
		},
		OnChange: func(c Change) {
			if c.Kind == Left {
				left <- c
			}
		},
	})
	mux := remoting.NewMux()
	mux.Handle(func(_ context.Context, c *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
		hb := new(remoting.Heartbeat)
		if err := remoting.DecodeBody(req.Body, hb); err != nil {
			return nil, err
		}
		resp, err := r.Heartbeat(c, req.Language, req.Version, hb)
		if err != nil {
			return nil, err
		}
		cmd := remoting.NewResponse(remoting.CodeSuccess, "")
		cmd.SetHeader(&resp)
		return cmd, nil
	}, remoting.ReqHeartBeat)
	srv, err := remoting.NewServer(remoting.ServerOptions{Options: remoting.Options{
		Mux: mux, OnClose: func(c *remoting.Conn, _ error) { r.ConnClosed(c) },
	}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(l) }()
	defer func() {
		if err := srv.Close(); err != nil {
			t.Error(err)
		}
		<-served
	}()

	// Handlers of 40 run on the goroutine that reads, so they are done before
	// the answer that follows is seen.
	dial := func() (*remoting.Client, *notes) {
		n := new(notes)
		mux := remoting.NewMux()
		mux.Handle(func(_ context.Context, _ *remoting.Conn, req *remoting.Command) (*remoting.Command, error) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.list = append(n.list, req.Ext.Value("consumerGroup"))
			return nil, nil
		}, remoting.ReqNotifyConsumerIDsChanged)
		cl := remoting.NewClient(remoting.ClientOptions{Options: remoting.Options{Mux: mux, Inline: func(*remoting.Command) bool { return true }}})
		t.Cleanup(func() { cl.Close() }) //nolint:errcheck // nothing can be lost
		return cl, n
	}
	heartbeat := func(cl *remoting.Client, id string) {
		t.Helper()
		req := remoting.NewRequest(remoting.ReqHeartBeat, nil)
		req.Body = remoting.EncodeBody(consumers(id, push("G", sub("T", "*", 1))))
		resp, err := cl.Invoke(context.Background(), l.Addr().String(), req)
		if err != nil || resp.Code != remoting.CodeSuccess || resp.Ext.Value("IS_SUPPORT_HEART_BEAT_V2") != "true" || resp.Ext.Value("IS_SUB_CHANGE") != "true" {
			t.Fatalf("answer %v, %v", resp, err)
		}
	}
	x, toldX := dial()
	heartbeat(x, "x")
	equalStrings(t, "told before the answer", toldX.take(), "G")
	y, _ := dial()
	heartbeat(y, "y")
	equalStrings(t, "members", r.Members.ClientIDs("G"), "x", "y")
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}
	if c := <-left; c.ClientID != "x" || c.Group != "G" {
		t.Errorf("%+v", c)
	}
	equalStrings(t, "members", r.Members.ClientIDs("G"), "y")
}
