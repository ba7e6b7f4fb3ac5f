package broker

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/gantrymq/gantry"
	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/remoting"
)

// TestCrashUnderLoad: the machine goes down while producers send, also to topics
// that are new, and transactions run. What was acknowledged is there afterwards,
// once; what was open is open.
func TestCrashUnderLoad(t *testing.T) {
	for _, policy := range []memfs.Policy{memfs.LoseUnsynced, memfs.LoseRandomPages, memfs.NewestFirst} {
		t.Run(policy.String(), func(t *testing.T) {
			mem := memfs.NewCrashable(1)
			r := startRig(t, func(o *Options) {
				o.FS, o.Store.Flush, o.Store.CommitLogFileSize = mem, gantry.FlushSync, 256<<10
			})
			r.createTopic("T", 1)
			var mu sync.Mutex
			acked := make(map[string]string) // body → topic
			halves := make(map[string]tx)
			enough, stop := make(chan struct{}), make(chan struct{})
			var wg sync.WaitGroup
			for w := range 6 {
				wg.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						default:
						}
						text, topic := fmt.Sprintf("%d/%d", w, i), "T"
						props := []string{"KEYS", text}
						switch {
						case w == 0:
							topic = fmt.Sprint("New", i/3)
						case w == 1:
							props = append(props, "TRAN_MSG", "true", "PGROUP", "PG")
						}
						req := remoting.NewRequest(remoting.ReqSendMessageV2, sendHeader(topic, 0, props...))
						req.Body = []byte(text)
						resp, err := r.invoke(context.Background(), req)
						if err != nil || resp.Code != 0 {
							t.Errorf("send: %v, %v", resp, err)
							return
						}
						if w == 1 && i%3 > 0 {
							x := txOf(t, resp)
							mu.Lock()
							halves[text] = x
							mu.Unlock()
							if i%3 == 2 {
								continue // it stays open
							}
							end := remoting.NewRequest(remoting.ReqEndTransaction, x.end(remoting.TransactionCommit, false))
							if resp, err := r.invoke(context.Background(), end); err != nil || resp.Code != 0 {
								t.Errorf("commit: %v, %v", resp, err)
								return
							}
							mu.Lock()
							delete(halves, text)
							mu.Unlock()
						} else if w == 1 {
							continue
						}
						mu.Lock()
						acked[text] = topic
						if len(acked) == 300 {
							close(enough)
						}
						mu.Unlock()
					}
				})
			}
			<-enough
			mu.Lock()
			want, open := make(map[string]string), make(map[string]tx)
			for text, topic := range acked {
				want[text] = topic
			}
			for text, x := range halves {
				open[text] = x
			}
			if err := r.b.save(); err != nil { // the worst moment: the offsets are newer than the log
				t.Error(err)
			}
			mu.Unlock()
			opts := r.b.opts
			opts.FS = mem.CrashClone(policy)
			close(stop)
			wg.Wait()
			r.close()
			stopBroker(t, r.b)

			r.b = openRig(t, opts)
			r.peer = r.newPeer("")
			seen := make(map[string]int)
			topics := make(map[string]bool)
			for _, topic := range want {
				topics[topic] = true
			}
			for topic := range topics {
				for _, text := range r.bodies(topic, 0, 0) {
					seen[text]++
				}
			}
			for text, topic := range want {
				if seen[text] != 1 {
					t.Errorf("%s of topic %s was acknowledged and is there %d times", text, topic, seen[text])
				}
			}
			for text, x := range open {
				if seen[text] > 0 {
					continue // its commit was on the way
				}
				if resp := r.commitTx(x); resp.Code != 0 || resp.Remark != "" {
					t.Errorf("commit of %s, which was open: %v", text, resp)
				}
			}
			r.dispatched()
			for _, text := range r.bodies("T", 0, 0) {
				delete(open, text)
			}
			if len(open) > 0 {
				t.Errorf("%d transactions were forgotten", len(open))
			}
		})
	}
}
