package membership

import (
	"sync"
	"time"
)

// A notifier tells the members of groups that their groups have changed, but
// each group at most twice in a window: of the first change at once, before
// notify returns, and of all that follow in the window once, at its end. A
// client then rebalances, which costs every member of its group requests, and
// upstream sends as many as there are changes.
//
// Whom to tell is asked when it is told, so that after the last change
// everybody who is in the group hears of it, or of a later one.
type notifier struct {
	window time.Duration
	max    int                    // groups in a window
	conns  func(string) []Conn    // whom to tell
	send   func(c Conn, g string) // must not wait for the peer

	wake chan struct{} // of capacity 1: the queue was empty
	stop chan struct{}
	done sync.WaitGroup // run, and notify while it sends

	mu struct {
		sync.Mutex
		stopped bool
		again   map[string]bool // the groups in a window; true: changed again
		queue   []windowEnd     // the same groups, the next to end first
	}
}

type windowEnd struct {
	group string
	at    time.Time
}

// maxWindows is the normal bound. Beyond it every change is told at once.
const maxWindows = 1 << 16

func newNotifier(window time.Duration, conns func(string) []Conn, send func(Conn, string)) *notifier {
	n := &notifier{
		window: window, max: maxWindows, conns: conns, send: send,
		wake: make(chan struct{}, 1), stop: make(chan struct{}),
	}
	n.mu.again = make(map[string]bool)
	n.done.Add(1)
	go n.run()
	return n
}

// notify says that a group has changed. After close it does nothing.
func (n *notifier) notify(group string) {
	conns := n.conns(group)
	if len(conns) == 0 {
		return
	}
	if n.first(group) {
		defer n.done.Done()
		n.tell(group, conns)
	}
}

// first reports whether the group is to be told now; then the caller has to
// call done.Done when that is over.
func (n *notifier) first(group string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.mu.stopped {
		return false
	}
	if _, ok := n.mu.again[group]; ok {
		n.mu.again[group] = true
		return false
	}
	n.done.Add(1)
	if len(n.mu.again) < n.max {
		n.mu.again[group] = false
		n.pushLocked(group)
	}
	return true
}

func (n *notifier) pushLocked(group string) {
	n.mu.queue = append(n.mu.queue, windowEnd{group, time.Now().Add(n.window)})
	if len(n.mu.queue) == 1 {
		select {
		case n.wake <- struct{}{}:
		default:
		}
	}
}

func (n *notifier) tell(group string, conns []Conn) {
	for _, c := range conns {
		n.send(c, group)
	}
}

// run ends windows. All are equally long, so they end in the order in which
// they began.
func (n *notifier) run() {
	defer n.done.Done()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-n.stop:
			return
		case <-n.wake:
		case <-timer.C:
		}
		wait, ok := n.endWindows()
		if ok {
			timer.Reset(wait)
		}
	}
}

// endWindows ends the windows whose time has come. It returns how long the
// next one lasts, or false if there is none.
func (n *notifier) endWindows() (wait time.Duration, ok bool) {
	for {
		group, wait, ok := n.endWindow()
		if group == "" {
			return wait, ok
		}
		n.tell(group, n.conns(group))
	}
}

// endWindow ends one and returns its group if that has to be told. The group
// then gets a new window, lest it is told of the next change at once.
func (n *notifier) endWindow() (group string, wait time.Duration, ok bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for len(n.mu.queue) > 0 {
		if n.mu.stopped {
			return "", 0, false
		}
		end := n.mu.queue[0]
		if wait := time.Until(end.at); wait > 0 {
			return "", wait, true
		}
		n.mu.queue[0] = windowEnd{}
		n.mu.queue = n.mu.queue[1:]
		if n.mu.again[end.group] {
			n.mu.again[end.group] = false
			n.pushLocked(end.group)
			return end.group, 0, true
		}
		delete(n.mu.again, end.group)
	}
	n.mu.queue = nil // with it the memory of a burst
	return "", 0, false
}

// close waits for what is being sent. Changes whose window has not ended are
// not told any more. It may be called again.
func (n *notifier) close() {
	n.mu.Lock()
	if !n.mu.stopped {
		n.mu.stopped = true
		close(n.stop)
	}
	n.mu.Unlock()
	n.done.Wait()
}
