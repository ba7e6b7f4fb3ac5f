package gantry

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/gantrymq/gantry/internal/vfs/memfs"
	"github.com/gantrymq/gantry/message"
)

// crashBody is the body of the n-th message that a crash test sends. What is
// stored can be compared with it, whoever has the list of what was sent.
func crashBody(n int) string {
	return fmt.Sprintf("%d:%s", n, strings.Repeat(strconv.Itoa(n%10), 20+n*37%300))
}

// crashNumber is the number of a body; 0: it is none of ours.
func crashNumber(body string) int {
	head, _, _ := strings.Cut(body, ":")
	n, err := strconv.Atoi(head)
	if err != nil || crashBody(n) != body {
		return 0
	}
	return n
}

func crashKey(n int) string { return "k" + strconv.Itoa(n) }

// promise is a message that a put acknowledged.
type promise struct {
	n        int
	place    crashPlace
	physical message.PhysicalOffset
	lax      bool // sent with WAIT=false: not promised to be on stable storage
}

// crashPlace is a place in a queue.
type crashPlace struct {
	topic  string
	queue  int32
	offset message.QueueOffset
}

// ledger is what a workload tried and what it was promised.
type ledger struct {
	mu  sync.Mutex
	now crashClaim
}

// crashClaim is what a ledger says at one moment.
type crashClaim struct {
	tried int       // messages 1 … tried were sent
	acked []promise // only ever appended to
	// durable of acked are on stable storage whatever the flush mode: Sync or
	// Close returned after them.
	durable int
	// removable is how far retention may have removed the log.
	removable message.PhysicalOffset
	// gone are the numbers of messages that an earlier crash lost. Never changed.
	gone map[int]bool
}

func (l *ledger) claim() crashClaim {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.now
	c.acked = slices.Clip(c.acked)
	return c
}

// next begins the next message.
func (l *ledger) next() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.tried++
	return l.now.tried
}

// ack notes what a put answered for the messages with the numbers ns.
func (l *ledger) ack(res PutResult, lax bool, ns ...int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := res.PhysicalOffset
	for i, n := range ns {
		place := crashPlace{res.Topic, res.QueueID, res.QueueOffset + message.QueueOffset(i)}
		l.now.acked = append(l.now.acked, promise{n, place, at, lax})
		if len(res.sizes) > 0 {
			at += message.PhysicalOffset(res.sizes[i])
		}
	}
}

// settle notes that everything that was acknowledged before the claim was made
// is on stable storage.
func (l *ledger) settle(before crashClaim) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.durable = max(l.now.durable, len(before.acked))
}

// lose notes what a crash has lost.
func (l *ledger) lose(in *crashInspection) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	there := make(map[int]bool)
	for _, m := range in.messages {
		there[m.n] = true
	}
	gone := make(map[int]bool)
	for n := 1; n <= l.now.tried; n++ {
		gone[n] = !there[n]
	}
	var kept []promise
	for i, p := range l.now.acked {
		if in.messages[p.place].n == p.n {
			kept = append(kept, p)
		} else if i < l.now.durable {
			return fmt.Errorf("message %d at %+v was on the disk and is lost", p.n, p.place)
		}
	}
	l.now.acked, l.now.gone = kept, gone
	return nil
}

func (l *ledger) mayRemove(to message.PhysicalOffset) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now.removable = max(l.now.removable, to)
}

// crashState is one way in which an image can have come about: the claim is
// the least that was promised and the most that was tried by then.
type crashState struct {
	claim  crashClaim
	policy memfs.Policy
	what   string
}

// holds compares what an image gave with what was promised. strict: everything
// acknowledged must be there, not only a prefix of the log.
func (st *crashState) holds(in *crashInspection, strict bool) error {
	for i, p := range st.claim.acked {
		got, ok := in.messages[p.place]
		switch {
		case ok && got.n == p.n && got.physical == p.physical:
		case p.physical < in.min && p.physical < st.claim.removable: // removed, and that is allowed
		case strict && !p.lax || i < st.claim.durable:
			return fmt.Errorf("acknowledged message %d at %+v, %d, is gone; there is %+v; the log reaches from %d to %d", p.n, p.place, p.physical, got, in.min, in.end)
		case p.physical < in.end:
			return fmt.Errorf("message %d at %+v, %d, is lost before the end of the log at %d; there is %+v", p.n, p.place, p.physical, in.end, got)
		}
	}
	for place, m := range in.messages {
		if m.n > st.claim.tried {
			return fmt.Errorf("message %d at %+v was never sent", m.n, place)
		}
		if st.claim.gone[m.n] {
			return fmt.Errorf("message %d at %+v was lost in an earlier crash and is there again", m.n, place)
		}
	}
	return nil
}
